"""The product on the inputs of a vector: segments, groups, searches; no files, no servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.bundle import KeyBundle
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.errors import MksearchError
from mksearch.index.builder import SegmentBuilder
from mksearch.index.dictionary import Dictionary
from mksearch.index.geometry import BlockShape, LevelGeometry
from mksearch.index.manifest import Group, ObjectRef, SegmentRef
from mksearch.index.record import Member, Record
from mksearch.index.segment import HEADER_BYTES, SegmentReader
from mksearch.messages import ScoreAnswer
from mksearch.params import Quorum
from mksearch.query.answer import Attempt
from mksearch.query.descent import Descent
from mksearch.query.group import GroupView, SegmentView
from mksearch.query.ranking import Hit, Ranking, Source, row_bounds
from mksearch.query.records import read_records
from mksearch.query.trapdoor import Question, Trapdoor, make_trapdoor, parse_question
from mksearch.scoring.engine import score_blocks
from mksearch.scoring.reference import NumpyEngine
from mksearch.text.analyzers import make_analyzer
from mksearch.text.quantise import split_query
from mksearch.text.vocabulary import Counts, count_corpus
from mksearch.text.weights import Scoring

from .material import Json

ANALYZER = "plain-1"


class Fixed:
    """Randomness that is known beforehand: pieces are handed out in order and must fit."""

    def __init__(self, *pieces: bytes) -> None:
        """Hand out `pieces`."""
        self._pieces = list(pieces)

    def bytes(self, n_bytes: int) -> bytes:
        """Return the next piece."""
        piece = self._pieces.pop(0)
        assert len(piece) == n_bytes, f"{n_bytes} bytes are drawn, {len(piece)} are known"
        return piece


def bundle_of(owner: Json) -> KeyBundle:
    """Return the keys of a group."""
    master = SecretKey(bytes.fromhex(owner["master"]))
    collection, policy = bytes.fromhex(owner["collection"]), bytes.fromhex(owner["policy"])
    return KeyBundle.from_master(master, collection, owner["epoch"], policy)


def scoring_of(case: Json) -> Scoring:
    """Return the scoring of a case."""
    return Scoring(**case["scoring"])


def counts_of(documents: Sequence[Json]) -> Counts:
    """Count documents; the analyzer leaves their terms as they are."""
    analyzer = make_analyzer(ANALYZER)
    texts = [" ".join(document["terms"]) for document in documents]
    cut = [analyzer.tokens(text) for text in texts]
    assert cut == [document["terms"] for document in documents], "terms that the analyzer changes"
    return count_corpus(analyzer, texts)


@dataclass(frozen=True)
class Built:
    """A segment and what its builder knows."""

    builder: SegmentBuilder
    counts: Counts
    data: bytes

    @property
    def rows(self) -> list[list[int]]:
        """Document numbers of each row."""
        return [members.tolist() for members in self.builder.rows.members]


def build(case: Json, order: Sequence[int] | None = None) -> Built:
    """Build the segment of a case.

    Args:
        case: owner, salt, documents, scoring, shape and widths.
        order: order of the rows.  The builder's own comes from a linear algebra library and may
            differ between platforms; a vector fixes it.
    """
    counts = counts_of(case["documents"])
    members = [Member(d["id"], d["title"], d["snippet"]) for d in case["documents"]]

    def place(*_: Any) -> NDArray[np.int64]:
        return np.array(order, np.int64)

    def construct() -> SegmentBuilder:
        return SegmentBuilder(
            counts,
            members,
            scoring_of(case),
            bundle_of(case["owner"]),
            collection=bytes.fromhex(case["owner"]["collection"]),
            epoch=case["owner"]["epoch"],
            random=Fixed(bytes.fromhex(case["salt"])),
            block=BlockShape(case["fan_out"], case["n_checks"]),
            n_tables=case["n_tables"],
            geometry=[LevelGeometry(w0, w1, case["n_tables"]) for w0, w1 in case["widths"]],
        )

    if order is None:
        builder = construct()
    else:
        with mock.patch("mksearch.index.builder.similarity_order", place):
            builder = construct()
    data = np.zeros(builder.layout.n_bytes, np.uint8)
    builder.write(data)
    return Built(builder, counts, data.tobytes())


def dictionary_of(case: Json, built: Built) -> Dictionary:
    """Return the dictionary of a group of this one segment."""
    vocabulary = built.counts.vocabulary
    return Dictionary(
        ANALYZER,
        (),
        case["scoring"],
        vocabulary.n_docs,
        vocabulary.total_length,
        vocabulary.terms,
        vocabulary.dfs,
        built.builder.n_dedicated,
        (built.builder.facts,),
    )


class Client:
    """A member of a group of one segment, and its servers."""

    def __init__(
        self,
        owner: Json,
        scoring: Mapping[str, str | float],
        dictionary: Dictionary,
        segment: bytes,
        analyzer: str = ANALYZER,
    ) -> None:
        """Open the group; `segment` is the whole file, which the servers hold."""
        self.reader = SegmentReader(np.frombuffer(segment, np.uint8))
        self.collection = bytes.fromhex(owner["collection"])
        nothing = ObjectRef(bytes(32), 0)
        group = Group(
            bytes.fromhex(owner["policy"]),
            owner["epoch"],
            analyzer,
            scoring,
            dictionary.n_docs,
            (SegmentRef(self.reader.id, len(segment), self.reader.header.salt),),
            nothing,
            nothing,
            nothing,
        )
        self.view = GroupView(
            group, bundle_of(owner), self.collection, dictionary, [segment[:HEADER_BYTES]]
        )

    @classmethod
    def of(cls, case: Json, built: Built) -> Client:
        """Open the group of a built segment."""
        return cls(case["owner"], case["scoring"], dictionary_of(case, built), built.data)

    @property
    def segment(self) -> SegmentView:
        """The segment."""
        return self.view.segments[0]

    def terms(self, query: str) -> list[str]:
        """Return the terms of a query, as the group's analyzer cuts it."""
        return list(self.view.analyzer.explain(query).terms)

    def question(self, terms: Iterable[str]) -> Question:
        """Return the question of some terms (for other analyzers: of some words)."""
        return parse_question(self.view, " ".join(terms))

    def parts(self, question: Question) -> list[dict[int, int]]:
        """Return how the terms of a question are dealt to vectors."""
        return split_query(question.weights)

    def trapdoor(self, terms: Iterable[str], level: int = 0) -> Trapdoor:
        """Return the vectors of some terms."""
        return make_trapdoor(self.view, self.question(terms), level)

    def attempt(
        self, trapdoor: Trapdoor, quorum: Quorum, random: RandomSource, level: int = 0
    ) -> Attempt:
        """Start an attempt."""
        return Attempt(self.segment, trapdoor, quorum, random, version=1, level=level)

    def answer(self, attempt: Attempt, server: int, level: int = 0) -> ScoreAnswer:
        """Return what an honest server answers."""
        request = attempt.request(server)
        geometry = self.reader.header.layout.levels[level]
        sums = NumpyEngine().score(self.reader.level(level), geometry, request.shares)
        return ScoreAnswer(request.query_id, sums)

    def source(
        self,
        terms: Iterable[str],
        quorum: Quorum,
        random: RandomSource,
        servers: Sequence[int],
        errors: Sequence[Json] = (),
    ) -> tuple[Source, Attempt]:
        """Ask servers and return proved bounds; `errors` are added to answers."""
        question = self.question(terms)
        trapdoor = make_trapdoor(self.view, question)
        attempt = self.attempt(trapdoor, quorum, random)
        for server in servers:
            answer = self.answer(attempt, server)
            attempt.add(server, with_errors(answer, server, errors))
        bounds = row_bounds(self.segment, attempt.combine(), trapdoor.units)
        return Source(self.view, self.segment, question, bounds), attempt

    def descend(
        self,
        terms: Iterable[str],
        random: RandomSource,
        servers: Sequence[int],
        k: int,
        errors: Sequence[Json] = (),
    ) -> tuple[list[Hit], Descent, set[int]]:
        """Open blocks until the hits are proved; `errors` are added to answers of their level."""
        question = self.question(terms)
        nothing = np.zeros(0, np.int64)
        descent = Descent([Source(self.view, self.segment, question, nothing)], k)
        liars: set[int] = set()
        while True:
            openings = descent.wanted()
            for opening in openings:
                level, blocks = opening.level, opening.blocks
                trapdoor = make_trapdoor(self.view, question, level)
                attempt = Attempt(
                    self.segment, trapdoor, Quorum(), random, version=1, level=level, blocks=blocks
                )
                for server in servers:
                    answer = self._blocks(attempt, server, level, blocks)
                    here = [error for error in errors if error["level"] == level]
                    attempt.add(server, with_errors(answer, server, here))
                descent.add(opening, attempt.combine(), trapdoor.units)
                liars.update(attempt.liars)
            while wanted := descent.ranking.wanted():
                records = self.records([row for _, row in wanted])
                for number, row in wanted:
                    descent.ranking.add(number, row, records[row])
            if not openings:
                return descent.ranking.hits(), descent, liars

    def _blocks(
        self, attempt: Attempt, server: int, level: int, blocks: Sequence[int]
    ) -> ScoreAnswer:
        request, layout = attempt.request(server), self.reader.header.layout
        cells, geometry = self.reader.level(level), layout.levels[level]
        height = layout.block.height
        sums = score_blocks(NumpyEngine(), cells, geometry, request.shares, height, blocks)
        return ScoreAnswer(request.query_id, sums)

    def records(self, rows: Sequence[int]) -> Mapping[int, Record]:
        """Read records as an honest server sends them."""
        slots = self.reader.slots()
        reading = read_records(self.segment.slots, rows, len(self.view.dictionary.terms))
        wanted = next(reading)
        while True:
            try:
                wanted = reading.send(np.array(slots[wanted]))
            except StopIteration as done:
                found: Mapping[int, Record] = done.value
                return found

    def rank(self, source: Source, k: int, max_records: int = 1 << 20) -> tuple[list[Hit], bool]:
        """Return the hits, and whether they are exact."""
        ranking = Ranking([source], k, max_records=max_records)
        while wanted := ranking.wanted():
            records = self.records([row for _, row in wanted])
            for number, row in wanted:
                ranking.add(number, row, records[row])
        return ranking.hits(), ranking.exact


def with_errors(answer: ScoreAnswer, server: int, errors: Sequence[Json]) -> ScoreAnswer:
    """Return an answer with the errors of its server added to it, in the first vector."""
    sums = answer.sums.copy()
    for error in errors:
        if error["server"] == server:
            at = 0, error["row"], error["table"]
            sums[at] = (int(sums[at]) + error["add"]) % 65521
    return ScoreAnswer(answer.query_id, sums)


def exception_of(error: MksearchError) -> str:
    """Return the name that vectors give to a refusal: the exception's class."""
    return type(error).__name__
