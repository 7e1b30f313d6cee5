"""Both implementations on random and changed files of members: alike, or both refuse."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from mksearch.access.attributes import parse_attribute
from mksearch.access.credential import Credential, SignedCredential
from mksearch.access.sealed_bundle import seal_bundle
from mksearch.codec import decode_cbor, encode_cbor
from mksearch.crypto.identity import Identity
from mksearch.crypto.randomness import SystemRandom
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.user_key import UserKey
from mksearch.errors import MksearchError
from mksearch.index.manifest import SignedManifest
from tests.reference import access as reference
from tests.reference import keys, manifest, members, mlkem
from tests.reference.refused import Refused

from .access import EPOCH, POLICY, key, shared
from .good_index import NOW, OWNER_SEED, signing_key
from .material import COLLECTION, MASTER, seed
from .members import (
    ADMIN_SEED,
    MEMBER_SECRET,
    USER_SEED,
    admin,
    base_of,
    body,
    fast_bundle,
    fast_credential,
    group_keys,
    identity,
    sealed_bundle,
    signed_versions,
    slow_bundle,
    slow_credential,
)

N_MUTATIONS = int(os.environ.get("MKSEARCH_MUTATIONS", "2000"))
PIECES = ('"', ":", "\\", " ", "a", "7", "0", "and", "é", "e\u0301", "年", "\u200d", "(", "=", ">")


def outcome(read: Callable[[], object]) -> object:
    try:
        return read() or True
    except (MksearchError, Refused, ValueError):
        return None


def changed(rng: random.Random, data: bytes, start: int = 0) -> bytes:
    """Return data with a few bytes replaced, dropped or put in."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(start, len(data))
        piece = rng.choice([b"", rng.randbytes(1), bytes([data[at] ^ 1 << rng.randrange(8)])])
        data = data[:at] + piece + data[at + rng.choice([0, 1, 1, 1]) :]
    return data


# --- what is sealed to a person ------------------------------------------------------------------


@pytest.mark.parametrize("number", range(10))
def test_what_one_seals_the_other_opens(number: int) -> None:
    rng = random.Random(f"seals {number}")
    user_seed, purpose = rng.randbytes(32), rng.choice([b"credential", b"backup"])
    context, plaintext = rng.randbytes(rng.randrange(40)), rng.randbytes(rng.randrange(3000))
    user, mine = Identity(SecretKey(user_seed)), members.identity(user_seed)
    assert user.public.encode() == mine.user_key

    by_product = user.public.seal(purpose, context, plaintext)
    assert members.open_sealed(user_seed, purpose, context, by_product) == plaintext
    drawn = rng.randbytes(32), rng.randbytes(32)
    by_reference = members.seal(mine.user_key, purpose, context, plaintext, *drawn)
    assert user.open(purpose, context, by_reference, "it") == plaintext
    assert len(by_product) == len(by_reference) == len(plaintext) + 1136

    for sealed in (by_product, by_reference):
        wrong = changed(rng, sealed)
        if wrong == sealed:
            continue
        assert members.open_sealed(user_seed, purpose, context, wrong) is None
        with pytest.raises(MksearchError):
            user.open(purpose, context, wrong, "it")


def test_a_ciphertext_of_another_key_gives_another_secret_as_the_standard_says() -> None:
    rng = random.Random("implicit rejection")
    d, z, m = (rng.randbytes(32) for _ in range(3))
    secret, ciphertext = mlkem.encapsulate(mlkem.public_key(d), m)
    assert mlkem.decapsulate(d, z, ciphertext) == secret
    other = bytes([ciphertext[0] ^ 1]) + ciphertext[1:]
    assert mlkem.decapsulate(d, z, other) not in (secret, mlkem.decapsulate(d, m, other))


def test_both_read_changed_user_keys_alike() -> None:
    rng = random.Random("user keys")
    good = identity().public.encode()
    n_read = 0
    for _ in range(min(N_MUTATIONS, 300)):
        # Half of the changes fall on the first bytes, where there is something to see.
        data = changed(rng, good[:60]) + good[60:] if rng.random() < 0.5 else changed(rng, good)
        reads = [outcome(partial(read, data)) for read in (UserKey.decode, members.decode_user_key)]
        assert (reads[0] is None) == (reads[1] is None), data.hex()
        n_read += reads[0] is not None
    assert n_read


# --- credentials ---------------------------------------------------------------------------------


def random_attribute(rng: random.Random) -> str:
    return "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 5)))


def test_both_print_attributes_alike_and_read_what_they_print() -> None:
    rng = random.Random("printing")
    n_printed = 0
    for _ in range(N_MUTATIONS):
        text = random_attribute(rng)
        made = outcome(lambda text=text: str(parse_attribute(text)))  # type: ignore[misc]
        assert made == outcome(partial(members.print_attribute, text)), ascii(text)
        if made is not None:
            n_printed += 1
            assert str(parse_attribute(str(made))) == made
            assert parse_attribute(str(made)) == parse_attribute(text)
    assert N_MUTATIONS / 20 < n_printed < N_MUTATIONS


def _fast_body(data: bytes) -> object:
    return SignedCredential.decode(data, admin().public)


def _slow_body(data: bytes) -> object:
    read, _, _ = members.read_credential(
        data, admin().public, COLLECTION, shared().parameters.authority, identity().public.id, NOW
    )
    return read


