"""Dynamic batching: score requests that wait together share one pass over the cells.

Nobody waits for company: a request that finds the scoring thread idle is scored at once, and those
that come while it is busy go together when it is free.  What was cancelled meanwhile costs nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from mksearch.messages import ScoreRequest
from mksearch_server.status import BusyError

__all__ = ["Batcher"]

_T = TypeVar("_T")
#: Vectors of one pass, unless it is told otherwise.
VECTORS_MAX = 16
#: What a refused client is told before any request was timed.
_FIRST_GUESS_MS = 50


class Batcher(Generic[_T]):
    """Collects score requests and has them scored on one thread."""

    def __init__(
        self,
        score: Callable[[Sequence[Sequence[ScoreRequest]]], Sequence[Sequence[_T]]],
        executor: Executor,
        max_waiting: int,
        began: Callable[[int, Sequence[float]], None] = lambda _n_vectors, _waited_s: None,
        vectors_max: int = VECTORS_MAX,
    ) -> None:
        """Prepare to score.

        Args:
            score: scores requests, one group for each place (version, segment, level, blocks), all
                in order, in one pass; runs on the thread.
            executor: has one thread.
            max_waiting: requests that may wait.
            began: told of every pass: its vectors, and the seconds that each request waited.
            vectors_max: vectors of one pass.
        """
        self._score = score
        self._executor = executor
        self._max_waiting = max_waiting
        self._began = began
        self._vectors_max = vectors_max
        self._waiting: deque[_Unit[_T]] = deque()
        self._running: asyncio.Task[None] | None = None
        self._pass_s = _FIRST_GUESS_MS / 1000

    @property
    def n_waiting(self) -> int:
        """Requests in the queue; may be read on any thread."""
        return sum(len(unit.requests) for unit in list(self._waiting))

    async def submit(self, request: ScoreRequest) -> _T:
        """Return the score of ``request``; see ``submit_all``."""
        (result,) = await self.submit_all([request])
        return result

    async def submit_all(self, requests: Sequence[ScoreRequest]) -> Sequence[_T]:
        """Return the scores of requests of one call; cancelling this takes them out of the queue.

        They are scored in one pass; what others ask of the same segments, in the same order,
        shares it.

        Raises:
            BusyError: as many requests wait as are accepted.
            Exception: what scoring these requests ended with.
        """
        n_waiting = sum(len(unit.requests) for unit in self._waiting if not unit.future.done())
        if n_waiting >= self._max_waiting:
            # When half of those that wait will have been served.
            retry_s = self._pass_s * n_waiting / 2
            raise BusyError(
                f"{n_waiting} requests wait already", retry_after_ms=max(1, round(1000 * retry_s))
            )
        loop = asyncio.get_running_loop()
        unit: _Unit[_T] = _Unit(requests, loop.create_future(), loop.time())
        self._waiting.append(unit)
        if self._running is None or self._running.done():
            self._running = loop.create_task(self._run())
        return await unit.future

    def _pass(self, units: Sequence[_Unit[_T]]) -> list[list[_T]]:
        """Score units that ask of the same segments, in one pass; runs on the thread."""
        places = list(zip(*(unit.requests for unit in units), strict=True))
        return [list(found) for found in zip(*self._score(places), strict=True)]

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._next_batch():
            started = loop.time()
            waited_s = [started - unit.since_s for unit in batch]
            self._began(sum(unit.n_vectors for unit in batch), waited_s)
            try:
                results = await loop.run_in_executor(self._executor, self._pass, batch)
            except Exception as error:  # noqa: BLE001 - each caller gets it and names it
                await self._one_by_one(batch, error)
                continue
            # Those that wait are counted by requests.
            self._pass_s = (loop.time() - started) / len(batch[0].requests)
            for unit, result in zip(batch, results, strict=True):
                if not unit.future.done():
                    unit.future.set_result(result)

    async def _one_by_one(self, batch: Sequence[_Unit[_T]], error: Exception) -> None:
        """Score apart what failed together, so that nobody fails for another's request."""
        loop = asyncio.get_running_loop()
        for unit in batch:
            future = unit.future
            if future.done():
                continue
            if len(batch) == 1:
                future.set_exception(error)
                continue
            own: Exception | None = None
            try:
                (result,) = await loop.run_in_executor(self._executor, self._pass, [unit])
            except Exception as raised:  # noqa: BLE001
                own = raised
            # It may have been cancelled meanwhile.
            if future.done():
                continue
            if own is None:
                future.set_result(result)
            else:
                future.set_exception(own)

    def _next_batch(self) -> list[_Unit[_T]]:
        """Take the oldest unit and those that can share its passes, in the order they came."""
        batch: list[_Unit[_T]] = []
        left: deque[_Unit[_T]] = deque()
        n_vectors = 0
        while self._waiting:
            unit = self._waiting.popleft()
            if unit.future.done():
                continue
            fits = n_vectors + unit.n_vectors <= self._vectors_max
            if not batch or (unit.places == batch[0].places and fits):
                n_vectors += unit.n_vectors
                batch.append(unit)
            else:
                left.append(unit)
        self._waiting = left
        return batch


@dataclass(frozen=True, eq=False)
class _Unit(Generic[_T]):
    """What one call asks for, where its scores go, and since when it waits (the loop's clock)."""

    requests: Sequence[ScoreRequest]
    future: asyncio.Future[Sequence[_T]]
    since_s: float

    @cached_property
    def places(self) -> tuple[tuple[int, bytes, int, tuple[int, ...]], ...]:
        """Version, segment, level and blocks of each request: only equal ones share a pass."""
        return tuple((r.version, r.segment, r.level, r.blocks) for r in self.requests)

    @cached_property
    def n_vectors(self) -> int:
        """Vectors of the request that has most."""
        return max(len(request.shares) for request in self.requests)
