"""Answers on their way out: bounded in what they hold and in how long clients may leave them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeVar

from mksearch_server.log import log_event
from mksearch_server.status import BusyError

__all__ = ["Sending"]

_T = TypeVar("_T")
#: Bytes that answers may hold before further requests are told to come back.
HELD_BYTES_MAX = 1 << 28
#: Seconds that a client may take for one message: about 35 kB/s at the least.
PATIENCE_S = 30.0
_RETRY_MS = 1000


class Sending:
    """What the answers of one process hold while clients read them.

    Attributes:
        n_held_bytes: held now.
    """

    def __init__(
        self, *, held_bytes_max: int = HELD_BYTES_MAX, patience_s: float = PATIENCE_S
    ) -> None:
        """Bound what is held.

        Args:
            held_bytes_max: bytes from which on further requests are refused.
            patience_s: seconds that one message may wait for its client.
        """
        self.n_held_bytes = 0
        self._held_bytes_max = held_bytes_max
        self._patience_s = patience_s

    def require_room(self) -> None:
        """Raise BusyError while clients that do not read fill the memory for answers."""
        if self.n_held_bytes >= self._held_bytes_max:
            raise BusyError(
                f"{self.n_held_bytes} bytes of answers wait for clients to read them",
                retry_after_ms=_RETRY_MS,
            )

    async def send(self, context: Any, n_bytes: int, messages: Iterable[_T]) -> AsyncIterator[_T]:
        """Yield ``messages``, which hold ``n_bytes`` bytes; end the call of a client that stops.

        Args:
            context: of the call.
            n_bytes: bytes that they hold until the last one is sent.
            messages: of one answer, or of a piece of it.
        """
        held = _Held(self, n_bytes)
        # A generator that nobody goes on with is closed some time later; the call ends at once.
        context.add_done_callback(held.release)
        try:
            for message in messages:
                held.watch(self._patience_s)
                yield message
        finally:
            held.release()


class _Held:
    """The bytes of one answer, and the clock that runs while its client does not read."""

    def __init__(self, sending: Sending, n_bytes: int) -> None:
        self._sending = sending
        self._n_bytes = n_bytes
        self._call = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        sending.n_held_bytes += n_bytes

    def watch(self, patience_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(patience_s, self._give_up)

    def _give_up(self) -> None:
        log_event("client-stopped-reading")
        if self._call is not None:
            self._call.cancel()

    def release(self, _context: object = None) -> None:
        self._sending.n_held_bytes -= self._n_bytes
        self._n_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
        # It is part of the call: keeping it would keep the call.
        self._call = None
