"""The reference implementation agrees with itself and refuses at the right steps."""

from __future__ import annotations

import hashlib
import math
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import combinations
from typing import Any

import cbor2
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from . import codec, descent, field, index, keys, keystream, manifest, records, search, stream, text
from . import segment as segments
from .field import P
from .refused import Refused
from .text import Scoring

TFIDF = Scoring("tfidf", 0.0, 0.0)
BM25 = Scoring("bm25", 1.2, 0.75)
COLLECTION = bytes(range(16))
MASTER = hashlib.sha256(b"a master secret for tests").digest()
SALT = hashlib.sha256(b"a salt for tests").digest()
BUNDLE = keys.bundle_keys(MASTER, COLLECTION, 1, b"role:analyst")
FAN_OUT, N_CHECKS, N_TABLES = 5, 3, 3
WIDTHS = [(64, 64), (64, 128), (128, 64)]
N_DEDICATED = [40, 64, 100]


@contextmanager
def refused_at(step: str) -> Iterator[None]:
    with pytest.raises(Refused) as caught:
        yield
    assert caught.value.step == step, caught.value


@cache
def corpus() -> list[tuple[str, str, str, list[str]]]:
    rng = random.Random(20)
    words = [f"w{i:03}" for i in range(140)] + ["straße", "слово", "検索"]
    common = [1 / (3 + i) for i in range(len(words))]
    documents = [
        (f"doc-{i:02}", f"Title {i}", "snippet " * (i % 4), rng.choices(words, common, k=5 + i))
        for i in range(26)
    ]
    documents.append(("twin", "Same terms", "", list(reversed(documents[3][3]))))
    documents.append(("ärger", "Same terms too", "", documents[3][3]))
    documents.append(("empty", "No terms", "", []))
    documents.append(("long", "Spills", "x" * 5000, ["w000", "w001", "w001", "検索"]))
    return documents


@cache
def order() -> list[int]:
    numbers = list(range(len(corpus())))
    random.Random(21).shuffle(numbers)
    return numbers


@cache
def built(scoring: Scoring = TFIDF) -> segments.Built:
    return segments.plan_segment(
        corpus(),
        order(),
        COLLECTION,
        1,
        SALT,
        BUNDLE,
        FAN_OUT,
        N_CHECKS,
        N_TABLES,
        WIDTHS,
        scoring,
        N_DEDICATED,
    )


@cache
def segment_file() -> bytes:
    return segments.encode_segment(built().segment)


def dictionary(scoring: Scoring = TFIDF) -> stream.Dictionary:
    entry = stream.SegmentEntry(SALT, built(scoring).step, (1, 1))
    return stream.Dictionary("test/1", ["and", "the"], scoring, built().stats, N_DEDICATED, [entry])


def member(scoring: Scoring = TFIDF) -> search.Member:
    return search.Member(BUNDLE, dictionary(scoring), built(scoring).segment)


def honest(scoring: Scoring = TFIDF) -> search.HonestServer:
    return search.HonestServer(built(scoring).segment)


def drawing(seed: int) -> Callable[[int], list[int]]:
    rng = random.Random(seed)
    return lambda n: [rng.randrange(P) for _ in range(n)]


def plain_hits(scoring: Scoring, terms: list[str], k: int) -> list[tuple[int, str]]:
    stats = built().stats
    ids = {term: i for i, term in enumerate(stats.terms)}
    query = text.query_weights(scoring, stats, terms)
    scores = []
    for external_id, _, _, words in corpus():
        tfs = Counter(ids[word] for word in words)
        weights = text.document_weights(scoring, stats, tfs, len(words))
        scores.append((text.score(weights, query), external_id))
    scores.sort(key=lambda pair: (-pair[0], pair[1].encode()))
    return [pair for pair in scores if pair[0] > 0][:k]


def pairs(found: search.Found) -> list[tuple[int, str]]:
    return [(hit.score, hit.external_id) for hit in found.hits]


QUERIES = (["w000", "w007"], ["w003", "w003", "検索", "w101", "unknown"], ["straße"], ["unknown"])


# Encodings


def test_hkdf_is_rfc_5869_with_an_empty_salt() -> None:
    info = b"mksearch/1/columns/shared\x00context"
    expected = HKDF(hashes.SHA256(), 32, None, info).derive(MASTER)
    assert keys.hkdf(MASTER, "mksearch/1/columns/shared", b"context") == expected


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.integers(0, 2**64 - 1), st.binary(max_size=40), st.text(max_size=40), st.floats(width=16)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=30), inner, max_size=4)
    ),
    max_leaves=12,
).filter(lambda value: "nan" not in repr(value) and "inf" not in repr(value))


@settings(max_examples=60, deadline=None)
@given(VALUES)
def test_cbor_is_the_deterministic_encoding_of_another_library(value: object) -> None:
    encoded = codec.encode_cbor(value)
    assert encoded == cbor2.dumps(value, canonical=True)
    assert codec.decode_cbor(encoded) == value


