"""Nothing that a server holds or receives says anything: every mask is fresh, uniform, used once.

Statistics run on seeded randomness, so a test gives the same verdict every time; each of them is
also run on a wrong variant that it must find.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray
from scipy import stats

from mksearch.crypto import aead
from mksearch.crypto.bundle import KeyBundle
from mksearch.crypto.keystream import Domain, Keystream
from mksearch.crypto.randomness import SeededRandom, uniform_elements
from mksearch.crypto.secret import SecretKey
from mksearch.errors import InputError
from mksearch.field import modp, shamir
from mksearch.field.shamir import Sharing, lagrange_coefficients
from mksearch.index import builder as builder_module
from mksearch.index.builder import SegmentBuilder
from mksearch.index.geometry import LevelGeometry
from mksearch.index.record import Member
from mksearch.index.segment import SegmentReader
from mksearch.index.slots import SlotWriter
from mksearch.messages import ScoreAnswer, ScoreRequest
from mksearch.params import P, Quorum
from mksearch.query.trapdoor import make_trapdoor, parse_question
from mksearch.text.analyzers import make_analyzer
from mksearch.text.vocabulary import count_corpus
from mksearch.text.weights import Scoring
from mksearch_client.keys import OwnerKeys
from mksearch_client.publication import Publication, upload
from mksearch_client.publishing import Publisher
from mksearch_client.reading import Document
from mksearch_client.searching import Searcher
from mksearch_server.search_server import SearchServer
from tests.adversary.corpus import WORDS, make_documents, make_texts
from tests.adversary.hostile import HostileServer
from tests.leakage.chance import binned, poisson_p, same_source_p, uniform_p, value_counts
from tests.support.local import NOW_S, open_server, publish

#: Below it, chance is ruled out; the right variants lie far above, the wrong ones far below.
IMPOSSIBLE = 1e-6
#: A right variant must not look contrived either.
UNLIKELY = 1e-3


def seeded(name: str) -> SeededRandom:
    return SeededRandom(hashlib.sha256(name.encode()).digest())


# --- no address of the keystream masks two values -----------------------------------------------


@dataclass
class MaskLog:
    """Every keystream word that was taken to mask something, and every nonce that was sealed with.

    Attributes:
        rows: for each (key, domain, level, column), the ranges of rows taken, in order.
        nonces: for each AES-GCM key, the nonces used, in order.
    """

    rows: dict[tuple[bytes, int, int, int], list[range]] = field(
        default_factory=lambda: defaultdict(list)
    )
    nonces: dict[bytes, list[bytes]] = field(default_factory=lambda: defaultdict(list))

    def require_each_once(self) -> None:
        """Prove that nothing was used a second time."""
        for address, ranges in self.rows.items():
            last = -1
            for rows in sorted(ranges, key=lambda rows: rows.start):
                assert rows.start > last, f"mask {address[1:]} covers rows {rows} twice"
                last = rows[-1]
        for used in self.nonces.values():
            assert len(set(used)) == len(used), "a nonce was used twice under one key"

    def n_words(self) -> int:
        return sum(len(rows) for ranges in self.rows.values() for rows in ranges)

    def n_sealed(self) -> int:
        return sum(map(len, self.nonces.values()))

    def mask_keys(self) -> set[bytes]:
        return {key for key, domain, _, _ in self.rows if domain == Domain.MASK}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> MaskLog:
    """Record what the product takes from keystreams and seals, while it does so."""
    log = MaskLog()
    words = Keystream.words

    def recorded(
        self: Keystream,
        domain: Domain,
        level: int,
        columns: NDArray[np.int64],
        first_row: int,
        n_rows: int,
    ) -> NDArray[np.uint16]:
        if domain in (Domain.MASK, Domain.TAG_PAD) and n_rows:
            for column in columns.tolist():
                address = (bytes(self._algorithm.key), int(domain), level, column)
                log.rows[address].append(range(first_row, first_row + n_rows))
        return words(self, domain, level, columns, first_row, n_rows)

    class RecordedGcm:
        def __init__(self, key: bytes) -> None:
            self._key, self._gcm = key, AESGCM(key)

        def encrypt(self, nonce: bytes, plaintext: bytes, associated: bytes) -> bytes:
            log.nonces[self._key].append(nonce)
            return self._gcm.encrypt(nonce, plaintext, associated)

        def decrypt(self, nonce: bytes, ciphertext: bytes, associated: bytes) -> bytes:
            return self._gcm.decrypt(nonce, ciphertext, associated)

    monkeypatch.setattr(Keystream, "words", recorded)
    monkeypatch.setattr(aead, "AESGCM", RecordedGcm)
    # Small batches, so that what is added batch by batch is seen to go on where it stopped.
    monkeypatch.setattr(builder_module, "_BATCH_BYTES", 1)
    monkeypatch.setattr(SlotWriter, "BATCH", 64)
    return log


DOCUMENTS = make_documents(520, 5)


def make_publisher(keys: OwnerKeys, random: SeededRandom) -> Publisher:
    return Publisher(
        keys,
        name="test",
        quorum=Quorum(),
        random=random,
        analyzer=make_analyzer("english-1"),
        scoring=Scoring("tfidf"),
    )


class Interrupted(BaseException):
    """The machine went down."""


class FailingTarget:
    """A server whose connection breaks after ``n_objects`` objects."""

    def __init__(self, server: SearchServer, n_objects: int) -> None:
        self._server = server
        self._left = n_objects
        self.received: dict[bytes, bytes] = {}

    def propose(self, data: bytes) -> bytes:
        return self._server.propose(data)

    def missing(self, manifest_hash: bytes) -> list[bytes]:
        return self._server.missing(manifest_hash)

    def put_all(
        self, manifest_hash: bytes, objects: Iterable[tuple[bytes, Iterable[bytes]]]
    ) -> None:
        for name, chunks in objects:
            if not self._left:
                raise Interrupted
            self._left -= 1
            data = b"".join(chunks)
            self.received[name] = data
            self._server.put(manifest_hash, name, [data])

    def activate(self, manifest_hash: bytes) -> int:
        return self._server.activate(manifest_hash)


def folder_hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def interrupted_after(documents: list[Document], n_documents: int) -> Iterator[Document]:
    yield from documents[:n_documents]
    raise Interrupted


def stop_at(what: str, share: float) -> Callable[[str, float], None]:
    def progress(now: str, done: float) -> None:
        if now == what and done >= share:
            raise Interrupted

    return progress


def test_no_mask_and_no_nonce_is_used_twice_however_publishing_is_interrupted_and_repeated(
    log: MaskLog, tmp_path: Path
) -> None:
    random = seeded("one life of an owner")
    keys = OwnerKeys.generate(random)
    publisher = make_publisher(keys, random)
    folder = tmp_path / "version 1"

    # Preparation breaks off while reading, after the first level, and after everything was written.
    for documents, progress in (
        (interrupted_after(DOCUMENTS, 100), None),
        (iter(DOCUMENTS), stop_at("encrypting", 0.1)),
        (iter(DOCUMENTS), stop_at("encrypting", 1.0)),
    ):
        with pytest.raises(Interrupted):
            publisher.prepare(documents, folder, now_s=NOW_S, progress=progress)
        log.require_each_once()
    assert not (folder / "manifest").exists()
    n_interrupted = len(log.mask_keys())
    assert n_interrupted == 2, "both interrupted builds masked something, each under its own key"

    first = publisher.prepare(DOCUMENTS, folder, now_s=NOW_S)
    log.require_each_once()

    # The upload breaks off, again and again; what is sent are the stored bytes.
    before, n_words, n_sealed = folder_hashes(folder), log.n_words(), log.n_sealed()
    server = open_server(tmp_path, 1, keys.signing.public)
    sent: dict[bytes, bytes] = {}
    for n_objects in (0, 1, 2, 3, 5, 100, 10_000):
        target = FailingTarget(server, n_objects)
        publication = Publication.load(folder, keys.signing.public)
        assert publication.signed.hash == first.signed.hash
        if n_objects < 10_000:
            with pytest.raises(Interrupted):
                upload(publication, target)
        else:
            upload(publication, target)
        assert not sent.keys() & target.received.keys(), "what arrived is not sent again"
        sent |= target.received
    assert server.manifest() == first.signed.encode()
    assert folder_hashes(folder) == before
    assert (log.n_words(), log.n_sealed()) == (n_words, n_sealed), "nothing was built again"
    for name, data in sent.items():
        assert data == b"".join(Publication.load(folder, keys.signing.public).chunks(name))

    # The same documents again, as version 1, as version 2, by a publisher that was started anew.
    publisher.prepare(DOCUMENTS, tmp_path / "again", now_s=NOW_S)
    second = publisher.prepare(
        DOCUMENTS, tmp_path / "version 2", now_s=NOW_S, previous=first.signed
    )
    upload(second, server)
    anew = make_publisher(keys, seeded("after a restart"))
    anew.prepare(DOCUMENTS[1:], tmp_path / "version 3", now_s=NOW_S, previous=second.signed)
    # Another collection and another epoch of the same master secret.
    other = replace(keys, collection=bytes(16))
    make_publisher(other, random).prepare(DOCUMENTS, tmp_path / "other", now_s=NOW_S)
    log.require_each_once()
    assert len(log.mask_keys()) == n_interrupted + 5
    assert max(map(len, log.rows.values())) > 1, "some column was masked in several batches"


def test_the_record_of_masks_finds_a_build_under_a_salt_that_was_used_before(
    log: MaskLog, tmp_path: Path
) -> None:
    keys = OwnerKeys.generate(seeded("keys"))
    for number in range(2):
        # What must never be: the same randomness a second time.
        publisher = make_publisher(keys, seeded("the same"))
        publisher.prepare(DOCUMENTS[: 100 + number], tmp_path / str(number), now_s=NOW_S)
    with pytest.raises(AssertionError, match="twice"):
        log.require_each_once()


def test_a_finished_preparation_is_never_prepared_over(log: MaskLog, tmp_path: Path) -> None:
    random = seeded("over")
    publisher = make_publisher(OwnerKeys.generate(random), random)
    publisher.prepare(DOCUMENTS[:20], tmp_path, now_s=NOW_S)
    before, n_words = folder_hashes(tmp_path), log.n_words()
    with pytest.raises(InputError, match="complete publication"):
        publisher.prepare(DOCUMENTS[:20], tmp_path, now_s=NOW_S)
    assert folder_hashes(tmp_path) == before
    assert log.n_words() == n_words


# --- the stored index looks uniform -------------------------------------------------------------

WIDE = (LevelGeometry(2048, 2048), LevelGeometry(64, 64))
N_ROWS = 1000


def build_cells(random: SeededRandom, n_texts: int = N_ROWS) -> NDArray[np.uint16]:
    """Return the stored cells of level 0 of a new build of always the same documents."""
    texts = make_texts(n_texts, 8)
    builder = SegmentBuilder(
        count_corpus(make_analyzer("english-1"), texts),
        [Member(f"doc-{number}", "", "") for number in range(len(texts))],
        Scoring("tfidf"),
        KeyBundle.from_master(SecretKey(b"m" * 32), b"c" * 16, 1, b""),
        collection=b"c" * 16,
        epoch=1,
        random=random,
        geometry=WIDE,
    )
    data = np.zeros(builder.layout.n_bytes, np.uint8)
    builder.write(data)
    return np.array(SegmentReader(data).level(0))


@pytest.fixture
def rows_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep documents in order: the order of similarity may differ with the machine."""
    monkeypatch.setattr(
        builder_module, "similarity_order", lambda indptr, *_: np.arange(len(indptr) - 1)
    )


