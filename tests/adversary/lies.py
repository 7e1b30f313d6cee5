"""Every lie that the protocol lets a server tell, each with random parameters.

``LIES`` holds them by name.  ``content`` is about arrays and bytes, which the server then signs, as
its own key allows; ``wire`` about messages, statuses and trailers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.evidence import AnswerSigner
from mksearch.messages import RecordAnswer, RecordRequest, ScoreAnswer, ScoreRequest
from mksearch.params import P
from mksearch.wire import convert
from mksearch.wire.v1 import owner_pb2, search_pb2
from mksearch.wire.v1.error_pb2 import ErrorDetail
from mksearch_server.status import DETAIL_KEY
from tests.adversary.malicious_server import Exchange, Lie, MaliciousServer, Messages

__all__ = ["CALLS", "LIES", "lies_of"]

#: Calls of a search and of opening a document.
CALLS = ("GetManifest", "Score", "GetRecords", "ReadObject")
_BAD = frozenset({"lied", "refused", "unreachable"})
_PERHAPS = _BAD | {"ok"}
#: Calls with one answer: gRPC's client looks at no second one and waits for the end.
_UNARY = ("GetManifest", "GetInfo")
_SECOND = ("noise", "each_twice", "all_twice")
_UNHEARD = frozenset({"unreachable"})
_DRIP_S = 0.02
_LONG_S = 3600.0
#: Makes a generator of a function that yields nothing.
_NO_MESSAGES: tuple[bytes, ...] = ()

Sums = NDArray[np.uint16]


# --- sums ----------------------------------------------------------------------------------------


def _changed(change: Callable[[MaliciousServer, ScoreRequest, Sums], Sums]) -> Any:
    """Make a lie about a score of a function of the honest sums."""

    def content(server: MaliciousServer, asked: ScoreRequest, honest: ScoreAnswer) -> ScoreAnswer:
        return ScoreAnswer(honest.query_id, change(server, asked, honest.sums.copy()))

    return content


def _add(server: MaliciousServer, sums: Sums, at: Any) -> Sums:
    """Add non-zero errors at some places."""
    shape = sums[at].shape
    errors = np.array([server.random.randrange(1, P) for _ in range(int(np.prod(shape)) or 1)])
    sums[at] = (sums[at].astype(np.int64) + errors.reshape(shape)) % P
    return sums


def _place(server: MaliciousServer, sums: Sums) -> tuple[int, int, int]:
    n_vectors, n_rows, n_tables = sums.shape
    draw = server.random.randrange
    return draw(n_vectors), draw(n_rows), draw(n_tables)


def _one_cell(server: MaliciousServer, _asked: ScoreRequest, sums: Sums) -> Sums:
    return _add(server, sums, _place(server, sums))


def _one_row(server: MaliciousServer, _asked: ScoreRequest, sums: Sums) -> Sums:
    vector, row, _ = _place(server, sums)
    return _add(server, sums, (vector, row))


def _one_block(server: MaliciousServer, asked: ScoreRequest, sums: Sums) -> Sums:
    height = server.search.segment(asked.segment).header.layout.block.height
    vector, row, _ = _place(server, sums)
    first = row // height * height
    return _add(server, sums, (vector, slice(first, first + height)))


def _every_row(server: MaliciousServer, _asked: ScoreRequest, sums: Sums) -> Sums:
    return _add(server, sums, ...)


def _constant(server: MaliciousServer, _asked: ScoreRequest, sums: Sums) -> Sums:
    return ((sums.astype(np.int64) + server.random.randrange(1, P)) % P).astype(np.uint16)


def _scaled(server: MaliciousServer, _asked: ScoreRequest, sums: Sums) -> Sums:
    return (sums.astype(np.int64) * server.random.randrange(2, P) % P).astype(np.uint16)


def _zeros(_server: MaliciousServer, _asked: ScoreRequest, sums: Sums) -> Sums:
    return np.zeros_like(sums)


def _rows_exchanged(server: MaliciousServer, _asked: ScoreRequest, sums: Sums) -> Sums:
    a, b = server.random.sample(range(sums.shape[1]), 2)
    sums[:, [a, b]] = sums[:, [b, a]]
    return sums


def _rows_rolled(server: MaliciousServer, _asked: ScoreRequest, sums: Sums) -> Sums:
    return np.roll(sums, server.random.randrange(1, sums.shape[1]), axis=1)


def _tables_exchanged(_server: MaliciousServer, _asked: ScoreRequest, sums: Sums) -> Sums:
    return np.ascontiguousarray(sums[:, :, ::-1])


def _other_segment(server: MaliciousServer, asked: ScoreRequest, _sums: Sums) -> Sums:
    return server.search.score_over(server.material.segments["other"], asked)


def _other_version(server: MaliciousServer, asked: ScoreRequest, _sums: Sums) -> Sums:
    return server.search.score_over(server.material.segments["old"], asked)


def _other_share(server: MaliciousServer, asked: ScoreRequest, _sums: Sums) -> Sums:
    """Answer to a share of its own choice, rightly."""
    shares = np.array(
        [server.random.randrange(P) for _ in range(asked.shares.size)], np.uint16
    ).reshape(asked.shares.shape)
    served = server.search.segment(asked.segment)
    chosen = ScoreRequest(asked.query_id, asked.version, asked.segment, asked.level, shares)
    return server.search.score_over(served, chosen)


def _earlier(server: MaliciousServer, asked: ScoreRequest, sums: Sums) -> Sums:
    """Give the sums of the last request with other shares; of none, sums of its own invention."""
    for request, answer in reversed(server.history):
        if answer.sums.shape == sums.shape and not np.array_equal(request.shares, asked.shares):
            return answer.sums
    return _every_row(server, asked, sums.copy())


def _replayed(server: MaliciousServer, asked: ScoreRequest, sums: Sums) -> Sums:
    return _earlier(server, asked, sums)


def _mixed(server: MaliciousServer, asked: ScoreRequest, sums: Sums) -> Sums:
    """Answer to two queries at once: some rows of each."""
    split = server.random.randrange(1, sums.shape[1])
    sums[:, :split] = _earlier(server, asked, sums)[:, :split]
    return sums


def _replayed_whole(
    server: MaliciousServer, asked: ScoreRequest, honest: ScoreAnswer
) -> ScoreAnswer:
    """Give an earlier answer with its own query id, signed as one to this request."""
    for request, answer in reversed(server.history):
        if request.query_id != asked.query_id:
            return answer
    return ScoreAnswer(server.random.randbytes(16), honest.sums)


def _out_of_range(server: MaliciousServer, _asked: ScoreRequest, sums: Sums) -> Sums:
    sums[_place(server, sums)] = server.random.randrange(P, 1 << 16)
    return sums


def _fewer_rows(server: MaliciousServer, _asked: ScoreRequest, sums: Sums) -> Sums:
    return sums[:, : server.random.randrange(sums.shape[1])]


def _more_rows(server: MaliciousServer, _asked: ScoreRequest, sums: Sums) -> Sums:
    return np.concatenate([sums, sums[:, : server.random.randrange(1, sums.shape[1])]], axis=1)


def _more_tables(_server: MaliciousServer, _asked: ScoreRequest, sums: Sums) -> Sums:
    return np.concatenate([sums, sums], axis=2)


def _more_vectors(_server: MaliciousServer, _asked: ScoreRequest, sums: Sums) -> Sums:
    return np.concatenate([sums, sums])


def _turned(_server: MaliciousServer, _asked: ScoreRequest, sums: Sums) -> Sums:
    return np.ascontiguousarray(sums.transpose(0, 2, 1))


def _no_sums(_server: MaliciousServer, _asked: ScoreRequest, sums: Sums) -> Sums:
    return sums[:, :0]


_SUMS = (
    _one_cell,
    _one_row,
    _one_block,
    _every_row,
    _constant,
    _scaled,
    _zeros,
    _rows_exchanged,
    _rows_rolled,
    _tables_exchanged,
    _other_segment,
    _other_version,
    _other_share,
    _replayed,
    _mixed,
    _out_of_range,
    _fewer_rows,
    _more_rows,
    _more_tables,
    _more_vectors,
    _turned,
    _no_sums,
)


# --- records -------------------------------------------------------------------------------------


def _other_slots(
    server: MaliciousServer, asked: RecordRequest, honest: RecordAnswer
) -> RecordAnswer:
    """Give the records of other rows."""
    n_slots = len(server.search.segment(asked.segment).slots())
    shift = server.random.randrange(1, n_slots)
    slots = server.search.segment(asked.segment).slots()
    return RecordAnswer(np.array(slots[(asked.slots + shift) % n_slots]))


def _slots_swapped(
    server: MaliciousServer, asked: RecordRequest, honest: RecordAnswer
) -> RecordAnswer:
    if len(honest.elements) < 2:
        return _other_slots(server, asked, honest)
    return RecordAnswer(np.roll(honest.elements, 1, axis=0))


def _slots_of(name: str) -> Any:
    def content(
        server: MaliciousServer, asked: RecordRequest, honest: RecordAnswer
    ) -> RecordAnswer:
        slots = server.material.segments[name].slots()
        found = np.array(slots[asked.slots % len(slots)])
        out = np.zeros_like(honest.elements)
        width = min(out.shape[1], found.shape[1])
        out[:, :width] = found[:, :width]
        return RecordAnswer(out)

    return content


def _slot_changed(
    server: MaliciousServer, _asked: RecordRequest, honest: RecordAnswer
) -> RecordAnswer:
    elements = honest.elements.copy()
    # The tags at its end are for another kind of fetch; see protocol, step 8.10.
    row, column = server.random.randrange(len(elements)), server.random.randrange(200)
    elements[row, column] ^= 1 << server.random.randrange(15)
    return RecordAnswer(elements)


def _slot_out_of_range(
    server: MaliciousServer, _asked: RecordRequest, honest: RecordAnswer
) -> RecordAnswer:
    elements = honest.elements.copy()
    elements[server.random.randrange(len(elements)), 0] |= 1 << 15
    return RecordAnswer(elements)


def _slots_zero(
    _server: MaliciousServer, _asked: RecordRequest, honest: RecordAnswer
) -> RecordAnswer:
    return RecordAnswer(np.zeros_like(honest.elements))


def _fewer_slots(
    server: MaliciousServer, _asked: RecordRequest, honest: RecordAnswer
) -> RecordAnswer:
    return RecordAnswer(honest.elements[: server.random.randrange(len(honest.elements))])


def _more_slots(
    _server: MaliciousServer, _asked: RecordRequest, honest: RecordAnswer
) -> RecordAnswer:
    return RecordAnswer(np.concatenate([honest.elements, honest.elements[:1]]))


def _narrow_slots(
    server: MaliciousServer, _asked: RecordRequest, honest: RecordAnswer
) -> RecordAnswer:
    width = server.random.randrange(1, honest.elements.shape[1])
    return RecordAnswer(np.ascontiguousarray(honest.elements[:, :width]))


_RECORDS = {
    "other_slots": _other_slots,
    "slots_swapped": _slots_swapped,
    "slots_of_another_version": _slots_of("old"),
    "slots_of_another_segment": _slots_of("other"),
    "slot_changed": _slot_changed,
    "slot_out_of_range": _slot_out_of_range,
    "slots_zero": _slots_zero,
    "fewer_slots": _fewer_slots,
    "more_slots": _more_slots,
    "narrow_slots": _narrow_slots,
}


# --- manifests -----------------------------------------------------------------------------------


def _shown(name: str) -> Any:
    return lambda server, _asked, _honest: server.material.manifests[name]


def _manifest_changed(server: MaliciousServer, _asked: None, honest: bytes) -> bytes:
    data = bytearray(honest)
    data[server.random.randrange(len(data))] ^= 1 << server.random.randrange(8)
    return bytes(data)


def _manifest_cut(server: MaliciousServer, _asked: None, honest: bytes) -> bytes:
    return honest[: server.random.randrange(len(honest))]


def _manifest_longer(server: MaliciousServer, _asked: None, honest: bytes) -> bytes:
    return honest + server.random.randbytes(server.random.choice((1, 64, 100_000)))


def _manifest_unsigned(_server: MaliciousServer, _asked: None, honest: bytes) -> bytes:
    return honest[:-64] + bytes(64)


# --- objects -------------------------------------------------------------------------------------


def _other_object(server: MaliciousServer, asked: Any, honest: bytes) -> bytes:
    """Give the bytes of another stored object, of the length asked for where there are so many."""
    name, offset, n_bytes = asked
    manifest = server.search._require_active().manifest
    names = [ref.id for ref in manifest.objects()] + [ref.id for ref in manifest.segments()]
    others = [other for other in names if other != name]
    return server.search._store.read(server.random.choice(others), offset, n_bytes)


def _object_changed(server: MaliciousServer, _asked: Any, honest: bytes) -> bytes:
    data = bytearray(honest or b"\0")
    data[server.random.randrange(len(data))] ^= 1 << server.random.randrange(8)
    return bytes(data)


def _object_cut(server: MaliciousServer, _asked: Any, honest: bytes) -> bytes:
    return honest[: server.random.randrange(len(honest) or 1)]


def _object_longer(server: MaliciousServer, _asked: Any, honest: bytes) -> bytes:
    return honest + server.random.randbytes(server.random.choice((1, 1000, 1 << 21)))


def _object_zero(_server: MaliciousServer, _asked: Any, honest: bytes) -> bytes:
    return bytes(len(honest))


_OBJECTS = (_other_object, _object_changed, _object_cut, _object_longer, _object_zero)


# --- messages ------------------------------------------------------------------------------------


async def _all(messages: Messages) -> list[bytes]:
    return [message async for message in messages]


async def _garbage(exchange: Exchange, messages: Messages) -> Messages:
    for message in await _all(messages):
        yield exchange.server.random.randbytes(len(message))


async def _noise(exchange: Exchange, messages: Messages) -> Messages:
    await _all(messages)
    for _ in range(exchange.server.random.randrange(1, 5)):
        yield exchange.server.random.randbytes(exchange.server.random.choice((1, 7, 100, 5000)))


async def _flipped(exchange: Exchange, messages: Messages) -> Messages:
    held = await _all(messages)
    at = exchange.server.random.randrange(len(held))
    data = bytearray(held[at] or b"\0")
    draw = exchange.server.random
    for _ in range(draw.choice((1, 3, 20))):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    held[at] = bytes(data)
    for message in held:
        yield message


async def _nothing(_exchange: Exchange, messages: Messages) -> Messages:
    for _ in await _all(messages):
        continue
    for never in _NO_MESSAGES:
        yield never


async def _without_first(_exchange: Exchange, messages: Messages) -> Messages:
    for message in (await _all(messages))[1:]:
        yield message


async def _without_last(_exchange: Exchange, messages: Messages) -> Messages:
    for message in (await _all(messages))[:-1]:
        yield message


async def _cut(exchange: Exchange, messages: Messages) -> Messages:
    held = await _all(messages)
    longest = max(range(len(held)), key=lambda n: len(held[n]))
    held[longest] = held[longest][: exchange.server.random.randrange(len(held[longest]) or 1)]
    for message in held:
        yield message


async def _each_twice(_exchange: Exchange, messages: Messages) -> Messages:
    async for message in messages:
        yield message
        yield message


async def _all_twice(_exchange: Exchange, messages: Messages) -> Messages:
    for message in (await _all(messages)) * 2:
        yield message


async def _reversed(_exchange: Exchange, messages: Messages) -> Messages:
    held = await _all(messages)
    if len(held) == 1:
        half = len(held[0]) // 2
        held = [held[0][half:] + held[0][:half]]
    for message in reversed(held):
        yield message


async def _oversized(_exchange: Exchange, messages: Messages) -> Messages:
    """Send a message larger than a client takes."""
    await _all(messages)
    yield bytes(8 << 20)


async def _endless_empty(_exchange: Exchange, messages: Messages) -> Messages:
    """Send the answer without its end, then messages of nothing for ever."""
    for message in (await _all(messages))[:-1]:
        yield message
    while True:
        yield b""
        await asyncio.sleep(_DRIP_S)


async def _endless_full(_exchange: Exchange, messages: Messages) -> Messages:
    """Repeat the answer's longest message for ever."""
    held = await _all(messages)
    for message in held:
        yield message
    longest = max(held, key=len)
    while True:
        yield longest
        # Another task may run: the loop is everybody's.
        await asyncio.sleep(0)


