"""Bounds are never below scores, and never wrap: on plain cells of random segments, every level."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mksearch.crypto.bundle import KeyBundle
from mksearch.crypto.randomness import SeededRandom
from mksearch.crypto.secret import SecretKey
from mksearch.errors import QueryError
from mksearch.field import modp
from mksearch.index.builder import SegmentBuilder
from mksearch.index.dictionary import Dictionary
from mksearch.index.geometry import BlockShape, LevelGeometry
from mksearch.index.manifest import Group, ObjectRef, SegmentRef
from mksearch.index.record import Member
from mksearch.params import IMPACT_MAX, QUERY_SUM_MAX, VECTOR_CLASSES, P
from mksearch.query.group import GroupView, SegmentView
from mksearch.query.ranking import row_bounds
from mksearch.query.trapdoor import Question, Trapdoor, make_trapdoor, parse_question
from mksearch.scoring.cpu import CpuEngine
from mksearch.text.analyzers import make_analyzer
from mksearch.text.quantise import quantise_query, split_query
from mksearch.text.vocabulary import Counts, count_corpus
from mksearch.text.weights import Scoring, document_weights, exact_score

Kind = Literal["tfidf", "bm25"]
COLLECTION = b"collection-bytes"
ANALYZERS = {name: make_analyzer(name) for name in ("english-1", "plain-1")}
#: English has endings to cut and words to leave out, plain keeps all of them.
ENDINGS = ("", "ing", "ed", "s")
BLOCKS = [
    BlockShape(5, 3),
    BlockShape(13, 3),
    BlockShape(61, 3),
    BlockShape(7, 1),
    BlockShape(2, 6),
]


@dataclass(frozen=True)
class Plan:
    """What a random segment is made of."""

    seed: int
    n_docs: int
    n_words: int
    n_tokens: int
    block: BlockShape
    widths: tuple[int, int] | None
    n_tables: int
    kind: Kind
    analyzer: str

    def texts(self) -> list[str]:
        """Documents of skewed words, some of them equal, some empty."""
        draw = random.Random(self.seed)
        texts: list[str] = []
        for _ in range(self.n_docs):
            fate = draw.random()
            if fate < 0.1:
                texts.append("")
            elif fate < 0.25 and texts:
                # Equal counts in another order: the same row.
                texts.append(" ".join(sorted(draw.choice(texts).split())))
            else:
                texts.append(self.words(draw, draw.randint(1, self.n_tokens)))
        return texts

    def words(self, draw: random.Random, n_tokens: int) -> str:
        numbers = (int(self.n_words * draw.random() ** 2) for _ in range(n_tokens))
        return " ".join(f"wort{n}{draw.choice(ENDINGS)} the" for n in numbers)


PLANS = st.builds(
    Plan,
    seed=st.integers(0, 2**32 - 1),
    n_docs=st.integers(1, 50),
    n_words=st.sampled_from([400, 200, 200, 30, 3, 1]),
    n_tokens=st.sampled_from([120, 60, 20, 5, 1]),
    block=st.sampled_from(BLOCKS),
    widths=st.sampled_from([(64, 64), (64, 128), (128, 64), None]),
    n_tables=st.integers(1, 4),
    kind=st.sampled_from(["tfidf", "bm25"]),
    analyzer=st.sampled_from(sorted(ANALYZERS)),
)

#: Several levels, and far more terms than columns.
CROWDED = Plan(1, 60, 400, 120, BlockShape(5, 3), (64, 64), 3, "bm25", "english-1")
DEEP = Plan(2, 50, 400, 60, BlockShape(2, 6), (64, 64), 2, "tfidf", "plain-1")


@dataclass(frozen=True, eq=False)
class Built:
    """A segment as its owner, a member and, without masks, nobody sees it."""

    counts: Counts
    builder: SegmentBuilder
    group: GroupView
    stored: list[NDArray[np.uint16]]
    plain: list[NDArray[np.int64]]
    weights: NDArray[np.int64]

    @property
    def segment(self) -> SegmentView:
        return self.group.segments[0]

    @property
    def block(self) -> BlockShape:
        return self.segment.block

    def terms_of(self, document: int) -> slice:
        return slice(int(self.counts.indptr[document]), int(self.counts.indptr[document + 1]))

    def physical_row(self, level: int, document: int) -> int:
        """Give the physical row of a level that a document is below."""
        fan_out = self.block.fan_out
        row = int(self.builder.row_of_document()[document]) // int(fan_out**level)
        return row // fan_out * self.block.height + row % fan_out


def build(
    texts: Sequence[str],
    *,
    kind: Kind = "tfidf",
    analyzer: str = "plain-1",
    block: BlockShape | None = None,
    widths: tuple[int, int] | None = None,
    n_tables: int = 3,
    seed: bytes = b"",
) -> Built:
    source = SeededRandom(hashlib.sha256(seed).digest())
    counts = count_corpus(ANALYZERS[analyzer], texts)
    scoring, block = Scoring(kind), block or BlockShape()
    bundle = KeyBundle.from_master(SecretKey(source.bytes(32)), COLLECTION, 1, b"")
    distinct = {frozenset(Counter(ANALYZERS[analyzer].tokens(text)).items()) for text in texts}
    n_levels = len(block.level_rows(len(distinct)))
    builder = SegmentBuilder(
        counts,
        [Member(f"d{n}", "", "") for n in range(len(texts))],
        scoring,
        bundle,
        collection=COLLECTION,
        epoch=1,
        random=source,
        block=block,
        n_tables=n_tables,
        geometry=[LevelGeometry(*widths, n_tables)] * n_levels if widths else None,
    )
    data = np.zeros(builder.layout.n_bytes, np.uint8)
    header = builder.write(data)
    vocabulary = counts.vocabulary
    statement: dict[str, str | float] = {"kind": kind, "k1": scoring.k1, "b": scoring.b}
    dictionary = Dictionary(
        analyzer,
        tuple(sorted(ANALYZERS[analyzer].stop_words)),
        statement,
        vocabulary.n_docs,
        vocabulary.total_length,
        vocabulary.terms,
        vocabulary.dfs,
        builder.n_dedicated,
        (builder.facts,),
    )
    nothing = ObjectRef(bytes(32), 0)
    reference = SegmentRef(header.id, len(data), builder.salt)
    group = Group(b"", 1, analyzer, statement, len(texts), (reference,), nothing, nothing, nothing)
    opened = Dictionary.decode(dictionary.encode())
    view = GroupView(group, bundle, COLLECTION, opened, [data[:4096].tobytes()])
    stored = [builder.layout.level(data, level) for level in range(n_levels)]
    plain = [_unmasked(view.segments[0], level, cells) for level, cells in enumerate(stored)]
    weights = document_weights(
        scoring,
        vocabulary.statistics,
        counts.indptr,
        counts.term_ids,
        counts.tfs,
        counts.lengths,
    )
    return Built(counts, builder, view, stored, plain, weights)


def _unmasked(segment: SegmentView, level: int, cells: NDArray[np.uint16]) -> NDArray[np.int64]:
    masks = segment.masks(level, np.arange(cells.shape[1]), None)
    return modp.subtract(cells, masks.T).astype(np.int64)


def build_plan(plan: Plan) -> Built:
    return build(
        plan.texts(),
        kind=plan.kind,
        analyzer=plan.analyzer,
        block=plan.block,
        widths=plan.widths,
        n_tables=plan.n_tables,
        seed=repr(plan).encode(),
    )


def table_sums(
    cells: NDArray[np.int64], geometry: LevelGeometry, vector: NDArray[np.uint16]
) -> NDArray[np.int64]:
    """Multiply without a field: int64 (rows, tables), what a server's sums stand for."""
    query = vector.astype(np.int64)
    dedicated = cells[:, : geometry.dedicated] @ query[: geometry.dedicated]
    sums = np.empty((len(cells), geometry.n_tables), np.int64)
    for g in range(geometry.n_tables):
        start = geometry.dedicated + g * geometry.table
        panel = slice(start, start + geometry.table)
        sums[:, g] = dedicated + cells[:, panel] @ query[panel]
    return sums


