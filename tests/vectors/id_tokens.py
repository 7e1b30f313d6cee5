"""ID tokens of vectors: an issuer with a key of each kind, made from seeds."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from .good_index import NOW
from .material import Json, seed
from .members import identity

ISSUER, AUDIENCE, LEEWAY_S = "https://issuer.example", "mksearch", 60
CLAIMS = {"groups": "dept", "clearance": "clearance", "title": "title"}
#: The primes are the first of 1024 bits from what their seeds say on.
_STEPS = {"p of RSA": 150, "q of RSA": 98}
_E = 65_537


def b64(data: bytes) -> str:
    """Return base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value: int, n_bytes: int) -> str:
    """Return a number as key sets have it."""
    return b64(value.to_bytes(n_bytes, "big"))


def _prime(label: str) -> int:
    drawn = b"".join(seed(f"{label} {i}") for i in range(4))
    return (int.from_bytes(drawn, "big") | 3 << 1022 | 1) + _STEPS[label]


@cache
def _rsa() -> rsa.RSAPrivateKey:
    p, q = (_prime(label) for label in _STEPS)
    d = pow(_E, -1, (p - 1) * (q - 1))
    public = rsa.RSAPublicNumbers(_E, p * q)
    crt = rsa.rsa_crt_dmp1(d, p), rsa.rsa_crt_dmq1(d, q), rsa.rsa_crt_iqmp(p, q)
    return rsa.RSAPrivateNumbers(p, q, d, *crt, public).private_key()


@cache
def _ec() -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(seed("P-256"), "big") >> 1, ec.SECP256R1())


def _okp() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(seed("Ed25519 of an issuer"))


def keys() -> list[Json]:
    """Return the key set, with entries that are no keys of the issuer."""
    modulus = _rsa().public_key().public_numbers().n
    point = _ec().public_key().public_numbers()
    okp = {"kty": "OKP", "crv": "Ed25519", "x": b64(_okp().public_key().public_bytes_raw())}
    return [
        {"kid": "rsa", "kty": "RSA", "n": number(modulus, 256), "e": number(_E, 3), "use": "sig"},
        {"kid": "ec", "kty": "EC", "crv": "P-256", "alg": "ES256"}
        | {"x": number(point.x, 32), "y": number(point.y, 32)},
        {"kid": "okp", **okp},
        {"kid": "short", "kty": "RSA", "n": number(modulus >> 1, 256), "e": number(_E, 3)},
        {"kid": "private", **okp, "d": b64(seed("no key"))},
        {"kid": "encrypts", **okp, "use": "enc"},
        {"kid": "other alg", **okp, "alg": "ES256"},
        {"kid": "shared", "kty": "oct", "k": b64(seed("no key"))},
    ]


def issuer() -> Json:
    """Return what a server is told of the issuer."""
    named = {"issuer": ISSUER, "audience": AUDIENCE, "leeway_s": LEEWAY_S, "attributes": CLAIMS}
    return named | {"keys": keys()}


def claims(**changes: Any) -> Json:
    """Return good claims, with changes; None takes one out."""
    good: Json = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "exp": NOW + 300,
        "iat": NOW - 5,
        "nonce": identity().public.id.hex(),
        "groups": ["finance", "R&D"],
    }
    return {name: value for name, value in (good | changes).items() if value is not None}


def signed(message: bytes, kid: str) -> bytes:
    """Sign by the key of that name."""
    if kid == "rsa":
        return _rsa().sign(message, padding.PKCS1v15(), hashes.SHA256())
    if kid == "ec":
        algorithm = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
        r, s = decode_dss_signature(_ec().sign(message, algorithm))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")
    return _okp().sign(message)


def dumped(value: object) -> bytes:
    """Return JSON as tokens have it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def token(said: object = None, kid: str = "okp", header: Mapping[str, Any] | None = None) -> str:
    """Return a token: good, but for what is given."""
    algorithm = {"rsa": "RS256", "ec": "ES256"}.get(kid, "EdDSA")
    head = {"alg": algorithm, "typ": "JWT", "kid": kid} | dict(header or {})
    head = {name: value for name, value in head.items() if value is not None}
    body = said if isinstance(said, bytes) else dumped(claims() if said is None else said)
    message = f"{b64(dumped(head))}.{b64(body)}"
    return f"{message}.{b64(signed(message.encode(), kid))}"
