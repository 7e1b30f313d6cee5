"""The plaintext engine that the demo compares with: scikit-learn's TF-IDF over the same words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from mksearch.text.analyzers import Analyzer
from mksearch_client.reading import Document
from mksearch_client.result import SearchResult

__all__ = ["PlaintextEngine", "PlaintextHit"]

#: Scores of both engines differ by rounding only: half of what they may differ by.
SCORE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class PlaintextHit:
    """A hit of the plaintext engine."""

    id: str
    score: float


class PlaintextEngine:
    """Ranks the documents in the clear."""

    def __init__(self, documents: Sequence[Document], analyzer: Analyzer) -> None:
        self._ids = [document.id for document in documents]
        self._vectorizer = TfidfVectorizer(analyzer=analyzer.tokens, sublinear_tf=True)
        texts = [document.searchable for document in documents]
        try:
            self._matrix = self._vectorizer.fit_transform(texts)
        except ValueError:
            # scikit-learn refuses a corpus without a single word; nothing matches in it.
            self._matrix = None

    def _scores(self, query: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        if self._matrix is None:
            return np.zeros(len(self._ids))
        product = self._matrix @ self._vectorizer.transform([query]).T
        return np.asarray(product.toarray()).ravel()

    def search(self, query: str, k: int) -> list[PlaintextHit]:
        """Return the ``k`` best documents with a score above 0; ties by id."""
        scores = self._scores(query)
        order = sorted(
            np.flatnonzero(scores).tolist(), key=lambda i: (-scores[i], self._ids[i].encode())
        )
        return [PlaintextHit(self._ids[i], float(scores[i])) for i in order[:k]]

    def differences(self, result: SearchResult) -> list[str]:
        """Return in words where ``result`` is not the plaintext ranking; empty when it is.

        Scores may differ by 1e-6, and so may the order of documents whose scores differ by less
        than twice that.
        """
        scores = self._scores(result.query)
        by_id = dict(zip(self._ids, scores.tolist(), strict=True))
        best = np.sort(scores[scores > 0])[::-1][: result.k]
        found = []
        if len(best) != len(result.hits):
            found.append(f"{len(result.hits)} hits instead of {len(best)}")
        for hit, expected in zip(result.hits, best.tolist(), strict=False):
            own = by_id[hit.id]
            if abs(own - hit.score) > SCORE_TOLERANCE:
                found.append(f"{hit.id} has score {hit.score:.7f} instead of {own:.7f}")
            if abs(own - expected) > 2 * SCORE_TOLERANCE:
                found.append(f"rank {hit.rank} is {hit.id} with {own:.7f}, not {expected:.7f}")
        return found
