"""BLS12-381 by py_ecc, in the encodings of section 11; slow, not the product's library.

Points are (x, y, z) of py_ecc; nothing of its types leaves this module but as opaque values.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from py_ecc import optimized_bls12_381 as _curve
from py_ecc.bls.hash_to_curve import hash_to_G1
from py_ecc.bls.point_compression import compress_G1, compress_G2, decompress_G1, decompress_G2

from .refused import Refused, require

# py_ecc raises the interpreter's limit far beyond its stack: deeply nested JSON, which the product
# refuses, would end the process.  This is what Python starts with.
sys.setrecursionlimit(1000)

_LIBRARY: Any = _curve

R = 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001
Q: int = _LIBRARY.field_modulus
G1: Any = _LIBRARY.G1
G2: Any = _LIBRARY.G2
SIZES = {1: 48, 2: 96}

Point = Any
"""A point of G1 or G2."""


def power(point: Point, exponent: int) -> Point:
    """Return a point to a power, in the multiplicative notation of the text."""
    return _LIBRARY.multiply(point, exponent % R)


def times(points: Iterable[Point]) -> Point:
    """Return the product of at least one point."""
    first, *others = points
    for other in others:
        first = _LIBRARY.add(first, other)
    return first


def inverse(point: Point) -> Point:
    """Return the inverse of a point."""
    return _LIBRARY.neg(point)


def is_equal(a: Point, b: Point) -> bool:
    """Tell whether two points are the same."""
    return bool(_LIBRARY.eq(a, b))


def is_identity(point: Point) -> bool:
    """Tell whether a point is the identity."""
    return bool(_LIBRARY.is_inf(point))


def encode(point: Point) -> bytes:
    """Return point(P): 48 bytes in G1, 96 in G2."""
    if isinstance(point[0], type(G1[0])):
        return int(compress_G1(point)).to_bytes(48, "big")
    return b"".join(int(half).to_bytes(48, "big") for half in compress_G2(point))


@cache
def decode(data: bytes, group: int) -> Point:
    """Decode a point of G1 (1) or G2 (2); refuse at 11.6.5."""
    require(len(data) == SIZES[group], "11.6.2", "a point of another length")
    halves: Any = tuple(int.from_bytes(data[at : at + 48], "big") for at in range(0, len(data), 48))
    try:
        point: Any = decompress_G1(halves[0]) if group == 1 else decompress_G2(halves)
    except ValueError as error:
        raise Refused("11.6.5", f"not on the curve: {error}") from error
    require(not is_identity(point), "11.6.5", "the identity")
    require(encode(point) == data, "11.6.5", "another encoding of the point")
    require(is_identity(_LIBRARY.multiply(point, R)), "11.6.5", "outside the subgroup")
    return point


@cache
def hash_to_curve(message: bytes, tag: bytes) -> Point:
    """Hash to G1 by BLS12381G1_XMD:SHA-256_SSWU_RO_ of RFC 9380."""
    function: Any = hashlib.sha256
    return hash_to_G1(message, tag, function)


def pair(pairs: Sequence[tuple[Point, Point]]) -> Any:
    """Return the product of pairings e(a, b), a in G1 and b in G2."""
    product: Any = _LIBRARY.FQ12.one()
    for a, b in pairs:
        product = product * _LIBRARY.pairing(b, a, final_exponentiate=False)
    # py_ecc takes the Miller loop for the absolute value of the curve's parameter, which is
    # negative, and raises to (q^12 - 1) / r: the inverse, and without the factor 3.
    return _LIBRARY.final_exponentiate(product) ** (R - 3)


def gt(element: Any) -> bytes:
    """Return gt(E): py_ecc's twelve coefficients of powers of w, sorted into the tower."""
    flat = [int(coefficient) for coefficient in element.coeffs]
    out = b""
    for i in range(2):
        for j in range(3):
            # u = w^6 - 1, so a + b u at v^j w^i is (a - b) at w^(2j + i) and b at w^(2j + i + 6).
            low, high = flat[2 * j + i], flat[2 * j + i + 6]
            out += ((low + high) % Q).to_bytes(48, "little") + high.to_bytes(48, "little")
    return out
