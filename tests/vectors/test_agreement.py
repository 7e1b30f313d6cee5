"""Both implementations on random inputs: equal bytes, answers, hits and scores."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import pytest

from mksearch.crypto.randomness import SeededRandom
from mksearch.crypto.secret import SecretKey
from mksearch.errors import MksearchError, NotEnoughAnswers
from mksearch.field.shamir import Sharing, lagrange_coefficients
from mksearch.index.catalogue import CatalogueEntry, Lookup, LookupEntry, encode_catalogue
from mksearch.index.dictionary import Dictionary
from mksearch.index.geometry import choose_geometry
from mksearch.index.manifest import SignedManifest
from mksearch.index.record import decode_record
from mksearch.index.segment import SegmentReader
from mksearch.index.stream import KINDS, open_stream, seal_stream
from mksearch.params import Quorum
from mksearch.query import descent as query_descent
from tests.reference import descent, field, index, keys, manifest, records, search, stream, text
from tests.reference import segment as segments
from tests.reference.refused import Refused

from . import slow
from .fast import Client, Fixed, build, bundle_of, dictionary_of, with_errors
from .good_index import (
    OWNER_SEED,
    ROWS,
    built_segment,
    encode_row,
    fields_of,
    sample_manifest,
    signing_key,
)
from .good_search import client_of
from .material import COLLECTION, WORDS, Json, sample_documents, seed

SEEDS = range(6)


def random_case(number: int) -> Json:
    """Return the inputs of a segment of random shape; odd numbers are BM25."""
    rng = random.Random(f"agreement {number}")
    fan_out, n_checks = rng.choice([(5, 3), (6, 2), (13, 3), (2, 6), (61, 3), (15, 1)])
    n_tables = rng.choice([1, 2, 3, 3, 8])
    n_documents = rng.randint(1, 45)
    documents = sample_documents(f"agreement {number}", n_documents, spill=rng.random() < 0.5)
    n_rows = len({tuple(sorted(d["terms"])) for d in documents})
    n_levels = len(index.level_rows(n_rows, fan_out))
    kind = "bm25" if number % 2 else "tfidf"
    return {
        "owner": {
            "master": rng.randbytes(32).hex(),
            "collection": rng.randbytes(16).hex(),
            "epoch": rng.randrange(1, 2**40),
            "policy": rng.randbytes(rng.randrange(20)).hex(),
        },
        "salt": rng.randbytes(32).hex(),
        "scoring": {"kind": kind, "k1": rng.uniform(0, 3), "b": rng.random()},
        "fan_out": fan_out,
        "n_checks": n_checks,
        "n_tables": n_tables,
        "widths": [[rng.choice([64, 128, 192]), rng.choice([64, 128])] for _ in range(n_levels)],
        "documents": documents,
    }


@dataclass(frozen=True)
class Pair:
    """One segment, built by the product and by the reference."""

    number: int

    @cached_property
    def case(self) -> Json:
        return random_case(self.number)

    @cached_property
    def product(self) -> Client:
        built = build(self.case)
        return Client.of(self.case, built)

    @cached_property
    def reference(self) -> search.Member:
        return slow.member_of(self.case, slow.build(self.case, build(self.case).rows))

    def queries(self, n: int) -> list[list[str]]:
        rng = random.Random(f"queries {self.number}")
        sizes = [1, 2, 3, 8, 70, 135, *(rng.randint(1, 12) for _ in range(n))][:n]
        return [[*rng.choices(WORDS, k=size), "unknown"] for size in sizes]


PAIRS = [Pair(number) for number in SEEDS]


@pytest.fixture(params=PAIRS, ids=lambda pair: f"seed {pair.number}")
def pair(request: pytest.FixtureRequest) -> Pair:
    made: Pair = request.param
    return made


# --- what the owner writes -----------------------------------------------------------------------


def test_both_build_the_same_segment_and_read_it(pair: Pair) -> None:
    built = build(pair.case)
    other = slow.build(pair.case, built.rows)
    data = segments.encode_segment(other.segment)
    assert data == built.data
    assert other.step == built.builder.step
    SegmentReader(np.frombuffer(data, np.uint8)).verify()
    assert segments.read_segment(built.data) == other.segment


def test_both_write_the_same_dictionary_before_compression(pair: Pair) -> None:
    written = dictionary_of(pair.case, build(pair.case)).encode()
    plain = pair.reference.dictionary
    assert stream.dictionary_cbor(plain) == zlib.decompress(written)
    assert stream.decode_dictionary(written) == plain
    again = Dictionary.decode(stream.encode_dictionary(plain))
    assert zlib.decompress(again.encode()) == zlib.decompress(written)


@pytest.mark.parametrize("number", SEEDS)
def test_both_seal_the_same_stream_and_open_it(number: int) -> None:
    rng = random.Random(f"stream {number}")
    for size in (rng.randrange(50), rng.randrange(65_000, 66_000), rng.randrange(300_000)):
        kind, key, salt = rng.choice(KINDS), rng.randbytes(32), rng.randbytes(32)
        collection, content = rng.randbytes(16), rng.randbytes(size)
        sealed = seal_stream(SecretKey(key), kind, collection, content, Fixed(salt))
        assert stream.seal_stream(kind, key, collection, salt, content) == sealed
        assert stream.open_stream(kind, key, collection, sealed) == content
        assert open_stream(SecretKey(key), kind, collection, sealed) == content


@pytest.mark.parametrize("number", SEEDS)
def test_both_write_the_same_lookup_and_catalogue(number: int) -> None:
    rng = random.Random(f"lookup {number}")
    owner = random_case(number)["owner"]
    bundle, plain = bundle_of(owner), slow.bundle_of(owner)
    names = [f"{rng.choice(WORDS)} {i}" for i in range(rng.randrange(40))]
    pairs, entries, rows = [], {}, []
    for name in names:
        segment, row, blob, key = rng.randrange(3), rng.randrange(2**32), *_two(rng)
        size = rng.randrange(2**64)
        pairs.append((name, LookupEntry(segment, row, blob, size, SecretKey(key))))
        wrapped = stream.wrap_blob_key(keys.wrapping_key(plain), key)
        entries[name] = stream.LookupEntry(segment, row, blob, size, wrapped)
        rows.append((name, *_two(rng), row, rng.randbytes(32)))
    content = Lookup.encode(bundle, pairs)
    assert stream.encode_lookup(keys.lookup_key(plain), entries) == content
    lookup = Lookup.decode(bundle, content)
    for name, entry in pairs:
        found = lookup.find(name)
        assert found is not None
        assert (found.segment, found.row, found.blob) == (entry.segment, entry.row, entry.blob)
        assert found.key.reveal() == entry.key.reveal()
    assert lookup.find("nobody") is None
    fast = [CatalogueEntry(i, digest, row, salt, blob) for i, digest, salt, row, blob in rows]
    slow_ = [stream.CatalogueEntry(i, d, row, salt, blob) for i, d, salt, row, blob in rows]
    assert zlib.decompress(encode_catalogue(fast)) == stream.catalogue_cbor(slow_)


def _two(rng: random.Random) -> tuple[bytes, bytes]:
    return rng.randbytes(32), rng.randbytes(32)


@pytest.mark.parametrize("number", SEEDS)
def test_both_sign_the_same_manifest_and_read_it(number: int) -> None:
    previous = bytes(32) if number == 0 else seed(f"previous {number}")
    signed = SignedManifest.sign(sample_manifest(number + 1, previous), signing_key())
    body = manifest.encode_body(slow.body_of(fields_of(signed.manifest)))
    assert body == signed.body
    file = manifest.sign_manifest(body, OWNER_SEED)
    assert file == signed.encode()
    owner = signing_key().public
    now = signed.manifest.expires_at
    assert manifest.read_manifest(file, owner, COLLECTION, now)["version"] == number + 1
    assert SignedManifest.decode(file, owner, COLLECTION).manifest == signed.manifest


@pytest.mark.parametrize("number", range(200))
def test_a_changed_manifest_is_good_for_both_or_for_neither(number: int) -> None:
    rng = random.Random(f"manifest {number}")
    signed = SignedManifest.sign(sample_manifest(2, seed("previous")), signing_key())
    body = bytearray(signed.body)
    for _ in range(rng.randint(1, 3)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    file = manifest.sign_manifest(bytes(body), OWNER_SEED)
    now, owner = signed.manifest.created_at, signing_key().public
    try:
        read = SignedManifest.decode(file, owner, COLLECTION)
        read.require_current(now)
        fast = None
    except MksearchError as error:
        fast = error
    try:
        manifest.read_manifest(file, owner, COLLECTION, now)
        other = None
    except Refused as error:
        other = error
    assert (fast is None) == (other is None), (fast, other)


def test_both_choose_the_same_default_widths() -> None:
    rng = random.Random("widths")
    for _ in range(500):
        n_rows, n_terms = rng.randint(1, 3000), rng.choice([0, 1, 64, 65, rng.randint(1, 9000)])
        n_distinct = rng.randint(0, 130 * n_rows)
        n_tables, n_levels = rng.randint(1, 8), rng.randint(1, 4)
        chosen = choose_geometry(n_distinct / n_rows, n_terms, n_levels, n_tables)
        widths = index.default_widths(n_distinct, n_rows, n_terms, n_tables, n_levels)
        assert [(level.dedicated, level.table) for level in chosen] == widths


# --- what the client and the servers compute -----------------------------------------------------


@pytest.mark.parametrize("number", SEEDS)
def test_both_share_a_vector_alike(number: int) -> None:
    rng = random.Random(f"shares {number}")
    t = rng.randint(1, 4)
    secret = [rng.randrange(field.P) for _ in range(40)]
    drawn = [[rng.choice([0, rng.randrange(field.P)]) for _ in secret] for _ in range(t)]
    packed = np.array(drawn, "<u2").tobytes()
    sharing = Sharing(np.array(secret, np.uint16), t, Fixed(packed))
    ids = rng.sample(range(1, 256), t + 3)
    for server in ids:
        assert sharing.share(server).tolist() == field.shamir(secret, drawn, server)
    for at in (0, ids[0]):
        assert list(lagrange_coefficients(ids[1:], at)) == field.lagrange(ids[1:], at)


def test_both_make_the_same_vectors_and_servers_answer_alike(pair: Pair) -> None:
    fast, other = pair.product, pair.reference
    for number, terms in enumerate(pair.queries(6)):
        level = number % len(other.views)
        made = fast.trapdoor(terms, level)
        question = fast.question(terms)
        assert dict(question.weights) == other.query(terms)
        parts = text.quantised_query(other.query(terms), [list(p) for p in fast.parts(question)])
        assert list(made.units) == [part.u for part in parts]
        columns = other.views[level].columns
        vectors = [search.query_vector(part, columns) for part in parts]
        assert made.vectors.tolist() == vectors
        attempt = fast.attempt(made, Quorum(5, 2), SeededRandom(seed(f"answers {number}")), level)
        for server in (1, 5):
            request = attempt.request(server)
            sums = fast.answer(attempt, server, level).sums
            for share, answer in zip(request.shares.tolist(), sums.tolist(), strict=True):
                plain = search.HonestServer(other.segment).answer(b"", level, share)
                assert plain.sums == answer


def test_both_find_the_same_hits_with_the_same_scores(pair: Pair) -> None:
    fast, other = pair.product, pair.reference
    servers = {j: search.HonestServer(other.segment) for j in (1, 2, 3)}
    for number, terms in enumerate(pair.queries(9)):
        k = random.Random(number).choice([1, 3, 10, 50])
        random_ = SeededRandom(seed(f"hits {number}"))
        source, attempt = fast.source(terms, Quorum(), random_, (2, 3))
        hits, exact = fast.rank(source, k)
        split = [list(part) for part in fast.parts(source.question)]
        found = other.search(terms, k, slow.drawing("hits"), 1, servers, split=split)
        assert attempt.liars == ()
        assert exact
        assert found.exact
        assert [
            (hit.score, hit.member.id, hit.member.title, hit.member.snippet) for hit in hits
        ] == ([tuple(hit) for hit in found.hits])


def test_liars_in_one_block_are_named_alike(pair: Pair) -> None:
    fast, other = pair.product, pair.reference
    rng = random.Random(f"liars {pair.number}")
    n_rows, n_tables = len(other.segment.levels[0].matrix), other.segment.n_tables
    height = other.segment.fan_out + other.segment.n_checks
    for number in range(4):
        terms = rng.choices(WORDS, k=5)
        block = rng.randrange(n_rows // height)
        liars = rng.sample(range(1, 6), rng.randint(1, 2))
        errors: list[Json] = [
            {"server": j, "row": block * height + rng.randrange(height)}
            | {"table": rng.randrange(n_tables), "add": rng.randrange(1, field.P)}
            for j in liars
        ]
        random_ = SeededRandom(seed(f"liars {pair.number} {number}"))
        source, attempt = fast.source(terms, Quorum(5, 2), random_, (1, 2, 3, 4, 5), errors)
        assert list(attempt.liars) == sorted(liars)
        servers = {j: Lying(other.segment, j, errors) for j in range(1, 6)}
        query = other.query(terms)
        bounds, named = other.bounds(0, query, [list(query)], slow.drawing("x"), 2, servers, 5)
        assert named == set(liars)
        assert bounds == source.bounds.tolist()


@pytest.mark.parametrize("k", [1, 4, 50])
def test_both_find_the_same_hits_from_blocks_alone(
    pair: Pair, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_descent, "_WHOLE_CELLS", 0)
    monkeypatch.setattr(query_descent, "_WHOLE_GUESSES", 0)
    fast, other = pair.product, pair.reference
    servers = {j: descent.HonestBlockServer(other.segment) for j in (1, 2, 3)}
    for number, terms in enumerate(pair.queries(4)):
        random_ = SeededRandom(seed(f"blocks {number}"))
        hits, opened, liars = fast.descend(terms, random_, (2, 3), k)
        found, one_by_one = descent.descend(other, terms, k, slow.drawing("blocks"), 1, servers)
        assert [
            (hit.score, hit.member.id, hit.member.title, hit.member.snippet) for hit in hits
        ] == [tuple(hit) for hit in found.hits]
        assert not liars
        assert not found.liars
        # The reference opens no block that it need not; the product leaves none of them out.
        named = {(o.level, block) for o in opened.opened for block in o.blocks}
        assert {place for place in one_by_one if place[0] == 0} <= named


def test_an_answer_is_not_exact_only_where_another_record_was_needed() -> None:
    fast, other = client_of("three levels"), slow.member("three levels")
    servers = {j: search.HonestServer(other.segment) for j in (1, 2)}
    for max_records in range(1, 12):
        terms = ["w033", "w002", "w025", "w032", "w032"]
        source, _ = fast.source(terms, Quorum(), SeededRandom(seed("exact")), (1, 2))
        _, exact = fast.rank(source, 3, max_records)
        split = [list(part) for part in fast.parts(source.question)]
        draw = slow.drawing("exact")
        found = other.search(terms, 3, draw, 1, servers, max_records=max_records, split=split)
        # The product reads in rounds: it may need more records than one at a time, never fewer.
        if found.n_records < max_records:
            assert found.exact
        assert exact == found.exact


class Lying(search.HonestServer):
    """Adds its errors to its answers."""

    def __init__(self, segment: segments.Segment, server: int, errors: list[Json]) -> None:
        super().__init__(segment)
        self.errors = [error for error in errors if error["server"] == server]

    def answer(self, query_id: bytes, level: int, share: list[int]) -> search.Answer:
        answer = super().answer(query_id, level, share)
        for error in self.errors:
            row = answer.sums[error["row"]]
            row[error["table"]] = (row[error["table"]] + error["add"]) % field.P
        return answer


def test_too_many_liars_end_the_search_of_both(pair: Pair) -> None:
    fast, other = pair.product, pair.reference
    for liars in combinations((1, 2, 3), 2):
        errors: list[Json] = [{"server": j, "row": 1, "table": 0, "add": 7 + j * j} for j in liars]
        made = fast.trapdoor(["zebra", "a"])
        attempt = fast.attempt(made, Quorum(), SeededRandom(seed("too many")))
        for server in (1, 2, 3):
            attempt.add(server, with_errors(fast.answer(attempt, server), server, errors))
        with pytest.raises(NotEnoughAnswers):
            attempt.combine()
        assert attempt.liars == liars
        servers = {j: Lying(other.segment, j, errors) for j in (1, 2, 3)}
        query = other.query(["zebra", "a"])
        with pytest.raises(Refused) as caught:
            other.bounds(0, query, [list(query)], slow.drawing("y"), 1, servers, 3)
        assert caught.value.step == "8.7"
        assert caught.value.servers == set(liars)


# --- changed bytes: good for both or for neither -------------------------------------------------


def accepted(read: Callable[[], object]) -> bool:
    try:
        read()
    except (MksearchError, Refused):
        return False
    return True


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Change, drop or insert a few bytes."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(out))
        kind = rng.randrange(3)
        if kind == 0:
            out[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        elif kind == 1 and len(out) > 1:
            del out[at]
        else:
            out.insert(at, rng.randrange(256))
    return bytes(out)


@pytest.mark.parametrize("number", SEEDS)
def test_a_changed_record_is_good_for_both_or_for_neither(number: int) -> None:
    rng = random.Random(f"records {number}")
    n_accepted = 0
    for _ in range(200):
        data = mutated(rng, encode_row(ROWS[rng.choice([0, 0, 1, 4])]))
        fast = accepted(lambda data=data: decode_record(data))  # type: ignore[misc]
        assert fast == accepted(lambda data=data: _small_record(data)), data.hex()  # type: ignore[misc]
        n_accepted += fast
    assert n_accepted, "every change is refused: this compares little"


def _small_record(data: bytes) -> None:
    # The product holds term ids and frequencies in 31 bits; the text knows no such limit.
    row = records.decode_record(data)
    records.require_known_terms(row, 1 << 31)
    if max(row.tfs.values(), default=1) >= 1 << 31:
        raise Refused("8.10.4", "a frequency of 31 bits or more")


@pytest.mark.parametrize("number", SEEDS)
def test_a_changed_segment_header_is_good_for_both_or_for_neither(number: int) -> None:
    rng = random.Random(f"headers {number}")
    data = built_segment("small").data
    size = int.from_bytes(data[12:16], "big")
    for _ in range(60):
        head = mutated(rng, data[:16] + data[16 : 16 + size])
        changed = head.ljust(4096, b"\0") + data[4096:]
        view = np.frombuffer(changed, np.uint8)
        fast = accepted(lambda view=view: SegmentReader(view).verify())  # type: ignore[misc]
        other = accepted(lambda changed=changed: segments.read_segment(changed))  # type: ignore[misc]
        assert fast == other, head.hex()
