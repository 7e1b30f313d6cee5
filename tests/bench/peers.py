"""Other systems in the same run, on the same texts and queries, and what each protects.

Engines in the clear protect nothing and are the measure of what protection costs.  Two general
tools for computing on hidden numbers do the one operation that a ranking needs, at a size that
they can do in seconds, and are extrapolated; they prove nothing about the answer.
"""

from __future__ import annotations

import importlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mksearch.text.analyzers import make_analyzer
from tests.bench.bench import Bench, Published, milliseconds
from tests.bench.figures import Figure, PartResult, median_of
from tests.bench.search import timed_searches
from tests.support.processes import REPOSITORY, clean_environment

__all__ = ["Peer", "measure"]

K = 10
N_QUERIES = 40
#: Columns that the tools are given: those of the index of mix99k.
COLUMNS = 2048
#: The encrypted product costs the same for all numbers of documents up to that of columns.
CKKS_DOCS = COLUMNS
CKKS_HIDDEN_DOCS = 12
SHAMIR_DOCS = 512
_SHAMIR_AT_MOST_S = 180


@dataclass(frozen=True, slots=True)
class Peer:
    """One system in the comparison.

    Attributes:
        name: as its makers call it.
        does: what was measured.
        hides_documents: from whom texts and index are hidden; "no" for in the clear.
        hides_query: from whom the query is hidden.
        proves: whether a wrong answer is noticed.
        ms: median of a query, or None where it was not measured.
        measured: "measured", or what was extrapolated, or why not measured.
    """

    name: str
    does: str
    hides_documents: str
    hides_query: str
    proves: str
    ms: float | None
    measured: str = "measured"


def measure(bench: Bench) -> PartResult:
    """Measure everybody on mix99k; who does not import is left out and says so."""
    published = bench.mixture()
    corpus = published.corpus
    texts = [document.searchable for document in corpus.documents()]
    ids = [document.id for document in corpus.documents()]
    queries = list(corpus.long[: bench.times(N_QUERIES)])
    own, scores = _own(published, queries)
    cut = make_analyzer("english-1").tokens
    tokens = [cut(text) for text in texts]
    asked = [cut(query) for query in queries]
    clear: list[tuple[str, Callable[[], Peer]]] = []
    difference: list[float] = []
    clear += [
        ("scikit-learn", lambda: _scikit_learn(tokens, asked, ids, scores, difference)),
        ("bm25s", lambda: _bm25s(tokens, asked)),
        ("tantivy", lambda: _tantivy(tokens, asked)),
    ]
    n_docs = corpus.n_docs
    hidden: list[tuple[str, Callable[[], Peer]]] = [
        ("TenSEAL", lambda: _ckks_plain(n_docs, CKKS_DOCS)),
        ("TenSEAL", lambda: _ckks_hidden(n_docs, bench.times(CKKS_HIDDEN_DOCS))),
        ("MPyC", lambda: _shamir(n_docs, SHAMIR_DOCS)),
    ]
    peers = [own]
    for name, work in clear + hidden:
        bench.say(f"peer: {name}")
        peers.append(_tried(name, work))
    figures = [
        Figure(
            "peers.score_difference",
            "largest difference of a score from scikit-learn's, top 10",
            max(difference) if difference else None,
            direction="at most",
            limit=1e-6,
            note=corpus.note,
        )
    ]
    return PartResult(figures, {"peers": [asdict(peer) for peer in peers]})


def _tried(name: str, work: Callable[[], Peer]) -> Peer:
    try:
        return work()
    except ImportError as error:
        why = f"left out: {error.name or 'it'} is not installed"
    except Exception as error:  # noqa: BLE001 - a peer that fails must not take the others along
        why = f"left out: it failed ({type(error).__name__})"
    return Peer(name, "", "", "", "", None, why)


