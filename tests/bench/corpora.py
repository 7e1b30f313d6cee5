"""The texts that are measured on, as files of JSON lines; synthetic ones where data is absent.

``mix99k`` and ``all365k`` are mixtures of third-party collections (`datasets.loaders.data_root`).
What was measured on synthetic texts says so in every figure: it is no evidence for the limits.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from datasets.loaders import data_root, load_collection
from mksearch_client.reading import Document, read_paths

__all__ = ["Corpora", "Corpus"]

_SCIFACT, _DICTIONARIES, _DESCRIPTIONS, _MANUALS = _FILES = (
    "collections/scifact/corpus.jsonl.gz",
    "large/en-dictionaries.jsonl.gz",
    "large/en-debian-descriptions.jsonl.gz",
    "large/en-manuals.jsonl.gz",
)
N_ALL = 364_651
N_MIX = 99_253
_N_MIX_DICTIONARY = 29_507
_N_DESCRIPTIONS = 64_563

#: Three keywords each, as people type them, about dictionaries, packages, manuals and biology.
THREE_WORDS = (
    "kernel module firmware", "python bindings library", "command line progress",
    "large tropical tree", "ancient greek goddess", "network packet capture",
    "musical wind instrument", "gene expression cells", "file system encryption",
    "small freshwater fish", "database client server", "medieval latin word",
    "image format converter", "immune response infection", "regular expression search",
    "legal property right", "compiler optimization flags", "french river city",
    "terminal text editor", "blood pressure treatment",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents to publish and queries to ask of them.

    Attributes:
        name: what the report calls it.
        paths: files of JSON lines.
        n_docs: documents in them.
        short: queries of three keywords.
        long: queries of about ten terms.
        synthetic: the texts were made up here.
    """

    name: str
    paths: tuple[Path, ...]
    n_docs: int
    short: tuple[str, ...]
    long: tuple[str, ...] = ()
    synthetic: bool = False

    def documents(self) -> Iterator[Document]:
        """Read the documents."""
        return iter(read_paths(list(self.paths)))

    @property
    def note(self) -> str:
        """What every figure measured on it must say."""
        return "synthetic texts" if self.synthetic else ""


class Corpora:
    """Makes the corpora of one run below a temporary folder."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._root = data_root()
        if self._root is not None and not all((self._root / name).is_file() for name in _FILES):
            self._root = None
        if self._root is None:
            say("third-party data is absent: SYNTHETIC texts instead, limits are not judged")

    def mix99k(self, n_docs: int = N_MIX) -> Corpus:
        """Make scifact, all package descriptions and 29,507 dictionary entries."""
        return self._made("mix99k", n_docs, N_MIX, self._mixture, with_claims=True)

    def all365k(self, n_docs: int = N_ALL) -> Corpus:
        """Make scifact and all English texts, or documents evenly spaced among them."""
        return self._made("all365k", n_docs, N_ALL, self._everything)

    def descriptions(self, n_docs: int = _N_DESCRIPTIONS) -> Corpus:
        """Make the package descriptions."""
        return self._made("en-debian-descriptions", n_docs, _N_DESCRIPTIONS, self._descriptions)

    def long_texts(self, n_docs: int = 20_000) -> Corpus:
        """Make scifact and package descriptions: longer texts, so more columns a row."""
        return self._made("scifact and descriptions", n_docs, n_docs, self._mixture)

    def _made(
        self,
        name: str,
        n_docs: int,
        n_whole: int,
        documents: Callable[[], Iterable[Document]],
        *,
        with_claims: bool = False,
    ) -> Corpus:
        path = self._folder / f"{name.replace(' ', '-')}-{n_docs}.jsonl"
        if self._root is None:
            self._write(path, _synthetic(n_docs))
            return Corpus(name, (path,), n_docs, *_synthetic_queries(), synthetic=True)
        written = self._write(path, _spaced(documents(), n_docs, n_whole))
        claims: tuple[str, ...] = ()
        if with_claims:
            judged = load_collection("scifact", self._root)
            claims = tuple(query.text for query in judged.queries if query.id in judged.qrels)
        return Corpus(name, (path,), written, THREE_WORDS, claims)

    def _write(self, path: Path, documents: Iterable[Document]) -> int:
        """Write documents as JSON lines; return their number."""
        if path.exists():
            with path.open(encoding="utf-8") as file:
                return sum(1 for _ in file)
        self._say(f"writing {path.name}")
        partial = path.with_suffix(".partial")
        written = 0
        with partial.open("w", encoding="utf-8") as file:
            for document in documents:
                fields = {"_id": document.id, "title": document.title, "text": document.text}
                file.write(json.dumps(fields) + "\n")
                written += 1
        partial.rename(path)
        return written

    def _read(self, *names: str) -> Iterator[Document]:
        assert self._root is not None
        return iter(read_paths([self._root / name for name in names]))

    def _mixture(self) -> Iterator[Document]:
        entries = islice(self._read(_DICTIONARIES), _N_MIX_DICTIONARY)
        return chain(self._read(_SCIFACT), self._descriptions(), entries)

    def _descriptions(self) -> Iterator[Document]:
        return self._read(_DESCRIPTIONS)

    def _everything(self) -> Iterator[Document]:
        return self._read(_SCIFACT, _DICTIONARIES, _DESCRIPTIONS, _MANUALS)


def _spaced(documents: Iterable[Document], n_docs: int, n_whole: int) -> Iterator[Document]:
    """Yield ``n_docs`` of ``n_whole`` documents, evenly spaced: every kind in its share."""
    taken = 0
    for number, document in enumerate(documents):
        if taken < n_docs and number >= taken * n_whole // n_docs:
            taken += 1
            yield document


def _words() -> list[str]:
    return [f"word{number}" for number in range(30_000)]


def _synthetic(n_docs: int) -> Iterator[Document]:
    """Yield texts of 40 words whose frequencies fall as in natural language."""
    words = _words()
    bounds, total = [], 0.0
    for number in range(len(words)):
        total += 1 / (number + 1)
        bounds.append(total)
    source = random.Random(0)
    for number in range(n_docs):
        yield Document(f"d{number}", "", " ".join(source.choices(words, cum_weights=bounds, k=40)))


def _synthetic_queries() -> tuple[tuple[str, ...], tuple[str, ...]]:
    source = random.Random(1)
    words = _words()[:5000]
    short = tuple(" ".join(source.sample(words, 3)) for _ in range(len(THREE_WORDS)))
    return short, tuple(" ".join(source.sample(words, 10)) for _ in range(50))