async def _drip(exchange: Exchange, messages: Messages) -> Messages:
    """Send the payload one byte after another, with a pause behind each."""
    held = await _all(messages)
    whole = exchange.message.FromString(held[0])
    payload = next((name for name in ("sums", "elements", "data") if hasattr(whole, name)), None)
    if payload is None:
        await asyncio.sleep(_LONG_S)
        return
    for byte in getattr(whole, payload) or b"\0":
        setattr(whole, payload, bytes((byte,)))
        yield whole.SerializeToString()
        await asyncio.sleep(_DRIP_S)
    await asyncio.sleep(_LONG_S)


async def _silence(_exchange: Exchange, messages: Messages) -> Messages:
    async for _ in messages:
        await asyncio.sleep(_LONG_S)
    for never in _NO_MESSAGES:
        yield never


async def _half_then_silence(_exchange: Exchange, messages: Messages) -> Messages:
    for message in (await _all(messages))[:-1]:
        yield message
    await asyncio.sleep(_LONG_S)


async def _half_then_gone(exchange: Exchange, messages: Messages) -> Messages:
    for message in (await _all(messages))[:-1]:
        yield message
    await exchange.context.abort(grpc.StatusCode.UNAVAILABLE, "gone")


async def _cancelled(exchange: Exchange, messages: Messages) -> Messages:
    for message in (await _all(messages))[:-1]:
        yield message
    await exchange.context.abort(grpc.StatusCode.CANCELLED, "cancelled")


