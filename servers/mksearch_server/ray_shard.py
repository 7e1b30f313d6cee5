"""One replica of a shard, in a process of its own on whatever host has room for it.

It maps the segments that lie on that host and multiplies its range of their rows.  It holds
nothing that a new process would not find again, so a lost one is replaced by another.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mksearch import __version__
from mksearch.errors import MksearchError, StorageError
from mksearch.index.geometry import LevelGeometry
from mksearch.index.segment import SegmentReader
from mksearch_server.warming import load_loops

if TYPE_CHECKING:
    from mksearch.scoring.engine import Engine

__all__ = ["Look", "Refused", "Shard"]

Array = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Look:
    """What a replica says of itself.

    Attributes:
        host: name of its host.
        pid: its process.
        release: of its program.
        device: what it computes on.
        lacking: segments that it cannot read.
        problem: why it cannot score all it should, "" where it can.
        cure: what to do about that.
    """

    host: str
    pid: int
    release: str
    device: str
    lacking: frozenset[bytes] = frozenset()
    problem: str = ""
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why rows were not multiplied; comes in the place of their sums."""

    message: str
    cure: str


class Shard:
    """Multiplies a range of rows; its methods may run on several threads."""

    def __init__(self, segments: str, engine: str, threads: int = 0) -> None:
        """Prepare; an engine that cannot be used here is named by ``look``.

        Args:
            segments: folder of the segments, files named by their ids in hex.
            engine: name of ``make_engine``.
            threads: of compiled loops, 0 for what the environment says.
        """
        if threads:
            # Read when the compiled loops are loaded, which nothing above does.
            os.environ["NUMBA_NUM_THREADS"] = str(threads)
        self._segments = Path(segments)
        self._name = engine
        self._engine: Engine | None = None
        self._readers: dict[bytes, SegmentReader] = {}
        self._wanted: frozenset[bytes] = frozenset()
        self._kept: frozenset[bytes] = frozenset()
        # Compiled loops share one pool of threads; graphics cards take one call at a time as well.
        self._scoring = threading.Lock()
        self._opening = threading.Lock()

    def look(self, segments: Collection[bytes]) -> Look:
        """Map segments, let go of others, and say how it goes."""
        from mksearch.scoring.engine import device_of

        self._wanted = frozenset(segments)
        lacking: set[bytes] = set()
        problem = cure = device = ""
        for name in segments:
            try:
                self._reader(name)
            except MksearchError as error:
                lacking.add(name)
                problem, cure = error.message, error.cure
        for name in set(self._readers) - self._wanted:
            self._readers.pop(name, None)
        try:
            device = device_of(self._opened())
        except MksearchError as error:
            problem, cure = error.message, error.cure
        return Look(
            *(socket.gethostname(), os.getpid(), __version__, device),
            *(frozenset(lacking), problem, cure),
        )

    def score(
        self, segment: bytes, level: int, rows: tuple[int, int], vectors: Array
    ) -> Array | Refused:
        """Multiply rows of a level of a segment.

        Args:
            segment: id, 32 bytes.
            level: from 0.
            rows: from the first up to the last and without it.
            vectors: uint16 (batch, columns), below p.

        Returns:
            uint16 (batch, rows, tables), or why not.
        """
        from mksearch.scoring.engine import score_level

        try:
            reader = self._reader(segment)
            geometry = reader.header.layout.levels[level]
            cells = reader.level(level)[slice(*rows)]
            with self._scoring:
                engine = self._opened()
                self._let_go(engine)
                return score_level(engine, (segment, level), cells, geometry, vectors)
        except MksearchError as error:
            return Refused(error.message, error.cure)

    def multiply(self, cells: Array, geometry: LevelGeometry, vectors: Array) -> Array | Refused:
        """Multiply rows that come with the call, and keep none; see ``Engine.score``."""
        try:
            with self._scoring:
                return self._opened().score(cells, geometry, vectors)
        except MksearchError as error:
            return Refused(error.message, error.cure)

    def _opened(self) -> Engine:
        from mksearch.scoring.engine import make_engine

        with self._opening:
            if self._engine is None:
                engine = make_engine(self._name)
                load_loops(engine)
                self._engine = engine
            return self._engine

    def _let_go(self, engine: Engine) -> None:
        from mksearch.scoring.engine import keep_only

        wanted = self._wanted
        if self._kept != wanted:
            keep_only(engine, wanted)
            self._kept = wanted

    def _reader(self, name: bytes) -> SegmentReader:
        """Return a segment, mapped.

        Raises:
            StorageError: this host does not have it.
            FormatError: the file is not that segment.
        """
        if name in self._readers:
            return self._readers[name]
        path = self._segments / name.hex()
        try:
            data = np.memmap(path, np.uint8, "r")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is empty"
            raise StorageError(
                f"host {socket.gethostname()} cannot read the segment file {path} ({reason})",
                cure="have every host of the cluster find the store's folder there, or name in "
                "ray.store where it does",
            ) from None
        reader = SegmentReader(data)
        if reader.id != name:
            raise StorageError(
                f"the file {path} on host {socket.gethostname()} is another segment",
                cure="copy it anew from the server's store",
            )
        self._readers[name] = reader
        return reader
