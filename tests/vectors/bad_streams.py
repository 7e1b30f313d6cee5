"""Bad vectors of section 6: sealed streams, what they contain, blob lists."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

from mksearch.codec import decode_cbor, encode_cbor
from mksearch.crypto import labels
from mksearch.crypto.aead import Aead
from mksearch.crypto.kdf import derive
from mksearch.crypto.secret import SecretKey
from mksearch.index.blob_list import BlobList
from mksearch.index.catalogue import CatalogueEntry, Lookup, LookupEntry, encode_catalogue
from mksearch.index.document import StoredDocument

from .bad_files import (
    CHUNKS,
    Change,
    Fields,
    base_of,
    changed,
    pieces_of,
    range_of,
    setting,
    vector_of,
)
from .fast import bundle_of
from .good_index import STREAM_KEY, STREAM_SALT, sample_dictionary, sealed
from .material import COLLECTION, OWNER, Json, content_of, pack_bytes, seed


def files() -> dict[str, Json]:
    """Return the bad vectors by name."""
    return {
        **{f"stream_{name}": file for name, file in _streams()},
        **dict(_contents()),
    }


# --- sealed streams ------------------------------------------------------------------------------


def _seal_plain(plain: bytes, chunks: list[bytes] | None = None) -> bytes:
    """Seal plaintext as it is: no length, no padding."""
    aead = Aead(derive(SecretKey(STREAM_KEY), labels.STREAM_KEY + b"blob", STREAM_SALT))
    associated = labels.STREAM + b"\0blob\0" + COLLECTION
    out = b"MKSTREAM" + (1).to_bytes(4, "big") + STREAM_SALT
    chunks = chunks or [plain]
    for number, chunk in enumerate(chunks):
        last = b"\1" if number == len(chunks) - 1 else b"\0"
        out += aead.seal(number.to_bytes(11, "big") + last, chunk, associated)
    return out


def _streams() -> Iterator[tuple[str, Json]]:
    short, two = sealed("blob", content_of(100)), base_of(CHUNKS)
    edge = 44 + 65_552
    full = (65_528).to_bytes(8, "big") + content_of(65_528)
    swapped = [
        {"of": CHUNKS, "from": 0, "to": 44},
        {"of": CHUNKS, "from": edge, "to": len(two)},
        {"of": CHUNKS, "from": 44, "to": edge},
    ]
    repeated = [*range_of(CHUNKS, 0, edge), *range_of(CHUNKS, 44, len(two))]
    flag = {"stream_kind": "blob", "collection": COLLECTION.hex(), "key": STREAM_KEY.hex()}

    def vector(about: str, step: str, error: str, file: bytes | list[Json], **other: str) -> Json:
        pieces = file if isinstance(file, list) else pieces_of(file)
        return vector_of("stream", about, step, error, **{**flag, **other}, file=pieces)

    refused = "RecordRefused"
    yield "magic", vector("another magic", "6.1", "FormatError", changed(short, 7))
    yield "empty", vector("no byte at all", "6.1", "FormatError", b"")
    yield "format", vector("format 2", "6.1", "UnsupportedVersion", changed(short, 11, 2))
    yield "no_chunk", vector("the header alone", "6.2", "FormatError", short[:44])
    yield "tag_only", vector("a chunk of a tag alone", "6.2", "FormatError", short[:60])
    yield "salt", vector("another salt", "6.3", refused, changed(short, 12))
    yield "cut", vector("the last byte missing", "6.3", refused, short[:-1])
    yield "longer", vector("a byte more", "6.3", refused, short + b"\0")
    yield "changed", vector("a byte changed", "6.3", refused, changed(short, 50))
    yield (
        "last_missing",
        vector("the last chunk missing", "6.3", refused, range_of(CHUNKS, 0, edge)),
    )
    yield "swapped", vector("two chunks swapped", "6.3", refused, swapped)
    yield "repeated", vector("the first chunk twice", "6.3", refused, repeated)
    cut = range_of(CHUNKS, 0, edge + 10)
    yield "last_cut", vector("10 bytes of the last chunk", "6.2", "FormatError", cut)
    # 65,536 bytes of plaintext are one chunk; what follows is sealed as an empty last one.
    empty = _seal_plain(b"", [full, b""])
    pieces = [{"base64": pack_bytes(empty)}]
    yield "empty_last_chunk", vector("an empty chunk at the end", "6.2", "FormatError", pieces)
    yield "flag", vector("the only chunk not marked as last", "6.3", refused, _unmarked())
    yield "kind", vector("sealed as a lookup", "6.3", refused, sealed("lookup", content_of(100)))
    foreign = sealed("blob", content_of(100), seed("foreign")[:16])
    yield "collection", vector("of another collection", "6.3", refused, foreign)
    yield "key", vector("under another key", "6.3", refused, short, key=seed("other").hex())
    for name, about, plain in (
        ("no_length", "7 bytes of plaintext", bytes(7)),
        ("not_padded", "no padding", (9).to_bytes(8, "big") + content_of(9)),
        (
            "padded_more",
            "padding of the next size",
            (9).to_bytes(8, "big") + content_of(9) + bytes(3),
        ),
        ("padding", "padding that is not zero", (9).to_bytes(8, "big") + content_of(9) + b"\1"),
        ("length", "a length beyond the content", (2**63).to_bytes(8, "big") + content_of(10)),
        ("short_length", "a length of less content", (2).to_bytes(8, "big") + content_of(10)),
    ):
        yield name, vector(about, "6.4", "FormatError", _seal_plain(plain))


def _unmarked() -> bytes:
    """Seal one chunk as if another followed."""
    plain = (1).to_bytes(8, "big") + b"x"
    whole = _seal_plain(b"", [plain.ljust(10, b"\0"), b"more"])
    return whole[: 44 + 10 + 16]


# --- contents ------------------------------------------------------------------------------------


def _stored(data: bytes) -> bytes:
    """Return data as zlib without compression, the same from every zlib."""
    return zlib.compress(data, 0)


def _dictionary(change: Change) -> bytes:
    fields = decode_cbor(zlib.decompress(sample_dictionary().encode()), "a dictionary")
    change(fields)
    return _stored(encode_cbor(fields))


def _catalogue(change: Callable[[list[Any]], None]) -> bytes:
    entries = [CatalogueEntry(i, seed(i), 3, seed("salt"), seed("b")) for i in ("a", "b", "c")]
    rows = decode_cbor(zlib.decompress(encode_catalogue(entries)), "a catalogue")
    change(rows)
    return _stored(encode_cbor(rows))


def _second(fields: Fields) -> None:
    fields["segments"].append(fields["segments"][0] | {"salt": seed("second")})


def _contents() -> Iterator[tuple[str, Json]]:
    cbor = zlib.decompress(sample_dictionary().encode())
    good = _stored(cbor)
    lookup, blobs = _sample_lookup(), _sample_blobs()
    document = StoredDocument("a", "b", "c").encode()
    entries = [lookup[at : at + 104] for at in range(1, len(lookup), 104)]
    for kind, name, about, content in (
        ("dictionary", "trailing", "a byte behind the zlib stream", good + b"\0"),
        ("dictionary", "twice", "two zlib streams", good + good),
        ("dictionary", "cut", "a zlib stream cut off", good[:-1]),
        ("dictionary", "not_zlib", "no zlib", cbor),
        ("dictionary", "not_cbor", "no CBOR", _stored(b"\xff" + cbor)),
        ("dictionary", "cbor_twice", "two CBOR items", _stored(cbor + b"\0")),
        ("dictionary", "format", "format 2", _dictionary(setting("format", 2))),
        ("dictionary", "key", "a key more", _dictionary(setting("more", 1))),
        (
            "dictionary",
            "stop_words",
            "stop words that do not ascend",
            _dictionary(lambda f: f["stop_words"].reverse()),
        ),
        (
            "dictionary",
            "stop_word",
            "a stop word that is no text",
            _dictionary(setting("stop_words.0", 1)),
        ),
        (
            "dictionary",
            "scoring",
            "an unknown scoring",
            _dictionary(setting("scoring.kind", "bm26")),
        ),
        (
            "dictionary",
            "scoring_key",
            "a scoring of more keys",
            _dictionary(setting("scoring.k2", 1.0)),
        ),
        (
            "dictionary",
            "empty_term",
            "an empty term",
            _dictionary(setting("terms", "слово\n\nzebra".encode())),
        ),
        ("dictionary", "term_twice", "a term twice", _dictionary(setting("terms", b"a\na\nzebra"))),
        (
            "dictionary",
            "term_text",
            "a term that is not UTF-8",
            _dictionary(setting("terms", b"a\n\xff\nzebra")),
        ),
        (
            "dictionary",
            "terms",
            "more terms than frequencies",
            _dictionary(setting("terms", b"a\nb\nc\nd")),
        ),
        (
            "dictionary",
            "dfs",
            "more frequencies than terms",
            _dictionary(setting("dfs", b"\x03\x02\x01\x01")),
        ),
        (
            "dictionary",
            "df",
            "a frequency above n_docs",
            _dictionary(setting("dfs", b"\xe9\x07\x02\x01")),
        ),
        (
            "dictionary",
            "df_0",
            "a term in no document",
            _dictionary(setting("dfs", b"\x03\x02\x00")),
        ),
        (
            "dictionary",
            "df_form",
            "a varint that is too long",
            _dictionary(setting("dfs", b"\x83\x00\x02\x01")),
        ),
        (
            "dictionary",
            "salt",
            "a salt of 31 bytes",
            _dictionary(setting("segments.0.salt", bytes(31))),
        ),
        ("dictionary", "step", "a step of 0", _dictionary(setting("segments.0.step", 0))),
        ("dictionary", "kappa", "a kappa of 1/0", _dictionary(setting("segments.0.kappa", [1, 0]))),
        ("dictionary", "kappa_2", "a kappa of 2", _dictionary(setting("segments.0.kappa", [2, 1]))),
        (
            "dictionary",
            "n_dedicated",
            "a negative number",
            _dictionary(setting("n_dedicated.0", -1)),
        ),
        ("dictionary", "two_segments", "two segments", _dictionary(_second)),
        ("dictionary", "no_segment", "no segment", _dictionary(setting("segments", []))),
        ("lookup", "empty", "no byte at all", b""),
        ("lookup", "version", "another version", changed(lookup, 0)),
        ("lookup", "cut", "the last byte missing", lookup[:-1]),
        ("lookup", "order", "entries that do not ascend", lookup[:1] + b"".join(entries[::-1])),
        ("lookup", "twice", "an entry twice", lookup[:1] + entries[0] + entries[0]),
        ("catalogue", "order", "ids that do not ascend", _catalogue(lambda rows: rows.reverse())),
        ("catalogue", "twice", "an id twice", _catalogue(lambda rows: rows.append(rows[-1]))),
        ("catalogue", "fields", "an entry of four fields", _catalogue(lambda rows: rows[0].pop())),
        (
            "catalogue",
            "hash",
            "a hash of 31 bytes",
            _catalogue(lambda rows: rows[0].__setitem__(1, bytes(31))),
        ),
        ("catalogue", "row", "a negative row", _catalogue(lambda rows: rows[0].__setitem__(2, -1))),
        (
            "catalogue",
            "bignum",
            "a row of 2^64",
            _catalogue(lambda rows: rows[0].__setitem__(2, 1 << 64)),
        ),
        ("catalogue", "map", "no array", _stored(encode_cbor({}))),
        ("blob", "key", "a key less", encode_cbor({"id": "a", "title": "b"})),
        (
            "blob",
            "type",
            "an id that is no text",
            encode_cbor({"id": b"a", "title": "b", "text": ""}),
        ),
        ("blob", "form", "bytes behind the document", document + b"\0"),
    ):
        yield (
            f"{kind}_{name}",
            vector_of(kind, about, "6.5", "FormatError", content=content.hex()),
        )
    for name, step, about, data in (
        ("magic", "6.1", "another magic", changed(blobs, 0)),
        ("format", "6.1", "format 2", changed(blobs, 11, 2)),
        ("cut", "6.2", "the last byte missing", blobs[:-1]),
        ("order", "6.5", "names that do not ascend", blobs[:12] + blobs[52:92] + blobs[12:52]),
        ("twice", "6.5", "a name twice", blobs[:52] + blobs[12:52]),
    ):
        error = "UnsupportedVersion" if name == "format" else "FormatError"
        yield f"blob_list_{name}", vector_of("blob list", about, step, error, file=pieces_of(data))


def _sample_lookup() -> bytes:
    entry = LookupEntry(0, 3, seed("blob"), 500, SecretKey(seed("key")))
    return Lookup.encode(bundle_of(OWNER), [("a", entry), ("b", entry), ("c", entry)])


def _sample_blobs() -> bytes:
    return BlobList.of([(seed("one"), 1), (seed("two"), 2)]).encode()
