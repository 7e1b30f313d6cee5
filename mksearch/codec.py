"""Canonical bytes: deterministic CBOR, shortest varints, fixed headers.

There is one encoding of every value, and decoders refuse every other: what was signed or hashed
is what was meant.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import cbor2
import numpy as np
from numpy.typing import NDArray

from mksearch.errors import FormatError, UnsupportedVersion

__all__ = [
    "ByteReader",
    "decode_cbor",
    "decode_varints",
    "encode_cbor",
    "encode_varint",
    "read_envelope",
    "require_map",
    "write_envelope",
]

MAGIC_BYTES = 8
ENVELOPE_BYTES = 12
_VARINT_BYTES_MAX = 9


def encode_cbor(value: object) -> bytes:
    """Encode in the deterministic form of RFC 8949, section 4.2.1."""
    return cbor2.dumps(value, canonical=True)


def decode_cbor(data: bytes, what: str) -> Any:
    """Decode deterministic CBOR of maps, arrays, text, bytes, integers and binary64.

    Args:
        data: the whole encoding.
        what: what it is, for the message.

    Raises:
        FormatError: not CBOR, bytes left over, or not the deterministic form.
    """
    try:
        stream = io.BytesIO(data)
        value = cbor2.CBORDecoder(stream).decode()
        canonical = encode_cbor(value)
    except (cbor2.CBORError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise FormatError(f"{what} is not CBOR ({type(error).__name__})") from None
    if canonical != data:
        raise FormatError(f"{what} is not in the canonical form")
    return value


def require_map(value: object, fields: Mapping[str, type], what: str) -> dict[str, Any]:
    """Return ``value`` after proving that it is a map with exactly these typed fields.

    Integers are unsigned and below 2**64; a bool is no integer.

    Raises:
        FormatError: not a map, other keys, or a value of another type.
    """
    if not isinstance(value, dict) or set(value) != set(fields):
        raise FormatError(f"{what} has not exactly the fields {', '.join(sorted(fields))}")
    for name, kind in fields.items():
        found = value[name]
        if type(found) is not kind or (isinstance(found, int) and not 0 <= found < 1 << 64):
            raise FormatError(f"{what}: {name} is not of type {kind.__name__}")
    return value


def encode_varint(value: int) -> bytes:
    """Encode an unsigned integer below 2**63 as shortest LEB128."""
    if not 0 <= value < 1 << 63:
        raise FormatError(f"{value} does not fit in a varint")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varints(data: bytes, n_values: int, what: str) -> NDArray[np.int64]:
    """Return the varints that ``data`` consists of: int64 (n_values,).

    Raises:
        FormatError: more, fewer, or one that is not in its shortest form or 2**63 and above.
    """
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets < 0x80)
    if len(ends) != n_values or (len(octets) and octets[-1] >= 0x80):
        raise FormatError(f"{what} holds {len(ends)} varints (need {n_values})")
    if not n_values:
        return np.zeros(0, np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - starts + 1
    if int(sizes.max()) > _VARINT_BYTES_MAX or ((sizes > 1) & (octets[ends] == 0)).any():
        raise FormatError(f"{what} holds a varint that is not canonical")
    shifts = 7 * (np.arange(len(octets)) - np.repeat(starts, sizes))
    values: NDArray[np.int64] = np.add.reduceat((octets & 0x7F).astype(np.int64) << shifts, starts)
    return values


class ByteReader:
    """Reads fields from the front of ``data`` and refuses what is short or not canonical."""

    __slots__ = ("data", "offset", "what")

    def __init__(self, data: bytes | memoryview, what: str) -> None:
        self.data = bytes(data)
        self.offset = 0
        self.what = what

    def take(self, n_bytes: int) -> bytes:
        """Return the next ``n_bytes`` bytes.

        Raises:
            FormatError: fewer are left.
        """
        if n_bytes < 0 or self.offset + n_bytes > len(self.data):
            raise FormatError(
                f"{self.what} ends after {len(self.data)} bytes (need {self.offset + n_bytes})"
            )
        piece = self.data[self.offset : self.offset + n_bytes]
        self.offset += n_bytes
        return piece

    def unsigned(self, n_bytes: int) -> int:
        """Return a big-endian unsigned integer of ``n_bytes`` bytes."""
        return int.from_bytes(self.take(n_bytes), "big")

    def varint(self) -> int:
        """Return a varint.

        Raises:
            FormatError: not in its shortest form, or 2**63 and above.
        """
        value = 0
        for i in range(_VARINT_BYTES_MAX):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                if i and not byte:
                    break
                return value
        raise FormatError(f"{self.what} holds a varint that is not canonical")

    def text(self) -> str:
        """Return UTF-8 text behind its varint length in bytes.

        Raises:
            FormatError: not UTF-8.
        """
        try:
            return self.take(self.varint()).decode()
        except UnicodeDecodeError:
            raise FormatError(f"{self.what} holds text that is not UTF-8") from None

    def finish(self) -> None:
        """Raise FormatError unless every byte was read."""
        if self.offset != len(self.data):
            raise FormatError(f"{self.what} has {len(self.data) - self.offset} bytes too many")


def write_envelope(magic: bytes, version: int) -> bytes:
    """Return the 12 bytes that start every file: magic (8) and format version (u32)."""
    return magic + version.to_bytes(4, "big")


def read_envelope(data: bytes, magic: bytes, version: int | tuple[int, ...], what: str) -> int:
    """Prove that ``data`` starts as a file of this kind and format version; return the version.

    Raises:
        FormatError: too short or another magic.
        UnsupportedVersion: another format version.
    """
    if len(data) < ENVELOPE_BYTES or data[:MAGIC_BYTES] != magic:
        raise FormatError(
            f"{what} does not start with {magic.decode()}",
            cure="it is damaged or not a file of this kind; fetch it again from another server",
        )
    found = int.from_bytes(data[MAGIC_BYTES:ENVELOPE_BYTES], "big")
    readable = (version,) if isinstance(version, int) else version
    if found not in readable:
        raise UnsupportedVersion(
            f"{what} is of format version {found}, and this release reads "
            f"{' and '.join(map(str, readable))}",
            cure="upgrade mksearch" if found > max(readable) else "publish the collection again",
        )
    return found
