"""What TLS costs: the same servers and the same files, asked without and with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median

from mksearch.errors import VerificationError
from mksearch_client.member import Searcher, connect_to
from mksearch_client.profile import Profile
from mksearch_client.trust import TlsTrust
from mksearch_server.certificates import create_tls
from tests.bench.bench import Bench, Published
from tests.bench.figures import Figure, PartResult, median_of
from tests.bench.search import timed_searches

__all__ = ["measure"]

ANSWER_BYTES = 20_000_000
STREAM_AT_LEAST_GB_S = 0.5
SEARCH_AT_MOST_PERCENT = 15
_N_STREAMS = 12
_N_SEARCHES = 40
_LINES = ("[tls]", 'certificate = "tls.crt"', 'key = "tls.key"')


def measure(bench: Bench) -> PartResult:
    """Stream an answer of 20 MB and search mix99k, without TLS, with it, and without it again."""
    published = bench.mixture()
    profile = Profile.open(published.profile)
    plain_gb_s, plain_ms = _measured(bench, published, profile)
    with _secured(published, profile) as secured:
        tls_gb_s, tls_ms = _measured(bench, published, secured)
    again_gb_s, again_ms = _measured(bench, published, profile)
    before_ms = median_of([*plain_ms, *again_ms])
    corpus = published.corpus
    size = f"{corpus.n_docs:,} documents"
    note = corpus.note
    return PartResult(
        [
            Figure("tls.plain", "20 MB streamed without TLS",
                   median_of([*plain_gb_s, *again_gb_s]), "GB/s", note=note),
            Figure("tls.stream", "20 MB streamed with TLS 1.3", median_of(tls_gb_s), "GB/s",
                   "at least", limit=STREAM_AT_LEAST_GB_S, note=note),
            Figure("tls.search_plain", f"search without TLS, {size}", before_ms, "ms", note=note),
            Figure("tls.search", f"the same with TLS 1.3, {size}", median(tls_ms), "ms", note=note),
            Figure("tls.share", f"what TLS adds to a search, {size}",
                   100 * (median(tls_ms) / before_ms - 1), "%", "at most",
                   limit=SEARCH_AT_MOST_PERCENT, note=note),
        ]
    )  # fmt: skip


def _measured(
    bench: Bench, published: Published, profile: Profile
) -> tuple[list[float], list[float]]:
    """Return rates of 20 MB in GB/s, and times of searches in milliseconds."""
    with Searcher(profile, timeout_s=60.0) as searcher:
        times, _ = timed_searches(searcher, published.corpus.short, bench.times(_N_SEARCHES))
        signed = searcher.seen
    if signed is None:
        raise VerificationError("no version was seen")
    segment = max(signed.manifest.segments(), key=lambda one: one.size)
    n_bytes = min(ANSWER_BYTES, segment.size)
    connection = connect_to(profile.servers[1], 60.0)
    rates = []
    try:
        for _ in range(bench.times(_N_STREAMS)):
            started = time.perf_counter()
            if len(connection.read_object(segment.id, 0, n_bytes)) != n_bytes:
                raise VerificationError("an object came short")
            rates.append(n_bytes / 1e9 / (time.perf_counter() - started))
    finally:
        connection.close()
    # The first one connects.
    return rates[1:], times


@contextmanager
def _secured(published: Published, profile: Profile) -> Iterator[Profile]:
    """Serve with TLS while the block runs; give a profile that pins the keys."""
    pinned = Profile.open(profile.folder)
    plain = {server.id: server.config.read_text() for server in published.fleet}
    try:
        for server in published.fleet:
            server.stop()
            key = create_tls(server.folder, ["127.0.0.1"], request=False)
            text = plain[server.id]
            for line in _LINES:
                text = text.replace(f"# {line}", line)
            server.config.write_text(text)
            entry = pinned.servers[server.id]
            pinned.servers[server.id] = replace(entry, tls=TlsTrust(key))
        published.fleet.start()
        yield pinned
    finally:
        for server in published.fleet:
            if server.is_running:
                server.stop()
            server.config.write_text(plain[server.id])
        published.fleet.start()
