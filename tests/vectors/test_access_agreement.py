"""Both implementations on random and changed policies and files: alike, or both refuse."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial

import pytest

from mksearch.access.attributes import Formula, key_labels, parse_attribute
from mksearch.access.keys import AttributeKey, PublicParameters, VerificationKeys
from mksearch.access.pairing import BLS12_381
from mksearch.access.policy import Policy, parse_policy
from mksearch.access.span_program import SpanProgram
from mksearch.errors import MksearchError
from tests.reference import access as reference
from tests.reference import policies
from tests.reference.refused import Refused

from . import access

N_MUTATIONS = int(os.environ.get("MKSEARCH_MUTATIONS", "2000"))
PIECES = [
    "(", ")", ",", " ", " AND ", " or ", " OF ", "2", "0", '"', "\\", ":", ">=", "<", "==", "a",
    "é", "e\u0301", "\u202e", "\u200d", "\u00a0", "\u0000", "epoch", " not ", "x:5", "年", "&",
    "\u0301", ' b:"c d" ', '"e"', "4294967296", "3 OF (a, b, c)", "(a AND b)",
]  # fmt: skip


def same(tree: policies.Tree, formula: Formula) -> bool:
    if isinstance(tree, bytes) or isinstance(formula, bytes):
        return tree == formula
    k, children = tree
    pairs = zip(children, formula.children, strict=False)
    return (k, len(children)) == (formula.k, len(formula.children)) and all(
        same(a, b) for a, b in pairs
    )


def outcome(read: Callable[[], object]) -> object:
    try:
        return read()
    except (MksearchError, Refused):
        return None


def changed_text(rng: random.Random, text: str) -> str:
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text) + 1)
        cut = rng.choice([0, 0, 1, 2])
        text = text[:at] + rng.choice([*PIECES, ""]) + text[at + cut :]
    return text


def test_both_read_changed_policies_alike() -> None:
    rng = random.Random("agreement of policies")
    texts = [text for text, _ in access.POLICIES]
    n_read = 0
    for _ in range(N_MUTATIONS):
        text = changed_text(rng, rng.choice(texts))
        data = text.encode()
        fast = outcome(partial(Policy.decode, data))
        slow = outcome(partial(policies.parse, data))
        assert (fast is None) == (slow is None), ascii(text)
        if isinstance(fast, Policy):
            n_read += 1
            assert same(slow, fast.formula), ascii(text)  # type: ignore[arg-type]
    assert N_MUTATIONS / 20 < n_read < N_MUTATIONS


def test_both_read_changed_attributes_alike() -> None:
    rng = random.Random("agreement of attributes")
    texts = ["role:analyst", '"x":5', 'x:"5"', "年齢:30", '"and"', "time:10:30"]
    n_read = 0
    for _ in range(N_MUTATIONS):
        text = changed_text(rng, rng.choice(texts))
        fast, slow = outcome(partial(_fast_labels, text)), outcome(partial(_slow_labels, text))
        assert fast == slow, ascii(text)
        n_read += fast is not None
    assert N_MUTATIONS / 20 < n_read < N_MUTATIONS


def _fast_labels(text: str) -> list[bytes]:
    return sorted(key_labels([parse_attribute(text)], 3))


def _slow_labels(text: str) -> list[bytes]:
    try:
        return policies.key_labels([text], 3)
    except ValueError as error:
        raise Refused("11.1.5", "not one attribute") from error


@pytest.mark.parametrize("number", range(30))
def test_both_make_the_same_span_program(number: int) -> None:
    rng = random.Random(f"span program {number}")
    text = random_policy(rng, 3)
    epoch = rng.randrange(1, 1 << 64)
    program = SpanProgram.of(parse_policy(text).at_epoch(epoch), BLS12_381.order)
    matrix, labels = policies.span_program(text.encode(), epoch)

    assert list(program.row_labels) == labels
    assert [dict(row) for row in program.matrix] == [
        {column: entry for column, entry in enumerate(row) if entry} for row in matrix
    ]
    assert {len(row) for row in matrix} == {program.n_columns}


def random_policy(rng: random.Random, depth: int) -> str:
    kind = rng.choice(["leaf", "number", "AND", "OR", "OF"]) if depth else "leaf"
    if kind == "leaf":
        return rng.choice(["a", "b:c", '"d e"', "x:7", "年齢"])
    if kind == "number":
        sign = rng.choice([">=", "<=", ">", "<", "=", "=="])
        return f"n {sign} {rng.choice([1, 5, 2**31, rng.randrange(1, 2**32 - 1)])}"
    parts = [random_policy(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    if kind == "OF":
        return f"{rng.randint(1, len(parts))} OF ({', '.join(parts)})"
    return "(" + f" {kind} ".join(parts) + ")"


FILES: dict[str, tuple[Callable[[bytes], object], Callable[[bytes], object]]] = {
    "key": (AttributeKey.decode, reference.decode_key),
    "parameters": (PublicParameters.decode, reference.decode_parameters),
    "verification": (VerificationKeys.decode, reference.decode_verification),
}


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_is_good_for_both_or_for_neither(name: str) -> None:
    fast, slow = FILES[name]
    data = {
        "key": access.key().encode(),
        "parameters": access.shared().parameters.encode(),
        "verification": access.shared().verification.encode(),
    }[name]
    rng = random.Random(f"agreement of {name}")
    # Mostly where there are no points, since the reference takes long for these.
    points = {"key": range(44, 188), "parameters": range(12, 156), "verification": range(54, 342)}
    n_read = 0
    for _ in range(min(N_MUTATIONS, 100)):
        at = rng.randrange(len(data))
        if at in points[name] and rng.random() < 0.8:
            at = rng.randrange(60)
        if rng.random() < 0.5:
            changed = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        else:
            changed = data[:at] + data[at + rng.randint(0, 1) :] + rng.choice([b"", b"\0"])
        reads = [outcome(partial(read, changed)) for read in (fast, slow)]
        assert (reads[0] is None) == (reads[1] is None), changed.hex()
        n_read += reads[0] is not None
    assert n_read
