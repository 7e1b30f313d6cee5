"""A server gets its version from another one: whole, bit-identical, and only if it is proved."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mksearch.errors import ParameterError
from mksearch.index.blob_list import BlobList
from mksearch.index.manifest import SignedManifest
from mksearch_client.documents import Document
from mksearch_client.owner import Owner
from mksearch_server.peer import PeerAddress
from mksearch_server.store import ObjectStore
from tests.service.conftest import QUERIES, K, Published
from tests.support.processes import Finished, ServerProcess, claim, serving
from tests.support.relays import flip, relaying

pytestmark = pytest.mark.slow
OTHER = tuple(
    Document(f"repair-{n}", f"Repair {n}", f"watering tomato number {n}") for n in range(20)
)


def _content(data: Path) -> dict[str, bytes]:
    """Give all that a store holds: segments by file, small objects by name."""
    held = {path.name: path.read_bytes() for path in (data / "segments").iterdir()}
    store = ObjectStore(data, read_only=True)
    held |= {name.hex(): bytes(value) for name, value in store.small_objects()}
    held["manifest"] = store.read_state("manifest") or b""
    store.close()
    return held


def _require_identical(collection: Published, data: Path, source: Path) -> None:
    """Prove that two stores hold the same bytes of the version that is served."""
    held, wanted = _content(data), _content(source)
    assert held["manifest"] == wanted["manifest"] != b""
    manifest = SignedManifest.decode(held["manifest"], collection.profile.owner_key).manifest
    names = [ref.id for ref in manifest.segments()] + [ref.id for ref in manifest.objects()]
    for group in manifest.groups:
        names += [name for name, _ in BlobList.decode(held[group.blobs.id.hex()]).blobs]
    assert len(names) > manifest.groups[0].n_docs
    assert {n.hex(): held[n.hex()] for n in names} == {n.hex(): wanted[n.hex()] for n in names}


def _repair(
    server: ServerProcess, *sources: ServerProcess | str, card: Path | None = None
) -> Finished:
    words = [w for source in sources for w in ("--from", getattr(source, "address", str(source)))]
    if card is not None:
        words += ["--card", str(card)]
    return server.command("repair", *words)


def _require_alone(collection: Published, server: int) -> None:
    """Prove that searches are right with a server that was repaired and just one other."""
    for other in collection.fleet:
        if other.id not in (server, 1 if server != 1 else 2):
            other.kill()
    with collection.searcher() as searcher:
        collection.require_right(searcher.search(QUERIES[0], K))
    collection.fleet.start()


def test_a_repair_over_tls_takes_nothing_from_whom_it_does_not_know(tmp_path: Path) -> None:
    with serving(tmp_path, engine="numpy", init_words=("--tls",)) as fleet:
        collection = Published(fleet, claim(fleet, tmp_path / "profile"), tmp_path, ())
        collection.publish(OTHER)
        card = tmp_path / "card.json"
        with Owner(collection.profile) as owner:
            card.write_bytes(owner.card())
        server = fleet[3]
        server.stop()
        _lose_all(server.data)
        pins = {one["address"]: one["tls_key"] for one in json.loads(card.read_bytes())["servers"]}
        address, other = fleet[1].address, fleet[2].address

        unpinned = _repair(server, address)
        wrong = _repair(server, f"{address}={pins[other]}")
        damaged = _repair(server, f"{address}=abc")
        for refused, words in (
            (unpinned, "does not answer"),
            (wrong, "another server's certificate"),
            (damaged, "no fingerprint"),
        ):
            assert refused.code != 0
            assert words in refused.err
            assert len(refused.err.splitlines()) == 1
        assert _repair(server, f"{address}={pins[address]}").code == 0
        _lose_all(server.data)
        assert _repair(server, address, card=card).code == 0

        _require_identical(collection, server.data, fleet[1].data)
        server.restart()
        with Owner(collection.profile) as owner:
            assert set(owner.verify().values()) == {"ok"}


@pytest.mark.parametrize(
    "text", ["", "host", "host:0", "host:99999", "search.example.org:7101", "127.0.0.1:1=00"]
)
def test_a_source_that_cannot_be_dialled_safely_is_refused(text: str) -> None:
    with pytest.raises(ParameterError) as caught:
        PeerAddress.parse(text, {"127.0.0.1:2": bytes(32)})
    assert caught.value.cure
    assert PeerAddress.parse("127.0.0.1:2", {"127.0.0.1:2": bytes(32)}).fingerprint == bytes(32)
    assert PeerAddress.parse("127.0.0.1:3", {}).fingerprint is None
    assert PeerAddress.parse(f"a.example:3={'ab' * 32}", {}).fingerprint == b"\xab" * 32


@pytest.fixture
def stopped(collection: Published) -> Iterator[ServerProcess]:
    """Server 3, stopped; it is given back whole."""
    server = collection.fleet[3]
    before = server.folder / "before"
    server.stop()
    shutil.copytree(server.data, before)
    yield server
    server.kill()
    shutil.rmtree(server.data, ignore_errors=True)
    shutil.move(before, server.data)
    server.restart()


def _lose_all(data: Path) -> None:
    shutil.rmtree(data)


def _lose_segments(data: Path) -> None:
    shutil.rmtree(data / "segments")


def _lose_small(data: Path) -> None:
    shutil.rmtree(data / "objects")


def _empty_small(data: Path) -> None:
    os.truncate(data / "objects" / "data.mdb", 0)


def _cut_small(data: Path) -> None:
    path = data / "objects" / "data.mdb"
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)


def _spoil(data: Path) -> None:
    """Overwrite random bytes in every file, the pages of LMDB among them."""
    source = random.Random(5)
    for path in (*(data / "segments").iterdir(), data / "objects" / "data.mdb"):
        held = bytearray(path.read_bytes())
        for _ in range(len(held) // 2000):
            held[source.randrange(8192, len(held))] ^= 1 << source.randrange(8)
        path.write_bytes(held)


@pytest.mark.parametrize(
    "lose", [_lose_all, _lose_segments, _lose_small, _empty_small, _cut_small, _spoil]
)
def test_a_server_restored_from_another_is_bit_identical(
    collection: Published, stopped: ServerProcess, lose: Callable[[Path], None]
) -> None:
    lose(stopped.data)
    verify = stopped.command("verify")
    assert verify.code in {1, 3}

    done = _repair(stopped, collection.fleet[1])

    assert (done.code, done.err) == (0, "")
    assert done.json["fetched"] > 0
    _require_identical(collection, stopped.data, collection.fleet[1].data)
    assert stopped.command("verify").json["verified"] is True


def test_a_repair_keeps_what_is_good_and_fetches_the_rest(
    collection: Published, stopped: ServerProcess
) -> None:
    source = collection.fleet[1]
    assert _repair(stopped, source).json["fetched"] == 0
    store = ObjectStore(stopped.data)
    names = sorted(name for name, _ in store.small_objects())
    value = store.read_whole(names[0])
    store.close()
    path = stopped.data / "objects" / "data.mdb"
    held = bytearray(path.read_bytes())
    at = held.index(value[:64])
    held[at + 10] ^= 4
    path.write_bytes(held)

    done = _repair(stopped, source)

    assert (done.code, done.json["damaged"], done.json["fetched"]) == (0, 1, 1)
    _require_identical(collection, stopped.data, source.data)


def test_a_server_that_missed_a_version_gets_it_from_another(
    collection: Published, stopped: ServerProcess
) -> None:
    report = collection.publish(OTHER)

    done = _repair(stopped, collection.fleet[2])

    assert (done.code, done.json["version"]) == (0, report.version)
    stopped.restart()
    assert collection.versions() == [report.version] * 3
    _require_alone(collection, stopped.id)


def test_a_running_server_is_not_repaired(collection: Published) -> None:
    done = _repair(collection.fleet[3], collection.fleet[1])

    assert done.code == 1
    assert "another server uses the store" in done.err


def test_bytes_of_a_lying_server_are_refused_and_another_is_asked(
    collection: Published, stopped: ServerProcess
) -> None:
    _lose_all(stopped.data)

    def lie(call: str, messages: Iterator[bytes]) -> Iterator[bytes]:
        return flip(messages) if call == "ReadObject" else messages

    with relaying(collection.fleet[1].address, lie) as relay:
        refused = _repair(stopped, relay.address)
        assert refused.code == 1
        assert "no server sent the object" in refused.err
        # Nothing of a version that is not whole is served.
        status = stopped.command("status")
        assert status.json["version"] == 0
        stopped.restart()
        assert collection.versions()[2] == 0
        stopped.stop()
        done = _repair(stopped, relay.address, collection.fleet[2])

    assert (done.code, done.err) == (0, "")
    _require_identical(collection, stopped.data, collection.fleet[1].data)


def test_an_older_version_than_the_store_has_seen_is_refused(
    collection: Published, stopped: ServerProcess, tmp_path: Path
) -> None:
    lagging = collection.fleet[1]
    lagging.stop()
    old = tmp_path / "old"
    shutil.copytree(lagging.data, old)
    lagging.restart()
    stopped.restart()
    report = collection.publish(OTHER)
    assert collection.versions() == [report.version] * 3
    stopped.stop()
    lagging.stop()
    newest = tmp_path / "newest"
    shutil.move(lagging.data, newest)
    shutil.copytree(old, lagging.data)
    lagging.restart()
    _lose_segments(stopped.data)

    refused = _repair(stopped, lagging)
    assert refused.code == 3
    assert "is older than version" in refused.err
    done = _repair(stopped, lagging, collection.fleet[2])

    lagging.stop()
    shutil.rmtree(lagging.data)
    shutil.move(newest, lagging.data)
    lagging.restart()
    assert (done.code, done.json["version"]) == (0, report.version)


def test_a_server_that_lost_its_claim_as_well_needs_the_card(
    collection: Published, stopped: ServerProcess, tmp_path: Path
) -> None:
    _lose_all(stopped.data)
    claim = stopped.folder / "claim"
    held = claim.read_bytes()
    claim.unlink()
    card = tmp_path / "card.json"
    with Owner(collection.profile) as owner:
        card.write_bytes(owner.card())

    refused = _repair(stopped, collection.fleet[1])
    assert refused.code == 1
    assert "--card" in refused.err
    done = _repair(stopped, collection.fleet[1], card=card)

    assert (done.code, done.err) == (0, "")
    assert claim.read_bytes() == held


@pytest.mark.parametrize(
    ("source", "code", "part"),
    [("127.0.0.1:1", 1, "does not answer"), ("192.0.2.1:7101", 2, "no TLS key is pinned")],
)
def test_a_source_that_cannot_be_used_changes_nothing(
    collection: Published, stopped: ServerProcess, source: str, code: int, part: str
) -> None:
    before = _content(stopped.data)
    (next((stopped.data / "segments").iterdir())).unlink()

    done = _repair(stopped, source)

    assert done.code == code
    assert part in done.err
    assert done.err.count("\n") == 1
    after = _content(stopped.data)
    assert {name for name in before if name not in after} != set()
    assert after["manifest"] == before["manifest"]
