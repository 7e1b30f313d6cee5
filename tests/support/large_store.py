"""A store with a large index that takes no room on the disk: headers, and holes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from mksearch.crypto.signature import SigningKey
from mksearch.index.geometry import BlockShape, LevelGeometry
from mksearch.index.manifest import SegmentRef, SignedManifest
from mksearch.index.segment import HEADER_BYTES, SegmentHeader, SegmentLayout
from mksearch.index.slot_shape import SlotShape
from mksearch.params import SLOT_UNITS
from mksearch_server.store import ObjectStore

__all__ = ["COLUMNS", "serve_sparse", "sparse_header", "write_sparse"]

COLUMNS = LevelGeometry(2048, 2048, 1)


def sparse_header(n_bytes: int) -> SegmentHeader:
    """Return the header of a possible segment of about ``n_bytes``."""
    block = BlockShape()
    n_rows = n_bytes * block.fan_out // (2 * COLUMNS.width * block.height)
    levels = (COLUMNS,) * len(block.level_rows(n_rows))
    layout = SegmentLayout(n_rows, block, levels, SlotShape(SLOT_UNITS[0]), n_rows)
    hashes = tuple(bytes([n]) * 32 for n in range(len(levels) + 1))
    return SegmentHeader(bytes(16), 0, bytes(32), layout, hashes)


def write_sparse(folder: Path, head: SegmentHeader) -> None:
    """Write a segment that is a header and a hole."""
    path = folder / head.id.hex()
    path.write_bytes(head.encode())
    os.truncate(path, head.layout.n_bytes)


def serve_sparse(data: Path, signed: SignedManifest, owner: SigningKey, n_bytes: int) -> int:
    """Have a stopped server serve a further version with one large, empty segment.

    Args:
        data: folder of its store.
        signed: the version that it serves.
        owner: signs the next one.
        n_bytes: of the segment, about; its size is returned.
    """
    group = signed.manifest.groups[0]
    with (data / "segments" / group.segments[0].id.hex()).open("rb") as file:
        own = SegmentHeader.decode(file.read(HEADER_BYTES))
    head = replace(sparse_header(n_bytes), collection=own.collection, epoch=own.epoch)
    write_sparse(data / "segments", head)
    ref = SegmentRef(head.id, head.layout.n_bytes, head.salt)
    groups = (replace(group, segments=(ref,)), *signed.manifest.groups[1:])
    following = replace(
        signed.manifest,
        version=signed.manifest.version + 1,
        previous=signed.hash,
        groups=groups,
    )
    store = ObjectStore(data)
    store.write_state("manifest", SignedManifest.sign(following, owner).encode())
    store.close()
    return head.layout.n_bytes
