"""Search: ask t + 1 servers, prove their answers, read the records that prove the ranking.

Data flow: query -> question and trapdoor -> one attempt a segment, t + 1 servers, further ones on
failure -> proved sums -> bounds -> records by falling bound from any server -> hits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.kdf import sha256
from mksearch.crypto.randomness import RandomSource
from mksearch.errors import (
    FormatError,
    InputError,
    ManifestRefused,
    NotEnoughAnswers,
    VerificationError,
)
from mksearch.index.catalogue import Lookup
from mksearch.index.document import StoredDocument
from mksearch.index.manifest import Group, ObjectRef, SignedManifest
from mksearch.index.record import Record
from mksearch.index.segment import HEADER_BYTES
from mksearch.index.stream import open_stream
from mksearch.messages import RecordAnswer, RecordRequest, ScoreAnswer, ScoreRequest
from mksearch.params import MANIFEST_WARNING_S, MAX_RECORDS, Quorum
from mksearch.query.answer import Attempt
from mksearch.query.group import GroupView, SegmentView, open_dictionary
from mksearch.query.ranking import Hit, Ranking, Source, row_bounds
from mksearch.query.records import open_document, read_records, require_object
from mksearch.query.trapdoor import Question, make_trapdoor, parse_question
from mksearch.text.weights import SCORE_ONE
from mksearch_client.asking import Asking, Servers
from mksearch_client.keys import MemberKeys
from mksearch_client.result import SearchHit, SearchResult

__all__ = ["Cache", "Connection", "Searcher"]

_READ_BYTES = 1 << 20
_T = TypeVar("_T")


class Connection(Protocol):
    """What searching asks of a server."""

    def manifest(self) -> bytes:
        """Return the active signed manifest."""
        ...

    def score(self, request: ScoreRequest) -> ScoreAnswer:
        """Score a query share."""
        ...

    def records(self, request: RecordRequest) -> RecordAnswer:
        """Return record slots."""
        ...

    def read_object(self, name: bytes, offset: int, n_bytes: int) -> bytes:
        """Return a piece of a stored object."""
        ...


class Cache(Protocol):
    """Keeps sealed objects between searches; what it returns proves itself by its name."""

    def get(self, name: bytes) -> bytes | None:
        """Return an object that was kept, or None."""
        ...

    def put(self, name: bytes, data: bytes) -> None:
        """Keep an object."""
        ...


class _NoCache:
    def get(self, name: bytes) -> bytes | None:  # noqa: ARG002 - nothing is kept
        return None

    def put(self, name: bytes, data: bytes) -> None:
        """Keep nothing."""


class Searcher:
    """Asks one collection as a member of one policy group.

    Open it once and ask many questions: dictionary, headers and check vectors are kept.
    """

    def __init__(  # noqa: PLR0913 - options, all by name
        self,
        connections: Mapping[int, Connection],
        keys: MemberKeys,
        random: RandomSource,
        *,
        addresses: Mapping[int, str] | None = None,
        seen: SignedManifest | None = None,
        quorum: Quorum | None = None,
        cache: Cache | None = None,
        clock: Callable[[], float] = time.time,
        accept_expired: bool = False,
        hedge_s: float = 1.0,
        on_close: Callable[[], None] | None = None,
        on_seen: Callable[[SignedManifest], None] | None = None,
    ) -> None:
        """Prepare to ask; nothing is sent before the first question.

        Args:
            connections: servers by id.
            keys: the member's keys.
            random: source of the polynomials.
            addresses: where each server is, for reports.
            seen: highest version that this profile has seen.
            quorum: number of servers and collusion bound, as the owner's card says.
            cache: keeps sealed objects between searches.
            clock: Unix seconds.
            accept_expired: use an expired manifest all the same.
            hedge_s: seconds without an answer after which one more server is asked.
            on_close: lets go of the connections.
            on_seen: told of every newer version, to remember it.
        """
        self._connections = connections
        self._addresses = addresses or {}
        self._keys = keys
        self._random = random
        self._clock = clock
        self._accept_expired = accept_expired
        self._seen = seen
        self._quorum = quorum or Quorum()
        self._cache: Cache = cache or _NoCache()
        self._hedge_s = hedge_s
        self._on_close = on_close or (lambda: None)
        self._on_seen = on_seen or (lambda _signed: None)
        self._pool = ThreadPoolExecutor(2 * len(connections) or 1, "servers")
        self._view: GroupView | None = None
        self._lookup: Lookup | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the servers; questions under way end with an error."""
        self._on_close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> Servers[Connection]:
        return Servers(self._connections, self._addresses, self._pool, hedge_s=self._hedge_s)

    @property
    def seen(self) -> SignedManifest | None:
        """Highest version seen so far."""
        return self._seen

    # --- opening the collection

    def refresh(self) -> GroupView:
        """Ask at least t + 1 servers for the manifest and open the newest version.

        Raises:
            NotEnoughAnswers: fewer than t + 1 valid manifests.
            ManifestExpired: the newest one has expired.
            VerificationError: nothing of it opens.
        """
        return self._open(self._start())

    def _open(self, servers: Servers[Connection]) -> GroupView:
        signed = self._newest_manifest(servers)
        if not self._accept_expired:
            signed.require_current(int(self._clock()))
        if self._view is None or self._seen is None or self._seen.hash != signed.hash:
            group = self._own_group(signed)
            collection = self._keys.collection
            sealed = self._fetch_object(servers, group.dictionary, "the dictionary")
            dictionary = open_dictionary(self._keys.bundle, collection, sealed)
            headers = [self._fetch_header(servers, ref.id) for ref in group.segments]
            self._view = GroupView(group, self._keys.bundle, collection, dictionary, headers)
            self._lookup = None
        if self._seen is None or self._seen.hash != signed.hash:
            self._on_seen(signed)
        self._seen = signed
        return self._view

    def _newest_manifest(self, servers: Servers[Connection]) -> SignedManifest:
        """Return the newest of at least t + 1 valid manifests; mark the servers that lag."""
        found: dict[int, SignedManifest] = {}

        def ask(server: int) -> bytes:
            return servers.connections[server].manifest()

        def take(server: int, data: bytes) -> None:
            signed = SignedManifest.decode(data, self._keys.owner_key, self._keys.collection)
            for other in [self._seen, *found.values()]:
                if other is not None and signed.manifest.version >= other.manifest.version:
                    signed.require_not_older(other)
            found[server] = signed

        def need() -> int:
            stated = [signed.manifest.quorum.threshold for signed in found.values()]
            return max([self._quorum.threshold, *stated])

        if not Asking(servers, ask, take).until(lambda: need() - len(found)):
            raise servers.refusal("manifests", len(found), need())
        known = [*found.values(), *([self._seen] if self._seen is not None else [])]
        newest = max(known, key=lambda signed: signed.manifest.version)
        for server, signed in found.items():
            if signed.manifest.version < newest.manifest.version:
                servers.mark(
                    server,
                    "stale",
                    f"serves version {signed.manifest.version}, the newest seen is "
                    f"{newest.manifest.version}",
                )
        return newest

    def _own_group(self, signed: SignedManifest) -> Group:
        for group in signed.manifest.groups:
            if group.policy == self._keys.policy and group.epoch == self._keys.epoch:
                return group
        raise ManifestRefused(
            f"version {signed.manifest.version} has no group of this member's keys",
            cure="enrol again for the current epoch",
        )

    def _fetch_object(self, servers: Servers[Connection], ref: ObjectRef, what: str) -> bytes:
        """Return an object from the cache or from any server, proved by its name."""
        kept = self._cache.get(ref.id)
        if kept is not None and len(kept) == ref.size and sha256(kept) == ref.id:
            return kept

        def fetch(server: int) -> bytes:
            return _read_object(servers.connections[server], ref, what)

        data = _first_good(servers, fetch, what)
        self._cache.put(ref.id, data)
        return data

    def _fetch_header(self, servers: Servers[Connection], segment: bytes) -> bytes:
        kept = self._cache.get(segment)
        if kept is not None and sha256(kept) == segment:
            return kept

        def fetch(server: int) -> bytes:
            data = servers.connections[server].read_object(segment, 0, HEADER_BYTES)
            return require_object(segment, HEADER_BYTES, data, "a segment header")

        data = _first_good(servers, fetch, "segment headers")
        self._cache.put(segment, data)
        return data

    # --- searching

    def search(
        self, query: str, k: int = 10, *, offset: int = 0, max_records: int | None = None
    ) -> SearchResult:
        """Return the ``k`` best documents for ``query``, proved.

        Args:
            query: what the user typed; never sent.
            k: hits wanted, 1..10000; fewer come when fewer documents match.
            offset: hits left out before them.
            max_records: records that may be read; None for 2000 or twice the hits wanted.

        Raises:
            QueryError: k, offset or the length of the query is out of range.
            AnswerRefused: servers lied and too few honest ones remain; they are named.
            NotEnoughAnswers: fewer than t + 1 servers answered.
            VerificationError: manifest, dictionary or records are not right.
        """
        started = time.perf_counter()
        Ranking([], k, offset=offset, max_records=max_records)
        servers = self._start()
        run = _Search(servers, self._random)
        view = run.timed("manifest", lambda: self._open(servers))
        if self._seen is None:
            raise VerificationError("no manifest was proved")
        quorum = self._seen.manifest.quorum
        version = self._seen.manifest.version
        question = run.timed("trapdoor", lambda: parse_question(view, query))
        sources = [
            Source(view, segment, question, run.bounds(view, segment, question, quorum, version))
            for segment in view.segments
        ]
        ranking = Ranking(sources, k, offset=offset, max_records=max_records)
        run.timed("records", lambda: run.read(ranking, sources, version))
        total_ms = 1000 * (time.perf_counter() - started)
        warnings = _question_warnings(view, question) + self._warnings(ranking)
        return SearchResult(
            query=query,
            k=k,
            n_docs=view.dictionary.n_docs,
            version=version,
            verified=True,
            exact=ranking.exact,
            privacy="balanced",
            hits=tuple(_show(hit, rank) for rank, hit in enumerate(ranking.hits(), 1 + offset)),
            servers=tuple(servers.reports.values()),
            learned=_learned(quorum, run.n_vectors, run.n_slots),
            warnings=tuple(warnings),
            groups=1,
            records_fetched=ranking.n_records,
            rounds=run.n_rounds,
            bytes_sent=run.bytes_sent,
            bytes_received=run.bytes_received,
            timings_ms={"total": total_ms, **run.timings_ms},
        )

    def _warnings(self, ranking: Ranking) -> list[str]:
        warnings = []
        if not ranking.exact:
            warnings.append(
                f"not exact: {ranking.n_records} records were read and more may score higher; "
                "raise --max-records"
            )
        if self._seen is not None:
            left_s = self._seen.manifest.expires_at - int(self._clock())
            if left_s < 0:
                warnings.append(f"the manifest expired {-left_s} s ago and was accepted")
            elif left_s < MANIFEST_WARNING_S:
                warnings.append(f"the manifest expires in {left_s // 86400} days")
        return warnings

    def open(self, external_id: str) -> StoredDocument:
        """Fetch and open the whole document ``external_id``.

        Raises:
            InputError: there is no such document.
            VerificationError: no server sent the right bytes.
        """
        servers = self._start()
        view = self._open(servers)
        collection = self._keys.collection
        if self._lookup is None:
            sealed = self._fetch_object(servers, view.group.lookup, "the lookup")
            key = self._keys.bundle.section_key("lookup")
            content = open_stream(key, "lookup", collection, sealed)
            self._lookup = Lookup.decode(self._keys.bundle, content)
        entry = self._lookup.find(external_id)
        if entry is None:
            raise InputError(
                f"there is no document {external_id!r}", cure="use an id that a search showed"
            )
        ref = ObjectRef(entry.blob, entry.size)

        def fetch(server: int) -> StoredDocument:
            data = _read_object(servers.connections[server], ref, "a document")
            return open_document(entry.key, collection, ref.id, data)

        return _first_good(servers, fetch, f"document {external_id!r}")


