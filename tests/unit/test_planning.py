"""What planning promises is what comes out: sizes of files that are built, messages that are sent,
speeds that were measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

from datasets.loaders import load_small
from mksearch.crypto.bundle import KeyBundle
from mksearch.crypto.randomness import SeededRandom
from mksearch.crypto.secret import SecretKey
from mksearch.errors import ParameterError
from mksearch.index.blob_list import BlobList
from mksearch.index.builder import SegmentBuilder
from mksearch.index.record import Member
from mksearch.index.segment import SegmentReader
from mksearch.messages import (
    RecordAnswer,
    RecordRequest,
    ScoreAnswer,
    ScoreRequest,
    SelectAnswer,
    SelectRequest,
    Ticket,
)
from mksearch.params import MASK_BLOCKS_MAX, Quorum
from mksearch.text.analyzers import make_analyzer
from mksearch.text.vocabulary import Counts, count_corpus
from mksearch.text.weights import Scoring
from mksearch.wire import convert
from mksearch_client import planning_figures, planning_wire
from mksearch_client.planning import DOCUMENTS_MAX, Corpus, Load, Machine, ModePlan, make_plan
from mksearch_client.planning_figures import FIGURES, figure
from mksearch_client.reading import Document
from mksearch_client.searching import Searcher
from mksearch_server.search_server import SearchServer
from tests.adversary.corpus import WORDS, make_documents, make_texts
from tests.support.local import LocalCollection, publish

FIGURES_FILE = Path(__file__).resolve().parents[2] / "docs/benchmarks/figures.json"
#: How far a constant may be from what the newest report measured: machines differ, formulas not.
FACTOR = 2.0


# --- the index ------------------------------------------------------------------------------------


def built(texts: Sequence[str]) -> tuple[SegmentBuilder, Counts]:
    counts, numbered = count_corpus(make_analyzer("english-1"), texts), enumerate(texts)
    builder = SegmentBuilder(
        counts,
        [Member(f"doc-{number}", f"Title {number}", text[:200]) for number, text in numbered],
        Scoring("tfidf"),
        KeyBundle.from_master(SecretKey(b"m" * 32), b"c" * 16, 1, b""),
        collection=b"c" * 16,
        epoch=1,
        random=SeededRandom(b"r" * 32),
    )
    return builder, counts


def described(builder: SegmentBuilder, counts: Counts, text_bytes: int = 100) -> Corpus:
    """Return the corpus of a builder as somebody who knows it would describe it."""
    postings = builder.rows.postings
    return Corpus(
        documents=len(postings),
        terms=len(postings.term_ids) / len(postings),
        vocabulary=len(counts.vocabulary.terms),
        # Of the shape that was chosen, the largest that fits.
        record_bytes=builder.layout.slot.part_bytes - 8,
        text_bytes=text_bytes,
    )


def small_texts() -> list[str]:
    return [f"{document.title} {document.text}" for document in load_small().documents]


def many_texts(n_texts: int) -> list[str]:
    """Return texts of a vocabulary that is larger than a level can hold."""
    rng = np.random.default_rng(4)
    vocabulary = [f"{a}{b}" for a in WORDS for b in WORDS[:60]]
    return [" ".join(vocabulary[i] for i in rng.integers(0, 7200, 25)) for _ in range(n_texts)]


@pytest.mark.parametrize(
    "texts",
    [
        ["leap years"],
        make_texts(61, 1),
        make_texts(62, 1),
        make_texts(5000, 2),
        small_texts(),
        many_texts(4000),
    ],
    ids=["one", "a block", "two blocks", "few words", "prose", "many words"],
)
def test_the_planned_index_has_the_bytes_of_the_one_that_is_built(texts: Sequence[str]) -> None:
    builder, counts = built(texts)
    layout = builder.layout
    planned = make_plan(described(builder, counts))

    assert planned.index_bytes == layout.offsets[-1]
    assert [(level["columns"], level["rows"]) for level in planned.levels] == [
        (geometry.width, rows)
        for geometry, rows in zip(
            layout.levels, layout.block.level_rows(layout.n_rows), strict=True
        )
    ]
    built_bytes = layout.n_bytes - layout.offsets[-1]
    assert built_bytes <= 1.001 * planned.record_bytes + 2000
    assert planned.record_bytes <= 1.04 * built_bytes + 2000


DOCUMENTS = make_documents(700, 3)


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> LocalCollection:
    return publish(DOCUMENTS, tmp_path_factory.mktemp("planned"))


def corpus_of(local: LocalCollection) -> Corpus:
    """Return what planning must be told of a collection."""
    view = local.searcher().refresh().views[0]
    segment = SegmentReader(local.segment_bytes(1)).header.layout
    texts = [document.searchable for document in DOCUMENTS]
    counts = count_corpus(make_analyzer("english-1"), texts)
    assert view.dictionary.n_docs == segment.n_rows == len(DOCUMENTS)
    return Corpus(
        documents=segment.n_rows,
        terms=len(counts.term_ids) / segment.n_rows,
        vocabulary=len(view.dictionary.terms),
        record_bytes=segment.slot.part_bytes - 8,
        text_bytes=sum(len(d.id + d.title + d.text) for d in DOCUMENTS) // len(DOCUMENTS),
    )


def test_what_a_server_stores_is_what_was_planned(collection: LocalCollection) -> None:
    corpus = corpus_of(collection)
    group = collection.publication.signed.manifest.groups[0]
    planned = make_plan(corpus)

    segment_bytes = sum(segment.size for segment in group.segments)
    assert planned.index_bytes + planned.record_bytes == pytest.approx(segment_bytes, rel=0.03)
    publication = collection.publication
    listed = BlobList.decode(b"".join(publication.chunks(group.blobs.id))).blobs
    blobs = sum(size for name, size in listed if name in publication.blobs)
    refs = (group.dictionary, group.lookup, group.blobs, publication.signed.manifest.catalogue)
    lists = sum(ref.size for ref in refs) + sum(size for _, size in listed) - blobs
    assert planned.document_bytes == pytest.approx(blobs, rel=0.1)
    # Dictionary and catalogue are compressed: their size is an estimate, and small.
    assert group.lookup.size + group.blobs.size < planned.list_bytes
    assert lists / 2 < planned.list_bytes < 2 * lists


# --- messages -------------------------------------------------------------------------------------


def wire_bytes(messages: Iterable[Message]) -> int:
    """Return what gRPC sends for messages: a prefix of 5 bytes, and each."""
    return sum(5 + message.ByteSize() for message in messages)


TICKET = Ticket(1_800_000_000, bytes([7]) * 64)


@pytest.mark.parametrize(("n_vectors", "width"), [(1, 256), (1, 2048), (2, 8192), (4, 65536)])
def test_a_score_request_has_the_planned_bytes(n_vectors: int, width: int) -> None:
    request = ScoreRequest(
        b"q" * 16, 100, b"s" * 32, 0, np.ones((n_vectors, width), np.uint16), ticket=TICKET
    )
    sent = wire_bytes(convert.score_request_messages(request))

    # The number of the level is not sent for level 0.
    assert planning_wire.score_request_bytes(n_vectors, width) == sent


@pytest.mark.parametrize(
    "shape", [(1, 64, 3), (1, 104_192, 3), (2, 174_763, 3), (4, 4096, 8), (1, 1 << 19, 1)]
)
def test_a_score_answer_has_the_planned_bytes(shape: tuple[int, int, int]) -> None:
    answer = ScoreAnswer(b"q" * 16, np.ones(shape, np.uint16))
    received = wire_bytes(convert.score_answer_messages(answer, b"s" * 64))

    assert planning_wire.score_answer_bytes(shape) == received


@pytest.mark.parametrize("n_slots", [1, 13, 2000, 2001, 5000])
def test_records_and_their_requests_have_the_planned_bytes(n_slots: int) -> None:
    slots = np.full(n_slots, 99_252)
    requests = [
        RecordRequest(100, b"s" * 32, part, query_id=b"q" * 16, ticket=TICKET)
        for part in np.split(slots, range(2000, n_slots, 2000))
    ]
    sent = wire_bytes(map(convert.record_request_message, requests))
    answer = RecordAnswer(np.ones((n_slots, 275), np.uint16))
    received = wire_bytes(convert.record_answer_messages(answer))

    assert planning_wire.record_request_bytes(n_slots, 99_252) == sent
    assert planning_wire.record_answer_bytes(n_slots, 275) == received


class Metered:
    """A server whose messages are counted as they would be on the wire."""

    def __init__(self, server: SearchServer) -> None:
        self._server = server
        self.manifest, self.renewal = server.manifest, server.renewal
        self.read_object = server.read_object
        self.received = self.sent = 0

    def score(self, request: ScoreRequest) -> ScoreAnswer:
        self.received += wire_bytes(convert.score_request_messages(request))
        answer = self._server.score(request)
        self.sent += wire_bytes(convert.score_answer_messages(answer, bytes(64)))
        return answer

    def records(self, request: RecordRequest) -> RecordAnswer:
        self.received += wire_bytes([convert.record_request_message(request)])
        answer = self._server.records(request)
        self.sent += wire_bytes(convert.record_answer_messages(answer))
        return answer

    def select(self, request: SelectRequest) -> SelectAnswer:
        self.received += wire_bytes(convert.select_request_messages(request))
        answer = self._server.select(request)
        self.sent += wire_bytes(convert.select_answer_messages(answer, bytes(64)))
        return answer


def test_a_balanced_search_sends_and_receives_what_was_planned(collection: LocalCollection) -> None:
    servers = {server: Metered(real) for server, real in collection.servers.items()}
    searcher: Searcher = collection.searcher(replace=dict(servers))
    results = [searcher.search(" ".join(WORDS[i : i + 3])) for i in range(0, 60, 6)]
    planned = mode(make_plan(corpus_of(collection)).modes, "balanced")
    sent = sum(server.received for server in servers.values()) / len(results)
    received = sum(server.sent for server in servers.values()) / len(results)

    # These queries are not signed: 72 bytes for each request, two scores and some records.
    assert planned.sent_bytes - 6 * 72 <= sent <= 1.1 * planned.sent_bytes
    # Records make much of so small an answer, and their number depends on the words.
    records = np.mean([result.records_fetched for result in results])
    width = SegmentReader(collection.segment_bytes(1)).header.layout.slot.width
    further = (records - planned.records) * 2 * width
    assert received == pytest.approx(planned.received_bytes + further, rel=0.05)


def test_a_full_search_sends_and_receives_what_was_planned(collection: LocalCollection) -> None:
    servers = {server: Metered(real) for server, real in collection.servers.items()}
    searcher: Searcher = collection.searcher(replace=dict(servers))
    results = [searcher.search(" ".join(WORDS[i : i + 3]), privacy="full") for i in range(0, 60, 6)]
    planned = mode(make_plan(corpus_of(collection)).modes, "full")
    sent = sum(server.received for server in servers.values()) / len(results)
    received = sum(server.sent for server in servers.values()) / len(results)
    fetched = [one for result in results for one in result.shown["t"] if one["what"] == "fetches"]
    assert [one["count"] for one in fetched] == [planned.records] * len(results)

    assert sent == pytest.approx(planned.sent_bytes, rel=0.05)
    assert received == pytest.approx(planned.received_bytes, rel=0.05)


def test_a_fast_search_sends_and_receives_no_more_than_planned_for_its_share_of_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(6)
    vocabulary = np.array([f"{a}{b}" for a in WORDS for b in WORDS[:60]]).reshape(80, 90)
    documents = [
        Document(f"{n}", "", " ".join(rng.choice(vocabulary[n % 80], 12, replace=False)))
        for n in range(6000)
    ]
    local = publish(documents, tmp_path)
    servers = {server: Metered(real) for server, real in local.servers.items()}
    searcher: Searcher = local.searcher(replace=dict(servers))
    results = [searcher.search(" ".join(vocabulary[i, :3]), privacy="fast") for i in range(20)]
    layout = SegmentReader(local.segment_bytes(1)).header.layout
    corpus = Corpus(layout.n_rows, 12, vocabulary.size, layout.slot.part_bytes - 8, 100)
    share = float(np.mean([result.cells_share for result in results]))
    growth = (corpus.documents / 99_253) ** (figure("fast_growth_short") - 1)
    monkeypatch.setitem(planning_figures._BY_NAME, "fast_share_short", share / growth)
    planned = mode(make_plan(corpus).modes, "fast")
    sent = sum(server.received for server in servers.values()) / len(results)
    received = sum(server.sent for server in servers.values()) / len(results)

    assert 0.05 < share < 0.6
    # The levels at the top, which are the widest, may be passed over.
    assert 0.2 * planned.sent_bytes < sent < 1.1 * planned.sent_bytes
    # Planned as if all cells were of the narrowest rows, of which there are most.
    assert 0.3 * planned.received_bytes < received < planned.received_bytes


# --- what was measured ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """The newest report of ``./dev bench``."""

    parts: dict[str, Any]

    def figure(self, key: str) -> float:
        (found,) = (
            one["value"]
            for part in self.parts.values()
            for one in part["figures"]
            if one["key"] == key
        )
        return float(found)

    def rows(self, part: str, table: str) -> list[dict[str, Any]]:
        return list(self.parts[part]["tables"][table])


@pytest.fixture(scope="module")
def report() -> Report:
    return Report(json.loads(FIGURES_FILE.read_text())["parts"])


def mode(modes: Iterable[ModePlan], name: str) -> ModePlan:
    return next(one for one in modes if one.mode == name)


def measured(report: Report) -> dict[str, float]:
    """Return each figure that counts as measured, computed from the report."""
    reading = next(r for r in report.rows("engine", "reading") if r["threads"] == 1)
    answer_bytes = 2 * 3 * 64 * ceil(20_000 / 61)
    batched = 1 / report.figure("throughput.batched") - 1 / report.figure("engine.queries_batched")
    return {
        "scan_rate": 1e9 * reading["one_vector_gb_s"],
        "product_rate": 1e9 * report.figure("engine.products"),
        "answer_cost": batched / answer_bytes,
        "check_cost": 1e-3 * report.figure("search.check") / (64 * ceil(99_253 / 61)),
        "reads_a_hit": report.figure("widths.records") / 10,
        "build_rate": report.figure("building.rate") * report.figure("widths.bytes"),
    }


def test_every_measured_figure_is_near_the_newest_measurement(report: Report) -> None:
    found = measured(report)

    assert found.keys() == {one.name for one in FIGURES if one.is_measured}
    for name, value in found.items():
        assert value / FACTOR < figure(name) < value * FACTOR, name


def test_every_figure_names_where_it_comes_from() -> None:
    assert len({one.name for one in FIGURES}) == len(FIGURES)
    for one in FIGURES:
        assert one.what
        assert one.value > 0
        assert one.is_measured == one.source.startswith("docs/benchmarks/figures.json: "), one.name


def latencies(report: Report) -> Iterator[dict[str, Any]]:
    yield from report.rows("search", "latency")
    yield from report.rows("large", "latency")


def test_planned_traffic_is_that_of_measured_searches(report: Report) -> None:
    for row in latencies(report):
        planned = make_plan(Corpus.of(row["documents"], 28.6, vocabulary=150_000))
        balanced = mode(planned.modes, "balanced")

        assert planned.levels[0]["columns"] == row["columns"]
        # What is measured is arrays; a plan has the heads of messages as well.
        assert row["sent_bytes"] < balanced.sent_bytes < 1.1 * row["sent_bytes"]
        assert balanced.received_bytes == pytest.approx(row["received_bytes"], rel=0.02)


def test_planned_bytes_a_document_are_those_that_were_measured(report: Report) -> None:
    (row,) = report.rows("widths", "bytes")
    planned = make_plan(Corpus.of(99_253, 28.6, vocabulary=150_000))

    assert planned.levels[0]["bytes"] / 99_253 == pytest.approx(row["documents"], rel=0.03)
    # The widths of nodes were others when that was measured (decisions/0019).
    assert planned.index_bytes / 99_253 == pytest.approx(report.figure("widths.bytes"), rel=0.1)
    assert planned.record_bytes / 99_253 == pytest.approx(row["records"], rel=0.05)


def test_planned_processor_time_is_that_of_measured_servers(report: Report) -> None:
    # 4096 columns, whatever the words.
    planned = make_plan(Corpus.of(20_000, 57.0, vocabulary=1_000_000))
    balanced = mode(planned.modes, "balanced")

    assert planned.levels[0]["columns"] == 4096
    for planned_s, key in (
        (balanced.server_cpu_s, "throughput.alone"),
        (balanced.server_cpu_shared_s, "throughput.batched"),
    ):
        assert 1 / FACTOR < planned_s * report.figure(key) < FACTOR, key


# --- any size -------------------------------------------------------------------------------------


@pytest.mark.parametrize("documents", [1, 10, 61, 10**4, 10**6, 10**8, DOCUMENTS_MAX])
@pytest.mark.parametrize("terms", [1, 30, 200])
def test_a_plan_is_whole_and_adds_up_at_any_size(documents: int, terms: float) -> None:
    planned = make_plan(Corpus.of(documents, terms), Load(100, 3))

    assert planned.server_bytes == (
        planned.index_bytes + planned.record_bytes + planned.document_bytes + planned.list_bytes
    )
    assert planned.upload_bytes == 3 * planned.server_bytes
    assert [one.mode for one in planned.modes] == ["fast", "balanced", "full"]
    for one in planned.modes:
        assert min(one.sent_bytes, one.received_bytes, one.cells, one.products) > 0
        assert one.server_cpu_shared_s <= one.server_cpu_s
        assert one.machines >= 1 <= one.gpus
        assert one.records >= 1
    fast, balanced, full = planned.modes
    assert fast.cells <= balanced.cells == full.cells
    assert balanced.sent_bytes < full.sent_bytes
    assert balanced.received_bytes <= full.received_bytes
    assert json.loads(json.dumps(planned.to_json()))["documents"] == documents


def test_segments_are_as_few_as_the_format_carries() -> None:
    corpus = Corpus.of(100_000_000, 80)
    segments = corpus.segments

    assert sum(segment.n_rows for segment in segments) == corpus.documents
    assert max(s.n_rows for s in segments) - min(s.n_rows for s in segments) <= 1
    assert len(segments) > 10
    with pytest.raises(ParameterError, match=f"at most {MASK_BLOCKS_MAX}"):
        corpus.layout(ceil(corpus.documents / (len(segments) - 1)))


def test_only_what_ran_is_called_measured() -> None:
    for documents, expected in ((364_651, "measured"), (364_652, "extrapolated")):
        planned = make_plan(Corpus.of(documents, 30))
        assert [one.basis for one in planned.modes] == ["modelled", expected, "modelled"]
    assert not any(one.is_measured for one in FIGURES if one.name.startswith(("gpu", "fast")))


def test_more_of_anything_never_takes_less() -> None:
    base = {"documents": 200_000, "terms": 30.0}
    plan = make_plan(Corpus.of(**base))  # type: ignore[arg-type]
    for more in ({"documents": 300_000}, {"terms": 60.0}, {"record_bytes": 900}):
        larger = make_plan(Corpus.of(**(base | more)))
        assert larger.server_bytes > plan.server_bytes
        for one, other in zip(plan.modes, larger.modes, strict=True):
            assert other.received_bytes >= one.received_bytes
            assert other.server_cpu_s >= one.server_cpu_s
    corpus = Corpus.of(**base)  # type: ignore[arg-type]
    for load in (Load(k=100), Load(words=100), Load(queries=1000), Load(quorum=Quorum(9, 4))):
        loaded = make_plan(corpus, load)
        for one, other in zip(plan.modes, loaded.modes, strict=True):
            assert other.received_bytes >= one.received_bytes
            assert other.cores >= one.cores
    fewer = make_plan(corpus, Load(1000), Machine(cores=4, gpu_bytes=1e9))
    more_machines = make_plan(corpus, Load(1000), Machine(cores=64))
    for small, large in zip(fewer.modes, more_machines.modes, strict=True):
        assert small.machines >= large.machines
        assert small.gpus >= large.gpus


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: Corpus.of(0), "--documents 0"),
        (lambda: Corpus.of(DOCUMENTS_MAX + 1), "--documents"),
        (lambda: Corpus.of(10, 0.5), "--terms 0.5"),
        (lambda: Corpus.of(10, float("nan")), "--terms nan"),
        (lambda: Corpus.of(10, vocabulary=0), "--vocabulary 0"),
        (lambda: Corpus.of(10, record_bytes=0), "--record-bytes 0"),
        (lambda: Corpus.of(10, text_bytes=-1), "--text-bytes -1"),
        (lambda: Load(queries=-1), "--queries -1"),
        (lambda: Load(queries=float("inf")), "--queries inf"),
        (lambda: Load(words=0), "--words 0"),
        (lambda: Load(k=0), "-k 0"),
        (lambda: Machine(cores=0), "--cores 0"),
        (lambda: Machine(gpu_bytes=0), "--gpu-memory-gb 0"),
    ],
)
def test_a_number_out_of_range_is_refused_by_name(make: Any, part: str) -> None:
    with pytest.raises(ParameterError, match=part) as caught:
        make()
    assert caught.value.cure