_TEXTS = (
    "",
    "ok",
    "server 2 lied and server 3 lied",
    "\x1b[2J\x1b[31mall is well\r\nserver 2 lied",
    "x" * 3000,
    "Traceback (most recent call last)",
    "\u202eright to left",
)


def _detail(exchange: Exchange, retry_after_ms: int = 0) -> tuple[tuple[str, bytes], ...]:
    draw = exchange.server.random.choice
    detail = ErrorDetail(
        code=draw(("busy", "storage", "internal", "publication-under-way", "", "lied", "x" * 200)),
        message=draw(_TEXTS),
        cure=draw(_TEXTS),
        retry_after_ms=retry_after_ms,
    )
    return ((DETAIL_KEY, detail.SerializeToString()),)


async def _any_status(exchange: Exchange, messages: Messages) -> Messages:
    """Refuse with a status, a text and a detail of its own invention."""
    held = await _all(messages)
    draw = exchange.server.random.choice
    for message in held[: draw((0, 0, len(held)))]:
        yield message
    codes = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
    trailers = draw(((), _detail(exchange), ((DETAIL_KEY, b"\xff\xff\xff"),), ((DETAIL_KEY, b""),)))
    exchange.context.set_trailing_metadata(trailers)
    await exchange.context.abort(draw(codes), draw(_TEXTS))


