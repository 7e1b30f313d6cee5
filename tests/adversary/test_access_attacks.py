"""Attacks on attribute-based access: published ones and our own, each against what it must not get.

Where an attack works on a careless variant, the variant is here as well: the test shows that the
attack is real, and that what is built differently resists.
"""

from __future__ import annotations

import hashlib
from itertools import product
from typing import Any

import pytest

from mksearch.access.attributes import Attribute, Label, epoch_label, parse_attribute
from mksearch.access.authority import SharedAuthority, set_up_shared
from mksearch.access.cpabe import Header, decapsulate, encapsulate, generate_key, set_up
from mksearch.access.issuing import issue_partial
from mksearch.access.keys import AttributeKey, PartialKey, reveal_scalar
from mksearch.access.pairing import BLS12_381, G1, GT
from mksearch.access.policy import Policy, parse_policy
from mksearch.access.scalars import draw_exponent, lagrange
from mksearch.access.span_program import SpanProgram
from mksearch.crypto.randomness import SeededRandom
from mksearch.errors import NotQualified, PolicyError
from mksearch.params import Quorum

GROUP = BLS12_381
R = GROUP.order
EPOCH = 5


def seeded(label: str) -> SeededRandom:
    return SeededRandom(hashlib.sha256(label.encode()).digest())


def attributes(*texts: str) -> list[Attribute]:
    return [parse_attribute(text) for text in texts]


def label(text: str) -> Label:
    return parse_attribute(text).label


PARAMETERS, MASTER = set_up(seeded("set-up"))


def key_of(*texts: str, user: str = "user", epoch: int = EPOCH) -> AttributeKey:
    return generate_key(PARAMETERS, MASTER, attributes(*texts), epoch, seeded(user))


def program_of(policy: Policy) -> SpanProgram:
    return SpanProgram.of(policy.at_epoch(EPOCH), R)


def secret_of(text: str) -> tuple[Policy, Header, GT]:
    """Return a header and the element e(g1, g2)^(alpha s) that an attacker is after."""
    policy, source = parse_policy(text), seeded(text)
    header, _ = encapsulate(PARAMETERS, policy, EPOCH, b"", source)
    s = draw_exponent(R, seeded(text))
    assert header.c == GROUP.g2**s
    return policy, header, GROUP.pair([(GROUP.g1**s, PARAMETERS.public)])


def combined(
    key: AttributeKey, header: Header, labels: tuple[Label, ...], weights: dict[int, int]
) -> GT:
    """Do what opening does with any weights, and with any component where the key has none."""
    some = next(iter(key.components.values()))
    pairs = [(key.k, header.c)]
    for row, w in weights.items():
        c, d = header.rows[row]
        component = key.components.get(labels[row], some)
        pairs += [(c ** (-w % R), key.l), (component ** (-w % R), d)]
    return GROUP.pair(pairs)


# --- the span program -----------------------------------------------------------------------------


def test_a_leaf_of_an_and_does_not_hold_the_whole_secret() -> None:
    """The published break of several libraries: AND hands its own secret on to every child."""
    policy, header, secret = secret_of("a AND b")
    careless = encapsulate_careless(policy)
    key = key_of("a")
    labels = program_of(policy).row_labels
    a, epoch = labels.index(label("a")), labels.index(epoch_label(EPOCH))

    assert combined(key, careless[0], labels, {a: 1}) == careless[1]
    for weights in ({a: 1}, {epoch: 1}, {a: 2, epoch: R - 1}, {a: 1, epoch: 1}):
        assert combined(key, header, labels, weights) != secret
    with pytest.raises(NotQualified):
        decapsulate(PARAMETERS, key, policy, EPOCH, b"", header)


