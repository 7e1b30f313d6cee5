"""What one search showed to the servers, from the facts of that search.

The one place that says it: docs/threat-model.md has the same as a table, with the reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mksearch.params import Quorum

__all__ = ["Learned", "OpenedLevel", "SearchFacts", "Shown", "what_was_learned"]

#: To whom something was shown: t servers that work together, or one more.
_FEW, _MANY = "t", "t+1"


@dataclass(frozen=True, slots=True)
class OpenedLevel:
    """The blocks of one level that a search named, over all segments.

    Attributes:
        level: 0 for documents, nodes above.
        n_opened: blocks named.
        n_blocks: blocks that there are.
    """

    level: int
    n_opened: int
    n_blocks: int

    def __str__(self) -> str:
        what = f"nodes of level {self.level}" if self.level else "blocks of documents"
        return f"{self.n_opened} of {self.n_blocks} {what}"


@dataclass(frozen=True, slots=True)
class SearchFacts:
    """What a search did, as far as servers can see it.

    Attributes:
        mode: full, balanced or fast.
        quorum: number of servers and collusion bound.
        n_groups: policy groups asked.
        n_vectors: of the query, over all groups and segments.
        n_slots: record slots read by number.
        fetches: private fetches from each segment, dummies included, round by round.
        opened: what of each level was opened by name, the root's level first.
        n_steps: in how many steps, one after another.
        n_reads: rounds of records, as far as they were read by number.
        n_failed: servers in whose place others were asked, or that answered wrongly.
    """

    mode: str
    quorum: Quorum
    n_groups: int
    n_vectors: int
    n_slots: int = 0
    fetches: Sequence[int] = ()
    opened: Sequence[OpenedLevel] = ()
    n_steps: int = 0
    n_reads: int = 0
    n_failed: int = 0


@dataclass(frozen=True, slots=True)
class Shown:
    """One thing that servers learned.

    Attributes:
        to: "t" for up to t servers together, "t+1" for one more.
        what: query, groups, blocks, records, fetches, failures, columns.
        count: how many, 0 where that means nothing.
        says: the same in words, a whole sentence.
    """

    to: str
    what: str
    count: int
    says: str


@dataclass(frozen=True, slots=True)
class Learned:
    """All that servers learned from one search.

    Attributes:
        mode: of the search.
        shown: to t servers first.
    """

    mode: str
    shown: tuple[Shown, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """One sentence each, for people."""
        return tuple(one.says for one in self.shown)

    def to_json(self) -> dict[str, Any]:
        """Return the same as data."""
        return {
            to: [
                {"what": one.what, "count": one.count} for one in self.shown if one.to in including
            ]
            for to, including in ((_FEW, (_FEW,)), (_MANY, (_FEW, _MANY)))
        }


def what_was_learned(facts: SearchFacts) -> Learned:
    """Say what a search showed to t servers together and to t + 1."""
    return Learned(facts.mode, (*_to_few(facts), *_to_many(facts)))


def _counted(n: int, one: str, many: str) -> str:
    return f"1 {one}" if n == 1 else f"{n} {many}"


def _few(facts: SearchFacts) -> str:
    t = facts.quorum.collusion_bound
    return "1 server alone" if t == 1 else f"up to {t} colluding servers"


def _to_few(facts: SearchFacts) -> Iterator[Shown]:
    few = _few(facts)
    length = _counted(facts.n_vectors, "vector", "vectors")
    groups = f", to which {facts.n_groups} policy groups," if facts.n_groups > 1 else ""
    yield Shown(
        _FEW,
        "query",
        facts.n_vectors,
        f"{few}: that a query of {length} came{groups} and when; no word, weight or score of it",
    )
    if facts.n_groups > 1:
        yield Shown(
            _FEW,
            "groups",
            facts.n_groups,
            f"{few}: that you satisfy the policies of these {facts.n_groups} groups, and no other "
            "attribute of yours",
        )
    if facts.mode == "fast":
        yield _blocks(facts)
    yield _fetches(facts) if facts.mode == "full" else _records(facts)
    if facts.n_failed:
        yield Shown(
            _FEW,
            "failures",
            facts.n_failed,
            f"every server asked: that {_counted(facts.n_failed, 'server', 'servers')} failed or "
            "answered wrongly and another was asked; that does not depend on the query",
        )


def _blocks(facts: SearchFacts) -> Shown:
    levels = ", ".join(map(str, facts.opened))
    return Shown(
        _FEW,
        "blocks",
        sum(level.n_opened for level in facts.opened),
        f"the servers asked for scores: which blocks were opened, in "
        f"{_counted(facts.n_steps, 'step', 'steps')} and in that order ({levels}); a block holds "
        "similar documents, so they learn how close the query's topic is to that of others, and "
        "more if they know documents",
    )


def _records(facts: SearchFacts) -> Shown:
    n = facts.n_slots
    if not n:
        says = "every server asked: that no record was read, so that no document matches"
    else:
        which = "permuted record number was" if n == 1 else "permuted record numbers were"
        rounds = _counted(facts.n_reads, "round", "rounds")
        says = (
            f"the servers asked for records: which {n} {which} read, in {rounds}, so they "
            "recognise queries that read the same records"
        )
    return Shown(_FEW, "records", n, says)


def _fetches(facts: SearchFacts) -> Shown:
    rounds = ", then ".join(map(str, facts.fetches)) or "no"
    return Shown(
        _FEW,
        "fetches",
        sum(facts.fetches),
        f"the servers asked for records: that {rounds} fetches came for each segment, dummies "
        "included, a number that says about how many records proved the answer; not which records",
    )


def _to_many(facts: SearchFacts) -> Iterator[Shown]:
    fetched = " and which records were wanted" if facts.mode == "full" else ""
    yield Shown(
        _MANY,
        "columns",
        facts.n_vectors,
        f"{facts.quorum.threshold} or more colluding servers: also the query's column numbers and "
        f"weights, which often give its words away{fetched}; never a cell, a title or a document",
    )
