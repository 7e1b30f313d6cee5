"""Vectors of section 12: identities, credentials, sealed bundles, manifests of format 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from mksearch.access.attributes import parse_attribute
from mksearch.access.credential import Credential, SignedCredential
from mksearch.access.enrolment import CredentialSecrets, MemberSecrets, open_credential
from mksearch.access.keys import AttributeKey, PublicParameters
from mksearch.access.policy import Policy
from mksearch.access.sealed_bundle import open_bundle, seal_bundle
from mksearch.access.span_program import SpanProgram
from mksearch.crypto.bundle import KeyBundle
from mksearch.crypto.identity import Identity
from mksearch.crypto.randomness import SystemRandom
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.crypto.user_key import UserKey
from mksearch.index.manifest import FIRST_PREVIOUS, Access, Manifest, ObjectRef, SignedManifest
from mksearch_client.keyring import EnrolledRing
from tests.reference import access as reference
from tests.reference import keys, manifest, members
from tests.reference.codec import decode_cbor

from .access import ATTRIBUTES, EPOCH, POLICY, QUORUM, drawn, draws_of, hexes, key, shared
from .fast import Fixed
from .good_index import LIFE, NOW, OWNER_SEED, fields_of, sample_manifest, signing_key
from .material import COLLECTION, MASTER, Json, load, seed

USER_SEED = seed("identity of a user")
ADMIN_SEED = seed("admin key")
MEMBER_SECRET = seed("member secret")
ISSUED, EXPIRES = NOW, NOW + 86_400
PRINTED: Sequence[tuple[str, str]] = (
    ("role:analyst", "role:analyst"),
    (' "role":"analyst" ', "role:analyst"),
    ("x:7", "x:7"),
    ('x:"7"', 'x:"7"'),
    ('x:"07"', "x:07"),
    ("x:4294967296", "x:4294967296"),
    ('"and":or', '"and":or'),
    ('"7"', '"7"'),
    ('"a:b":c:d', '"a:b":c:d'),
    ('a:"b c\\"\\\\"', 'a:"b c\\"\\\\"'),
    ("年齢:30", "年齢:30"),
)
"""Attributes as typed, and as credentials have them."""


@cache
def identity(user_seed: bytes = USER_SEED) -> Identity:
    """Return the keys of a person with the product."""
    return Identity(SecretKey(user_seed))


def admin() -> SigningKey:
    """Return the admin key."""
    return SigningKey(SecretKey(ADMIN_SEED))


def sealed_to(user_key: bytes, purpose: bytes, context: bytes, plaintext: bytes) -> bytes:
    """Return Seal from known draws: by the reference, since the library draws its own."""
    m, private = seed("m of a seal"), seed("private key of a seal")
    return members.seal(user_key, purpose, context, plaintext, m, private)


@cache
def body(**changes: object) -> Credential:
    """Return the body of a credential."""
    fields: Json = {
        "collection": COLLECTION,
        "authority": shared().parameters.authority,
        "epoch": EPOCH,
        "serial": seed("serial")[:16],
        "user": identity().public.id,
        "attributes": tuple(map(parse_attribute, ATTRIBUTES)),
        "issued_at": ISSUED,
        "expires_at": EXPIRES,
    }
    return Credential(**(fields | changes))


def secrets(attribute_key: AttributeKey | None) -> CredentialSecrets:
    """Return what a credential seals."""
    return CredentialSecrets(SecretKey(MEMBER_SECRET), attribute_key)


def issued(credential: Credential, plaintext: bytes) -> SignedCredential:
    """Return a credential that seals `plaintext`."""
    made = SignedCredential.sign(credential, admin(), b"")
    sealed = sealed_to(identity().public.encode(), b"credential", made.hash, plaintext)
    return replace(made, sealed=sealed)


def base_of(name: str) -> bytes:
    """Return a good file that pieces of bad ones refer to."""
    if name == "user key":
        return identity().public.encode()
    if name == "credential":
        return issued(body(), secrets(key()).encode()).encode()
    return (
        sealed_bundle(POLICY.encode())[0]
        if name == "sealed bundle"
        else signed_versions()[1].encode()
    )


# --- members.json --------------------------------------------------------------------------------


def file() -> Json:
    """Everything of section 12 but backups."""
    parameters = shared().parameters
    return {
        "about": (
            "An identity and what is sealed to it, with what was drawn; credentials, sealed "
            "bundles, manifests of format 2. The authority and the attribute key are those of "
            "access.json. All secrets, so never to be used."
        ),
        "source": "docs/protocol.md, sections 12.1 and 12.3 to 12.5",
        "identity": _identity(),
        "sealed": [_sealed(purpose, context, size) for purpose, context, size in _SEALS],
        "printed": [{"typed": typed, "printed": _printed(typed)} for typed, _ in PRINTED],
        "collection": COLLECTION.hex(),
        "parameters": parameters.encode().hex(),
        "admin_seed": ADMIN_SEED.hex(),
        "admin_key": admin().public.hex(),
        "member_secret": MEMBER_SECRET.hex(),
        "attribute_key": key().encode().hex(),
        "now": EXPIRES,
        "credentials": [_credential(has_key=True), _credential(has_key=False)],
        "bundles": [_bundle(policy) for policy in (b"", POLICY.encode())],
        "owner_seed": OWNER_SEED.hex(),
        "owner_key": signing_key().public.hex(),
        "manifests": [_manifest(signed) for signed in signed_versions()],
    }


_SEALS = ((b"credential", b"", 0), (b"backup", b"context\x00", 33))


def _printed(typed: str) -> str:
    return str(parse_attribute(typed))


def _identity() -> Json:
    derived = members.identity(USER_SEED)
    public = identity().public
    return {
        "seed": USER_SEED.hex(),
        "mlkem_d": derived.d.hex(),
        "mlkem_z": derived.z.hex(),
        "x25519": derived.x25519.hex(),
        "sign": derived.sign.hex(),
        "user_key": public.encode().hex(),
        "user_id": public.id.hex(),
    }


def _sealed(purpose: bytes, context: bytes, size: int) -> Json:
    plaintext = seed("plaintext")[:1] * size
    sealed = sealed_to(identity().public.encode(), purpose, context, plaintext)
    assert identity().open(purpose, context, sealed, "a vector") == plaintext
    return {
        "purpose": purpose.decode(),
        "context": context.hex(),
        "plaintext": plaintext.hex(),
        "m": seed("m of a seal").hex(),
        "private": seed("private key of a seal").hex(),
        "sealed": sealed.hex(),
    }


def _credential(*, has_key: bool) -> Json:
    signed = issued(body(), secrets(key() if has_key else None).encode())
    opened = open_credential(signed, identity(), shared().parameters, SystemRandom())
    assert opened.encode() == secrets(key() if has_key else None).encode()
    return {
        "epoch": EPOCH,
        "serial": signed.credential.serial.hex(),
        "attributes": [str(attribute) for attribute in signed.credential.attributes],
        "issued_at": ISSUED,
        "expires_at": EXPIRES,
        "has_key": has_key,
        "body": signed.body.hex(),
        "signature": signed.signature.hex(),
        "sealed": signed.sealed.hex(),
        "file": signed.encode().hex(),
    }


def group_keys(policy: bytes) -> KeyBundle:
    """Return the keys of a group."""
    return KeyBundle.from_master(SecretKey(MASTER), COLLECTION, EPOCH, policy)


@cache
def sealed_bundle(policy: bytes) -> tuple[bytes, Json]:
    """Return a sealed bundle and what was drawn."""
    nonce = seed(f"nonce {policy!r}")[:12]
    draws: list[bytes] = []
    shown: Json = {}
    if policy:
        program = SpanProgram.of(
            Policy.decode(policy).at_epoch(EPOCH), shared().parameters.group.order
        )
        s = drawn("s of a bundle")
        v = draws_of("v of a bundle", program.n_columns - 1)
        r = draws_of("r of a bundle", len(program.matrix))
        draws = [s, *v, *r]
        shown = {"s": s.hex(), "v": hexes(v), "r": hexes(r)}
    data = seal_bundle(
        group_keys(policy),
        shared().parameters,
        SecretKey(MEMBER_SECRET),
        Fixed(*draws, nonce),
        collection=COLLECTION,
        epoch=EPOCH,
        policy=policy,
    )
    return data, shown | {"nonce": nonce.hex()}


def _bundle(policy: bytes) -> Json:
    data, draws = sealed_bundle(policy)
    return {
        "policy": policy.hex(),
        "epoch": EPOCH,
        **draws,
        "bundle": group_keys(policy).encode().hex(),
        "file": data.hex(),
    }


def sample(version: int, previous: bytes, verification: bytes) -> Manifest:
    """Return a manifest of format 2 with two groups."""
    plain = sample_manifest(version, previous)
    groups = tuple(
        replace(
            group,
            bundle=ObjectRef.of(sealed_bundle(policy)[0]),
            search_key=SigningKey(group_keys(policy).search).public,
            policy=policy,
            epoch=EPOCH,
        )
        for group, policy in zip(plain.groups, (b"", POLICY.encode()), strict=True)
    )
    credentials = ObjectRef.of(b"a list of credentials") if verification else None
    parameters = shared().parameters.encode()
    access = Access(parameters, admin().public, EPOCH, verification, credentials)
    return replace(plain, quorum=QUORUM, groups=groups, access=access)


@cache
def signed_versions() -> Sequence[SignedManifest]:
    """Return versions 1 and 2: the second when the servers share the authority."""
    first = SignedManifest.sign(sample(1, FIRST_PREVIOUS, b""), signing_key())
    second = sample(2, first.hash, shared().verification.encode())
    return first, SignedManifest.sign(second, signing_key())


def _manifest(signed: SignedManifest) -> Json:
    fields = fields_of(signed.manifest)
    access = signed.manifest.access
    assert access is not None
    fields["access"] = _shown(access.to_fields())
    for group in fields["groups"]:
        group |= {name: _shown(group[name]) for name in ("bundle", "search_key")}
    return {
        "fields": fields,
        "body": signed.body.hex(),
        "file": signed.encode().hex(),
        "hash": signed.hash.hex(),
    }


# --- the reference -------------------------------------------------------------------------------


def check(file: Json) -> None:
    """Compare the reference with the file."""
    _check_identity(file["identity"])
    user_seed, user_key = (bytes.fromhex(file["identity"][name]) for name in ("seed", "user_key"))
    for entry in file["sealed"]:
        purpose, context = entry["purpose"].encode(), bytes.fromhex(entry["context"])
        plaintext = bytes.fromhex(entry["plaintext"])
        drawn_ = bytes.fromhex(entry["m"]), bytes.fromhex(entry["private"])
        sealed = members.seal(user_key, purpose, context, plaintext, *drawn_)
        assert sealed.hex() == entry["sealed"]
        assert members.open_sealed(user_seed, purpose, context, sealed) == plaintext
        assert members.open_sealed(user_seed, purpose, context + b"\0", sealed) is None
    assert [(e["typed"], e["printed"]) for e in file["printed"]] == list(PRINTED)
    for entry in file["printed"]:
        assert members.print_attribute(entry["typed"]) == entry["printed"]
        assert members.print_attribute(entry["printed"]) == entry["printed"]
    for entry in file["credentials"]:
        _check_credential(file, entry)
    for entry in file["bundles"]:
        _check_bundle(file, entry)
    _check_manifests(file)


def _check_identity(entry: Json) -> None:
    made = members.identity(bytes.fromhex(entry["seed"]))
    named = {"mlkem_d": made.d, "mlkem_z": made.z, "x25519": made.x25519, "sign": made.sign}
    assert {name: value.hex() for name, value in named.items()}.items() <= entry.items()
    assert made.user_key.hex() == entry["user_key"]
    assert members.user_id(made.user_key).hex() == entry["user_id"]
    members.decode_user_key(made.user_key)


def _check_credential(file: Json, entry: Json) -> None:
    parameters = reference.decode_parameters(bytes.fromhex(file["parameters"]))
    user, collection = bytes.fromhex(file["identity"]["user_id"]), bytes.fromhex(file["collection"])
    fields = {
        "collection": collection,
        "authority": parameters.authority,
        "epoch": entry["epoch"],
        "serial": bytes.fromhex(entry["serial"]),
        "user": user,
        "attributes": entry["attributes"],
        "issued_at": entry["issued_at"],
        "expires_at": entry["expires_at"],
    }
    encoded = members.encode_credential(fields)
    assert encoded.hex() == entry["body"]
    sealed = bytes.fromhex(entry["sealed"])
    data = members.sign_credential(encoded, bytes.fromhex(file["admin_seed"]), sealed)
    assert data.hex() == entry["file"]
    read, context, part = members.read_credential(
        data,
        bytes.fromhex(file["admin_key"]),
        collection,
        parameters.authority,
        user,
        file["now"],
    )
    assert (read, part) == (fields, sealed)
    user_seed = bytes.fromhex(file["identity"]["seed"])
    secret, held = members.open_credential(read, context, part, user_seed, parameters)
    assert secret.hex() == file["member_secret"]
    assert held.hex() == (file["attribute_key"] if entry["has_key"] else "")


def _check_bundle(file: Json, entry: Json) -> None:
    parameters = reference.decode_parameters(bytes.fromhex(file["parameters"]))
    secret, policy = bytes.fromhex(file["member_secret"]), bytes.fromhex(entry["policy"])
    collection, epoch = bytes.fromhex(file["collection"]), entry["epoch"]
    bundle = keys.bundle_keys(MASTER, collection, epoch, policy)
    assert members.encode_bundle(bundle).hex() == entry["bundle"]
    draws: Json = {}
    if policy:
        draws["s"] = reference.exponent(bytes.fromhex(entry["s"]))
        draws["v"] = [reference.coefficient(bytes.fromhex(d)) for d in entry["v"]]
        draws["r"] = [reference.exponent(bytes.fromhex(d)) for d in entry["r"]]
    nonce = bytes.fromhex(entry["nonce"])
    data = members.seal_bundle(
        bundle, parameters, secret, collection, epoch, policy, nonce, **draws
    )
    assert data.hex() == entry["file"]
    held = bytes.fromhex(file["attribute_key"])
    opened = members.open_bundle(data, parameters, held, secret, collection, epoch, policy)
    assert opened == bundle


def _check_manifests(file: Json) -> None:
    owner_key, collection = bytes.fromhex(file["owner_key"]), bytes.fromhex(file["collection"])
    authority = reference.decode_parameters(bytes.fromhex(file["parameters"])).authority
    seen = None
    for entry in file["manifests"]:
        encoded = bytes.fromhex(entry["body"])
        fields = decode_cbor(encoded)
        assert manifest.encode_body(fields) == encoded
        assert _shown(fields) == entry["fields"]
        signed = manifest.sign_manifest(encoded, bytes.fromhex(file["owner_seed"]), 2)
        assert signed.hex() == entry["file"]
        read = manifest.read_manifest(
            signed, owner_key, collection, NOW + LIFE, seen, authority=authority
        )
        assert read == fields
        assert manifest.manifest_hash(encoded).hex() == entry["hash"]
        seen = read["version"], manifest.manifest_hash(encoded)
        for group, bundle in zip(read["groups"], file["bundles"], strict=True):
            assert group["policy"].hex() == bundle["policy"]
            assert group["bundle"]["size"] == len(bytes.fromhex(bundle["file"]))


def _shown(value: object) -> object:
    """Return a value with its bytes in hexadecimal."""
    if isinstance(value, dict):
        return {name: _shown(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


# --- readers of bad vectors ----------------------------------------------------------------------


BASES = {
    "user key": lambda file: file["identity"]["user_key"],
    "credential": lambda file: file["credentials"][0]["file"],
    "sealed bundle": lambda file: file["bundles"][1]["file"],
    "manifest 2": lambda file: file["manifests"][1]["file"],
}
"""Good files that pieces of bad ones refer to, in members.json."""


def file_of(case: Json) -> bytes:
    """Join a file from its pieces."""
    out = b""
    for piece in case["file"]:
        if "hex" in piece:
            out += bytes.fromhex(piece["hex"])
        else:
            good = bytes.fromhex(BASES[piece["of"]](load("members")))
            out += good[piece["from"] : piece["to"]]
    return out


def require_authority(found: Manifest, authority: bytes) -> None:
    """Prove a manifest's authority with the product, as a member does."""
    ring = EnrolledRing(
        COLLECTION, found.owner_key, authority, MemberSecrets(SecretKey(MEMBER_SECRET), key())
    )
    ring.require_manifest(found)


