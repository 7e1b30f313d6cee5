"""`./dev containers`: container files, compose files and rules are checked, then run.

Ends with 1 if something does not hold, and with 0 and the reason where this machine cannot run
containers; ``--require`` ends with 1 there as well.
"""

from __future__ import annotations

import argparse
import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# What gRPC would write on standard error of servers that end is said by the check.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from tests.containers.context import write_context
from tests.containers.lint import lint
from tests.containers.tools import ToolMissing, have_programs

#: Names the folder that base, images and programs are kept in from run to run.
FOLDER_NAME = "MKSEARCH_CONTAINERS_DIR"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev containers", description=__doc__)
    parser.add_argument("--lint", action="store_true", help="check files only; run nothing")
    parser.add_argument(
        "--context", type=Path, metavar="DIR", help="write the folder to build images in; no more"
    )
    parser.add_argument("--gpu", action="store_true", help="with the wheels of the CUDA image")
    parser.add_argument(
        "--no-install", action="store_true", help="do not install podman and others, even as root"
    )
    parser.add_argument(
        "--require", action="store_true", help="end with 1 where containers cannot be run"
    )
    return parser.parse_args()


def _folder() -> Path:
    """Return the folder to work in, this user's alone; outside of the repository.

    Raises:
        ToolMissing: it is somebody else's.
    """
    named = os.environ.get(FOLDER_NAME)
    folder = Path(named or f"{tempfile.gettempdir()}/mksearch-containers-{os.geteuid()}").absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise ToolMissing(f"{folder} is not this user's folder: name another in {FOLDER_NAME}")
    return folder


def main() -> int:
    """Do what the command line says; return its exit code."""
    options = _options()
    began_s = time.monotonic()
    try:
        if options.context is not None:
            write_context(options.context, gpu=options.gpu)
            print(f"{options.context} is ready: docker build -f Containerfile {options.context}")
            return 0
        folder = _folder()
        code = lint(folder / "tools")
        if options.lint or code:
            return code
        have_programs(install=not options.no_install)
        from tests.containers.check import Check

        Check(folder).run()
    except ToolMissing as why:
        print(f"== left out: {why}", flush=True)
        return 1 if options.require or options.context else 0
    except (RuntimeError, AssertionError, subprocess.TimeoutExpired) as error:
        print(f"== failed: {error}", flush=True)
        return 1
    print(
        f"== three servers in containers, searched with proof, {time.monotonic() - began_s:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
