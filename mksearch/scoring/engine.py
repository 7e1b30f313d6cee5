"""The engine interface, and the choice of an engine by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mksearch.errors import EngineFailed, EngineUnavailable, ParameterError
from mksearch.index.geometry import LevelGeometry
from mksearch.scoring.cpu import CpuEngine
from mksearch.scoring.cuda import CudaEngine, LevelKey
from mksearch.scoring.reference import NumpyEngine

__all__ = [
    "AUTO",
    "ENGINES",
    "Engine",
    "FallbackEngine",
    "HoldingEngine",
    "device_of",
    "keep_only",
    "make_engine",
    "score_blocks",
    "score_level",
    "score_levels",
    "vectors_at_once",
]

#: Name that takes the fastest engine of the machine.
AUTO: Final = "auto"
#: Vectors of one pass, where an engine does not say: two register blocks of the cpu engine.
_VECTORS_MAX: Final = 16
#: Cells of blocks that are not neighbours, copied together.
_COPIED_BYTES: Final = 1 << 23


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


@runtime_checkable
class HoldingEngine(Engine, Protocol):
    """An engine that keeps cells in memory of its own, from call to call.

    Attributes:
        vectors_max: vectors that are worth one pass.
    """

    vectors_max: int

    @property
    def device(self) -> str:
        """What computes, in words for an operator."""
        ...

    def score_held(
        self,
        key: LevelKey,
        cells: NDArray[np.uint16],
        geometry: LevelGeometry,
        vectors: NDArray[np.uint16],
    ) -> NDArray[np.uint16]:
        """Do what ``score`` does, and keep the cells for the next call with this key.

        Args:
            key: segment and level; cells under a key never change.
            cells: as for ``score``; read again where they are not held whole.
            geometry: as for ``score``.
            vectors: as for ``score``.

        Raises:
            ParameterError: shapes do not fit.
            EngineFailed: what computes is lost; the next call tries anew.
        """
        ...

    def keep_only(self, segments: Collection[bytes]) -> None:
        """Let go of the cells of all other segments."""
        ...


@runtime_checkable
class PartsEngine(Engine, Protocol):
    """An engine that has less to do for several arrays together than for one after another."""

    def score_parts(
        self,
        parts: Sequence[NDArray[np.uint16]],
        geometry: LevelGeometry,
        vectors: Sequence[NDArray[np.uint16]],
    ) -> list[NDArray[np.uint16]]:
        """Do what ``score`` does for each of some arrays of cells.

        Args:
            parts: cells, as for ``score``; at least one array.
            geometry: of all of them.
            vectors: for each its own, as for ``score``.

        Raises:
            ParameterError: shapes do not fit.
        """
        ...


class FallbackEngine:
    """One engine for as long as it works, and another from then on.

    Attributes:
        gpus: the first engine.
    """

    name = AUTO

    def __init__(self, first: HoldingEngine, second: Engine, report: Callable[[str], None]) -> None:
        """Start with ``first``; ``report`` is told in one line when that ends."""
        self.gpus = first
        self._first: HoldingEngine | None = first
        self._second = second
        self._report = report
        self.vectors_max = first.vectors_max

    @property
    def device(self) -> str:
        """What computes now."""
        return self._second.name if self._first is None else self._first.device

    def score(
        self,
        cells: NDArray[np.uint16],
        geometry: LevelGeometry,
        vectors: NDArray[np.uint16],
    ) -> NDArray[np.uint16]:
        """Multiply every row with every vector; see ``Engine.score``."""
        if self._first is not None:
            try:
                return self._first.score(cells, geometry, vectors)
            except EngineFailed as error:
                self._fall_back(error)
        return self._second.score(cells, geometry, vectors)

    def score_held(
        self,
        key: LevelKey,
        cells: NDArray[np.uint16],
        geometry: LevelGeometry,
        vectors: NDArray[np.uint16],
    ) -> NDArray[np.uint16]:
        """Do the same over cells that are kept; see ``HoldingEngine.score_held``."""
        if self._first is not None:
            try:
                return self._first.score_held(key, cells, geometry, vectors)
            except EngineFailed as error:
                self._fall_back(error)
        return self._second.score(cells, geometry, vectors)

    def keep_only(self, segments: Collection[bytes]) -> None:
        """Let go of the cells of all other segments."""
        if self._first is not None:
            self._first.keep_only(segments)

    def _fall_back(self, error: EngineFailed) -> None:
        self._first = None
        self._report(f"{error.message}; engine {self._second.name!r} goes on until a restart")


ENGINES: Mapping[str, Callable[[], Engine]] = {
    "numpy": NumpyEngine,
    "cpu": CpuEngine,
    "cuda": CudaEngine,
}


def make_engine(
    name: str,
    *,
    report: Callable[[str], None] = lambda _: None,
    stored_tables: Mapping[str, object] | None = None,
) -> Engine:
    """Return the engine ``name``.

    Args:
        name: of ``ENGINES``, or "auto": GPUs where there are any that work, else "cpu".
        report: told in one line what an operator should know.
        stored_tables: of an earlier ``CudaEngine.tables``.

    Raises:
        ParameterError: there is none of this name.
        EngineUnavailable: it cannot be used on this machine; never for "auto".
    """
    if name == AUTO:
        try:
            first = CudaEngine(stored_tables=stored_tables, report=report)
        except EngineUnavailable as error:
            report(f"{error.message}; engine 'cpu' is used")
            return CpuEngine()
        return FallbackEngine(first, CpuEngine(), report)
    if name == CudaEngine.name:
        return CudaEngine(stored_tables=stored_tables, report=report)
    try:
        return ENGINES[name]()
    except KeyError:
        raise ParameterError(
            f"there is no engine {name!r}", cure=f"use one of {', '.join((*ENGINES, AUTO))}"
        ) from None


def score_level(
    engine: Engine,
    key: LevelKey,
    cells: NDArray[np.uint16],
    geometry: LevelGeometry,
    vectors: NDArray[np.uint16],
) -> NDArray[np.uint16]:
    """Score a level of a segment, with cells kept by an engine that can; see ``Engine.score``."""
    if isinstance(engine, HoldingEngine):
        return engine.score_held(key, cells, geometry, vectors)
    return engine.score(cells, geometry, vectors)


def score_levels(
    engine: Engine,
    levels: Sequence[tuple[LevelKey, NDArray[np.uint16], NDArray[np.uint16]]],
    geometry: LevelGeometry,
) -> list[NDArray[np.uint16]]:
    """Score a level of several segments, together where an engine gains by it.

    Args:
        engine: computes.
        levels: key, cells and vectors of each; at least one.
        geometry: of all of them.

    Returns:
        for each what ``Engine.score`` returns.
    """
    if isinstance(engine, PartsEngine):
        _, cells, vectors = zip(*levels, strict=True)
        return engine.score_parts(cells, geometry, vectors)
    return [score_level(engine, key, cells, geometry, own) for key, cells, own in levels]


def score_blocks(
    engine: Engine,
    cells: NDArray[np.uint16],
    geometry: LevelGeometry,
    vectors: NDArray[np.uint16],
    height: int,
    blocks: Sequence[int],
) -> NDArray[np.uint16]:
    """Score some blocks of a level and read no others; see ``Engine.score``.

    Args:
        engine: computes.
        cells: uint16 (rows, columns), the level.
        geometry: panels of the level.
        vectors: uint16 (batch, columns), below p.
        height: physical rows of a block.
        blocks: of the level, ascending, each once, at least one.

    Returns:
        uint16 (batch, len(blocks) * height, tables), in the order of the blocks.
    """
    if blocks[-1] - blocks[0] + 1 == len(blocks):
        # Neighbours are scored where they lie.
        run = cells[blocks[0] * height : (blocks[-1] + 1) * height]
        return engine.score(run, geometry, vectors)
    by_block = cells.reshape(-1, height, cells.shape[1])
    # Copied few at a time, so that the copies stay in the cache for the products.
    n_together = max(1, _COPIED_BYTES // by_block[0].nbytes)
    parts = []
    for first in range(0, len(blocks), n_together):
        few = by_block[list(blocks[first : first + n_together])]
        parts.append(engine.score(few.reshape(-1, cells.shape[1]), geometry, vectors))
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def keep_only(engine: Engine, segments: Collection[bytes]) -> None:
    """Tell an engine that keeps cells which segments are still served."""
    if isinstance(engine, HoldingEngine):
        engine.keep_only(segments)


def vectors_at_once(engine: Engine) -> int:
    """Return how many vectors are worth one pass of an engine."""
    return engine.vectors_max if isinstance(engine, HoldingEngine) else _VECTORS_MAX


def device_of(engine: Engine) -> str:
    """Return what an engine computes on, in words for an operator."""
    return engine.device if isinstance(engine, HoldingEngine) else "cpu"
