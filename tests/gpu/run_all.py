"""Check and time the GPU engine on a machine with a GPU, in less than eight minutes.

    python -m tests.gpu.run_all --json gpu.json

First equality: every kernel on random and extreme cells, sums poisoned beforehand and between two
guards, against the compiled engine of the processor; then the engine as servers use it.  Then
times, by the clock of the GPU.  Ends with 1 when anything was not equal or a part failed; what was
missed of the goals is printed and does not fail.  ``--dry`` runs the same script over the stand-in
for CuPy, on small sizes: it proves the script, and no figure of it counts.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

if __package__ in (None, ""):  # started by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mksearch import __version__
from mksearch.index.geometry import LevelGeometry
from mksearch.params import P
from mksearch.scoring.cpu import CpuEngine
from mksearch.scoring.cuda import CudaEngine
from mksearch.scoring.cuda_device import Device
from mksearch.scoring.cuda_kernels import BATCH_CLASSES, CANDIDATES, FLOAT64, find_kernel

Array = NDArray[np.uint16]
POISON = 0xDEAD
GUARD = 1 << 16
EXTREMES = np.array([0, 1, 255, 256, 32767, 32768, P - 2, P - 1], np.uint16)
WIDE = LevelGeometry(1024, 1024, 3)
#: Goals on an H200: share of a copy's traffic with one vector, queries a second with 512.
GOAL_SHARE = 0.8
GOAL_QUERIES_S = 10_000


@dataclass(frozen=True)
class Sizes:
    """How much is computed.

    Attributes:
        n_rows: rows of 4096 columns that are timed, if so many fit.
        batches: vectors that are timed together.
        n_upload: rows that are uploaded.
        capped_bytes: memory of the run that must stream.
        n_capped: its rows.
        shapes: (geometry, rows) of the proof.
        n_runs: launches of which the fastest counts.
    """

    n_rows: int
    batches: tuple[int, ...]
    n_upload: int
    capped_bytes: int
    n_capped: int
    shapes: tuple[tuple[LevelGeometry, int], ...]
    n_runs: int


FULL = Sizes(
    n_rows=1_000_000,
    batches=(1, 8, 64, 512),
    n_upload=262_144,
    capped_bytes=256 << 20,
    n_capped=131_072,
    shapes=(
        (LevelGeometry(64, 64, 1), 1),
        (LevelGeometry(64, 64, 8), 127),
        (LevelGeometry(320, 192, 3), 65),
        (LevelGeometry(2176, 640, 3), 4001),
        (LevelGeometry(16448, 64, 1), 130),
        (LevelGeometry(33024, 8256, 2), 33),
    ),
    n_runs=7,
)
DRY = Sizes(
    n_rows=64,
    batches=(1, 8, 20),
    n_upload=300,
    capped_bytes=1 << 20,
    n_capped=256,
    shapes=((LevelGeometry(64, 64, 1), 1), (LevelGeometry(128, 64, 2), 33)),
    n_runs=1,
)


class Run:
    """One run: what was found, and how much time is left."""

    def __init__(self, cupy: Any, sizes: Sizes, limit_s: float) -> None:
        self.cupy = cupy
        self.sizes = sizes
        self._end = time.monotonic() + limit_s
        self.failures: list[str] = []
        self.found: dict[str, Any] = {}
        self.random = np.random.default_rng(20260101)

    def say(self, line: str) -> None:
        print(line, flush=True)

    def part(self, name: str, work: Callable[[], Any]) -> None:
        """Run one part; what it raises fails the run and not the other parts."""
        if time.monotonic() > self._end:
            self.failures.append(f"{name}: left out, the time is over")
            self.say(f"-- {name}: left out, the time is over")
            return
        self.say(f"-- {name}")
        started = time.monotonic()
        try:
            self.found[name] = work()
        except Exception as error:  # noqa: BLE001 - the others are worth running
            traceback.print_exc()
            self.failures.append(f"{name}: {type(error).__name__}: {error}")
        self.say(f"   {time.monotonic() - started:.1f} s")

    def elements(self, *shape: int, is_extreme: bool = False) -> Array:
        if is_extreme:
            return self.random.choice(EXTREMES, shape)
        return self.random.integers(0, P, shape, np.uint16)


# --- equality -------------------------------------------------------------------------------------


def all_labels(device: Device) -> list[str]:
    labels = sorted({label for labels in CANDIDATES.values() for label in labels})
    return [
        label
        for label in labels
        if label == FLOAT64 or find_kernel(label).capability <= device.capability
    ]


def batches_of(label: str) -> tuple[int, ...]:
    size = 0 if label == FLOAT64 else find_kernel(label).vectors_at_once
    return (1, size, size + 1) if size else (1, 17, 33)


@dataclass(frozen=True)
class Job:
    """Inputs, and the sums that the processor's engine gives."""

    cells: Array
    geometry: LevelGeometry
    vectors: Array
    sums: Array

    @classmethod
    def draw(
        cls, run: Run, geometry: LevelGeometry, n_rows: int, n_vectors: int, *, is_extreme: bool
    ) -> Job:
        """Draw uniform or extreme elements; the last row and vector are the largest."""
        cells = run.elements(n_rows, geometry.width, is_extreme=is_extreme)
        vectors = run.elements(n_vectors, geometry.width, is_extreme=is_extreme)
        cells[-1], vectors[-1] = P - 1, P - 1
        return cls(cells, geometry, vectors, CpuEngine().score(cells, geometry, vectors))


