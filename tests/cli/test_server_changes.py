"""`owner replace-server` and `owner add-server` as people type them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Runner, require_error
from tests.support.grpc_stage import GrpcServer, GrpcStage, staging


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[GrpcStage]:
    with staging(tmp_path) as made:
        made.publish(3)
        yield made


def write_card(runner: Runner, server: GrpcServer) -> Path:
    """Write a server's card with its operator's command."""
    output = server.folder / "server.card"
    words = ("--config", server.folder / "server.toml", "--address", server.address)
    done = runner.server("card", *words, "-o", output)
    assert (done.code, done.err) == (0, "")
    assert str(output) in done.out
    return output


def test_a_server_is_replaced_and_one_is_added_by_commands(
    runner: Runner, stage: GrpcStage
) -> None:
    owner = stage.owner.profile.folder
    stage.servers[2].stop()
    new = write_card(runner, stage.newcomer(2))
    profile = ("--profile", owner)
    done = runner.client("owner", "replace-server", "2", "--card", new, *profile, "--json")
    assert (done.code, done.err) == (0, "")
    assert set(done.json) == {
        *("server", "address", "version", "n_servers", "generation", "behind", "warnings")
    }
    assert (done.json["server"], done.json["n_servers"], done.json["generation"]) == (2, 3, 0)

    fourth = write_card(runner, stage.newcomer(4))
    done = runner.client("owner", "add-server", "--card", fourth, *profile)
    assert (done.code, done.err) == (0, "")
    assert "added: server 4 is at" in done.out
    assert "one of 4" in done.out

    status = runner.client("owner", "status", *profile, "--json").json
    assert [server["status"] for server in status["servers"]] == ["ok"] * 4
    card = stage.folder / "new-card.json"
    assert runner.client("owner", "card", "-o", card, *profile).code == 0
    assert len(json.loads(card.read_text())["servers"]) == 4
    again = runner.client("owner", "replace-server", "2", "--card", new, *profile, "--json")
    require_error(again, 2, "has already")


def test_wrong_cards_end_with_one_line_of_cause_and_cure(runner: Runner, stage: GrpcStage) -> None:
    profile = ("--profile", stage.owner.profile.folder)
    new = stage.newcomer(2)
    card = write_card(runner, new)
    replace = ("owner", "replace-server")
    for words, code, part in (
        ((*replace, "9", "--card", card), 2, "there is no server 9 among 3"),
        ((*replace, "3", "--card", card), 2, "made with id 2, not 3"),
        (("owner", "add-server", "--card", card), 2, "the next place is 4"),
        ((*replace, "2", "--card", stage.folder / "card"), 1, "card of a collection"),
        ((*replace, "2", "--card", stage.folder / "none"), 1, "cannot be read"),
    ):
        require_error(runner.client(*words, *profile, "--json"), code, part)
    new.stop()
    done = runner.client(*replace, "2", "--card", card, *profile, "--json")
    require_error(done, 1, "the new server does not answer")
