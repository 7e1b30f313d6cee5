"""Whom a question goes to while servers keep silent: no more than are missing, and all at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from mksearch_client.asking import Asking, Servers

_WAIT_S = 30.0


class Counted(Servers[int]):
    """Servers of which it is counted how often one was found late."""

    n_late = 0

    def mark_late(self, server: int) -> None:
        self.n_late += 1
        super().mark_late(server)


def test_two_servers_that_hang_cost_one_hedge_delay() -> None:
    ended = threading.Event()
    answers: list[int] = []

    def ask(server: int) -> int:
        if server in (1, 2):
            ended.wait(_WAIT_S)
        return server

    with ThreadPoolExecutor(10) as pool:
        servers = Counted({n: n for n in range(1, 6)}, {}, pool, hedge_s=0.2)
        try:
            done = Asking(servers, ask, lambda server, _answer: answers.append(server)).until(
                lambda: 3 - len(answers)
            )
        finally:
            ended.set()
    assert done
    assert sorted(answers) == [3, 4, 5]
    # Both were found late together, once; nobody else was.
    assert servers.n_late == 2
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
