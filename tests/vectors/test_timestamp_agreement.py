"""Both implementations on changed manifests of format 3 and renewals: alike, or both refuse."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from mksearch.errors import MksearchError
from mksearch.index.manifest import SignedManifest
from mksearch.index.renewal import SignedRenewal
from tests.reference import manifest
from tests.reference.refused import Refused

from . import timestamps
from .good_index import LIFE, NOW, OWNER_SEED, signing_key
from .material import COLLECTION


def outcome(read: Callable[[], object]) -> object:
    try:
        return read() or True
    except (MksearchError, Refused, ValueError):
        return None


@pytest.mark.parametrize("number", range(200))
def test_a_changed_manifest_of_format_3_is_good_for_both_or_for_neither(number: int) -> None:
    rng = random.Random(f"manifest 3 {number}")
    signed = timestamps.signed_versions()[0]
    raw = bytearray(signed.body)
    at = signed.body.index(b"mtimestamp_key") if number % 2 else 0
    for _ in range(rng.randint(1, 2)):
        raw[rng.randrange(at, at + 48 if at else len(raw))] = rng.randrange(256)
    file = manifest.sign_manifest(bytes(raw), OWNER_SEED, rng.choice([1, 2, 3, 3, 3, 3]))
    owner = signing_key().public
    fast = outcome(partial(SignedManifest.decode, file, owner, COLLECTION))
    slow = outcome(partial(manifest.read_manifest, file, owner, COLLECTION, NOW))
    assert (fast is None) == (slow is None), bytes(raw).hex()


@pytest.mark.parametrize("number", range(200))
def test_a_changed_renewal_is_good_for_both_or_for_neither(number: int) -> None:
    rng = random.Random(f"renewal {number}")
    signed = timestamps.signed_versions()[0]
    now = timestamps.RENEWED_AT
    fields = {
        "collection": COLLECTION,
        "version": rng.choice([1, 1, 1, 1, 2]),
        "manifest": signed.hash,
        "created_at": now + rng.choice([-10, 0, 0, 120, 121]),
        "expires_at": now + LIFE + rng.choice([-LIFE, -1, 0, 0, 1, 120]),
    }
    file = bytearray(manifest.sign_renewal(fields, timestamps.TIMESTAMP_SEED))
    if number % 4 == 0:
        file[rng.randrange(len(file))] ^= 1 << rng.randrange(8)
    body = manifest.read_manifest(signed.encode(), signing_key().public, COLLECTION, NOW)

    def fast() -> object:
        renewal = SignedRenewal.decode(bytes(file), signed)
        renewal.require_begun(now)
        return renewal

    reads = (
        outcome(fast),
        outcome(partial(manifest.read_renewal, bytes(file), body, signed.hash, now)),
    )
    assert (reads[0] is None) == (reads[1] is None), bytes(file).hex()
