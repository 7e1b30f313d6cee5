"""Every vector file is what the product writes, and the reference agrees with each."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mksearch import errors
from mksearch_server.gate import QueryRefused
from tests.reference.refused import Refused

from . import (
    access,
    changes,
    enrolment,
    generate,
    members,
    queries,
    readers,
    selections,
    server_lists,
    shares,
    signed,
    slow,
    timestamps,
)
from .material import BAD, HERE, Json, bad_names, load, render

ROOT = HERE.parents[1]
CHECKS = {
    **slow.CHECKS,
    "signed": signed.check_signed,
    "changes": changes.check,
    "access_policy": access.check_access_policy,
    "access": access.check_access,
    "members": members.check,
    "timestamp": timestamps.check,
    "servers": server_lists.check,
    "shares": shares.check,
    "enrolment": enrolment.check,
    "queries": queries.check,
    "selection": selections.check,
}


def committed(path: Path) -> Json:
    loaded: Json = json.loads(path.read_bytes())
    return loaded


# --- good vectors --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*generate.GOOD])
def test_the_product_writes_this_good_vector_file(name: str) -> None:
    assert load(name) == json.loads(json.dumps(generate.GOOD[name]()))


@pytest.mark.parametrize("name", [*generate.GOOD])
def test_the_reference_gives_every_value_of_this_good_vector_file(name: str) -> None:
    CHECKS[name](load(name))


def test_the_committed_files_are_those_of_today_byte_by_byte() -> None:
    assert generate.differences() == []


def test_every_good_vector_file_has_a_check_of_the_reference() -> None:
    assert set(CHECKS) == set(generate.GOOD)


@pytest.mark.parametrize("number", range(9))
def test_a_server_of_the_product_takes_this_order_and_makes_of_it_what_is_written(
    number: int,
) -> None:
    case, expected = [*shares.orders(load("shares"))][number]
    assert shares.fast_order(case) == expected


@pytest.mark.parametrize("number", range(len(load("enrolment")["requests"])))
def test_a_server_of_the_product_answers_this_request_and_a_user_takes_what_is_written(
    number: int,
) -> None:
    told = load("enrolment")["requests"][number]
    assert enrolment.fast_enrolment({"request": number}).items() <= told.items()
    enrolment.fast_answer({"request": number})


# --- bad vectors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*bad_names()])
def test_the_product_refuses_this_bad_vector_with_its_exception(name: str) -> None:
    case = load(name, BAD)
    with pytest.raises(errors.MksearchError) as caught:
        readers.FAST[case["kind"]](case)
    assert type(caught.value).__name__ == case["exception"]
    if "named" in case:
        assert [caught.value.server] == case["named"]


@pytest.mark.parametrize("name", [*bad_names()])
def test_the_reference_refuses_this_bad_vector_at_its_step(name: str) -> None:
    case = load(name, BAD)
    with pytest.raises(Refused) as caught:
        readers.SLOW[case["kind"]](case)
    assert caught.value.step == case["refused_at"], caught.value
    assert sorted(caught.value.servers) == case.get("named", sorted(caught.value.servers))


def test_every_step_at_which_bytes_are_refused_has_a_bad_vector() -> None:
    steps = {load(name, BAD)["refused_at"] for name in bad_names()}
    wanted = {f"5.{i}" for i in range(1, 7)} | {f"6.{i}" for i in range(1, 9)}
    wanted |= {f"7.{i}" for i in range(1, 8)} | {f"8.10.{i}" for i in range(1, 5)}
    wanted |= {f"11.1.{i}" for i in range(1, 8)} | {f"11.6.{i}" for i in range(1, 7)}
    wanted |= {"8.0", "8.1.4", "8.1.7", "8.3", "8.4", "8.7", "10", "11.4.4", "11.5.2", "11.5.4"}
    wanted |= {f"12.1.{i}" for i in range(1, 4)} | {f"12.3.{i}" for i in range(1, 10)}
    wanted |= {f"12.4.{i}" for i in range(1, 5)} | {f"12.5.{i}" for i in range(1, 6)}
    wanted |= {"14.1.1"} | {f"14.2.{i}" for i in range(1, 9)} | {f"14.3.{i}" for i in range(1, 5)}
    wanted |= {f"15.1.{i}" for i in range(1, 4)}
    wanted |= {f"13.3.{i}" for i in range(1, 9)} | {f"13.4.{i}" for i in range(1, 5)}
    wanted |= {"13.5.6", "13.5.7"} | {f"13.7.{i}" for i in range(1, 11)}
    wanted |= {f"13.2.{i}" for i in range(1, 7)} | {f"13.6.{i}" for i in range(1, 12)}
    assert steps == wanted


def test_exceptions_of_bad_vectors_exist() -> None:
    for name in bad_names():
        named = load(name, BAD)["exception"]
        exception = QueryRefused if named == "QueryRefused" else getattr(errors, named)
        assert issubclass(exception, errors.MksearchError)


# --- the files themselves ------------------------------------------------------------------------


def vector_files() -> list[Path]:
    return sorted([*HERE.glob("*.json"), *BAD.glob("*.json")])


def test_vector_files_are_ascii_with_unix_line_ends_in_one_layout() -> None:
    for path in vector_files():
        data = path.read_bytes()
        assert data.isascii(), path.name
        assert b"\r" not in data, path.name
        assert render(json.loads(data)).encode() == data, path.name


def test_vector_files_stay_small() -> None:
    assert sum(path.stat().st_size for path in vector_files()) < 2_000_000


def test_the_same_file_is_written_twice() -> None:
    for make in (generate.GOOD["trapdoor"], generate.GOOD["record"]):
        assert render(make()) == render(make())


def test_a_changed_file_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = generate.files()
    path = HERE / "kdf.json"
    changed = wanted | {path: wanted[path].replace("mksearch/1/wrap", "mksearch/1/warp")}
    monkeypatch.setattr(generate, "files", lambda: changed)
    assert generate.differences() == ["kdf.json is not what the product writes"]


def test_git_leaves_the_bytes_of_vectors_alone() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    paths = [p.relative_to(ROOT).as_posix() for p in HERE.rglob("*") if p.is_file()]
    checked = subprocess.run(
        ["git", "-C", str(ROOT), "check-attr", "--stdin", "-z", "text", "eol"],
        input="\0".join(paths),
        capture_output=True,
        text=True,
        check=True,
    )
    fields = checked.stdout.split("\0")
    told = {(fields[i], fields[i + 1]): fields[i + 2] for i in range(0, len(fields) - 2, 3)}
    for path in paths:
        # Text is stored and checked out with LF wherever git runs; anything else as it is.
        is_text = path.endswith((".json", ".md", ".py"))
        as_it_is = told[path, "text"] == "unset"
        assert as_it_is or (is_text and told[path, "eol"] == "lf"), path


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_the_reference_knows_nothing_of_the_product() -> None:
    product = re.compile(r"(mksearch|datasets|tests\.(?!reference))")
    for path in (HERE.parent / "reference").glob("*.py"):
        assert [name for name in imports_of(path) if product.match(name)] == [], path.name


def test_what_checks_good_vectors_with_the_reference_knows_nothing_of_the_product() -> None:
    for name in ("slow.py", "material.py"):
        assert not [i for i in imports_of(HERE / name) if i.startswith("mksearch")], name
