"""Vectors of sections 1 to 4.3 and 8.1, 8.2: keys, words, shares, weights, columns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from mksearch.crypto import labels
from mksearch.crypto.bundle import KINDS, ColumnKeys, KeyBundle, catalogue_key
from mksearch.crypto.kdf import derive, keyed_hash_sha256, sha256
from mksearch.crypto.keystream import Domain, Keystream
from mksearch.crypto.randomness import SeededRandom, uniform_elements
from mksearch.crypto.secret import SecretKey
from mksearch.field.shamir import Sharing, lagrange_coefficients
from mksearch.index.columns import ColumnMap
from mksearch.index.geometry import LevelGeometry
from mksearch.index.stream import KINDS as STREAM_KINDS
from mksearch.params import P
from mksearch.text.quantise import impacts, quantise_query, split_query
from mksearch.text.weights import Scoring, Statistics, document_weights, query_weights

from .fast import Fixed, bundle_of
from .material import COLLECTION, MASTER, OWNER, WORDS, Json, draws, seed

SALT = seed("segment salt")


# --- keystream.json ------------------------------------------------------------------------------


def keystream() -> Json:
    """Words, with and without replacement, runs of words, and permutations."""
    key = seed("keystream")
    stream = Keystream(SecretKey(key))
    addresses = [
        (domain, level, column, row)
        for domain, level, column, row in (
            (1, 0, 0, 0),
            (1, 0, 0, 7),
            (1, 0, 0, 8),
            (1, 1, 5, 1000),
            (2, 2, 2, 4095),
            (3, 0, 1, 271),
            (4, 0, 2, 123456),
            (1, 255, 2**32 - 1, 2**40 + 5),
        )
    ]
    addresses += list(_replaced(stream, 1, 6)) + list(_replaced(stream, 2, 2))
    words = [
        {"domain": d, "level": level, "column": c, "row": r, "word": _word(stream, d, level, c, r)}
        for d, level, c, r in addresses
    ]
    return {
        "about": "Words of the keystream and keyed permutations; `replaced` words take step 3.",
        "source": "docs/protocol.md, section 3",
        "key": key.hex(),
        "words": words,
        "replaced": [list(address) for address in addresses[8:]],
        "runs": [
            _run(stream, *run)
            for run in ((1, 0, 3, 64, 40), (2, 1, 0, 0, 600), (1, 3, 9, 800, 2000))
        ],
        "permutations": [
            {"domain": domain, "level": level, "m": m}
            | {"permutation": stream.permutation(Domain(domain), level, m).tolist()}
            for domain, level, m in (
                (5, 0, 0),
                (5, 0, 1),
                (5, 0, 2),
                (5, 1, 64),
                (6, 0, 275),
                (6, 0, 7),
            )
        ],
    }


def _word(stream: Keystream, domain: int, level: int, column: int, row: int) -> int:
    first = row // 8 * 8
    words = stream.words(Domain(domain), level, np.array([column]), first, row - first + 1)
    return int(words[0, -1])


def _replaced(stream: Keystream, domain: int, n: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield addresses whose 16-bit word is not below p, in both ways of computing words."""
    raw = stream._by_counter_mode(domain, 0, np.arange(8), 0, 4096)
    for column, row in np.argwhere(raw >= P)[:n].tolist():
        yield domain, 0, column, row


def _run(stream: Keystream, domain: int, level: int, column: int, first: int, n_rows: int) -> Json:
    words = stream.words(Domain(domain), level, np.array([column]), first, n_rows)
    return {
        "domain": domain,
        "level": level,
        "column": column,
        "first_row": first,
        "n_rows": n_rows,
        "sha256": sha256(words.astype("<u2").tobytes()).hex(),
    }


# --- kdf.json ------------------------------------------------------------------------------------


