"""Another server of the collection, asked for what it serves.

Nothing that it says counts before the owner's signature, or the name of the object, proves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import grpc

from mksearch.crypto.evidence import NONCE_BYTES
from mksearch.crypto.randomness import RandomSource
from mksearch.errors import FormatError, ParameterError, ServerRefused, ServerUnreachable
from mksearch.wire.v1 import search_pb2, search_pb2_grpc
from mksearch.wire.v1.error_pb2 import ErrorDetail
from mksearch_server.config import LOOPBACK
from mksearch_server.status import DETAIL_KEY

__all__ = ["Peer", "open_channel"]

_T = TypeVar("_T")
_READ_BYTES = 1 << 24
_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # Servers are dialled as the operator says, whatever proxy the environment names.
    ("grpc.enable_http_proxy", 0),
)
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def open_channel(address: str) -> grpc.Channel:
    """Open the channel to another server: the one place where a server dials anybody.

    Raises:
        ParameterError: the address is not on this machine, and this release has no TLS.
    """
    host, _, port = address.rpartition(":")
    if host not in LOOPBACK or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ParameterError(
            f"{address!r} is not a loopback host and port",
            cure="this release has no TLS, so it dials 127.0.0.1 or [::1] only",
        )
    return grpc.insecure_channel(address, options=_OPTIONS)


class Peer:
    """Another server of the collection.

    Attributes:
        address: HOST:PORT.
    """

    def __init__(self, address: str, random: RandomSource, *, timeout_s: float = 30.0) -> None:
        """Prepare to ask; nothing is sent yet.

        Args:
            address: HOST:PORT.
            random: source of nonces.
            timeout_s: seconds that one request may take.

        Raises:
            ParameterError: the address cannot be dialled.
        """
        self.address = address
        self._random = random
        self._timeout_s = timeout_s
        self._channel = open_channel(address)
        self._stub = search_pb2_grpc.SearchServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

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
            return work()
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
