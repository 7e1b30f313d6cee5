"""What fails in a network of servers, and that nobody gets a wrong answer or loses a document."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mksearch.errors import (
    AnswerRefused,
    InputError,
    ManifestExpired,
    MksearchError,
    NotEnoughAnswers,
    ServerRefused,
)
from mksearch.params import MANIFEST_LIFE_S
from mksearch_client.connection import GrpcConnection
from mksearch_client.documents import Document
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner
from mksearch_client.profile import Profile, ServerEntry
from mksearch_client.result import SearchResult
from tests.service.conftest import QUERIES, SMALL, K, Published
from tests.support.grpc_stage import until
from tests.support.processes import (
    Fleet,
    ServerProcess,
    claim,
    run,
    run_server,
    serving,
    write_corpus,
)

#: Seconds without an answer after which a further server is asked, and what a loaded machine adds.
HEDGE_S = 1.0
SLACK_S = 1.5
OTHER = tuple(
    Document(f"other-{n}", f"Other {n}", f"watering tomato number {n}") for n in range(25)
)


def _statuses(result: SearchResult) -> dict[int, str]:
    return {server.id: server.status for server in result.servers}


def _timed(searcher: Searcher, query: str) -> tuple[SearchResult, float]:
    started = time.monotonic()
    result = searcher.search(query, K)
    return result, time.monotonic() - started


class _When:
    """A connection that does something to its server just before one of its calls."""

    def __init__(self, connection: Any, call: str, act: Callable[[], None]) -> None:
        self._connection = connection
        self._call = call
        self._act: Callable[[], None] | None = act

    def __getattr__(self, name: str) -> Any:
        if name == self._call and self._act is not None:
            act, self._act = self._act, None
            act()
        return getattr(self._connection, name)


# --- servers that go away ------------------------------------------------------------------------


def test_a_server_killed_before_a_search_is_replaced_at_once(collection: Published) -> None:
    collection.fleet[1].kill()

    with collection.searcher() as searcher:
        result, spent_s = _timed(searcher, QUERIES[0])

    collection.require_right(result)
    assert _statuses(result) == {1: "unreachable", 2: "ok", 3: "ok"}
    assert spent_s < HEDGE_S


def test_a_server_that_hangs_before_a_search_costs_the_hedge_time(collection: Published) -> None:
    collection.fleet[1].suspend()

    with collection.searcher() as searcher:
        result, spent_s = _timed(searcher, QUERIES[0])

    collection.require_right(result)
    assert spent_s < HEDGE_S + SLACK_S
    assert _statuses(result) == {1: "unreachable", 2: "ok", 3: "ok"}
    assert "no answer within" in result.servers[0].reason


@pytest.mark.parametrize("call", ["score", "records"])
@pytest.mark.parametrize("how", ["kill", "suspend"])
def test_a_server_lost_in_the_middle_of_a_search_does_not_matter(
    collection: Published, call: str, how: str
) -> None:
    server = collection.fleet[1]
    with collection.searcher() as searcher:
        lost = _When(searcher._connections[1], call, getattr(server, how))
        searcher._connections = {**searcher._connections, 1: lost}
        result, spent_s = _timed(searcher, QUERIES[2])

    collection.require_right(result)
    assert spent_s < HEDGE_S + SLACK_S
    assert _statuses(result)[1] == "unreachable"


def test_a_server_killed_after_a_search_is_used_again_once_it_is_back(
    collection: Published,
) -> None:
    with collection.searcher() as searcher:
        before = searcher.search(QUERIES[0], K)
        collection.fleet[2].kill()
        without, _ = _timed(searcher, QUERIES[0])
        assert _statuses(without) == {1: "ok", 2: "unreachable", 3: "ok"}
        collection.fleet[2].restart()
        collection.fleet[3].kill()
        again = _until_answered(searcher, QUERIES[0], 10.0)

    assert before.hits == without.hits == again.hits
    assert _statuses(again)[2] == "ok"


def _until_answered(searcher: Searcher, query: str, within_s: float) -> SearchResult:
    """A connection that failed is tried again after a moment."""
    last = time.monotonic() + within_s
    while True:
        try:
            return searcher.search(query, K)
        except NotEnoughAnswers:
            if time.monotonic() > last:
                raise
            time.sleep(0.1)


def test_many_searches_beside_a_hanging_server_are_all_answered_in_time(
    collection: Published,
) -> None:
    with collection.searcher() as searcher:
        collection.require_right(searcher.search(QUERIES[0], K))
        collection.fleet[1].suspend()
        spent = []
        for query in QUERIES[:10]:
            result, spent_s = _timed(searcher, query)
            collection.require_right(result)
            spent.append(spent_s)

    assert max(spent) < HEDGE_S + SLACK_S, spent


def test_a_server_that_hangs_is_asked_once_and_again_when_it_has_answered(
    collection: Published,
) -> None:
    server = collection.fleet[1]
    with collection.searcher() as searcher:
        server.suspend()
        late, after = (searcher.search(QUERIES[0], K) for _ in range(2))
        assert (_statuses(late)[1], _statuses(after)[1]) == ("unreachable", "unused")
        server.resume()
        assert until(lambda: searcher._servers[1].waited_s == 0)
        back = searcher.search(QUERIES[0], K)
    assert _statuses(back)[1] == "ok"
    assert late.hits == after.hits == back.hits


def test_when_too_few_servers_are_left_the_error_names_each_one(collection: Published) -> None:
    collection.fleet[1].kill()
    collection.fleet[3].kill()

    with collection.searcher() as searcher, pytest.raises(NotEnoughAnswers) as caught:
        searcher.search(QUERIES[0], K)

    assert (caught.value.have, caught.value.need) == (1, 2)
    assert "server 1 unreachable" in caught.value.message
    assert "server 3 unreachable" in caught.value.message
    assert "server 2" not in caught.value.message
    assert caught.value.cure


def test_opening_a_document_survives_a_lost_and_a_hanging_server(collection: Published) -> None:
    document = SMALL.documents[5]
    collection.fleet[1].kill()
    with collection.searcher() as searcher:
        assert searcher.open(document.id).text == document.text
    collection.fleet[1].restart()
    collection.fleet[1].suspend()
    with collection.searcher() as searcher:
        started = time.monotonic()
        assert searcher.open(document.id).text == document.text
        assert time.monotonic() - started < HEDGE_S + SLACK_S


def test_a_restarted_server_serves_the_same_version(collection: Published) -> None:
    before = collection.versions()
    segments = [sorted(p.name for p in (s.data / "segments").iterdir()) for s in collection.fleet]
    for server in collection.fleet:
        assert server.stop() == 0
    collection.fleet.start()

    assert collection.versions() == before
    assert [
        sorted(p.name for p in (s.data / "segments").iterdir()) for s in collection.fleet
    ] == segments
    with collection.searcher() as searcher:
        collection.require_right(searcher.search(QUERIES[0], K))


def test_a_second_process_is_kept_out_of_a_store_in_use(
    collection: Published, tmp_path: Path
) -> None:
    server = collection.fleet[1]
    config = tmp_path / "server.toml"
    lines = server.config.read_text().replace(server.address, "127.0.0.1:0")
    config.write_text(lines.replace('data = "data"', f'data = "{server.data}"'))
    shutil.copy(server.folder / "server-key", tmp_path)
    # An upload on its way in must survive what the second process clears up at its start.
    partial = server.data / "segments" / ".partial-test"
    partial.write_bytes(b"half")

    done = run_server("serve", "--config", config)

    assert (done.code, done.out) == (1, "")
    assert "another server uses the store" in done.err
    assert done.err.count("\n") == 1
    assert partial.exists()
    partial.unlink()
    with collection.searcher() as searcher:
        collection.require_right(searcher.search(QUERIES[0], K))


def test_a_store_may_lie_in_another_folder_than_the_key_of_its_server(
    collection: Published, tmp_path: Path
) -> None:
    server = collection.fleet[3]
    server.stop()
    shutil.move(server.data, tmp_path / "disk")
    before = server.config.read_text()
    server.config.write_text(before.replace('data = "data"', f'data = "{tmp_path}/disk"'))
    try:
        server.restart()
        assert len(set(collection.versions())) == 1
        done = run_server("verify", "--config", server.config, "--json")
        assert done.json["verified"] is True
    finally:
        server.stop()
        server.config.write_text(before)
        shutil.move(tmp_path / "disk", server.data)
        server.restart()


# --- servers that are not the right ones ---------------------------------------------------------


def test_a_server_of_another_collection_at_a_pinned_address_is_named_and_not_used(
    collection: Published, tmp_path: Path
) -> None:
    with serving(tmp_path, engine="numpy") as others:
        foreign = Published(others, claim(others, tmp_path / "profile"), tmp_path, ())
        foreign.publish(OTHER)
        profile = collection.member(tmp_path / "member", {1: others[1].address})
        with Searcher(profile) as searcher:
            result = searcher.search(QUERIES[0], K)
        profile = collection.member(
            tmp_path / "member-2", {1: others[1].address, 2: others[2].address}
        )
        with Searcher(profile) as searcher, pytest.raises(AnswerRefused) as caught:
            searcher.search(QUERIES[0], K)

    collection.require_right(result)
    assert _statuses(result) == {1: "lied", 2: "ok", 3: "ok"}
    assert caught.value.liars == (1, 2)


def test_two_servers_with_their_addresses_exchanged_are_not_used(
    collection: Published, tmp_path: Path
) -> None:
    fleet = collection.fleet
    profile = collection.member(tmp_path / "member", {1: fleet[2].address, 2: fleet[1].address})

    with Searcher(profile) as searcher, pytest.raises(AnswerRefused) as caught:
        searcher.search(QUERIES[0], K)

    assert caught.value.liars == (1, 2)


def test_a_server_whose_key_is_not_the_pinned_one_is_not_used(
    collection: Published, tmp_path: Path
) -> None:
    profile = collection.member(tmp_path / "member")
    pinned = profile.servers[2]
    profile.servers[2] = ServerEntry(2, pinned.address, bytes(31) + b"\1")
    with Searcher(profile) as searcher:
        result = searcher.search(QUERIES[0], K)

    collection.require_right(result)
    assert _statuses(result) == {1: "ok", 2: "lied", 3: "ok"}
    with Owner(profile) as owner:
        statuses = {server.id: server.status for server in owner.status()[1]}
    assert statuses == {1: "ok", 2: "lied", 3: "ok"}


# --- publishing ----------------------------------------------------------------------------------


def test_the_same_corpus_published_twice_changes_nothing(collection: Published) -> None:
    before = collection.versions()
    files = [sorted(p.name for p in (s.data / "segments").iterdir()) for s in collection.fleet]

    report = collection.publish(SMALL.documents)

    assert not report.changed
    assert report.documents == len(SMALL.documents)
    assert [report.version] * 3 == before == collection.versions()
    after = [sorted(p.name for p in (s.data / "segments").iterdir()) for s in collection.fleet]
    assert after == files


def test_documents_vanish_only_when_that_was_asked_for(
    collection: Published, tmp_path: Path
) -> None:
    before = collection.versions()
    corpus = write_corpus(tmp_path / "fewer.jsonl", SMALL.documents[1:])
    with Owner(collection.profile) as owner:
        assert not owner.publish([corpus]).changed
        assert collection.versions() == before
        report = owner.publish([corpus], delete_missing=True)
    collection.documents = SMALL.documents[1:]

    assert report.documents == len(SMALL.documents) - 1
    assert (report.deleted, report.unchanged) == (1, len(SMALL.documents) - 1)
    with collection.searcher() as searcher:
        for query in QUERIES[:4]:
            collection.require_right(searcher.search(query, K))
        with pytest.raises(InputError, match="no document"):
            searcher.open(SMALL.documents[0].id)


def test_a_dry_run_says_what_would_happen_and_changes_nothing(
    collection: Published, tmp_path: Path
) -> None:
    before = collection.versions()
    corpus = write_corpus(tmp_path / "other.jsonl", OTHER)
    with Owner(collection.profile) as owner:
        report = owner.publish([corpus], delete_missing=True, dry_run=True)

    assert report.changed
    assert report.documents == len(OTHER)
    assert collection.versions() == before


def test_another_scoring_or_language_is_a_new_version(
    collection: Published, tmp_path: Path
) -> None:
    corpus = write_corpus(tmp_path / "same.jsonl", SMALL.documents)
    with Owner(collection.profile) as owner:
        first = owner.publish([corpus], scoring="bm25")
        again = owner.publish([corpus], scoring="bm25")
        kept = owner.publish([corpus])
        back = owner.publish([corpus], scoring="tfidf")

    changed = [report.changed for report in (first, again, kept, back)]
    assert changed == [True, False, False, True]
    assert back.version == first.version + 1 == again.version + 1


def test_a_server_that_was_away_is_stale_until_the_next_publish(collection: Published) -> None:
    collection.fleet[1].kill()
    report = collection.publish(OTHER)
    assert [server["status"] for server in report.servers] == ["unreachable", "ok", "ok"]
    collection.fleet[1].restart()

    with collection.searcher() as searcher:
        result = searcher.search(QUERIES[0], K)
    collection.require_right(result)
    assert _statuses(result) == {1: "stale", 2: "ok", 3: "ok"}
    with Owner(collection.profile) as owner:
        assert [server.status for server in owner.status()[1]] == ["stale", "ok", "ok"]

    again = collection.publish(OTHER)
    assert again.version == report.version
    assert collection.versions() == [report.version] * 3
    with collection.searcher() as searcher:
        result = searcher.search(QUERIES[0], K)
    collection.require_right(result)
    assert _statuses(result) == {1: "ok", 2: "ok", 3: "unused"}


def test_after_a_server_was_away_other_documents_can_be_published_at_once(
    collection: Published,
) -> None:
    collection.fleet[3].kill()
    first = collection.publish(OTHER)
    second = collection.publish(OTHER[:20])
    collection.fleet[3].restart()
    third = collection.publish(OTHER[:10])

    assert [first.version + 1, first.version + 2] == [second.version, third.version]
    assert collection.versions() == [third.version] * 3
    with collection.searcher() as searcher:
        collection.require_right(searcher.search(QUERIES[0], K))


def test_one_stale_server_and_one_lost_one_are_too_many(collection: Published) -> None:
    collection.fleet[3].kill()
    collection.publish(OTHER)
    collection.fleet[3].restart()
    collection.fleet[1].kill()

    with collection.searcher() as searcher, pytest.raises(AnswerRefused) as caught:
        searcher.search(QUERIES[0], K)

    assert "server 3 stale" in caught.value.message
    assert "server 1 unreachable" in caught.value.message
    assert caught.value.liars == ()


def test_a_hanging_server_holds_up_a_publish_for_its_timeout_only(collection: Published) -> None:
    collection.fleet[2].suspend()
    started = time.monotonic()
    report = collection.publish(OTHER, timeout_s=2.0)
    spent_s = time.monotonic() - started
    collection.fleet[2].resume()

    assert [server["status"] for server in report.servers] == ["ok", "unreachable", "ok"]
    assert spent_s < 15


@pytest.mark.parametrize("call", ["missing", "put_all", "activate"])
def test_a_server_that_hangs_during_an_upload_does_not_stop_it_for_ever(
    collection: Published, call: str, tmp_path: Path
) -> None:
    documents = (*OTHER, Document(f"hung-{call}", "", call))
    corpus = write_corpus(tmp_path / "corpus.jsonl", documents)
    server = collection.fleet[2]
    started = time.monotonic()
    with Owner(collection.profile, timeout_s=2.0) as owner:
        owner._fleet.connections[2] = _When(owner._fleet.connections[2], call, server.suspend)  # type: ignore[assignment]
        report = owner.publish([corpus], delete_missing=True)
    collection.documents = documents
    spent_s = time.monotonic() - started
    server.resume()

    assert [s["status"] for s in report.servers] == ["ok", "unreachable", "ok"]
    assert spent_s < 45


def test_renewing_keeps_the_documents_and_moves_the_expiry(collection: Published) -> None:
    before = collection.versions()
    later_s = int(time.time()) + 30 * 86400
    with Owner(collection.profile, clock=lambda: later_s) as owner:
        signed = owner.renew()

    assert signed.manifest.expires_at == later_s + MANIFEST_LIFE_S
    assert collection.versions() == [signed.manifest.version] * 3 == [before[0] + 1] * 3
    with collection.searcher() as searcher:
        collection.require_right(searcher.search(QUERIES[0], K))
        assert searcher.open(SMALL.documents[0].id).text == SMALL.documents[0].text
    report = collection.publish(SMALL.documents)
    assert not report.changed


def test_renewing_beside_a_server_that_lacks_the_version_is_reported_in_words(
    collection: Published, capfd: pytest.CaptureFixture[str]
) -> None:
    collection.fleet[3].kill()
    collection.publish(OTHER)
    # Its objects are nowhere any more but on the other servers.
    shutil.rmtree(collection.profile.folder / "publication")
    collection.fleet[3].restart()

    with Owner(collection.profile) as owner:
        signed = owner.renew()
        versions = [server.version for server in owner.status()[1]]

    assert versions[:2] == [signed.manifest.version] * 2
    assert "Traceback" not in capfd.readouterr().err
    with collection.searcher() as searcher:
        collection.require_right(searcher.search(QUERIES[0], K))


def test_an_expired_version_is_refused_unless_that_is_accepted(
    collection: Published, tmp_path: Path
) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", OTHER)
    long_ago_s = time.time() - MANIFEST_LIFE_S - 1000
    with Owner(collection.profile, clock=lambda: long_ago_s) as owner:
        owner.publish([corpus], delete_missing=True)
    collection.documents = OTHER

    with collection.searcher() as searcher, pytest.raises(ManifestExpired) as caught:
        searcher.search(QUERIES[0], K)
    assert caught.value.exit_code == 3
    with Searcher(collection.profile, accept_expired=True) as searcher:
        result = searcher.search(QUERIES[0], K)
    assert any("expired" in warning for warning in result.warnings)
    collection.require_right(result)
    with Owner(collection.profile) as owner:
        owner.renew()
    with collection.searcher() as searcher:
        result = searcher.search(QUERIES[0], K)
    assert not any("expire" in warning for warning in result.warnings)


def test_the_highest_version_seen_survives_and_older_servers_are_refused(
    collection: Published, tmp_path: Path
) -> None:
    fleet = collection.fleet
    for server in fleet:
        server.stop()
        shutil.copytree(server.data, tmp_path / str(server.id))
    fleet.start()
    collection.publish(OTHER)
    newest = max(collection.versions())

    _roll_back(fleet, [1], tmp_path)
    with collection.searcher() as searcher:
        result = searcher.search(QUERIES[0], K)
    collection.require_right(result)
    assert _statuses(result) == {1: "stale", 2: "ok", 3: "ok"}

    _roll_back(fleet, [2, 3], tmp_path)
    profile = Profile.open(collection.profile.folder)
    seen = profile.highest_seen()
    assert seen is not None
    assert seen.manifest.version == newest
    with Searcher(profile) as searcher, pytest.raises(AnswerRefused) as caught:
        searcher.search(QUERIES[0], K)
    assert caught.value.exit_code == 3
    assert "stale" in caught.value.message
    # What the owner publishes next is above everything that anybody has seen.
    assert collection.publish(OTHER[:12]).version > newest
    assert len(set(collection.versions())) == 1


def _roll_back(fleet: Fleet, servers: Sequence[int], copies: Path) -> None:
    for number in servers:
        server: ServerProcess = fleet[number]
        server.stop()
        shutil.rmtree(server.data)
        shutil.copytree(copies / str(number), server.data)
        server.restart()


# --- two at once ---------------------------------------------------------------------------------


def _publish_at_once(
    profiles: Sequence[Profile], corpora: Sequence[Path]
) -> list[int | MksearchError]:
    """Publish with every profile at the same moment; give versions or errors."""
    barrier = threading.Barrier(len(profiles))
    results: list[int | MksearchError | None] = [None] * len(profiles)

    def work(number: int) -> None:
        with Owner(profiles[number]) as owner:
            barrier.wait(10)
            try:
                report = owner.publish([corpora[number]], delete_missing=True)
                results[number] = report.version
            except MksearchError as error:
                results[number] = error

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(profiles))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert None not in results
    return [result for result in results if result is not None]


@pytest.mark.parametrize("attempt", range(3))
def test_of_two_publishers_at_once_exactly_one_wins(
    collection: Published, tmp_path: Path, attempt: int
) -> None:
    before = max(collection.versions())
    contents = [
        tuple(Document(f"{who}-{n}", "", f"watering {who} {n} {attempt}") for n in range(30))
        for who in ("first", "second")
    ]
    corpora = [write_corpus(tmp_path / f"{n}.jsonl", docs) for n, docs in enumerate(contents)]
    profiles = [collection.member(tmp_path / f"copy-{n}") for n in range(2)]

    results = _publish_at_once(profiles, corpora)

    won = [n for n, result in enumerate(results) if not isinstance(result, MksearchError)]
    assert len(won) == 1, results
    lost = results[1 - won[0]]
    assert isinstance(lost, MksearchError)
    assert "another publisher was faster" in lost.message
    assert collection.versions() == [before + 1] * 3
    collection.documents = contents[won[0]]
    with Searcher(profiles[1 - won[0]]) as searcher:
        collection.require_right(searcher.search("watering", K))
    # The one that lost publishes over the winner's version.
    with Owner(profiles[1 - won[0]]) as owner:
        owner.publish([corpora[1 - won[0]]], delete_missing=True)
    collection.documents = contents[1 - won[0]]
    assert collection.versions() == [before + 2] * 3


def test_two_publishers_with_one_profile_folder_do_not_spoil_each_other(
    collection: Published, tmp_path: Path
) -> None:
    contents = [OTHER[:15], OTHER[5:]]
    corpora = [write_corpus(tmp_path / f"{n}.jsonl", docs) for n, docs in enumerate(contents)]
    profiles = [Profile.open(collection.profile.folder) for _ in range(2)]

    results = _publish_at_once(profiles, corpora)

    assert any(isinstance(result, int) for result in results), results
    for result in results:
        assert isinstance(result, int) or "profile" in result.message
    collection.publish(SMALL.documents)
    assert len(set(collection.versions())) == 1
    with collection.searcher() as searcher:
        collection.require_right(searcher.search(QUERIES[0], K))


def test_searches_while_versions_change_are_never_wrong(collection: Published) -> None:
    """Old or new, but proved; what cannot be proved at that moment is an error, not an answer."""
    versions = {max(collection.versions()): SMALL.documents}
    stop = threading.Event()
    results: list[SearchResult] = []
    errors: list[MksearchError] = []

    def search() -> None:
        with collection.searcher() as searcher:
            while not stop.is_set():
                try:
                    results.append(searcher.search(QUERIES[0], K))
                except MksearchError as error:
                    errors.append(error)

    thread = threading.Thread(target=search)
    thread.start()
    try:
        for n_docs in (12, 16, 20):
            report = collection.publish(OTHER[:n_docs])
            versions[report.version] = OTHER[:n_docs]
    finally:
        stop.set()
        thread.join(30)

    assert {result.version for result in results} > {min(versions)}
    for result in results:
        collection.documents = versions[result.version]
        collection.require_right(result)
    print(f"{len(results)} answers, {len(errors)} errors: {errors[:1]}")


# --- interrupted ---------------------------------------------------------------------------------

_DIES = """
import os, signal, sys
from pathlib import Path
from mksearch_client import publishing
from mksearch_client.connection import GrpcConnection
from mksearch_client.owner import Owner

