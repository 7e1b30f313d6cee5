"""Bad vectors of sections 13.1, 13.2 and 13.6: each good in all that is looked at before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from mksearch.access.authority import SharedAuthority, deal, set_up_shared
from mksearch.access.cpabe import MasterKey
from mksearch.access.keys import reveal_scalar, seal_scalar
from mksearch.access.pairing import BLS12_381
from mksearch.access.refresh_messages import part_context, part_message
from mksearch.codec import decode_cbor, encode_cbor
from mksearch.crypto import labels
from mksearch.crypto.kdf import sha256
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey

from .access import QUORUM, drawn, shared
from .bad_files import changed, setting
from .fast import Fixed
from .good_index import NOW, signing_key
from .material import Json, render, seed
from .members import identity, sealed_to
from .shares import (
    BASE,
    HELPERS,
    MADE,
    REPAIR,
    TARGET,
    Given,
    challenge,
    fresh,
    helping,
    installing,
    refreshing,
    repairing,
    sealing,
    server_seed,
    shown_by,
    zero,
)

Fields = dict[str, Any]
_FORMAT, _VERIFICATION, _RECORD = "FormatError", "VerificationError", "RecordRefused"
_R = BLS12_381.order
_LABELS = {
    "install": labels.INSTALL_SHARE,
    "refresh": labels.REFRESH_SHARE,
    "help": labels.REPAIR_HELP,
    "repair": labels.REPAIR_SHARE,
}
_PURPOSES = {"install": b"authority-share", "refresh": b"refresh-share", "help": b"repair-mask"}
#: The server that bad orders are for; repairs are for the one that lost its share.
_SERVER = 2


def pieces(data: bytes, name: str, base: bytes) -> list[Json]:
    """Return bytes as pieces: what they begin and end with alike with a good one, and the rest."""
    shorter = min(len(data), len(base))
    start = next((i for i in range(shorter) if data[i] != base[i]), shorter)
    room = shorter - start
    same = next((i for i in range(room) if data[-1 - i] != base[-1 - i]), room)
    stop = len(base) - same
    middle = data[start : len(data) - same].hex()
    made: list[Json] = [{"of": name, "from": 0, "to": start}] if start else []
    made += [{"hex": middle}] if middle else []
    made += [{"of": name, "from": stop, "to": len(base)}] if same else []
    whole = [{"hex": data.hex()}]
    return min(made, whole, key=lambda one: len(render({"": one})))


@cache
def _good(kind: str) -> Given:
    if kind == "repair":
        return repairing()
    return {"install": installing, "refresh": refreshing, "help": helping}[kind](_SERVER)


def _held(kind: str) -> list[str]:
    """Return the files that a server holds when an order is good."""
    dealt = [shared().shares[_SERVER - 1].encode().hex()]
    return dealt if kind in ("refresh", "help") else []


def _bad(
    kind: str, about: str, step: str, exception: str, body: bytes | None = None, **more: Any
) -> Json:
    """Return a bad order: signed by the owner, unless `signature` is given."""
    good = _good(kind)
    said = good.body if body is None else body
    signed = signing_key().sign(_LABELS[kind], said).hex()
    case: Json = {
        "kind": "order",
        "order": kind,
        "about": about,
        "refused_at": step,
        "exception": exception,
        "server": TARGET if kind == "repair" else _SERVER,
        "now": NOW,
        "held": _held(kind),
        "body": pieces(said, f"{kind} body", good.body),
        "signature": signed,
    }
    if kind == "repair":
        parts = more.pop("parts", [shown_by(helper)[1] for helper in HELPERS])
        bases = [(f"part of {helper}", shown_by(helper)[1]) for helper in HELPERS]
        bases += [bases[-1]] * len(parts)
        case["parts"] = [
            pieces(part, name, base) for part, (name, base) in zip(parts, bases, strict=False)
        ]
    else:
        sealed = more.pop("sealed", good.sealed)
        case["sealed"] = pieces(sealed, f"{kind} sealed", good.sealed)
    return case | more


def _with(kind: str, change: Callable[[Fields], object]) -> bytes:
    fields = decode_cbor(_good(kind).body, "an order")
    change(fields)
    return encode_cbor(fields)


def _sealed(kind: str, content: bytes, body: bytes | None = None, **how: Any) -> bytes:
    """Return what is sealed beside an order, good but for what is given."""
    to = how.get("to", sealing(_SERVER)).public.encode()
    context = how.get("context", sha256(_good(kind).body if body is None else body))
    return sealed_to(to, how.get("purpose", _PURPOSES[kind]), context, content)


def files() -> dict[str, Json]:
    """Return the bad vectors by name."""
    return {
        **{f"challenge_{name}": case for name, case in _challenges()},
        **{f"order_{name}": case for name, case in _common()},
        **{f"install_{name}": case for name, case in _installs()},
        **{f"refresh_{name}": case for name, case in _refreshes()},
        **{f"help_{name}": case for name, case in _helps()},
        **{f"repair_{name}": case for name, case in _repairs()},
        **{f"part_{name}": case for name, case in _parts()},
    }


# --- challenges ----------------------------------------------------------------------------------


def _challenges() -> Iterator[tuple[str, Json]]:
    from .shares import file

    told = file()["servers"][_SERVER - 1]
    good: Json = {name: told[name] for name in ("server", "nonce", "challenge", "generation")}
    key = bytes.fromhex(told["sealing_key"])
    for name, about, changes in (
        ("nonce", "the answer to another nonce", {"nonce": bytes(16).hex()}),
        ("challenge", "the challenge of another server", {"challenge": challenge(3).hex()}),
        ("generation", "another generation", {"generation": told["generation"] + 1}),
        ("server", "another server", {"server": 3}),
        (
            "sealing_key",
            "the sealing key of another server",
            {"sealing_key": pieces(sealing(3).public.encode(), "sealing key", key)},
        ),
    ):
        case = {"kind": "challenge", "about": about, "refused_at": "10"}
        case |= {"exception": _VERIFICATION}
        given = good | {"sealing_key": pieces(key, "sealing key", key)} | changes
        yield name, case | given | {"signature": told["signature"]}


# --- what orders have in common ------------------------------------------------------------------


def _common() -> Iterator[tuple[str, Json]]:
    for kind in _LABELS:
        steps = "13.2" if kind == "install" else "13.6"
        for name, case in _signatures(kind, f"{steps}.1"):
            yield f"{kind}_{name}", case
        for name, case in _shapes(kind, f"{steps}.2"):
            yield f"{kind}_{name}", case
        for name, case in _addresses(kind, f"{steps}.3"):
            yield f"{kind}_{name}", case
        if kind != "help":
            for name, case in _authorities(kind, f"{steps}.4"):
                yield f"{kind}_{name}", case


def _signatures(kind: str, step: str) -> Iterator[tuple[str, Json]]:
    body, good = _good(kind).body, _good(kind).signature
    stranger = SigningKey(SecretKey(seed("a stranger")))
    others = {"install": "refresh", "refresh": "install", "help": "repair", "repair": "help"}
    other_label = signing_key().sign(_LABELS[others[kind]], body)
    for name, about, said, signature in (
        ("stranger", "signed with another key", body, stranger.sign(_LABELS[kind], body)),
        ("label", "signed as another order", body, other_label),
        ("unsigned", "the body changed", changed(body, len(body) - 1), good),
        (
            "junk",
            "signed with another key, no order",
            b"\xff",
            stranger.sign(_LABELS[kind], b"\xff"),
        ),
    ):
        yield name, _bad(kind, about, step, _VERIFICATION, said, signature=signature.hex())


def _shapes(kind: str, step: str) -> Iterator[tuple[str, Json]]:
    body = _good(kind).body
    fields = decode_cbor(body, "an order")
    at = body.index(b"fserver") + 7
    long_form = body[:at] + b"\x18" + body[at:]
    made: list[tuple[str, str, bytes]] = [
        ("form", "an integer in two bytes", long_form),
        ("twice", "two CBOR items", body + b"\0"),
        ("key", "a key more", encode_cbor(fields | {"more": 1})),
        ("no_key", "a key less", _with(kind, lambda f: f.pop("server"))),
        ("challenge_size", "a short challenge", _with(kind, setting("challenge", bytes(31)))),
        ("collection_size", "a long name", _with(kind, setting("collection", bytes(17)))),
        ("bool", "a server that is true", _with(kind, setting("server", True))),
    ]
    if kind == "refresh":
        made += [("base_type", "a base that is text", _with(kind, setting("base", "1")))]
    if kind in ("help", "repair"):
        made += [("repair_size", "a short name", _with(kind, setting("repair", REPAIR[1:])))]
    if kind == "help":
        lost = decode_cbor(body, "an order")["sealing_key"]
        outside = b"\xa0" + bytes(95)
        made += [
            ("authority_size", "a short id", _with(kind, setting("authority", bytes(31)))),
            ("target_0", "server 0", _with(kind, setting("target", 0))),
            ("target_256", "server 256", _with(kind, setting("target", 256))),
            ("sealing_key", "no user key", _with(kind, setting("sealing_key", lost[:-1]))),
            ("identity", "the identity", _with(kind, setting("mask", b"\xc0" + bytes(95)))),
            ("outside", "no point of the group", _with(kind, setting("mask", outside))),
        ]
    if kind == "repair":
        point = fields["masks"][0]
        made += [
            ("helper_type", "a helper that is text", _with(kind, setting("helpers.0", "2"))),
            ("mask_type", "a mask that is a number", _with(kind, setting("masks.1", 3))),
            ("mask_cut", "a mask cut off", _with(kind, setting("masks.0", point[:-1]))),
        ]
    for name, about, said in made:
        yield name, _bad(kind, about, step, _FORMAT, said)


def _addresses(kind: str, step: str) -> Iterator[tuple[str, Json]]:
    own = TARGET if kind == "repair" else _SERVER
    for name, about, field, value in (
        ("collection", "another collection", "collection", bytes(16)),
        ("server", "an order for another server", "server", 4),
        ("challenge", "a challenge of another server", "challenge", challenge(3)),
        ("mac", "a challenge changed", "challenge", changed(challenge(own), 9)),
        ("late", "a challenge of 121 seconds ago", "challenge", challenge(own, MADE - 1)),
        ("early", "a challenge that is to come", "challenge", challenge(own, NOW + 1)),
    ):
        yield name, _bad(kind, about, step, _VERIFICATION, _with(kind, setting(field, value)))


@cache
def _other() -> SharedAuthority:
    draws = (drawn("another alpha"), drawn("another a"), drawn("another coefficient"))
    return set_up_shared(QUORUM, Fixed(*draws))


def _authorities(kind: str, step: str) -> Iterator[tuple[str, Json]]:
    fields = decode_cbor(_good(kind).body, "an order")
    files = {name: fields[name] for name in ("authority", "verification")}
    keys = files["verification"]
    swapped = keys[:54] + keys[54 + 96 : 54 + 192] + keys[54 : 54 + 96] + keys[54 + 192 :]
    for name, about, field, value in (
        ("cut", "parameters cut off", "authority", files["authority"][:-1]),
        ("longer", "verification keys with a byte more", "verification", keys + b"\0"),
        ("keys", "keys of another authority", "verification", _other().verification.encode()),
        ("other", "another authority", "authority", _other().parameters.encode()),
        ("swapped", "keys of no polynomial", "verification", swapped),
    ):
        yield f"files_{name}", _bad(kind, about, step, _FORMAT, _with(kind, setting(field, value)))


# --- orders with a share -------------------------------------------------------------------------


def _dealt(generation: int) -> SharedAuthority:
    """Return the authority of the vectors, dealt with another generation."""
    parameters = shared().parameters
    alpha = int.from_bytes(drawn("alpha"), "big") % (_R - 1) + 1
    random = Fixed(drawn("coefficient 0"))
    shares, keys = deal(parameters, MasterKey(seal_scalar(alpha)), QUORUM, generation, random)
    return SharedAuthority(parameters, keys, shares)


def _installs() -> Iterator[tuple[str, Json]]:
    share = shared().shares[_SERVER - 1]
    content = share.encode()
    for name, about, sealed in (
        ("to", "sealed to another server", _sealed("install", content, to=sealing(3))),
        ("context", "sealed beside another order", _sealed("install", content, context=bytes(32))),
        ("purpose", "sealed for a refresh", _sealed("install", content, purpose=b"refresh-share")),
        ("changed", "the ciphertext changed", changed(_good("install").sealed, 1200)),
        ("empty", "nothing sealed", b""),
    ):
        yield name, _bad("install", about, "13.2.5", _RECORD, sealed=sealed)
    alpha = reveal_scalar(share.secret)
    for name, about, inside in (
        ("of_another", "the share of another server", shared().shares[2].encode()),
        ("generation", "of another generation", replace(share, generation=2).encode()),
        ("authority", "of another authority", replace(share, authority=bytes(32)).encode()),
        ("wrong", "another number", replace(share, secret=seal_scalar(alpha - 1)).encode()),
        ("cut", "cut off", content[:-1]),
        ("zero", "the number 0", content[:-32] + bytes(32)),
    ):
        sealed = _sealed("install", inside)
        yield f"share_{name}", _bad("install", about, "13.2.5", _FORMAT, sealed=sealed)
    for name, about, held in (
        ("again", "a share that it has", [content]),
        ("older", "a share older than the one it has", [fresh(_SERVER).encode()]),
        ("older_of_two", "a share that it has, and a newer one", [content, fresh(2).encode()]),
    ):
        hexes = [one.hex() for one in held]
        yield name, _bad("install", about, "13.2.6", _VERIFICATION, held=hexes)


# --- refreshing ----------------------------------------------------------------------------------


def _refreshes() -> Iterator[tuple[str, Json]]:
    parts, _ = zero()
    own, z = shared().shares[_SERVER - 1], parts[_SERVER - 1]
    newest = fresh(_SERVER).encode().hex()
    other_base = _with("refresh", setting("base", 3))
    yield "base", _bad("refresh", "a base it has not", "13.6.5", "StorageError", other_base)
    yield "nothing", _bad("refresh", "no share at all", "13.6.5", "StorageError", held=[])
    both = [*_held("refresh"), newest]
    yield "again", _bad("refresh", "what came before", "13.6.5", _VERIFICATION, held=both)
    older = replace(own, generation=9).encode().hex()
    held = [*_held("refresh"), older]
    yield "older", _bad("refresh", "an old generation", "13.6.5", _VERIFICATION, held=held)
    for name, about, sealed in (
        ("to", "sealed to another server", _sealed("refresh", z.reveal(), to=sealing(3))),
        ("context", "of another order", _sealed("refresh", z.reveal(), context=bytes(32))),
        ("purpose", "a mask", _sealed("refresh", z.reveal(), purpose=b"repair-mask")),
    ):
        yield name, _bad("refresh", about, "13.6.6", _RECORD, sealed=sealed)
    for name, about, inside in (
        ("zero", "0", bytes(32)),
        ("large", "r", _R.to_bytes(32, "big")),
        ("long", "33 bytes", b"\0" + z.reveal()),
        ("short", "31 bytes", z.reveal()[1:]),
        ("wrong", "the part of another server", parts[0].reveal()),
        (
            "other",
            "another part",
            seal_scalar((reveal_scalar(z) + 1) % _R).reveal(),
        ),
    ):
        case = _bad("refresh", about, "13.6.6", _FORMAT, sealed=_sealed("refresh", inside))
        yield f"part_{name}", case
    wrong = replace(own, secret=seal_scalar(reveal_scalar(own.secret) - 1)).encode().hex()
    yield "share", _bad("refresh", "added to another share", "13.6.6", _FORMAT, held=[wrong])


# --- repairing -----------------------------------------------------------------------------------


def _helps() -> Iterator[tuple[str, Json]]:
    good = _good("help").sealed
    for name, about, body in (
        ("generation", "a generation it has not", _with("help", setting("generation", 2))),
        ("authority", "another authority", _with("help", setting("authority", bytes(32)))),
    ):
        yield name, _bad("help", about, "13.6.7", "StorageError", body)
    yield "nothing", _bad("help", "no share at all", "13.6.7", "StorageError", held=[])
    itself = _with("help", setting("target", _SERVER))
    yield "itself", _bad("help", "itself the target", "13.6.7", _VERIFICATION, itself)
    from .shares import masking

    masks, points = masking()
    mask = masks[HELPERS.index(_SERVER)]
    for name, about, sealed in (
        ("to", "sealed to another server", _sealed("help", mask.reveal(), to=sealing(3))),
        ("context", "of another order", _sealed("help", mask.reveal(), context=bytes(32))),
        ("purpose", "a part of zero", _sealed("help", mask.reveal(), purpose=b"refresh-share")),
        ("changed", "the ciphertext changed", changed(good, 3)),
    ):
        yield name, _bad("help", about, "13.6.7", _RECORD, sealed=sealed)
    for name, about, inside in (
        ("zero", "0", bytes(32)),
        ("large", "r", _R.to_bytes(32, "big")),
        ("long", "33 bytes", b"\0" + mask.reveal()),
        ("wrong", "that of another helper", masks[HELPERS.index(3)].reveal()),
    ):
        case = _bad("help", about, "13.6.7", _FORMAT, sealed=_sealed("help", inside))
        yield f"mask_{name}", case
    other = _with("help", setting("mask", points[HELPERS.index(3)].encode()))
    sealed = _sealed("help", mask.reveal(), other)
    yield (
        "point",
        _bad("help", "the point of another mask", "13.6.7", _FORMAT, other, sealed=sealed),
    )


def _part(helper: int, content: bytes | None = None, **how: Any) -> bytes:
    """Return a part, good but for what is given."""
    value = shown_by(helper)[0] if content is None else content
    context = how.get("context", part_context(REPAIR, BASE, TARGET, helper))
    to = how.get("to", sealing(TARGET)).public.encode()
    return sealed_to(to, how.get("purpose", b"repair-part"), context, value)


def _repairs() -> Iterator[tuple[str, Json]]:
    points = decode_cbor(_good("repair").body, "an order")["masks"]
    both = [shown_by(helper)[1] for helper in HELPERS]

    def named(helpers: list[int], masks: list[bytes]) -> bytes:
        return _with("repair", lambda f: f.update(helpers=helpers, masks=masks))

    for name, about, helpers, masks, parts in (
        ("one_helper", "one helper", [2], points[:1], both[:1]),
        ("three_helpers", "three helpers", [2, 3, 4], [*points, points[0]], [*both, both[0]]),
        ("same_helper", "one helper twice", [2, 2], points, both),
        ("descending", "helpers that descend", [3, 2], points[::-1], both[::-1]),
        ("itself", "the target among them", [1, 2], points, both),
        ("helper_4", "a helper that there is not", [2, 4], points, both),
        ("helper_0", "helper 0", [0, 2], points, both),
        ("one_mask", "a mask too few", [2, 3], points[:1], both),
        ("three_masks", "a mask too many", [2, 3], [*points, points[0]], both),
    ):
        case = _bad("repair", about, "13.6.8", _FORMAT, named(helpers, masks), parts=parts)
        yield name, case
    for name, about, parts in (
        ("one_part", "a part too few", both[:1]),
        ("three_parts", "a part too many", [*both, both[0]]),
    ):
        yield name, _bad("repair", about, "13.6.8", _VERIFICATION, parts=parts)
    for name, about, third in (
        ("part_to", "sealed to somebody else", _part(3, to=identity())),
        ("part_purpose", "sealed for another purpose", _part(3, purpose=b"repair-mask")),
        (
            "part_repair",
            "of another repair",
            _part(3, context=part_context(bytes(16), BASE, TARGET, 3)),
        ),
        (
            "part_generation",
            "of another generation",
            _part(3, context=part_context(REPAIR, 2, TARGET, 3)),
        ),
        (
            "part_helper",
            "of another helper",
            _part(3, context=part_context(REPAIR, BASE, TARGET, 2)),
        ),
        ("part_changed", "the ciphertext changed", changed(both[1], 900)),
    ):
        parts = [both[0], third]
        yield name, _bad("repair", about, "13.6.9", _RECORD, parts=parts, named=[3])
    value = int.from_bytes(shown_by(3)[0], "big")
    for name, about, inside in (
        ("wrong", "another number", (value + 1).to_bytes(32, "big")),
        ("bare", "the share, not masked", shared().shares[2].secret.reveal()),
        ("large", "a number above r", (value + _R).to_bytes(32, "big")),
        ("long", "33 bytes", b"\0" + shown_by(3)[0]),
        ("empty", "nothing", b""),
    ):
        parts = [both[0], _part(3, inside)]
        case = _bad("repair", about, "13.6.9", _VERIFICATION, parts=parts, named=[3])
        yield f"part_{name}", case
    yield from _wrong_shares()


def _wrong_shares() -> Iterator[tuple[str, Json]]:
    """Yield masks that do not vanish at the target, and a share that is held already."""
    shift, about = 5, "masks that do not vanish at the target"
    values = [(int.from_bytes(shown_by(j)[0], "big") + shift) % _R for j in HELPERS]
    from .shares import masking

    masks = [(point * BLS12_381.g2**shift).encode() for point in masking()[1]]
    parts = [_part(j, v.to_bytes(32, "big")) for j, v in zip(HELPERS, values, strict=True)]
    body = _with("repair", setting("masks", masks))
    yield "masks", _bad("repair", about, "13.6.10", _FORMAT, body, parts=parts)
    newer = fresh(TARGET).encode().hex()
    yield "older", _bad("repair", "a newer one is held", "13.6.10", _VERIFICATION, held=[newer])


def _parts() -> Iterator[tuple[str, Json]]:
    body, (_, part, signature) = helping(2).body, shown_by(2)
    own, other = (SigningKey(SecretKey(server_seed(server))) for server in (2, 3))
    said = part_message(sha256(body), part)
    for name, about, shown, proof in (
        ("stranger", "signed by another server", part, other.sign(labels.REPAIR_PART, said)),
        ("unsigned", "another part", changed(part, 50), signature),
        ("label", "signed as something else", part, own.sign(labels.PARTIAL_KEY, said)),
    ):
        case: Mapping[str, Any] = {
            "kind": "part",
            "about": about,
            "refused_at": "13.6.11",
            "exception": _VERIFICATION,
            "server": 2,
            "body": pieces(body, "help body", body),
            "part": pieces(shown, "part of 2", part),
            "signature": proof.hex(),
        }
        yield name, dict(case)
    moved = helping(3).body
    yield (
        "order",
        dict(case)
        | {
            "about": "the part for another order",
            "body": pieces(moved, "help body", body),
            "part": pieces(part, "part of 2", part),
            "signature": signature.hex(),
        },
    )
