"""An index that was made once is read by today's code, and by the reference implementation."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from mksearch.crypto.kdf import sha256
from mksearch.crypto.randomness import SystemRandom
from mksearch.index.document import StoredDocument
from mksearch.index.segment import SegmentReader
from mksearch.params import Quorum
from mksearch.text.analyzers import make_analyzer
from mksearch.text.weights import SCORE_ONE
from mksearch_client.publication import Publication, upload
from mksearch_client.searching import Searcher
from tests.reference import keys, manifest, records, search, stream
from tests.reference import segment as segments
from tests.support.local import LocalCollection, open_server

from . import freeze, slow
from .frozen_index import FrozenIndex
from .material import FROZEN, Json

FOLDER = FROZEN / "format1"

#: SHA-256 of the signed manifest, which names and pins every other byte.  It never changes.
MANIFEST_SHA256 = "8761dd54f6028e9a9695d0f5b823cc05f11fffd33b137a2392447c53c19cc9d4"


@cache
def frozen() -> FrozenIndex:
    return FrozenIndex(FOLDER)


def queries() -> list[int]:
    return list(range(len(frozen().expected["queries"])))


# --- the product ---------------------------------------------------------------------------------


def test_the_frozen_manifest_is_the_one_that_was_frozen() -> None:
    assert sha256((FOLDER / "manifest").read_bytes()).hex() == MANIFEST_SHA256
    assert frozen().expected["manifest_sha256"] == MANIFEST_SHA256
    assert frozen().signed.hash.hex() == frozen().expected["manifest_hash"]


def test_the_frozen_manifest_verifies_and_was_current_when_it_was_made() -> None:
    index = frozen()
    index.signed.require_current(index.expected["now"])
    assert index.signed.manifest.version == 1
    assert index.signed.encode() == (FOLDER / "manifest").read_bytes()


def test_every_frozen_object_has_its_name_and_is_listed() -> None:
    index = frozen()
    listed = {ref.id for ref in index.signed.manifest.objects()} | {index.group.segments[0].id}
    blobs = dict(index.blobs().blobs)
    for path in (FOLDER / "objects").iterdir():
        data = path.read_bytes()
        name = bytes.fromhex(path.name)
        assert name in listed | set(blobs)
        assert sha256(data[:4096] if name == index.group.segments[0].id else data) == name
        assert blobs.get(name, len(data)) == len(data)
    assert len(list((FOLDER / "objects").iterdir())) == len(listed) + len(blobs)


def test_the_frozen_segment_verifies_and_has_everything_in_it() -> None:
    reader = SegmentReader(np.frombuffer(frozen().segment, np.uint8))
    reader.verify()
    layout = reader.header.layout
    assert len(layout.levels) == 2
    assert layout.n_slots > layout.n_rows, "no record spills"
    assert all(n < len(frozen().dictionary.terms) for n in frozen().dictionary.n_dedicated)


def test_the_analyzer_still_cuts_as_the_frozen_index_was_cut() -> None:
    index = frozen()
    analyzer = make_analyzer(index.group.analyzer, index.dictionary.stop_words)
    assert set(index.dictionary.stop_words) == make_analyzer(index.group.analyzer).stop_words
    for case in index.expected["queries"]:
        assert analyzer.tokens(case["query"]) == case["terms"]
    for document in index.documents:
        assert set(analyzer.tokens(document.searchable)) <= set(index.dictionary.terms)


@pytest.mark.parametrize("number", queries())
def test_searches_in_the_frozen_index_find_the_pinned_hits_and_scores(number: int) -> None:
    case = frozen().expected["queries"][number]
    hits, exact = frozen().search(case["query"], case["k"])
    assert exact
    found = [(hit.member.id, str(hit.score), hit.member.title) for hit in hits]
    assert found == [(hit["id"], hit["score"], hit["title"]) for hit in case["hits"]]


def test_every_frozen_document_opens() -> None:
    index = frozen()
    catalogue = {entry.id: entry for entry in index.catalogue()}
    assert set(catalogue) == {document.id for document in index.documents}
    for document in index.documents:
        stored = index.document(document.id)
        assert stored == StoredDocument(document.id, document.title, document.text)
        entry = catalogue[document.id]
        assert sha256(stored.encode()) == entry.content_hash
        found = index.lookup.find(document.id)
        assert found is not None
        assert (found.row, found.blob) == (entry.row, entry.blob)
        assert entry.salt == index.group.segments[0].salt


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> LocalCollection:
    folder, index = tmp_path_factory.mktemp("frozen"), frozen()
    owner_key = index.keys.signing.public
    publication = Publication.load(FOLDER, owner_key)
    servers = {server: open_server(folder, server, owner_key) for server in (1, 2, 3)}
    for server in servers.values():
        upload(publication, server)
    return LocalCollection(folder, index.keys, Quorum(), publication, servers)


def searcher(served: LocalCollection) -> Searcher:
    now = frozen().expected["now"]
    connections = served.servers
    return Searcher(connections, served.keys.member(), SystemRandom(), clock=lambda: float(now))


def test_servers_take_the_frozen_index_and_users_find_and_open_documents(
    served: LocalCollection,
) -> None:
    user = searcher(served)
    for case in frozen().expected["queries"]:
        result = user.search(case["query"], case["k"])
        assert result.exact
        assert [(hit.id, hit.score) for hit in result.hits] == [
            (hit["id"], int(hit["score"]) / SCORE_ONE) for hit in case["hits"]
        ]
    for document in (frozen().documents[0], frozen().documents[-1]):
        assert user.open(document.id).text == document.text


# --- the reference -------------------------------------------------------------------------------


@cache
def bundle() -> dict[str, bytes]:
    return slow.bundle_of(frozen().owner)


def read_manifest() -> Json:
    index = frozen()
    file, owner = (FOLDER / "manifest").read_bytes(), index.keys.signing.public
    return manifest.read_manifest(file, owner, index.keys.collection, index.expected["now"])


def opened(kind: str, name: bytes) -> bytes:
    index = frozen()
    if kind == "catalogue":
        key = keys.catalogue_key(index.keys.master.reveal(), index.keys.collection)
    else:
        key = keys.section_key(bundle(), kind)
    data = index.raw(name)
    assert stream.stream_name(data) == name
    return stream.open_stream(kind, key, index.keys.collection, data)


@cache
def member() -> search.Member:
    index = frozen()
    [group] = read_manifest()["groups"]
    dictionary = stream.decode_dictionary(opened("dictionary", group["dictionary"]["id"]))
    segment = segments.read_segment(index.segment)
    search.require_opening(group, index.keys.collection, dictionary, [index.segment[:4096]])
    return search.Member(bundle(), dictionary, segment)


def test_the_reference_reads_and_searches_the_frozen_index() -> None:
    me = member()
    servers = {j: search.HonestServer(me.segment) for j in (2, 3)}
    for case in frozen().expected["queries"]:
        found = me.search(case["terms"], case["k"], slow.drawing("frozen"), 1, servers)
        assert [(hit.external_id, str(hit.score)) for hit in found.hits] == [
            (hit["id"], hit["score"]) for hit in case["hits"]
        ]


def test_the_reference_opens_every_frozen_document_and_record() -> None:
    index, me = frozen(), member()
    lookup = stream.decode_lookup(opened("lookup", index.group.lookup.id))
    catalogue = stream.decode_catalogue(opened("catalogue", index.signed.manifest.catalogue.id))
    blobs = stream.decode_blob_list(index.raw(index.group.blobs.id))
    assert [entry.external_id for entry in catalogue] == sorted(d.id for d in index.documents)
    assert set(blobs) == {entry.blob for entry in catalogue}
    by_id = {document.id: document for document in index.documents}
    server = search.HonestServer(me.segment)
    for entry in catalogue:
        place = stream.lookup_place(keys.lookup_key(bundle()), entry.external_id)
        found = lookup[place]
        assert (found.segment, found.row, found.blob) == (0, entry.row, entry.blob)
        key = stream.unwrap_blob_key(keys.wrapping_key(bundle()), found.wrapped_key)
        content = stream.open_stream("blob", key, index.keys.collection, index.raw(found.blob))
        document = by_id[entry.external_id]
        assert stream.decode_blob(content) == (document.id, document.title, document.text)
        row = records.open_record(me.segment.layout, me.keys, entry.row, server.slots)
        assert entry.external_id in [external_id for external_id, *_ in row.members]


# --- the folder ----------------------------------------------------------------------------------


def test_a_frozen_index_is_never_made_again(tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in FOLDER.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit, match="never made again"):
        freeze.freeze(FOLDER, [])
    assert {path: path.read_bytes() for path in FOLDER.rglob("*") if path.is_file()} == before
    (tmp_path / "there").mkdir()
    with pytest.raises(SystemExit, match="never made again"):
        freeze.freeze(tmp_path / "there", [])


def test_the_frozen_index_is_small_and_complete() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 600_000
    assert {path.name for path in FOLDER.iterdir()} == {
        "corpus.jsonl",
        "expected.json",
        "manifest",
        "objects",
        "test-keys.json",
    }


def test_keys_of_the_frozen_index_say_that_they_protect_nothing() -> None:
    assert "TEST KEYS" in frozen().test_keys["about"]
