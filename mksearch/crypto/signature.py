"""Ed25519 signatures over labelled messages."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from mksearch.crypto.secret import SecretKey
from mksearch.errors import FormatError, VerificationError

__all__ = ["SIGNATURE_BYTES", "SigningKey", "cut_signed", "require_public", "verify"]

SIGNATURE_BYTES = 64


class SigningKey:
    """An Ed25519 private key; ``public`` is its 32-byte public key."""

    __slots__ = ("_key", "public")

    def __init__(self, seed: SecretKey) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed.reveal())
        self.public: bytes = self._key.public_key().public_bytes_raw()

    def sign(self, label: bytes, message: bytes) -> bytes:
        """Sign ``label || 0 || message``: 64 bytes."""
        return self._key.sign(label + b"\0" + message)

    def __repr__(self) -> str:
        return f"SigningKey(public={self.public.hex()}, private=<redacted>)"

    def __reduce__(self) -> str:
        raise TypeError("signing keys are never pickled")


def cut_signed(data: bytes, start: int, what: str) -> tuple[bytes, bytes]:
    """Return body and signature of a file that ends with them: u32 length, body, 64 bytes.

    Args:
        data: the whole file; untrusted.
        start: where the length stands, behind the envelope.
        what: what it is, for the message.

    Raises:
        FormatError: it has another length.
    """
    begin = start + 4
    stop = begin + int.from_bytes(data[start:begin], "big")
    if len(data) != stop + SIGNATURE_BYTES:
        raise FormatError(f"{what} has {len(data)} bytes (need {stop + SIGNATURE_BYTES})")
    return data[begin:stop], data[stop:]


def require_public(public: bytes, what: str) -> None:
    """Raise FormatError unless ``public`` can be an Ed25519 public key (32 bytes)."""
    try:
        Ed25519PublicKey.from_public_bytes(public)
    except ValueError:
        raise FormatError(f"{what} holds a public key that cannot be used") from None


def verify(public: bytes, label: bytes, message: bytes, signature: bytes, what: str) -> None:
    """Raise unless ``signature`` is ``public``'s over ``label || 0 || message``.

    Args:
        public: Ed25519 public key, 32 bytes.
        label: from ``crypto.labels``.
        message: the received bytes, before any parsing.
        signature: 64 bytes.
        what: what was signed, for the message.

    Raises:
        VerificationError: the key or the signature is malformed or does not fit.
    """
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, label + b"\0" + message)
    except (InvalidSignature, ValueError):
        raise VerificationError(
            f"the signature of {what} is not that of key {public.hex()[:16]}..",
            cure="ask another server; if all send the same, the pinned key is not the owner's",
        ) from None
