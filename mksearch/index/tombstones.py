"""The lookup of a group of several segments: their lookups, and what of them is gone.

Format 2 of the lookup (docs/protocol.md, section 6).  A document that was deleted or replaced has
a tombstone: its key in the lookup, its row, and whether the whole row is gone with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mksearch.codec import ByteReader
from mksearch.crypto.randomness import RandomSource
from mksearch.errors import FormatError
from mksearch.index.manifest import ObjectRef
from mksearch.params import SALT_BYTES

__all__ = ["LookupPart", "Tombstones", "decode_parts", "encode_parts"]

_FORMAT = 2
_KEY_BYTES = 16
_NAME_BYTES = 32
_ENTRY_BYTES = _KEY_BYTES + 5
#: Row of an entry that only fills the list up.
_NO_ROW = (1 << 32) - 1
#: Least number of entries of a segment; above it the next power of two, so that servers do not
#: learn how many documents are gone.
ENTRIES_MIN = 16


@dataclass(frozen=True)
class Tombstones:
    """The documents of one segment that are gone.

    Attributes:
        gone: row and whether all of it is gone, by the document's key in lookups (16 bytes).
    """

    gone: Mapping[bytes, tuple[int, bool]] = field(default_factory=dict)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """Rows of which no document is left: int64 (n,), ascending."""
        return np.array(sorted({row for row, whole in self.gone.values() if whole}), np.int64)

    @cached_property
    def shared_rows(self) -> frozenset[int]:
        """Rows of which some documents are gone, and others are not."""
        return frozenset(row for row, whole in self.gone.values() if not whole)

    def encode(self, random: RandomSource) -> bytes:
        """Return the entries, filled up with ones that stand for no document."""
        entries = [
            key + row.to_bytes(4, "big") + bytes((whole,))
            for key, (row, whole) in self.gone.items()
        ]
        n_entries = max(ENTRIES_MIN, 1 << max(0, len(entries) - 1).bit_length())
        fill = _NO_ROW.to_bytes(4, "big") + b"\0"
        entries += [random.bytes(_KEY_BYTES) + fill for _ in range(n_entries - len(entries))]
        return n_entries.to_bytes(4, "big") + b"".join(sorted(entries))


@dataclass(frozen=True, slots=True)
class LookupPart:
    """One segment in the lookup of a group.

    Attributes:
        salt: of the segment, 32 bytes.
        part: its sealed lookup, of format 1.
        tombstones: what of it is gone.
    """

    salt: bytes
    part: ObjectRef
    tombstones: Tombstones = field(default_factory=Tombstones)


def encode_parts(parts: Iterable[LookupPart], random: RandomSource) -> bytes:
    """Return the content of a lookup of format 2; ``random`` draws keys of no document."""
    packed = [
        part.salt
        + part.part.id
        + part.part.size.to_bytes(8, "big")
        + part.tombstones.encode(random)
        for part in parts
    ]
    return bytes((_FORMAT,)) + len(packed).to_bytes(4, "big") + b"".join(packed)


def decode_parts(content: bytes) -> tuple[LookupPart, ...]:
    """Read the content of an opened lookup of format 2.

    Raises:
        FormatError: not one.
    """
    reader = ByteReader(content, "the lookup")
    if reader.unsigned(1) != _FORMAT:
        raise FormatError("the lookup is of another format")
    n_parts = reader.unsigned(4)
    if n_parts * (SALT_BYTES + _NAME_BYTES) > len(content):
        raise FormatError(f"the lookup announces {n_parts} segments that it does not hold")
    parts = tuple(_decode_part(reader) for _ in range(n_parts))
    reader.finish()
    if not parts or len({part.salt for part in parts}) != n_parts:
        raise FormatError("the lookup lists a segment twice, or none")
    return parts


def _decode_part(reader: ByteReader) -> LookupPart:
    salt, name = reader.take(SALT_BYTES), reader.take(_NAME_BYTES)
    size, n_entries = reader.unsigned(8), reader.unsigned(4)
    if n_entries < ENTRIES_MIN or n_entries & (n_entries - 1):
        raise FormatError(f"the lookup lists {n_entries} tombstones (no power of two from 16)")
    data = reader.take(n_entries * _ENTRY_BYTES)
    entries = [data[at : at + _ENTRY_BYTES] for at in range(0, len(data), _ENTRY_BYTES)]
    return LookupPart(salt, ObjectRef(name, size), Tombstones(_decode_entries(entries)))


def _decode_entries(entries: Sequence[bytes]) -> dict[bytes, tuple[int, bool]]:
    if any(a[:_KEY_BYTES] >= b[:_KEY_BYTES] for a, b in pairwise(entries)):
        raise FormatError("the lookup lists tombstones that do not ascend")
    gone: dict[bytes, tuple[int, bool]] = {}
    for entry in entries:
        row = int.from_bytes(entry[_KEY_BYTES:-1], "big")
        if entry[-1] > (row != _NO_ROW):
            raise FormatError("the lookup lists a tombstone that is out of range")
        if row != _NO_ROW:
            gone[entry[:_KEY_BYTES]] = row, entry[-1] == 1
    whole: dict[int, bool] = {}
    for row, is_whole in gone.values():
        if whole.setdefault(row, is_whole) != is_whole:
            raise FormatError("the lookup lists tombstones of one row that disagree")
    return gone
