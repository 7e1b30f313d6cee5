"""Search: ask t + 1 servers, prove their answers, read the records that prove the ranking.

Data flow of privacy ``balanced`` (``private`` and ``pruned`` have those of ``full`` and ``fast``):
query -> question and trapdoor -> one attempt a segment, t + 1 servers, further ones on failure ->
proved sums -> bounds -> records by falling bound from any server -> hits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from mksearch.crypto.randomness import RandomSource
from mksearch.errors import (
    AnswerRefused,
    InputError,
    NotEnoughAnswers,
)
from mksearch.index.document import StoredDocument
from mksearch.index.manifest import ObjectRef, SignedManifest
from mksearch.params import MANIFEST_WARNING_S, Quorum
from mksearch.query.group import GroupView
from mksearch.query.ranking import Hit, Ranking
from mksearch.query.records import open_document
from mksearch.query.trapdoor import Question, parse_question
from mksearch.text.weights import SCORE_ONE
from mksearch_client.asking import Servers
from mksearch_client.fetching import Cache, Connection, NoCache, first_good, read_object
from mksearch_client.freshness import Freshness
from mksearch_client.keyring import KeyRing
from mksearch_client.learned import SearchFacts, what_was_learned
from mksearch_client.opening import OpenVersion, VersionOpener
from mksearch_client.privacy import AVAILABLE_OPENING, PrivacyLimit
from mksearch_client.private import PrivateRecords
from mksearch_client.pruned import Pace, PrunedSearch
from mksearch_client.result import SearchHit, SearchResult
from mksearch_client.rounds import Asked, LieCallback, SearchRounds
from mksearch_client.versions import RivalsCallback, newest_manifest

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
        keys: KeyRing,
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
        on_lie: LieCallback | None = None,
        on_rivals: RivalsCallback | None = None,
        limit: PrivacyLimit | None = None,
    ) -> None:
        """Prepare to ask; nothing is sent before the first question.

        Args:
            connections: servers by id.
            keys: what the member can open.
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
            on_lie: told of every wrong answer that a server signed.
            on_rivals: told of two manifests that the owner's key signed and of which only one can
                be.
            limit: how much may be shown to servers; None for no limit.
        """
        self._limit = limit or PrivacyLimit()
        self._connections = connections
        self._addresses = addresses or {}
        self._keys = keys
        self._random = random
        self._clock = clock
        self._accept_expired = accept_expired
        self._seen = seen
        self._quorum = quorum or Quorum()
        self._cache: Cache = cache or NoCache()
        self._opener = VersionOpener(keys, self._cache)
        self._freshness = Freshness(self._cache)
        self._until_s = 0
        self._hedge_s = hedge_s
        self._on_close = on_close or (lambda: None)
        self._on_seen = on_seen or (lambda _signed: None)
        self._on_lie = on_lie or (lambda _server, _request, _answer: None)
        self._on_rivals = on_rivals or (lambda _evidence: "")
        self._last: Servers[Connection] | None = None
        self._pace = Pace()
        self._pool = ThreadPoolExecutor(2 * len(connections) or 1, "servers")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the servers; questions under way end with an error."""
        self._on_close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def _lagging(self) -> list[int]:
        """Servers that may serve an older version than the last question was about."""
        reports = {} if self._last is None else self._last.reports
        return [s for s, report in reports.items() if report.status in ("stale", "refused")]

    def _start(self) -> Servers[Connection]:
        return Servers(
            self._connections,
            self._addresses,
            self._pool,
            hedge_s=self._hedge_s,
            distrusted=self._distrusted,
        )

    @property
    def _distrusted(self) -> Collection[int]:
        """Servers that lied before."""
        return ()

    @property
    def seen(self) -> SignedManifest | None:
        """Highest version seen so far."""
        return self._seen

    # --- opening the collection

    def refresh(self) -> OpenVersion:
        """Ask at least t + 1 servers for the manifest and open what may be of the newest version.

        Raises:
            NotEnoughAnswers: fewer than t + 1 valid manifests.
            ManifestExpired: the newest one has expired.
            NotQualified: no group of it is open to these keys.
            VerificationError: nothing of it opens.
        """
        return self._open(self._start())

    def _take_keys(self, keys: KeyRing) -> None:
        """Go on with other keys."""
        self._keys = keys
        self._opener = VersionOpener(keys, self._cache)

    def _take_servers(self, addresses: Mapping[int, str], quorum: Quorum) -> None:
        """Go on with other servers, to which the connections lead now."""
        self._addresses, self._quorum = addresses, quorum

    def _newest(self, servers: Servers[Connection]) -> SignedManifest:
        return newest_manifest(
            servers,
            owner_key=self._keys.owner_key,
            collection=self._keys.collection,
            quorum=self._quorum,
            seen=self._seen,
            on_rivals=self._on_rivals,
            on_shown=self._met,
        )

    def _met(self, signed: SignedManifest) -> None:
        """Take note of a manifest that a server shows, proved and not counted yet."""

    def _open(self, servers: Servers[Connection]) -> OpenVersion:
        signed = self._newest(servers)
        now_s = int(self._clock())
        self._until_s = self._freshness.until(servers, signed, now_s)
        if not self._accept_expired:
            signed.require_current(now_s, self._until_s)
        opened = self._opener.open(servers, signed)
        if self._seen is None or self._seen.hash != signed.hash:
            self._on_seen(signed)
        self._seen = signed
        return opened

    # --- searching

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        offset: int = 0,
        max_records: int | None = None,
        privacy: str = "balanced",
    ) -> SearchResult:
        """Return the ``k`` best documents for ``query``, proved.

        Args:
            query: what the user typed; never sent.
            k: hits wanted, 1..10000; fewer come when fewer documents match.
            offset: hits left out before them.
            max_records: records that may be read; None for 2000 or twice the hits wanted.
            privacy: "balanced"; "full", which hides from the servers which records are read; or
                "fast", which shows them which blocks are opened. The hits are the same.

        Raises:
            ParameterError: there is no such privacy.
            PrivacyExceeded: it would show more than the profile allows; nothing was sent.
            QueryError: k, offset or the length of the query is out of range.
            AnswerRefused: servers lied and too few honest ones remain; they are named.
            NotEnoughAnswers: fewer than t + 1 servers answered.
            VerificationError: manifest, dictionary or records are not right.
        """
        self._limit.require(privacy)
        Ranking([], k, offset=offset, max_records=max_records)
        try:
            return self._search_once(query, k, offset, max_records, privacy)
        except (NotEnoughAnswers, AnswerRefused):
            # A version that was activated meanwhile makes servers refuse the one before, and a
            # publisher that died leaves some of them behind.
            asked = self._seen
            was_handed = self._hand_on(self._lagging)
            self.refresh()
            if not was_handed and (
                asked is None or self._seen is None or self._seen.hash == asked.hash
            ):
                raise
        return self._search_once(query, k, offset, max_records, privacy)

    def _hand_on(self, _lagging: Sequence[int]) -> bool:
        """Bring servers that lag to the newest version seen; tell whether one of them came."""
        return False

    def _search_once(
        self, query: str, k: int, offset: int, max_records: int | None, privacy: str
    ) -> SearchResult:
        """Ask the version that is newest now."""
        started = time.perf_counter()
        servers = self._start()
        self._last = servers
        run = SearchRounds(servers, self._random, self._clock, self._on_lie)
        opened = run.timed("manifest", lambda: self._open(servers))
        quorum = opened.signed.manifest.quorum
        version = opened.signed.manifest.version
        questions = run.timed(
            "trapdoor", lambda: [parse_question(view, query) for view in opened.views]
        )
        asked = [
            Asked(view, segment, question)
            for view, question in zip(opened.views, questions, strict=True)
            for segment in view.segments
        ]
        pruned: PrunedSearch | None = None
        private: PrivateRecords | None = None
        if privacy == "fast":
            pruned = PrunedSearch(
                run,
                asked,
                quorum=quorum,
                version=version,
                random=self._random,
                pace=self._pace,
                k=k,
                offset=offset,
                max_records=max_records,
            )
            ranking: Ranking = pruned.find()
        else:
            sources = run.bounds(asked, quorum, version)
            ranking = Ranking(sources, k, offset=offset, max_records=max_records)
            if privacy == "full":
                private = PrivateRecords(
                    run,
                    servers,
                    sources,
                    quorum=quorum,
                    version=version,
                    random=self._random,
                    clock=self._clock,
                )
                run.timed("records", lambda: private.read(ranking))
            else:
                run.timed("records", lambda: run.read(ranking, sources, version))
        total_ms = 1000 * (time.perf_counter() - started)
        warnings = _question_warnings(opened.views, questions) + self._warnings(ranking)
        reports = tuple(servers.reports.values())
        learned = what_was_learned(
            SearchFacts(
                mode=privacy,
                quorum=quorum,
                n_groups=len(opened.views),
                n_vectors=run.n_vectors,
                n_slots=run.n_slots,
                n_reads=run.n_reads,
                fetches=() if private is None else private.sizes,
                opened=() if pruned is None else pruned.opened(),
                n_steps=0 if pruned is None else pruned.descent.n_waits,
                n_failed=sum(report.status not in ("ok", "unused") for report in reports),
            )
        )
        return SearchResult(
            query=query,
            k=k,
            n_docs=sum(view.dictionary.n_docs for view in opened.views),
            version=version,
            verified=True,
            exact=ranking.exact,
            privacy=privacy,
            hits=tuple(_show(hit, rank) for rank, hit in enumerate(ranking.hits(), 1 + offset)),
            servers=reports,
            learned=learned.sentences,
            shown=learned.to_json(),
            warnings=tuple(warnings),
            groups=len(opened.views),
            records_fetched=ranking.n_records,
            rounds=run.n_rounds,
            bytes_sent=run.bytes_sent,
            bytes_received=run.bytes_received,
            timings_ms={"total": total_ms, **run.timings_ms},
            **({} if pruned is None else pruned.counts()),
        )

    def _warnings(self, ranking: Ranking) -> list[str]:
        warnings = []
        if not ranking.exact:
            warnings.append(
                f"not exact: {ranking.n_records} records were read and more may score higher; "
                "raise --max-records"
            )
        if self._seen is not None:
            left_s = self._until_s - int(self._clock())
            if left_s < 0:
                warnings.append(f"the manifest expired {-left_s} s ago and was accepted")
            elif left_s < MANIFEST_WARNING_S:
                warnings.append(f"the manifest expires in {left_s // 86400} days")
            access, opened = self._seen.manifest.access, self._opener.current
            views = [] if opened is None else opened.views
            n_old = sum(access is not None and v.group.epoch < access.epoch for v in views)
            if n_old:
                warnings.append(
                    f"old epoch: {n_old} of {len(views)} groups are encrypted under keys that "
                    "revoked members still have; the owner runs mksearch owner rotate"
                )
        return warnings

    def open(self, external_id: str) -> StoredDocument:
        """Fetch and open the whole document ``external_id``.

        Raises:
            PrivacyExceeded: it would show more than the profile allows; nothing was sent.
            InputError: there is no such document.
            VerificationError: no server sent the right bytes.
        """
        self._limit.require("balanced", AVAILABLE_OPENING)
        servers = self._start()
        opened = self._open(servers)
        collection = self._keys.collection
        found = (opened.find(servers, view, external_id) for view in opened.views)
        entry = next((entry for entry in found if entry is not None), None)
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


def _question_warnings(views: Sequence[GroupView], questions: Sequence[Question]) -> list[str]:
    """Say in words why a question, or a part of it, can match nothing."""
    warnings = []
    for view, question in zip(views, questions, strict=True):
        if question.words.stop_words:
            listed = ", ".join(dict.fromkeys(question.words.stop_words))
            warnings.append(f"left out as stop words, too common ({view.analyzer.name}): {listed}")
    elsewhere = [set(question.unknown) for question in questions[1:]]
    unknown = [word for word in questions[0].unknown if all(word in s for s in elsewhere)]
    if unknown:
        listed = ", ".join(unknown[:_WORDS_SHOWN])
        more = len(unknown) - _WORDS_SHOWN
        warnings.append(f"in no document: {listed}" + (f" and {more} more" if more > 0 else ""))
    if not any(question.words.n_words for question in questions):
        warnings.append("the query holds no letter or digit to search for")
    return list(dict.fromkeys(warnings))
