"""How large a collection will be and what its queries will cost, before any of it is there.

Sizes of files and messages come from the functions that the product itself lays them out with;
speeds from `planning_figures`, measured where there is a measurement.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import ceil, isfinite
from typing import Any

import numpy as np

from mksearch.codec import ENVELOPE_BYTES
from mksearch.errors import ParameterError
from mksearch.index.blob_list import ENTRY_BYTES as BLOB_ENTRY_BYTES
from mksearch.index.catalogue import ENTRY_BYTES as LOOKUP_ENTRY_BYTES
from mksearch.index.document import StoredDocument
from mksearch.index.geometry import BlockShape, LevelGeometry, choose_geometry
from mksearch.index.segment import SegmentLayout, mask_blocks
from mksearch.index.slot_shape import SlotShape
from mksearch.index.stream import sealed_size
from mksearch.params import (
    K_MAX,
    MASK_BLOCKS_MAX,
    SLOT_FIT_PERCENT,
    TERMS_PER_VECTOR,
    VECTOR_CLASSES,
    Quorum,
)
from mksearch.query.selection import fetch_sizes
from mksearch_client.planning_figures import FIGURES, figure
from mksearch_client.planning_wire import (
    record_answer_bytes,
    record_request_bytes,
    score_answer_bytes,
    score_request_bytes,
)

__all__ = [
    "DOCUMENTS_MAX",
    "MEASURED_DOCUMENTS",
    "Corpus",
    "Load",
    "Machine",
    "ModePlan",
    "Plan",
    "make_plan",
]

DOCUMENTS_MAX = 10_000_000_000
_TERMS_MAX = 1_000_000
_TEXT_BYTES_MAX = 1 << 30
#: Queries up to this many words are short ones to mode fast.
_SHORT_WORDS = 4
#: Documents of the collection that the figures of mode fast are for.
_FAST_DOCUMENTS = 99_253
#: Documents of the largest collection that was measured.
MEASURED_DOCUMENTS = 364_651
#: Heaps' law for the words of a collection: factor and exponent of its number of postings.
_HEAPS_FACTOR, _HEAPS_EXPONENT = 21.0, 0.6
#: Text and record of a document that is not described: bytes a distinct word, and of a title, an
#: id and a snippet.
_TEXT_BYTES_A_TERM, _RECORD_BYTES_A_TERM, _RECORD_HEAD_BYTES = 12, 2.2, 300
_BLOCK = BlockShape()


def _require(name: str, value: float, least: float, most: float) -> None:
    # Written so that "nan" is refused as well.
    if not (isfinite(value) and least <= value <= most):
        raise ParameterError(
            f"{name} {value:g} is not in {least:g}..{most:g}", cure="see mksearch plan --help"
        )


@dataclass(frozen=True, slots=True)
class Corpus:
    """What is known of the documents.

    Attributes:
        documents: 1..10^10, each with a row of its own.
        terms: distinct terms of a mean document, 1..10^6.
        vocabulary: distinct terms of all.
        record_bytes: record bytes that 97 % of the documents stay within.
        text_bytes: id, title and text of a mean document.
    """

    documents: int
    terms: float
    vocabulary: int
    record_bytes: int
    text_bytes: int

    def __post_init__(self) -> None:
        _require("--documents", self.documents, 1, DOCUMENTS_MAX)
        _require("--terms", self.terms, 1, _TERMS_MAX)
        _require("--vocabulary", self.vocabulary, 1, DOCUMENTS_MAX * _TERMS_MAX)
        _require("--record-bytes", self.record_bytes, 1, _TEXT_BYTES_MAX)
        _require("--text-bytes", self.text_bytes, 1, _TEXT_BYTES_MAX)

    @classmethod
    def of(
        cls,
        documents: int,
        terms: float = 30.0,
        *,
        vocabulary: int | None = None,
        record_bytes: int | None = None,
        text_bytes: int | None = None,
    ) -> Corpus:
        """Describe documents; what is not given is what English texts of such a length have."""
        _require("--documents", documents, 1, DOCUMENTS_MAX)
        _require("--terms", terms, 1, _TERMS_MAX)
        if vocabulary is None:
            postings = documents * terms
            vocabulary = ceil(min(postings, _HEAPS_FACTOR * postings**_HEAPS_EXPONENT))
        if record_bytes is None:
            record_bytes = ceil(_RECORD_HEAD_BYTES + _RECORD_BYTES_A_TERM * terms)
        if text_bytes is None:
            text_bytes = ceil(_TEXT_BYTES_A_TERM * terms)
        return cls(documents, terms, vocabulary, record_bytes, text_bytes)

    @property
    def slot(self) -> SlotShape:
        """Shape of the record slots."""
        return SlotShape.choose(np.array([self.record_bytes], np.int64))

    def n_slots(self, n_rows: int) -> int:
        """Return the record slots of some rows: those that do not fit in one take another."""
        parts = self.slot.n_parts(self.record_bytes)
        return ceil(n_rows * (parts + (100 - SLOT_FIT_PERCENT) / 100))

    def layout(self, n_rows: int) -> SegmentLayout:
        """Return the layout of a segment of ``n_rows`` documents.

        Raises:
            ParameterError: one segment does not carry so many.
        """
        levels = tuple(self._levels(n_rows))
        return SegmentLayout(n_rows, _BLOCK, levels, self.slot, self.n_slots(n_rows))

    def _levels(self, n_rows: int) -> list[LevelGeometry]:
        n_levels = len(_BLOCK.level_rows(n_rows))
        return choose_geometry(self.terms, self.vocabulary, n_levels)

    def _fits(self, n_rows: int) -> bool:
        rows = _BLOCK.level_rows(n_rows)
        shapes = zip(map(_BLOCK.physical_rows, rows), self._levels(n_rows), strict=True)
        return mask_blocks((n, level.width) for n, level in shapes) <= MASK_BLOCKS_MAX

    @property
    def segments(self) -> list[SegmentLayout]:
        """Layouts of as few segments as carry the documents, of equal size, to one document."""
        low, high = 0, 1
        while not self._fits(ceil(self.documents / high)):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self._fits(ceil(self.documents / middle)):
                high = middle
            else:
                low = middle
        small, n_larger = divmod(self.documents, high)
        larger = [self.layout(small + 1)] if n_larger else []
        return larger * n_larger + [self.layout(small)] * (high - n_larger)


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of the servers.

    Attributes:
        queries: a second, 0..10^6; each goes to t + 1 servers, and any may have to stand in.
        words: of a mean query, 1..2060.
        k: hits wanted, 1..10000.
        quorum: servers and collusion bound.
    """

    queries: float = 1.0
    words: int = 3
    k: int = 10
    quorum: Quorum = field(default_factory=Quorum)

    def __post_init__(self) -> None:
        _require("--queries", self.queries, 0, 1e6)
        _require("--words", self.words, 1, 2060)
        _require("-k", self.k, 1, K_MAX)

    @property
    def n_vectors(self) -> int:
        """Vectors of a query."""
        return next(
            (n for n in VECTOR_CLASSES if self.words <= n * TERMS_PER_VECTOR), VECTOR_CLASSES[-1]
        )

    def n_records(self, n_rows: int) -> int:
        """Return the records that the proof of the ranking reads, of ``n_rows``."""
        return min(n_rows, ceil(figure("reads_a_hit") * self.k))

    def n_fetches(self, n_rows: int) -> int:
        """Return the private fetches of one segment: the reads, padded, at least 16."""
        return sum(fetch_sizes(self.n_records(n_rows), is_first=True))


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine of an operator.

    Attributes:
        cores: of its processor, 1..10000.
        gpu_bytes: memory of one GPU.
    """

    cores: int = 16
    gpu_bytes: float = 141e9

    def __post_init__(self) -> None:
        _require("--cores", self.cores, 1, 10_000)
        _require("--gpu-memory-gb", self.gpu_bytes / 1e9, 1, 1e5)


@dataclass(frozen=True, slots=True)
class ModePlan:
    """What one query costs in one mode, and what the load needs.

    Attributes:
        mode: fast, balanced or full.
        basis: measured; extrapolated, beyond the largest collection measured; or modelled, where
            no run has confirmed sizes and speeds of this mode.
        sent_bytes: from a client to all servers that it asks, as messages.
        received_bytes: by a client from all servers.
        records: that are fetched, dummies included.
        cells: of the index that one server scores.
        products: of one server, records included.
        server_cpu_s: processor time of one server, one query after another.
        server_cpu_shared_s: the same where eight queries share a pass.
        server_gpu_s: time of one GPU that holds the index, one query after another.
        server_gpu_shared_s: the same where hundreds share a pass.
        client_cpu_s: processor time of the client.
        memory_bytes: of one server, that should hold what a query reads.
        cores: of one server that the load keeps busy, with room to breathe.
        machines: of one server, if it has no GPU.
        gpus: of one server, if it has GPUs.
    """

    mode: str
    basis: str
    sent_bytes: int
    received_bytes: int
    records: int
    cells: int
    products: int
    server_cpu_s: float
    server_cpu_shared_s: float
    server_gpu_s: float
    server_gpu_shared_s: float
    client_cpu_s: float
    memory_bytes: int
    cores: float
    machines: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A collection and its queries, before they are there.

    Attributes:
        corpus: the documents.
        load: the queries.
        machine: what operators have.
        levels: of the largest segment, from the documents up.
        n_segments: as few as the format allows.
        index_bytes: cells of all levels, check rows and headers included.
        record_bytes: record slots.
        document_bytes: sealed texts.
        list_bytes: dictionary, lookup, catalogue and blob list.
        build_cpu_s: processor time of the owner.
        modes: what a query costs.
    """

    corpus: Corpus
    load: Load
    machine: Machine
    levels: tuple[dict[str, int], ...]
    n_segments: int
    index_bytes: int
    record_bytes: int
    document_bytes: int
    list_bytes: int
    build_cpu_s: float
    modes: tuple[ModePlan, ...]

    @property
    def server_bytes(self) -> int:
        """What every server stores of one version."""
        return self.index_bytes + self.record_bytes + self.document_bytes + self.list_bytes

    @property
    def upload_bytes(self) -> int:
        """What the owner sends to all servers."""
        return self.load.quorum.n_servers * self.server_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        corpus, load = self.corpus, self.load
        return {
            **asdict(corpus),
            "queries_a_second": load.queries,
            "words": load.words,
            "k": load.k,
            "servers": load.quorum.n_servers,
            "collusion_bound": load.quorum.collusion_bound,
            "cores_a_machine": self.machine.cores,
            "gpu_bytes": self.machine.gpu_bytes,
            "columns": self.levels[0]["columns"],
            "levels": list(self.levels),
            "segments": self.n_segments,
            "index_bytes": self.index_bytes,
            "records_bytes": self.record_bytes,
            "document_bytes": self.document_bytes,
            "list_bytes": self.list_bytes,
            "server_bytes": self.server_bytes,
            "upload_bytes": self.upload_bytes,
            "build_cpu_s": self.build_cpu_s,
            "modes": [asdict(mode) for mode in self.modes],
            "figures": [asdict(one) for one in FIGURES],
        }


