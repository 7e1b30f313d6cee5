"""Processes that end in the middle of what they do: at a chosen step towards the disk, or killed.

They are forked from a process that has loaded the product and done nothing yet, so that they are
at work at once, and a random moment is one of their work.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import lmdb

import mksearch_client.cli
import mksearch_client.commands
import mksearch_client.owner
import mksearch_client.publishing
import mksearch_server.cli
import mksearch_server.repair
import mksearch_server.scrub
import mksearch_server.serve
from mksearch_client.publication import Publication, upload
from mksearch_server.identity import Claim
from mksearch_server.scrub import Findings, prove_store
from tests.support.local import open_server

__all__ = ["ABORTED", "Act", "client", "forked", "repair", "run_to_step", "server", "upload_to"]

#: Exit code of a process that a chosen step ended.
ABORTED = 86
WAIT_S = 120.0
Act = Callable[..., None]

_context = multiprocessing.get_context("forkserver")


class _Steps:
    """Counts the steps towards the disk, before and after each, and ends the process at one."""

    def __init__(self, last: int) -> None:
        self._last = last
        self._n = 0

    def step(self) -> None:
        self._n += 1
        if self._n == self._last:
            os._exit(ABORTED)

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            self.step()
            result = call(*arguments, **options)
            self.step()
            return result

        return counting

    def install(self) -> None:
        """Count renames, syncs and commits of this process from now on."""
        for name in ("replace", "rename", "fsync"):
            setattr(os, name, self.counted(getattr(os, name)))
        open_right = lmdb.open
        lmdb.open = lambda *a, **o: _Environment(open_right(*a, **o), self)  # type: ignore[assignment]


class _Environment:
    """LMDB, its commits counted."""

    def __init__(self, environment: lmdb.Environment, steps: _Steps) -> None:
        self._environment = environment
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def begin(self, *arguments: Any, **options: Any) -> Any:
        transaction = self._environment.begin(*arguments, **options)
        return _Commit(transaction, self._steps) if options.get("write") else transaction

    def sync(self, **options: Any) -> None:
        self._steps.counted(self._environment.sync)(**options)


class _Commit:
    def __init__(self, transaction: Any, steps: _Steps) -> None:
        self._transaction = transaction
        self._steps = steps

    def __enter__(self) -> Any:
        return self._transaction.__enter__()

    def __exit__(self, *error: object) -> Any:
        return self._steps.counted(self._transaction.__exit__)(*error)


def _run(last: int, log: str, act: Act, arguments: tuple[Any, ...]) -> None:
    with open(log or os.devnull, "ab", buffering=0) as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    if last:
        _Steps(last).install()
    act(*arguments)


def forked(act: Act, *arguments: Any, last: int = 0, log: Path | None = None) -> BaseProcess:
    """Start ``act`` in a process of its own; it ends at step ``last``, from 1, unless that is 0."""
    _context.set_forkserver_preload([__name__])
    process = _context.Process(
        target=_run, args=(last, str(log or ""), act, arguments), daemon=True
    )
    process.start()
    return process


def run_to_step(last: int, act: Act, *arguments: Any) -> bool:
    """Run ``act`` up to step ``last``; tell whether it got there, rather than to its end."""
    process = forked(act, *arguments, last=last)
    process.join(WAIT_S)
    assert process.exitcode in {0, ABORTED}, process.exitcode
    return process.exitcode == ABORTED


# --- what such processes do ----------------------------------------------------------------------


def _main_of(main: Callable[[Sequence[str]], int], words: Sequence[str]) -> None:
    """Be a command line."""
    code = 1
    with suppress(SystemExit):
        code = main(list(words))
    sys.stdout.flush()
    os._exit(code)


def client(*words: str) -> None:
    """Be ``mksearch``."""
    _main_of(mksearch_client.cli.main, words)


def server(*words: str) -> None:
    """Be ``mksearch-server``."""
    _main_of(mksearch_server.cli.main, words)


def repair(*words: str) -> None:
    """Be ``mksearch-server repair``, with all of its steps in one process."""

    def prove(data: Path, claim: Claim | None, _config_path: Path) -> Findings:
        return prove_store(data, claim)

    for name, work in (("scrub", prove), ("copy_good", mksearch_server.scrub._copy)):
        setattr(mksearch_server.repair, name, work)
    _main_of(mksearch_server.cli.main, ("repair", *words))


def upload_to(folder: Path, owner_key: bytes, publication: Path) -> None:
    """Bring a publication to server 1 below ``folder`` and have it served."""
    store = open_server(folder, 1, owner_key, engine="numpy")
    upload(Publication.load(publication, owner_key), store)
