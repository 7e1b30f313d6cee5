"""Changes over the network: publish again, delete, compact, watch, and what disturbs them."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from mksearch.errors import InputError, MksearchError, StorageError
from mksearch.index.blob_list import BlobList
from mksearch.index.catalogue import CatalogueEntry, Lookup, encode_catalogue
from mksearch.index.manifest import SignedManifest
from mksearch.index.stream import seal_stream
from mksearch_client.holdings import Holdings, source_of
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner, PublishReport
from mksearch_client.publication import Publication
from mksearch_client.watching import Watch
from mksearch_server.store import ObjectStore
from tests.support.grpc_stage import POLICY, RANDOM, GrpcStage, hit_ids, staging, until
from tests.support.processes import clean_environment, interruptible_command, run_client


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[GrpcStage]:
    with staging(tmp_path) as made:
        yield made


def write(folder: Path, **texts: str) -> Path:
    """Write documents as files; return their folder."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def found(stage: GrpcStage, query: str) -> list[str]:
    with Searcher(stage.owner.profile.folder) as searcher:
        return hit_ids(searcher.search(query, 50).hits)


def texts(n: int) -> dict[str, str]:
    return {f"d{i:02}": f"apple word{i} pear{i % 3}" for i in range(n)}


def test_publish_adds_replaces_and_leaves_alone(stage: GrpcStage, tmp_path: Path) -> None:
    folder = write(tmp_path / "docs", **texts(30))
    first = stage.owner.publish([folder])
    assert (first.added, first.segments) == (30, 1)

    write(folder, d03="quince", new="walnut apple")
    dry = stage.owner.publish([folder], dry_run=True)
    assert (dry.added, dry.replaced, dry.deleted, dry.unchanged) == (1, 1, 0, 29)
    assert found(stage, "walnut") == []
    done = stage.owner.publish([folder])
    assert (done.added, done.replaced, done.unchanged) == (1, 1, 29)
    assert (done.version, done.segments) == (2, 2)
    assert found(stage, "walnut") == ["new.txt"]
    assert found(stage, "quince") == ["d03.txt"]
    assert found(stage, "word3") == []

    # What is not named stays, unless it is said to go.
    few = write(tmp_path / "few", d04="pomegranate")
    assert stage.owner.publish([few]).replaced == 1
    assert len(found(stage, "apple")) == 29
    assert stage.owner.publish([few], delete_missing=True).deleted == 30
    assert found(stage, "apple") == []
    assert found(stage, "pomegranate") == ["d04.txt"]
    assert not stage.owner.publish([few], delete_missing=True).changed
    assert set(stage.owner.verify().values()) == {"ok"}


def test_delete_names_what_is_not_there_and_then_deletes_nothing(
    stage: GrpcStage, tmp_path: Path
) -> None:
    stage.owner.publish([write(tmp_path / "docs", **texts(5))])
    with pytest.raises(InputError, match="no document 'nowhere'") as caught:
        stage.owner.delete(["d01.txt", "nowhere"])
    assert "\n" not in str(caught.value)
    assert len(found(stage, "apple")) == 5

    signed = stage.owner.delete(["d01.txt", "d03.txt"])
    assert signed.manifest.groups[0].n_docs == 3
    assert found(stage, "apple") == ["d00.txt", "d02.txt", "d04.txt"]
    stage.owner.delete(["d00.txt", "d02.txt", "d04.txt"])
    assert found(stage, "apple") == []
    (group,) = stage.owner.groups(stage.owner.status()[0])
    # Deleting two of five changed the statistics so much that the group was rewritten then.
    assert (group.documents, group.deleted, group.segments) == (0, 3, 1)
    stage.owner.compact()
    (group,) = stage.owner.groups(stage.owner.status()[0])
    assert (group.documents, group.deleted, group.segments) == (0, 0, 1)
    assert stage.owner.compact().merges == ()
    stage.owner.publish([write(tmp_path / "again", x="apple again")])
    assert found(stage, "apple") == ["x.txt"]