async def _busy_for_years(exchange: Exchange, messages: Messages) -> Messages:
    await _all(messages)
    exchange.context.set_trailing_metadata(
        (
            (
                DETAIL_KEY,
                ErrorDetail(
                    code="busy", message="busy", retry_after_ms=(1 << 32) - 1
                ).SerializeToString(),
            ),
        )
    )
    await exchange.context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
    for never in _NO_MESSAGES:
        yield never


async def _huge_trailers(exchange: Exchange, messages: Messages) -> Messages:
    for message in await _all(messages):
        yield message
    big = exchange.server.random.randbytes(exchange.server.random.choice((9_000, 1 << 20, 3 << 20)))
    exchange.context.set_trailing_metadata(((DETAIL_KEY, big),))
    await exchange.context.abort(grpc.StatusCode.INTERNAL, "look at my trailers")


_EDGES = (0, 1, 2, 3, 127, 128, 255, 65520, 65521, 65536, (1 << 31) - 1, (1 << 32) - 1)


async def _wrong_numbers(exchange: Exchange, messages: Messages) -> Messages:
    """Send the right bytes under numbers that do not fit them, or ids that are others."""
    held = await _all(messages)
    whole = exchange.message.FromString(held[0])
    before = whole.SerializeToString()
    draw = exchange.server.random
    inner = whole.head if hasattr(whole, "head") else whole
    fields = [f for f in inner.DESCRIPTOR.fields if f.name not in ("sums", "elements", "data")]
    while fields and whole.SerializeToString() == before:
        chosen = draw.choice(fields)
        value: Any = draw.choice(_EDGES)
        if chosen.cpp_type == chosen.CPPTYPE_UINT64:
            value = draw.choice((*_EDGES, 1 << 40, (1 << 63) - 1, (1 << 64) - 1))
        if chosen.type == chosen.TYPE_BYTES:
            value = draw.randbytes(draw.choice((0, 1, 15, 16, 17, 32, 64, 65)))
        setattr(inner, chosen.name, value)
    if not fields:
        whole.data = whole.data[:-1]
    yield whole.SerializeToString()
    for message in held[1:]:
        yield message