def kdf() -> Json:
    """Every key of the table of section 2, with its label."""
    master, bundle = SecretKey(MASTER), bundle_of(OWNER)
    keys = [_key("master", labels.BUNDLE + k.encode(), getattr(bundle, k)) for k in KINDS]
    context = COLLECTION + OWNER["epoch"].to_bytes(8, "big") + bytes.fromhex(OWNER["policy"])
    for key in keys:
        key["context"] = context.hex()
    for parent, label, salt in (
        ("mask", labels.SEGMENT_MASK, SALT),
        ("check", labels.SEGMENT_CHECK, SALT),
        ("record", labels.SEGMENT_RECORD, SALT),
        ("record", labels.SEGMENT_TAG, SALT),
        ("record", labels.SEGMENT_SLOTS, SALT),
        ("column", labels.COLUMNS_DEDICATED, b""),
        ("column", labels.COLUMNS_SHARED, b""),
    ):
        derived = derive(getattr(bundle, parent), label, salt)
        keys.append(_key(f"bundle {parent}", label, derived) | {"context": salt.hex()})
    empty = {"context": ""}
    section = labels.SECTION
    for name in ("dictionary", "lookup"):
        own = bundle.section_key(name)
        keys.append(_key("bundle dictionary", section + name.encode(), own) | empty)
    keys.append(_key("bundle dictionary", labels.LOOKUP_ID, bundle.lookup_key()) | empty)
    keys.append(_key("bundle blob", labels.WRAP, bundle.wrapping_key()) | empty)
    own = catalogue_key(master, COLLECTION)
    keys.append(_key("master", section + b"catalogue", own) | {"context": COLLECTION.hex()})
    base, salt = SecretKey(seed("stream base")), seed("stream salt")
    for kind in STREAM_KINDS:
        label = labels.STREAM_KEY + kind.encode()
        keys.append(_key(seed("stream base").hex(), label, derive(base, label, salt)))
        keys[-1]["context"] = salt.hex()
    _require_use(bundle)
    return {
        "about": "Keys by label: HKDF-SHA-256, empty salt, info = label || 0x00 || context.",
        "source": "docs/protocol.md, section 2",
        "owner": OWNER,
        "keys": keys,
        "lookup_places": [
            {"id": name, "place": keyed_hash_sha256(bundle.lookup_key(), name.encode())[:16].hex()}
            for name in ("doc-1", "ärger", "x" * 1024)
        ],
        "other_labels": {
            "answer": labels.ANSWER.decode(),
            "manifest": labels.MANIFEST.decode(),
            "record": labels.RECORD.decode(),
            "stream": labels.STREAM.decode(),
        },
    }


def _key(parent: str, label: bytes, derived: SecretKey) -> Json:
    return {"from": parent, "label": label.decode(), "context": "", "key": derived.reveal().hex()}


def _require_use(bundle: KeyBundle) -> None:
    """The keys that the product keeps inside keystreams are those of the labels above."""
    segment, columns = bundle.segment_keys(SALT), bundle.column_keys()
    for stream, parent, label, salt in (
        (segment.mask, bundle.mask, labels.SEGMENT_MASK, SALT),
        (segment.check, bundle.check, labels.SEGMENT_CHECK, SALT),
        (segment.tag, bundle.record, labels.SEGMENT_TAG, SALT),
        (segment.slots, bundle.record, labels.SEGMENT_SLOTS, SALT),
        (columns.dedicated, bundle.column, labels.COLUMNS_DEDICATED, b""),
    ):
        own = Keystream(derive(parent, label, salt))
        assert _word(stream, 1, 0, 0, 0) == _word(own, 1, 0, 0, 0), label


# --- shamir.json ---------------------------------------------------------------------------------


