"""Identities, credentials, sealed bundles (sections 12.1, 12.3, 12.4)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from . import hpke, mlkem
from .access import Parameters, decode_key, encapsulate, open_header
from .codec import (
    bytes_of,
    decode_cbor,
    encode_cbor,
    has_shape,
    is_bytes,
    is_text,
    is_uint,
    u32,
    u64,
)
from .curve import G1, G2, inverse, pair
from .keys import BUNDLE_KINDS, Bundle, hkdf
from .policies import decode_text, is_plain, key_labels, number, tokenize
from .refused import Refused, require

# Keys of a person

USER_KEY_BYTES = 12 + mlkem.PUBLIC_BYTES + 32 + 32


class Identity(NamedTuple):
    """What is derived from a seed: private keys of 32 bytes."""

    d: bytes
    z: bytes
    x25519: bytes
    sign: bytes

    @property
    def user_key(self) -> bytes:
        """The file of the public keys."""
        signing = Ed25519PrivateKey.from_private_bytes(self.sign).public_key().public_bytes_raw()
        keys = mlkem.public_key(self.d) + hpke.x25519_public(self.x25519) + signing
        return b"MKUSRKEY" + u32(1) + keys


def identity(seed: bytes) -> Identity:
    """Return the keys of an identity."""
    parts = ("mlkem-d", "mlkem-z", "x25519", "sign")
    return Identity(*(hkdf(seed, "mksearch/1/identity/" + part) for part in parts))


def decode_user_key(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the three public keys; refuse at 12.1.1 to 12.1.3."""
    require(data[:12] == b"MKUSRKEY" + u32(1), "12.1.1", "another magic or format")
    require(len(data) == USER_KEY_BYTES, "12.1.2", f"{len(data)} bytes")
    keys = data[12:1196], data[1196:1228], data[1228:]
    require(mlkem.is_public_key(keys[0]), "12.1.3", "a number of q or more")
    return keys


def user_id(user_key: bytes) -> bytes:
    """Return the id of a user."""
    return hashlib.sha256(user_key).digest()


def _info(purpose: bytes, context: bytes) -> bytes:
    return b"mksearch/1/hpke/" + purpose + b"\x00" + context


def seal(
    user_key: bytes, purpose: bytes, context: bytes, plaintext: bytes, m: bytes, private: bytes
) -> bytes:
    """Return Seal; `m` and `private`, 32 bytes each, are drawn."""
    lattice, curve, _ = decode_user_key(user_key)
    return hpke.seal(lattice, curve, _info(purpose, context), plaintext, m, private)


def open_sealed(seed: bytes, purpose: bytes, context: bytes, sealed: bytes) -> bytes | None:
    """Undo `seal`; None if it does not open."""
    d, z, private, _ = identity(seed)
    return hpke.open_sealed(d, z, private, _info(purpose, context), sealed)


# Credentials

_CREDENTIAL = {
    "collection": bytes_of(16),
    "authority": bytes_of(32),
    "epoch": is_uint,
    "serial": bytes_of(16),
    "user": bytes_of(32),
    "attributes": [is_text],
    "issued_at": is_uint,
    "expires_at": is_uint,
}
_SECRETS = {"member_secret": bytes_of(32), "attribute_key": is_bytes}
_LABEL = b"mksearch/1/credential\x00"


def _quoted(part: str) -> str:
    return '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"'


def print_attribute(text: str) -> str:
    """Return an attribute as credentials have it; refuse at 11.1 what is none."""
    [token] = tokenize(decode_text(text.encode()))
    require(token.kind == "word", "11.1.5", "not an attribute")
    name, value = token.text, token.value
    is_word = name.isascii() and (name.isdigit() or name.lower() in ("and", "or", "of", "not"))
    shown = name if is_plain(name) and ":" not in name and not is_word else _quoted(name)
    if not value:
        return shown
    is_text_of_digits = token.is_quoted and number(value) is not None
    return f"{shown}:{value if is_plain(value) and not is_text_of_digits else _quoted(value)}"


def encode_credential(body: dict[str, Any]) -> bytes:
    """Return the canonical bytes of a body."""
    return encode_cbor(body)


def sign_credential(body: bytes, admin_seed: bytes, sealed: bytes) -> bytes:
    """Return the file of a credential, signed by the Ed25519 private key of 32 bytes."""
    signature = Ed25519PrivateKey.from_private_bytes(admin_seed).sign(_LABEL + body)
    head = b"MKCREDEN" + u32(1) + u32(len(body))
    return head + body + signature + u32(len(sealed)) + sealed


def read_credential(
    data: bytes, admin_key: bytes, collection: bytes, authority: bytes, user: bytes, now: int
) -> tuple[dict[str, Any], bytes, bytes]:
    """Return (body, its hash, sealed part); refuse at 12.3.1 to 12.3.7, in this order."""
    require(data[:12] == b"MKCREDEN" + u32(1), "12.3.1", "another magic or format")
    rest = data[12:]
    require(len(rest) >= 4, "12.3.2", "no length")
    size, rest = int.from_bytes(rest[:4], "big"), rest[4:]
    require(len(rest) >= size + 68, "12.3.2", "too short")
    raw, signature, rest = rest[:size], rest[size : size + 64], rest[size + 64 :]
    size, sealed = int.from_bytes(rest[:4], "big"), rest[4:]
    require(len(sealed) == size, "12.3.2", "another length of the sealed part")
    try:
        Ed25519PublicKey.from_public_bytes(admin_key).verify(signature, _LABEL + raw)
    except InvalidSignature as error:
        raise Refused("12.3.3", "not signed by the pinned admin key") from error
    try:
        body = decode_cbor(raw)
    except ValueError as error:
        raise Refused("12.3.4", f"the body is not canonical: {error}") from error
    _check_credential(body)
    require(body["collection"] == collection, "12.3.5", "another collection")
    require(body["authority"] == authority, "12.3.5", "another authority")
    require(body["user"] == user, "12.3.6", "another user")
    require(now <= body["expires_at"], "12.3.7", "expired")
    return body, hashlib.sha256(raw).digest(), sealed


