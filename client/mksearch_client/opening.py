"""Open the groups of a version: bundles, dictionaries and headers, kept while they last."""

from __future__ import annotations

from collections.abc import Callable

from mksearch.crypto.bundle import KeyBundle
from mksearch.crypto.kdf import sha256
from mksearch.index.catalogue import Lookup, LookupEntry
from mksearch.index.manifest import Group, Manifest, ObjectRef, SegmentRef, SignedManifest
from mksearch.index.segment import HEADER_BYTES
from mksearch.index.stream import open_stream
from mksearch.index.tombstones import LookupPart
from mksearch.query.group import GroupView, open_dictionary, open_lookup_parts
from mksearch.query.records import require_object
from mksearch_client.asking import Servers
from mksearch_client.fetching import Cache, Connection, first_good, read_object
from mksearch_client.keyring import KeyRing

__all__ = ["OpenVersion", "VersionOpener"]

_BundleName = tuple[bytes, int, bytes, bytes]


class OpenVersion:
    """What somebody can open of one version.

    Attributes:
        signed: the version.
        views: groups, opened, in the order of the manifest.
    """

    def __init__(
        self,
        signed: SignedManifest,
        views: list[GroupView],
        fetch: Callable[[Servers[Connection], ObjectRef, str], bytes],
        collection: bytes,
    ) -> None:
        self.signed = signed
        self.views = views
        self._fetch = fetch
        self._collection = collection
        self._lookups: dict[bytes, Lookup] = {}

    def find(
        self, servers: Servers[Connection], view: GroupView, external_id: str
    ) -> LookupEntry | None:
        """Return where a document of a group is, or None if it has no such document."""
        if not view.parts:
            return self._lookup(servers, view, view.group.lookup).find(external_id)
        # The newest first: most of what is asked for was changed lately.
        for part in reversed(view.parts):
            entry = self._lookup(servers, view, part.part).find(external_id)
            key = Lookup.key_of(view.bundle.lookup_key(), external_id) if entry else b""
            if entry is not None and key not in part.tombstones.gone:
                return entry
        return None

    def _lookup(self, servers: Servers[Connection], view: GroupView, ref: ObjectRef) -> Lookup:
        """Return a lookup of format 1, fetched when it is wanted first."""
        if ref.id not in self._lookups:
            sealed = self._fetch(servers, ref, "the lookup")
            key = view.bundle.section_key("lookup")
            content = open_stream(key, "lookup", self._collection, sealed)
            self._lookups[ref.id] = Lookup.decode(view.bundle, content)
        return self._lookups[ref.id]


class VersionOpener:
    """Opens versions for one key ring; what stays the same is not opened again."""

    def __init__(self, ring: KeyRing, cache: Cache) -> None:
        self._ring = ring
        self._cache = cache
        self._bundles: dict[_BundleName, KeyBundle] = {}
        self._current: OpenVersion | None = None

    @property
    def current(self) -> OpenVersion | None:
        """The version opened last."""
        return self._current

    def open(self, servers: Servers[Connection], signed: SignedManifest) -> OpenVersion:
        """Open every group of ``signed`` that the keys allow.

        Raises:
            NotQualified: there is none.
            ManifestRefused: the version is of another authority, or has no group of these keys.
            VerificationError: what no server sent right.
        """
        if self._current is not None and self._current.signed.hash == signed.hash:
            return self._current
        self._ring.require_manifest(signed.manifest)
        groups = [group for group in signed.manifest.groups if self._ring.may_open(group)]
        if not groups:
            raise self._ring.refuse(signed.manifest)
        bundles = {_name(group): self._bundle(servers, signed.manifest, group) for group in groups}
        views = [self._view(servers, group, bundles[_name(group)]) for group in groups]
        self._bundles = bundles
        self._current = OpenVersion(signed, views, self._object, self._ring.collection)
        return self._current

    def _bundle(self, servers: Servers[Connection], manifest: Manifest, group: Group) -> KeyBundle:
        kept = self._bundles.get(_name(group))
        if kept is not None:
            return kept
        sealed = b""
        if self._ring.needs_bundle() and group.bundle is not None:
            sealed = self._object(servers, group.bundle, "the key bundle of a group")
        return self._ring.open(manifest, group, sealed)

    def _view(self, servers: Servers[Connection], group: Group, bundle: KeyBundle) -> GroupView:
        old = self._current
        for view in [] if old is None else old.views:
            if view.group == group:
                return view
        collection = self._ring.collection
        sealed = self._object(servers, group.dictionary, "the dictionary")
        dictionary = open_dictionary(bundle, collection, sealed)
        parts: tuple[LookupPart, ...] = ()
        if dictionary.format > 1:
            sealed = self._object(servers, group.lookup, "the lookup")
            parts = open_lookup_parts(bundle, collection, group, dictionary, sealed)
        headers = [self._header(servers, segment) for segment in group.segments]
        return GroupView(group, bundle, collection, dictionary, headers, parts)

    def _object(self, servers: Servers[Connection], ref: ObjectRef, what: str) -> bytes:
        """Return an object from the cache or from any server, proved by its name."""
        kept = self._cache.get(ref.id)
        if kept is not None and len(kept) == ref.size and sha256(kept) == ref.id:
            return kept

        def fetch(server: int) -> bytes:
            return read_object(servers.connections[server], ref, what)

        data = first_good(servers, fetch, what)
        self._cache.put(ref.id, data)
        return data

    def _header(self, servers: Servers[Connection], segment: SegmentRef) -> bytes:
        kept = self._cache.get(segment.id)
        if kept is not None and sha256(kept) == segment.id:
            return kept

        def fetch(server: int) -> bytes:
            data = servers.connections[server].read_object(segment.id, 0, HEADER_BYTES)
            return require_object(segment.id, HEADER_BYTES, data, "a segment header")

        data = first_good(servers, fetch, "segment headers")
        self._cache.put(segment.id, data)
        return data


def _name(group: Group) -> _BundleName:
    sealed = b"" if group.bundle is None else group.bundle.id
    return group.policy, group.epoch, group.search_key, sealed
