"""The servers of an owner: ask all of them, and bring them all to one version."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import TypeVar

from mksearch.crypto.kdf import sha256
from mksearch.errors import (
    FormatError,
    MksearchError,
    NotEnoughAnswers,
    ServerRefused,
    StorageError,
)
from mksearch.index.blob_list import BlobList
from mksearch.index.equivocation import Equivocation, are_rivals
from mksearch.index.manifest import Group, Manifest, ObjectRef, SegmentRef, SignedManifest
from mksearch.index.segment import HEADER_BYTES, SegmentChecker, SegmentHeader
from mksearch_client.connection import GrpcConnection
from mksearch_client.member import connect, dial_anew, dial_others
from mksearch_client.profile import Profile
from mksearch_client.publication import Progress, Publication, stage
from mksearch_client.readback import read_pieces, read_whole

__all__ = ["Fleet"]

_T = TypeVar("_T")
#: Seconds that a publisher waits for another one that a server tells of.
RIVAL_S = 5.0
_RIVAL_POLL_S = 0.1
#: Objects up to this size are proved before they are passed on.
_PROVED_BYTES_MAX = 1 << 26
#: What a server says to a version that came after another one.
_UNDER_WAY, _STALE = "publication-under-way", "manifest-stale"


class Fleet:
    """The servers of a profile, connected.

    Attributes:
        profile: keys, servers, memory.
        connections: by server id.
    """

    def __init__(self, profile: Profile, timeout_s: float) -> None:
        self.profile = profile
        self._timeout_s = timeout_s
        self.connections = connect(profile, timeout_s)
        self._dialled = dict(profile.servers)
        self._pool = ThreadPoolExecutor(2 * len(self.connections) or 1, "servers")

    def close(self) -> None:
        """Let go of the servers."""
        for connection in self.connections.values():
            connection.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def follow(self, manifest: Manifest) -> bool:
        """Go on with the servers that a version of the owner's names; tell if they are others."""
        self.profile.follow(manifest)
        if self._dialled == self.profile.servers:
            return False
        dial_others(self.connections, self._dialled, self.profile, self._timeout_s)
        ordered = sorted(self.connections.items())
        self.connections.clear()
        self.connections.update(ordered)
        return True

    def each(self, ask: Callable[[GrpcConnection], _T]) -> dict[int, _T | MksearchError]:
        """Ask all servers at once; an error takes the place of the answer."""

        def one(server: int) -> _T | MksearchError:
            try:
                return ask(self.connections[server])
            except MksearchError as error:
                return error

        servers = list(self.connections)
        return dict(zip(servers, self._pool.map(one, servers), strict=True))

    def newest_version(self) -> SignedManifest | None:
        """Return the highest version that t + 1 servers were asked for, None before the first.

        Raises:
            NotEnoughAnswers: fewer than t + 1 servers answered.
            ManifestRefused: servers are behind what this profile has seen.
        """
        dial_anew(self.connections, self.profile, self._timeout_s)
        keys = self.profile.keys
        n_answers = 0
        newest = self.profile.highest_seen()
        shown = {} if newest is None else {newest.hash: newest}
        answers = self.each(lambda connection: connection.manifest())
        for answer in answers.values():
            if isinstance(answer, ServerRefused) and answer.detail_code == "storage":
                n_answers += 1
            elif isinstance(answer, bytes):
                try:
                    signed = SignedManifest.decode(answer, keys.signing.public, keys.collection)
                except MksearchError:
                    continue
                n_answers += 1
                shown[signed.hash] = signed
                if newest is None or signed.manifest.version > newest.manifest.version:
                    newest = signed
        for one, other in combinations(shown.values(), 2):
            if are_rivals(one, other):
                self.profile.keep_equivocation(Equivocation.of(one, other))
        need = self.profile.quorum.threshold
        if n_answers < need and newest is not None and self.follow(newest.manifest):
            # This profile is from before servers were replaced: ask those who are there now.
            return self.newest_version()
        if n_answers < need:
            reasons = [str(a) for a in answers.values() if isinstance(a, MksearchError)]
            raise NotEnoughAnswers(
                f"{n_answers} servers answered (need {need}): {'; '.join(reasons)}",
                have=n_answers,
                need=need,
                cure="start the servers, or check their addresses",
            )
        if newest is not None:
            self.follow(newest.manifest)
        return newest

    def columns(self, group: Group) -> int:
        """Return the columns of level 0 of a group's newest segment."""
        try:
            return self.header(group.segments[-1]).layout.levels[0].width
        except NotEnoughAnswers:
            return 0

    def fetch(self, ref: ObjectRef) -> bytes:
        """Return an object from any server that sends the right bytes."""
        errors: list[str] = []
        for connection in self.connections.values():
            try:
                data = read_whole(connection, ref.id, ref.size)
            except MksearchError as error:
                errors.append(str(error))
                continue
            if sha256(data) == ref.id:
                return data
            errors.append(f"server {connection.server} sent other bytes")
        raise NotEnoughAnswers(
            f"no server sent the object {ref.id.hex()[:16]}: {'; '.join(errors)}", have=0, need=1
        )

    def header(self, ref: SegmentRef) -> SegmentHeader:
        """Return the header of a segment from any server that sends the right bytes."""
        for connection in self.connections.values():
            try:
                head = SegmentHeader.decode(connection.read_object(ref.id, 0, HEADER_BYTES))
            except MksearchError:
                continue
            if head.id == ref.id:
                return head
        raise NotEnoughAnswers(
            f"no server sent the header of segment {ref.id.hex()[:16]}", have=0, need=1
        )

    def distribute(
        self, publication: Publication, report: Progress
    ) -> dict[int, MksearchError | None]:
        """Stage on every server, then have all that hold it serve it; n - t must."""
        quorum = publication.signed.manifest.quorum
        need = quorum.n_servers - quorum.collusion_bound
        self.follow(publication.signed.manifest)
        # What servers are sent before enough of them hold all of it counts for nobody: a server
        # that shows it early shows nothing.
        draft = publication.signed.encode_draft(self.profile.keys.signing)
        results: dict[int, MksearchError | None] = {}
        # One after another: two publishers that start together meet at the first server, so one
        # of them gets all.
        for server, connection in self.connections.items():
            results[server] = _outcome(lambda c=connection: _propose(draft, c))  # type: ignore[misc]
            _require_first(publication.signed, connection, results[server])
        shares = dict.fromkeys((s for s, error in results.items() if error is None), 0.0)
        self._require_enough(list(shares), results, need)

        def send(server: int) -> MksearchError | None:
            def sending(_what: str, share: float) -> None:
                shares[server] = share
                report("sending to the servers", sum(shares.values()) / len(shares))

            connection = self.connections[server]
            relay = _Relay(publication, self.connections, server)
            return _outcome(lambda: stage(publication, connection, sending, relay.chunks, draft))

        for server, error in zip(shares, self._pool.map(send, list(shares)), strict=True):
            results[server] = error
            _require_first(publication.signed, self.connections[server], error)
        staged = [server for server, error in results.items() if error is None]
        self._require_enough(staged, results, need)

        # At once: while some serve the version and others do not, searches wait.
        def activate(server: int) -> MksearchError | None:
            def work() -> None:
                signed = publication.signed
                version = self.connections[server].activate(signed.hash, signed.signature)
                _require_version(version, signed)

            return _outcome(work)

        results |= dict(zip(staged, self._pool.map(activate, staged), strict=True))
        served = [server for server, error in results.items() if error is None]
        self._require_enough(served, results, need)
        self.profile.remember(publication.signed)
        if len(served) == len(results):
            publication.discard()
        return results

    def _require_enough(
        self, good: list[int], results: Mapping[int, MksearchError | None], need: int
    ) -> None:
        if len(good) >= need:
            return
        reasons = [f"server {s}: {error}" for s, error in results.items() if error is not None]
        raise NotEnoughAnswers(
            f"{len(good)} servers took the version (need {need}): {'; '.join(reasons)}",
            have=len(good),
            need=need,
            cure="publish again when the servers answer; only what is missing is sent",
        )


