"""Count a corpus: who holds which term how often, and the vocabulary that numbers the terms."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mksearch.errors import ParameterError
from mksearch.text.analyzers import Analyzer
from mksearch.text.weights import Statistics

__all__ = [
    "TEXTS_AT_ONCE",
    "CorpusCounter",
    "CountedTexts",
    "Counts",
    "TextCounter",
    "Vocabulary",
    "count_corpus",
    "renumbered",
]

#: Postings that are renumbered and sorted at once: some 100 MB of working memory.
_POSTINGS_AT_ONCE: Final = 1 << 22
#: Texts counted in one go.
TEXTS_AT_ONCE: Final = 512


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The terms of a corpus, numbered, with their statistics.

    ``count_corpus`` numbers terms by falling document frequency, equal ones by their UTF-8 bytes,
    so frequent terms have small ids.

    Attributes:
        terms: the term of each id, all different.
        dfs: int64 ``(n_terms,)``, documents that hold the term, 0..n_docs, not writeable.
        n_docs: documents, empty ones included, 0 or more.
        total_length: tokens of all documents together, 0 or more.
        ids: the id of each term.
    """

    terms: tuple[str, ...]
    dfs: NDArray[np.int64]
    n_docs: int
    total_length: int
    ids: Mapping[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the sizes and number the terms.

        Raises:
            ParameterError: terms and frequencies differ in number, terms repeat, or a number is
                outside its range.
        """
        checked = Statistics(self.n_docs, self.total_length, self.dfs)
        ids = {term: number for number, term in enumerate(self.terms)}
        if not len(ids) == len(self.terms) == len(checked.dfs):
            raise ParameterError(
                f"{len(self.terms)} terms, {len(ids)} of them different, "
                f"but {len(checked.dfs)} document frequencies"
            )
        object.__setattr__(self, "dfs", checked.dfs)
        object.__setattr__(self, "ids", MappingProxyType(ids))

    @property
    def statistics(self) -> Statistics:
        """What weighting needs of this vocabulary."""
        return Statistics(self.n_docs, self.total_length, self.dfs)


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """Term frequencies of a corpus by document, compressed sparse rows; no array is writeable.

    Attributes:
        indptr: int64 ``(n_docs + 1,)``, document ``d`` has postings ``indptr[d]:indptr[d + 1]``.
        term_ids: int32 ``(n_postings,)``, ids of ``vocabulary``, ascending within a document.
        tfs: int32 ``(n_postings,)``, occurrences of the term in the document, 1 or more.
        lengths: int64 ``(n_docs,)``, tokens of the document, 0 or more.
        vocabulary: the terms and their statistics.
    """

    indptr: NDArray[np.int64]
    term_ids: NDArray[np.int32]
    tfs: NDArray[np.int32]
    lengths: NDArray[np.int64]
    vocabulary: Vocabulary


class _Numbering(dict[str, int]):
    """Term to number, a new one for every new term."""

    def __missing__(self, term: str) -> int:
        number = self[term] = len(self)
        return number


@dataclass(frozen=True, slots=True, eq=False)
class CountedTexts:
    """Some texts, counted with the numbers of one `TextCounter`.

    Attributes:
        terms: terms that this counter met here first, in the order of their numbers.
        numbers: int32 ``(n_postings,)``, numbers of terms, text after text.
        tfs: int32 ``(n_postings,)``, 1 or more.
        sizes: int32 ``(n_texts,)``, postings of each text.
        lengths: int64 ``(n_texts,)``, tokens of each text.
    """

    terms: list[str]
    numbers: NDArray[np.int32]
    tfs: NDArray[np.int32]
    sizes: NDArray[np.int32]
    lengths: NDArray[np.int64]


class TextCounter:
    """Counts texts; several may share a corpus, each with numbers of its own for the terms."""

    def __init__(self, analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        self._numbering = _Numbering()
        self._n_told = 0

    def count(self, texts: Iterable[str]) -> CountedTexts:
        """Count some texts."""
        number_of = self._numbering.__getitem__
        numbers, tfs, sizes = array("i"), array("i"), array("i")
        lengths = array("q")
        for text in texts:
            tokens = self._analyzer.tokens(text)
            counter = Counter(map(number_of, tokens))
            numbers.extend(counter.keys())
            tfs.extend(counter.values())
            sizes.append(len(counter))
            lengths.append(len(tokens))
        terms = list(islice(self._numbering, self._n_told, None))
        self._n_told += len(terms)
        return CountedTexts(
            terms,
            np.array(numbers, np.int32),
            np.array(tfs, np.int32),
            np.array(sizes, np.int32),
            np.array(lengths, np.int64),
        )


class CorpusCounter:
    """Puts together what counters found, in the order of the texts."""

    def __init__(self) -> None:
        self._numbering = _Numbering()
        self._known: dict[int, NDArray[np.int32]] = {}
        self._parts: list[CountedTexts] = []

    def add(self, counter: int, part: CountedTexts) -> None:
        """Take the next texts.

        Args:
            counter: which counter counted them, any number of its own.
            part: all parts of one counter come in the order in which it counted them.
        """
        new = np.array([self._numbering[term] for term in part.terms], np.int32)
        known = np.concatenate([self._known.get(counter, np.zeros(0, np.int32)), new])
        self._known[counter] = known
        numbers = known[part.numbers]
        self._parts.append(CountedTexts([], numbers, part.tfs, part.sizes, part.lengths))

    def finish(self) -> Counts:
        """Number the terms for good and return the counts."""
        first_seen, tfs, sizes, lengths = (
            _joined([getattr(part, name) for part in self._parts], dtype)
            for name, dtype in (
                ("numbers", np.int32),
                ("tfs", np.int32),
                ("sizes", np.int64),
                ("lengths", np.int64),
            )
        )
        self._parts.clear()
        indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        terms, dfs, ids = _renumber(list(self._numbering), first_seen)
        term_ids = _sort_rows(indptr, first_seen, tfs, ids)
        vocabulary = Vocabulary(terms, dfs, len(lengths), int(lengths.sum()))
        for result in (indptr, term_ids, tfs, lengths):
            result.flags.writeable = False
        return Counts(indptr, term_ids, tfs, lengths, vocabulary)


def _joined(parts: list[NDArray[Any]], dtype: type[np.integer]) -> NDArray[Any]:
    joined: NDArray[Any] = np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype)
    return joined


def count_corpus(analyzer: Analyzer, texts: Iterable[str]) -> Counts:
    """Count the terms of a corpus, read once.

    Memory beyond the result (8 bytes a posting and the vocabulary) is bounded, some hundred texts
    included.  The order of the texts changes the order of the rows alone, never the vocabulary.

    Args:
        analyzer: cuts the texts.
        texts: one string a document; empty ones, and none at all, are legal.

    Returns:
        The counts, documents in the order of the texts.
    """
    counter, corpus = TextCounter(analyzer), CorpusCounter()
    waiting = iter(texts)
    while batch := list(islice(waiting, TEXTS_AT_ONCE)):
        corpus.add(0, counter.count(batch))
    return corpus.finish()


def renumbered(counts: Counts, ids: Sequence[int]) -> Counts:
    """Return counts whose terms have other ids, ascending in each document; vocabulary as it was.

    Args:
        counts: of some documents.
        ids: the new id of each of their terms, all different.
    """
    tfs = counts.tfs.copy()
    numbers = counts.term_ids.copy()
    term_ids = _sort_rows(counts.indptr, numbers, tfs, np.array(ids, np.int32))
    return Counts(counts.indptr, term_ids, tfs, counts.lengths, counts.vocabulary)


def _renumber(
    terms: list[str], numbers: NDArray[np.int32]
) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int32]]:
    """Give the terms and frequencies in the order of their ids, and the id of each number."""
    frequencies = np.bincount(numbers, minlength=len(terms)).astype(np.int64)
    falling = (-frequencies).tolist()
    # Strings compare by code point, which is the order of their UTF-8 bytes.
    order = sorted(range(len(terms)), key=lambda number: (falling[number], terms[number]))
    ids = np.empty(len(terms), np.int32)
    ids[order] = np.arange(len(terms), dtype=np.int32)
    return tuple(terms[number] for number in order), frequencies[order], ids


def _sort_rows(
    indptr: NDArray[np.int64],
    numbers: NDArray[np.int32],
    tfs: NDArray[np.int32],
    ids: NDArray[np.int32],
) -> NDArray[np.int32]:
    """Replace numbers by ids, ascending within each row, in place, and ``tfs`` with them."""
    n_rows, row = len(indptr) - 1, 0
    while row < n_rows:
        start = indptr[row]
        end_row = int(np.searchsorted(indptr, start + _POSTINGS_AT_ONCE, side="right")) - 1
        end_row = min(max(end_row, row + 1), n_rows)
        part = slice(start, indptr[end_row])
        rows = np.repeat(np.arange(end_row - row), np.diff(indptr[row : end_row + 1]))
        part_ids = ids[numbers[part]]
        order = np.argsort(rows * (int(ids.max(initial=0)) + 1) + part_ids)
        numbers[part] = part_ids[order]
        tfs[part] = tfs[part][order]
        row = end_row
    return numbers
