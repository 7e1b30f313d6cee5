"""Vectors of section 8.1: groups, fetches, selectors, answers to them, good and bad."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.evidence import _select_message
from mksearch.crypto.randomness import SeededRandom, uniform_elements
from mksearch.index.slot_shape import SlotShape
from mksearch.messages import SelectAnswer, SelectRequest
from mksearch.params import SLOT_UNITS, P, Quorum
from mksearch.query.selection import Selection, fetch_sizes
from mksearch.scoring.cpu import CpuEngine
from mksearch.scoring.reference import NumpyEngine
from mksearch.scoring.selecting import select_groups
from mksearch.wire import convert
from mksearch.wire.v1 import search_pb2
from tests.reference import field, selection
from tests.reference.codec import u32, u64
from tests.reference.refused import Refused

from . import slow
from .bad_files import vector_of
from .fast import Fixed
from .good_search import QUERY_ID, client_of
from .material import Json, pack, seed, unpack, unpack_bytes

#: Small slots, so that files stay small.
SEGMENT = "small"
VERSION = 7
GROUPS = [0, 1, 1, 2]
#: Name, quorum, wrong answers: server, fetch, element, what is added.
ATTEMPTS: tuple[tuple[str, Quorum, list[list[int]]], ...] = (
    ("honest", Quorum(3, 1), []),
    ("five servers", Quorum(5, 2), []),
    ("one element", Quorum(3, 1), [[2, 3, 5, 1]]),
    ("a tag of a fetch that nobody wants", Quorum(3, 1), [[1, 1, -1, 65_520]]),
    # With the Lagrange coefficients 3, -3, 1 of servers 1, 2, 3 the errors are 0 together.
    ("errors that cancel", Quorum(5, 2), [[1, 0, 8, 1], [2, 0, 8, 1]]),
)


class _Made:
    """One attempt: the product's selection, its coefficients and honest answers."""

    def __init__(self, quorum: Quorum, label: str) -> None:
        self.client = client_of(SEGMENT)
        slots = self.client.segment.slots
        shape = (quorum.collusion_bound, len(GROUPS), slots.n_groups)
        self.drawn = uniform_elements(SeededRandom(seed(label)), shape)
        random = Fixed(self.drawn.astype("<u2").tobytes(), QUERY_ID)
        groups = np.array(GROUPS, np.int64)
        self.selection = Selection(self.client.segment, groups, quorum, random, version=VERSION)

    def answer(self, server: int, errors: list[list[int]]) -> tuple[SelectRequest, SelectAnswer]:
        request = self.selection.request(server)
        slots, size = self.client.reader.slots(), self.client.segment.slots.group_slots
        found = [
            select_groups(engine, slots, request.selectors, size)
            for engine in (NumpyEngine(), CpuEngine())
        ]
        assert np.array_equal(found[0], found[1]), "engines differ"
        flat = found[0].reshape(len(GROUPS), -1).astype(np.int64)
        for _, fetch, element, add in (error for error in errors if error[0] == server):
            flat[fetch, element] = (flat[fetch, element] + add) % P
        elements = flat.astype(np.uint16).reshape(found[0].shape)
        return request, SelectAnswer(QUERY_ID, elements)


def _table(elements: NDArray[np.uint16]) -> list[list[str]]:
    return [pack(row.reshape(-1).tolist()) for row in elements]


def _attempt(name: str, quorum: Quorum, errors: list[list[int]]) -> Json:
    made = _Made(quorum, f"selection {name}")
    answers = []
    for server in range(1, quorum.n_servers + 1):
        request, answer = made.answer(server, errors)
        made.selection.add(server, answer)
        hashes = _select_message(request, answer)
        answers.append(
            {
                "server": server,
                "elements": _table(answer.elements),
                "request_sha256": hashes[:32].hex(),
                "answer_sha256": hashes[32:].hex(),
                "lied": made.selection._lied(server),
            }
        )
    found = made.selection.combine()
    return {
        "name": name,
        "n_servers": quorum.n_servers,
        "collusion_bound": quorum.collusion_bound,
        "groups": GROUPS,
        "coefficients": [_table(degree) for degree in made.drawn],
        "answers": answers,
        "found": _table(found),
        "liars": list(made.selection.liars),
    }


