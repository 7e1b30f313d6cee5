"""Two manifests of which only one can be: proof that the owner's key signed both (14.3)."""

from __future__ import annotations

from dataclasses import dataclass

from mksearch.codec import (
    ENVELOPE_BYTES,
    decode_cbor,
    encode_cbor,
    read_envelope,
    require_map,
    write_envelope,
)
from mksearch.errors import FormatError, ManifestRefused
from mksearch.index.manifest import SignedManifest

__all__ = ["EQUIVOCATION_MAGIC", "Equivocation", "are_rivals"]

EQUIVOCATION_MAGIC = b"MKEQUIVO"
_FORMAT = 1
_FIELDS: dict[str, type] = {"first": bytes, "second": bytes}
_WHAT = "evidence of two manifests"


def are_rivals(one: SignedManifest, other: SignedManifest) -> bool:
    """Return whether no collection has both versions: of one number, or not one after the other."""
    older, newer = sorted((one, other), key=lambda signed: signed.manifest.version)
    distance = newer.manifest.version - older.manifest.version
    if distance == 1:
        return newer.manifest.previous != older.hash
    return distance == 0 and newer.hash != older.hash


@dataclass(frozen=True, slots=True)
class Equivocation:
    """Two rivals, their signatures proved.

    Attributes:
        first: of the lower version, or of one version and the lower hash.
        second: the other.
    """

    first: SignedManifest
    second: SignedManifest

    @classmethod
    def of(cls, one: SignedManifest, other: SignedManifest) -> Equivocation:
        """Return the evidence that two rivals are.

        Raises:
            ManifestRefused: they are no rivals.
        """
        if not are_rivals(one, other):
            raise ManifestRefused(
                f"versions {one.manifest.version} and {other.manifest.version} may be of one "
                "collection: they prove nothing"
            )
        return cls(*sorted((one, other), key=_order))

    def __str__(self) -> str:
        first, second = self.first, self.second
        return (
            f"the owner's key signed version {first.manifest.version} ({first.hash.hex()}) and "
            f"version {second.manifest.version} ({second.hash.hex()}), of which only one can be"
        )

    def encode(self) -> bytes:
        """Return the file."""
        fields = {"first": self.first.encode(), "second": self.second.encode()}
        return write_envelope(EQUIVOCATION_MAGIC, _FORMAT) + encode_cbor(fields)

    @classmethod
    def decode(cls, data: bytes, owner_key: bytes, collection: bytes) -> Equivocation:
        """Read the file and prove it (14.3.1 to 14.3.4).

        Args:
            data: the file; untrusted.
            owner_key: pinned Ed25519 public key, 32 bytes.
            collection: pinned, 16 bytes.

        Raises:
            FormatError: damaged, or in the other order.
            VerificationError: a manifest is not signed by the owner.
            ManifestRefused: of another collection, or no rivals.
        """
        read_envelope(data, EQUIVOCATION_MAGIC, _FORMAT, _WHAT)
        fields = require_map(decode_cbor(data[ENVELOPE_BYTES:], _WHAT), _FIELDS, _WHAT)
        first, second = (
            SignedManifest.decode(fields[name], owner_key, collection) for name in _FIELDS
        )
        found = cls.of(first, second)
        if found.first is not first:
            raise FormatError(f"{_WHAT} has them in the other order")
        return found


def _order(signed: SignedManifest) -> tuple[int, bytes]:
    return signed.manifest.version, signed.hash