@dataclass(frozen=True, slots=True)
class _Work:
    """What one server and the client do for one query.

    Attributes:
        cells: of the index.
        products: of them with vectors.
        store_elements: of the record store that are read.
        store_products: of them with selectors.
        rows: that the client unmasks and checks.
        sent, received: bytes, all servers.
        answer_bytes: of one server.
    """

    cells: int
    products: int
    rows: int
    sent: int
    received: int
    answer_bytes: int
    store_elements: int = 0
    store_products: int = 0


def make_plan(corpus: Corpus, load: Load | None = None, machine: Machine | None = None) -> Plan:
    """Compute sizes, traffic and work.

    Raises:
        ParameterError: a number is out of range.
    """
    load, machine = load or Load(), machine or Machine()
    segments = corpus.segments
    known = "measured" if corpus.documents <= MEASURED_DOCUMENTS else "extrapolated"
    slots_bytes = sum(segment.n_bytes - segment.offsets[-1] for segment in segments)
    index_bytes = sum(segment.n_bytes for segment in segments) - slots_bytes
    return Plan(
        corpus=corpus,
        load=load,
        machine=machine,
        levels=tuple(_levels(segments[0])),
        n_segments=len(segments),
        index_bytes=index_bytes,
        record_bytes=slots_bytes,
        document_bytes=corpus.documents * _blob_bytes(corpus.text_bytes),
        list_bytes=_list_bytes(corpus),
        build_cpu_s=index_bytes / figure("build_rate"),
        modes=(
            _mode("fast", "modelled", _fast(corpus, segments, load), segments, load, machine),
            _mode("balanced", known, _balanced(segments, load), segments, load, machine),
            _mode("full", "modelled", _full(segments, load), segments, load, machine),
        ),
    )


