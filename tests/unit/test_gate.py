"""Who may ask: what a server decides before it looks at its index, and what it remembers."""

from __future__ import annotations

import gc
import random
import tracemalloc
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mksearch.crypto.secret import SecretKey
from mksearch.crypto.tickets import TicketSigner, request_hash
from mksearch.errors import VerificationError
from mksearch.messages import RecordRequest, ScoreRequest, Ticket
from mksearch_server.gate import CLOCK_S, QueryGate
from mksearch_server.status import BusyError

NOW_S = 1_800_000_000
SERVER = 2
SIGNER = TicketSigner(SecretKey(b"g" * 32))
STRANGER = TicketSigner(SecretKey(b"s" * 32))
SOURCE = random.Random(13)
R = TypeVar("R", ScoreRequest, RecordRequest)


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_s = float(NOW_S)

    def __call__(self) -> float:
        return self.now_s


def score(query_id: bytes | None = None, shares: int = 64) -> ScoreRequest:
    query_id = SOURCE.randbytes(16) if query_id is None else query_id
    return ScoreRequest(query_id, 3, b"s" * 32, 0, np.full((1, shares), 7, np.uint16))


def records(query_id: bytes | None = None) -> RecordRequest:
    query_id = SOURCE.randbytes(16) if query_id is None else query_id
    return RecordRequest(3, b"s" * 32, np.arange(5), query_id=query_id)


def signed(
    request: R, *, time_s: int = NOW_S, server: int = SERVER, signer: TicketSigner = SIGNER
) -> R:
    return replace(request, ticket=signer.sign(server, request, time_s))


KINDS = pytest.mark.parametrize("make", [score, records])


@KINDS
def test_a_signed_query_of_now_passes_once(make: Any) -> None:
    gate = QueryGate(SERVER, clock=Clock())
    request = signed(make())
    gate.enter(SIGNER.public, request)
    with pytest.raises(VerificationError, match="a replay"):
        gate.enter(SIGNER.public, request)
    gate.enter(SIGNER.public, signed(make()))


@KINDS
def test_who_did_not_sign_for_this_server_and_this_request_is_refused(make: Any) -> None:
    gate = QueryGate(SERVER, clock=Clock())
    request = make()
    right = signed(request)
    other = signed(make())
    for bad in (
        request,
        signed(request, signer=STRANGER),
        signed(request, server=1),
        signed(request, server=3),
        replace(right, ticket=other.ticket),
        replace(right, ticket=Ticket(NOW_S + 1, right.ticket.signature)),
        replace(right, ticket=Ticket(NOW_S, bytes(64))),
        replace(right, ticket=Ticket(NOW_S, b"")),
        replace(right, version=4),
        replace(right, segment=b"t" * 32),
        replace(right, query_id=SOURCE.randbytes(16)),
    ):
        with pytest.raises(VerificationError):
            gate.enter(SIGNER.public, bad)
    # A refusal is not remembered: the right request still passes.
    gate.enter(SIGNER.public, right)


def test_a_signature_covers_shares_levels_and_slots() -> None:
    gate = QueryGate(SERVER, clock=Clock())
    right = signed(score())
    shares = right.shares.copy()
    shares[0, 17] ^= 1
    for bad in (
        replace(right, shares=shares),
        replace(right, shares=right.shares[:, :-1]),
        replace(right, shares=right.shares.reshape(2, -1)),
        replace(right, level=1),
    ):
        with pytest.raises(VerificationError):
            gate.enter(SIGNER.public, bad)
    asked = signed(records())
    for slots in (asked.slots[:-1], asked.slots[::-1], asked.slots + 1, np.arange(6)):
        with pytest.raises(VerificationError):
            gate.enter(SIGNER.public, replace(asked, slots=slots))


def test_a_score_and_a_record_request_have_different_hashes() -> None:
    query_id = bytes(16)
    assert request_hash(score(query_id)) != request_hash(records(query_id))
    gate = QueryGate(SERVER, clock=Clock())
    asked, read = score(query_id), records(query_id)
    with pytest.raises(VerificationError):
        gate.enter(SIGNER.public, replace(read, ticket=signed(asked).ticket))


@KINDS
@pytest.mark.parametrize(
    "off_s",
    [0, CLOCK_S, -CLOCK_S, CLOCK_S + 1, -CLOCK_S - 1, 10**9, -NOW_S, 2**64 - 1 - NOW_S],
)
def test_a_time_may_be_two_minutes_off_and_no_more(make: Any, off_s: int) -> None:
    gate = QueryGate(SERVER, clock=Clock())
    request = signed(make(), time_s=NOW_S + off_s)
    if abs(off_s) <= CLOCK_S:
        gate.require_current(SIGNER.public, request.ticket)
        gate.enter(SIGNER.public, request)
        return
    word = "ahead of" if off_s > 0 else "behind"
    with pytest.raises(VerificationError, match=word):
        gate.require_current(SIGNER.public, request.ticket)
    with pytest.raises(VerificationError, match=word):
        gate.enter(SIGNER.public, request)


