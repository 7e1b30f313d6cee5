"""What people and scripts rely on: exit codes, JSON, one line of cause and cure, no secret."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mksearch import __version__
from mksearch.params import MANIFEST_LIFE_S
from mksearch_client import searching
from mksearch_client.owner import Owner
from mksearch_client.profile import Profile
from tests.cli.conftest import (
    CORPUS,
    ERROR_FIELDS,
    N_DOCS,
    PASSPHRASE,
    Collection,
    Runner,
    Sealed,
    require_error,
)
from tests.support.processes import clean_environment, client_command, interruptible_command

QUERY = "watering tomato plants"
SEARCH_FIELDS = {
    *("query", "k", "n_docs", "version", "verified", "exact", "privacy", "hits", "servers"),
    *("learned", "shown", "warnings", "groups", "records_fetched", "rounds", "bytes_sent"),
    *("bytes_received", "timings_ms", "blocks_opened", "score_waits", "cells_share"),
}
COMMANDS = (
    *("demo", "search", "open", "plan"),
    *("owner init", "owner publish", "owner status", "owner card", "owner verify", "owner renew"),
    *("owner delete", "owner compact", "owner watch", "owner add-server", "owner replace-server"),
    *("owner backup", "owner recover", "admin init", "admin credential", "admin list"),
    *("user init", "user keygen", "user enrol", "user whoami", "user open-share"),
)
LATER = ("complete gar", "evaluate scifact", "web --port 1")


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


# --- the shape of the command line ---------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_shows_an_example(runner: Runner, command: str) -> None:
    done = runner.client(*command.split(), "--help")

    assert (done.code, done.err) == (0, "")
    assert f"Example: mksearch {command}" in " ".join(done.out.split())


def test_version_is_printed(runner: Runner) -> None:
    done = runner.client("--version")

    assert (done.code, done.out, done.err) == (0, f"mksearch {__version__}\n", "")


@pytest.mark.parametrize("words", [(), ("owner",), ("admin",), ("user",)])
def test_without_a_command_the_help_is_shown_and_nothing_else(
    runner: Runner, words: tuple[str, ...]
) -> None:
    done = runner.client(*words)

    assert done.code == 2
    assert "Usage: mksearch" in done.out
    assert done.err == ""


@pytest.mark.parametrize("command", LATER)
def test_a_command_that_comes_later_says_so_in_one_line(runner: Runner, command: str) -> None:
    done = runner.client(*command.split())
    require_error(done, 2, "is not part of version")
    assert done.out == ""

    as_json = runner.client(*command.split(), "--json")
    require_error(as_json, 2, "is not part of version")
    assert as_json.json["error"] == "invalid-parameter"


@pytest.mark.parametrize(
    "command",
    [
        *("frobnicate", "owner frobnicate", "search", "search a b", "search a --nonsense"),
        *("search a -k many", "search a --offset 1.5", "owner publish", "owner card", "open"),
        *("search a --timeout 0", "search a --timeout nan", "owner status --timeout inf"),
        *("owner init", "admin credential", "admin frobnicate", "user init", "user enrol"),
        *("user open-share", "user open-share a", "owner backup --policy key:a", "owner recover"),
    ],
)
def test_wrong_use_ends_with_2_and_one_line(runner: Runner, command: str) -> None:
    done = runner.client(*command.split(), "--json")

    require_error(done, 2)
    assert done.json["error"] == "usage"


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("open a --privacy full", "--privacy full is not part of version"),
        ("search a --privacy none", "there is no privacy 'none'"),
        ("search a --traffic small", "--traffic is not part of version"),
        ("search a -k 0", "k = 0"),
        ("search a -k 99999999999999999999", "k = 99999999999999999999"),
        ("search a --offset -1", "offset -1"),
        ("search a --max-records 0", "max_records 0"),
        ("owner publish FILE --policy a", "need an administration that admits users"),
        ("owner publish FILE --scoring lucene", "there is no scoring 'lucene'"),
        ("owner publish FILE --language xx", "no analyzer for language 'xx'"),
    ],
)
def test_a_value_out_of_range_ends_with_2_and_the_cause(
    shared: Collection, command: str, part: str
) -> None:
    words = [str(CORPUS) if word == "FILE" else word for word in command.split()]

    require_error(shared(*words), 2, part)
    done = shared(*words, "--json")
    require_error(done, 2, part)
    assert done.json["error"] in ("invalid-parameter", "bad-query", "analyzer")


def test_an_interrupted_command_ends_with_130_and_one_line(
    shared: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(searching.Searcher, "search", interrupt)
    done = shared("search", QUERY)

    assert (done.code, done.out) == (130, "")
    assert done.err.strip().count("\n") == 0


# --- making a profile ----------------------------------------------------------------------------


def test_init_says_what_was_made(shared: Collection) -> None:
    fields = shared.made.json

    assert set(fields) == {
        *("profile", "collection", "owner_key", "n_servers", "collusion_bound", "servers")
    }
    assert (fields["n_servers"], fields["collusion_bound"]) == (3, 1)
    assert fields["profile"] == str(shared.folder)
    assert [server["id"] for server in fields["servers"]] == [1, 2, 3]
    assert shared.made.err == ""


def test_a_profile_is_readable_by_its_owner_alone(shared: Collection) -> None:
    shared("search", QUERY)

    assert _mode(shared.folder) == 0o700
    for path in shared.folder.rglob("*"):
        if path.is_file():
            assert _mode(path) == 0o600, path


def test_a_used_claim_token_is_gone_and_claims_nothing(shared: Collection, tmp_path: Path) -> None:
    servers = [
        word
        for address, token in shared.fleet.tokens().items()
        for word in ("--server", f"{address}={token}")
    ]
    done = shared.run.client("owner", "init", *servers, "--profile", tmp_path / "thief")

    require_error(done, 1, "claimed by another owner")
    assert not any((server.folder / "claim-token").exists() for server in shared.fleet)


def test_a_wrong_claim_token_is_refused_and_the_right_ones_work_afterwards(
    sealed: Sealed,
) -> None:
    require_error(sealed.wrong_token, 1, "the claim token is wrong")
    assert sealed.wrong_token.json["error"] == "refused"
    assert sealed.made.code == 0


@pytest.mark.parametrize(
    ("servers", "code", "part"),
    [
        (["127.0.0.1:1=t"], 2, "need 3..255"),
        (["127.0.0.1:1=t", "127.0.0.1:2=t", "127.0.0.1:2=u"], 2, "named twice"),
        (["127.0.0.1:1=t", "127.0.0.1:2=t", "192.0.2.1:3=t"], 2, "not a loopback host"),
        (["127.0.0.1:1=t", "127.0.0.1:2=t", "127.0.0.1:3=t.ff"], 2, "claim token is damaged"),
        (["127.0.0.1:1=t", "127.0.0.1:2=t", "127.0.0.1:3"], 2, "not HOST:PORT=CLAIM-TOKEN"),
        (["127.0.0.1:1=t", "127.0.0.1:2=t", "127.0.0.1:3="], 2, "not HOST:PORT=CLAIM-TOKEN"),
        (["127.0.0.1:1=@/nowhere/token"], 2, "/nowhere/token cannot be read"),
        (["127.0.0.1:1=t", "127.0.0.1:2=t", "127.0.0.1:3=t"], 1, "127.0.0.1:1: no connection"),
    ],
)
def test_init_names_what_is_wrong_with_its_servers(
    runner: Runner, tmp_path: Path, servers: list[str], code: int, part: str
) -> None:
    words = [word for server in servers for word in ("--server", server)]
    done = runner.client("owner", "init", *words, "--profile", tmp_path / "profile", "--json")

    require_error(done, code, part)


def test_init_keeps_off_folders_that_are_not_its_own(shared: Collection, tmp_path: Path) -> None:
    dead = [word for n in (1, 2, 3) for word in ("--server", f"127.0.0.1:{n}=t")]
    require_error(
        shared.run.client("owner", "init", *dead, "--profile", shared.folder),
        1,
        "holds a profile already",
    )
    foreign = tmp_path / "foreign"
    foreign.mkdir(mode=0o755)
    (foreign / "letter").write_text("dear")
    done = shared.run.client("owner", "init", *dead, "--profile", foreign)
    require_error(done, 1, "is not empty")
    assert _mode(foreign) == 0o755
    # Permissions do not stop root; a file where a folder should be stops everybody.
    done = shared.run.client("owner", "init", *dead, "--profile", foreign / "letter" / "profile")
    require_error(done, 1, "cannot be written")


# --- publishing ----------------------------------------------------------------------------------


def test_publish_says_what_was_published(shared: Collection) -> None:
    fields = shared.published.json

    assert set(fields) >= {
        *("documents", "skipped", "version", "segments", "columns", "index_bytes", "seconds")
    }
    assert set(fields["seconds"]) == {"read", "index", "encrypt", "upload"}
    assert (fields["documents"], fields["version"], fields["segments"]) == (N_DOCS, 1, 1)
    assert fields["skipped"] == []
    assert fields["columns"] > 0
    segments = [list((server.data / "segments").iterdir()) for server in shared.fleet]
    assert any(path.stat().st_size == fields["index_bytes"] for path in segments[0])
    assert shared.published.err == ""


def test_the_same_documents_are_not_published_again(collection: Collection) -> None:
    done = collection("owner", "publish", CORPUS)
    assert (done.code, done.err) == (0, "")
    assert "nothing changed" in done.out
    assert collection("owner", "publish", CORPUS, "--json").json["changed"] is False


def test_folders_are_published_by_relative_path_and_back_out_only_when_told(
    collection: Collection, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    (notes / "deep").mkdir(parents=True)
    (notes / "deep" / "quince.md").write_text("# Quinces\n\nboil the quinces with sugar\n")
    (notes / "photo.jpg").write_bytes(b"\xff\xd8")
    report = tmp_path / "report.json"

    dry = collection("owner", "publish", CORPUS, notes, "--dry-run", "--json").json
    assert (dry["documents"], dry["changed"]) == (N_DOCS + 1, True)
    before = collection("owner", "status", "--json").json
    assert before["documents"] == N_DOCS

    done = collection("owner", "publish", CORPUS, notes, "--report", report, "--json")
    assert done.code == 0
    assert json.loads(report.read_text()) == done.json
    assert done.json["version"] == before["version"] + 1
    (skipped,) = done.json["skipped"]
    assert skipped["path"].endswith("photo.jpg")
    assert ".jpg are not read" in skipped["reason"]
    assert collection("search", "quince", "--json").json["hits"][0]["id"] == "deep/quince.md"

    staying = collection("owner", "publish", CORPUS, "--json").json
    assert (staying["changed"], staying["deleted"]) == (False, 0)
    assert collection("search", "quince", "--json").json["hits"][0]["id"] == "deep/quince.md"
    told = collection("owner", "publish", CORPUS, "--delete-missing")
    assert (told.code, told.err) == (0, "")
    assert collection("search", "quince", "--json").json["hits"] == []


def test_what_was_skipped_goes_to_standard_error(shared: Collection, tmp_path: Path) -> None:
    (tmp_path / "photo\x1b[31m.jpg").write_bytes(b"\xff\xd8")
    done = shared("owner", "publish", CORPUS, tmp_path, "--dry-run")

    assert done.out == f"{N_DOCS} documents published already\n"
    assert done.err.startswith("skipped ")
    assert "\x1b" not in done.err


def test_unreadable_documents_end_with_1_and_name_the_path(
    shared: Collection, tmp_path: Path
) -> None:
    require_error(shared("owner", "publish", tmp_path / "none"), 1, "none cannot be read")
    require_error(shared("owner", "publish", tmp_path), 1, "no document in")


def test_a_report_that_cannot_be_written_is_said_before_the_work(
    shared: Collection, tmp_path: Path
) -> None:
    version = shared("owner", "status", "--json").json["version"]
    (tmp_path / "more.txt").write_text("one more document")
    where = tmp_path / "none" / "report.json"
    done = shared("owner", "publish", CORPUS, tmp_path, "--report", where, "--json")

    require_error(done, 1, "report.json cannot be written")
    assert shared("owner", "status", "--json").json["version"] == version


# --- searching -----------------------------------------------------------------------------------


def test_search_prints_one_object_with_every_field(collection: Collection) -> None:
    done = collection("search", QUERY, "-k", "3", "--json")
    fields = done.json

    assert (done.code, done.err) == (0, "")
    assert set(fields) == SEARCH_FIELDS
    assert (fields["query"], fields["k"], fields["n_docs"]) == (QUERY, 3, N_DOCS)
    assert (fields["verified"], fields["exact"], fields["privacy"]) == (True, True, "balanced")
    assert [set(hit) for hit in fields["hits"]] == [{"rank", "score", "id", "title", "snippet"}] * 3
    assert fields["hits"][0]["id"] == "garden-01"
    assert [hit["rank"] for hit in fields["hits"]] == [1, 2, 3]
    assert [set(server) >= {"id", "address", "status"} for server in fields["servers"]] == [
        True
    ] * 3
    assert sorted(server["status"] for server in fields["servers"]) == ["ok", "ok", "unused"]
    assert all(sentence for sentence in fields["learned"])
    assert len(fields["learned"]) == len(fields["shown"]["t+1"]) > len(fields["shown"]["t"]) > 0
    assert fields["groups"] == 1
    assert fields["records_fetched"] >= 3
    assert fields["timings_ms"]["total"] > 0
    assert min(fields["rounds"], fields["bytes_sent"], fields["bytes_received"]) > 0
    assert (fields["blocks_opened"], fields["score_waits"], fields["cells_share"]) == (0, 1, 1.0)


def test_a_profile_forbids_modes_that_show_more_than_it_allows(
    collection: Collection, tmp_path: Path
) -> None:
    folder = collection.copy(tmp_path / "strict")
    config = folder / "config.toml"
    config.write_text('[privacy]\nmax = "balanced"\n')
    words = ("search", QUERY, "--profile", folder, "--json")
    assert collection.run.client(*words).json["hits"]
    done = collection.run.client(*words, "--privacy", "fast")
    require_error(done, 2, "mode fast shows servers more than balanced", "privacy.max")

    config.write_text('[privacy]\nmax = "full"\n')
    for command in (words, ("open", "garden-01", "--profile", folder, "--json")):
        done = collection.run.client(*command)
        require_error(
            done, 2, "mode balanced shows servers more than full", "privacy.max", folder.name
        )
        assert done.json["error"] == "privacy-exceeded"

    config.write_text('[privacy]\nmax = "most"\n')
    require_error(collection.run.client(*words), 1, "privacy.max is 'most'", str(config))


def test_offset_goes_on_where_the_page_before_ended(collection: Collection) -> None:
    whole = collection("search", QUERY, "-k", "5", "--json").json["hits"]
    page = collection("search", QUERY, "-k", "3", "--offset", "2", "--json").json["hits"]

    assert len(whole) == 5
    assert page == whole[2:]


def test_fast_finds_the_same_hits_and_says_what_it_showed(collection: Collection) -> None:
    balanced = collection("search", QUERY, "-k", "3", "--json").json
    fast = collection("search", QUERY, "-k", "3", "--privacy", "fast", "--json").json

    assert (fast["privacy"], fast["hits"]) == ("fast", balanced["hits"])
    assert fast["blocks_opened"] >= 1
    assert any("which blocks were opened" in sentence for sentence in fast["learned"])


def test_full_finds_the_same_hits_and_shows_no_record(collection: Collection) -> None:
    balanced = collection("search", QUERY, "-k", "3", "--json").json
    full = collection("search", QUERY, "-k", "3", "--privacy", "full", "--json").json

    assert (full["privacy"], full["hits"]) == ("full", balanced["hits"])
    assert any("not which records" in sentence for sentence in full["learned"])
    assert not any("record numbers were read" in sentence for sentence in full["learned"])


def test_a_limit_of_records_is_said_not_to_be_exact(collection: Collection) -> None:
    fields = collection("search", QUERY, "-k", "3", "--max-records", "1", "--json").json

    assert not fields["exact"]
    assert any("not exact" in warning for warning in fields["warnings"])


def test_hits_go_to_standard_output_and_the_rest_to_standard_error(
    collection: Collection,
) -> None:
    done = collection("search", QUERY, "-k", "2")
    explained = collection("search", QUERY, "-k", "2", "--explain")

    assert explained.out == done.out
    assert "[garden-01]" in done.out
    assert "every row verified" in done.err
    assert "bytes sent" not in done.err
    assert "bytes sent" in explained.err
    assert "rounds; ms: " in explained.err


@pytest.mark.parametrize("query", ["zyzzyva", "the of", "", "!?", "\udcff"])
def test_a_query_that_can_match_nothing_ends_with_0_and_a_message(
    shared: Collection, query: str
) -> None:
    done = shared("search", query)
    assert (done.code, done.out) == (0, "no document matches\n")
    assert "note: " in done.err

    fields = shared("search", query, "--json").json
    assert fields["hits"] == []
    assert fields["warnings"]
    assert fields["bytes_sent"] > 0


def test_json_is_right_on_an_output_without_the_characters(shared: Collection) -> None:
    done = shared("search", "jardín 庭", "--json", encoding="ascii")

    assert done.json["query"] == "jardín 庭"


def test_a_document_is_opened_on_standard_output_in_json_and_in_a_file(
    collection: Collection, tmp_path: Path
) -> None:
    text = collection("open", "garden-01").out
    assert text.startswith("Tomatoes want deep water")
    fields = collection("open", "garden-01", "--json").json
    assert fields == {"id": "garden-01", "title": "Watering tomatoes", "text": text}
    done = collection("open", "garden-01", "-o", tmp_path / "garden.txt")
    assert done.code == 0
    assert (tmp_path / "garden.txt").read_text() == text
    require_error(collection("open", "garden-01", "-o", tmp_path), 1, "cannot be written")


@pytest.mark.parametrize("name", ["garden-99", "", "\udcff"])
def test_an_unknown_document_ends_with_1(shared: Collection, name: str) -> None:
    done = shared("open", name, "--json")

    require_error(done, 1)
    assert done.json["error"] == "bad-input"


# --- looking after a collection ------------------------------------------------------------------


def test_status_says_what_every_server_serves(collection: Collection) -> None:
    fields = collection("owner", "status", "--json").json

    assert set(fields) == {
        *("name", "version", "documents", "created_at", "expires_at", "timestamp_key"),
        *("groups", "servers", "evidence", "equivocations"),
    }
    (group,) = fields["groups"]
    assert (group["policy"], group["segments"], group["documents"]) == ("", 1, N_DOCS)
    assert (group["deleted"], group["compact_saves_bytes"]) == (0, 0)
    assert fields["evidence"] == []
    assert (fields["name"], fields["documents"]) == ("test", N_DOCS)
    assert [server["status"] for server in fields["servers"]] == ["ok"] * 3
    assert {server["version"] for server in fields["servers"]} == {fields["version"]}
    assert [server["address"] for server in fields["servers"]] == [
        server.address for server in collection.fleet
    ]
    assert collection("owner", "status").out.count(" ok v") == 3


def test_a_card_holds_what_a_user_must_have_and_no_secret(
    shared: Collection, tmp_path: Path
) -> None:
    path = tmp_path / "card.json"
    done = shared("owner", "card", "-o", path, "--json")

    assert (done.code, done.json) == (0, {"card": str(path)})
    card = json.loads(path.read_text())
    assert card["collection"] == shared.made.json["collection"]
    assert [server["id"] for server in card["servers"]] == [1, 2, 3]
    shared.run.require_no_secret(path.read_bytes())
    require_error(shared("owner", "card", "-o", tmp_path), 1, "cannot be written")


def test_renewing_signs_the_same_documents_as_the_next_version(collection: Collection) -> None:
    before = collection("owner", "status", "--json").json
    done = collection("owner", "renew", "--json").json
    after = collection("owner", "status", "--json").json

    assert set(done) == {"version", "expires_at", "servers"}
    assert done["version"] == before["version"] + 1 == after["version"]
    assert done["expires_at"] == after["expires_at"] >= before["expires_at"]
    assert after["documents"] == N_DOCS


def test_verify_proves_every_server_or_ends_with_3(collection: Collection) -> None:
    good = collection("owner", "verify", "--json")
    assert good.code == 0
    assert good.json["verified"] is True
    assert [server["result"] for server in good.json["servers"]] == ["ok"] * 3

    collection.change(2)
    try:
        bad = collection("owner", "verify", "--json")
    finally:
        collection.change(2)
    assert bad.code == 3
    assert bad.json["verified"] is False
    assert [server["result"] == "ok" for server in bad.json["servers"]] == [True, False, True]


# --- servers that lie, lag, or are not there -----------------------------------------------------


def test_one_changed_server_is_named_and_the_answer_stands(collection: Collection) -> None:
    right = collection("search", QUERY, "--json").json["hits"]
    collection.change(1)
    try:
        done = collection("search", QUERY, "--json")
        kept = collection("owner", "status", "--json").json["evidence"]
        again = collection("search", QUERY, "--json")
        collection.forgive()
        text = collection("search", QUERY)
    finally:
        collection.change(1)
        collection.forgive()

    assert done.code == text.code == again.code == 0
    assert done.json["hits"] == again.json["hits"] == right
    assert [server["status"] for server in done.json["servers"]] == ["lied", "ok", "ok"]
    assert [evidence["server"] for evidence in kept] == [1]
    assert [server["status"] for server in again.json["servers"]] == ["unused", "ok", "ok"]
    assert f"server 1 {collection.fleet[1].address} lied" in text.err
    assert "owner verify --evidence" in text.err


def test_two_changed_servers_end_with_3_and_no_hit_is_shown(collection: Collection) -> None:
    for server in (2, 3):
        collection.change(server)
    try:
        text = collection("search", QUERY)
        done = collection("search", QUERY, "--json")
    finally:
        for server in (2, 3):
            collection.change(server)
        collection.forgive()

    require_error(text, 3, "servers 2, 3", "no result is shown")
    assert text.out == ""
    require_error(done, 3)
    assert set(done.json) == ERROR_FIELDS
    assert done.json["error"] == "answer-refused"
    assert done.json["server"] == 2


def test_an_expired_manifest_ends_with_3_unless_it_is_accepted(collection: Collection) -> None:
    long_ago = time.time() - MANIFEST_LIFE_S - 5_000
    with Owner(Profile.open(collection.folder), clock=lambda: long_ago) as owner:
        owner.renew()
    try:
        for words in (("search", QUERY), ("open", "garden-01")):
            refused = collection(*words)
            require_error(refused, 3)
            assert refused.out == ""
            assert collection(*words, "--json").json["error"] == "manifest-expired"
            assert collection(*words, "--accept-expired").code == 0
        accepted = collection("search", QUERY, "--accept-expired", "--json").json
        assert any("expired" in warning for warning in accepted["warnings"])
        assert accepted["hits"]
    finally:
        assert collection("owner", "renew").code == 0
    assert collection("search", QUERY).code == 0


def test_servers_that_do_not_run_end_with_1_and_are_named(
    shared: Collection, tmp_path: Path
) -> None:
    dead = {f"server_{n}": _free_address() for n in (2, 3)}
    profile = shared.copy(tmp_path / "profile", **dead)
    options = ("--profile", profile, "--timeout", "5")

    text = shared.run.client("search", QUERY, *options)
    require_error(text, 1, "server 2 unreachable", "server 3 unreachable")
    assert text.out == ""
    done = shared.run.client("search", QUERY, *options, "--json")
    require_error(done, 1)
    assert done.json["error"] == "not-enough-answers"
    status = shared.run.client("owner", "status", *options, "--json")
    assert status.code == 0
    statuses = [server["status"] for server in status.json["servers"]]
    assert statuses == ["ok", "unreachable", "unreachable"]
    assert shared.run.client("owner", "publish", CORPUS, *options, "--json").code == 1
    assert shared.run.client("owner", "renew", *options, "--json").code == 1


def test_servers_without_room_end_a_publish_with_1_and_one_line(
    sealed: Sealed, runner: Runner, tmp_path: Path
) -> None:
    lines = [
        json.dumps({"_id": f"d{n}", "text": " ".join(f"word{n * 20 + i}" for i in range(20))})
        for n in range(300)
    ]
    corpus = tmp_path / "large.jsonl"
    corpus.write_text("\n".join(lines))
    words = ("owner", "publish", corpus, "--profile", sealed.folder)
    done = runner.client(*words, "--passphrase-file", sealed.passphrase, "--json")

    require_error(done, 1, "No space left on device")
    assert done.json["error"] == "not-enough-answers"


# --- profiles that cannot be used ----------------------------------------------------------------


def _overwrite(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def _set_byte(offset: int, value: int) -> Callable[[Path], object]:
    def act(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[offset] = value
        path.write_bytes(data)

    return act


def _flip_byte(at: int) -> Callable[[Path], object]:
    def act(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    return act


def _edit(**changes: object) -> Callable[[Path], object]:
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("name", "act", "part"),
    [
        ("keys", Path.unlink, "holds no profile"),
        ("keys", _make_folder, "holds no profile"),
        ("keys", _overwrite(b""), "are damaged"),
        ("keys", _overwrite(b"MKKEYRNG"), "are damaged"),
        ("keys", _set_byte(0, 0), "are damaged"),
        ("keys", _flip_byte(-1), "or damaged"),
        ("keys", _set_byte(11, 9), "format version 9"),
        ("profile.json", Path.unlink, "is not finished"),
        ("profile.json", _overwrite(b""), "is damaged"),
        ("profile.json", _overwrite(b"\xff\xfe"), "is damaged"),
        ("profile.json", _overwrite(b"[1]"), "is damaged"),
        ("profile.json", _edit(n_servers=0), "is damaged"),
        ("profile.json", _edit(servers=[{"id": 1}]), "is damaged"),
        ("profile.json", _edit(format=9), "is of format 9"),
        ("manifest", _overwrite(b""), "manifest is damaged"),
        ("manifest", _flip_byte(100), "manifest is damaged"),
        ("manifest", _set_byte(11, 9), "format version 9"),
    ],
)
def test_a_damaged_profile_ends_with_1_and_names_the_file(
    shared: Collection, tmp_path: Path, name: str, act: Callable[[Path], object], part: str
) -> None:
    profile = shared.copy(tmp_path / "profile")
    act(profile / name)
    done = shared.run.client("search", QUERY, "--profile", profile, "--json")

    require_error(done, 1, part, str(profile))
    assert done.json["error"] == "profile"
    if "format" in part:
        assert "upgrade mksearch" in done.err


def test_a_missing_profile_is_named_wherever_its_name_came_from(
    runner: Runner, tmp_path: Path
) -> None:
    none = tmp_path / "none"
    for done in (
        runner.client("search", QUERY, "--profile", none),
        runner.client("owner", "status", environment={"MKSEARCH_PROFILE": str(none)}),
    ):
        require_error(done, 1, f"{none} holds no profile", "mksearch owner init")
    done = runner.client("open", "a", environment={"HOME": str(tmp_path)})
    require_error(done, 1, str(tmp_path / ".config" / "mksearch"))


def test_the_environment_names_the_profile(shared: Collection) -> None:
    named = {"MKSEARCH_PROFILE": str(shared.folder)}

    assert shared.run.client("search", QUERY, environment=named).code == 0


def test_a_cache_that_cannot_be_written_costs_only_speed(
    shared: Collection, tmp_path: Path
) -> None:
    profile = shared.copy(tmp_path / "profile")
    shutil.rmtree(profile / "cache", ignore_errors=True)
    (profile / "cache").write_text("a file where a folder should be")

    assert shared.run.client("search", QUERY, "--profile", profile).code == 0


def test_a_profile_that_cannot_be_written_is_not_published_from(
    shared: Collection, tmp_path: Path
) -> None:
    profile = shared.copy(tmp_path / "profile")
    (profile / "publication").write_text("a file where a folder should be")
    (tmp_path / "more.txt").write_text("one more document")
    words = ("owner", "publish", CORPUS, tmp_path / "more.txt", "--profile", profile, "--json")

    require_error(shared.run.client(*words), 1, "publication cannot be written")


# --- passphrases ---------------------------------------------------------------------------------


def test_a_sealed_profile_opens_with_its_passphrase_alone(
    sealed: Sealed, runner: Runner, tmp_path: Path
) -> None:
    status = ("owner", "status", "--profile", str(sealed.folder), "--json")
    wrong, empty = tmp_path / "wrong", tmp_path / "empty"
    wrong.write_text("correct horse battery stable\n")
    empty.write_text("\n")

    require_error(runner.client(*status), 1, "sealed with a passphrase", "--passphrase-file")
    require_error(runner.client(*status, "--passphrase-file", wrong), 1, "the passphrase is wrong")
    require_error(runner.client(*status, "--passphrase-file", empty), 1, "is empty")
    require_error(
        runner.client(*status, "--passphrase-file", tmp_path / "none"), 1, "none cannot be read"
    )
    for done in (
        runner.client(*status, "--passphrase-file", sealed.passphrase),
        runner.client(*status, environment={"MKSEARCH_PASSPHRASE_FILE": str(sealed.passphrase)}),
    ):
        assert done.code == 0
        assert done.json["version"] == 0


def test_sealed_keys_hold_neither_key_nor_passphrase_in_the_clear(
    sealed: Sealed, runner: Runner
) -> None:
    data = (sealed.folder / "keys").read_bytes()

    runner.require_no_secret(data)
    assert _mode(sealed.folder / "keys") == 0o600


def test_keys_that_a_failed_init_left_unsealed_are_sealed_by_the_next(
    runner: Runner, tmp_path: Path
) -> None:
    dead = [word for n in (1, 2, 3) for word in ("--server", f"127.0.0.1:{n}=t")]
    words = ("owner", "init", *dead, "--profile", str(tmp_path / "profile"))
    passphrase = tmp_path / "passphrase"
    passphrase.write_text(PASSPHRASE)
    require_error(runner.client(*words), 1, "no connection")
    require_error(runner.client(*words, "--passphrase-file", passphrase), 1, "no connection")

    require_error(runner.client(*words), 1, "sealed with a passphrase")


# --- secrets -------------------------------------------------------------------------------------


def test_logs_and_stores_of_servers_hold_no_secret_and_no_query(collection: Collection) -> None:
    collection("search", "rhubarb custard")

    for server in collection.fleet:
        log = server.log()
        assert "is active" in log
        assert "rhubarb" not in log
        collection.run.require_no_secret(log.encode())
        for path in server.data.rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                collection.run.require_no_secret(data)
                assert b"Watering tomatoes" not in data


# --- outputs that fail ---------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_output_ends_with_1_and_one_line(shared: Collection) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            client_command("search", QUERY, "--json", "--profile", str(shared.folder)),
            stdout=full,
            stderr=subprocess.PIPE,
            env=clean_environment(),
            check=False,
            timeout=60,
        )
    err = done.stderr.decode()

    assert done.returncode == 1
    assert err.startswith("mksearch: No space left on device")
    assert err.count("\n") == 1


def test_a_closed_output_ends_with_1_in_silence(shared: Collection) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            client_command("open", "garden-01", "--profile", str(shared.folder)),
            stdout=writing,
            stderr=subprocess.PIPE,
            env=clean_environment(),
            check=False,
            timeout=60,
        )
    finally:
        os.close(writing)

    assert done.returncode == 1
    assert done.stderr == b""


# --- the demo ------------------------------------------------------------------------------------

_DEMO = ("demo", "--docs", str(CORPUS), "--query", "garden soil", "--json")


def _processes_below(folder: Path) -> list[int]:
    """Give the processes whose command line names something in ``folder``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in words:
            found.append(int(path.parent.name))
    return found


