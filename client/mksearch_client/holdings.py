"""What an owner's servers hold of all policy groups: documents by id, group by group."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from mksearch.errors import InputError
from mksearch.index.catalogue import Catalogue
from mksearch.index.manifest import Group, SignedManifest
from mksearch.index.stream import open_stream
from mksearch_client.fleet import Fleet
from mksearch_client.held import HeldGroup, Source
from mksearch_client.keys import OwnerKeys
from mksearch_client.part_memory import PartMemory
from mksearch_client.profile import Profile

__all__ = ["Holdings", "memory_of", "source_of"]


def source_of(fleet: Fleet) -> Source:
    """Return where an owner reads objects from: any of the servers."""
    return Source(fleet.fetch, fleet.header, memory_of(fleet.profile))


def memory_of(profile: Profile) -> PartMemory:
    """Return where a profile keeps opened parts of its catalogue."""
    return PartMemory(profile.folder / "parts", profile.keys)


@dataclass(frozen=True, eq=False)
class Holdings:
    """The documents of one version.

    Attributes:
        signed: the version, None before the first.
        catalogue: of all its groups.
        held: groups that can be changed, by policy.
        old: content hashes by id of groups that an older release published, by policy.
    """

    signed: SignedManifest | None
    catalogue: Catalogue = field(default_factory=Catalogue)
    held: Mapping[bytes, HeldGroup] = field(default_factory=dict)
    old: Mapping[bytes, Mapping[str, bytes]] = field(default_factory=dict)

    @classmethod
    def read(cls, fleet: Fleet, keys: OwnerKeys, signed: SignedManifest | None) -> Holdings:
        """Fetch and open catalogue and groups of a version.

        Raises:
            NotEnoughAnswers: no server sent what is needed.
            VerificationError: it does not open.
        """
        if signed is None:
            return cls(None)
        sealed = fleet.fetch(signed.manifest.catalogue)
        content = open_stream(keys.catalogue_key(), "catalogue", keys.collection, sealed)
        catalogue = Catalogue.decode(content)
        memory_of(fleet.profile).keep_only(catalogue.parts.values())
        held: dict[bytes, HeldGroup] = {}
        old: dict[bytes, Mapping[str, bytes]] = {}
        for group in signed.manifest.groups:
            found = HeldGroup.load(source_of(fleet), keys, group, catalogue)
            if found is not None:
                held[group.policy] = found
            else:
                old[group.policy] = _entries(group, catalogue)
        return cls(signed, catalogue, held, old)

    def hashes(self, policy: bytes) -> Mapping[str, bytes]:
        """Return the content hash of every live document of a group, by id; none without it."""
        found = self.held.get(policy)
        return self.old.get(policy, {}) if found is None else found.hashes

    def carried(self, policy: bytes) -> Catalogue:
        """Return the catalogue of all groups but one."""
        group = None if self.signed is None else self.signed.manifest.group(policy)
        salts = () if group is None else [segment.salt for segment in group.segments]
        return self.catalogue.without(salts)

    def require_not_elsewhere(self, policy: bytes, ids: Collection[str]) -> None:
        """Raise InputError if a document is published under another policy: it would be twice."""
        for other in (*self.held, *self.old):
            if other == policy:
                continue
            twice = sorted(set(ids) & set(self.hashes(other)))
            if twice:
                raise InputError(
                    f"{len(twice)} of these documents are published under another policy, "
                    f"{twice[0]!r} under {other.decode() or 'no policy'} for one",
                    cure="delete them there first (mksearch owner delete), or give these other ids",
                )


def _entries(group: Group, catalogue: Catalogue) -> dict[str, bytes]:
    salts = {segment.salt for segment in group.segments}
    return {entry.id: entry.content_hash for entry in catalogue.entries if entry.salt in salts}
