"""Many sealed blobs in one file: a file for each would cost more than sealing it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from mksearch.codec import ENVELOPE_BYTES, read_envelope, write_envelope
from mksearch.crypto.kdf import sha256
from mksearch.errors import FormatError, StorageError
from mksearch.index.manifest import ObjectRef

__all__ = ["BlobPack", "BlobPackWriter", "drop_pack", "write_durably"]

_MAGIC = b"MKBLPACK"
_FORMAT = 1
_PACK = "blobs"
_INDEX = "blobs.index"
_NAME_BYTES = 32
_ENTRY_BYTES = _NAME_BYTES + 8
_BUFFER_BYTES = 1 << 20


def write_durably(path: Path, data: bytes | bytearray) -> None:
    """Write a file that survives a loss of power once its folder is synced as well.

    Raises:
        OSError: it cannot be written.
    """
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def drop_pack(folder: Path) -> None:
    """Remove the pack in ``folder``, if there is one."""
    for name in (_INDEX, _PACK):
        (folder / name).unlink(missing_ok=True)


class BlobPackWriter:
    """Writes the pack of a publication; without `finish` there is none."""

    def __init__(self, folder: Path) -> None:
        """Start anew in ``folder``.

        Raises:
            OSError: it cannot be written.
        """
        self._folder = folder
        drop_pack(folder)
        self._file: BinaryIO = (folder / _PACK).open("wb", buffering=_BUFFER_BYTES)
        self._index = bytearray()

    def add(self, data: bytes) -> ObjectRef:
        """Append one blob; return its name and size."""
        reference = ObjectRef(sha256(data), len(data))
        self._file.write(data)
        self._index += reference.id + reference.size.to_bytes(8, "big")
        return reference

    def finish(self) -> None:
        """Make the pack complete.

        Raises:
            OSError: there is no room.
        """
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        write_durably(self._folder / _INDEX, write_envelope(_MAGIC, _FORMAT) + self._index)

    def close(self) -> None:
        """Let go of the file."""
        # What is still buffered may have no room; without an index nobody reads it.
        with suppress(OSError):
            self._file.close()


class BlobPack:
    """Reads the pack of a publication."""

    def __init__(self, folder: Path) -> None:
        """Open the pack in ``folder``; a publication without blobs has none.

        Raises:
            StorageError: the pack is damaged or cannot be read.
        """
        self._path = folder / _PACK
        self._places: dict[bytes, tuple[int, int]] = {}
        try:
            index = (folder / _INDEX).read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"{folder / _INDEX} cannot be read: {error.strerror}") from None
        try:
            read_envelope(index, _MAGIC, _FORMAT, "an index of blobs")
        except FormatError as error:
            raise StorageError(f"{folder / _INDEX}: {error}") from None
        offset = 0
        for at in range(ENVELOPE_BYTES, len(index) - _ENTRY_BYTES + 1, _ENTRY_BYTES):
            size = int.from_bytes(index[at + _NAME_BYTES : at + _ENTRY_BYTES], "big")
            self._places[index[at : at + _NAME_BYTES]] = offset, size
            offset += size

    @property
    def n_bytes(self) -> int:
        """Bytes of all blobs."""
        return sum(size for _, size in self._places.values())

    def names(self) -> Collection[bytes]:
        """Return the names of all blobs."""
        return self._places.keys()

    def __contains__(self, name: bytes) -> bool:
        """Return whether the pack holds the blob ``name`` (32 bytes)."""
        return name in self._places

    def chunks(self, name: bytes, chunk_bytes: int) -> Iterator[bytes]:
        """Yield the bytes of a blob, ``chunk_bytes`` at a time.

        Raises:
            StorageError: the pack cannot be read, or lost its end.
        """
        offset, left = self._places[name]
        try:
            with self._path.open("rb") as file:
                file.seek(offset)
                while left:
                    chunk = file.read(min(chunk_bytes, left))
                    if not chunk:
                        raise StorageError(f"{self._path} lost its end")
                    left -= len(chunk)
                    yield chunk
        except OSError as error:
            raise StorageError(f"{self._path} cannot be read: {error.strerror}") from None
