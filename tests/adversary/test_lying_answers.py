"""Correctness and completeness: no lie changes a sum, and every lie names its author alone.

Servers are played by the engine itself; what they return is corrupted before it is handed in.  All
choices come from one seed, which every failure prints: MKSEARCH_TEST_SEED sets another one, and
MKSEARCH_TEST_LIES another number of lies.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from mksearch.crypto.bundle import KeyBundle
from mksearch.crypto.keystream import Domain
from mksearch.crypto.randomness import RandomSource, SeededRandom
from mksearch.crypto.secret import SecretKey
from mksearch.errors import FormatError, NotEnoughAnswers
from mksearch.field import modp
from mksearch.field.shamir import lagrange_coefficients
from mksearch.index.builder import SegmentBuilder
from mksearch.index.geometry import LevelGeometry
from mksearch.index.record import Member
from mksearch.index.segment import SegmentReader
from mksearch.messages import ScoreAnswer
from mksearch.params import P, Quorum
from mksearch.query.answer import Attempt
from mksearch.query.group import SegmentView
from mksearch.query.trapdoor import Trapdoor
from mksearch.scoring.cpu import CpuEngine
from mksearch.scoring.reference import NumpyEngine
from mksearch.text.analyzers import make_analyzer
from mksearch.text.vocabulary import count_corpus
from mksearch.text.weights import Scoring
from tests.adversary.corpus import make_texts

SEED = int(os.environ.get("MKSEARCH_TEST_SEED", "65521"))
N_LIES = int(os.environ.get("MKSEARCH_TEST_LIES", "10000"))
N_DOCUMENTS = 150
COLLECTION = b"c" * 16
LEVELS = (LevelGeometry(64, 64), LevelGeometry(64, 64))
QUORUMS = (Quorum(3, 1), Quorum(5, 2))

Sums = NDArray[np.uint16]


def seeded(*names: object) -> tuple[np.random.Generator, RandomSource]:
    """Return choices and randomness that depend on the seed and ``names`` alone; print the seed."""
    print(f"MKSEARCH_TEST_SEED={SEED}", *names)
    rng = np.random.default_rng([SEED, zlib.crc32(repr(names).encode())])
    return rng, SeededRandom(rng.bytes(32))


@dataclass
class Segment:
    """A real segment with both sides' views of it, and the plain cells that nobody else has."""

    view: SegmentView
    reader: SegmentReader
    plain: list[Sums] = field(default_factory=list)

    def __post_init__(self) -> None:
        for level, geometry in enumerate(LEVELS):
            cells = self.reader.level(level)
            columns = np.arange(geometry.width)
            masks = self.view._keys.mask.words(Domain.MASK, level, columns, 0, len(cells))
            self.plain.append(modp.subtract(cells, masks.T))

    def truth(self, trapdoor: Trapdoor, level: int) -> Sums:
        """Return what must come out, without shares, masks or checks."""
        return NumpyEngine().score(self.plain[level], LEVELS[level], trapdoor.vectors)


def build_segment(bundle: KeyBundle, random: RandomSource) -> Segment:
    texts = make_texts(N_DOCUMENTS, SEED)
    builder = SegmentBuilder(
        count_corpus(make_analyzer("english-1"), texts),
        [Member(f"doc-{number}", "", "") for number in range(len(texts))],
        Scoring("tfidf"),
        bundle,
        collection=COLLECTION,
        epoch=1,
        random=random,
        geometry=LEVELS,
    )
    data = np.zeros(builder.layout.n_bytes, np.uint8)
    header = builder.write(data)
    return Segment(SegmentView(header, bundle, builder.facts), SegmentReader(data))


@pytest.fixture(scope="module")
def segments() -> tuple[Segment, Segment]:
    """Two builds of the same documents under the same bundle, so of the same shape."""
    _, random = seeded("segments")
    bundle = KeyBundle.from_master(SecretKey(random.bytes(32)), COLLECTION, 1, b"")
    return build_segment(bundle, random), build_segment(bundle, random)


