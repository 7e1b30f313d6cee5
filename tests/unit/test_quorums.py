"""Any t + 1 servers are enough and give the same hits; any t know nothing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mksearch.crypto.randomness import SeededRandom
from mksearch.errors import FormatError, NotEnoughAnswers, ParameterError
from mksearch.field.shamir import Sharing, interpolate, lagrange_coefficients
from mksearch.params import P, Quorum
from mksearch_client.reading import Document
from tests.support.local import LocalCollection, publish

ROOT = Path(__file__).resolve().parents[2]
SMALL, LARGE = Quorum(3, 1), Quorum(5, 2)
QUERIES = ("wind tunnel", "boundary layer of a wing", "wing wing heat", "nothing that is known")

TOPICS = (
    "a wing in a wind tunnel",
    "heat transfer in the boundary layer",
    "boundary layer of a swept wing",
    "the tunnel and its wind, the wind and its tunnel",
    "heat of a wing",
)
DOCUMENTS = [
    Document(
        f"d{n:03}", f"paper {n}", f"{TOPICS[n % 5]} {' '.join(TOPICS[n * n % 5].split()[: n % 4])}"
    )
    for n in range(90)
]


def seeded(text: str) -> SeededRandom:
    return SeededRandom(hashlib.sha256(text.encode()).digest())


def clear(error: ParameterError | NotEnoughAnswers) -> bool:
    return bool(error.message and error.cure) and "\n" not in str(error)


@pytest.fixture(scope="module", params=[SMALL, LARGE], ids=["3 servers", "5 servers"])
def local(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> LocalCollection:
    return publish(DOCUMENTS, tmp_path_factory.mktemp("quorum"), quorum=request.param)


# --- searching ------------------------------------------------------------------------------------


def test_every_set_of_t_plus_1_servers_or_more_gives_identical_hits(local: LocalCollection) -> None:
    expected = {query: local.searcher().search(query, 20).hits for query in QUERIES}
    assert [len(expected[query]) > 0 for query in QUERIES] == [True, True, True, False]

    for n_asked in range(local.quorum.threshold, local.quorum.n_servers + 1):
        for chosen in combinations(local.servers, n_asked):
            searcher = local.searcher(chosen)
            for query in QUERIES:
                result = searcher.search(query, 20)

                assert result.hits == expected[query], (chosen, query)
                assert result.verified
                assert result.exact


def test_only_t_plus_1_servers_are_asked_for_sums_while_all_are_honest(
    local: LocalCollection,
) -> None:
    asked: list[int] = []

    class Counted:
        def __init__(self, server: int) -> None:
            self._server = server

        def __getattr__(self, name: str) -> object:
            if name == "score":
                asked.append(self._server)
            return getattr(local.servers[self._server], name)

    # A first search, so that nothing is compiled while a server seems to be late.
    local.searcher().search(QUERIES[0])
    replaced = {server: Counted(server) for server in local.servers}
    result = local.searcher(replace=replaced).search(QUERIES[0])  # type: ignore[arg-type]

    assert result.hits
    assert len(asked) == len(set(asked)) == local.quorum.threshold


THREE_AT_ONCE = """
import sys, tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tests.support.local import publish
from mksearch_client.reading import Document

documents = [Document(f"d{n}", "", f"wing number{n}") for n in range(300)]
local = publish(documents, Path(sys.argv[1]))
searchers = [local.searcher() for _ in range(4)]
ask = lambda number: [hit.id for hit in searchers[number % 4].search(f"number{number}").hits]
with ThreadPoolExecutor(4) as pool:
    assert list(pool.map(ask, range(60))) == [[f"d{number}"] for number in range(60)]
