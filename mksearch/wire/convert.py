"""Core messages to protobuf and back, in chunks; every received field is proved here.

A receiver knows from the head how many bytes will come and stops at the first byte too many, so
no peer makes it hold more than it asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.signature import SIGNATURE_BYTES
from mksearch.errors import FormatError, ParameterError, ServerRefused
from mksearch.messages import (
    RecordAnswer,
    RecordRequest,
    ScoreAnswer,
    ScoreRequest,
    SelectAnswer,
    SelectRequest,
    Ticket,
)
from mksearch.params import BLOCKS_MAX, FETCH_CLASSES, KEY_BYTES, MAX_RECORDS, VECTOR_CLASSES, P
from mksearch.wire.v1 import search_pb2 as pb

__all__ = [
    "CHUNK_BYTES",
    "REQUESTS_MAX",
    "Gathering",
    "chunks",
    "packed",
    "record_answer",
    "record_answer_messages",
    "record_request",
    "record_request_message",
    "record_requests",
    "record_requests_message",
    "score_answer",
    "score_answer_messages",
    "score_head",
    "score_request",
    "score_request_messages",
    "select_answer",
    "select_answer_messages",
    "select_head",
    "select_request",
    "select_request_messages",
    "ticket",
    "unpacked",
]

#: Payload of one message: below gRPC's default limit of 4 MiB, and as fast as larger ones.
CHUNK_BYTES = 1 << 20
#: Requests of one call, a segment each.
REQUESTS_MAX = 64
#: Messages that may travel in another one: more than the requests and pieces of one call.
_FURTHER_MAX = 4 * REQUESTS_MAX
_QUERY_ID_BYTES = 16
#: Messages of one call that travel in one another; a message costs about as much as 100 kB.
_Packing = TypeVar("_Packing", pb.ScoreRequest, pb.ScoreResponse, pb.GetRecordsResponse)


def chunks(data: bytes | memoryview) -> Iterator[bytes]:
    """Cut ``data`` into pieces of at most 1 MiB; one empty piece for no data."""
    view = memoryview(data)
    yield bytes(view[:CHUNK_BYTES])
    for start in range(CHUNK_BYTES, len(view), CHUNK_BYTES):
        yield bytes(view[start : start + CHUNK_BYTES])


class Gathering:
    """Joins chunks of a payload whose size is known beforehand."""

    def __init__(self, n_bytes: int, what: str) -> None:
        self._data = bytearray()
        self._n_bytes = n_bytes
        self._what = what

    def add(self, piece: bytes) -> None:
        """Take the next chunk.

        Raises:
            FormatError: more came than the head announced.
        """
        if len(self._data) + len(piece) > self._n_bytes:
            raise FormatError(f"{self._what} has more than the {self._n_bytes} bytes announced")
        self._data += piece

    @property
    def is_whole(self) -> bool:
        """Tell whether all that was announced is here."""
        return len(self._data) == self._n_bytes

    def elements(self, shape: tuple[int, ...]) -> NDArray[np.uint16]:
        """Return the whole payload as field elements: uint16 of ``shape``, below p.

        Raises:
            FormatError: bytes are missing, or an element is p or more.
        """
        if len(self._data) != self._n_bytes:
            raise FormatError(f"{self._what} has {len(self._data)} bytes (need {self._n_bytes})")
        values = np.frombuffer(bytes(self._data), "<u2").reshape(shape)
        if values.size and int(values.max()) >= P:
            raise FormatError(f"{self._what} holds an element that is not below {P}")
        return values


def packed(messages: Iterable[_Packing]) -> Iterator[_Packing]:
    """Put messages into one another, as long as that makes no large ones."""
    first: _Packing | None = None
    n_bytes = 0
    for message in messages:
        size = message.ByteSize()
        if first is not None and n_bytes + size <= CHUNK_BYTES:
            first.further.append(message)
            n_bytes += size
            continue
        if first is not None:
            yield first
        first, n_bytes = message, size
    if first is not None:
        yield first


def unpacked(message: _Packing) -> Iterator[_Packing]:
    """Yield a message as received and those that travelled in it.

    Raises:
        FormatError: messages within those, or more of them than any call has.
    """
    if len(message.further) > _FURTHER_MAX or any(one.further for one in message.further):
        raise FormatError(f"a message came with {len(message.further)} or more in it")
    yield message
    yield from message.further


def _require_length(value: bytes, n_bytes: int, what: str) -> bytes:
    if len(value) != n_bytes:
        raise FormatError(f"{what} has {len(value)} bytes (need {n_bytes})")
    return value


# --- scoring ---------------------------------------------------------------------------------


def _ticket_fields(ticket: Ticket | None) -> dict[str, Any]:
    return {} if ticket is None else {"time": ticket.time_s, "signature": ticket.signature}


def ticket(
    message: pb.ScoreRequestHead | pb.GetRecordsRequest | pb.SelectRequestHead,
) -> Ticket | None:
    """Return the ticket of a request, None without one.

    Raises:
        ParameterError: the signature has another length.
    """
    if not message.signature:
        return None
    if len(message.signature) != SIGNATURE_BYTES:
        raise ParameterError(
            f"a signature has {len(message.signature)} bytes (need {SIGNATURE_BYTES})"
        )
    return Ticket(message.time, message.signature)


def _require_names(head: pb.ScoreRequestHead | pb.SelectRequestHead) -> None:
    for value, n_bytes, what in (
        (head.query_id, _QUERY_ID_BYTES, "a query id"),
        (head.segment, KEY_BYTES, "a segment id"),
    ):
        if len(value) != n_bytes:
            raise ParameterError(f"{what} has {len(value)} bytes (need {n_bytes})")


def score_request_messages(request: ScoreRequest) -> Iterator[pb.ScoreRequest]:
    """Yield the messages of a score request."""
    head: pb.ScoreRequestHead | None = pb.ScoreRequestHead(
        query_id=request.query_id,
        version=request.version,
        segment=request.segment,
        level=request.level,
        n_vectors=len(request.shares),
        blocks=request.blocks,
        **_ticket_fields(request.ticket),
    )
    for piece in chunks(request.shares.astype("<u2").tobytes()):
        yield pb.ScoreRequest(head=head, shares=piece)
        head = None


def score_head(head: pb.ScoreRequestHead) -> pb.ScoreRequestHead:
    """Return a received head after proving its fields.

    Raises:
        ParameterError: a field is out of range.
    """
    _require_names(head)
    if head.n_vectors not in VECTOR_CLASSES:
        raise ParameterError(f"{head.n_vectors} vectors came (1, 2 or 4 are possible)")
    if len(head.blocks) > BLOCKS_MAX:
        raise ParameterError(f"{len(head.blocks)} blocks are named (at most {BLOCKS_MAX})")
    return head


def score_request(head: pb.ScoreRequestHead, shares: NDArray[np.uint16]) -> ScoreRequest:
    """Return the core's request: ``shares`` is uint16 (n_vectors, columns)."""
    return ScoreRequest(
        head.query_id,
        head.version,
        head.segment,
        head.level,
        shares,
        ticket=ticket(head),
        blocks=tuple(head.blocks),
    )


