"""How far the bounds of older segments are from today's scores (docs/protocol.md, section 8.8).

A segment was built with the statistics of its day.  Its bounds stay bounds when the query weight
of a term is multiplied by the term's *ratio*, and the segment's sums by its *kappa*:

    W(t, d) <= kappa * ratio(t) * W'(t, d)   for every term t of every live document d,

``W'`` the weight at the build and ``W`` the weight of today.  Both numbers are chosen here so that
this holds for the integers themselves, whatever the formula that gave them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mksearch.index.dictionary import RATIO_ONE
from mksearch.index.rows import Postings
from mksearch.kernels.weighting import largest_growth
from mksearch.params import WEIGHT_ONE
from mksearch.text.weights import Scoring, Statistics, document_weights, idfs, tf_factors

__all__ = ["KAPPA_ONE", "kappa", "term_ratios"]

#: A kappa of 1: the denominator of every kappa.
KAPPA_ONE = 1 << 20
#: Largest term frequency for which a table of all smaller ones is small.
_TFS_MAX = 1 << 16
_RATIO_MAX = (1 << 32) - 1
#: Of the divisions below, relative: each is rounded once, by less than 2**-52.
_ROUNDING = 1e-12


def term_ratios(
    scoring: Scoring, now: Statistics, built: Sequence[tuple[Statistics, NDArray[np.int64]]]
) -> NDArray[np.int64]:
    """Return the ratio of every term: today's idf over that of a build, the largest of all.

    Args:
        scoring: the formula; BM25 has the idf in the query alone, so that its ratios are 1.
        now: of the live documents.
        built: for each segment the statistics that it was built with, and the ids of the terms
            that its live rows have: int64 (n,), distinct.

    Returns:
        int64 (n_terms,), in units of 1 / ``RATIO_ONE``, 1..2**32 - 1; 1.0 for terms of no segment.
    """
    ratios = np.full(len(now.dfs), RATIO_ONE, np.int64)
    if scoring.kind == "bm25":
        return ratios
    largest = np.zeros(len(now.dfs))
    idf = idfs(scoring, now)
    for statistics, terms in built:
        old = idfs(scoring, statistics)
        largest[terms] = np.maximum(largest[terms], idf[terms] / old[terms])
    held = largest > 0
    ratios[held] = np.clip(np.ceil(largest[held] * RATIO_ONE), 1, _RATIO_MAX).astype(np.int64)
    return ratios


def kappa(
    scoring: Scoring,
    now: Statistics,
    built: Statistics,
    postings: Postings,
    ratios: NDArray[np.int64],
) -> int:
    """Return the kappa of a segment, in units of 1 / ``KAPPA_ONE``, at least 1.

    Args:
        scoring: the formula.
        now: of the live documents.
        built: that the segment was built with.
        postings: of its live rows.
        ratios: int64 (n_terms,), as ``term_ratios`` gives them.
    """
    if not len(postings.term_ids):
        return KAPPA_ONE
    ratio = ratios / RATIO_ONE
    # One more: the client adds squares in another order, which may round the other way.
    if scoring.kind == "tfidf" and int(postings.tfs.max()) <= len(postings.tfs) + _TFS_MAX:
        # The same numbers as below, without arrays of the size of the postings.
        idf = idfs(scoring, built), idfs(scoring, now)
        factors = tf_factors(postings.tfs)
        arrays = (postings.indptr, postings.term_ids, postings.tfs)
        largest = largest_growth(*arrays, factors, idf, ratio, float(WEIGHT_ONE))
    else:
        rows = (postings.indptr, postings.term_ids, postings.tfs, postings.lengths)
        old = document_weights(scoring, built, *rows).astype(np.float64)
        new = document_weights(scoring, now, *rows).astype(np.float64) + 1
        largest = float((new / (old * ratio[postings.term_ids])).max())
    return max(1, int(np.ceil(largest * (1 + _ROUNDING) * KAPPA_ONE)))
