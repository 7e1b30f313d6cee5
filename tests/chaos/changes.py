"""Random changes of a collection, servers and clients crashing between them, step after step."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mksearch_client.reading import Document
from tests.support.local import LocalCollection, open_server, publish
from tests.support.plain import PlainEngine

__all__ = [
    "ChangeReport",
    "Model",
    "change_at_random",
    "corpus",
    "document",
    "queries",
    "text",
    "word",
]

#: Steps between two comparisons with a collection built afresh.
EVERY = 10
N_QUERIES = 20
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

    def change(
        self,
        come: list[Document],
        gone: set[str],
        merged: set[int] | None = None,
        *,
        servers: list[int] | None = None,
    ) -> None:
        """Publish a change, to some of the servers."""
        replaced = {document.id for document in come if document.id in self.documents}
        self.collection.change(come, gone | replaced, merged=merged, servers=servers)
        self.documents = {i: d for i, d in self.documents.items() if i not in gone}
        self.documents |= {document.id: document for document in come}

    def lose(self, come: list[Document], gone: set[str], merged: set[int] | None) -> None:
        """Prepare a change, announce it to one server, and die; that server dies as well."""
        replaced = {document.id for document in come if document.id in self.documents}
        before = self.collection.publication
        self.collection.change(come, gone | replaced, merged=merged, servers=[])
        lost = self.collection.publication
        self.collection.servers[1].propose(lost.signed.encode())
        # Else nobody else could publish for a minute.
        self.restart(1)
        lost.discard()
        self.collection.publication = before

    def restart(self, server: int) -> None:
        """End a server and start it again from its disk; it erases what nobody lists any more."""
        collection = self.collection
        collection.servers[server].close()
        owner_key = collection.keys.signing.public
        collection.servers[server] = open_server(collection.folder, server, owner_key)
        collection.servers[server].sweep()

    def catch_up(self) -> None:
        """Bring every server to the newest version."""
        for server in self.collection.servers:
            self.collection.send(server)

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


@dataclass
class ChangeReport:
    """What became of random changes.

    Attributes:
        n_steps: changes.
        n_compared: queries compared with a collection built afresh.
        violations: what was wrong, with the step.
    """

    n_steps: int = 0
    n_compared: int = 0
    violations: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report."""
        said = f"changes: {self.n_steps}, {self.n_compared} queries as if built afresh"
        return [*self.violations, said]


def _step(rng: random.Random, model: Model, number: int) -> set[str]:
    """Add, replace, delete, all of them, or merge; return the words that went with a document."""
    names = sorted(model.documents)
    kind = rng.choice(("add", "add", "replace", "delete", "mixed", "merge", "empty"))
    some = rng.sample(names, min(len(names), rng.randrange(1, 6))) if names else []
    come: list[Document] = []
    gone: set[str] = set()
    merged: set[int] | None = None
    if kind in ("add", "mixed") or not some:
        # Some are equal to others, and share their rows.
        twin = model.documents[rng.choice(names)].text if names else "ba ko mi"
        come = [document(f"s{number}-{at}", rng) for at in range(rng.randrange(1, 8))]
        come.append(Document(f"s{number}-twin", "", twin))
        come.append(Document(f"s{number}-own", "", f"own{number} {word(number)}"))
    if kind in ("replace", "mixed"):
        come += [document(name, rng) for name in some[:2]]
    if kind in ("delete", "mixed"):
        gone = set(some[2:] or some) - {d.id for d in come}
    if kind == "empty" and rng.random() < 0.2:
        gone = set(names)
    if kind == "merge":
        n_segments = len(model.collection.publication.signed.manifest.groups[0].segments)
        merged = set(rng.sample(range(n_segments), rng.randrange(1, n_segments + 1)))
    lost = {d.id for d in come if d.id in model.documents} | gone
    words = {f"own{name[1:-4]}" for name in lost if name.endswith("-own")}
    # Now and then a server is away, or the client dies before it has sent anything.
    fault = rng.random()
    if fault < 0.15:
        model.change(come, gone, merged, servers=rng.sample((1, 2, 3), 2))
    elif fault < 0.25:
        model.lose(come, gone, merged)
        model.change(come, gone, merged)
    else:
        model.change(come, gone, merged)
    if rng.random() < 0.2:
        model.restart(rng.randrange(1, 4))
    return words


def change_at_random(
    folder: Path,
    scoring: str,
    n_steps: int,
    seed: int,
    tell: Callable[[str], None] = lambda _line: None,
) -> ChangeReport:
    """Change a collection at random; compare it with one built afresh every few steps."""
    rng = random.Random(f"changes {scoring} {seed}")
    model = Model(corpus(60, 3), folder, scoring)
    report = ChangeReport()
    gone_words: set[str] = set()
    for number in range(1, n_steps + 1):
        gone_words |= _step(rng, model, number)
        report.n_steps += 1
        if number % EVERY:
            continue
        model.catch_up()
        asked = queries(rng, model.documents, N_QUERIES)
        try:
            model.require_as_built_afresh(asked)
            # A twin may have had the words, and still be there.
            there = {part for d in model.documents.values() for part in d.text.split()}
            for query in sorted(gone_words - there)[-5:]:
                assert not model.collection.searcher().search(query).hits, query
        except AssertionError as error:
            report.violations.append(f"step {number}, {scoring}, seed {seed}: {error}")
        report.n_compared += len(asked)
        segments = model.collection.publication.signed.manifest.groups[0].segments
        held = f"{len(model.documents)} documents, {len(segments)} segments"
        tell(f"  {scoring}: step {number}, {held}")
    return report
