"""The store that the settings of a server describe: on this machine, or with a bucket."""

from __future__ import annotations

from mksearch_server.bucket_config import BucketConfig
from mksearch_server.config import ServerConfig
from mksearch_server.identity import server_public_key
from mksearch_server.preflight import require_secret
from mksearch_server.rooms import Room
from mksearch_server.store import ObjectStore

__all__ = ["open_room", "open_store", "require_credentials"]


def require_credentials(config: BucketConfig) -> None:
    """Require that there is something to open a bucket with, and that nobody else can read it.

    Raises:
        StorageError: there is not, or somebody can.
    """
    if config.credentials is not None:
        require_secret(config.credentials)
    config.require_credentials()


def open_room(config: ServerConfig, *, read_only: bool = False) -> Room | None:
    """Return the room of a server with a bucket; None where its objects are in its folder.

    Args:
        config: of the server.
        read_only: look only; else it is this server's from now on.

    Raises:
        StorageError: the bucket refuses, it is another server's, or the cache cannot be used.
        ParameterError: ``[s3]`` needs a library that is not installed.
    """
    if config.s3 is None:
        return None
    require_credentials(config.s3)
    from mksearch_server.bucket_room import BucketRoom

    return BucketRoom(config.s3, None if read_only else server_public_key(config.folder))


def open_store(config: ServerConfig, *, read_only: bool = False) -> ObjectStore:
    """Open the store of a server.

    Args:
        config: of the server.
        read_only: look at a store that another process may be using.

    Raises:
        StorageError: it cannot be opened.
        ParameterError: ``[s3]`` needs a library that is not installed.
    """
    room = open_room(config, read_only=read_only)
    return ObjectStore(config.data, config.max_store_bytes, read_only=read_only, room=room)
