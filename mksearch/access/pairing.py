"""Groups with a pairing, and BLS12-381 by arkworks: the only importer of the library.

Elements are written multiplicatively, as in docs/protocol.md, section 11: ``a * b`` is the group
law of each of the three groups and ``a ** k`` repeats it.  What the library leaves to its caller
is settled here:

* its ``+`` of GT is the addition of the field, its ``*`` the group law; only the latter is to be
  had, and exponentiation is added;
* GT cannot be decoded, so it never goes over a wire;
* it reads several encodings of the identity, and of nothing else; every encoding is compared with
  the one it would write, and the identity is refused;
* it cuts the longer of two lists that are multiplied; lengths are compared;
* it reduces numbers modulo the order; numbers out of range are refused.

Nothing here runs in constant time (docs/threat-model.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce
from operator import mul
from typing import Any, Final, Self, TypeVar, final

import py_arkworks_bls12381 as ark
from py_arkworks_bls12381 import G1Point, G2Point, Scalar

from mksearch.errors import FormatError, ParameterError
from mksearch.params import GROUP_BITS_MIN

__all__ = [
    "BLS12_381",
    "G1",
    "G2",
    "GT",
    "ArkworksGroup",
    "Element",
    "PairingGroup",
    "require_strong",
]

_WINDOW_BITS = 4
#: Above this many bits, powers are cheaper together than one by one.
_SHORT_BITS = 64


class Element(ABC):
    """An element of one of the three groups; it may be secret, so it does not show itself."""

    __slots__ = ()

    @abstractmethod
    def __mul__(self, other: Self) -> Self:
        """Apply the group law.

        Raises:
            ParameterError: ``other`` is not of the same group.
        """

    @abstractmethod
    def __pow__(self, exponent: int) -> Self:
        """Repeat the group law ``exponent`` times, 0..order-1.

        Raises:
            ParameterError: the exponent is out of range: it is never reduced.
        """

    @abstractmethod
    def inverse(self) -> Self:
        """Return what gives the identity together with this element."""

    @abstractmethod
    def encode(self) -> bytes:
        """Return the one encoding of this element."""

    @property
    @abstractmethod
    def is_identity(self) -> bool:
        """Whether this is the neutral element, which is never sent."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.encode() == other.encode()

    def __hash__(self) -> int:
        return hash(self.encode())

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<redacted>)"

    def __reduce__(self) -> str:
        raise TypeError("elements of groups may be keys and are never pickled")


class G1(Element):
    """An element of the first group."""

    __slots__ = ()


class G2(Element):
    """An element of the second group."""

    __slots__ = ()


class GT(Element):
    """An element of the target group: always secret, never decoded."""

    __slots__ = ()


_Source = TypeVar("_Source", G1, G2)


