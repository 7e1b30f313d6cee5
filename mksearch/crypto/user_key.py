"""Public keys of a person: what is sealed to them, and what they sign (docs/protocol.md, 12.1)."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, MLKEM768X25519PublicKey, Suite

from mksearch.codec import ENVELOPE_BYTES, read_envelope, write_envelope
from mksearch.crypto import labels
from mksearch.crypto.kdf import sha256
from mksearch.crypto.signature import require_public
from mksearch.errors import FormatError
from mksearch.params import KEY_BYTES

__all__ = ["SUITE", "USER_KEY_BYTES", "UserKey", "hpke_info"]

_MAGIC, _FORMAT = b"MKUSRKEY", 1
_MLKEM_BYTES = 1184
#: Size of the file.
USER_KEY_BYTES = ENVELOPE_BYTES + _MLKEM_BYTES + 2 * KEY_BYTES
#: A hybrid: what was sealed stays so if either elliptic curves or lattices fall.
SUITE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


def hpke_info(purpose: bytes, context: bytes) -> bytes:
    """Return what a sealed message is bound to."""
    return labels.HPKE + purpose + b"\0" + context


@dataclass(frozen=True, slots=True)
class UserKey:
    """The public keys of one person.

    Attributes:
        mlkem: ML-KEM-768 public key, 1184 bytes.
        x25519: X25519 public key, 32 bytes.
        signing: Ed25519 public key, 32 bytes.
    """

    mlkem: bytes
    x25519: bytes
    signing: bytes

    @property
    def id(self) -> bytes:
        """User id: SHA-256 of the file, 32 bytes."""
        return sha256(self.encode())

    def encode(self) -> bytes:
        """Return the file."""
        return write_envelope(_MAGIC, _FORMAT) + self.mlkem + self.x25519 + self.signing

    @classmethod
    def decode(cls, data: bytes) -> UserKey:
        """Read a file (refusals 12.1.1 to 12.1.3).

        Raises:
            FormatError: it is no user key.
            UnsupportedVersion: another format version.
        """
        read_envelope(data, _MAGIC, _FORMAT, "a user key")
        if len(data) != USER_KEY_BYTES:
            raise FormatError(f"a user key has {len(data)} bytes (need {USER_KEY_BYTES})")
        at = ENVELOPE_BYTES + _MLKEM_BYTES
        key = cls(data[ENVELOPE_BYTES:at], data[at : at + KEY_BYTES], data[at + KEY_BYTES :])
        key._hpke_key()
        require_public(key.signing, "a user key")
        return key

    def seal(self, purpose: bytes, context: bytes, plaintext: bytes) -> bytes:
        """Seal ``plaintext`` so that this person alone can read it; randomness is the system's.

        Args:
            purpose: ASCII name of the use.
            context: what the message belongs to.
            plaintext: secret bytes.

        Returns:
            the encapsulation and the ciphertext.

        Raises:
            FormatError: the public keys are not usable.
        """
        try:
            return SUITE.encrypt(plaintext, self._hpke_key(), info=hpke_info(purpose, context))
        except ValueError:
            raise FormatError("a user key holds a public key that cannot be used") from None

    def _hpke_key(self) -> MLKEM768X25519PublicKey:
        try:
            return MLKEM768X25519PublicKey(
                MLKEM768PublicKey.from_public_bytes(self.mlkem),
                X25519PublicKey.from_public_bytes(self.x25519),
            )
        except ValueError:
            raise FormatError("a user key holds a public key that cannot be used") from None
