"""Two networks that see each other at times: no client goes back in version, and all converge.

Four servers of which one may collude, two in each network, so that either half could answer alone.
At random: the networks part and meet, a server stops and comes back, the owner publishes from
either side, clients search from either side, one of them now here and now there.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.support.crashes import forked
from tests.support.grpc_stage import corpus, until
from tests.support.networks import SIDES, Networks, client_in, networks, server_in
from tests.support.processes import run_server

__all__ = ["PartitionReport", "run_partition"]

N_SERVERS, N_CLIENTS = 4, 3
_READY_S, _COMMAND_S = 60.0, 120.0
#: Seconds that a request may take; servers of the other network cost one hedge delay.
_TIMEOUT_S = "2"
_TEXTS = ("apple pear", "apple tart")


@dataclass
class PartitionReport:
    """What happened.

    Attributes:
        n_searches: that were answered.
        n_refused: that were not, for too few servers of one version were in sight.
        n_versions: that the owner published.
        n_cuts: times that the networks parted.
        violations: what must not happen, in words.
    """

    n_searches: int = 0
    n_refused: int = 0
    n_versions: int = 0
    n_cuts: int = 0
    violations: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report for people."""
        counts = (
            f"two networks: parted {self.n_cuts} times, {self.n_versions} versions, "
            f"{self.n_searches} searches answered and {self.n_refused} refused"
        )
        return [counts, *(f"VIOLATION: {text}" for text in self.violations)]


