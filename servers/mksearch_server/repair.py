"""Make the store of a stopped server whole again from other servers of the collection.

docs/protocol.md, 7.1.  What is there and proves itself stays; what is missing or damaged is
fetched.  May be interrupted anywhere and run again: until everything is there, nothing is served.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mksearch.crypto.randomness import SystemRandom
from mksearch.errors import NotEnoughAnswers, ParameterError, StorageError, VerificationError
from mksearch.index.manifest import SignedManifest
from mksearch.scoring.engine import make_engine
from mksearch_server.challenges import Challenges
from mksearch_server.config import ServerConfig, load_config
from mksearch_server.copying import Copying, Progress, newest_shown
from mksearch_server.database import DATABASE, SIZE_NAME
from mksearch_server.files import sync_folder
from mksearch_server.identity import (
    CLAIM_STATE,
    Claim,
    ServerIdentity,
    read_claim,
    write_claim,
)
from mksearch_server.peer import Peer
from mksearch_server.peer_address import PeerAddress
from mksearch_server.rooms import Room
from mksearch_server.running import StoreLock
from mksearch_server.scrub import SMALL, Findings, copy_good, scrub
from mksearch_server.search_server import ACTIVE_STATE, HIGHEST_STATE, SearchServer
from mksearch_server.shares import SHARE_STATE, ShareKeeper
from mksearch_server.storage import open_room
from mksearch_server.store import ObjectStore

__all__ = ["RepairReport", "read_card", "repair"]

_REBUILT = "rebuilt"
_ASIDE = "objects.damaged"


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair did.

    Attributes:
        version: that the store serves now.
        n_damaged: objects that were found damaged or missing before.
        n_fetched: objects that came from the other servers.
        n_bytes: their bytes.
        lacks_share: the collection has an authority, and this store no share of it.
    """

    version: int
    n_damaged: int
    n_fetched: int
    n_bytes: int
    lacks_share: bool

    def to_fields(self) -> dict[str, Any]:
        """Return the object that the command prints with ``--json``."""
        return {
            "version": self.version,
            "damaged": self.n_damaged,
            "fetched": self.n_fetched,
            "bytes": self.n_bytes,
            "lacks_share": self.lacks_share,
        }


def read_card(path: Path) -> Claim:
    """Return the owner and the collection of a card.

    Raises:
        ParameterError: it cannot be read or is no card.
    """
    try:
        fields = json.loads(path.read_bytes())
        claim = Claim(bytes.fromhex(fields["owner_key"]), bytes.fromhex(fields["collection"]))
        claim.require_lengths()
    except OSError as error:
        raise ParameterError(
            f"the card {path} cannot be read ({error.strerror})", cure="check --card"
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError, StorageError):
        raise ParameterError(
            f"{path} is no card of a collection", cure="the owner writes one: mksearch owner card"
        ) from None
    return claim


def read_pins(path: Path) -> dict[str, bytes]:
    """Return the fingerprints of TLS keys in a card that `read_card` accepted, by HOST:PORT.

    Raises:
        ParameterError: its servers cannot be read.
    """
    try:
        servers = json.loads(path.read_bytes())["servers"]
        return {
            str(server["address"]): bytes.fromhex(server["tls_key"])
            for server in servers
            if "tls_key" in server
        }
    except (OSError, ValueError, KeyError, TypeError):
        raise ParameterError(
            f"{path} names no servers", cure="the owner writes one: mksearch owner card"
        ) from None


def repair(
    config_path: Path,
    sources: Sequence[str],
    *,
    card: Path | None = None,
    progress: Progress = lambda _what, _share: None,
) -> RepairReport:
    """Bring the store of a stopped server to the newest version that other servers show.

    Args:
        config_path: server.toml.
        sources: HOST:PORT or HOST:PORT=FINGERPRINT of other servers; each object comes from the
            first that has it.
        card: of the collection; needed only where the server does not know its owner any more, or
            for the TLS keys of servers that are named without a fingerprint.
        progress: told what is being done.

    Raises:
        ParameterError: the settings, the card or an address cannot be used.
        StorageError: the server runs, is of nobody, or there is no room.
        ManifestStale: the others are behind what this store has seen.
        NotEnoughAnswers: none of them has a version, or an object; what was fetched stays.
    """
    if not sources:
        raise ParameterError("no server to repair from", cure="name one with --from HOST:PORT")
    config = load_config(config_path)
    named = read_claim(config.folder) if card is None else read_card(card)
    with ExitStack() as stack:
        peers = []
        pins = {} if card is None else read_pins(card)
        for source in sources:
            at = PeerAddress.parse(source, pins)
            peers.append(Peer(at, SystemRandom(), own=config.tls))
            stack.callback(peers[-1].close)
        stack.callback(StoreLock(config.data).close)
        room = open_room(config)
        _finish_exchange(config.data)
        progress("proving what is here", 0.0)
        findings = scrub(config.data, named, config_path)
        claim = _claim(named, findings)
        known = _known(findings, claim)
        wanted = _newest(peers, claim, known, is_whole=not findings.damages)
        # From here on the store changes.
        if findings.damages:
            _set_aside(config.data, findings, known, room)
        store = ObjectStore(config.data, config.max_store_bytes, room=room)
        stack.callback(store.close)
        if store.read_state(CLAIM_STATE) != claim.encode():
            store.write_state(CLAIM_STATE, claim.encode())
        write_claim(config.folder, claim)
        _drop_unreadable_share(config, store)
        engine = make_engine("numpy")
        server = SearchServer(config.id, store, claim.owner_key, engine, claim.collection)
        copying = Copying(server, peers, wanted, progress=progress)
        copying.run()
        access = wanted.manifest.access
        is_shared = access is not None and bool(access.verification)
        return RepairReport(
            server.version,
            len(findings.damages),
            copying.n_fetched,
            copying.n_bytes,
            lacks_share=is_shared and store.read_state(SHARE_STATE) is None,
        )