def _start_demo(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        interruptible_command(*_DEMO),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(TMPDIR=str(folder)),
    )


def test_the_demo_proves_its_promises_and_leaves_nothing_behind(tmp_path: Path) -> None:
    process = _start_demo(tmp_path)
    out, err = process.communicate(timeout=120)

    assert process.returncode == 0, err.decode()
    fields = json.loads(out)
    assert fields["proved"] is True
    assert fields["failures"] == []
    assert fields["documents"] == N_DOCS
    scenes = {scene["scene"]: scene for scene in fields["scenes"]}
    assert scenes["all servers"]["answer"]["query"] == "garden soil"
    assert scenes["too many stores changed"]["error"]["error"] == "answer-refused"
    assert b"Proved" in err
    assert list(tmp_path.iterdir()) == []
    assert _processes_below(tmp_path) == []


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, "mksearch-demo-*/profile/profile.json"),
        (signal.SIGTERM, "mksearch-demo-*/server-2"),
        (signal.SIGHUP, "mksearch-demo-*/server-1/data"),
    ],
)
def test_a_demo_that_is_interrupted_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals, moment: str
) -> None:
    process = _start_demo(tmp_path)
    try:
        last = time.monotonic() + 60
        while not any(tmp_path.glob(moment)):
            assert process.poll() is None
            assert time.monotonic() < last
            time.sleep(0.02)
        assert _processes_below(tmp_path)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 130
    assert out == b""
    assert b"Traceback" not in err
    assert _processes_below(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("--docs", str(CORPUS)), 1, "need your own queries"),
        (("--docs", "/nowhere", "--query", "a"), 1, "/nowhere cannot be read"),
        (("--servers", "2"), 2, "2 servers do not carry"),
        (("--keep", str(CORPUS.parent)), 1, "is not empty"),
        (("--keep", str(CORPUS)), 1, "cannot be used"),
    ],
)
def test_the_demo_names_what_is_wrong_before_it_starts(
    runner: Runner, words: tuple[str, ...], code: int, part: str
) -> None:
    require_error(runner.client("demo", *words, "--json"), code, part)


