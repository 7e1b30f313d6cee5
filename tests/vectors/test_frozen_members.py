"""The index of format 2 that was made once is read by today's code, and by the reference."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mksearch.crypto.kdf import sha256
from mksearch.crypto.randomness import SystemRandom
from mksearch.index.blob_list import BlobList
from mksearch.index.document import StoredDocument
from mksearch.text.weights import SCORE_ONE
from mksearch_client.keyring import KeyRing, OwnerRing
from mksearch_client.publication import Publication, upload
from mksearch_client.searching import Searcher
from mksearch_server.search_server import SearchServer
from tests.reference import access, enrolment, keys, manifest, members, search, stream
from tests.reference import segment as segments
from tests.support.local import open_server

from . import freeze, freeze_members, slow
from .frozen_members import FrozenMembers
from .material import FROZEN, Json, load

FOLDER = FROZEN / "format2"

#: SHA-256 of both signed manifests, which name and pin every other byte.  They never change.
MANIFESTS_SHA256 = {
    "manifest-1": "d9405423bee929a4b647e2e4720003bfc447face0ad3fe05a95dd88fae1a4a49",
    "manifest": "489e6ea578ef25e68decc7ea7aa563a921c1c100b797589d40fde144a8330f57",
}


@cache
def frozen() -> FrozenMembers:
    return FrozenMembers(FOLDER)


def published() -> list[Json]:
    return [json.loads(line) for line in (FOLDER / "corpus.jsonl").read_text("ascii").splitlines()]


# --- the product ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*MANIFESTS_SHA256])
def test_the_frozen_manifests_are_those_that_were_frozen(name: str) -> None:
    assert sha256((FOLDER / name).read_bytes()).hex() == MANIFESTS_SHA256[name]


def test_the_frozen_manifests_are_of_format_2_and_of_two_epochs() -> None:
    index = frozen()
    assert index.signed.hash.hex() == index.expected["manifest_hash"]
    for version, epoch, signed in ((1, 1, index.first), (2, 2, index.signed)):
        signed.require_current(index.expected["now"])
        assert signed.manifest.version == version
        assert signed.manifest.access is not None
        assert signed.manifest.access.epoch == epoch
        assert signed.encode()[8:12] == b"\0\0\0\2"
    assert [group.epoch for group in index.groups] == [1, 2]
    assert [group.policy.decode() for group in index.groups] == index.expected["policies"]
    assert index.first.manifest.access is not None
    assert index.first.manifest.access.verification_keys is None
    assert index.access.verification_keys is not None


def test_every_frozen_object_of_format_2_has_its_name_and_is_listed() -> None:
    index = frozen()
    pages = {s.id for m in (index.first, index.signed) for s in m.manifest.segments()}
    listed = pages | {o.id for m in (index.first, index.signed) for o in m.manifest.objects()}
    for group in index.groups:
        listed |= set(dict(BlobList.decode(index.object(group.blobs)).blobs))
    found = set()
    for path in (FOLDER / "objects").iterdir():
        data, name = path.read_bytes(), bytes.fromhex(path.name)
        assert sha256(data[:4096] if name in pages else data) == name
        found.add(name)
    assert found == listed


def test_a_member_opens_both_groups_and_has_the_owners_keys() -> None:
    index = frozen()
    for group in index.groups:
        opened = index.bundle(group)
        derived = index.keys.sealed_bundle(group.policy, group.epoch, index.access.epoch)
        assert opened.encode() == derived.encode()


@pytest.mark.parametrize("number", range(len(freeze_members.QUERIES)))
def test_a_member_finds_the_pinned_hits_and_scores_in_each_frozen_group(number: int) -> None:
    index = frozen()
    case = index.expected["queries"][number]
    for group, expected in zip(index.groups, case["groups"], strict=True):
        assert index.client(group).terms(case["query"]) == expected["terms"]
        hits, exact = index.search(group, case["query"], case["k"])
        assert exact
        found = [{"id": hit.member.id, "score": str(hit.score)} for hit in hits]
        assert found == expected["hits"]


def test_every_document_of_the_frozen_groups_opens() -> None:
    index = frozen()
    for line in published():
        stored = index.document(index.groups[line["group"]], line["_id"])
        assert stored == StoredDocument(line["_id"], line["title"], line["text"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[int, SearchServer]:
    folder, owner_key = tmp_path_factory.mktemp("frozen"), frozen().keys.signing.public
    publication = Publication.load(FOLDER, owner_key)
    servers = {server: open_server(folder, server, owner_key) for server in (1, 2, 3)}
    for server in servers.values():
        upload(publication, server)
    return servers


@pytest.mark.parametrize("who", ["member", "owner"])
def test_servers_take_the_frozen_version_and_a_search_asks_both_groups(
    served: dict[int, SearchServer], who: str
) -> None:
    index = frozen()
    ring: KeyRing = index.ring if who == "member" else OwnerRing(index.keys)
    clock = float(index.expected["now"])
    with Searcher(served, ring, SystemRandom(), clock=lambda: clock) as user:
        for case in index.expected["queries"]:
            result = user.search(case["query"], case["k"])
            assert result.exact
            found = [hit for group in case["groups"] for hit in group["hits"]]
            best = sorted(found, key=lambda hit: (-int(hit["score"]), hit["id"].encode()))
            assert [(hit.id, hit.score) for hit in result.hits] == [
                (hit["id"], int(hit["score"]) / SCORE_ONE) for hit in best[: case["k"]]
            ]
        last = published()[-1]
        assert user.open(last["_id"]).text == last["text"]


# --- the reference -------------------------------------------------------------------------------


@cache
def read_manifests() -> Json:
    """Return the body of the second manifest, read behind the first, as a member does."""
    index, pinned = frozen(), index_keys()
    seen = None
    body: Json = {}
    for name in MANIFESTS_SHA256:
        file = (FOLDER / name).read_bytes()
        now = index.expected["now"]
        body = manifest.read_manifest(file, *pinned, now, seen, authority=authority())
        seen = body["version"], manifest.manifest_hash(file[16:-64])
    return body


def index_keys() -> tuple[bytes, bytes]:
    return frozen().keys.signing.public, frozen().keys.collection


def authority() -> bytes:
    return frozen().access.parameters.authority


@cache
def bundles() -> list[dict[str, bytes]]:
    """Return the keys of both groups, opened with the reference from list, credential and key."""
    index, body = frozen(), read_manifests()
    _, collection = index_keys()
    told = body["access"]
    parameters = access.decode_parameters(told["authority"])
    user_seed = bytes.fromhex(index.test_keys["user_seed"])
    user = members.user_id(members.identity(user_seed).user_key)
    file = enrolment.decode_list(index.raw(told["credentials"][0]["id"]))[user]
    pinned = told["admin_key"], collection, parameters.authority, user, index.expected["now"]
    credential, context, sealed = members.read_credential(file, *pinned)
    assert credential["epoch"] == told["epoch"]
    secret, _ = members.open_credential(credential, context, sealed, user_seed, parameters)
    held = bytes.fromhex(index.test_keys["attribute_key"])
    return [
        members.open_bundle(
            index.raw(group["bundle"]["id"]),
            parameters,
            held,
            secret,
            collection,
            told["epoch"],
            group["policy"],
        )
        for group in body["groups"]
    ]


def opened(bundle: dict[str, bytes], kind: str, ref: Json) -> bytes:
    data = frozen().raw(ref["id"])
    assert (stream.stream_name(data), len(data)) == (ref["id"], ref["size"])
    return stream.open_stream(kind, keys.section_key(bundle, kind), index_keys()[1], data)


def test_the_reference_opens_the_frozen_groups_as_a_member_and_finds_the_pinned_hits() -> None:
    index, body = frozen(), read_manifests()
    for number, (group, bundle) in enumerate(zip(body["groups"], bundles(), strict=True)):
        master, collection = index.keys.master.reveal(), index_keys()[1]
        derived = keys.bundle_keys(master, collection, group["epoch"], group["policy"])
        now = keys.bundle_keys(master, collection, body["access"]["epoch"], group["policy"])
        assert bundle == derived | {"search": now["search"]}
        dictionary = stream.decode_dictionary(opened(bundle, "dictionary", group["dictionary"]))
        data = index.raw(group["segments"][0]["id"])
        segment = segments.read_segment(data)
        search.require_opening(group, collection, dictionary, [data[:4096]])
        me = search.Member(bundle, dictionary, segment)
        servers: Any = {j: search.HonestServer(segment) for j in (2, 3)}
        for case in index.expected["queries"]:
            expected = case["groups"][number]
            draw = slow.drawing("frozen")
            found = me.search(expected["terms"], case["k"], draw, 1, servers)
            hits = [{"id": hit.external_id, "score": str(hit.score)} for hit in found.hits]
            assert hits == expected["hits"]


def test_the_reference_opens_documents_of_both_frozen_groups() -> None:
    index, body = frozen(), read_manifests()
    for group, bundle in zip(body["groups"], bundles(), strict=True):
        lookup = stream.decode_lookup(opened(bundle, "lookup", group["lookup"]))
        number = body["groups"].index(group)
        for line in (one for one in published() if one["group"] == number):
            found = lookup[stream.lookup_place(keys.lookup_key(bundle), line["_id"])]
            key = stream.unwrap_blob_key(keys.wrapping_key(bundle), found.wrapped_key)
            content = stream.open_stream("blob", key, index_keys()[1], index.raw(found.blob))
            assert stream.decode_blob(content) == (line["_id"], line["title"], line["text"])


# --- the folder ----------------------------------------------------------------------------------


def test_the_frozen_index_of_format_2_is_never_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SystemExit, match="never made again"):
        freeze_members.freeze_members(FOLDER, ([], []))
    monkeypatch.setattr("sys.argv", ["freeze"])
    with pytest.raises(SystemExit, match="ever made again"):
        freeze.main()


def test_another_index_is_made_and_read_in_the_same_way(tmp_path: Path) -> None:
    """What made the frozen index still does, so that a format to come has something to begin with.

    Its bytes differ: what is sealed to the user is drawn by a library, and a publication draws in
    another order than it did, which the attribute key comes after.
    """
    made = freeze_members.freeze_members(tmp_path / "again", freeze_members.documents())
    assert made.expected["queries"] == frozen().expected["queries"]
    drawn = {"attribute_key": ""}
    assert made.test_keys | drawn == frozen().test_keys | drawn


def test_the_frozen_index_of_format_2_is_small_and_says_that_its_keys_protect_nothing() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 400_000
    names = {"corpus.jsonl", "expected.json", "manifest", "manifest-1", "objects", "test-keys.json"}
    assert {path.name for path in FOLDER.iterdir()} == names
    assert "TEST KEYS" in load("test-keys", FOLDER)["about"]
