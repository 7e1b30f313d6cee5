"""Judge evidence: compute what a server should have answered from cells that prove themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.evidence import Evidence
from mksearch.crypto.kdf import sha256
from mksearch.errors import FormatError, MksearchError, NotEnoughAnswers, ServerUnreachable
from mksearch.index.segment import HEADER_BYTES, SegmentHeader
from mksearch.scoring.engine import Engine
from mksearch_client.fetching import Connection

__all__ = ["Verdict", "judge"]

_READ_BYTES = 1 << 24
_NO_QUESTION = "a server refuses such a question, so nothing follows from an answer to it"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What recomputing says.

    Attributes:
        server: whose answer it is; 0 for two manifests that the owner's key signed.
        version: of the collection, about which.
        is_lie: the server signed what its cells and the question do not give.
        reason: where it differs, in words.
    """

    server: int
    version: int
    is_lie: bool
    reason: str


def judge(evidence: Evidence, sources: Iterable[Connection], engine: Engine) -> Verdict:
    """Compute the answer anew and compare it with what was signed.

    Args:
        evidence: ``require_signed`` was asked.
        sources: servers to read the cells from, the accused last; whoever sends them, their hash
            proves them.
        engine: multiplies.

    Raises:
        FormatError: the question does not fit the segment.
        NotEnoughAnswers: no server sent the cells; they are gone with their version.
    """
    refusals = []
    for source in sources:
        try:
            header = _header(source, evidence.request.segment)
        except MksearchError as error:
            refusals.append(str(error))
            continue
        _require_fits(evidence, header)
        try:
            reason = _difference(evidence, header, source, engine)
        except (FormatError, ServerUnreachable) as error:
            refusals.append(str(error))
            continue
        words = reason or "it signed what the cells give: this proves nothing against it"
        return Verdict(evidence.server, evidence.request.version, bool(reason), words)
    raise NotEnoughAnswers(
        f"no server sent segment {evidence.request.segment.hex()[:16]}, which the evidence is "
        f"about: {'; '.join(refusals)}",
        have=0,
        need=1,
        cure="judge evidence before the documents are encrypted anew",
    )


def _header(source: Connection, segment: bytes) -> SegmentHeader:
    head = source.read_object(segment, 0, HEADER_BYTES)
    if sha256(head) != segment:
        raise FormatError(f"a server sent another header than that of {segment.hex()[:16]}")
    return SegmentHeader.decode(head)


def _require_fits(evidence: Evidence, header: SegmentHeader) -> None:
    level, shares = evidence.request.level, evidence.request.shares
    levels = header.layout.levels
    if level >= len(levels) or shares.shape[1] != levels[level].width:
        raise FormatError(
            f"the evidence has shares of {shares.shape[1]} columns for level {level}, which the "
            "segment does not have",
            cure=_NO_QUESTION,
        )
    n_blocks = header.layout.level_shapes[level][0] // header.layout.block.height
    if evidence.request.blocks and evidence.request.blocks[-1] >= n_blocks:
        raise FormatError(
            f"the evidence names blocks of level {level} that the segment does not have",
            cure=_NO_QUESTION,
        )


def _difference(
    evidence: Evidence, header: SegmentHeader, source: Connection, engine: Engine
) -> str:
    """Say where the signed sums differ from the right ones; "" where they do not.

    Raises:
        FormatError: the source sent other cells than the header's.
    """
    level, shares = evidence.request.level, evidence.request.shares
    geometry = header.layout.levels[level]
    n_rows, width = header.layout.level_shapes[level]
    rows = _asked_rows(evidence, header, n_rows)
    shape, signed = (len(shares), len(rows), geometry.n_tables), evidence.answer.sums
    if signed.shape != shape:
        return f"it signed sums of shape {signed.shape}, and the question gives {shape}"
    found, digest, first = "", hashlib.sha256(), 0
    for piece in _rows(
        source, evidence.request.segment, header.layout.offsets[level], n_rows, width
    ):
        digest.update(piece)
        cells = np.frombuffer(piece, "<u2").reshape(-1, width)
        start, stop = np.searchsorted(rows, (first, first + len(cells)))
        right = engine.score(cells[rows[start:stop] - first], geometry, shares)
        wrong = np.argwhere(right != signed[:, start:stop])
        if len(wrong) and not found:
            vector, at, table = (int(place) for place in wrong[0])
            found = (
                f"vector {vector}, row {rows[start + at]}, table {table}: it signed "
                f"{signed[vector, start + at, table]}, and the cells give "
                f"{right[vector, at, table]}"
            )
        first += len(cells)
    if digest.digest() != header.hashes[level]:
        raise FormatError("a server sent cells that do not match the segment's hash")
    return found


def _asked_rows(evidence: Evidence, header: SegmentHeader, n_rows: int) -> NDArray[np.int64]:
    """Return the physical rows of a level that were asked for: int64 (n,), ascending."""
    named = np.array(evidence.request.blocks, np.int64)
    if not len(named):
        return np.arange(n_rows)
    height = header.layout.block.height
    return (named[:, None] * height + np.arange(height)).reshape(-1)


def _rows(
    source: Connection, segment: bytes, start: int, n_rows: int, width: int
) -> Iterator[bytes]:
    """Yield whole rows of a level, many at once."""
    row_bytes = 2 * width
    n_together = max(1, _READ_BYTES // row_bytes)
    for first in range(0, n_rows, n_together):
        n_bytes = row_bytes * min(n_together, n_rows - first)
        piece = source.read_object(segment, start + first * row_bytes, n_bytes)
        if len(piece) != n_bytes:
            raise FormatError(f"{len(piece)} of {n_bytes} bytes of a segment came")
        yield piece
