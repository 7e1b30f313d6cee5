"""Loading the collections with judgments: the small one of the repository, and third-party ones.

A collection is what ``manifest.toml`` says (counts, and for third-party files SHA-256), or it is
refused: a figure measured on other data would be compared with the wrong baseline.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from mksearch.errors import InputError, ParameterError
from mksearch_client.reading import Document, read_paths

__all__ = ["Collection", "Query", "data_root", "load_collection", "load_small"]

_HERE: Final = Path(__file__).resolve().parent
_RESTORE: Final = "restore the files of the collection, or correct datasets/manifest.toml"


@dataclass(frozen=True, slots=True)
class Query:
    """Hold one query: its id and its words."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Collection:
    """Hold documents, queries and judgments.

    Attributes:
        name: name in the manifest.
        language: language of the documents, as a BCP 47 tag.
        documents: the documents, in the order of the file.
        queries: the queries, in the order of the file.
        qrels: query id -> document id -> grade; 0 is judged not relevant, what is missing is not
            judged.
    """

    name: str
    language: str
    documents: tuple[Document, ...]
    queries: tuple[Query, ...]
    qrels: Mapping[str, Mapping[str, int]]

    @property
    def ids(self) -> tuple[str, ...]:
        """External ids of the documents."""
        return tuple(document.id for document in self.documents)

    @property
    def texts(self) -> tuple[str, ...]:
        """What is analysed of each document: title, a blank, text."""
        return tuple(document.searchable for document in self.documents)


def data_root() -> Path | None:
    """Find the folder of third-party data.

    Returns:
        The folder that the environment variable ``MKSEARCH_DATA`` names, else
        ``../shared/data`` beside the repository, else None: tests then skip visibly.

    Raises:
        InputError: ``MKSEARCH_DATA`` names no folder; a misspelt name is no reason to skip.
    """
    named = os.environ.get("MKSEARCH_DATA")
    root = Path(named) if named else _HERE.parents[1] / "shared" / "data"
    if root.is_dir():
        return root
    if named:
        raise InputError(f"MKSEARCH_DATA={named} is no folder", cure="correct or unset it")
    return None


def load_small() -> Collection:
    """Load the small collection of the repository, which was written for it.

    Raises:
        InputError: the files are not what the manifest says.
    """
    return _load("small", _HERE / "small", "corpus.jsonl", _manifest()["small"])


def load_collection(name: str, root: Path | None = None) -> Collection:
    """Load a third-party collection.

    Args:
        name: a name under ``collections`` in ``manifest.toml``, such as ``scifact``.
        root: folder with ``collections/NAME/``; None: `data_root`.

    Raises:
        ParameterError: the manifest has no such name.
        InputError: the data is absent, or not what the manifest says.
    """
    known = _manifest()["collections"]
    if name not in known:
        raise ParameterError(f"no collection {name}", cure=f"use one of {', '.join(known)}")
    root = data_root() if root is None else root
    if root is None:
        raise InputError("there is no third-party data", cure="name its folder in MKSEARCH_DATA")
    folder = root / "collections" / name
    for file, expected in known[name]["sha256"].items():
        found = _sha256_of(folder / file)
        if found != expected:
            message = f"{folder / file} has SHA-256 {found}, not {expected}"
            raise InputError(message, cure=_RESTORE)
    return _load(name, folder, "corpus.jsonl.gz", known[name])


def _manifest() -> dict[str, Any]:
    with (_HERE / "manifest.toml").open("rb") as file:
        return tomllib.load(file)


def _sha256_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as exc:
        raise InputError(f"{path} cannot be read ({exc.strerror})", cure=_RESTORE) from None


def _documents_of(path: Path) -> tuple[Document, ...]:
    reading = read_paths([path])
    documents = tuple(reading)
    if reading.skipped:
        first = reading.skipped[0]
        raise InputError(f"{path} line {first.line}: {first.reason}", cure=_RESTORE)
    return documents


def _load(name: str, folder: Path, corpus: str, expected: dict[str, Any]) -> Collection:
    collection = Collection(
        name=name,
        language=expected["language"],
        documents=_documents_of(folder / corpus),
        queries=tuple(Query(q.id, q.text) for q in _documents_of(folder / "queries.jsonl")),
        qrels=_judgments_of(folder / "qrels.tsv"),
    )
    counts = {
        "n_documents": len(collection.documents),
        "n_queries": len(collection.queries),
        "n_judgments": sum(map(len, collection.qrels.values())),
    }
    for count, have in counts.items():
        if have != expected[count]:
            raise InputError(f"{name} has {count} {have}, not {expected[count]}", cure=_RESTORE)
    _check_judgments(collection)
    return collection


def _judgments_of(path: Path) -> Mapping[str, Mapping[str, int]]:
    """Parse lines of query id, document id and grade, separated by tabs, below a heading."""
    qrels: dict[str, dict[str, int]] = {}
    lines = path.read_text("utf-8").rstrip("\n").split("\n")
    for number, line in enumerate(lines[1:], 2):
        try:
            query_id, document_id, grade = line.split("\t")
            qrels.setdefault(query_id, {})[document_id] = int(grade)
        except ValueError:
            message = f"{path} line {number} is not query id, document id and grade"
            raise InputError(message, cure=_RESTORE) from None
    return MappingProxyType({query: MappingProxyType(grades) for query, grades in qrels.items()})


def _check_judgments(collection: Collection) -> None:
    queries = {query.id for query in collection.queries}
    documents = set(collection.ids)
    for query_id, grades in collection.qrels.items():
        unknown = grades.keys() - documents if query_id in queries else {query_id}
        if unknown:
            message = f"{collection.name} judges the unknown id {min(unknown)}"
            raise InputError(message, cure=_RESTORE)
