"""Groups that change (section 6.1): lookup and catalogue of format 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from .codec import bytes_of, encode_cbor, has_shape, is_bytes, is_text, is_uint, u32, u64
from .refused import Refused, require
from .stream import CatalogueEntry, decode_catalogue, deflate, read_cbor
from .text import Statistics

NO_ROW = (1 << 32) - 1
_TOMBSTONE = 21


class Place(NamedTuple):
    """A segment in the lookup: its own lookup, and row and `whole` of what is gone, by key."""

    salt: bytes
    name: bytes
    size: int
    gone: Mapping[bytes, tuple[int, bool]]


def encode_places(places: Sequence[Place], fill: Sequence[Sequence[bytes]]) -> bytes:
    """Return a lookup of format 2; `fill` has the keys that mean nothing, a list a segment."""
    out = b"\x02" + u32(len(places))
    for place, keys in zip(places, fill, strict=True):
        entries = [key + u32(row) + bytes([whole]) for key, (row, whole) in place.gone.items()]
        entries += [key + u32(NO_ROW) + b"\x00" for key in keys]
        if len(entries) != n_tombstones(len(place.gone)):
            raise ValueError(f"{len(entries)} tombstones")
        out += place.salt + place.name + u64(place.size) + u32(len(entries))
        out += b"".join(sorted(entries))
    return out


def n_tombstones(n_gone: int) -> int:
    """Return how many tombstones are listed for so many documents that are gone."""
    n = 16
    while n < n_gone:
        n *= 2
    return n


def decode_places(content: bytes) -> list[Place]:
    """Read a lookup of format 2; refuse at 6.7."""
    at = 0

    def take(n: int) -> bytes:
        nonlocal at
        require(at + n <= len(content), "6.7", "the lookup is cut")
        at += n
        return content[at - n : at]

    require(take(1) == b"\x02", "6.7", "a lookup of another format")
    places = []
    for _ in range(int.from_bytes(take(4), "big")):
        salt, name, size = take(32), take(32), int.from_bytes(take(8), "big")
        m = int.from_bytes(take(4), "big")
        require(m >= 16 and m & (m - 1) == 0, "6.7", f"{m} tombstones")
        raw = take(m * _TOMBSTONE)
        entries = [raw[i : i + _TOMBSTONE] for i in range(0, len(raw), _TOMBSTONE)]
        places.append(Place(salt, name, size, _gone(entries)))
    require(at == len(content), "6.7", "bytes behind the lookup")
    salts = {place.salt for place in places}
    require(len(salts) == len(places) > 0, "6.7", "no segment, or one twice")
    return places


def _gone(entries: Sequence[bytes]) -> dict[bytes, tuple[int, bool]]:
    require(all(a[:16] < b[:16] for a, b in pairwise(entries)), "6.7", "tombstones do not ascend")
    gone: dict[bytes, tuple[int, bool]] = {}
    for entry in entries:
        row, whole = int.from_bytes(entry[16:20], "big"), entry[20]
        require(whole <= 1 and not (row == NO_ROW and whole), "6.7", "whole is out of range")
        if row != NO_ROW:
            gone[entry[:16]] = row, whole == 1
    by_row: dict[int, set[bool]] = {}
    for row, is_whole in gone.values():
        by_row.setdefault(row, set()).add(is_whole)
    require(all(len(kinds) == 1 for kinds in by_row.values()), "6.7", "tombstones disagree")
    return gone


class Catalogue(NamedTuple):
    """Parts, name and size by salt, and entries of segments without one."""

    parts: Mapping[bytes, tuple[bytes, int]]
    entries: Sequence[CatalogueEntry]


def catalogue2_cbor(catalogue: Catalogue) -> bytes:
    """Return a catalogue of format 2 before compression."""
    entries = sorted(catalogue.entries, key=lambda e: e[0].encode("utf-8"))
    return encode_cbor(
        {
            "format": 2,
            "parts": [[salt, *catalogue.parts[salt]] for salt in sorted(catalogue.parts)],
            "entries": [list(entry) for entry in entries],
        }
    )


def decode_catalogue2(content: bytes) -> Catalogue:
    """Read a catalogue of format 2; refuse at 6.8."""
    body = read_cbor(content, "catalogue")
    shape = {
        "format": lambda value: is_uint(value) and value == 2,
        "parts": [lambda e: isinstance(e, list) and len(e) == 3],
        "entries": [lambda e: isinstance(e, list)],
    }
    require(has_shape(shape, body), "6.8", "a catalogue of another shape")
    for salt, name, size in body["parts"]:
        good = bytes_of(32)(salt) and bytes_of(32)(name) and is_uint(size)
        require(good, "6.8", "a part of another shape")
    salts = [entry[0] for entry in body["parts"]]
    require(all(a < b for a, b in pairwise(salts)), "6.8", "parts do not ascend")
    try:
        entries = decode_catalogue(deflate(encode_cbor(body["entries"])))
    except Refused as refused:
        raise Refused("6.8", refused.why) from refused
    return Catalogue({salt: (name, size) for salt, name, size in body["parts"]}, entries)


class Part(NamedTuple):
    """What the catalogue has of a segment: documents (id, title, snippet, hash, row), and rows."""

    documents: list[tuple[str, str, str, bytes, int]]
    rows: list[tuple[dict[int, int], int]]
    n_docs: int
    total_length: int
    dfs: list[int]


def _little(values: Sequence[int], n_bytes: int = 4) -> bytes:
    return b"".join(value.to_bytes(n_bytes, "little") for value in values)


def part_cbor(part: Part) -> bytes:
    """Return a part of the catalogue before compression."""
    documents = sorted(part.documents, key=lambda d: d[0].encode("utf-8"))
    return encode_cbor(
        {
            "format": 1,
            "ids": [d[0] for d in documents],
            "titles": [d[1] for d in documents],
            "snippets": [d[2] for d in documents],
            "hashes": b"".join(d[3] for d in documents),
            "rows": _little([d[4] for d in documents]),
            "sizes": _little([len(tfs) for tfs, _ in part.rows]),
            "lengths": _little([length for _, length in part.rows], 8),
            "term_ids": _little([i for tfs, _ in part.rows for i in sorted(tfs)]),
            "tfs": _little([tfs[i] for tfs, _ in part.rows for i in sorted(tfs)]),
            "n_docs": part.n_docs,
            "total_length": part.total_length,
            "dfs": _little(part.dfs),
        }
    )


_PART = {
    "format": lambda value: is_uint(value) and value == 1,
    "ids": [is_text],
    "titles": [is_text],
    "snippets": [is_text],
    "n_docs": is_uint,
    "total_length": is_uint,
    **dict.fromkeys(("hashes", "rows", "sizes", "lengths", "term_ids", "tfs", "dfs"), is_bytes),
}


def decode_part(content: bytes) -> Part:
    """Read a part of the catalogue; refuse at 6.8."""
    body = read_cbor(content, "part of a catalogue")
    require(has_shape(_PART, body), "6.8", "a part of another shape")

    def numbers(name: str, n_bytes: int = 4) -> list[int]:
        data = body[name]
        require(len(data) % n_bytes == 0, "6.8", f"{name} is cut")
        pieces = [data[at : at + n_bytes] for at in range(0, len(data), n_bytes)]
        return [int.from_bytes(piece, "little") for piece in pieces]

    ids, rows, hashes = body["ids"], numbers("rows"), body["hashes"]
    n = len(ids)
    good = len(body["titles"]) == len(body["snippets"]) == len(rows) == n
    require(good and len(hashes) == 32 * n, "6.8", "columns of different lengths")
    names = [name.encode("utf-8") for name in ids]
    require(all(a < b for a, b in pairwise(names)), "6.8", "ids do not ascend")
    sizes, lengths, dfs = numbers("sizes"), numbers("lengths", 8), numbers("dfs")
    term_ids, tfs = numbers("term_ids"), numbers("tfs")
    good = len(sizes) == len(lengths) and sum(sizes) == len(term_ids) == len(tfs)
    require(good, "6.8", "rows of different lengths")
    require(all(0 < tf < 1 << 31 for tf in tfs), "6.8", "a term frequency is out of range")
    require(all(i < len(dfs) for i in term_ids), "6.8", "a term that is not there")
    require(all(row < len(sizes) for row in rows), "6.8", "a row that is not there")
    require(all(df <= body["n_docs"] for df in dfs), "6.8", "a frequency is out of range")
    postings, at = [], 0
    for size, length in zip(sizes, lengths, strict=True):
        own = term_ids[at : at + size]
        require(all(a < b for a, b in pairwise(own)), "6.8", "terms do not ascend")
        postings.append((dict(zip(own, tfs[at : at + size], strict=True)), length))
        at += size
    columns: Any = zip(
        ids,
        body["titles"],
        body["snippets"],
        [hashes[at : at + 32] for at in range(0, 32 * n, 32)],
        rows,
        strict=True,
    )
    return Part(list(columns), postings, body["n_docs"], body["total_length"], dfs)


def built_with(part: Part, terms: Sequence[str]) -> Statistics:
    """Return the statistics that the segment of a part was built with."""
    return Statistics(part.n_docs, part.total_length, list(terms[: len(part.dfs)]), part.dfs)