def test_documents_of_several_policies_are_deleted_at_once_and_compacted(
    stage: GrpcStage,
) -> None:
    stage.publish()
    stage.enrol("ann", "role:analyst", "dept:finance")
    with stage.searcher("ann") as searcher:
        before = searcher.search("apple", 50)
        open_id = next(i for i in hit_ids(before.hits) if i.startswith("open"))
        closed_id = next(i for i in hit_ids(before.hits) if i.startswith("closed"))
        stage.owner.delete([open_id, closed_id])
        after = searcher.search("apple", 50)
        assert set(hit_ids(before.hits)) - set(hit_ids(after.hits)) == {open_id, closed_id}
        report = stage.owner.compact()
        assert {merge.policy for merge in report.merges} == {"", POLICY}
        assert hit_ids(searcher.search("apple", 50).hits) == hit_ids(after.hits)
        with pytest.raises(InputError):
            searcher.open(closed_id)
        assert searcher.open(hit_ids(after.hits)[0]).text.startswith("apple")


def test_what_was_deleted_is_erased_from_servers_after_compaction(
    stage: GrpcStage, tmp_path: Path
) -> None:
    folder = write(tmp_path / "docs", **texts(20))
    signed_first = stage.owner.publish([folder])
    assert signed_first.changed
    store = stage.servers[1].runtime._store
    before = stage.owner.status()[0]
    assert before is not None
    old_segment = before.manifest.groups[0].segments[0].id
    old_blobs = dict(BlobList.decode(store.read_whole(before.manifest.groups[0].blobs.id)).blobs)
    stage.owner.delete(["d07.txt"])
    for server in stage.servers.values():
        server.runtime.search._previous_until = 0.0
        server.runtime.search.sweep()
    # Deleted is not erased: segments and blobs stay.
    assert store.has(old_segment)
    assert all(store.has(name) for name in old_blobs)

    stage.owner.compact()
    after = stage.owner.status()[0]
    assert after is not None
    new_blobs = dict(BlobList.decode(store.read_whole(after.manifest.groups[0].blobs.id)).blobs)
    # Of the grace time nothing is erased yet: searches of the version before may go on.
    for server in stage.servers.values():
        assert server.runtime.search.sweep() == 0
    assert store.has(old_segment)
    for server in stage.servers.values():
        server.runtime.search._previous_until = 0.0
        assert server.runtime.search.sweep() > 0
        assert not server.runtime._store.has(old_segment)
        erased = set(old_blobs) - set(new_blobs)
        assert not any(server.runtime._store.has(name) for name in erased)
    assert len(set(old_blobs) & set(new_blobs)) == 19
    assert set(stage.owner.verify().values()) == {"ok"}
    assert len(found(stage, "apple")) == 19
    with Searcher(stage.owner.profile.folder) as searcher:
        assert searcher.open("d08.txt").text == texts(20)["d08"]


def test_compaction_says_beforehand_what_it_would_cost(stage: GrpcStage, tmp_path: Path) -> None:
    folder = write(tmp_path / "docs", **texts(30))
    stage.owner.publish([folder])
    write(folder, more="apple more")
    stage.owner.publish([folder])
    stage.owner.delete(["d00.txt"])
    versions = stage.owner.status()[0]
    dry = stage.owner.compact(dry_run=True)
    (merge,) = dry.merges
    assert (merge.segments, merge.documents, merge.erased) == (2, 30, 1)
    assert merge.read_bytes > 0
    assert stage.owner.status()[0] == versions
    assert stage.owner.compact(tiered=True).merges == ()
    done = stage.owner.compact()
    assert done.merges == dry.merges
    assert len(found(stage, "apple")) == 30
    assert stage.owner.compact(dry_run=True).merges == ()


def test_a_server_that_was_away_gets_what_it_missed_from_the_others(
    stage: GrpcStage, tmp_path: Path
) -> None:
    folder = write(tmp_path / "docs", **texts(20))
    stage.owner.publish([folder])
    stage.servers[3].stop()
    write(folder, a="walnut apple")
    stage.owner.publish([folder])
    stage.owner.delete(["d00.txt"])
    stage.servers[3].start()
    write(folder, b="quince apple")
    stage.owner.publish([folder])
    assert until(lambda: set(stage.owner.verify().values()) == {"ok"}, 30)
    stage.servers[1].stop()
    assert found(stage, "walnut") == ["a.txt"]
    # It was in the folder, so the second publish brought it back.
    assert len(found(stage, "apple")) == 22


