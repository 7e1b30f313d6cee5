"""Seal keys with a passphrase: scrypt (RFC 7914), then AES-256-GCM."""

from __future__ import annotations

from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from mksearch.crypto import labels
from mksearch.crypto.aead import TAG_BYTES, Aead
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.errors import FormatError
from mksearch.params import KEY_BYTES

__all__ = ["PassphraseSeal"]

_SALT_BYTES = 16
#: 64 MiB and about a quarter of a second: n = 2**16, r = 8, p = 1.
_N, _R, _P = 1 << 16, 8, 1
#: The key is used once: its salt is drawn for every seal.
_NONCE = bytes(12)


def _key(passphrase: bytes, salt: bytes) -> SecretKey:
    scrypt = Scrypt(salt=salt, length=KEY_BYTES, n=_N, r=_R, p=_P)
    return SecretKey(scrypt.derive(passphrase))


class PassphraseSeal:
    """Bytes that only a passphrase opens: salt (16) and ciphertext."""

    @staticmethod
    def seal(passphrase: bytes, content: bytes, random: RandomSource) -> bytes:
        """Seal ``content`` under a key derived from ``passphrase`` and a fresh salt."""
        salt = random.bytes(_SALT_BYTES)
        return salt + Aead(_key(passphrase, salt)).seal(_NONCE, content, labels.PASSPHRASE)

    @staticmethod
    def open(passphrase: bytes, sealed: bytes) -> bytes:
        """Open sealed bytes.

        Raises:
            RecordRefused: the passphrase is wrong or the bytes were changed.
            FormatError: too short.
        """
        if len(sealed) < _SALT_BYTES + TAG_BYTES:
            raise FormatError(f"sealed keys of {len(sealed)} bytes are truncated")
        salt, ciphertext = sealed[:_SALT_BYTES], sealed[_SALT_BYTES:]
        return Aead(_key(passphrase, salt)).open(
            _NONCE, ciphertext, labels.PASSPHRASE, "the profile"
        )
