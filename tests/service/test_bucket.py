"""Objects of a server in an S3-compatible bucket: as durable, and as little believed, as a disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mksearch.errors import MksearchError, ParameterError, StorageError
from mksearch.index.blob_list import BlobList
from mksearch.scoring.engine import make_engine
from mksearch_client.publication import stage, upload
from mksearch_server.bucket_config import BucketConfig, BucketCredentials, read_bucket
from mksearch_server.bucket_room import BucketRoom
from mksearch_server.identity import CLAIM_STATE, Claim
from mksearch_server.scrub import prove_store
from mksearch_server.search_server import SearchServer
from mksearch_server.store import ObjectStore
from tests.adversary.corpus import make_documents
from tests.service.conftest import QUERIES, SMALL, K, Published
from tests.support.bucket import SECRET, Service, serving_buckets
from tests.support.local import LocalCollection, publish_two
from tests.support.processes import claim, serving
from tests.support.relays import relaying_bytes

DOCUMENTS = make_documents(40, 3)
KEY = bytes(32)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving_buckets(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalCollection, LocalCollection]:
    """Two versions of a collection, on servers that keep them on the disk."""
    return publish_two(DOCUMENTS, tmp_path_factory.mktemp("versions"))


class Bucketed:
    """A server whose objects are in the bucket.

    Attributes:
        prefix: its folder of the bucket.
        cache: its folder of copies.
        server: opened.
    """

    def __init__(
        self, service: Service, folder: Path, collection: LocalCollection, **changes: Any
    ) -> None:
        self.prefix = folder.name
        self.service = service
        self.data, self.cache = folder / "data", folder / "cache"
        self._collection = collection
        self._changes = changes
        self.server = self.open()

    def room(self, server_key: bytes | None = KEY) -> BucketRoom:
        config = self.service.config(self.prefix, self.cache, **self._changes)
        return BucketRoom(config, server_key)

    def open(self) -> SearchServer:
        store = ObjectStore(self.data, room=self.room())
        key = self._collection.keys.signing.public
        try:
            return SearchServer(1, store, key, make_engine("numpy"), grace_s=0)
        except BaseException:
            store.close()
            raise

    def reopen(self, *, lose_cache: bool = False) -> SearchServer:
        self.server.close()
        if lose_cache:
            shutil.rmtree(self.cache)
        self.server = self.open()
        return self.server

    def names(self) -> set[str]:
        """Give the names of what is in the bucket."""
        return {key.rpartition("/")[2] for key in self.service.keys(self.prefix)} - {"server"}

    def copies(self) -> dict[str, int]:
        """Give size by name of what is in the cache."""
        files = [path for path in self.cache.glob("*/*") if path.is_file()]
        return {path.name: path.stat().st_size for path in files}


@pytest.fixture
def bucketed(
    service: Service, tmp_path: Path, versions: tuple[LocalCollection, LocalCollection]
) -> Iterator[Bucketed]:
    made = Bucketed(service, tmp_path / f"server-{os.urandom(4).hex()}", versions[0])
    upload(versions[0].publication, made.server)
    yield made
    made.server.close()


def _listed(collection: LocalCollection) -> dict[bytes, bool]:
    """Give the names of all that a version consists of, with whether it is a segment."""
    manifest = collection.publication.signed.manifest
    names = {segment.id: True for segment in manifest.segments()}
    names |= {reference.id: False for reference in manifest.objects()}
    for group in manifest.groups:
        data = b"".join(collection.publication.chunks(group.blobs.id))
        names |= {name: False for name, _ in BlobList.decode(data).blobs}
    return names


def _blob(collection: LocalCollection) -> bytes:
    manifest = collection.publication.signed.manifest
    data = b"".join(collection.publication.chunks(manifest.groups[0].blobs.id))
    return BlobList.decode(data).blobs[0][0]


def _whole(server: SearchServer, name: bytes) -> bytes:
    return server.read_object(name, 0, 1 << 24)


def test_what_a_bucket_gives_back_is_bit_identical(
    bucketed: Bucketed, versions: tuple[LocalCollection, LocalCollection]
) -> None:
    on_disk = versions[0].servers[1]
    listed = _listed(versions[0])
    assert bucketed.names() == {name.hex() for name in listed}
    for lose_cache in (False, True):
        server = bucketed.reopen(lose_cache=lose_cache)
        assert server.version == 1
        for name in listed:
            assert _whole(server, name) == _whole(on_disk, name)
        with versions[0].searcher([2], replace={1: server}) as searcher:
            assert searcher.search("apple", 5).verified


def test_an_upload_that_broke_off_goes_on_where_it_was(
    service: Service, tmp_path: Path, versions: tuple[LocalCollection, LocalCollection]
) -> None:
    old, _ = versions
    made = Bucketed(service, tmp_path / "resumed", old)
    manifest_hash = made.server.propose(old.publication.signed.encode())
    first = made.server.missing(manifest_hash)
    for name in first[:2]:
        made.server.put(manifest_hash, name, old.publication.chunks(name))
    made.server.commit()
    assert made.server.version == 0

    server = made.reopen()
    assert server.propose(old.publication.signed.encode()) == manifest_hash
    assert server.missing(manifest_hash) == first[2:]
    stage(old.publication, server)
    assert server.activate(manifest_hash) == 1
    server.close()


def test_what_no_version_lists_is_erased_from_bucket_and_cache(
    bucketed: Bucketed, versions: tuple[LocalCollection, LocalCollection]
) -> None:
    old, new = versions
    for name in _listed(old):
        _whole(bucketed.server, name)
    bucketed.server._grace_s = 60
    upload(new.publication, bucketed.server)
    # The version before is served for a while, and nothing of it goes.
    assert bucketed.names() >= {name.hex() for name in _listed(old)}
    (segment,) = old.publication.signed.manifest.segments()
    assert bucketed.server.width(1, segment.id, 0) > 0
    bucketed.server._previous_until = 0.0

    assert bucketed.server.sweep() > 0

    kept = {name.hex() for name in _listed(new)}
    assert bucketed.names() == kept
    assert set(bucketed.copies()) <= kept


def test_an_object_that_was_changed_in_the_bucket_is_not_served(
    bucketed: Bucketed, versions: tuple[LocalCollection, LocalCollection]
) -> None:
    blob, (segment,) = _blob(versions[0]), versions[0].publication.signed.manifest.segments()
    before = {}
    for kind, name in (("objects", blob), ("segments", segment.id)):
        key = f"{bucketed.prefix}/{kind}/{name.hex()}"
        held = before[key] = bucketed.service.get(key)
        for changed in (
            held[:-1],
            held + b"\0",
            held[:-1] + bytes([held[-1] ^ 1]),
            b"",
            bytes(len(held)),
        ):
            bucketed.service.put(key, changed)
            with pytest.raises(StorageError, match="was changed in the bucket") as caught:
                _whole(bucketed.reopen(lose_cache=True), name)
            assert "repair" in caught.value.cure
            assert name.hex() not in bucketed.copies()
            assert not list(bucketed.cache.glob("*/.partial-*"))
        bucketed.service.put(key, held)
    assert _whole(bucketed.reopen(lose_cache=True), blob) == before[next(iter(before))]


def test_an_object_that_was_deleted_in_the_bucket_is_missing_at_the_next_publish(
    bucketed: Bucketed, versions: tuple[LocalCollection, LocalCollection]
) -> None:
    blob, old = _blob(versions[0]), versions[0].publication
    held = _whole(bucketed.server, blob)
    server = bucketed.reopen(lose_cache=True)
    bucketed.service.delete(f"{bucketed.prefix}/objects/{blob.hex()}")

    with pytest.raises(StorageError, match="is not stored here"):
        _whole(server, blob)
    manifest_hash = server.propose(old.signed.encode())
    assert server.missing(manifest_hash) == [blob]
    assert stage(old, server) == 1
    assert _whole(server, blob) == held


def test_the_cache_lets_go_of_what_is_not_served_and_of_nothing_else(
    bucketed: Bucketed, versions: tuple[LocalCollection, LocalCollection]
) -> None:
    (segment,) = versions[0].publication.signed.manifest.segments()
    small = [name for name, is_segment in _listed(versions[0]).items() if not is_segment]
    sizes = {name: len(_whole(bucketed.server, name)) for name in small}
    server = bucketed.reopen(lose_cache=True)
    # No operator could set so little.
    room: Any = server._store._room
    room._cache._max_bytes = limit = segment.size + max(sizes.values()) + 1

    for name in 2 * small:
        assert len(_whole(server, name)) == sizes[name]
        copies = bucketed.copies()
        assert sum(copies.values()) <= limit
        assert segment.id.hex() in copies
        assert name.hex() in copies
    # A segment that does not fit beside the one that is served is refused, and all goes on.
    with pytest.raises(StorageError, match="the cache has no room") as caught:
        server._store.begin(bytes(32), segment.size, is_segment=True)
    assert "cache_bytes" in caught.value.cure
    assert server.segment(segment.id).id == segment.id


def test_a_cache_without_disk_refuses_and_leaves_nothing_behind(
    bucketed: Bucketed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mksearch_server.rooms.RESERVE_BYTES", 1 << 60)
    with pytest.raises(StorageError, match="No space left on device") as caught:
        bucketed.server._store.begin(bytes(32), 1000, is_segment=True)
    assert "make room" in caught.value.cure
    assert not list(bucketed.cache.glob("*/.partial-*"))


def test_a_folder_of_the_bucket_is_of_one_server(bucketed: Bucketed) -> None:
    with pytest.raises(StorageError, match="of another server") as caught:
        bucketed.room(b"\1" * 32)
    assert "url of its own" in caught.value.cure
    bucketed.room(KEY)


@pytest.mark.parametrize(
    ("what", "words", "cure"),
    [
        ("credentials", "refuses the credentials", "credentials of [s3]"),
        ("bucket", "does not exist", "url of [s3]"),
        ("endpoint", "does not answer", "endpoint of [s3]"),
    ],
)
def test_a_bucket_that_cannot_be_used_is_named_in_one_line_that_gives_nothing_away(
    service: Service,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    words: str,
    cure: str,
) -> None:
    monkeypatch.setattr("mksearch_server.bucket._RETRIES", 0)
    config = service.config("nobody", tmp_path / "cache")
    if what == "bucket":
        config = replace(config, bucket="there-is-none")
    if what == "endpoint":
        config = replace(config, endpoint="http://127.0.0.1:1")

    refusing = service.asking_for_credentials() if what == "credentials" else nullcontext()
    with refusing, pytest.raises(StorageError, match=words) as caught:
        BucketRoom(config, KEY)

    shown = f"{caught.value}{caught.value.cure}{caught.value.__cause__}"
    assert cure in caught.value.cure
    assert "\n" not in shown
    for hidden in (SECRET, "AKIA", "127.0.0.1", "there-is-none", "<"):
        assert hidden not in shown
    assert SECRET not in repr(config)
    BucketRoom(service.config("nobody", tmp_path / "cache"), KEY)


def test_a_connection_that_is_cut_stores_nothing_by_half(
    bucketed: Bucketed,
    versions: tuple[LocalCollection, LocalCollection],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mksearch_server.bucket._RETRIES", 1)
    listed = _listed(versions[0])
    target = bucketed.service.endpoint.removeprefix("http://")

    def cut(n_bytes: int, piece: bytes) -> list[bytes] | None:
        return None if n_bytes else [piece[: len(piece) // 2]]

    with relaying_bytes(target, cut) as relay:
        bucketed._changes["endpoint"] = f"http://{relay.address}"
        with pytest.raises(StorageError, match="does not answer") as caught:
            bucketed.reopen(lose_cache=True)
        assert "try again" in caught.value.cure
    assert bucketed.copies() == {}
    del bucketed._changes["endpoint"]
    server = bucketed.reopen()
    assert all(_whole(server, name) for name in listed)


def test_an_upload_to_a_bucket_that_goes_away_is_completed_by_the_next(
    service: Service,
    tmp_path: Path,
    versions: tuple[LocalCollection, LocalCollection],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mksearch_server.bucket._RETRIES", 0)
    old, _ = versions
    is_cut = False

    def cut(_n_bytes: int, piece: bytes) -> list[bytes] | None:
        return None if is_cut else [piece]

    with relaying_bytes(service.endpoint.removeprefix("http://"), cut) as relay:
        made = Bucketed(service, tmp_path / "away", old, endpoint=f"http://{relay.address}")
        manifest_hash = made.server.propose(old.publication.signed.encode())
        missing = made.server.missing(manifest_hash)

        def put(name: bytes) -> None:
            made.server.put(manifest_hash, name, old.publication.chunks(name))
            made.server.commit()

        is_cut = True
        for name in missing:
            with pytest.raises(StorageError, match="does not answer"):
                put(name)
        with pytest.raises(StorageError, match="does not answer"):
            made.server.activate(manifest_hash)
        assert made.server.version == 0
        assert not list(made.cache.glob("*/.partial-*"))
        is_cut = False
        upload(old.publication, made.server)
    assert made.server.version == 1
    assert made.names() == {name.hex() for name in _listed(old)}
    made.server.close()


def test_a_scrub_names_what_is_wrong_in_the_bucket_and_in_the_cache(
    bucketed: Bucketed, versions: tuple[LocalCollection, LocalCollection]
) -> None:
    blob, (segment,) = _blob(versions[0]), versions[0].publication.signed.manifest.segments()
    keys = versions[0].keys
    claim_ = Claim(keys.signing.public, keys.collection)
    bucketed.server._store.write_state(CLAIM_STATE, claim_.encode())
    _whole(bucketed.server, blob)
    bucketed.server.close()

    def damages() -> list[tuple[str, str, bool]]:
        found = prove_store(bucketed.data, claim_, room=bucketed.room(None))
        return [(d.kind, d.name, d.is_missing) for d in found.damages]

    assert damages() == []
    for kind, folder, name in (("object", "objects", blob), ("segment", "segments", segment.id)):
        key = f"{bucketed.prefix}/{folder}/{name.hex()}"
        held = bucketed.service.get(key)
        bucketed.service.put(key, held[:-1] + bytes([held[-1] ^ 1]))
        assert damages() == [(kind, name.hex(), False)]
        bucketed.service.put(key, held)
        copy = bucketed.cache / folder / name.hex()
        copy.write_bytes(held[:-1] + bytes([held[-1] ^ 1]))
        assert damages() == [(kind, name.hex(), False)]
        copy.unlink()
        bucketed.service.delete(key)
        assert damages() == [(kind, name.hex(), True)]
        bucketed.service.put(key, held)
        assert damages() == []


def test_a_server_with_a_bucket_is_published_to_searched_proved_and_repaired(
    service: Service, tmp_path: Path
) -> None:
    with serving(tmp_path, engine="numpy") as fleet:
        server = fleet[3]
        server.kill()
        with server.config.open("a") as file:
            file.write(service.table("fleet-3"))
        fleet.start()
        collection = Published(fleet, claim(fleet, tmp_path / "profile"), tmp_path, ())
        collection.publish(SMALL.documents[:60])
        with collection.searcher() as searcher:
            collection.require_right(searcher.search(QUERIES[0], K))
        assert server.command("verify").json["verified"] is True
        assert not list((server.data / "segments").iterdir())

        server.kill()
        shutil.rmtree(server.folder / "cache")
        keys = service.keys("fleet-3")
        (key,) = (key for key in keys if key.startswith("segments/"))
        held = service.get(f"fleet-3/{key}")
        service.put(f"fleet-3/{key}", held[:-1] + bytes([held[-1] ^ 1]))
        verify = server.command("verify")
        assert verify.code == 3
        assert key.removeprefix("segments/") in verify.out + verify.err or key[9:25] in verify.err
        done = server.command("repair", "--from", fleet[1].address)
        assert (done.code, done.json["damaged"], done.json["fetched"]) == (0, 1, 1), done.err
        assert service.get(f"fleet-3/{key}") == held
        server.restart()
        fleet[2].kill()
        with collection.searcher() as searcher:
            collection.require_right(searcher.search(QUERIES[0], K))
        assert server.command("status").json["store_bytes"] == sum(keys.values()) - keys["server"]
        assert all(SECRET not in one.log() for one in fleet)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"url": "s3://Upper/x"}, "s3.url"),
        ({"url": "https://bucket/x"}, "s3.url"),
        ({"url": "s3://bucket/../other"}, "s3.url"),
        ({"url": ""}, "s3.url"),
        ({"endpoint": "http://s3.example.org"}, "s3.endpoint"),
        ({"endpoint": "https://user:hunter2@s3.example.org"}, "s3.endpoint"),
        ({"endpoint": "https://s3.example.org/x?key=hunter2"}, "s3.endpoint"),
        ({"endpoint": "https://[s3"}, "s3.endpoint"),
        ({"region": "EU central"}, "s3.region"),
        ({"cache_bytes": 1}, "s3.cache_bytes"),
        ({"cache_bytes": True}, "s3.cache_bytes"),
        ({"cache": 3}, "s3.cache"),
        ({"secret_access_key": "hunter2"}, "unknown keys: secret_access_key"),
    ],
)
def test_settings_of_a_bucket_that_cannot_be_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        read_bucket({"url": "s3://bucket/server-1", **changes}, tmp_path)
    assert words in caught.value.message
    assert caught.value.cure
    assert "hunter2" not in str(caught.value)


def test_settings_of_a_bucket(tmp_path: Path) -> None:
    assert read_bucket({"url": "s3://bucket"}, tmp_path) == BucketConfig(
        "bucket", "", tmp_path / "cache"
    )
    found = read_bucket({"url": "s3://b.c-d/x/y/", "endpoint": "http://[::1]:9000"}, tmp_path)
    assert (found.bucket, found.prefix) == ("b.c-d", "x/y")


@pytest.mark.parametrize(
    "text", ["", "access_key_id = 'hunter2'", "hunter2", "[hunter2]", "access_key_id = 2"]
)
def test_credentials_that_cannot_be_are_refused_without_showing_them(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "credentials"
    path.write_text(text)
    with pytest.raises(StorageError, match="not as they should be") as caught:
        BucketCredentials.read(path)
    assert "hunter2" not in f"{caught.value}{caught.value.cure}{caught.value.__cause__}"


def test_without_credentials_nothing_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    config = BucketConfig("bucket", "", tmp_path / "cache")
    with pytest.raises(StorageError, match="no credentials") as caught:
        config.require_credentials()
    assert "AWS_ACCESS_KEY_ID" in caught.value.cure
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    with pytest.raises(MksearchError):
        config.require_credentials()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    config.require_credentials()
