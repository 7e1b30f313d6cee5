"""The attacks of the field, run on what servers of this product hold and see.

Each of them is also run where it must succeed, so that its failure here says something.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mksearch.crypto.bundle import KeyBundle
from mksearch.crypto.keystream import Domain
from mksearch.crypto.randomness import SeededRandom
from mksearch.field.shamir import Sharing, lagrange_coefficients
from mksearch.index.segment import SegmentReader
from mksearch.messages import RecordAnswer, RecordRequest, ScoreAnswer, ScoreRequest
from mksearch.params import P
from mksearch.query.group import SegmentView
from mksearch.query.records import read_records
from mksearch.query.trapdoor import make_trapdoor, parse_question
from mksearch_client.privacy import AVAILABLE, MODES
from mksearch_client.reading import Document
from mksearch_client.searching import Connection, Searcher
from mksearch_server.search_server import SearchServer
from tests.adversary.corpus import WORDS, make_documents
from tests.leakage.linear_attacks import (
    SecureKnn,
    recover_from_products,
    smallness_auc,
    solve,
)
from tests.support.local import NOW_S, LocalCollection, publish

#: Standard deviations beyond which a guess is no accident.
FAR = 6.0


def seeded(name: str) -> SeededRandom:
    return SeededRandom(hashlib.sha256(name.encode()).digest())


class Corrupt:
    """A server that does as it should and keeps everything it sees.

    Attributes:
        shares: uint16 (columns,) of each score request of one vector.
        sums: uint16 (physical rows, tables) of each answer.
        slots: record slots of each record request.
        selectors: uint16 (fetches, groups) of each request for private fetches.
    """

    def __init__(self, server: SearchServer) -> None:
        # A mode that this release may not have has a call of its own.
        self._server: Any = server
        self.manifest, self.renewal = server.manifest, server.renewal
        self.read_object = server.read_object
        self.shares: list[NDArray[np.uint16]] = []
        self.sums: list[NDArray[np.uint16]] = []
        self.slots: list[list[int]] = []
        self.selectors: list[NDArray[np.uint16]] = []

    def score(self, request: ScoreRequest) -> ScoreAnswer:
        answer: ScoreAnswer = self._server.score(request)
        self.shares.append(request.shares[0])
        self.sums.append(answer.sums[0])
        return answer

    def records(self, request: RecordRequest) -> RecordAnswer:
        self.slots.append(request.slots.tolist())
        answer: RecordAnswer = self._server.records(request)
        return answer

    def select(self, request: Any) -> Any:
        self.selectors.append(request.selectors)
        return self._server.select(request)

    def forget(self) -> None:
        for kept in (self.shares, self.sums, self.slots, self.selectors):
            kept.clear()


def searcher_over(
    collection: LocalCollection, corrupt: dict[int, Corrupt], random: SeededRandom
) -> Searcher:
    connections: dict[int, Connection] = {**collection.servers, **corrupt}
    return Searcher(connections, collection.keys.member(), random, clock=lambda: NOW_S, hedge_s=60)


# --- linear algebra -------------------------------------------------------------------------------

N_TEXTS, N_KNOWN, N_QUERIES = 420, 260, 230


@dataclass
class Transcript:
    """What one server has after many searches, and what is behind it.

    Attributes:
        plain: int64 (rows, columns), cells of level 0 without masks, of documents only.
        stored: int64 (rows, columns), the same as stored.
        queries: int64 (searches, columns), the vectors.
        shares: int64 (searches, columns), what the server got of them.
        products: int64 (rows, searches), what it computed, first table.
    """

    plain: NDArray[np.int64]
    stored: NDArray[np.int64]
    queries: NDArray[np.int64]
    shares: NDArray[np.int64]
    products: NDArray[np.int64]


@pytest.fixture(scope="module")
def transcript(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    random = seeded("linear algebra")
    rng = np.random.default_rng(11)
    texts = [" ".join(rng.choice(WORDS, 12, replace=False)) for _ in range(N_TEXTS)]
    documents = [Document(f"{number}", "", text) for number, text in enumerate(texts)]
    collection = publish(documents, tmp_path_factory.mktemp("linear"), random=random)
    server = Corrupt(collection.servers[1])
    searcher = searcher_over(collection, {1: server}, random)
    view = searcher.refresh().views[0]
    segment = view.segments[0]
    queries = []
    for _ in range(N_QUERIES):
        query = " ".join(rng.choice(WORDS, rng.integers(3, 9), replace=False))
        searcher.search(query, k=1, max_records=1)
        queries.append(make_trapdoor(view, parse_question(view, query)).vectors[0])
    reader = SegmentReader(collection.segment_bytes(1))
    cells = reader.level(0).astype(np.int64)
    keys, header = collection.keys, reader.header
    bundle = KeyBundle.from_master(keys.master, keys.collection, header.epoch, b"")
    columns = np.arange(cells.shape[1])
    mask = bundle.segment_keys(header.salt).mask
    masks = mask.words(Domain.MASK, 0, columns, 0, len(cells)).astype(np.int64).T
    rows = segment.block.physical(np.arange(segment.n_rows))
    # All words are dedicated here, so the first panel and the first table are a whole index.
    geometry = header.layout.levels[0]
    assert len(view.dictionary.terms) <= geometry.dedicated
    part = slice(0, geometry.dedicated + geometry.table)
    return Transcript(
        ((cells - masks) % P)[rows, part],
        cells[rows, part],
        np.stack(queries).astype(np.int64)[:, part],
        np.stack(server.shares).astype(np.int64)[:, part],
        np.stack([sums[rows, 0] for sums in server.sums], axis=1).astype(np.int64),
    )


def used(transcript: Transcript) -> NDArray[np.bool_]:
    """Return the columns in which the known documents have something."""
    return np.asarray((transcript.plain[:N_KNOWN] != 0).any(axis=0))


def test_known_documents_break_a_secure_knn_index_from_its_products(
    transcript: Transcript,
) -> None:
    columns = used(transcript)
    plain, queries = transcript.plain[:, columns], transcript.queries[:, columns]
    scheme = SecureKnn(plain.shape[1], np.random.default_rng(3))
    products = scheme.products(scheme.index(plain), scheme.trapdoors(queries))
    assert np.array_equal(products, plain @ queries.T % P), "the scheme ranks rightly"

    found_queries, found_rows = recover_from_products(
        plain[:N_KNOWN], products[:N_KNOWN], products[N_KNOWN:]
    )
    assert np.array_equal(found_queries, queries)
    assert np.array_equal(found_rows, plain[N_KNOWN:])


def test_known_documents_say_nothing_of_queries_and_other_documents_here(
    transcript: Transcript,
) -> None:
    columns = used(transcript)
    plain, queries = transcript.plain[:, columns], transcript.queries[:, columns]
    found_queries, found_rows = recover_from_products(
        plain[:N_KNOWN], transcript.products[:N_KNOWN], transcript.products[N_KNOWN:]
    )
    for found, true in ((found_queries, queries), (found_rows, plain[N_KNOWN:])):
        auc, deviation = smallness_auc(found, true != 0)
        assert abs(auc - 0.5) < FAR * deviation
        n_there = np.count_nonzero(true)
        n_right = np.count_nonzero((found == true) & (true != 0))
        assert n_right <= 1 + FAR * n_there / P + FAR * np.sqrt(n_there / P)


def test_known_documents_and_shares_say_nothing_together_either(transcript: Transcript) -> None:
    """Pairs of a stored row and its document, and of a share and its query, fit no linear map."""
    columns = used(transcript)
    half = N_QUERIES // 2
    for seen, true, n_known in (
        (transcript.stored, transcript.plain[:, columns], N_KNOWN),
        (transcript.shares, transcript.queries[:, columns], half),
    ):
        linear = solve(seen[:n_known], true[:n_known])
        found = seen[n_known:] @ linear % P
        auc, deviation = smallness_auc(found, true[n_known:] != 0)
        assert abs(auc - 0.5) < FAR * deviation


def test_pairs_of_rows_and_documents_break_an_index_under_one_matrix(
    transcript: Transcript,
) -> None:
    columns = used(transcript)
    plain = transcript.plain[:, columns]
    matrix = np.random.default_rng(5).integers(0, P, (plain.shape[1],) * 2)
    stored = plain @ matrix % P
    linear = solve(stored[:N_KNOWN], plain[:N_KNOWN])
    assert np.array_equal(stored[N_KNOWN:] @ linear % P, plain[N_KNOWN:])


def test_the_judgement_of_guesses_finds_a_server_with_one_share_more(
    transcript: Transcript,
) -> None:
    """Two servers of three interpolate the query: the same measure must see that."""
    auc, deviation = smallness_auc(transcript.queries, transcript.queries != 0)
    assert auc == 1.0
    noisy = np.where(
        np.random.default_rng(1).random(transcript.queries.shape) < 0.9,
        np.random.default_rng(2).integers(0, P, transcript.queries.shape),
        transcript.queries,
    )
    auc, deviation = smallness_auc(noisy, transcript.queries != 0)
    assert auc - 0.5 > FAR * deviation, "a tenth of the entries is enough to be seen"


# --- one server more than may collude -------------------------------------------------------------


def test_t_plus_1_servers_learn_columns_and_weights_of_a_query_and_no_cell(
    tmp_path: Path,
) -> None:
    """What is not promised beyond t, and what is: the price of operators that are not apart."""
    random = seeded("two of three")
    collection = publish(make_documents(120, 4), tmp_path, random=random)
    servers = {number: Corrupt(collection.servers[number]) for number in (1, 2)}
    searcher = searcher_over(collection, servers, random)
    view = searcher.refresh().views[0]

    def learned(query: str) -> NDArray[np.int64]:
        """Ask, and return what both servers interpolate."""
        for server in servers.values():
            server.forget()
        searcher.search(query, k=1)
        factors = lagrange_coefficients([1, 2])
        shares = [server.shares[0].astype(np.int64) for server in servers.values()]
        return (factors[0] * shares[0] + factors[1] * shares[1]) % P

    query = f"{WORDS[2]} {WORDS[9]}"
    vector = learned(query)
    assert np.array_equal(vector, make_trapdoor(view, parse_question(view, query)).vectors[0])
    # A word has its columns in every query, also in one of a later version.
    collection.change(make_documents(13, 5)[:1], {"doc-0000"})
    again = learned(WORDS[2])
    columns = set(np.flatnonzero(again).tolist())
    assert columns <= set(np.flatnonzero(vector).tolist())
    assert columns.isdisjoint(np.flatnonzero(learned(WORDS[9])).tolist())
    # The sums that they can put together are masked: they do not even tell rows that match.
    searcher.search(query, k=1)
    sums = [server.sums[-1].astype(np.int64)[:, 0] for server in servers.values()]
    factors = lagrange_coefficients([1, 2])
    combined = (factors[0] * sums[0] + factors[1] * sums[1]) % P
    assert np.count_nonzero(combined < 1 << 13) < len(combined) / 3


# --- injected documents ---------------------------------------------------------------------------

N_BITS = 14
#: Record slots of the collection below.
N_SLOTS = 1276
K = 10


def vocabulary() -> list[str]:
    """Return 2^14 words that no stemmer touches: number i is word i."""
    letters = "bdfgklmp"
    return [
        "".join(f"{letters[i >> shift & 7]}o" for shift in range(12, -1, -3)) + "x"
        for i in range(1 << N_BITS)
    ]


@dataclass
class Injected:
    """A collection into which somebody had 14 documents put, document b with every word whose
    number has bit b, and a corrupt server that knows their slots.

    Attributes:
        words: of the vocabulary.
        slots: for each bit, the slots of its document, the first one first.
        targets: numbers of words that have a column of their own, and of words that share one.
    """

    collection: LocalCollection
    server: Corrupt
    searcher: Searcher
    words: list[str]
    slots: list[list[int]]
    targets: dict[str, list[int]] = field(default_factory=dict)


def opened_row(
    segment: SegmentView, elements: NDArray[np.uint16], row: int, n_terms: int
) -> tuple[str, list[int]]:
    """Return id and slots of a row's document, as whoever has the keys finds them."""
    reading = read_records(segment.slots, [row], n_terms)
    asked: list[int] = []
    try:
        wanted = next(reading)
        while True:
            asked += wanted.tolist()
            wanted = reading.send(elements[wanted])
    except StopIteration as done:
        return done.value[row].members[0].id, asked


