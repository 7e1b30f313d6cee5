"""Vectors of section 11: policies, keys, headers, the shared authority; and what reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

from mksearch.access.attributes import key_labels, parse_attribute, require_labels
from mksearch.access.authority import (
    SharedAuthority,
    VerifiedPartial,
    combine,
    set_up_shared,
    verify_partial,
)
from mksearch.access.cpabe import Header, decapsulate, encapsulate
from mksearch.access.issuing import issue_partial
from mksearch.access.keys import (
    AttributeKey,
    AuthorityShare,
    PartialKey,
    PublicParameters,
    VerificationKeys,
)
from mksearch.access.pairing import BLS12_381
from mksearch.access.policy import Policy, is_qualified
from mksearch.access.span_program import SpanProgram
from mksearch.params import Quorum
from tests.reference import access as reference
from tests.reference import curve, policies

from .fast import Fixed
from .material import COLLECTION, Json, seed

EPOCH = 7
QUORUM = Quorum(3, 1)
ATTRIBUTES = ("role:analyst", '年齢:"30"', "dept:finance")
POLICY = "(role:analyst AND dept:finance) OR 2 OF (a:1, b:1, 年齢 = 30)"

POLICIES: Sequence[tuple[str, Sequence[Sequence[str]]]] = (
    ("a", [["a"], ["b"]]),
    ("a OR b AND c", [["a"], ["b"], ["b", "c"]]),
    ("(a OR b) and c", [["a"], ["a", "c"]]),
    ("a AND (b AND c) AND d", [["a", "b", "c", "d"], ["a", "b", "c"]]),
    ("2 OF (a, b AND c, 1 OF (d, e))", [["a", "e"], ["b", "c"], ["b", "c", "d"]]),
    ("(a AND b) OR (a AND c)", [["a"], ["a", "c"], ["b", "c"]]),
    ("4 of(a,b,c,d,e)", [["a", "b", "c", "d"], ["a", "b", "e"]]),
    ('role:"analyst" AND 年齢:30', [["role:analyst", "年齢:30"], ["role:analyst"]]),
    ("\t a+b@x.org\n OR  ORland ", [["a+b@x.org"], ["land"]]),
    ('"and":"\\"\\\\" OR time:10:30', [["time:10:30"], ['"time:10":30'], ['"and":"\\"\\\\"']]),
    ("x = 5 OR x == 6", [["x:5"], ['x:"6"'], ["x:7"]]),
    ("x >= 6 AND x < 9", [["x:5"], ["x:6"], ["x:8"], ["x:9"]]),
    ("x > 2147483647", [["x:2147483647"], ["x:2147483648"], ['x:"4294967295"']]),
    ("x <= 4294967294 AND x >= 0", [["x:4294967295"], ["x:0"], ["y:0"]]),
)
"""Policies, and sets of attributes that open them or do not."""


def drawn(label: str) -> bytes:
    """Return the 48 bytes of one draw."""
    return hashlib.sha384(seed(f"access {label}")).digest()


def draws_of(label: str, n: int) -> list[bytes]:
    """Return `n` draws."""
    return [drawn(f"{label} {i}") for i in range(n)]


def hexes(values: Sequence[bytes]) -> list[str]:
    """Return values in hexadecimal."""
    return [value.hex() for value in values]


# --- access_policy.json --------------------------------------------------------------------------


def access_policy() -> Json:
    """Policies as matrices and labels, and the labels of keys."""
    return {
        "about": (
            "Policies, and for the structure of (policy, epoch) the matrix without its zeros, a "
            "map from columns for each row, and the labels; what sets of attributes open."
        ),
        "source": "docs/protocol.md, sections 11.1 and 11.2",
        "epoch": EPOCH,
        "policies": [_policy(text, sets) for text, sets in POLICIES],
        "keys": [
            {"attributes": list(texts), "epoch": epoch}
            | {"labels": hexes(sorted(key_labels(map(parse_attribute, texts), epoch)))}
            for texts, epoch in ((["b", "a"], 1), (["x:5", "x:5"], 2**64 - 1), (['"x":"5"'], 2))
        ],
    }


def _policy(text: str, sets: Sequence[Sequence[str]]) -> Json:
    policy = Policy.decode(text.encode())
    program = SpanProgram.of(policy.at_epoch(EPOCH), BLS12_381.order)
    return {
        "policy": text.encode().hex(),
        "n_columns": program.n_columns,
        "matrix": [{str(column): e for column, e in row.items()} for row in program.matrix],
        "row_labels": hexes(program.row_labels),
        "sets": [
            {"attributes": list(texts)}
            | {"opens": is_qualified(program.formula, key_labels(map(parse_attribute, texts), 7))}
            for texts in sets
        ],
    }


def check_access_policy(file: Json) -> None:
    """Compare the reference with the file."""
    epoch = file["epoch"]
    for entry in file["policies"]:
        matrix, labels = policies.span_program(bytes.fromhex(entry["policy"]), epoch)
        sparse = [{str(c): e for c, e in enumerate(row) if e} for row in matrix]
        assert sparse == entry["matrix"]
        assert hexes(labels) == entry["row_labels"]
        assert {len(row) for row in matrix} == {entry["n_columns"]}
        tree: policies.Tree = policies.parse(bytes.fromhex(entry["policy"]))
        for one in entry["sets"]:
            held = set(policies.key_labels(one["attributes"], epoch))
            rows = [row for row, label in zip(matrix, labels, strict=True) if label in held]
            assert policies.is_satisfied(tree, held) is one["opens"]
            assert (policies.solve(rows, len(matrix[0])) is not None) is one["opens"]
    for entry in file["keys"]:
        made = policies.key_labels(entry["attributes"], entry["epoch"])
        assert hexes(made) == entry["labels"]
    assert {one["opens"] for entry in file["policies"] for one in entry["sets"]} == {True, False}


# --- access.json ---------------------------------------------------------------------------------


@cache
def shared() -> SharedAuthority:
    """Return the authority of these vectors."""
    return set_up_shared(QUORUM, Fixed(drawn("alpha"), drawn("a"), drawn("coefficient 0")))


@cache
def partial(server: int) -> PartialKey:
    """Return the partial key of a server."""
    authority = shared()
    share = authority.shares[server - 1]
    return issue_partial(
        authority.parameters,
        share,
        map(parse_attribute, ATTRIBUTES),
        EPOCH,
        Fixed(drawn(f"t {server}")),
    )


def verified(part: PartialKey, server: int) -> VerifiedPartial:
    """Prove a partial key."""
    authority = shared()
    return verify_partial(
        authority.parameters,
        authority.verification,
        part,
        server=server,
        attributes=map(parse_attribute, ATTRIBUTES),
        epoch=EPOCH,
        random=Fixed(*(bytes(15) + bytes([i + 1]) for i in range(len(part.key.components)))),
    )


@cache
def key() -> AttributeKey:
    """Return the key that servers 1 and 3 make."""
    authority = shared()
    parts = [verified(partial(server), server) for server in (1, 3)]
    return combine(authority.parameters, authority.verification, parts)


@cache
def encapsulated(text: str = POLICY) -> tuple[Header, bytes, Json]:
    """Return a header, its key, and what was drawn."""
    policy = Policy.decode(text.encode())
    program = SpanProgram.of(policy.at_epoch(EPOCH), BLS12_381.order)
    n_rows = len(program.matrix)
    s, v = drawn(f"s {text}"), draws_of(f"v {text}", program.n_columns - 1)
    r = draws_of(f"r {text}", n_rows)
    parameters = shared().parameters
    header, made = encapsulate(parameters, policy, EPOCH, COLLECTION, Fixed(s, *v, *r))
    return header, made.reveal(), {"s": s.hex(), "v": hexes(v), "r": hexes(r)}


def access() -> Json:
    """An authority, its shares, partial keys, a key, headers."""
    authority = shared()
    parameters = authority.parameters
    labels = sorted(key_labels([parse_attribute("年齢:30")], EPOCH))
    texts = (POLICY, "role:analyst", "2 OF (role:analyst, 年齢 >= 2147483648, dept:finance)")
    return {
        "about": (
            "A shared authority with what it drew (48 bytes a draw), its files, what it issues for "
            "one user, and headers that the user opens. All secrets, so never to be used."
        ),
        "source": "docs/protocol.md, sections 11.3 to 11.6",
        "pairing": _pairing().hex(),
        "alpha": drawn("alpha").hex(),
        "a": drawn("a").hex(),
        "parameters": parameters.encode().hex(),
        "authority": parameters.authority.hex(),
        "hashes": [
            {"label": label.hex(), "point": parameters.hash(label).encode().hex()}
            for label in (labels[0], labels[1], labels[-1])
        ],
        "coefficients": [drawn("coefficient 0").hex()],
        "shares": [share.encode().hex() for share in authority.shares],
        "verification": authority.verification.encode().hex(),
        "attributes": list(ATTRIBUTES),
        "epoch": EPOCH,
        "partials": [
            {"server": server, "t": drawn(f"t {server}").hex()}
            | {"sha256": hashlib.sha256(partial(server).encode()).hexdigest()}
            for server in (1, 2, 3)
        ],
        "combined": [1, 3],
        "key": key().encode().hex(),
        "context": COLLECTION.hex(),
        "headers": [_header(text) for text in texts],
    }


def _pairing() -> bytes:
    return BLS12_381.pair([(BLS12_381.g1, BLS12_381.g2)]).encode()


def _header(text: str) -> Json:
    header, made, draws = encapsulated(text)
    file = {"policy": text.encode().hex(), **draws}
    return file | {"header": header.encode().hex(), "abe_key": made.hex()}


def _unhex(values: Sequence[str]) -> list[bytes]:
    return [bytes.fromhex(value) for value in values]


def check_access(file: Json) -> None:
    """Compare the reference with the file."""
    alpha, a = (reference.exponent(bytes.fromhex(file[name])) for name in ("alpha", "a"))
    parameters = reference.set_up(alpha, a)
    assert curve.gt(curve.pair([(curve.G1, curve.G2)])).hex() == file["pairing"]
    assert parameters.file.hex() == file["parameters"]
    assert parameters.authority.hex() == file["authority"]
    for entry in file["hashes"]:
        point = parameters.hash(bytes.fromhex(entry["label"]))
        assert curve.encode(point).hex() == entry["point"]
    drawn_coefficients = [reference.coefficient(d) for d in _unhex(file["coefficients"])]
    alphas = reference.deal(alpha, drawn_coefficients, len(file["shares"]))
    keys = [curve.power(curve.G2, value) for value in alphas]
    name = parameters.authority
    verification = reference.Verification(name, 1, len(drawn_coefficients), keys)
    assert reference.encode_verification(verification).hex() == file["verification"]
    reference.require_consistent(parameters, verification)
    for server, (value, share) in enumerate(zip(alphas, file["shares"], strict=True), 1):
        assert reference.encode_share(name, 1, server, value).hex() == share
    reference.require_share(bytes.fromhex(file["shares"][0]), verification)
    labels = policies.key_labels(file["attributes"], file["epoch"])
    parts = {}
    for entry in file["partials"]:
        t, server = reference.exponent(bytes.fromhex(entry["t"])), entry["server"]
        part = reference.make_key(parameters, alphas[server - 1], labels, t)
        encoded = reference.encode_partial(name, 1, server, part)
        assert hashlib.sha256(encoded).hexdigest() == entry["sha256"]
        parts[server] = part
    combined = reference.combine({server: parts[server] for server in file["combined"]})
    assert reference.encode_key(name, combined).hex() == file["key"]
    for entry in file["headers"]:
        policy, context = bytes.fromhex(entry["policy"]), bytes.fromhex(file["context"])
        s = reference.exponent(bytes.fromhex(entry["s"]))
        v = [reference.coefficient(d) for d in _unhex(entry["v"])]
        r = [reference.exponent(d) for d in _unhex(entry["r"])]
        header, made = reference.encapsulate(parameters, policy, file["epoch"], context, s, v, r)
        assert header.hex() == entry["header"]
        assert made.hex() == entry["abe_key"]
        key_file = bytes.fromhex(file["key"])
        found = reference.open_header(parameters, key_file, policy, file["epoch"], context, header)
        assert found == made
        assert _fast_open(file, entry) == made


def _fast_open(file: Json, entry: Json) -> bytes:
    return decapsulate(
        PublicParameters.decode(bytes.fromhex(file["parameters"])),
        AttributeKey.decode(bytes.fromhex(file["key"])),
        Policy.decode(bytes.fromhex(entry["policy"])),
        file["epoch"],
        bytes.fromhex(file["context"]),
        Header.decode(bytes.fromhex(entry["header"])),
    ).reveal()


# --- readers of bad vectors ----------------------------------------------------------------------

_FAST_FILES = {
    "parameters": PublicParameters.decode,
    "verification": VerificationKeys.decode,
    "share": AuthorityShare.decode,
    "partial": PartialKey.decode,
    "key": AttributeKey.decode,
    "header": Header.decode,
}
_SLOW_FILES = {
    "parameters": reference.decode_parameters,
    "verification": reference.decode_verification,
    "share": reference.decode_share,
    "partial": reference.decode_partial,
    "key": reference.decode_key,
    "header": reference.decode_header,
}


def fast_file(case: Json) -> None:
    """Read a file of section 11.6 with the product."""
    _FAST_FILES[case["file_kind"]](bytes.fromhex(case["file"]))


def slow_file(case: Json) -> None:
    """Read a file of section 11.6 with the reference."""
    _SLOW_FILES[case["file_kind"]](bytes.fromhex(case["file"]))


def fast_policy(case: Json) -> None:
    """Read policy bytes with the product."""
    Policy.decode(bytes.fromhex(case["policy"]))


def fast_attributes(case: Json) -> None:
    """Make the labels of a key with the product."""
    labels = key_labels(map(parse_attribute, case["attributes"]), case["epoch"])
    require_labels(labels, "a key")


def fast_opening(case: Json) -> None:
    """Open a header with the product."""
    _fast_open(case, case)


def slow_opening(case: Json) -> None:
    """Open a header with the reference."""
    reference.open_header(
        reference.decode_parameters(bytes.fromhex(case["parameters"])),
        bytes.fromhex(case["key"]),
        bytes.fromhex(case["policy"]),
        case["epoch"],
        bytes.fromhex(case["context"]),
        bytes.fromhex(case["header"]),
    )


def fast_dealing(case: Json) -> None:
    """Prove verification keys and, if there is one, a share with the product."""
    parameters = PublicParameters.decode(bytes.fromhex(case["parameters"]))
    verification = VerificationKeys.decode(bytes.fromhex(case["verification"]))
    verification.require_consistent(parameters)
    if case["share"]:
        share = AuthorityShare.decode(bytes.fromhex(case["share"]))
        share.require_matches(parameters, verification)


def slow_dealing(case: Json) -> None:
    """Prove verification keys and, if there is one, a share with the reference."""
    parameters = reference.decode_parameters(bytes.fromhex(case["parameters"]))
    verification = reference.decode_verification(bytes.fromhex(case["verification"]))
    reference.require_consistent(parameters, verification)
    if case["share"]:
        reference.require_share(bytes.fromhex(case["share"]), verification)


def fast_partial(case: Json) -> None:
    """Prove a partial key with the product; it is blamed on the server asked."""
    part = PartialKey.decode(bytes.fromhex(case["partial"]))
    verify_partial(
        PublicParameters.decode(bytes.fromhex(case["parameters"])),
        VerificationKeys.decode(bytes.fromhex(case["verification"])),
        part,
        server=case["server"],
        attributes=map(parse_attribute, case["attributes"]),
        epoch=case["epoch"],
        random=Fixed(*(seed(f"weight {i}")[:16] for i in range(len(part.key.components)))),
    )


def slow_partial(case: Json) -> None:
    """Prove a partial key with the reference."""
    reference.require_partial(
        reference.decode_parameters(bytes.fromhex(case["parameters"])),
        reference.decode_verification(bytes.fromhex(case["verification"])),
        bytes.fromhex(case["partial"]),
        case["server"],
        case["attributes"],
        case["epoch"],
    )


FAST = {
    "policy": fast_policy,
    "attributes": fast_attributes,
    "access file": fast_file,
    "access opening": fast_opening,
    "dealing": fast_dealing,
    "partial key": fast_partial,
}
SLOW = {
    "policy": lambda case: policies.parse(bytes.fromhex(case["policy"])),
    "attributes": lambda case: policies.key_labels(case["attributes"], case["epoch"]),
    "access file": slow_file,
    "access opening": slow_opening,
    "dealing": slow_dealing,
    "partial key": slow_partial,
}
