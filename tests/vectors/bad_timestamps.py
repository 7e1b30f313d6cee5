"""Bad vectors of section 14: manifests of format 3, renewals, and evidence of two manifests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from mksearch.codec import decode_cbor, encode_cbor, write_envelope
from mksearch.crypto import labels
from mksearch.index.equivocation import EQUIVOCATION_MAGIC
from mksearch.index.manifest import FIRST_PREVIOUS, SignedManifest

from .bad_files import changed, pieces_of, vector_of
from .good_index import LIFE, NOW, sample_manifest, signing_key
from .material import COLLECTION, Json, seed
from .timestamps import RENEWED_AT, base_of, rivals, signed_versions, timestamp_key

Fields = dict[str, Any]
_PLAIN, _SEALED = "manifest 3", "manifest 3 with access"


def files() -> dict[str, Json]:
    """Return the bad vectors by name."""
    return {
        **{f"manifest_timestamp_{name}": file for name, file in _manifests()},
        **{f"renewal_{name}": file for name, file in _renewals()},
        **{f"equivocation_{name}": file for name, file in _equivocations()},
    }


def _pinned() -> Json:
    return {"owner_key": signing_key().public.hex(), "collection": COLLECTION.hex()}


# --- manifests -----------------------------------------------------------------------------------


def _signed(file_format: int, fields: Fields) -> bytes:
    body = encode_cbor(fields)
    head = b"MKMANIFS" + file_format.to_bytes(4, "big") + len(body).to_bytes(4, "big")
    return head + body + signing_key().sign(labels.MANIFEST, body)


def _manifests() -> Iterator[tuple[str, Json]]:
    plain, sealed = (decode_cbor(signed.body, "a manifest") for signed in signed_versions())
    without = {name: value for name, value in plain.items() if name != "timestamp_key"}
    short = plain | {"timestamp_key": plain["timestamp_key"][:-1]}
    no_access = {name: value for name, value in sealed.items() if name != "access"}
    bundled = plain | {"groups": sealed["groups"][:1]}
    for name, about, step, base, made in (
        ("in_1", "a timestamp key in format 1", "14.1.1", _PLAIN, _signed(1, plain)),
        ("in_2", "a timestamp key in format 2", "14.1.1", _SEALED, _signed(2, sealed)),
        ("none", "no timestamp key in format 3", "14.1.1", _PLAIN, _signed(3, without)),
        ("length", "a timestamp key of 31 bytes", "7.4", _PLAIN, _signed(3, short)),
        ("no_access", "bundles without access", "12.5.1", _SEALED, _signed(3, no_access)),
        ("bundle", "a bundle without access", "12.5.1", _PLAIN, _signed(3, bundled)),
    ):
        more = _pinned() | {"now": NOW, "seen": None, "file": pieces_of(made, base)}
        yield name, vector_of("manifest", about, step, "FormatError", **more)


# --- renewals ------------------------------------------------------------------------------------


def _sealed_renewal(body: bytes, signing_seed: bytes = b"") -> bytes:
    key = timestamp_key(signing_seed) if signing_seed else timestamp_key()
    head = b"MKRENEWL" + (1).to_bytes(4, "big") + len(body).to_bytes(4, "big")
    return head + body + key.sign(labels.RENEWAL, body)


def _renewals() -> Iterator[tuple[str, Json]]:
    good = base_of("renewal")
    body = good[16:-64]
    fields = decode_cbor(body, "a renewal")
    format_, bad, refused = "FormatError", "VerificationError", "RenewalRefused"

    def vector(about: str, step: str, error: str, made: bytes, renews: str = _PLAIN) -> Json:
        more = _pinned() | {"renews": renews, "now": RENEWED_AT}
        return vector_of("renewal", about, step, error, **more, file=pieces_of(made, "renewal"))

    def with_body(change: Callable[[Fields], object]) -> bytes:
        other = dict(fields)
        change(other)
        return _sealed_renewal(encode_cbor(other))

    def setting(**values: object) -> bytes:
        return with_body(lambda f: f.update(values))

    yield "empty", vector("no byte at all", "14.2.1", format_, b"")
    yield "magic", vector("another magic", "14.2.1", format_, changed(good, 0))
    yield "format", vector("format 2", "14.2.1", "UnsupportedVersion", changed(good, 11, 2))
    yield "cut", vector("the last byte missing", "14.2.2", format_, good[:-1])
    yield "longer", vector("a byte more", "14.2.2", format_, good + b"\0")
    yield "no_length", vector("no length", "14.2.2", format_, good[:14])
    yield "body", vector("a byte of the body changed", "14.2.3", bad, changed(good, 30))
    yield "signature", vector("the signature changed", "14.2.3", bad, changed(good, len(good) - 1))
    foreign = _sealed_renewal(body, seed("another timestamp key"))
    yield "foreign_key", vector("by another key", "14.2.3", bad, foreign)
    head = good[:16] + body
    by_owner = head + signing_key().sign(labels.RENEWAL, body)
    yield "owner", vector("by the owner's key", "14.2.3", bad, by_owner)
    other_label = head + timestamp_key().sign(labels.MANIFEST, body)
    yield "label", vector("under the label of manifests", "14.2.3", bad, other_label)
    junk = _sealed_renewal(b"\xbf\xff", seed("another timestamp key"))
    yield "foreign_and_junk", vector("by another key, no renewal", "14.2.3", bad, junk)
    for name, about, made in (
        ("indefinite", "no canonical map", _sealed_renewal(b"\xbf" + body[1:] + b"\xff")),
        ("twice", "two CBOR items", _sealed_renewal(body + b"\0")),
        ("key", "a key more", setting(more=1)),
        ("no_key", "a key less", with_body(lambda f: f.pop("version"))),
        ("type", "a version as text", setting(version="1")),
        ("negative", "a negative time", setting(created_at=-1)),
        ("bignum", "an expiry of 2^64", setting(expires_at=1 << 64)),
        ("hash_length", "a hash of 31 bytes", setting(manifest=fields["manifest"][:-1])),
        ("collection_length", "a collection of 15 bytes", setting(collection=bytes(15))),
    ):
        yield name, vector(about, "14.2.4", format_, made)
    collection = setting(collection=seed("foreign")[:16])
    yield "foreign_collection", vector("of another collection", "14.2.5", refused, collection)
    manifest = setting(manifest=seed("elsewhere"))
    yield "other_manifest", vector("of another manifest", "14.2.6", refused, manifest)
    yield "other_version", vector("of another version", "14.2.6", refused, setting(version=2))
    yield "for_another", vector("of the other manifest", "14.2.6", refused, good, _SEALED)
    for name, about, life_s in (
        ("too_long", "a second too long", LIFE + 1),
        ("no_life", "no second of life", 0),
        ("backwards", "ends before it begins", -1),
    ):
        made = setting(expires_at=RENEWED_AT + life_s)
        yield name, vector(about, "14.2.7", refused, made)
    ahead = setting(created_at=RENEWED_AT + 121)
    yield "future", vector("121 seconds ahead", "14.2.8", refused, ahead)


# --- evidence of two manifests -------------------------------------------------------------------


def _evidence(first: bytes, second: bytes) -> bytes:
    fields = {"first": first, "second": second}
    return write_envelope(EQUIVOCATION_MAGIC, 1) + encode_cbor(fields)


def _equivocations() -> Iterator[tuple[str, Json]]:
    good = base_of("equivocation")
    first, second = rivals().first.encode(), rivals().second.encode()
    format_, bad, refused = "FormatError", "VerificationError", "ManifestRefused"

    def vector(about: str, step: str, error: str, made: bytes) -> Json:
        file = pieces_of(made, "equivocation")
        return vector_of("equivocation", about, step, error, **_pinned(), file=file)

    yield "magic", vector("another magic", "14.3.1", format_, changed(good, 0))
    yield "format", vector("format 2", "14.3.1", "UnsupportedVersion", changed(good, 11, 2))
    yield "cut", vector("the last byte missing", "14.3.2", format_, good[:-1])
    one = write_envelope(EQUIVOCATION_MAGIC, 1) + encode_cbor({"first": first})
    yield "one", vector("one manifest", "14.3.2", format_, one)
    yield "signature", vector("not signed", "14.3.3", bad, changed(good, len(good) - 1))
    damaged = _evidence(first, second + b"\0")
    yield "damaged", vector("a manifest with a byte more", "14.3.3", format_, damaged)
    yield "same", vector("one manifest twice", "14.3.4", refused, _evidence(first, first))
    yield "order", vector("in the other order", "14.3.4", format_, _evidence(second, first))
    before = SignedManifest.sign(sample_manifest(1, FIRST_PREVIOUS), signing_key())
    chained = SignedManifest.sign(sample_manifest(2, before.hash), signing_key())
    follows = _evidence(before.encode(), chained.encode())
    yield "chained", vector("a manifest and its successor", "14.3.4", refused, follows)
    later = replace(sample_manifest(3, seed("a version between")), name="later")
    apart = _evidence(before.encode(), SignedManifest.sign(later, signing_key()).encode())
    yield "apart", vector("manifests with one between", "14.3.4", refused, apart)
