"""The one table that maps errors to gRPC status codes; what a client may read of them."""

from __future__ import annotations

import grpc

from mksearch.errors import (
    CredentialRefused,
    FormatError,
    MksearchError,
    NotQualified,
    ParameterError,
    PolicyError,
    StorageError,
    VerificationError,
)
from mksearch.wire.v1.error_pb2 import ErrorDetail

__all__ = ["DETAIL_KEY", "OWN_CODES", "STATUS_CODES", "BusyError", "DrainingError", "status_of"]

#: Trailer that carries an ErrorDetail.
DETAIL_KEY = "mksearch-error-bin"


class BusyError(MksearchError):
    """More work waits than the server accepts; ``retry_after_ms`` says when to ask again."""

    code = "busy"

    def __init__(self, message: str, *, retry_after_ms: int) -> None:
        super().__init__(message, cure=f"ask again in {retry_after_ms} ms")
        self.retry_after_ms = retry_after_ms


class DrainingError(MksearchError):
    """The server is being stopped and takes no further requests: another one answers."""

    code = "draining"

    def __init__(self) -> None:
        super().__init__("this server is being stopped", cure="ask another server")


_INTERNAL = "internal"
#: Codes that servers alone use; the others are those of ``mksearch.errors``.
OWN_CODES = (BusyError.code, DrainingError.code, _INTERNAL, "publication-under-way")

#: Most special first.
STATUS_CODES: tuple[tuple[type[MksearchError], grpc.StatusCode], ...] = (
    (CredentialRefused, grpc.StatusCode.PERMISSION_DENIED),
    (NotQualified, grpc.StatusCode.PERMISSION_DENIED),
    (PolicyError, grpc.StatusCode.INVALID_ARGUMENT),
    (BusyError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    # What clients treat like a server that is not there: they go on with another at once.
    (DrainingError, grpc.StatusCode.UNAVAILABLE),
    (ParameterError, grpc.StatusCode.INVALID_ARGUMENT),
    (FormatError, grpc.StatusCode.INVALID_ARGUMENT),
    (VerificationError, grpc.StatusCode.PERMISSION_DENIED),
    (StorageError, grpc.StatusCode.FAILED_PRECONDITION),
    (MksearchError, grpc.StatusCode.INTERNAL),
)


def status_of(error: Exception) -> tuple[grpc.StatusCode, ErrorDetail]:
    """Return the status and the detail that a client gets for ``error``.

    What is not an error of this product is an internal fault: its text stays on the server.
    """
    for kind, code in STATUS_CODES:
        if isinstance(error, kind):
            retry_after_ms = getattr(error, "retry_after_ms", 0)
            detail = ErrorDetail(
                code=error.code,
                message=error.message,
                cure=error.cure,
                retry_after_ms=retry_after_ms,
            )
            return code, detail
    return grpc.StatusCode.INTERNAL, ErrorDetail(
        code=_INTERNAL, message="the server failed", cure="its operator finds why in its log"
    )
