"""Ways to change bytes that know what the bytes are: flips and cuts, lengths, CBOR, protobuf."""

from __future__ import annotations

import io
import random
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import cbor2

__all__ = ["Mutate", "mutate_bytes", "mutate_cbor", "mutate_compressed", "mutate_message"]

#: Given a source of chance, samples and the number of one of them, gives other bytes.
Mutate = Callable[[random.Random, Sequence[bytes]], bytes]

_EDGES = (
    0, 1, 2, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 65520, 65521,
    0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x100000000, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
)  # fmt: skip
_TEXTS = ("", "a", "\0", "\n", "é", "e\u0301", "\U0010ffff", "x" * 5000, "AND (", "\u202e")
_MANY = 1000


def mutate_bytes(source: random.Random, samples: Sequence[bytes]) -> bytes:
    """Change a sample once or a few times, without looking at what it means."""
    data = bytearray(source.choice(samples))
    for _ in range(source.choice((1, 1, 1, 2, 5))):
        source.choice(_BYTE_KINDS)(source, data, samples)
    return bytes(data)


def _flip(source: random.Random, data: bytearray, _samples: Sequence[bytes]) -> None:
    if data:
        data[source.randrange(len(data))] ^= 1 << source.randrange(8)


def _set(source: random.Random, data: bytearray, _samples: Sequence[bytes]) -> None:
    if data:
        data[source.randrange(len(data))] = source.choice((0, 1, 0x7F, 0x80, 0xFF))


def _cut(source: random.Random, data: bytearray, _samples: Sequence[bytes]) -> None:
    del data[source.randrange(len(data) + 1) :]


def _remove(source: random.Random, data: bytearray, _samples: Sequence[bytes]) -> None:
    if data:
        at = source.randrange(len(data))
        del data[at : at + source.choice((1, 2, 4, 16, 64))]


def _insert(source: random.Random, data: bytearray, _samples: Sequence[bytes]) -> None:
    at = source.randrange(len(data) + 1)
    data[at:at] = source.randbytes(source.choice((1, 2, 4, 16, 64, 1000)))


def _double(source: random.Random, data: bytearray, _samples: Sequence[bytes]) -> None:
    """Repeat a piece right behind itself."""
    if data:
        start = source.randrange(len(data))
        stop = start + source.choice((1, 4, 16, 40, 96, len(data)))
        data[stop:stop] = data[start:stop]