def _require_version(version: int, signed: SignedManifest) -> None:
    """Raise FormatError if a server says that it activated another version."""
    if version != signed.manifest.version:
        raise FormatError(f"it activated version {version}, not {signed.manifest.version}")


class _Relay:
    """Brings a server what the owner no longer holds: from the others, proved by its name."""

    def __init__(
        self, publication: Publication, connections: Mapping[int, GrpcConnection], to: int
    ) -> None:
        self._publication = publication
        self._sources = [c for server, c in connections.items() if server != to]
        self._to = to
        manifest = publication.signed.manifest
        self._segments = {segment.id for segment in manifest.segments()}
        self._sizes = {segment.id: segment.size for segment in manifest.segments()}
        self._sizes |= {reference.id: reference.size for reference in manifest.objects()}
        self._knows_blobs = False

    def chunks(self, name: bytes) -> Iterator[bytes]:
        """Yield an object's bytes from the first server that has it.

        Raises:
            StorageError: no other server has it.
        """
        size = self._size(name)
        for connection in self._sources:
            try:
                if size <= _PROVED_BYTES_MAX:
                    data = read_whole(connection, name, size)
                    self._prove(name, data)
                    yield data
                    return
                # Whoever receives it proves it whole; what it starts with shows who has it.
                header = connection.read_object(name, 0, HEADER_BYTES)
                if name in self._segments and sha256(header) != name:
                    continue
            except MksearchError:
                continue
            yield header
            yield from read_pieces(connection, name, HEADER_BYTES, size)
            return
        raise StorageError(
            f"no other server holds the object {name.hex()[:16]} that server {self._to} lacks",
            cure="publish the documents of all groups again",
        )

    def _prove(self, name: bytes, data: bytes) -> None:
        """Raise VerificationError if ``data`` is not the object of this name."""
        if name in self._segments:
            checker = SegmentChecker(data[:HEADER_BYTES], name)
            checker.add(data[HEADER_BYTES:])
            checker.finish()
        elif sha256(data) != name:
            raise FormatError(f"bytes came that are not object {name.hex()[:16]}")

    def _size(self, name: bytes) -> int:
        if name not in self._sizes and not self._knows_blobs:
            self._knows_blobs = True
            for group in self._publication.signed.manifest.groups:
                here = self._publication.holds(group.blobs.id)
                source = self._publication.chunks if here else self.chunks
                blobs = b"".join(source(group.blobs.id))
                self._sizes |= dict(BlobList.decode(blobs).blobs)
        return self._sizes.get(name, 0)