@pytest.mark.parametrize(
    "raw",
    [
        "1800",  # 0 in two bytes
        "190001",  # 1 in three bytes
        "5f41ff",  # indefinite length
        "a2616200616100",  # keys out of order
        "a2616100616100",  # a key twice
        "a10000",  # a key that is no text
        "fb3fe8000000000000",  # 0.75 in eight bytes
        "f97e00",  # not a number
        "20",  # a negative integer
        "f5",  # true
        "c000",  # a tag
        "62ff41",  # text that is no UTF-8
        "0000",  # bytes after the end
        "1a0000",  # cut off
    ],
)
def test_cbor_refuses_other_encodings(raw: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (the kinds of ValueError are many)
        codec.decode_cbor(bytes.fromhex(raw))


@given(st.integers(0, 2**63 - 1))
def test_varints_are_read_back(value: int) -> None:
    raw = codec.encode_varint(value)
    assert codec.decode_varint(raw + b"\x01", 0) == (value, len(raw))


@pytest.mark.parametrize("raw", ["80", "8000", "ffffffffffffffffff01"])
def test_varints_of_another_form_are_refused(raw: str) -> None:
    with pytest.raises(ValueError, match="varint"):
        codec.decode_varint(bytes.fromhex(raw), 0)


# Keystream


def test_words_are_pinned_and_a_16_bit_word_not_below_p_is_replaced() -> None:
    key = bytes(range(32))
    assert keystream.block(key, 1, 2, 3, 4).hex() == "a62c4e2de973146d69ffd703bb9ac9c9"
    assert keystream.word(key, 1, 2, 3, 33) == 0x2D4E
    for column, row, first, result in ((1, 6834, 65528, 35520), (2, 1637, 65535, 28492)):
        at = 2 * (row & 7)
        raw = keystream.block(key, 1, 0, column, row >> 3)[at : at + 2]
        assert int.from_bytes(raw, "little") == first >= P
        whole = keystream.block(key, 0x81, 0, column, row)
        assert keystream.word(key, 1, 0, column, row) == int.from_bytes(whole, "big") % P == result


def test_words_are_below_p_and_spread_evenly() -> None:
    words = [keystream.word(SALT, 1, 0, c, row) for c in range(4) for row in range(4096)]
    assert all(0 <= value < P for value in words)
    counts = Counter(value * 16 // P for value in words)
    expected = len(words) / 16
    assert sum((counts[i] - expected) ** 2 / expected for i in range(16)) < 45


@pytest.mark.parametrize("m", [0, 1, 2, 3, 64, 257])
def test_keyed_permutations_are_permutations_that_depend_on_key_and_level(m: int) -> None:
    perm = keystream.keyed_permutation(SALT, 5, 0, m)
    assert sorted(perm) == list(range(m))
    if m >= 64:
        assert perm != keystream.keyed_permutation(SALT, 5, 1, m)
        assert perm != keystream.keyed_permutation(MASTER, 5, 0, m)


# Weights


def test_logarithms_are_rounded_once() -> None:
    assert text.ln(1) == 0.0
    assert text.ln(2) == float.fromhex("0x1.62e42fefa39efp-1")
    for numerator, denominator in ((10, 3), (10**9 + 1, 10**9), (2**53 + 1, 2**53), (997, 996)):
        near = math.log1p((numerator - denominator) / denominator)
        assert math.isclose(text.ln(numerator, denominator), near, rel_tol=1e-15)


@settings(deadline=None)
@given(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9))
def test_rational_arithmetic_is_binary64_arithmetic(a: float, b: float) -> None:
    assert text._add(a, b) == a + b
    assert text._sub(a, b) == a - b
    assert text._mul(a, b) == a * b
    assert text._div(a, b) == a / b
    assert text._sqrt(a) == math.sqrt(a)


def test_term_ids_follow_document_frequency_then_bytes() -> None:
    stats = text.statistics([("1", "", "", ["b", "a", "é", "z", "z"]), ("2", "", "", ["z", "q"])])
    assert stats.terms == ["z", "a", "b", "q", "é"]
    assert stats.dfs == [2, 1, 1, 1, 1]
    assert (stats.n_docs, stats.total_length) == (2, 7)


@pytest.mark.parametrize("scoring", [TFIDF, BM25])
def test_impacts_are_1_to_127_and_never_below_their_weights(scoring: Scoring) -> None:
    stats, step = built().stats, built(scoring).step
    rows = index.corpus_rows(corpus(), order(), stats)
    for row in rows:
        for weight in text.document_weights(scoring, stats, row.tfs, row.length).values():
            assert 1 <= text.impact(weight, step) <= 127
            assert text.impact(weight, step) * step >= weight


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 2**36), max_size=300))
def test_query_units_are_the_least_that_keep_the_sum(weights: list[int]) -> None:
    query = dict(enumerate(weights))
    split = text.deal(query)
    assert len(split) == (1 if len(query) <= 64 else 2 if len(query) <= 128 else 4)
    for part, ids in zip(text.quantised_query(query, split), split, strict=True):
        assert sum(part.weights.values()) <= 515
        assert part.u == 1 or sum(-(-query[i] // (part.u - 1)) for i in ids) > 515
        assert all(part.u * part.weights[i] >= query[i] for i in ids)


# Index


def test_documents_with_the_same_term_frequencies_share_a_row() -> None:
    rows = index.corpus_rows(corpus(), order(), built().stats)
    assert len(rows) == len(corpus()) - 2
    shared = [row for row in rows if len(row.members) > 1]
    assert [[m[0] for m in row.members] for row in shared] == [["doc-03", "twin", "ärger"]]


def test_levels_end_with_one_block() -> None:
    assert index.level_rows(1, 61) == [1]
    assert index.level_rows(61, 61) == [61]
    assert index.level_rows(62, 61) == [62, 2]
    assert index.level_rows(28, 5) == [28, 6, 2]
    assert index.physical(7, 5, 3) == 10
    assert index.check_row(1, 2, 5, 3) == 15


def test_a_cell_holds_the_largest_impact_of_its_column_and_checks_weigh_the_children() -> None:
    columns = index.Columns(64, 64, 1, [[64], [64], [3]])
    matrix = index.cells([{0: 9, 1: 4}, {1: 5, 2: 6}], columns, SALT, 0, 7, 1)
    assert [[row[3], row[64]] for row in matrix[:3]] == [[0, 9], [6, 5], [0, 0]]
    v = [keystream.word(SALT, keystream.CHECK, 0, 0, row) for row in range(2)]
    assert matrix[7][3] == 6 * v[1] % P
    assert matrix[7][64] == (9 * v[0] + 5 * v[1]) % P


def test_default_widths_follow_the_mean_row_and_the_vocabulary() -> None:
    assert index.default_widths(29 * 100, 100, 50_000, 3, 4) == [
        *((512, 512), (2048, 2048), (8192, 8192), (8192, 8192)),
    ]
    assert index.default_widths(29 * 100, 100, 2_000, 3, 2) == [(512, 512), (2048, 64)]
    assert index.default_widths(0, 1, 0, 3, 1) == [(64, 64)]


@pytest.mark.parametrize("scoring", [TFIDF, BM25])
@pytest.mark.parametrize("terms", QUERIES)
def test_bounds_of_every_level_are_at_least_every_score_below(
    scoring: Scoring, terms: list[str]
) -> None:
    me, stats = member(scoring), built().stats
    query = me.query(terms)
    servers = {1: honest(scoring), 2: honest(scoring)}
    rows = index.corpus_rows(corpus(), order(), stats)
    scores = [
        text.score(text.document_weights(scoring, stats, row.tfs, row.length), query)
        for row in rows
    ]
    for level in range(len(WIDTHS)):
        bounds, liars = me.bounds(level, query, text.deal(query), drawing(level), 1, servers)
        assert not liars
        for r, score in enumerate(scores):
            assert me.score_bound(bounds[r // FAN_OUT**level]) >= score


def test_sums_are_the_cells_times_the_query_and_bounds_their_minimum_over_tables() -> None:
    me = member()
    view = me.views[0]
    query = me.query(built().stats.terms[20:84])
    [part] = text.quantised_query(query, text.deal(query))
    q = search.query_vector(part, view.columns)
    n_rows = len(built().segment.levels[0].matrix)
    servers = {2: honest(), 3: honest()}
    accepted = search.run_vector(view, n_rows, q, [drawing(5)(len(q))], servers)
    bounds, _ = me.bounds(0, query, text.deal(query), drawing(5), 1, servers)
    rows = index.corpus_rows(corpus(), order(), built().stats)
    for r, row in enumerate(rows):
        weights = text.document_weights(TFIDF, built().stats, row.tfs, row.length)
        cells = [0] * len(q)
        for term, weight in weights.items():
            for c in view.columns.of[term]:
                cells[c] = max(cells[c], text.impact(weight, built().step))
        expected = [sum(cells[c] * q[c] for c in view.columns.panel(g)) for g in range(N_TABLES)]
        assert accepted.sums[index.physical(r, FAN_OUT, N_CHECKS)] == expected
        assert bounds[r] == part.u * min(expected)
        assert max(expected) < P


# Searching


def group_entry() -> dict[str, Any]:
    segment = {"id": segments.segment_id(segment_file()), "size": 1, "salt": SALT}
    scoring = dict(TFIDF._asdict())
    return {"analyzer": "test/1", "scoring": scoring, "segments": [segment]}


def foreign_page(collection: bytes = COLLECTION, salt: bytes = SALT) -> bytes:
    changed = built().segment._replace(collection=collection, salt=salt)
    return segments.encode_segment(changed)[:4096]


def with_page(page: bytes) -> dict[str, Any]:
    segment = {"id": segments.segment_id(page), "size": 1, "salt": SALT}
    return group_entry() | {"segments": [segment]}


def test_what_was_fetched_for_a_group_is_compared_with_the_manifest() -> None:
    page, words = segment_file()[:4096], dictionary()
    search.require_opening(group_entry(), COLLECTION, words, [page])
    foreign, resalted = foreign_page(collection=bytes(16)), foreign_page(salt=MASTER)
    other = words.segments[0]._replace(salt=MASTER)
    bad: list[tuple[dict[str, Any], stream.Dictionary, list[bytes]]] = [
        (group_entry(), words, []),
        (group_entry(), words, [foreign]),
        (with_page(foreign), words, [foreign]),
        (with_page(resalted), words, [resalted]),
        (group_entry() | {"analyzer": "test/2"}, words, [page]),
        (group_entry() | {"scoring": dict(BM25._asdict())}, words, [page]),
        (group_entry(), words._replace(segments=[other]), [page]),
    ]
    for group, dictionary_, pages in bad:
        with refused_at("8.0"):
            search.require_opening(group, COLLECTION, dictionary_, pages)


@pytest.mark.parametrize("scoring", [TFIDF, BM25])
@pytest.mark.parametrize("terms", QUERIES)
def test_every_pair_of_three_servers_finds_what_a_plain_engine_finds(
    scoring: Scoring, terms: list[str]
) -> None:
    expected = plain_hits(scoring, terms, 5)
    for ids in combinations((1, 2, 3), 2):
        servers = {j: honest(scoring) for j in ids}
        found = member(scoring).search(terms, 5, drawing(ids[0]), 1, servers)
        assert pairs(found) == expected
        assert found.exact
        assert not found.liars


def test_three_of_five_servers_find_the_same() -> None:
    expected = plain_hits(TFIDF, QUERIES[1], 10)
    for ids in ((1, 2, 3), (5, 1, 4), (2, 3, 5)):
        found = member().search(QUERIES[1], 10, drawing(1), 2, {j: honest() for j in ids})
        assert pairs(found) == expected


def test_a_query_of_more_than_64_terms_goes_out_in_parts() -> None:
    terms = built().stats.terms[:70]
    found = member().search(terms, 30, drawing(2), 1, {1: honest(), 3: honest()})
    assert pairs(found) == plain_hits(TFIDF, terms, 30)


def test_rows_whose_bound_equals_the_cutoff_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [("z", "", "", ["a", "b"]), ("y", "", "", ["a", "c"])]
    arguments = (COLLECTION, 1, SALT, BUNDLE, 61, 3, 3, [(64, 64)], TFIDF)
    two = segments.plan_segment(documents, [0, 1], *arguments)
    entry = stream.SegmentEntry(SALT, 1, (1, 1))
    me = search.Member(
        BUNDLE, stream.Dictionary("a", [], TFIDF, two.stats, [3], [entry]), two.segment
    )
    score = text.score(text.document_weights(TFIDF, two.stats, {0: 1, 1: 1}, 2), me.query(["a"]))
    monkeypatch.setattr(me, "bounds", lambda *_: ([score, score], frozenset()))
    found = me.search(["a"], 1, drawing(3), 1, {1: search.HonestServer(two.segment)})
    assert pairs(found) == [(score, "y")]
    assert found.n_records == 2


def test_too_few_records_are_marked_not_exact() -> None:
    found = member().search(["w000"], 5, drawing(3), 1, {1: honest(), 2: honest()}, max_records=1)
    assert not found.exact
    assert found.n_records == 1


def test_documents_without_terms_make_a_segment_in_which_nothing_is_found() -> None:
    arguments = (COLLECTION, 1, SALT, BUNDLE, 61, 3, 3, [(64, 64)], BM25)
    none = segments.plan_segment([("a", "", "", []), ("b", "", "", [])], [1, 0], *arguments)
    assert (none.segment.n_rows, none.step) == (1, 1)
    assert segments.read_segment(segments.encode_segment(none.segment)) == none.segment
    entry = stream.SegmentEntry(SALT, 1, (1, 1))
    words = stream.Dictionary("a", [], BM25, none.stats, [0], [entry])
    me, server = search.Member(BUNDLE, words, none.segment), search.HonestServer(none.segment)
    assert me.search(["w000"], 5, drawing(4), 1, {1: server, 2: server}).hits == []
    with pytest.raises(ValueError, match="at least one row"):
        segments.build_segment([], [], *arguments)


class Liar(search.HonestServer):
    """Adds an error to one sum."""

    def __init__(self, row: int, table: int, error: int = 1) -> None:
        super().__init__(built().segment)
        self.row, self.table, self.error = row, table, error

    def answer(self, query_id: bytes, level: int, share: list[int]) -> search.Answer:
        answer = super().answer(query_id, level, share)
        sums = answer.sums[self.row]
        sums[self.table] = (sums[self.table] + self.error) % P
        return answer


class OtherShare(search.HonestServer):
    """Answers another share than it was sent."""

    def answer(self, query_id: bytes, level: int, share: list[int]) -> search.Answer:
        return super().answer(query_id, level, [(share[0] + 1) % P, *share[1:]])


class Malformed(search.HonestServer):
    """Changes the form of its answers."""

    def __init__(self, change: Callable[[search.Answer], search.Answer]) -> None:
        super().__init__(built().segment)
        self.change = change

    def answer(self, query_id: bytes, level: int, share: list[int]) -> search.Answer:
        return self.change(super().answer(query_id, level, share))


ANSWER_CHANGES: dict[str, Callable[[search.Answer], search.Answer]] = {
    "element": lambda a: a._replace(sums=[[P] * N_TABLES, *a.sums[1:]]),
    "rows": lambda a: a._replace(sums=a.sums[1:]),
    "tables": lambda a: a._replace(sums=[row[1:] for row in a.sums]),
    "query": lambda a: a._replace(query_id=SALT[:16]),
}


@pytest.mark.parametrize(
    "liar",
    [Liar(0, 0), Liar(12, 2, 77), Liar(5, 1), OtherShare(built().segment)],
    ids=["row", "other block", "check row", "replaced share"],
)
def test_a_lying_server_is_named_and_another_one_asked(liar: search.HonestServer) -> None:
    expected = plain_hits(TFIDF, QUERIES[0], 5)
    found = member().search(QUERIES[0], 5, drawing(6), 1, {3: honest(), 2: liar, 1: honest()})
    assert found.liars == {2}
    assert pairs(found) == expected


@pytest.mark.parametrize("name", ANSWER_CHANGES)
def test_a_malformed_answer_names_its_server(name: str) -> None:
    bad = Malformed(ANSWER_CHANGES[name])
    found = member().search(QUERIES[0], 5, drawing(7), 1, {1: bad, 2: honest(), 3: honest()})
    assert found.liars == {1}
    level = built().segment.levels[0]
    share = [0] * (level.w0 + N_TABLES * level.w1)
    with refused_at("8.4"):
        search.require_answer(
            bad.answer(bytes(16), 0, share), bytes(16), len(level.matrix), N_TABLES
        )


def test_a_server_refuses_what_is_no_share() -> None:
    level = built().segment.levels[0]
    width = level.w0 + N_TABLES * level.w1
    for share in ([0] * (width - 1), [P] + [0] * (width - 1)):
        with refused_at("8.3"):
            honest().answer(bytes(16), 0, share)


def test_a_liar_whose_answer_was_not_used_is_named() -> None:
    servers = {1: honest(), 2: honest(), 3: Liar(20, 0)}
    found = member().search(QUERIES[0], 5, drawing(8), 1, servers, n_asked=3)
    assert found.liars == {3}


def test_two_liars_of_three_end_the_search_and_are_named() -> None:
    servers = {1: Liar(0, 0), 2: honest(), 3: Liar(9, 1, 500)}
    with pytest.raises(Refused) as caught:
        member().search(QUERIES[0], 5, drawing(9), 1, servers)
    assert caught.value.step == "8.7"
    assert caught.value.servers == {1, 3}


def test_two_colluding_liars_of_five_are_named() -> None:
    weights = field.lagrange([1, 2, 3], 0)
    # Errors that cancel in the combination but for one unit.
    second = (1 - weights[0]) * pow(weights[1], -1, P) % P
    servers = {1: Liar(0, 0, 1), 2: Liar(0, 0, second), 3: honest(), 4: honest(), 5: honest()}
    found = member().search(QUERIES[0], 5, drawing(10), 2, servers)
    assert found.liars == {1, 2}
    assert pairs(found) == plain_hits(TFIDF, QUERIES[0], 5)


def test_errors_that_cancel_change_nothing_and_are_named_once_others_answer() -> None:
    weights = field.lagrange([1, 2, 3], 0)
    second = -weights[0] * pow(weights[1], -1, P) % P
    servers = {1: Liar(0, 0, 1), 2: Liar(0, 0, second), 3: honest(), 4: honest(), 5: honest()}
    for n_asked, liars in ((3, set()), (5, {1, 2})):
        found = member().search(QUERIES[0], 5, drawing(12), 2, servers, n_asked=n_asked)
        assert found.liars == liars
        assert pairs(found) == plain_hits(TFIDF, QUERIES[0], 5)


# Shares


def test_zero_coefficients_are_drawn_and_work() -> None:
    assert field.shamir([5, 0], [[0, 0]], 7) == [5, 0]
    found = member().search(QUERIES[0], 5, lambda n: [0] * n, 1, {1: honest(), 3: honest()})
    assert pairs(found) == plain_hits(TFIDF, QUERIES[0], 5)


def test_every_share_is_possible_for_every_query_entry() -> None:
    for entry in (0, 1, 515):
        assert len({(entry + c * 3) % P for c in range(P)}) == P
        assert field.shamir([entry], [[-entry * pow(3, -1, P) % P]], 3) == [0]


@given(st.integers(0, P - 1), st.lists(st.integers(0, P - 1), min_size=1, max_size=4))
def test_any_t_plus_1_shares_give_the_secret(secret: int, coefficients: list[int]) -> None:
    ids = random.Random(secret).sample(range(1, 256), len(coefficients) + 2)
    shares = {j: field.shamir([secret], [[c] for c in coefficients], j) for j in ids}
    assert field.interpolate({j: shares[j] for j in ids[1:]}, 0) == [secret]
    assert field.interpolate({j: shares[j] for j in ids[1:]}, ids[0]) == shares[ids[0]]


# Records


def test_records_are_read_back_by_any_server_and_spill() -> None:
    rows = index.corpus_rows(corpus(), order(), built().stats)
    layout = built().segment.layout
    assert layout.n_slots > layout.n_rows
    for r, row in enumerate(rows):
        got = records.open_record(layout, member().keys, r, honest().slots)
        assert got == row
        assert records.decode_record(records.encode_record(row)) == row


def test_record_bytes_are_pinned() -> None:
    row = index.Row({0: 1, 2: 3, 3: 1}, 5, [("b", "T", "é"), ("a", "", "")])
    expected = "01 05 03 00 03 01 00 02 01 61 00 00 01 62 01 54 02 c3a9"
    assert records.encode_record(row).hex() == expected.replace(" ", "")


def test_elements_have_15_bits_the_most_significant_first() -> None:
    raw = bytes([0x80, 0x01]) + bytes(12) + bytes([0x03])
    assert records.elements_of(raw) == [0x4000, 0x4000, 0, 0, 0, 0, 0, 3]
    assert records.bytes_of_elements(records.elements_of(raw)) == raw


def test_slots_are_chosen_so_that_97_percent_of_the_rows_fit() -> None:
    assert records.choose_units([bytes(486)] * 97 + [bytes(487)] * 3) == 34
    assert records.choose_units([bytes(486)] * 96 + [bytes(487)] * 4) == 68
    assert records.choose_units([bytes(5000)]) == 136


def test_tags_are_linear_so_a_combination_of_slots_is_judged_alone() -> None:
    tag_key, slots = member().keys.tag, built().segment.slots
    n = built().segment.layout.n_elements
    for s in (0, 7):
        assert records.tags_of(tag_key, s, slots[s][:n]) == slots[s][n:]
    mixed = [(3 * a + 5 * b) % P for a, b in zip(slots[0], slots[7], strict=True)]
    for k in range(3):
        pads = [keystream.word(tag_key, keystream.TAG_PAD, 0, k, s) for s in (0, 7)]
        weights = [keystream.word(tag_key, keystream.TAG_WEIGHT, 0, k, e) for e in range(n)]
        total = sum(w * value for w, value in zip(weights, mixed[:n], strict=True))
        assert (total + 3 * pads[0] + 5 * pads[1]) % P == mixed[n + k]


class BadSlots(search.HonestServer):
    """Changes the slots that it returns."""

    def __init__(self, change: Callable[[list[list[int]]], list[list[int]]]) -> None:
        super().__init__(built().segment)
        self.change = change

    def slots(self, numbers: list[int]) -> list[list[int]]:
        return self.change(super().slots(numbers))


SLOT_CHANGES: dict[str, Callable[[list[list[int]]], list[list[int]]]] = {
    "8.10.1 none": lambda slots: [],
    "8.10.1 one more": lambda slots: slots + slots,
    "8.10.1 short": lambda slots: [slot[:-1] for slot in slots],
    "8.10.2 element": lambda slots: [[1 << 15, *slot[1:]] for slot in slots],
    "8.10.2 tag": lambda slots: [[*slot[:-1], P] for slot in slots],
    "8.10.3 changed": lambda slots: [[slot[0] ^ 1, *slot[1:]] for slot in slots],
    "8.10.3 another": lambda slots: [built().segment.slots[3]],
}


@pytest.mark.parametrize("name", SLOT_CHANGES)
def test_bad_slots_are_refused_and_their_sender_named(name: str) -> None:
    bad = BadSlots(SLOT_CHANGES[name])
    with refused_at(name.split(maxsplit=1)[0]):
        records.open_record(built().segment.layout, member().keys, 0, bad.slots)
    found = member().search(QUERIES[0], 5, drawing(11), 1, {1: bad, 2: honest()})
    assert found.liars == {1}
    assert pairs(found) == plain_hits(TFIDF, QUERIES[0], 5)


def framed(size: int, first_spill: int, rest: bytes, j: int = 0) -> list[int]:
    """Seal a frame of one part for row 0."""
    layout = built().segment.layout
    nonce = codec.u64(0) + codec.u32(j)
    plain = (codec.u32(size) + codec.u32(first_spill) + rest).ljust(15 * layout.units - 16, b"\x00")
    associated = b"mksearch/1/record\x00" + COLLECTION + SALT + nonce
    sealed = AESGCM(member().keys.record).encrypt(nonce, plain, associated)
    elements = records.elements_of(sealed)
    return elements + records.tags_of(member().keys.tag, 0, elements)


RECORD = bytes.fromhex("01000001016100 00")


@pytest.mark.parametrize(
    "slot",
    [
        framed(8, 0, RECORD + b"\x01"),
        framed(8, 28, RECORD),
        framed(7, 0, RECORD[:7]),
        framed(5000, 0, b""),
        framed(5000, 27, b""),
        framed(5000, 29, b""),
        framed(2**32 - 1, 28, b""),
    ],
    ids=["padding", "needless spill", "record", "no spill", "low", "high", "huge"],
)
def test_frames_of_another_form_are_refused(slot: list[int]) -> None:
    layout, me = built().segment.layout, member()
    assert (layout.n_rows, layout.n_slots) == (28, 30)
    assert records.open_record(layout, me.keys, 0, lambda _: [framed(8, 0, RECORD)]).members
    with refused_at("8.10.4"):
        records.open_record(layout, me.keys, 0, lambda numbers: [slot] * len(numbers))


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "02 00 00 00",  # another version
        "01 00 00",  # cut off
        "01 00 00 00 00",  # a byte after the end
        "01 80 00 00 00",  # a long varint
        "01 00 00 00",  # no member
        "01 00 00 02 01 62 00 00 01 61 00 00",  # members out of order
        "01 00 00 02 01 61 00 00 01 61 00 00",  # a member twice
        "01 00 00 01 00 00 00",  # an empty id
        "01 00 00 01 01 ff 00 00",  # no UTF-8
    ],
)
def test_record_bytes_of_another_form_are_refused(raw: str) -> None:
    with refused_at("8.10.4"):
        records.decode_record(bytes.fromhex(raw))


# Segment files


def test_a_segment_file_is_read_back() -> None:
    raw = segment_file()
    assert segments.read_segment(raw) == built().segment
    assert segments.encode_segment(segments.read_segment(raw)) == raw
    assert segments.segment_id(raw) == hashlib.sha256(raw[:4096]).digest()


def test_another_salt_changes_every_level() -> None:
    other = segments.plan_segment(
        corpus(),
        order(),
        COLLECTION,
        1,
        MASTER,
        BUNDLE,
        FAN_OUT,
        N_CHECKS,
        N_TABLES,
        WIDTHS,
        TFIDF,
        N_DEDICATED,
    )
    for one, two in zip(built().segment.levels, other.segment.levels, strict=True):
        assert one.matrix != two.matrix


def changed(raw: bytes, at: int, value: int | None = None) -> bytes:
    byte = raw[at] ^ 1 if value is None else value
    return raw[:at] + bytes([byte]) + raw[at + 1 :]


def with_header(change: Callable[[dict[str, Any]], None]) -> bytes:
    raw = segment_file()
    header = codec.decode_cbor(raw[16 : 16 + int.from_bytes(raw[12:16], "big")])
    change(header)
    encoded = codec.encode_cbor(header)
    first = raw[:12] + codec.u32(len(encoded)) + encoded
    return first.ljust(4096, b"\x00") + raw[4096:]


def setting(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        target: Any = header
        for key in way:
            target = target[key]
        target[last] = value

    return change


def setting_all(**values: int) -> Callable[[dict[str, Any]], None]:
    return lambda header: header.update(values)


SEGMENT_CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "5.1 magic": lambda raw: changed(raw, 0),
    "5.1 empty": lambda raw: b"",
    "5.2 format": lambda raw: changed(raw, 11),
    "5.3 cut": lambda raw: raw[:4095],
    "5.3 long header": lambda raw: changed(raw, 14, 0xFF),
    "5.3 header byte": lambda raw: changed(raw, 16),
    "5.3 after the header": lambda raw: changed(raw, 4095),
    "5.3 another key": lambda raw: with_header(setting("more", 1)),
    "5.3 another type": lambda raw: with_header(setting("epoch", "1")),
    "5.3 short salt": lambda raw: with_header(setting("salt", bytes(31))),
    "5.3 no rows": lambda raw: with_header(setting("n_rows", 0)),
    "5.3 no checks": lambda raw: with_header(setting("n_checks", 0)),
    "5.3 fan_out": lambda raw: with_header(setting_all(fan_out=1, n_checks=7)),
    "5.3 large blocks": lambda raw: with_header(setting("fan_out", 517)),
    "5.3 blocks of 9": lambda raw: with_header(setting("fan_out", 6)),
    "5.3 tables": lambda raw: with_header(setting("n_tables", 9)),
    "5.3 width": lambda raw: with_header(setting("levels.0.dedicated", 65)),
    "5.3 no width": lambda raw: with_header(setting("levels.1.table", 0)),
    "5.3 units": lambda raw: with_header(setting("slots.units", 35)),
    "5.3 few slots": lambda raw: with_header(setting("slots.n_slots", 1)),
    "5.3 blocks": lambda raw: with_header(setting("levels.0.n_rows", 1 << 40)),
    "5.4 rows": lambda raw: with_header(setting("levels.0.n_rows", 56)),
    "5.4 n_rows": lambda raw: with_header(setting("n_rows", 25)),
    "5.4 levels": lambda raw: with_header(lambda header: header["levels"].pop()),
    "5.5 offset": lambda raw: with_header(setting("levels.1.offset", 4096)),
    "5.5 slots": lambda raw: with_header(setting("slots.offset", 4097)),
    "5.5 cut": lambda raw: raw[:-1],
    "5.5 longer": lambda raw: raw + b"\x00",
    "5.6 hash": lambda raw: changed(raw, 4096),
    "5.6 hash of slots": lambda raw: changed(raw, len(raw) - 1),
    "5.6 gap": lambda raw: changed(raw, gap(raw)),
    "5.6 element": lambda raw: with_large_element(raw),
}


def gap(raw: bytes) -> int:
    """Return a place between the levels 1 and 2."""
    level = built().segment.levels[1]
    offset = 4096 + -(-2 * 48 * 256 // 4096) * 4096
    return offset + 2 * len(level.matrix) * len(level.matrix[0])


def with_large_element(raw: bytes) -> bytes:
    size = 2 * 48 * 256
    section = P.to_bytes(2, "little") + raw[4098 : 4096 + size]
    first = with_header(setting("levels.0.sha256", hashlib.sha256(section).digest()))[:4096]
    return first + section + raw[4096 + size :]


@pytest.mark.parametrize("name", SEGMENT_CHANGES)
def test_a_changed_segment_file_is_refused_at_its_step(name: str) -> None:
    raw = SEGMENT_CHANGES[name](segment_file())
    with refused_at(name.split(maxsplit=1)[0]):
        segments.read_segment(raw)


def test_hashes_are_compared_only_when_verifying() -> None:
    segments.read_segment(changed(segment_file(), 4096), verify=False)


# Sealed streams


def sealed(content: bytes, kind: str = "blob") -> bytes:
    return stream.seal_stream(kind, MASTER, COLLECTION, SALT, content)


def test_padme_rounds_up_by_at_most_12_percent() -> None:
    known = {0: 0, 1: 1, 8: 8, 9: 10, 100: 104, 1000: 1024, 65537: 67584}
    assert {x: stream.padme(x) for x in known} == known
    for x in range(2, 5000):
        assert x <= stream.padme(x) <= x * 1.12
        assert stream.padme(stream.padme(x)) == stream.padme(x)


@pytest.mark.parametrize("size", [0, 1, 1000, 65536 - 8, 65536 - 7, 150_000])
def test_streams_are_read_back(size: int) -> None:
    content = random.Random(size).randbytes(size)
    raw = sealed(content)
    padded = stream.padme(8 + size)
    assert len(raw) == 44 + padded + 16 * -(-padded // 65536)
    assert stream.open_stream("blob", MASTER, COLLECTION, raw) == content


def test_every_changed_byte_of_a_stream_is_refused() -> None:
    raw = sealed(b"a short document")
    for at in range(len(raw)):
        with refused_at("6.1" if at < 12 else "6.3"):
            stream.open_stream("blob", MASTER, COLLECTION, changed(raw, at))


def test_streams_of_other_kind_key_collection_or_order_are_refused() -> None:
    raw = sealed(bytes(150_000))
    chunks = [raw[at : at + 65552] for at in range(44, len(raw), 65552)]
    swapped = raw[:44] + chunks[1] + chunks[0] + b"".join(chunks[2:])
    bad = [
        ("6.3", "lookup", MASTER, COLLECTION, raw),
        ("6.3", "blob", SALT, COLLECTION, raw),
        ("6.3", "blob", MASTER, bytes(16), raw),
        ("6.2", "blob", MASTER, COLLECTION, raw[:44]),
        ("6.2", "blob", MASTER, COLLECTION, raw[:60]),
        ("6.3", "blob", MASTER, COLLECTION, raw[: 44 + 65552]),
        ("6.2", "blob", MASTER, COLLECTION, raw[: 44 + 65552 + 16]),
        ("6.3", "blob", MASTER, COLLECTION, raw[:-1]),
        ("6.3", "blob", MASTER, COLLECTION, raw + bytes(16)),
        ("6.3", "blob", MASTER, COLLECTION, swapped),
    ]
    for step, kind, key, collection, data in bad:
        with refused_at(step):
            stream.open_stream(kind, key, collection, data)


@pytest.mark.parametrize(
    "plain", [bytes(7), codec.u64(1) + b"xy", codec.u64(9), codec.u64(0) + bytes(2)]
)
def test_wrong_padding_is_refused(plain: bytes) -> None:
    aead = AESGCM(keys.stream_key(MASTER, "blob", SALT))
    associated = b"mksearch/1/stream\x00blob\x00" + COLLECTION
    raw = b"MKSTREAM" + codec.u32(1) + SALT + aead.encrypt(bytes(11) + b"\x01", plain, associated)
    with refused_at("6.4"):
        stream.open_stream("blob", MASTER, COLLECTION, raw)


def test_contents_of_streams_are_read_back() -> None:
    assert stream.decode_dictionary(stream.encode_dictionary(dictionary())) == dictionary()
    assert stream.decode_blob(stream.encode_blob("ä", "T", "text")) == ("ä", "T", "text")
    wrapped = stream.wrap_blob_key(keys.wrapping_key(BUNDLE), SALT)
    assert len(wrapped) == 40
    assert stream.unwrap_blob_key(keys.wrapping_key(BUNDLE), wrapped) == SALT
    with refused_at("6.5"):
        stream.unwrap_blob_key(keys.wrapping_key(BUNDLE), changed(wrapped, 5))
    key = keys.lookup_key(BUNDLE)
    entries = {
        f"d{i}": stream.LookupEntry(0, i, bytes([i]) * 32, 1000 + i, wrapped) for i in range(5)
    }
    content = stream.encode_lookup(key, entries)
    assert len(content) == 1 + 5 * 104
    read = stream.decode_lookup(content)
    assert read == {stream.lookup_place(key, name): entry for name, entry in entries.items()}
    catalogue = [stream.CatalogueEntry(name, SALT, 3, SALT, MASTER) for name in ("b", "z", "ä")]
    assert stream.decode_catalogue(stream.encode_catalogue(catalogue[::-1])) == catalogue
    sizes = {SALT: 5, MASTER: 2**40}
    assert stream.decode_blob_list(stream.encode_blob_list(sizes)) == sizes


def test_contents_of_another_form_are_refused() -> None:
    key = keys.lookup_key(BUNDLE)
    entry = stream.LookupEntry(0, 1, SALT, 7, bytes(40))
    lookup = stream.encode_lookup(key, {"a": entry, "b": entry})
    blobs = stream.encode_blob_list({SALT: 1, MASTER: 2})
    packed = stream.encode_dictionary(dictionary())
    bad: list[tuple[str, Callable[[bytes], object], bytes]] = [
        ("6.5", stream.decode_lookup, b""),
        ("6.5", stream.decode_lookup, lookup[:-1]),
        ("6.5", stream.decode_lookup, lookup[:1] + lookup[105:] + lookup[1:105]),
        ("6.1", stream.decode_blob_list, changed(blobs, 11)),
        ("6.2", stream.decode_blob_list, blobs + b"\x00"),
        ("6.5", stream.decode_blob_list, blobs[:12] + blobs[52:] + blobs[12:52]),
        ("6.5", stream.decode_dictionary, packed + b"\x00"),
        ("6.5", stream.decode_dictionary, packed[:-1]),
        ("6.5", stream.decode_dictionary, stream.dictionary_cbor(dictionary())),
        ("6.5", stream.decode_blob, codec.encode_cbor({"id": "a"})),
    ]
    for step, decode, raw in bad:
        with refused_at(step):
            decode(raw)


DICTIONARY_CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "stop words": lambda body: body["stop_words"].reverse(),
    "empty term": lambda body: body.update(terms=body["terms"] + b"\n", dfs=body["dfs"] + b"\x01"),
    "term twice": lambda body: body.update(
        terms=body["terms"] + b"\nw000", dfs=body["dfs"] + b"\x01"
    ),
    "term without frequency": lambda body: body.update(terms=body["terms"] + b"\nmore"),
    "frequency": lambda body: body.update(dfs=b"\x7f" + body["dfs"][1:]),
    "no frequency": lambda body: body.update(dfs=b"\x00" + body["dfs"][1:]),
    "no segment": lambda body: body["segments"].clear(),
    "two segments": lambda body: body["segments"].append(body["segments"][0] | {"salt": MASTER}),
    "kappa": lambda body: body["segments"][0].update(kappa=[2, 1]),
    "step": lambda body: body["segments"][0].update(step=0),
    "scoring": lambda body: body["scoring"].update(b=1.5),
    "format": lambda body: body.update(format=2),
}


@pytest.mark.parametrize("name", DICTIONARY_CHANGES)
def test_a_dictionary_that_no_owner_writes_is_refused(name: str) -> None:
    body = codec.decode_cbor(stream.dictionary_cbor(dictionary()))
    DICTIONARY_CHANGES[name](body)
    with refused_at("6.5"):
        stream.decode_dictionary(zlib.compress(codec.encode_cbor(body)))


# Manifest

SEED = bytes(range(1, 33))
OWNER = Ed25519PrivateKey.from_private_bytes(SEED).public_key().public_bytes_raw()
NOW = 1_800_000_000


def body(**changes: Any) -> dict[str, Any]:
    file = {"id": SALT, "size": 100}
    scoring = {"kind": "bm25", "k1": 1.2, "b": 0.75}
    group = {
        "policy": b"role:analyst",
        "epoch": 1,
        "analyzer": "test/1",
        "scoring": scoring,
        "n_docs": 30,
        "segments": [{"id": MASTER, "size": 4096, "salt": SALT}],
        "dictionary": file,
        "lookup": file,
        "blobs": file,
    }
    return {
        "collection": COLLECTION,
        "name": "tests",
        "version": 2,
        "previous": MASTER,
        "created_at": NOW,
        "expires_at": NOW + 100,
        "n_servers": 3,
        "collusion_bound": 1,
        "owner_key": OWNER,
        "groups": [group],
        "catalogue": file,
    } | changes


def signed(value: dict[str, Any], seed: bytes = SEED) -> bytes:
    return manifest.sign_manifest(codec.encode_cbor(value), seed)


def read(raw: bytes, now: int = NOW, **more: Any) -> dict[str, Any]:
    return manifest.read_manifest(raw, OWNER, COLLECTION, now, **more)


def test_a_manifest_is_read_back() -> None:
    assert manifest.encode_body(body()) == codec.encode_cbor(body())
    assert read(signed(body())) == body()
    own = (2, manifest.manifest_hash(codec.encode_cbor(body())))
    assert read(signed(body()), seen=own) == body()
    assert read(signed(body()), seen=(1, MASTER)) == body()
    assert read(signed(body(version=9)), seen=(1, SALT)) == body(version=9)
    assert read(signed(body(version=1, previous=bytes(32))))["version"] == 1
    assert read(signed(body()), now=NOW + 100) == body()
    assert read(signed(body()), now=NOW + 101, accept_expired=True) == body()


MANIFEST_CHANGES: dict[str, Callable[[], object]] = {
    "7.1 magic": lambda: read(changed(signed(body()), 3)),
    "7.1 format": lambda: read(changed(signed(body()), 11)),
    "7.2 cut": lambda: read(signed(body())[:-1]),
    "7.2 longer": lambda: read(signed(body()) + b"\x00"),
    "7.2 length": lambda: read(changed(signed(body()), 15)),
    "7.3 body": lambda: read(changed(signed(body()), 40)),
    "7.3 signature": lambda: read(changed(signed(body()), len(signed(body())) - 1)),
    "7.3 another key": lambda: read(signed(body(), MASTER)),
    "7.3 and expired": lambda: read(signed(body(), MASTER), now=NOW + 101),
    "7.4 not canonical": lambda: read(manifest.sign_manifest(b"\xbf\xff", SEED)),
    "7.4 another key": lambda: read(signed(body(more=1))),
    "7.4 another type": lambda: read(signed(body(name=b"tests"))),
    "7.4 version 0": lambda: read(signed(body(version=0))),
    "7.4 previous": lambda: read(signed(body(version=1))),
    "7.4 servers": lambda: read(signed(body(n_servers=4, collusion_bound=2))),
    "7.4 groups": lambda: read(signed(body(groups=[{}]))),
    "7.5 owner": lambda: read(signed(body(owner_key=MASTER))),
    "7.5 collection": lambda: read(signed(body(collection=bytes(16)))),
    "7.6 older": lambda: read(signed(body()), seen=(3, SALT)),
    "7.6 twice": lambda: read(signed(body()), seen=(2, SALT)),
    "7.6 successor": lambda: read(signed(body()), seen=(1, SALT)),
    "7.6 and expired": lambda: read(signed(body()), now=NOW + 101, seen=(3, SALT)),
    "7.7 expired": lambda: read(signed(body()), now=NOW + 101),
}


@pytest.mark.parametrize("name", MANIFEST_CHANGES)
def test_a_bad_manifest_is_refused_at_its_step(name: str) -> None:
    with refused_at(name.split(maxsplit=1)[0]):
        MANIFEST_CHANGES[name]()


# Named blocks


class BlockLiar(descent.HonestBlockServer):
    """Adds an error to the first sum about a level."""

    def __init__(self, level: int) -> None:
        super().__init__(built().segment)
        self.level = level

    def answer_blocks(
        self, query_id: bytes, level: int, share: list[int], blocks: Sequence[int]
    ) -> search.Answer:
        answer = super().answer_blocks(query_id, level, share, blocks)
        if level == self.level:
            answer.sums[0][0] = (answer.sums[0][0] + 1) % P
        return answer


@pytest.mark.parametrize("terms", QUERIES)
def test_opening_blocks_one_by_one_finds_what_a_plain_engine_finds(terms: list[str]) -> None:
    server = descent.HonestBlockServer(built().segment)
    found, opened = descent.descend(member(), terms, 5, drawing(3), 1, {1: server, 3: server})
    assert pairs(found) == plain_hits(TFIDF, terms, 5)
    assert opened[0] == (len(built().segment.levels) - 1, 0)
    assert len(opened) == len(set(opened))


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_liar_about_a_block_of_any_level_is_named(level: int) -> None:
    honest_ = descent.HonestBlockServer(built().segment)
    servers = {2: BlockLiar(level), 1: honest_, 3: honest_}
    found, _ = descent.descend(member(), QUERIES[0], 5, drawing(4), 1, servers)
    assert found.liars == {2}
    assert pairs(found) == plain_hits(TFIDF, QUERIES[0], 5)


def test_blocks_that_no_level_has_are_refused() -> None:
    for blocks, step in (
        ([], "8.11.1"),
        ([1, 1], "8.11.1"),
        ([2, 1], "8.11.1"),
        ([0, 99], "8.11.2"),
    ):
        with refused_at(step):
            descent.require_blocks(blocks, 99)
