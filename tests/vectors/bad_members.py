"""Bad vectors of section 12: each good in all but one thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from mksearch.access.attributes import key_labels, parse_attribute
from mksearch.access.cpabe import Header
from mksearch.access.issuing import make_key
from mksearch.access.keys import AttributeKey, PublicParameters, VerificationKeys, seal_scalar
from mksearch.access.pairing import BLS12_381
from mksearch.codec import decode_cbor, encode_cbor
from mksearch.crypto import labels
from mksearch.crypto.kdf import sha256
from mksearch.params import Quorum
from tests.reference import members as reference

from .access import ATTRIBUTES, EPOCH, POLICY, drawn, encapsulated, key, shared
from .bad_files import changed, pieces_of, setting
from .fast import Fixed
from .good_index import NOW, signed_versions, signing_key
from .material import COLLECTION, Json, render, seed
from .members import (
    ADMIN_SEED,
    EXPIRES,
    MEMBER_SECRET,
    USER_SEED,
    admin,
    body,
    identity,
    sealed_bundle,
    sealed_to,
    secrets,
)
from .members import signed_versions as sealed_versions

Fields = dict[str, Any]
_FORMAT, _UNSUPPORTED = "FormatError", "UnsupportedVersion"
_OTHER_SEED = seed("identity of somebody else")
_POLICY = POLICY.encode()


def files() -> dict[str, Json]:
    """Return the bad vectors by name."""
    return {
        **{f"user_key_{name}": case for name, case in _user_keys()},
        **{f"credential_{name}": case for name, case in _credentials()},
        **{f"bundle_{name}": case for name, case in _bundles()},
        **{f"manifest_2_{name}": case for name, case in _manifests()},
    }


def _bad(kind: str, about: str, step: str, exception: str) -> Json:
    return {"kind": kind, "about": about, "refused_at": step, "exception": exception}


def _pieces(base: str, file: bytes) -> Json:
    """Return a file as pieces, of the good one where that is shorter."""
    cut, whole = pieces_of(file, base), pieces_of(file)
    return {"file": min(whole, cut, key=lambda pieces: len(render(pieces)))}


# --- user keys -----------------------------------------------------------------------------------


def _user_keys() -> Iterator[tuple[str, Json]]:
    data = identity().public.encode()
    large = data[:12] + b"\xff\xff" + data[14:]
    for name, about, step, exception, file in (
        ("magic", "another magic", "12.1.1", _FORMAT, changed(data, 2)),
        ("format", "format 2", "12.1.1", _UNSUPPORTED, changed(data, 11, 2)),
        ("empty", "no byte at all", "12.1.1", _FORMAT, b""),
        ("cut", "the last byte missing", "12.1.2", _FORMAT, data[:-1]),
        ("longer", "a byte more", "12.1.2", _FORMAT, data + b"\0"),
        ("mlkem", "an ML-KEM key with a number of q or more", "12.1.3", _FORMAT, large),
    ):
        yield name, _bad("user key", about, step, exception) | _pieces("user key", file)


# --- credentials ---------------------------------------------------------------------------------


def _body(change: Callable[[Fields], object] = lambda _: None) -> bytes:
    fields = decode_cbor(body().encode(), "a credential")
    change(fields)
    return encode_cbor(fields)


def _all(**values: object) -> Callable[[Fields], object]:
    return lambda fields: fields.update(values)


def _sealed(raw: bytes, plaintext: bytes | None = None, **how: bytes) -> bytes:
    user_key = how.get("user_key", identity().public.encode())
    content = secrets(key()).encode() if plaintext is None else plaintext
    context = how.get("context", sha256(raw))
    return sealed_to(user_key, how.get("purpose", b"credential"), context, content)


def _file(raw: bytes, sealed: bytes | None = None, admin_seed: bytes = ADMIN_SEED) -> bytes:
    return reference.sign_credential(raw, admin_seed, _sealed(raw) if sealed is None else sealed)


def _credential(about: str, step: str, exception: str, file: bytes, **changes: object) -> Json:
    pinned: Json = {
        "admin_key": admin().public.hex(),
        "collection": COLLECTION.hex(),
        "parameters": shared().parameters.encode().hex(),
        "seed": USER_SEED.hex(),
        "now": NOW,
    }
    return (
        _bad("credential", about, step, exception) | pinned | changes | _pieces("credential", file)
    )


def _credentials() -> Iterator[tuple[str, Json]]:
    raw = _body()
    good = _file(raw)
    for name, about, step, exception, file in (
        ("magic", "another magic", "12.3.1", _FORMAT, changed(good, 3)),
        ("format", "format 2", "12.3.1", _UNSUPPORTED, changed(good, 11, 2)),
        ("cut", "the last byte missing", "12.3.2", _FORMAT, good[:-1]),
        ("longer", "a byte more", "12.3.2", _FORMAT, good + b"\0"),
        ("no_length", "no length", "12.3.2", _FORMAT, good[:14]),
        ("length", "a body longer than the file", "12.3.2", _FORMAT, changed(good, 12, 1)),
    ):
        yield name, _credential(about, step, exception, file)
    bad = "VerificationError"
    foreign = _file(raw, admin_seed=seed("another admin"))
    junk = _file(b"\xbf\xff", b"", admin_seed=seed("another admin"))
    for name, about, file in (
        ("body", "a byte of the body changed", changed(good, 40)),
        ("signature", "the signature changed", changed(good, 16 + len(raw) + 5)),
        ("foreign_key", "signed with another key", foreign),
        ("foreign_and_junk", "signed with another key, no credential", junk),
    ):
        yield name, _credential(about, "12.3.3", bad, file)
    for name, about, made in _bodies(raw):
        yield name, _credential(about, "12.3.4", _FORMAT, _file(made, b""))
    refused = "CredentialRefused"
    other = seed("foreign")[:16].hex()
    yield "collection", _credential("of another", "12.3.5", refused, good, collection=other)
    strange = PublicParameters(BLS12_381.g1, BLS12_381.g2).encode().hex()
    yield "authority", _credential("of another", "12.3.5", refused, good, parameters=strange)
    yield "user", _credential("of another", "12.3.6", refused, good, seed=_OTHER_SEED.hex())
    yield "expired", _credential("expired", "12.3.7", refused, good, now=EXPIRES + 1)
    yield (
        "user_and_expired",
        _credential("of another", "12.3.6", refused, good, seed=_OTHER_SEED.hex(), now=EXPIRES + 1),
    )
    yield from _secrets(raw)
    yield from _keys(raw)


def _bodies(raw: bytes) -> Iterator[tuple[str, str, bytes]]:
    at = raw.index(b"eepoch") + 6
    attributes = [f"a{i:02}" for i in range(65)]
    yield "form", "an integer in two bytes", raw[:at] + b"\x18" + raw[at:]
    yield "twice", "two CBOR items", raw + b"\0"
    yield "empty_body", "no body", b""
    changes: tuple[tuple[str, str, Callable[[Fields], object]], ...] = (
        ("key", "a key more", _all(more=1)),
        ("no_key", "a key less", lambda fields: fields.pop("serial")),
        ("type", "a time that is text", _all(issued_at="1")),
        ("bool", "an epoch that is true", _all(epoch=True)),
        ("negative", "a negative time", _all(issued_at=-1)),
        ("serial", "a serial of 15 bytes", _all(serial=bytes(15))),
        ("user_length", "a user id of 33 bytes", _all(user=bytes(33))),
        ("epoch_0", "epoch 0", _all(epoch=0)),
        ("never", "expires when it is issued", _all(issued_at=EXPIRES)),
        ("no_attributes", "no attribute", _all(attributes=[])),
        ("attributes", "65 attributes", _all(attributes=attributes)),
        ("attribute_type", "an attribute that is bytes", _all(attributes=[b"a"])),
        ("attribute_none", "a text that is no attribute", _all(attributes=["a b"])),
        ("attribute_policy", "a policy for an attribute", _all(attributes=["a AND b"])),
        ("attribute_epoch", "the reserved name", _all(attributes=["epoch:9"])),
        ("attribute_blank", "an attribute behind a blank", _all(attributes=[" a"])),
        ("attribute_quotes", "quotes that are not needed", _all(attributes=['a:"b"'])),
        ("attribute_nfd", "an attribute that is not in NFC", _all(attributes=["cafe\u0301"])),
        ("order", "attributes that descend", _all(attributes=["b", "a"])),
        ("same", "an attribute twice", _all(attributes=["a", "a"])),
        ("two_numbers", "two numbers of one name", _all(attributes=["x:1", "x:2"])),
    )
    for name, about, change in changes:
        yield name, about, _body(change)


def _secrets(raw: bytes) -> Iterator[tuple[str, Json]]:
    somebody = identity(_OTHER_SEED).public.encode()
    good = _sealed(raw)
    fields: Fields = decode_cbor(secrets(None).encode(), "secrets")
    for name, about, sealed in (
        ("sealed_to_another", "sealed to another user", _sealed(raw, user_key=somebody)),
        ("sealed_elsewhere", "sealed with another body", _sealed(raw, context=sha256(b"x"))),
        ("sealed_purpose", "sealed for another purpose", _sealed(raw, purpose=b"backup")),
        ("sealed_changed", "the ciphertext changed", changed(good, len(good) - 1)),
        ("sealed_lattice", "the ML-KEM ciphertext changed", changed(good, 7)),
        ("sealed_curve", "the X25519 key changed", changed(good, 1100)),
        ("sealed_short", "no whole encapsulation", good[:1000]),
        ("sealed_empty", "nothing sealed", b""),
    ):
        yield name, _credential(about, "12.3.8", "RecordRefused", _file(raw, sealed))
    for name, about, content in (
        ("secrets_key", "a key more", fields | {"more": b""}),
        ("secrets_no_key", "a key less", {"member_secret": MEMBER_SECRET}),
        ("secrets_length", "31 bytes", fields | {"member_secret": MEMBER_SECRET[1:]}),
        ("secrets_type", "text", fields | {"attribute_key": ""}),
    ):
        sealed = _sealed(raw, encode_cbor(content))
        yield name, _credential(f"secrets: {about}", "12.3.8", _FORMAT, _file(raw, sealed))
    twice = _sealed(raw, encode_cbor(fields) + b"\0")
    yield "secrets_twice", _credential("two CBOR items", "12.3.8", _FORMAT, _file(raw, twice))


def _key(*texts: str, epoch: int = EPOCH) -> AttributeKey:
    wanted = key_labels(map(parse_attribute, texts or ATTRIBUTES), epoch)
    alpha = seal_scalar(int.from_bytes(drawn("alpha"), "big") % (BLS12_381.order - 1) + 1)
    random = Fixed(drawn(f"t of bad members {texts} {epoch}"))
    return make_key(shared().parameters, alpha, wanted, random)


def _keys(raw: bytes) -> Iterator[tuple[str, Json]]:
    held = key()
    label = min(held.components)
    swapped = {**held.components, label: held.components[label] * BLS12_381.g1}
    for name, about, made in (
        ("key_other_labels", "a key for fewer attributes", _key("role:analyst").encode()),
        ("key_epoch", "a key of another epoch", _key(epoch=EPOCH + 1).encode()),
        ("key_authority", "of another authority", replace(held, authority=bytes(32)).encode()),
        ("key_k", "K changed", replace(held, k=held.k * BLS12_381.g1).encode()),
        ("key_l", "L changed", replace(held, l=held.l * BLS12_381.g2).encode()),
        ("key_component", "a component changed", replace(held, components=swapped).encode()),
        ("key_mixed", "K of another key", replace(held, k=_key().k).encode()),
        ("key_cut", "cut off", held.encode()[:-1]),
        ("key_magic", "another magic", changed(held.encode(), 0)),
    ):
        content = {"member_secret": MEMBER_SECRET, "attribute_key": made}
        file = _file(raw, _sealed(raw, encode_cbor(content)))
        yield name, _credential(f"attribute key: {about}", "12.3.9", _FORMAT, file)


# --- sealed bundles ------------------------------------------------------------------------------


def _bundle(about: str, step: str, exception: str, file: bytes, **changes: object) -> Json:
    given: Json = {
        "parameters": shared().parameters.encode().hex(),
        "key": key().encode().hex(),
        "member_secret": MEMBER_SECRET.hex(),
        "collection": COLLECTION.hex(),
        "epoch": EPOCH,
        "policy": POLICY.encode().hex(),
    }
    return (
        _bad("sealed bundle", about, step, exception)
        | given
        | changes
        | _pieces("sealed bundle", file)
    )


def _with_header(header: bytes) -> bytes:
    data, _ = sealed_bundle(_POLICY)
    end = 16 + int.from_bytes(data[12:16], "big")
    return data[:12] + len(header).to_bytes(4, "big") + header + data[end:]


def _bundles() -> Iterator[tuple[str, Json]]:
    data, _ = sealed_bundle(_POLICY)
    plain, _ = sealed_bundle(b"")
    end = 16 + int.from_bytes(data[12:16], "big")
    header = Header.decode(data[16:end])
    for name, about, step, exception, file in (
        ("magic", "another magic", "12.4.1", _FORMAT, changed(data, 4)),
        ("format", "format 2", "12.4.1", _UNSUPPORTED, changed(data, 11, 2)),
        ("no_length", "no length", "12.4.2", _FORMAT, data[:13]),
        ("cut", "the last byte missing", "12.4.2", _FORMAT, data[:-1]),
        ("longer", "a byte more", "12.4.2", _FORMAT, data + b"\0"),
        ("length", "a header of another length", "12.4.2", _FORMAT, changed(data, 15)),
        ("no_header", "no header", "12.4.3", _FORMAT, plain),
        (
            "rows",
            "a header with a row too few",
            "12.4.3",
            _FORMAT,
            _with_header(Header(header.c, header.rows[:-1]).encode()),
        ),
        (
            "identity",
            "a header with the identity in it",
            "12.4.3",
            _FORMAT,
            _with_header(data[16:28] + b"\xc0" + bytes(95) + data[124:end]),
        ),
        ("header_magic", "no header at all", "12.4.3", _FORMAT, changed(data, 16)),
    ):
        yield name, _bundle(about, step, exception, file)
    unasked = _bundle("a header without a policy", "12.4.3", _FORMAT, data, policy="")
    yield "header_without_policy", unasked
    refused = "RecordRefused"
    other_secret = seed("member secret of another epoch").hex()
    typed = POLICY.replace(" OR ", " or ").encode().hex()
    other_header = encapsulated(POLICY)[0].encode()
    for name, about, file, changes in (
        ("sealed", "the ciphertext changed", changed(data, len(data) - 1), {}),
        ("nonce", "the nonce changed", changed(data, end), {}),
        ("header", "another header of the policy", _with_header(other_header), {}),
        ("secret", "another member secret", data, {"member_secret": other_secret}),
        ("collection", "another collection", data, {"collection": bytes(16).hex()}),
        ("typed", "the policy typed otherwise", data, {"policy": typed}),
        ("plain_sealed", "without a policy, changed", changed(plain, 40), {"policy": ""}),
        (
            "plain_secret",
            "without a policy, another member secret",
            plain,
            {"policy": "", "member_secret": other_secret},
        ),
    ):
        yield name, _bundle(about, "12.4.4", refused, file, **changes)
    half = _key("role:analyst").encode().hex()
    yield "not_qualified", _bundle("not allowed", "11.4.4", "NotQualified", data, key=half)


# --- manifests -----------------------------------------------------------------------------------


def _signed(file_format: int, raw: bytes) -> bytes:
    head = b"MKMANIFS" + file_format.to_bytes(4, "big") + len(raw).to_bytes(4, "big")
    return head + raw + signing_key().sign(labels.MANIFEST, raw)


def _with_body(change: Callable[[Fields], object], *, number: int = 1) -> bytes:
    fields = decode_cbor(sealed_versions()[number].body, "a manifest")
    change(fields)
    return _signed(2, encode_cbor(fields))


def _verification(quorum: Quorum, *, is_good: bool = True) -> bytes:
    first, *rest = shared().verification.keys
    keys = [first if is_good else first * BLS12_381.g2, *rest]
    keys += [keys[-1]] * (quorum.n_servers - len(keys))
    return VerificationKeys(shared().parameters.authority, 1, quorum, tuple(keys)).encode()


def _manifests() -> Iterator[tuple[str, Json]]:
    sealed, plain = sealed_versions()[1], signed_versions()[1]
    good = shared().parameters.encode()

    def vector(about: str, step: str, file: bytes, **more: object) -> Json:
        flag: Json = {
            "owner_key": signing_key().public.hex(),
            "collection": COLLECTION.hex(),
            "now": NOW,
            "seen": None,
        }
        made = _bad("manifest", about, step, _FORMAT) | flag | more
        return made | _pieces("manifest 2", file)

    group = decode_cbor(sealed.body, "a manifest")["groups"][0]
    bundle = decode_cbor(plain.body, "a manifest")
    bundle["groups"][1]["bundle"] = group["bundle"]
    for name, about, file in (
        ("says_1", "a body of format 2 in a file of format 1", _signed(1, sealed.body)),
        ("of_format_1", "a body of format 1 in a file of format 2", _signed(2, plain.body)),
        ("no_bundle", "no bundle", _with_body(lambda f: f["groups"][0].pop("bundle"))),
        ("no_search_key", "no key", _with_body(lambda f: f["groups"][1].pop("search_key"))),
        ("bundle", "a bundle in format 1", _signed(1, encode_cbor(bundle))),
    ):
        yield name, vector(about, "12.5.1", file)
    strange = replace(shared().verification, authority=bytes(32)).encode()
    for name, about, path, value in (
        ("parameters_cut", "parameters cut off", "authority", good[:-1]),
        ("parameters_magic", "parameters of another magic", "authority", changed(good, 0)),
        (
            "parameters_point",
            "A the identity",
            "authority",
            good[:12] + b"\xc0" + bytes(47) + good[60:],
        ),
        ("verification_cut", "keys cut off", "verification", shared().verification.encode()[:-1]),
        ("verification_authority", "keys of another authority", "verification", strange),
        (
            "verification_secret",
            "keys that do not stand for the secret",
            "verification",
            _verification(Quorum(3, 1), is_good=False),
        ),
    ):
        made = _with_body(setting(f"access.{path}", value))
        yield name, vector(about, "12.5.2", made)
    yield (
        "verification_quorum",
        vector("keys of 3 servers for 4", "12.5.2", _with_body(setting("n_servers", 4))),
    )
    for name, about, value in (
        ("two_groups", "two groups of one policy", b""),
        ("policy", "a policy that does not parse", b"a AND"),
        ("policy_utf8", "a policy that is no UTF-8", b"\xff"),
    ):
        yield name, vector(about, "12.5.3", _with_body(setting("groups.1.policy", value)))
    elsewhere = sha256(b"another authority").hex()
    other = vector("another authority", "12.5.4", sealed.encode(), authority=elsewhere)
    yield "authority", other | {"exception": "ManifestRefused"}
    none = vector("no authority", "12.5.4", plain.encode(), authority=elsewhere)
    yield "no_authority", none | {"exception": "ManifestRefused"}
    later = _with_body(setting("groups.1.epoch", EPOCH + 1))
    yield "epoch", vector("a group of a later epoch", "12.5.5", later)
    reference_twice = [{"id": bytes(32), "size": 1}] * 2
    for name, about, change in (
        ("access_type", "access that is no map", setting("access", [])),
        ("access_key", "a key more", setting("access.more", 1)),
        ("access_no_key", "a key less", lambda f: f["access"].pop("verification")),
        ("access_epoch", "epoch 0", setting("access.epoch", 0)),
        ("access_admin", "an admin key of 31 bytes", setting("access.admin_key", bytes(31))),
        ("search_key", "a search key of 33 bytes", setting("groups.0.search_key", bytes(33))),
        ("bundle_id", "a name of 31 bytes", setting("groups.0.bundle.id", bytes(31))),
        ("credentials", "two lists", setting("access.credentials", reference_twice)),
    ):
        yield name, vector(about, "7.4", _with_body(change))
