"""Shares of the authority change between epochs and come back when lost; users notice nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mksearch.access.keys import AuthorityShare, reveal_scalar
from mksearch.access.scalars import lagrange
from mksearch.crypto.secret import SecretKey
from mksearch.errors import (
    ManifestRefused,
    NotEnoughAnswers,
    ParameterError,
    ServerRefused,
    StorageError,
)
from mksearch_client.admin import Admin
from mksearch_client.owner import Owner
from mksearch_client.user import User
from mksearch_server.identity import Claim
from tests.support.grpc_stage import LIFE_S, GrpcStage, staging

QUALIFIED = ("role:analyst", "dept:finance")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[GrpcStage]:
    """Three servers that share the authority."""
    with staging(tmp_path) as made:
        made.publish(2)
        made.share()
        yield made


def held(stage: GrpcStage) -> dict[int, list[int]]:
    """Give the generations that each server holds shares of."""
    return {
        server.id: [share.generation for share in server.runtime.authority.shares._shares]
        for server in stage.servers.values()
    }


def shares(stage: GrpcStage, generation: int) -> dict[int, AuthorityShare]:
    return {
        server.id: server.runtime.authority.shares.find(stage.admin.authority, generation)
        for server in stage.servers.values()
    }


def in_use(stage: GrpcStage, server: int = 1) -> int:
    access = stage.servers[server].manifest.access
    assert access is not None
    keys = access.verification_keys
    assert keys is not None
    return keys.generation


def lose(stage: GrpcStage, server: int) -> None:
    """Have a server lose its shares, for good."""
    keeper = stage.servers[server].runtime.authority.shares
    assert keeper.parameters is not None
    keeper._keep(keeper.parameters, ())
    stage.servers[server].restart()


def works_for(stage: GrpcStage, name: str) -> None:
    """Enrol a new user and have them find what the policy allows."""
    stage.enrol(name, *QUALIFIED)
    finds(stage, name)


def finds(stage: GrpcStage, name: str) -> None:
    with stage.searcher(name) as searcher:
        assert searcher.search("apple").groups == 2


# --- refresh --------------------------------------------------------------------------------------


def test_a_refresh_changes_every_share_and_no_key_of_a_user(stage: GrpcStage) -> None:
    stage.enrol("before", *QUALIFIED)
    old = shares(stage, 1)
    stage.admin.refresh()
    # Until a version names the new shares the old ones are in use, and both are there.
    assert held(stage) == {1: [1, 2], 2: [1, 2], 3: [1, 2]}
    works_for(stage, "between")
    for server in stage.servers.values():
        server.restart()
    assert held(stage) == {1: [1, 2], 2: [1, 2], 3: [1, 2]}
    stage.owner.renew()
    assert (in_use(stage), held(stage)) == (2, {1: [2], 2: [2], 3: [2]})
    works_for(stage, "after")
    for name in ("before", "between"):
        finds(stage, name)
    new = shares(stage, 2)
    assert all(old[server].encode()[-32:] != new[server].encode()[-32:] for server in old)
    # The same secret as before, and shares of both generations together make another one.
    points = [1, 2]
    factors = lagrange(points, stage.admin._keys.parameters.group.order)

    def at_zero(one: AuthorityShare, other: AuthorityShare) -> int:
        order = stage.admin._keys.parameters.group.order
        values = (reveal_scalar(one.secret), reveal_scalar(other.secret))
        return sum(f * v for f, v in zip(factors, values, strict=True)) % order

    assert at_zero(old[1], old[2]) == at_zero(new[1], new[2])
    assert at_zero(old[1], new[2]) != at_zero(new[1], new[2])


def test_the_owner_that_refreshed_keeps_no_share_and_no_part_of_zero(stage: GrpcStage) -> None:
    old = shares(stage, 1)
    stage.admin.refresh()
    new = shares(stage, 2)
    order = stage.admin._keys.parameters.group.order
    secrets = [share.secret.reveal() for share in (*old.values(), *new.values())]
    for server, share in old.items():
        difference = (reveal_scalar(new[server].secret) - reveal_scalar(share.secret)) % order
        secrets.append(difference.to_bytes(32, "big"))
    for path in (p for p in stage.folder.rglob("*") if p.is_file()):
        data = path.read_bytes()
        assert not [secret for secret in secrets if secret in data], path


def test_every_server_takes_part_in_a_refresh_or_the_old_shares_stay(stage: GrpcStage) -> None:
    stage.servers[3].stop()
    with pytest.raises(NotEnoughAnswers, match=r"2 servers take part in the refresh \(need 3\)"):
        stage.admin.refresh(timeout_s=2)
    stage.servers[3].start()
    assert held(stage) == {1: [1], 2: [1], 3: [1]}
    stage.admin.refresh()
    stage.owner.renew()
    assert held(stage) == {1: [2], 2: [2], 3: [2]}


def test_a_refresh_that_ended_between_servers_changes_nothing_and_is_done_again(
    stage: GrpcStage,
) -> None:
    broken = stage.servers[2].runtime.authority.shares

    def refuse(*_arguments: object) -> int:
        raise StorageError("no room")

    broken.refresh = refuse  # type: ignore[assignment, method-assign]
    for _ in range(3):
        with pytest.raises(NotEnoughAnswers, match="server 2: no room"):
            stage.admin.refresh()
    assert held(stage) == {1: [1, 4], 2: [1], 3: [1, 4]}
    # A version that comes meanwhile still names the old shares, which all hold.
    stage.owner.renew()
    assert in_use(stage) == 1
    works_for(stage, "meanwhile")
    del broken.refresh
    stage.admin.refresh()
    stage.owner.renew()
    assert (in_use(stage), held(stage)) == (5, {1: [5], 2: [5], 3: [5]})
    works_for(stage, "afterwards")


def test_a_refresh_may_follow_another_before_any_version_names_it(stage: GrpcStage) -> None:
    stage.admin.refresh()
    stage.admin.refresh()
    assert held(stage) == {1: [1, 2, 3], 2: [1, 2, 3], 3: [1, 2, 3]}
    works_for(stage, "between")
    stage.owner.renew()
    assert held(stage) == {1: [3], 2: [3], 3: [3]}
    works_for(stage, "after")


def test_a_server_that_slept_through_the_new_version_is_passed_over_and_comes_along(
    stage: GrpcStage,
) -> None:
    stage.admin.refresh()
    stage.servers[1].stop()
    stage.owner.renew()
    stage.servers[1].start()
    assert held(stage) == {1: [1, 2], 2: [2], 3: [2]}
    works_for(stage, "passed-over")
    stage.owner.renew()
    assert held(stage)[1] == [2]
    stage.servers[2].stop()
    works_for(stage, "along")


def test_a_new_epoch_and_new_shares_go_together(stage: GrpcStage) -> None:
    stage.enrol("stays", *QUALIFIED)
    stage.enrol("goes", *QUALIFIED)
    stage.admin.revoke(users=[stage.id_of("goes")])
    stage.admin.refresh()
    stage.owner.renew()
    assert in_use(stage) == 2
    finds(stage, "stays")


def test_an_owner_from_an_older_backup_does_not_bring_erased_shares_back(
    stage: GrpcStage, tmp_path: Path
) -> None:
    """Keys of a generation that the servers erased would end every enrolment."""
    old = tmp_path / "old-owner"
    shutil.copytree(stage.owner.profile.folder, old)
    stage.admin.refresh()
    stage.owner.renew()
    with Owner(old) as owner:
        owner.renew()
    assert (in_use(stage), held(stage)) == (2, {1: [2], 2: [2], 3: [2]})
    works_for(stage, "recovered")
    # Nor does its next refresh begin at what it knows.
    admin = Admin(old)
    admin.refresh()
    with Owner(old) as owner:
        owner.renew()
    assert held(stage) == {1: [3], 2: [3], 3: [3]}
    user = User.create(tmp_path / "later", stage.folder / "card")
    user.enrol(admin.issue(user.profile.identity.public, QUALIFIED, life_s=LIFE_S).encode())


def test_what_is_not_shared_is_not_refreshed_or_repaired(tmp_path: Path) -> None:
    with staging(tmp_path) as stage:
        stage.publish(2)
        for work in (stage.admin.refresh, lambda: stage.admin.repair(1)):
            with pytest.raises(ParameterError, match="do not share the authority yet"):
                work()
        stage.admin.share()
        with pytest.raises(ManifestRefused, match="does not name"):
            stage.admin.refresh()


# --- repair ---------------------------------------------------------------------------------------


def test_a_lost_share_comes_back_from_the_others(stage: GrpcStage) -> None:
    before = shares(stage, 1)[1].encode()
    lose(stage, 1)
    assert held(stage)[1] == []
    # Without it the others admit users.
    works_for(stage, "without")
    assert stage.admin.repair(1) == 1
    stage.servers[1].restart()
    assert shares(stage, 1)[1].encode() == before
    stage.servers[2].stop()
    works_for(stage, "with")


def test_refresh_needs_every_share_and_goes_on_after_a_repair(stage: GrpcStage) -> None:
    lose(stage, 2)
    with pytest.raises(NotEnoughAnswers, match="server 2: this server holds no share"):
        stage.admin.refresh()
    stage.admin.repair(2)
    stage.admin.refresh()
    stage.owner.renew()
    # The next generation that no server has seen.
    assert held(stage) == {1: [3], 2: [3], 3: [3]}


def test_a_share_that_waits_for_its_version_is_repaired_after_it(stage: GrpcStage) -> None:
    stage.admin.refresh()
    lose(stage, 3)
    with pytest.raises(ParameterError, match="generation 2 wait for the next version"):
        stage.admin.repair(3)
    stage.owner.renew()
    assert stage.admin.repair(3) == 2
    assert held(stage) == {1: [2], 2: [2], 3: [2]}


def test_other_helpers_take_the_place_of_one_that_does_not_help(tmp_path: Path) -> None:
    with staging(tmp_path, 5, 2) as stage:
        stage.publish(2)
        stage.share()
        before = shares(stage, 1)[4].encode()
        lose(stage, 4)
        lose(stage, 1)
        assert stage.admin.repair(4) == 1
        assert shares_of(stage, 4) == [before]
        stage.servers[2].stop()
        # Servers 3, 4 and 5 remain.
        assert stage.admin.repair(1, timeout_s=3) == 1
        stage.servers[3].stop()
        lose(stage, 1)
        with pytest.raises(NotEnoughAnswers, match=r"2 servers can help server 1 \(need 3\)"):
            stage.admin.repair(1, timeout_s=3)


def shares_of(stage: GrpcStage, server: int) -> list[bytes]:
    keeper = stage.servers[server].runtime.authority.shares
    return [share.encode() for share in keeper._shares]


def test_a_repair_without_its_server_or_of_none_is_refused(stage: GrpcStage) -> None:
    with pytest.raises(ParameterError, match="no server 4 among 3"):
        stage.admin.repair(4)
    stage.servers[1].stop()
    with pytest.raises(NotEnoughAnswers, match="server 1 does not answer"):
        stage.admin.repair(1, timeout_s=2)


def test_a_helper_that_shows_a_wrong_share_is_named_and_the_server_takes_nothing(
    stage: GrpcStage,
) -> None:
    lose(stage, 1)
    keeper = stage.servers[2].runtime.authority.shares
    right = keeper._shares
    keeper._shares = (AuthorityShare(right[0].authority, 1, 2, shares_with(stage, 3)),)
    with pytest.raises(ServerRefused, match="part of server 2 is not its masked share"):
        stage.admin.repair(1)
    assert held(stage)[1] == []
    keeper._shares = right
    assert stage.admin.repair(1) == 1


def shares_with(stage: GrpcStage, server: int) -> SecretKey:
    """Give the secret of another server's share."""
    return stage.servers[server].runtime.authority.shares._shares[0].secret


def test_nobody_sees_a_share_during_a_repair(stage: GrpcStage) -> None:
    """What the owner passes on is sealed, and masked below the seal."""
    seen: list[bytes] = []
    lose(stage, 1)
    target = stage.servers[1].runtime.authority.shares
    repair = target.repair

    def spy(body: bytes, signature: bytes, parts: Sequence[bytes], claim: Claim) -> int:
        seen.extend([body, *parts])
        return repair(body, signature, parts, claim)

    target.repair = spy  # type: ignore[method-assign]
    stage.admin.repair(1)
    del target.repair
    secrets = [share.secret.reveal() for share in shares(stage, 1).values()]
    assert len(seen) == 3
    assert not [one for one in seen for secret in secrets if secret in one]
