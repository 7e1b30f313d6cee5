"""A set of attributes recovers the secret if and only if it satisfies the policy.

Every subset of the attributes of every policy of a family: what satisfies it recovers the secret;
what does not has rows whose span leaves out the target, which is a fact of linear algebra and not
a matter of chance.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mksearch.access.attributes import Formula, Label, Threshold, key_labels, parse_attribute
from mksearch.access.policy import is_qualified, parse_policy
from mksearch.access.span_program import SpanProgram, spans_target
from mksearch.crypto.randomness import SeededRandom
from mksearch.errors import NotQualified, ParameterError

R = 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001
#: The smallest prime for gates of six: what is true for R by size alone fails here.
SMALL = 7
LABELS = [parse_attribute(name).label for name in "abcdef"]


def subsets(labels: list[Label]) -> Iterator[frozenset[Label]]:
    for size in range(len(labels) + 1):
        yield from map(frozenset, combinations(labels, size))


def truth(formula: Formula, held: frozenset[Label]) -> bool:
    """Say by counting whether ``held`` satisfies a structure; not the product's own function."""
    if isinstance(formula, bytes):
        return formula in held
    return len([1 for child in formula.children if truth(child, held)]) >= formula.k


def check(formula: Formula, order: int, labels: list[Label]) -> tuple[int, int]:
    """Check every subset; return how many qualify and how many do not."""
    program = SpanProgram.of(formula, order)
    n_rows = len(program.matrix)
    assert len(program.row_labels) == n_rows
    secret = 0xA5A5 % order
    shares = program.share(secret, SeededRandom(bytes(32)))
    counts = [0, 0]
    for held in subsets(labels):
        named = [row for row in range(n_rows) if program.row_labels[row] in held]
        spans = spans_target([program.matrix[row] for row in named], program.n_columns, order)
        expected = truth(formula, held)
        counts[expected] += 1
        assert spans is expected, (formula, held)
        assert is_qualified(formula, held) is expected
        try:
            found = program.coefficients(held)
        except NotQualified:
            assert not expected, (formula, held)
            continue
        assert expected, (formula, held)
        assert set(found) <= set(named)
        assert sum(w * shares[row] for row, w in found.items()) % order == secret
        for column in range(program.n_columns):
            total = sum(w * program.matrix[row].get(column, 0) for row, w in found.items())
            assert total % order == (column == 0)
    return counts[1], counts[0]


def small_formulas(labels: list[Label], depth: int) -> Iterator[Formula]:
    """Yield every structure of gates of two and three over these leaves, repeats included."""
    yield from labels
    if depth:
        inner = list(small_formulas(labels, depth - 1))
        for children in product(inner, repeat=2):
            for k in (1, 2):
                yield Threshold(k, children)
        for leaves in product(labels, repeat=3):
            yield Threshold(2, leaves)


def random_formula(rng: random.Random, depth: int, n_leaves: int) -> Formula:
    """Return a structure over six attributes in which some may occur more than once."""
    if n_leaves == 1 or depth == 0:
        return rng.choice(LABELS)
    n_children = rng.randint(1, min(n_leaves, 6))
    cuts = sorted(rng.sample(range(1, n_leaves), n_children - 1))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, n_leaves], strict=True)]
    children = tuple(random_formula(rng, depth - 1, size) for size in sizes)
    return Threshold(rng.randint(1, n_children), children)


@pytest.mark.parametrize("order", [SMALL, R], ids=["order 7", "order r"])
def test_every_small_policy_opens_for_exactly_its_qualified_sets(order: int) -> None:
    n_open = n_closed = 0
    formulas = list(small_formulas(LABELS[:2], 2))
    for formula in formulas:
        is_open, is_closed = check(formula, order, LABELS[:2])
        n_open += is_open
        n_closed += is_closed

    assert n_open > 100
    assert n_closed > 100


