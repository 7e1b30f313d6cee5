"""Counting a corpus numbers its terms and keeps every document's own counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mksearch.errors import ParameterError
from mksearch.text.analyzers import make_analyzer
from mksearch.text.vocabulary import Counts, Vocabulary, count_corpus

PLAIN = make_analyzer("plain-1")
TEXTS = st.lists(
    st.lists(st.sampled_from(["a", "b", "c", "é", "か", "zeta", "𝔘𝔘", "ﬀ"]), max_size=12).map(
        " ".join
    ),
    max_size=12,
)


def rows(counts: Counts) -> list[dict[str, int]]:
    terms = counts.vocabulary.terms
    return [
        {
            terms[counts.term_ids[place]]: int(counts.tfs[place])
            for place in range(counts.indptr[row], counts.indptr[row + 1])
        }
        for row in range(len(counts.lengths))
    ]


@given(texts=TEXTS)
@settings(max_examples=100, deadline=None)
def test_every_document_keeps_its_counts(texts: list[str]) -> None:
    counts = count_corpus(PLAIN, texts)

    assert rows(counts) == [Counter(PLAIN.tokens(text)) for text in texts]
    assert counts.lengths.tolist() == [len(PLAIN.tokens(text)) for text in texts]
    assert counts.vocabulary.total_length == counts.lengths.sum()
    assert counts.vocabulary.n_docs == len(texts)


@given(texts=TEXTS)
@settings(max_examples=100, deadline=None)
def test_ids_go_by_falling_document_frequency_then_bytes(texts: list[str]) -> None:
    vocabulary = count_corpus(PLAIN, texts).vocabulary
    frequencies = Counter(term for text in texts for term in set(PLAIN.tokens(text)))

    expected = sorted(frequencies, key=lambda term: (-frequencies[term], term.encode()))
    assert list(vocabulary.terms) == expected
    assert vocabulary.dfs.tolist() == [frequencies[term] for term in expected]
    assert vocabulary.ids == {term: number for number, term in enumerate(expected)}


def test_equal_frequencies_go_by_bytes_beyond_the_basic_plane() -> None:
    # As UTF-16 the last two would change places.
    vocabulary = count_corpus(PLAIN, ["𐐨 \ufa0e b a"]).vocabulary

    assert vocabulary.terms == ("a", "b", "\ufa0e", "𐐨")


@given(texts=TEXTS)
@settings(max_examples=50, deadline=None)
def test_term_ids_ascend_within_a_document(texts: list[str]) -> None:
    counts = count_corpus(PLAIN, texts)

    for begin, end in zip(counts.indptr[:-1], counts.indptr[1:], strict=True):
        assert (np.diff(counts.term_ids[begin:end]) > 0).all()


@given(texts=TEXTS, at_once=st.integers(1, 8))
@settings(max_examples=100, deadline=None)
def test_counts_do_not_depend_on_how_much_is_sorted_at_once(texts: list[str], at_once: int) -> None:
    whole = count_corpus(PLAIN, texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mksearch.text.vocabulary._POSTINGS_AT_ONCE", at_once)
        parts = count_corpus(PLAIN, texts)

    assert parts.vocabulary.terms == whole.vocabulary.terms
    for name in ("indptr", "term_ids", "tfs", "lengths"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


@given(texts=TEXTS, seed=st.randoms())
@settings(max_examples=50, deadline=None)
def test_the_vocabulary_does_not_depend_on_the_order_of_documents(
    texts: list[str], seed: object
) -> None:
    shuffled = list(texts)
    seed.shuffle(shuffled)  # type: ignore[attr-defined]

    one, other = count_corpus(PLAIN, texts).vocabulary, count_corpus(PLAIN, shuffled).vocabulary

    assert one.terms == other.terms
    np.testing.assert_array_equal(one.dfs, other.dfs)


@pytest.mark.parametrize("texts", [[], [""], ["", ""], ["the the"], ["?!", "\0"]])
def test_corpora_without_words_are_counted(texts: list[str]) -> None:
    counts = count_corpus(make_analyzer("english-1"), texts)

    assert counts.indptr.tolist() == [0] * (len(texts) + 1)
    assert counts.lengths.tolist() == [0] * len(texts)
    assert counts.vocabulary.terms == ()
    assert counts.vocabulary.dfs.shape == (0,)
    assert (counts.vocabulary.n_docs, counts.vocabulary.total_length) == (len(texts), 0)


def test_one_empty_document_among_others_keeps_its_row() -> None:
    counts = count_corpus(PLAIN, ["a"] * 50 + [""] + ["a"] * 49)

    assert np.diff(counts.indptr).tolist() == [1] * 50 + [0] + [1] * 49
    assert counts.vocabulary.n_docs == 100
    assert counts.vocabulary.dfs.tolist() == [99]


def test_texts_are_read_once_and_one_at_a_time() -> None:
    def texts() -> Iterator[str]:
        yield from ("one two", "two")

    assert rows(count_corpus(PLAIN, texts())) == [{"one": 1, "two": 1}, {"two": 1}]


def test_results_have_the_promised_types_and_cannot_be_written() -> None:
    counts = count_corpus(PLAIN, ["a b a", ""])

    types = {"indptr": np.int64, "term_ids": np.int32, "tfs": np.int32, "lengths": np.int64}
    for name, dtype in types.items():
        values = getattr(counts, name)
        assert values.dtype == dtype
        assert not values.flags.writeable
    assert counts.vocabulary.dfs.dtype == np.int64
    assert not counts.vocabulary.dfs.flags.writeable


@pytest.mark.parametrize(
    ("terms", "dfs", "n_docs", "total_length"),
    [
        (("a", "b"), [1], 1, 1),
        (("a", "a"), [1, 1], 1, 2),
        (("a",), [2], 1, 2),
        (("a",), [-1], 1, 2),
        (("a",), [1], -1, 2),
        (("a",), [1], 1, -2),
        (("a",), [0], 0, 5),
    ],
)
def test_a_contradictory_vocabulary_is_refused(
    terms: tuple[str, ...], dfs: list[int], n_docs: int, total_length: int
) -> None:
    with pytest.raises(ParameterError):
        Vocabulary(terms, np.array(dfs, np.int64), n_docs, total_length)