# --- owner delete, compact ------------------------------------------------------------------------


def test_documents_are_deleted_and_erased_and_both_say_so(
    collection: Collection, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "quince.md").write_text("# Quinces\n\nboil the quinces with sugar\n")
    collection("owner", "publish", notes)
    wrong = collection("owner", "delete", "quince.md", "nowhere", "--json")
    require_error(wrong, 1, "'nowhere'", "nothing was deleted")
    assert collection("search", "quince", "--json").json["hits"][0]["id"] == "quince.md"

    done = collection("owner", "delete", "quince.md", "--json")
    assert (done.code, done.json["deleted"]) == (0, ["quince.md"])
    assert collection("search", "quince", "--json").json["hits"] == []
    # Nothing of its segment was left, so that went as well.
    (group,) = collection("owner", "status", "--json").json["groups"]
    assert (group["documents"], group["deleted"], group["segments"]) == (N_DOCS, 0, 1)
    hit = collection("search", "tomato", "--json").json["hits"][0]["id"]
    assert collection("owner", "delete", hit).code == 0
    (group,) = collection("owner", "status", "--json").json["groups"]
    assert (group["documents"], group["deleted"], group["segments"]) == (N_DOCS - 1, 1, 1)

    dry = collection("owner", "compact", "--dry-run", "--json").json
    (merge,) = dry["merges"]
    assert (merge["documents"], merge["erased"], dry["dry_run"]) == (N_DOCS - 1, 1, True)
    told = collection("owner", "compact")
    assert (told.code, told.err) == (0, "")
    assert "1 erased" in told.out
    (group,) = collection("owner", "status", "--json").json["groups"]
    assert (group["segments"], group["deleted"], group["compact_saves_bytes"]) == (1, 0, 0)
    assert "is compact" in collection("owner", "compact").out
