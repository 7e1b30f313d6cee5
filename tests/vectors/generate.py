"""Write or check the vector files: `python -m tests.vectors.generate [--check]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from . import (
    access,
    bad_access,
    bad_enrolment,
    bad_files,
    bad_members,
    bad_search,
    bad_server_lists,
    bad_shares,
    bad_streams,
    bad_timestamps,
    changes,
    enrolment,
    good_core,
    good_index,
    good_search,
    members,
    queries,
    selections,
    server_lists,
    shares,
    signed,
    timestamps,
)
from .material import BAD, HERE, Json, render

GOOD: Mapping[str, Callable[[], Json]] = {
    "keystream": good_core.keystream,
    "kdf": good_core.kdf,
    "shamir": good_core.shamir,
    "weights": good_core.weights,
    "columns": good_core.columns,
    "record": good_index.record,
    "stream": good_index.stream,
    "segment": good_index.segment,
    "manifest": good_index.manifest,
    "trapdoor": good_search.trapdoor,
    "answer": good_search.answer,
    "ranking": good_search.ranking,
    "signed": signed.signed,
    "changes": changes.file,
    "access_policy": access.access_policy,
    "access": access.access,
    "members": members.file,
    "timestamp": timestamps.file,
    "shares": shares.file,
    "servers": server_lists.file,
    "enrolment": enrolment.file,
    "queries": queries.file,
    "selection": selections.file,
}
"""Every good vector file and what makes it with the product."""


@cache
def bad() -> Mapping[str, Json]:
    """Return every bad vector by its name."""
    return {
        **bad_files.files(),
        **bad_streams.files(),
        **bad_search.files(),
        **dict(signed.bad()),
        **dict(changes.bad()),
        **bad_access.files(),
        **bad_members.files(),
        **bad_timestamps.files(),
        **bad_server_lists.files(),
        **bad_shares.files(),
        **bad_enrolment.files(),
        **queries.files(),
        **selections.files(),
    }


def files() -> dict[Path, str]:
    """Return every vector file as the product writes it today."""
    made = {HERE / f"{name}.json": render(make()) for name, make in GOOD.items()}
    return made | {BAD / f"{name}.json": render(file) for name, file in bad().items()}


def differences() -> list[str]:
    """Return what tells the committed files from those of today, a line each."""
    wanted = files()
    out = []
    for path in sorted({*wanted, *HERE.glob("*.json"), *BAD.glob("*.json")}):
        name = path.relative_to(HERE).as_posix()
        if path not in wanted:
            out.append(f"{name} is of no vector any more")
        elif not path.exists():
            out.append(f"{name} is missing")
        elif path.read_bytes() != wanted[path].encode("ascii"):
            out.append(f"{name} is not what the product writes")
    return out


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.vectors.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a file differs")
    if parser.parse_args().check:
        found = differences()
        print("\n".join(found) or "the vector files are what the product writes")
        return 1 if found else 0
    BAD.mkdir(exist_ok=True)
    wanted = files()
    for path in (*HERE.glob("*.json"), *BAD.glob("*.json")):
        if path not in wanted:
            path.unlink()
    for path, content in wanted.items():
        path.write_bytes(content.encode("ascii"))
    print(f"{len(wanted)} files, {sum(map(len, wanted.values()))} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
