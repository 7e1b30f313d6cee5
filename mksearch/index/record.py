"""Record bytes: what a result and its exact score need (docs/protocol.md, section 4.6, step 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mksearch.codec import ByteReader, encode_varint
from mksearch.errors import FormatError
from mksearch.params import ID_BYTES_MAX

__all__ = ["Member", "Record", "decode_record", "encode_record"]

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Member:
    """One document of a row, as a result shows it."""

    id: str
    title: str
    snippet: str


@dataclass(frozen=True, slots=True)
class Record:
    """A row opened: its term frequencies and its documents.

    Attributes:
        term_ids: int32 (n_terms,), ascending.
        tfs: int32 (n_terms,), at least 1.
        length: tokens of the document.
        members: documents of the row, by ascending id (UTF-8 bytes).
    """

    term_ids: NDArray[np.int32]
    tfs: NDArray[np.int32]
    length: int
    members: tuple[Member, ...]


def _encode_text(text: str) -> bytes:
    data = text.encode()
    return encode_varint(len(data)) + data


def encode_record(
    term_ids: Sequence[int], tfs: Sequence[int], length: int, members: Sequence[Member]
) -> bytes:
    """Encode one row.

    Args:
        term_ids: ascending.
        tfs: as many, at least 1.
        length: tokens of the document.
        members: documents of the row, in any order.
    """
    out = bytearray((_FORMAT,))
    out += encode_varint(length)
    out += encode_varint(len(term_ids))
    previous = -1
    for term_id, tf in zip(term_ids, tfs, strict=True):
        gap = 2 * (term_id - previous - 1) + (tf > 1)
        previous = term_id
        # Nearly all gaps are below 128: one byte without a call.
        out += bytes((gap,)) if gap < 0x80 else encode_varint(gap)
        if tf > 1:
            out += encode_varint(tf - 2)
    out += encode_varint(len(members))
    for member in sorted(members, key=lambda m: m.id.encode()):
        out += _encode_text(member.id) + _encode_text(member.title) + _encode_text(member.snippet)
    return bytes(out)


def decode_record(data: bytes) -> Record:
    """Decode one row.

    Raises:
        FormatError: not a canonical record.
    """
    reader = ByteReader(data, "a record")
    if reader.unsigned(1) != _FORMAT:
        raise FormatError("a record is of an unknown format")
    length = reader.varint()
    n_terms = _count(reader, 1)
    term_ids = np.empty(n_terms, np.int32)
    tfs = np.empty(n_terms, np.int32)
    previous = -1
    for i in range(n_terms):
        gap = reader.varint()
        previous += (gap >> 1) + 1
        tf = reader.varint() + 2 if gap & 1 else 1
        if previous >= 1 << 31 or tf >= 1 << 31:
            raise FormatError("a record holds a term id or frequency that is out of range")
        term_ids[i] = previous
        tfs[i] = tf
    members = tuple(
        Member(reader.text(), reader.text(), reader.text()) for _ in range(_count(reader, 3))
    )
    reader.finish()
    ids = [member.id.encode() for member in members]
    if not ids or any(a >= b for a, b in pairwise(ids)):
        raise FormatError("a record lists no document, or not by ascending id")
    if not all(1 <= len(i) <= ID_BYTES_MAX for i in ids):
        raise FormatError("a record holds an id of a length out of range")
    return Record(term_ids, tfs, length, members)


def _count(reader: ByteReader, least_bytes: int) -> int:
    """Read a count of items that take ``least_bytes`` each, so that it cannot exhaust memory."""
    count = reader.varint()
    if count * least_bytes > len(reader.data) - reader.offset:
        raise FormatError(f"a record announces {count} items that it does not hold")
    return count
