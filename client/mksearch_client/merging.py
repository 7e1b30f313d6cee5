"""Which segments of a group to merge, as log-structured stores do: many small ones into one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

__all__ = ["SEGMENTS_A_TIER", "deleted_enough", "full_tiers", "tier"]

#: Segments of about one size that are left side by side.
SEGMENTS_A_TIER = 8
#: Documents of a segment of the lowest tier; each tier above has four times as many.
_TIER_DOCS = 256
_TIER_FACTOR = 4
#: Share of gone documents above which rewriting a segment pays.
_GONE_SHARE = 0.25


def tier(n_docs: int) -> int:
    """Return the class of size of a segment, from 0."""
    number = 0
    while n_docs >= _TIER_DOCS * _TIER_FACTOR**number:
        number += 1
    return number


def full_tiers(n_live: Sequence[int], n_added: int) -> set[int]:
    """Return the segments that are merged with documents that are added.

    A tier that would have ``SEGMENTS_A_TIER`` segments becomes one segment, of a higher tier as a
    rule, which may be full in turn.  So a collection of n documents has at most about
    8 log4(n / 256) segments, and every document is written anew some log4(n / 256) times.

    Args:
        n_live: live documents of each segment.
        n_added: documents added, 0 for none.
    """
    merged: set[int] = set()
    size = n_added
    while True:
        same = [
            at
            for at, n_docs in enumerate(n_live)
            if at not in merged and tier(n_docs) <= tier(size)
        ]
        if len(same) + 1 < SEGMENTS_A_TIER:
            return merged
        merged.update(same)
        size += sum(n_live[at] for at in same)


def deleted_enough(n_live: Sequence[int], n_gone: Sequence[int]) -> Collection[int]:
    """Return the segments of which so much is gone that rewriting them pays."""
    return {
        at
        for at, (live, gone) in enumerate(zip(n_live, n_gone, strict=True))
        if gone > _GONE_SHARE * (live + gone)
    }