def encapsulate_careless(policy: Policy) -> tuple[Header, GT]:
    """Encapsulate with every row's share being the whole secret."""
    source = seeded("careless")
    s = draw_exponent(R, source)
    rows = []
    for name in program_of(policy).row_labels:
        r = draw_exponent(R, source)
        c = GROUP.multi_power([PARAMETERS.base, PARAMETERS.hash(name)], [s, R - r])
        rows.append((c, GROUP.g2**r))
    header = Header(GROUP.g2**s, tuple(rows))
    return header, GROUP.pair([(GROUP.g1**s, PARAMETERS.public)])


def test_the_difference_of_two_rows_of_one_attribute_opens_nothing() -> None:
    """Where rows of a repeated attribute share their randomness, it cancels in the difference."""
    policy, header, secret = secret_of("(a AND b) AND (a OR c)")
    program = program_of(policy)
    labels = program.row_labels
    one, two = (row for row, name in enumerate(labels) if name == label("a"))
    others = [row for row in range(len(labels)) if row not in {one, two}]
    key = key_of("b", "c")
    difference = {
        column: program.matrix[one].get(column, 0) - program.matrix[two].get(column, 0)
        for column in range(program.n_columns)
    }
    rows = [difference, *(program.matrix[row] for row in others)]
    solution = solve(rows, program.n_columns)
    assert solution is not None, "the relation that the attack needs is there"
    x, *rest = solution
    weights = {one: x, two: -x % R, **dict(zip(others, rest, strict=True))}

    assert combined(key, header, labels, weights) != secret
    shared = share_randomness(policy)
    assert combined_without(key, shared[0], labels, weights, {one, two}) == shared[1]


def share_randomness(policy: Policy) -> tuple[Header, GT]:
    """Encapsulate with one exponent for all rows of one attribute."""
    source, program = seeded("shared randomness"), program_of(policy)
    s = draw_exponent(R, source)
    exponents = {name: draw_exponent(R, source) for name in program.row_labels}
    rows = []
    for name, part in zip(program.row_labels, program.share(s, source), strict=True):
        r = exponents[name]
        c = GROUP.multi_power([PARAMETERS.base, PARAMETERS.hash(name)], [part, R - r])
        rows.append((c, GROUP.g2**r))
    return Header(GROUP.g2**s, tuple(rows)), GROUP.pair([(GROUP.g1**s, PARAMETERS.public)])


def combined_without(
    key: AttributeKey,
    header: Header,
    labels: tuple[Label, ...],
    weights: dict[int, int],
    unheld: set[int],
) -> GT:
    """Open with some rows without their component: right where their randomness cancels."""
    pairs = [(key.k, header.c)]
    for row, w in weights.items():
        c, d = header.rows[row]
        pairs.append((c ** (-w % R), key.l))
        if row not in unheld:
            pairs.append((key.components[labels[row]] ** (-w % R), d))
    return GROUP.pair(pairs)


def solve(rows: list[Any], n_columns: int) -> list[int] | None:
    """Return weights of rows that give (1, 0, .., 0), or None."""
    n = len(rows)
    table = [
        [row.get(column, 0) % R for row in rows] + [int(column == 0)] for column in range(n_columns)
    ]
    pivots: list[int] = []
    for unknown in range(n):
        at = next((i for i in range(len(pivots), n_columns) if table[i][unknown]), None)
        if at is None:
            continue
        i = len(pivots)
        table[i], table[at] = table[at], table[i]
        inverse = pow(table[i][unknown], -1, R)
        table[i] = [value * inverse % R for value in table[i]]
        for other in range(n_columns):
            if other != i and (factor := table[other][unknown]):
                table[other] = [
                    (a - factor * b) % R for a, b in zip(table[other], table[i], strict=True)
                ]
        pivots.append(unknown)
    if any(line[n] for line in table[len(pivots) :]):
        return None
    solution = [0] * n
    for i, unknown in enumerate(pivots):
        solution[unknown] = table[i][n]
    return solution


