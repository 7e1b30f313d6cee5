"""Kills replicas and hosts of one server's cluster under searches, none of which may fail.

The hosts are nodes of Ray on this machine, on loopback.  Of three servers one scores on the
cluster and one is stopped, so that every search needs the cluster.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mksearch.errors import MksearchError
from mksearch_client.member import Searcher
from mksearch_client.profile import Profile
from mksearch_server.admin import read_samples
from mksearch_server.ray_cluster import _require_token, _set_environment
from mksearch_server.ray_config import RayConfig
from tests.adversary.corpus import make_documents
from tests.service.conftest import Published
from tests.support.processes import Fleet, ServerProcess, claim
from tests.support.shards import OBJECT_STORE_BYTES, children

__all__ = ["ShardReport", "run_shards"]

N_SHARDS = 2
N_REPLICAS = 2
N_DOCUMENTS = 1500
#: A busy machine takes long to start processes.
RECOVERY_S = 120.0
#: Between two kills: searches go on.
_PAUSE_S = 3.0


@dataclass
class ShardReport:
    """What searches met while replicas and a host were killed.

    Attributes:
        latencies_s: of every right answer.
        replica_s: for each killed replica, seconds until all were live again.
        host_s: seconds until all were live on another host.
        n_moved, n_hedged: calls that went to another replica, that were asked of a second one.
        seconds: of traffic.
        violations: in words.
    """

    latencies_s: list[float] = field(default_factory=list)
    replica_s: list[float] = field(default_factory=list)
    host_s: float = 0.0
    n_moved: int = 0
    n_hedged: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report in lines."""
        times = sorted(self.latencies_s) or [0.0]
        back = ", ".join(f"{seconds:.1f}" for seconds in self.replica_s)
        return [
            (
                f"searches: {len(self.latencies_s)} right in {self.seconds:.0f} s; median "
                f"{1000 * statistics.median(times):.0f} ms, slowest {1000 * times[-1]:.0f} ms"
            ),
            (
                f"replicas killed: {len(self.replica_s)}, all live again after {back} s; "
                f"a host killed, all live on another after {self.host_s:.1f} s"
            ),
            f"calls that went to another replica: {self.n_moved}, hedged: {self.n_hedged}",
            *(f"VIOLATION {text}" for text in self.violations[:20]),
        ]


