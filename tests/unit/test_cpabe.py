"""Keys open exactly what their attributes satisfy; an authority shared over servers makes them."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import pytest

from mksearch.access.attributes import Attribute, Label, epoch_label, parse_attribute
from mksearch.access.authority import (
    SharedAuthority,
    VerifiedPartial,
    combine,
    deal,
    set_up_shared,
    verify_partial,
)
from mksearch.access.cpabe import Header, decapsulate, encapsulate, generate_key, set_up
from mksearch.access.issuing import issue_partial
from mksearch.access.keys import (
    AttributeKey,
    AuthorityShare,
    PartialKey,
    PublicParameters,
    VerificationKeys,
    reveal_scalar,
    seal_scalar,
)
from mksearch.access.pairing import BLS12_381
from mksearch.access.policy import Policy, parse_policy, qualifies
from mksearch.access.scalars import evaluate, lagrange
from mksearch.crypto.randomness import RandomSource, SeededRandom, SystemRandom
from mksearch.crypto.secret import SecretKey
from mksearch.errors import (
    FormatError,
    MksearchError,
    NotEnoughAnswers,
    NotQualified,
    ParameterError,
    PartialKeyRefused,
    PolicyError,
    UnsupportedVersion,
    VerificationError,
)
from mksearch.params import Quorum

N_MUTATIONS = int(os.environ.get("MKSEARCH_MUTATIONS", "2000"))
GROUP = BLS12_381
EPOCH = 3
CONTEXT = b"collection 16 b."


def seeded(label: str) -> SeededRandom:
    return SeededRandom(label.encode().ljust(32, b".")[:32])


def attributes(*texts: str) -> list[Attribute]:
    return [parse_attribute(text) for text in texts]


PARAMETERS, MASTER = set_up(seeded("set-up"))


def key_of(*texts: str, epoch: int = EPOCH, label: str = "user") -> AttributeKey:
    return generate_key(PARAMETERS, MASTER, attributes(*texts), epoch, seeded(label))


def sealed(text: str, epoch: int = EPOCH) -> tuple[Policy, Header, bytes]:
    policy = parse_policy(text)
    header, key = encapsulate(PARAMETERS, policy, epoch, CONTEXT, seeded(text))
    return policy, header, key.reveal()


def opened(key: AttributeKey, policy: Policy, header: Header, epoch: int = EPOCH) -> bytes:
    return decapsulate(PARAMETERS, key, policy, epoch, CONTEXT, header).reveal()


# --- opening --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "(a AND b) OR c",
        "2 OF (a, b, c)",
        "(a OR b) AND (a OR c)",
        "2 OF (a, a AND b, c)",
        "3 OF (a, b, a AND c, b OR c)",
    ],
)
def test_every_set_of_attributes_opens_exactly_what_it_satisfies(text: str) -> None:
    policy, header, key = sealed(text)
    for n in (1, 2, 3):
        for held in combinations("abc", n):
            user = key_of(*held)
            if qualifies(policy, attributes(*held)):
                assert opened(user, policy, header) == key
            else:
                with pytest.raises(NotQualified):
                    opened(user, policy, header)


@pytest.mark.parametrize("number", [0, 2, 3, 4, 2**32 - 1])
def test_numbers_open_comparisons(number: int) -> None:
    policy, header, key = sealed("clearance >= 3 AND clearance < 4294967295")
    user = key_of(f"clearance:{number}")
    if 3 <= number < 2**32 - 1:
        assert opened(user, policy, header) == key
    else:
        with pytest.raises(NotQualified):
            opened(user, policy, header)


def test_a_key_of_another_epoch_opens_nothing_and_the_refusal_says_so() -> None:
    policy, header, key = sealed("a")

    assert opened(key_of("a"), policy, header) == key
    with pytest.raises(NotQualified, match="epoch 2, and this is of epoch 3") as caught:
        opened(key_of("a", epoch=2), policy, header)
    assert caught.value.exit_code == 4
    assert opened(key_of("a", epoch=2), policy, header, epoch=2) != key


def test_two_keys_of_one_user_open_alike_and_are_different() -> None:
    policy, header, key = sealed("a AND b")
    one, two = key_of("a", "b"), key_of("a", "b", label="again")

    assert one.encode() != two.encode()
    assert opened(one, policy, header) == opened(two, policy, header) == key


def test_every_encapsulation_has_a_key_of_its_own() -> None:
    policy = parse_policy("a OR b")
    made = [encapsulate(PARAMETERS, policy, 1, CONTEXT, SystemRandom()) for _ in range(3)]

    assert len({key.reveal() for _, key in made}) == 3
    assert len({header.encode() for header, _ in made}) == 3


def test_the_key_depends_on_policy_bytes_context_epoch_and_header() -> None:
    policy, header, key = sealed("a  AND b")
    user = key_of("a", "b")
    retyped = parse_policy("a AND b")
    other = Header(header.c, ((header.rows[0][0] * GROUP.g1, header.rows[0][1]), *header.rows[1:]))

    assert opened(user, policy, header) == key
    assert opened(user, retyped, header) != key
    assert decapsulate(PARAMETERS, user, policy, EPOCH, b"x", header).reveal() != key
    assert opened(user, policy, other) != key


def test_the_key_depends_on_rows_that_are_not_used_to_open() -> None:
    policy, header, key = sealed("a OR b")
    a, (c, d), epoch = header.rows
    other = Header(header.c, (a, (c * GROUP.g1, d), epoch))

    assert opened(key_of("a"), policy, header) == key
    assert opened(key_of("a"), policy, other) != key


def test_two_authorities_hash_one_attribute_to_two_points() -> None:
    other, _ = set_up(seeded("another"))
    points = {p.hash(x) for p in (PARAMETERS, other) for x in (label_of("a"), label_of("b"))}

    assert PARAMETERS.authority != other.authority
    assert len(points) == 4


def test_a_header_of_another_policy_is_refused() -> None:
    policy, _, _ = sealed("a AND b")
    _, header, _ = sealed("a AND b AND c")

    with pytest.raises(FormatError, match="4 rows"):
        opened(key_of("a", "b"), policy, header)


def test_a_key_of_another_authority_is_refused() -> None:
    policy, header, _ = sealed("a")
    parameters, master = set_up(seeded("another"))
    key = generate_key(parameters, master, attributes("a"), EPOCH, seeded("user"))

    with pytest.raises(FormatError, match="another authority"):
        opened(key, policy, header)
    # Changing its name does not help: attributes are hashed with the authority's.
    assert opened(replace(key, authority=PARAMETERS.authority), policy, header) != sealed("a")[2]


def test_sizes_are_those_of_the_protocol() -> None:
    _, header, _ = sealed(" AND ".join(f"a{i}" for i in range(10)))
    labels = [label for label in key_of("abc").components if label != epoch_label(EPOCH)]

    assert len(header.encode()) == 12 + 96 + 11 * 144
    assert len(PARAMETERS.encode()) == 156
    assert len(key_of("abc").encode()) == 12 + 32 + 48 + 96 + 2 + (2 + len(labels[0]) + 48) + 59


# --- secrets --------------------------------------------------------------------------------------


def test_secrets_do_not_show_themselves_and_are_not_pickled() -> None:
    shared = authority()
    partial = partial_of(1)
    secrets: list[Any] = [MASTER, key_of("a"), shared.shares[0], partial, shared]
    digits = [f"{reveal_scalar(share.secret):x}" for share in shared.shares]
    for secret in secrets:
        shown = repr(secret)
        assert not any(number in shown for number in digits)
        assert key_of("a").k.encode().hex()[2:] not in shown
        if not isinstance(secret, SharedAuthority):
            with pytest.raises(TypeError):
                pickle.dumps(secret)


# --- the shared authority -------------------------------------------------------------------------


QUORUM = Quorum(5, 2)
USER = ("role:analyst", "dept:finance")


@cache
def authority(quorum: Quorum = QUORUM, label: str = "shared") -> SharedAuthority:
    return set_up_shared(quorum, seeded(label))


def partial_of(server: int, *texts: str, random: RandomSource | None = None) -> PartialKey:
    shared = authority()
    share = shared.shares[server - 1]
    source = random or seeded(f"server {server} {texts}")
    return issue_partial(shared.parameters, share, attributes(*(texts or USER)), EPOCH, source)


def verified(partial: PartialKey, server: int | None = None, *texts: str) -> VerifiedPartial:
    shared = authority()
    return verify_partial(
        shared.parameters,
        shared.verification,
        partial,
        server=server or partial.server,
        attributes=attributes(*(texts or USER)),
        epoch=EPOCH,
        random=seeded("weights"),
    )


@cache
def shared_header() -> tuple[Policy, Header, bytes]:
    policy = parse_policy("role:analyst AND dept:finance")
    made = encapsulate(authority().parameters, policy, EPOCH, CONTEXT, seeded("header"))
    return policy, made[0], made[1].reveal()


def open_shared(key: AttributeKey) -> bytes:
    policy, header, _ = shared_header()
    return decapsulate(authority().parameters, key, policy, EPOCH, CONTEXT, header).reveal()


@pytest.mark.parametrize("quorum", [Quorum(3, 1), Quorum(5, 2), Quorum(7, 3), Quorum(4, 1)])
def test_published_keys_stand_for_the_secret_and_every_share_for_its_key(quorum: Quorum) -> None:
    shared = authority(quorum, f"dealt {quorum}")
    shared.verification.require_consistent(shared.parameters)
    for share in shared.shares:
        share.require_matches(shared.parameters, shared.verification)
    assert len({share.secret.reveal() for share in shared.shares}) == quorum.n_servers


def test_every_subset_of_t_plus_1_servers_makes_a_key_that_opens() -> None:
    parts = [verified(partial_of(server)) for server in range(1, 6)]
    _, _, expected = shared_header()
    shared = authority()
    for chosen in combinations(parts, 3):
        key = combine(shared.parameters, shared.verification, chosen)
        assert open_shared(key) == expected


def test_no_subset_of_t_servers_makes_a_key_that_opens() -> None:
    shared = authority()
    _, _, expected = shared_header()
    for chosen in combinations(range(1, 6), 2):
        parts = [partial_of(server) for server in chosen]
        with pytest.raises(NotEnoughAnswers) as caught:
            combine(shared.parameters, shared.verification, [verified(part) for part in parts])
        assert (caught.value.have, caught.value.need) == (2, 3)
        # Interpolating as if the degree were lower opens nothing either.
        assert open_shared(interpolated(parts)) != expected


def interpolated(parts: list[PartialKey], labels: frozenset[Label] | None = None) -> AttributeKey:
    """Combine parts without any check, as an attacker would."""
    factors = lagrange([part.server for part in parts], GROUP.order)
    keys = [part.key for part in parts]
    names = labels if labels is not None else keys[0].labels
    return AttributeKey(
        keys[0].authority,
        GROUP.multi_power([key.k for key in keys], factors),
        GROUP.multi_power([key.l for key in keys], factors),
        {x: GROUP.multi_power([key.components[x] for key in keys], factors) for x in names},
    )


def test_t_shares_leave_every_secret_possible() -> None:
    # For each candidate there is exactly one polynomial through the t shares seen.
    shared = authority()
    seen = [(s.server, reveal_scalar(s.secret)) for s in shared.shares[:2]]
    for candidate in (1, 12345, GROUP.order - 1):
        points = [0, *(server for server, _ in seen)]
        values = [candidate, *(value for _, value in seen)]
        at_3 = sum(
            f * v for f, v in zip(lagrange(points, GROUP.order, at=3), values, strict=True)
        )  # fmt: skip
        points[0], values[0] = 3, at_3 % GROUP.order
        back = sum(f * v for f, v in zip(lagrange(points, GROUP.order), values, strict=True))
        assert back % GROUP.order == candidate


def test_a_combined_key_is_a_key_like_any_other() -> None:
    shared = authority()
    parts = [verified(partial_of(server)) for server in (2, 4, 5)]
    key = combine(shared.parameters, shared.verification, parts)

    assert AttributeKey.decode(key.encode()).encode() == key.encode()
    assert key.epoch == EPOCH
    assert key.labels == parts[0].partial.key.labels


def test_a_part_is_made_with_a_new_exponent_every_time() -> None:
    made = [partial_of(1, random=SystemRandom()) for _ in range(5)]
    assert len({part.key.l.encode() for part in made}) == 5


# --- parts that are wrong -------------------------------------------------------------------------

Change = Callable[[PartialKey], PartialKey]


def with_key(**changes: Any) -> Change:
    return lambda part: replace(part, key=replace(part.key, **changes))


def with_component(change: Callable[[Any], Any], label: str) -> Change:
    def changed(part: PartialKey) -> PartialKey:
        name = parse_attribute(label).label
        components = dict(part.key.components)
        components[name] = change(components[name])
        return replace(part, key=replace(part.key, components=components))

    return changed


def without(label: str) -> Change:
    def changed(part: PartialKey) -> PartialKey:
        components = dict(part.key.components)
        del components[parse_attribute(label).label]
        return replace(part, key=replace(part.key, components=components))

    return changed


def wrong_share(part: PartialKey) -> PartialKey:
    shared = authority()
    share = replace(shared.shares[part.server - 1], secret=seal_scalar(12345))
    return issue_partial(shared.parameters, share, attributes(*USER), EPOCH, seeded("wrong"))


def zero(part: PartialKey) -> PartialKey:
    """Return a part with t_j = 0: it satisfies every equation, and combined it opens for anyone."""
    share = authority().shares[part.server - 1]
    one = GROUP.g1**0
    components = dict.fromkeys(part.key.components, one)
    k = GROUP.g1 ** reveal_scalar(share.secret)
    return replace(part, key=AttributeKey(part.key.authority, k, GROUP.g2**0, components))


BAD_PARTS: dict[str, tuple[Change, str]] = {
    "another share": (wrong_share, "not made with the share"),
    "K changed": (
        lambda part: with_key(k=part.key.k * GROUP.g1)(part),
        "not made with the share",
    ),
    "L changed": (
        lambda part: with_key(l=part.key.l * GROUP.g2)(part),
        "not made with the share",
    ),
    "a component changed": (
        with_component(lambda point: point * GROUP.g1, "dept:finance"),
        "wrong component for dept:finance",
    ),
    "a component of another attribute": (
        with_component(lambda _: partial_of(2, "x").key.components[label_of("x")], "role:analyst"),
        "wrong component for role:analyst",
    ),
    "a component missing": (without("role:analyst"), "lacks role:analyst"),
    "another user's part": (
        lambda part: partial_of(part.server, "role:analyst", "dept:sales"),
        "lacks dept:finance",
    ),
    "more attributes than asked for": (
        lambda part: partial_of(part.server, *USER, "role:root"),
        "has, unasked, role:root",
    ),
    "another server's part": (lambda _: partial_of(3), "says that it is of server 3"),
    "another server's part renamed": (
        lambda part: replace(partial_of(3), server=part.server),
        "not made with the share",
    ),
    "another generation": (lambda part: replace(part, generation=2), "generation 2"),
    "another authority": (with_key(authority=bytes(32)), "another authority"),
    "the identity": (zero, "holds the identity"),
    "K the identity": (with_key(k=GROUP.g1**0), "holds the identity"),
}


def label_of(text: str) -> Label:
    return parse_attribute(text).label


@pytest.mark.parametrize("name", BAD_PARTS)
def test_a_wrong_part_is_refused_and_its_server_named(name: str) -> None:
    change, message = BAD_PARTS[name]
    verified(partial_of(2))

    with pytest.raises(PartialKeyRefused, match=message) as caught:
        verified(change(partial_of(2)), 2)
    assert caught.value.server == 2
    assert caught.value.exit_code == 3


def test_a_part_of_exponent_zero_would_pass_every_equation() -> None:
    # Why the identity is refused by name: no equation sees it.
    shared = authority()
    part = zero(partial_of(2)).key
    left = GROUP.pair([(part.k, GROUP.g2)])
    right = [(GROUP.g1, shared.verification.of(2)), (shared.parameters.base, part.l)]
    assert left == GROUP.pair(right)
    for label, component in part.components.items():
        assert GROUP.pair([(component, GROUP.g2)]) == GROUP.pair(
            [(shared.parameters.hash(label), part.l)]
        )


def test_two_errors_that_cancel_without_weights_are_seen() -> None:
    part = partial_of(2)
    a, b = (label_of(text) for text in USER)
    components = dict(part.key.components)
    components[a] *= GROUP.g1
    components[b] *= GROUP.g1.inverse()

    with pytest.raises(PartialKeyRefused):
        verified(replace(part, key=replace(part.key, components=components)))


def test_parts_that_do_not_belong_together_are_not_combined() -> None:
    shared = authority()
    a, b, c = (verified(partial_of(server)) for server in (1, 2, 3))
    other = verified(partial_of(3, "role:analyst"), 3, "role:analyst")
    old = VerifiedPartial(replace(c.partial, generation=2))
    for parts in ([a, b, other], [a, b, old], [a, b, b], [old, old, old]):
        with pytest.raises(ParameterError):
            combine(shared.parameters, shared.verification, parts)
    with pytest.raises(NotEnoughAnswers):
        combine(shared.parameters, shared.verification, [])


def test_verification_keys_that_do_not_stand_for_the_secret_are_refused() -> None:
    shared = authority()
    keys = shared.verification
    for server in range(1, 6):
        changed = list(keys.keys)
        changed[server - 1] *= GROUP.g2
        with pytest.raises(VerificationError):
            replace(keys, keys=tuple(changed)).require_consistent(shared.parameters)
    other = authority(QUORUM, "other")
    with pytest.raises(VerificationError):
        other.verification.require_consistent(shared.parameters)
    with pytest.raises(VerificationError):
        replace(other.verification, authority=shared.parameters.authority).require_consistent(
            shared.parameters
        )
    # A dealing of higher degree is one that t + 1 servers cannot use.
    steep = [1, 2, 3, 4]
    steep_keys = [GROUP.g2 ** evaluate(steep, j, GROUP.order) for j in range(1, 6)]
    parameters = PublicParameters(GROUP.g1**5, GROUP.g2 ** steep[0])
    with pytest.raises(VerificationError):
        VerificationKeys(parameters.authority, 1, QUORUM, tuple(steep_keys)).require_consistent(
            parameters
        )


def test_a_server_refuses_a_share_that_is_not_its_own() -> None:
    shared = authority()
    one, two = shared.shares[:2]
    shares = [
        replace(one, secret=two.secret),
        replace(one, server=2),
        replace(one, generation=2),
        replace(one, authority=bytes(32)),
    ]
    for share in shares:
        with pytest.raises(VerificationError):
            share.require_matches(shared.parameters, shared.verification)
    with pytest.raises(ParameterError):
        issue_partial(PARAMETERS, one, attributes("a"), EPOCH, seeded("x"))


def test_a_new_dealing_of_the_same_secret_makes_keys_that_open_what_the_old_ones_opened() -> None:
    parameters, master = set_up(seeded("redealt"))
    policy = parse_policy("a")
    header, key = encapsulate(parameters, policy, 1, b"", seeded("header"))
    opened_keys = []
    for generation in (1, 2):
        shares, keys = deal(parameters, master, Quorum(), generation, seeded(f"g{generation}"))
        keys.require_consistent(parameters)
        parts = []
        for share in shares[:2]:
            part = issue_partial(parameters, share, attributes("a"), 1, SystemRandom())
            asked: Any = {"server": share.server, "attributes": attributes("a"), "epoch": 1}
            parts.append(verify_partial(parameters, keys, part, random=SystemRandom(), **asked))
        user = combine(parameters, keys, parts)
        opened_keys.append(decapsulate(parameters, user, policy, 1, b"", header).reveal())
    assert opened_keys == [key.reveal()] * 2
    with pytest.raises(ParameterError):
        deal(parameters, master, Quorum(), 0, seeded("x"))


def test_a_key_without_attributes_or_of_no_epoch_is_not_made() -> None:
    with pytest.raises(PolicyError):
        key_of()
    with pytest.raises(PolicyError):
        key_of("a", epoch=0)
    with pytest.raises(PolicyError):
        encapsulate(PARAMETERS, parse_policy("a"), 0, b"", seeded("x"))


# --- files ----------------------------------------------------------------------------------------


@cache
def files() -> dict[str, tuple[bytes, Callable[[bytes], Any]]]:
    shared = authority(Quorum(), "files")
    part = issue_partial(shared.parameters, shared.shares[1], attributes("a"), 7, seeded("p"))
    _, header, _ = sealed("a")
    return {
        "parameters": (shared.parameters.encode(), PublicParameters.decode),
        "verification keys": (shared.verification.encode(), VerificationKeys.decode),
        "share": (shared.shares[1].encode(), AuthorityShare.decode),
        "partial key": (part.encode(), PartialKey.decode),
        "key": (key_of("a").encode(), AttributeKey.decode),
        "header": (header.encode(), Header.decode),
    }


NAMES = ["parameters", "verification keys", "share", "partial key", "key", "header"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_read_as_it_was_written(name: str) -> None:
    data, decode = files()[name]
    assert decode(data).encode() == data


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_cut_or_longer_is_refused(name: str) -> None:
    data, decode = files()[name]
    for size in {0, 7, 8, 11, 12, 13, 44, 60, len(data) // 2, len(data) - 48, len(data) - 1}:
        with pytest.raises(FormatError):
            decode(data[:size])
    for more in (b"\0", data[-48:], data[-144:]):
        if name == "header" and len(more) == 144:
            continue
        with pytest.raises(FormatError):
            decode(data + more)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_another_kind_or_format_is_refused(name: str) -> None:
    data, decode = files()[name]
    for other in set(NAMES) - {name}:
        with pytest.raises(FormatError):
            decode(files()[other][0])
    with pytest.raises(UnsupportedVersion):
        decode(data[:11] + b"\x02" + data[12:])


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_file_is_refused_or_read_as_it_stands(name: str) -> None:
    data, decode = files()[name]
    rng = random.Random(name)
    for _ in range(N_MUTATIONS):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(changed))
            kind = rng.randrange(4)
            if kind == 0:
                del changed[at]
            elif kind == 1:
                changed.insert(at, rng.randrange(256))
            else:
                changed[at] = rng.choice([0, 1, 0x7F, 0x80, 0xC0, 0xFF, rng.randrange(256)])
        try:
            read = decode(bytes(changed))
        except MksearchError as error:
            if not isinstance(error, FormatError):
                raise
            continue
        assert read.encode() == changed


def test_no_point_that_is_read_is_the_identity() -> None:
    for name in NAMES:
        data, decode = files()[name]
        for point in (b"\xc0" + bytes(47), b"\xc0" + bytes(95)):
            for at in range(12, len(data) - len(point) + 1):
                changed = data[:at] + point + data[at + len(point) :]
                try:
                    read = decode(changed)
                except FormatError:
                    continue
                assert name == "share"
                assert read.encode() == changed


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("verification keys", 44, bytes(8)),
        ("verification keys", 52, b"\x00"),
        ("verification keys", 52, b"\x02"),
        ("verification keys", 53, b"\x02"),
        ("verification keys", 53, b"\x04"),
        ("share", 44, bytes(8)),
        ("share", 52, b"\x00"),
        ("share", 53, bytes(32)),
        ("share", 53, GROUP.order.to_bytes(32, "big")),
        ("share", 53, b"\xff" * 32),
        ("partial key", 44, bytes(8)),
        ("partial key", 52, b"\x00"),
        ("key", 188, b"\x00\x00"),
        ("key", 188, b"\x00\x01"),
        ("key", 188, b"\x00\x03"),
    ],
)
def test_numbers_out_of_range_are_refused(name: str, at: int, value: bytes) -> None:
    data, decode = files()[name]
    with pytest.raises(FormatError):
        decode(data[:at] + value + data[at + len(value) :])


def test_labels_of_a_key_ascend_and_hold_one_epoch() -> None:
    key = key_of("a", "b")
    points = key.components
    a, b = label_of("a"), label_of("b")
    epoch, later = epoch_label(EPOCH), epoch_label(4)
    entry = {x: len(x).to_bytes(2, "big") + x + points[a].encode() for x in (a, b, epoch, later)}
    head = key.encode()[:188]

    def file(*labels: Label) -> bytes:
        return head + len(labels).to_bytes(2, "big") + b"".join(entry[x] for x in labels)

    AttributeKey.decode(file(a, b, epoch))
    for labels in ((b, a, epoch), (a, a, epoch), (epoch, a), (a, b), (epoch,), (a, epoch, later)):
        with pytest.raises(FormatError):
            AttributeKey.decode(file(*labels))


def test_a_header_has_1_to_257_rows() -> None:
    _, header, _ = sealed("a")
    Header.decode(Header(header.c, header.rows[:1]).encode())
    wide = Header(header.c, header.rows[:1] * 257).encode()
    assert len(Header.decode(wide).rows) == 257
    for data in (wide + wide[-144:], wide[:108]):
        with pytest.raises(FormatError):
            Header.decode(data)


def test_a_key_read_from_a_secret_holds_32_bytes() -> None:
    assert isinstance(seal_scalar(7), SecretKey)
    assert reveal_scalar(seal_scalar(GROUP.order - 1)) == GROUP.order - 1
