"""What all orders of the owner to servers have in common (docs/protocol.md, 13.2 and 13.6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from mksearch.access.keys import PublicParameters, VerificationKeys
from mksearch.codec import decode_cbor, encode_cbor, require_map
from mksearch.crypto.kdf import sha256
from mksearch.crypto.signature import SigningKey, verify
from mksearch.errors import FormatError, MksearchError
from mksearch.params import COLLECTION_BYTES

__all__ = [
    "CHALLENGE_BYTES",
    "Order",
    "SignedOrder",
    "encode_order",
    "read_keys",
    "read_order",
]

CHALLENGE_BYTES = 32
_SIZES = {"collection": COLLECTION_BYTES, "challenge": CHALLENGE_BYTES}


class Order(Protocol):
    """What the owner says to one server.

    Attributes:
        LABEL: signed before the body.
        WHAT: names the order in errors.
    """

    LABEL: ClassVar[bytes]
    WHAT: ClassVar[str]

    @property
    def collection(self) -> bytes:
        """16 bytes."""

    @property
    def server(self) -> int:
        """Whom it is for, from 1."""

    @property
    def challenge(self) -> bytes:
        """Of that server, 32 bytes."""

    def encode(self) -> bytes:
        """Return the body, which is signed."""

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Read a body whose signature has been proved; raise FormatError."""


_Order = TypeVar("_Order", bound=Order)


@dataclass(frozen=True, slots=True)
class SignedOrder(Generic[_Order]):
    """An order with the owner's signature proved.

    Attributes:
        order: the body, decoded.
        body: its bytes.
        signature: 64 bytes.
    """

    order: _Order
    body: bytes
    signature: bytes

    @property
    def hash(self) -> bytes:
        """SHA-256 of the body: what is sealed beside it is bound to this."""
        return sha256(self.body)

    @classmethod
    def sign(cls, order: _Order, key: SigningKey) -> SignedOrder[_Order]:
        """Sign with the owner's key."""
        body = order.encode()
        return cls(order, body, key.sign(order.LABEL, body))

    @classmethod
    def decode(
        cls, kind: type[_Order], body: bytes, signature: bytes, owner_key: bytes
    ) -> SignedOrder[_Order]:
        """Prove the signature, then read the body (13.2.1, 13.2.2, 13.2.4; 13.6.1, 13.6.2, 13.6.4).

        Args:
            kind: of the order that is expected.
            body: untrusted.
            signature: 64 bytes.
            owner_key: pinned, 32 bytes.

        Raises:
            VerificationError: not signed by the owner.
            FormatError: not canonical.
        """
        verify(owner_key, kind.LABEL, body, signature, kind.WHAT)
        return cls(kind.decode(body), body, signature)


def encode_order(order: Order, more: Mapping[str, object]) -> bytes:
    """Return a body: what every order says, and ``more``."""
    said = {
        "collection": order.collection,
        "server": order.server,
        "challenge": order.challenge,
    }
    return encode_cbor(said | dict(more))


def read_order(
    body: bytes, what: str, more: Mapping[str, type], sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Read a body with what every order says, and more.

    Args:
        body: whose signature has been proved.
        what: names the order in errors.
        more: types of its other fields, but those of ``sizes``.
        sizes: lengths of its fields of a fixed number of bytes.

    Returns:
        All fields by name.

    Raises:
        FormatError: not canonical, of other fields or types, or of a wrong length.
    """
    sizes = _SIZES | dict(sizes)
    shape = {"server": int, **dict.fromkeys(sizes, bytes), **more}
    fields = require_map(decode_cbor(body, what), shape, what)
    for name, size in sizes.items():
        if len(fields[name]) != size:
            raise FormatError(f"{what}: {name} has not {size} bytes")
    return fields


def read_keys(
    authority: bytes, verification: bytes, what: str
) -> tuple[PublicParameters, VerificationKeys]:
    """Read the files of an authority that an order carries, and prove that they belong together.

    Args:
        authority: file of its parameters.
        verification: file of its verification keys.
        what: names the order in errors.

    Raises:
        FormatError: a file is damaged, or they are of different authorities or polynomials.
    """
    parameters = PublicParameters.decode(authority)
    keys = VerificationKeys.decode(verification)
    try:
        keys.require_consistent(parameters)
    except MksearchError as error:
        raise FormatError(f"{what}: {error.message}") from None
    return parameters, keys
