"""The servers' one operation: rows times a query vector, panel by panel, modulo p.

For few vectors, where memory is the limit; ``blocks`` is for more.
Panel bounds are scalars and panels are slices, so that the compiler sees simple loops: one compiled
function serves every width at the speed of a plain read (docs/decisions/0004).
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

__all__ = ["panel_products"]


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
