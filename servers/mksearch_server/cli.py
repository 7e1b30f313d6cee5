"""The command line `mksearch-server`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mksearch import __version__

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:
        print(f"mksearch-server {__version__}")
        return 0
    print(
        f"mksearch-server: version {__version__} has servers inside one process only "
        "(see mksearch demo)",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    sys.exit(main())
