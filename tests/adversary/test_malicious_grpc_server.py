"""A malicious server of three, real and over the network: each test names the guarantee it attacks.

The server is the product's own, keeps its own key and signs its lies with it.  The other two are
honest; every hit must be right and no honest server may be named.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mksearch.errors import AnswerRefused, ManifestRefused, MksearchError
from mksearch.messages import ScoreAnswer, ScoreRequest
from mksearch.params import P
from mksearch.text.analyzers import make_analyzer
from mksearch.wire.v1 import search_pb2
from mksearch_client.demo.plaintext import PlaintextEngine
from mksearch_client.owner import Owner
from mksearch_client.result import SearchResult
from tests.adversary.corpus import WORDS, make_documents
from tests.adversary.lies import CALLS, LIES, lies_of
from tests.adversary.malicious_server import Lie, MaliciousServer
from tests.adversary.stage import Stage, lying_stage

DOCUMENTS = make_documents(150, 5)
QUERIES = tuple(" ".join(document.text.split()[:3]) for document in DOCUMENTS[::40])
QUERY = " ".join(DOCUMENTS[0].text.split()[:3])
BAD = {"lied", "stale", "refused", "unreachable"}
#: A search with one server that answers nothing: less than the deadline of one request.
BOUND_S = 1.8


@pytest.fixture(scope="module")
def shared_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with lying_stage(tmp_path_factory.mktemp("stage"), DOCUMENTS) as stage:
        yield stage


@pytest.fixture
def stage(shared_stage: Stage) -> Iterator[Stage]:
    shared_stage.be_honest()
    yield shared_stage
    shared_stage.be_honest()


@pytest.fixture(autouse=True)
def _nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """No lie makes a library print a traceback."""
    yield
    assert "Traceback" not in capfd.readouterr().err


def _plain() -> PlaintextEngine:
    return PlaintextEngine(DOCUMENTS, make_analyzer("english-1"))


def _statuses(result: SearchResult) -> dict[int, str]:
    return {report.id: report.status for report in result.servers}


def _require_right(result: SearchResult, liar: int = 1) -> str:
    """Prove that the hits are right and nobody but the liar is named; return what it is called."""
    assert result.verified
    assert result.exact
    assert result.version == 2
    assert _plain().differences(result) == []
    named = {s for s, status in _statuses(result).items() if status in BAD}
    assert named <= {liar}, _statuses(result)
    return _statuses(result)[liar]


def _ids(lie: Lie) -> str:
    return lie.name


def _tell(stage: Stage, lie: Lie, server: int = 1, seed: int = 0) -> MaliciousServer:
    liar = stage.servers[server]
    liar.random.seed(seed)
    liar.lie = lie
    return liar


# --- correctness ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lie", [lie for lie in lies_of("Score") if lie.content], ids=_ids)
def test_correctness_a_signed_lie_about_sums_changes_no_hit_and_its_author_is_named(
    stage: Stage, lie: Lie
) -> None:
    with stage.searcher() as searcher:
        # Something to replay: other queries, and the same one in another attempt.
        for query in (*QUERIES, QUERY):
            _require_right(searcher.search(query))
        for seed in range(3):
            liar = _tell(stage, lie, seed=seed)
            assert _require_right(searcher.search(QUERY)) == "lied"
    assert liar.n_told == 3


@pytest.mark.parametrize("lie", [lie for lie in lies_of("GetRecords") if lie.content], ids=_ids)
def test_correctness_records_of_other_rows_versions_and_segments_change_no_hit(
    stage: Stage, lie: Lie
) -> None:
    with stage.searcher() as searcher:
        for seed in range(3):
            _tell(stage, lie, seed=seed)
            assert _require_right(searcher.search(QUERY)) == "lied"


@pytest.mark.parametrize("lie", [lie for lie in lies_of("ReadObject") if lie.content], ids=_ids)
def test_correctness_a_document_opens_right_whatever_bytes_one_server_sends(
    stage: Stage, lie: Lie
) -> None:
    _tell(stage, lie)
    with stage.searcher() as searcher:
        opened = searcher.open(DOCUMENTS[7].id)
        result = searcher.search(QUERY)

    assert (opened.title, opened.text) == (DOCUMENTS[7].title, DOCUMENTS[7].text)
    _require_right(result)


@pytest.mark.parametrize("call", ["Score", "GetManifest"])
def test_correctness_with_two_liars_of_three_no_hit_is_shown_and_the_honest_one_is_not_named(
    stage: Stage, call: str
) -> None:
    name = {"Score": "sums: every_row", "GetManifest": "manifest: changed"}[call]
    for server in (1, 3):
        _tell(stage, LIES[name], server)
    with pytest.raises(AnswerRefused) as caught:
        stage.search(QUERY)
    assert set(caught.value.liars) == {1, 3}


# --- completeness --------------------------------------------------------------------------------


def test_completeness_no_row_can_be_hidden_one_after_another(stage: Stage) -> None:
    plain = {query: _plain().search(query, 10) for query in QUERIES}
    assert all(plain.values())
    n_rows = (
        stage.servers[1]
        .search.segment(stage.signed.manifest.groups[0].segments[0].id)
        .level(0)
        .shape[0]
    )
    liar = stage.servers[1]
    with stage.searcher() as searcher:
        searcher.search(QUERY)
        for row in range(0, n_rows, 3):

            def hide(
                _server: MaliciousServer,
                _asked: ScoreRequest,
                honest: ScoreAnswer,
                row: int = row,
            ) -> ScoreAnswer:
                sums = honest.sums.copy()
                # As if another row, which matches nothing, were here.
                sums[:, row] = (sums[:, row].astype(np.int64) + 1 + row) % P
                return ScoreAnswer(honest.query_id, sums)

            liar.lie = Lie("hide", "Score", hide)
            assert _require_right(searcher.search(QUERIES[row % len(QUERIES)])) == "lied"


# --- freshness -----------------------------------------------------------------------------------


@pytest.mark.parametrize("lie", [lie for lie in lies_of("GetManifest") if lie.content], ids=_ids)
@pytest.mark.parametrize("liar", [1, 2])
def test_freshness_no_other_manifest_is_followed_whoever_shows_it_first(
    stage: Stage, lie: Lie, liar: int
) -> None:
    _tell(stage, lie, liar)
    result = stage.search(QUERY)

    assert _require_right(result, liar) in lie.statuses
    assert f"server {liar}" not in str([r.reason for r in result.servers if r.id != liar])


def test_freshness_two_clients_who_are_shown_two_manifests_see_the_same_version(
    stage: Stage,
) -> None:
    seen = []
    rival = "manifest: rival of the same version"
    for name in (rival, None, rival):
        stage.servers[1].lie = LIES[name] if name else None
        with stage.searcher() as searcher:
            result = searcher.search(QUERY)
            assert searcher.seen is not None
            seen.append(searcher.seen.hash)
        assert _require_right(result) == ("stale" if name else "ok")
    assert set(seen) == {stage.signed.hash}


def test_freshness_a_rival_manifest_that_nobody_can_decide_about_is_refused_without_blame(
    stage: Stage,
) -> None:
    _tell(stage, LIES["manifest: rival of the same version"])
    stage.servers[3].lie = LIES["GetManifest: silence"]
    with pytest.raises(ManifestRefused, match="contradict each other") as caught:
        stage.search(QUERY)
    assert caught.value.server is None
    assert "server 1 version 2" in caught.value.message
    assert "server 2 version 2" in caught.value.message


def test_freshness_a_client_that_saw_the_newest_version_goes_on_beside_a_rollback(
    stage: Stage,
) -> None:
    _tell(stage, LIES["manifest: old"])
    with stage.searcher(seen=stage.signed) as searcher:
        assert _require_right(searcher.search(QUERY)) == "stale"


# --- availability --------------------------------------------------------------------------------


@pytest.mark.parametrize("lie", [lie for lie in lies_of(*CALLS) if lie.wire], ids=_ids)
def test_availability_one_server_that_sends_anything_costs_a_bounded_time_and_no_hit(
    stage: Stage, lie: Lie
) -> None:
    liar = _tell(stage, lie)
    started = time.monotonic()
    result = stage.search(QUERY)
    spent_s = time.monotonic() - started

    assert liar.n_told
    assert _require_right(result) in lie.statuses
    assert spent_s < BOUND_S
    for report in result.servers:
        assert (report.status in BAD) == bool(report.reason)
        assert len(report.reason) < 8000


def test_availability_an_answer_without_end_is_left_after_the_bytes_that_were_asked_for(
    stage: Stage,
) -> None:
    for call, lie in (("Score", "Score: endless_full"), ("ReadObject", "ReadObject: endless_full")):
        liar = stage.servers[1]
        n_sent = 0

        async def counted(exchange: object, messages: object, name: str = lie) -> object:
            nonlocal n_sent
            wire = LIES[name].wire
            assert wire is not None
            async for message in wire(exchange, messages):  # type: ignore[arg-type]
                n_sent += len(message)
                yield message

        liar.lie = Lie(lie, call, wire=counted)  # type: ignore[arg-type]
        _require_right(stage.search(QUERY))
        time.sleep(0.05)
        before = n_sent
        time.sleep(0.1)
        # The client has hung up: nothing more is sent.
        assert n_sent == before
        assert n_sent < 4 << 20


def test_availability_a_server_that_says_it_is_not_healthy_is_used_all_the_same(
    stage: Stage,
) -> None:
    liar = stage.servers[1]

    class Sick(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
        async def Check(self, request: object, context: object) -> object:  # noqa: N802
            return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)

    health_pb2_grpc.add_HealthServicer_to_server(Sick(), liar._server)
    assert _require_right(stage.search(QUERY)) == "ok"


# --- attribution ---------------------------------------------------------------------------------


@pytest.mark.parametrize("liar", [1, 2, 3])
def test_attribution_a_server_that_lies_everywhere_at_random_never_makes_another_one_be_named(
    stage: Stage, liar: int
) -> None:
    source = np.random.default_rng(liar)
    lies = [lie for lie in lies_of(*CALLS) if not lie.is_endless]
    statuses: Counter[str] = Counter()
    for number in range(25):
        _tell(stage, lies[int(source.integers(len(lies)))], liar, seed=number)
        statuses[_require_right(stage.search(QUERIES[number % len(QUERIES)]), liar)] += 1
    if liar < 3:
        assert statuses["lied"] > 3


def test_attribution_what_a_liar_says_of_others_is_not_believed(stage: Stage) -> None:
    for call in CALLS:
        for seed in range(6):
            _tell(stage, LIES[f"{call}: any_status"], seed=seed)
            assert _require_right(stage.search(QUERY)) != "ok"


@pytest.mark.parametrize("lie", lies_of("GetInfo"), ids=_ids)
def test_attribution_the_owner_is_told_of_a_server_that_says_what_it_is_not(
    stage: Stage, tmp_path: Path, lie: Lie
) -> None:
    _tell(stage, lie)
    with Owner(stage.profile(tmp_path / "profile"), timeout_s=0.5) as owner:
        owner.profile.remember(stage.signed)
        _, statuses = owner.status()

    assert [status.status for status in statuses[1:]] == ["ok", "ok"]
    named = statuses[0].status
    if "ok" in lie.statuses:
        assert named in {*lie.statuses, "bad-format"}
    else:
        assert named != "ok"
        assert statuses[0].reason
    if lie.name.startswith("info: "):
        assert named in lie.statuses


def test_attribution_the_owner_finds_the_server_whose_objects_are_not_those_it_published(
    stage: Stage, tmp_path: Path
) -> None:
    for lie in lies_of("ReadObject"):
        if not lie.content:
            continue
        _tell(stage, lie, 2)
        with Owner(stage.profile(tmp_path / lie.name.replace(": ", "-")), timeout_s=2.0) as owner:
            found = owner.verify()
        assert found[1] == found[3] == "ok"
        assert found[2] != "ok"


# --- confidentiality of the query ----------------------------------------------------------------


def _shares(server: MaliciousServer) -> list[np.ndarray]:
    found = []
    for call, requests in server.calls:
        if call == "Score":
            data = b"".join(search_pb2.ScoreRequest.FromString(m).shares for m in requests)
            found.append(np.frombuffer(data, "<u2"))
    return found


def test_confidentiality_lies_that_force_further_attempts_get_fresh_uniform_shares(
    stage: Stage,
) -> None:
    liar = _tell(stage, LIES["sums: every_row"])
    with stage.searcher() as searcher:
        for _ in range(60):
            assert _require_right(searcher.search(QUERY)) == "lied"
    shares = _shares(liar)
    assert len(shares) == 60
    assert len({share.tobytes() for share in shares}) == 60
    stacked = np.stack(shares).astype(np.int64)
    # Mean and spread of uniform elements, in every column that the query uses as in all others.
    n_values = stacked.size
    assert abs(stacked.mean() / P - 0.5) < 5 * (1 / 12) ** 0.5 / n_values**0.5
    counts = np.bincount(stacked.ravel() * 64 // P, minlength=64)
    expected = n_values / 64
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    # 63 degrees of freedom: above 150 once in 10^8.
    assert chi2 < 150
    # Differences of two attempts are uniform as well: no polynomial was used twice.
    steps = (stacked[1:] - stacked[:-1]) % P
    counts = np.bincount(steps.ravel() * 64 // P, minlength=64)
    expected = steps.size / 64
    assert float(((counts - expected) ** 2 / expected).sum()) < 150


@pytest.mark.parametrize(
    "lie", ["sums: every_row", "records: slots_zero", "manifest: changed", "Score: any_status"]
)
def test_confidentiality_what_a_liar_is_asked_does_not_depend_on_the_words(
    stage: Stage, lie: str
) -> None:
    asked: dict[int, set[tuple[tuple[str, tuple[int, ...]], ...]]] = {}
    for server in (1, 2, 3):
        asked[server] = set()
    for query in ("kalteran lombonex", "mirdiliz nuvfasom", "unknown words"):
        stage.be_honest()
        _tell(stage, LIES[lie])
        with stage.searcher() as searcher:
            searcher.search(query, k=1)
        for server, liar in stage.servers.items():
            asked[server].add(
                tuple(
                    (call, tuple(map(len, requests)))
                    for call, requests in liar.calls
                    # How many records are read is declared leakage.
                    if call != "GetRecords"
                )
            )
    assert {server: len(views) for server, views in asked.items()} == {1: 1, 2: 1, 3: 1}


def test_confidentiality_no_server_is_sent_a_word_or_anything_in_the_clear(stage: Stage) -> None:
    for number, lie in enumerate(lies_of(*CALLS)[::7]):
        if lie.is_endless:
            continue
        _tell(stage, lie, seed=number)
        stage.search(f"{WORDS[3]} {WORDS[17]}")
    sent = b"".join(m for s in stage.servers.values() for _, ms in s.calls for m in ms)
    assert len(sent) > 10_000
    for word in (WORDS[3], WORDS[17], "doc-0", "Title"):
        assert word.encode() not in sent


# --- the owner beside one ------------------------------------------------------------------------


def test_availability_a_server_that_names_missing_objects_without_end_is_left(
    stage: Stage,
) -> None:
    liar = stage.servers[1]
    connection = stage.connect(1)
    connection.propose(stage.signed.encode())
    for names in ([bytes(32)] * 100_000, [b"short"], [bytes(33)], [b""]):
        liar.lie = Lie("names", "ListMissing", lambda _s, _a, _h, told=names: told)  # type: ignore[misc]
        with pytest.raises(MksearchError, match="name"):
            connection.missing(stage.signed.hash)
    liar.lie = None
    assert connection.missing(stage.signed.hash) == []
    connection.close()
