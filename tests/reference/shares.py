"""Shares of the authority: handed out, refreshed, repaired (sections 13.1, 13.2, 13.6)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from . import access, members
from .codec import bytes_of, decode_cbor, encode_cbor, has_shape, is_bytes, is_uint, u32, u64
from .curve import G2, Point, R, decode, encode, is_equal, is_identity, power, times
from .keys import hkdf
from .refused import Refused, require

# Servers and their challenges

CHALLENGE_S = 120


def sealing_seed(server_seed: bytes) -> bytes:
    """Return the seed of a server's sealing identity."""
    return hkdf(server_seed, "mksearch/1/server-seal")


def sealing_key(server_seed: bytes) -> bytes:
    """Return the user key file that things are sealed to for a server."""
    return members.identity(sealing_seed(server_seed)).user_key


def share_store_key(server_seed: bytes, erasure_key: bytes, authority: bytes) -> bytes:
    """Return the key under which a server keeps its shares (step 13.2.2)."""
    return hkdf(server_seed + erasure_key, "mksearch/1/share-store", authority)


def _mac(key: bytes, head: bytes) -> bytes:
    return hmac.digest(key, head, "sha256")[:16]


def make_challenge(key: bytes, time_s: int, drawn: bytes) -> bytes:
    """Return a challenge; `drawn` has 8 bytes."""
    head = u64(time_s) + drawn
    return head + _mac(key, head)


def require_challenge(challenge: bytes, key: bytes, now_s: int, step: str) -> None:
    """Refuse a challenge that was not made with `key`, or not within the last 120 seconds."""
    require(len(challenge) == 32, step, "a challenge of another length")
    require(challenge[16:] == _mac(key, challenge[:16]), step, "another server's challenge")
    age_s = now_s - int.from_bytes(challenge[:8], "big")
    require(0 <= age_s <= CHALLENGE_S, step, f"a challenge of {age_s} s")


def challenge_message(
    nonce: bytes, server: int, challenge: bytes, user_key: bytes, generation: int
) -> bytes:
    """Return what a server signs with a challenge, label included."""
    said = u32(server) + challenge + user_key + u64(generation)
    asked = hashlib.sha256(b"challenge\x00" + nonce).digest()
    return b"mksearch/1/answer\x00" + asked + hashlib.sha256(said).digest()


# Signatures


def sign(label: str, message: bytes, seed: bytes) -> bytes:
    """Sign by the Ed25519 private key of 32 bytes."""
    return Ed25519PrivateKey.from_private_bytes(seed).sign(label.encode() + b"\x00" + message)


def require_signature(
    label: str, message: bytes, signature: bytes, key: bytes, step: str, servers: Sequence[int] = ()
) -> None:
    """Refuse at `step` what is not signed by `key`, blaming `servers`."""
    try:
        public = Ed25519PublicKey.from_public_bytes(key)
        public.verify(signature, label.encode() + b"\x00" + message)
    except (InvalidSignature, ValueError) as error:
        raise Refused(step, "another signature", servers) from error


# Orders: bodies, and what is sealed beside them

INSTALL = "mksearch/1/install-share"
REFRESH = "mksearch/1/refresh-share"
HELP = "mksearch/1/repair-help"
REPAIR = "mksearch/1/repair-share"
PART = "mksearch/1/repair-part"

_ADDRESS = {"collection": bytes_of(16), "server": is_uint, "challenge": bytes_of(32)}
_FILES = {"authority": is_bytes, "verification": is_bytes}
_SHAPES: Mapping[str, Mapping[str, Any]] = {
    INSTALL: {**_ADDRESS, **_FILES},
    REFRESH: {**_ADDRESS, **_FILES, "base": is_uint},
    HELP: {
        **_ADDRESS,
        "authority": bytes_of(32),
        "generation": is_uint,
        "target": is_uint,
        "sealing_key": is_bytes,
        "repair": bytes_of(16),
        "mask": bytes_of(96),
    },
    REPAIR: {
        **_ADDRESS,
        **_FILES,
        "repair": bytes_of(16),
        "helpers": [is_uint],
        "masks": [bytes_of(96)],
    },
}


def order_body(label: str, fields: Mapping[str, Any]) -> bytes:
    """Return the body of an order."""
    if not has_shape(_SHAPES[label], dict(fields)):
        raise ValueError(f"not the fields of {label}")
    return encode_cbor(dict(fields))