async def _unknown_fields(exchange: Exchange, messages: Messages) -> Messages:
    """Add a field that no client knows, large or small."""
    n_bytes = exchange.server.random.choice((0, 10, 100_000))
    # Field 15, bytes.
    size, head = n_bytes, bytearray(b"\x7a")
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    async for message in messages:
        yield message + bytes(head) + bytes(n_bytes)


_WIRE: dict[str, tuple[Callable[[Exchange, Messages], Messages], frozenset[str], bool]] = {
    # What is sent behind an answer that is whole need not be read.
    "garbage": (_garbage, _BAD, False),
    "noise": (_noise, _BAD, False),
    "flipped": (_flipped, _PERHAPS, False),
    "nothing": (_nothing, _BAD, False),
    "without_first": (_without_first, _BAD, False),
    "without_last": (_without_last, _BAD, False),
    "cut": (_cut, _BAD, False),
    "each_twice": (_each_twice, _PERHAPS, False),
    "all_twice": (_all_twice, _PERHAPS, False),
    "reversed": (_reversed, _PERHAPS, False),
    "oversized": (_oversized, _BAD, False),
    "endless_empty": (_endless_empty, _PERHAPS, True),
    "endless_full": (_endless_full, _PERHAPS, True),
    "drip": (_drip, _PERHAPS, True),
    "silence": (_silence, _PERHAPS, True),
    "half_then_silence": (_half_then_silence, _PERHAPS, True),
    "half_then_gone": (_half_then_gone, _BAD, False),
    "cancelled": (_cancelled, _BAD, False),
    "any_status": (_any_status, _BAD, False),
    "busy_for_years": (_busy_for_years, _BAD, False),
    "huge_trailers": (_huge_trailers, _BAD, False),
    "wrong_numbers": (_wrong_numbers, _PERHAPS, False),
    "unknown_fields": (_unknown_fields, _PERHAPS, False),
}


