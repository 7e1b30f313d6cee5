"""Seal documents as they are read, and remember what lookup and catalogue need of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mksearch.crypto.kdf import sha256
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.errors import InputError
from mksearch.index.catalogue import LookupEntry
from mksearch.index.document import StoredDocument
from mksearch.index.record import Member
from mksearch.index.stream import seal_stream
from mksearch.params import KEY_BYTES, SNIPPET_CHARS, TITLE_CHARS
from mksearch_client.blob_pack import BlobPackWriter
from mksearch_client.reading import Document

__all__ = ["SealedDocuments", "content_hash", "summarise"]


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


class SealedDocuments:
    """Seals every document as it is read, and remembers what lookup and catalogue need."""

    def __init__(self, collection: bytes, blobs: BlobPackWriter, random: RandomSource) -> None:
        self._collection = collection
        self._pack = blobs
        self._random = random
        self._ids: set[str] = set()
        self._keys: list[SecretKey] = []
        self.hashes: list[bytes] = []
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
            self.hashes.append(sha256(content))
            self.blobs.append((reference.id, reference.size))
            self.members.append(summarise(document))
            yield document.searchable

    def lookup(self, rows: Iterable[int]) -> Iterator[tuple[str, LookupEntry]]:
        """Yield the lookup entry of every document, given the row of each."""
        found = zip(self.members, self.blobs, self._keys, rows, strict=True)
        for member, (name, size), key, row in found:
            yield member.id, LookupEntry(0, row, name, size, key)