def _outcome(work: Callable[[], object]) -> MksearchError | None:
    """Return the error that ``work`` ends with."""
    try:
        work()
    except MksearchError as error:
        return error
    return None


def _propose(draft: bytes, connection: GrpcConnection) -> None:
    """Announce a version to one server; give another publisher a moment to end there."""
    last_s = time.monotonic() + RIVAL_S
    while True:
        try:
            connection.propose(draft)
            return
        except ServerRefused as error:
            if error.detail_code != _UNDER_WAY or time.monotonic() > last_s:
                raise
        time.sleep(_RIVAL_POLL_S)


def _require_first(
    signed: SignedManifest, connection: GrpcConnection, error: MksearchError | None
) -> None:
    """Raise if ``error`` of a server proves that another publisher was faster.

    That one gets all servers.  The proof is the version that the server serves: a word of its own
    would let a single server keep the owner from publishing.
    """
    if not isinstance(error, ServerRefused) or error.detail_code != _STALE:
        return
    try:
        rival = SignedManifest.decode(
            connection.manifest(), signed.manifest.owner_key, signed.manifest.collection
        )
    except MksearchError:
        return
    if rival.manifest.version >= signed.manifest.version and rival.hash != signed.hash:
        raise ServerRefused(
            f"another publisher was faster: version {rival.manifest.version} is served",
            detail_code=_STALE,
            cure="publish again, on top of that version",
            server=error.server,
        ) from None