@pytest.fixture(scope="module")
def segment(segments: tuple[Segment, Segment]) -> Segment:
    return segments[0]


def make_trapdoor(rng: np.random.Generator, level: int, n_vectors: int | None = None) -> Trapdoor:
    """Return a random query: mostly one vector, sometimes 2 or 4, sometimes without any term."""
    if n_vectors is None:
        n_vectors = int(rng.choice([1, 1, 1, 1, 1, 1, 2, 4]))
    vectors = np.zeros((n_vectors, LEVELS[level].width), np.uint16)
    for vector in vectors:
        n_columns = int(rng.integers(0, 12))
        columns = rng.choice(len(vector), n_columns, replace=False)
        vector[columns] = rng.integers(1, 44, n_columns)
    return Trapdoor(vectors, (1,) * n_vectors)


class Trial:
    """One attempt with the honest answers of all servers."""

    def __init__(
        self,
        segments: tuple[Segment, Segment],
        quorum: Quorum,
        rng: np.random.Generator,
        random: RandomSource,
        n_vectors: int | None = None,
    ) -> None:
        self.segment, self.other = segments
        self.rng, self.random, self.quorum = rng, random, quorum
        self.level = int(rng.random() < 0.1)
        self.trapdoor = make_trapdoor(rng, self.level, n_vectors)
        self.attempt = self.new_attempt()
        self.requests = {
            server: self.attempt.request(server) for server in range(1, quorum.n_servers + 1)
        }
        cells = self.segment.reader.level(self.level)
        self.honest = {
            server: self.score(cells, request.shares) for server, request in self.requests.items()
        }
        self.sums = {server: sums.copy() for server, sums in self.honest.items()}

    def new_attempt(self) -> Attempt:
        view = self.segment.view
        return Attempt(view, self.trapdoor, self.quorum, self.random, version=1, level=self.level)

    def score(self, cells: Sums, vectors: NDArray[np.uint16]) -> Sums:
        return CpuEngine().score(cells, LEVELS[self.level], vectors)

    def hand_in(self, server: int) -> None:
        self.attempt.add(server, ScoreAnswer(self.requests[server].query_id, self.sums[server]))

    def truth(self) -> Sums:
        return self.segment.truth(self.trapdoor, self.level)

    # --- choices of a liar -----------------------------------------------------------------------

    @property
    def height(self) -> int:
        return self.segment.view.block.height

    @property
    def fan_out(self) -> int:
        return self.segment.view.block.fan_out

    def uniform(self, shape: tuple[int, ...]) -> Sums:
        return self.rng.integers(0, P, shape).astype(np.uint16)

    def vector(self) -> int:
        return int(self.rng.integers(len(self.trapdoor.vectors)))

    def block(self) -> int:
        return int(self.rng.integers(self.honest[1].shape[1] // self.height))

    def other_value(self, value: int) -> int:
        """Return another field element."""
        return int((value + self.rng.integers(1, P)) % P)


Lie = Callable[[Trial, Sequence[int]], None]


def one_bit(trial: Trial, liars: Sequence[int]) -> None:
    for server in liars:
        flat = trial.sums[server].reshape(-1)
        at = int(trial.rng.integers(len(flat)))
        flips = [int(flat[at]) ^ 1 << bit for bit in range(16)]
        flat[at] = trial.rng.choice([value for value in flips if value < P])


def one_sum(trial: Trial, liars: Sequence[int]) -> None:
    for server in liars:
        flat = trial.sums[server].reshape(-1)
        at = int(trial.rng.integers(len(flat)))
        flat[at] = trial.other_value(int(flat[at]))


def one_row(trial: Trial, liars: Sequence[int]) -> None:
    for server in liars:
        rows = trial.sums[server][trial.vector()]
        row = rows[trial.rng.integers(len(rows))]
        row[:] = modp.add(row, trial.uniform(row.shape) // 2 + 1)


def one_block(trial: Trial, liars: Sequence[int]) -> None:
    for server in liars:
        start = trial.block() * trial.height
        part = trial.sums[server][trial.vector(), start : start + trial.height]
        part[:] = trial.uniform(part.shape)


def every_row(trial: Trial, liars: Sequence[int]) -> None:
    for server in liars:
        trial.sums[server][:] = trial.uniform(trial.sums[server].shape)


def check_rows_only(trial: Trial, liars: Sequence[int]) -> None:
    for server in liars:
        blocks = trial.sums[server].reshape(len(trial.trapdoor.vectors), -1, trial.height, 3)
        checks = blocks[:, trial.block() :, trial.fan_out :]
        checks[:] = trial.uniform(checks.shape)


def rows_without_a_document(trial: Trial, liars: Sequence[int]) -> None:
    """Change the rows that fill the last block."""
    for server in liars:
        n_rows = trial.segment.view.block.level_rows(trial.segment.view.n_rows)[trial.level]
        first = (n_rows - 1) // trial.fan_out * trial.height + (n_rows - 1) % trial.fan_out + 1
        rows = trial.sums[server][trial.vector(), first : -trial.segment.view.block.n_checks]
        rows[:] = trial.uniform(rows.shape)


def rows_in_another_order(trial: Trial, liars: Sequence[int]) -> None:
    for server in liars:
        sums = trial.sums[server]
        sums[:] = np.roll(sums, int(trial.rng.integers(1, sums.shape[1])), axis=1)


def tables_in_another_order(trial: Trial, liars: Sequence[int]) -> None:
    for server in liars:
        sums = trial.sums[server]
        sums[:] = np.roll(sums, int(trial.rng.integers(1, 3)), axis=2)


def scaled(trial: Trial, liars: Sequence[int]) -> None:
    for server in liars:
        trial.sums[server] = modp.multiply(trial.sums[server], int(trial.rng.integers(2, P)))


def another_query_share(trial: Trial, liars: Sequence[int]) -> None:
    cells = trial.segment.reader.level(trial.level)
    for server in liars:
        shares = trial.requests[server].shares.copy()
        if trial.rng.random() < 0.5:
            shares[:] = trial.uniform(shares.shape)
        else:
            column = int(trial.rng.integers(shares.shape[1]))
            shares[trial.vector(), column] ^= 1
            shares %= P
        trial.sums[server] = trial.score(cells, shares)


def an_earlier_answer(trial: Trial, liars: Sequence[int]) -> None:
    """Replay what the same server answered to an earlier attempt at the same question."""
    earlier = trial.new_attempt()
    cells = trial.segment.reader.level(trial.level)
    for server in liars:
        trial.sums[server] = trial.score(cells, earlier.request(server).shares)


def another_segment(trial: Trial, liars: Sequence[int]) -> None:
    cells = trial.other.reader.level(trial.level)
    for server in liars:
        trial.sums[server] = trial.score(cells, trial.requests[server].shares)


def the_same_changed_cell(trial: Trial, liars: Sequence[int]) -> None:
    """Answer, all liars alike, from an index in which one cell was changed."""
    cells = trial.segment.reader.level(trial.level).copy()
    row, column = (int(trial.rng.integers(n)) for n in cells.shape)
    cells[row, column] = trial.other_value(int(cells[row, column]))
    for server in liars:
        trial.sums[server] = trial.score(cells, trial.requests[server].shares)


def nothing_but_zeros(trial: Trial, liars: Sequence[int]) -> None:
    for server in liars:
        trial.sums[server][:] = 0


def the_next_servers_answer(trial: Trial, liars: Sequence[int]) -> None:
    """Two liars swap their answers; a single one repeats another server's."""
    turned = [*liars[1:], liars[0]] if len(liars) > 1 else [liars[0] % trial.quorum.n_servers + 1]
    for server, source in zip(liars, turned, strict=True):
        trial.sums[server] = trial.honest[source].copy()


def the_same_error(trial: Trial, liars: Sequence[int]) -> None:
    vector, block = trial.vector(), trial.block()
    row = block * trial.height + int(trial.rng.integers(trial.height))
    error = trial.uniform((3,)) // 2 + 1
    for server in liars:
        sums = trial.sums[server]
        sums[vector, row] = modp.add(sums[vector, row], error)


LIES: tuple[Lie, ...] = (
    one_bit,
    one_sum,
    one_row,
    one_block,
    every_row,
    check_rows_only,
    rows_without_a_document,
    rows_in_another_order,
    tables_in_another_order,
    scaled,
    another_query_share,
    an_earlier_answer,
    another_segment,
    the_same_changed_cell,
    nothing_but_zeros,
    the_next_servers_answer,
    the_same_error,
)


def cancel_at_zero(
    trial: Trial, liars: Sequence[int], used: Sequence[int], blocks: Sequence[int]
) -> None:
    """Let the errors of two liars cancel in whatever is combined from the answers ``used``."""
    first, second = liars
    factors = dict(zip(used, lagrange_coefficients(used), strict=True))
    ratio = (P - factors[first]) * modp.inverse(factors[second]) % P
    for block in blocks:
        start = block * trial.height
        rows = slice(start, start + trial.height)
        vector = trial.vector()
        error = trial.uniform((trial.height, 3)) // 2 + 1
        for server, part in ((first, error), (second, modp.multiply(error, ratio))):
            sums = trial.sums[server]
            sums[vector, rows] = modp.add(sums[vector, rows], part)


def choose_servers(
    rng: np.random.Generator, quorum: Quorum, n_liars: int
) -> tuple[list[int], list[int]]:
    """Return who answers, in order, and who of them lies; the rest of the servers is dead."""
    need = quorum.threshold + n_liars
    n_alive = int(rng.integers(need, quorum.n_servers + 1))
    order: list[int] = (1 + rng.permutation(quorum.n_servers))[:n_alive].tolist()
    liars: list[int] = rng.choice(order, n_liars, replace=False).tolist()
    return order, liars


def ask_one_by_one(trial: Trial, order: Sequence[int]) -> tuple[Sums, list[int]]:
    """Hand answers in as a client asks for them; return the sums and who was not asked."""
    waiting = list(order)
    while True:
        while trial.attempt.n_honest < trial.quorum.threshold:
            trial.hand_in(waiting.pop(0))
        try:
            return trial.attempt.combine(), waiting
        except NotEnoughAnswers as error:
            shortage = error
        assert shortage.need == trial.quorum.threshold
        assert shortage.have == trial.attempt.n_honest < shortage.need


def check_many_lies(
    segments: tuple[Segment, Segment], quorum: Quorum, lie: Lie, n_trials: int
) -> None:
    rng, random = seeded(lie.__name__, quorum)
    for number in range(n_trials):
        trial = Trial(segments, quorum, rng, random)
        n_liars = int(rng.integers(1, quorum.n_servers - quorum.threshold + 1))
        order, liars = choose_servers(rng, quorum, n_liars)
        lie(trial, liars)
        for server in liars:
            assert not np.array_equal(trial.sums[server], trial.honest[server])
        what = f"trial {number}: servers {order}, liars {liars}, level {trial.level}"
        left = order
        if rng.random() < 0.5:
            combined, left = ask_one_by_one(trial, order)
            assert np.array_equal(combined, trial.truth()), what
            # Errors of two may cancel in t + 1 answers; a further answer shows them.
            assert set(trial.attempt.liars) <= set(liars), what
        for server in left:
            trial.hand_in(server)
        assert np.array_equal(trial.attempt.combine(), trial.truth()), what
        assert list(trial.attempt.liars) == sorted(liars), what


# --- the guarantee ------------------------------------------------------------------------------


@pytest.mark.parametrize("quorum", QUORUMS, ids=lambda q: f"{q.n_servers}-{q.collusion_bound}")
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_in_ten_thousand_lies_no_sum_changes_and_exactly_the_liars_are_named(
    segments: tuple[Segment, Segment], quorum: Quorum, lie: Lie
) -> None:
    check_many_lies(segments, quorum, lie, -(-N_LIES // (len(LIES) * len(QUORUMS))))


@pytest.mark.parametrize("n_vectors", [1, 2, 4])
@pytest.mark.parametrize("quorum", QUORUMS, ids=lambda q: f"{q.n_servers}-{q.collusion_bound}")
def test_a_lie_in_any_one_vector_of_a_long_query_is_found(
    segments: tuple[Segment, Segment], quorum: Quorum, n_vectors: int
) -> None:
    rng, random = seeded("vectors", quorum, n_vectors)
    for vector in range(n_vectors):
        for _ in range(10):
            trial = Trial(segments, quorum, rng, random, n_vectors)
            liar = int(rng.integers(1, quorum.n_servers + 1))
            rows = trial.sums[liar][vector]
            row, table = int(rng.integers(len(rows))), int(rng.integers(3))
            rows[row, table] = trial.other_value(int(rows[row, table]))
            for server in trial.honest:
                trial.hand_in(server)
            assert np.array_equal(trial.attempt.combine(), trial.truth())
            assert trial.attempt.liars == (liar,)


@pytest.mark.parametrize("level", [0, 1])
def test_a_lie_in_any_single_row_of_a_level_is_found(
    segments: tuple[Segment, Segment], level: int
) -> None:
    rng, random = seeded("rows", level)
    quorum = Quorum()
    view = segments[0].view
    n_rows = view.n_blocks(level) * view.block.height
    done = 0
    while done < n_rows:
        trial = Trial(segments, quorum, rng, random, 1)
        if trial.level != level:
            continue
        liar = int(rng.integers(1, 4))
        at = (0, done, int(rng.integers(3)))
        trial.sums[liar][at] = trial.other_value(int(trial.sums[liar][at]))
        for server in trial.honest:
            trial.hand_in(server)
        assert np.array_equal(trial.attempt.combine(), trial.truth()), f"row {done}"
        assert trial.attempt.liars == (liar,), f"row {done}"
        done += 1


def test_honest_servers_are_never_named_and_any_quorum_of_them_gives_the_same_sums(
    segments: tuple[Segment, Segment],
) -> None:
    rng, random = seeded("honest")
    for quorum in (Quorum(3, 1), Quorum(5, 2), Quorum(7, 3), Quorum(4, 1)):
        for _ in range(40):
            trial = Trial(segments, quorum, rng, random)
            order, _ = choose_servers(rng, quorum, 0)
            for server in order:
                trial.hand_in(server)
            assert np.array_equal(trial.attempt.combine(), trial.truth())
            assert trial.attempt.liars == ()


# --- errors that cancel -------------------------------------------------------------------------


def test_errors_of_two_liars_that_cancel_change_no_sum_and_both_are_named(
    segments: tuple[Segment, Segment],
) -> None:
    rng, random = seeded("cancel")
    for quorum in (Quorum(5, 2), Quorum(3, 1), Quorum(7, 3)):
        for _ in range(60):
            trial = Trial(segments, quorum, rng, random)
            servers = list(trial.honest)
            # Somebody whose answer is not needed must be there to compare with.
            order, _ = choose_servers(rng, quorum, 1)
            used = sorted(order)[: quorum.threshold]
            liars: list[int] = rng.choice(used, 2, replace=False).tolist()
            n_blocks = trial.honest[1].shape[1] // trial.height
            blocks: list[int] = rng.permutation(n_blocks)[: rng.integers(1, n_blocks + 1)].tolist()
            cancel_at_zero(trial, liars, used, blocks)
            for server in order:
                trial.hand_in(server)
            what = f"servers {order} of {len(servers)}, liars {liars}, blocks {blocks}"
            assert np.array_equal(trial.attempt.combine(), trial.truth()), what
            assert list(trial.attempt.liars) == sorted(liars), what


def test_errors_that_cancel_among_the_only_answers_still_change_no_sum(
    segments: tuple[Segment, Segment],
) -> None:
    rng, random = seeded("cancel", "only")
    for quorum in QUORUMS:
        for _ in range(20):
            trial = Trial(segments, quorum, rng, random)
            used = list(range(1, quorum.threshold + 1))
            cancel_at_zero(trial, (1, 2), used, [0])
            for server in used:
                trial.hand_in(server)
            assert np.array_equal(trial.attempt.combine(), trial.truth())
            assert set(trial.attempt.liars) <= {1, 2}


def test_three_liars_whose_errors_cancel_pairwise_in_different_blocks_are_all_named(
    segments: tuple[Segment, Segment],
) -> None:
    rng, random = seeded("cancel", "pairs")
    for _ in range(20):
        trial = Trial(segments, Quorum(7, 2), rng, random, 1)
        if trial.level:
            continue
        cancel_at_zero(trial, (1, 2), (1, 2, 3), [0])
        cancel_at_zero(trial, (2, 3), (1, 2, 3), [1])
        for server in trial.honest:
            trial.hand_in(server)
        assert np.array_equal(trial.attempt.combine(), trial.truth())
        assert trial.attempt.liars == (1, 2, 3)


def test_a_liar_in_one_block_does_not_hide_two_whose_errors_cancel_in_another(
    segments: tuple[Segment, Segment],
) -> None:
    rng, random = seeded("cancel", "hidden")
    for _ in range(20):
        trial = Trial(segments, Quorum(6, 1), rng, random, 1)
        if trial.level:
            continue
        cancel_at_zero(trial, (1, 2), (1, 2), [1])
        trial.sums[3][0, :64] = trial.uniform((64, 3))
        for server in trial.honest:
            trial.hand_in(server)
        assert np.array_equal(trial.attempt.combine(), trial.truth())
        assert trial.attempt.liars == (1, 2, 3)


# --- too many liars -----------------------------------------------------------------------------


@pytest.mark.parametrize("quorum", QUORUMS, ids=lambda q: f"{q.n_servers}-{q.collusion_bound}")
@pytest.mark.parametrize(
    "lie",
    [one_bit, one_sum, one_block, every_row, check_rows_only, rows_in_another_order],
    ids=lambda lie: lie.__name__,
)
def test_with_more_liars_than_a_quorum_can_spare_no_sum_is_used_and_nobody_honest_is_named(
    segments: tuple[Segment, Segment], quorum: Quorum, lie: Lie
) -> None:
    rng, random = seeded("too many", lie.__name__, quorum)
    spare = quorum.n_servers - quorum.threshold
    for n_liars in range(spare + 1, quorum.n_servers + 1):
        for _ in range(15):
            trial = Trial(segments, quorum, rng, random)
            order: list[int] = (1 + rng.permutation(quorum.n_servers)).tolist()
            liars: list[int] = rng.choice(order, n_liars, replace=False).tolist()
            lie(trial, liars)
            for server in order:
                trial.hand_in(server)
            with pytest.raises(NotEnoughAnswers) as caught:
                trial.attempt.combine()
            assert caught.value.need == quorum.threshold
            assert caught.value.have < quorum.threshold
            assert trial.attempt.liars
            assert set(trial.attempt.liars) <= set(liars)


@pytest.mark.parametrize("quorum", QUORUMS, ids=lambda q: f"{q.n_servers}-{q.collusion_bound}")
@pytest.mark.parametrize(
    "lie",
    [another_segment, the_same_changed_cell, nothing_but_zeros],
    ids=lambda lie: lie.__name__,
)
def test_a_quorum_of_liars_that_agree_gets_no_wrong_sum_accepted(
    segments: tuple[Segment, Segment], quorum: Quorum, lie: Lie
) -> None:
    rng, random = seeded("agree", lie.__name__, quorum)
    n_refused = 0
    for _ in range(60):
        trial = Trial(segments, quorum, rng, random)
        n_liars = int(rng.integers(quorum.threshold, quorum.n_servers + 1))
        liars: list[int] = (1 + rng.permutation(quorum.n_servers))[:n_liars].tolist()
        lie(trial, liars)
        for server in trial.honest:
            trial.hand_in(server)
        try:
            # Where the query does not touch what they changed, their errors cancel and harm nobody.
            assert np.array_equal(trial.attempt.combine(), trial.truth())
        except NotEnoughAnswers:
            n_refused += 1
        assert set(trial.attempt.liars) <= set(liars)
    assert n_refused


def test_one_answer_fewer_than_the_threshold_gives_nothing(
    segments: tuple[Segment, Segment],
) -> None:
    rng, random = seeded("too few")
    for quorum in QUORUMS:
        trial = Trial(segments, quorum, rng, random)
        for server in range(1, quorum.threshold):
            trial.hand_in(server)
        with pytest.raises(NotEnoughAnswers) as caught:
            trial.attempt.combine()
        assert (caught.value.have, caught.value.need) == (quorum.threshold - 1, quorum.threshold)
        assert trial.attempt.liars == ()


# --- what is no answer at all -------------------------------------------------------------------

Forgery = Callable[[ScoreAnswer], ScoreAnswer]


def _with_sums(change: Callable[[Sums], NDArray[np.generic]]) -> Forgery:
    return lambda answer: ScoreAnswer(answer.query_id, change(answer.sums))  # type: ignore[arg-type]


def _with_element(value: int) -> Forgery:
    def change(sums: Sums) -> Sums:
        sums = sums.copy()
        sums[-1, -1, -1] = value
        return sums

    return _with_sums(change)


FORGERIES: dict[str, Forgery] = {
    "a row too few": _with_sums(lambda sums: sums[:, :-1]),
    "a row too many": _with_sums(lambda sums: np.concatenate([sums, sums[:, :1]], axis=1)),
    "a table too few": _with_sums(lambda sums: sums[:, :, :-1]),
    "a vector too many": _with_sums(lambda sums: np.concatenate([sums, sums])),
    "no vector": _with_sums(lambda sums: sums[:0]),
    "a flat array": _with_sums(lambda sums: sums.reshape(-1)),
    "a transposed array": _with_sums(lambda sums: sums.transpose(0, 2, 1)),
    "a number": _with_sums(lambda _sums: np.array(7, np.uint16)),
    "wider integers": _with_sums(lambda sums: sums.astype(np.uint32)),
    "signed integers": _with_sums(lambda sums: sums.astype(np.int64)),
    "floats": _with_sums(lambda sums: sums.astype(np.float64)),
    "bytes in the other order": _with_sums(lambda sums: sums.astype(">u2")),
    "an element p": _with_element(P),
    "an element 65535": _with_element(65535),
    "another query id": lambda answer: ScoreAnswer(bytes(16), answer.sums),
    "a longer query id": lambda answer: ScoreAnswer(answer.query_id + b"\0", answer.sums),
    "no query id": lambda answer: ScoreAnswer(b"", answer.sums),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES.keys())
def test_what_cannot_be_an_answer_is_refused_by_name_and_the_others_go_on(
    segments: tuple[Segment, Segment], forge: Forgery
) -> None:
    rng, random = seeded("forgery")
    for quorum in QUORUMS:
        for liar in range(1, quorum.n_servers + 1):
            trial = Trial(segments, quorum, rng, random)
            honest = ScoreAnswer(trial.requests[liar].query_id, trial.honest[liar])
            with pytest.raises(FormatError) as caught:
                trial.attempt.add(liar, forge(honest))
            assert caught.value.server == liar
            assert trial.attempt.liars == (liar,)
            for server in set(trial.honest) - {liar}:
                trial.hand_in(server)
            assert np.array_equal(trial.attempt.combine(), trial.truth())
            assert trial.attempt.liars == (liar,)


def test_a_server_that_was_named_cannot_come_back_with_another_answer(
    segments: tuple[Segment, Segment],
) -> None:
    rng, random = seeded("again")
    trial = Trial(segments, Quorum(), rng, random)
    every_row(trial, [1])
    for server in (1, 2, 3):
        trial.hand_in(server)
    trial.attempt.combine()
    trial.sums[1] = trial.honest[1]
    trial.hand_in(1)
    assert trial.attempt.liars == (1,)
    assert trial.attempt.n_honest == 2
    assert np.array_equal(trial.attempt.combine(), trial.truth())