def file() -> Json:
    """Return the good vectors."""
    slots = (1, 274, 275, 1099, 1100, 2475, 99_253, 364_651)
    return {
        "about": "How slots are cut into groups, how fetches are padded, and answers to selectors: "
        "of each fetch the elements of a group, slot after slot.",
        "source": "docs/protocol.md, section 8.1",
        "cut": [
            [n_slots, units, *SlotShape(units).groups(n_slots)]
            for n_slots in slots
            for units in SLOT_UNITS
        ],
        "fetches": [
            [n, is_first, fetch_sizes(n, is_first=is_first)]
            for n in (0, 1, 4, 5, 16, 17, 33, 64, 65, 69, 128, 150, 2000)
            for is_first in (False, True)
        ],
        "segment": SEGMENT,
        "segment_id": client_of(SEGMENT).reader.id.hex(),
        "query_id": QUERY_ID.hex(),
        "version": VERSION,
        "attempts": [_attempt(*attempt) for attempt in ATTEMPTS],
    }


# --- the reference -------------------------------------------------------------------------------


@cache
def _slow() -> tuple[Any, bytes]:
    """Return the segment as the reference builds it, and its tag key."""
    me = slow.member(SEGMENT)
    return me.segment, me.keys.tag


def _shares(case: Json, n_groups: int) -> dict[int, selection.Table]:
    secret = selection.one_hot(case["groups"], n_groups)
    coefficients = [[unpack(row) for row in degree] for degree in case["coefficients"]]
    return {
        server: [
            field.shamir(row, [degree[i] for degree in coefficients], server)
            for i, row in enumerate(secret)
        ]
        for server in range(1, case["n_servers"] + 1)
    }


def check(made: Json) -> None:
    """Compare the reference with the good vectors."""
    for n_slots, units, n_groups, size in made["cut"]:
        assert selection.cut(n_slots, 8 * units + 3) == (n_groups, size)
    for n_wanted, is_first, sizes in made["fetches"]:
        assert selection.fetches(n_wanted, is_first) == sizes
    segment, tag_key = _slow()
    width = len(segment.slots[0])
    n_groups, size = selection.cut(len(segment.slots), width)
    for case in made["attempts"]:
        shares = _shares(case, n_groups)
        answers = {a["server"]: [unpack(row) for row in a["elements"]] for a in case["answers"]}
        for entry in case["answers"]:
            server = entry["server"]
            selection.require_selectors(shares[server], n_groups)
            honest = selection.answer(segment.slots, shares[server], size)
            lied = selection.lied(
                tag_key, len(segment.slots), width, shares[server], answers[server]
            )
            assert lied == entry["lied"] == (honest != answers[server])
            asked = b"select\x00" + bytes.fromhex(made["query_id"]) + u64(made["version"])
            asked += (
                bytes.fromhex(made["segment_id"])
                + u32(len(shares[server]))
                + _bytes(shares[server])
            )
            said = u32(len(answers[server])) + u32(size) + u32(width) + _bytes(answers[server])
            assert hashlib.sha256(asked).hexdigest() == entry["request_sha256"]
            assert hashlib.sha256(said).hexdigest() == entry["answer_sha256"]
        found, liars = selection.combine(
            tag_key,
            len(segment.slots),
            width,
            case["groups"],
            shares,
            answers,
            case["collusion_bound"],
        )
        assert [pack(row) for row in found] == case["found"]
        # Who is not needed is compared in the end; the reference stops when it has the groups.
        assert liars <= set(case["liars"])
        assert case["liars"] == [a["server"] for a in case["answers"] if a["lied"]]
        assert found == [
            [e for slot in segment.slots[g * size : (g + 1) * size] for e in slot]
            for g in case["groups"]
        ]


def _bytes(table: selection.Table) -> bytes:
    return b"".join(value.to_bytes(2, "little") for row in table for value in row)


# --- bad vectors ---------------------------------------------------------------------------------