def _levels(segment: SegmentLayout) -> list[dict[str, int]]:
    rows = _BLOCK.level_rows(segment.n_rows)
    return [
        {
            "rows": n_rows,
            "columns": level.width,
            "dedicated": level.dedicated,
            "table": level.table,
            "bytes": 2 * physical * level.width,
        }
        for n_rows, level, (physical, _) in zip(
            rows, segment.levels, segment.level_shapes, strict=True
        )
    ]


def _blob_bytes(text_bytes: int) -> int:
    overhead = len(StoredDocument("", "", "x" * 1000).encode()) - 1000
    return sealed_size(text_bytes + overhead)


def _list_bytes(corpus: Corpus) -> int:
    n = corpus.documents
    return (
        sealed_size(ceil(figure("word_bytes") * corpus.vocabulary))
        + sealed_size(1 + LOOKUP_ENTRY_BYTES * n)
        + sealed_size(ceil(figure("catalogue_bytes") * n))
        + ENVELOPE_BYTES
        + BLOB_ENTRY_BYTES * n
    )


# --- what a query does in each mode ---


def _n_rows(segments: list[SegmentLayout]) -> int:
    return sum(segment.n_rows for segment in segments)


def _reading(segments: list[SegmentLayout], load: Load) -> tuple[int, int]:
    """Return bytes sent and received for the records of one query, read by number."""
    largest, n_records = segments[0], load.n_records(_n_rows(segments))
    return (
        record_request_bytes(n_records, largest.n_slots - 1),
        record_answer_bytes(n_records, largest.slot.width),
    )


