"""A group of several segments answers as one built afresh from the documents that are left."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mksearch.codec import ByteReader, decode_varints, encode_varint
from mksearch.crypto.kdf import sha256
from mksearch.crypto.randomness import SystemRandom
from mksearch.errors import AnswerRefused, FormatError, InputError
from mksearch.index.blob_list import BlobList
from mksearch.index.dictionary import RATIO_ONE
from mksearch.index.manifest import ObjectRef
from mksearch.query.trapdoor import parse_question
from mksearch.text.weights import SCORE_ONE
from mksearch_client.keys import OwnerKeys
from mksearch_client.part_memory import PartMemory
from mksearch_client.reading import Document
from mksearch_client.rounds import Asked, SearchRounds
from mksearch_server.listing import Listing
from tests.chaos.changes import (
    Model,
    change_at_random,
    corpus,
    document,
    queries,
    text,
    word,
)
from tests.support.local import NOW_S
from tests.support.plain import PlainEngine

SCORINGS = ("tfidf", "bm25")
#: More of them: `./dev chaos --only changes`.
N_STEPS = 60
RANDOM = SystemRandom()


@pytest.mark.parametrize("scoring", SCORINGS)
def test_documents_that_come_go_and_change_are_ranked_as_if_built_afresh(
    tmp_path: Path, scoring: str
) -> None:
    rng = random.Random(7)
    model = Model(corpus(200), tmp_path, scoring)
    model.change([document(f"new-{n}", rng) for n in range(20)], set())
    assert len(model.collection.publication.signed.manifest.groups[0].segments) == 2
    model.require_as_built_afresh(queries(rng, model.documents))
    model.change([document("doc-0003", rng), document("new-3", rng)], {"doc-0007", "new-1"})
    assert len(model.collection.publication.signed.manifest.groups[0].segments) == 3
    model.require_as_built_afresh(queries(rng, model.documents))
    model.change([], {"doc-0100"}, merged={0, 1, 2})
    assert len(model.collection.publication.signed.manifest.groups[0].segments) == 1
    model.require_as_built_afresh(queries(rng, model.documents))


@pytest.mark.parametrize("scoring", SCORINGS)
def test_a_collection_changed_at_random_answers_like_one_built_afresh(
    tmp_path: Path, scoring: str
) -> None:
    assert change_at_random(tmp_path, scoring, N_STEPS, 1).violations == []


@pytest.mark.parametrize("n_docs", [1, 2])
def test_small_collections_are_emptied_and_filled_again(tmp_path: Path, n_docs: int) -> None:
    rng = random.Random(n_docs)
    model = Model(corpus(n_docs), tmp_path, "bm25")
    words = [word(number) for number in range(5)]
    model.change([], set(model.documents))
    model.require_as_built_afresh(words)
    # Erased as well: nothing of the documents is left on a server.
    before = set(model.collection.publication.signed.manifest.groups[0].segments)
    model.change([], set(), merged={0})
    assert not before & set(model.collection.publication.signed.manifest.groups[0].segments)
    model.require_as_built_afresh(words)
    model.change([document("again", rng), document("again too", rng)], set())
    model.require_as_built_afresh(queries(rng, model.documents))
    with pytest.raises(InputError, match="no document 'doc-0000'"):
        model.collection.searcher().open("doc-0000")
    assert model.collection.searcher().open("again").id == "again"


# --- bounds --------------------------------------------------------------------------------------


def require_bounds(model: Model, query: str, *, rescaled: bool = True) -> None:
    """Require that every live document's bound is at least its score."""
    searcher = model.collection.searcher()
    (view,) = searcher.refresh().views
    if not rescaled:
        ones = np.full(len(view.dictionary.terms), RATIO_ONE, np.int64)
        view.dictionary = replace(view.dictionary, ratios=ones)
        for one in view.segments:
            one.facts = replace(one.facts, kappa=(1, 1))
    question = parse_question(view, query)
    asked = [Asked(view, segment, question) for segment in view.segments]
    signed = model.collection.publication.signed
    run = SearchRounds(searcher._start(), SystemRandom(), lambda: NOW_S, lambda *_lie: None)
    sources = run.bounds(asked, model.collection.quorum, signed.manifest.version)
    exact = dict(PlainEngine(model.documents, model.scoring).search(query, 10_000))
    held, _ = model.collection.held()
    for source, segment in zip(sources, held.segments, strict=True):
        bound_of = {row: bound for bound, row in source.candidates()}
        for number in np.flatnonzero(segment.live).tolist():
            name, row = segment.part.ids[number], int(segment.part.rows[number])
            score = round(exact.get(name, 0.0) * SCORE_ONE)
            bound = bound_of.get(row, 0)
            # A double has 53 bits, so the score that it gives back is that exact.
            assert bound >= score * (1 - 2**-50), (name, bound, score)


