"""Publish documents: read, count, encrypt into a folder, hand to every server.

A publication is complete before its first byte leaves the machine.  What was interrupted on the
way is sent again from the stored bytes; nothing is ever built twice under one salt.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from mksearch.access.credential_list import encode_credentials
from mksearch.crypto.kdf import sha256
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.errors import InputError, ParameterError, StorageError
from mksearch.index.blob_list import BlobList
from mksearch.index.builder import SegmentBuilder
from mksearch.index.catalogue import CatalogueEntry, Lookup, LookupEntry, encode_catalogue
from mksearch.index.dictionary import Dictionary
from mksearch.index.document import StoredDocument
from mksearch.index.manifest import (
    FIRST_PREVIOUS,
    Group,
    Manifest,
    ObjectRef,
    SegmentRef,
    SignedManifest,
)
from mksearch.index.record import Member
from mksearch.index.stream import seal_stream
from mksearch.params import KEY_BYTES, MANIFEST_LIFE_S, SNIPPET_CHARS, TITLE_CHARS, Quorum
from mksearch.text.analyzers import Analyzer
from mksearch.text.vocabulary import Counts
from mksearch.text.weights import Scoring
from mksearch_client.administration import Administration
from mksearch_client.blob_pack import BlobPackWriter
from mksearch_client.counting import count_documents
from mksearch_client.keys import NO_POLICY, OwnerKeys
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

__all__ = ["Publisher", "content_hash", "require_administration", "summarise"]


def summarise(document: Document) -> Member:
    """Return what a result shows of ``document``: id, title and the start of its text."""
    snippet = " ".join(document.text[: 4 * SNIPPET_CHARS].split())
    if len(snippet) > SNIPPET_CHARS:
        snippet = snippet[: SNIPPET_CHARS - 1].rsplit(" ", 1)[0] + "…"
    title = " ".join(document.title[: 4 * TITLE_CHARS].split())[:TITLE_CHARS]
    return Member(document.id, title, snippet)


def content_hash(document: Document) -> bytes:
    """Return SHA-256 of what is stored of ``document``: 32 bytes."""
    return sha256(StoredDocument(document.id, document.title, document.text).encode())


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
        self._epoch = 1 if administration is None else administration.epoch
        self._bundle = keys.bundle(policy, self._epoch)
        self.seconds = {"index": 0.0, "encrypt": 0.0}

    def made(self, manifest: Manifest) -> bool:
        """Tell whether a version has this group, cut, weighed and sealed as it would be."""
        group = manifest.group(self._policy)
        return (
            group is not None
            and group.analyzer == self._analyzer.name
            and dict(group.scoring) == self._scoring_fields()
            and group.epoch == self._epoch
            and is_sealed_for(manifest, self._administration)
        )

    def _scoring_fields(self) -> dict[str, str | float]:
        return {"kind": self._scoring.kind, "k1": self._scoring.k1, "b": self._scoring.b}

    def prepare(
        self,
        documents: Iterable[Document],
        folder: Path,
        *,
        now_s: int,
        previous: SignedManifest | None = None,
        carried: Sequence[CatalogueEntry] = (),
        progress: Progress | None = None,
    ) -> Publication:
        """Encrypt ``documents`` into ``folder`` as the version after ``previous``.

        They become the content of this publisher's group; other groups stay as they are.

        Args:
            documents: read once, one at a time; ids all different.
            folder: made, or emptied of what an interrupted preparation left.
            now_s: Unix seconds.
            previous: the manifest before, None for version 1.
            carried: catalogue entries of the groups that stay.
            progress: told what is being done.

        Raises:
            InputError: no document, or two with one id.
            StorageError: the folder cannot be written.
        """
        report = progress or (lambda _what, _share: None)
        if (folder / MANIFEST_NAME).exists():
            raise InputError(
                f"{folder} holds a complete publication",
                cure="send that one first, or choose another folder",
            )
        try:
            drop_objects(folder)
            (folder / "objects").mkdir(parents=True)
            with closing(BlobPackWriter(folder)) as blobs, _many_objects():
                return self._prepare(documents, folder, blobs, now_s, previous, carried, report)
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
        now_s: int,
        previous: SignedManifest | None,
        carried: Sequence[CatalogueEntry],
        report: Progress,
    ) -> Publication:
        report("reading", 0.0)
        stored = _StoredDocuments(self._keys.collection, blobs, self._random)
        counts = count_documents(self._analyzer, stored.keep(documents))
        blobs.finish()
        if not stored.members:
            raise InputError(
                "there is no document to publish",
                cure="name a folder or file with text, Markdown or JSON lines",
            )
        report("indexing", 0.0)
        started = time.perf_counter()
        builder = SegmentBuilder(
            counts,
            stored.members,
            self._scoring,
            self._bundle,
            collection=self._keys.collection,
            epoch=self._epoch,
            random=self._random,
        )
        indexed = time.perf_counter()
        segment = self._write_segment(builder, folder, report)
        self.seconds = {"index": indexed - started, "encrypt": time.perf_counter() - indexed}
        group = self._group(counts, builder, segment, stored, folder)
        groups = self._seal(self._joined(group, previous), previous, folder)
        access = next_access(
            self._administration,
            None if previous is None else previous.manifest,
            self._make_list,
            lambda data: write_object(folder, data),
        )
        catalogue = encode_catalogue([*carried, *stored.catalogue(builder)])
        manifest = Manifest(
            collection=self._keys.collection,
            name=self._name,
            version=previous.manifest.version + 1 if previous else 1,
            previous=previous.hash if previous else FIRST_PREVIOUS,
            created_at=now_s,
            expires_at=now_s + MANIFEST_LIFE_S,
            quorum=self._quorum,
            owner_key=self._keys.signing.public,
            groups=groups,
            catalogue=self._write_sealed(
                folder, self._keys.catalogue_key(), "catalogue", catalogue
            ),
            access=access,
            timestamp_key=previous.manifest.timestamp_key if previous else b"",
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

    def _write_segment(self, builder: SegmentBuilder, folder: Path, report: Progress) -> SegmentRef:
        partial = folder / "objects" / ".segment"
        with partial.open("wb") as file:
            # Now: a mapped page for which there is no room ends the process.
            os.posix_fallocate(file.fileno(), 0, builder.layout.n_bytes)
        data = np.memmap(partial, np.uint8, "r+", shape=(builder.layout.n_bytes,))
        header = builder.write(data, lambda _what, share: report("encrypting", share))
        data.flush()
        del data
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, object_path(folder, header.id))
        return SegmentRef(header.id, builder.layout.n_bytes, builder.salt)

    def _group(
        self,
        counts: Counts,
        builder: SegmentBuilder,
        segment: SegmentRef,
        stored: _StoredDocuments,
        folder: Path,
    ) -> Group:
        scoring = self._scoring_fields()
        vocabulary = counts.vocabulary
        dictionary = Dictionary(
            self._analyzer.name,
            tuple(sorted(self._analyzer.stop_words)),
            scoring,
            vocabulary.n_docs,
            vocabulary.total_length,
            vocabulary.terms,
            vocabulary.dfs,
            builder.n_dedicated,
            (builder.facts,),
        )
        lookup = Lookup.encode(self._bundle, stored.lookup(builder))
        blobs = BlobList.of(stored.blobs).encode()
        return Group(
            self._policy,
            self._epoch,
            self._analyzer.name,
            scoring,
            vocabulary.n_docs,
            (segment,),
            self._write_section(folder, "dictionary", dictionary.encode()),
            self._write_section(folder, "lookup", lookup),
            write_object(folder, blobs),
        )

    def _write_section(self, folder: Path, name: str, content: bytes) -> ObjectRef:
        return self._write_sealed(folder, self._bundle.section_key(name), name, content)

    def _write_sealed(self, folder: Path, key: SecretKey, kind: str, content: bytes) -> ObjectRef:
        sealed = seal_stream(key, kind, self._keys.collection, content, self._random)
        return write_object(folder, sealed)


@contextmanager
def _many_objects() -> Iterator[None]:
    """Have no garbage sought: millions of objects stay, and none of them form cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _StoredDocuments:
    """Seals every document as it is read, and remembers what lookup and catalogue need."""

    def __init__(self, collection: bytes, blobs: BlobPackWriter, random: RandomSource) -> None:
        self._collection = collection
        self._pack = blobs
        self._random = random
        self._ids: set[str] = set()
        self._keys: list[SecretKey] = []
        self._hashes: list[bytes] = []
        self.members: list[Member] = []
        self.blobs: list[tuple[bytes, int]] = []

    def keep(self, documents: Iterable[Document]) -> Iterator[str]:
        """Seal each document and yield its searchable text."""
        for document in documents:
            if document.id in self._ids:
                raise InputError(
                    f"two documents have the id {document.id!r}", cure="give one of them another id"
                )
            self._ids.add(document.id)
            content = StoredDocument(document.id, document.title, document.text).encode()
            key = SecretKey(self._random.bytes(KEY_BYTES))
            sealed = seal_stream(key, "blob", self._collection, content, self._random)
            reference = self._pack.add(sealed)
            self._keys.append(key)
            self._hashes.append(sha256(content))
            self.blobs.append((reference.id, reference.size))
            self.members.append(summarise(document))
            yield document.searchable

    def lookup(self, builder: SegmentBuilder) -> Iterator[tuple[str, LookupEntry]]:
        """Yield the lookup entry of every document."""
        rows = builder.row_of_document().tolist()
        for number, member in enumerate(self.members):
            entry = LookupEntry(0, rows[number], *self.blobs[number], self._keys[number])
            yield member.id, entry

    def catalogue(self, builder: SegmentBuilder) -> Iterator[CatalogueEntry]:
        """Yield the catalogue entry of every document."""
        rows = builder.row_of_document().tolist()
        for number, member in enumerate(self.members):
            yield CatalogueEntry(
                member.id,
                self._hashes[number],
                rows[number],
                builder.salt,
                self.blobs[number][0],
            )
