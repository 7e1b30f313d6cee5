"""Fetch what a server lacks of a version from other servers, and have it served.

docs/protocol.md, 7.1.  A peer may say what it likes: the manifest has the owner's signature, and
every object is proved by its name before it is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from mksearch.errors import (
    MksearchError,
    NotEnoughAnswers,
    ServerRefused,
    ServerUnreachable,
    StorageError,
    VerificationError,
)
from mksearch.index.manifest import SignedManifest
from mksearch_server.identity import Claim
from mksearch_server.peer import Peer
from mksearch_server.search_server import SearchServer

__all__ = ["Copying", "InTurn", "Progress", "newest_shown"]

_T = TypeVar("_T")
#: Told what is being done and its share, 0..1.
Progress = Callable[[str, float], None]


def newest_shown(
    peers: Sequence[Peer], claim: Claim
) -> tuple[SignedManifest | None, Sequence[str]]:
    """Return the highest version that peers show, and why others show none.

    Raises:
        ManifestRefused: two of them show different manifests of one version.
    """
    newest: SignedManifest | None = None
    reasons = []
    for peer in peers:
        try:
            shown = SignedManifest.decode(peer.manifest(), claim.owner_key, claim.collection)
        except MksearchError as error:
            reasons.append(f"{peer.address}: {error.message}")
            continue
        if newest is None or shown.manifest.version > newest.manifest.version:
            newest = shown
        elif shown.manifest.version == newest.manifest.version:
            shown.require_not_older(newest)
    return newest, reasons


class InTurn(Protocol):
    """Runs what changes a store, one after the other, and returns its result."""

    def __call__(self, work: Callable[..., _T], /, *arguments: Any) -> _T:
        """Return ``work(*arguments)``."""


def _at_once(work: Callable[..., _T], /, *arguments: Any) -> _T:
    return work(*arguments)


class Copying:
    """One version on its way from peers.

    Attributes:
        n_fetched: objects that came.
        n_bytes: their bytes.
    """

    def __init__(
        self,
        server: SearchServer,
        peers: Sequence[Peer],
        wanted: SignedManifest,
        *,
        progress: Progress = lambda _what, _share: None,
        in_turn: InTurn = _at_once,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare; nothing is asked yet.

        Args:
            server: that gets the version.
            peers: each object comes from the first that has it.
            wanted: the version.
            progress: told what is being done.
            in_turn: runs what changes the store, and returns its result.
            is_stopped: asked between two pieces; True ends the work.
        """
        self._server = server
        self._peers = peers
        self._wanted = wanted
        self._progress = progress
        self._in_turn = in_turn
        self._is_stopped = is_stopped
        self.n_fetched = 0
        self.n_bytes = 0

    def run(self) -> None:
        """Fetch everything and activate the version.

        Raises:
            NotEnoughAnswers: no peer has an object; what came stays.
            StorageError: no room, or it was stopped.
            VerificationError: the version may not follow the one that is served.
        """
        server = self._server
        manifest_hash = self._wanted.hash
        self._in_turn(server.propose, self._wanted.encode())
        # The first pass brings the blob lists, and with them the names of the blobs.
        for _ in range(2):
            missing = self._in_turn(server.missing, manifest_hash)
            for number, name in enumerate(missing):
                self._progress("fetching", number / len(missing))
                self._fetch(manifest_hash, name)
            self._in_turn(server.commit)
        self._in_turn(server.activate, manifest_hash)

    def _fetch(self, manifest_hash: bytes, name: bytes) -> None:
        """Store one object from the first peer that sends the right bytes."""
        size = self._server.size(manifest_hash, name)
        reasons = []
        for peer in self._peers:
            try:
                self._put(manifest_hash, name, size, peer)
            except (ServerUnreachable, ServerRefused, VerificationError) as error:
                reasons.append(f"{peer.address}: {error.message}")
                continue
            self.n_fetched += 1
            self.n_bytes += size
            return
        raise NotEnoughAnswers(
            f"no server sent the object {name.hex()[:16]}: {'; '.join(reasons)}",
            have=0,
            need=1,
            cure="name further servers with --from and run it again; what came stays",
        )

    def _put(self, manifest_hash: bytes, name: bytes, size: int, peer: Peer) -> None:
        upload = self._in_turn(self._server.begin_put, manifest_hash, name)
        try:
            for piece in peer.pieces(name, size):
                if self._is_stopped():
                    raise StorageError("this server is being stopped")
                upload.write(piece)
            self._in_turn(upload.finish)
        finally:
            upload.close()
