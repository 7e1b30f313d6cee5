"""Enrolment: what a user shows a server, what it answers (sections 13.3, 13.5.1, 13.7)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from . import access, members, shares, tokens
from .codec import decode_cbor, encode_cbor, u32, u64
from .policies import key_labels
from .refused import Refused, require

ENROL = "mksearch/1/enrol"
PARTIAL = "mksearch/1/partial-key"
TOKEN = "mksearch/1/token-attributes"


class Shown(NamedTuple):
    """What a user shows; `id_token` is None without one."""

    challenge: bytes
    credential: bytes
    credential_signature: bytes
    user_key: bytes
    signature: bytes
    id_token: str | None = None
    attributes: Sequence[str] = ()


class Access(NamedTuple):
    """What the active manifest of a server says."""

    parameters: access.Parameters
    generation: int
    admin_key: bytes
    epoch: int


def request(server: int, shown: Shown, authority: bytes, epoch: int) -> bytes:
    """Return M without its label."""
    message = u32(server) + shown.challenge + authority + u64(epoch)
    message += hashlib.sha256(shown.credential).digest()
    if shown.id_token is not None:
        message += hashlib.sha256(shown.id_token.encode()).digest()
        message += hashlib.sha256(encode_cbor(list(shown.attributes))).digest()
    return message


def request_hash(message: bytes) -> bytes:
    """Return SHA-256(M)."""
    return hashlib.sha256(ENROL.encode() + b"\x00" + message).digest()


def partial_message(message: bytes, sealed: bytes, epoch: int, generation: int) -> bytes:
    """Return what a server signs with a partial key, without the label."""
    said = request_hash(message) + hashlib.sha256(sealed).digest()
    return said + u64(epoch) + u64(generation)


def attributes_message(message: bytes, attributes: Sequence[str]) -> bytes:
    """Return what a server signs with the attributes that it would give, without the label."""
    return request_hash(message) + hashlib.sha256(encode_cbor(list(attributes))).digest()


def ascending(texts: Sequence[str]) -> list[str]:
    """Return attributes as printed, each once, ascending by UTF-8 bytes."""
    return sorted(set(texts), key=str.encode)


def serve(
    server: shares.Server, manifest: Access, issuer: tokens.Issuer | None, shown: Shown
) -> list[str]:
    """Return the attributes that a server gives a key for, or would give; refuse at 13.3, 13.7."""
    step = "13.3.1"
    shares.require_challenge(shown.challenge, server.challenge_key, server.now_s, step)
    user = _user(shown.user_key)
    body = _credential(server, manifest, shown, user)
    message = request(server.id, shown, manifest.parameters.authority, manifest.epoch)
    signing = shown.user_key[-32:]
    shares.require_signature(ENROL, message, shown.signature, signing, "13.3.4")
    held = server.held(manifest.parameters.authority)
    require(manifest.generation in held, "13.3.5", "no share")
    own = ascending(body["attributes"])
    if shown.id_token is None:
        return own
    if issuer is None:
        raise Refused("13.7.1", "no token is taken")
    found = ascending([*own, *tokens.read(shown.id_token, user, issuer, server.now_s)])
    try:
        key_labels(found, manifest.epoch)
    except Refused as refused:
        raise Refused("13.7.8", str(refused)) from refused
    require(list(shown.attributes) in ([], found), "13.7.9", "other attributes")
    return found


def _user(user_key: bytes) -> bytes:
    try:
        members.decode_user_key(user_key)
    except Refused as refused:
        raise Refused("13.3.3", str(refused)) from refused
    return members.user_id(user_key)


def _credential(
    server: shares.Server, manifest: Access, shown: Shown, user: bytes
) -> dict[str, Any]:
    file = b"MKCREDEN" + u32(1) + u32(len(shown.credential)) + shown.credential
    file += shown.credential_signature + u32(0)
    pinned = manifest.admin_key, server.collection, manifest.parameters.authority
    try:
        body, _, _ = members.read_credential(file, *pinned, user, server.now_s)
    except Refused as refused:
        step = "13.3.3" if refused.step == "12.3.6" else "13.3.2"
        raise Refused(step, str(refused)) from refused
    require(body["epoch"] == manifest.epoch, "13.3.2", "another epoch")
    return body


def accept(
    message: bytes,
    sealed: bytes,
    signature: bytes,
    generation: int,
    server: int,
    server_key: bytes,
    user_seed: bytes,
    parameters: access.Parameters,
    verification: access.Verification,
    attributes: Sequence[str],
    epoch: int,
) -> access.Key:
    """Return the partial key of a server, proved; refuse at 13.3.6 to 13.3.8, naming it."""
    said = partial_message(message, sealed, epoch, generation)
    shares.require_signature(PARTIAL, said, signature, server_key, "13.3.6", [server])
    opened = members.open_sealed(user_seed, b"partial-key", request_hash(message), sealed)
    if opened is None:
        raise Refused("13.3.7", "does not open", [server])
    try:
        access.decode_partial(opened)
    except Refused as refused:
        raise Refused("13.3.7", str(refused), [server]) from refused
    try:
        return access.require_partial(parameters, verification, opened, server, attributes, epoch)
    except Refused as refused:
        raise Refused("13.3.8", str(refused), [server]) from refused


def accept_attributes(
    message: bytes,
    attributes: Sequence[str],
    signature: bytes,
    server: int,
    server_key: bytes,
    own: Sequence[str],
) -> None:
    """Refuse at 13.7.10, naming the server, attributes that it does not sign or cannot mean."""
    said, step = attributes_message(message, attributes), "13.7.10"
    shares.require_signature(TOKEN, said, signature, server_key, step, [server])
    try:
        printed = [members.print_attribute(text) for text in attributes]
    except (Refused, ValueError) as error:
        raise Refused(step, f"no attributes: {error}", [server]) from error
    if printed != list(attributes) or ascending(printed) != printed or not {*own} <= {*printed}:
        raise Refused(step, "not printed, not ascending or less than the credential", [server])


# Lists of credentials

_LIST = b"MKCREDLS" + u32(1)


def encode_list(files: Mapping[bytes, bytes]) -> bytes:
    """Return the list of the credentials of an epoch."""
    return _LIST + encode_cbor(dict(files))


def decode_list(data: bytes) -> dict[bytes, bytes]:
    """Read a list of credentials; refuse at 13.5.6 and 13.5.7."""
    require(data[:12] == _LIST, "13.5.6", "another magic or format")
    try:
        files = decode_cbor(data[12:])
    except ValueError as error:
        raise Refused("13.5.7", f"not canonical: {error}") from error
    is_map = isinstance(files, dict) and all(
        isinstance(user, bytes) and len(user) == 32 and isinstance(file, bytes)
        for user, file in files.items()
    )
    require(is_map, "13.5.7", "not a file of each user")
    return dict(files)
