"""Whether bytes are the object of a name: what is stored and what is fetched is proved here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.kdf import sha256
from mksearch.errors import FormatError
from mksearch.index.segment import SegmentReader

__all__ = ["require_object"]


def require_object(name: bytes, data: NDArray[np.uint8], *, is_segment: bool) -> None:
    """Prove an object.

    Args:
        name: 32 bytes: SHA-256 of a segment's header, or of all of anything else.
        data: uint8 (size,), whole; may be mapped.
        is_segment: which of the two it is.

    Raises:
        FormatError: the bytes are not the object of this name.
    """
    if is_segment:
        segment = SegmentReader(data)
        segment.verify()
        found = segment.id
    else:
        found = sha256(data.data)
    if found != name:
        raise FormatError(f"bytes came that are not object {name.hex()[:16]}")
