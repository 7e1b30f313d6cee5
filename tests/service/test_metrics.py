"""What servers count: everything that happens, and nothing that shows what was asked or by whom."""

from __future__ import annotations

import ast
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

import mksearch_server
from mksearch import __version__
from mksearch.errors import MksearchError
from mksearch.wire import convert
from mksearch.wire.v1 import search_pb2
from mksearch_client.member import connect
from mksearch_server.admin import read_samples
from mksearch_server.facts import Facts
from mksearch_server.gate import CLOCK_S, REASONS
from mksearch_server.gpu import Gpu
from mksearch_server.metrics import CALLS, CODES, LABELS, Metrics
from mksearch_server.ray_routing import ShardHealth
from tests.service.test_signed_queries import Asker, asking
from tests.support.grpc_stage import GrpcServer, GrpcStage, hit_ids, staging, until
from tests.support.processes import serving

SEARCH = "/mksearch.wire.v1.SearchService/"
MEMBER = ("role:analyst", "dept:finance")
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
#: Samples whose value is a time, or changes with what other programs do.
TIMES = ("_seconds_sum", "_seconds_bucket", "_expiry_seconds", "_store_free_bytes")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcStage]:
    with staging(tmp_path_factory.mktemp("metrics")) as made:
        made.publish()
        made.share()
        made.enrol("ann", *MEMBER)
        made.enrol("bob", *MEMBER, "city:oslo")
        yield made


def samples(server: GrpcServer) -> Samples:
    found = server.runtime.metrics.samples()
    return {(name, tuple(sorted(labels.items()))): value for name, labels, value in found}


def value(server: GrpcServer, name: str, **labels: str) -> float:
    return samples(server).get((name, tuple(sorted(labels.items()))), 0.0)


def changes(before: Samples, after: Samples) -> Samples:
    """Give what changed and is no time."""
    return {
        key: now - before.get(key, 0.0)
        for key, now in after.items()
        if now != before.get(key, 0.0)
        and not key[0].endswith(TIMES)
        and not key[0].startswith("process_")
    }


def raw(server: GrpcServer, method: str, *messages: bytes) -> grpc.StatusCode:
    """Send bytes to any method; return the status."""
    with grpc.insecure_channel(server.address) as channel:
        call: Any = channel.stream_stream(method, None, None)(iter(messages), timeout=20.0)
        with suppress(grpc.RpcError):
            list(call)
        code: grpc.StatusCode = call.code()
        return code


def settled(server: GrpcServer) -> bool:
    """Wait until every call has been counted."""
    return until(lambda: server.runtime.calls.n_running == 0)


def refused_queries(asker: Asker) -> None:
    for kind in (asker.score, asker.records):
        right = asker.signed(kind())
        asker.ask(right)
        for bad in (
            right,
            replace(right, ticket=None, query_id=b"" if kind == asker.records else right.query_id),
            asker.signed(kind(), off_s=CLOCK_S + 60),
            asker.signed(kind(), off_s=-CLOCK_S - 60),
            asker.signed(kind(), server=2),
            asker.signed(replace(kind(), version=1000)),
        ):
            with suppress(MksearchError):
                asker.ask(bad)


def mixed_load(stage: GrpcStage) -> None:
    """Do a little of everything that servers are asked for, and of what they refuse."""
    server = stage.servers[1]
    with stage.searcher("ann") as ann, stage.searcher("bob") as bob:
        for query in ("budget", "openword1 apple", "closedword2", "rhubarb"):
            ann.search(query)
            bob.search(query)
        ann.open("closed3")
    stage.publish(n_docs=9)
    stage.owner.status()
    late = stage.applicant(f"late-{time.monotonic_ns()}")
    late.enrol(stage.credential(late, "role:guest").encode())
    with suppress(MksearchError):
        late.enrol(stage.credential(stage.users["ann"], "role:guest").encode())
    with asking(stage, "ann") as asker:
        refused_queries(asker)
    for method in CALLS:
        raw(server, method, b"")
        raw(server, method, b"\xff\xfegarbage")
    for name in ("Rhubarb", "score", "Score/rhubarb", ""):
        raw(server, SEARCH + name, b"rhubarb")
    raw(server, "/rhubarb.Service/Rhubarb", b"rhubarb")
    raw(server, "/grpc.health.v1.Health/Check")
    assert all(settled(each) for each in stage.servers.values())


# --- privacy -------------------------------------------------------------------------------------


