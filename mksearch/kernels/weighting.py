"""Sums whose order of additions is part of their meaning."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["sequential_row_sums"]


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
