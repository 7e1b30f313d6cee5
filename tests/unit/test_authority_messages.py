"""Section 13 byte by byte: what is signed, as the protocol writes it, and what readers refuse."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

import cbor2
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from mksearch.access.authority import set_up_shared
from mksearch.access.authority_messages import (
    EnrolRequest,
    ShareOrder,
    partial_key_message,
)
from mksearch.access.credential_list import decode_credentials, encode_credentials
from mksearch.access.orders import SignedOrder
from mksearch.crypto.kdf import sha256
from mksearch.crypto.randomness import SeededRandom, SystemRandom
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.crypto.tickets import TicketSigner, request_hash, verify_ticket
from mksearch.errors import FormatError, UnsupportedVersion, VerificationError
from mksearch.messages import RecordRequest, ScoreRequest
from mksearch.params import Quorum

SEED = b"seed of a key, 32 bytes exactly."
SHARED = set_up_shared(Quorum(), SystemRandom())
bytes_of = {n: st.binary(min_size=n, max_size=n) for n in (16, 32)}
u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


def signed(label: str, message: bytes) -> bytes:
    """Sign by the protocol's words alone."""
    key = Ed25519PrivateKey.from_private_bytes(SEED)
    return key.sign(f"mksearch/1/{label}".encode() + b"\0" + message)


# --- tickets --------------------------------------------------------------------------------------


@given(
    server=st.integers(1, 255),
    time_s=u64,
    query_id=bytes_of[16],
    version=u64,
    segment=bytes_of[32],
    level=u32,
    shape=st.sampled_from([(1, 1), (1, 64), (2, 7), (4, 3)]),
)
def test_a_ticket_of_a_score_is_what_the_protocol_says(
    server: int,
    time_s: int,
    query_id: bytes,
    version: int,
    segment: bytes,
    level: int,
    shape: tuple[int, int],
) -> None:
    shares = (np.arange(shape[0] * shape[1], dtype=np.uint16) * 977 + 5).reshape(shape)
    request = ScoreRequest(query_id, version, segment, level, shares)
    asked = b"score\0" + query_id + struct.pack(">Q", version) + segment
    asked += struct.pack(">II", level, shape[0])
    asked += b"".join(struct.pack("<H", value) for row in shares.tolist() for value in row)
    digest = hashlib.sha256(asked).digest()
    assert request_hash(request) == digest
    message = struct.pack(">I", server) + digest + struct.pack(">Q", time_s)
    signer = TicketSigner(SecretKey(SEED))
    ticket = signer.sign(server, request, time_s)
    assert (ticket.time_s, ticket.signature) == (time_s, signed("query", message))
    verify_ticket(signer.public, server, request, ticket)


@given(
    server=st.integers(1, 255),
    time_s=u64,
    query_id=bytes_of[16],
    version=u64,
    segment=bytes_of[32],
    slots=st.lists(st.integers(0, 2**32 - 1), max_size=9),
)
def test_a_ticket_of_records_is_what_the_protocol_says(
    server: int, time_s: int, query_id: bytes, version: int, segment: bytes, slots: list[int]
) -> None:
    request = RecordRequest(version, segment, np.array(slots, np.int64), query_id=query_id)
    asked = b"records\0" + query_id + struct.pack(">Q", version) + segment
    asked += struct.pack(f">I{len(slots)}Q", len(slots), *slots)
    digest = hashlib.sha256(asked).digest()
    assert request_hash(request) == digest
    message = struct.pack(">I", server) + digest + struct.pack(">Q", time_s)
    ticket = TicketSigner(SecretKey(SEED)).sign(server, request, time_s)
    assert ticket.signature == signed("query", message)


# --- enrolment ------------------------------------------------------------------------------------