def test_after_a_mixed_load_every_label_is_of_its_closed_list(stage: GrpcStage) -> None:
    mixed_load(stage)
    for server in stage.servers.values():
        closed = {**LABELS, "release": frozenset({__version__})}
        closed |= {"engine": frozenset({"numpy"}), "device": frozenset({"cpu"})}
        for name, labels, _ in server.runtime.metrics.samples():
            assert name.startswith(("mksearch_", "process_"))
            for label, found in labels.items():
                if label == "le":
                    float(found)
                    assert name.endswith("_bucket")
                else:
                    assert found in closed[label], f"{name}: {label} = {found!r}"
    # The load met what it was made for.
    server = stage.servers[1]
    refused = {
        (call, reason)
        for call in ("Score", "GetRecords")
        for reason in REASONS
        if value(server, "mksearch_queries_refused_total", call=call, reason=reason)
    }
    expected = ("unsigned", "ahead", "behind", "forged", "replayed", "unfit", "malformed")
    assert {(c, r) for c in ("Score", "GetRecords") for r in expected} <= refused
    unknown = {"call": "unknown", "status": "UNIMPLEMENTED", "code": "none"}
    assert value(server, "mksearch_requests_total", **unknown) >= 5
    calls = {dict(labels).get("call") for _, labels in samples(server)}
    assert set(CALLS.values()) <= calls


def test_the_text_of_the_metrics_names_nothing_that_was_asked_or_published(
    stage: GrpcStage,
) -> None:
    mixed_load(stage)
    users = [user.profile.identity.public.id.hex() for user in stage.users.values()]
    for server in stage.servers.values():
        text = server.runtime.metrics.text().decode().lower()
        for word in ("rhubarb", "budget", "apple", "openword", "closed3", "finance", "analyst"):
            assert word not in text, word
        assert server.token not in text
        assert not any(user[:8] in text for user in users)


@pytest.mark.parametrize(("one", "other"), [("openword1", "openword2"), ("pear", "garden")])
def test_two_queries_of_equal_shape_leave_the_same_metrics_but_for_times(
    stage: GrpcStage, one: str, other: str
) -> None:
    seen: list[list[Samples]] = []
    with stage.searcher("ann") as searcher:
        searcher.search("warm up")
        # Nobody is asked in another's place because the machine is slow.
        searcher._hedge_s = 60.0
        for query in (one, other):
            before = [samples(server) for server in stage.servers.values()]
            assert searcher.search(query).hits
            assert all(settled(server) for server in stage.servers.values())
            after = [samples(server) for server in stage.servers.values()]
            seen.append([changes(*pair) for pair in zip(before, after, strict=True)])

    for first, second in zip(*seen, strict=True):
        differing = {
            key for key in first.keys() | second.keys() if first.get(key) != second.get(key)
        }
        assert not differing, {key: (first.get(key), second.get(key)) for key in differing}
    assert any(key[0] == "mksearch_scored_rows_total" for key in seen[0][0])


# --- what is counted -----------------------------------------------------------------------------


def test_calls_are_counted_by_outcome_and_those_under_way_are_seen(stage: GrpcStage) -> None:
    server = stage.servers[1]
    name = "mksearch_requests_total"
    good = {"call": "GetManifest", "status": "OK", "code": "none"}
    bad = {"call": "GetManifest", "status": "INVALID_ARGUMENT", "code": "invalid-parameter"}
    before = [value(server, name, **labels) for labels in (good, bad)]
    request = search_pb2.GetManifestRequest(nonce=bytes(16)).SerializeToString()
    assert raw(server, SEARCH + "GetManifest", request) is grpc.StatusCode.OK
    assert raw(server, SEARCH + "GetManifest", b"") is grpc.StatusCode.INVALID_ARGUMENT
    assert settled(server)
    assert [value(server, name, **labels) for labels in (good, bad)] == [n + 1 for n in before]
    assert value(server, "mksearch_request_seconds_count", call="GetManifest") >= 2


