"""A collection with its servers as objects in this process: the real code, without the network."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.randomness import RandomSource, SystemRandom
from mksearch.errors import StorageError
from mksearch.index.catalogue import Catalogue
from mksearch.index.manifest import SegmentRef, SignedManifest
from mksearch.index.segment import HEADER_BYTES, SegmentHeader
from mksearch.index.stream import open_stream
from mksearch.params import Quorum
from mksearch.scoring.engine import make_engine
from mksearch.text.analyzers import Analyzer, make_analyzer
from mksearch.text.weights import Scoring
from mksearch_client.held import HeldGroup, Source
from mksearch_client.keys import OwnerKeys
from mksearch_client.part_memory import PartMemory
from mksearch_client.publication import Publication, stage, upload
from mksearch_client.publishing import Publisher
from mksearch_client.reading import Document
from mksearch_client.searching import Connection, Searcher
from mksearch_server.search_server import SearchServer
from mksearch_server.store import ObjectStore

NOW_S = 1_800_000_000


@dataclass
class LocalCollection:
    """A published collection and its servers."""

    folder: Path
    keys: OwnerKeys
    quorum: Quorum
    publication: Publication
    servers: dict[int, SearchServer]

    def searcher(
        self, servers: Iterable[int] | None = None, *, replace: dict[int, Connection] | None = None
    ) -> Searcher:
        """Return a Searcher over some of the servers, some replaced by others."""
        chosen: dict[int, Connection] = {
            server: self.servers[server] for server in (servers or self.servers)
        }
        chosen.update(replace or {})
        return Searcher(chosen, self.keys.member(), SystemRandom(), clock=lambda: NOW_S)

    def segment_path(self, server: int) -> Path:
        """Return the file in which a server holds its (first) segment."""
        segment = self.publication.signed.manifest.groups[0].segments[0].id
        return self.folder / f"server-{server}" / "segments" / segment.hex()

    def segment_bytes(self, server: int) -> NDArray[np.uint8]:
        """Return a server's stored segment for changing: uint8, mapped, shared with the server."""
        return np.memmap(self.segment_path(server), np.uint8, "r+")

    def source(self) -> Source:
        """Return where the owner reads objects from: a server with the newest version."""
        version = self.publication.signed.manifest.version
        server = next(s for s in self.servers.values() if s.version == version)

        def header(ref: SegmentRef) -> SegmentHeader:
            return SegmentHeader.decode(server.read_object(ref.id, 0, HEADER_BYTES))

        # Every other version is read as by an owner without a memory of the ones before.
        memory = PartMemory(self.folder / "parts", self.keys) if version % 2 else None
        return Source(lambda ref: server.read_object(ref.id, 0, ref.size), header, memory)

    def held(self) -> tuple[HeldGroup, Catalogue]:
        """Return the group as the owner sees it, and the catalogue."""
        source, signed = self.source(), self.publication.signed
        sealed = source.fetch(signed.manifest.catalogue)
        key = self.keys.catalogue_key()
        catalogue = Catalogue.decode(open_stream(key, "catalogue", self.keys.collection, sealed))
        held = HeldGroup.load(source, self.keys, signed.manifest.groups[0], catalogue)
        assert held is not None
        return held, catalogue

    def change(
        self,
        documents: Iterable[Document] = (),
        gone: Collection[str] = (),
        *,
        merged: Collection[int] | None = None,
        servers: Iterable[int] | None = None,
    ) -> None:
        """Publish documents that come and go, to some of the servers; replaced ones are among
        ``gone`` as well."""
        held, catalogue = self.held()
        group, previous = held.group, self.publication.signed
        publisher = make_publisher(
            self.keys,
            self.quorum,
            SystemRandom(),
            make_analyzer(group.analyzer, held.dictionary.stop_words),
            Scoring(**dict(group.scoring)),  # type: ignore[arg-type]
        )
        folder = self.folder / f"publication {previous.manifest.version + 1}"
        self.publication = publisher.change(
            held.without(gone),
            documents,
            folder,
            source=self.source(),
            now_s=NOW_S,
            previous=previous,
            catalogue=catalogue,
            merged=merged,
        )
        for server in self.servers if servers is None else servers:
            self.send(server)

    def send(self, server: int) -> None:
        """Bring a server to the newest version; what it lacks of older ones it gets from others."""
        target = self.servers[server]
        others = [other for name, other in self.servers.items() if name != server]

        def elsewhere(name: bytes) -> Iterator[bytes]:
            for other in others:
                with suppress(StorageError):
                    yield other._store.read_whole(name)
                    return
            raise StorageError(f"no other server holds {name.hex()[:16]}")

        stage(self.publication, target, elsewhere=elsewhere)
        target.activate(self.publication.signed.hash)


def make_publisher(
    keys: OwnerKeys, quorum: Quorum, random: RandomSource, analyzer: Analyzer, scoring: Scoring
) -> Publisher:
    """Return what prepares versions of the group without a policy."""
    return Publisher(
        keys, name="test", quorum=quorum, random=random, analyzer=analyzer, scoring=scoring
    )


def open_server(folder: Path, server: int, owner_key: bytes, engine: str = "cpu") -> SearchServer:
    """Return the server whose store is below ``folder``."""
    store = ObjectStore(folder / f"server-{server}")
    return SearchServer(server, store, owner_key, make_engine(engine))


def publish(
    documents: Sequence[Document],
    folder: Path,
    *,
    quorum: Quorum | None = None,
    scoring: str = "tfidf",
    analyzer: str = "english-1",
    engine: str = "cpu",
    keys: OwnerKeys | None = None,
    previous: SignedManifest | None = None,
    random: RandomSource | None = None,
) -> LocalCollection:
    """Publish ``documents`` to new servers below ``folder``."""
    random = random or SystemRandom()
    quorum = quorum or Quorum()
    keys = keys or OwnerKeys.generate(random)
    publisher = make_publisher(
        keys,
        quorum,
        random,
        make_analyzer(analyzer),
        Scoring(scoring),  # type: ignore[arg-type]
    )
    publication = publisher.prepare(
        documents, folder / "publication", now_s=NOW_S, previous=previous
    )
    servers = {}
    for server in range(1, quorum.n_servers + 1):
        servers[server] = open_server(folder, server, keys.signing.public, engine)
        upload(publication, servers[server])
    return LocalCollection(folder, keys, quorum, publication, servers)


def publish_two(
    documents: Sequence[Document], folder: Path
) -> tuple[LocalCollection, LocalCollection]:
    """Publish a collection, and a version of it without five documents, to other servers."""
    old = publish(documents, folder / "old", engine="numpy")
    new = publish(
        documents[5:],
        folder / "new",
        engine="numpy",
        keys=old.keys,
        previous=old.publication.signed,
    )
    return old, new
