"""Whatever one server sends, the right hits come, and the report says what that server did.

Everything here goes through the Searcher, as a user's search does.  Where every server lies there
are no hits at all.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mksearch.crypto.randomness import SeededRandom
from mksearch.errors import (
    AnswerRefused,
    ManifestRefused,
    MksearchError,
    NotEnoughAnswers,
    ParameterError,
    StorageError,
    VerificationError,
)
from mksearch.index.manifest import SignedManifest
from mksearch.messages import RecordAnswer, RecordRequest, ScoreAnswer, ScoreRequest
from mksearch.params import P, Quorum
from mksearch_client.keys import OwnerKeys
from mksearch_client.result import SearchHit, SearchResult
from mksearch_client.searching import Connection
from mksearch_server.search_server import SearchServer
from tests.adversary.corpus import N_REPEATED, WORDS, make_documents
from tests.adversary.hostile import HostileServer, LieObject, LieRecords, LieScore
from tests.support.local import LocalCollection, publish

N_DOCUMENTS = 150
#: Words that the repeated documents have too, so that a record of several slots is read.
DOCUMENTS = make_documents(N_DOCUMENTS, 1)
QUERY = " ".join(DOCUMENTS[0].text.split()[:3])
BAD = ("lied", "stale", "refused", "unreachable")


@dataclass
class World:
    """Two versions of a collection, and two collections that are not it."""

    old: LocalCollection
    new: LocalCollection
    same_owner: LocalCollection
    same_name: LocalCollection
    hits: tuple[SearchHit, ...]

    def search(
        self, liars: dict[int, Connection], servers: tuple[int, ...] = (1, 2, 3), query: str = QUERY
    ) -> SearchResult:
        return self.new.searcher(servers, replace=liars).search(query)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    random = SeededRandom(b"malicious server".ljust(32))
    old = publish(DOCUMENTS, folder / "old", random=random)
    new = publish(
        DOCUMENTS,
        folder / "new",
        keys=old.keys,
        previous=old.publication.signed,
        random=random,
    )
    keys = replace(old.keys, collection=random.bytes(16))
    same_owner = publish(DOCUMENTS, folder / "same owner", keys=keys, random=random)
    keys = replace(OwnerKeys.generate(random), collection=old.keys.collection)
    same_name = publish(DOCUMENTS, folder / "same name", keys=keys, random=random)
    result = new.searcher().search(QUERY)
    assert result.verified
    assert result.exact
    assert [report.status for report in result.servers] == ["ok", "ok", "unused"]
    return World(old, new, same_owner, same_name, result.hits)


def status(result: SearchResult) -> dict[int, str]:
    return {report.id: report.status for report in result.servers}


def require_right(result: SearchResult, world: World, named: dict[int, str]) -> None:
    """Prove that the hits are right and that only ``named`` servers got a bad status."""
    assert result.hits == world.hits
    assert result.verified
    assert {s: what for s, what in status(result).items() if what in BAD} == named
    for report in result.servers:
        assert (report.id in named) == bool(report.reason)


def test_the_honest_hits_are_the_repeated_documents_and_come_from_a_record_of_many_slots(
    world: World,
) -> None:
    ids = {hit.id for hit in world.hits}
    assert len(ids & {document.id for document in DOCUMENTS[-N_REPEATED:]}) >= 5
    recorder = HostileServer(world.new.servers[1])
    world.search({1: recorder})
    assert recorder.asked.count("records") >= 2, "records spill, so a second request is sent"


# --- scores -------------------------------------------------------------------------------------

Sums = NDArray[np.uint16]


def _change_sums(change: Callable[[Sums], NDArray[np.generic]]) -> LieScore:
    def lie(server: Connection, request: ScoreRequest) -> ScoreAnswer:
        sums = server.score(request).sums.copy()
        return ScoreAnswer(request.query_id, change(sums))  # type: ignore[arg-type]

    return lie


def _change_shares(change: Callable[[Sums], Sums]) -> LieScore:
    def lie(server: Connection, request: ScoreRequest) -> ScoreAnswer:
        return server.score(replace(request, shares=change(request.shares)))

    return lie


def _set(sums: Sums, at: tuple[int, int, int], value: int) -> Sums:
    sums[at] = value
    return sums


def _raise(error: Exception) -> Callable[..., ScoreAnswer]:
    def lie(*_arguments: object) -> ScoreAnswer:
        raise error

    return lie


SCORE_LIES: dict[str, LieScore] = {
    "one flipped bit": _change_sums(lambda sums: _set(sums, (0, 5, 1), int(sums[0, 5, 1]) ^ 1)),
    "one wrong check row": _change_sums(lambda s: _set(s, (0, 63, 0), (int(s[0, 63, 0]) + 1) % P)),
    "a row left out": _change_sums(lambda sums: np.where(np.arange(192)[:, None] == 7, 0, sums)),
    "all zeros": _change_sums(np.zeros_like),
    "rows turned by a block": _change_sums(lambda sums: np.roll(sums, 64, axis=1)),
    "another query": _change_shares(lambda shares: np.roll(shares, 1, axis=1)),
    "no query": _change_shares(np.zeros_like),
    "a row too few": _change_sums(lambda sums: sums[:, :-1]),
    "a vector too many": _change_sums(lambda sums: np.concatenate([sums, sums])),
    "nothing": _change_sums(lambda sums: sums[:0]),
    "a number": _change_sums(lambda _sums: np.array(0, np.uint16)),
    "wide integers": _change_sums(lambda sums: sums.astype(np.int64)),
    "an element out of range": _change_sums(lambda sums: _set(sums, (0, 0, 0), P)),
    "a foreign query id": lambda server, r: ScoreAnswer(bytes(16), server.score(r).sums),
}  # fmt: skip


@pytest.mark.parametrize("liar", [1, 2])
@pytest.mark.parametrize("lie", SCORE_LIES.values(), ids=SCORE_LIES.keys())
def test_a_wrong_score_changes_no_hit_and_names_the_server(
    world: World, lie: LieScore, liar: int
) -> None:
    hostile = HostileServer(world.new.servers[liar], score=lie)
    result = world.search({liar: hostile})
    require_right(result, world, {liar: "lied"})
    assert "records" not in hostile.asked, "who lied once is not asked again"


@pytest.mark.parametrize("liar", [1, 2])
def test_a_score_computed_over_another_segment_changes_no_hit_and_names_the_server(
    world: World, liar: int
) -> None:
    old = world.old.publication.signed.manifest

    def lie(_server: Connection, request: ScoreRequest) -> ScoreAnswer:
        other = replace(request, version=old.version, segment=next(old.segments()).id)
        return world.old.servers[liar].score(other)

    result = world.search({liar: HostileServer(world.new.servers[liar], score=lie)})
    require_right(result, world, {liar: "lied"})


def test_a_replayed_score_of_an_earlier_search_changes_no_hit_and_names_the_server(
    world: World,
) -> None:
    earlier: list[Sums] = []

    def lie(server: Connection, request: ScoreRequest) -> ScoreAnswer:
        if not earlier:
            earlier.append(server.score(request).sums)
        return ScoreAnswer(request.query_id, earlier[0])

    hostile = HostileServer(world.new.servers[1], score=lie)
    searcher = world.new.searcher(replace={1: hostile})
    require_right(searcher.search(QUERY), world, {})
    require_right(searcher.search(QUERY), world, {1: "lied"})


def test_two_servers_that_swap_their_answers_are_both_named_and_no_hit_is_shown(
    world: World,
) -> None:
    held: dict[int, Sums] = {}
    both = threading.Barrier(2, timeout=20)

    def swap(server: int) -> LieScore:
        def lie(honest: Connection, request: ScoreRequest) -> ScoreAnswer:
            held[server] = honest.score(request).sums
            both.wait()
            return ScoreAnswer(request.query_id, held[3 - server])

        return lie

    liars: dict[int, Connection] = {
        server: HostileServer(world.new.servers[server], score=swap(server)) for server in (1, 2)
    }
    with pytest.raises(AnswerRefused) as caught:
        world.search(liars)
    assert caught.value.liars == (1, 2)
    assert (caught.value.have, caught.value.need) == (1, 2)


FAILURES: dict[str, tuple[Exception, str]] = {
    "a refusal": (StorageError("no room"), "refused"),
    "a wrong request": (ParameterError("not like this"), "refused"),
    "no connection": (ConnectionRefusedError("nobody listens"), "unreachable"),
    "no answer in time": (TimeoutError("too late"), "unreachable"),
    "a broken socket": (OSError("reset"), "unreachable"),
}


@pytest.mark.parametrize("place", ["manifest", "score", "records", "read_object"])
@pytest.mark.parametrize(("error", "named"), FAILURES.values(), ids=FAILURES.keys())
def test_a_server_that_fails_anywhere_changes_no_hit_and_is_reported(
    world: World, place: str, error: Exception, named: str
) -> None:
    lies = {place: _raise(error)}
    hostile = HostileServer(world.new.servers[1], **lies)  # type: ignore[arg-type]
    require_right(world.search({1: hostile}), world, {1: named})


def test_a_liar_and_a_dead_server_leave_too_few_and_only_the_liar_is_named(world: World) -> None:
    liars: dict[int, Connection] = {
        1: HostileServer(world.new.servers[1], score=SCORE_LIES["one flipped bit"]),
        3: HostileServer(world.new.servers[3], score=_raise(ConnectionResetError("gone"))),
    }
    with pytest.raises(AnswerRefused) as caught:
        world.search(liars)
    assert caught.value.liars == (1,)
    assert (caught.value.have, caught.value.need) == (1, 2)


def test_dead_servers_alone_are_not_called_liars(world: World) -> None:
    dead: dict[int, Connection] = {
        server: HostileServer(world.new.servers[server], score=_raise(ConnectionResetError("gone")))
        for server in (1, 2)
    }
    with pytest.raises(NotEnoughAnswers) as caught:
        world.search(dead)
    assert (caught.value.have, caught.value.need) == (1, 2)


@pytest.mark.parametrize("lie", SCORE_LIES.values(), ids=SCORE_LIES.keys())
def test_when_every_score_is_a_lie_no_hit_is_shown(world: World, lie: LieScore) -> None:
    liars: dict[int, Connection] = {
        server: HostileServer(world.new.servers[server], score=lie) for server in (1, 2, 3)
    }
    with pytest.raises(AnswerRefused) as caught:
        world.search(liars)
    assert set(caught.value.liars) >= {1, 2}


def test_two_liars_of_five_change_no_hit_and_both_are_named(tmp_path: Path) -> None:
    collection = publish(DOCUMENTS, tmp_path, quorum=Quorum(5, 2))
    hits = collection.searcher().search(QUERY).hits
    lies = list(SCORE_LIES.values())
    pairs = list(itertools.combinations(range(1, 6), 2))
    for number, (first, second) in enumerate(pairs):
        liars: dict[int, Connection] = {
            first: HostileServer(collection.servers[first], score=lies[number % len(lies)]),
            second: HostileServer(collection.servers[second], score=lies[-1 - number]),
        }
        result = collection.searcher(replace=liars).search(QUERY)
        assert result.hits == hits
        asked = {server for server, what in status(result).items() if what != "unused"}
        lied = {server for server, what in status(result).items() if what == "lied"}
        assert lied == {first, second} & asked


# --- records ------------------------------------------------------------------------------------

Slots = NDArray[np.uint16]
N_TAGS = 3


def _change_slots(change: Callable[[Slots], NDArray[np.generic]]) -> LieRecords:
    def lie(server: Connection, request: RecordRequest) -> RecordAnswer:
        elements = server.records(request).elements.copy()
        return RecordAnswer(change(elements))  # type: ignore[arg-type]

    return lie


def _change_one(slot: int, element: int, change: Callable[[int], int]) -> LieRecords:
    def apply(elements: Slots) -> Slots:
        elements[slot, element] = change(int(elements[slot, element]))
        return elements

    return _change_slots(apply)


def _neighbours(server: Connection, request: RecordRequest) -> RecordAnswer:
    return server.records(replace(request, slots=abs(request.slots - 1)))


RECORD_LIES: dict[str, LieRecords] = {
    "a flipped first bit": _change_one(0, 0, lambda value: value ^ 1 << 14),
    "a flipped last bit": _change_one(-1, -1 - N_TAGS, lambda value: value ^ 1),
    "an element of 16 bits": _change_one(0, 9, lambda value: value | 1 << 15),
    "a tag out of range": _change_one(0, -1, lambda _value: P),
    "slots in another order": _change_slots(lambda elements: elements[::-1]),
    "the first slot for all": _change_slots(lambda elements: elements[[0] * len(elements)]),
    "slots of other rows": _neighbours,
    "zeros": _change_slots(np.zeros_like),
    "a slot too few": _change_slots(lambda elements: elements[:-1]),
    "a slot too many": _change_slots(lambda elements: np.concatenate([elements, elements[:1]])),
    "no slot": _change_slots(lambda elements: elements[:0]),
    "an element too few": _change_slots(lambda elements: elements[:, :-1]),
    "an element too many": _change_slots(lambda elements: np.pad(elements, ((0, 0), (0, 1)))),
    "no element": _change_slots(lambda elements: elements[:, :0]),
    "a flat array": _change_slots(lambda elements: elements.reshape(-1)),
    "a number": _change_slots(lambda _elements: np.array(0, np.uint16)),
    "wide integers": _change_slots(lambda elements: elements.astype(np.int64)),
    "signed integers": _change_slots(lambda elements: elements.astype(np.int16)),
    "floats": _change_slots(lambda elements: elements.astype(np.float32)),
}  # fmt: skip


@pytest.mark.parametrize("lie", RECORD_LIES.values(), ids=RECORD_LIES.keys())
def test_wrong_records_change_no_hit_and_name_the_server(world: World, lie: LieRecords) -> None:
    hostile = HostileServer(world.new.servers[1], records=lie)
    require_right(world.search({1: hostile}), world, {1: "lied"})


@pytest.mark.parametrize("lie", RECORD_LIES.values(), ids=RECORD_LIES.keys())
def test_records_that_are_wrong_in_a_later_request_change_no_hit_and_name_the_server(
    world: World, lie: LieRecords
) -> None:
    n_asked = itertools.count()

    def later(server: Connection, request: RecordRequest) -> RecordAnswer:
        return lie(server, request) if next(n_asked) else server.records(request)

    hostile = HostileServer(world.new.servers[1], records=later)
    require_right(world.search({1: hostile}), world, {1: "lied"})


def test_records_of_another_segment_change_no_hit_and_name_the_server(world: World) -> None:
    old = world.old.publication.signed.manifest

    def lie(_server: Connection, request: RecordRequest) -> RecordAnswer:
        return world.old.servers[1].records(
            replace(request, version=old.version, segment=next(old.segments()).id)
        )

    hostile = HostileServer(world.new.servers[1], records=lie)
    require_right(world.search({1: hostile}), world, {1: "lied"})


def test_records_are_asked_of_others_when_two_servers_lie(world: World) -> None:
    liars: dict[int, Connection] = {
        1: HostileServer(world.new.servers[1], records=RECORD_LIES["zeros"]),
        2: HostileServer(world.new.servers[2], records=RECORD_LIES["no slot"]),
    }
    require_right(world.search(liars), world, {1: "lied", 2: "lied"})


@pytest.mark.parametrize("lie", RECORD_LIES.values(), ids=RECORD_LIES.keys())
def test_when_every_record_is_a_lie_no_hit_is_shown_and_all_are_named(
    world: World, lie: LieRecords
) -> None:
    liars: dict[int, Connection] = {
        server: HostileServer(world.new.servers[server], records=lie) for server in (1, 2, 3)
    }
    with pytest.raises(AnswerRefused) as caught:
        world.search(liars)
    assert caught.value.liars == (1, 2, 3)


# --- manifests ----------------------------------------------------------------------------------


def _flip(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


MANIFEST_LIES: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _data: b"",
    "noise": lambda _data: b"\xa5" * 500,
    "a flipped magic": lambda data: _flip(data, 0),
    "a newer format": lambda data: _flip(data, 10),
    "a flipped length": lambda data: _flip(data, 15),
    "a flipped body": lambda data: _flip(data, 60),
    "a flipped signature": lambda data: _flip(data, -1),
    "a cut signature": lambda data: data[:-1],
    "a byte too many": lambda data: data + b"\0",
    "a signature of zeros": lambda data: data[:-64] + bytes(64),
}


@pytest.mark.parametrize("liar", [1, 2])
@pytest.mark.parametrize("lie", MANIFEST_LIES.values(), ids=MANIFEST_LIES.keys())
def test_a_damaged_manifest_changes_no_hit_and_names_the_server(
    world: World, lie: Callable[[bytes], bytes], liar: int
) -> None:
    hostile = HostileServer(world.new.servers[liar], manifest=lambda s: lie(s.manifest()))
    require_right(world.search({liar: hostile}), world, {liar: "lied"})


def test_a_manifest_that_another_owner_signed_names_the_server(world: World) -> None:
    for liar in (1, 2):
        require_right(world.search({liar: world.same_name.servers[liar]}), world, {liar: "lied"})


def test_a_manifest_of_another_collection_of_the_owner_changes_no_hit(world: World) -> None:
    for liar in (1, 2):
        result = world.search({liar: world.same_owner.servers[liar]})
        assert status(result)[liar] in ("lied", "stale", "refused")
        require_right(result, world, {liar: status(result)[liar]})


@pytest.mark.parametrize("liar", [1, 2])
def test_a_server_rolled_back_as_a_whole_changes_no_hit_and_is_called_stale(
    world: World, liar: int
) -> None:
    result = world.search({liar: world.old.servers[liar]})
    require_right(result, world, {liar: "stale"})
    assert result.version == 2


def test_a_server_that_shows_the_old_manifest_alone_is_called_stale(world: World) -> None:
    old = world.old.publication.signed.encode()
    hostile = HostileServer(world.new.servers[1], manifest=lambda _server: old)
    require_right(world.search({1: hostile}), world, {1: "stale"})


def test_a_second_manifest_of_the_same_version_is_not_followed(
    world: World, tmp_path: Path
) -> None:
    fork = publish(
        DOCUMENTS[:40], tmp_path, keys=world.new.keys, previous=world.old.publication.signed
    )
    searcher = world.new.searcher(replace={2: fork.servers[2]})
    result = searcher.search(QUERY)
    require_right(result, world, {2: status(result)[2]})
    assert status(result)[2] in ("lied", "stale")


def test_when_every_server_was_rolled_back_nothing_older_than_what_was_seen_is_shown(
    world: World,
) -> None:
    searcher = world.new.searcher()
    searcher.search(QUERY)
    rolled_back = world.old.searcher()
    rolled_back._seen = searcher.seen
    with pytest.raises(MksearchError):
        rolled_back.search(QUERY)
    assert rolled_back.seen is not None
    assert rolled_back.seen.manifest.version == 2


def test_a_collection_whose_servers_all_went_back_after_it_was_opened_shows_nothing(
    world: World,
) -> None:
    searcher = world.new.searcher()
    searcher.search(QUERY)
    searcher._connections = dict(world.old.servers)
    with pytest.raises(VerificationError):
        searcher.search(QUERY)


@pytest.mark.parametrize("lie", MANIFEST_LIES.values(), ids=MANIFEST_LIES.keys())
def test_when_every_manifest_is_a_lie_no_hit_is_shown_and_the_error_says_not_verified(
    world: World, lie: Callable[[bytes], bytes]
) -> None:
    liars: dict[int, Connection] = {
        server: HostileServer(world.new.servers[server], manifest=lambda s: lie(s.manifest()))
        for server in (1, 2, 3)
    }
    with pytest.raises(VerificationError) as caught:
        world.search(liars)
    assert all(f"server {server}" in str(caught.value) for server in (1, 2, 3))


def test_an_expired_manifest_is_refused_by_name_though_every_server_shows_it(world: World) -> None:
    searcher = world.new.searcher()
    expires_at = world.new.publication.signed.manifest.expires_at
    searcher._clock = lambda: expires_at + 1.0
    with pytest.raises(ManifestRefused, match="expired 1 s ago"):
        searcher.search(QUERY)


# --- objects ------------------------------------------------------------------------------------


def _change_object(change: Callable[[bytes], bytes]) -> LieObject:
    return lambda server, name, offset, n_bytes: change(server.read_object(name, offset, n_bytes))


def _another_object(server: Connection, name: bytes, offset: int, n_bytes: int) -> bytes:
    manifest = SignedManifest.decode(server.manifest(), *_pinned(server)).manifest
    other = next(ref.id for ref in manifest.objects() if ref.id != name)
    return server.read_object(other, offset, n_bytes)


def _pinned(server: Connection) -> tuple[bytes]:
    assert isinstance(server, SearchServer)
    return (server._owner_key,)


OBJECT_LIES: dict[str, LieObject] = {
    "nothing": _change_object(lambda _data: b""),
    "a flipped first byte": _change_object(lambda data: _flip(data, 0) if data else b""),
    "a flipped last byte": _change_object(lambda data: _flip(data, -1) if data else b""),
    "zeros of the right size": _change_object(lambda data: bytes(len(data))),
    "a byte too few": _change_object(lambda data: data[:-1]),
    "a byte too many": _change_object(lambda data: data + b"\0"),
    "another object": _another_object,
}


@pytest.mark.parametrize("lie", OBJECT_LIES.values(), ids=OBJECT_LIES.keys())
def test_a_wrong_object_changes_no_hit_and_names_the_server(world: World, lie: LieObject) -> None:
    hostile = HostileServer(world.new.servers[1], read_object=lie)
    require_right(world.search({1: hostile}), world, {1: "lied"})


@pytest.mark.parametrize("lie", OBJECT_LIES.values(), ids=OBJECT_LIES.keys())
def test_when_every_object_is_a_lie_no_hit_is_shown_and_all_are_named(
    world: World, lie: LieObject
) -> None:
    liars: dict[int, Connection] = {
        server: HostileServer(world.new.servers[server], read_object=lie) for server in (1, 2, 3)
    }
    with pytest.raises(AnswerRefused) as caught:
        world.search(liars)
    assert caught.value.liars == (1, 2, 3)


# --- opening documents --------------------------------------------------------------------------


def _only_documents(world: World, lie: LieObject) -> LieObject:
    """Lie about documents alone, so that the collection itself opens."""
    manifest = world.new.publication.signed.manifest
    public = {ref.id for ref in manifest.objects()} | {ref.id for ref in manifest.segments()}

    def wrapped(server: Connection, name: bytes, offset: int, n_bytes: int) -> bytes:
        if name in public:
            return server.read_object(name, offset, n_bytes)
        return lie(server, name, offset, n_bytes)

    return wrapped


@pytest.mark.parametrize("lie", OBJECT_LIES.values(), ids=OBJECT_LIES.keys())
def test_the_right_document_opens_whatever_one_server_sends(world: World, lie: LieObject) -> None:
    whole = HostileServer(world.new.servers[1], read_object=_bounded(lie))
    part = HostileServer(world.new.servers[1], read_object=_only_documents(world, _bounded(lie)))
    for hostile in (whole, part):
        document = world.new.searcher(replace={1: hostile}).open("doc-0017")
        assert document.id == "doc-0017"
        assert document.text == DOCUMENTS[17].text


@pytest.mark.parametrize("lie", OBJECT_LIES.values(), ids=OBJECT_LIES.keys())
def test_no_document_opens_when_every_server_lies_and_all_are_named(
    world: World, lie: LieObject
) -> None:
    liars: dict[int, Connection] = {
        server: HostileServer(
            world.new.servers[server], read_object=_only_documents(world, _bounded(lie))
        )
        for server in (1, 2, 3)
    }
    with pytest.raises(AnswerRefused) as caught:
        world.new.searcher(replace=liars).open("doc-0017")
    assert caught.value.liars == (1, 2, 3)


def test_another_document_of_the_collection_is_not_opened_in_its_place(world: World) -> None:
    searcher = world.new.searcher()
    searcher.open("doc-0003")
    opened = searcher.refresh()
    other = opened.find(searcher._start(), opened.views[0], "doc-0004")
    assert other is not None
    blob = other.blob

    def lie(server: Connection, _name: bytes, offset: int, n_bytes: int) -> bytes:
        return server.read_object(blob, offset, n_bytes)

    hostile = HostileServer(world.new.servers[1], read_object=_only_documents(world, lie))
    assert world.new.searcher(replace={1: hostile}).open("doc-0003").id == "doc-0003"


class AskedForEver(BaseException):
    """No error of a server: the client never stopped reading."""


def _bounded(lie: LieObject, n_pieces: int = 100) -> LieObject:
    """End the test, rather than fill the memory, when a client reads on and on."""
    n_asked = itertools.count()

    def wrapped(server: Connection, name: bytes, offset: int, n_bytes: int) -> bytes:
        if next(n_asked) > n_pieces:
            raise AskedForEver(f"{n_pieces} pieces were read")
        return lie(server, name, offset, n_bytes)

    return wrapped


ENDLESS: dict[str, LieObject] = {
    "zeros": lambda _server, _name, _offset, n_bytes: bytes(n_bytes),
    "more than was asked for": lambda _server, _name, _offset, n_bytes: bytes(n_bytes + 1),
    "a byte at a time": lambda _server, _name, _offset, _n_bytes: b"\0",
    "its beginning again": lambda server, name, _offset, n: server.read_object(name, 0, n),
}


@pytest.mark.parametrize("lie", ENDLESS.values(), ids=ENDLESS.keys())
def test_a_document_that_never_ends_is_given_up_and_read_from_another_server(
    world: World, lie: LieObject
) -> None:
    # A stored document is below a thousand bytes here; 40 MiB are more than any may be asked for.
    endless = _bounded(lie, 5000 if lie is ENDLESS["a byte at a time"] else 40)
    hostile = HostileServer(world.new.servers[1], read_object=_only_documents(world, endless))
    document = world.new.searcher(replace={1: hostile}).open("doc-0017")
    assert document.id == "doc-0017"


# --- what changes on a server's disk ------------------------------------------------------------


@pytest.fixture
def damaged(world: World) -> Iterator[NDArray[np.uint8]]:
    """Return the stored segment of server 1, for changing; put back afterwards."""
    data = world.new.segment_bytes(1)
    before = data.copy()
    yield data
    data[:] = before


def test_a_change_anywhere_in_the_stored_cells_of_level_0_is_caught_and_the_server_named(
    world: World, damaged: NDArray[np.uint8]
) -> None:
    searcher = world.new.searcher()
    # A share that is 0 where the cell changed would hide the change, once in 65,521 times.
    searcher._random = SeededRandom(b"stored cells".ljust(32))
    layout = searcher.refresh().views[0].segments[0].header.layout
    cells = layout.level(damaged, 0)
    rng = np.random.default_rng(3)
    places = [(0, 0), (cells.shape[0] - 1, cells.shape[1] - 1)]
    places += [(row, int(rng.integers(cells.shape[1]))) for row in range(0, len(cells), 3)]
    for row, column in places:
        before = int(cells[row, column])
        cells[row, column] = before ^ 1 << int(rng.integers(4, 16))
        result = searcher.search(QUERY)
        cells[row, column] = before
        require_right(result, world, {1: "lied"})
    require_right(searcher.search(QUERY), world, {})


def test_a_change_in_a_stored_slot_is_caught_when_the_slot_is_read_and_only_then(
    world: World, damaged: NDArray[np.uint8]
) -> None:
    searcher = world.new.searcher()
    layout = searcher.refresh().views[0].segments[0].header.layout
    slots = layout.slots(damaged)
    recorder = HostileServer(world.new.servers[1])
    world.search({1: recorder})
    read = set(recorder.slots)
    assert 0 < len(read) < layout.n_slots
    rng = np.random.default_rng(4)
    for slot in range(layout.n_slots):
        element = int(rng.integers(layout.slot.n_elements))
        before = int(slots[slot, element])
        slots[slot, element] = before ^ 1 << int(rng.integers(16))
        result = searcher.search(QUERY)
        slots[slot, element] = before
        require_right(result, world, {1: "lied"} if slot in read else {})


def test_slots_that_changed_places_on_disk_are_caught_and_the_server_named(
    world: World, damaged: NDArray[np.uint8]
) -> None:
    layout = world.new.searcher().refresh().views[0].segments[0].header.layout
    slots = layout.slots(damaged)
    slots[:] = np.roll(slots, 1, axis=0)
    require_right(world.search({}), world, {1: "lied"})


def test_a_changed_header_on_disk_is_caught_and_the_server_named(
    world: World, damaged: NDArray[np.uint8]
) -> None:
    for at in (0, 11, 40, 300, 4095):
        damaged[at] ^= 1
        require_right(world.search({}), world, {1: "lied"})
        damaged[at] ^= 1


def test_every_word_finds_exactly_its_documents_though_one_server_lies(world: World) -> None:
    hostile = HostileServer(world.new.servers[2], score=SCORE_LIES["one flipped bit"])
    searcher = world.new.searcher(replace={2: hostile})
    honest = world.new.searcher()
    for word in WORDS[:20]:
        result = searcher.search(word, k=N_DOCUMENTS)
        assert result.hits == honest.search(word, k=N_DOCUMENTS).hits
        expected = {document.id for document in DOCUMENTS if word in document.text.split()}
        assert {hit.id for hit in result.hits} == expected
        assert status(result)[2] == "lied"
