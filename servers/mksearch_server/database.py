"""LMDB as a server uses it: two tables in one file, each change there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import lmdb

from mksearch.errors import StorageError
from mksearch_server.files import sync_folder

__all__ = ["DATABASE", "OBJECTS", "REPAIR_CURE", "SIZE_NAME", "STATE", "Database", "damaged"]

#: Folder of LMDB, and the file with its size.
DATABASE, SIZE_NAME = "objects", "objects.size"
#: The tables: small objects by name, and pieces of state.
OBJECTS: Final = b"objects"
STATE: Final = b"state"
#: Address space that LMDB may map; the file grows as needed.
MAP_BYTES = 1 << 40
#: What to do about a damaged store.
REPAIR_CURE = "stop the server and run mksearch-server repair --from another server's HOST:PORT"


def damaged(why: str) -> StorageError:
    """Return the error of a store that cannot be read."""
    return StorageError(f"the store is damaged ({why})", cure=REPAIR_CURE)


class Database:
    """The database in one folder."""

    def __init__(self, folder: Path, *, read_only: bool) -> None:
        """Open the database in ``folder``, made if it does not exist.

        Args:
            folder: of the store; it exists.
            read_only: look at a database that another process may be using.

        Raises:
            StorageError: it is damaged.
            OSError: it cannot be opened.
        """
        self._folder = folder
        self._file = folder / DATABASE / "data.mdb"
        if self._file.exists():
            self._require_size()
        try:
            self._env = lmdb.open(
                str(folder / DATABASE),
                map_size=MAP_BYTES,
                max_dbs=2,
                metasync=False,
                readonly=read_only,
                create=not read_only,
            )
            with self._closing_on_failure():
                # A reader that crashed would keep pages from being used again.
                self._env.reader_check()
                self._tables = {
                    table: self._env.open_db(table, create=not read_only)
                    for table in (OBJECTS, STATE)
                }
                if not read_only:
                    for made in (folder / DATABASE, folder, folder.parent):
                        sync_folder(made)
        except lmdb.Error as error:
            raise OSError(str(error)) from None

    @contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._env.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._env.close()

    @property
    def n_bytes(self) -> int:
        """Size of the file, which never shrinks: room in it is used again."""
        return os.stat(self._file).st_size

    def _require_size(self) -> None:
        """Refuse a file that lost its end: LMDB would touch what is not there."""
        try:
            noted = int((self._folder / SIZE_NAME).read_text())
        except (OSError, ValueError):
            return
        size = self._file.stat().st_size
        if size < noted:
            raise damaged(f"its small objects have {size} of {noted} bytes")

    def _note_size(self) -> None:
        """Remember the size of the file, which never shrinks."""
        partial = self._folder / f".{SIZE_NAME}"
        # A smaller number than the right one only finds less; a full disk refuses nothing here.
        with suppress(OSError):
            partial.write_text(str(self.n_bytes))
            os.replace(partial, self._folder / SIZE_NAME)

    @contextmanager
    def _reading(self, table: bytes) -> Iterator[Any]:
        """Read from a table; what cannot be read is named."""
        try:
            with self._env.begin(self._tables[table], buffers=True) as transaction:
                yield transaction
        except lmdb.Error as error:
            raise damaged(f"{type(error).__name__}: {error}") from None

    def absent(self, table: bytes, names: Iterator[bytes]) -> list[bytes]:
        """Return the names that a table does not have, in their order.

        Raises:
            StorageError: the database is damaged.
        """
        with self._reading(table) as transaction:
            return [name for name in names if transaction.get(name) is None]

    def read(
        self, table: bytes, name: bytes, start: int = 0, stop: int | None = None
    ) -> bytes | None:
        """Return the bytes ``start`` to ``stop`` of an entry, None without one.

        Raises:
            StorageError: the database is damaged.
        """
        with self._reading(table) as transaction:
            found = transaction.get(name)
            return None if found is None else bytes(found[start:stop])

    def items(self, table: bytes) -> Iterator[tuple[bytes, memoryview]]:
        """Yield name and bytes of every entry, the bytes good until the next are asked for.

        Raises:
            StorageError: the database is damaged.
        """
        with self._reading(table) as transaction:
            for name, data in transaction.cursor():
                yield bytes(name), data

    def write(
        self, table: bytes, changes: Mapping[bytes, bytes | None], failing: str, cure: str = ""
    ) -> None:
        """Change entries, all or none.  `sync` makes it survive a loss of power.

        Args:
            table: which.
            changes: bytes by name; None removes an entry, if there is one.
            failing: what to say when there is no room; the reason follows.
            cure: of that.

        Raises:
            StorageError: no room; nothing is changed.
        """
        try:
            with self._env.begin(self._tables[table], write=True) as transaction:
                # LMDB appends sorted keys fastest.
                for name in sorted(changes):
                    data = changes[name]
                    if data is None:
                        transaction.delete(name)
                    else:
                        transaction.put(name, data)
        except lmdb.Error as error:
            raise StorageError(f"{failing}: {error}", cure=cure) from None
        self._note_size()

    def sync(self) -> None:
        """Make what was written survive a loss of power: without it the last one may be undone.

        Raises:
            StorageError: the disk refuses.
        """
        try:
            self._env.sync(force=True)
        except lmdb.Error as error:
            raise StorageError(f"the store cannot be written: {error}") from None
