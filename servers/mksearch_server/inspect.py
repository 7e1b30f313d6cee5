"""Look at a server's store from outside: what it holds, and whether every byte is right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mksearch.errors import StorageError, VerificationError
from mksearch.scoring.engine import make_engine
from mksearch_server.config import ServerConfig, load_config
from mksearch_server.identity import ServerIdentity, read_claim
from mksearch_server.scrub import Findings, scrub
from mksearch_server.search_server import SearchServer
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
    store = ObjectStore(config.data, read_only=True)
    return config, store, ServerIdentity(config.folder, store)


def _open_server(
    config: ServerConfig, store: ObjectStore, identity: ServerIdentity
) -> SearchServer:
    claim = identity.claim
    if claim is None:
        raise StorageError("this server was not claimed", cure="run mksearch owner init")
    engine = make_engine(config.engine)
    return SearchServer(config.id, store, claim.owner_key, engine, claim.collection)


def describe(config_path: Path) -> dict[str, Any]:
    """Return what the server of a ``server.toml`` holds.

    Raises:
        MksearchError: the settings, the identity or the active version cannot be read.
    """
    config, store, identity = _open(config_path)
    claim = identity.claim
    version = expires_at = renewed_until = 0
    if claim is not None:
        with _curing():
            server = _open_server(config, store, identity)
        version, active = server.version, server.active
        expires_at = 0 if active is None else active.expires_at
        renewed_until = server.expires_at if server.renewal() else 0
    return {
        "id": config.id,
        "listen": config.listen,
        "server_key": identity.signer.public.hex(),
        "claimed": claim is not None,
        "collection": claim.collection.hex() if claim is not None else "",
        "version": version,
        "expires_at": expires_at,
        "renewed_until": renewed_until,
        "store_bytes": store.n_bytes(),
    }


def verify_store(config_path: Path) -> Findings:
    """Read and prove every stored object; a server may be using the store.

    Raises:
        MksearchError: the settings cannot be read, or there is no store or version to prove.
    """
    config = load_config(config_path)
    _require_store(config)
    findings = scrub(config.data, read_claim(config.folder))
    if not findings.damages and not findings.claim:
        raise StorageError("this server was not claimed", cure="run mksearch owner init")
    if not findings.damages and not findings.version:
        raise StorageError(
            "nothing is served from this store",
            cure=f"the owner publishes first; after a repair that was interrupted, {REPAIR_CURE}",
        )
    return findings
