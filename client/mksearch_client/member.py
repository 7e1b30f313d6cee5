"""Search as a member, from a profile, over the network."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from mksearch.access.credential_list import decode_credentials
from mksearch.crypto.evidence import Evidence
from mksearch.crypto.randomness import SystemRandom
from mksearch.errors import (
    AnswerRefused,
    CredentialRefused,
    EpochPassed,
    NotEnoughAnswers,
    ProfileError,
)
from mksearch.index.document import StoredDocument
from mksearch.index.equivocation import Equivocation
from mksearch.index.manifest import SignedManifest
from mksearch.messages import ScoreAnswer, ScoreRequest
from mksearch.query.ranking import Ranking
from mksearch_client import searching
from mksearch_client.asking import Servers
from mksearch_client.connection import GrpcConnection
from mksearch_client.fetching import Connection, first_good, read_object
from mksearch_client.handing_on import hand_on
from mksearch_client.keyring import EnrolledRing, KeyRing, OwnerRing
from mksearch_client.opening import OpenVersion
from mksearch_client.privacy import PrivacyLimit
from mksearch_client.profile import Profile, is_user_profile
from mksearch_client.profile_folder import (
    ProfileFolder,
    ServerEntry,
    default_profile,
    read_passphrase,
)
from mksearch_client.result import SearchResult
from mksearch_client.user import User
from mksearch_client.user_profile import UserProfile

__all__ = ["Searcher", "connect", "connect_to", "dial_anew", "dial_others"]

_T = TypeVar("_T")
#: Servers go over to a version one after another, each in a moment (in seconds, where it lists
#: hundreds of thousands of documents); for so long a search waits.
_SWITCH_S = 10.0
_SWITCH_POLL_S = 0.05
#: Epochs that may begin while one is opened.
_EPOCHS_MAX = 8


def connect(profile: ProfileFolder, timeout_s: float = 10.0) -> dict[int, GrpcConnection]:
    """Return a connection to every server of ``profile``."""
    return {server.id: connect_to(server, timeout_s) for server in profile.servers.values()}


def connect_to(server: ServerEntry, timeout_s: float = 10.0) -> GrpcConnection:
    """Return a connection to one server of a profile."""
    return GrpcConnection(
        server.id,
        server.address,
        server.key,
        SystemRandom(),
        timeout_s=timeout_s,
        tls=server.tls,
    )


def dial_anew(
    connections: dict[int, GrpcConnection], profile: ProfileFolder, timeout_s: float
) -> bool:
    """Dial servers anew that were gone: they may be back, though gRPC lets them wait.

    Args:
        connections: by id; those of such servers are replaced.
        profile: has the servers.
        timeout_s: seconds that one request may take.

    Returns:
        whether there were any.
    """
    gone = [server for server, connection in connections.items() if connection.is_gone]
    for server in gone:
        connections[server].close()
        connections[server] = connect_to(profile.servers[server], timeout_s)
    return bool(gone)


def dial_others(
    connections: dict[int, GrpcConnection],
    dialled: dict[int, ServerEntry],
    profile: ProfileFolder,
    timeout_s: float,
) -> None:
    """Dial the servers that have come into a profile's list, and let go of those that left it.

    Args:
        connections: by id; changed.
        dialled: what they were made from; changed.
        profile: has the servers.
        timeout_s: seconds that one request may take.
    """
    for server in sorted(dialled.keys() | profile.servers.keys()):
        entry = profile.servers.get(server)
        if entry == dialled.get(server):
            continue
        if server in connections:
            connections.pop(server).close()
            del dialled[server]
        if entry is not None:
            connections[server], dialled[server] = connect_to(entry, timeout_s), entry


def _ring(profile: UserProfile) -> EnrolledRing:
    return EnrolledRing(
        profile.collection,
        profile.owner_key,
        profile.card.parameters.authority,
        profile.secrets(),
    )


class _ProfileCache:
    """Sealed objects kept in a profile."""

    def __init__(self, profile: ProfileFolder) -> None:
        self._profile = profile

    def get(self, name: bytes) -> bytes | None:
        return self._profile.cached(name)

    def put(self, name: bytes, data: bytes) -> None:
        self._profile.keep(name, data)


def _open(
    profile: ProfileFolder | Path | str | None, passphrase_file: Path | None, now_s: int
) -> tuple[ProfileFolder, KeyRing]:
    """Return a profile, an owner's or a user's, and what it can open.

    Raises:
        CredentialRefused: the user's credential has expired.
        ProfileError: there is no profile, it is damaged, or the passphrase is wrong.
    """
    if not isinstance(profile, ProfileFolder):
        folder = default_profile() if profile is None else Path(profile)
        kind = UserProfile if is_user_profile(folder) else Profile
        profile = kind.open(folder, read_passphrase(passphrase_file))
    if isinstance(profile, UserProfile):
        profile.credential().require_for(
            collection=profile.collection,
            authority=profile.card.parameters.authority,
            user=profile.identity.public.id,
            now_s=now_s,
        )
        return profile, _ring(profile)
    if isinstance(profile, Profile):
        return profile, OwnerRing(profile.keys)
    raise ProfileError(f"the profile in {profile.folder} is neither an owner's nor a user's")


class Searcher(searching.Searcher):
    """Asks the collection of a profile, a user's or the owner's own.

    A context manager: ``with Searcher(folder) as searcher: searcher.search("words", k=10)``.
    """

    def __init__(
        self,
        profile: ProfileFolder | Path | str | None = None,
        *,
        passphrase_file: Path | None = None,
        timeout_s: float = 10.0,
        accept_expired: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open a profile; nothing is sent before the first question.

        Args:
            profile: its folder, or the profile itself; None for the default folder.
            passphrase_file: holds the passphrase; None for what the environment names.
            timeout_s: seconds that one request may take.
            accept_expired: use an expired manifest all the same.
            clock: Unix seconds.

        Raises:
            CredentialRefused: the user's credential has expired.
            ProfileError: there is no profile, it or its settings are damaged, or the passphrase is
                wrong.
        """
        opened, ring = _open(profile, passphrase_file, int(clock()))
        limit = PrivacyLimit.read(opened.folder)
        connections = connect(opened, timeout_s)

        def close() -> None:
            for connection in connections.values():
                connection.close()

        self._profile = opened
        self._servers = connections
        self._dialled = dict(opened.servers)
        self._shown: list[SignedManifest] = []
        self._timeout_s = timeout_s
        self._switch_s = min(_SWITCH_S, timeout_s)
        self._attempts: list[Servers[Connection]] = []
        self._is_late = False
        self._lies: list[str] = []
        super().__init__(
            connections,
            ring,
            SystemRandom(),
            addresses={server.id: server.address for server in opened.servers.values()},
            seen=opened.highest_seen(),
            quorum=opened.quorum,
            cache=_ProfileCache(opened),
            clock=clock,
            accept_expired=accept_expired,
            hedge_s=min(1.0, timeout_s / 3),
            on_close=close,
            on_seen=opened.remember,
            on_lie=self._keep_lie,
            on_rivals=self._keep_rivals,
            limit=limit,
        )

    # --- servers that lied

    @property
    def _distrusted(self) -> set[int]:
        """Servers that this profile holds evidence against, and those that owe an earlier answer.

        Evidence against a server that was replaced is not held against the one in its place.
        """
        servers = self._profile.servers
        lied = {
            evidence.server
            for evidence in self._profile.evidence()
            if evidence.server in servers and evidence.version >= servers[evidence.server].since
        }
        # A server that hangs costs its hedge delay once, not every search that follows.
        hangs = {s for s, held in self._servers.items() if held.waited_s > self._hedge_s}
        return lied | hangs

    def _keep_lie(self, server: int, request: ScoreRequest, answer: ScoreAnswer) -> None:
        evidence = Evidence(server, self._profile.servers[server].key, request, answer)
        path = self._profile.keep_evidence(evidence)
        if path is not None:
            self._lies.append(
                f"server {server} lied; what it signed is in {path}, for the owner to prove "
                "(mksearch owner verify --evidence)"
            )

    def _keep_rivals(self, evidence: Equivocation) -> str:
        path = self._profile.keep_equivocation(evidence)
        kept = f"; both are in {path}, for the owner (mksearch owner verify --evidence)"
        self._lies.append(f"{evidence}{kept if path else ''}")
        return path

    def _warnings(self, ranking: Ranking) -> list[str]:
        return super()._warnings(ranking) + list(dict.fromkeys(self._lies))

    # --- while servers go over to a new version, one after another

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        offset: int = 0,
        max_records: int | None = None,
        privacy: str = "balanced",
    ) -> SearchResult:
        """Return the best documents; see `searching.Searcher.search`."""
        find = super().search
        return self._wait_out(
            lambda: find(query, k, offset=offset, max_records=max_records, privacy=privacy)
        )

    def open(self, external_id: str) -> StoredDocument:
        """Fetch and open a whole document; see `searching.Searcher.open`."""
        fetch = super().open
        return self._wait_out(lambda: fetch(external_id))

    def _wait_out(self, work: Callable[[], _T]) -> _T:
        """Do ``work``, again where too few servers have come to the version of the others.

        And once more where some are perhaps back: a fleet is restarted one server after another.
        """
        last_s = time.monotonic() + self._switch_s
        may_redial = True
        while True:
            self._attempts, self._is_late, self._lies = [], False, []
            try:
                return work()
            except (NotEnoughAnswers, AnswerRefused, CredentialRefused) as error:
                is_refused = isinstance(error, CredentialRefused)
                if (
                    may_redial
                    and not is_refused
                    and dial_anew(self._servers, self._profile, self._timeout_s)
                ):
                    may_redial = False
                    continue
                meets = self._is_late or (not is_refused and self._saw_switch())
                is_over = time.monotonic() > last_s or self._known_s() > self._switch_s
                if is_over or not meets:
                    raise
            time.sleep(_SWITCH_POLL_S)

    def _known_s(self) -> float:
        """Return for how many seconds this profile has known the newest version.

        Servers that are behind for longer are not on their way to it.
        """
        try:
            return time.time() - (self._profile.folder / "manifest").stat().st_mtime
        except OSError:
            return 0.0

    def _saw_switch(self) -> bool:
        statuses = {r.status for servers in self._attempts for r in servers.reports.values()}
        return "ok" in statuses and not statuses.isdisjoint({"stale", "refused"})

    def _start(self) -> Servers[Connection]:
        servers = super()._start()
        self._attempts.append(servers)
        return servers

    # --- servers that were replaced or added

    def _newest(self, servers: Servers[Connection]) -> SignedManifest:
        """Return the newest version; go on with the servers that it names (15.2)."""
        while True:
            self._shown = []
            try:
                newest = super()._newest(servers)
            except (NotEnoughAnswers, AnswerRefused):
                # The owner signed a list of other servers, so those are to be asked.
                shown = max(self._shown, key=lambda one: one.manifest.version, default=None)
                if shown is None or not self._go_on_with(shown, servers):
                    raise
                continue
            self._go_on_with(newest, servers)
            return newest

    def _met(self, signed: SignedManifest) -> None:
        self._shown.append(signed)

    def _go_on_with(self, signed: SignedManifest, servers: Servers[Connection]) -> bool:
        """Dial the servers that a version names; tell whether they are others."""
        self._profile.follow(signed.manifest)
        if self._dialled == self._profile.servers:
            return False
        dial_others(self._servers, self._dialled, self._profile, self._timeout_s)
        addresses = {server.id: server.address for server in self._profile.servers.values()}
        self._take_servers(addresses, self._profile.quorum)
        servers.go_on_with(self._servers, addresses)
        return True

    # --- epochs

    def _open(self, servers: Servers[Connection]) -> OpenVersion:
        """Open the newest version; enrol in its epoch first where that began meanwhile."""
        for _ in range(_EPOCHS_MAX):
            try:
                return super()._open(servers)
            except EpochPassed as passed:
                if not isinstance(self._profile, UserProfile):
                    raise
                self._enrol_anew(self._profile, servers, passed)
        return super()._open(servers)

    def _hand_on(self, lagging: Sequence[int]) -> bool:
        """Hand the newest manifest to servers that serve an older one; tell whether one took it."""
        seen = self.seen
        if seen is None:
            return False
        # All of them, whatever the first one does.
        taken = [hand_on(self._servers[server], seen) for server in lagging]
        return any(taken)

    def _enrol_anew(
        self, profile: UserProfile, servers: Servers[Connection], passed: EpochPassed
    ) -> None:
        """Take this member's credential of the new epoch from the servers (13.5.4)."""
        signed = self._newest(servers)
        access = signed.manifest.access
        held = profile.credential().credential.epoch
        if access is None or access.credentials is None or access.epoch < held:
            raise passed
        listed, what = access.credentials, "the list of credentials"

        def fetch(server: int) -> bytes:
            return read_object(servers.connections[server], listed, what)

        files = decode_credentials(first_good(servers, fetch, what))
        own = files.get(profile.identity.public.id)
        if own is None:
            raise CredentialRefused(
                f"this profile's user is no member of epoch {access.epoch}",
                cure="the admin revoked it or its credential had expired; ask for a new one",
            )
        # Whoever opens this profile with the new credential knows the new version.
        profile.remember(signed)
        if access.epoch > held:
            try:
                User(profile, timeout_s=self._timeout_s, clock=self._clock).enrol(own)
            except (NotEnoughAnswers, AnswerRefused, CredentialRefused):
                self._is_late = True
                raise
        self._take_keys(_ring(profile))
