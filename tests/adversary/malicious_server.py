"""A malicious server: the real one, its own key and store included, that tells one lie at a time.

It runs the service classes of ``mksearch_server`` over gRPC on loopback.  A lie is told in one of
two places: ``content`` puts other arrays or bytes into the server's hands before it signs them with
its own key, as a dishonest operator would; ``wire`` has the encoded messages, the status and the
trailers of a call.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from mksearch.crypto.evidence import AnswerSigner
from mksearch.index.segment import SegmentReader
from mksearch.messages import (
    RecordAnswer,
    RecordRequest,
    ScoreAnswer,
    ScoreRequest,
    SelectAnswer,
    SelectRequest,
)
from mksearch.scoring.engine import make_engine
from mksearch.wire.v1 import owner_pb2_grpc, search_pb2_grpc
from mksearch_server import serve
from mksearch_server.config import ServerConfig, write_config
from mksearch_server.decoding import DecodingInterceptor
from mksearch_server.identity import Claim, ServerIdentity, create_identity
from mksearch_server.search_server import SearchServer
from mksearch_server.service import InfoServicer, OwnerServicer, Runtime, SearchServicer
from mksearch_server.store import ObjectStore

__all__ = ["Exchange", "Lie", "LoopThread", "MaliciousServer", "Material", "Messages"]

_T = TypeVar("_T")
#: Encoded answers of one call.
Messages = AsyncIterator[bytes]
#: Answers that a server remembers, to tell them again.
_REMEMBERED = 8
_START_S = 30.0


@dataclass(frozen=True)
class Lie:
    """What a server does otherwise than an honest one.

    Attributes:
        name: for reports.
        call: short name of the call it is told in.
        content: given the server, what was asked and the honest answer, gives the answer that is
            signed and sent; what is asked and answered are those of ``SearchServer``.
        wire: given the exchange and the honest encoded messages, gives those that are sent.
        statuses: how a client may report the server; "ok" among them when it may not notice,
            because what it used was right all the same.
        is_endless: the call stays open until the client gives up.
    """

    name: str
    call: str
    content: Callable[[MaliciousServer, Any, Any], Any] | None = None
    wire: Callable[[Exchange, Messages], Messages] | None = None
    statuses: frozenset[str] = frozenset({"lied"})
    is_endless: bool = False


@dataclass
class Exchange:
    """One call that a server lies in.

    Attributes:
        server: who lies.
        call: short name.
        requests: encoded messages that came so far.
        context: of gRPC.
        message: class of the answers.
    """

    server: MaliciousServer
    call: str
    requests: list[bytes]
    context: Any
    message: Any


@dataclass
class Material:
    """What liars have at hand besides their own store.

    Attributes:
        manifests: other manifest files by name: "old", "rival", "same owner", "same name".
        segments: segments that are not served: by name, "old" and "other".
        signer: a key that nobody pinned.
    """

    manifests: dict[str, bytes] = field(default_factory=dict)
    segments: dict[str, SegmentReader] = field(default_factory=dict)
    signer: AnswerSigner | None = None


class LoopThread:
    """An event loop on a thread of its own; all servers of a process share one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T], timeout_s: float = _START_S) -> _T:
        """Do ``work`` on the loop and wait for it."""
        done: Future[_T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return done.result(timeout_s)

    def close(self) -> None:
        """End the loop."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_START_S)
        self.loop.close()


class _LyingSearchServer(SearchServer):
    """The server's own work, with the ``content`` of a lie in place of the answer."""

    def __init__(self, liar: MaliciousServer, *arguments: Any) -> None:
        self._liar = liar
        super().__init__(*arguments)

    def manifest(self) -> bytes:
        return bytes(self._liar.tell("GetManifest", None, super().manifest()))

    def score_together(self, requests: Sequence[ScoreRequest]) -> list[ScoreAnswer]:
        answers = super().score_together(requests)
        return [self._lie(*pair) for pair in zip(requests, answers, strict=True)]

    def score_places(self, places: Sequence[Sequence[ScoreRequest]]) -> list[list[ScoreAnswer]]:
        return [self.score_together(requests) for requests in places]

    def _lie(self, request: ScoreRequest, answer: ScoreAnswer) -> ScoreAnswer:
        told: ScoreAnswer = self._liar.tell("Score", request, answer)
        self._liar.remember(request, answer)
        return told

    def record_pieces(self, request: RecordRequest) -> Iterator[RecordAnswer]:
        pieces = super().record_pieces(request)
        if self._liar.lie is None or self._liar.lie.call != "GetRecords":
            return pieces
        honest = RecordAnswer(np.concatenate([piece.elements for piece in pieces]))
        return iter([self._liar.tell("GetRecords", request, honest)])

    def select(self, request: SelectRequest) -> SelectAnswer:
        told: SelectAnswer = self._liar.tell("Select", request, super().select(request))
        return told

    def read_object(self, name: bytes, offset: int, n_bytes: int) -> bytes:
        honest = super().read_object(name, offset, n_bytes)
        return bytes(self._liar.tell("ReadObject", (name, offset, n_bytes), honest))

    def missing(self, manifest_hash: bytes) -> list[bytes]:
        told: list[bytes] = self._liar.tell("ListMissing", None, super().missing(manifest_hash))
        return told

    def score_over(self, segment: SegmentReader, request: ScoreRequest) -> np.ndarray[Any, Any]:
        """Score a request over a segment that is not served, cut or padded to the right shape."""
        geometry = segment.header.layout.levels[request.level]
        cells = segment.level(request.level)
        shares = np.zeros((len(request.shares), geometry.width), np.uint16)
        width = min(geometry.width, request.shares.shape[1])
        shares[:, :width] = request.shares[:, :width]
        found = self._engine.score(cells, geometry, shares)
        served = self.segment(request.segment).level(request.level)
        out = np.zeros((len(found), len(served), found.shape[2]), np.uint16)
        n_rows = min(len(served), found.shape[1])
        out[:, :n_rows] = found[:, :n_rows]
        return out


class _LyingRuntime(Runtime):
    """The runtime of a server, around a search server that lies."""

    def __init__(self, liar: MaliciousServer, *arguments: Any) -> None:
        self._liar = liar
        super().__init__(*arguments)

    def _open(self, claim: Claim) -> None:
        self._search = _LyingSearchServer(
            self._liar,
            self.config.id,
            self._store,
            claim.owner_key,
            self.engine,
            claim.collection,
        )


class _Wire(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Makes every call one of streams of bytes, so that a lie may send whatever it likes."""

    def __init__(self, liar: MaliciousServer) -> None:
        self._liar = liar

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        call = handler_call_details.method.rpartition("/")[2]
        return grpc.stream_stream_rpc_method_handler(partial(self._serve, call, handler))

    async def _serve(self, call: str, handler: Any, requests: Any, context: Any) -> Messages:
        came: list[bytes] = []
        honest = self._honest(handler, self._taken(requests, came, handler), context)
        self._liar.calls.append((call, came))
        lie = self._liar.lie
        if lie is None or lie.call != call or lie.wire is None:
            async for message in honest:
                yield message
            return
        self._liar.n_told += 1
        # The class of the answers is that of an encoder bound to it.
        exchange = Exchange(self._liar, call, came, context, _ANSWERS.get(call))
        async for message in lie.wire(exchange, honest):
            yield message

    async def _taken(self, requests: Any, came: list[bytes], handler: Any) -> AsyncIterator[Any]:
        async for data in requests:
            came.append(data)
            yield handler.request_deserializer(data)

    async def _honest(self, handler: Any, requests: AsyncIterator[Any], context: Any) -> Messages:
        asked: Any = requests if handler.request_streaming else await anext(requests)
        encode = handler.response_serializer
        if not handler.response_streaming:
            behaviour = handler.stream_unary if handler.request_streaming else handler.unary_unary
            yield encode(await behaviour(asked, context))
            return
        behaviour = handler.stream_stream if handler.request_streaming else handler.unary_stream
        async for message in behaviour(asked, context):
            yield encode(message)


def _answer_classes() -> dict[str, Any]:
    """Give the class of the answers of every call, as the protocol buffers name it."""
    from google.protobuf import message_factory

    from mksearch.wire.v1 import owner_pb2, search_pb2

    found = {}
    for module in (search_pb2, owner_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                found[method.name] = message_factory.GetMessageClass(method.output_type)
    return found


_ANSWERS = _answer_classes()


class MaliciousServer:
    """One server of a collection, honest until it is given a lie.

    Attributes:
        id: evaluation point.
        address: HOST:PORT.
        token: claim token.
        lie: what it tells now, None to be honest; may be changed at any time.
        random: draws the parameters of lies.
        material: what it lies with.
        calls: short name and encoded requests of every call that came.
        n_told: lies told.
        history: requests and honest answers of the last scores.
    """

    def __init__(
        self, folder: Path, server: int, thread: LoopThread, *, engine: str = "numpy"
    ) -> None:
        self.id = server
        self.lie: Lie | None = None
        self.random = random.Random(server)
        self.material = Material()
        self.calls: list[tuple[str, list[bytes]]] = []
        self.n_told = 0
        self.history: list[tuple[ScoreRequest, ScoreAnswer]] = []
        self._thread = thread
        folder.mkdir(parents=True)
        write_config(folder, server, "127.0.0.1:0")
        self.token = create_identity(folder)
        config = ServerConfig(server, "127.0.0.1:0", folder / "data", engine, folder=folder)
        store = ObjectStore(config.data, config.max_store_bytes)
        identity = ServerIdentity(folder, store)
        self.signer = identity.signer
        self.runtime = _LyingRuntime(self, config, store, identity, make_engine(engine))
        self.address = thread.run(self._start())

    async def _start(self) -> str:
        options = (*serve._OPTIONS, ("grpc.max_send_message_length", -1))
        server = grpc.aio.server(options=options, interceptors=[_Wire(self), DecodingInterceptor()])
        for add, servicer in (
            (search_pb2_grpc.add_SearchServiceServicer_to_server, SearchServicer),
            (owner_pb2_grpc.add_OwnerServiceServicer_to_server, OwnerServicer),
            (owner_pb2_grpc.add_InfoServiceServicer_to_server, InfoServicer),
        ):
            add(servicer(self.runtime), server)  # type: ignore[no-untyped-call]
        checks = health.aio.HealthServicer()  # type: ignore[attr-defined]
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        await checks.set("", health_pb2.HealthCheckResponse.SERVING)
        self._server = server
        return f"127.0.0.1:{port}"

    @property
    def search(self) -> _LyingSearchServer:
        """The server behind the network."""
        found = self.runtime.search
        assert isinstance(found, _LyingSearchServer)
        return found

    def tell(self, call: str, asked: Any, honest: Any) -> Any:
        """Return what the present lie makes of an honest answer."""
        lie = self.lie
        if lie is None or lie.call != call or lie.content is None:
            return honest
        self.n_told += 1
        return lie.content(self, asked, honest)

    def remember(self, request: ScoreRequest, answer: ScoreAnswer) -> None:
        """Keep a score for a later lie."""
        self.history = [*self.history[1 - _REMEMBERED :], (request, answer)]

    def close(self) -> None:
        """End the server and its calls."""
        self.lie = None
        self._thread.run(self._server.stop(0))
        self.runtime.close()
