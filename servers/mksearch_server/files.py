"""Files that survive a loss of power: synced, renamed, and their folder synced."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["sync_folder", "write_durably"]


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


def write_durably(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace a file at once: nobody reads half of it, whenever the machine stops.

    Args:
        path: of the file.
        data: its content.
        mode: its permissions; for its owner alone unless it is public.

    Raises:
        OSError: it cannot be written; the file is as it was.
    """
    descriptor, partial = tempfile.mkstemp(prefix=".partial-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            os.unlink(partial)
        raise
