"""One server's answers in other hands, message by message and byte by byte: never a wrong hit."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import grpc
import pytest

from mksearch.errors import AnswerRefused, MksearchError, NotEnoughAnswers
from mksearch.wire.v1 import owner_pb2
from mksearch.wire.v1.error_pb2 import ErrorDetail
from mksearch_client import fleet
from mksearch_client.documents import Document
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner
from mksearch_client.profile import Profile, ServerEntry
from mksearch_client.result import SearchResult
from mksearch_server.status import DETAIL_KEY
from tests.service.conftest import QUERIES, SMALL, K, Published
from tests.support import relays
from tests.support.processes import write_corpus
from tests.support.relays import Refusal, SpoilBytes, relaying, relaying_bytes

CALLS = ("GetManifest", "Score", "GetRecords", "ReadObject")
LIES = {
    lie.__name__: lie
    for lie in (
        relays.flip,
        relays.drop_first,
        relays.drop_all,
        relays.truncate,
        relays.repeat,
        relays.reverse,
        relays.garbage,
        relays.oversize,
    )
}
Lie = Callable[[Iterator[bytes]], Iterable[bytes]]
#: A whole search with one server that is asked in vain; the timeout of a request is 3 s.
BOUND_S = 6.0


def _only(call: str, lie: Lie) -> relays.Spoil:
    return lambda name, messages: lie(messages) if name == call else messages


def _search(profile: Profile, query: str) -> SearchResult:
    with Searcher(profile, timeout_s=3.0) as searcher:
        return searcher.search(query, K)


def _status(result: SearchResult, server: int) -> str:
    return next(report.status for report in result.servers if report.id == server)


@pytest.fixture(autouse=True)
def _nothing_is_left(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """No lie makes a library print a traceback."""
    yield
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("lie", LIES)
def test_a_server_whose_answers_are_spoiled_is_named_and_does_not_matter(
    collection: Published, tmp_path: Path, call: str, lie: str
) -> None:
    with relaying(collection.fleet[1].address, _only(call, LIES[lie])) as relay:
        profile = collection.member(tmp_path / "member", {1: relay.address})
        started = time.monotonic()
        result = _search(profile, QUERIES[0])

        assert call in relay.calls
    collection.require_right(result)
    assert time.monotonic() - started < BOUND_S
    # What comes behind the only message of a manifest is not even read, nor the end behind it.
    late = {"unreachable"} if (lie, call) == ("repeat", "GetManifest") else set()
    assert _status(result, 1) in {"lied", "refused"} | late
    assert next(report.reason for report in result.servers if report.id == 1)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("lie", [relays.late, relays.endless], ids=["late", "endless"])
def test_a_server_that_does_not_come_to_an_end_costs_the_hedge_time(
    collection: Published, tmp_path: Path, call: str, lie: Lie
) -> None:
    with relaying(collection.fleet[1].address, _only(call, lie)) as relay:
        profile = collection.member(tmp_path / "member", {1: relay.address})
        started = time.monotonic()
        result = _search(profile, QUERIES[0])
        spent_s = time.monotonic() - started

    collection.require_right(result)
    assert spent_s < BOUND_S
    assert _status(result, 1) in {"unreachable", "lied", "refused"}


@pytest.mark.parametrize("call", CALLS)
def test_an_answer_replayed_from_another_question_is_refused(
    collection: Published, tmp_path: Path, call: str
) -> None:
    recorded: list[list[bytes]] = []

    def replay(messages: Iterator[bytes]) -> list[bytes]:
        held = list(messages)
        recorded.append(held)
        return recorded[0]

    with relaying(collection.fleet[1].address, _only(call, replay)) as relay:
        profile = collection.member(tmp_path / "first", {1: relay.address})
        collection.require_right(_search(profile, QUERIES[2]))
        profile = collection.member(tmp_path / "second", {1: relay.address})
        result = _search(profile, QUERIES[0])

    assert len(recorded) > 1
    collection.require_right(result)
    # The first object read is the dictionary, both times; the segment's header comes after it.
    assert _status(result, 1) == "lied"


@pytest.mark.parametrize("seed", range(3))
def test_random_changes_of_any_message_never_show_a_wrong_hit(
    collection: Published, tmp_path: Path, seed: int
) -> None:
    source = random.Random(seed)

    def spoil(_call: str, messages: Iterator[bytes]) -> Iterator[bytes]:
        for message in messages:
            data = bytearray(message)
            for _ in range(source.choice((0, 0, 1, 5)) if data else 0):
                data[source.randrange(len(data))] ^= 1 << source.randrange(8)
            yield bytes(data)

    with relaying(collection.fleet[1].address, spoil) as relay:
        profile = collection.member(tmp_path / "member", {1: relay.address})
        for query in QUERIES:
            collection.require_right(_search(profile, query))


@pytest.mark.parametrize("lie", LIES)
def test_with_two_spoiled_servers_no_hit_is_shown(
    collection: Published, tmp_path: Path, lie: str
) -> None:
    servers = collection.fleet
    for call in ("GetManifest", "Score"):
        spoil = _only(call, LIES[lie])
        with (
            relaying(servers[1].address, spoil) as one,
            relaying(servers[3].address, spoil) as three,
        ):
            profile = collection.member(tmp_path / call, {1: one.address, 3: three.address})
            with pytest.raises((AnswerRefused, NotEnoughAnswers)) as caught:
                _search(profile, QUERIES[0])
        assert "server 1" in caught.value.message
        assert "server 3" in caught.value.message
        assert "server 2" not in caught.value.message


def test_records_need_one_honest_server_only(collection: Published, tmp_path: Path) -> None:
    servers = collection.fleet
    spoil = _only("GetRecords", relays.flip)
    with relaying(servers[1].address, spoil) as one, relaying(servers[2].address, spoil) as two:
        profile = collection.member(tmp_path / "member", {1: one.address, 2: two.address})
        result = _search(profile, QUERIES[0])

    collection.require_right(result)
    assert [report.status for report in result.servers] == ["lied", "lied", "ok"]


@pytest.mark.parametrize("lie", LIES)
def test_a_document_opens_right_beside_a_spoiled_server(
    collection: Published, tmp_path: Path, lie: str
) -> None:
    document = SMALL.documents[7]
    with relaying(collection.fleet[1].address, _only("ReadObject", LIES[lie])) as relay:
        profile = collection.member(tmp_path / "member", {1: relay.address})
        with Searcher(profile, timeout_s=3.0) as searcher:
            opened = searcher.open(document.id)

    assert (opened.title, opened.text) == (document.title, document.text)


# --- bytes ---------------------------------------------------------------------------------------


def _flip(source: random.Random) -> SpoilBytes:
    def spoil(_n_before: int, piece: bytes) -> list[bytes]:
        data = bytearray(piece)
        data[source.randrange(len(data))] ^= 1 << source.randrange(8)
        return [bytes(data)]

    return spoil


def _skip(source: random.Random) -> SpoilBytes:
    def spoil(n_before: int, piece: bytes) -> list[bytes]:
        if n_before < 200 or len(piece) < 20:
            return [piece]
        at = source.randrange(len(piece) - 9)
        return [piece[:at] + piece[at + 9 :]]

    return spoil


def _cut(source: random.Random) -> SpoilBytes:
    limit = source.randrange(20, 4000)

    def spoil(n_before: int, piece: bytes) -> list[bytes] | None:
        return [piece] if n_before + len(piece) < limit else None

    return spoil


def _twice(source: random.Random) -> SpoilBytes:
    return lambda _n, piece: [piece, piece] if source.random() < 0.3 else [piece]


def _exchange(source: random.Random) -> SpoilBytes:
    def spoil(_n_before: int, piece: bytes) -> list[bytes]:
        at = source.randrange(len(piece))
        return [piece[at:], piece[:at]] if source.random() < 0.5 else [piece]

    return spoil


def _silence(source: random.Random) -> SpoilBytes:
    limit = source.randrange(100, 3000)
    return lambda n_before, piece: [piece] if n_before < limit else []


@pytest.mark.parametrize("kind", [_flip, _skip, _cut, _twice, _exchange, _silence])
def test_damaged_bytes_on_the_way_never_show_a_wrong_hit(
    collection: Published, tmp_path: Path, kind: Callable[[random.Random], SpoilBytes]
) -> None:
    for seed in range(3):
        spoil = kind(random.Random(seed))
        with relaying_bytes(collection.fleet[1].address, spoil) as relay:
            profile = collection.member(tmp_path / f"{seed}", {1: relay.address})
            started = time.monotonic()
            result = _search(profile, QUERIES[seed])
            spent_s = time.monotonic() - started
        collection.require_right(result)
        assert spent_s < BOUND_S


def test_with_two_damaged_lines_no_hit_is_shown(collection: Published, tmp_path: Path) -> None:
    servers = collection.fleet
    for seed in range(3):
        spoil = _flip(random.Random(seed))
        with (
            relaying_bytes(servers[1].address, spoil) as one,
            relaying_bytes(servers[2].address, spoil) as two,
        ):
            profile = collection.member(tmp_path / f"{seed}", {1: one.address, 2: two.address})
            with pytest.raises(MksearchError):
                _search(profile, QUERIES[seed])


# --- publishing ----------------------------------------------------------------------------------


def _names_of_nothing(messages: Iterator[bytes]) -> Iterator[bytes]:
    list(messages)
    yield owner_pb2.ListMissingResponse(names=[bytes(32), b"short", b""]).SerializeToString()


def _nothing_missing(messages: Iterator[bytes]) -> Iterator[bytes]:
    list(messages)
    yield owner_pb2.ListMissingResponse().SerializeToString()


def _other_hash(messages: Iterator[bytes]) -> Iterator[bytes]:
    list(messages)
    yield owner_pb2.ProposeResponse(manifest_hash=bytes(32)).SerializeToString()


def _other_version(messages: Iterator[bytes]) -> Iterator[bytes]:
    list(messages)
    yield owner_pb2.ActivateResponse(version=9999).SerializeToString()


@pytest.mark.parametrize("code", ["publication-under-way", "manifest-stale", "storage", ""])
def test_a_server_that_invents_reasons_does_not_keep_the_owner_from_publishing(
    collection: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(fleet, "RIVAL_S", 0.3)
    documents = [Document(f"{n}", "", f"watering {code} {n}") for n in range(12)]
    corpus = write_corpus(tmp_path / "corpus.jsonl", documents)
    before = max(collection.versions())
    trailer = ((DETAIL_KEY, ErrorDetail(code=code, message="no", cure="no").SerializeToString()),)

    def refuse(_messages: Iterator[bytes]) -> Iterator[bytes]:
        raise Refusal(grpc.StatusCode.FAILED_PRECONDITION, "no", trailer)
        yield b""

    with relaying(collection.fleet[1].address, _only("Propose", refuse)) as relay:
        profile = Profile.open(collection.profile.folder)
        profile.servers[1] = ServerEntry(1, relay.address, profile.servers[1].key)
        with Owner(profile, timeout_s=3.0) as owner:
            report = owner.publish([corpus], delete_missing=True)

    collection.documents = tuple(documents)
    assert report.version == before + 1
    assert [server["status"] for server in report.servers] == ["refused", "ok", "ok"]
    assert collection.versions() == [before, before + 1, before + 1]


@pytest.mark.parametrize(
    ("call", "lie"),
    [
        ("Propose", relays.garbage),
        ("Propose", _other_hash),
        ("ListMissing", relays.garbage),
        ("ListMissing", _names_of_nothing),
        ("ListMissing", _nothing_missing),
        ("Put", relays.garbage),
        ("Put", relays.drop_all),
        ("Activate", relays.garbage),
        ("Activate", _other_version),
    ],
)
def test_a_lying_server_does_not_keep_a_version_from_the_others(
    collection: Published, tmp_path: Path, call: str, lie: Lie
) -> None:
    documents = [Document(f"{n}", "", f"watering {call} {lie.__name__} {n}") for n in range(12)]
    corpus = write_corpus(tmp_path / "corpus.jsonl", documents)
    before = max(collection.versions())
    with relaying(collection.fleet[2].address, _only(call, lie)) as relay:
        pinned = collection.profile.servers[2]
        profile = Profile.open(collection.profile.folder)
        profile.servers[2] = ServerEntry(2, relay.address, pinned.key)
        with Owner(profile, timeout_s=3.0) as owner:
            report = owner.publish([corpus], delete_missing=True)
            assert report.version == before + 1
            assert [server["status"] for server in report.servers][::2] == ["ok", "ok"]
            assert report.servers[1]["status"] != "ok"
    collection.documents = tuple(documents)
    assert collection.versions()[::2] == [before + 1] * 2
    with collection.searcher() as searcher:
        collection.require_right(searcher.search("watering", K))


def test_the_threads_of_a_closed_searcher_end_beside_a_server_that_never_ends(
    collection: Published, tmp_path: Path
) -> None:
    with relaying(collection.fleet[1].address, _only("Score", relays.endless)) as relay:
        profile = collection.member(tmp_path / "member", {1: relay.address})
        with Searcher(profile, timeout_s=30.0) as searcher:
            collection.require_right(searcher.search(QUERIES[0], K))
            threads = list(searcher._pool._threads)
        for thread in threads:
            thread.join(5)

    assert threads
    assert not any(thread.is_alive() for thread in threads)
