"""Manifests of all formats and renewals: encode, sign, read (sections 7, 12.5, 14, 15.1)."""

from __future__ import annotations

import hashlib
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from . import access, policies
from .codec import (
    SCORING_SHAPE,
    bytes_of,
    decode_cbor,
    encode_cbor,
    has_shape,
    is_bytes,
    is_text,
    is_uint,
    scoring_in_range,
    u32,
)
from .refused import Refused, require

MAGIC = b"MKMANIFS"
_LABEL = b"mksearch/1/manifest\x00"
_FILE = {"id": bytes_of(32), "size": is_uint}
_BODY = {
    "collection": bytes_of(16),
    "name": is_text,
    "version": is_uint,
    "previous": bytes_of(32),
    "created_at": is_uint,
    "expires_at": is_uint,
    "n_servers": is_uint,
    "collusion_bound": is_uint,
    "owner_key": bytes_of(32),
    "groups": [
        {
            "policy": is_bytes,
            "epoch": is_uint,
            "analyzer": is_text,
            "scoring": SCORING_SHAPE,
            "n_docs": is_uint,
            "segments": [{"id": bytes_of(32), "size": is_uint, "salt": bytes_of(32)}],
            "dictionary": _FILE,
            "lookup": _FILE,
            "blobs": _FILE,
        }
    ],
    "catalogue": _FILE,
}
_GROUP: dict[str, Any] = _BODY["groups"][0]  # type: ignore[index]
_SEALED_GROUP = _GROUP | {"bundle": _FILE, "search_key": bytes_of(32)}
_ACCESS = {
    "authority": is_bytes,
    "verification": is_bytes,
    "admin_key": bytes_of(32),
    "epoch": is_uint,
    "credentials": [_FILE],
}
_SEALED_BODY = _BODY | {"access": _ACCESS, "groups": [_SEALED_GROUP]}
_TIMESTAMP = {"timestamp_key": bytes_of(32)}
_SERVERS = {
    "servers": [
        {"id": is_uint, "address": is_text, "key": bytes_of(32), "tls_key": is_bytes,
         "since": is_uint}
    ],
    "retired": [{"id": is_uint, "key": bytes_of(32), "until": is_uint}],
}  # fmt: skip
_RENEWAL_MAGIC = b"MKRENEWL"
_RENEWAL_LABEL = b"mksearch/1/renewal\x00"
_RENEWAL = {
    "collection": bytes_of(16),
    "version": is_uint,
    "manifest": bytes_of(32),
    "created_at": is_uint,
    "expires_at": is_uint,
}
_EQUIVOCATION_MAGIC = b"MKEQUIVO"


def is_sealed(body: object) -> bool:
    """Tell whether a body names an administration."""
    return isinstance(body, dict) and "access" in body


def is_renewable(body: object) -> bool:
    """Tell whether a body names a timestamp key."""
    return isinstance(body, dict) and "timestamp_key" in body


def is_listed(body: object) -> bool:
    """Tell whether a body is of format 4."""
    return isinstance(body, dict) and "servers" in body


def _check_format(body: object, file_format: int) -> None:
    """Refuse at 15.1.1, 14.1.1 and 12.5.1 what belongs to another format."""
    listed = isinstance(body, dict) and ("servers" in body, "retired" in body)
    require(listed in (False, (file_format == 4,) * 2), "15.1.1", "servers, or none")
    if file_format != 4:
        require(is_renewable(body) == (file_format == 3), "14.1.1", "a timestamp key, or none")
    sealed = is_sealed(body)
    if file_format < 3:
        require(sealed == (file_format == 2), "12.5.1", "a body of the other format")
    groups = body.get("groups") if isinstance(body, dict) else None
    for group in groups if isinstance(groups, list) else []:
        if isinstance(group, dict):
            found = ["bundle" in group, "search_key" in group]
            require(found == [sealed] * 2, "12.5.1", "a group of the other format")


def _check_access(body: dict[str, Any]) -> None:
    found = body["access"]
    require(found["epoch"] >= 1, "7.4", "epoch 0")
    require(len(found["credentials"]) <= 1, "7.4", "two lists of credentials")
    try:
        parameters = access.decode_parameters(found["authority"])
        if found["verification"]:
            verification = access.decode_verification(found["verification"])
            access.require_consistent(parameters, verification)
            quorum = body["n_servers"], body["collusion_bound"]
            same = (len(verification.keys), verification.t) == quorum
            require(same, "12.5.2", "of another quorum")
    except Refused as refused:
        raise Refused("12.5.2", str(refused)) from refused
    names = [group["policy"] for group in body["groups"]]
    require(len(set(names)) == len(names), "12.5.3", "two groups of one policy")
    for name in filter(None, names):
        try:
            policies.parse(name)
        except Refused as refused:
            raise Refused("12.5.3", str(refused)) from refused
    later = any(group["epoch"] > found["epoch"] for group in body["groups"])
    require(not later, "12.5.5", "a group of a later epoch")


