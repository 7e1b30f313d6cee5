"""Vectors of section 8: trapdoors, shares, answers, judgements, rankings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.randomness import SeededRandom, uniform_elements
from mksearch.field.shamir import lagrange_coefficients
from mksearch.params import Quorum
from mksearch.query.answer import Attempt
from mksearch.query.ranking import row_bounds
from mksearch.query.trapdoor import make_trapdoor

from .fast import Client, Fixed, with_errors
from .good_index import SHAPES, built_segment, segment_case
from .material import Json, pack, seed

SEGMENT = "three levels"
QUERY_ID = seed("query id")[:16]


@cache
def client_of(name: str = SEGMENT) -> Client:
    """Return a member of the group of that segment."""
    return Client.of(segment_case(name), built_segment(name))


def terms_of(name: str, n: int) -> list[str]:
    """Return the `n` most frequent terms of a segment."""
    return list(built_segment(name).counts.vocabulary.terms[:n])


# --- trapdoor.json -------------------------------------------------------------------------------


def trapdoor() -> Json:
    """Queries as vectors at every level, and shares of one of them."""
    queries = [
        ("one term", ["zebra"]),
        ("repeated and unknown terms", ["été", "w001", "unknown", "w001", "w001"]),
        ("nothing known", ["unknown"]),
        ("64 terms", terms_of(SEGMENT, 64)),
        ("65 terms: 2 parts", terms_of(SEGMENT, 65)),
        ("129 terms: 4 parts", terms_of(SEGMENT, 129)),
    ]
    return {
        "about": "Queries against the group of a segment; vectors as [column, value] where not 0.",
        "source": "docs/protocol.md, sections 8.1 and 8.2",
        "segment": SEGMENT,
        "queries": [_query(name, terms) for name, terms in queries],
        "shares": [_shares(quorum) for quorum in (Quorum(3, 1), Quorum(5, 2))],
    }


def _query(name: str, terms: list[str]) -> Json:
    client = client_of()
    question = client.question(terms)
    levels = len(client.reader.header.layout.levels)
    made = [make_trapdoor(client.view, question, level) for level in range(levels)]
    return {
        "name": name,
        "terms": terms,
        "weights": [list(pair) for pair in question.weights.items()],
        "split": [sorted(part) for part in client.parts(question)],
        "units": list(made[0].units),
        "levels": [[_sparse(vector) for vector in trapdoor.vectors] for trapdoor in made],
    }


def _sparse(vector: NDArray[np.uint16]) -> list[list[int]]:
    return [[int(c), int(vector[c])] for c in np.flatnonzero(vector)]


def _shares(quorum: Quorum) -> Json:
    attempt, drawn = new_attempt(["été", "w001"], quorum, "trapdoor shares")
    servers = range(1, quorum.n_servers + 1)
    return {
        "terms": ["été", "w001"],
        "n_servers": quorum.n_servers,
        "collusion_bound": quorum.collusion_bound,
        "coefficients": [pack(c) for c in drawn.tolist()],
        "shares": [
            {"server": j, "share": pack(attempt.request(j).shares[0].tolist())} for j in servers
        ],
    }


def new_attempt(
    terms: Sequence[str],
    quorum: Quorum,
    label: str,
    level: int = 0,
    query_id: bytes = QUERY_ID,
) -> tuple[Attempt, NDArray[np.uint16]]:
    """Start an attempt of one vector; return it and its coefficients (t, columns)."""
    client = client_of()
    made = client.trapdoor(terms, level)
    shape = (quorum.collusion_bound, *made.vectors.shape)
    drawn = uniform_elements(SeededRandom(seed(label)), shape)
    random = Fixed(drawn.astype("<u2").tobytes(), query_id)
    return client.attempt(made, quorum, random, level), drawn[:, 0]


# --- answer.json ---------------------------------------------------------------------------------

#: Name, terms, level, quorum, answers used, wrong answers.
ATTEMPTS: tuple[tuple[str, list[str], int, Quorum, list[int], list[Json]], ...] = (
    ("honest", ["été", "w001", "zebra"], 0, Quorum(3, 1), [1, 2], []),
    ("level 1", ["w010"], 1, Quorum(3, 1), [1, 3], []),
    ("level 2", ["w010", "a"], 2, Quorum(3, 1), [2, 3], []),
    ("nothing asked", [], 0, Quorum(3, 1), [1, 2], []),
    ("five servers", ["w010", "a"], 0, Quorum(5, 2), [1, 3, 5], []),
    (
        "one sum of one server",
        ["été", "w001"],
        0,
        Quorum(3, 1),
        [1, 2],
        [{"server": 2, "row": 11, "table": 1, "add": 1}],
    ),
    (
        "a check row and another block",
        ["été", "w001"],
        0,
        Quorum(3, 1),
        [1, 2],
        [
            {"server": 1, "row": 5, "table": 0, "add": 65_520},
            {"server": 2, "row": 63, "table": 2, "add": 77},
        ],
    ),
    (
        # With the Lagrange coefficients 3, -3, 1 of servers 1, 2, 3 the errors are 0 together.
        "errors that cancel",
        ["été", "w001"],
        0,
        Quorum(5, 2),
        [1, 2, 3],
        [
            {"server": 1, "row": 16, "table": 0, "add": 1},
            {"server": 2, "row": 16, "table": 0, "add": 1},
        ],
    ),
)


def answer() -> Json:
    """Answers of servers, their combination, unmasked sums, and who lied in which block."""
    return {
        "about": "Answers to one vector: row-major sums, a row of the segment with a sum a table. "
        "`judged` are the blocks in which an answer alone fails its checks.",
        "source": "docs/protocol.md, sections 8.3 to 8.8",
        "segment": SEGMENT,
        "query_id": QUERY_ID.hex(),
        "attempts": [_attempt(*attempt) for attempt in ATTEMPTS],
    }


def _attempt(
    name: str, terms: list[str], level: int, quorum: Quorum, used: list[int], errors: list[Json]
) -> Json:
    client = client_of()
    attempt, drawn = new_attempt(terms, quorum, f"attempt {name}", level)
    for server in range(1, quorum.n_servers + 1):
        honest = client.answer(attempt, server, level)
        attempt.add(server, with_errors(honest, server, errors))
    combined = attempt._interpolate(used, 0)
    sums = attempt._unmask(combined.copy())
    failing = attempt._failing_blocks(sums)[0]
    n_blocks = len(failing)
    judged = {
        server: [block for block in range(n_blocks) if attempt._lied(server, 0, block)]
        for server in attempt._answers
    }
    case: Json = {
        "name": name,
        "terms": terms,
        "level": level,
        "n_servers": quorum.n_servers,
        "collusion_bound": quorum.collusion_bound,
        "coefficients": [pack(c) for c in drawn.tolist()],
        "errors": errors,
        "answers": [
            {"server": server, "sums": pack(held[0].reshape(-1).tolist())}
            | {"judged": judged[server]}
            for server, held in attempt._answers.items()
        ],
        "used": used,
        "lagrange": list(lagrange_coefficients(used)),
        "combined": pack(combined[0].reshape(-1).tolist()),
        "sums": pack(sums[0].reshape(-1).tolist()),
        "failing_blocks": np.flatnonzero(failing).tolist(),
    }
    if level == 0 and not failing.any():
        units = client.trapdoor(terms).units
        case["bounds"] = row_bounds(client.segment, sums, units).tolist()
    return case


# --- ranking.json --------------------------------------------------------------------------------


def ranking() -> Json:
    """Hits with exact scores."""
    cases = [
        (name, terms, k)
        for name, *_ in SHAPES
        for terms, k in (
            (["zebra"], 3),
            (["été", "w001", "слово", "w001"], 10),
            (terms_of(name, 70), 100),
            (["unknown"], 5),
        )
    ]
    return {
        "about": "Hits of searches in the segments of segment.json; scores in units of 2^-60. "
        "`bounds` are B of every row, for the parts given.",
        "source": "docs/protocol.md, sections 8.8 and 8.9",
        "searches": [_search(*case) for case in cases],
    }


def _search(name: str, terms: list[str], k: int) -> Json:
    client = client_of(name)
    source, _ = client.source(terms, Quorum(), SeededRandom(seed("ranking")), (1, 2))
    hits, exact = client.rank(source, k)
    assert exact
    return {
        "segment": name,
        "terms": terms,
        "k": k,
        "split": [sorted(part) for part in client.parts(source.question)],
        "bounds": source.bounds.tolist(),
        "hits": [
            {"id": hit.member.id, "row": hit.row, "score": str(hit.score)}
            | {"title": hit.member.title}
            for hit in hits
        ],
    }
