"""The rounds of one search: scores from t + 1 servers, records from any."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.randomness import RandomSource
from mksearch.errors import (
    NotEnoughAnswers,
)
from mksearch.index.record import Record
from mksearch.messages import RecordAnswer, RecordRequest, ScoreAnswer, ScoreRequest
from mksearch.params import MAX_RECORDS, Quorum
from mksearch.query.answer import Attempt, Sums
from mksearch.query.group import GroupView, SegmentView
from mksearch.query.ranking import Ranking, Source, row_bounds
from mksearch.query.records import read_records
from mksearch.query.trapdoor import Question, Trapdoor, make_trapdoor
from mksearch_client.asking import Asking, Servers
from mksearch_client.fetching import Connection

__all__ = ["Asked", "LieCallback", "SearchRounds"]

#: Told of a wrong answer: the server, its question, what it signed.
LieCallback = Callable[[int, ScoreRequest, ScoreAnswer], None]
_A = TypeVar("_A")
_T = TypeVar("_T")
#: Groups asked of one server at once.
_AT_ONCE_MAX = 16
#: Segments asked for in one call: what a server takes.
_SEGMENTS_A_CALL = 64
_QUERY_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Asked:
    """A segment of a group, and the question as that group understands it."""

    view: GroupView
    segment: SegmentView
    question: Question


class SearchRounds:
    """The rounds of one search."""

    def __init__(
        self,
        servers: Servers[Connection],
        random: RandomSource,
        clock: Callable[[], float],
        on_lie: LieCallback,
    ) -> None:
        self._servers = servers
        self._random = random
        self._clock = clock
        self._on_lie = on_lie
        self.n_rounds = 0
        #: Of them, those for records.
        self.n_reads = 0
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

    def bounds(self, asked: Sequence[Asked], quorum: Quorum, version: int) -> list[Source]:
        """Return proved bounds of every row of some segments, asked in one round."""
        trapdoors = self.timed("trapdoor", lambda: _trapdoors(asked))
        attempts = [
            Attempt(one.segment, trapdoor, quorum, self._random, version=version)
            for one, trapdoor in zip(asked, trapdoors, strict=True)
        ]
        self.n_vectors += sum(len(trapdoor.vectors) for trapdoor in trapdoors)
        proved = self.prove([one.view for one in asked], attempts, quorum)
        return [
            Source(
                one.view, one.segment, one.question, row_bounds(one.segment, sums, trapdoor.units)
            )
            for one, sums, trapdoor in zip(asked, proved, trapdoors, strict=True)
        ]

    def prove(
        self, views: Sequence[GroupView], attempts: Sequence[Attempt], quorum: Quorum
    ) -> list[Sums]:
        """Ask t + 1 servers, and further ones, until every attempt has proved sums; one round.

        Args:
            views: the group of each attempt; those of one group together.
            attempts: what is asked.
            quorum: number of servers and collusion bound.

        Raises:
            AnswerRefused: servers lied and too few honest ones remain; they are named.
            NotEnoughAnswers: fewer than t + 1 servers answered.
        """
        rows = _Attempts(views, attempts, quorum)
        self.n_rounds += 1

        def ask(server: int) -> list[ScoreAnswer]:
            connection = self._servers.connections[server]
            groups = rows.requests(server, int(self._clock()))
            answers = _together(lambda requests: _score_all(connection, requests), groups)
            return list(chain.from_iterable(answers))

        def take(server: int, answers: list[ScoreAnswer]) -> None:
            self.bytes_sent += rows.n_bytes
            self.bytes_received += sum(answer.sums.nbytes for answer in answers)
            rows.add(server, answers)

        asking = Asking(self._servers, ask, take)
        try:
            while True:
                enough = self.timed("servers", lambda: asking.until(rows.n_missing))
                if not enough:
                    have = quorum.threshold - rows.n_missing()
                    raise self._servers.refusal("sums", have, quorum.threshold)
                is_done = self.timed("check", rows.combine)
                for server in rows.liars:
                    self._servers.mark(server, "lied", "its answer fails the check rows")
                if is_done:
                    return rows.sums()
        finally:
            for server, request, answer in rows.lies():
                self._on_lie(server, request, answer)

    def read(self, ranking: Ranking, sources: Sequence[Source], version: int) -> None:
        """Feed ``ranking`` until its hits are proved."""
        while wanted := ranking.wanted():
            self.read_round(ranking, wanted, sources, version)

    def read_round(
        self,
        ranking: Ranking,
        wanted: Sequence[tuple[int, int]],
        sources: Sequence[Source],
        version: int,
    ) -> None:
        """Read what ``ranking`` wants, (source, row) each, and feed it."""
        by_source: dict[int, list[int]] = {}
        for source, row in wanted:
            by_source.setdefault(source, []).append(row)

        by_group: dict[int, list[int]] = {}
        for number in by_source:
            by_group.setdefault(id(sources[number].group), []).append(number)

        rows = [[(sources[n], by_source[n]) for n in numbers] for numbers in by_group.values()]
        reads = _together(lambda wanted: self._read_rows(wanted, version), rows)
        n_reads = max(found.n_rounds for found in reads)
        self.n_rounds += n_reads
        self.n_reads += n_reads
        for numbers, found in zip(by_group.values(), reads, strict=True):
            self.n_slots += found.n_slots
            self.bytes_sent += found.bytes_sent
            self.bytes_received += found.bytes_received
            for number, records in zip(numbers, found.records, strict=True):
                for row in by_source[number]:
                    ranking.add(number, row, records[row])

    def _read_rows(
        self, wanted: Sequence[tuple[Source, Sequence[int]]], version: int
    ) -> _RecordsRead:
        """Read rows of some segments of one group from one server."""
        group = wanted[0][0].group
        found: list[_RecordsRead] = []

        def ask(server: int) -> _RecordsRead:
            def sign(request: RecordRequest) -> RecordRequest:
                named = replace(request, query_id=self._random.bytes(_QUERY_ID_BYTES))
                ticket = group.ticket(server, named, int(self._clock()))
                return request if ticket is None else replace(named, ticket=ticket)

            return _RecordsRead(
                self._servers.connections[server],
                wanted,
                sign,
                n_terms=len(group.dictionary.terms),
                version=version,
            )

        def take(_server: int, read: _RecordsRead) -> None:
            found.append(read)

        asking = Asking(self._servers, ask, take)
        if not asking.until(lambda: 1 - len(found)):
            raise self._servers.refusal("records", 0, 1)
        return found[0]


def _trapdoors(asked: Sequence[Asked]) -> list[Trapdoor]:
    """Return the trapdoor of each segment: one for all segments of a group."""
    made: dict[int, Trapdoor] = {}
    for one in asked:
        if id(one.view) not in made:
            made[id(one.view)] = make_trapdoor(one.view, one.question)
    return [made[id(one.view)] for one in asked]


def _together(work: Callable[[_A], _T], items: Sequence[_A]) -> list[_T]:
    """Do ``work`` for all items at once, in order; one alone needs no thread."""
    if len(items) == 1:
        return [work(items[0])]
    with ThreadPoolExecutor(min(len(items), _AT_ONCE_MAX), "groups") as pool:
        return list(pool.map(work, items))


class _Attempts:
    """Attempts on several segments, or blocks of them, that share the servers asked."""

    def __init__(
        self, views: Sequence[GroupView], attempts: Sequence[Attempt], quorum: Quorum
    ) -> None:
        self._views = views
        self._quorum = quorum
        self._attempts = attempts
        self._sums: dict[int, Sums] = {}
        self._answers: dict[tuple[int, int], ScoreAnswer] = {}

    @property
    def n_bytes(self) -> int:
        return sum(attempt.n_bytes for attempt in self._attempts)

    @property
    def liars(self) -> set[int]:
        return {server for attempt in self._attempts for server in attempt.liars}

    def requests(self, server: int, time_s: int) -> list[list[ScoreRequest]]:
        """Return the signed requests of each group, its segments in their order."""
        requests = [
            replace(request, ticket=view.ticket(server, request, time_s))
            for view, request in zip(
                self._views, (attempt.request(server) for attempt in self._attempts), strict=True
            )
        ]
        groups = groupby(zip(self._views, requests, strict=True), lambda pair: id(pair[0]))
        return [[request for _, request in group] for _, group in groups]

    def n_missing(self) -> int:
        """Return how many more answers the segment that has fewest good ones needs."""
        return max(
            self._quorum.threshold - attempt.n_honest
            for number, attempt in enumerate(self._attempts)
            if number not in self._sums
        )

    def add(self, server: int, answers: Sequence[ScoreAnswer]) -> None:
        """Take what a server answered for each segment; raise FormatError for a wrong one."""
        for number, answer in enumerate(answers):
            self._answers[number, server] = answer
        for attempt, answer in zip(self._attempts, answers, strict=True):
            attempt.add(server, answer)

    def lies(self) -> Iterator[tuple[int, ScoreRequest, ScoreAnswer]]:
        """Yield signed answers that were proved wrong, with server and question."""
        for number, attempt in enumerate(self._attempts):
            for server in attempt.liars:
                answer = self._answers[number, server]
                if answer.signature:
                    yield server, attempt.request(server), answer

    def combine(self) -> bool:
        """Prove what there is; return whether that is everything."""
        for number, attempt in enumerate(self._attempts):
            if number not in self._sums:
                with suppress(NotEnoughAnswers):
                    self._sums[number] = attempt.combine()
        return len(self._sums) == len(self._attempts)

    def sums(self) -> list[Sums]:
        """Return the proved sums of every attempt."""
        return [self._sums[number] for number in range(len(self._attempts))]


class _RecordsRead:
    """Records of some rows of segments of one group, fetched from one server and opened."""

    def __init__(
        self,
        connection: Connection,
        wanted: Sequence[tuple[Source, Sequence[int]]],
        sign: Callable[[RecordRequest], RecordRequest],
        *,
        n_terms: int,
        version: int,
    ) -> None:
        self._connection = connection
        self._segments = [source.segment for source, _ in wanted]
        self._sign = sign
        self._version = version
        self.n_rounds = 0
        self.n_slots = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        #: Of each segment, by row.
        self.records: list[Mapping[int, Record]] = [{} for _ in wanted]
        self._drive([read_records(source.segment.slots, rows, n_terms) for source, rows in wanted])

    def _drive(self, readings: Sequence[_Reading]) -> None:
        """Fetch what all readings want, in one call a round, until they are done."""
        slots = {number: next(reading) for number, reading in enumerate(readings)}
        while slots:
            self.n_rounds += 1
            fetched = self._fetch(slots)
            further: dict[int, NDArray[np.int64]] = {}
            for number, elements in fetched.items():
                try:
                    further[number] = readings[number].send(elements)
                except StopIteration as done:
                    self.records[number] = done.value
            slots = further

    def _fetch(self, slots: Mapping[int, NDArray[np.int64]]) -> dict[int, NDArray[np.uint16]]:
        """Return the elements of the slots of some segments."""
        parts = [
            (number, wanted[start : start + MAX_RECORDS])
            for number, wanted in slots.items()
            for start in range(0, len(wanted), MAX_RECORDS)
        ]
        requests = [self._request(number, wanted) for number, wanted in parts]
        received: dict[int, list[NDArray[np.uint16]]] = {}
        for (number, _), answer in zip(parts, self._ask(requests), strict=True):
            received.setdefault(number, []).append(answer.elements)
            self.bytes_received += answer.elements.nbytes
        self.n_slots += sum(len(wanted) for wanted in slots.values())
        self.bytes_sent += sum(wanted.nbytes for wanted in slots.values())
        return {
            number: pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            for number, pieces in received.items()
        }

    def _request(self, number: int, slots: NDArray[np.int64]) -> RecordRequest:
        segment = self._segments[number]
        return self._sign(
            RecordRequest(self._version, segment.id, slots, segment.slots.shape.width)
        )

    def _ask(self, requests: Sequence[RecordRequest]) -> list[RecordAnswer]:
        ask_all = getattr(self._connection, "records_all", None)
        if ask_all is None or len(requests) == 1:
            return [self._connection.records(request) for request in requests]
        answers: list[RecordAnswer] = []
        for few in _calls(requests):
            answers += ask_all(few)
        return answers


_Reading = Generator[NDArray[np.int64], NDArray[np.uint16], Mapping[int, Record]]


def _calls(requests: Sequence[RecordRequest]) -> Iterator[list[RecordRequest]]:
    """Cut requests into what one call may ask for."""
    few: list[RecordRequest] = []
    for request in requests:
        n_slots = sum(len(one.slots) for one in few) + len(request.slots)
        if few and (n_slots > MAX_RECORDS or len(few) == _SEGMENTS_A_CALL):
            yield few
            few = []
        few.append(request)
    if few:
        yield few


def _score_all(connection: Connection, requests: Sequence[ScoreRequest]) -> list[ScoreAnswer]:
    """Score the segments of one group, in few calls where the connection can."""
    ask_all = getattr(connection, "score_all", None)
    if ask_all is None or len(requests) == 1:
        return [connection.score(request) for request in requests]
    answers: list[ScoreAnswer] = []
    for start in range(0, len(requests), _SEGMENTS_A_CALL):
        answers += ask_all(requests[start : start + _SEGMENTS_A_CALL])
    return answers
