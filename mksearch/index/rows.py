"""Rows of a segment: documents with the same term frequencies share one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.kdf import sha256

__all__ = ["Postings", "Rows", "group_documents"]


@dataclass(frozen=True, slots=True)
class Postings:
    """Term frequencies of consecutive rows (or documents), by ascending term id.

    Attributes:
        indptr: int64 (n + 1,).
        term_ids: int32 (nnz,).
        tfs: int32 (nnz,), at least 1.
        lengths: int64 (n,), tokens.
    """

    indptr: NDArray[np.int64]
    term_ids: NDArray[np.int32]
    tfs: NDArray[np.int32]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lengths)

    def places(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where the postings of the rows ``order`` are, row after row: int64 (nnz,)."""
        counts = np.diff(self.indptr)[order]
        starts = np.cumsum(counts) - counts
        return np.repeat(self.indptr[order] - starts, counts) + np.arange(counts.sum())

    def take(self, order: NDArray[np.int64]) -> Postings:
        """Return the rows ``order`` (int64, any subset in any order) as new postings."""
        at = self.places(order)
        indptr = np.concatenate([[0], np.cumsum(np.diff(self.indptr)[order])]).astype(np.int64)
        return Postings(indptr, self.term_ids[at], self.tfs[at], self.lengths[order])


@dataclass(frozen=True, slots=True)
class Rows:
    """Distinct rows and the documents that share each.

    Attributes:
        postings: one entry a row.
        members: for each row, int64 document numbers.
    """

    postings: Postings
    members: list[NDArray[np.int64]]

    def take(self, order: NDArray[np.int64]) -> Rows:
        """Return the rows in another order (int64 (n_rows,), a permutation)."""
        return Rows(self.postings.take(order), [self.members[i] for i in order.tolist()])


def group_documents(documents: Postings) -> Rows:
    """Give documents with equal term ids and frequencies one row, in order of first appearance.

    Equal frequencies imply equal lengths, so BM25 weights agree as well.
    """
    row_of: dict[bytes, int] = {}
    first: list[int] = []
    members: list[list[int]] = []
    bounds = documents.indptr.tolist()
    ids, tfs = (array.data.cast("B") for array in (documents.term_ids, documents.tfs))
    for document in range(len(documents)):
        # Both arrays have four bytes an entry.
        span = slice(4 * bounds[document], 4 * bounds[document + 1])
        key = sha256(ids[span], tfs[span])
        row = row_of.setdefault(key, len(first))
        if row == len(first):
            first.append(document)
            members.append([])
        members[row].append(document)
    postings = documents.take(np.array(first, np.int64))
    return Rows(postings, [np.array(numbers, np.int64) for numbers in members])
