"""The engine of servers without a GPU: a compiled loop over all cores, as fast as memory reads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mksearch.index.geometry import LevelGeometry
from mksearch.kernels.products import panel_products
from mksearch.scoring.shapes import require_shapes

__all__ = ["CpuEngine"]


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
        out = np.empty((len(vectors), len(cells), geometry.n_tables), np.uint16)
        panel_products(
            np.ascontiguousarray(cells),
            np.ascontiguousarray(vectors),
            geometry.dedicated,
            geometry.table,
            out,
        )
        return out
