#!/usr/bin/env python3
"""Turn what a search said into metrics: only who searches can tell that a server lied.

Run by somebody who may search, from a timer, as in
``mksearch search WORDS --json | canary.py DIR/mksearch.prom``: the file is for the
textfile collector of Prometheus' node exporter.  Words should be of the canary's own: they are in
the timer's settings, and nothing of the query or its hits gets into the metrics.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: What a search says of a server; others count as "unknown".
STATUSES = ("ok", "unused", "unreachable", "lied", "refused", "stale", "unknown")


def metrics(text: str, now_s: float) -> str:
    """Return Prometheus' text format for the output of ``mksearch search --json``.

    Args:
        text: one JSON object, of a search or of its error; anything else counts as no proof.
        now_s: Unix seconds.
    """
    try:
        found: Any = json.loads(text)
    except ValueError:
        found = None
    said: Mapping[str, Any] = found if isinstance(found, dict) else {}
    servers = said.get("servers")
    counts = Counter(
        server.get("status") if server.get("status") in STATUSES else "unknown"
        for server in (servers if isinstance(servers, list) else [])
        if isinstance(server, dict)
    )
    lines = ["# TYPE mksearch_canary_servers gauge"]
    lines += [f'mksearch_canary_servers{{status="{name}"}} {counts[name]}' for name in STATUSES]
    lines += [
        "# TYPE mksearch_canary_verified gauge",
        f"mksearch_canary_verified {int(said.get('verified') is True)}",
        "# TYPE mksearch_canary_time_seconds gauge",
        f"mksearch_canary_time_seconds {now_s:.0f}",
    ]
    return "\n".join(lines) + "\n"


def main(words: list[str]) -> int:
    """Read standard input; replace the file that is named at once."""
    if len(words) != 1:
        print("usage: mksearch search WORDS --json | canary.py FILE", file=sys.stderr)
        return 2
    path = Path(words[0])
    text = metrics(sys.stdin.read(), time.time())
    try:
        descriptor, partial = tempfile.mkstemp(prefix=".canary-", dir=path.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(partial).chmod(0o644)
        Path(partial).replace(path)
    except OSError as error:
        print(f"canary.py: {path} cannot be written ({error.strerror})", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
