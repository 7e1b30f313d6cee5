"""A scrub finds each flipped bit of what a server stores, and names the object that has it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from mksearch_server.identity import CLAIM_STATE, Claim
from mksearch_server.scrub import SMALL, copy_good, prove_store, scrub
from mksearch_server.store import ObjectStore
from tests.adversary.corpus import make_documents
from tests.support.local import publish

SEED = 20_261_130
#: All of them in seconds, so all of them in CI.
N_FLIPS = 1000
#: Each in a process of its own.
N_PAGES = 12


@dataclass
class Scrubbed:
    """A store at rest.

    Attributes:
        data: its folder.
        claim: of its server.
        places: file, offset and length of everything stored, with its name.
    """

    data: Path
    claim: Claim
    places: list[tuple[Path, int, int, str]]

    def flip(self, path: Path, offset: int, bit: int) -> None:
        with path.open("r+b") as file:
            file.seek(offset)
            (byte,) = file.read(1)
            file.seek(offset)
            file.write(bytes([byte ^ 1 << bit]))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Scrubbed:
    folder = tmp_path_factory.mktemp("scrubbed")
    local = publish(make_documents(60, 3), folder, engine="numpy")
    for server in local.servers.values():
        server.close()
    data = folder / "server-1"
    claim = Claim(local.keys.signing.public, local.keys.collection)
    with_claim = ObjectStore(data)
    with_claim.write_state(CLAIM_STATE, claim.encode())
    with_claim.close()
    # Old pages of LMDB hold copies: in a new file there are few.
    copy_good(data, folder / "fresh")
    shutil.rmtree(data / "objects")
    (data / "objects.size").unlink()
    shutil.move(folder / "fresh" / "objects", data)
    with_claim = ObjectStore(data, read_only=True)
    objects = {name.hex(): bytes(value) for name, value in with_claim.small_objects()}
    objects["manifest"] = with_claim.read_state("manifest") or b""
    objects["claim"] = claim.encode()
    with_claim.close()
    segments = list((data / "segments").iterdir())
    places = [(path, 0, path.stat().st_size, path.name) for path in segments]
    database = data / "objects" / "data.mdb"
    pages = database.read_bytes()
    for name, value in objects.items():
        # A page that was split may have kept a copy that nothing reads.
        if pages.count(value) == 1:
            places.append((database, pages.index(value), len(value), name))
    assert len(places) > len(objects) // 2
    return Scrubbed(data, claim, places)


def test_a_store_that_is_whole_has_no_damage(store: Scrubbed) -> None:
    findings = prove_store(store.data, store.claim)

    assert findings.damages == []
    assert findings.version == 1
    assert findings.n_objects > 60
    assert {"manifest", "claim"} <= {name for _, _, _, name in store.places}
    assert scrub(store.data, store.claim) == findings


def test_each_of_a_thousand_flipped_bits_is_found_and_its_object_named(store: Scrubbed) -> None:
    source = random.Random(SEED)
    n_found = dict.fromkeys(("segment", "object", "manifest", "claim"), 0)
    for number in range(N_FLIPS):
        # Every object is as likely as every other one, and the segment as all the others.
        one = store.places[0] if number % 3 == 0 else source.choice(store.places[1:])
        path, start, size, name = one
        offset, bit = start + source.randrange(size), source.randrange(8)
        store.flip(path, offset, bit)
        findings = prove_store(store.data, store.claim)
        store.flip(path, offset, bit)

        kinds = {damage.kind: damage.name for damage in findings.damages}
        assert findings.damages, f"bit {bit} of byte {offset} of {path.name} ({name})"
        assert name in kinds or name in kinds.values(), (name, findings.damages)
        for kind in kinds:
            n_found[kind] = n_found.get(kind, 0) + 1
    assert prove_store(store.data, store.claim).damages == []
    assert all(n_found.values()), n_found


def test_a_bit_of_the_pages_around_the_objects_is_found_or_changes_nothing(
    store: Scrubbed, tmp_path: Path
) -> None:
    """LMDB's own fields: whatever they are made to say, nothing wrong is taken for right."""
    source = random.Random(SEED)
    whole = prove_store(store.data, store.claim)
    data = tmp_path / "data"
    shutil.copytree(store.data, data)
    database = data / "objects" / "data.mdb"
    n_pages = database.stat().st_size // 4096
    n_found = 0
    for _ in range(N_PAGES):
        # Heads of pages: numbers of pages, flags, where the free room is, where nodes are.
        offset = 4096 * source.randrange(2, n_pages) + source.randrange(64)
        bit = source.randrange(8)
        store.flip(database, offset, bit)
        findings = scrub(data, store.claim)
        store.flip(database, offset, bit)
        n_found += bool(findings.damages)
        if not findings.damages:
            assert (findings.n_objects, findings.version) == (whole.n_objects, whole.version)
            assert findings.manifest == whole.manifest
    assert n_found > 0


def test_an_object_that_is_missing_is_named(store: Scrubbed, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(store.data, data)
    (segment,) = (data / "segments").iterdir()
    segment.unlink()

    (damage,) = prove_store(data, store.claim).damages

    assert (damage.kind, damage.name, damage.is_missing) == ("segment", segment.name, True)


def test_a_version_activated_while_the_store_is_read_is_no_damage(
    store: Scrubbed, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(store.data, data)
    (segment,) = (data / "segments").iterdir()
    segment.rename(tmp_path / "segment")

    def arrive(line: Mapping[str, object]) -> None:
        if line.get("reading") == SMALL:
            (tmp_path / "segment").rename(segment)

    assert prove_store(data, store.claim, arrive).damages == []
