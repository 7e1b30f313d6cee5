"""Prove bytes that should be there: in a publication's folder, and on a server."""

from __future__ import annotations

from collections.abc import Iterator

from mksearch.crypto.kdf import sha256
from mksearch.errors import (
    FormatError,
    StorageError,
)
from mksearch.index.blob_list import BlobList
from mksearch.index.manifest import SegmentRef, SignedManifest
from mksearch.index.segment import HEADER_BYTES, SegmentChecker
from mksearch_client.connection import GrpcConnection, ServerInfo
from mksearch_client.publication import Publication, object_path

__all__ = ["read_pieces", "read_whole", "require_info", "require_whole", "verify_server"]

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
        carried = publication.carried
        for segment in manifest.segments():
            if segment.id in carried:
                continue
            with object_path(publication.folder, segment.id).open("rb") as file:
                checker = SegmentChecker(file.read(HEADER_BYTES), segment.id)
                while piece := file.read(_READ_BYTES):
                    checker.add(piece)
            checker.finish()
        names = [ref.id for ref in manifest.objects() if ref.id not in carried]
        for group in manifest.groups:
            if group.blobs.id in carried:
                continue
            data = b"".join(publication.chunks(group.blobs.id))
            names += [name for name, _ in BlobList.decode(data).blobs if name not in carried]
        for name in names:
            if sha256(*publication.chunks(name)) != name:
                raise FormatError(f"object {name.hex()[:16]} of a publication is damaged")
    except OSError as error:
        raise FormatError(f"a publication is not whole ({error.strerror})") from None
    except StorageError as error:
        raise FormatError(f"a publication is not whole ({error})") from None


def require_info(
    connection: GrpcConnection, owner_key: bytes, collection: bytes, version: int
) -> ServerInfo:
    """Return what a server says of itself, after proving what can be proved of it.

    Args:
        connection: to the server.
        owner_key: pinned Ed25519 public key, 32 bytes.
        collection: 16 bytes.
        version: newest version known; a server that claims a newer one has to show its manifest.

    Raises:
        MksearchError: it does not answer, or cannot prove what it says.
    """
    info = connection.info()
    if info.collection != collection:
        raise FormatError(
            f"it says that it serves collection {info.collection.hex() or 'of nobody'}, "
            f"not {collection.hex()}",
            server=connection.server,
        )
    if info.version > version:
        shown = SignedManifest.decode(connection.manifest(), owner_key, collection)
        # Versions only rise, and this one was shown after the other was claimed.
        if shown.manifest.version < info.version:
            raise FormatError(
                f"it says that it serves version {info.version} and shows "
                f"version {shown.manifest.version}",
                server=connection.server,
            )
    return info


def read_whole(connection: GrpcConnection, name: bytes, size: int) -> bytes:
    """Read an object of ``size`` bytes from a server, not proved yet."""
    return b"".join(read_pieces(connection, name, 0, size))


def read_pieces(connection: GrpcConnection, name: bytes, start: int, size: int) -> Iterator[bytes]:
    """Yield the bytes of an object of ``size`` bytes from ``start``, not proved yet."""
    for at in range(start, size, _READ_BYTES):
        yield connection.read_object(name, at, min(_READ_BYTES, size - at))


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
