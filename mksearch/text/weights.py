"""Weights of terms in documents and queries, as integers that are the same on every platform.

The owner's builder and every user's client compute these numbers apart from each other and must
agree in every bit, for the order of results and the bounds rest on them.  Therefore:

* logarithms are rounded correctly to binary64, whatever the platform's library would give;
* every other operation is one of +, -, *, / or the square root, which IEEE 754 rounds correctly,
  in the order written here, and no product is fused with a sum;
* the squares of a norm are added one by one in ascending order of term id;
* results become integers in units of 2**-30 (``params.WEIGHT_BITS``), halves to even, at least 1.

``tfidf`` is scikit-learn's ``TfidfVectorizer(sublinear_tf=True)``: idf in document and query, both
of length 1.  ``bm25`` is Lucene's, with the idf in the query alone, so that a document's weights do
not change with the document frequencies of others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from mksearch import params
from mksearch.errors import ParameterError
from mksearch.kernels.weighting import sequential_row_sums

__all__ = [
    "SCORE_ONE",
    "Scoring",
    "Statistics",
    "document_weights",
    "exact_score",
    "idfs",
    "query_weights",
    "tf_factors",
]

#: A score of 1.0: scores are sums of products of two weights.
SCORE_ONE: Final = 1 << (2 * params.WEIGHT_BITS)
#: Postings weighted at once, so that working memory stays small; no result depends on it.
_POSTINGS_AT_ONCE: Final = 1 << 20
#: Enough digits that the double rounding (to these, then to binary64) never shows.
_DECIMAL: Final = Context(prec=50, rounding=ROUND_HALF_EVEN)


@dataclass(frozen=True, slots=True)
class Scoring:
    """Which formula weighs terms, and its parameters.

    Attributes:
        kind: "tfidf" or "bm25".
        k1: BM25 saturation of term frequencies, finite, 0 or more; unused by tfidf.
        b: BM25 share of length normalisation, 0..1; unused by tfidf.
    """

    kind: Literal["tfidf", "bm25"] = "tfidf"
    k1: float = params.BM25_K1
    b: float = params.BM25_B

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ParameterError: the kind is unknown or a parameter outside its range.
        """
        if self.kind not in ("tfidf", "bm25"):
            raise ParameterError(f"scoring {self.kind!r} is not known", cure="use tfidf or bm25")
        if not (math.isfinite(self.k1) and self.k1 >= 0):
            raise ParameterError(f"k1 is {self.k1}, not 0 or more", cure="1.2 is usual")
        if not 0 <= self.b <= 1:
            raise ParameterError(f"b is {self.b}, not within 0..1", cure="0.75 is usual")


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """What weighting needs to know of a collection.

    Attributes:
        n_docs: documents, empty ones included, 0 or more.
        total_length: tokens of all documents, 0 or more.
        dfs: int64 ``(n_terms,)``, documents that hold each term, 0..n_docs; kept as a copy that
            is not writeable.
    """

    n_docs: int
    total_length: int
    dfs: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ParameterError: a number is negative, there are tokens without documents, or a document
                frequency is above n_docs, which would give negative weights.
        """
        if self.n_docs < 0 or self.total_length < 0 or (self.total_length and not self.n_docs):
            raise ParameterError(
                f"{self.n_docs} documents cannot have {self.total_length} tokens together"
            )
        dfs = np.array(self.dfs, dtype=np.int64)
        if dfs.ndim != 1:
            raise ParameterError(f"document frequencies have {dfs.ndim} axes, need 1")
        if dfs.size and not 0 <= int(dfs.min()) <= int(dfs.max()) <= self.n_docs:
            raise ParameterError(
                f"document frequencies lie in {dfs.min()}..{dfs.max()}, "
                f"need 0..{self.n_docs} (the number of documents)"
            )
        dfs.flags.writeable = False
        object.__setattr__(self, "dfs", dfs)


# --- logarithms -----------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 16)
def _ln(numerator: int, denominator: int = 1) -> float:
    """Give the natural logarithm of a positive rational, rounded correctly to binary64."""
    ratio = _DECIMAL.divide(Decimal(numerator), Decimal(denominator))
    return float(_DECIMAL.ln(ratio))


def _idf(scoring: Scoring, n_docs: int, df: int) -> float:
    if scoring.kind == "tfidf":
        return _ln(1 + n_docs, 1 + df) + 1.0
    # ln(1 + (N - df + 1/2) / (df + 1/2)), from integers.
    return _ln(2 * n_docs + 2, 2 * df + 1)


def _sublinear(tf: int) -> float:
    return 1.0 + _ln(tf)


def _map_distinct(
    values: NDArray[np.integer], function: Callable[[int], float]
) -> NDArray[np.float64]:
    """Apply a costly function once to each distinct value (0 or more)."""
    if values.size == 0:
        return np.zeros(0, np.float64)
    if int(values.max()) <= values.size + 1024:
        distinct = np.flatnonzero(np.bincount(values))
        table = np.zeros(int(distinct[-1]) + 1, np.float64)
        table[distinct] = [function(value) for value in distinct.tolist()]
        mapped: NDArray[np.float64] = table[values]
    else:
        distinct, places = np.unique(values, return_inverse=True)
        mapped = np.array([function(value) for value in distinct.tolist()], np.float64)[places]
    return mapped


def idfs(scoring: Scoring, statistics: Statistics) -> NDArray[np.float64]:
    """Give the inverse document frequency of every term.

    tfidf: ``ln((1 + N) / (1 + df)) + 1``, 1 or more.
    bm25: ``ln(1 + (N - df + 0.5) / (df + 0.5))``, above 0 even for a term in every document.

    Returns:
        float64 ``(n_terms,)``, finite, above 0.
    """
    return _map_distinct(statistics.dfs, lambda df: _idf(scoring, statistics.n_docs, df))


def tf_factors(tfs: NDArray[np.int32]) -> NDArray[np.float64]:
    """Give what tfidf makes of term frequencies, ``1 + ln tf``.

    Args:
        tfs: int32 ``(n,)``, 1 or more, at least one.

    Returns:
        float64 ``(largest tf + 1,)``, at the place of each frequency that there is.
    """
    distinct = np.flatnonzero(np.bincount(tfs))
    table = np.zeros(int(distinct[-1]) + 1, np.float64)
    table[distinct] = [_sublinear(tf) for tf in distinct.tolist()]
    return table


def _idfs_of(
    scoring: Scoring, statistics: Statistics, term_ids: NDArray[np.int32]
) -> NDArray[np.float64]:
    dfs = statistics.dfs[term_ids]
    return _map_distinct(dfs, lambda df: _idf(scoring, statistics.n_docs, df))


# --- documents ------------------------------------------------------------------------------------


def document_weights(
    scoring: Scoring,
    statistics: Statistics,
    indptr: NDArray[np.int64],
    term_ids: NDArray[np.int32],
    tfs: NDArray[np.int32],
    lengths: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Weigh every posting of some documents.

    A document's weights depend on its own row and the statistics alone, so any part of a collection
    gives the same bits as the whole.  With ``tf``, ``idf`` and the length ``len`` in tokens:

    * tfidf: ``w = ((1 + ln tf) * idf) / norm``, ``norm`` the square root of the sum of the squares
      of the products, added in ascending order of term id;
    * bm25: ``w = tf / (tf + k1 * ((1 - b) + b * (len / avg)))``, ``avg = total_length / n_docs``.

    Args:
        scoring: the formula.
        statistics: of the collection as it is now, whatever the age of the documents.
        indptr: int64 ``(n_docs + 1,)``, where each document's postings begin and end.
        term_ids: int32 ``(n_postings,)``, indices into ``statistics.dfs``, ascending within a
            document.
        tfs: int32 ``(n_postings,)``, 1 or more.
        lengths: int64 ``(n_docs,)``, tokens of each document, 0 or more; unused by tfidf.

    Returns:
        int64 ``(n_postings,)``, the weights in units of 2**-30, 1..2**30.

    Raises:
        ParameterError: the arrays contradict each other or the ranges above.
    """
    _check_rows(statistics, indptr, term_ids, tfs, lengths)
    # A few documents against a large vocabulary: only their own terms are worth a logarithm.
    few = len(term_ids) < len(statistics.dfs)
    idf = np.zeros(0) if few or scoring.kind == "bm25" else idfs(scoring, statistics)
    out = np.empty(len(term_ids), np.int64)
    n_rows, row = len(indptr) - 1, 0
    while row < n_rows:
        start = int(indptr[row])
        end_row = int(np.searchsorted(indptr, start + _POSTINGS_AT_ONCE, side="right")) - 1
        end_row = min(max(end_row, row + 1), n_rows)
        part = slice(start, int(indptr[end_row]))
        part_indptr = indptr[row : end_row + 1] - start
        if scoring.kind == "tfidf":
            own = _idfs_of(scoring, statistics, term_ids[part]) if few else idf[term_ids[part]]
            weights = _tfidf(part_indptr, own, tfs[part])
        else:
            weights = _bm25(scoring, statistics, part_indptr, tfs[part], lengths[row:end_row])
        out[part] = np.maximum(np.rint(weights * params.WEIGHT_ONE), 1.0).astype(np.int64)
        row = end_row
    return out


