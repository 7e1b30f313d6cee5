"""Normalised discounted cumulative gain, as trec_eval's ``ndcg_cut`` computes it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence


def ndcg(ranking: Sequence[str], grades: Mapping[str, int], k: int = 10) -> float:
    """Judge one ranking: linear gain, discount log2(rank + 1), ideal order of all judged documents.

    Args:
        ranking: external ids, best first.
        grades: grade of each judged document, 0 or less where it is not relevant.
        k: ranks that count.

    Returns:
        0..1; 0 where no document is relevant.
    """
    ideal = _dcg(sorted((max(grade, 0) for grade in grades.values()), reverse=True)[:k])
    gained = _dcg(max(grades.get(document, 0), 0) for document in ranking[:k])
    return gained / ideal if ideal else 0.0


def mean_ndcg(
    rankings: Mapping[str, Sequence[str]], judgements: Mapping[str, Mapping[str, int]], k: int = 10
) -> float:
    """Average over all queries with a relevant document; a query without a ranking counts 0."""
    judged = [
        query for query, grades in judgements.items() if any(grade > 0 for grade in grades.values())
    ]
    return sum(ndcg(rankings.get(query, ()), judgements[query], k) for query in judged) / len(
        judged
    )


def _dcg(gains: Iterable[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))
