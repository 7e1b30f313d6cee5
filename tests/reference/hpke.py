"""HPKE in base mode (RFC 9180) with ML-KEM-768 and X25519 together (section 12.1)."""

from __future__ import annotations

import hashlib
import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from . import mlkem

_KEM, _KDF, _AEAD = 0x647A, 1, 2
_SUITE = b"HPKE" + b"".join(number.to_bytes(2, "big") for number in (_KEM, _KDF, _AEAD))
#: Ends what is hashed to the secret of both: the label of X-Wing.
_WING = b"\\.//^\\"
ENCAPSULATION_BYTES = mlkem.CIPHERTEXT_BYTES + 32


def _extract(salt: bytes, label: bytes, material: bytes) -> bytes:
    return hmac.new(salt, b"HPKE-v1" + _SUITE + label + material, hashlib.sha256).digest()


def _expand(key: bytes, label: bytes, info: bytes, size: int) -> bytes:
    info = size.to_bytes(2, "big") + b"HPKE-v1" + _SUITE + label + info
    return hmac.new(key, info + b"\x01", hashlib.sha256).digest()[:size]


def _key_and_nonce(shared: bytes, info: bytes) -> tuple[bytes, bytes]:
    context = b"\x00" + _extract(b"", b"psk_id_hash", b"") + _extract(b"", b"info_hash", info)
    secret = _extract(shared, b"secret", b"")
    return _expand(secret, b"key", context, 32), _expand(secret, b"base_nonce", context, 12)


def _combined(lattice: bytes, curve: bytes, sent: bytes, public: bytes) -> bytes:
    return hashlib.sha3_256(lattice + curve + sent + public + _WING).digest()


def x25519_public(private: bytes) -> bytes:
    """Return the public key of 32 bytes."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _exchange(private: bytes, public: bytes) -> bytes:
    key = X25519PrivateKey.from_private_bytes(private)
    return key.exchange(X25519PublicKey.from_public_bytes(public))


def seal(
    mlkem_public: bytes, x25519: bytes, info: bytes, plaintext: bytes, m: bytes, private: bytes
) -> bytes:
    """Return encapsulation and ciphertext; `m` and `private`, 32 bytes each, are drawn."""
    lattice, ciphertext = mlkem.encapsulate(mlkem_public, m)
    sent = x25519_public(private)
    shared = _combined(lattice, _exchange(private, x25519), sent, x25519)
    key, nonce = _key_and_nonce(shared, info)
    return ciphertext + sent + AESGCM(key).encrypt(nonce, plaintext, b"")


def open_sealed(d: bytes, z: bytes, private: bytes, info: bytes, sealed: bytes) -> bytes | None:
    """Return the plaintext, or None if it does not open."""
    if len(sealed) < ENCAPSULATION_BYTES:
        return None
    ciphertext, rest = sealed[: mlkem.CIPHERTEXT_BYTES], sealed[mlkem.CIPHERTEXT_BYTES :]
    lattice = mlkem.decapsulate(d, z, ciphertext)
    sent = rest[:32]
    try:
        curve = _exchange(private, sent)
        shared = _combined(lattice, curve, sent, x25519_public(private))
        key, nonce = _key_and_nonce(shared, info)
        return AESGCM(key).decrypt(nonce, rest[32:], b"")
    except (InvalidTag, ValueError):
        return None
