"""One GPU: its memory, its kernels, and the pipeline that feeds it.

The CuPy module is an argument, never imported here.  Work goes through two lanes, each a stream
with buffers of its own: while one multiplies, the other copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mksearch import __version__
from mksearch.errors import ParameterError
from mksearch.index.geometry import LevelGeometry
from mksearch.params import P
from mksearch.scoring.cuda_kernels import (
    BATCH_CLASSES,
    DEFAULT_TABLE,
    FLOAT64,
    Kernel,
    batch_class,
    find_kernel,
    read_source,
    read_table,
    usable_labels,
)
from mksearch.scoring.cuda_lane import Lane
from mksearch.scoring.reference import NumpyEngine

__all__ = ["Device", "DeviceFailed", "Held", "Piece"]

#: Largest piece of cells or of sums that goes over the bus at once: long enough for full speed.
PIECE_BYTES_MAX: Final = 1 << 26
PIECE_BYTES_MIN: Final = 1 << 16
#: Left free on a GPU for the library's own, bytes.
SPARE_BYTES: Final = 1 << 28
#: Less free memory is none.
MEMORY_MIN: Final = 1 << 26
#: Parts of the memory: two lanes with cells, sums and room for intermediate results take half.
_PIECES: Final = 16
_N_LANES: Final = 2
#: What kernels are timed on: more than any cache, in the widths of a large collection.
_TUNING_GEOMETRY: Final = LevelGeometry(1024, 1024, 3)
_TUNING_BYTES: Final = 1 << 28
_TUNING_RUNS: Final = 3
#: What a kernel is proved on before it is used: panels of odd sizes, rows and vectors left over.
_PROOF_GEOMETRY: Final = LevelGeometry(64, 128, 2)
_PROOF_ROWS: Final = 77
_POISON: Final = 0xDEAD

Array = NDArray[np.uint16]


class DeviceFailed(Exception):
    """A GPU could not do what was asked for; ``reason`` is the library's word for it."""

    def __init__(self, device: Device, reason: str, *, is_memory: bool = False) -> None:
        super().__init__(reason)
        self.device = device
        self.reason = reason
        self.is_memory = is_memory


