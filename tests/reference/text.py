"""From terms to integers: weights, impacts, query parts (sections 4.1 and 8.1)."""

from __future__ import annotations

import decimal
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import NamedTuple

IMPACT_MAX = 127
QUERY_SUM_MAX = 515
QUERY_TERMS_MAX = 2060

Corpus = Sequence[tuple[str, str, str, Sequence[str]]]
"""Documents: (external id, title, snippet, analysed terms in order, repeats included)."""


class Scoring(NamedTuple):
    """Ranking function: kind `tfidf` or `bm25`; k1 and b matter for `bm25` only."""

    kind: str
    k1: float
    b: float


class Statistics(NamedTuple):
    """What weights depend on: the dictionary's counts; a term's id is its place in `terms`."""

    n_docs: int
    total_length: int
    terms: list[str]
    dfs: list[int]


def statistics(corpus: Corpus) -> Statistics:
    """Count a corpus and number its terms: falling document frequency, then UTF-8 bytes."""
    counts = Counter(term for *_, terms in corpus for term in set(terms))
    order = sorted(counts, key=lambda term: (-counts[term], term.encode("utf-8")))
    total = sum(len(terms) for *_, terms in corpus)
    return Statistics(len(corpus), total, order, [counts[term] for term in order])


# Binary64 without the machine's floating point: every operation is an exact rational that is
# rounded once, by the division of two integers, which rounds correctly, half to even.


def _rounded(value: Fraction) -> float:
    return value.numerator / value.denominator


def _add(a: float, b: float) -> float:
    return _rounded(Fraction(a) + Fraction(b))


def _sub(a: float, b: float) -> float:
    return _rounded(Fraction(a) - Fraction(b))


def _mul(a: float, b: float) -> float:
    return _rounded(Fraction(a) * Fraction(b))


def _div(a: float, b: float) -> float:
    return _rounded(Fraction(a) / Fraction(b))