def _tfidf(
    indptr: NDArray[np.int64], idf: NDArray[np.float64], tfs: NDArray[np.int32]
) -> NDArray[np.float64]:
    products = _map_distinct(tfs, _sublinear) * idf
    norms = np.sqrt(sequential_row_sums(indptr, products * products))
    weights: NDArray[np.float64] = products / np.repeat(norms, np.diff(indptr))
    return weights


def _bm25(
    scoring: Scoring,
    statistics: Statistics,
    indptr: NDArray[np.int64],
    tfs: NDArray[np.int32],
    lengths: NDArray[np.int64],
) -> NDArray[np.float64]:
    # In a collection without tokens every document has the mean length.
    relative = np.ones(len(lengths), np.float64)
    if statistics.total_length:
        relative = lengths / (statistics.total_length / statistics.n_docs)
    damping = scoring.k1 * ((1.0 - scoring.b) + scoring.b * relative)
    frequencies = tfs.astype(np.float64)
    weights: NDArray[np.float64] = frequencies / (frequencies + np.repeat(damping, np.diff(indptr)))
    return weights


def _check_rows(
    statistics: Statistics,
    indptr: NDArray[np.int64],
    term_ids: NDArray[np.int32],
    tfs: NDArray[np.int32],
    lengths: NDArray[np.int64],
) -> None:
    n_postings = len(term_ids)
    if len(indptr) == 0 or indptr[0] != 0 or indptr[-1] != n_postings or len(tfs) != n_postings:
        raise ParameterError(
            f"{n_postings} term ids, {len(tfs)} term frequencies and row ends "
            f"{indptr[-1] if len(indptr) else 'missing'} do not belong together"
        )
    sizes = np.diff(indptr)
    if len(lengths) != len(sizes) or (sizes < 0).any() or (lengths < 0).any():
        raise ParameterError(
            f"{len(sizes)} rows with {len(lengths)} lengths: unequal, or one below 0"
        )
    if n_postings == 0:
        return
    if not 0 <= int(term_ids.min()) <= int(term_ids.max()) < len(statistics.dfs):
        raise ParameterError(
            f"term ids lie in {term_ids.min()}..{term_ids.max()}, "
            f"but {len(statistics.dfs)} terms are known"
        )
    if int(tfs.min()) < 1:
        raise ParameterError(f"a term frequency is {tfs.min()}, need 1 or more")
    ascending = term_ids[1:] > term_ids[:-1]
    begins = indptr[1:-1]
    ascending[begins[(begins > 0) & (begins < n_postings)] - 1] = True
    if not ascending.all():
        raise ParameterError(
            f"term ids do not ascend within a row at posting {int(np.argmin(ascending)) + 1}",
            cure="the order of a row decides the bits of its norm: sort the row by term id",
        )


