"""A stream of a GPU with its buffers: what copies while another multiplies.

The CuPy module is an argument, never imported here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Lane"]

Array = NDArray[np.uint16]


class Lane:
    """A stream and its buffers, which grow to what was needed."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self._buffers: dict[str, Any] = {}
        self._pending: tuple[Array, Array] | None = None

    def pinned(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return page-locked host memory as uint16 of ``shape``; its content is lost."""
        count = int(np.prod(shape))
        memory = self._buffers.get(name)
        if memory is None or len(memory) < 2 * count:
            self._buffers.pop(name, None)
            memory = self._buffers[name] = memoryview(
                self._cupy.cuda.alloc_pinned_memory(2 * count)
            )
        return np.frombuffer(memory, np.uint16, count).reshape(shape)

    def on_device(self, name: str, shape: tuple[int, ...]) -> Any:
        """Return a device buffer as uint16 of ``shape``; its content is lost."""
        count = int(np.prod(shape))
        memory = self._buffers.get(name)
        if memory is None or memory.size < count:
            self._buffers.pop(name, None)
            memory = self._buffers[name] = self._cupy.empty((count,), np.uint16)
        return memory[:count].reshape(shape)

    def upload(self, rows: Array, target: Any) -> None:
        """Start to copy mapped rows into a device array; the lane was finished before."""
        staged = self.pinned("cells from", rows.shape)
        np.copyto(staged, rows)
        target.data.copy_from_host_async(staged.ctypes.data, staged.nbytes, self.stream)

    def download(self, sums: Any, target: Array) -> None:
        """Start to copy sums to the host; ``finish`` brings them to ``target``."""
        staged = self.pinned("sums to", sums.shape)
        sums.data.copy_to_host_async(staged.ctypes.data, staged.nbytes, self.stream)
        self._pending = staged, target

    def finish(self) -> None:
        """Wait for everything that was started, and hand out what came."""
        self.stream.synchronize()
        if self._pending is not None:
            staged, target = self._pending
            self._pending = None
            np.copyto(target, staged)

    def drop_buffers(self) -> None:
        """Wait for everything that was started, and give the buffers back."""
        self.stream.synchronize()
        self._pending = None
        self._buffers.clear()

    def abandon(self) -> None:
        """Forget what was started: nothing is handed out."""
        self._pending = None
