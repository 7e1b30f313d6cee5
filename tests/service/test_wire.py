"""What anybody may send to a server: noise, half messages, too much of it, or the wrong thing."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import grpc
import pytest

from mksearch.crypto.randomness import SystemRandom
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.errors import FormatError, ServerRefused, ServerUnreachable
from mksearch.index.blob_list import BlobList
from mksearch.index.manifest import Group, SignedManifest
from mksearch.index.renewal import SignedRenewal
from mksearch.index.segment import HEADER_BYTES, SegmentHeader
from mksearch.params import BLOCKS_MAX, MAX_RECORDS, Quorum
from mksearch.text.analyzers import make_analyzer
from mksearch.text.weights import Scoring
from mksearch.wire import convert
from mksearch.wire.v1 import owner_pb2, search_pb2
from mksearch.wire.v1.error_pb2 import ErrorDetail
from mksearch_client.connection import GrpcConnection
from mksearch_client.documents import Document
from mksearch_client.keys import OwnerKeys
from mksearch_client.publication import Publication
from mksearch_client.publication import upload as upload_to
from mksearch_client.publishing import Publisher
from mksearch_server.status import DETAIL_KEY, STATUS_CODES
from tests.service.conftest import QUERIES, SMALL, Published
from tests.support.processes import ServerProcess, serving

SEARCH, OWNER, INFO = (f"/mksearch.wire.v1.{name}Service/" for name in ("Search", "Owner", "Info"))
METHODS = {
    SEARCH + "GetManifest": search_pb2.GetManifestRequest,
    SEARCH + "Score": search_pb2.ScoreRequest,
    SEARCH + "GetRecords": search_pb2.GetRecordsRequest,
    SEARCH + "Select": search_pb2.SelectRequest,
    SEARCH + "ReadObject": search_pb2.ReadObjectRequest,
    SEARCH + "GetRenewal": search_pb2.GetRenewalRequest,
    OWNER + "Claim": owner_pb2.ClaimRequest,
    OWNER + "Propose": owner_pb2.ProposeRequest,
    OWNER + "ListMissing": owner_pb2.ListMissingRequest,
    OWNER + "Put": owner_pb2.PutRequest,
    OWNER + "Activate": owner_pb2.ActivateRequest,
    OWNER + "Renew": owner_pb2.RenewRequest,
    INFO + "GetInfo": owner_pb2.GetInfoRequest,
}
#: Methods that take a stream; the others wait for their one request as long as the client does.
STREAMS = {SEARCH + "Score", SEARCH + "Select", OWNER + "Put"}
#: Codes of the table, and those that the transport gives for what is no message at all.
TABLE = {code for _, code in STATUS_CODES}
TRANSPORT = {grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED}
#: Memory that a server may take on while it refuses requests of hundreds of megabytes; the
#: allocator keeps some of what was freed.
GROWTH_BYTES = 160 << 20


@dataclass(frozen=True)
class Answered:
    """What a server answered.

    Attributes:
        code: status.
        detail: of the error trailer, None without one.
        text: everything else that the client could read of an error.
        messages: encoded answers.
    """

    code: grpc.StatusCode
    detail: ErrorDetail | None
    text: str
    messages: tuple[bytes, ...]


class Caller:
    """Sends bytes to any method of one server."""

    def __init__(self, server: ServerProcess) -> None:
        self._channel = grpc.insecure_channel(server.address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._channel.close()

    def __call__(self, method: str, requests: Iterable[bytes], timeout_s: float = 20.0) -> Answered:
        call: Any = self._channel.stream_stream(method, None, None)(
            iter(requests), timeout=timeout_s
        )
        messages: list[bytes] = []
        with suppress(grpc.RpcError):
            messages.extend(call)
        detail = None
        for key, value in call.trailing_metadata() or ():
            if key == DETAIL_KEY:
                detail = ErrorDetail.FromString(value)
        return Answered(call.code(), detail, call.details() or "", tuple(messages))


@pytest.fixture
def caller(collection: Published) -> Iterator[Caller]:
    with Caller(collection.fleet[1]) as caller:
        yield caller


def _group(published: Published) -> Group:
    signed = published.profile.highest_seen()
    assert signed is not None
    return signed.manifest.groups[0]


def _good_requests(published: Published) -> dict[str, list[bytes]]:
    """Give a request of every method that the server answers, or refuses for a reason."""
    signed = published.profile.highest_seen()
    assert signed is not None
    group = signed.manifest.groups[0]
    segment = group.segments[0].id
    messages: dict[str, Sequence[Any]] = {
        "GetManifest": [search_pb2.GetManifestRequest(nonce=bytes(16))],
        "GetRecords": [
            search_pb2.GetRecordsRequest(
                version=signed.manifest.version, segment=segment, slots=[0, 1, 2]
            )
        ],
        "ReadObject": [
            search_pb2.ReadObjectRequest(name=group.dictionary.id, offset=10, n_bytes=500)
        ],
        "Claim": [
            owner_pb2.ClaimRequest(token="0" * 32, owner_key=bytes(32), collection=bytes(16))
        ],
        "Propose": [owner_pb2.ProposeRequest(manifest=signed.encode())],
        "ListMissing": [owner_pb2.ListMissingRequest(manifest_hash=signed.hash)],
        "Put": [
            owner_pb2.PutRequest(
                manifest_hash=signed.hash, name=group.dictionary.id, data=bytes(100)
            ),
            owner_pb2.PutRequest(data=bytes(100)),
        ],
        "Activate": [owner_pb2.ActivateRequest(manifest_hash=signed.hash)],
        "Renew": [owner_pb2.RenewRequest(renewal=_renewal(signed))],
        "GetRenewal": [search_pb2.GetRenewalRequest()],
        "GetInfo": [owner_pb2.GetInfoRequest(nonce=bytes(16))],
    }
    encoded = {
        name: [message.SerializeToString() for message in found] for name, found in messages.items()
    }
    encoded["Score"] = _score_messages(signed, published.fleet[1].data / "segments")
    encoded["Select"] = _select_messages(signed, published.fleet[1].data / "segments")
    return {method: encoded[method.rpartition("/")[2]] for method in METHODS}


def _renewal(signed: SignedManifest) -> bytes:
    """Give a renewal, by a key that the manifest does not name."""
    key = SigningKey(SecretKey(bytes(32)))
    named = replace(signed, manifest=replace(signed.manifest, timestamp_key=key.public))
    return SignedRenewal.sign(named, 1_800_000_000, key).encode()


def _select_messages(signed: SignedManifest, segments: Path, n_fetches: int = 4) -> list[bytes]:
    """Give the messages of a request with selectors of zeros."""
    segment = signed.manifest.groups[0].segments[0].id
    with (segments / segment.hex()).open("rb") as file:
        layout = SegmentHeader.decode(file.read(HEADER_BYTES)).layout
    head = search_pb2.SelectRequestHead(
        query_id=bytes(16), version=signed.manifest.version, segment=segment, n_fetches=n_fetches
    )
    selectors = bytes(2 * n_fetches * layout.slot.groups(layout.n_slots)[0])
    messages = (
        search_pb2.SelectRequest(head=head, selectors=selectors[:20]),
        search_pb2.SelectRequest(selectors=selectors[20:]),
    )
    return [message.SerializeToString() for message in messages]


def _score_messages(signed: SignedManifest, segments: Path) -> list[bytes]:
    """Give the messages of a score request of zeros, for a segment stored below ``segments``."""
    segment = signed.manifest.groups[0].segments[0].id
    with (segments / segment.hex()).open("rb") as file:
        layout = SegmentHeader.decode(file.read(HEADER_BYTES)).layout
    head = search_pb2.ScoreRequestHead(
        query_id=bytes(16),
        version=signed.manifest.version,
        segment=segment,
        level=0,
        n_vectors=1,
    )
    shares = bytes(2 * layout.levels[0].width)
    messages = (
        search_pb2.ScoreRequest(head=head, shares=shares[:100]),
        search_pb2.ScoreRequest(shares=shares[100:]),
    )
    return [message.SerializeToString() for message in messages]


def _require_named(answered: Answered) -> None:
    """Prove that an answer is one of the table, and says nothing that is not meant for a client."""
    if answered.code is grpc.StatusCode.OK:
        return
    if answered.detail is None:
        assert answered.code in TRANSPORT, answered
        text = answered.text
    else:
        assert answered.code in TABLE, answered
        assert answered.code is not grpc.StatusCode.INTERNAL, answered
        assert answered.detail.code
        assert answered.detail.message == answered.text
        text = f"{answered.detail.message} {answered.detail.cure}"
    for inside in ("Traceback", "/", ".py", "Error(", "object at 0x", "lmdb", "numpy"):
        assert inside not in text, answered


# --- noise ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.rpartition("/")[2])
def test_noise_and_changed_messages_get_a_status_of_the_table(
    collection: Published, caller: Caller, method: str
) -> None:
    source = random.Random(method)
    good = _good_requests(collection)[method]
    server = collection.fleet[1]
    n_codes: dict[grpc.StatusCode, int] = {}
    for _ in range(150):
        answered = caller(method, [_changed(source, message) for message in good])
        _require_named(answered)
        n_codes[answered.code] = n_codes.get(answered.code, 0) + 1
    for _ in range(50):
        n_bytes = source.choice((0, 1, 5, 40, 1000))
        answered = caller(method, [source.randbytes(n_bytes)])
        _require_named(answered)

    assert server.is_running
    assert len(n_codes) > 1 or grpc.StatusCode.OK not in n_codes
    if method in STREAMS:
        _require_named(caller(method, []))
    request = _good_requests(collection)[SEARCH + "GetManifest"]
    assert caller(SEARCH + "GetManifest", request).code is grpc.StatusCode.OK


def _changed(source: random.Random, message: bytes) -> bytes:
    data = bytearray(message)
    kind = source.randrange(5)
    if kind == 0 and data:
        data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    elif kind == 1:
        del data[source.randrange(len(data) + 1) :]
    elif kind == 2:
        at = source.randrange(len(data) + 1)
        data[at:at] = source.randbytes(source.choice((1, 7, 60)))
    elif kind == 3 and data:
        start = source.randrange(len(data))
        del data[start : start + source.randrange(1, 20)]
    else:
        data += data[: source.randrange(len(data) + 1)]
    return bytes(data)


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("ReadObject", search_pb2.ReadObjectRequest(name=bytes(32), n_bytes=(64 << 20) + 1)),
        ("ReadObject", search_pb2.ReadObjectRequest(name=bytes(32), offset=2**64 - 1, n_bytes=9)),
        ("ReadObject", search_pb2.ReadObjectRequest(name=bytes(31), n_bytes=9)),
        ("ReadObject", search_pb2.ReadObjectRequest(name=b"../../../../../../etc/passwd")),
        ("ReadObject", search_pb2.ReadObjectRequest(name=bytes(32), n_bytes=9)),
        ("GetManifest", search_pb2.GetManifestRequest(nonce=bytes(15))),
        ("GetRecords", search_pb2.GetRecordsRequest(slots=[0])),
        ("GetRecords", search_pb2.GetRecordsRequest(slots=range(MAX_RECORDS + 1))),
        ("GetRecords", search_pb2.GetRecordsRequest(slots=[2**64 - 1])),
        ("Select", search_pb2.SelectRequest()),
        ("Select", search_pb2.SelectRequest(selectors=bytes(40))),
        ("Select", search_pb2.SelectRequest(head={"n_fetches": 2**32 - 1})),
        ("Select", search_pb2.SelectRequest(head={"query_id": bytes(16), "segment": bytes(32)})),
        ("Score", search_pb2.ScoreRequest()),
        ("Score", search_pb2.ScoreRequest(head={"n_vectors": 2**32 - 1})),
        ("Score", search_pb2.ScoreRequest(head={"blocks": range(BLOCKS_MAX + 1)})),
    ],
)
def test_a_request_that_asks_for_the_impossible_is_refused_in_words(
    caller: Caller, method: str, request_: Any
) -> None:
    answered = caller(SEARCH + method, [request_.SerializeToString()])

    _require_named(answered)
    assert answered.code in {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
    # A call with one answer may end with an empty one, which clients do not look at.
    assert not any(answered.messages)


def test_selectors_that_do_not_fit_are_refused(collection: Published, caller: Caller) -> None:
    signed = collection.profile.highest_seen()
    assert signed is not None
    segments = collection.fleet[1].data / "segments"
    good = _select_messages(signed, segments)
    assert caller(SEARCH + "Select", good).code is grpc.StatusCode.OK
    assert caller(SEARCH + "Select", good * 64).code is grpc.StatusCode.OK
    high = search_pb2.SelectRequest(selectors=b"\xff\xff").SerializeToString()
    more = search_pb2.SelectRequest(selectors=bytes(2)).SerializeToString()
    wrong = (
        *(_select_messages(signed, segments, n) for n in (0, 1, 3, 5, 63, 65, 128, 2000)),
        good[:1],
        [*good, more],
        [good[0], high, good[1]],
        good[1:],
        good * 65,
    )
    for messages in wrong:
        answered = caller(SEARCH + "Select", list(messages))
        _require_named(answered)
        assert answered.code is grpc.StatusCode.INVALID_ARGUMENT
        assert not answered.messages


def test_offsets_and_sizes_at_the_edge_of_a_stored_object(
    collection: Published, caller: Caller
) -> None:
    group = _group(collection)
    for reference in (group.dictionary, group.segments[0]):
        size = reference.size
        for offset, n_bytes, expected in (
            (0, size, size),
            (0, size + 5, size),
            (size - 1, 10, 1),
            (size, 10, 0),
            (size + 1, 10, 0),
            (2**62, 10, 0),
            (3, 0, 0),
        ):
            request = search_pb2.ReadObjectRequest(
                name=reference.id, offset=offset, n_bytes=n_bytes
            )
            answered = caller(SEARCH + "ReadObject", [request.SerializeToString()])
            assert answered.code is grpc.StatusCode.OK, answered
            pieces = [search_pb2.ReadObjectResponse.FromString(m) for m in answered.messages]
            assert sum(len(piece.data) for piece in pieces) == expected


def test_slots_at_the_edge_are_served_and_beyond_it_refused(
    collection: Published, caller: Caller
) -> None:
    signed = collection.profile.highest_seen()
    assert signed is not None
    segment = signed.manifest.groups[0].segments[0].id
    with (collection.fleet[1].data / "segments" / segment.hex()).open("rb") as file:
        layout = SegmentHeader.decode(file.read(HEADER_BYTES)).layout

    def ask(slots: Sequence[int], version: int = signed.manifest.version) -> Answered:
        request = search_pb2.GetRecordsRequest(version=version, segment=segment, slots=slots)
        return caller(SEARCH + "GetRecords", [request.SerializeToString()])

    assert ask([layout.n_slots - 1]).code is grpc.StatusCode.OK
    assert ask([]).code is grpc.StatusCode.OK
    assert ask([0] * MAX_RECORDS).code is grpc.StatusCode.OK
    for slots in ([layout.n_slots], [0] * (MAX_RECORDS + 1), [2**63], [2**32 - 1]):
        answered = ask(slots)
        _require_named(answered)
        assert answered.code is grpc.StatusCode.INVALID_ARGUMENT
    other = ask([0], signed.manifest.version + 1)
    assert other.detail is not None
    assert "is not served here" in other.detail.message
    assert other.detail.cure


# --- too much --------------------------------------------------------------------------------


def test_shares_without_end_are_refused_at_once_and_cost_no_memory(collection: Published) -> None:
    server = collection.fleet[1]
    head, rest = _good_requests(collection)[SEARCH + "Score"]
    piece = search_pb2.ScoreRequest(shares=bytes(1 << 20)).SerializeToString()
    n_sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal n_sent
        yield head
        yield rest
        for _ in range(2000):
            n_sent += 1
            yield piece

    with Caller(server) as caller:
        caller(SEARCH + "Score", [head, piece])
        before = server.memory_bytes()
        for _ in range(30):
            answered = caller(SEARCH + "Score", endless())
            _require_named(answered)
            assert answered.code is grpc.StatusCode.INVALID_ARGUMENT
            assert "bytes announced" in answered.text

    assert n_sent < 30 * 50
    assert server.memory_bytes() < before + GROWTH_BYTES


@pytest.mark.parametrize("blocks", [[2**32 - 1], [1, 0], [0, 0], range(BLOCKS_MAX + 1)])
def test_blocks_that_no_level_has_are_refused_before_the_shares_come(
    collection: Published, caller: Caller, blocks: Iterable[int]
) -> None:
    head, _ = _good_requests(collection)[SEARCH + "Score"]
    message = search_pb2.ScoreRequest.FromString(head)
    message.head.blocks.extend(blocks)
    message.shares = b""

    answered = caller(SEARCH + "Score", [message.SerializeToString()])

    _require_named(answered)
    assert answered.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "block" in answered.text


def test_a_message_larger_than_any_is_refused_by_the_transport(
    collection: Published, caller: Caller
) -> None:
    server = collection.fleet[1]
    for method in METHODS:
        answered = caller(method, [bytes(5 << 20)])
        assert answered.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    before = server.memory_bytes()
    for _ in range(10):
        caller(SEARCH + "Score", [bytes(5 << 20)])
    assert server.memory_bytes() < before + GROWTH_BYTES


def test_thousands_of_refused_requests_leave_no_memory_and_no_files_behind(
    collection: Published, caller: Caller
) -> None:
    server = collection.fleet[1]
    good = _good_requests(collection)
    source = random.Random(5)

    def batch(n_requests: int) -> None:
        methods = list(METHODS)
        with ThreadPoolExecutor(4) as pool:
            jobs = [
                pool.submit(caller, method, [_changed(source, m) for m in good[method]])
                for method in (source.choice(methods) for _ in range(n_requests))
            ]
            for job in jobs:
                _require_named(job.result())

    batch(200)
    memory, n_files = server.memory_bytes(), server.n_open_files()
    batch(1000)

    assert server.memory_bytes() < memory + GROWTH_BYTES
    assert server.n_open_files() <= n_files + 2
    assert not list((server.data / "segments").glob(".partial-*"))


def test_requests_beyond_max_waiting_are_told_when_to_come_back(tmp_path: Path) -> None:
    # Rows enough, and the slow engine, so that requests are still waiting when others come.
    documents = [Document(f"{n}", "", f"reed w{n % 97} v{n}") for n in range(1500)]
    keys = OwnerKeys.generate(SystemRandom())
    publication = _prepare(keys, tmp_path / "publication", documents)
    with serving(tmp_path, 1, engine="numpy", max_waiting=1) as fleet:
        connection = GrpcConnection(1, fleet[1].address, None, SystemRandom())
        connection.claim(fleet[1].token, keys.signing.public, keys.collection)
        upload_to(publication, connection)
        connection.close()
        messages = _score_messages(publication.signed, publication.folder / "objects")
        with Caller(fleet[1]) as caller, ThreadPoolExecutor(24) as pool:
            jobs = [pool.submit(caller, SEARCH + "Score", messages) for _ in range(24)]
            answers = [job.result() for job in jobs]
            # Nobody is forgotten in the queue.
            assert caller(SEARCH + "Score", messages).code is grpc.StatusCode.OK

    busy = [a for a in answers if a.code is grpc.StatusCode.RESOURCE_EXHAUSTED]
    assert busy
    assert any(a.code is grpc.StatusCode.OK for a in answers)
    for answered in busy:
        assert answered.detail is not None
        assert answered.detail.code == "busy"
        assert 0 < answered.detail.retry_after_ms < 60_000
        assert "wait already" in answered.detail.message


def test_requests_that_were_given_up_do_not_stay_in_the_queue(collection: Published) -> None:
    server = collection.fleet[1]
    messages = _good_requests(collection)[SEARCH + "Score"]
    for _ in range(30):
        with Caller(server) as caller, ThreadPoolExecutor(8) as pool:
            for _ in range(8):
                pool.submit(caller, SEARCH + "Score", messages, 0.001)
    with Caller(server) as caller:
        assert caller(SEARCH + "Score", messages).code is grpc.StatusCode.OK


# --- putting ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Proposed:
    """A publication that one server was told of."""

    server: ServerProcess
    connection: GrpcConnection
    publication: Publication
    keys: OwnerKeys


@pytest.fixture(scope="module")
def upload(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proposed]:
    folder = tmp_path_factory.mktemp("upload")
    keys = OwnerKeys.generate(SystemRandom())
    publication = _prepare(keys, folder / "publication", SMALL.documents[:10])
    with serving(folder, 1, engine="numpy") as fleet:
        connection = GrpcConnection(1, fleet[1].address, None, SystemRandom())
        connection.claim(fleet[1].token, keys.signing.public, keys.collection)
        connection.propose(publication.signed.encode())
        yield Proposed(fleet[1], connection, publication, keys)
        connection.close()


def _prepare(keys: OwnerKeys, folder: Path, documents: Sequence[Document]) -> Publication:
    publisher = Publisher(
        keys,
        name="test",
        quorum=Quorum(),
        random=SystemRandom(),
        analyzer=make_analyzer("english-1"),
        scoring=Scoring("tfidf"),
    )
    return publisher.prepare(documents, folder, now_s=int(time.time()))


def _put(proposed: Proposed, name: bytes, pieces: Sequence[bytes], digest: bytes = b"") -> None:
    manifest_hash = digest or proposed.publication.signed.hash
    proposed.connection.put_all(manifest_hash, [(name, iter(pieces))])


def test_an_object_that_no_manifest_lists_is_not_stored(upload: Proposed) -> None:
    with pytest.raises(ServerRefused, match="in no manifest that the owner signed") as caught:
        _put(upload, b"\7" * 32, [b"anything"])
    assert caught.value.detail_code == "storage"
    for name in (b"x", b"\7" * 33):
        with pytest.raises(ServerRefused):
            _put(upload, name, [b"anything"])
    with pytest.raises(ServerRefused, match="names no object"):
        _put(upload, b"", [b"anything"])
    with pytest.raises(ServerRefused, match="was not proposed here"):
        _put(upload, b"\7" * 32, [b"anything"], digest=b"\1" * 32)


def test_bytes_that_are_not_the_object_are_not_stored(upload: Proposed) -> None:
    manifest = upload.publication.signed.manifest
    group = manifest.groups[0]
    for reference in (group.dictionary, group.segments[0]):
        right = b"".join(upload.publication.chunks(reference.id))
        changed = bytearray(right)
        changed[len(right) // 2] ^= 1
        for data, why in (
            (bytes(changed), None),
            (right[:-1], "bytes announced"),
            (right + b"\0", "bytes announced"),
            (b"", "bytes announced"),
            (bytes(len(right)), None),
        ):
            pieces = [data[at : at + 1000] for at in range(0, len(data), 1000)] or [b""]
            with pytest.raises(ServerRefused, match=why) as caught:
                _put(upload, reference.id, pieces)
            assert caught.value.detail_code in {"storage", "bad-format"}
            assert reference.id in upload.connection.missing(upload.publication.signed.hash)
    assert not list((upload.server.data / "segments").iterdir())


def test_a_version_with_missing_objects_is_not_served(upload: Proposed) -> None:
    with pytest.raises(ServerRefused, match="objects of version 1 are missing"):
        upload.connection.activate(upload.publication.signed.hash)


def test_an_upload_that_was_given_up_leaves_nothing_behind(upload: Proposed) -> None:
    segment = upload.publication.signed.manifest.groups[0].segments[0]
    message = owner_pb2.PutRequest(
        manifest_hash=upload.publication.signed.hash, name=segment.id, data=bytes(1000)
    )

    def slow() -> Iterator[bytes]:
        yield message.SerializeToString()
        for _ in range(200):
            yield owner_pb2.PutRequest(data=bytes(100)).SerializeToString()
        time.sleep(1)

    n_files = upload.server.n_open_files()
    for _ in range(3):
        with Caller(upload.server) as caller:
            assert caller(OWNER + "Put", slow(), 0.2).code is grpc.StatusCode.DEADLINE_EXCEEDED
    last = time.monotonic() + 5
    segments = upload.server.data / "segments"
    while list(segments.iterdir()) and time.monotonic() < last:
        time.sleep(0.05)

    assert not list(segments.iterdir())
    assert upload.server.n_open_files() <= n_files + 2


def test_a_manifest_of_somebody_else_is_not_taken(upload: Proposed, tmp_path: Path) -> None:
    stranger = OwnerKeys(
        upload.keys.collection, SecretKey(bytes(32)), SigningKey(SecretKey(b"\5" * 32))
    )
    foreign = _prepare(stranger, tmp_path / "foreign", SMALL.documents[:3]).signed
    other = OwnerKeys(b"\2" * 16, SecretKey(bytes(32)), upload.keys.signing)
    another = _prepare(other, tmp_path / "another", SMALL.documents[:3]).signed
    cut = upload.publication.signed.encode()[:-1]
    for data in (foreign.encode(), another.encode(), cut, b""):
        with pytest.raises(ServerRefused):
            upload.connection.propose(data)
    with Caller(upload.server) as caller:
        request = owner_pb2.ProposeRequest(manifest=foreign.encode())
        answered = caller(OWNER + "Propose", [request.SerializeToString()])
    assert answered.code is grpc.StatusCode.PERMISSION_DENIED


def test_another_manifest_of_the_same_version_waits_for_the_first(
    upload: Proposed, tmp_path: Path
) -> None:
    rival = _prepare(upload.keys, tmp_path / "rival", SMALL.documents[:4])

    with pytest.raises(ServerRefused, match="being published by another process") as caught:
        upload.connection.propose(rival.signed.encode())

    assert caught.value.detail_code == "publication-under-way"
    assert caught.value.cure
    # The first may be announced again, and goes on.
    upload.connection.propose(upload.publication.signed.encode())


def test_what_is_stored_already_cannot_be_sent_again_to_fill_the_disk(
    collection: Published, caller: Caller
) -> None:
    signed = collection.profile.highest_seen()
    assert signed is not None
    good = _good_requests(collection)
    assert caller(OWNER + "Propose", good[OWNER + "Propose"]).code is grpc.StatusCode.OK
    segments = collection.fleet[1].data / "segments"
    n_files = len(list(segments.iterdir()))
    for reference in (signed.manifest.groups[0].segments[0], signed.manifest.catalogue):
        message = owner_pb2.PutRequest(
            manifest_hash=signed.hash, name=reference.id, data=bytes(1000)
        )
        answered = caller(OWNER + "Put", [message.SerializeToString()])
        _require_named(answered)
        assert answered.code is grpc.StatusCode.FAILED_PRECONDITION
        assert "stored here already" in answered.text
    assert len(list(segments.iterdir())) == n_files


def test_the_active_manifest_sent_again_by_anybody_blocks_no_publisher(
    collection: Published,
) -> None:
    request = _good_requests(collection)[OWNER + "Propose"]
    for server in collection.fleet:
        with Caller(server) as caller:
            assert caller(OWNER + "Propose", request).code is grpc.StatusCode.OK
    before = max(collection.versions())

    collection.publish(SMALL.documents[2:])

    assert collection.versions() == [before + 1] * 3


# --- claims ----------------------------------------------------------------------------------


def test_a_server_of_nobody_answers_who_it_is_and_refuses_everything_else(
    tmp_path: Path, collection: Published
) -> None:
    good = _good_requests(collection)
    with serving(tmp_path, 1, engine="numpy") as fleet, Caller(fleet[1]) as caller:
        for method, messages in good.items():
            answered = caller(method, messages)
            _require_named(answered)
            if method == INFO + "GetInfo":
                info = owner_pb2.GetInfoResponse.FromString(answered.messages[0])
                assert (info.server_id, info.collection, info.version) == (1, b"", 0)
            else:
                assert answered.code is grpc.StatusCode.FAILED_PRECONDITION
        _require_claims(fleet[1])


def _require_claims(server: ServerProcess) -> None:
    keys, other = (OwnerKeys.generate(SystemRandom()) for _ in range(2))
    connection = GrpcConnection(0, server.address, None, SystemRandom())
    token_file = server.folder / "claim-token"

    def claim_with(token: str, owner: OwnerKeys, collection: bytes = b"") -> tuple[int, bytes]:
        return connection.claim(token, owner.signing.public, collection or owner.collection)

    for token in ("", "0" * 32, server.token[:-1], f"{server.token}0", "ä", "x" * 100_000):
        with pytest.raises((ServerRefused, ServerUnreachable)) as caught:
            claim_with(token, keys)
        assert server.token not in str(caught.value)
    assert token_file.exists()
    with pytest.raises(ServerRefused, match="wrong length"):
        claim_with(server.token, keys, bytes(15))

    first = claim_with(server.token, keys)
    assert first[0] == 1
    assert not token_file.exists()
    # The same owner may have missed the answer; nobody else gets the server, with any token.
    assert claim_with(server.token, keys) == first == claim_with("", keys)
    for token in (server.token, "0" * 32):
        for owner, collection in ((other, b""), (keys, bytes(16))):
            with pytest.raises(ServerRefused, match="another owner or for another collection"):
                claim_with(token, owner, collection)
    server.stop()
    server.restart()
    assert claim_with("", keys) == first
    with pytest.raises(ServerRefused, match="another owner"):
        claim_with(server.token, other)
    connection.close()
    assert server.token not in server.log()


# --- what a client may read ---------------------------------------------------------------------


def test_what_breaks_inside_a_server_is_not_told_to_clients(
    collection: Published, caller: Caller
) -> None:
    server = collection.fleet[1]
    name = _group(collection).dictionary.id
    # A folder where a file could be: an error that no code foresees.
    path = server.data / "segments" / name.hex()
    path.mkdir()
    try:
        request = search_pb2.ReadObjectRequest(name=name, n_bytes=100)
        answered = caller(SEARCH + "ReadObject", [request.SerializeToString()])
    finally:
        path.rmdir()

    assert answered.code is grpc.StatusCode.INTERNAL
    assert answered.detail is not None
    assert answered.detail.code == "internal"
    assert answered.text == answered.detail.message == "the server failed"
    assert str(server.folder) not in f"{answered}"
    assert "IsADirectoryError" in server.log()


def test_the_log_of_a_server_holds_no_secret_and_no_traceback(collection: Published) -> None:
    profile = collection.profile
    signed = SignedManifest.decode(
        (profile.folder / "manifest").read_bytes(), profile.keys.signing.public
    )
    assert signed.manifest.version > 0
    for server in collection.fleet:
        log = server.log()
        assert "Traceback" not in log
        key = (server.folder / "server-key").read_bytes()
        for secret in (server.token, key.hex(), profile.keys.master.reveal().hex()):
            assert secret not in log
        assert QUERIES[0] not in log
        for line in log.splitlines():
            assert "INFO" in line or "ERROR" in line or "WARNING" in line, line


# --- messages in one another ----------------------------------------------------------------------


@pytest.mark.parametrize("n_bytes", [10, 300_000, 1 << 20])
def test_small_messages_travel_in_one_another_and_come_out_as_they_were(n_bytes: int) -> None:
    def message(number: int) -> search_pb2.ScoreRequest:
        return search_pb2.ScoreRequest(shares=bytes([number]) * n_bytes)

    travelling = list(convert.packed(message(number) for number in range(7)))
    assert len(travelling) == {10: 1, 300_000: 3, 1 << 20: 7}[n_bytes]
    assert all(made.ByteSize() <= (1 << 20) + 100 for made in travelling)
    received = [one.shares for made in travelling for one in convert.unpacked(made)]
    assert received == [message(number).shares for number in range(7)]


def test_messages_within_messages_of_a_message_are_refused() -> None:
    inner = search_pb2.ScoreRequest(further=[search_pb2.ScoreRequest()])
    with pytest.raises(FormatError):
        list(convert.unpacked(search_pb2.ScoreRequest(further=[inner])))
    many = [search_pb2.ScoreResponse()] * 257
    with pytest.raises(FormatError):
        list(convert.unpacked(search_pb2.ScoreResponse(further=many)))


# --- large objects -------------------------------------------------------------------------------


@pytest.mark.slow
def test_objects_of_many_messages_go_up_and_come_back_whole(tmp_path: Path) -> None:
    size = 64 << 20
    text = "reed " + "\n" * size
    documents = [Document("large", "", text), Document("small", "", "reed and rush")]
    keys = OwnerKeys.generate(SystemRandom())
    publication = _prepare(keys, tmp_path / "publication", documents)
    with serving(tmp_path, 1, engine="numpy") as fleet:
        connection = GrpcConnection(1, fleet[1].address, None, SystemRandom(), timeout_s=60)
        connection.claim(fleet[1].token, keys.signing.public, keys.collection)
        manifest_hash = connection.propose(publication.signed.encode())
        before = fleet[1].memory_bytes()
        for _ in range(2):
            missing = connection.missing(manifest_hash)
            connection.put_all(
                manifest_hash, ((name, publication.chunks(name)) for name in missing)
            )
        assert connection.activate(manifest_hash) == 1
        listed = b"".join(publication.chunks(publication.signed.manifest.groups[0].blobs.id))
        (name,) = [blob for blob, n_bytes in BlobList.decode(listed).blobs if n_bytes > size]
        stored = b"".join(publication.chunks(name))
        for offset, n_bytes in (
            (0, (4 << 20) - 1),
            (1, 4 << 20),
            ((4 << 20) - 1, (4 << 20) + 1),
            (0, 64 << 20),
            (len(stored) - 5, 64 << 20),
        ):
            got = connection.read_object(name, offset, n_bytes)
            assert got == stored[offset : offset + n_bytes]
        assert fleet[1].memory_bytes() < before + 4 * size
        connection.close()


@pytest.mark.parametrize("n_bytes", [(4 << 20) - 200, 4 << 20])
def test_a_message_of_an_upload_may_be_as_large_as_the_transport_takes(
    upload: Proposed, n_bytes: int
) -> None:
    segment = upload.publication.signed.manifest.groups[0].segments[0]

    with pytest.raises(ServerRefused) as caught:
        _put(upload, segment.id, [bytes(n_bytes)])

    if n_bytes < 4 << 20:
        assert "bytes announced" in caught.value.message
    else:
        assert "resource_exhausted" in caught.value.message
