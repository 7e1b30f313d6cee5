"""What shards on processes of their own cost: the same segment by ``cpu`` and by two shards."""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from mksearch.index.geometry import LevelGeometry
from mksearch.params import P
from mksearch.scoring.cpu import CpuEngine
from mksearch_server.ray_cluster import RayCluster
from mksearch_server.ray_config import RayConfig
from mksearch_server.ray_engine import RayEngine
from tests.bench.bench import Bench
from tests.bench.figures import Figure, PartResult
from tests.support.shards import Stored, has_ray, write_segment

__all__ = ["measure"]

N_DOCS = 100_000
#: About what the builder chooses at this size: 450 MB of cells.
WIDTHS = LevelGeometry(512, 512)
OVERHEAD_AT_MOST = 1.5
REPETITIONS = 25
_CONFIG = RayConfig(shards=2, object_store_bytes=256 << 20)


def measure(bench: Bench) -> PartResult:
    """Score all levels of a segment with one and with eight vectors, by both engines in turn."""
    if not has_ray():
        return PartResult(notes=["shards: not measured, Ray is not installed"])
    n_docs = bench.size(N_DOCS)
    stored = write_segment(bench.folder / "shards", n_docs, WIDTHS)
    began_s = time.perf_counter()
    cluster = RayCluster(_CONFIG, bench.folder)
    try:
        engine = RayEngine.on_cluster(cluster, _CONFIG, stored.store)
        started_s = time.perf_counter() - began_s
        try:
            figures = [
                figure
                for n_vectors in (1, 8)
                for figure in _compared(engine, stored, n_vectors, bench.times(REPETITIONS))
            ]
        finally:
            engine.close()
    finally:
        cluster.close()
    figures.append(
        Figure("shards.start", "a cluster of this host and two shards, started", started_s, "s")
    )
    return PartResult(figures)


def _compared(engine: RayEngine, stored: Stored, n_vectors: int, repetitions: int) -> list[Figure]:
    vectors = np.random.default_rng(1).integers(0, P, (n_vectors, WIDTHS.width), np.uint16)
    levels = list(enumerate(stored.levels))
    cpu = CpuEngine()

    def by_cpu() -> list[object]:
        return [cpu.score(stored.reader.level(n), shape, vectors) for n, shape in levels]

    def by_shards() -> list[object]:
        return [
            engine.score_held((stored.id, n), stored.reader.level(n), shape, vectors)
            for n, shape in levels
        ]

    for one, other in zip(by_cpu(), by_shards(), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    spent: dict[str, list[float]] = {"cpu": [], "shards": []}
    for _ in range(repetitions):
        for name, work in (("cpu", by_cpu), ("shards", by_shards)):
            began_s = time.perf_counter()
            work()
            spent[name].append(1000 * (time.perf_counter() - began_s))
    cpu_ms, shards_ms = median(spent["cpu"]), median(spent["shards"])
    size = f"{stored.reader.header.layout.n_rows:,} documents, {WIDTHS.width:,} columns"
    what = "one vector" if n_vectors == 1 else f"{n_vectors} vectors together"
    return [
        Figure(f"shards.cpu_{n_vectors}", f"engine cpu, {what}, {size}", cpu_ms, "ms"),
        Figure(f"shards.ray_{n_vectors}", "the same by two shards of engine ray", shards_ms, "ms"),
        Figure(
            f"shards.overhead_{n_vectors}",
            f"two shards over cpu, {what}",
            shards_ms / cpu_ms,
            direction="at most",
            limit=OVERHEAD_AT_MOST if n_vectors == 1 else None,
        ),
    ]