def _check_servers(body: dict[str, Any]) -> None:
    """Refuse at 15.1.2 servers that cannot be."""
    version, n = body["version"], body["n_servers"]
    ids = [server["id"] for server in body["servers"]]
    require(ids == list(range(1, n + 1)), "15.1.2", f"servers {ids}")
    for server in body["servers"]:
        address = server["address"]
        plain = all(33 <= ord(letter) <= 126 for letter in address)
        require(plain and 1 <= len(address) <= 255 and ":" in address, "15.1.2", "no address")
        require(len(server["tls_key"]) in (0, 32), "15.1.2", "a TLS key of another length")
        require(1 <= server["since"] <= version, "15.1.2", f"since {server['since']}")
    require(len(body["retired"]) <= 1024, "15.1.2", "too many were replaced")
    for past in body["retired"]:
        require(1 <= past["id"] <= n, "15.1.2", f"server {past['id']} was replaced")
        require(2 <= past["until"] <= version, "15.1.2", f"until {past['until']}")
    keys = [one["key"] for one in body["servers"] + body["retired"]]
    require(len(set(keys)) == len(keys), "15.1.2", "a key is there twice")


def _check_follows(body: dict[str, Any], before: dict[str, Any]) -> None:
    """Refuse at 15.1.3 servers that may not come after those of an earlier version."""
    if not is_listed(before) or body["version"] <= before["version"]:
        return
    require(is_listed(body), "15.1.3", "the servers are not named any more")
    require(body["collusion_bound"] == before["collusion_bound"], "15.1.3", "another bound")
    require(body["n_servers"] >= before["n_servers"], "15.1.3", "a server was dropped")
    for past in before["retired"]:
        require(past in body["retired"], "15.1.3", "a replaced server is forgotten")
    since = {p["key"] for p in body["retired"] if p["until"] > before["version"]}
    for old, new in zip(before["servers"], body["servers"], strict=False):
        same = old["key"] == new["key"]
        require(same or old["key"] in since, "15.1.3", f"another server {old['id']}, unsaid")


def _check_body(body: dict[str, Any]) -> None:
    shape = _SEALED_BODY if is_sealed(body) else _BODY
    shape = shape | _TIMESTAMP if is_renewable(body) else shape
    shape = shape | _SERVERS if is_listed(body) else shape
    require(has_shape(shape, body), "7.4", "the body has other keys or types")
    n, t = body["n_servers"], body["collusion_bound"]
    require(t >= 1 and 2 * t + 1 <= n <= 255, "7.4", f"{n} servers with collusion bound {t}")
    require(body["version"] >= 1, "7.4", "version 0")
    first = body["version"] == 1
    require(first == (body["previous"] == bytes(32)), "7.4", "`previous` contradicts the version")
    for group in body["groups"]:
        require(scoring_in_range(group["scoring"]), "7.4", "scoring is out of range")
    if is_sealed(body):
        _check_access(body)
    if is_listed(body):
        _check_servers(body)


def encode_body(body: dict[str, Any]) -> bytes:
    """Return the canonical bytes of a manifest's body; refuse at 7.4 a body of another shape."""
    _check_body(body)
    return encode_cbor(body)


def manifest_hash(body: bytes) -> bytes:
    """Return the hash of a manifest's body."""
    return hashlib.sha256(body).digest()


def sign_manifest(body: bytes, owner_seed: bytes, file_format: int = 1) -> bytes:
    """Return the file of a manifest, signed by the Ed25519 private key of 32 bytes."""
    key = Ed25519PrivateKey.from_private_bytes(owner_seed)
    return MAGIC + u32(file_format) + u32(len(body)) + body + key.sign(_LABEL + body)


