"""Shares are refreshed and repaired on the owner's orders alone, and the secret stays the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from mksearch.access.authority import deal
from mksearch.access.authority_messages import SHARE_PURPOSE, ShareOrder
from mksearch.access.cpabe import set_up
from mksearch.access.keys import AuthorityShare, VerificationKeys, reveal_scalar, seal_scalar
from mksearch.access.orders import Order, SignedOrder
from mksearch.access.pairing import BLS12_381
from mksearch.access.refresh import deal_masks, deal_zero
from mksearch.access.refresh_messages import (
    MASK_PURPOSE,
    PART_PURPOSE,
    REFRESH_PURPOSE,
    HelpOrder,
    RefreshOrder,
    RepairOrder,
    part_context,
)
from mksearch.access.scalars import lagrange
from mksearch.access.share_keeping import masked, read_scalar, refreshed, repaired
from mksearch.codec import decode_cbor, encode_cbor
from mksearch.crypto.identity import Identity
from mksearch.crypto.randomness import SeededRandom, SystemRandom
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.errors import (
    FormatError,
    ParameterError,
    RecordRefused,
    StorageError,
    VerificationError,
)
from mksearch.index.manifest import Access
from mksearch.params import Quorum
from mksearch_server.challenges import Challenges
from mksearch_server.erasable import ErasableKeys
from mksearch_server.identity import Claim
from mksearch_server.shares import ShareKeeper
from mksearch_server.store import ObjectStore

GROUP = BLS12_381
R = GROUP.order
RANDOM = SystemRandom()
PARAMETERS, MASTER = set_up(RANDOM)
ALPHA = reveal_scalar(MASTER.alpha)
COLLECTION = b"collection 16 b."
OWNER = SigningKey(SecretKey(b"o" * 32))
CLAIM = Claim(OWNER.public, COLLECTION)
QUORUMS = (Quorum(3, 1), Quorum(5, 2), Quorum(7, 3))


def dealt(quorum: Quorum) -> tuple[tuple[AuthorityShare, ...], VerificationKeys]:
    return deal(PARAMETERS, MASTER, quorum, 1, RANDOM)


def secret_of(shares: list[AuthorityShare]) -> int:
    factors = lagrange([share.server for share in shares], R)
    return sum(f * reveal_scalar(s.secret) for f, s in zip(factors, shares, strict=True)) % R


# --- arithmetic -----------------------------------------------------------------------------------


@pytest.mark.parametrize("quorum", QUORUMS, ids=str)
def test_refreshed_shares_are_others_of_the_same_secret(quorum: Quorum) -> None:
    old, keys = dealt(quorum)
    parts, fresh = deal_zero(PARAMETERS, keys, 2, RANDOM)
    new = [refreshed(PARAMETERS, s, z, fresh) for s, z in zip(old, parts, strict=True)]
    fresh.require_consistent(PARAMETERS)
    assert fresh.generation == 2
    assert not {s.secret.reveal() for s in old} & {s.secret.reveal() for s in new}
    for chosen in combinations(new, quorum.threshold):
        assert secret_of(list(chosen)) == ALPHA
    for share in new:
        share.require_matches(PARAMETERS, fresh)


@pytest.mark.parametrize("quorum", QUORUMS, ids=str)
def test_shares_of_two_generations_do_not_make_the_secret(quorum: Quorum) -> None:
    """A thief of t shares before and t after has 2t of them, and any t + 1 are of no polynomial."""
    old, keys = dealt(quorum)
    parts, fresh = deal_zero(PARAMETERS, keys, 2, RANDOM)
    new = [refreshed(PARAMETERS, s, z, fresh) for s, z in zip(old, parts, strict=True)]
    t = quorum.collusion_bound
    for first in range(1, quorum.threshold):
        mixed = [*old[:first], *new[first : quorum.threshold]]
        assert len(mixed) == t + 1
        assert secret_of(mixed) != ALPHA


def test_parts_of_zero_alone_say_nothing_of_shares() -> None:
    """What the owner deals is drawn without any share: equal dice deal equal parts."""
    quorum = Quorum(5, 2)
    (_, one), (_, other) = dealt(quorum), dealt(quorum)
    drawn = [deal_zero(PARAMETERS, keys, 2, SeededRandom(b"d" * 32))[0] for keys in (one, other)]
    assert [p.reveal() for p in drawn[0]] == [p.reveal() for p in drawn[1]]
    factors = lagrange(range(1, quorum.threshold + 1), R)
    assert sum(f * reveal_scalar(p) for f, p in zip(factors, drawn[0], strict=False)) % R == 0


@pytest.mark.parametrize("change", [1, R - 1], ids=["more", "less"])
def test_a_part_of_zero_that_is_not_the_committed_one_is_refused(change: int) -> None:
    shares, keys = dealt(Quorum())
    parts, fresh = deal_zero(PARAMETERS, keys, 2, RANDOM)
    wrong = seal_scalar((reveal_scalar(parts[0]) + change) % R)
    with pytest.raises(FormatError, match="not what its verification key stands for"):
        refreshed(PARAMETERS, shares[0], wrong, fresh)
    with pytest.raises(FormatError, match="not what its verification key stands for"):
        refreshed(PARAMETERS, shares[0], parts[1], fresh)
    minus = seal_scalar(R - reveal_scalar(shares[0].secret))
    with pytest.raises(FormatError, match="came out as 0"):
        refreshed(PARAMETERS, shares[0], minus, fresh)


def test_a_generation_that_is_not_above_is_not_dealt() -> None:
    _, keys = dealt(Quorum())
    for generation in (0, 1):
        with pytest.raises(ParameterError, match="generation"):
            deal_zero(PARAMETERS, keys, generation, RANDOM)


@pytest.mark.parametrize("quorum", QUORUMS, ids=str)
def test_any_t_plus_1_helpers_repair_any_share(quorum: Quorum) -> None:
    shares, keys = dealt(quorum)
    for target in (1, quorum.n_servers):
        others = [share for share in shares if share.server != target]
        for chosen in list(combinations(others, quorum.threshold))[:6]:
            helpers = [share.server for share in chosen]
            masks, points = deal_masks(PARAMETERS, quorum.collusion_bound, target, helpers, RANDOM)
            parts = [masked(PARAMETERS, s, m).reveal() for s, m in zip(chosen, masks, strict=True)]
            share = repaired(PARAMETERS, keys, target, helpers, points, parts)
            assert share.encode() == shares[target - 1].encode()


def test_what_the_helpers_show_is_not_their_shares_and_never_the_same_twice() -> None:
    shares, _ = dealt(Quorum())
    helpers = (2, 3)
    seen = set()
    for _ in range(5):
        masks, _ = deal_masks(PARAMETERS, 1, 1, helpers, RANDOM)
        shown = [masked(PARAMETERS, shares[j - 1], m) for j, m in zip(helpers, masks, strict=True)]
        # The two values are one line through alpha_1 at 1: at 0 it is not alpha.
        factors = lagrange(helpers, R)
        assert sum(f * reveal_scalar(v) for f, v in zip(factors, shown, strict=True)) % R != ALPHA
        seen |= {value.reveal() for value in shown}
    assert len(seen) == 10
    assert not seen & {share.secret.reveal() for share in shares}


def test_a_helper_that_shows_something_else_is_named() -> None:
    shares, keys = dealt(Quorum())
    helpers = (2, 3)
    masks, points = deal_masks(PARAMETERS, 1, 1, helpers, RANDOM)
    right = [masked(PARAMETERS, shares[j - 1], m) for j, m in zip(helpers, masks, strict=True)]
    wrong = (seal_scalar((reveal_scalar(right[1]) + 1) % R).reveal(), b"\xff" * 32, b"", b"\0" * 33)
    for part in wrong:
        with pytest.raises(VerificationError, match="server 3") as caught:
            repaired(PARAMETERS, keys, 1, helpers, points, [right[0].reveal(), part])
        assert caught.value.server == 3
    with pytest.raises(ParameterError, match="1 parts"):
        repaired(PARAMETERS, keys, 1, helpers, points, [right[0].reveal()])
    with pytest.raises(ParameterError, match="itself"):
        deal_masks(PARAMETERS, 1, 2, helpers, RANDOM)


@pytest.mark.parametrize("data", [b"", bytes(32), bytes(31) + b"\1\0", R.to_bytes(32, "big")])
def test_a_number_out_of_range_is_no_secret(data: bytes) -> None:
    with pytest.raises(FormatError, match="order of the group"):
        read_scalar(data, R, "a part of zero")


# --- servers, and what the owner orders -----------------------------------------------------------


class Holders:
    """The servers of one authority, without the network."""

    def __init__(self, folder: Path, quorum: Quorum) -> None:
        self.folder = folder
        self.quorum = quorum
        self.challenges: dict[int, Challenges] = {}
        self.stores: dict[int, ObjectStore] = {}
        self.keepers = {j: self.open(j) for j in range(1, quorum.n_servers + 1)}
        self.shares, self.keys = dealt(quorum)
        for share in self.shares:
            order = ShareOrder(
                COLLECTION, share.server, self.challenge(share.server), PARAMETERS, self.keys
            )
            signed = SignedOrder.sign(order, OWNER)
            keeper = self.keepers[share.server]
            sealed = keeper.sealing.public.seal(SHARE_PURPOSE, signed.hash, share.encode())
            keeper.install(signed.body, signed.signature, sealed, CLAIM)
        self.activate(self.keys)

    def open(self, server: int) -> ShareKeeper:
        if server in self.stores:
            self.stores[server].close()
        store = self.stores[server] = ObjectStore(self.folder / f"server-{server}")
        self.challenges[server] = Challenges(RANDOM)
        seed = SecretKey(bytes([server]) * 32)
        return ShareKeeper(server, seed, store, self.challenges[server], RANDOM)

    def reopen(self) -> None:
        for server in self.keepers:
            self.keepers[server] = self.open(server)

    def challenge(self, server: int) -> bytes:
        return self.challenges[server].make()

    def activate(self, keys: VerificationKeys) -> None:
        access = Access(PARAMETERS.encode(), OWNER.public, 1, keys.encode())
        for keeper in self.keepers.values():
            keeper.follow(access)

    def held(self, server: int = 1) -> list[int]:
        return [share.generation for share in self.keepers[server]._shares]

    # What the owner sends, with changes.

    def deal_zero(self, base: VerificationKeys, generation: int) -> tuple[Any, VerificationKeys]:
        return deal_zero(PARAMETERS, base, generation, RANDOM)

    def refresh(
        self,
        server: int,
        base: VerificationKeys,
        fresh: VerificationKeys,
        part: bytes,
        /,
        *,
        owner: SigningKey = OWNER,
        sealed_for: bytes | None = None,
        to: Identity | None = None,
        **fields: Any,
    ) -> int:
        order = RefreshOrder(
            COLLECTION, server, self.challenge(server), base.generation, PARAMETERS, fresh
        )
        signed = SignedOrder.sign(replace(order, **fields), owner)
        keeper = self.keepers[server]
        key = (to or keeper.sealing).public
        sealed = key.seal(REFRESH_PURPOSE, sealed_for or signed.hash, part)
        return keeper.refresh(signed.body, signed.signature, sealed, CLAIM)

    def refresh_all(self, base: VerificationKeys, generation: int) -> VerificationKeys:
        parts, fresh = self.deal_zero(base, generation)
        for server in self.keepers:
            self.refresh(server, base, fresh, parts[server - 1].reveal())
        return fresh

    def help(
        self,
        helper: int,
        target: int,
        mask: SecretKey,
        /,
        *,
        owner: SigningKey = OWNER,
        **fields: Any,
    ) -> bytes:
        order = HelpOrder(
            COLLECTION,
            helper,
            self.challenge(helper),
            PARAMETERS.authority,
            self.keys.generation,
            target,
            self.keepers[target].sealing.public,
            b"this repair 16 b",
            PARAMETERS.group.g2 ** reveal_scalar(mask),
        )
        signed = SignedOrder.sign(replace(order, **fields), owner)
        keeper = self.keepers[helper]
        sealed = keeper.sealing.public.seal(MASK_PURPOSE, signed.hash, mask.reveal())
        return keeper.help(signed.body, signed.signature, sealed, CLAIM)[0]

    def repair_order(self, target: int, helpers: tuple[int, ...], points: Any) -> RepairOrder:
        return RepairOrder(
            COLLECTION,
            target,
            self.challenge(target),
            PARAMETERS,
            self.keys,
            b"this repair 16 b",
            helpers,
            points,
        )

    def repair(self, order: RepairOrder, parts: list[bytes], *, owner: SigningKey = OWNER) -> int:
        signed = SignedOrder.sign(order, owner)
        keeper = self.keepers[order.server]
        return keeper.repair(signed.body, signed.signature, parts, CLAIM)

    def lose(self, server: int) -> None:
        self.keepers[server]._keep(PARAMETERS, ())


@pytest.fixture
def holders(tmp_path: Path) -> Iterator[Holders]:
    made = Holders(tmp_path, Quorum())
    yield made
    for store in made.stores.values():
        store.close()


def test_servers_keep_old_and_new_share_until_a_version_names_the_new(holders: Holders) -> None:
    fresh = holders.refresh_all(holders.keys, 2)
    holders.reopen()
    for server, keeper in holders.keepers.items():
        assert holders.held(server) == [1, 2]
        # What is in use is named by the version, not by what came last.
        old = keeper.find(PARAMETERS.authority, 1)
        assert old.encode() == holders.shares[server - 1].encode()
    holders.activate(holders.keys)
    assert holders.held() == [1, 2]
    holders.activate(fresh)
    assert [holders.held(server) for server in holders.keepers] == [[2]] * 3
    holders.reopen()
    assert [holders.held(server) for server in holders.keepers] == [[2]] * 3
    new = [keeper.find(PARAMETERS.authority, 2) for keeper in holders.keepers.values()]
    assert secret_of(new[:2]) == secret_of(new[1:]) == ALPHA
    with pytest.raises(StorageError, match="no share of generation 1"):
        holders.keepers[1].find(PARAMETERS.authority, 1)


def test_a_refresh_that_ended_between_servers_is_begun_again_from_the_same_shares(
    holders: Holders,
) -> None:
    for generation in range(2, 8):
        parts, fresh = holders.deal_zero(holders.keys, generation)
        holders.refresh(1, holders.keys, fresh, parts[0].reveal())
        # What never was acknowledged by all does not pile up.
        assert holders.held(1) == [1, generation]
    fresh = holders.refresh_all(holders.keys, 8)
    # Acknowledged, but not named by a version: the next one starts from it, and all three stay.
    last = holders.refresh_all(fresh, 9)
    assert holders.held(1) == [1, 8, 9]
    again = holders.refresh_all(fresh, 10)
    assert holders.held(1) == [1, 8, 10]
    holders.activate(fresh)
    assert holders.held(1) == [8, 10]
    holders.activate(again)
    assert holders.held(1) == [10]
    new = [keeper.find(PARAMETERS.authority, 10) for keeper in holders.keepers.values()]
    assert secret_of(new[1:]) == ALPHA
    assert last.generation == 9


def test_a_server_without_the_share_in_use_keeps_what_it_has_until_that_is_repaired(
    holders: Holders,
) -> None:
    """A version that names a generation by mistake must not destroy the authority."""
    fresh = replace(holders.refresh_all(holders.keys, 2), generation=5)
    holders.activate(fresh)
    assert [holders.held(server) for server in holders.keepers] == [[1, 2]] * 3
    with pytest.raises(StorageError, match="no share of generation 5"):
        holders.keepers[1].find(PARAMETERS.authority, 5)


def test_a_refresh_is_refused_unless_it_is_the_owners_for_this_server_and_right(
    holders: Holders,
) -> None:
    parts, fresh = holders.deal_zero(holders.keys, 2)
    part = parts[0].reveal()
    stranger, other = SigningKey(SecretKey(b"s" * 32)), Identity(SecretKey(b"x" * 32))
    foreign, _ = set_up(RANDOM)
    behind = replace(fresh, generation=1)
    bent = replace(fresh, keys=(fresh.keys[1], *fresh.keys[1:]))
    cases: tuple[tuple[type[Exception], str, dict[str, Any]], ...] = (
        (VerificationError, "signature", {"owner": stranger}),
        (VerificationError, "share of server 2", {"server": 2}),
        (VerificationError, "share of server 1 came", {"collection": bytes(16)}),
        (VerificationError, "not made by this server", {"challenge": bytes(32)}),
        (FormatError, "challenge has not 32", {"challenge": bytes(31)}),
        (FormatError, "verification keys", {"parameters": foreign}),
        (FormatError, "do not stand for", {"verification": bent}),
        (VerificationError, "generation 1 came after one of 1", {"verification": behind}),
        (StorageError, "no share of generation 7", {"base": 7}),
        (RecordRefused, "part of zero", {"to": other}),
        (RecordRefused, "part of zero", {"sealed_for": bytes(32)}),
    )
    for expected, words, changes in cases:
        with pytest.raises(expected, match=words):
            holders.refresh(1, holders.keys, fresh, part, **changes)
        assert holders.held(1) == [1], words
    for wrong, words in (
        (bytes(32), "order of the group"),
        (R.to_bytes(32, "big"), "order of the group"),
        (part[:31], "order of the group"),
        (parts[1].reveal(), "not what its verification key stands for"),
    ):
        with pytest.raises(FormatError, match=words):
            holders.refresh(1, holders.keys, fresh, wrong)
    assert holders.refresh(1, holders.keys, fresh, part) == 2
    with pytest.raises(VerificationError, match="generation 2 came after one of 2"):
        holders.refresh(1, holders.keys, fresh, part)


def test_an_order_of_one_kind_is_none_of_another(holders: Holders) -> None:
    _, fresh = holders.deal_zero(holders.keys, 2)
    order = RefreshOrder(COLLECTION, 1, holders.challenge(1), 1, PARAMETERS, fresh)
    signed = SignedOrder.sign(order, OWNER)
    keeper = holders.keepers[1]
    for call in (keeper.install, keeper.help):
        with pytest.raises(VerificationError, match="signature"):
            call(signed.body, signed.signature, b"", CLAIM)
    with pytest.raises(VerificationError, match="signature"):
        keeper.repair(signed.body, signed.signature, [], CLAIM)


def test_a_server_that_lost_its_share_has_it_back_from_others(holders: Holders) -> None:
    holders.lose(1)
    assert holders.held(1) == []
    masks, points = deal_masks(PARAMETERS, 1, 1, (2, 3), RANDOM)
    parts = [holders.help(j, 1, mask) for j, mask in zip((2, 3), masks, strict=True)]
    order = holders.repair_order(1, (2, 3), points)
    assert holders.repair(order, parts) == 1
    holders.reopen()
    restored = holders.keepers[1].find(PARAMETERS.authority, 1)
    assert restored.encode() == holders.shares[0].encode()


def test_a_helper_refuses_all_but_the_owners_order_for_it(holders: Holders) -> None:
    masks, _ = deal_masks(PARAMETERS, 1, 1, (2, 3), RANDOM)
    stranger = SigningKey(SecretKey(b"s" * 32))
    cases: tuple[tuple[type[Exception], str, dict[str, Any]], ...] = (
        (VerificationError, "signature", {"owner": stranger}),
        (VerificationError, "came to server 2", {"collection": bytes(16)}),
        (VerificationError, "came to server 2", {"server": 3}),
        (VerificationError, "not made by this server", {"challenge": bytes(32)}),
        (VerificationError, "itself", {"target": 2}),
        (FormatError, "no server 0", {"target": 0}),
        (FormatError, "repair has not 16", {"repair": bytes(15)}),
        (FormatError, "authority has not 32", {"authority": bytes(31)}),
        (StorageError, "generation 2", {"generation": 2}),
        (StorageError, "generation 1", {"authority": bytes(32)}),
    )
    for expected, words, changes in cases:
        with pytest.raises(expected, match=words):
            holders.help(2, 1, masks[0], **changes)
    assert holders.help(2, 1, masks[0])


def test_a_repair_is_refused_unless_it_gives_the_share_that_is_in_use(holders: Holders) -> None:
    holders.lose(1)
    masks, points = deal_masks(PARAMETERS, 1, 1, (2, 3), RANDOM)
    parts = [holders.help(j, 1, mask) for j, mask in zip((2, 3), masks, strict=True)]

    def order() -> RepairOrder:
        return holders.repair_order(1, (2, 3), points)

    stranger = SigningKey(SecretKey(b"s" * 32))
    with pytest.raises(VerificationError, match="signature"):
        holders.repair(order(), parts, owner=stranger)
    for words, changes, sent in (
        ("not made by this server", {"challenge": bytes(32)}, parts),
        ("other helpers than 2 of 3 servers but 1", {"helpers": (1, 2)}, parts),
        ("other helpers", {"helpers": (3, 2)}, parts),
        ("other helpers", {"helpers": (2,), "masks": points[:1]}, parts[:1]),
        ("other helpers", {"helpers": (2, 4)}, parts),
        ("masks", {"masks": points[:1]}, parts),
        ("repair has not 16", {"repair": bytes(17)}, parts),
        ("part of server 2", {"repair": bytes(16)}, parts),
        ("part of server 2", {}, parts[::-1]),
        ("1 parts came of 2", {}, parts[:1]),
        ("part of server 2 is not its masked share", {"masks": points[::-1]}, parts),
    ):
        with pytest.raises(VerificationError, match=words):
            holders.repair(replace(order(), **changes), sent)
        assert holders.held(1) == [], words
    # Masks that do not vanish at the server: every part is right, and the sum is not the share.
    shifted = [seal_scalar((reveal_scalar(mask) + 1) % R) for mask in masks]
    wrong = [holders.help(j, 1, mask) for j, mask in zip((2, 3), shifted, strict=True)]
    moved = tuple(point * GROUP.g2 for point in points)
    with pytest.raises(FormatError, match="not what its verification key stands for"):
        holders.repair(replace(order(), masks=moved), wrong)
    assert holders.repair(order(), parts) == 1


def test_a_repair_does_not_bring_an_older_share_back(holders: Holders) -> None:
    holders.refresh_all(holders.keys, 2)
    masks, points = deal_masks(PARAMETERS, 1, 1, (2, 3), RANDOM)
    parts = [holders.help(j, 1, mask) for j, mask in zip((2, 3), masks, strict=True)]
    with pytest.raises(VerificationError, match="generation 1 came after one of 2"):
        holders.repair(holders.repair_order(1, (2, 3), points), parts)
    assert holders.held(1) == [1, 2]


def test_a_part_for_one_server_opens_for_no_other_and_in_no_other_repair(holders: Holders) -> None:
    masks, _ = deal_masks(PARAMETERS, 1, 1, (2, 3), RANDOM)
    part = holders.help(2, 1, masks[0])
    repair = b"this repair 16 b"
    right = part_context(repair, 1, 1, 2)
    target = holders.keepers[1].sealing
    assert len(target.open(PART_PURPOSE, right, part, "a part")) == 32
    for who, context in (
        (holders.keepers[3].sealing, right),
        (target, part_context(bytes(16), 1, 1, 2)),
        (target, part_context(repair, 2, 1, 2)),
        (target, part_context(repair, 1, 1, 3)),
        (target, part_context(repair, 1, 3, 2)),
    ):
        with pytest.raises(RecordRefused):
            who.open(PART_PURPOSE, context, part, "a part")


def _orders(holders: Holders) -> tuple[Order, ...]:
    _, fresh = holders.deal_zero(holders.keys, 2)
    _, points = deal_masks(PARAMETERS, 1, 1, (2, 3), RANDOM)
    identity = Identity(SecretKey(b"i" * 32)).public
    return (
        RefreshOrder(COLLECTION, 1, bytes(32), 1, PARAMETERS, fresh),
        HelpOrder(COLLECTION, 2, bytes(32), bytes(32), 1, 1, identity, bytes(16), points[0]),
        holders.repair_order(1, (2, 3), points),
    )


def test_orders_read_as_they_were_written_and_in_no_other_shape(holders: Holders) -> None:
    for order in _orders(holders):
        body = order.encode()
        kind = type(order)
        assert kind.decode(body) == order
        assert kind.decode(body).encode() == body
        fields = decode_cbor(body, "an order")
        changed = [body[:-1], body + b"\0", b"", encode_cbor(fields | {"more": 1})]
        for name in fields:
            changed.append(encode_cbor({k: v for k, v in fields.items() if k != name}))
            changed.append(encode_cbor(fields | {name: "text"}))
        for wrong in changed:
            with pytest.raises(FormatError):
                kind.decode(wrong)


# --- what is erased -------------------------------------------------------------------------------


def test_what_a_store_still_has_of_erased_shares_opens_no_more(holders: Holders) -> None:
    """The store's file keeps old pages; a thief of the whole folder and of the key has these."""
    store = holders.stores[1]
    states = [store.read_state("authority")]
    fresh = holders.refresh_all(holders.keys, 2)
    states.append(store.read_state("authority"))
    holders.activate(fresh)
    last = store.read_state("authority")
    file = (store.folder / "objects" / "data.mdb").read_bytes()
    assert last is not None
    for state in states:
        assert state is not None
        # Still there, so it has to be useless.
        assert state[-100:] in file
        store.write_state("authority", state)
        with pytest.raises(StorageError, match="damaged"):
            ShareKeeper(1, SecretKey(b"\1" * 32), store, holders.challenges[1], RANDOM)
    store.write_state("authority", last)
    holders.reopen()
    assert holders.held(1) == [2]


