"""Attribute-based keys, headers and the shared authority (sections 11.3 to 11.6)."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .codec import decode_varint, u32, u64
from .curve import (
    G1,
    G2,
    Point,
    R,
    decode,
    encode,
    gt,
    hash_to_curve,
    inverse,
    is_equal,
    is_identity,
    pair,
    power,
    times,
)
from .keys import hkdf
from .policies import key_labels, solve, span_program
from .refused import Refused, require

_TAG = b"mksearch/1/attribute\x00BLS12381G1_XMD:SHA-256_SSWU_RO_"
_FORMAT = u32(1)


def exponent(drawn: bytes) -> int:
    """Return the exponent of 48 drawn bytes."""
    return 1 + int.from_bytes(drawn, "big") % (R - 1)


def coefficient(drawn: bytes) -> int:
    """Return the coefficient of 48 drawn bytes."""
    return int.from_bytes(drawn, "big") % R


class Parameters(NamedTuple):
    """A and B."""

    a: Point
    b: Point

    @property
    def file(self) -> bytes:
        """The parameters file."""
        return b"MKAUTHPP" + _FORMAT + encode(self.a) + encode(self.b)

    @property
    def authority(self) -> bytes:
        """The authority's id."""
        return hashlib.sha256(b"mksearch/1/authority\x00" + self.file).digest()

    def hash(self, label: bytes) -> Point:
        """Return H(label)."""
        return hash_to_curve(self.authority + label, _TAG)


def set_up(alpha: int, a: int) -> Parameters:
    """Return the parameters of step 11.3.1."""
    return Parameters(power(G1, a), power(G2, alpha))


class Key(NamedTuple):
    """A key or a partial key."""

    k: Point
    l: Point  # noqa: E741
    components: Mapping[bytes, Point]


def make_key(parameters: Parameters, alpha: int, labels: Sequence[bytes], t: int) -> Key:
    """Return the key of step 11.3.3."""
    k = times([power(G1, alpha), power(parameters.a, t)])
    return Key(k, power(G2, t), {x: power(parameters.hash(x), t) for x in labels})


def encapsulate(
    parameters: Parameters,
    policy: bytes,
    epoch: int,
    context: bytes,
    s: int,
    v: Sequence[int],
    r: Sequence[int],
) -> tuple[bytes, bytes]:
    """Return (header file, abe_key) of steps 11.4.1 to 11.4.3; v without its first entry."""
    matrix, labels = span_program(policy, epoch)
    vector = [s, *v]
    rows = b""
    for row, label, r_i in zip(matrix, labels, r, strict=True):
        share = sum(m * x for m, x in zip(row, vector, strict=True)) % R
        mask = inverse(power(parameters.hash(label), r_i))
        rows += encode(times([power(parameters.a, share), mask])) + encode(power(G2, r_i))
    header = b"MKACCHDR" + _FORMAT + encode(power(G2, s)) + rows
    element = pair([(power(G1, s), parameters.b)])
    return header, abe_key(parameters, policy, epoch, context, header, element)


def abe_key(
    parameters: Parameters, policy: bytes, epoch: int, context: bytes, header: bytes, element: Any
) -> bytes:
    """Return the key of step 11.4.3."""
    bound = parameters.authority + u64(epoch) + hashlib.sha256(header).digest()
    bound += u32(len(policy)) + policy + context
    return hkdf(hashlib.sha256(gt(element)).digest(), "mksearch/1/access", bound)


def open_header(
    parameters: Parameters,
    key_file: bytes,
    policy: bytes,
    epoch: int,
    context: bytes,
    header: bytes,
) -> bytes:
    """Return abe_key (step 11.4.4), by weights of our own; refuse at 11.4.4 and 11.6.6."""
    authority, key = decode_key(key_file)
    require(authority == parameters.authority, "11.6.6", "a key of another authority")
    c, rows = decode_header(header)
    matrix, labels = span_program(policy, epoch)
    require(len(rows) == len(matrix), "11.6.6", "another number of rows")
    held = [i for i, label in enumerate(labels) if label in key.components]
    weights = solve([matrix[i] for i in held], len(matrix[0]))
    if weights is None:
        raise Refused("11.4.4", "not qualified")
    pairs = [(key.k, c)]
    for i, w in zip(held, weights, strict=True):
        if w:
            c_i, d_i = rows[i]
            pairs.append((inverse(power(c_i, w)), key.l))
            pairs.append((inverse(power(key.components[labels[i]], w)), d_i))
    return abe_key(parameters, policy, epoch, context, header, pair(pairs))


# The shared authority