def test_what_needs_no_look_at_the_request_is_refused_before_it_has_come() -> None:
    gate = QueryGate(SERVER, clock=Clock())
    with pytest.raises(VerificationError, match="no member signed"):
        gate.require_current(SIGNER.public, None)
    gate.require_current(SIGNER.public, Ticket(NOW_S, b""))


def test_a_group_without_a_search_key_lets_everybody_pass_and_remembers_nobody() -> None:
    gate = QueryGate(SERVER, ids_max=1, clock=Clock())
    request = score()
    for _ in range(3):
        gate.require_current(b"", None)
        gate.enter(b"", request)
        gate.enter(b"", records(b""))
        gate.enter(b"", replace(request, ticket=Ticket(0, b"")))
    assert not gate._seen


@given(
    ahead_s=st.floats(-CLOCK_S, CLOCK_S),
    later_s=st.floats(0, 4 * CLOCK_S),
    fraction=st.floats(0, 0.999),
)
def test_no_query_passes_twice_whenever_it_comes_again(
    ahead_s: float, later_s: float, fraction: float
) -> None:
    clock = Clock()
    gate = QueryGate(SERVER, clock=clock)
    clock.now_s = NOW_S + fraction
    request = signed(records(), time_s=int(NOW_S + ahead_s))
    try:
        gate.enter(SIGNER.public, request)
    except VerificationError:
        return
    clock.now_s += later_s
    # Others come meanwhile, and what is too old is forgotten.
    gate.enter(SIGNER.public, signed(records(), time_s=int(clock.now_s)))
    with pytest.raises(VerificationError):
        gate.enter(SIGNER.public, request)


@pytest.mark.parametrize("half_s", [0.0, 0.4, 0.5, 0.6, 0.999])
def test_an_id_is_not_forgotten_in_the_moment_in_which_its_time_still_passes(half_s: float) -> None:
    """The earliest entry and the latest repetition of one time."""
    clock = Clock()
    gate = QueryGate(SERVER, clock=clock)
    request = signed(records(), time_s=NOW_S)
    clock.now_s = NOW_S - CLOCK_S - half_s
    entered = half_s == 0
    if entered:
        gate.enter(SIGNER.public, request)
    else:
        with pytest.raises(VerificationError):
            gate.enter(SIGNER.public, request)
        clock.now_s = NOW_S - CLOCK_S + half_s
        gate.enter(SIGNER.public, request)
    for end_s in (CLOCK_S - 0.5, CLOCK_S, CLOCK_S + 0.4, CLOCK_S + 0.6):
        clock.now_s = NOW_S + end_s
        with pytest.raises(VerificationError):
            gate.enter(SIGNER.public, request)


def test_ids_are_forgotten_after_their_time_and_room_comes_back() -> None:
    clock = Clock()
    gate = QueryGate(SERVER, ids_max=3, clock=clock)
    held = [signed(score()) for _ in range(4)]
    for request in held[:3]:
        gate.enter(SIGNER.public, request)
        clock.now_s += 1
    with pytest.raises(BusyError, match="3 queries came within") as caught:
        gate.enter(SIGNER.public, held[3])
    assert caught.value.retry_after_ms > 0
    # A replay is called one, room or not.
    with pytest.raises(VerificationError, match="replay"):
        gate.enter(SIGNER.public, held[0])
    clock.now_s = NOW_S + 2 * CLOCK_S + 0.5
    gate.enter(SIGNER.public, signed(score(), time_s=int(clock.now_s)))
    assert len(gate._seen) == 3
    with pytest.raises(BusyError):
        gate.enter(SIGNER.public, signed(score(), time_s=int(clock.now_s)))


def test_a_query_that_was_not_answered_may_come_again() -> None:
    gate = QueryGate(SERVER, ids_max=1, clock=Clock())
    request, other = signed(score()), signed(score())
    gate.enter(SIGNER.public, request)
    gate.forget(other)
    gate.forget(request)
    gate.enter(SIGNER.public, request)
    with pytest.raises(VerificationError, match="replay"):
        gate.enter(SIGNER.public, request)


def test_refusals_leave_nothing_in_memory() -> None:
    clock = Clock()
    gate = QueryGate(SERVER, ids_max=100, clock=clock)
    template = score(shares=4096)
    for _ in range(100):
        gate.enter(SIGNER.public, signed(score(shares=8)))
    late = signed(template, time_s=NOW_S - 500)
    forged = signed(template, signer=STRANGER)

    def refuse(times: int) -> None:
        for number in range(times):
            query_id = number.to_bytes(16, "big")
            for bad in (
                replace(template, query_id=query_id),
                replace(late, query_id=query_id),
                replace(forged, query_id=query_id),
            ):
                with pytest.raises(VerificationError):
                    gate.enter(SIGNER.public, bad)
        for _ in range(20):
            with pytest.raises(BusyError):
                gate.enter(SIGNER.public, signed(score(shares=8)))

    refuse(50)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    refuse(300)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 100_000
    assert len(gate._seen) == 100
