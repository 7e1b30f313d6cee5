"""Until when the newest version is good: its own expiry, or what its timestamp key says later."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, wait

from mksearch.crypto.kdf import sha256
from mksearch.errors import MksearchError
from mksearch.index.manifest import SignedManifest
from mksearch.index.renewal import SignedRenewal, latest_renewal
from mksearch.params import MANIFEST_WARNING_S
from mksearch_client.asking import Servers
from mksearch_client.fetching import Cache, Connection

__all__ = ["Freshness", "ask_renewals"]

#: Seconds after which renewals are asked for again, while a version is good and expires soon.
_AGAIN_S = 60


def ask_renewals(
    servers: Servers[Connection], signed: SignedManifest, now_s: int
) -> SignedRenewal | None:
    """Ask all servers at once for the latest renewal; None without one that proves right.

    Servers that are slow are waited for only while the version would be expired without them.

    Args:
        servers: whom to ask; none of them is named for what it does.
        signed: the manifest, proved.
        now_s: Unix seconds.
    """
    asked = {servers.start(_renewal_of(servers.connections), s) for s in servers.connections}
    latest: SignedRenewal | None = None
    last_s = time.monotonic() + servers.hedge_s
    while asked:
        until_s = max(signed.manifest.expires_at, 0 if latest is None else latest.expires_at)
        patience_s = None if now_s > until_s else max(0.0, last_s - time.monotonic())
        finished, asked = wait(asked, patience_s, FIRST_COMPLETED)
        if not finished:
            break
        latest = _later(latest, latest_renewal((f.result() for f in finished), signed, now_s))
    return latest


def _renewal_of(connections: Mapping[int, Connection]) -> Callable[[int], bytes]:
    def ask(server: int) -> bytes:
        try:
            return connections[server].renewal()
        except (MksearchError, OSError):
            return b""

    return ask


def _later(one: SignedRenewal | None, other: SignedRenewal | None) -> SignedRenewal | None:
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda renewal: renewal.expires_at)


class Freshness:
    """Remembers until when the newest version is good, and asks when that is soon."""

    def __init__(self, cache: Cache) -> None:
        """Keep renewals in ``cache``: they prove themselves when they are read."""
        self._cache = cache
        self._hash = b""
        self._until_s = 0
        self._asked_s: int | None = None

    def until(self, servers: Servers[Connection], signed: SignedManifest, now_s: int) -> int:
        """Return until when ``signed`` is good, Unix seconds (14.2, step 4).

        Args:
            servers: asked where the version expires soon and names a timestamp key.
            signed: the newest manifest, proved.
            now_s: Unix seconds.
        """
        if self._hash != signed.hash:
            self._hash, self._until_s = signed.hash, signed.manifest.expires_at
            self._asked_s = None
        if not signed.manifest.timestamp_key or not self._is_soon(now_s):
            return self._until_s
        kept = self._cache.get(_cache_name(signed)) or b""
        self._take(latest_renewal([kept], signed, now_s))
        if self._is_soon(now_s) and self._may_ask(now_s):
            self._asked_s = now_s
            found = ask_renewals(servers, signed, now_s)
            if found is not None and found.expires_at > self._until_s:
                self._cache.put(_cache_name(signed), found.encode())
            self._take(found)
        return self._until_s

    def _take(self, renewal: SignedRenewal | None) -> None:
        if renewal is not None:
            self._until_s = max(self._until_s, renewal.expires_at)

    def _is_soon(self, now_s: int) -> bool:
        return self._until_s - now_s < MANIFEST_WARNING_S

    def _may_ask(self, now_s: int) -> bool:
        is_expired = now_s > self._until_s
        return is_expired or self._asked_s is None or not 0 <= now_s - self._asked_s < _AGAIN_S


def _cache_name(signed: SignedManifest) -> bytes:
    return sha256(b"renewal\0", signed.hash)
