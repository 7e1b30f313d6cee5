"""Where documents are: the members' lookup and the owner's catalogue (protocol, section 6)."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from mksearch.codec import decode_cbor, encode_cbor, require_map
from mksearch.crypto.aead import WRAPPED_KEY_BYTES, unwrap_key, wrap_key
from mksearch.crypto.bundle import KeyBundle
from mksearch.crypto.kdf import keyed_hash_sha256
from mksearch.crypto.secret import SecretKey
from mksearch.errors import FormatError
from mksearch.index.dictionary import inflate
from mksearch.index.manifest import ObjectRef

__all__ = [
    "ENTRY_BYTES",
    "Catalogue",
    "CatalogueEntry",
    "Lookup",
    "LookupEntry",
    "decode_catalogue",
    "encode_catalogue",
]

_KEY_BYTES = 16
_NAME_BYTES = 32
_BLOB_AT = _KEY_BYTES + 8
_SIZE_AT = _BLOB_AT + _NAME_BYTES
_KEY_AT = _SIZE_AT + 8
#: Of one document in a lookup.
ENTRY_BYTES = _KEY_AT + WRAPPED_KEY_BYTES
_LOOKUP_FORMAT = 1
_CATALOGUE_FORMAT = 2
_CATALOGUE_FIELDS: dict[str, type] = {"format": int, "parts": list, "entries": list}


@dataclass(frozen=True, slots=True)
class LookupEntry:
    """Where the document of one external id is.

    Attributes:
        segment: number of its segment in the manifest's group, from 0.
        row: row of its record.
        blob: name of its blob, 32 bytes.
        size: bytes of its blob.
        key: key of its blob.
    """

    segment: int
    row: int
    blob: bytes
    size: int
    key: SecretKey


class Lookup:
    """Finds documents by external id, without listing ids."""

    def __init__(self, bundle: KeyBundle, entries: bytes) -> None:
        self._hash_key = bundle.lookup_key()
        self._wrapping = bundle.wrapping_key()
        self._entries = entries

    @classmethod
    def decode(cls, bundle: KeyBundle, content: bytes) -> Lookup:
        """Read the content of an opened lookup.

        Raises:
            FormatError: not a lookup.
        """
        if content[:1] != bytes((_LOOKUP_FORMAT,)) or (len(content) - 1) % ENTRY_BYTES:
            raise FormatError("the lookup is of another format or truncated")
        keys = (content[at : at + _KEY_BYTES] for at in range(1, len(content), ENTRY_BYTES))
        if any(a >= b for a, b in pairwise(keys)):
            raise FormatError("the lookup does not ascend")
        return cls(bundle, content[1:])

    @staticmethod
    def encode(bundle: KeyBundle, entries: Iterable[tuple[str, LookupEntry]]) -> bytes:
        """Return the content of the sealed lookup for (external id, entry) pairs."""
        hash_key, wrapping = bundle.lookup_key(), bundle.wrapping_key()
        packed = [
            keyed_hash_sha256(hash_key, external_id.encode())[:_KEY_BYTES]
            + entry.segment.to_bytes(4, "big")
            + entry.row.to_bytes(4, "big")
            + entry.blob
            + entry.size.to_bytes(8, "big")
            + wrap_key(wrapping, entry.key)
            for external_id, entry in entries
        ]
        return bytes((_LOOKUP_FORMAT,)) + b"".join(sorted(packed))

    @staticmethod
    def encode_raw(entries: Iterable[tuple[bytes, int]]) -> bytes:
        """Return the content of a lookup of entries of other ones, each with its new row."""
        packed = [
            raw[:_KEY_BYTES] + bytes(4) + row.to_bytes(4, "big") + raw[_BLOB_AT:]
            for raw, row in entries
        ]
        return bytes((_LOOKUP_FORMAT,)) + b"".join(sorted(packed))

    @staticmethod
    def key_of(hash_key: SecretKey, external_id: str) -> bytes:
        """Return what stands for an external id in lookups: 16 bytes."""
        return keyed_hash_sha256(hash_key, external_id.encode())[:_KEY_BYTES]

    def raw(self) -> dict[bytes, bytes]:
        """Return every entry as it is encoded, by its key."""
        entries = self._entries
        starts = range(0, len(entries), ENTRY_BYTES)
        return {entries[at : at + _KEY_BYTES]: entries[at : at + ENTRY_BYTES] for at in starts}

    @staticmethod
    def blob_of(raw: bytes) -> tuple[bytes, int]:
        """Return name and size of the blob of an encoded entry."""
        return raw[_BLOB_AT:_SIZE_AT], int.from_bytes(raw[_SIZE_AT:_KEY_AT], "big")

    def __len__(self) -> int:
        return len(self._entries) // ENTRY_BYTES

    def find(self, external_id: str) -> LookupEntry | None:
        """Return the entry of ``external_id``, or None when there is no such document.

        Raises:
            RecordRefused: the blob's key does not unwrap.
        """
        try:
            encoded = external_id.encode()
        except UnicodeEncodeError:
            # No published id has a lone surrogate.
            return None
        wanted = keyed_hash_sha256(self._hash_key, encoded)[:_KEY_BYTES]
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            at = middle * ENTRY_BYTES
            if self._entries[at : at + _KEY_BYTES] < wanted:
                low = middle + 1
            else:
                high = middle
        entry = self._entries[low * ENTRY_BYTES : (low + 1) * ENTRY_BYTES]
        if entry[:_KEY_BYTES] != wanted:
            return None
        key = unwrap_key(self._wrapping, entry[_KEY_AT:], "a document")
        segment = int.from_bytes(entry[_KEY_BYTES : _KEY_BYTES + 4], "big")
        row = int.from_bytes(entry[_KEY_BYTES + 4 : _BLOB_AT], "big")
        size = int.from_bytes(entry[_SIZE_AT:_KEY_AT], "big")
        return LookupEntry(segment, row, entry[_BLOB_AT:_SIZE_AT], size, key)


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """What the owner remembers of one document.

    Attributes:
        id: external id.
        content_hash: SHA-256 of the blob's content, 32 bytes.
        row: row of its record.
        salt: salt of the segment that holds it, 32 bytes.
        blob: name of its blob, 32 bytes.
    """

    id: str
    content_hash: bytes
    row: int
    salt: bytes
    blob: bytes


def encode_catalogue(entries: Iterable[CatalogueEntry]) -> bytes:
    """Return the content of the sealed catalogue."""
    ordered = sorted(entries, key=lambda entry: entry.id.encode())
    return zlib.compress(
        encode_cbor([[e.id, e.content_hash, e.row, e.salt, e.blob] for e in ordered])
    )


def decode_catalogue(content: bytes) -> list[CatalogueEntry]:
    """Decode the content of an opened catalogue.

    Raises:
        FormatError: not a catalogue.
    """
    return _entries(decode_cbor(inflate(content, "the catalogue"), "the catalogue"))


def _entries(rows: object) -> list[CatalogueEntry]:
    kinds = (str, bytes, int, bytes, bytes)
    if not isinstance(rows, list) or not all(
        isinstance(row, list) and tuple(map(type, row)) == kinds for row in rows
    ):
        raise FormatError("the catalogue is not a list of entries")
    entries = [CatalogueEntry(*row) for row in rows]
    for entry in entries:
        lengths = {len(entry.content_hash), len(entry.salt), len(entry.blob)}
        if lengths != {_NAME_BYTES} or not 0 <= entry.row < 1 << 32:
            raise FormatError("the catalogue holds an entry that is out of range")
    if any(a.id.encode() >= b.id.encode() for a, b in pairwise(entries)):
        raise FormatError("the catalogue does not ascend")
    return entries


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What the owner remembers of all documents: a part for each segment.

    Attributes:
        parts: the sealed part of each segment, by its salt.
        entries: documents of segments without a part, which an older release built.
    """

    parts: Mapping[bytes, ObjectRef] = field(default_factory=dict)
    entries: tuple[CatalogueEntry, ...] = ()

    def without(self, salts: Iterable[bytes]) -> Catalogue:
        """Return what there is of all segments but these."""
        left = set(salts)
        return Catalogue(
            {salt: part for salt, part in self.parts.items() if salt not in left},
            tuple(entry for entry in self.entries if entry.salt not in left),
        )

    def encode(self) -> bytes:
        """Return the content of the sealed catalogue, format 2."""
        ordered = sorted(self.entries, key=lambda entry: entry.id.encode())
        fields = {
            "format": _CATALOGUE_FORMAT,
            "parts": [[salt, part.id, part.size] for salt, part in sorted(self.parts.items())],
            "entries": [[e.id, e.content_hash, e.row, e.salt, e.blob] for e in ordered],
        }
        return zlib.compress(encode_cbor(fields))

    @classmethod
    def decode(cls, content: bytes) -> Catalogue:
        """Decode the content of an opened catalogue of either format.

        Raises:
            FormatError: not a catalogue.
        """
        what = "the catalogue"
        value = decode_cbor(inflate(content, what), what)
        if isinstance(value, list):
            return cls({}, tuple(_entries(value)))
        fields = require_map(value, _CATALOGUE_FIELDS, what)
        if fields["format"] != _CATALOGUE_FORMAT:
            raise FormatError(f"{what} is of format {fields['format']}, not {_CATALOGUE_FORMAT}")
        parts = {}
        for entry in fields["parts"]:
            if not isinstance(entry, list) or tuple(map(type, entry)) != (bytes, bytes, int):
                raise FormatError(f"{what} does not list parts")
            salt, name, size = entry
            if {len(salt), len(name)} != {_NAME_BYTES} or not 0 <= size < 1 << 64:
                raise FormatError(f"{what} lists a part that is out of range")
            parts[salt] = ObjectRef(name, size)
        if [entry[0] for entry in fields["parts"]] != sorted(parts):
            raise FormatError(f"{what} lists parts that do not ascend")
        return cls(parts, tuple(_entries(fields["entries"])))
