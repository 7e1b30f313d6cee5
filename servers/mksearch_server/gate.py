"""Who may ask: requests that no member signed, late ones and replays go no further (13.4).

Nothing here looks at the index, and what is remembered is bounded.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from mksearch.crypto.tickets import verify_ticket
from mksearch.errors import FormatError, ParameterError, StorageError, VerificationError
from mksearch.messages import AnyRequest, Ticket
from mksearch.params import CLOCK_S
from mksearch_server.status import BusyError

__all__ = ["CLOCK_S", "REASONS", "QueryGate", "QueryRefused", "reason_of"]

#: Seconds that a query id is remembered: as long as its time can pass.
_REMEMBERED_S = 2 * CLOCK_S
#: Query ids remembered at most: some 30 MB.
IDS_MAX = 1 << 18

#: Why a query may be refused, and what that means.
REASONS: Final[Mapping[str, str]] = {
    "unsigned": "no member signed it",
    "ahead": "its time is too far ahead of this server's clock",
    "behind": "its time is too far behind this server's clock",
    "forged": "its signature is not a member's, for this server and this request",
    "replayed": "it came before",
    "busy": "too many requests wait, or came lately",
    "malformed": "its bytes are not a message",
    "unfit": "of a version, segment, level or shape that is not served here",
    "nothing-served": "nothing was published here",
    "internal": "a fault of this server",
}


class QueryRefused(VerificationError):
    """A query that no member asked, now, for the first time; ``reason`` is one of ``REASONS``."""

    def __init__(self, message: str, *, reason: str, cure: str = "") -> None:
        super().__init__(message, cure=cure)
        self.reason = reason


def reason_of(error: Exception) -> str:
    """Return which of ``REASONS`` an error that ended a query is."""
    if isinstance(error, QueryRefused):
        return error.reason
    for kind, reason in (
        (BusyError, "busy"),
        (FormatError, "malformed"),
        (ParameterError, "unfit"),
        (VerificationError, "forged"),
        (StorageError, "nothing-served"),
    ):
        if isinstance(error, kind):
            return reason
    return "internal"


class QueryGate:
    """Lets pass what a member of the group signed, once."""

    def __init__(
        self, server: int, *, ids_max: int = IDS_MAX, clock: Callable[[], float] = time.time
    ) -> None:
        """Guard ``server``.

        Args:
            server: id of this server.
            ids_max: query ids remembered.
            clock: Unix seconds.
        """
        self._server = server
        self._ids_max = ids_max
        self._clock = clock
        self._seen: OrderedDict[bytes, float] = OrderedDict()

    def require_current(self, search_key: bytes, ticket: Ticket | None) -> None:
        """Refuse what needs no look at the request itself (13.4.1, 13.4.2).

        Args:
            search_key: of the group asked; b"" for a group that anybody may ask.
            ticket: as it came, None without one.

        Raises:
            QueryRefused: it is missing, or its time is far from this server's.
        """
        if not search_key:
            return
        if ticket is None:
            raise QueryRefused(
                "a query that no member signed",
                reason="unsigned",
                cure="enrol, and search with that profile",
            )
        # Not rounded: a query id is forgotten as soon as its time cannot pass any more.
        off_s = ticket.time_s - self._clock()
        if abs(off_s) > CLOCK_S:
            side = "ahead of" if off_s > 0 else "behind"
            raise QueryRefused(
                f"a query is {abs(off_s):.0f} s {side} this server's clock (at most {CLOCK_S})",
                reason="ahead" if off_s > 0 else "behind",
                cure="set the clock of the client, or of the server",
            )

    def enter(self, search_key: bytes, request: AnyRequest) -> None:
        """Let a request pass, and no other of its id (13.4.1 to 13.4.4).

        Raises:
            VerificationError: it is not signed, not current, or was here before.
            BusyError: too many queries are remembered to tell whether it was.
        """
        if not search_key:
            return
        self.require_current(search_key, request.ticket)
        if request.ticket is not None:
            verify_ticket(search_key, self._server, request, request.ticket)
        now_s = self._clock()
        while self._seen and next(iter(self._seen.values())) < now_s - _REMEMBERED_S:
            self._seen.popitem(last=False)
        if request.query_id in self._seen:
            raise QueryRefused(
                "a query came twice: a replay",
                reason="replayed",
                cure="ask again; every request is signed anew",
            )
        if len(self._seen) >= self._ids_max:
            raise BusyError(
                f"{len(self._seen)} queries came within {_REMEMBERED_S} s", retry_after_ms=1000
            )
        self._seen[request.query_id] = now_s

    def forget(self, request: AnyRequest) -> None:
        """Let a request that was not answered come again."""
        self._seen.pop(request.query_id, None)
