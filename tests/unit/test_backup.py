"""Backups of an owner: who is qualified recovers the secrets, nobody else learns anything."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from itertools import combinations

import cbor2
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from mksearch.access.backup import make_backup, recover_content
from mksearch.access.backup_share import (
    OpenedShare,
    SealedShare,
    backup_names,
    name_label,
    parse_backup_policy,
)
from mksearch.access.span_program import SpanProgram, spans_target
from mksearch.crypto import labels
from mksearch.crypto.identity import Identity
from mksearch.crypto.randomness import SeededRandom
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.errors import (
    FormatError,
    MksearchError,
    NotQualified,
    ParameterError,
    PolicyError,
    RecordRefused,
    UnsupportedVersion,
    VerificationError,
)

R = 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001
NAMES = ("ada", "bob", "cyd", "dan")
PEOPLE = {name: Identity(SecretKey(bytes([n]) * 32)) for n, name in enumerate(NAMES, 1)}
OWNER = SigningKey(SecretKey(b"o" * 32))
COLLECTION = b"c" * 16
CONTENT = b"what nobody else is to know" * 3
TWO_OF_THREE = "2 OF (key:ada, key:bob, key:cyd)"
POLICIES = (
    *("key:ada", "key:ada AND key:bob", "key:ada OR key:bob", TWO_OF_THREE),
    *("key:ada AND (key:bob OR key:cyd)", "3 OF (key:ada, key:bob, key:cyd, key:dan)"),
    "2 OF (key:ada AND key:bob, key:cyd, key:dan)",
    # A name may stand in several places; each row counts for itself.
    "2 OF (key:ada, key:ada AND key:bob, key:cyd OR key:ada)",
    "(key:ada AND key:bob) OR (key:bob AND key:cyd) OR (key:cyd AND key:ada)",
)


def backup(
    policy: str, *, seed: bytes = bytes(32), signing: SigningKey = OWNER, content: bytes = CONTENT
) -> dict[str, SealedShare]:
    names = backup_names(policy)
    shares = make_backup(
        content,
        policy,
        {name: PEOPLE[name].public for name in names},
        collection=COLLECTION,
        signing=signing,
        random=SeededRandom(seed),
    )
    assert tuple(share.body.name for share in shares) == names
    return dict(zip(names, shares, strict=True))


def opened(shares: dict[str, SealedShare], names: Iterable[str]) -> list[OpenedShare]:
    return [shares[name].open(PEOPLE[name]) for name in names]


def truth(policy: str, held: set[str]) -> bool:
    """Say by Python's own reading whether people satisfy a policy."""
    text = policy.replace(" AND ", " and ").replace(" OR ", " or ")
    for k in (2, 3):
        text = text.replace(f"{k} OF (", f"at_least({k}, ")
    for name in NAMES:
        text = text.replace(f"key:{name}", str(name in held))
    return bool(eval(text, {"at_least": lambda k, *parts: sum(parts) >= k}))


# --- who recovers --------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_exactly_the_qualified_sets_recover_the_content(policy: str) -> None:
    shares = backup(policy)
    program = SpanProgram.of(parse_backup_policy(policy).formula, R)
    counts = [0, 0]
    for size in range(1, len(shares) + 1):
        for held in combinations(shares, size):
            wanted = truth(policy, set(held))
            counts[wanted] += 1
            held_labels = {name_label(name) for name in held}
            pairs = zip(program.matrix, program.row_labels, strict=True)
            rows = [row for row, label in pairs if label in held_labels]
            assert spans_target(rows, program.n_columns, R) is wanted, held
            if wanted:
                assert recover_content(opened(shares, held)) == CONTENT
                assert recover_content(opened(shares, reversed(held))) == CONTENT
            else:
                with pytest.raises(NotQualified, match="do not satisfy"):
                    recover_content(opened(shares, held))
    assert counts[True]
    # Where one person suffices there may be no set that does not.
    assert counts[False] or policy in ("key:ada", "key:ada OR key:bob")


@pytest.mark.parametrize("policy", POLICIES)
def test_shares_of_people_who_are_not_qualified_fit_every_key(policy: str) -> None:
    """Whatever the scalar is, some dealing of it gives these people the shares that they have."""
    program = SpanProgram.of(parse_backup_policy(policy).formula, R)
    names = backup_names(policy)
    sets = [held for size in range(len(names)) for held in combinations(names, size)]
    for held in (held for held in sets if not truth(policy, set(held))):
        held_labels = {name_label(name) for name in held}
        pairs = zip(program.matrix, program.row_labels, strict=True)
        rows = [row for row, label in pairs if label in held_labels]
        kernel = _kernel_with_first_one(rows, program.n_columns)

        # Added to the dealer's vector it changes the scalar by 1, and no share that is held.
        assert kernel[0] == 1
        assert all(sum(e * kernel[c] for c, e in row.items()) % R == 0 for row in rows)


