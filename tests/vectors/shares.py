"""Vectors of sections 13.1, 13.2 and 13.6: challenges, and orders about shares."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mksearch.access.authority_messages import SHARE_PURPOSE, ShareOrder
from mksearch.access.keys import (
    AuthorityShare,
    PublicParameters,
    VerificationKeys,
)
from mksearch.access.orders import Order, SignedOrder
from mksearch.access.refresh import deal_masks, deal_zero
from mksearch.access.refresh_messages import (
    MASK_PURPOSE,
    PART_PURPOSE,
    REFRESH_PURPOSE,
    HelpOrder,
    RefreshOrder,
    RepairOrder,
    part_context,
    part_message,
)
from mksearch.access.share_keeping import masked, refreshed, repaired
from mksearch.crypto import labels
from mksearch.crypto.evidence import AnswerSigner, AnswerVerifier
from mksearch.crypto.identity import Identity
from mksearch.crypto.kdf import derive, derive_from_both
from mksearch.crypto.randomness import SystemRandom
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey, verify
from mksearch_server.challenges import Challenges
from mksearch_server.identity import Claim
from mksearch_server.shares import ShareKeeper
from mksearch_server.store import ObjectStore
from tests.reference import access as reference
from tests.reference import members, shares

from .access import drawn, shared
from .fast import Fixed
from .good_index import NOW, OWNER_SEED, signing_key
from .material import COLLECTION, Json, load, seed
from .members import sealed_to

SERVERS = (1, 2, 3)
BASE, GENERATION = 1, 2
TARGET, HELPERS = 1, (2, 3)
REPAIR = seed("a repair")[:16]
#: When challenges are made, and when they come back: as late as they may.
MADE = NOW - 120


def server_seed(server: int) -> bytes:
    """Return the seed of a server's key."""
    return seed(f"key of server {server}")


def challenge_key(server: int) -> bytes:
    """Return what a server drew when it started."""
    return seed(f"challenge key of server {server}")


@cache
def sealing(server: int) -> Identity:
    """Return the sealing identity of a server."""
    return Identity(derive(SecretKey(server_seed(server)), labels.SERVER_SEAL))


def challenge(server: int, time_s: int = MADE) -> bytes:
    """Return a challenge of a server."""
    random = Fixed(challenge_key(server), seed(f"challenge of server {server}")[:8])
    return Challenges(random, lambda: time_s).make()


class Given(NamedTuple):
    """An order as it is sent.

    Attributes:
        order: of the owner.
        body: its bytes.
        signature: of the owner.
        sealed: b"" where nothing is.
    """

    order: Any
    body: bytes
    signature: bytes
    sealed: bytes = b""

    def shown(self) -> Json:
        """Return it for a vector file."""
        shown = {"server": self.order.server, "body": self.body.hex()}
        shown |= {"signature": self.signature.hex()}
        return shown | ({"sealed": self.sealed.hex()} if self.sealed else {})


def _given(order: Order, purpose: bytes = b"", content: bytes = b"") -> Given:
    signed = SignedOrder.sign(order, signing_key())
    sealed = b""
    if purpose:
        to = sealing(order.server).public.encode()
        sealed = sealed_to(to, purpose, signed.hash, content)
    return Given(order, signed.body, signed.signature, sealed)


@cache
def installing(server: int) -> Given:
    """Return the order with a share."""
    dealt = shared()
    order = ShareOrder(COLLECTION, server, challenge(server), dealt.parameters, dealt.verification)
    return _given(order, SHARE_PURPOSE, dealt.shares[server - 1].encode())


@cache
def zero() -> tuple[tuple[SecretKey, ...], VerificationKeys]:
    """Return the parts of zero, and the keys that come out."""
    dealt = shared()
    random = Fixed(drawn("coefficient of zero"))
    return deal_zero(dealt.parameters, dealt.verification, GENERATION, random)


@cache
def refreshing(server: int) -> Given:
    """Return the order with a part of zero."""
    parts, keys = zero()
    made = challenge(server)
    order = RefreshOrder(COLLECTION, server, made, BASE, shared().parameters, keys)
    return _given(order, REFRESH_PURPOSE, parts[server - 1].reveal())


@cache
def fresh(server: int) -> AuthorityShare:
    """Return the share of the second generation."""
    parts, keys = zero()
    dealt = shared()
    return refreshed(dealt.parameters, dealt.shares[server - 1], parts[server - 1], keys)


@cache
def masking() -> tuple[tuple[SecretKey, ...], tuple[Any, ...]]:
    """Return the masks of the helpers, and what is public of them."""
    random = Fixed(drawn("coefficient of a mask"))
    return deal_masks(shared().parameters, 1, TARGET, HELPERS, random)


