"""Privacy ``full``: time and traffic of a search, and its hits compared with ``balanced``."""

from __future__ import annotations

from mksearch.errors import VerificationError
from tests.bench.bench import Bench
from tests.bench.figures import Figure, PartResult, median_of

__all__ = ["measure"]

TIME_GOAL_MS, TIME_AT_MOST_MS = 200.0, 400.0
BYTES_AT_MOST = 3e6
N_SEARCHES = 60
N_WARM = 5


def measure(bench: Bench) -> PartResult:
    """Search mix99k with claims and with three keywords, in both ways in turn."""
    published = bench.mixture()
    corpus = published.corpus
    result = PartResult(tables={"searches": []})
    with published.searcher() as searcher:
        for kind, queries in (("claims", corpus.long), ("words", corpus.short)):
            times: dict[str, list[float]] = {"full": [], "balanced": []}
            sizes: list[float] = []
            for number in range(N_WARM + bench.times(N_SEARCHES)):
                query = queries[number % len(queries)]
                balanced = searcher.search(query)
                full = searcher.search(query, privacy="full")
                if full.hits != balanced.hits or full.exact != balanced.exact:
                    raise VerificationError("privacy full and balanced found other hits")
                if number >= N_WARM:
                    times["full"].append(full.timings_ms["total"])
                    times["balanced"].append(balanced.timings_ms["total"])
                    sizes.append(full.bytes_sent + full.bytes_received)
            result.tables["searches"].append(
                {
                    "queries": kind,
                    "searches": len(sizes),
                    "full_ms": median_of(times["full"]),
                    "full_p90_ms": median_of(times["full"], 0.9),
                    "balanced_ms": median_of(times["balanced"]),
                    "bytes_mean": sum(sizes) / len(sizes),
                    "bytes_median": median_of(sizes),
                    "bytes_p90": median_of(sizes, 0.9),
                    "bytes_most": max(sizes),
                }
            )
            what = "scifact's claims" if kind == "claims" else "three keywords"
            result.figures += [
                Figure(
                    f"private.{kind}",
                    f"time of a search in full, mix99k, {what}, median",
                    median_of(times["full"]),
                    "ms",
                    "at most",
                    goal=TIME_GOAL_MS,
                    limit=TIME_AT_MOST_MS,
                    note=f"balanced, in turn: {median_of(times['balanced']):.0f} ms; {corpus.note}",
                ),
                Figure(
                    f"private.{kind}_bytes",
                    f"bytes sent and received by a search in full, mix99k, {what}, median",
                    median_of(sizes),
                    "bytes",
                    "at most",
                    limit=BYTES_AT_MOST,
                    note=f"mean {sum(sizes) / len(sizes):.0f}, most {max(sizes)}; {corpus.note}",
                ),
            ]
    return result
