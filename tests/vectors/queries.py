"""Vectors of section 13.4: signed queries, good and bad."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mksearch.crypto.secret import SecretKey
from mksearch.crypto.tickets import TicketSigner
from mksearch.messages import RecordRequest, ScoreRequest, Ticket
from mksearch_server.gate import QueryGate
from tests.reference import evidence, tickets
from tests.reference.refused import Refused

from .good_index import NOW
from .material import Json, draws, pack, seed, unpack

_P = 65521
_SERVER = 2


def _signer(label: str = "search key") -> TicketSigner:
    return TicketSigner(SecretKey(seed(label)))


def _score(n_vectors: int, width: int) -> Json:
    return {
        "kind": "score",
        "query_id": seed("signed query")[:16].hex(),
        "version": 7,
        "segment": seed("signed segment").hex(),
        "level": 1,
        "shares": [
            pack(v % _P for v in draws(f"share {i} of a query", width)) for i in range(n_vectors)
        ],
    }


def _records(*slots: int) -> Json:
    return {
        "kind": "records",
        "query_id": seed("signed records")[:16].hex(),
        "version": 2**40,
        "segment": seed("signed segment").hex(),
        "slots": list(slots),
    }


def _asked() -> tuple[Json, ...]:
    blocks = _score(1, 64) | {"blocks": [0, 3, 2**32 - 1]}
    return _score(1, 64), _score(2, 128), _records(0, 3, 2**33), _records(), blocks


def _case(
    request: Json, time_s: int = NOW, server: int = _SERVER, label: str = "search key"
) -> Json:
    ticket = _signer(label).sign(server, _fast_request(request), time_s)
    shown = {"time": time_s, "signature": ticket.signature.hex()}
    return {"server": _SERVER, "now": NOW, "request": request, "ticket": shown}


def file() -> Json:
    """Requests, and what a member signs of them."""
    return {
        "about": (
            "Requests for scores and records with the tickets of a member, at the edges of what a "
            "server takes. The search key is made from 32 bytes."
        ),
        "source": "docs/protocol.md, section 13.4",
        "search_seed": seed("search key").hex(),
        "search_key": _signer().public.hex(),
        "queries": [
            *(_case(request) for request in _asked()),
            _case(_score(1, 64), NOW - 120),
            _case(_records(1), NOW + 120),
        ],
    }


def _fast_request(request: Json) -> ScoreRequest | RecordRequest:
    query_id, segment = bytes.fromhex(request["query_id"]), bytes.fromhex(request["segment"])
    if request["kind"] == "records":
        slots = np.array(request["slots"], np.int64)
        return RecordRequest(request["version"], segment, slots, query_id=query_id)
    shares = np.array([unpack(share) for share in request["shares"]], np.uint16)
    blocks = tuple(request.get("blocks", ()))
    return ScoreRequest(
        query_id, request["version"], segment, request["level"], shares, blocks=blocks
    )


def fast_query(case: Json) -> None:
    """Let a query pass with the product, after those `before` it."""
    now = [0]
    gate = QueryGate(case["server"], clock=lambda: now[0])
    for one in (*case.get("before", ()), case):
        now[0] = one["now"]
        request, told = _fast_request(one["request"]), one["ticket"]
        ticket = None if told is None else Ticket(told["time"], bytes.fromhex(told["signature"]))
        object.__setattr__(request, "ticket", ticket)
        try:
            gate.enter(bytes.fromhex(case["search_key"]), request)
        except Exception:
            assert one is case, "a query before was refused"
            raise


# --- the reference -------------------------------------------------------------------------------


def _slow_request(request: Json) -> evidence.Request | tickets.RecordRequest:
    query_id, segment = bytes.fromhex(request["query_id"]), bytes.fromhex(request["segment"])
    if request["kind"] == "records":
        return tickets.RecordRequest(query_id, request["version"], segment, request["slots"])
    shares = [unpack(share) for share in request["shares"]]
    return evidence.Request(
        query_id, request["version"], segment, request["level"], shares, request.get("blocks", ())
    )


def slow_query(case: Json) -> None:
    """Let a query pass with the reference, after those `before` it."""
    gate = tickets.Gate(case["server"], bytes.fromhex(case["search_key"]))
    for one in (*case.get("before", ()), case):
        told = one["ticket"]
        shown = None
        if told is not None:
            shown = tickets.Ticket(told["time"], bytes.fromhex(told["signature"]))
        try:
            gate.enter(_slow_request(one["request"]), shown, one["now"])
        except Refused:
            assert one is case, "a query before was refused"
            raise


def check(file: Json) -> None:
    """Compare the reference with the file."""
    key = bytes.fromhex(file["search_seed"])
    for case in file["queries"]:
        made = tickets.ticket(
            case["server"], _slow_request(case["request"]), case["ticket"]["time"], key
        )
        assert made.signature.hex() == case["ticket"]["signature"]
        for let_pass in (slow_query, fast_query):
            let_pass(case | {"search_key": file["search_key"]})


# --- bad vectors ---------------------------------------------------------------------------------


def _asking(changes: Json) -> Json:
    """Return a good query, the request changed after it was signed."""
    score = _score(1, 64)
    return _case(score) | {"request": score | changes}


def _showing(changes: Json) -> Json:
    """Return a good query, its ticket changed."""
    good = _case(_score(1, 64))
    return good | {"ticket": good["ticket"] | changes}


def bad() -> Iterator[tuple[str, Json]]:
    """Yield queries that a server lets not pass."""
    score, _, records, _, blocks = _asked()
    good, slots = _case(score), _case(records)
    ticket, slots_ticket = good["ticket"], slots["ticket"]
    tampered = bytearray.fromhex(ticket["signature"])
    tampered[7] ^= 1
    other = _score(1, 64) | {"shares": [pack(v % _P for v in draws("other share", 64))]}
    for name, about, step, case in (
        ("unsigned", "a request that nobody signed", "13.4.1", good | {"ticket": None}),
        ("unsigned_records", "records that nobody signed", "13.4.1", slots | {"ticket": None}),
        ("late", "signed 121 seconds ago", "13.4.2", _case(score, NOW - 121)),
        ("early", "signed in 121 seconds", "13.4.2", _case(records, NOW + 121)),
        (
            "tampered",
            "a bit changed",
            "13.4.3",
            _showing({"signature": tampered.hex()}),
        ),
        (
            "time",
            "another time than signed",
            "13.4.3",
            _showing({"time": NOW + 1}),
        ),
        ("stranger", "signed with another key", "13.4.3", _case(score, label="old search key")),
        ("server", "signed for another server", "13.4.3", _case(score, server=3)),
        (
            "id",
            "another query",
            "13.4.3",
            _asking({"query_id": bytes(16).hex()}),
        ),
        ("version", "another version", "13.4.3", _asking({"version": 8})),
        (
            "segment",
            "another segment",
            "13.4.3",
            _asking({"segment": bytes(32).hex()}),
        ),
        ("level", "another level", "13.4.3", _asking({"level": 0})),
        (
            "blocks",
            "another block",
            "13.4.3",
            _case(blocks) | {"request": blocks | {"blocks": [0, 4, 2**32 - 1]}},
        ),
        ("no_blocks", "no blocks any more", "13.4.3", _case(blocks) | {"request": score}),
        ("share", "another share", "13.4.3", good | {"request": other}),
        ("slots", "other slots", "13.4.3", slots | {"request": records | {"slots": [0, 3, 4]}}),
        ("kind", "the ticket of another request", "13.4.3", good | {"ticket": slots_ticket}),
        ("replay", "the same request again", "13.4.4", good | {"before": [good]}),
        (
            "replay_late",
            "the same request again, as late as its time can pass",
            "13.4.4",
            _case(score, NOW + 120) | {"now": NOW + 240, "before": [_case(score, NOW + 120)]},
        ),
        (
            "replay_newly_signed",
            "another request with a query id that came before",
            "13.4.4",
            _case(records | {"query_id": score["query_id"]}) | {"before": [good]},
        ),
    ):
        yield (
            f"query_{name}",
            {
                "kind": "query",
                "about": about,
                "refused_at": step,
                # A signature that is not the group's is refused by what proves signatures.
                "exception": "VerificationError" if step == "13.4.3" else "QueryRefused",
                "search_key": _signer().public.hex(),
                **case,
            },
        )


def files() -> dict[str, Json]:
    """Return the bad vectors by name."""
    return dict(bad())


FAST = {"query": fast_query}
SLOW = {"query": slow_query}
