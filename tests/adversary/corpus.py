"""Small corpora of invented words: every word is in many documents, and no two seeds look alike."""

from __future__ import annotations

from itertools import product

import numpy as np

from mksearch_client.reading import Document

#: 120 words of 8 letters that no stemmer or list of stop words touches.
WORDS = tuple(
    "".join(parts)
    for parts in product(
        ("kal", "lom", "mir", "nuv", "rax"),
        ("ter", "bon", "dil", "fas", "gor", "hep"),
        ("an", "ex", "iz", "om"),
    )
)
#: How many documents ``make_documents`` repeats under other ids: they share a row, and its record
#: takes several slots.
N_REPEATED = 12


def make_texts(n_texts: int, seed: int, words: tuple[str, ...] = WORDS) -> list[str]:
    """Return ``n_texts`` texts of 6 to 13 words, falling in frequency as words of a language do."""
    rng = np.random.default_rng(seed)
    shares = 1 / np.arange(3, 3 + len(words))
    shares /= shares.sum()
    return [
        " ".join(words[i] for i in rng.choice(len(words), rng.integers(6, 14), p=shares))
        for _ in range(n_texts)
    ]


def make_documents(n_documents: int, seed: int, words: tuple[str, ...] = WORDS) -> list[Document]:
    """Return documents of which the last ``N_REPEATED`` have the text of the first."""
    texts = make_texts(n_documents - N_REPEATED, seed, words)
    texts += texts[:1] * N_REPEATED
    return [
        Document(f"doc-{number:04}", f"Title of number {number:04}", text)
        for number, text in enumerate(texts)
    ]
