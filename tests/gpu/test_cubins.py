"""The kernels compile for the GPUs that they are meant for: A100, H100 and H200, B200."""

from __future__ import annotations

import pytest

from mksearch.scoring.cuda_kernels import find_kernel, read_source
from tests.gpu.cubins import CompileFailed, compilers

COMPILERS = compilers()
ELF = b"\x7fELF"


def compile_with(name: str, source: str, *options: str) -> bytes:
    if name not in COMPILERS:
        pytest.skip(f"{name} is not installed")
    return COMPILERS[name](source, options)


@pytest.mark.parametrize("compiler", ["nvrtc", "nvcc"])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("label", ["rows-8x4x1", "rows-8x2x8", "limbs-2x4"])
def test_a_kernel_compiles(label: str, architecture: str, compiler: str) -> None:
    kernel = find_kernel(label)
    options = ("-std=c++17", f"-arch={architecture}", *kernel.options())

    cubin = compile_with(compiler, read_source(kernel.entry), *options)

    assert cubin.startswith(ELF)
    assert kernel.entry.encode() in cubin


@pytest.mark.parametrize("compiler", ["nvrtc", "nvcc"])
def test_a_source_that_does_not_compile_is_seen(compiler: str) -> None:
    with pytest.raises(CompileFailed, match="LANES"):
        compile_with(compiler, read_source("row_panels"), "-arch=sm_90")