def test_calls_and_requests_that_wait_are_seen_until_their_client_goes_away(
    stage: GrpcStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    with asking(stage, "ann") as asker, grpc.insecure_channel(asker.server.address) as channel:
        server, score = asker.server, asker.server.engine.score
        monkeypatch.setattr(server.engine, "score", lambda *a: (go.wait(20), score(*a))[1])
        gone = {"call": "Score", "status": "CANCELLED", "code": "none"}
        n_gone = value(server, "mksearch_requests_total", **gone)
        calls: list[Any] = []
        for n_waiting in range(3):
            messages = convert.score_request_messages(asker.signed(asker.score()))
            encoded = [message.SerializeToString() for message in messages]
            start = channel.stream_stream(SEARCH + "Score", None, None)
            calls.append(start(iter(encoded), timeout=20.0))
            waiting = partial(value, server, "mksearch_score_requests_waiting")
            assert until(lambda waiting=waiting, n=n_waiting: waiting() == n)  # type: ignore[misc]
        assert until(lambda: value(server, "mksearch_requests_running", call="Score") == 3)
        for call in calls:
            call.cancel()
        try:
            assert until(lambda: value(server, "mksearch_requests_total", **gone) == n_gone + 3)
        finally:
            go.set()
    assert until(lambda: value(server, "mksearch_score_requests_waiting") == 0)
    assert value(server, "mksearch_requests_running", call="Score") == 0


def test_passes_queue_rows_and_bytes_are_counted(stage: GrpcStage) -> None:
    with asking(stage, "ann") as asker:
        server = asker.server
        names = (
            *("mksearch_batch_requests_sum", "mksearch_queue_seconds_count"),
            *("mksearch_batch_vectors_sum", "mksearch_scored_rows_total"),
            *("mksearch_scored_bytes_total", "mksearch_pass_seconds_count"),
        )
        before = [value(server, name) for name in names]
        request = asker.signed(asker.score())
        answer = asker.ask(request)
        after = [value(server, name) for name in names]

    n_vectors, n_rows, _ = answer.sums.shape
    n_bytes = 2 * n_rows * request.shares.shape[1]
    grown = [now - then for then, now in zip(before, after, strict=True)]
    assert grown == [1, 1, n_vectors, n_rows, n_bytes, 1]


def test_the_state_of_a_server_is_shown(stage: GrpcStage) -> None:
    server = stage.servers[2]
    manifest = server.manifest

    assert value(server, "mksearch_version") == manifest.version
    assert manifest.access is not None
    assert value(server, "mksearch_epoch") == manifest.access.epoch
    left_s = manifest.expires_at - time.time()
    assert abs(value(server, "mksearch_manifest_expiry_seconds") - left_s) < 60
    assert value(server, "mksearch_claimed") == 1
    assert value(server, "mksearch_shares_held") == 1
    assert value(server, "mksearch_share_generation") == 1
    assert value(server, "mksearch_store_bytes") > value(server, "mksearch_index_bytes") > 0
    assert value(server, "mksearch_store_limit_bytes") == 1 << 40
    assert value(server, "mksearch_store_free_bytes") > 0
    assert value(server, "mksearch_engine_info", engine="numpy", device="cpu")
    assert 'mksearch_engine_info{device="cpu",engine="numpy"}' in (
        server.runtime.metrics.text().decode()
    )


def test_the_operators_guide_lists_every_metric_and_every_reason(
    stage: GrpcStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(mksearch_server.__file__).parents[2] / "docs/operations.md").read_text()
    text = text.partition("## Health and metrics\n")[2].partition("\n## ")[0]
    table = "".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `m"))
    table += "".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `p"))
    listed = {
        name if name[0] != "_" else f"mksearch_gpu{name}"
        for name in re.findall("`([a-z_]+)`", table)
    }
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    other = Metrics()
    other.watch(_some_facts, lambda: 0, lambda: 0)
    # Numbers by reason are shown once there are any.
    other.query_refused("Score", "unsigned")
    found = [name for m in (stage.servers[1].runtime.metrics, other) for name, _, _ in m.samples()]
    # With TLS alone.
    found.append("mksearch_certificate_expiry_seconds")
    shown = {re.sub("_(bucket|count|sum)$", "", name) for name in found}

    assert {name for name in shown if name.startswith("mksearch_")} == {
        name for name in listed if name.startswith("mksearch_")
    }
    reasons = text.partition("Reasons: ")[2].partition("\n\n")[0]
    assert set(re.findall("`([a-z-]+)`", reasons)) == set(REASONS)


def test_one_more_number_can_be_shown() -> None:
    metrics = Metrics()
    metrics.gauge("mksearch_certificate_expiry_seconds", "Until the certificate expires", lambda: 5)

    assert b"\nmksearch_certificate_expiry_seconds 5.0\n" in metrics.text()


def test_every_error_that_a_server_may_name_has_a_label() -> None:
    folder = Path(mksearch_server.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Assign(targets=[ast.Name(id="code")], value=ast.Constant(value=code)):
                    assert code in CODES, path


def test_every_reason_that_the_gate_gives_is_of_the_list() -> None:
    path = Path(mksearch_server.__file__).parent / "gate.py"
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.keyword(arg="reason", value=given):
                for constant in ast.walk(given):
                    if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                        assert constant.value in REASONS


# --- while it is stopped -------------------------------------------------------------------------


def test_a_server_that_is_being_stopped_sends_clients_elsewhere_at_once(stage: GrpcStage) -> None:
    server = stage.servers[1]
    labels = {"call": "GetManifest", "status": "UNAVAILABLE", "code": "draining"}
    with stage.searcher("ann") as searcher:
        right = hit_ids(searcher.search("budget").hits)
        server.runtime.calls.is_draining = True
        try:
            started_s = time.monotonic()
            result = searcher.search("budget")
            took_s = time.monotonic() - started_s
        finally:
            server.runtime.calls.is_draining = False
        again = searcher.search("budget")

    assert hit_ids(result.hits) == hit_ids(again.hits) == right
    reports = {report.id: (report.status, report.reason) for report in result.servers}
    assert reports[1][0] == "unreachable"
    assert "it is being stopped" in reports[1][1]
    assert took_s < 10
    assert [report.status for report in again.servers if report.id == 1] == ["ok"]
    assert value(server, "mksearch_requests_total", **labels) > 0


def test_a_word_of_another_server_cannot_make_a_client_trust_less(stage: GrpcStage) -> None:
    """All but one server say that they are being stopped: an error that names them, no hits."""
    for server in (1, 2):
        stage.servers[server].runtime.calls.is_draining = True
    try:
        with stage.searcher("ann") as searcher, pytest.raises(MksearchError, match="stopped"):
            searcher.search("budget")
    finally:
        for server in (1, 2):
            stage.servers[server].runtime.calls.is_draining = False
    connections = connect(stage.users["ann"].profile)
    assert all(connection.manifest() for connection in connections.values())
    for connection in connections.values():
        connection.close()


def test_a_server_that_is_back_is_asked_as_soon_as_another_goes(stage: GrpcStage) -> None:
    """gRPC would let the first one wait for seconds, and too few would answer meanwhile."""
    first, second = stage.servers[1], stage.servers[2]
    with stage.searcher("ann") as searcher:
        right = hit_ids(searcher.search("budget").hits)
        first.stop()
        try:
            for _ in range(12):
                assert hit_ids(searcher.search("budget").hits) == right
                time.sleep(0.1)
        finally:
            first.start()
        second.stop()
        try:
            assert hit_ids(searcher.search("budget").hits) == right
        finally:
            second.start()


# --- GPUs ----------------------------------------------------------------------------------------


class FakeNvml(SimpleNamespace):
    """The driver's library with two devices, of which the second tells less."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self, n_devices: int = 2) -> None:
        super().__init__(n_devices=n_devices)

    def nvmlInit(self) -> None:  # noqa: N802
        if self.n_devices < 0:
            raise self.NVMLError

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return int(self.n_devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, device: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=100 + device, total=1000)

    def nvmlDeviceGetUtilizationRates(self, device: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=50)

    def nvmlDeviceGetTemperature(self, device: int, _sensor: int) -> int:  # noqa: N802
        return 40

    def nvmlDeviceGetUUID(self, device: int) -> str:  # noqa: N802
        return f"GPU-{device}"

    def nvmlDeviceGetPowerUsage(self, device: int) -> int:  # noqa: N802
        if device == 1:
            raise self.NVMLError
        return 70_000


def test_gpus_are_shown_where_the_driver_tells_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    gpu = Gpu.find()
    assert gpu is not None
    read = {name: values for name, _, values in gpu.readings()}
    assert read["memory_used_bytes"] == [(0, 100.0), (1, 101.0)]
    assert read["utilization_ratio"] == [(0, 0.5), (1, 0.5)]
    assert read["power_watts"] == [(0, 70.0)]
    metrics = Metrics()
    metrics.watch(_some_facts, lambda: 0, lambda: 0)
    assert b'\nmksearch_gpu_power_watts{gpu="0"} 70.0\n' in metrics.text()
    assert b'\nmksearch_gpu_info{gpu="1",uuid="GPU-1"} 1.0\n' in metrics.text()


@pytest.mark.parametrize("module", [None, FakeNvml(0), FakeNvml(-1)])
def test_without_library_driver_or_gpu_nothing_is_shown(
    monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert Gpu.find() is None
    metrics = Metrics()
    metrics.watch(_some_facts, lambda: 0, lambda: 0)
    assert b"gpu" not in metrics.text()


def _some_facts() -> Any:
    shards = ShardHealth(2, 2, 3, (1,), (), 0, 1, 0)
    return Facts("0", "ray", "cpu", 1, False, 0, 0, 0, 0, None, 0, 0, 0, shards=shards)


def test_the_certificate_s_end_is_a_number(tmp_path: Path) -> None:
    with serving(
        tmp_path, 1, engine="numpy", init_words=("--tls",), admin_listen="127.0.0.1:0"
    ) as fleet:
        samples = read_samples(fleet[1].admin)

    left_days = samples["mksearch_certificate_expiry_seconds"] / 86_400
    assert 396 < left_days < 397
