"""Privacy ``fast``: the hits of ``balanced`` from few blocks, liars named on every level."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mksearch.crypto.evidence import AnswerSigner, Evidence
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.errors import AnswerRefused, NotEnoughAnswers, ParameterError, VerificationError
from mksearch.index import builder
from mksearch.kernels.building import scatter_largest
from mksearch.messages import RecordAnswer, RecordRequest, ScoreAnswer, ScoreRequest
from mksearch.params import BLOCKS_MAX, P
from mksearch.query import descent
from mksearch.scoring.cpu import CpuEngine
from mksearch.scoring.engine import score_blocks
from mksearch_client.judging import judge
from mksearch_client.pruned import Pace
from mksearch_client.reading import Document
from mksearch_client.result import SearchResult
from mksearch_client.searching import Connection, Searcher
from mksearch_server.search_server import SearchServer
from tests.adversary.corpus import WORDS, make_documents
from tests.support.local import LocalCollection, publish
from tests.support.small_blocks import use_small_blocks

N_DOCUMENTS = 320
#: Blocks of 5 rows: about 308 rows, 62, 13, 3.
N_LEVELS = 4
QUERIES = (
    WORDS[3],
    WORDS[118],
    f"{WORDS[0]} {WORDS[1]} {WORDS[2]}",
    f"{WORDS[40]} {WORDS[90]}",
    " ".join(WORDS[5:25]),
    " ".join(WORDS[20:100]),
    "unheardof",
    f"{WORDS[7]} {WORDS[7]} {WORDS[60]} unheardof",
)


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patched:
        use_small_blocks(patched)
        yield patched


@pytest.fixture(scope="module", params=["tfidf", "bm25"])
def local(
    request: pytest.FixtureRequest,
    patch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> LocalCollection:
    documents = make_documents(N_DOCUMENTS, 3)
    return publish(documents, tmp_path_factory.mktemp(request.param), scoring=request.param)


def found(result: SearchResult) -> tuple[Any, ...]:
    return result.hits, result.exact, result.verified, result.n_docs


def require_alike(searcher: Searcher, queries: Sequence[str], ks: Sequence[int] = (1, 10)) -> None:
    for query in queries:
        for k in ks:
            balanced = searcher.search(query, k)
            fast = searcher.search(query, k, privacy="fast")
            assert found(fast) == found(balanced), (query, k)
            assert (fast.privacy, balanced.privacy) == ("fast", "balanced")


def test_fast_finds_what_balanced_finds_with_ties_in_order(local: LocalCollection) -> None:
    require_alike(local.searcher(), QUERIES, (1, 3, 10, 100))
    # Twelve documents are equal to the first one, so their scores tie.
    tied = make_documents(N_DOCUMENTS, 3)[0].text
    require_alike(local.searcher(), [tied], range(1, 16))
    first = local.searcher().search(tied, 5, offset=4, privacy="fast")
    assert first.hits == local.searcher().search(tied, 5, offset=4).hits


def test_fewer_blocks_are_opened_than_there_are(local: LocalCollection) -> None:
    shares = []
    for query in QUERIES:
        result = local.searcher().search(query, 3, privacy="fast")
        shares.append(result.cells_share)
        assert result.blocks_opened > 0
        opened = [sentence for sentence in result.learned if "which blocks were opened" in sentence]
        assert len(opened) == 1
        assert "blocks of documents" in opened[0] or result.hits == ()
    assert min(shares) < 0.5


def test_max_records_is_kept(local: LocalCollection) -> None:
    searcher = local.searcher()
    result = searcher.search(QUERIES[2], 10, max_records=4, privacy="fast")
    assert result.records_fetched <= 4
    assert not result.exact
    assert any("not exact" in warning for warning in result.warnings)


def test_there_is_no_other_privacy(local: LocalCollection) -> None:
    with pytest.raises(ParameterError, match="there is no privacy 'none'"):
        local.searcher().search(WORDS[0], privacy="none")


def test_several_segments_with_tombstones_are_searched_as_one(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    documents = make_documents(N_DOCUMENTS, 5)
    local = publish(documents[:200], tmp_path)
    local.change(documents[200:260], {documents[7].id, documents[8].id})
    changed = Document(documents[0].id, "", documents[300].text)
    local.change([*documents[260:], changed], {changed.id, documents[210].id})
    assert len(local.publication.signed.manifest.groups[0].segments) == 3
    require_alike(local.searcher(), QUERIES, (1, 10, 60))
    gone = {documents[7].id, documents[8].id, documents[210].id}
    hits = local.searcher().search(documents[7].text, 50, privacy="fast").hits
    assert gone.isdisjoint(hit.id for hit in hits)


class Wrapped:
    """A server whose answers about scores pass through a change."""

    def __init__(
        self, server: SearchServer, change: Callable[[ScoreRequest, ScoreAnswer], ScoreAnswer]
    ) -> None:
        self._server = server
        self._change = change
        self.requests: list[ScoreRequest] = []

    def manifest(self) -> bytes:
        return self._server.manifest()

    def renewal(self) -> bytes:
        return self._server.renewal()

    def score(self, request: ScoreRequest) -> ScoreAnswer:
        self.requests.append(request)
        return self._change(request, self._server.score(request))

    def records(self, request: RecordRequest) -> RecordAnswer:
        return self._server.records(request)

    def read_object(self, name: bytes, offset: int, n_bytes: int) -> bytes:
        return self._server.read_object(name, offset, n_bytes)


def changed(answer: ScoreAnswer, change: Callable[[NDArray[np.uint16]], None]) -> ScoreAnswer:
    sums = np.array(answer.sums)
    change(sums)
    return ScoreAnswer(answer.query_id, sums)


def one_sum(sums: NDArray[np.uint16]) -> None:
    sums[0, -8, 0] = (int(sums[0, -8, 0]) + 1) % P


def one_check_row(sums: NDArray[np.uint16]) -> None:
    sums[0, -1, -1] = (int(sums[0, -1, -1]) + 500) % P


def rows_exchanged(sums: NDArray[np.uint16]) -> None:
    sums[:, [0, 1]] = sums[:, [1, 0]]


@pytest.mark.parametrize("level", range(N_LEVELS))
@pytest.mark.parametrize("lie", [one_sum, one_check_row, rows_exchanged])
def test_a_lie_about_a_block_of_any_level_names_the_liar_and_the_search_goes_on(
    local: LocalCollection, level: int, lie: Callable[[NDArray[np.uint16]], None]
) -> None:
    def tell(request: ScoreRequest, answer: ScoreAnswer) -> ScoreAnswer:
        return changed(answer, lie) if request.level == level else answer

    query = QUERIES[2]
    liar = Wrapped(local.servers[1], tell)
    result = local.searcher(replace={1: liar}).search(query, 3, privacy="fast")
    assert result.hits == local.searcher().search(query, 3).hits
    status = {report.id: report.status for report in result.servers}
    was_asked = any(request.level == level for request in liar.requests)
    assert status == {1: "lied" if was_asked else "ok", 2: "ok", 3: "ok" if was_asked else "unused"}
    # Levels above the one where a search begins are never asked for.
    assert was_asked == (level <= max(request.level for request in liar.requests))


def test_other_blocks_than_the_named_ones_are_a_lie(local: LocalCollection) -> None:
    def tell(request: ScoreRequest, answer: ScoreAnswer) -> ScoreAnswer:
        if request.level == 0 and len(request.blocks) > 1:
            return changed(answer, lambda sums: sums.__setitem__(slice(None), np.roll(sums, 8, 1)))
        return answer

    liar = Wrapped(local.servers[2], tell)
    result = local.searcher(replace={2: liar}).search(QUERIES[2], 3, privacy="fast")
    assert {report.id: report.status for report in result.servers}[2] == "lied"
    assert result.hits == local.searcher().search(QUERIES[2], 3).hits


def test_too_many_liars_end_the_search_and_are_named(local: LocalCollection) -> None:
    liars: dict[int, Connection] = {
        j: Wrapped(local.servers[j], lambda _, a: changed(a, one_sum)) for j in (1, 3)
    }
    with pytest.raises(AnswerRefused) as caught:
        local.searcher(replace=liars).search(QUERIES[0], privacy="fast")
    assert sorted(caught.value.liars) == [1, 3]


def test_any_two_servers_suffice_and_one_does_not(local: LocalCollection) -> None:
    expected = local.searcher().search(QUERIES[2]).hits
    for pair in ((1, 2), (1, 3), (2, 3)):
        assert local.searcher(pair).search(QUERIES[2], privacy="fast").hits == expected
    with pytest.raises(NotEnoughAnswers):
        local.searcher((2,)).search(QUERIES[2], privacy="fast")


def test_a_server_that_dies_between_two_waits_is_replaced(local: LocalCollection) -> None:
    n_asked = 0

    def die(_request: ScoreRequest, answer: ScoreAnswer) -> ScoreAnswer:
        nonlocal n_asked
        n_asked += 1
        if n_asked > 1:
            raise OSError("gone")
        return answer

    dying = Wrapped(local.servers[1], die)
    result = local.searcher(replace={1: dying}).search(QUERIES[4], 3, privacy="fast")
    assert result.score_waits > 1
    assert result.hits == local.searcher().search(QUERIES[4], 3).hits
    assert [report.status for report in result.servers] == ["unreachable", "ok", "ok"]


def test_a_tree_whose_bounds_do_not_hold_ends_the_search(
    patch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def too_small(*arguments: Any) -> None:
        indptr, term_ids, impacts, columns, span, *rest = arguments
        least = np.minimum(impacts, 3) if span > 1 else impacts
        scatter_largest(indptr, term_ids, least, columns, span, *rest)

    with pytest.MonkeyPatch.context() as faulty:
        faulty.setattr(builder, "scatter_largest", too_small)
        local = publish(make_documents(N_DOCUMENTS, 3), tmp_path)
    with pytest.raises(VerificationError, match="scores above the bound of its block"):
        local.searcher().search(QUERIES[2], 3, privacy="fast")


def test_servers_read_the_named_blocks_and_nothing_else(local: LocalCollection) -> None:
    read: list[int] = []

    class Watching(CpuEngine):
        def score(self, cells: Any, geometry: Any, vectors: Any) -> NDArray[np.uint16]:
            read.append(len(cells))
            return super().score(cells, geometry, vectors)

    watched = Wrapped(local.servers[1], lambda _, answer: answer)
    before = local.servers[1]._engine
    local.servers[1]._engine = Watching()
    try:
        local.searcher(replace={1: watched}).search(QUERIES[2], 3, privacy="fast")
    finally:
        local.servers[1]._engine = before
    assert all(request.blocks for request in watched.requests)
    assert sum(read) == 8 * sum(len(request.blocks) for request in watched.requests)


def test_scored_blocks_are_those_rows_of_the_scored_level(local: LocalCollection) -> None:
    segment = next(iter(local.servers[1]._segments.values()))
    cells, geometry = segment.level(0), segment.header.layout.levels[0]
    vectors = np.random.default_rng(1).integers(0, P, (2, geometry.width), np.uint16)
    whole = CpuEngine().score(cells, geometry, vectors).reshape(2, -1, 8, geometry.n_tables)
    for blocks in ((0,), (3, 4, 5), (0, 2, 60), (59,), tuple(range(60))):
        some = score_blocks(CpuEngine(), cells, geometry, vectors, 8, blocks)
        assert np.array_equal(some.reshape(2, len(blocks), 8, -1), whole[:, list(blocks)])


@pytest.mark.parametrize(
    ("level", "blocks", "cause"),
    [
        (0, (3, 2), "do not ascend"),
        (0, (2, 2), "do not ascend"),
        (0, tuple(range(BLOCKS_MAX + 1)), "more than"),
        (0, (0, 10_000), "is not in 0"),
        (1, (10_000,), "is not in 0"),
        (N_LEVELS - 1, (1,), r"is not in 0\.\.0"),
        (0, (-1, 3), "is not in 0"),
        (9, (0,), "level 9"),
    ],
)
def test_silly_blocks_are_refused_in_words(
    local: LocalCollection, level: int, blocks: tuple[int, ...], cause: str
) -> None:
    server = local.servers[1]
    name = next(iter(server._segments))
    shares = np.zeros((1, server.width(1, name, min(level, N_LEVELS - 1))), np.uint16)
    request = ScoreRequest(bytes(16), 1, name, level, shares, blocks=blocks)
    with pytest.raises(ParameterError, match=cause):
        server.score(request)


def test_requests_for_other_blocks_never_share_a_pass(local: LocalCollection) -> None:
    server = local.servers[1]
    name = next(iter(server._segments))
    shares = np.zeros((1, server.width(1, name, 0)), np.uint16)
    one, other = (ScoreRequest(bytes(16), 1, name, 0, shares, blocks=(b,)) for b in (0, 1))
    with pytest.raises(ParameterError, match="do not share a pass"):
        server.score_together([one, other])


def test_evidence_about_named_blocks_is_judged_from_the_cells(local: LocalCollection) -> None:
    caught: list[tuple[ScoreRequest, ScoreAnswer]] = []
    signer = AnswerSigner(SigningKey(SecretKey(bytes(range(32)))))

    def tell(request: ScoreRequest, answer: ScoreAnswer) -> ScoreAnswer:
        lie = changed(answer, one_sum) if request.level == 0 else answer
        return ScoreAnswer(lie.query_id, lie.sums, signer.score(request, lie))

    searcher = local.searcher(replace={1: Wrapped(local.servers[1], tell)})
    searcher._on_lie = lambda _server, request, answer: caught.append((request, answer))
    searcher.search(QUERIES[2], 3, privacy="fast")
    ((request, answer),) = caught
    evidence = Evidence(1, signer.public, request, answer)
    data = evidence.encode()
    assert data[:12] == b"MKEVIDNC\0\0\0\2"
    read = Evidence.decode(data)
    assert read.encode() == data
    assert read.request.blocks == request.blocks
    read.require_signed(signer.public)
    assert judge(read, [local.servers[2]], CpuEngine()).is_lie
    honest = local.servers[1].score(request)
    right = Evidence(1, signer.public, request, honest)
    assert not judge(right, [local.servers[2]], CpuEngine()).is_lie


def test_a_pace_is_the_cells_that_one_wait_is_worth() -> None:
    pace = Pace()
    assert pace.spare_cells == 0
    for n_cells in (1000, 50_000, 2_000_000, 7_000_000):
        pace.note(n_cells, 0.004 + n_cells * 1e-9)
    assert pace.spare_cells == pytest.approx(4_000_000, rel=0.01)
    same = Pace()
    for _ in range(10):
        same.note(1000, 0.01)
    assert same.spare_cells == 0


def test_a_small_segment_is_read_whole(patch: pytest.MonkeyPatch, local: LocalCollection) -> None:
    with pytest.MonkeyPatch.context() as usual:
        usual.setattr(descent, "_WHOLE_CELLS", 1 << 20)
        result = local.searcher().search(QUERIES[2], 3, privacy="fast")
    n_blocks = local.searcher().refresh().views[0].segments[0].n_blocks(0)
    assert (result.score_waits, result.blocks_opened, result.cells_share) == (1, n_blocks, 1.0)