def _kernel_with_first_one(rows: list[Mapping[int, int]], n_columns: int) -> list[int]:
    """Solve ``rows . (1, x) = 0`` by elimination; fails if the target is in the span."""
    system = [
        [row.get(c, 0) % R for c in range(1, n_columns)] + [-row.get(0, 0) % R] for row in rows
    ]
    width = n_columns - 1
    pivots: list[int] = []
    for column in range(width):
        at = len(pivots)
        found = next((i for i in range(at, len(system)) if system[i][column]), None)
        if found is None:
            continue
        system[at], system[found] = system[found], system[at]
        inverse = pow(system[at][column], -1, R)
        system[at] = [e * inverse % R for e in system[at]]
        for i, line in enumerate(system):
            if i != at and line[column]:
                factor = line[column]
                system[i] = [(a - factor * b) % R for a, b in zip(line, system[at], strict=True)]
        pivots.append(column)
    assert all(any(line[:width]) or not line[width] for line in system), "the target is spanned"
    solution = [0] * width
    for line, column in zip(system, pivots, strict=False):
        solution[column] = line[width]
    return [1, *solution]


def test_a_guess_with_too_few_shares_gives_another_key() -> None:
    shares = backup(TWO_OF_THREE)
    program = SpanProgram.of(parse_backup_policy(TWO_OF_THREE).formula, R)
    both = program.coefficients({name_label("ada"), name_label("bob")})
    rows = {row: int.from_bytes(s.reveal(), "big") for o in opened(shares, ("ada", "bob"))
            for row, s in o.rows.items()}  # fmt: skip
    body = shares["ada"].body
    scalar = sum(w * rows[row] for row, w in both.items()) % R
    guess = sum(w * rows[row] for row, w in both.items() if row == 0) % R

    assert scalar != guess
    assert _opened_by_hand(body.content, scalar, body.backup, body.policy) == CONTENT
    with pytest.raises(InvalidTag):
        _opened_by_hand(body.content, guess, body.backup, body.policy)


def _opened_by_hand(content: bytes, scalar: int, backup_id: bytes, policy: bytes) -> bytes:
    info = labels.BACKUP + b"\0" + COLLECTION + backup_id + policy
    hkdf = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info)
    key = hkdf.derive(scalar.to_bytes(32, "big"))
    return AESGCM(key).decrypt(bytes(12), content, COLLECTION + backup_id)


# --- files ---------------------------------------------------------------------------------------


def test_a_share_is_laid_out_as_the_protocol_says() -> None:
    shares = backup(TWO_OF_THREE)
    points = {}
    for name in ("ada", "cyd"):
        share = shares[name]
        data = share.encode()
        assert data[:12] == b"MKBACKUP\0\0\0\x01"
        size = int.from_bytes(data[12:16], "big")
        body, signature, sealed = (
            data[16 : 16 + size],
            data[16 + size : 80 + size],
            data[80 + size :],
        )
        Ed25519PublicKey.from_public_bytes(OWNER.public).verify(
            signature, b"mksearch/1/backup\0" + body
        )
        fields = cbor2.loads(body)
        assert cbor2.dumps(fields, canonical=True) == body
        assert fields.keys() == {
            *("collection", "owner_key", "backup", "policy", "name", "user", "content")
        }
        assert (fields["name"], fields["user"]) == (name, PEOPLE[name].public.id)
        assert fields["policy"] == TWO_OF_THREE.encode()
        assert len(fields["backup"]) == 16
        digest = hashes.Hash(hashes.SHA256())
        digest.update(body)
        rows = PEOPLE[name].open(b"backup", digest.finalize(), sealed, "a share")
        ((row, value),) = cbor2.loads(rows)
        points[row] = int.from_bytes(value, "big")
        as_opened = b"MKBACKOP" + data[8 : 80 + size] + rows
        assert share.open(PEOPLE[name]).encode() == as_opened
    # Rows 0 and 2 hold a line's values at 1 and 3, the scalar its value at 0.
    scalar = (points[0] * 3 - points[2]) * pow(2, -1, R) % R
    assert _opened_by_hand(fields["content"], scalar, fields["backup"], fields["policy"]) == CONTENT


def test_files_are_read_back_as_they_were_written() -> None:
    for share in backup(POLICIES[-2]).values():
        assert SealedShare.decode(share.encode()).encode() == share.encode()
        made = share.open(PEOPLE[share.body.name])
        assert OpenedShare.decode(made.encode()).encode() == made.encode()


