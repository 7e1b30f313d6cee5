"""Copies on this machine of objects that lie elsewhere: as many as fit."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Set as AbstractSet
from contextlib import suppress
from io import BufferedRandom
from pathlib import Path

from mksearch.errors import StorageError
from mksearch_server.rooms import ObjectFolder, no_room

__all__ = ["Cache"]


class Cache:
    """A folder of objects, bounded: what is held stays, of the rest the longest unused goes.

    May be used from any thread.
    """

    def __init__(
        self, folder: Path, kinds: tuple[str, ...], max_bytes: int, *, read_only: bool
    ) -> None:
        """Use ``folder``, made if it does not exist.

        Args:
            folder: of this server alone.
            kinds: of objects, a folder below for each.
            max_bytes: largest size of all of them.
            read_only: another process may be using it; nothing goes.

        Raises:
            OSError: it cannot be used.
        """
        self._folders = {kind: ObjectFolder(folder / kind) for kind in kinds}
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._read_only = read_only
        self._held: set[bytes] = set()
        #: Kind and size by name, the longest unused first.
        self._copies: dict[bytes, tuple[str, int]] = {}
        self._n_bytes = 0
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        found = []
        for kind, files in self._folders.items():
            files.make(keep_partial=read_only)
            for name, path in files.files():
                with suppress(FileNotFoundError):
                    status = path.stat()
                    found.append((status.st_mtime, bytes.fromhex(name), kind, status.st_size))
        for _, held, kind, size in sorted(found):
            self._add(kind, held, size)

    def find(self, kind: str, name: bytes) -> Path | None:
        """Return the copy of an object, None where there is none."""
        path = self._folders[kind].path(name)
        with self._lock:
            if name not in self._copies:
                return None
            if not path.exists():
                self._forget(name)
                return None
            # From now on it is the one used last.
            self._copies[name] = self._copies.pop(name)
        return path

    def begin(self, kind: str, size: int) -> BufferedRandom:
        """Return a new file for an object of ``size`` bytes, for which others may go.

        Raises:
            StorageError: too much is held, or no room on the disk.
            OSError: the disk refuses.
        """
        with self._lock:
            self._make_room(size)
        return self._folders[kind].begin()

    def _make_room(self, size: int) -> None:
        n_free = min(files.n_free_bytes() for files in self._folders.values())
        over = max(self._n_bytes + size - self._max_bytes, size - n_free)
        if over <= 0:
            return
        n_held = sum(self._copies[name][1] for name in self._held & self._copies.keys())
        if n_held + size > self._max_bytes:
            raise StorageError(
                f"the cache has no room for an object of {size} bytes: {n_held} of its "
                f"{self._max_bytes} bytes are in use",
                cure="its operator raises cache_bytes of [s3] in server.toml",
            )
        for name in [] if self._read_only else [n for n in self._copies if n not in self._held]:
            over -= self._remove(name)
            if over <= 0:
                return
        if size > n_free:
            raise no_room(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), size)

    def take(self, kind: str, name: bytes, partial: Path) -> Path:
        """Keep what is in a file that `begin` returned; return where it is.

        Raises:
            OSError: the disk refuses.
        """
        size = partial.stat().st_size
        path = self._folders[kind].take(name, partial)
        with self._lock:
            self._forget(name)
            self._add(kind, name, size)
        return path

    def hold(self, names: AbstractSet[bytes]) -> None:
        """Let these stay, and no others; others that come stay while there is room."""
        with self._lock:
            self._held = set(names)

    def hold_also(self, name: bytes) -> None:
        """Let this one stay as well."""
        with self._lock:
            self._held.add(name)

    def drop(self, name: bytes) -> None:
        """Remove a copy, if there is one; what is mapped stays readable for who has it.

        Raises:
            OSError: the disk refuses.
        """
        with self._lock:
            if name in self._copies:
                self._remove(name)

    def _add(self, kind: str, name: bytes, size: int) -> None:
        self._copies[name] = kind, size
        self._n_bytes += size

    def _forget(self, name: bytes) -> tuple[str, int]:
        copy = self._copies.pop(name, ("", 0))
        self._n_bytes -= copy[1]
        return copy

    def _remove(self, name: bytes) -> int:
        """Remove a copy; return its size."""
        kind, size = self._forget(name)
        self._folders[kind].remove([name.hex()])
        return size

    def files(self, kind: str) -> list[tuple[str, Path]]:
        """Return name and path of every copy of a kind."""
        return list(self._folders[kind].files())