def test_both_read_changed_credentials_alike() -> None:
    rng = random.Random("credentials")
    raw = body().encode()
    n_read = 0
    for _ in range(min(N_MUTATIONS, 2000)):
        fields = decode_cbor(raw, "a credential")
        if rng.random() < 0.5:
            some = [random_attribute(rng) for _ in range(rng.randint(0, 3))]
            made = [str(outcome(partial(members.print_attribute, text)) or text) for text in some]
            fields["attributes"] = sorted(made, key=str.encode) if rng.random() < 0.9 else made
            encoded = encode_cbor(fields)
        else:
            # The names behind the epoch are pinned, so that a change would be refused later.
            encoded = changed(rng, raw)
        data = members.sign_credential(encoded, ADMIN_SEED, b"sealed")
        data = data if rng.random() < 0.9 else changed(rng, data)
        fast, slow = outcome(partial(_for_here, data)), outcome(partial(_slow_body, data))
        assert (fast is None) == (slow is None), data.hex()
        n_read += fast is not None
    assert n_read > N_MUTATIONS / 50


def _for_here(data: bytes) -> object:
    signed = SignedCredential.decode(data, admin().public)
    signed.require_for(
        collection=COLLECTION,
        authority=shared().parameters.authority,
        user=identity().public.id,
        now_s=NOW,
    )
    return signed


def test_a_credential_of_the_product_opens_with_the_reference() -> None:
    case = {
        "file": [{"hex": base_of("credential").hex()}],
        "admin_key": admin().public.hex(),
        "collection": COLLECTION.hex(),
        "parameters": shared().parameters.encode().hex(),
        "seed": USER_SEED.hex(),
        "now": NOW,
    }
    fast_credential(case)
    slow_credential(case)


def test_a_body_that_the_product_would_not_make_is_not_read_either() -> None:
    made = Credential.decode(body().encode())
    assert made == body()
    assert replace(made, attributes=tuple(reversed(made.attributes))) == made


# --- sealed bundles ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [b"", b"role:analyst", POLICY.encode()])
def test_a_bundle_of_the_product_opens_with_the_reference(policy: bytes) -> None:
    data = seal_bundle(
        group_keys(policy),
        shared().parameters,
        SecretKey(MEMBER_SECRET),
        SystemRandom(),
        collection=COLLECTION,
        epoch=EPOCH,
        policy=policy,
    )
    parameters = reference.decode_parameters(shared().parameters.encode())
    held = key().encode()
    opened = members.open_bundle(data, parameters, held, MEMBER_SECRET, COLLECTION, EPOCH, policy)
    assert opened == keys.bundle_keys(MASTER, COLLECTION, EPOCH, policy)


def _case(data: bytes, policy: bytes) -> dict[str, object]:
    return {
        "file": [{"hex": data.hex()}],
        "parameters": shared().parameters.encode().hex(),
        "key": key().encode().hex(),
        "member_secret": MEMBER_SECRET.hex(),
        "collection": COLLECTION.hex(),
        "epoch": EPOCH,
        "policy": policy.hex(),
    }


@pytest.mark.parametrize("policy", [b"", POLICY.encode()])
def test_both_read_changed_bundles_alike(policy: bytes) -> None:
    rng = random.Random(f"bundles {policy!r}")
    good, _ = sealed_bundle(policy)
    for number in range(40 if policy else min(N_MUTATIONS, 300)):
        # Changes of points take the reference long.
        data = changed(rng, good[:28]) + good[28:] if number % 2 else changed(rng, good)
        case = _case(data, policy)
        fast, slow = outcome(partial(fast_bundle, case)), outcome(partial(slow_bundle, case))
        assert (fast is None) == (slow is None), data.hex()
        assert fast is None or data == good


def test_the_product_opens_its_bundles_alone_with_both_secrets() -> None:
    case = _case(sealed_bundle(POLICY.encode())[0], POLICY.encode())
    fast_bundle(case)
    for name, value in (("member_secret", seed("other").hex()), ("epoch", EPOCH + 1)):
        assert outcome(partial(fast_bundle, case | {name: value})) is None
        assert outcome(partial(slow_bundle, case | {name: value})) is None


# --- manifests -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(200))
def test_a_changed_manifest_of_format_2_is_good_for_both_or_for_neither(number: int) -> None:
    rng = random.Random(f"manifest 2 {number}")
    signed = signed_versions()[number % 2]
    raw = bytearray(signed.body)
    # Half of the changes fall on what format 2 has more.
    at = 0 if number % 4 < 2 else signed.body.index(b"faccess")
    for _ in range(rng.randint(1, 2)):
        raw[rng.randrange(at, at + 600 if at else len(raw))] = rng.randrange(256)
    file = manifest.sign_manifest(bytes(raw), OWNER_SEED, rng.choice([1, 2, 2, 2, 2, 2]))
    owner = signing_key().public

    def fast() -> object:
        read = SignedManifest.decode(file, owner, COLLECTION)
        read.require_current(NOW)
        return read

    reads = outcome(fast), outcome(partial(manifest.read_manifest, file, owner, COLLECTION, NOW))
    assert (reads[0] is None) == (reads[1] is None), bytes(raw).hex()
