"""What the owner tells servers when shares are refreshed or repaired (docs/protocol.md, 13.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mksearch.access.keys import AUTHORITY_BYTES, PublicParameters, VerificationKeys, reveal_scalar
from mksearch.access.orders import encode_order, read_keys, read_order
from mksearch.access.pairing import BLS12_381, G2
from mksearch.crypto import labels
from mksearch.crypto.kdf import sha256
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.user_key import UserKey
from mksearch.errors import FormatError

__all__ = [
    "MASK_PURPOSE",
    "PART_PURPOSE",
    "REFRESH_PURPOSE",
    "REPAIR_BYTES",
    "HelpOrder",
    "RefreshOrder",
    "RepairOrder",
    "part_context",
    "part_message",
]

#: Bytes that name one repair.
REPAIR_BYTES = 16
#: Purposes of what is sealed.
REFRESH_PURPOSE = b"refresh-share"
MASK_PURPOSE = b"repair-mask"
PART_PURPOSE = b"repair-part"


@dataclass(frozen=True, slots=True)
class RefreshOrder:
    """What the owner says with a part of zero.

    Attributes:
        collection: 16 bytes.
        server: whose part it is, from 1.
        challenge: of that server, 32 bytes.
        base: generation of the shares that zero is added to.
        parameters: of the authority.
        verification: of the shares that come out.
    """

    LABEL: ClassVar[bytes] = labels.REFRESH_SHARE
    WHAT: ClassVar[str] = "an order to refresh a share"

    collection: bytes
    server: int
    challenge: bytes
    base: int
    parameters: PublicParameters
    verification: VerificationKeys

    def encode(self) -> bytes:
        """Return the body, which is signed."""
        return encode_order(
            self,
            {
                "base": self.base,
                "authority": self.parameters.encode(),
                "verification": self.verification.encode(),
            },
        )

    @classmethod
    def decode(cls, body: bytes) -> RefreshOrder:
        """Read a body whose signature has been proved.

        Raises:
            FormatError: not canonical, or files that do not belong together.
        """
        more = {"base": int, "authority": bytes, "verification": bytes}
        fields = read_order(body, cls.WHAT, more, {})
        authority, verification = fields.pop("authority"), fields.pop("verification")
        parameters, keys = read_keys(authority, verification, cls.WHAT)
        return cls(**fields, parameters=parameters, verification=keys)


@dataclass(frozen=True, slots=True)
class HelpOrder:
    """What the owner says to a server that helps another one.

    Attributes:
        collection: 16 bytes.
        server: the helper, from 1.
        challenge: of the helper, 32 bytes.
        authority: id, 32 bytes.
        generation: of the shares.
        target: the server that lost its share.
        sealing_key: of that server.
        repair: names this repair, 16 bytes.
        mask: ``g2^b(j)`` of the helper: what is sealed to it counts only if it is this one's.
    """

    LABEL: ClassVar[bytes] = labels.REPAIR_HELP
    WHAT: ClassVar[str] = "an order to help with a share"

    collection: bytes
    server: int
    challenge: bytes
    authority: bytes
    generation: int
    target: int
    sealing_key: UserKey
    repair: bytes
    mask: G2

    def encode(self) -> bytes:
        """Return the body, which is signed."""
        return encode_order(
            self,
            {
                "authority": self.authority,
                "generation": self.generation,
                "target": self.target,
                "sealing_key": self.sealing_key.encode(),
                "repair": self.repair,
                "mask": self.mask.encode(),
            },
        )

    @classmethod
    def decode(cls, body: bytes) -> HelpOrder:
        """Read a body whose signature has been proved.

        Raises:
            FormatError: not canonical.
        """
        more = {"generation": int, "target": int, "sealing_key": bytes, "mask": bytes}
        sizes = {"authority": AUTHORITY_BYTES, "repair": REPAIR_BYTES}
        fields = read_order(body, cls.WHAT, more, sizes)
        if not 1 <= fields["target"] <= 255:
            raise FormatError(f"{cls.WHAT}: there is no server {fields['target']}")
        sealing_key = UserKey.decode(fields["sealing_key"])
        mask = _point(fields["mask"], cls.WHAT)
        return cls(**fields | {"sealing_key": sealing_key, "mask": mask})

    def require_mask(self, value: SecretKey) -> None:
        """Prove that a mask is the one that the owner drew (13.6.7).

        Whoever knew a mask would read the share that it hides, once the target opens the part.

        Raises:
            FormatError: it is not.
        """
        if BLS12_381.g2 ** reveal_scalar(value) != self.mask:
            raise FormatError("a mask came that is not the one in the owner's order")


@dataclass(frozen=True, slots=True)
class RepairOrder:
    """What the owner says to a server with the parts of the share that it lost.

    Attributes:
        collection: 16 bytes.
        server: whose share it is, from 1.
        challenge: of that server, 32 bytes.
        parameters: of the authority.
        verification: of the shares in use.
        repair: names this repair, 16 bytes.
        helpers: t + 1 ids, ascending, not that of ``server``.
        masks: ``g2^b(j)`` of each helper.
    """

    LABEL: ClassVar[bytes] = labels.REPAIR_SHARE
    WHAT: ClassVar[str] = "an order to repair a share"

    collection: bytes
    server: int
    challenge: bytes
    parameters: PublicParameters
    verification: VerificationKeys
    repair: bytes
    helpers: tuple[int, ...]
    masks: tuple[G2, ...]

    def encode(self) -> bytes:
        """Return the body, which is signed."""
        return encode_order(
            self,
            {
                "authority": self.parameters.encode(),
                "verification": self.verification.encode(),
                "repair": self.repair,
                "helpers": list(self.helpers),
                "masks": [mask.encode() for mask in self.masks],
            },
        )

    @classmethod
    def decode(cls, body: bytes) -> RepairOrder:
        """Read a body whose signature has been proved (13.6.2, 13.6.4, 13.6.8).

        Raises:
            FormatError: not canonical, files that do not belong together, or other helpers.
        """
        more = {"authority": bytes, "verification": bytes, "helpers": list, "masks": list}
        fields = read_order(body, cls.WHAT, more, {"repair": REPAIR_BYTES})
        authority, verification = fields.pop("authority"), fields.pop("verification")
        parameters, keys = read_keys(authority, verification, cls.WHAT)
        helpers = _helpers(fields["helpers"], fields["server"], keys, cls.WHAT)
        if len(fields["masks"]) != len(helpers):
            raise FormatError(f"{cls.WHAT} has {len(fields['masks'])} masks (need {len(helpers)})")
        masks = tuple(_point(mask, cls.WHAT) for mask in fields["masks"])
        fields |= {"parameters": parameters, "verification": keys}
        return cls(**fields | {"helpers": helpers, "masks": masks})


def _helpers(
    found: Sequence[object], server: int, keys: VerificationKeys, what: str
) -> tuple[int, ...]:
    helpers = tuple(helper for helper in found if type(helper) is int)
    n, need = keys.quorum.n_servers, keys.quorum.threshold
    are_ids = list(helpers) == sorted(set(helpers)) and all(1 <= one <= n for one in helpers)
    if len(found) != need or len(helpers) != need or not are_ids or server in helpers:
        raise FormatError(f"{what} names other helpers than {need} of {n} servers but {server}")
    return helpers


def _point(mask: object, what: str) -> G2:
    if not isinstance(mask, bytes):
        raise FormatError(f"{what} has a mask that is no point")
    return BLS12_381.decode_g2(mask, f"a mask of {what}")


def part_context(repair: bytes, generation: int, target: int, helper: int) -> bytes:
    """Return what a part of a lost share is bound to when it is sealed (13.6.4)."""
    return repair + generation.to_bytes(8, "big") + bytes([target, helper])


def part_message(order_hash: bytes, part: bytes) -> bytes:
    """Return what a helper signs with its part (13.6.4), without the label."""
    return order_hash + sha256(part)
