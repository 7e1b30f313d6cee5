"""Read the frozen index of format 2 with the product of today, as a member does."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from mksearch.access.attributes import key_labels
from mksearch.access.authority import verify_key
from mksearch.access.credential import SignedCredential
from mksearch.access.credential_list import decode_credentials
from mksearch.access.enrolment import MemberSecrets, open_credential
from mksearch.access.keys import AttributeKey
from mksearch.crypto.bundle import KeyBundle
from mksearch.crypto.identity import Identity
from mksearch.crypto.randomness import SeededRandom, SystemRandom
from mksearch.crypto.secret import SecretKey
from mksearch.index.catalogue import Lookup
from mksearch.index.document import StoredDocument
from mksearch.index.manifest import Access, Group, ObjectRef, SignedManifest
from mksearch.index.stream import open_stream
from mksearch.params import Quorum
from mksearch.query.group import open_dictionary
from mksearch.query.ranking import Hit
from mksearch.query.records import open_document, require_object
from mksearch_client.keyring import EnrolledRing
from mksearch_client.keys import OwnerKeys

from .fast import Client
from .material import Json, load, seed


class FrozenMembers:
    """Two versions in a folder that never changes, with the test keys of owner and member."""

    def __init__(self, folder: Path) -> None:
        """Read the manifests and prove them."""
        self.folder = folder
        self.keys = OwnerKeys.generate(SeededRandom(bytes.fromhex(self.test_keys["seed"])))
        self.first, self.signed = (self._manifest(name) for name in ("manifest-1", "manifest"))
        self.signed.require_not_older(self.first)

    def _manifest(self, name: str) -> SignedManifest:
        file = (self.folder / name).read_bytes()
        return SignedManifest.decode(file, self.keys.signing.public, self.keys.collection)

    @cached_property
    def test_keys(self) -> Json:
        """What test-keys.json says."""
        return load("test-keys", self.folder)

    @cached_property
    def expected(self) -> Json:
        """What expected.json pins."""
        return load("expected", self.folder)

    @property
    def access(self) -> Access:
        """What the second version says of the administration."""
        access = self.signed.manifest.access
        assert access is not None
        return access

    @property
    def groups(self) -> tuple[Group, ...]:
        """The group of every member, and that of a policy."""
        return self.signed.manifest.groups

    def raw(self, name: bytes) -> bytes:
        """Return the bytes that are stored under a name."""
        return (self.folder / "objects" / name.hex()).read_bytes()

    def object(self, ref: ObjectRef | None) -> bytes:
        """Return an object of the manifest, its name and size proved."""
        assert ref is not None
        return require_object(ref.id, ref.size, self.raw(ref.id), "an object")

    @cached_property
    def ring(self) -> EnrolledRing:
        """The member's keys: its credential is in the list, its attribute key in test-keys.json."""
        access = self.access
        identity = Identity(SecretKey(bytes.fromhex(self.test_keys["user_seed"])))
        file = decode_credentials(self.object(access.credentials))[identity.public.id]
        signed = SignedCredential.decode(file, access.admin_key)
        authority = access.parameters.authority
        signed.require_for(
            collection=self.keys.collection,
            authority=authority,
            user=identity.public.id,
            now_s=self.expected["now"],
        )
        secrets = open_credential(signed, identity, access.parameters, SystemRandom())
        key = AttributeKey.decode(bytes.fromhex(self.test_keys["attribute_key"]))
        wanted = key_labels(signed.credential.attributes, access.epoch)
        verify_key(access.parameters, key, wanted, SystemRandom())
        held = MemberSecrets(secrets.member_secret, key)
        return EnrolledRing(self.keys.collection, self.keys.signing.public, authority, held)

    def bundle(self, group: Group) -> KeyBundle:
        """Return a group's keys as the member opens them."""
        return self.ring.open(self.signed.manifest, group, self.object(group.bundle))

    def client(self, group: Group) -> Client:
        """Return a member of a group."""
        bundle = self.bundle(group)
        collection = self.keys.collection
        dictionary = open_dictionary(bundle, collection, self.object(group.dictionary))
        [segment] = group.segments
        owner = {
            "master": self.keys.master.reveal().hex(),
            "collection": collection.hex(),
            "epoch": group.epoch,
            "policy": group.policy.hex(),
        }
        return Client(owner, group.scoring, dictionary, self.raw(segment.id), group.analyzer)

    def search(self, group: Group, query: str, k: int) -> tuple[list[Hit], bool]:
        """Return the hits of a search in a group, and whether they are exact."""
        client = self.client(group)
        random = SeededRandom(seed("frozen search"))
        source, _ = client.source([query], Quorum(), random, (1, 3))
        return client.rank(source, k)

    def document(self, group: Group, external_id: str) -> StoredDocument:
        """Open a whole document of a group."""
        bundle, collection = self.bundle(group), self.keys.collection
        sealed = self.object(group.lookup)
        content = open_stream(bundle.section_key("lookup"), "lookup", collection, sealed)
        entry = Lookup.decode(bundle, content).find(external_id)
        assert entry is not None, external_id
        return open_document(entry.key, collection, entry.blob, self.raw(entry.blob))
