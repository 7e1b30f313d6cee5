"""What a client does when something fails depends on what failed, never on what it asked; and what
it says that servers learned is what they saw."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mksearch.errors import MksearchError
from mksearch.messages import RecordAnswer, RecordRequest, ScoreAnswer, ScoreRequest
from mksearch.params import P
from mksearch.wire.v1 import owner_pb2
from mksearch_client.privacy import AVAILABLE
from mksearch_client.result import SearchResult
from mksearch_client.searching import Connection, Searcher
from tests.adversary.corpus import WORDS, make_documents
from tests.adversary.hostile import HostileServer
from tests.leakage.test_server_view import Watched
from tests.support.local import NOW_S

N_DOCUMENTS = 300
QUERIES = (
    WORDS[20],
    f"{WORDS[0]} {WORDS[1]} {WORDS[2]}",
    " ".join(WORDS[90:110]),
    "zzzzzz",
)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    documents = make_documents(N_DOCUMENTS, 12)
    return Watched.publish(documents, tmp_path_factory.mktemp("reactions"), b"reactions")


def asked_with(
    watched: Watched, liar: HostileServer, server: int, query: str
) -> tuple[dict[int, list[tuple[object, ...]]], SearchResult]:
    """Search with one server that lies; return what each sees of scoring, and the result."""
    connections: dict[int, Connection] = {**watched.servers, server: liar}
    results: list[SearchResult] = []
    with Searcher(
        connections, watched.keys.member(), watched.random, clock=lambda: NOW_S, hedge_s=60
    ) as searcher:
        searcher.refresh()
        seen = watched.seen_while(lambda: results.append(searcher.search(query, k=3)))
    scoring = {
        number: [call for call in calls if call[0] in ("score", "sums")]
        for number, calls in seen.items()
    }
    return scoring, results[0]


def add_errors(*places: tuple[int, int, int]) -> Callable[[Connection, ScoreRequest], ScoreAnswer]:
    """Lie about the sums of some (row, table) by an amount."""

    def lie(server: Connection, request: ScoreRequest) -> ScoreAnswer:
        sums = server.score(request).sums.copy()
        for row, table, amount in places:
            sums[0, row, table] = (int(sums[0, row, table]) + amount) % P
        return ScoreAnswer(request.query_id, sums)

    return lie


@pytest.mark.parametrize(
    "places",
    [
        [(0, 0, 1)],
        [(5, 2, 65_520)],
        [(63, 1, 7)],
        # Below the last document of the last block there are rows of zeros.
        [(-4, 0, 3)],
        [(row, row % 3, 1 + row) for row in range(0, 320, 9)],
    ],
    ids=["a row", "another", "a check row", "no row", "many"],
)
@pytest.mark.parametrize("server", [1, 2])
def test_the_same_error_has_the_same_outcome_whatever_was_asked(
    watched: Watched, server: int, places: list[tuple[int, int, int]]
) -> None:
    outcomes = []
    for query in QUERIES:
        liar = HostileServer(watched.servers[server], score=add_errors(*places))
        scoring, result = asked_with(watched, liar, server, query)
        statuses = [report.status for report in result.servers]
        outcomes.append((scoring, statuses))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert outcomes[0][1][server - 1] == "lied"
    assert all(calls for calls in outcomes[0][0].values()), "the third server was asked"


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_record_that_does_not_open_has_the_same_outcome_whichever_it_is(
    watched: Watched, which: int
) -> None:
    def spoil(server: Connection, request: RecordRequest) -> RecordAnswer:
        elements = server.records(request).elements.copy()
        elements[min(which, len(elements) - 1), 9] ^= 1
        return RecordAnswer(elements)

    outcomes = []
    for query in (WORDS[20], WORDS[3], f"{WORDS[1]} {WORDS[2]}"):
        liar = HostileServer(watched.servers[1], records=spoil)
        _, result = asked_with(watched, liar, 1, query)
        outcomes.append(([report.status for report in result.servers], liar.asked.count("records")))
        assert result.hits
    assert outcomes == [(["lied", "ok", "unused"], 1)] * 3


def test_when_no_server_has_a_record_that_opens_nothing_is_shown(watched: Watched) -> None:
    def spoil(server: Connection, request: RecordRequest) -> RecordAnswer:
        return RecordAnswer(np.zeros_like(server.records(request).elements))

    connections: dict[int, Connection] = {
        number: HostileServer(real, records=spoil) for number, real in watched.servers.items()
    }
    with (
        Searcher(connections, watched.keys.member(), watched.random, clock=lambda: NOW_S) as found,
        pytest.raises(MksearchError, match="lied"),
    ):
        found.search(WORDS[3])


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("mode", AVAILABLE)
def test_what_a_search_says_that_servers_learned_is_what_they_saw(
    watched: Watched, mode: str, query: str
) -> None:
    searcher = watched.searcher()
    searcher.refresh()
    for server in watched.servers.values():
        server.score_requests.clear()
        server.select_requests.clear()
    results: list[SearchResult] = []
    seen = watched.seen_while(lambda: results.append(searcher.search(query, privacy=mode)))
    calls = [call for calls in seen.values() for call in calls]
    slots = [call[2][0] for call in calls if call[0] == "records"]  # type: ignore[index]
    requests = watched.servers[1].score_requests
    (n_vectors,) = {len(request.shares) for request in requests}
    expected = {"query": n_vectors, "records": sum(slots)}
    if mode == "full":
        # Two servers are asked for the same.
        fetches = [len(request.selectors) for request in watched.servers[1].select_requests]
        expected = {"query": n_vectors, "fetches": sum(fetches)}
    if mode == "fast":
        expected["blocks"] = sum(len(request.blocks) for request in requests)
    result = results[0]

    assert result.privacy == mode
    assert {one["what"]: one["count"] for one in result.shown["t"]} == expected
    rounds = "round" if len(slots) == 1 else "rounds"
    said = " ".join(result.learned)
    if mode == "full":
        assert not slots
        assert f"that {', then '.join(map(str, fetches))} fetches came" in said
    else:
        assert (f"in {len(slots)} {rounds}" in said) if slots else ("no record was read" in said)
    assert ("which blocks were opened" in said) == (mode == "fast")


# --- claims ---------------------------------------------------------------------------------------


def test_a_claim_shows_a_server_the_owners_key_and_the_collection_and_nothing_more() -> None:
    """And whoever asks a server learns which collection and version it serves, and its release."""
    claim = {field.name for field in owner_pb2.ClaimRequest.DESCRIPTOR.fields}
    assert claim == {"token", "owner_key", "collection"}
    info = {field.name for field in owner_pb2.GetInfoResponse.DESCRIPTOR.fields}
    assert info == {"server_id", "server_key", "collection", "version", "release", "signature"}
    assert {field.name for field in owner_pb2.GetInfoRequest.DESCRIPTOR.fields} == {"nonce"}