class Server(NamedTuple):
    """What one server has: secrets, what it pinned, the shares that it holds (files)."""

    id: int
    seed: bytes
    challenge_key: bytes
    now_s: int
    owner_key: bytes
    collection: bytes
    shares: Sequence[bytes] = ()

    def held(self, authority: bytes) -> dict[int, int]:
        """Return generation -> alpha_j of an authority."""
        read = map(access.decode_share, self.shares)
        return {generation: alpha for name, generation, _, alpha in read if name == authority}


def _read(server: Server, label: str, body: bytes, signature: bytes, steps: str) -> dict[str, Any]:
    """Return the fields of an order; refuse at the first three steps of 13.2 or 13.6."""
    require_signature(label, body, signature, server.owner_key, f"{steps}.1")
    try:
        fields: dict[str, Any] = decode_cbor(body)
    except ValueError as error:
        raise Refused(f"{steps}.2", f"not canonical: {error}") from error
    require(has_shape(_SHAPES[label], fields), f"{steps}.2", "other keys or types")
    require(fields["collection"] == server.collection, f"{steps}.3", "another collection")
    require(fields["server"] == server.id, f"{steps}.3", "for another server")
    require_challenge(fields["challenge"], server.challenge_key, server.now_s, f"{steps}.3")
    return fields


@cache
def _belonging(authority: bytes, keys: bytes) -> tuple[access.Parameters, access.Verification]:
    parameters = access.decode_parameters(authority)
    verification = access.decode_verification(keys)
    access.require_consistent(parameters, verification)
    return parameters, verification


def _files(fields: dict[str, Any], step: str) -> tuple[access.Parameters, access.Verification]:
    try:
        return _belonging(fields["authority"], fields["verification"])
    except Refused as refused:
        raise Refused(step, str(refused)) from refused


def _opened(server: Server, purpose: str, context: bytes, sealed: bytes, step: str) -> bytes:
    opened = members.open_sealed(sealing_seed(server.seed), purpose.encode(), context, sealed)
    if opened is None:
        raise Refused(step, "does not open")
    return opened


def _scalar(opened: bytes, step: str) -> int:
    value = int.from_bytes(opened, "big")
    require(len(opened) == 32 and 1 <= value < R, step, "not in 1..r - 1")
    return value


