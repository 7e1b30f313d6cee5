"""Servers and collections that the tests of a module share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from datasets.loaders import load_small
from mksearch.text.analyzers import make_analyzer
from mksearch_client.demo.plaintext import PlaintextEngine
from mksearch_client.documents import Document
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner, PublishReport
from mksearch_client.profile import Profile, ServerEntry
from mksearch_client.result import SearchResult
from tests.support.processes import Fleet, claim, serving, write_corpus

SMALL = load_small()
QUERIES = tuple(query.text for query in SMALL.queries)
K = 10


@dataclass
class Published:
    """A collection on server processes.

    Attributes:
        fleet: the servers.
        profile: its owner's, opened.
        folder: for files of a test.
        documents: what the newest version holds.
    """

    fleet: Fleet
    profile: Profile
    folder: Path
    documents: tuple[Document, ...]

    def publish(self, documents: Sequence[Document], timeout_s: float = 10.0) -> PublishReport:
        """Make ``documents`` the content of the collection, as a new version."""
        corpus = write_corpus(self.folder / "corpus.jsonl", documents)
        with Owner(self.profile, timeout_s=timeout_s) as owner:
            report = owner.publish([corpus], delete_missing=True)
        self.documents = tuple(documents)
        return report

    def searcher(self, timeout_s: float = 10.0) -> Searcher:
        return Searcher(Profile.open(self.profile.folder), timeout_s=timeout_s)

    def member(self, folder: Path, addresses: dict[int, str] | None = None) -> Profile:
        """Give a copy of the profile that has cached nothing, with some servers elsewhere."""
        shutil.copytree(
            self.profile.folder, folder, ignore=shutil.ignore_patterns("cache", "publication")
        )
        profile = Profile.open(folder)
        for server, address in (addresses or {}).items():
            pinned = profile.servers[server]
            profile.servers[server] = ServerEntry(server, address, pinned.key)
        profile.save()
        return profile

    def versions(self) -> list[int]:
        """Give the version that each server serves."""
        with Owner(self.profile) as owner:
            return [server.version for server in owner.status()[1]]

    def require_right(self, result: SearchResult) -> None:
        """Prove that ``result`` is the plaintext ranking of the newest version."""
        engine = PlaintextEngine(self.documents, make_analyzer("english-1"))
        assert result.verified
        assert result.exact
        assert result.n_docs == len(self.documents)
        assert engine.differences(result) == []


@pytest.fixture(scope="module")
def shared_collection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    """Three servers and a published collection for the whole module."""
    folder = tmp_path_factory.mktemp("collection")
    # This engine loads nothing to compile, and servers start often here.
    with serving(folder, engine="numpy") as fleet:
        published = Published(fleet, claim(fleet, folder / "profile"), folder, ())
        published.publish(SMALL.documents)
        yield published


@pytest.fixture
def collection(shared_collection: Published) -> Iterator[Published]:
    """The module's collection, its servers running and of one version at the start of a test."""
    fleet = shared_collection.fleet
    fleet.start()
    if len(set(shared_collection.versions())) > 1:
        shared_collection.publish(SMALL.documents[1:])
    if shared_collection.documents != SMALL.documents:
        shared_collection.publish(SMALL.documents)
    assert len(set(shared_collection.versions())) == 1
    yield shared_collection
    for server in fleet:
        if server.is_running:
            server.resume()