# --- attributes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ['"01"', '"0"', '"1"', '"00"', "a0", "g:01", '" "', '"or"'])
def test_no_name_of_an_attribute_opens_what_was_not_given(name: str) -> None:
    """One library hashed attributes and its own constants alike: holders of ``01`` opened all."""
    policy, header, secret = secret_of("a AND b")
    key = key_of(name)

    with pytest.raises(NotQualified):
        decapsulate(PARAMETERS, key, policy, EPOCH, b"", header)
    labels = program_of(policy).row_labels
    weights = program_of(policy).coefficients(labels)
    assert combined(key, header, labels, weights) != secret


def test_no_attribute_that_can_be_typed_stands_for_an_epoch_or_a_bit() -> None:
    made = []
    for name, value in product(["epoch", "EPOCH", "\u0003", "x", "\u0002x"], ["5", "\u0000\u0001"]):
        for text in (f"{name}:{value}", f'"{name}":"{value}"', f'"{name}:{value}"'):
            try:
                made.append(parse_attribute(text).label)
            except PolicyError:
                continue
    assert len(made) > 3
    assert {one[0] for one in made} == {1}
    assert epoch_label(5)[0] == 3


def test_a_user_cannot_raise_a_number_by_bits_of_another_key() -> None:
    policy, header, secret = secret_of("clearance >= 3")
    one, two = key_of("clearance:1", user="1"), key_of("clearance:2", user="2")
    mixed = AttributeKey(one.authority, one.k, one.l, {**two.components, **one.components})
    both = AttributeKey(one.authority, one.k, one.l, {**one.components, **two.components})

    labels = program_of(policy).row_labels
    for key in (mixed, both):
        weights = program_of(policy).coefficients(key.labels)
        assert combined(key, header, labels, weights) != secret
    for key in (one, two):
        with pytest.raises(NotQualified):
            decapsulate(PARAMETERS, key, policy, EPOCH, b"", header)


# --- users together -------------------------------------------------------------------------------


def test_two_users_with_half_of_the_attributes_each_open_nothing_together() -> None:
    policy, header, secret = secret_of("a AND b")
    one, two = key_of("a", user="1"), key_of("b", user="2")
    labels = program_of(policy).row_labels
    weights = program_of(policy).coefficients({label("a"), label("b"), epoch_label(EPOCH)})

    def component(name: Label, owner: AttributeKey, other: AttributeKey) -> G1:
        return owner.components.get(name) or other.components[name]

    tried = set()
    for main, other in ((one, two), (two, one)):
        for k, l_ in product((one.k, two.k, one.k * two.k), (one.l, two.l, one.l * two.l)):
            names = {name: component(name, main, other) for name in labels}
            key = AttributeKey(main.authority, k, l_, names)
            tried.add(combined(key, header, labels, weights).encode())
    assert len(tried) > 10
    assert secret.encode() not in tried


def test_a_key_of_an_old_epoch_and_one_of_the_new_epoch_do_not_make_one() -> None:
    policy, header, secret = secret_of("a")
    old, new = key_of("a", epoch=EPOCH - 1, user="1"), key_of("b", user="2")
    labels = program_of(policy).row_labels
    weights = program_of(policy).coefficients({label("a"), epoch_label(EPOCH)})
    names = {label("a"): old.components[label("a")]}
    names[epoch_label(EPOCH)] = new.components[epoch_label(EPOCH)]
    for k, l_ in product((old.k, new.k), (old.l, new.l)):
        assert combined(AttributeKey(b"", k, l_, names), header, labels, weights) != secret


# --- the shared authority -------------------------------------------------------------------------


SHARED: SharedAuthority = set_up_shared(Quorum(), seeded("shared"))


def part(server: int, *texts: str, source: SeededRandom | None = None) -> PartialKey:
    share = SHARED.shares[server - 1]
    random = source or seeded(f"{server} {texts}")
    return issue_partial(SHARED.parameters, share, attributes(*texts), EPOCH, random)