# --- signatures ----------------------------------------------------------------------------------


def _signature(how: str) -> Callable[[Exchange, Messages], Messages]:
    """Give the right answer under a signature that is not the server's."""

    async def wire(exchange: Exchange, messages: Messages) -> AsyncIterator[bytes]:
        held = await _all(messages)
        last = exchange.message.FromString(held[-1])
        if how == "none":
            last.signature = b""
        elif how == "changed":
            data = bytearray(last.signature)
            data[exchange.server.random.randrange(64)] ^= 1 << exchange.server.random.randrange(8)
            last.signature = bytes(data)
        elif how == "of another question":
            last.signature = _signed_anew(exchange, held, exchange.server.signer, fresh=False)
        else:
            assert exchange.server.material.signer is not None
            last.signature = _signed_anew(exchange, held, exchange.server.material.signer)
        for message in held[:-1]:
            yield message
        yield last.SerializeToString()

    return wire


def _signed_anew(
    exchange: Exchange, held: list[bytes], signer: AnswerSigner, *, fresh: bool = True
) -> bytes:
    """Sign an answer with another key, or for another nonce or query."""
    nonce = exchange.server.random.randbytes(16)
    if exchange.call == "GetManifest":
        asked = search_pb2.GetManifestRequest.FromString(exchange.requests[0])
        shown = search_pb2.GetManifestResponse.FromString(held[0])
        return signer.manifest(asked.nonce if fresh else nonce, shown.manifest)
    if exchange.call == "GetInfo":
        asked_info = owner_pb2.GetInfoRequest.FromString(exchange.requests[0])
        info = owner_pb2.GetInfoResponse.FromString(held[0])
        used = asked_info.nonce if fresh else nonce
        return signer.info(used, info.server_id, info.version, info.collection)
    messages = [search_pb2.ScoreRequest.FromString(data) for data in exchange.requests]
    head = messages[0].head
    shares = np.frombuffer(b"".join(m.shares for m in messages), "<u2").reshape(head.n_vectors, -1)
    request = convert.score_request(head, shares)
    told = [search_pb2.ScoreResponse.FromString(data) for data in held]
    shape = (told[0].head.n_vectors, told[0].head.n_rows, told[0].head.n_tables)
    answer, _ = convert.score_answer(told, shape)
    if not fresh:
        request = ScoreRequest(nonce, head.version, head.segment, head.level, request.shares)
    return signer.score(request, answer)


