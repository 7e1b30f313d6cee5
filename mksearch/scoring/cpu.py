"""The engine of servers without a GPU: a compiled loop over all cores, as fast as memory reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mksearch.index.geometry import LevelGeometry
from mksearch.kernels.blocks import QUERIES_AT_ONCE, ROWS_AT_ONCE, block_products
from mksearch.kernels.products import ROWS_A_TASK, panel_products, parts_products
from mksearch.scoring.shapes import require_shapes

__all__ = ["CpuEngine"]

#: From so many vectors on, a block of eight is faster than one after another (measured).
_WORTH_A_BLOCK = 3


class CpuEngine:
    """Reads mapped cells once for each batch.

    One call at a time in a process: compiled loops share one pool of threads.
    """

    name = "cpu"

    def score(
        self,
        cells: NDArray[np.uint16],
        geometry: LevelGeometry,
        vectors: NDArray[np.uint16],
    ) -> NDArray[np.uint16]:
        """Multiply every row with every vector; see ``Engine.score``."""
        require_shapes(cells, geometry, vectors)
        # A copy of the few vectors: compiled code tells apart arrays that may not be written.
        cells, vectors = np.ascontiguousarray(cells), np.array(vectors, order="C")
        out = np.empty((len(vectors), len(cells), geometry.n_tables), np.uint16)
        panels = geometry.dedicated, geometry.table
        done = 0
        while len(vectors) - done >= _WORTH_A_BLOCK:
            stop = min(done + QUERIES_AT_ONCE, len(vectors))
            _score_block(cells, vectors[done:stop], panels, out[done:stop])
            done = stop
        if done < len(vectors):
            panel_products(cells, vectors[done:], *panels, out[done:])
        return out

    def score_parts(
        self,
        parts: Sequence[NDArray[np.uint16]],
        geometry: LevelGeometry,
        vectors: Sequence[NDArray[np.uint16]],
    ) -> list[NDArray[np.uint16]]:
        """Multiply several arrays of cells, each with vectors of its own; see ``score_parts``."""
        for cells, own in zip(parts, vectors, strict=True):
            require_shapes(cells, geometry, own)
        batches = {len(own) for own in vectors}
        is_whole = all(len(cells) % ROWS_A_TASK == 0 for cells in parts)
        if len(batches) > 1 or max(batches) >= _WORTH_A_BLOCK or not is_whole:
            return [
                self.score(cells, geometry, own) for cells, own in zip(parts, vectors, strict=True)
            ]
        # Alive until the end: only addresses go into the loop.
        laid = [np.ascontiguousarray(cells) for cells in parts]
        addresses = np.array([cells.ctypes.data for cells in laid], np.uintp)
        ends = np.cumsum([0, *(len(cells) for cells in laid)])
        out = np.empty((max(batches), int(ends[-1]), geometry.n_tables), np.uint16)
        panels = geometry.dedicated, geometry.table
        parts_products(addresses, ends // ROWS_A_TASK, np.stack(vectors), *panels, out)
        return np.split(out, ends[1:-1], axis=1)


def _score_block(
    cells: NDArray[np.uint16],
    vectors: NDArray[np.uint16],
    panels: tuple[int, int],
    out: NDArray[np.uint16],
) -> None:
    """Score up to eight vectors; rows beyond a multiple of eight go one after another."""
    n_whole = len(cells) // ROWS_AT_ONCE * ROWS_AT_ONCE
    if n_whole < len(cells):
        rest = np.empty((len(vectors), len(cells) - n_whole, out.shape[2]), np.uint16)
        panel_products(cells[n_whole:], vectors, *panels, rest)
        out[:, n_whole:] = rest
    if len(vectors) == QUERIES_AT_ONCE and n_whole == len(cells):
        block_products(cells, vectors, *panels, out)
        return
    eight = np.zeros((QUERIES_AT_ONCE, vectors.shape[1]), np.uint16)
    eight[: len(vectors)] = vectors
    sums = np.empty((QUERIES_AT_ONCE, n_whole, out.shape[2]), np.uint16)
    block_products(cells[:n_whole], eight, *panels, sums)
    out[:, :n_whole] = sums[: len(vectors)]
