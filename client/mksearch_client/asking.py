"""Ask several servers at once until enough of them answered right; remember what each one did."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from mksearch.errors import (
    AnswerRefused,
    FormatError,
    ManifestStale,
    MksearchError,
    NotEnoughAnswers,
    ServerUnreachable,
    VerificationError,
)
from mksearch_client.result import ServerReport

__all__ = ["Asking", "Servers"]

_C = TypeVar("_C")
_T = TypeVar("_T")


class Servers(Generic[_C]):
    """The servers of one command, what each did, and the threads that wait for them.

    Attributes:
        connections: by id.
        reports: what each did, by id.
        hedge_s: seconds without an answer after which one more server is asked.
    """

    def __init__(
        self,
        connections: Mapping[int, _C],
        addresses: Mapping[int, str],
        pool: ThreadPoolExecutor,
        *,
        hedge_s: float = 1.0,
        distrusted: Collection[int] = (),
    ) -> None:
        """Start a command.

        Args:
            connections: by id.
            addresses: for the reports.
            pool: threads that wait for servers.
            hedge_s: seconds without an answer after which one more server is asked.
            distrusted: servers that lied before, or still owe an answer; asked only where the
                others are not enough.
        """
        self.connections = dict(sorted(connections.items()))
        self.reports = {
            server: ServerReport(server, addresses.get(server, "")) for server in self.connections
        }
        self.hedge_s = hedge_s
        self._pool = pool
        self._late: set[int] = set()
        self._distrusted = distrusted

    def usable(self) -> list[int]:
        """Return ids of servers that did nothing wrong so far.

        Those that answered come first, then those that lied in an earlier command, and last those
        that are late with an answer.
        """
        good = [
            s
            for s, report in self.reports.items()
            if report.status in ("ok", "unused") or s in self._late
        ]

        def rank(server: int) -> tuple[bool, bool, bool, int]:
            is_silent = self.reports[server].status != "ok"
            return server in self._late, server in self._distrusted, is_silent, server

        return sorted(good, key=rank)

    def go_on_with(self, connections: Mapping[int, _C], addresses: Mapping[int, str]) -> None:
        """Ask other servers from now on: those that are new have done nothing yet.

        Args:
            connections: by id.
            addresses: for the reports.
        """
        stay = {s for s, held in self.connections.items() if connections.get(s) is held}
        self._late &= stay
        self.connections = dict(sorted(connections.items()))
        self.reports = {
            server: self.reports[server]
            if server in stay
            else ServerReport(server, addresses.get(server, ""))
            for server in self.connections
        }

    def start(self, call: Callable[[int], _T], server: int) -> Future[_T]:
        """Ask ``server`` on a thread."""
        return self._pool.submit(call, server)

    def mark(self, server: int, status: str, reason: str = "") -> None:
        """Remember what ``server`` did; a lie is never forgotten."""
        self._late.discard(server)
        report = self.reports[server]
        if report.status != "lied":
            report.status, report.reason = status, reason

    def mark_late(self, server: int) -> None:
        """Remember that another one was asked because ``server`` kept silent; it may still come."""
        self.mark(server, "unreachable", f"no answer within {self.hedge_s:g} s")
        if self.reports[server].status != "lied":
            self._late.add(server)

    def mark_error(self, server: int, error: Exception) -> None:
        """Remember the error that asking ``server`` ended with."""
        if isinstance(error, ManifestStale):
            self.mark(server, "stale", str(error))
        elif isinstance(error, VerificationError):
            self.mark(server, "lied", str(error))
        elif isinstance(error, MksearchError) and not isinstance(error, ServerUnreachable):
            self.mark(server, "refused", str(error))
        else:
            self.mark(server, "unreachable", str(error))

    def liars(self) -> list[int]:
        """Return ids of the servers that were proved wrong."""
        return [s for s, report in self.reports.items() if report.status == "lied"]

    def why(self) -> str:
        """Say in one line what went wrong with which server."""
        reasons = [
            f"server {report.id} {report.status}" + (f" ({report.reason})" if report.reason else "")
            for report in self.reports.values()
            if report.status not in ("ok", "unused")
        ]
        return "; ".join(reasons) or "no server failed"

    def refusal(self, what: str, have: int, need: int) -> MksearchError:
        """Return the error of a command that cannot go on with the servers that remain."""
        liars = self.liars()
        wrong = [s for s, report in self.reports.items() if report.status in ("lied", "stale")]
        if wrong:
            names = ", ".join(map(str, wrong))
            did = "answered what cannot be right" if liars else "lag or contradict the others"
            return AnswerRefused(
                f"server{'s' if len(wrong) > 1 else ''} {names} {did}, "
                f"and {have} good {what} remain (need {need}): {self.why()}",
                liars=liars,
                have=have,
                need=need,
                cure="no result is shown; tell the operators, or wait until more servers answer",
            )
        return NotEnoughAnswers(
            f"{have} servers gave {what} (need {need}): {self.why()}",
            have=have,
            need=need,
            cure="start more servers, or check their addresses",
        )


class Asking(Generic[_T]):
    """One question to several servers.

    As many are asked at once as answers are missing, one more for every failure, and as many more
    as are still missing whenever nothing came for ``hedge_s``.
    """

    def __init__(
        self,
        servers: Servers[_C],
        call: Callable[[int], _T],
        take: Callable[[int, _T], None],
    ) -> None:
        """Prepare to ask.

        Args:
            servers: whom to ask.
            call: asks one server, on a thread.
            take: takes its answer, on the caller's thread; raises when it is not right.
        """
        self._servers = servers
        self._call = call
        self._take = take
        self._waiting = servers.usable()
        self._running: dict[Future[_T], int] = {}

    def until(self, n_missing: Callable[[], int]) -> bool:
        """Ask until ``n_missing()`` is 0; return False when nobody is left to ask."""
        while n_missing() > 0:
            while self._waiting and len(self._running) < n_missing():
                self._start()
            if not self._running:
                return False
            # Every call has a deadline of its own, so this ends.
            hedge_s = self._servers.hedge_s if self._waiting else None
            finished, _ = wait(self._running, hedge_s, FIRST_COMPLETED)
            if not finished:
                for server in self._running.values():
                    self._servers.mark_late(server)
                # One for each that keeps silent: several that hang cost no more than one does.
                for _ in range(min(len(self._waiting), n_missing())):
                    self._start()
            for future in finished:
                self._finish(future)
        return True

    def _start(self) -> None:
        server = self._waiting.pop(0)
        self._running[self._servers.start(self._call, server)] = server

    def _finish(self, future: Future[_T]) -> None:
        server = self._running.pop(future)
        try:
            self._take(server, future.result())
        except (MksearchError, OSError) as error:
            self._servers.mark_error(server, error)
        except ValueError:
            # Arrays that do not fit together: nothing that an honest server sends.
            self._servers.mark_error(
                server, FormatError(f"server {server} sent arrays of the wrong shape")
            )
        else:
            self._servers.mark(server, "ok")
