"""Requests that are no messages of the protocol are refused like all others: in our words.

gRPC would answer them with its own text about the inside of the server, and log a traceback.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from mksearch.errors import FormatError

__all__ = ["DecodingInterceptor"]

_OWN_METHODS = "/mksearch."


class _Broken:
    """Stands for a message that could not be decoded: whoever looks at it gets the error."""

    def __getattr__(self, _name: str) -> NoReturn:
        raise FormatError(
            "the request is not a message of this protocol", cure="use a client of this release"
        )


def _lenient(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decode_or_mark(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError:
            return _Broken()

    return decode_or_mark


class DecodingInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Has the methods themselves meet what cannot be decoded, as they name every error."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler of the method that is called."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(_OWN_METHODS):
            return handler
        return handler._replace(request_deserializer=_lenient(handler.request_deserializer))