def deal(alpha: int, coefficients: Sequence[int], n: int) -> list[int]:
    """Return the shares alpha_1 .. alpha_n of step 11.5.1."""
    polynomial = [alpha, *coefficients]
    return [sum(c * j**m for m, c in enumerate(polynomial)) % R for j in range(1, n + 1)]


def lagrange(points: Sequence[int], at: int = 0) -> list[int]:
    """Return Lagrange coefficients modulo r."""
    out = []
    for i in points:
        value = 1
        for j in points:
            if i != j:
                value = value * (at - j) * pow(i - j, R - 2, R) % R
        out.append(value)
    return out


class Verification(NamedTuple):
    """Verification keys."""

    authority: bytes
    generation: int
    t: int
    keys: list[Point]


def require_consistent(parameters: Parameters, verification: Verification) -> None:
    """Refuse at 11.5.2 keys that do not stand for the secret."""
    require(verification.authority == parameters.authority, "11.5.2", "of another authority")
    t, keys = verification.t, verification.keys
    known = [parameters.b, *keys[:t]]
    for j in range(t + 1, len(keys) + 1):
        factors = lagrange(range(t + 1), j)
        expected = times(power(p, f) for p, f in zip(known, factors, strict=True))
        require(is_equal(expected, keys[j - 1]), "11.5.2", f"keys up to {j}")


def require_share(share_file: bytes, verification: Verification) -> None:
    """Refuse at 11.5.2 a share that is not its server's."""
    authority, generation, server, alpha = decode_share(share_file)
    same = authority == verification.authority and generation == verification.generation
    require(same, "11.5.2", "of another authority or generation")
    key = verification.keys[server - 1]
    require(is_equal(power(G2, alpha), key), "11.5.2", "another share")


def require_partial(
    parameters: Parameters,
    verification: Verification,
    partial_file: bytes,
    server: int,
    attributes: Sequence[str],
    epoch: int,
) -> Key:
    """Return the partial key after proving it equation by equation; refuse at 11.5.4."""
    authority, generation, sender, key = decode_partial(partial_file)
    require(authority == parameters.authority, "11.5.4", "of another authority")
    require(sender == server, "11.5.4", "of another server")
    require(generation == verification.generation, "11.5.4", "of another generation")
    same = sorted(key.components) == key_labels(attributes, epoch)
    require(same, "11.5.4", "other labels")
    points = [key.k, key.l, *key.components.values()]
    require(not any(map(is_identity, points)), "11.5.4", "an identity")
    sides = [(key.k, [(G1, verification.keys[server - 1]), (parameters.a, key.l)])]
    sides += [(point, [(parameters.hash(x), key.l)]) for x, point in key.components.items()]
    for left, right in sides:
        equation = [(left, G2), *((inverse(a), b) for a, b in right)]
        require(pair(equation) == pair([]), "11.5.4", "an equation does not hold")
    return key


def combine(parts: Mapping[int, Key]) -> Key:
    """Return the key of step 11.5.5."""
    factors = lagrange(list(parts))

    def at_zero(points: Sequence[Point]) -> Point:
        return times(power(p, f) for p, f in zip(points, factors, strict=True))

    keys = list(parts.values())
    names = keys[0].components
    components = {x: at_zero([key.components[x] for key in keys]) for x in names}
    return Key(at_zero([key.k for key in keys]), at_zero([key.l for key in keys]), components)


# Files


class _Reader:
    """Take pieces from the front."""

    def __init__(self, data: bytes, magic: bytes) -> None:
        """Refuse at 11.6.1 another magic or format."""
        require(data[:12] == magic + _FORMAT, "11.6.1", "another magic or format")
        self.rest = data[12:]

    def take(self, size: int) -> bytes:
        """Return bytes; refuse at 11.6.2 if there are too few."""
        require(len(self.rest) >= size, "11.6.2", "too short")
        piece, self.rest = self.rest[:size], self.rest[size:]
        return piece

    def number(self, size: int) -> int:
        """Return an integer."""
        return int.from_bytes(self.take(size), "big")

    def positive(self, size: int) -> int:
        """Return an integer that is not 0; refuse at 11.6.3."""
        value = self.number(size)
        require(value > 0, "11.6.3", "a number is 0")
        return value

    def point(self, group: int) -> Point:
        """Return a point."""
        return decode(self.take(48 * group), group)

    def end(self) -> None:
        """Refuse at 11.6.2 what is left over."""
        require(not self.rest, "11.6.2", "too long")


def encode_points(key: Key) -> bytes:
    """Return K, L and the entries."""
    entries = b"".join(
        len(x).to_bytes(2, "big") + x + encode(key.components[x]) for x in sorted(key.components)
    )
    return encode(key.k) + encode(key.l) + len(key.components).to_bytes(2, "big") + entries


