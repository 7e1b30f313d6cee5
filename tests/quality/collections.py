"""Read the judged collections that retrieval quality is measured on."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

_REPOSITORY: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Collection:
    """A judged collection.

    Attributes:
        name: folder name.
        ids: external id of each document.
        texts: text of each document: title, a blank, text.
        queries: text of each query by its id.
        judgements: grade of each judged document by query id, then external id.
        baseline: what plaintext engines reach (``BASELINE.json``).
    """

    name: str
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    queries: Mapping[str, str]
    judgements: Mapping[str, Mapping[str, int]]
    baseline: Mapping[str, Any]

    def baseline_ndcg(self, engine: str) -> float:
        """Give the nDCG@10 of a plaintext engine, such as "bm25s/snowball"."""
        return float(self.baseline["results"][engine]["ndcg10"])


def data_folder() -> Path:
    """Give the folder of third-party data: MKSEARCH_DATA, else beside the repository."""
    named = os.environ.get("MKSEARCH_DATA")
    return Path(named) if named else _REPOSITORY.parent / "shared" / "data"


def read_documents(path: Path) -> Iterator[tuple[str, str]]:
    """Give external id and text (title, a blank, text) of each document of a ``.jsonl.gz``."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            document = json.loads(line)
            yield document["_id"], f"{document.get('title') or ''} {document['text']}"


def load_collection(name: str) -> Collection:
    """Read a judged collection, or skip the test that asks where there is none."""
    folder = data_folder() / "collections" / name
    if not folder.is_dir():
        pytest.skip(f"third-party collection {name} is not there: set MKSEARCH_DATA")
    ids, texts = zip(*read_documents(folder / "corpus.jsonl.gz"), strict=True)
    queries = {}
    for line in (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines():
        query = json.loads(line)
        queries[query["_id"]] = query["text"]
    judgements: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        query_id, document_id, grade = line.split("\t")
        judgements.setdefault(query_id, {})[document_id] = int(grade)
    baseline = json.loads((folder / "BASELINE.json").read_text(encoding="utf-8"))
    return Collection(name, ids, texts, queries, judgements, baseline)
