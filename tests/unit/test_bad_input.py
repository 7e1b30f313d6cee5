"""What cannot be used is refused with its cause and a cure; everything else works as before."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from mksearch.crypto.randomness import SystemRandom
from mksearch.crypto.secret import SecretKey
from mksearch.errors import (
    InputError,
    ManifestExpired,
    MksearchError,
    NotEnoughAnswers,
    QueryError,
    VerificationError,
)
from mksearch.index.record import Member, Record
from mksearch.params import K_MAX, MANIFEST_LIFE_S, MANIFEST_WARNING_S, Quorum
from mksearch.query.ranking import Ranking, Source
from mksearch.text.analyzers import make_analyzer
from mksearch.text.weights import Scoring
from mksearch_client.keys import MemberKeys, OwnerKeys
from mksearch_client.publishing import Publisher
from mksearch_client.reading import MAX_DOCUMENT_BYTES, Document, read_paths
from mksearch_client.result import SearchHit, SearchResult
from mksearch_client.searching import Searcher
from tests.support.local import NOW_S, LocalCollection, publish

N_DOCS = 120
N_TERMS = 2100


def assert_clear(error: MksearchError, *parts: str) -> None:
    """Prove that the cause is one line with ``parts`` in it, and that there is a cure."""
    assert error.message
    assert "\n" not in str(error)
    assert error.cure
    for part in parts:
        assert part in error.message, error.message


def ids(result: SearchResult) -> list[str]:
    return [hit.id for hit in result.hits]


def corpus() -> list[Document]:
    """Documents over a vocabulary of more terms than a query can ask for, each in some of them."""
    draw = random.Random(5)
    documents = []
    for n in range(N_DOCS):
        # Every term at least twice, so that none is rare enough to decide alone.
        own = [f"t{i}" for i in range(N_TERMS) if i % N_DOCS == n or i % (N_DOCS - 1) == n]
        own += [f"t{int(N_TERMS * draw.random() ** 3)}" for _ in range(60)]
        documents.append(Document(f"d{n:03}", f"title {n}", " ".join([*own, "wing"])))
    return documents


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LocalCollection:
    return publish(corpus(), tmp_path_factory.mktemp("bad"), analyzer="plain-1")


@pytest.fixture(scope="module")
def searcher(local: LocalCollection) -> Searcher:
    return local.searcher()


@pytest.fixture
def published(tmp_path: Path) -> Callable[[list[Document]], LocalCollection]:
    numbers: Iterator[int] = itertools.count()

    def make(documents: list[Document]) -> LocalCollection:
        return publish(documents, tmp_path / f"collection-{next(numbers)}")

    return make


Published = Callable[[list[Document]], LocalCollection]


def cosines(query: str) -> dict[str, float]:
    """Rank in plain floats: the score of every document that matches, by id."""
    documents = {d.id: Counter(f"{d.title} {d.text}".split()) for d in corpus()}
    dfs = Counter(term for counts in documents.values() for term in counts)

    def unit(counts: Counter[str]) -> dict[str, float]:
        weights = {
            term: (1 + math.log(tf)) * (math.log((1 + N_DOCS) / (1 + dfs[term])) + 1)
            for term, tf in counts.items()
            if term in dfs
        }
        norm = math.sqrt(sum(weight * weight for weight in weights.values()))
        return {term: weight / norm for term, weight in weights.items()}

    asked = unit(Counter(query.split()))
    scores = {
        external_id: sum(weight * asked.get(term, 0.0) for term, weight in unit(counts).items())
        for external_id, counts in documents.items()
    }
    return {external_id: score for external_id, score in scores.items() if score > 0}


def assert_ranking_is_exact(result: SearchResult, query: str) -> None:
    expected = cosines(query)
    assert result.verified
    assert result.exact
    assert len(result.hits) == min(result.k, len(expected))
    for hit in result.hits:
        assert hit.score == pytest.approx(expected[hit.id], abs=1e-6)
    left_out = [score for i, score in expected.items() if i not in ids(result)]
    if left_out:
        assert max(left_out) <= result.hits[-1].score + 2e-6


# --- what is published ----------------------------------------------------------------------------


def publisher(keys: OwnerKeys) -> Publisher:
    return Publisher(
        keys,
        name="test",
        quorum=Quorum(),
        random=SystemRandom(),
        analyzer=make_analyzer("english-1"),
        scoring=Scoring(),
    )


def test_an_empty_folder_is_refused_and_nothing_is_published(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    reading = read_paths(empty)

    with pytest.raises(InputError) as unread:
        reading.require_documents()
    assert_clear(unread.value, "no document", str(empty))

    with pytest.raises(InputError) as refused:
        publisher(OwnerKeys.generate(SystemRandom())).prepare(
            reading, tmp_path / "publication", now_s=NOW_S
        )
    assert_clear(refused.value, "no document")
    assert not (tmp_path / "publication" / "manifest").exists()


def test_after_a_refused_preparation_the_same_folder_can_be_used(tmp_path: Path) -> None:
    publishing = publisher(OwnerKeys.generate(SystemRandom()))
    with pytest.raises(InputError):
        publishing.prepare([], tmp_path / "publication", now_s=NOW_S)

    publishing.prepare([Document("a", "", "wing")], tmp_path / "publication", now_s=NOW_S)

    assert (tmp_path / "publication" / "manifest").exists()


def test_a_folder_without_a_readable_file_is_refused_and_the_first_cause_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")

    with pytest.raises(InputError) as refused:
        read_paths(tmp_path).require_documents()

    assert_clear(refused.value, "2 skipped")


def test_a_path_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read_paths(tmp_path / "nowhere")
    assert_clear(refused.value, "nowhere")


def test_only_empty_documents_are_published_and_found_by_nothing(published: Published) -> None:
    local = published([Document("a", "", ""), Document("b", "", "")])

    result = local.searcher().search("wing")

    assert not result.hits
    assert result.verified
    assert result.exact
    assert result.n_docs == 2
    assert any("in no document: wing" in warning for warning in result.warnings)


def test_one_document_is_a_collection(published: Published) -> None:
    searcher = published([Document("only", "Wings", "a wing")]).searcher()

    assert ids(searcher.search("wing")) == ["only"]
    assert ids(searcher.search("tail")) == []
    assert searcher.open("only").text == "a wing"


@pytest.mark.parametrize("texts", [("wing", "wing"), ("wing", "tail wing")])
def test_an_id_that_comes_twice_is_refused_before_anything_is_published(
    tmp_path: Path, texts: tuple[str, str]
) -> None:
    documents = [Document("once", "", "x"), *(Document("twice", "", text) for text in texts)]

    with pytest.raises(InputError) as refused:
        publisher(OwnerKeys.generate(SystemRandom())).prepare(
            documents, tmp_path / "publication", now_s=NOW_S
        )

    assert_clear(refused.value, "twice")
    assert not (tmp_path / "publication" / "manifest").exists()


def test_a_document_that_does_not_exist_is_not_opened(searcher: Searcher) -> None:
    with pytest.raises(InputError) as refused:
        searcher.open("nobody")
    assert_clear(refused.value, "nobody")


def good_files(folder: Path) -> None:
    folder.mkdir(parents=True)
    for n in range(5):
        (folder / f"good{n}.txt").write_text(f"ordinary text{n}", encoding="utf-8")


def assert_good_files_are_found(searcher: Searcher) -> None:
    assert sorted(ids(searcher.search("ordinary"))) == [f"good{n}.txt" for n in range(5)]
    for n in range(5):
        assert ids(searcher.search(f"text{n}")) == [f"good{n}.txt"]


def test_invalid_utf8_is_skipped_by_name_and_the_others_are_found(
    tmp_path: Path, published: Published
) -> None:
    good_files(tmp_path / "files")
    (tmp_path / "files" / "latin.txt").write_bytes("ordinary café".encode("latin-1"))
    reading = read_paths(tmp_path / "files")

    searcher = published(list(reading)).searcher()

    (skipped,) = reading.skipped
    assert skipped.path.endswith("latin.txt")
    assert "not valid UTF-8 at byte 12" in skipped.reason
    assert reading.n_skipped == 1
    assert_good_files_are_found(searcher)


def test_nul_bytes_hide_neither_their_document_nor_others(
    tmp_path: Path, published: Published
) -> None:
    good_files(tmp_path / "files")
    (tmp_path / "files" / "nul.txt").write_bytes(b"prefix\0suffix\0 and more")
    reading = read_paths(tmp_path / "files")

    searcher = published(list(reading)).searcher()

    assert reading.n_skipped == 0
    assert ids(searcher.search("prefix")) == ids(searcher.search("suffix")) == ["nul.txt"]
    assert_good_files_are_found(searcher)


def test_a_line_above_the_limit_is_skipped_by_number_and_the_others_are_found(
    tmp_path: Path, published: Published
) -> None:
    good_files(tmp_path / "files")
    lines = ['{"_id": "first", "text": "leading"}', "", '{"_id": "last", "text": "trailing"}']
    lines[1] = '{"_id": "long", "text": "' + "long " * 400 + '"}'
    (tmp_path / "files" / "lines.jsonl").write_text("\n".join(lines), encoding="utf-8")
    reading = read_paths(tmp_path / "files", max_document_bytes=1000)

    searcher = published(list(reading)).searcher()

    (skipped,) = reading.skipped
    assert (Path(skipped.path).name, skipped.line) == ("lines.jsonl", 2)
    assert "1000" in skipped.reason
    assert ids(searcher.search("leading")) == ["first"]
    assert ids(searcher.search("trailing")) == ["last"]
    assert not searcher.search("long").hits
    assert_good_files_are_found(searcher)


def test_a_line_of_64_megabytes_is_skipped_within_the_default_limit(
    tmp_path: Path, published: Published
) -> None:
    path = tmp_path / "files" / "lines.jsonl"
    good_files(path.parent)
    piece = b"long " * 200_000
    with path.open("wb") as file:
        file.write(b'{"_id": "first", "text": "leading"}\n{"_id": "long", "text": "')
        for _ in range(64):
            file.write(piece)
        file.write(b'"}\n{"_id": "last", "text": "trailing"}\n')
    reading = read_paths(path.parent)

    started = time.perf_counter()
    documents = list(reading)
    assert time.perf_counter() - started < 10
    searcher = published(documents).searcher()

    (skipped,) = reading.skipped
    assert skipped.line == 2
    assert str(MAX_DOCUMENT_BYTES) in skipped.reason
    assert ids(searcher.search("leading trailing")) == ["first", "last"]
    assert_good_files_are_found(searcher)


def test_a_long_line_within_the_limit_is_one_document(tmp_path: Path, published: Published) -> None:
    path = tmp_path / "files" / "lines.jsonl"
    path.parent.mkdir()
    text = " ".join(f"word{n % 1000}" for n in range(300_000)) + " needle"
    path.write_text('{"_id": "long", "text": "' + text + '"}\n{"_id": "b", "text": "word1"}')
    reading = read_paths(path)

    searcher = published(list(reading)).searcher()

    assert ids(searcher.search("needle")) == ["long"]
    assert ids(searcher.search("word1")) == ["b", "long"]
    assert searcher.open("long").text == text


# --- what is asked --------------------------------------------------------------------------------


def test_unknown_words_find_nothing_and_are_named(searcher: Searcher) -> None:
    result = searcher.search("unheard unseen")

    assert not result.hits
    assert result.verified
    assert result.exact
    assert any("unheard, unseen" in warning for warning in result.warnings)


def test_unknown_words_beside_known_ones_are_named_and_change_no_score(searcher: Searcher) -> None:
    alone, beside = searcher.search("t7"), searcher.search("t7 unheard")

    assert alone.hits
    assert beside.hits == alone.hits
    assert not alone.warnings
    assert any("unheard" in warning for warning in beside.warnings)


@pytest.mark.parametrize("k", [0, -1, -(10**9), K_MAX + 1, 10**9])
def test_a_number_of_hits_out_of_range_is_refused(searcher: Searcher, k: int) -> None:
    with pytest.raises(QueryError) as refused:
        searcher.search("wing", k)

    assert_clear(refused.value, str(k), str(K_MAX))
    # "Ask for at least one" is no help to somebody who asked for too many.
    assert ("at least one" in refused.value.cure) == (k < 1)


def test_the_largest_number_of_hits_is_accepted(searcher: Searcher) -> None:
    assert len(searcher.search("wing", K_MAX).hits) == N_DOCS


def test_more_hits_than_documents_gives_all_that_match(searcher: Searcher) -> None:
    everything = searcher.search("wing", 1000)
    some = searcher.search("t2099", 1000)

    assert len(everything.hits) == N_DOCS
    assert 0 < len(some.hits) < N_DOCS
    assert_ranking_is_exact(everything, "wing")
    assert_ranking_is_exact(some, "t2099")


@pytest.mark.parametrize("offset", [-1, -(10**9)])
def test_a_negative_offset_is_refused(searcher: Searcher, offset: int) -> None:
    with pytest.raises(QueryError) as refused:
        searcher.search("wing", offset=offset)
    assert_clear(refused.value, str(offset))


@pytest.mark.parametrize("max_records", [0, -1])
def test_fewer_than_one_record_is_refused(searcher: Searcher, max_records: int) -> None:
    with pytest.raises(QueryError) as refused:
        searcher.search("wing", max_records=max_records)
    assert_clear(refused.value, str(max_records))


@pytest.mark.parametrize("page", [1, 7, 50])
def test_pages_put_together_are_the_whole_ranking(searcher: Searcher, page: int) -> None:
    query = "wing t1 t2 t3"
    whole = searcher.search(query, 1000)

    hits: list[SearchHit] = []
    for offset in range(0, N_DOCS + page, page):
        result = searcher.search(query, page, offset=offset)
        assert result.exact
        hits += result.hits
        if page == 1 and offset > 20:
            # One by one is quadratic work; the start shows it.
            break

    assert hits == list(whole.hits[: len(hits)])
    assert len(hits) == min(len(whole.hits), len(hits))
    if page > 1:
        assert len(hits) == N_DOCS


def test_an_offset_behind_the_last_hit_gives_no_hits(searcher: Searcher) -> None:
    result = searcher.search("wing", 10, offset=N_DOCS)

    assert result.hits == ()
    assert result.verified
    assert result.exact


def test_a_query_of_2100_terms_is_refused_with_cause_and_cure(searcher: Searcher) -> None:
    with pytest.raises(QueryError) as refused:
        searcher.search(" ".join(f"t{n}" for n in range(N_TERMS)))

    assert_clear(refused.value, "2100", "2060")
    assert searcher.search("t7").hits


@pytest.mark.parametrize("n_terms", [64, 65, 128, 129, 515, 516, 1500, 2060])
def test_a_query_of_many_terms_is_exact(searcher: Searcher, n_terms: int) -> None:
    query = " ".join(f"t{n}" for n in range(N_TERMS - n_terms, N_TERMS))

    result = searcher.search(query)

    assert len(result.hits) == 10
    assert_ranking_is_exact(result, query)


def test_a_term_repeated_a_million_times_is_one_term(searcher: Searcher) -> None:
    result = searcher.search("t7 " * 1_000_000)

    assert result.hits == searcher.search("t7").hits


@pytest.mark.slow
def test_a_term_repeated_ten_million_times_is_found_or_refused_but_never_lost(
    tmp_path: Path,
) -> None:
    documents = [Document(f"d{n}", "", f"x{n}") for n in range(2000)]
    searcher = publish(documents, tmp_path, scoring="bm25", analyzer="plain-1").searcher()

    try:
        result = searcher.search("x7 " * 10_000_000 + "x8")
    except QueryError as refused:
        assert_clear(refused)
    else:
        assert result.exact
        assert ids(result) == ["d7", "d8"]


def test_a_query_with_control_characters_and_lone_surrogates_is_answered(
    searcher: Searcher,
) -> None:
    result = searcher.search("\0t7\ud800\x1b[31m\udfff")

    assert result.hits == searcher.search("t7 31m").hits


# --- who asks whom --------------------------------------------------------------------------------


def searcher_with(local: LocalCollection, keys: MemberKeys) -> Searcher:
    return Searcher(local.servers, keys, SystemRandom(), clock=lambda: NOW_S)


def test_the_keys_of_another_owner_open_nothing(local: LocalCollection) -> None:
    stranger = OwnerKeys.generate(SystemRandom()).member()

    with pytest.raises(VerificationError) as refused:
        searcher_with(local, stranger).search("wing")

    assert_clear(refused.value, "key")
    assert local.searcher().search("wing").hits


def test_a_bundle_of_another_owner_opens_nothing(local: LocalCollection) -> None:
    own, stranger = local.keys.member(), OwnerKeys.generate(SystemRandom()).member()
    mixed = MemberKeys(own.collection, own.owner_key, own.policy, own.epoch, stranger.bundle)

    with pytest.raises(VerificationError) as refused:
        searcher_with(local, mixed).search("wing")

    assert_clear(refused.value, "dictionary")


def test_another_collection_of_the_same_owner_is_refused(local: LocalCollection) -> None:
    other = OwnerKeys(bytes(16), SecretKey(bytes(32)), local.keys.signing)

    with pytest.raises(VerificationError) as refused:
        searcher_with(local, other.member()).search("wing")

    assert_clear(refused.value, "collection")


def test_keys_of_another_epoch_or_policy_are_told_to_enrol(local: LocalCollection) -> None:
    for keys in (local.keys.member(epoch=2), local.keys.member(policy=b"staff")):
        with pytest.raises(VerificationError) as refused:
            searcher_with(local, keys).search("wing")
        assert_clear(refused.value, "no group")
        assert "enrol" in refused.value.cure


class Unreachable:
    """A server that nobody reaches."""

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> object:
        def fail(*_args: object) -> None:
            raise ConnectionRefusedError(111, "Connection refused")

        return fail


@pytest.mark.parametrize("server", [1, 2, 3])
def test_one_server_of_three_is_too_few(local: LocalCollection, server: int) -> None:
    with pytest.raises(NotEnoughAnswers) as refused:
        local.searcher([server]).search("wing")

    assert (refused.value.have, refused.value.need) == (1, 2)
    assert_clear(refused.value, "1", "need 2")


def test_without_servers_the_error_says_so(local: LocalCollection) -> None:
    with pytest.raises(NotEnoughAnswers) as refused:
        Searcher({}, local.keys.member(), SystemRandom(), clock=lambda: NOW_S).search("wing")

    assert (refused.value.have, refused.value.need) == (0, 2)
    assert_clear(refused.value, "need 2")


def test_servers_that_cannot_be_reached_are_named_when_too_few_remain(
    local: LocalCollection,
) -> None:
    replaced = {1: Unreachable(), 3: Unreachable()}

    with pytest.raises(NotEnoughAnswers) as refused:
        local.searcher(replace=replaced).search("wing")  # type: ignore[arg-type]

    assert (refused.value.have, refused.value.need) == (1, 2)
    assert_clear(refused.value, "server 1 unreachable", "server 3 unreachable")


def test_one_unreachable_server_changes_no_hit(local: LocalCollection) -> None:
    expected = local.searcher().search("wing t1").hits

    for server in (1, 2, 3):
        result = local.searcher(replace={server: Unreachable()}).search("wing t1")  # type: ignore[dict-item]

        assert result.hits == expected
        assert result.verified


# --- how old it is --------------------------------------------------------------------------------


def searcher_at(local: LocalCollection, now_s: float, *, accept_expired: bool = False) -> Searcher:
    return Searcher(
        local.servers,
        local.keys.member(),
        SystemRandom(),
        clock=lambda: now_s,
        accept_expired=accept_expired,
    )


def test_an_expired_manifest_is_refused(local: LocalCollection) -> None:
    last_s = NOW_S + MANIFEST_LIFE_S

    assert searcher_at(local, last_s).search("wing").hits
    with pytest.raises(ManifestExpired) as refused:
        searcher_at(local, last_s + 1).search("wing")

    assert_clear(refused.value, "expired")


def test_an_expired_manifest_can_be_accepted_and_the_result_says_so(local: LocalCollection) -> None:
    late = searcher_at(local, NOW_S + MANIFEST_LIFE_S + 5, accept_expired=True)

    result = late.search("wing")

    assert result.hits == local.searcher().search("wing").hits
    assert any("expired 5 s ago" in warning for warning in result.warnings)


def test_a_manifest_that_expires_soon_is_used_with_a_warning(local: LocalCollection) -> None:
    soon_s = NOW_S + MANIFEST_LIFE_S - MANIFEST_WARNING_S

    assert not searcher_at(local, soon_s).search("wing").warnings
    (warning,) = searcher_at(local, soon_s + 86400).search("wing").warnings
    assert "expires in 13 days" in warning


# --- how many records -----------------------------------------------------------------------------


def test_too_few_records_give_hits_that_are_marked_not_exact(searcher: Searcher) -> None:
    query = "wing t1 t2 t3"
    expected = cosines(query)

    result = searcher.search(query, 50, max_records=20)

    assert not result.exact
    assert result.verified
    assert result.records_fetched == 20
    assert any("not exact" in warning and "20" in warning for warning in result.warnings)
    assert 0 < len(result.hits) <= 20
    for hit in result.hits:
        assert hit.score == pytest.approx(expected[hit.id], abs=1e-6)


def test_as_many_records_as_a_search_reads_are_enough(searcher: Searcher) -> None:
    query = "wing t1 t2 t3"
    free = searcher.search(query)

    bounded = searcher.search(query, max_records=free.records_fetched)

    assert bounded.exact
    assert bounded.hits == free.hits
    assert not bounded.warnings


class ThreeRows:
    """A source of three rows: the upper bound and the exact score of each."""

    ROWS = ((100, 10), (99, 90), (50, 40))

    def candidates(self) -> Iterator[tuple[int, int]]:
        yield from ((bound, row) for row, (bound, _) in enumerate(self.ROWS))

    def score(self, record: Record) -> int:
        return self.ROWS[record.length][1]

    def live_members(self, row: int, record: Record) -> Sequence[Member]:
        return record.members


def read_all(ranking: Ranking) -> Ranking:
    none = np.zeros(0, np.int32)
    while wanted := ranking.wanted():
        for source, row in wanted:
            ranking.add(source, row, Record(none, none, row, (Member(f"d{row}", "", ""),)))
    return ranking


def test_hits_that_the_last_allowed_record_proves_are_exact() -> None:
    sources = cast("list[Source]", [ThreeRows()])

    ranking = read_all(Ranking(sources, 1, max_records=2))

    # The second record scores 90, and the row that is left has a bound of 50.
    assert [hit.member.id for hit in ranking.hits()] == ["d1"]
    assert ranking.n_records == 2
    assert ranking.exact


def test_hits_that_an_unread_row_may_beat_are_not_exact() -> None:
    sources = cast("list[Source]", [ThreeRows()])

    assert not read_all(Ranking(sources, 1, max_records=1)).exact
    assert not read_all(Ranking(sources, 2, max_records=2)).exact
    assert read_all(Ranking(sources, 2, max_records=3)).exact


def test_more_record_numbers_than_documents_change_nothing(searcher: Searcher) -> None:
    assert searcher.search("wing", max_records=10**9).hits == searcher.search("wing").hits