def largest_sum(geometry: LevelGeometry, vector: NDArray[np.uint16]) -> int:
    """Give the sum over the dedicated panel and a table of the largest impact times the query."""
    full = np.full((1, geometry.width), IMPACT_MAX, np.int64)
    return int(table_sums(full, geometry, vector).max())


def bounds_of(built: Built, level: int, trapdoor: Trapdoor) -> list[int]:
    """Give the upper bound of the score, in score units, of every physical row of a level."""
    geometry = built.segment.geometry(level)
    totals = [0] * len(built.plain[level])
    for vector, unit in zip(trapdoor.vectors, trapdoor.units, strict=True):
        sums = table_sums(built.plain[level], geometry, vector)
        data = np.arange(len(sums)) % built.block.height < built.block.fan_out
        assert largest_sum(geometry, vector) <= P - 1
        assert sums[data].max() <= P - 1
        for row, smallest in enumerate(sums.min(axis=1).tolist()):
            totals[row] += unit * smallest
    return [built.builder.step * total for total in totals]


def score_of(built: Built, question: Question, document: int) -> int:
    span = built.terms_of(document)
    return exact_score(question.weights, built.counts.term_ids[span], built.weights[span])


@given(plan=PLANS, n_query_words=st.sampled_from([450, 250, 120, 20, 3, 1, 0]))
@example(plan=CROWDED, n_query_words=450)
@example(plan=DEEP, n_query_words=120)
@settings(max_examples=60, deadline=None)
def test_a_bound_is_at_least_the_exact_score_of_every_document_below_its_row(
    plan: Plan, n_query_words: int
) -> None:
    built = build_plan(plan)
    draw = random.Random(plan.seed + 1)
    query = plan.words(draw, n_query_words) + " nowhere"
    question = parse_question(built.group, query)

    for level in range(len(built.plain)):
        trapdoor = make_trapdoor(built.group, question, level)
        assert len(trapdoor.vectors) in VECTOR_CLASSES
        bounds = bounds_of(built, level, trapdoor)
        for document in range(plan.n_docs):
            score = score_of(built, question, document)
            assert bounds[built.physical_row(level, document)] >= score >= 0


