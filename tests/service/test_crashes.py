"""A process that ends at any step towards the disk leaves a whole version, and the next completes.

Steps are the renames, syncs and commits of a process, each before and after.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb
import pytest

from mksearch.errors import AnswerRefused, NotEnoughAnswers, StorageError
from mksearch_client.documents import Document
from mksearch_client.profile import Profile
from mksearch_client.publication import upload
from mksearch_server.identity import Claim
from mksearch_server.scrub import prove_store
from mksearch_server.search_server import SearchServer
from mksearch_server.store import ObjectStore
from tests.adversary.corpus import make_documents
from tests.service.conftest import QUERIES, SMALL, K, Published
from tests.support.crashes import client, repair, run_to_step, upload_to
from tests.support.local import LocalCollection, open_server, publish, publish_two
from tests.support.processes import write_corpus

DOCUMENTS = make_documents(40, 3)
#: More steps than anything here takes.
MANY = 400


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalCollection, LocalCollection]:
    """Two versions of a collection; the servers of the first are closed."""
    old, new = publish_two(DOCUMENTS, tmp_path_factory.mktemp("versions"))
    for collection in (old, new):
        for one in collection.servers.values():
            one.close()
    return old, new


def _copy(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def _opened(folder: Path, collection: LocalCollection) -> SearchServer:
    return open_server(folder, 1, collection.keys.signing.public, engine="numpy")


def _require_whole(folder: Path, collection: LocalCollection, version: int) -> None:
    claim = Claim(collection.keys.signing.public, collection.keys.collection)
    findings = prove_store(folder / "server-1", claim)
    assert findings.damages == []
    assert findings.version == version
    assert not list((folder / "server-1" / "segments").glob(".partial-*"))


# --- a server ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_first", [True, False])
def test_a_server_that_ends_at_any_step_of_an_upload_serves_a_whole_version(
    versions: tuple[LocalCollection, LocalCollection], tmp_path: Path, is_first: bool
) -> None:
    old, new = versions
    wanted = old if is_first else new
    folder, versions_seen, n_steps = tmp_path / "server", set(), 0
    for last in range(1, MANY):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        if not is_first:
            _copy(old.folder / "server-1", folder / "server-1")
        arguments = (folder, old.keys.signing.public, wanted.publication.folder)
        if not run_to_step(last, upload_to, *arguments):
            break
        n_steps = last
        one = _opened(folder, wanted)
        versions_seen.add(one.version)
        one.close()
        _require_whole(folder, old, one.version)
        again = _opened(folder, wanted)
        upload(wanted.publication, again)
        assert again.version == wanted.publication.signed.manifest.version
        again.close()
        _require_whole(folder, old, again.version)

    assert n_steps > 10
    assert versions_seen == ({0, 1} if is_first else {1, 2})


# --- the owner -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_owner_that_ends_at_any_step_of_a_publish_completes_it_the_next_time(
    collection: Published, tmp_path: Path
) -> None:
    n_steps = 0
    # One in three here; `./dev chaos` has the others.
    for last in range(1, MANY, 3):
        # Every version has other documents, so that each publish has everything to do.
        documents = SMALL.documents[: 20 + last % 37]
        corpus = write_corpus(tmp_path / "corpus.jsonl", documents)
        words = ("--delete-missing", "--profile", str(collection.profile.folder))
        was_ended = run_to_step(last, client, "owner", "publish", str(corpus), *words)
        if not was_ended:
            break
        n_steps = last
        if last % 2 == 0:
            _require_old_or_new(collection, documents)
        report = collection.publish(documents)
        assert all(server["status"] == "ok" for server in report.servers)
        with collection.searcher() as searcher:
            collection.require_right(searcher.search(QUERIES[0], K))
    assert n_steps > 20


def _require_old_or_new(collection: Published, documents: Sequence[Document]) -> None:
    """Prove that a search between an interrupted publish and the next one is right, or refused."""
    before = collection.documents
    with collection.searcher() as searcher:
        try:
            result = searcher.search(QUERIES[0], K)
        except (AnswerRefused, NotEnoughAnswers):
            return
    if result.n_docs != len(before):
        collection.documents = tuple(documents)
    collection.require_right(result)
    collection.documents = before


def test_every_file_is_synced_before_it_gets_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a loss of power would undo is never relied upon: on a server, and in a profile."""
    synced: list[str] = []
    renamed: list[tuple[str, int]] = []
    fsync, replace = os.fsync, os.replace

    def syncing(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def replacing(source: Path, target: Path) -> None:
        # LMDB syncs its own file; its noted size is a help alone.
        if Path(target).name != "objects.size":
            assert str(source) in synced, f"{target} gets its name before it is on the disk"
            renamed.append((str(Path(target).parent), len(synced)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "replace", replacing)
    local = publish(DOCUMENTS, tmp_path, engine="numpy")
    profile = Profile(tmp_path, local.keys, "test", local.quorum, {})
    profile.remember(local.publication.signed)
    profile.save()

    assert len(renamed) >= 3 + 2 + 2
    for folder, at in renamed:
        assert folder in synced[at:], f"names in {folder} are not synced"
    published = {str(path) for path in local.publication.folder.rglob("*") if path.is_file()}
    never = published - set(synced) - {str(local.publication.folder / "manifest")}
    assert {Path(path).name for path in never} <= {path.name for path in _segments(local)}


def _segments(local: LocalCollection) -> list[Path]:
    return list((local.folder / "server-1" / "segments").iterdir())


# --- repair --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["lost", "damaged"])
def test_a_repair_that_ends_at_any_step_serves_nothing_or_all_and_is_completed_by_the_next(
    collection: Published, tmp_path: Path, how: str
) -> None:
    server, source = collection.fleet[3], collection.fleet[1]
    server.stop()
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    shutil.copytree(server.data, whole)
    shutil.copytree(server.data, broken)
    if how == "lost":
        shutil.rmtree(broken / "objects")
    else:
        _damage(broken)
    n_steps = 0
    claim = Claim(collection.profile.owner_key, collection.profile.collection)
    version = prove_store(whole, claim).version
    words = ("--config", str(server.config), "--from", source.address)
    # Every step of one or the other.
    for last in range(1 if how == "lost" else 2, MANY, 2):
        _copy(broken, server.data)
        if not run_to_step(last, repair, *words):
            break
        n_steps = last
        # As a server that starts finds it: all, or nothing to serve.
        findings = prove_store(server.data, claim)
        changed = findings.version and findings.damages
        assert not changed or _same(server.data, broken), findings.damages
        assert not run_to_step(MANY, repair, *words)
        findings = prove_store(server.data, claim)
        assert (findings.damages, findings.version) == ([], version)
    server.restart()
    assert n_steps > 10
    assert len(set(collection.versions())) == 1


def _damage(data: Path) -> None:
    """Change one bit of a segment and of a small object."""
    (segment, *_) = (data / "segments").iterdir()
    for path, offset in ((segment, 5000), (data / "objects" / "data.mdb", _place(data))):
        held = bytearray(path.read_bytes())
        held[offset] ^= 1
        path.write_bytes(held)


def _place(data: Path) -> int:
    store = ObjectStore(data, read_only=True)
    value = next(bytes(value) for _, value in store.small_objects())
    store.close()
    return (data / "objects" / "data.mdb").read_bytes().index(value[:64]) + 50


def _same(data: Path, other: Path) -> bool:
    """Tell whether the repair has not changed anything yet."""
    path = Path("objects", "data.mdb")
    return (data / path).exists() and (data / path).read_bytes() == (other / path).read_bytes()


# --- a full disk ---------------------------------------------------------------------------------


class _FullDisk:
    """Has no room at one call of what writes."""

    def __init__(self, patch: pytest.MonkeyPatch, failing: int) -> None:
        self._failing = failing
        self._n = 0
        for name in ("replace", "fsync"):
            patch.setattr(os, name, self._counted(getattr(os, name)))
        patch.setattr(tempfile, "mkstemp", self._counted(tempfile.mkstemp))
        open_right = lmdb.open
        patch.setattr(lmdb, "open", lambda *a, **o: _FullDatabase(open_right(*a, **o), self))

    @property
    def was_met(self) -> bool:
        return self._n >= self._failing

    def require_room(self, error: Exception) -> None:
        self._n += 1
        if self._n == self._failing:
            raise error

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            self.require_room(OSError(28, "No space left on device"))
            return call(*arguments, **options)

        return counting


class _FullDatabase:
    def __init__(self, environment: lmdb.Environment, disk: _FullDisk) -> None:
        self._environment = environment
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def begin(self, *arguments: Any, **options: Any) -> Any:
        if options.get("write"):
            self._disk.require_room(lmdb.DiskError("mdb_txn_commit: No space left on device"))
        return self._environment.begin(*arguments, **options)


def test_a_full_disk_at_any_write_refuses_the_upload_and_tears_nothing(
    versions: tuple[LocalCollection, LocalCollection], tmp_path: Path
) -> None:
    old, new = versions
    folder, n_refused = tmp_path / "server", 0
    for failing in range(1, MANY):
        _copy(old.folder / "server-1", folder / "server-1")
        with pytest.MonkeyPatch.context() as patch:
            one: SearchServer | None = None
            disk = _FullDisk(patch, failing)
            refused = None
            try:
                one = _opened(folder, old)
                upload(new.publication, one)
            except StorageError as error:
                refused = error
            if refused is not None:
                n_refused += 1
                assert "No space left on device" in refused.message
                assert refused.cure
                assert "\n" not in str(refused)
            if not disk.was_met:
                break
        if one is not None:
            # The same process goes on once there is room.
            assert one.version in {1, 2}
            upload(new.publication, one)
            assert one.version == 2
            one.close()
        _require_whole(folder, old, 1 if one is None else 2)
    assert n_refused > 5


def test_what_was_acknowledged_before_the_disk_was_full_is_kept(
    versions: tuple[LocalCollection, LocalCollection], tmp_path: Path
) -> None:
    old, new = versions
    _copy(old.folder / "server-1", tmp_path / "server-1")
    one = _opened(tmp_path, old)
    manifest_hash = one.propose(new.publication.signed.encode())
    first = one.missing(manifest_hash)
    for name in first:
        one.put(manifest_hash, name, new.publication.chunks(name))
    one.commit()
    blobs = one.missing(manifest_hash)
    assert blobs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one._store, "_max_bytes", 0)
        with pytest.raises(StorageError, match="No space left on device") as caught:
            one.put_whole(manifest_hash, [b"".join(new.publication.chunks(blobs[0]))])
        assert "make room" in caught.value.cure
    # As after a crash: nothing is committed at the end.
    one._store._database.close()

    again = _opened(tmp_path, old)
    manifest_hash = again.propose(new.publication.signed.encode())
    assert again.missing(manifest_hash) == blobs
    upload(new.publication, again)
    assert again.version == 2
    again.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if subprocess.run(words, check=False, capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


def test_a_disk_that_is_really_full_refuses_and_a_later_publish_completes(
    versions: tuple[LocalCollection, LocalCollection],
    small_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = versions
    monkeypatch.setattr("mksearch_server.rooms.RESERVE_BYTES", 0)
    _copy(old.folder / "server-1", small_disk / "server-1")
    n_refused = 0
    # Room for a little more each time: the disk is full at one write after the other.
    for n_free in range(1 << 14, 1 << 20, 1 << 14):
        one = _opened(small_disk, old)
        ballast = small_disk / "ballast"
        usage = os.statvfs(small_disk)
        ballast.write_bytes(bytes(max(0, usage.f_bavail * usage.f_frsize - n_free)))
        refused = ""
        try:
            upload(new.publication, one)
        except StorageError as error:
            refused = str(error)
        ballast.unlink()
        if not refused:
            break
        n_refused += 1
        assert "\n" not in refused
        assert one.version == 1
        one.close()
        _require_whole(small_disk, old, 1)
    assert n_refused > 1
    assert one.version == 2
    one.close()
    _require_whole(small_disk, old, 2)


def test_a_segment_for_which_room_runs_out_on_its_way_leaves_nothing_behind(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mksearch_server.rooms.RESERVE_BYTES", 0)
    store = ObjectStore(small_disk / "data")
    writer = store.begin(bytes(32), 3000, is_segment=True)
    writer.write(bytes(3000))
    with (small_disk / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(bytes(1 << 12))

    with pytest.raises(StorageError, match="No space left on device"):
        writer.finish(lambda _data: None)
    writer.close()

    assert list((small_disk / "data" / "segments").iterdir()) == []
    assert not store.has(bytes(32))
    store.close()


def test_small_objects_that_could_not_be_committed_are_not_taken_for_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore(tmp_path)
    name = bytes(32)
    store.keep_small(name, b"kept")
    with monkeypatch.context() as patch:

        def full(*_arguments: Any, **_options: Any) -> Any:
            raise lmdb.DiskError("mdb_put: No space left on device")

        held = store._database._env

        class Full:
            begin = staticmethod(full)

        patch.setattr(store._database, "_env", Full())
        with pytest.raises(StorageError, match="1 objects cannot be stored") as caught:
            store.commit()
        assert "make room" in caught.value.cure
        patch.setattr(store._database, "_env", held)
        assert not store.has(name)
    store.keep_small(name, b"kept")
    store.commit()
    assert store.read_whole(name) == b"kept"
    store.close()
