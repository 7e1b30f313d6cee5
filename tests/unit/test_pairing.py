"""The groups and their pairing: laws, what the library gets wrong, two independent witnesses."""

from __future__ import annotations

import json
import os
import pickle
import random
import sys
import types
import zlib
from pathlib import Path
from typing import Any

import py_arkworks_bls12381 as ark
import pytest

from mksearch.access.charm import SECURITY_BITS, CharmGroup
from mksearch.access.pairing import BLS12_381, G1, G2, Element, require_strong
from mksearch.errors import FormatError, ParameterError
from tests.reference import curve

N_MUTATIONS = int(os.environ.get("MKSEARCH_MUTATIONS", "2000"))
EXTERNAL = Path(__file__).resolve().parents[1] / "vectors/external"

GROUP = BLS12_381
R = GROUP.order
g1, g2 = GROUP.g1, GROUP.g2
e = GROUP.pair([(g1, g2)])
TAG = b"mksearch tests, 16 bytes or more"
Q = curve.Q


# --- laws -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("element", [g1, g2, e], ids=["G1", "G2", "GT"])
def test_exponents_add_and_multiply(element: Element) -> None:
    a, b = 0xABCDEF << 200, R - 5

    assert element**a * element**b == element ** ((a + b) % R)
    assert (element**a) ** b == element ** (a * b % R)
    assert element**2 == element * element
    assert (element**a) * (element**a).inverse() == element**0
    assert (element**0).is_identity
    assert element**1 == element
    assert not element.is_identity


def test_pairing_is_bilinear_and_not_degenerate() -> None:
    a, b = 0x1234 << 100, R - 77

    assert GROUP.pair([(g1**a, g2**b)]) == e ** (a * b % R)
    assert GROUP.pair([(g1**a, g2), (g1**b, g2)]) == e ** ((a + b) % R)
    assert GROUP.pair([(g1**a, g2), ((g1**a).inverse(), g2)]).is_identity
    assert GROUP.pair([(g1**0, g2)]).is_identity
    assert not e.is_identity


@pytest.mark.parametrize("generator", [g1, g2], ids=["G1", "G2"])
@pytest.mark.parametrize("n", [1, 2, 3, 33])
def test_many_powers_at_once_are_those_one_by_one(generator: Any, n: int) -> None:
    rng = random.Random(n)
    bases = [generator ** rng.randrange(R) for _ in range(n)]
    exponents = [rng.choice([0, 1, R - 1, rng.randrange(R)]) for _ in range(n)]
    expected = generator**0
    for base, exponent in zip(bases, exponents, strict=True):
        expected *= base**exponent

    assert GROUP.multi_power(bases, exponents) == expected
    assert GROUP.multi_power([*bases, generator**0], [*exponents, 5]) == expected
    assert GROUP.public_product(bases, exponents) == expected


