"""As much of CuPy as the engine calls, on the processor: what is ours around a GPU can be tested.

Kernels are the shipped sources, compiled with g++ (``on_cpu``).  What a stream is given waits until
somebody synchronises, as late as CUDA may do it: who reads or reuses a buffer too early is found.
Memory is counted.  Nothing that holds here is a claim about a GPU or about CuPy.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

import numpy as np

from mksearch.scoring.cuda_kernels import CANDIDATES, FLOAT64, find_kernel
from tests.gpu.on_cpu import run_kernel

__all__ = ["CUDARuntimeError", "CompileException", "FakeArray", "FakeCupy"]


class CUDARuntimeError(RuntimeError):
    """What CuPy raises for an error of CUDA."""


class CompileException(Exception):
    """What CuPy raises for a source that does not compile."""


class _Pointer:
    def __init__(self, array: FakeArray) -> None:
        self._array = array

    def copy_from_host_async(self, address: int, n_bytes: int, stream: _Stream) -> None:
        array = self._array
        assert n_bytes == array.nbytes
        array.gpu.require_pinned(address, n_bytes)
        stream.later(lambda: ctypes.memmove(array.ctypes.data, address, n_bytes))

    def copy_to_host_async(self, address: int, n_bytes: int, stream: _Stream) -> None:
        array = self._array
        assert n_bytes == array.nbytes
        array.gpu.require_pinned(address, n_bytes)
        stream.later(lambda: ctypes.memmove(address, array.ctypes.data, n_bytes))


class FakeArray(np.ndarray[Any, Any]):
    """Memory of a GPU."""

    gpu: FakeCupy

    def __array_finalize__(self, other: Any) -> None:
        if isinstance(other, FakeArray):
            self.gpu = other.gpu

    @property
    def data(self) -> Any:
        assert self.flags.c_contiguous
        return _Pointer(self)

    def astype(self, *arguments: Any, **options: Any) -> Any:
        self.gpu.current.run()
        return super().astype(*arguments, **options)


class _Stream:
    def __init__(self, cupy: FakeCupy, *, non_blocking: bool = False) -> None:
        assert non_blocking
        self._cupy = cupy
        self._steps: list[Callable[[], Any]] = []
        self._outer: list[_Stream] = []
        self._number = cupy.device_number

    def later(self, step: Callable[[], Any]) -> None:
        self._cupy.meet_fault(self._number)
        self._steps.append(step)

    def run(self) -> None:
        steps, self._steps = self._steps, []
        for step in steps:
            step()

    def synchronize(self) -> None:
        self._cupy.meet_fault(self._number)
        self.run()

    def __enter__(self) -> Self:
        self._outer.append(self._cupy.current)
        self._cupy.current = self
        return self

    def __exit__(self, *_: object) -> None:
        self._cupy.current = self._outer.pop()


class _AtOnce(_Stream):
    """The default stream."""

    def later(self, step: Callable[[], Any]) -> None:
        self._cupy.meet_fault(self._cupy.device_number)
        step()


class _Device:
    def __init__(self, cupy: FakeCupy, number: int) -> None:
        self._cupy = cupy
        self.id = number
        self.compute_capability = cupy.capability
        self._outer: list[int] = []

    @property
    def mem_info(self) -> tuple[int, int]:
        self._cupy.meet_fault(self.id)
        total = self._cupy.memory[self.id]
        return total - self._cupy.used[self.id], total

    def __enter__(self) -> Self:
        self._outer.append(self._cupy.device_number)
        self._cupy.device_number = self.id
        return self

    def __exit__(self, *_: object) -> None:
        self._cupy.device_number = self._outer.pop()


class _Event:
    def record(self) -> None:
        """Do nothing: there is no clock here."""

    def synchronize(self) -> None:
        """Do nothing."""


class FakeCupy:
    """The module.

    Attributes:
        memory: bytes of each GPU.
        used: bytes of each that are taken.
        peak: the most that was ever taken of each.
        launches: labels of kernels that ran, and the GPU of each.
        uploaded: bytes that went to GPUs from page-locked memory.
        broken: numbers of GPUs that fail at whatever they are asked.
        fails_after: steps on streams until GPU 0 breaks, None for never.
        wrong: labels of kernels that compute something else here.
    """

    ndarray = FakeArray

    def __init__(self, *memory: int, capability: str = "90", no_driver: bool = False) -> None:
        self.memory = list(memory)
        self.used = [0] * len(memory)
        self.peak = [0] * len(memory)
        self.capability = capability
        self.launches: list[tuple[str, int]] = []
        self.broken: set[int] = set()
        self.fails_after: int | None = None
        self.wrong: set[str] = set()
        self.device_number = 0
        self._pinned: dict[int, int] = {}
        self.uploaded = 0
        self.current: _Stream = _AtOnce(self, non_blocking=True)

        def count() -> int:
            if no_driver:
                raise CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver is too old")
            return len(self.memory)

        self.cuda = SimpleNamespace(
            Device=lambda number: _Device(self, number),
            Stream=lambda **options: _Stream(self, **options),
            Event=_Event,
            get_elapsed_time=lambda _begin, _end: 1.0,
            alloc_pinned_memory=self._alloc_pinned,
            compiler=SimpleNamespace(CompileException=CompileException),
            runtime=SimpleNamespace(
                getDeviceCount=count,
                getDeviceProperties=lambda _: {"name": b"Processor"},
            ),
        )

    def meet_fault(self, number: int) -> None:
        if self.fails_after is not None and number == 0:
            self.fails_after -= 1
            if self.fails_after < 0:
                self.broken.add(0)
        if number in self.broken:
            raise CUDARuntimeError("cudaErrorECCUncorrectable: uncorrectable ECC error\nmore")

    def _alloc_pinned(self, n_bytes: int) -> memoryview:
        memory = bytearray(n_bytes)
        view = memoryview(memory)
        self._pinned[np.frombuffer(view, np.uint8).ctypes.data] = n_bytes
        return view

    def require_pinned(self, address: int, n_bytes: int) -> None:
        assert any(
            start <= address and address + n_bytes <= start + size
            for start, size in self._pinned.items()
        ), "a copy is not from or to page-locked memory"
        self.uploaded += n_bytes

    def empty(self, shape: tuple[int, ...], dtype: Any) -> FakeArray:
        number = self.device_number
        self.meet_fault(number)
        n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if self.used[number] + n_bytes > self.memory[number]:
            raise MemoryError(f"out of memory allocating {n_bytes} bytes")
        self.used[number] += n_bytes
        self.peak[number] = max(self.peak[number], self.used[number])
        room = np.full(int(np.prod(shape)) + 32 // np.dtype(dtype).itemsize, 0xAB, dtype)
        start = -room.ctypes.data % 16 // room.itemsize
        array = room[start : start + int(np.prod(shape))].reshape(shape).view(FakeArray)
        array.gpu = self
        # Views go on living with the room that they look into.
        weakref.finalize(room, self._freed, number, n_bytes)
        return array

    def _freed(self, number: int, n_bytes: int) -> None:
        self.used[number] -= n_bytes

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> FakeArray:
        array = self.empty(shape, dtype)
        array[...] = 0
        return array

    def asarray(self, array: Any) -> FakeArray:
        copy = self.empty(array.shape, array.dtype)
        copy[...] = array
        return copy

    def asnumpy(self, array: FakeArray) -> Any:
        self.current.run()
        return np.array(array, subok=False)

    def get_default_memory_pool(self) -> Any:
        return SimpleNamespace(free_bytes=lambda: 0, free_all_blocks=lambda: None)

    def RawModule(self, *, code: str, options: tuple[str, ...]) -> Any:  # noqa: N802
        """Find the kernel whose constants are asked for; compile this very source."""
        labels = {label for labels in CANDIDATES.values() for label in labels} - {FLOAT64}
        (kernel,) = [
            kernel
            for kernel in map(find_kernel, labels)
            if kernel.options() == options[1:] and f" {kernel.entry}(" in code
        ]

        def launch(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
            cells, packed, sums, *sizes = arguments
            assert grid == (kernel.n_blocks(int(sizes[0]), int(sizes[1])),)
            assert block == (kernel.threads,)
            assert all(type(size) is np.int32 for size in sizes)
            assert cells.flags.c_contiguous
            assert sums.flags.c_contiguous
            a, b, c, d, e = map(int, sizes)
            number = self.device_number

            def compute() -> None:
                self.launches.append((kernel.label, number))
                run_kernel(kernel, cells, packed, sums, (a, b, c, d, e), source=code)
                if kernel.label in self.wrong:
                    sums[...] ^= 1

            self.current.later(compute)

        return SimpleNamespace(get_function=lambda _name: launch)
