"""Three servers that may lie, a published collection, and what liars lie with."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from mksearch.crypto.evidence import AnswerSigner
from mksearch.crypto.randomness import SystemRandom
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.index.manifest import SignedManifest
from mksearch.index.segment import SegmentReader
from mksearch.messages import RecordAnswer, RecordRequest, ScoreAnswer, ScoreRequest
from mksearch.params import Quorum
from mksearch.text.analyzers import make_analyzer
from mksearch.text.weights import Scoring
from mksearch_client.connection import GrpcConnection
from mksearch_client.documents import Document
from mksearch_client.keys import OwnerKeys
from mksearch_client.profile import Profile, ServerEntry
from mksearch_client.publication import Publication, object_path, upload
from mksearch_client.publishing import Publisher
from mksearch_client.result import SearchResult
from mksearch_client.searching import Connection, Searcher
from tests.adversary.malicious_server import LoopThread, MaliciousServer, Material

__all__ = ["Line", "Stage", "lying_stage"]

_T = TypeVar("_T")
#: Longest that a held line waits.
_HELD_S = 10.0
#: How far behind the answer that it waits for: others on this machine need their turn.
_BEHIND_S = 0.005


class Line:
    """The way to one server, which can be held up and which knows when the server has answered.

    Attributes:
        answered: set when a call in ``call`` has ended, rightly or not.
    """

    def __init__(self, connection: GrpcConnection) -> None:
        self.connection = connection
        self.call = ""
        self.answered = threading.Event()
        self.hold: threading.Event | None = None

    def _pass(self, call: str, ask: Iterator[_T]) -> _T:
        if call == self.call and self.hold is not None:
            self.hold.wait(_HELD_S)
            time.sleep(_BEHIND_S)
        try:
            return next(ask)
        finally:
            if call == self.call:
                self.answered.set()

    def manifest(self) -> bytes:
        return self._pass("GetManifest", (self.connection.manifest() for _ in "1"))

    def renewal(self) -> bytes:
        return self._pass("GetRenewal", (self.connection.renewal() for _ in "1"))

    def score(self, request: ScoreRequest) -> ScoreAnswer:
        return self._pass("Score", (self.connection.score(request) for _ in "1"))

    def records(self, request: RecordRequest) -> RecordAnswer:
        return self._pass("GetRecords", (self.connection.records(request) for _ in "1"))

    def read_object(self, name: bytes, offset: int, n_bytes: int) -> bytes:
        ask = (self.connection.read_object(name, offset, n_bytes) for _ in "1")
        return self._pass("ReadObject", ask)


@dataclass
class Stage:
    """A published collection on three servers that may lie.

    Attributes:
        folder: for files.
        keys: the owner's.
        servers: by id.
        old: version 1, which the servers served before.
        signed: version 2, which they serve.
        documents: what both versions hold.
        timeout_s: of a request.
        hedge_s: silence after which one more server is asked.
    """

    folder: Path
    keys: OwnerKeys
    servers: Mapping[int, MaliciousServer]
    old: SignedManifest
    signed: SignedManifest
    documents: Sequence[Document]
    timeout_s: float = 2.0
    hedge_s: float = 0.25

    def connect(self, server: int) -> GrpcConnection:
        """Return a new connection to one server, its key pinned."""
        liar = self.servers[server]
        return GrpcConnection(
            server, liar.address, liar.signer.public, SystemRandom(), timeout_s=self.timeout_s
        )

    @contextmanager
    def searcher(
        self,
        *,
        lines: Mapping[int, Connection] | None = None,
        seen: SignedManifest | None = None,
    ) -> Iterator[Searcher]:
        """Open a Searcher that has cached nothing."""
        own = {} if lines else {server: self.connect(server) for server in self.servers}
        searcher = Searcher(
            lines or own,
            self.keys.member(),
            SystemRandom(),
            addresses={server: liar.address for server, liar in self.servers.items()},
            seen=seen,
            hedge_s=self.hedge_s,
        )
        try:
            yield searcher
        finally:
            for connection in own.values():
                connection.close()
            searcher.close()

    def search(self, query: str, k: int = 10) -> SearchResult:
        """Search as somebody who never searched before."""
        with self.searcher() as searcher:
            return searcher.search(query, k)

    def profile(self, folder: Path) -> Profile:
        """Write an owner's profile of the collection."""
        shutil.copytree(self.folder / "keys", folder)
        servers = {
            server: ServerEntry(server, liar.address, liar.signer.public)
            for server, liar in self.servers.items()
        }
        profile = Profile(folder, self.keys, "test", Quorum(), servers)
        profile.save()
        return profile

    def be_honest(self) -> None:
        """Have every server stop lying and forget what it saw."""
        for server in self.servers.values():
            server.lie = None
            server.n_told = 0
            server.calls.clear()


def _prepare(
    keys: OwnerKeys,
    folder: Path,
    documents: Iterable[Document],
    previous: SignedManifest | None = None,
) -> Publication:
    publisher = Publisher(
        keys,
        name="test",
        quorum=Quorum(),
        random=SystemRandom(),
        analyzer=make_analyzer("english-1"),
        scoring=Scoring("tfidf"),
    )
    return publisher.prepare(documents, folder, now_s=int(time.time()), previous=previous)


def _segment(publication: Publication) -> SegmentReader:
    name = publication.signed.manifest.groups[0].segments[0].id
    return SegmentReader(np.memmap(object_path(publication.folder, name), np.uint8, "r"))


def _publish(publication: Publication, server: MaliciousServer) -> None:
    connection = GrpcConnection(server.id, server.address, None, SystemRandom())
    keys = publication.signed.manifest
    with suppress(OSError):
        connection.claim(server.token, keys.owner_key, keys.collection)
    upload(publication, connection)
    connection.close()


@contextmanager
def lying_stage(
    folder: Path, documents: Sequence[Document], *, engine: str = "numpy"
) -> Iterator[Stage]:
    """Run three servers that serve version 2 of ``documents`` and could tell every lie."""
    random = SystemRandom()
    keys = Profile.create_keys(folder / "keys", random, None)
    old = _prepare(keys, folder / "old", documents)
    new = _prepare(keys, folder / "new", documents, old.signed)
    rival = _prepare(keys, folder / "rival", documents, old.signed)
    elsewhere = replace(keys, collection=random.bytes(16))
    same_owner = _prepare(elsewhere, folder / "same-owner", documents)
    stranger = replace(OwnerKeys.generate(random), collection=keys.collection)
    same_name = _prepare(stranger, folder / "same-name", documents)
    material = Material(
        {
            "old": old.signed.encode(),
            "rival": rival.signed.encode(),
            "same owner": same_owner.signed.encode(),
            "same name": same_name.signed.encode(),
        },
        {"old": _segment(old), "other": _segment(same_owner)},
        AnswerSigner(SigningKey(SecretKey(random.bytes(32)))),
    )
    thread = LoopThread()
    servers: dict[int, MaliciousServer] = {}
    try:
        for server in (1, 2, 3):
            servers[server] = MaliciousServer(
                folder / f"server-{server}", server, thread, engine=engine
            )
            servers[server].material = material
            _publish(old, servers[server])
            _publish(new, servers[server])
        yield Stage(folder, keys, servers, old.signed, new.signed, documents)
    finally:
        for liar in servers.values():
            liar.close()
        thread.close()