def _sqrt(a: float) -> float:
    value = Fraction(a)
    # 2^shift * root has over 64 bits; what the integer root leaves away becomes one sticky bit.
    shift = max(0, 64 + (value.denominator.bit_length() - value.numerator.bit_length()) // 2 + 1)
    scaled, rest = divmod(value.numerator << (2 * shift), value.denominator)
    root = math.isqrt(scaled)
    sticky = int(rest != 0 or root * root != scaled)
    return _rounded(Fraction(2 * root + sticky, 1 << (shift + 1)))


@cache
def ln(numerator: int, denominator: int = 1) -> float:
    """Return the logarithm of an exact rational >= 1, rounded once to binary64."""
    if numerator == denominator:
        return 0.0
    digits = 50
    while True:
        with decimal.localcontext() as context:
            context.prec = digits
            value = (decimal.Decimal(numerator) / decimal.Decimal(denominator)).ln()
            # The quotient and the logarithm are each within one unit of the last of `digits`
            # places; a value near 0 has lost at most the places that its own size lacks.
            error = decimal.Decimal(1).scaleb(5 - digits)
            low, high = float(value - error), float(value + error)
        if low == high:
            return low
        digits *= 2


def idf(stats: Statistics, term: int) -> float:
    """Return ln((1 + N) / (1 + df)) + 1."""
    return _add(ln(1 + stats.n_docs, 1 + stats.dfs[term]), 1.0)


def _in_order(stats: Statistics, terms: Mapping[int, int]) -> list[int]:
    """Return terms by falling document frequency, then UTF-8 bytes: how sums run."""
    return sorted(terms, key=lambda i: (-stats.dfs[i], stats.terms[i].encode("utf-8")))


def _tfidf(stats: Statistics, tfs: Mapping[int, int]) -> dict[int, float]:
    numerators = {i: _mul(_add(1.0, ln(tfs[i])), idf(stats, i)) for i in _in_order(stats, tfs)}
    squares = 0.0
    for value in numerators.values():
        squares = _add(squares, _mul(value, value))
    norm = _sqrt(squares)
    return {i: _div(value, norm) for i, value in numerators.items()}


def _bm25(
    scoring: Scoring, stats: Statistics, tfs: Mapping[int, int], length: int
) -> dict[int, float]:
    if not tfs:
        return {}
    average = _div(float(stats.total_length), float(stats.n_docs))
    relative = _mul(scoring.b, _div(float(length), average))
    rest = _mul(scoring.k1, _add(_sub(1.0, scoring.b), relative))
    return {i: _div(float(tfs[i]), _add(float(tfs[i]), rest)) for i in sorted(tfs)}


def _quantised(weight: float) -> int:
    return max(1, round(Fraction(weight) * 2**30))


def document_weights(
    scoring: Scoring, stats: Statistics, tfs: Mapping[int, int], length: int
) -> dict[int, int]:
    """Return Wt of every term id of a document."""
    tfidf = scoring.kind == "tfidf"
    weights = _tfidf(stats, tfs) if tfidf else _bm25(scoring, stats, tfs, length)
    return {i: _quantised(weight) for i, weight in weights.items()}


def query_weights(scoring: Scoring, stats: Statistics, terms: Sequence[str]) -> dict[int, int]:
    """Return Xt of every known term id of a query; terms that no document has are left out."""
    ids = {term: i for i, term in enumerate(stats.terms) if stats.dfs[i]}
    counts = Counter(ids[term] for term in terms if term in ids)
    if len(counts) > QUERY_TERMS_MAX:
        raise ValueError(f"{len(counts)} query terms, at most {QUERY_TERMS_MAX}")
    if scoring.kind == "tfidf":
        weights = _tfidf(stats, counts)
    else:
        n = stats.n_docs
        weights = {
            i: _mul(float(counts[i]), ln(2 * n + 2, 2 * stats.dfs[i] + 1)) for i in sorted(counts)
        }
    return {i: _quantised(weight) for i, weight in weights.items()}


def score(document: Mapping[int, int], query: Mapping[int, int]) -> int:
    """Return sum Wt * Xt, in units of 2^-60."""
    return sum(document[i] * x for i, x in query.items() if i in document)


def segment_step(largest_weight: int) -> int:
    """Return the step of a segment with this largest Wt (0 without any term)."""
    return max(1, -(-largest_weight // IMPACT_MAX))


def impact(weight: int, step: int) -> int:
    """Return ceil(Wt / step), 1..127."""
    return -(-weight // step)


class Part(NamedTuple):
    """A part of a query: its unit u and ceil(Xt / u) of its term ids."""

    u: int
    weights: dict[int, int]


def n_parts(n_terms: int) -> int:
    """Return the number of vectors of a query."""
    return 1 if n_terms <= 64 else 2 if n_terms <= 128 else 4


def deal(query: Mapping[int, int]) -> list[list[int]]:
    """Deal term ids to the parts in turn; the text leaves the split to the client."""
    parts = n_parts(len(query))
    return [sorted(query)[i::parts] for i in range(parts)]


def quantised_query(query: Mapping[int, int], split: Sequence[Sequence[int]]) -> list[Part]:
    """Return the parts for a split of the term ids, one list a part."""
    dealt = sorted(i for ids in split for i in ids)
    if len(split) != n_parts(len(query)) or dealt != sorted(query):
        raise ValueError("the split has another number of parts or other terms than the query")
    return [_part({i: query[i] for i in ids}) for ids in split]


def _part(weights: Mapping[int, int]) -> Part:
    if len(weights) > QUERY_SUM_MAX:
        raise ValueError(f"{len(weights)} terms in a part, at most {QUERY_SUM_MAX}")

    def fits(u: int) -> bool:
        return sum(-(-x // u) for x in weights.values()) <= QUERY_SUM_MAX

    low, high = 1, max(weights.values(), default=1)
    while low < high:  # the sum falls as u grows
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return Part(low, {i: -(-x // low) for i, x in weights.items()})
