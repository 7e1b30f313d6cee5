"""`./dev bench`: measure, compare with what is promised, and write the report.

Ends with code 1 when a figure misses its "at most" or "at least", or a part fails.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import (
    authority,
    building,
    changes,
    engine,
    outages,
    peers,
    private,
    pruned,
    report,
    search,
    shards,
    throughput,
    tls,
    widths,
)
from tests.bench.bench import Bench
from tests.bench.figures import Direction, Figure, PartResult, environment

__all__ = ["main"]

DOCS = Path(__file__).resolve().parents[2] / "docs"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the suite.

    Attributes:
        name: what ``--only`` takes.
        does: one line for ``--help``.
        minutes: what it takes on two cores, about; publishing is the most of it.
        measure: does it.
    """

    name: str
    does: str
    minutes: float
    measure: Callable[[Bench], PartResult]


def _access(_bench: Bench) -> PartResult:
    """Measure keys by attributes, where that part of the suite is there."""
    try:
        module = importlib.import_module("tests.bench.access")
    except ImportError as error:
        return PartResult(notes=[f"not measured: {error}"])
    at_most: dict[str, float] = module.AT_MOST
    names = {
        "encapsulate": "encrypt to a policy of ten leaves",
        "decapsulate": "decrypt with a key of ten attributes",
        "key": "make a key of ten attributes from the whole secret",
        "issue partial": "one server's part of a key of ten attributes",
        "verify partial": "proof of such a part",
        "combine": "a key of ten attributes from the parts of a quorum",
        "parse": "parse a policy of ten leaves",
        "span program": "its span program",
        "decode header": "decode its header",
        "pairing_ms": "one pairing",
        "header_bytes": "header of a policy of ten leaves",
    }
    units = {"pairing_ms": "ms", "header_bytes": "bytes"}
    figures = []
    for name, value in module.measure_access().items():
        unit = units.get(name, "pairings")
        limit = at_most.get(name)
        judged: Direction = "" if limit is None else "at most"
        shown = names.get(name, name.replace("_", " "))
        key = f"access.{name.replace(' ', '_')}"
        figures.append(Figure(key, shown, value, unit, judged, limit=limit))
    return PartResult(figures)


#: In the order of a whole run: what shares mix99k is side by side.
PARTS = (
    Part("engine", "bytes and products a second of the compiled loops", 0.5, engine.measure),
    Part("throughput", "server processor time a query, alone and batched", 1, throughput.measure),
    Part("building", "documents a second and core", 1.5, building.measure_rate),
    Part("search", "latency at 65,536, 99,253 and 131,072 documents; cold", 6, search.measure),
    Part("outages", "searches beside dead and hanging servers, of 3 and of 5", 3, outages.measure),
    Part("tls", "20 MB streamed, and a search, with TLS and without", 1, tls.measure),
    Part("widths", "records read and index bytes at the builder's choice", 2, widths.measure),
    Part("private", "time and traffic of privacy full, mix99k", 2, private.measure),
    Part("pruned", "cells, waits and time of privacy fast; growth to 364,651", 12, pruned.measure),
    Part("peers", "other systems on the same texts and queries", 2.5, peers.measure),
    Part("changes", "adding 1 %, ten segments, merging them, mix99k", 5, changes.measure),
    Part("large", "364,651 documents published: memory, latency", 8, building.measure_large),
    Part("access", "keys by attributes", 1, _access),
    Part("authority", "enrolment, signed and refused queries", 0.5, authority.measure),
    Part("ray", "two shards of engine ray against engine cpu", 1, shards.measure),
)


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {part.name:11}{part.does} ({part.minutes:g} min)" for part in PARTS)
    parser = argparse.ArgumentParser(
        prog="./dev bench",
        description="Measure, and end with code 1 when a figure misses what must hold.",
        epilog=f"parts, with about the minutes that each takes alone on two cores:\n{listed}\n\n"
        "environment: MKSEARCH_DATA       folder of third-party collections\n"
        "             MKSEARCH_BENCH_DIR  where temporary files go (up to 12 GB, large: 20 GB)",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [part.name for part in PARTS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="these parts")
    parser.add_argument("--quick", action="store_true", help="small sizes; nothing is judged")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument(
        "--report",
        action="store_true",
        help="write docs/benchmarks.md and its figures; parts not run now keep theirs",
    )
    parser.add_argument(
        "--render",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="measure nothing: write docs/benchmarks.md anew, with the parts that --json wrote "
        "into FILE in the place of those it has",
    )
    return parser


def run_part(part: Part, bench: Bench) -> dict[str, Any]:
    """Run one part; return its object of the JSON, with ``failed`` if it did not end well."""
    load = os.getloadavg()[0]
    started = time.perf_counter()
    failed = ""
    try:
        result = part.measure(bench)
    except Exception as error:  # noqa: BLE001 - one part that fails must not lose the others
        traceback.print_exc()
        failed = f"{type(error).__name__}: {error}"
        result = PartResult()
    why = "a quick run, not judged" if bench.quick else ""
    figures = [_judged(figure, why) for figure in result.figures]
    return {
        **PartResult(figures, result.tables, result.notes).to_json(),
        "failed": failed,
        "seconds": round(time.perf_counter() - started, 1),
        "load_before": round(load, 2),
    }


def _judged(figure: Figure, why: str) -> Figure:
    if not why and "synthetic" in figure.note:
        why = "not judged"
    return figure.unjudged(why) if why else figure


def measure(names: Sequence[str], *, quick: bool) -> dict[str, Any]:
    """Run the parts ``names``; return the object that ``--json`` writes."""
    where = os.environ.get("MKSEARCH_BENCH_DIR")
    measured: dict[str, Any] = {"format": 1, "environment": environment(), "parts": {}}
    with tempfile.TemporaryDirectory(prefix="mksearch-bench-", dir=where) as folder:
        bench = Bench(Path(folder), quick)
        try:
            for part in PARTS:
                if part.name not in names:
                    continue
                print(f"== {part.name}: about {part.minutes:g} min", file=sys.stderr, flush=True)
                measured["parts"][part.name] = run_part(part, bench)
        finally:
            bench.close()
    return measured


def _end(signal_number: int, _frame: object) -> None:
    # As an exception, so that servers end and the temporary folder goes away.
    raise SystemExit(128 + signal_number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; return the exit code."""
    options = _parser().parse_args(arguments)
    if options.quick and options.report:
        print("bench: a quick run is no report; leave one of the two out", file=sys.stderr)
        return 2
    if options.render is not None:
        measured = report.load(DOCS, missing_ok=bool(options.render))
        for path in options.render:
            measured = report.merge(measured, json.loads(path.read_text("utf-8")))
        report.write(measured, DOCS)
        return int(report.has_failed(measured))
    signal.signal(signal.SIGTERM, _end)
    measured = measure(options.only or [part.name for part in PARTS], quick=options.quick)
    print(report.text_table(measured))
    if options.json is not None:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")
    if options.report:
        report.write(report.merge(report.load(DOCS, missing_ok=True), measured), DOCS)
    return int(report.has_failed(measured))


if __name__ == "__main__":
    sys.exit(main())
