"""Segment files: layout, header and reader (docs/protocol.md, section 5).

A segment is one immutable file: a header of 4096 bytes, the cells of every level, the record
slots.  Everything behind the header is a raw array that a server maps into memory as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mksearch.codec import (
    ENVELOPE_BYTES,
    decode_cbor,
    encode_cbor,
    read_envelope,
    require_map,
    write_envelope,
)
from mksearch.crypto.kdf import sha256
from mksearch.errors import FormatError, MksearchError, ParameterError
from mksearch.index.geometry import BlockShape, LevelGeometry
from mksearch.index.slot_shape import SlotShape
from mksearch.params import COLLECTION_BYTES, KEY_BYTES, MASK_BLOCKS_MAX, SALT_BYTES, P

__all__ = [
    "HEADER_BYTES",
    "SegmentChecker",
    "SegmentHeader",
    "SegmentLayout",
    "SegmentReader",
    "mask_blocks",
]

MAGIC = b"MKSEGMNT"
FORMAT = 1
#: Header and alignment of every section.
HEADER_BYTES = 4096
_VERIFY_BYTES = 1 << 24

_FIELDS: dict[str, type] = {
    "collection": bytes,
    "epoch": int,
    "salt": bytes,
    "n_rows": int,
    "fan_out": int,
    "n_checks": int,
    "n_tables": int,
    "levels": list,
    "slots": dict,
}
_LEVEL_FIELDS: dict[str, type] = {
    "offset": int,
    "n_rows": int,
    "dedicated": int,
    "table": int,
    "sha256": bytes,
}
_SLOT_FIELDS: dict[str, type] = {"offset": int, "n_slots": int, "units": int, "sha256": bytes}


def mask_blocks(level_shapes: Iterable[tuple[int, int]]) -> int:
    """Return the AES blocks that mask levels of so many (physical rows, columns)."""
    return sum(n_rows * width // 8 for n_rows, width in level_shapes)


def _aligned(offset: int) -> int:
    return -(-offset // HEADER_BYTES) * HEADER_BYTES


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """Where everything of a segment lies, as it follows from the shapes.

    Attributes:
        n_rows: data rows of level 0, at least 1.
        block: shape of the blocks.
        levels: geometry of each level, as many as ``block.level_rows(n_rows)``.
        slot: shape of the record slots.
        n_slots: record slots.
    """

    n_rows: int
    block: BlockShape
    levels: tuple[LevelGeometry, ...]
    slot: SlotShape
    n_slots: int

    def __post_init__(self) -> None:
        rows = self.block.level_rows(self.n_rows)
        if self.n_rows < 1 or len(rows) != len(self.levels):
            raise ParameterError(
                f"{self.n_rows} rows make {len(rows)} levels, not {len(self.levels)}"
            )
        if self.n_slots < self.n_rows:
            raise ParameterError(f"{self.n_slots} slots for {self.n_rows} rows")
        if len({geometry.n_tables for geometry in self.levels}) != 1:
            raise ParameterError("levels differ in their number of tables")
        n_mask_blocks = mask_blocks(self.level_shapes)
        if n_mask_blocks > MASK_BLOCKS_MAX:
            raise ParameterError(
                f"a segment of {self.n_rows} rows needs {n_mask_blocks} keystream blocks "
                f"(at most {MASK_BLOCKS_MAX})",
                cure="publish the corpus as several collections",
            )

    @property
    def level_shapes(self) -> list[tuple[int, int]]:
        """(physical rows, columns) of each level."""
        rows = self.block.level_rows(self.n_rows)
        return [
            (self.block.physical_rows(n), geometry.width)
            for n, geometry in zip(rows, self.levels, strict=True)
        ]

    @property
    def offsets(self) -> list[int]:
        """Offset of each level's cells, then of the slots, in bytes."""
        offsets = [HEADER_BYTES]
        for n_rows, width in self.level_shapes:
            offsets.append(_aligned(offsets[-1] + 2 * n_rows * width))
        return offsets

    @property
    def n_bytes(self) -> int:
        """Size of the file."""
        return self.offsets[-1] + 2 * self.n_slots * self.slot.width

    def level(self, data: NDArray[np.uint8], level: int) -> NDArray[np.uint16]:
        """Return the cells of one level as a view of the file's bytes.

        Args:
            data: uint8 (n_bytes,), the whole file.
            level: 0..len(levels)-1.

        Returns:
            uint16 (physical rows, columns).
        """
        n_rows, width = self.level_shapes[level]
        start = self.offsets[level]
        return data[start : start + 2 * n_rows * width].view("<u2").reshape(n_rows, width)

    def slots(self, data: NDArray[np.uint8]) -> NDArray[np.uint16]:
        """Return the record slots as a view: uint16 (n_slots, slot.width)."""
        start = self.offsets[-1]
        return data[start : self.n_bytes].view("<u2").reshape(self.n_slots, self.slot.width)


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What the first 4096 bytes say.

    Attributes:
        collection: 16 bytes.
        epoch: generation of the keys.
        salt: 32 bytes, drawn for this build alone.
        layout: shapes.
        hashes: SHA-256 of each level's cells, then of the slots.
    """

    collection: bytes
    epoch: int
    salt: bytes
    layout: SegmentLayout
    hashes: tuple[bytes, ...]

    def encode(self) -> bytes:
        """Return the 4096 bytes.

        Raises:
            ParameterError: more levels than fit.
        """
        layout = self.layout
        offsets = layout.offsets
        body = encode_cbor(
            {
                "collection": self.collection,
                "epoch": self.epoch,
                "salt": self.salt,
                "n_rows": layout.n_rows,
                "fan_out": layout.block.fan_out,
                "n_checks": layout.block.n_checks,
                "n_tables": layout.levels[0].n_tables,
                "levels": [
                    {
                        "offset": offsets[level],
                        "n_rows": layout.level_shapes[level][0],
                        "dedicated": geometry.dedicated,
                        "table": geometry.table,
                        "sha256": self.hashes[level],
                    }
                    for level, geometry in enumerate(layout.levels)
                ],
                "slots": {
                    "offset": offsets[-1],
                    "n_slots": layout.n_slots,
                    "units": layout.slot.units,
                    "sha256": self.hashes[-1],
                },
            }
        )
        head = write_envelope(MAGIC, FORMAT) + len(body).to_bytes(4, "big") + body
        if len(head) > HEADER_BYTES:
            raise ParameterError(f"a segment header of {len(head)} bytes does not fit")
        return head.ljust(HEADER_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> SegmentHeader:
        """Decode the first 4096 bytes of a segment (refusals 5.1 to 5.5 of the protocol).

        Raises:
            FormatError: not the canonical header of a possible segment.
            UnsupportedVersion: another format version.
        """
        what = "a segment header"
        read_envelope(data, MAGIC, FORMAT, what)
        start = ENVELOPE_BYTES + 4
        size = int.from_bytes(data[ENVELOPE_BYTES:start], "big")
        if len(data) != HEADER_BYTES or start + size > HEADER_BYTES or any(data[start + size :]):
            raise FormatError(f"{what} is not {size} bytes and zeros in {HEADER_BYTES}")
        fields = require_map(decode_cbor(data[start : start + size], what), _FIELDS, what)
        levels = [require_map(entry, _LEVEL_FIELDS, what) for entry in fields["levels"]]
        slots = require_map(fields["slots"], _SLOT_FIELDS, what)
        hashes = tuple(entry["sha256"] for entry in [*levels, slots])
        if (
            len(fields["collection"]) != COLLECTION_BYTES
            or len(fields["salt"]) != SALT_BYTES
            or any(len(digest) != KEY_BYTES for digest in hashes)
        ):
            raise FormatError(f"{what} holds an id, salt or hash of a wrong length")
        header = cls(
            fields["collection"],
            fields["epoch"],
            fields["salt"],
            _layout(fields, levels, slots),
            hashes,
        )
        if header.encode() != data:
            raise FormatError(f"{what} states offsets or rows that do not follow from its shapes")
        return header

    @property
    def id(self) -> bytes:
        """Segment id: SHA-256 of the encoded header, which pins every byte of the file."""
        return sha256(self.encode())


def _layout(
    fields: dict[str, Any], levels: Sequence[dict[str, Any]], slots: dict[str, Any]
) -> SegmentLayout:
    try:
        return SegmentLayout(
            fields["n_rows"],
            BlockShape(fields["fan_out"], fields["n_checks"]),
            tuple(
                LevelGeometry(entry["dedicated"], entry["table"], fields["n_tables"])
                for entry in levels
            ),
            SlotShape(slots["units"]),
            slots["n_slots"],
        )
    except MksearchError as error:
        raise FormatError(f"a segment header is impossible: {error.message}") from None


class SegmentReader:
    """Reads a segment from its bytes; what a server scores and serves from."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        """Read the header and prove that the file has the size that follows from it.

        Args:
            data: uint8 (n,), the whole file, usually mapped; not copied.

        Raises:
            FormatError: a damaged header or another size.
            UnsupportedVersion: another format version.
        """
        head = data[:HEADER_BYTES].tobytes()
        self.header = SegmentHeader.decode(head)
        self.id = sha256(head)
        self._data = data
        if len(data) != self.header.layout.n_bytes:
            raise FormatError(
                f"a segment has {len(data)} bytes (need {self.header.layout.n_bytes})",
                cure="fetch it again from another server",
            )

    def level(self, level: int) -> NDArray[np.uint16]:
        """Return the masked cells of a level: uint16 (physical rows, columns), a view."""
        return self.header.layout.level(self._data, level)

    def slots(self) -> NDArray[np.uint16]:
        """Return the record slots: uint16 (n_slots, slot width), a view."""
        return self.header.layout.slots(self._data)

    def verify(self) -> None:
        """Prove every byte against the header (refusal 5.6 of the protocol).

        Raises:
            FormatError: a section's hash is wrong, an element is out of range, or a gap not zero.
        """
        layout = self.header.layout
        starts = layout.offsets
        sections = [self.level(level) for level in range(len(layout.levels))]
        sections.append(self.slots())
        end = HEADER_BYTES
        for number, section in enumerate(sections):
            name = f"level {number}" if number < len(layout.levels) else "record slots"
            if self._data[end : starts[number]].any():
                raise FormatError(f"a segment has a gap before its {name} that is not zero")
            end = starts[number] + section.nbytes
            if sha256(section.data.cast("B")) != self.header.hashes[number]:
                raise FormatError(
                    f"the {name} of segment {self.id.hex()[:16]} do not match their hash",
                    cure="fetch the segment again from another server",
                )
            flat = section.reshape(-1)
            for at in range(0, len(flat), _VERIFY_BYTES):
                if int(flat[at : at + _VERIFY_BYTES].max()) >= P:
                    raise FormatError(f"the {name} of a segment hold an element out of range")


class SegmentChecker:
    """Proves a segment that comes in pieces, holding none of it."""

    def __init__(self, head: bytes, name: bytes) -> None:
        """Start from the first 4096 bytes of segment ``name`` (32 bytes).

        Raises:
            FormatError: they are not those of the segment.
        """
        self._header = SegmentHeader.decode(head)
        if sha256(head) != name:
            raise FormatError(f"a segment header is not the one of segment {name.hex()[:16]}")
        layout = self._header.layout
        sizes = [2 * n_rows * width for n_rows, width in layout.level_shapes]
        sizes.append(2 * layout.n_slots * layout.slot.width)
        self._ends = [start + size for start, size in zip(layout.offsets, sizes, strict=True)]
        self._digests = [hashlib.sha256() for _ in sizes]
        self._at = HEADER_BYTES
        self._half = b""

    def add(self, piece: bytes) -> None:
        """Take the next bytes.

        Raises:
            FormatError: a gap is not zero, an element is out of range, or the segment ended.
        """
        view = memoryview(piece)
        while view:
            section = next((i for i, end in enumerate(self._ends) if self._at < end), None)
            if section is None:
                raise FormatError("a segment has bytes behind its end")
            start = self._header.layout.offsets[section]
            stop = start if self._at < start else self._ends[section]
            part, view = view[: stop - self._at], view[stop - self._at :]
            if stop > start:
                self._digests[section].update(part)
                self._require_elements(part)
            elif any(part):
                raise FormatError("a segment has a gap that is not zero")
            self._at += len(part)

    def _require_elements(self, part: memoryview) -> None:
        """Raise FormatError for an element of p or more, across pieces."""
        data = self._half + part.tobytes()
        whole = len(data) // 2 * 2
        self._half = data[whole:]
        if whole and int(np.frombuffer(data[:whole], "<u2").max()) >= P:
            raise FormatError("a segment holds an element out of range")

    def finish(self) -> None:
        """Prove the hash of every section.

        Raises:
            FormatError: bytes are missing, or a section is damaged.
        """
        if self._at != self._ends[-1]:
            raise FormatError(f"a segment has {self._at} bytes (need {self._ends[-1]})")
        for section, digest in enumerate(self._digests):
            if digest.digest() != self._header.hashes[section]:
                raise FormatError(f"section {section} of a segment does not match its hash")
