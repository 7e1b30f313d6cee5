"""Which replica multiplies which rows: the first answer wins, and a lost replica is gone round.

Nothing here knows Ray: a replica is what takes calls and gives futures.

A watch asks every replica how it is, again and again.  One that died is away until it answers
again; the cluster starts it anew meanwhile.  A call that takes much longer than its like is asked
of a second replica as well (a hedge), for at most one call in ten, so that a slow cluster does not
get twice the work.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mksearch import __version__
from mksearch.errors import EngineFailed
from mksearch_server.ray_shard import Look, Refused

__all__ = ["Part", "Replica", "Router", "ShardHealth", "cut_rows"]

Array = NDArray[np.uint16]

#: Rows of a shard are a multiple of this, but for the last.
_ROWS_TOGETHER: Final = 8
#: Seconds between two looks at a replica, and between two at one that is away.
_LOOK_S: Final = 1.0
_AWAY_LOOK_S: Final = 0.2
#: Seconds without a word after which a replica counts as away.
_SILENT_S: Final = 5.0
#: Seconds after which a look without an answer is given up and another is taken.
_LOOK_LOST_S: Final = 30.0
#: Seconds that a call may take before it is given up, whatever its replica says of itself.
_PATIENCE_S: Final = 60.0
#: Seconds between two looks at what waits.
_TICK_S: Final = 0.1
#: A call is hedged after twice the time of the slowest but one of its like, and never before this.
_HEDGE_MIN_S: Final = 0.05
_HEDGE_UNKNOWN_S: Final = 1.0
_HEDGE_FACTOR: Final = 2.0
_TIMES_KEPT: Final = 32
_TIMES_KNOWN: Final = 8
#: Hedges: this share of the calls, and so many saved up at most.
_HEDGE_SHARE: Final = 0.1
_HEDGES_SAVED: Final = 10.0


class Replica(Protocol):
    """A ``ray_shard.Shard`` that runs somewhere."""

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        """Start a call; its future ends with what it returned, or with an error once it is lost."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one shard to be multiplied.

    Attributes:
        shard: from 0.
        rows: from the first up to the last and without it.
        segment: that they are of, None for rows that travel with the call.
        method: of ``Shard``.
        arguments: of the method.
        shape: of the sums.
        n_products: of cells and entries of vectors.
    """

    shard: int
    rows: tuple[int, int]
    segment: bytes | None
    method: str
    arguments: tuple[Any, ...]
    shape: tuple[int, int, int]
    n_products: int


@dataclass(frozen=True, slots=True)
class ShardHealth:
    """How the shards are.

    Attributes:
        n_shards: all.
        n_replicas: of each.
        n_live: replicas that take calls, of all shards.
        degraded: shards with fewer replicas than they should have, numbered from 1.
        lost: of them, those with none.
        n_hedges: calls that were asked of a second replica because the first was slow.
        n_moved: calls that went to another replica because the first failed.
        n_returned: replicas that were away and came back, or were started anew.
    """

    n_shards: int
    n_replicas: int
    n_live: int
    degraded: tuple[int, ...]
    lost: tuple[int, ...]
    n_hedges: int
    n_moved: int
    n_returned: int

    def text(self) -> str:
        """Return one line, "" where all is well."""
        if self.lost:
            return f"shards without a live replica: {', '.join(map(str, self.lost))}"
        if self.degraded:
            return f"shards with a replica less: {', '.join(map(str, self.degraded))}"
        return ""


@dataclass(eq=False)
class _Member:
    """A replica, and what is known of it."""

    shard: int
    number: int
    replica: Replica
    is_live: bool = False
    cause: str = "has not answered yet"
    cure: str = ""
    host: str = "-"
    pid: int = 0
    device: str = ""
    lacking: frozenset[bytes] = frozenset()
    n_running: int = 0
    asked: frozenset[bytes] | None = None
    look: Future[Any] | None = None
    look_s: float = 0.0

    @property
    def name(self) -> str:
        return f"replica {self.number + 1} of shard {self.shard + 1}"


@dataclass(eq=False)
class _Open:
    """A part that has no answer yet."""

    number: int
    part: Part
    tried: list[_Member] = field(default_factory=list)
    running: dict[Future[Any], tuple[_Member, float]] = field(default_factory=dict)
    hedge_s: float = 0.0
    cause: str = ""
    cure: str = ""


def cut_rows(n_rows: int, n_shards: int) -> list[tuple[int, int]]:
    """Cut rows into as many runs as there are shards, nearly equal; some may be empty."""
    edges = [n_rows * n // n_shards // _ROWS_TOGETHER * _ROWS_TOGETHER for n in range(n_shards)]
    edges.append(n_rows)
    return list(itertools.pairwise(edges))


class Router:
    """Sends parts to replicas; one ``run`` at a time."""

    def __init__(
        self, shards: Sequence[Sequence[Replica]], report: Callable[[str], None] = lambda _: None
    ) -> None:
        """Begin to watch.

        Args:
            shards: replicas of each shard.
            report: told in one line when a replica goes away or comes back.
        """
        self._shards = [
            [_Member(shard, number, replica) for number, replica in enumerate(replicas)]
            for shard, replicas in enumerate(shards)
        ]
        self._report = report
        self._segments: frozenset[bytes] = frozenset()
        self._lock = threading.Lock()
        self._turn = 0
        self._hedges = _HEDGES_SAVED
        self._times: dict[int, deque[float]] = {}
        self._n_hedges = self._n_moved = self._n_returned = 0
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._watching, name="shards", daemon=True)
        self._watch.start()

    @property
    def n_shards(self) -> int:
        """How many shards there are."""
        return len(self._shards)

    def close(self) -> None:
        """End the watch."""
        self._ended.set()
        self._changed.set()
        self._watch.join()

    # --- how they are

    def health(self) -> ShardHealth:
        """Return how the shards are now."""
        with self._lock:
            live = [sum(_is_whole(member) for member in members) for members in self._shards]
            usable = [sum(member.is_live for member in members) for members in self._shards]
            n_replicas = len(self._shards[0])
            return ShardHealth(
                n_shards=len(self._shards),
                n_replicas=n_replicas,
                n_live=sum(live),
                degraded=tuple(n + 1 for n, count in enumerate(live) if count < n_replicas),
                lost=tuple(n + 1 for n, count in enumerate(usable) if count == 0),
                n_hedges=self._n_hedges,
                n_moved=self._n_moved,
                n_returned=self._n_returned,
            )

    def devices(self) -> str:
        """Return what the replicas compute on, each kind once."""
        with self._lock:
            found = {one.device for members in self._shards for one in members if one.device}
        return ", ".join(sorted(found)) or "none"

    def keep(self, segments: frozenset[bytes]) -> None:
        """Have replicas hold these segments, from their next look on."""
        if segments != self._segments:
            self._segments = segments
            self._changed.set()

    def wait_live(self, timeout_s: float) -> None:
        """Wait until every replica takes calls.

        Raises:
            EngineFailed: one does not within ``timeout_s``; the first is named.
        """
        last_s = time.monotonic() + timeout_s
        while True:
            away = [one for members in self._shards for one in members if not _is_whole(one)]
            if not away:
                return
            if time.monotonic() > last_s or any(one.cure for one in away):
                first = next((one for one in away if one.cure), away[0])
                cure = "see that every host has room, and mksearch and Ray of the same releases"
                raise EngineFailed(f"{first.name}: {first.cause}", cure=first.cure or cure)
            time.sleep(0.02)

    def _watching(self) -> None:
        while not self._ended.is_set():
            self._changed.clear()
            now_s = time.monotonic()
            for members in self._shards:
                for member in members:
                    self._look_at(member, now_s)
            looks = [one.look for members in self._shards for one in members if one.look]
            if looks:
                wait(looks, _TICK_S, FIRST_COMPLETED)
            self._changed.wait(_TICK_S / 2)

    def _look_at(self, member: _Member, now_s: float) -> None:
        look = member.look
        if look is None:
            pause_s = _LOOK_S if _is_whole(member) else _AWAY_LOOK_S
            if now_s - member.look_s >= pause_s or member.asked != self._segments:
                member.look_s, member.asked = now_s, self._segments
                member.look = _started(member.replica, "look", member.asked)
        elif look.done():
            member.look = None
            error = look.exception()
            found = None if error else look.result()
            if isinstance(found, Look):
                self._found(member, found)
            else:
                self._away(member, _words(error) if error else "answers something else", "")
        elif now_s - member.look_s > _SILENT_S:
            self._away(member, f"says nothing for {_SILENT_S:g} s", "")
            if now_s - member.look_s > _LOOK_LOST_S:
                member.look = None

    def _found(self, member: _Member, look: Look) -> None:
        if look.release != __version__:
            cause = f"host {look.host} runs mksearch {look.release}, this server {__version__}"
            self._away(member, cause, "install the same release on every host of the cluster")
            return
        if look.problem and not look.lacking:
            self._away(member, f"host {look.host}: {look.problem}", look.cure)
            return
        with self._lock:
            # Calls that were sent meanwhile wait for the new process, so a quick one is not missed.
            is_new = member.pid not in (0, look.pid)
            returned = member.pid != 0 and (is_new or not member.is_live)
            lacks = bool(look.lacking - member.lacking)
            member.is_live = True
            member.host, member.pid = look.host, look.pid
            member.device, member.lacking = look.device, look.lacking
            member.cause, member.cure = look.problem, look.cure
            self._n_returned += returned
        if returned:
            self._report(f"{member.name} is back, on host {look.host}")
        if lacks:
            self._report(f"{member.name}: {look.problem}")

    def _away(self, member: _Member, cause: str, cure: str) -> None:
        with self._lock:
            went = member.is_live
            member.is_live = False
            member.cause, member.cure = cause, cure
        if went:
            self._report(f"{member.name} on host {member.host} is away ({cause})")

    # --- calls

    def run(self, parts: Sequence[Part], take: Callable[[Part, Array], None]) -> None:
        """Have parts multiplied; ``take`` gets each with its sums, in the order they come.

        Raises:
            EngineFailed: a shard has no live replica, and is named.
        """
        waiting = {number: _Open(number, part) for number, part in enumerate(parts)}
        for one in waiting.values():
            self._hedges = min(_HEDGES_SAVED, self._hedges + _HEDGE_SHARE)
            self._send(one)
        while waiting:
            now_s = time.monotonic()
            until_s = min([one.hedge_s for one in waiting.values()] + [now_s + _TICK_S])
            futures = [future for one in waiting.values() for future in one.running]
            wait(futures, max(0.0, until_s - now_s), FIRST_COMPLETED)
            for number, one in list(waiting.items()):
                sums = self._answer(one)
                if sums is not None:
                    del waiting[number]
                    take(one.part, sums)
                else:
                    self._go_on(one)

    def _answer(self, one: _Open) -> Array | None:
        """Return the sums of a part once one of its calls has ended well."""
        for future, (member, began_s) in list(one.running.items()):
            if not future.done():
                continue
            del one.running[future]
            error = future.exception()
            if error is not None:
                one.cause, one.cure = f"{member.name} failed ({_words(error)})", ""
                self._away(member, _words(error), "")
                continue
            found = future.result()
            if isinstance(found, Refused):
                one.cause, one.cure = found.message, found.cure
                continue
            if not (isinstance(found, np.ndarray) and found.dtype == np.uint16):
                one.cause = f"{member.name} answers something else than sums"
                continue
            if found.shape != one.part.shape:
                one.cause = f"{member.name} answers {found.shape} sums (need {one.part.shape})"
                continue
            self._note(one.part, time.monotonic() - began_s)
            return found
        return None

    def _go_on(self, one: _Open) -> None:
        """Ask another replica where the asked ones are away, failed or slow."""
        now_s = time.monotonic()
        hopeful = [
            began_s
            for member, began_s in one.running.values()
            if member.is_live and now_s - began_s < _PATIENCE_S
        ]
        if not hopeful:
            self._n_moved += 1
            self._send(one)
        elif now_s >= one.hedge_s:
            one.hedge_s = float("inf")
            if self._hedges >= 1 and self._candidates(one):
                self._hedges -= 1
                self._n_hedges += 1
                self._send(one)
                one.hedge_s = float("inf")

    def _send(self, one: _Open) -> None:
        """Ask the replica of a part that has least to do.

        Raises:
            EngineFailed: there is none that was not asked already.
        """
        for member in self._candidates(one):
            one.tried.append(member)
            future = _started(member.replica, one.part.method, *one.part.arguments)
            with self._lock:
                member.n_running += 1
            future.add_done_callback(partial(self._ended_call, member))
            now_s = time.monotonic()
            one.running[future] = member, now_s
            one.hedge_s = now_s + self._hedge_after_s(one.part)
            return
        members = self._shards[one.part.shard]
        away = [member for member in members if not member.is_live]
        cause = one.cause
        if not cause and away:
            cause = f"{away[0].name} on host {away[0].host} is away: {away[0].cause}"
        cure = one.cure or next((member.cure for member in away if member.cure), "")
        first, last = one.part.rows
        raise EngineFailed(
            f"engine 'ray': shard {one.part.shard + 1} of {len(self._shards)} (rows {first} to "
            f"{last - 1}) has no live replica ({cause})",
            cure=cure or "wait until the cluster has started it anew, or add a host",
        )

    def _candidates(self, one: _Open) -> list[_Member]:
        """Return the replicas that may be asked, the best first."""
        with self._lock:
            members = self._shards[one.part.shard]
            self._turn += 1
            turned = [members[(self._turn + n) % len(members)] for n in range(len(members))]
            left = [member for member in turned if member.is_live and member not in one.tried]
            return sorted(left, key=lambda one_: (one.part.segment in one_.lacking, one_.n_running))

    def _ended_call(self, member: _Member, _future: Future[Any]) -> None:
        with self._lock:
            member.n_running -= 1

    def _note(self, part: Part, seconds: float) -> None:
        kept = self._times.setdefault(part.n_products.bit_length(), deque(maxlen=_TIMES_KEPT))
        kept.append(seconds)

    def _hedge_after_s(self, part: Part) -> float:
        kept = self._times.get(part.n_products.bit_length(), ())
        if len(kept) < _TIMES_KNOWN:
            return _HEDGE_UNKNOWN_S
        return max(_HEDGE_MIN_S, _HEDGE_FACTOR * sorted(kept)[-2])


def _is_whole(member: _Member) -> bool:
    """Tell whether a replica takes calls and has all that it should."""
    return member.is_live and not member.lacking


def _started(replica: Replica, method: str, *arguments: Any) -> Future[Any]:
    """Start a call; one that cannot even be started has failed."""
    try:
        return replica.call(method, *arguments)
    except Exception as error:  # noqa: BLE001 - whatever the cluster raises
        failed: Future[Any] = Future()
        failed.set_exception(error)
        return failed


def _words(error: BaseException | None) -> str:
    """Return the first line of an error that says something, short."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]