class PairingGroup(ABC):
    """Three groups of one prime order and a pairing of the first two into the third.

    Attributes:
        name: of the curve.
        order: the prime.
        security_bits: rough cost of the best known attack, base 2.
        g1_bytes: size of an encoded element of the first group.
        g2_bytes: size of an encoded element of the second group.
    """

    name: str
    order: int
    security_bits: int
    g1_bytes: int
    g2_bytes: int

    @property
    @abstractmethod
    def g1(self) -> G1:
        """Generator of the first group."""

    @property
    @abstractmethod
    def g2(self) -> G2:
        """Generator of the second group."""

    @abstractmethod
    def hash_to_g1(self, message: bytes, tag: bytes) -> G1:
        """Hash to the first group as a random oracle.

        Args:
            message: any bytes.
            tag: domain separation tag, 16..255 bytes.

        Raises:
            ParameterError: the tag is too short or long.
        """

    @abstractmethod
    def multi_power(self, bases: Sequence[_Source], exponents: Sequence[int]) -> _Source:
        """Return the product of powers of elements of the first or of the second group.

        Raises:
            ParameterError: no base, unequal lengths, or an exponent out of 0..order-1.
        """

    def public_product(self, bases: Sequence[_Source], exponents: Sequence[int]) -> _Source:
        """Return the product of powers whose exponents are public, mostly small or small negatives.

        Such are coefficients of policies and of interpolation; the shorter way round saves most of
        what they cost.  Not for secrets: time tells the size.

        Raises:
            ParameterError: no base, unequal lengths, or an exponent out of 0..order-1.
        """
        in_range = all(type(k) is int and 0 <= k < self.order for k in exponents)
        if not bases or len(bases) != len(exponents) or not in_range:
            # Which says what is wrong.
            return self.multi_power(bases, exponents)
        signed = [k if 2 * k <= self.order else k - self.order for k in exponents]
        if len(bases) > 1 and any(abs(k) >> _SHORT_BITS for k in signed):
            return self.multi_power(bases, exponents)
        powers = (b**k if k >= 0 else b.inverse() ** -k for b, k in zip(bases, signed, strict=True))
        return reduce(mul, powers)

    @abstractmethod
    def pair(self, pairs: Sequence[tuple[G1, G2]]) -> GT:
        """Return the product of the pairings of some pairs, at least one.

        Raises:
            ParameterError: there is no pair.
        """

    @abstractmethod
    def decode_g1(self, data: bytes, what: str) -> G1:
        """Decode an element of the first group.

        Args:
            data: ``g1_bytes`` bytes.
            what: what it is, for the message.

        Raises:
            FormatError: not the one encoding of an element of the group, or the identity.
        """

    @abstractmethod
    def decode_g2(self, data: bytes, what: str) -> G2:
        """Decode an element of the second group, of ``g2_bytes`` bytes; otherwise as above."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


def require_strong(name: str, security_bits: int, *, allow_weak: bool = False) -> None:
    """Refuse a group that is too weak, unless it was asked for on purpose.

    Raises:
        ParameterError: it has under 112 bits.
    """
    if security_bits < GROUP_BITS_MIN and not allow_weak:
        raise ParameterError(
            f"{name} has about {security_bits} bits of security (need {GROUP_BITS_MIN})",
            cure="use BLS12-381; weak groups are for comparison only",
        )


# --- BLS12-381 by arkworks ------------------------------------------------------------------------


@final
class _ArkG1(G1):
    __slots__ = ("_point",)

    def __init__(self, point: G1Point) -> None:
        self._point = point

    def __mul__(self, other: _ArkG1) -> _ArkG1:
        return _ArkG1(self._point + _point_of(other, _ArkG1))

    def __pow__(self, exponent: int) -> _ArkG1:
        return _ArkG1(self._point * _scalar(exponent))

    def inverse(self) -> _ArkG1:
        return _ArkG1(-self._point)

    def encode(self) -> bytes:
        return self._point.to_compressed_bytes()

    @property
    def is_identity(self) -> bool:
        return self._point == G1Point.identity()


@final
class _ArkG2(G2):
    __slots__ = ("_point",)

    def __init__(self, point: G2Point) -> None:
        self._point = point

    def __mul__(self, other: _ArkG2) -> _ArkG2:
        return _ArkG2(self._point + _point_of(other, _ArkG2))

    def __pow__(self, exponent: int) -> _ArkG2:
        return _ArkG2(self._point * _scalar(exponent))

    def inverse(self) -> _ArkG2:
        return _ArkG2(-self._point)

    def encode(self) -> bytes:
        return self._point.to_compressed_bytes()

    @property
    def is_identity(self) -> bool:
        return self._point == G2Point.identity()


@final
class _ArkGT(GT):
    __slots__ = ("_point",)

    def __init__(self, point: ark.GT) -> None:
        self._point = point

    def __mul__(self, other: _ArkGT) -> _ArkGT:
        return _ArkGT(self._point * _point_of(other, _ArkGT))

    def __pow__(self, exponent: int) -> _ArkGT:
        return _ArkGT(_repeat(self._point, _in_range(exponent)))

    def inverse(self) -> _ArkGT:
        # The library has no division; the order of the group is public, so this is the same.
        return self ** (_ORDER - 1)

    def encode(self) -> bytes:
        # The library shows an element as the hexadecimal of its canonical bytes; only "show" is
        # there, so its form is proved rather than trusted.
        data = bytes.fromhex(str(self._point))
        if len(data) != _GT_BYTES:
            raise ParameterError(f"the pairing library shows GT in {len(data)} bytes, not 576")
        return data

    @property
    def is_identity(self) -> bool:
        return self._point == ark.GT.one()


_ORDER: Final = 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001
_SCALAR_BYTES = 32
_GT_BYTES = 576
_TAG_BYTES = range(16, 256)


def _point_of(element: object, kind: type[Any]) -> Any:
    """Return the library's element behind one of ours, of the right group."""
    if type(element) is not kind:
        raise ParameterError(f"{type(element).__name__} is no element of this group")
    return element._point  # type: ignore[attr-defined]  # noqa: SLF001