def reduce_the_word(self: Keystream, out: NDArray[np.uint16], *_arguments: object) -> None:
    """What section 3 of the protocol forbids: 0..14 become twice as likely."""
    out %= P


@pytest.mark.usefixtures("rows_in_order")
def test_the_cells_of_a_stored_index_are_uniform_over_all_field_elements() -> None:
    cells = build_cells(seeded("index"))
    assert cells.size > 100 * P
    assert uniform_p(value_counts(cells)) > UNLIKELY
    # Also where only zeros are hidden, and column by column.
    padding = cells[-64 + N_ROWS % 61 : -3]
    assert uniform_p(np.bincount(binned(padding, 4096).reshape(-1))) > UNLIKELY
    per_column = np.stack([np.bincount(column, minlength=16) for column in binned(cells, 16).T])
    assert stats.kstest(uniform_p(per_column, axis=1), "uniform").pvalue > UNLIKELY
    per_row = np.stack([np.bincount(row, minlength=64) for row in binned(cells, 64)])
    assert stats.kstest(uniform_p(per_row, axis=1), "uniform").pvalue > UNLIKELY
    assert poisson_p(int((cells < 15).sum()), 15 / P * cells.size) > UNLIKELY


@pytest.mark.usefixtures("rows_in_order")
def test_the_statistic_finds_an_index_masked_with_reduced_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Keystream, "_replace", reduce_the_word)
    cells = build_cells(seeded("index"))
    assert uniform_p(value_counts(cells)) < IMPOSSIBLE
    assert poisson_p(int((cells < 15).sum()), 15 / P * cells.size) < IMPOSSIBLE