def score_answer_messages(answer: ScoreAnswer, signature: bytes) -> Iterator[pb.ScoreResponse]:
    """Yield the messages of a score answer, the signature (64 bytes) in the last."""
    n_vectors, n_rows, n_tables = answer.sums.shape
    head: pb.ScoreResponseHead | None = pb.ScoreResponseHead(
        query_id=answer.query_id, n_vectors=n_vectors, n_rows=n_rows, n_tables=n_tables
    )
    *pieces, last = chunks(answer.sums.astype("<u2", copy=False).tobytes())
    for piece in pieces:
        yield pb.ScoreResponse(head=head, sums=piece)
        head = None
    yield pb.ScoreResponse(head=head, sums=last, signature=signature)


def score_answer(
    messages: Iterable[pb.ScoreResponse],
    shape: tuple[int, int, int],
    *,
    is_one_of_many: bool = False,
    is_of_blocks: bool = False,
) -> tuple[ScoreAnswer, bytes]:
    """Join a score answer; return it and the signature.

    Args:
        messages: as received.
        shape: (n_vectors, physical rows, tables) that was asked for.
        is_one_of_many: what is behind its signature is the next answer.
        is_of_blocks: blocks were named.

    Raises:
        FormatError: the head announces another shape, or bytes are missing or too many.
        ServerRefused: it announces more rows than the named blocks have, as releases do that know
            of whole levels only.
    """
    gathering = Gathering(2 * int(np.prod(shape)), "a score answer")
    head: pb.ScoreResponseHead | None = None
    signature = b""
    for message in messages:
        if head is None:
            head = message.head
            announced = (head.n_vectors, head.n_rows, head.n_tables)
            if is_of_blocks and head.n_rows > shape[1]:
                raise ServerRefused(
                    f"{head.n_rows} rows came for named blocks of {shape[1]} rows",
                    detail_code="blocks",
                    cure="ask its operator for a newer release, or search with --privacy balanced",
                )
            if announced != shape:
                raise FormatError(f"a score answer of shape {announced} came (need {shape})")
        gathering.add(message.sums)
        signature = message.signature
        if signature and is_one_of_many:
            break
    if head is None:
        raise FormatError("an empty score answer came")
    return ScoreAnswer(head.query_id, gathering.elements(shape)), signature


