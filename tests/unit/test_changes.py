"""A group of several segments answers as one built afresh from the documents that are left."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from mksearch.errors import InputError
from mksearch_client.reading import Document
from tests.support.local import LocalCollection, publish
from tests.support.plain import PlainEngine

SCORINGS = ("tfidf", "bm25")
_SYLLABLES = ("ba", "ko", "mi", "ru", "tev", "zan", "wul", "por", "dex", "fyn")


def word(number: int) -> str:
    """Return a word; small numbers are frequent ones."""
    parts = []
    for _ in range(3):
        number, at = divmod(number, len(_SYLLABLES))
        parts.append(_SYLLABLES[at])
    return "".join(parts)


def text(rng: random.Random, n_words: int | None = None) -> str:
    """Return a text whose words are frequent and rare ones, as in real texts."""
    n_words = n_words or rng.randrange(1, 30)
    return " ".join(word(int(900 * rng.random() ** 3)) for _ in range(n_words))


def document(name: str, rng: random.Random) -> Document:
    return Document(name, f"title {name}", text(rng))


def corpus(n_docs: int, seed: int = 1) -> list[Document]:
    rng = random.Random(seed)
    return [document(f"doc-{number:04}", rng) for number in range(n_docs)]


class Model:
    """A collection, and the documents that it should have."""

    def __init__(self, documents: list[Document], folder: Path, scoring: str) -> None:
        self.scoring = scoring
        self.documents = {document.id: document for document in documents}
        self.collection: LocalCollection = publish(documents, folder, scoring=scoring)

    def change(self, come: list[Document], gone: set[str], merged: set[int] | None = None) -> None:
        replaced = {document.id for document in come if document.id in self.documents}
        self.collection.change(come, gone | replaced, merged=merged)
        self.documents = {i: d for i, d in self.documents.items() if i not in gone}
        self.documents |= {document.id: document for document in come}

    def require_as_built_afresh(self, queries: list[str], k: int = 10) -> None:
        plain = PlainEngine(self.documents, self.scoring)
        searcher = self.collection.searcher()
        for query in queries:
            result = searcher.search(query, k)
            found = [(hit.id, hit.score) for hit in result.hits]
            assert result.exact
            assert result.n_docs == len(self.documents)
            assert found == plain.search(query, k), query


def queries(rng: random.Random, documents: Mapping[str, Document], n: int = 20) -> list[str]:
    """Return queries of a few words, half of them words of documents that are there."""
    found = []
    for _ in range(n):
        pool = text(rng, 12)
        if documents and rng.random() < 0.5:
            pool = documents[rng.choice(sorted(documents))].text
        found.append(" ".join(rng.sample(pool.split(), min(3, len(pool.split())))))
    return found


@pytest.mark.parametrize("scoring", SCORINGS)
def test_documents_that_come_go_and_change_are_ranked_as_if_built_afresh(
    tmp_path: Path, scoring: str
) -> None:
    rng = random.Random(7)
    model = Model(corpus(200), tmp_path, scoring)
    model.change([document(f"new-{n}", rng) for n in range(20)], set())
    assert len(model.collection.publication.signed.manifest.groups[0].segments) == 2
    model.require_as_built_afresh(queries(rng, model.documents))
    model.change([document("doc-0003", rng), document("new-3", rng)], {"doc-0007", "new-1"})
    assert len(model.collection.publication.signed.manifest.groups[0].segments) == 3
    model.require_as_built_afresh(queries(rng, model.documents))
    model.change([], {"doc-0100"}, merged={0, 1, 2})
    assert len(model.collection.publication.signed.manifest.groups[0].segments) == 1
    model.require_as_built_afresh(queries(rng, model.documents))


def random_step(rng: random.Random, model: Model, number: int) -> None:
    """Add, replace, delete, all of them, or merge."""
    names = sorted(model.documents)
    kind = rng.choice(("add", "add", "replace", "delete", "mixed", "merge"))
    some = rng.sample(names, min(len(names), rng.randrange(1, 6))) if names else []
    come: list[Document] = []
    gone: set[str] = set()
    merged: set[int] | None = None
    if kind in ("add", "mixed") or not some:
        # Some are equal to others, and share their rows.
        twin = model.documents[rng.choice(names)].text if names else "ba ko mi"
        come = [document(f"s{number}-{at}", rng) for at in range(rng.randrange(1, 8))]
        come.append(Document(f"s{number}-twin", "", twin))
    if kind in ("replace", "mixed"):
        come += [document(name, rng) for name in some[:2]]
    if kind in ("delete", "mixed"):
        gone = set(some[2:] or some) - {d.id for d in come}
    if kind == "merge":
        n_segments = len(model.collection.publication.signed.manifest.groups[0].segments)
        merged = set(rng.sample(range(n_segments), rng.randrange(1, n_segments + 1)))
    model.change(come, gone, merged)


@pytest.mark.parametrize("scoring", SCORINGS)
def test_a_collection_changed_at_random_answers_like_one_built_afresh(
    tmp_path: Path, scoring: str
) -> None:
    rng = random.Random(f"random changes {scoring}")
    model = Model(corpus(60, 3), tmp_path, scoring)
    for number in range(1, 31):
        random_step(rng, model, number)
        if number % 10 == 0:
            model.require_as_built_afresh(queries(rng, model.documents))


@pytest.mark.parametrize("n_docs", [1, 2])
def test_small_collections_are_emptied_and_filled_again(tmp_path: Path, n_docs: int) -> None:
    rng = random.Random(n_docs)
    model = Model(corpus(n_docs), tmp_path, "bm25")
    words = [word(number) for number in range(5)]
    model.change([], set(model.documents))
    model.require_as_built_afresh(words)
    # Erased as well: nothing of the documents is left on a server.
    before = set(model.collection.publication.signed.manifest.groups[0].segments)
    model.change([], set(), merged={0})
    assert not before & set(model.collection.publication.signed.manifest.groups[0].segments)
    model.require_as_built_afresh(words)
    model.change([document("again", rng), document("again too", rng)], set())
    model.require_as_built_afresh(queries(rng, model.documents))
    with pytest.raises(InputError, match="no document 'doc-0000'"):
        model.collection.searcher().open("doc-0000")
    assert model.collection.searcher().open("again").id == "again"