@pytest.mark.parametrize("scoring", SCORINGS)
def test_bounds_of_older_segments_stay_bounds_under_the_statistics_of_today(
    tmp_path: Path, scoring: str
) -> None:
    rng = random.Random(f"bounds {scoring}")
    model = Model(corpus(80, 5), tmp_path, scoring)
    for step in range(4):
        # Words that were rare become frequent, and the mean length changes.
        come = [
            Document(f"n{step}-{n}", "", " ".join([word(700 + n), *text(rng, 60).split()]))
            for n in range(9)
        ]
        model.change(come, set(rng.sample(sorted(model.documents), 5)))
        for query in queries(rng, model.documents, 4):
            require_bounds(model, query)
        require_bounds(model, " ".join(word(700 + n) for n in range(9)))


@pytest.mark.parametrize("scoring", SCORINGS)
def test_without_kappa_and_ratios_a_bound_would_be_too_low(tmp_path: Path, scoring: str) -> None:
    # What the numbers of the dictionary are for: the same search without them breaks its promise.
    short = [Document(f"s{n:03}", "", f"{word(n)} {word(n)} {word(n + 1)}") for n in range(90)]
    model = Model(short, tmp_path, scoring)
    model.change([Document(f"n{n}", "", f"{word(500 + n)} " * 4) for n in range(60)], set())
    assert len(model.collection.publication.signed.manifest.groups[0].segments) == 2

    def require_all(*, rescaled: bool) -> None:
        for number in range(20):
            require_bounds(model, word(number), rescaled=rescaled)

    require_all(rescaled=True)
    with pytest.raises(AssertionError):
        require_all(rescaled=False)


def test_a_group_whose_bounds_would_get_loose_is_rewritten(tmp_path: Path) -> None:
    # Long documents among short ones: the mean length, and with it kappa, more than doubles.
    short = [Document(f"s{n:03}", "", f"{word(n)} {word(n + 1)}") for n in range(100)]
    model = Model(short, tmp_path, "bm25")
    rng = random.Random(1)
    model.change([Document(f"long{n}", "", text(rng, 400)) for n in range(40)], set())
    assert len(model.collection.publication.signed.manifest.groups[0].segments) == 1
    model.require_as_built_afresh(queries(rng, model.documents))


# --- small cases that real systems get wrong -----------------------------------------------------


def found(model: Model, query: str) -> list[str]:
    return [hit.id for hit in model.collection.searcher().search(query, 50).hits]


def test_a_deleted_document_is_found_by_none_of_its_words(tmp_path: Path) -> None:
    model = Model(corpus(40), tmp_path, "tfidf")
    model.change([Document("x", "A title", "unique walnut words alone")], set())
    assert found(model, "walnut") == ["x"]
    model.change([], {"x"})
    for query in ("walnut", "unique", "words alone", "title"):
        assert "x" not in found(model, query)
    with pytest.raises(InputError, match="no document 'x'"):
        model.collection.searcher().open("x")


def test_a_replaced_document_is_found_by_new_words_alone_and_once(tmp_path: Path) -> None:
    model = Model([*corpus(40), Document("x", "", "walnut common")], tmp_path, "bm25")
    model.change([Document("x", "", "chestnut common")], set())
    assert found(model, "walnut") == []
    assert found(model, "chestnut") == ["x"]
    assert found(model, "common walnut chestnut") == ["x"]
    assert model.collection.searcher().open("x").text == "chestnut common"


def test_a_server_that_missed_a_deletion_is_refused_and_finds_nothing_deleted(
    tmp_path: Path,
) -> None:
    model = Model([*corpus(40), Document("x", "", "walnut")], tmp_path, "tfidf")
    model.collection.change([], {"x"}, servers=(1, 2))
    searcher = model.collection.searcher()
    result = searcher.search("walnut")
    assert result.hits == ()
    assert result.version == 2
    with pytest.raises(AnswerRefused, match="server 3 stale"):
        model.collection.searcher((2, 3)).search("walnut")


def test_of_equal_documents_the_deleted_ones_alone_go_and_cost_no_fetches(tmp_path: Path) -> None:
    twins = [Document(f"twin-{n:05}", "", "walnut walnut oak") for n in range(20_000)]
    model = Model([*twins, *corpus(30)], tmp_path, "bm25")
    gone = {document.id for document in twins[::2]}
    model.change([], gone)
    result = model.collection.searcher().search("walnut", 10_000)
    assert [hit.id for hit in result.hits] == [d.id for d in twins if d.id not in gone]
    assert result.records_fetched <= 3
    assert result.exact
    # Once all are gone their row is not even fetched.
    model.change([], {d.id for d in twins} - gone)
    result = model.collection.searcher().search("walnut", 2000)
    assert (result.hits, result.records_fetched) == ((), 0)


