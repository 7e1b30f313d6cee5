"""Privacy ``fast``: the cells that servers read, the waits, the time, and how they grow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mksearch.errors import VerificationError
from mksearch_client.member import Searcher
from mksearch_client.result import SearchResult
from tests.bench.bench import Bench
from tests.bench.figures import Figure, PartResult, median_of
from tests.bench.widths import index_bytes

__all__ = ["measure"]

#: Of each kind of query: goal and limit of cells, limit of the exponent of their growth.
CLAIMS, WORDS = (0.10, 0.17, 0.85), (0.05, 0.15, 0.6)
WAITS_AT_MOST = 4
NODES_AT_MOST = 0.15
TIME_AT_MOST = 0.5
SMALL_DOCS, LARGE_DOCS = 10_000, 364_651
N_CLAIMS = 300
N_TIMED = 40


def measure(bench: Bench) -> PartResult:
    """Search mix99k in both ways, and all365k at two sizes."""
    published = bench.mixture()
    corpus = published.corpus
    claims = corpus.long[: bench.times(N_CLAIMS)]
    result = PartResult(tables={"cells": [], "growth": []})
    with published.searcher() as searcher:
        kinds = {"claims": claims, "words": corpus.short}
        for kind, limits in (("claims", CLAIMS), ("words", WORDS)):
            row = _cells(searcher, kinds[kind])
            result.tables["cells"].append({"queries": kind, **row})
            result.figures += _figures(kind, row, limits, corpus.note)
        view = searcher.refresh().views[0]
        result.figures.append(_time(searcher, corpus.short, corpus.note))
    sizes = index_bytes(published, view)
    result.figures.append(
        Figure(
            "pruned.nodes",
            "bytes of the nodes over those of nodes and documents, mix99k",
            sizes["nodes"] / (sizes["nodes"] + sizes["documents"]),
            direction="at most",
            limit=NODES_AT_MOST,
            note=corpus.note,
        )
    )
    result.figures += _growth(bench, claims, result)
    return result


def _require_alike(fast: SearchResult, balanced: SearchResult) -> None:
    if not fast.exact or fast.hits != balanced.hits:
        raise VerificationError("privacy fast and balanced found other hits")


def _cells(searcher: Searcher, queries: Sequence[str]) -> dict[str, Any]:
    """Search in both ways; return what was read, over what mode all reads."""
    found = []
    for query in queries:
        fast = searcher.search(query, privacy="fast")
        _require_alike(fast, searcher.search(query))
        found.append(fast)
    shares = [result.cells_share for result in found]
    return {
        "searches": len(found),
        "mean": sum(shares) / len(shares),
        "median": median_of(shares),
        "p90": median_of(shares, 0.9),
        "most": max(shares),
        "blocks": sum(result.blocks_opened for result in found) / len(found),
        "waits": sum(result.score_waits for result in found) / len(found),
        "waits_most": max(result.score_waits for result in found),
        "records": sum(result.records_fetched for result in found) / len(found),
    }


def _figures(
    kind: str, row: dict[str, Any], limits: tuple[float, float, float], note: str
) -> list[Figure]:
    goal, limit, _ = limits
    what = "scifact's claims" if kind == "claims" else "three keywords"
    return [
        Figure(
            f"pruned.{kind}",
            f"cells read in fast over those of all documents, checks and nodes in, mix99k, {what}",
            row["mean"],
            direction="at most",
            goal=goal,
            limit=limit,
            note=note,
        ),
        Figure(
            f"pruned.{kind}_waits",
            f"most waits for scores, mix99k, {what}",
            row["waits_most"],
            direction="at most",
            limit=WAITS_AT_MOST,
            note=note,
        ),
    ]


def _time(searcher: Searcher, queries: Sequence[str], note: str) -> Figure:
    """Compare the time of a search in both ways, in turn."""
    times: dict[str, list[float]] = {"fast": [], "balanced": []}
    for number in range(2 * N_TIMED):
        for privacy, spent in times.items():
            found = searcher.search(queries[number % len(queries)], privacy=privacy)
            if number >= N_TIMED:
                spent.append(found.timings_ms["total"])
    return Figure(
        "pruned.time",
        "time of a search in fast over balanced, mix99k, three keywords, medians",
        median_of(times["fast"]) / median_of(times["balanced"]),
        direction="at most",
        limit=TIME_AT_MOST,
        note=f"{median_of(times['fast']):.0f} ms and {median_of(times['balanced']):.0f} ms; {note}",
    )


def _growth(bench: Bench, claims: Sequence[str], result: PartResult) -> list[Figure]:
    """Return the exponents of cells over documents, from a small to a large collection."""
    rows: list[dict[str, Any]] = []
    note = ""
    for n_docs in (SMALL_DOCS, LARGE_DOCS):
        corpus = bench.corpora.all365k(bench.size(n_docs))
        note = corpus.note
        with bench.published(corpus) as published, published.searcher() as searcher:
            row: dict[str, Any] = {"documents": corpus.n_docs}
            all_cells = _all_cells(searcher)
            for kind, queries in (("claims", claims), ("words", corpus.short)):
                share = _cells(searcher, queries)
                row[kind] = share["mean"] * all_cells
                row[f"{kind}_waits"] = share["waits_most"]
            rows.append(row)
    result.tables["growth"] = rows
    small, large = rows
    factor = math.log(large["documents"] / small["documents"])
    return [
        Figure(
            f"pruned.{kind}_exponent",
            f"exponent of cells over documents, {SMALL_DOCS:,} to {LARGE_DOCS:,}, {kind}",
            math.log(large[kind] / small[kind]) / factor if factor else None,
            direction="at most",
            limit=limits[2],
            note=note,
        )
        for kind, limits in (("claims", CLAIMS), ("words", WORDS))
    ]


def _all_cells(searcher: Searcher) -> int:
    """Return the cells that mode all reads."""
    segments = searcher.refresh().views[0].segments
    shapes = [segment.header.layout.level_shapes[0] for segment in segments]
    return sum(n_rows * width for n_rows, width in shapes)