@pytest.mark.usefixtures("rows_in_order")
def test_two_builds_of_the_same_documents_differ_by_uniform_noise() -> None:
    random = seeded("two builds")
    difference = modp.subtract(build_cells(random), build_cells(random))
    assert uniform_p(value_counts(difference)) > UNLIKELY


@pytest.mark.usefixtures("rows_in_order")
def test_two_builds_under_one_salt_would_show_their_difference() -> None:
    """Why salts are never used again: the documents' rows are equal where nothing changed."""
    difference = modp.subtract(
        build_cells(seeded("same salt")), build_cells(seeded("same salt"), N_ROWS - 1)
    )
    assert uniform_p(value_counts(difference)) < IMPOSSIBLE


# --- the keystream ------------------------------------------------------------------------------

KEY = bytes(range(32))
#: (domain, level, column, row) whose AES word is p or more: the word, and what stands in its place.
REPLACED = {
    (0x01, 0, 0, 8822): (65523, 44139),
    (0x01, 0, 70000, 6230): (65523, 14147),
    (0x01, 1, 0, 3260): (65531, 48019),
    (0x01, 1, 70000, 2392): (65524, 62827),
    (0x02, 0, 0, 7086): (65526, 37555),
    (0x02, 0, 70000, 954): (65524, 8159),
    (0x02, 1, 0, 6725): (65534, 8250),
    (0x02, 1, 70000, 11084): (65531, 30136),
}