def fast_credential(case: Json) -> None:
    """Read and open a credential with the product, as a user does."""
    parameters = PublicParameters.decode(bytes.fromhex(case["parameters"]))
    user = identity(bytes.fromhex(case["seed"]))
    signed = SignedCredential.decode(file_of(case), bytes.fromhex(case["admin_key"]))
    signed.require_for(
        collection=bytes.fromhex(case["collection"]),
        authority=parameters.authority,
        user=user.public.id,
        now_s=case["now"],
    )
    open_credential(signed, user, parameters, SystemRandom())


def slow_credential(case: Json) -> None:
    """Read and open a credential with the reference."""
    parameters = reference.decode_parameters(bytes.fromhex(case["parameters"]))
    user_seed = bytes.fromhex(case["seed"])
    read, context, sealed = members.read_credential(
        file_of(case),
        bytes.fromhex(case["admin_key"]),
        bytes.fromhex(case["collection"]),
        parameters.authority,
        members.user_id(members.identity(user_seed).user_key),
        case["now"],
    )
    members.open_credential(read, context, sealed, user_seed, parameters)


def fast_bundle(case: Json) -> None:
    """Open a sealed bundle with the product."""
    held = AttributeKey.decode(bytes.fromhex(case["key"]))
    open_bundle(
        file_of(case),
        PublicParameters.decode(bytes.fromhex(case["parameters"])),
        MemberSecrets(SecretKey(bytes.fromhex(case["member_secret"])), held),
        collection=bytes.fromhex(case["collection"]),
        epoch=case["epoch"],
        policy=bytes.fromhex(case["policy"]),
    )


def slow_bundle(case: Json) -> None:
    """Open a sealed bundle with the reference."""
    members.open_bundle(
        file_of(case),
        reference.decode_parameters(bytes.fromhex(case["parameters"])),
        bytes.fromhex(case["key"]),
        bytes.fromhex(case["member_secret"]),
        bytes.fromhex(case["collection"]),
        case["epoch"],
        bytes.fromhex(case["policy"]),
    )


FAST = {
    "user key": lambda case: UserKey.decode(file_of(case)),
    "credential": fast_credential,
    "sealed bundle": fast_bundle,
}
SLOW = {
    "user key": lambda case: members.decode_user_key(file_of(case)),
    "credential": slow_credential,
    "sealed bundle": slow_bundle,
}
