"""What a server sees of a search with privacy ``full`` follows from the declared leakage alone."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
import pytest

from mksearch.field.shamir import interpolate
from mksearch.params import P
from tests.adversary.corpus import WORDS, make_documents
from tests.leakage.chance import binned, uniform_p
from tests.leakage.test_server_view import OTHER_WORDS, Watched, renamed

N_DOCUMENTS = 90
N_REPEATS = 200


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[Watched, Watched]:
    """Two collections of different owners, documents and words, and of equal shapes."""
    documents = make_documents(N_DOCUMENTS, 7)
    folder = tmp_path_factory.mktemp("private")
    first = Watched.publish(documents, folder / "first", b"first owner")
    second = Watched.publish(renamed(documents), folder / "second", b"second owner")
    return first, second


def test_two_queries_with_as_many_fetches_are_asked_alike(twins: tuple[Watched, Watched]) -> None:
    classes: defaultdict[Any, list[Any]] = defaultdict(list)
    for watched, words in zip(twins, (WORDS, OTHER_WORDS), strict=True):
        search = partial(watched.searcher().search, k=5, privacy="full")
        search("unheardof")
        for number in range(24):
            query = " ".join(words[number : number + 1 + number % 6]) + " unheardof" * (number % 2)
            seen = watched.seen_while(partial(search, query))
            # Shapes of the selectors of each round, and nothing else.
            rounds = tuple(str(call[4]) for call in seen[1] if call[0] == "select")
            classes[rounds].append(seen)
        nothing = watched.seen_while(partial(search, "unheardof"))
        least = tuple(str(call[4]) for call in nothing[1] if call[0] == "select")
        assert least[0].startswith("(16, ")
        classes[least].append(nothing)
    assert not any(call[0] == "records" for call in nothing[1])
    assert len(least) == 1
    assert len(classes[least]) > 10
    for views in classes.values():
        assert all(view == views[0] for view in views)


def test_selectors_of_one_query_asked_often_are_uniform_and_fresh(
    twins: tuple[Watched, Watched],
) -> None:
    watched = twins[0]
    for server in watched.servers.values():
        server.select_requests.clear()
    searcher = watched.searcher()
    for _ in range(N_REPEATS):
        searcher.search(f"{WORDS[0]} {WORDS[5]}", 3, privacy="full")
    one, two = (watched.servers[server].select_requests for server in (1, 2))
    assert len(one) == len(two) >= N_REPEATS
    assert len({request.query_id for request in one}) == len(one)
    secrets = []
    for mine, theirs in zip(one, two, strict=True):
        secret = interpolate({1: mine.selectors, 2: theirs.selectors}, 2)
        assert secret.sum() == len(secret)
        secrets.append(secret)
    for requests in (one, two):
        elements = np.concatenate([request.selectors.ravel() for request in requests])
        assert uniform_p(np.bincount(binned(elements, 64), minlength=64)) > 1e-6
        # Where the vectors have their ones, shares are as everywhere else.
        at_ones = np.concatenate(
            [r.selectors[s == 1] for r, s in zip(requests, secrets, strict=True)]
        )
        assert len(at_ones) >= 16 * N_REPEATS
        assert uniform_p(np.bincount(binned(at_ones, 16), minlength=16)) > 1e-6
        # The share of one place, search after search, does not repeat.
        first = [int(request.selectors[0, 0]) for request in requests]
        assert len(set(first)) > len(first) * 0.95
        assert max(first) < P
