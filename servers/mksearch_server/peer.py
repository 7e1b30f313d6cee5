"""Another server of the collection, asked for what it serves.

Nothing that it says counts before the owner's signature, or the name of the object, proves it.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import grpc

from mksearch.crypto.certificate import Certificate
from mksearch.crypto.evidence import NONCE_BYTES
from mksearch.crypto.randomness import RandomSource
from mksearch.errors import (
    FormatError,
    ServerRefused,
    ServerUnreachable,
    TlsRefused,
)
from mksearch.wire.v1 import search_pb2, search_pb2_grpc
from mksearch.wire.v1.error_pb2 import ErrorDetail
from mksearch_server.certificates import TlsConfig, TlsFiles
from mksearch_server.peer_address import PeerAddress
from mksearch_server.status import DETAIL_KEY

__all__ = ["Peer", "PeerAddress", "open_channel"]

_T = TypeVar("_T")
_READ_BYTES = 1 << 24
_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # Servers are dialled as the operator says, whatever proxy the environment names.
    ("grpc.enable_http_proxy", 0),
)
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def open_channel(at: PeerAddress, own: TlsConfig | None, timeout_s: float) -> grpc.Channel:
    """Open the channel to another server: the one place where a server dials anybody.

    Args:
        at: where it is.
        own: of this server, whose certificate is shown to one that wants to see one.
        timeout_s: seconds that connecting may take.

    Raises:
        ServerUnreachable: nobody answers.
        TlsRefused: another server does, or its certificate is not to be used.
    """
    if at.fingerprint is None:
        return grpc.insecure_channel(at.address, options=_OPTIONS)
    certificate = _proved(at.address, at.fingerprint, own, timeout_s)
    files = None if own is None else TlsFiles.read(own)
    key, chain = (None, None) if files is None else (files.key, files.chain)
    credentials = grpc.ssl_channel_credentials(certificate.pem, key, chain)
    return grpc.secure_channel(at.address, credentials, options=_OPTIONS)


def _proved(
    address: str, fingerprint: bytes, own: TlsConfig | None, timeout_s: float
) -> Certificate:
    """Return the certificate of who answers, proved to be the pinned server."""
    name, _, port = address.rpartition(":")
    host = name.strip("[]")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # What counts is the pinned key, which is compared below.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    try:
        if own is not None:
            context.load_cert_chain(own.certificate, own.key, password=lambda: "")
        with (
            socket.create_connection((host, int(port)), timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=host) as connection,
        ):
            certificate = Certificate.of_der(connection.getpeercert(binary_form=True) or b"")
    except ssl.SSLError as error:
        raise TlsRefused(
            f"{address}: no TLS 1.3 with it ({(error.reason or 'no reason').lower()})",
            cure="nothing was sent; check the address, and that the server has [tls]",
        ) from None
    except OSError as error:
        raise ServerUnreachable(
            f"{address} does not answer ({error.strerror or type(error).__name__})",
            cure="check that this server runs, or name another one with --from",
        ) from None
    certificate.require_good(address, host, fingerprint, time.time())
    return certificate


class Peer:
    """Another server of the collection.

    Attributes:
        address: HOST:PORT.
    """

    def __init__(
        self,
        at: PeerAddress,
        random: RandomSource,
        *,
        own: TlsConfig | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Prepare to ask; nothing is sent yet.

        Args:
            at: where it is.
            random: source of nonces.
            own: TLS of this server, for one that lets in clients with a certificate only.
            timeout_s: seconds that one request may take.
        """
        self.address = at.address
        self._random = random
        self._timeout_s = timeout_s
        self._at, self._own = at, own
        self._channel: grpc.Channel | None = None
        self._is_closed = False

    def close(self) -> None:
        """End the connection, and what is asked through it; from any thread."""
        self._is_closed = True
        if self._channel is not None:
            self._channel.close()

    @property
    def _stub(self) -> Any:
        """What the server is asked through; opened, and proved, with the first question."""
        if self._channel is None:
            self._channel = open_channel(self._at, self._own, self._timeout_s)
        return search_pb2_grpc.SearchServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def manifest(self) -> bytes:
        """Return the manifest that the server serves, not proved yet.

        Raises:
            ServerUnreachable, ServerRefused: it has none to give.
        """
        request = search_pb2.GetManifestRequest(nonce=self._random.bytes(NONCE_BYTES))
        answer = self._call(lambda: self._stub.GetManifest(request, timeout=self._timeout_s))
        if answer is None:
            raise FormatError(f"{self.address} ended a call without an answer")
        return bytes(answer.manifest)

    def renewal(self) -> bytes:
        """Return the renewal that the server holds, b"" without one; it proves itself.

        Raises:
            ServerUnreachable, ServerRefused: it does not answer.
        """
        request = search_pb2.GetRenewalRequest()
        answer = self._call(lambda: self._stub.GetRenewal(request, timeout=self._timeout_s))
        return b"" if answer is None else bytes(answer.renewal)

    def pieces(self, name: bytes, size: int) -> Iterator[bytes]:
        """Yield the bytes of an object of ``size`` bytes, not proved yet.

        Raises:
            ServerUnreachable, ServerRefused: it does not give them.
            FormatError: it gives another number of them.
        """
        for start in range(0, size, _READ_BYTES):
            n_bytes = min(_READ_BYTES, size - start)
            piece = self._read(name, start, n_bytes)
            if len(piece) != n_bytes:
                raise FormatError(f"{self.address} sent {len(piece)} of {n_bytes} bytes")
            yield piece

    def _read(self, name: bytes, offset: int, n_bytes: int) -> bytes:
        request = search_pb2.ReadObjectRequest(name=name, offset=offset, n_bytes=n_bytes)

        def work() -> bytes:
            data = bytearray()
            stream = self._stub.ReadObject(request, timeout=self._timeout_s)
            try:
                for message in stream:
                    data += message.data
                    if len(data) > n_bytes:
                        raise FormatError(f"{self.address} sent more than was asked for")
            finally:
                stream.cancel()
            return bytes(data)

        return self._call(work)

    def _call(self, work: Callable[[], _T]) -> _T:
        try:
            if self._is_closed:
                raise ServerUnreachable(f"{self.address} is not asked any more")
            return work()
        except ValueError:
            if not self._is_closed:
                raise
            # What gRPC says of a channel that was closed meanwhile.
            raise ServerUnreachable(f"{self.address} is not asked any more") from None
        except grpc.RpcError as error:
            if error.code() in _UNREACHABLE:
                raise ServerUnreachable(
                    f"{self.address} does not answer ({error.code().name.lower()})",
                    cure="check that this server runs, or name another one with --from",
                ) from None
            detail = _detail(error)
            raise ServerRefused(
                f"{self.address} refused: {detail.message or error.code().name}",
                detail_code=detail.code,
                cure="name another server with --from",
            ) from None


def _detail(error: Any) -> ErrorDetail:
    """Return what a refused call says in its trailer; untrusted."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAIL_KEY and isinstance(value, bytes):
            with suppress(ValueError):
                return ErrorDetail.FromString(value)
    return ErrorDetail()