# --- records ---------------------------------------------------------------------------------


def record_request_message(request: RecordRequest) -> pb.GetRecordsRequest:
    """Return the message of a record request."""
    return pb.GetRecordsRequest(
        version=request.version,
        segment=request.segment,
        slots=request.slots.tolist(),
        query_id=request.query_id,
        **_ticket_fields(request.ticket),
    )


def record_requests_message(requests: Sequence[RecordRequest]) -> pb.GetRecordsRequest:
    """Return the message of record requests for one segment each, at least one."""
    first, *others = map(record_request_message, requests)
    first.further.extend(others)
    return first


def record_requests(message: pb.GetRecordsRequest) -> list[RecordRequest]:
    """Return the core's requests, at least one.

    Raises:
        ParameterError: too many of them or of their slots, or as for ``record_request``.
    """
    every = [message, *message.further]
    if len(every) > REQUESTS_MAX or sum(len(one.slots) for one in every) > MAX_RECORDS:
        raise ParameterError(
            f"{len(every)} record requests came at once, or more than {MAX_RECORDS} slots "
            f"(at most {REQUESTS_MAX})"
        )
    if any(one.further for one in message.further):
        raise ParameterError("a record request has requests within requests")
    return [record_request(one) for one in every]


def record_request(message: pb.GetRecordsRequest) -> RecordRequest:
    """Return the core's request.

    Raises:
        ParameterError: too many slots, or a number that no slot has.
    """
    if len(message.slots) > MAX_RECORDS:
        raise ParameterError(f"{len(message.slots)} slots asked for (at most {MAX_RECORDS})")
    if any(slot >= 1 << 32 for slot in message.slots):
        raise ParameterError("a slot number does not fit in 32 bits")
    signed = ticket(message)
    if len(message.query_id) != (0 if signed is None else _QUERY_ID_BYTES):
        raise ParameterError(f"a query id has {len(message.query_id)} bytes")
    return RecordRequest(
        message.version,
        message.segment,
        np.array(message.slots, np.int64),
        query_id=message.query_id,
        ticket=signed,
    )


def record_answer_messages(answer: RecordAnswer) -> Iterator[pb.GetRecordsResponse]:
    """Yield the messages of a record answer."""
    width = answer.elements.shape[1]
    for piece in chunks(answer.elements.astype("<u2", copy=False).tobytes()):
        yield pb.GetRecordsResponse(slot_width=width, elements=piece)


