"""`./dev chaos`: lies, mutated bytes, load, kills, changes, networks that part, lost hosts.

Ends with code 1 on any violation, and names the seed that repeats it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

# Before anything loads compiled loops: other cores are for servers and other jobs.
os.environ["NUMBA_NUM_THREADS"] = "1"
# What gRPC would write on standard error of calls that break is said by the reports.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from tests.chaos.faults import FaultReport, print_faults

PARTS = ("faults", "mutations", "load", "kills", "changes", "partition", "ray")


def _faults(folder: Path, options: argparse.Namespace) -> int:
    n_jobs = min(options.jobs, options.faults)
    cuts = [options.first + options.faults * job // n_jobs for job in range(n_jobs + 1)]
    total = FaultReport()
    with ProcessPoolExecutor(n_jobs, multiprocessing.get_context("spawn")) as pool:
        jobs = [
            pool.submit(print_faults, folder / f"faults-{job}", stop - start, options.seed, start)
            for job, (start, stop) in enumerate(pairwise(cuts))
        ]
        for job in jobs:
            total.add(job.result())
    print("\n".join(total.lines()))
    return len(total.violations)


def _mutations(folder: Path, options: argparse.Namespace) -> int:
    from tests.chaos.decoders import make_targets
    from tests.chaos.mutations import mutate_calls, mutate_target, mutating_server

    n_violations = n_tried = 0
    for target in make_targets(folder):
        even = replace(target, slowness=1) if options.evenly else target
        report = mutate_target(even, options.mutations, options.seed)
        print("\n".join(report.lines()), flush=True)
        n_violations += len(report.violations)
        n_tried += report.n_tried
    with mutating_server(folder / "servers") as published:
        reports = mutate_calls(
            published,
            options.mutations,
            options.seed,
            tell=lambda report: print("\n".join(report.lines()), flush=True),
        )
    n_violations += sum(len(report.violations) for report in reports)
    n_tried += sum(report.n_tried for report in reports)
    print(f"mutations: {n_tried}")
    return n_violations


def _load(folder: Path, options: argparse.Namespace) -> int:
    from tests.chaos.load import run_load

    report = run_load(
        folder,
        options.clients,
        options.seconds,
        max_waiting=options.max_waiting,
        tell=lambda line: print(f"  {line}", flush=True),
    )
    print("\n".join(report.lines()))
    return len(report.violations)


def _kills(folder: Path, options: argparse.Namespace) -> int:
    from tests.chaos.kills import run_kills

    report = run_kills(
        folder,
        options.kills,
        options.seed,
        first=options.first,
        tell=lambda line: print(f"  {line}", flush=True),
    )
    print("\n".join(report.lines()))
    return len(report.violations)


def _changes(folder: Path, options: argparse.Namespace) -> int:
    from tests.chaos.changes import change_at_random

    n_violations = 0
    for scoring in ("tfidf", "bm25"):
        report = change_at_random(
            folder / scoring,
            scoring,
            options.changes,
            options.seed,
            tell=lambda line: print(line, flush=True),
        )
        print("\n".join(report.lines()))
        n_violations += len(report.violations)
    return n_violations


def _partition(folder: Path, options: argparse.Namespace) -> int:
    from tests.chaos.partition import run_partition
    from tests.support.networks import why_not

    reason = why_not()
    if reason:
        print(f"left out: {reason}")
        return 1 if options.only else 0
    report = run_partition(
        folder,
        options.partitions,
        options.seed,
        tell=lambda line: print(f"  {line}", flush=True),
    )
    print("\n".join(report.lines()))
    return len(report.violations)


def _ray(folder: Path, options: argparse.Namespace) -> int:
    from tests.support.shards import has_ray

    if not has_ray():
        print("Ray is not installed, so no cluster was hurt: ./dev cluster")
        # Whoever asked for this part alone wants to know that it did not run.
        return int(options.only == "ray")
    from tests.chaos.shards import run_shards

    report = run_shards(folder, options.traffic, tell=lambda line: print(f"  {line}", flush=True))
    print("\n".join(report.lines()))
    return len(report.violations)


def main() -> int:
    """Run the parts that were asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="./dev chaos", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--faults", type=int, default=10_000, help="lies told by one server of three")
    add("--first", type=int, default=0, help="number of the first lie or kill, to repeat one")
    add("--kills", type=int, default=200, help="kill -9 of clients and servers")
    add(
        "--mutations",
        type=int,
        default=int(os.environ.get("MKSEARCH_MUTATIONS", "100000")),
        help="changed bytes for every decoder and every call; slow ones get fewer",
    )
    add("--evenly", action="store_true", help="slow decoders get as many bytes as the others")
    add("--clients", type=int, default=64, help="clients at once")
    add("--seconds", type=float, default=120.0, help="how long they search")
    add("--max-waiting", type=int, default=4, help="requests that may wait in a server")
    add("--changes", type=int, default=500, help="random changes of a collection")
    add("--partitions", type=int, default=20, help="times that two networks part and meet (root)")
    add("--traffic", type=float, default=30.0, help="seconds in which replicas of a cluster die")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="processes that tell lies")
    add("--seed", type=int, default=secrets.randbelow(1 << 32), help="repeats a run")
    add("--only", choices=PARTS, help="one part")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    n_violations = 0
    parts = (_faults, _mutations, _load, _kills, _changes, _partition, _ray)
    for part, run in zip(PARTS, parts, strict=True):
        if options.only in (None, part):
            print(f"== {part}", flush=True)
            with tempfile.TemporaryDirectory(prefix="mksearch-chaos-") as folder:
                n_violations += run(Path(folder), options)
    if n_violations:
        print(f"{n_violations} violations; --seed {options.seed} repeats them")
    return 1 if n_violations else 0


if __name__ == "__main__":
    sys.exit(main())
