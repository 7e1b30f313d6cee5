"""Keys that can be forgotten: what the store holds under one is gone once the key is overwritten.

LMDB leaves old pages in its file for a long time.  So what must not be found there later is sealed
under a key in this small file, which is overwritten in place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.errors import StorageError
from mksearch.params import KEY_BYTES
from mksearch_server.files import sync_folder

__all__ = ["ErasableKeys"]

_ID_BYTES = 16
_SLOT_BYTES = _ID_BYTES + KEY_BYTES
_N_SLOTS = 2


class ErasableKeys:
    """A key in use, and room for the one that follows it."""

    def __init__(self, path: Path, random: RandomSource) -> None:
        self._path = path
        self._random = random

    def draw(self, in_use: bytes) -> tuple[bytes, SecretKey]:
        """Make a key, durably, beside the one in use.

        Args:
            in_use: id of the key that must stay, b"" for none.

        Returns:
            The new key's id, 16 bytes, and the key.

        Raises:
            StorageError: the file cannot be written.
        """
        name, key = self._random.bytes(_ID_BYTES), self._random.bytes(KEY_BYTES)
        with self._opened() as descriptor:
            slots = self._slots(descriptor)
            taken = next((i for i, slot in enumerate(slots) if slot.startswith(in_use)), 1)
            free = 0 if not in_use else 1 - taken
            self._write(descriptor, free, name + key)
            # The file may be new.
            sync_folder(self._path.parent)
        return name, SecretKey(key)

    def find(self, name: bytes) -> SecretKey:
        """Return the key of an id.

        Raises:
            StorageError: it is not here, or the file cannot be read.
        """
        with self._opened() as descriptor:
            for slot in self._slots(descriptor):
                if len(name) == _ID_BYTES and slot.startswith(name):
                    return SecretKey(slot[_ID_BYTES:])
        raise StorageError(f"{self._path} does not hold its key")

    def keep_only(self, name: bytes) -> None:
        """Overwrite every other key.

        Raises:
            StorageError: the file cannot be written.
        """
        with self._opened() as descriptor:
            for index, slot in enumerate(self._slots(descriptor)):
                if not slot.startswith(name):
                    self._write(descriptor, index, bytes(_SLOT_BYTES))

    @contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StorageError(f"{self._path} cannot be used ({error.strerror})") from None

    @staticmethod
    def _slots(descriptor: int) -> list[bytes]:
        data = os.pread(descriptor, _N_SLOTS * _SLOT_BYTES, 0).ljust(_N_SLOTS * _SLOT_BYTES, b"\0")
        return [data[i * _SLOT_BYTES : (i + 1) * _SLOT_BYTES] for i in range(_N_SLOTS)]

    @staticmethod
    def _write(descriptor: int, index: int, slot: bytes) -> None:
        """Overwrite one slot; the other is not touched, whatever happens."""
        os.pwrite(descriptor, slot, index * _SLOT_BYTES)
        os.fsync(descriptor)
