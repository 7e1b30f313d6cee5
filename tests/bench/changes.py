"""What changing a collection costs: adding to it, asking it in segments, merging these."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from unittest import mock

from mksearch_client.member import Searcher
from mksearch_client.owner import Owner
from mksearch_client.reading import Document
from tests.bench.bench import Bench
from tests.bench.corpora import Corpus
from tests.bench.figures import Figure, PartResult, median_of
from tests.bench.search import timed_searches
from tests.support.processes import claim, serving

__all__ = ["measure"]

#: Share of the documents that is added to the others.
ADDED = 0.01
#: Of a whole publication, that adding so many may cost.
ADDED_AT_MOST = 0.03
N_SEGMENTS = 10
SEGMENTS_AT_MOST = 1.3
#: Of the speed of publishing, that merging must reach.
COMPACT_AT_LEAST = 0.5
N_SEARCHES = 20
_TIMEOUT_S = 120.0
_WARM = 200


def _line(document: Document) -> str:
    fields = {"_id": document.id, "title": document.title, "text": document.text}
    return json.dumps(fields, ensure_ascii=False) + "\n"


def _deal(documents: Iterable[Document], paths: Sequence[Path]) -> None:
    """Write documents into files by turns: a mixture has its kinds one after another.

    Of each round the first file gets two, if there are several: were it no larger than the second,
    publishing that would make one segment of both.
    """
    turns = [0, *range(len(paths))] if len(paths) > 1 else [0]
    with ExitStack() as files:
        out = [files.enter_context(path.open("w", encoding="utf-8")) for path in paths]
        for turn, document in zip(cycle(turns), documents, strict=False):
            out[turn].write(_line(document))


@contextmanager
def _owner(folder: Path) -> Iterator[Owner]:
    folder.mkdir()
    with (
        serving(folder) as fleet,
        Owner(claim(fleet, folder / "profile"), timeout_s=_TIMEOUT_S) as owner,
    ):
        yield owner


def _search_ms(bench: Bench, owner: Owner, queries: Iterable[str]) -> float:
    with Searcher(owner.profile.folder, timeout_s=60.0) as searcher:
        times, _ = timed_searches(searcher, tuple(queries), bench.times(N_SEARCHES))
    return median_of(times)


def _seconds(started: float) -> float:
    return time.perf_counter() - started


def measure(bench: Bench) -> PartResult:
    """Publish mix99k, add 1 % to it; publish it in ten segments, ask these, merge them."""
    corpus = bench.corpora.mix99k(bench.size(99_253))
    folder = bench.folder / "changes"
    folder.mkdir()
    warm, base, more = (folder / f"{name}.jsonl" for name in ("warm", "base", "more"))
    _deal((Document(f"w{n}", "", f"warm {n}") for n in range(_WARM)), [warm])
    every = round(1 / ADDED)
    _deal((d for n, d in enumerate(corpus.documents()) if n % every), [base])
    _deal((d for n, d in enumerate(corpus.documents()) if not n % every), [more])
    result = PartResult()
    with _owner(folder / "adding") as owner:
        owner.publish([warm])
        started = time.perf_counter()
        full = owner.publish([base], delete_missing=True)
        full_s = _seconds(started)
        started = time.perf_counter()
        added = owner.publish([more])
        added_s = _seconds(started)
    row = {"documents": corpus.n_docs, "added": added.added, "full_s": full_s, "added_s": added_s}
    sizes = {"full_mb": full.new_bytes / 1e6, "added_mb": added.new_bytes / 1e6}
    segments_ms, compact_s, one_ms = _in_segments(bench, corpus, folder)
    result.tables["changes"] = [
        {**row, **sizes, "segments_ms": segments_ms, "one_ms": one_ms, "compact_s": compact_s}
    ]
    note = corpus.note
    result.figures = [
        Figure(
            "changes.add_seconds",
            f"adding {added.added:,} documents to {full.added:,}: time, of a whole publication",
            added_s / full_s,
            "",
            "at most",
            limit=ADDED_AT_MOST,
            note=note,
        ),
        Figure(
            "changes.add_bytes",
            f"adding {added.added:,} documents to {full.added:,}: bytes, of a whole publication",
            added.new_bytes / full.new_bytes,
            "",
            "at most",
            limit=ADDED_AT_MOST,
            note=note,
        ),
        Figure(
            "changes.segments",
            f"search over {N_SEGMENTS} segments of about one size, of one over one segment",
            segments_ms / one_ms,
            "",
            "at most",
            limit=SEGMENTS_AT_MOST,
            note=note,
        ),
        Figure(
            "changes.compact",
            f"merging {N_SEGMENTS} segments, of the speed of publishing as many documents",
            full_s / compact_s,
            "",
            "at least",
            limit=COMPACT_AT_LEAST,
            note=note,
        ),
    ]
    return result


def _in_segments(bench: Bench, corpus: Corpus, folder: Path) -> tuple[float, float, float]:
    """Return milliseconds of a search over segments, seconds of merging, milliseconds after it."""
    paths = [folder / f"part-{number}.jsonl" for number in range(N_SEGMENTS)]
    _deal(corpus.documents(), paths)
    with (
        _owner(folder / "segments") as owner,
        mock.patch("mksearch_client.publishing.full_tiers", return_value=set()),
    ):
        n_segments = [owner.publish([path]).segments for path in paths]
        if n_segments[-1] != N_SEGMENTS:
            raise ValueError(f"publications left {n_segments} segments, not one more each")
        segments_ms = _search_ms(bench, owner, corpus.short)
        started = time.perf_counter()
        owner.compact()
        compact_s = _seconds(started)
        return segments_ms, compact_s, _search_ms(bench, owner, corpus.short)
