"""Shards for tests: segments of random cells, replicas on a thread, and a real cluster of Ray."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.kdf import sha256
from mksearch.index.geometry import BlockShape, LevelGeometry
from mksearch.index.segment import HEADER_BYTES, SegmentHeader, SegmentLayout, SegmentReader
from mksearch.index.slot_shape import SlotShape
from mksearch.params import P
from mksearch_server.ray_cluster import RayCluster
from mksearch_server.ray_config import RayConfig
from mksearch_server.ray_engine import RayEngine
from mksearch_server.ray_routing import Router
from mksearch_server.ray_shard import Shard
from mksearch_server.rooms import SEGMENTS

__all__ = [
    "OBJECT_STORE_BYTES",
    "Stored",
    "ThreadReplica",
    "children",
    "has_ray",
    "ray_cluster",
    "ray_engines",
    "thread_engine",
    "write_segment",
]

Array = NDArray[np.uint16]
#: The least that Ray takes.
OBJECT_STORE_BYTES = 80 << 20
#: Shards of the engines on the one cluster of a test process, with two replicas each.
RAY_SHARDS = tuple(int(n) for n in os.environ.get("MKSEARCH_RAY_SHARDS", "2").split(","))


@dataclass(frozen=True)
class Stored:
    """A segment in the folder of a store.

    Attributes:
        store: the folder.
        reader: of the segment, mapped.
    """

    store: Path
    reader: SegmentReader

    @property
    def id(self) -> bytes:
        return self.reader.id

    @property
    def path(self) -> Path:
        return self.store / SEGMENTS / self.id.hex()

    @property
    def levels(self) -> tuple[LevelGeometry, ...]:
        return self.reader.header.layout.levels


def write_segment(
    store: Path, n_rows: int, geometry: LevelGeometry, seed: int = 0, *, are_equal: bool = False
) -> Stored:
    """Write a segment of random cells as a server stores it.

    Args:
        store: folder of a store.
        n_rows: documents.
        geometry: of every level.
        seed: of the cells.
        are_equal: every row of a level is the same.
    """
    block = BlockShape()
    n_levels = len(block.level_rows(n_rows))
    layout = SegmentLayout(n_rows, block, (geometry,) * n_levels, SlotShape(34), n_rows)
    draw = np.random.default_rng(seed)
    data = np.zeros(layout.n_bytes, np.uint8)
    sections = [layout.level(data, level) for level in range(n_levels)]
    for section in sections:
        if are_equal:
            section[:] = draw.integers(0, P, section.shape[1], np.uint16)
        else:
            section[:] = draw.integers(0, P, section.shape, np.uint16)
    hashes = tuple(sha256(section.tobytes()) for section in [*sections, layout.slots(data)])
    header = SegmentHeader(b"c" * 16, 1, seed.to_bytes(32, "big"), layout, hashes).encode()
    data[:HEADER_BYTES] = np.frombuffer(header, np.uint8)
    path = store / SEGMENTS / sha256(header).hex()
    path.parent.mkdir(parents=True, exist_ok=True)
    data.tofile(path)
    return Stored(store, SegmentReader(np.memmap(path, np.uint8, "r")))


# --- on a thread ----------------------------------------------------------------------------------

#: One for all: compiled loops take one call at a time in a process.
_THREAD = ThreadPoolExecutor(1, "replicas")


class ThreadReplica:
    """A shard in this process, whose calls go through what Ray's go through."""

    def __init__(self, store: Path, engine: str = "cpu") -> None:
        self.shard = Shard(str(store / SEGMENTS), engine)
        self.is_lost = False
        self.n_calls = 0

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        if self.is_lost:
            raise ConnectionError("the actor died")
        if method != "look":
            self.n_calls += 1
        return _THREAD.submit(getattr(self.shard, method), *arguments)


def thread_engine(
    store: Path,
    n_shards: int,
    n_replicas: int = 2,
    report: Callable[[str], None] = lambda _: None,
    engine: str = "cpu",
) -> tuple[RayEngine, Sequence[Sequence[ThreadReplica]]]:
    """Return the engine over shards of this process, and their replicas; close it."""
    shards = [[ThreadReplica(store, engine) for _ in range(n_replicas)] for _ in range(n_shards)]
    router = Router(shards, report)
    router.wait_live(30)
    return RayEngine(router), shards


# --- on a cluster ---------------------------------------------------------------------------------


def has_ray() -> bool:
    """Tell whether Ray is installed."""
    return importlib.util.find_spec("ray") is not None


def children(parent: int) -> dict[int, str]:
    """Return the processes that ``parent`` started: their command by process id."""
    found = {}
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            after_name = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(after_name[1]) == parent:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(folder.name)] = command.decode(errors="replace").strip()
    return found


@functools.cache
def ray_cluster() -> tuple[RayCluster, str]:
    """Return the cluster of this process, started once, and its address."""
    config = RayConfig(
        shards=sum(RAY_SHARDS), replicas=2, gpus=1, object_store_bytes=OBJECT_STORE_BYTES
    )
    cluster = RayCluster(config, Path(tempfile.mkdtemp(prefix="mksearch-shards-")))
    atexit.register(cluster.close)
    return cluster, cluster.address


@functools.cache
def ray_engines() -> tuple[Path, dict[int, RayEngine]]:
    """Return a store's folder and engines by their number of shards, on one cluster of this host.

    Every replica asks for one of the GPUs that the cluster says it has, and computes without.
    """
    folder = Path(tempfile.mkdtemp(prefix="mksearch-shards-"))
    cluster, _ = ray_cluster()
    engines = {}
    for n_shards in RAY_SHARDS:
        config = RayConfig(shards=n_shards, replicas=2, gpus=1, place_s=120)
        engines[n_shards] = RayEngine.on_cluster(cluster, config, folder)
        atexit.register(engines[n_shards].close)
    return folder, engines
