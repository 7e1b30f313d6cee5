"""Search: ask t + 1 servers, prove their answers, read the records that prove the ranking.

Data flow: query -> question and trapdoor -> one attempt a segment, t + 1 servers, further ones on
failure -> proved sums -> bounds -> records by falling bound from any server -> hits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from mksearch.crypto.kdf import sha256
from mksearch.crypto.randomness import RandomSource
from mksearch.errors import (
    InputError,
    ManifestRefused,
    NotEnoughAnswers,
    VerificationError,
)
from mksearch.index.catalogue import Lookup
from mksearch.index.document import StoredDocument
from mksearch.index.manifest import Group, ObjectRef, SignedManifest
from mksearch.index.segment import HEADER_BYTES
from mksearch.index.stream import open_stream
from mksearch.params import MANIFEST_WARNING_S, Quorum
from mksearch.query.group import GroupView, open_dictionary
from mksearch.query.ranking import Hit, Ranking, Source
from mksearch.query.records import open_document, require_object
from mksearch.query.trapdoor import Question, parse_question
from mksearch.text.weights import SCORE_ONE
from mksearch_client.asking import Asking, Servers
from mksearch_client.fetching import Cache, Connection, NoCache, first_good, read_object
from mksearch_client.keys import MemberKeys
from mksearch_client.result import SearchHit, SearchResult
from mksearch_client.rounds import SearchRounds

__all__ = ["Cache", "Connection", "Searcher"]

#: Unknown words that a warning lists.
_WORDS_SHOWN = 20


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
        self._cache: Cache = cache or NoCache()
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
            return read_object(servers.connections[server], ref, what)

        data = first_good(servers, fetch, what)
        self._cache.put(ref.id, data)
        return data

    def _fetch_header(self, servers: Servers[Connection], segment: bytes) -> bytes:
        kept = self._cache.get(segment)
        if kept is not None and sha256(kept) == segment:
            return kept

        def fetch(server: int) -> bytes:
            data = servers.connections[server].read_object(segment, 0, HEADER_BYTES)
            return require_object(segment, HEADER_BYTES, data, "a segment header")

        data = first_good(servers, fetch, "segment headers")
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
        Ranking([], k, offset=offset, max_records=max_records)
        try:
            return self._search_once(query, k, offset, max_records)
        except NotEnoughAnswers:
            # A version that was activated meanwhile makes servers refuse the one before.
            asked = self._seen
            self.refresh()
            if asked is None or self._seen is None or self._seen.hash == asked.hash:
                raise
        return self._search_once(query, k, offset, max_records)

    def _search_once(
        self, query: str, k: int, offset: int, max_records: int | None
    ) -> SearchResult:
        """Ask the version that is newest now."""
        started = time.perf_counter()
        servers = self._start()
        run = SearchRounds(servers, self._random)
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
            data = read_object(servers.connections[server], ref, "a document")
            return open_document(entry.key, collection, ref.id, data)

        return first_good(servers, fetch, f"document {external_id!r}")


def _show(hit: Hit, rank: int) -> SearchHit:
    member = hit.member
    return SearchHit(rank, hit.score / SCORE_ONE, member.id, member.title, member.snippet)


def _question_warnings(view: GroupView, question: Question) -> list[str]:
    """Say in words why a question, or a part of it, can match nothing."""
    warnings = []
    words = question.words
    if words.stop_words:
        listed = ", ".join(dict.fromkeys(words.stop_words))
        warnings.append(f"left out as stop words, too common ({view.analyzer.name}): {listed}")
    if question.unknown:
        listed = ", ".join(question.unknown[:_WORDS_SHOWN])
        more = len(question.unknown) - _WORDS_SHOWN
        warnings.append(f"in no document: {listed}" + (f" and {more} more" if more > 0 else ""))
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
        f"{t + 1} or more colluding servers: also the query's column numbers and weights, which "
        "often give its words away; never a cell, a title or a document"
    )
    return words, records, columns
