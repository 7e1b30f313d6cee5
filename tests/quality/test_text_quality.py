"""Integer weights rank as well as the plaintext engines that the baselines were measured with."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from mksearch.text.analyzers import make_analyzer
from mksearch.text.vocabulary import Counts, count_corpus
from mksearch.text.weights import (
    SCORE_ONE,
    Scoring,
    document_weights,
    exact_score,
    query_weights,
)
from tests.quality.collections import Collection, load_collection
from tests.quality.ndcg import mean_ndcg, ndcg

Kind = Literal["tfidf", "bm25"]
ENGINES: dict[Kind, str] = {"tfidf": "sklearn-tfidf/snowball", "bm25": "bm25s/snowball"}
#: Query weights are cut into a high and a low half, for 64 bits do not hold an exact score.
HALF_BITS = 15


class PlaintextEngine:
    """Ranks every document by its exact integer score."""

    def __init__(self, collection: Collection, counts: Counts, kind: Kind) -> None:
        self.collection, self.counts, self.scoring = collection, counts, Scoring(kind)
        self.statistics = counts.vocabulary.statistics
        self.weights = document_weights(
            self.scoring,
            self.statistics,
            counts.indptr,
            counts.term_ids,
            counts.tfs,
            counts.lengths,
        )
        rows = np.repeat(np.arange(len(counts.lengths)), np.diff(counts.indptr))
        by_term = np.argsort(counts.term_ids, kind="stable")
        self.rows, self.by_term_weights = rows[by_term], self.weights[by_term]
        self.ends = np.concatenate(([0], np.cumsum(counts.vocabulary.dfs)))
        id_order = sorted(range(len(collection.ids)), key=lambda d: collection.ids[d].encode())
        self.id_ranks = np.empty(len(id_order), np.int64)
        self.id_ranks[id_order] = np.arange(len(id_order))

    def query(self, text: str) -> dict[int, int]:
        ids = self.counts.vocabulary.ids
        tokens = analyzer().tokens(text)
        counted = Counter(ids[token] for token in tokens if token in ids)
        return query_weights(self.scoring, self.statistics, counted)

    def score_halves(self, query: dict[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        high, low = np.zeros((2, len(self.counts.lengths)), np.int64)
        for term_id, weight in query.items():
            part = slice(self.ends[term_id], self.ends[term_id + 1])
            high[self.rows[part]] += self.by_term_weights[part] * (weight >> HALF_BITS)
            low[self.rows[part]] += self.by_term_weights[part] * (weight % (1 << HALF_BITS))
        high += low >> HALF_BITS
        return high, low % (1 << HALF_BITS)

    def rank(self, text: str, k: int = 10) -> list[int]:
        high, low = self.score_halves(self.query(text))
        order = np.lexsort((self.id_ranks, -low, -high))[:k]
        return [int(row) for row in order if high[row] or low[row]]

    def exact(self, text: str, row: int) -> int:
        part = slice(self.counts.indptr[row], self.counts.indptr[row + 1])
        return exact_score(self.query(text), self.counts.term_ids[part], self.weights[part])


analyzer = cache(lambda: make_analyzer("english-1"))


@cache
def counted(name: str) -> tuple[Collection, Counts]:
    collection = load_collection(name)
    return collection, count_corpus(analyzer(), collection.texts)


@pytest.mark.data
@pytest.mark.parametrize("kind", ["tfidf", "bm25"])
@pytest.mark.parametrize("name", ["cranfield", "cisi", "vaswani", "scifact"])
def test_exact_integer_ranking_reaches_the_plaintext_baseline(name: str, kind: Kind) -> None:
    collection, counts = counted(name)
    engine = PlaintextEngine(collection, counts, kind)

    rankings = {
        query_id: [collection.ids[row] for row in engine.rank(text)]
        for query_id, text in collection.queries.items()
    }

    reached = mean_ndcg(rankings, collection.judgements)
    print(
        f"{name} {kind}: nDCG@10 {reached:.4f}, baseline {collection.baseline_ndcg(ENGINES[kind])}"
    )
    assert reached == pytest.approx(collection.baseline_ndcg(ENGINES[kind]), abs=0.002)


@pytest.mark.data
def test_halved_scores_of_the_reference_are_the_exact_scores() -> None:
    collection, counts = counted("cranfield")
    engine = PlaintextEngine(collection, counts, "bm25")

    for text in list(collection.queries.values())[:20]:
        high, low = engine.score_halves(engine.query(text))
        for row in engine.rank(text):
            assert engine.exact(text, row) == (int(high[row]) << HALF_BITS) + int(low[row])


@pytest.mark.data
def test_cranfield_scores_are_those_of_scikit_learn() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer

    collection, counts = counted("cranfield")
    engine = PlaintextEngine(collection, counts, "tfidf")
    vectorizer = TfidfVectorizer(analyzer=analyzer().tokens, sublinear_tf=True)
    documents = vectorizer.fit_transform(collection.texts)
    queries = vectorizer.transform(collection.queries.values())

    expected = (documents @ queries.T).toarray()

    assert len(vectorizer.vocabulary_) == len(counts.vocabulary.terms)
    for column, text in enumerate(collection.queries.values()):
        high, low = engine.score_halves(engine.query(text))
        scores = (high * 2.0**HALF_BITS + low) / SCORE_ONE
        np.testing.assert_allclose(scores, expected[:, column], rtol=0, atol=1e-6)


@pytest.mark.data
def test_terms_of_cranfield_are_those_of_the_baseline() -> None:
    collection, counts = counted("cranfield")
    baseline = collection.baseline["results"]["sklearn-tfidf/snowball"]

    assert len(counts.vocabulary.terms) == baseline["vocab"]
    assert len(counts.term_ids) == baseline["postings"]


def test_ndcg_of_a_hand_computed_ranking() -> None:
    grades = {"a": 3, "b": 1, "c": 0, "d": -1}

    assert ndcg(["a", "b"], grades) == pytest.approx(1.0)
    # (1 / log2 2 + 3 / log2 4) / (3 / log2 2 + 1 / log2 3)
    assert ndcg(["b", "c", "a", "d"], grades) == pytest.approx(2.5 / 3.6309298)
    assert ndcg(["c", "x"], grades) == 0.0
    assert ndcg(["a"], {"c": 0}) == 0.0
