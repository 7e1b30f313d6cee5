"""Trapdoors: what the keywords of a query become (docs/protocol.md, step 8.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mksearch.index.dictionary import RATIO_ONE
from mksearch.query.group import GroupView
from mksearch.text.analyzers import QueryWords
from mksearch.text.quantise import quantise_query, split_query

__all__ = ["Question", "Trapdoor", "make_trapdoor", "parse_question"]


@dataclass(frozen=True, slots=True, repr=False)
class Question:
    """A query against one group's dictionary.

    Attributes:
        words: how the analyzer cut it.
        unknown: its terms that no document has.
        weights: fixed-point query weight (2**-30) of each known term id.
    """

    words: QueryWords
    unknown: tuple[str, ...]
    weights: Mapping[int, int]

    def __repr__(self) -> str:
        return f"Question({len(self.weights)} known terms, secret=<redacted>)"


@dataclass(frozen=True, slots=True, eq=False)
class Trapdoor:
    """The vectors of a question at one level; secret.

    Attributes:
        vectors: uint16 (n_vectors, columns), n_vectors 1, 2 or 4.
        units: for each vector, query weight of one unit of its entries: u.
    """

    vectors: NDArray[np.uint16]
    units: tuple[int, ...]

    def __repr__(self) -> str:
        return f"Trapdoor(shape={self.vectors.shape}, secret=<redacted>)"

    def __reduce__(self) -> str:
        raise TypeError("a trapdoor holds a query and is never pickled")


def parse_question(group: GroupView, query: str) -> Question:
    """Cut and weigh ``query`` as the group's documents were.

    Args:
        group: the group asked.
        query: what the user typed; secret.
    """
    words = group.analyzer.explain(query)
    ids = {term: group.dictionary.id_of(term) for term in words.terms}
    counts = Counter(number for term in words.terms if (number := ids[term]) is not None)
    unknown = tuple(term for term, number in ids.items() if number is None)
    return Question(words, unknown, group.query_weights(counts))


def make_trapdoor(group: GroupView, question: Question, level: int = 0) -> Trapdoor:
    """Turn a question into the vectors of one level.

    A question without a known term becomes a zero vector, whose shares look like all others.

    Raises:
        QueryError: more terms than four vectors carry.
    """
    # Older segments were weighed with other idfs: the query makes up for it.
    weights = {
        term_id: -(-weight * group.dictionary.ratio(term_id) // RATIO_ONE)
        for term_id, weight in question.weights.items()
    }
    parts = split_query(weights)
    width = group.columns.levels[level].width
    vectors = np.zeros((len(parts), width), np.uint16)
    units = []
    for vector, part in zip(vectors, parts, strict=True):
        quantised, unit = quantise_query(part)
        for term_id, weight in quantised.items():
            term = group.dictionary.terms[term_id]
            for column in group.columns.columns_of(level, term_id, term):
                # Within p: the quantised weights of one vector sum to at most 515.
                vector[column] += weight
        units.append(unit)
    return Trapdoor(vectors, tuple(units))