def record_answer(
    messages: Iterable[pb.GetRecordsResponse],
    n_slots: int,
    slot_width: int,
    *,
    is_one_of_many: bool = False,
) -> RecordAnswer:
    """Join a record answer of ``n_slots`` slots of ``slot_width`` elements.

    Args:
        messages: as received.
        n_slots: slots asked for, at least 1.
        slot_width: elements of a slot.
        is_one_of_many: what is behind them is the next answer.

    Raises:
        FormatError: another width, bytes missing or too many.
    """
    gathering = Gathering(2 * n_slots * slot_width, "a record answer")
    for message in messages:
        if message.slot_width != slot_width:
            raise FormatError(f"slots of {message.slot_width} elements came (need {slot_width})")
        gathering.add(message.elements)
        if is_one_of_many and gathering.is_whole:
            break
    return RecordAnswer(gathering.elements((n_slots, slot_width)))


# --- records by selectors ----------------------------------------------------------------------


def select_request_messages(request: SelectRequest) -> Iterator[pb.SelectRequest]:
    """Yield the messages of a request with selectors."""
    head: pb.SelectRequestHead | None = pb.SelectRequestHead(
        query_id=request.query_id,
        version=request.version,
        segment=request.segment,
        n_fetches=len(request.selectors),
        **_ticket_fields(request.ticket),
    )
    for piece in chunks(request.selectors.astype("<u2", copy=False).tobytes()):
        yield pb.SelectRequest(head=head, selectors=piece)
        head = None


def select_head(head: pb.SelectRequestHead) -> pb.SelectRequestHead:
    """Return a received head after proving its fields.

    Raises:
        ParameterError: a field is out of range.
    """
    _require_names(head)
    if head.n_fetches not in FETCH_CLASSES:
        raise ParameterError(f"{head.n_fetches} fetches came (need one of {FETCH_CLASSES})")
    return head


def select_request(head: pb.SelectRequestHead, selectors: NDArray[np.uint16]) -> SelectRequest:
    """Return the core's request: ``selectors`` is uint16 (n_fetches, groups)."""
    return SelectRequest(head.query_id, head.version, head.segment, selectors, ticket=ticket(head))


def select_answer_messages(answer: SelectAnswer, signature: bytes) -> Iterator[pb.SelectResponse]:
    """Yield the messages of an answer, the signature (64 bytes) in the last."""
    n_fetches, group_slots, slot_width = answer.elements.shape
    head: pb.SelectResponseHead | None = pb.SelectResponseHead(
        query_id=answer.query_id,
        n_fetches=n_fetches,
        group_slots=group_slots,
        slot_width=slot_width,
    )
    *pieces, last = chunks(answer.elements.astype("<u2", copy=False).tobytes())
    for piece in pieces:
        yield pb.SelectResponse(head=head, elements=piece)
        head = None
    yield pb.SelectResponse(head=head, elements=last, signature=signature)


def select_answer(
    messages: Iterable[pb.SelectResponse],
    shape: tuple[int, int, int],
    *,
    is_one_of_many: bool = False,
) -> tuple[SelectAnswer, bytes]:
    """Join an answer of selected slots; return it and the signature.

    Args:
        messages: as received.
        shape: (n_fetches, slots of a group, slot width) that was asked for.
        is_one_of_many: what is behind its signature is the next answer.

    Raises:
        FormatError: the head announces another shape, or bytes are missing or too many.
    """
    gathering = Gathering(2 * int(np.prod(shape)), "an answer of selected slots")
    head: pb.SelectResponseHead | None = None
    signature = b""
    for message in messages:
        if head is None:
            head = message.head
            announced = (head.n_fetches, head.group_slots, head.slot_width)
            if announced != shape:
                raise FormatError(f"selected slots of shape {announced} came (need {shape})")
        gathering.add(message.elements)
        signature = message.signature
        if signature and is_one_of_many:
            break
    if head is None:
        raise FormatError("an empty answer of selected slots came")
    return SelectAnswer(head.query_id, gathering.elements(shape)), signature
