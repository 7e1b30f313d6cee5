"""Best-first descent of the MDB-tree: which blocks to open, wait after wait (step 8.12).

Nothing here talks to a server.  The caller opens what ``wanted`` names, ``add``s the proved sums,
reads the records that ``ranking`` wants, and asks again until neither wants anything.

The k-th exact score, the cutoff, is known once records were read.  Until then blocks are a guess:
the best ones by bound.  From then on every block that can hold a hit is named at once, so that most
searches wait four times: for the top, for the nodes, for the best blocks, for the rest.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mksearch.errors import VerificationError
from mksearch.index.record import Record
from mksearch.params import BLOCKS_MAX, P
from mksearch.query.answer import Sums
from mksearch.query.group import SegmentView
from mksearch.query.ranking import Ranking, Source

__all__ = ["WAITS", "Descent", "OpenedRanking", "Opening"]

#: Waits for sums after which nodes are passed over: what is below them is named outright.
WAITS: Final = 4
#: Cells of level 0 up to which a segment is read whole: less than a wait is worth anywhere.
_WHOLE_CELLS: Final = 1 << 20
#: And so is one with at most so many blocks for each that a guess would name.
_WHOLE_GUESSES: Final = 1
#: The first wait takes the lowest level above the documents with at most one in so many of their
#: cells: it is a fixed cost that grows with the collection, and saves a wait for those above it.
_START_SHARE: Final = 32
#: Of the nodes, those are opened by guess whose bound is at least this share of the best bound; and
#: later, beside blocks of documents, of the least bound among these.
_NODE_SHARE: Final = 0.4
_NODE_SHARE_LATER: Final = 0.7
#: Blocks of documents opened by guess, a hit wanted; at least so many.
_BLOCKS_A_HIT: Final = 3.5
_BLOCKS_MIN: Final = 12
#: Passing over nodes may cost one in so many cells of level 0; where it would cost more, a search
#: rather waits once more.
_PASS_SHARE: Final = 2
#: Records of the first round beyond the hits wanted, a hit: so that one poor record among the best
#: bounds does not spoil the cutoff.
_SPARE_RECORDS: Final = 0.5

_Bounds = NDArray[np.int64] | NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class Opening:
    """Blocks of one level of one segment, to be opened together.

    Attributes:
        source: number of the segment among the sources.
        level: of the tree.
        blocks: ascending, each once.
    """

    source: int
    level: int
    blocks: tuple[int, ...]


class OpenedRanking(Ranking):
    """Ranks rows that become known block after block."""

    def __init__(
        self,
        sources: Sequence[Source],
        k: int,
        *,
        offset: int = 0,
        max_records: int | None = None,
    ) -> None:
        """Start with no row known; arguments as for ``Ranking``, without bounds."""
        super().__init__(sources, k, offset=offset, max_records=max_records)
        self._bounds: dict[tuple[int, int], int] = {}

    @property
    def cutoff(self) -> int:
        """Exact score of the last hit wanted, -1 while fewer are known."""
        return self._cutoff()

    @property
    def n_wanted(self) -> int:
        """Hits wanted, those that are left out included."""
        return self._offset + self._k

    def offer(self, source: int, row: int, bound: int) -> None:
        """Learn that no document of ``row`` scores above ``bound``, which is above 0."""
        self._bounds[source, row] = bound
        heapq.heappush(self._heads, (-bound, source, row))

    def _round_size(self, n_missing: int) -> int:
        size = super()._round_size(n_missing)
        return size if self.n_records else size + int(_SPARE_RECORDS * n_missing)

    def add(self, source: int, row: int, record: Record) -> None:
        """Take the opened record of a wanted row.

        Raises:
            VerificationError: it scores above its bound, so the owner built the tree wrongly and
                what was left out cannot be trusted.
        """
        n_before = len(self._found)
        super().add(source, row, record)
        bound = self._bounds[source, row]
        if any(hit.score > bound for hit in self._found[n_before:]):
            segment = self._sources[source].segment.id.hex()[:16]
            raise VerificationError(
                f"a document of segment {segment} scores above the bound of its block",
                cure="its owner built it wrongly and publishes again; tell the owner",
            )


class _Tree:
    """The tree of one segment: blocks that are known and not opened, with their bounds.

    Bounds are in units of the segment's step; ``scored`` makes scores of them.
    """

    def __init__(self, source: Source) -> None:
        self.segment: SegmentView = source.segment
        numerator, denominator = source.segment.facts.kappa
        self._factor = source.segment.facts.step * numerator
        self._denominator = denominator
        #: By level: blocks (int64, ascending within what came together) and their bounds.
        self._closed: dict[int, tuple[NDArray[np.int64], _Bounds]] = {}
        #: Bounds of blocks that were named and not added yet; None where nothing is known.
        self._named: dict[tuple[int, int], int | None] = {}

    def scored(self, bound: int) -> int:
        """Return the score that no document with this bound exceeds."""
        return -(-self._factor * bound // self._denominator)

    def least(self, score: int) -> int:
        """Return the least bound, at least 1, of what may score ``score``."""
        return max(1, (score - 1) * self._denominator // self._factor + 1)

    def cells(self, level: int, n_blocks: int | None = None) -> int:
        """Return the cells of some blocks of a level, or of all."""
        count = self.segment.n_blocks(level) if n_blocks is None else n_blocks
        return count * self.segment.block.height * self.segment.geometry(level).width

    def start_level(self, n_guess: int) -> int:
        """Return the level of which every block is opened first; a guess names ``n_guess``."""
        nodes = range(1, self.segment.n_levels)
        is_small = self.segment.n_blocks(0) <= _WHOLE_GUESSES * n_guess
        if not nodes or is_small or self.cells(0) <= _WHOLE_CELLS:
            return 0
        least = min(self.cells(level) for level in nodes)
        most = max(least, self.cells(0) // _START_SHARE)
        return next(level for level in nodes if self.cells(level) <= most)

    def open_level(self, level: int) -> list[int]:
        """Name every block of a level."""
        blocks = list(range(self.segment.n_blocks(level)))
        self._named.update(dict.fromkeys(((level, block) for block in blocks), None))
        return blocks

    def levels(self) -> list[int]:
        """Return levels with blocks that are not opened."""
        return sorted(level for level, (blocks, _) in self._closed.items() if len(blocks))

    def best(self, level: int) -> int:
        """Return the largest bound of a block of a level that is not opened."""
        return int(self._closed[level][1].max())

    def bounds(self, level: int) -> list[int]:
        """Return bounds of the blocks of a level that are not opened."""
        found: list[int] = self._closed[level][1].tolist()
        return found

    def take(self, level: int, least: int) -> list[int]:
        """Name the blocks of a level whose bound is at least ``least``."""
        return [block for block, _ in self._take(level, least)]

    def _take(self, level: int, least: int) -> list[tuple[int, int]]:
        if level not in self._closed:
            return []
        blocks, bounds = self._closed[level]
        chosen = np.flatnonzero(bounds >= least)
        keep = np.ones(len(blocks), np.bool_)
        keep[chosen] = False
        self._closed[level] = blocks[keep], bounds[keep]
        taken = [(int(blocks[at]), int(bounds[at])) for at in chosen]
        self._named.update({(level, block): bound for block, bound in taken})
        return taken

    def drop(self, least: int) -> None:
        """Forget blocks below ``least``: nothing in them is ever a hit."""
        for level, (blocks, bounds) in self._closed.items():
            keep = bounds >= least
            if not keep.all():
                self._closed[level] = blocks[keep], bounds[keep]

    def count(self, level: int, least: int) -> int:
        """Return how many blocks of a level that are not opened have a bound of ``least``."""
        return int((self._closed[level][1] >= least).sum()) if level in self._closed else 0

    def pass_over(self, level: int, least: int) -> list[int]:
        """Name all blocks of level 0 below nodes whose bound is at least ``least``."""
        width = self.segment.block.fan_out**level
        below: list[int] = []
        for node, bound in self._take(level, least):
            del self._named[level, node]
            last = min((node + 1) * width, self.segment.n_blocks(0))
            children = range(node * width, last)
            below += children
            self._named.update({(0, block): bound for block in children})
        return below

    def add(self, level: int, blocks: Sequence[int], bounds: _Bounds) -> _Bounds:
        """Learn the bounds of the rows of blocks that were named.

        Args:
            level: of the blocks.
            blocks: their numbers.
            bounds: (n_blocks, fan_out), of their rows.

        Returns:
            the same, where a node's bound is tighter that one.
        """
        above = [self._named.pop((level, block)) for block in blocks]
        for at, bound in enumerate(above):
            if bound is not None:
                bounds[at] = np.minimum(bounds[at], bound)
        if level:
            rows = self.rows_of(blocks)
            known = (bounds > 0) & (rows < self.segment.n_blocks(level - 1))
            found = rows[known], bounds[known]
            before = self._closed.get(level - 1, (rows[:0, 0], bounds[:0, 0]))
            self._closed[level - 1] = (
                np.concatenate([before[0], found[0]]),
                np.concatenate([before[1], found[1]]),
            )
        return bounds

    def rows_of(self, blocks: Sequence[int]) -> NDArray[np.int64]:
        """Return the rows of some blocks: int64 (n_blocks, fan_out)."""
        fan_out = self.segment.block.fan_out
        return np.array(blocks, np.int64)[:, None] * fan_out + np.arange(fan_out)


class Descent:
    """One search over the trees of some segments.

    Attributes:
        ranking: ranks the rows that are known.
        n_waits: waits for sums so far.
        n_blocks: blocks named so far.
        n_cells: cells that a server read for them.
        opened: every opening named, in order.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        k: int,
        *,
        offset: int = 0,
        max_records: int | None = None,
    ) -> None:
        """Start at the top; arguments as for ``OpenedRanking``."""
        self.ranking = OpenedRanking(sources, k, offset=offset, max_records=max_records)
        self._trees = [_Tree(source) for source in sources]
        self._gone = [set(source.segment.gone_rows.tolist()) for source in sources]
        self._all_cells = sum(tree.cells(0) for tree in self._trees)
        self._n_guessed = 0
        self.opened: list[Opening] = []
        self.n_waits = 0

    @property
    def n_blocks(self) -> int:
        """Blocks named so far."""
        return sum(len(opening.blocks) for opening in self.opened)

    @property
    def n_cells(self) -> int:
        """Cells that each server asked has read for them, a vector."""
        return self.cells_of(self.opened)

    @property
    def n_all_cells(self) -> int:
        """Cells that the mode ``all`` reads."""
        return self._all_cells

    @property
    def is_done(self) -> bool:
        """Tell whether no block that is left can hold a hit, after what is known now."""
        cutoff = self.ranking.cutoff
        return self.n_waits > 0 and not any(
            tree.count(level, tree.least(cutoff)) for tree in self._trees for level in tree.levels()
        )

    def cells_of(self, openings: Iterable[Opening]) -> int:
        """Return the cells that a server reads for some openings."""
        return sum(self._trees[o.source].cells(o.level, len(o.blocks)) for o in openings)

    def wanted(self, spare_cells: int = 0) -> list[Opening]:
        """Return what to open now; empty when no block that is left can hold a hit.

        Args:
            spare_cells: cells that take a server about as long as a wait takes; so many are read
                beyond what is needed, by falling bound, while the cutoff is not known.
        """
        cutoff = self.ranking.cutoff
        for tree in self._trees:
            tree.drop(tree.least(cutoff))
        if not self.n_waits:
            found = [self._start(number) for number in range(len(self._trees))]
        elif cutoff > 0:
            found = self._rest(cutoff)
        else:
            found = self._guess(spare_cells)
        found = [part for opening in found for part in _parts(opening)]
        if found:
            self.n_waits += 1
            self.opened += found
        return found

    @property
    def _n_guess(self) -> int:
        """Blocks of documents that the first guess names."""
        return max(_BLOCKS_MIN, int(_BLOCKS_A_HIT * self.ranking.n_wanted))

    def _start(self, number: int) -> Opening:
        tree = self._trees[number]
        level = tree.start_level(self._n_guess)
        return Opening(number, level, tuple(tree.open_level(level)))

    def _rest(self, cutoff: int) -> list[Opening]:
        """Name everything that may hold a hit; on the last wait nodes are passed over."""
        is_last = self.n_waits + 1 >= WAITS
        n_passed = sum(
            tree.count(level, tree.least(cutoff))
            * tree.cells(0, min(tree.segment.block.fan_out**level, tree.segment.n_blocks(0)))
            for tree in self._trees
            for level in tree.levels()
            if level
        )
        passes = is_last and _PASS_SHARE * n_passed <= self._all_cells
        found = []
        for number, tree in enumerate(self._trees):
            least = tree.least(cutoff)
            documents = tree.take(0, least)
            for level in [level for level in tree.levels() if level]:
                if passes:
                    documents += tree.pass_over(level, least)
                else:
                    nodes = tree.take(level, least)
                    found.append(Opening(number, level, tuple(sorted(nodes))))
            found.append(Opening(number, 0, tuple(sorted(documents))))
        return found

    def _guess(self, spare_cells: int) -> list[Opening]:
        """Name the blocks of documents with the best bounds, and nodes that may lead to such."""
        cut = self._cut(spare_cells)
        nodes = [(tree, level) for tree in self._trees for level in tree.levels() if level]
        if cut:
            least_node = int(_NODE_SHARE_LATER * cut)
        else:
            top = max((tree.scored(tree.best(level)) for tree, level in nodes), default=0)
            least_node = int(_NODE_SHARE * top)
        return [
            Opening(number, level, tuple(sorted(tree.take(level, tree.least(least)))))
            for number, tree in enumerate(self._trees)
            for level in tree.levels()
            if (least := least_node if level else cut)
        ]

    def _cut(self, spare_cells: int) -> int:
        """Return the score that the best known blocks of documents promise, 0 without any."""
        ordered: list[tuple[int, int]] = []
        for tree in self._trees:
            if 0 in tree.levels():
                cells = tree.cells(0, 1)
                ordered += [(tree.scored(bound), cells) for bound in tree.bounds(0)]
        if not ordered:
            return 0
        ordered.sort(reverse=True)
        n_wanted = max(self._n_guess, self._n_guessed)
        # Twice as many where these do not bring the hits wanted.
        self._n_guessed = 2 * n_wanted
        n_cells, cut = 0, 0
        for at, (bound, cells) in enumerate(ordered):
            n_cells += cells
            if at >= n_wanted and n_cells > spare_cells:
                break
            cut = bound
        return cut

    def add(self, opening: Opening, sums: Sums, units: Iterable[int]) -> None:
        """Take the proved sums of what was named.

        Args:
            opening: as ``wanted`` returned it.
            sums: uint16 (n_vectors, n_blocks * height, tables).
            units: query weight of one unit of each vector.
        """
        tree = self._trees[opening.source]
        bounds = _block_bounds(tree.segment, sums, list(units))
        bounds = tree.add(opening.level, opening.blocks, bounds)
        if opening.level:
            return
        rows = tree.rows_of(opening.blocks)
        least = tree.least(self.ranking.cutoff)
        gone = self._gone[opening.source]
        wanted = (bounds >= least) & (rows < tree.segment.n_rows)
        for row, bound in zip(rows[wanted].tolist(), bounds[wanted].tolist(), strict=True):
            if row not in gone:
                self.ranking.offer(opening.source, row, tree.scored(bound))


def _parts(opening: Opening) -> list[Opening]:
    """Cut an opening into what one request may name; nothing for no block."""
    starts = range(0, len(opening.blocks), BLOCKS_MAX)
    return [replace(opening, blocks=opening.blocks[at : at + BLOCKS_MAX]) for at in starts]


def _block_bounds(segment: SegmentView, sums: Sums, units: Sequence[int]) -> _Bounds:
    """Return the bounds of the data rows of some blocks: (n_blocks, fan_out); see 8.8."""
    n_vectors, _, n_tables = sums.shape
    by_block = sums.reshape(n_vectors, -1, segment.block.height, n_tables)
    smallest = by_block[:, :, : segment.block.fan_out].min(axis=3)
    # As in ranking.row_bounds: a word repeated millions of times is beyond 64 bits.
    dtype = np.int64 if sum(units) * (P - 1) < 1 << 63 else np.object_
    return np.tensordot(np.array(units, dtype), smallest.astype(dtype), axes=1)