def _timed(queries: Sequence[Any], ask: Callable[[Any], object]) -> float:
    """Return the median milliseconds of ``ask``, after three that do not count."""
    for query in queries[:3]:
        ask(query)
    times = []
    for query in queries:
        started = time.perf_counter()
        ask(query)
        times.append(milliseconds(started))
    return median_of(times)


def _own(published: Published, queries: list[str]) -> tuple[Peer, list[dict[str, float]]]:
    with published.searcher() as searcher:
        times, runs = timed_searches(searcher, tuple(queries), len(queries))
    scores = [{hit.id: hit.score for hit in run.hits} for run in runs]
    peer = Peer(
        "mksearch",
        "exact TF-IDF ranking by two of three server processes over gRPC, records fetched, all "
        "checked",
        "from all servers together; sizes and numbers of fetched records show",
        "from any one server; two together see its columns",
        "yes, and names who lied",
        median_of(times),
    )
    return peer, scores


# --- in the clear ---------------------------------------------------------------------------------


def _in_the_clear(name: str, does: str, ms: float) -> Peer:
    return Peer(name, does, "no", "no", "no", ms)


def _scikit_learn(
    tokens: list[list[str]],
    asked: list[list[str]],
    ids: list[str],
    scores: list[dict[str, float]],
    difference: list[float],
) -> Peer:
    text = importlib.import_module("sklearn.feature_extraction.text")
    vectorizer = text.TfidfVectorizer(
        analyzer=lambda cut: cut, sublinear_tf=True, smooth_idf=True, norm="l2"
    )
    matrix = vectorizer.fit_transform(tokens)
    by_term = matrix.T.tocsr()
    place = {name: number for number, name in enumerate(ids)}

    def product(cut: list[str]) -> Any:
        return (vectorizer.transform([cut]) @ by_term).toarray()[0]

    def ask(cut: list[str]) -> Any:
        found = product(cut)
        best = np.argpartition(-found, K)[:K]
        return best[np.argsort(-found[best])]

    ms = _timed(asked, ask)
    for cut, hits in zip(asked, scores, strict=True):
        exact = product(cut)
        best = np.sort(exact)[::-1][: len(hits)]
        difference += [abs(float(exact[place[name]]) - score) for name, score in hits.items()]
        difference += np.abs(best - np.array(sorted(hits.values(), reverse=True))).tolist()
    return _in_the_clear("scikit-learn", "TF-IDF, sparse product, top 10", ms)


def _bm25s(tokens: list[list[str]], asked: list[list[str]]) -> Peer:
    bm25s = importlib.import_module("bm25s")
    # Its compiled backend, a hundred times faster here than the other.
    engine = bm25s.BM25(method="lucene", k1=1.2, b=0.75, backend="numba")
    engine.index(tokens, show_progress=False)
    known = [[term for term in cut if term in engine.vocab_dict] for cut in asked]

    def ask(cut: list[str]) -> object:
        return engine.retrieve([cut], k=K, show_progress=False, backend_selection="numba")

    does = "BM25, scores computed when indexing, compiled backend"
    return _in_the_clear("bm25s", does, _timed(known, ask))


def _tantivy(tokens: list[list[str]], asked: list[list[str]]) -> Peer:
    tantivy = importlib.import_module("tantivy")
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("body", stored=False, tokenizer_name="whitespace")
    index = tantivy.Index(builder.build())
    writer = index.writer(heap_size=128 << 20, num_threads=1)
    for cut in tokens:
        writer.add_document(tantivy.Document(body=" ".join(cut)))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()

    def ask(cut: list[str]) -> list[object]:
        # Lenient: a stem such as "or" is a word here, not an operator.
        query = index.parse_query_lenient(" ".join(f'"{term}"' for term in cut), ["body"])[0]
        hits: list[object] = searcher.search(query, K).hits
        return hits

    if not any(ask(cut) for cut in asked):
        raise ValueError("no query finds anything")
    does = "BM25, inverted index in the manner of Lucene"
    return _in_the_clear("tantivy", does, _timed(asked, ask))


# --- on hidden numbers ----------------------------------------------------------------------------


