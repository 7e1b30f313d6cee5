"""Which of the manifests that servers show is the collection's newest version."""

from __future__ import annotations

from collections.abc import Mapping

from mksearch.index.manifest import SignedManifest

__all__ = ["are_rivals", "newest_agreed"]


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
