"""The public list of a group's blobs (docs/protocol.md, section 6)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mksearch.codec import ENVELOPE_BYTES, read_envelope, write_envelope
from mksearch.errors import FormatError

__all__ = ["ENTRY_BYTES", "BlobList", "Names", "names_of", "split_names"]

MAGIC = b"MKBLOBLS"
FORMAT = 1
_NAME_BYTES = 32
#: Of one blob.
ENTRY_BYTES = _NAME_BYTES + 8
_ENTRY = np.dtype([("name", f"S{_NAME_BYTES}"), ("size", ">u8")])
#: Names as one array: NumPy hides zeros at the end of a single one, but compares all 32 bytes.
Names = NDArray[np.bytes_]


def names_of(names: Collection[bytes]) -> Names:
    """Return names (32 bytes each) as an array, in their order."""
    return np.frombuffer(b"".join(names), f"S{_NAME_BYTES}")


def split_names(names: Names) -> list[bytes]:
    """Return the names of an array, 32 bytes each."""
    joined = names.tobytes()
    return [joined[at : at + _NAME_BYTES] for at in range(0, len(joined), _NAME_BYTES)]


class BlobList:
    """Names and sizes of the blobs of a group, in the clear; a million of them are one array."""

    def __init__(self, names: Names, sizes: NDArray[np.uint64]) -> None:
        """Take names in strictly ascending order, and the size in bytes of each."""
        self._names = names
        self._sizes = sizes

    def __eq__(self, other: object) -> bool:
        """Tell whether two lists have the same blobs."""
        return isinstance(other, BlobList) and self.encode() == other.encode()

    def __hash__(self) -> int:
        """Return a hash of the blobs."""
        return hash(self.encode())

    def __len__(self) -> int:
        return len(self._names)

    @classmethod
    def of(cls, blobs: Iterable[tuple[bytes, int]]) -> BlobList:
        """Return the list of distinct ``blobs``, in order."""
        ordered = sorted(set(blobs))
        sizes = np.array([size for _, size in ordered], np.uint64)
        return cls(names_of([name for name, _ in ordered]), sizes)

    @cached_property
    def blobs(self) -> tuple[tuple[bytes, int], ...]:
        """(name of 32 bytes, size in bytes), by ascending name."""
        return tuple(zip(split_names(self._names), self._sizes.tolist(), strict=True))

    def size_of(self, name: bytes) -> int | None:
        """Return the size of a blob; None for one that is not listed, and for what is no name."""
        if len(name) != _NAME_BYTES:
            return None
        wanted = names_of([name])
        at = int(np.searchsorted(self._names, wanted)[0])
        if at == len(self) or self._names[at] != wanted[0]:
            return None
        return int(self._sizes[at])

    def has(self, names: Names) -> NDArray[np.bool_]:
        """Tell of each of some names whether it is listed: bool (n,)."""
        if not len(self):
            return np.zeros(len(names), bool)
        at = np.minimum(np.searchsorted(self._names, names), len(self) - 1)
        found: NDArray[np.bool_] = self._names[at] == names
        return found

    @property
    def names(self) -> Names:
        """All names, ascending."""
        return self._names

    @property
    def sizes(self) -> NDArray[np.uint64]:
        """Size in bytes of each."""
        return self._sizes

    def changed(self, gone: Collection[bytes], come: Iterable[tuple[bytes, int]]) -> BlobList:
        """Return the list without some blobs, and with others that it may have already."""
        added = BlobList.of(come)
        out = BlobList.of((name, 0) for name in gone)
        stays = ~(added.has(self._names) | out.has(self._names))
        names = np.concatenate([self._names[stays], added.names])
        sizes = np.concatenate([self._sizes[stays], added.sizes])
        order = np.argsort(names, kind="stable")
        return BlobList(names[order], sizes[order])

    def encode(self) -> bytes:
        """Return the file."""
        entries = np.empty(len(self), _ENTRY)
        entries["name"], entries["size"] = self._names, self._sizes
        return write_envelope(MAGIC, FORMAT) + entries.tobytes()

    @classmethod
    def decode(cls, data: bytes) -> BlobList:
        """Decode the file.

        Raises:
            FormatError: damaged, or names that do not ascend.
            UnsupportedVersion: another format version.
        """
        read_envelope(data, MAGIC, FORMAT, "a blob list")
        if (len(data) - ENVELOPE_BYTES) % ENTRY_BYTES:
            raise FormatError("a blob list is truncated")
        entries = np.frombuffer(data, _ENTRY, offset=ENVELOPE_BYTES)
        names = np.ascontiguousarray(entries["name"])
        if (names[:-1] >= names[1:]).any():
            raise FormatError("a blob list is not in ascending order")
        return cls(names, entries["size"].astype(np.uint64))
