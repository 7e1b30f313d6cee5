"""Keys and labels (section 2)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import NamedTuple

from .codec import u64

BUNDLE_KINDS = ("mask", "check", "record", "blob", "dictionary", "column", "search")

Bundle = Mapping[str, bytes]
"""Kind -> key of 32 bytes, secret."""


def hkdf(key: bytes, label: str, context: bytes = b"") -> bytes:
    """Derive 32 bytes: HKDF-SHA-256, empty salt, info = label || 0x00 || context."""
    info = label.encode("ascii") + b"\x00" + context
    extracted = hmac.new(b"", key, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()


def bundle_keys(master: bytes, collection: bytes, epoch: int, policy: bytes) -> dict[str, bytes]:
    """Derive the bundle of a policy group and epoch."""
    context = collection + u64(epoch) + policy
    return {kind: hkdf(master, "mksearch/1/bundle/" + kind, context) for kind in BUNDLE_KINDS}


class SegmentKeys(NamedTuple):
    """Keys of one build of a segment, 32 bytes each, secret."""

    mask: bytes
    check: bytes
    record: bytes
    tag: bytes
    slots: bytes


def segment_keys(bundle: Bundle, salt: bytes) -> SegmentKeys:
    """Derive the keys of the build with this salt."""
    return SegmentKeys(
        mask=hkdf(bundle["mask"], "mksearch/1/segment/mask", salt),
        check=hkdf(bundle["check"], "mksearch/1/segment/check", salt),
        record=hkdf(bundle["record"], "mksearch/1/segment/record", salt),
        tag=hkdf(bundle["record"], "mksearch/1/segment/tag", salt),
        slots=hkdf(bundle["record"], "mksearch/1/segment/slots", salt),
    )


class ColumnKeys(NamedTuple):
    """Keys of the columns of terms, 32 bytes each, secret."""

    dedicated: bytes
    shared: bytes


def column_keys(bundle: Bundle) -> ColumnKeys:
    """Derive the keys that place the terms of a group in columns."""
    return ColumnKeys(
        dedicated=hkdf(bundle["column"], "mksearch/1/columns/dedicated"),
        shared=hkdf(bundle["column"], "mksearch/1/columns/shared"),
    )


def section_key(bundle: Bundle, name: str) -> bytes:
    """Derive the key of the stream `dictionary` or `lookup`."""
    return hkdf(bundle["dictionary"], "mksearch/1/section/" + name)


def lookup_key(bundle: Bundle) -> bytes:
    """Derive the HMAC key of external ids."""
    return hkdf(bundle["dictionary"], "mksearch/1/lookup-id")


def wrapping_key(bundle: Bundle) -> bytes:
    """Derive the key that wraps blob keys."""
    return hkdf(bundle["blob"], "mksearch/1/wrap")


def catalogue_key(master: bytes, collection: bytes) -> bytes:
    """Derive the owner's key of the catalogue."""
    return hkdf(master, "mksearch/1/section/catalogue", collection)


def stream_key(key: bytes, kind: str, salt: bytes) -> bytes:
    """Derive the key of one sealed stream."""
    return hkdf(key, "mksearch/1/stream/" + kind, salt)