class _Hosts:
    """Nodes of one cluster on this machine."""

    def __init__(self, folder: Path) -> None:
        token = folder / "ray-token"
        _require_token(token, make=True)
        _set_environment(RayConfig(), token)
        # It reads the environment when it is loaded.
        from ray.cluster_utils import Cluster

        self._common = {
            "node_ip_address": "127.0.0.1",
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
            "num_gpus": 0,
        }
        # The server is on a host of its own, without replicas.
        self._cluster: Any = Cluster(
            initialize_head=True, head_node_args={**self._common, "num_cpus": 0}
        )
        self.nodes: list[Any] = []

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self) -> None:
        """Add a host with room for one replica of every shard."""
        self.nodes.append(self._cluster.add_node(num_cpus=N_SHARDS, **self._common))

    def replicas(self) -> list[int]:
        """Return the process ids of all replicas."""
        return [
            pid
            for node in self.nodes
            for pid, command in children(self._raylet(node)).items()
            if command.startswith("ray::Shard")
        ]

    def kill_host(self) -> None:
        """End the first host at once: its raylet and what that started."""
        node = self.nodes.pop(0)
        raylet = self._raylet(node)
        for pid in (raylet, *children(raylet)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._cluster.worker_nodes.discard(node)
        with suppress(Exception):
            node.kill_all_processes(check_alive=False, allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()

    @staticmethod
    def _raylet(node: Any) -> int:
        return int(node.all_processes["raylet"][0].process.pid)


class _Traffic:
    """Searches one after another until told to stop."""

    def __init__(self, published: Published, report: ShardReport) -> None:
        self._published = published
        self._report = report
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._began_s = time.monotonic()
        self._thread.start()

    def _run(self) -> None:
        words = [document.text.split()[:3] for document in self._published.documents[:40]]
        with Searcher(Profile.open(self._published.profile.folder), timeout_s=30.0) as searcher:
            number = 0
            while not self._stopping.is_set():
                number += 1
                began_s = time.monotonic()
                try:
                    result = searcher.search(" ".join(words[number % len(words)]), 10)
                    took_s = time.monotonic() - began_s
                    self._published.require_right(result)
                except (MksearchError, AssertionError) as error:
                    self._report.violations.append(f"search {number}: {error}")
                else:
                    self._report.latencies_s.append(took_s)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        self._report.seconds = time.monotonic() - self._began_s


@contextmanager
def _serving(folder: Path, hosts: _Hosts) -> Iterator[Published]:
    """Give a collection on three servers: the first on the cluster, the third stopped."""
    settings: dict[str, str | int] = {
        "engine": "ray",
        "admin_listen": "127.0.0.1:0",
        "ray.address": hosts.address,
        "ray.shards": N_SHARDS,
        "ray.replicas": N_REPLICAS,
        "ray.place_s": int(RECOVERY_S),
        "ray.token": str(folder / "ray-token"),
    }
    fleet = Fleet(folder, 3, {"engine": "numpy"})
    fleet.servers[1] = ServerProcess(folder / "server-1", 1, settings)
    with ExitStack() as stack:
        stack.callback(fleet.kill)
        for server in fleet:
            server.init()
        fleet.start()
        published = Published(fleet, claim(fleet, folder / "profile"), folder, ())
        published.publish(make_documents(N_DOCUMENTS, 21))
        fleet[3].kill()
        yield published
        fleet[1].stop()


def _live(server: ServerProcess) -> int:
    return int(read_samples(server.admin)["mksearch_shard_replicas_live"])


def _until_live(server: ServerProcess, gone: Callable[[], bool]) -> float:
    """Wait until the loss was seen and every replica is live; return the seconds."""
    began_s = time.monotonic()
    while not (gone() and _live(server) == N_SHARDS * N_REPLICAS):
        if time.monotonic() - began_s > RECOVERY_S:
            raise AssertionError(f"{_live(server)} replicas are live: {server.log()[-2000:]}")
        time.sleep(0.05)
    return time.monotonic() - began_s


def run_shards(
    folder: Path, seconds: float, *, tell: Callable[[str], None] = lambda _line: None
) -> ShardReport:
    """Kill replicas under traffic for ``seconds``, then a host.

    Args:
        folder: for servers and token.
        seconds: in which replicas are killed, one after another; at least one is.
        tell: told how it goes.
    """
    report = ShardReport()
    hosts = _Hosts(folder)
    try:
        for _ in range(N_REPLICAS):
            hosts.add()
        with _serving(folder, hosts) as published:
            server = published.fleet[1]
            traffic = _Traffic(published, report)
            try:
                _kill_replicas(hosts, server, report, seconds, tell)
                before = _returned(server)
                hosts.kill_host()
                tell("killed a host")
                began_s = time.monotonic()
                while _live(server) == N_SHARDS * N_REPLICAS:
                    time.sleep(0.05)
                time.sleep(_PAUSE_S)
                hosts.add()
                _until_live(server, lambda: _returned(server) >= before + N_SHARDS)
                report.host_s = time.monotonic() - began_s
                time.sleep(_PAUSE_S)
            except AssertionError as error:
                report.violations.append(str(error))
            finally:
                traffic.stop()
            samples = read_samples(server.admin)
            report.n_moved = int(samples["mksearch_shard_calls_moved"])
            report.n_hedged = int(samples["mksearch_shard_calls_hedged"])
            _require_well(server, report)
    finally:
        hosts.close()
    if not report.latencies_s:
        report.violations.append("no answer at all")
    return report


def _kill_replicas(
    hosts: _Hosts,
    server: ServerProcess,
    report: ShardReport,
    seconds: float,
    tell: Callable[[str], None],
) -> None:
    last_s = time.monotonic() + seconds
    while not report.replica_s or time.monotonic() < last_s:
        time.sleep(_PAUSE_S)
        before = _returned(server)
        pids = hosts.replicas()
        victim = pids[len(report.replica_s) % len(pids)]
        os.kill(victim, signal.SIGKILL)
        took_s = _until_live(server, lambda before=before: _returned(server) > before)  # type: ignore[misc]
        report.replica_s.append(took_s)
        tell(f"killed a replica, all live after {took_s:.1f} s")


def _returned(server: ServerProcess) -> int:
    return int(read_samples(server.admin)["mksearch_shard_replicas_returned"])


def _require_well(server: ServerProcess, report: ShardReport) -> None:
    if not server.is_running:
        report.violations.append("the front end ended")
    if "Traceback" in server.log() or "internal fault" in server.log():
        report.violations.append(f"its log has a fault: {server.log()[-1000:]}")
