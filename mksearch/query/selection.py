"""Fetch groups of record slots by shared selectors (docs/protocol.md, section 8.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.randomness import RandomSource
from mksearch.errors import FormatError, VerificationError
from mksearch.field.modp import matmul, require_elements
from mksearch.field.shamir import Sharing, interpolate
from mksearch.index.slots import SlotReader
from mksearch.messages import SelectAnswer, SelectRequest
from mksearch.params import FETCH_CLASSES, P, Quorum
from mksearch.query.answer import QUERY_ID_BYTES
from mksearch.query.group import SegmentView

__all__ = ["Selection", "fetch_sizes", "pad_groups"]

#: Fetches of the first round at the least: as many as most searches for ten hits want.
FIRST_FETCHES = 16
_PER_REQUEST = FETCH_CLASSES[-1]
_WORD = 1 << 64


def fetch_sizes(n_wanted: int, *, is_first: bool) -> list[int]:
    """Return how many fetches each request of a round has (step 8.1.2).

    Args:
        n_wanted: groups that the segment which needs most wants.
        is_first: it is the first round of the search.
    """
    n_wanted = max(n_wanted, FIRST_FETCHES if is_first else 1)
    n_full, rest = divmod(n_wanted, _PER_REQUEST)
    last = next(size for size in FETCH_CLASSES if size >= rest)
    return [_PER_REQUEST] * n_full + ([last] if rest else [])


def pad_groups(
    slots: SlotReader, groups: Sequence[int], n_fetches: int, random: RandomSource
) -> NDArray[np.int64]:
    """Fill a round up with the groups of slots drawn uniformly: int64 (n_fetches,), ascending.

    Args:
        slots: of the segment.
        groups: wanted ones, at most ``n_fetches``.
        n_fetches: of the round.
        random: source of the draws.
    """
    drawn: list[int] = []
    limit = _WORD - _WORD % slots.n_slots
    while len(groups) + len(drawn) < n_fetches:
        word = int.from_bytes(random.bytes(8), "big")
        if word < limit:
            drawn.append(word % slots.n_slots // slots.group_slots)
    return np.sort(np.array([*groups, *drawn], np.int64))


class Selection:
    """One attempt to fetch some groups of slots of one segment.

    It owns one polynomial, as an `Attempt` does, and finds wrong answers by the tags alone: every
    fetch is checked, and nothing here knows which ones are wanted.

    Attributes:
        groups: int64 (n_fetches,), secret.
    """

    def __init__(
        self,
        segment: SegmentView,
        groups: NDArray[np.int64],
        quorum: Quorum,
        random: RandomSource,
        *,
        version: int,
    ) -> None:
        self._segment = segment
        self._slots = segment.slots
        self.groups = groups
        self._quorum = quorum
        self._version = version
        selectors = np.zeros((len(groups), self._slots.n_groups), np.uint16)
        selectors[np.arange(len(groups)), groups] = 1
        self._sharing = Sharing(selectors, quorum.collusion_bound, random)
        self._query_id = random.bytes(QUERY_ID_BYTES)
        self._answers: dict[int, NDArray[np.uint16]] = {}
        self._liars: set[int] = set()

    def __repr__(self) -> str:
        return f"Selection(fetches={len(self.groups)}, groups=<redacted>)"

    @property
    def liars(self) -> tuple[int, ...]:
        """Servers proved to have answered wrongly, ascending."""
        return tuple(sorted(self._liars))

    @property
    def n_honest(self) -> int:
        """Answers held that were not proved wrong."""
        return len(self._honest())

    def _honest(self) -> list[int]:
        return sorted(set(self._answers) - self._liars)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of an answer: (fetches, slots of a group, slot width)."""
        return len(self.groups), self._slots.group_slots, self._slots.shape.width

    @property
    def n_bytes(self) -> int:
        """Bytes of the selectors that one server is sent."""
        return 2 * len(self.groups) * self._slots.n_groups

    def request(self, server: int) -> SelectRequest:
        """Return what ``server`` is asked: its value of this attempt's polynomial."""
        return SelectRequest(
            self._query_id,
            self._version,
            self._segment.id,
            self._sharing.share(server),
            self.shape,
        )

    def add(self, server: int, answer: SelectAnswer) -> None:
        """Take the answer of ``server``; one that cannot be an answer proves a lie at once.

        Raises:
            FormatError: it belongs to another query, or is of a wrong shape or range.
        """
        if server in self._liars:
            return
        try:
            if answer.query_id != self._query_id:
                raise FormatError(f"server {server} answered another query", server=server)
            if answer.elements.shape != self.shape:
                raise FormatError(
                    f"server {server} sent selected slots of shape {answer.elements.shape} "
                    f"(need {self.shape})",
                    server=server,
                )
            what = f"answer of server {server}"
            self._answers[server] = require_elements(answer.elements, what)
        except FormatError as error:
            self._liars.add(server)
            error.server = server
            raise

    def combine(self) -> NDArray[np.uint16]:
        """Return the proved groups: uint16 (fetches, slots of a group, slot width), secret.

        Raises:
            NotEnoughAnswers: fewer than t + 1 answers that were not proved wrong; ask another
                server and call again.
            VerificationError: the tags of the segment do not fit its slots.
        """
        pads = self._slots.tag_pads[self.groups]
        while True:
            used = {server: self._answers[server] for server in self._honest()}
            combined = interpolate(used, self._quorum.threshold)
            failed = self._slots.failing_fetches(combined, pads)
            if not failed.any():
                self._name_all_liars(combined)
                return combined
            self._judge(list(used)[: self._quorum.threshold])

    def _judge(self, servers: Sequence[int]) -> None:
        """Judge ``servers`` alone and name those that lied."""
        liars = {server for server in servers if self._lied(server)}
        if not liars:
            # By linearity this cannot be: shares that pass alone pass together.
            raise VerificationError(
                "tags of record slots fail, but those of no single answer do",
                cure="the segment's keys are not those it was built with; fetch the manifest again",
            )
        self._liars |= liars

    def _lied(self, server: int) -> bool:
        """Judge one answer alone: step 8.1.7, with the pads of all slots."""
        pads = self._slots.tag_pads
        selectors = self._sharing.share(server)
        combined = matmul(selectors, pads.reshape(len(pads), -1))
        failed = self._slots.failing_fetches(self._answers[server], combined)
        return bool(failed.any())

    def _name_all_liars(self, proved: NDArray[np.uint16]) -> None:
        """Find every liar among the answers held: lies may cancel at 0 and show elsewhere."""
        threshold = self._quorum.threshold
        while len(honest := self._honest()) > threshold:
            base = {0: proved} | {s: self._answers[s] for s in honest[: threshold - 1]}
            if all(
                np.array_equal(_value_at(base, server), self._answers[server])
                for server in honest[threshold - 1 :]
            ):
                return
            liars = {server for server in honest if self._lied(server)}
            if not liars:
                return
            self._liars |= liars


def _value_at(values: dict[int, NDArray[np.uint16]], at: int) -> NDArray[np.uint16]:
    """Return the value at ``at`` of the polynomial through ``values``, 0 among their places."""
    total = np.zeros(next(iter(values.values())).shape, np.uint64)
    for i, value in values.items():
        numerator = denominator = 1
        for j in values:
            if j != i:
                numerator = numerator * (at - j) % P
                denominator = denominator * (i - j) % P
        factor = numerator * pow(denominator, -1, P) % P
        total += value.astype(np.uint64) * np.uint64(factor)
    return (total % np.uint64(P)).astype(np.uint16)
