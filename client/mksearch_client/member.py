"""Search as a member, from a profile, over the network."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from mksearch.access.credential_list import decode_credentials
from mksearch.crypto.randomness import SystemRandom
from mksearch.errors import CredentialRefused, EpochPassed, ProfileError
from mksearch_client import searching
from mksearch_client.asking import Servers
from mksearch_client.connection import GrpcConnection
from mksearch_client.fetching import Connection, first_good, read_object
from mksearch_client.keyring import EnrolledRing, KeyRing, OwnerRing
from mksearch_client.opening import OpenVersion
from mksearch_client.profile import Profile, is_user_profile
from mksearch_client.profile_folder import ProfileFolder, default_profile, read_passphrase
from mksearch_client.user import User
from mksearch_client.user_profile import UserProfile

__all__ = ["Searcher", "connect"]


def connect(profile: ProfileFolder, timeout_s: float = 10.0) -> dict[int, GrpcConnection]:
    """Return a connection to every server of ``profile``."""
    random = SystemRandom()
    return {
        server.id: GrpcConnection(
            server.id, server.address, server.key, random, timeout_s=timeout_s
        )
        for server in profile.servers.values()
    }


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
            ProfileError: there is no profile, it is damaged, or the passphrase is wrong.
        """
        opened, ring = _open(profile, passphrase_file, int(clock()))
        connections = connect(opened, timeout_s)

        def close() -> None:
            for connection in connections.values():
                connection.close()

        self._profile = opened
        self._timeout_s = timeout_s
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
        )

    def _open(self, servers: Servers[Connection]) -> OpenVersion:
        """Open the newest version; enrol in its epoch first where that began meanwhile."""
        try:
            return super()._open(servers)
        except EpochPassed as passed:
            if not isinstance(self._profile, UserProfile):
                raise
            self._enrol_anew(self._profile, servers, passed)
        return super()._open(servers)

    def _enrol_anew(
        self, profile: UserProfile, servers: Servers[Connection], passed: EpochPassed
    ) -> None:
        """Take this member's credential of the new epoch from the servers (13.5.4)."""
        signed = self._newest(servers)
        access = signed.manifest.access
        if access is None or access.credentials is None:
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
        User(profile, timeout_s=self._timeout_s, clock=self._clock).enrol(own)
        self._take_keys(_ring(profile))