def _splice(source: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    """Go on as another sample does."""
    other = source.choice(samples)
    at = source.randrange(len(data) + 1)
    data[at:] = other[source.randrange(len(other) + 1) :]


def _exchange(source: random.Random, data: bytearray, _samples: Sequence[bytes]) -> None:
    if len(data) > 1:
        n_bytes = min(source.choice((1, 4, 32)), len(data) // 2)
        a = source.randrange(len(data) - n_bytes)
        b = source.randrange(len(data) - n_bytes)
        data[a : a + n_bytes], data[b : b + n_bytes] = (
            data[b : b + n_bytes],
            data[a : a + n_bytes],
        )


def _number(source: random.Random, data: bytearray, _samples: Sequence[bytes]) -> None:
    """Write a number that breaks things where a length might be."""
    n_bytes = source.choice((1, 2, 4, 8))
    if len(data) >= n_bytes:
        # Lengths stand near the beginning more often than not.
        bound = len(data) - n_bytes + 1
        at = source.randrange(min(bound, 64) if source.random() < 0.5 else bound)
        value = source.choice(_EDGES) & ((1 << 8 * n_bytes) - 1)
        data[at : at + n_bytes] = value.to_bytes(n_bytes, source.choice(("big", "little")))


def _nudge(source: random.Random, data: bytearray, _samples: Sequence[bytes]) -> None:
    """Make a byte one more or one less: lengths and counts that nearly fit."""
    if data:
        at = source.randrange(len(data))
        data[at] = (data[at] + source.choice((-1, 1))) % 256


def _varint(source: random.Random, data: bytearray, _samples: Sequence[bytes]) -> None:
    at = source.randrange(len(data) + 1)
    varints = (b"\x80\x00", b"\xff" * 9, b"\xff" * 20, b"\x80" * 8 + b"\x01")
    data[at : at + 1] = source.choice(varints)


_BYTE_KINDS = (
    _flip, _flip, _set, _cut, _remove, _insert, _double, _splice, _exchange, _number, _number,
    _nudge, _varint,
)  # fmt: skip


# --- CBOR -----------------------------------------------------------------------------------------


def mutate_cbor(source: random.Random, samples: Sequence[bytes]) -> bytes:
    """Change the value that a sample encodes, and encode it canonically again."""
    data = source.choice(samples)
    if source.random() < 0.3:
        return mutate_bytes(source, samples)
    try:
        value = cbor2.loads(data)
    except Exception:  # noqa: BLE001 - not CBOR: nothing to know about it
        return mutate_bytes(source, samples)
    for _ in range(source.choice((1, 1, 2))):
        value = _other_value(source, value)
    out = io.BytesIO()
    try:
        cbor2.CBOREncoder(out, canonical=source.random() < 0.95).encode(value)
    except Exception:  # noqa: BLE001 - no encoding of that
        return mutate_bytes(source, samples)
    return out.getvalue()


def _other_value(source: random.Random, value: Any) -> Any:
    """Return ``value`` with a change somewhere inside it."""
    if isinstance(value, dict) and value and source.random() < 0.85:
        key = source.choice(list(value))
        changed = dict(value)
        kind = source.random()
        if kind < 0.7:
            changed[key] = _other_value(source, value[key])
        elif kind < 0.8:
            del changed[key]
        elif kind < 0.9:
            changed[source.choice((0, b"x", "extra", None, 1.5, True))] = value[key]
        else:
            changed[key] = source.choice(list(value.values()))
        return changed
    if isinstance(value, list) and value and source.random() < 0.85:
        at = source.randrange(len(value))
        kind = source.random()
        if kind < 0.6:
            return [*value[:at], _other_value(source, value[at]), *value[at + 1 :]]
        if kind < 0.7:
            return value[:at] + value[at + 1 :]
        if kind < 0.8:
            return [*value[:at], value[at], *value[at:]]
        if kind < 0.9:
            return value[::-1]
        return (value * _MANY)[:_MANY]
    if isinstance(value, (bytes, str)) and value and source.random() < 0.6:
        if isinstance(value, bytes):
            return mutate_bytes(source, [value])
        at = source.randrange(len(value))
        return value[:at] + source.choice(_TEXTS) + value[at + 1 :]
    if type(value) is int and source.random() < 0.6:
        return source.choice((value + 1, value - 1, -value, *_EDGES, -1, 1 << 64, 1 << 200))
    return _any_value(source)


def _any_value(source: random.Random) -> Any:
    kind = source.randrange(9)
    if kind == 0:
        return source.choice((*_EDGES, -1, 1 << 64))
    if kind == 1:
        return source.randbytes(source.choice((0, 1, 16, 31, 32, 33, 64, 5000)))
    if kind == 2:
        return source.choice(_TEXTS)
    if kind == 3:
        return source.choice((None, True, False, cbor2.undefined))
    if kind == 4:
        return source.choice((0.0, -0.0, 1.5, float("nan"), float("inf"), 1e300))
    if kind == 5:
        return [_any_value(source) for _ in range(source.randrange(3))]
    if kind == 6:
        return {source.choice(("a", b"b", 3)): _any_value(source)}
    if kind == 7:
        nested: Any = 0
        for _ in range(source.choice((10, 400, 900))):
            nested = [nested]
        return nested
    return cbor2.CBORTag(source.choice((0, 2, 4, 24, 28, 29, 256, 55799)), source.choice((0, b"x")))


@cache
def _bomb(n_bytes: int) -> bytes:
    return zlib.compress(bytes(n_bytes), 9)


def mutate_compressed(source: random.Random, samples: Sequence[bytes]) -> bytes:
    """Change the CBOR inside compressed samples, or the compressed bytes."""
    if source.random() < 0.3:
        return mutate_bytes(source, samples)
    if source.random() < 0.02:
        # A small file that would fill the memory.
        return _bomb(1 << (26 if source.random() < 0.05 else 20))
    return zlib.compress(mutate_cbor(source, [zlib.decompress(sample) for sample in samples]), 1)


# --- protobuf -------------------------------------------------------------------------------------


def mutate_message(source: random.Random, message: Any) -> bytes:
    """Change fields of a protobuf message, then sometimes its bytes."""
    if not message.DESCRIPTOR.fields:
        # Nothing to change: fields that nobody knows, or no fields at all.
        return source.randbytes(source.choice((0, 1, 2, 8, 100)))
    changed = type(message)()
    changed.CopyFrom(message)
    for _ in range(source.choice((0, 1, 1, 2))):
        _change_field(source, changed)
    data: bytes = changed.SerializeToString()
    if source.random() < 0.4:
        data = mutate_bytes(source, [data, message.SerializeToString()])
    if source.random() < 0.05:
        # A second value of the same fields: the last one counts, or both are merged.
        data += message.SerializeToString()
    return data


def _change_field(source: random.Random, message: Any) -> None:
    field = source.choice(message.DESCRIPTOR.fields)
    if field.message_type is not None and not field.is_repeated:
        if source.random() < 0.2:
            message.ClearField(field.name)
        else:
            _change_field(source, getattr(message, field.name))
        return
    if source.random() < 0.15:
        message.ClearField(field.name)
        return
    if field.is_repeated:
        values = getattr(message, field.name)
        kind = source.randrange(3)
        if kind == 0 and values:
            del values[source.randrange(len(values)) :]
        elif field.message_type is not None:
            for _ in range(source.choice((1, 3, 200))):
                # Messages may hold others of their own kind: only plain fields are changed in them.
                added = values.add()
                plain = [f for f in added.DESCRIPTOR.fields if f.message_type is None]
                one = source.choice(plain)
                if not one.is_repeated:
                    setattr(added, one.name, _field_value(source, one, 0))
        elif kind == 1:
            values.extend([_field_value(source, field, 0)] * source.choice((1, 3, 2001)))
        else:
            values.append(_field_value(source, field, 0))
        return
    now = getattr(message, field.name)
    setattr(message, field.name, _field_value(source, field, now))


def _field_value(source: random.Random, field: Any, now: Any) -> Any:
    if field.cpp_type == field.CPPTYPE_STRING:
        if field.type == field.TYPE_BYTES:
            return mutate_bytes(source, [now or b"\0", bytes(32)])
        return source.choice(_TEXTS)
    bits = 64 if field.cpp_type in (field.CPPTYPE_UINT64, field.CPPTYPE_INT64) else 32
    value = source.choice((*_EDGES, (now or 0) + 1, source.getrandbits(bits)))
    return min(value, (1 << bits) - 1)
