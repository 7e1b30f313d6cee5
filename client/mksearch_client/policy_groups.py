"""Which documents of a catalogue belong to the group of a policy, and which to others."""

from __future__ import annotations

from collections.abc import Mapping

from mksearch.errors import InputError
from mksearch.index.catalogue import CatalogueEntry
from mksearch.index.manifest import SignedManifest

__all__ = ["divide", "require_not_elsewhere"]


def divide(
    signed: SignedManifest, policy: bytes, entries: list[CatalogueEntry]
) -> tuple[list[CatalogueEntry], list[CatalogueEntry]]:
    """Return the entries of the group under ``policy``, and those of all others."""
    group = signed.manifest.group(policy)
    salts = set() if group is None else {segment.salt for segment in group.segments}
    own = [entry for entry in entries if entry.salt in salts]
    return own, [entry for entry in entries if entry.salt not in salts]


def require_not_elsewhere(
    signed: SignedManifest, wanted: Mapping[str, bytes], carried: list[CatalogueEntry]
) -> None:
    """Raise InputError if a document is published under another policy: it would be there twice."""
    twice = sorted((e for e in carried if e.id in wanted), key=lambda entry: entry.id)
    if not twice:
        return
    policies = {
        segment.salt: group.policy.decode() or "no policy"
        for group in signed.manifest.groups
        for segment in group.segments
    }
    raise InputError(
        f"{len(twice)} of these documents are published under another policy, {twice[0].id!r} "
        f"under {policies.get(twice[0].salt, 'another')} for one",
        cure="publish that policy's documents without them first (--delete-missing), or give "
        "these other ids",
    )
