"""Quantised weights stay bounds and never wrap around the prime."""

from __future__ import annotations

import numpy as np
import pytest

from mksearch import params
from mksearch.errors import ParameterError, QueryError
from mksearch.text.quantise import impacts, quantise_query, split_query


def test_the_largest_document_and_query_do_not_wrap() -> None:
    assert params.IMPACT_MAX * params.QUERY_SUM_MAX <= params.P - 1
    assert params.IMPACT_MAX * (params.QUERY_SUM_MAX + 1) > params.P - 1


def test_the_largest_weight_has_the_largest_impact_for_every_maximum() -> None:
    """In floating point one maximum in eight gives 128."""
    for largest in [*range(1, 3000), *range(2**30 - 500, 2**30 + 1)]:
        quantised, step = impacts(np.array([largest, 1], np.int64))
        assert 1 <= int(quantised[1]) <= int(quantised[0]) <= params.IMPACT_MAX
        assert int(quantised[0]) * step >= largest
        assert step == 1 or params.IMPACT_MAX * (step - 1) < largest


def test_impacts_of_nothing_are_nothing() -> None:
    quantised, step = impacts(np.zeros(0, np.int64))

    assert quantised.dtype == np.uint16
    assert (quantised.tolist(), step) == ([], 1)


@pytest.mark.parametrize("weights", [[0], [5, -1], [2**56 + 1]])
def test_weights_outside_their_range_are_refused(weights: list[int]) -> None:
    with pytest.raises(ParameterError):
        impacts(np.array(weights, np.int64))


@pytest.mark.parametrize(
    ("query", "unit"),
    [
        ({}, 1),
        ({7: 1}, 1),
        ({7: 515}, 1),
        ({7: 516}, 2),
        ({7: 1030}, 2),
        ({7: 1031}, 3),
        ({1: 300, 2: 300}, 2),
        # ceil(258 / 1) * 2 = 516 is one too many.
        ({1: 258, 2: 258}, 2),
        ({1: 258, 2: 257}, 1),
        (dict.fromkeys(range(515), 2**40), 2**40),
    ],
)
def test_the_unit_is_the_least_that_fits(query: dict[int, int], unit: int) -> None:
    quantised, got = quantise_query(query)

    assert got == unit
    assert quantised == {term: -(-weight // unit) for term, weight in query.items()}


def test_one_term_too_many_for_a_vector_is_refused() -> None:
    with pytest.raises(QueryError, match=r"516 terms.*515"):
        quantise_query(dict.fromkeys(range(516), 1))


@pytest.mark.parametrize("query", [{1: 0}, {1: 5, 2: -1}])
def test_a_query_weight_below_one_is_refused(query: dict[int, int]) -> None:
    with pytest.raises(ParameterError):
        quantise_query(query)
    with pytest.raises(ParameterError):
        split_query(query)


@pytest.mark.parametrize(
    ("n_terms", "n_vectors"),
    [(0, 1), (1, 1), (64, 1), (65, 2), (128, 2), (129, 4), (515, 4), (2060, 4)],
)
def test_the_number_of_vectors_depends_on_the_number_of_terms_alone(
    n_terms: int, n_vectors: int
) -> None:
    flat = dict.fromkeys(range(n_terms), 1000)
    steep = {term: 1 << max(0, 40 - term) for term in range(n_terms)}
    for query in (flat, steep):
        parts = split_query(query)
        assert len(parts) == n_vectors
        assert {term: weight for part in parts for term, weight in part.items()} == query
        assert sum(map(len, parts)) == n_terms
        for part in parts:
            quantise_query(part)


def test_terms_of_equal_weight_are_dealt_evenly() -> None:
    assert [len(part) for part in split_query(dict.fromkeys(range(128), 9))] == [64, 64]
    assert [len(part) for part in split_query(dict.fromkeys(range(2060), 9))] == [515] * 4


def test_one_heavy_term_is_asked_apart_from_many_light_ones() -> None:
    query = {5: 1 << 40} | dict.fromkeys(range(100, 199), 1 << 20)

    heavy, light = split_query(query)

    assert list(heavy) == [5]
    assert set(quantise_query(light)[0].values()) == {5}


def test_the_longest_query_is_refused_with_a_cure() -> None:
    with pytest.raises(QueryError, match=r"2061 different terms, at most 2060.*shorter"):
        split_query(dict.fromkeys(range(2061), 1))


def test_the_order_in_which_terms_are_handed_in_changes_nothing() -> None:
    query = {term: 1000 + term % 7 for term in range(200)}

    assert split_query(query) == split_query(dict(reversed(query.items())))


def test_dealing_is_tighter_than_one_vector_by_far() -> None:
    """The sum of ``u * ceil(X / u)`` over the sum of ``X`` is what a bound loses by rounding."""
    query = {term: int(2**30 / (1 + term) ** 0.6) for term in range(400)}

    def loss(parts: list[dict[int, int]]) -> float:
        bound = 0
        for part in parts:
            quantised, unit = quantise_query(part)
            bound += unit * sum(quantised.values())
        return bound / sum(query.values()) - 1

    assert loss(split_query(query)) < 0.2 * loss([query])
