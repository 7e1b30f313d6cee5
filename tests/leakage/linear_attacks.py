"""The known-plaintext attack on secure-kNN indexes, and the scheme that it breaks.

Scheme: Wong, Cheung, Kao and Mamoulis, Secure kNN computation on encrypted databases (SIGMOD
2009), with both of its defences: every vector is split in two by a secret pattern, each half is
multiplied by a secret matrix.  Here over F_p, so that everything is exact and the same solver can
be run on what a server of this product holds.  Attack: whoever knows enough plaintexts solves for
the queries from the products that the server computes, and then for every other plaintext from the
same products (Yao, Li and Xiao, ICDE 2013, and those after them).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mksearch.params import P

__all__ = ["SecureKnn", "recover_from_products", "smallness_auc", "solve"]

Ints = NDArray[np.int64]


def product(a: Ints, b: Ints) -> Ints:
    """Multiply matrices mod p, exactly: 2**13 products of two numbers below 2**16 fit in int64."""
    assert a.shape[-1] < 1 << 30
    out: Ints = (a @ b) % P
    return out


def solve(equations: Ints, right: Ints) -> Ints:
    """Solve ``equations @ x = right`` mod p: what is not determined is 0, contradictions fall out.

    Args:
        equations: (n_equations, n_unknowns), below p.
        right: (n_equations, n_systems), below p.

    Returns:
        (n_unknowns, n_systems).
    """
    n_unknowns = equations.shape[1]
    table = np.concatenate([equations, right], axis=1) % P
    row, pivots = 0, []
    for column in range(n_unknowns):
        found = np.flatnonzero(table[row:, column])
        if not len(found):
            continue
        at = row + int(found[0])
        table[[row, at]] = table[[at, row]]
        table[row] = table[row] * pow(int(table[row, column]), -1, P) % P
        factors = table[:, column].copy()
        factors[row] = 0
        table = (table - factors[:, None] * table[row]) % P
        pivots.append(column)
        row += 1
        if row == len(table):
            break
    out = np.zeros((n_unknowns, right.shape[1]), np.int64)
    out[pivots] = table[: len(pivots), n_unknowns:]
    return out


def recover_from_products(known: Ints, of_known: Ints, of_unknown: Ints) -> tuple[Ints, Ints]:
    """Run the attack on products alone.

    Args:
        known: (n_known, d), plaintexts that the attacker has.
        of_known: (n_known, n_queries), what the server computes for them.
        of_unknown: (n_unknown, n_queries), what it computes for the others.

    Returns:
        guesses of the queries (n_queries, d) and of the other plaintexts (n_unknown, d).
    """
    queries = solve(known, of_known).T
    return queries, solve(queries, of_unknown.T).T


class SecureKnn:
    """An index of vectors by the scheme, and trapdoors for it."""

    def __init__(self, n_columns: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self._pattern = rng.integers(0, 2, n_columns).astype(bool)
        self._matrices = [rng.integers(0, P, (n_columns, n_columns)) for _ in range(2)]
        identity = np.eye(n_columns, dtype=np.int64)
        self._inverses = [solve(matrix, identity) for matrix in self._matrices]
        for matrix, inverse in zip(self._matrices, self._inverses, strict=True):
            assert np.array_equal(product(matrix, inverse), identity), "singular: another seed"

    def _split(self, vectors: Ints, where: NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """Split entries at random where the pattern says so, repeat them elsewhere."""
        drawn = self._rng.integers(0, P, vectors.shape)
        return np.where(where, drawn, vectors), np.where(where, (vectors - drawn) % P, vectors)

    def index(self, vectors: Ints) -> list[Ints]:
        """Encrypt rows (n, d)."""
        halves = self._split(vectors, self._pattern)
        return [product(half, matrix) for half, matrix in zip(halves, self._matrices, strict=True)]

    def trapdoors(self, queries: Ints) -> list[Ints]:
        """Encrypt queries (n, d)."""
        halves = self._split(queries, ~self._pattern)
        return [
            product(inverse, half.T) for half, inverse in zip(halves, self._inverses, strict=True)
        ]

    @staticmethod
    def products(index: list[Ints], trapdoors: list[Ints]) -> Ints:
        """Compute what the server ranks by: (n_rows, n_queries), the true inner products."""
        return sum(product(i, t) for i, t in zip(index, trapdoors, strict=True)) % P  # type: ignore[return-value]


def smallness_auc(guess: Ints, is_there: NDArray[np.bool_]) -> tuple[float, float]:
    """Judge a guess of which entries are not 0, true entries being small numbers.

    Returns:
        the chance that an entry that is there is guessed a smaller number, apart from 0, than one
        that is not, and the standard deviation of that chance under blind guessing.
    """
    # An entry that is guessed to be 0 counts as absent.
    value = np.where(guess == 0, P, guess).reshape(-1)
    order = np.argsort(value, kind="stable")
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    there = is_there.reshape(-1)
    n_there, n_absent = int(there.sum()), int((~there).sum())
    below = int(ranks[there].sum()) - n_there * (n_there - 1) // 2
    deviation = float(np.sqrt((n_there + n_absent + 1) / (12 * n_there * n_absent)))
    return 1 - below / (n_there * n_absent), deviation