def read_manifest(
    data: bytes,
    owner_key: bytes,
    collection: bytes,
    now: int,
    seen: tuple[int, bytes] | None = None,
    accept_expired: bool = False,
    authority: bytes | None = None,
    renewal: bytes = b"",
    before: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the body of a manifest file; refuse at 7.1 to 7.7, 12.5, 14.1.1 and 15.1.

    Args:
        data: the file.
        owner_key: pinned Ed25519 public key, 32 bytes.
        collection: pinned, 16 bytes.
        now: Unix seconds.
        seen: version and hash of the highest manifest seen.
        accept_expired: skip 7.7.
        authority: pinned id of 32 bytes, for a member.
        renewal: a file that is refused at 14.2.1 to 14.2.8, or none.
        before: body of the highest manifest seen.
    """
    file_format = int.from_bytes(data[8:12], "big")
    require(data[:8] == MAGIC and file_format in (1, 2, 3, 4), "7.1", "another magic or format")
    require(len(data) >= 16, "7.2", "no length")
    size = int.from_bytes(data[12:16], "big")
    require(len(data) == 16 + size + 64, "7.2", f"{len(data)} bytes for a body of {size}")
    raw, signature = data[16 : 16 + size], data[16 + size :]
    try:
        Ed25519PublicKey.from_public_bytes(owner_key).verify(signature, _LABEL + raw)
    except InvalidSignature as error:
        raise Refused("7.3", "not signed by the pinned owner key") from error
    try:
        body = decode_cbor(raw)
    except ValueError as error:
        raise Refused("7.4", f"the body is not canonical: {error}") from error
    _check_format(body, file_format)
    _check_body(body)
    require(body["owner_key"] == owner_key, "7.5", "another owner key")
    require(body["collection"] == collection, "7.5", "another collection")
    if seen is not None:
        version, known = seen
        require(body["version"] >= version, "7.6", f"version {body['version']} after {version}")
        if body["version"] == version:
            require(manifest_hash(raw) == known, "7.6", f"two manifests of version {version}")
        if body["version"] == version + 1:
            require(body["previous"] == known, "7.6", "not the successor of the manifest known")
    if before is not None:
        _check_follows(body, before)
    until = body["expires_at"]
    if renewal:
        until = max(until, read_renewal(renewal, body, manifest_hash(raw), now)["expires_at"])
    require(now <= until or accept_expired, "7.7", "expired")
    if authority is not None:
        require(is_sealed(body), "12.5.4", "no authority")
        found = access.decode_parameters(body["access"]["authority"]).authority
        require(found == authority, "12.5.4", "another authority")
    return dict(body)


# --- section 14 ----------------------------------------------------------------------------------


def sign_renewal(fields: dict[str, Any], timestamp_seed: bytes) -> bytes:
    """Return the file of a renewal, signed by the Ed25519 private key of 32 bytes."""
    raw = encode_cbor(fields)
    key = Ed25519PrivateKey.from_private_bytes(timestamp_seed)
    return _RENEWAL_MAGIC + u32(1) + u32(len(raw)) + raw + key.sign(_RENEWAL_LABEL + raw)


def read_renewal(data: bytes, body: dict[str, Any], own_hash: bytes, now: int) -> dict[str, Any]:
    """Return the body of a renewal of a manifest; refuse at 14.2.1 to 14.2.8.

    Args:
        data: the file.
        body: of the manifest, proved.
        own_hash: of the manifest.
        now: Unix seconds.
    """
    is_one = data[:8] == _RENEWAL_MAGIC and data[8:12] == u32(1)
    require(is_one, "14.2.1", "another magic or format")
    require(len(data) >= 16, "14.2.2", "no length")
    size = int.from_bytes(data[12:16], "big")
    require(len(data) == 16 + size + 64, "14.2.2", f"{len(data)} bytes for a body of {size}")
    raw, signature = data[16 : 16 + size], data[16 + size :]
    require("timestamp_key" in body, "14.2.3", "the manifest names no timestamp key")
    try:
        key = Ed25519PublicKey.from_public_bytes(body["timestamp_key"])
        key.verify(signature, _RENEWAL_LABEL + raw)
    except InvalidSignature as error:
        raise Refused("14.2.3", "not signed by the timestamp key") from error
    try:
        found = decode_cbor(raw)
    except ValueError as error:
        raise Refused("14.2.4", f"the body is not canonical: {error}") from error
    require(has_shape(_RENEWAL, found), "14.2.4", "the body has other keys or types")
    require(found["collection"] == body["collection"], "14.2.5", "another collection")
    own = own_hash, body["version"]
    require((found["manifest"], found["version"]) == own, "14.2.6", "of another manifest")
    life = found["expires_at"] - found["created_at"]
    require(0 < life <= 7_776_000, "14.2.7", f"for {life} seconds")
    require(found["created_at"] <= now + 120, "14.2.8", "of the future")
    return dict(found)


def read_equivocation(data: bytes, owner_key: bytes, collection: bytes) -> list[bytes]:
    """Return two rival manifest files; refuse at 14.3.1 to 14.3.4."""
    is_one = data[:8] == _EQUIVOCATION_MAGIC and data[8:12] == u32(1)
    require(is_one, "14.3.1", "another magic or format")
    try:
        found = decode_cbor(data[12:])
    except ValueError as error:
        raise Refused("14.3.2", f"not canonical: {error}") from error
    shape = {"first": is_bytes, "second": is_bytes}
    require(has_shape(shape, found), "14.3.2", "other keys or types")
    files = [found["first"], found["second"]]
    known: list[tuple[int, bytes]] = []
    for file in files:
        try:
            body = read_manifest(file, owner_key, collection, 0)
        except Refused as error:
            raise Refused("14.3.3", str(error)) from error
        known.append((body["version"], manifest_hash(file[16:-64])))
        last = body["previous"]
    require(known[0] < known[1], "14.3.4", "the same, or in the other order")
    distance = known[1][0] - known[0][0]
    rivals = distance == 0 or (distance == 1 and last != known[0][1])
    require(rivals, "14.3.4", "both may be")
    return files