# --- queries --------------------------------------------------------------------------------------


def query_weights(
    scoring: Scoring, statistics: Statistics, term_counts: Mapping[int, int]
) -> dict[int, int]:
    """Weigh the terms of a query.

    tfidf: ``x = ((1 + ln qtf) * idf) / norm`` over the known terms of the query, the norm as in
    ``document_weights``.  bm25: ``x = qtf * idf``.

    Args:
        scoring: the formula.
        statistics: of the collection as it is now.
        term_counts: occurrences in the query, 1 or more, of each known term by its id.

    Returns:
        Weight of each term id in units of 2**-30, 1 or more, in ascending order of term id; with
        bm25 it may exceed 2**34.

    Raises:
        ParameterError: a term id is not of the vocabulary, or a count is below 1.
    """
    products: dict[int, float] = {}
    for term_id, count in sorted(term_counts.items()):
        if not 0 <= term_id < len(statistics.dfs) or count < 1:
            raise ParameterError(
                f"query term {term_id} occurs {count} times, but ids are 0.."
                f"{len(statistics.dfs) - 1} and counts 1 or more"
            )
        idf = _idf(scoring, statistics.n_docs, int(statistics.dfs[term_id]))
        products[term_id] = (_sublinear(count) if scoring.kind == "tfidf" else count) * idf
    norm = 1.0
    if scoring.kind == "tfidf":
        squares = 0.0
        for product in products.values():
            squares += product * product
        norm = math.sqrt(squares)
    return {
        term_id: max(1, round(product / norm * params.WEIGHT_ONE))
        for term_id, product in products.items()
    }


def exact_score(
    query: Mapping[int, int], term_ids: NDArray[np.int32], weights: NDArray[np.int64]
) -> int:
    """Score one document exactly.

    Args:
        query: weight of each query term by its id, as ``query_weights`` gives them.
        term_ids: int32 ``(n_terms,)``, the document's terms, each once.
        weights: int64 ``(n_terms,)``, their weights as ``document_weights`` gives them.

    Returns:
        The sum of the products over the common terms, in units of 1 / ``SCORE_ONE``: an integer
        of any size, 0 without a common term.
    """
    return sum(
        query[term_id] * weight
        for term_id, weight in zip(term_ids.tolist(), weights.tolist(), strict=True)
        if term_id in query
    )
