"""The engine interface, and the choice of an engine by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mksearch.errors import ParameterError
from mksearch.index.geometry import LevelGeometry
from mksearch.scoring.cpu import CpuEngine
from mksearch.scoring.reference import NumpyEngine

__all__ = ["ENGINES", "Engine", "make_engine"]


class Engine(Protocol):
    """What a server asks of an engine."""

    name: str

    def score(
        self,
        cells: NDArray[np.uint16],
        geometry: LevelGeometry,
        vectors: NDArray[np.uint16],
    ) -> NDArray[np.uint16]:
        """Multiply every row with every vector, panel by panel (docs/protocol.md, step 8.3).

        Args:
            cells: uint16 (rows, columns), below p; usually a mapped file.
            geometry: panels of the level.
            vectors: uint16 (batch, columns), below p.

        Returns:
            uint16 (batch, rows, tables), below p: dedicated panel plus table g.

        Raises:
            ParameterError: shapes do not fit.
        """
        ...


ENGINES: Mapping[str, Callable[[], Engine]] = {"numpy": NumpyEngine, "cpu": CpuEngine}


def make_engine(name: str) -> Engine:
    """Return the engine ``name``.

    Raises:
        ParameterError: there is none of this name.
    """
    try:
        return ENGINES[name]()
    except KeyError:
        raise ParameterError(
            f"there is no engine {name!r}", cure=f"use one of {', '.join(ENGINES)}"
        ) from None
