"""Count a corpus: who holds which term how often, and the vocabulary that numbers the terms."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mksearch.errors import ParameterError
from mksearch.text.analyzers import Analyzer
from mksearch.text.weights import Statistics

__all__ = ["Counts", "Vocabulary", "count_corpus"]

#: Postings that are renumbered and sorted at once: some 100 MB of working memory.
_POSTINGS_AT_ONCE: Final = 1 << 22


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


def count_corpus(analyzer: Analyzer, texts: Iterable[str]) -> Counts:
    """Count the terms of a corpus, read once and one text at a time.

    Memory beyond the result (8 bytes a posting and the vocabulary) is bounded.  The order of the
    texts changes the order of the rows alone, never the vocabulary.

    Args:
        analyzer: cuts the texts.
        texts: one string a document; empty ones, and none at all, are legal.

    Returns:
        The counts, documents in the order of the texts.
    """
    numbering = _Numbering()
    number_of = numbering.__getitem__
    numbers, tfs = array("i"), array("i")
    lengths, ends = array("q"), array("q", [0])
    for text in texts:
        tokens = analyzer.tokens(text)
        counter = Counter(map(number_of, tokens))
        numbers.extend(counter.keys())
        tfs.extend(counter.values())
        lengths.append(len(tokens))
        ends.append(len(numbers))

    indptr = np.array(ends, dtype=np.int64)
    tf_array = np.array(tfs, dtype=np.int32)
    first_seen = np.array(numbers, dtype=np.int32)
    del numbers, tfs
    terms, dfs, ids = _renumber(list(numbering), first_seen)
    term_ids = _sort_rows(indptr, first_seen, tf_array, ids)
    length_array = np.array(lengths, dtype=np.int64)
    vocabulary = Vocabulary(terms, dfs, len(length_array), int(length_array.sum()))
    for result in (indptr, term_ids, tf_array, length_array):
        result.flags.writeable = False
    return Counts(indptr, term_ids, tf_array, length_array, vocabulary)


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
        order = np.argsort(rows * len(ids) + part_ids)
        numbers[part] = part_ids[order]
        tfs[part] = tfs[part][order]
        row = end_row
    return numbers
