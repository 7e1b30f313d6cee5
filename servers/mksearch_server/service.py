"""The gRPC services: messages in, the server's work on its threads, messages out.

The event loop never computes and never waits for the disk: scoring has one thread (compiled loops
use all cores by themselves), everything else a small pool.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, suppress
from itertools import chain, islice, starmap
from typing import Any, TypeVar

import grpc

from mksearch import __version__
from mksearch.crypto.evidence import NONCE_BYTES
from mksearch.crypto.randomness import SystemRandom
from mksearch.errors import MksearchError, ParameterError, StorageError
from mksearch.messages import (
    RecordAnswer,
    ScoreAnswer,
    ScoreRequest,
    SelectAnswer,
    SelectRequest,
)
from mksearch.params import SELECTOR_BYTES_MAX
from mksearch.scoring.engine import Engine, vectors_at_once
from mksearch.wire import convert
from mksearch.wire.v1 import owner_pb2, owner_pb2_grpc, search_pb2, search_pb2_grpc
from mksearch_server.authority import AuthorityKeeper, TokenSource
from mksearch_server.batching import Batcher
from mksearch_server.calls import Calls, give_status
from mksearch_server.catching_up import CatchingUp
from mksearch_server.config import ServerConfig
from mksearch_server.engines import close_engine, shard_health
from mksearch_server.facts import Facts, facts_of
from mksearch_server.gate import QueryGate, reason_of
from mksearch_server.identity import Claim, ServerIdentity
from mksearch_server.log import log_event, log_fault
from mksearch_server.metrics import Metrics
from mksearch_server.search_server import SLOTS_PER_PIECE, SearchServer, Upload
from mksearch_server.sending import Sending
from mksearch_server.status import BusyError
from mksearch_server.store import ObjectStore

__all__ = [
    "InfoServicer",
    "OwnerServicer",
    "Runtime",
    "SearchServicer",
    "refuse",
    "require_nonce",
]

_T = TypeVar("_T")
_NAMES_PER_MESSAGE = 1024
#: Largest piece of an object that one request may read.
_READ_BYTES_MAX = 1 << 26
#: Messages of an upload that are written together.
_BATCH_MESSAGES = 256
_BATCH_BYTES = 1 << 22
#: What a client is told that found too many calls for selected records.
_SELECT_RETRY_MS = 200
#: Between two looks for what can be erased.
_SWEEP_S = 5.0


class Runtime:
    """What the services of one process share."""

    def __init__(
        self, config: ServerConfig, store: ObjectStore, identity: ServerIdentity, engine: Engine
    ) -> None:
        self.config = config
        self.identity = identity
        self._store = store
        self.engine = engine
        self._scoring = ThreadPoolExecutor(1, "scoring")
        self._storage = ThreadPoolExecutor(4, "storage")
        # Uploads change the store: one at a time, in the order in which they came.
        self._upload = ThreadPoolExecutor(1, "upload")
        self.sending = Sending()
        self.gate = QueryGate(config.id)
        # Fetching an issuer's keys may take seconds, which searches do not wait for.
        self._tokens = ThreadPoolExecutor(1, "tokens")
        self.authority = AuthorityKeeper(
            config.id, identity.seed, store, SystemRandom(), tokens=_token_reader(config)
        )
        self.metrics = Metrics()
        self.calls = Calls(self.metrics)
        self._batcher = Batcher(
            self._score,
            self._scoring,
            config.max_waiting,
            self.metrics.pass_began,
            vectors_at_once(engine),
        )
        self._n_selecting = 0
        self._search: SearchServer | None = None
        self._closing = threading.Event()
        self._warming = ThreadPoolExecutor(1, "warming")
        self._peers = ThreadPoolExecutor(1, "peers")
        self._catching_up = CatchingUp(config, self._in_turn)
        self._is_behind = asyncio.Event()
        self._n_receiving = 0
        if identity.claim is not None:
            identity.keep_claim()
            self._open(identity.claim)
        self.metrics.watch(
            self.facts, lambda: self._batcher.n_waiting, lambda: self.sending.n_held_bytes
        )

    def _open(self, claim: Claim) -> None:
        self._search = SearchServer(
            self.config.id,
            self._store,
            claim.owner_key,
            self.engine,
            claim.collection,
            grace_s=self.config.grace_s,
        )
        self.follow()

    def follow(self) -> None:
        """Erase shares of the authority that the active version has left behind."""
        active = None if self._search is None else self._search.active
        self.authority.shares.follow(None if active is None else active.access)

    @property
    def search(self) -> SearchServer:
        """The claimed server.

        Raises:
            StorageError: nobody claimed it yet.
        """
        if self._search is None:
            raise StorageError(
                "this server was not claimed by an owner", cure="run mksearch owner init"
            )
        return self._search

    @property
    def version(self) -> int:
        """Version that is served, 0 for none."""
        return 0 if self._search is None else self._search.version

    def facts(self) -> Facts:
        """Return what this server is and holds now; on any thread."""
        shares = self.authority.shares
        return facts_of(
            self.config,
            self._store,
            self.engine,
            self._search,
            shares=(shares.n_held, shares.generation),
        )

    def warm(self) -> None:
        """Begin to read the active version ahead of those who ask."""
        # Shards read their rows themselves, on their hosts.
        if self._search is not None and shard_health(self.engine) is None:
            self._warming.submit(self._search.warm, self._closing.is_set)

    async def sweeping(self) -> None:
        """Erase what no version lists any more, some seconds after nobody is served it."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            if self._search is None or not self._search.may_sweep:
                continue
            try:
                n_erased = await self.on_upload(self._search.sweep)
            except MksearchError as error:
                log_event("erasing-failed", cause=error.message)
            else:
                log_event("erased", objects=n_erased)

    async def following_peers(self) -> None:
        """Fetch versions that were missed from the peers: at once when told of one, else by and by.

        While a publisher sends, it is left to it.
        """
        self._is_behind.set()
        while self.config.peers:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_behind.wait(), self.config.peers_s)
            self._is_behind.clear()
            search, claim = self._search, self.identity.claim
            if search is None or claim is None or self._n_receiving:
                continue
            try:
                has_changed = await asyncio.get_running_loop().run_in_executor(
                    self._peers, self._catching_up.round, search, claim
                )
                if has_changed:
                    await self.on_upload(self.follow)
                    self.warm()
            except Exception as error:  # noqa: BLE001 - the next round may go well
                log_fault(error)

    def _in_turn(self, work: Callable[..., _T], /, *arguments: Any) -> _T:
        """Run ``work`` on the one thread that changes the store, from another thread."""
        return self._upload.submit(work, *arguments).result()

    def announced(self) -> None:
        """Look whether the version that was just announced is one that was missed."""
        if self._search is not None and self._search.awaited is not None:
            self._is_behind.set()

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Mark that a publisher sends objects."""
        self._n_receiving += 1
        try:
            yield
        finally:
            self._n_receiving -= 1

    def claim(self, token: str, claim: Claim) -> None:
        """Pin the owner and open the store for it."""
        self.identity.accept_claim(token, claim)
        if self._search is None:
            self._open(claim)

    async def on_storage(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Run ``work`` on a storage thread."""
        return await asyncio.get_running_loop().run_in_executor(self._storage, work, *arguments)

    async def on_upload(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Run ``work`` on the one thread that changes the store."""
        return await asyncio.get_running_loop().run_in_executor(self._upload, work, *arguments)

    async def on_tokens(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Run ``work`` on the one thread that reads ID tokens."""
        return await asyncio.get_running_loop().run_in_executor(self._tokens, work, *arguments)

    async def score(
        self, requests: Sequence[tuple[bytes, ScoreRequest]]
    ) -> Sequence[tuple[ScoreAnswer, bytes]]:
        """Score what a member asks in one call, with others that wait, and sign the answers.

        Args:
            requests: each with the search key of its group.

        Raises:
            VerificationError: no member of the group signed one, or it came before.
            BusyError: as many requests wait as the server accepts.
        """
        for search_key, request in requests:
            self.gate.enter(search_key, request)
        try:
            return await self._batcher.submit_all([request for _, request in requests])
        except BusyError:
            for _, request in requests:
                self.gate.forget(request)
            raise

    def _score(
        self, places: Sequence[Sequence[ScoreRequest]]
    ) -> list[list[tuple[ScoreAnswer, bytes]]]:
        """Score and sign requests, those of each place together."""
        began_s = time.monotonic()
        signer = self.identity.signer
        signed = []
        n_rows = n_bytes = 0
        for requests, answers in zip(places, self.search.score_places(places), strict=True):
            signed.append(
                [
                    (answer, signer.score(request, answer))
                    for request, answer in zip(requests, answers, strict=True)
                ]
            )
            n_rows += sum(answer.sums.shape[1] for answer in answers)
            n_bytes += 2 * answers[0].sums.shape[1] * requests[0].shares.shape[1]
        self.metrics.pass_ended(time.monotonic() - began_s, n_rows, n_bytes)
        return signed

    async def select(
        self, requests: Sequence[tuple[bytes, SelectRequest]]
    ) -> AsyncGenerator[tuple[SelectAnswer, bytes], None]:
        """Select record slots as a member asks in one call, and sign the answers.

        Args:
            requests: each with the search key of its group.

        Raises:
            VerificationError: no member of the group signed one, or it came before.
            BusyError: as many calls wait as the server accepts.
        """
        if self._n_selecting >= self.config.max_waiting:
            raise BusyError(
                f"{self._n_selecting} requests for records wait already",
                retry_after_ms=_SELECT_RETRY_MS,
            )
        for search_key, request in requests:
            self.gate.enter(search_key, request)
        self._n_selecting += 1
        try:
            loop = asyncio.get_running_loop()
            for _, request in requests:
                yield await loop.run_in_executor(self._scoring, self._select, request)
        finally:
            self._n_selecting -= 1

    def _select(self, request: SelectRequest) -> tuple[SelectAnswer, bytes]:
        answer = self.search.select(request)
        return answer, self.identity.signer.select(request, answer)

    def close(self) -> None:
        """End the threads and close the store."""
        self._closing.set()
        self._catching_up.stop()
        pools = (
            *(self._peers, self._scoring, self._storage, self._upload),
            *(self._tokens, self._warming),
        )
        for pool in pools:
            pool.shutdown(cancel_futures=True)
        close_engine(self.engine)
        self._store.close()


def _token_reader(config: ServerConfig) -> TokenSource | None:
    if config.oidc is None:
        return None
    from mksearch_server.oidc import TokenReader

    return TokenReader(config.oidc)


def refuse(context: Any, error: Exception) -> None:
    """Give the call the status and the detail of the table; the caller returns, with no answer."""
    if give_status(context, error) is grpc.StatusCode.INTERNAL:
        log_fault(error)


def _reading(requests: Any) -> AbstractAsyncContextManager[Any]:
    """Give the messages of a call; what was not read of them is let go of at the end.

    gRPC's receiver and its generator refer to each other, so a stream that is refused in the middle
    would keep its call, with all that was read ahead, until a collection.
    """
    return aclosing(aiter(requests))


def _whole(
    head: search_pb2.ScoreRequestHead, gathering: convert.Gathering, shape: tuple[int, int]
) -> ScoreRequest:
    """Return a request that has come; raise FormatError if it is not whole."""
    return convert.score_request(head, gathering.elements(shape))


def _all_of(pieces: Iterator[RecordAnswer]) -> list[RecordAnswer]:
    return list(pieces)


def _next_of(pieces: Iterator[RecordAnswer]) -> list[RecordAnswer]:
    return list(islice(pieces, 1))


def _whole_selectors(
    search_key: bytes,
    head: search_pb2.SelectRequestHead,
    n_groups: int,
    gathering: convert.Gathering,
) -> tuple[bytes, SelectRequest]:
    """Return a request that has come; raise FormatError if it is not whole."""
    selectors = gathering.elements((head.n_fetches, n_groups))
    return search_key, convert.select_request(head, selectors)


def require_nonce(nonce: bytes) -> bytes:
    """Return a client's nonce; raise ParameterError for another length."""
    if len(nonce) != NONCE_BYTES:
        raise ParameterError(f"a nonce has {len(nonce)} bytes (need {NONCE_BYTES})")
    return nonce


class SearchServicer(search_pb2_grpc.SearchServiceServicer):
    """What users ask."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def _refuse(self, call: str, context: Any, error: Exception) -> None:
        self._runtime.metrics.query_refused(call, reason_of(error))
        refuse(context, error)

    async def GetManifest(  # noqa: N802 - named by the protocol
        self, request: search_pb2.GetManifestRequest, context: Any
    ) -> search_pb2.GetManifestResponse | None:
        """Return the active manifest, signed together with the nonce."""
        try:
            nonce = require_nonce(request.nonce)
            manifest = self._runtime.search.manifest()
            signature = self._runtime.identity.signer.manifest(nonce, manifest)
            return search_pb2.GetManifestResponse(manifest=manifest, signature=signature)
        except Exception as error:  # noqa: BLE001 - every fault gets a status
            refuse(context, error)
            return None

    async def GetRenewal(  # noqa: N802
        self, request: search_pb2.GetRenewalRequest, context: Any
    ) -> search_pb2.GetRenewalResponse | None:
        """Return the renewal of the active version, if there is one."""
        try:
            # Nothing is in it, but what could not be decoded is refused like everywhere.
            request.ByteSize()
            return search_pb2.GetRenewalResponse(renewal=self._runtime.search.renewal())
        except Exception as error:  # noqa: BLE001
            refuse(context, error)
            return None

    async def Score(  # noqa: N802
        self, request_iterator: AsyncIterator[search_pb2.ScoreRequest], context: Any
    ) -> AsyncIterator[search_pb2.ScoreResponse]:
        """Score query shares; nothing is kept of one that announces a wrong size."""
        try:
            async with _reading(request_iterator) as messages:
                requests = await self._score_requests(messages)
            sending = self._runtime.sending
            sending.require_room()
            answers = await self._runtime.score(requests)
            n_bytes = 2 * sum(answer.sums.nbytes for answer, _ in answers)
            responses = chain.from_iterable(starmap(convert.score_answer_messages, answers))
            async for response in sending.send(context, n_bytes, convert.packed(responses)):
                yield response
        except Exception as error:  # noqa: BLE001
            self._refuse("Score", context, error)

    async def _score_requests(
        self, messages: AsyncIterator[search_pb2.ScoreRequest]
    ) -> list[tuple[bytes, ScoreRequest]]:
        """Return the requests of a call, whole, each with the search key that signed it.

        Raises:
            ParameterError: none, too many, or one with a field out of range.
            FormatError: one is not whole, or is longer than it announced.
            VerificationError: no member signed it, or long ago.
        """
        found: list[tuple[bytes, ScoreRequest]] = []
        head, gathering, shape, search_key = None, None, (0, 0), b""
        async for received in messages:
            for message in convert.unpacked(received):
                if head is not None and gathering is not None and message.HasField("head"):
                    found.append((search_key, _whole(head, gathering, shape)))
                    gathering = None
                if gathering is None:
                    if len(found) == convert.REQUESTS_MAX:
                        raise ParameterError(f"over {len(found)} score requests came at once")
                    head = convert.score_head(message.head)
                    search_key = self._runtime.search.search_key(head.version, head.segment)
                    self._runtime.gate.require_current(search_key, convert.ticket(head))
                    place = head.version, head.segment, head.level
                    self._runtime.search.require_blocks(*place, head.blocks)
                    width = self._runtime.search.width(*place)
                    shape = (head.n_vectors, width)
                    gathering = convert.Gathering(2 * head.n_vectors * width, "a query share")
                gathering.add(message.shares)
        if head is None or gathering is None:
            raise ParameterError("an empty score request came")
        return [*found, (search_key, _whole(head, gathering, shape))]

    async def Select(  # noqa: N802
        self, request_iterator: AsyncIterator[search_pb2.SelectRequest], context: Any
    ) -> AsyncIterator[search_pb2.SelectResponse]:
        """Return groups of record slots by shared selectors."""
        try:
            async with _reading(request_iterator) as messages:
                requests = await self._select_requests(messages)
            sending = self._runtime.sending
            sending.require_room()
            async with aclosing(self._runtime.select(requests)) as answers:
                async for answer, signature in answers:
                    responses = convert.select_answer_messages(answer, signature)
                    async for response in sending.send(
                        context, 2 * answer.elements.nbytes, responses
                    ):
                        yield response
        except Exception as error:  # noqa: BLE001
            self._refuse("Select", context, error)

    async def _select_requests(
        self, messages: AsyncIterator[search_pb2.SelectRequest]
    ) -> list[tuple[bytes, SelectRequest]]:
        """Return the requests of a call, whole, each with the search key that signed it.

        Raises:
            ParameterError: none, too many or too large ones, or one with a field out of range.
            FormatError: one is not whole, or is longer than it announced.
            VerificationError: no member signed it, or long ago.
        """
        found: list[tuple[bytes, SelectRequest]] = []
        pending: tuple[bytes, search_pb2.SelectRequestHead, int, convert.Gathering] | None = None
        n_bytes = 0
        async for message in messages:
            if pending is not None and message.HasField("head"):
                found.append(_whole_selectors(*pending))
                pending = None
            if pending is None:
                if len(found) == convert.REQUESTS_MAX:
                    raise ParameterError(f"over {len(found)} select requests came at once")
                head = convert.select_head(message.head)
                search_key = self._runtime.search.search_key(head.version, head.segment)
                self._runtime.gate.require_current(search_key, convert.ticket(head))
                n_groups = self._runtime.search.n_groups(head.version, head.segment)
                n_bytes += 2 * head.n_fetches * n_groups
                if n_bytes > SELECTOR_BYTES_MAX:
                    raise ParameterError(
                        f"{n_bytes} bytes of selectors in one call (at most {SELECTOR_BYTES_MAX})"
                    )
                gathering = convert.Gathering(2 * head.n_fetches * n_groups, "a selector share")
                pending = search_key, head, n_groups, gathering
            pending[3].add(message.selectors)
        if pending is None:
            raise ParameterError("an empty select request came")
        return [*found, _whole_selectors(*pending)]

    async def GetRecords(  # noqa: N802
        self, request: search_pb2.GetRecordsRequest, context: Any
    ) -> AsyncIterator[search_pb2.GetRecordsResponse]:
        """Return record slots by number."""
        try:
            sending = self._runtime.sending
            sending.require_room()
            every = convert.record_requests(request)
            for asked in every:
                search_key = self._runtime.search.search_key(asked.version, asked.segment)
                self._runtime.gate.enter(search_key, asked)
            search = self._runtime.search
            waiting = chain.from_iterable(search.record_pieces(asked) for asked in every)
            # Few slots, as in most rounds, are copied in one visit to the disk.
            is_few = sum(len(asked.slots) for asked in every) <= SLOTS_PER_PIECE
            take = _all_of if is_few else _next_of
            while pieces := await self._runtime.on_storage(take, waiting):
                messages = chain.from_iterable(map(convert.record_answer_messages, pieces))
                # Once as elements, once as a message.
                n_bytes = 2 * sum(piece.elements.nbytes for piece in pieces)
                async for response in sending.send(context, n_bytes, convert.packed(messages)):
                    yield response
        except Exception as error:  # noqa: BLE001
            self._refuse("GetRecords", context, error)

    async def ReadObject(  # noqa: N802
        self, request: search_pb2.ReadObjectRequest, context: Any
    ) -> AsyncIterator[search_pb2.ReadObjectResponse]:
        """Return a piece of an object."""
        try:
            if request.n_bytes > _READ_BYTES_MAX:
                raise ParameterError(
                    f"{request.n_bytes} bytes asked for at once (at most {_READ_BYTES_MAX})"
                )
            if len(request.name) != 32:
                raise ParameterError(f"a name has {len(request.name)} bytes (need 32)")
            sending = self._runtime.sending
            sending.require_room()
            stop = request.offset + request.n_bytes
            for start in range(request.offset, stop, convert.CHUNK_BYTES):
                n_wanted = min(convert.CHUNK_BYTES, stop - start)
                piece = await self._runtime.on_storage(
                    self._runtime.search.read_object, request.name, start, n_wanted
                )
                messages = [search_pb2.ReadObjectResponse(data=piece)]
                async for response in sending.send(context, 2 * len(piece), messages):
                    yield response
                if len(piece) < n_wanted:
                    break
        except Exception as error:  # noqa: BLE001
            refuse(context, error)


class _IncomingObjects:
    """The objects of one Put stream; runs on the upload thread."""

    def __init__(self) -> None:
        self.n_objects = 0
        self._manifest_hash = b""
        self._upload: Upload | None = None

    def take(self, search: SearchServer, messages: list[owner_pb2.PutRequest]) -> None:
        """Write the next messages."""
        for message in messages:
            self._manifest_hash = message.manifest_hash or self._manifest_hash
            if message.whole:
                self.finish()
                search.put_whole(self._manifest_hash, message.whole)
                self.n_objects += len(message.whole)
                if not (message.name or message.data):
                    continue
            if message.name:
                self.finish()
                self._upload = search.begin_put(self._manifest_hash, message.name)
            if self._upload is None:
                raise ParameterError("the first message names no object")
            self._upload.write(message.data)

    def finish(self) -> None:
        """Store the object whose bytes have all come."""
        if self._upload is not None:
            self._upload.finish()
            self.n_objects += 1
            self.close()

    def close(self) -> None:
        """Drop an object that was not finished."""
        if self._upload is not None:
            self._upload.close()
            self._upload = None


class OwnerServicer(owner_pb2_grpc.OwnerServiceServicer):
    """What the owner asks."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def Claim(  # noqa: N802
        self, request: owner_pb2.ClaimRequest, context: Any
    ) -> owner_pb2.ClaimResponse | None:
        """Pin the owner that shows the claim token."""
        try:
            claim = Claim(request.owner_key, request.collection)
            await self._runtime.on_upload(self._runtime.claim, request.token, claim)
            log_event("claimed")
            return owner_pb2.ClaimResponse(
                server_id=self._runtime.config.id, server_key=self._runtime.identity.signer.public
            )
        except Exception as error:  # noqa: BLE001
            refuse(context, error)
            return None

    async def Propose(  # noqa: N802
        self, request: owner_pb2.ProposeRequest, context: Any
    ) -> owner_pb2.ProposeResponse | None:
        """Take a signed manifest."""
        try:
            search = self._runtime.search
            manifest_hash = await self._runtime.on_upload(search.propose, request.manifest)
            self._runtime.announced()
            return owner_pb2.ProposeResponse(manifest_hash=manifest_hash)
        except Exception as error:  # noqa: BLE001
            refuse(context, error)
            return None

    async def ListMissing(  # noqa: N802
        self, request: owner_pb2.ListMissingRequest, context: Any
    ) -> AsyncIterator[owner_pb2.ListMissingResponse]:
        """Name what is missing."""
        try:
            search = self._runtime.search
            names = await self._runtime.on_upload(search.missing, request.manifest_hash)
            for start in range(0, max(1, len(names)), _NAMES_PER_MESSAGE):
                yield owner_pb2.ListMissingResponse(names=names[start : start + _NAMES_PER_MESSAGE])
        except Exception as error:  # noqa: BLE001
            refuse(context, error)

    async def Put(  # noqa: N802
        self, request_iterator: AsyncIterator[owner_pb2.PutRequest], context: Any
    ) -> owner_pb2.PutResponse | None:
        """Store objects one after another."""
        with self._runtime.receiving():
            return await self._put(request_iterator, context)

    async def _put(
        self, request_iterator: AsyncIterator[owner_pb2.PutRequest], context: Any
    ) -> owner_pb2.PutResponse | None:
        objects = _IncomingObjects()
        try:
            search = self._runtime.search
            # A hop to the thread costs as much as a small object, so many share one.
            batch: list[owner_pb2.PutRequest] = []
            n_bytes = 0
            async with _reading(request_iterator) as messages:
                async for message in messages:
                    batch.append(message)
                    n_bytes += message.ByteSize()
                    if len(batch) >= _BATCH_MESSAGES or n_bytes >= _BATCH_BYTES:
                        await self._runtime.on_upload(objects.take, search, batch)
                        batch, n_bytes = [], 0
            await self._runtime.on_upload(objects.take, search, batch)
            await self._runtime.on_upload(objects.finish)
            # Whoever gets an answer may rely on it.
            await self._runtime.on_upload(search.commit)
            return owner_pb2.PutResponse(n_objects=objects.n_objects)
        except Exception as error:  # noqa: BLE001
            refuse(context, error)
            return None
        finally:
            # Behind what the thread still does for a client that has gone away.
            await self._runtime.on_upload(objects.close)

    async def Activate(  # noqa: N802
        self, request: owner_pb2.ActivateRequest, context: Any
    ) -> owner_pb2.ActivateResponse | None:
        """Serve a proposed version."""
        try:
            search = self._runtime.search
            version = await self._runtime.on_upload(
                search.activate, request.manifest_hash, request.signature
            )
            await self._runtime.on_upload(self._runtime.follow)
            log_event("activated", version=version)
            self._runtime.warm()
            return owner_pb2.ActivateResponse(version=version)
        except Exception as error:  # noqa: BLE001
            refuse(context, error)
            return None

    async def Renew(  # noqa: N802
        self, request: owner_pb2.RenewRequest, context: Any
    ) -> owner_pb2.RenewResponse | None:
        """Take a renewal of the version that is served."""
        try:
            search = self._runtime.search
            version = await self._runtime.on_upload(search.renew, request.renewal)
            log_event("renewed", version=version)
            return owner_pb2.RenewResponse(version=version)
        except Exception as error:  # noqa: BLE001
            refuse(context, error)
            return None


class InfoServicer(owner_pb2_grpc.InfoServiceServicer):
    """What anybody may ask."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def GetInfo(  # noqa: N802
        self, request: owner_pb2.GetInfoRequest, context: Any
    ) -> owner_pb2.GetInfoResponse | None:
        """Say who this server is and what it serves."""
        try:
            nonce = require_nonce(request.nonce)
            runtime = self._runtime
            claim = runtime.identity.claim
            collection = claim.collection if claim is not None else b""
            signer = runtime.identity.signer
            version = runtime.version
            return owner_pb2.GetInfoResponse(
                server_id=runtime.config.id,
                server_key=signer.public,
                collection=collection,
                version=version,
                release=__version__,
                signature=signer.info(nonce, runtime.config.id, version, collection),
            )
        except Exception as error:  # noqa: BLE001
            refuse(context, error)
            return None
