"""What operators rely on: exit codes, JSON, refused settings, damage found, no secret shown."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from mksearch import __version__
from mksearch.crypto.certificate import Certificate, key_fingerprint, self_signed_certificate
from mksearch.crypto.randomness import SystemRandom
from mksearch_client.profile import Profile
from mksearch_client.server_card import ServerCard
from mksearch_server.scrub import prove_store
from mksearch_server.store import ObjectStore
from tests.cli.conftest import Collection, Runner, require_error
from tests.support.certificates import Authority, new_key
from tests.support.processes import (
    Finished,
    ServerProcess,
    clean_environment,
    run_server,
    server_command,
    serving,
)

COMMANDS = (
    *("init", "serve", "check-config", "status", "verify", "repair", "renew-certificate"),
    *("drain", "card"),
)
PROGRAM = "mksearch-server"
STATUS_FIELDS = {
    *("id", "listen", "server_key", "claimed", "collection", "version", "store_bytes"),
    *("release", "engine", "device", "server_id", "epoch", "segments", "index_bytes"),
    *("manifest_expiry_seconds", "store_limit_bytes", "store_free_bytes", "shares_held"),
    *("share_generation", "running", "pid", "admin", "metrics"),
    *("expires_at", "renewed_until"),
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
        ("1", "0.0.0.0:1", "stands for all addresses"),
        ("1", "[::]:1", "stands for all addresses"),
        ("1", "127.0.0.1:65536", "is not HOST:PORT"),
        ("1", '127.0.0.1:1"', "is not HOST:PORT"),
        ("1", "127.0.0.1", "is not HOST:PORT"),
        ("1", "a..b:1", "no host name or address"),
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


def test_card_says_who_and_where_a_server_is_and_carries_its_claim_token(
    runner: Runner, tmp_path: Path
) -> None:
    folder, output = tmp_path / "server", tmp_path / "server.card"
    words = ("--id", "4", "--listen", "0.0.0.0:7101", "--host", "a.example.org")
    made = runner.server("init", folder, *words, "--json").json
    config = ("--config", folder / "server.toml")
    done = runner.server("card", *config, "-o", output, "--json")

    assert (done.code, done.err) == (0, "")
    assert done.json == {"id": 4, "address": "a.example.org:7101", "card": str(output)}
    assert _mode(output) == 0o600
    card = ServerCard.read(output)
    token, _, tls_key = made["claim_token"].partition(".")
    assert (card.id, card.address, card.claim_token) == (4, "a.example.org:7101", token)
    assert card.tls_key.hex() == tls_key
    assert token not in repr(card)
    # Never over another file; where clients dial something else, that is said.
    require_server_error(runner.server("card", *config, "-o", output), 1, "cannot be made")
    other = tmp_path / "other.card"
    moved = runner.server("card", *config, "-o", other, "--address", "b.example.org:443", "--json")
    assert moved.json["address"] == "b.example.org:443"


def test_card_of_a_server_without_a_port_of_its_own_asks_for_the_address(
    runner: Runner, made: Path, tmp_path: Path
) -> None:
    words = ("card", "--config", made / "server.toml", "-o", tmp_path / "card")

    require_server_error(runner.server(*words), 2, "does not say which address", "--address")
    assert runner.server(*words, "--address", "127.0.0.1:7101").code == 0


def test_a_server_off_loopback_gets_tls_and_its_token_carries_the_key(
    runner: Runner, tmp_path: Path
) -> None:
    folder = tmp_path / "server"
    words = ("--id", "1", "--listen", "0.0.0.0:7101", "--host", "a.example.org")
    done = runner.server("init", folder, *words, "--host", "192.0.2.7", "--request", "--json")

    assert (done.code, done.err) == (0, "")
    secret, _, tls_key = done.json["claim_token"].partition(".")
    assert len(bytes.fromhex(secret)) == 16
    assert (
        tls_key == done.json["tls_key"] == key_fingerprint((folder / "tls.key").read_bytes()).hex()
    )
    assert _mode(folder / "tls.key") == 0o600
    certificate = Certificate.of_pem((folder / "tls.crt").read_bytes())
    assert certificate.hosts == ("a.example.org", "192.0.2.7")
    assert certificate.ends_s - certificate.begins_s == 397 * 86_400
    # What an authority makes of the request is for the same key and hosts.
    signed = Authority.new().answer((folder / "tls.csr").read_bytes())
    assert Certificate.of_pem(signed).hosts == certificate.hosts
    assert Certificate.of_pem(signed).fingerprint.hex() == tls_key


def test_a_server_on_loopback_goes_without_tls_unless_it_is_asked_for(
    runner: Runner, tmp_path: Path
) -> None:
    for name, words, has_tls in (
        ("plain", (), False), ("tls", ("--tls",), True), ("host", ("--host", "localhost"), True),
    ):  # fmt: skip
        folder = tmp_path / name
        done = runner.server("init", folder, "--id", "1", "--listen", "[::1]:0", *words, "--json")
        assert ("." in done.json["claim_token"]) == has_tls
        assert (folder / "tls.crt").exists() == has_tls
        assert runner.server("check-config", "--config", folder / "server.toml").code == 0
    hosts = Certificate.of_pem((tmp_path / "host" / "tls.crt").read_bytes()).hosts
    assert hosts == ("localhost", "::1")


# --- certificates --------------------------------------------------------------------------------


@pytest.fixture
def secured(runner: Runner, tmp_path: Path) -> Path:
    folder = tmp_path / "secured"
    made = runner.server("init", folder, "--id", "1", "--listen", "127.0.0.1:0", "--tls")
    assert made.code == 0
    return folder


def _age(folder: Path, days: int) -> None:
    """Write the certificate as it would have been made ``days`` ago."""
    key = (folder / "tls.key").read_bytes()
    now_s = int(time.time()) - days * 86_400
    made = self_signed_certificate(key, ["127.0.0.1"], SystemRandom(), now_s)
    (folder / "tls.crt").write_bytes(made)


@pytest.mark.parametrize(
    ("age_days", "left", "warning"),
    [
        (0, 396, ""),
        (382, 14, ""),
        (383, 13, "good for 13 more days"),
        (398, -2, "has expired"),
        (-2, 398, "not valid yet"),
    ],
)
def test_check_config_says_how_long_the_certificate_is_good(
    runner: Runner, secured: Path, age_days: int, left: int, warning: str
) -> None:
    _age(secured, age_days)
    done = runner.server("check-config", "--config", secured / "server.toml", "--json")

    assert done.code == 0
    assert done.json["certificate_days"] == left
    assert (warning in done.err) if warning else done.err == ""


def test_renewing_makes_a_new_certificate_for_the_same_key(runner: Runner, secured: Path) -> None:
    config = secured / "server.toml"
    _age(secured, 390)
    key, old = (secured / "tls.key").read_bytes(), (secured / "tls.crt").read_bytes()
    done = runner.server("renew-certificate", "--config", config, "--json")

    assert (done.code, done.err) == (0, "")
    assert done.json["certificate_days"] == 396
    assert (secured / "tls.key").read_bytes() == key
    new = Certificate.of_pem((secured / "tls.crt").read_bytes())
    assert new.fingerprint == Certificate.of_pem(old).fingerprint
    assert new.hosts == ("127.0.0.1",)
    runner.server("renew-certificate", "--config", config, "--host", "b.example.org")
    assert Certificate.of_pem((secured / "tls.crt").read_bytes()).hosts == ("b.example.org",)


def test_renewing_leaves_what_an_authority_signed(runner: Runner, secured: Path) -> None:
    config = secured / "server.toml"
    signed = Authority.new().sign((secured / "tls.key").read_bytes(), ["127.0.0.1"])
    (secured / "tls.crt").write_bytes(signed)

    require_server_error(
        runner.server("renew-certificate", "--config", config), 2, "an authority signed"
    )
    done = runner.server("renew-certificate", "--config", config, "--request", "--json")
    assert done.json == {"request": str(secured / "tls.csr")}
    assert (secured / "tls.crt").read_bytes() == signed


def test_owner_and_operators_as_they_type_it_with_tls(runner: Runner, tmp_path: Path) -> None:
    documents = tmp_path / "notes.txt"
    documents.write_text("apple garden")
    profile = ("--profile", tmp_path / "owner")
    with serving(tmp_path / "servers", init_words=("--tls",)) as fleet:
        claims = [f"{s.address}=@{s.folder / 'claim-token'}" for s in fleet]
        words = [word for claim in claims for word in ("--server", claim)]
        assert runner.client("owner", "init", *words, *profile).code == 0
        assert runner.client("owner", "publish", documents, *profile).code == 0
        status = runner.server("status", "--config", fleet[1].config, "--json").json
        assert set(status) == STATUS_FIELDS | {"tls_key", "hosts", "certificate_days"}
        for server in fleet:
            _age(server.folder, 398)
        late = runner.client("search", "apple", *profile)
        require_error(late, 1, "need 2", "expired at")
        for server in fleet:
            assert f"{server.address}: its certificate expired" in late.err
            assert runner.server("renew-certificate", "--config", server.config).code == 0
        assert runner.client("search", "apple", *profile, "--json").json["hits"]
        assert "a new certificate is presented" in fleet[1].log()
        assert "has expired" in fleet[1].log()
        fleet[1].stop()
        other = runner.server(
            "init", tmp_path / "other", "--id", "1", "--listen", fleet[1].address, "--tls"
        )
        assert other.code == 0
        for name in ("tls.key", "tls.crt"):
            shutil.copy(tmp_path / "other" / name, fleet[1].folder / name)
        fleet[1].restart()
        done = runner.client("owner", "status", *profile)
        assert f"{fleet[1].address}: another server's certificate" in done.out


def test_a_server_without_tls_has_no_certificate_to_renew(runner: Runner, made: Path) -> None:
    done = runner.server("renew-certificate", "--config", made / "server.toml")

    require_server_error(done, 2, "has no [tls]")


@pytest.mark.parametrize("command", ["check-config", "serve"])
@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("tls.crt", b"no certificate", "is damaged"),
        ("tls.key", b"no key", "is damaged"),
        ("tls.key", None, "tls.key cannot be read"),
        ("tls.key", new_key(), "is not for the key"),
    ],
    ids=["certificate", "key", "missing", "another"],
)
def test_tls_files_that_cannot_be_used_are_named(
    runner: Runner, secured: Path, command: str, name: str, content: bytes | None, part: str
) -> None:
    if content is None:
        (secured / name).unlink()
    else:
        (secured / name).write_bytes(content)

    done = runner.server(command, "--config", secured / "server.toml")
    require_server_error(done, 1, part)
    assert "PRIVATE KEY" not in done.err


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
        ("grace_s = 60", "grace_s = -1", "grace_s = -1"),
        ('log_format = "text"', 'log_format = "xml"', "log_format = 'xml' is not known"),
        ('log_format = "text"', "log_format = 1", "log_format = 1 is not known"),
        ('log_format = "text"', 'admin_listen = "0.0.0.0:1"', "for this machine alone"),
        ('log_format = "text"', "admin_listen = 9101", "not a loopback host and port"),
        ('log_format = "text"', 'admin_listen = "127.0.0.1"', "not a loopback host and port"),
        ('engine = "cpu"', 'engine = "gpu"', "engine = 'gpu' is not known"),
        ('engine = "cpu"', 'engine = ["cpu"]', "engine = ['cpu'] is not known"),
        ('data = "data"', "data = 5", "data or listen is not a string"),
        ('"127.0.0.1:0"', "7101", "data or listen is not a string"),
        ('"127.0.0.1:0"', '"0.0.0.0:7101"', "not a loopback host, and there is no [tls]"),
        ('"127.0.0.1:0"', '"search.example.org:7101"', "not a loopback host"),
        ('"127.0.0.1:0"', '"::1:7101"', "is not HOST:PORT"),
        ("# [tls]", "[tls]", "[tls] has no certificate, key"),
        ("# [tls]", '[tls]\ncertificate = "c"\nkey = 5', "tls.key = 5 is not a text"),
        ("# [tls]", '[tls]\ncertificate = "c"\nkey = "k"\nca = "x"', "unknown keys: ca"),
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
    done = runner.server("status", "--config", copied / "server.toml", "--json")
    require_server_error(done, 1, "the store is damaged")
    (damage,) = prove_store(copied / "data").damages
    assert "the store is damaged" in damage.reason


def test_small_objects_that_lost_their_end_are_named(copied: Path) -> None:
    path = copied / "data" / "objects" / "data.mdb"
    os.truncate(path, 2 * 4096)

    done = run_server("verify", "--config", copied / "server.toml", "--json")
    require_server_error(done, 1, "repair --from")
    listed = run_server("verify", "--config", copied / "server.toml")
    assert listed.out.startswith("small objects: the store is damaged")


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
