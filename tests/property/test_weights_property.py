"""Weights against other implementations, and bounds, on random corpora and queries."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mksearch import params
from mksearch.text.analyzers import make_analyzer
from mksearch.text.quantise import impacts, quantise_query, split_query
from mksearch.text.vocabulary import Counts, count_corpus
from mksearch.text.weights import (
    SCORE_ONE,
    Scoring,
    Statistics,
    document_weights,
    exact_score,
    idfs,
    query_weights,
)

PLAIN = make_analyzer("plain-1")
WORDS = [f"w{n}" for n in range(12)]
TEXT = st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join)
CORPUS = st.lists(TEXT, min_size=1, max_size=12)
SCORINGS = st.one_of(
    st.just(Scoring("tfidf")),
    st.builds(Scoring, st.just("bm25"), st.floats(0, 10), st.floats(0, 1)),
)
#: Weights of a query are logarithms of few different frequencies, so many are equal.
LONG_QUERIES = st.builds(
    lambda n_terms, levels: {term: levels[term % 97 % len(levels)] for term in range(n_terms)},
    st.integers(129, 2060),
    st.lists(st.integers(1, 2**40), min_size=1, max_size=8),
)
QUERIES = st.dictionaries(st.integers(0, 10**6), st.integers(1, 2**40), max_size=300)


def score_all(counts: Counts, scoring: Scoring, query_text: str) -> list[float]:
    stats = counts.vocabulary.statistics
    weights = document_weights(
        scoring, stats, counts.indptr, counts.term_ids, counts.tfs, counts.lengths
    )
    ids = counts.vocabulary.ids
    query = query_weights(
        scoring, stats, Counter(ids[t] for t in PLAIN.tokens(query_text) if t in ids)
    )
    return [
        exact_score(query, counts.term_ids[begin:end], weights[begin:end]) / SCORE_ONE
        for begin, end in zip(counts.indptr[:-1], counts.indptr[1:], strict=True)
    ]


@given(texts=CORPUS.filter(any), query=TEXT)
@settings(max_examples=150, deadline=None)
def test_tfidf_scores_are_those_of_scikit_learn(texts: list[str], query: str) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(analyzer=PLAIN.tokens, sublinear_tf=True)
    documents = vectorizer.fit_transform(texts)
    expected = (documents @ vectorizer.transform([query]).T).toarray().ravel()

    scores = score_all(count_corpus(PLAIN, texts), Scoring("tfidf"), query)

    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-6)


@given(texts=CORPUS, query=TEXT, k1=st.floats(0, 10), b=st.floats(0, 1))
@settings(max_examples=150, deadline=None)
def test_bm25_scores_are_those_of_the_formula(
    texts: list[str], query: str, k1: float, b: float
) -> None:
    documents = [Counter(text.split()) for text in texts]
    mean = sum(document.total() for document in documents) / len(documents)
    expected = []
    for document in documents:
        score = 0.0
        for word in query.split():
            df = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
            if document[word]:
                damping = k1 * (1 - b + b * document.total() / mean)
                score += idf * document[word] / (document[word] + damping)
        expected.append(score)

    scores = score_all(count_corpus(PLAIN, texts), Scoring("bm25", k1, b), query)

    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-6)


@given(
    scoring=SCORINGS,
    n_docs=st.integers(0, 2**50),
    total_length=st.integers(0, 2**62),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=20),
    tf=st.integers(1, 2**31 - 1),
    length=st.integers(0, 2**62),
)
@settings(max_examples=300, deadline=None)
def test_every_weight_is_a_positive_integer_in_range(
    scoring: Scoring, n_docs: int, total_length: int, shares: list[float], tf: int, length: int
) -> None:
    dfs = np.array([min(n_docs, int(share * n_docs)) for share in shares], np.int64)
    stats = Statistics(n_docs, total_length if n_docs else 0, dfs)
    n_terms = len(dfs)

    inverse = idfs(scoring, stats)
    weights = document_weights(
        scoring,
        stats,
        np.array([0, n_terms], np.int64),
        np.arange(n_terms, dtype=np.int32),
        np.array([1 + (tf - 1) // (n + 1) for n in range(n_terms)], np.int32),
        np.array([length], np.int64),
    )
    query = query_weights(scoring, stats, dict.fromkeys(range(n_terms), tf))

    assert np.isfinite(inverse).all()
    assert (inverse > 0).all()
    assert ((weights >= 1) & (weights <= params.WEIGHT_ONE)).all()
    assert all(weight >= 1 for weight in query.values())
    assert exact_score(query, np.arange(n_terms, dtype=np.int32), weights) >= n_terms


@given(weights=st.lists(st.integers(1, 2**30), min_size=1, max_size=50))
@settings(max_examples=300, deadline=None)
def test_an_impact_times_the_step_is_at_least_the_weight(weights: list[int]) -> None:
    quantised, step = impacts(np.array(weights, np.int64))

    for weight, impact in zip(weights, quantised.tolist(), strict=True):
        assert 1 <= impact <= params.IMPACT_MAX
        assert weight <= impact * step < weight + step


@given(query=QUERIES)
@settings(max_examples=200, deadline=None)
def test_the_unit_of_a_query_is_the_least_that_fits(query: dict[int, int]) -> None:
    quantised, unit = quantise_query(query)

    assert sum(quantised.values()) <= params.QUERY_SUM_MAX
    assert all(quantised[term] * unit >= weight for term, weight in query.items())
    if unit > 1:
        tighter = sum(-(-weight // (unit - 1)) for weight in query.values())
        assert tighter > params.QUERY_SUM_MAX


@given(query=QUERIES | LONG_QUERIES)
@settings(max_examples=200, deadline=None)
def test_dealing_a_query_keeps_every_term_once(query: dict[int, int]) -> None:
    parts = split_query(query)

    assert len(parts) in params.VECTOR_CLASSES
    assert sorted(item for part in parts for item in part.items()) == sorted(query.items())
    assert all(len(part) <= params.QUERY_SUM_MAX for part in parts)


@given(texts=CORPUS, query=TEXT, scoring=SCORINGS)
@settings(max_examples=150, deadline=None)
def test_quantised_sums_are_bounds_of_exact_scores_and_never_wrap(
    texts: list[str], query: str, scoring: Scoring
) -> None:
    counts = count_corpus(PLAIN, texts)
    stats, ids = counts.vocabulary.statistics, counts.vocabulary.ids
    weights = document_weights(
        scoring, stats, counts.indptr, counts.term_ids, counts.tfs, counts.lengths
    )
    quantised, step = impacts(weights)
    asked = query_weights(scoring, stats, Counter(ids[t] for t in query.split() if t in ids))
    for begin, end in zip(counts.indptr[:-1], counts.indptr[1:], strict=True):
        terms, row = counts.term_ids[begin:end].tolist(), quantised[begin:end].tolist()
        bound = 0
        for part in split_query(asked):
            small, unit = quantise_query(part)
            total = sum(
                small.get(term, 0) * impact for term, impact in zip(terms, row, strict=True)
            )
            assert total <= params.P - 1
            bound += step * unit * total
        assert bound >= exact_score(asked, counts.term_ids[begin:end], weights[begin:end])
