"""Vectors of sections 13.3, 13.5.1 and 13.7: enrolment, with ID tokens and without."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mksearch.access.attributes import parse_attribute
from mksearch.access.authority_messages import (
    PARTIAL_PURPOSE,
    EnrolRequest,
    TokenClaim,
    partial_key_message,
    token_attributes_message,
)
from mksearch.access.credential import SignedCredential
from mksearch.access.credential_list import decode_credentials, encode_credentials
from mksearch.access.issuing import issue_partial
from mksearch.access.keys import AuthorityShare, PublicParameters, VerificationKeys
from mksearch.crypto import labels
from mksearch.crypto.identity import Identity
from mksearch.crypto.randomness import SystemRandom
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.errors import AnswerRefused, NotEnoughAnswers
from mksearch.index.manifest import Access
from mksearch_client.asking import Servers
from mksearch_client.authority_connection import AuthorityConnection, Challenge
from mksearch_client.profile_folder import ServerEntry
from mksearch_client.sharing import agree_on_token, collect_key
from mksearch_server.authority import AuthorityKeeper, EnrolMessage
from mksearch_server.oidc import TokenReader
from mksearch_server.oidc_config import OidcConfig
from mksearch_server.store import ObjectStore
from tests.reference import access as reference
from tests.reference import enrolment, members, policies, shares, tokens

from . import id_tokens
from .access import EPOCH, drawn, shared
from .fast import Fixed
from .good_index import NOW
from .material import COLLECTION, Json, load, seed
from .members import USER_SEED, admin, body, identity, issued, sealed_to, secrets
from .shares import challenge, server_seed

OWN = ("role:analyst",)


@cache
def credential(**changes: Any) -> SignedCredential:
    """Return the credential that is shown."""
    fields: Json = {"attributes": tuple(map(parse_attribute, OWN))}
    return SignedCredential.sign(body(**(fields | changes)), admin(), b"")


def enrol_request(
    server: int, token: TokenClaim | None = None, signed: SignedCredential | None = None
) -> EnrolRequest:
    """Return what a user asks a server for."""
    shown = signed or credential()
    authority = shared().parameters.authority
    return EnrolRequest(server, challenge(server), authority, EPOCH, shown.hash, token)


def partial(server: int, attributes: Sequence[str]) -> bytes:
    """Return the partial key that a server makes."""
    share = shared().shares[server - 1]
    wanted = map(parse_attribute, attributes)
    random = Fixed(drawn(f"t of an enrolment at {server}"))
    return issue_partial(shared().parameters, share, wanted, EPOCH, random).encode()


def answered(request: EnrolRequest, made: bytes, generation: int = 1) -> Json:
    """Return what a server answers with a partial key."""
    sealed = sealed_to(identity().public.encode(), PARTIAL_PURPOSE, request.hash, made)
    said = partial_key_message(request, sealed, generation)
    signature = SigningKey(SecretKey(server_seed(request.server))).sign(labels.PARTIAL_KEY, said)
    return {
        "sealed": sealed.hex(),
        "answer_signature": signature.hex(),
        "generation": generation,
    }


def told(request: EnrolRequest, attributes: Sequence[str]) -> Json:
    """Return what a server answers with the attributes that it reads."""
    said = token_attributes_message(request, attributes)
    key = SigningKey(SecretKey(server_seed(request.server)))
    signature = key.sign(labels.TOKEN_ATTRIBUTES, said)
    return {"answers": list(attributes), "answer_signature": signature.hex()}


# --- enrolment.json ------------------------------------------------------------------------------

_TOGETHER = ('dept:"R&D"', "dept:finance", "role:analyst")


def _tokens() -> Iterator[tuple[str, str, Sequence[str], Sequence[str]]]:
    """Yield about, token, attributes asked for and attributes of each request with a token."""
    yield "asks what it may have", id_tokens.token(), (), _TOGETHER
    yield "asks for a key", id_tokens.token(), _TOGETHER, _TOGETHER
    said = id_tokens.claims(groups=None, clearance=[7, 7], title='né "x"\\', role="admin")
    found = ("clearance:7", "role:analyst", 'title:"né \\"x\\"\\\\"')
    header = {"kid": "ec", "typ": "jwt"}
    yield "numbers, quotes; signed by ES256", id_tokens.token(said, "ec", header), (), found
    late: Json = {"exp": NOW - 59, "iat": NOW + 60, "nbf": NOW + 60, "groups": "7"}
    late |= {"aud": ["x", id_tokens.AUDIENCE], "azp": id_tokens.AUDIENCE}
    few = ('dept:"7"', "role:analyst")
    token = id_tokens.token(id_tokens.claims(**late), "rsa", {"typ": None})
    yield "at the edges of what is current; signed by RS256", token, (), few
    said = id_tokens.claims(groups=[], aud=[id_tokens.AUDIENCE])
    yield "nothing that is an attribute", id_tokens.token(said), OWN, OWN


def file() -> Json:
    """Requests of one user at the servers of shares.json, and what these answer."""
    requests = []
    for server in (1, 3):
        request = enrol_request(server)
        requests.append(_request("without a token", request, OWN))
    for about, token, asked, found in _tokens():
        requests.append(_request(about, enrol_request(2, TokenClaim(token, tuple(asked))), found))
    listed = {
        identity().public.id: issued(credential().credential, secrets(None).encode()).encode(),
        seed("a user id"): b"a file",
    }
    return {
        "about": (
            "Requests to enrol of the identity of members.json at the servers of shares.json, and "
            "what these answer: a partial key, made with t, or attributes that are signed. What is "
            "sealed was sealed with the draws of members.json. All secrets, so never to be used."
        ),
        "source": "docs/protocol.md, sections 13.3, 13.5.1 and 13.7",
        "collection": COLLECTION.hex(),
        "parameters": shared().parameters.encode().hex(),
        "verification": shared().verification.encode().hex(),
        "admin_key": admin().public.hex(),
        "epoch": EPOCH,
        "now": NOW,
        "user_seed": USER_SEED.hex(),
        "user_key": identity().public.encode().hex(),
        "credential": credential().body.hex(),
        "credential_signature": credential().signature.hex(),
        "issuer": id_tokens.issuer(),
        "requests": requests,
        "credential_list": {
            "credentials": {user.hex(): data.hex() for user, data in sorted(listed.items())},
            "file": encode_credentials(listed).hex(),
        },
    }


def _request(about: str, request: EnrolRequest, found: Sequence[str]) -> Json:
    share = shared().shares[request.server - 1]
    shown: Json = {
        "about": about,
        "server": request.server,
        "held": [share.encode().hex()],
        "challenge": request.challenge.hex(),
        "hash": request.hash.hex(),
        "signature": request.sign(identity().signing).hex(),
    }
    token = request.token
    if token is not None:
        shown |= {"id_token": token.id_token, "attributes": list(token.attributes)}
        if not token.attributes:
            return shown | told(request, found)
    made = partial(request.server, found)
    draw = drawn(f"t of an enrolment at {request.server}").hex()
    shown |= {"for": list(found), "t": draw, "partial": made.hex()}
    return shown | answered(request, made)


def whole(case: Mapping[str, Any]) -> Json:
    """Return a case with all that it takes from enrolment.json: its file, and a good request."""
    good = load("enrolment")
    request: Json = good["requests"][case["request"]]
    return good | request | dict(case)


# --- the product ---------------------------------------------------------------------------------


class _Drawn:
    """Randomness that begins with what is known."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    def bytes(self, n_bytes: int) -> bytes:
        """Return the next piece if it fits, else what the system gives."""
        if self._pieces and len(self._pieces[0]) == n_bytes:
            return self._pieces.pop(0)
        return SystemRandom().bytes(n_bytes)


