"""Sums whose order of additions is part of their meaning."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["largest_growth", "sequential_row_sums"]


# Without fastmath, and nothing but additions: a product in here could be fused with its addition
# on some processors and not on others, and a sum could be reordered.
@njit(cache=True)
def sequential_row_sums(
    indptr: NDArray[np.int64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Add up every row from its first value to its last, with one rounding an addition.

    Args:
        indptr: int64 ``(n_rows + 1,)``, row ``r`` is ``values[indptr[r]:indptr[r + 1]]``.
        values: float64 ``(n_values,)``.

    Returns:
        float64 ``(n_rows,)``, 0.0 for an empty row.
    """
    n_rows = indptr.size - 1
    sums = np.zeros(n_rows, np.float64)
    for row in range(n_rows):
        total = 0.0
        for place in range(indptr[row], indptr[row + 1]):
            total += values[place]
        sums[row] = total
    return sums


# Squares are stored before they are added, for the reason above.
@njit(cache=True)
def largest_growth(
    indptr: NDArray[np.int64],
    term_ids: NDArray[np.int32],
    tfs: NDArray[np.int32],
    factors: NDArray[np.float64],
    idfs: tuple[NDArray[np.float64], NDArray[np.float64]],
    ratios: NDArray[np.float64],
    one: float,
) -> float:
    """Return the largest growth of a weight of TF-IDF beyond its term's ratio, in one pass.

    Weights are those of ``mksearch.text.weights``, bit for bit: ``rint(one * product / norm)``, at
    least 1.

    Args:
        indptr: int64 ``(n_rows + 1,)``, postings of each row.
        term_ids: int32 ``(n_postings,)``, ascending in each row.
        tfs: int32 ``(n_postings,)``, indices into ``factors``.
        factors: float64, ``1 + ln tf`` of every term frequency that there is.
        idfs: float64 ``(n_terms,)`` each, before and now.
        ratios: float64 ``(n_terms,)``, above 0.
        one: weight of 1.0.

    Returns:
        the largest ``(weight now + 1) / (weight before * ratio)``, 0.0 without postings.
    """
    before, now = idfs
    widest = 0
    for row in range(indptr.size - 1):
        widest = max(widest, indptr[row + 1] - indptr[row])
    squares = np.empty((2, widest), np.float64)
    largest = 0.0
    for row in range(indptr.size - 1):
        start = indptr[row]
        n = indptr[row + 1] - start
        for i in range(n):
            factor = factors[tfs[start + i]]
            old = factor * before[term_ids[start + i]]
            new = factor * now[term_ids[start + i]]
            squares[0, i] = old * old
            squares[1, i] = new * new
        old_sum = new_sum = 0.0
        for i in range(n):
            old_sum += squares[0, i]
            new_sum += squares[1, i]
        old_norm, new_norm = np.sqrt(old_sum), np.sqrt(new_sum)
        for i in range(n):
            term = term_ids[start + i]
            factor = factors[tfs[start + i]]
            old = max(1.0, np.rint(factor * before[term] / old_norm * one))
            new = max(1.0, np.rint(factor * now[term] / new_norm * one))
            largest = max(largest, (new + 1.0) / (old * ratios[term]))
    return largest