def shamir() -> Json:
    """Shares of vectors, zero coefficients among them, and Lagrange coefficients."""
    random = SeededRandom(seed("shamir"))
    secret = uniform_elements(random, (12,))
    secret[:3] = 0, 1, 515
    cases = []
    for degree, servers in ((1, (1, 2, 3)), (2, (1, 2, 3, 4, 5)), (3, (1, 7, 100, 254, 255, 2, 3))):
        drawn = uniform_elements(random, (degree, len(secret)))
        cases.append((drawn, servers))
    zeros = np.zeros((1, len(secret)), np.uint16)
    some = cases[1][0].copy()
    some[0, ::2], some[1, ::3] = 0, 0
    cases += [(zeros, (1, 2, 3)), (some, (1, 2, 3, 4, 5))]
    return {
        "about": "Values of polynomials over F_p: secret + sum of coefficients[m-1] * server^m.",
        "source": "docs/protocol.md, sections 8.2 and 8.4",
        "p": P,
        "secret": secret.tolist(),
        "shares": [_shares(secret, drawn, servers) for drawn, servers in cases],
        "lagrange": [
            {"ids": list(ids), "at": at, "coefficients": list(lagrange_coefficients(ids, at))}
            for ids, at in (
                *((ids, 0) for ids in combinations((1, 2, 3), 2)),
                ((3, 1), 0),
                ((1, 2), 3),
                ((1, 2, 3), 0),
                ((5, 1, 4), 2),
                ((1, 7, 100, 255), 0),
                ((1, 7, 100, 255), 254),
            )
        ],
    }


def _shares(
    secret: np.ndarray[tuple[int, ...], np.dtype[np.uint16]],
    drawn: np.ndarray[tuple[int, ...], np.dtype[np.uint16]],
    servers: tuple[int, ...],
) -> Json:
    sharing = Sharing(secret, len(drawn), Fixed(drawn.astype("<u2").tobytes()))
    return {
        "coefficients": drawn.tolist(),
        "shares": [
            {"server": server, "share": sharing.share(server).tolist()} for server in servers
        ],
    }


# --- weights.json --------------------------------------------------------------------------------

TFIDF: Json = {"kind": "tfidf", "k1": 1.2, "b": 0.75}
BM25: Json = {"kind": "bm25", "k1": 1.2, "b": 0.75}
STEEP: Json = {"kind": "bm25", "k1": 0.9, "b": 0.4}

#: n_docs, total_length, dfs, then documents as {term id: tf}.
COLLECTIONS: tuple[tuple[str, int, int, list[int], list[dict[int, int]]], ...] = (
    ("one document", 1, 5, [1, 1, 1], [{0: 1, 1: 1, 2: 3}, {0: 1}, {}]),
    ("two documents", 2, 9, [2, 1, 1], [{0: 2, 1: 1}, {0: 1, 2: 4}, {2: 1}]),
    ("everywhere, in half, in one", 1000, 64321, [1000, 500, 1], [{0: 3, 1: 2, 2: 1}, {1: 1}]),
    ("a million", 1_000_000, 299_792_458, [999_999, 500_000, 7, 2, 1], [{0: 90, 2: 1, 3: 2, 4: 1}]),
    ("many terms", 997, 31_415, list(range(997, 897, -1)), [{i: 1 + i % 7 for i in range(100)}]),
)


def weights() -> Json:
    """Document and query weights, steps, impacts and quantised queries, all as integers."""
    return {
        "about": "Wt and Xt in units of 2^-30. Numbers k1 and b are the nearest binary64.",
        "source": "docs/protocol.md, sections 4.1 and 8.1",
        "collections": [
            _weights(*collection, scoring)
            for collection in COLLECTIONS
            for scoring in (TFIDF, BM25, STEEP)
        ],
        "frequencies": [_sweep(scoring) for scoring in (TFIDF, BM25)],
        "steps": [
            _step(values) for values in ([], [1], [127], [128], [2**30, 2**30 - 1, 3, 1, 2**29])
        ],
        "queries": [_quantised(name, query) for name, query in _queries()],
    }


def _statistics(n_docs: int, total_length: int, dfs: list[int]) -> Statistics:
    return Statistics(n_docs, total_length, np.array(dfs, np.int64))


def _of_document(
    scoring: Json, statistics: Statistics, tfs: dict[int, int], length: int
) -> list[int]:
    weights = document_weights(
        Scoring(**scoring),
        statistics,
        np.array([0, len(tfs)], np.int64),
        np.array(list(tfs), np.int32),
        np.array(list(tfs.values()), np.int32),
        np.array([length], np.int64),
    )
    return [int(weight) for weight in weights]


