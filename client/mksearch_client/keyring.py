"""Which groups of a version somebody can open, and with which keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mksearch.access.enrolment import MemberSecrets
from mksearch.access.policy import Policy, is_qualified
from mksearch.access.sealed_bundle import open_bundle
from mksearch.crypto.bundle import KeyBundle
from mksearch.errors import EpochPassed, FormatError, ManifestRefused, MksearchError, NotQualified
from mksearch.index.manifest import Group, Manifest
from mksearch_client.keys import OwnerKeys

__all__ = ["EnrolledRing", "KeyRing", "OwnerRing"]


class KeyRing(Protocol):
    """Whoever searches: what a Searcher asks of its keys."""

    @property
    def collection(self) -> bytes:
        """16 bytes."""
        ...

    @property
    def owner_key(self) -> bytes:
        """Ed25519 public key of the owner, 32 bytes."""
        ...

    def require_manifest(self, manifest: Manifest, /) -> None:
        """Raise ManifestRefused or EpochPassed unless these keys are of the manifest's time."""
        ...

    def may_open(self, group: Group, /) -> bool:
        """Tell whether it is worth asking for the group: decided before anything is fetched."""
        ...

    def needs_bundle(self) -> bool:
        """Tell whether `open` wants the sealed bundle."""
        ...

    def open(self, manifest: Manifest, group: Group, sealed: bytes, /) -> KeyBundle:
        """Return the group's keys; raise NotQualified, FormatError or RecordRefused."""
        ...

    def refuse(self, manifest: Manifest, /) -> MksearchError:
        """Return the error of keys that open no group of a version."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class OwnerRing:
    """The owner's keys: every group opens."""

    keys: OwnerKeys

    @property
    def collection(self) -> bytes:
        """16 bytes."""
        return self.keys.collection

    @property
    def owner_key(self) -> bytes:
        """Public key of the owner."""
        return self.keys.signing.public

    def require_manifest(self, _manifest: Manifest) -> None:
        """Accept every authority: the owner names it."""

    def may_open(self, _group: Group) -> bool:
        """The owner may open all."""
        return True

    def needs_bundle(self) -> bool:
        """Bundles are derived."""
        return False

    def open(self, manifest: Manifest, group: Group, _sealed: bytes) -> KeyBundle:
        """Derive the keys."""
        epoch = group.epoch if manifest.access is None else manifest.access.epoch
        return self.keys.sealed_bundle(group.policy, group.epoch, epoch)

    def refuse(self, manifest: Manifest) -> MksearchError:
        """Name the version."""
        return ManifestRefused(f"version {manifest.version} has no group at all")


@dataclass(frozen=True, slots=True, eq=False)
class EnrolledRing:
    """An enrolled user's keys: groups whose policy the attributes satisfy.

    Attributes:
        collection: 16 bytes.
        owner_key: Ed25519 public key of the owner, 32 bytes.
        authority: pinned id of the authority, 32 bytes.
        secrets: of the credential.
    """

    collection: bytes
    owner_key: bytes
    authority: bytes
    secrets: MemberSecrets

    def require_manifest(self, manifest: Manifest) -> None:
        """Raise for another authority (12.5.4) or epoch than those enrolled with.

        Raises:
            ManifestRefused: the version is of another authority.
            EpochPassed: it is of another epoch.
        """
        if manifest.access is None or manifest.access.parameters.authority != self.authority:
            raise ManifestRefused(
                f"version {manifest.version} is not of the authority that this profile knows",
                cure="the owner changed it: get a new card and enrol again",
            )
        own = self.secrets.attribute_key.epoch
        if manifest.access.epoch != own:
            raise EpochPassed(
                f"the collection is in epoch {manifest.access.epoch}, and the credential of "
                f"epoch {own}",
                cure="ask the admin for a credential of the current epoch",
            )

    def may_open(self, group: Group) -> bool:
        """Tell whether the attributes satisfy the policy."""
        key = self.secrets.attribute_key
        return not group.policy or is_qualified(Policy.decode(group.policy).formula, key.labels)

    def needs_bundle(self) -> bool:
        """Bundles are opened."""
        return True

    def open(self, manifest: Manifest, group: Group, sealed: bytes) -> KeyBundle:
        """Open the sealed bundle."""
        if manifest.access is None:
            raise FormatError("a manifest without an administration has no sealed bundles")
        return open_bundle(
            sealed,
            manifest.access.parameters,
            self.secrets,
            collection=self.collection,
            epoch=manifest.access.epoch,
            policy=group.policy,
        )

    def refuse(self, _manifest: Manifest) -> MksearchError:
        """Say that the attributes are in the way."""
        return NotQualified(
            "none of the collection's groups is open to this profile's attributes",
            cure="ask the admin which attributes are needed; mksearch user whoami shows yours",
        )
