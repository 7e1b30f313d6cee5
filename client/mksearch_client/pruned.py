"""Privacy ``fast``: servers read only the blocks that the client names, best bound first.

Data flow: trapdoors of every level -> blocks named, t + 1 servers -> proved sums -> bounds of what
is below -> records of the best rows -> cutoff -> the blocks that can still hold a hit -> hits.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from mksearch.crypto.randomness import RandomSource
from mksearch.params import Quorum
from mksearch.query.answer import Attempt
from mksearch.query.descent import Descent, OpenedRanking, Opening
from mksearch.query.ranking import Source
from mksearch.query.trapdoor import Trapdoor, make_trapdoor
from mksearch_client.learned import OpenedLevel
from mksearch_client.rounds import Asked, SearchRounds

__all__ = ["Pace", "PrunedSearch"]

#: Waits that a pace is measured over.
_SAMPLES = 32
_SAMPLES_MIN = 4
#: Blocks beyond the needed ones hold at most one in so many cells of level 0, however long a wait.
_SPARE_SHARE = 128
#: Rounds of records between two waits for sums: they bring the cutoff up before blocks are named.
_ROUNDS_BETWEEN = 2


class Pace:
    """How long servers take for nothing and for cells, from the waits so far."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._waits: deque[tuple[int, float]] = deque(maxlen=_SAMPLES)

    def note(self, n_cells: int, seconds: float) -> None:
        """Learn how long a wait for the sums of so many cells was."""
        self._waits.append((n_cells, seconds))

    @property
    def spare_cells(self) -> int:
        """Cells that take a server as long as a wait takes without any; 0 while that is unknown."""
        waits = np.array(self._waits, np.float64).reshape(-1, 2)
        if len(waits) < _SAMPLES_MIN:
            return 0
        cells, seconds = waits.T - waits.mean(axis=0)[:, None]
        spread = float(cells @ cells)
        each_s = float(cells @ seconds) / spread if spread else 0.0
        if each_s <= 0:
            return 0
        wait_s = float(waits[:, 1].mean() - each_s * waits[:, 0].mean())
        return max(0, int(wait_s / each_s))


class PrunedSearch:
    """One search that names blocks.

    Attributes:
        descent: what was opened.
    """

    def __init__(
        self,
        run: SearchRounds,
        asked: Sequence[Asked],
        *,
        quorum: Quorum,
        version: int,
        random: RandomSource,
        pace: Pace,
        k: int,
        offset: int,
        max_records: int | None,
    ) -> None:
        """Prepare to ask.

        Args:
            run: the rounds of the search.
            asked: segments and questions.
            quorum: number of servers and collusion bound.
            version: of the collection.
            random: source of the polynomials.
            pace: of the servers; learns from this search.
            k: hits wanted.
            offset: hits left out before them.
            max_records: records that may be read.
        """
        self._run = run
        self._asked = asked
        self._quorum = quorum
        self._version = version
        self._random = random
        self._pace = pace
        nothing = np.zeros(0, np.int64)
        self._sources = [Source(a.view, a.segment, a.question, nothing) for a in asked]
        self.descent = Descent(self._sources, k, offset=offset, max_records=max_records)
        self._trapdoors: dict[tuple[int, int], Trapdoor] = {}

    def find(self) -> OpenedRanking:
        """Open blocks and read records until the hits are proved; return the ranking.

        Raises:
            AnswerRefused: servers lied and too few honest ones remain; they are named.
            NotEnoughAnswers: fewer than t + 1 servers answered.
            VerificationError: the tree or a record is not right.
        """
        descent, ranking = self.descent, self.descent.ranking
        for one in self._asked:
            self._run.n_vectors += len(self._trapdoor(one, 0).vectors)
        while ranking.exact:
            spare = min(self._pace.spare_cells, descent.n_all_cells // _SPARE_SHARE)
            openings = descent.wanted(spare)
            if openings:
                self._open(openings)
            self._run.timed("records", self._read)
            if not openings:
                break
        return ranking

    def _read(self) -> None:
        """Read records: a few rounds while blocks are left to open, else all that are wanted."""
        n_rounds = 0
        ranking = self.descent.ranking
        while (n_rounds < _ROUNDS_BETWEEN or self.descent.is_done) and (wanted := ranking.wanted()):
            self._run.read_round(ranking, wanted, self._sources, self._version)
            n_rounds += 1

    def _trapdoor(self, one: Asked, level: int) -> Trapdoor:
        """Return the vectors of a level: the same for all segments of a group."""
        key = id(one.view), level
        if key not in self._trapdoors:
            make = self._run.timed
            self._trapdoors[key] = make(
                "trapdoor", lambda: make_trapdoor(one.view, one.question, level)
            )
        return self._trapdoors[key]

    def _open(self, openings: Sequence[Opening]) -> None:
        """Have the named blocks scored and proved, all in one wait."""
        openings = sorted(openings, key=lambda opening: (opening.source, opening.level))
        views, attempts, units = [], [], []
        for opening in openings:
            one = self._asked[opening.source]
            trapdoor = self._trapdoor(one, opening.level)
            views.append(one.view)
            units.append(trapdoor.units)
            attempts.append(
                # Other blocks are another attempt, with a polynomial of its own.
                Attempt(
                    one.segment,
                    trapdoor,
                    self._quorum,
                    self._random,
                    version=self._version,
                    level=opening.level,
                    blocks=opening.blocks,
                )
            )
        started = time.perf_counter()
        sums = self._run.prove(views, attempts, self._quorum)
        self._pace.note(self.descent.cells_of(openings), time.perf_counter() - started)
        for opening, found, unit in zip(openings, sums, units, strict=True):
            self.descent.add(opening, found, unit)

    def counts(self) -> dict[str, Any]:
        """Return the fields of the result that only this privacy has."""
        descent = self.descent
        return {
            "blocks_opened": descent.n_blocks,
            "score_waits": descent.n_waits,
            "cells_share": descent.n_cells / max(1, descent.n_all_cells),
        }

    def opened(self) -> tuple[OpenedLevel, ...]:
        """Return what of each level was opened, the root's first."""
        counts: Counter[int] = Counter()
        for opening in self.descent.opened:
            counts[opening.level] += len(opening.blocks)
        return tuple(
            OpenedLevel(
                level,
                counts[level],
                sum(
                    one.segment.n_blocks(level)
                    for one in self._asked
                    if level < one.segment.n_levels
                ),
            )
            for level in sorted(counts, reverse=True)
        )
