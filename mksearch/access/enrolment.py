"""The secret part of a credential: made by the administration, opened by the user (12.3)."""

from __future__ import annotations

from dataclasses import dataclass

from mksearch.access.attributes import key_labels
from mksearch.access.authority import verify_key
from mksearch.access.credential import Credential, SignedCredential
from mksearch.access.keys import AttributeKey, PublicParameters
from mksearch.codec import decode_cbor, encode_cbor, require_map
from mksearch.crypto.identity import Identity
from mksearch.crypto.kdf import sha256
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.crypto.user_key import UserKey
from mksearch.errors import FormatError
from mksearch.params import KEY_BYTES

__all__ = [
    "CredentialSecrets",
    "MemberSecrets",
    "issue_credential",
    "open_credential",
    "read_credential",
]

_PURPOSE = b"credential"
_FIELDS: dict[str, type] = {"member_secret": bytes, "attribute_key": bytes}


@dataclass(frozen=True, slots=True, eq=False)
class MemberSecrets:
    """What an enrolled user holds for one epoch.

    Attributes:
        member_secret: shared by the members of the collection, never shown to a server.
        attribute_key: opens what its labels satisfy.
    """

    member_secret: SecretKey
    attribute_key: AttributeKey

    def __reduce__(self) -> str:
        raise TypeError("secrets of members are never pickled")


@dataclass(frozen=True, slots=True, eq=False)
class CredentialSecrets:
    """What is sealed beside a credential.

    Attributes:
        member_secret: as in `MemberSecrets`.
        attribute_key: None where the servers share the authority and issue it in parts.
    """

    member_secret: SecretKey
    attribute_key: AttributeKey | None

    def encode(self) -> bytes:
        """Return the secret bytes."""
        key = self.attribute_key
        return encode_cbor(
            {
                "member_secret": self.member_secret.reveal(),
                "attribute_key": b"" if key is None else key.encode(),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> CredentialSecrets:
        """Read the secret bytes.

        Raises:
            FormatError: they are not canonical (12.3.8, 12.3.9).
        """
        what = "the secrets of a credential"
        fields = require_map(decode_cbor(data, what), _FIELDS, what)
        if len(fields["member_secret"]) != KEY_BYTES:
            raise FormatError(f"{what} hold a member secret of another length")
        found = fields["attribute_key"]
        key = AttributeKey.decode(found) if found else None
        return cls(SecretKey(fields["member_secret"]), key)

    def __reduce__(self) -> str:
        raise TypeError("secrets of credentials are never pickled")


def issue_credential(
    credential: Credential, user: UserKey, secrets: CredentialSecrets, admin: SigningKey
) -> SignedCredential:
    """Sign a credential and seal its secrets to its user.

    Args:
        credential: for ``user``.
        user: the public keys.
        secrets: of the credential's epoch and attributes.
        admin: the admin key.
    """
    sealed = user.seal(_PURPOSE, sha256(credential.encode()), secrets.encode())
    return SignedCredential.sign(credential, admin, sealed)


def read_credential(signed: SignedCredential, identity: Identity) -> CredentialSecrets:
    """Open the secrets of a credential that ``open_credential`` proved before.

    Raises:
        RecordRefused: they do not open.
        FormatError: they are not canonical.
    """
    opened = identity.open(_PURPOSE, signed.hash, signed.sealed, "a credential")
    return CredentialSecrets.decode(opened)


def open_credential(
    signed: SignedCredential, identity: Identity, parameters: PublicParameters, random: RandomSource
) -> CredentialSecrets:
    """Open the secrets of a credential that ``require_for`` accepted (12.3.8, 12.3.9).

    Args:
        signed: proved to be for this user.
        identity: of the user.
        parameters: of the authority.
        random: source of the weights of a check.

    Raises:
        RecordRefused: they do not open.
        FormatError: they are not canonical, or the key is not the one for these attributes.
    """
    secrets = read_credential(signed, identity)
    wanted = key_labels(signed.credential.attributes, signed.credential.epoch)
    if secrets.attribute_key is not None:
        verify_key(parameters, secrets.attribute_key, wanted, random)
    return secrets