@pytest.fixture(scope="module")
def injected(tmp_path_factory: pytest.TempPathFactory) -> Injected:
    random = seeded("injection")
    rng = np.random.default_rng(14)
    words = vocabulary()
    order = np.concatenate([rng.permutation(len(words)) for _ in range(2)])
    documents = [
        Document(f"doc-{number}", "", " ".join(words[i] for i in numbers))
        for number, numbers in enumerate(order.reshape(-1, 32).tolist())
    ]
    documents += [
        Document(f"bit-{bit}", "", " ".join(w for i, w in enumerate(words) if i >> bit & 1))
        for bit in range(N_BITS)
    ]
    collection = publish(
        documents, tmp_path_factory.mktemp("injected"), random=random, analyzer="plain-1"
    )
    server = Corrupt(collection.servers[1])
    searcher = searcher_over(collection, {1: server}, random)
    view = searcher.refresh().views[0]
    segment, terms = view.segments[0], view.dictionary.terms
    data = collection.segment_bytes(1)
    reader = SegmentReader(data)
    elements = np.array(reader.header.layout.slots(np.asarray(data)))
    slots: list[list[int]] = [[] for _ in range(N_BITS)]
    for row in range(segment.n_rows):
        name, own = opened_row(segment, elements, row, len(terms))
        if name.startswith("bit-"):
            slots[int(name[4:])] = own
    assert all(slots)
    assert len(elements) == N_SLOTS
    n_dedicated = view.dictionary.n_dedicated[0]
    numbers = {word: number for number, word in enumerate(words)}
    chosen = {"dedicated": terms[:n_dedicated], "shared": terms[n_dedicated:]}
    targets = {
        kind: [numbers[str(word)] for word in rng.choice(list(of_kind), 8, replace=False)]
        for kind, of_kind in chosen.items()
    }
    return Injected(collection, server, searcher, words, slots, targets)


