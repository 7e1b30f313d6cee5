"""Privacy ``full``: the hits of ``balanced``, records by selectors, liars named by their tags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mksearch.crypto.randomness import SeededRandom
from mksearch.errors import AnswerRefused, NotEnoughAnswers, ParameterError, ServerUnreachable
from mksearch.field.modp import matmul
from mksearch.field.shamir import interpolate
from mksearch.messages import (
    RecordAnswer,
    RecordRequest,
    ScoreAnswer,
    ScoreRequest,
    SelectAnswer,
    SelectRequest,
)
from mksearch.params import FETCH_CLASSES, P, Quorum
from mksearch.query.records import read_records
from mksearch.query.selection import Selection, fetch_sizes, pad_groups
from mksearch.scoring.engine import make_engine
from mksearch.scoring.selecting import select_groups
from mksearch_client.reading import Document
from mksearch_client.result import SearchResult
from mksearch_client.searching import Searcher
from mksearch_server.search_server import SearchServer
from tests.adversary.corpus import WORDS, make_documents
from tests.support.local import LocalCollection, publish

N_DOCUMENTS = 320
QUERIES = (
    WORDS[3],
    f"{WORDS[0]} {WORDS[1]} {WORDS[2]}",
    " ".join(WORDS[5:25]),
    " ".join(WORDS[20:100]),
    "unheardof",
)
QUERY = QUERIES[1]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LocalCollection:
    return publish(make_documents(N_DOCUMENTS, 3), tmp_path_factory.mktemp("private"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> LocalCollection:
    """Five servers of which two may collude, groups of slots, and a record that spills."""
    documents = [Document(d.id, "t" * 180, d.text) for d in make_documents(1250, 4)]
    folder = tmp_path_factory.mktemp("wide")
    return publish(documents, folder, quorum=Quorum(5, 2))


def found(result: SearchResult) -> tuple[Any, ...]:
    return result.hits, result.exact, result.verified, result.n_docs


def require_alike(searcher: Searcher, queries: Sequence[str], ks: Sequence[int]) -> None:
    for query in queries:
        for k in ks:
            full = searcher.search(query, k, privacy="full")
            assert found(full) == found(searcher.search(query, k)), (query, k)
            assert full.privacy == "full"


class Wrapped:
    """A server whose answers to selectors pass through a change."""

    def __init__(
        self, server: SearchServer, change: Callable[[SelectRequest, SelectAnswer], SelectAnswer]
    ) -> None:
        self._server = server
        self._change = change
        self.requests: list[SelectRequest] = []

    def manifest(self) -> bytes:
        return self._server.manifest()

    def renewal(self) -> bytes:
        return self._server.renewal()

    def score(self, request: ScoreRequest) -> ScoreAnswer:
        return self._server.score(request)

    def records(self, request: RecordRequest) -> RecordAnswer:
        raise AssertionError("a search with privacy full asked for records by number")

    def select(self, request: SelectRequest) -> SelectAnswer:
        self.requests.append(request)
        return self._change(request, self._server.select(request))

    def read_object(self, name: bytes, offset: int, n_bytes: int) -> bytes:
        return self._server.read_object(name, offset, n_bytes)


def honest(_request: SelectRequest, answer: SelectAnswer) -> SelectAnswer:
    return answer


def spoiling(change: Callable[[NDArray[np.uint16]], None]) -> Callable[..., SelectAnswer]:
    def tell(_request: SelectRequest, answer: SelectAnswer) -> SelectAnswer:
        elements = np.array(answer.elements)
        change(elements)
        return SelectAnswer(answer.query_id, elements)

    return tell


def statuses(result: SearchResult) -> dict[int, str]:
    return {report.id: report.status for report in result.servers}


def test_full_finds_what_balanced_finds_with_ties_in_order(local: LocalCollection) -> None:
    wrapped = {server: Wrapped(local.servers[server], honest) for server in (1, 2, 3)}
    full = local.searcher(replace={**wrapped})
    for query in QUERIES:
        for k in (1, 10, 100):
            expected = local.searcher().search(query, k)
            assert found(full.search(query, k, privacy="full")) == found(expected), (query, k)
    tied = make_documents(N_DOCUMENTS, 3)[0].text
    require_alike(local.searcher(), [tied], range(1, 16, 2))
    later = local.searcher().search(tied, 5, offset=4, privacy="full")
    assert later.hits == local.searcher().search(tied, 5, offset=4).hits


def test_records_that_spill_are_read_whole(wide: LocalCollection) -> None:
    segment = wide.searcher().refresh().views[0].segments[0]
    slots = segment.slots
    assert slots.n_slots > segment.n_rows
    assert slots.group_slots > 1
    assert slots.n_slots % slots.group_slots
    # Documents equal to the first share its row, whose record lists them all.
    shared = make_documents(1250, 4)[0].text
    require_alike(wide.searcher(), [WORDS[3], shared], (1, 10, 60))


def test_several_segments_with_tombstones_are_searched_as_one(tmp_path: Path) -> None:
    documents = make_documents(N_DOCUMENTS, 5)
    local = publish(documents[:200], tmp_path)
    local.change(documents[200:260], {documents[7].id, documents[8].id})
    local.change(documents[260:263], {documents[210].id})
    assert len(local.publication.signed.manifest.groups[0].segments) == 3
    require_alike(local.searcher(), QUERIES[:3], (1, 10, 60))
    asked = Wrapped(local.servers[1], honest)
    local.searcher(replace={1: asked}).search(QUERY, 10, privacy="full")
    # However many of the hits a segment has, as many fetches come for each.
    sizes = [len(request.selectors) for request in asked.requests]
    rounds = [sizes[start : start + 3] for start in range(0, len(sizes), 3)]
    assert all(len(set(of_round)) == 1 for of_round in rounds)


def test_what_servers_see_of_the_number_of_fetches_is_a_class(local: LocalCollection) -> None:
    for query in QUERIES:
        asked = Wrapped(local.servers[2], honest)
        result = local.searcher(replace={2: asked}).search(query, 10, privacy="full")
        sizes = [len(request.selectors) for request in asked.requests]
        assert sizes[0] == 16
        assert set(sizes) <= set(FETCH_CLASSES)
        assert any("fetches came for each segment" in line for line in result.learned)
        assert not any("which" in line and "numbers were read" in line for line in result.learned)
    assert fetch_sizes(0, is_first=True) == fetch_sizes(16, is_first=True) == [16]
    assert [fetch_sizes(n, is_first=False) for n in (0, 4, 5, 64, 65, 150)] == [
        *([4], [4], [8], [64], [64, 4], [64, 64, 32])
    ]


def test_a_dead_server_is_done_without(local: LocalCollection) -> None:
    def dead(_request: SelectRequest, _answer: SelectAnswer) -> SelectAnswer:
        raise ServerUnreachable("gone", server=1)

    result = local.searcher(replace={1: Wrapped(local.servers[1], dead)}).search(
        QUERY, 10, privacy="full"
    )
    assert result.hits == local.searcher().search(QUERY, 10).hits
    assert statuses(result) == {1: "unreachable", 2: "ok", 3: "ok"}
    two = local.searcher((2, 3)).search(QUERY, 10, privacy="full")
    assert two.hits == result.hits
    with pytest.raises(NotEnoughAnswers):
        local.searcher((2,)).search(QUERY, 10, privacy="full")


def one_element(elements: NDArray[np.uint16]) -> None:
    elements[3, 0, 40] = (int(elements[3, 0, 40]) + 1) % P


def one_tag(elements: NDArray[np.uint16]) -> None:
    elements[-1, -1, -1] = (int(elements[-1, -1, -1]) + 500) % P


def fetches_exchanged(elements: NDArray[np.uint16]) -> None:
    elements[[0, 1]] = elements[[1, 0]]


def zeros(elements: NDArray[np.uint16]) -> None:
    elements[:] = 0


def out_of_range(elements: NDArray[np.uint16]) -> None:
    elements[5, 0, 7] = P


LIES = (one_element, one_tag, fetches_exchanged, zeros, out_of_range)


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_names_the_liar_and_the_search_goes_on_with_the_same_polynomial(
    local: LocalCollection, lie: Callable[[NDArray[np.uint16]], None]
) -> None:
    asked = {server: Wrapped(local.servers[server], honest) for server in (2, 3)}
    liar = Wrapped(local.servers[1], spoiling(lie))
    result = local.searcher(replace={1: liar, **asked}).search(QUERY, 10, privacy="full")
    assert result.hits == local.searcher().search(QUERY, 10).hits
    assert statuses(result) == {1: "lied", 2: "ok", 3: "ok"}
    first = [connection.requests[0] for connection in (liar, asked[2], asked[3])]
    assert len({request.query_id for request in first}) == 1
    selectors = {server: request.selectors for server, request in enumerate(first, 1)}
    whole = interpolate(selectors, 3)
    assert np.array_equal(whole, interpolate({s: selectors[s] for s in (1, 3)}, 2))
    assert set(whole.sum(axis=1).tolist()) == {1}


def test_two_liars_of_five_are_named_and_three_are_refused(wide: LocalCollection) -> None:
    liars = {s: Wrapped(wide.servers[s], spoiling(one_element)) for s in (1, 3)}
    result = wide.searcher(replace={**liars}).search(QUERY, 10, privacy="full")
    assert result.hits == wide.searcher().search(QUERY, 10).hits
    assert {s for s, status in statuses(result).items() if status == "lied"} == {1, 3}
    liars[4] = Wrapped(wide.servers[4], spoiling(one_tag))
    with pytest.raises(AnswerRefused) as refused:
        wide.searcher(replace={**liars}).search(QUERY, 10, privacy="full")
    assert set(refused.value.liars) == {1, 3, 4}


def test_answers_of_another_shape_or_query_are_lies(local: LocalCollection) -> None:
    def shorter(_request: SelectRequest, answer: SelectAnswer) -> SelectAnswer:
        return SelectAnswer(answer.query_id, answer.elements[:-1])

    def other(_request: SelectRequest, answer: SelectAnswer) -> SelectAnswer:
        return SelectAnswer(bytes(16), answer.elements)

    for lie in (shorter, other):
        liar = {2: Wrapped(local.servers[2], lie)}
        result = local.searcher(replace={**liar}).search(QUERY, 3, privacy="full")
        assert statuses(result)[2] == "lied"


def test_spoiling_a_wanted_fetch_or_a_dummy_has_the_same_effect(
    local: LocalCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Selection] = []
    start = Selection.__init__

    def keep(self: Selection, *arguments: Any, **named: Any) -> None:
        start(self, *arguments, **named)
        kept.append(self)

    monkeypatch.setattr(Selection, "__init__", keep)
    slots = local.searcher().refresh().views[0].segments[0].slots
    effects, kinds = set(), set()
    for fetch in range(16):

        def spoil(elements: NDArray[np.uint16], fetch: int = fetch) -> None:
            elements[fetch, -1, 100] = (int(elements[fetch, -1, 100]) + 9) % P

        kept.clear()
        wrapped = {1: Wrapped(local.servers[1], spoiling(spoil))}
        wrapped |= {s: Wrapped(local.servers[s], honest) for s in (2, 3)}
        result = local.searcher(replace={**wrapped}).search(WORDS[3], 1, privacy="full")
        group = slots.physical(_row_of(local, result)) // slots.group_slots
        kinds.add(int(kept[0].groups[fetch]) == group)
        asked = tuple(
            tuple(request.selectors.shape for request in wrapped[s].requests) for s in wrapped
        )
        effects.add((tuple(statuses(result).items()), asked, result.rounds, result.hits))
    assert kinds == {True, False}
    assert len(effects) == 1


def _row_of(local: LocalCollection, result: SearchResult) -> int:
    """Return the row of the first hit."""
    view = local.searcher().refresh().views[0]
    (segment,) = view.segments
    store = local.servers[2].segment(segment.id).slots()
    for row in range(segment.n_rows):
        reading = read_records(segment.slots, [row], len(view.dictionary.terms))
        wanted = next(reading)
        try:
            while True:
                wanted = reading.send(np.array(store[wanted]))
        except StopIteration as done:
            if any(m.id == result.hits[0].id for m in done.value[row].members):
                return row
    raise AssertionError("no row holds the hit")


@pytest.mark.parametrize("engine", ["numpy", "cpu"])
@pytest.mark.parametrize(("n_slots", "group_slots"), [(1, 1), (37, 5), (40, 4), (90, 7), (7, 7)])
def test_every_engine_selects_exactly(engine: str, n_slots: int, group_slots: int) -> None:
    random = np.random.default_rng(n_slots)
    width, n_groups = 275, -(-n_slots // group_slots)
    slots = random.integers(0, P, (n_slots, width), np.uint16)
    slots[0], slots[-1] = P - 1, P - 1
    selectors = random.integers(0, P, (4, n_groups), np.uint16)
    selectors[0] = P - 1
    whole = np.zeros((n_groups * group_slots, width), np.uint16)
    whole[:n_slots] = slots
    expected = matmul(selectors, whole.reshape(n_groups, -1)).reshape(4, group_slots, width)
    chosen = make_engine(engine)
    assert np.array_equal(select_groups(chosen, slots, selectors, group_slots), expected)
    wrongs: list[NDArray[Any]] = [selectors[:, 1:], selectors.astype(np.int64)]
    for wrong in (*wrongs, np.full_like(selectors, P)):
        with pytest.raises(ParameterError):
            select_groups(chosen, slots, wrong, group_slots)


def test_hostile_selectors_are_refused(local: LocalCollection) -> None:
    server = local.servers[1]
    segment = local.publication.signed.manifest.groups[0].segments[0].id
    n_groups = server.n_groups(1, segment)
    for shape in ((3, n_groups), (0, n_groups), (128, n_groups), (4, n_groups + 1), (4, 0)):
        with pytest.raises(ParameterError):
            server.select(SelectRequest(bytes(16), 1, segment, np.zeros(shape, np.uint16)))
    good = np.zeros((4, n_groups), np.uint16)
    for version, name in ((2, segment), (1, bytes(32))):
        with pytest.raises(ParameterError):
            server.select(SelectRequest(bytes(16), version, name, good))
    assert not server.select(SelectRequest(bytes(16), 1, segment, good)).elements.any()


def test_dummies_are_slots_drawn_uniformly(local: LocalCollection) -> None:
    slots = local.searcher().refresh().views[0].segments[0].slots
    drawn = pad_groups(slots, [], 64 * slots.n_groups, SeededRandom(bytes(32)))
    counts = np.bincount(drawn, minlength=slots.n_groups)
    assert counts.min() > 20
    assert counts.max() < 130