def _challenge_key(server: int) -> bytes:
    entry = next(one for one in load("shares")["servers"] if one["server"] == server)
    return bytes.fromhex(entry["challenge_key"])


@contextmanager
def keeper(case: Json) -> Iterator[AuthorityKeeper]:
    """Yield the product's server that a request comes to."""
    entry = next(one for one in load("shares")["servers"] if one["server"] == case["server"])
    now = case["now"]
    with tempfile.TemporaryDirectory() as name:
        reader, folder = None, Path(name)
        if case["issuer"] is not None:
            (folder / "keys.json").write_text(json.dumps({"keys": case["issuer"]["keys"]}))
            fields = {k: v for k, v in case["issuer"].items() if k != "keys"}
            config = OidcConfig(**fields, keys_file=folder / "keys.json")
            reader = TokenReader(config, lambda: now)
        store = ObjectStore(folder / "store")
        try:
            secret = SecretKey(bytes.fromhex(entry["seed"]))
            random = _Drawn(_challenge_key(case["server"]), bytes.fromhex(case.get("t", "")))
            made = AuthorityKeeper(case["server"], secret, store, random, lambda: now, reader)
            held = tuple(AuthorityShare.decode(bytes.fromhex(one)) for one in case["held"])
            if held:
                parameters = PublicParameters.decode(bytes.fromhex(case["parameters"]))
                made.shares._keep(parameters, held)
            yield made
        finally:
            store.close()