@pytest.mark.parametrize("order", [SMALL, R], ids=["order 7", "order r"])
def test_policies_of_six_attributes_open_for_exactly_their_qualified_sets(order: int) -> None:
    rng = random.Random("span programs")
    n_open = n_closed = 0
    for _ in range(1000 if order == SMALL else 500):
        is_open, is_closed = check(random_formula(rng, 3, rng.randint(2, 9)), order, LABELS)
        n_open += is_open
        n_closed += is_closed

    assert min(n_open, n_closed) > 1000


@given(st.integers(0, 2**32))
@settings(max_examples=40)
def test_further_policies_open_for_exactly_their_qualified_sets(number: int) -> None:
    rng = random.Random(number)
    check(random_formula(rng, 3, rng.randint(1, 8)), R, LABELS)


@pytest.mark.parametrize("n", range(1, 7))
def test_every_threshold_of_every_size_opens_for_exactly_enough(n: int) -> None:
    for k in range(1, n + 1):
        check(Threshold(k, tuple(LABELS[:n])), SMALL, LABELS[:n])


@pytest.mark.parametrize(
    "text",
    [
        "(a AND b) OR (a AND c)",
        "(a OR b) AND (a OR c)",
        "2 OF (a, a, b)",
        "3 OF (a, a, b, c)",
        "a AND a AND b",
        "2 OF (a AND b, a AND c, b AND c)",
    ],
)
def test_repeated_attributes_open_for_exactly_the_qualified_sets(text: str) -> None:
    check(parse_policy(text).formula, R, LABELS[:3])


def test_no_single_leaf_of_an_and_holds_the_whole_secret() -> None:
    for n in range(2, 7):
        program = SpanProgram.of(Threshold(n, tuple(LABELS[:n])), R)
        for row in program.matrix:
            assert not spans_target([row], program.n_columns, R)
        for rows in combinations(program.matrix, n - 1):
            assert not spans_target(rows, program.n_columns, R)


def test_the_fewest_rows_are_used() -> None:
    program = SpanProgram.of(parse_policy("(a AND b AND c) OR (d AND e) OR f").formula, R)

    assert len(program.coefficients(LABELS)) == 1
    assert len(program.coefficients(LABELS[:5])) == 2
    assert len(program.coefficients(LABELS[:4])) == 3


def test_coefficients_of_a_plain_and_are_short_so_that_opening_is_cheap() -> None:
    program = SpanProgram.of(parse_policy(" AND ".join("abcdef")).formula, R)

    assert all(min(w, R - w) <= 20 for w in program.coefficients(LABELS).values())


def test_comparisons_open_by_the_bits_of_a_number() -> None:
    policy = parse_policy("x >= 6 AND x < 9")
    program = SpanProgram.of(policy.formula, R)
    for number in range(12):
        labels = key_labels([parse_attribute(f"x:{number}")], 1)
        rows = [
            row for row, label in zip(program.matrix, program.row_labels, strict=True)
            if label in labels
        ]  # fmt: skip
        assert spans_target(rows, program.n_columns, R) is (6 <= number < 9)


def test_a_refusal_names_what_is_not_held_or_the_epoch() -> None:
    policy = parse_policy("role:a AND role:b")
    program = SpanProgram.of(policy.at_epoch(4), R)
    a, b = (parse_attribute(text).label for text in ("role:a", "role:b"))
    epochs = [SpanProgram.of(policy.at_epoch(e), R).row_labels[-1] for e in (3, 4)]

    with pytest.raises(NotQualified, match="not held: role:b;") as caught:
        program.coefficients({a, epochs[1]})
    assert caught.value.exit_code == 4
    with pytest.raises(NotQualified, match="epoch 3, and this is of epoch 4"):
        program.coefficients({a, b, epochs[0]})


def test_gates_that_are_none_are_refused() -> None:
    for formula in (Threshold(0, (LABELS[0],)), Threshold(2, (LABELS[0],)), Threshold(1, ())):
        with pytest.raises(ParameterError):
            SpanProgram.of(formula, R)
    with pytest.raises(ParameterError):
        SpanProgram.of(Threshold(1, tuple(LABELS * 2)), SMALL)
    with pytest.raises(ParameterError):
        SpanProgram.of(LABELS[0], R).share(R, SeededRandom(bytes(32)))
