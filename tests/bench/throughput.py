"""Processor time that a whole server process needs for a query, alone and in a queue."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from mksearch.messages import ScoreRequest
from mksearch_client.member import Searcher
from tests.bench.bench import Bench, Published, cpu_seconds
from tests.bench.figures import Figure, PartResult
from tests.bench.search import new_attempt

__all__ = ["measure"]

N_DOCS = 20_000
COLUMNS = 4096
N_REQUESTS = 400
#: Requests under way at once: enough to fill a batch while another is computed.
AT_ONCE = 24


def measure(bench: Bench) -> PartResult:
    """Measure one server process; processor time is counted, so that clients may use the rest."""
    corpus = bench.corpora.long_texts(bench.size(N_DOCS))
    with bench.published(corpus) as published, published.searcher() as searcher:
        alone = _seconds_a_query(bench, published, searcher, 1)
        batched = _seconds_a_query(bench, published, searcher, AT_ONCE)
    # To the cells of 20,000 documents and 4096 columns; what a message costs is scaled with them.
    measured = published.corpus.n_docs * int(published.report["columns"])
    scale = measured / (N_DOCS * COLUMNS)
    note = (
        f"measured at {published.corpus.n_docs:,} documents x {published.report['columns']} "
        f"columns, times {scale:.2f} for the cells"
    )
    if published.corpus.synthetic:
        note += f"; {published.corpus.note}"
    return PartResult(
        figures=[
            Figure(
                "throughput.batched",
                f"queries a second of server processor time, 20,000 documents x {COLUMNS} "
                f"columns, {AT_ONCE} under way",
                scale / batched,
                "1/s",
                "at least",
                300,
                150,
                note,
            ),
            Figure(
                "throughput.gain",
                "queries that wait together over queries one after another, server processor time",
                alone / batched,
                direction="at least",
                limit=2,
                note=published.corpus.note,
            ),
            Figure(
                "throughput.alone",
                "queries a second of server processor time, one after another",
                scale / alone,
                "1/s",
                note=note,
            ),
        ]
    )


def _seconds_a_query(bench: Bench, published: Published, searcher: Searcher, at_once: int) -> float:
    """Return the processor time of server 1 for a query, with ``at_once`` under way."""
    view = searcher.refresh().views[0]
    queries = published.corpus.short
    count = bench.times(N_REQUESTS)
    requests = [
        new_attempt(searcher, view, queries[number % len(queries)]).request(1)
        for number in range(count)
    ]
    server = published.fleet[1]
    connection = searcher._connections[1]

    def ask_all(wanted: Sequence[ScoreRequest]) -> None:
        with ThreadPoolExecutor(at_once) as pool:
            for _ in pool.map(connection.score, wanted):
                pass

    ask_all(requests[:at_once])
    before = cpu_seconds(server.pid)
    ask_all(requests)
    return (cpu_seconds(server.pid) - before) / count
