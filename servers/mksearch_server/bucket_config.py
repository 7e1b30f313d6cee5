"""The table ``[s3]`` of ``server.toml``: a bucket for the objects of a server, and its cache."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from mksearch.errors import ParameterError, StorageError

__all__ = ["BUCKET_TEMPLATE", "BucketConfig", "BucketCredentials", "read_bucket"]

#: Hosts that a bucket may be at without TLS.
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_URL: Final = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])((?:/[A-Za-z0-9._-]+)*)/?")
_REGION: Final = re.compile(r"[a-z0-9-]{1,64}")
#: What the environment may hold, all of one line.
_VARIABLES: Final = (
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"),
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI",),
)
_CACHE_BYTES: Final = 1 << 36

BUCKET_TEMPLATE: Final = """\

# Segments and blobs in an S3-compatible bucket instead of data; needs mksearch[s3].  State and the
# share of the authority stay in data.  Every server has a bucket, or a folder in one, of its own.
# [s3]
# url = "s3://my-bucket/server-1"

# Address of the service: https, or http on a loopback host.  Without it Amazon's of the region.
# endpoint = "https://s3.example.org"
# region = "eu-central-1"

# File (mode 0600) with access_key_id = "..", secret_access_key = ".." and, if need be,
# session_token = "..".  Without it those of the environment count (AWS_ACCESS_KEY_ID, ..).
# credentials = "s3-credentials"

# Certificates of a private authority that signed the one of endpoint.
# authorities = "s3-authorities.crt"

# Folder of copies, and its largest size in bytes: all segments of two versions must fit.
# cache = "cache"
# cache_bytes = 68719476736
"""


@dataclass(frozen=True, slots=True)
class BucketCredentials:
    """What opens a bucket; not shown.

    Attributes:
        access_key_id: who asks.
        secret_access_key: secret.
        session_token: secret; "" without.
    """

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)

    @classmethod
    def read(cls, path: Path) -> BucketCredentials:
        """Read a file of credentials; nothing of it is in an error.

        Raises:
            StorageError: it cannot be read, or has something else in it.
        """
        known = {item.name for item in fields(cls)}
        try:
            values = tomllib.loads(path.read_text())
            if not set(values) <= known or not all(isinstance(v, str) for v in values.values()):
                raise ValueError
            return cls(**values)
        except OSError as error:
            raise StorageError(
                f"the credentials {path} cannot be read ({error.strerror})",
                cure="check credentials of [s3] in server.toml",
            ) from None
        except (ValueError, TypeError, RecursionError):
            raise StorageError(
                f"the credentials {path} are not as they should be",
                cure='write access_key_id = ".." and secret_access_key = "..", a line each',
            ) from None


@dataclass(frozen=True, slots=True)
class BucketConfig:
    """Where the objects of a server are.

    Attributes:
        bucket: its name.
        prefix: folder in it, "" for all of it.
        cache: folder of copies on this machine.
        endpoint: address of the service, "" for Amazon's.
        region: of the bucket.
        credentials: file of what opens it, None for the environment.
        authorities: certificates that signed the service's, PEM, besides public ones; None without.
        cache_bytes: largest size of the copies, 2^20..2^46.
    """

    bucket: str
    prefix: str
    cache: Path
    endpoint: str = ""
    region: str = "us-east-1"
    credentials: Path | None = None
    authorities: Path | None = None
    cache_bytes: int = _CACHE_BYTES

    def __post_init__(self) -> None:
        if type(self.cache_bytes) is not int or not 1 << 20 <= self.cache_bytes <= 1 << 46:
            raise ParameterError(
                f"s3.cache_bytes = {self.cache_bytes!r} is not a number in {1 << 20}..{1 << 46}",
                cure="use a whole number in this range",
            )
        if not _REGION.fullmatch(self.region):
            raise ParameterError(
                f"s3.region = {self.region!r} is no region", cure='write one such as "eu-central-1"'
            )
        if self.endpoint:
            _require_endpoint(self.endpoint)

    def require_credentials(self) -> None:
        """Require that there is something to open the bucket with.

        Instances are not asked for theirs: they would answer to whatever runs on the machine.

        Raises:
            StorageError: there is not.
        """
        if self.credentials is None and not any(
            all(os.environ.get(name) for name in names) for names in _VARIABLES
        ):
            raise StorageError(
                "there are no credentials for the bucket",
                cure="name a file as credentials of [s3] in server.toml, or set AWS_ACCESS_KEY_ID "
                "and AWS_SECRET_ACCESS_KEY",
            )
        if self.credentials is not None:
            BucketCredentials.read(self.credentials)


def _require_endpoint(endpoint: str) -> None:
    try:
        parts = urlsplit(endpoint)
        host, _port = parts.hostname or "", parts.port
    except ValueError:
        parts, host = urlsplit(""), ""
    plain = parts.scheme == "http" and host in _LOOPBACK
    is_bare = parts.path in ("", "/") and not (parts.query or parts.fragment or "@" in parts.netloc)
    if not host or not is_bare or not (parts.scheme == "https" or plain):
        # Not shown: somebody may have put a password into it.
        raise ParameterError(
            "s3.endpoint is not https://HOST or https://HOST:PORT",
            cure="write the address alone; http is for a loopback host, and credentials are for a "
            "file",
        )


def read_bucket(values: object, folder: Path) -> BucketConfig:
    """Read the table ``[s3]``; files are not looked at.

    Args:
        values: the table.
        folder: that its files are relative to.

    Raises:
        ParameterError: an unknown or missing key, or a value that cannot be.
    """
    known = ["url", *(item.name for item in fields(BucketConfig) if item.name not in _OF_URL)]
    if not isinstance(values, Mapping):
        raise ParameterError("s3 is not a table", cure="begin it with [s3]")
    unknown = sorted(set(values) - set(known))
    if unknown or "url" not in values:
        what = f"unknown keys: {', '.join(unknown)}" if unknown else "no url"
        raise ParameterError(f"[s3] has {what}", cure=f"known keys are {', '.join(known)}")
    settings: dict[str, Any] = {"cache": "cache", **values}
    for name in ("url", "cache", "endpoint", "region", "credentials", "authorities"):
        if not isinstance(settings.get(name, "-"), str) or settings.get(name) == "":
            raise ParameterError(f"s3.{name} is not a text", cure="write it in quotation marks")
    found = _URL.fullmatch(settings.pop("url"))
    if found is None or {".", ".."} & set(found[2].split("/")):
        raise ParameterError(
            "s3.url is not s3://BUCKET or s3://BUCKET/FOLDER",
            cure="write the name of the bucket, and a folder of letters, digits, '.', '_' and '-'",
        )
    for name in ("cache", "credentials", "authorities"):
        if name in settings:
            settings[name] = folder / settings[name]
    return BucketConfig(found[1], found[2].strip("/"), **settings)


_OF_URL: Final = ("bucket", "prefix")
