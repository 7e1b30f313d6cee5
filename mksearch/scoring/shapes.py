"""What every engine proves of its inputs before it computes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mksearch.errors import ParameterError
from mksearch.index.geometry import LevelGeometry
from mksearch.params import P

__all__ = ["require_shapes"]


def require_shapes(
    cells: NDArray[np.uint16], geometry: LevelGeometry, vectors: NDArray[np.uint16]
) -> None:
    """Raise unless ``cells`` and ``vectors`` fit ``geometry`` and vectors are field elements.

    Raises:
        ParameterError: a dtype, a width or an element is wrong.
    """
    if cells.dtype != np.uint16 or vectors.dtype != np.uint16:
        raise ParameterError("cells and vectors are uint16")
    for name, array in (("cells", cells), ("vectors", vectors)):
        if array.ndim != 2 or array.shape[1] != geometry.width:
            raise ParameterError(
                f"{name} of shape {array.shape} do not have {geometry.width} columns"
            )
    if vectors.size and int(vectors.max()) >= P:
        raise ParameterError(f"a query share holds an element that is not below {P}")
