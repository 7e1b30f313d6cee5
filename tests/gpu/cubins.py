"""Compile a CUDA source for a GPU that is not there: with NVRTC, as CuPy does it, or with nvcc."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["CompileFailed", "compilers"]

Compile = Callable[[str, tuple[str, ...]], bytes]


class CompileFailed(Exception):
    """A source does not compile; the text is the compiler's."""


def compilers() -> dict[str, Compile]:
    """Return what compiles here, by name: "nvrtc", "nvcc", both or none."""
    found: dict[str, Compile] = {}
    library = _nvrtc()
    if library is not None:
        found["nvrtc"] = functools.partial(_with_nvrtc, library)
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is not None:
        found["nvcc"] = functools.partial(_with_nvcc, nvcc)
    return found


def _nvrtc() -> ctypes.CDLL | None:
    """Load NVRTC from the wheel nvidia-cuda-nvrtc (any release), which needs no driver."""
    for package in ("nvidia.cuda_nvrtc", "nvidia.cu13"):
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for folder in spec.submodule_search_locations or [] if spec else []:
            for path in sorted(Path(folder).glob("lib/libnvrtc.so.*")):
                return ctypes.CDLL(str(path))
    return None


def _with_nvrtc(library: ctypes.CDLL, source: str, options: tuple[str, ...]) -> bytes:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    made = library.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None
    )
    if made:
        raise CompileFailed(f"nvrtcCreateProgram gave {made}")
    words = [option.encode() for option in options]
    failed = library.nvrtcCompileProgram(
        program, len(words), (ctypes.c_char_p * len(words))(*words)
    )
    if failed:
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
        raise CompileFailed(log.value.decode())
    library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    library.nvrtcGetCUBIN(program, cubin)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return cubin.raw


def _with_nvcc(nvcc: str, source: str, options: tuple[str, ...]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        text, built = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
        text.write_text(source, encoding="utf-8")
        done = subprocess.run(
            [nvcc, "-cubin", "-o", str(built), *options, str(text)],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise CompileFailed(done.stderr)
        return built.read_bytes()
