"""Files that survive a loss of power: synced, renamed, and their folder synced."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from mksearch.errors import StorageError

__all__ = ["lock_store", "sync_folder", "write_durably"]


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` survive a loss of power.

    Raises:
        OSError: it cannot be opened or synced.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file at once, readable by its owner alone.

    Raises:
        OSError: it cannot be written; the file is as it was.
    """
    descriptor, partial = tempfile.mkstemp(prefix=".partial-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            os.unlink(partial)
        raise


def lock_store(data: Path) -> int:
    """Keep a second process out of the store as long as this one lives.

    Returns:
        The descriptor that holds the lock: closing it lets go of the store.

    Raises:
        StorageError: one is in it, or the folder cannot be made.
    """
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(data / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    except BlockingIOError:
        raise StorageError(
            f"another server uses the store in {data}", cure="stop it, or name another folder"
        ) from None
    except OSError as error:
        raise StorageError(
            f"the store in {data} cannot be opened ({error.strerror})",
            cure="check its permissions, or name another folder as data in server.toml",
        ) from None
