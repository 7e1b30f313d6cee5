"""Manifests: encode, sign, read (section 7)."""

from __future__ import annotations

import hashlib
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from .codec import (
    SCORING_SHAPE,
    bytes_of,
    decode_cbor,
    encode_cbor,
    has_shape,
    is_bytes,
    is_text,
    is_uint,
    scoring_in_range,
    u32,
)
from .refused import Refused, require

MAGIC = b"MKMANIFS"
_LABEL = b"mksearch/1/manifest\x00"
_FILE = {"id": bytes_of(32), "size": is_uint}
_BODY = {
    "collection": bytes_of(16),
    "name": is_text,
    "version": is_uint,
    "previous": bytes_of(32),
    "created_at": is_uint,
    "expires_at": is_uint,
    "n_servers": is_uint,
    "collusion_bound": is_uint,
    "owner_key": bytes_of(32),
    "groups": [
        {
            "policy": is_bytes,
            "epoch": is_uint,
            "analyzer": is_text,
            "scoring": SCORING_SHAPE,
            "n_docs": is_uint,
            "segments": [{"id": bytes_of(32), "size": is_uint, "salt": bytes_of(32)}],
            "dictionary": _FILE,
            "lookup": _FILE,
            "blobs": _FILE,
        }
    ],
    "catalogue": _FILE,
}


def _check_body(body: dict[str, Any]) -> None:
    require(has_shape(_BODY, body), "7.4", "the body has other keys or types")
    n, t = body["n_servers"], body["collusion_bound"]
    require(t >= 1 and 2 * t + 1 <= n <= 255, "7.4", f"{n} servers with collusion bound {t}")
    require(body["version"] >= 1, "7.4", "version 0")
    first = body["version"] == 1
    require(first == (body["previous"] == bytes(32)), "7.4", "`previous` contradicts the version")
    for group in body["groups"]:
        require(scoring_in_range(group["scoring"]), "7.4", "scoring is out of range")


def encode_body(body: dict[str, Any]) -> bytes:
    """Return the canonical bytes of a manifest's body; refuse at 7.4 a body of another shape."""
    _check_body(body)
    return encode_cbor(body)


def manifest_hash(body: bytes) -> bytes:
    """Return the hash of a manifest's body."""
    return hashlib.sha256(body).digest()


def sign_manifest(body: bytes, owner_seed: bytes) -> bytes:
    """Return the file of a manifest, signed by the Ed25519 private key of 32 bytes."""
    key = Ed25519PrivateKey.from_private_bytes(owner_seed)
    return MAGIC + u32(1) + u32(len(body)) + body + key.sign(_LABEL + body)


def read_manifest(
    data: bytes,
    owner_key: bytes,
    collection: bytes,
    now: int,
    seen: tuple[int, bytes] | None = None,
    accept_expired: bool = False,
) -> dict[str, Any]:
    """Return the body of a manifest file; refuse at 7.1 to 7.7, in this order.

    Args:
        data: the file.
        owner_key: pinned Ed25519 public key, 32 bytes.
        collection: pinned, 16 bytes.
        now: Unix seconds.
        seen: version and hash of the highest manifest seen.
        accept_expired: skip 7.7.
    """
    require(data[:12] == MAGIC + u32(1), "7.1", "another magic or format")
    require(len(data) >= 16, "7.2", "no length")
    size = int.from_bytes(data[12:16], "big")
    require(len(data) == 16 + size + 64, "7.2", f"{len(data)} bytes for a body of {size}")
    raw, signature = data[16 : 16 + size], data[16 + size :]
    try:
        Ed25519PublicKey.from_public_bytes(owner_key).verify(signature, _LABEL + raw)
    except InvalidSignature as error:
        raise Refused("7.3", "not signed by the pinned owner key") from error
    try:
        body = decode_cbor(raw)
    except ValueError as error:
        raise Refused("7.4", f"the body is not canonical: {error}") from error
    _check_body(body)
    require(body["owner_key"] == owner_key, "7.5", "another owner key")
    require(body["collection"] == collection, "7.5", "another collection")
    if seen is not None:
        version, known = seen
        require(body["version"] >= version, "7.6", f"version {body['version']} after {version}")
        if body["version"] == version:
            require(manifest_hash(raw) == known, "7.6", f"two manifests of version {version}")
        if body["version"] == version + 1:
            require(body["previous"] == known, "7.6", "not the successor of the manifest known")
    require(now <= body["expires_at"] or accept_expired, "7.7", "expired")
    return dict(body)