@pytest.mark.parametrize("step", ["draw", "write_state", "keep_only"])
def test_shares_survive_an_end_at_any_step_of_changing_them(holders: Holders, step: str) -> None:
    class Ended(Exception):
        pass

    def end(*_arguments: object) -> None:
        raise Ended

    keeper = holders.keepers[1]
    if step == "write_state":
        keeper._store.write_state = end  # type: ignore[assignment, method-assign]
    else:
        setattr(keeper._keys, step, end)
    parts, fresh = holders.deal_zero(holders.keys, 2)
    with pytest.raises(Ended):
        holders.refresh(1, holders.keys, fresh, parts[0].reveal())
    holders.reopen()
    assert holders.held(1) == ([1, 2] if step == "keep_only" else [1])
    for generation in (3, 4):
        holders.refresh_all(holders.keys, generation)
        holders.reopen()
        assert holders.held(1) == [1, generation]


def test_a_key_is_found_until_another_takes_its_place(tmp_path: Path) -> None:
    keys = ErasableKeys(tmp_path / "keys", RANDOM)
    first, one = keys.draw(b"")
    keys.keep_only(first)
    second, two = keys.draw(first)
    # Drawn and not used: the next one takes its place, never that of the one in use.
    third, three = keys.draw(first)
    assert keys.find(first).reveal() == one.reveal()
    assert keys.find(third).reveal() == three.reveal()
    with pytest.raises(StorageError, match="does not hold"):
        keys.find(second)
    keys.keep_only(third)
    data = (tmp_path / "keys").read_bytes()
    assert len(data) == 96
    assert three.reveal() in data
    assert one.reveal() not in data
    assert two.reveal() not in data
    for name in (first, b"", third[:15]):
        with pytest.raises(StorageError):
            keys.find(name)
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o600


def test_a_helper_refuses_a_mask_that_somebody_else_put_in(holders: Holders) -> None:
    """Whoever knows a mask reads the helper's share off the part that the target opens."""
    masks, points = deal_masks(PARAMETERS, 1, 1, (2, 3), RANDOM)

    with pytest.raises(FormatError, match="not the one in the owner's order"):
        holders.help(2, 1, masks[1], mask=points[0])
