"""Bad vectors of sections 5 and 7, segments and manifests, and what bad vectors are made with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mksearch.codec import decode_cbor, encode_cbor
from mksearch.crypto import labels
from mksearch.crypto.kdf import sha256
from mksearch.params import P

from . import members, server_lists, timestamps
from .good_index import (
    LIFE,
    NOW,
    TWO_CHUNKS,
    built_segment,
    sealed,
    signed_versions,
    signing_key,
)
from .material import COLLECTION, Json, content_of, seed

Fields = dict[str, Any]
Change = Callable[[Fields], None]

#: Files that bad ones are cut from.
SMALL = "small segment"
CHUNKS = "two chunks"


def base_of(name: str) -> bytes:
    """Return a file that pieces of bad ones refer to."""
    if name == SMALL:
        return built_segment("small").data
    if name in timestamps.BASES:
        return timestamps.base_of(name)
    if name in server_lists.BASES:
        return server_lists.base_of(name)
    if name != CHUNKS:
        return members.base_of(name)
    return sealed("blob", content_of(TWO_CHUNKS))


def files() -> dict[str, Json]:
    """Return the bad vectors by name."""
    return {
        **{f"segment_{name}": file for name, file in _segments()},
        **{f"manifest_{name}": file for name, file in _manifests()},
    }


def pieces_of(data: bytes, base_name: str = "") -> list[Json]:
    """Return a file as pieces: literal bytes, and ranges of the base that it was made from."""
    if not base_name:
        return [{"hex": data.hex()}]
    base = base_of(base_name)
    common = min(len(data), len(base))
    changed = [i for i in range(common) if data[i] != base[i]]
    pieces: list[Json] = []
    done = 0
    while changed:
        start = end = changed.pop(0)
        while changed and changed[0] - end < 16:
            end = changed.pop(0)
        pieces += [*range_of(base_name, done, start), {"hex": data[start : end + 1].hex()}]
        done = end + 1
    pieces += range_of(base_name, done, common)
    if len(data) > common:
        pieces.append({"hex": data[common:].hex()})
    return pieces


def range_of(base_name: str, start: int, stop: int) -> list[Json]:
    return [{"of": base_name, "from": start, "to": stop}] if stop > start else []


def changed(data: bytes, at: int, value: int | None = None) -> bytes:
    """Return data with one byte changed."""
    byte = data[at] ^ 1 if value is None else value
    return data[:at] + bytes([byte]) + data[at + 1 :]


# --- segments ------------------------------------------------------------------------------------


def with_header(change: Change) -> bytes:
    """Return the small segment with a changed header."""
    data = base_of(SMALL)
    size = int.from_bytes(data[12:16], "big")
    header = decode_cbor(data[16 : 16 + size], "a header")
    change(header)
    return _with_raw_header(encode_cbor(header))


def _with_raw_header(header: bytes) -> bytes:
    data = base_of(SMALL)
    return (data[:12] + len(header).to_bytes(4, "big") + header).ljust(4096, b"\0") + data[4096:]


def setting(path: str, value: object) -> Change:
    """Return a change of one field, such as `levels.0.n_rows`."""

    def change(fields: Fields) -> None:
        *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        target: Any = fields
        for key in way:
            target = target[key]
        target[last] = value

    return change


def _huge(header: Fields) -> None:
    """Make everything follow from 2^33 rows; only the keystream is longer than allowed."""
    header |= {"fan_out": 506, "n_checks": 6, "n_rows": 1 << 33}
    rows = [1 << 33]
    while rows[-1] > 506:
        rows.append(-(-rows[-1] // 506))
    offset = 4096
    header["levels"] = []
    for n in rows:
        n_rows = -(-n // 506) * 512
        header["levels"].append(
            {"offset": offset, "n_rows": n_rows, "dedicated": 64, "table": 64, "sha256": bytes(32)}
        )
        offset = -(-(offset + 2 * n_rows * 128) // 4096) * 4096
    header["slots"] |= {"offset": offset, "n_slots": 1 << 33}


def _not_shortest(header: bytes) -> bytes:
    at = header.index(b"gfan_out") + len(b"gfan_out")
    return header[:at] + b"\x18" + header[at:]


def _segments() -> Iterator[tuple[str, Json]]:
    data = base_of(SMALL)
    header = data[16 : 16 + int.from_bytes(data[12:16], "big")]
    layout = built_segment("small").builder.layout
    gap = layout.offsets[1] + 2 * 8 * 128
    large = P.to_bytes(2, "little") + data[4098 : layout.offsets[1]]
    hashed = with_header(setting("levels.0.sha256", sha256(large)))
    for name, step, about, made in (
        ("magic", "5.1", "another magic", changed(data, 0)),
        ("empty", "5.1", "no byte at all", b""),
        ("format", "5.2", "format 0", changed(data, 11)),
        ("format_2", "5.2", "format 2", changed(data, 11, 2)),
        ("header_cut", "5.3", "4095 bytes", data[:4095]),
        ("header_length", "5.3", "a header longer than its page", changed(data, 14, 0xFF)),
        ("header_shorter", "5.3", "a header cut by one byte", changed(data, 15)),
        ("header_behind", "5.3", "a byte behind the header", changed(data, 4095)),
        ("header_form", "5.3", "an integer in two bytes", _with_raw_header(_not_shortest(header))),
        ("header_twice", "5.3", "two CBOR items", _with_raw_header(header + b"\0")),
        ("header_key", "5.3", "a key more", with_header(setting("more", 1))),
        ("header_no_key", "5.3", "a key less", with_header(lambda h: h.pop("epoch"))),
        ("header_text", "5.3", "epoch as text", with_header(setting("epoch", "3"))),
        ("header_negative", "5.3", "a negative epoch", with_header(setting("epoch", -1))),
        ("header_bignum", "5.3", "an epoch of 2^64", with_header(setting("epoch", 1 << 64))),
        ("header_salt", "5.3", "a salt of 31 bytes", with_header(setting("salt", bytes(31)))),
        ("no_rows", "5.3", "no rows", with_header(setting("n_rows", 0))),
        ("no_checks", "5.3", "no check rows", with_header(setting("n_checks", 0))),
        ("fan_out", "5.3", "fan_out 1", with_header(lambda h: h.update(fan_out=1, n_checks=7))),
        ("block", "5.3", "blocks of 9 rows", with_header(setting("fan_out", 3))),
        ("large_block", "5.3", "blocks of 520 rows", with_header(setting("fan_out", 514))),
        ("no_table", "5.3", "no table", with_header(setting("n_tables", 0))),
        ("nine_tables", "5.3", "nine tables", with_header(setting("n_tables", 9))),
        ("width", "5.3", "65 columns", with_header(setting("levels.0.dedicated", 65))),
        ("no_width", "5.3", "a table of no column", with_header(setting("levels.1.table", 0))),
        ("units", "5.3", "slots of 35 units", with_header(setting("slots.units", 35))),
        ("few_slots", "5.3", "fewer slots than rows", with_header(setting("slots.n_slots", 2))),
        ("keystream", "5.3", "over 2^32 AES blocks under a mask key", with_header(_huge)),
        ("wrong_rows", "5.4", "another number of rows", with_header(setting("levels.0.n_rows", 8))),
        ("other_n_rows", "5.4", "n_rows of more blocks", with_header(setting("n_rows", 1))),
        ("no_root", "5.4", "the last level missing", with_header(lambda h: h["levels"].pop())),
        ("no_levels", "5.4", "no level", with_header(setting("levels", []))),
        ("offset", "5.5", "an overlapping level", with_header(setting("levels.1.offset", 4096))),
        ("slots_offset", "5.5", "slots elsewhere", with_header(setting("slots.offset", 12_290))),
        ("cut", "5.5", "the last byte missing", data[:-1]),
        ("header_only", "5.5", "the first page alone", data[:4096]),
        ("longer", "5.5", "a byte more", data + b"\0"),
        ("hash", "5.6", "a byte of level 0 changed", changed(data, 4096)),
        ("hash_slots", "5.6", "the last byte changed", changed(data, len(data) - 1)),
        ("gap", "5.6", "a gap that is not zero", changed(data, gap)),
        (
            "element",
            "5.6",
            "an element of p, its section hashed",
            hashed[:4096] + large + data[layout.offsets[1] :],
        ),
    ):
        error = "UnsupportedVersion" if step == "5.2" else "FormatError"
        yield name, vector_of("segment", about, step, error, file=pieces_of(made, SMALL))


def vector_of(kind: str, about: str, step: str, error: str, **fields: Any) -> Json:
    return {"kind": kind, "about": about, "refused_at": step, "exception": error, **fields}


# --- manifests -----------------------------------------------------------------------------------


def _signed(body: bytes, signing_seed: bytes = b"") -> bytes:
    key = signing_key(signing_seed) if signing_seed else signing_key()
    head = b"MKMANIFS" + (1).to_bytes(4, "big") + len(body).to_bytes(4, "big")
    return head + body + key.sign(labels.MANIFEST, body)


def _with_body(change: Change, signing_seed: bytes = b"") -> bytes:
    fields = decode_cbor(signed_versions()[1].body, "a manifest")
    change(fields)
    return _signed(encode_cbor(fields), signing_seed)


def _all(**values: object) -> Change:
    return lambda fields: fields.update(values)


def _manifests() -> Iterator[tuple[str, Json]]:
    first, second = (signed.encode() for signed in signed_versions())
    flag: Json = {"owner_key": signing_key().public.hex(), "collection": COLLECTION.hex()}
    late = NOW + LIFE + 3

    def vector(
        about: str, step: str, error: str, file: bytes, seen: bytes = b"", now: int = NOW
    ) -> Json:
        seen_pieces = pieces_of(seen) if seen else None
        return vector_of(
            "manifest", about, step, error, **flag, now=now, seen=seen_pieces, file=pieces_of(file)
        )

    format_, refused, stale = "FormatError", "ManifestRefused", "ManifestStale"
    yield "empty", vector("no byte at all", "7.1", format_, b"")
    yield "magic", vector("another magic", "7.1", format_, changed(second, 3))
    yield "format", vector("format 5", "7.1", "UnsupportedVersion", changed(second, 11, 5))
    yield "cut", vector("the last byte missing", "7.2", format_, second[:-1])
    yield "longer", vector("a byte more", "7.2", format_, second + b"\0")
    yield "length", vector("another length", "7.2", format_, changed(second, 15))
    yield "no_length", vector("no length", "7.2", format_, second[:14])
    bad = "VerificationError"
    yield "body", vector("a byte of the body changed", "7.3", bad, changed(second, 40))
    yield "signature", vector("the signature changed", "7.3", bad, changed(second, len(second) - 1))
    other = seed("another owner")
    foreign = _signed(signed_versions()[1].body, other)
    yield "foreign_key", vector("signed with another key", "7.3", bad, foreign)
    yield (
        "foreign_and_expired",
        vector("signed with another key, and expired", "7.3", bad, foreign, now=late),
    )
    junk = _signed(b"\xbf\xff", other)
    yield "foreign_and_junk", vector("signed with another key, no manifest", "7.3", bad, junk)
    body = signed_versions()[1].body
    at = body.index(b"gversion") + 8
    for name, about, made in (
        ("form", "an integer in two bytes", _signed(body[:at] + b"\x18" + body[at:])),
        ("indefinite", "a map of indefinite length", _signed(b"\xbf" + body[1:] + b"\xff")),
        ("twice", "two CBOR items", _signed(body + b"\0")),
        ("key", "a key more", _with_body(_all(more=1))),
        ("no_key", "a key less", _with_body(lambda f: f.pop("name"))),
        ("type", "a name that is no text", _with_body(_all(name=b"x"))),
        ("bool", "a version that is true", _with_body(_all(version=True))),
        ("negative", "a negative time", _with_body(_all(created_at=-1))),
        ("bignum", "an expiry of 2^64", _with_body(_all(expires_at=1 << 64))),
        ("group_type", "a group that is no map", _with_body(_all(groups=[[]]))),
        ("object_id", "a name of 31 bytes", _with_body(setting("catalogue.id", bytes(31)))),
        ("salt", "a salt of 33 bytes", _with_body(setting("groups.0.segments.0.salt", bytes(33)))),
        ("collection_length", "a collection of 15 bytes", _with_body(_all(collection=bytes(15)))),
        ("version_0", "version 0", _with_body(_all(version=0))),
        ("first_with_previous", "version 1 with a manifest before", _with_body(_all(version=1))),
        (
            "no_previous",
            "version 2 without a manifest before",
            _with_body(_all(previous=bytes(32))),
        ),
        ("quorum", "4 servers for a collusion bound of 2", _with_body(_all(n_servers=4))),
        ("no_bound", "a collusion bound of 0", _with_body(_all(collusion_bound=0))),
        ("servers", "256 servers", _with_body(_all(n_servers=256))),
        ("scoring_key", "a scoring of more keys", _with_body(setting("groups.0.scoring.k2", 1.0))),
        ("scoring_integer", "k1 as an integer", _with_body(setting("groups.0.scoring.k1", 1))),
        ("scoring_kind", "an unknown scoring", _with_body(setting("groups.0.scoring.kind", "x"))),
        ("scoring_b", "b above 1", _with_body(setting("groups.0.scoring.b", 1.5))),
        (
            "scoring_nan",
            "k1 not a number",
            _with_body(setting("groups.0.scoring.k1", float("nan"))),
        ),
    ):
        yield name, vector(about, "7.4", format_, made)
    owner = _with_body(_all(owner_key=signing_key(other).public))
    yield "foreign_owner", vector("another owner key named in it", "7.5", refused, owner)
    collection = _with_body(_all(collection=seed("foreign")[:16]))
    yield "foreign_collection", vector("of another collection", "7.5", refused, collection)
    yield "rollback", vector("older than what was seen", "7.6", stale, first, second)
    twin = _with_body(_all(name="twin"))
    yield "equivocation", vector("two of one version", "7.6", stale, twin, second)
    broken = _with_body(_all(previous=seed("elsewhere")))
    yield "broken_chain", vector("a successor of another one", "7.6", stale, broken, first)
    yield "rollback_and_expired", vector("older, and expired", "7.6", stale, first, second, late)
    yield "expired", vector("expired", "7.7", "ManifestExpired", second, first, late)
