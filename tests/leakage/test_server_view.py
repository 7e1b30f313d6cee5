"""What a server sees depends on the declared leakage alone, and secrets do not show by accident.

Two collections, or two queries, with the same declared leakage must look the same to a server: the
same calls in the same order with the same sizes.
"""

from __future__ import annotations

import base64
import copy
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from mksearch.crypto.aead import Aead, unwrap_key
from mksearch.crypto.bundle import KeyBundle
from mksearch.crypto.kdf import derive
from mksearch.crypto.keystream import Keystream
from mksearch.crypto.randomness import SeededRandom
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.errors import InputError, MksearchError, RecordRefused, VerificationError
from mksearch.field.shamir import Sharing
from mksearch.index.blob_list import BlobList
from mksearch.index.columns import ColumnMap
from mksearch.index.geometry import LevelGeometry
from mksearch.index.manifest import Manifest
from mksearch.index.segment import SegmentReader
from mksearch.index.stream import open_stream, seal_stream
from mksearch.messages import (
    RecordAnswer,
    RecordRequest,
    ScoreAnswer,
    ScoreRequest,
    SelectAnswer,
    SelectRequest,
)
from mksearch.params import P, Quorum
from mksearch.query.answer import Attempt
from mksearch.query.ranking import Source
from mksearch.query.trapdoor import Trapdoor, make_trapdoor, parse_question
from mksearch.scoring.engine import make_engine
from mksearch.text.analyzers import make_analyzer
from mksearch.text.weights import Scoring
from mksearch_client.keys import OwnerKeys
from mksearch_client.privacy import AVAILABLE
from mksearch_client.publication import Publication, upload
from mksearch_client.publishing import Publisher
from mksearch_client.reading import Document
from mksearch_client.searching import Connection, Searcher
from mksearch_server.search_server import SearchServer
from tests.adversary.corpus import WORDS, make_documents
from tests.leakage.chance import binned, uniform_p
from tests.support.local import NOW_S, LocalCollection, open_server, publish

#: As many words as in WORDS, of the same lengths, and no letter sequence in common.
OTHER_WORDS = tuple(
    "".join(parts)
    for parts in product(
        ("bip", "dov", "fux", "gam", "jel"),
        ("cro", "pul", "tig", "wen", "yas", "zod"),
        ("ek", "ub", "of", "ym"),
    )
)
N_DOCUMENTS = 60


@dataclass
class View:
    """What one server sees: calls with the sizes and kinds of everything in them, in order."""

    calls: list[tuple[object, ...]] = field(default_factory=list)


class WatchedServer:
    """A server that writes down what it can see of every call, values left out."""

    def __init__(self, server: SearchServer, view: View) -> None:
        self._server = server
        self._view = view
        self.score_requests: list[ScoreRequest] = []
        self.select_requests: list[SelectRequest] = []

    def _see(self, *what: object) -> None:
        self._view.calls.append(what)

    @property
    def version(self) -> int:
        """Version that is served; the owner of a test knows it without asking."""
        return self._server.version

    def propose(self, data: bytes) -> bytes:
        self._see("propose", len(data))
        return self._server.propose(data)

    def missing(self, manifest_hash: bytes) -> list[bytes]:
        missing = self._server.missing(manifest_hash)
        self._see("missing", len(manifest_hash), len(missing))
        return missing

    def put_all(
        self, manifest_hash: bytes, objects: Iterable[tuple[bytes, Iterable[bytes]]]
    ) -> None:
        sizes = []
        for name, chunks in objects:
            pieces = list(chunks)
            sizes.append(tuple(map(len, (name, *pieces))))
            self._server.put(manifest_hash, name, pieces)
        # Names are hashes, so the order of blobs is none.
        self._see("put", tuple(sorted(sizes)))

    def activate(self, manifest_hash: bytes) -> int:
        self._see("activate", len(manifest_hash))
        return self._server.activate(manifest_hash)

    def manifest(self) -> bytes:
        data = self._server.manifest()
        self._see("manifest", len(data))
        return data

    def renewal(self) -> bytes:
        data = self._server.renewal()
        self._see("renewal", len(data))
        return data

    def score(self, request: ScoreRequest) -> ScoreAnswer:
        self.score_requests.append(request)
        shares = request.shares
        self._see(
            "score",
            len(request.query_id),
            request.version,
            len(request.segment),
            request.level,
            shares.shape,
            shares.dtype.str,
        )
        answer = self._server.score(request)
        self._see("sums", answer.sums.shape, answer.sums.dtype.str)
        return answer

    def records(self, request: RecordRequest) -> RecordAnswer:
        slots = request.slots
        assert len(set(slots.tolist())) == len(slots)
        self._see("records", request.version, slots.shape, slots.dtype.str)
        answer = self._server.records(request)
        self._see("elements", answer.elements.shape)
        return answer

    def select(self, request: SelectRequest) -> SelectAnswer:
        self.select_requests.append(request)
        selectors = request.selectors
        ids = len(request.query_id), request.version, len(request.segment)
        self._see("select", *ids, selectors.shape, selectors.dtype.str)
        answer = self._server.select(request)
        self._see("selected", answer.elements.shape, answer.elements.dtype.str)
        return answer

    def read_object(self, name: bytes, offset: int, n_bytes: int) -> bytes:
        data = self._server.read_object(name, offset, n_bytes)
        self._see("read", len(name), offset, n_bytes, len(data))
        return data


