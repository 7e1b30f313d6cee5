"""Build a segment from counted documents: the owner's side of docs/protocol.md, section 4.

Data flow: documents that count alike share a row; rows get weights, then impacts, then an order;
every level is scattered into cells block by block, given check rows, masked, and hashed where it
lies; records are sealed into slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.bundle import KeyBundle
from mksearch.crypto.kdf import sha256
from mksearch.crypto.keystream import Domain
from mksearch.crypto.randomness import RandomSource
from mksearch.errors import ParameterError
from mksearch.index.columns import ColumnMap
from mksearch.index.dictionary import SegmentFacts
from mksearch.index.geometry import BlockShape, LevelGeometry, choose_geometry
from mksearch.index.order import similarity_order
from mksearch.index.record import Member, encode_records
from mksearch.index.rows import Postings, Rows, group_documents
from mksearch.index.segment import SegmentHeader, SegmentLayout
from mksearch.index.slots import SlotWriter
from mksearch.kernels.building import add_masks, scatter_largest, sum_check_rows
from mksearch.params import N_TABLES, SALT_BYTES
from mksearch.text.quantise import impacts
from mksearch.text.vocabulary import Counts
from mksearch.text.weights import Scoring, document_weights

__all__ = ["Progress", "SegmentBuilder"]

#: Called with what was finished and its share of the whole build, 0..1.
Progress = Callable[[str, float], None]

_BATCH_BYTES = 1 << 25
_BATCH_BLOCKS_MIN = 8


def _no_progress(_what: str, _share: float) -> None:
    pass


class SegmentBuilder:
    """One build of one segment, under a salt of its own."""

    def __init__(  # noqa: PLR0913 - options, all by name
        self,
        counts: Counts,
        members: Sequence[Member],
        scoring: Scoring,
        bundle: KeyBundle,
        *,
        collection: bytes,
        epoch: int,
        random: RandomSource,
        block: BlockShape | None = None,
        n_tables: int = N_TABLES,
        geometry: Sequence[LevelGeometry] | None = None,
        n_dedicated: Sequence[int] | None = None,
    ) -> None:
        """Plan the segment; after this its size is known and nothing is written.

        Args:
            counts: term frequencies of the documents.
            members: id, title and snippet of each document.
            scoring: TF-IDF or BM25.
            bundle: keys of the policy group.
            collection: 16 bytes.
            epoch: generation of the keys.
            random: source of the salt.
            block: shape of the blocks, default 61 + 3.
            n_tables: tables of shared columns.
            geometry: widths of each level, default chosen from the corpus; more levels than there
                will be are left out.
            n_dedicated: dedicated terms of each level of ``geometry``, default as many as fit.

        Raises:
            ParameterError: no document, sizes that the format does not carry, or fewer levels in
                ``geometry`` than needed.
        """
        if not members or len(members) != len(counts.lengths):
            raise ParameterError(
                f"a segment of {len(counts.lengths)} counted documents and {len(members)} members",
                cure="publish at least one document",
            )
        self._bundle = bundle
        self._collection = collection
        self._epoch = epoch
        self._block = block or BlockShape()
        self.salt = random.bytes(SALT_BYTES)
        self._keys = bundle.segment_keys(self.salt)
        self.rows, self._impacts, self.step = _place_rows(counts, scoring, self._block.fan_out)
        level_rows = self._block.level_rows(len(self.rows.members))
        n_terms = len(counts.vocabulary.terms)
        if geometry is None:
            mean_terms = len(self.rows.postings.term_ids) / len(self.rows.members)
            geometry = choose_geometry(mean_terms, n_terms, len(level_rows), n_tables)
        geometry = geometry[: len(level_rows)]
        if n_dedicated is None:
            n_dedicated = [min(level.dedicated, n_terms) for level in geometry]
        self.n_dedicated = tuple(n_dedicated[: len(geometry)])
        self._columns = ColumnMap(bundle.column_keys(), geometry, self.n_dedicated)
        self._terms = counts.vocabulary.terms
        self._used = np.unique(self.rows.postings.term_ids)
        documents = ([members[at] for at in row.tolist()] for row in self.rows.members)
        self._records = list(encode_records(self.rows.postings, documents))
        sizes = np.array([len(record) for record in self._records], np.int64)
        self._slots = SlotWriter(self._keys, collection, self.salt, sizes)
        self.layout = SegmentLayout(
            len(self.rows.members),
            self._block,
            tuple(geometry),
            self._slots.shape,
            self._slots.n_slots,
        )

    @property
    def facts(self) -> SegmentFacts:
        """What the dictionary tells members of this segment."""
        return SegmentFacts(self.salt, self.step)

    def row_of_document(self) -> NDArray[np.int64]:
        """Return the row of each document: int64 (n_docs,)."""
        rows = np.empty(sum(map(len, self.rows.members)), np.int64)
        for row, members in enumerate(self.rows.members):
            rows[members] = row
        return rows

    def write(self, data: NDArray[np.uint8], progress: Progress = _no_progress) -> SegmentHeader:
        """Write the whole file.

        Args:
            data: uint8 (layout.n_bytes,), zero (a new file mapped into memory); overwritten.
            progress: told what is finished.

        Returns:
            the header as written; its id names the segment.
        """
        layout = self.layout
        total = layout.n_bytes
        hashes = []
        for level in range(len(layout.levels)):
            cells = layout.level(data, level)
            self._write_level(level, cells)
            hashes.append(sha256(cells.data.cast("B")))
            progress(f"level {level}", layout.offsets[level + 1] / total)
        slots = layout.slots(data)
        self._slots.write(self._records, slots)
        hashes.append(sha256(slots.data.cast("B")))
        header = SegmentHeader(self._collection, self._epoch, self.salt, layout, tuple(hashes))
        encoded = header.encode()
        data[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        progress("records", 1.0)
        return header

    def _write_level(self, level: int, cells: NDArray[np.uint16]) -> None:
        block = self._block
        n_rows, width = cells.shape
        n_blocks = n_rows // block.height
        per_batch = max(_BATCH_BLOCKS_MIN, _BATCH_BYTES // (2 * block.height * width))
        columns = self._columns.table(level, self._terms, self._used)
        postings = self.rows.postings
        # Built beside the file: bytes that are not masked yet never reach it.
        scratch = np.empty((min(per_batch, n_blocks), block.height, width), np.uint16)
        for first in range(0, n_blocks, per_batch):
            count = min(per_batch, n_blocks - first)
            start, stop = first * block.height, (first + count) * block.height
            part = scratch[:count]
            part[:] = 0
            scatter_largest(
                postings.indptr,
                postings.term_ids,
                self._impacts,
                columns,
                block.fan_out**level,
                first,
                block.fan_out,
                part,
            )
            checks = self._keys.check.words(
                Domain.CHECK, level, np.arange(block.n_checks), start, stop - start
            )
            sum_check_rows(part, checks, block.fan_out)
            masks = self._keys.mask.words(Domain.MASK, level, np.arange(width), start, stop - start)
            add_masks(part.reshape(stop - start, width), masks)
            cells[start:stop] = part.reshape(stop - start, width)


def _place_rows(
    counts: Counts, scoring: Scoring, fan_out: int
) -> tuple[Rows, NDArray[np.uint16], int]:
    """Return the rows in their final order, their impacts and the step."""
    documents = Postings(counts.indptr, counts.term_ids, counts.tfs, counts.lengths)
    rows = group_documents(documents)
    postings = rows.postings
    weights = document_weights(
        scoring,
        counts.vocabulary.statistics,
        postings.indptr,
        postings.term_ids,
        postings.tfs,
        postings.lengths,
    )
    # Terms of other segments alone would only widen the matrix.
    used, local = np.unique(postings.term_ids, return_inverse=True)
    order = similarity_order(postings.indptr, local.astype(np.int32), weights, len(used), fan_out)
    quantised, step = impacts(weights)
    return rows.take(order), quantised[postings.places(order)], step
