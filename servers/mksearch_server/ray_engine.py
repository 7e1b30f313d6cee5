"""The engine over many hosts: every shard multiplies its rows, and the sums are put together."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mksearch.errors import EngineFailed, EngineUnavailable
from mksearch.index.geometry import LevelGeometry
from mksearch.scoring.cuda import LevelKey
from mksearch.scoring.shapes import require_shapes
from mksearch_server.ray_cluster import RayCluster
from mksearch_server.ray_config import RAY, RayConfig
from mksearch_server.ray_routing import Part, Router, ShardHealth, cut_rows
from mksearch_server.rooms import SEGMENTS

__all__ = ["RayEngine", "open_ray"]

Array = NDArray[np.uint16]


class RayEngine:
    """Multiplies on the shards of a cluster; see ``Engine`` and ``HoldingEngine``.

    One call at a time in a process.
    """

    name = RAY
    vectors_max = 16

    def __init__(self, router: Router, close: Callable[[], None] = lambda: None) -> None:
        """Use the shards of ``router``; ``close`` ends what they run on."""
        self._router = router
        self._close = close
        self._segments: frozenset[bytes] = frozenset()

    @classmethod
    def on_cluster(
        cls,
        cluster: RayCluster,
        config: RayConfig,
        store: Path,
        report: Callable[[str], None] = lambda _: None,
        close: Callable[[], None] = lambda: None,
    ) -> Self:
        """Place the shards of ``config`` on a cluster and wait until all of them take calls.

        Args:
            cluster: started or joined.
            config: the settings.
            store: folder of the store, as every host finds it.
            report: told in one line when a replica goes away or comes back.
            close: called at the end.

        Raises:
            EngineUnavailable: a replica finds no room, or cannot score where it is.
        """
        router = Router(cluster.place(config, store / SEGMENTS), report)
        try:
            router.wait_live(config.place_s)
        except EngineFailed as error:
            router.close()
            raise EngineUnavailable(f"engine 'ray': {error.message}", cure=error.cure) from None
        return cls(router, close)

    @property
    def device(self) -> str:
        """What computes, in words for an operator."""
        health = self.health()
        shards = f"{health.n_shards} shards x {health.n_replicas}"
        return f"{self._router.devices()}, {shards}"

    def health(self) -> ShardHealth:
        """Return how the shards are."""
        return self._router.health()

    def close(self) -> None:
        """End the shards."""
        self._router.close()
        self._close()

    def score(self, cells: Array, geometry: LevelGeometry, vectors: Array) -> Array:
        """Multiply rows that travel to the shards with the call; see ``Engine.score``.

        Raises:
            EngineFailed: a shard has no live replica, and is named.
        """

        def ask(rows: tuple[int, int]) -> tuple[str, tuple[Any, ...]]:
            return "multiply", (np.ascontiguousarray(cells[slice(*rows)]), geometry, vectors)

        return self._score(None, cells, geometry, vectors, ask)

    def score_held(
        self, key: LevelKey, cells: Array, geometry: LevelGeometry, vectors: Array
    ) -> Array:
        """Do the same over the rows that the shards' hosts hold; see ``HoldingEngine``.

        Raises:
            EngineFailed: a shard has no live replica, and is named.
        """
        segment, level = key
        if segment not in self._segments:
            self.keep_only(self._segments | {segment})

        def ask(rows: tuple[int, int]) -> tuple[str, tuple[Any, ...]]:
            return "score", (segment, level, rows, vectors)

        return self._score(segment, cells, geometry, vectors, ask)

    def keep_only(self, segments: Collection[bytes]) -> None:
        """Have the shards hold these segments, and let go of others."""
        self._segments = frozenset(segments)
        self._router.keep(self._segments)

    def _score(
        self,
        segment: bytes | None,
        cells: Array,
        geometry: LevelGeometry,
        vectors: Array,
        ask: Callable[[tuple[int, int]], tuple[str, tuple[Any, ...]]],
    ) -> Array:
        require_shapes(cells, geometry, vectors)
        vectors = np.ascontiguousarray(vectors)
        out = np.empty((len(vectors), len(cells), geometry.n_tables), np.uint16)
        parts = []
        for shard, rows in enumerate(cut_rows(len(cells), self._router.n_shards)):
            n_rows = rows[1] - rows[0]
            if n_rows and len(vectors):
                method, arguments = ask(rows)
                shape = (len(vectors), n_rows, geometry.n_tables)
                n_products = n_rows * geometry.width * len(vectors)
                parts.append(Part(shard, rows, segment, method, arguments, shape, n_products))

        def take(part: Part, sums: Array) -> None:
            out[:, slice(*part.rows)] = sums

        self._router.run(parts, take)
        return out


def open_ray(
    config: RayConfig, folder: Path, data: Path, report: Callable[[str], None]
) -> RayEngine:
    """Return the engine of a server's settings, on a cluster that is started or joined.

    Args:
        config: the table ``[ray]``.
        folder: of server.toml.
        data: folder of the store on this host.
        report: told in one line when a replica goes away or comes back.

    Raises:
        EngineUnavailable: Ray, the cluster or room for a replica is missing.
    """
    cluster = RayCluster(config, folder)
    try:
        store = (config.store or data).resolve()
        return RayEngine.on_cluster(cluster, config, store, report, cluster.close)
    except BaseException:
        cluster.close()
        raise
