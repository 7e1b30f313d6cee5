"""What owner, users and servers of the shared authority tell each other (docs/protocol.md, 13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from mksearch.access.keys import AuthorityShare, PublicParameters, VerificationKeys
from mksearch.access.orders import encode_order, read_keys, read_order
from mksearch.codec import encode_cbor
from mksearch.crypto import labels
from mksearch.crypto.kdf import sha256
from mksearch.crypto.signature import SigningKey, verify
from mksearch.errors import FormatError, MksearchError

__all__ = [
    "PARTIAL_PURPOSE",
    "SHARE_PURPOSE",
    "EnrolRequest",
    "ShareOrder",
    "TokenClaim",
    "partial_key_message",
    "token_attributes_message",
]

#: Purposes of what is sealed.
SHARE_PURPOSE = b"authority-share"
PARTIAL_PURPOSE = b"partial-key"


@dataclass(frozen=True, slots=True)
class ShareOrder:
    """What the owner says with a share.

    Attributes:
        collection: 16 bytes.
        server: whose share it is, from 1.
        challenge: of that server, 32 bytes.
        parameters: of the authority.
        verification: of this dealing.
    """

    LABEL: ClassVar[bytes] = labels.INSTALL_SHARE
    WHAT: ClassVar[str] = "an order with a share"

    collection: bytes
    server: int
    challenge: bytes
    parameters: PublicParameters
    verification: VerificationKeys

    def encode(self) -> bytes:
        """Return the body, which is signed."""
        files = {"authority": self.parameters.encode(), "verification": self.verification.encode()}
        return encode_order(self, files)

    @classmethod
    def decode(cls, body: bytes) -> ShareOrder:
        """Read a body whose signature has been proved (13.2.2, 13.2.4).

        Raises:
            FormatError: not canonical, or files that do not belong together.
        """
        fields = read_order(body, cls.WHAT, {"authority": bytes, "verification": bytes}, {})
        authority, verification = fields.pop("authority"), fields.pop("verification")
        parameters, keys = read_keys(authority, verification, cls.WHAT)
        return cls(**fields, parameters=parameters, verification=keys)

    def require_share(self, share: AuthorityShare) -> None:
        """Prove that a share is the one that the order speaks of (13.2.5).

        Raises:
            FormatError: it is not.
        """
        if share.server != self.server:
            raise FormatError(f"the share of server {share.server} came to {self.server}")
        try:
            share.require_matches(self.parameters, self.verification)
        except MksearchError as error:
            raise FormatError(f"a share of the authority: {error.message}") from None


@dataclass(frozen=True, slots=True)
class TokenClaim:
    """An ID token that a user shows besides a credential (13.7.2).

    Attributes:
        id_token: as the issuer made it.
        attributes: that the key is to have, as printed, ascending; none asks which it may have.
    """

    id_token: str = field(repr=False)
    attributes: tuple[str, ...] = ()

    def message(self) -> bytes:
        """Return what the user signs of it: 64 bytes."""
        return sha256(self.id_token.encode()) + sha256(encode_cbor(list(self.attributes)))


@dataclass(frozen=True, slots=True)
class EnrolRequest:
    """What a user signs to be enrolled at one server: ``M`` of step 13.3.1.

    Attributes:
        server: asked, from 1.
        challenge: of that server, 32 bytes.
        authority: id, 32 bytes.
        epoch: from 1.
        credential: SHA-256 of the credential's body, 32 bytes.
        token: None without an ID token.
    """

    server: int
    challenge: bytes
    authority: bytes
    epoch: int
    credential: bytes
    token: TokenClaim | None = None

    def message(self) -> bytes:
        """Return what is signed, without the label."""
        return b"".join(
            (
                self.server.to_bytes(4, "big"),
                self.challenge,
                self.authority,
                self.epoch.to_bytes(8, "big"),
                self.credential,
                b"" if self.token is None else self.token.message(),
            )
        )

    @property
    def hash(self) -> bytes:
        """SHA-256 of ``M``, label included: 32 bytes."""
        return sha256(labels.ENROL, b"\0", self.message())

    def sign(self, key: SigningKey) -> bytes:
        """Sign with the user's key: 64 bytes."""
        return key.sign(labels.ENROL, self.message())

    def verify(self, user_key: bytes, signature: bytes) -> None:
        """Raise VerificationError unless it is the user's signature (13.3.4)."""
        verify(user_key, labels.ENROL, self.message(), signature, "a request to enrol")


def partial_key_message(request: EnrolRequest, sealed: bytes, generation: int) -> bytes:
    """Return what a server signs with a partial key (13.3.3), without the label."""
    numbers = request.epoch.to_bytes(8, "big") + generation.to_bytes(8, "big")
    return request.hash + sha256(sealed) + numbers


def token_attributes_message(request: EnrolRequest, attributes: Sequence[str]) -> bytes:
    """Return what a server signs with the attributes it would give (13.7.2), without the label."""
    return request.hash + sha256(encode_cbor(list(attributes)))