def _scoring(segments: list[SegmentLayout], load: Load) -> _Work:
    """All rows of level 0, which balanced and full score."""
    n_vectors, threshold = load.n_vectors, load.quorum.threshold
    rows = [segment.level_shapes[0][0] for segment in segments]
    width, n_tables = segments[0].levels[0].width, segments[0].levels[0].n_tables
    answers = sum(score_answer_bytes((n_vectors, n_rows, n_tables)) for n_rows in rows)
    cells = sum(rows) * width
    return _Work(
        cells=cells,
        products=n_vectors * cells,
        rows=n_vectors * sum(rows),
        sent=threshold * len(segments) * score_request_bytes(n_vectors, width),
        received=threshold * answers,
        answer_bytes=answers,
    )


def _balanced(segments: list[SegmentLayout], load: Load) -> _Work:
    scoring, (asked, read) = _scoring(segments, load), _reading(segments, load)
    return _Work(
        cells=scoring.cells,
        products=scoring.products,
        rows=scoring.rows,
        sent=scoring.sent + asked,
        received=scoring.received + read,
        answer_bytes=scoring.answer_bytes + read,
    )


def _full(segments: list[SegmentLayout], load: Load) -> _Work:
    """All rows, and records in one round of private fetches, the same number for every segment."""
    scoring = _scoring(segments, load)
    n_fetches = load.n_fetches(_n_rows(segments))
    sent = received = elements = 0
    for segment in segments:
        n_slots, width = segment.n_slots, segment.slot.width
        n_groups, group_slots = segment.slot.groups(n_slots)
        sent += score_request_bytes(n_fetches, n_groups)
        received += record_answer_bytes(n_fetches * group_slots, width)
        elements += n_slots * width
    return _Work(
        cells=scoring.cells,
        products=scoring.products,
        rows=scoring.rows,
        sent=scoring.sent + load.quorum.threshold * sent,
        received=scoring.received + load.quorum.threshold * received,
        answer_bytes=scoring.answer_bytes + received,
        store_elements=elements,
        store_products=n_fetches * elements,
    )


