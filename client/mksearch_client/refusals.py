"""What a server says when it will not: untrusted words, made into errors of this product."""

from __future__ import annotations

from typing import Any

import grpc

from mksearch.errors import FormatError, MksearchError, ServerRefused
from mksearch.wire.v1.error_pb2 import ErrorDetail

__all__ = ["ServerBusy", "is_draining", "refusal"]

#: Trailer that carries an ErrorDetail.
_DETAIL_KEY = "mksearch-error-bin"
_BUSY = "busy"
_DRAINING = "draining"


class ServerBusy(ServerRefused):
    """A server has more work waiting than it accepts.

    Attributes:
        retry_after_ms: when it wants to be asked again, at least 1; a lie possibly.
    """

    code = "busy"

    def __init__(self, message: str, *, retry_after_ms: int, server: int | None = None) -> None:
        super().__init__(
            message,
            detail_code=_BUSY,
            cure=f"ask again in {retry_after_ms} ms",
            server=server,
        )
        self.retry_after_ms = retry_after_ms


def is_draining(error: grpc.RpcError) -> bool:
    """Tell whether a server says that it is being stopped; a lie possibly."""
    trailers: Any = error.trailing_metadata() or ()
    for key, value in trailers:
        if key == _DETAIL_KEY:
            try:
                return bool(ErrorDetail.FromString(value).code == _DRAINING)
            except Exception:  # noqa: BLE001 - protobuf raises more than one class
                return False
    return False


def refusal(error: grpc.RpcError, address: str, server: int | None) -> MksearchError:
    """Return the error for a call that a server ended with a status of its own.

    Args:
        error: of gRPC; a status that is no lack of connection.
        address: of the server.
        server: its id.
    """
    code = error.code()
    trailers: Any = error.trailing_metadata() or ()
    for key, value in trailers:
        if key == _DETAIL_KEY:
            try:
                detail = ErrorDetail.FromString(value)
            except Exception:  # noqa: BLE001 - protobuf raises more than one class
                return FormatError(f"{address} sent a damaged error", server=server)
            if code is grpc.StatusCode.RESOURCE_EXHAUSTED and detail.code == _BUSY:
                return ServerBusy(
                    detail.message or "busy",
                    retry_after_ms=max(1, detail.retry_after_ms),
                    server=server,
                )
            return ServerRefused(
                detail.message or "no reason given",
                detail_code=detail.code,
                cure=detail.cure,
                server=server,
            )
    return ServerRefused(f"{address}: {code.name.lower()}", detail_code="status", server=server)
