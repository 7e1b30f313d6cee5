"""Make the frozen index of a format, once: `python -m tests.vectors.freeze`.

It refuses to touch a frozen index that is there.  README.md in the folder says why.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

from datasets.loaders import load_small
from mksearch.crypto.kdf import sha256
from mksearch.crypto.randomness import SeededRandom
from mksearch.index.blob_list import BlobList
from mksearch.index.builder import SegmentBuilder
from mksearch.index.geometry import BlockShape, LevelGeometry
from mksearch.index.manifest import Group
from mksearch.params import Quorum
from mksearch.text.analyzers import make_analyzer
from mksearch.text.weights import Scoring
from mksearch_client.keys import OwnerKeys
from mksearch_client.publication import Publication, write_object
from mksearch_client.publishing import Publisher
from mksearch_client.reading import Document

from .frozen_index import FrozenIndex
from .frozen_members import FrozenMembers
from .material import FROZEN, Json, render, seed

NOW_S = 1_800_000_000
#: Several blocks, two levels, dedicated and shared columns, and yet small.
BLOCK = BlockShape(13, 3)
GEOMETRY = (LevelGeometry(192, 128), LevelGeometry(128, 192))
QUERIES = (
    "tomato plants",
    "Watering the TOMATOES, watering!",
    "mend a flat tyre with a patch",
    "worn chain",
    "café crème brûlée",
    "flood of the river in spring and rain after frost in May",
    "database index",
    "unknownword",
    "the and of",
)


def documents() -> list[Document]:
    """Return the small corpus and a document whose record spills and whose blob has two chunks."""
    small = load_small().documents
    text = "\n".join(document.text for document in small)
    return [*small, Document("odd-long", "Everything, seven times", "\n".join([text] * 7))]


def require_new(folder: Path) -> None:
    """End the program if the folder of a frozen index is there."""
    if folder.exists():
        raise SystemExit(f"{folder} is there: a frozen index is never made again")


def freeze(folder: Path, documents: Iterable[Document]) -> FrozenIndex:
    """Publish into `folder`, which must not exist, and pin what searches find."""
    require_new(folder)
    keys_seed = seed("frozen format 1: these are test keys")
    kept = list(documents)
    builder = functools.partial(SegmentBuilder, block=BLOCK, geometry=GEOMETRY)
    publisher = Publisher(
        OwnerKeys.generate(SeededRandom(keys_seed)),
        name="frozen format 1",
        quorum=Quorum(),
        random=SeededRandom(seed("frozen format 1: salts and blob keys")),
        analyzer=make_analyzer("english-1"),
        scoring=Scoring("tfidf"),
    )
    with mock.patch("mksearch_client.publishing.SegmentBuilder", builder):
        publication = publisher.prepare(kept, folder, now_s=NOW_S)
    unpack(publication, publication.signed.manifest.groups[0])
    write(folder / "test-keys.json", _keys(keys_seed))
    lines = [json.dumps({"_id": d.id, "title": d.title, "text": d.text}) for d in kept]
    (folder / "corpus.jsonl").write_bytes(("\n".join(lines) + "\n").encode("ascii"))
    index = FrozenIndex(folder)
    write(folder / "expected.json", _expected(index))
    return index


def unpack(publication: Publication, group: Group | None) -> None:
    """Give each blob of a group a file, as servers hand them out; the pack does not stay."""
    assert group is not None
    listed = b"".join(publication.chunks(group.blobs.id))
    for name, _ in BlobList.decode(listed).blobs:
        write_object(publication.folder, b"".join(publication.chunks(name)))
    for left in ("blobs", "blobs.index"):
        (publication.folder / left).unlink()


def write(path: Path, value: Json) -> None:
    """Write a file of JSON."""
    path.write_bytes(render(value).encode("ascii"))


def _keys(keys_seed: bytes) -> Json:
    return {
        "about": "TEST KEYS, known to everybody: they protect nothing and must never protect "
        "anything. Not the format of any key file. AES-256-CTR of zeros under the seed, from "
        "counter 0, gives the collection (16 bytes), the master secret (32) and the seed of the "
        "owner's Ed25519 key (32), in this order.",
        "seed": keys_seed.hex(),
        "policy": "",
        "epoch": 1,
    }


def _expected(index: FrozenIndex) -> Json:
    manifest = (index.folder / "manifest").read_bytes()
    return {
        "about": "What reading and searching the frozen index gives. Scores in units of 2^-60.",
        "now": NOW_S,
        "manifest_sha256": sha256(manifest).hex(),
        "manifest_hash": index.signed.hash.hex(),
        "queries": [_query(index, query) for query in QUERIES],
    }


def _query(index: FrozenIndex, query: str) -> Json:
    hits, exact = index.search(query, 5)
    assert exact
    found: list[dict[str, Any]] = [
        {"id": hit.member.id, "score": str(hit.score), "title": hit.member.title} for hit in hits
    ]
    return {"query": query, "terms": index.client.terms(query), "k": 5, "hits": found}


def main() -> int:
    """Run the command line; return the exit code."""
    if len(sys.argv) > 1:
        print(__doc__)
        return 2
    from . import freeze_members

    make: dict[str, Callable[[Path], FrozenIndex | FrozenMembers]] = {
        "format1": lambda folder: freeze(folder, documents()),
        "format2": lambda folder: freeze_members.freeze_members(folder, freeze_members.documents()),
    }
    missing = [FROZEN / name for name in make if not (FROZEN / name).exists()]
    if not missing:
        raise SystemExit("the frozen index of every format is there: none is ever made again")
    for folder in missing:
        index = make[folder.name](folder)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        print(f"{folder}: {size} bytes, manifest {index.signed.hash.hex()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
