"""The GPU engine for tests that run over every engine: on a GPU, and on the processor."""

from __future__ import annotations

import functools
import os

import pytest

from mksearch import __version__
from mksearch.errors import EngineUnavailable
from mksearch.scoring.cuda import CudaEngine
from mksearch.scoring.cuda_kernels import DEFAULT_TABLE
from tests.gpu.fake_cupy import FakeCupy
from tests.gpu.on_cpu import compiler

__all__ = ["require_engine", "the_gpu_engine", "the_shimmed_engine"]

#: Set to 1 on a machine with a GPU: what would be skipped there fails.
REQUIRE = "MKSEARCH_REQUIRE_GPU"


@functools.cache
def the_gpu_engine() -> CudaEngine | None:
    """Return the engine on the GPUs of this machine, None without any.

    Raises:
        EngineUnavailable: there is none, and MKSEARCH_REQUIRE_GPU is 1.
    """
    try:
        return CudaEngine()
    except EngineUnavailable:
        if os.environ.get(REQUIRE) == "1":
            raise
        return None


@functools.cache
def the_shimmed_engine() -> CudaEngine | None:
    """Return the same code on the processor, None without a compiler."""
    if compiler() is None:
        return None
    table = {str(size): label for size, label in DEFAULT_TABLE.items()}
    stored = {f"Processor, 90, mksearch {__version__}": table}
    return CudaEngine(cupy=FakeCupy(1 << 30, 1 << 30), memory_bytes=1 << 21, stored_tables=stored)


def require_engine(name: str) -> CudaEngine:
    """Return "cuda" or "shimmed"; skip the test where it cannot be."""
    engine = the_gpu_engine() if name == "cuda" else the_shimmed_engine()
    if engine is None:
        pytest.skip("no GPU here" if name == "cuda" else "g++ is not installed")
    return engine
