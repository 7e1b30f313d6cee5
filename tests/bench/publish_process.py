"""A process that publishes and says what that cost it: seconds, processor time, peak memory.

Run by the suite: ``python -m tests.bench.publish_process PROFILE PATH ...``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path

from mksearch_client.owner import Owner


def _publish(profile: Path, paths: list[Path], *, replace: bool) -> dict[str, object]:
    used = os.times()
    started = time.perf_counter()
    with Owner(profile, timeout_s=120.0) as owner:
        report = owner.publish(paths, delete_missing=replace)
    now = os.times()
    return {
        "documents": report.documents,
        "columns": report.columns,
        "index_bytes": report.index_bytes,
        "seconds": dict(report.seconds),
        "wall_s": time.perf_counter() - started,
        "cpu_s": now.user - used.user + now.system - used.system,
    }


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Publish a handful of texts, so that compiled code is loaded, then what was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("profile", type=Path)
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--one-core", action="store_true")
    options = parser.parse_args()
    if options.one_core:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(dir=options.profile) as folder:
        warming = Path(folder) / "warming.jsonl"
        warming.write_text("".join(f'{{"_id": "w{n}", "text": "warm {n}"}}\n' for n in range(200)))
        _publish(options.profile, [warming], replace=False)
    report = _publish(options.profile, options.paths, replace=True)
    print(json.dumps({**report, "peak_bytes": _peak_bytes()}))


if __name__ == "__main__":
    main()
