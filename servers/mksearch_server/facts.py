"""What a server is and holds, in numbers: the same for its metrics and for ``status``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from mksearch import __version__
from mksearch.errors import StorageError
from mksearch.scoring.engine import Engine, device_of
from mksearch_server.config import ServerConfig
from mksearch_server.engines import shard_health
from mksearch_server.ray_routing import ShardHealth
from mksearch_server.search_server import SearchServer
from mksearch_server.store import ObjectStore

__all__ = ["Facts", "facts_of"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server is and holds.

    Attributes:
        release: of this program.
        engine: name of the engine.
        device: what it computes on.
        server: id of the server.
        is_claimed: an owner has claimed it.
        version: that is served, 0 for none.
        epoch: of its access, 0 without an administration.
        n_segments: of the version.
        index_bytes: of its segments.
        expires_in_s: seconds until its manifest, as renewed, expires, negative afterwards; None
            without one.
        store_bytes: of all that is stored; None while a bucket does not say.
        store_limit_bytes: largest size of the store.
        store_free_bytes: that the store may still grow by, of the limit and of the disk.
        n_shares: shares of the authority; None where they were not read.
        share_generation: of the newest, 0 without one; None where it was not read.
        shards: how those of the engine are; None for an engine without any.
    """

    release: str
    engine: str
    device: str
    server: int
    is_claimed: bool
    version: int
    epoch: int
    n_segments: int
    index_bytes: int
    expires_in_s: float | None
    store_bytes: int | None
    store_limit_bytes: int
    store_free_bytes: int | None
    n_shares: int | None = None
    share_generation: int | None = None
    shards: ShardHealth | None = None

    def numbers(self) -> Mapping[str, tuple[str, float | None]]:
        """Return text and value of every number, by the name of its metric without prefix."""
        return {
            "server_id": ("Evaluation point of this server", self.server),
            "claimed": ("1 once an owner has claimed this server", self.is_claimed),
            "version": ("Version that is served, 0 for none", self.version),
            "epoch": ("Epoch of the version, 0 without an administration", self.epoch),
            "segments": ("Segments of the version", self.n_segments),
            "index_bytes": ("Bytes of its segments", self.index_bytes),
            "manifest_expiry_seconds": (
                "Seconds until the manifest, as renewed, expires, negative afterwards",
                self.expires_in_s,
            ),
            "store_bytes": ("Bytes that the store takes", self.store_bytes),
            "store_limit_bytes": ("max_store_bytes of server.toml", self.store_limit_bytes),
            "store_free_bytes": (
                "Bytes that the store may still grow by, of limit and disk",
                self.store_free_bytes,
            ),
            "shares_held": ("Shares of the authority", self.n_shares),
            "share_generation": (
                "Generation of the newest share, 0 without one",
                self.share_generation,
            ),
            **self._shard_numbers(),
        }

    def _shard_numbers(self) -> Mapping[str, tuple[str, float | None]]:
        shards = self.shards
        if shards is None:
            return {}
        return {
            "shards": ("Shards of the engine", shards.n_shards),
            "shards_degraded": (
                "Shards with fewer live replicas than they should have",
                len(shards.degraded),
            ),
            "shards_lost": ("Shards without a live replica", len(shards.lost)),
            "shard_replicas_live": ("Replicas of all shards that take calls", shards.n_live),
            "shard_calls_hedged": (
                "Calls asked of a second replica as the first was slow, since the start",
                shards.n_hedges,
            ),
            "shard_calls_moved": (
                "Calls that went to another replica as one failed, since the start",
                shards.n_moved,
            ),
            "shard_replicas_returned": (
                "Replicas that came back or were started anew, since the start",
                shards.n_returned,
            ),
        }


def facts_of(
    config: ServerConfig,
    store: ObjectStore,
    engine: Engine,
    search: SearchServer | None,
    *,
    shares: tuple[int, int] | None = None,
) -> Facts:
    """Return the facts of now.

    Args:
        config: of the server.
        store: of the server.
        engine: of the server.
        search: of the server, None while nobody has claimed it.
        shares: how many of the authority, and the generation of the newest; None for unread.
    """
    active = None if search is None else search.active
    access = None if active is None else active.access
    segments = [] if active is None else list(active.segments())
    n_bytes = n_free = None
    # A bucket may be away: what is known without it is shown.
    with suppress(StorageError):
        n_bytes = store.n_bytes()
        n_free = max(0, min(config.max_store_bytes - n_bytes, store.n_free_bytes()))
    return Facts(
        release=__version__,
        engine=config.engine,
        device=device_of(engine),
        server=config.id,
        is_claimed=search is not None,
        version=0 if active is None else active.version,
        epoch=0 if access is None else access.epoch,
        n_segments=len(segments),
        index_bytes=sum(segment.size for segment in segments),
        expires_in_s=None if search is None or active is None else search.expires_at - time.time(),
        store_bytes=n_bytes,
        store_limit_bytes=config.max_store_bytes,
        store_free_bytes=n_free,
        n_shares=None if shares is None else shares[0],
        share_generation=None if shares is None else shares[1],
        shards=shard_health(engine),
    )
