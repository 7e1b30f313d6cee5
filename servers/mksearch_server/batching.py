"""Dynamic batching: score requests that wait together share one pass over the cells.

Nobody waits for company: a request that finds the scoring thread idle is scored at once, and those
that come while it is busy go together when it is free.  What was cancelled meanwhile costs nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, NamedTuple, TypeVar

from mksearch.messages import ScoreRequest
from mksearch_server.status import BusyError

__all__ = ["Batcher"]

_T = TypeVar("_T")
#: Vectors of one pass, unless it is told otherwise.
VECTORS_MAX = 16
#: What a refused client is told before any request was timed.
_FIRST_GUESS_MS = 50


class _Waiting(NamedTuple, Generic[_T]):
    """A request in the queue: since when (of the loop's clock), and what its score is put into."""

    request: ScoreRequest
    future: asyncio.Future[_T]
    since_s: float


class Batcher(Generic[_T]):
    """Collects score requests and has them scored on one thread."""

    def __init__(
        self,
        score: Callable[[Sequence[ScoreRequest]], Sequence[_T]],
        executor: Executor,
        max_waiting: int,
        began: Callable[[int, Sequence[float]], None] = lambda _n_vectors, _waited_s: None,
        vectors_max: int = VECTORS_MAX,
    ) -> None:
        """Prepare to score.

        Args:
            score: scores requests of one version, segment and level, in order; runs on the thread.
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
        self._waiting: deque[_Waiting[_T]] = deque()
        self._running: asyncio.Task[None] | None = None
        self._pass_s = _FIRST_GUESS_MS / 1000

    @property
    def n_waiting(self) -> int:
        """Requests in the queue; may be read on any thread."""
        return len(self._waiting)

    async def submit(self, request: ScoreRequest) -> _T:
        """Return the score of ``request``; cancelling this takes it out of the queue.

        Raises:
            BusyError: as many requests wait as are accepted.
            Exception: what scoring this request ended with.
        """
        n_waiting = sum(not waiting.future.done() for waiting in self._waiting)
        if n_waiting >= self._max_waiting:
            # When half of those that wait will have been served.
            retry_s = self._pass_s * n_waiting / 2
            raise BusyError(
                f"{n_waiting} requests wait already", retry_after_ms=max(1, round(1000 * retry_s))
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        self._waiting.append(_Waiting(request, future, loop.time()))
        if self._running is None or self._running.done():
            self._running = loop.create_task(self._run())
        return await future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._next_batch():
            requests = [waiting.request for waiting in batch]
            started = loop.time()
            n_vectors = sum(len(request.shares) for request in requests)
            self._began(n_vectors, [started - waiting.since_s for waiting in batch])
            try:
                results = await loop.run_in_executor(self._executor, self._score, requests)
            except Exception as error:  # noqa: BLE001 - each caller gets it and names it
                await self._one_by_one(batch, error)
                continue
            self._pass_s = loop.time() - started
            for waiting, result in zip(batch, results, strict=True):
                if not waiting.future.done():
                    waiting.future.set_result(result)

    async def _one_by_one(self, batch: Sequence[_Waiting[_T]], error: Exception) -> None:
        """Score apart what failed together, so that nobody fails for another's request."""
        loop = asyncio.get_running_loop()
        for request, future, _ in batch:
            if future.done():
                continue
            if len(batch) == 1:
                future.set_exception(error)
                continue
            own: Exception | None = None
            try:
                (result,) = await loop.run_in_executor(self._executor, self._score, [request])
            except Exception as raised:  # noqa: BLE001
                own = raised
            # It may have been cancelled meanwhile.
            if future.done():
                continue
            if own is None:
                future.set_result(result)
            else:
                future.set_exception(own)

    def _next_batch(self) -> list[_Waiting[_T]]:
        """Take the oldest request and those that can share its pass, in the order they came."""
        batch: list[_Waiting[_T]] = []
        left: deque[_Waiting[_T]] = deque()
        n_vectors = 0
        place: tuple[int, bytes, int] | None = None
        while self._waiting:
            waiting = self._waiting.popleft()
            if waiting.future.done():
                continue
            request = waiting.request
            own = (request.version, request.segment, request.level)
            fits = n_vectors + len(request.shares) <= self._vectors_max
            if place is None or (own == place and fits):
                place = own
                n_vectors += len(request.shares)
                batch.append(waiting)
            else:
                left.append(waiting)
        self._waiting = left
        return batch
