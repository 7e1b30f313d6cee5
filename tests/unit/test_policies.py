"""The language of policies: what is read, what is refused and where, what numbers mean."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mksearch.access.attributes import (
    Attribute,
    compare,
    epoch_label,
    epoch_of,
    key_labels,
    parse_attribute,
    require_labels,
    show_label,
)
from mksearch.access.policy import Policy, is_qualified, parse_policy, qualifies
from mksearch.errors import FormatError, PolicyError
from mksearch.params import ATTRIBUTES_MAX, POLICY_BYTES_MAX, POLICY_DEPTH_MAX, POLICY_LEAVES_MAX

N_MUTATIONS = int(os.environ.get("MKSEARCH_MUTATIONS", "2000"))

POLICIES = [
    "(role:analyst AND dept:finance) OR 2 OF (a:1, b:1, c:1)",
    "a+b@x.org OR dept_1 OR ORland",
    '年齢:30 AND name:"Zoë \\"Z\\" O\'Hara"',
    "clearance >= 3 AND (country:ch OR country:li)",
    "1 OF (2 OF (a, b, c), d AND e)",
]


def attributes(*texts: str) -> list[Attribute]:
    return [parse_attribute(text) for text in texts]


def opens(policy: str, *held: str) -> bool:
    return qualifies(parse_policy(policy), attributes(*held))


def refused(text: str) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text)
    return caught.value


# --- what is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "held", "expected"),
    [
        ("a+b@x.org", ["a+b@x.org"], True),
        ("a+b@x.org", ["a", "b@x.org"], False),
        ("dept_1", ["dept_1"], True),
        ("dept_1", ["dept"], False),
        ("ORland", ["ORland"], True),
        ("ORland", ["land"], False),
        ("年齢:30", ["年齢:30"], True),
        ("年齢:30", ["年齢:3"], False),
        ("2 OF (a, b, c)", ["a", "c"], True),
        ("2 OF (a, b, c)", ["b"], False),
        ("a OR b AND c", ["a"], True),
        ("a OR b AND c", ["b"], False),
        ("(a OR b) AND c", ["a"], False),
        ("a and b or c", ["c"], True),
        ("a And b", ["a", "b"], True),
        ("2 of (a,b)", ["a", "b"], True),
        ("\ta\r\n AND\nb ", ["a", "b"], True),
        ("role:Analyst", ["role:analyst"], False),
        ("Role:analyst", ["role:analyst"], False),
        ("time:10:30", ["time:10:30"], True),
        ('"time:10":30', ["time:10:30"], False),
        ('"time:10":30', ['"time:10":30'], True),
        ('dept:"R&D"', ['dept:"R&D"'], True),
        ('"and" AND "OF"', ['"and"', '"OF"'], True),
        ("state:OR", ["state:OR"], True),
        ('"2"', ['"2"'], True),
        ("group:01", ["group:1"], False),
        ("a AND a", ["a"], True),
        ("2 OF (a, a, b)", ["a"], True),
    ],
)
def test_a_policy_opens_if_and_only_if_it_is_satisfied(
    policy: str, held: list[str], expected: bool
) -> None:
    assert opens(policy, *held) is expected


def test_two_users_with_half_of_the_attributes_each_do_not_qualify_alone() -> None:
    policy = "role:analyst AND dept:finance"

    assert not opens(policy, "role:analyst")
    assert not opens(policy, "dept:finance")
    assert opens(policy, "dept:finance", "role:analyst")


def test_an_attribute_is_the_same_in_quotes() -> None:
    assert opens('"role":"analyst"', "role:analyst")
    assert opens('group:"7"', "group:7")
    assert opens("group:7", 'group:"7"')


def test_names_and_values_that_lie_next_to_each_other_have_labels_of_their_own() -> None:
    texts = ["ab", "a:b", '"a:b"', '"a:b":c', "a:b:c", '"a":"b:c"', "b:a", "3:é", "é"]
    labels = [parse_attribute(text).label for text in texts]

    assert labels[4] == labels[5]
    assert len(set(labels)) == len(labels) - 1


def test_the_bytes_of_a_policy_are_those_typed() -> None:
    text = ' ( role:"analyst"  and\tb ) '
    policy = parse_policy(text)

    assert policy.data == text.encode()
    assert str(policy) == "role:analyst AND b"
    assert policy != parse_policy(str(policy))
    assert Policy.decode(policy.data) == policy


@pytest.mark.parametrize("text", POLICIES)
def test_a_policy_that_is_printed_means_the_same(text: str) -> None:
    policy = parse_policy(text)

    assert parse_policy(str(policy)).formula == policy.formula


NAMES = st.one_of(
    st.sampled_from(["a", "AND", "of", "7", "x:y", "R&D", 'q"u', "b\\s", "é", "年齢", "a b"]),
    st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=8),
)


@given(NAMES, st.one_of(st.just(""), NAMES), st.booleans())
def test_an_attribute_that_is_printed_means_the_same(name: str, value: str, quoted: bool) -> None:
    name, value = (unicodedata.normalize("NFC", part) for part in (name, value))
    if name.casefold() == "epoch":
        return
    is_number = value.isascii() and value.isdigit() and str(int(value)) == value and not quoted
    attribute = Attribute(name, value, is_number)

    assert parse_attribute(str(attribute)) == attribute
    assert parse_policy(str(attribute)).root == attribute


# --- what is refused, and where -------------------------------------------------------------------

BAD = [
    ("", None),
    ("   ", 4),
    ("A and (B or C", 7),
    ("A and B)", 8),
    ("()", 2),
    ("a b", 3),
    ("a AND", 6),
    ("AND a", 1),
    ("a OR OR b", 6),
    ("a AND NOT b", 7),
    ("not a", 1),
    ("a & b", 3),
    ("a|b", 2),
    ("!a", 1),
    ("a, b", 2),
    ("2 (a, b)", 1),
    ("2 OF a, b", 3),
    ("2 OF ()", 7),
    ("2 OF (a, )", 10),
    ("2 OF (a b)", 9),
    ("3 OF (a, b)", 1),
    ("0 OF (a, b)", 1),
    ("02 OF (a, b)", 1),
    ("99999999999999999999 OF (a, b)", 1),
    ("OF (a, b)", 1),
    ("a OF (b, c)", 3),
    ("7", 1),
    ("a:", 3),
    (":a", 1),
    ("a: b", 3),
    ("a :b", 3),
    ('a:""', 3),
    ('""', 1),
    ('a"b"', 2),
    ('"a"b', 4),
    ('a:b"c"', 4),
    ('"a""b"', 4),
    ('"a', 1),
    ('a:"b\\n"', 5),
    ('a:"b\\', 5),
    ("a'b", 2),
    ("a\u00a0b", 2),
    ("a\u200bb", 2),
    ('a:"\u202eb"', 4),
    ('a:"\u0000"', 4),
    ("a\u0000", 2),
    ("a\u0378", 2),
    ("cafe\u0301", 4),
    ("x AND ＡＢＣ\u0301e\u0301", 11),
    ('"\u0301a"', 1),
    ("a:\u0301", 3),
    ("a\ud800", 2),
    ("epoch:3", 1),
    ("a AND Epoch:3", 7),
    ('"epoch":"x"', 1),
    ("epoch >= 3", 1),
    ("epoch", 1),
    ("clearance >= x", 14),
    ("clearance >= 03", 14),
    ("clearance >= -3", 14),
    ("clearance >= 4294967296", 14),
    ("clearance >= ", 14),
    ("clearance < 0", 1),
    ("clearance > 4294967295", 1),
    ("clearance:2 >= 1", 1),
    ("a => 1", 4),
    ("3 <= clearance", 1),
    ("clearance >= 3 >= 2", 16),
    ("role = admin", 8),
    ("a:" + "x" * 257, 3),
    ("x" * 257, 1),
    ("é" * 129, 1),
]


@pytest.mark.parametrize(("text", "position"), BAD, ids=lambda value: ascii(value)[:30])
def test_what_does_not_parse_is_refused_with_its_position(text: str, position: int | None) -> None:
    error = refused(text)

    assert error.position == position
    assert error.exit_code == 2
    if position is not None:
        assert f"at character {position}" in error.message
    assert "\n" not in error.message
    assert error.message.isprintable()


def test_a_refusal_says_what_to_type_instead() -> None:
    assert "OR" in refused("a | b").cure
    assert '"7"' in refused("7").cure
    assert "NOT" in refused("a AND NOT b").cure
    assert "name:value" in refused("role = admin").cure


def test_sizes_are_limited_at_exactly_the_limit() -> None:
    parse_policy("a" + " " * (POLICY_BYTES_MAX - 1))
    assert "4097" in refused("a" + " " * POLICY_BYTES_MAX).message
    parse_policy("é:" + "é" * 128)

    deep = "(" * POLICY_DEPTH_MAX + "a" + ")" * POLICY_DEPTH_MAX
    parse_policy(deep)
    assert refused(f"({deep})").position == POLICY_DEPTH_MAX + 1

    wide = " OR ".join(["a"] * POLICY_LEAVES_MAX)
    parse_policy(wide)
    assert "257" in refused(f"{wide} OR a").message


def test_the_deepest_policy_is_evaluated_and_printed() -> None:
    text = "x >= 1"
    for level in range(POLICY_DEPTH_MAX):
        text = f"(a AND b{level} OR {text})"
    policy = parse_policy(text)

    assert qualifies(policy, attributes("x:1"))
    assert parse_policy(str(policy)).formula == policy.formula


@pytest.mark.parametrize(
    "hostile",
    [
        "(" * POLICY_BYTES_MAX,
        "(a OR " * 600,
        "a AND " * 600,
        '"' * POLICY_BYTES_MAX,
        '"' + "\\\\" * 2000,
        "1 OF (" * 600,
        "a" + "\u0300\u0316" * 1000,
        "a>=4294967295 AND " * 220 + "a",
        "9" * POLICY_BYTES_MAX + " OF (a)",
        "x" * 10_000_000,
    ],
    ids=lambda text: text[:12],
)
def test_hostile_text_is_refused_soon(hostile: str) -> None:
    start = time.perf_counter()
    refused(hostile)

    assert time.perf_counter() - start < 0.5


def test_time_grows_with_the_length_and_no_faster() -> None:
    def cost(n: int) -> float:
        text = " OR ".join(["abc:def"] * n)
        best = 1.0
        for _ in range(5):
            start = time.perf_counter()
            parse_policy(text)
            best = min(best, time.perf_counter() - start)
        return best

    assert cost(240) < 8 * 4 * cost(30)


def test_bytes_that_are_no_policy_are_a_format_error() -> None:
    for data in (b"", b"\xff", b"a AND", "cafe\u0301".encode(), b"a\x00"):
        with pytest.raises(FormatError):
            Policy.decode(data)


def test_an_attribute_is_one_attribute() -> None:
    for text in ("a b", "a AND b", "(a)", "", "a,", "2", "and", "clearance >= 3"):
        with pytest.raises(PolicyError):
            parse_attribute(text)
    assert parse_attribute(" role:analyst ") == Attribute("role", "analyst", is_number=False)


# --- numbers --------------------------------------------------------------------------------------

EDGES = [0, 1, 2, 3, 5, 7, 8, 255, 256, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]
SIGNS = {
    ">=": lambda a, b: a >= b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    "<": lambda a, b: a < b,
    "=": lambda a, b: a == b,
    "==": lambda a, b: a == b,
}


def check_comparison(sign: str, value: int, bound: int) -> None:
    holds = SIGNS[sign](value, bound)
    try:
        formula = compare("x", sign, bound)
    except PolicyError:
        assert (sign, bound) in {("<", 0), (">", 2**32 - 1)}
        return
    assert is_qualified(formula, key_labels(attributes(f"x:{value}"), 1)) is holds


@pytest.mark.parametrize("sign", SIGNS)
def test_a_comparison_at_the_edges_is_what_arithmetic_says(sign: str) -> None:
    for value in EDGES:
        for bound in EDGES:
            check_comparison(sign, value, bound)


@given(st.sampled_from(sorted(SIGNS)), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_a_comparison_is_what_arithmetic_says(sign: str, value: int, bound: int) -> None:
    check_comparison(sign, value, bound)


def test_text_is_not_compared() -> None:
    for held in ('x:"5"', "x:05", "x:five", "x", "y:5", "x:4294967296"):
        assert not opens("x >= 0", held)
        assert not opens("x <= 4294967295", held)
    assert opens("x >= 0", "x:0")


def test_two_numbers_of_one_name_are_refused_as_a_comparison_would_take_bits_of_both() -> None:
    # 1 is 01 and 2 is 10: together they would have the bits of 3.
    with pytest.raises(PolicyError, match="bits of both"):
        key_labels(attributes("x:1", "x:2"), 1)

    key_labels(attributes("x:1", "x:1"), 1)
    assert not opens("x >= 3", "x:1", 'x:"2"')
    assert opens("x:1 AND x:2", "x:1", 'x:"2"')


def test_no_attribute_that_can_be_typed_has_the_label_of_a_bit_or_of_an_epoch() -> None:
    labels = key_labels(attributes("x:3"), 7)
    own = parse_attribute("x:3").label

    assert len(labels) == 34
    for text in ('"\\\\x02"', "x:1", '"x":"\u0001"', "bit", 'epoch1:"7"', "\u0252"):
        try:
            typed = parse_attribute(text)
        except PolicyError:
            continue
        assert typed.label not in labels - {own}
        assert typed.label[0] == 1


def test_a_key_has_an_epoch_and_some_attributes() -> None:
    labels = key_labels(attributes("a", "b:2"), 2**64 - 1)

    assert epoch_of(labels) == 2**64 - 1
    assert require_labels(labels, "a key") == labels
    for epoch in (0, -1, 2**64):
        with pytest.raises(PolicyError):
            epoch_label(epoch)
    with pytest.raises(PolicyError):
        key_labels([], 1)
    many = attributes(*(f"a{i}" for i in range(ATTRIBUTES_MAX + 1)))
    key_labels(many[1:], 1)
    with pytest.raises(PolicyError):
        key_labels(many, 1)


@pytest.mark.parametrize(
    "label",
    [
        b"", b"\x00\x01a", b"\x04\x01a", b"\x01", b"\x01\x00", b"\x01\x02a", b"\x01\x81\x00a",
        b"\x01\x01\xff", b"\x01\x01a\xff", b"\x01\x03e\xcc\x81", b"\x01\x01ae\xcc\x81",
        b"\x01\x01a" + b"x" * 257, b"\x01\x81\x02" + b"x" * 257, b"\x02\x01a", b"\x02\x01a\x00",
        b"\x02\x01a\x20\x00", b"\x02\x01a\x00\x02", b"\x02\x01a\x00\x00\x00", b"\x02\x00\x00\x00",
        b"\x03", b"\x03" + bytes(8), b"\x03" + bytes(7), b"\x03" + b"\x01" * 9,
    ],
)  # fmt: skip
def test_bytes_that_are_no_label_are_refused(label: bytes) -> None:
    with pytest.raises(FormatError):
        require_labels({label, epoch_label(1), b"\x01\x01a"}, "a key")
    with pytest.raises(FormatError):
        show_label(label)


def test_a_label_is_shown_in_words() -> None:
    assert show_label(epoch_label(3)) == "epoch 3"
    assert show_label(parse_attribute("role:analyst").label) == "role:analyst"
    (bit,) = key_labels(attributes("x:1"), 1) & {b"\x02\x01x\x00\x01"}
    assert show_label(bit) == "bit 0 of x is 1"


# --- the parser on changed text -------------------------------------------------------------------

PIECES = [
    "(", ")", ",", " ", " AND ", " or ", " OF ", "2", "0", '"', "\\", ":", ">=", "<", "=", "a", "é",
    "e\u0301", "\u202e", "\u0000", "epoch", "not", "x:5", "\ud800", "年", "&",
]  # fmt: skip


def mutated(rng: random.Random, text: str) -> str:
    chars = list(text)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(chars) + 1)
        if rng.random() < 0.4 and chars:
            del chars[at - 1 : at - 1 + rng.randint(1, 3)]
        else:
            chars.insert(at, rng.choice(PIECES))
    return "".join(chars)


def test_changed_text_is_read_as_printed_or_refused_by_name() -> None:
    rng = random.Random("policies")
    n_read = 0
    places: list[tuple[int, int]] = []
    for _ in range(N_MUTATIONS):
        text = mutated(rng, rng.choice(POLICIES))
        try:
            policy = parse_policy(text)
        except PolicyError as error:
            places.append((error.position or 1, len(text) + 1))
            continue
        n_read += 1
        assert policy.data == text.encode()
        assert parse_policy(str(policy)).formula == policy.formula, ascii(text)
    assert all(1 <= position <= end for position, end in places)
    assert N_MUTATIONS / 50 < n_read < N_MUTATIONS


def test_no_character_is_dropped() -> None:
    # Whatever two texts with equal meaning differ in, it is blanks, parentheses, quotes or case.
    rng = random.Random("dropped")
    for _ in range(N_MUTATIONS // 4):
        text = rng.choice(POLICIES)
        at = rng.randrange(len(text))
        try:
            changed = parse_policy(text[:at] + text[at + 1 :])
        except PolicyError:
            continue
        if changed.formula == parse_policy(text).formula:
            assert text[at] in ' ()"\\', (text, at)


def test_threads_that_parse_at_once_get_the_policy_of_their_own_text() -> None:
    expected = {text: parse_policy(text).formula for text in POLICIES}
    wrong: list[str] = []

    def work(number: int) -> None:
        for i in range(300):
            text = POLICIES[(i * (number + 1) + number) % len(POLICIES)]
            if parse_policy(text).formula != expected[text]:
                wrong.append(text)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)

    assert wrong == []


def test_labels_of_a_key_do_not_depend_on_the_order_of_its_attributes() -> None:
    texts = ["a", "b:2", "c:x", "b:2"]
    sets = [key_labels(attributes(*texts[i:], *texts[:i]), 3) for i in range(4)]

    assert all(a == b for a, b in pairwise(sets))
