"""Rooms that objects lie in: the disk of this machine, or what looks the same from a store."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from io import BufferedRandom
from pathlib import Path
from typing import Protocol

from mksearch.errors import StorageError
from mksearch_server.database import OBJECTS, Database
from mksearch_server.files import sync_folder

__all__ = ["NAME_BYTES", "SEGMENTS", "LocalRoom", "ObjectFolder", "Room", "no_room", "require_name"]

#: Folder of the files that hold segments.
SEGMENTS = "segments"
NAME_BYTES = 32
_PARTIAL = ".partial-"
#: Room that is left on the disk for state and logs.
RESERVE_BYTES = 1 << 26
_CURE = "make room on the server's disk and publish again; what was stored stays"


class Room(Protocol):
    """Where the objects of a store lie: immutable, by name, each whole or not at all.

    Names have 32 bytes.  Segments are files that are mapped; everything else is small.  Whatever a
    room was given it has proved to it, and what it fetches from elsewhere it proves.  Any method
    may raise StorageError where disk or network refuse.
    """

    def has(self, name: bytes) -> bool:
        """Return whether the object is here, as far as is known without looking anew."""

    def lacking(self, names: Iterable[bytes]) -> list[bytes]:
        """Return the names that are not here, in their order, after looking."""

    def require_room(self, size: int) -> None:
        """Raise StorageError unless small objects of ``size`` bytes fit."""

    def begin_segment(self, size: int) -> BufferedRandom:
        """Return a new file for a segment of ``size`` bytes; raise OSError without room."""

    def keep_segment(self, name: bytes, partial: Path) -> None:
        """Keep what is in a file that `begin_segment` made; raise OSError without room."""

    def keep(self, objects: Mapping[bytes, bytes]) -> None:
        """Keep small objects; `sync` makes them survive a loss of power."""

    def sync(self) -> None:
        """Make everything that was kept survive a loss of power."""

    def segment(self, name: bytes) -> Path | None:
        """Return a file of this machine with the segment, None where there is no such segment."""

    def read(self, name: bytes, start: int, stop: int) -> bytes | None:
        """Return the bytes ``start`` to ``stop`` of an object, None where there is none."""

    def erase(self, names: Iterable[bytes]) -> None:
        """Remove objects; names of none are passed over."""

    def drop_segment(self, name: str) -> None:
        """Remove what holds a segment no more, by the name of its file."""

    def hold(self, names: AbstractSet[bytes]) -> None:
        """Keep these segments, and no others, at hand: they are served."""

    def n_bytes(self) -> int:
        """Return the bytes that all objects take."""

    def n_free_bytes(self) -> int:
        """Return the bytes that may still come; the limit of the store is another matter."""

    def segments(self) -> Iterator[tuple[str, Path]]:
        """Yield every copy of a segment, by name, in a file that stays until the next one."""

    def small_objects(self) -> Iterator[tuple[bytes, memoryview]]:
        """Yield every copy of a small object, not proved, good until the next one."""


def require_name(name: bytes) -> bytes:
    """Return a name of an object; raise StorageError for one of another length."""
    if len(name) != NAME_BYTES:
        raise StorageError(f"a name has {len(name)} bytes (need {NAME_BYTES})")
    return name


def no_room(error: OSError, size: int) -> StorageError:
    """Return what is said of an object for which the disk has no room."""
    why = f"an object of {size} bytes cannot be stored: {error.strerror}"
    return StorageError(why, cure=_CURE)


class ObjectFolder:
    """Files of this machine, each named by the object that it holds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self, *, keep_partial: bool = False) -> None:
        """Make the folder, and drop what was not finished in it; raise OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if keep_partial:
            return
        for leftover in self.folder.glob(f"{_PARTIAL}*"):
            leftover.unlink(missing_ok=True)

    def path(self, name: bytes) -> Path:
        """Return where an object lies; raise StorageError for a name of another length."""
        return self.folder / require_name(name).hex()

    def files(self) -> Iterator[tuple[str, Path]]:
        """Yield name and path of every file, sorted."""
        for path in sorted(self.folder.glob("*")):
            if not path.name.startswith("."):
                yield path.name, path

    def begin(self) -> BufferedRandom:
        """Return a new file that is no object yet; raise OSError."""
        descriptor, partial = tempfile.mkstemp(prefix=_PARTIAL, dir=self.folder)
        os.close(descriptor)
        return Path(partial).open("r+b")

    def take(self, name: bytes, partial: Path) -> Path:
        """Make an object of a file that `begin` returned; raise OSError."""
        path = self.path(name)
        os.replace(partial, path)
        sync_folder(self.folder)
        return path

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; what is mapped stays readable for who has it.  Raises OSError."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)
        sync_folder(self.folder)

    def n_bytes(self) -> int:
        """Return the bytes of all files."""
        n_bytes = 0
        for path in self.folder.iterdir():
            # What was not finished may go meanwhile.
            with suppress(FileNotFoundError):
                n_bytes += path.stat().st_size
        return n_bytes

    def n_free_bytes(self) -> int:
        """Return the bytes of the disk that may still be taken."""
        usage = os.statvfs(self.folder)
        return usage.f_bavail * usage.f_frsize - RESERVE_BYTES


class LocalRoom:
    """The disk of this machine: segments as raw files, everything small in LMDB."""

    def __init__(self, folder: Path, database: Database, *, read_only: bool) -> None:
        """Use ``folder``; raise OSError where it cannot be used."""
        self._files = ObjectFolder(folder / SEGMENTS)
        self._database = database
        if not read_only:
            self._files.make()

    def has(self, name: bytes) -> bool:
        """Return whether the object is here."""
        return self._files.path(name).exists() or not self._database.absent(OBJECTS, iter([name]))

    def lacking(self, names: Iterable[bytes]) -> list[bytes]:
        """Return the names that are not here, in their order."""
        files = {name for name, _ in self._files.files()}
        return self._database.absent(OBJECTS, (n for n in names if n.hex() not in files))

    def require_room(self, size: int) -> None:
        """Raise StorageError unless ``size`` bytes fit on the disk."""
        if size > self.n_free_bytes():
            raise no_room(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), size)

    def begin_segment(self, size: int) -> BufferedRandom:
        """Return a new file for a segment; raise OSError or StorageError without room."""
        self.require_room(size)
        return self._files.begin()

    def keep_segment(self, name: bytes, partial: Path) -> None:
        """Keep a segment's file; raise OSError."""
        self._files.take(name, partial)

    def keep(self, objects: Mapping[bytes, bytes]) -> None:
        """Commit small objects, all or none."""
        failing = f"{len(objects)} objects cannot be stored"
        self._database.write(OBJECTS, dict(objects), failing, _CURE)

    def sync(self) -> None:
        """Have LMDB keep its last commit."""
        self._database.sync()

    def segment(self, name: bytes) -> Path | None:
        """Return where a segment lies."""
        path = self._files.path(name)
        return path if path.exists() else None

    def read(self, name: bytes, start: int, stop: int) -> bytes | None:
        """Return a piece of an object."""
        path = self._files.path(name)
        if path.exists():
            with path.open("rb") as file:
                # Not every number is an offset that a file takes.
                file.seek(min(start, os.fstat(file.fileno()).st_size))
                return file.read(stop - start)
        return self._database.read(OBJECTS, name, start, stop)

    def erase(self, names: Iterable[bytes]) -> None:
        """Remove objects.

        Room in the file of small objects is used again, and what was in it overwritten then.
        """
        gone = sorted(names)
        failing = "objects cannot be erased"
        self._database.write(OBJECTS, dict.fromkeys(gone), failing)
        try:
            self._files.remove(self._files.path(name).name for name in gone)
        except OSError as error:
            raise StorageError(f"{failing}: {error}") from None

    def drop_segment(self, name: str) -> None:
        """Remove a file."""
        try:
            self._files.remove([name])
        except OSError as error:
            raise StorageError(
                f"segment {name[:16]} cannot be removed ({error.strerror})"
            ) from None

    def hold(self, names: AbstractSet[bytes]) -> None:
        """Do nothing: everything is at hand."""

    def n_bytes(self) -> int:
        """Return the bytes of segments and of the file of small objects."""
        return self._files.n_bytes() + self._database.n_bytes

    def n_free_bytes(self) -> int:
        """Return the bytes of the disk that may still be taken."""
        return self._files.n_free_bytes()

    def segments(self) -> Iterator[tuple[str, Path]]:
        """Yield the files of segments."""
        return self._files.files()

    def small_objects(self) -> Iterator[tuple[bytes, memoryview]]:
        """Yield what LMDB has."""
        return self._database.items(OBJECTS)
