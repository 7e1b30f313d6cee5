"""The servers of an owner: ask all of them, and bring them all to one version."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from mksearch.crypto.kdf import sha256
from mksearch.errors import (
    FormatError,
    MksearchError,
    NotEnoughAnswers,
    ServerRefused,
)
from mksearch.index.manifest import ObjectRef, SignedManifest
from mksearch.index.segment import HEADER_BYTES, SegmentHeader
from mksearch_client.connection import GrpcConnection
from mksearch_client.member import connect
from mksearch_client.profile import Profile
from mksearch_client.publication import Progress, Publication, stage
from mksearch_client.readback import read_whole

__all__ = ["Fleet"]

_T = TypeVar("_T")
#: Seconds that a publisher waits for another one that a server tells of.
RIVAL_S = 5.0
_RIVAL_POLL_S = 0.1
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
        self.connections = connect(profile, timeout_s)
        self._pool = ThreadPoolExecutor(2 * len(self.connections) or 1, "servers")

    def close(self) -> None:
        """Let go of the servers."""
        for connection in self.connections.values():
            connection.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

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
        keys = self.profile.keys
        n_answers = 0
        newest = self.profile.highest_seen()
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
                if newest is None or signed.manifest.version > newest.manifest.version:
                    newest = signed
        need = self.profile.quorum.threshold
        if n_answers < need:
            reasons = [str(a) for a in answers.values() if isinstance(a, MksearchError)]
            raise NotEnoughAnswers(
                f"{n_answers} servers answered (need {need}): {'; '.join(reasons)}",
                have=n_answers,
                need=need,
                cure="start the servers, or check their addresses",
            )
        return newest

    def columns(self, signed: SignedManifest) -> int:
        """Return the columns of level 0 of the newest segment."""
        ref = signed.manifest.groups[0].segments[-1]
        for connection in self.connections.values():
            try:
                head = SegmentHeader.decode(connection.read_object(ref.id, 0, HEADER_BYTES))
            except MksearchError:
                continue
            if head.id == ref.id:
                return head.layout.levels[0].width
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

    def distribute(
        self, publication: Publication, report: Progress
    ) -> dict[int, MksearchError | None]:
        """Stage on every server, then have all that hold it serve it; n - t must."""
        need = self.profile.quorum.n_servers - self.profile.quorum.collusion_bound
        results: dict[int, MksearchError | None] = {}
        # One after another: two publishers that start together meet at the first server, so one
        # of them gets all.
        for number, (server, connection) in enumerate(self.connections.items()):

            def sending(_what: str, share: float, at: int = number, to: int = server) -> None:
                report(f"sending to server {to}", (at + share) / len(self.connections))

            try:
                _stage(publication, connection, sending)
                results[server] = None
            except MksearchError as error:
                _require_first(publication.signed, connection, error)
                results[server] = error
        staged = [server for server, error in results.items() if error is None]
        self._require_enough(staged, results, need)
        for server in staged:
            try:
                version = self.connections[server].activate(publication.signed.hash)
                _require_version(version, publication.signed)
            except MksearchError as error:
                results[server] = error
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


def _stage(publication: Publication, connection: GrpcConnection, sending: Progress) -> None:
    """Bring a version to one server; give another publisher a moment to end there."""
    last_s = time.monotonic() + RIVAL_S
    while True:
        try:
            stage(publication, connection, sending)
            return
        except ServerRefused as error:
            if error.detail_code != _UNDER_WAY or time.monotonic() > last_s:
                raise
        time.sleep(_RIVAL_POLL_S)


def _require_first(
    signed: SignedManifest, connection: GrpcConnection, error: MksearchError
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