def _ckks_context(tenseal: Any) -> Any:
    context = tenseal.context(
        tenseal.SCHEME_TYPE.CKKS, poly_modulus_degree=8192, coeff_mod_bit_sizes=[60, 40, 60]
    )
    context.global_scale = 2**40
    context.generate_galois_keys()
    context.generate_relin_keys()
    return context


def _ckks_query(source: np.random.Generator) -> NDArray[np.float64]:
    query = np.zeros(COLUMNS)
    query[source.choice(COLUMNS, 10, replace=False)] = 1.0
    return query


def _ckks_plain(n_docs: int, sample: int) -> Peer:
    """Multiply an encrypted query with documents in the clear, as many as it has columns."""
    tenseal = importlib.import_module("tenseal")
    context = _ckks_context(tenseal)
    source = np.random.default_rng(0)
    documents = source.random((COLUMNS, sample))
    query = _ckks_query(source)
    encrypted = tenseal.ckks_vector(context, query.tolist())
    rows = documents.tolist()
    started = time.perf_counter()
    answer = encrypted.matmul(rows)
    ms = milliseconds(started)
    if np.abs(np.array(answer.decrypt()) - query @ documents).max() > 1e-2:
        raise ValueError("the products are wrong")
    return Peer(
        "TenSEAL (CKKS)",
        f"products of an encrypted query with documents in the clear, {COLUMNS} columns",
        "no",
        "from the one server",
        "no",
        ms * n_docs / sample,
        f"extrapolated: {sample:,} documents measured, times {n_docs / sample:,.0f}; without "
        "choosing the best",
    )


def _ckks_hidden(n_docs: int, sample: int) -> Peer:
    """Multiply an encrypted query with encrypted documents, one by one."""
    tenseal = importlib.import_module("tenseal")
    context = _ckks_context(tenseal)
    source = np.random.default_rng(0)
    documents = source.random((sample, COLUMNS))
    query = _ckks_query(source)
    encrypted = tenseal.ckks_vector(context, query.tolist())
    kept = [tenseal.ckks_vector(context, row.tolist()) for row in documents]
    times = []
    for number, document in enumerate(kept):
        started = time.perf_counter()
        answer = encrypted.dot(document)
        times.append(milliseconds(started))
        if abs(answer.decrypt()[0] - float(documents[number] @ query)) > 1e-2:
            raise ValueError("a product is wrong")
    return Peer(
        "TenSEAL (CKKS)",
        f"products of an encrypted query with encrypted documents, {COLUMNS} columns",
        "from the one server",
        "from the one server",
        "no",
        median_of(times) * n_docs,
        f"extrapolated: {sample} documents measured, times {n_docs / sample:,.0f}; without "
        f"choosing the best; {len(kept[0].serialize()) >> 10} KiB a document",
    )


def _shamir(n_docs: int, sample: int) -> Peer:
    """Multiply a shared query with shared documents in three processes of MPyC."""
    importlib.import_module("mpyc")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.bench.mpyc_process",
            *("-M3", "-T1", f"-B{_free_ports(3)}", "--no-log"),
            *("--docs", str(sample), "--columns", str(COLUMNS)),
        ],
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd=REPOSITORY,
        env=clean_environment(),
        timeout=_SHAMIR_AT_MOST_S,
    )
    ms = float(json.loads(done.stdout.splitlines()[-1])["ms"])
    return Peer(
        "MPyC (Shamir)",
        f"products of a shared query with shared documents, {COLUMNS} columns, three processes",
        "from any one server; two together see them",
        "from any one server; two together see it",
        "no",
        ms * n_docs / sample,
        f"extrapolated: {sample} documents measured, times {n_docs / sample:,.0f}; without "
        "choosing the best",
    )


def _free_ports(count: int) -> int:
    """Return the first of ``count`` neighbouring ports that are free on loopback."""
    for first in range(7300, 7900 - count, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise OSError(f"no {count} free ports in 7300..7900")
