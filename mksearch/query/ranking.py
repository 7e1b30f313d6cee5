"""Exact ranking from upper bounds (docs/protocol.md, steps 8.8 and 8.9)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mksearch.errors import QueryError
from mksearch.index.record import Member, Record
from mksearch.params import K_MAX, MAX_RECORDS, P
from mksearch.query.group import GroupView, SegmentView
from mksearch.query.trapdoor import Question
from mksearch.text.weights import exact_score

__all__ = ["Hit", "Ranking", "Source", "row_bounds"]

#: Records asked for beyond what the cutoff proves necessary would be waste; fewer than this a
#: round would be waits.
_ROUND_MIN = 4


@dataclass(frozen=True, slots=True)
class Hit:
    """A document found.

    Attributes:
        score: exact score in units of 2**-60.
        member: id, title and snippet.
        source: number of the source that it came from.
        row: its row.
    """

    score: int
    member: Member
    source: int
    row: int


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Bounds of the rows of one segment for one question.

    Attributes:
        group: the group of the segment.
        segment: the segment.
        question: the question as asked of the group.
        bounds: (n_rows,), bounds in units of the segment's step; secret.
    """

    group: GroupView
    segment: SegmentView
    question: Question
    bounds: NDArray[np.int64] | NDArray[np.object_]

    def __repr__(self) -> str:
        return f"Source(rows={len(self.bounds)}, secret=<redacted>)"

    def candidates(self) -> Iterator[tuple[int, int]]:
        """Yield (upper bound of the score, row) by falling bound, rows with bound 0 left out."""
        order = np.argsort(-self.bounds, kind="stable")
        numerator, denominator = self.segment.facts.kappa
        factor = self.segment.facts.step * numerator
        for row in order:
            bound = int(self.bounds[row])
            if not bound:
                return
            yield -(-factor * bound // denominator), int(row)

    def live_members(self, row: int, record: Record) -> Sequence[Member]:
        """Return the documents of a record that were neither deleted nor replaced."""
        return self.segment.live_members(row, record)

    def score(self, record: Record) -> int:
        """Return the exact score of a record under today's statistics."""
        term_ids, weights = self.group.record_weights(record)
        return exact_score(self.question.weights, term_ids, weights)


def row_bounds(
    segment: SegmentView, sums: NDArray[np.uint16], units: Sequence[int]
) -> NDArray[np.int64] | NDArray[np.object_]:
    """Return the bound of every row of level 0 from the proved sums.

    Args:
        segment: the segment.
        sums: uint16 (n_vectors, physical rows, tables).
        units: query weight of one unit of each vector.

    Returns:
        int64 (n_rows,): sum over vectors of unit times the smallest table sum, 0 for rows of
        which no document is left; Python integers where they would not fit.
    """
    rows = segment.block.physical(np.arange(segment.n_rows))
    smallest = sums[:, rows].min(axis=2)
    # A word repeated millions of times in a query has a weight beyond 64 bits.
    dtype = np.int64 if sum(units) * (P - 1) < 1 << 63 else np.object_
    bounds = np.asarray(np.array(units, dtype) @ smallest.astype(dtype))
    bounds[segment.gone_rows] = 0
    return bounds


class Ranking:
    """Reads records by falling bound until the first ``k`` hits are proved.

    Usage: fetch the records of ``wanted()``, ``add`` each, again until ``wanted()`` is empty; then
    ``hits``.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        k: int,
        *,
        offset: int = 0,
        max_records: int | None = None,
    ) -> None:
        """Start from the bounds of every segment asked.

        Args:
            sources: one for each segment.
            k: hits wanted, 1..10000.
            offset: hits left out before them, at least 0.
            max_records: records that may be read, at least 1; None for 2000, or twice the hits
                wanted where that is more.

        Raises:
            QueryError: a number is out of range.
        """
        if not 1 <= k <= K_MAX:
            cure = "ask for at least one hit" if k < 1 else "page through more with an offset"
            raise QueryError(f"k = {k} is not in 1..{K_MAX}", cure=cure)
        if max_records is None:
            max_records = max(MAX_RECORDS, 2 * (offset + k))
        if offset < 0 or max_records < 1:
            raise QueryError(
                f"offset {offset} or max_records {max_records} is out of range",
                cure="use an offset of at least 0 and at least 1 record",
            )
        self._sources = list(sources)
        self._k = k
        self._offset = offset
        self._max_records = max_records
        self._streams = [source.candidates() for source in self._sources]
        self._heads: list[tuple[int, int, int]] = []
        for number in range(len(self._sources)):
            self._push(number)
        self._waiting: set[tuple[int, int]] = set()
        self._found: list[Hit] = []
        self.n_records = 0
        self.exact = True

    def _push(self, number: int) -> None:
        head = next(self._streams[number], None)
        if head is not None:
            heapq.heappush(self._heads, (-head[0], number, head[1]))

    def _cutoff(self) -> int:
        """Exact score of the last hit wanted, -1 while fewer are known."""
        last = self._offset + self._k
        if len(self._found) < last:
            return -1
        return heapq.nlargest(last, (hit.score for hit in self._found))[-1]

    def _round_size(self, n_missing: int) -> int:
        """Return how many records one round reads while so many hits are missing."""
        return n_missing if n_missing > 0 else max(_ROUND_MIN, self.n_records // 2)

    def wanted(self) -> list[tuple[int, int]]:
        """Return (source, row) of the records to read next; empty when the hits are proved.

        Raises:
            QueryError: records of the round before were not added.
        """
        if self._waiting:
            raise QueryError(f"{len(self._waiting)} records of the last round are missing")
        cutoff = self._cutoff()
        missing = self._offset + self._k - len(self._found)
        size = min(self._round_size(missing), self._max_records - self.n_records)
        batch: list[tuple[int, int]] = []
        # Equal bounds are read too: a tie is broken by id, which only the record has.
        while self._heads and -self._heads[0][0] >= cutoff:
            if len(batch) >= size:
                self.exact = bool(batch)
                break
            _, number, row = heapq.heappop(self._heads)
            batch.append((number, row))
            self._push(number)
        self._waiting = set(batch)
        return batch

    def add(self, source: int, row: int, record: Record) -> None:
        """Take the opened record of a wanted row."""
        self._waiting.remove((source, row))
        self.n_records += 1
        score = self._sources[source].score(record)
        if score > 0:
            members = self._sources[source].live_members(row, record)
            self._found += [Hit(score, member, source, row) for member in members]

    def hits(self) -> list[Hit]:
        """Return hits ``offset`` to ``offset + k``: falling score, then id as UTF-8 bytes."""
        ordered = sorted(self._found, key=lambda hit: (-hit.score, hit.member.id.encode()))
        return ordered[self._offset : self._offset + self._k]