@given(plan=PLANS, n_query_words=st.sampled_from([250, 120, 20, 1]))
@example(plan=CROWDED, n_query_words=450)
@settings(max_examples=30, deadline=None)
def test_the_bounds_that_a_client_computes_are_those_of_the_plain_cells(
    plan: Plan, n_query_words: int
) -> None:
    built = build_plan(plan)
    query = plan.words(random.Random(plan.seed + 1), n_query_words)
    trapdoor = make_trapdoor(built.group, parse_question(built.group, query))
    geometry = built.segment.geometry(0)

    sums = np.stack([table_sums(built.plain[0], geometry, v) % P for v in trapdoor.vectors]).astype(
        np.uint16
    )
    bounds = row_bounds(built.segment, sums, trapdoor.units)

    expected = bounds_of(built, 0, trapdoor)
    rows = built.builder.row_of_document()
    for document in range(plan.n_docs):
        bound = int(bounds[rows[document]]) * built.builder.step
        assert bound == expected[built.physical_row(0, document)]


@given(plan=PLANS)
@example(plan=CROWDED)
@example(plan=DEEP)
@settings(max_examples=20, deadline=None)
def test_every_cell_is_the_largest_impact_below_its_row_and_column(plan: Plan) -> None:
    built = build_plan(plan)
    step = built.builder.step
    impacts = [-(-int(weight) // step) for weight in built.weights]

    assert all(1 <= impact <= IMPACT_MAX for impact in impacts)
    assert step == max(1, -(-max(built.weights.tolist(), default=0) // IMPACT_MAX))
    for level, plain in enumerate(built.plain):
        height, fan_out = built.block.height, built.block.fan_out
        expected = np.zeros_like(plain)
        for document in range(plan.n_docs):
            row = expected[built.physical_row(level, document)]
            span = built.terms_of(document)
            for posting in range(span.start, span.stop):
                term_id = int(built.counts.term_ids[posting])
                term = built.counts.vocabulary.terms[term_id]
                columns = built.group.columns.columns_of(level, term_id, term)
                assert len(columns) in (1, plan.n_tables)
                for column in columns:
                    row[column] = max(row[column], impacts[posting])
        is_data = np.arange(len(plain)) % height < fan_out
        np.testing.assert_array_equal(plain[is_data], expected[is_data])


@given(plan=PLANS)
@example(plan=CROWDED)
@example(plan=DEEP)
@settings(max_examples=20, deadline=None)
def test_a_node_has_at_least_the_impact_of_every_term_of_its_children(plan: Plan) -> None:
    built = build_plan(plan)
    columns = built.group.columns
    terms = built.counts.vocabulary.terms

    for level in range(1, len(built.plain)):
        below = [columns.columns_of(level - 1, n, term) for n, term in enumerate(terms)]
        here = [columns.columns_of(level, n, term) for n, term in enumerate(terms)]
        for document in range(plan.n_docs):
            child = built.plain[level - 1][built.physical_row(level - 1, document)]
            node = built.plain[level][built.physical_row(level, document)]
            for term_id in built.counts.term_ids[built.terms_of(document)].tolist():
                # A column may hold another term's larger impact, but all of them cannot hold less.
                assert child[below[term_id]].min() >= 1
                own = -(-int(_weight(built, document, term_id)) // built.builder.step)
                assert node[here[term_id]].min() >= own
                assert child[below[term_id]].min() >= own


def _weight(built: Built, document: int, term_id: int) -> int:
    span = built.terms_of(document)
    at = np.searchsorted(built.counts.term_ids[span], term_id)
    return int(built.weights[span][at])


@given(plan=PLANS)
@example(plan=CROWDED)
@example(plan=DEEP)
@settings(max_examples=20, deadline=None)
def test_check_rows_are_the_weighted_sums_of_their_block(plan: Plan) -> None:
    built = build_plan(plan)
    fan_out, height = built.block.fan_out, built.block.height

    for level, plain in enumerate(built.plain):
        checks = built.segment.check_vectors(level).astype(np.int64)
        for start in range(0, len(plain), height):
            children = plain[start : start + fan_out]
            for k in range(built.block.n_checks):
                expected = checks[k, start : start + fan_out] @ children % P
                np.testing.assert_array_equal(plain[start + fan_out + k], expected)


@given(plan=PLANS)
@settings(max_examples=15, deadline=None)
def test_stored_cells_are_elements_of_the_field_and_show_no_zero_row(plan: Plan) -> None:
    built = build_plan(plan)

    for stored in built.stored:
        assert stored.dtype == np.uint16
        assert int(stored.max()) < P
        # Masks cover missing rows and empty documents as well: no row looks emptier than another.
        assert (np.count_nonzero(stored, axis=1) > 0.9 * stored.shape[1]).all()


# --- the largest queries --------------------------------------------------------------------------


def extreme_weights(n_terms: int) -> st.SearchStrategy[dict[int, int]]:
    """Weights that differ by many orders, are all equal, or are all but one the least."""

    def spread(seed: int) -> dict[int, int]:
        draw = random.Random(seed)
        return {term: 1 << draw.randint(0, 34) for term in range(n_terms)}

    return st.one_of(
        st.integers(0, 2**32).map(spread),
        st.integers(1, 2**40).map(lambda weight: dict.fromkeys(range(n_terms), weight)),
        st.integers(1, 2**40).map(lambda weight: {**dict.fromkeys(range(n_terms), 1), 0: weight}),
    )


@given(query=extreme_weights(QUERY_SUM_MAX))
@settings(max_examples=60, deadline=None)
def test_a_vector_of_515_terms_stays_within_the_field(query: dict[int, int]) -> None:
    quantised, unit = quantise_query(query)

    assert IMPACT_MAX * sum(quantised.values()) <= P - 1
    assert all(quantised[term] * unit >= weight for term, weight in query.items())
    assert all(number >= 1 for number in quantised.values())


@given(query=extreme_weights(4 * QUERY_SUM_MAX))
@settings(max_examples=30, deadline=None)
def test_2060_terms_fit_in_four_vectors_that_stay_within_the_field(query: dict[int, int]) -> None:
    parts = split_query(query)

    assert len(parts) == 4
    assert sum(map(len, parts)) == len(query)
    for part in parts:
        quantised, unit = quantise_query(part)
        assert len(quantised) == QUERY_SUM_MAX
        assert IMPACT_MAX * sum(quantised.values()) <= P - 1
        assert all(quantised[term] * unit >= weight for term, weight in part.items())


def test_one_term_more_than_2060_is_refused() -> None:
    with pytest.raises(QueryError, match="2061 different terms, at most 2060"):
        split_query(dict.fromkeys(range(4 * QUERY_SUM_MAX + 1), 1))


def _one_vector(built: Built, question: Question, level: int) -> Trapdoor:
    """Put all terms into one vector, as no client would above 64 terms."""
    quantised, unit = quantise_query(question.weights)
    columns = built.group.columns
    vector = np.zeros((1, columns.levels[level].width), np.uint16)
    for term_id, number in quantised.items():
        term = built.counts.vocabulary.terms[term_id]
        vector[0, columns.columns_of(level, term_id, term)] += np.uint16(number)
    return Trapdoor(vector, (unit,))


def _four_vectors(built: Built, question: Question, level: int) -> Trapdoor:
    return make_trapdoor(built.group, question, level)


@pytest.mark.parametrize("widths", [(64, 64), None])
@pytest.mark.parametrize(
    ("n_terms", "make"), [(QUERY_SUM_MAX, _one_vector), (4 * QUERY_SUM_MAX, _four_vectors)]
)
def test_the_largest_query_reaches_the_largest_sum_and_no_server_wraps(
    n_terms: int,
    make: Callable[[Built, Question, int], Trapdoor],
    widths: tuple[int, int] | None,
) -> None:
    whole = " ".join(f"w{n}" for n in range(n_terms))
    # All terms are equally frequent and the first document holds all of them: every impact is 127.
    texts = [whole, *(f"x{n}" for n in range(20))]
    built = build(texts, block=BlockShape(5, 3), widths=widths)
    question = parse_question(built.group, whole)

    assert len(question.weights) == n_terms
    for level in range(len(built.plain)):
        trapdoor = make(built, question, level)
        geometry = built.segment.geometry(level)
        served = CpuEngine().score(built.plain[level].astype(np.uint16), geometry, trapdoor.vectors)
        row = built.physical_row(level, 0)
        for vector, sums in zip(trapdoor.vectors, served, strict=True):
            assert largest_sum(geometry, vector) == IMPACT_MAX * QUERY_SUM_MAX
            expected = table_sums(built.plain[level], geometry, vector)
            # Check rows hold any element of the field: their sums do wrap, and may.
            np.testing.assert_array_equal(sums, expected % P)
            assert expected[row].max() <= P - 1
            np.testing.assert_array_equal(sums[row], expected[row])
        bound = bounds_of(built, level, trapdoor)[row]
        assert bound >= score_of(built, question, 0) > 0
