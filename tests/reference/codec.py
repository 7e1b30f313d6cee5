"""Integers, varints and deterministic CBOR (section 1)."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

_MAX_DEPTH = 8
"""Choice: the deepest structure of the protocol (a manifest's segments) nests 5 deep."""


def u8(value: int) -> bytes:
    """Encode one byte."""
    return value.to_bytes(1, "big")


def u32(value: int) -> bytes:
    """Encode 4 bytes, big-endian."""
    return value.to_bytes(4, "big")


def u64(value: int) -> bytes:
    """Encode 8 bytes, big-endian."""
    return value.to_bytes(8, "big")


def encode_varint(value: int) -> bytes:
    """Encode 0 <= value < 2^63 as shortest unsigned LEB128."""
    if not 0 <= value < 1 << 63:
        raise ValueError(f"varint {value} is not in 0..2^63-1")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return (value, offset after it); raise ValueError unless whole, shortest, below 2^63."""
    value = 0
    for i in range(9):
        if at + i >= len(data):
            raise ValueError("a varint is cut off")
        byte = data[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            if byte == 0 and i > 0:
                raise ValueError("a varint is longer than needed")
            return value, at + i + 1
    raise ValueError("a varint reaches 2^63")


def _head(major: int, value: int) -> bytes:
    if value < 24:
        return bytes([major << 5 | value])
    for i, size in enumerate((1, 2, 4, 8)):
        if value < 1 << (8 * size):
            return bytes([major << 5 | 24 + i]) + value.to_bytes(size, "big")
    raise ValueError(f"{value} does not fit in 64 bits")


def _encode_float(value: float) -> bytes:
    if not math.isfinite(value):
        raise ValueError("a float is not finite")
    for initial, form in ((0xF9, ">e"), (0xFA, ">f")):
        try:
            short = struct.pack(form, value)
        except OverflowError:
            continue
        if struct.unpack(form, short)[0] == value:
            return bytes([initial]) + short
    return b"\xfb" + struct.pack(">d", value)


def encode_cbor(value: object) -> bytes:
    """Encode uint, finite float, bytes, text, list or map by RFC 8949, section 4.2.1."""
    if isinstance(value, bool):
        raise TypeError("the protocol has no booleans")
    if isinstance(value, int):
        if value < 0:
            raise ValueError("the protocol has no negative integers")
        return _head(0, value)
    if isinstance(value, float):
        return _encode_float(value)
    if isinstance(value, bytes):
        return _head(2, len(value)) + value
    if isinstance(value, str):
        raw = value.encode("utf-8")
        return _head(3, len(raw)) + raw
    if isinstance(value, list):
        return _head(4, len(value)) + b"".join(encode_cbor(item) for item in value)
    if isinstance(value, dict):
        pairs = sorted((encode_cbor(key), encode_cbor(item)) for key, item in value.items())
        return _head(5, len(pairs)) + b"".join(key + item for key, item in pairs)
    raise TypeError(f"the protocol has no {type(value).__name__}")


def _decode_float(data: bytes, at: int, info: int) -> tuple[float, int]:
    forms = {25: (">e", 2), 26: (">f", 4), 27: (">d", 8)}
    if info not in forms:
        raise ValueError("a simple value or break")
    form, size = forms[info]
    if at + size > len(data):
        raise ValueError("cut off")
    return struct.unpack(form, data[at : at + size])[0], at + size


def _decode_item(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    if at >= len(data):
        raise ValueError("cut off")
    major, info = data[at] >> 5, data[at] & 31
    at += 1
    if major == 7:
        return _decode_float(data, at, info)
    value = info
    if info >= 24:
        if info > 27:
            raise ValueError("an indefinite length or a reserved form")
        size = 1 << (info - 24)
        if at + size > len(data):
            raise ValueError("cut off")
        value, at = int.from_bytes(data[at : at + size], "big"), at + size
    if major == 0:
        return value, at
    if major in (2, 3):
        if at + value > len(data):
            raise ValueError("cut off")
        raw = data[at : at + value]
        return (raw if major == 2 else raw.decode("utf-8")), at + value
    if major == 4:
        items = []
        for _ in range(value):
            item, at = _decode_item(data, at, depth + 1)
            items.append(item)
        return items, at
    if major == 5:
        pairs: dict[str | bytes, Any] = {}
        for _ in range(value):
            key, at = _decode_item(data, at, depth + 1)
            if not isinstance(key, (str, bytes)) or key in pairs:
                raise ValueError("a key is neither text nor bytes, or appears twice")
            pairs[key], at = _decode_item(data, at, depth + 1)
        return pairs, at
    raise ValueError("a negative integer or a tag")


def decode_cbor(data: bytes) -> Any:
    """Decode; raise ValueError unless encoding the value again gives the same bytes."""
    value, at = _decode_item(data, 0, 0)
    if at != len(data) or encode_cbor(value) != data:
        raise ValueError("not the deterministic encoding")
    return value


Shape = Any
"""A predicate, [shape of every element], or {key: shape}."""


def is_uint(value: object) -> bool:
    """Accept an unsigned integer."""
    return isinstance(value, int)


def is_text(value: object) -> bool:
    """Accept text."""
    return isinstance(value, str)


def is_bytes(value: object) -> bool:
    """Accept bytes of any length."""
    return isinstance(value, bytes)


def is_float(value: object) -> bool:
    """Accept a binary64 value."""
    return isinstance(value, float)


def bytes_of(length: int) -> Callable[[object], bool]:
    """Make a predicate for bytes of this length."""
    return lambda value: isinstance(value, bytes) and len(value) == length


def has_shape(shape: Shape, value: object) -> bool:
    """Compare a decoded value with a shape: exactly its keys, its types."""
    if isinstance(shape, dict):
        return (
            isinstance(value, dict)
            and value.keys() == shape.keys()
            and all(has_shape(shape[key], value[key]) for key in shape)
        )
    if isinstance(shape, list):
        return isinstance(value, list) and all(has_shape(shape[0], item) for item in value)
    return bool(shape(value))


SCORING_SHAPE = {"kind": is_text, "k1": is_float, "b": is_float}


def scoring_in_range(scoring: dict[str, Any]) -> bool:
    """Accept a known kind, k1 >= 0, 0 <= b <= 1. Choice: the text gives no ranges of k1 and b."""
    return scoring["kind"] in ("tfidf", "bm25") and scoring["k1"] >= 0 and 0 <= scoring["b"] <= 1
