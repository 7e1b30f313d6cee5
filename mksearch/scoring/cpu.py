"""The engine of servers without a GPU: a compiled loop over all cores, as fast as memory reads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mksearch.index.geometry import LevelGeometry
from mksearch.kernels.products import (
    QUERIES_AT_ONCE,
    ROWS_AT_ONCE,
    panel_products,
    panel_products_of_eight,
)
from mksearch.scoring.shapes import require_shapes

__all__ = ["CpuEngine"]

#: From so many vectors on, a block of eight is faster than one after another (measured).
_WORTH_A_BLOCK = 4


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
        n_even = len(cells) // ROWS_AT_ONCE * ROWS_AT_ONCE
        done = 0
        while len(vectors) - done >= _WORTH_A_BLOCK:
            eight = vectors[done : done + QUERIES_AT_ONCE]
            stop = done + len(eight)
            if len(eight) == QUERIES_AT_ONCE and n_even == len(cells):
                panel_products_of_eight(cells, eight, *panels, out[done:stop])
            else:
                self._padded(cells, eight, panels, out[done:stop], n_even)
            done = stop
        if done < len(vectors):
            panel_products(cells, vectors[done:], *panels, out[done:])
        return out

    @staticmethod
    def _padded(
        cells: NDArray[np.uint16],
        vectors: NDArray[np.uint16],
        panels: tuple[int, int],
        out: NDArray[np.uint16],
        n_even: int,
    ) -> None:
        """Score fewer than eight vectors, or an odd number of rows, by the block of eight."""
        eight = np.zeros((QUERIES_AT_ONCE, vectors.shape[1]), np.uint16)
        eight[: len(vectors)] = vectors
        sums = np.empty((QUERIES_AT_ONCE, n_even, out.shape[2]), np.uint16)
        panel_products_of_eight(cells[:n_even], eight, *panels, sums)
        out[:, :n_even] = sums[: len(vectors)]
        rest = np.empty((len(vectors), len(cells) - n_even, out.shape[2]), np.uint16)
        panel_products(cells[n_even:], vectors, *panels, rest)
        out[:, n_even:] = rest
