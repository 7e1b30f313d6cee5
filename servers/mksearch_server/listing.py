"""What a version consists of, by name: in the manifest, and in its lists of blobs."""

from __future__ import annotations

from collections.abc import Collection

from mksearch.index.blob_list import BlobList, Names, names_of, split_names
from mksearch.index.manifest import Manifest

__all__ = ["Listing"]


class Listing:
    """Names and sizes of everything that a version lists, as far as its lists are known.

    Attributes:
        segments: names of its segments.
        named: size by name of what the manifest itself lists.
        list_names: names of its lists of blobs.
        lists: of these the ones that are known.
    """

    def __init__(self, manifest: Manifest) -> None:
        """Begin with what the manifest lists."""
        self.segments = {segment.id for segment in manifest.segments()}
        self.named = {segment.id: segment.size for segment in manifest.segments()}
        self.named |= {reference.id: reference.size for reference in manifest.objects()}
        self.list_names = {group.blobs.id for group in manifest.groups}
        self.lists: dict[bytes, BlobList] = {}

    def add_list(self, name: bytes, blobs: BlobList) -> None:
        """Take one of the version's lists of blobs."""
        self.lists[name] = blobs

    def size(self, name: bytes) -> int | None:
        """Return the size of an object in bytes, None for one that is not listed."""
        found = [self.named.get(name), *(blobs.size_of(name) for blobs in self.lists.values())]
        return next((size for size in found if size is not None), None)

    def without(self, names: Names) -> Names:
        """Return those of some names that are not listed."""
        for blobs in self.lists.values():
            names = names[~blobs.has(names)]
        return names_of([name for name in split_names(names) if name not in self.named])

    def beyond(self, other: Listing | None) -> list[bytes]:
        """Return the names that ``other`` does not list; all of them for None."""
        found = list(self.named)
        for name, blobs in self.lists.items():
            if other is None:
                found += split_names(blobs.names)
            # Most lists, and most blobs of another list, are those of the version before.
            elif name not in other.lists:
                found += split_names(other.without(blobs.names))
        if other is not None:
            found = split_names(other.without(names_of(found)))
        return list(dict.fromkeys(found))

    def drop_from(self, names: Collection[bytes]) -> set[bytes]:
        """Return those of some names that are not listed."""
        return set(split_names(self.without(names_of(list(names)))))
