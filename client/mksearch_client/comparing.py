"""What a publish changes: content hashes of what there is and of what is wanted, compared by id."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

__all__ = ["Changes", "compare"]


@dataclass(frozen=True)
class Changes:
    """What happens to the documents of a group, by id."""

    added: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()
    unchanged: frozenset[str] = frozenset()

    @property
    def incoming(self) -> frozenset[str]:
        """Documents that are read and encrypted."""
        return self.added | self.replaced

    @property
    def n_changes(self) -> int:
        """Documents that come or go."""
        return len(self.added) + len(self.replaced) + len(self.deleted)


def compare(
    held: Mapping[str, bytes],
    wanted: Mapping[str, bytes],
    vanished: Collection[str],
    *,
    delete_missing: bool,
) -> Changes:
    """Compare content hashes by id.

    Args:
        held: of the documents that are published.
        wanted: of the documents that should be.
        vanished: ids that go away where they are not wanted.
        delete_missing: every id that is not wanted goes away.
    """
    missing = held.keys() - wanted.keys()
    return Changes(
        frozenset(wanted.keys() - held.keys()),
        frozenset(i for i, digest in wanted.items() if held.get(i, digest) != digest),
        frozenset(missing if delete_missing else missing & set(vanished)),
        frozenset(i for i, digest in wanted.items() if held.get(i) == digest),
    )