@pytest.mark.parametrize("generator", [g1, g2], ids=["G1", "G2"])
@pytest.mark.parametrize(
    "exponents",
    [
        [0],
        [1],
        [R - 1],
        [R // 2],
        [R // 2 + 1],
        [2, R - 1],
        [0, 0],
        [1 << 64, 1],
        [3, R - 3, R - 5],
    ],
    ids=str,
)
def test_a_public_product_is_the_same_by_the_shorter_way_round(
    generator: Any, exponents: list[int]
) -> None:
    bases = [generator ** (7 + n) for n in range(len(exponents))]

    product = GROUP.public_product(bases, exponents)

    assert product == generator ** (sum((7 + n) * k for n, k in enumerate(exponents)) % R)


# --- what the library gets wrong, and we do not ---------------------------------------------------


def test_the_group_law_of_gt_is_not_the_library_s_addition() -> None:
    raw = ark.GT.pairing(ark.G1Point(), ark.G2Point())

    assert str(raw + raw) != str(raw * raw)
    assert (e * e).encode() == bytes.fromhex(str(raw * raw))
    with pytest.raises(TypeError):
        e + e  # type: ignore[operator]


def test_exponents_out_of_range_are_refused_where_the_library_reduces_them() -> None:
    assert int(ark.Scalar(R + 5)) == 5

    exponents: list[Any] = [R, R + 5, -1, 1 << 256, True, 1.0]
    for exponent in exponents:
        for element in (g1, g2, e):
            with pytest.raises(ParameterError):
                element**exponent
        with pytest.raises(ParameterError):
            GROUP.multi_power([g1, g1], [1, exponent])
        for others in ([], [1], [R - 1]):
            with pytest.raises(ParameterError):
                GROUP.public_product([g1] * (1 + len(others)), [*others, exponent])


def test_unequal_lengths_are_refused_where_the_library_cuts() -> None:
    points, scalars = [ark.G1Point()] * 3, [ark.Scalar(1)] * 2
    assert ark.G1Point.multiexp_unchecked(points, scalars) == ark.G1Point() + ark.G1Point()

    for bases, exponents in (([g1] * 3, [1] * 2), ([g1] * 2, [1] * 3), ([], []), ([g1], [])):
        with pytest.raises(ParameterError):
            GROUP.multi_power(bases, exponents)
        with pytest.raises(ParameterError):
            GROUP.public_product(bases, exponents)
    with pytest.raises(ParameterError):
        GROUP.pair([])


#: The library reads all of these as the identity; only the first is its encoding.
IDENTITIES = [
    b"\xc0" + bytes(47),
    b"\xe0" + bytes(47),
    b"\xc0" + bytes(46) + b"\x01",
    b"\xff" * 48,
]


@pytest.mark.parametrize("data", IDENTITIES, ids=["canonical", "sign", "garbage", "ones"])
def test_the_identity_is_refused_in_every_encoding(data: bytes) -> None:
    assert ark.G1Point.from_compressed_bytes(data) == ark.G1Point.identity()

    with pytest.raises(FormatError):
        GROUP.decode_g1(data, "a point")
    with pytest.raises(FormatError):
        GROUP.decode_g2(data + data[1:] + b"\0", "a point")


def outside_the_subgroup(kind: Any, size: int) -> bytes:
    """Return a point of the curve that is not in the subgroup, compressed."""
    for x in range(1, 100):
        data = bytes([0x80]) + x.to_bytes(size - 1, "big")
        try:
            point = kind.from_compressed_bytes_unchecked(data)
        except ValueError:
            continue
        if not point.is_in_subgroup():
            return data
    raise AssertionError("every point is in the subgroup")


def test_points_of_the_curve_outside_the_subgroup_are_refused() -> None:
    outside_1 = outside_the_subgroup(ark.G1Point, 48)
    outside_2 = outside_the_subgroup(ark.G2Point, 96)

    with pytest.raises(FormatError):
        GROUP.decode_g1(outside_1, "a point")
    with pytest.raises(FormatError):
        GROUP.decode_g2(outside_2, "a point")


def test_points_of_small_order_are_refused() -> None:
    # (0, 2) is on y^2 = x^3 + 4 and has order 3: a pairing with it tells a secret modulo 3.
    with pytest.raises(FormatError):
        GROUP.decode_g1(bytes([0x80]) + bytes(47), "a point")
    with pytest.raises(FormatError):
        GROUP.decode_g1(bytes([0xA0]) + bytes(47), "a point")


@pytest.mark.parametrize("size", [0, 1, 47, 49, 95, 96, 97, 192])
def test_encodings_of_another_length_are_refused(size: int) -> None:
    data = g1.encode().ljust(size, b"\0")[:size]
    with pytest.raises(FormatError):
        GROUP.decode_g1(data, "a point")
    if size != 96:
        with pytest.raises(FormatError):
            GROUP.decode_g2(g2.encode().ljust(size, b"\0")[:size], "a point")


def test_coordinates_that_are_not_reduced_are_refused() -> None:
    x = int.from_bytes(g1.encode(), "big") & (1 << 381) - 1
    for value in (x + Q, Q, Q + 1):
        if value < 1 << 381:
            with pytest.raises(FormatError):
                GROUP.decode_g1((value | 1 << 383).to_bytes(48, "big"), "a point")


def test_points_are_decoded_as_they_were_encoded() -> None:
    for k in (1, 2, R - 1, 0xDEADBEEF << 123):
        assert GROUP.decode_g1((g1**k).encode(), "a point") == g1**k
        assert GROUP.decode_g2((g2**k).encode(), "a point") == g2**k


@pytest.mark.parametrize("generator", [g1, g2], ids=["G1", "G2"])
def test_a_changed_point_is_refused_or_is_another_point(generator: Any) -> None:
    rng = random.Random("points")
    decode = GROUP.decode_g1 if isinstance(generator, G1) else GROUP.decode_g2
    n_read = 0
    good = generator.encode()
    for _ in range(N_MUTATIONS):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            data[rng.choice([0, len(data) - 1, rng.randrange(len(data))])] = rng.randrange(256)
        try:
            point = decode(bytes(data), "a point")
        except FormatError:
            continue
        n_read += 1
        assert point.encode() == data
    # Points of the curve are about half of all, those in the subgroup almost none of these.
    assert n_read < N_MUTATIONS / 50


def test_elements_of_different_groups_do_not_mix() -> None:
    pairs: list[tuple[Any, Any]] = [(g1, g2), (g2, g1), (g1, e), (e, g1), (g1, 1)]
    for a, b in [*pairs, (g1, ark.G1Point())]:
        with pytest.raises(ParameterError):
            a * b
        assert a != b
    with pytest.raises(ParameterError):
        GROUP.pair([(g2, g1)])  # type: ignore[list-item]
    things: list[list[Any]] = [[e, e], [g1, g2], [g2, g1]]
    for bases in things:
        with pytest.raises(ParameterError):
            GROUP.multi_power(bases, [1, 1])


def test_elements_do_not_show_themselves_and_are_not_pickled() -> None:
    for element in (g1, g2, e):
        assert element.encode().hex()[2:20] not in repr(element)
        with pytest.raises(TypeError):
            pickle.dumps(element)


def test_equal_elements_are_one_key_of_a_dictionary() -> None:
    assert len({g1, g1 * g1, g1**2, g1**1}) == 2


# --- hashing to the curve -------------------------------------------------------------------------


def test_points_of_rfc_9380_are_hashed_to() -> None:
    file = json.loads((EXTERNAL / "rfc9380_g1.json").read_bytes())
    assert len(file["vectors"]) == 5
    for vector in file["vectors"]:
        point = GROUP.hash_to_g1(vector["message"].encode(), file["tag"].encode())
        x, y = int(vector["x"], 16), int(vector["y"], 16)
        sign = (1 << 381) if y > (Q - 1) // 2 else 0
        assert point.encode() == (x | 1 << 383 | sign).to_bytes(48, "big")


def test_the_second_implementation_hashes_alike() -> None:
    for message in (b"", b"role:analyst", "年齢:30".encode(), bytes(300)):
        expected = curve.encode(curve.hash_to_curve(message, TAG))
        assert GROUP.hash_to_g1(message, TAG).encode() == expected


def test_a_tag_of_another_length_is_refused() -> None:
    for size in (0, 1, 15, 256, 1000):
        with pytest.raises(ParameterError):
            GROUP.hash_to_g1(b"", bytes(size))
    assert GROUP.hash_to_g1(b"", bytes(16)) != GROUP.hash_to_g1(b"", bytes(255))
    assert not GROUP.decode_g1(GROUP.hash_to_g1(b"", TAG).encode(), "a point").is_identity


# --- the second implementation --------------------------------------------------------------------


def test_the_second_implementation_multiplies_and_encodes_alike() -> None:
    for k in (1, 2, R - 1, 0xFEDCBA << 222):
        assert (g1**k).encode() == curve.encode(curve.power(curve.G1, k))
        assert (g2**k).encode() == curve.encode(curve.power(curve.G2, k))


def test_the_second_implementation_pairs_alike() -> None:
    a, b = 3, 0xABC << 77
    pair = curve.power(curve.G1, a), curve.power(curve.G2, b)

    assert GROUP.pair([(g1**a, g2**b)]).encode() == curve.gt(curve.pair([pair]))


# --- weak groups ----------------------------------------------------------------------------------


def test_groups_under_112_bits_are_refused_unless_asked_for() -> None:
    for name, bits in SECURITY_BITS.items():
        with pytest.raises(ParameterError, match=f"about {bits} bits"):
            CharmGroup(name)
        require_strong(name, bits, allow_weak=True)
    require_strong(GROUP.name, GROUP.security_bits)
    with pytest.raises(ParameterError, match="none of"):
        CharmGroup("BLS12-381")


class StandIn:
    """Charm's interface over exponents modulo a small prime: it proves the adapter, no curve."""

    ZR, G1, G2, GT, ORDER = "ZR", "G1", "G2", "GT", 1009

    class Number:
        def __init__(self, kind: str, log: int) -> None:
            self.kind, self.log = kind, log % StandIn.ORDER

        def __mul__(self, other: StandIn.Number) -> StandIn.Number:
            assert self.kind == other.kind
            return StandIn.Number(self.kind, self.log + other.log)

        def __pow__(self, exponent: int | StandIn.Number) -> StandIn.Number:
            factor = exponent if isinstance(exponent, int) else exponent.log
            return StandIn.Number(self.kind, self.log * factor)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, StandIn.Number) and self.log == other.log

        __hash__ = None  # type: ignore[assignment]

    class PairingGroup:
        def __init__(self, name: str) -> None:
            self.name = name

        def order(self) -> int:
            return StandIn.ORDER

        def hash(self, message: bytes, kind: str) -> StandIn.Number:
            return StandIn.Number(kind, 1 + zlib.crc32(message) % (StandIn.ORDER - 1))

        def init(self, kind: str, value: int) -> StandIn.Number:
            return StandIn.Number(kind, value)

        def serialize(self, element: StandIn.Number) -> bytes:
            return f"{element.kind} {element.log}".encode()

    @staticmethod
    def pair(a: StandIn.Number, b: StandIn.Number) -> StandIn.Number:
        assert (a.kind, b.kind) == ("G1", "G2")
        return StandIn.Number("GT", a.log * b.log)


@pytest.fixture(params=["a stand-in", *SECURITY_BITS])
def charm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CharmGroup:
    if request.param != "a stand-in":
        pytest.importorskip("charm.toolbox.pairinggroup", reason="charm-crypto is not installed")
        return CharmGroup(request.param, allow_weak=True)
    toolbox = types.SimpleNamespace(pairinggroup=StandIn)
    monkeypatch.setitem(sys.modules, "charm", types.SimpleNamespace(toolbox=toolbox))
    monkeypatch.setitem(sys.modules, "charm.toolbox", toolbox)
    monkeypatch.setitem(sys.modules, "charm.toolbox.pairinggroup", StandIn)
    return CharmGroup(allow_weak=True)


def test_charm_gives_groups_of_the_same_laws(charm: CharmGroup) -> None:
    order = charm.order
    base = charm.pair([(charm.g1, charm.g2)])

    assert charm.pair([(charm.g1**3, charm.g2 ** (order - 5))]) == base ** (-15 % order)
    assert charm.multi_power([charm.g1, charm.g1**2], [3, 4]) == charm.g1**11
    assert (charm.g1**0).is_identity
    assert not base.is_identity
    assert charm.hash_to_g1(b"a", TAG) != charm.hash_to_g1(b"b", TAG)
    for bad in (order, -1):
        with pytest.raises(ParameterError):
            charm.g1**bad


def test_charm_reads_no_points(charm: CharmGroup) -> None:
    with pytest.raises(FormatError):
        charm.decode_g1(charm.g1.encode(), "a point")
    with pytest.raises(FormatError):
        charm.decode_g2(charm.g2.encode(), "a point")


def test_generators_are_of_their_groups() -> None:
    assert isinstance(g1, G1)
    assert isinstance(g2, G2)
    assert GROUP.security_bits >= 112
