"""A plaintext engine: what a collection built afresh from some documents would answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from mksearch.text.analyzers import make_analyzer
from mksearch.text.vocabulary import count_corpus
from mksearch.text.weights import (
    SCORE_ONE,
    Scoring,
    document_weights,
    exact_score,
    query_weights,
)
from mksearch_client.reading import Document

__all__ = ["PlainEngine"]


class PlainEngine:
    """Ranks documents in the clear, with the integers that the protocol fixes."""

    def __init__(
        self, documents: Mapping[str, Document], scoring: str, analyzer: str = "english-1"
    ) -> None:
        self._ids = sorted(documents)
        self._analyzer = make_analyzer(analyzer)
        self._scoring = Scoring(scoring)  # type: ignore[arg-type]
        texts = [documents[name].searchable for name in self._ids]
        self._counts = count_corpus(self._analyzer, texts)
        counts = self._counts
        self._weights = document_weights(
            self._scoring,
            counts.vocabulary.statistics,
            counts.indptr,
            counts.term_ids,
            counts.tfs,
            counts.lengths,
        )

    def search(self, query: str, k: int) -> list[tuple[str, float]]:
        """Return id and score of the best documents."""
        vocabulary = self._counts.vocabulary
        terms = self._analyzer.explain(query).terms
        known = Counter(vocabulary.ids[term] for term in terms if term in vocabulary.ids)
        weights = query_weights(self._scoring, vocabulary.statistics, known)
        found = []
        for number, name in enumerate(self._ids):
            part = slice(*self._counts.indptr[number : number + 2].tolist())
            ids = np.asarray(self._counts.term_ids[part])
            score = exact_score(weights, ids, self._weights[part])
            if score:
                found.append((score, name))
        found.sort(key=lambda hit: (-hit[0], hit[1].encode()))
        return [(name, score / SCORE_ONE) for score, name in found[:k]]