@given(
    server=st.integers(1, 255),
    challenge=bytes_of[32],
    authority=bytes_of[32],
    epoch=st.integers(1, 2**64 - 1),
    body=st.binary(max_size=40),
    sealed=st.binary(max_size=40),
    generation=st.integers(1, 2**64 - 1),
)
def test_a_request_to_enrol_and_its_answer_are_what_the_protocol_says(
    server: int,
    challenge: bytes,
    authority: bytes,
    epoch: int,
    body: bytes,
    sealed: bytes,
    generation: int,
) -> None:
    credential = hashlib.sha256(body).digest()
    request = EnrolRequest(server, challenge, authority, epoch, credential)
    said = struct.pack(">I", server) + challenge + authority + struct.pack(">Q", epoch) + credential
    key = SigningKey(SecretKey(SEED))
    signature = request.sign(key)
    assert signature == signed("enrol", said)
    request.verify(key.public, signature)
    digest = hashlib.sha256(b"mksearch/1/enrol\0" + said).digest()
    assert request.hash == digest
    answer = digest + hashlib.sha256(sealed).digest() + struct.pack(">QQ", epoch, generation)
    assert partial_key_message(request, sealed, generation) == answer


@pytest.mark.parametrize("field", ["server", "challenge", "authority", "epoch", "credential"])
def test_a_request_to_enrol_with_one_thing_changed_is_not_the_one_that_was_signed(
    field: str,
) -> None:
    key = SigningKey(SecretKey(SEED))
    fields: dict[str, Any] = {
        "server": 1,
        "challenge": bytes(32),
        "authority": b"a" * 32,
        "epoch": 1,
        "credential": b"c" * 32,
    }
    signature = EnrolRequest(**fields).sign(key)
    value = fields[field]
    other = value + 1 if isinstance(value, int) else bytes([value[0] ^ 1]) + value[1:]
    changed = EnrolRequest(**{**fields, field: other})
    with pytest.raises(VerificationError):
        changed.verify(key.public, signature)
    assert changed.hash != EnrolRequest(**fields).hash


# --- orders with a share --------------------------------------------------------------------------


def order(**changes: Any) -> ShareOrder:
    fields: dict[str, Any] = {
        "collection": b"collection 16 b.",
        "server": 2,
        "challenge": b"c" * 32,
        "parameters": SHARED.parameters,
        "verification": SHARED.verification,
    }
    return ShareOrder(**(fields | changes))


def fields_of(one: ShareOrder) -> dict[str, Any]:
    return {
        "collection": one.collection,
        "server": one.server,
        "challenge": one.challenge,
        "authority": one.parameters.encode(),
        "verification": one.verification.encode(),
    }


def test_an_order_with_a_share_is_what_the_protocol_says() -> None:
    made = SignedOrder.sign(order(), SigningKey(SecretKey(SEED)))
    body = cbor2.dumps(fields_of(order()), canonical=True)
    assert made.body == body
    assert made.signature == signed("install-share", body)
    assert made.hash == hashlib.sha256(body).digest()
    public = SigningKey(SecretKey(SEED)).public
    assert SignedOrder.decode(ShareOrder, body, made.signature, public) == made
    for share in SHARED.shares:
        if share.server == 2:
            made.order.require_share(share)
        else:
            with pytest.raises(FormatError):
                made.order.require_share(share)


def test_an_order_with_a_share_keeps_its_bytes() -> None:
    """Owners and servers of different releases understand each other."""
    shared = set_up_shared(Quorum(), SeededRandom(b"an order with a share".ljust(32)))
    changes = {"parameters": shared.parameters, "verification": shared.verification}
    made = SignedOrder.sign(order(**changes), SigningKey(SecretKey(SEED)))
    assert len(made.body) == 607
    assert made.hash.hex() == ("8dbbeeb9b103d231443df41f8285a25dfacdd07b8079fbe7fee59a1d278df50e")
    assert made.signature.hex() == (
        "a733e85cd085b7ac1052a85af8b5a6ab23986188f8e25e2b45cf5e4fc1c5f69c"
        "615099b1290ee6c830f81d1d4b56584e3b73303807340f758b29704a9290f302"
    )