def _weights(
    name: str,
    n_docs: int,
    total_length: int,
    dfs: list[int],
    documents: list[dict[int, int]],
    scoring: Json,
) -> Json:
    statistics = _statistics(n_docs, total_length, dfs)
    queries: list[dict[int, int]] = [{}, {0: 1}, {i: 1 + i % 3 for i in range(len(dfs))}, {1: 1000}]
    return {
        "name": name,
        "scoring": scoring,
        "n_docs": n_docs,
        "total_length": total_length,
        "dfs": dfs,
        "documents": [
            {"tfs": [list(pair) for pair in tfs.items()], "length": sum(tfs.values())}
            | {"weights": _of_document(scoring, statistics, tfs, sum(tfs.values()))}
            for tfs in documents
        ],
        "queries": [
            {"counts": [list(pair) for pair in query.items()]}
            | {"weights": list(query_weights(Scoring(**scoring), statistics, query).values())}
            for query in queries
        ],
    }


def _sweep(scoring: Json) -> Json:
    statistics = _statistics(50, 6000, [25, 10])
    return {
        "scoring": scoring,
        "n_docs": 50,
        "total_length": 6000,
        "dfs": [25, 10],
        "length": 1001,
        "weights_of_term_0_for_tf_1_to_1000_beside_term_1_once": [
            _of_document(scoring, statistics, {0: tf, 1: 1}, 1001)[0] for tf in range(1, 1001)
        ],
    }


def _step(values: list[int]) -> Json:
    quantised, step = impacts(np.array(values, np.int64))
    return {"weights": values, "step": step, "impacts": quantised.tolist()}


def _queries() -> Iterator[tuple[str, dict[int, int]]]:
    yield "empty", {}
    yield "one", {4: 2**30}
    yield "light", {0: 1, 1: 2, 2: 3}
    for n in (2, 64, 65, 128, 129, 600):
        yield f"{n} terms", dict(enumerate(1 + value % 2**34 for value in draws(f"query {n}", n)))
    yield "one heavy", {0: 2**36, **dict.fromkeys(range(1, 64), 1)}


def _quantised(name: str, query: dict[int, int]) -> Json:
    parts = []
    for part in split_query(query):
        quantised, unit = quantise_query(part)
        ordered = sorted(quantised.items())
        parts.append(
            {"terms": [i for i, _ in ordered], "u": unit, "weights": [w for _, w in ordered]}
        )
    return {"name": name, "weights": list(query.values()), "terms": list(query), "parts": parts}


# --- columns.json --------------------------------------------------------------------------------


def columns() -> Json:
    """Columns of terms at several levels and numbers of tables."""
    bundle = bundle_of(OWNER)
    keys = bundle.column_keys()
    terms = [*WORDS[:12], "a longer term", "ß", "\U0001f600"]
    return {
        "about": "Columns of each term: one where it is dedicated, else one a table.",
        "source": "docs/protocol.md, section 4.3",
        "owner": OWNER,
        "terms": terms,
        "cases": [
            _columns(keys, terms, *shape)
            for shape in (
                (1, [(64, 64)], [4]),
                (3, [(64, 64), (128, 192), (64, 1024)], [4, 0, 15]),
                (8, [(64, 64), (64, 128)], [0, 7]),
            )
        ],
    }


def _columns(
    keys: ColumnKeys,
    terms: list[str],
    n_tables: int,
    widths: list[tuple[int, int]],
    n_dedicated: list[int],
) -> Json:
    placement = ColumnMap(keys, [LevelGeometry(*w, n_tables) for w in widths], n_dedicated)
    return {
        "n_tables": n_tables,
        "levels": [
            {"w0": w0, "w1": w1, "n_dedicated": n_dedicated[level]}
            | {"columns": [placement.columns_of(level, i, term) for i, term in enumerate(terms)]}
            for level, (w0, w1) in enumerate(widths)
        ],
    }
