"""``mksearch owner timestamp-key`` and ``renew --timestamp``, as they are typed."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from mksearch_client.timestamp import TimestampFile
from tests.cli.conftest import PASSPHRASE, Collection, require_error


def test_a_machine_with_the_file_alone_renews(collection: Collection, tmp_path: Path) -> None:
    path = tmp_path / "renewals.key"
    made = collection("owner", "timestamp-key", "--to", path, "--json")
    assert made.code == 0, made.err
    assert set(made.json) == {"timestamp_key", "file", "version", "expires_at"}
    collection.run.secrets.append(TimestampFile.read(path, None).seed.reveal())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (
        collection("owner", "status", "--json").json["timestamp_key"]
        == (made.json["timestamp_key"])
    )

    # Without a profile.
    done = collection.run.client("owner", "renew", "--timestamp", path, "--json")

    assert done.code == 0, done.err
    assert set(done.json) == {"version", "expires_at", "servers"}
    assert done.json["version"] == made.json["version"]
    assert done.json["expires_at"] >= made.json["expires_at"]
    assert [server["status"] for server in done.json["servers"]] == ["ok"] * 3
    status = collection("owner", "status", "--json").json
    assert status["expires_at"] == done.json["expires_at"]
    for server in collection.fleet:
        shown = collection.run.server("status", "--config", server.config, "--json").json
        assert shown["renewed_until"] == done.json["expires_at"]
        assert shown["expires_at"] == made.json["expires_at"]
    assert "is good until" in collection.run.client("owner", "renew", "--timestamp", path).out


def test_a_revoked_key_ends_with_4(collection: Collection, tmp_path: Path) -> None:
    path = tmp_path / "renewals.key"
    assert "any before is void" in collection("owner", "timestamp-key", "--to", path).out
    require_error(collection("owner", "timestamp-key", "--to", path), 1, "there already")

    done = collection("owner", "timestamp-key", "--revoke", "--json")

    assert (done.code, done.json["timestamp_key"], done.json["file"]) == (0, "", "")
    refused = collection.run.client("owner", "renew", "--timestamp", path, "--json")
    require_error(refused, 4, "no timestamp key")
    assert refused.json["error"] == "credential-refused"


def test_the_file_is_sealed_with_a_passphrase_of_its_own(
    collection: Collection, tmp_path: Path
) -> None:
    path, passphrase = tmp_path / "renewals.key", tmp_path / "passphrase"
    passphrase.write_text(f"{PASSPHRASE}\n")
    words = ("--to", path, "--to-passphrase-file", passphrase)
    assert collection("owner", "timestamp-key", *words).code == 0

    require_error(
        collection.run.client("owner", "renew", "--timestamp", path), 1, "sealed with a passphrase"
    )
    named = ("--timestamp", path, "--passphrase-file", passphrase)
    assert collection.run.client("owner", "renew", *named).code == 0


@pytest.mark.parametrize("words", [(), ("--revoke", "--to", "x")])
def test_a_key_is_drawn_or_revoked(shared: Collection, words: tuple[str, ...]) -> None:
    require_error(shared("owner", "timestamp-key", *words), 2, "--to FILE")


def test_a_file_that_is_no_timestamp_file_ends_with_1(shared: Collection, tmp_path: Path) -> None:
    require_error(
        shared.run.client("owner", "renew", "--timestamp", tmp_path / "none"), 1, "cannot be read"
    )
    (tmp_path / "noise").write_bytes(bytes(50))
    require_error(
        shared.run.client("owner", "renew", "--timestamp", tmp_path / "noise"), 1, "damaged"
    )