def _parts(given: Json) -> dict[str, bytes]:
    names = ("challenge", "credential", "credential_signature", "user_key", "signature")
    return {name: bytes.fromhex(given[name]) for name in names}


def _claim(case: Json) -> TokenClaim | None:
    if case.get("id_token") is None:
        return None
    return TokenClaim(case["id_token"], tuple(case["attributes"]))


def fast_enrolment(case: Mapping[str, Any]) -> Json:
    """Show the product's server a request; return what it answers, opened."""
    given = whole(case)
    access = Access(
        bytes.fromhex(given["parameters"]),
        bytes.fromhex(given["admin_key"]),
        given["epoch"],
        bytes.fromhex(given["verification"]),
    )
    message = EnrolMessage(**_parts(given), token=_claim(given))
    with keeper(given) as made:
        answer = made.issue(access, bytes.fromhex(given["collection"]), message)
    if not answer.sealed:
        return {"answers": list(answer.attributes), "answer_signature": answer.signature.hex()}
    user = Identity(SecretKey(bytes.fromhex(given["user_seed"])))
    context = bytes.fromhex(given["hash"])
    opened = user.open(PARTIAL_PURPOSE, context, answer.sealed, "a partial key")
    return {"partial": opened.hex(), "generation": answer.generation}


class _Recorded(AuthorityConnection):
    """A connection over which one answer comes."""

    def __init__(self, given: Json) -> None:
        entry = next(one for one in load("shares")["servers"] if one["server"] == given["server"])
        key = bytes.fromhex(entry["key"])
        super().__init__(ServerEntry(given["server"], "127.0.0.1:1", key), SystemRandom(), 1.0)
        answer = SimpleNamespace(
            sealed=bytes.fromhex(given.get("sealed", "")),
            signature=bytes.fromhex(given["answer_signature"]),
            generation=given.get("generation", 0),
            attributes=given.get("answers", ()),
        )
        stub: Any = SimpleNamespace(IssuePartialKey=lambda *_, **__: answer)
        self._authority = stub
        sealing_key = identity().public
        self._known = Challenge(bytes.fromhex(given["challenge"]), sealing_key, 1)

    def challenge(self) -> Challenge:
        """Return the challenge of the vector."""
        return self._known


def fast_answer(case: Mapping[str, Any]) -> None:
    """Take what a server answers with the product, as a user that asks no other server."""
    given = whole(case)
    connection = _Recorded(given)
    signed = SignedCredential.of_parts(
        bytes.fromhex(given["credential"]),
        bytes.fromhex(given["credential_signature"]),
        bytes.fromhex(given["admin_key"]),
    )
    user = Identity(SecretKey(bytes.fromhex(given["user_seed"])))
    parameters = PublicParameters.decode(bytes.fromhex(given["parameters"]))
    verification = VerificationKeys.decode(bytes.fromhex(given["verification"]))
    with ThreadPoolExecutor(1) as pool:
        servers: Servers[AuthorityConnection] = Servers(
            {given["server"]: connection}, {}, pool, hedge_s=60.0
        )
        try:
            if "answers" in given:
                agree_on_token(servers, signed, user, parameters, 2, given["id_token"])
            else:
                token, random = _claim(given), SystemRandom()
                collect_key(servers, signed, user, parameters, verification, random, token)
        except NotEnoughAnswers:
            # One is too few, but nothing was wrong with it.
            assert servers.reports[given["server"]].status == "ok"
        except AnswerRefused as error:
            if error.liars != (given["server"],):
                raise AssertionError(f"servers {error.liars} are named") from error
            raise
        finally:
            connection.close()


# --- the reference -------------------------------------------------------------------------------


def _shown(given: Json) -> enrolment.Shown:
    token, attributes = given.get("id_token"), given.get("attributes", ())
    return enrolment.Shown(**_parts(given), id_token=token, attributes=attributes)


def _issuer(given: Json) -> tokens.Issuer | None:
    return None if given["issuer"] is None else tokens.Issuer(**given["issuer"])