@dataclass
class Watched:
    """A published collection whose servers write down what they see."""

    keys: OwnerKeys
    publication: Publication
    servers: dict[int, WatchedServer]
    views: dict[int, View]
    random: SeededRandom

    @classmethod
    def publish(cls, documents: Iterable[Document], folder: Path, seed: bytes) -> Watched:
        random = SeededRandom(seed.ljust(32))
        keys = OwnerKeys.generate(random)
        publisher = Publisher(
            keys,
            name="test",
            quorum=Quorum(),
            random=random,
            analyzer=make_analyzer("english-1"),
            scoring=Scoring("tfidf"),
        )
        publication = publisher.prepare(documents, folder / "publication", now_s=NOW_S)
        servers, views = {}, {}
        for server in (1, 2, 3):
            views[server] = View()
            real = open_server(folder, server, keys.signing.public)
            servers[server] = WatchedServer(real, views[server])
            upload(publication, servers[server])
        return cls(keys, publication, servers, views, random)

    def searcher(self) -> Searcher:
        connections: dict[int, Connection] = dict(self.servers)
        return Searcher(
            connections, self.keys.member(), self.random, clock=lambda: NOW_S, hedge_s=60
        )

    def seen_while(self, act: Callable[[], object]) -> dict[int, list[tuple[object, ...]]]:
        """Return what each server sees while ``act`` is done."""
        for view in self.views.values():
            view.calls.clear()
        act()
        return {server: list(view.calls) for server, view in self.views.items()}


def renamed(documents: Iterable[Document]) -> list[Document]:
    """Return documents that say something else, word for word of the same lengths."""
    table = dict(zip(WORDS, reversed(OTHER_WORDS), strict=True))
    return [
        Document(
            document.id.replace("doc", "art"),
            document.title.replace("Title", "About"),
            " ".join(table[word] for word in document.text.split()),
        )
        for document in documents
    ]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[Watched, Watched]:
    """Two collections of different owners, with different documents and equal declared leakage."""
    documents = make_documents(N_DOCUMENTS, 7)
    folder = tmp_path_factory.mktemp("twins")
    first = Watched.publish(documents, folder / "first", b"first owner")
    second = Watched.publish(renamed(documents), folder / "second", b"second owner")
    return first, second


def declared(manifest: Manifest, segment: SegmentReader) -> tuple[object, ...]:
    """Return what the threat model says that servers learn of a collection."""
    group = manifest.groups[0]
    return (
        len(manifest.groups),
        group.n_docs,
        group.policy,
        group.analyzer,
        segment.header.layout,
        [segment.size for segment in group.segments],
        group.dictionary.size,
        group.lookup.size,
        group.blobs.size,
        manifest.catalogue.size,
    )


def test_two_collections_with_equal_declared_leakage_are_uploaded_alike(
    twins: tuple[Watched, Watched],
) -> None:
    leaked, uploads = [], []
    for watched in twins:
        name = next(watched.publication.signed.manifest.segments()).id
        data = np.frombuffer(b"".join(watched.publication.chunks(name)), np.uint8)
        leaked.append(declared(watched.publication.signed.manifest, SegmentReader(data)))
        uploads.append({server: list(view.calls) for server, view in watched.views.items()})
    assert leaked[0] == leaked[1]
    assert uploads[0] == uploads[1]
    assert uploads[0][1] == uploads[0][2] == uploads[0][3]
    assert [call[0] for call in uploads[0][1]] == [
        "propose",
        "missing",
        "put",
        "missing",
        "put",
        "activate",
    ]


