"""A version, encrypted and complete, in a folder; and how it gets to a server.

A publication is complete before its first byte leaves the machine.  What was interrupted on the
way is sent again from the stored bytes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from mksearch.errors import InputError, StorageError
from mksearch.index.manifest import (
    ObjectRef,
    SignedManifest,
)
from mksearch_client.blob_pack import BlobPack, drop_pack

__all__ = [
    "Progress",
    "Publication",
    "UploadTarget",
    "drop_objects",
    "object_path",
    "stage",
    "upload",
    "write_manifest",
    "write_object",
]

_CHUNK_BYTES = 1 << 20
MANIFEST_NAME = "manifest"
#: Called with what is being done and its share, 0..1.
Progress = Callable[[str, float], None]


class UploadTarget(Protocol):
    """What publishing asks of a server."""

    def propose(self, data: bytes) -> bytes:
        """Announce a signed manifest; return its hash."""
        ...

    def missing(self, manifest_hash: bytes) -> list[bytes]:
        """Return names of listed objects that the server does not hold."""
        ...

    def put_all(
        self, manifest_hash: bytes, objects: Iterable[tuple[bytes, Iterable[bytes]]]
    ) -> None:
        """Send objects one after another."""
        ...

    def activate(self, manifest_hash: bytes) -> int:
        """Serve the version."""
        ...


@dataclass(frozen=True)
class Publication:
    """A version, encrypted and complete, in a folder.

    Attributes:
        folder: holds ``manifest``, ``objects/`` and the pack of blobs.
        signed: the signed manifest.
    """

    folder: Path
    signed: SignedManifest

    @cached_property
    def blobs(self) -> BlobPack:
        """The pack of blobs, opened when it is wanted first.

        Raises:
            StorageError: it is damaged or cannot be read.
        """
        return BlobPack(self.folder)

    @classmethod
    def load(cls, folder: Path, owner_key: bytes) -> Publication:
        """Open a publication that was prepared before.

        Raises:
            InputError: the folder holds none.
            VerificationError: the manifest in it is damaged.
        """
        try:
            data = (folder / MANIFEST_NAME).read_bytes()
        except OSError:
            raise InputError(
                f"{folder} holds no complete publication", cure="publish the documents again"
            ) from None
        return cls(folder, SignedManifest.decode(data, owner_key))

    @classmethod
    def of_manifest(cls, folder: Path, signed: SignedManifest) -> Publication:
        """Store a manifest whose objects the servers hold already.

        Raises:
            StorageError: the folder cannot be written.
        """
        try:
            (folder / "objects").mkdir(parents=True, exist_ok=True)
            write_manifest(folder, signed)
        except OSError as error:
            raise StorageError(f"{folder} cannot be written: {error.strerror}") from None
        return cls(folder, signed)

    def discard(self) -> None:
        """Drop the stored bytes: the servers hold them, or nobody ever will."""
        # The manifest goes first: without it the folder is no publication.
        (self.folder / MANIFEST_NAME).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def chunks(self, name: bytes) -> Iterator[bytes]:
        """Yield the bytes of one object.

        Raises:
            StorageError: it is not in the folder.
        """
        if name in self.blobs:
            yield from self.blobs.chunks(name, _CHUNK_BYTES)
            return
        path = object_path(self.folder, name)
        try:
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}") from None


def drop_objects(folder: Path) -> None:
    """Remove what an interrupted preparation left in ``folder``."""
    shutil.rmtree(folder / "objects", ignore_errors=True)
    with suppress(OSError):
        drop_pack(folder)


def object_path(folder: Path, name: bytes) -> Path:
    """Return where a publication keeps the object ``name`` (32 bytes)."""
    return folder / "objects" / name.hex()


def stage(publication: Publication, target: UploadTarget, progress: Progress | None = None) -> int:
    """Bring everything that a version lists to one server, not served yet; return objects sent.

    May be interrupted anywhere and called again: only what is missing is sent.

    Raises:
        MksearchError: the server refuses.
    """
    manifest_hash = target.propose(publication.signed.encode())
    n_sent = 0

    def objects(missing: list[bytes]) -> Iterator[tuple[bytes, Iterator[bytes]]]:
        nonlocal n_sent
        for number, wanted in enumerate(missing):
            yield wanted, publication.chunks(wanted)
            n_sent += 1
            if progress is not None:
                progress("sending", number / len(missing))

    # The first pass brings the blob lists, and with them the names of the blobs.
    for _ in range(2):
        missing = target.missing(manifest_hash)
        if missing:
            target.put_all(manifest_hash, objects(missing))
    return n_sent


def upload(publication: Publication, target: UploadTarget, progress: Progress | None = None) -> int:
    """Stage a version on one server and have it served; return the objects sent.

    Raises:
        MksearchError: the server refuses.
    """
    n_sent = stage(publication, target, progress)
    target.activate(publication.signed.hash)
    return n_sent


def write_manifest(folder: Path, signed: SignedManifest) -> None:
    """Write the manifest last, and at once: a folder with one is a complete publication."""
    partial = folder / ".manifest"
    partial.write_bytes(signed.encode())
    os.replace(partial, folder / MANIFEST_NAME)


def write_object(folder: Path, data: bytes) -> ObjectRef:
    """Keep ``data`` under its SHA-256; return its name and size."""
    reference = ObjectRef.of(data)
    object_path(folder, reference.id).write_bytes(data)
    return reference
