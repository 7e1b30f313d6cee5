"""Shards without a cluster: who is asked, what becomes of a slow and of a lost replica."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mksearch import __version__
from mksearch.errors import EngineFailed
from mksearch.index.geometry import LevelGeometry
from mksearch.scoring.reference import NumpyEngine
from mksearch_server import ray_routing
from mksearch_server.ray_routing import Part, Router, cut_rows
from mksearch_server.ray_shard import Look, Refused, Shard
from tests.support.shards import thread_engine, write_segment

GEOMETRY = LevelGeometry(64, 64, 2)
WAIT_S = 20.0


def until(holds: Callable[[], bool]) -> None:
    last_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < last_s, "what was waited for does not come"
        time.sleep(0.005)


SUMS = np.ones((1, 8, 2), np.uint16)


class Scripted:
    """A replica that does as it is told.

    Attributes:
        does: "answers", "fails", "waits", "refuses" or "lies".
        is_alive: whether it answers looks.
        waiting: calls that were let wait.
    """

    def __init__(self) -> None:
        self.does = "answers"
        self.is_alive = True
        self.release = __version__
        self.pid = 1
        self.n_calls = 0
        self.waiting: list[Future[Any]] = []

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if method == "look":
            if self.is_alive:
                future.set_result(Look("here", self.pid, self.release, "cpu"))
            else:
                future.set_exception(ConnectionError("the actor died"))
            return future
        self.n_calls += 1
        if self.does == "answers":
            future.set_result(SUMS)
        elif self.does == "fails":
            future.set_exception(ConnectionError("the actor died\nand a long story"))
        elif self.does == "refuses":
            future.set_result(Refused("host here cannot read the file", "copy it"))
        elif self.does == "lies":
            future.set_result(SUMS[:, :4])
        else:
            self.waiting.append(future)
        return future


@contextmanager
def routed(
    n_shards: int = 1, n_replicas: int = 2, **options: Any
) -> Iterator[tuple[Router, list[list[Scripted]]]]:
    shards = [[Scripted() for _ in range(n_replicas)] for _ in range(n_shards)]
    router = Router(shards, **options)
    try:
        router.wait_live(WAIT_S)
        yield router, shards
    finally:
        for replica in (one for replicas in shards for one in replicas):
            for future in replica.waiting:
                future.cancel()
        router.close()


def part(shard: int = 0) -> Part:
    return Part(shard, (8 * shard, 8 * shard + 8), None, "score", (), (1, 8, 2), 8 * 192)


def ask(router: Router, n_shards: int = 1) -> int:
    """Have a part of every shard multiplied; return how many came."""
    taken: list[Part] = []
    router.run([part(shard) for shard in range(n_shards)], lambda one, _: taken.append(one))
    return len(taken)


# --- where rows go --------------------------------------------------------------------------------


@pytest.mark.parametrize("n_rows", [0, 1, 7, 8, 9, 64, 1000, 110_368])
@pytest.mark.parametrize("n_shards", [1, 2, 5, 1024])
def test_every_row_is_of_one_shard_and_blocks_of_eight_stay_whole(
    n_rows: int, n_shards: int
) -> None:
    runs = cut_rows(n_rows, n_shards)

    assert [row for start, stop in runs for row in range(start, stop)] == list(range(n_rows))
    assert len(runs) == n_shards
    assert all(start % 8 == 0 for start, stop in runs if start < stop)


def test_replicas_take_turns() -> None:
    with routed() as (router, ((one, other),)):
        for _ in range(10):
            assert ask(router) == 1
        assert one.n_calls == other.n_calls == 5


# --- lost and found -------------------------------------------------------------------------------


def test_a_call_that_fails_goes_to_the_other_replica_and_no_search_fails() -> None:
    said: list[str] = []
    with routed(report=said.append) as (router, ((one, _other),)):
        one.does, one.is_alive = "fails", False
        for _ in range(4):
            assert ask(router) == 1

        assert one.n_calls == 1
        assert router.health().degraded == (1,)
        assert router.health().lost == ()
        assert router.health().n_moved == 1
        assert "shards with a replica less: 1" in router.health().text()
        one.does, one.is_alive = "answers", True
        until(lambda: router.health().n_live == 2)
        assert router.health().n_returned == 1
        assert router.health().text() == ""
        assert any("is away" in line for line in said)
        assert any("is back" in line for line in said)
        assert not any("\n" in line for line in said)


def test_a_replica_that_died_without_a_call_is_noticed() -> None:
    with routed() as (router, ((one, _),)):
        one.is_alive = False
        until(lambda: router.health().n_live == 1)


def test_a_replica_that_was_replaced_between_two_looks_is_noticed() -> None:
    said: list[str] = []
    with routed(report=said.append) as (router, ((one, _),)):
        one.pid = 2
        until(lambda: router.health().n_returned == 1)
        assert said == ["replica 1 of shard 1 is back, on host here"]


def test_a_shard_without_a_live_replica_fails_and_is_named() -> None:
    with routed(n_shards=3) as (router, shards):
        for replica in shards[1]:
            replica.does, replica.is_alive = "fails", False
        with pytest.raises(EngineFailed, match=r"shard 2 of 3 \(rows 8 to 15\)") as failed:
            ask(router, 3)

        assert "the actor died" in failed.value.message
        assert "\n" not in failed.value.message
        assert failed.value.cure
        until(lambda: router.health().lost == (2,))
        assert "without a live replica: 2" in router.health().text()
        for replica in shards[1]:
            replica.does, replica.is_alive = "answers", True
        until(lambda: router.health().n_live == 6)
        assert ask(router, 3) == 3


def test_a_replica_that_went_away_in_the_middle_of_a_call_is_gone_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_routing, "_HEDGE_UNKNOWN_S", 1000.0)
    with routed() as (router, ((one, other),)):
        one.does = other.does = "waits"
        thread = threading.Thread(target=ask, args=(router,))
        thread.start()
        until(lambda: bool(one.waiting or other.waiting))
        first, second = (one, other) if one.waiting else (other, one)
        second.does = "answers"
        # Its calls never end: only the looks tell.
        first.is_alive = False
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert second.n_calls == 1
        assert router.health().n_moved == 1


# --- slow -----------------------------------------------------------------------------------------


def test_a_slow_call_is_asked_of_a_second_replica_and_the_first_answer_wins() -> None:
    with routed() as (router, ((one, other),)):
        for _ in range(20):
            ask(router)
        before = one.n_calls, other.n_calls
        one.does = "waits"
        for _ in range(2):
            assert ask(router) == 1

        assert router.health().n_hedges == 1
        assert one.n_calls == before[0] + 1
        # It does nothing else, so the other one gets the next call at once.
        assert other.n_calls == before[1] + 2
        assert router.health().n_live == 2


def test_hedges_are_bounded_when_everything_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_routing, "_HEDGE_UNKNOWN_S", 0.0)
    monkeypatch.setattr(ray_routing, "_HEDGE_MIN_S", 0.0)
    monkeypatch.setattr(ray_routing, "_HEDGE_FACTOR", 0.0)
    with routed() as (router, ((one, other),)):
        one.does = other.does = "waits"
        n_asked = 40
        ended = threading.Event()

        def answer() -> None:
            while not ended.wait(0.005):
                for replica in (one, other):
                    while replica.waiting:
                        replica.waiting.pop().set_result(SUMS)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            for _ in range(n_asked):
                assert ask(router) == 1
        finally:
            ended.set()
            thread.join(WAIT_S)
        assert 0 < router.health().n_hedges <= 10 + n_asked / 10


# --- wrong ----------------------------------------------------------------------------------------


def test_sums_of_another_shape_are_not_taken() -> None:
    with routed() as (router, ((one, other),)):
        one.does = "lies"
        for _ in range(4):
            assert ask(router) == 1
        other.does = "lies"
        with pytest.raises(EngineFailed, match="need"):
            ask(router)


def test_a_refusal_is_shown_with_its_cure_only_when_every_replica_refuses() -> None:
    with routed() as (router, ((one, other),)):
        one.does = "refuses"
        for _ in range(4):
            assert ask(router) == 1
        other.does = "refuses"
        with pytest.raises(EngineFailed, match="cannot read the file") as failed:
            ask(router)
        assert failed.value.cure == "copy it"


def test_a_host_with_another_release_is_refused() -> None:
    replica = Scripted()
    replica.release = "0.0.0"
    router = Router([[replica]])
    try:
        with pytest.raises(EngineFailed, match=r"runs mksearch 0\.0\.0") as failed:
            router.wait_live(WAIT_S)
        assert "same release" in failed.value.cure
    finally:
        router.close()


# --- segments -------------------------------------------------------------------------------------


def test_a_segment_that_a_host_lacks_is_named_and_found_once_it_is_there(tmp_path: Path) -> None:
    stored = write_segment(tmp_path / "store", 40, GEOMETRY)
    hidden = stored.path.rename(tmp_path / "elsewhere")
    vectors = np.ones((1, GEOMETRY.width), np.uint16)
    cells = stored.reader.level(0)
    said: list[str] = []
    engine, _ = thread_engine(tmp_path / "store", 2, report=said.append)
    try:
        engine.keep_only({stored.id})
        until(lambda: engine.health().degraded == (1, 2))
        with pytest.raises(EngineFailed, match="cannot read the segment file") as failed:
            engine.score_held((stored.id, 0), cells, GEOMETRY, vectors)
        assert stored.id.hex() in failed.value.message
        assert "ray.store" in failed.value.cure
        assert any("cannot read the segment file" in line for line in said)

        hidden.rename(stored.path)
        until(lambda: engine.health().n_live == 4)
        sums = engine.score_held((stored.id, 0), cells, GEOMETRY, vectors)
    finally:
        engine.close()
    np.testing.assert_array_equal(sums, NumpyEngine().score(cells, GEOMETRY, vectors))


def test_a_file_that_is_another_segment_is_refused(tmp_path: Path) -> None:
    one = write_segment(tmp_path, 8, GEOMETRY, 1)
    other = write_segment(tmp_path, 8, GEOMETRY, 2)
    shard = Shard(str(one.path.parent), "numpy")
    one.path.write_bytes(other.path.read_bytes())

    refused = shard.score(one.id, 0, (0, 8), np.zeros((1, GEOMETRY.width), np.uint16))

    assert isinstance(refused, Refused)
    assert "another segment" in refused.message
    assert refused.cure


def test_an_engine_that_a_host_does_not_have_is_named(tmp_path: Path) -> None:
    look = Shard(str(tmp_path), "cuda").look([])
    if not look.problem:
        pytest.skip("this host has a GPU")
    assert "cuda" in look.problem
    assert look.cure
