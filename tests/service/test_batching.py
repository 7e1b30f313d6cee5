"""Requests that wait together share a pass; nobody pays for another's failure or absence."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mksearch.errors import ParameterError
from mksearch.messages import ScoreRequest
from mksearch_server.batching import VECTORS_MAX, Batcher
from mksearch_server.status import BusyError


def request(name: bytes, *, n_vectors: int = 1, segment: bytes = b"s" * 32) -> ScoreRequest:
    return ScoreRequest(name.ljust(16), 1, segment, 0, np.zeros((n_vectors, 64), np.uint16))


class Scoring:
    """Scores by echoing query ids, one batch at a time, when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.go = threading.Event()

    def __call__(self, places: Sequence[Sequence[ScoreRequest]]) -> list[list[bytes]]:
        self.go.wait(10)
        names = [[made.query_id.strip() for made in requests] for requests in places]
        self.batches.append([name for found in names for name in found])
        if any(b"bad" in found for found in names):
            raise ParameterError("bad")
        return names


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


async def started(batcher: Batcher[bytes], *requests: ScoreRequest) -> list[asyncio.Task[bytes]]:
    """Submit requests in order, the first of which is being scored when this returns."""
    tasks = []
    for made in requests:
        tasks.append(asyncio.create_task(batcher.submit(made)))
        await asyncio.sleep(0.01)
    return tasks


def test_requests_that_wait_together_share_one_pass(executor: ThreadPoolExecutor) -> None:
    scoring = Scoring()

    async def main() -> list[bytes]:
        batcher = Batcher(scoring, executor, 64)
        tasks = await started(batcher, *(request(b"%d" % n) for n in range(5)))
        scoring.go.set()
        return list(await asyncio.gather(*tasks))

    assert asyncio.run(main()) == [b"0", b"1", b"2", b"3", b"4"]
    assert scoring.batches == [[b"0"], [b"1", b"2", b"3", b"4"]]


def test_an_idle_server_scores_at_once(executor: ThreadPoolExecutor) -> None:
    scoring = Scoring()
    scoring.go.set()

    async def main() -> bytes:
        return await Batcher(scoring, executor, 64).submit(request(b"alone"))

    assert asyncio.run(main()) == b"alone"
    assert scoring.batches == [[b"alone"]]


def test_a_pass_takes_no_more_vectors_than_the_engine_holds(executor: ThreadPoolExecutor) -> None:
    scoring = Scoring()

    async def main() -> None:
        batcher = Batcher(scoring, executor, 64)
        wide = [request(b"w%d" % n, n_vectors=4) for n in range(7)]
        tasks = await started(batcher, request(b"first"), *wide)
        scoring.go.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert [len(batch) for batch in scoring.batches] == [1, VECTORS_MAX // 4, 3]


def test_requests_for_another_segment_go_in_a_pass_of_their_own(
    executor: ThreadPoolExecutor,
) -> None:
    scoring = Scoring()

    async def main() -> None:
        batcher = Batcher(scoring, executor, 64)
        other = request(b"other", segment=b"o" * 32)
        tasks = await started(batcher, request(b"0"), request(b"1"), other, request(b"2"))
        scoring.go.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert scoring.batches == [[b"0"], [b"1", b"2"], [b"other"]]


def test_a_cancelled_request_is_never_scored(executor: ThreadPoolExecutor) -> None:
    scoring = Scoring()

    async def main() -> None:
        batcher = Batcher(scoring, executor, 64)
        tasks = await started(batcher, request(b"0"), request(b"gone"), request(b"2"))
        tasks[1].cancel()
        await asyncio.sleep(0.01)
        scoring.go.set()
        assert await tasks[0] == b"0"
        assert await tasks[2] == b"2"

    asyncio.run(main())
    assert scoring.batches == [[b"0"], [b"2"]]


def test_one_bad_request_fails_alone(executor: ThreadPoolExecutor) -> None:
    scoring = Scoring()

    async def main() -> list[bytes | BaseException]:
        batcher = Batcher(scoring, executor, 64)
        tasks = await started(batcher, request(b"0"), request(b"1"), request(b"bad"))
        scoring.go.set()
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    first, second, third = asyncio.run(main())
    assert (first, second) == (b"0", b"1")
    assert isinstance(third, ParameterError)


def test_more_requests_than_may_wait_are_refused_with_a_time_to_come_back(
    executor: ThreadPoolExecutor,
) -> None:
    scoring = Scoring()

    async def main() -> int:
        batcher = Batcher(scoring, executor, 2)
        tasks = await started(batcher, *(request(b"%d" % n) for n in range(3)))
        with pytest.raises(BusyError) as refused:
            await batcher.submit(request(b"too many"))
        scoring.go.set()
        await asyncio.gather(*tasks)
        assert await batcher.submit(request(b"later")) == b"later"
        return refused.value.retry_after_ms

    assert asyncio.run(main()) >= 1