def slow_enrolment(case: Mapping[str, Any]) -> list[str]:
    """Show the reference a request; return the attributes that it serves."""
    given = whole(case)
    parameters = reference.decode_parameters(bytes.fromhex(given["parameters"]))
    verification = reference.decode_verification(bytes.fromhex(given["verification"]))
    entry = next(one for one in load("shares")["servers"] if one["server"] == given["server"])
    server = shares.Server(
        given["server"],
        bytes.fromhex(entry["seed"]),
        bytes.fromhex(entry["challenge_key"]),
        given["now"],
        b"",
        bytes.fromhex(given["collection"]),
        [bytes.fromhex(share) for share in given["held"]],
    )
    admin_key = bytes.fromhex(given["admin_key"])
    manifest = enrolment.Access(parameters, verification.generation, admin_key, given["epoch"])
    return enrolment.serve(server, manifest, _issuer(given), _shown(given))


def slow_answer(case: Mapping[str, Any]) -> None:
    """Take what a server answers with the reference."""
    given = whole(case)
    parameters = reference.decode_parameters(bytes.fromhex(given["parameters"]))
    server, epoch = given["server"], given["epoch"]
    entry = next(one for one in load("shares")["servers"] if one["server"] == server)
    key, signature = bytes.fromhex(entry["key"]), bytes.fromhex(given["answer_signature"])
    message = enrolment.request(server, _shown(given), parameters.authority, epoch)
    if "answers" in given:
        enrolment.accept_attributes(message, given["answers"], signature, server, key, OWN)
        return
    enrolment.accept(
        message,
        bytes.fromhex(given["sealed"]),
        signature,
        given["generation"],
        server,
        key,
        bytes.fromhex(given["user_seed"]),
        parameters,
        reference.decode_verification(bytes.fromhex(given["verification"])),
        given["for"],
        epoch,
    )


def check(file: Json) -> None:
    """Compare the reference with the file."""
    parameters = reference.decode_parameters(bytes.fromhex(file["parameters"]))
    for number, entry in enumerate(file["requests"]):
        case = {"request": number}
        message = enrolment.request(
            entry["server"], _shown(file | entry), parameters.authority, file["epoch"]
        )
        assert enrolment.request_hash(message).hex() == entry["hash"]
        assert slow_enrolment(case) == entry.get("for", entry.get("answers"))
        if "answers" in entry:
            slow_answer(case)
            _check_signature(enrolment.attributes_message(message, entry["answers"]), entry)
        else:
            _check_partial(file, entry, parameters, message)
    # Pairings of the reference are slow: one partial key is proved, the others are made alike.
    slow_answer({"request": 0})
    listed = file["credential_list"]
    files = {bytes.fromhex(u): bytes.fromhex(f) for u, f in listed["credentials"].items()}
    assert enrolment.encode_list(files).hex() == listed["file"]
    assert enrolment.decode_list(bytes.fromhex(listed["file"])) == files


def _check_signature(message: bytes, entry: Json) -> None:
    label = enrolment.TOKEN if "answers" in entry else enrolment.PARTIAL
    own = next(one for one in load("shares")["servers"] if one["server"] == entry["server"])
    made = shares.sign(label, message, bytes.fromhex(own["seed"]))
    assert made.hex() == entry["answer_signature"]


def _check_partial(
    file: Json, entry: Json, parameters: reference.Parameters, message: bytes
) -> None:
    _, generation, server, alpha = reference.decode_share(bytes.fromhex(entry["held"][0]))
    wanted = policies.key_labels(entry["for"], file["epoch"])
    t = reference.exponent(bytes.fromhex(entry["t"]))
    made = reference.make_key(parameters, alpha, wanted, t)
    data = reference.encode_partial(parameters.authority, generation, server, made)
    assert data.hex() == entry["partial"]
    draws = load("members")["sealed"][0]
    sealed = members.seal(
        bytes.fromhex(file["user_key"]),
        b"partial-key",
        hashlib.sha256(b"mksearch/1/enrol\x00" + message).digest(),
        data,
        bytes.fromhex(draws["m"]),
        bytes.fromhex(draws["private"]),
    )
    assert sealed.hex() == entry["sealed"]
    said = enrolment.partial_message(message, sealed, file["epoch"], entry["generation"])
    _check_signature(said, entry)


def fast_list(case: Mapping[str, Any]) -> None:
    """Read a list of credentials with the product."""
    decode_credentials(bytes.fromhex(case["file"]))


def slow_list(case: Mapping[str, Any]) -> None:
    """Read a list of credentials with the reference."""
    enrolment.decode_list(bytes.fromhex(case["file"]))


FAST = {"enrolment": fast_enrolment, "answer": fast_answer, "credential list": fast_list}
SLOW = {"enrolment": slow_enrolment, "answer": slow_answer, "credential list": slow_list}
