"""The rounds of one search: scores from t + 1 servers, records from any."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.randomness import RandomSource
from mksearch.errors import (
    NotEnoughAnswers,
)
from mksearch.index.record import Record
from mksearch.messages import RecordRequest, ScoreAnswer
from mksearch.params import MAX_RECORDS, Quorum
from mksearch.query.answer import Attempt
from mksearch.query.group import GroupView, SegmentView
from mksearch.query.ranking import Ranking, Source, row_bounds
from mksearch.query.records import read_records
from mksearch.query.trapdoor import Question, make_trapdoor
from mksearch_client.asking import Asking, Servers
from mksearch_client.fetching import Connection

__all__ = ["SearchRounds"]

_T = TypeVar("_T")


class SearchRounds:
    """The rounds of one search."""

    def __init__(self, servers: Servers[Connection], random: RandomSource) -> None:
        self._servers = servers
        self._random = random
        self.n_rounds = 0
        self.n_vectors = 0
        self.n_slots = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        self.timings_ms: dict[str, float] = {}

    def timed(self, part: str, work: Callable[[], _T]) -> _T:
        """Do ``work`` and add its time to ``part``."""
        started = time.perf_counter()
        try:
            return work()
        finally:
            spent_ms = 1000 * (time.perf_counter() - started)
            self.timings_ms[part] = self.timings_ms.get(part, 0.0) + spent_ms

    def bounds(
        self,
        view: GroupView,
        segment: SegmentView,
        question: Question,
        quorum: Quorum,
        version: int,
    ) -> NDArray[np.int64] | NDArray[np.object_]:
        """Return proved bounds of every row of a segment."""
        trapdoor = self.timed("trapdoor", lambda: make_trapdoor(view, question))
        attempt = Attempt(segment, trapdoor, quorum, self._random, version=version)
        self.n_vectors += len(trapdoor.vectors)
        self.n_rounds += 1

        def ask(server: int) -> ScoreAnswer:
            return self._servers.connections[server].score(attempt.request(server))

        def take(server: int, answer: ScoreAnswer) -> None:
            self.bytes_sent += trapdoor.vectors.nbytes
            self.bytes_received += answer.sums.nbytes
            attempt.add(server, answer)

        asking = Asking(self._servers, ask, take)
        while True:
            enough = self.timed(
                "servers", lambda: asking.until(lambda: quorum.threshold - attempt.n_honest)
            )
            if not enough:
                raise self._servers.refusal("sums", attempt.n_honest, quorum.threshold)
            try:
                sums = self.timed("check", attempt.combine)
            except NotEnoughAnswers:
                self._mark_liars(attempt)
                continue
            self._mark_liars(attempt)
            return row_bounds(segment, sums, trapdoor.units)

    def _mark_liars(self, attempt: Attempt) -> None:
        for server in attempt.liars:
            self._servers.mark(server, "lied", "its answer fails the check rows")

    def read(self, ranking: Ranking, sources: Sequence[Source], version: int) -> None:
        """Feed ``ranking`` until its hits are proved."""
        while wanted := ranking.wanted():
            by_source: dict[int, list[int]] = {}
            for source, row in wanted:
                by_source.setdefault(source, []).append(row)
            for number, rows in by_source.items():
                records = self._read_rows(sources[number], rows, version)
                for row in rows:
                    ranking.add(number, row, records[row])

    def _read_rows(self, source: Source, rows: Sequence[int], version: int) -> Mapping[int, Record]:
        found: list[_RecordsRead] = []

        def ask(server: int) -> _RecordsRead:
            return _RecordsRead(
                self._servers.connections[server],
                source.segment,
                rows,
                n_terms=len(source.group.dictionary.terms),
                version=version,
            )

        def take(_server: int, read: _RecordsRead) -> None:
            found.append(read)

        asking = Asking(self._servers, ask, take)
        if not asking.until(lambda: 1 - len(found)):
            raise self._servers.refusal("records", 0, 1)
        read = found[0]
        self.n_rounds += read.n_rounds
        self.n_slots += read.n_slots
        self.bytes_sent += read.bytes_sent
        self.bytes_received += read.bytes_received
        return read.records


class _RecordsRead:
    """Records of some rows, fetched from one server and opened."""

    def __init__(
        self,
        connection: Connection,
        segment: SegmentView,
        rows: Sequence[int],
        *,
        n_terms: int,
        version: int,
    ) -> None:
        self._connection = connection
        self._segment = segment
        self._version = version
        self.n_rounds = 0
        self.n_slots = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        self.records: Mapping[int, Record] = self._drive(read_records(segment.slots, rows, n_terms))

    def _drive(
        self, reading: Generator[NDArray[np.int64], NDArray[np.uint16], Mapping[int, Record]]
    ) -> Mapping[int, Record]:
        slots = next(reading)
        while True:
            self.n_rounds += 1
            self.n_slots += len(slots)
            parts = [
                self._fetch(slots[start : start + MAX_RECORDS])
                for start in range(0, len(slots), MAX_RECORDS)
            ]
            try:
                slots = reading.send(parts[0] if len(parts) == 1 else np.concatenate(parts))
            except StopIteration as done:
                records: Mapping[int, Record] = done.value
                return records

    def _fetch(self, slots: NDArray[np.int64]) -> NDArray[np.uint16]:
        width = self._segment.slots.shape.width
        request = RecordRequest(self._version, self._segment.id, slots, width)
        elements = self._connection.records(request).elements
        self.bytes_sent += request.slots.nbytes
        self.bytes_received += elements.nbytes
        return elements
