"""What a server may log: events and fields of closed lists, and no error's own words."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import pytest

import mksearch_server
from mksearch.errors import ParameterError
from mksearch_server.log import (
    EVENTS,
    FIELDS,
    LOG_FORMATS,
    _places,
    log_event,
    log_fault,
    logging_to_stderr,
)

SERVER = Path(mksearch_server.__file__).parent
MODULES = sorted(SERVER.glob("*.py"))
SECRET = "rhubarb custard"


@contextmanager
def logged(log_format: str = "json") -> Iterator[io.StringIO]:
    with redirect_stderr(io.StringIO()) as found, logging_to_stderr(log_format):
        yield found


def names(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=aliases):
                yield from ((node.lineno, alias.name) for alias in aliases)
            case ast.ImportFrom(module=module):
                yield node.lineno, module or ""
            case ast.Call(func=ast.Name(id="print")):
                yield node.lineno, "print"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_every_call_of_the_log_is_of_the_closed_lists(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Name(id="log_event"), args=args, keywords=keywords):
                if path.name == "log.py":
                    continue
                assert len(args) == 1, f"line {node.lineno}"
                assert isinstance(args[0], ast.Constant), f"line {node.lineno}: a name made up"
                _, sentence = EVENTS[str(args[0].value)]
                assert {keyword.arg for keyword in keywords} == _places(sentence)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_nothing_but_the_log_writes_lines(path: Path) -> None:
    found = [(line, name) for line, name in names(path) if name in ("logging", "print", "warnings")]

    if path.name == "ray_cluster.py":
        # It keeps quiet what Ray warns of.
        found = [(line, name) for line, name in found if name != "warnings"]
    # The command line answers on standard output and names errors on standard error; a scrub tells
    # the process that began it what it found.
    assert found == [] or path.name in ("log.py", "cli.py", "scrub.py")


def test_every_event_has_fields_of_the_list_and_one_line() -> None:
    for event, (_, sentence) in EVENTS.items():
        assert event == event.lower()
        assert sentence.isprintable()
        assert _places(sentence) <= set(FIELDS)
    assert {name for _, s in EVENTS.values() for name in _places(s)} == set(FIELDS)


def test_the_operators_guide_lists_every_event_with_its_fields() -> None:
    text = (SERVER.parents[1] / "docs/operations.md").read_text().partition("## Logs\n")[2]
    rows = [line.split("|") for line in text.partition("\n## ")[0].splitlines() if "|" in line]
    listed = {
        event: set(re.findall("`([a-z]+)`", row[3].replace("`-`", "")))
        for row in rows
        for event in re.findall("`([a-z-]+)`", row[1])
    }

    assert listed == {event: _places(sentence) for event, (_, sentence) in EVENTS.items()}


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        ("queried", {}),
        ("activated", {}),
        ("activated", {"version": "1"}),
        ("activated", {"version": True}),
        ("activated", {"version": 1, "query": SECRET}),
        ("stopped", {"query": SECRET}),
        ("serving", {"server": 1, "address": b"127.0.0.1:1", "version": 1}),
    ],
)
def test_an_unknown_event_or_field_is_an_error(event: str, fields: dict[str, int | str]) -> None:
    with logged() as log, pytest.raises(ParameterError):
        log_event(event, **fields)

    assert log.getvalue() == ""


def test_json_is_one_object_a_line_with_the_fields_of_the_event() -> None:
    with logged() as log:
        address, transport = "127.0.0.1:7102", "with TLS 1.3"
        log_event("serving", server=2, address=address, transport=transport, version=3)
        log_event("issuer-keys-unread", cause="first\nsecond\x1b[0m")
    first, second = (json.loads(line) for line in log.getvalue().splitlines())

    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info",
        "event": "serving",
        "message": "server 2 listens on 127.0.0.1:7102 with TLS 1.3, version 3",
        "server": 2,
        "address": "127.0.0.1:7102",
        "transport": "with TLS 1.3",
        "version": 3,
    }
    assert second["cause"] == "first second [0m"


def test_text_is_one_line_an_event_whatever_is_in_a_field() -> None:
    with logged("text") as log:
        log_event("issuer-keys-unread", cause="first\nsecond\r\x1b[0m")

    (line,) = log.getvalue().splitlines()
    assert line.endswith("ERROR the keys of the issuer: first second  [0m")


@pytest.mark.parametrize("log_format", LOG_FORMATS)
def test_of_a_fault_class_and_place_are_logged_and_never_its_words(log_format: str) -> None:
    with logged(log_format) as log:
        try:
            log_event("activated", version=SECRET)
        except ParameterError as error:
            log_fault(error)
        log_fault(ValueError(SECRET))
        log_fault(FileNotFoundError(2, "no such", SECRET))

    lines = log.getvalue().splitlines()
    assert len(lines) == 3
    assert "ParameterError at log:" in lines[0]
    assert "FileNotFoundError" in lines[2]
    assert "No such file or directory" in lines[2]
    assert SECRET not in log.getvalue()


@pytest.mark.parametrize("log_format", LOG_FORMATS)
def test_what_libraries_say_is_noted_without_their_words(log_format: str) -> None:
    with logged(log_format) as log:
        logging.getLogger("asyncio").error("a task with %s failed", SECRET)
        try:
            raise KeyError(SECRET)
        except KeyError:
            logging.getLogger("concurrent.futures").exception("callback of %s", SECRET)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(SECRET, RuntimeWarning, stacklevel=1)
        logging.getLogger("grpc._cython.cygrpc").error("%s", SECRET)
        logging.getLogger("asyncio").info("%s", SECRET)

    lines = log.getvalue().splitlines()
    assert len(lines) == 3
    assert ["asyncio" in lines[0], "KeyError" in lines[1], "py" in lines[2]] == [True] * 3
    assert SECRET not in log.getvalue()


def test_the_log_lets_go_of_what_it_took_over() -> None:
    handlers = [list(logging.getLogger(name).handlers) for name in ("", "grpc", "mksearch_server")]
    with logged():
        pass

    after = [list(logging.getLogger(name).handlers) for name in ("", "grpc", "mksearch_server")]
    assert after == handlers