"""


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["default", "workqueue"])
def test_servers_in_one_process_answer_at_once_on_every_thread_layer(
    tmp_path: Path, layer: str
) -> None:
    """Numba ends the process when its fallback layer is entered from two threads."""
    environment = {
        **os.environ,
        "NUMBA_THREADING_LAYER": layer,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "client", ROOT / "servers"))),
    }

    done = subprocess.run(
        [sys.executable, "-c", THREE_AT_ONCE, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr[:2000]


def test_t_servers_are_too_few_and_the_error_says_how_many_are_needed(
    local: LocalCollection,
) -> None:
    t = local.quorum.collusion_bound

    for chosen in combinations(local.servers, t):
        with pytest.raises(NotEnoughAnswers) as refused:
            local.searcher(chosen).search(QUERIES[0])

        assert (refused.value.have, refused.value.need) == (t, t + 1)
        assert clear(refused.value)


# --- sharing --------------------------------------------------------------------------------------


@given(
    secret=st.lists(st.integers(0, P - 1), min_size=1, max_size=8),
    t=st.integers(1, 5),
    seed=st.text(max_size=5),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_any_t_plus_1_shares_recover_the_secret_and_every_further_share(
    secret: list[int], t: int, seed: str, data: st.DataObject
) -> None:
    vector = np.array(secret, np.uint16)
    sharing = Sharing(vector, t, seeded(seed))
    ids = st.lists(st.integers(1, 255), min_size=t + 1, max_size=t + 1, unique=True)
    servers = data.draw(ids)
    shares = {server: sharing.share(server) for server in servers}

    np.testing.assert_array_equal(interpolate(shares, t + 1), vector)
    further = data.draw(st.integers(1, 255))
    np.testing.assert_array_equal(interpolate(shares, t + 1, further), sharing.share(further))


@pytest.mark.parametrize("quorum", [SMALL, LARGE])
def test_every_set_of_t_plus_1_of_n_recovers_the_secret(quorum: Quorum) -> None:
    secret = np.array([0, 1, 515, P - 1], np.uint16)
    sharing = Sharing(secret, quorum.collusion_bound, seeded("every set"))

    for chosen in combinations(range(1, quorum.n_servers + 1), quorum.threshold):
        shares = {server: sharing.share(server) for server in chosen}
        np.testing.assert_array_equal(interpolate(shares, quorum.threshold), secret)


@pytest.mark.parametrize("quorum", [SMALL, LARGE])
def test_t_shares_leave_every_secret_equally_possible(quorum: Quorum) -> None:
    t = quorum.collusion_bound
    sharing = Sharing(np.array([4711], np.uint16), t, seeded("possible"))
    candidates: NDArray[np.uint16] = np.arange(P, dtype=np.uint16)

    for chosen in combinations(range(1, quorum.n_servers + 1), t):
        known = {server: np.repeat(sharing.share(server), P) for server in chosen}
        missing = next(s for s in range(1, quorum.n_servers + 1) if s not in chosen)
        # Whatever the next share is decides the secret, and every secret belongs to one of them.
        secrets = interpolate({**known, missing: candidates}, t + 1)
        np.testing.assert_array_equal(np.sort(secrets), candidates)


@pytest.mark.parametrize("quorum", [SMALL, LARGE])
def test_fewer_than_t_plus_1_shares_are_refused(quorum: Quorum) -> None:
    sharing = Sharing(np.array([1, 2], np.uint16), quorum.collusion_bound, seeded("few"))
    shares = {server: sharing.share(server) for server in range(1, quorum.threshold)}

    with pytest.raises(NotEnoughAnswers) as refused:
        interpolate(shares, quorum.threshold)

    assert (refused.value.have, refused.value.need) == (quorum.threshold - 1, quorum.threshold)


def test_shares_of_a_known_secret_are_uniform_and_zero_coefficients_occur() -> None:
    n = 1 << 20
    secret = np.full(n, 77, np.uint16)
    sharing = Sharing(secret, 1, seeded("uniform"))

    share = sharing.share(1)

    # Chi-square over 16 ranges of nearly equal size: 15 degrees of freedom, 1 in 10**6 above 54.
    counts = np.bincount(share.astype(np.int64) * 16 // P, minlength=16)
    assert ((counts - n / 16) ** 2 / (n / 16)).sum() < 54
    # A share equal to the secret has coefficient 0; excluding it would rule that value out.
    assert 1 <= np.count_nonzero(share == 77) <= 50


def test_two_sharings_of_one_secret_differ() -> None:
    secret = np.zeros(64, np.uint16)
    source = seeded("two")

    first, second = Sharing(secret, 1, source), Sharing(secret, 1, source)

    assert (first.share(1) != second.share(1)).sum() > 60


@pytest.mark.parametrize("server", [0, -1, P, P + 1, 1 << 20])
def test_a_server_id_out_of_range_gets_no_share(server: int) -> None:
    sharing = Sharing(np.array([5], np.uint16), 1, seeded("range"))

    with pytest.raises(ParameterError, match=str(server)):
        sharing.share(server)


@pytest.mark.parametrize("servers", [[0, 1], [1, 1], [1, P], [-1, 2], [1, 2, 2]])
def test_ids_that_repeat_or_are_out_of_range_are_not_interpolated(servers: list[int]) -> None:
    with pytest.raises(ParameterError, match="distinct"):
        lagrange_coefficients(servers)


def test_a_sharing_of_degree_0_is_refused() -> None:
    with pytest.raises(ParameterError, match="degree 0") as refused:
        Sharing(np.array([5], np.uint16), 0, seeded("degree"))
    assert clear(refused.value)


@pytest.mark.parametrize("element", [P, 65535])
def test_a_secret_that_is_no_element_of_the_field_is_not_shared(element: int) -> None:
    with pytest.raises(FormatError, match=str(element)):
        Sharing(np.array([1, element], np.uint16), 1, seeded("element"))


def test_a_sharing_shows_no_secret() -> None:
    sharing = Sharing(np.array([12345], np.uint16), 1, seeded("shown"))

    assert "12345" not in repr(sharing)
    assert "redacted" in repr(sharing)


# --- how many servers -----------------------------------------------------------------------------


@pytest.mark.parametrize(("n_servers", "t"), [(3, 1), (4, 1), (5, 2), (255, 1), (255, 127)])
def test_a_quorum_of_2t_plus_1_servers_or_more_is_accepted(n_servers: int, t: int) -> None:
    assert Quorum(n_servers, t).threshold == t + 1


@pytest.mark.parametrize(
    ("n_servers", "t"),
    [(2, 1), (1, 1), (0, 1), (4, 2), (256, 1), (255, 128), (-3, 1), (3, 0), (3, -1), (0, 0)],
)
def test_a_quorum_that_would_not_hold_is_refused_with_its_numbers(n_servers: int, t: int) -> None:
    with pytest.raises(ParameterError) as refused:
        Quorum(n_servers, t)

    assert str(t) in refused.value.message
    assert clear(refused.value)
