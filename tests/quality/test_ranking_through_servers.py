"""Judged collections searched through three servers: the hits are those of plaintext engines."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from statistics import fmean, median
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from mksearch.text.analyzers import make_analyzer
from mksearch_client.reading import Document
from mksearch_client.result import SearchResult
from tests.quality.collections import Collection, load_collection
from tests.quality.ndcg import mean_ndcg
from tests.support.local import LocalCollection, publish

Kind = Literal["tfidf", "bm25"]
#: Scores of every document for one query, float64 (n_docs,).
PlaintextEngine = Callable[[str], NDArray[np.float64]]

K = 10
#: Queries of a collection that are asked by naming blocks as well.
N_FAST = 25
#: For more of them these small collections are read whole.
K_FAST = 3
#: Scores are exact to some 2**-30 a term; plaintext engines round as well.
SCORE_TOLERANCE = 1e-6
BASELINES: dict[Kind, str] = {"tfidf": "sklearn-tfidf/snowball", "bm25": "bm25s/snowball"}
COLLECTIONS = ("cranfield", "cisi", "vaswani", "scifact")
LARGE = ("vaswani", "scifact")


@dataclass(frozen=True)
class Searched:
    """A collection published, and what its queries gave."""

    collection: Collection
    kind: Kind
    local: LocalCollection
    results: dict[str, SearchResult]

    def expected(self, text: str) -> NDArray[np.float64]:
        return plaintext_engine(self.collection.name, self.kind)(text)


@cache
def collection_of(name: str) -> Collection:
    return load_collection(name)


@cache
def plaintext_engine(name: str, kind: Kind) -> PlaintextEngine:
    texts = collection_of(name).texts
    return _scikit_learn(texts) if kind == "tfidf" else _lucene_bm25(texts)


def _scikit_learn(texts: Sequence[str]) -> PlaintextEngine:
    from sklearn.feature_extraction.text import TfidfVectorizer

    analyzer = make_analyzer("english-1")
    vectorizer = TfidfVectorizer(analyzer=analyzer.tokens, sublinear_tf=True)
    documents = vectorizer.fit_transform(texts)

    def scores(query: str) -> NDArray[np.float64]:
        product = documents @ vectorizer.transform([query]).T
        return np.asarray(product.toarray(), np.float64).ravel()

    return scores


def _lucene_bm25(texts: Sequence[str], k1: float = 1.2, b: float = 0.75) -> PlaintextEngine:
    analyzer = make_analyzer("english-1")
    frequencies = [Counter(analyzer.tokens(text)) for text in texts]
    lengths = [counts.total() for counts in frequencies]
    mean_length = sum(lengths) / len(lengths)
    postings: dict[str, list[tuple[int, float]]] = {}
    for document, counts in enumerate(frequencies):
        norm = k1 * (1 - b + b * lengths[document] / mean_length)
        for term, tf in counts.items():
            postings.setdefault(term, []).append((document, tf / (tf + norm)))

    def scores(query: str) -> NDArray[np.float64]:
        total = np.zeros(len(texts))
        for term in analyzer.tokens(query):
            found = postings.get(term, [])
            idf = math.log(1 + (len(texts) - len(found) + 0.5) / (len(found) + 0.5))
            for document, weight in found:
                total[document] += idf * weight
        return total

    return scores


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            (name, kind),
            id=f"{name}-{kind}",
            marks=[pytest.mark.slow] if name in LARGE else [],
        )
        for name in COLLECTIONS
        for kind in BASELINES
    ],
)
def searched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Searched]:
    name, kind = request.param
    collection = collection_of(name)
    folder = tmp_path_factory.mktemp(f"{name}-{kind}")
    documents = [
        Document(external_id, "", text)
        for external_id, text in zip(collection.ids, collection.texts, strict=True)
    ]
    local = publish(documents, folder, scoring=kind)
    searcher = local.searcher()
    results = {query: searcher.search(text, K) for query, text in collection.queries.items()}
    yield Searched(collection, kind, local, results)
    # Maps of deleted files stay readable; half a gigabyte of disk must not outlive its tests.
    shutil.rmtree(folder)


@pytest.mark.data
def test_named_blocks_give_the_same_hits_scores_and_order(searched: Searched) -> None:
    searcher = searched.local.searcher()
    queries = list(searched.collection.queries.items())[:N_FAST]
    results = {query: searcher.search(text, K_FAST, privacy="fast") for query, text in queries}
    shares = [result.cells_share for result in results.values()]
    print(f"{searched.collection.name} {searched.kind}: cells read {fmean(shares):.3f} of all")

    for query, result in results.items():
        assert result.exact
        assert result.hits == searched.results[query].hits[:K_FAST]


@pytest.mark.data
def test_private_records_give_the_same_hits_scores_and_order(searched: Searched) -> None:
    searcher = searched.local.searcher()
    for query, text in list(searched.collection.queries.items())[:N_FAST]:
        result = searcher.search(text, K, privacy="full")
        assert result.exact
        assert result.hits == searched.results[query].hits


@pytest.mark.data
def test_every_answer_is_verified_and_exact(searched: Searched) -> None:
    records = [result.records_fetched for result in searched.results.values()]
    print(
        f"{searched.collection.name} {searched.kind}: {len(records)} queries, records fetched "
        f"mean {fmean(records):.1f}, median {median(records):.0f}, most {max(records)}"
    )

    assert all(result.verified and result.exact for result in searched.results.values())
    assert all(
        result.n_docs == len(searched.collection.ids) for result in searched.results.values()
    )
    assert [hit.rank for hit in next(iter(searched.results.values())).hits] == list(range(1, K + 1))


@pytest.mark.data
def test_scores_and_order_are_those_of_the_plaintext_engine(searched: Searched) -> None:
    numbers = {external_id: n for n, external_id in enumerate(searched.collection.ids)}

    for query, text in searched.collection.queries.items():
        expected = searched.expected(text)
        hits = searched.results[query].hits
        shown = np.array([numbers[hit.id] for hit in hits], np.int64)
        scores = np.array([hit.score for hit in hits])

        assert len(shown) == len(set(shown.tolist())) == min(K, np.count_nonzero(expected))
        np.testing.assert_allclose(scores, expected[shown], rtol=0, atol=SCORE_TOLERANCE)
        # Falling, and nothing left out scores more than the last hit.
        assert (np.diff(expected[shown]) <= 2 * SCORE_TOLERANCE).all(), query
        left_out = np.delete(expected, shown)
        if len(shown) == K:
            assert left_out.max() <= expected[shown[-1]] + 2 * SCORE_TOLERANCE, query
        else:
            assert not left_out.any(), query


@pytest.mark.data
def test_a_document_with_score_zero_is_never_shown(searched: Searched) -> None:
    numbers = {external_id: n for n, external_id in enumerate(searched.collection.ids)}

    for query, text in searched.collection.queries.items():
        expected = searched.expected(text)
        for hit in searched.results[query].hits:
            assert hit.score > 0
            assert expected[numbers[hit.id]] > 0


@pytest.mark.data
def test_equal_scores_are_in_the_order_of_ids(searched: Searched) -> None:
    for result in searched.results.values():
        for hit, following in zip(result.hits, result.hits[1:], strict=False):
            if hit.score == following.score:
                assert hit.id.encode() < following.id.encode()


@pytest.mark.data
def test_ndcg_through_the_servers_is_that_of_the_baseline(searched: Searched) -> None:
    rankings = {query: [h.id for h in result.hits] for query, result in searched.results.items()}
    baseline = searched.collection.baseline_ndcg(BASELINES[searched.kind])

    reached = mean_ndcg(rankings, searched.collection.judgements, K)

    print(f"{searched.collection.name} {searched.kind}: nDCG@10 {reached:.4f} ({baseline:.4f})")
    assert reached == pytest.approx(baseline, abs=0.002)


@pytest.mark.data
def test_every_pair_of_servers_gives_identical_hits(searched: Searched) -> None:
    sample = list(searched.collection.queries.items())[::50]

    for pair in combinations(searched.local.servers, 2):
        searcher = searched.local.searcher(pair)
        for query, text in sample:
            result = searcher.search(text, K)

            assert result.hits == searched.results[query].hits
            assert {report.id for report in result.servers if report.status == "ok"} == set(pair)
