"""A server that is told to stop: nobody's search fails, and its operator sees what it does."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mksearch.errors import MksearchError, StorageError
from mksearch.wire.v1 import owner_pb2, owner_pb2_grpc
from mksearch.wire.v1.error_pb2 import ErrorDetail
from mksearch_client.admin import Admin
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner
from mksearch_client.profile import Profile
from mksearch_client.user import User
from mksearch_server.log import FIELDS
from mksearch_server.running import StoreLock, drain, find_running
from mksearch_server.status import DETAIL_KEY
from tests.service.conftest import QUERIES, SMALL, K, Published
from tests.support.processes import Fleet, ServerProcess, claim, run_server, serving, write_corpus

N_CLIENTS = 3
HOUR_S = 3600


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    folder = tmp_path_factory.mktemp("draining")
    settings = {"admin_listen": "127.0.0.1:0", "log_format": "json"}
    with serving(folder, engine="numpy", drain_s=3, **settings) as fleet:  # type: ignore[arg-type]
        made = Published(fleet, claim(fleet, folder / "profile"), folder, ())
        made.publish(SMALL.documents)
        yield made


@pytest.fixture
def fleet(published: Published) -> Fleet:
    """The servers, all running."""
    published.fleet.start()
    return published.fleet


def get(server: ServerProcess, path: str, host: str = "") -> tuple[int, str]:
    name, _, port = server.admin.rpartition(":")
    connection = http.client.HTTPConnection(name, int(port), timeout=20)
    try:
        connection.request("GET", path, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def drained(server: ServerProcess) -> dict[str, Any]:
    done = run_server("drain", "--config", server.config, "--json")
    assert (done.code, done.err) == (0, "")
    return done.json


# --- nobody's search fails -----------------------------------------------------------------------


class _Clients:
    """Threads that search all the time."""

    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(N_CLIENTS)
        ]
        self.errors: list[str] = []
        self.n_right = 0

    def _run(self, number: int) -> None:
        with Searcher(Profile.open(self._profile), timeout_s=20.0) as searcher:
            right = {query: searcher.search(query, K).hits for query in QUERIES[:4]}
            while not self._stopping.is_set():
                for query, hits in right.items():
                    try:
                        found = searcher.search(query, K)
                    except MksearchError as error:
                        self.errors.append(f"client {number}: {error}")
                        continue
                    wrong = [s for s in found.servers if s.status in ("lied", "stale", "refused")]
                    if found.hits != hits or not found.exact or wrong:
                        seen = [(s.id, s.status, s.reason) for s in found.servers]
                        is_right = found.hits == hits and found.exact
                        self.errors.append(f"client {number}: {query!r}: {is_right} {seen}")
                    self.n_right += 1

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)

    def wait_for(self, n_more: int) -> None:
        """Wait until so many more searches were right."""
        wanted, last_s = self.n_right + n_more, time.monotonic() + 60
        while self.n_right < wanted:
            assert time.monotonic() < last_s, self.errors
            time.sleep(0.05)


def test_no_search_fails_while_one_server_after_the_other_drains_and_restarts(
    published: Published, fleet: Fleet
) -> None:
    with _Clients(published.profile.folder) as clients:
        clients.wait_for(10)
        for server in fleet:
            assert drained(server)["id"] == server.id
            clients.wait_for(10)
            assert server.stop() == 0
            server.restart()
            clients.wait_for(10)

    assert clients.errors == []


def test_a_publish_under_way_is_completed_by_the_next(published: Published, fleet: Fleet) -> None:
    corpus = write_corpus(published.folder / "more.jsonl", SMALL.documents[:50])
    ended: list[int] = []
    one_at_a_time = threading.Lock()

    def progress(what: str, _share: float) -> None:
        with one_at_a_time:
            if "sending" in what and not ended:
                ended.append(drained(fleet[2])["id"])

    with Owner(published.profile) as owner:
        report = owner.publish([corpus], delete_missing=True, progress=progress)
        assert ended == [2]
        assert fleet[2].stop() == 0
        fleet[2].restart()
        again = owner.publish([corpus], delete_missing=True)
    assert again.version == report.version
    assert published.versions() == [report.version] * 3
    assert run_server("verify", "--config", fleet[2].config).code == 0
    published.publish(SMALL.documents)


# --- what it says meanwhile ----------------------------------------------------------------------


class _Upload:
    """A call that goes on until it is told to end."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.go_on = threading.Event()
        stub: Any = owner_pb2_grpc.OwnerServiceStub(channel)  # type: ignore[no-untyped-call]
        self.call = stub.Put.future(self._messages(), timeout=60)

    def _messages(self) -> Iterator[owner_pb2.PutRequest]:
        self.go_on.wait(60)
        yield owner_pb2.PutRequest(manifest_hash=bytes(32), name=bytes(32))


