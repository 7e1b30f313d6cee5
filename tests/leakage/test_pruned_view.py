"""What a server sees of a search with privacy ``fast`` follows from the declared blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mksearch.query.descent import Descent
from tests.adversary.corpus import WORDS, make_documents
from tests.leakage.chance import binned, uniform_p
from tests.leakage.test_server_view import OTHER_WORDS, Watched, renamed
from tests.support.small_blocks import use_small_blocks

N_DOCUMENTS = 90


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patched:
        use_small_blocks(patched, 29, 3)
        yield patched


@pytest.fixture(scope="module")
def twins(
    patch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Watched, Watched]:
    """Two collections of different owners, documents and words, and of equal shapes."""
    documents = make_documents(N_DOCUMENTS, 7)
    folder = tmp_path_factory.mktemp("pruned")
    first = Watched.publish(documents, folder / "first", b"first owner")
    second = Watched.publish(renamed(documents), folder / "second", b"second owner")
    return first, second


def declared_and_seen(watched: Watched, query: str, patch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Return what the threat model says that a search shows, and what servers saw of it."""
    kept: list[Descent] = []

    def keep(self: Descent, *arguments: Any, **named: Any) -> None:
        start(self, *arguments, **named)
        kept.append(self)

    start = Descent.__init__
    searcher = watched.searcher()
    with pytest.MonkeyPatch.context() as watching:
        watching.setattr(Descent, "__init__", keep)
        seen = watched.seen_while(lambda: searcher.search(query, 3, privacy="fast"))
    opened = tuple((o.source, o.level, o.blocks) for o in kept[0].opened)
    # Of records: how many slots each round asked for, which is declared as for `balanced`.
    rounds = tuple(call[2] for calls in seen.values() for call in calls if call[0] == "records")
    shown = {
        server: [call for call in calls if call[0] in ("score", "sums", "records", "elements")]
        for server, calls in seen.items()
    }
    return (opened, rounds), shown


def test_equal_blocks_are_asked_for_alike(
    twins: tuple[Watched, Watched], patch: pytest.MonkeyPatch
) -> None:
    classes: defaultdict[Any, list[Any]] = defaultdict(list)
    for watched, words in zip(twins, (WORDS, OTHER_WORDS), strict=True):
        for number in range(12):
            query = " ".join(words[number : number + 1 + number % 4])
            declared, seen = declared_and_seen(watched, query, patch)
            classes[declared].append(seen)
    assert any(len(views) > 2 for views in classes.values())
    assert len(classes) > 1
    for views in classes.values():
        assert all(view == views[0] for view in views)


def test_each_request_for_blocks_has_shares_of_its_own(
    twins: tuple[Watched, Watched], patch: pytest.MonkeyPatch
) -> None:
    watched = twins[0]
    server = watched.servers[1]
    server.score_requests.clear()
    for _ in range(6):
        searcher = watched.searcher()
        searcher.search(f"{WORDS[0]} {WORDS[5]} {WORDS[30]}", 3, privacy="fast")
    requests = list(server.score_requests)
    assert len(requests) >= 12
    assert all(request.blocks for request in requests)
    assert len({request.query_id for request in requests}) == len(requests)
    assert len({request.shares.tobytes() for request in requests}) == len(requests)
    elements = np.concatenate([request.shares.ravel() for request in requests])
    assert uniform_p(np.bincount(binned(elements, 64), minlength=64)) > 1e-6
