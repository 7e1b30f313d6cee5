"""A version, encrypted and complete, in a folder; and how it gets to a server.

A publication is complete before its first byte leaves the machine.  What was interrupted on the
way is sent again from the stored bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from mksearch.errors import InputError, StorageError
from mksearch.index.blob_list import BlobList, names_of, split_names
from mksearch.index.manifest import (
    Manifest,
    ObjectRef,
    SignedManifest,
)
from mksearch_client.blob_pack import BlobPack, drop_pack, write_durably
from mksearch_client.profile_folder import sync_folder, write_file

__all__ = [
    "Elsewhere",
    "Progress",
    "Publication",
    "UploadTarget",
    "drop_objects",
    "object_path",
    "stage",
    "upload",
    "write_carried",
    "write_manifest",
    "write_object",
]

_CHUNK_BYTES = 1 << 20
MANIFEST_NAME = "manifest"
#: Names of what the servers hold already, and the folder does not.
_CARRIED_NAME = "carried"
_NAME_BYTES = 32
#: Called with what is being done and its share, 0..1.
Progress = Callable[[str, float], None]


#: Yields the bytes of an object that is not in the folder.
Elsewhere = Callable[[bytes], Iterator[bytes]]


class UploadTarget(Protocol):
    """What publishing asks of a server."""

    def propose(self, data: bytes) -> bytes:
        """Announce a signed manifest, or a draft; return its hash."""
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
    def carried(self) -> frozenset[bytes]:
        """Names of what this version lists and the folder does not hold; servers do.

        A blob list among them stands for what it lists as well.

        Raises:
            StorageError: it cannot be read.
        """
        try:
            data = (self.folder / _CARRIED_NAME).read_bytes()
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            raise StorageError(f"{self.folder} cannot be read: {error.strerror}") from None
        starts = range(0, len(data), _NAME_BYTES)
        return frozenset(data[at : at + _NAME_BYTES] for at in starts)

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
        """Store a manifest whose objects are in the folder or on the servers already.

        Raises:
            StorageError: the folder cannot be written.
        """
        try:
            (folder / "objects").mkdir(parents=True, exist_ok=True)
            write_carried(folder, signed.manifest)
            write_manifest(folder, signed)
        except OSError as error:
            raise StorageError(f"{folder} cannot be written: {error.strerror}") from None
        return cls(folder, signed)

    @property
    def n_bytes(self) -> int:
        """Bytes of what this version has and the one before did not."""
        objects = sum(path.stat().st_size for path in (self.folder / "objects").iterdir())
        return objects + self.blobs.n_bytes

    def discard(self) -> None:
        """Drop the stored bytes: the servers hold them, or nobody ever will."""
        # The manifest goes first: without it the folder is no publication.
        (self.folder / MANIFEST_NAME).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def holds(self, name: bytes) -> bool:
        """Tell whether the folder holds an object."""
        return name in self.blobs or object_path(self.folder, name).exists()

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
        (folder / _CARRIED_NAME).unlink(missing_ok=True)


def write_carried(folder: Path, manifest: Manifest) -> None:
    """Note what ``manifest`` lists and the folder does not hold: the servers have it already."""
    listed = [*(segment.id for segment in manifest.segments())]
    listed += [reference.id for reference in manifest.objects()]
    here = {path.name for path in (folder / "objects").iterdir()}
    packed = names_of(BlobPack(folder).names())
    for group in manifest.groups:
        if group.blobs.id.hex() in here:
            data = object_path(folder, group.blobs.id).read_bytes()
            names = BlobList.decode(data).names
            listed += split_names(names[~np.isin(names, packed)])
    missing = [name for name in listed if name.hex() not in here]
    write_durably(folder / _CARRIED_NAME, b"".join(missing))


def object_path(folder: Path, name: bytes) -> Path:
    """Return where a publication keeps the object ``name`` (32 bytes)."""
    return folder / "objects" / name.hex()


def stage(
    publication: Publication,
    target: UploadTarget,
    progress: Progress | None = None,
    elsewhere: Elsewhere | None = None,
    draft: bytes | None = None,
) -> int:
    """Bring everything that a version lists to one server, not served yet; return objects sent.

    May be interrupted anywhere and called again: only what is missing is sent.

    Args:
        publication: the version.
        target: the server.
        progress: told what is being done.
        elsewhere: yields the bytes of an object that the folder does not hold.
        draft: shown to the server in place of the signed manifest.

    Raises:
        MksearchError: the server refuses.
    """
    source = elsewhere or publication.chunks
    manifest_hash = target.propose(draft or publication.signed.encode())
    n_sent = 0

    def objects(missing: list[bytes]) -> Iterator[tuple[bytes, Iterator[bytes]]]:
        nonlocal n_sent
        for number, wanted in enumerate(missing):
            here = publication.holds(wanted)
            yield wanted, publication.chunks(wanted) if here else source(wanted)
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
    # A version that a server has seen must not be forgotten: another would get its number.
    sync_folder(folder / "objects")
    write_file(folder / MANIFEST_NAME, signed.encode())
    sync_folder(folder.parent)


def write_object(folder: Path, data: bytes) -> ObjectRef:
    """Keep ``data`` under its SHA-256; return its name and size."""
    reference = ObjectRef.of(data)
    write_durably(object_path(folder, reference.id), data)
    return reference
