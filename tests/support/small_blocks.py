"""Trees of several levels over few documents: small blocks, and no segment read whole."""

from __future__ import annotations

import pytest

from mksearch.index.geometry import BlockShape
from mksearch.query import descent

__all__ = ["use_small_blocks"]


def use_small_blocks(patch: pytest.MonkeyPatch, fan_out: int = 5, n_checks: int = 3) -> None:
    """Have segments built with blocks of so many rows, and even the smallest tree descended."""
    patch.setattr(BlockShape.__init__, "__defaults__", (fan_out, n_checks))
    patch.setattr(descent, "_WHOLE_CELLS", 0)
    patch.setattr(descent, "_WHOLE_GUESSES", 0)
