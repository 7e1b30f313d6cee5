"""Keys of the owner and of a member, in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mksearch.crypto.bundle import KeyBundle, catalogue_key, part_memory_key
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.errors import ManifestRefused, MksearchError
from mksearch.index.manifest import Group, Manifest
from mksearch.params import COLLECTION_BYTES, KEY_BYTES

__all__ = ["NO_POLICY", "MemberKeys", "OwnerKeys"]

#: Policy bytes of the group that has no policy.
NO_POLICY = b""


@dataclass(frozen=True, slots=True, eq=False)
class MemberKeys:
    """What it takes to search and read one policy group, and to know its owner: a `KeyRing`.

    Attributes:
        collection: 16 bytes.
        owner_key: Ed25519 public key of the owner, 32 bytes.
        policy: policy bytes of the group.
        epoch: generation of the keys.
        bundle: the group's key bundle; secret.
    """

    collection: bytes
    owner_key: bytes
    policy: bytes
    epoch: int
    bundle: KeyBundle

    def require_manifest(self, _manifest: Manifest) -> None:
        """Accept every authority: these keys came from the owner."""

    def may_open(self, group: Group) -> bool:
        """Tell whether it is the group of these keys."""
        return (group.policy, group.epoch) == (self.policy, self.epoch)

    def needs_bundle(self) -> bool:
        """The keys are here."""
        return False

    def open(self, _manifest: Manifest, _group: Group, _sealed: bytes) -> KeyBundle:
        """Return the keys held."""
        return self.bundle

    def refuse(self, manifest: Manifest) -> MksearchError:
        """Name the version."""
        return ManifestRefused(
            f"version {manifest.version} has no group of this member's keys",
            cure="enrol again for the current epoch",
        )


@dataclass(frozen=True, slots=True, eq=False)
class OwnerKeys:
    """What an owner holds of one collection.

    Attributes:
        collection: 16 random bytes that name it.
        master: master secret.
        signing: key that signs manifests.
    """

    collection: bytes
    master: SecretKey
    signing: SigningKey

    @classmethod
    def generate(cls, random: RandomSource) -> OwnerKeys:
        """Draw the keys of a new collection."""
        return cls(
            random.bytes(COLLECTION_BYTES),
            SecretKey(random.bytes(KEY_BYTES)),
            SigningKey(SecretKey(random.bytes(KEY_BYTES))),
        )

    def bundle(self, policy: bytes, epoch: int) -> KeyBundle:
        """Derive the bundle of a policy group."""
        return KeyBundle.from_master(self.master, self.collection, epoch, policy)

    def sealed_bundle(self, policy: bytes, epoch: int, access_epoch: int) -> KeyBundle:
        """Derive what is sealed for members: a group's keys with the search key of now.

        Args:
            policy: of the group.
            epoch: of the group.
            access_epoch: of the version.
        """
        return replace(self.bundle(policy, epoch), search=self.bundle(policy, access_epoch).search)

    def member(self, policy: bytes = NO_POLICY, epoch: int = 1) -> MemberKeys:
        """Return what a member of the group holds."""
        bundle = self.bundle(policy, epoch)
        return MemberKeys(self.collection, self.signing.public, policy, epoch, bundle)

    def part_memory_key(self) -> SecretKey:
        """Derive the key of the catalogue's parts as the profile keeps them."""
        return part_memory_key(self.master, self.collection)

    def catalogue_key(self) -> SecretKey:
        """Derive the key of the owner's catalogue."""
        return catalogue_key(self.master, self.collection)
