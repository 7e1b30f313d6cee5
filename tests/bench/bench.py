"""One run of the suite: its folder, its corpora, and collections published to real servers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from mksearch.errors import StorageError
from mksearch.params import Quorum
from mksearch_client.member import Searcher
from tests.bench.corpora import Corpora, Corpus
from tests.support.processes import REPOSITORY, Fleet, claim, clean_environment, serving

__all__ = ["Bench", "MemoryWatch", "Published", "cpu_seconds", "milliseconds"]

#: Bytes of disk that a published document may need on owner and servers together (measured:
#: under 30,000), with room.
_DISK_BYTES_A_DOCUMENT = 40_000
_PUBLISH_AT_MOST_S = 3600
_WATCH_S = 0.1
#: What tells compiled loops and linear algebra how many threads to use.
_THREADS = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Published:
    """A collection on three server processes.

    Attributes:
        corpus: what was published.
        fleet: the servers; each has its own files.
        profile: folder of the owner's profile.
        report: what publishing said, and what it cost its process.
        server_memory_bytes: most memory that a server used for itself while it was published.
    """

    corpus: Corpus
    fleet: Fleet
    profile: Path
    report: dict[str, Any]
    server_memory_bytes: int

    def searcher(self) -> Searcher:
        """Return an open client; a context manager."""
        return Searcher(self.profile, timeout_s=60.0)


@dataclass
class Bench:
    """What the parts of a run share.

    Attributes:
        folder: temporary, removed at the end.
        quick: fewer documents and repetitions; nothing is judged.
        corpora: the texts.
    """

    folder: Path
    quick: bool
    corpora: Corpora = field(init=False)
    _kept: ExitStack = field(default_factory=ExitStack)
    _mixture: Published | None = None

    def __post_init__(self) -> None:
        self.corpora = Corpora(self.folder, self.say)

    def say(self, what: str) -> None:
        """Tell on standard error what is being done."""
        print(f"   {what}", file=sys.stderr, flush=True)

    def size(self, n_docs: int) -> int:
        """Return ``n_docs``, or a small share of it in a quick run."""
        return max(1000, n_docs // 32) if self.quick else n_docs

    def times(self, repetitions: int) -> int:
        """Return ``repetitions``, or fewer in a quick run."""
        return max(3, repetitions // 4) if self.quick else repetitions

    def close(self) -> None:
        """End the servers that are still there."""
        self._mixture = None
        self._kept.close()

    def mixture(self) -> Published:
        """Return mix99k on three servers; published once a run and kept for all parts."""
        if self._mixture is None:
            corpus = self.corpora.mix99k(self.size(99_253))
            self._mixture = self._kept.enter_context(self.published(corpus))
        return self._mixture

    @contextmanager
    def published(
        self, corpus: Corpus, *, one_core: bool = False, quorum: Quorum | None = None
    ) -> Iterator[Published]:
        """Publish ``corpus`` from a process of its own to servers, and end them afterwards.

        Args:
            corpus: what to publish.
            one_core: the owner's process may use one core and one thread.
            quorum: servers and collusion bound; None for three and one.

        Raises:
            StorageError: the disk has no room, or publishing failed.
        """
        need = corpus.n_docs * _DISK_BYTES_A_DOCUMENT
        free = shutil.disk_usage(self.folder).free
        if free < need:
            raise StorageError(
                f"{free >> 20} MiB are free for {corpus.n_docs} documents (need {need >> 20})",
                cure="name a folder with more room in MKSEARCH_BENCH_DIR",
            )
        name = f"{corpus.name.replace(' ', '-')}-{corpus.n_docs}"
        folder = self.folder / f"servers-{name}{'-one-core' if one_core else ''}"
        folder.mkdir()
        try:
            wanted = quorum or Quorum()
            with serving(folder, wanted.n_servers) as fleet:
                profile = claim(fleet, folder / "profile", wanted).folder
                self.say(f"publishing {corpus.n_docs} documents of {corpus.name}")
                with MemoryWatch(fleet) as watch:
                    report = _publish(profile, corpus, one_core=one_core)
                spent = ", ".join(f"{k} {v:.0f} s" for k, v in report["seconds"].items())
                self.say(f"published: {spent}; {report['columns']} columns")
                yield Published(corpus, fleet, profile, report, watch.most_bytes)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _publish(profile: Path, corpus: Corpus, *, one_core: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.publish_process", str(profile)]
    limits = {}
    if one_core:
        command.append("--one-core")
        limits = dict.fromkeys(_THREADS, "1")
    done = subprocess.run(
        [*command, *map(str, corpus.paths)],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd=REPOSITORY,
        env=clean_environment(**limits),
        timeout=_PUBLISH_AT_MOST_S,
    )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise StorageError(f"publishing {corpus.name} failed: {last[0]}")
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used, in user and kernel, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class MemoryWatch:
    """Looks at the servers' own memory, mapped files left out, again and again.

    Attributes:
        most_bytes: the most that one server used.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.most_bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._note()

    def _note(self) -> None:
        # A server that has just ended has no memory.
        with suppress(OSError, AssertionError):
            used = max(server.memory_bytes() for server in self._fleet)
            self.most_bytes = max(self.most_bytes, used)

    def _look(self) -> None:
        while not self._ended.wait(_WATCH_S):
            self._note()


def milliseconds(started: float) -> float:
    """Return the time since ``started`` of ``time.perf_counter``."""
    return 1000 * (time.perf_counter() - started)
