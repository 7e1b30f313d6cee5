"""Random lies of one server of three: every answer must be right, and the liar named.

A fault is a lie of ``tests.adversary.lies`` with parameters of its own seed, told by a server of
its choice to a query of its choice.  Some servers are asked only when others are slow, so the lines
to the honest ones before the liar are held up until its answer has come: every lie is heard.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mksearch.crypto.randomness import SystemRandom
from mksearch.errors import MksearchError
from mksearch.text.analyzers import make_analyzer
from mksearch_client.demo.plaintext import PlaintextEngine
from mksearch_client.result import SearchResult, ServerReport
from mksearch_client.searching import Connection, Searcher
from tests.adversary.corpus import make_documents
from tests.adversary.lies import CALLS, lies_of
from tests.adversary.malicious_server import Lie
from tests.adversary.stage import Line, Stage, lying_stage

__all__ = ["Fault", "FaultReport", "draw_fault", "print_faults", "run_faults"]

N_DOCUMENTS = 300
N_QUERIES = 40
_TIMEOUT_S = 1.5
_HEDGE_S = 0.025
_BAD = {"lied", "stale", "refused", "unreachable"}
_LIES = lies_of(*CALLS)
#: Silence costs the hedge time, so what never ends comes less often than its share of the kinds.
_ENDLESS_SHARE = 0.04
#: Searches in which a liar may get its turn.
_TURNS = 3


@dataclass(frozen=True)
class Fault:
    """One lie, told once.

    Attributes:
        seed: of its parameters.
        lie: what is told.
        liar: by which server.
        query: to which query, by number.
    """

    seed: str
    lie: Lie
    liar: int
    query: int

    def __str__(self) -> str:
        return f"[{self.lie.name}] of server {self.liar} to query {self.query}, seed {self.seed}"


@dataclass
class FaultReport:
    """What became of the faults.

    Attributes:
        n_faults: injected.
        n_told: lies that a client heard.
        n_named: of these, after which the liar was named.
        kinds: for each lie how often each status was reported.
        violations: in words.
        seconds: spent.
    """

    n_faults: int = 0
    n_told: int = 0
    n_named: int = 0
    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: FaultReport) -> None:
        """Take over what another process, at the same time, has found."""
        self.n_faults += other.n_faults
        self.n_told += other.n_told
        self.n_named += other.n_named
        self.violations += other.violations
        self.seconds = max(self.seconds, other.seconds)
        for name, counts in other.kinds.items():
            self.kinds.setdefault(name, Counter()).update(counts)

    def lines(self) -> list[str]:
        """Return the report in lines."""
        found = [
            f"{'fault':52} {'count':>6}  reported as",
            *(
                f"{name:52} {counts.total():6}  "
                + ", ".join(f"{status} {n}" for status, n in counts.most_common())
                for name, counts in sorted(self.kinds.items())
            ),
            f"faults: {self.n_faults} ({self.n_faults / max(self.seconds, 1e-9):.0f} a second)",
            f"right answers: {self.n_faults - len(self.violations)} of {self.n_faults}",
            f"liar named: {self.n_named} of {self.n_told} heard whose lie was not harmless",
            f"honest server named: {sum('honest' in text for text in self.violations)}",
        ]
        return [*found, *(f"VIOLATION {text}" for text in self.violations)]


def draw_fault(seed: int, number: int) -> Fault:
    """Return fault ``number`` of the run with ``seed``."""
    own = f"{seed}/{number}"
    source = random.Random(own)
    is_endless = source.random() < _ENDLESS_SHARE
    lie = source.choice([lie for lie in _LIES if lie.is_endless == is_endless])
    # What never ends is never heard, so it comes from a server that is asked first.
    liars = (1, 2, 3)[: {"GetRecords": 1, "ReadObject": 1}.get(lie.call, 2) if is_endless else 3]
    return Fault(own, lie, source.choice(liars), source.randrange(N_QUERIES))


class _Client:
    """A searcher on lines that can be held up."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._connections = {server: stage.connect(server) for server in stage.servers}
        self._lines: dict[int, Connection] = dict(self._new_lines())
        self._searcher = self._open()

    def _new_lines(self) -> dict[int, Line]:
        return {server: Line(connection) for server, connection in self._connections.items()}

    def _open(self) -> Searcher:
        searcher = Searcher(
            self._lines,
            self._stage.keys.member(),
            SystemRandom(),
            hedge_s=self._stage.hedge_s,
        )
        # The very dictionary, so that every search finds the lines that were made for it.
        searcher._connections = self._lines
        return searcher

    def reopen(self) -> None:
        """Forget what was cached."""
        self._searcher.close()
        self._searcher = self._open()

    def reconnect(self, server: int) -> None:
        """Hang up on one server, whatever is still open there."""
        self._connections[server].close()
        self._connections[server] = self._stage.connect(server)

    def search(self, query: str, fault: Fault | None) -> tuple[SearchResult, bool]:
        """Search; return the result and whether the liar's answer came."""
        # New ones, so that nothing of an earlier search reaches this one.
        lines = self._new_lines()
        self._lines.update(lines)
        if fault is None:
            return self._searcher.search(query), False
        for line in lines.values():
            line.call = fault.lie.call
        if not fault.lie.is_endless:
            for server in _held(fault):
                lines[server].hold = lines[fault.liar].answered
        return self._searcher.search(query), lines[fault.liar].answered.is_set()

    def close(self) -> None:
        self._searcher.close()
        for connection in self._connections.values():
            connection.close()


