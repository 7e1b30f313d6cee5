"""The signed manifest of a collection version (docs/protocol.md, sections 7, 12.5, 14.1, 15.1)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from mksearch.access.keys import PublicParameters, VerificationKeys
from mksearch.access.policy import Policy
from mksearch.codec import (
    ENVELOPE_BYTES,
    decode_cbor,
    encode_cbor,
    read_envelope,
    require_map,
    write_envelope,
)
from mksearch.crypto import labels
from mksearch.crypto.kdf import sha256
from mksearch.crypto.signature import SIGNATURE_BYTES, SigningKey, cut_signed, verify
from mksearch.errors import (
    FormatError,
    ManifestExpired,
    ManifestRefused,
    ManifestStale,
    MksearchError,
    VerificationError,
)
from mksearch.index.server_list import ServerList
from mksearch.params import COLLECTION_BYTES, KEY_BYTES, SALT_BYTES, Quorum

__all__ = [
    "FIRST_PREVIOUS",
    "Access",
    "Group",
    "Manifest",
    "ObjectRef",
    "SegmentRef",
    "SignedManifest",
    "require_scoring",
]

MAGIC = b"MKMANIFS"
#: 1 without an administration, 2 with one, 3 with a timestamp key (with or without the other),
#: 4 with the servers (with or without the others).
FORMATS = (1, 2, 3, 4)
#: ``previous`` of version 1.
FIRST_PREVIOUS = bytes(32)
_NAME_BYTES = 32

_FIELDS: dict[str, type] = {
    "collection": bytes,
    "name": str,
    "version": int,
    "previous": bytes,
    "created_at": int,
    "expires_at": int,
    "n_servers": int,
    "collusion_bound": int,
    "owner_key": bytes,
    "groups": list,
    "catalogue": dict,
}
_GROUP_FIELDS: dict[str, type] = {
    "policy": bytes,
    "epoch": int,
    "analyzer": str,
    "scoring": dict,
    "n_docs": int,
    "segments": list,
    "dictionary": dict,
    "lookup": dict,
    "blobs": dict,
}
_ACCESS_FIELDS: dict[str, type] = {
    "authority": bytes,
    "verification": bytes,
    "admin_key": bytes,
    "epoch": int,
    "credentials": list,
}
_TIMESTAMP_FIELDS: dict[str, type] = {"timestamp_key": bytes}
_SERVERS_FIELDS: dict[str, type] = {"servers": list, "retired": list}
_SEALED_FIELDS: dict[str, type] = {"bundle": dict, "search_key": bytes}
SCORINGS = ("tfidf", "bm25")
_SCORING_FIELDS: dict[str, type] = {"kind": str, "k1": float, "b": float}
_OBJECT_FIELDS: dict[str, type] = {"id": bytes, "size": int}
_SEGMENT_FIELDS: dict[str, type] = {"id": bytes, "size": int, "salt": bytes}


def _require_length(value: bytes, n_bytes: int, what: str) -> bytes:
    if len(value) != n_bytes:
        raise FormatError(f"a manifest: {what} has {len(value)} bytes (need {n_bytes})")
    return value


def require_scoring(value: object, what: str) -> dict[str, Any]:
    """Return the map of a scoring after proving kind and ranges; raise FormatError."""
    fields = require_map(value, _SCORING_FIELDS, what)
    k1, b = fields["k1"], fields["b"]
    if fields["kind"] not in SCORINGS or not math.isfinite(k1) or k1 < 0 or not 0 <= b <= 1:
        raise FormatError(f"{what} names a scoring that does not exist or is out of range")
    return fields


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """A stored object: its name (SHA-256, 32 bytes) and size in bytes."""

    id: bytes
    size: int

    @classmethod
    def of(cls, data: bytes) -> ObjectRef:
        """Return the reference of ``data``."""
        return cls(sha256(data), len(data))

    def to_fields(self) -> dict[str, Any]:
        """Return the map of the manifest."""
        return {"id": self.id, "size": self.size}

    @classmethod
    def from_fields(cls, value: object) -> ObjectRef:
        """Read the map of a manifest; raise FormatError."""
        fields = require_map(value, _OBJECT_FIELDS, "a manifest")
        return cls(_require_length(fields["id"], _NAME_BYTES, "an object id"), fields["size"])


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A segment: its id (32 bytes), size in bytes and salt (32 bytes)."""

    id: bytes
    size: int
    salt: bytes

    def to_fields(self) -> dict[str, Any]:
        """Return the map of the manifest."""
        return {"id": self.id, "size": self.size, "salt": self.salt}

    @classmethod
    def from_fields(cls, value: object) -> SegmentRef:
        """Read the map of a manifest; raise FormatError."""
        fields = require_map(value, _SEGMENT_FIELDS, "a manifest")
        return cls(
            _require_length(fields["id"], _NAME_BYTES, "a segment id"),
            fields["size"],
            _require_length(fields["salt"], SALT_BYTES, "a salt"),
        )


