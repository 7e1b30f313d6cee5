"""Authenticated encryption (AES-256-GCM) and key wrapping (RFC 3394)."""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import (
    InvalidUnwrap,
    aes_key_unwrap,
    aes_key_wrap,
)

from mksearch.crypto.secret import SecretKey
from mksearch.errors import RecordRefused

__all__ = ["TAG_BYTES", "WRAPPED_KEY_BYTES", "Aead", "unwrap_key", "wrap_key"]

TAG_BYTES = 16
WRAPPED_KEY_BYTES = 40


class Aead:
    """AES-256-GCM under one key; the caller owns the uniqueness of the 12-byte nonces."""

    __slots__ = ("_gcm",)

    def __init__(self, key: SecretKey) -> None:
        self._gcm = AESGCM(key.reveal())

    def seal(self, nonce: bytes, plaintext: bytes, associated: bytes) -> bytes:
        """Encrypt: ``len(plaintext) + 16`` bytes."""
        return self._gcm.encrypt(nonce, plaintext, associated)

    def open(self, nonce: bytes, ciphertext: bytes, associated: bytes, what: str) -> bytes:
        """Decrypt and authenticate.

        Raises:
            RecordRefused: the bytes were not sealed under this key, nonce and associated data.
        """
        try:
            return self._gcm.decrypt(nonce, ciphertext, associated)
        except (InvalidTag, ValueError):
            raise RecordRefused(
                f"{what} does not open: it was changed, or sealed under another key",
                cure="ask another server; if none helps, the keys are not those of this collection",
            ) from None


def wrap_key(wrapping: SecretKey, key: SecretKey) -> bytes:
    """Wrap ``key`` by RFC 3394: 40 bytes."""
    return aes_key_wrap(wrapping.reveal(), key.reveal())


def unwrap_key(wrapping: SecretKey, wrapped: bytes, what: str) -> SecretKey:
    """Unwrap a key of 40 wrapped bytes.

    Raises:
        RecordRefused: the bytes were not wrapped under this key.
    """
    try:
        return SecretKey(aes_key_unwrap(wrapping.reveal(), wrapped))
    except (InvalidUnwrap, ValueError):
        raise RecordRefused(f"the key of {what} does not unwrap") from None
