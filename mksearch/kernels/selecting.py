"""A few selectors times the groups of record slots, modulo p: rows weighted and added.

Unlike in ``products`` the sum runs over the rows of the matrix.  A tile of columns has its 64-bit
sums in the nearest cache, and four rows at once are added to them, so that sums are read and
written once in four products.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

__all__ = ["weighted_sums"]

#: Columns whose sums for one selector are 2 KiB.
_TILE = 256
_ROWS_AT_ONCE = 4


@nb.njit(cache=True, parallel=True)
def weighted_sums(
    matrix: NDArray[np.uint16], weights: NDArray[np.uint16], out: NDArray[np.uint16]
) -> None:
    """Compute ``out[i, c] = sum over rows of weights[i, row] * matrix[row, c]``.

    Args:
        matrix: uint16 (rows, columns), below p; at most 2**30 rows.
        weights: uint16 (n, rows), below p.
        out: uint16 (n, columns), overwritten, below p.
    """
    n, (n_rows, n_columns) = len(weights), matrix.shape
    n_whole = n_rows // _ROWS_AT_ONCE * _ROWS_AT_ONCE
    for tile in nb.prange(-(-n_columns // _TILE)):
        first = tile * _TILE
        width = min(_TILE, n_columns - first)
        sums = np.zeros((n, _TILE), np.uint64)
        for row in range(0, n_whole, _ROWS_AT_ONCE):
            a = matrix[row, first : first + width]
            b = matrix[row + 1, first : first + width]
            c = matrix[row + 2, first : first + width]
            d = matrix[row + 3, first : first + width]
            for i in range(n):
                p, q = np.uint32(weights[i, row]), np.uint32(weights[i, row + 1])
                r, s = np.uint32(weights[i, row + 2]), np.uint32(weights[i, row + 3])
                total = sums[i]
                for at in range(width):
                    # A product of two words fits in 32 bits, 2**32 products in 64.
                    total[at] += (
                        np.uint64(np.uint32(a[at]) * p)
                        + np.uint64(np.uint32(b[at]) * q)
                        + np.uint64(np.uint32(c[at]) * r)
                        + np.uint64(np.uint32(d[at]) * s)
                    )
        for row in range(n_whole, n_rows):
            a = matrix[row, first : first + width]
            for i in range(n):
                p = np.uint32(weights[i, row])
                total = sums[i]
                for at in range(width):
                    total[at] += np.uint64(np.uint32(a[at]) * p)
        for i in range(n):
            for at in range(width):
                out[i, first + at] = sums[i, at] % np.uint64(65521)