@lru_cache(maxsize=16)
def _parameters(authority: bytes) -> PublicParameters:
    # Proving that points are of their groups costs more than all the rest of a manifest.
    return PublicParameters.decode(authority)


@lru_cache(maxsize=16)
def _verification(authority: bytes, verification: bytes) -> VerificationKeys:
    keys = VerificationKeys.decode(verification)
    keys.require_consistent(_parameters(authority))
    return keys


@dataclass(frozen=True, slots=True)
class Access:
    """What is public of a collection's administration.

    Attributes:
        authority: parameters file of the authority.
        admin_key: Ed25519 public key that signs credentials, 32 bytes.
        epoch: generation of the keys, from 1.
        verification: verification keys file, b"" while the authority is in one place.
        credentials: list of the members' credentials of this epoch, None before a revocation.
    """

    authority: bytes
    admin_key: bytes
    epoch: int
    verification: bytes = b""
    credentials: ObjectRef | None = None

    def has_keys_of(self, other: Access | None) -> bool:
        """Tell whether both are of one administration, dealing and epoch."""
        return other is not None and replace(self, credentials=None) == replace(
            other, credentials=None
        )

    @property
    def parameters(self) -> PublicParameters:
        """The authority's parameters, decoded."""
        return _parameters(self.authority)

    @property
    def verification_keys(self) -> VerificationKeys | None:
        """The verification keys, decoded and proved; None while the authority is in one place."""
        if not self.verification:
            return None
        return _verification(self.authority, self.verification)

    def to_fields(self) -> dict[str, Any]:
        """Return the map of the manifest."""
        return {
            "authority": self.authority,
            "verification": self.verification,
            "admin_key": self.admin_key,
            "epoch": self.epoch,
            "credentials": [] if self.credentials is None else [self.credentials.to_fields()],
        }

    @classmethod
    def from_fields(cls, value: object, quorum: Quorum) -> Access:
        """Read the map of a manifest; raise FormatError."""
        fields = require_map(value, _ACCESS_FIELDS, "the access of a manifest")
        _require_length(fields["admin_key"], KEY_BYTES, "the admin key")
        if fields["epoch"] < 1:
            raise FormatError("a manifest is of an epoch below 1")
        credentials = [ObjectRef.from_fields(entry) for entry in fields["credentials"]]
        if len(credentials) > 1:
            raise FormatError("a manifest names several lists of credentials")
        access = cls(
            fields["authority"],
            fields["admin_key"],
            fields["epoch"],
            fields["verification"],
            credentials[0] if credentials else None,
        )
        _parameters(access.authority)
        try:
            keys = access.verification_keys
        except MksearchError as error:
            raise FormatError(f"a manifest: {error.message}") from None
        if keys is not None and keys.quorum != quorum:
            raise FormatError("a manifest names verification keys of another quorum")
        return access


