"""A running server that missed a version fetches it from its peers, and goes on serving meanwhile.

docs/protocol.md, 7.1.  One round asks every peer once, in a bounded time each; what cannot be had
now is asked for again in the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

from mksearch.crypto.randomness import SystemRandom
from mksearch.errors import MksearchError
from mksearch_server.config import ServerConfig
from mksearch_server.copying import Copying, InTurn, newest_shown
from mksearch_server.identity import Claim
from mksearch_server.log import log_event
from mksearch_server.peer import Peer
from mksearch_server.search_server import SearchServer

__all__ = ["CatchingUp"]

#: Seconds that one question to a peer may take.
_ASKING_S = 10.0


class CatchingUp:
    """What a running server does about versions that it missed; each round on one thread."""

    def __init__(self, config: ServerConfig, in_turn: InTurn) -> None:
        """Prepare; nothing is asked yet.

        Args:
            config: whom to ask.
            in_turn: runs what changes the store, one after the other with all else that does.
        """
        self._config = config
        self._in_turn = in_turn
        self._peers: Sequence[Peer] = ()
        self._is_stopped = False

    def stop(self) -> None:
        """End the round that is under way; from any thread."""
        self._is_stopped = True
        for peer in self._peers:
            peer.close()

    def round(self, server: SearchServer, claim: Claim) -> bool:
        """Bring a server to the newest version that it was told of, or that a peer shows.

        Args:
            server: in use.
            claim: whose signature counts.

        Returns:
            whether another version is active now.
        """
        if self._is_stopped:
            return False
        own = self._config.tls
        self._peers = [
            Peer(at, SystemRandom(), own=own, timeout_s=_ASKING_S) for at in self._config.peers
        ]
        before = server.version
        try:
            self._fetch(server, claim)
            self._take_renewals(server)
        except MksearchError as error:
            # Not its text: a peer may have written some of it.
            log_event("catching-up-failed", code=error.code)
        finally:
            for peer in self._peers:
                peer.close()
        return server.version != before

    def _fetch(self, server: SearchServer, claim: Claim) -> None:
        shown, _ = newest_shown(self._peers, claim)
        known = [signed for signed in (shown, server.awaited) if signed is not None]
        wanted = max(known, key=lambda signed: signed.manifest.version, default=None)
        if wanted is None or wanted.manifest.version <= server.version:
            return
        log_event("catching-up", version=wanted.manifest.version)
        copying = Copying(
            *(server, self._peers, wanted),
            in_turn=self._in_turn,
            is_stopped=lambda: self._is_stopped,
        )
        copying.run()
        log_event("caught-up", version=server.version, objects=copying.n_fetched)

    def _take_renewals(self, server: SearchServer) -> None:
        """Take the renewals that peers hold, where there can be any: they prove themselves."""
        active = server.active
        if active is None or not active.timestamp_key:
            return
        for peer in self._peers:
            try:
                found = peer.renewal()
                if found and found != server.renewal():
                    self._in_turn(server.renew, found)
            except MksearchError:
                # Of another version, an earlier one, or no answer: the next look may find more.
                continue
