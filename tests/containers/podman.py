"""Containers as root, without a system manager or a registry: podman, buildah, runc."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.containers.tools import ToolMissing, run

__all__ = ["BASE", "Podman"]

BASE = "localhost/mksearch-base:check"
_RELEASE = "bookworm"
_BASE_PACKAGES = "python3,python3-venv,libgomp1"
_BUILD_S = 600


class Podman:
    """Podman with images, networks and volumes of its own, below one folder."""

    def __init__(self, folder: Path) -> None:
        """Keep everything in ``folder``, which is made."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/store"\n'
            f'runroot = "{folder}/run"\n'
        )
        (folder / "containers.conf").write_text(
            '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
            f'volumes = []\n[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\n'
            f'events_logger = "file"\n'
            f'[network]\nnetwork_backend = "netavark"\nnetwork_config_dir = "{folder}/networks"\n'
        )
        self.environment: Mapping[str, str] = {
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "CONTAINERS_CONF": str(folder / "containers.conf"),
        }

    def __call__(self, *words: str | Path, timeout_s: float = 120, code: int = 0) -> str:
        """Run ``podman``; return what it wrote on standard output."""
        return run(
            ["podman", *words], timeout_s=timeout_s, environment=self.environment, codes=(code,)
        ).strip()

    def require_working(self) -> None:
        """Require that this machine lets containers run, on a network of their own.

        Raises:
            ToolMissing: it does not; the text has the first reason.
        """
        if os.geteuid() != 0:
            raise ToolMissing("containers are run as root here")
        try:
            self("info", timeout_s=60)
            self("network", "create", "--internal", "mksearch-trial", timeout_s=60)
            self("network", "rm", "mksearch-trial", timeout_s=60)
            run(["unshare", "-n", "true"])
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            raise ToolMissing(f"podman does not work here: {_last(error)}") from None

    def has_image(self, name: str) -> bool:
        """Tell whether an image is there."""
        return bool(self("images", "--quiet", name))

    def make_base(self) -> None:
        """Make the base of the images from Debian's packages, once.

        Raises:
            ToolMissing: the packages cannot be had.
        """
        archive = self._folder / "base.tar"
        if self.has_image(BASE):
            return
        if not archive.exists():
            partial = archive.with_suffix(".partial.tar")
            try:
                run(
                    [
                        *("mmdebstrap", "--variant=minbase", "--dpkgopt=force-unsafe-io"),
                        *(f"--include={_BASE_PACKAGES}", _RELEASE, partial),
                    ],
                    timeout_s=_BUILD_S,
                )
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                raise ToolMissing(f"no base image can be made: {_last(error)}") from None
            partial.rename(archive)
        self("import", "--quiet", "--change", "CMD=/bin/bash", archive, BASE)

    def build(self, context: Path, file: str, tag: str) -> None:
        """Build an image from ``file`` in ``context``, on a network that leads nowhere."""
        run(
            [
                *("unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"),
                *("buildah", "bud", "--quiet", "--pull-never", "--format", "docker"),
                *("--isolation", "chroot", "--build-arg", f"BASE={BASE}"),
                *("--build-arg", f"BUILD_BASE={BASE}", "--layers"),
                *("--tag", tag, "--file", context / file, context),
            ],
            timeout_s=_BUILD_S,
            environment=self.environment,
        )

    def compressed_bytes(self, image: str) -> int:
        """Return the size of an image in a gzip stream."""
        environment = dict(os.environ) | dict(self.environment)
        save = subprocess.Popen(
            ["podman", "save", "--quiet", image], stdout=subprocess.PIPE, env=environment
        )
        packed = subprocess.Popen(
            ["gzip", "-1"], stdin=save.stdout, stdout=subprocess.PIPE, env=environment
        )
        assert save.stdout is not None
        assert packed.stdout is not None
        save.stdout.close()
        total = 0
        while piece := packed.stdout.read(1 << 20):
            total += len(piece)
        assert (save.wait(), packed.wait()) == (0, 0)
        return total

    def inspect(self, container: str) -> dict[str, Any]:
        """Return what podman says of a container."""
        (found,) = json.loads(self("inspect", container))
        assert isinstance(found, dict)
        return found

    def wait(self, what: str, holds: Callable[[], bool], within_s: float) -> float:
        """Wait until something holds; return the seconds that it took.

        Raises:
            RuntimeError: it did not in time.
        """
        began_s = time.monotonic()
        while not holds():
            if time.monotonic() - began_s > within_s:
                raise RuntimeError(f"{what}: not within {within_s:g} s")
            time.sleep(0.1)
        return time.monotonic() - began_s

    def remove(
        self, containers: Sequence[str], volumes: Sequence[str], networks: Sequence[str]
    ) -> None:
        """Remove what a run made; what is not there is no error."""
        for words in (
            *(("rm", "--force", "--time", "0", name) for name in containers),
            *(("volume", "rm", "--force", name) for name in volumes),
            *(("network", "rm", "--force", name) for name in networks),
        ):
            subprocess.run(
                ["podman", *words],
                check=False,
                capture_output=True,
                env=dict(os.environ) | dict(self.environment),
                timeout=60,
            )

    def forget(self) -> None:
        """Remove images and all else but the base's archive."""
        self("system", "reset", "--force")
        shutil.rmtree(self._folder / "store", ignore_errors=True)


def _last(error: BaseException) -> str:
    """Return the last line of what went wrong."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
