"""Search as a member, from a profile, over the network."""

from __future__ import annotations

from pathlib import Path

from mksearch.crypto.randomness import SystemRandom
from mksearch_client import searching
from mksearch_client.connection import GrpcConnection
from mksearch_client.keyring import OwnerRing
from mksearch_client.profile import Profile, open_profile

__all__ = ["Searcher", "connect"]


def connect(profile: Profile, timeout_s: float = 10.0) -> dict[int, GrpcConnection]:
    """Return a connection to every server of ``profile``."""
    random = SystemRandom()
    return {
        server.id: GrpcConnection(
            server.id, server.address, server.key, random, timeout_s=timeout_s
        )
        for server in profile.servers.values()
    }


class _ProfileCache:
    """Sealed objects kept in a profile."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile

    def get(self, name: bytes) -> bytes | None:
        return self._profile.cached(name)

    def put(self, name: bytes, data: bytes) -> None:
        self._profile.keep(name, data)


class Searcher(searching.Searcher):
    """Asks the collection of a profile; the owner's own profile is one.

    A context manager: ``with Searcher(folder) as searcher: searcher.search("words", k=10)``.
    """

    def __init__(
        self,
        profile: Profile | Path | str | None = None,
        *,
        passphrase_file: Path | None = None,
        timeout_s: float = 10.0,
        accept_expired: bool = False,
    ) -> None:
        """Open a profile; nothing is sent before the first question.

        Args:
            profile: its folder, or the profile itself; None for the default folder.
            passphrase_file: holds the passphrase; None for what the environment names.
            timeout_s: seconds that one request may take.
            accept_expired: use an expired manifest all the same.

        Raises:
            ProfileError: there is no profile, it is damaged, or the passphrase is wrong.
        """
        opened = open_profile(profile, passphrase_file)
        connections = connect(opened, timeout_s)

        def close() -> None:
            for connection in connections.values():
                connection.close()

        super().__init__(
            connections,
            OwnerRing(opened.keys),
            SystemRandom(),
            addresses={server.id: server.address for server in opened.servers.values()},
            seen=opened.highest_seen(),
            quorum=opened.quorum,
            cache=_ProfileCache(opened),
            accept_expired=accept_expired,
            hedge_s=min(1.0, timeout_s / 3),
            on_close=close,
            on_seen=opened.remember,
        )
