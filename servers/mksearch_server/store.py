"""Immutable objects in a folder, named by their hash, mapped into memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mksearch.errors import StorageError

__all__ = ["ObjectStore"]


class ObjectStore:
    """Files of one folder; an object is there whole or not at all."""

    def __init__(self, folder: Path) -> None:
        """Use ``folder``, made if it does not exist."""
        self._objects = folder / "objects"
        self._objects.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        for leftover in self._objects.glob(".partial-*"):
            leftover.unlink()

    def path(self, name: bytes) -> Path:
        """Return where the object ``name`` (32 bytes) lies."""
        return self._objects / name.hex()

    def has(self, name: bytes) -> bool:
        """Return whether the object is stored whole."""
        return self.path(name).exists()

    def write(
        self,
        name: bytes,
        size: int,
        chunks: Iterable[bytes],
        verify: Callable[[Path], None],
    ) -> None:
        """Store an object that ``verify(path)`` accepts; it appears at once and whole.

        Durable after ``sync``.

        Args:
            name: 32 bytes.
            size: bytes announced; more is refused before it is written.
            chunks: the object in pieces.
            verify: called with the path of the written bytes; raises when they are not the object.

        Raises:
            StorageError: another size, or no room.
        """
        descriptor, partial = tempfile.mkstemp(prefix=".partial-", dir=self._objects)
        try:
            with os.fdopen(descriptor, "wb") as file:
                n_written = 0
                for chunk in chunks:
                    n_written += len(chunk)
                    if n_written > size:
                        break
                    file.write(chunk)
            if n_written != size:
                raise StorageError(f"an object of {n_written} bytes came (announced {size})")
            verify(Path(partial))
            os.replace(partial, self.path(name))
        except OSError as error:
            raise StorageError(
                f"an object of {size} bytes cannot be stored: {error.strerror}",
                cure="make room on the server's disk and publish again",
            ) from None
        finally:
            if os.path.exists(partial):
                os.unlink(partial)

    def sync(self) -> None:
        """Make everything written so far durable, before a version that needs it is activated."""
        os.sync()

    def map(self, name: bytes) -> NDArray[np.uint8]:
        """Return the bytes of an object as a read-only mapped array: uint8 (size,).

        Raises:
            StorageError: there is no such object.
        """
        try:
            return np.memmap(self.path(name), np.uint8, "r")
        except (OSError, ValueError):
            raise StorageError(f"object {name.hex()[:16]} is not stored here") from None

    def read(self, name: bytes, offset: int, n_bytes: int) -> bytes:
        """Return up to ``n_bytes`` bytes of an object from ``offset``.

        Raises:
            StorageError: there is no such object.
        """
        try:
            with self.path(name).open("rb") as file:
                file.seek(offset)
                return file.read(n_bytes)
        except OSError:
            raise StorageError(f"object {name.hex()[:16]} is not stored here") from None

    def write_state(self, name: str, data: bytes) -> None:
        """Replace a small state file at once and durably."""
        descriptor, partial = tempfile.mkstemp(prefix=".state-", dir=self._folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, self._folder / name)
        _sync_folder(self._folder)

    def read_state(self, name: str) -> bytes | None:
        """Return a small state file, or None."""
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
