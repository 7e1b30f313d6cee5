"""Privacy ``full``: records are fetched by shared selectors, so no server sees which.

Data flow: proved bounds -> rounds of a public number of fetches from every segment asked: wanted
groups of slots, then the next by bound, then random ones -> t + 1 servers, further ones on failure
-> every fetch proved by its tags -> slots opened -> ranking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.randomness import RandomSource
from mksearch.errors import NotEnoughAnswers, ParameterError
from mksearch.messages import SelectAnswer, SelectRequest
from mksearch.params import SELECTOR_BYTES_MAX, Quorum
from mksearch.query.ranking import Ranking, Source
from mksearch.query.records import read_records
from mksearch.query.selection import Selection, fetch_sizes, pad_groups
from mksearch_client.asking import Asking, Servers
from mksearch_client.fetching import Connection, SelectingConnection
from mksearch_client.rounds import SearchRounds

__all__ = ["PrivateRecords"]

#: Requests of one call: what a server takes.
_REQUESTS_A_CALL = 64


class PrivateRecords:
    """The record fetches of one search.

    Attributes:
        sizes: fetches of each round from every segment asked: what servers see.
    """

    def __init__(
        self,
        run: SearchRounds,
        servers: Servers[Connection],
        sources: Sequence[Source],
        *,
        quorum: Quorum,
        version: int,
        random: RandomSource,
        clock: Callable[[], float],
    ) -> None:
        """Prepare to fetch.

        Args:
            run: counts rounds, bytes and times of the search.
            servers: whom to ask.
            sources: segments asked, with their bounds.
            quorum: number of servers and collusion bound.
            version: of the collection.
            random: source of the polynomials and dummies.
            clock: Unix seconds.
        """
        self._run = run
        self._servers = servers
        self._sources = sources
        self._quorum = quorum
        self._version = version
        self._random = random
        self._clock = clock
        self.sizes: list[int] = []
        #: Of each source, by group.
        self._held: list[dict[int, NDArray[np.uint16]]] = [{} for _ in sources]

    def read(self, ranking: Ranking) -> None:
        """Feed ``ranking`` until its hits are proved.

        Raises:
            AnswerRefused: servers lied and too few honest ones remain; they are named.
            NotEnoughAnswers: fewer than t + 1 servers answered.
            VerificationError: a proved record does not open: the owner's segment is wrong.
        """
        while wanted := ranking.wanted():
            rows: dict[int, list[int]] = {}
            for source, row in wanted:
                rows.setdefault(source, []).append(row)
            self._read_rows(ranking, rows)
        if not self.sizes:
            # No row can be a hit; who sees the servers must not see that.
            self._fetch({})

    def _read_rows(self, ranking: Ranking, rows: Mapping[int, Sequence[int]]) -> None:
        readings = {}
        for number, of_source in rows.items():
            source = self._sources[number]
            n_terms = len(source.group.dictionary.terms)
            readings[number] = read_records(source.segment.slots, of_source, n_terms)
        wanted = {number: next(reading) for number, reading in readings.items()}
        while wanted:
            missing = {number: self._missing(number, slots) for number, slots in wanted.items()}
            if any(missing.values()):
                self._fetch(missing)
            further = {}
            for number, slots in wanted.items():
                try:
                    further[number] = readings[number].send(self._elements(number, slots))
                except StopIteration as done:
                    for row in rows[number]:
                        ranking.add(number, row, done.value[row])
            wanted = further

    def _groups_of(self, number: int, slots: NDArray[np.int64]) -> list[int]:
        """Return the group of each slot."""
        groups: list[int] = (slots // self._sources[number].segment.slots.group_slots).tolist()
        return groups

    def _missing(self, number: int, slots: NDArray[np.int64]) -> list[int]:
        """Return groups of wanted slots that are not here yet, each once."""
        held = self._held[number]
        return [g for g in dict.fromkeys(self._groups_of(number, slots)) if g not in held]

    def _elements(self, number: int, slots: NDArray[np.int64]) -> NDArray[np.uint16]:
        """Return slots of groups that are here: uint16 (n, slot width)."""
        places = slots % self._sources[number].segment.slots.group_slots
        groups = self._groups_of(number, slots)
        held = self._held[number]
        return np.stack([held[g][place] for g, place in zip(groups, places, strict=True)])

    def _fetch(self, missing: Mapping[int, Sequence[int]]) -> None:
        """Fetch groups in one round, as many from every segment."""
        most = max((len(groups) for groups in missing.values()), default=0)
        sizes = fetch_sizes(most, is_first=not self.sizes)
        self.sizes.append(sum(sizes))
        selections: list[Selection] = []
        numbers: list[int] = []
        for number, source in enumerate(self._sources):
            groups = self._fill(number, missing.get(number, ()), sum(sizes))
            start = 0
            for size in sizes:
                part = groups[start : start + size]
                selections.append(
                    Selection(
                        source.segment, part, self._quorum, self._random, version=self._version
                    )
                )
                numbers.append(number)
                start += size
        found = self._prove(numbers, selections)
        for number, selection, elements in zip(numbers, selections, found, strict=True):
            self._held[number].update(zip(selection.groups.tolist(), elements, strict=True))

    def _fill(self, number: int, wanted: Sequence[int], n_fetches: int) -> NDArray[np.int64]:
        """Return the groups of a round: wanted ones, the next by bound, then random ones."""
        source, held = self._sources[number], self._held[number]
        slots = source.segment.slots
        groups = dict.fromkeys(wanted)
        bounds = source.bounds
        # Each group that is here or taken may hold several of the best rows.
        n_best = min(len(bounds), 2 * (n_fetches + len(held) * slots.group_slots))
        best = np.argpartition(-bounds, n_best - 1)[:n_best]
        for row in best[np.argsort(-bounds[best], kind="stable")]:
            if len(groups) >= n_fetches or not bounds[row]:
                break
            group = slots.physical(int(row)) // slots.group_slots
            if group not in held:
                groups[group] = None
        return pad_groups(slots, list(groups), n_fetches, self._random)

    def _prove(
        self, numbers: Sequence[int], selections: Sequence[Selection]
    ) -> list[NDArray[np.uint16]]:
        """Ask t + 1 servers, and further ones, until every selection is proved; one round."""
        run, threshold = self._run, self._quorum.threshold
        run.n_rounds += 1
        fetches = _Selections(selections, threshold)

        def ask(server: int) -> list[SelectAnswer]:
            asked = []
            for number, request in zip(numbers, fetches.requests(server), strict=True):
                ticket = self._sources[number].group.ticket(server, request, int(self._clock()))
                asked.append(replace(request, ticket=ticket))
            return _select_all(self._servers.connections[server], asked)

        def take(server: int, answers: list[SelectAnswer]) -> None:
            run.bytes_sent += fetches.n_bytes
            run.bytes_received += sum(answer.elements.nbytes for answer in answers)
            fetches.add(server, answers)

        asking = Asking(self._servers, ask, take)
        is_done = False
        while not is_done:
            if not run.timed("servers", lambda: asking.until(fetches.n_missing)):
                have = threshold - fetches.n_missing()
                raise self._servers.refusal("groups of records", have, threshold)
            is_done = run.timed("check", fetches.combine)
            for server in fetches.liars:
                self._servers.mark(server, "lied", "its record slots fail their tags")
        return fetches.elements()


class _Selections:
    """Selections that share the servers asked."""

    def __init__(self, selections: Sequence[Selection], threshold: int) -> None:
        self._selections = selections
        self._threshold = threshold
        self._proved: dict[int, NDArray[np.uint16]] = {}
        self.n_bytes = sum(selection.n_bytes for selection in selections)

    @property
    def liars(self) -> set[int]:
        return {server for selection in self._selections for server in selection.liars}

    def requests(self, server: int) -> list[SelectRequest]:
        return [selection.request(server) for selection in self._selections]

    def add(self, server: int, answers: Sequence[SelectAnswer]) -> None:
        """Take what a server answered; raise FormatError for a wrong answer."""
        for selection, answer in zip(self._selections, answers, strict=True):
            selection.add(server, answer)

    def n_missing(self) -> int:
        """Return how many more answers the selection that has fewest good ones needs."""
        waiting = [s for n, s in enumerate(self._selections) if n not in self._proved]
        return max((self._threshold - s.n_honest for s in waiting), default=0)

    def combine(self) -> bool:
        """Prove what there is; return whether that is everything."""
        for number, selection in enumerate(self._selections):
            if number not in self._proved:
                with suppress(NotEnoughAnswers):
                    self._proved[number] = selection.combine()
        return len(self._proved) == len(self._selections)

    def elements(self) -> list[NDArray[np.uint16]]:
        """Return the groups of every selection."""
        return [self._proved[number] for number in range(len(self._selections))]


def _select_all(connection: Connection, requests: Sequence[SelectRequest]) -> list[SelectAnswer]:
    """Select in few calls where the connection can."""
    if not isinstance(connection, SelectingConnection):
        raise ParameterError("a server without selection was given", cure="use another privacy")
    ask_all = getattr(connection, "select_all", None)
    if ask_all is None or len(requests) == 1:
        return [connection.select(request) for request in requests]
    answers: list[SelectAnswer] = []
    for few in _calls(requests):
        answers += ask_all(few)
    return answers


def _calls(requests: Sequence[SelectRequest]) -> Iterator[list[SelectRequest]]:
    """Cut requests into what one call may bring."""
    few: list[SelectRequest] = []
    for request in requests:
        n_bytes = sum(one.selectors.nbytes for one in few) + request.selectors.nbytes
        if few and (n_bytes > SELECTOR_BYTES_MAX or len(few) == _REQUESTS_A_CALL):
            yield few
            few = []
        few.append(request)
    if few:
        yield few