@cache
def helping(server: int) -> Given:
    """Return the order to help."""
    secrets, points = masking()
    at = HELPERS.index(server)
    order = HelpOrder(
        COLLECTION, server, challenge(server), shared().parameters.authority, BASE, TARGET,
        sealing(TARGET).public, REPAIR, points[at],
    )  # fmt: skip
    return _given(order, MASK_PURPOSE, secrets[at].reveal())


@cache
def shown_by(server: int) -> tuple[bytes, bytes, bytes]:
    """Return what a helper shows: the number, the part, its signature."""
    secrets, _ = masking()
    dealt = shared()
    value = masked(dealt.parameters, dealt.shares[server - 1], secrets[HELPERS.index(server)])
    context = part_context(REPAIR, BASE, TARGET, server)
    to = sealing(TARGET).public.encode()
    part = sealed_to(to, PART_PURPOSE, context, value.reveal())
    said = part_message(SignedOrder.sign(helping(server).order, signing_key()).hash, part)
    signature = SigningKey(SecretKey(server_seed(server))).sign(labels.REPAIR_PART, said)
    return value.reveal(), part, signature


@cache
def repairing() -> Given:
    """Return the order to repair."""
    dealt, (_, points) = shared(), masking()
    return _given(
        RepairOrder(
            COLLECTION,
            TARGET,
            challenge(TARGET),
            dealt.parameters,
            dealt.verification,
            REPAIR,
            HELPERS,
            points,
        )
    )


# --- shares.json ---------------------------------------------------------------------------------


def file() -> Json:
    """Challenges of servers; orders with shares, with parts of zero, to repair a share."""
    parts, keys = zero()
    secrets, _ = masking()
    lost = repaired(
        shared().parameters,
        shared().verification,
        TARGET,
        HELPERS,
        masking()[1],
        [shown_by(server)[0] for server in HELPERS],
    )
    assert lost.encode() == shared().shares[TARGET - 1].encode()
    return {
        "about": (
            "Servers with what they derive and sign; orders of the owner with what is sealed "
            "beside them, and the shares that come out. What is sealed was sealed with the draws "
            "of members.json. All secrets, so never to be used."
        ),
        "source": "docs/protocol.md, sections 13.1, 13.2 and 13.6",
        "collection": COLLECTION.hex(),
        "owner_seed": OWNER_SEED.hex(),
        "owner_key": signing_key().public.hex(),
        "parameters": shared().parameters.encode().hex(),
        "verification": shared().verification.encode().hex(),
        "challenges_made": MADE,
        "now": NOW,
        "servers": [_server(server) for server in SERVERS],
        "install": [
            installing(server).shown() | {"share": shared().shares[server - 1].encode().hex()}
            for server in SERVERS
        ],
        "refresh": {
            "base": BASE,
            "generation": GENERATION,
            "coefficients": [drawn("coefficient of zero").hex()],
            "parts": [part.reveal().hex() for part in parts],
            "verification": keys.encode().hex(),
            "orders": [
                refreshing(server).shown() | {"share": fresh(server).encode().hex()}
                for server in SERVERS
            ],
        },
        "repair": {
            "target": TARGET,
            "helpers": list(HELPERS),
            "generation": BASE,
            "repair": REPAIR.hex(),
            "coefficients": [drawn("coefficient of a mask").hex()],
            "masks": [secret.reveal().hex() for secret in secrets],
            "help": [_help(server) for server in HELPERS],
            "order": repairing().shown() | {"share": lost.encode().hex()},
        },
    }


def _server(server: int) -> Json:
    secret, user_key = SecretKey(server_seed(server)), sealing(server).public.encode()
    erasure, nonce = seed(f"erasure key of server {server}"), seed("nonce of a challenge")[:16]
    authority, key = shared().parameters.authority, SigningKey(secret)
    made, generation = challenge(server), server - 1
    store_key = derive_from_both(secret, SecretKey(erasure), labels.SHARE_STORE, authority)
    signature = AnswerSigner(key).challenge(nonce, server, made, user_key, generation)
    return {
        "server": server,
        "seed": server_seed(server).hex(),
        "key": key.public.hex(),
        "sealing_seed": derive(secret, labels.SERVER_SEAL).reveal().hex(),
        "sealing_key": user_key.hex(),
        "erasure_key": erasure.hex(),
        "store_key": store_key.reveal().hex(),
        "challenge_key": challenge_key(server).hex(),
        "drawn": seed(f"challenge of server {server}")[:8].hex(),
        "challenge": made.hex(),
        "nonce": nonce.hex(),
        "generation": generation,
        "signature": signature.hex(),
    }


