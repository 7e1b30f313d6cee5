"""Halves of the servers that do not see each other: no client goes back, and all meet again.

What divides them is who reaches whom: a client of one half finds nobody at the addresses of the
other.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from mksearch.errors import AnswerRefused, NotEnoughAnswers, ServerRefused
from mksearch_client.connection import GrpcConnection
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner
from mksearch_client.profile import Profile, ServerEntry
from mksearch_client.result import SearchResult
from tests.support.grpc_stage import GrpcStage, corpus, hit_ids, staging

LEFT, RIGHT, ALL = (1, 2), (3, 4), (1, 2, 3, 4)
K = 30


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[GrpcStage]:
    """Four servers of which one may collude: each half alone could answer."""
    with staging(tmp_path, n_servers=4) as made:
        made.publish()
        yield made


def _reaching(folder: Path, reached: Collection[int]) -> Profile:
    """Open a profile that finds only some servers at their addresses."""
    profile = Profile.open(folder)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        dead = f"127.0.0.1:{nobody.getsockname()[1]}"
    for server, entry in profile.servers.items():
        if server not in reached:
            profile.servers[server] = ServerEntry(server, dead, entry.key)
    return profile


class Client:
    """Somebody who searches, now from here and now from there, with one profile.

    Attributes:
        versions: of the answers that were shown, in order.
    """

    def __init__(self, stage: GrpcStage, name: str) -> None:
        self.folder = stage.folder / name
        shutil.copytree(stage.owner.profile.folder, self.folder)
        self.versions: list[int] = []

    def search(self, reached: Collection[int]) -> SearchResult:
        with Searcher(_reaching(self.folder, reached), timeout_s=3.0) as searcher:
            result = searcher.search("apple", K)
        self.versions.append(result.version)
        assert self.versions == sorted(self.versions), "went back"
        return result

    def is_refused(self, reached: Collection[int]) -> bool:
        try:
            self.search(reached)
        except (AnswerRefused, NotEnoughAnswers):
            return True
        return False


def _publish(stage: GrpcStage, reached: Collection[int], text: str) -> None:
    path = corpus(stage.folder / "open.jsonl", "open", 6, text)
    with Owner(_reaching(stage.owner.profile.folder, reached), timeout_s=3.0) as owner:
        owner.publish([path], delete_missing=True)


def _versions(stage: GrpcStage) -> list[int]:
    return [server.manifest.version for server in stage.servers.values()]


def test_half_of_the_servers_begin_no_version(stage: GrpcStage) -> None:
    before = _versions(stage)
    client = Client(stage, "client")
    for half in (LEFT, RIGHT):
        with pytest.raises(NotEnoughAnswers, match="2 servers took the version"):
            _publish(stage, half, "apple tart")
    assert _versions(stage) == before
    assert client.search(LEFT).hits == client.search(RIGHT).hits


def test_no_client_goes_back_and_all_converge_when_the_halves_meet(stage: GrpcStage) -> None:
    clients = {name: Client(stage, name) for name in ("left", "right", "mover", "fresh")}
    old = _versions(stage)[0]
    for name in ("left", "right", "mover"):
        assert clients[name].search(ALL).version == old

    # Server 4 is cut off while the others take a version, then the halves are.
    _publish(stage, (1, 2, 3), "apple tart")
    new = max(_versions(stage))
    assert _versions(stage) == [new, new, new, old]
    assert clients["left"].search(LEFT).version == new
    assert clients["mover"].search(LEFT).version == new
    # One server of this half has it, which is too few to answer and enough to know.
    for name in ("right", "mover", "fresh"):
        assert clients[name].is_refused(RIGHT)
        assert clients[name].is_refused(RIGHT)
        assert clients[name].is_refused([4])
        assert clients[name].search((2, 3)).version == new

    # They meet: the owner publishes again, and what was missed is sent.
    _publish(stage, ALL, "apple tart")
    assert len(set(_versions(stage))) == 1
    results = [client.search(half) for client in clients.values() for half in (LEFT, RIGHT, ALL)]
    assert {result.version for result in results} == set(_versions(stage))
    assert len({result.hits for result in results}) == 1
    assert len(hit_ids(results[0].hits)) == 14


@pytest.mark.parametrize("first", ["one that saw it", "one that meets it"])
def test_clients_carry_a_version_over_to_a_half_that_holds_it(
    stage: GrpcStage, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The owner was cut off from one half after it had staged the version everywhere."""
    old = _versions(stage)[0]
    left, right = Client(stage, "left"), Client(stage, "right")
    activate = GrpcConnection.activate

    def cut(connection: GrpcConnection, manifest_hash: bytes, signature: bytes = b"") -> int:
        if connection.server in RIGHT:
            raise ServerRefused("cut off", detail_code="storage", server=connection.server)
        return activate(connection, manifest_hash, signature)

    with monkeypatch.context() as patched:
        patched.setattr(GrpcConnection, "activate", cut)
        with pytest.raises(NotEnoughAnswers):
            _publish(stage, ALL, "apple tart")
    new = max(_versions(stage))
    assert _versions(stage) == [new, new, old, old]
    # Whoever has seen nothing newer is shown what this half agrees on.
    assert right.search(RIGHT).version == old
    assert left.search(LEFT).version == new

    if first == "one that meets it":
        assert right.search((2, 3)).version == new
    assert left.search(RIGHT).version == new
    assert right.search(RIGHT).version == new
    assert _versions(stage) == [new] * 4
