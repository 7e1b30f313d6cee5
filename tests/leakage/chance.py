"""How likely chance alone is to give what was counted."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from mksearch.params import P

__all__ = ["binned", "poisson_p", "same_source_p", "uniform_p", "value_counts"]


def value_counts(values: NDArray[np.uint16]) -> NDArray[np.int64]:
    """Count each of the 65,521 field elements: int64 (P,)."""
    counts = np.bincount(values.reshape(-1), minlength=P)
    assert len(counts) == P, "a value is no field element"
    return counts


def binned(values: NDArray[np.uint16], n_bins: int) -> NDArray[np.int64]:
    """Return the number of the equal share of 0..p-1 that each value lies in."""
    return values.astype(np.int64) * n_bins // P


def uniform_p(counts: ArrayLike, axis: int | None = None) -> NDArray[np.float64]:
    """Return the chance that uniform draws differ as much from uniform (chi-square)."""
    counts = np.asarray(counts)
    expected = counts.mean(axis=axis, keepdims=True)
    statistic = ((counts - expected) ** 2 / expected).sum(axis=axis)
    freedom = counts.size // statistic.size - 1
    return np.asarray(stats.chi2.sf(statistic, freedom))


def same_source_p(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """Return the chance that two histograms of one source differ as much (chi-square)."""
    table = np.stack([first.reshape(-1), second.reshape(-1)])
    table = table[:, table.sum(axis=0) > 0]
    return float(stats.chi2_contingency(table).pvalue)


def poisson_p(count: int, expected: float) -> float:
    """Return the chance of a count at least as far from what rare events lead to expect."""
    low = float(stats.poisson.cdf(count, expected))
    high = float(stats.poisson.sf(count - 1, expected))
    return min(1.0, 2 * min(low, high))