def _help(server: int) -> Json:
    value, part, signature = shown_by(server)
    shown = {"shown": value.hex(), "part": part.hex(), "part_signature": signature.hex()}
    return helping(server).shown() | shown


# --- the product ---------------------------------------------------------------------------------


def _told(server: int) -> Json:
    told: Json = next(entry for entry in load("shares")["servers"] if entry["server"] == server)
    return told


@contextmanager
def keeper(case: Mapping[str, Any]) -> Iterator[tuple[ShareKeeper, Claim]]:
    """Yield the product's server that an order is for, with what it `held` before."""
    told, file = _told(case["server"]), load("shares")
    random, now = SystemRandom(), case.get("now", NOW)
    challenges = Challenges(Fixed(bytes.fromhex(told["challenge_key"])), lambda: now)
    claim = Claim(bytes.fromhex(file["owner_key"]), bytes.fromhex(file["collection"]))
    with tempfile.TemporaryDirectory() as folder:
        store = ObjectStore(Path(folder))
        try:
            secret = SecretKey(bytes.fromhex(told["seed"]))
            made = ShareKeeper(case["server"], secret, store, challenges, random)
            parameters = PublicParameters.decode(bytes.fromhex(file["parameters"]))
            held = tuple(AuthorityShare.decode(bytes.fromhex(f)) for f in case.get("held", ()))
            if held:
                made._keep(parameters, held)
            yield made, claim
        finally:
            store.close()


def fast_order(case: Mapping[str, Any]) -> str:
    """Give an order to the product's server; return what comes out, in hexadecimal.

    What a helper shows to a key of nobody comes out as "".
    """
    body, signature = bytes_of(case["body"]), bytes.fromhex(case["signature"])
    with keeper(case) as (made, claim):
        if case["order"] == "help":
            part, proof = made.help(body, signature, bytes_of(case["sealed"]), claim)
            order = SignedOrder.decode(HelpOrder, body, signature, claim.owner_key)
            key = bytes.fromhex(_told(case["server"])["key"])
            verify(key, labels.REPAIR_PART, part_message(order.hash, part), proof, "a part")
            repair, target = order.order.repair, order.order.target
            context = part_context(repair, order.order.generation, target, case["server"])
            known = {sealing(one).public.id: sealing(one) for one in SERVERS}
            to = known.get(order.order.sealing_key.id)
            return "" if to is None else to.open(PART_PURPOSE, context, part, "a part").hex()
        if case["order"] == "repair":
            parts = [bytes_of(part) for part in case["parts"]]
            generation = made.repair(body, signature, parts, claim)
        else:
            give = made.install if case["order"] == "install" else made.refresh
            generation = give(body, signature, bytes_of(case["sealed"]), claim)
        assert made.generation == generation
        authority = reference.decode_parameters(bytes.fromhex(load("shares")["parameters"]))
        return made.find(authority.authority, generation).encode().hex()


def fast_part(case: Mapping[str, Any]) -> None:
    """Prove, as the owner, with the product that a helper signed its part."""
    body = bytes_of(case["body"])
    made = members.user_id(body)
    key = bytes.fromhex(_told(case["server"])["key"])
    said = part_message(made, bytes_of(case["part"]))
    verify(key, labels.REPAIR_PART, said, bytes.fromhex(case["signature"]), "a part")


# --- the reference -------------------------------------------------------------------------------


def slow_server(case: Mapping[str, Any]) -> shares.Server:
    """Return the reference's server that an order is for."""
    told, file = _told(case["server"]), load("shares")
    return shares.Server(
        case["server"],
        bytes.fromhex(told["seed"]),
        bytes.fromhex(told["challenge_key"]),
        case.get("now", NOW),
        bytes.fromhex(file["owner_key"]),
        bytes.fromhex(file["collection"]),
        [bytes.fromhex(share) for share in case.get("held", ())],
    )


def slow_order(case: Mapping[str, Any]) -> str:
    """Give an order to the reference; return what comes out, in hexadecimal."""
    body, signature = bytes_of(case["body"]), bytes.fromhex(case["signature"])
    server = slow_server(case)
    if case["order"] == "help":
        value = shares.help_repair(server, body, signature, bytes_of(case["sealed"]))
        return value.to_bytes(32, "big").hex()
    if case["order"] == "repair":
        parts = [bytes_of(part) for part in case["parts"]]
        return shares.repair_share(server, body, signature, parts).hex()
    give = shares.install if case["order"] == "install" else shares.refresh
    return give(server, body, signature, bytes_of(case["sealed"])).hex()


