"""Renewals: a later expiry of a version, signed by its timestamp key (docs/protocol.md, 14.2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mksearch.codec import (
    ENVELOPE_BYTES,
    decode_cbor,
    encode_cbor,
    read_envelope,
    require_map,
    write_envelope,
)
from mksearch.crypto import labels
from mksearch.crypto.signature import SigningKey, cut_signed, verify
from mksearch.errors import FormatError, MksearchError, RenewalRefused, VerificationError
from mksearch.index.manifest import SignedManifest
from mksearch.params import CLOCK_S, MANIFEST_LIFE_S

__all__ = ["SignedRenewal", "latest_renewal"]

_MAGIC, _FORMAT = b"MKRENEWL", 1
_FIELDS: dict[str, type] = {
    "collection": bytes,
    "version": int,
    "manifest": bytes,
    "created_at": int,
    "expires_at": int,
}
_LENGTHS = {"collection": 16, "manifest": 32}


@dataclass(frozen=True, slots=True)
class SignedRenewal:
    """A renewal of one manifest, proved to be signed by that manifest's timestamp key.

    Attributes:
        created_at: Unix seconds.
        expires_at: Unix seconds, until when the manifest is good.
        body: the bytes that are signed.
        signature: 64 bytes.
    """

    created_at: int
    expires_at: int
    body: bytes
    signature: bytes

    @classmethod
    def sign(cls, signed: SignedManifest, now_s: int, key: SigningKey) -> SignedRenewal:
        """Renew a manifest for its whole life from ``now_s`` on.

        Args:
            signed: the manifest.
            now_s: Unix seconds.
            key: the timestamp key that it names.

        Raises:
            RenewalRefused: the manifest names another timestamp key, or none.
        """
        manifest = signed.manifest
        if manifest.timestamp_key != key.public:
            named = "another timestamp key" if manifest.timestamp_key else "no timestamp key"
            raise RenewalRefused(f"version {manifest.version} names {named}")
        expires_at = now_s + MANIFEST_LIFE_S
        body = encode_cbor(
            {
                "collection": manifest.collection,
                "version": manifest.version,
                "manifest": signed.hash,
                "created_at": now_s,
                "expires_at": expires_at,
            }
        )
        return cls(now_s, expires_at, body, key.sign(labels.RENEWAL, body))

    def encode(self) -> bytes:
        """Return the file."""
        size = len(self.body).to_bytes(4, "big")
        return write_envelope(_MAGIC, _FORMAT) + size + self.body + self.signature

    @classmethod
    def decode(cls, data: bytes, signed: SignedManifest) -> SignedRenewal:
        """Read a file, proving the signature before anything is parsed (14.2.1 to 14.2.7).

        Args:
            data: the file; untrusted.
            signed: the manifest that it should renew, proved.

        Raises:
            FormatError: damaged.
            UnsupportedVersion: another format version.
            VerificationError: not signed by the manifest's timestamp key, or it names none.
            RenewalRefused: of another collection or manifest, or longer than a manifest's life.
        """
        what = "a renewal"
        read_envelope(data, _MAGIC, _FORMAT, what)
        body, signature = cut_signed(data, ENVELOPE_BYTES, what)
        manifest = signed.manifest
        if not manifest.timestamp_key:
            raise VerificationError(
                f"{what} came for version {manifest.version}, which names no timestamp key"
            )
        verify(manifest.timestamp_key, labels.RENEWAL, body, signature, what)
        fields = require_map(decode_cbor(body, what), _FIELDS, what)
        for name, length in _LENGTHS.items():
            if len(fields[name]) != length:
                raise FormatError(f"{what}: {name} has {len(fields[name])} bytes (need {length})")
        if fields["collection"] != manifest.collection:
            raise RenewalRefused(f"{what} is of collection {fields['collection'].hex()}")
        if (fields["manifest"], fields["version"]) != (signed.hash, manifest.version):
            raise RenewalRefused(
                f"{what} is of version {fields['version']} ({fields['manifest'].hex()}), not of "
                f"version {manifest.version} ({signed.hash.hex()})"
            )
        life_s = fields["expires_at"] - fields["created_at"]
        if not 0 < life_s <= MANIFEST_LIFE_S:
            raise RenewalRefused(
                f"{what} is for {life_s} s (at least 1, at most {MANIFEST_LIFE_S})"
            )
        return cls(fields["created_at"], fields["expires_at"], body, signature)

    def require_begun(self, now_s: int) -> None:
        """Prove that it was not signed in the future (14.2.8).

        Raises:
            RenewalRefused: it was, by more than clocks may differ.
        """
        ahead_s = self.created_at - now_s
        if ahead_s > CLOCK_S:
            raise RenewalRefused(
                f"a renewal is {ahead_s} s ahead of the clock (at most {CLOCK_S})",
                cure="set the clock of who signed it, or of who reads it",
            )


def latest_renewal(
    found: Iterable[bytes], signed: SignedManifest, now_s: int
) -> SignedRenewal | None:
    """Return the latest of the renewals that prove right, None without one (14.2, step 4).

    Args:
        found: files; untrusted, b"" where there is none.
        signed: the manifest, proved.
        now_s: Unix seconds.
    """
    latest: SignedRenewal | None = None
    for data in found:
        try:
            renewal = SignedRenewal.decode(data, signed)
            renewal.require_begun(now_s)
        except MksearchError:
            continue
        if latest is None or renewal.expires_at > latest.expires_at:
            latest = renewal
    return latest
