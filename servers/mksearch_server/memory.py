"""Memory that was freed goes back to the system: what is refused does not make a server grow.

By default glibc gives every thread an arena of its own, learns from the first large block to keep
others of its size, and returns nothing below the last block in use.  Refused uploads of some
megabytes then leave hundreds of them behind.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc

__all__ = ["bound_allocator", "collecting"]

#: Parameters of mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
#: Blocks from here on are mapped, and unmapped when they are freed.  Pieces of requests and answers
#: are smaller: mapping each of them anew takes longer than encrypting it.
_MAPPED_FROM_BYTES = 1 << 22
_KEPT_BYTES = 1 << 24
_N_ARENAS = 2
_PERIOD_S = 5.0


def bound_allocator() -> None:
    """Have the C library return freed memory; before the first thread.

    Other C libraries than glibc do not offer this and are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _N_ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


async def collecting() -> None:
    """Collect what calls have left, every few seconds, until cancelled.

    gRPC's calls end in cycles when a client hangs up, each with what was read or written ahead.
    Python counts objects, of which they have few, and would leave hundreds of megabytes there.
    """
    gc.collect()
    # What was loaded stays: looking through it each time would hold up requests.
    gc.freeze()
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while True:
        await asyncio.sleep(_PERIOD_S)
        gc.collect()
        if malloc_trim is not None:
            malloc_trim(0)
