"""What it takes to build and publish an index: time of a core, and memory of everybody."""

from __future__ import annotations

from tests.bench.bench import Bench, MemoryWatch, Published
from tests.bench.figures import Figure, PartResult, median_of
from tests.bench.search import latency_row, timed_searches

__all__ = ["measure_large", "measure_rate"]

OWNER_AT_MOST = 6 << 30
SERVER_AT_MOST_MB = 300
N_SEARCHES = 20


def _steps(published: Published) -> dict[str, float]:
    """Return what publishing took, in seconds."""
    steps = {name: float(spent) for name, spent in published.report["seconds"].items()}
    return {
        "documents": published.corpus.n_docs,
        "columns": published.report["columns"],
        **{f"{name}_s": spent for name, spent in steps.items()},
        "processor_s": published.report["cpu_s"],
        "owner_peak_gb": published.report["peak_bytes"] / 1e9,
    }


def measure_rate(bench: Bench) -> PartResult:
    """Publish the package descriptions from one core and count all but the upload."""
    corpus = bench.corpora.descriptions(bench.size(64_563))
    with bench.published(corpus, one_core=True) as published:
        seconds = published.report["seconds"]
    busy = sum(spent for name, spent in seconds.items() if name != "upload")
    figure = Figure(
        "building.rate",
        "documents a second and core: read, count, encrypt, all but the upload",
        corpus.n_docs / busy,
        "1/s",
        "at least",
        5000,
        2500,
        corpus.note,
    )
    return PartResult([figure], {"steps": [_steps(published)]})


def measure_large(bench: Bench) -> PartResult:
    """Publish all365k to three servers, search it, and look at everybody's memory."""
    corpus = bench.corpora.all365k(bench.size(364_651))
    with bench.published(corpus) as published:
        with MemoryWatch(published.fleet) as watch, published.searcher() as searcher:
            times, runs = timed_searches(searcher, corpus.short, bench.times(N_SEARCHES))
        latency = latency_row(published, times, runs)
    result = PartResult(tables={"steps": [_steps(published)], "latency": [latency]})
    result.figures = [
        Figure(
            "large.owner",
            f"owner's peak resident memory, {corpus.n_docs:,} documents published",
            published.report["peak_bytes"] / (1 << 30),
            "GiB",
            "at most",
            limit=OWNER_AT_MOST / (1 << 30),
            note=corpus.note,
        ),
        Figure(
            "large.server",
            "a server's own memory beyond mapped files, largest seen in publishing and searching",
            max(published.server_memory_bytes, watch.most_bytes) / 1e6,
            "MB",
            "at most",
            limit=SERVER_AT_MOST_MB,
            note=corpus.note,
        ),
        Figure(
            "large.server_searching",
            "a server's own memory beyond mapped files, in searching alone",
            watch.most_bytes / 1e6,
            "MB",
            note=corpus.note,
        ),
        Figure(
            "large.search",
            f"search from end to end, {corpus.n_docs:,} documents",
            median_of(times),
            "ms",
            note=corpus.note,
        ),
    ]
    return result
