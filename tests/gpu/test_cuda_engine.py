"""What is ours around a GPU: pieces, copies, what is held, choice of kernels, faults.

Over a stand-in for CuPy that computes with the shipped kernels on the processor.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mksearch.errors import EngineFailed, EngineUnavailable
from mksearch.index.geometry import LevelGeometry
from mksearch.params import P
from mksearch.scoring import cuda_device
from mksearch.scoring.cuda import CudaEngine
from mksearch.scoring.cuda_kernels import BATCH_CLASSES, DEFAULT_TABLE, FLOAT64
from mksearch.scoring.engine import FallbackEngine, HoldingEngine, make_engine
from mksearch.scoring.reference import NumpyEngine
from tests.gpu.fake_cupy import FakeCupy
from tests.gpu.on_cpu import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="g++ is not installed")

Array = NDArray[np.uint16]
GEOMETRY = LevelGeometry(128, 64, 3)
ROOMY = 1 << 30
KIND = "Processor, 90, mksearch "


def tables(*labels: str) -> dict[str, object]:
    """Give a stored table that names ``labels``, or the defaults, and saves the tuning."""
    from mksearch import __version__

    table = {str(size): label for size, label in DEFAULT_TABLE.items()}
    if labels:
        table = dict(zip(map(str, BATCH_CLASSES), labels, strict=True))
    return {KIND + __version__: table}


FLOATS = tables("rows-8x2x1", "rows-8x2x2", "rows-8x2x4", "rows-8x2x8", *[FLOAT64] * 3)


def make(*memory: int, **options: Any) -> tuple[CudaEngine, FakeCupy]:
    cupy = FakeCupy(*(memory or (ROOMY,)))
    options.setdefault("stored_tables", tables())
    engine = CudaEngine(cupy=cupy, **options)
    cupy.launches.clear()
    cupy.uploaded = 0
    return engine, cupy


def draw_elements(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(0, P, shape, np.uint16)


def level(n_rows: int, n_vectors: int, geometry: LevelGeometry = GEOMETRY) -> tuple[Array, Array]:
    return draw_elements(1, n_rows, geometry.width), draw_elements(2, n_vectors, geometry.width)


def assert_right(
    engine: HoldingEngine, cells: Array, vectors: Array, key: tuple[bytes, int] = (b"a", 0)
) -> None:
    expected = NumpyEngine().score(cells, GEOMETRY, vectors)
    np.testing.assert_array_equal(engine.score_held(key, cells, GEOMETRY, vectors), expected)


# --- pieces and copies ----------------------------------------------------------------------------


@given(
    n_rows=st.integers(0, 300),
    n_vectors=st.integers(1, 20),
    n_gpus=st.integers(1, 2),
    memory=st.sampled_from([1 << 20, 1 << 21, 1 << 23]),
    is_held=st.booleans(),
    is_float=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_any_cut_into_pieces_gives_the_bits_of_the_reference(
    n_rows: int, n_vectors: int, n_gpus: int, memory: int, is_held: bool, is_float: bool
) -> None:
    engine, _ = make(
        *[ROOMY] * n_gpus,
        memory_bytes=memory,
        stored_tables=FLOATS if is_float else tables(),
    )
    cells, vectors = level(n_rows, n_vectors)
    expected = NumpyEngine().score(cells, GEOMETRY, vectors)

    for _ in range(2):
        if is_held:
            found = engine.score_held((b"a", 0), cells, GEOMETRY, vectors)
        else:
            found = engine.score(cells, GEOMETRY, vectors)
        np.testing.assert_array_equal(found, expected)


def test_cells_are_copied_once_and_held() -> None:
    engine, cupy = make()
    cells, vectors = level(500, 2)

    assert_right(engine, cells, vectors)
    assert engine.held_bytes() == cells.nbytes
    first = cupy.uploaded
    assert_right(engine, cells, vectors)

    # Sums come back; cells do not go there again.
    assert cupy.uploaded - first < cells.nbytes < first


def test_another_level_is_another_copy() -> None:
    engine, _ = make()
    for key in ((b"a", 0), (b"a", 1), (b"b", 0)):
        cells, vectors = draw_elements(key[1] + len(key[0]), 40, GEOMETRY.width), level(1, 1)[1]
        assert_right(engine, cells, vectors, key)

    assert engine.held_bytes() == 3 * cells.nbytes


def test_cells_without_a_key_leave_nothing() -> None:
    engine, _ = make()
    cells, vectors = level(100, 1)

    engine.score(cells, GEOMETRY, vectors)

    assert engine.held_bytes() == 0


def test_what_does_not_fit_is_streamed_within_the_memory_that_is_allowed() -> None:
    memory = 1 << 21
    engine, cupy = make(memory_bytes=memory)
    cells, vectors = level(4000, 2)
    assert cells.nbytes > memory
    cupy.peak[0] = 0

    for number in (0, 0, 1):
        assert_right(engine, cells, vectors, (b"a", number))

    assert 0 < engine.held_bytes() < memory
    assert cupy.peak[0] <= memory


def test_memory_that_is_gone_by_the_time_it_is_asked_for_is_no_failure() -> None:
    engine, cupy = make()
    cells, vectors = level(2000, 1)
    assert_right(engine, cells[:100], vectors, (b"b", 0))
    # Another process takes all but two megabytes.
    cupy.memory[0] = cupy.used[0] + (2 << 20)

    assert_right(engine, cells, vectors)


def test_without_room_for_sums_what_is_held_gives_way() -> None:
    engine, cupy = make()
    cells, vectors = level(2000, 20)
    assert_right(engine, cells, vectors[:1])
    held = engine.held_bytes()
    cupy.memory[0] = cupy.used[0]

    assert_right(engine, cells, vectors)

    assert held > 0
    assert engine.held_bytes() == 0


def test_segments_that_are_served_no_longer_are_let_go() -> None:
    engine, cupy = make()
    cells, vectors = level(200, 1)
    for name in (b"a", b"b"):
        assert_right(engine, cells, vectors, (name, 0))
    before = cupy.used[0]

    engine.keep_only([b"b", b"c"])

    assert engine.held_bytes() == cells.nbytes
    assert cupy.used[0] <= before - cells.nbytes
    assert_right(engine, cells[::-1].copy(), vectors, (b"a", 0))


def test_what_was_streamed_is_held_once_there_is_room() -> None:
    engine, _ = make(memory_bytes=1 << 21)
    old, vectors = level(2000, 1)
    new = old[::-1].copy()
    assert_right(engine, old, vectors, (b"old", 0))
    assert_right(engine, new, vectors, (b"new", 0))
    held = engine.held_bytes()

    engine.keep_only([b"new"])
    assert_right(engine, new, vectors, (b"new", 0))

    assert engine.held_bytes() >= held // 2 > 0


@pytest.mark.parametrize("n_gpus", [1, 2, 5])
def test_any_number_of_gpus_gives_the_same_bits(n_gpus: int) -> None:
    engine, cupy = make(*[ROOMY] * n_gpus)
    cells, vectors = level(1, 2)
    equal = np.repeat(cells, 997, axis=0)

    for number, rows in enumerate((equal, level(997, 2)[0], cells)):
        assert_right(engine, rows, vectors, (b"a", number))

    assert {number for _, number in cupy.launches} == set(range(n_gpus))


def test_rows_are_split_by_free_memory() -> None:
    engine, cupy = make(1 << 29, ROOMY + (1 << 29))
    cells, vectors = level(1600, 1)

    assert_right(engine, cells, vectors)

    rows = [share.stop - share.start for share in engine._shares[b"a", 0]]
    assert sum(rows) == 1600
    assert 0 < rows[0] < rows[1]
    assert {number for _, number in cupy.launches} == {0, 1}


# --- kernels --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_vectors", "labels"),
    [(1, {"rows-8x4x1"}), (3, {"rows-8x2x4"}), (8, {"rows-8x2x8"}), (65, {"limbs-2x4"})],
)
def test_the_kernel_is_that_of_the_batch(n_vectors: int, labels: set[str]) -> None:
    engine, cupy = make()

    assert_right(engine, *level(50, n_vectors))

    assert {label for label, _ in cupy.launches} == labels


def test_kernels_are_timed_once_for_a_kind_of_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_device, "_TUNING_BYTES", 1 << 20)
    times = iter(range(1000, 0, -1))
    monkeypatch.setattr(cuda_device.Device, "seconds", lambda *_: float(next(times)))
    cupy = FakeCupy(ROOMY, ROOMY)
    first = CudaEngine(cupy=cupy)

    # The last of each class was the fastest.
    assert first.devices[0].table[1] == "rows-32x4x1"
    assert first.devices[0].table[64] == FLOAT64
    assert first.devices[1].table == first.devices[0].table
    used = next(times)
    assert CudaEngine(cupy=cupy, stored_tables=first.tables()).devices[0].table
    assert next(times) == used - 1


def test_a_kernel_that_is_wrong_on_this_gpu_is_never_used() -> None:
    said: list[str] = []
    cupy = FakeCupy(ROOMY)
    cupy.wrong = {"limbs-2x4", "limbs-4x4", "rows-8x4x1"}
    monkey = pytest.MonkeyPatch()
    monkey.setattr(cuda_device, "_TUNING_BYTES", 0)
    engine = CudaEngine(cupy=cupy, stored_tables=tables(), report=said.append)
    monkey.undo()

    for n_vectors in (1, 40):
        assert_right(engine, *level(70, n_vectors))
    assert cupy.wrong.isdisjoint(engine.devices[0].table.values())
    assert any("limbs-2x4 is not right here" in line for line in said)


def test_an_older_card_gets_what_it_can_run() -> None:
    monkey = pytest.MonkeyPatch()
    monkey.setattr(cuda_device, "_TUNING_BYTES", 0)
    engine = CudaEngine(cupy=FakeCupy(ROOMY, capability="70"))
    monkey.undo()

    assert not any(label.startswith("limbs") for label in engine.devices[0].table.values())
    assert_right(engine, *level(70, 20))


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_held", [True, False])
def test_a_gpu_that_is_lost_in_a_request_fails_it_by_name_and_the_next_one_recovers(
    is_held: bool,
) -> None:
    said: list[str] = []
    engine, cupy = make(memory_bytes=1 << 21, report=said.append)
    cells, vectors = level(2000, 2)
    if is_held:
        assert_right(engine, cells, vectors)
    cupy.fails_after = 4

    with pytest.raises(EngineFailed, match=r"Processor .GPU 0. failed .cudaErrorECC") as failed:
        engine.score_held((b"a", 0), cells, GEOMETRY, vectors)
    assert "\n" not in failed.value.message
    assert engine.device == "none"
    with pytest.raises(EngineFailed, match="cudaErrorECC"):
        engine.score_held((b"a", 0), cells, GEOMETRY, vectors)

    cupy.fails_after = None
    cupy.broken.clear()
    assert_right(engine, cells, vectors)
    assert engine.device == "Processor (GPU 0)"
    assert any("used again" in line for line in said)


def test_the_rows_of_a_lost_gpu_go_to_the_others() -> None:
    said: list[str] = []
    engine, cupy = make(ROOMY, ROOMY, report=said.append)
    cells, vectors = level(2000, 2)
    assert_right(engine, cells, vectors)
    cupy.fails_after = 1

    assert_right(engine, cells, vectors)

    assert engine.device == "Processor (GPU 1)"
    (line,) = said
    assert line.startswith("Processor (GPU 0) failed (cudaErrorECCUncorrectable: ")
    assert line.endswith("; its rows go to Processor (GPU 1)")


@pytest.mark.parametrize(
    ("cupy", "reason"),
    [
        (FakeCupy(no_driver=True), "cudaErrorInsufficientDriver"),
        (FakeCupy(), "the driver names none"),
        (FakeCupy(1 << 20), "0 MB are free"),
    ],
)
def test_a_named_engine_without_a_gpu_fails_in_one_line(cupy: FakeCupy, reason: str) -> None:
    with pytest.raises(EngineUnavailable, match=reason) as failed:
        CudaEngine(cupy=cupy)

    assert "\n" not in str(failed.value)
    assert "server.toml" in failed.value.cure


def test_a_gpu_that_does_not_start_is_left_out() -> None:
    said: list[str] = []
    cupy = FakeCupy(ROOMY, ROOMY)
    cupy.broken = {0}
    engine = CudaEngine(cupy=cupy, stored_tables=tables(), report=said.append)

    assert engine.device == "Processor (GPU 1)"
    assert len(said) == 1
    assert_right(engine, *level(30, 1))


# --- the choice -----------------------------------------------------------------------------------


def test_without_cupy_a_named_engine_fails_and_auto_takes_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    said: list[str] = []

    with pytest.raises(EngineUnavailable, match="needs CuPy"):
        make_engine("cuda")
    engine = make_engine("auto", report=said.append)

    assert engine.name == "cpu"
    assert len(said) == 1
    assert said[0].startswith("engine 'cuda' needs CuPy")
    assert said[0].endswith("engine 'cpu' is used")


def test_auto_takes_the_gpu_and_goes_on_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    cupy = FakeCupy(ROOMY)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    engine = make_engine("auto", report=said.append, stored_tables=tables())
    assert isinstance(engine, FallbackEngine)
    cells, vectors = level(300, 2)
    assert_right(engine, cells, vectors)
    assert (engine.device, said) == ("Processor (GPU 0)", [])
    cupy.broken = {0}

    for _ in range(2):
        assert_right(engine, cells, vectors)
        np.testing.assert_array_equal(
            engine.score(cells, GEOMETRY, vectors), NumpyEngine().score(cells, GEOMETRY, vectors)
        )

    assert engine.device == "cpu"
    assert len(said) == 1
    assert "engine 'cpu' goes on" in said[0]
