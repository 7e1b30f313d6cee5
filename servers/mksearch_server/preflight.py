"""What must hold before a server serves: each is refused in one line that names the cause."""

from __future__ import annotations

import os
import stat
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from mksearch.errors import StorageError
from mksearch_server.config import ServerConfig
from mksearch_server.gpu import Gpu
from mksearch_server.identity import SERVER_KEY_NAME, ServerIdentity
from mksearch_server.store import ObjectStore

__all__ = ["require_clock", "require_gpu", "require_own_store", "require_private", "require_secret"]

#: Environment: 1 where a server must not start without a GPU.
GPU_WISH: Final = "MKSEARCH_REQUIRE_GPU"
#: State of a store: public key of the server that it belongs to.
SERVER_STATE: Final = "server"
#: Seconds that clocks may differ.
_CLOCK_S: Final = 120


def require_private(config: ServerConfig) -> None:
    """Require that nobody else on the machine can read a server's keys.

    A file of this user is for this user alone.  One that a platform has put there for another user,
    such as root, may be read by its group.

    Raises:
        StorageError: a key can be read or written by others, or not by this user.
    """
    require_secret(config.folder / SERVER_KEY_NAME)
    if config.tls is not None:
        require_secret(config.tls.key)


def require_secret(path: Path) -> None:
    """Require that nobody else on the machine can read or change a file.

    Raises:
        StorageError: somebody can, or this user cannot read it.
    """
    try:
        found = path.stat()
        readable = os.access(path, os.R_OK)
    except FileNotFoundError:
        # Named by what reads it.
        return
    except OSError as error:
        raise StorageError(
            f"the secret {path} cannot be read ({error.strerror})",
            cure="mount the folder that mksearch-server init made, or restore the file",
        ) from None
    mode = stat.S_IMODE(found.st_mode)
    if not readable:
        raise StorageError(
            f"the secret {path} cannot be read by user {os.geteuid()}: it is of user "
            f"{found.st_uid}, mode {mode:04o}",
            cure=f"chown {os.geteuid()} and chmod 600 it",
        )
    if mode & (0o077 if found.st_uid == os.geteuid() else 0o027):
        raise StorageError(
            f"the secret {path} can be read or changed by others (mode {mode:04o})",
            cure="chmod 600 it, and think about who may have read it",
        )


def require_own_store(store: ObjectStore, identity: ServerIdentity) -> None:
    """Require that a store is this server's; from now on it is.

    Raises:
        StorageError: it is another server's, or cannot be written.
    """
    own = identity.signer.public
    found = store.read_state(SERVER_STATE)
    if found is None:
        store.write_state(SERVER_STATE, own)
    elif found != own:
        raise StorageError(
            f"the store in {store.folder} is of the server with the key {found.hex()[:16]}, not of "
            f"this one with {own.hex()[:16]}",
            cure="mount this server's own volume; to begin anew, give it an empty one and run "
            "mksearch-server repair --from HOST:PORT",
        )


def require_clock(begins_s: float) -> None:
    """Require that this machine's clock is not before a certificate begins.

    Args:
        begins_s: from when on the certificate is good, Unix seconds.

    Raises:
        StorageError: it is, by more than clocks may differ.
    """
    now_s = time.time()
    if now_s < begins_s - _CLOCK_S:
        now, begins = (datetime.fromtimestamp(at, UTC) for at in (now_s, begins_s))
        raise StorageError(
            f"the clock of this machine says {now:%Y-%m-%d %H:%M} UTC, before the server's "
            f"certificate begins ({begins:%Y-%m-%d %H:%M} UTC)",
            cure="set the clock; if it was ahead when the certificate was made, "
            "mksearch-server renew-certificate",
        )


def require_gpu() -> None:
    """Require a GPU where ``MKSEARCH_REQUIRE_GPU=1`` asks for one.

    Raises:
        StorageError: none can be used here.
    """
    if os.environ.get(GPU_WISH) == "1" and Gpu.find() is None:
        raise StorageError(
            f"{GPU_WISH}=1 asks for a GPU, and none can be used here",
            cure="give the container one (--device nvidia.com/gpu=0, or --gpus device=0), or take "
            "the image without CUDA",
        )
