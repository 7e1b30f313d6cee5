"""Credentials: what the owner's administration says of a user (docs/protocol.md, 12.3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from mksearch.access.attributes import Attribute, key_labels, parse_attribute
from mksearch.codec import (
    ENVELOPE_BYTES,
    decode_cbor,
    encode_cbor,
    read_envelope,
    require_map,
    write_envelope,
)
from mksearch.crypto import labels
from mksearch.crypto.kdf import sha256
from mksearch.crypto.signature import SIGNATURE_BYTES, SigningKey, verify
from mksearch.errors import CredentialRefused, FormatError, ParameterError, PolicyError
from mksearch.params import ATTRIBUTES_MAX, COLLECTION_BYTES, KEY_BYTES

__all__ = ["CREDENTIAL_MAGIC", "SERIAL_BYTES", "Credential", "SignedCredential", "printed"]

CREDENTIAL_MAGIC, _FORMAT = b"MKCREDEN", 1
SERIAL_BYTES = 16
_LENGTH_BYTES = 4
_FIELDS: dict[str, type] = {
    "collection": bytes,
    "authority": bytes,
    "epoch": int,
    "serial": bytes,
    "user": bytes,
    "attributes": list,
    "issued_at": int,
    "expires_at": int,
}
_SIZES = {
    "collection": COLLECTION_BYTES,
    "authority": KEY_BYTES,
    "serial": SERIAL_BYTES,
    "user": KEY_BYTES,
}


@dataclass(frozen=True, slots=True)
class Credential:
    """What an administration says of one user.

    Attributes:
        collection: 16 bytes.
        authority: id, 32 bytes.
        epoch: generation of the keys, from 1.
        serial: 16 bytes, unlike any other's.
        user: id of the user key, 32 bytes.
        attributes: 1..64, as printed, ascending.
        issued_at: Unix seconds.
        expires_at: Unix seconds, later than ``issued_at``.
    """

    collection: bytes
    authority: bytes
    epoch: int
    serial: bytes
    user: bytes
    attributes: tuple[Attribute, ...]
    issued_at: int
    expires_at: int

    def __post_init__(self) -> None:
        """Put the attributes in order.

        Raises:
            ParameterError: a number is out of range.
            PolicyError: no key can have these attributes together.
        """
        ordered = sorted({str(a): a for a in self.attributes}.items(), key=lambda x: x[0].encode())
        object.__setattr__(self, "attributes", tuple(a for _, a in ordered))
        if not 1 <= len(ordered) <= ATTRIBUTES_MAX:
            raise ParameterError(f"a credential of {len(ordered)} attributes (1..{ATTRIBUTES_MAX})")
        if not 0 <= self.issued_at < self.expires_at:
            raise ParameterError(
                f"a credential from {self.issued_at} to {self.expires_at} is never valid"
            )
        if self.epoch < 1:
            raise ParameterError(f"epoch {self.epoch} is below 1")
        key_labels(self.attributes, self.epoch)

    def encode(self) -> bytes:
        """Return the body, which is signed."""
        return encode_cbor(
            {
                "collection": self.collection,
                "authority": self.authority,
                "epoch": self.epoch,
                "serial": self.serial,
                "user": self.user,
                "attributes": [str(attribute) for attribute in self.attributes],
                "issued_at": self.issued_at,
                "expires_at": self.expires_at,
            }
        )

    @classmethod
    def decode(cls, body: bytes) -> Credential:
        """Read a body whose signature has been proved.

        Raises:
            FormatError: not a canonical credential (12.3.4).
        """
        fields = require_map(decode_cbor(body, "a credential"), _FIELDS, "a credential")
        for name, size in _SIZES.items():
            if len(fields[name]) != size:
                raise FormatError(f"a credential: {name} has not {size} bytes")
        try:
            fields["attributes"] = tuple(_attribute(text) for text in fields["attributes"])
            credential = cls(**fields)
        except (ParameterError, PolicyError) as error:
            raise FormatError(f"a credential cannot be: {error.message}") from None
        if credential.encode() != body:
            raise FormatError("a credential does not list its attributes as they are printed")
        return credential


def printed(attributes: Iterable[Attribute]) -> tuple[str, ...]:
    """Return attributes as they are printed, each once, ascending by UTF-8 bytes."""
    return tuple(sorted({str(attribute) for attribute in attributes}, key=str.encode))


def _attribute(text: Any) -> Attribute:
    if not isinstance(text, str):
        raise FormatError("a credential lists an attribute that is no text")
    return parse_attribute(text)


@dataclass(frozen=True, slots=True)
class SignedCredential:
    """A credential whose signature is proved, and what is sealed to its user.

    Attributes:
        credential: the body, decoded.
        body: its bytes.
        signature: 64 bytes.
        sealed: only the user can open it.
    """

    credential: Credential
    body: bytes
    signature: bytes
    sealed: bytes

    @property
    def hash(self) -> bytes:
        """SHA-256 of the body: 32 bytes; what the sealed part is bound to."""
        return sha256(self.body)

    @classmethod
    def sign(cls, credential: Credential, key: SigningKey, sealed: bytes) -> SignedCredential:
        """Sign with the admin key; ``sealed`` is bound to the body's hash already."""
        body = credential.encode()
        return cls(credential, body, key.sign(labels.CREDENTIAL, body), sealed)

    def encode(self) -> bytes:
        """Return the file."""
        return b"".join(
            (
                write_envelope(CREDENTIAL_MAGIC, _FORMAT),
                len(self.body).to_bytes(_LENGTH_BYTES, "big"),
                self.body,
                self.signature,
                len(self.sealed).to_bytes(_LENGTH_BYTES, "big"),
                self.sealed,
            )
        )

    @classmethod
    def decode(cls, data: bytes, admin_key: bytes) -> SignedCredential:
        """Read a file, proving the signature before anything is parsed (12.3.1 to 12.3.4).

        Args:
            data: the file; untrusted.
            admin_key: pinned Ed25519 public key of the administration, 32 bytes.

        Raises:
            FormatError: damaged.
            UnsupportedVersion: another format version.
            VerificationError: not signed by the administration.
        """
        read_envelope(data, CREDENTIAL_MAGIC, _FORMAT, "a credential")
        start = ENVELOPE_BYTES + _LENGTH_BYTES
        stop = start + int.from_bytes(data[ENVELOPE_BYTES:start], "big")
        at = stop + SIGNATURE_BYTES
        sealed_at = at + _LENGTH_BYTES
        n_sealed = int.from_bytes(data[at:sealed_at], "big")
        if len(data) < sealed_at or len(data) != sealed_at + n_sealed:
            raise FormatError(f"a credential of {len(data)} bytes is truncated or too long")
        signed = cls.of_parts(data[start:stop], data[stop:at], admin_key)
        return replace(signed, sealed=data[sealed_at:])

    @classmethod
    def of_parts(cls, body: bytes, signature: bytes, admin_key: bytes) -> SignedCredential:
        """Prove the signature over a body, then read it; for servers, which need no secrets.

        Raises:
            VerificationError: not signed by the administration.
            FormatError: not a canonical credential.
        """
        verify(admin_key, labels.CREDENTIAL, body, signature, "a credential")
        return cls(Credential.decode(body), body, signature, b"")

    def require_for(
        self, *, collection: bytes, authority: bytes, user: bytes | None, now_s: int
    ) -> None:
        """Prove that the credential is for here, for this user, and current (12.3.5 to 12.3.7).

        Args:
            collection: pinned, 16 bytes.
            authority: pinned id, 32 bytes.
            user: id of the user key, 32 bytes; None where the bearer proves it otherwise.
            now_s: Unix seconds.

        Raises:
            CredentialRefused: it is not.
        """
        credential = self.credential
        if (credential.collection, credential.authority) != (collection, authority):
            raise CredentialRefused(
                f"the credential is for collection {credential.collection.hex()} and its "
                f"authority {credential.authority.hex()[:16]}, not for {collection.hex()}",
                cure="use the card of that collection, or ask for a credential for this one",
            )
        if user is not None and credential.user != user:
            raise CredentialRefused(
                f"the credential is for user key {credential.user.hex()[:16]}, and this profile's "
                f"is {user.hex()[:16]}",
                cure="send the admin this profile's user key and ask for a credential for it",
            )
        if now_s > credential.expires_at:
            raise CredentialRefused(
                f"the credential expired {now_s - credential.expires_at} s ago",
                cure="ask the admin for a new one",
            )