def test_all_but_what_is_sealed_to_people_is_drawn_from_the_source_given() -> None:
    one, same, other = (
        backup(TWO_OF_THREE),
        backup(TWO_OF_THREE),
        backup(TWO_OF_THREE, seed=b"1" * 32),
    )

    assert one["ada"].signed == same["ada"].signed
    assert one["ada"].body.backup != other["ada"].body.backup
    assert one["ada"].body.content != other["ada"].body.content


def _read(kind: type[SealedShare | OpenedShare], data: bytes) -> OpenedShare:
    """Read a file of ada's; what is sealed is proved when it is opened."""
    read = kind.decode(data)
    return read.open(PEOPLE["ada"]) if isinstance(read, SealedShare) else read


@pytest.mark.parametrize("kind", [SealedShare, OpenedShare])
def test_a_file_cut_anywhere_is_refused(kind: type[SealedShare | OpenedShare]) -> None:
    share = backup(TWO_OF_THREE)["ada"]
    data = share.encode() if kind is SealedShare else share.open(PEOPLE["ada"]).encode()
    other = SealedShare if kind is OpenedShare else OpenedShare

    for size in range(len(data)):
        with pytest.raises(VerificationError):
            _read(kind, data[:size])
    with pytest.raises(FormatError):
        other.decode(data)
    with pytest.raises(UnsupportedVersion):
        kind.decode(data[:11] + b"\x02" + data[12:])


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(max_examples=150, deadline=None)
def test_one_changed_bit_of_a_share_recovers_nothing(at: int, bit: int) -> None:
    shares = backup(TWO_OF_THREE)
    good = shares["bob"].open(PEOPLE["bob"])
    for is_sealed in (True, False):
        data = shares["ada"].encode() if is_sealed else shares["ada"].open(PEOPLE["ada"]).encode()
        changed = bytearray(data)
        changed[at % len(data)] ^= 1 << bit
        kind = SealedShare if is_sealed else OpenedShare
        with pytest.raises((VerificationError, NotQualified)) as caught:
            recover_content([_read(kind, bytes(changed)), good])
        assert "\n" not in str(caught.value)


def _signed(**changes: object) -> bytes:
    """Give an opened share whose body was changed and signed again by the owner."""
    share = backup(TWO_OF_THREE)["ada"]
    fields = cbor2.loads(share.body.encode()) | changes
    body = cbor2.dumps(fields, canonical=True)
    rows = share.open(PEOPLE["ada"]).encode()[12 + 4 + len(share.signed.data) + 64 :]
    return _framed(body, rows)


def _framed(body: bytes, rows: bytes) -> bytes:
    size = len(body).to_bytes(4, "big")
    return b"MKBACKOP\0\0\0\x01" + size + body + OWNER.sign(labels.BACKUP, body) + rows


@pytest.mark.parametrize(
    "changes",
    [
        {"collection": bytes(15)},
        {"backup": bytes(17)},
        {"user": b""},
        {"owner_key": bytes(31)},
        {"policy": b""},
        {"policy": b"\xff"},
        {"policy": b"role:analyst"},
        {"policy": b"2 OF (key:ada, server:1)"},
        {"name": "eve"},
        {"name": ""},
        {"name": b"ada"},
        {"content": "text"},
        {"more": 1},
    ],
)
def test_a_body_that_cannot_be_is_refused_although_it_is_signed(changes: dict[str, object]) -> None:
    with pytest.raises(FormatError):
        OpenedShare.decode(_signed(**changes))


@pytest.mark.parametrize(
    "rows",
    [
        [],
        {},
        7,
        [[1, bytes(32)]],
        [[0, bytes(31)]],
        [[0, b"\xff" * 32]],
        [[0, R.to_bytes(32, "big")]],
        [[0, 5]],
        [[True, bytes(32)]],
        [[0, bytes(32)], [0, bytes(32)]],
        [[0, bytes(32)], [1, bytes(32)]],
        [[0, bytes(32), 1]],
        [["0", bytes(32)]],
        [0],
    ],
)
def test_rows_that_are_not_those_of_the_name_are_refused(rows: object) -> None:
    data = _framed(backup(TWO_OF_THREE)["ada"].body.encode(), cbor2.dumps(rows, canonical=True))

    with pytest.raises(FormatError):
        OpenedShare.decode(data)


def test_only_the_person_named_opens_a_share() -> None:
    share = backup(TWO_OF_THREE)["ada"]

    with pytest.raises(NotQualified, match="sealed to user key"):
        share.open(PEOPLE["bob"])
    claimed = SealedShare(share.signed, backup(TWO_OF_THREE)["bob"].sealed)
    with pytest.raises(RecordRefused):
        claimed.open(PEOPLE["ada"])


# --- what does not go together -------------------------------------------------------------------


