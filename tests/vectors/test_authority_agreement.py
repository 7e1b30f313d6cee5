"""Both implementations on random and changed messages of section 13: alike, or both refuse."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mksearch.access.authority_messages import SHARE_PURPOSE
from mksearch.access.credential import printed
from mksearch.access.credential_list import decode_credentials
from mksearch.access.refresh_messages import MASK_PURPOSE, PART_PURPOSE, REFRESH_PURPOSE
from mksearch.codec import decode_cbor, encode_cbor
from mksearch.crypto import labels
from mksearch.crypto.kdf import sha256
from mksearch.errors import MksearchError
from mksearch_server.challenges import Challenges
from mksearch_server.oidc import TokenReader
from mksearch_server.oidc_config import OidcConfig
from tests.reference import enrolment, shares, tokens
from tests.reference.refused import Refused

from . import id_tokens
from .bad_shares import pieces
from .fast import Fixed
from .good_index import NOW, signing_key
from .material import Json, load
from .members import identity
from .shares import BASE, HELPERS, REPAIR, TARGET, fast_order, masking, sealing, slow_order, zero

N_MUTATIONS = int(os.environ.get("MKSEARCH_MUTATIONS", "2000"))
_LABELS = {
    "install": labels.INSTALL_SHARE,
    "refresh": labels.REFRESH_SHARE,
    "help": labels.REPAIR_HELP,
    "repair": labels.REPAIR_SHARE,
}
_PURPOSES = {"install": SHARE_PURPOSE, "refresh": REFRESH_PURPOSE, "help": MASK_PURPOSE}


def outcome(read: Any, case: Mapping[str, Any]) -> object:
    try:
        return read(case)
    except (MksearchError, Refused):
        return None


# --- orders --------------------------------------------------------------------------------------


def good_order(kind: str) -> Json:
    """Return a good order as a case, with what is sealed beside it in the clear."""
    file = load("shares")
    if kind == "repair":
        parts = [entry["part"] for entry in file["repair"]["help"]]
        return {"order": kind, **file["repair"]["order"], "parts": parts}
    share = file["install"][1]["share"]
    if kind == "install":
        return {"order": kind, **file["install"][1], "held": [], "inside": share}
    entry = file["refresh"]["orders"][1] if kind == "refresh" else file["repair"]["help"][0]
    inside = zero()[0][1] if kind == "refresh" else masking()[0][HELPERS.index(2)]
    return {"order": kind, **entry, "held": [share], "inside": inside.reveal().hex()}


def changed_body(rng: random.Random, kind: str, body: bytes) -> bytes:
    """Return a body with a field or two replaced, gone or added, or a few bytes changed."""
    if rng.random() < 0.2:
        at = rng.randrange(len(body))
        return body[:at] + rng.choice([b"", rng.randbytes(1)]) + body[at + 1 :]
    fields = decode_cbor(body, "an order")
    others = decode_cbor(bytes.fromhex(good_order(rng.choice([*_LABELS]))["body"]), "an order")
    for _ in range(rng.randint(1, 2)):
        name = rng.choice([*fields, *others])
        old = fields.get(name)
        pool: list[Any] = [others.get(name, 7), 0, 1, 2, 3, 255, 256, 2**64 - 1, b"", [], "2"]
        if isinstance(old, bytes):
            pool += [old[:-1], old + b"\0", bytes(len(old))] * 2
        if isinstance(old, list):
            pool += [old[:1], old[::-1], [*old, *old], [3, 4], [1, 2]] * 2
        if rng.random() < 0.1:
            fields.pop(name, None)
        else:
            fields[name] = rng.choice(pool)
    return encode_cbor(fields)


@pytest.mark.parametrize("kind", [*_LABELS])
def test_both_take_the_same_orders_and_make_the_same_of_them(kind: str) -> None:
    rng = random.Random(f"orders {kind}")
    n_taken = 0
    for _ in range(min(N_MUTATIONS, 40)):
        case = dict(good_order(kind))
        body = bytes.fromhex(case["body"])
        if rng.random() < 0.9:
            body = changed_body(rng, kind, body)
        case |= {"body": body.hex(), "signature": signing_key().sign(_LABELS[kind], body).hex()}
        if kind != "repair":
            # Sealed again, so that it opens whatever the body says.
            inside = bytes.fromhex(case["inside"])
            sealed = sealing(2).public.seal(_PURPOSES[kind], sha256(body), inside)
            case |= {"sealed": sealed.hex()}
        fast, slow = outcome(fast_order, case), outcome(slow_order, case)
        assert fast == (slow if fast or slow is None else ""), case
        n_taken += fast is not None
    assert n_taken


def test_a_part_that_the_product_seals_is_opened_by_the_reference() -> None:
    file = load("shares")
    context = shares.part_context(REPAIR, BASE, TARGET, 3)
    value = bytes.fromhex(file["repair"]["help"][1]["shown"])
    part = sealing(TARGET).public.seal(PART_PURPOSE, context, value)
    case = dict(good_order("repair"))
    case |= {"parts": [case["parts"][0], part.hex()]}
    assert slow_order(case) == fast_order(case) == file["install"][TARGET - 1]["share"]


@pytest.mark.parametrize("number", range(20))
def test_both_know_the_same_challenges_again(number: int) -> None:
    rng = random.Random(f"challenges {number}")
    key, drawn = rng.randbytes(32), rng.randbytes(8)
    now = [NOW]
    server = Challenges(Fixed(key, drawn), lambda: now[0])
    made = server.make()
    assert made == shares.make_challenge(key, NOW, drawn)
    for age_s in (-1, 0, 1, 120, 121):
        now[0] = NOW + age_s
        for challenge in (made, made[:-1], made + b"\0", rng.randbytes(32)):
            taken = [True, True]
            try:
                server.require(challenge)
            except MksearchError:
                taken[0] = False
            try:
                shares.require_challenge(challenge, key, now[0], "13.3.1")
            except Refused:
                taken[1] = False
            assert taken == [challenge == made and 0 <= age_s <= 120] * 2


# --- ID tokens -----------------------------------------------------------------------------------

_VALUES: tuple[Any, ...] = (
    True, False, 0, 7, -1, 1.5, 2**32, 2**53, NOW, NOW - 60, NOW - 59, NOW + 60, NOW + 61,
    float(NOW), "", "a", "and", "7", 'a "b" \\', "e\u0301", "R&D", "\u200d", [], ["a", "b"],
    ["a", 3], [[]], {}, "mksearch", ["mksearch"], ["mksearch", "x"], id_tokens.ISSUER,
)  # fmt: skip
_HEADERS: tuple[Any, ...] = (
    None, "JWT", "jwt", "EdDSA", "RS256", "ES256", "none", "okp", "ec", "rsa", "private", 1, [],
)  # fmt: skip


def random_token(rng: random.Random) -> str:
    """Return a token with a few things of it replaced, or a few characters."""
    said = id_tokens.claims(clearance=rng.choice([None, 3]))
    for _ in range(rng.choice([0, 1, 1, 2])):
        said[rng.choice([*said, "azp", "nbf", "title", "clearance", "groups"])] = rng.choice(
            _VALUES
        )
    header = {}
    if rng.random() < 0.2:
        header = {rng.choice(["alg", "typ", "kid", "crit"]): rng.choice(_HEADERS)}
    token = id_tokens.token(said, rng.choice(["okp", "okp", "ec", "rsa"]), header)
    if rng.random() < 0.15:
        at = rng.randrange(len(token))
        token = token[:at] + rng.choice(["", ".", "A", "_", "=", "*"]) + token[at + 1 :]
    return token


def test_both_read_the_same_attributes_off_the_same_tokens(tmp_path: Path) -> None:
    rng = random.Random("tokens")
    told = id_tokens.issuer()
    path = tmp_path / "keys.json"
    path.write_bytes(id_tokens.dumped({"keys": told["keys"]}))
    fields = {name: value for name, value in told.items() if name != "keys"}
    reader = TokenReader(OidcConfig(**fields, keys_file=path), lambda: NOW)
    issuer, user = tokens.Issuer(**told), identity().public.id
    n_read = 0
    for _ in range(min(N_MUTATIONS, 600)):
        token = random_token(rng)
        fast = outcome(lambda t: list(printed(reader.attributes(t["it"], user))), {"it": token})
        slow = outcome(
            lambda t: enrolment.ascending(tokens.read(t["it"], user, issuer, NOW)), {"it": token}
        )
        assert fast == slow, token
        n_read += fast is not None
    assert N_MUTATIONS < 600 or 100 < n_read < 500


# --- lists of credentials, and pieces of vectors -------------------------------------------------


def test_both_read_changed_lists_of_credentials_alike() -> None:
    rng = random.Random("lists")
    good = bytes.fromhex(load("enrolment")["credential_list"]["file"])
    short = enrolment.encode_list({rng.randbytes(32): b"one", rng.randbytes(32): b"another"})
    n_read = 0
    for _ in range(min(N_MUTATIONS, 1000)):
        data = rng.choice([good, short, short])
        at = rng.randrange(len(data))
        data = data[:at] + rng.choice([b"", rng.randbytes(1)]) + data[at + rng.choice([0, 1]) :]
        fast = outcome(lambda c: decode_credentials(c["it"]), {"it": data})
        assert fast == outcome(lambda c: enrolment.decode_list(c["it"]), {"it": data}), data.hex()
        n_read += fast is not None
    assert n_read


def _joined(made: list[Json], base: bytes) -> Iterator[bytes]:
    for piece in made:
        yield bytes.fromhex(piece["hex"]) if "hex" in piece else base[piece["from"] : piece["to"]]


def test_pieces_join_to_what_was_cut() -> None:
    rng = random.Random("pieces")
    for _ in range(500):
        base, data = rng.randbytes(rng.randrange(80)), rng.randbytes(rng.randrange(80))
        at = rng.randrange(81)
        data = rng.choice([base, base[:at] + data, data + base[at:], base[:at] + data + base[at:]])
        assert b"".join(_joined(pieces(data, "a base", base), base)) == data
