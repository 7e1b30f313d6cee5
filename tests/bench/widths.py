"""Whether the builder's own choice of widths is good: records read against index bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from mksearch.errors import VerificationError
from mksearch.index.segment import SegmentReader
from mksearch.query.group import GroupView
from tests.bench.bench import Bench, Published
from tests.bench.figures import Figure, PartResult, median_of

__all__ = ["index_bytes", "measure"]

RECORDS_AT_MOST = 16
BYTES_AT_MOST = 5000
N_QUERIES = 300


def measure(bench: Bench) -> PartResult:
    """Measure records and bytes of one and the same index of mix99k."""
    published = bench.mixture()
    corpus = published.corpus
    sample = corpus.long[: bench.times(N_QUERIES)]
    records = []
    terms = []
    with published.searcher() as searcher:
        view = searcher.refresh().views[0]
        for query in sample:
            found = searcher.search(query, k=10)
            if not found.exact:
                raise VerificationError("a search gave up exactness")
            records.append(float(found.records_fetched))
            terms.append(len(set(view.analyzer.tokens(query))))
    sizes = index_bytes(published, view)
    index = (sizes["documents"] + sizes["nodes"]) / corpus.n_docs
    spread = {
        "queries": len(sample),
        "terms": sum(terms) / len(terms),
        "columns": published.report["columns"],
        "mean": sum(records) / len(records),
        "median": median_of(records),
        "p90": median_of(records, 0.9),
        "most": max(records),
    }
    bytes_a_document = {name: size / corpus.n_docs for name, size in sizes.items()}
    return PartResult(
        figures=[
            Figure(
                "widths.records",
                "records read for an exact top 10, mean, mix99k, scifact's claims",
                spread["mean"],
                direction="at most",
                limit=RECORDS_AT_MOST,
                note=corpus.note,
            ),
            Figure(
                "widths.bytes",
                "index bytes a document of the same segment: rows, nodes, check rows",
                index,
                "bytes",
                "at most",
                limit=BYTES_AT_MOST,
                note=corpus.note,
            ),
        ],
        tables={"records": [spread], "bytes": [bytes_a_document]},
    )


def index_bytes(published: Published, view: GroupView) -> dict[str, Any]:
    """Return the bytes of the segment files of one server by what lies in them."""
    sizes = {"documents": 0, "nodes": 0, "records": 0, "header": 0}
    for segment in view.segments:
        path = published.fleet[1].data / "segments" / segment.id.hex()
        reader = SegmentReader(np.memmap(path, np.uint8, "r"))
        levels = len(reader.header.layout.levels)
        cells = [reader.level(level).nbytes for level in range(levels)]
        records = reader.slots().nbytes
        sizes["documents"] += cells[0]
        sizes["nodes"] += sum(cells[1:])
        sizes["records"] += records
        sizes["header"] += path.stat().st_size - sum(cells) - records
    return sizes
