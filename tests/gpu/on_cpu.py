"""Compile a kernel of the GPU engine with g++ and run it on the processor."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mksearch.scoring.cuda_kernels import Kernel, find_kernel, read_source

__all__ = ["KernelFault", "compiler", "run_kernel"]

Array = NDArray[np.uint16]
HERE = Path(__file__).resolve().parent

WRAPPER = """
#include "cpu_shim.h"
{source}
static const uint4 *the_cells, *the_vectors;
static unsigned short* the_sums;
static int n[5];
static void body()
{{
    {entry}(the_cells, the_vectors, the_sums, n[0], n[1], n[2], n[3], n[4]);
}}
extern "C" const char* run(unsigned blocks, unsigned threads, const void* cells, size_t cell_bytes,
                           const void* vectors, size_t vector_bytes, unsigned short* sums,
                           const int* sizes)
{{
    const char *from = (const char*)cells, *others = (const char*)vectors;
    on_cpu::inputs = {{{{from, from + cell_bytes}}, {{others, others + vector_bytes}}}};
    the_cells = (const uint4*)cells;
    the_vectors = (const uint4*)vectors;
    the_sums = sums;
    memcpy(n, sizes, sizeof n);
    return on_cpu::launch(blocks, threads, body);
}}
"""


class KernelFault(Exception):
    """A kernel did what a GPU would do undefined things for."""


def compiler() -> str | None:
    """Return the C++ compiler, None where there is none."""
    return shutil.which("g++")


@functools.cache
def _library(label: str, source: str) -> ctypes.CDLL:
    """Compile a kernel; the folder goes at once, the code stays in memory."""
    kernel = find_kernel(label)
    with tempfile.TemporaryDirectory() as folder:
        wrapper, built = Path(folder) / "kernel.cpp", Path(folder) / "kernel.so"
        wrapper.write_text(WRAPPER.format(source=source, entry=kernel.entry), encoding="utf-8")
        command = [
            compiler() or "g++", "-std=c++17", "-O2", "-fno-strict-aliasing", "-shared", "-fPIC",
            f"-I{HERE}", *kernel.options(), "-o", str(built), str(wrapper),
        ]  # fmt: skip
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise KernelFault(done.stderr)
        library = ctypes.CDLL(str(built))
    library.run.restype = ctypes.c_char_p
    return library


def run_kernel(
    kernel: Kernel,
    cells: Array,
    packed: Array,
    sums: Array,
    sizes: tuple[int, int, int, int, int],
    *,
    source: str | None = None,
) -> None:
    """Launch a kernel.

    Args:
        kernel: compiled at its first launch.
        cells: uint16 (rows, columns).
        packed: what ``kernel.pack`` gave.
        sums: uint16 (batch, rows, tables), written.
        sizes: rows, vectors, dedicated, table, tables.
        source: another text than the shipped one.

    Raises:
        KernelFault: it does not compile, reads outside of its inputs, overflows, or a warp parts.
    """
    library = _library(kernel.label, read_source(kernel.entry) if source is None else source)
    n_rows, n_vectors = sizes[:2]
    fault = library.run(
        ctypes.c_uint(kernel.n_blocks(n_rows, n_vectors)),
        ctypes.c_uint(kernel.threads),
        ctypes.c_void_p(cells.ctypes.data),
        ctypes.c_size_t(cells.nbytes),
        ctypes.c_void_p(packed.ctypes.data),
        ctypes.c_size_t(packed.nbytes),
        ctypes.c_void_p(sums.ctypes.data),
        (ctypes.c_int * 5)(*sizes),
    )
    if fault:
        raise KernelFault(fault.decode())
