"""An S3-compatible service on this machine, for tests: moto's, on loopback."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mksearch_server.bucket_config import BucketConfig

__all__ = ["BUCKET", "SECRET", "Service", "serving_buckets"]

BUCKET = "mksearch-test"
ACCESS, SECRET = "AKIAEXAMPLEEXAMPLE00", "a-secret-that-nobody-may-see-0000000000"


@dataclass
class Service:
    """A service that runs.

    Attributes:
        endpoint: its address.
        client: asks it behind the servers' back.
        folder: for files of credentials.
    """

    endpoint: str
    client: Any
    folder: Path

    def credentials(self) -> Path:
        """Write what opens the bucket; return the file."""
        path = self.folder / "s3-credentials"
        path.touch(mode=0o600)
        path.write_text(f'access_key_id = "{ACCESS}"\nsecret_access_key = "{SECRET}"\n')
        return path

    def config(self, prefix: str, cache: Path, **changes: Any) -> BucketConfig:
        """Give the settings of a server whose folder of the bucket is ``prefix``."""
        settings = {"endpoint": self.endpoint, "credentials": self.credentials(), **changes}
        return BucketConfig(settings.pop("bucket", BUCKET), prefix, cache, **settings)

    def table(self, prefix: str) -> str:
        """Give the same as lines of server.toml."""
        return (
            f'\n[s3]\nurl = "s3://{BUCKET}/{prefix}"\nendpoint = "{self.endpoint}"\n'
            f'credentials = "{self.credentials()}"\n'
        )

    def keys(self, prefix: str) -> dict[str, int]:
        """Give size by key of what lies below ``prefix``."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return {
            found["Key"].removeprefix(f"{prefix}/"): found["Size"]
            for page in pages
            for found in page.get("Contents", ())
        }

    def get(self, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read())

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=key, Body=data)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=BUCKET, Key=key)

    @contextmanager
    def asking_for_credentials(self) -> Iterator[None]:
        """Have every request be of somebody that the service knows: it knows nobody."""
        self._reset_auth("0")
        try:
            yield
        finally:
            self._reset_auth("inf")

    def _reset_auth(self, n_requests: str) -> None:
        request = urllib.request.Request(
            f"{self.endpoint}/moto-api/reset-auth",
            n_requests.encode(),
            {"Content-Type": "text/plain"},
            method="POST",
        )
        urllib.request.urlopen(request, timeout=10).close()


@contextmanager
def serving_buckets(folder: Path) -> Iterator[Service]:
    """Run the service with one empty bucket; skip where it is not installed."""
    why = "moto, flask and obstore are not installed: ./dev setup installs them"
    pytest.importorskip("obstore", reason=why)
    server_module = pytest.importorskip("moto.server", reason=why)
    boto3 = pytest.importorskip("boto3", reason=why)
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS,
            aws_secret_access_key=SECRET,
        )
        client.create_bucket(Bucket=BUCKET)
        yield Service(endpoint, client, folder)
        client.close()
    finally:
        server.stop()
