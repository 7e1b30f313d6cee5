"""A bucket of an S3-compatible service: the only module that knows obstore.

Nothing that the library or the service says is in an error: it may hold addresses and keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from io import BufferedRandom
from pathlib import Path
from typing import Any, Final, TypeVar

from mksearch.errors import ParameterError, StorageError
from mksearch_server.bucket_config import BucketConfig, BucketCredentials

__all__ = ["Bucket", "BucketError"]

_T = TypeVar("_T")
#: Requests under way at once: what matters is the time of a round trip.
_N_REQUESTS: Final = 16
#: Bytes of one request of a large object.
_PIECE_BYTES: Final = 1 << 24
#: Most parts that S3 takes of one object, with some to spare.
_N_PARTS_MAX: Final = 9000
_LISTED_TOGETHER: Final = 1000
#: A request that takes longer is tried again, and given up in the end.
_REQUEST_S: Final = 60
_CONNECT_S: Final = 5
_RETRIES: Final = 3
_RETRY_S: Final = 30
#: How long credentials of a file are used before it is read again.
_CREDENTIALS_S: Final = 300

_SETTING = "of [s3] in server.toml"
#: What an answer of the service contains, what that means, and what to do.
_CAUSES: Final = (
    ("NoSuchBucket", "does not exist", f"its operator creates it, or corrects url {_SETTING}"),
    (
        "RequestTimeTooSkewed",
        "refuses the time of this machine",
        "its operator sets the clock",
    ),
    *(
        (code, "refuses the credentials", f"its operator corrects credentials {_SETTING}")
        for code in (
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
            "ExpiredToken",
            "InvalidToken",
            "AuthFailure",
            "Unauthenticated",
        )
    ),
    *(
        (code, "does not allow it", "its operator allows list, read, write and delete in it")
        for code in ("AccessDenied", "Forbidden", "PermissionDenied")
    ),
    *(
        (code, "is of another region", f"its operator corrects region {_SETTING}")
        for code in ("AuthorizationHeaderMalformed", "PermanentRedirect")
    ),
)


class BucketError(StorageError):
    """The bucket, or the way to it, refuses; what was stored stays."""


class Bucket:
    """A folder of a bucket, by keys below it.  May be used from any thread."""

    def __init__(self, config: BucketConfig) -> None:
        """Prepare to ask; nothing is sent yet.

        Raises:
            ParameterError: the library is not installed.
            StorageError: a file cannot be read.
        """
        try:
            from obstore import exceptions
            from obstore.store import S3Store
        except ImportError:
            raise ParameterError(
                "[s3] needs the package obstore", cure="pip install mksearch[s3]"
            ) from None
        self._errors = exceptions
        self._store: Any = S3Store(
            config.bucket,
            prefix=config.prefix or None,
            config=_settings(config),
            client_options=_client(config),
            retry_config={
                "max_retries": _RETRIES,
                "retry_timeout": timedelta(seconds=_RETRY_S),
            },
            credential_provider=_provider(config.credentials),
        )
        self._pool = ThreadPoolExecutor(_N_REQUESTS, "bucket")

    def _call(self, work: Callable[[], _T]) -> _T:
        """Return what ``work`` does; name what went wrong in words of our own."""
        try:
            return work()
        except self._errors.BaseError as error:
            raise _named(str(error)) from None

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yield name and size of every object of a folder.

        Raises:
            BucketError: the bucket refuses.
        """
        chunks = iter(self._store.list(f"{folder}/", chunk_size=_LISTED_TOGETHER))
        while chunk := self._call(lambda: next(chunks, None)):
            for found in chunk:
                yield found["path"].rpartition("/")[2], found["size"]

    def read(self, key: str, max_bytes: int) -> bytes | None:
        """Return an object of at most ``max_bytes``, None where there is none.

        Raises:
            BucketError: the bucket refuses, or the object is larger.
        """
        try:
            answer = self._call_found(lambda: self._store.get(key))
        except FileNotFoundError:
            return None
        if answer.meta["size"] > max_bytes:
            raise BucketError(
                f"an object of the bucket has {answer.meta['size']} bytes (at most {max_bytes})",
                cure="its operator runs mksearch-server verify",
            )
        return bytes(self._call(answer.bytes))

    def _call_found(self, work: Callable[[], _T]) -> _T:
        """Like `_call`; raise FileNotFoundError where there is no such object."""
        try:
            return work()
        except (self._errors.NotFoundError, FileNotFoundError) as error:
            if "NoSuchBucket" in str(error):
                raise _named(str(error)) from None
            raise FileNotFoundError from None
        except self._errors.BaseError as error:
            raise _named(str(error)) from None

    def read_many(self, keys: Sequence[str], max_bytes: int) -> Iterator[bytes | None]:
        """Yield what `read` returns for each, many under way at once."""
        return self._pool.map(lambda key: self.read(key, max_bytes), keys)

    def size(self, key: str) -> int | None:
        """Return the bytes of an object, None where there is none.

        Raises:
            BucketError: the bucket refuses.
        """
        try:
            return int(self._call_found(lambda: self._store.head(key))["size"])
        except FileNotFoundError:
            return None

    def fetch(self, key: str, size: int, file: BufferedRandom) -> None:
        """Write the first ``size`` bytes of an object into a file.

        Raises:
            BucketError: the bucket refuses, or there is no such object.
            OSError: the file cannot be written.
        """

        def piece(start: int) -> None:
            n_bytes = min(_PIECE_BYTES, size - start)
            data = self._call(lambda: self._store.get_range(key, start=start, length=n_bytes))
            os.pwrite(file.fileno(), data, start)

        for _ in self._pool.map(piece, range(0, size, _PIECE_BYTES)):
            pass

    def write(self, objects: Mapping[str, bytes]) -> None:
        """Put objects, many at once; each is there whole or not at all, and stays.

        Raises:
            BucketError: the bucket refuses; some of them may be there.
        """

        def put(key: str) -> None:
            self._call(lambda: self._store.put(key, objects[key], use_multipart=False))

        # All of them end before this does, also after an error.
        for done in [self._pool.submit(put, key) for key in objects]:
            done.result()

    def write_file(self, key: str, path: Path) -> None:
        """Put the content of a file; it is there whole or not at all.

        Raises:
            BucketError: the bucket refuses.
        """
        piece_bytes = max(_PIECE_BYTES, -(-path.stat().st_size // _N_PARTS_MAX))
        self._call(lambda: self._store.put(key, path, chunk_size=piece_bytes, max_concurrency=4))

    def write_first(self, key: str, data: bytes) -> bytes:
        """Put an object unless there is one; return what is there then.

        Raises:
            BucketError: the bucket refuses.
        """
        held = self.read(key, len(data))
        if held is not None:
            return held
        try:
            self._store.put(key, data, mode="create", use_multipart=False)
        except (self._errors.AlreadyExistsError, FileExistsError):
            return self.read(key, len(data)) or b""
        except self._errors.BaseError as error:
            raise _named(str(error)) from None
        return data

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; keys of none are passed over.

        Raises:
            BucketError: the bucket refuses; some of them may be gone.
        """
        if keys:
            self._call(lambda: self._store.delete(list(keys)))


def _settings(config: BucketConfig) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "region": config.region,
        "virtual_hosted_style_request": False,
        "skip_signature": False,
    }
    if config.endpoint:
        settings["endpoint"] = config.endpoint.rstrip("/")
    return settings


def _client(config: BucketConfig) -> dict[str, Any]:
    options: dict[str, Any] = {
        # What may do without TLS was checked with the settings.
        "allow_http": config.endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=_CONNECT_S),
        "timeout": timedelta(seconds=_REQUEST_S),
    }
    if config.authorities is not None:
        try:
            options["root_certificate"] = config.authorities.read_bytes()
        except OSError as error:
            raise StorageError(
                f"{config.authorities} cannot be read ({error.strerror})",
                cure=f"check authorities {_SETTING}",
            ) from None
    return options


def _provider(path: Path | None) -> Callable[[], dict[str, Any]] | None:
    """Return what gives the credentials of a file; None leaves it to the environment."""
    if path is None:
        return None

    def credentials() -> dict[str, Any]:
        held = BucketCredentials.read(path)
        return {
            "access_key_id": held.access_key_id,
            "secret_access_key": held.secret_access_key,
            "token": held.session_token or None,
            "expires_at": datetime.now(UTC) + timedelta(seconds=_CREDENTIALS_S),
        }

    return credentials


def _named(text: str) -> BucketError:
    """Return the error for what the library said."""
    for code, what, cure in _CAUSES:
        if code in text:
            return BucketError(f"the bucket of this server {what}", cure=cure)
    return BucketError(
        "the bucket of this server does not answer, or not as it should",
        cure=f"try again; its operator checks the network and endpoint {_SETTING}",
    )
