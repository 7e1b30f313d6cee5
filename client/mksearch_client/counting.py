"""Count the words of a corpus on all cores: other processes cut the texts, this one seals them.

Cutting is plain Python and holds its interpreter, so threads would not help.  A worker is a process
of its own that is handed texts and gives numbers back; it never sees a key.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import IO, Self

import numpy as np

from mksearch.codec import decode_cbor, encode_cbor, require_map
from mksearch.errors import FormatError
from mksearch.text.analyzers import Analyzer, make_analyzer
from mksearch.text.vocabulary import (
    TEXTS_AT_ONCE,
    CorpusCounter,
    CountedTexts,
    Counts,
    TextCounter,
)

__all__ = ["count_documents", "serve_counts"]

#: A worker takes about a second to start: fewer texts than this are counted before it is ready.
_ALONE_MAX = 8_192
_WORKERS_MAX = 8
_LENGTH_BYTES = 4
_FIELDS: dict[str, type] = {
    "terms": list,
    "numbers": bytes,
    "tfs": bytes,
    "sizes": bytes,
    "lengths": bytes,
}


def count_documents(
    analyzer: Analyzer, texts: Iterable[str], *, n_workers: int | None = None
) -> Counts:
    """Count a corpus as ``count_corpus`` does, with the help of other processes if it is large.

    Args:
        analyzer: cuts the texts.
        texts: one string a document, read once.
        n_workers: processes; None for one less than there are cores.
    """
    n_workers = min(_WORKERS_MAX, _n_cores() - 1) if n_workers is None else n_workers
    own, corpus = TextCounter(analyzer), CorpusCounter()
    batches = _batches(texts)
    for batch in islice(batches, _ALONE_MAX // TEXTS_AT_ONCE if n_workers else None):
        corpus.add(0, own.count(batch))
    first = next(batches, None)
    if first is not None:
        with _Workers(analyzer, n_workers, own) as workers:
            for number, part in workers.count(_with_first(first, batches)):
                corpus.add(number, part)
    return corpus.finish()


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    waiting = iter(texts)
    while batch := list(islice(waiting, TEXTS_AT_ONCE)):
        yield batch


def _with_first(first: list[str], others: Iterator[list[str]]) -> Iterator[list[str]]:
    yield first
    yield from others


class _Workers:
    """Processes that count, each asked by a thread of its own."""

    def __init__(self, analyzer: Analyzer, n_workers: int, own: TextCounter) -> None:
        self._own = own
        self._alive = deque(_Worker(number, analyzer) for number in range(1, n_workers + 1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for worker in self._alive:
            worker.close()

    def count(self, batches: Iterator[list[str]]) -> Iterator[tuple[int, CountedTexts]]:
        """Yield the counts of the batches, in their order, and who counted each."""
        waiting: deque[tuple[_Worker, Future[CountedTexts | None], list[str]]] = deque()
        for batch in batches:
            # Two for each worker, so that none waits for the next to be read.
            if len(waiting) >= 2 * max(1, len(self._alive)):
                yield self._oldest(waiting)
            if not self._alive:
                yield 0, self._own.count(batch)
                continue
            worker = self._alive[0]
            self._alive.rotate(-1)
            waiting.append((worker, worker.start(batch), batch))
        while waiting:
            yield self._oldest(waiting)

    def _oldest(
        self, waiting: deque[tuple[_Worker, Future[CountedTexts | None], list[str]]]
    ) -> tuple[int, CountedTexts]:
        worker, future, batch = waiting.popleft()
        part = None if future.cancelled() else future.result()
        if part is not None:
            return worker.number, part
        # It died: whatever ended it, the texts are counted here.
        if worker in self._alive:
            self._alive.remove(worker)
            worker.close()
        return 0, self._own.count(batch)


class _Worker:
    """One process that counts, and the thread that asks it, one batch after another."""

    def __init__(self, number: int, analyzer: Analyzer) -> None:
        self.number = number
        self._is_broken = False
        self._thread = ThreadPoolExecutor(1, "counting")
        self._process = subprocess.Popen(
            # -P: the current folder holds what is published, and must not be where modules lie.
            [
                sys.executable,
                "-P",
                "-c",
                "from mksearch_client.counting import serve_counts as s; s()",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        head = {"analyzer": analyzer.name, "stop_words": sorted(analyzer.stop_words)}
        self._head: bytes | None = encode_cbor(head)

    def start(self, texts: list[str]) -> Future[CountedTexts | None]:
        """Have a batch counted; None comes once the process is of no use."""
        return self._thread.submit(self._count, texts)

    def _count(self, texts: list[str]) -> CountedTexts | None:
        if self._is_broken or self._process.stdin is None or self._process.stdout is None:
            return None
        try:
            if self._head is not None:
                _write(self._process.stdin, self._head)
                self._head = None
            _write(self._process.stdin, encode_cbor([_packed(text) for text in texts]))
            return _decode_part(_read(self._process.stdout))
        except (OSError, FormatError, ValueError):
            self._is_broken = True
            return None

    def close(self) -> None:
        """End the process."""
        self._is_broken = True
        self._process.kill()
        self._thread.shutdown(cancel_futures=True)
        self._process.communicate()


# Real texts hold lone surrogates, which no UTF-8 has.


def _packed(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _unpacked(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _write(file: IO[bytes], data: bytes) -> None:
    file.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    file.flush()


def _read(file: IO[bytes]) -> bytes:
    size = int.from_bytes(file.read(_LENGTH_BYTES), "big")
    data = file.read(size)
    if not data or len(data) != size:
        raise FormatError("the other process has ended")
    return data


def _decode_part(data: bytes) -> CountedTexts:
    fields = require_map(decode_cbor(data, "counts"), _FIELDS, "counts")
    return CountedTexts(
        fields["terms"],
        np.frombuffer(fields["numbers"], np.int32),
        np.frombuffer(fields["tfs"], np.int32),
        np.frombuffer(fields["sizes"], np.int32),
        np.frombuffer(fields["lengths"], np.int64),
    )


def serve_counts() -> None:
    """Count what comes on standard input until it ends: the work of one worker."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    try:
        head = decode_cbor(_read(source), "a head")
        counter = TextCounter(make_analyzer(head["analyzer"], head["stop_words"]))
        while True:
            part = counter.count(map(_unpacked, decode_cbor(_read(source), "texts")))
            arrays = ("numbers", "tfs", "sizes", "lengths")
            fields = {name: getattr(part, name).tobytes() for name in arrays}
            _write(target, encode_cbor(fields | {"terms": part.terms}))
    except (FormatError, OSError, KeyboardInterrupt):
        return
