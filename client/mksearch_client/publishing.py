"""Publish documents: read, count, encrypt into a folder, hand to every server.

A publication is complete before its first byte leaves the machine.  What was interrupted on the
way is sent again from the stored bytes; nothing is ever built twice under one salt.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mksearch.access.credential_list import encode_credentials
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.errors import InputError, ParameterError, StorageError
from mksearch.index.blob_list import BlobList
from mksearch.index.builder import SegmentBuilder
from mksearch.index.catalogue import Catalogue, Lookup
from mksearch.index.catalogue_part import CataloguePart
from mksearch.index.dictionary import Dictionary, SegmentFacts
from mksearch.index.manifest import (
    FIRST_PREVIOUS,
    Group,
    Manifest,
    ObjectRef,
    SegmentRef,
    SignedManifest,
)
from mksearch.index.record import Member
from mksearch.index.rows import Postings
from mksearch.index.stream import seal_stream
from mksearch.index.tombstones import LookupPart, Tombstones, encode_parts
from mksearch.params import MANIFEST_LIFE_S, Quorum
from mksearch.text.analyzers import Analyzer, make_analyzer
from mksearch.text.vocabulary import Vocabulary
from mksearch.text.weights import Scoring
from mksearch_client.administration import Administration
from mksearch_client.blob_pack import BlobPackWriter
from mksearch_client.changing import Fresh, change_group
from mksearch_client.counting import count_documents
from mksearch_client.held import HeldGroup, HeldSegment, Source
from mksearch_client.keys import NO_POLICY, OwnerKeys
from mksearch_client.merging import full_tiers
from mksearch_client.part_memory import PartMemory
from mksearch_client.publication import (
    MANIFEST_NAME,
    Progress,
    Publication,
    drop_objects,
    object_path,
    write_carried,
    write_manifest,
    write_object,
)
from mksearch_client.reading import Document
from mksearch_client.sealing import is_sealed_for, next_access, seal_groups
from mksearch_client.storing import SealedDocuments

__all__ = ["Publisher", "many_objects", "require_administration"]


def require_administration(administration: Administration | None) -> None:
    """Raise ParameterError if there is none: documents under a policy need one."""
    if administration is None:
        raise ParameterError(
            "documents under a policy need an administration that admits users",
            cure="run mksearch admin init first",
        )


class Publisher:
    """Prepares versions of one collection of an owner."""

    def __init__(
        self,
        keys: OwnerKeys,
        *,
        name: str,
        quorum: Quorum,
        random: RandomSource,
        analyzer: Analyzer,
        scoring: Scoring,
        policy: bytes = NO_POLICY,
        administration: Administration | None = None,
        make_list: Callable[[], bytes] = lambda: encode_credentials({}),
        memory: PartMemory | None = None,
    ) -> None:
        """Prepare publications signed with ``keys``.

        ``seconds`` says afterwards how long indexing and encrypting took.

        Args:
            keys: the owner's keys.
            name: what the owner calls the collection.
            quorum: number of servers and collusion bound.
            random: source of salts and blob keys.
            analyzer: cuts documents and, later, queries.
            scoring: TF-IDF or BM25.
            policy: of the group that the documents become; b"" for every member.
            administration: of the collection; None for an owner who admits nobody.
            make_list: makes the credentials of all members, when an epoch begins.
            memory: keeps what the catalogue says of new segments; None to keep nothing.

        Raises:
            ParameterError: a policy without an administration.
        """
        if policy:
            require_administration(administration)
        self._keys = keys
        self._name = name
        self._quorum = quorum
        self._random = random
        self._analyzer = analyzer
        self._scoring = scoring
        self._policy = policy
        self._administration = administration
        self._make_list = make_list
        self._memory = memory
        self._epoch = 1 if administration is None else administration.epoch
        self._bundle = keys.bundle(policy, self._epoch)
        self.seconds = {"index": 0.0, "encrypt": 0.0}

    def fits(self, manifest: Manifest) -> bool:
        """Tell whether a version has this group, cut and weighed as it would be."""
        group = manifest.group(self._policy)
        return (
            group is not None
            and group.analyzer == self._analyzer.name
            and dict(group.scoring) == self._scoring_fields()
            and group.epoch == self._epoch
        )

    def made(self, manifest: Manifest) -> bool:
        """Tell whether a version has this group, cut, weighed and sealed as it would be."""
        return self.fits(manifest) and is_sealed_for(manifest, self._administration)

    def _scoring_fields(self) -> dict[str, str | float]:
        return {"kind": self._scoring.kind, "k1": self._scoring.k1, "b": self._scoring.b}

    def prepare(
        self,
        documents: Iterable[Document],
        folder: Path,
        *,
        now_s: int,
        previous: SignedManifest | None = None,
        carried: Catalogue | None = None,
        progress: Progress | None = None,
        may_be_empty: bool = False,
    ) -> Publication:
        """Encrypt ``documents`` into ``folder`` as the version after ``previous``.

        They become the content of this publisher's group; other groups stay as they are.

        Args:
            documents: read once, one at a time; ids all different.
            folder: made, or emptied of what an interrupted preparation left.
            now_s: Unix seconds.
            previous: the manifest before, None for version 1.
            carried: catalogue of the groups that stay.
            progress: told what is being done.
            may_be_empty: a group without documents is wanted rather than an error.

        Raises:
            InputError: no document, or two with one id.
            StorageError: the folder cannot be written.
        """
        report = progress or (lambda _what, _share: None)

        def group(blobs: BlobPackWriter) -> tuple[Group, Catalogue]:
            return self._prepare(
                documents, folder, blobs, carried or Catalogue(), report, may_be_empty=may_be_empty
            )

        return self._written(group, folder, now_s, previous, report)

    def change(
        self,
        held: HeldGroup,
        documents: Iterable[Document],
        folder: Path,
        *,
        source: Source,
        now_s: int,
        previous: SignedManifest,
        catalogue: Catalogue,
        merged: Collection[int] | None = None,
        progress: Progress | None = None,
    ) -> Publication:
        """Encrypt what is new of a group into ``folder`` as the version after ``previous``.

        Args:
            held: this publisher's group as ``previous`` has it, without the documents that go.
            documents: that come; read once; ids all different and of no live document.
            folder: made, or emptied of what an interrupted preparation left.
            source: where objects of the group are read from.
            now_s: Unix seconds.
            previous: the manifest before.
            catalogue: of all groups.
            merged: segments that become one with the new documents; None for those that the
                tiers say.
            progress: told what is being done.

        Raises:
            InputError: two documents have one id.
            NotEnoughAnswers: no server sent what is needed.
            StorageError: the folder cannot be written.
        """
        report = progress or (lambda _what, _share: None)

        def group(blobs: BlobPackWriter) -> tuple[Group, Catalogue]:
            return self._change(held, documents, folder, blobs, source, catalogue, merged, report)

        return self._written(group, folder, now_s, previous, report)

    def _written(
        self,
        make: Callable[[BlobPackWriter], tuple[Group, Catalogue]],
        folder: Path,
        now_s: int,
        previous: SignedManifest | None,
        report: Progress,
    ) -> Publication:
        """Write what ``make`` says into ``folder``; on an error nothing of it stays."""
        if (folder / MANIFEST_NAME).exists():
            raise InputError(
                f"{folder} holds a complete publication",
                cure="send that one first, or choose another folder",
            )
        try:
            drop_objects(folder)
            (folder / "objects").mkdir(parents=True)
            with closing(BlobPackWriter(folder)) as blobs, many_objects():
                report("reading", 0.0)
                group, catalogue = make(blobs)
                return self._sign(group, catalogue, folder, now_s, previous, report)
        except OSError as error:
            drop_objects(folder)
            raise StorageError(
                f"{folder} cannot be written: {error.strerror}", cure="make room or choose another"
            ) from None

    def _prepare(
        self,
        documents: Iterable[Document],
        folder: Path,
        blobs: BlobPackWriter,
        carried: Catalogue,
        report: Progress,
        *,
        may_be_empty: bool,
    ) -> tuple[Group, Catalogue]:
        stored = SealedDocuments(self._keys.collection, blobs, self._random)
        counts = count_documents(self._analyzer, stored.keep(documents))
        blobs.finish()
        if not stored.members and may_be_empty:
            return self._empty(counts.vocabulary, folder, carried, report)
        if not stored.members:
            raise InputError(
                "there is no document to publish",
                cure="name a folder or file with text, Markdown or JSON lines",
            )
        report("indexing", 0.0)
        fresh = Fresh(counts, stored.members, stored.hashes)
        built = self._build(fresh, folder, report)
        lookup = Lookup.encode(self._bundle, stored.lookup(built.rows.tolist()))
        ref = self._write_section(folder, "lookup", lookup)
        part = self._write_part(folder, self._part(fresh, built))
        dictionary = self._dictionary(counts.vocabulary, built.n_dedicated, (built.facts,), None)
        listed = BlobList.of([*stored.blobs, (part.id, part.size)])
        group = self._group(dictionary, (built.ref,), ref, listed, folder)
        parts = {**carried.parts, built.ref.salt: part}
        return group, Catalogue(parts, carried.entries)

    def _empty(
        self, vocabulary: Vocabulary, folder: Path, carried: Catalogue, report: Progress
    ) -> tuple[Group, Catalogue]:
        """Write a group without documents: a segment of one row, which is gone from the start."""
        fresh = _placeholder()
        built = self._build(fresh, folder, report)
        part = self._write_part(folder, self._part(fresh, built))
        own = self._write_section(folder, "lookup", Lookup.encode(self._bundle, []))
        gone = Tombstones({self._random.bytes(16): (0, True)})
        places = encode_parts([LookupPart(built.ref.salt, own, gone)], self._random)
        ratios = np.zeros(0, np.int64)
        dictionary = self._dictionary(vocabulary, built.n_dedicated, (built.facts,), ratios)
        listed = BlobList.of([(part.id, part.size), (own.id, own.size)])
        lookup = self._write_section(folder, "lookup", places)
        group = self._group(dictionary, (built.ref,), lookup, listed, folder)
        return group, Catalogue({**carried.parts, built.ref.salt: part}, carried.entries)

    def _change(
        self,
        held: HeldGroup,
        documents: Iterable[Document],
        folder: Path,
        blobs: BlobPackWriter,
        source: Source,
        catalogue: Catalogue,
        merged: Collection[int] | None,
        report: Progress,
    ) -> tuple[Group, Catalogue]:
        stored = SealedDocuments(self._keys.collection, blobs, self._random)
        counts = count_documents(self._analyzer, stored.keep(documents))
        blobs.finish()
        report("indexing", 0.0)
        added = Fresh(counts, stored.members, stored.hashes)
        if merged is None:
            n_live = [segment.n_live for segment in held.segments]
            merged = full_tiers(n_live, len(added.members)) if added.members else ()
        headers = [source.header(segment.ref) for segment in held.segments]
        levels = max((header.layout.levels for header in headers), key=len)
        changed = change_group(held, self._scoring, added, merged, levels)
        left = [held.open_lookup(source, self._keys.collection, at) for at in changed.merged]
        fresh = changed.fresh
        if fresh is None and changed.is_anew:
            salts = [segment.ref.salt for segment in held.segments]
            group, catalogue = self._empty(
                changed.vocabulary, folder, catalogue.without(salts), report
            )
            return _sealed_as(group, held.group), catalogue
        segments = list(changed.kept)
        gone: list[bytes] = []
        listed: dict[bytes, int] = {}
        for at, lookup in zip(changed.merged, left, strict=True):
            gone += [Lookup.blob_of(raw)[0] for raw in lookup.raw().values()]
            gone.append(held.segments[at].lookup.part.id)
            gone.append(catalogue.parts[held.segments[at].ref.salt].id)
        catalogue = catalogue.without(held.segments[at].ref.salt for at in changed.merged)
        n_dedicated = changed.n_dedicated
        if fresh is not None:
            built = self._build(fresh, folder, report)
            n_dedicated = n_dedicated or built.n_dedicated
            lookup_ref, own = self._write_lookup(fresh, stored, left, built, folder)
            content = self._part(fresh, built)
            part = self._write_part(folder, content)
            catalogue = Catalogue({**catalogue.parts, built.ref.salt: part}, catalogue.entries)
            listed |= {**own, part.id: part.size}
            place = LookupPart(built.ref.salt, lookup_ref)
            live = np.ones(len(fresh.hashes), bool)
            segments.append(HeldSegment(built.ref, built.facts, content, place, live))
        dictionary = self._dictionary(
            changed.vocabulary,
            n_dedicated or (),
            tuple(segment.facts for segment in segments),
            changed.ratios,
        )
        listed |= {segment.lookup.part.id: segment.lookup.part.size for segment in segments}
        places = encode_parts((segment.lookup for segment in segments), self._random)
        group = self._group(
            dictionary,
            tuple(segment.ref for segment in segments),
            self._write_section(folder, "lookup", places),
            BlobList.decode(source.fetch(held.group.blobs)).changed(gone, listed.items()),
            folder,
        )
        return _sealed_as(group, held.group), catalogue

    def _write_lookup(
        self,
        fresh: Fresh,
        stored: SealedDocuments,
        left: Sequence[Lookup],
        built: _Built,
        folder: Path,
    ) -> tuple[ObjectRef, dict[bytes, int]]:
        """Write the lookup of a new segment; return it, and the blobs of its documents."""
        rows = built.rows.tolist()
        n_added = len(stored.members)
        own = Lookup.decode(
            self._bundle, Lookup.encode(self._bundle, stored.lookup(rows[:n_added]))
        ).raw()
        for lookup in left:
            own |= lookup.raw()
        hash_key = self._bundle.lookup_key()
        entries = [
            (own[Lookup.key_of(hash_key, member.id)], row)
            for member, row in zip(fresh.members, rows, strict=True)
        ]
        blobs = dict(Lookup.blob_of(raw) for raw, _ in entries)
        return self._write_section(folder, "lookup", Lookup.encode_raw(entries)), blobs

    def _sign(
        self,
        group: Group,
        catalogue: Catalogue,
        folder: Path,
        now_s: int,
        previous: SignedManifest | None,
        report: Progress,
    ) -> Publication:
        groups = self._seal(self._joined(group, previous), previous, folder)
        # Who the servers are is changed by nothing but a change of the servers.
        quorum = self._quorum if previous is None else previous.manifest.quorum
        access = next_access(
            self._administration,
            None if previous is None else previous.manifest,
            self._make_list,
            lambda data: write_object(folder, data),
            quorum.n_servers,
        )
        manifest = Manifest(
            collection=self._keys.collection,
            name=self._name,
            version=previous.manifest.version + 1 if previous else 1,
            previous=previous.hash if previous else FIRST_PREVIOUS,
            created_at=now_s,
            expires_at=now_s + MANIFEST_LIFE_S,
            quorum=quorum,
            owner_key=self._keys.signing.public,
            groups=groups,
            catalogue=self._write_sealed(
                folder, self._keys.catalogue_key(), "catalogue", catalogue.encode()
            ),
            access=access,
            timestamp_key=previous.manifest.timestamp_key if previous else b"",
            servers=previous.manifest.servers if previous else None,
        )
        signed = SignedManifest.sign(manifest, self._keys.signing)
        write_carried(folder, manifest)
        write_manifest(folder, signed)
        report("encrypting", 1.0)
        return Publication(folder, signed)

    def _joined(self, group: Group, previous: SignedManifest | None) -> tuple[Group, ...]:
        """Return the groups of the version before with ``group`` in its place."""
        before = () if previous is None else previous.manifest.groups
        if all(other.policy != self._policy for other in before):
            return (*before, group)
        return tuple(group if other.policy == self._policy else other for other in before)

    def _seal(
        self, groups: Sequence[Group], previous: SignedManifest | None, folder: Path
    ) -> tuple[Group, ...]:
        return seal_groups(
            groups,
            None if previous is None else previous.manifest,
            self._administration,
            self._keys,
            self._random,
            lambda data: write_object(folder, data),
        )

    def _build(self, fresh: Fresh, folder: Path, report: Progress) -> _Built:
        """Build and write the segment of some documents."""
        started = time.perf_counter()
        builder = SegmentBuilder(
            fresh.counts,
            fresh.members,
            self._scoring,
            self._bundle,
            collection=self._keys.collection,
            epoch=self._epoch,
            random=self._random,
            geometry=fresh.geometry,
            n_dedicated=fresh.n_dedicated,
        )
        indexed = time.perf_counter()
        partial = folder / "objects" / ".segment"
        _reserve(partial, builder.layout.n_bytes)
        data = np.memmap(partial, np.uint8, "r+", shape=(builder.layout.n_bytes,))
        header = builder.write(data, lambda _what, share: report("encrypting", share))
        data.flush()
        del data
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, object_path(folder, header.id))
        self.seconds = {"index": indexed - started, "encrypt": time.perf_counter() - indexed}
        ref = SegmentRef(header.id, builder.layout.n_bytes, builder.salt)
        rows = builder.row_of_document()
        postings = builder.rows.postings
        return _Built(ref, builder.facts, builder.n_dedicated, rows, postings)

    def _part(self, fresh: Fresh, built: _Built) -> CataloguePart:
        """Return what the owner remembers of a segment."""
        members = fresh.members if fresh.hashes else ()
        order = sorted(range(len(members)), key=lambda number: members[number].id.encode())
        return CataloguePart(
            [members[number].id for number in order],
            [members[number].title for number in order],
            [members[number].snippet for number in order],
            [fresh.hashes[number] for number in order],
            built.rows[np.array(order, np.int64)],
            built.postings,
            fresh.counts.vocabulary.statistics,
        )

    def _write_part(self, folder: Path, part: CataloguePart) -> ObjectRef:
        key = self._keys.catalogue_key()
        ref = self._write_sealed(folder, key, "catalogue", part.encode())
        if self._memory is not None:
            self._memory.put(ref, part)
        return ref

    def _dictionary(
        self,
        vocabulary: Vocabulary,
        n_dedicated: Sequence[int],
        segments: tuple[SegmentFacts, ...],
        ratios: NDArray[np.int64] | None,
    ) -> Dictionary:
        return Dictionary(
            self._analyzer.name,
            tuple(sorted(self._analyzer.stop_words)),
            self._scoring_fields(),
            vocabulary.n_docs,
            vocabulary.total_length,
            vocabulary.terms,
            vocabulary.dfs,
            tuple(n_dedicated),
            segments,
            ratios,
        )

    def _group(
        self,
        dictionary: Dictionary,
        segments: tuple[SegmentRef, ...],
        lookup: ObjectRef,
        blobs: BlobList,
        folder: Path,
    ) -> Group:
        return Group(
            self._policy,
            self._epoch,
            self._analyzer.name,
            self._scoring_fields(),
            dictionary.n_docs,
            segments,
            self._write_section(folder, "dictionary", dictionary.encode()),
            lookup,
            write_object(folder, blobs.encode()),
        )

    def _write_section(self, folder: Path, name: str, content: bytes) -> ObjectRef:
        return self._write_sealed(folder, self._bundle.section_key(name), name, content)

    def _write_sealed(self, folder: Path, key: SecretKey, kind: str, content: bytes) -> ObjectRef:
        sealed = seal_stream(key, kind, self._keys.collection, content, self._random)
        return write_object(folder, sealed)


@dataclass(frozen=True, eq=False)
class _Built:
    """A segment that was built.

    Attributes:
        ref: its entry in the manifest.
        facts: what the dictionary says of it.
        n_dedicated: dedicated terms of each level.
        rows: int64 (n_docs,), row of each document.
        postings: of its rows.
    """

    ref: SegmentRef
    facts: SegmentFacts
    n_dedicated: tuple[int, ...]
    rows: NDArray[np.int64]
    postings: Postings


def _sealed_as(group: Group, other: Group) -> Group:
    """Return ``group`` with the sealed bundle of ``other``, whose keys it has."""
    return replace(group, bundle=other.bundle, search_key=other.search_key)


def _placeholder() -> Fresh:
    """Return the one document, gone from the start, of a group that has no other."""
    counts = count_documents(make_analyzer("plain-1"), [""], n_workers=0)
    return Fresh(counts, [Member("-", "", "")], [])


def _reserve(path: Path, n_bytes: int) -> None:
    """Make a file of zeros that the disk has room for; raise OSError where it has none.

    A page that is written through a mapping, and has no room, would end the process.
    """
    with path.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, n_bytes)
        else:
            file.truncate(n_bytes)


@contextmanager
def many_objects() -> Iterator[None]:
    """Have no garbage sought: millions of objects stay, and none of them form cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