def _drop_unreadable_share(config: ServerConfig, store: ObjectStore) -> None:
    """Give up a share of the authority that does not open: with it no server would start."""
    seed = ServerIdentity(config.folder, store).seed
    try:
        ShareKeeper(config.id, seed, store, Challenges(SystemRandom()), SystemRandom())
    except StorageError:
        store.write_states({SHARE_STATE: None})


def _claim(named: Claim | None, findings: Findings) -> Claim:
    """Return whose server this is."""
    if named is not None:
        return named
    if not findings.claim:
        raise StorageError(
            "this server does not know its owner: neither its store nor its folder has the claim",
            cure="name the collection's card with --card (mksearch owner card writes one)",
        )
    return Claim.decode(findings.claim)


def _known(findings: Findings, claim: Claim) -> SignedManifest | None:
    """Return the highest version that this store has seen."""
    if not findings.manifest:
        return None
    try:
        return SignedManifest.decode(findings.manifest, claim.owner_key, claim.collection)
    except VerificationError:
        return None


def _newest(
    peers: Sequence[Peer], claim: Claim, known: SignedManifest | None, *, is_whole: bool
) -> SignedManifest:
    """Return the highest version that a peer shows, or the known one of a store that is whole."""
    newest, reasons = newest_shown(peers, claim)
    if newest is None:
        raise NotEnoughAnswers(
            f"no server showed a version: {'; '.join(reasons)}",
            have=0,
            need=1,
            cure="start another server of the collection, or name one with --from",
        )
    if known is not None:
        if is_whole and newest.manifest.version < known.manifest.version:
            return known
        newest.require_not_older(known)
    return newest


def _set_aside(
    data: Path, findings: Findings, known: SignedManifest | None, room: Room | None
) -> None:
    """Keep what is good; remember the version and serve none until it is whole."""
    is_broken = any(
        damage.kind == SMALL or (damage.kind != "segment" and not damage.is_missing)
        for damage in findings.damages
    )
    if is_broken and (data / DATABASE).exists():
        _rebuild_small(data, known)
    store = ObjectStore(data, room=room)
    try:
        store.write_states(_states(known))
        for damage in findings.damages:
            if damage.kind == "segment":
                store.drop_segment(damage.name)
            elif damage.kind == "object":
                store.erase([bytes.fromhex(damage.name)])
    finally:
        store.close()


def _states(known: SignedManifest | None) -> dict[str, bytes | None]:
    return {ACTIVE_STATE: None, HIGHEST_STATE: None if known is None else known.encode()}


def _rebuild_small(data: Path, known: SignedManifest | None) -> None:
    """Put a new LMDB in the place of the damaged one, with all that proves itself."""
    copy_good(data, data / _REBUILT)
    store = ObjectStore(data / _REBUILT)
    try:
        store.write_states(_states(known))
    finally:
        store.close()
    (data / SIZE_NAME).unlink(missing_ok=True)
    os.rename(data / DATABASE, data / _ASIDE)
    sync_folder(data)
    _finish_exchange(data)


def _finish_exchange(data: Path) -> None:
    """Bring an exchange of the small objects to its end, after an interruption as well."""
    try:
        if (data / _ASIDE).exists() and not (data / DATABASE).exists():
            os.rename(data / _REBUILT / DATABASE, data / DATABASE)
            sync_folder(data)
        for left in (data / _REBUILT, data / _ASIDE):
            if left.exists():
                shutil.rmtree(left)
    except OSError as error:
        raise StorageError(
            f"the store in {data} cannot be repaired ({error.strerror})",
            cure="make room or check the permissions of the server's folder",
        ) from None
