"""What a server keeps: objects in a room for them, and pieces of state in LMDB.

Objects are immutable and named by their hash.  An object is there whole or not at all; small ones
are committed many at a time, because each commit waits for the disk.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from io import BufferedRandom
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mksearch.errors import StorageError
from mksearch_server.database import MAP_BYTES, REPAIR_CURE, STATE, Database, damaged
from mksearch_server.rooms import NAME_BYTES, LocalRoom, Room, no_room

__all__ = ["REPAIR_CURE", "ObjectStore", "ObjectWriter"]

#: Small objects held back before they are committed together.
_PENDING_BYTES = 1 << 23
#: An object announced larger than this is no small object.
SMALL_BYTES_MAX = 1 << 31


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
            raise no_room(error, self._size) from None

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
            self._store.keep_segment(self._name, Path(self._file.name))
        except OSError as error:
            raise no_room(error, self._size) from None

    def close(self) -> None:
        """Drop what was not finished."""
        if self._file is not None:
            # What is still buffered may have no room, and nobody wants it any more.
            with suppress(OSError):
                self._file.raw.close()
            with suppress(OSError):
                Path(self._file.name).unlink(missing_ok=True)


def _stored_already(name: bytes) -> StorageError:
    # Anybody may announce the active version again, and must not fill the disk with it.
    return StorageError(f"object {name.hex()[:16]} is stored here already")


class ObjectStore:
    """The store of one server."""

    def __init__(
        self,
        folder: Path,
        max_bytes: int = MAP_BYTES,
        *,
        read_only: bool = False,
        room: Room | None = None,
    ) -> None:
        """Use ``folder``, made if it does not exist.

        Args:
            folder: of this server alone.
            max_bytes: largest size of all objects.
            read_only: look at a store that another process may be using.
            room: where the objects are; None for ``folder``.

        Raises:
            StorageError: it cannot be opened.
        """
        self.folder = folder
        self._max_bytes = max_bytes
        try:
            if not read_only:
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o700)
            self._database = Database(folder, read_only=read_only)
            try:
                self._room = room or LocalRoom(folder, self._database, read_only=read_only)
            except BaseException:
                self._database.close()
                raise
        except OSError as error:
            raise StorageError(
                f"the store in {folder} cannot be opened: {error}",
                cure=f"check its permissions and room; if it is damaged, {REPAIR_CURE}",
            ) from None
        self._pending: dict[bytes, bytes] = {}
        self._n_pending_bytes = 0

    def close(self) -> None:
        """Commit what is pending and let go of the files."""
        self.flush()
        self._database.close()

    # --- objects ---

    def path(self, name: bytes) -> Path:
        """Return the file of this machine that holds the segment ``name`` (32 bytes).

        Raises:
            StorageError: there is no such segment.
        """
        path = self._room.segment(name)
        if path is None:
            raise StorageError(f"segment {name.hex()[:16]} is not stored here")
        return path

    def has(self, name: bytes) -> bool:
        """Return whether the object is stored whole."""
        return name in self._pending or self._room.has(name)

    def lacking(self, names: Iterable[bytes]) -> list[bytes]:
        """Return the names that are not stored whole, in their order; many at once."""
        return self._room.lacking(name for name in names if name not in self._pending)

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
            self._room.require_room(size)
            return ObjectWriter(self, name, size, None)
        try:
            return ObjectWriter(self, name, size, self._room.begin_segment(size))
        except OSError as error:
            raise no_room(error, size) from None

    def _require_room(self, size: int) -> None:
        if self.n_bytes() + size > self._max_bytes:
            raise no_room(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), size)

    def n_bytes(self) -> int:
        """Return the bytes that segments and small objects take."""
        return self._room.n_bytes() + self._n_pending_bytes

    def n_free_bytes(self) -> int:
        """Return the bytes that objects may still take, whatever the limit of the store."""
        return self._room.n_free_bytes()

    def keep_segment(self, name: bytes, partial: Path) -> None:
        """Keep a segment that is in a file on its way in; raise OSError without room."""
        self._room.keep_segment(name, partial)

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
        size = sum(map(len, objects.values()))
        self._require_room(size)
        self._room.require_room(size)
        for name in objects:
            if self.has(name):
                raise _stored_already(name)
        for name, data in objects.items():
            self.keep_small(name, data)

    def erase(self, names: Iterable[bytes]) -> None:
        """Remove objects; names of none are passed over.

        What is mapped stays readable for who has it.

        Raises:
            StorageError: the disk or the bucket refuses.
        """
        self.flush()
        # A damaged database may have named something else.
        self._room.erase(name for name in names if len(name) == NAME_BYTES)

    def hold(self, names: AbstractSet[bytes]) -> None:
        """Keep these segments, and no others, at hand on this machine: they are served."""
        self._room.hold(names)

    def flush(self) -> None:
        """Commit the small objects that were kept, durably.

        Raises:
            StorageError: no room; none of them is kept.
        """
        if not self._pending:
            return
        try:
            self._room.keep(self._pending)
        finally:
            self._pending = {}
            self._n_pending_bytes = 0

    def commit(self) -> None:
        """Make everything that was kept survive a loss of power.

        Raises:
            StorageError: no room; what was not committed before is not kept.
        """
        self.flush()
        self._room.sync()

    def map(self, name: bytes) -> NDArray[np.uint8]:
        """Return the bytes of a segment as a read-only mapped array: uint8 (size,).

        None of them is read yet, however many there are; ``warm`` does that.

        Raises:
            StorageError: there is no such segment.
        """
        path = self.path(name)
        try:
            with path.open("rb") as file:
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
        # Once: another thread may commit it meanwhile.
        pending = self._pending.get(name)
        if pending is not None:
            return pending[offset : offset + n_bytes]
        found = self._room.read(name, offset, offset + n_bytes)
        if found is None:
            raise StorageError(f"object {name.hex()[:16]} is not stored here")
        return found

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
        self._database.write(
            STATE,
            {name.encode(): data for name, data in states.items()},
            f"the state {', '.join(states)} cannot be stored",
            "make room on the server's disk and try again; what was stored stays",
        )
        self._database.sync()

    def read_state(self, name: str) -> bytes | None:
        """Return a small piece of state, or None."""
        return self._database.read(STATE, name.encode())

    # --- looking after ---

    def small_objects(self) -> Iterator[tuple[bytes, memoryview]]:
        """Yield name and bytes of every committed copy of a small object, none of them proved.

        The bytes may be used until the next ones are asked for.

        Raises:
            StorageError: the store is damaged.
        """
        return self._room.small_objects()

    def states(self) -> dict[str, bytes]:
        """Return all small pieces of state.

        Raises:
            StorageError: the store is damaged.
        """
        try:
            return {name.decode(): bytes(data) for name, data in self._database.items(STATE)}
        except UnicodeDecodeError:
            raise damaged("a state has no name") from None

    def drop_segment(self, name: str) -> None:
        """Remove what holds a segment no more, by the name of its file.

        Raises:
            StorageError: it cannot be removed.
        """
        self._room.drop_segment(name)
