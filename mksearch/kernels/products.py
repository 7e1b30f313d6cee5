"""The servers' one operation: rows times a query vector, panel by panel, modulo p.

Panel bounds are scalars and panels are slices, so that the compiler sees simple loops: one compiled
function serves every width at the speed of a plain read (docs/decisions/0004).
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

__all__ = ["QUERIES_AT_ONCE", "ROWS_AT_ONCE", "panel_products", "panel_products_of_eight"]

Sums = tuple[np.uint64, ...]
#: Shape of the register block: rows times queries whose sums are kept in registers.
ROWS_AT_ONCE = 2
QUERIES_AT_ONCE = 8


@nb.njit(cache=True, parallel=True)
def panel_products(
    cells: NDArray[np.uint16],
    vectors: NDArray[np.uint16],
    dedicated: int,
    table: int,
    out: NDArray[np.uint16],
) -> None:
    """Compute ``out[b, r, g] = sum over dedicated columns and table g of cells[r] * vectors[b]``.

    Args:
        cells: uint16 (rows, dedicated + tables * table), below p.
        vectors: uint16 (batch, columns), below p.
        dedicated: width of the dedicated panel.
        table: width of one table.
        out: uint16 (batch, rows, tables), overwritten, below p.
    """
    n_tables = out.shape[2]
    for row in nb.prange(cells.shape[0]):
        for b in range(vectors.shape[0]):
            left = cells[row, :dedicated]
            right = vectors[b, :dedicated]
            shared = np.uint64(0)
            for c in range(dedicated):
                # A product of two words fits in 32 bits, 2**32 products in 64.
                shared += np.uint64(np.uint32(left[c]) * np.uint32(right[c]))
            for g in range(n_tables):
                start = dedicated + g * table
                left = cells[row, start : start + table]
                right = vectors[b, start : start + table]
                total = np.uint64(0)
                for c in range(table):
                    total += np.uint64(np.uint32(left[c]) * np.uint32(right[c]))
                out[b, row, g] = (shared + total) % np.uint64(65521)


@nb.njit(cache=True)
def _two_rows_of_eight(
    cells: NDArray[np.uint16], vectors: NDArray[np.uint16], row: int, start: int, stop: int
) -> tuple[Sums, Sums]:
    """Return the products of two rows of one panel with eight queries: uint64, not reduced.

    Written out, because only named sums stay in registers, and cut row by row, because only a
    slice of a row is known to be contiguous.
    """
    upper, lower = cells[row, start:stop], cells[row + 1, start:stop]
    q0, q1 = vectors[0, start:stop], vectors[1, start:stop]
    q2, q3 = vectors[2, start:stop], vectors[3, start:stop]
    q4, q5 = vectors[4, start:stop], vectors[5, start:stop]
    q6, q7 = vectors[6, start:stop], vectors[7, start:stop]
    u0 = u1 = u2 = u3 = u4 = u5 = u6 = u7 = np.uint64(0)
    v0 = v1 = v2 = v3 = v4 = v5 = v6 = v7 = np.uint64(0)
    for c in range(len(upper)):
        x = np.uint32(upper[c])
        y = np.uint32(lower[c])
        q = np.uint32(q0[c])
        u0 += np.uint64(x * q)
        v0 += np.uint64(y * q)
        q = np.uint32(q1[c])
        u1 += np.uint64(x * q)
        v1 += np.uint64(y * q)
        q = np.uint32(q2[c])
        u2 += np.uint64(x * q)
        v2 += np.uint64(y * q)
        q = np.uint32(q3[c])
        u3 += np.uint64(x * q)
        v3 += np.uint64(y * q)
        q = np.uint32(q4[c])
        u4 += np.uint64(x * q)
        v4 += np.uint64(y * q)
        q = np.uint32(q5[c])
        u5 += np.uint64(x * q)
        v5 += np.uint64(y * q)
        q = np.uint32(q6[c])
        u6 += np.uint64(x * q)
        v6 += np.uint64(y * q)
        q = np.uint32(q7[c])
        u7 += np.uint64(x * q)
        v7 += np.uint64(y * q)
    return (u0, u1, u2, u3, u4, u5, u6, u7), (v0, v1, v2, v3, v4, v5, v6, v7)


@nb.njit(cache=True, parallel=True)
def panel_products_of_eight(
    cells: NDArray[np.uint16],
    vectors: NDArray[np.uint16],
    dedicated: int,
    table: int,
    out: NDArray[np.uint16],
) -> None:
    """Compute what ``panel_products`` does for eight vectors, two rows at a time.

    Args:
        cells: uint16 (rows, dedicated + tables * table), below p; rows even.
        vectors: uint16 (8, columns), below p.
        dedicated: width of the dedicated panel.
        table: width of one table.
        out: uint16 (8, rows, tables), overwritten, below p.
    """
    n_tables = out.shape[2]
    for pair in nb.prange(cells.shape[0] // 2):
        row = 2 * pair
        shared = _two_rows_of_eight(cells, vectors, row, 0, dedicated)
        for g in range(n_tables):
            start = dedicated + g * table
            stop = start + table
            own = _two_rows_of_eight(cells, vectors, row, start, stop)
            for b in range(8):
                out[b, row, g] = (shared[0][b] + own[0][b]) % np.uint64(65521)
                out[b, row + 1, g] = (shared[1][b] + own[1][b]) % np.uint64(65521)
