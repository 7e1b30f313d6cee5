"""Loops that build a segment: scatter the largest impacts, sum check rows, add masks, pack rows."""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

__all__ = ["POSTING_BYTES_MAX", "add_masks", "encode_postings", "scatter_largest", "sum_check_rows"]

#: Two varints of 32 bits.
POSTING_BYTES_MAX = 10


@nb.njit(cache=True, parallel=True)
def scatter_largest(
    indptr: NDArray[np.int64],
    term_ids: NDArray[np.int32],
    impacts: NDArray[np.uint16],
    columns: NDArray[np.int32],
    rows_per_child: int,
    first_block: int,
    fan_out: int,
    cells: NDArray[np.uint16],
) -> None:
    """Write the largest impact of each column into the data rows of some blocks.

    Args:
        indptr: int64 (n_rows + 1,), postings of each row of the segment in document order.
        term_ids: int32 (nnz,).
        impacts: uint16 (nnz,), 1..127.
        columns: int32 (n_terms, tables): columns of each term at this level; a dedicated term has
            its column first and -1 after it.
        rows_per_child: rows of level 0 below one row of this level: fan_out ** level.
        first_block: first block of this level that ``cells`` holds.
        fan_out: data rows of a block.
        cells: uint16 (n_blocks, fan_out + n_checks, columns), zero; changed.
    """
    n_rows = len(indptr) - 1
    n_columns = columns.shape[1]
    for at in nb.prange(cells.shape[0] * fan_out):
        block = at // fan_out
        child = at % fan_out
        start = ((first_block + block) * fan_out + child) * rows_per_child
        stop = min(start + rows_per_child, n_rows)
        if start < stop:
            row = cells[block, child]
            for i in range(indptr[start], indptr[stop]):
                impact = impacts[i]
                term = term_ids[i]
                for g in range(n_columns):
                    column = columns[term, g]
                    if column < 0:
                        break
                    row[column] = max(row[column], impact)


@nb.njit(cache=True, parallel=True)
def sum_check_rows(
    cells: NDArray[np.uint16], check_vector: NDArray[np.uint16], fan_out: int
) -> None:
    """Fill the check rows of some blocks: weighted sums of their data rows modulo p.

    Args:
        cells: uint16 (n_blocks, fan_out + n_checks, columns); check rows are overwritten.
        check_vector: uint16 (n_checks, n_blocks * (fan_out + n_checks)), below p, by physical row.
        fan_out: data rows of a block.
    """
    n_checks = check_vector.shape[0]
    height = fan_out + n_checks
    n_columns = cells.shape[2]
    for block in nb.prange(cells.shape[0]):
        sums = np.zeros((n_checks, n_columns), np.uint32)
        for child in range(fan_out):
            row = cells[block, child]
            for c in range(n_columns):
                # Rows are mostly zeros, and 65520 * 127 * 504 data rows still fit in 32 bits.
                impact = np.uint32(row[c])
                if impact:
                    for k in range(n_checks):
                        weight = np.uint32(check_vector[k, block * height + child])
                        sums[k, c] += weight * impact
        for k in range(n_checks):
            for c in range(n_columns):
                cells[block, fan_out + k, c] = sums[k, c] % np.uint32(65521)


@nb.njit(cache=True, parallel=True)
def add_masks(cells: NDArray[np.uint16], masks: NDArray[np.uint16]) -> None:
    """Add a keystream to cells modulo p, in place, transposing it tile by tile.

    Args:
        cells: uint16 (rows, columns), below p; changed.
        masks: uint16 (columns, rows), below p.
    """
    n_rows, n_columns = cells.shape
    tile = 32
    for strip in nb.prange(-(-n_rows // tile)):
        row_start = strip * tile
        row_stop = min(row_start + tile, n_rows)
        for column_start in range(0, n_columns, tile):
            column_stop = min(column_start + tile, n_columns)
            for r in range(row_start, row_stop):
                for c in range(column_start, column_stop):
                    total = np.uint32(cells[r, c]) + np.uint32(masks[c, r])
                    cells[r, c] = total - 65521 if total >= 65521 else total


@nb.njit(cache=True)
def _write_varint(value: np.int64, out: NDArray[np.uint8], at: int) -> int:
    """Write shortest LEB128 at ``at``; return where it ends."""
    while value > 0x7F:
        out[at] = value & 0x7F | 0x80
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@nb.njit(cache=True)
def encode_postings(
    indptr: NDArray[np.int64],
    term_ids: NDArray[np.int32],
    tfs: NDArray[np.int32],
    out: NDArray[np.uint8],
    ends: NDArray[np.int64],
) -> None:
    """Write the terms of some rows as their records hold them (docs/protocol.md, section 4.6).

    Args:
        indptr: int64 (n_rows + 1,), postings of each row.
        term_ids: int32 (nnz,), ascending within a row.
        tfs: int32 (nnz,), at least 1.
        out: uint8 (POSTING_BYTES_MAX * nnz,); overwritten.
        ends: int64 (n_rows,), overwritten: where the bytes of each row end.
    """
    at = 0
    first = indptr[0]
    for row in range(len(ends)):
        previous = np.int64(-1)
        for i in range(indptr[row] - first, indptr[row + 1] - first):
            term = np.int64(term_ids[i])
            tf = np.int64(tfs[i])
            at = _write_varint(2 * (term - previous - 1) + (1 if tf > 1 else 0), out, at)
            if tf > 1:
                at = _write_varint(tf - 2, out, at)
            previous = term
        ends[row] = at
