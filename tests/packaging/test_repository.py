"""What the repository promises to whoever clones, installs or packages it."""

from __future__ import annotations

import email
import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import mksearch

ROOT = Path(__file__).resolve().parents[2]
DEV = ROOT / "dev"
CI = ROOT / ".ci" / "run"
LOCK = ROOT / "requirements.lock"
PACKAGES = {"mksearch", "mksearch_client", "mksearch_server"}

MACHINE_PATH = re.compile(r"(?<![\w.~>)}/-])/(?:work|root|home)/")
INDEX = re.compile(
    r"pypi\.org|pythonhosted|(?<!emit-)(?:index-url|find-links)[ =]\S|://[^\s/]*/simple\b"
)
PINNED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def git(*arguments: str) -> list[str]:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    listing = subprocess.run(
        ["git", "-C", str(ROOT), *arguments, "-z"], check=True, capture_output=True, text=True
    )
    return [name for name in listing.stdout.split("\0") if name]


def tracked_texts() -> dict[str, str]:
    texts = {}
    for name in git("ls-files"):
        path = ROOT / name
        if path.is_symlink() or not path.is_file():
            continue
        try:
            texts[name] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return texts


def project() -> dict[str, Any]:
    loaded = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    section: dict[str, Any] = loaded["project"]
    return section


def locked_entries() -> list[str]:
    joined = LOCK.read_text(encoding="utf-8").replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip()]


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


# --- what is tracked ------------------------------------------------------------------------------


def test_nothing_that_is_ignored_is_tracked() -> None:
    listed = git("ls-files", "--cached", "--ignored", "--exclude-standard")

    assert len(listed) == 0, f"{len(listed)} ignored files are tracked, such as {listed[:3]}"


def test_no_tracked_file_names_a_folder_of_somebodys_machine() -> None:
    found = [name for name, text in tracked_texts().items() if MACHINE_PATH.search(text)]

    assert found == []


def test_no_tracked_file_names_a_package_index() -> None:
    here = Path(__file__).relative_to(ROOT).as_posix()
    found = [n for n, text in tracked_texts().items() if n != here and INDEX.search(text)]

    assert found == []


@pytest.mark.parametrize("folder", ["work", "root", "home"])
def test_a_machine_path_is_recognised(folder: str) -> None:
    for before in ("", "cd ", '"', "path="):
        assert MACHINE_PATH.search(f"{before}/{folder}/me")


@pytest.mark.parametrize("folder", ["work", "root", "home"])
@pytest.mark.parametrize("before", ["tests", "~", "$HOME", "a"])
def test_a_relative_path_is_no_machine_path(before: str, folder: str) -> None:
    assert not MACHINE_PATH.search(f"{before}/{folder}/x")


# --- the lock -------------------------------------------------------------------------------------


def test_the_lock_pins_each_package_to_one_version_with_hashes() -> None:
    entries = locked_entries()

    assert len(entries) > 20
    for entry in entries:
        assert PINNED.match(entry), entry
        assert HASH.search(entry), entry


def test_the_lock_holds_no_address_and_no_option() -> None:
    text = LOCK.read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines()]

    assert "://" not in text
    assert " @ " not in text
    assert [line for line in lines if line.startswith("-") and not HASH.match(line)] == []


def test_the_lock_satisfies_every_dependency_of_the_project() -> None:
    locked: dict[str, list[Version]] = {}
    for entry in locked_entries():
        match = PINNED.match(entry)
        assert match is not None
        name = canonicalize_name(match["name"])
        locked.setdefault(name, []).append(Version(match["version"]))
    metadata = project()
    wanted = metadata["dependencies"] + metadata["optional-dependencies"]["dev"]

    for requirement in map(Requirement, wanted):
        versions = locked.get(canonicalize_name(requirement.name), [])
        assert versions, f"{requirement.name} is not locked: ./dev lock"
        assert all(version in requirement.specifier for version in versions), requirement.name


# --- the scripts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [DEV, CI], ids=lambda path: path.name)
def test_a_script_can_be_executed(script: Path) -> None:
    assert os.access(script, os.X_OK)


@pytest.mark.parametrize("shell", ["sh", "dash", "bash"])
def test_dev_is_read_by_any_posix_shell(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    checked = run(shell, "-n", DEV)

    assert (checked.returncode, checked.stderr) == (0, "")


def test_dev_uses_nothing_that_only_bash_has() -> None:
    text = DEV.read_text(encoding="utf-8")

    assert text.startswith("#!/bin/sh\n")
    for bashism in (r"\[\[", r"\bfunction ", r"\blocal ", r"<<<", r"\bdeclare ", r"&>", r"\$'"):
        assert not re.search(bashism, text), bashism
    if shutil.which("checkbashisms") is not None:
        assert run("checkbashisms", DEV).returncode == 0


def test_dev_runs_through_a_symlink_from_another_folder(tmp_path: Path) -> None:
    elsewhere = tmp_path / "with a space"
    elsewhere.mkdir()
    (elsewhere / "link").symlink_to(DEV)
    answer = run(elsewhere / "link", "help", cwd=elsewhere)

    assert answer.returncode == 0
    assert "usage: ./dev" in answer.stdout


def test_dev_refuses_an_unknown_command_in_one_line() -> None:
    answer = run(DEV, "tset")

    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.splitlines() == ["dev: there is no command tset; ./dev help lists them"]


# --- the wheel ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    built = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_exactly_three_packages(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}

    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    assert len(tops) == len(PACKAGES) + 1


def test_the_wheel_holds_no_cache_and_no_test(wheel: zipfile.ZipFile) -> None:
    assert [n for n in wheel.namelist() if "__pycache__" in n or "tests/" in n] == []


def test_the_wheel_holds_the_sources_of_the_gpu_kernels(wheel: zipfile.ZipFile) -> None:
    folder = "mksearch/scoring/cuda_sources"
    shipped = {path.name for path in (ROOT / folder).iterdir()}

    assert len(shipped) == 3
    assert {n.rpartition("/")[2] for n in wheel.namelist() if n.startswith(folder)} == shipped


def test_the_wheel_says_its_version_and_licence(wheel: zipfile.ZipFile) -> None:
    (name,) = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    metadata = email.message_from_bytes(wheel.read(name))

    assert metadata["Version"] == mksearch.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert any(n.endswith("/licenses/LICENSE") for n in wheel.namelist())


@pytest.mark.parametrize("command", ["mksearch", "mksearch-server"])
def test_each_command_of_the_wheel_exists(command: str) -> None:
    module, _, function = project()["scripts"][command].partition(":")

    assert callable(getattr(importlib.import_module(module), function))
