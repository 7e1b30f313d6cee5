"""Look at a server's store from outside: what it holds, and whether every byte is right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mksearch.errors import StorageError, VerificationError
from mksearch.scoring.reference import NumpyEngine
from mksearch_server.admin import read_samples
from mksearch_server.config import ServerConfig, load_config
from mksearch_server.engines import read_engine_note
from mksearch_server.facts import facts_of
from mksearch_server.identity import ServerIdentity, read_claim
from mksearch_server.running import find_running
from mksearch_server.scrub import Findings, scrub
from mksearch_server.search_server import SearchServer
from mksearch_server.storage import open_room, open_store
from mksearch_server.store import REPAIR_CURE, ObjectStore

__all__ = ["describe", "verify_store"]


@contextmanager
def _curing() -> Iterator[None]:
    """Say what to do about damage that was found deep in the store."""
    try:
        yield
    except (StorageError, VerificationError) as error:
        error.cure = error.cure or REPAIR_CURE
        raise


def _require_store(config: ServerConfig) -> None:
    if not config.data.exists():
        raise StorageError(
            f"{config.data} holds no store", cure="serve once, and let it be claimed"
        )


def _open(config_path: Path) -> tuple[ServerConfig, ObjectStore, ServerIdentity]:
    config = load_config(config_path)
    _require_store(config)
    store = open_store(config, read_only=True)
    return config, store, ServerIdentity(config.folder, store)


def _open_server(
    config: ServerConfig, store: ObjectStore, identity: ServerIdentity
) -> SearchServer:
    claim = identity.claim
    if claim is None:
        raise StorageError("this server was not claimed", cure="run mksearch owner init")
    # Nothing is scored here, so no GPU is touched.
    return SearchServer(config.id, store, claim.owner_key, NumpyEngine(), claim.collection)


def describe(config_path: Path) -> dict[str, Any]:
    """Return what the server of a ``server.toml`` holds; of one that runs, its metrics as well.

    Those are under "metrics", by name and labels, and need ``admin_listen``; shares of the
    authority are read by the running server alone.

    Raises:
        MksearchError: the settings, the identity or the active version cannot be read.
    """
    config, store, identity = _open(config_path)
    claim = identity.claim
    search = None
    if claim is not None:
        with _curing():
            search = _open_server(config, store, identity)
    active = None if search is None else search.active
    facts = facts_of(config, store, NumpyEngine(), search)
    note = read_engine_note(config)
    running = find_running(config.data)
    admin = "" if running is None else running.admin
    return {
        "id": config.id,
        "listen": config.listen,
        "server_key": identity.signer.public.hex(),
        "collection": claim.collection.hex() if claim is not None else "",
        "expires_at": 0 if active is None else active.expires_at,
        "renewed_until": 0 if search is None or not search.renewal() else search.expires_at,
        "release": facts.release,
        "engine": facts.engine,
        "device": str(note.get("device", "")),
        **{name: _plain(value) for name, (_, value) in facts.numbers().items()},
        "claimed": facts.is_claimed,
        "running": running is not None,
        "pid": None if running is None else running.pid,
        "admin": admin,
        "metrics": _samples(admin),
    }


def _samples(admin: str) -> dict[str, float]:
    """Return what a server says of itself; nothing where it does not answer."""
    with suppress(StorageError):
        return read_samples(admin) if admin else {}
    return {}


def _plain(value: float | None) -> float | None:
    """Return a number as people read it: whole seconds and bytes."""
    return None if value is None else int(value)


def verify_store(config_path: Path) -> Findings:
    """Read and prove every stored object; a server may be using the store.

    Raises:
        MksearchError: the settings cannot be read, or there is no store or version to prove.
    """
    config = load_config(config_path)
    _require_store(config)
    room = open_room(config, read_only=True)
    if room is not None:
        # What keeps it from being read is no damage.
        room.n_bytes()
    findings = scrub(config.data, read_claim(config.folder), config_path)
    if not findings.damages and not findings.claim:
        raise StorageError("this server was not claimed", cure="run mksearch owner init")
    if not findings.damages and not findings.version:
        raise StorageError(
            "nothing is served from this store",
            cure=f"the owner publishes first; after a repair that was interrupted, {REPAIR_CURE}",
        )
    return findings