def _held(fault: Fault) -> list[int]:
    """Return the honest servers that must be slow for the liar to be asked."""
    if fault.lie.call in ("GetManifest", "Score"):
        # Two are asked at once.
        return [1] if fault.liar == 3 else []
    return [server for server in (1, 2, 3) if server != fault.liar]


class _Run:
    """Faults told to one stage."""

    def __init__(self, stage: Stage, report: FaultReport) -> None:
        self._stage = stage
        self._report = report
        plain = PlaintextEngine(stage.documents, make_analyzer("english-1"))
        self._queries = [
            " ".join(document.text.split()[: 1 + number % 3])
            for number, document in enumerate(stage.documents[:N_QUERIES])
        ]
        self._client = _Client(stage)
        self._right = []
        for query in self._queries:
            result, _ = self._client.search(query, None)
            assert result.hits
            assert plain.differences(result) == []
            self._right.append(result.hits)

    def close(self) -> None:
        self._client.close()

    def inject(self, fault: Fault) -> None:
        """Tell one lie and judge what became of it."""
        report, client = self._report, self._client
        report.n_faults += 1
        liar = self._stage.servers[fault.liar]
        if fault.lie.call == "ReadObject":
            # Only what is not cached is read.
            client.reopen()
        liar.random.seed(fault.seed)
        liar.n_told, liar.lie = 0, fault.lie
        status, is_heard = "error", False
        try:
            # On a loaded machine another server may have answered before the liar got a turn.
            for _ in range(_TURNS):
                result, is_heard = client.search(self._queries[fault.query], fault)
                if liar.n_told:
                    break
            status = self._judge(fault, result, is_heard=is_heard)
        except MksearchError as error:
            report.violations.append(f"{fault}: no answer: {error}")
        finally:
            liar.lie = None
            report.kinds.setdefault(fault.lie.name, Counter())[status] += 1
        if not is_heard:
            # The connection would remember that its server owes an answer.
            client.reconnect(fault.liar)

    def _judge(self, fault: Fault, result: SearchResult, *, is_heard: bool) -> str:
        report = self._report
        if result.hits != self._right[fault.query] or not (result.verified and result.exact):
            report.violations.append(f"{fault}: WRONG HITS")
        reports = {own.id: own for own in result.servers}
        for server, own in reports.items():
            # To be slow is no lie: "unreachable" says that no answer came in time.
            if server != fault.liar and own.status in ("lied", "stale", "refused"):
                report.violations.append(f"{fault}: honest server {server} {own.status}")
        own = reports[fault.liar]
        if not self._stage.servers[fault.liar].n_told:
            report.violations.append(f"{fault}: the lie was not told")
        elif is_heard and not _is_late(own):
            report.n_told += own.status != "ok" or "ok" not in fault.lie.statuses
            report.n_named += own.status in _BAD
            if own.status not in fault.lie.statuses:
                report.violations.append(f"{fault}: reported as {own.status} ({own.reason})")
        return f"{own.status} (late)" if _is_late(own) else own.status


def _is_late(report: ServerReport) -> bool:
    """Return whether others had answered before this server did, on a machine that is busy."""
    is_silent = report.reason.startswith("no answer within")
    return report.status == "unused" or (report.status == "unreachable" and is_silent)


def run_faults(
    folder: Path,
    n_faults: int,
    seed: int,
    *,
    first: int = 0,
    limit_s: float | None = None,
    tell: Callable[[str], None] = lambda _line: None,
) -> FaultReport:
    """Inject faults ``first`` .. ``first + n_faults - 1`` of the run with ``seed``.

    Args:
        folder: for the servers.
        n_faults: how many.
        seed: of the run; a violation names the fault's own.
        first: number of the first fault.
        limit_s: ends earlier after so many seconds.
        tell: told how it goes.
    """
    report = FaultReport()
    with lying_stage(folder, make_documents(N_DOCUMENTS, 11), engine="cpu") as stage:
        stage.timeout_s, stage.hedge_s = _TIMEOUT_S, _HEDGE_S
        run = _Run(stage, report)
        started_s = time.monotonic()
        try:
            for number in range(first, first + n_faults):
                run.inject(draw_fault(seed, number))
                report.seconds = time.monotonic() - started_s
                if report.n_faults % 500 == 0:
                    tell(f"{report.n_faults} faults, {len(report.violations)} violations")
                if limit_s is not None and report.seconds > limit_s:
                    break
        finally:
            run.close()
    return report


def print_faults(folder: Path, n_faults: int, seed: int, first: int) -> FaultReport:
    """Do the part of one process among several: ``run_faults`` in a new folder, telling of it."""
    folder.mkdir()
    return run_faults(
        folder, n_faults, seed, first=first, tell=lambda line: print(f"  {line}", flush=True)
    )
