"""Vectors of section 6.1: groups that change, good and bad."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mksearch.codec import decode_cbor, encode_cbor
from mksearch.index.catalogue import Catalogue, CatalogueEntry
from mksearch.index.catalogue_part import CataloguePart
from mksearch.index.dictionary import Dictionary, SegmentFacts
from mksearch.index.manifest import ObjectRef
from mksearch.index.record import Record
from mksearch.index.rows import Postings
from mksearch.index.tombstones import LookupPart, Tombstones, decode_parts, encode_parts
from mksearch.query.group import GroupView
from mksearch.text.weights import Scoring, Statistics
from tests.reference import changes as reference
from tests.reference import stream
from tests.reference.text import Scoring as PlainScoring
from tests.reference.text import Statistics as PlainStatistics
from tests.reference.text import document_weights

from .bad_files import Change, changed, setting, vector_of
from .fast import Fixed
from .good_core import BM25, TFIDF
from .material import Json, seed

KINDS: dict[str, Callable[[bytes], object]] = {
    "dictionary": Dictionary.decode,
    "lookup 2": decode_parts,
    "catalogue 2": Catalogue.decode,
    "catalogue part": CataloguePart.decode,
}
_PLAIN: dict[str, Callable[[bytes], object]] = {
    "dictionary": stream.decode_dictionary,
    "lookup 2": reference.decode_places,
    "catalogue 2": reference.decode_catalogue2,
    "catalogue part": reference.decode_part,
}
FAST = {
    kind: lambda case, read=read: read(bytes.fromhex(case["content"]))
    for kind, read in KINDS.items()
    if kind != "dictionary"
}
SLOW = {
    kind: lambda case, read=read: read(bytes.fromhex(case["content"]))
    for kind, read in _PLAIN.items()
    if kind != "dictionary"
}

#: Ids are no longer in the order of document frequencies, and one term is of no document.
TERMS, DFS = ("zebra", "слово", "a", "b", "gone"), (3, 5, 3, 5, 0)


def dictionary() -> Dictionary:
    """Return a dictionary of two segments."""
    return Dictionary(
        "english-1",
        ("and", "the"),
        BM25,
        9,
        123,
        TERMS,
        np.array(DFS, np.int64),
        (2, 3),
        (
            SegmentFacts(seed("a"), 8_454_660, (1_100_000, 1 << 20)),
            SegmentFacts(seed("b"), 8_000_000, (1_048_578, 1 << 20)),
        ),
        np.array([65_536, 70_000, 65_000, 65_536, 1], np.int64),
    )


def places() -> tuple[LookupPart, ...]:
    """Return what a lookup says of two segments, one of which has lost some documents."""
    gone = {
        seed("k1")[:16]: (5, True),
        seed("k2")[:16]: (5, True),
        seed("k3")[:16]: (2, False),
    }
    return (
        LookupPart(seed("a"), ObjectRef(seed("lookup a"), 1000), Tombstones(gone)),
        LookupPart(seed("b"), ObjectRef(seed("lookup b"), 300)),
    )


def _fill() -> list[list[bytes]]:
    return [[seed(f"fill {s} {i}")[:16] for i in range(n)] for s, n in ((0, 13), (1, 16))]


def _packed() -> bytes:
    drawn = Fixed(*(key for keys in _fill() for key in keys))
    return encode_parts(places(), drawn)


def catalogue() -> Catalogue:
    """Return a catalogue with a part, and an entry of an older release."""
    entry = CatalogueEntry("ä", seed("ä"), 3, seed("salt"), seed("b"))
    parts = {seed(s): ObjectRef(seed(f"part {s}"), 777) for s in ("a", "b")}
    return Catalogue(parts, (entry,))


def part() -> CataloguePart:
    """Return what the owner remembers of a segment of two rows and three documents."""
    postings = Postings(
        np.array([0, 2, 3], np.int64),
        np.array([0, 3, 1], np.int32),
        np.array([2, 1, 300], np.int32),
        np.array([3, 300], np.int64),
    )
    return CataloguePart(
        ["b", "é", "слово"],
        ["B", "", "T"],
        ["snippet", "", "…"],
        [seed(name) for name in ("b", "é", "слово")],
        np.array([0, 1, 0], np.int64),
        postings,
        Statistics(3, 306, np.array([2, 1, 0, 2], np.int64)),
    )


def _weights() -> Json:
    """Weights of a document, the squares added by falling frequency and not by id."""
    tfs = {0: 2, 1: 1, 2: 7, 3: 3}
    view = object.__new__(GroupView)
    view.dictionary = dictionary()
    view.scoring = Scoring(**TFIDF)
    record = Record(np.array(list(tfs), np.int32), np.array(list(tfs.values()), np.int32), 13, ())
    ids, weights = view.record_weights(record)
    order = ids.tolist()
    return {
        "tfs": [[i, tf] for i, tf in tfs.items()],
        "length": 13,
        "scoring": TFIDF,
        "order": order,
        "weights": [[i, w] for i, w in zip(order, weights.tolist(), strict=True)],
    }


def file() -> Json:
    """Return dictionary, lookup and catalogue of a group that was changed."""
    made, held = dictionary(), part()
    assert made.ratios is not None
    return {
        "about": "What a group of two segments is described by, before compression; numbers of "
        "tombstones that mean nothing are the keys in `fill`.",
        "source": "docs/protocol.md, section 6.1",
        "dictionary": {
            "terms": list(made.terms),
            "dfs": made.dfs.tolist(),
            "n_docs": made.n_docs,
            "total_length": made.total_length,
            "ratios": made.ratios.tolist(),
            "segments": [
                {"salt": f.salt.hex(), "step": f.step, "kappa": list(f.kappa)}
                for f in made.segments
            ],
            "inflated": zlib.decompress(made.encode()).hex(),
        },
        "weights": _weights(),
        "lookup": {
            "segments": [
                {
                    "salt": p.salt.hex(),
                    "part": [p.part.id.hex(), p.part.size],
                    "gone": [[k.hex(), r, w] for k, (r, w) in p.tombstones.gone.items()],
                    "fill": [key.hex() for key in keys],
                }
                for p, keys in zip(places(), _fill(), strict=True)
            ],
            "content": _packed().hex(),
        },
        "catalogue": {
            "parts": [
                [salt.hex(), p.id.hex(), p.size] for salt, p in sorted(catalogue().parts.items())
            ],
            "entries": [
                [e.id, e.content_hash.hex(), e.row, e.salt.hex(), e.blob.hex()]
                for e in catalogue().entries
            ],
            "inflated": zlib.decompress(catalogue().encode()).hex(),
        },
        "part": {
            "documents": [
                [held.ids[number], held.titles[number], held.snippets[number], h.hex(), r]
                for number, (h, r) in enumerate(zip(held.hashes, held.rows.tolist(), strict=True))
            ],
            "rows": [
                {"tfs": [[0, 2], [3, 1]], "length": 3},
                {"tfs": [[1, 300]], "length": 300},
            ],
            "n_docs": held.statistics.n_docs,
            "total_length": held.statistics.total_length,
            "dfs": held.statistics.dfs.tolist(),
            "inflated": zlib.decompress(held.encode()).hex(),
        },
    }


def check(told: Json) -> None:
    """Give every value of the file with the reference."""
    words = told["dictionary"]
    stats = PlainStatistics(words["n_docs"], words["total_length"], words["terms"], words["dfs"])
    facts = [
        stream.SegmentEntry(bytes.fromhex(f["salt"]), f["step"], (f["kappa"][0], f["kappa"][1]))
        for f in words["segments"]
    ]
    plain = stream.Dictionary(
        "english-1", ["and", "the"], PlainScoring(**BM25), stats, [2, 3], facts, words["ratios"]
    )
    inflated = bytes.fromhex(words["inflated"])
    assert stream.dictionary_cbor(plain) == inflated
    assert stream.decode_dictionary(stream.deflate(inflated)) == plain
    case = told["weights"]
    weights = document_weights(
        PlainScoring(**case["scoring"]), stats, dict(map(tuple, case["tfs"])), case["length"]
    )
    assert [[i, weights[i]] for i in case["order"]] == case["weights"]
    found = [
        reference.Place(
            bytes.fromhex(s["salt"]),
            bytes.fromhex(s["part"][0]),
            s["part"][1],
            {bytes.fromhex(k): (r, w) for k, r, w in s["gone"]},
        )
        for s in told["lookup"]["segments"]
    ]
    fill = [[bytes.fromhex(k) for k in s["fill"]] for s in told["lookup"]["segments"]]
    content = bytes.fromhex(told["lookup"]["content"])
    assert reference.encode_places(found, fill) == content
    assert reference.decode_places(content) == found
    listed = told["catalogue"]
    entries = [
        stream.CatalogueEntry(i, bytes.fromhex(h), r, bytes.fromhex(s), bytes.fromhex(b))
        for i, h, r, s, b in listed["entries"]
    ]
    parts = {bytes.fromhex(s): (bytes.fromhex(n), size) for s, n, size in listed["parts"]}
    both = reference.Catalogue(parts, entries)
    assert reference.catalogue2_cbor(both).hex() == listed["inflated"]
    packed = stream.deflate(bytes.fromhex(listed["inflated"]))
    assert reference.decode_catalogue2(packed) == both
    held = told["part"]
    own = reference.Part(
        [(i, t, s, bytes.fromhex(h), r) for i, t, s, h, r in held["documents"]],
        [(dict(map(tuple, row["tfs"])), row["length"]) for row in held["rows"]],
        held["n_docs"],
        held["total_length"],
        held["dfs"],
    )
    assert reference.part_cbor(own).hex() == held["inflated"]
    assert reference.decode_part(stream.deflate(bytes.fromhex(held["inflated"]))) == own


# --- bad -----------------------------------------------------------------------------------------


def _with(content: bytes, change: Change) -> bytes:
    fields = decode_cbor(zlib.decompress(content), "fields")
    change(fields)
    return zlib.compress(encode_cbor(fields), 0)


def _first_kappa(fields: dict[str, Any]) -> None:
    fields.update(format=1, segments=fields["segments"][:1])
    fields["segments"][0]["kappa"] = [1, 1]


def _twice(fields: dict[str, Any]) -> None:
    fields["segments"] = fields["segments"][:1] * 2


def bad() -> Iterator[tuple[str, Json]]:
    """Yield the bad vectors by name."""
    words, lists, own = dictionary().encode(), catalogue().encode(), part().encode()
    packed = _packed()
    # Of the first segment: salt, name, size, m, then 16 tombstones; behind one byte and a number.
    first, size = 5 + 32 + 32 + 8, 21
    at = first + 4
    second = at + 16 * size
    entries = [packed[at + size * i : at + size * (i + 1)] for i in range(16)]
    real = [i for i, entry in enumerate(entries) if entry[16:20] != b"\xff" * 4]
    void = next(i for i in range(16) if i not in real)
    whole = next(i for i in real if entries[i][20])
    rows: list[tuple[str, str, str, str, bytes]] = [
        (
            "dictionary",
            "2_ratio_0",
            "6.6",
            "a ratio of 0",
            _with(words, setting("ratios", bytes(20))),
        ),
        (
            "dictionary",
            "2_ratios",
            "6.6",
            "a ratio missing",
            _with(words, setting("ratios", b"\1\0\0\0" * 4)),
        ),
        (
            "dictionary",
            "2_df",
            "6.6",
            "a frequency above n_docs",
            _with(words, setting("dfs", b"\3\5\3\12\0")),
        ),
        (
            "dictionary",
            "2_kappa",
            "6.6",
            "a kappa of 0",
            _with(words, setting("segments.0.kappa", [0, 1])),
        ),
        ("dictionary", "2_none", "6.6", "no segment", _with(words, setting("segments", []))),
        ("dictionary", "2_twice", "6.6", "a segment twice", _with(words, _twice)),
        ("dictionary", "1_ratios", "6.6", "ratios in format 1", _with(words, _first_kappa)),
        ("lookup 2", "2_empty", "6.7", "no byte at all", b""),
        ("lookup 2", "2_version", "6.7", "format 3", changed(packed, 0, 3)),
        ("lookup 2", "2_cut", "6.7", "the last byte missing", packed[:-1]),
        ("lookup 2", "2_longer", "6.7", "a byte more", packed + b"\0"),
        ("lookup 2", "2_none", "6.7", "no segment", b"\2" + bytes(4)),
        ("lookup 2", "2_twice", "6.7", "a segment twice", packed[:5] + packed[5:second] * 2),
        (
            "lookup 2",
            "2_fewer",
            "6.7",
            "15 tombstones",
            changed(packed[: second - size] + packed[second:], first + 3, 15),
        ),
        (
            "lookup 2",
            "2_order",
            "6.7",
            "tombstones that do not ascend",
            packed[:at] + entries[1] + entries[0] + packed[at + 2 * size :],
        ),
        (
            "lookup 2",
            "2_same",
            "6.7",
            "a tombstone twice",
            packed[:at] + entries[1] + packed[at + size :],
        ),
        ("lookup 2", "2_whole", "6.7", "whole of 2", changed(packed, at + size * whole + 20, 2)),
        (
            "lookup 2",
            "2_void",
            "6.7",
            "whole of a row that is none",
            changed(packed, at + size * void + 20, 1),
        ),
        (
            "lookup 2",
            "2_disagree",
            "6.7",
            "a row that is gone and is not",
            changed(packed, at + size * whole + 20, 0),
        ),
        ("catalogue 2", "2_format", "6.8", "format 3", _with(lists, setting("format", 3))),
        (
            "catalogue 2",
            "2_name",
            "6.8",
            "a name of 31 bytes",
            _with(lists, setting("parts.0.1", bytes(31))),
        ),
        (
            "catalogue 2",
            "2_order",
            "6.8",
            "parts that do not ascend",
            _with(lists, lambda f: f["parts"].reverse()),
        ),
        (
            "catalogue 2",
            "2_entry",
            "6.8",
            "an entry of four fields",
            _with(lists, lambda f: f["entries"][0].pop()),
        ),
        (
            "catalogue part",
            "titles",
            "6.8",
            "a title missing",
            _with(own, lambda f: f["titles"].pop()),
        ),
        (
            "catalogue part",
            "hashes",
            "6.8",
            "half a hash",
            _with(own, setting("hashes", bytes(80))),
        ),
        (
            "catalogue part",
            "order",
            "6.8",
            "ids that do not ascend",
            _with(own, lambda f: f["ids"].reverse()),
        ),
        (
            "catalogue part",
            "row",
            "6.8",
            "a row that is not there",
            _with(own, setting("rows", bytes(8) + b"\2\0\0\0")),
        ),
        (
            "catalogue part",
            "terms",
            "6.8",
            "terms that do not ascend",
            _with(own, setting("term_ids", b"\3\0\0\0\0\0\0\0\1\0\0\0")),
        ),
        (
            "catalogue part",
            "term",
            "6.8",
            "a term that is not there",
            _with(own, setting("term_ids", bytes(4) + b"\4\0\0\0\1\0\0\0")),
        ),
        ("catalogue part", "tf", "6.8", "a frequency of 0", _with(own, setting("tfs", bytes(12)))),
        (
            "catalogue part",
            "sizes",
            "6.8",
            "a row of more terms",
            _with(own, setting("sizes", b"\2\0\0\0\2\0\0\0")),
        ),
        (
            "catalogue part",
            "df",
            "6.8",
            "a frequency above n_docs",
            _with(own, setting("dfs", b"\4\0\0\0" * 4)),
        ),
    ]
    for kind, name, step, about, content in rows:
        vector = vector_of(kind, about, step, "FormatError", content=content.hex())
        yield f"{kind.partition(' 2')[0].replace(' ', '_')}_{name}", vector
