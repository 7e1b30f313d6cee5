"""Guarantee: whatever a server answers to selectors, hits are right and it alone is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mksearch.errors import AnswerRefused
from mksearch.messages import SelectAnswer, SelectRequest
from mksearch.params import P
from mksearch_client.result import SearchResult
from tests.adversary.corpus import WORDS, make_documents
from tests.adversary.malicious_server import Lie, MaliciousServer
from tests.adversary.stage import Stage, lying_stage

QUERY = f"{WORDS[0]} {WORDS[2]} {WORDS[9]}"
Elements = NDArray[np.uint16]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with lying_stage(tmp_path_factory.mktemp("private"), make_documents(80, 6)) as stage:
        yield stage


def search(stage: Stage) -> SearchResult:
    with stage.searcher() as searcher:
        return searcher.search(QUERY, 5, privacy="full")


def changed(change: Callable[[MaliciousServer, Elements], Elements]) -> Any:
    def content(server: MaliciousServer, _asked: SelectRequest, honest: SelectAnswer) -> Any:
        return SelectAnswer(honest.query_id, change(server, np.array(honest.elements)))

    return content


def one_error(server: MaliciousServer, elements: Elements) -> Elements:
    at = tuple(server.random.randrange(n) for n in elements.shape)
    elements[at] = (int(elements[at]) + server.random.randrange(1, P)) % P
    return elements


def errors_everywhere(server: MaliciousServer, elements: Elements) -> Elements:
    drawn = np.random.default_rng(server.random.randrange(1 << 32))
    return drawn.integers(0, P, elements.shape, np.uint16)


def doubled(_server: MaliciousServer, elements: Elements) -> Elements:
    # Right for twice the selectors: the pads do not fit.
    return (2 * elements.astype(np.uint32) % P).astype(np.uint16)


def tags_of_another(_server: MaliciousServer, elements: Elements) -> Elements:
    elements[0, :, -3:] = elements[1, :, -3:]
    return elements


def other_order(_server: MaliciousServer, elements: Elements) -> Elements:
    return elements[::-1].copy()


def element_of_p(_server: MaliciousServer, elements: Elements) -> Elements:
    elements[0, 0, 0] = P
    return elements


def fewer(_server: MaliciousServer, elements: Elements) -> Elements:
    return elements[:-1]


def another_query(_server: MaliciousServer, _asked: Any, honest: SelectAnswer) -> SelectAnswer:
    return replace(honest, query_id=bytes(16))


def other_selectors(server: MaliciousServer, asked: SelectRequest, honest: SelectAnswer) -> Any:
    # The right work for selectors of its own choice.
    drawn = np.random.default_rng(server.random.randrange(1 << 32))
    own = drawn.integers(0, P, asked.selectors.shape, np.uint16)
    was, server.lie = server.lie, None
    answer = server.search.select(replace(asked, selectors=own))
    server.lie = was
    return replace(honest, elements=answer.elements)


LIES = {
    **{
        change.__name__: changed(change)
        for change in (
            *(one_error, errors_everywhere, doubled, tags_of_another, other_order),
            *(element_of_p, fewer),
        )
    },
    "another_query": another_query,
    "other_selectors": other_selectors,
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_about_selected_records_is_named_and_the_hits_stay_right(
    stage: Stage, name: str
) -> None:
    stage.be_honest()
    expected = search(stage)
    assert expected.hits == stage.search(QUERY, 5).hits
    stage.servers[2].lie = Lie(name, "Select", LIES[name])
    result = search(stage)
    assert stage.servers[2].n_told
    assert result.hits == expected.hits
    assert {r.id: r.status for r in result.servers} == {1: "ok", 2: "lied", 3: "ok"}


def test_two_liars_of_three_are_named_and_nothing_is_shown(stage: Stage) -> None:
    stage.be_honest()
    for server in (1, 3):
        stage.servers[server].lie = Lie("one_error", "Select", LIES["one_error"])
    with pytest.raises(AnswerRefused) as refused:
        search(stage)
    assert set(refused.value.liars) == {1, 3}
