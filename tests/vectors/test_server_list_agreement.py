"""Both implementations on changed manifests of format 4: alike, or both refuse."""

from __future__ import annotations

import random
from functools import partial

import pytest

from mksearch.index.manifest import SignedManifest
from tests.reference import manifest
from tests.reference.codec import decode_cbor, encode_cbor

from . import server_lists
from .good_index import NOW, OWNER_SEED, signing_key
from .material import COLLECTION
from .test_timestamp_agreement import outcome


@pytest.mark.parametrize("number", range(100))
def test_a_changed_manifest_of_format_4_is_good_for_both_or_for_neither(number: int) -> None:
    rng = random.Random(f"manifest 4 {number}")
    signed = server_lists.signed_versions()[rng.choice([0, 1, 1])]
    raw = bytearray(signed.body)
    # At the servers, or at those that were replaced.
    at = signed.body.index(rng.choice([b"gservers", b"gretired"]))
    for _ in range(rng.randint(1, 2)):
        raw[min(at + rng.randrange(200), len(raw) - 1)] = rng.randrange(256)
    file = manifest.sign_manifest(bytes(raw), OWNER_SEED, rng.choice([1, 3, 4, 4, 4, 4]))
    owner = signing_key().public
    fast = outcome(partial(SignedManifest.decode, file, owner, COLLECTION))
    slow = outcome(partial(manifest.read_manifest, file, owner, COLLECTION, NOW))
    assert (fast is None) == (slow is None), bytes(raw).hex()


@pytest.mark.parametrize("number", range(100))
def test_servers_that_follow_others_are_good_for_both_or_for_neither(number: int) -> None:
    rng = random.Random(f"servers {number}")
    seen = server_lists.signed_versions()[1]
    body = decode_cbor(seen.body)
    body |= {"version": rng.choice([2, 3, 3, 3, 5]), "previous": seen.hash}
    key, place = rng.randbytes(32), rng.randrange(5)
    gone = {"id": place + 1, "key": body["servers"][place]["key"], "until": rng.choice([2, 3])}
    if rng.random() < 0.8:
        body["servers"][place]["key"] = rng.choice([key, key, body["retired"][0]["key"]])
    if rng.random() < 0.7:
        body["retired"].append(gone)
    if rng.random() < 0.2:
        del body["retired"][0]
    if rng.random() < 0.2:
        body["collusion_bound"] = rng.choice([1, 2])
    if rng.random() < 0.2:
        body["servers"].append(body["servers"][0] | {"id": 6, "key": rng.randbytes(32)})
        body["n_servers"] = 6
    owner = signing_key().public
    file = manifest.sign_manifest(encode_cbor(body), OWNER_SEED, 4)

    def fast() -> object:
        signed = SignedManifest.decode(file, owner, COLLECTION)
        signed.require_not_older(seen)
        return signed

    before = decode_cbor(seen.body)
    slow = partial(
        manifest.read_manifest, file, owner, COLLECTION, NOW, (2, seen.hash), before=before
    )
    assert (outcome(fast) is None) == (outcome(slow) is None), body
