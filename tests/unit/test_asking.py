"""Whom a question goes to while servers keep silent: no more than are missing, and all at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from mksearch_client.asking import Asking, Servers

_T = TypeVar("_T")
_WAIT_S = 30.0


class Logged(Servers[int]):
    """Servers that keep what happened, in order: whom was asked, and "late" for each silent one."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        super().__init__({n: n for n in range(1, 6)}, {}, pool, hedge_s=0.2)
        self.log: list[int | str] = []

    def start(self, call: Callable[[int], _T], server: int) -> Future[_T]:
        self.log.append(server)
        return super().start(call, server)

    def mark_late(self, server: int) -> None:
        self.log.append("late")
        super().mark_late(server)


def test_two_servers_that_hang_cost_one_hedge_delay() -> None:
    ended = threading.Event()
    answers: list[int] = []

    def ask(server: int) -> int:
        if server in (1, 2):
            ended.wait(_WAIT_S)
        return server

    with ThreadPoolExecutor(10) as pool:
        servers = Logged(pool)
        try:
            done = Asking(servers, ask, lambda server, _answer: answers.append(server)).until(
                lambda: 3 - len(answers)
            )
        finally:
            ended.set()
    assert done
    assert sorted(answers) == [3, 4, 5]
    # Two are silent, so two more are asked at once, and not the second after another delay.
    assert servers.log[:3] == [1, 2, 3]
    assert servers.log[servers.log.index(4) + 1] == 5
    assert {s for s, report in servers.reports.items() if report.status == "ok"} == {3, 4, 5}


def test_other_servers_take_the_place_of_those_that_left_and_have_done_nothing_yet() -> None:
    with ThreadPoolExecutor(1) as pool:
        one, two, three = object(), object(), object()
        servers = Servers({1: one, 2: two}, {1: "a:1", 2: "b:1"}, pool)
        servers.mark(1, "ok")
        servers.mark_late(2)
        servers.go_on_with({1: one, 2: three, 3: two}, {1: "a:1", 2: "c:1", 3: "d:1"})
        shown = {s: (report.status, report.address) for s, report in servers.reports.items()}
        assert shown == {1: ("ok", "a:1"), 2: ("unused", "c:1"), 3: ("unused", "d:1")}
        assert servers.usable() == [1, 2, 3]