def _hash(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def install(server: Server, body: bytes, signature: bytes, sealed: bytes) -> bytes:
    """Return the share file that a server takes; refuse at 13.2.1 to 13.2.6."""
    fields = _read(server, INSTALL, body, signature, "13.2")
    parameters, verification = _files(fields, "13.2.4")
    file = _opened(server, "authority-share", _hash(body), sealed, "13.2.5")
    try:
        _, generation, of, _ = access.decode_share(file)
        require(of == server.id, "13.2.5", "the share of another server")
        access.require_share(file, verification)
    except Refused as refused:
        raise Refused("13.2.5", str(refused)) from refused
    newest = max(server.held(parameters.authority), default=0)
    require(generation > newest, "13.2.6", f"generation {generation} after {newest}")
    return file


# Refreshing


def zero_parts(coefficients: Sequence[int], n: int) -> list[int]:
    """Return z_1 .. z_n of the polynomial c_1 x + .. + c_t x^t."""
    return access.deal(0, coefficients, n)


def refreshed_keys(
    verification: access.Verification, generation: int, parts: Sequence[int]
) -> access.Verification:
    """Return the V'_j."""
    pairs = zip(verification.keys, parts, strict=True)
    keys = [times([key, power(G2, z)]) for key, z in pairs]
    if any(z == 0 for z in parts) or any(map(is_identity, keys)):
        raise ValueError("drawn again")
    return verification._replace(generation=generation, keys=keys)


def refresh(server: Server, body: bytes, signature: bytes, sealed: bytes) -> bytes:
    """Return the share file that comes out; refuse at 13.6.1 to 13.6.6."""
    fields = _read(server, REFRESH, body, signature, "13.6")
    parameters, verification = _files(fields, "13.6.4")
    held = server.held(parameters.authority)
    require(fields["base"] in held, "13.6.5", f"no share of generation {fields['base']}")
    require(verification.generation > max(held), "13.6.5", "a generation that is not above")
    z = _scalar(_opened(server, "refresh-share", _hash(body), sealed, "13.6.6"), "13.6.6")
    alpha = held[fields["base"]]
    expected = times([power(G2, alpha), power(G2, z)])
    is_right = is_equal(expected, verification.keys[server.id - 1])
    require(is_right, "13.6.6", "not the committed part of zero")
    fresh = (alpha + z) % R
    return access.encode_share(parameters.authority, verification.generation, server.id, fresh)


# Repairing


def masks(coefficients: Sequence[int], target: int, helpers: Sequence[int]) -> list[int]:
    """Return b(j) of the helpers, b(x) = sum_m c_m (x^m - i^m)."""
    values = [
        sum(c * (j**m - target**m) for m, c in enumerate(coefficients, 1)) % R for j in helpers
    ]
    if 0 in values:
        raise ValueError("drawn again")
    return values


def keys_for(verification: access.Verification, n: int) -> access.Verification:
    """Return the keys of one generation for more servers (13.6.6)."""
    helpers = range(1, verification.t + 2)
    keys = list(verification.keys)
    for point in range(len(keys) + 1, n + 1):
        factors = access.lagrange(helpers, point)
        pairs = zip(verification.keys[: verification.t + 1], factors, strict=True)
        keys.append(times(power(key, factor) for key, factor in pairs))
    return verification._replace(keys=keys)


def part_context(repair: bytes, generation: int, target: int, helper: int) -> bytes:
    """Return what a part is bound to when it is sealed."""
    return repair + u64(generation) + bytes([target, helper])


def part_message(body: bytes, part: bytes) -> bytes:
    """Return what a helper signs with its part, without the label."""
    return _hash(body) + _hash(part)


def help_repair(server: Server, body: bytes, signature: bytes, sealed: bytes) -> int:
    """Return what a helper shows the target, w_j; refuse at 13.6.1 to 13.6.3 and 13.6.7."""
    fields = _read(server, HELP, body, signature, "13.6")
    require(1 <= fields["target"] <= 255, "13.6.2", "no server")
    mask = _point(fields["mask"], "13.6.2")
    try:
        members.decode_user_key(fields["sealing_key"])
    except Refused as refused:
        raise Refused("13.6.2", str(refused)) from refused
    held = server.held(fields["authority"])
    require(fields["generation"] in held, "13.6.7", "no share of that generation")
    require(fields["target"] != server.id, "13.6.7", "itself")
    b = _scalar(_opened(server, "repair-mask", _hash(body), sealed, "13.6.7"), "13.6.7")
    require(is_equal(power(G2, b), mask), "13.6.7", "another mask")
    return (held[fields["generation"]] + b) % R


def require_part(body: bytes, part: bytes, signature: bytes, helper: int, key: bytes) -> None:
    """Refuse at 13.6.11, as the owner, a part that its helper did not sign."""
    require_signature(PART, part_message(body, part), signature, key, "13.6.11", [helper])


def _point(data: bytes, step: str) -> Point:
    try:
        return decode(data, 2)
    except Refused as refused:
        raise Refused(step, str(refused)) from refused


def repair_share(server: Server, body: bytes, signature: bytes, parts: Sequence[bytes]) -> bytes:
    """Return the share file that was lost; refuse at 13.6.1 to 13.6.4 and 13.6.8 to 13.6.10."""
    fields = _read(server, REPAIR, body, signature, "13.6")
    points = [_point(mask, "13.6.2") for mask in fields["masks"]]
    parameters, verification = _files(fields, "13.6.4")
    helpers, t, n = fields["helpers"], verification.t, len(verification.keys)
    are_right = helpers == sorted(set(helpers)) and all(1 <= j <= n for j in helpers)
    require(are_right and len(helpers) == t + 1, "13.6.8", "other than t + 1 helpers")
    require(server.id not in helpers, "13.6.8", "itself")
    require(len(points) == len(parts) == t + 1, "13.6.8", "a mask or part too few or many")
    values = []
    for j, point, part in zip(helpers, points, parts, strict=True):
        context = part_context(fields["repair"], verification.generation, server.id, j)
        try:
            opened = _opened(server, "repair-part", context, part, "13.6.9")
            w = int.from_bytes(opened, "big")
            require(len(opened) == 32 and w < R, "13.6.9", "no number below r")
            expected = times([verification.keys[j - 1], point])
            require(is_equal(power(G2, w), expected), "13.6.9", "another number")
        except Refused as refused:
            raise Refused("13.6.9", refused.why, [j]) from refused
        values.append(w)
    factors = access.lagrange(helpers, server.id)
    alpha = sum(f * w for f, w in zip(factors, values, strict=True)) % R
    key = verification.keys[server.id - 1]
    require(alpha > 0 and is_equal(power(G2, alpha), key), "13.6.10", "another share")
    newest = max(server.held(parameters.authority), default=0)
    require(verification.generation >= newest, "13.6.10", "a newer share is held")
    return access.encode_share(parameters.authority, verification.generation, server.id, alpha)


def encode_mask(value: int) -> bytes:
    """Return point(g2^b(j))."""
    return encode(power(G2, value))
