"""Look at a server's store from outside: what it holds, and whether every byte is right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mksearch.errors import StorageError, VerificationError
from mksearch.scoring.reference import NumpyEngine
from mksearch_server.config import ServerConfig, load_config
from mksearch_server.engines import read_engine_note
from mksearch_server.identity import ServerIdentity
from mksearch_server.search_server import SearchServer
from mksearch_server.store import ObjectStore

__all__ = ["describe", "verify_store"]


@contextmanager
def _curing() -> Iterator[None]:
    """Say what to do about damage that was found deep in the store."""
    try:
        yield
    except (StorageError, VerificationError) as error:
        error.cure = error.cure or "restore data/ from another server of the collection"
        raise


def _open(config_path: Path) -> tuple[ServerConfig, ObjectStore, ServerIdentity]:
    config = load_config(config_path)
    if not config.data.exists():
        raise StorageError(
            f"{config.data} holds no store", cure="serve once, and let it be claimed"
        )
    store = ObjectStore(config.data, read_only=True)
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
    """Return what the server of a ``server.toml`` holds.

    Raises:
        MksearchError: the settings, the identity or the active version cannot be read.
    """
    config, store, identity = _open(config_path)
    claim = identity.claim
    version = 0
    if claim is not None:
        with _curing():
            version = _open_server(config, store, identity).version
    note = read_engine_note(config)
    return {
        "id": config.id,
        "listen": config.listen,
        "server_key": identity.signer.public.hex(),
        "claimed": claim is not None,
        "collection": claim.collection.hex() if claim is not None else "",
        "version": version,
        "store_bytes": store.n_bytes(),
        "engine": config.engine,
        "device": str(note.get("device", "")),
    }


def verify_store(config_path: Path) -> int:
    """Prove every stored byte of the active version; return the number of objects.

    Raises:
        MksearchError: something is damaged or missing.
    """
    with _curing():
        return _open_server(*_open(config_path)).verify_store()