class _Search:
    """The rounds of one search."""

    def __init__(self, servers: Servers[Connection], random: RandomSource) -> None:
        self._servers = servers
        self._random = random
        self.n_rounds = 0
        self.n_vectors = 0
        self.n_slots = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        self.timings_ms: dict[str, float] = {}

    def timed(self, part: str, work: Callable[[], _T]) -> _T:
        """Do ``work`` and add its time to ``part``."""
        started = time.perf_counter()
        try:
            return work()
        finally:
            spent_ms = 1000 * (time.perf_counter() - started)
            self.timings_ms[part] = self.timings_ms.get(part, 0.0) + spent_ms

    def bounds(
        self,
        view: GroupView,
        segment: SegmentView,
        question: Question,
        quorum: Quorum,
        version: int,
    ) -> NDArray[np.int64] | NDArray[np.object_]:
        """Return proved bounds of every row of a segment."""
        trapdoor = self.timed("trapdoor", lambda: make_trapdoor(view, question))
        attempt = Attempt(segment, trapdoor, quorum, self._random, version=version)
        self.n_vectors += len(trapdoor.vectors)
        self.n_rounds += 1

        def ask(server: int) -> ScoreAnswer:
            return self._servers.connections[server].score(attempt.request(server))

        def take(server: int, answer: ScoreAnswer) -> None:
            self.bytes_sent += trapdoor.vectors.nbytes
            self.bytes_received += answer.sums.nbytes
            attempt.add(server, answer)

        asking = Asking(self._servers, ask, take)
        while True:
            enough = self.timed(
                "servers", lambda: asking.until(lambda: quorum.threshold - attempt.n_honest)
            )
            if not enough:
                raise self._servers.refusal("sums", attempt.n_honest, quorum.threshold)
            try:
                sums = self.timed("check", attempt.combine)
            except NotEnoughAnswers:
                self._mark_liars(attempt)
                continue
            self._mark_liars(attempt)
            return row_bounds(segment, sums, trapdoor.units)

    def _mark_liars(self, attempt: Attempt) -> None:
        for server in attempt.liars:
            self._servers.mark(server, "lied", "its answer fails the check rows")

    def read(self, ranking: Ranking, sources: Sequence[Source], version: int) -> None:
        """Feed ``ranking`` until its hits are proved."""
        while wanted := ranking.wanted():
            by_source: dict[int, list[int]] = {}
            for source, row in wanted:
                by_source.setdefault(source, []).append(row)
            for number, rows in by_source.items():
                records = self._read_rows(sources[number], rows, version)
                for row in rows:
                    ranking.add(number, row, records[row])

    def _read_rows(self, source: Source, rows: Sequence[int], version: int) -> Mapping[int, Record]:
        found: list[_RecordsRead] = []

        def ask(server: int) -> _RecordsRead:
            return _RecordsRead(
                self._servers.connections[server],
                source.segment,
                rows,
                n_terms=len(source.group.dictionary.terms),
                version=version,
            )

        def take(_server: int, read: _RecordsRead) -> None:
            found.append(read)

        asking = Asking(self._servers, ask, take)
        if not asking.until(lambda: 1 - len(found)):
            raise self._servers.refusal("records", 0, 1)
        read = found[0]
        self.n_rounds += read.n_rounds
        self.n_slots += read.n_slots
        self.bytes_sent += read.bytes_sent
        self.bytes_received += read.bytes_received
        return read.records


