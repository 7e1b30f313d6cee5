"""A server that scores on a cluster of its own: killed replicas, wrong tokens, no room."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mksearch.errors import EngineUnavailable
from mksearch_client.member import Searcher
from mksearch_client.profile import Profile
from mksearch_server.admin import ask_state, read_samples
from mksearch_server.ray_config import RayConfig
from tests.adversary.corpus import make_documents
from tests.service.conftest import Published
from tests.support.processes import Fleet, ServerProcess, claim
from tests.support.shards import OBJECT_STORE_BYTES, children, has_ray, ray_cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_ray(), reason="Ray is not installed (./dev cluster installs it)"),
]

WAIT_S = 90.0
N_REPLICAS = 2
N_SEARCHES = 10


def until(holds: Callable[[], bool]) -> None:
    last_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < last_s, "what was waited for does not come"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    """Give a collection of three servers: one starts a cluster, one is stopped."""
    folder = tmp_path_factory.mktemp("ray")
    settings: dict[str, str | int] = {
        "engine": "ray",
        "admin_listen": "127.0.0.1:0",
        "ray.shards": 1,
        "ray.replicas": N_REPLICAS,
        "ray.engine": "numpy",
        "ray.object_store_bytes": OBJECT_STORE_BYTES,
    }
    fleet = Fleet(folder, 3, {"engine": "numpy"})
    fleet.servers[1] = ServerProcess(folder / "server-1", 1, settings)
    with ExitStack() as stack:
        stack.callback(fleet.kill)
        for server in fleet:
            server.init()
        fleet.start()
        found = Published(fleet, claim(fleet, folder / "profile"), folder, ())
        found.publish(make_documents(200, 21))
        # Two of three answers are needed: from now on every search needs the cluster.
        fleet[3].kill()
        yield found


def all_children(parent: int) -> dict[int, str]:
    """Return the processes below ``parent``: their command by process id."""
    found = children(parent)
    for pid in list(found):
        found |= all_children(pid)
    return found


def numbers(server: ServerProcess) -> dict[str, float]:
    return read_samples(server.admin)


def test_a_killed_replica_fails_no_search_and_comes_back(published: Published) -> None:
    server = published.fleet[1]
    replicas = [
        pid for pid, name in all_children(server.pid).items() if name.startswith("ray::Shard")
    ]
    assert len(replicas) == N_REPLICAS
    assert numbers(server)["mksearch_shards"] == 1
    words = [" ".join(document.text.split()[:3]) for document in published.documents]
    with Searcher(Profile.open(published.profile.folder), timeout_s=30.0) as searcher:
        for number in range(N_SEARCHES):
            if number == 2:
                os.kill(replicas[0], signal.SIGKILL)
            published.require_right(searcher.search(words[number], 10))
        until(lambda: numbers(server)["mksearch_shard_replicas_returned"] == 1)
        until(lambda: numbers(server)["mksearch_shards_degraded"] == 0)
        ask_state(server.admin, "/readyz")
        published.require_right(searcher.search(words[0], 10))
    assert "replica 1 of shard 1 is back" in server.log().replace("replica 2", "replica 1")
    assert "Traceback" not in server.log()


def test_nothing_is_left_behind_when_the_server_ends(published: Published) -> None:
    server = published.fleet[1]
    started = all_children(server.pid)
    assert any("raylet" in name for name in started.values())

    assert server.stop() == 0

    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
    assert (server.folder / "ray-token").stat().st_mode & 0o777 == 0o600


# --- what cannot be -------------------------------------------------------------------------------


def assert_refused(folder: Path, *parts: str, **settings: str | int) -> None:
    """Prove that a server with these settings ends with code 2 and a line that has ``parts``."""
    named = {f"ray.{name}": value for name, value in settings.items()}
    server = ServerProcess(folder, 1, {"engine": "ray", **named})
    server.init()
    done = server.serve_to_its_end(WAIT_S)
    assert done.code == 2, done
    line = done.json
    assert line["error"] == "engine-unavailable"
    assert line["cure"]
    assert "Traceback" not in done.err
    for part in parts:
        assert part in str(line["message"]), line


def test_a_wrong_token_is_refused(tmp_path: Path) -> None:
    _, address = ray_cluster()
    token = tmp_path / "other-token"
    token.touch(0o600)
    token.write_text("0" * 64)

    assert_refused(
        tmp_path / "server", "does not accept the token", address=address, token=str(token)
    )


def test_a_replica_that_finds_no_room_is_named_with_what_it_asks_for(tmp_path: Path) -> None:
    cluster, _ = ray_cluster()
    with pytest.raises(EngineUnavailable, match="shard 1 of 1 found no room within 1 s") as refused:
        cluster.place(RayConfig(shards=1, replicas=2, cpus=64, gpus=1, place_s=1), tmp_path)

    assert "2 replicas with 64 CPUs and 1 GPUs each" in refused.value.message
    assert refused.value.cure