def updated(
    folder: Path, change: Callable[[Iterable[Document]], list[Document]], gone: range, seed: int
) -> tuple[tuple[object, ...], object]:
    """Change a collection; return what is declared of that, and what servers saw of it."""
    documents, later = make_documents(N_DOCUMENTS, 7), make_documents(N_DOCUMENTS + 9, seed)
    watched = Watched.publish(change(documents), folder, b"an owner")
    local = LocalCollection(
        folder,
        watched.keys,
        Quorum(),
        watched.publication,
        cast("dict[int, SearchServer]", watched.servers),
    )
    # One of those that go does so because another takes its place.
    last = replace(later[N_DOCUMENTS], id=documents[gone[0]].id)
    come = change([last, *later[N_DOCUMENTS + 1 :]])
    names = {change(documents)[row].id for row in gone}
    uploads = watched.seen_while(lambda: local.change(come, names))
    manifest = local.publication.signed.manifest
    assert len(manifest.groups[0].segments) == 2
    new = np.frombuffer(
        b"".join(local.publication.chunks(manifest.groups[0].segments[1].id)), np.uint8
    )
    listed = b"".join(local.publication.chunks(manifest.groups[0].blobs.id))
    sizes = sorted(size for _, size in BlobList.decode(listed).blobs)
    searcher = watched.searcher()
    seen = watched.seen_while(lambda: searcher.search(WORDS[7], k=1))
    asked = sorted(call for call in seen[2] if call[0] in ("score", "sums"))
    return (*declared(manifest, SegmentReader(new)), sizes), (uploads, asked)


@pytest.mark.parametrize("n_gone", [1, 12])
def test_two_updates_with_equal_declared_sizes_look_alike_to_a_server(
    tmp_path: Path, n_gone: int
) -> None:
    # Compressed sizes depend a little on content: take documents for which they are equal.
    for seed in range(8, 30):
        first = updated(tmp_path / f"first {seed}", list, range(n_gone), seed)
        second = updated(tmp_path / f"second {seed}", renamed, range(20, 20 + n_gone), seed)
        if first[0] == second[0]:
            assert first[1] == second[1]
            return
    pytest.fail("no two updates have equal declared sizes")


def test_two_collections_share_no_bytes_but_what_is_public(twins: tuple[Watched, Watched]) -> None:
    stored = []
    for watched in twins:
        folder = watched.publication.folder / "objects"
        files = [*folder.iterdir(), watched.publication.folder / "blobs"]
        stored.append([path.read_bytes() for path in files])
    windows = [
        {data[at : at + 16] for data in objects for at in range(4096, len(data) - 16, 16)}
        for objects in stored
    ]
    assert not windows[0] & windows[1]
    for objects in stored:
        for data in objects:
            for word in (*WORDS, *OTHER_WORDS, "doc-0", "art-0", "Title", "About"):
                assert word.encode() not in data


@pytest.mark.parametrize("n_words", [1, 3, 6])
@pytest.mark.parametrize("mode", AVAILABLE)
def test_two_queries_with_equal_declared_leakage_are_asked_alike(
    twins: tuple[Watched, Watched], mode: str, n_words: int
) -> None:
    words = WORDS[7 : 7 + n_words]
    table = dict(zip(WORDS, reversed(OTHER_WORDS), strict=True))
    seen = []
    for watched, query in zip(twins, (words, [table[word] for word in words]), strict=True):
        searcher = watched.searcher()

        def ask(searcher: Searcher = searcher, query: Iterable[str] = query) -> None:
            for _ in range(2):
                assert searcher.search(" ".join(query), k=N_DOCUMENTS, privacy=mode).hits

        seen.append(watched.seen_while(ask))
    assert seen[0] == seen[1]
    kinds = {call[0] for call in seen[0][2]}
    assert kinds >= {"manifest", "score", "sums"}
    assert ("select" in kinds) == (mode == "full")
    assert seen[0][3] == [], "only as many servers as needed are asked"


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("one word", WORDS[0]),
        ("another word", WORDS[-1]),
        ("many words", " ".join(WORDS[:60])),
        ("one word many times", " ".join([WORDS[3]] * 50)),
        ("an unknown word", "zzzzzz"),
        ("unknown words", "zzzzzz qqqqqq wwwwww"),
        ("stop words", "to be or not to be"),
        ("punctuation", "?!"),
        ("nothing", ""),
    ],
)
def test_every_query_of_one_class_sends_the_same_score_request(
    twins: tuple[Watched, Watched], name: str, query: str
) -> None:
    watched = twins[0]
    searcher = watched.searcher()
    searcher.search(WORDS[1])
    ordinary = watched.seen_while(lambda: searcher.search(WORDS[1]))
    seen = watched.seen_while(lambda: searcher.search(query))
    for server in (1, 2, 3):
        asked, usual = (
            [call for call in calls[server] if call[0] in ("manifest", "score", "sums")]
            for calls in (seen, ordinary)
        )
        assert asked == usual
        assert bool(asked) == (server < 3)


