"""What keeps a server from serving, as a container meets it: one line that names the cause."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from mksearch.errors import ParameterError, StorageError
from mksearch_server import preflight
from mksearch_server.admin import AdminServer, ask_state, read_samples
from mksearch_server.cli import main
from mksearch_server.config import load_config
from mksearch_server.gpu import Gpu
from mksearch_server.preflight import require_clock
from tests.support.processes import (
    Finished,
    ServerProcess,
    clean_environment,
    run_server,
)

NOBODY = 65534


def require_line(done: Finished, *parts: str, code: int = 1) -> None:
    assert done.code == code, done
    assert done.out == ""
    (line,) = done.err.splitlines()
    for part in parts:
        assert part in line, line
    assert line.endswith(")"), f"no cure: {line}"


def make(folder: Path, server: int = 1, *words: str) -> Path:
    """Make a server with TLS; return its server.toml."""
    done = run_server(
        *("init", folder, "--id", str(server), "--listen", "127.0.0.1:0", "--tls"), *words
    )
    assert done.code == 0, done.err
    return folder / "server.toml"


def serve(config: Path, **options: object) -> Finished:
    return run_server("serve", "--config", config, **options)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return make(tmp_path / "server")


def test_an_empty_volume_is_named(tmp_path: Path) -> None:
    require_line(serve(tmp_path / "server.toml"), "server.toml cannot be read", code=2)


@pytest.mark.parametrize("name", ["server-key", "tls.key", "tls.crt"])
def test_a_missing_secret_is_named(config: Path, name: str) -> None:
    (config.parent / name).unlink()

    require_line(serve(config), name, "No such file")


@pytest.mark.parametrize("name", ["server-key", "tls.key"])
@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660, 0o602])
def test_a_secret_that_others_can_read_or_write_is_refused(
    config: Path, name: str, mode: int
) -> None:
    (config.parent / name).chmod(mode)

    require_line(serve(config), name, f"mode {mode:04o}", "chmod 600")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_secret_of_another_user_may_be_read_by_its_group_alone(config: Path) -> None:
    path = config.parent / "tls.key"
    os.chown(path, NOBODY, os.getegid())
    path.chmod(0o440)
    preflight.require_secret(path)
    path.chmod(0o444)
    with pytest.raises(StorageError, match="by others"):
        preflight.require_secret(path)


def test_a_secret_that_this_user_cannot_read_is_named_with_both_users(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may read everything.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StorageError, match=r"server-key cannot be read by user \d+.* mode 0600"):
        preflight.require_private(load_config(config))


def test_a_volume_of_another_server_is_refused_and_not_changed(tmp_path: Path) -> None:
    first, second = (ServerProcess(tmp_path / str(i), i, {}) for i in (1, 2))
    for server in (first, second):
        server.init()
    first.start()
    first.wait_ready()
    first.stop()
    shutil.copytree(first.data, second.data)
    before = (second.data / "objects/data.mdb").read_bytes()

    require_line(serve(second.config), "is of the server with the key", "own volume")

    assert (second.data / "objects/data.mdb").read_bytes() == before
    first.start()
    first.wait_ready()
    first.stop()


def test_a_gpu_that_was_asked_for_and_is_not_there_is_named(config: Path) -> None:
    if Gpu.find() is not None:
        pytest.skip("there is a GPU")
    done = serve(config, environment={"MKSEARCH_REQUIRE_GPU": "1"})

    require_line(done, "asks for a GPU, and none can be used here", "--device")


def test_a_clock_before_the_certificate_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + 2 * 86_400)
    folder = tmp_path / "server"
    words = ["init", str(folder), "--id", "1", "--listen", "127.0.0.1:0", "--tls"]
    assert main(words) == 0
    monkeypatch.undo()

    require_line(serve(folder / "server.toml"), "the clock of this machine says", "set the clock")


def test_clocks_may_differ_by_two_minutes() -> None:
    require_clock(time.time() + 60)
    with pytest.raises(StorageError):
        require_clock(time.time() + 600)


@pytest.mark.parametrize("setting", ["listen", "admin_listen"])
def test_a_port_in_use_is_named(tmp_path: Path, setting: str) -> None:
    server = ServerProcess(tmp_path / "first", 1, {"admin_listen": "127.0.0.1:0"})
    server.init()
    server.start()
    try:
        server.wait_ready()
        taken = server.address if setting == "listen" else server.admin
        other = make(tmp_path / "second", 2)
        lines = [
            line
            for line in other.read_text().splitlines()
            if not line.startswith((f"{setting} =", f"# {setting} ="))
        ]
        other.write_text("\n".join([f'{setting} = "{taken}"', *lines]) + "\n")

        require_line(serve(other), taken, "cannot be listened on")
    finally:
        server.stop()


# --- life in a container -------------------------------------------------------------------------


def test_the_probe_tells_a_server_that_answers_from_one_that_does_not(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "server", 1, {"admin_listen": "127.0.0.1:0"})
    server.init()
    require_line(run_server("probe", "--config", server.config), "no server uses the store")
    server.start()
    try:
        server.wait_ready()
        for words, state in (((), "ready"), (("--live",), "live")):
            done = run_server("probe", "--config", server.config, "--json", *words)
            assert (done.code, done.json) == (0, {"id": 1, "state": state})
    finally:
        server.stop()
    assert server.command("probe").code == 1


def test_a_server_without_health_cannot_be_probed(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "server", 1, {})
    server.init()
    server.start()
    try:
        server.wait_ready()
        require_line(run_server("probe", "--config", server.config), "admin_listen")
    finally:
        server.stop()


def test_a_server_that_is_told_to_stop_while_it_starts_ends_with_0() -> None:
    """As the first process of a container, it would ignore the signal without a handler."""
    script = (
        "import os, signal; from mksearch_server.cli import _end_when_told; _end_when_told();"
        "os.kill(os.getpid(), signal.SIGTERM); print('still here')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        check=False,
        env=clean_environment(),
        timeout=60,
    )

    assert (done.returncode, done.stdout) == (0, b"")


def test_init_accepts_what_a_new_volume_has_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "volume"
    (folder / "data").mkdir(parents=True)
    (folder / "lost+found").mkdir()
    make(folder)
    again = run_server("init", folder, "--id", "1", "--listen", "127.0.0.1:0")
    require_line(again, "is not empty")
    key = (folder / "server-key").read_bytes()
    kept = run_server("init", folder, "--id", "1", "--listen", "127.0.0.1:0", "--if-new", "--json")
    assert (kept.code, kept.json) == (0, {"config": str(folder / "server.toml")})
    assert (folder / "server-key").read_bytes() == key
    other = tmp_path / "other"
    (other / "data/segments").mkdir(parents=True)
    require_line(run_server("init", other, "--id", "1", "--listen", "127.0.0.1:0"), "is not empty")


# --- health and metrics for collectors on an operator's network ----------------------------------


def test_init_writes_where_health_and_metrics_are(tmp_path: Path) -> None:
    words = ("--admin-listen", "0.0.0.0:9101", "--admin-host", "server-1", "--log-format", "json")
    config = load_config(make(tmp_path / "server", 1, *words))

    assert (config.admin_listen, config.admin_hosts) == ("0.0.0.0:9101", ("server-1",))
    assert config.log_format == "json"
    refused = run_server(
        *("init", tmp_path / "x", "--id", "1", "--listen", "127.0.0.1:0"),
        *("--admin-listen", "0.0.0.0:9101"),
    )
    require_line(refused, "for this machine alone", code=2)
    assert not (tmp_path / "x/server-key").exists()


@pytest.mark.parametrize("hosts", ['"server-1"', "[1]", '["a b"]', '["server-1:9101"]', '[""]'])
def test_hosts_that_are_none_are_refused(tmp_path: Path, hosts: str) -> None:
    path = make(tmp_path / "server")
    path.write_text(f"admin_hosts = {hosts}\n" + path.read_text())
    with pytest.raises(ParameterError, match="admin_hosts"):
        load_config(path)


@pytest.fixture
def admin() -> Iterator[AdminServer]:
    server = AdminServer("0.0.0.0:0", lambda: b"mksearch_version 3\n", ["Server-1", "10.0.0.7"])
    yield server
    server.close()


def _status(admin: AdminServer, host: str) -> int:
    port = int(admin.address.rpartition(":")[2])
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", "/metrics", headers={"Host": host})
        return connection.getresponse().status
    finally:
        connection.close()


def test_health_and_metrics_answer_to_loopback_and_the_named_hosts_alone(
    admin: AdminServer,
) -> None:
    for host in ("127.0.0.1:1", "localhost:1", "server-1:9101", "10.0.0.7:9101"):
        assert _status(admin, host) == 200, host
    for host in ("evil.example:9101", "0.0.0.0:9101", "server-1", "server-10:9101", ""):
        assert _status(admin, host) == 403, host


def test_commands_on_the_machine_find_what_listens_on_all_addresses(admin: AdminServer) -> None:
    assert read_samples(admin.address) == {"mksearch_version": 3.0}
    with pytest.raises(StorageError, match="not ready"):
        ask_state(admin.address, "/readyz")
    admin.is_ready = True
    ask_state(admin.address, "/readyz")
