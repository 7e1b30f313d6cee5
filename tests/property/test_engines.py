"""Every engine gives the same bits, and those of plain integers, on any shape that fits."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mksearch.errors import ParameterError
from mksearch.index.geometry import LevelGeometry
from mksearch.params import P
from mksearch.scoring.cpu import CpuEngine
from mksearch.scoring.engine import AUTO, ENGINES, Engine, make_engine, score_levels
from mksearch.scoring.reference import NumpyEngine
from mksearch_server.ray_engine import RayEngine
from tests.gpu.engines import require_engine, the_gpu_engine, the_shimmed_engine
from tests.support.shards import Stored, has_ray, ray_engines, thread_engine, write_segment

NUMPY, CPU = NumpyEngine(), CpuEngine()
Array = NDArray[np.uint16]
#: The GPU engine's code on the processor is slow: it takes part below so many products.
SHIMMED_PRODUCTS_MAX = 200_000


#: Rows are cut into so many runs.
SHARDS = (1, 2, 5)


@functools.cache
def the_shards() -> tuple[Path, dict[int, RayEngine]]:
    """Return a store and engines of 1, 2 and 5 shards on a thread of this process."""
    folder = Path(tempfile.mkdtemp(prefix="mksearch-shards-"))
    return folder, {n: thread_engine(folder, n)[0] for n in SHARDS}


@pytest.fixture(scope="module", autouse=True)
def _ending() -> Iterator[None]:
    yield
    if the_shards.cache_info().currsize:
        folder, engines = the_shards()
        for engine in engines.values():
            engine.close()
        shutil.rmtree(folder)
        the_shards.cache_clear()


@pytest.fixture(params=["numpy", "cpu", "cuda", "shimmed", "shards", "ray"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Give every engine: "cuda" needs a GPU, "ray" Ray; two more are their code without."""
    simple: dict[str, Engine] = {"numpy": NUMPY, "cpu": CPU}
    name: str = request.param
    if name == "shards":
        return the_shards()[1][5]
    if name == "ray":
        if not has_ray():
            pytest.skip("Ray is not installed")
        return next(iter(ray_engines()[1].values()))
    return simple[name] if name in simple else require_engine(name)


GEOMETRIES = st.builds(
    LevelGeometry,
    st.sampled_from([64, 128, 192, 320, 512]),
    st.sampled_from([64, 128, 192, 320, 512]),
    st.integers(1, 8),
)


def draw_elements(seed: int, *shape: int, largest: int = P - 1) -> Array:
    return np.random.default_rng(seed).integers(0, largest + 1, shape, np.uint16)


def in_plain_integers(cells: Array, geometry: LevelGeometry, vectors: Array) -> Array:
    """Compute the definition with Python's integers: dedicated columns and one table, modulo p."""
    wide_cells, wide_vectors = cells.astype(object), vectors.astype(object)
    tables = geometry.table_of(np.arange(geometry.width))
    sums = np.empty((len(vectors), len(cells), geometry.n_tables), np.uint16)
    for g in range(geometry.n_tables):
        columns = (tables == -1) | (tables == g)
        sums[:, :, g] = wide_vectors[:, columns] @ wide_cells[:, columns].T % P
    return sums


def assert_equal_everywhere(cells: Array, geometry: LevelGeometry, vectors: Array) -> Array:
    reference = NUMPY.score(cells, geometry, vectors)
    engines: list[Engine | None] = [NUMPY, CPU, the_gpu_engine()]
    engines += the_shards()[1].values()
    if has_ray():
        engines += ray_engines()[1].values()
    if cells.size * len(vectors) <= SHIMMED_PRODUCTS_MAX:
        engines.append(the_shimmed_engine())
    for engine in engines:
        if engine is not None:
            sums = engine.score(cells, geometry, vectors)
            assert sums.dtype == np.uint16
            assert sums.shape == (len(vectors), len(cells), geometry.n_tables)
            np.testing.assert_array_equal(sums, reference, err_msg=engine.name)
    return reference


@given(
    geometry=GEOMETRIES,
    n_rows=st.integers(1, 150),
    n_vectors=st.integers(1, 19),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=80, deadline=None)