def slow_part(case: Mapping[str, Any]) -> None:
    """Prove, as the owner, with the reference that a helper signed its part."""
    key, signature = bytes.fromhex(_told(case["server"])["key"]), bytes.fromhex(case["signature"])
    shares.require_part(
        bytes_of(case["body"]), bytes_of(case["part"]), signature, case["server"], key
    )


def fast_challenge(case: Mapping[str, Any]) -> None:
    """Prove a server's challenge with the product."""
    AnswerVerifier(case["server"], bytes.fromhex(_told(case["server"])["key"])).challenge(
        bytes.fromhex(case["nonce"]), case["server"], bytes.fromhex(case["challenge"]),
        bytes_of(case["sealing_key"]), case["generation"], bytes.fromhex(case["signature"]),
    )  # fmt: skip


def slow_challenge(case: Mapping[str, Any]) -> None:
    """Prove a server's challenge with the reference."""
    said = shares.challenge_message(
        bytes.fromhex(case["nonce"]), case["server"], bytes.fromhex(case["challenge"]),
        bytes_of(case["sealing_key"]), case["generation"],
    )  # fmt: skip
    label, message = said.split(b"\0", 1)
    key = bytes.fromhex(_told(case["server"])["key"])
    signature = bytes.fromhex(case["signature"])
    shares.require_signature(label.decode(), message, signature, key, "10")


BASES: Mapping[str, Any] = {
    **{f"install {name}": lambda f, n=name: f["install"][1][n] for name in ("body", "sealed")},
    **{
        f"refresh {name}": lambda f, n=name: f["refresh"]["orders"][1][n]
        for name in ("body", "sealed")
    },
    **{f"help {name}": lambda f, n=name: f["repair"]["help"][0][n] for name in ("body", "sealed")},
    "repair body": lambda f: f["repair"]["order"]["body"],
    "part of 2": lambda f: f["repair"]["help"][0]["part"],
    "part of 3": lambda f: f["repair"]["help"][1]["part"],
    "sealing key": lambda f: f["servers"][1]["sealing_key"],
}
"""Good bytes of shares.json that pieces of bad vectors refer to."""


def bytes_of(value: str | Sequence[Json]) -> bytes:
    """Return bytes from hexadecimal, or from pieces."""
    if isinstance(value, str):
        return bytes.fromhex(value)
    out = b""
    for piece in value:
        if "hex" in piece:
            out += bytes.fromhex(piece["hex"])
        else:
            out += bytes.fromhex(BASES[piece["of"]](load("shares")))[piece["from"] : piece["to"]]
    return out


def orders(file: Json) -> Iterator[tuple[Json, str]]:
    """Yield the good orders of shares.json as cases, each with what comes out."""
    for entry in file["install"]:
        yield {"order": "install", **entry}, entry["share"]
    for entry, before in zip(file["refresh"]["orders"], file["install"], strict=True):
        yield {"order": "refresh", **entry, "held": [before["share"]]}, entry["share"]
    for entry in file["repair"]["help"]:
        held = [file["install"][entry["server"] - 1]["share"]]
        yield {"order": "help", **entry, "held": held}, entry["shown"]
    parts = [entry["part"] for entry in file["repair"]["help"]]
    entry = file["repair"]["order"]
    yield {"order": "repair", **entry, "parts": parts}, entry["share"]


def check(file: Json) -> None:
    """Compare the reference with the file."""
    parameters = reference.decode_parameters(bytes.fromhex(file["parameters"]))
    for entry in file["servers"]:
        _check_server(file, entry, parameters.authority)
    keys = {entry["server"]: bytes.fromhex(entry["sealing_key"]) for entry in file["servers"]}
    for entry in file["install"]:
        share = bytes.fromhex(entry["share"])
        fields = _addressed(file, entry["server"])
        fields["authority"] = bytes.fromhex(file["parameters"])
        fields["verification"] = bytes.fromhex(file["verification"])
        _check_order(file, entry, shares.INSTALL, fields, keys, "authority-share", share)
    _check_refresh(file, keys)
    _check_repair(file, keys)
    for case, expected in orders(file):
        assert slow_order(case) == expected
    for entry in file["repair"]["help"]:
        slow_part(entry | {"signature": entry["part_signature"]})


