"""Sealed streams and what they carry (section 6)."""

from __future__ import annotations

import hashlib
import hmac
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from .codec import (
    SCORING_SHAPE,
    bytes_of,
    decode_cbor,
    decode_varint,
    encode_cbor,
    encode_varint,
    has_shape,
    is_bytes,
    is_text,
    is_uint,
    scoring_in_range,
    u8,
    u32,
    u64,
)
from .keys import stream_key
from .refused import Refused, require
from .text import Scoring, Statistics

MAGIC = b"MKSTREAM"
LIST_MAGIC = b"MKBLOBLS"
CHUNK = 65536
_LABEL = b"mksearch/1/stream\x00"
_TAG = 16
_ENTRY = 104


def padme(x: int) -> int:
    """Return the padded size."""
    if x < 2:
        return x
    e = x.bit_length() - 1
    s = e.bit_length()
    unit = 1 << (e - s)
    return -(-x // unit) * unit


def _nonce(i: int, last: bool) -> bytes:
    return i.to_bytes(11, "big") + u8(last)


def _associated(kind: str, collection: bytes) -> bytes:
    return _LABEL + kind.encode("ascii") + b"\x00" + collection


def seal_stream(kind: str, key: bytes, collection: bytes, salt: bytes, content: bytes) -> bytes:
    """Return the bytes of a sealed stream; `salt` is the stream's, 32 uniform bytes."""
    plain = (u64(len(content)) + content).ljust(padme(8 + len(content)), b"\x00")
    chunks = [plain[at : at + CHUNK] for at in range(0, len(plain), CHUNK)]
    aead = AESGCM(stream_key(key, kind, salt))
    out = MAGIC + u32(1) + salt
    for i, chunk in enumerate(chunks):
        nonce = _nonce(i, i == len(chunks) - 1)
        out += aead.encrypt(nonce, chunk, _associated(kind, collection))
    return out


def open_stream(kind: str, key: bytes, collection: bytes, data: bytes) -> bytes:
    """Return the content of a sealed stream; refuse at 6.1 to 6.4.

    Choice: truncated (6.2) is what has no whole header and chunk, or a last chunk with no byte
    beside its tag; a cut within a chunk shows only when the chunk does not open (6.3).
    """
    require(data[:8] == MAGIC, "6.1", "another magic")
    require(data[8:12] == u32(1), "6.1", "another format")
    sealed = [data[at : at + CHUNK + _TAG] for at in range(44, len(data), CHUNK + _TAG)]
    require(bool(sealed) and len(sealed[-1]) > _TAG, "6.2", f"{len(data)} bytes are truncated")
    aead = AESGCM(stream_key(key, kind, data[12:44]))
    plain = b""
    for i, chunk in enumerate(sealed):
        try:
            nonce = _nonce(i, i == len(sealed) - 1)
            plain += aead.decrypt(nonce, chunk, _associated(kind, collection))
        except InvalidTag as error:
            raise Refused("6.3", f"chunk {i} is not authentic") from error
    require(len(plain) >= 8, "6.4", "no length")
    size = int.from_bytes(plain[:8], "big")
    require(len(plain) == padme(8 + size), "6.4", f"{len(plain)} bytes for a length of {size}")
    require(not any(plain[8 + size :]), "6.4", "padding is not zero")
    return plain[8 : 8 + size]


def stream_name(data: bytes) -> bytes:
    """Return the name of a stream or blob list."""
    return hashlib.sha256(data).digest()


def _decode(data: bytes, what: str) -> Any:
    try:
        return decode_cbor(data)
    except ValueError as error:
        raise Refused("6.5", f"{what}: {error}") from error


def _inflate(data: bytes, what: str) -> bytes:
    inflater = zlib.decompressobj()
    try:
        out = inflater.decompress(data)
    except zlib.error as error:
        raise Refused("6.5", f"{what}: {error}") from error
    require(inflater.eof and not inflater.unused_data, "6.5", f"{what}: not one zlib stream")
    return out


def read_cbor(content: bytes, what: str) -> Any:
    """Return what compressed content holds; refuse at 6.5."""
    return _decode(_inflate(content, what), what)


def deflate(data: bytes) -> bytes:
    """Return data as zlib at its default level, which the text leaves to the writer."""
    return zlib.compress(data)


def encode_blob(external_id: str, title: str, text: str) -> bytes:
    """Return the content of a blob."""
    return encode_cbor({"id": external_id, "title": title, "text": text})


def decode_blob(content: bytes) -> tuple[str, str, str]:
    """Return (id, title, text) of a blob's content; refuse at 6.5."""
    blob = _decode(content, "blob")
    shape = {"id": is_text, "title": is_text, "text": is_text}
    require(has_shape(shape, blob), "6.5", "a blob of another shape")
    return blob["id"], blob["title"], blob["text"]


class SegmentEntry(NamedTuple):
    """What the dictionary says of a segment; kappa as (numerator, denominator)."""

    salt: bytes
    step: int
    kappa: tuple[int, int]


class Dictionary(NamedTuple):
    """The dictionary of a policy group."""

    analyzer: str
    stop_words: list[str]
    scoring: Scoring
    stats: Statistics
    n_dedicated: list[int]
    segments: list[SegmentEntry]
    ratios: list[int] | None = None
    """Of format 2: one a term, in units of 2^-16."""


def dictionary_cbor(dictionary: Dictionary) -> bytes:
    """Return the dictionary before compression."""
    stats = dictionary.stats
    if any(not term or "\n" in term for term in stats.terms):
        raise ValueError("a term is empty or contains a line feed")
    ratios = dictionary.ratios
    changed = (
        {} if ratios is None else {"ratios": b"".join(r.to_bytes(4, "little") for r in ratios)}
    )
    return encode_cbor(
        {
            "format": 1 if ratios is None else 2,
            **changed,
            "analyzer": dictionary.analyzer,
            "stop_words": sorted(dictionary.stop_words, key=lambda word: word.encode("utf-8")),
            "scoring": dict(dictionary.scoring._asdict()),
            "n_docs": stats.n_docs,
            "total_length": stats.total_length,
            "terms": "\n".join(stats.terms).encode("utf-8"),
            "dfs": b"".join(encode_varint(df) for df in stats.dfs),
            "n_dedicated": dictionary.n_dedicated,
            "segments": [
                {"salt": entry.salt, "step": entry.step, "kappa": list(entry.kappa)}
                for entry in dictionary.segments
            ],
        }
    )


_DICTIONARY = {
    "format": lambda value: value in (1, 2) and is_uint(value),
    "analyzer": is_text,
    "stop_words": [is_text],
    "scoring": SCORING_SHAPE,
    "n_docs": is_uint,
    "total_length": is_uint,
    "terms": is_bytes,
    "dfs": is_bytes,
    "n_dedicated": [is_uint],
    "segments": [{"salt": bytes_of(32), "step": is_uint, "kappa": [is_uint]}],
}


def encode_dictionary(dictionary: Dictionary) -> bytes:
    """Return the content of the dictionary's stream."""
    return deflate(dictionary_cbor(dictionary))


def _ascending(values: Sequence[bytes]) -> bool:
    return all(a < b for a, b in pairwise(values))


def decode_dictionary(content: bytes) -> Dictionary:
    """Read the content of the dictionary's stream; refuse at 6.5.

    Choice: what no owner can have written is not canonical either: empty or repeated terms,
    frequencies outside 1..n_docs, another number of segments than one, a kappa other than [1, 1].
    What only format 2 has is refused at 6.6.
    """
    body = _decode(_inflate(content, "dictionary"), "dictionary")
    ratios = body.pop("ratios", None) if isinstance(body, dict) else None
    require(has_shape(_DICTIONARY, body), "6.5", "a dictionary of another shape")
    is_changed = body["format"] == 2
    require(ratios is None or is_changed, "6.6", "ratios in format 1")
    require(ratios is not None or not is_changed, "6.5", "no ratios in format 2")
    require(scoring_in_range(body["scoring"]), "6.5", "scoring is out of range")
    words = [word.encode("utf-8") for word in body["stop_words"]]
    require(_ascending(words), "6.5", "stop words are not ascending")
    dfs, at = [], 0
    try:
        terms = body["terms"].decode("utf-8").split("\n") if body["terms"] else []
        while at < len(body["dfs"]):
            df, at = decode_varint(body["dfs"], at)
            dfs.append(df)
    except ValueError as error:
        raise Refused("6.5", f"dictionary: {error}") from error
    require(len(terms) == len(dfs), "6.5", f"{len(terms)} terms, {len(dfs)} frequencies")
    require(all(terms) and len(set(terms)) == len(terms), "6.5", "a term is empty or repeated")
    if is_changed:
        good = all(df <= body["n_docs"] for df in dfs)
        require(good, "6.6", "a frequency is out of range")
        numbers = _ratios(ratios, len(terms))
    else:
        good = all(1 <= df <= body["n_docs"] for df in dfs)
        require(good, "6.5", "a frequency is out of range")
        require(len(body["segments"]) == 1, "6.5", f"{len(body['segments'])} segments, not one")
        numbers = None
    segments = []
    for entry in body["segments"]:
        good = entry["step"] >= 1 and len(entry["kappa"]) == 2
        require(good, "6.5", "a step is 0 or a kappa is no pair")
        if is_changed:
            require(all(entry["kappa"]), "6.6", "a part of a kappa is 0")
        else:
            require(entry["kappa"] == [1, 1], "6.5", "a kappa is not [1, 1]")
        kappa = entry["kappa"]
        segments.append(SegmentEntry(entry["salt"], entry["step"], (kappa[0], kappa[1])))
    salts = {entry.salt for entry in segments}
    require(len(salts) == len(segments) > 0, "6.6", "no segment, or one twice")
    return Dictionary(
        body["analyzer"],
        body["stop_words"],
        Scoring(**body["scoring"]),
        Statistics(body["n_docs"], body["total_length"], terms, dfs),
        body["n_dedicated"],
        segments,
        numbers,
    )


def _ratios(data: Any, n_terms: int) -> list[int]:
    good = is_bytes(data) and len(data) == 4 * n_terms
    require(good, "6.6", "ratios of another length")
    ratios = [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]
    require(all(ratios), "6.6", "a ratio is 0")
    return ratios


class LookupEntry(NamedTuple):
    """What the lookup says of a document; the segment's number in the group."""

    segment: int
    row: int
    blob: bytes
    size: int
    wrapped_key: bytes


def wrap_blob_key(key: bytes, blob_key: bytes) -> bytes:
    """Wrap a blob's key under the wrapping key: 40 bytes."""
    return aes_key_wrap(key, blob_key)


def unwrap_blob_key(key: bytes, wrapped: bytes) -> bytes:
    """Undo `wrap_blob_key`; refuse at 6.5. Choice: a wrapped key is a part of the lookup."""
    try:
        return aes_key_unwrap(key, wrapped)
    except InvalidUnwrap as error:
        raise Refused("6.5", "a blob key is not authentic") from error


def lookup_place(key: bytes, external_id: str) -> bytes:
    """Return the 16 bytes under which the lookup has an external id; `key` is the lookup key."""
    return hmac.new(key, external_id.encode("utf-8"), hashlib.sha256).digest()[:16]


def encode_lookup(key: bytes, entries: dict[str, LookupEntry]) -> bytes:
    """Return the content of the lookup's stream; entries by external id."""
    raw = sorted(
        lookup_place(key, external_id)
        + u32(entry.segment)
        + u32(entry.row)
        + entry.blob
        + u64(entry.size)
        + entry.wrapped_key
        for external_id, entry in entries.items()
    )
    return b"\x01" + b"".join(raw)


def decode_lookup(content: bytes) -> dict[bytes, LookupEntry]:
    """Read the content of the lookup's stream, entries by `lookup_place`; refuse at 6.5."""
    require(content[:1] == b"\x01", "6.5", "a lookup of another version")
    require(len(content) % _ENTRY == 1, "6.5", "the lookup's last entry is cut off")
    raw = [content[at : at + _ENTRY] for at in range(1, len(content), _ENTRY)]
    require(_ascending([entry[:16] for entry in raw]), "6.5", "the lookup is not ascending")
    return {entry[:16]: _lookup_entry(entry[16:]) for entry in raw}


def _lookup_entry(raw: bytes) -> LookupEntry:
    segment, row = int.from_bytes(raw[:4], "big"), int.from_bytes(raw[4:8], "big")
    size = int.from_bytes(raw[40:48], "big")
    return LookupEntry(segment, row, raw[8:40], size, raw[48:])


class CatalogueEntry(NamedTuple):
    """What the owner's catalogue says of a document."""

    external_id: str
    content_hash: bytes
    row: int
    segment_salt: bytes
    blob: bytes


def catalogue_cbor(entries: Sequence[CatalogueEntry]) -> bytes:
    """Return the catalogue before compression."""
    return encode_cbor([list(e) for e in sorted(entries, key=lambda e: e[0].encode("utf-8"))])


def encode_catalogue(entries: Sequence[CatalogueEntry]) -> bytes:
    """Return the content of the catalogue's stream."""
    return deflate(catalogue_cbor(entries))


def decode_catalogue(content: bytes) -> list[CatalogueEntry]:
    """Read the content of the catalogue's stream; refuse at 6.5."""
    body = _decode(_inflate(content, "catalogue"), "catalogue")
    require(has_shape([lambda e: isinstance(e, list) and len(e) == 5], body), "6.5", "not 5 fields")
    shape = (is_text, bytes_of(32), is_uint, bytes_of(32), bytes_of(32))
    for entry in body:
        good = all(accepts(value) for accepts, value in zip(shape, entry, strict=True))
        require(good, "6.5", "a catalogue entry of another shape")
    ids = [entry[0].encode("utf-8") for entry in body]
    require(_ascending(ids), "6.5", "the catalogue is not ascending")
    return [CatalogueEntry(*entry) for entry in body]


def encode_blob_list(sizes: dict[bytes, int]) -> bytes:
    """Return the file of the blob list; sizes in bytes by blob name."""
    return LIST_MAGIC + u32(1) + b"".join(name + u64(sizes[name]) for name in sorted(sizes))


def decode_blob_list(data: bytes) -> dict[bytes, int]:
    """Read the file of a blob list; refuse as for streams. Choice: the text numbers no steps."""
    require(data[:12] == LIST_MAGIC + u32(1), "6.1", "another magic or format")
    require((len(data) - 12) % 40 == 0, "6.2", "the last entry is cut off")
    raw = [data[at : at + 40] for at in range(12, len(data), 40)]
    require(_ascending([entry[:32] for entry in raw]), "6.5", "the blob list is not ascending")
    return {entry[:32]: int.from_bytes(entry[32:], "big") for entry in raw}
