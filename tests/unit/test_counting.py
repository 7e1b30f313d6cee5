"""Other processes count a corpus exactly as this one does, and their end loses nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mksearch.text.analyzers import make_analyzer
from mksearch.text.vocabulary import CorpusCounter, Counts, TextCounter, count_corpus
from mksearch_client import counting
from mksearch_client.counting import count_documents

ENGLISH = make_analyzer("english-1")
N_TEXTS = 3_000


@pytest.fixture(scope="module")
def texts() -> list[str]:
    draw = random.Random(5)
    words = [f"word{n}" for n in range(4_000)] + ["running", "the", "日本語", "naïve", "\ud800odd"]
    made = [" ".join(draw.choices(words, k=draw.randrange(30))) for _ in range(N_TEXTS)]
    return [*made, "", "\ud800", "a\x00b", "last words"]


@pytest.fixture(autouse=True)
def _workers_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_ALONE_MAX", 512)


def require_equal(one: Counts, other: Counts) -> None:
    assert one.vocabulary.terms == other.vocabulary.terms
    assert one.vocabulary.total_length == other.vocabulary.total_length
    for name in ("indptr", "term_ids", "tfs", "lengths"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(one.vocabulary.dfs, other.vocabulary.dfs)


@pytest.mark.parametrize("n_workers", [0, 1, 3])
def test_any_number_of_workers_gives_the_counts_of_one_process(
    texts: list[str], n_workers: int
) -> None:
    found = count_documents(ENGLISH, iter(texts), n_workers=n_workers)

    require_equal(found, count_corpus(ENGLISH, texts))
    assert len(found.lengths) == len(texts)


def test_a_worker_that_dies_loses_no_text(
    texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[counting._Worker] = []
    begin = counting._Worker.start

    def start(worker: counting._Worker, batch: list[str]) -> object:
        started.append(worker)
        if len(started) == 3:
            worker._process.kill()
        return begin(worker, batch)

    monkeypatch.setattr(counting._Worker, "start", start)
    found = count_documents(ENGLISH, iter(texts), n_workers=2)

    require_equal(found, count_corpus(ENGLISH, texts))
    assert len({worker.number for worker in started}) == 2


def test_workers_that_cannot_start_lose_no_text(
    texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mksearch_client.counting.sys.executable", "/bin/false")

    require_equal(count_documents(ENGLISH, iter(texts), n_workers=2), count_corpus(ENGLISH, texts))


def test_an_error_while_reading_ends_the_workers(
    texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[counting._Worker] = []
    build = counting._Worker.__init__

    def init(worker: counting._Worker, *arguments: object) -> None:
        build(worker, *arguments)  # type: ignore[arg-type]
        made.append(worker)

    def torn() -> Iterator[str]:
        yield from texts[:2_000]
        raise OSError("the disk is gone")

    monkeypatch.setattr(counting._Worker, "__init__", init)
    with pytest.raises(OSError, match="the disk is gone"):
        count_documents(ENGLISH, torn(), n_workers=2)
    assert len(made) == 2
    assert all(worker._process.poll() is not None for worker in made)


def test_modules_in_the_current_folder_are_not_run_by_workers(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that is published may hold anything, under any name."""
    for name in ("numpy.py", "typing.py", "mksearch_client.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)

    found = count_documents(ENGLISH, iter(texts), n_workers=2)

    require_equal(found, count_corpus(ENGLISH, texts))
    assert not (tmp_path / "ran").exists()


def test_counters_of_a_corpus_may_know_different_words() -> None:
    left, right, corpus = TextCounter(ENGLISH), TextCounter(ENGLISH), CorpusCounter()
    corpus.add(1, left.count(["apple pear", "pear"]))
    corpus.add(2, right.count(["pear plum plum"]))
    corpus.add(1, left.count(["plum fig"]))

    require_equal(
        corpus.finish(), count_corpus(ENGLISH, ["apple pear", "pear", "pear plum plum", "plum fig"])
    )