def test_engines_are_equal_bit_for_bit_on_any_shape(
    geometry: LevelGeometry, n_rows: int, n_vectors: int, seed: int
) -> None:
    cells = draw_elements(seed, n_rows, geometry.width)
    vectors = draw_elements(seed + 1, n_vectors, geometry.width)

    assert_equal_everywhere(cells, geometry, vectors)


@given(
    n_tables=st.integers(1, 8),
    n_rows=st.integers(1, 9),
    n_vectors=st.integers(1, 10),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=25, deadline=None)
def test_engines_compute_what_plain_integers_give(
    n_tables: int, n_rows: int, n_vectors: int, seed: int
) -> None:
    geometry = LevelGeometry(128, 64, n_tables)
    cells = draw_elements(seed, n_rows, geometry.width)
    vectors = draw_elements(seed + 1, n_vectors, geometry.width)

    sums = assert_equal_everywhere(cells, geometry, vectors)

    np.testing.assert_array_equal(sums, in_plain_integers(cells, geometry, vectors))


@given(
    geometry=GEOMETRIES,
    blocks=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    n_vectors=st.lists(st.sampled_from([1, 2, 4]), min_size=6, max_size=6),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=40, deadline=None)
def test_several_segments_in_one_pass_are_scored_as_one_after_another(
    geometry: LevelGeometry, blocks: list[int], n_vectors: list[int], seed: int
) -> None:
    # All with as many vectors, as segments of one group have them, and then each with its own.
    for counts in ([n_vectors[0]] * len(blocks), n_vectors):
        levels = []
        for number, (n_blocks, count) in enumerate(zip(blocks, counts, strict=False)):
            # A mapped file is never written, and its array does not begin at the file's first byte.
            cells = draw_elements(seed + number, 8 * n_blocks + 1, geometry.width)[1:]
            cells.flags.writeable = False
            vectors = draw_elements(seed + 100 + number, count, geometry.width)
            levels.append(((bytes([number]), 0), cells, vectors))

        alone = [NUMPY.score(cells, geometry, vectors) for _, cells, vectors in levels]
        for engine in (CPU, NUMPY):
            for found, wanted in zip(score_levels(engine, levels, geometry), alone, strict=True):
                np.testing.assert_array_equal(found, wanted, err_msg=engine.name)


@pytest.mark.parametrize("n_tables", [1, 3, 8])
@pytest.mark.parametrize("width", [64, 512, 8192])
def test_the_largest_elements_in_the_widest_panels_do_not_overflow(
    width: int, n_tables: int
) -> None:
    geometry = LevelGeometry(width, width, n_tables)
    cells = np.full((3, geometry.width), P - 1, np.uint16)
    vectors = np.full((9, geometry.width), P - 1, np.uint16)

    sums = assert_equal_everywhere(cells, geometry, vectors)

    # (p - 1) ** 2 is 1 modulo p, once for every column of the two panels.
    assert (sums == 2 * width % P).all()


