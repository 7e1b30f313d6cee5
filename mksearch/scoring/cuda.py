"""The engine of servers with GPUs: cells lie in their memory, or stream through it.

Rows are split over the GPUs of the host by free memory.  What does not fit is copied again for each
call, in pieces that travel while others are multiplied; so is every level that came without a key.
A GPU that fails is left out and its rows go to the others; without any the call fails, and the next
one opens the GPUs anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mksearch.errors import EngineFailed, EngineUnavailable
from mksearch.index.geometry import LevelGeometry
from mksearch.scoring.cuda_device import Device, DeviceFailed, Held
from mksearch.scoring.shapes import require_shapes

__all__ = ["CudaEngine", "LevelKey"]

#: Segment and level: what a copy on a GPU is found by.
LevelKey = tuple[bytes, int]
Array = NDArray[np.uint16]

#: Rows of a GPU's part are a multiple of this, the smallest block.
_ROWS_TOGETHER: Final = 8
_CURE: Final = 'see that the driver works (nvidia-smi), or set engine = "cpu" in server.toml'


def _nothing(_: str) -> None:
    """Report to nobody."""


def _import_cupy() -> Any:
    """Return the CuPy module.

    Raises:
        EngineUnavailable: it is not installed, or does not fit the machine.
    """
    try:
        import cupy  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == "cupy"
        reason = "is not installed" if is_missing else f"cannot be loaded ({_one_line(error)})"
        raise EngineUnavailable(
            f"engine 'cuda' needs CuPy, which {reason}",
            cure="install mksearch[gpu-cuda12] or mksearch[gpu-cuda13], after the driver's CUDA",
        ) from None
    return cupy


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


@dataclass(slots=True)
class _Share:
    """The rows of a level that one GPU multiplies, from ``start`` to ``stop``."""

    device: Device
    start: int
    stop: int
    held: Held


class CudaEngine:
    """Multiplies on all GPUs of the host; see ``Engine`` and ``HoldingEngine``.

    One call at a time in a process.
    """

    name = "cuda"
    vectors_max = 64

    def __init__(
        self,
        *,
        memory_bytes: int | None = None,
        stored_tables: Mapping[str, object] | None = None,
        report: Callable[[str], None] = _nothing,
        cupy: Any = None,
    ) -> None:
        """Open every GPU, prove its kernels and choose among them.

        Args:
            memory_bytes: of each GPU, None for all that is free.
            stored_tables: what ``tables`` of an earlier engine gave; saves the timing.
            report: told in one line what an operator should know.
            cupy: module to use; None imports it.

        Raises:
            EngineUnavailable: no CuPy, no driver, no GPU, or none that works.
        """
        self._cupy = _import_cupy() if cupy is None else cupy
        self._memory_bytes = memory_bytes
        self._report = report
        self._tables: dict[str, object] = dict(stored_tables or {})
        self._shares: dict[LevelKey, list[_Share]] = {}
        self._devices: list[Device] = []
        self._open()

    def _open(self) -> None:
        try:
            count = self._cupy.cuda.runtime.getDeviceCount()
        except RuntimeError as error:
            raise EngineUnavailable(
                f"engine 'cuda' found no GPU ({_one_line(error)})", cure=_CURE
            ) from None
        reasons = []
        for number in range(count):
            try:
                device = Device(
                    self._cupy,
                    number,
                    memory_bytes=self._memory_bytes,
                    stored_tables=self._tables,
                    report=self._report,
                )
            except DeviceFailed as failed:
                reasons.append(f"{failed.device.name}: {failed.reason}")
                continue
            self._devices.append(device)
            self._tables[device.kind] = device.stored_table()
        if not self._devices:
            reason = "; ".join(reasons) or "the driver names none"
            raise EngineUnavailable(f"engine 'cuda' found no GPU that works ({reason})", cure=_CURE)
        for reason in reasons:
            self._report(f"{reason}; it is not used")

    # --- what a server asks

    @property
    def device(self) -> str:
        """Names of the GPUs that score now."""
        return ", ".join(device.name for device in self._devices) or "none"

    @property
    def devices(self) -> tuple[Device, ...]:
        """The GPUs that score now."""
        return tuple(self._devices)

    def tables(self) -> Mapping[str, object]:
        """Return which kernels were found fastest on each kind of card, to be stored as JSON."""
        return dict(self._tables)

    def score(self, cells: Array, geometry: LevelGeometry, vectors: Array) -> Array:
        """Multiply every row with every vector; nothing stays on a GPU.  See ``Engine.score``.

        Raises:
            EngineFailed: no GPU works any more.
        """
        return self._score(None, cells, geometry, vectors)

    def score_held(
        self, key: LevelKey, cells: Array, geometry: LevelGeometry, vectors: Array
    ) -> Array:
        """Do the same over cells that stay on the GPUs; see ``HoldingEngine.score_held``.

        Raises:
            EngineFailed: no GPU works any more.
        """
        return self._score(key, cells, geometry, vectors)

    def keep_only(self, segments: Collection[bytes]) -> None:
        """Let go of the cells of other segments, and place anew what did not fit before."""
        for key, shares in list(self._shares.items()):
            is_whole = all(share.held.n_rows == share.stop - share.start for share in shares)
            if key[0] not in segments or not is_whole:
                self._release(key)

    def held_bytes(self) -> int:
        """Return bytes of cells that lie on the GPUs."""
        return sum(share.held.n_bytes for shares in self._shares.values() for share in shares)

    # --- scoring

    def _score(
        self, key: LevelKey | None, cells: Array, geometry: LevelGeometry, vectors: Array
    ) -> Array:
        require_shapes(cells, geometry, vectors)
        out = np.empty((len(vectors), len(cells), geometry.n_tables), np.uint16)
        if not out.size:
            return out
        vectors = np.ascontiguousarray(vectors)
        if not self._devices:
            self._open_again()
        while True:
            try:
                shares = self._place(key, cells)
                self._run(shares, (cells, geometry, vectors, out))
                return out
            except DeviceFailed as failed:
                # Without the traceback, whose frames hold on to memory of the GPU.
                lost = DeviceFailed(failed.device, failed.reason, is_memory=failed.is_memory)
            if lost.is_memory and self._make_room(lost.device):
                # Another process took it: this pass is streamed, in pieces that fit.
                key = None
            else:
                self._lose(lost)

    def _open_again(self) -> None:
        try:
            self._open()
        except EngineUnavailable as error:
            raise EngineFailed(error.message, cure="restart the server") from None
        self._report(f"{self.device} is used again")

    def _make_room(self, device: Device) -> bool:
        """Let go of all cells and of large buffers; return False where that was done already."""
        self._release_all()
        try:
            return device.shrink()
        except DeviceFailed:
            return False

    def _lose(self, failed: DeviceFailed) -> None:
        """Leave a GPU out.

        Raises:
            EngineFailed: it was the last one.
        """
        self._release_all()
        self._devices.remove(failed.device)
        lost = f"{failed.device.name} failed ({failed.reason})"
        if not self._devices:
            raise EngineFailed(
                f"engine 'cuda': {lost}, and no other GPU is left",
                cure="ask another server, or this one once its operator has restarted it",
            )
        self._report(f"{lost}; its rows go to {self.device}")

    def _place(self, key: LevelKey | None, cells: Array) -> list[_Share]:
        """Return which GPU multiplies which rows; copies what can be held."""
        if key is not None and key in self._shares:
            return self._shares[key]
        rooms = [device.room() if key is not None else 1 for device in self._devices]
        shares = []
        for device, (start, stop) in zip(
            self._devices, _split(len(cells), [max(1, room) for room in rooms]), strict=True
        ):
            shares.append(_Share(device, start, stop, Held()))
        if key is not None:
            self._shares[key] = shares
            for share in shares:
                if share.start < share.stop:
                    share.held = share.device.hold(cells[share.start : share.stop])
        return shares

    def _run(self, shares: list[_Share], job: tuple[Array, LevelGeometry, Array, Array]) -> None:
        """Score all shares, taking turns, so that every GPU is busy."""
        _, geometry, vectors, _ = job
        running = [
            share.device.run(
                share.device.pieces(share.held, share.start, share.stop, geometry, len(vectors)),
                job,
            )
            for share in shares
        ]
        try:
            while running:
                running = [work for work in running if next(work, StopIteration) is None]
        finally:
            for work in running:
                work.close()

    def _release(self, key: LevelKey) -> None:
        for share in self._shares.pop(key):
            share.device.release(share.held)

    def _release_all(self) -> None:
        for key in list(self._shares):
            self._release(key)


def _split(n_rows: int, weights: list[int]) -> list[tuple[int, int]]:
    """Cut rows into runs in proportion to ``weights``, all but the last whole blocks of eight."""
    total = sum(weights)
    edges = [0]
    so_far = 0
    for weight in weights[:-1]:
        so_far += weight
        edge = n_rows * so_far // total // _ROWS_TOGETHER * _ROWS_TOGETHER
        edges.append(max(edges[-1], edge))
    edges.append(n_rows)
    return list(pairwise(edges))
