"""Round weights up to the few bits that a column carries, so that every bound stays a bound.

For a document weight ``W`` and its impact, ``impact * step >= W``; for a query weight ``X`` and its
quantised weight ``q``, ``q * u >= X``.  So the servers' sums, times ``step * u``, are never below
the exact score.  And they never wrap around the field's prime: impacts are at most
``params.IMPACT_MAX``, the quantised weights of one vector add up to at most
``params.QUERY_SUM_MAX``, and the product of the two is below ``params.P``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from mksearch import params
from mksearch.errors import ParameterError, QueryError

__all__ = ["impacts", "quantise_query", "split_query"]


def impacts(weights: NDArray[np.int64]) -> tuple[NDArray[np.uint16], int]:
    """Quantise the document weights of one segment.

    Args:
        weights: int64, any shape, each 1..2**56.

    Returns:
        The impacts, uint16, of the same shape, each 1..127, and the step, the least whole number
        with ``127 * step >= max(weights)`` (1 if there are no weights).

    Raises:
        ParameterError: a weight is outside its range.
    """
    if weights.size == 0:
        return np.zeros(weights.shape, np.uint16), 1
    smallest, largest = int(weights.min()), int(weights.max())
    if smallest < 1 or largest > 1 << 56:
        raise ParameterError(f"weights lie in {smallest}..{largest}, need 1..2**56")
    step = _ceil_div(largest, params.IMPACT_MAX)
    return ((weights + (step - 1)) // step).astype(np.uint16), step


def quantise_query(query: Mapping[int, int]) -> tuple[dict[int, int], int]:
    """Quantise the weights of one vector.

    Args:
        query: weight of each term, 1 or more, at most ``params.QUERY_SUM_MAX`` terms.

    Returns:
        The quantised weight ``ceil(X / u)`` of each term, and ``u``, the least whole number for
        which they add up to at most ``params.QUERY_SUM_MAX`` (1 for a query without terms).

    Raises:
        QueryError: more terms than one vector can carry.
        ParameterError: a weight is below 1.
    """
    _check_weights(query)
    if len(query) > params.QUERY_SUM_MAX:
        raise QueryError(
            f"{len(query)} terms in one vector, at most {params.QUERY_SUM_MAX} fit",
            cure="split the query first",
        )
    # The sum falls as u grows, and is the number of terms at u = the largest weight.
    low, high = 1, max(query.values(), default=1)
    while low < high:
        middle = (low + high) // 2
        if _quantised_sum(query.values(), middle) <= params.QUERY_SUM_MAX:
            high = middle
        else:
            low = middle + 1
    return {term_id: _ceil_div(weight, low) for term_id, weight in query.items()}, low


def split_query(query: Mapping[int, int]) -> list[dict[int, int]]:
    """Deal the terms of a query over as many vectors as its length asks for.

    The number of vectors is public and depends on the number of terms alone: 1 up to
    ``params.TERMS_PER_VECTOR`` terms, 2 up to twice that, else 4.  Each vector takes terms of
    similar weight, for they share one ``u``, and about the same sum of square roots of weights:
    the heavy vectors have few terms, the light ones many, which loosens the bounds least.

    Args:
        query: weight of each term by its id, 1 or more.

    Returns:
        1, 2 or 4 queries of at most ``params.QUERY_SUM_MAX`` terms, some of them perhaps empty,
        that hold every term once.

    Raises:
        QueryError: more terms than the largest number of vectors can carry.
        ParameterError: a weight is below 1.
    """
    _check_weights(query)
    n_terms = len(query)
    n_terms_max = params.VECTOR_CLASSES[-1] * params.QUERY_SUM_MAX
    if n_terms > n_terms_max:
        raise QueryError(
            f"the query has {n_terms} different terms, at most {n_terms_max} can be asked",
            cure="ask with a shorter text",
        )
    n_vectors = next(
        (n for n in params.VECTOR_CLASSES if n_terms <= n * params.TERMS_PER_VECTOR),
        params.VECTOR_CLASSES[-1],
    )
    falling = sorted(query.items(), key=lambda item: (-item[1], item[0]))
    roots = list(accumulate(math.isqrt(weight << 20) for _, weight in falling))
    parts: list[dict[int, int]] = []
    start = 0
    for later in reversed(range(n_vectors)):
        share = (roots[-1] if roots else 0) * (n_vectors - later) // n_vectors
        end = n_terms if later == 0 else bisect_left(roots, share) + 1
        end = max(end, start, n_terms - later * params.QUERY_SUM_MAX)
        end = min(end, start + params.QUERY_SUM_MAX)
        parts.append(dict(falling[start:end]))
        start = end
    return parts


def _check_weights(query: Mapping[int, int]) -> None:
    for term_id, weight in query.items():
        if weight < 1:
            raise ParameterError(f"query term {term_id} has weight {weight}, need 1 or more")


def _quantised_sum(weights: Iterable[int], unit: int) -> int:
    return sum(_ceil_div(weight, unit) for weight in weights)


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
