"""Objects in a bucket, with copies on this machine of what is in use.

What the bucket holds is what counts: an object is stored once it is there.  Bytes that come back
are proved by their name before they get a place in the cache, and nothing else is served.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from io import BufferedRandom
from pathlib import Path
from typing import Final

import numpy as np

from mksearch.errors import FormatError, StorageError, VerificationError
from mksearch_server.bucket import Bucket, BucketError
from mksearch_server.bucket_config import BucketConfig
from mksearch_server.cache import Cache
from mksearch_server.proving import require_object
from mksearch_server.rooms import SEGMENTS, no_room, require_name

__all__ = ["BucketRoom"]

#: Folder of small objects, in the bucket and in the cache.
SMALL: Final = "objects"
#: Object with the key of the server that the folder of the bucket is of.
_OWNER: Final = "server"
_SMALL_BYTES_MAX: Final = 1 << 31
#: Small objects that are read together when all of them are.
_READ_TOGETHER: Final = 64
#: Times that a copy is fetched again which others push out before it is read.
_N_TRIES: Final = 3
_UNLIMITED: Final = 1 << 62


class BucketRoom:
    """A room for objects (see `Room`) in a bucket."""

    def __init__(self, config: BucketConfig, server_key: bytes | None = None) -> None:
        """Open it.

        Args:
            config: where it is.
            server_key: of the server that it is to belong to, 32 bytes; None to look only.

        Raises:
            ParameterError: the library is not installed.
            StorageError: the bucket refuses, it is another server's, or the cache
                cannot be used.
        """
        self._bucket = Bucket(config)
        if server_key is not None:
            self._require_own(server_key)
        try:
            self._cache = Cache(
                *(config.cache, (SEGMENTS, SMALL), config.cache_bytes),
                read_only=server_key is None,
            )
        except (OSError, ValueError) as error:
            raise StorageError(
                f"the cache in {config.cache} cannot be used ({error})",
                cure="check its permissions, and that it holds nothing else, or empty it",
            ) from None
        self._lock = threading.Lock()
        self._listed: _Listing | None = None

    def _require_own(self, server_key: bytes) -> None:
        owner = self._bucket.write_first(_OWNER, server_key.hex().encode())
        if owner != server_key.hex().encode():
            raise StorageError(
                "this folder of the bucket is of another server",
                cure="give every server a url of its own in [s3] of server.toml; where this is a "
                f"new key of the same server, remove the object {_OWNER} in it",
            )

    # --- what is there

    def _known(self, *, anew: bool = False) -> _Listing:
        """Return what is in the bucket, read once or anew."""
        with self._lock:
            if self._listed is None or anew:
                listed = _Listing()
                for kind in (SEGMENTS, SMALL):
                    for text, size in self._bucket.list(kind):
                        name = _name(text)
                        if name is not None:
                            listed.add(kind, name, size)
                self._listed = listed
            return self._listed

    def _learn(self, kind: str, sizes: Mapping[bytes, int]) -> None:
        with self._lock:
            if self._listed is not None:
                for name, size in sizes.items():
                    self._listed.add(kind, name, size)

    def _forget(self, names: Iterable[bytes]) -> None:
        with self._lock:
            if self._listed is not None:
                for name in names:
                    self._listed.remove(name)

    def has(self, name: bytes) -> bool:
        """Return whether the object is in the bucket, as it was listed."""
        return require_name(name) in self._known().objects

    def lacking(self, names: Iterable[bytes]) -> list[bytes]:
        """Return the names that are not in the bucket now."""
        known = self._known(anew=True).objects
        return [name for name in names if name not in known]

    def n_bytes(self) -> int:
        """Return the bytes in the bucket."""
        return self._known().n_bytes

    def n_free_bytes(self) -> int:
        """Return more than any limit: a bucket has none of its own."""
        return _UNLIMITED

    # --- in

    def require_room(self, size: int) -> None:
        """Do nothing: small objects go to the bucket without touching the disk."""

    def begin_segment(self, size: int) -> BufferedRandom:
        """Return a file of the cache, for which others may go."""
        return self._cache.begin(SEGMENTS, size)

    def keep_segment(self, name: bytes, partial: Path) -> None:
        """Put a segment into the bucket, and keep the file as its copy."""
        size = partial.stat().st_size
        self._bucket.write_file(_key(SEGMENTS, name), partial)
        self._learn(SEGMENTS, {name: size})
        self._cache.take(SEGMENTS, name, partial)

    def keep(self, objects: Mapping[bytes, bytes]) -> None:
        """Put small objects into the bucket."""
        self._bucket.write({_key(SMALL, name): data for name, data in objects.items()})
        self._learn(SMALL, {name: len(data) for name, data in objects.items()})

    def sync(self) -> None:
        """Do nothing: what the bucket took it keeps."""

    # --- out

    def segment(self, name: bytes) -> Path | None:
        """Return the copy of a segment, fetched if need be; it stays until others are held."""
        self._cache.hold_also(require_name(name))
        return self._copy(SEGMENTS, name)

    def read(self, name: bytes, start: int, stop: int) -> bytes | None:
        """Return a piece of an object, out of its copy."""
        for _ in range(_N_TRIES):
            found = self._known().objects.get(require_name(name))
            path = None if found is None else self._copy(found[0], name)
            if path is None:
                return None
            try:
                with path.open("rb") as file:
                    file.seek(min(start, path.stat().st_size))
                    return file.read(stop - start)
            except FileNotFoundError:
                # Pushed out of the cache just now.
                continue
        raise StorageError(
            "objects are pushed out of the cache before they are read",
            cure="its operator raises cache_bytes of [s3] in server.toml",
        )

    def _copy(self, kind: str, name: bytes) -> Path | None:
        """Return the copy of an object, fetched and proved if need be."""
        path = self._cache.find(kind, name)
        if path is not None:
            return path
        size = self._bucket.size(_key(kind, name))
        if size is None:
            self._forget([name])
            return None
        try:
            with self._fetched(kind, name, size) as file:
                _require_right(kind, name, Path(file.name))
                os.fsync(file.fileno())
                return self._cache.take(kind, name, Path(file.name))
        except OSError as error:
            raise no_room(error, size) from None

    def _fetched(self, kind: str, name: bytes, size: int) -> _Partial:
        """Return a file of the cache with what the bucket has, not proved."""
        partial = _Partial(self._cache.begin(kind, size))
        try:
            self._bucket.fetch(_key(kind, name), size, partial.file)
        except BaseException:
            partial.close()
            raise
        return partial

    # --- away

    def erase(self, names: Iterable[bytes]) -> None:
        """Remove objects from the bucket and from the cache."""
        known = self._known().objects
        gone = [name for name in names if name in known]
        self._bucket.delete([_key(known[name][0], name) for name in gone])
        self._forget(gone)
        self._drop_copies(gone)

    def drop_segment(self, name: str) -> None:
        """Remove a segment from the bucket and from the cache."""
        found = _name(name)
        if found is not None:
            self._bucket.delete([_key(SEGMENTS, found)])
            self._forget([found])
            self._drop_copies([found])

    def _drop_copies(self, names: Iterable[bytes]) -> None:
        try:
            for name in names:
                self._cache.drop(name)
        except OSError as error:
            raise StorageError(f"copies in the cache cannot be removed: {error}") from None

    def hold(self, names: AbstractSet[bytes]) -> None:
        """Let the copies of these segments stay."""
        self._cache.hold(names)

    # --- all of it

    def segments(self) -> Iterator[tuple[str, Path]]:
        """Yield every copy of a segment, and what the bucket has of it."""
        yield from self._cache.files(SEGMENTS)
        for name, (kind, size) in list(self._known(anew=True).objects.items()):
            if kind == SEGMENTS:
                with self._fetched(kind, name, size) as file:
                    yield name.hex(), Path(file.name)

    def small_objects(self) -> Iterator[tuple[bytes, memoryview]]:
        """Yield every copy of a small object, and what the bucket has of it."""
        for text, path in self._cache.files(SMALL):
            # A server that runs beside this may push it out meanwhile.
            with suppress(FileNotFoundError):
                yield bytes.fromhex(text), memoryview(path.read_bytes())
        known = self._known(anew=True).objects
        names = [name for name, (kind, _) in known.items() if kind == SMALL]
        for start in range(0, len(names), _READ_TOGETHER):
            some = names[start : start + _READ_TOGETHER]
            keys = [_key(SMALL, name) for name in some]
            answers = self._bucket.read_many(keys, _SMALL_BYTES_MAX)
            for name, data in zip(some, answers, strict=True):
                if data is not None:
                    yield name, memoryview(data)


class _Listing:
    """What a bucket has.

    Attributes:
        objects: kind and size by name.
        n_bytes: of all of them.
    """

    def __init__(self) -> None:
        self.objects: dict[bytes, tuple[str, int]] = {}
        self.n_bytes = 0

    def add(self, kind: str, name: bytes, size: int) -> None:
        self.remove(name)
        self.objects[name] = kind, size
        self.n_bytes += size

    def remove(self, name: bytes) -> None:
        self.n_bytes -= self.objects.pop(name, ("", 0))[1]


class _Partial:
    """A file on its way into the cache; what is not taken goes."""

    def __init__(self, file: BufferedRandom) -> None:
        self.file = file

    def __enter__(self) -> BufferedRandom:
        return self.file

    def __exit__(self, *_ending: object) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()
        Path(self.file.name).unlink(missing_ok=True)


def _require_right(kind: str, name: bytes, path: Path) -> None:
    """Prove what came from the bucket.

    Raises:
        BucketError: it is something else.
    """
    try:
        if not path.stat().st_size:
            raise FormatError("it is empty")
        require_object(name, np.memmap(path, np.uint8, "r"), is_segment=kind == SEGMENTS)
    except VerificationError:
        raise BucketError(
            f"object {name.hex()[:16]} was changed in the bucket of this server",
            cure="its operator stops it and runs mksearch-server repair --from another server's "
            "HOST:PORT",
        ) from None


def _key(kind: str, name: bytes) -> str:
    return f"{kind}/{require_name(name).hex()}"


def _name(text: str) -> bytes | None:
    """Return the name that a key ends with, None for an object that is none of ours."""
    try:
        return require_name(bytes.fromhex(text))
    except (ValueError, StorageError):
        return None