def test_what_the_profile_keeps_of_a_part_is_the_part_or_nothing(tmp_path: Path) -> None:
    model = Model([*corpus(40), Document("ähnlich", "Ünïcode ☃", "walnut")], tmp_path, "bm25")
    held, catalogue = model.collection.held()
    (ref,) = catalogue.parts.values()
    part = held.segments[0].part
    memory = PartMemory(tmp_path / "kept", model.collection.keys)
    assert memory.get(ref) is None
    memory.put(ref, part)
    kept = memory.get(ref)
    assert kept is not None
    assert kept.encode() == part.encode()
    assert kept.titles[1:3] == list(part.titles[1:3])

    # Sealed as it is, under another name: it is of that name no more.
    path = tmp_path / "kept" / ref.id.hex()
    other = ObjectRef(bytes(32), ref.size)
    path.with_name(other.id.hex()).write_bytes(path.read_bytes())
    assert memory.get(other) is None
    assert PartMemory(tmp_path / "kept", OwnerKeys.generate(RANDOM)).get(ref) is None
    secret = b"walnut"
    assert secret not in path.read_bytes()
    memory.keep_only([ref])
    assert [left.name for left in path.parent.iterdir()] == [path.name]
    for damaged in (b"", path.read_bytes()[:-1], bytes(80), path.read_bytes().replace(b"M", b"N")):
        path.write_bytes(damaged)
        assert memory.get(ref) is None
    # A folder that cannot be written costs time and nothing else.
    memory.keep_only([])
    path.parent.rmdir()
    path.parent.write_bytes(b"")
    memory.put(ref, part)
    assert memory.get(ref) is None


NAMES = st.binary(min_size=1, max_size=2).map(lambda name: name.ljust(31, b"\1") + b"\0")


@given(st.dictionaries(NAMES, st.integers(0, 2**64 - 1)), st.dictionaries(NAMES, st.just(7)))
def test_a_changed_blob_list_is_the_list_of_what_there_is(
    before: dict[bytes, int], come: dict[bytes, int]
) -> None:
    gone = sorted(before)[::2]
    changed = BlobList.of(before.items()).changed(gone, come.items())
    wanted = {name: size for name, size in before.items() if name not in gone} | come
    assert changed.blobs == tuple(sorted(wanted.items()))
    assert BlobList.decode(changed.encode()) == changed
    assert all(changed.size_of(name) == size for name, size in wanted.items())
    assert changed.size_of(b"") is changed.size_of(bytes(31)) is None
    assert all((changed.size_of(name) is None) == (name not in wanted) for name in gone)


@given(st.lists(st.tuples(st.sets(NAMES), st.sets(NAMES)), max_size=2))
def test_a_listing_beyond_another_is_the_difference_of_their_names(
    pairs: list[tuple[set[bytes], set[bytes]]],
) -> None:
    listings = []
    for side in (0, 1):
        listing = object.__new__(Listing)
        listing.named = {bytes([side]) * 32: 1}
        listing.lists = {}
        for number, pair in enumerate(pairs):
            blobs = BlobList.of((name, 1) for name in pair[side])
            listing.add_list(sha256(blobs.encode(), bytes([number])), blobs)
        listings.append(listing)
    one, other = listings
    names = [
        set(made.named).union(*(pair[at] for pair in pairs)) for at, made in enumerate(listings)
    ]
    assert set(one.beyond(None)) == names[0]
    assert set(one.beyond(other)) == names[0] - names[1]
    assert other.drop_from(names[0]) == names[0] - names[1]


def test_tombstones_are_padded_so_that_few_and_many_deletions_have_one_size(
    tmp_path: Path,
) -> None:
    sizes = []
    for n_gone in (1, 9, 16):
        model = Model(corpus(60), tmp_path / str(n_gone), "tfidf")
        model.change([], {f"doc-{n:04}" for n in range(n_gone)})
        sizes.append(model.collection.publication.signed.manifest.groups[0].lookup.size)
    assert len(set(sizes)) == 1


def test_many_small_additions_are_merged_as_tiers_fill(tmp_path: Path) -> None:
    rng = random.Random(5)
    model = Model(corpus(400), tmp_path, "tfidf")
    counts = []
    for number in range(9):
        model.change([document(f"n{number}", rng)], set())
        counts.append(len(model.collection.publication.signed.manifest.groups[0].segments))
    assert counts == [2, 3, 4, 5, 6, 7, 8, 2, 3]
    model.require_as_built_afresh(queries(rng, model.documents, 5))


# --- what the owner reads fast --------------------------------------------------------------------


@given(values=st.lists(st.integers(0, (1 << 63) - 1) | st.integers(0, 300), max_size=30))
def test_many_varints_at_once_are_read_as_one_by_one(values: list[int]) -> None:
    data = b"".join(map(encode_varint, values))
    assert decode_varints(data, len(values), "numbers").tolist() == values


@given(data=st.binary(max_size=24), n_values=st.integers(0, 12))
def test_bytes_that_are_no_varints_are_refused_as_one_by_one(data: bytes, n_values: int) -> None:
    reader = ByteReader(data, "numbers")
    try:
        wanted = [reader.varint() for _ in range(n_values)]
        reader.finish()
    except FormatError:
        with pytest.raises(FormatError):
            decode_varints(data, n_values, "numbers")
    else:
        assert decode_varints(data, n_values, "numbers").tolist() == wanted
