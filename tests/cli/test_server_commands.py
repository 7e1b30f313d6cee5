"""What operators rely on: exit codes, JSON, refused settings, damage found, no secret shown."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from mksearch import __version__
from mksearch_client.profile import Profile
from mksearch_server.store import ObjectStore
from tests.cli.conftest import Collection, Runner, require_error
from tests.support.processes import (
    Finished,
    ServerProcess,
    clean_environment,
    run_server,
    server_command,
)

COMMANDS = ("init", "serve", "check-config", "status", "verify")
PROGRAM = "mksearch-server"
STATUS_FIELDS = {
    *("id", "listen", "server_key", "claimed", "collection", "version", "store_bytes"),
    *("engine", "device"),
}


def require_server_error(done: Finished, code: int, *parts: str) -> None:
    require_error(done, code, *parts, program=PROGRAM)


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def made(runner: Runner, tmp_path: Path) -> Path:
    """The folder of a new server."""
    folder = tmp_path / "server"
    done = runner.server("init", folder, "--id", "7", "--listen", "127.0.0.1:0")
    assert (done.code, done.err) == (0, "")
    return folder


@pytest.fixture
def copied(shared: Collection, tmp_path: Path) -> Path:
    """A copy of the folder of a server that serves a version."""
    folder = tmp_path / "copy"
    shutil.copytree(shared.fleet[1].folder, folder)
    return folder


# --- the shape of the command line ---------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_shows_an_example(runner: Runner, command: str) -> None:
    done = runner.server(command, "--help")

    assert (done.code, done.err) == (0, "")
    assert f"Example: mksearch-server {command}" in " ".join(done.out.split())


def test_version_and_help_are_shown(runner: Runner) -> None:
    version, bare = runner.server("--version"), runner.server()

    assert (version.code, version.out) == (0, f"mksearch-server {__version__}\n")
    assert (bare.code, bare.err) == (2, "")
    assert "Usage: mksearch-server" in bare.out


@pytest.mark.parametrize("command", ["repair --from 127.0.0.1:1", "drain", "renew-certificate"])
def test_a_command_that_comes_later_says_so_in_one_line(runner: Runner, command: str) -> None:
    done = runner.server(*command.split())

    require_server_error(done, 2, "is not part of version")
    assert done.out == ""
    require_server_error(runner.server(*command.split(), "--json"), 2)


@pytest.mark.parametrize("command", ["frobnicate", "serve", "init", "init x --id 1", "status -x"])
def test_wrong_use_ends_with_2_and_one_line(runner: Runner, command: str) -> None:
    done = runner.server(*command.split(), "--json")

    require_server_error(done, 2)
    assert done.json["error"] == "usage"


# --- init ----------------------------------------------------------------------------------------


def test_init_makes_a_server_whose_secrets_are_its_own(runner: Runner, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "server"
    done = runner.server("init", folder, "--id", "3", "--listen", "127.0.0.1:7103", "--json")

    assert (done.code, done.err) == (0, "")
    assert set(done.json) == {"id", "config", "claim_token"}
    assert done.json["id"] == 3
    assert done.json["config"] == str(folder / "server.toml")
    assert (folder / "claim-token").read_text() == done.json["claim_token"]
    assert len(bytes.fromhex(done.json["claim_token"])) == 16
    assert _mode(folder) == 0o700
    assert _mode(folder / "claim-token") == _mode(folder / "server-key") == 0o600
    comments = [line for line in (folder / "server.toml").read_text().splitlines() if "#" in line]
    assert len(comments) >= 8


def test_init_as_text_shows_the_token_and_what_to_do(runner: Runner, tmp_path: Path) -> None:
    folder = tmp_path / "server"
    done = runner.server("init", folder, "--id", "1", "--listen", "127.0.0.1:7101")

    token = (folder / "claim-token").read_text()
    assert f"127.0.0.1:7101={token}" in done.out
    assert f"mksearch-server serve --config {folder / 'server.toml'}" in done.out


@pytest.mark.parametrize(
    ("server", "listen", "part"),
    [
        ("0", "127.0.0.1:1", "id = 0"),
        ("256", "127.0.0.1:1", "id = 256"),
        ("1", "0.0.0.0:1", "not a loopback host"),
        ("1", "127.0.0.1:65536", "not a loopback host"),
        ("1", '127.0.0.1:1"', "not a loopback host"),
        ("1", "127.0.0.1", "not a loopback host"),
    ],
)
def test_init_with_wrong_values_makes_nothing(
    runner: Runner, tmp_path: Path, server: str, listen: str, part: str
) -> None:
    folder = tmp_path / "server"
    done = runner.server("init", folder, "--id", server, "--listen", listen)

    require_server_error(done, 2, part)
    assert not folder.exists()


def test_init_keeps_off_folders_that_are_not_new(runner: Runner, tmp_path: Path) -> None:
    options = ("--id", "1", "--listen", "127.0.0.1:0", "--json")
    foreign = tmp_path / "foreign"
    foreign.mkdir(mode=0o755)
    (foreign / "letter").write_text("dear")

    require_server_error(runner.server("init", foreign, *options), 1, "is not empty")
    assert _mode(foreign) == 0o755
    # Permissions do not stop root; a file where a folder should be stops everybody.
    for folder in (foreign / "letter", foreign / "letter" / "server"):
        require_server_error(runner.server("init", folder, *options), 1, "cannot be written")


# --- settings ------------------------------------------------------------------------------------


def test_check_config_says_what_is_set(runner: Runner, made: Path) -> None:
    config = made / "server.toml"
    done = runner.server("check-config", "--config", config, "--json")

    assert (done.code, done.err) == (0, "")
    assert done.json == {"id": 7, "listen": "127.0.0.1:0", "data": str(made / "data")}
    assert "is right" in runner.server("check-config", "--config", config).out


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("threads = 0", "treads = 0", "unknown keys: treads"),
        ("threads = 0", 'folder = "elsewhere"', "unknown keys: folder"),
        ('data = "data"', "", "has no data"),
        ("id = 7", 'id = "7"', "id = '7' is not a number"),
        ("id = 7", "id = true", "id = True is not a number"),
        ("id = 7", "id = 0", "id = 0 is not a number"),
        ("id = 7", f"id = {'9' * 5000}", "is not TOML"),
        ("max_waiting = 64", "max_waiting = 0.5", "max_waiting = 0.5"),
        ("max_store_bytes = 1099511627776", "max_store_bytes = 1", "max_store_bytes = 1"),
        ('engine = "cpu"', 'engine = "gpu"', "engine = 'gpu' is not known"),
        ('engine = "cpu"', 'engine = ["cpu"]', "engine = ['cpu'] is not known"),
        ('data = "data"', "data = 5", "data or listen is not a string"),
        ('"127.0.0.1:0"', "7101", "data or listen is not a string"),
        ('"127.0.0.1:0"', '"0.0.0.0:7101"', "not a loopback host and port"),
        ('"127.0.0.1:0"', '"::1:7101"', "not a loopback host and port"),
        ('"127.0.0.1:0"', '"127.0.0.1:7101', "is not TOML"),
        ("id = 7", "id = 7\nid = 8", "is not TOML"),
        ("id = 7", "= = =", "is not TOML"),
    ],
)
def test_wrong_settings_are_refused_by_name(
    runner: Runner, made: Path, old: str, new: str, part: str
) -> None:
    config = made / "server.toml"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))

    for command in ("check-config", "serve", "status"):
        done = runner.server(command, "--config", config, "--json")
        require_server_error(done, 2, part, str(config))


def test_settings_that_cannot_be_read_are_refused(runner: Runner, tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\0")

    for config, part in (
        (tmp_path / "none.toml", "cannot be read"),
        (tmp_path, "cannot be read"),
        (binary, "is not TOML"),
    ):
        require_server_error(runner.server("check-config", "--config", config), 2, part)


# --- looking at a store --------------------------------------------------------------------------


def test_status_of_a_server_nobody_claimed(runner: Runner, made: Path) -> None:
    words = ("--config", made / "server.toml", "--json")
    require_server_error(runner.server("status", *words), 1, "holds no store")
    ObjectStore(made / "data").close()

    fields = runner.server("status", *words).json
    assert set(fields) == STATUS_FIELDS
    assert (fields["claimed"], fields["collection"], fields["version"]) == (False, "", 0)
    require_server_error(runner.server("verify", *words), 1, "was not claimed")


def test_status_and_verify_look_at_a_server_that_runs(shared: Collection) -> None:
    server = shared.fleet[1]
    words = ("--config", server.config, "--json")

    status = shared.run.server("status", *words)
    assert (status.code, status.err) == (0, "")
    assert set(status.json) == STATUS_FIELDS
    assert status.json["claimed"] is True
    assert status.json["collection"] == shared.made.json["collection"]
    assert status.json["device"] == "cpu"
    assert (status.json["id"], status.json["listen"]) == (1, server.address)
    assert status.json["version"] >= 1
    assert status.json["store_bytes"] > shared.published.json["index_bytes"]
    verify = shared.run.server("verify", *words)
    assert (verify.code, verify.err) == (0, "")
    assert verify.json["verified"] is True
    assert verify.json["objects"] > 61
    assert server.is_running


def test_a_server_keeps_its_files_to_itself(shared: Collection) -> None:
    for server in shared.fleet:
        assert _mode(server.folder) == _mode(server.data) == 0o700
        assert _mode(server.folder / "server-key") == 0o600
        assert not (server.folder / "claim-token").exists()


def _cut(n_bytes: int) -> Callable[[Path], object]:
    return lambda path: os.truncate(path, n_bytes)


def _flip(offset: int) -> Callable[[Path], object]:
    def act(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[offset] ^= 0xFF
        path.write_bytes(data)

    return act


@pytest.mark.parametrize(
    ("act", "code", "part"),
    [
        (Path.unlink, 1, "is not stored here"),
        (_cut(0), 1, "is not stored here"),
        (_cut(100), 3, "a segment header is not"),
        (_cut(4096), 3, "a segment has 4096 bytes"),
        (_cut(5000), 3, "a segment has 5000 bytes"),
        (_flip(0), 3, "does not start with MKSEGMNT"),
        (_flip(9), 3, "upgrade mksearch"),
        (_flip(40), 3, "is damaged"),
        (_flip(5000), 3, "do not match their hash"),
        (_flip(-1), 3, "do not match their hash"),
    ],
)
def test_damage_of_a_segment_is_found_and_named(
    runner: Runner, copied: Path, act: Callable[[Path], object], code: int, part: str
) -> None:
    for path in (copied / "data" / "segments").iterdir():
        act(path)

    words = ("--config", copied / "server.toml", "--json")
    require_server_error(runner.server("verify", *words), code, part)


@pytest.mark.parametrize(
    ("act", "part"),
    [
        (Path.unlink, "cannot be opened"),
        (_cut(0), "the store is damaged"),
        (_cut(100), "the store is damaged"),
        (_flip(16), "cannot be opened"),
    ],
)
def test_damage_of_the_small_objects_is_found_and_named(
    runner: Runner, copied: Path, act: Callable[[Path], object], part: str
) -> None:
    act(copied / "data" / "objects" / "data.mdb")

    words = ("--config", copied / "server.toml", "--json")
    for command in ("status", "verify"):
        require_server_error(runner.server(command, *words), 1, part)


def test_a_changed_byte_of_a_small_object_is_found_and_named(
    shared: Collection, copied: Path
) -> None:
    signed = Profile.open(shared.folder).highest_seen()
    assert signed is not None
    name = signed.manifest.groups[0].dictionary.id
    store = ObjectStore(copied / "data", read_only=True)
    start = store.read(name, 0, 64)
    store.close()
    path = copied / "data" / "objects" / "data.mdb"
    _flip(path.read_bytes().index(start))(path)

    done = shared.run.server("verify", "--config", copied / "server.toml", "--json")
    require_server_error(done, 3, f"object {name.hex()[:16]} is damaged")


def test_a_store_that_cannot_find_its_pages_is_one_line(
    runner: Runner, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Damaged:
        """An environment of LMDB whose tree of pages is broken."""

        def __init__(self, environment: lmdb.Environment) -> None:
            self._environment = environment

        def begin(self, *_arguments: object, **_options: object) -> object:
            raise lmdb.PageNotFoundError("mdb_get")

        def __getattr__(self, name: str) -> object:
            return getattr(self._environment, name)

    open_right = lmdb.open
    monkeypatch.setattr(lmdb, "open", lambda *a, **o: Damaged(open_right(*a, **o)))
    done = runner.server("verify", "--config", copied / "server.toml", "--json")
    require_server_error(done, 1)


def test_small_objects_that_lost_their_end_are_named(copied: Path) -> None:
    path = copied / "data" / "objects" / "data.mdb"
    os.truncate(path, 2 * 4096)

    done = run_server("verify", "--config", copied / "server.toml")
    require_server_error(done, 1)


@pytest.mark.parametrize("act", [Path.unlink, _cut(0), _cut(31)])
def test_a_damaged_key_of_a_server_is_named(
    runner: Runner, copied: Path, act: Callable[[Path], object]
) -> None:
    act(copied / "server-key")

    for command in ("status", "serve"):
        done = runner.server(command, "--config", copied / "server.toml", "--json")
        require_server_error(done, 1, "the key of the server", str(copied))


# --- serve ---------------------------------------------------------------------------------------


def test_a_port_in_use_is_one_line_and_the_other_server_goes_on(
    shared: Collection, copied: Path
) -> None:
    done = run_server("serve", "--config", copied / "server.toml", "--json")

    require_server_error(done, 1, shared.fleet[1].address, "cannot be listened on")
    assert done.json["error"] == "storage"
    assert shared.fleet[1].is_running


@pytest.mark.parametrize("act", [_cut(5000), _flip(40)])
def test_a_server_with_a_damaged_segment_does_not_start(
    runner: Runner, copied: Path, act: Callable[[Path], object]
) -> None:
    for path in (copied / "data" / "segments").iterdir():
        act(path)

    done = runner.server("serve", "--config", copied / "server.toml", "--json")
    require_server_error(done, 3)


def test_a_store_that_cannot_be_made_is_one_line(runner: Runner, made: Path) -> None:
    (made / "data").write_text("a file where a folder should be")

    done = runner.server("serve", "--config", made / "server.toml", "--json")
    require_server_error(done, 1, "cannot be opened")


def test_serving_prints_one_object_and_ends_with_0_when_told(made: Path) -> None:
    process = subprocess.Popen(
        server_command("serve", "--config", str(made / "server.toml"), "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=clean_environment(),
    )
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], 60)
        fields = json.loads(process.stdout.readline()) if ready else {}
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()

    assert fields["id"] == 7
    assert fields["address"].startswith("127.0.0.1:")
    assert not fields["address"].endswith(":0")
    assert (fields["engine"], fields["device"]) == ("cpu", "cpu")
    assert (process.returncode, out) == (0, b"")
    assert b"Traceback" not in err
    assert (made / "claim-token").read_bytes() not in err


def test_a_server_that_is_stopped_serves_its_version_again(collection: Collection) -> None:
    server: ServerProcess = collection.fleet[3]
    before = collection("owner", "status", "--json").json
    assert server.stop() == 0
    assert collection("search", "tomato").code == 0
    server.restart()

    after = collection("owner", "status", "--json").json
    assert [entry["version"] for entry in after["servers"]] == [before["version"]] * 3
