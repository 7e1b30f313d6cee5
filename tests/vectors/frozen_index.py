"""Read a frozen index with the product of today."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

from mksearch.crypto.randomness import SeededRandom
from mksearch.index.blob_list import BlobList
from mksearch.index.catalogue import CatalogueEntry, Lookup, decode_catalogue
from mksearch.index.dictionary import Dictionary
from mksearch.index.document import StoredDocument
from mksearch.index.manifest import Group, ObjectRef, SignedManifest
from mksearch.index.stream import open_stream
from mksearch.params import Quorum
from mksearch.query.group import open_dictionary
from mksearch.query.ranking import Hit
from mksearch.query.records import open_document, require_object
from mksearch_client.keys import OwnerKeys
from mksearch_client.reading import Document

from .fast import Client
from .material import Json, load, seed


class FrozenIndex:
    """A publication in a folder that never changes, with its test keys."""

    def __init__(self, folder: Path) -> None:
        """Read the manifest and prove it."""
        self.folder = folder
        self.keys = OwnerKeys.generate(SeededRandom(bytes.fromhex(self.test_keys["seed"])))
        file = (folder / "manifest").read_bytes()
        self.signed = SignedManifest.decode(file, self.keys.signing.public, self.keys.collection)

    @cached_property
    def test_keys(self) -> Json:
        """What test-keys.json says."""
        return load("test-keys", self.folder)

    @cached_property
    def expected(self) -> Json:
        """What expected.json pins."""
        return load("expected", self.folder)

    @cached_property
    def documents(self) -> list[Document]:
        """The documents as they were published."""
        lines = (self.folder / "corpus.jsonl").read_text(encoding="ascii").splitlines()
        return [Document(d["_id"], d["title"], d["text"]) for d in map(json.loads, lines)]

    @property
    def owner(self) -> Json:
        """What every key of the group is derived from."""
        return {
            "master": self.keys.master.reveal().hex(),
            "collection": self.keys.collection.hex(),
            "epoch": self.test_keys["epoch"],
            "policy": self.test_keys["policy"],
        }

    @property
    def group(self) -> Group:
        """The one group."""
        [group] = self.signed.manifest.groups
        return group

    def object(self, ref: ObjectRef) -> bytes:
        """Return an object of the manifest, its name and size proved."""
        return require_object(ref.id, ref.size, self.raw(ref.id), "an object")

    def raw(self, name: bytes) -> bytes:
        """Return the bytes that are stored under a name."""
        return (self.folder / "objects" / name.hex()).read_bytes()

    @property
    def segment(self) -> bytes:
        """The file of the one segment."""
        [segment] = self.group.segments
        return self.raw(segment.id)

    @cached_property
    def dictionary(self) -> Dictionary:
        """The opened dictionary."""
        bundle = self.keys.bundle(b"", 1)
        return open_dictionary(bundle, self.keys.collection, self.object(self.group.dictionary))

    @cached_property
    def client(self) -> Client:
        """A member of the group."""
        return Client(
            self.owner, self.group.scoring, self.dictionary, self.segment, self.group.analyzer
        )

    def search(self, query: str, k: int) -> tuple[list[Hit], bool]:
        """Return the hits of a search, and whether they are exact."""
        random = SeededRandom(seed("frozen search"))
        source, _ = self.client.source([query], Quorum(), random, (1, 3))
        return self.client.rank(source, k)

    def blobs(self) -> BlobList:
        """Return the blob list."""
        return BlobList.decode(self.object(self.group.blobs))

    def catalogue(self) -> list[CatalogueEntry]:
        """Return the owner's catalogue."""
        sealed = self.object(self.signed.manifest.catalogue)
        collection = self.keys.collection
        content = open_stream(self.keys.catalogue_key(), "catalogue", collection, sealed)
        return decode_catalogue(content)

    @cached_property
    def lookup(self) -> Lookup:
        """The opened lookup."""
        bundle = self.keys.bundle(b"", 1)
        sealed = self.object(self.group.lookup)
        key, collection = bundle.section_key("lookup"), self.keys.collection
        return Lookup.decode(bundle, open_stream(key, "lookup", collection, sealed))

    def document(self, external_id: str) -> StoredDocument:
        """Open a whole document."""
        entry = self.lookup.find(external_id)
        assert entry is not None, external_id
        return open_document(entry.key, self.keys.collection, entry.blob, self.raw(entry.blob))
