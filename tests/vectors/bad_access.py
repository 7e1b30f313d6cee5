"""Bad vectors of section 11: each good in all but one thing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mksearch.access.attributes import Label, epoch_label, key_labels, parse_attribute
from mksearch.access.cpabe import Header
from mksearch.access.issuing import issue_partial, make_key
from mksearch.access.keys import AttributeKey, PartialKey, VerificationKeys, seal_scalar
from mksearch.access.pairing import BLS12_381

from .access import EPOCH, drawn, encapsulated, shared
from .fast import Fixed
from .material import COLLECTION, Json

_G1, _G2 = BLS12_381.g1, BLS12_381.g2
USER = ("role:analyst", "dept:finance")
POLICY = "role:analyst AND dept:finance"
IDENTITY_1, IDENTITY_2 = b"\xc0" + bytes(47), b"\xc0" + bytes(95)
#: On the curve and outside the subgroup: x = 0 has order 3.
SMALL_ORDER_1 = b"\x80" + bytes(47)
_DEEP = "(" * 33 + "a" + ")" * 33

POLICIES: dict[str, tuple[str, str, bytes]] = {
    "empty": ("11.1.1", "no bytes", b""),
    "long": ("11.1.1", "4,097 bytes", b"a" + b" " * 4096),
    "utf8": ("11.1.1", "a byte that is no UTF-8", b"a\xff"),
    "surrogate": ("11.1.1", "half a character", b"a\xed\xa0\x80"),
    "nfd": ("11.1.1", "not in NFC", "cafe\u0301".encode()),
    "character": ("11.1.2", "a character of no token", b"a & b"),
    "bang": ("11.1.2", "an exclamation mark", b"!a"),
    "no_break_space": ("11.1.2", "a blank that is none", "a\u00a0OR b".encode()),
    "zero_width": ("11.1.2", "a character that is not seen", "a\u200b".encode()),
    "nul": ("11.1.2", "a control character", b"a\x00"),
    "bidi": ("11.1.2", "a direction mark in quotes", 'a:"\u202e"'.encode()),
    "open_quotes": ("11.1.2", "quotes that are not closed", b'"a OR b'),
    "escape": ("11.1.2", "an unknown escape", b'a:"b\\n"'),
    "touching": ("11.1.2", "quotes that touch a word", b'a:b"c"'),
    "two_quotes": ("11.1.2", "quotes that touch quotes", b'"a""b"'),
    "no_value": ("11.1.3", "an empty value", b"a: OR b"),
    "no_name": ("11.1.3", "an empty name", b":a"),
    "empty_quotes": ("11.1.3", "an empty name in quotes", b'""'),
    "long_name": ("11.1.3", "a name of 257 bytes", b"x" * 257),
    "long_value": ("11.1.3", "a value of 258 bytes", b"x:" + "é".encode() * 129),
    "mark": ("11.1.3", "a mark in front", 'a:"\u0301"'.encode()),
    "epoch": ("11.1.3", "the reserved name", b"a AND epoch:7"),
    "epoch_case": ("11.1.3", "the reserved name in capitals", b'"EPOCH" OR a'),
    "compare_text": ("11.1.4", "compared with text", b"x >= high"),
    "compare_zero": ("11.1.4", "a number with a leading zero", b"x >= 03"),
    "compare_large": ("11.1.4", "a number of 2^32", b"x >= 4294967296"),
    "below_0": ("11.1.4", "below 0", b"x < 0"),
    "above_all": ("11.1.4", "above all numbers", b"x > 4294967295"),
    "blank": ("11.1.5", "only blanks", b" \t"),
    "not_closed": ("11.1.5", "a parenthesis too few", b"A and (B or C"),
    "not_opened": ("11.1.5", "a parenthesis too many", b"A) or (B"),
    "no_operator": ("11.1.5", "an operator too few", b"a b"),
    "no_operand": ("11.1.5", "an operand too few", b"a AND"),
    "operators": ("11.1.5", "an operator too many", b"a OR OR b"),
    "empty_group": ("11.1.5", "nothing in parentheses", b"a AND ()"),
    "not": ("11.1.5", "a negation", b"a AND NOT b"),
    "digits": ("11.1.5", "a number for an attribute", b"7"),
    "comma": ("11.1.5", "a comma outside OF", b"a, b"),
    "count_high": ("11.1.5", "3 of 2", b"3 OF (a, b)"),
    "count_0": ("11.1.5", "0 of 2", b"0 OF (a, b)"),
    "count_zero": ("11.1.5", "a count with a leading zero", b"02 OF (a, b)"),
    "no_count": ("11.1.5", "no count", b"OF (a, b)"),
    "no_list": ("11.1.5", "OF without parentheses", b"1 OF a"),
    "deep": ("11.1.6", "nested 33 deep", _DEEP.encode()),
    "leaves": ("11.1.6", "257 leaves", b" OR ".join([b"a"] * 257)),
    "leaves_of_numbers": ("11.1.6", "288 leaves in 9 comparisons", b" OR ".join([b"x>=1"] * 9)),
}


def files() -> dict[str, Json]:
    """Return the bad vectors by name."""
    out: dict[str, Json] = {}
    for name, (step, about, data) in POLICIES.items():
        out[f"policy_{name}"] = _bad("policy", about, step, "FormatError") | {"policy": data.hex()}
    for name, case in _attributes():
        out[f"attributes_{name}"] = case
    for name, case in _files():
        out[f"access_{name}"] = case
    for name, case in _openings():
        out[f"access_opening_{name}"] = case
    for name, case in _dealings():
        out[f"dealing_{name}"] = case
    for name, case in _partials():
        out[f"partial_{name}"] = case
    return out


def _bad(kind: str, about: str, step: str, exception: str) -> Json:
    return {"kind": kind, "about": about, "refused_at": step, "exception": exception}


def _attributes() -> Iterator[tuple[str, Json]]:
    many = [f"a{i}" for i in range(65)]
    for name, about, texts, epoch in (
        ("none", "no attribute", [], 1),
        ("many", "65 attributes", many, 1),
        ("two_numbers", "two numbers of one name", ["x:1", "x:2"], 1),
        ("epoch_0", "epoch 0", ["a"], 0),
        ("epoch_large", "epoch 2^64", ["a"], 1 << 64),
    ):
        case = _bad("attributes", about, "11.1.7", "PolicyError")
        yield name, case | {"attributes": texts, "epoch": epoch}


# --- files ---------------------------------------------------------------------------------------


def _key() -> AttributeKey:
    labels = key_labels(map(parse_attribute, USER), EPOCH)
    secret = seal_scalar(int.from_bytes(drawn("alpha"), "big") % (BLS12_381.order - 1) + 1)
    return make_key(shared().parameters, secret, labels, Fixed(drawn("t of bad vectors")))


def _part(server: int, *texts: str, epoch: int = EPOCH) -> PartialKey:
    attributes = map(parse_attribute, texts or USER)
    share = shared().shares[server - 1]
    random = Fixed(drawn(f"t of bad vectors {server} {texts}"))
    return issue_partial(shared().parameters, share, attributes, epoch, random)


def _key_file(components: list[tuple[Label, bytes]]) -> bytes:
    entries = b"".join(len(x).to_bytes(2, "big") + x + point for x, point in components)
    return _key().encode()[:188] + len(components).to_bytes(2, "big") + entries


def _files() -> Iterator[tuple[str, Json]]:
    parameters, verification = shared().parameters.encode(), shared().verification.encode()
    share, part, key = shared().shares[0].encode(), _part(1).encode(), _key().encode()
    header = encapsulated(POLICY)[0].encode()
    good = {
        "parameters": parameters,
        "verification": verification,
        "share": share,
        "partial": part,
        "key": key,
        "header": header,
    }
    for kind, data in good.items():
        yield _file(f"{kind}_magic", kind, "11.6.1", "another magic", b"X" + data[1:])
        two = data[:11] + b"\x02" + data[12:]
        name, case = _file(f"{kind}_format", kind, "11.6.1", "format 2", two)
        yield name, case | {"exception": "UnsupportedVersion"}
        yield _file(f"{kind}_cut", kind, "11.6.2", "the last byte cut off", data[:-1])
        yield _file(f"{kind}_longer", kind, "11.6.2", "a byte too many", data + b"\0")
    yield _file("header_no_rows", "header", "11.6.2", "no row", header[:108])
    wide = header[:108] + header[108:252] * 258
    yield _file("header_wide", "header", "11.6.2", "258 rows", wide)
    for name, kind, about, at, value in (
        ("verification_generation", "verification", "generation 0", 44, bytes(8)),
        ("verification_bound", "verification", "no collusion bound", 52, b"\x00"),
        ("verification_quorum", "verification", "too few servers for the bound", 52, b"\x02"),
        ("share_generation", "share", "generation 0", 44, bytes(8)),
        ("share_server", "share", "server 0", 52, b"\x00"),
        ("share_zero", "share", "a share of 0", 53, bytes(32)),
        ("share_large", "share", "a share of r", 53, BLS12_381.order.to_bytes(32, "big")),
        ("partial_generation", "partial", "generation 0", 44, bytes(8)),
        ("partial_server", "partial", "server 0", 52, b"\x00"),
    ):
        yield _file(name, kind, "11.6.3", about, _put(good[kind], at, value))
    yield from _label_files()
    yield from _point_files(good)


def _file(name: str, kind: str, step: str, about: str, data: bytes) -> tuple[str, Json]:
    case = _bad("access file", f"{kind}: {about}", step, "FormatError")
    return name, case | {"file_kind": kind, "file": data.hex()}


def _put(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def _label_files() -> Iterator[tuple[str, Json]]:
    point = _G1.encode()
    a, b = (parse_attribute(text).label for text in ("a", "b"))
    epoch, later = epoch_label(EPOCH), epoch_label(EPOCH + 1)
    for name, about, labels in (
        ("order", "labels that descend", [b, a, epoch]),
        ("twice", "a label twice", [a, a, epoch]),
        ("no_epoch", "no epoch", [a, b]),
        ("two_epochs", "two epochs", [a, epoch, later]),
        ("only_epoch", "no attribute", [epoch]),
        ("epoch_0", "epoch 0", [a, b"\x03" + bytes(8)]),
        ("epoch_short", "an epoch of 7 bytes", [a, b"\x03" + b"\x01" * 7]),
        ("kind", "a label of kind 4", [a, epoch, b"\x04\x01a"]),
        ("kind_0", "a label of kind 0", [b"\x00\x01a", a, epoch]),
        ("varint", "a length that is not in its shortest form", [b"\x01\x81\x00a", epoch]),
        ("no_name", "an empty name", [b"\x01\x00a", epoch]),
        ("name_cut", "a name longer than its label", [b"\x01\x02a", epoch]),
        ("bit_32", "bit 32", [a, b"\x02\x01a\x20\x00", epoch]),
        ("bit_2", "a bit of 2", [a, b"\x02\x01a\x00\x02", epoch]),
        ("bit_long", "a bit with a byte too many", [a, b"\x02\x01a\x00\x00\x00", epoch]),
        ("utf8", "a value that is no UTF-8", [b"\x01\x01a\xff", epoch]),
        ("nfd", "a value that is not in NFC", [b"\x01\x01a" + "e\u0301".encode(), epoch]),
        ("long", "a value of 257 bytes", [b"\x01\x01a" + b"x" * 257, epoch]),
    ):
        data = _key_file([(label, point) for label in labels])
        yield _file(f"key_{name}", "key", "11.6.4", about, data)


def _point_files(good: dict[str, bytes]) -> Iterator[tuple[str, Json]]:
    outside = _outside_g2()
    large = bytes([0x9F]) + b"\xff" * 47
    for name, kind, at, about, value in (
        ("parameters_identity_1", "parameters", 12, "A the identity", IDENTITY_1),
        ("parameters_identity_2", "parameters", 60, "B the identity", IDENTITY_2),
        ("parameters_small_order", "parameters", 12, "A of order 3", SMALL_ORDER_1),
        ("parameters_outside", "parameters", 60, "B outside the subgroup", outside),
        ("parameters_sign", "parameters", 12, "the identity with a sign", b"\xe0" + bytes(47)),
        ("parameters_rest", "parameters", 12, "the identity and more", b"\xc0" + b"\x01" * 47),
        ("parameters_field", "parameters", 12, "a coordinate of q or more", large),
        ("parameters_flag", "parameters", 12, "not marked compressed", b"\x00"),
        ("verification_identity", "verification", 54, "a key the identity", IDENTITY_2),
        ("partial_identity_k", "partial", 53, "K the identity", IDENTITY_1),
        ("partial_identity_l", "partial", 101, "L the identity: t_j = 0", IDENTITY_2),
        ("key_identity_l", "key", 92, "L the identity", IDENTITY_2),
        ("key_outside", "key", 92, "L outside the subgroup", outside),
        ("key_small_order", "key", 44, "K of order 3", SMALL_ORDER_1),
        ("header_identity", "header", 12, "C the identity", IDENTITY_2),
        ("header_identity_c", "header", 108, "a C_i the identity", IDENTITY_1),
        ("header_identity_d", "header", 156, "a D_i the identity", IDENTITY_2),
        ("header_outside", "header", 156, "a D_i outside the subgroup", outside),
    ):
        yield _file(name, kind, "11.6.5", about, _put(good[kind], at, value))
    component = good["key"][:-48] + IDENTITY_1
    yield _file("key_identity", "key", "11.6.5", "a component the identity", component)


def _outside_g2() -> bytes:
    """Return the first point of the twist with a small whole abscissa; it is in no subgroup."""
    return bytes([0x80]) + bytes(94) + b"\x02"


# --- use -----------------------------------------------------------------------------------------


def _openings() -> Iterator[tuple[str, Json]]:
    header = encapsulated(POLICY)[0]
    key = _key()
    others = key_labels([parse_attribute("role:analyst")], EPOCH)
    half = replace(key, components={x: key.components[x] for x in others})
    cut = Header(header.c, header.rows[:-1])
    refused = "FormatError"
    for name, about, step, exception, held, file, epoch in (
        ("half", "half of the attributes", "11.4.4", "NotQualified", half, header, EPOCH),
        ("epoch", "a key of another epoch", "11.4.4", "NotQualified", key, header, EPOCH + 1),
        ("rows", "a row too few", "11.6.6", refused, key, cut, EPOCH),
        (
            "authority",
            "a key of another authority",
            "11.6.6",
            refused,
            replace(key, authority=bytes(32)),
            header,
            EPOCH,
        ),
    ):
        yield (
            name,
            _bad("access opening", about, step, exception)
            | {
                "parameters": shared().parameters.encode().hex(),
                "policy": POLICY.encode().hex(),
                "epoch": epoch,
                "context": COLLECTION.hex(),
                "key": held.encode().hex(),
                "header": file.encode().hex(),
            },
        )


def _dealings() -> Iterator[tuple[str, Json]]:
    verification, (share, other, _) = shared().verification, shared().shares
    one, two, three = verification.keys
    strange = replace(share, authority=bytes(32))
    for name, about, keys, held in (
        ("first", "the key of server 1 changed", (one * _G2, two, three), None),
        ("last", "the key of server 3 changed", (one, two, three * _G2), None),
        ("swapped", "the keys of two servers swapped", (two, one, three), None),
        ("doubled", "keys of another secret", (one**2, two**2, three**2), None),
        ("share", "the share of another server", verification.keys, replace(other, server=1)),
        ("generation", "an older share", verification.keys, replace(share, generation=2)),
        ("authority", "of another authority", verification.keys, strange),
    ):
        file = VerificationKeys(verification.authority, 1, verification.quorum, keys)
        yield (
            name,
            _bad("dealing", about, "11.5.2", "VerificationError")
            | {
                "parameters": shared().parameters.encode().hex(),
                "verification": file.encode().hex(),
                "share": held.encode().hex() if held else "",
            },
        )


def _partials() -> Iterator[tuple[str, Json]]:
    part = _part(2)
    label = parse_attribute("dept:finance").label
    components = {**part.key.components, label: part.key.components[label] * _G1}
    changed_key, strange = (
        replace(part.key, components=components),
        replace(part.key, authority=bytes(32)),
    )
    foreign = replace(shared().shares[1], secret=seal_scalar(12345))
    attributes = map(parse_attribute, USER)
    wrong = issue_partial(shared().parameters, foreign, attributes, EPOCH, Fixed(drawn("wrong")))
    for name, about, changed in (
        ("share", "made with another share", wrong),
        ("k", "K changed", replace(part, key=replace(part.key, k=part.key.k * _G1))),
        ("l", "L changed", replace(part, key=replace(part.key, l=part.key.l * _G2))),
        ("component", "a component changed", replace(part, key=changed_key)),
        ("other_user", "for other attributes", _part(2, "role:analyst", "dept:sales")),
        ("more", "for more attributes", _part(2, *USER, "role:root")),
        ("fewer", "for fewer attributes", _part(2, "role:analyst")),
        ("other_epoch", "for another epoch", _part(2, *USER, epoch=EPOCH + 1)),
        ("other_server", "of another server", _part(3)),
        ("renamed", "of another server under this one's id", replace(_part(3), server=2)),
        ("generation", "of another generation", replace(part, generation=2)),
        ("authority", "of another authority", replace(part, key=strange)),
    ):
        yield (
            name,
            _bad("partial key", about, "11.5.4", "PartialKeyRefused")
            | {
                "parameters": shared().parameters.encode().hex(),
                "verification": shared().verification.encode().hex(),
                "server": 2,
                "attributes": list(USER),
                "epoch": EPOCH,
                "partial": changed.encode().hex(),
            },
        )