def test_a_server_that_drains_ends_its_calls_refuses_others_and_says_so(
    published: Published, fleet: Fleet
) -> None:
    server = fleet[3]
    assert get(server, "/readyz") == (200, "ready\n")
    with grpc.insecure_channel(server.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        info: Any = owner_pb2_grpc.InfoServiceStub(channel)  # type: ignore[no-untyped-call]
        question = owner_pb2.GetInfoRequest(nonce=bytes(16))
        assert info.GetInfo(question, timeout=20).server_id == 3
        upload = _Upload(channel)
        running = 'mksearch_requests_running{call="Put"} 1.0'
        _until(lambda: running in get(server, "/metrics")[1])
        ending = threading.Thread(target=server.stop)
        ending.start()
        _until(lambda: get(server, "/readyz")[0] == 503)

        assert get(server, "/healthz") == (200, "live\n")
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=20)
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.RpcError) as caught:
            info.GetInfo(question, timeout=20)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        trailers: Any = caught.value.trailing_metadata()
        details = dict(trailers)
        assert ErrorDetail.FromString(details[DETAIL_KEY]).code == "draining"
        assert server.is_running

        # The call that was under way gets its own answer: here, that nobody proposed anything.
        upload.go_on.set()
        assert upload.call.exception(60).code() is grpc.StatusCode.FAILED_PRECONDITION
        ending.join(60)
    assert not server.is_running


def test_a_call_that_does_not_end_is_cut_after_its_time(tmp_path: Path) -> None:
    with serving(tmp_path, 1, engine="numpy", drain_s=1) as fleet:
        server = fleet[1]
        with grpc.insecure_channel(server.address) as channel:
            upload = _Upload(channel)
            grpc.channel_ready_future(channel).result(30)
            time.sleep(0.2)
            began_s = time.monotonic()
            assert drained(server)["pid"] == server.pid
            assert time.monotonic() - began_s < 20
            assert upload.call.exception(60) is not None
            upload.go_on.set()
        assert server.stop() == 0
        assert "Traceback" not in server.log()


def _until(holds: Callable[[], bool]) -> None:
    last_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < last_s
        time.sleep(0.02)


# --- the command ---------------------------------------------------------------------------------


def test_drain_without_a_server_is_one_line(published: Published, fleet: Fleet) -> None:
    server = fleet[1]
    assert server.stop() == 0
    done = run_server("drain", "--config", server.config, "--json")

    assert done.code == 1
    assert done.json["error"] == "storage"
    assert done.err.count("\n") == 1
    assert "no server uses the store" in done.err


def test_drain_says_when_a_server_does_not_end_in_time(published: Published, fleet: Fleet) -> None:
    server = fleet[1]
    server.suspend()
    try:
        done = run_server("drain", "--config", server.config, "--timeout", "0.5")
    finally:
        server.resume()

    assert done.code == 1
    assert "has not ended within 0.5 s" in done.err
    _until(lambda: find_running(server.data) is None)
    assert server.stop() == 0


@pytest.mark.parametrize("note", [b"", b"{}", b"[]", b'{"pid": -1, "admin": ""}', b"\xff"])
def test_a_process_that_does_not_hold_the_lock_is_never_signalled(
    tmp_path: Path, note: bytes
) -> None:
    data = tmp_path / "data"
    lock = StoreLock(data)
    found = find_running(data)
    assert found is not None
    assert found.pid == os.getpid()
    (data / "lock").write_bytes(note or json.dumps({"pid": os.getppid(), "admin": ""}).encode())

    with pytest.raises(StorageError, match="not a process seen from here"):
        drain(data, 0.0)
    os.close(lock._descriptor)
    assert find_running(data) is None


def test_a_server_waits_for_one_that_is_just_ending(tmp_path: Path) -> None:
    first = StoreLock(tmp_path)
    releasing = threading.Timer(0.3, os.close, [first._descriptor])
    releasing.start()
    second = StoreLock(tmp_path)
    releasing.join()
    with pytest.raises(StorageError, match="another server uses the store"):
        StoreLock(tmp_path)
    os.close(second._descriptor)


