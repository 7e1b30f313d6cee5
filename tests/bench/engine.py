"""What the compiled products make of the machine: bytes a second, products a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from mksearch.index.geometry import BlockShape, LevelGeometry
from mksearch.params import P
from mksearch.scoring.cpu import CpuEngine
from tests.bench.bench import Bench
from tests.bench.figures import Figure, PartResult, median_of

__all__ = ["measure"]

#: 268 MB of cells: many times any cache.
N_ROWS = 65_536
WIDTHS = LevelGeometry(512, 512)
QUEUE_DOCS = 20_000
QUEUE_WIDTHS = LevelGeometry(1024, 1024)
BATCH = 8
REPETITIONS = 15


@nb.njit(parallel=True)  # type: ignore[untyped-decorator, unused-ignore]
def _plain_read(words: NDArray[np.uint64]) -> np.uint64:
    """Sum uint64 words, a piece of 4096 a step: what reading these bytes costs at least."""
    total = np.uint64(0)
    for piece in nb.prange(words.shape[0] // 4096):
        part = words[4096 * piece : 4096 * piece + 4096]
        own = np.uint64(0)
        for n in range(4096):
            own += part[n]
        total += own
    return total


def measure(bench: Bench) -> PartResult:
    """Measure reading, scoring one vector, and scoring eight together."""
    rows = N_ROWS // 8 if bench.quick else N_ROWS
    cells = _mapped(bench.folder / "cells", rows, WIDTHS.width)
    result = PartResult()
    table: list[dict[str, Any]] = []
    before = nb.get_num_threads()
    try:
        for threads in (1, 2):
            if threads > before:
                result.notes.append("one core only: nothing was measured on two threads")
                continue
            nb.set_num_threads(threads)
            _on_threads(cells, threads, bench.times(REPETITIONS), result, table)
        nb.set_num_threads(1)
        result.figures += _processor_time(bench)
    finally:
        nb.set_num_threads(before)
    result.tables["reading"] = table
    return result


def _mapped(path: Path, rows: int, width: int) -> NDArray[np.uint16]:
    """Return random cells in a mapped file, read once: uint16 (rows, width), below p."""
    source = np.random.default_rng(0)
    written = np.memmap(path, np.uint16, "w+", shape=(rows, width))
    for start in range(0, rows, 4096):
        part = written[start : start + 4096]
        part[:] = source.integers(0, P, part.shape, np.uint16)
    written.flush()
    del written
    cells = np.memmap(path, np.uint16, "r", shape=(rows, width))
    int(cells[:, ::1024].sum(dtype=np.int64))
    return cells


def _vectors(count: int, width: int) -> NDArray[np.uint16]:
    return np.random.default_rng(1).integers(0, P, (count, width), np.uint16)


def _seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Return wall clock and processor time of ``work``."""
    started, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - used


def _on_threads(
    cells: NDArray[np.uint16],
    threads: int,
    repetitions: int,
    result: PartResult,
    table: list[dict[str, Any]],
) -> None:
    """Time a plain read, one vector and eight in turn, so that noise meets all three."""
    engine = CpuEngine()
    words = cells.reshape(-1).view(np.uint64)
    one, eight = _vectors(1, WIDTHS.width), _vectors(BATCH, WIDTHS.width)
    works: dict[str, Callable[[], object]] = {
        "read": lambda: _plain_read(words),
        "one": lambda: engine.score(cells, WIDTHS, one),
        "eight": lambda: engine.score(cells, WIDTHS, eight),
    }
    spent: dict[str, list[float]] = {name: [] for name in works}
    used: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(repetitions):
        for name, work in works.items():
            wall, processor = _seconds(work)
            spent[name].append(wall)
            used[name].append(processor)
    ratio = median_of([read / one for read, one in zip(spent["read"], spent["one"], strict=True)])
    number = "one thread" if threads == 1 else "two threads"
    result.figures.append(
        Figure(
            f"engine.read_ratio_{threads}",
            f"index bytes scored over a plain read, {number}",
            ratio,
            direction="at least",
            goal=0.9,
            limit=0.6 if threads == 1 else None,
        )
    )
    rates = {name: cells.nbytes / median_of(times) / 1e9 for name, times in spent.items()}
    if threads == 1:
        products = cells.size * BATCH / median_of(used["eight"]) / 1e9
        result.figures.append(
            Figure(
                "engine.products",
                "products a second and core, eight vectors together",
                products,
                "10^9/s",
                "at least",
                goal=35,
                limit=28,
            )
        )
    table.append(
        {
            "threads": threads,
            "plain_read_gb_s": rates["read"],
            "one_vector_gb_s": rates["one"],
            "eight_vectors_gb_s": rates["eight"],
        }
    )


def _processor_time(bench: Bench) -> list[Figure]:
    """Measure processor time a query of the engine alone, one thread, at 20,000 x 4096."""
    rows = BlockShape().physical_rows(QUEUE_DOCS)
    cells = _mapped(bench.folder / "queue", rows, QUEUE_WIDTHS.width)
    engine = CpuEngine()
    spent = {}
    for count in (1, BATCH):
        vectors = _vectors(count, QUEUE_WIDTHS.width)
        engine.score(cells, QUEUE_WIDTHS, vectors)
        times = []
        for _ in range(bench.times(REPETITIONS)):
            started = time.process_time()
            engine.score(cells, QUEUE_WIDTHS, vectors)
            times.append((time.process_time() - started) / count)
        spent[count] = median_of(times)
    return [
        Figure(
            "engine.queries_batched",
            "queries a second of processor time, engine alone, 20,000 documents x 4096 columns, "
            "eight together",
            1 / spent[BATCH],
            "1/s",
        ),
        Figure(
            "engine.queries_alone",
            "queries a second of processor time, engine alone, one after another",
            1 / spent[1],
            "1/s",
        ),
    ]
