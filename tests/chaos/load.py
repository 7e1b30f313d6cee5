"""Many clients at once: right answers, back-pressure instead of errors, flat memory."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mksearch.errors import MksearchError, NotEnoughAnswers
from mksearch_client.connection import GrpcConnection
from mksearch_client.member import Searcher
from mksearch_client.profile import Profile
from mksearch_client.result import SearchHit
from tests.adversary.corpus import make_documents
from tests.service.conftest import Published
from tests.support.processes import Fleet, claim, serving

__all__ = ["LoadReport", "run_load"]

N_DOCUMENTS = 1500
N_QUERIES = 40
#: What a server may grow by between a fifth and the end of the time.
GROWTH_BYTES = 32 << 20
#: Servers refuse what waits behind so few: clients must meet back-pressure.
MAX_WAITING = 4


@dataclass
class LoadReport:
    """What many clients met.

    Attributes:
        n_clients: at once.
        latencies_s: of every right answer.
        n_busy: times that a server told a client to come back.
        n_given_up: searches that ended because servers stayed busy; they may be asked again.
        start_bytes, end_bytes: own memory of each server.
        violations: in words.
        seconds: spent.
    """

    n_clients: int
    latencies_s: list[float] = field(default_factory=list)
    n_busy: int = 0
    n_given_up: int = 0
    start_bytes: dict[int, int] = field(default_factory=dict)
    end_bytes: dict[int, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def lines(self) -> list[str]:
        """Return the report in lines."""
        found = [f"clients: {self.n_clients} for {self.seconds:.0f} s"]
        if len(self.latencies_s) > 1:
            cuts = statistics.quantiles(self.latencies_s, n=100)
            found.append(
                f"right answers: {len(self.latencies_s)} "
                f"({len(self.latencies_s) / self.seconds:.1f} a second); "
                f"p50 {1000 * cuts[49]:.0f} ms, p99 {1000 * cuts[98]:.0f} ms"
            )
        found.append(
            f"busy: {self.n_busy} times told to come back, {self.n_given_up} searches gave up"
        )
        found += [
            f"server {server}: own memory {start >> 20} MiB after warm-up, "
            f"{self.end_bytes.get(server, 0) >> 20} MiB at the end"
            for server, start in self.start_bytes.items()
        ]
        return [*found, *(f"VIOLATION {text}" for text in self.violations[:20])]


def _memory(fleet: Fleet) -> dict[int, int]:
    return {server.id: server.memory_bytes() for server in fleet}


class _Clients:
    """Threads that search until they are told to stop."""

    def __init__(
        self, profile: Path, right: dict[str, tuple[SearchHit, ...]], report: LoadReport
    ) -> None:
        self._profile = profile
        self._right = right
        self._report = report
        self._lock = threading.Lock()
        self.stopping = threading.Event()

    def run(self, number: int) -> None:
        source = random.Random(number)
        queries = list(self._right)
        with Searcher(Profile.open(self._profile), timeout_s=20.0) as searcher:
            while not self.stopping.is_set():
                query = source.choice(queries)
                started_s = time.monotonic()
                try:
                    result = searcher.search(query, 10)
                except NotEnoughAnswers as error:
                    self._note(given_up="ask again in" in str(error), error=error)
                    continue
                except MksearchError as error:
                    self._note(given_up=False, error=error)
                    continue
                with self._lock:
                    self._report.latencies_s.append(time.monotonic() - started_s)
                    if result.hits != self._right[query] or not result.exact:
                        self._report.violations.append(f"WRONG HITS for {query!r}")
                    named = [own for own in result.servers if own.status in ("lied", "stale")]
                    self._report.violations += [f"honest server {own.id} named" for own in named]
            connections = list(searcher._connections.values())
            with self._lock:
                self._report.n_busy += sum(
                    own.n_busy for own in connections if isinstance(own, GrpcConnection)
                )

    def _note(self, *, given_up: bool, error: Exception) -> None:
        with self._lock:
            if given_up:
                self._report.n_given_up += 1
            else:
                self._report.violations.append(f"{type(error).__name__}: {error}")


def run_load(
    folder: Path,
    n_clients: int,
    seconds: float,
    *,
    max_waiting: int = MAX_WAITING,
    tell: Callable[[str], None] = lambda _line: None,
) -> LoadReport:
    """Search with ``n_clients`` threads for some time against three server processes.

    Args:
        folder: for the servers.
        n_clients: at once, each with connections of its own.
        seconds: how long.
        max_waiting: setting of the servers.
        tell: told how it goes.
    """
    report = LoadReport(n_clients)
    # The slow engine, so that requests wait.
    with serving(folder, 3, engine="numpy", max_waiting=max_waiting) as fleet:
        published = Published(fleet, claim(fleet, folder / "profile"), folder, ())
        published.publish(make_documents(N_DOCUMENTS, 21))
        right = {}
        with published.searcher() as searcher:
            for document in published.documents[:N_QUERIES]:
                query = " ".join(document.text.split()[:3])
                result = searcher.search(query, 10)
                published.require_right(result)
                right[query] = result.hits
        clients = _Clients(folder / "profile", right, report)
        threads = [
            threading.Thread(target=clients.run, args=(number,), daemon=True)
            for number in range(n_clients)
        ]
        started_s = time.monotonic()
        for thread in threads:
            thread.start()
        time.sleep(seconds / 5)
        report.start_bytes = _memory(fleet)
        while (left_s := started_s + seconds - time.monotonic()) > 0:
            time.sleep(min(10.0, left_s))
            tell(f"{len(report.latencies_s)} right answers, {len(report.violations)} violations")
        clients.stopping.set()
        for thread in threads:
            thread.join(60)
        report.seconds = time.monotonic() - started_s
        if any(thread.is_alive() for thread in threads):
            report.violations.append("a client does not come to an end")
        report.end_bytes = _memory(fleet)
        for server in fleet:
            if not server.is_running:
                report.violations.append(f"server {server.id} ended")
            if "Traceback" in server.log() or "internal fault" in server.log():
                report.violations.append(f"the log of server {server.id} has a fault")
            growth = report.end_bytes[server.id] - report.start_bytes[server.id]
            if growth > GROWTH_BYTES:
                report.violations.append(f"server {server.id} grew by {growth} bytes")
    if not report.latencies_s:
        report.violations.append("no answer at all")
    return report
