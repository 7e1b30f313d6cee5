"""Bad vectors of sections 13.3, 13.5 and 13.7: each good in all that is looked at before."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import cbor2

from mksearch.access.authority_messages import PARTIAL_PURPOSE, EnrolRequest, TokenClaim
from mksearch.access.authority_messages import partial_key_message as partial_message
from mksearch.access.credential import SignedCredential
from mksearch.access.credential_list import encode_credentials
from mksearch.access.keys import PartialKey
from mksearch.access.pairing import BLS12_381
from mksearch.codec import decode_cbor, encode_cbor
from mksearch.crypto import labels
from mksearch.crypto.kdf import sha256
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey

from . import id_tokens
from .access import EPOCH
from .bad_files import changed
from .enrolment import OWN, answered, credential, enrol_request, partial, told
from .good_index import NOW
from .id_tokens import b64, claims, dumped
from .material import Json, seed
from .members import admin, body, identity, sealed_to
from .shares import MADE, challenge, fresh, server_seed

_FORMAT, _VERIFICATION = "FormatError", "VerificationError"
_CREDENTIAL, _ANSWER = "CredentialRefused", "AnswerRefused"
#: Good requests of enrolment.json that bad ones are made from.
_PLAIN, _LIST, _KEY = 0, 2, 3
_OTHER = seed("identity of somebody else")
_LISTED = ('dept:"R&D"', "dept:finance", "role:analyst")


def files() -> dict[str, Json]:
    """Return the bad vectors by name."""
    return {
        **{f"enrol_{name}": case for name, case in _requests()},
        **{f"token_{name}": case for name, case in _tokens()},
        **{f"enrol_answer_{name}": case for name, case in _answers()},
        **{f"credential_list_{name}": case for name, case in _lists()},
    }


def _bad(kind: str, about: str, step: str, exception: str, request: int, **changes: Any) -> Json:
    case: Json = {"kind": kind, "about": about, "refused_at": step, "exception": exception}
    return case | {"request": request} | changes


def _signed(request: EnrolRequest, key: SigningKey | None = None) -> str:
    return request.sign(key or identity().signing).hex()


# --- what a server refuses -----------------------------------------------------------------------


def _requests() -> Iterator[tuple[str, Json]]:
    good = enrol_request(1)
    for name, about, made in (
        ("challenge", "a challenge of another server", challenge(2)),
        ("challenge_changed", "a challenge changed", changed(challenge(1), 31)),
        ("challenge_late", "a challenge of 121 seconds ago", challenge(1, MADE - 1)),
        ("challenge_early", "a challenge that is to come", challenge(1, NOW + 1)),
        ("challenge_short", "no whole challenge", challenge(1)[:31]),
    ):
        signature = _signed(replace(good, challenge=made))
        given = {"challenge": made.hex(), "signature": signature}
        yield name, _bad("enrolment", about, "13.3.1", _VERIFICATION, _PLAIN, **given)
    yield from _credentials(good)
    yield from _users(good)
    other = SigningKey(SecretKey(_OTHER))
    for name, about, signature in (
        ("signature", "the signature changed", "00" * 64),
        ("stranger", "signed with another key", _signed(good, other)),
        ("server", "signed for another server", _signed(replace(good, server=2))),
        ("epoch", "signed for another epoch", _signed(replace(good, epoch=EPOCH + 1))),
        ("authority", "signed for another authority", _signed(replace(good, authority=bytes(32)))),
        ("hash", "signed for another credential", _signed(replace(good, credential=bytes(32)))),
        ("token", "signed with an ID token", _signed(replace(good, token=TokenClaim("a.b.c")))),
    ):
        given = {"signature": signature}
        yield name, _bad("enrolment", about, "13.3.4", _VERIFICATION, _PLAIN, **given)
    token = id_tokens.token()
    for name, about, claim in (
        ("no_token", "signed without the ID token", None),
        ("other_token", "signed with another ID token", TokenClaim(token + "A", _LISTED)),
        ("other_list", "signed with other attributes", TokenClaim(token, _LISTED[:1])),
    ):
        given = {"signature": _signed(enrol_request(2, claim))}
        yield name, _bad("enrolment", about, "13.3.4", _VERIFICATION, _KEY, **given)
    for name, about, held in (
        ("nothing", "no share at all", []),
        ("share", "a share of another generation alone", [fresh(1).encode().hex()]),
    ):
        yield name, _bad("enrolment", about, "13.3.5", "StorageError", _PLAIN, held=held)


def _with(good: EnrolRequest, signed: SignedCredential) -> Json:
    signature = _signed(replace(good, credential=signed.hash))
    shown = {"credential": signed.body.hex(), "credential_signature": signed.signature.hex()}
    return shown | {"signature": signature}


def _credentials(good: EnrolRequest) -> Iterator[tuple[str, Json]]:
    own, step = credential(), "13.3.2"
    stranger = SigningKey(SecretKey(seed("another admin")))
    foreign = SignedCredential.sign(body(attributes=own.credential.attributes), stranger, b"")
    unsigned = replace(own, signature=changed(own.signature, 9))
    fields = decode_cbor(own.body, "a credential")
    twice = own.body + b"\0"
    more = encode_cbor(fields | {"more": 1})
    for name, about, exception, signed in (
        ("unsigned", "its signature changed", _VERIFICATION, unsigned),
        ("foreign", "signed by another admin", _VERIFICATION, foreign),
        ("twice", "two CBOR items", _FORMAT, _of(twice)),
        ("key", "a key more", _FORMAT, _of(more)),
        ("none", "no attribute", _FORMAT, _of(encode_cbor(fields | {"attributes": []}))),
        ("collection", "of another collection", _CREDENTIAL, credential(collection=bytes(16))),
        ("authority", "of another authority", _CREDENTIAL, credential(authority=bytes(32))),
        (
            "expired",
            "expired a second ago",
            _CREDENTIAL,
            _expired(),
        ),
        ("old", "of the epoch before", _CREDENTIAL, credential(epoch=EPOCH - 1)),
        ("new", "of the epoch to come", _CREDENTIAL, credential(epoch=EPOCH + 1)),
    ):
        case = _bad("enrolment", f"a credential {about}", step, exception, _PLAIN)
        yield f"credential_{name}", case | _with(good, signed)


def _expired() -> SignedCredential:
    return credential(issued_at=1, expires_at=NOW - 1)


def _of(raw: bytes) -> SignedCredential:
    return replace(credential(), body=raw, signature=admin().sign(labels.CREDENTIAL, raw))


def _users(good: EnrolRequest) -> Iterator[tuple[str, Json]]:
    own, step = identity().public.encode(), "13.3.3"
    large = own[:12] + b"\xff\xff" + own[14:]
    for name, about, exception, file in (
        ("cut", "cut off", _FORMAT, own[:-1]),
        ("magic", "of another magic", _FORMAT, changed(own, 0)),
        ("format", "of format 2", "UnsupportedVersion", changed(own, 11, 2)),
        ("mlkem", "with a number of q or more", _FORMAT, large),
    ):
        case = _bad("enrolment", f"a user key {about}", step, exception, _PLAIN)
        case |= {"user_key": file.hex()}
        yield f"user_{name}", case
    somebody = identity(_OTHER)
    given = {"user_key": somebody.public.encode().hex()}
    given |= {"signature": _signed(good, somebody.signing)}
    about = "a credential of somebody else"
    yield "user_other", _bad("enrolment", about, step, _CREDENTIAL, _PLAIN, **given)


# --- ID tokens -----------------------------------------------------------------------------------


def _token(about: str, step: str, token: str, asked: Sequence[str] = (), **changes: Any) -> Json:
    request = enrol_request(2, TokenClaim(token, tuple(asked)))
    given: Json = {"id_token": token, "attributes": list(asked), "signature": _signed(request)}
    return _bad("enrolment", about, step, _CREDENTIAL, _LIST, **given, **changes)


def _tokens() -> Iterator[tuple[str, Json]]:
    make, good = id_tokens.token, id_tokens.token()
    head, said, signature = good.split(".")
    long = make(claims(more="x" * 12_000))
    assert len(long) > 16_384
    array = b64(b'["EdDSA"]')
    for name, about, token in (
        ("two_parts", "two parts", f"{head}.{said}"),
        ("four_parts", "four parts", f"{good}.{signature}"),
        ("base64", "characters that are not of base64url", f"*{good}"),
        ("header_json", "a header that is no JSON", f"{b64(b'{')}.{said}.{signature}"),
        ("header_array", "a header that is an array", f"{array}.{said}.{signature}"),
        ("no_alg", "a header without alg", make(header={"alg": None})),
        ("long", "16,385 bytes or more", long),
    ):
        yield name, _token(about, "13.7.1", token)
    yield "not_taken", _token("a server that takes none", "13.7.1", good, issuer=None)
    headers: tuple[tuple[str, str, Json], ...] = (
        ("alg_none", "no algorithm", {"alg": "none"}),
        ("alg_shared", "a symmetric algorithm", {"alg": "HS256", "kid": "shared"}),
        ("alg_other", "another algorithm", {"alg": "PS256", "kid": "rsa"}),
        ("alg_number", "an algorithm that is a number", {"alg": 1}),
        ("typ", "another kind of token", {"typ": "at+jwt"}),
        ("typ_number", "a kind that is a number", {"typ": 1}),
        ("crit", "what must be understood", {"crit": ["exp"]}),
    )
    for name, about, header in headers:
        yield name, _token(about, "13.7.2", make(header=header))
    headers = (
        ("kid", "a key that the issuer has not", {"kid": "another"}),
        ("no_kid", "no key, and the issuer has several", {"kid": None}),
        ("kid_number", "a key that is a number", {"kid": 3}),
        ("kid_private", "a private key of the set", {"kid": "private"}),
        ("kid_encrypts", "a key for encryption", {"kid": "encrypts"}),
        ("kid_alg", "a key for another algorithm than its kind's", {"kid": "other alg"}),
        ("kid_shared", "a symmetric key", {"kid": "shared"}),
        ("kid_short", "an RSA key of 2,047 bits", {"kid": "short", "alg": "RS256"}),
        ("kind", "a key of another kind than alg", {"kid": "ec"}),
        ("kind_rsa", "an RSA key for ES256", {"kid": "rsa", "alg": "ES256"}),
    )
    for name, about, header in headers:
        yield name, _token(about, "13.7.3", make(header=header))
    yield from _signatures()
    yield from _claims()
    yield from _nonces_and_values()
    for name, about, asked in (
        ("less", "an attribute less", _LISTED[1:]),
        ("more", "an attribute more", (*_LISTED, "x:1")),
        ("other", "another attribute", (*_LISTED[:2], "role:boss")),
        ("descending", "in another order", _LISTED[::-1]),
        ("twice", "an attribute twice", (*_LISTED[:1], *_LISTED)),
        ("typed", "not as printed", ('dept:"R&D"', 'dept:"finance"', "role:analyst")),
    ):
        yield f"asked_{name}", _token(f"asked for: {about}", "13.7.9", good, asked)


def _signatures() -> Iterator[tuple[str, Json]]:
    head, said, signature = id_tokens.token().split(".")
    other = b64(dumped(claims(groups=["admin"])))
    ec_head, ec_said, ec_signature = id_tokens.token(kid="ec").split(".")
    flipped = b64(changed(_raw(signature), 3))
    cut = b64(_raw(ec_signature)[:63])
    rsa_head, rsa_said, _ = id_tokens.token(kid="rsa").split(".")
    for name, about, token in (
        ("signature", "a signature changed", f"{head}.{said}.{flipped}"),
        ("no_signature", "an empty signature", f"{head}.{said}."),
        ("payload", "other claims", f"{head}.{other}.{signature}"),
        ("signature_short", "half a signature", f"{ec_head}.{ec_said}.{cut}"),
        ("signature_other", "the signature of another key", f"{rsa_head}.{rsa_said}.{signature}"),
    ):
        yield name, _token(about, "13.7.4", token)


def _raw(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _claims() -> Iterator[tuple[str, Json]]:
    for name, about, said in (
        ("array", "claims that are an array", b"[]"),
        ("json", "claims that are no JSON", b"{"),
        ("iss", "another issuer", claims(iss="https://issuer.example/")),
        ("no_iss", "no issuer", claims(iss=None)),
        ("aud", "another audience", claims(aud="other")),
        ("aud_array", "an array without the audience", claims(aud=["other"])),
        ("aud_several", "several audiences and no azp", claims(aud=["mksearch", "other"])),
        ("azp", "another azp", claims(azp="other")),
        ("azp_several", "an azp of another audience", claims(aud=["mksearch", "x"], azp="x")),
        ("expired", "expired for as long as the leeway", claims(exp=NOW - 60)),
        ("no_exp", "no exp", claims(exp=None)),
        ("exp_text", "an exp that is text", claims(exp=str(NOW + 9))),
        ("exp_bool", "an exp that is true", claims(exp=True)),
        ("exp_large", "an exp of 2^53", claims(exp=2**53)),
        ("no_iat", "no iat", claims(iat=None)),
        ("iat", "issued in 61 seconds", claims(iat=NOW + 61)),
        ("nbf", "good in 61 seconds", claims(nbf=NOW + 61)),
        ("nbf_text", "an nbf that is text", claims(nbf="")),
    ):
        yield f"claims_{name}", _token(about, "13.7.5", id_tokens.token(said))


def _nonces_and_values() -> Iterator[tuple[str, Json]]:
    own = identity().public.id.hex()
    for name, about, nonce in (
        ("none", "no nonce", None),
        ("other", "that of somebody else", identity(_OTHER).public.id.hex()),
        ("upper", "in capital letters", own.upper()),
        ("list", "in a list", [own]),
    ):
        yield f"nonce_{name}", _token(about, "13.7.6", id_tokens.token(claims(nonce=nonce)))
    for name, about, value in (
        ("true", "true", True),
        ("fraction", "a fraction", 1.5),
        ("negative", "a number below 0", -1),
        ("large", "2^32", 2**32),
        ("object", "an object", {"a": "b"}),
        ("array", "an array in an array", [["a"]]),
        ("null", "null in an array", [None]),
        ("empty", "the empty text", ""),
        ("control", "a control character", "a\nb"),
        ("mark", "a text that begins with a mark", "\u0301a"),
        ("nfd", "a text that is not in NFC", "e\u0301"),
        ("long", "257 bytes", "x" * 257),
        ("many", "65 values", [f"v{i}" for i in range(65)]),
    ):
        yield f"value_{name}", _token(about, "13.7.7", id_tokens.token(claims(groups=value)))
    many = [f"v{i}" for i in range(64)]
    for name, about, said in (
        ("numbers", "two numbers of one name", claims(clearance=[1, 2])),
        ("many", "65 attributes together", claims(groups=many)),
    ):
        yield f"together_{name}", _token(about, "13.7.8", id_tokens.token(said))


# --- what a user refuses -------------------------------------------------------------------------


def _answers() -> Iterator[tuple[str, Json]]:
    request = enrol_request(1)
    made = partial(1, OWN)
    good = answered(request, made)
    another = SigningKey(SecretKey(server_seed(2)))
    said = partial_message(request, bytes.fromhex(good["sealed"]), 1)
    own = SigningKey(SecretKey(server_seed(1)))
    sealed = changed(bytes.fromhex(good["sealed"]), 5).hex()
    stranger, label = another.sign(labels.PARTIAL_KEY, said), own.sign(labels.ENROL, said)
    elsewhere = answered(enrol_request(1, TokenClaim("a.b.c")), made)
    for name, about, changes in (
        ("stranger", "signed by another server", {"answer_signature": stranger.hex()}),
        ("label", "signed as something else", {"answer_signature": label.hex()}),
        ("generation", "another generation than signed", {"generation": 2}),
        ("sealed", "something else than signed", {"sealed": sealed}),
        ("request", "the answer to another request", elsewhere),
    ):
        yield name, _answer(about, "13.3.6", changes)
    point = PartialKey.decode(made)
    for name, about, inside, context, to in (
        ("to", "sealed to somebody else", made, request.hash, identity(_OTHER)),
        ("context", "sealed for another request", made, bytes(32), identity()),
        ("cut", "no partial key", made[:-1], request.hash, identity()),
    ):
        file = sealed_to(to.public.encode(), PARTIAL_PURPOSE, context, inside)
        yield name, _answer(about, "13.3.7", _resigned(request, file))
    key = point.key
    for name, about, wrong in (
        ("k", "K changed", replace(point, key=replace(key, k=key.k * BLS12_381.g1)).encode()),
        ("server", "the partial key of another server", partial(3, OWN)),
        ("labels", "for other attributes", partial(1, ("role:boss",))),
        ("generation", "of another generation", replace(point, generation=2).encode()),
        (
            "authority",
            "of another authority",
            replace(point, key=replace(key, authority=bytes(32))).encode(),
        ),
        ("epoch", "of another epoch", made.replace(EPOCH.to_bytes(8, "big"), bytes(7) + b"\x06")),
    ):
        yield f"partial_{name}", _answer(about, "13.3.8", answered(request, wrong))
    yield from _lists_of_attributes()


def _answer(about: str, step: str, changes: Json, request: int = _PLAIN) -> Json:
    return _bad("answer", about, step, _ANSWER, request) | changes


def _resigned(request: EnrolRequest, sealed: bytes) -> Json:
    key = SigningKey(SecretKey(server_seed(request.server)))
    signature = key.sign(labels.PARTIAL_KEY, partial_message(request, sealed, 1))
    return {"sealed": sealed.hex(), "answer_signature": signature.hex()}


def _lists_of_attributes() -> Iterator[tuple[str, Json]]:
    request = enrol_request(2, TokenClaim(id_tokens.token()))
    good = told(request, _LISTED)
    other = told(replace(request, server=3), _LISTED)["answer_signature"]
    for name, about, changes in (
        ("stranger", "signed by another server", {"answer_signature": other}),
        ("unsigned", "another list than signed", good | {"answers": ["role:analyst", "x:1"]}),
        ("less", "without that of the credential", told(request, _LISTED[:2])),
        ("descending", "not ascending", told(request, _LISTED[::-1])),
        ("twice", "an attribute twice", told(request, ("role:analyst", "role:analyst"))),
        ("typed", "not as printed", told(request, ('role:"analyst"',))),
        ("none", "what is no attribute", told(request, ("a b", "role:analyst"))),
        ("nothing", "nothing", told(request, ())),
    ):
        yield f"list_{name}", _answer(about, "13.7.10", changes, _LIST)


# --- lists of credentials ------------------------------------------------------------------------


def _lists() -> Iterator[tuple[str, Json]]:
    users = sorted([sha256(b"a"), sha256(b"b")])
    good = encode_credentials(dict.fromkeys(users, b"a file"))
    head = good[:12]
    for name, about, step, exception, file in (
        ("magic", "another magic", "13.5.6", _FORMAT, changed(good, 2)),
        ("format", "format 2", "13.5.6", "UnsupportedVersion", changed(good, 11, 2)),
        ("empty", "no byte at all", "13.5.6", _FORMAT, b""),
        ("cut", "the last byte missing", "13.5.7", _FORMAT, good[:-1]),
        ("longer", "a byte more", "13.5.7", _FORMAT, good + b"\0"),
        ("nothing", "no content", "13.5.7", _FORMAT, head),
        ("array", "an array", "13.5.7", _FORMAT, head + encode_cbor([])),
        ("text", "a user id that is text", "13.5.7", _FORMAT, head + encode_cbor({"a": b""})),
        ("short", "a user id of 31 bytes", "13.5.7", _FORMAT, head + encode_cbor({bytes(31): b""})),
        ("file", "a file that is text", "13.5.7", _FORMAT, head + encode_cbor({users[0]: ""})),
        (
            "order",
            "user ids that descend",
            "13.5.7",
            _FORMAT,
            head + cbor2.dumps(dict.fromkeys(users[::-1], b"")),
        ),
        (
            "same",
            "a user id twice",
            "13.5.7",
            _FORMAT,
            head + b"\xa2" + 2 * (b"\x58\x20" + users[0] + b"\x40"),
        ),
    ):
        case: Json = {"kind": "credential list", "about": about, "refused_at": step}
        yield name, case | {"exception": exception, "file": file.hex()}
