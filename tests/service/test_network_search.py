"""The whole way over the network: claim, publish, search, open, on three server processes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from datasets.loaders import load_small
from mksearch.params import K_MAX, Quorum
from mksearch.text.analyzers import make_analyzer
from mksearch_client.demo.plaintext import PlaintextEngine
from mksearch_client.documents import Document
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner, PublishReport
from mksearch_client.profile import Profile
from mksearch_client.result import SearchResult
from tests.quality.collections import Collection
from tests.quality.ndcg import mean_ndcg
from tests.quality.test_ranking_through_servers import (
    BASELINES,
    SCORE_TOLERANCE,
    Kind,
    collection_of,
    plaintext_engine,
)
from tests.support.local import publish as publish_locally
from tests.support.processes import Fleet, claim, serving, write_corpus

SMALL = load_small()
K = 10


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with serving(tmp_path_factory.mktemp("servers")) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def published(
    fleet: Fleet, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Profile, PublishReport]:
    profile = claim(fleet, tmp_path_factory.mktemp("owner") / "profile")
    corpus = write_corpus(tmp_path_factory.mktemp("corpus") / "small.jsonl", SMALL.documents)
    with Owner(profile) as owner:
        return profile, owner.publish([corpus])


@pytest.fixture(scope="module")
def answers(published: tuple[Profile, PublishReport]) -> dict[str, SearchResult]:
    with Searcher(published[0]) as searcher:
        return {query.text: searcher.search(query.text, K) for query in SMALL.queries}


def _shown(result: SearchResult) -> list[tuple[int, float, str, str, str]]:
    return [(hit.rank, hit.score, hit.id, hit.title, hit.snippet) for hit in result.hits]


def test_a_publication_reaches_every_server_whole(
    fleet: Fleet, published: tuple[Profile, PublishReport]
) -> None:
    profile, report = published
    assert (report.documents, report.version, report.skipped) == (len(SMALL.documents), 1, ())
    assert [server["status"] for server in report.servers] == ["ok"] * 3

    with Owner(profile) as owner:
        signed, servers = owner.status()
        assert signed is not None
        assert [(s.id, s.status, s.version) for s in servers] == [(n, "ok", 1) for n in (1, 2, 3)]
        assert owner.verify() == {1: "ok", 2: "ok", 3: "ok"}
    segment = signed.manifest.groups[0].segments[0].id.hex()
    stored = [(server.data / "segments" / segment).read_bytes() for server in fleet]
    assert stored[0] == stored[1] == stored[2]
    assert len(stored[0]) == report.index_bytes


def test_answers_over_the_network_are_verified_and_exact(
    answers: dict[str, SearchResult],
) -> None:
    for result in answers.values():
        assert result.verified
        assert result.exact
        assert result.n_docs == len(SMALL.documents)
        assert [server.status for server in result.servers] == ["ok", "ok", "unused"]
    assert any(result.hits for result in answers.values())


def test_hits_over_the_network_are_those_inside_one_process(
    answers: dict[str, SearchResult], tmp_path: Path
) -> None:
    local = publish_locally(SMALL.documents, tmp_path).searcher()

    for query, result in answers.items():
        assert _shown(result) == _shown(local.search(query, K))


def test_hits_over_the_network_are_those_of_scikit_learn(
    answers: dict[str, SearchResult],
) -> None:
    engine = PlaintextEngine(SMALL.documents, make_analyzer("english-1"))

    for result in answers.values():
        assert engine.differences(result) == []


def test_a_whole_document_opens_as_it_was_published(
    published: tuple[Profile, PublishReport],
) -> None:
    with Searcher(published[0]) as searcher:
        for document in SMALL.documents:
            opened = searcher.open(document.id)
            assert (opened.id, opened.title, opened.text) == (
                document.id,
                document.title,
                document.text,
            )


def test_the_profile_keeps_what_a_second_search_needs(
    published: tuple[Profile, PublishReport], answers: dict[str, SearchResult]
) -> None:
    profile = published[0]
    signed = profile.highest_seen()
    assert signed is not None
    group = signed.manifest.groups[0]

    assert profile.cached(group.dictionary.id) is not None
    with Searcher(Profile.open(profile.folder)) as searcher:
        query, before = next(iter(answers.items()))
        assert _shown(searcher.search(query, K)) == _shown(before)


@pytest.mark.parametrize("killed", [1, 2, 3])
def test_every_pair_of_servers_gives_identical_answers(
    fleet: Fleet,
    published: tuple[Profile, PublishReport],
    answers: dict[str, SearchResult],
    killed: int,
) -> None:
    fleet[killed].kill()
    try:
        with Searcher(published[0]) as searcher:
            for query, before in answers.items():
                result = searcher.search(query, K)
                assert _shown(result) == _shown(before)
                used = {server.id for server in result.servers if server.status == "ok"}
                assert used == {1, 2, 3} - {killed}
    finally:
        fleet[killed].restart()


@pytest.mark.slow
def test_any_three_of_five_servers_answer_when_two_may_collude(tmp_path: Path) -> None:
    documents = SMALL.documents[:20]
    corpus = write_corpus(tmp_path / "corpus.jsonl", documents)
    engine = PlaintextEngine(documents, make_analyzer("english-1"))
    query = SMALL.queries[0].text
    with serving(tmp_path, 5, engine="numpy") as fleet:
        profile = claim(fleet, tmp_path / "profile", Quorum(5, 2))
        with Owner(profile) as owner:
            owner.publish([corpus])
        shown = []
        for pair in list(combinations(range(1, 6), 2))[::4]:
            for server in pair:
                fleet[server].kill()
            with Searcher(profile) as searcher:
                result = searcher.search(query, K)
            assert engine.differences(result) == []
            shown.append(_shown(result))
            fleet.start()
        assert all(one == shown[0] for one in shown)


@pytest.mark.slow
def test_a_list_of_ten_thousand_hits_arrives_whole(tmp_path: Path) -> None:
    # Every document is another one, so that none shares its record; all match.
    n_docs = K_MAX + 40
    documents = [Document(f"d{n:05}", "", f"reed w{n % 300} v{n // 300}") for n in range(n_docs)]
    with serving(tmp_path) as many:
        profile = claim(many, tmp_path / "profile")
        with Owner(profile) as owner:
            report = owner.publish([write_corpus(tmp_path / "many.jsonl", documents)])
            assert report.documents == n_docs
        with Searcher(profile, timeout_s=60) as searcher:
            result = searcher.search("reed", K_MAX)

    assert len(result.hits) == K_MAX
    assert result.exact
    assert result.records_fetched >= K_MAX
    scores = [hit.score for hit in result.hits]
    assert scores == sorted(scores, reverse=True)
    assert len({hit.id for hit in result.hits}) == K_MAX


# --- third-party collections ---------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("name", ["cranfield", "cisi"])
@pytest.mark.parametrize("kind", ["tfidf", "bm25"])
def test_a_judged_collection_ranks_over_the_network_as_the_plaintext_engine_does(
    name: str, kind: Kind, tmp_path: Path
) -> None:
    collection = collection_of(name)
    with serving(tmp_path) as fleet:
        profile = claim(fleet, tmp_path / "profile")
        with Owner(profile) as owner:
            documents = [
                Document(external_id, "", text)
                for external_id, text in zip(collection.ids, collection.texts, strict=True)
            ]
            owner.publish([write_corpus(tmp_path / "corpus.jsonl", documents)], scoring=kind)
        with Searcher(profile) as searcher:
            results = {
                query: searcher.search(text, K) for query, text in collection.queries.items()
            }

    _require_plaintext_ranking(collection, kind, results)
    rankings = {query: [hit.id for hit in result.hits] for query, result in results.items()}
    reached = mean_ndcg(rankings, collection.judgements, K)
    assert reached == pytest.approx(collection.baseline_ndcg(BASELINES[kind]), abs=0.002)


def _require_plaintext_ranking(
    collection: Collection, kind: Kind, results: dict[str, SearchResult]
) -> None:
    engine = plaintext_engine(collection.name, kind)
    numbers = {external_id: n for n, external_id in enumerate(collection.ids)}
    for query, text in collection.queries.items():
        expected = engine(text)
        hits = results[query].hits
        shown = np.array([numbers[hit.id] for hit in hits], np.int64)
        assert len(shown) == len(set(shown.tolist())) == min(K, np.count_nonzero(expected))
        scores = np.array([hit.score for hit in hits])
        np.testing.assert_allclose(scores, expected[shown], rtol=0, atol=SCORE_TOLERANCE)
        assert (np.diff(expected[shown]) <= 2 * SCORE_TOLERANCE).all(), query
        left_out = np.delete(expected, shown)
        worst = expected[shown[-1]] if len(shown) else 0.0
        assert left_out.max() <= worst + 2 * SCORE_TOLERANCE, query
