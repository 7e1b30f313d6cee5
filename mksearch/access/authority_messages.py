"""What owner, users and servers of the shared authority tell each other (docs/protocol.md, 13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mksearch.access.keys import AuthorityShare, PublicParameters, VerificationKeys
from mksearch.codec import decode_cbor, encode_cbor, require_map
from mksearch.crypto import labels
from mksearch.crypto.kdf import sha256
from mksearch.crypto.signature import SigningKey, verify
from mksearch.errors import FormatError, MksearchError
from mksearch.params import COLLECTION_BYTES

__all__ = [
    "CHALLENGE_BYTES",
    "PARTIAL_PURPOSE",
    "SHARE_PURPOSE",
    "EnrolRequest",
    "ShareOrder",
    "SignedShareOrder",
    "TokenClaim",
    "partial_key_message",
    "token_attributes_message",
]

CHALLENGE_BYTES = 32
#: Purposes of what is sealed.
SHARE_PURPOSE = b"authority-share"
PARTIAL_PURPOSE = b"partial-key"
_ORDER_FIELDS: dict[str, type] = {
    "collection": bytes,
    "server": int,
    "challenge": bytes,
    "authority": bytes,
    "verification": bytes,
}


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

    collection: bytes
    server: int
    challenge: bytes
    parameters: PublicParameters
    verification: VerificationKeys

    def encode(self) -> bytes:
        """Return the body, which is signed."""
        return encode_cbor(
            {
                "collection": self.collection,
                "server": self.server,
                "challenge": self.challenge,
                "authority": self.parameters.encode(),
                "verification": self.verification.encode(),
            }
        )

    @classmethod
    def decode(cls, body: bytes) -> ShareOrder:
        """Read a body whose signature has been proved (13.2.2, 13.2.4).

        Raises:
            FormatError: not canonical, or files that do not belong together.
        """
        what = "an order with a share"
        fields = require_map(decode_cbor(body, what), _ORDER_FIELDS, what)
        sizes = len(fields["collection"]), len(fields["challenge"])
        if sizes != (COLLECTION_BYTES, CHALLENGE_BYTES):
            raise FormatError(f"{what} has a collection or challenge of a wrong length")
        parameters = PublicParameters.decode(fields["authority"])
        verification = VerificationKeys.decode(fields["verification"])
        try:
            verification.require_consistent(parameters)
        except MksearchError as error:
            raise FormatError(f"{what}: {error.message}") from None
        return cls(
            fields["collection"], fields["server"], fields["challenge"], parameters, verification
        )


@dataclass(frozen=True, slots=True)
class SignedShareOrder:
    """An order with the owner's signature proved.

    Attributes:
        order: the body, decoded.
        body: its bytes.
        signature: 64 bytes.
    """

    order: ShareOrder
    body: bytes
    signature: bytes

    @property
    def hash(self) -> bytes:
        """SHA-256 of the body: what the sealed share is bound to."""
        return sha256(self.body)

    @classmethod
    def sign(cls, order: ShareOrder, key: SigningKey) -> SignedShareOrder:
        """Sign with the owner's key."""
        body = order.encode()
        return cls(order, body, key.sign(labels.INSTALL_SHARE, body))

    @classmethod
    def decode(cls, body: bytes, signature: bytes, owner_key: bytes) -> SignedShareOrder:
        """Prove the signature, then read the body (13.2.1, 13.2.2, 13.2.4).

        Raises:
            VerificationError: not signed by the owner.
            FormatError: not canonical.
        """
        verify(owner_key, labels.INSTALL_SHARE, body, signature, "an order with a share")
        return cls(ShareOrder.decode(body), body, signature)

    def require_share(self, share: AuthorityShare) -> None:
        """Prove that a share is the one that the order speaks of (13.2.5).

        Raises:
            FormatError: it is not.
        """
        if share.server != self.order.server:
            raise FormatError(f"the share of server {share.server} came to {self.order.server}")
        try:
            share.require_matches(self.order.parameters, self.order.verification)
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
