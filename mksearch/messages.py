"""Requests and answers between a client and a server, as the core sees them.

They carry no transport: the wire converter turns them into protobuf and back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "AnyRequest",
    "RecordAnswer",
    "RecordRequest",
    "ScoreAnswer",
    "ScoreRequest",
    "SelectAnswer",
    "SelectRequest",
    "Ticket",
]


@dataclass(frozen=True, slots=True)
class Ticket:
    """What shows that a member of a group asks.

    Attributes:
        time_s: when it was signed, Unix seconds.
        signature: Ed25519 by the group's search key, 64 bytes.
    """

    time_s: int
    signature: bytes


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRequest:
    """Ask one server for the products of a level's rows, or of named blocks, with a query share.

    Attributes:
        query_id: 16 random bytes, the same for all servers of one attempt.
        version: version of the collection.
        segment: segment id, 32 bytes.
        level: level of the tree.
        shares: uint16 (n_vectors, columns), below p: this server's share.
        answer_shape: (n_vectors, physical rows, tables) that the answer must have; not sent, it
            tells the receiver of the answer when to stop.
        ticket: where the group has a search key.
        blocks: the blocks to score, ascending and each once; () scores the whole level.
    """

    query_id: bytes
    version: int
    segment: bytes
    level: int
    shares: NDArray[np.uint16]
    answer_shape: tuple[int, int, int] | None = None
    ticket: Ticket | None = None
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ScoreAnswer:
    """One server's answer share.

    Attributes:
        query_id: that of the request.
        sums: uint16 (n_vectors, physical rows, tables), below p; rows of named blocks in the order
            of the blocks.
        signature: of the server over request and answer, 64 bytes; b"" where none came along.
    """

    query_id: bytes
    sums: NDArray[np.uint16]
    signature: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class RecordRequest:
    """Ask one server for record slots by number: it sees which.

    Attributes:
        version: version of the collection.
        segment: segment id, 32 bytes.
        slots: int64 (n,), physical slots.
        slot_width: elements that a slot must have; not sent, like ``answer_shape`` above.
        query_id: 16 random bytes where there is a ticket.
        ticket: where the group has a search key.
    """

    version: int
    segment: bytes
    slots: NDArray[np.int64]
    slot_width: int | None = None
    query_id: bytes = b""
    ticket: Ticket | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RecordAnswer:
    """Record slots as stored.

    Attributes:
        elements: uint16 (n, slot width), in the order of the request.
    """

    elements: NDArray[np.uint16]


@dataclass(frozen=True, slots=True, eq=False)
class SelectRequest:
    """Ask one server for groups of record slots by shared selectors: it does not see which.

    Attributes:
        query_id: 16 random bytes, the same for all servers of one attempt.
        version: version of the collection.
        segment: segment id, 32 bytes.
        selectors: uint16 (n_fetches, groups), below p: this server's share.
        answer_shape: (n_fetches, slots of a group, slot width) that the answer must have; not sent.
        ticket: where the group has a search key.
    """

    query_id: bytes
    version: int
    segment: bytes
    selectors: NDArray[np.uint16]
    answer_shape: tuple[int, int, int] | None = None
    ticket: Ticket | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SelectAnswer:
    """One server's share of the groups of slots that were selected.

    Attributes:
        query_id: that of the request.
        elements: uint16 (n_fetches, slots of a group, slot width), below p.
        signature: of the server over request and answer, 64 bytes; b"" where none came along.
    """

    query_id: bytes
    elements: NDArray[np.uint16]
    signature: bytes = b""


#: What a member signs.
AnyRequest = ScoreRequest | RecordRequest | SelectRequest
