"""A search, both sides (section 8), on the rows of documents and without private record fetch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

from .field import P, interpolate, shamir
from .index import Columns, Matrix, check_row, check_weight, columns_of, physical
from .keys import Bundle, SegmentKeys, column_keys, lookup_key, segment_keys
from .keystream import MASK, word
from .records import open_record, require_known_terms
from .refused import Refused, require
from .segment import Segment, read_header, segment_id
from .stream import Dictionary, lookup_place
from .text import Part, Scoring, deal, document_weights, quantised_query, query_weights, score

Sums = list[list[int]]
"""Of every physical row, one sum a table."""


class Answer(NamedTuple):
    """What a server returns for a share: the id of the query that it answers, and sums."""

    query_id: bytes
    sums: Sums


class Server(Protocol):
    """What a client can ask of a server."""

    def answer(self, query_id: bytes, level: int, share: list[int]) -> Answer:
        """Return the sums of a level (8.3)."""

    def slots(self, numbers: list[int]) -> list[list[int]]:
        """Return physical slots."""


class HonestServer:
    """A server that follows the protocol."""

    def __init__(self, segment: Segment) -> None:
        """Serve one segment."""
        self.segment = segment

    def answer(self, query_id: bytes, level: int, share: list[int]) -> Answer:
        """Return the sums of a level."""
        here = self.segment.levels[level]
        shape = Columns(here.w0, here.w1, self.segment.n_tables, [])
        return Answer(query_id, sums_of(here.matrix, shape, share))

    def slots(self, numbers: list[int]) -> list[list[int]]:
        """Return physical slots."""
        return [self.segment.slots[number] for number in numbers]


def query_vector(part: Part, columns: Columns) -> list[int]:
    """Return q of a part on a level (8.1)."""
    q = [0] * columns.width
    for term, weight in part.weights.items():
        for c in columns.of[term]:
            q[c] += weight
    return q


def sums_of(matrix: Matrix, columns: Columns, share: Sequence[int]) -> Sums:
    """Return the sums of a server that holds `matrix`; refuse at 8.3 what is no share.

    Choice: the text does not say that a server refuses another length or an element >= p.
    """
    require(len(share) == columns.width, "8.3", f"a share of {len(share)} elements")
    require(all(0 <= value < P for value in share), "8.3", "an element of a share is not below p")
    panels = [list(columns.panel(g)) for g in range(columns.n_tables)]
    return [[sum(row[c] * share[c] for c in panel) % P for panel in panels] for row in matrix]


def combine(answers: Mapping[int, Sums], at: int = 0) -> Sums:
    """Return the value at `at` of the polynomials through the answers (8.4, 8.7)."""
    n_rows = len(next(iter(answers.values())))
    return [interpolate({j: sums[row] for j, sums in answers.items()}, at) for row in range(n_rows)]


class View(NamedTuple):
    """What a member needs to unmask and check a level."""

    keys: SegmentKeys
    level: int
    columns: Columns
    fan_out: int
    n_checks: int

    def unmask(
        self, sums: Sums | Mapping[int, list[int]], vector: Sequence[int], rows: Sequence[int]
    ) -> dict[int, list[int]]:
        """Take the mask times `vector` off the sums of these physical rows (8.5, 8.7)."""
        panels = [
            [c for c in self.columns.panel(g) if vector[c]] for g in range(self.columns.n_tables)
        ]
        return {
            row: [
                (total - sum(vector[c] * self._mask(c, row) for c in panel)) % P
                for total, panel in zip(sums[row], panels, strict=True)
            ]
            for row in rows
        }

    def _mask(self, column: int, row: int) -> int:
        return word(self.keys.mask, MASK, self.level, column, row)

    def rows_of(self, block: int) -> range:
        """Return the physical rows of a block."""
        size = self.fan_out + self.n_checks
        return range(block * size, (block + 1) * size)

    def holds(self, block: int, sums: Mapping[int, Sequence[int]]) -> bool:
        """Tell whether all checks of a block hold, for every table (8.6)."""
        children = self.rows_of(block)[: self.fan_out]
        for k in range(self.n_checks):
            weights = [check_weight(self.keys.check, self.level, k, row) for row in children]
            given = sums[check_row(block, k, self.fan_out, self.n_checks)]
            for g, value in enumerate(given):
                total = sum(v * sums[row][g] for v, row in zip(weights, children, strict=True))
                if total % P != value:
                    return False
        return True

    def lied(self, block: int, sums: Sums | Mapping[int, list[int]], share: Sequence[int]) -> bool:
        """Judge one answer alone, in one block (8.7)."""
        return not self.holds(block, self.unmask(sums, share, self.rows_of(block)))


class Accepted(NamedTuple):
    """Right sums of a level: W q of all physical rows, and the servers that lied."""

    sums: dict[int, list[int]]
    liars: frozenset[int]


def require_answer(answer: Answer, query_id: bytes, n_rows: int, n_tables: int) -> Sums:
    """Return the sums of an answer; refuse at 8.4 what cannot be an answer to this query."""
    require(answer.query_id == query_id, "8.4", "an answer to another query")
    shape = [len(row) for row in answer.sums]
    require(shape == [n_tables] * n_rows, "8.4", "an answer of another shape")
    small = all(0 <= value < P for row in answer.sums for value in row)
    require(small, "8.4", "an element is not below p")
    return answer.sums


def run_vector(
    view: View,
    n_rows: int,
    q: Sequence[int],
    coefficients: Sequence[Sequence[int]],
    servers: Mapping[int, Server],
    n_asked: int = 0,
    query_id: bytes = bytes(16),
) -> Accepted:
    """Ask servers, in the order of the mapping, until t + 1 right answers agree (8.2 to 8.7).

    Choice: "a failing block" and "a block that differs" are all such blocks.

    Args:
        view: keys and shape of the level.
        n_rows: physical rows of the level.
        q: query vector.
        coefficients: t vectors, uniform over F_p^D.
        servers: by id.
        n_asked: servers asked at first, at least t + 1.
        query_id: tells this attempt from others.
    """
    threshold = len(coefficients) + 1
    waiting, answers, liars = list(servers), dict[int, Sums](), set[int]()

    def ask() -> None:
        if not waiting:
            raise Refused("8.7", f"{len(answers)} answers, {threshold} needed", liars)
        j = waiting.pop(0)
        answer = servers[j].answer(query_id, view.level, shamir(q, coefficients, j))
        try:
            answers[j] = require_answer(answer, query_id, n_rows, view.columns.n_tables)
        except Refused:
            liars.add(j)

    def judge(ids: Sequence[int], blocks: Sequence[int]) -> set[int]:
        shares = {j: shamir(q, coefficients, j) for j in ids}
        return {j for j in ids for block in blocks if view.lied(block, answers[j], shares[j])}

    blocks = range(n_rows // (view.fan_out + view.n_checks))
    for _ in range(max(threshold, min(n_asked, len(servers)))):
        ask()
    while True:
        while len(answers) < threshold:
            ask()
        used = list(answers)[:threshold]
        combined = combine({j: answers[j] for j in used})
        sums = view.unmask(combined, q, range(n_rows))
        failing = [block for block in blocks if not view.holds(block, sums)]
        if not failing:
            break
        named = judge(used, failing)
        if not named:
            raise AssertionError("a failing block names nobody: this contradicts section 9")
        liars |= named
        for j in named:
            del answers[j]
    for j in list(answers)[threshold:]:
        right = combine({i: answers[i] for i in used}, at=j)
        differing = [b for b in blocks if any(right[r] != answers[j][r] for r in view.rows_of(b))]
        liars |= judge([j, *used], differing)
    return Accepted(sums, frozenset(liars))


class Hit(NamedTuple):
    """A document found; score in units of 2^-60."""

    score: int
    external_id: str
    title: str
    snippet: str


class Found(NamedTuple):
    """Result of a search."""

    hits: list[Hit]
    exact: bool
    liars: frozenset[int]
    n_records: int


def require_opening(
    group: Mapping[str, Any],
    collection: bytes,
    dictionary: Dictionary,
    first_pages: Sequence[bytes],
) -> None:
    """Refuse at 8.0 segment headers or a dictionary that are not those of the manifest.

    Args:
        group: entry of the manifest.
        collection: 16 bytes.
        dictionary: what was opened for the group.
        first_pages: the first 4096 bytes of every segment, as received.
    """
    entries = group["segments"]
    require(len(entries) == len(first_pages), "8.0", "another number of segments")
    for entry, data in zip(entries, first_pages, strict=True):
        require(segment_id(data) == entry["id"], "8.0", "a header of another segment")
        header = read_header(data)
        require(header["salt"] == entry["salt"], "8.0", "a header with another salt")
        require(header["collection"] == collection, "8.0", "a header of another collection")
        known = entry["salt"] in [facts.salt for facts in dictionary.segments]
        require(known, "8.0", "the dictionary does not know a segment")
    require(dictionary.analyzer == group["analyzer"], "8.0", "another analyzer")
    require(dictionary.scoring == Scoring(**group["scoring"]), "8.0", "another scoring")


class Member:
    """A user of a policy group, looking at one of its segments."""

    def __init__(
        self,
        bundle: Bundle,
        dictionary: Dictionary,
        segment: Segment,
        tombstones: Mapping[bytes, tuple[int, bool]] | None = None,
    ) -> None:
        """Prepare columns; of `segment` only the header is used.

        Args:
            bundle: keys of the group.
            dictionary: of the group.
            segment: one of its segments.
            tombstones: of this segment, row and `whole` by key.
        """
        self.keys = segment_keys(bundle, segment.salt)
        self.lookup_key = lookup_key(bundle)
        self.gone = dict(tombstones or {})
        self.dictionary = dictionary
        self.segment = segment
        self.entry = next(e for e in dictionary.segments if e.salt == segment.salt)
        self.views = []
        for level, here in enumerate(segment.levels):
            columns = columns_of(
                column_keys(bundle),
                level,
                dictionary.stats.terms,
                dictionary.n_dedicated[level],
                (here.w0, here.w1),
                segment.n_tables,
            )
            self.views.append(View(self.keys, level, columns, segment.fan_out, segment.n_checks))

    def query(self, terms: Sequence[str]) -> dict[int, int]:
        """Return Xt of the known terms."""
        return query_weights(self.dictionary.scoring, self.dictionary.stats, terms)

    def score_bound(self, row_bound: int) -> Fraction:
        """Return what no score below a row with this B exceeds (8.8)."""
        return self.entry.step * row_bound * Fraction(*self.entry.kappa)

    def bounds(
        self,
        level: int,
        query: Mapping[int, int],
        split: Sequence[Sequence[int]],
        draw: Callable[[int], list[int]],
        t: int,
        servers: Mapping[int, Server],
        n_asked: int = 0,
    ) -> tuple[list[int], frozenset[int]]:
        """Return B of every data row of a level, and the servers that lied.

        Args:
            level: level to read.
            query: Xt by term id.
            split: term ids of every part.
            draw: makes a vector of so many uniform elements of F_p.
            t: collusion bound.
            servers: by id, asked in this order.
            n_asked: servers asked at first.
        """
        view, segment = self.views[level], self.segment
        n_rows = len(segment.levels[level].matrix)
        n_data = segment.n_rows
        ratios = self.dictionary.ratios
        if ratios is not None:
            query = {i: -(-x * ratios[i] // 2**16) for i, x in query.items()}
        for _ in range(level):
            n_data = -(-n_data // segment.fan_out)
        places = [physical(r, segment.fan_out, segment.n_checks) for r in range(n_data)]
        bounds, liars = [0] * n_data, frozenset[int]()
        for part in quantised_query(query, split):
            q = query_vector(part, view.columns)
            coefficients = [draw(view.columns.width) for _ in range(t)]
            accepted = run_vector(view, n_rows, q, coefficients, servers, n_asked)
            liars |= accepted.liars
            for r, row in enumerate(places):
                bounds[r] += part.u * min(accepted.sums[row])
        if level == 0:
            for row, whole in self.gone.values():
                bounds[row] = 0 if whole else bounds[row]
        return bounds, liars

    def search(
        self,
        terms: Sequence[str],
        k: int,
        draw: Callable[[int], list[int]],
        t: int,
        servers: Mapping[int, Server],
        max_records: int = 1 << 30,
        split: Sequence[Sequence[int]] | None = None,
        n_asked: int = 0,
    ) -> Found:
        """Search (8.1 to 8.10); arguments as for `bounds`."""
        query = self.query(terms)
        split = deal(query) if split is None else split
        bounds, liars = self.bounds(0, query, split, draw, t, servers, n_asked)
        order = sorted((r for r, b in enumerate(bounds) if b), key=lambda r: (-bounds[r], r))
        hits: list[Hit] = []
        exact = True
        n_records = 0
        for r in order:
            if len(hits) >= k and hits[k - 1].score > self.score_bound(bounds[r]):
                break
            if n_records == max_records:
                exact = False
                break
            found, refused = self.fetch(r, query, servers)
            n_records += 1
            liars |= refused
            hits = sorted(hits + found, key=lambda hit: (-hit.score, hit.external_id.encode()))
        return Found(hits[:k], exact, liars, n_records)

    def fetch(
        self, r: int, query: Mapping[int, int], servers: Mapping[int, Server]
    ) -> tuple[list[Hit], frozenset[int]]:
        """Return the hits of a row, whoever sends its record, and who sent a bad one (8.10)."""
        refusals: dict[int, Refused] = {}
        for j, server in servers.items():
            try:
                row = open_record(self.segment.layout, self.keys, r, server.slots)
                require_known_terms(row, len(self.dictionary.stats.terms))
            except Refused as refused:
                refusals[j] = refused
                continue
            stats = self.dictionary.stats
            weights = document_weights(self.dictionary.scoring, stats, row.tfs, row.length)
            total = score(weights, query)
            live = [m for m in row.members if lookup_place(self.lookup_key, m[0]) not in self.gone]
            hits = [Hit(total, *member) for member in live if total > 0]
            return hits, frozenset(refusals)
        last = list(refusals.values())[-1]
        raise Refused(last.step, f"no server has row {r}: {last.why}", refusals)