class _RecordsRead:
    """Records of some rows, fetched from one server and opened."""

    def __init__(
        self,
        connection: Connection,
        segment: SegmentView,
        rows: Sequence[int],
        *,
        n_terms: int,
        version: int,
    ) -> None:
        self._connection = connection
        self._segment = segment
        self._version = version
        self.n_rounds = 0
        self.n_slots = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        self.records: Mapping[int, Record] = self._drive(read_records(segment.slots, rows, n_terms))

    def _drive(
        self, reading: Generator[NDArray[np.int64], NDArray[np.uint16], Mapping[int, Record]]
    ) -> Mapping[int, Record]:
        slots = next(reading)
        while True:
            self.n_rounds += 1
            self.n_slots += len(slots)
            parts = [
                self._fetch(slots[start : start + MAX_RECORDS])
                for start in range(0, len(slots), MAX_RECORDS)
            ]
            try:
                slots = reading.send(parts[0] if len(parts) == 1 else np.concatenate(parts))
            except StopIteration as done:
                records: Mapping[int, Record] = done.value
                return records

    def _fetch(self, slots: NDArray[np.int64]) -> NDArray[np.uint16]:
        width = self._segment.slots.shape.width
        request = RecordRequest(self._version, self._segment.id, slots, width)
        elements = self._connection.records(request).elements
        self.bytes_sent += request.slots.nbytes
        self.bytes_received += elements.nbytes
        return elements


