"""A running server that missed a version gets it from its peers, and serves all the while."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from mksearch.errors import MksearchError, ParameterError
from mksearch_client.documents import Document
from mksearch_client.owner import Owner
from mksearch_client.timestamp import TimestampFile, renew_by_timestamp
from mksearch_server.config import load_config
from tests.service.conftest import QUERIES, K, Published
from tests.support.processes import ServerProcess
from tests.support.relays import flip, relaying

OTHER = tuple(
    Document(f"laggard-{n}", f"Laggard {n}", f"watering tomato number {n}") for n in range(20)
)
WITHIN_S = 60.0


def _until(holds: Callable[[], bool], what: Callable[[], object]) -> None:
    last_s = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < last_s, what()
        time.sleep(0.05)


@pytest.fixture
def laggard(collection: Published) -> Iterator[ServerProcess]:
    """Server 3, stopped; its settings are given back."""
    server = collection.fleet[3]
    server.stop()
    before = server.config.read_text()
    yield server
    server.kill()
    server.config.write_text(before)
    server.restart()


def _follow(server: ServerProcess, peers: Sequence[str], seconds: int) -> None:
    lines = [f"peers = {json.dumps(list(peers))}", f"peers_s = {seconds}"]
    server.config.write_text("\n".join([*lines, server.config.read_text()]))


def test_a_version_that_was_missed_comes_from_a_peer_by_itself(
    collection: Published, laggard: ServerProcess
) -> None:
    report = collection.publish(OTHER)
    _follow(laggard, [collection.fleet[1].address], 1)
    laggard.restart()

    _until(lambda: collection.versions() == [report.version] * 3, laggard.log)

    assert laggard.command("verify").json["verified"] is True
    assert "caught-up" in laggard.log() or "objects came from peers" in laggard.log()
    collection.fleet[2].kill()
    with collection.searcher() as searcher:
        collection.require_right(searcher.search(QUERIES[0], K))


def test_a_client_that_hands_over_a_newer_version_has_it_fetched_at_once(
    collection: Published, laggard: ServerProcess, tmp_path: Path
) -> None:
    """The next look at the peers would be in a day."""
    # The first look, at the start, finds nothing: the laggard's only peer serves no newer version.
    _follow(laggard, [collection.fleet[1].address, collection.fleet[2].address], 86_400)
    laggard.restart()
    laggard.suspend()
    report = collection.publish(OTHER, timeout_s=1.0)
    laggard.resume()
    assert min(collection.versions()) < report.version
    # With one of the others away, a search needs the laggard.
    collection.fleet[2].kill()

    with collection.searcher() as searcher:

        def is_right() -> bool:
            try:
                collection.require_right(searcher.search(QUERIES[0], K))
            except MksearchError:
                return False
            return True

        _until(is_right, laggard.log)
    collection.fleet.start()
    assert collection.versions() == [report.version] * 3


def test_a_peer_that_sends_other_bytes_changes_nothing_and_the_next_one_is_asked(
    collection: Published, laggard: ServerProcess
) -> None:
    before = collection.fleet[1]
    report = collection.publish(OTHER)

    def lie(call: str, messages: Iterator[bytes]) -> Iterator[bytes]:
        return flip(messages) if call == "ReadObject" else messages

    with relaying(before.address, lie) as relay:
        _follow(laggard, [relay.address], 1)
        laggard.restart()
        _until(lambda: laggard.log().count("cannot catch up") >= 2, laggard.log)
        # It goes on with what it has.
        assert 0 < min(collection.versions()) < report.version
        laggard.stop()
        text = laggard.config.read_text()
        both = json.dumps([relay.address, collection.fleet[2].address])
        laggard.config.write_text(text.replace(json.dumps([relay.address]), both))
        laggard.restart()
        _until(lambda: collection.versions() == [report.version] * 3, laggard.log)
    assert laggard.command("verify").json["verified"] is True


def test_a_renewal_by_the_timestamp_key_brings_laggards_along(
    collection: Published, laggard: ServerProcess, tmp_path: Path
) -> None:
    key = tmp_path / "renewals.key"
    with Owner(collection.profile) as owner:
        owner.draw_timestamp_key(key)
    _follow(laggard, [collection.fleet[1].address], 86_400)
    laggard.restart()
    _until(lambda: len(set(collection.versions())) == 1, laggard.log)
    laggard.suspend()
    report = collection.publish(OTHER, timeout_s=1.0)
    laggard.resume()
    assert min(collection.versions()) < report.version

    done = renew_by_timestamp(TimestampFile.read(key, None))

    assert done.version == report.version
    _until(lambda: collection.versions() == [report.version] * 3, laggard.log)
    _until(lambda: laggard.command("status").json["renewed_until"] == done.expires_at, laggard.log)
    with Owner(collection.profile) as owner:
        owner.revoke_timestamp_key()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('peers = "127.0.0.1:1"', "not a list"),
        ('peers = ["search.example.org:7101"]', "no TLS key is pinned"),
        ('peers = ["127.0.0.1"]', "is not HOST:PORT"),
        ("peers_s = 0", "peers_s"),
    ],
)
def test_peers_that_cannot_be_asked_safely_are_refused(
    tmp_path: Path, line: str, words: str
) -> None:
    path = tmp_path / "server.toml"
    path.write_text(f'id = 1\nlisten = "127.0.0.1:0"\ndata = "data"\n{line}\n')
    with pytest.raises(ParameterError, match=words) as caught:
        load_config(path)
    assert caught.value.cure
