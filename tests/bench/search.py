"""What a search costs from end to end, over the network, and where its time goes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mksearch.crypto.randomness import SystemRandom
from mksearch.errors import VerificationError
from mksearch.index.segment import SegmentReader
from mksearch.messages import ScoreRequest
from mksearch.query.answer import Attempt
from mksearch.query.group import GroupView
from mksearch.query.trapdoor import make_trapdoor, parse_question
from mksearch.scoring.cpu import CpuEngine
from mksearch_client.member import Searcher
from mksearch_client.result import SearchResult
from tests.bench.bench import Bench, Published, milliseconds
from tests.bench.figures import Figure, PartResult, median_of
from tests.support.processes import clean_environment, client_command

__all__ = ["latency_row", "measure", "new_attempt", "timed_searches"]

_T = TypeVar("_T")
N_SEARCHES = 20
#: Documents, goal and limit in milliseconds.
SIZES = ((65_536, 60, 120), (131_072, 110, 220))
COLD_AT_MOST_S = 2.0
CHECK_AT_MOST_MS = 10
_PARTS = ("manifest", "trapdoor", "servers", "check", "records")


def measure(bench: Bench) -> PartResult:
    """Measure searches of two sizes, a cold one, and unmask and check at mix99k."""
    result = PartResult(tables={"latency": [], "parts": []})
    for n_docs, goal, limit in SIZES:
        with bench.published(bench.corpora.all365k(bench.size(n_docs))) as published:
            _one_size(bench, published, (n_docs, goal, limit), result)
            if n_docs == SIZES[0][0]:
                result.figures.append(_cold(bench, published))
    _check(bench, bench.mixture(), result)
    return result


def timed_searches(
    searcher: Searcher, queries: tuple[str, ...], count: int
) -> tuple[list[float], list[SearchResult]]:
    """Search ``count`` times by an open client; return milliseconds and results, all proved.

    Every query is asked once before, so that dictionary, headers and check vectors are there.
    """
    for query in queries[:3]:
        searcher.search(query)
    times, results = [], []
    for number in range(count):
        started = time.perf_counter()
        found = searcher.search(queries[number % len(queries)])
        times.append(milliseconds(started))
        if not (found.verified and found.exact):
            raise VerificationError("a search was not proved exact")
        results.append(found)
    return times, results


def latency_row(
    published: Published, times: list[float], runs: list[SearchResult]
) -> dict[str, Any]:
    """Return what the report shows of searches of one collection."""
    parts = {
        f"{part}_ms": median_of([run.timings_ms.get(part, 0.0) for run in runs]) for part in _PARTS
    }
    return {
        "corpus": published.corpus.name,
        "documents": published.corpus.n_docs,
        "columns": published.report["columns"],
        "median_ms": median_of(times),
        "p90_ms": median_of(times, 0.9),
        **parts,
        "records": sum(run.records_fetched for run in runs) / len(runs),
        "hits": sum(len(run.hits) for run in runs) / len(runs),
        "sent_bytes": median_of([float(run.bytes_sent) for run in runs]),
        "received_bytes": median_of([float(run.bytes_received) for run in runs]),
    }


def _one_size(
    bench: Bench, published: Published, size: tuple[int, int, int], result: PartResult
) -> None:
    n_docs, goal, limit = size
    corpus = published.corpus
    with published.searcher() as searcher:
        times, runs = timed_searches(searcher, corpus.short, bench.times(N_SEARCHES))
        parts = _parts_ms(searcher, published, bench.times(N_SEARCHES))
    result.tables["latency"].append(latency_row(published, times, runs))
    result.tables["parts"].append({"documents": corpus.n_docs, **parts})
    result.figures.append(
        Figure(
            f"search.{n_docs}",
            f"search from end to end, {corpus.n_docs:,} documents",
            median_of(times),
            "ms",
            "at most",
            goal,
            limit,
            corpus.note,
        )
    )


def new_attempt(searcher: Searcher, view: GroupView, query: str) -> Attempt:
    """Return what a search asks of the servers for ``query``, not asked yet."""
    signed = searcher.seen
    if signed is None:
        raise VerificationError("no version was seen")
    trapdoor = make_trapdoor(view, parse_question(view, query))
    manifest = signed.manifest
    return Attempt(
        view.segments[0], trapdoor, manifest.quorum, SystemRandom(), version=manifest.version
    )


def _parts_ms(searcher: Searcher, published: Published, count: int) -> dict[str, float]:
    """Return the medians of what one round of scores costs, each part timed by itself.

    ``shares``: trapdoor, polynomial and t + 1 shares; ``product``: the engine on the file of one
    server, in this process; ``transfer``: what a call to one server takes beyond that (messages,
    signature, waiting); ``check``: interpolation, unmasking and the check of every row.
    """
    view = searcher.refresh().views[0]
    segment = view.segments[0]
    stored = published.fleet[1].data / "segments" / segment.id.hex()
    cells = SegmentReader(np.memmap(stored, np.uint8, "r")).level(0)
    engine = CpuEngine()
    spent: dict[str, list[float]] = {}

    def timed(part: str, work: Callable[[], _T]) -> _T:
        started = time.perf_counter()
        done = work()
        spent.setdefault(part, []).append(milliseconds(started))
        return done

    for number in range(count):
        query = published.corpus.short[number % len(published.corpus.short)]

        def ask(query: str = query) -> tuple[Attempt, list[ScoreRequest]]:
            attempt = new_attempt(searcher, view, query)
            return attempt, [attempt.request(server) for server in (1, 2)]

        attempt, requests = timed("shares", ask)
        shares = requests[0].shares
        timed("product", lambda shares=shares: engine.score(cells, segment.geometry(0), shares))  # type: ignore[misc]
        for server, request in enumerate(requests, 1):
            connection = searcher._connections[server]
            answer = timed("call", lambda c=connection, r=request: c.score(r))  # type: ignore[misc]
            attempt.add(server, answer)
        timed("check", attempt.combine)
    medians = {part: median_of(times[1:]) for part, times in spent.items()}
    medians["transfer"] = max(0.0, medians.pop("call") - medians["product"])
    return {f"{part}_ms": medians[part] for part in ("shares", "product", "transfer", "check")}


def _check(bench: Bench, published: Published, result: PartResult) -> None:
    """Measure latency, and unmask and check, at mix99k."""
    with published.searcher() as searcher:
        times, runs = timed_searches(searcher, published.corpus.short, bench.times(N_SEARCHES))
        parts = _parts_ms(searcher, published, bench.times(N_SEARCHES))
    result.tables["latency"].append(latency_row(published, times, runs))
    result.tables["parts"].append({"documents": published.corpus.n_docs, **parts})
    result.figures.append(
        Figure(
            "search.check",
            f"unmask and check of every row, {published.corpus.n_docs:,} documents",
            parts["check_ms"],
            "ms",
            "at most",
            limit=CHECK_AT_MOST_MS,
            note=published.corpus.note,
        )
    )


def _cold(bench: Bench, published: Published) -> Figure:
    """Time whole `mksearch search` processes: start of Python, imports, profile, one search."""
    times = []
    for number in range(bench.times(5) + 1):
        command = client_command("search", published.corpus.short[number], "--json")
        started = time.perf_counter()
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            cwd=Path(os.sep),
            env=clean_environment(MKSEARCH_PROFILE=str(published.profile)),
            timeout=120,
        )
        times.append(time.perf_counter() - started)
    return Figure(
        "search.cold",
        f"`mksearch search` in a shell, {published.corpus.n_docs:,} documents",
        median_of(times[1:]),
        "s",
        "at most",
        limit=COLD_AT_MOST_S,
        note=published.corpus.note,
    )
