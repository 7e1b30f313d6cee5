"""A search that opens one block after another, the best bound first (steps 8.11 and 8.12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Protocol

from .field import shamir
from .refused import Refused, require
from .search import (
    Accepted,
    Answer,
    Found,
    Hit,
    HonestServer,
    Member,
    Server,
    Sums,
    View,
    combine,
    query_vector,
    require_answer,
)
from .text import deal, quantised_query


class BlockServer(Server, Protocol):
    """What a client that names blocks asks of a server."""

    def answer_blocks(
        self, query_id: bytes, level: int, share: list[int], blocks: Sequence[int]
    ) -> Answer:
        """Return the sums of the blocks (8.11)."""


class HonestBlockServer(HonestServer):
    """A server that follows the protocol and remembers which blocks it read."""

    def answer_blocks(
        self, query_id: bytes, level: int, share: list[int], blocks: Sequence[int]
    ) -> Answer:
        """Return the sums of the blocks."""
        size = self.segment.fan_out + self.segment.n_checks
        require_blocks(blocks, len(self.segment.levels[level].matrix) // size)
        whole = self.answer(query_id, level, share).sums
        return Answer(query_id, [row for b in blocks for row in whole[b * size : (b + 1) * size]])


def require_blocks(blocks: Sequence[int], n_blocks: int) -> None:
    """Refuse blocks at 8.11.1 and 8.11.2."""
    ascend = all(a < b for a, b in pairwise(blocks))
    require(0 < len(blocks) <= 65536 and ascend, "8.11.1", "blocks that do not ascend")
    require(blocks[0] >= 0 and blocks[-1] < n_blocks, "8.11.2", "a block that is not there")


def run_blocks(
    view: View,
    blocks: Sequence[int],
    q: Sequence[int],
    coefficients: Sequence[Sequence[int]],
    servers: Mapping[int, BlockServer],
    query_id: bytes = bytes(16),
) -> Accepted:
    """Ask servers in turn until t + 1 right answers agree; sums by physical row (8.2 to 8.7)."""
    threshold = len(coefficients) + 1
    rows = [row for block in blocks for row in view.rows_of(block)]
    answers, liars = dict[int, Sums](), set[int]()
    for j, server in servers.items():
        share = shamir(q, coefficients, j)
        answer = server.answer_blocks(query_id, view.level, share, blocks)
        try:
            answers[j] = require_answer(answer, query_id, len(rows), view.columns.n_tables)
        except Refused:
            liars.add(j)
        if len(answers) < threshold:
            continue
        combined = combine(answers)
        sums = view.unmask(dict(zip(rows, combined, strict=True)), q, rows)
        failing = [block for block in blocks if not view.holds(block, sums)]
        if not failing:
            return Accepted(sums, frozenset(liars))
        for i in list(answers):
            own = dict(zip(rows, answers[i], strict=True))
            if any(view.lied(block, own, shamir(q, coefficients, i)) for block in failing):
                liars.add(i)
                del answers[i]
    raise Refused("8.7", f"{len(answers)} answers, {threshold} needed", liars)


def descend(
    me: Member,
    terms: Sequence[str],
    k: int,
    draw: Callable[[int], list[int]],
    t: int,
    servers: Mapping[int, BlockServer],
) -> tuple[Found, list[tuple[int, int]]]:
    """Search (8.12); return what was found and (level, block) as they were opened."""
    query = me.query(terms)
    ratios = me.dictionary.ratios
    weights = query if ratios is None else {i: -(-x * ratios[i] // 2**16) for i, x in query.items()}
    parts = quantised_query(weights, deal(weights))
    fan_out = me.segment.fan_out
    gone = {row for row, whole in me.gone.values() if whole}
    top = len(me.segment.levels) - 1
    #: Bound, kind and place of what was not looked at: a block of a level, or a row (level -1).
    waiting: list[tuple[Fraction, int, int]] = [(Fraction(1 << 200), top, 0)]
    hits: list[Hit] = []
    liars, opened, n_records = frozenset[int](), list[tuple[int, int]](), 0
    while waiting:
        waiting.sort()
        bound, level, place = waiting.pop()
        if bound <= 0 or (len(hits) >= k and hits[k - 1].score > bound):
            break
        if level < 0:
            found, refused = me.fetch(place, query, servers)
            n_records += 1
            liars |= refused
            if any(hit.score > bound for hit in found):
                raise Refused("8.12", "a score above its bound")
            hits = sorted(hits + found, key=lambda hit: (-hit.score, hit.external_id.encode()))
            continue
        opened.append((level, place))
        view = me.views[level]
        totals = dict.fromkeys(view.rows_of(place)[:fan_out], 0)
        for part in parts:
            coefficients = [draw(view.columns.width) for _ in range(t)]
            q = query_vector(part, view.columns)
            accepted = run_blocks(view, [place], q, coefficients, servers)
            liars |= accepted.liars
            for row in totals:
                totals[row] += part.u * min(accepted.sums[row])
        for at, total in enumerate(totals.values()):
            child = place * fan_out + at
            below = min(bound, me.score_bound(total))
            if level or child not in gone:
                waiting.append((below, level - 1, child))
    return Found(hits[:k], True, liars, n_records), opened