def test_of_two_publishers_one_loses_with_one_line_and_nothing_is_lost(
    stage: GrpcStage, tmp_path: Path
) -> None:
    stage.owner.publish([write(tmp_path / "docs", **texts(20))])
    newest = stage.owner._fleet.newest_version
    stale = newest()
    with Owner(stage.owner.profile.folder) as other:
        other.publish([write(tmp_path / "other", o="walnut")])
    # A second computer with the same keys, that read the version before.
    stage.owner._fleet.newest_version = lambda: stale  # type: ignore[method-assign]
    try:
        with pytest.raises(MksearchError) as caught:
            stage.owner.publish([write(tmp_path / "mine", m="quince")])
    finally:
        stage.owner._fleet.newest_version = newest  # type: ignore[method-assign]
    assert "\n" not in str(caught.value)
    assert found(stage, "walnut") == ["o.txt"]
    stage.owner.publish([tmp_path / "mine"])
    assert found(stage, "quince") == ["m.txt"]
    assert found(stage, "walnut") == ["o.txt"]


def test_a_full_disk_in_a_compaction_is_one_line_and_loses_nothing(
    stage: GrpcStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "docs", **texts(20))
    stage.owner.publish([folder])
    stage.owner.delete(["d00.txt"])
    before = stage.owner.status()[0]

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("mksearch_client.publishing.os.posix_fallocate", full)
        with pytest.raises(StorageError, match="No space left") as caught:
            stage.owner.compact()
    assert "\n" not in str(caught.value)
    assert stage.owner.status()[0] == before
    assert len(found(stage, "apple")) == 19
    assert len(stage.owner.compact().merges) == 1
    assert len(found(stage, "apple")) == 19


def test_servers_whose_disks_are_full_in_a_compaction_lose_nothing(
    stage: GrpcStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.owner.publish([write(tmp_path / "docs", **texts(20))])
    stage.owner.delete(["d00.txt"])
    before = stage.owner.status()[0]
    stores = {server: made.runtime._store for server, made in stage.servers.items()}
    keep = ObjectStore.keep_small

    # The segment is stored and what comes behind it is not.
    def fill(*full: int) -> None:
        def kept(store: ObjectStore, name: bytes, data: bytes) -> None:
            if any(store is stores[server] for server in full):
                raise StorageError("object cannot be stored: No space left on device")
            keep(store, name, data)

        monkeypatch.setattr(ObjectStore, "keep_small", kept)

    fill(1, 2)
    with pytest.raises(MksearchError, match="No space left") as caught:
        stage.owner.compact()
    assert "\n" not in str(caught.value)
    assert stage.owner.status()[0] == before
    assert len(found(stage, "apple")) == 19
    assert found(stage, "word0") == []

    # One server alone holds nobody up, and takes what it missed once it has room.
    fill(1)
    stage.owner.compact()
    assert list(stage.owner.behind) == [1]
    assert len(found(stage, "apple")) == 19
    fill()
    assert stage.owner.compact().merges == ()
    assert not stage.owner.behind
    versions = {server.manifest.version for server in stage.servers.values()}
    assert len(versions) == 1
    assert len(found(stage, "apple")) == 19


def test_a_second_process_that_publishes_meanwhile_is_refused_in_one_line(
    stage: GrpcStage, tmp_path: Path
) -> None:
    docs = write(tmp_path / "docs", **texts(6))
    profile = stage.owner.profile
    with profile.locked():
        done = run_client("owner", "publish", docs, "--profile", profile.folder, "--json")
    assert done.code == 1
    assert "another command is publishing" in done.json["message"]
    assert stage.owner.status()[0] is None
    done = run_client("owner", "publish", docs, "--profile", profile.folder, "--json")
    assert (done.code, done.json["documents"]) == (0, 6)


def test_a_folder_is_watched_by_the_command_line_until_it_is_interrupted(
    stage: GrpcStage, tmp_path: Path
) -> None:
    docs = write(tmp_path / "docs", **texts(6))
    words = ("owner", "watch", str(docs), "--profile", str(stage.owner.profile.folder))
    command = interruptible_command(*words, "--json", "--settle", "0.1", "--interval", "0.1")
    with subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE) as watching:
        try:
            assert watching.stdout is not None
            assert json.loads(watching.stdout.readline())["documents"] == 6
            (docs / "d02.txt").unlink()
            write(docs, new="walnut apple")
            # What is seen between the two changes is a version of its own.
            while not found(stage, "walnut") or found(stage, "word2"):
                assert watching.stdout.readline()
            watching.send_signal(signal.SIGINT)
            assert watching.wait(30) != 0
        finally:
            watching.kill()
    assert len(found(stage, "apple")) == 6


