"""Weights are finite, positive integers, and the same in every bit wherever they are computed."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from mksearch import params
from mksearch.errors import ParameterError
from mksearch.text.analyzers import make_analyzer
from mksearch.text.vocabulary import Counts, count_corpus
from mksearch.text.weights import (
    SCORE_ONE,
    Scoring,
    Statistics,
    _ln,
    document_weights,
    exact_score,
    idfs,
    query_weights,
)

BOTH = [Scoring("tfidf"), Scoring("bm25")]


def statistics(n_docs: int, *dfs: int, total_length: int | None = None) -> Statistics:
    total = n_docs * 10 if total_length is None else total_length
    return Statistics(n_docs, total, np.array(dfs, np.int64))


def weigh(scoring: Scoring, counts: Counts) -> NDArray[np.int64]:
    return document_weights(
        scoring,
        counts.vocabulary.statistics,
        counts.indptr,
        counts.term_ids,
        counts.tfs,
        counts.lengths,
    )


def one_row(
    scoring: Scoring, stats: Statistics, ids: list[int], tfs: list[int], length: int = 10
) -> list[int]:
    weights = document_weights(
        scoring,
        stats,
        np.array([0, len(ids)], np.int64),
        np.array(ids, np.int32),
        np.array(tfs, np.int32),
        np.array([length], np.int64),
    )
    return [int(weight) for weight in weights]


class Rows(NamedTuple):
    indptr: NDArray[np.int64]
    ids: NDArray[np.int32]
    tfs: NDArray[np.int32]
    lengths: NDArray[np.int64]


def synthetic_rows() -> tuple[Statistics, Rows]:
    """Make 500 documents by integer arithmetic alone, so that every platform makes the same."""
    n_terms, n_docs, state = 3000, 500, 1
    ids, tfs, ends = [], [], [0]
    for _ in range(n_docs):
        chosen = set()
        for _ in range(60):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            chosen.add((state >> 33) % n_terms * ((state >> 20) % 7 + 1) // 7)
        ids += sorted(chosen)
        tfs += [1 + (term * 7919 + len(ends)) % 97 % 11 for term in sorted(chosen)]
        ends.append(len(ids))
    rows = Rows(
        np.array(ends, np.int64),
        np.array(ids, np.int32),
        np.array(tfs, np.int32),
        np.add.reduceat(np.array(tfs, np.int64), ends[:-1]),
    )
    dfs = np.bincount(rows.ids, minlength=n_terms).astype(np.int64)
    return Statistics(n_docs, int(rows.lengths.sum()), dfs), rows


# --- the same bits everywhere -------------------------------------------------------------------


def test_logarithms_are_the_known_doubles() -> None:
    assert _ln(1) == 0.0
    assert _ln(2).hex() == "0x1.62e42fefa39efp-1"
    assert _ln(10).hex() == "0x1.26bb1bbb55516p+1"
    assert _ln(2**31 - 1).hex() == "0x1.57cd0e7006820p+4"


def logarithm_by_series(numerator: int, denominator: int) -> Fraction:
    """Give ``ln`` to 55 digits: 2 artanh((r - 1) / (r + 1)), r scaled by powers of 2 into 1..2."""

    def artanh(value: Fraction) -> Fraction:
        unit = 10**60
        power, total = int(value * unit), 0
        square = power * power // unit
        for odd in range(1, 400, 2):
            total += power // odd
            power = power * square // unit
        return Fraction(total, unit)

    ratio = Fraction(numerator, denominator)
    doublings = 0
    while ratio >= 2:
        ratio, doublings = ratio / 2, doublings + 1
    return 2 * (doublings * artanh(Fraction(1, 3)) + artanh((ratio - 1) / (ratio + 1)))


@pytest.mark.parametrize("n_docs", [1, 3, 10, 97, 99_253, 364_651, 2**31 - 1, 2**40])
def test_logarithms_are_rounded_correctly(n_docs: int) -> None:
    for numerator, denominator in [(n_docs, 1), (n_docs + 1, n_docs), (2 * n_docs + 2, 3)]:
        expected = float(logarithm_by_series(numerator, denominator))
        assert _ln(numerator, denominator) == expected


def test_the_context_of_the_caller_changes_nothing() -> None:
    import decimal

    _ln.cache_clear()
    with decimal.localcontext(prec=3, rounding=decimal.ROUND_UP):
        assert _ln(2).hex() == "0x1.62e42fefa39efp-1"


@pytest.mark.parametrize(
    ("scoring", "digest"),
    [
        (Scoring("tfidf"), "f3edb140d9ccb329ab3d8db37bb4388a"),
        (Scoring("bm25"), "4385d2478a82472167a9ccd34694dce3"),
        (Scoring("bm25", k1=0.9, b=0.4), "b28790cca6d67c07610b5aa0525fe215"),
    ],
)
def test_weights_of_a_fixed_corpus_never_change(scoring: Scoring, digest: str) -> None:
    stats, rows = synthetic_rows()

    weights = document_weights(scoring, stats, *rows)
    query = query_weights(scoring, stats, {term: 1 + term % 3 for term in range(0, 3000, 37)})

    told = weights.astype("<i8").tobytes() + repr(sorted(query.items())).encode()
    assert hashlib.sha256(told).hexdigest()[:32] == digest


def test_weights_are_those_of_one_rounding_an_operation() -> None:
    """Python's own floats, in the documented order, are the reference."""
    stats, (indptr, ids, tfs, lengths) = synthetic_rows()
    tfidf = document_weights(BOTH[0], stats, indptr, ids, tfs, lengths).tolist()
    bm25 = document_weights(BOTH[1], stats, indptr, ids, tfs, lengths).tolist()
    average = stats.total_length / stats.n_docs
    for row in range(stats.n_docs):
        places = range(int(indptr[row]), int(indptr[row + 1]))
        products = []
        squares = 0.0
        for place in places:
            idf = _ln(1 + stats.n_docs, 1 + int(stats.dfs[ids[place]])) + 1.0
            products.append((1.0 + _ln(int(tfs[place]))) * idf)
            squares += products[-1] * products[-1]
        norm = math.sqrt(squares)
        damping = 1.2 * ((1.0 - 0.75) + 0.75 * (int(lengths[row]) / average))
        for place, product in zip(places, products, strict=True):
            tf = float(tfs[place])
            assert tfidf[place] == round(product / norm * 2**30)
            assert bm25[place] == round(tf / (tf + damping) * 2**30)


