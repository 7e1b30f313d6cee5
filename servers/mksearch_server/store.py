"""What a server keeps: segments as raw files to be mapped, everything small in LMDB.

Objects are immutable and named by their hash.  An object is there whole or not at all; small ones
are committed many at a time, because each commit waits for the disk.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedRandom
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from numpy.typing import NDArray

from mksearch.errors import StorageError
from mksearch_server.files import sync_folder

__all__ = ["OBJECTS", "REPAIR_CURE", "SEGMENTS", "SIZE_NAME", "ObjectStore", "ObjectWriter"]

#: Address space that LMDB may map; the file grows as needed.
_MAP_BYTES = 1 << 40
#: Folder of the files that hold segments.
SEGMENTS = "segments"
#: Folder of LMDB, and the file with its size.
OBJECTS, SIZE_NAME = "objects", "objects.size"
#: Small objects held back before they are committed together.
_PENDING_BYTES = 1 << 23
#: An object announced larger than this is no small object.
SMALL_BYTES_MAX = 1 << 31
NAME_BYTES = 32
#: What to do about a damaged store.
REPAIR_CURE = "stop the server and run mksearch-server repair --from another server's HOST:PORT"
#: Room that is left on the disk for state and logs.
_RESERVE_BYTES = 1 << 26


class ObjectWriter:
    """One object on its way into a store."""

    def __init__(
        self, store: ObjectStore, name: bytes, size: int, file: BufferedRandom | None
    ) -> None:
        self._store = store
        self._name = name
        self._size = size
        self._file = file
        self._small = bytearray()
        self._n_written = 0

    def write(self, chunk: bytes) -> None:
        """Take the next bytes.

        Raises:
            StorageError: more than announced, or no room.
        """
        self._n_written += len(chunk)
        if self._n_written > self._size:
            raise StorageError(f"an object has more than the {self._size} bytes announced")
        if self._file is None:
            self._small += chunk
            return
        try:
            self._file.write(chunk)
        except OSError as error:
            raise _no_room(error, self._size) from None

    def finish(self, verify: Callable[[NDArray[np.uint8]], None]) -> None:
        """Store the object if ``verify`` accepts its bytes (uint8, whole).

        Raises:
            StorageError: bytes are missing, or no room.
        """
        if self._n_written != self._size:
            raise StorageError(f"an object has {self._n_written} of {self._size} bytes announced")
        if self._file is None:
            verify(np.frombuffer(self._small, np.uint8))
            self._store.keep_small(self._name, bytes(self._small))
            return
        try:
            self._file.flush()
            verify(np.memmap(self._file.name, np.uint8, "r"))
            os.fsync(self._file.fileno())
            path = self._store.path(self._name)
            os.replace(self._file.name, path)
            sync_folder(path.parent)
        except OSError as error:
            raise _no_room(error, self._size) from None

    def close(self) -> None:
        """Drop what was not finished."""
        if self._file is not None:
            # What is still buffered may have no room, and nobody wants it any more.
            with suppress(OSError):
                self._file.raw.close()
            with suppress(OSError):
                Path(self._file.name).unlink(missing_ok=True)


def _no_room(error: OSError, size: int) -> StorageError:
    return StorageError(
        f"an object of {size} bytes cannot be stored: {error.strerror}",
        cure="make room on the server's disk and publish again; what was stored stays",
    )


def _damaged(why: str) -> StorageError:
    return StorageError(
        f"the store is damaged ({why})",
        cure=REPAIR_CURE,
    )


def _stored_already(name: bytes) -> StorageError:
    # Anybody may announce the active version again, and must not fill the disk with it.
    return StorageError(f"object {name.hex()[:16]} is stored here already")


class ObjectStore:
    """The store of one server."""

    def __init__(
        self, folder: Path, max_bytes: int = _MAP_BYTES, *, read_only: bool = False
    ) -> None:
        """Use ``folder``, made if it does not exist.

        Args:
            folder: of this server alone.
            max_bytes: largest size of all files.
            read_only: look at a store that another process may be using.

        Raises:
            StorageError: it cannot be opened.
        """
        self.folder = folder
        self._segments = folder / SEGMENTS
        self._max_bytes = max_bytes
        try:
            if not read_only:
                self._segments.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o700)
                for leftover in self._segments.glob(".partial-*"):
                    leftover.unlink()
            if (folder / OBJECTS / "data.mdb").exists():
                self._require_size()
            self._small = lmdb.open(
                str(folder / OBJECTS),
                map_size=_MAP_BYTES,
                max_dbs=2,
                metasync=False,
                readonly=read_only,
                create=not read_only,
            )
            with self._closing_on_failure():
                self._open_databases(read_only=read_only)
        except (OSError, lmdb.Error) as error:
            raise StorageError(
                f"the store in {folder} cannot be opened: {error}",
                cure=f"check its permissions and room; if it is damaged, {REPAIR_CURE}",
            ) from None
        self._pending: dict[bytes, bytes] = {}
        self._n_pending_bytes = 0

    @contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._small.close()
            raise

    def _open_databases(self, *, read_only: bool) -> None:
        # A reader that crashed would keep pages from being used again.
        self._small.reader_check()
        self._objects = self._small.open_db(b"objects", create=not read_only)
        self._state = self._small.open_db(b"state", create=not read_only)
        if not read_only:
            for made in (self.folder / OBJECTS, self.folder, self.folder.parent):
                sync_folder(made)

    def close(self) -> None:
        """Commit what is pending and let go of the files."""
        self.flush()
        self._small.close()

    def _require_size(self) -> None:
        """Refuse a file of small objects that lost its end: LMDB would touch what is not there."""
        try:
            noted = int((self.folder / SIZE_NAME).read_text())
        except (OSError, ValueError):
            return
        size = (self.folder / OBJECTS / "data.mdb").stat().st_size
        if size < noted:
            raise _damaged(f"its small objects have {size} of {noted} bytes")

    def _note_size(self) -> None:
        """Remember the size of the file of small objects, which never shrinks."""
        partial = self.folder / f".{SIZE_NAME}"
        # A smaller number than the right one only finds less; a full disk refuses nothing here.
        with suppress(OSError):
            size = (self.folder / OBJECTS / "data.mdb").stat().st_size
            partial.write_text(str(size))
            os.replace(partial, self.folder / SIZE_NAME)

    # --- objects ---

    def path(self, name: bytes) -> Path:
        """Return where the segment ``name`` (32 bytes) lies.

        Raises:
            StorageError: a name of another length.
        """
        if len(name) != NAME_BYTES:
            raise StorageError(f"a name has {len(name)} bytes (need {NAME_BYTES})")
        return self._segments / name.hex()

    def has(self, name: bytes) -> bool:
        """Return whether the object is stored whole."""
        if name in self._pending or self.path(name).exists():
            return True
        with self._reading(self._objects) as transaction:
            return transaction.get(name) is not None

    def lacking(self, names: Iterable[bytes]) -> list[bytes]:
        """Return the names that are not stored whole, in their order; many at once."""
        segments = {path.name for path in self._segments.iterdir()}
        with self._reading(self._objects) as transaction:
            return [
                name
                for name in names
                if name not in self._pending
                and name.hex() not in segments
                and transaction.get(name) is None
            ]

    @contextmanager
    def _reading(self, database: Any) -> Iterator[Any]:
        """Read from LMDB; what it cannot read is named."""
        try:
            with self._small.begin(database, buffers=True) as transaction:
                yield transaction
        except lmdb.Error as error:
            raise _damaged(f"{type(error).__name__}: {error}") from None

    def begin(self, name: bytes, size: int, *, is_segment: bool) -> ObjectWriter:
        """Start to store an object of ``size`` bytes.

        Args:
            name: 32 bytes.
            size: bytes announced.
            is_segment: a segment is a file of its own, everything else is small.

        Raises:
            StorageError: it would not fit.
        """
        if not is_segment and size > SMALL_BYTES_MAX:
            raise StorageError(f"an object of {size} bytes is too large")
        self._require_room(size)
        if not is_segment:
            return ObjectWriter(self, name, size, None)
        try:
            descriptor, partial = tempfile.mkstemp(prefix=".partial-", dir=self._segments)
            os.close(descriptor)
            return ObjectWriter(self, name, size, Path(partial).open("r+b"))
        except OSError as error:
            raise _no_room(error, size) from None

    def _require_room(self, size: int) -> None:
        if size > self.n_free_bytes() or self.n_bytes() + size > self._max_bytes:
            raise _no_room(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), size)

    def n_bytes(self) -> int:
        """Return the bytes that segments and small objects take."""
        segments = 0
        for path in self._segments.iterdir():
            # An upload that ended meanwhile takes its file away.
            with suppress(FileNotFoundError):
                segments += path.stat().st_size
        return (
            segments + self._n_pending_bytes + os.stat(self.folder / OBJECTS / "data.mdb").st_size
        )

    def n_free_bytes(self) -> int:
        """Return the bytes of the disk that objects may still take."""
        usage = os.statvfs(self.folder)
        return usage.f_bavail * usage.f_frsize - _RESERVE_BYTES

    def keep_small(self, name: bytes, data: bytes) -> None:
        """Keep a small object; it is committed with others."""
        self._pending[name] = data
        self._n_pending_bytes += len(data)
        if self._n_pending_bytes >= _PENDING_BYTES:
            self.flush()

    def keep_together(self, objects: Mapping[bytes, bytes]) -> None:
        """Keep small objects, committed with others.

        Args:
            objects: bytes by name, proved.

        Raises:
            StorageError: one is stored already, or no room.
        """
        self._require_room(sum(map(len, objects.values())))
        with self._reading(self._objects) as transaction:
            for name in objects:
                if name in self._pending or transaction.get(name) is not None:
                    raise _stored_already(name)
        for name, data in objects.items():
            self.keep_small(name, data)

    def erase(self, names: Iterable[bytes]) -> None:
        """Remove objects; names of none are passed over.

        What is mapped stays readable for who has it.  Room in the file of small objects is used
        again, and what was in it overwritten then.

        Raises:
            StorageError: the disk refuses.
        """
        self.flush()
        try:
            with self._small.begin(self._objects, write=True) as transaction:
                for name in sorted(names):
                    transaction.delete(name)
                    self.path(name).unlink(missing_ok=True)
            sync_folder(self._segments)
        except (OSError, lmdb.Error) as error:
            raise StorageError(f"objects cannot be erased: {error}") from None

    def flush(self) -> None:
        """Commit the small objects that were kept, durably.

        Raises:
            StorageError: no room; none of them is kept.
        """
        if not self._pending:
            return
        try:
            with self._small.begin(self._objects, write=True) as transaction:
                # LMDB appends sorted keys fastest.
                for name in sorted(self._pending):
                    transaction.put(name, self._pending[name])
        except lmdb.Error as error:
            raise StorageError(
                f"{len(self._pending)} objects cannot be stored: {error}",
                cure="make room on the server's disk and publish again; what was stored stays",
            ) from None
        finally:
            self._pending = {}
            self._n_pending_bytes = 0
        self._note_size()

    def commit(self) -> None:
        """Make everything that was kept survive a loss of power.

        Raises:
            StorageError: no room; what was not committed before is not kept.
        """
        self.flush()
        try:
            # Without it the last commit may be undone.
            self._small.sync(force=True)
        except lmdb.Error as error:
            raise StorageError(f"the store cannot be written: {error}") from None

    def map(self, name: bytes) -> NDArray[np.uint8]:
        """Return the bytes of a segment as a read-only mapped array: uint8 (size,).

        None of them is read yet, however many there are; ``warm`` does that.

        Raises:
            StorageError: there is no such segment.
        """
        try:
            with self.path(name).open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        except (OSError, ValueError):
            raise StorageError(f"segment {name.hex()[:16]} is not stored here") from None
        return np.frombuffer(mapped, np.uint8)

    def read(self, name: bytes, offset: int, n_bytes: int) -> bytes:
        """Return up to ``n_bytes`` bytes of an object from ``offset``.

        Raises:
            StorageError: there is no such object, or a number is negative.
        """
        if offset < 0 or n_bytes < 0:
            raise StorageError(f"{n_bytes} bytes from {offset} cannot be read")
        path = self.path(name)
        # Once: another thread may commit it meanwhile.
        pending = self._pending.get(name)
        if pending is not None:
            return pending[offset : offset + n_bytes]
        if path.exists():
            with path.open("rb") as file:
                # Not every number is an offset that a file takes.
                file.seek(min(offset, os.fstat(file.fileno()).st_size))
                return file.read(n_bytes)
        with self._reading(self._objects) as transaction:
            found = transaction.get(name)
            if found is None:
                raise StorageError(f"object {name.hex()[:16]} is not stored here")
            return bytes(found[offset : offset + n_bytes])

    def read_whole(self, name: bytes) -> bytes:
        """Return a small object.

        Raises:
            StorageError: there is no such object.
        """
        return self.read(name, 0, SMALL_BYTES_MAX)

    # --- state ---

    def write_state(self, name: str, data: bytes) -> None:
        """Replace a small piece of state at once and durably, with all objects before it.

        Raises:
            StorageError: no room.
        """
        self.write_states({name: data})

    def write_states(self, states: Mapping[str, bytes | None]) -> None:
        """Replace small pieces of state, all or none, durably, with all objects before them.

        Args:
            states: bytes by name; None removes a state.

        Raises:
            StorageError: no room.
        """
        self.flush()
        try:
            with self._small.begin(self._state, write=True) as transaction:
                for name, data in states.items():
                    if data is None:
                        transaction.delete(name.encode())
                    else:
                        transaction.put(name.encode(), data)
            self._small.sync(force=True)
        except lmdb.Error as error:
            raise StorageError(
                f"the state {', '.join(states)} cannot be stored: {error}",
                cure="make room on the server's disk and try again; what was stored stays",
            ) from None
        self._note_size()

    def read_state(self, name: str) -> bytes | None:
        """Return a small piece of state, or None."""
        with self._reading(self._state) as transaction:
            found = transaction.get(name.encode())
            return None if found is None else bytes(found)

    # --- looking after ---

    def small_objects(self) -> Iterator[tuple[bytes, memoryview]]:
        """Yield the name and the bytes of every committed small object, neither of them proved.

        The bytes may be used until the next ones are asked for.

        Raises:
            StorageError: the store is damaged.
        """
        with self._reading(self._objects) as transaction:
            for name, data in transaction.cursor():
                yield bytes(name), data

    def states(self) -> dict[str, bytes]:
        """Return all small pieces of state.

        Raises:
            StorageError: the store is damaged.
        """
        try:
            with self._reading(self._state) as transaction:
                return {bytes(name).decode(): bytes(data) for name, data in transaction.cursor()}
        except UnicodeDecodeError:
            raise _damaged("a state has no name") from None

    def drop_segment(self, name: str) -> None:
        """Remove a file that holds a segment no more.

        Raises:
            StorageError: it cannot be removed.
        """
        try:
            (self._segments / name).unlink(missing_ok=True)
            sync_folder(self._segments)
        except OSError as error:
            raise StorageError(
                f"segment {name[:16]} cannot be removed ({error.strerror})"
            ) from None
