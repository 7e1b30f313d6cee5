"""Sizes of a search's messages on the wire, without the large arrays that would be in them."""

from __future__ import annotations

import numpy as np

from mksearch.crypto.signature import SIGNATURE_BYTES
from mksearch.messages import RecordRequest, ScoreAnswer, ScoreRequest, Ticket
from mksearch.params import KEY_BYTES, MAX_RECORDS
from mksearch.wire import convert

__all__ = [
    "record_answer_bytes",
    "record_request_bytes",
    "score_answer_bytes",
    "score_request_bytes",
]

#: What gRPC puts before every message.
_PREFIX_BYTES = 5
_ID = bytes(16)
_SEGMENT = bytes([1]) * KEY_BYTES
_TICKET = Ticket(1_800_000_000, bytes([1]) * SIGNATURE_BYTES)
_VERSION = 100


def _field_bytes(n_bytes: int) -> int:
    """Return the bytes of a protobuf field with a number below 16 that holds ``n_bytes``."""
    return 0 if n_bytes == 0 else 1 + -(-n_bytes.bit_length() // 7) + n_bytes


def _chunked_bytes(n_bytes: int, each: int = 0) -> int:
    """Return the bytes of messages that carry a payload, ``each`` of further fields in each."""
    n_whole, rest = divmod(n_bytes, convert.CHUNK_BYTES)
    n_messages = max(1, n_whole + (rest > 0))
    payload = n_whole * _field_bytes(convert.CHUNK_BYTES) + _field_bytes(rest)
    return payload + n_messages * (_PREFIX_BYTES + each)


def score_request_bytes(n_vectors: int, width: int) -> int:
    """Return the bytes of a signed score request for a level of ``width`` columns."""
    empty = ScoreRequest(
        _ID, _VERSION, _SEGMENT, 0, np.empty((n_vectors, 0), np.uint16), ticket=_TICKET
    )
    (message,) = convert.score_request_messages(empty)
    return message.ByteSize() + _chunked_bytes(2 * n_vectors * width)


def score_answer_bytes(shape: tuple[int, int, int]) -> int:
    """Return the bytes of a signed score answer of (n_vectors, physical rows, tables) sums."""
    n_vectors, n_rows, n_tables = shape
    # The head of so many rows, on an answer that holds none of them.
    empty = ScoreAnswer(_ID, np.empty((0, n_rows, n_tables), np.uint16))
    (message,) = convert.score_answer_messages(empty, _TICKET.signature)
    message.head.n_vectors = n_vectors
    return int(message.ByteSize()) + _chunked_bytes(2 * n_vectors * n_rows * n_tables)


def record_request_bytes(n_slots: int, largest_slot: int) -> int:
    """Return the most bytes of signed requests for ``n_slots`` slots of a segment."""

    def one(n: int) -> int:
        slots = np.full(n, largest_slot, np.int64)
        request = RecordRequest(_VERSION, _SEGMENT, slots, query_id=_ID, ticket=_TICKET)
        return _PREFIX_BYTES + int(convert.record_request_message(request).ByteSize())

    n_whole, rest = divmod(n_slots, MAX_RECORDS)
    return n_whole * one(MAX_RECORDS) + (one(rest) if rest else 0)


def record_answer_bytes(n_slots: int, slot_width: int) -> int:
    """Return the bytes of answers with ``n_slots`` slots of ``slot_width`` elements."""
    # The width is a number of two or three bytes and a tag.
    each = 1 + -(-slot_width.bit_length() // 7)
    return _chunked_bytes(2 * n_slots * slot_width, each)
