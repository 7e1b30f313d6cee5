"""Which of the manifests that servers show is the collection's newest version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from mksearch.errors import ManifestRefused, VerificationError
from mksearch.index.manifest import SignedManifest
from mksearch.params import Quorum
from mksearch_client.asking import Asking, Servers

__all__ = ["are_rivals", "newest_agreed", "newest_manifest"]


class _Manifests(Protocol):
    def manifest(self) -> bytes: ...


_Shows = TypeVar("_Shows", bound=_Manifests)


def are_rivals(one: SignedManifest, other: SignedManifest) -> bool:
    """Return whether no collection has both versions: of one number, or not one after the other."""
    older, newer = sorted((one, other), key=lambda signed: signed.manifest.version)
    distance = newer.manifest.version - older.manifest.version
    if distance == 1:
        return newer.manifest.previous != older.hash
    return distance == 0 and newer.hash != older.hash


def newest_agreed(found: Mapping[int, SignedManifest], threshold: int) -> SignedManifest | None:
    """Return the newest version that enough servers agree with, or None while that is open.

    A server agrees with a version if what it shows is that version or may have come before or after
    it.  So a single server that shows an older version, or a second one of the same number, neither
    wins nor keeps the others from being believed, whichever answered first.

    Args:
        found: what each server shows, its signature proved.
        threshold: servers that must agree, t + 1: one of them is honest.
    """
    shown = {signed.hash: signed for signed in found.values()}
    agreed = [
        signed
        for signed in shown.values()
        if sum(not are_rivals(signed, other) for other in found.values()) >= threshold
    ]
    if not agreed:
        return None
    newest = max(agreed, key=lambda signed: signed.manifest.version)
    if any(are_rivals(newest, other) for other in agreed):
        return None
    return newest


def newest_manifest(
    servers: Servers[_Shows],
    *,
    owner_key: bytes,
    collection: bytes,
    quorum: Quorum,
    seen: SignedManifest | None,
) -> SignedManifest:
    """Return the newest of at least t + 1 valid manifests; mark the servers that lag.

    Args:
        servers: whom to ask.
        owner_key: pinned, 32 bytes.
        collection: pinned, 16 bytes.
        quorum: as pinned.
        seen: highest version that was seen before.

    Raises:
        NotEnoughAnswers: fewer than t + 1 valid manifests.
        ManifestRefused: they contradict each other.
    """
    found: dict[int, SignedManifest] = {}

    def ask(server: int) -> bytes:
        return servers.connections[server].manifest()

    def take(server: int, data: bytes) -> None:
        signed = SignedManifest.decode(data, owner_key, collection)
        if seen is not None and signed.manifest.version >= seen.manifest.version:
            signed.require_not_older(seen)
        found[server] = signed

    def need() -> int:
        stated = [signed.manifest.quorum.threshold for signed in found.values()]
        return max([quorum.threshold, *stated])

    def n_missing() -> int:
        if newest_agreed(found, need()) is not None:
            return 0
        # Enough of them, but they contradict each other: one more decides.
        return max(1, need() - len(found))

    if not Asking(servers, ask, take).until(n_missing):
        if len(found) >= need():
            raise _contradiction(found)
        raise servers.refusal("manifests", len(found), need())
    newest = newest_agreed(found, need())
    if newest is None or (seen is not None and seen.manifest.version > newest.manifest.version):
        newest = seen
    if newest is None:
        raise VerificationError("no manifest was proved")
    _mark_others(servers, found, newest)
    return newest


def _mark_others(
    servers: Servers[_Shows], found: Mapping[int, SignedManifest], newest: SignedManifest
) -> None:
    """Remember which servers show another version than the newest."""
    for server, signed in found.items():
        if are_rivals(signed, newest):
            servers.mark(
                server,
                "stale",
                f"shows a manifest of version {signed.manifest.version} "
                f"({signed.hash.hex()}) that does not go with version "
                f"{newest.manifest.version} ({newest.hash.hex()}) of the others; the owner's "
                "key signed both",
            )
        elif signed.manifest.version < newest.manifest.version:
            servers.mark(
                server,
                "stale",
                f"serves version {signed.manifest.version}, the newest seen is "
                f"{newest.manifest.version}",
            )


def _contradiction(found: Mapping[int, SignedManifest]) -> ManifestRefused:
    """Return the error of servers that show versions of which only one can be right."""
    shown = ", ".join(
        f"server {server} version {signed.manifest.version} ({signed.hash.hex()[:16]})"
        for server, signed in sorted(found.items())
    )
    return ManifestRefused(
        f"servers show manifests that contradict each other, and too few others: {shown}",
        cure="the owner's key signed them; ask the owner which one counts",
    )
