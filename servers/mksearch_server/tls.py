"""TLS of a running server: a changed certificate is presented at once; 1.3 and nothing below."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc

from mksearch.errors import MksearchError
from mksearch_server.certificates import TlsConfig, TlsFiles, expiry_warning
from mksearch_server.handlers import wrap_handler
from mksearch_server.log import log_event

__all__ = ["ServerTls", "TlsInterceptor"]

_VERSION = "TLSv1.3"
_SAY_EVERY_S = 86_400.0
#: State of a file: enough to tell that it was replaced or written.
_Stamp = tuple[int, int, int]


def _stamp(path: Path | None) -> _Stamp | None:
    try:
        found = None if path is None else path.stat()
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)


class ServerTls:
    """What a server presents to new connections.

    gRPC asks before every handshake.  Connections that there are keep what they have.
    """

    def __init__(self, config: TlsConfig) -> None:
        """Read the files.

        Raises:
            StorageError: one cannot be read or is damaged, or the key is of another certificate.
        """
        self._config = config
        self._lock = threading.Lock()
        self._seen = self._stamps()
        self._files = TlsFiles.read(config)
        self._say()

    def credentials(self) -> grpc.ServerCredentials:
        """Return what `grpc` listens with."""
        first = _configuration(self._files)
        return grpc.dynamic_ssl_server_credentials(
            first,
            self._changed,  # type: ignore[arg-type]  # None keeps what there is
            require_client_authentication=self._wants_clients,
        )

    @property
    def ends_s(self) -> int:
        """Last Unix second of the certificate that is presented."""
        return self._files.certificate.ends_s

    @property
    def _wants_clients(self) -> bool:
        return self._config.client_authorities is not None

    def _stamps(self) -> tuple[_Stamp | None, ...]:
        config = self._config
        return tuple(map(_stamp, (config.certificate, config.key, config.client_authorities)))

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new files, None while they are the same or do not go together."""
        with self._lock:
            if time.monotonic() - self._said_s > _SAY_EVERY_S:
                self._say()
            stamps = self._stamps()
            if stamps == self._seen:
                return None
            self._seen = stamps
            try:
                files = TlsFiles.read(self._config)
            except MksearchError as error:
                log_event("certificate-kept", cause=error.message)
                return None
            self._files = files
            log_event("certificate-renewed")
            self._say()
            return _configuration(files)

    def _say(self) -> None:
        """Warn of a certificate that ends soon: when it is read, and once a day from then on."""
        self._said_s = time.monotonic()
        warning = expiry_warning(self._files.certificate, time.time())
        if warning:
            log_event("certificate-dates", cause=warning)


def _configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(files.key, files.chain)], root_certificates=files.client_authorities
    )


async def _require_version(context: Any) -> None:
    versions = context.auth_context().get("ssl_tls_version", ())
    if [bytes(version).decode() for version in versions] != [_VERSION]:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "this server speaks TLS 1.3 only")


def _guarded_call(behavior: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def call(request: Any, context: Any) -> Any:
        await _require_version(context)
        return await behavior(request, context)

    return call


def _guarded_stream(behavior: Callable[..., Any]) -> Callable[..., Any]:
    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
        await _require_version(context)
        async with aclosing(behavior(request, context)) as messages:
            async for message in messages:
                yield message

    # gRPC's own health service writes its stream instead of yielding it.
    return stream if inspect.isasyncgenfunction(behavior) else _guarded_call(behavior)


class TlsInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses every call over TLS below 1.3: gRPC has no option for it."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler of the method that is called."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        return wrap_handler(handler, _guarded_call, _guarded_stream)
