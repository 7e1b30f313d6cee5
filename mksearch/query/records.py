"""Read records and documents from what servers send (docs/protocol.md, steps 8.9 and 8.10)."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.kdf import sha256
from mksearch.crypto.secret import SecretKey
from mksearch.errors import FormatError, RecordRefused
from mksearch.index.document import StoredDocument
from mksearch.index.record import Record, decode_record
from mksearch.index.slots import SlotReader
from mksearch.index.stream import open_stream

__all__ = ["open_document", "read_records", "require_object"]


def read_records(
    slots: SlotReader, rows: Sequence[int], n_terms: int
) -> Generator[NDArray[np.int64], NDArray[np.uint16], Mapping[int, Record]]:
    """Read the records of some rows; yields the slots to fetch, is sent their elements.

    First the first slot of every row, then, where records spill, all further ones at once.

    Args:
        slots: reader of the segment.
        rows: rows of level 0.
        n_terms: terms of the dictionary; a record that names another is refused.

    Yields:
        int64 (n,): physical slots.  Expects uint16 (n, slot width), untrusted.

    Returns:
        the record of each row.

    Raises:
        FormatError: wrong shapes, ranges or encodings.
        RecordRefused: a slot does not open.
    """
    # By slot, not by bound: the order of a request must not show the ranking.
    rows = sorted(rows, key=slots.physical)
    wanted = np.array([slots.physical(row) for row in rows], np.int64)
    parts: dict[int, list[bytes]] = {}
    sizes: dict[int, int] = {}
    spilled: list[tuple[int, int, int]] = []
    elements = yield wanted
    _require_count(elements, len(wanted))
    for row, received in zip(rows, elements, strict=True):
        parts[row] = [slots.open_part(row, 0, received)]
        sizes[row], more = slots.parse_frame(parts[row][0])
        spilled += [(row, number, slot) for number, slot in enumerate(more, 1)]
    if spilled:
        elements = yield np.array([slots.physical(slot) for _, _, slot in spilled], np.int64)
        _require_count(elements, len(spilled))
        for (row, number, _), received in zip(spilled, elements, strict=True):
            parts[row].append(slots.open_part(row, number, received))
    records = {row: decode_record(slots.join(sizes[row], parts[row])) for row in rows}
    for record in records.values():
        if len(record.term_ids) and int(record.term_ids[-1]) >= n_terms:
            raise FormatError("a record names a term that the dictionary does not have")
    return records


def _require_count(elements: NDArray[np.uint16], n_wanted: int) -> None:
    if elements.dtype != np.uint16 or elements.ndim != 2 or len(elements) != n_wanted:
        raise FormatError(f"record slots of shape {elements.shape} came (need {n_wanted} slots)")


def require_object(name: bytes, size: int, data: bytes, what: str) -> bytes:
    """Return ``data`` after proving that it is the object ``name`` of ``size`` bytes.

    Raises:
        RecordRefused: its size or SHA-256 is another.
    """
    if len(data) != size or sha256(data) != name:
        raise RecordRefused(f"{what} is not the object {name.hex()[:16]} of {size} bytes")
    return data


def open_document(key: SecretKey, collection: bytes, name: bytes, data: bytes) -> StoredDocument:
    """Open the blob ``name`` as received.

    Args:
        key: key of the blob.
        collection: 16 bytes.
        name: SHA-256 of the blob's file, 32 bytes.
        data: the file; untrusted.

    Raises:
        RecordRefused: another object, or one that does not open.
        FormatError: what it holds is no document.
    """
    require_object(name, len(data), data, "a document")
    return StoredDocument.decode(open_stream(key, "blob", collection, data))