def _in_range(exponent: int) -> int:
    if type(exponent) is not int or not 0 <= exponent < _ORDER:
        raise ParameterError("an exponent is a whole number from 0 to below the order of the group")
    return exponent


def _scalar(exponent: int) -> Scalar:
    return Scalar.from_be_bytes(_in_range(exponent).to_bytes(_SCALAR_BYTES, "big"))


def _repeat(base: ark.GT, exponent: int) -> ark.GT:
    """Raise an element of GT to a power, four bits at a time."""
    powers = [ark.GT.one()]
    for _ in range((1 << _WINDOW_BITS) - 1):
        powers.append(powers[-1] * base)
    result = ark.GT.one()
    for at in range(_ORDER.bit_length() // _WINDOW_BITS * _WINDOW_BITS, -1, -_WINDOW_BITS):
        for _ in range(_WINDOW_BITS):
            result = result * result
        result = result * powers[exponent >> at & (1 << _WINDOW_BITS) - 1]
    return result


@final
class ArkworksGroup(PairingGroup):
    """BLS12-381, about 120 bits, by the Rust library arkworks."""

    name = "BLS12-381"
    order = _ORDER
    security_bits = 120
    g1_bytes = 48
    g2_bytes = 96

    def __init__(self) -> None:
        self._g1 = _ArkG1(G1Point())
        self._g2 = _ArkG2(G2Point())

    @property
    def g1(self) -> G1:
        """Generator of the first group."""
        return self._g1

    @property
    def g2(self) -> G2:
        """Generator of the second group."""
        return self._g2

    def hash_to_g1(self, message: bytes, tag: bytes) -> G1:
        """Hash by RFC 9380, suite BLS12381G1_XMD:SHA-256_SSWU_RO_."""
        if len(tag) not in _TAG_BYTES:
            raise ParameterError(f"a tag has 16 to 255 bytes, not {len(tag)}")
        return _ArkG1(G1Point.hash_to_curve(message, tag))

    def multi_power(self, bases: Sequence[_Source], exponents: Sequence[int]) -> _Source:
        """Return the product of powers, in less time than one by one."""
        if not bases or len(bases) != len(exponents):
            raise ParameterError(f"{len(bases)} bases have {len(exponents)} exponents")
        if len(bases) == 1:
            return bases[0] ** exponents[0]
        kind: Any = type(bases[0])
        library: Any = {_ArkG1: G1Point, _ArkG2: G2Point}.get(kind)
        if library is None:
            raise ParameterError(f"{kind.__name__} is no element of this group")
        points = [_point_of(base, kind) for base in bases]
        product: _Source = kind(library.multiexp_unchecked(points, [_scalar(k) for k in exponents]))
        return product

    def pair(self, pairs: Sequence[tuple[G1, G2]]) -> GT:
        """Return the product of pairings, with one final exponentiation."""
        if not pairs:
            raise ParameterError("there is nothing to pair")
        first = [_point_of(a, _ArkG1) for a, _ in pairs]
        second = [_point_of(b, _ArkG2) for _, b in pairs]
        return _ArkGT(ark.GT.multi_pairing(first, second))

    def decode_g1(self, data: bytes, what: str) -> G1:
        """Decode 48 bytes."""
        return _ArkG1(_decode(G1Point, data, self.g1_bytes, what))

    def decode_g2(self, data: bytes, what: str) -> G2:
        """Decode 96 bytes."""
        return _ArkG2(_decode(G2Point, data, self.g2_bytes, what))


def _decode(library: Any, data: bytes, n_bytes: int, what: str) -> Any:
    if len(data) != n_bytes:
        raise FormatError(f"{what} has {len(data)} bytes (need {n_bytes})")
    try:
        # This one proves that the point is on the curve and in the subgroup.
        point = library.from_compressed_bytes(data)
    except ValueError:
        raise FormatError(f"{what} is no point of the group") from None
    if point == library.identity():
        raise FormatError(f"{what} is the identity")
    if point.to_compressed_bytes() != data:
        raise FormatError(f"{what} is not in the one encoding of its point")
    return point


#: The group of the protocol.
BLS12_381: Final[PairingGroup] = ArkworksGroup()