def _read_object(connection: Connection, ref: ObjectRef, what: str) -> bytes:
    """Read an object of known size from one server, in pieces, and prove its name."""
    pieces: list[bytes] = []
    n_read = 0
    while n_read < ref.size:
        n_wanted = min(_READ_BYTES, ref.size - n_read)
        piece = connection.read_object(ref.id, n_read, n_wanted)
        # An honest server sends all that it was asked for; anything else cannot end well.
        if len(piece) != n_wanted:
            raise FormatError(f"{what}: {len(piece)} of {n_wanted} bytes asked for came")
        pieces.append(piece)
        n_read += n_wanted
    return require_object(ref.id, ref.size, b"".join(pieces), what)


def _first_good(servers: Servers[Connection], fetch: Callable[[int], _T], what: str) -> _T:
    """Return what the first server sends that proves right; remember what the others did."""
    found: list[_T] = []

    def take(_server: int, value: _T) -> None:
        found.append(value)

    if not Asking(servers, fetch, take).until(lambda: 1 - len(found)):
        raise servers.refusal(what, 0, 1)
    return found[0]


def _show(hit: Hit, rank: int) -> SearchHit:
    member = hit.member
    return SearchHit(rank, hit.score / SCORE_ONE, member.id, member.title, member.snippet)


def _question_warnings(view: GroupView, question: Question) -> list[str]:
    """Say in words why a question, or a part of it, can match nothing."""
    warnings = []
    words = question.words
    if words.stop_words:
        listed = ", ".join(dict.fromkeys(words.stop_words))
        warnings.append(f"too common to be searched ({view.analyzer.name}): {listed}")
    if question.unknown:
        warnings.append(f"in no document: {', '.join(question.unknown)}")
    if not words.n_words:
        warnings.append("the query holds no letter or digit to search for")
    return warnings


def _learned(quorum: Quorum, n_vectors: int, n_slots: int) -> tuple[str, ...]:
    t = quorum.collusion_bound
    few = "1 server alone" if t == 1 else f"up to {t} colluding servers"
    length = "1 vector" if n_vectors == 1 else f"{n_vectors} vectors"
    words = f"{few}: that a query of {length} came and when; no word, weight or score of it"
    records = (
        f"the servers asked for records: which {n_slots} permuted record numbers were read, so "
        "they recognise queries that read the same records"
    )
    columns = (
        f"{t + 1} or more colluding servers: also the query's column numbers and weights; never a "
        "cell, a title or a document"
    )
    return words, records, columns
