"""Read a version's cells from the disk before somebody asks, beside the searches that do ask.

A server answers as soon as its segments are mapped, which costs the same for every size.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from mksearch.index.geometry import LevelGeometry
from mksearch.index.segment import SegmentReader
from mksearch.params import PANEL_UNIT

if TYPE_CHECKING:
    from mksearch.scoring.engine import Engine

__all__ = ["load_loops", "warm"]

#: Bytes between two looks at whether to stop.
_PIECE_BYTES = 1 << 25
#: Share of the machine's memory that is read ahead at most: more would drive itself out again.
_MEMORY_SHARE = 0.5


def load_loops(engine: Engine) -> None:
    """Compile or load the loops of an engine, so that the first query does not wait for them."""
    from mksearch.scoring.selecting import select_groups

    geometry = LevelGeometry(PANEL_UNIT, PANEL_UNIT)
    zeros = np.zeros((8, geometry.width), np.uint16)
    # As mapped files are: compiled code tells apart arrays that may not be written.
    zeros.flags.writeable = False
    for n_vectors in (1, len(zeros)):
        engine.score(zeros, geometry, zeros[:n_vectors])
    select_groups(engine, zeros, np.zeros((1, len(zeros)), np.uint16), 1)


def warm(
    segments: Iterable[SegmentReader],
    is_stopped: Callable[[], bool],
    *,
    n_bytes_max: int | None = None,
) -> int:
    """Read every page of the segments, the levels first; return the bytes read.

    Args:
        segments: mapped.
        is_stopped: asked often; True ends the work.
        n_bytes_max: where to end; None for half of the machine's memory.
    """
    if n_bytes_max is None:
        n_bytes_max = int(_MEMORY_SHARE * _memory_bytes())
    readers = list(segments)
    sections = [r.level(n) for r in readers for n in range(len(r.header.layout.levels))]
    sections += [reader.slots() for reader in readers]
    n_read = 0
    for section in sections:
        data = section.reshape(-1).view(np.uint8)
        for start in range(0, len(data), _PIECE_BYTES):
            if is_stopped() or n_read >= n_bytes_max:
                return n_read
            piece = data[start : start + _PIECE_BYTES]
            # NumPy lets other threads run while the disk is waited for.
            piece[:: mmap.PAGESIZE].max()
            n_read += len(piece)
    return n_read


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 1 << 62