def _check_credential(body: Any) -> None:
    require(has_shape(_CREDENTIAL, body), "12.3.4", "other keys or types")
    require(body["epoch"] >= 1, "12.3.4", "epoch 0")
    require(body["issued_at"] < body["expires_at"], "12.3.4", "never valid")
    texts = body["attributes"]
    try:
        printed = [print_attribute(text) for text in texts]
        # Two numbers of one name, no attribute, or too many.
        key_labels(texts, body["epoch"])
    except (Refused, ValueError) as error:
        raise Refused("12.3.4", f"no attributes: {error}") from error
    require(printed == texts, "12.3.4", "not as printed")
    ordered = sorted({text.encode() for text in texts})
    require([text.encode() for text in texts] == ordered, "12.3.4", "not ascending")


def open_credential(
    body: dict[str, Any], context: bytes, sealed: bytes, seed: bytes, parameters: Parameters
) -> tuple[bytes, bytes]:
    """Return (member secret, key file or b""); refuse at 12.3.8 and 12.3.9."""
    opened = open_sealed(seed, b"credential", context, sealed)
    if opened is None:
        raise Refused("12.3.8", "does not open")
    try:
        secrets = decode_cbor(opened)
    except ValueError as error:
        raise Refused("12.3.8", f"not canonical: {error}") from error
    require(has_shape(_SECRETS, secrets), "12.3.8", "other keys or types")
    file: bytes = secrets["attribute_key"]
    if file:
        _require_key(parameters, file, body["attributes"], body["epoch"])
    return secrets["member_secret"], file


def _require_key(
    parameters: Parameters, file: bytes, attributes: Sequence[str], epoch: int
) -> None:
    try:
        authority, key = decode_key(file)
    except Refused as refused:
        raise Refused("12.3.9", str(refused)) from refused
    require(authority == parameters.authority, "12.3.9", "of another authority")
    require(sorted(key.components) == key_labels(attributes, epoch), "12.3.9", "other labels")
    sides = [(key.k, [(G1, parameters.b), (parameters.a, key.l)])]
    sides += [(point, [(parameters.hash(x), key.l)]) for x, point in key.components.items()]
    for left, right in sides:
        equation = [(left, G2), *((inverse(a), b) for a, b in right)]
        require(pair(equation) == pair([]), "12.3.9", "an equation does not hold")


# Sealed bundles

_BUNDLE = b"MKBUNDLE" + u32(1)


def encode_bundle(bundle: Bundle) -> bytes:
    """Return the 224 bytes of a bundle."""
    return b"".join(bundle[kind] for kind in BUNDLE_KINDS)


def _context(parameters: Parameters, collection: bytes, epoch: int, policy: bytes) -> bytes:
    return parameters.authority + collection + u64(epoch) + policy


def _bundle_key(abe_key: bytes, member_secret: bytes, context: bytes) -> bytes:
    if abe_key:
        return hkdf(abe_key + member_secret, "mksearch/1/bundle-seal", context)
    return hkdf(member_secret, "mksearch/1/bundle-members", context)


def seal_bundle(
    bundle: Bundle,
    parameters: Parameters,
    member_secret: bytes,
    collection: bytes,
    epoch: int,
    policy: bytes,
    nonce: bytes,
    *,
    s: int = 0,
    v: Sequence[int] = (),
    r: Sequence[int] = (),
) -> bytes:
    """Return the file of a sealed bundle; nonce, s, v and r are drawn, s, v, r for a policy."""
    header = abe_key = b""
    if policy:
        header, abe_key = encapsulate(parameters, policy, epoch, collection, s, v, r)
    context = _context(parameters, collection, epoch, policy)
    key = _bundle_key(abe_key, member_secret, context)
    sealed = AESGCM(key).encrypt(nonce, encode_bundle(bundle), context + header)
    return _BUNDLE + u32(len(header)) + header + nonce + sealed


def open_bundle(
    data: bytes,
    parameters: Parameters,
    key_file: bytes,
    member_secret: bytes,
    collection: bytes,
    epoch: int,
    policy: bytes,
) -> dict[str, bytes]:
    """Return the keys of a group; refuse at 12.4.1 to 12.4.4 and 11.4.4."""
    require(data[:12] == _BUNDLE, "12.4.1", "another magic or format")
    require(len(data) >= 16, "12.4.2", "no length")
    end = 16 + int.from_bytes(data[12:16], "big")
    require(len(data) == end + 12 + 240, "12.4.2", "another length")
    header, nonce, sealed = data[16:end], data[end : end + 12], data[end + 12 :]
    require(bool(header) == bool(policy), "12.4.3", "a header without a policy, or none with one")
    abe_key = b""
    if policy:
        try:
            abe_key = open_header(parameters, key_file, policy, epoch, collection, header)
        except Refused as refused:
            if refused.step.startswith("11.6."):
                raise Refused("12.4.3", str(refused)) from refused
            raise
    context = _context(parameters, collection, epoch, policy)
    try:
        key = _bundle_key(abe_key, member_secret, context)
        opened = AESGCM(key).decrypt(nonce, sealed, context + header)
    except InvalidTag as error:
        raise Refused("12.4.4", "does not open") from error
    pieces = [opened[at : at + 32] for at in range(0, len(opened), 32)]
    return dict(zip(BUNDLE_KINDS, pieces, strict=True))