@given(seed=st.integers(0, 2**32 - 1), n_tables=st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_engines_are_equal_where_elements_are_extreme(seed: int, n_tables: int) -> None:
    geometry = LevelGeometry(64, 192, n_tables)
    extremes = np.array([0, 1, P // 2, P - 2, P - 1, 32767, 32768], np.uint16)
    draw = np.random.default_rng(seed)
    cells = draw.choice(extremes, (17, geometry.width))
    vectors = draw.choice(extremes, (11, geometry.width))

    sums = assert_equal_everywhere(cells, geometry, vectors)

    np.testing.assert_array_equal(sums, in_plain_integers(cells, geometry, vectors))


def test_a_zero_query_and_zero_cells_give_zero() -> None:
    geometry = LevelGeometry(64, 64, 3)
    some = draw_elements(1, 5, geometry.width)
    none = np.zeros((5, geometry.width), np.uint16)

    assert not assert_equal_everywhere(some, geometry, none).any()
    assert not assert_equal_everywhere(none, geometry, some).any()


def test_no_rows_give_no_sums() -> None:
    geometry = LevelGeometry(64, 64, 2)
    cells = np.zeros((0, geometry.width), np.uint16)

    sums = assert_equal_everywhere(cells, geometry, draw_elements(1, 2, geometry.width))

    assert sums.shape == (2, 0, 2)


def test_one_vector_gives_what_it_gives_in_a_batch() -> None:
    geometry = LevelGeometry(128, 64, 3)
    cells = draw_elements(1, 65, geometry.width)
    vectors = draw_elements(2, 21, geometry.width)

    together = assert_equal_everywhere(cells, geometry, vectors)

    for number in range(21):
        alone = assert_equal_everywhere(cells, geometry, vectors[number : number + 1])
        np.testing.assert_array_equal(alone[0], together[number])


# --- where the cells lie --------------------------------------------------------------------------


def test_cells_of_a_mapped_file_that_may_only_be_read_are_scored(
    engine: Engine, tmp_path: Path
) -> None:
    geometry = LevelGeometry(64, 64, 3)
    cells = draw_elements(1, 24, geometry.width)
    path = tmp_path / "cells"
    path.write_bytes(b"\0" * 4096 + cells.astype("<u2").tobytes())
    mapped = np.memmap(path, "<u2", "r", offset=4096, shape=cells.shape)
    vectors = draw_elements(2, 2, geometry.width)
    vectors.flags.writeable = False

    sums = engine.score(mapped, geometry, vectors)

    assert not mapped.flags.writeable
    np.testing.assert_array_equal(sums, NUMPY.score(cells, geometry, vectors))
    assert path.read_bytes()[4096:] == cells.astype("<u2").tobytes()


VIEWS: dict[str, Callable[[Array], Array]] = {
    "every second row": lambda array: np.repeat(array, 2, axis=0)[::2],
    "every second column": lambda array: np.repeat(array, 2, axis=1)[:, ::2],
    "column by column": np.asfortranarray,
    "backwards": lambda array: np.ascontiguousarray(array[::-1, ::-1])[::-1, ::-1],
    "at an odd address": lambda array: _at_an_odd_address(array),
}


def _at_an_odd_address(array: Array) -> Array:
    room = np.zeros(array.nbytes + 1, np.uint8)
    view = room[1:].view(np.uint16).reshape(array.shape)
    view[...] = array
    return view


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_views_that_are_not_contiguous_are_scored_as_their_copies(
    view: Callable[[Array], Array],
) -> None:
    geometry = LevelGeometry(64, 128, 2)
    cells = draw_elements(1, 9, geometry.width)
    vectors = draw_elements(2, 3, geometry.width)

    sums = assert_equal_everywhere(view(cells), geometry, view(vectors))

    np.testing.assert_array_equal(sums, in_plain_integers(cells, geometry, vectors))


def test_scoring_changes_neither_cells_nor_vectors(engine: Engine) -> None:
    geometry = LevelGeometry(64, 64, 1)
    cells, vectors = draw_elements(1, 9, 128), draw_elements(2, 2, 128)
    before = cells.copy(), vectors.copy()

    engine.score(cells, geometry, vectors)

    np.testing.assert_array_equal(cells, before[0])
    np.testing.assert_array_equal(vectors, before[1])


# --- rows that shards find where they lie ---------------------------------------------------------


@pytest.fixture(params=["shards", "ray"])
def sharded(request: pytest.FixtureRequest) -> tuple[Path, dict[int, RayEngine]]:
    """Give a store and engines over its segments, by their number of shards."""
    if request.param == "shards":
        return the_shards()
    if not has_ray():
        pytest.skip("Ray is not installed")
    return ray_engines()


def assert_equal_on_shards(stored: Stored, engines: dict[int, RayEngine], vectors: Array) -> None:
    for level, geometry in enumerate(stored.levels):
        cells = stored.reader.level(level)
        reference = NUMPY.score(cells, geometry, vectors)
        for n_shards, engine in engines.items():
            sums = engine.score_held((stored.id, level), cells, geometry, vectors)
            np.testing.assert_array_equal(sums, reference, err_msg=f"{n_shards} shards")


@pytest.mark.parametrize("n_rows", [1, 29, 1000])
@pytest.mark.parametrize("n_vectors", [1, 9])
def test_shards_of_a_stored_segment_give_the_bits_of_the_whole(
    sharded: tuple[Path, dict[int, RayEngine]], n_rows: int, n_vectors: int
) -> None:
    folder, engines = sharded
    geometry = LevelGeometry(64, 128, 3)
    stored = write_segment(folder, n_rows, geometry, seed=n_rows)

    assert_equal_on_shards(stored, engines, draw_elements(n_rows, n_vectors, geometry.width))


def test_twenty_thousand_equal_documents_get_the_same_sum_everywhere(
    sharded: tuple[Path, dict[int, RayEngine]],
) -> None:
    folder, engines = sharded
    geometry = LevelGeometry(64, 64, 1)
    stored = write_segment(folder, 20_000, geometry, are_equal=True)
    vectors = draw_elements(3, 2, geometry.width)

    assert_equal_on_shards(stored, engines, vectors)


def test_twenty_thousand_equal_rows_get_the_same_sum_from_every_engine(engine: Engine) -> None:
    geometry = LevelGeometry(64, 64, 1)
    row = draw_elements(1, 1, geometry.width)
    vectors = draw_elements(2, 1, geometry.width)

    sums = engine.score(np.repeat(row, 20_000, axis=0), geometry, vectors)

    assert (sums == in_plain_integers(row, geometry, vectors)).all()
    assert sums.shape == (1, 20_000, 1)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((2, 255), np.uint16),
        np.zeros((2, 257), np.uint16),
        np.zeros((2, 0), np.uint16),
        np.zeros(256, np.uint16),
        np.zeros((1, 2, 256), np.uint16),
        np.zeros((2, 256), np.uint32),
        np.zeros((2, 256), np.int16),
        np.zeros((2, 256), np.uint8),
        np.zeros((2, 256), np.float64),
        np.zeros((2, 256), ">u2"),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)
def test_a_wrong_shape_or_dtype_is_refused(engine: Engine, wrong: Array) -> None:
    geometry = LevelGeometry(64, 64, 3)
    right = np.zeros((2, 256), np.uint16)

    with pytest.raises(ParameterError):
        engine.score(wrong, geometry, right)
    with pytest.raises(ParameterError):
        engine.score(right, geometry, wrong)


@pytest.mark.parametrize("element", [P, P + 1, 65535])
@pytest.mark.parametrize("place", [(0, 0), (1, 100), (1, 127)])
def test_a_query_share_that_is_no_element_of_the_field_is_refused(
    engine: Engine, element: int, place: tuple[int, int]
) -> None:
    vectors = np.zeros((2, 128), np.uint16)
    vectors[place] = element

    with pytest.raises(ParameterError, match=str(P)):
        engine.score(np.zeros((3, 128), np.uint16), LevelGeometry(64, 64, 1), vectors)


def test_an_engine_is_found_by_its_name_and_an_unknown_one_refused_with_the_choice() -> None:
    assert make_engine("numpy").name == "numpy"
    assert make_engine("cpu").name == "cpu"
    with pytest.raises(ParameterError, match="abacus") as refused:
        make_engine("abacus")
    assert all(name in refused.value.cure for name in (*ENGINES, AUTO))


#: Instruction sets of older processors: the block of eight is another loop on each.
FEATURES = {"avx2": "+sse2,+avx2", "sse2": "+sse2", "no vectors": ""}
IN_ANOTHER_PROCESS = """
import numpy as np
from mksearch.index.geometry import LevelGeometry
from mksearch.scoring.cpu import CpuEngine
from mksearch.scoring.reference import NumpyEngine
draw = np.random.default_rng(7)
extremes = np.array([0, 1, 32760, 32761, 32767, 32768, 65519, 65520], np.uint16)
for geometry in (LevelGeometry(64, 64, 1), LevelGeometry(576, 320, 3)):
    uniform = lambda *shape: draw.integers(0, 65521, shape, np.uint16)
    extreme = lambda *shape: draw.choice(extremes, shape)
    for pick in (uniform, extreme):
        cells, vectors = pick(27, geometry.width), pick(11, geometry.width)
        assert (CpuEngine().score(cells, geometry, vectors)
                == NumpyEngine().score(cells, geometry, vectors)).all()
"""


@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES)
def test_kernels_for_older_processors_give_the_same_bits(tmp_path: Path, features: str) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("these are instruction sets of x86-64")
    compiled_for = {
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": features,
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    run = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS],
        env={**os.environ, **compiled_for},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
