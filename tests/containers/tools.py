"""Programs that the container check uses: of the machine, or unpacked from Debian's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["ROOT", "ToolMissing", "fetch_program", "have_programs", "run"]

ROOT = Path(__file__).resolve().parents[2]
#: What runs containers, and the packages it comes in.
CONTAINER_PROGRAMS = ("podman", "buildah", "runc", "mmdebstrap")
CONTAINER_PACKAGES = (
    *("podman", "buildah", "runc", "netavark", "aardvark-dns", "iptables", "catatonit"),
    *("mmdebstrap", "ca-certificates"),
)
APT_S = 300


class ToolMissing(Exception):
    """A program is not there and cannot be had; the text says why."""


def run(
    words: Sequence[str | Path],
    *,
    timeout_s: float = 300,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    codes: Sequence[int] = (0,),
) -> str:
    """Run a program to its end; return what it wrote on standard output.

    Raises:
        RuntimeError: it ended with another code; the text has what it wrote.
    """
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        check=False,
        cwd=folder,
        env=dict(os.environ) | dict(environment or {}),
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=timeout_s,
    )
    if done.returncode not in codes:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
        shown = " ".join(str(word) for word in words[:4])
        raise RuntimeError(f"{shown} ... ended with {done.returncode}:\n{said}")
    return done.stdout


def fetch_program(program: str, package: str, folder: Path) -> str:
    """Return the path of a program: the machine's, or one unpacked from Debian's package.

    Args:
        program: its name.
        package: that it is in.
        folder: where it is unpacked, and found again.

    Raises:
        ToolMissing: it is not there and cannot be had.
    """
    target = folder / package / "usr/bin" / program
    found = shutil.which(program)
    if found is not None:
        return found
    if target.exists():
        return str(target)
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ToolMissing(f"{program} is not installed, and this is no Debian to fetch it on")
    downloads = folder / "debs"
    downloads.mkdir(parents=True, exist_ok=True)
    try:
        run(["apt-get", "download", "-qq", package], folder=downloads, timeout_s=APT_S)
        (deb,) = downloads.glob(f"{package}_*.deb")
        run(["dpkg-deb", "-x", deb, folder / package])
    except (RuntimeError, ValueError, subprocess.TimeoutExpired):
        raise ToolMissing(
            f"{program} is not installed, and apt-get cannot download {package} "
            "(as root: apt-get update)"
        ) from None
    if not target.exists():
        raise ToolMissing(f"Debian's package {package} has no {program}")
    return str(target)


def have_programs(*, install: bool) -> None:
    """Require the programs that run containers; install them on a Debian where this is root.

    Raises:
        ToolMissing: one is not there and cannot be installed.
    """
    missing = [name for name in CONTAINER_PROGRAMS if shutil.which(name) is None]
    if not missing:
        return
    shown = ", ".join(missing)
    if os.geteuid() != 0 or not install or shutil.which("apt-get") is None:
        raise ToolMissing(f"{shown} not installed (Debian, as root: installed by this command)")
    print(f"installing {shown} ...", flush=True)
    options = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        run(["apt-get", "update", "-qq"], environment=options, timeout_s=APT_S)
        run(
            ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *CONTAINER_PACKAGES],
            environment=options,
            timeout_s=APT_S,
        )
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        last = str(error).splitlines()[-1]
        raise ToolMissing(f"{shown} cannot be installed ({last})") from None
