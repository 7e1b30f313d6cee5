"""One server over gRPC: messages out and in, errors named, answers proved to be the server's."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from typing import TypeVar

import grpc

from mksearch.codec import ENVELOPE_BYTES
from mksearch.crypto.evidence import NONCE_BYTES, AnswerVerifier
from mksearch.crypto.kdf import sha256
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.signature import SIGNATURE_BYTES
from mksearch.errors import (
    FormatError,
    MksearchError,
    ParameterError,
    ServerUnreachable,
)
from mksearch.index.manifest import Manifest
from mksearch.messages import (
    RecordAnswer,
    RecordRequest,
    ScoreAnswer,
    ScoreRequest,
    SelectAnswer,
    SelectRequest,
)
from mksearch.params import KEY_BYTES
from mksearch.wire import convert
from mksearch.wire.v1 import owner_pb2, owner_pb2_grpc, search_pb2, search_pb2_grpc
from mksearch_client.refusals import ServerBusy, is_draining, refusal
from mksearch_client.trust import TlsTrust, require_address

__all__ = ["Channel", "GrpcConnection", "ServerInfo"]

_T = TypeVar("_T")
#: For those who make stubs of it and do not import gRPC.
Channel = grpc.Channel
# What a server sends wrong is named by the errors raised here; without a handler gRPC would print
# tracebacks of it.
logging.getLogger("grpc").addHandler(logging.NullHandler())
_OPTIONS = (
    ("grpc.enable_retries", 0),
    # Every connection is its own: a server that hangs does not hold up another.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.lookahead_bytes", 1 << 20),
    # Servers are dialled as the profile says, whatever proxy the environment names.
    ("grpc.enable_http_proxy", 0),
    # A server that is back is used again soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # Pings that find a server that hangs in a long upload; see the server's options.
    ("grpc.http2.max_pings_without_data", 0),
)
#: Share of the timeout after which a server that owes an answer is asked nothing more.
_PATIENCE = 0.3
#: A busy server is left alone for so long at least, seconds.
_RETRY_S_MIN = 0.02
#: Shortest time between pings, milliseconds: servers refuse more of them.
_PING_MS_MIN = 2000
#: Why a call has no answer, of a server's own or other: a server that ends cuts what it has begun.
_UNREACHABLE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)
#: Looking for every object of a large collection takes a server seconds.
_LIST_TIMEOUT_S = 120.0
#: Uploading a segment takes as long as it takes; pings find out if the server is gone.
_UPLOAD_TIMEOUT_S = 3600.0
#: Objects up to this size share a message, which then has about as much as fits in one.
_SMALL_BYTES = 1 << 16
_TOGETHER_BYTES = 3 << 18


def _first_of(pieces: Iterable[bytes]) -> tuple[bytes, Iterator[bytes] | None]:
    """Return the first piece, and the others unless it is the only one."""
    rest = iter(pieces)
    first = next(rest, b"")
    second = next(rest, None)
    return first, None if second is None else chain([second], rest)


def _put_requests(
    manifest_hash: bytes, objects: Iterable[tuple[bytes, Iterable[bytes]]]
) -> Iterator[owner_pb2.PutRequest]:
    """Yield the messages that bring ``objects``; small ones share a message.

    One for each would cost more than what is in it.
    """
    small: list[bytes] = []
    n_bytes = 0
    for name, pieces in objects:
        piece, rest = _first_of(pieces)
        # A segment is named by its header alone, and goes under its name however small it is.
        if rest is None and len(piece) <= _SMALL_BYTES and sha256(piece) == name:
            small.append(piece)
            n_bytes += len(piece)
            if n_bytes >= _TOGETHER_BYTES:
                yield owner_pb2.PutRequest(manifest_hash=manifest_hash, whole=small)
                small, n_bytes = [], 0
            continue
        yield owner_pb2.PutRequest(manifest_hash=manifest_hash, name=name, data=piece)
        for further in rest or ():
            yield owner_pb2.PutRequest(data=further)
    if small:
        yield owner_pb2.PutRequest(manifest_hash=manifest_hash, whole=small)


def _n_listed(manifest: Manifest) -> int:
    """Return how many objects a manifest can list: 40 bytes of a blob list name a blob."""
    n_blobs = sum(group.blobs.size // (KEY_BYTES + 8) for group in manifest.groups)
    return len([*manifest.segments()]) + len([*manifest.objects()]) + n_blobs


class ServerInfo:
    """What a server says of itself."""

    __slots__ = ("collection", "release", "server_id", "server_key", "version")

    def __init__(self, message: owner_pb2.GetInfoResponse) -> None:
        self.server_id = message.server_id
        self.server_key = message.server_key
        self.collection = message.collection
        self.version = message.version
        self.release = message.release


class _CertificateRenewed(ServerUnreachable):
    """The connection was lost, and the server has another certificate for the pinned key now."""


class GrpcConnection:
    """A server of a collection, for searching and for publishing.

    Attributes:
        server: its id.
        address: HOST:PORT.
        n_busy: answers that told this client to come back later.
        is_gone: the last call found nobody to connect to, and gRPC lets its next attempt wait.
    """

    def __init__(
        self,
        server: int,
        address: str,
        server_key: bytes | None,
        random: RandomSource,
        *,
        timeout_s: float = 10.0,
        tls: TlsTrust | None = None,
    ) -> None:
        """Prepare to talk to a server; nothing is sent yet.

        Args:
            server: its id, 0 while it is not known.
            address: HOST:PORT; on this machine if no TLS key is pinned.
            server_key: pinned Ed25519 public key, 32 bytes; None only before the claim.
            random: source of nonces.
            timeout_s: seconds that a request may take.
            tls: pinned TLS key; None goes without TLS.

        Raises:
            ParameterError: it is no address, or on another machine and no TLS key is pinned.
        """
        self.server = server
        self.address = require_address(address, tls)
        self._random = random
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.n_busy = 0
        self.is_gone = False
        self._started_s: list[float] = []
        self._verifier = None if server_key is None else AnswerVerifier(server, server_key)
        self._server_key = server_key
        self._n_listed: dict[bytes, int] = {}
        ping_ms = max(_PING_MS_MIN, int(1000 * timeout_s))
        names = ("keepalive_time_ms", "keepalive_timeout_ms", "http2.ping_timeout_ms")
        pings = tuple((f"grpc.{name}", ping_ms) for name in names)
        self._options = _OPTIONS + pings
        self._tls = tls
        #: Certificate of the server that was proved, PEM, and whether nothing was lost since.
        self._certificate, self._is_proved = b"", False
        self._proving: Future[None] | None = None
        self._channels: list[Channel] = []
        if tls is None:
            self._use(grpc.insecure_channel(address, options=self._options))

    def _use(self, channel: Channel) -> None:
        """Send what comes from now on through ``channel``."""
        self._channels.append(channel)
        self._search = search_pb2_grpc.SearchServiceStub(channel)  # type: ignore[no-untyped-call]
        self._owner = owner_pb2_grpc.OwnerServiceStub(channel)  # type: ignore[no-untyped-call]
        self._info = owner_pb2_grpc.InfoServiceStub(channel)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """End the connection; running requests end with ServerUnreachable."""
        self._closed.set()
        with self._lock:
            proving, channels = self._proving, list(self._channels)
        if proving is not None:
            with suppress(InvalidStateError):
                proving.set_exception(self._is_closed())
        for channel in channels:
            channel.close()

    def _is_closed(self) -> ServerUnreachable:
        return ServerUnreachable(f"the connection to {self.address} is closed", server=self.server)

    # --- who answers ---

    def _prove(self, *, until_served: bool = False) -> None:
        """Have it proved that the pinned server answers, if there is TLS and it was not yet.

        Threads that come meanwhile wait for the same proof.

        Raises:
            ServerUnreachable, TlsRefused, ProfileError: see `check_server`.
        """
        if self._tls is None:
            return
        with self._lock:
            if self._closed.is_set():
                raise self._is_closed()
            if self._is_proved:
                return
            proving = self._proving
            if proving is None:
                proving = self._proving = Future()
                work = (self._tls, proving, until_served)
                # A thread that nobody waits for at the end: a handshake cannot be called off.
                threading.Thread(target=self._look, args=work, daemon=True).start()
        try:
            proving.result(self._timeout_s)
        except TimeoutError:
            raise self._late() from None

    def _look(self, tls: TlsTrust, proving: Future[None], until_served: bool) -> None:
        from mksearch_client.tls import check_server

        try:
            certificate = check_server(
                self.address, tls, self._timeout_s, until_served=until_served
            )
            key, chain = (None, None) if tls.files is None else tls.files.client_pem()
            with self._lock:
                if certificate != self._certificate and not self._closed.is_set():
                    # What runs over an older channel may end there.
                    self._use(
                        grpc.secure_channel(
                            self.address,
                            grpc.ssl_channel_credentials(certificate, key, chain),
                            options=self._options,
                        )
                    )
                self._certificate, self._is_proved, self._proving = certificate, True, None
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            with self._lock:
                self._proving = None
            with suppress(InvalidStateError):
                proving.set_exception(error)
            return
        with suppress(InvalidStateError):
            proving.set_result(None)

    def _prove_again(self, before: bytes) -> MksearchError | None:
        """Return why a connection that was lost is not to be had again, None for no reason.

        A server that renewed its certificate is one: what was asked can be asked again.

        Args:
            before: certificate that the lost connection accepted.
        """
        self._is_proved = False
        try:
            self._prove(until_served=True)
        except MksearchError as error:
            return error
        if self._certificate == before:
            return None
        return _CertificateRenewed(
            f"{self.address}: the connection was lost, and the server has a new certificate",
            cure="run it again",
            server=self.server,
        )

    @property
    def waited_s(self) -> float:
        """For how many seconds the server has owed an answer, 0 if it owes none."""
        now_s = time.monotonic()
        with self._lock:
            return now_s - min(self._started_s, default=now_s)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Count a request while it waits.

        A server that hangs would otherwise collect requests, and each holds a thread.
        """
        now_s = time.monotonic()
        with self._lock:
            waited_s = now_s - min(self._started_s, default=now_s)
            if waited_s > _PATIENCE * self._timeout_s:
                raise ServerUnreachable(
                    f"{self.address}: an earlier request has waited for {waited_s:.1f} s",
                    cure="check that the server runs and is not overloaded",
                    server=self.server,
                )
            self._started_s.append(now_s)
        try:
            yield
        finally:
            with self._lock:
                self._started_s.remove(now_s)

    def _ask(self, work: Callable[[], _T]) -> _T:
        """Do what a user waits for, again when a busy server wants that; see ``_call``."""
        last_s = time.monotonic() + self._timeout_s
        was_renewed = False
        while True:
            try:
                with self._waiting():
                    return self._call(work)
            except _CertificateRenewed:
                if was_renewed:
                    raise
                was_renewed = True
            except ServerBusy as error:
                self.n_busy += 1
                # Not all at the same moment, and not as often as a liar may like.
                wait_s = max(_RETRY_S_MIN, error.retry_after_ms / 1000) * (1 + self._jitter())
                if time.monotonic() + wait_s > last_s:
                    raise
                if self._closed.wait(wait_s):
                    raise

    def _jitter(self) -> float:
        return self._random.bytes(1)[0] / 256

    def _call(self, work: Callable[[], _T]) -> _T:
        certificate = b""
        try:
            self._prove()
            certificate = self._certificate
            answer = work()
        except grpc.RpcError as error:
            self.is_gone = error.code() is grpc.StatusCode.UNAVAILABLE
            raise self._named(error, certificate) from None
        except ServerUnreachable as error:
            self.is_gone = True
            error.server = self.server
            raise
        except ValueError as error:
            # grpc raises it for a call on a closed channel.
            raise ServerUnreachable(
                f"the connection to {self.address} is closed ({error})", server=self.server
            ) from None
        except MksearchError as error:
            error.server = self.server
            raise
        self.is_gone = False
        return answer

    def _one(self, answer: _T | None) -> _T:
        """Return the answer of a call that has one; gRPC gives None when none came."""
        if answer is None:
            raise FormatError(f"{self.address} ended a call without an answer")
        return answer

    def _named(self, error: grpc.RpcError, certificate: bytes) -> MksearchError:
        code = error.code()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return self._late()
        if code in _UNREACHABLE and is_draining(error):
            return self._unreachable("it is being stopped")
        if code is grpc.StatusCode.CANCELLED:
            return self._unreachable("the call was cut")
        if code is grpc.StatusCode.UNAVAILABLE:
            if is_draining(error):
                return self._unreachable("it is being stopped")
            found = None if self._tls is None else self._prove_again(certificate)
            if found is None:
                found = self._unreachable("no connection")
            found.server = self.server
            return found
        return refusal(error, self.address, self.server)

    def _late(self) -> ServerUnreachable:
        return self._unreachable(f"no answer within {self._timeout_s:g} s")

    def _unreachable(self, why: str) -> ServerUnreachable:
        return ServerUnreachable(
            f"{self.address}: {why}",
            cure="check that the server runs and that the address is right",
            server=self.server,
        )

    def _require_verifier(self) -> AnswerVerifier:
        if self._verifier is None:
            raise ParameterError(f"the key of the server at {self.address} is not pinned")
        return self._verifier

    # --- searching ---

    def manifest(self) -> bytes:
        """Return the active manifest, proved to come from the server.

        Raises:
            ServerUnreachable, ServerRefused, VerificationError: see ``mksearch.errors``.
        """

        def work() -> bytes:
            nonce = self._random.bytes(NONCE_BYTES)
            request = search_pb2.GetManifestRequest(nonce=nonce)
            answer = self._one(self._search.GetManifest(request, timeout=self._timeout_s))
            self._require_verifier().manifest(nonce, answer.manifest, answer.signature)
            return bytes(answer.manifest)

        return self._ask(work)

    def renewal(self) -> bytes:
        """Return the renewal that the server holds, b"" without one; it proves itself.

        Raises:
            ServerUnreachable, ServerRefused: see ``mksearch.errors``.
        """

        def work() -> bytes:
            request = search_pb2.GetRenewalRequest()
            answer = self._one(self._search.GetRenewal(request, timeout=self._timeout_s))
            return bytes(answer.renewal)

        return self._ask(work)

    def score(self, request: ScoreRequest) -> ScoreAnswer:
        """Score a query share; the answer is proved to come from the server.

        Raises:
            ServerUnreachable, ServerRefused, VerificationError: see ``mksearch.errors``.
        """
        return self.score_all([request])[0]

    def score_all(self, requests: Sequence[ScoreRequest]) -> list[ScoreAnswer]:
        """Score a query share for each of some segments, in one call; see ``score``."""
        shapes = [shape for r in requests if (shape := r.answer_shape) is not None]
        if len(shapes) != len(requests):
            raise ParameterError("a score request does not say what shape its answer has")

        def work() -> list[ScoreAnswer]:
            messages = chain.from_iterable(map(convert.score_request_messages, requests))
            stream = self._search.Score(convert.packed(messages), timeout=self._timeout_s)
            responses = chain.from_iterable(map(convert.unpacked, stream))
            answers = []
            try:
                for number, (request, shape) in enumerate(zip(requests, shapes, strict=True), 1):
                    answer, signature = convert.score_answer(
                        responses,
                        shape,
                        is_one_of_many=number < len(requests),
                        is_of_blocks=bool(request.blocks),
                    )
                    self._require_verifier().score(request, answer, signature)
                    answers.append(replace(answer, signature=signature))
            finally:
                stream.cancel()
            return answers

        return self._ask(work)

    def records(self, request: RecordRequest) -> RecordAnswer:
        """Return record slots as the server sends them; they prove themselves when opened.

        Raises:
            ServerUnreachable, ServerRefused, VerificationError: see ``mksearch.errors``.
        """
        return self.records_all([request])[0]

    def records_all(self, requests: Sequence[RecordRequest]) -> list[RecordAnswer]:
        """Return record slots of some segments, in one call; see ``records``."""
        if any(request.slot_width is None for request in requests):
            raise ParameterError("a record request does not say how wide its slots are")

        def work() -> list[RecordAnswer]:
            message = convert.record_requests_message(requests)
            stream = self._search.GetRecords(message, timeout=self._timeout_s)
            responses = chain.from_iterable(map(convert.unpacked, stream))
            try:
                return [
                    convert.record_answer(
                        responses,
                        len(request.slots),
                        request.slot_width or 0,
                        is_one_of_many=number < len(requests),
                    )
                    for number, request in enumerate(requests, 1)
                ]
            finally:
                stream.cancel()

        return self._ask(work)

    def select(self, request: SelectRequest) -> SelectAnswer:
        """Return selected record slots; the answer is proved to come from the server.

        Raises:
            ServerUnreachable, ServerRefused, VerificationError: see ``mksearch.errors``.
        """
        return self.select_all([request])[0]

    def select_all(self, requests: Sequence[SelectRequest]) -> list[SelectAnswer]:
        """Return selected record slots of some segments, in one call; see ``select``."""
        shapes = [shape for r in requests if (shape := r.answer_shape) is not None]
        if len(shapes) != len(requests):
            raise ParameterError("a select request does not say what shape its answer has")

        def work() -> list[SelectAnswer]:
            messages = chain.from_iterable(map(convert.select_request_messages, requests))
            stream = self._search.Select(messages, timeout=self._timeout_s)
            answers = []
            try:
                for number, (request, shape) in enumerate(zip(requests, shapes, strict=True), 1):
                    answer, signature = convert.select_answer(
                        stream, shape, is_one_of_many=number < len(requests)
                    )
                    self._require_verifier().select(request, answer, signature)
                    answers.append(replace(answer, signature=signature))
            finally:
                stream.cancel()
            return answers

        return self._ask(work)

    def read_object(self, name: bytes, offset: int, n_bytes: int) -> bytes:
        """Return a piece of an object; it proves itself by its hash.

        Raises:
            ServerUnreachable, ServerRefused, VerificationError: see ``mksearch.errors``.
        """

        def work() -> bytes:
            request = search_pb2.ReadObjectRequest(name=name, offset=offset, n_bytes=n_bytes)
            stream = self._search.ReadObject(request, timeout=self._timeout_s)
            pieces: list[bytes] = []
            n_left = n_bytes
            try:
                for message in stream:
                    piece = message.data
                    n_left -= len(piece)
                    if n_left < 0:
                        raise FormatError(f"more than the {n_bytes} bytes asked for came")
                    # Messages of nothing are not kept: they may come without end.
                    if piece:
                        pieces.append(piece)
            finally:
                stream.cancel()
            return b"".join(pieces)

        return self._ask(work)

    def info(self) -> ServerInfo:
        """Return what the server says of itself, signed with the pinned key.

        Raises:
            ServerUnreachable, ServerRefused, VerificationError: see ``mksearch.errors``.
        """

        def work() -> ServerInfo:
            nonce = self._random.bytes(NONCE_BYTES)
            request = owner_pb2.GetInfoRequest(nonce=nonce)
            answer = self._one(self._info.GetInfo(request, timeout=self._timeout_s))
            self._require_verifier().info(
                nonce, answer.server_id, answer.version, answer.collection, answer.signature
            )
            if (answer.server_id, answer.server_key) != (self.server, self._server_key):
                raise FormatError(f"{self.address} says that it is another server than the pinned")
            return ServerInfo(answer)

        return self._ask(work)

    # --- publishing ---

    def claim(self, token: str, owner_key: bytes, collection: bytes) -> tuple[int, bytes]:
        """Claim the server; return its id and its key (32 bytes), to be pinned.

        Raises:
            ServerUnreachable, ServerRefused: see ``mksearch.errors``.
            FormatError: the answer holds no key.
        """
        request = owner_pb2.ClaimRequest(token=token, owner_key=owner_key, collection=collection)
        answer = self._call(lambda: self._one(self._owner.Claim(request, timeout=self._timeout_s)))
        if len(answer.server_key) != KEY_BYTES:
            raise FormatError(
                f"{self.address} sent a key of {len(answer.server_key)} bytes (need {KEY_BYTES})"
            )
        return answer.server_id, answer.server_key

    def propose(self, data: bytes) -> bytes:
        """Announce a signed manifest, or a draft; return its hash.

        Raises:
            ServerUnreachable, ServerRefused: see ``mksearch.errors``.
            FormatError: the server takes it for another one.
        """
        request = owner_pb2.ProposeRequest(manifest=data)
        answer = self._call(
            lambda: self._one(self._owner.Propose(request, timeout=self._timeout_s))
        )
        body = data[ENVELOPE_BYTES + 4 : -SIGNATURE_BYTES]
        if answer.manifest_hash != sha256(body):
            raise FormatError(f"{self.address} took another manifest than was proposed")
        self._n_listed[answer.manifest_hash] = _n_listed(Manifest.decode(body))
        return bytes(answer.manifest_hash)

    def missing(self, manifest_hash: bytes) -> list[bytes]:
        """Return names of what the server still needs of a manifest that was proposed to it.

        Raises:
            ServerUnreachable, ServerRefused: see ``mksearch.errors``.
            FormatError: no names, or more of them than the manifest can list.
        """
        request = owner_pb2.ListMissingRequest(manifest_hash=manifest_hash)
        n_listed = self._n_listed.get(manifest_hash, 0)

        def work() -> list[bytes]:
            stream = self._owner.ListMissing(request, timeout=_LIST_TIMEOUT_S)
            names: list[bytes] = []
            n_messages = 0
            try:
                for message in stream:
                    n_messages += 1
                    names += message.names
                    # Only the first message may be empty, when nothing is missing.
                    if not n_messages <= max(1, len(names)) <= max(1, n_listed) or any(
                        len(name) != KEY_BYTES for name in message.names
                    ):
                        raise FormatError(
                            f"{self.address} misses what is no name, or more than the {n_listed} "
                            "names that were proposed"
                        )
            finally:
                stream.cancel()
            return names

        return self._call(work)

    def put_all(
        self, manifest_hash: bytes, objects: Iterable[tuple[bytes, Iterable[bytes]]]
    ) -> None:
        """Send objects one after another in one stream.

        Raises:
            ServerUnreachable, ServerRefused: see ``mksearch.errors``; what ``objects`` raises.
        """
        failures: list[Exception] = []

        def messages() -> Iterator[owner_pb2.PutRequest]:
            try:
                yield from _put_requests(manifest_hash, objects)
            except Exception as error:  # noqa: BLE001 - raised below, on the caller's thread
                failures.append(error)

        try:
            self._call(lambda: self._one(self._owner.Put(messages(), timeout=_UPLOAD_TIMEOUT_S)))
        finally:
            # The cause: the server only saw a stream that ended early.
            if failures:
                raise failures[0] from None

    def activate(self, manifest_hash: bytes, signature: bytes = b"") -> int:
        """Have a version served; return its number.

        Args:
            manifest_hash: of what was proposed.
            signature: the owner's, where a draft was proposed; 64 bytes.
        """
        request = owner_pb2.ActivateRequest(manifest_hash=manifest_hash, signature=signature)
        answer = self._call(
            lambda: self._one(self._owner.Activate(request, timeout=_UPLOAD_TIMEOUT_S))
        )
        return int(answer.version)

    def renew(self, data: bytes) -> int:
        """Hand over a renewal; return the version that is good for longer.

        Raises:
            ServerUnreachable, ServerRefused: see ``mksearch.errors``.
        """
        request = owner_pb2.RenewRequest(renewal=data)
        answer = self._call(lambda: self._one(self._owner.Renew(request, timeout=self._timeout_s)))
        return int(answer.version)