@pytest.mark.parametrize("scoring", BOTH)
@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_any_part_of_a_collection_gives_the_bits_of_the_whole(
    scoring: Scoring, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats, (indptr, ids, tfs, lengths) = synthetic_rows()
    whole = document_weights(scoring, stats, indptr, ids, tfs, lengths)

    for row in range(0, 500, 50):
        part = slice(indptr[row], indptr[row + 3])
        alone = document_weights(
            scoring,
            stats,
            indptr[row : row + 4] - indptr[row],
            ids[part],
            tfs[part],
            lengths[row : row + 3],
        )
        np.testing.assert_array_equal(alone, whole[part])
    monkeypatch.setattr("mksearch.text.weights._POSTINGS_AT_ONCE", at_once)
    np.testing.assert_array_equal(
        document_weights(scoring, stats, indptr, ids, tfs, lengths), whole
    )


def test_read_only_input_gives_the_same_bits() -> None:
    stats, rows = synthetic_rows()
    expected = document_weights(BOTH[0], stats, *rows)
    for values in rows:
        values.flags.writeable = False

    np.testing.assert_array_equal(document_weights(BOTH[0], stats, *rows), expected)


# --- never zero, never negative, never NaN ------------------------------------------------------


@pytest.mark.parametrize("n_docs", [1, 2, 4, 100, 10**6, 2**40])
def test_a_term_in_every_or_in_half_of_the_documents_still_scores_above_zero(n_docs: int) -> None:
    stats = statistics(n_docs, n_docs, -(-n_docs // 2), 1, 0)

    for scoring in BOTH:
        values = idfs(scoring, stats)
        assert np.isfinite(values).all()
        assert (values > 0).all()
        assert (np.diff(values) >= 0).all()
        for term_id in range(4):
            assert query_weights(scoring, stats, {term_id: 1})[term_id] >= 1


@pytest.mark.parametrize("scoring", BOTH)
@pytest.mark.parametrize("texts", [["turbine"], ["turbine", "blade"], ["turbine", "turbine blade"]])
def test_a_matching_document_is_above_one_that_does_not_match(
    scoring: Scoring, texts: list[str]
) -> None:
    counts = count_corpus(make_analyzer("plain-1"), texts)
    weights = weigh(scoring, counts)
    for term, term_id in counts.vocabulary.ids.items():
        query = query_weights(scoring, counts.vocabulary.statistics, {term_id: 1})
        for row, text in enumerate(texts):
            part = slice(counts.indptr[row], counts.indptr[row + 1])
            score = exact_score(query, counts.term_ids[part], weights[part])
            assert (score > 0) == (term in text.split())


@pytest.mark.parametrize("scoring", BOTH)
@pytest.mark.parametrize("texts", [[], ["", ""], ["the the"], ["1 2"], ["a"] * 99 + [""]])
def test_corpora_that_crash_others_are_weighed(scoring: Scoring, texts: list[str]) -> None:
    counts = count_corpus(make_analyzer("english-1"), texts)

    weights = weigh(scoring, counts)

    assert weights.dtype == np.int64
    assert weights.shape == counts.term_ids.shape
    assert ((weights >= 1) & (weights <= params.WEIGHT_ONE)).all()
    assert query_weights(scoring, counts.vocabulary.statistics, {}) == {}
    assert idfs(scoring, counts.vocabulary.statistics).shape == counts.vocabulary.dfs.shape


@pytest.mark.parametrize(
    "scoring", [*BOTH, Scoring("bm25", k1=0.0), Scoring("bm25", k1=1e9, b=1.0)]
)
def test_extreme_frequencies_and_lengths_stay_in_range(scoring: Scoring) -> None:
    largest = 2**31 - 1
    for stats in (
        statistics(0, 0, 0, total_length=0),
        statistics(1, 1, 0, total_length=1),
        statistics(2**40, 2**40, 1, total_length=2**62),
        statistics(2**40, 2**40, 1, total_length=0),
    ):
        for tfs in ([1, 1], [largest, 1], [largest, largest]):
            for length in (1, 2**62):
                weights = one_row(scoring, stats, [0, 1], tfs, length)
                assert all(1 <= weight <= params.WEIGHT_ONE for weight in weights)
            query = query_weights(scoring, stats, {0: tfs[0], 1: tfs[1]})
            assert all(weight >= 1 for weight in query.values())


def test_a_single_term_has_weight_one() -> None:
    stats = statistics(10, 3)

    assert one_row(Scoring("tfidf"), stats, [0], [5]) == [params.WEIGHT_ONE]
    query = query_weights(Scoring("tfidf"), stats, {0: 2})
    assert exact_score(query, np.array([0], np.int32), np.array([2**30], np.int64)) == SCORE_ONE


def test_a_negligible_weight_is_one_unit() -> None:
    # tf / (tf + k1 * ...) is about 1e-11 here.
    stats = statistics(1, 1, total_length=1)

    assert one_row(Scoring("bm25", k1=1e11, b=0.0), stats, [0], [1]) == [1]


def test_halves_round_to_even() -> None:
    # 3, 5 and 7 over 2**31 are 1.5, 2.5 and 3.5 units, exactly.
    stats = statistics(1, 1, total_length=1)
    for tf, expected in ((1, 1), (3, 2), (5, 2), (7, 4)):
        scoring = Scoring("bm25", k1=float(2**31 - tf), b=0.0)
        assert one_row(scoring, stats, [0], [tf]) == [expected]


def test_bm25_weights_of_a_query_may_exceed_34_bits_and_scores_64() -> None:
    stats = statistics(2**40, 1)

    query = query_weights(Scoring("bm25"), stats, {0: 1000})

    assert query[0] > 1 << 34
    score = exact_score(query, np.array([0], np.int32), np.array([2**30], np.int64))
    assert score == query[0] << 30
    assert score > 1 << 64


# --- formulas -----------------------------------------------------------------------------------


def test_idfs_are_those_of_the_formulas() -> None:
    stats = statistics(9, 0, 1, 4, 9)

    np.testing.assert_allclose(
        idfs(Scoring("tfidf"), stats), [math.log(10 / (1 + df)) + 1 for df in (0, 1, 4, 9)], 1e-15
    )
    np.testing.assert_allclose(
        idfs(Scoring("bm25"), stats),
        [math.log(1 + (9 - df + 0.5) / (df + 0.5)) for df in (0, 1, 4, 9)],
        1e-14,
    )


def test_few_postings_and_many_take_the_same_idfs() -> None:
    frequencies = [n % 7 + 1 for n in range(5000)]
    stats = statistics(10, *frequencies)
    rows = list(range(5000))

    many = one_row(Scoring("tfidf"), stats, rows, [1] * 5000)
    few = one_row(Scoring("tfidf"), stats, [0, 1], [1, 1])

    assert many[0] / many[1] == pytest.approx(few[0] / few[1], rel=1e-6)
    assert few[0] == round(
        idfs(Scoring("tfidf"), stats)[0] / math.hypot(*idfs(Scoring("tfidf"), stats)[:2]) * 2**30
    )


def test_repeated_words_of_a_query_weigh_more() -> None:
    stats = statistics(10, 3, 3)

    tfidf = query_weights(Scoring("tfidf"), stats, {0: 2, 1: 1})
    bm25 = query_weights(Scoring("bm25"), stats, {0: 2, 1: 1})

    assert tfidf[0] / tfidf[1] == pytest.approx(1 + math.log(2), rel=1e-8)
    assert abs(bm25[0] - 2 * bm25[1]) <= 1


def test_the_order_in_which_query_terms_are_handed_in_changes_nothing() -> None:
    stats, _ = synthetic_rows()
    forward = {term: 1 + term % 5 for term in range(0, 3000, 7)}
    backward = dict(reversed(forward.items()))

    for scoring in BOTH:
        one, other = query_weights(scoring, stats, forward), query_weights(scoring, stats, backward)
        assert list(one.items()) == list(other.items())


def test_an_exact_score_counts_common_terms_alone() -> None:
    ids, weights = np.array([1, 3, 8], np.int32), np.array([10, 20, 40], np.int64)

    assert exact_score({3: 5, 8: 1, 9: 100}, ids, weights) == 140
    assert exact_score({2: 7}, ids, weights) == 0
    assert exact_score({}, ids, weights) == 0
    assert exact_score({1: 1}, ids[:0], weights[:0]) == 0


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "k1", "b"),
    [
        ("cosine", 1.2, 0.75),
        ("bm25", -0.1, 0.75),
        ("bm25", math.nan, 0.75),
        ("bm25", math.inf, 0.75),
        ("bm25", 1.2, -0.1),
        ("bm25", 1.2, 1.1),
        ("bm25", 1.2, math.nan),
    ],
)
def test_a_scoring_outside_its_range_is_refused(kind: str, k1: float, b: float) -> None:
    with pytest.raises(ParameterError):
        Scoring(kind, k1, b)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("indptr", "ids", "tfs", "lengths", "message"),
    [
        ([], [], [], [], "missing"),
        ([0, 2], [0], [1], [1], "1 term ids"),
        ([1, 1], [0], [1], [1], "belong together"),
        ([0, 1], [0], [1, 1], [1], "2 term frequencies"),
        ([0, 1], [0], [1], [1, 1], "2 lengths"),
        ([0, 2, 1], [0], [1], [1, 1], "below 0"),
        ([0, 1], [0], [1], [-1], "below 0"),
        ([0, 1], [3], [1], [1], r"3\.\.3, but 3 terms"),
        ([0, 1], [-1], [1], [1], "term ids lie in"),
        ([0, 1], [0], [0], [1], "term frequency is 0"),
        ([0, 2], [1, 0], [1, 1], [2], "do not ascend within a row at posting 1"),
        ([0, 2], [1, 1], [1, 1], [2], "do not ascend"),
        ([0, 0, 1, 3], [2, 1, 0], [1, 1, 1], [0, 1, 2], "posting 2"),
    ],
)
def test_contradictory_rows_are_refused(
    indptr: list[int], ids: list[int], tfs: list[int], lengths: list[int], message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        document_weights(
            Scoring(),
            statistics(5, 1, 1, 1),
            np.array(indptr, np.int64),
            np.array(ids, np.int32),
            np.array(tfs, np.int32),
            np.array(lengths, np.int64),
        )


def test_rows_may_begin_with_any_term() -> None:
    weights = document_weights(
        Scoring(),
        statistics(5, 1, 1, 1),
        np.array([0, 0, 2, 2, 3, 4, 4], np.int64),
        np.array([1, 2, 0, 0], np.int32),
        np.ones(4, np.int32),
        np.array([0, 2, 0, 1, 1, 0], np.int64),
    )
    assert weights[2:].tolist() == [params.WEIGHT_ONE] * 2


@pytest.mark.parametrize("counts", [{3: 1}, {-1: 1}, {0: 0}, {0: -1}])
def test_a_query_outside_the_vocabulary_is_refused(counts: dict[int, int]) -> None:
    with pytest.raises(ParameterError):
        query_weights(Scoring(), statistics(5, 1, 1, 1), counts)