@pytest.mark.parametrize("query", ["zzzzzz", "to be or not to be", ""])
def test_the_share_of_a_query_that_matches_nothing_is_uniform_and_fresh(
    twins: tuple[Watched, Watched], query: str
) -> None:
    watched = twins[0]
    searcher = watched.searcher()
    server = watched.servers[1]
    server.score_requests.clear()
    for _ in range(100):
        assert searcher.search(query).hits == ()
    shares = np.stack([request.shares for request in server.score_requests])
    assert len(shares) == 100
    assert len({share.tobytes() for share in shares}) == 100
    counts = np.bincount(binned(shares, 500).reshape(-1), minlength=500)
    assert uniform_p(counts) > 1e-3
    assert len({request.query_id for request in server.score_requests}) == 100


def test_the_number_of_vectors_depends_on_the_class_of_the_number_of_terms_alone(
    twins: tuple[Watched, Watched],
) -> None:
    watched = twins[0]
    searcher = watched.searcher()
    dictionary = searcher.refresh().views[0].dictionary
    assert len(dictionary.terms) > 128
    for n_terms in (1, 2, 63, 64, 65, 127, 128, 129, len(dictionary.terms)):
        n_vectors = 1 if n_terms <= 64 else 2 if n_terms <= 128 else 4
        seen = watched.seen_while(lambda n=n_terms: searcher.search(" ".join(dictionary.terms[:n])))  # type: ignore[misc]
        shapes = [call[5] for call in seen[1] if call[0] == "score"]
        assert [shape[0] for shape in shapes] == [n_vectors]  # type: ignore[index]


def test_servers_of_one_attempt_share_a_query_id_and_nothing_else(
    twins: tuple[Watched, Watched],
) -> None:
    watched = twins[0]
    searcher = watched.searcher()
    for server in watched.servers.values():
        server.score_requests.clear()
    for _ in range(20):
        searcher.search(WORDS[5])
    first, second = (watched.servers[server].score_requests for server in (1, 2))
    assert [r.query_id for r in first] == [r.query_id for r in second]
    assert len({r.query_id for r in first}) == 20
    for one, two in zip(first, second, strict=True):
        assert np.count_nonzero(one.shares == two.shares) < 5


def test_opening_any_document_of_a_size_class_looks_the_same(
    twins: tuple[Watched, Watched],
) -> None:
    watched = twins[0]
    searcher = watched.searcher()
    searcher.open("doc-0001")
    seen: dict[int, list[object]] = {}
    for number in range(20):
        calls = watched.seen_while(lambda n=number: searcher.open(f"doc-{n:04}"))  # type: ignore[misc]
        sizes = [call[-1] for call in calls[1] if call[0] == "read"]
        seen.setdefault(max(sizes), []).append(calls)  # type: ignore[type-var,arg-type]
    assert len(seen) < 8
    for views in seen.values():
        assert all(view == views[0] for view in views)


def test_the_records_read_say_nothing_of_the_order_of_rows(twins: tuple[Watched, Watched]) -> None:
    """Slots lie in keyed order: reading all of them by falling row must look like any order."""
    view = twins[0].searcher().refresh().views[0]
    slots = view.segments[0].slots
    physical = np.array([slots.physical(row) for row in range(view.segments[0].n_rows)])
    assert len(set(physical.tolist())) == len(physical)
    assert abs(np.corrcoef(physical, np.arange(len(physical)))[0, 1]) < 0.5
    other = twins[1].searcher().refresh().views[0].segments[0].slots
    assert [other.physical(row) for row in range(10)] != physical[:10].tolist()


