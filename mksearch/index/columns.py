"""Which columns a term has at each level (docs/protocol.md, section 4.3).

The most frequent terms have a dedicated column each; every other term has one shared column in
each table.  Both placements are keyed, and the same in all segments of a policy group.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.bundle import ColumnKeys
from mksearch.crypto.kdf import keyed_hash_sha512
from mksearch.crypto.keystream import Domain
from mksearch.errors import ParameterError
from mksearch.index.geometry import LevelGeometry

__all__ = ["ColumnMap"]


class ColumnMap:
    """Columns of terms at every level of a policy group."""

    def __init__(
        self, keys: ColumnKeys, levels: Sequence[LevelGeometry], n_dedicated: Sequence[int]
    ) -> None:
        """Prepare the placement.

        Args:
            keys: the group's column keys.
            levels: geometry of each level.
            n_dedicated: for each level, terms with ids below it have a dedicated column.

        Raises:
            ParameterError: more dedicated terms than columns, or another number of levels.
        """
        if len(levels) != len(n_dedicated):
            raise ParameterError(f"{len(n_dedicated)} dedicated counts for {len(levels)} levels")
        for geometry, n_terms in zip(levels, n_dedicated, strict=True):
            if n_terms > geometry.dedicated:
                raise ParameterError(f"{n_terms} terms for {geometry.dedicated} dedicated columns")
        self.levels = tuple(levels)
        self.n_dedicated = tuple(n_dedicated)
        self._keys = keys
        self._orders: dict[int, NDArray[np.int64]] = {}

    def dedicated_columns(self, level: int) -> NDArray[np.int64]:
        """Return the column of each dedicated term id: int64 (n_dedicated,), secret."""
        if level not in self._orders:
            width = self.levels[level].dedicated
            order = self._keys.dedicated.permutation(Domain.DEDICATED_ORDER, level, width)
            self._orders[level] = order[: self.n_dedicated[level]]
        return self._orders[level]

    def shared_columns(self, level: int, term: str) -> list[int]:
        """Return the column of ``term`` in each table: ``n_tables`` numbers, secret."""
        columns: list[int] = self._shared(level, [term])[0].tolist()
        return columns

    def _shared(self, level: int, terms: Sequence[str]) -> NDArray[np.int64]:
        """Return the column of each term in each table: int64 (n_terms, n_tables), secret."""
        geometry = self.levels[level]
        key, head = self._keys.shared, bytes((level,))
        digests = b"".join([keyed_hash_sha512(key, head + term.encode()) for term in terms])
        words = np.frombuffer(digests, ">u8").reshape(len(terms), 8)[:, : geometry.n_tables]
        within = (words % np.uint64(geometry.table)).astype(np.int64)
        starts = geometry.dedicated + geometry.table * np.arange(geometry.n_tables)
        return within + starts

    def columns_of(self, level: int, term_id: int, term: str) -> list[int]:
        """Return every column of one term at ``level``: one, or one a table; secret."""
        if term_id < self.n_dedicated[level]:
            return [int(self.dedicated_columns(level)[term_id])]
        return self.shared_columns(level, term)

    def table(
        self, level: int, terms: Sequence[str], used: NDArray[np.integer] | None = None
    ) -> NDArray[np.int32]:
        """Return the columns of a whole vocabulary: int32 (n_terms, n_tables), secret.

        A dedicated term has its column first and -1 after it.

        Args:
            level: the level.
            terms: term of each id.
            used: ids of terms, ascending, whose columns are wanted; None for all.  The others
                have -1.
        """
        n_tables = self.levels[level].n_tables
        columns = np.full((len(terms), n_tables), -1, np.int32)
        dedicated = self.dedicated_columns(level)[: len(terms)]
        columns[: len(dedicated), 0] = dedicated
        wanted = np.arange(len(terms)) if used is None else used
        shared = wanted[wanted >= len(dedicated)]
        columns[shared] = self._shared(level, [terms[term] for term in shared.tolist()])
        return columns