def test_looking_does_not_keep_a_server_from_starting(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    descriptor = os.open(tmp_path / "lock", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    assert find_running(tmp_path) is None
    looking = threading.Timer(0.3, os.close, [descriptor])
    looking.start()
    os.close(StoreLock(tmp_path)._descriptor)
    looking.join()


# --- health, metrics and status ------------------------------------------------------------------


def test_the_admin_address_shows_metrics_and_health_and_nothing_else(fleet: Fleet) -> None:
    server = fleet[1]
    assert server.admin.startswith("127.0.0.1:")
    assert f'"address": "{server.admin}"' in server.log()
    status, text = get(server, "/metrics")
    assert status == 200
    assert "\nmksearch_server_id 1.0\n" in text
    assert "\nprocess_resident_memory_bytes " in text
    assert get(server, "/healthz") == (200, "live\n")
    for path in ("/", "/metrics/", "/../server-key", "/debug"):
        assert get(server, path)[0] == 404
    assert get(server, "/metrics", host="rebound.example:80")[0] == 403


def test_a_server_whose_loop_stands_still_is_not_live() -> None:
    from mksearch_server import admin

    server = admin.AdminServer("[::1]:0" if _has_ipv6() else "127.0.0.1:0", lambda: b"")
    try:
        assert server.answer("/healthz")[0] == 200
        server._beat_s -= admin.STALLED_S + 1
        assert server.answer("/healthz")[0] == 503
        server.beat()
        assert server.answer("/healthz")[0] == 200
        assert server.answer("/readyz")[0] == 503
    finally:
        server.close()


def _has_ipv6() -> bool:
    return Path("/proc/net/if_inet6").exists() and bool(Path("/proc/net/if_inet6").read_text())


def test_an_admin_port_in_use_is_one_line(tmp_path: Path, fleet: Fleet) -> None:
    done = run_server("init", tmp_path / "s", "--id", "1", "--listen", "127.0.0.1:0")
    assert done.code == 0
    config = tmp_path / "s" / "server.toml"
    config.write_text(f'admin_listen = "{fleet[1].admin}"\n' + config.read_text())
    done = run_server("serve", "--config", config)

    assert done.code == 1
    assert "cannot be listened on" in done.err
    assert "admin_listen" in done.err
    assert done.err.count("\n") == 1


def test_status_shows_what_the_metrics_show(published: Published, fleet: Fleet) -> None:
    with published.searcher() as searcher:
        searcher.search(QUERIES[0])
    server = fleet[1]
    shown = run_server("status", "--config", server.config, "--json").json
    assert (shown["running"], shown["pid"], shown["admin"]) == (True, server.pid, server.admin)
    metrics = shown["metrics"]
    for name in ("version", "epoch", "segments", "index_bytes", "store_bytes", "claimed"):
        assert shown[name] == metrics[f"mksearch_{name}"], name
    scored = 'mksearch_requests_total{call="Score",status="OK",code="none"}'
    assert {"".join(sorted(name)) for name in metrics} & {"".join(sorted(scored))}
    text = run_server("status", "--config", server.config).out
    assert "\nmksearch_scored_rows_total: " in text
    assert "_bucket" not in text

    assert server.stop() == 0
    shown = run_server("status", "--config", server.config, "--json").json
    assert (shown["running"], shown["pid"], shown["metrics"]) == (False, None, {})
    assert shown["version"] > 0


# --- logs ----------------------------------------------------------------------------------------


def test_after_a_mixed_load_logs_and_metrics_hold_no_secret_and_no_word(
    published: Published, fleet: Fleet
) -> None:
    profile, folder = published.profile, published.folder
    admin = Admin.create(profile)
    secret = folder / "secret.jsonl"
    secret.write_text('{"_id": "ledger-7", "title": "", "text": "rhubarb custard tomato"}\n')
    with Owner(profile) as owner:
        owner.publish([secret], policy="role:auditor")
        admin.share()
        owner.renew()
        (folder / "card").write_bytes(owner.card())
    user = User.create(folder / "user", folder / "card")
    credential = admin.issue(user.profile.identity.public, ["role:auditor"], life_s=HOUR_S)
    user.enrol(credential.encode())
    with Searcher(folder / "user") as searcher:
        assert searcher.search("rhubarb custard").hits
        assert searcher.open("ledger-7").id == "ledger-7"
    with published.searcher() as searcher:
        searcher.search("watering tomato")
    for server in fleet:
        _garbage(server)
    tokens = [server.token for server in fleet]
    keys = [(server.folder / "server-key").read_bytes().hex() for server in fleet]
    words = [
        *("rhubarb", "custard", "tomato", "ledger", "auditor", "nosuchmethod"),
        *(profile.keys.master.reveal().hex(), user.profile.identity.public.id.hex()),
        *(user.profile.identity.public.id.hex()[:12], credential.encode().hex()),
    ]
    for server in fleet:
        log, metrics = server.log(), get(server, "/metrics")[1]
        for word in (*tokens, *keys, *words, str(folder)):
            assert word.lower() not in log.lower()
            assert word.lower() not in metrics.lower()
        for line in log.splitlines():
            assert line.startswith("{"), log
            fields = json.loads(line)
            assert set(fields) <= {"time", "level", "event", "message", *FIELDS}
    events = {json.loads(line)["event"] for line in fleet[1].log().splitlines()}
    assert {"claimed", "activated", "share-installed", "serving", "admin-listening"} <= events


def _garbage(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.address) as channel:
        for method in ("Search/Score", "Search/GetRecords", "Owner/Put", "Search/NoSuchMethod"):
            service, _, name = method.partition("/")
            path = f"/mksearch.wire.v1.{service}Service/{name}"
            for data in (b"", b"\xff rhubarb", b"\x0a\x02\x08\x01"):
                call: Any = channel.stream_stream(path, None, None)(iter([data]), timeout=20)
                with pytest.raises(grpc.RpcError):
                    list(call)