def test_an_interrupted_compaction_is_finished_from_its_bytes(
    stage: GrpcStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.owner.publish([write(tmp_path / "docs", **texts(20))])
    stage.owner.delete(["d00.txt"])

    def killed(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stage.owner._fleet, "distribute", killed)
        with pytest.raises(KeyboardInterrupt):
            stage.owner.compact()
    prepared = json.dumps(sorted(p.name for p in (stage.owner._staging() / "objects").iterdir()))
    assert len(found(stage, "apple")) == 19
    assert stage.owner.compact().merges == ()
    signed = stage.owner.status()[0]
    assert signed is not None
    assert signed.manifest.groups[0].segments[0].id.hex() in prepared
    assert len(found(stage, "apple")) == 19


def test_a_catalogue_that_does_not_match_the_servers_is_refused_in_one_line(
    stage: GrpcStage, tmp_path: Path
) -> None:
    folder = write(tmp_path / "docs", **texts(20))
    stage.owner.publish([folder])
    signed = stage.owner.status()[0]
    assert signed is not None
    for server in stage.servers.values():
        server.runtime._store.erase([signed.manifest.catalogue.id])
    write(folder, new="walnut")
    with pytest.raises(MksearchError) as caught:
        stage.owner.publish([folder])
    assert "\n" not in str(caught.value)
    assert len(found(stage, "apple")) == 20


def publish_as_before(stage: GrpcStage) -> None:
    """Publish the catalogue again as a release wrote it that knew no parts (format 1)."""
    owner = stage.owner
    active = owner.status()[0]
    assert active is not None
    keys = owner.profile.keys
    held = Holdings.read(owner._fleet, keys, active).held[b""]
    (segment,) = held.segments
    raw = held.open_lookup(source_of(owner._fleet), keys.collection, 0).raw()
    key = held.bundle.lookup_key()
    entries = []
    documents = zip(segment.part.ids, segment.part.hashes, segment.part.rows.tolist(), strict=True)
    for name, digest, row in documents:
        blob, _ = Lookup.blob_of(raw[Lookup.key_of(key, name)])
        entries.append(CatalogueEntry(name, digest, row, segment.ref.salt, blob))
    sealed = seal_stream(
        keys.catalogue_key(), "catalogue", keys.collection, encode_catalogue(entries), RANDOM
    )
    catalogue = owner._write_object(sealed)
    manifest = replace(
        active.manifest,
        version=active.manifest.version + 1,
        previous=active.hash,
        catalogue=catalogue,
    )
    signed = SignedManifest.sign(manifest, keys.signing)
    owner._distribute(Publication.of_manifest(owner._staging(), signed), lambda *_what: None)


@pytest.mark.parametrize("change", ["publish", "delete", "compact"])
def test_what_an_older_release_published_is_searched_and_changed(
    stage: GrpcStage, tmp_path: Path, change: str
) -> None:
    folder = write(tmp_path / "docs", **texts(12))
    stage.owner.publish([folder])
    publish_as_before(stage)
    assert not stage.owner.publish([folder]).changed
    assert len(found(stage, "apple")) == 12
    (group,) = stage.owner.groups(stage.owner.status()[0])
    assert (group.documents, group.segments) == (12, 1)
    if change == "publish":
        report = stage.owner.publish([write(tmp_path / "few", new="apple walnut", d03="apple fig")])
        assert (report.added, report.replaced, report.unchanged) == (1, 1, 0)
        assert len(found(stage, "apple")) == 13
        assert found(stage, "fig") == ["d03.txt"]
    elif change == "delete":
        stage.owner.delete(["d03.txt"])
        assert len(found(stage, "apple")) == 11
    else:
        assert len(stage.owner.compact().merges) == 1
        assert stage.owner.compact().merges == ()
        assert len(found(stage, "apple")) == 12
    assert set(stage.owner.verify().values()) == {"ok"}


def test_another_scoring_builds_all_of_a_group_anew_with_documents_that_are_not_named(
    stage: GrpcStage, tmp_path: Path
) -> None:
    stage.owner.publish([write(tmp_path / "docs", **texts(12))])
    few = write(tmp_path / "few", new="apple walnut")
    report = stage.owner.publish([few], scoring="bm25")
    assert (report.added, report.deleted, report.segments) == (1, 0, 1)
    assert len(found(stage, "apple")) == 13
    signed = stage.owner.status()[0]
    assert signed is not None
    assert signed.manifest.groups[0].scoring["kind"] == "bm25"
    # Left out, it stays as it is.
    write(few, more="apple fig")
    assert stage.owner.publish([few]).segments == 2
    assert len(found(stage, "apple")) == 14


def test_searches_go_on_while_a_collection_is_compacted(stage: GrpcStage, tmp_path: Path) -> None:
    stage.owner.publish([write(tmp_path / "docs", **texts(60))])
    stage.owner.delete(["d00.txt"])
    stop = threading.Event()

    def search() -> set[int]:
        counts = set()
        with Searcher(stage.owner.profile.folder) as searcher:
            while not stop.is_set():
                counts.add(len(searcher.search("apple", 100).hits))
        return counts

    with ThreadPoolExecutor(1) as pool:
        searching = pool.submit(search)
        stage.owner.compact()
        stop.set()
        assert searching.result() == {59}


def test_a_watched_folder_is_published_once_it_has_settled(
    stage: GrpcStage, tmp_path: Path
) -> None:
    folder = write(tmp_path / "docs", **texts(6))
    clock = [0.0]
    reports: list[PublishReport] = []
    watch = Watch(stage.owner, folder, settle_s=2, clock=lambda: clock[0], on_report=reports.append)

    def look(after_s: float) -> int:
        clock[0] += after_s
        watch.look()
        return len(reports)

    assert look(0) == 0
    assert look(1) == 0
    assert look(1) == 1
    assert len(found(stage, "apple")) == 6
    write(folder, new="walnut apple")
    (folder / "d02.txt").unlink()
    assert look(5) == 1
    write(folder, other="quince apple")
    assert look(1) == 1
    assert look(2) == 2
    assert (reports[1].added, reports[1].deleted) == (2, 1)
    assert found(stage, "word2") == []
    assert found(stage, "walnut") == ["new.txt"]
    assert look(60) == 2

    # A document that was published from elsewhere is none of its business.
    stage.owner.publish([write(tmp_path / "elsewhere", e="olive")])
    for path in folder.iterdir():
        path.unlink()
    look(1)
    look(3)
    assert found(stage, "apple") == []
    assert found(stage, "olive") == ["e.txt"]


def test_a_watch_goes_on_when_servers_were_away(stage: GrpcStage, tmp_path: Path) -> None:
    folder = write(tmp_path / "docs", **texts(6))
    clock = [0.0]
    errors: list[MksearchError] = []
    watch = Watch(stage.owner, folder, settle_s=0, clock=lambda: clock[0], on_error=errors.append)
    for server in (1, 2):
        stage.servers[server].stop()
    watch.look()
    assert len(errors) == 1
    for server in (1, 2):
        stage.servers[server].start()
    clock[0] += 100

    def published() -> bool:
        watch.look()
        return stage.owner.status()[0] is not None

    assert until(published, 20)
    assert len(found(stage, "apple")) == 6
