"""Record slots: framing, sealing, 15-bit elements, linear tags (docs/protocol.md, section 4.6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto import labels
from mksearch.crypto.aead import Aead
from mksearch.crypto.bundle import SegmentKeys
from mksearch.crypto.keystream import WORDS_PER_BLOCK, Domain, Keystream
from mksearch.errors import FormatError
from mksearch.index.slot_shape import FRAME_BYTES, UNIT_BYTES, UNIT_ELEMENTS, SlotShape
from mksearch.params import ELEMENT_BITS, N_TAGS, P

__all__ = ["SlotReader", "SlotWriter"]


def _nonce(row: int, part: int) -> bytes:
    return row.to_bytes(8, "big") + part.to_bytes(4, "big")


def _associated(collection: bytes, salt: bytes) -> bytes:
    return labels.RECORD + b"\0" + collection + salt


def _elements(sealed: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Cut (n, 15 * units) bytes into (n, 8 * units) numbers of 15 bits, most significant first."""
    n = len(sealed)
    wide = np.zeros((n, sealed.shape[1] // UNIT_BYTES, UNIT_BYTES + 1), np.uint32)
    wide[:, :, :UNIT_BYTES] = sealed.reshape(n, -1, UNIT_BYTES)
    out = np.empty((n, wide.shape[1], UNIT_ELEMENTS), np.uint16)
    for i in range(UNIT_ELEMENTS):
        byte, bit = divmod(ELEMENT_BITS * i, 8)
        three = wide[:, :, byte] << 16 | wide[:, :, byte + 1] << 8 | wide[:, :, byte + 2]
        out[:, :, i] = three >> (24 - ELEMENT_BITS - bit) & 0x7FFF
    return out.reshape(n, -1)


def _sealed_bytes(elements: NDArray[np.uint16]) -> bytes:
    """Put (n_elements,) numbers of 15 bits together again."""
    bits = np.unpackbits(elements.astype(">u2").view(np.uint8)).reshape(-1, 16)
    return np.packbits(bits[:, 1:].reshape(-1)).tobytes()


class _Tags:
    """Linear authentication tags of slots."""

    def __init__(self, keystream: Keystream, shape: SlotShape) -> None:
        self._keystream = keystream
        weights = keystream.words(Domain.TAG_WEIGHT, 0, np.arange(N_TAGS), 0, shape.n_elements)
        # Exact in binary64: 1088 products below 2**32 stay below 2**53.
        self._weights = weights.T.astype(np.float64)

    def expected(
        self, elements: NDArray[np.uint16], pads: NDArray[np.uint16]
    ) -> NDArray[np.uint16]:
        """Return the tags of combined slots: (n, L) below p, and their pads (n, 3) -> (n, 3)."""
        sums = (elements.astype(np.float64) @ self._weights).astype(np.uint64)
        return ((sums + pads) % np.uint64(P)).astype(np.uint16)

    def compute(self, elements: NDArray[np.uint16], first_slot: int) -> NDArray[np.uint16]:
        """Return the tags of slots from ``first_slot``, a multiple of 8: (n, L) -> (n, 3)."""
        sums = (elements.astype(np.float64) @ self._weights).astype(np.uint64)
        pads = self._keystream.words(
            Domain.TAG_PAD, 0, np.arange(N_TAGS), first_slot, len(elements)
        )
        return ((sums + pads.T) % np.uint64(P)).astype(np.uint16)


class SlotWriter:
    """Seals the records of a segment into slots, in the order of the slot key."""

    BATCH = 4096

    def __init__(
        self,
        keys: SegmentKeys,
        collection: bytes,
        salt: bytes,
        sizes: NDArray[np.int64],
    ) -> None:
        """Plan the slots.

        Args:
            keys: keys of this build.
            collection: 16 bytes.
            salt: 32 bytes.
            sizes: int64 (n_rows,), record bytes of each row.
        """
        self.shape = SlotShape.choose(sizes)
        self._keys = keys
        self._associated = _associated(collection, salt)
        n_parts = -(-(sizes + FRAME_BYTES) // self.shape.part_bytes)
        self._spill = len(sizes) + np.concatenate([[0], np.cumsum(n_parts - 1)])
        self._n_parts = n_parts
        self.n_slots = int(self._spill[-1])

    def write(self, records: Iterable[bytes], out: NDArray[np.uint16]) -> None:
        """Seal every record into ``out``.

        Args:
            records: record bytes of each row, of the planned sizes.
            out: uint16 (n_slots, shape.width); overwritten.
        """
        order = self._keys.slots.permutation(Domain.SLOT_ORDER, 0, self.n_slots)
        aead = Aead(self._keys.record)
        n_bytes = self.shape.units * UNIT_BYTES
        batch: list[bytes] = []
        places: list[int] = []
        for row, record in enumerate(records):
            for part, logical in enumerate(self._logical_slots(row)):
                nonce = _nonce(row, part)
                piece = self._part(row, record, part)
                batch.append(aead.seal(nonce, piece, self._associated + nonce))
                places.append(logical)
            if len(batch) >= self.BATCH:
                self._flush(batch, order[places], n_bytes, out)
                batch, places = [], []
        if batch:
            self._flush(batch, order[places], n_bytes, out)
        self._tag(out)

    def _logical_slots(self, row: int) -> Sequence[int]:
        spill = int(self._spill[row])
        return [row, *range(spill, spill + int(self._n_parts[row]) - 1)]

    def _part(self, row: int, record: bytes, part: int) -> bytes:
        spill = int(self._spill[row]) if self._n_parts[row] > 1 else 0
        size = self.shape.part_bytes
        if part == 0:
            head = len(record).to_bytes(4, "big") + spill.to_bytes(4, "big")
            piece = head + record[: size - FRAME_BYTES]
        else:
            start = part * size - FRAME_BYTES
            piece = record[start : start + size]
        return piece.ljust(size, b"\0")

    def _flush(
        self, batch: list[bytes], slots: NDArray[np.int64], n_bytes: int, out: NDArray[np.uint16]
    ) -> None:
        sealed = np.frombuffer(b"".join(batch), np.uint8).reshape(len(batch), n_bytes)
        out[slots, : self.shape.n_elements] = _elements(sealed)

    def _tag(self, out: NDArray[np.uint16]) -> None:
        tags = _Tags(self._keys.tag, self.shape)
        for start in range(0, self.n_slots, self.BATCH):
            rows = out[start : start + self.BATCH]
            rows[:, self.shape.n_elements :] = tags.compute(rows[:, : self.shape.n_elements], start)


class SlotReader:
    """Finds and opens slots of one segment on the client's side."""

    def __init__(
        self,
        keys: SegmentKeys,
        collection: bytes,
        salt: bytes,
        shape: SlotShape,
        *,
        n_rows: int,
        n_slots: int,
    ) -> None:
        self.shape = shape
        self._n_rows = n_rows
        self.n_slots = n_slots
        self._aead = Aead(keys.record)
        self._keys = keys
        self._associated = _associated(collection, salt)
        self._order: NDArray[np.int64] | None = None
        self._tags: _Tags | None = None

    def physical(self, logical: int) -> int:
        """Return the physical slot of a logical one.

        Raises:
            FormatError: there is no such slot (a record names a spill slot out of range).
        """
        if not 0 <= logical < self.n_slots:
            raise FormatError(f"logical slot {logical} is not in 0..{self.n_slots - 1}")
        if self._order is None:
            self._order = self._keys.slots.permutation(Domain.SLOT_ORDER, 0, self.n_slots)
        return int(self._order[logical])

    def open_part(self, row: int, part: int, elements: NDArray[np.uint16]) -> bytes:
        """Open one slot as received.

        Args:
            row: row of level 0 that the slot belongs to.
            part: number of the part, from 0.
            elements: uint16 (shape.width,), data elements then tags; untrusted.

        Returns:
            ``shape.part_bytes`` bytes of the framed record.

        Raises:
            FormatError: wrong shape, or an element out of range.
            RecordRefused: the slot does not open.
        """
        if elements.shape != (self.shape.width,):
            raise FormatError(
                f"a record slot has {elements.shape} elements (need {self.shape.width})"
            )
        data, tags = np.split(elements, [self.shape.n_elements])
        if int(data.max()) >> ELEMENT_BITS or int(tags.max()) >= P:
            raise FormatError("a record slot holds an element out of range")
        nonce = _nonce(row, part)
        what = f"part {part} of record {row}"
        return self._aead.open(nonce, _sealed_bytes(data), self._associated + nonce, what)

    def check_tags(self, slot: int, elements: NDArray[np.uint16]) -> None:
        """Prove the linear tags of one slot.

        Args:
            slot: physical slot.
            elements: uint16 (shape.width,), as received, in range.

        Raises:
            FormatError: a tag does not fit.
        """
        tags = self._linear_tags()
        first = slot // WORDS_PER_BLOCK * WORDS_PER_BLOCK
        rows = np.repeat(elements[None, : self.shape.n_elements], slot - first + 1, axis=0)
        if not np.array_equal(tags.compute(rows, first)[-1], elements[self.shape.n_elements :]):
            raise FormatError(f"the tags of record slot {slot} do not fit")

    def _linear_tags(self) -> _Tags:
        if self._tags is None:
            self._tags = _Tags(self._keys.tag, self.shape)
        return self._tags

    @property
    def n_groups(self) -> int:
        """Groups that private fetches cut the slots into."""
        return self.shape.groups(self.n_slots)[0]

    @property
    def group_slots(self) -> int:
        """Slots of a group."""
        return self.shape.groups(self.n_slots)[1]

    @cached_property
    def tag_pads(self) -> NDArray[np.uint16]:
        """Pads of the tags: uint16 (groups, slots of a group, 3), 0 beyond the last slot; secret.

        They are needed whole to judge a server, and a second search has them.
        """
        n_groups, group_slots = self.shape.groups(self.n_slots)
        pads = np.zeros((n_groups * group_slots, N_TAGS), np.uint16)
        words = self._keys.tag.words(Domain.TAG_PAD, 0, np.arange(N_TAGS), 0, self.n_slots)
        pads[: self.n_slots] = words.T
        return pads.reshape(n_groups, group_slots, N_TAGS)

    def failing_fetches(
        self, elements: NDArray[np.uint16], pads: NDArray[np.uint16]
    ) -> NDArray[np.bool_]:
        """Return for each fetch whether a tag of it does not fit (steps 8.1.6 and 8.1.7).

        Args:
            elements: uint16 (n_fetches, slots of a group, width), below p.
            pads: uint16 (n_fetches, slots of a group, 3): the same combination of the pads.

        Returns:
            bool (n_fetches,).
        """
        flat = elements.reshape(-1, self.shape.width)
        data, tags = np.split(flat, [self.shape.n_elements], axis=1)
        wrong = self._linear_tags().expected(data, pads.reshape(-1, N_TAGS)) != tags
        return np.asarray(wrong.reshape(len(elements), -1).any(axis=1))

    def parse_frame(self, first_part: bytes) -> tuple[int, list[int]]:
        """Return (record bytes, logical slots of the parts after the first) of a row.

        Raises:
            FormatError: the frame does not fit the segment.
        """
        size = int.from_bytes(first_part[:4], "big")
        spill = int.from_bytes(first_part[4:FRAME_BYTES], "big")
        n_more = self.shape.n_parts(size) - 1
        if n_more == 0:
            right = spill == 0
        else:
            right = self._n_rows <= spill <= self.n_slots - n_more
        if not right:
            raise FormatError(f"a record of {size} bytes spills out of its segment")
        return size, list(range(spill, spill + n_more))

    def join(self, size: int, parts: Sequence[bytes]) -> bytes:
        """Return the record bytes of all ``parts`` of a row, padding proved zero.

        Raises:
            FormatError: the padding is not zero.
        """
        framed = b"".join(parts)[FRAME_BYTES:]
        if any(framed[size:]):
            raise FormatError("a record is padded with other than zeros")
        return framed[:size]