def aes_block(domain: int, level: int, column: int, index: int) -> bytes:
    """Encrypt one counter block as section 3 of the protocol writes it."""
    block = bytes((domain, level)) + column.to_bytes(4, "big") + b"\0\0" + index.to_bytes(8, "big")
    return Cipher(algorithms.AES(KEY), modes.ECB()).encryptor().update(block)


@pytest.mark.parametrize(
    ("address", "words"), REPLACED.items(), ids=lambda at: "-".join(map(str, at))
)
@pytest.mark.parametrize("n_rows", [8, 1024])
def test_a_word_that_is_no_field_element_is_replaced_by_a_whole_block(
    address: tuple[int, int, int, int], words: tuple[int, int], n_rows: int
) -> None:
    domain, level, column, row = address
    raw, replaced = words
    block = aes_block(domain, level, column, row >> 3)
    assert int.from_bytes(block[2 * (row & 7) :][:2], "little") == raw >= P
    other = int.from_bytes(aes_block(domain | 0x80, level, column, row), "big")
    assert other % P == replaced != raw % P
    first = row - row % n_rows
    columns = np.array([column, column + 1, 5])
    drawn = Keystream(SecretKey(KEY)).words(Domain(domain), level, columns, first, n_rows)
    assert int(drawn[0, row - first]) == replaced


def keystream_words(n_columns: int) -> NDArray[np.uint16]:
    return Keystream(SecretKey(KEY)).words(Domain.MASK, 0, np.arange(n_columns), 0, 1 << 17)


def test_the_keystream_is_uniform_and_never_leaves_the_field() -> None:
    words = keystream_words(128)
    assert int(words.max()) < P
    counts = value_counts(words)
    assert uniform_p(counts) > UNLIKELY
    assert poisson_p(int(counts[:15].sum()), 15 / P * words.size) > UNLIKELY


def test_the_statistic_finds_a_keystream_of_reduced_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keystream, "_replace", reduce_the_word)
    counts = value_counts(keystream_words(128))
    assert uniform_p(counts) < IMPOSSIBLE
    assert poisson_p(int(counts[:15].sum()), 15 / P * counts.sum()) < IMPOSSIBLE