# --- secrets do not show themselves -------------------------------------------------------------

SECRET = bytes(range(101, 133))
#: An entry that no other number in a text is likely to equal.
ENTRY = 54_321


def forms_of(secret: bytes) -> list[str]:
    """Return how 8 bytes in a row of a secret could look in a text."""
    forms = []
    for at in range(0, len(secret) - 7, 4):
        part = secret[at : at + 8]
        forms += [part.hex(), repr(part)[2:-1], repr(list(part))[1:-1], part.hex(" ")]
        forms += [str(int.from_bytes(part, "big")), str(int.from_bytes(part, "little"))]
    forms += [base64.b64encode(secret[at:]).decode()[:10] for at in range(3)]
    return forms


def sharing() -> Sharing:
    return Sharing(np.full(4, ENTRY, np.uint16), 1, SeededRandom(SECRET))


def trapdoor() -> Trapdoor:
    vectors = np.zeros((1, 256), np.uint16)
    vectors[0, 3] = ENTRY
    return Trapdoor(vectors, (ENTRY,))


def bundle() -> KeyBundle:
    return KeyBundle(*[SecretKey(SECRET)] * 7)


def owner() -> OwnerKeys:
    return OwnerKeys(b"c" * 16, SecretKey(SECRET), SigningKey(SecretKey(SECRET)))


HOLDERS: dict[str, Callable[[], object]] = {
    "SecretKey": lambda: SecretKey(SECRET),
    "derived key": lambda: derive(SecretKey(SECRET), b"label"),
    "KeyBundle": bundle,
    "SegmentKeys": lambda: bundle().segment_keys(b"s" * 32),
    "SigningKey": lambda: SigningKey(SecretKey(SECRET)),
    "OwnerKeys": owner,
    "MemberKeys": lambda: owner().member(),
    "Keystream": lambda: Keystream(SecretKey(SECRET)),
    "Aead": lambda: Aead(SecretKey(SECRET)),
    "ColumnMap": lambda: ColumnMap(bundle().column_keys(), [LevelGeometry(64, 64)], [5]),
    "Sharing": sharing,
    "Trapdoor": trapdoor,
}


@pytest.mark.parametrize("make", HOLDERS.values(), ids=HOLDERS.keys())
def test_a_secret_is_not_seen_when_what_holds_it_is_printed(make: Callable[[], object]) -> None:
    holder = make()
    text = "\n".join((repr(holder), str(holder), f"{holder}", repr([holder]), repr({1: holder})))
    for form in (*forms_of(SECRET), str(ENTRY), hex(ENTRY)):
        assert form not in text


@pytest.mark.parametrize("make", HOLDERS.values(), ids=HOLDERS.keys())
def test_a_secret_is_never_pickled_nor_copied_by_way_of_pickling(
    make: Callable[[], object],
) -> None:
    holder = make()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError):
            pickle.dumps(holder, protocol)
    with pytest.raises(TypeError):
        copy.deepcopy(holder)


def test_secret_keys_are_neither_compared_nor_hashed() -> None:
    key = SecretKey(SECRET)
    with pytest.raises(TypeError, match="not compared"):
        assert key == SecretKey(SECRET)
    with pytest.raises(TypeError, match="not compared"):
        assert key != SecretKey(SECRET)
    with pytest.raises(TypeError):
        hash(key)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LocalCollection:
    return publish(make_documents(40, 9), tmp_path_factory.mktemp("local"))


def test_what_the_user_typed_is_not_seen_when_the_parts_of_a_search_are_printed(
    local: LocalCollection,
) -> None:
    searcher = local.searcher()
    view = searcher.refresh().views[0]
    segment = view.segments[0]
    question = parse_question(view, f"{WORDS[0]} {WORDS[1]} zzzzzz")
    made = make_trapdoor(view, question)
    attempt = Attempt(segment, made, Quorum(), SeededRandom(SECRET), version=1)
    bounds = np.full(segment.n_rows, ENTRY, np.int64)
    parts = {
        "question": question,
        "trapdoor": made,
        "attempt": attempt,
        "source": Source(view, segment, question, bounds),
        "searcher": searcher,
        "group": view,
        "segment": segment,
    }
    shown = [
        what
        for what, part in parts.items()
        if any(word in repr(part) for word in (WORDS[0], "zzzzzz", str(ENTRY)))
    ]
    assert shown == []


