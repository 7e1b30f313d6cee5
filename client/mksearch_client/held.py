"""What the servers hold of a policy group, as its owner sees it: segments and documents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.bundle import KeyBundle
from mksearch.index.catalogue import Catalogue, Lookup
from mksearch.index.catalogue_part import CataloguePart
from mksearch.index.dictionary import Dictionary, SegmentFacts
from mksearch.index.manifest import Group, ObjectRef, SegmentRef
from mksearch.index.rows import Postings
from mksearch.index.segment import SegmentHeader
from mksearch.index.stream import open_stream
from mksearch.index.tombstones import LookupPart, Tombstones
from mksearch.query.group import open_dictionary, open_lookup_parts
from mksearch_client.keys import OwnerKeys
from mksearch_client.part_memory import PartMemory

__all__ = ["HeldGroup", "HeldSegment", "Source"]


@dataclass(frozen=True)
class Source:
    """Where an owner reads from: any server that sends the right bytes.

    Attributes:
        fetch: returns an object, proved by its name.
        header: returns the header of a segment, proved by its name.
        memory: keeps opened parts of the catalogue; None to keep none.
    """

    fetch: Callable[[ObjectRef], bytes]
    header: Callable[[SegmentRef], SegmentHeader]
    memory: PartMemory | None = None

    def part(self, keys: OwnerKeys, ref: ObjectRef) -> CataloguePart:
        """Return a part of the catalogue, opened.

        Raises:
            NotEnoughAnswers: no server sent it.
            VerificationError: it does not open.
        """
        kept = None if self.memory is None else self.memory.get(ref)
        if kept is not None:
            return kept
        sealed = self.fetch(ref)
        content = open_stream(keys.catalogue_key(), "catalogue", keys.collection, sealed)
        part = CataloguePart.decode(content)
        if self.memory is not None:
            self.memory.put(ref, part)
        return part


@dataclass(frozen=True, eq=False)
class HeldSegment:
    """A segment and its documents.

    Attributes:
        ref: its entry in the manifest.
        facts: what the dictionary says of it.
        part: its documents, gone ones included.
        lookup: its entry in the lookup.
        live: bool (n_docs,), the documents that were neither deleted nor replaced.
    """

    ref: SegmentRef
    facts: SegmentFacts
    part: CataloguePart
    lookup: LookupPart
    live: NDArray[np.bool_]

    @cached_property
    def n_live(self) -> int:
        """Live documents."""
        return int(self.live.sum())

    @property
    def n_gone(self) -> int:
        """Documents that are gone and not erased."""
        return len(self.live) - self.n_live

    @cached_property
    def live_rows(self) -> NDArray[np.int64]:
        """Live documents of each row: int64 (n_rows,)."""
        counts = np.bincount(self.part.rows[self.live], minlength=len(self.part.postings))
        return counts.astype(np.int64)

    @cached_property
    def live_postings(self) -> Postings:
        """Term frequencies of the rows that have a live document."""
        rows = np.flatnonzero(self.live_rows)
        postings = self.part.postings
        return postings if len(rows) == len(postings) else postings.take(rows)

    def document_postings(self) -> Postings:
        """Return the term frequencies of the live documents, one row a document."""
        return self.part.postings.take(self.part.rows[self.live])

    def without(
        self, documents: Collection[int], lookup_key: Callable[[str], bytes]
    ) -> HeldSegment:
        """Return the segment without some live documents, given by their numbers."""
        if not documents:
            return self
        live = self.live.copy()
        live[list(documents)] = False
        rows = self.part.rows
        left = np.bincount(rows[live], minlength=len(self.part.postings))
        gone = dict(self.lookup.tombstones.gone)
        for number in documents:
            gone[lookup_key(self.part.ids[number])] = int(rows[number]), False
        gone = {key: (row, not left[row]) for key, (row, _) in gone.items()}
        return replace(self, live=live, lookup=replace(self.lookup, tombstones=Tombstones(gone)))


@dataclass(frozen=True, eq=False)
class HeldGroup:
    """A policy group of the newest version.

    Attributes:
        group: its entry in the manifest.
        bundle: its keys.
        dictionary: its dictionary.
        segments: in the order of the manifest.
    """

    group: Group
    bundle: KeyBundle
    dictionary: Dictionary
    segments: tuple[HeldSegment, ...]

    @classmethod
    def load(
        cls, source: Source, keys: OwnerKeys, group: Group, catalogue: Catalogue
    ) -> HeldGroup | None:
        """Read a group from the servers; None where an older release built a segment of it.

        Raises:
            NotEnoughAnswers: no server sent what is needed.
            VerificationError: it does not open.
        """
        if any(segment.salt not in catalogue.parts for segment in group.segments):
            return None
        bundle = keys.bundle(group.policy, group.epoch)
        dictionary = open_dictionary(bundle, keys.collection, source.fetch(group.dictionary))
        if dictionary.format == 1:
            lookups = tuple(LookupPart(ref.salt, group.lookup) for ref in group.segments)
        else:
            sealed = source.fetch(group.lookup)
            lookups = open_lookup_parts(bundle, keys.collection, group, dictionary, sealed)
        segments = []
        for ref, lookup in zip(group.segments, lookups, strict=True):
            part = source.part(keys, catalogue.parts[ref.salt])
            live = _live(part, lookup.tombstones, bundle)
            segments.append(HeldSegment(ref, dictionary.facts(ref.salt), part, lookup, live))
        return cls(group, bundle, dictionary, tuple(segments))

    @property
    def n_live(self) -> int:
        """Live documents."""
        return sum(segment.n_live for segment in self.segments)

    @cached_property
    def hashes(self) -> Mapping[str, bytes]:
        """Content hash of every live document, by id."""
        found: dict[str, bytes] = {}
        for segment in self.segments:
            pairs = zip(segment.part.ids, segment.part.hashes, strict=True)
            found.update(compress(pairs, segment.live.tolist()))
        return found

    def without(self, ids: Collection[str]) -> HeldGroup:
        """Return the group without some of its live documents."""
        if not ids:
            return self
        hash_key = self.bundle.lookup_key()
        segments = []
        for segment in self.segments:
            numbers = [
                number
                for number, name in enumerate(segment.part.ids)
                if name in ids and segment.live[number]
            ]
            segments.append(segment.without(numbers, lambda name: Lookup.key_of(hash_key, name)))
        return replace(self, segments=tuple(segments))

    def open_lookup(self, source: Source, collection: bytes, at: int) -> Lookup:
        """Return the lookup of one segment."""
        sealed = source.fetch(self.segments[at].lookup.part)
        content = open_stream(self.bundle.section_key("lookup"), "lookup", collection, sealed)
        return Lookup.decode(self.bundle, content)


def _live(part: CataloguePart, tombstones: Tombstones, bundle: KeyBundle) -> NDArray[np.bool_]:
    live = np.ones(len(part.rows), bool)
    live[np.isin(part.rows, tombstones.rows)] = False
    shared: Sequence[int] = sorted(tombstones.shared_rows)
    hash_key = bundle.lookup_key()
    for number in np.flatnonzero(np.isin(part.rows, shared)).tolist():
        key = Lookup.key_of(hash_key, part.ids[number])
        live[number] = key not in tombstones.gone
    return live