def test_a_keystream_that_emits_words_outside_the_field_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Keystream, "_replace", lambda *_arguments: None)
    assert int(keystream_words(2).max()) >= P


def test_neighbouring_addresses_of_the_keystream_are_unrelated() -> None:
    stream = Keystream(SecretKey(KEY))
    columns = np.arange(64)
    base = stream.words(Domain.MASK, 0, columns, 0, 4096)
    others = {
        "next row": np.roll(base, 1, axis=1),
        "next column": np.roll(base, 1, axis=0),
        "next block": np.roll(base, 8, axis=1),
        "next level": stream.words(Domain.MASK, 1, columns, 0, 4096),
        "column + 65536": stream.words(Domain.MASK, 0, columns + 65_536, 0, 4096),
        "other domain": stream.words(Domain.CHECK, 0, columns, 0, 4096),
        "other key": Keystream(SecretKey(b"k" * 32)).words(Domain.MASK, 0, columns, 0, 4096),
    }
    for what, other in others.items():
        difference = binned(modp.subtract(base, other), 256)
        assert uniform_p(np.bincount(difference.reshape(-1), minlength=256)) > UNLIKELY, what
        assert np.count_nonzero(base == other) < 40, what


# --- query shares -------------------------------------------------------------------------------

N_QUERIES = 1000


@dataclass
class Shares:
    """What one server received while the same queries were sent again and again.

    Attributes:
        shares: for each query, uint16 (times sent, columns).
        vectors: for each query, its trapdoor vector, uint16 (columns,).
    """

    shares: dict[str, NDArray[np.uint16]]
    vectors: dict[str, NDArray[np.uint16]]


QUERIES = {
    "words": " ".join(WORDS[:6]),
    "other words": " ".join(WORDS[50:54]),
    "no known word": "zzzz qqqq",
}


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory) -> Shares:
    """Search for real, through all of the client, and keep what server 2 saw."""
    random = seeded("received")
    collection = publish(make_documents(60, 6), tmp_path_factory.mktemp("shares"), random=random)
    kept: list[NDArray[np.uint16]] = []

    def keep(server: SearchServer, request: ScoreRequest) -> ScoreAnswer:
        kept.append(request.shares[0])
        return server.score(request)

    connections = dict(collection.servers)
    connections[2] = HostileServer(collection.servers[2], score=keep)  # type: ignore[assignment,arg-type]
    searcher = Searcher(
        connections, collection.keys.member(), random, clock=lambda: NOW_S, hedge_s=60
    )
    view = searcher.refresh().views[0]
    shares, vectors = {}, {}
    for name, query in QUERIES.items():
        kept.clear()
        for _ in range(N_QUERIES):
            searcher.search(query, k=1, max_records=1)
        shares[name] = np.stack(kept)
        vectors[name] = make_trapdoor(view, parse_question(view, query)).vectors[0]
        assert shares[name].shape == (N_QUERIES, len(vectors[name]))
    return Shares(shares, vectors)


def column_p(shares: NDArray[np.uint16], n_bins: int = 20) -> NDArray[np.float64]:
    """Return, for each column, the chance that its shares are uniform."""
    counts = [np.bincount(column, minlength=n_bins) for column in binned(shares, n_bins).T]
    return uniform_p(np.stack(counts), axis=1)


@pytest.mark.parametrize("name", QUERIES)
def test_the_shares_of_a_query_sent_a_thousand_times_are_uniform_in_every_column(
    received: Shares, name: str
) -> None:
    shares, vector = received.shares[name], received.vectors[name]
    assert uniform_p(value_counts(shares)) > UNLIKELY
    chances = column_p(shares)
    assert chances.min() > UNLIKELY / len(chances)
    assert stats.kstest(chances, "uniform").pvalue > UNLIKELY
    for columns in (vector == 0, vector != 0):
        if columns.any():
            counts = np.bincount(binned(shares[:, columns], 100).reshape(-1), minlength=100)
            assert uniform_p(counts) > UNLIKELY
    assert (vector != 0).any() == (name != "no known word")


