"""What a server does, without the network: store, activate, score, hand out records and objects.

It holds no key but the owner's public one, and stores only what a manifest signed with it lists.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto import labels
from mksearch.crypto.kdf import sha256
from mksearch.errors import (
    FormatError,
    ManifestRefused,
    MksearchError,
    ParameterError,
    RenewalRefused,
    StorageError,
    VerificationError,
)
from mksearch.index.blob_list import BlobList
from mksearch.index.geometry import LevelGeometry
from mksearch.index.manifest import Manifest, SignedManifest
from mksearch.index.renewal import SignedRenewal
from mksearch.index.segment import SegmentReader
from mksearch.messages import (
    RecordAnswer,
    RecordRequest,
    ScoreAnswer,
    ScoreRequest,
    SelectAnswer,
    SelectRequest,
)
from mksearch.params import BLOCKS_MAX, FETCH_CLASSES, MAX_RECORDS, VECTOR_CLASSES
from mksearch.scoring.cuda import LevelKey
from mksearch.scoring.engine import Engine, keep_only, score_blocks, score_level, score_levels
from mksearch.scoring.selecting import select_groups
from mksearch_server.listing import Listing
from mksearch_server.proving import require_object
from mksearch_server.store import REPAIR_CURE, ObjectStore, ObjectWriter
from mksearch_server.warming import warm

__all__ = [
    "ACTIVE_STATE",
    "GRACE_S",
    "HIGHEST_STATE",
    "SLOTS_PER_PIECE",
    "PublicationUnderWay",
    "SearchServer",
    "Upload",
]

#: State: the manifest that is served.
ACTIVE_STATE = "manifest"
#: State: the highest manifest of a store that was damaged and serves nothing until it is whole.
HIGHEST_STATE = "highest"
_RENEWAL = "renewal"
#: Names of objects that a version before listed and the active one does not.
_OBSOLETE = "obsolete"
_NAME_BYTES = 32
_READ_BYTES = 1 << 24
#: Record slots that are copied together, at most about 300 kB.
SLOTS_PER_PIECE = 128
#: Seconds that searches of the version before may end in, once another is active.
GRACE_S = 60.0
#: A publication that nobody continued for this long gives way to another.
LEASE_S = 60
#: Compiled loops share one pool of threads in a process, and numba's fallback for machines without
#: OpenMP ends the process when two callers enter it: one request at a time, whichever the server.
_SCORING = threading.Lock()


class PublicationUnderWay(StorageError):
    """Another publisher is at work; whoever meets it has lost and need not try other servers."""

    code = "publication-under-way"


class _Proposal:
    """A signed version on its way in, and everything that it consists of."""

    def __init__(
        self,
        signed: SignedManifest,
        store: ObjectStore,
        *,
        is_draft: bool,
        held: Listing | None = None,
    ) -> None:
        self.signed = signed
        self.is_draft = is_draft
        self._store = store
        #: What is surely here: of the version that is served.
        self._held = held
        self.listing = Listing(signed.manifest)
        for name in self.listing.list_names:
            self.stored(name)
        self.touch()

    def touch(self) -> None:
        """Remember that the publisher is at work."""
        self._touched_at = time.monotonic()

    def is_alive(self) -> bool:
        """Return whether the publisher may still be at work."""
        return time.monotonic() - self._touched_at < LEASE_S

    def stored(self, name: bytes) -> None:
        """Learn the blobs that belong to the version once their list is here."""
        if name in self.listing.list_names and self._store.has(name):
            self.listing.add_list(name, BlobList.decode(self._store.read_whole(name)))

    def missing(self) -> list[bytes]:
        """Return the names of what is not here."""
        named = self.listing.named
        blobs = [name for name in self.listing.beyond(self._held) if name not in named]
        return self._store.lacking([*named, *blobs])


@dataclass(frozen=True, slots=True)
class _Served:
    """A version and its segments, mapped.

    Attributes:
        signed: the version.
        segments: by id.
    """

    signed: SignedManifest
    segments: Mapping[bytes, SegmentReader]

    def search_key(self, segment: bytes) -> bytes:
        """Return the search key of the group that a segment is of."""
        for group in self.signed.manifest.groups:
            if any(ref.id == segment for ref in group.segments):
                return group.search_key
        return b""

    def goes_on(self, other: SignedManifest) -> bool:
        """Tell whether members of ``other`` are those of this version: no epoch between them."""
        mine, theirs = self.signed.manifest.access, other.manifest.access
        return (None if mine is None else mine.epoch) == (None if theirs is None else theirs.epoch)


class Upload:
    """One listed object on its way in; proved before it is stored."""

    def __init__(self, proposal: _Proposal, name: bytes, writer: ObjectWriter) -> None:
        self._proposal = proposal
        self._name = name
        self._writer = writer

    def write(self, chunk: bytes) -> None:
        """Take the next bytes; raise StorageError for more than the manifest lists."""
        self._proposal.touch()
        self._writer.write(chunk)

    def finish(self) -> None:
        """Prove the object's hash and store it.

        Raises:
            StorageError: bytes are missing, or no room.
            FormatError: the bytes are not the object of this name.
        """
        self._writer.finish(self._verify)
        self._proposal.stored(self._name)

    def close(self) -> None:
        """Drop what was not finished."""
        self._writer.close()

    def _verify(self, data: NDArray[np.uint8]) -> None:
        require_object(self._name, data, is_segment=self._name in self._proposal.listing.segments)


class SearchServer:
    """One server of a collection.

    Attributes:
        id: its evaluation point, from 1.
    """

    def __init__(
        self,
        server_id: int,
        store: ObjectStore,
        owner_key: bytes,
        engine: Engine,
        collection: bytes | None = None,
        *,
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the store and load the active version, if there is one.

        Args:
            server_id: evaluation point of this server, from 1.
            store: where its objects are.
            owner_key: pinned Ed25519 public key of the owner, 32 bytes.
            engine: computes the products.
            collection: pinned collection, 16 bytes; None takes the first one that comes.
            grace_s: seconds that a version is served after the next one was activated.
            clock: Unix seconds.

        Raises:
            VerificationError: the stored manifest or a segment header is damaged.
            StorageError: an object of the active version is missing.
        """
        self.id = server_id
        self._store = store
        self._owner_key = owner_key
        self._engine = engine
        self._collection = collection
        self._proposed: _Proposal | None = None
        #: What the active version lists, once all of it was seen to be here.
        self._held: Listing | None = None
        self._active: SignedManifest | None = None
        self._grace_s = grace_s
        self._segments: Mapping[bytes, SegmentReader] = {}
        self._previous: _Served | None = None
        self._previous_until = 0.0
        obsolete = store.read_state(_OBSOLETE) or b""
        starts = range(0, len(obsolete), _NAME_BYTES)
        self._obsolete = {obsolete[at : at + _NAME_BYTES] for at in starts}
        self._clock = clock
        self._renewal: SignedRenewal | None = None
        self._highest: SignedManifest | None = None
        self._is_previous_kept = False
        highest = store.read_state(HIGHEST_STATE)
        if highest is not None:
            self._highest = SignedManifest.decode(highest, owner_key, collection)
        stored = store.read_state(ACTIVE_STATE)
        if stored is not None:
            active = SignedManifest.decode(stored, owner_key, collection)
            self._segments = self._open_segments(active)
            self._active = active
            self._renewal = self._load_renewal(active)
            store.hold(set(self._segments))

    # --- the owner's side

    def propose(self, data: bytes) -> bytes:
        """Take a signed manifest, or a draft of one, whose objects will be uploaded.

        Returns:
            its hash, 32 bytes.

        Raises:
            VerificationError: not signed by the owner, or it may not follow the active version.
            PublicationUnderWay: another publication is on its way in.
        """
        collection = self._active.manifest.collection if self._active else self._collection
        signed, is_draft = self._read_proposal(data, collection)
        self._require_successor(signed)
        running = self._proposed
        if running is not None and running.signed.hash == signed.hash:
            if not is_draft:
                running.signed, running.is_draft = signed, False
            return signed.hash
        # Who signs a higher version knows the one before, served or given up: only equals compete.
        if (
            running is not None
            and running.is_alive()
            and signed.manifest.version <= running.signed.manifest.version
        ):
            raise PublicationUnderWay(
                f"version {running.signed.manifest.version} is being published by another process",
                cure=f"wait until it ends, or {LEASE_S} s after it stopped, and publish again",
            )
        self._proposed = _Proposal(signed, self._store, is_draft=is_draft, held=self._held)
        return signed.hash

    def _read_proposal(self, data: bytes, collection: bytes | None) -> tuple[SignedManifest, bool]:
        """Return what was proposed, and whether it is a draft that does not count yet."""
        try:
            return SignedManifest.decode(data, self._owner_key, collection), False
        except (FormatError, ManifestRefused):
            raise
        except VerificationError:
            draft = SignedManifest.decode(data, self._owner_key, collection, label=labels.DRAFT)
            return draft, True

    def _require_successor(self, signed: SignedManifest) -> None:
        for seen in (self._active, self._highest):
            if seen is not None:
                signed.require_not_older(seen)

    @property
    def awaited(self) -> SignedManifest | None:
        """A version above the active one that its owner signed and somebody announced, or None."""
        proposal = self._proposed
        if proposal is None or proposal.is_draft:
            return None
        return proposal.signed if proposal.signed.manifest.version > self.version else None

    def missing(self, manifest_hash: bytes) -> list[bytes]:
        """Return the names of what a proposed manifest lists and this server does not hold.

        Blobs are known once their lists are here.

        Raises:
            StorageError: no such proposal.
        """
        return self._proposal(manifest_hash).missing()

    def size(self, manifest_hash: bytes, name: bytes) -> int:
        """Return the size in bytes of an object that a proposed manifest lists.

        Raises:
            StorageError: no such proposal, or not listed.
        """
        size = self._proposal(manifest_hash).listing.size(name)
        if size is None:
            raise StorageError(f"object {name.hex()[:16]} is in no manifest that the owner signed")
        return size

    def put(self, manifest_hash: bytes, name: bytes, chunks: Iterable[bytes]) -> None:
        """Store one object that a proposed manifest lists, after proving its hash.

        Raises:
            StorageError: not listed, of another size, or no room.
            FormatError: the bytes are not the object of this name.
        """
        upload = self.begin_put(manifest_hash, name)
        try:
            for chunk in chunks:
                upload.write(chunk)
            upload.finish()
        finally:
            upload.close()

    def put_all(
        self, manifest_hash: bytes, objects: Iterable[tuple[bytes, Iterable[bytes]]]
    ) -> None:
        """Store objects one after another; see ``put``."""
        for name, chunks in objects:
            self.put(manifest_hash, name, chunks)

    def begin_put(self, manifest_hash: bytes, name: bytes) -> Upload:
        """Start to store one object that a proposed manifest lists.

        Raises:
            StorageError: not listed, stored already, or no room.
        """
        proposal = self._proposal(manifest_hash)
        size = self.size(manifest_hash, name)
        if self._store.has(name):
            # Anybody may announce the active version again, and must not fill the disk with it.
            raise StorageError(f"object {name.hex()[:16]} is stored here already")
        is_segment = name in proposal.listing.segments
        return Upload(proposal, name, self._store.begin(name, size, is_segment=is_segment))

    def put_whole(self, manifest_hash: bytes, objects: Iterable[bytes]) -> None:
        """Store objects that a proposed manifest lists, each named by its hash.

        Args:
            manifest_hash: of the proposal.
            objects: whole, and no segments: their name is another hash.

        Raises:
            StorageError: one is not listed, or stored already, or no room.
        """
        proposal = self._proposal(manifest_hash)
        whole = {sha256(data): data for data in objects}
        for name, data in whole.items():
            if proposal.listing.size(name) != len(data):
                raise StorageError(
                    f"object {name.hex()[:16]} is in no manifest that the owner signed"
                )
        self._store.keep_together(whole)
        for name in whole:
            proposal.stored(name)

    def commit(self) -> None:
        """Make every object that was stored survive a crash and a loss of power.

        Raises:
            StorageError: no room; objects that were not committed before are not kept.
        """
        self._store.commit()

    def activate(self, manifest_hash: bytes, signature: bytes = b"") -> int:
        """Serve a proposed version from now on; return its number.

        Args:
            manifest_hash: of the proposal.
            signature: of the owner, which makes a draft a version; 64 bytes, or none where the
                proposal was signed.

        Raises:
            StorageError: no such proposal, or something that it lists is missing.
            VerificationError: a draft that the owner did not release.
        """
        if self._active is not None and self._active.hash == manifest_hash:
            return self._active.manifest.version
        proposal = self._proposal(manifest_hash)
        if proposal.is_draft:
            proposal.signed, proposal.is_draft = proposal.signed.released(signature), False
        signed = proposal.signed
        self._require_successor(signed)
        missing = self.missing(manifest_hash)
        if missing:
            raise StorageError(
                f"{len(missing)} objects of version {signed.manifest.version} are missing",
                cure="publish again; only what is missing is sent",
            )
        segments = self._open_segments(signed)
        # First: what is noted and still listed is never erased, what is not noted never either.
        before = self._listing
        self._note_obsolete(set() if before is None else set(before.beyond(proposal.listing)))
        self._store.write_states(
            {ACTIVE_STATE: signed.encode(), HIGHEST_STATE: None, _RENEWAL: None}
        )
        self._keep_previous(signed)
        self._segments, self._active, self._renewal = segments, signed, None
        self._proposed = self._highest = None
        self._held = proposal.listing
        self._let_go()
        return signed.manifest.version

    def renew(self, data: bytes) -> int:
        """Take a renewal of the active version, and keep it; return the version's number.

        Raises:
            StorageError: nothing was published here, or no room.
            VerificationError: it is not the timestamp key's, of another version, not of now, or not
                later than the one that is held.
        """
        signed = self._require_active()
        renewal = SignedRenewal.decode(data, signed)
        renewal.require_begun(int(self._clock()))
        held = self._renewal
        if held is not None and held.encode() == data:
            return signed.manifest.version
        if held is not None and renewal.expires_at <= held.expires_at:
            raise RenewalRefused(
                f"a renewal until {held.expires_at} is held here, and this one is until "
                f"{renewal.expires_at}",
                cure="renew again; a later one counts",
            )
        self._store.write_state(_RENEWAL, data)
        self._renewal = renewal
        return signed.manifest.version

    def _load_renewal(self, signed: SignedManifest) -> SignedRenewal | None:
        """Return the renewal that was kept, if it is one of the active version."""
        stored = self._store.read_state(_RENEWAL)
        try:
            return SignedRenewal.decode(stored, signed) if stored else None
        except MksearchError:
            return None

    def _keep_previous(self, following: SignedManifest) -> None:
        """Go on serving the version of now for a while, unless somebody was revoked since."""
        self._previous = None
        if self._active is not None and self._grace_s > 0:
            served = _Served(self._active, self._segments)
            if served.goes_on(following):
                self._previous = served
                self._previous_until = time.monotonic() + self._grace_s

    def _let_go(self) -> None:
        """Have the engine keep only cells of the versions that are served."""
        previous = self._previous
        self._is_previous_kept = previous is not None
        segments = set(self._segments)
        if previous is not None:
            segments |= set(previous.segments)
        self._keep_only(segments)

    def _keep_only(self, segments: set[bytes]) -> None:
        self._store.hold(segments)
        with _SCORING:
            keep_only(self._engine, segments)

    def _let_go_of_previous(self) -> None:
        """Have the engine let go of the version before, once it is served no longer."""
        if self._is_previous_kept and time.monotonic() >= self._previous_until:
            self._is_previous_kept = False
            self._keep_only(set(self._segments))

    @property
    def _listing(self) -> Listing | None:
        """Everything that the active version consists of, None before the first."""
        if self._held is None and self._active is not None:
            return _Proposal(self._active, self._store, is_draft=False).listing
        return self._held

    def _note_obsolete(self, names: set[bytes]) -> None:
        if not names <= self._obsolete:
            self._write_obsolete(self._obsolete | names)

    def _write_obsolete(self, names: set[bytes]) -> None:
        self._store.write_state(_OBSOLETE, b"".join(sorted(names)))
        self._obsolete = names

    @property
    def may_sweep(self) -> bool:
        """Tell whether there is something to erase that nobody is served any more."""
        return bool(self._obsolete) and time.monotonic() >= self._previous_until

    def sweep(self) -> int:
        """Erase what versions before listed and no version does now; return how many objects.

        The version before is served no more after this.

        Raises:
            StorageError: the disk refuses; it is tried again.
        """
        if not self.may_sweep:
            return 0
        self._previous = None
        self._store.hold(set(self._segments))
        active = self._listing
        erased = self._obsolete if active is None else active.drop_from(self._obsolete)
        if self._proposed is not None:
            # A document may come back, and its publisher counts on what was here.
            erased = self._proposed.listing.drop_from(erased)
        self._store.erase(erased)
        self._write_obsolete(set())
        return len(erased)

    def _proposal(self, manifest_hash: bytes) -> _Proposal:
        if self._proposed is None or self._proposed.signed.hash != manifest_hash:
            raise StorageError("this manifest was not proposed here", cure="publish again")
        self._proposed.touch()
        return self._proposed

    def _open_segments(self, signed: SignedManifest) -> dict[bytes, SegmentReader]:
        opened = {}
        for segment in signed.manifest.segments():
            if segment.id in self._segments:
                # Mapped already: most segments outlive many versions.
                opened[segment.id] = self._segments[segment.id]
                continue
            reader = SegmentReader(self._store.map(segment.id))
            if reader.id != segment.id:
                raise FormatError(
                    f"the header of segment {segment.id.hex()[:16]} is damaged",
                    cure=REPAIR_CURE,
                )
            opened[segment.id] = reader
        return opened

    # --- the users' side

    @property
    def version(self) -> int:
        """Version that is served, 0 for none."""
        return 0 if self._active is None else self._active.manifest.version

    def width(self, version: int, segment: bytes, level: int) -> int:
        """Return the columns of a level, for a request that has not come whole yet.

        Raises:
            ParameterError: another version, an unknown segment or level.
        """
        levels = self._served_segment(version, segment).header.layout.levels
        if not 0 <= level < len(levels):
            raise ParameterError(f"level {level} is not in 0..{len(levels) - 1}")
        return levels[level].width

    def require_blocks(
        self, version: int, segment: bytes, level: int, blocks: Sequence[int]
    ) -> None:
        """Refuse blocks that a level does not have, or that do not ascend; none name the level.

        Raises:
            ParameterError: one of them, another version, an unknown segment or level.
        """
        self.width(version, segment, level)
        layout = self._served_segment(version, segment).header.layout
        n_blocks = layout.level_shapes[level][0] // layout.block.height
        if len(blocks) > BLOCKS_MAX or any(a >= b for a, b in pairwise(blocks)):
            raise ParameterError(
                f"{len(blocks)} named blocks do not ascend, or are more than {BLOCKS_MAX}"
            )
        if blocks and not 0 <= blocks[0] <= blocks[-1] < n_blocks:
            raise ParameterError(f"a named block is not in 0..{n_blocks - 1}")

    def search_key(self, version: int, segment: bytes) -> bytes:
        """Return the search key of the group that a segment is of; b"" where it has none.

        Raises:
            ParameterError: another version, or one without the segment.
        """
        served = self._served(version)
        self._segment_of(served, segment)
        return served.search_key(segment)

    def manifest(self) -> bytes:
        """Return the active signed manifest.

        Raises:
            StorageError: nothing was published here.
        """
        return self._require_active().encode()

    def renewal(self) -> bytes:
        """Return the renewal of the active version that is held, b"" without one."""
        held = self._renewal
        return b"" if held is None else held.encode()

    @property
    def expires_at(self) -> int:
        """Until when the active version is good, renewed or not: Unix seconds, 0 for none."""
        until_s = 0 if self._active is None else self._active.manifest.expires_at
        return until_s if self._renewal is None else max(until_s, self._renewal.expires_at)

    def score(self, request: ScoreRequest) -> ScoreAnswer:
        """Multiply the rows of a level, or of named blocks, with a query share (step 8.3).

        Raises:
            ParameterError: another version, an unknown segment, level or block, or shares out of
                shape.
        """
        return self.score_together([request])[0]

    def score_together(self, requests: Sequence[ScoreRequest]) -> list[ScoreAnswer]:
        """Score requests for one version, segment, level and blocks in one pass over the cells.

        Raises:
            ParameterError: another version, an unknown segment, level or block, or shares out of
                shape.
        """
        key, cells, geometry, vectors = self._pass_of(requests)
        first = requests[0]
        self._let_go_of_previous()
        with _SCORING:
            if first.blocks:
                layout = self._served_segment(first.version, first.segment).header.layout
                height = layout.block.height
                sums = score_blocks(self._engine, cells, geometry, vectors, height, first.blocks)
            else:
                sums = score_level(self._engine, key, cells, geometry, vectors)
        return _dealt(requests, sums)

    def score_places(self, places: Sequence[Sequence[ScoreRequest]]) -> list[list[ScoreAnswer]]:
        """Score requests for several segments, those for whole levels of one width in one pass.

        Args:
            places: for each its requests, as for ``score_together``.

        Raises:
            ParameterError: see ``score_together``.
        """
        if len(places) == 1 or any(requests[0].blocks for requests in places):
            return [self.score_together(requests) for requests in places]
        passes = [self._pass_of(requests) for requests in places]
        together: dict[LevelGeometry, list[int]] = {}
        for number, (_, _, geometry, _) in enumerate(passes):
            together.setdefault(geometry, []).append(number)
        self._let_go_of_previous()
        answers: list[list[ScoreAnswer]] = [[] for _ in places]
        for geometry, numbers in together.items():
            levels = [(key, cells, own) for key, cells, _, own in (passes[n] for n in numbers)]
            with _SCORING:
                found = score_levels(self._engine, levels, geometry)
            for number, sums in zip(numbers, found, strict=True):
                answers[number] = _dealt(places[number], sums)
        return answers

    def _pass_of(
        self, requests: Sequence[ScoreRequest]
    ) -> tuple[LevelKey, NDArray[np.uint16], LevelGeometry, NDArray[np.uint16]]:
        """Prove requests for one place; return its key, cells and panels, and all their shares."""
        first = requests[0]
        self.require_blocks(first.version, first.segment, first.level, first.blocks)
        if any(request.blocks != first.blocks for request in requests):
            raise ParameterError("requests for different blocks do not share a pass")
        segment = self._served_segment(first.version, first.segment)
        for request in requests:
            if len(request.shares) not in VECTOR_CLASSES:
                raise ParameterError(f"{len(request.shares)} vectors came (1, 2 or 4 are possible)")
        shares = [request.shares for request in requests]
        if len({array.shape[1:] for array in shares}) != 1:
            raise ParameterError("query shares have different numbers of columns")
        geometry = segment.header.layout.levels[first.level]
        key = first.segment, first.level
        return key, segment.level(first.level), geometry, np.concatenate(shares)

    def records(self, request: RecordRequest) -> RecordAnswer:
        """Return record slots by number.

        Raises:
            ParameterError: another version, an unknown segment, or slots out of range.
        """
        return RecordAnswer(np.array(self._slots_for(request)[request.slots]))

    def record_pieces(self, request: RecordRequest) -> Iterator[RecordAnswer]:
        """Return the answer of ``records`` in pieces, each copied when it is asked for.

        Raises:
            ParameterError: another version, an unknown segment, or slots out of range.
        """
        slots = self._slots_for(request)
        wanted = request.slots
        starts = range(0, max(1, len(wanted)), SLOTS_PER_PIECE)
        return (
            RecordAnswer(np.array(slots[wanted[start : start + SLOTS_PER_PIECE]]))
            for start in starts
        )

    def n_groups(self, version: int, segment: bytes) -> int:
        """Return the groups of record slots of a segment, which a selector chooses from.

        Raises:
            ParameterError: another version, or an unknown segment.
        """
        layout = self._served_segment(version, segment).header.layout
        return layout.slot.groups(layout.n_slots)[0]

    def select(self, request: SelectRequest) -> SelectAnswer:
        """Multiply selectors with the groups of record slots (docs/protocol.md, step 8.1.4).

        Raises:
            ParameterError: another version, an unknown segment, or selectors out of shape.
        """
        segment = self._served_segment(request.version, request.segment)
        layout = segment.header.layout
        if len(request.selectors) not in FETCH_CLASSES:
            raise ParameterError(
                f"{len(request.selectors)} fetches came (need one of {FETCH_CLASSES})"
            )
        _, group_slots = layout.slot.groups(layout.n_slots)
        with _SCORING:
            elements = select_groups(self._engine, segment.slots(), request.selectors, group_slots)
        return SelectAnswer(request.query_id, elements)

    def _slots_for(self, request: RecordRequest) -> NDArray[np.uint16]:
        """Return all record slots of the segment, after proving the request."""
        segment = self._served_segment(request.version, request.segment)
        slots = segment.slots()
        wanted = request.slots
        if len(wanted) > MAX_RECORDS:
            raise ParameterError(f"{len(wanted)} slots in one request (at most {MAX_RECORDS})")
        if len(wanted) and not 0 <= int(wanted.min()) <= int(wanted.max()) < len(slots):
            raise ParameterError(f"a slot is not in 0..{len(slots) - 1}")
        return slots

    def read_object(self, name: bytes, offset: int, n_bytes: int) -> bytes:
        """Return up to ``n_bytes`` bytes of a stored object from ``offset``.

        Raises:
            StorageError: there is no such object.
        """
        return self._store.read(name, offset, min(n_bytes, _READ_BYTES))

    def warm(self, is_stopped: Callable[[], bool]) -> None:
        """Read the cells of the active version ahead, until ``is_stopped``."""
        warm(list(self._segments.values()), is_stopped)

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()

    @property
    def active(self) -> Manifest | None:
        """The manifest of the version that is served, None before the first."""
        return None if self._active is None else self._active.manifest

    def _require_active(self) -> SignedManifest:
        if self._active is None:
            raise StorageError("nothing was published here", cure="the owner publishes first")
        return self._active

    def segment(self, name: bytes) -> SegmentReader:
        """Return a segment of the active version.

        Raises:
            ParameterError: the active version does not have it.
        """
        return self._segment_of(_Served(self._require_active(), self._segments), name)

    def _segment_of(self, served: _Served, name: bytes) -> SegmentReader:
        if name not in served.segments:
            version = served.signed.manifest.version
            raise ParameterError(f"segment {name.hex()[:16]} is not in version {version}")
        return served.segments[name]

    def _served(self, version: int) -> _Served:
        """Return the active version, or the one before for as long as it is served."""
        active = self._require_active()
        if version == active.manifest.version:
            return _Served(active, self._segments)
        previous = self._previous
        if (
            previous is not None
            and version == previous.signed.manifest.version
            and time.monotonic() < self._previous_until
        ):
            return previous
        raise ParameterError(
            f"version {version} is not served here (version {active.manifest.version} is)",
            cure="fetch the manifest again",
            server=self.id,
        )

    def _served_segment(self, version: int, name: bytes) -> SegmentReader:
        return self._segment_of(self._served(version), name)


def _dealt(requests: Sequence[ScoreRequest], sums: NDArray[np.uint16]) -> list[ScoreAnswer]:
    """Return to each request the sums of its vectors: uint16 (vectors of all, rows, tables)."""
    ends = np.cumsum([len(request.shares) for request in requests])
    parts = np.split(sums, ends[:-1])
    return [
        ScoreAnswer(request.query_id, part) for request, part in zip(requests, parts, strict=True)
    ]
