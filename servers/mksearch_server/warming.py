"""Read a version's cells from the disk before somebody asks, beside the searches that do ask.

A server answers as soon as its segments are mapped, which costs the same for every size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from mksearch.index.segment import SegmentReader

__all__ = ["warm"]

_PAGE_BYTES = 4096
#: Elements of two bytes in a page.
_STEP = _PAGE_BYTES // 2
#: Elements between two looks at whether to stop.
_PIECE = 1 << 24
#: Share of the machine's memory that is read ahead at most: more would drive itself out again.
_MEMORY_SHARE = 0.5


def warm(
    segments: Iterable[SegmentReader],
    is_stopped: Callable[[], bool],
    *,
    n_bytes_max: int | None = None,
) -> int:
    """Touch every page of the segments, the levels first; return the bytes touched.

    Args:
        segments: mapped.
        is_stopped: asked often; True ends the work.
        n_bytes_max: where to end; None for half of the machine's memory.
    """
    if n_bytes_max is None:
        n_bytes_max = int(_MEMORY_SHARE * _memory_bytes())
    n_touched = 0
    readers = list(segments)
    levels = [(r, n) for r in readers for n in range(len(r.header.layout.levels))]
    sections = [reader.level(level) for reader, level in levels]
    sections += [reader.slots() for reader in readers]
    for section in sections:
        flat = section.reshape(-1)
        for start in range(0, len(flat), _PIECE):
            if is_stopped() or n_touched >= n_bytes_max:
                return n_touched
            piece = flat[start : start + _PIECE]
            # NumPy lets other threads run while the disk is waited for.
            piece[::_STEP].max()
            n_touched += piece.nbytes
    return n_touched


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 1 << 62