def guess_by_numbers(server: Corrupt, slots: Sequence[Sequence[int]]) -> int:
    """Guess a word from the slots that were read: bit b if document b was."""
    read = {slot for request in server.slots for slot in request}
    return sum(1 << bit for bit, own in enumerate(slots) if not read.isdisjoint(own))


def guess_by_selectors(server: Corrupt, slots: Sequence[Sequence[int]]) -> int:
    """Guess a word from selectors: bit b if the group of document b stands out in some fetch.

    Of selectors in the clear, 1 for the group and 0 elsewhere, this reads the word off.
    """
    most = np.concatenate(server.selectors).max(axis=0)
    group_slots = -(-N_SLOTS // len(most))
    return sum(
        1 << bit for bit, own in enumerate(slots) if most[own[0] // group_slots] > np.median(most)
    )


#: How the corrupt server of each mode guesses.
GUESSES: dict[str, Callable[[Corrupt, Sequence[Sequence[int]]], int]] = {
    "full": guess_by_selectors,
    "balanced": guess_by_numbers,
    "fast": guess_by_numbers,
}
BY_NUMBER = [mode for mode in AVAILABLE if mode != "full"]
#: Where this release has it; a mode without a test of its own would be noticed below.
PRIVATELY = [mode for mode in AVAILABLE if mode == "full"]


def n_recovered(injected: Injected, kind: str, mode: str) -> int:
    """Return how many of the words that were searched the server guesses."""
    n_right = 0
    for number in injected.targets[kind]:
        injected.server.forget()
        result = injected.searcher.search(injected.words[number], k=K, privacy=mode)
        assert result.privacy == mode
        assert result.hits
        n_right += GUESSES[mode](injected.server, injected.slots) == number
    return n_right


def test_every_mode_of_this_release_is_attacked_by_injected_documents() -> None:
    assert GUESSES.keys() == set(MODES) >= set(AVAILABLE) == {*BY_NUMBER, *PRIVATELY}


@pytest.mark.parametrize("mode", BY_NUMBER)
def test_injected_documents_give_words_of_their_own_columns_away_where_records_are_numbers(
    injected: Injected, mode: str
) -> None:
    """What these modes do not promise: who knows his own slots learns the words."""
    assert n_recovered(injected, "dedicated", mode) == len(injected.targets["dedicated"])


@pytest.mark.parametrize("mode", BY_NUMBER)
def test_injected_documents_give_words_in_shared_columns_away_only_by_chance(
    injected: Injected, mode: str
) -> None:
    """Half of the vocabulary fills every shared column, so each of these documents is read."""
    assert n_recovered(injected, "shared", mode) <= 1


@pytest.mark.parametrize("mode", PRIVATELY)
@pytest.mark.parametrize("kind", ["dedicated", "shared"])
def test_injected_documents_give_nothing_away_where_records_are_fetched_privately(
    injected: Injected, mode: str, kind: str
) -> None:
    assert n_recovered(injected, kind, mode) <= 1


def selected(injected: Injected, number: int, rng: np.random.Generator) -> NDArray[np.uint16]:
    """Return selectors of the injected documents with word ``number``, and of as many others."""
    group_slots = 2
    own = [slots[0] // group_slots for slots in injected.slots]
    wanted = [group for bit, group in enumerate(own) if number >> bit & 1]
    others = np.setdiff1d(np.arange(N_SLOTS // group_slots), own)
    groups = np.sort([*wanted, *rng.choice(others, 2 + N_BITS, replace=False)])
    vectors = np.zeros((len(groups), N_SLOTS // group_slots), np.uint16)
    vectors[np.arange(len(groups)), groups] = 1
    return vectors


def test_shares_of_selectors_give_words_away_by_chance_and_selectors_themselves_do(
    injected: Injected,
) -> None:
    """How records are fetched privately: a group by a shared vector with a single 1 in it."""
    rng, random = np.random.default_rng(2), seeded("selectors")
    n_words = 300
    in_the_clear = by_a_share = 0
    for number in rng.integers(1, 1 << N_BITS, n_words).tolist():
        vectors = selected(injected, number, rng)
        injected.server.selectors = [vectors]
        in_the_clear += guess_by_selectors(injected.server, injected.slots) == number
        injected.server.selectors = [Sharing(vectors, 1, random).share(1)]
        by_a_share += guess_by_selectors(injected.server, injected.slots) == number
    assert in_the_clear == n_words
    assert by_a_share <= 2


# --- what balanced search shows -------------------------------------------------------------------


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Searcher, Corrupt]:
    rng = np.random.default_rng(8)
    shares = 1 / np.arange(2, 2 + len(WORDS))
    shares /= shares.sum()
    documents = [
        Document(f"{n}", "", " ".join(rng.choice(WORDS, rng.integers(8, 16), p=shares)))
        for n in range(600)
    ]
    random = seeded("balanced")
    collection = publish(documents, tmp_path_factory.mktemp("balanced"), random=random)
    server = Corrupt(collection.servers[1])
    return searcher_over(collection, {1: server}, random), server


def read_by(watched: tuple[Searcher, Corrupt], query: str) -> list[list[int]]:
    searcher, server = watched
    server.forget()
    searcher.search(query, k=K)
    return [list(request) for request in server.slots]


def test_equal_queries_read_the_same_records_in_balanced_and_share_nothing_else(
    watched: tuple[Searcher, Corrupt],
) -> None:
    """What balanced search does not promise: repetitions are recognised by the records."""
    server = watched[1]
    query = f"{WORDS[30]} {WORDS[40]}"
    first = read_by(watched, query)
    share = server.shares[0]
    assert read_by(watched, query) == first
    assert np.count_nonzero(share == server.shares[0]) < 8
    assert read_by(watched, f"{WORDS[31]} {WORDS[41]}") != first


def test_queries_with_common_results_read_common_records_in_balanced(
    watched: tuple[Searcher, Corrupt],
) -> None:
    """What balanced search does not promise: top results that occur together show."""

    def common(first: str, second: str) -> int:
        one, other = (
            {slot for request in read_by(watched, query) for slot in request}
            for query in (first, second)
        )
        return len(one & other)

    related = [common(WORDS[i], f"{WORDS[i]} {WORDS[i + 1]}") for i in range(60, 80)]
    unrelated = [common(WORDS[i], f"{WORDS[i + 30]} {WORDS[i + 31]}") for i in range(60, 80)]
    assert sum(related) > 2 * sum(unrelated)


def test_how_many_documents_match_shows_neither_in_scoring_nor_in_the_first_records(
    watched: tuple[Searcher, Corrupt],
) -> None:
    searcher, server = watched
    view = searcher.refresh().views[0]
    dfs = dict(zip(view.dictionary.terms, view.dictionary.dfs.tolist(), strict=True))
    rare, common = (
        [term for term, df in dfs.items() if low <= df < high]
        for low, high in ((11, 25), (100, 600))
    )
    assert min(len(rare), len(common)) >= 5
    seen = {}
    for kind, terms in (("rare", rare[:5]), ("common", common[:5])):
        firsts, shapes, totals = set(), set(), []
        for term in terms:
            requests = read_by(watched, term)
            firsts.add(len(requests[0]))
            shapes.add((server.shares[0].shape, server.sums[0].shape))
            totals.append(sum(map(len, requests)))
        seen[kind] = (firsts, shapes)
        assert max(totals) < 6 * K, "what bounds do not tell apart is read, never all that matches"
    assert seen["rare"] == seen["common"]
    assert seen["rare"][0] == {K}