def test_the_shares_of_two_queries_come_from_one_distribution(received: Shares) -> None:
    for first, second in combinations(QUERIES, 2):
        a, b = binned(received.shares[first], 20), binned(received.shares[second], 20)
        chances = np.array(
            [
                same_source_p(np.bincount(x, minlength=20), np.bincount(y, minlength=20))
                for x, y in zip(a.T, b.T, strict=True)
            ]
        )
        assert chances.min() > UNLIKELY / len(chances)
        assert stats.kstest(chances, "uniform").pvalue > UNLIKELY


def test_no_share_is_sent_twice_and_successive_shares_differ_by_uniform_noise(
    received: Shares,
) -> None:
    for shares in received.shares.values():
        assert len({share.tobytes() for share in shares}) == N_QUERIES
        difference = binned(modp.subtract(shares[1:], shares[:-1]), 1000)
        assert uniform_p(np.bincount(difference.reshape(-1), minlength=1000)) > UNLIKELY


def dependence(shares: NDArray[np.uint16]) -> tuple[float, float]:
    """Measure whether columns, or one search and the next, have to do with each other.

    Returns:
        the largest correlation of two columns, and of a column with itself one search later, in
        standard deviations; and how far the sum of all their squares is from what chance gives.
    """
    centred = shares.astype(np.float64) - shares.mean(axis=0)
    centred /= centred.std(axis=0)
    pairs = (centred.T @ centred)[np.triu_indices(shares.shape[1], 1)] / np.sqrt(len(shares))
    later = (centred[1:] * centred[:-1]).sum(axis=0) / np.sqrt(len(shares) - 1)
    z = np.concatenate([pairs, later])
    return float(np.abs(z).max()), float(((z**2).sum() - len(z)) / np.sqrt(2 * len(z)))


def test_the_shares_of_a_query_are_independent_over_columns_and_searches(received: Shares) -> None:
    for shares in received.shares.values():
        largest, excess = dependence(shares)
        assert stats.norm.sf(largest) * shares.shape[1] ** 2 > UNLIKELY
        assert abs(excess) < 5


def test_the_statistic_finds_one_column_that_repeats_another(received: Shares) -> None:
    shares = received.shares["words"]
    largest, _ = dependence(np.concatenate([shares, shares[:, :1]], axis=1))
    assert stats.norm.sf(largest) * shares.shape[1] ** 2 < IMPOSSIBLE
    again = shares[np.arange(len(shares)) // 2]
    assert dependence(again)[1] > 5


MANY = 1 << 22


def _without_zero(random: SeededRandom, shape: tuple[int, ...]) -> NDArray[np.uint16]:
    """What lemma 2 forbids: coefficients that are never 0."""
    drawn = uniform_elements(random, shape)
    return np.where(drawn == 0, np.uint16(1), drawn)


@pytest.mark.parametrize("value", [0, 1, 515, 65520])
def test_a_share_is_zero_or_equal_to_the_entry_as_often_as_any_other_value(value: int) -> None:
    secret = np.full(MANY, value, np.uint16)
    for degree in (1, 2):
        sharing = Sharing(secret, degree, seeded(f"zeros {value} {degree}"))
        counts = value_counts(sharing.share(3))
        assert uniform_p(counts) > UNLIKELY
        assert poisson_p(int(counts[0]), MANY / P) > UNLIKELY
        assert poisson_p(int(counts[value]), MANY / P) > UNLIKELY


def test_the_statistic_finds_coefficients_that_are_never_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shamir, "uniform_elements", _without_zero)
    for value in (0, 515):
        sharing = Sharing(np.full(MANY, value, np.uint16), 1, seeded("never zero"))
        counts = value_counts(sharing.share(3))
        assert poisson_p(int(counts[value]), MANY / P) < IMPOSSIBLE


class ChosenCoefficients:
    """A source whose bytes are given field elements."""

    def __init__(self, coefficients: NDArray[np.uint16]) -> None:
        self._data = coefficients.astype("<u2").tobytes()

    def bytes(self, n_bytes: int) -> bytes:
        assert n_bytes == len(self._data)
        return self._data