class _Server:
    """A server of one network."""

    def __init__(self, folder: Path, number: int, nets: Networks) -> None:
        self.number = number
        self.side = SIDES[(number - 1) * len(SIDES) // N_SERVERS]
        self.address = f"{nets.address(self.side)}:{7100 + number}"
        self.folder = folder / f"server-{number}"
        self._namespace = nets.namespace(self.side)
        self._process: BaseProcess | None = None
        words = ("--id", str(number), "--listen", self.address, "--json")
        made = run_server("init", self.folder, *words)
        assert made.code == 0, made.err
        config = self.folder / "server.toml"
        # The reference engine loads nothing to compile, and servers start often here.
        config.write_text(config.read_text().replace('engine = "cpu"', 'engine = "numpy"'))
        self.token = made.json["claim_token"]

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def start(self) -> None:
        config = str(self.folder / "server.toml")
        log = self.folder / "log"
        log.write_bytes(b"")
        self._process = forked(
            server_in, self._namespace, "serve", "--config", config, "--json", log=log
        )
        assert until(lambda: b'"address"' in log.read_bytes(), _READY_S), log.read_text()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join(_READY_S)
            self._process = None


class _World:
    """Servers, an owner and clients in two networks."""

    def __init__(self, folder: Path, nets: Networks, n_clients: int) -> None:
        self.folder = folder
        self.nets = nets
        self.clients = range(n_clients)
        self.report = PartitionReport()
        self.servers = [_Server(folder, number, nets) for number in range(1, N_SERVERS + 1)]
        self.seen = [0] * n_clients
        self._hits: dict[int, list[Any]] = {}
        self._n_commands = self._n_published = 0

    def run(self, side: str, *words: str | Path) -> tuple[int, str]:
        """Run ``mksearch`` on a side; return its code and what it printed."""
        self._n_commands += 1
        log = self.folder / f"command-{self._n_commands}"
        process = forked(client_in, self.nets.namespace(side), *map(str, words), log=log)
        process.join(_COMMAND_S)
        if process.exitcode is None:
            process.kill()
            raise AssertionError(f"{words} did not end: {log.read_text()}")
        return process.exitcode, log.read_text()

    def claim(self) -> None:
        listed = [f"{server.address}={server.token}" for server in self.servers]
        words = [word for one in listed for word in ("--server", one)]
        code, printed = self.run(SIDES[0], "owner", "init", "--profile", self.owner, *words)
        assert code == 0, printed

    @property
    def owner(self) -> Path:
        return self.folder / "owner"

    def client(self, number: int) -> Path:
        return self.folder / f"client-{number}"

    def publish(self, side: str) -> bool:
        """Publish another corpus; tell whether enough servers took it."""
        text = _TEXTS[self._n_published % len(_TEXTS)]
        self._n_published += 1
        path = corpus(self.folder / "corpus.jsonl", f"d{self._n_published}-", 5, text)
        words = ("owner", "publish", path, "--profile", self.owner, "--delete-missing")
        code, printed = self.run(side, *words, "--timeout", _TIMEOUT_S, "--json")
        if code == 0:
            self.report.n_versions += 1
        elif self.is_calm:
            self.report.violations.append(f"with all servers in sight: {printed}")
        return code == 0

    @property
    def is_calm(self) -> bool:
        return self.nets.joined and all(server.runs for server in self.servers)

    def search(self, number: int, side: str, *, must: bool = False) -> None:
        """Have a client search; note it if it goes back, or sees something of two versions."""
        words = ("search", "apple", "-k", "20", "--profile", self.client(number), "--json")
        code, printed = self.run(side, *words, "--timeout", _TIMEOUT_S)
        if code:
            self.report.n_refused += 1
            if must:
                self.report.violations.append(f"client {number} on the {side}: {printed}")
            return
        self.report.n_searches += 1
        found = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
        version, hits = found["version"], found["hits"]
        if version < self.seen[number]:
            self.report.violations.append(
                f"client {number} went back from version {self.seen[number]} to {version}"
            )
        self.seen[number] = max(self.seen[number], version)
        if self._hits.setdefault(version, hits) != hits:
            self.report.violations.append(f"two answers of version {version}")

    def meet(self) -> None:
        """Bring everything back; the owner publishes, and all must be of one version."""
        self.nets.join()
        for server in self.servers:
            if not server.runs:
                server.start()
        # The kernel may remember for a moment that a neighbour did not answer.
        assert until(lambda: self.publish(SIDES[0]), _COMMAND_S)
        for number in self.clients:
            for side in SIDES:
                self.search(number, side, must=True)
        if len(set(self.seen)) != 1:
            self.report.violations.append(f"clients are of versions {self.seen}")

    def close(self) -> None:
        for server in self.servers:
            server.stop()


@contextmanager
def _world(folder: Path, n_clients: int) -> Iterator[_World]:
    with networks() as nets:
        world = _World(folder, nets, n_clients)
        try:
            for server in world.servers:
                server.start()
            world.claim()
            assert world.publish(SIDES[0])
            for number in world.clients:
                shutil.copytree(world.owner, world.client(number))
            yield world
        finally:
            world.close()


def _diverge(world: _World, rng: random.Random) -> None:
    """Leave one server behind a version, then part the networks."""
    behind = rng.choice(world.servers)
    behind.stop()
    world.publish(rng.choice(SIDES))
    world.nets.cut()
    world.report.n_cuts += 1
    behind.start()


def run_partition(
    folder: Path,
    n_rounds: int,
    seed: int,
    *,
    n_clients: int = N_CLIENTS,
    tell: Callable[[str], None] = lambda _line: None,
) -> PartitionReport:
    """Part the networks and let them meet, again and again.

    Args:
        folder: for servers and profiles.
        n_rounds: times that they part.
        seed: repeats a run.
        n_clients: the last one moves between the networks, the others stay.
        tell: told a line after each round.

    Raises:
        OSError: this machine does not let us make networks.
    """
    rng = random.Random(f"partition {seed}")
    with _world(folder, n_clients) as world:
        for number in range(n_rounds):
            started_s = time.monotonic()
            _diverge(world, rng)
            for client in world.clients:
                sides = SIDES if client == n_clients - 1 else (SIDES[1 - client % 2],)
                for side in rng.sample(sides, len(sides)):
                    world.search(client, side)
            if world.publish(rng.choice(SIDES)):
                world.report.violations.append("half of the servers took a version")
            world.meet()
            if world.report.violations:
                break
            tell(f"round {number + 1}: {time.monotonic() - started_s:.1f} s")
        return world.report
