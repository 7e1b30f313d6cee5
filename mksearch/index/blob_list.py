"""The public list of a group's blobs (docs/protocol.md, section 6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mksearch.codec import ENVELOPE_BYTES, read_envelope, write_envelope
from mksearch.errors import FormatError

__all__ = ["ENTRY_BYTES", "BlobList"]

MAGIC = b"MKBLOBLS"
FORMAT = 1
_NAME_BYTES = 32
#: Of one blob.
ENTRY_BYTES = _NAME_BYTES + 8


@dataclass(frozen=True, slots=True)
class BlobList:
    """Names and sizes of the blobs of a group, in the clear.

    Attributes:
        blobs: (name of 32 bytes, size in bytes), by ascending name.
    """

    blobs: tuple[tuple[bytes, int], ...]

    @classmethod
    def of(cls, blobs: Iterable[tuple[bytes, int]]) -> BlobList:
        """Return the list of distinct ``blobs``, in order."""
        return cls(tuple(sorted(set(blobs))))

    def encode(self) -> bytes:
        """Return the file."""
        entries = (name + size.to_bytes(8, "big") for name, size in self.blobs)
        return write_envelope(MAGIC, FORMAT) + b"".join(entries)

    @classmethod
    def decode(cls, data: bytes) -> BlobList:
        """Decode the file.

        Raises:
            FormatError: damaged, or names that do not ascend.
            UnsupportedVersion: another format version.
        """
        read_envelope(data, MAGIC, FORMAT, "a blob list")
        size = ENTRY_BYTES
        if (len(data) - ENVELOPE_BYTES) % size:
            raise FormatError("a blob list is truncated")
        entries: Sequence[tuple[bytes, int]] = [
            (data[at : at + _NAME_BYTES], int.from_bytes(data[at + _NAME_BYTES : at + size], "big"))
            for at in range(ENVELOPE_BYTES, len(data), size)
        ]
        if any(a[0] >= b[0] for a, b in pairwise(entries)):
            raise FormatError("a blob list is not in ascending order")
        return cls(tuple(entries))
