"""What a client knows of one policy group of one version: enough to ask and to check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.bundle import KeyBundle
from mksearch.crypto.keystream import Domain, Keystream
from mksearch.crypto.tickets import TicketSigner
from mksearch.errors import FormatError, MksearchError
from mksearch.index.catalogue import Lookup
from mksearch.index.columns import ColumnMap
from mksearch.index.dictionary import Dictionary, SegmentFacts
from mksearch.index.geometry import BlockShape, LevelGeometry
from mksearch.index.manifest import Group, SegmentRef
from mksearch.index.record import Member, Record
from mksearch.index.segment import HEADER_BYTES, SegmentHeader
from mksearch.index.slots import SlotReader
from mksearch.index.stream import open_stream
from mksearch.index.tombstones import LookupPart, Tombstones, decode_parts
from mksearch.messages import AnyRequest, Ticket
from mksearch.text.analyzers import Analyzer, make_analyzer
from mksearch.text.weights import Scoring, Statistics, document_weights, query_weights

__all__ = ["GroupView", "SegmentView", "open_dictionary", "open_lookup_parts"]


def open_dictionary(bundle: KeyBundle, collection: bytes, data: bytes) -> Dictionary:
    """Open a sealed dictionary as fetched from a server.

    Raises:
        RecordRefused: it does not open with this bundle.
        FormatError: what it holds is no dictionary.
    """
    key = bundle.section_key("dictionary")
    return Dictionary.decode(open_stream(key, "dictionary", collection, data))


def open_lookup_parts(
    bundle: KeyBundle, collection: bytes, group: Group, dictionary: Dictionary, data: bytes
) -> tuple[LookupPart, ...]:
    """Open the sealed lookup of a group whose dictionary is of format 2.

    Raises:
        RecordRefused: it does not open with this bundle.
        FormatError: what it holds is no such lookup, or not of the group's segments.
    """
    content = open_stream(bundle.section_key("lookup"), "lookup", collection, data)
    parts = decode_parts(content)
    salts = [segment.salt for segment in group.segments]
    if [part.salt for part in parts] != salts or len(dictionary.segments) != len(salts):
        raise FormatError("the lookup and the manifest list other segments")
    return parts


class SegmentView:
    """One segment as a member sees it: shapes, keys, and the streams that take masks away."""

    def __init__(
        self,
        header: SegmentHeader,
        bundle: KeyBundle,
        facts: SegmentFacts,
        tombstones: Tombstones | None = None,
    ) -> None:
        """Join what is known of a segment.

        Raises:
            FormatError: a tombstone names a row that it does not have.
        """
        self.header = header
        self.facts = facts
        self._tombstones = tombstones or Tombstones()
        rows = [row for row, _ in self._tombstones.gone.values()]
        if max(rows, default=0) >= header.layout.n_rows:
            raise FormatError("a tombstone names a row that its segment does not have")
        self._lookup_key = bundle.lookup_key()
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
    def gone_rows(self) -> NDArray[np.int64]:
        """Rows of level 0 of which no document is left: int64 (n,)."""
        return self._tombstones.rows

    def live_members(self, row: int, record: Record) -> Sequence[Member]:
        """Return the documents of a record that were neither deleted nor replaced."""
        if row not in self._tombstones.shared_rows:
            return record.members
        gone = self._tombstones.gone
        return [m for m in record.members if Lookup.key_of(self._lookup_key, m.id) not in gone]

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

    @property
    def n_levels(self) -> int:
        """Levels of the tree, the root's block included."""
        return len(self.header.layout.levels)

    def n_blocks(self, level: int) -> int:
        """Return the blocks of a level."""
        return self.header.layout.level_shapes[level][0] // self.block.height

    def masks(
        self, level: int, columns: NDArray[np.int64], blocks: Sequence[int] | None
    ) -> NDArray[np.uint16]:
        """Return the masks of some columns: uint16 (n_columns, n_rows), secret.

        Args:
            level: of the tree.
            columns: int64 (n_columns,).
            blocks: the blocks whose physical rows are wanted, in their order; None for all.
        """
        return self._words(self._keys.mask, Domain.MASK, level, columns, blocks)

    def _words(
        self,
        key: Keystream,
        domain: Domain,
        level: int,
        columns: NDArray[np.int64],
        blocks: Sequence[int] | None,
    ) -> NDArray[np.uint16]:
        height = self.block.height
        runs = [(0, self.n_blocks(level))] if blocks is None else _runs(blocks)
        parts = [
            key.words(domain, level, columns, first * height, n_blocks * height)
            for first, n_blocks in runs
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def check_vectors(self, level: int, blocks: Sequence[int] | None = None) -> NDArray[np.uint16]:
        """Return the check vectors of a level: uint16 (n_checks, physical rows), secret.

        Args:
            level: of the tree.
            blocks: as for ``masks``; those of whole levels are kept.
        """
        numbers = np.arange(self.block.n_checks)
        if blocks is not None:
            return self._words(self._keys.check, Domain.CHECK, level, numbers, blocks)
        if level not in self._check_vectors:
            self._check_vectors[level] = self._words(
                self._keys.check, Domain.CHECK, level, numbers, None
            )
        return self._check_vectors[level]


def _runs(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """Return (first block, number of blocks) of the neighbours among some blocks."""
    starts = [at for at, block in enumerate(blocks) if not at or block != blocks[at - 1] + 1]
    return [
        (blocks[start], stop - start)
        for start, stop in zip(starts, [*starts[1:], len(blocks)], strict=True)
    ]


class GroupView:
    """One policy group of one version, opened."""

    def __init__(
        self,
        group: Group,
        bundle: KeyBundle,
        collection: bytes,
        dictionary: Dictionary,
        headers: Sequence[bytes],
        parts: Sequence[LookupPart] = (),
    ) -> None:
        """Join what was fetched for a group.

        Args:
            group: its entry in the proved manifest.
            bundle: its keys.
            collection: 16 bytes.
            dictionary: its opened dictionary.
            headers: first 4096 bytes of each segment, in the order of the manifest; untrusted.
            parts: its opened lookup, where the dictionary is of format 2.

        Raises:
            FormatError: a header is not the one that the manifest names, or what was fetched
                disagrees.
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
        self.parts = tuple(parts)
        gone = {part.salt: part.tombstones for part in parts}
        self.segments = [
            SegmentView(
                _prove_header(data, ref, collection),
                bundle,
                dictionary.facts(ref.salt),
                gone.get(ref.salt),
            )
            for ref, data in zip(group.segments, headers, strict=True)
        ]
        _require_one_shape(self.segments)

    def query_weights(self, counts: Mapping[int, int]) -> dict[int, int]:
        """Weigh the terms of a query, in units of 2**-30, by falling frequency.

        Args:
            counts: occurrences of each known term by its id.
        """
        order, statistics = self._in_order(list(counts))
        weights = query_weights(
            self.scoring, statistics, {place: counts[term] for place, term in enumerate(order)}
        )
        return {term: weights[place] for place, term in enumerate(order)}

    def record_weights(self, record: Record) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Weigh a record under the statistics of today.

        Returns:
            int32 (n_terms,), its term ids by falling frequency, and int64 (n_terms,), their
            weights in units of 2**-30.
        """
        order, statistics = self._in_order(record.term_ids.tolist())
        term_ids = np.array(order, np.int32)
        weights = document_weights(
            self.scoring,
            statistics,
            np.array([0, len(order)], np.int64),
            np.arange(len(order), dtype=np.int32),
            record.tfs[np.searchsorted(record.term_ids, term_ids)],
            np.array([record.length], np.int64),
        )
        return term_ids, weights

    def _in_order(self, term_ids: Sequence[int]) -> tuple[list[int], Statistics]:
        """Return terms in the order in which a first build would number them, and their counts.

        Sums of squares run in this order, so that their bits are those of a collection built
        afresh from the documents of today.
        """
        dfs, terms = self.dictionary.dfs, self.dictionary.terms
        # Format 1 has the ids of a first build.
        is_first = self.dictionary.format == 1
        order = sorted(
            term_ids, key=None if is_first else lambda term: (-int(dfs[term]), terms[term])
        )
        counts = dfs[np.array(order, np.int64)]
        return order, Statistics(self.dictionary.n_docs, self.dictionary.total_length, counts)

    def ticket(self, server: int, request: AnyRequest, time_s: int) -> Ticket | None:
        """Sign a request to one server, where the group has a search key; else None."""
        return None if self._signer is None else self._signer.sign(server, request, time_s)

    @cached_property
    def columns(self) -> ColumnMap:
        """Columns of terms: the same in all segments of the group.

        Raises:
            FormatError: the dictionary's dedicated terms do not fit the segments.
        """
        levels = max((s.header.layout.levels for s in self.segments), key=len)
        n_dedicated = self.dictionary.n_dedicated
        if self.dictionary.format > 1:
            # The segment with the most levels may have been merged away.
            n_dedicated = n_dedicated[: len(levels)]
        try:
            return ColumnMap(self.bundle.column_keys(), levels, n_dedicated)
        except MksearchError as error:
            raise FormatError(f"dictionary and segment disagree: {error.message}") from None


def _require_one_shape(segments: Sequence[SegmentView]) -> None:
    """Prove that one query vector a level serves all segments; raise FormatError."""
    longest = max((s.header.layout.levels for s in segments), key=len, default=())
    for segment in segments:
        levels = segment.header.layout.levels
        if levels != longest[: len(levels)]:
            raise FormatError("the segments of a group have columns of different widths")


def _prove_header(data: bytes, ref: SegmentRef, collection: bytes) -> SegmentHeader:
    header = SegmentHeader.decode(data[:HEADER_BYTES])
    if header.id != ref.id or header.salt != ref.salt or header.collection != collection:
        raise FormatError(
            f"a segment header is not the one of segment {ref.id.hex()[:16]}",
            cure="fetch it from another server",
        )
    return header
