"""Vectors of section 14: manifests of format 3, renewals, and evidence of two manifests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.index.equivocation import Equivocation
from mksearch.index.manifest import FIRST_PREVIOUS, SignedManifest
from mksearch.index.renewal import SignedRenewal
from tests.reference import manifest as reference
from tests.reference.codec import decode_cbor

from . import members
from .good_index import LIFE, NOW, OWNER_SEED, sample_manifest, signing_key
from .material import COLLECTION, Json, load, seed

TIMESTAMP_SEED = seed("timestamp key")
RENEWED_AT = NOW + LIFE - 1000
"""When the renewals of these vectors were signed."""


def timestamp_key(signing_seed: bytes = TIMESTAMP_SEED) -> SigningKey:
    """Return the key that signs the renewals of these vectors."""
    return SigningKey(SecretKey(signing_seed))


@cache
def signed_versions() -> Sequence[SignedManifest]:
    """Return manifests of format 3: without an administration, and with one."""
    plain = sample_manifest(1, FIRST_PREVIOUS)
    sealed = members.sample(1, FIRST_PREVIOUS, b"")
    named = (replace(made, timestamp_key=timestamp_key().public) for made in (plain, sealed))
    return [SignedManifest.sign(made, signing_key()) for made in named]


@cache
def rivals() -> Equivocation:
    """Return two manifests of version 2."""
    first = SignedManifest.sign(sample_manifest(1, FIRST_PREVIOUS), signing_key())
    second = sample_manifest(2, first.hash)
    twin = replace(second, name="twin")
    return Equivocation.of(*(SignedManifest.sign(made, signing_key()) for made in (second, twin)))


def file() -> Json:
    """Manifests with what is renewed of them; evidence."""
    return {
        "about": "Manifests of format 3, of the fields of manifest.json and of members.json; "
        "renewals of them; evidence that the owner's key signed two manifests of version 2.",
        "source": "docs/protocol.md, section 14",
        "owner_seed": OWNER_SEED.hex(),
        "owner_key": signing_key().public.hex(),
        "collection": COLLECTION.hex(),
        "timestamp_seed": TIMESTAMP_SEED.hex(),
        "timestamp_key": timestamp_key().public.hex(),
        "now": RENEWED_AT,
        "manifests": [_case(signed) for signed in signed_versions()],
        "equivocation": {
            "file": rivals().encode().hex(),
            "hashes": [rivals().first.hash.hex(), rivals().second.hash.hex()],
        },
    }


def _case(signed: SignedManifest) -> Json:
    renewal = SignedRenewal.sign(signed, RENEWED_AT, timestamp_key())
    return {
        "body": signed.body.hex(),
        "file": signed.encode().hex(),
        "hash": signed.hash.hex(),
        "renewal": {
            "created_at": renewal.created_at,
            "expires_at": renewal.expires_at,
            "body": renewal.body.hex(),
            "file": renewal.encode().hex(),
        },
    }


def check(good: Json) -> None:
    """Compare the reference with the file."""
    owner_seed, key = bytes.fromhex(good["owner_seed"]), bytes.fromhex(good["owner_key"])
    collection = bytes.fromhex(good["collection"])
    for entry in good["manifests"]:
        encoded, renewal = bytes.fromhex(entry["body"]), bytes.fromhex(entry["renewal"]["file"])
        fields = decode_cbor(encoded)
        assert fields["timestamp_key"].hex() == good["timestamp_key"]
        assert reference.encode_body(fields) == encoded
        signed = reference.sign_manifest(encoded, owner_seed, 3)
        assert signed.hex() == entry["file"]
        own_hash = reference.manifest_hash(encoded)
        assert own_hash.hex() == entry["hash"]
        wanted = {
            "collection": collection,
            "version": fields["version"],
            "manifest": own_hash,
            "created_at": good["now"],
            "expires_at": good["now"] + LIFE,
        }
        assert reference.sign_renewal(wanted, bytes.fromhex(good["timestamp_seed"])) == renewal
        # The renewal is what the manifest is good by.
        until = good["now"] + LIFE
        read = reference.read_manifest(signed, key, collection, until, renewal=renewal)
        assert read == fields
    evidence = bytes.fromhex(good["equivocation"]["file"])
    files = reference.read_equivocation(evidence, key, collection)
    hashes = [reference.manifest_hash(one[16:-64]).hex() for one in files]
    assert hashes == good["equivocation"]["hashes"]


BASES = {
    "manifest 3": lambda good: good["manifests"][0]["file"],
    "manifest 3 with access": lambda good: good["manifests"][1]["file"],
    "renewal": lambda good: good["manifests"][0]["renewal"]["file"],
    "equivocation": lambda good: good["equivocation"]["file"],
}
"""Good files that pieces of bad ones refer to, in timestamp.json."""


def base_of(name: str) -> bytes:
    """Return a good file as the product writes it today."""
    return bytes.fromhex(BASES[name](file()))


def stored_base(name: str) -> bytes:
    """Return a good file of timestamp.json."""
    return bytes.fromhex(BASES[name](load("timestamp")))


# --- readers of bad vectors ----------------------------------------------------------------------


def fast_renewal(case: Json, data: bytes) -> None:
    """Read a renewal with the product."""
    owner_key, collection = bytes.fromhex(case["owner_key"]), bytes.fromhex(case["collection"])
    signed = SignedManifest.decode(stored_base(case["renews"]), owner_key, collection)
    SignedRenewal.decode(data, signed).require_begun(case["now"])


def slow_renewal(case: Json, data: bytes) -> None:
    """Read a renewal with the reference."""
    owner_key, collection = bytes.fromhex(case["owner_key"]), bytes.fromhex(case["collection"])
    raw = stored_base(case["renews"])
    body = reference.read_manifest(raw, owner_key, collection, 0)
    reference.read_renewal(data, body, reference.manifest_hash(raw[16:-64]), case["now"])


def fast_equivocation(case: Json, data: bytes) -> None:
    """Read evidence of two manifests with the product."""
    Equivocation.decode(data, bytes.fromhex(case["owner_key"]), bytes.fromhex(case["collection"]))


def slow_equivocation(case: Json, data: bytes) -> None:
    """Read evidence of two manifests with the reference."""
    owner_key, collection = bytes.fromhex(case["owner_key"]), bytes.fromhex(case["collection"])
    reference.read_equivocation(data, owner_key, collection)
