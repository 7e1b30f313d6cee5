"""Shamir sharing of vectors over F_p (docs/protocol.md, steps 8.2 and 8.4).

The corruption bound is the degree: a sharing of degree t hides the vector from any t servers and
is recovered from any t + 1.  Server ids are the evaluation points 1..n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.randomness import RandomSource, uniform_elements
from mksearch.errors import NotEnoughAnswers, ParameterError
from mksearch.field import modp
from mksearch.params import P

__all__ = ["Sharing", "interpolate", "lagrange_coefficients"]


class Sharing:
    """One polynomial with a secret vector as its constant term.

    A sharing belongs to one (vector, version, attempt); every server asked in that attempt gets
    its value of this same polynomial, and a new attempt makes a new sharing.
    """

    __slots__ = ("_coefficients",)

    def __init__(self, secret: NDArray[np.uint16], degree: int, random: RandomSource) -> None:
        """Draw the polynomial.

        Args:
            secret: uint16 of any shape, entries below p; secret.
            degree: t >= 1, servers that learn nothing together.
            random: source of the t * secret.size uniform coefficients, zero included.

        Raises:
            ParameterError: the degree is below 1.
        """
        if degree < 1:
            raise ParameterError(
                f"a sharing of degree {degree} hides nothing", cure="use 1 or more"
            )
        modp.require_elements(secret, "a secret vector")
        drawn = uniform_elements(random, (degree, *secret.shape))
        self._coefficients = np.concatenate([secret[None], drawn])

    @property
    def degree(self) -> int:
        """Degree t of the polynomial."""
        return len(self._coefficients) - 1

    def share(self, server: int) -> NDArray[np.uint16]:
        """Return the value of the polynomial at ``server``: uint16, the secret's shape, below p.

        Raises:
            ParameterError: the id is not in 1..p-1 (0 would be the secret itself).
        """
        if not 1 <= server < P:
            raise ParameterError(f"server id {server} is not in 1..{P - 1}")
        value: NDArray[np.uint16] = self._coefficients[-1]
        for coefficient in self._coefficients[-2::-1]:
            value = modp.add(modp.multiply(value, server), coefficient)
        return value

    def __repr__(self) -> str:
        return f"Sharing(degree={self.degree}, secret=<redacted>)"

    def __reduce__(self) -> str:
        raise TypeError("a sharing holds a secret and is never pickled")


def lagrange_coefficients(servers: Sequence[int], at: int = 0) -> tuple[int, ...]:
    """Return the factors that turn values at ``servers`` into the value at ``at``.

    Args:
        servers: distinct ids in 1..p-1; polynomials of degree below ``len(servers)``.
        at: evaluation point, 0 for the secret.

    Raises:
        ParameterError: ids repeat or are out of range.
    """
    if len(set(servers)) != len(servers) or not all(1 <= j < P for j in servers):
        raise ParameterError(f"server ids {list(servers)} are not distinct numbers in 1..{P - 1}")
    factors = []
    for i in servers:
        numerator = denominator = 1
        for j in servers:
            if j != i:
                numerator = numerator * (at - j) % P
                denominator = denominator * (i - j) % P
        factors.append(numerator * modp.inverse(denominator) % P)
    return tuple(factors)


def interpolate(
    shares: Mapping[int, NDArray[np.uint16]], threshold: int, at: int = 0
) -> NDArray[np.uint16]:
    """Return the value at ``at`` of the polynomial through the first ``threshold`` shares.

    Args:
        shares: uint16 arrays of one shape by server id, entries below p.
        threshold: t + 1 shares are used, the lowest ids first.
        at: evaluation point, 0 for the secret.

    Raises:
        NotEnoughAnswers: fewer than ``threshold`` shares.
    """
    if len(shares) < threshold:
        raise NotEnoughAnswers(
            f"{len(shares)} shares do not determine the secret (need {threshold})",
            have=len(shares),
            need=threshold,
        )
    servers = sorted(shares)[:threshold]
    factors = lagrange_coefficients(servers, at)
    total = np.zeros(shares[servers[0]].shape, np.uint64)
    for server, factor in zip(servers, factors, strict=True):
        total += shares[server].astype(np.uint64) * np.uint64(factor)
    return (total % np.uint64(P)).astype(np.uint16)
