"""F_p, Shamir shares, Lagrange interpolation (sections 1, 8.2, 8.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

P = 65521


def lagrange(ids: Sequence[int], at: int) -> list[int]:
    """Return the coefficients that take the values of a polynomial at `ids` to that at `at`."""
    if len(set(ids)) != len(ids):
        raise ValueError("server ids are repeated")
    out = []
    for i in ids:
        above, below = 1, 1
        for j in ids:
            if j != i:
                above = above * (at - j) % P
                below = below * (i - j) % P
        out.append(above * pow(below, -1, P) % P)
    return out


def shamir(secret: Sequence[int], coefficients: Sequence[Sequence[int]], server: int) -> list[int]:
    """Return secret + sum over m of coefficients[m - 1] * server^m, entry by entry."""
    out = [value % P for value in secret]
    for m, vector in enumerate(coefficients, start=1):
        if len(vector) != len(secret):
            raise ValueError(f"coefficient {m} has {len(vector)} entries, not {len(secret)}")
        power = pow(server, m, P)
        out = [(value + c * power) % P for value, c in zip(out, vector, strict=True)]
    return out


def interpolate(values: Mapping[int, Sequence[int]], at: int) -> list[int]:
    """Return the value at `at` of the polynomials with these values at the keys."""
    ids = list(values)
    weights = lagrange(ids, at)
    columns = zip(*(values[i] for i in ids), strict=True)
    return [sum(w * v for w, v in zip(weights, column, strict=True)) % P for column in columns]
