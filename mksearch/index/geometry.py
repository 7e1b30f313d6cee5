"""Shapes of blocks and levels (docs/protocol.md, sections 4.2 and 4.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mksearch.errors import ParameterError
from mksearch.params import (
    BLOCK_ROWS_MAX,
    COLUMNS_PER_TERM,
    D0_MAX,
    D0_MIN,
    FAN_OUT,
    N_CHECKS,
    N_LEVELS_MAX,
    N_TABLES,
    N_TABLES_MAX,
    NODE_WIDTH_FACTOR,
    PANEL_UNIT,
    TOP_WIDTH_FACTOR,
)

__all__ = ["BlockShape", "LevelGeometry", "choose_geometry"]


def _panel_ceil(n_columns: int) -> int:
    return max(PANEL_UNIT, -(-n_columns // PANEL_UNIT) * PANEL_UNIT)


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Data rows and check rows of one block; physical rows count both.

    Attributes:
        fan_out: data rows, at least 2.
        n_checks: check rows, at least 1; the sum is a multiple of 8 and at most 512.
    """

    fan_out: int = FAN_OUT
    n_checks: int = N_CHECKS

    def __post_init__(self) -> None:
        if self.fan_out < 2 or self.n_checks < 1 or self.height % 8 or self.height > BLOCK_ROWS_MAX:
            raise ParameterError(
                f"a block of {self.fan_out} data and {self.n_checks} check rows is not supported",
                cure=f"their sum must be a multiple of 8 and at most {BLOCK_ROWS_MAX}",
            )

    @property
    def height(self) -> int:
        """Physical rows of a block."""
        return self.fan_out + self.n_checks

    def n_blocks(self, n_rows: int) -> int:
        """Return the blocks that hold ``n_rows`` data rows; at least 1."""
        return max(1, -(-n_rows // self.fan_out))

    def physical_rows(self, n_rows: int) -> int:
        """Return the physical rows of a level with ``n_rows`` data rows."""
        return self.n_blocks(n_rows) * self.height

    def physical(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the physical rows of data rows: int64 in, int64 out, any shape."""
        return rows // self.fan_out * self.height + rows % self.fan_out

    def level_rows(self, n_rows: int) -> list[int]:
        """Return the number of data rows of every level, from the documents to the root's block.

        Raises:
            ParameterError: more levels than the format carries.
        """
        rows = [max(1, n_rows)]
        while self.n_blocks(rows[-1]) > 1:
            rows.append(self.n_blocks(rows[-1]))
        if len(rows) > N_LEVELS_MAX:
            raise ParameterError(
                f"{n_rows} rows need {len(rows)} levels (at most {N_LEVELS_MAX})",
                cure="use a larger fan-out",
            )
        return rows


@dataclass(frozen=True, slots=True)
class LevelGeometry:
    """Panels of one level: one dedicated, then ``n_tables`` tables of shared columns.

    Attributes:
        dedicated: width of the dedicated panel, a multiple of 64.
        table: width of each table, a multiple of 64.
        n_tables: h, 1..8.
    """

    dedicated: int
    table: int
    n_tables: int = N_TABLES

    def __post_init__(self) -> None:
        for width in (self.dedicated, self.table):
            if width < PANEL_UNIT or width % PANEL_UNIT:
                raise ParameterError(
                    f"a panel of {width} columns is not supported",
                    cure=f"widths are multiples of {PANEL_UNIT}",
                )
        if not 1 <= self.n_tables <= N_TABLES_MAX:
            raise ParameterError(f"{self.n_tables} tables are not in 1..{N_TABLES_MAX}")

    @property
    def width(self) -> int:
        """Columns of the level: D."""
        return self.dedicated + self.n_tables * self.table

    def table_of(self, columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the table of each column, -1 for a dedicated one: int64 in, int64 out."""
        return np.where(columns < self.dedicated, -1, (columns - self.dedicated) // self.table)


def choose_geometry(
    mean_terms: float, n_terms: int, n_levels: int, n_tables: int = N_TABLES
) -> list[LevelGeometry]:
    """Choose the widths of every level from what the corpus looks like.

    Args:
        mean_terms: distinct terms of a mean row.
        n_terms: size of the vocabulary; no level is wider than it can use.
        n_levels: levels wanted, at least 1.
        n_tables: h.

    Returns:
        one geometry a level: about 72 columns a term of a mean row, 4 times that for the
        lowest nodes and 16 times for those above them.
    """
    target = round(COLUMNS_PER_TERM * mean_terms / D0_MIN) * D0_MIN
    target = min(max(target, D0_MIN), D0_MAX)
    levels = []
    for level in range(n_levels):
        wanted = target * (1, NODE_WIDTH_FACTOR, TOP_WIDTH_FACTOR)[min(level, 2)]
        if _panel_ceil(n_terms) + PANEL_UNIT * n_tables <= wanted:
            levels.append(LevelGeometry(_panel_ceil(n_terms), PANEL_UNIT, n_tables))
        else:
            width = _panel_ceil(-(-wanted // (1 + n_tables)))
            levels.append(LevelGeometry(width, width, n_tables))
    return levels
