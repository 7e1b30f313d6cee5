"""The servers' one operation: rows times a query vector, panel by panel, modulo p.

For few vectors, where memory is the limit; ``blocks`` is for more.
Panel bounds are scalars and panels are slices, so that the compiler sees simple loops: one compiled
function serves every width at the speed of a plain read (docs/decisions/0004).
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

__all__ = ["ROWS_A_TASK", "panel_products", "parts_products"]

#: Rows that one thread takes at once, of one array: every level has a multiple of them.
ROWS_A_TASK = 8


def _emit_pointer(_typing: Any, address: Any) -> Any:
    """Take the address of a word, an integer, for a pointer."""
    del address
    signature = types.CPointer(types.uint16)(types.uintp)

    def generate(_context: Any, builder: ir.IRBuilder, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(16).as_pointer())

    return signature, generate


_words_at: Any = intrinsic(_emit_pointer)


@nb.njit(cache=True, inline="always")
def _row_products(
    cells: NDArray[np.uint16],
    vector: NDArray[np.uint16],
    dedicated: int,
    table: int,
    out: NDArray[np.uint16],
) -> None:
    """Multiply one row with one vector: uint16 (tables,)."""
    shared = np.uint64(0)
    left, right = cells[:dedicated], vector[:dedicated]
    for c in range(dedicated):
        # A product of two words fits in 32 bits, 2**32 products in 64.
        shared += np.uint64(np.uint32(left[c]) * np.uint32(right[c]))
    for g in range(len(out)):
        start = dedicated + g * table
        left, right = cells[start : start + table], vector[start : start + table]
        total = np.uint64(0)
        for c in range(table):
            total += np.uint64(np.uint32(left[c]) * np.uint32(right[c]))
        out[g] = (shared + total) % np.uint64(65521)


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
    for row in nb.prange(cells.shape[0]):
        for b in range(vectors.shape[0]):
            _row_products(cells[row], vectors[b], dedicated, table, out[b, row])


@nb.njit(cache=True, parallel=True)
def parts_products(
    addresses: NDArray[np.uintp],
    tasks: NDArray[np.int64],
    vectors: NDArray[np.uint16],
    dedicated: int,
    table: int,
    out: NDArray[np.uint16],
) -> None:
    """Compute what ``panel_products`` does for several arrays of cells, with all threads at once.

    Threads meet once, and not once an array: where others use the cores as well, each meeting
    waits for the slowest.

    Args:
        addresses: uintp (n_parts,), where each array of cells begins: uint16
            (rows, dedicated + tables * table), row after row, below p.
        tasks: int64 (n_parts + 1,), ascending from 0: part ``i`` has ``ROWS_A_TASK`` rows for each
            number from ``tasks[i]`` to ``tasks[i + 1]``.
        vectors: uint16 (n_parts, batch, columns), below p.
        dedicated: width of the dedicated panel.
        table: width of one table.
        out: uint16 (batch, rows of all parts, tables), overwritten, below p.
    """
    width = vectors.shape[2]
    for task in nb.prange(tasks[-1]):
        part = np.searchsorted(tasks, task, side="right") - 1
        n_rows = (tasks[part + 1] - tasks[part]) * ROWS_A_TASK
        pointer = _words_at(addresses[part])
        cells = nb.carray(pointer, (n_rows, width))  # type: ignore[attr-defined]
        first = (task - tasks[part]) * ROWS_A_TASK
        for r in range(ROWS_A_TASK):
            for b in range(vectors.shape[1]):
                target = out[b, task * ROWS_A_TASK + r]
                _row_products(cells[first + r], vectors[part, b], dedicated, table, target)
