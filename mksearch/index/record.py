"""Record bytes: what a result and its exact score need (docs/protocol.md, section 4.6, step 1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mksearch.codec import ByteReader, encode_varint
from mksearch.errors import FormatError
from mksearch.index.rows import Postings
from mksearch.kernels.building import POSTING_BYTES_MAX, encode_postings
from mksearch.params import ID_BYTES_MAX

__all__ = ["Member", "Record", "decode_record", "encode_record", "encode_records"]

_FORMAT = 1
#: Encoded at once, so that working memory stays small.
_POSTINGS_AT_ONCE = 1 << 20


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
    """Encode one row; see `encode_records`."""
    postings = Postings(
        np.array([0, len(term_ids)], np.int64),
        np.array(term_ids, np.int32),
        np.array(tfs, np.int32),
        np.array([length], np.int64),
    )
    return next(encode_records(postings, [members]))


def encode_records(postings: Postings, members: Iterable[Sequence[Member]]) -> Iterator[bytes]:
    """Encode rows, one after another.

    Args:
        postings: term frequencies of each row.
        members: documents of each row, in any order.
    """
    lengths, counts = postings.lengths.tolist(), np.diff(postings.indptr).tolist()
    rows = zip(_encoded_postings(postings), lengths, counts, members, strict=True)
    for encoded, length, n_terms, documents in rows:
        out = bytearray((_FORMAT,))
        out += encode_varint(length) + encode_varint(n_terms)
        out += encoded
        out += encode_varint(len(documents))
        for member in sorted(documents, key=lambda m: m.id.encode()):
            out += _encode_text(member.id)
            out += _encode_text(member.title)
            out += _encode_text(member.snippet)
        yield bytes(out)


def _encoded_postings(postings: Postings) -> Iterator[memoryview]:
    """Yield the bytes of the terms of each row."""
    indptr, n_rows, row = postings.indptr, len(postings), 0
    while row < n_rows:
        start = int(indptr[row])
        stop_row = int(np.searchsorted(indptr, start + _POSTINGS_AT_ONCE, side="right")) - 1
        stop_row = min(max(stop_row, row + 1), n_rows)
        part = slice(start, int(indptr[stop_row]))
        out = np.empty(POSTING_BYTES_MAX * (part.stop - start), np.uint8)
        ends = np.empty(stop_row - row, np.int64)
        bounds = indptr[row : stop_row + 1]
        encode_postings(bounds, postings.term_ids[part], postings.tfs[part], out, ends)
        data, at = out.data, 0
        for end in ends.tolist():
            yield data[at:end]
            at = end
        row = stop_row


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
