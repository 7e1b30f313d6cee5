"""Key derivation: HKDF-SHA-256 and keyed hashes."""

from __future__ import annotations

import hashlib
import hmac

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from mksearch.crypto.secret import SecretKey
from mksearch.params import KEY_BYTES

__all__ = ["derive", "derive_from_both", "keyed_hash_sha256", "keyed_hash_sha512", "sha256"]


def derive(key: SecretKey, label: bytes, context: bytes = b"") -> SecretKey:
    """Derive the key of one use: HKDF-SHA-256, empty salt, ``info = label || 0 || context``.

    Args:
        key: the key above it in the table of docs/protocol.md, section 2.
        label: ASCII, from ``crypto.labels``.
        context: bytes that tell apart keys of one label (collection, salt, ..).
    """
    return _hkdf(key.reveal(), label, context)


def derive_from_both(
    first: SecretKey, second: SecretKey, label: bytes, context: bytes = b""
) -> SecretKey:
    """Derive a key that whoever lacks one of the two does not know: of ``first || second``."""
    return _hkdf(first.reveal() + second.reveal(), label, context)


def _hkdf(material: bytes, label: bytes, context: bytes) -> SecretKey:
    info = label + b"\0" + context
    hkdf = HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=info)
    return SecretKey(hkdf.derive(material))


def keyed_hash_sha256(key: SecretKey, message: bytes) -> bytes:
    """Return HMAC-SHA-256 of ``message``: 32 bytes."""
    return hmac.digest(key.reveal(), message, "sha256")


def keyed_hash_sha512(key: SecretKey, message: bytes) -> bytes:
    """Return HMAC-SHA-512 of ``message``: 64 bytes."""
    return hmac.digest(key.reveal(), message, "sha512")


def sha256(*parts: bytes | memoryview) -> bytes:
    """Return SHA-256 of the concatenated ``parts``: 32 bytes."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()
