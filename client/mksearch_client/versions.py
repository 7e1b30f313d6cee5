"""Which of the manifests that servers show is the collection's newest version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Protocol, TypeVar

from mksearch.errors import ManifestRefused, ManifestStale, VerificationError
from mksearch.index.equivocation import Equivocation, are_rivals
from mksearch.index.manifest import SignedManifest
from mksearch.params import Quorum
from mksearch_client.asking import Asking, Servers

__all__ = ["RivalsCallback", "newest_agreed", "newest_manifest"]

#: Told of two manifests of which only one can be; returns the file that keeps both, "" for none.
RivalsCallback = Callable[[Equivocation], str]


class _Manifests(Protocol):
    def manifest(self) -> bytes: ...


_Shows = TypeVar("_Shows", bound=_Manifests)


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
    on_rivals: RivalsCallback = lambda _evidence: "",
    on_shown: Callable[[SignedManifest], None] = lambda _signed: None,
) -> SignedManifest:
    """Return the newest of at least t + 1 valid manifests; mark the servers that lag.

    Args:
        servers: whom to ask.
        owner_key: pinned, 32 bytes.
        collection: pinned, 16 bytes.
        quorum: as pinned.
        seen: highest version that was seen before.
        on_rivals: keeps evidence that the owner's key signed two manifests (14.3).
        on_shown: told of every manifest that is proved, whether it counts in the end or not.

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
            if are_rivals(signed, seen):
                raise ManifestStale(
                    _told(Equivocation.of(signed, seen), on_rivals),
                    cure="ask the owner which one counts",
                )
            signed.require_not_older(seen)
        found[server] = signed
        on_shown(signed)

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
            raise _contradiction(found, on_rivals)
        raise servers.refusal("manifests", len(found), need())
    newest = newest_agreed(found, need())
    if newest is None or (seen is not None and seen.manifest.version > newest.manifest.version):
        newest = seen
    if newest is None:
        raise VerificationError("no manifest was proved")
    _mark_others(servers, found, newest, on_rivals)
    return newest


def _told(evidence: Equivocation, on_rivals: RivalsCallback) -> str:
    """Have evidence kept; return what it says, in one line, and where it is."""
    path = on_rivals(evidence)
    return f"{evidence}; both are in {path}" if path else str(evidence)


def _mark_others(
    servers: Servers[_Shows],
    found: Mapping[int, SignedManifest],
    newest: SignedManifest,
    on_rivals: RivalsCallback,
) -> None:
    """Remember which servers show another version than the newest."""
    for server, signed in found.items():
        if are_rivals(signed, newest):
            told = _told(Equivocation.of(signed, newest), on_rivals)
            servers.mark(
                server,
                "stale",
                f"shows a manifest of version {signed.manifest.version} that does not go with "
                f"version {newest.manifest.version} of the others: {told}",
            )
        elif signed.manifest.version < newest.manifest.version:
            servers.mark(
                server,
                "stale",
                f"serves version {signed.manifest.version}, the newest seen is "
                f"{newest.manifest.version}",
            )


def _contradiction(
    found: Mapping[int, SignedManifest], on_rivals: RivalsCallback
) -> ManifestRefused:
    """Return the error of servers that show versions of which only one can be right."""
    different = {signed.hash: signed for signed in found.values()}
    told = "; ".join(
        _told(Equivocation.of(*pair), on_rivals)
        for pair in combinations(different.values(), 2)
        if are_rivals(*pair)
    )
    shown = ", ".join(
        f"server {server} version {signed.manifest.version} ({signed.hash.hex()[:16]})"
        for server, signed in sorted(found.items())
    )
    return ManifestRefused(
        f"servers show manifests that contradict each other, and too few others: {shown}: {told}",
        cure="ask the owner which one counts",
    )