def mixed_key(parts: list[PartialKey]) -> AttributeKey:
    """Combine parts of different users: what all of them hold."""
    factors = lagrange([one.server for one in parts], R)
    keys = [one.key for one in parts]
    names = frozenset.intersection(*(key.labels for key in keys))
    return AttributeKey(
        SHARED.parameters.authority,
        GROUP.multi_power([key.k for key in keys], factors),
        GROUP.multi_power([key.l for key in keys], factors),
        {x: GROUP.multi_power([key.components[x] for key in keys], factors) for x in names},
    )


def test_parts_of_two_users_make_at_most_a_key_for_what_both_hold() -> None:
    key = mixed_key([part(1, "a", "both"), part(2, "b", "both")])
    opens: dict[str, bool] = {}
    for text in ("both", "a", "b", "a AND b", "a OR b", "both AND a"):
        policy = parse_policy(text)
        header, expected = encapsulate(
            SHARED.parameters, policy, EPOCH, b"", seeded(f"mixed {text}")
        )
        try:
            found = decapsulate(SHARED.parameters, key, policy, EPOCH, b"", header)
        except NotQualified:
            opens[text] = False
        else:
            opens[text] = found.reveal() == expected.reveal()

    assert [text for text, is_open in opens.items() if is_open] == ["both"]


def test_a_component_that_one_of_two_users_lacks_cannot_be_put_in() -> None:
    one, two = part(1, "a", "both"), part(2, "b", "both")
    key = mixed_key([one, two])
    policy = parse_policy("a AND both")
    header, expected = encapsulate(SHARED.parameters, policy, EPOCH, b"", seeded("put in"))
    factor = lagrange([1, 2], R)[0]
    mine = one.key.components[label("a")]
    for component in (mine, mine**factor, mine * two.key.components[label("b")]):
        names = {**key.components, label("a"): component}
        forged = AttributeKey(key.authority, key.k, key.l, names)
        found = decapsulate(SHARED.parameters, forged, policy, EPOCH, b"", header)
        assert found.reveal() != expected.reveal()


def test_exponents_derived_from_what_servers_share_give_everything_to_one_bad_server() -> None:
    """Why step 11.5.3 forbids it: the careless variant falls to server 1 and any one user."""
    request = b"server 2, the user's request"
    derived = seeded("a key that all servers hold" + request.hex())
    honest = part(2, "harmless", source=derived)

    # Server 1 derives the same exponent and divides it out: g1^alpha_2.
    t = draw_exponent(R, seeded("a key that all servers hold" + request.hex()))
    naked = honest.key.k * (SHARED.parameters.base**t).inverse()
    own = GROUP.g1 ** reveal_scalar(SHARED.shares[0].secret)
    master = GROUP.multi_power([own, naked], lagrange([1, 2], R))
    policy = parse_policy("role:root")
    header, _ = encapsulate(SHARED.parameters, policy, EPOCH, b"", seeded("root"))
    s = draw_exponent(R, seeded("root"))
    stolen = GROUP.pair([(master, header.c)])
    assert stolen == GROUP.pair([(GROUP.g1**s, SHARED.parameters.public)])

    # Against exponents of its own, server 1's guess leaves g1^alpha_2 hidden.
    fresh = part(2, "harmless", source=seeded("server 2 alone"))
    naked = fresh.key.k * (SHARED.parameters.base**t).inverse()
    master = GROUP.multi_power([own, naked], lagrange([1, 2], R))
    assert GROUP.pair([(master, header.c)]) != stolen


def test_one_server_with_its_share_opens_nothing() -> None:
    policy = parse_policy("a")
    header, expected = encapsulate(SHARED.parameters, policy, EPOCH, b"", seeded("alone"))
    for server in (1, 2, 3):
        key = part(server, "a").key
        found = decapsulate(SHARED.parameters, key, policy, EPOCH, b"", header)
        assert found.reveal() != expected.reveal()
