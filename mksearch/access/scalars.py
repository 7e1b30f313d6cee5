"""Arithmetic modulo the prime order of a group: numbers, not arrays, so Python's own integers."""

from __future__ import annotations

from collections.abc import Sequence

from mksearch.crypto.randomness import RandomSource
from mksearch.errors import ParameterError

__all__ = ["SCALAR_DRAW_BYTES", "draw_coefficient", "draw_exponent", "evaluate", "lagrange"]

#: Bytes of one draw: 128 bits more than the order of BLS12-381, so the bias is below 2**-128.
SCALAR_DRAW_BYTES = 48


def draw_coefficient(order: int, random: RandomSource) -> int:
    """Draw a number in 0..order-1, 0 as likely as any other."""
    return int.from_bytes(random.bytes(SCALAR_DRAW_BYTES), "big") % order


def draw_exponent(order: int, random: RandomSource) -> int:
    """Draw a number in 1..order-1: what a point is raised to that must not be the identity."""
    return 1 + int.from_bytes(random.bytes(SCALAR_DRAW_BYTES), "big") % (order - 1)


def evaluate(coefficients: Sequence[int], at: int, order: int) -> int:
    """Return the value of a polynomial, its constant term first, modulo ``order``."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * at + coefficient) % order
    return value


def lagrange(points: Sequence[int], order: int, at: int = 0) -> tuple[int, ...]:
    """Return the factors that turn values at ``points`` into the value at ``at``.

    Args:
        points: distinct, 0..order-1; polynomials of degree below ``len(points)``.
        order: a prime.
        at: evaluation point, 0 for the secret.

    Raises:
        ParameterError: points repeat or are out of range.
    """
    if len(set(points)) != len(points) or not all(0 <= point < order for point in points):
        raise ParameterError(f"points {list(points)} are not distinct numbers below the order")
    factors = []
    for i in points:
        numerator = denominator = 1
        for j in points:
            if j != i:
                numerator = numerator * (at - j) % order
                denominator = denominator * (i - j) % order
        factors.append(numerator * pow(denominator, -1, order) % order)
    return tuple(factors)
