"""Prove bytes that should be there: in a publication's folder, and on a server."""

from __future__ import annotations

from mksearch.crypto.kdf import sha256
from mksearch.errors import (
    FormatError,
)
from mksearch.index.blob_list import BlobList
from mksearch.index.manifest import SegmentRef, SignedManifest
from mksearch.index.segment import HEADER_BYTES, SegmentChecker
from mksearch_client.connection import GrpcConnection
from mksearch_client.publication import Publication, object_path

__all__ = ["read_whole", "require_whole", "verify_server"]

_READ_BYTES = 1 << 24


def require_whole(publication: Publication) -> None:
    """Prove that the disk still holds what was prepared; a renewal has no objects.

    Raises:
        VerificationError: it does not.
    """
    manifest = publication.signed.manifest
    try:
        if not any((publication.folder / "objects").iterdir()):
            return
        for segment in manifest.segments():
            with object_path(publication.folder, segment.id).open("rb") as file:
                checker = SegmentChecker(file.read(HEADER_BYTES), segment.id)
                while piece := file.read(_READ_BYTES):
                    checker.add(piece)
            checker.finish()
        names = [reference.id for reference in manifest.objects()]
        for group in manifest.groups:
            data = object_path(publication.folder, group.blobs.id).read_bytes()
            names += [name for name, _ in BlobList.decode(data).blobs]
        for name in names:
            if sha256(object_path(publication.folder, name).read_bytes()) != name:
                raise FormatError(f"object {name.hex()[:16]} of a publication is damaged")
    except OSError as error:
        raise FormatError(f"a publication is not whole ({error.strerror})") from None


def read_whole(connection: GrpcConnection, name: bytes, size: int) -> bytes:
    """Read an object of ``size`` bytes from a server, not proved yet."""
    return b"".join(
        connection.read_object(name, start, min(_READ_BYTES, size - start))
        for start in range(0, size, _READ_BYTES)
    )


def _verify_segment(connection: GrpcConnection, ref: SegmentRef) -> None:
    """Read a segment back and prove every section; raise VerificationError."""
    checker = SegmentChecker(connection.read_object(ref.id, 0, HEADER_BYTES), ref.id)
    for start in range(HEADER_BYTES, ref.size, _READ_BYTES):
        checker.add(connection.read_object(ref.id, start, min(_READ_BYTES, ref.size - start)))
    checker.finish()


def verify_server(connection: GrpcConnection, signed: SignedManifest) -> str:
    """Return "ok" or what is wrong with the objects of one server."""
    info = connection.info()
    if info.version != signed.manifest.version:
        return f"serves version {info.version}, not {signed.manifest.version}"
    for segment in signed.manifest.segments():
        _verify_segment(connection, segment)
    names = [(ref.id, ref.size) for ref in signed.manifest.objects()]
    for group in signed.manifest.groups:
        names += BlobList.decode(read_whole(connection, group.blobs.id, group.blobs.size)).blobs
    for name, size in names:
        if sha256(read_whole(connection, name, size)) != name:
            return f"object {name.hex()[:16]} is damaged"
    return "ok"
