"""The client's loops over answers: interpolate, take the mask away, check every block.

They run on one thread: a client may call them from several, and numba's fallback thread layer does
not allow that for parallel loops.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

__all__ = ["failing_blocks", "interpolate", "subtract_masks"]


@nb.njit(cache=True, nogil=True)
def interpolate(
    answers: NDArray[np.uint16], factors: NDArray[np.uint32], out: NDArray[np.uint16]
) -> None:
    """Compute ``out[i] = sum_j factors[j] * answers[j, i] mod p``.

    Args:
        answers: uint16 (n_answers, n), below p.
        factors: uint32 (n_answers,), below p.
        out: uint16 (n,), overwritten.
    """
    for i in range(answers.shape[1]):
        total = np.uint64(0)
        for j in range(answers.shape[0]):
            total += np.uint64(answers[j, i]) * np.uint64(factors[j])
        out[i] = total % np.uint64(65521)


@nb.njit(cache=True, nogil=True)
def subtract_masks(
    sums: NDArray[np.uint16],
    masks: NDArray[np.uint16],
    weights: NDArray[np.uint32],
    tables: NDArray[np.int64],
) -> None:
    """Subtract ``weights[i] * masks[i, r]`` from the sums that column ``i`` is part of, in place.

    Args:
        sums: uint16 (rows, tables), below p; changed.
        masks: uint16 (n_columns, rows), below p: keystream of the columns in use.
        weights: uint32 (n_columns,), below p: the query's entries.
        tables: int64 (n_columns,), table of each column, -1 for a dedicated one.
    """
    n_tables = sums.shape[1]
    for r in range(sums.shape[0]):
        for g in range(n_tables):
            total = np.uint64(0)
            for i in range(masks.shape[0]):
                if tables[i] < 0 or tables[i] == g:
                    total += np.uint64(masks[i, r]) * np.uint64(weights[i])
            masked = np.uint64(sums[r, g]) + np.uint64(65521) - total % np.uint64(65521)
            sums[r, g] = masked % np.uint64(65521)


@nb.njit(cache=True, nogil=True)
def failing_blocks(
    sums: NDArray[np.uint16],
    check_vector: NDArray[np.uint16],
    fan_out: int,
    failed: NDArray[np.bool_],
) -> None:
    """Mark the blocks in which some check row does not fit its data rows.

    Args:
        sums: uint16 (rows, tables), rows a multiple of ``fan_out + n_checks``.
        check_vector: uint16 (n_checks, rows), below p; entries at check rows are not used.
        fan_out: data rows of a block.
        failed: bool (n_blocks,), overwritten.
    """
    n_checks = check_vector.shape[0]
    n_tables = sums.shape[1]
    height = fan_out + n_checks
    for b in range(len(failed)):
        wrong = False
        first = b * height
        for k in range(n_checks):
            for g in range(n_tables):
                total = np.uint64(0)
                for i in range(fan_out):
                    total += np.uint64(sums[first + i, g]) * np.uint64(check_vector[k, first + i])
                if total % np.uint64(65521) != np.uint64(sums[first + fan_out + k, g]):
                    wrong = True
        failed[b] = wrong