def _fast(corpus: Corpus, segments: list[SegmentLayout], load: Load) -> _Work:
    """Model of the design: a share of the cells, which grows more slowly than the documents."""
    kind = "short" if load.words <= _SHORT_WORDS else "long"
    all_rows = _scoring(segments, load)
    growth = (corpus.documents / _FAST_DOCUMENTS) ** (figure(f"fast_growth_{kind}") - 1)
    share = min(1.0, figure(f"fast_share_{kind}") * growth)
    # The root block of every segment is always read.
    roots = sum(_BLOCK.height * segment.levels[-1].width for segment in segments)
    cells = max(roots, ceil(share * all_rows.cells))
    level, n_vectors, threshold = segments[0].levels[0], load.n_vectors, load.quorum.threshold
    # As if all of them were of level 0, whose rows are the narrowest: no fewer rows than that.
    n_blocks = max(len(segments), ceil(cells / level.width / _BLOCK.height))
    n_rows = n_blocks * _BLOCK.height
    answers = score_answer_bytes((n_vectors, n_rows, level.n_tables))
    asked, read = _reading(segments, load)
    # Each level is asked for once and that of documents twice, before and after the cutoff is
    # known; a block is named by a number of so many bytes.
    requests = sum(
        score_request_bytes(n_vectors, geometry.width)
        for segment in segments
        for geometry in (*segment.levels, segment.levels[0])
    )
    name_bytes = max(1, ceil(_BLOCK.n_blocks(segments[0].n_rows).bit_length() / 7))
    return _Work(
        cells=cells,
        products=n_vectors * cells,
        rows=n_vectors * n_rows,
        sent=threshold * (requests + name_bytes * n_blocks) + asked,
        received=threshold * answers + read,
        answer_bytes=answers + read,
    )


def _mode(
    mode: str,
    basis: str,
    work: _Work,
    segments: list[SegmentLayout],
    load: Load,
    machine: Machine,
) -> ModePlan:
    answering = figure("answer_cost") * work.answer_bytes
    elements, products = work.cells + work.store_elements, work.products + work.store_products
    cpu_shared = products / figure("product_rate") + answering
    # A single query may have several vectors or selectors, which share a pass of their own.
    cpu_alone = max(2 * elements / figure("scan_rate"), products / figure("product_rate"))
    cpu_alone += answering
    gpu_shared = products / figure("gpu_product_rate")
    gpu_alone = max(2 * elements / figure("gpu_scan_rate"), gpu_shared)
    is_shared = load.queries * cpu_alone >= 1
    cores = load.queries * (cpu_shared if is_shared else cpu_alone) / figure("load")
    memory = sum(_read_bytes(mode, segment) for segment in segments)
    n_rows = _n_rows(segments)
    busy_gpus = load.queries * (gpu_shared if load.queries * gpu_alone >= 1 else gpu_alone)
    return ModePlan(
        mode=mode,
        basis=basis,
        sent_bytes=work.sent,
        received_bytes=work.received,
        records=len(segments) * load.n_fetches(n_rows)
        if mode == "full"
        else load.n_records(n_rows),
        cells=work.cells,
        products=products,
        server_cpu_s=cpu_alone,
        server_cpu_shared_s=cpu_shared,
        server_gpu_s=gpu_alone,
        server_gpu_shared_s=gpu_shared,
        client_cpu_s=figure("check_cost") * work.rows,
        memory_bytes=memory,
        cores=cores,
        machines=max(1, ceil(cores / machine.cores)),
        gpus=max(1, ceil(memory / (0.9 * machine.gpu_bytes)), ceil(busy_gpus / figure("load"))),
    )


def _read_bytes(mode: str, segment: SegmentLayout) -> int:
    """Return the bytes that queries of a mode read again and again."""
    sizes = [2 * n_rows * width for n_rows, width in segment.level_shapes]
    if mode == "fast":
        return sum(sizes)
    records = 2 * segment.n_slots * segment.slot.width if mode == "full" else 0
    return sizes[0] + records
