"""Vectors of sections 13.6.6 and 15.1: manifests of format 4, and a share at a new point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from mksearch.access.keys import VerificationKeys
from mksearch.access.refresh import deal_masks, keys_for
from mksearch.access.share_keeping import masked, repaired
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.index.manifest import FIRST_PREVIOUS, Manifest, SignedManifest
from mksearch.index.server_list import ListedServer, ServerList
from tests.reference import access as reference_access
from tests.reference import manifest as reference
from tests.reference import shares
from tests.reference.codec import decode_cbor
from tests.reference.curve import R

from . import members, timestamps
from .access import drawn, shared
from .fast import Fixed
from .good_index import NOW, OWNER_SEED, sample_manifest, signing_key
from .material import COLLECTION, Json, load, seed

NEW_POINT, HELPERS = 4, (1, 3)


def server(place: int, since: int = 1, *, name: str = "") -> ListedServer:
    """Return a server of these vectors; the second one goes without TLS."""
    key = SigningKey(SecretKey(seed(f"key of server {place}{name}"))).public
    tls_key = b"" if place == 2 else seed(f"TLS key of server {place}{name}")
    address = f"s{place}{name.strip()}.example.org:{7100 + place}"
    return ListedServer(place, address, key, tls_key, since)


def listed(n_servers: int) -> ServerList:
    """Return servers of which none was replaced."""
    return ServerList(tuple(server(place) for place in range(1, n_servers + 1)))


def _sign(manifest: Manifest) -> SignedManifest:
    return SignedManifest.sign(manifest, signing_key())


@cache
def signed_versions() -> Sequence[SignedManifest]:
    """Return a version that names its servers, one with another server 2, one with more to it.

    The last is of the collection of members.json: with an administration whose authority four
    servers share, and with a timestamp key.
    """
    first = _sign(replace(sample_manifest(1, FIRST_PREVIOUS), servers=listed(5)))
    replaced = listed(5).changed(server(2, 2, name=" new"))
    second = _sign(replace(sample_manifest(2, first.hash), servers=replaced))
    sealed = members.sample(1, FIRST_PREVIOUS, new_keys().encode())
    sealed = replace(sealed, quorum=new_keys().quorum, servers=listed(4))
    return first, second, _sign(replace(sealed, timestamp_key=timestamps.timestamp_key().public))


@cache
def new_keys() -> VerificationKeys:
    """Return the verification keys of a fourth server beside the three of access.json."""
    return keys_for(shared().parameters, shared().verification, NEW_POINT)


@cache
def _shown() -> tuple[list[bytes], bytes]:
    """Return what the helpers show the fourth server, and the share that it makes of it."""
    dealt = shared()
    random = Fixed(drawn("coefficient of a new point"))
    secrets, points = deal_masks(dealt.parameters, 1, NEW_POINT, HELPERS, random)
    pairs = zip(HELPERS, secrets, strict=True)
    values = [masked(dealt.parameters, dealt.shares[j - 1], b).reveal() for j, b in pairs]
    share = repaired(dealt.parameters, new_keys(), NEW_POINT, HELPERS, points, values)
    return values, share.encode()


def file() -> Json:
    """Manifests that name their servers; a share at a new point."""
    values, share = _shown()
    return {
        "about": "Manifests of format 4; the second follows the first. A share of the authority of "
        "access.json at a fourth point, from what two servers show under masks that are 0 there.",
        "source": "docs/protocol.md, sections 13.6.6 and 15.1",
        "owner_seed": OWNER_SEED.hex(),
        "owner_key": signing_key().public.hex(),
        "collection": COLLECTION.hex(),
        "now": NOW + 10,
        "manifests": [
            {"body": one.body.hex(), "file": one.encode().hex(), "hash": one.hash.hex()}
            for one in signed_versions()
        ],
        "new_point": {
            "target": NEW_POINT,
            "helpers": list(HELPERS),
            "coefficients": [drawn("coefficient of a new point").hex()],
            "before": shared().verification.encode().hex(),
            "verification": new_keys().encode().hex(),
            "shares": [shared().shares[j - 1].encode().hex() for j in HELPERS],
            "shown": [value.hex() for value in values],
            "share": share.hex(),
        },
    }


def check(good: Json) -> None:
    """Compare the reference with the file."""
    owner_seed, key = bytes.fromhex(good["owner_seed"]), bytes.fromhex(good["owner_key"])
    collection, now = bytes.fromhex(good["collection"]), good["now"]
    bodies = []
    for entry in good["manifests"]:
        encoded = bytes.fromhex(entry["body"])
        fields = decode_cbor(encoded)
        assert reference.encode_body(fields) == encoded
        assert reference.manifest_hash(encoded).hex() == entry["hash"]
        signed = reference.sign_manifest(encoded, owner_seed, 4)
        assert signed.hex() == entry["file"]
        assert reference.read_manifest(signed, key, collection, now) == fields
        bodies.append(fields)
    first, second = good["manifests"][:2]
    seen = 1, bytes.fromhex(first["hash"])
    read = reference.read_manifest(
        bytes.fromhex(second["file"]), key, collection, now, seen, before=bodies[0]
    )
    assert read == bodies[1]
    _check_new_point(good["new_point"])


def _check_new_point(told: Json) -> None:
    before = reference_access.decode_verification(bytes.fromhex(told["before"]))
    after = shares.keys_for(before, told["target"])
    assert reference_access.encode_verification(after).hex() == told["verification"]
    coefficients = [
        reference_access.coefficient(bytes.fromhex(one)) for one in told["coefficients"]
    ]
    masks = shares.masks(coefficients, told["target"], told["helpers"])
    held = [reference_access.decode_share(bytes.fromhex(one)) for one in told["shares"]]
    pairs = zip(held, masks, strict=True)
    values = [(share[3] + b) % R for share, b in pairs]
    assert [value.to_bytes(32, "big").hex() for value in values] == told["shown"]
    factors = reference_access.lagrange(told["helpers"], told["target"])
    alpha = sum(f * w for f, w in zip(factors, values, strict=True)) % R
    share = reference_access.encode_share(after.authority, after.generation, told["target"], alpha)
    assert share.hex() == told["share"]
    reference_access.require_share(share, after)


BASES = {
    "manifest 4": lambda good: good["manifests"][0]["file"],
    "manifest 4 replaced": lambda good: good["manifests"][1]["file"],
    "manifest 4 with access": lambda good: good["manifests"][2]["file"],
}
"""Good files that pieces of bad ones refer to, in servers.json."""


def base_of(name: str) -> bytes:
    """Return a good file as the product writes it today."""
    return bytes.fromhex(BASES[name](file()))


def stored_base(name: str) -> bytes:
    """Return a good file of servers.json."""
    return bytes.fromhex(BASES[name](load("servers")))