BAD_ORDERS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "a field missing": lambda f: cbor2.dumps(_without(f, "server"), canonical=True),
    "a field more": lambda f: cbor2.dumps({**f, "more": 1}, canonical=True),
    "not in order": lambda f: cbor2.dumps(dict(reversed(list(_canonical(f).items())))),
    "a number as text": lambda f: cbor2.dumps({**f, "server": "2"}, canonical=True),
    "a truth as number": lambda f: cbor2.dumps({**f, "server": True}, canonical=True),
    "no map": lambda f: cbor2.dumps([*f.values()], canonical=True),
    "nothing": lambda _: b"",
    "a byte more": lambda f: cbor2.dumps(f, canonical=True) + b"\0",
    "a byte less": lambda f: cbor2.dumps(f, canonical=True)[:-1],
    "a short collection": lambda f: cbor2.dumps({**f, "collection": bytes(15)}, canonical=True),
    "a long challenge": lambda f: cbor2.dumps({**f, "challenge": bytes(33)}, canonical=True),
    "no parameters": lambda f: cbor2.dumps({**f, "authority": b""}, canonical=True),
    "no verification keys": lambda f: cbor2.dumps({**f, "verification": b""}, canonical=True),
    "keys of another authority": lambda f: cbor2.dumps(
        {**f, "verification": set_up_shared(Quorum(), SystemRandom()).verification.encode()},
        canonical=True,
    ),
    "a length that is not the shortest": lambda f: cbor2.dumps(f, canonical=True).replace(
        b"\x58\x20" + f["challenge"], b"\x59\x00\x20" + f["challenge"]
    ),
}


def _without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


def _canonical(fields: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = cbor2.loads(cbor2.dumps(fields, canonical=True))
    return found


@pytest.mark.parametrize("name", BAD_ORDERS)
def test_an_order_that_is_not_canonical_or_does_not_fit_is_refused_though_it_is_signed(
    name: str,
) -> None:
    body = BAD_ORDERS[name](fields_of(order()))
    assert body != order().encode()
    key = SigningKey(SecretKey(SEED))
    with pytest.raises(FormatError):
        SignedOrder.decode(ShareOrder, body, signed("install-share", body), key.public)
    # Without the signature nothing of it is looked at.
    with pytest.raises(VerificationError, match="signature") as caught:
        SignedOrder.decode(ShareOrder, body, signed("enrol", body), key.public)
    assert not isinstance(caught.value, FormatError)


# --- lists of credentials -------------------------------------------------------------------------


@given(st.dictionaries(bytes_of[32], st.binary(max_size=30), max_size=5))
def test_a_list_of_credentials_is_what_the_protocol_says(files: dict[bytes, bytes]) -> None:
    data = encode_credentials(files)
    assert data == b"MKCREDLS" + struct.pack(">I", 1) + cbor2.dumps(files, canonical=True)
    assert decode_credentials(data) == files


def test_a_bad_list_of_credentials_is_refused() -> None:
    files = {sha256(b"a"): b"one", sha256(b"b"): b"two"}
    good = encode_credentials(files)
    head = good[:12]

    def listed(content: object) -> bytes:
        return head + cbor2.dumps(content, canonical=True)

    with pytest.raises(UnsupportedVersion):
        decode_credentials(good[:11] + b"\2" + good[12:])
    reverse = dict(sorted(files.items(), reverse=True))
    for bad in (
        b"",
        good[:11],
        head,
        b"X" + good[1:],
        good[:-1],
        good + b"\0",
        listed([]),
        listed([*files.items()]),
        listed({"a": b"one"}),
        listed({bytes(31): b"one"}),
        listed({bytes(33): b"one"}),
        listed({bytes(32): "one"}),
        listed({bytes(32): None}),
        listed({bytes(32): [b"one"]}),
        head + cbor2.dumps(reverse),
        head + b"\xa2" + 2 * (b"\x58\x20" + bytes(32) + b"\x41\x00"),
    ):
        with pytest.raises(FormatError):
            decode_credentials(bad)
