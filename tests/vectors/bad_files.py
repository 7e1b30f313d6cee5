"""Bad vectors of sections 5 to 7: segments, sealed streams and their contents, manifests."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

from mksearch.codec import decode_cbor, encode_cbor
from mksearch.crypto import labels
from mksearch.crypto.aead import Aead
from mksearch.crypto.kdf import derive, sha256
from mksearch.crypto.secret import SecretKey
from mksearch.index.blob_list import BlobList
from mksearch.index.catalogue import CatalogueEntry, Lookup, LookupEntry, encode_catalogue
from mksearch.index.document import StoredDocument
from mksearch.params import P

from .fast import bundle_of
from .good_index import (
    LIFE,
    NOW,
    STREAM_KEY,
    STREAM_SALT,
    TWO_CHUNKS,
    built_segment,
    sample_dictionary,
    sealed,
    signed_versions,
    signing_key,
)
from .material import COLLECTION, OWNER, Json, content_of, pack_bytes, seed

Fields = dict[str, Any]
Change = Callable[[Fields], None]

#: Files that bad ones are cut from.
SMALL = "small segment"
CHUNKS = "two chunks"


def base_of(name: str) -> bytes:
    """Return a file that pieces of bad ones refer to."""
    if name == SMALL:
        return built_segment("small").data
    return sealed("blob", content_of(TWO_CHUNKS))


def files() -> dict[str, Json]:
    """Return the bad vectors by name."""
    return {
        **{f"segment_{name}": file for name, file in _segments()},
        **{f"stream_{name}": file for name, file in _streams()},
        **dict(_contents()),
        **{f"manifest_{name}": file for name, file in _manifests()},
    }


def pieces_of(data: bytes, base_name: str = "") -> list[Json]:
    """Return a file as pieces: literal bytes, and ranges of the base that it was made from."""
    if not base_name:
        return [{"hex": data.hex()}]
    base = base_of(base_name)
    common = min(len(data), len(base))
    changed = [i for i in range(common) if data[i] != base[i]]
    pieces: list[Json] = []
    done = 0
    while changed:
        start = end = changed.pop(0)
        while changed and changed[0] - end < 16:
            end = changed.pop(0)
        pieces += [*_range(base_name, done, start), {"hex": data[start : end + 1].hex()}]
        done = end + 1
    pieces += _range(base_name, done, common)
    if len(data) > common:
        pieces.append({"hex": data[common:].hex()})
    return pieces


def _range(base_name: str, start: int, stop: int) -> list[Json]:
    return [{"of": base_name, "from": start, "to": stop}] if stop > start else []


def changed(data: bytes, at: int, value: int | None = None) -> bytes:
    """Return data with one byte changed."""
    byte = data[at] ^ 1 if value is None else value
    return data[:at] + bytes([byte]) + data[at + 1 :]


# --- segments ------------------------------------------------------------------------------------


def with_header(change: Change) -> bytes:
    """Return the small segment with a changed header."""
    data = base_of(SMALL)
    size = int.from_bytes(data[12:16], "big")
    header = decode_cbor(data[16 : 16 + size], "a header")
    change(header)
    return _with_raw_header(encode_cbor(header))


def _with_raw_header(header: bytes) -> bytes:
    data = base_of(SMALL)
    return (data[:12] + len(header).to_bytes(4, "big") + header).ljust(4096, b"\0") + data[4096:]


def setting(path: str, value: object) -> Change:
    """Return a change of one field, such as `levels.0.n_rows`."""

    def change(fields: Fields) -> None:
        *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        target: Any = fields
        for key in way:
            target = target[key]
        target[last] = value

    return change


def _huge(header: Fields) -> None:
    """Make everything follow from 2^33 rows; only the keystream is longer than allowed."""
    header |= {"fan_out": 506, "n_checks": 6, "n_rows": 1 << 33}
    rows = [1 << 33]
    while rows[-1] > 506:
        rows.append(-(-rows[-1] // 506))
    offset = 4096
    header["levels"] = []
    for n in rows:
        n_rows = -(-n // 506) * 512
        header["levels"].append(
            {"offset": offset, "n_rows": n_rows, "dedicated": 64, "table": 64, "sha256": bytes(32)}
        )
        offset = -(-(offset + 2 * n_rows * 128) // 4096) * 4096
    header["slots"] |= {"offset": offset, "n_slots": 1 << 33}


def _not_shortest(header: bytes) -> bytes:
    at = header.index(b"gfan_out") + len(b"gfan_out")
    return header[:at] + b"\x18" + header[at:]


def _segments() -> Iterator[tuple[str, Json]]:
    data = base_of(SMALL)
    header = data[16 : 16 + int.from_bytes(data[12:16], "big")]
    layout = built_segment("small").builder.layout
    gap = layout.offsets[1] + 2 * 8 * 128
    large = P.to_bytes(2, "little") + data[4098 : layout.offsets[1]]
    hashed = with_header(setting("levels.0.sha256", sha256(large)))
    for name, step, about, made in (
        ("magic", "5.1", "another magic", changed(data, 0)),
        ("empty", "5.1", "no byte at all", b""),
        ("format", "5.2", "format 0", changed(data, 11)),
        ("format_2", "5.2", "format 2", changed(data, 11, 2)),
        ("header_cut", "5.3", "4095 bytes", data[:4095]),
        ("header_length", "5.3", "a header longer than its page", changed(data, 14, 0xFF)),
        ("header_shorter", "5.3", "a header cut by one byte", changed(data, 15)),
        ("header_behind", "5.3", "a byte behind the header", changed(data, 4095)),
        ("header_form", "5.3", "an integer in two bytes", _with_raw_header(_not_shortest(header))),
        ("header_twice", "5.3", "two CBOR items", _with_raw_header(header + b"\0")),
        ("header_key", "5.3", "a key more", with_header(setting("more", 1))),
        ("header_no_key", "5.3", "a key less", with_header(lambda h: h.pop("epoch"))),
        ("header_text", "5.3", "epoch as text", with_header(setting("epoch", "3"))),
        ("header_negative", "5.3", "a negative epoch", with_header(setting("epoch", -1))),
        ("header_bignum", "5.3", "an epoch of 2^64", with_header(setting("epoch", 1 << 64))),
        ("header_salt", "5.3", "a salt of 31 bytes", with_header(setting("salt", bytes(31)))),
        ("no_rows", "5.3", "no rows", with_header(setting("n_rows", 0))),
        ("no_checks", "5.3", "no check rows", with_header(setting("n_checks", 0))),
        ("fan_out", "5.3", "fan_out 1", with_header(lambda h: h.update(fan_out=1, n_checks=7))),
        ("block", "5.3", "blocks of 9 rows", with_header(setting("fan_out", 3))),
        ("large_block", "5.3", "blocks of 520 rows", with_header(setting("fan_out", 514))),
        ("no_table", "5.3", "no table", with_header(setting("n_tables", 0))),
        ("nine_tables", "5.3", "nine tables", with_header(setting("n_tables", 9))),
        ("width", "5.3", "65 columns", with_header(setting("levels.0.dedicated", 65))),
        ("no_width", "5.3", "a table of no column", with_header(setting("levels.1.table", 0))),
        ("units", "5.3", "slots of 35 units", with_header(setting("slots.units", 35))),
        ("few_slots", "5.3", "fewer slots than rows", with_header(setting("slots.n_slots", 2))),
        ("keystream", "5.3", "over 2^32 AES blocks under a mask key", with_header(_huge)),
        ("wrong_rows", "5.4", "another number of rows", with_header(setting("levels.0.n_rows", 8))),
        ("other_n_rows", "5.4", "n_rows of more blocks", with_header(setting("n_rows", 1))),
        ("no_root", "5.4", "the last level missing", with_header(lambda h: h["levels"].pop())),
        ("no_levels", "5.4", "no level", with_header(setting("levels", []))),
        ("offset", "5.5", "an overlapping level", with_header(setting("levels.1.offset", 4096))),
        ("slots_offset", "5.5", "slots elsewhere", with_header(setting("slots.offset", 12_290))),
        ("cut", "5.5", "the last byte missing", data[:-1]),
        ("header_only", "5.5", "the first page alone", data[:4096]),
        ("longer", "5.5", "a byte more", data + b"\0"),
        ("hash", "5.6", "a byte of level 0 changed", changed(data, 4096)),
        ("hash_slots", "5.6", "the last byte changed", changed(data, len(data) - 1)),
        ("gap", "5.6", "a gap that is not zero", changed(data, gap)),
        (
            "element",
            "5.6",
            "an element of p, its section hashed",
            hashed[:4096] + large + data[layout.offsets[1] :],
        ),
    ):
        error = "UnsupportedVersion" if step == "5.2" else "FormatError"
        yield name, _vector("segment", about, step, error, file=pieces_of(made, SMALL))


def _vector(kind: str, about: str, step: str, error: str, **fields: Any) -> Json:
    return {"kind": kind, "about": about, "refused_at": step, "exception": error, **fields}


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
    repeated = [*_range(CHUNKS, 0, edge), *_range(CHUNKS, 44, len(two))]
    flag = {"stream_kind": "blob", "collection": COLLECTION.hex(), "key": STREAM_KEY.hex()}

    def vector(about: str, step: str, error: str, file: bytes | list[Json], **other: str) -> Json:
        pieces = file if isinstance(file, list) else pieces_of(file)
        return _vector("stream", about, step, error, **{**flag, **other}, file=pieces)

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
    yield "last_missing", vector("the last chunk missing", "6.3", refused, _range(CHUNKS, 0, edge))
    yield "swapped", vector("two chunks swapped", "6.3", refused, swapped)
    yield "repeated", vector("the first chunk twice", "6.3", refused, repeated)
    cut = _range(CHUNKS, 0, edge + 10)
    yield "last_cut", vector("10 bytes of the last chunk", "6.2", refused, cut)
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
    entries = [lookup[at : at + 96] for at in range(1, len(lookup), 96)]
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
            _vector(kind, about, "6.5", "FormatError", content=content.hex()),
        )
    for name, step, about, data in (
        ("magic", "6.1", "another magic", changed(blobs, 0)),
        ("format", "6.1", "format 2", changed(blobs, 11, 2)),
        ("cut", "6.2", "the last byte missing", blobs[:-1]),
        ("order", "6.5", "names that do not ascend", blobs[:12] + blobs[52:92] + blobs[12:52]),
        ("twice", "6.5", "a name twice", blobs[:52] + blobs[12:52]),
    ):
        error = "UnsupportedVersion" if name == "format" else "FormatError"
        yield f"blob_list_{name}", _vector("blob list", about, step, error, file=pieces_of(data))


def _sample_lookup() -> bytes:
    entry = LookupEntry(0, 3, seed("blob"), SecretKey(seed("key")))
    return Lookup.encode(bundle_of(OWNER), [("a", entry), ("b", entry), ("c", entry)])


def _sample_blobs() -> bytes:
    return BlobList.of([(seed("one"), 1), (seed("two"), 2)]).encode()


# --- manifests -----------------------------------------------------------------------------------


def _signed(body: bytes, signing_seed: bytes = b"") -> bytes:
    key = signing_key(signing_seed) if signing_seed else signing_key()
    head = b"MKMANIFS" + (1).to_bytes(4, "big") + len(body).to_bytes(4, "big")
    return head + body + key.sign(labels.MANIFEST, body)


def _with_body(change: Change, signing_seed: bytes = b"") -> bytes:
    fields = decode_cbor(signed_versions()[1].body, "a manifest")
    change(fields)
    return _signed(encode_cbor(fields), signing_seed)


def _all(**values: object) -> Change:
    return lambda fields: fields.update(values)


def _manifests() -> Iterator[tuple[str, Json]]:
    first, second = (signed.encode() for signed in signed_versions())
    flag: Json = {"owner_key": signing_key().public.hex(), "collection": COLLECTION.hex()}
    late = NOW + LIFE + 3

    def vector(
        about: str, step: str, error: str, file: bytes, seen: bytes = b"", now: int = NOW
    ) -> Json:
        seen_pieces = pieces_of(seen) if seen else None
        return _vector(
            "manifest", about, step, error, **flag, now=now, seen=seen_pieces, file=pieces_of(file)
        )

    format_, refused = "FormatError", "ManifestRefused"
    yield "empty", vector("no byte at all", "7.1", format_, b"")
    yield "magic", vector("another magic", "7.1", format_, changed(second, 3))
    yield "format", vector("format 2", "7.1", "UnsupportedVersion", changed(second, 11, 2))
    yield "cut", vector("the last byte missing", "7.2", format_, second[:-1])
    yield "longer", vector("a byte more", "7.2", format_, second + b"\0")
    yield "length", vector("another length", "7.2", format_, changed(second, 15))
    yield "no_length", vector("no length", "7.2", format_, second[:14])
    bad = "VerificationError"
    yield "body", vector("a byte of the body changed", "7.3", bad, changed(second, 40))
    yield "signature", vector("the signature changed", "7.3", bad, changed(second, len(second) - 1))
    other = seed("another owner")
    foreign = _signed(signed_versions()[1].body, other)
    yield "foreign_key", vector("signed with another key", "7.3", bad, foreign)
    yield (
        "foreign_and_expired",
        vector("signed with another key, and expired", "7.3", bad, foreign, now=late),
    )
    junk = _signed(b"\xbf\xff", other)
    yield "foreign_and_junk", vector("signed with another key, no manifest", "7.3", bad, junk)
    body = signed_versions()[1].body
    at = body.index(b"gversion") + 8
    for name, about, made in (
        ("form", "an integer in two bytes", _signed(body[:at] + b"\x18" + body[at:])),
        ("indefinite", "a map of indefinite length", _signed(b"\xbf" + body[1:] + b"\xff")),
        ("twice", "two CBOR items", _signed(body + b"\0")),
        ("key", "a key more", _with_body(_all(more=1))),
        ("no_key", "a key less", _with_body(lambda f: f.pop("name"))),
        ("type", "a name that is no text", _with_body(_all(name=b"x"))),
        ("bool", "a version that is true", _with_body(_all(version=True))),
        ("negative", "a negative time", _with_body(_all(created_at=-1))),
        ("bignum", "an expiry of 2^64", _with_body(_all(expires_at=1 << 64))),
        ("group_type", "a group that is no map", _with_body(_all(groups=[[]]))),
        ("object_id", "a name of 31 bytes", _with_body(setting("catalogue.id", bytes(31)))),
        ("salt", "a salt of 33 bytes", _with_body(setting("groups.0.segments.0.salt", bytes(33)))),
        ("collection_length", "a collection of 15 bytes", _with_body(_all(collection=bytes(15)))),
        ("version_0", "version 0", _with_body(_all(version=0))),
        ("first_with_previous", "version 1 with a manifest before", _with_body(_all(version=1))),
        (
            "no_previous",
            "version 2 without a manifest before",
            _with_body(_all(previous=bytes(32))),
        ),
        ("quorum", "4 servers for a collusion bound of 2", _with_body(_all(n_servers=4))),
        ("no_bound", "a collusion bound of 0", _with_body(_all(collusion_bound=0))),
        ("servers", "256 servers", _with_body(_all(n_servers=256))),
        ("scoring_key", "a scoring of more keys", _with_body(setting("groups.0.scoring.k2", 1.0))),
        ("scoring_integer", "k1 as an integer", _with_body(setting("groups.0.scoring.k1", 1))),
        ("scoring_kind", "an unknown scoring", _with_body(setting("groups.0.scoring.kind", "x"))),
        ("scoring_b", "b above 1", _with_body(setting("groups.0.scoring.b", 1.5))),
        (
            "scoring_nan",
            "k1 not a number",
            _with_body(setting("groups.0.scoring.k1", float("nan"))),
        ),
    ):
        yield name, vector(about, "7.4", format_, made)
    owner = _with_body(_all(owner_key=signing_key(other).public))
    yield "foreign_owner", vector("another owner key named in it", "7.5", refused, owner)
    collection = _with_body(_all(collection=seed("foreign")[:16]))
    yield "foreign_collection", vector("of another collection", "7.5", refused, collection)
    yield "rollback", vector("older than what was seen", "7.6", refused, first, second)
    twin = _with_body(_all(name="twin"))
    yield "equivocation", vector("two of one version", "7.6", refused, twin, second)
    broken = _with_body(_all(previous=seed("elsewhere")))
    yield "broken_chain", vector("a successor of another one", "7.6", refused, broken, first)
    yield "rollback_and_expired", vector("older, and expired", "7.6", refused, first, second, late)
    yield "expired", vector("expired", "7.7", "ManifestExpired", second, first, late)