def encode_key(authority: bytes, key: Key) -> bytes:
    """Return the file of a key."""
    return b"MKATTRKY" + _FORMAT + authority + encode_points(key)


def encode_partial(authority: bytes, generation: int, server: int, key: Key) -> bytes:
    """Return the file of a partial key."""
    head = authority + u64(generation) + bytes([server])
    return b"MKATTRPK" + _FORMAT + head + encode_points(key)


def encode_share(authority: bytes, generation: int, server: int, alpha: int) -> bytes:
    """Return the file of a share."""
    head = authority + u64(generation) + bytes([server])
    return b"MKAUTHSH" + _FORMAT + head + alpha.to_bytes(32, "big")


def encode_verification(verification: Verification) -> bytes:
    """Return the file of verification keys."""
    authority, generation, t, keys = verification
    head = authority + u64(generation) + bytes([t, len(keys)])
    return b"MKAUTHVK" + _FORMAT + head + b"".join(map(encode, keys))


def decode_parameters(data: bytes) -> Parameters:
    """Read parameters."""
    reader = _Reader(data, b"MKAUTHPP")
    parameters = Parameters(reader.point(1), reader.point(2))
    reader.end()
    return parameters


def decode_verification(data: bytes) -> Verification:
    """Read verification keys."""
    reader = _Reader(data, b"MKAUTHVK")
    authority, generation = reader.take(32), reader.positive(8)
    t, n = reader.number(1), reader.number(1)
    require(t >= 1 and 2 * t + 1 <= n, "11.6.3", "t or n out of range")
    keys = [reader.point(2) for _ in range(n)]
    reader.end()
    return Verification(authority, generation, t, keys)


def decode_share(data: bytes) -> tuple[bytes, int, int, int]:
    """Read a share: authority, generation, server, alpha_j."""
    reader = _Reader(data, b"MKAUTHSH")
    authority, generation, server = reader.take(32), reader.positive(8), reader.positive(1)
    alpha = reader.number(32)
    reader.end()
    require(1 <= alpha < R, "11.6.3", "alpha_j out of range")
    return authority, generation, server, alpha


def decode_key(data: bytes) -> tuple[bytes, Key]:
    """Read a key: authority, key."""
    reader = _Reader(data, b"MKATTRKY")
    return reader.take(32), _read_points(reader)


def decode_partial(data: bytes) -> tuple[bytes, int, int, Key]:
    """Read a partial key: authority, generation, server, key."""
    reader = _Reader(data, b"MKATTRPK")
    authority, generation, server = reader.take(32), reader.positive(8), reader.positive(1)
    return authority, generation, server, _read_points(reader)


def _read_points(reader: _Reader) -> Key:
    k, l_ = reader.point(1), reader.point(2)
    components: dict[bytes, Point] = {}
    last = b""
    for _ in range(reader.number(2)):
        label = reader.take(reader.number(2))
        require(label > last, "11.6.4", "labels do not ascend")
        components[label] = reader.point(1)
        last = label
    reader.end()
    epochs = [label for label in components if _kind(label) == 3]
    require(len(epochs) == 1 and len(components) > 1, "11.6.4", "epochs or attributes")
    return Key(k, l_, components)


def _kind(label: bytes) -> int:
    """Return the kind of a label of one of the forms of step 11.1.4."""
    kind = label[0]
    if kind == 3:
        require(len(label) == 9 and any(label[1:]), "11.6.4", "an epoch that is none")
        return kind
    require(kind in (1, 2), "11.6.4", "a label of another kind")
    try:
        size, at = decode_varint(label, 1)
        name, rest = label[at : at + size].decode(), label[at + size :]
        texts = [name] if kind == 2 else [name, rest.decode()]
    except ValueError as error:
        raise Refused("11.6.4", "a label that cannot be read") from error
    require(1 <= size <= 256 and len(name.encode()) == size, "11.6.4", "a name too short or long")
    if kind == 2:
        require(len(rest) == 2 and rest[0] < 32 and rest[1] < 2, "11.6.4", "a bit that is none")
    for text in texts:
        require(unicodedata.normalize("NFC", text) == text, "11.6.4", "not NFC")
        require(len(text.encode()) <= 256, "11.6.4", "a long value")
    return kind


def decode_header(data: bytes) -> tuple[Point, list[tuple[Point, Point]]]:
    """Read a header."""
    reader = _Reader(data, b"MKACCHDR")
    n_rows, odd = divmod(len(reader.rest) - 96, 144)
    require(not odd and 1 <= n_rows <= 257, "11.6.2", "no whole number of rows in range")
    c = reader.point(2)
    return c, [(reader.point(1), reader.point(2)) for _ in range(n_rows)]
