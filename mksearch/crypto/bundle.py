"""The key bundle of a policy group, and the keys of one segment (docs/protocol.md, section 2)."""

from __future__ import annotations

from dataclasses import dataclass

from mksearch.crypto import labels
from mksearch.crypto.kdf import derive
from mksearch.crypto.keystream import Keystream
from mksearch.crypto.secret import SecretKey
from mksearch.errors import FormatError
from mksearch.params import KEY_BYTES

__all__ = ["KINDS", "ColumnKeys", "KeyBundle", "SegmentKeys", "catalogue_key", "part_memory_key"]

KINDS = ("mask", "check", "record", "blob", "dictionary", "column", "search")


@dataclass(frozen=True, slots=True, eq=False)
class SegmentKeys:
    """Keys of one build of one segment: they change with its salt."""

    mask: Keystream
    check: Keystream
    tag: Keystream
    slots: Keystream
    record: SecretKey


@dataclass(frozen=True, slots=True, eq=False)
class ColumnKeys:
    """Keys that place terms in columns, the same for all segments of a policy group."""

    dedicated: Keystream
    shared: SecretKey


@dataclass(frozen=True, slots=True, eq=False)
class KeyBundle:
    """What a member of a policy group holds for one epoch: read and search everything in it."""

    mask: SecretKey
    check: SecretKey
    record: SecretKey
    blob: SecretKey
    dictionary: SecretKey
    column: SecretKey
    search: SecretKey

    @classmethod
    def from_master(
        cls, master: SecretKey, collection: bytes, epoch: int, policy: bytes
    ) -> KeyBundle:
        """Derive the bundle of (collection, epoch, policy) from the owner's master secret.

        Args:
            master: the owner's master secret.
            collection: 16 bytes.
            epoch: generation of the keys, from 1.
            policy: the policy's bytes as in the manifest; b"" for the group without a policy.
        """
        context = collection + epoch.to_bytes(8, "big") + policy
        return cls(*(derive(master, labels.BUNDLE + kind.encode(), context) for kind in KINDS))

    def encode(self) -> bytes:
        """Return the seven keys in the order of ``KINDS``: 224 secret bytes."""
        return b"".join(getattr(self, kind).reveal() for kind in KINDS)

    @classmethod
    def decode(cls, data: bytes) -> KeyBundle:
        """Read 224 secret bytes.

        Raises:
            FormatError: they are more or fewer.
        """
        if len(data) != len(KINDS) * KEY_BYTES:
            raise FormatError(f"a key bundle has {len(data)} bytes (need {len(KINDS) * KEY_BYTES})")
        starts = range(0, len(data), KEY_BYTES)
        return cls(*(SecretKey(data[at : at + KEY_BYTES]) for at in starts))

    def segment_keys(self, salt: bytes) -> SegmentKeys:
        """Derive the keys of the segment built under ``salt`` (32 bytes, public)."""
        return SegmentKeys(
            mask=Keystream(derive(self.mask, labels.SEGMENT_MASK, salt)),
            check=Keystream(derive(self.check, labels.SEGMENT_CHECK, salt)),
            tag=Keystream(derive(self.record, labels.SEGMENT_TAG, salt)),
            slots=Keystream(derive(self.record, labels.SEGMENT_SLOTS, salt)),
            record=derive(self.record, labels.SEGMENT_RECORD, salt),
        )

    def column_keys(self) -> ColumnKeys:
        """Derive the keys that place terms in columns."""
        return ColumnKeys(
            Keystream(derive(self.column, labels.COLUMNS_DEDICATED)),
            derive(self.column, labels.COLUMNS_SHARED),
        )

    def section_key(self, name: str) -> SecretKey:
        """Derive the key of the sealed section ``name`` ("dictionary" or "lookup")."""
        return derive(self.dictionary, labels.SECTION + name.encode())

    def lookup_key(self) -> SecretKey:
        """Derive the key under which external ids are hashed for the lookup."""
        return derive(self.dictionary, labels.LOOKUP_ID)

    def wrapping_key(self) -> SecretKey:
        """Derive the key that wraps the keys of blobs."""
        return derive(self.blob, labels.WRAP)

    def __reduce__(self) -> str:
        raise TypeError("key bundles are never pickled")


def part_memory_key(master: SecretKey, collection: bytes) -> SecretKey:
    """Derive the key of what the owner's profile keeps of the catalogue of ``collection``."""
    return derive(master, labels.SECTION + b"part-memory", collection)


def catalogue_key(master: SecretKey, collection: bytes) -> SecretKey:
    """Derive the owner's key of the catalogue of ``collection`` (16 bytes)."""
    return derive(master, labels.SECTION + b"catalogue", collection)
