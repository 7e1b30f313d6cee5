"""Pairings of charm-crypto, to compare with: weak curves, never fed bytes from outside.

Its policies, span programs and schemes are not used at all (docs/decisions/0011).  It installs
where the PBC library is.  This is the only importer.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, Self, TypeVar

from mksearch.access.pairing import G1, G2, GT, Element, PairingGroup, require_strong
from mksearch.errors import FormatError, ParameterError

__all__ = ["SECURITY_BITS", "CharmGroup"]

#: Curves of charm-crypto, and about how many bits of security each has.
SECURITY_BITS = {"SS512": 80, "MNT224": 96, "BN254": 100}

_Source = TypeVar("_Source", G1, G2)


class _CharmElement(Element):
    __slots__ = ("group", "native")

    def __init__(self, group: CharmGroup, native: Any) -> None:
        self.group, self.native = group, native

    def __mul__(self, other: Self) -> Self:
        if type(other) is not type(self):
            raise ParameterError(f"{type(other).__name__} is no element of this group")
        return type(self)(self.group, self.native * other.native)

    def __pow__(self, exponent: int) -> Self:
        return type(self)(self.group, self.native ** self.group.exponent(exponent))

    def inverse(self) -> Self:
        return type(self)(self.group, self.native**-1)

    def encode(self) -> bytes:
        return bytes(self.group.native.serialize(self.native))

    @property
    def is_identity(self) -> bool:
        return bool(self.native == self.native * self.native)


class _CharmG1(_CharmElement, G1):
    __slots__ = ()


class _CharmG2(_CharmElement, G2):
    __slots__ = ()


class _CharmGT(_CharmElement, GT):
    __slots__ = ()


class CharmGroup(PairingGroup):
    """A curve of charm-crypto, refused as too weak unless ``allow_weak``."""

    def __init__(self, name: str = "SS512", *, allow_weak: bool = False) -> None:
        """Load the curve.

        Raises:
            ParameterError: the curve is unknown or has under 112 bits.
            ImportError: charm-crypto is not installed.
        """
        if name not in SECURITY_BITS:
            raise ParameterError(f"{name} is none of {', '.join(SECURITY_BITS)}")
        require_strong(name, SECURITY_BITS[name], allow_weak=allow_weak)
        from charm.toolbox import pairinggroup  # noqa: PLC0415 - the weak are refused without it

        self.name, self.security_bits, self._charm = name, SECURITY_BITS[name], pairinggroup
        self.native: Any = pairinggroup.PairingGroup(name)
        self.order = int(self.native.order())
        # Generators by hashing: nobody knows a relation between them.
        self._g1 = _CharmG1(self, self.native.hash(b"mksearch g1", pairinggroup.G1))
        self._g2 = _CharmG2(self, self.native.hash(b"mksearch g2", pairinggroup.G2))
        self.g1_bytes, self.g2_bytes = len(self._g1.encode()), len(self._g2.encode())

    def exponent(self, value: int) -> Any:
        """Return a number of 0..order-1 as the library's; it would reduce any other."""
        if not 0 <= value < self.order:
            raise ParameterError("an exponent is not below the order of the group")
        return self.native.init(self._charm.ZR, value)

    @property
    def g1(self) -> G1:
        """Generator of the first group."""
        return self._g1

    @property
    def g2(self) -> G2:
        """Generator of the second group."""
        return self._g2

    def hash_to_g1(self, message: bytes, tag: bytes) -> G1:
        """Hash in the library's own way, the tag in front."""
        framed = len(tag).to_bytes(1, "big") + tag + message
        return _CharmG1(self, self.native.hash(framed, self._charm.G1))

    def multi_power(self, bases: Sequence[_Source], exponents: Sequence[int]) -> _Source:
        """Return the product of powers."""
        if not bases or len(bases) != len(exponents):
            raise ParameterError(f"{len(bases)} bases have {len(exponents)} exponents")
        product = bases[0] ** exponents[0]
        for base, exponent in zip(bases[1:], exponents[1:], strict=True):
            product *= base**exponent
        return product

    def pair(self, pairs: Sequence[tuple[G1, G2]]) -> GT:
        """Return the product of pairings."""
        if not pairs:
            raise ParameterError("there is nothing to pair")
        natives: Any = pairs
        products = [self._charm.pair(a.native, b.native) for a, b in natives]
        return _CharmGT(self, functools.reduce(operator.mul, products))

    def decode_g1(self, data: bytes, what: str) -> G1:
        """Refuse."""
        raise FormatError(f"{what} of {len(data)} bytes: charm-crypto checks no points")

    def decode_g2(self, data: bytes, what: str) -> G2:
        """Refuse."""
        raise FormatError(f"{what} of {len(data)} bytes: charm-crypto checks no points")
