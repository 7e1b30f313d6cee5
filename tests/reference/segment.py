"""Segment files: build, write, read, refuse (section 5)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from .codec import bytes_of, decode_cbor, encode_cbor, has_shape, is_uint, u32
from .field import P
from .index import (
    Columns,
    Matrix,
    cells,
    columns_of,
    corpus_rows,
    level_rows,
    masked,
    parent_impacts,
    physical_rows,
)
from .keys import Bundle, column_keys, segment_keys
from .records import N_TAGS, UNITS, Layout, build_slots
from .refused import Refused, require
from .text import (
    Corpus,
    Scoring,
    Statistics,
    document_weights,
    impact,
    segment_step,
    statistics,
)

MAGIC = b"MKSEGMNT"
PAGE = 4096


class Level(NamedTuple):
    """One level of a segment: panel widths and all physical rows of C."""

    w0: int
    w1: int
    matrix: Matrix


class Segment(NamedTuple):
    """A segment as servers hold it."""

    collection: bytes
    epoch: int
    salt: bytes
    n_rows: int
    fan_out: int
    n_checks: int
    n_tables: int
    levels: list[Level]
    slots: list[list[int]]
    units: int

    @property
    def layout(self) -> Layout:
        """Return what reading the slots needs."""
        return Layout(self.collection, self.salt, self.n_rows, len(self.slots), self.units)


class Built(NamedTuple):
    """A segment with what only its owner knows of it."""

    segment: Segment
    step: int
    stats: Statistics
    columns: list[Columns]


def plan_segment(
    corpus: Corpus,
    order: Sequence[int],
    collection: bytes,
    epoch: int,
    salt: bytes,
    bundle: Bundle,
    fan_out: int,
    n_checks: int,
    n_tables: int,
    widths: Sequence[tuple[int, int]],
    scoring: Scoring,
    n_dedicated: Sequence[int] | None = None,
    stats: Statistics | None = None,
) -> Built:
    """Build a segment in memory.

    Args:
        corpus: documents whose terms are all in `stats`.
        order: document numbers; rows follow first appearance.
        collection: 16 bytes.
        epoch: generation of keys.
        salt: 32 fresh uniform bytes.
        bundle: keys by kind, secret.
        fan_out: data rows of a block, at least 2.
        n_checks: check rows of a block.
        n_tables: tables of shared columns.
        widths: (w0, w1) of every level.
        scoring: ranking function.
        n_dedicated: dedicated terms of every level; None: as many as there is room for.
        stats: counts of the group; those of the corpus if None.
    """
    size = fan_out + n_checks
    if fan_out < 2 or n_checks < 1 or size % 8 or size > 512 or not 1 <= n_tables <= 8:
        raise ValueError("fan_out, n_checks or n_tables are out of range")
    stats = stats or statistics(corpus)
    keys = segment_keys(bundle, salt)
    rows = corpus_rows(corpus, order, stats)
    weights = [document_weights(scoring, stats, row.tfs, row.length) for row in rows]
    step = segment_step(max((w for row in weights for w in row.values()), default=0))
    impacts = [{term: impact(w, step) for term, w in row.items()} for row in weights]
    n_levels = len(level_rows(len(rows), fan_out))
    if len(widths) != n_levels:
        raise ValueError(f"{len(widths)} widths for {n_levels} levels")
    levels, columns = [], []
    for level, (w0, w1) in enumerate(widths):
        dedicated = n_dedicated[level] if n_dedicated else min(w0, len(stats.terms))
        here = columns_of(column_keys(bundle), level, stats.terms, dedicated, (w0, w1), n_tables)
        matrix = cells(impacts, here, keys.check, level, fan_out, n_checks)
        levels.append(Level(w0, w1, masked(matrix, keys.mask, level)))
        columns.append(here)
        impacts = parent_impacts(impacts, fan_out)
    slots, layout = build_slots(rows, keys, collection, salt)
    segment = Segment(
        collection, epoch, salt, len(rows), fan_out, n_checks, n_tables, levels, slots, layout.units
    )
    return Built(segment, step, stats, columns)


def build_segment(
    corpus: Corpus,
    order: Sequence[int],
    collection: bytes,
    epoch: int,
    salt: bytes,
    bundle: Bundle,
    fan_out: int,
    n_checks: int,
    n_tables: int,
    widths: Sequence[tuple[int, int]],
    scoring: Scoring,
    n_dedicated: Sequence[int] | None = None,
    stats: Statistics | None = None,
) -> bytes:
    """Return the bytes of a segment file; arguments as for `plan_segment`."""
    built = plan_segment(
        corpus,
        order,
        collection,
        epoch,
        salt,
        bundle,
        fan_out,
        n_checks,
        n_tables,
        widths,
        scoring,
        n_dedicated,
        stats,
    )
    return encode_segment(built.segment)


def _section(matrix: Matrix) -> bytes:
    return b"".join(value.to_bytes(2, "little") for row in matrix for value in row)


def _next_page(offset: int) -> int:
    return -(-offset // PAGE) * PAGE


def encode_segment(segment: Segment) -> bytes:
    """Return the bytes of a segment file."""
    sections = [_section(level.matrix) for level in segment.levels] + [_section(segment.slots)]
    offsets, end = [], PAGE
    for section in sections:
        offsets.append(_next_page(end))
        end = offsets[-1] + len(section)
    hashes = [hashlib.sha256(section).digest() for section in sections]
    header = {
        "collection": segment.collection,
        "epoch": segment.epoch,
        "salt": segment.salt,
        "n_rows": segment.n_rows,
        "fan_out": segment.fan_out,
        "n_checks": segment.n_checks,
        "n_tables": segment.n_tables,
        "levels": [
            {
                "offset": offsets[i],
                "n_rows": len(level.matrix),
                "dedicated": level.w0,
                "table": level.w1,
                "sha256": hashes[i],
            }
            for i, level in enumerate(segment.levels)
        ],
        "slots": {
            "offset": offsets[-1],
            "n_slots": len(segment.slots),
            "units": segment.units,
            "sha256": hashes[-1],
        },
    }
    raw = encode_cbor(header)
    if 16 + len(raw) > PAGE:
        raise ValueError(f"a header of {len(raw)} bytes does not fit in {PAGE - 16}")
    out = bytearray((MAGIC + u32(1) + u32(len(raw)) + raw).ljust(PAGE, b"\x00"))
    for offset, section in zip(offsets, sections, strict=True):
        out = out.ljust(offset, b"\x00") + section
    return bytes(out)


def segment_id(data: bytes) -> bytes:
    """Return the id of a segment file."""
    return hashlib.sha256(data[:PAGE]).digest()


_HEADER = {
    "collection": bytes_of(16),
    "epoch": is_uint,
    "salt": bytes_of(32),
    "n_rows": is_uint,
    "fan_out": is_uint,
    "n_checks": is_uint,
    "n_tables": is_uint,
    "levels": [
        {
            "offset": is_uint,
            "n_rows": is_uint,
            "dedicated": is_uint,
            "table": is_uint,
            "sha256": bytes_of(32),
        }
    ],
    "slots": {"offset": is_uint, "n_slots": is_uint, "units": is_uint, "sha256": bytes_of(32)},
}


def read_header(data: bytes) -> dict[str, Any]:
    """Return the header of a segment file or of its first page; refuse at 5.1 to 5.3."""
    header = _parse_header(data)
    _check_ranges(header)
    return header


def _parse_header(data: bytes) -> dict[str, Any]:
    require(data[:8] == MAGIC, "5.1", "another magic")
    require(data[8:12] == u32(1), "5.2", "another format")
    require(len(data) >= PAGE, "5.3", "the first page is cut off")
    end = 16 + int.from_bytes(data[12:16], "big")
    require(end <= PAGE, "5.3", "the header is longer than its page")
    require(not any(data[end:PAGE]), "5.3", "bytes after the header are not zero")
    try:
        header = decode_cbor(data[16:end])
    except ValueError as error:
        raise Refused("5.3", f"the header is not canonical: {error}") from error
    require(has_shape(_HEADER, header), "5.3", "the header has other keys or types")
    return dict(header)


def _check_ranges(header: dict[str, Any]) -> None:
    rows = header["fan_out"] + header["n_checks"]
    require(header["n_rows"] >= 1, "5.3", "no rows")
    require(header["fan_out"] >= 2, "5.3", "fan_out is below 2")
    require(header["n_checks"] >= 1, "5.3", "no check rows")
    require(rows % 8 == 0 and rows <= 512, "5.3", f"blocks of {rows} rows")
    require(1 <= header["n_tables"] <= 8, "5.3", f"{header['n_tables']} tables")
    blocks = 0
    for level in header["levels"]:
        for width in (level["dedicated"], level["table"]):
            require(width >= 64 and width % 64 == 0, "5.3", f"a panel of {width} columns")
        width = level["dedicated"] + header["n_tables"] * level["table"]
        blocks += level["n_rows"] * width // 8
    require(blocks <= 1 << 32, "5.3", f"{blocks} AES blocks under one key")
    require(header["slots"]["units"] in UNITS, "5.3", f"slots of {header['slots']['units']} units")
    n_slots = header["slots"]["n_slots"]
    require(n_slots >= header["n_rows"], "5.3", f"{n_slots} slots for {header['n_rows']} rows")


def read_segment(data: bytes, verify: bool = True) -> Segment:
    """Read a segment file; refuse at 5.1 to 5.6 (5.6 only if `verify`)."""
    header = read_header(data)
    n_checks, fan_out, n_tables = header["n_checks"], header["fan_out"], header["n_tables"]
    expected = [physical_rows(n, fan_out, n_checks) for n in level_rows(header["n_rows"], fan_out)]
    given = [level["n_rows"] for level in header["levels"]]
    require(given == expected, "5.4", f"levels of {given} rows, expected {expected}")

    shapes = [
        (level["n_rows"], level["dedicated"] + n_tables * level["table"], level)
        for level in header["levels"]
    ]
    slots = header["slots"]
    shapes.append((slots["n_slots"], 8 * slots["units"] + N_TAGS, slots))
    end = PAGE
    for n_rows, width, entry in shapes:
        require(entry["offset"] == _next_page(end), "5.5", f"an offset is {entry['offset']}")
        end = entry["offset"] + 2 * n_rows * width
    require(len(data) == end, "5.5", f"{len(data)} bytes, expected {end}")

    sections, previous = [], PAGE
    for n_rows, width, entry in shapes:
        start, end = entry["offset"], entry["offset"] + 2 * n_rows * width
        raw = data[start:end]
        matrix = [
            [int.from_bytes(raw[at : at + 2], "little") for at in range(row, row + 2 * width, 2)]
            for row in range(0, len(raw), 2 * width)
        ]
        if verify:
            require(not any(data[previous:start]), "5.6", "a gap is not zero")
            right = hashlib.sha256(raw).digest() == entry["sha256"]
            require(right, "5.6", f"another hash of the section at {start}")
            require(all(value < P for row in matrix for value in row), "5.6", "an element >= p")
        previous = end
        sections.append(matrix)
    levels = [
        Level(entry["dedicated"], entry["table"], matrix)
        for entry, matrix in zip(header["levels"], sections[:-1], strict=True)
    ]
    return Segment(
        header["collection"],
        header["epoch"],
        header["salt"],
        header["n_rows"],
        fan_out,
        n_checks,
        n_tables,
        levels,
        sections[-1],
        slots["units"],
    )