_SIGNATURES = ("none", "changed", "of another question", "of another key")


# --- what a server says of itself ----------------------------------------------------------------


def _info(change: Callable[[Exchange, Any], None]) -> Callable[[Exchange, Messages], Messages]:
    """Say something else, signed with the server's own key."""

    async def wire(exchange: Exchange, messages: Messages) -> AsyncIterator[bytes]:
        held = await _all(messages)
        info = owner_pb2.GetInfoResponse.FromString(held[0])
        change(exchange, info)
        nonce = owner_pb2.GetInfoRequest.FromString(exchange.requests[0]).nonce
        info.signature = exchange.server.signer.info(
            nonce, info.server_id, info.version, info.collection
        )
        yield info.SerializeToString()

    return wire


def _other_id(_exchange: Exchange, info: owner_pb2.GetInfoResponse) -> None:
    info.server_id = info.server_id % 3 + 1


def _other_collection(exchange: Exchange, info: owner_pb2.GetInfoResponse) -> None:
    info.collection = exchange.server.random.randbytes(16)


def _no_collection(_exchange: Exchange, info: owner_pb2.GetInfoResponse) -> None:
    info.collection = b""


def _later_version(exchange: Exchange, info: owner_pb2.GetInfoResponse) -> None:
    info.version += exchange.server.random.choice((1, 1000, 1 << 63))


def _earlier_version(_exchange: Exchange, info: owner_pb2.GetInfoResponse) -> None:
    info.version -= 1


def _another_key(exchange: Exchange, info: owner_pb2.GetInfoResponse) -> None:
    info.server_key = exchange.server.random.randbytes(32)


_INFOS = {
    _other_id: "lied",
    _other_collection: "lied",
    _no_collection: "lied",
    _later_version: "lied",
    _earlier_version: "stale",
    _another_key: "lied",
}


# --- all -----------------------------------------------------------------------------------------


def _make() -> dict[str, Lie]:
    lies = [Lie(f"sums: {change.__name__[1:]}", "Score", _changed(change)) for change in _SUMS]
    lies.append(Lie("sums: replayed_whole", "Score", _replayed_whole))
    lies += [Lie(f"records: {name}", "GetRecords", lie) for name, lie in _RECORDS.items()]
    stale = frozenset({"stale"})
    lies += [
        Lie("manifest: old", "GetManifest", _shown("old"), statuses=stale),
        Lie("manifest: rival of the same version", "GetManifest", _shown("rival"), statuses=stale),
        Lie("manifest: of another collection", "GetManifest", _shown("same owner")),
        Lie("manifest: of another owner", "GetManifest", _shown("same name")),
        Lie("manifest: changed", "GetManifest", _manifest_changed),
        Lie("manifest: cut", "GetManifest", _manifest_cut),
        Lie("manifest: longer", "GetManifest", _manifest_longer),
        Lie("manifest: unsigned", "GetManifest", _manifest_unsigned),
    ]
    lies += [Lie(f"object: {lie.__name__[1:]}", "ReadObject", lie) for lie in _OBJECTS]
    lies += [
        Lie(f"{call} signature: {how}", call, wire=_signature(how))
        for call in ("GetManifest", "Score", "GetInfo")
        for how in _SIGNATURES
    ]
    lies += [
        Lie(f"info: {lie.__name__[1:]}", "GetInfo", wire=_info(lie), statuses=frozenset({kind}))
        for lie, kind in _INFOS.items()
    ]
    lies += [
        Lie(
            f"{call}: {name}",
            call,
            wire=wire,
            statuses=statuses | _UNHEARD if call in _UNARY and name in _SECOND else statuses,
            is_endless=is_endless or (call in _UNARY and name in _SECOND),
        )
        for call in (*CALLS, "GetInfo")
        for name, (wire, statuses, is_endless) in _WIRE.items()
    ]
    return {lie.name: lie for lie in lies}


LIES = _make()


def lies_of(*calls: str) -> list[Lie]:
    """Return the lies that are told in ``calls``."""
    return [lie for lie in LIES.values() if lie.call in calls]