def is_equal(run: Run, device: Device, label: str, job: Job, n_vectors: int) -> bool:
    """Compute over poison between two guards and compare every word."""
    shape = n_vectors, len(job.cells), job.geometry.n_tables
    count = int(np.prod(shape))
    with run.cupy.cuda.Device(device.number):
        room = run.cupy.empty((count + 2 * GUARD,), np.uint16)
        room.fill(POISON)
        sums = room[GUARD : GUARD + count].reshape(shape)
        cells = run.cupy.asarray(job.cells)
        device.multiply_alone(label, cells, job.geometry, job.vectors[-n_vectors:], sums)()
        found = run.cupy.asnumpy(room)
    guards = np.concatenate([found[:GUARD], found[GUARD + count :]])
    return bool(
        (guards == POISON).all()
        and np.array_equal(found[GUARD : GUARD + count], job.sums[-n_vectors:].reshape(-1))
    )


def check_kernels(run: Run, device: Device) -> dict[str, int]:
    """Compare every kernel on every shape; return how many comparisons each kernel passed."""
    passed = dict.fromkeys(all_labels(device), 0)
    most = max(batches_of(label)[-1] for label in passed)
    for geometry, n_rows in run.sizes.shapes:
        for is_extreme in (False, True):
            job = Job.draw(run, geometry, n_rows, most, is_extreme=is_extreme)
            for label in passed:
                for n_vectors in batches_of(label):
                    if is_equal(run, device, label, job, n_vectors):
                        passed[label] += 1
                        continue
                    where = f"{label} at {n_rows} x {geometry}, {n_vectors} vectors"
                    run.failures.append(f"not equal: {where}")
                    run.say(f"   NOT EQUAL: {where}")
    for label, count in passed.items():
        run.say(f"   {label}: {count} equal")
    return passed


def check_engine(run: Run, engine: CudaEngine) -> dict[str, Any]:
    """Compare what a server calls: held and streamed, batches of every class."""
    geometry, n_rows = run.sizes.shapes[-1] if len(run.sizes.shapes) < 3 else run.sizes.shapes[3]
    cells = run.elements(n_rows, geometry.width)
    for n_vectors in (*BATCH_CLASSES[:5], 19):
        vectors = run.elements(n_vectors, geometry.width)
        expected = CpuEngine().score(cells, geometry, vectors)
        for found in (
            engine.score(cells, geometry, vectors),
            engine.score_held((b"check", 0), cells, geometry, vectors),
        ):
            if not np.array_equal(found, expected):
                run.failures.append(f"not equal: engine with {n_vectors} vectors")
    engine.keep_only([])
    return {"devices": engine.device, "rows": n_rows}


# --- times ----------------------------------------------------------------------------------------


