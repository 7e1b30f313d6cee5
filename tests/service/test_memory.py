"""What a server holds for clients that do not read, and what is left of what it refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from mksearch.params import MAX_RECORDS
from mksearch.wire import convert
from mksearch.wire.v1 import search_pb2
from mksearch_server.sending import Sending
from mksearch_server.status import DETAIL_KEY
from tests.adversary.corpus import make_documents
from tests.adversary.stage import Stage, lying_stage
from tests.service.conftest import QUERIES, Published
from tests.service.test_wire import SEARCH, Caller, _good_requests
from tests.support.processes import ServerProcess

#: Refused streams leave this much behind at most, however many there were.
FLAT_BYTES = 48 << 20


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with lying_stage(tmp_path_factory.mktemp("stage"), make_documents(150, 3)) as stage:
        yield stage


class _Stuck:
    """Calls of a client that sends its request and reads nothing."""

    def __init__(self, address: str, n_channels: int) -> None:
        # Every channel has a connection of its own, and a window of the least size.
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0))
        self._channels = [grpc.insecure_channel(address, options) for _ in range(n_channels)]
        self.calls: list[Any] = []

    def ask(self, method: str, request: bytes, n_each: int) -> None:
        for channel in self._channels:
            call = channel.unary_stream(method, None, None)
            self.calls += [call(request, timeout=120) for _ in range(n_each)]

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


def _records(stage: Stage) -> bytes:
    signed = stage.signed.manifest
    return search_pb2.GetRecordsRequest(
        version=signed.version, segment=signed.groups[0].segments[0].id, slots=[0] * MAX_RECORDS
    ).SerializeToString()


def _piece_bytes(stage: Stage) -> int:
    """What the first of an answer's pieces holds: once as elements, once as a message."""
    request = search_pb2.GetRecordsRequest.FromString(_records(stage))
    asked = convert.record_requests(request)[0]
    piece = next(stage.servers[1].runtime.search.record_pieces(asked))
    return 2 * piece.elements.nbytes


def _until(condition: Any, seconds: float = 10.0) -> bool:
    last = time.monotonic() + seconds
    while time.monotonic() < last:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_a_client_that_does_not_read_is_given_up_and_its_memory_let_go(stage: Stage) -> None:
    runtime = stage.servers[1].runtime
    runtime.sending = Sending(patience_s=0.5)
    stuck = _Stuck(stage.servers[1].address, 1)
    try:
        stuck.ask("/mksearch.wire.v1.SearchService/GetRecords", _records(stage), 20)
        assert _until(lambda: runtime.sending.n_held_bytes > 0)
        assert _until(lambda: runtime.sending.n_held_bytes == 0)
    finally:
        stuck.close()
        runtime.sending = Sending()
    assert stage.search(QUERIES[0]).verified


def test_while_answers_that_nobody_reads_fill_the_memory_others_are_told_to_come_back(
    stage: Stage,
) -> None:
    runtime = stage.servers[1].runtime
    runtime.sending = Sending(held_bytes_max=1 << 20, patience_s=30)
    stuck = _Stuck(stage.servers[1].address, 1)
    try:
        stuck.ask("/mksearch.wire.v1.SearchService/GetRecords", _records(stage), 40)
        assert _until(lambda: runtime.sending.n_held_bytes >= 1 << 20)
        time.sleep(0.2)
        # At most one piece of each call that came before the bound was reached, however many did.
        assert runtime.sending.n_held_bytes <= 40 * _piece_bytes(stage)
        with grpc.insecure_channel(stage.servers[1].address) as channel:
            call = channel.unary_stream("/mksearch.wire.v1.SearchService/GetRecords", None, None)
            with pytest.raises(grpc.RpcError) as caught:
                list(call(_records(stage), timeout=10))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailers: Any = caught.value.trailing_metadata()
        assert dict(trailers)[DETAIL_KEY]
        # The collection goes on without that server.
        result = stage.search(QUERIES[0])
        assert result.verified
    finally:
        stuck.close()
    # A client that hangs up lets go as well.
    assert _until(lambda: runtime.sending.n_held_bytes == 0)
    runtime.sending = Sending()


def test_answers_that_nobody_reads_cost_a_server_little(collection: Published) -> None:
    server = collection.fleet[1]
    signed = collection.profile.highest_seen()
    assert signed is not None
    request = search_pb2.GetRecordsRequest(
        version=signed.manifest.version,
        segment=signed.manifest.groups[0].segments[0].id,
        slots=[0] * MAX_RECORDS,
    ).SerializeToString()
    stuck = _Stuck(server.address, 4)
    before = server.memory_bytes()
    try:
        stuck.ask(SEARCH + "GetRecords", request, 100)
        time.sleep(3)
        # 400 whole answers, in elements and in messages, would be more than 1 GiB.
        assert server.memory_bytes() < before + (320 << 20)
    finally:
        stuck.close()
    assert _until(lambda: server.memory_bytes() < before + FLAT_BYTES), server.memory_bytes()
    with collection.searcher() as searcher:
        collection.require_right(searcher.search(QUERIES[0]))


def _stream(server: ServerProcess, head: bytes, n_streams: int) -> None:
    piece = search_pb2.ScoreRequest(shares=bytes(4_000_000)).SerializeToString()

    def endless() -> Iterator[bytes]:
        yield head
        for _ in range(200):
            yield piece

    with Caller(server) as caller:
        for _ in range(n_streams):
            answered = caller(SEARCH + "Score", endless())
            assert answered.code is grpc.StatusCode.INVALID_ARGUMENT


def test_hundreds_of_refused_streams_leave_no_memory_behind(collection: Published) -> None:
    server = collection.fleet[1]
    head, _ = _good_requests(collection)[SEARCH + "Score"]
    _stream(server, head, 4)
    before = server.memory_bytes()
    for _ in range(3):
        with ThreadPoolExecutor(8) as pool:
            for job in [pool.submit(_stream, server, head, 10) for _ in range(8)]:
                job.result()
    assert _until(lambda: server.memory_bytes() < before + FLAT_BYTES), (
        server.memory_bytes() >> 20,
        before >> 20,
    )


def test_uploads_that_are_refused_leave_no_memory_behind(
    collection: Published, tmp_path: Path
) -> None:
    from mksearch.wire.v1 import owner_pb2
    from tests.service.test_wire import OWNER

    server = collection.fleet[1]
    piece = owner_pb2.PutRequest(
        manifest_hash=bytes(32), name=bytes(32), data=bytes(4_000_000)
    ).SerializeToString()

    def one(n_streams: int) -> None:
        with Caller(server) as caller:
            for _ in range(n_streams):
                answered = caller(OWNER + "Put", iter([piece] * 50))
                assert answered.code is grpc.StatusCode.FAILED_PRECONDITION

    one(2)
    before = server.memory_bytes()
    with ThreadPoolExecutor(8) as pool:
        for job in [pool.submit(one, 10) for _ in range(8)]:
            job.result()
    assert _until(lambda: server.memory_bytes() < before + FLAT_BYTES), server.memory_bytes()
