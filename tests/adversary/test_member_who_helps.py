"""Beyond the guarantees: what one server can do with the keys of a member, and what it cannot."""

from __future__ import annotations

import numpy as np
import pytest

from mksearch.crypto import labels
from mksearch.crypto.aead import Aead
from mksearch.crypto.bundle import KeyBundle
from mksearch.crypto.keystream import Domain
from mksearch.field.modp import inverse
from mksearch.field.shamir import lagrange_coefficients
from mksearch.index.segment import SegmentReader
from mksearch.messages import RecordAnswer, RecordRequest, ScoreAnswer, ScoreRequest
from mksearch.params import P
from mksearch.query.trapdoor import make_trapdoor, parse_question
from mksearch_client.result import SearchResult
from mksearch_client.searching import Connection
from tests.adversary.corpus import WORDS, make_documents
from tests.adversary.hostile import HostileServer
from tests.support.local import LocalCollection, publish

QUERY = f"{WORDS[4]} {WORDS[11]}"
LIAR = 1


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> LocalCollection:
    return publish(make_documents(150, 21), tmp_path_factory.mktemp("member"))


def hide(collection: LocalCollection, n_hidden: int) -> HostileServer:
    """Return a server that, with the keys of a member and a guess of the query, makes the sums of
    the ``n_hidden`` best rows vanish, and adds to the check rows what goes with that."""
    view = collection.searcher().refresh().views[0]
    question = parse_question(view, QUERY)
    vector = make_trapdoor(view, question).vectors[0].astype(np.int64)
    reader = SegmentReader(collection.segment_bytes(2))
    layout = reader.header.layout
    bundle = KeyBundle.from_master(collection.keys.master, collection.keys.collection, 1, b"")
    keys = bundle.segment_keys(reader.header.salt)
    cells = reader.level(0).astype(np.int64)
    n_rows, width = cells.shape
    masks = keys.mask.words(Domain.MASK, 0, np.arange(width), 0, n_rows).astype(np.int64)
    plain = (cells - masks.T) % P
    geometry = layout.levels[0]
    starts = [geometry.dedicated + geometry.table * g for g in range(geometry.n_tables)]
    sums = np.stack(
        [
            plain[:, : geometry.dedicated] @ vector[: geometry.dedicated]
            + plain[:, start : start + geometry.table] @ vector[start : start + geometry.table]
            for start in starts
        ],
        axis=1,
    )
    rows = layout.block.physical(np.arange(layout.n_rows))
    best = rows[np.argsort(-sums[rows].min(axis=1), kind="stable")[:n_hidden]]
    # What the client adds up has this server's answer times a factor.
    factor = inverse(lagrange_coefficients([1, 2])[0])
    errors = np.zeros_like(sums)
    errors[best] = -sums[best]
    checks = np.arange(layout.block.n_checks)
    vectors = keys.check.words(Domain.CHECK, 0, checks, 0, n_rows).astype(np.int64)
    height, fan_out = layout.block.height, layout.block.fan_out
    for start in range(0, n_rows, height):
        block = slice(start, start + fan_out)
        errors[start + fan_out + checks] = vectors[:, block] @ errors[block] % P

    def lie(server: Connection, request: ScoreRequest) -> ScoreAnswer:
        honest = server.score(request).sums[0].astype(np.int64)
        forged = (honest + errors % P * factor) % P
        return ScoreAnswer(request.query_id, forged.astype(np.uint16)[None])

    return HostileServer(collection.servers[LIAR], score=lie)


def search(collection: LocalCollection, liar: Connection | None = None) -> SearchResult:
    replaced = {} if liar is None else {LIAR: liar}
    return collection.searcher(replace=replaced).search(QUERY, k=5)


def test_one_server_with_a_members_keys_hides_documents_and_is_not_noticed(
    collection: LocalCollection,
) -> None:
    """What the check rows do not promise: their vector is known to every member."""
    honest = search(collection)
    forged = search(collection, hide(collection, 3))
    hidden = {hit.id for hit in honest.hits[:2]}

    assert hidden.isdisjoint(hit.id for hit in forged.hits)
    assert forged.verified
    assert all(report.status in ("ok", "unused") for report in forged.servers)


def test_a_server_that_changes_sums_alone_leaves_scores_and_texts_true(
    collection: LocalCollection,
) -> None:
    every = {hit.id: hit for hit in collection.searcher().search(QUERY, k=150).hits}
    forged = search(collection, hide(collection, 3))

    assert forged.hits
    for hit in forged.hits:
        true = every[hit.id]
        assert (hit.score, hit.title, hit.snippet) == (true.score, true.title, true.snippet)


def test_without_the_check_vector_the_same_lie_is_found(
    collection: LocalCollection,
) -> None:
    liar = hide(collection, 3)

    def forgetful(server: Connection, request: ScoreRequest) -> ScoreAnswer:
        """Lie about documents and leave the check rows as they are."""
        forged = liar.score(request).sums.copy()
        honest = server.score(request).sums
        block = SegmentReader(collection.segment_bytes(2)).header.layout.block
        is_check = np.arange(forged.shape[1]) % block.height >= block.fan_out
        forged[:, is_check] = honest[:, is_check]
        return ScoreAnswer(request.query_id, forged)

    result = search(collection, HostileServer(collection.servers[LIAR], score=forgetful))
    assert [report.status for report in result.servers] == ["lied", "ok", "ok"]
    assert result.hits == search(collection).hits


def test_one_server_with_a_members_keys_seals_records_anew_but_no_document(
    collection: LocalCollection,
) -> None:
    """A record is proved by a key that every member has, a document by the owner's signature."""
    view = collection.searcher().refresh().views[0]
    reader = SegmentReader(collection.segment_bytes(2))
    header, shape = reader.header, reader.header.layout.slot
    bundle = KeyBundle.from_master(collection.keys.master, collection.keys.collection, 1, b"")
    keys = bundle.segment_keys(header.salt)
    slots = view.segments[0].slots
    row_of = {slots.physical(row): row for row in range(header.layout.n_rows)}

    def reseal(server: Connection, request: RecordRequest) -> RecordAnswer:
        elements = server.records(request).elements.copy()
        for number, slot in enumerate(request.slots.tolist()):
            row = row_of.get(slot)
            if row is None:
                continue
            nonce = row.to_bytes(8, "big") + bytes(4)
            associated = labels.RECORD + b"\0" + header.collection + header.salt + nonce
            part = slots.open_part(row, 0, elements[number]).replace(b"Title", b"Lies ")
            sealed = Aead(keys.record).seal(nonce, part, associated)
            bits = np.unpackbits(np.frombuffer(sealed, np.uint8)).reshape(-1, 15)
            words = np.zeros((len(bits), 16), np.uint8)
            words[:, 1:] = bits
            elements[number, : shape.n_elements] = np.packbits(words, axis=1).view(">u2")[:, 0]
        return RecordAnswer(elements)

    liar = HostileServer(collection.servers[LIAR], records=reseal)
    result = search(collection, liar)
    assert result.hits
    assert all(hit.title.startswith("Lies ") for hit in result.hits)
    assert all(report.status in ("ok", "unused") for report in result.servers)
    document = collection.searcher(replace={LIAR: liar}).open(result.hits[0].id)
    assert document.title.startswith("Title ")
