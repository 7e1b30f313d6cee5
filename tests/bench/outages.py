"""What a search costs while as many servers are away as there may be: dead, or hanging."""

from __future__ import annotations

import time

from mksearch.errors import VerificationError
from mksearch.params import Quorum
from mksearch_client.result import SearchResult
from tests.bench.bench import Bench, milliseconds
from tests.bench.figures import Figure, PartResult, median_of
from tests.bench.search import timed_searches

__all__ = ["measure"]

N_DOCS = 65_536
N_SEARCHES = 20
#: A search may take so many times what it takes with all servers, and one hedge delay.
FACTOR_AT_MOST = 1.2
QUORUMS = (Quorum(3, 1), Quorum(5, 2))


def measure(bench: Bench) -> PartResult:
    """Measure searches with n - t - 1 servers killed, and with so many stopped."""
    result = PartResult()
    for quorum in QUORUMS:
        _with_outages(bench, quorum, result)
    return result


def _with_outages(bench: Bench, quorum: Quorum, result: PartResult) -> None:
    n, n_away = quorum.n_servers, quorum.n_servers - quorum.threshold
    corpus = bench.corpora.all365k(bench.size(N_DOCS))
    with bench.published(corpus, quorum=quorum) as published:
        count = bench.times(N_SEARCHES)
        with published.searcher() as searcher:
            hedge_ms = 1000 * searcher._hedge_s
            _, expected = timed_searches(searcher, corpus.short, count)
            # The first ones are asked first, so these cost the most.
            away = [published.fleet[server] for server in range(1, n_away + 1)]
            normal, hanging, found = [], [], []
            for number in range(count):
                query = corpus.short[number % len(corpus.short)]
                # A server that has waited for a second takes longer to begin: so with all servers,
                # as with those that are asked after a hedge delay.
                time.sleep(hedge_ms / 1000)
                started = time.perf_counter()
                searcher.search(query)
                normal.append(milliseconds(started))
                for server in away:
                    server.suspend()
                started = time.perf_counter()
                found.append(searcher.search(query))
                hanging.append(milliseconds(started))
                for server in away:
                    server.resume()
                # They answer what they owe, and are asked as before.
                searcher.search(query)
            _require_same(expected, found)
            for server in away:
                server.suspend()
            following, found = timed_searches(searcher, corpus.short, count)
            _require_same(expected, found)
            for server in away:
                server.resume()
                server.kill()
            dead, found = timed_searches(searcher, corpus.short, count)
            _require_same(expected, found)
    normal_ms = median_of(normal)
    limit = FACTOR_AT_MOST * normal_ms + hedge_ms
    note = f"{normal_ms:.1f} ms with all {n}; one hedge delay is {hedge_ms:.0f} ms; {corpus.note}"
    for how, what, times in (
        ("hanging", f"first search after {n_away} of {n} servers began to hang", hanging),
        ("following", f"searches after it, {n_away} of {n} servers hanging", following),
        ("dead", f"search with {n_away} of {n} servers dead", dead),
    ):
        name = f"{what}, {corpus.n_docs:,} documents"
        key, bound = f"outages.{n}_{how}", round(limit, 1)
        result.figures.append(
            Figure(
                key, name, median_of(times), "ms", "at most", limit=bound, note=note.rstrip("; ")
            )
        )


def _require_same(expected: list[SearchResult], found: list[SearchResult]) -> None:
    """Raise VerificationError unless both are the same answers."""
    if [one.hits for one in expected] != [one.hits for one in found]:
        raise VerificationError("an answer changed while servers were away")