def test_shares_of_two_backups_do_not_mix() -> None:
    shares = backup(TWO_OF_THREE)
    others = (
        backup(TWO_OF_THREE, seed=b"1" * 32),
        backup(TWO_OF_THREE, content=b"something else"),
        backup(TWO_OF_THREE, signing=SigningKey(SecretKey(b"x" * 32))),
        backup("3 OF (key:ada, key:bob, key:cyd)"),
    )
    for other in others:
        mixed = [*opened(shares, ["ada"]), *opened(other, ["bob"])]
        with pytest.raises(VerificationError, match="of different backups") as caught:
            recover_content(mixed)
        assert type(caught.value) is VerificationError


def test_a_share_that_is_there_twice_and_none_at_all_are_refused() -> None:
    ada, bob = opened(backup(TWO_OF_THREE), ["ada", "bob"])

    with pytest.raises(ParameterError, match="'ada' is there twice"):
        recover_content([ada, ada])
    with pytest.raises(ParameterError, match="twice"):
        recover_content([ada, bob, ada])
    with pytest.raises(ParameterError, match="no opened share"):
        recover_content([])


def test_a_wrong_share_is_found_out() -> None:
    shares = backup(TWO_OF_THREE)
    ada, bob = opened(shares, ["ada", "bob"])
    lying = OpenedShare(bob.signed, {row: SecretKey(bytes(31) + b"\7") for row in bob.rows})

    with pytest.raises(RecordRefused, match="the shares of ada, bob") as caught:
        recover_content([ada, lying])
    assert "opened again" in caught.value.cure


# --- policies and user keys ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "position"),
    [
        ("role:analyst", 1),
        ("key:ada AND server:1", 13),
        ("2 OF (key:ada, key:bob, server:3)", 25),
        ("key:ada OR key", 12),
        ("key:ada OR keys:bob", 12),
        ("key:ada OR KEY:bob", 12),
        ("key >= 3", 1),
        ("key:ada AND (key = 3)", 14),
        ("key:ada AND 年:2", 13),
        ('"key":ada OR "key:ada"', 14),
        ("key:ada AND", 12),
        ("(key:ada", 1),
        ("key:ada key:bob", 9),
        ("NOT key:ada", 1),
        ("key:ada AND epoch:1", 13),
        ("key:ada & key:bob", 9),
        ("3 OF (key:ada, key:bob)", 1),
    ],
)
def test_a_policy_with_another_leaf_is_refused_with_its_place(policy: str, position: int) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_backup_policy(policy)

    assert caught.value.position == position
    assert f"at character {position}" in caught.value.message


def test_names_are_listed_once_however_they_are_quoted() -> None:
    policy = '2 OF (key:ada, "key":bob, key:"ada", key:"the notary, Basel", key:7, key:"7")'
    parse_backup_policy(policy)

    assert backup_names(policy) == ("ada", "bob", "the notary, Basel", "7")


def test_names_and_user_keys_must_match() -> None:
    keys = {name: PEOPLE[name].public for name in NAMES}

    def make(policy: str, *names: str, **other: object) -> None:
        user_keys = {name: keys[name] for name in names} | other
        options = {"collection": COLLECTION, "signing": OWNER, "random": SeededRandom(bytes(32))}
        make_backup(CONTENT, policy, user_keys, **options)  # type: ignore[arg-type]

    make(TWO_OF_THREE, "ada", "bob", "cyd")
    with pytest.raises(ParameterError, match="'cyd', and there is no user key"):
        make(TWO_OF_THREE, "ada", "bob")
    with pytest.raises(ParameterError, match="'dan', and the policy does not name it"):
        make(TWO_OF_THREE, *NAMES)
    with pytest.raises(ParameterError, match="'ada' and 'cyd' are one user key"):
        make(TWO_OF_THREE, "ada", "bob", cyd=keys["ada"])


# --- secrets -------------------------------------------------------------------------------------


def test_secrets_show_neither_in_texts_nor_in_files_that_travel() -> None:
    shares = backup(TWO_OF_THREE)
    made = opened(shares, ("ada", "bob"))
    secrets = [s.reveal() for share in made for s in share.rows.values()] + [CONTENT]
    shown = [repr(share) for share in (*made, *shares.values())]
    lying = OpenedShare(made[1].signed, {row: SecretKey(b"\1" * 32) for row in made[1].rows})
    for attempt in ([made[0]], [made[0], made[0]], [made[0], lying]):
        with pytest.raises(MksearchError) as caught:
            recover_content(attempt)
        shown.append(str(caught.value))

    for secret in secrets:
        assert not any(secret in share.encode() for share in shares.values())
        forms = (secret.hex(), repr(secret), str(int.from_bytes(secret, "big")))
        assert not any(form in text for form in forms for text in shown)
    with pytest.raises(TypeError):
        pickle.dumps(made[0])
