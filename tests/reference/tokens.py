"""ID tokens of an OpenID Connect issuer (section 13.7)."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from .members import print_attribute
from .refused import Refused, require

TOKEN_BYTES = 16_384
_KINDS = {"RS256": ("RSA", None), "ES256": ("EC", "P-256"), "EdDSA": ("OKP", "Ed25519")}


class Issuer(NamedTuple):
    """Whom a server trusts, and for what.

    Attributes:
        issuer: `iss` of its tokens.
        audience: `aud` of its tokens.
        attributes: name of the attribute by claim.
        leeway_s: by how much clocks may differ.
        keys: entries of its key set.
    """

    issuer: str
    audience: str
    attributes: Mapping[str, str]
    leeway_s: int
    keys: Sequence[Mapping[str, Any]]


def _decoded(text: str, step: str) -> bytes:
    require(re.fullmatch("[A-Za-z0-9_-]*", text) is not None, step, "not base64url")
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError as error:
        raise Refused(step, "not base64url") from error


def _number(text: str) -> int:
    return int.from_bytes(_decoded(text, "13.7.3"), "big")


def _is_usable(entry: Mapping[str, Any]) -> bool:
    """Tell whether an entry is a public key that can prove tokens."""
    kinds: dict[Any, str] = {kind: name for name, kind in _KINDS.items()}
    name = kinds.get((entry.get("kty"), None if entry.get("kty") == "RSA" else entry.get("crv")))
    if name is None or "d" in entry or "k" in entry or entry.get("use", "sig") != "sig":
        return False
    if entry["kty"] == "RSA" and _number(entry["n"]).bit_length() < 2048:
        return False
    return bool(entry.get("alg", name) == name)


def _key(issuer: Issuer, header: Mapping[str, Any]) -> Mapping[str, Any]:
    usable = [entry for entry in issuer.keys if _is_usable(entry)]
    kid = header.get("kid")
    require(kid is None or isinstance(kid, str), "13.7.3", "a kid that is no text")
    named = [entry for entry in usable if kid is None or entry.get("kid") == kid]
    require(len(named) == 1, "13.7.3", f"{len(named)} keys")
    kind, curve = _KINDS[header["alg"]]
    fits = named[0]["kty"] == kind and (curve is None or named[0]["crv"] == curve)
    require(fits and named[0].get("alg", header["alg"]) == header["alg"], "13.7.3", "other key")
    return named[0]


def _verify(entry: Mapping[str, Any], message: bytes, signature: bytes) -> None:
    if entry["kty"] == "RSA":
        numbers = rsa.RSAPublicNumbers(_number(entry["e"]), _number(entry["n"]))
        numbers.public_key().verify(signature, message, padding.PKCS1v15(), hashes.SHA256())
    elif entry["kty"] == "EC":
        x, y = _number(entry["x"]), _number(entry["y"])
        public = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
        require(len(signature) == 64, "13.7.4", "another length")
        r, s = (int.from_bytes(half, "big") for half in (signature[:32], signature[32:]))
        public.verify(encode_dss_signature(r, s), message, ec.ECDSA(hashes.SHA256()))
    else:
        key = Ed25519PublicKey.from_public_bytes(_decoded(entry["x"], "13.7.3"))
        key.verify(signature, message)


def _claims(token: str, issuer: Issuer) -> dict[str, Any]:
    """Return the claims; refuse at 13.7.1 to 13.7.5."""
    require(len(token) <= TOKEN_BYTES, "13.7.1", "too long")
    parts = token.split(".")
    require(len(parts) == 3, "13.7.1", "not three parts")
    head, payload, signature = (_decoded(part, "13.7.1") for part in parts)
    try:
        header = json.loads(head)
    except ValueError as error:
        raise Refused("13.7.1", "a header that is no JSON") from error
    require(isinstance(header, dict) and "alg" in header, "13.7.1", "a header without alg")
    require(isinstance(header["alg"], str) and header["alg"] in _KINDS, "13.7.2", "another alg")
    kind = header.get("typ", "JWT")
    require(isinstance(kind, str) and kind.upper() == "JWT", "13.7.2", "another typ")
    require("crit" not in header, "13.7.2", "a crit")
    entry = _key(issuer, header)
    try:
        _verify(entry, ".".join(parts[:2]).encode(), signature)
    except InvalidSignature as error:
        raise Refused("13.7.4", "not signed by that key") from error
    try:
        claims = json.loads(payload)
    except ValueError as error:
        raise Refused("13.7.5", "claims that are no JSON") from error
    if not isinstance(claims, dict):
        raise Refused("13.7.5", "claims that are no object")
    return claims


def _time(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name, 0 if name == "nbf" else None)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    require(is_number and abs(value) < 2**53, "13.7.5", f"no {name}")
    assert isinstance(value, (int, float))
    return value


def _require_current(claims: Mapping[str, Any], issuer: Issuer, now_s: float) -> None:
    require(claims.get("iss") == issuer.issuer, "13.7.5", "another issuer")
    audience, party = claims.get("aud"), claims.get("azp")
    several = audience if isinstance(audience, list) else [audience]
    require(issuer.audience in several, "13.7.5", "another audience")
    if len(several) > 1 or party is not None:
        require(party == issuer.audience, "13.7.5", "another party")
    require(_time(claims, "exp") > now_s - issuer.leeway_s, "13.7.5", "expired")
    for name in ("iat", "nbf"):
        require(_time(claims, name) <= now_s + issuer.leeway_s, "13.7.5", f"{name} to come")


def read(token: str, user: bytes, issuer: Issuer, now_s: float) -> list[str]:
    """Return attributes of a user, printed, in the order of the claims; refuse at 13.7.1 to .7."""
    claims = _claims(token, issuer)
    _require_current(claims, issuer, now_s)
    require(claims.get("nonce") == user.hex(), "13.7.6", "another nonce")
    return [*_attributes(claims, issuer)]


def _attributes(claims: Mapping[str, Any], issuer: Issuer) -> Iterator[str]:
    for claim, name in issuer.attributes.items():
        if claim not in claims:
            continue
        values = claims[claim] if isinstance(claims[claim], list) else [claims[claim]]
        require(len(values) <= 64, "13.7.7", "more than 64 values")
        for value in values:
            yield _attribute(name, value)


def _attribute(name: str, value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        require(0 <= value < 2**32, "13.7.7", "a number out of range")
        shown = str(value)
    else:
        require(isinstance(value, str), "13.7.7", "neither text nor number")
        assert isinstance(value, str)
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        shown = f'"{escaped}"'
    try:
        return print_attribute(f'"{name}":{shown}')
    except (Refused, ValueError) as error:
        raise Refused("13.7.7", f"no attribute: {error}") from error