@dataclass(frozen=True, slots=True)
class Group:
    """Documents under one policy.

    Attributes:
        policy: the policy's bytes, b"" for the group without one.
        epoch: generation of the keys, from 1.
        analyzer: name and version of the analyzer.
        scoring: {"kind", "k1", "b"}.
        n_docs: live documents (public).
        segments: segments, oldest first.
        dictionary: sealed dictionary.
        lookup: sealed lookup.
        blobs: blob list.
        bundle: the group's keys, sealed for its members; None without an administration.
        search_key: Ed25519 public key that its members sign queries with, 32 bytes; b"" without
            an administration.
    """

    policy: bytes
    epoch: int
    analyzer: str
    scoring: Mapping[str, str | float]
    n_docs: int
    segments: tuple[SegmentRef, ...]
    dictionary: ObjectRef
    lookup: ObjectRef
    blobs: ObjectRef
    bundle: ObjectRef | None = None
    search_key: bytes = b""

    def to_fields(self) -> dict[str, Any]:
        """Return the map of the manifest."""
        sealed: dict[str, Any] = {}
        if self.bundle is not None:
            sealed = {"bundle": self.bundle.to_fields(), "search_key": self.search_key}
        return sealed | {
            "policy": self.policy,
            "epoch": self.epoch,
            "analyzer": self.analyzer,
            "scoring": dict(self.scoring),
            "n_docs": self.n_docs,
            "segments": [segment.to_fields() for segment in self.segments],
            "dictionary": self.dictionary.to_fields(),
            "lookup": self.lookup.to_fields(),
            "blobs": self.blobs.to_fields(),
        }

    @classmethod
    def from_fields(cls, value: object, *, is_sealed: bool = False) -> Group:
        """Read the map of a manifest, with a sealed bundle or without; raise FormatError."""
        wanted = _GROUP_FIELDS | (_SEALED_FIELDS if is_sealed else {})
        fields = require_map(value, wanted, "a manifest group")
        return cls(
            fields["policy"],
            fields["epoch"],
            fields["analyzer"],
            require_scoring(fields["scoring"], "a manifest group"),
            fields["n_docs"],
            tuple(SegmentRef.from_fields(entry) for entry in fields["segments"]),
            ObjectRef.from_fields(fields["dictionary"]),
            ObjectRef.from_fields(fields["lookup"]),
            ObjectRef.from_fields(fields["blobs"]),
            ObjectRef.from_fields(fields["bundle"]) if is_sealed else None,
            _require_length(fields["search_key"], KEY_BYTES, "a search key") if is_sealed else b"",
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a collection.

    Attributes:
        collection: 16 bytes.
        name: what the owner calls it.
        version: from 1.
        previous: hash of the manifest before, ``FIRST_PREVIOUS`` for version 1.
        created_at: Unix seconds.
        expires_at: Unix seconds; refused after it.
        quorum: number of servers and collusion bound.
        owner_key: Ed25519 public key, 32 bytes.
        groups: policy groups.
        catalogue: sealed catalogue of the owner.
        access: what is public of the administration, None without one.
        timestamp_key: Ed25519 public key that may sign renewals, 32 bytes; b"" without one.
        servers: who they are, None before one was replaced or added.
    """

    collection: bytes
    name: str
    version: int
    previous: bytes
    created_at: int
    expires_at: int
    quorum: Quorum
    owner_key: bytes
    groups: tuple[Group, ...]
    catalogue: ObjectRef
    access: Access | None = None
    timestamp_key: bytes = b""
    servers: ServerList | None = None

    @property
    def format(self) -> int:
        """Format of the file: the highest that one of its fields asks for, see ``FORMATS``."""
        if self.servers is not None:
            return 4
        if self.timestamp_key:
            return 3
        return 1 if self.access is None else 2

    def group(self, policy: bytes) -> Group | None:
        """Return the group of a policy, if there is one."""
        return next((group for group in self.groups if group.policy == policy), None)

    def encode(self) -> bytes:
        """Return the body that is signed and hashed.

        Raises:
            ManifestRefused: some groups have sealed bundles and others, or the whole, do not.
        """
        if any((group.bundle is None) != (self.access is None) for group in self.groups):
            raise ManifestRefused("a manifest has sealed bundles in all of its groups, or in none")
        more: dict[str, Any] = {} if self.access is None else {"access": self.access.to_fields()}
        if self.timestamp_key:
            more["timestamp_key"] = self.timestamp_key
        if self.servers is not None:
            more |= self.servers.to_fields()
        return encode_cbor(
            more
            | {
                "collection": self.collection,
                "name": self.name,
                "version": self.version,
                "previous": self.previous,
                "created_at": self.created_at,
                "expires_at": self.expires_at,
                "n_servers": self.quorum.n_servers,
                "collusion_bound": self.quorum.collusion_bound,
                "owner_key": self.owner_key,
                "groups": [group.to_fields() for group in self.groups],
                "catalogue": self.catalogue.to_fields(),
            }
        )

    @classmethod
    def decode(cls, body: bytes) -> Manifest:
        """Decode a body whose signature has been proved, of any format.

        Raises:
            FormatError: not a canonical manifest.
        """
        value = decode_cbor(body, "a manifest")
        is_sealed = isinstance(value, dict) and "access" in value
        is_renewable = isinstance(value, dict) and "timestamp_key" in value
        is_listed = isinstance(value, dict) and "servers" in value
        wanted = _FIELDS | ({"access": dict} if is_sealed else {})
        wanted |= _TIMESTAMP_FIELDS if is_renewable else {}
        wanted |= _SERVERS_FIELDS if is_listed else {}
        fields = require_map(value, wanted, "a manifest")
        try:
            quorum = Quorum(fields["n_servers"], fields["collusion_bound"])
        except MksearchError as error:
            raise FormatError(f"a manifest is impossible: {error.message}") from None
        version, previous = fields["version"], fields["previous"]
        if version < 1 or (version == 1) != (previous == FIRST_PREVIOUS):
            raise FormatError(
                f"a manifest has version {version} and does not follow from one before"
            )
        groups = _groups(fields["groups"], is_sealed=is_sealed)
        access = Access.from_fields(fields["access"], quorum) if is_sealed else None
        if access is not None and any(group.epoch > access.epoch for group in groups):
            raise FormatError("a manifest has a group of a later epoch than its own")
        return cls(
            _require_length(fields["collection"], COLLECTION_BYTES, "the collection"),
            fields["name"],
            fields["version"],
            _require_length(fields["previous"], _NAME_BYTES, "the previous hash"),
            fields["created_at"],
            fields["expires_at"],
            quorum,
            _require_length(fields["owner_key"], KEY_BYTES, "the owner key"),
            groups,
            ObjectRef.from_fields(fields["catalogue"]),
            access,
            _require_length(fields["timestamp_key"], KEY_BYTES, "the timestamp key")
            if is_renewable
            else b"",
            ServerList.from_fields(fields["servers"], fields["retired"], quorum.n_servers, version)
            if is_listed
            else None,
        )

    def segments(self) -> Iterator[SegmentRef]:
        """Yield the segments of every group."""
        for group in self.groups:
            yield from group.segments

    def objects(self) -> Iterator[ObjectRef]:
        """Yield every stored object but segments and blobs, which the blob lists name."""
        for group in self.groups:
            yield from (group.dictionary, group.lookup, group.blobs)
            if group.bundle is not None:
                yield group.bundle
        if self.access is not None and self.access.credentials is not None:
            yield self.access.credentials
        yield self.catalogue


@lru_cache(maxsize=64)
def _require_policy(policy: bytes) -> None:
    if policy:
        Policy.decode(policy)


def _groups(entries: list[Any], *, is_sealed: bool) -> tuple[Group, ...]:
    groups = tuple(Group.from_fields(entry, is_sealed=is_sealed) for entry in entries)
    if is_sealed:
        if len({group.policy for group in groups}) != len(groups):
            raise FormatError("a manifest has two groups of one policy")
        for group in groups:
            _require_policy(group.policy)
    return groups


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """A manifest with the owner's signature proved.

    Attributes:
        manifest: the decoded body.
        body: its bytes.
        signature: 64 bytes.
    """

    manifest: Manifest
    body: bytes
    signature: bytes

    @property
    def hash(self) -> bytes:
        """Manifest hash: SHA-256 of the body, 32 bytes."""
        return sha256(self.body)

    @classmethod
    def sign(cls, manifest: Manifest, key: SigningKey) -> SignedManifest:
        """Sign ``manifest`` with the owner's key.

        Raises:
            ManifestRefused: the manifest names another owner key.
        """
        if manifest.owner_key != key.public:
            raise ManifestRefused("a manifest that names another owner key is not signed")
        body = manifest.encode()
        return cls(manifest, body, key.sign(labels.MANIFEST, body))

    def encode(self) -> bytes:
        """Return the file."""
        return self._file(self.signature)

    def encode_draft(self, key: SigningKey) -> bytes:
        """Return what servers are sent before this version counts: the same under another label.

        Args:
            key: the owner's.
        """
        return self._file(key.sign(labels.DRAFT, self.body))

    def _file(self, signature: bytes) -> bytes:
        size = len(self.body).to_bytes(4, "big")
        return write_envelope(MAGIC, self.manifest.format) + size + self.body + signature

    def released(self, signature: bytes) -> SignedManifest:
        """Return the version that a draft becomes by the owner's signature of it, 64 bytes.

        Raises:
            VerificationError: the owner did not sign it as a version.
        """
        verify(self.manifest.owner_key, labels.MANIFEST, self.body, signature, "a manifest")
        return replace(self, signature=signature)

    @classmethod
    def decode(
        cls,
        data: bytes,
        owner_key: bytes,
        collection: bytes | None = None,
        *,
        label: bytes = labels.MANIFEST,
    ) -> SignedManifest:
        """Read a file, proving the signature before anything is parsed (refusals 7.1 to 7.5).

        Args:
            data: the file; untrusted.
            owner_key: pinned Ed25519 public key, 32 bytes.
            collection: pinned collection, 16 bytes, or None where it is not known yet.
            label: ``labels.DRAFT`` for a draft, which is no version of anything.

        Raises:
            FormatError: damaged.
            UnsupportedVersion: another format version.
            VerificationError: not signed by the owner.
            ManifestRefused: of another collection.
        """
        file_format = read_envelope(data, MAGIC, FORMATS, "a manifest")
        body, signature = cut_signed(data, ENVELOPE_BYTES, "a manifest")
        verify(owner_key, label, body, signature, "a manifest")
        manifest = Manifest.decode(body)
        if manifest.format != file_format:
            raise FormatError(f"a manifest of format {manifest.format} says {file_format}")
        if manifest.owner_key != owner_key:
            raise ManifestRefused("a manifest names another owner key than the one that signed it")
        if collection is not None and manifest.collection != collection:
            raise ManifestRefused(
                f"a manifest of collection {manifest.collection.hex()} came for {collection.hex()}",
                cure="check which servers the profile names",
            )
        return cls(manifest, body, signature)

    def require_not_older(self, seen: SignedManifest) -> None:
        """Prove that this version may follow ``seen`` (refusal 7.6).

        Raises:
            ManifestStale: older, equal in number but different, not chained to ``seen``, of an
                older epoch, or with servers that may not come after those of ``seen``.
        """
        version, highest = self.manifest.version, seen.manifest.version
        if version < highest:
            raise ManifestStale(
                f"version {version} is older than version {highest}, which was seen before",
                cure="ask other servers; this one was rolled back or lags",
            )
        if version == highest and self.hash != seen.hash:
            raise ManifestStale(
                f"two manifests have version {version}: {self.hash.hex()} and {seen.hash.hex()}",
                cure="the owner's key signed both; ask the owner which one counts",
            )
        if version == highest + 1 and self.manifest.previous != seen.hash:
            raise ManifestStale(f"version {version} does not follow from version {highest}")
        before, after = seen.manifest.access, self.manifest.access
        if before is not None and (after is None or after.epoch < before.epoch):
            raise ManifestStale(
                f"version {version} goes back behind epoch {before.epoch}, which was seen before",
                cure="the owner published from an old profile; ask the owner",
            )
        self._require_servers_follow(seen)

    def _require_servers_follow(self, seen: SignedManifest) -> None:
        """Raise ManifestStale unless the servers may come after those of ``seen`` (15.1.3)."""
        before, after = seen.manifest.servers, self.manifest.servers
        if before is None or self.hash == seen.hash:
            return
        version, quorum = self.manifest.version, self.manifest.quorum
        if after is None or quorum.collusion_bound != seen.manifest.quorum.collusion_bound:
            raise ManifestStale(
                f"version {version} does not name the servers that version "
                f"{seen.manifest.version} names",
                cure="the owner published from an old profile or release; ask the owner",
            )
        after.require_follows(before, seen.manifest.version)

    def require_current(self, now_s: int, renewed_until_s: int = 0) -> None:
        """Prove that the manifest has not expired at ``now_s``, Unix seconds (refusal 7.7).

        Args:
            now_s: Unix seconds.
            renewed_until_s: what a renewal that was proved says, Unix seconds; 0 without one.

        Raises:
            ManifestExpired: it has.
        """
        until_s = max(self.manifest.expires_at, renewed_until_s)
        if now_s > until_s:
            raise ManifestExpired(
                f"version {self.manifest.version} expired {now_s - until_s} s ago",
                cure="the owner renews it; a newer version may be withheld from you",
            )

    def __post_init__(self) -> None:
        if len(self.signature) != SIGNATURE_BYTES:
            raise VerificationError("a manifest carries no signature")
