"""Bad vectors of section 15.1: manifests of format 4."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mksearch.codec import decode_cbor, encode_cbor
from mksearch.crypto import labels

from .bad_files import changed, pieces_of, setting, vector_of
from .good_index import NOW, signing_key
from .material import COLLECTION, Json, seed
from .server_lists import signed_versions

Fields = dict[str, Any]
_FIRST, _SECOND, _SEALED = "manifest 4", "manifest 4 replaced", "manifest 4 with access"


def files() -> dict[str, Json]:
    """Return the bad vectors by name."""
    return {f"manifest_servers_{name}": file for name, file in _manifests()}


def _signed(file_format: int, fields: Fields) -> bytes:
    body = encode_cbor(fields)
    head = b"MKMANIFS" + file_format.to_bytes(4, "big") + len(body).to_bytes(4, "big")
    return head + body + signing_key().sign(labels.MANIFEST, body)


def _body(at: int, *changes: tuple[str, object]) -> Fields:
    fields: Fields = decode_cbor(signed_versions()[at].body, "a manifest")
    for path, value in changes:
        setting(path, value)(fields)
    return fields


def _without(fields: Fields, *names: str) -> Fields:
    return {name: value for name, value in fields.items() if name not in names}


def _manifests() -> Iterator[tuple[str, Json]]:
    def vector(about: str, step: str, made: bytes, base: str, seen: bytes = b"") -> Json:
        error = "ManifestStale" if seen else "FormatError"
        more = {"owner_key": signing_key().public.hex(), "collection": COLLECTION.hex()}
        before = pieces_of(seen, _SECOND) if seen else None
        file = pieces_of(made, base)
        return vector_of("manifest", about, step, error, **more, now=NOW, seen=before, file=file)

    plain, sealed = signed_versions()[0].encode(), signed_versions()[2].encode()
    for name, about, made, base in (
        ("in_1", "servers in format 1", changed(plain, 11, 1), _FIRST),
        ("in_3", "servers in format 3", changed(sealed, 11, 3), _SEALED),
        ("none", "format 4 without servers", _signed(4, _without(_body(0), "servers", "retired")), _FIRST),  # noqa: E501
        ("no_retired", "no list of replaced ones", _signed(4, _without(_body(0), "retired")), _FIRST),  # noqa: E501
        ("only_retired", "replaced ones alone", _signed(4, _without(_body(0), "servers")), _FIRST),
    ):  # fmt: skip
        yield name, vector(about, "15.1.1", made, base)
    bundles = _signed(4, _without(_body(2), "access"))
    yield "bundles", vector("bundles without access", "12.5.1", bundles, _SEALED)
    quorum = _signed(4, _body(2, ("servers.3.id", 4), ("n_servers", 5)))
    yield "verification", vector("verification keys of 4 of 5", "12.5.2", quorum, _SEALED)
    long = "a" * 251 + ":7101"
    servers = _body(1)["servers"]
    for name, about, changes in (
        ("order", "in another order", [("servers", servers[::-1])]),
        ("few", "4 of 5", [("servers", servers[:4])]),
        ("twice", "server 1 twice", [("servers", [servers[0], *servers[:4]])]),
        ("blank", "an address with a blank", [("servers.0.address", "a b:7101")]),
        ("no_port", "an address without a port", [("servers.0.address", "example.org")]),
        ("no_address", "no address", [("servers.0.address", "")]),
        ("umlaut", "an address that is not ASCII", [("servers.0.address", "ä:7101")]),
        ("control", "a control character", [("servers.0.address", "a\n:7101")]),
        ("long", "an address of 256 characters", [("servers.0.address", long)]),
        ("tls_key", "a TLS key of 31 bytes", [("servers.0.tls_key", bytes(31))]),
        ("since_0", "from version 0 on", [("servers.0.since", 0)]),
        ("since_later", "from a later version on", [("servers.0.since", 3)]),
        ("same_key", "two servers of one key", [("servers.0.key", servers[2]["key"])]),
        ("returned", "a replaced server", [("servers.0.key", _body(1)["retired"][0]["key"])]),
        ("gone_0", "a replaced server 0", [("retired.0.id", 0)]),
        ("gone_6", "a replaced server 6 of 5", [("retired.0.id", 6)]),
        ("until_1", "replaced in version 1", [("retired.0.until", 1)]),
        ("until_later", "replaced in a later version", [("retired.0.until", 3)]),
    ):
        made = _signed(4, _body(1, *changes))
        yield name, vector(about, "15.1.2", made, _SECOND)
    for name, about, path, value in (
        ("key_length", "a key of 33 bytes", "servers.0.key", bytes(33)),
        ("type", "a place as text", "servers.0.id", "1"),
        ("more", "a field more", "servers.0.port", 7101),
        ("gone_key", "a replaced key of 31 bytes", "retired.0.key", bytes(31)),
    ):
        yield name, vector(about, "7.4", _signed(4, _body(1, (path, value))), _SECOND)
    second = signed_versions()[1]
    next_one = (("version", 3), ("previous", second.hash))
    gone = _body(1)["retired"]
    other = seed("another server")
    for name, about, made in (
        ("dropped", "no servers any more", _signed(1, _without(_body(1, *next_one), "servers", "retired"))),  # noqa: E501
        ("fewer", "a server fewer", _signed(4, _body(1, *next_one, ("n_servers", 5), ("servers", servers)) | {"servers": servers[:4], "n_servers": 4, "collusion_bound": 1})),  # noqa: E501
        ("bound", "another collusion bound", _signed(4, _body(1, *next_one, ("collusion_bound", 1)))),  # noqa: E501
        ("forgotten", "a replaced one forgotten", _signed(4, _body(1, *next_one, ("retired", [])))),
        ("rewritten", "replaced at another time", _signed(4, _body(1, *next_one, ("retired.0.until", 3)))),  # noqa: E501
        ("unsaid", "another server 3, unsaid", _signed(4, _body(1, *next_one, ("servers.2.key", other)))),  # noqa: E501
        ("backdated", "another server 3, since before", _signed(4, _body(1, *next_one, ("servers.2.key", other), ("retired", [*gone, {"id": 3, "key": servers[2]["key"], "until": 2}])))),  # noqa: E501
    ):  # fmt: skip
        yield name, vector(about, "15.1.3", made, "", second.encode())
