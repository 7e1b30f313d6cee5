"""The product and the slow implementation fetch the same groups and name the same liars."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from mksearch.crypto.bundle import KeyBundle
from mksearch.crypto.randomness import SeededRandom
from mksearch.crypto.secret import SecretKey
from mksearch.errors import NotEnoughAnswers
from mksearch.index.slots import SlotReader, SlotWriter
from mksearch.messages import SelectAnswer
from mksearch.params import P, Quorum
from mksearch.query.group import SegmentView
from mksearch.query.selection import Selection
from mksearch.scoring.cpu import CpuEngine
from mksearch.scoring.selecting import select_groups
from tests.reference import keys, selection
from tests.reference.refused import Refused

COLLECTION, SALT, MASTER = bytes(16), bytes(range(32)), bytes(range(1, 33))
#: Slots in groups of two, the last one half empty.
N_SLOTS = 1101
GROUPS = [0, 17, 17, 550]


@pytest.fixture(scope="module")
def made() -> tuple[SegmentView, np.ndarray[Any, Any], bytes]:
    """A segment's slots, which is all that selection asks of it, and the reference's tag key."""
    bundle = KeyBundle.from_master(SecretKey(MASTER), COLLECTION, 1, b"")
    own = bundle.segment_keys(SALT)
    writer = SlotWriter(own, COLLECTION, SALT, np.full(N_SLOTS, 40, np.int64))
    slots = np.zeros((N_SLOTS, writer.shape.width), np.uint16)
    writer.write([number.to_bytes(40, "big") for number in range(N_SLOTS)], slots)
    reader = SlotReader(own, COLLECTION, SALT, writer.shape, n_rows=N_SLOTS, n_slots=N_SLOTS)
    view = cast(SegmentView, SimpleNamespace(slots=reader, id=bytes(32)))
    slow = keys.segment_keys(keys.bundle_keys(MASTER, COLLECTION, 1, b""), SALT)
    return view, slots, slow.tag


@pytest.mark.parametrize("number", range(6))
def test_both_find_the_same_groups_and_name_the_same_liars(
    made: tuple[SegmentView, np.ndarray[Any, Any], bytes], number: int
) -> None:
    view, slots, tag_key = made
    rng = random.Random(number)
    n_servers, bound = ((3, 1), (5, 2))[number % 2]
    n_groups, size = selection.cut(N_SLOTS, slots.shape[1])
    assert (n_groups, size) == (551, 2) == (view.slots.n_groups, view.slots.group_slots)
    fast = Selection(
        view,
        np.array(GROUPS, np.int64),
        Quorum(n_servers, bound),
        SeededRandom(bytes([number]) * 32),
        version=1,
    )
    liars = set(rng.sample(range(1, n_servers + 1), rng.choice((0, 1, bound, bound + 1))))
    shares: dict[int, selection.Table] = {}
    answers: dict[int, selection.Table] = {}
    for server in range(1, n_servers + 1):
        request = fast.request(server)
        shares[server] = request.selectors.tolist()
        selection.require_selectors(shares[server], n_groups)
        elements = select_groups(CpuEngine(), slots, request.selectors, size)
        if server in liars:
            # Where the last group has no slot as well.
            at = (rng.randrange(4), rng.randrange(size), rng.randrange(slots.shape[1]))
            elements[at] = (int(elements[at]) + rng.randrange(1, P)) % P
        answers[server] = elements.reshape(4, -1).tolist()
        fast.add(server, SelectAnswer(request.query_id, elements))
        lied = selection.lied(tag_key, N_SLOTS, slots.shape[1], shares[server], answers[server])
        assert lied == fast._lied(server) == (server in liars)
    arguments = (tag_key, N_SLOTS, slots.shape[1], GROUPS, shares, answers, bound)
    if n_servers - len(liars) <= bound:
        with pytest.raises(NotEnoughAnswers):
            fast.combine()
        with pytest.raises(Refused) as refused:
            selection.combine(*arguments)
        assert refused.value.servers == set(fast.liars) == liars
        return
    found, named = selection.combine(*arguments)
    assert fast.combine().reshape(4, -1).tolist() == found
    assert set(fast.liars) == liars >= named
    whole = np.vstack([slots, np.zeros((1, slots.shape[1]), np.uint16)]).reshape(n_groups, -1)
    assert found == whole[GROUPS].tolist()
