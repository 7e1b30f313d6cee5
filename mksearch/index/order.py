"""Order documents so that similar ones are neighbours (docs/protocol.md, section 4.2).

Recursive bisection along the principal direction of a truncated singular value decomposition:
neighbours share terms, so the largest impacts of a block are tight bounds for its documents.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from mksearch.params import WEIGHT_ONE

__all__ = ["similarity_order"]

N_DIRECTIONS = 48


def similarity_order(
    indptr: NDArray[np.int64],
    term_ids: NDArray[np.int32],
    weights: NDArray[np.int64],
    n_terms: int,
    fan_out: int,
) -> NDArray[np.int64]:
    """Return an order of the rows in which every block of ``fan_out`` rows is similar.

    Args:
        indptr: int64 (n_rows + 1,), postings of each row.
        term_ids: int32 (nnz,), below ``n_terms``.
        weights: int64 (nnz,), fixed-point weights.
        n_terms: size of the vocabulary.
        fan_out: data rows of a block; halves are cut at whole blocks.

    Returns:
        int64 (n_rows,): the row at each place.  Any order is correct; this one prunes well.
    """
    n_rows = len(indptr) - 1
    n_directions = min(N_DIRECTIONS, n_terms - 1, n_rows - 1)
    if n_rows <= fan_out or n_directions < 1 or not len(term_ids):
        return np.arange(n_rows, dtype=np.int64)
    unit = np.float32(1 / WEIGHT_ONE)
    matrix = csr_matrix(
        (weights.astype(np.float32) * unit, term_ids, indptr), shape=(n_rows, n_terms)
    )
    # Imported here: importing scikit-learn takes a second, and only a build needs it.
    from sklearn.decomposition import TruncatedSVD  # noqa: PLC0415
    from threadpoolctl import threadpool_limits  # noqa: PLC0415

    # The sparse products have one thread anyway, and threads of the dense ones spin while they
    # wait for each other: beside a busy process that made one second thirty.
    with threadpool_limits(1, "blas"):
        places = TruncatedSVD(n_directions, n_iter=2, random_state=0).fit_transform(matrix)
        return _bisect(np.asarray(places, np.float32), fan_out)


def _bisect(places: NDArray[np.float32], fan_out: int) -> NDArray[np.int64]:
    """Cut the widest direction at the median block, again and again, depth first."""
    ordered: list[NDArray[np.int64]] = []
    waiting = [np.arange(len(places), dtype=np.int64)]
    while waiting:
        rows = waiting.pop()
        if len(rows) <= fan_out:
            ordered.append(rows)
            continue
        centred = places[rows] - places[rows].mean(axis=0)
        _, directions = np.linalg.eigh(centred.T @ centred)
        along = centred @ directions[:, -1]
        half = max(1, len(rows) // fan_out // 2) * fan_out
        split = np.argpartition(along, half)
        waiting += [rows[split[half:]], rows[split[:half]]]
    return np.concatenate(ordered)