def coefficients_through(
    points: dict[int, NDArray[np.uint16]],
) -> NDArray[np.uint16]:
    """Return the coefficients, from degree 1, of the polynomial through values at points."""
    degree = len(points) - 1
    # Values elsewhere, by interpolation in which 0 is a point like the others, shifted by one.
    values = {}
    for at in range(1, degree + 1):
        factors = lagrange_coefficients([point + 1 for point in points], at + 1)
        total = sum(
            modp.multiply(value, factor).astype(np.uint64)
            for value, factor in zip(points.values(), factors, strict=True)
        )
        values[at] = np.asarray(total % P).astype(np.uint16)
    # Solve sum_m c_m at^m = value - constant for at = 1..degree, by elimination.
    rows = [[pow(at, power, P) for power in range(1, degree + 1)] for at in values]
    right = [modp.subtract(value, points[0]) for value in values.values()]
    for pivot in range(degree):
        inverse = modp.inverse(rows[pivot][pivot])
        rows[pivot] = [entry * inverse % P for entry in rows[pivot]]
        right[pivot] = modp.multiply(right[pivot], inverse)
        for other in range(degree):
            if other != pivot:
                factor = rows[other][pivot]
                rows[other] = [
                    (a - factor * b) % P for a, b in zip(rows[other], rows[pivot], strict=True)
                ]
                right[other] = modp.subtract(right[other], modp.multiply(right[pivot], factor))
    return np.stack(right)


@pytest.mark.parametrize(("n", "t"), [(3, 1), (5, 2), (7, 3)])
def test_whatever_t_servers_hold_every_query_explains_it_with_exactly_one_polynomial(
    n: int, t: int
) -> None:
    """Perfect secrecy, not by statistics: t shares rule no query out and make none likelier."""
    rng = np.random.default_rng(n)
    n_columns = 64
    queries = [
        np.zeros(n_columns, np.uint16),
        np.arange(n_columns, dtype=np.uint16),
        rng.integers(0, P, n_columns).astype(np.uint16),
    ]
    for servers in combinations(range(1, n + 1), t):
        held = {j: rng.integers(0, P, n_columns).astype(np.uint16) for j in servers}
        held[servers[0]][:8] = 0
        for query in queries:
            coefficients = coefficients_through({0: query, **held})
            sharing = Sharing(query, t, ChosenCoefficients(coefficients))
            for server, share in held.items():
                assert np.array_equal(sharing.share(server), share)


def joint_histogram(
    secret: int, degree: int, servers: tuple[int, ...], n_bins: int, name: str
) -> NDArray[np.int64]:
    """Return how often the shares of ``servers`` lie in each combination of bins."""
    sharing = Sharing(np.full(200_000, secret, np.uint16), degree, seeded(name))
    places = np.zeros(200_000, np.int64)
    for server in servers:
        places = places * n_bins + binned(sharing.share(server), n_bins)
    return np.bincount(places, minlength=n_bins ** len(servers))


@pytest.mark.parametrize(("n", "t"), [(3, 1), (5, 2)])
def test_any_t_shares_of_two_queries_have_one_joint_distribution(n: int, t: int) -> None:
    for servers in combinations(range(1, n + 1), t):
        first = joint_histogram(0, t, servers, 32, f"first {servers}")
        second = joint_histogram(30_000, t, servers, 32, f"second {servers}")
        assert uniform_p(first) > UNLIKELY
        assert uniform_p(second) > UNLIKELY
        assert same_source_p(first, second) > UNLIKELY


@pytest.mark.parametrize(("n", "t"), [(3, 1), (5, 2)])
def test_the_statistic_tells_two_queries_apart_when_one_server_more_colludes(
    n: int, t: int
) -> None:
    servers = tuple(range(1, t + 2))
    first = joint_histogram(0, t, servers, 16, "first")
    second = joint_histogram(30_000, t, servers, 16, "second")
    assert same_source_p(first, second) < IMPOSSIBLE


def test_further_servers_get_values_of_the_same_polynomial_and_new_attempts_of_another() -> None:
    """One polynomial an attempt: two of them at one server would let t servers solve for more."""
    random = seeded("attempts")
    query = np.arange(100, dtype=np.uint16)
    first, second = Sharing(query, 1, random), Sharing(query, 1, random)
    assert np.array_equal(first.share(2), first.share(2))
    slope = modp.subtract(first.share(2), first.share(1))
    assert np.array_equal(modp.subtract(first.share(3), first.share(2)), slope)
    other = modp.subtract(second.share(2), second.share(1))
    assert np.count_nonzero(slope == other) < 3
