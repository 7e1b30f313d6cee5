"""The shipped CUDA sources, run on the processor, give the bits of the reference engine.

This says that their arithmetic, their indices and the places that they write are right.  It says
nothing about a GPU: that is for ``tests/gpu/run_all.py``.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mksearch.errors import ParameterError
from mksearch.index.geometry import LevelGeometry
from mksearch.params import P
from mksearch.scoring import cuda_kernels
from mksearch.scoring.cuda_kernels import Kernel, find_kernel, read_source
from mksearch.scoring.reference import NumpyEngine
from tests.gpu.on_cpu import KernelFault, compiler, run_kernel

pytestmark = pytest.mark.skipif(compiler() is None, reason="g++ is not installed")

Array = NDArray[np.uint16]
POISON = 0xDEAD
GUARD = 4096
EXTREMES = np.array([0, 1, 255, 256, 32767, 32768, P - 2, P - 1], np.uint16)
#: The element whose bytes, with those of its 256-fold, are largest.
LARGEST_LIMBS = max(range(P), key=lambda q: 255 * (q & 255) + 254 * (256 * q % P & 255))
#: Every label that is ever chosen, and the constants that are only in reach.
LABELS = sorted(
    {label for labels in cuda_kernels.CANDIDATES.values() for label in labels}
    - {cuda_kernels.FLOAT64}
)
FEW = ("rows-8x2x8", "rows-32x2x4", "limbs-4x1", "limbs-2x4")


def aligned(array: Array) -> Array:
    """Copy to an address that is a multiple of 16, as memory of a GPU has."""
    room = np.empty(array.size + 8, np.uint16)
    start = (-room.ctypes.data % 16) // 2
    copy = room[start : start + array.size].reshape(array.shape)
    copy[...] = array
    return copy


def launch(
    kernel: Kernel,
    cells: Array,
    geometry: LevelGeometry,
    vectors: Array,
    *,
    source: str | None = None,
) -> Array:
    """Run a kernel over poisoned sums between two guards; prove that the guards are untouched."""
    n_sums = len(vectors) * len(cells) * geometry.n_tables
    room = np.full(n_sums + 2 * GUARD, POISON, np.uint16)
    sums = room[GUARD : GUARD + n_sums].reshape(len(vectors), len(cells), geometry.n_tables)
    sizes = (len(cells), len(vectors), geometry.dedicated, geometry.table, geometry.n_tables)
    run_kernel(kernel, aligned(cells), aligned(kernel.pack(vectors)), sums, sizes, source=source)
    assert (room[:GUARD] == POISON).all()
    assert (room[GUARD + n_sums :] == POISON).all()
    return sums


def assert_right(label: str, cells: Array, geometry: LevelGeometry, vectors: Array) -> None:
    sums = launch(find_kernel(label), cells, geometry, vectors)
    np.testing.assert_array_equal(sums, NumpyEngine().score(cells, geometry, vectors))


def n_vectors_of(label: str, wanted: int) -> int:
    return min(wanted, find_kernel(label).vectors_at_once or wanted)


def draw_elements(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(0, P, shape, np.uint16)


@pytest.mark.parametrize("label", LABELS)
def test_a_kernel_gives_the_bits_of_the_reference(label: str) -> None:
    geometry = LevelGeometry(192, 128, 3)

    for n_rows, wanted in ((1, 1), (70, 17)):
        n_vectors = n_vectors_of(label, wanted)
        cells = draw_elements(n_rows, n_rows, geometry.width)
        assert_right(label, cells, geometry, draw_elements(9, n_vectors, geometry.width))


@given(
    label=st.sampled_from(FEW),
    geometry=st.builds(
        LevelGeometry,
        st.sampled_from([64, 128, 192, 320, 512]),
        st.sampled_from([64, 128, 192, 320, 512]),
        st.integers(1, 8),
    ),
    n_rows=st.integers(1, 150),
    n_vectors=st.integers(1, 37),
    is_extreme=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=30, deadline=None)
def test_kernels_are_right_on_any_shape(
    label: str,
    geometry: LevelGeometry,
    n_rows: int,
    n_vectors: int,
    is_extreme: bool,
    seed: int,
) -> None:
    draw = np.random.default_rng(seed)
    shapes = (n_rows, geometry.width), (n_vectors_of(label, n_vectors), geometry.width)
    cells, vectors = (
        draw.choice(EXTREMES, shape) if is_extreme else draw.integers(0, P, shape, np.uint16)
        for shape in shapes
    )

    assert_right(label, cells, geometry, vectors)


@pytest.mark.parametrize("label", FEW)
@pytest.mark.parametrize("width", [64, 8256, 16448])
def test_the_largest_elements_in_wide_panels_do_not_overflow(label: str, width: int) -> None:
    geometry = LevelGeometry(width, width, 1)
    n_vectors = n_vectors_of(label, 5)
    cells = np.full((3, geometry.width), P - 1, np.uint16)
    vectors = np.full((n_vectors, geometry.width), P - 1, np.uint16)

    sums = launch(find_kernel(label), cells, geometry, vectors)

    # (p - 1) ** 2 is 1 modulo p, once for every column of the two panels.
    assert (sums == 2 * width % P).all()


@pytest.mark.parametrize("label", ["rows-8x2x1", "rows-32x4x2", "limbs-4x1"])
@pytest.mark.parametrize("byte", [0x00FF, 0xFF00, 0xFFEF])
def test_the_largest_bytes_do_not_overflow(label: str, byte: int) -> None:
    # The largest low bytes are not in the largest element.
    geometry = LevelGeometry(16448, 64, 1)
    cells = np.full((17, geometry.width), min(byte, P - 1), np.uint16)
    vectors = np.full((n_vectors_of(label, 3), geometry.width), min(byte, P - 1), np.uint16)

    assert_right(label, cells, geometry, vectors)


# --- these tests can fail -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "old", "new"),
    [
        ("rows-8x2x1", "#define STEPS 32", "#define STEPS 33"),
        ("rows-8x2x1", "first + r < n_rows && b", "b"),
        ("rows-8x2x1", "? first + r : n_rows - 1", "? first + r : n_rows"),
        ("rows-8x2x1", "shared[r][b] + total", "total"),
        ("rows-8x2x1", "LANES / 2;", "LANES / 4;"),
        ("limbs-4x4", "#define STEPS 512", "#define STEPS 520"),
        ("limbs-4x4", "r < n_rows && b < n_vectors", "b < n_vectors"),
        ("limbs-4x4", "r < n_rows && b < n_vectors", "r < n_rows"),
        ("limbs-4x4", "if (first_row >= n_rows)", "if (lane == 0)"),
        ("limbs-4x4", "right[n].z, right[n].w", "right[n].w, right[n].z"),
    ],
)
def test_a_fault_in_a_source_is_seen(label: str, old: str, new: str) -> None:
    kernel = find_kernel(label)
    source = read_source(kernel.entry)
    assert old in source
    geometry = LevelGeometry(16768, 64, 2)
    cells = draw_elements(1, 37, geometry.width)
    vectors = draw_elements(2, n_vectors_of(label, 5), geometry.width)
    # The largest sum of bytes in each of the kernels.
    cells[0] = 0xFEFF if kernel.entry == "limb_panels" else P - 1
    vectors[0] = LARGEST_LIMBS if kernel.entry == "limb_panels" else 0xFFEF
    expected = NumpyEngine().score(cells, geometry, vectors)

    try:
        sums = launch(kernel, cells, geometry, vectors, source=source.replace(old, new))
    except (KernelFault, AssertionError):
        pass
    else:
        assert (sums != expected).any()
    np.testing.assert_array_equal(launch(kernel, cells, geometry, vectors), expected)


# --- layouts and choice ---------------------------------------------------------------------------


def test_bytes_of_two_entries_lie_low_low_high_high() -> None:
    packed = find_kernel("rows-8x2x2").pack(np.array([[0x1234, 0x5678]], np.uint16))

    assert packed.tolist() == [[0x7834, 0x5612], [0, 0]]


def test_the_columns_of_a_vector_hold_it_and_its_256_fold() -> None:
    vectors = draw_elements(3, 5, 64)
    columns = find_kernel("limbs-4x2").pack(vectors).astype(np.int64)

    assert columns.shape == (16, 64)
    assert not columns[10:].any()
    low, high = columns[:10:2], columns[1:10:2]
    np.testing.assert_array_equal((low & 255) + 256 * (high & 255), vectors)
    np.testing.assert_array_equal(
        (low >> 8) + 256 * (high >> 8), vectors.astype(np.int64) * 256 % P
    )


def test_a_batch_is_of_the_smallest_class_that_holds_it() -> None:
    sizes = [cuda_kernels.batch_class(n) for n in (1, 2, 3, 4, 5, 9, 33, 64, 65, 4096)]

    assert sizes == [1, 2, 4, 4, 8, 16, 64, 64, 64, 64]


def test_every_choice_is_a_kernel_that_fits_its_class() -> None:
    for size in cuda_kernels.BATCH_CLASSES:
        assert cuda_kernels.DEFAULT_TABLE[size] in cuda_kernels.CANDIDATES[size]
        for label in set(cuda_kernels.CANDIDATES[size]) - {cuda_kernels.FLOAT64}:
            assert find_kernel(label).label == label


@pytest.mark.parametrize(
    "label", ["", "rows", "rows-8x2", "rows-7x2x1", "limbs-4x4x4", "limbs-3x4", "rows-8x2x1 "]
)
def test_an_unknown_label_is_refused(label: str) -> None:
    with pytest.raises(ParameterError, match="no GPU kernel"):
        find_kernel(label)


def test_a_stored_table_counts_only_if_all_of_it_can_be_used() -> None:
    stored: dict[str, object] = {str(k): v for k, v in cuda_kernels.DEFAULT_TABLE.items()}

    assert cuda_kernels.read_table(stored, 90) == cuda_kernels.DEFAULT_TABLE
    # Matrix units of bytes came with 8.0.
    assert cuda_kernels.read_table(stored, 75) is None
    unusable: tuple[object, ...] = (None, [], {}, stored | {"8": 5})
    for wrong in (*unusable, stored | {"8": 5}, stored | {"8": "rows-8x2x1; rm"}):
        assert cuda_kernels.read_table(wrong, 90) is None
    assert cuda_kernels.usable_labels(64, 75) == ("rows-8x2x8", cuda_kernels.FLOAT64)
    assert cuda_kernels.usable_labels(1, 52) == (cuda_kernels.FLOAT64,)
