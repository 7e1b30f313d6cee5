"""Signed queries (section 13.4)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from . import evidence
from .codec import u32, u64
from .refused import require
from .shares import require_signature, sign

LABEL = "mksearch/1/query"
CLOCK_S = 120
REMEMBERED_S = 240


class RecordRequest(NamedTuple):
    """Which slots of a segment a server is asked for."""

    query_id: bytes
    version: int
    segment: bytes
    slots: Sequence[int]


class Ticket(NamedTuple):
    """What a member adds to a request."""

    time_s: int
    signature: bytes


def asked(request: evidence.Request | RecordRequest) -> bytes:
    """Return the bytes of a request that are hashed."""
    if isinstance(request, evidence.Request):
        return evidence.asked(request)
    head = b"records\x00" + request.query_id + u64(request.version) + request.segment
    return head + u32(len(request.slots)) + b"".join(map(u64, request.slots))


def message(server: int, request: evidence.Request | RecordRequest, time_s: int) -> bytes:
    """Return what is signed, without the label."""
    return u32(server) + hashlib.sha256(asked(request)).digest() + u64(time_s)


def ticket(
    server: int, request: evidence.Request | RecordRequest, time_s: int, search_key: bytes
) -> Ticket:
    """Sign a request with the search key of a bundle."""
    return Ticket(time_s, sign(LABEL, message(server, request, time_s), search_key))


class Gate:
    """What one server lets pass."""

    def __init__(self, server: int, search_key: bytes) -> None:
        """Guard a group with this public search key."""
        self.server = server
        self.search_key = search_key
        self.seen: dict[bytes, float] = {}

    def enter(
        self, request: evidence.Request | RecordRequest, shown: Ticket | None, now_s: float
    ) -> None:
        """Let a request pass; refuse at 13.4.1 to 13.4.4."""
        require(shown is not None, "13.4.1", "not signed")
        assert shown is not None
        require(abs(shown.time_s - now_s) <= CLOCK_S, "13.4.2", "another time")
        said = message(self.server, request, shown.time_s)
        require_signature(LABEL, said, shown.signature, self.search_key, "13.4.3")
        before = self.seen.get(request.query_id)
        is_replay = before is not None and now_s - before <= REMEMBERED_S
        require(not is_replay, "13.4.4", "a replay")
        self.seen[request.query_id] = now_s
