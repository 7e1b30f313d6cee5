"""Records: bytes, frames, sealed parts, slots of elements, tags (sections 4.6 and 8.10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from .codec import decode_varint, encode_varint, u32, u64
from .field import P
from .index import Row
from .keys import SegmentKeys
from .keystream import SLOT_ORDER, TAG_PAD, TAG_WEIGHT, keyed_permutation, word
from .refused import Refused, require

UNITS = (34, 68, 102, 136)
N_TAGS = 3
_LABEL = b"mksearch/1/record\x00"


def encode_record(row: Row) -> bytes:
    """Encode the record bytes of a row."""
    out = b"\x01" + encode_varint(row.length) + encode_varint(len(row.tfs))
    previous = -1
    for term, tf in sorted(row.tfs.items()):
        out += encode_varint(2 * (term - previous - 1) + (tf > 1))
        if tf > 1:
            out += encode_varint(tf - 2)
        previous = term
    out += encode_varint(len(row.members))
    for member in sorted(row.members, key=lambda member: member[0].encode("utf-8")):
        for text in member:
            raw = text.encode("utf-8")
            out += encode_varint(len(raw)) + raw
    return out


def decode_record(data: bytes) -> Row:
    """Decode record bytes; refuse at 8.10.4 what `encode_record` would not have written."""
    try:
        row = _decode_record(data)
    except ValueError as error:
        raise Refused("8.10.4", f"record bytes: {error}") from error
    require(encode_record(row) == data, "8.10.4", "record bytes are not canonical")
    return row


def _decode_record(data: bytes) -> Row:
    if data[:1] != b"\x01":
        raise ValueError("another version")
    length, at = decode_varint(data, 1)
    n_terms, at = decode_varint(data, at)
    tfs: dict[int, int] = {}
    term = -1
    for _ in range(n_terms):
        step, at = decode_varint(data, at)
        term += 1 + (step >> 1)
        tfs[term] = 1
        if step & 1:
            more, at = decode_varint(data, at)
            tfs[term] = more + 2
    n_members, at = decode_varint(data, at)
    if n_members == 0:
        raise ValueError("no member")
    members = []
    for _ in range(n_members):
        texts = []
        for _ in range(3):
            size, at = decode_varint(data, at)
            if at + size > len(data):
                raise ValueError("cut off")
            texts.append(data[at : at + size].decode("utf-8"))
            at += size
        members.append((texts[0], texts[1], texts[2]))
    ids = [member[0].encode("utf-8") for member in members]
    if any(a >= b for a, b in pairwise(ids)):
        raise ValueError("ids are not ascending")
    if not all(1 <= len(raw) <= 1024 for raw in ids):
        raise ValueError("an external id is not 1..1024 bytes long")
    if at != len(data):
        raise ValueError("bytes after the end")
    return Row(tfs, length, members)


def require_known_terms(row: Row, n_terms: int) -> None:
    """Refuse at 8.10.4 a row with a term that the dictionary of so many terms does not have."""
    require(max(row.tfs, default=-1) < n_terms, "8.10.4", "a term id is not in the dictionary")


def part_size(units: int) -> int:
    """Return the bytes of a frame that one slot carries."""
    return 15 * units - 16


def choose_units(records: Sequence[bytes]) -> int:
    """Return the smallest slot that takes at least 97 % of the framed records, else the largest."""
    for units in UNITS:
        whole = sum(8 + len(record) <= part_size(units) for record in records)
        if 100 * whole >= 97 * len(records):
            return units
    return UNITS[-1]


def _n_parts(record_size: int, units: int) -> int:
    return -(-(8 + record_size) // part_size(units))


class Layout(NamedTuple):
    """What a reader must know of a segment to read its slots."""

    collection: bytes
    salt: bytes
    n_rows: int
    n_slots: int
    units: int

    @property
    def n_elements(self) -> int:
        """Return the elements of a slot, tags not counted."""
        return 8 * self.units


def _associated(layout: Layout, nonce: bytes) -> bytes:
    return _LABEL + layout.collection + layout.salt + nonce


def elements_of(sealed: bytes) -> list[int]:
    """Cut bytes into elements of 15 bits, the most significant first."""
    out = []
    for start in range(0, len(sealed), 15):
        number = int.from_bytes(sealed[start : start + 15], "big")
        out += [number >> (15 * (7 - i)) & 0x7FFF for i in range(8)]
    return out


def bytes_of_elements(elements: Sequence[int]) -> bytes:
    """Undo `elements_of`."""
    out = b""
    for start in range(0, len(elements), 8):
        number = 0
        for element in elements[start : start + 8]:
            number = number << 15 | element
        out += number.to_bytes(15, "big")
    return out


def tags_of(tag_key: bytes, slot: int, elements: Sequence[int]) -> list[int]:
    """Return the tags of a physical slot."""
    return [
        (
            sum(word(tag_key, TAG_WEIGHT, 0, k, i) * value for i, value in enumerate(elements))
            + word(tag_key, TAG_PAD, 0, k, slot)
        )
        % P
        for k in range(N_TAGS)
    ]


def slot_order(keys: SegmentKeys, n_slots: int) -> list[int]:
    """Return the physical slot of every logical slot."""
    return keyed_permutation(keys.slots, SLOT_ORDER, 0, n_slots)


def build_slots(
    rows: Sequence[Row], keys: SegmentKeys, collection: bytes, salt: bytes
) -> tuple[list[list[int]], Layout]:
    """Return the physical slots, elements and tags, and their layout."""
    records = [encode_record(row) for row in rows]
    units = choose_units(records)
    n_slots = sum(_n_parts(len(record), units) for record in records)
    layout = Layout(collection, salt, len(rows), n_slots, units)
    order = slot_order(keys, n_slots)
    slots: list[list[int]] = [[] for _ in range(n_slots)]
    next_spill = len(rows)
    for r, record in enumerate(records):
        n_parts = _n_parts(len(record), units)
        first_spill = next_spill if n_parts > 1 else 0
        frame = u32(len(record)) + u32(first_spill) + record
        frame = frame.ljust(n_parts * part_size(units), b"\x00")
        for j in range(n_parts):
            nonce = u64(r) + u32(j)
            plain = frame[j * part_size(units) : (j + 1) * part_size(units)]
            sealed = AESGCM(keys.record).encrypt(nonce, plain, _associated(layout, nonce))
            slot = order[r if j == 0 else first_spill + j - 1]
            elements = elements_of(sealed)
            slots[slot] = elements + tags_of(keys.tag, slot, elements)
        next_spill += n_parts - 1
    return slots, layout


def _open_part(layout: Layout, keys: SegmentKeys, r: int, j: int, slot: Sequence[int]) -> bytes:
    n = layout.n_elements
    require(len(slot) == n + N_TAGS, "8.10.1", f"a slot has {len(slot)} elements")
    require(all(0 <= value < 1 << 15 for value in slot[:n]), "8.10.2", "an element has 16 bits")
    require(all(0 <= value < P for value in slot[n:]), "8.10.2", "a tag is not below p")
    nonce = u64(r) + u32(j)
    try:
        sealed = bytes_of_elements(slot[:n])
        return AESGCM(keys.record).decrypt(nonce, sealed, _associated(layout, nonce))
    except InvalidTag as error:
        raise Refused("8.10.3", f"part {j} of row {r} is not authentic") from error


def open_record(
    layout: Layout,
    keys: SegmentKeys,
    r: int,
    fetch: Callable[[list[int]], Sequence[Sequence[int]]],
) -> Row:
    """Fetch, by physical slot numbers, and open the record of row r; refuse as in 8.10."""
    order = slot_order(keys, layout.n_slots)
    first = fetch([order[r]])
    require(len(first) == 1, "8.10.1", f"{len(first)} slots where 1 was asked for")
    frame = _open_part(layout, keys, r, 0, first[0])
    size, first_spill = int.from_bytes(frame[:4], "big"), int.from_bytes(frame[4:8], "big")
    n_spill = _n_parts(size, layout.units) - 1
    if n_spill == 0:
        require(first_spill == 0, "8.10.4", "a spill slot without spill")
    else:
        inside = layout.n_rows <= first_spill <= layout.n_slots - n_spill
        require(inside, "8.10.4", f"spill slots {first_spill}.. are out of range")
        logical = range(first_spill, first_spill + n_spill)
        spill = fetch([order[x] for x in logical])
        require(len(spill) == n_spill, "8.10.1", f"{len(spill)} slots, {n_spill} asked for")
        for j, slot in enumerate(spill, start=1):
            frame += _open_part(layout, keys, r, j, slot)
    require(not any(frame[8 + size :]), "8.10.4", "padding is not zero")
    return decode_record(frame[8 : 8 + size])