def _check_server(file: Json, entry: Json, authority: bytes) -> None:
    server, own = entry["server"], bytes.fromhex(entry["seed"])
    assert shares.sealing_seed(own).hex() == entry["sealing_seed"]
    assert shares.sealing_key(own).hex() == entry["sealing_key"]
    kept = shares.share_store_key(own, bytes.fromhex(entry["erasure_key"]), authority)
    assert kept.hex() == entry["store_key"]
    key, random = bytes.fromhex(entry["challenge_key"]), bytes.fromhex(entry["drawn"])
    made = shares.make_challenge(key, file["challenges_made"], random)
    assert made.hex() == entry["challenge"]
    shares.require_challenge(made, key, file["now"], "13.2.3")
    said = shares.challenge_message(
        bytes.fromhex(entry["nonce"]), server, made, bytes.fromhex(entry["sealing_key"]),
        entry["generation"],
    )  # fmt: skip
    label, message = said.split(b"\0", 1)
    assert shares.sign(label.decode(), message, own).hex() == entry["signature"]


def _addressed(file: Json, server: int) -> dict[str, Any]:
    told = file["servers"][server - 1]
    return {
        "collection": bytes.fromhex(file["collection"]),
        "server": server,
        "challenge": bytes.fromhex(told["challenge"]),
    }


def _check_order(
    file: Json,
    entry: Json,
    label: str,
    fields: dict[str, Any],
    keys: Mapping[int, bytes],
    purpose: str,
    content: bytes,
) -> None:
    body = shares.order_body(label, fields)
    assert body.hex() == entry["body"]
    assert shares.sign(label, body, bytes.fromhex(file["owner_seed"])).hex() == entry["signature"]
    if purpose:
        sealed = _seal(keys[entry["server"]], purpose, members.user_id(body), content)
        assert sealed.hex() == entry["sealed"]


def _seal(key: bytes, purpose: str, context: bytes, content: bytes) -> bytes:
    told = load("members")["sealed"][0]
    m, private = bytes.fromhex(told["m"]), bytes.fromhex(told["private"])
    return members.seal(key, purpose.encode(), context, content, m, private)


def _check_refresh(file: Json, keys: Mapping[int, bytes]) -> None:
    told = file["refresh"]
    coefficients = [reference.coefficient(bytes.fromhex(c)) for c in told["coefficients"]]
    parts = shares.zero_parts(coefficients, len(file["servers"]))
    assert [z.to_bytes(32, "big").hex() for z in parts] == told["parts"]
    before = reference.decode_verification(bytes.fromhex(file["verification"]))
    after = shares.refreshed_keys(before, told["generation"], parts)
    assert reference.encode_verification(after).hex() == told["verification"]
    for entry, z in zip(told["orders"], parts, strict=True):
        fields = _addressed(file, entry["server"]) | {"base": told["base"]}
        fields["authority"] = bytes.fromhex(file["parameters"])
        fields["verification"] = bytes.fromhex(told["verification"])
        content = z.to_bytes(32, "big")
        _check_order(file, entry, shares.REFRESH, fields, keys, "refresh-share", content)


def _check_repair(file: Json, keys: Mapping[int, bytes]) -> None:
    told, target = file["repair"], file["repair"]["target"]
    coefficients = [reference.coefficient(bytes.fromhex(c)) for c in told["coefficients"]]
    values = shares.masks(coefficients, target, told["helpers"])
    assert [b.to_bytes(32, "big").hex() for b in values] == told["masks"]
    name = reference.decode_parameters(bytes.fromhex(file["parameters"])).authority
    repair, points = bytes.fromhex(told["repair"]), [*map(shares.encode_mask, values)]
    for entry, b, point in zip(told["help"], values, points, strict=True):
        fields = _addressed(file, entry["server"]) | {
            "authority": name, "generation": told["generation"], "target": target,
            "sealing_key": keys[target], "repair": repair, "mask": point,
        }  # fmt: skip
        content = b.to_bytes(32, "big")
        _check_order(file, entry, shares.HELP, fields, keys, "repair-mask", content)
        context = shares.part_context(repair, told["generation"], target, entry["server"])
        part = _seal(keys[target], "repair-part", context, bytes.fromhex(entry["shown"]))
        assert part.hex() == entry["part"]
        own = bytes.fromhex(file["servers"][entry["server"] - 1]["seed"])
        said = shares.part_message(bytes.fromhex(entry["body"]), part)
        assert shares.sign(shares.PART, said, own).hex() == entry["part_signature"]
    fields = _addressed(file, target) | {
        "authority": bytes.fromhex(file["parameters"]),
        "verification": bytes.fromhex(file["verification"]),
        "repair": repair, "helpers": told["helpers"], "masks": points,
    }  # fmt: skip
    _check_order(file, told["order"], shares.REPAIR, fields, keys, "", b"")


FAST = {"order": fast_order, "part": fast_part, "challenge": fast_challenge}
SLOW = {"order": slow_order, "part": slow_part, "challenge": slow_challenge}