def errors_with_secrets(local: LocalCollection) -> Iterable[tuple[str, Exception]]:
    """Provoke errors where secrets are at hand."""
    sealed = seal_stream(SecretKey(SECRET), "blob", b"c" * 16, SECRET, SeededRandom(SECRET))
    broken = sealed[:-1] + bytes([sealed[-1] ^ 1])
    searcher = local.searcher()
    searcher.search(WORDS[0])
    attempts: list[tuple[str, Callable[[], object]]] = [
        ("a key of another length", lambda: SecretKey(SECRET[:-1])),
        ("comparison", lambda: SecretKey(SECRET) == SecretKey(SECRET)),
        ("pickle", lambda: pickle.dumps(SecretKey(SECRET))),
        ("a damaged stream", lambda: open_stream(SecretKey(SECRET), "blob", b"c" * 16, broken)),
        ("a wrong key", lambda: open_stream(SecretKey(b"k" * 32), "blob", b"c" * 16, sealed)),
        ("a wrong wrap", lambda: unwrap_key(SecretKey(SECRET), SECRET + b"x" * 8, "a document")),
        ("a degree of 0", lambda: Sharing(np.full(4, ENTRY, np.uint16), 0, SeededRandom(SECRET))),
        ("a share at 0", lambda: sharing().share(0)),
        ("k out of range", lambda: searcher.search(f"{WORDS[0]} {WORDS[1]}", k=0)),
        ("a seed of another length", lambda: SeededRandom(SECRET[:-1])),
    ]
    for what, act in attempts:
        with pytest.raises((MksearchError, TypeError)) as caught:
            act()
        yield what, caught.value


def test_error_messages_hold_no_secret(local: LocalCollection) -> None:
    for what, error in errors_with_secrets(local):
        text = f"{error} {error!r} {error.args}"
        for form in (*forms_of(SECRET), str(ENTRY), WORDS[0], WORDS[1]):
            assert form not in text, what


def test_an_error_of_a_search_names_servers_and_not_the_words_asked_for(
    local: LocalCollection,
) -> None:
    class Liar:
        def __init__(self, server: SearchServer) -> None:
            self._server = server
            self.manifest, self.read_object = server.manifest, server.read_object
            self.renewal = server.renewal

        def score(self, request: ScoreRequest) -> ScoreAnswer:
            sums = self._server.score(request).sums.copy()
            sums[0, 0, 0] = (int(sums[0, 0, 0]) + 1) % P
            return ScoreAnswer(request.query_id, sums)

        def records(self, request: RecordRequest) -> RecordAnswer:
            return self._server.records(request)

    liars: dict[int, Connection] = {server: Liar(local.servers[server]) for server in (1, 2, 3)}
    with pytest.raises(VerificationError) as caught:
        local.searcher(replace=liars).search(f"{WORDS[0]} {WORDS[1]} zzzzzz")
    for word in (WORDS[0], WORDS[1], "zzzzzz"):
        assert word not in f"{caught.value} {caught.value!r}"
    assert "1" in str(caught.value)


def test_keys_of_one_collection_open_nothing_of_another(twins: tuple[Watched, Watched]) -> None:
    first, second = twins
    connections: dict[int, Connection] = dict(second.servers)
    stranger = OwnerKeys(second.keys.collection, first.keys.master, second.keys.signing)
    searcher = Searcher(connections, stranger.member(), first.random, clock=lambda: NOW_S)
    with pytest.raises(RecordRefused):
        searcher.search(OTHER_WORDS[0])
    with pytest.raises((RecordRefused, InputError)):
        searcher.open("art-0001")


def test_what_servers_hold_has_no_word_of_any_document(
    twins: tuple[Watched, Watched],
) -> None:
    """The engine and the store see numbers and sealed bytes: no word, id or title in any file."""
    assert make_engine("cpu").name == "cpu"
    for watched in twins:
        folder = watched.publication.folder.parent
        files = [path for path in folder.rglob("*") if path.is_file() and "server-" in str(path)]
        assert len(files) >= 6
        for path in files:
            data = path.read_bytes()
            for word in (*WORDS, *OTHER_WORDS, "doc-0", "art-0", "Title of", "About of"):
                assert word.encode() not in data, path.name
