"""The reference engine: plain integer matrix products."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mksearch.field import modp
from mksearch.index.geometry import LevelGeometry
from mksearch.scoring.shapes import require_shapes

__all__ = ["NumpyEngine"]


class NumpyEngine:
    """Exact and slow; what the other engines are compared with."""

    name = "numpy"

    def score(
        self,
        cells: NDArray[np.uint16],
        geometry: LevelGeometry,
        vectors: NDArray[np.uint16],
    ) -> NDArray[np.uint16]:
        """Multiply every row with every vector; see ``Engine.score``."""
        require_shapes(cells, geometry, vectors)
        out = np.empty((len(vectors), len(cells), geometry.n_tables), np.uint16)
        split = geometry.dedicated
        shared = modp.matmul(cells[:, :split], vectors[:, :split].T)
        for g in range(geometry.n_tables):
            panel = slice(split + g * geometry.table, split + (g + 1) * geometry.table)
            own = modp.matmul(cells[:, panel], vectors[:, panel].T)
            out[:, :, g] = modp.add(shared, own).T
        return out