def cells_on_device(run: Run, device: Device) -> Any:
    """Make cells on the device: device uint16 (rows, 4096), as many as half the memory holds."""
    n_rows = min(run.sizes.n_rows, device.room() // (4 * WIDE.width))
    block = run.elements(min(4096, n_rows), WIDE.width)
    with run.cupy.cuda.Device(device.number):
        cells = run.cupy.empty((n_rows, WIDE.width), np.uint16)
        some = run.cupy.asarray(block)
        for start in range(0, n_rows, len(block)):
            stop = min(start + len(block), n_rows)
            cells[start:stop] = some[: stop - start]
    return cells


def copy_traffic(run: Run, device: Device, cells: Any) -> float:
    """Measure bytes a second that a copy on the device reads and writes together."""
    half = cells.shape[0] // 2

    def copy() -> None:
        cells[:half] = cells[half : 2 * half]

    with run.cupy.cuda.Device(device.number):
        seconds = device.seconds(copy, run.sizes.n_runs)
    return float(2 * half * 2 * WIDE.width / seconds)


def time_kernels(run: Run, device: Device) -> dict[str, Any]:
    """Time the chosen kernel and its rivals for each batch over cells on the device."""
    cells = cells_on_device(run, device)
    traffic = copy_traffic(run, device, cells)
    n_bytes = int(cells.nbytes)
    floor_ms = 1000 * n_bytes / traffic
    run.say(
        f"   {cells.shape[0]} rows x {WIDE.width}: {n_bytes / 1e9:.2f} GB; a copy moves "
        f"{traffic / 1e9:.0f} GB/s (reads {traffic / 2e9:.0f}); floor of a pass {floor_ms:.3f} ms"
    )
    run.say("   batch  kernel       ms       share   GB/s   queries/s  10^12 products/s")
    table = []
    for batch in run.sizes.batches:
        for row in time_batch(run, device, cells, batch):
            row |= {"share": row["gb_s"] * 1e9 / traffic, "floor_ms": floor_ms}
            table.append(row)
            run.say(
                f"   {batch:5d}  {row['kernel']:11s}  {row['ms']:7.3f}  {row['share']:6.2f}  "
                f"{row['gb_s']:6.0f}  {row['queries_s']:9.0f}  {row['products_t_s']:6.1f}"
                + ("  <- chosen" if row["is_chosen"] else "")
            )
    judge(run, table)
    return {
        "rows": int(cells.shape[0]), "columns": WIDE.width, "copy_gb_s": traffic / 1e9,
        "batches": table,
    }  # fmt: skip


def time_batch(run: Run, device: Device, cells: Any, batch: int) -> Iterator[dict[str, Any]]:
    vectors = run.elements(batch, WIDE.width)
    chosen = device.choose(batch)
    size = next((n for n in BATCH_CLASSES if n >= batch), BATCH_CLASSES[-1])
    for label in dict.fromkeys((chosen, *CANDIDATES[size])):
        if label not in all_labels(device):
            continue
        launch = device.multiply_alone(label, cells, WIDE, vectors)
        seconds = device.seconds(launch, run.sizes.n_runs if batch < 512 else 3)
        yield {
            "batch": batch,
            "kernel": label,
            "is_chosen": label == chosen,
            "ms": 1000 * seconds,
            "gb_s": cells.nbytes / seconds / 1e9,
            "queries_s": batch / seconds,
            "products_t_s": cells.size * batch / seconds / 1e12,
        }


def judge(run: Run, table: list[dict[str, Any]]) -> None:
    """Say whether the goals, which are for an H200 and a million rows, were reached."""
    best_share = max((row["share"] for row in table if row["batch"] == 1), default=0.0)
    best_rate = max((row["queries_s"] for row in table if row["batch"] == 512), default=0.0)
    run.say(f"   batch 1: {best_share:.2f} of a copy's traffic (goal {GOAL_SHARE})")
    run.say(f"   batch 512: {best_rate:.0f} queries/s (goal {GOAL_QUERIES_S})")


def time_upload(run: Run, device: Device) -> dict[str, Any]:
    """Time copying mapped rows to the device, as a server does when a segment is first asked."""
    cells = run.elements(256, WIDE.width)
    rows = np.concatenate([cells] * max(1, run.sizes.n_upload // 256))
    started = time.perf_counter()
    held = device.hold(rows)
    seconds = time.perf_counter() - started
    n_bytes = held.n_bytes
    device.release(held)
    run.say(f"   {n_bytes / 1e9:.2f} GB in {seconds:.3f} s: {n_bytes / seconds / 1e9:.1f} GB/s")
    return {"gb": n_bytes / 1e9, "gb_s": n_bytes / seconds / 1e9}


def time_capped(run: Run, tables: dict[str, object]) -> dict[str, Any]:
    """Score an index that is larger than the memory that may be used; compare some rows."""
    block = run.elements(256, WIDE.width)
    cells = np.concatenate([block] * (run.sizes.n_capped // len(block)))
    engine = CudaEngine(
        cupy=run.cupy, memory_bytes=run.sizes.capped_bytes, stored_tables=tables, report=run.say
    )
    vectors = run.elements(8, WIDE.width)
    expected = CpuEngine().score(block, WIDE, vectors)
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        found = engine.score_held((b"capped", 0), cells, WIDE, vectors)
        seconds.append(time.perf_counter() - started)
        for start in range(0, len(cells), len(block)):
            if not np.array_equal(found[:, start : start + len(block)], expected):
                run.failures.append("not equal: the run with little memory")
                break
    n_bytes = cells.nbytes
    run.say(
        f"   {n_bytes / 1e6:.0f} MB of cells in {run.sizes.capped_bytes >> 20} MB a GPU "
        f"({engine.held_bytes() >> 20} MB held): {n_bytes / seconds[1] / 1e9:.1f} GB/s"
    )
    engine.keep_only([])
    return {
        "mb": n_bytes / 1e6, "limit_mb": run.sizes.capped_bytes / 1e6,
        "gb_s": n_bytes / seconds[1] / 1e9,
    }  # fmt: skip


def time_engine(run: Run, engine: CudaEngine) -> list[dict[str, Any]]:
    """Time calls as a server makes them, sums brought to the host, cells held."""
    block = run.elements(256, WIDE.width)
    cells = np.concatenate([block] * max(1, run.sizes.n_upload // 256))
    rows = []
    for batch in (1, 16, 64):
        vectors = run.elements(batch, WIDE.width)
        engine.score_held((b"call", 0), cells, WIDE, vectors)
        times = []
        for _ in range(run.sizes.n_runs):
            started = time.perf_counter()
            engine.score_held((b"call", 0), cells, WIDE, vectors)
            times.append(time.perf_counter() - started)
        rows.append({"batch": batch, "rows": len(cells), "ms": 1000 * min(times)})
        run.say(f"   {len(cells)} rows, batch {batch}: {1000 * min(times):.2f} ms a call")
    engine.keep_only([])
    return rows


# --- the whole ------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run everything; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="file for what was found")
    parser.add_argument("--dry", action="store_true", help="without a GPU: proves this script only")
    parser.add_argument("--limit", type=float, default=420, help="seconds until no part is begun")
    options = parser.parse_args(arguments)
    cupy = _cupy(is_dry=options.dry)
    run = Run(cupy, DRY if options.dry else FULL, options.limit)
    if options.dry:
        run.say("DRY RUN over a stand-in on the processor: no figure below says anything of a GPU")
    started = time.monotonic()
    engine = CudaEngine(cupy=cupy, report=run.say)
    device = engine.devices[0]
    run.say(f"{engine.device}; kernels {device.stored_table()}")
    run.say(f"   opened, proved and tuned in {time.monotonic() - started:.1f} s")
    run.part("kernels equal", lambda: check_kernels(run, device))
    run.part("engine equal", lambda: check_engine(run, engine))
    run.part("kernels timed", lambda: time_kernels(run, device))
    run.part("upload timed", lambda: time_upload(run, device))
    run.part("calls timed", lambda: time_engine(run, engine))
    run.part("little memory", lambda: time_capped(run, dict(engine.tables())))
    run.say("-- record selection: the product has none yet, nothing to measure")
    report = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "mksearch": __version__,
        "is_dry": options.dry,
        "device": engine.device,
        "table": device.stored_table(),
        "found": run.found,
        "failures": run.failures,
        "seconds": round(time.monotonic() - started, 1),
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for failure in run.failures:
        run.say(f"FAILED {failure}")
    run.say(f"{'FAILED' if run.failures else 'all equal'} after {report['seconds']} s")
    return 1 if run.failures else 0


def _cupy(*, is_dry: bool) -> Any:
    if is_dry:
        from mksearch.scoring import cuda_device
        from tests.gpu.fake_cupy import FakeCupy

        # What is timed is cut down with the rest.
        vars(cuda_device)["_TUNING_BYTES"] = 1 << 19
        return FakeCupy(1 << 30)
    import cupy

    return cupy


if __name__ == "__main__":
    raise SystemExit(main())
