"""Versions change under searches: the one before goes on for a while, laggards come along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mksearch.crypto import labels
from mksearch.errors import ParameterError, VerificationError
from mksearch.index.manifest import SignedManifest
from mksearch.scoring.engine import make_engine
from mksearch_client.connection import GrpcConnection
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner
from mksearch_client.publication import upload
from mksearch_server.config import ServerConfig
from mksearch_server.identity import Claim, ServerIdentity, create_identity
from mksearch_server.search_server import SearchServer
from mksearch_server.service import Runtime
from mksearch_server.store import ObjectStore
from tests.adversary.corpus import make_documents
from tests.service.conftest import QUERIES, Published
from tests.support.local import LocalCollection, open_server, publish

K = 10
DOCUMENTS = make_documents(60, 3)


class _Died(Exception):
    pass


@pytest.mark.parametrize("n_activated", [1, 2])
def test_a_publisher_that_dies_between_two_activations_stops_no_search(
    collection: Published, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, n_activated: int
) -> None:
    with Owner(collection.profile) as owner:
        owner.renew()
    with Searcher(collection.member(tmp_path / "member")) as searcher:
        before = searcher.search(QUERIES[0], K)
        activate = GrpcConnection.activate
        done: list[int] = []

        def dying(
            connection: GrpcConnection, manifest_hash: bytes, signature: bytes = b""
        ) -> int:
            if len(done) == n_activated:
                raise _Died
            done.append(connection.server)
            return activate(connection, manifest_hash, signature)

        with monkeypatch.context() as patched, Owner(collection.profile) as owner:
            patched.setattr(GrpcConnection, "activate", dying)
            with pytest.raises(_Died):
                owner.renew()
        versions = sorted(collection.versions())
        assert versions[0] < versions[-1]

        found = searcher.search(QUERIES[0], K)
        again = searcher.search(QUERIES[0], K)

    assert found.hits == again.hits == before.hits
    assert again.version == versions[-1]
    assert sum(version == versions[-1] for version in collection.versions()) >= 2


def test_until_enough_servers_hold_a_version_none_has_anything_to_show(
    collection: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What servers are sent before is a draft, which no client takes for a manifest."""
    proposed: list[tuple[int, bytes]] = []
    n_staged: list[int] = []
    propose, activate, put = (
        GrpcConnection.propose,
        GrpcConnection.activate,
        GrpcConnection.put_all,
    )
    staged: set[int] = set()

    def proposing(connection: GrpcConnection, data: bytes) -> bytes:
        proposed.append((connection.server, data))
        return propose(connection, data)

    def putting(connection: GrpcConnection, manifest_hash: bytes, objects: Any) -> None:
        put(connection, manifest_hash, objects)
        if not connection.missing(manifest_hash):
            staged.add(connection.server)

    def activating(
        connection: GrpcConnection, manifest_hash: bytes, signature: bytes = b""
    ) -> int:
        n_staged.append(len(staged))
        return activate(connection, manifest_hash, signature)

    monkeypatch.setattr(GrpcConnection, "propose", proposing)
    monkeypatch.setattr(GrpcConnection, "put_all", putting)
    monkeypatch.setattr(GrpcConnection, "activate", activating)
    report = collection.publish(DOCUMENTS[:30])

    assert collection.versions() == [report.version] * 3
    assert min(n_staged) >= 2
    assert {server for server, _ in proposed} == {1, 2, 3}
    key = collection.profile.keys.signing.public
    for _, data in proposed:
        with pytest.raises(VerificationError):
            SignedManifest.decode(data, key)
        draft = SignedManifest.decode(data, key, label=labels.DRAFT)
        assert draft.manifest.version == report.version


def test_a_server_that_lacks_the_objects_stays_behind(
    collection: Published, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What only the publisher can bring is not made up: the server is named and not used."""
    with Searcher(collection.member(tmp_path / "member")) as searcher:
        searcher.search(QUERIES[0], K)
        collection.fleet[3].kill()
        other = tmp_path / "other.jsonl"
        other.write_text('{"_id": "new", "text": "entirely new words about rockets"}\n')
        with Owner(collection.profile) as owner:
            owner.publish([other], delete_missing=True)
        collection.fleet[3].restart()

        found = searcher.search("rockets", K)

    assert [hit.id for hit in found.hits] == ["new"]
    assert len(set(collection.versions())) == 2


def _two_versions(folder: Path, grace_s: float) -> tuple[LocalCollection, SearchServer, Any]:
    old = publish(DOCUMENTS, folder / "old")
    new = publish(DOCUMENTS[:50], folder / "new", keys=old.keys, previous=old.publication.signed)
    server = open_server(folder / "server", 1, old.keys.signing.public)
    server._grace_s = grace_s
    upload(old.publication, server)
    upload(new.publication, server)
    (segment,) = old.publication.signed.manifest.segments()
    return new, server, segment


def test_the_version_before_is_served_for_a_while(tmp_path: Path) -> None:
    _, server, segment = _two_versions(tmp_path, grace_s=60)

    assert server.version == 2
    assert server.width(1, segment.id, 0) > 0
    assert server.search_key(1, segment.id) == b""
    with pytest.raises(ParameterError, match="is not in version 2"):
        server.width(2, segment.id, 0)


def test_the_version_before_is_not_served_for_ever(tmp_path: Path) -> None:
    _, server, segment = _two_versions(tmp_path, grace_s=60)
    server._previous_until = 0.0

    with pytest.raises(ParameterError, match="version 1 is not served here"):
        server.width(1, segment.id, 0)


def test_without_a_grace_only_one_version_is_served(tmp_path: Path) -> None:
    _, server, segment = _two_versions(tmp_path, grace_s=0)

    with pytest.raises(ParameterError, match="version 1 is not served here"):
        server.width(1, segment.id, 0)


def test_the_grace_is_what_the_operator_sets(tmp_path: Path) -> None:
    token = create_identity(tmp_path)
    store = ObjectStore(tmp_path / "data")
    config = ServerConfig(1, "127.0.0.1:0", tmp_path / "data", grace_s=7, folder=tmp_path)
    runtime = Runtime(config, store, ServerIdentity(tmp_path, store), make_engine("numpy"))
    try:
        runtime.claim(token, Claim(bytes(32), bytes(16)))
        assert runtime.search._grace_s == 7
    finally:
        runtime.close()
