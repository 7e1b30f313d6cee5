"""ML-KEM-768 (FIPS 203), polynomial by polynomial; X25519 alone is left to a library."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

Q, N, K = 3329, 256, 3
_ETA, _DU, _DV = 2, 10, 4
CIPHERTEXT_BYTES = 32 * (_DU * K + _DV)
PUBLIC_BYTES = 384 * K + 32

Poly = list[int]


def _reversed_bits(value: int) -> int:
    return int(f"{value:07b}"[::-1], 2)


_ZETAS = [pow(17, _reversed_bits(i), Q) for i in range(128)]
_GAMMAS = [pow(17, 2 * _reversed_bits(i) + 1, Q) for i in range(128)]


def _ntt(f: Poly) -> Poly:
    f = list(f)
    zetas = iter(_ZETAS[1:])
    for length in (128, 64, 32, 16, 8, 4, 2):
        for start in range(0, N, 2 * length):
            zeta = next(zetas)
            for j in range(start, start + length):
                t = zeta * f[j + length] % Q
                f[j], f[j + length] = (f[j] + t) % Q, (f[j] - t) % Q
    return f


def _inverse_ntt(f: Poly) -> Poly:
    f = list(f)
    zetas = iter(_ZETAS[:0:-1])
    for length in (2, 4, 8, 16, 32, 64, 128):
        for start in range(0, N, 2 * length):
            zeta = next(zetas)
            for j in range(start, start + length):
                t = f[j]
                f[j], f[j + length] = (t + f[j + length]) % Q, zeta * (f[j + length] - t) % Q
    return [x * 3303 % Q for x in f]


def _product(a: Poly, b: Poly) -> Poly:
    out = []
    for i, gamma in enumerate(_GAMMAS):
        (a0, a1), (b0, b1) = a[2 * i : 2 * i + 2], b[2 * i : 2 * i + 2]
        out += [(a0 * b0 + a1 * b1 * gamma) % Q, (a0 * b1 + a1 * b0) % Q]
    return out


def _sum(polynomials: Sequence[Poly]) -> Poly:
    return [sum(column) % Q for column in zip(*polynomials, strict=True)]


def _dot(a: Sequence[Poly], b: Sequence[Poly]) -> Poly:
    return _sum([_product(x, y) for x, y in zip(a, b, strict=True)])


def _uniform(rho: bytes, j: int, i: int) -> Poly:
    """Return SampleNTT of rho, j, i."""
    out: Poly = []
    stream = hashlib.shake_128(rho + bytes([j, i])).digest(3000)
    for at in range(0, len(stream), 3):
        b0, b1, b2 = stream[at : at + 3]
        out += [d for d in (b0 + 256 * (b1 % 16), b1 // 16 + 16 * b2) if d < Q]
    assert len(out) >= N
    return out[:N]


def _small(seed: bytes, number: int) -> Poly:
    """Return SamplePolyCBD of PRF(seed, number)."""
    data = hashlib.shake_256(seed + bytes([number])).digest(64 * _ETA)
    bits = [byte >> i & 1 for byte in data for i in range(8)]
    return [
        (sum(bits[at : at + _ETA]) - sum(bits[at + _ETA : at + 2 * _ETA])) % Q
        for at in range(0, len(bits), 2 * _ETA)
    ]


def _encode(f: Poly, width: int) -> bytes:
    value = sum(x << (width * i) for i, x in enumerate(f))
    return value.to_bytes(32 * width, "little")


def _decode(data: bytes, width: int) -> Poly:
    value = int.from_bytes(data, "little")
    return [value >> (width * i) & ((1 << width) - 1) for i in range(N)]


def _compress(f: Poly, width: int) -> Poly:
    return [((x << width) + Q // 2) // Q % (1 << width) for x in f]


def _decompress(f: Poly, width: int) -> Poly:
    return [(x * Q + (1 << width >> 1)) >> width for x in f]


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def _secret(d: bytes) -> tuple[bytes, list[Poly], list[Poly]]:
    """Return rho, the secret vector and the errors of a key."""
    seeds = hashlib.sha3_512(d + bytes([K])).digest()
    rho, sigma = seeds[:32], seeds[32:]
    s = [_ntt(_small(sigma, i)) for i in range(K)]
    return rho, s, [_ntt(_small(sigma, K + i)) for i in range(K)]


def public_key(d: bytes) -> bytes:
    """Return the public key (1184 bytes) of the seed d (32 bytes)."""
    rho, s, e = _secret(d)
    rows = [[_uniform(rho, j, i) for j in range(K)] for i in range(K)]
    t = [_sum([_dot(row, s), error]) for row, error in zip(rows, e, strict=True)]
    return b"".join(_encode(f, 12) for f in t) + rho


def is_public_key(data: bytes) -> bool:
    """Tell whether bytes are a public key: of its length, every number below q."""
    numbers = [x for part in _cut(data[: 384 * K], 384) for x in _decode(part, 12)]
    return len(data) == PUBLIC_BYTES and all(x < Q for x in numbers)


def _encrypt(public: bytes, m: bytes, r: bytes) -> bytes:
    t = [_decode(part, 12) for part in _cut(public[: 384 * K], 384)]
    rho = public[384 * K :]
    y = [_ntt(_small(r, i)) for i in range(K)]
    errors = [_small(r, K + i) for i in range(K + 1)]
    columns = [[_uniform(rho, i, j) for j in range(K)] for i in range(K)]
    u = [
        _sum([_inverse_ntt(_dot(column, y)), error])
        for column, error in zip(columns, errors[:K], strict=True)
    ]
    v = _sum([_inverse_ntt(_dot(t, y)), errors[K], _decompress(_decode(m, 1), 1)])
    return b"".join(_encode(_compress(f, _DU), _DU) for f in u) + _encode(_compress(v, _DV), _DV)


def encapsulate(public: bytes, m: bytes) -> tuple[bytes, bytes]:
    """Return (shared secret, ciphertext of 1088 bytes), drawn from m (32 bytes)."""
    seeds = hashlib.sha3_512(m + hashlib.sha3_256(public).digest()).digest()
    return seeds[:32], _encrypt(public, m, seeds[32:])


def decapsulate(d: bytes, z: bytes, ciphertext: bytes) -> bytes:
    """Return the shared secret; another one for a ciphertext that was not made for this key."""
    _, s, _ = _secret(d)
    size = 32 * _DU
    u = [_decompress(_decode(part, _DU), _DU) for part in _cut(ciphertext[: size * K], size)]
    v = _decompress(_decode(ciphertext[size * K :], _DV), _DV)
    masked = _inverse_ntt(_dot(s, [_ntt(f) for f in u]))
    w = [(a - b) % Q for a, b in zip(v, masked, strict=True)]
    m = _encode(_compress(w, 1), 1)
    secret, again = encapsulate(public_key(d), m)
    if again != ciphertext:
        return hashlib.shake_256(z + ciphertext).digest(32)
    return secret
