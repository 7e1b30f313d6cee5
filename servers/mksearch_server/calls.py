"""Every call of the product's services: counted, and refused while the server is being stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from mksearch.wire.v1.error_pb2 import ErrorDetail
from mksearch_server.handlers import wrap_handler
from mksearch_server.metrics import CALLS, NO_CODE, UNKNOWN, Metrics
from mksearch_server.status import DETAIL_KEY, DrainingError, status_of

__all__ = ["Calls", "CountingInterceptor", "give_status"]

_STATUSES = {status.value[0]: status for status in grpc.StatusCode}


def give_status(context: Any, error: Exception) -> grpc.StatusCode:
    """Give a call the status and the detail of the table; return the status.

    gRPC's ``abort`` would do it as well, but the exception that it raises lies in a cycle with the
    call, and every message that was read ahead for it stays in memory until a collection.
    """
    code, detail = status_of(error)
    context.set_trailing_metadata(((DETAIL_KEY, detail.SerializeToString()),))
    context.set_code(code)
    context.set_details(detail.message)
    return code


@dataclass(slots=True)
class _Call:
    """One call.

    Attributes:
        is_taken: it was not refused at once.
        is_whole: it ran to its end; its client went away from one that did not.
    """

    is_taken: bool
    is_whole: bool = False


class Calls:
    """The calls under way; used on the event loop alone.

    Attributes:
        n_running: how many there are.
        is_draining: further ones are refused.
    """

    def __init__(self, metrics: Metrics) -> None:
        """Count in ``metrics``."""
        self._metrics = metrics
        self.n_running = 0
        self.is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self, name: str, context: Any) -> _Call:
        """Count a call of a method until it ends; refuse it while the server is being stopped."""
        call = _Call(is_taken=not self.is_draining)
        ended = self._metrics.call_began(name)
        self.n_running += 1
        self._idle.clear()

        def end(context: Any) -> None:
            self.n_running -= 1
            if not self.n_running:
                self._idle.set()
            ended(*_outcome(context, call))

        context.add_done_callback(end)
        if not call.is_taken:
            give_status(context, DrainingError())
        return call

    def unknown(self) -> None:
        """Count a call of no method that there is."""
        self._metrics.call_began(UNKNOWN)(grpc.StatusCode.UNIMPLEMENTED.name, NO_CODE)

    async def idle(self, within_s: float) -> bool:
        """Wait until no call is under way; return whether that was in time."""
        try:
            await asyncio.wait_for(self._idle.wait(), within_s)
        except TimeoutError:
            return False
        return True


def _outcome(context: Any, call: _Call) -> tuple[str, str]:
    """Return status and code that a call ended with."""
    if not call.is_whole:
        return grpc.StatusCode.CANCELLED.name, NO_CODE
    found = context.code() or grpc.StatusCode.OK
    status = found if isinstance(found, grpc.StatusCode) else _STATUSES.get(found)
    code = NO_CODE
    for key, value in context.trailing_metadata() or ():
        if key == DETAIL_KEY:
            try:
                code = ErrorDetail.FromString(value).code
            except DecodeError:
                code = UNKNOWN
    return UNKNOWN if status is None else status.name, code


class CountingInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Has every call of our services counted, and refused when the server ends."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler of the method that is called."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        name = CALLS.get(method)
        if handler is None:
            self._calls.unknown()
        if handler is None or name is None:
            return handler
        return wrap_handler(handler, partial(self._one, name), partial(self._many, name))

    def _one(self, name: str, answer: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        async def counted(request: Any, context: Any) -> Any:
            call = self._calls.begin(name, context)
            answered = await answer(request, context) if call.is_taken else None
            call.is_whole = True
            return answered

        return counted

    def _many(self, name: str, answer: Callable[[Any, Any], Any]) -> Any:
        async def counted(request: Any, context: Any) -> AsyncIterator[Any]:
            call = self._calls.begin(name, context)
            if call.is_taken:
                async with aclosing(answer(request, context)) as messages:
                    async for message in messages:
                        yield message
            call.is_whole = True

        return counted
