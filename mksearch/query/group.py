"""What a client knows of one policy group of one version: enough to ask and to check."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.bundle import KeyBundle
from mksearch.crypto.keystream import Domain
from mksearch.crypto.tickets import TicketSigner
from mksearch.errors import FormatError, MksearchError
from mksearch.index.columns import ColumnMap
from mksearch.index.dictionary import Dictionary, SegmentFacts
from mksearch.index.geometry import BlockShape, LevelGeometry
from mksearch.index.manifest import Group, SegmentRef
from mksearch.index.segment import HEADER_BYTES, SegmentHeader
from mksearch.index.slots import SlotReader
from mksearch.index.stream import open_stream
from mksearch.messages import RecordRequest, ScoreRequest, Ticket
from mksearch.text.analyzers import Analyzer, make_analyzer
from mksearch.text.weights import Scoring, Statistics

__all__ = ["GroupView", "SegmentView", "open_dictionary"]


def open_dictionary(bundle: KeyBundle, collection: bytes, data: bytes) -> Dictionary:
    """Open a sealed dictionary as fetched from a server.

    Raises:
        RecordRefused: it does not open with this bundle.
        FormatError: what it holds is no dictionary.
    """
    key = bundle.section_key("dictionary")
    return Dictionary.decode(open_stream(key, "dictionary", collection, data))


class SegmentView:
    """One segment as a member sees it: shapes, keys, and the streams that take masks away."""

    def __init__(self, header: SegmentHeader, bundle: KeyBundle, facts: SegmentFacts) -> None:
        self.header = header
        self.facts = facts
        self.id = header.id
        self._keys = bundle.segment_keys(header.salt)
        self._check_vectors: dict[int, NDArray[np.uint16]] = {}
        layout = header.layout
        self.slots = SlotReader(
            self._keys,
            header.collection,
            header.salt,
            layout.slot,
            n_rows=layout.n_rows,
            n_slots=layout.n_slots,
        )

    @property
    def block(self) -> BlockShape:
        """Shape of the blocks."""
        return self.header.layout.block

    @property
    def n_rows(self) -> int:
        """Data rows of level 0."""
        return self.header.layout.n_rows

    def geometry(self, level: int) -> LevelGeometry:
        """Return the panels of a level."""
        return self.header.layout.levels[level]

    def physical_rows(self, level: int) -> int:
        """Return the physical rows of a level."""
        return self.header.layout.level_shapes[level][0]

    def masks(
        self, level: int, columns: NDArray[np.int64], first_row: int, n_rows: int
    ) -> NDArray[np.uint16]:
        """Return the masks of some columns: uint16 (n_columns, n_rows), secret."""
        return self._keys.mask.words(Domain.MASK, level, columns, first_row, n_rows)

    def check_vectors(self, level: int) -> NDArray[np.uint16]:
        """Return the check vectors of a level: uint16 (n_checks, physical rows), secret."""
        if level not in self._check_vectors:
            self._check_vectors[level] = self._keys.check.words(
                Domain.CHECK,
                level,
                np.arange(self.block.n_checks),
                0,
                self.physical_rows(level),
            )
        return self._check_vectors[level]


class GroupView:
    """One policy group of one version, opened."""

    def __init__(
        self,
        group: Group,
        bundle: KeyBundle,
        collection: bytes,
        dictionary: Dictionary,
        headers: Sequence[bytes],
    ) -> None:
        """Join what was fetched for a group.

        Args:
            group: its entry in the proved manifest.
            bundle: its keys.
            collection: 16 bytes.
            dictionary: its opened dictionary.
            headers: first 4096 bytes of each segment, in the order of the manifest; untrusted.

        Raises:
            FormatError: a header is not the one that the manifest names, or the parts disagree.
            AnalyzerError: the analyzer is not known here.
        """
        self.group = group
        self.bundle = bundle
        self._signer = TicketSigner(bundle.search) if group.search_key else None
        if self._signer is not None and self._signer.public != group.search_key:
            raise FormatError(
                "the key bundle of a group has another search key than the manifest names"
            )
        self.dictionary = dictionary
        if (dictionary.analyzer, dict(dictionary.scoring)) != (group.analyzer, dict(group.scoring)):
            raise FormatError("the dictionary and the manifest name another analyzer or scoring")
        self.analyzer: Analyzer = make_analyzer(group.analyzer, dictionary.stop_words)
        try:
            self.scoring = Scoring(**dict(group.scoring))  # type: ignore[arg-type]
            self.statistics = Statistics(dictionary.n_docs, dictionary.total_length, dictionary.dfs)
        except (MksearchError, TypeError) as error:
            raise FormatError(f"the dictionary and the manifest disagree: {error}") from None
        self.segments = [
            SegmentView(_prove_header(data, ref, collection), bundle, dictionary.facts(ref.salt))
            for ref, data in zip(group.segments, headers, strict=True)
        ]

    def ticket(
        self, server: int, request: ScoreRequest | RecordRequest, time_s: int
    ) -> Ticket | None:
        """Sign a request to one server, where the group has a search key; else None."""
        return None if self._signer is None else self._signer.sign(server, request, time_s)

    @cached_property
    def columns(self) -> ColumnMap:
        """Columns of terms: the same in all segments of the group.

        Raises:
            FormatError: the dictionary's dedicated terms do not fit the segments.
        """
        levels = max((s.header.layout.levels for s in self.segments), key=len)
        try:
            return ColumnMap(self.bundle.column_keys(), levels, self.dictionary.n_dedicated)
        except MksearchError as error:
            raise FormatError(f"dictionary and segment disagree: {error.message}") from None


def _prove_header(data: bytes, ref: SegmentRef, collection: bytes) -> SegmentHeader:
    header = SegmentHeader.decode(data[:HEADER_BYTES])
    if header.id != ref.id or header.salt != ref.salt or header.collection != collection:
        raise FormatError(
            f"a segment header is not the one of segment {ref.id.hex()[:16]}",
            cure="fetch it from another server",
        )
    return header