folder, corpus, call, when, server = sys.argv[1:]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

if call == "prepare":
    publishing.write_manifest = lambda *_: die()
else:
    right = getattr(GrpcConnection, call)
    def some(objects):
        for number, item in enumerate(objects):
            if number == 5:
                die()
            yield item
    def wrong(self, *arguments):
        if self.server != int(server):
            return right(self, *arguments)
        if when == "before":
            die()
        if when == "during":
            right(self, arguments[0], some(arguments[1]))
        right(self, *arguments)
        die()
    setattr(GrpcConnection, call, wrong)

with Owner(Path(folder)) as owner:
    owner.publish([Path(corpus)], delete_missing=True)
print("not reached")
"""


def _publish_and_die(published: Published, corpus: Path, call: str, when: str, server: int) -> None:
    words = [str(published.profile.folder), str(corpus), call, when, str(server)]
    done = run([sys.executable, "-c", _DIES, *words])
    assert done.code == -9, done
    assert "not reached" not in done.out


@pytest.mark.parametrize(
    ("call", "when", "server"),
    [
        ("prepare", "before", 0),
        ("put_all", "during", 1),
        ("activate", "before", 1),
        ("activate", "after", 1),
        ("activate", "after", 2),
        ("activate", "after", 3),
    ],
)
def test_a_publish_that_was_killed_is_completed_by_the_next_one(
    collection: Published, tmp_path: Path, call: str, when: str, server: int
) -> None:
    before = max(collection.versions())
    documents = OTHER[: 10 + server]
    corpus = write_corpus(tmp_path / "corpus.jsonl", documents)

    _publish_and_die(collection, corpus, call, when, server)
    # Whatever is served now is whole, or refused.
    n_new = sum(version > before for version in collection.versions())
    with collection.searcher() as searcher:
        try:
            result = searcher.search(QUERIES[0], K)
        except MksearchError:
            assert n_new == 1
        else:
            collection.documents = documents if result.version > before else SMALL.documents
            collection.require_right(result)

    report = collection.publish(documents)
    assert report.documents == len(documents)
    assert collection.versions() == [before + 1] * 3
    assert report.version == before + 1
    with collection.searcher() as searcher:
        collection.require_right(searcher.search(QUERIES[0], K))
    with Owner(collection.profile) as owner:
        assert owner.verify() == {1: "ok", 2: "ok", 3: "ok"}
    assert not (collection.profile.folder / "publication").exists()


def test_other_documents_can_be_published_after_a_publish_that_was_killed(
    collection: Published, tmp_path: Path
) -> None:
    before = max(collection.versions())
    corpus = write_corpus(tmp_path / "corpus.jsonl", OTHER)
    _publish_and_die(collection, corpus, "activate", "after", 1)

    report = collection.publish(OTHER[:15])

    # The interrupted version was finished first: its bytes were on servers already.
    assert report.version == before + 2
    assert collection.versions() == [before + 2] * 3
    with collection.searcher() as searcher:
        collection.require_right(searcher.search(QUERIES[0], K))


class _Killed(BaseException):
    """Ends a command in this process as a signal would."""


@pytest.mark.parametrize("damage", ["missing", "empty", "changed", "manifest"])
def test_an_interrupted_publication_damaged_on_disk_does_not_stop_the_owner_for_ever(
    collection: Published, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    def die(*_arguments: Any) -> bytes:
        raise _Killed

    with monkeypatch.context() as patched:
        patched.setattr(GrpcConnection, "propose", die)
        with pytest.raises(_Killed):
            collection.publish(OTHER)
    folder = collection.profile.folder / "publication"
    objects = [*sorted((folder / "objects").iterdir()), folder / "blobs"]
    if damage == "missing":
        objects[0].unlink()
    elif damage == "empty":
        for path in objects:
            path.write_bytes(b"")
    elif damage == "changed":
        data = bytearray(objects[-1].read_bytes())
        data[-1] ^= 1
        objects[-1].write_bytes(bytes(data))
    else:
        (folder / "manifest").write_bytes(b"")

    report = collection.publish(OTHER[:15])

    assert report.documents == 15
    assert len(set(collection.versions())) == 1
    with collection.searcher() as searcher:
        collection.require_right(searcher.search(QUERIES[0], K))


def test_an_interrupted_init_is_completed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = GrpcConnection.claim
    claimed = []

    def claim_once(self: GrpcConnection, *arguments: Any) -> tuple[int, bytes]:
        answer = right(self, *arguments)
        claimed.append(self.address)
        if len(claimed) == 2:
            raise _Killed
        return answer

    with serving(tmp_path, engine="numpy") as fleet:
        with monkeypatch.context() as patched:
            patched.setattr(GrpcConnection, "claim", claim_once)
            with pytest.raises(_Killed):
                Owner.create(tmp_path / "profile", fleet.tokens())
        # A wrong token for the last one fails as well, and costs nothing.
        wrong = fleet.tokens() | {fleet[3].address: "0" * 32}
        with pytest.raises(ServerRefused, match="claim token is wrong"):
            Owner.create(tmp_path / "profile", wrong)
        profile = claim(fleet, tmp_path / "profile")
        published = Published(fleet, profile, tmp_path, ())
        published.publish(OTHER)
        with published.searcher() as searcher:
            published.require_right(searcher.search(QUERIES[0], K))


def test_a_search_does_not_go_through_a_proxy_of_the_environment(collection: Published) -> None:
    script = (
        "import sys; from mksearch_client import Searcher\n"
        "with Searcher(sys.argv[1]) as s: print(len(s.search('tomato', 5).hits))"
    )
    done = run(
        [sys.executable, "-c", script, str(collection.profile.folder)],
        environment={"http_proxy": "http://127.0.0.1:9", "grpc_proxy": "http://127.0.0.1:9"},
    )

    assert (done.code, done.err) == (0, "")
    assert int(done.out) > 0


def test_a_search_that_meets_the_activation_of_a_version_ends_in_the_one_before(
    collection: Published, tmp_path: Path
) -> None:
    """The manifests come from the version before, and servers go on with it for a while."""
    with Searcher(collection.member(tmp_path / "member")) as searcher:
        old = searcher.search(QUERIES[0], K)
        open_view = searcher._open
        renewed: list[int] = []

        def open_then_renew(servers: Any) -> Any:
            view = open_view(servers)
            if not renewed:
                with Owner(collection.profile) as owner:
                    renewed.append(owner.renew().manifest.version)
            return view

        searcher._open = open_then_renew  # type: ignore[method-assign]
        new = searcher.search(QUERIES[0], K)

    assert new.hits == old.hits
    assert renewed == [old.version + 1]
    assert new.version == old.version


def test_a_publish_that_finishes_an_interrupted_one_says_what_it_did(
    collection: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = collection.publish(OTHER).version
    documents = [*OTHER, Document("late", "Late", "a document that came late")]
    corpus = write_corpus(collection.folder / "late.jsonl", documents)

    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with Owner(collection.profile) as owner:
        with monkeypatch.context() as patch:
            patch.setattr(owner._fleet, "distribute", interrupt)
            with pytest.raises(KeyboardInterrupt):
                owner.publish([corpus], delete_missing=True)
        finished = owner.publish([corpus], delete_missing=True)
        again = owner.publish([corpus], delete_missing=True)
    collection.documents = tuple(documents)

    assert finished.changed
    assert finished.version == before + 1
    assert [server["status"] for server in finished.servers] == ["ok"] * 3
    assert not again.changed
    assert again.version == finished.version
