"""Arithmetic modulo ``params.P`` on arrays.

Elements are stored as uint16 and computed in uint64; no function ever reduces a rounded number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mksearch.errors import FormatError, ParameterError
from mksearch.params import P

__all__ = ["add", "inverse", "matmul", "multiply", "require_elements", "subtract"]

Elements = NDArray[np.uint16]


def require_elements(values: NDArray[np.uint16], what: str) -> Elements:
    """Return ``values`` after proving that every entry is below p.

    Args:
        values: uint16, any shape.
        what: what the array is, for the message.

    Raises:
        FormatError: an entry is p or more, or the dtype is not uint16.
    """
    if values.dtype != np.uint16:
        raise FormatError(f"{what} has dtype {values.dtype}, not uint16")
    if values.size and int(values.max()) >= P:
        raise FormatError(f"{what} holds {int(values.max())}, which is not below {P}")
    return values


def add(a: Elements, b: Elements) -> Elements:
    """Add elementwise; uint16 arrays of one shape (or broadcastable), entries below p."""
    total = a.astype(np.uint32) + b
    return np.where(total >= P, total - P, total).astype(np.uint16)


def subtract(a: Elements, b: Elements) -> Elements:
    """Subtract elementwise; uint16 arrays of one shape (or broadcastable), entries below p."""
    return ((a.astype(np.uint32) + np.uint32(P) - b) % np.uint32(P)).astype(np.uint16)


def multiply(a: Elements, factor: int) -> Elements:
    """Multiply a uint16 array by one field element ``0 <= factor < p``."""
    return ((a.astype(np.uint32) * np.uint32(factor)) % np.uint32(P)).astype(np.uint16)


def matmul(a: NDArray[np.uint16], b: NDArray[np.uint16]) -> Elements:
    """Multiply matrices exactly: (m, n) @ (n, o) -> (m, o), uint16 below p.

    Products fit in 32 bits, so n may be up to 2**32 before a uint64 sum wraps.
    """
    return (a.astype(np.uint64) @ b.astype(np.uint64) % np.uint64(P)).astype(np.uint16)


def inverse(value: int) -> int:
    """Return the inverse of ``value`` modulo p.

    Raises:
        ParameterError: ``value`` is 0 modulo p.
    """
    if value % P == 0:
        raise ParameterError("0 has no inverse")
    return pow(value, -1, P)
