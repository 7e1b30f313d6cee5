"""Vectors of sections 4 to 7: records, sealed streams, segments, manifests."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache

import numpy as np

from mksearch.codec import encode_cbor
from mksearch.crypto.aead import wrap_key
from mksearch.crypto.kdf import sha256
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.index.blob_list import BlobList
from mksearch.index.catalogue import CatalogueEntry, Lookup, LookupEntry, encode_catalogue
from mksearch.index.dictionary import Dictionary, SegmentFacts
from mksearch.index.document import StoredDocument
from mksearch.index.manifest import (
    FIRST_PREVIOUS,
    Group,
    Manifest,
    ObjectRef,
    SegmentRef,
    SignedManifest,
)
from mksearch.index.record import Member, encode_record
from mksearch.index.slots import SlotReader, SlotWriter
from mksearch.index.stream import padme, seal_stream
from mksearch.params import Quorum

from .fast import Built, Fixed, build, bundle_of
from .good_core import BM25, TFIDF
from .material import (
    COLLECTION,
    OWNER,
    Json,
    content_of,
    pack,
    pack_bytes,
    sample_documents,
    seed,
    shuffled,
)

# --- record.json ---------------------------------------------------------------------------------

ROWS: list[Json] = [
    {"tfs": [[0, 1], [2, 3], [3, 1]], "length": 5, "members": [["b", "T", "é"], ["a", "", ""]]},
    {"tfs": [], "length": 0, "members": [["ärger", "no terms", ""]]},
    {"tfs": [[5, 2], [200, 1], [70_000, 300]], "length": 303, "members": [["x" * 1024, "", ""]]},
    {"tfs": [[1, 1]], "length": 1, "members": [["c", "検索", "long " * 1000]]},
    {"tfs": [[i, 1 + i % 2] for i in range(150)], "length": 225, "members": [["d", "D", "d"]]},
]


def encode_row(row: Json) -> bytes:
    """Return the record bytes of a row of a vector."""
    ids, tfs = [pair[0] for pair in row["tfs"]], [pair[1] for pair in row["tfs"]]
    return encode_record(ids, tfs, row["length"], [Member(*m) for m in row["members"]])


def record() -> Json:
    """Record bytes, frames with spills, elements, slots and tags."""
    salt = seed("record salt")
    keys = bundle_of(OWNER).segment_keys(salt)
    records = [encode_row(row) for row in ROWS]
    writer = SlotWriter(keys, COLLECTION, salt, np.array([len(r) for r in records], np.int64))
    slots = np.zeros((writer.n_slots, writer.shape.width), np.uint16)
    writer.write(records, slots)
    reader = SlotReader(
        keys, COLLECTION, salt, writer.shape, n_rows=len(records), n_slots=writer.n_slots
    )
    return {
        "about": "Rows as record bytes, then framed, sealed, cut into elements, tagged, permuted.",
        "source": "docs/protocol.md, section 4.6",
        "owner": OWNER,
        "salt": salt.hex(),
        "units": writer.shape.units,
        "n_slots": writer.n_slots,
        "rows": [
            row | {"record": data.hex()} | _frame(reader, number, slots)
            for number, (row, data) in enumerate(zip(ROWS, records, strict=True))
        ],
        "physical": [reader.physical(logical) for logical in range(writer.n_slots)],
        "slots": [pack(slot) for slot in slots.tolist()],
        "tags": slots[:, writer.shape.n_elements :].tolist(),
        "units_chosen": [
            {"n_rows": 100, "larger": larger, "record_bytes": sizes, "units": units}
            for larger, sizes, units in _units_chosen()
        ],
    }


def _frame(
    reader: SlotReader, row: int, slots: np.ndarray[tuple[int, int], np.dtype[np.uint16]]
) -> Json:
    """Open every part, prove its tags, and say where the parts lie."""
    logical = [row]
    opened = reader.open_part(row, 0, slots[reader.physical(row)])
    logical += reader.parse_frame(opened)[1]
    for part, slot in enumerate(map(reader.physical, logical)):
        reader.check_tags(slot, slots[slot])
        reader.open_part(row, part, slots[slot])
    return {"logical_slots": logical}


def _units_chosen() -> list[tuple[int, list[int], int]]:
    """How many of 100 records are of the second size, and what slots they get."""
    out = []
    for larger, sizes in (
        (3, [486, 487]),
        (4, [486, 487]),
        (3, [996, 997]),
        (4, [1506, 1507]),
        (100, [0, 9000]),
    ):
        counts = np.array([sizes[0]] * (100 - larger) + [sizes[1]] * larger, np.int64)
        bundle = bundle_of(OWNER)
        writer = SlotWriter(bundle.segment_keys(bytes(32)), COLLECTION, bytes(32), counts)
        out.append((larger, sizes, writer.shape.units))
    return out


# --- stream.json ---------------------------------------------------------------------------------

STREAM_KEY, STREAM_SALT = seed("stream base"), seed("stream salt")
TWO_CHUNKS = 65_529


def sealed(kind: str, content: bytes, collection: bytes = COLLECTION) -> bytes:
    """Seal with the key and salt of these vectors."""
    return seal_stream(SecretKey(STREAM_KEY), kind, collection, content, Fixed(STREAM_SALT))


def stream() -> Json:
    """Padme, sealed streams at the edges of chunks, and what streams contain."""
    cases = [("blob", size) for size in (0, 1, 100, 65_527, 65_528, TWO_CHUNKS, 200_000)]
    cases += [(kind, 33) for kind in ("dictionary", "lookup", "catalogue")]
    return {
        "about": "Sealed files of known content: byte i is (167 i + 13) mod 251.",
        "source": "docs/protocol.md, section 6",
        "padme": [[x, padme(x)] for x in (*range(18), 100, 1000, 65_535, 65_536, 65_537, 10**9)],
        "key": STREAM_KEY.hex(),
        "salt": STREAM_SALT.hex(),
        "collection": COLLECTION.hex(),
        "streams": [_stream(kind, size) for kind, size in cases],
        "contents": _contents(),
    }


def _stream(kind: str, size: int) -> Json:
    file = sealed(kind, content_of(size))
    case: Json = {"kind": kind, "content_bytes": size, "file_bytes": len(file)}
    case["sha256"] = sha256(file).hex()
    return case | ({"file": file.hex()} if len(file) < 300 else {})


def sample_dictionary() -> Dictionary:
    """Return a dictionary with everything in it."""
    return Dictionary(
        "english-1",
        ("and", "the", "über"),
        BM25,
        1000,
        64_321,
        ("слово", "a", "zebra"),
        np.array([1000, 300, 1], np.int64),
        (2, 3),
        (SegmentFacts(seed("a"), 8_454_660),),
    )


def _dictionary_fields() -> Json:
    made = sample_dictionary()
    return {
        "analyzer": made.analyzer,
        "stop_words": list(made.stop_words),
        "scoring": dict(made.scoring),
        "n_docs": made.n_docs,
        "total_length": made.total_length,
        "terms": list(made.terms),
        "dfs": made.dfs.tolist(),
        "n_dedicated": list(made.n_dedicated),
        "segments": [{"salt": facts.salt.hex(), "step": facts.step} for facts in made.segments],
    }


def _contents() -> Json:
    bundle = bundle_of(OWNER)
    lookup = [
        (f"doc-{i}", LookupEntry(0, 7 * i, seed(f"blob {i}"), 99 * i, SecretKey(seed(f"key {i}"))))
        for i in range(5)
    ]
    catalogue = [CatalogueEntry(i, seed(i), 3, seed("salt"), seed("b")) for i in ("ä", "b", "c")]
    blobs = [(seed(f"blob {i}"), 1000 * i) for i in range(4)]
    documents = [("ärger", "Überschrift", "Text\n" * 9), ("e", "", "")]
    dictionary = zlib.decompress(sample_dictionary().encode())
    return {
        "owner": OWNER,
        "blobs": [
            {"id": i, "title": title, "text": text}
            | {"content": StoredDocument(i, title, text).encode().hex()}
            for i, title, text in documents
        ],
        "dictionary": _dictionary_fields() | {"inflated": dictionary.hex()},
        "lookup": {
            "documents": [
                {"id": name, "segment": e.segment, "row": e.row, "blob": e.blob.hex()}
                | {"size": e.size}
                | {"key": e.key.reveal().hex()}
                | {"wrapped": wrap_key(bundle.wrapping_key(), e.key).hex()}
                for name, e in lookup
            ],
            "content": Lookup.encode(bundle, lookup).hex(),
        },
        "catalogue": {
            "entries": [
                [e.id, e.content_hash.hex(), e.row, e.salt.hex(), e.blob.hex()] for e in catalogue
            ],
            "inflated": zlib.decompress(encode_catalogue(catalogue)).hex(),
        },
        "blob_list": {
            "blobs": [[name.hex(), size] for name, size in blobs],
            "file": BlobList.of(blobs).encode().hex(),
        },
    }


# --- segment.json --------------------------------------------------------------------------------

#: Name, documents, fan_out, n_checks, n_tables, widths of the levels, scoring, file in full.
SHAPES: tuple[tuple[str, int, int, int, int, list[list[int]], Json, bool], ...] = (
    ("three levels", 40, 5, 3, 3, [[64, 64], [64, 128], [128, 64]], TFIDF, True),
    ("small", 3, 2, 6, 1, [[64, 64], [64, 64]], TFIDF, True),
    ("bm25, one table", 25, 61, 3, 1, [[192, 64]], BM25, False),
    ("eight tables, four levels", 17, 3, 5, 8, [[64, 64]] * 3, BM25, False),
    ("one document", 1, 7, 1, 3, [[64, 64]], BM25, False),
)


def segment_case(name: str) -> Json:
    """Return the inputs of a segment, without its results."""
    _, n, fan_out, n_checks, n_tables, widths, scoring, _ = next(s for s in SHAPES if s[0] == name)
    return {
        "name": name,
        "owner": OWNER,
        "salt": seed(f"salt of {name}").hex(),
        "scoring": scoring,
        "fan_out": fan_out,
        "n_checks": n_checks,
        "n_tables": n_tables,
        "widths": widths,
        "documents": sample_documents(name, n, spill=name == "three levels"),
    }


@cache
def built_segment(name: str) -> Built:
    """Return the segment of that name, built once."""
    case = segment_case(name)
    n_rows = len({tuple(sorted(d["terms"])) for d in case["documents"]})
    return build(case, shuffled(f"order of {name}", n_rows))


def segment() -> Json:
    """Whole segments from documents that are cut into terms."""
    return {
        "about": "Segments built from analysed documents; `rows` are document numbers, row by row.",
        "source": "docs/protocol.md, sections 4 and 5",
        "cases": [_segment(shape[0], in_full=shape[-1]) for shape in SHAPES],
    }


def _segment(name: str, *, in_full: bool) -> Json:
    built = built_segment(name)
    layout, vocabulary = built.builder.layout, built.counts.vocabulary
    return {
        **segment_case(name),
        "rows": built.rows,
        "n_docs": vocabulary.n_docs,
        "total_length": vocabulary.total_length,
        "terms": list(vocabulary.terms),
        "dfs": vocabulary.dfs.tolist(),
        "n_dedicated": list(built.builder.n_dedicated),
        "step": built.builder.step,
        "units": layout.slot.units,
        "n_slots": layout.n_slots,
        "offsets": layout.offsets,
        "id": sha256(built.data[:4096]).hex(),
        "file_bytes": len(built.data),
        "sha256": sha256(built.data).hex(),
        **({"file": pack_bytes(built.data)} if in_full else {}),
    }


# --- manifest.json -------------------------------------------------------------------------------

OWNER_SEED = seed("owner signing key")
NOW = 1_800_000_000
LIFE = 7_776_000


def signing_key(signing_seed: bytes = OWNER_SEED) -> SigningKey:
    """Return the key that signs the manifests of these vectors."""
    return SigningKey(SecretKey(signing_seed))


def sample_manifest(version: int, previous: bytes) -> Manifest:
    """Return a manifest of two groups."""

    def ref(label: str) -> ObjectRef:
        return ObjectRef(seed(label), len(label) * 1000)

    def group(policy: bytes, scoring: Json) -> Group:
        name = policy.decode()
        return Group(
            policy,
            version,
            "english-1",
            scoring,
            1000 + version,
            (SegmentRef(seed(f"segment {name}"), 2**33, seed(f"salt {name} {version}")),),
            ref(f"dictionary {name} {version}"),
            ref(f"lookup {name}"),
            ref(f"blobs {name}"),
        )

    return Manifest(
        COLLECTION,
        "Fälle",
        version,
        previous,
        NOW + version,
        NOW + version + LIFE,
        Quorum(5, 2),
        signing_key().public,
        (group(b"", TFIDF), group(b"role:analyst", BM25)),
        ref("catalogue"),
    )


@cache
def signed_versions() -> Sequence[SignedManifest]:
    """Return versions 1 and 2, chained."""
    first = SignedManifest.sign(sample_manifest(1, FIRST_PREVIOUS), signing_key())
    return first, SignedManifest.sign(sample_manifest(2, first.hash), signing_key())


def manifest() -> Json:
    """Two manifests in a chain, signed."""
    return {
        "about": "Bodies, files, hashes of versions 1 and 2; Ed25519 keys are made from 32 bytes.",
        "source": "docs/protocol.md, section 7",
        "owner_seed": OWNER_SEED.hex(),
        "owner_key": signing_key().public.hex(),
        "collection": COLLECTION.hex(),
        "now": NOW + 10,
        "manifests": [
            {
                "fields": fields_of(signed.manifest),
                "body": signed.body.hex(),
                "signature": signed.signature.hex(),
                "file": signed.encode().hex(),
                "hash": signed.hash.hex(),
            }
            for signed in signed_versions()
        ],
        "cbor": [
            {"value": value, "encoded": encode_cbor(value).hex()}
            for value in (
                0,
                23,
                24,
                255,
                256,
                65_536,
                2**32,
                2**64 - 1,
                1.2,
                0.75,
                1e10,
                "ä",
                [1, [2]],
                {"b": 1, "aa": 2, "a": 3},
            )
        ],
    }


def fields_of(manifest: Manifest) -> Json:
    """Return the body as JSON, bytes in hexadecimal."""
    fields: Json = {
        "collection": manifest.collection.hex(),
        "name": manifest.name,
        "version": manifest.version,
        "previous": manifest.previous.hex(),
        "created_at": manifest.created_at,
        "expires_at": manifest.expires_at,
        "n_servers": manifest.quorum.n_servers,
        "collusion_bound": manifest.quorum.collusion_bound,
        "owner_key": manifest.owner_key.hex(),
        "groups": [],
        "catalogue": _hex(manifest.catalogue.to_fields()),
    }
    for group in manifest.groups:
        value = group.to_fields()
        value["policy"] = value["policy"].hex()
        value["segments"] = [_hex(segment) for segment in value["segments"]]
        for name in ("dictionary", "lookup", "blobs"):
            value[name] = _hex(value[name])
        fields["groups"].append(value)
    return fields


def _hex(fields: Json) -> Json:
    return {k: v.hex() if isinstance(v, bytes) else v for k, v in fields.items()}