@dataclass(slots=True)
class Held:
    """The first rows of a level, or of a GPU's part of it, that lie in the GPU's memory.

    Attributes:
        cells: device array uint16 (rows, columns), None for none.
        n_rows: rows of it.
    """

    cells: Any = None
    n_rows: int = 0

    @property
    def n_bytes(self) -> int:
        """Bytes of GPU memory."""
        return 0 if self.cells is None else int(self.cells.nbytes)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that are multiplied together.

    Attributes:
        start: first row of the level.
        stop: row behind the last.
        on_device: device array uint16 (rows, columns), None where they must be copied first.
    """

    start: int
    stop: int
    on_device: Any = None


@dataclass(frozen=True, slots=True)
class _Job:
    """What all pieces of a call have in common."""

    cells: Array
    geometry: LevelGeometry
    vectors: Array
    out: Array


class Device:
    """One GPU.

    Attributes:
        number: of the GPU, as CUDA counts.
        name: of the card, with its number.
        kind: card and release, for which a table is measured once.
        capability: compute capability, ten times: 90 for 9.0.
        table: kernel for each class of batches.
    """

    def __init__(
        self,
        cupy: Any,
        number: int,
        *,
        memory_bytes: int | None = None,
        stored_tables: Mapping[str, object] | None = None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Open a GPU.

        Args:
            cupy: the module.
            number: of the GPU, as CUDA counts.
            memory_bytes: how much of its memory may be used, None for all that is free.
            stored_tables: kernels that were measured before, by ``kind`` of card.
            report: told in one line what an operator should know.

        Raises:
            DeviceFailed: it does not work.
        """
        self.number = number
        self.name = f"GPU {number}"
        self._cupy = cupy
        self._report = report
        self._cap = memory_bytes
        self._held_bytes = 0
        self._kernels: dict[str, Any] = {}
        self._proved: dict[str, bool] = {}
        with self._working():
            self._device = cupy.cuda.Device(number)
            with self._device:
                card = cupy.cuda.runtime.getDeviceProperties(number)["name"]
                card = card.decode("utf-8", "replace")
                self.name = f"{card} (GPU {number})"
                self.capability = int(self._device.compute_capability)
                self.kind = f"{card}, {self.capability}, mksearch {__version__}"
                if self._memory() < min(memory_bytes or MEMORY_MIN, MEMORY_MIN):
                    raise DeviceFailed(self, f"{self._memory() >> 20} MB are free", is_memory=True)
                self._lanes = [Lane(cupy) for _ in range(_N_LANES)]
                self._piece_bytes = max(
                    PIECE_BYTES_MIN, min(PIECE_BYTES_MAX, self._memory() // _PIECES)
                )
        self.table = self._make_table((stored_tables or {}).get(self.kind))

    # --- memory

    def _memory(self) -> int:
        """Return bytes that may be used now, besides what is held already."""
        free, _ = self._device.mem_info
        free += self._cupy.get_default_memory_pool().free_bytes()
        if self._cap is not None:
            free = min(free, self._cap - self._held_bytes)
        else:
            free -= SPARE_BYTES
        return max(0, int(free))

    def room(self) -> int:
        """Return bytes that cells could be held in.

        Raises:
            DeviceFailed: the GPU does not answer.
        """
        with self._working(), self._device:
            buffers = _PIECES // 2 * self._piece_bytes
            return max(0, self._memory() - buffers)

    def hold(self, cells: Array) -> Held:
        """Copy as many of the first rows as there is room for.

        Args:
            cells: uint16 (rows, columns), usually a mapped file.

        Raises:
            DeviceFailed: the GPU does not work.
        """
        n_rows = min(len(cells), self.room() // (2 * cells.shape[1]))
        with self._working(), self._device:
            held = Held()
            while n_rows > 0 and held.cells is None:
                try:
                    held = Held(self._cupy.empty((n_rows, cells.shape[1]), np.uint16), n_rows)
                except MemoryError:
                    # Fragmented, or another process was faster: the rest is streamed.
                    n_rows //= 2
            at_once = max(1, self._piece_bytes // (2 * cells.shape[1]))
            for number, start in enumerate(range(0, n_rows, at_once)):
                lane = self._lanes[number % _N_LANES]
                lane.finish()
                stop = min(start + at_once, n_rows)
                lane.upload(cells[start:stop], held.cells[start:stop])
            for lane in self._lanes:
                lane.finish()
        self._held_bytes += held.n_bytes
        return held

    def release(self, held: Held) -> None:
        """Give back the memory of ``held``, which is empty afterwards."""
        self._held_bytes -= held.n_bytes
        held.cells, held.n_rows = None, 0
        try:
            with self._device:
                self._cupy.get_default_memory_pool().free_all_blocks()
        except RuntimeError:
            # A lost GPU has lost its memory as well.
            return

    def shrink(self) -> bool:
        """Go on with smaller buffers; return False where they are as small as can be.

        Raises:
            DeviceFailed: the GPU does not work.
        """
        if self._piece_bytes <= PIECE_BYTES_MIN:
            return False
        with self._working(), self._device:
            for lane in self._lanes:
                lane.drop_buffers()
            self._cupy.get_default_memory_pool().free_all_blocks()
        self._piece_bytes = max(PIECE_BYTES_MIN, self._piece_bytes // 4)
        return True

    # --- scoring

    def pieces(
        self, held: Held, start: int, stop: int, geometry: LevelGeometry, n_vectors: int
    ) -> Iterator[Piece]:
        """Cut rows ``start`` to ``stop``, of which ``held`` has the first, into pieces."""
        sums_a_row = 2 * n_vectors * geometry.n_tables
        streamed = max(1, self._piece_bytes // max(2 * geometry.width, sums_a_row))
        at_once = max(1, self._piece_bytes // sums_a_row)
        middle = start + held.n_rows
        for first in range(start, middle, at_once):
            last = min(first + at_once, middle)
            yield Piece(first, last, held.cells[first - start : last - start])
        for first in range(middle, stop, streamed):
            yield Piece(first, min(first + streamed, stop))

    def run(self, pieces: Iterator[Piece], job: tuple[Array, LevelGeometry, Array, Array]) -> Any:
        """Score pieces one after another: a generator that pauses behind each.

        Args:
            pieces: to score.
            job: cells, geometry, vectors, and sums uint16 (batch, rows, tables) to be written.

        Raises:
            DeviceFailed: the GPU does not work; some sums are not written.
        """
        the_job = _Job(*job)
        label = self.choose(len(the_job.vectors))
        packed: dict[int, Any] = {}
        try:
            for number, piece in enumerate(pieces):
                with self._working(), self._device:
                    lane = self._lanes[number % _N_LANES]
                    lane.finish()
                    with lane.stream:
                        if number < _N_LANES:
                            packed[number] = self._pack(label, the_job.vectors)
                        self._start(lane, label, packed[number % _N_LANES], piece, the_job)
                yield
            for lane in self._lanes:
                with self._working(), self._device:
                    lane.finish()
        finally:
            for lane in self._lanes:
                lane.abandon()

    def _start(self, lane: Lane, label: str, packed: Any, piece: Piece, job: _Job) -> None:
        """Start all steps of a piece on a lane, whose stream is the current one."""
        n_rows, n_vectors = piece.stop - piece.start, len(job.vectors)
        cells = piece.on_device
        if cells is None:
            cells = lane.on_device("cells", (n_rows, job.geometry.width))
            lane.upload(job.cells[piece.start : piece.stop], cells)
        sums = lane.on_device("sums", (n_vectors, n_rows, job.geometry.n_tables))
        self._multiply(label, packed, cells, job.geometry, sums)
        lane.download(sums, job.out[:, piece.start : piece.stop])

    def _pack(self, label: str, vectors: Array) -> Any:
        """Bring vectors to the GPU in the layout of a kernel: one array for each launch."""
        if label == FLOAT64:
            return self._cupy.asarray(vectors).astype(np.float64)
        kernel = find_kernel(label)
        size = kernel.vectors_at_once or len(vectors)
        return [
            (min(size, len(vectors) - at), self._cupy.asarray(kernel.pack(vectors[at : at + size])))
            for at in range(0, len(vectors), size)
        ]

    def _multiply(
        self, label: str, packed: Any, cells: Any, geometry: LevelGeometry, sums: Any
    ) -> None:
        """Launch the kernel of ``label`` on the current stream: sums (batch, rows, tables)."""
        if label == FLOAT64:
            self._multiply_float64(packed, cells, geometry, sums)
            return
        kernel = find_kernel(label)
        function = self._function(kernel)
        at = 0
        for n_vectors, vectors in packed:
            part = sums[at : at + n_vectors]
            at += n_vectors
            sizes = (
                cells.shape[0], n_vectors, geometry.dedicated, geometry.table, geometry.n_tables,
            )  # fmt: skip
            function(
                (kernel.n_blocks(cells.shape[0], n_vectors),),
                (kernel.threads,),
                (cells, vectors, part, *(np.int32(size) for size in sizes)),
            )

    def _multiply_float64(
        self, vectors: Any, cells: Any, geometry: LevelGeometry, sums: Any
    ) -> None:
        """Multiply with the library: whole numbers below 2**53 are exact in float64."""
        at_once = max(1, self._piece_bytes // (8 * (geometry.width + 3 * len(vectors))))
        split = geometry.dedicated
        for start in range(0, cells.shape[0], at_once):
            wide = cells[start : start + at_once].astype(np.float64)
            shared = wide[:, :split] @ vectors[:, :split].T
            for g in range(geometry.n_tables):
                panel = slice(split + g * geometry.table, split + (g + 1) * geometry.table)
                total = shared + wide[:, panel] @ vectors[:, panel].T
                residues = (total.astype(np.uint64) % np.uint64(P)).astype(np.uint16)
                sums[:, start : start + at_once, g] = residues.T

    # --- kernels

    def choose(self, n_vectors: int) -> str:
        """Return the label of what multiplies ``n_vectors`` best."""
        return self.table[batch_class(n_vectors)]

    def _function(self, kernel: Kernel) -> Any:
        function = self._kernels.get(kernel.label)
        if function is None:
            module = self._cupy.RawModule(
                code=read_source(kernel.entry), options=("-std=c++17", *kernel.options())
            )
            function = self._kernels[kernel.label] = module.get_function(kernel.entry)
        return function

    def multiply_alone(
        self, label: str, cells: Any, geometry: LevelGeometry, vectors: Array, sums: Any = None
    ) -> Callable[[], Any]:
        """Return what launches one kernel over device cells, for tuning and for measuring.

        Args:
            label: of the kernel.
            cells: device uint16 (rows, columns), rows at least 1.
            geometry: panels.
            vectors: uint16 (batch, columns), below p.
            sums: device uint16 (batch, rows, tables) to write; None makes an array.

        Returns:
            a launch, which returns the sums.

        Raises:
            DeviceFailed: the GPU does not work.
        """
        with self._working(), self._device:
            packed = self._pack(label, vectors)
            if sums is None:
                shape = (len(vectors), cells.shape[0], geometry.n_tables)
                sums = self._cupy.empty(shape, np.uint16)
            # What is not written cannot pass for right.
            sums.fill(_POISON)

        def launch() -> Any:
            self._multiply(label, packed, cells, geometry, sums)
            return sums

        return launch

    def is_right(self, label: str) -> bool:
        """Prove a kernel on this GPU, bit for bit against the reference, before it is used.

        Raises:
            DeviceFailed: the GPU itself does not work.
        """
        if label not in self._proved:
            try:
                self._proved[label] = self._is_right(label)
            except self._cupy.cuda.compiler.CompileException:
                self._proved[label] = False
            if not self._proved[label]:
                self._report(f"{self.name}: kernel {label} is not right here and is left out")
        return self._proved[label]

    def _is_right(self, label: str) -> bool:
        geometry = _PROOF_GEOMETRY
        # Every bit of a cell in every place, without dice.
        steps = np.arange(_PROOF_ROWS * geometry.width, dtype=np.uint64)
        cells = (steps * 40503 % P).astype(np.uint16).reshape(_PROOF_ROWS, -1)
        cells[1] = P - 1
        for n_vectors in (1, 19):
            steps = np.arange(n_vectors * geometry.width, dtype=np.uint64)
            vectors = (steps * 27644437 % P).astype(np.uint16).reshape(n_vectors, -1)
            vectors[0] = P - 1
            with self._working(), self._device:
                launch = self.multiply_alone(label, self._cupy.asarray(cells), geometry, vectors)
                found = self._cupy.asnumpy(launch())
            if not np.array_equal(found, NumpyEngine().score(cells, geometry, vectors)):
                return False
        return True

    def _make_table(self, stored: object) -> dict[int, str]:
        table = read_table(stored, self.capability)
        if table is not None and all(self.is_right(label) for label in table.values()):
            return table
        return self._tune()

    def _tune(self) -> dict[int, str]:
        """Time what may be used for each class of batches and take the fastest that is right."""
        geometry = _TUNING_GEOMETRY
        n_rows = min(_TUNING_BYTES, self.room() // 2) // (2 * geometry.width)
        table = {}
        cells = None
        for size in BATCH_CLASSES:
            labels = [
                label for label in usable_labels(size, self.capability) if self.is_right(label)
            ]
            if not labels and not self.is_right(FLOAT64):
                raise DeviceFailed(self, "no kernel computes what it should")
            if len(labels) < 2 or n_rows < size:
                table[size] = (labels or [FLOAT64])[0]
                if DEFAULT_TABLE[size] in labels:
                    table[size] = DEFAULT_TABLE[size]
                continue
            vectors = np.zeros((size, geometry.width), np.uint16)
            with self._working(), self._device:
                if cells is None:
                    cells = self._cupy.zeros((n_rows, geometry.width), np.uint16)
                spent = {
                    label: self.seconds(
                        self.multiply_alone(label, cells, geometry, vectors), _TUNING_RUNS
                    )
                    for label in labels
                }
            table[size] = min(spent, key=spent.__getitem__)
        return table

    def seconds(self, launch: Callable[[], Any], n_runs: int) -> float:
        """Return the shortest time of ``n_runs`` launches, by the clock of the GPU, in seconds.

        Raises:
            DeviceFailed: the GPU does not work.
        """
        with self._working(), self._device:
            launch()
            times = []
            for _ in range(n_runs):
                begin, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
                begin.record()
                launch()
                end.record()
                end.synchronize()
                times.append(self._cupy.cuda.get_elapsed_time(begin, end) / 1000)
        return float(min(times))

    # --- faults

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Turn the library's errors into ``DeviceFailed``.

        A kernel that does not compile is no fault of the GPU and goes through.
        """
        try:
            yield
        except (DeviceFailed, ParameterError):
            raise
        except MemoryError as error:
            raise DeviceFailed(self, _first_line(error), is_memory=True) from error
        except RuntimeError as error:
            # Page-locked memory ends with an error of its own.
            is_memory = "cudaErrorMemoryAllocation" in str(error)
            raise DeviceFailed(self, _first_line(error), is_memory=is_memory) from error

    def stored_table(self) -> dict[str, str]:
        """Return the table in the form that ``stored_tables`` takes, fit for JSON."""
        return {str(size): label for size, label in self.table.items()}


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