def files() -> dict[str, Json]:
    """Return the bad vectors by name."""
    return {
        **{f"selectors_{name}": vector for name, vector in _selectors()},
        **{f"selected_{name}": vector for name, vector in _selected()},
    }


def _selectors() -> Iterator[tuple[str, Json]]:
    made = _Made(Quorum(3, 1), "bad selectors")
    good = [row.tolist() for row in made.selection.request(1).selectors]

    def vector(about: str, error: str, selectors: list[list[int]]) -> Json:
        data = [pack(row) for row in selectors]
        return vector_of("selectors", about, "8.1.4", error, segment=SEGMENT, selectors=data)

    yield "number", vector("three fetches", "ParameterError", good[:3])
    yield "none", vector("no fetch", "ParameterError", [])
    yield "element", vector("an element of p", "FormatError", [*good[:3], [P, *good[3][1:]]])
    yield "short", vector("a group less", "FormatError", [row[1:] for row in good])
    yield "long", vector("a group more", "FormatError", [[*row, 0] for row in good])


def _selected() -> Iterator[tuple[str, Json]]:
    quorum = Quorum(3, 1)

    def vector(about: str, errors: list[list[int]], liars: list[int]) -> Json:
        made = _Made(quorum, "bad selected")
        answers = [made.answer(server, errors)[1] for server in (1, 2, 3)]
        return vector_of(
            "selected",
            about,
            "8.1.7",
            "NotEnoughAnswers",
            segment=SEGMENT,
            n_servers=3,
            collusion_bound=1,
            groups=GROUPS,
            coefficients=[_table(degree) for degree in made.drawn],
            answers=[
                {"server": server, "elements": _table(answer.elements)}
                for server, answer in enumerate(answers, 1)
            ],
            liars=liars,
        )

    yield "two_lie", vector("one element of two servers", [[1, 0, 3, 7], [3, 2, 9, 8]], [1, 3])
    yield "tags", vector("a tag of two servers", [[2, 3, -1, 7], [3, 1, -2, 8]], [2, 3])


def _fast_selectors(case: Json) -> None:
    slots = client_of(case["segment"]).segment.slots
    head = search_pb2.SelectRequestHead(
        query_id=QUERY_ID, segment=bytes(32), n_fetches=len(case["selectors"])
    )
    convert.select_head(head)
    gathering = convert.Gathering(2 * head.n_fetches * slots.n_groups, "a selector share")
    for row in case["selectors"]:
        gathering.add(unpack_bytes(row))
    gathering.elements((head.n_fetches, slots.n_groups))


def _fast_selected(case: Json) -> None:
    made = _Made(Quorum(case["n_servers"], case["collusion_bound"]), "bad selected")
    assert [_table(degree) for degree in made.drawn] == case["coefficients"]
    for entry in case["answers"]:
        flat = np.array([unpack(row) for row in entry["elements"]], np.uint16)
        answer = SelectAnswer(QUERY_ID, flat.reshape(made.selection.shape))
        made.selection.add(entry["server"], answer)
    try:
        made.selection.combine()
    finally:
        assert list(made.selection.liars) == case["liars"]


def _slow_selectors(case: Json) -> None:
    segment, _ = _slow()
    n_groups, _ = selection.cut(len(segment.slots), len(segment.slots[0]))
    selection.require_selectors([unpack(row) for row in case["selectors"]], n_groups)


def _slow_selected(case: Json) -> None:
    segment, tag_key = _slow()
    n_slots, width = len(segment.slots), len(segment.slots[0])
    shares = _shares(case, selection.cut(n_slots, width)[0])
    answers = {a["server"]: [unpack(row) for row in a["elements"]] for a in case["answers"]}
    bound = case["collusion_bound"]
    refused: Refused | None = None
    try:
        selection.combine(tag_key, n_slots, width, case["groups"], shares, answers, bound)
    except Refused as error:
        refused = error
    if refused is not None:
        assert sorted(refused.servers) == case["liars"]
        raise refused


FAST = {"selectors": _fast_selectors, "selected": _fast_selected}
SLOW = {"selectors": _slow_selectors, "selected": _slow_selected}
