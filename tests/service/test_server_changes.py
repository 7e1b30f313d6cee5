"""Servers that are replaced and added: old profiles go on, interruptions are finished, no share is
left that counts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mksearch.access.keys import AuthorityShare, reveal_scalar
from mksearch.access.pairing import BLS12_381
from mksearch.access.scalars import lagrange
from mksearch.errors import (
    InputError,
    MksearchError,
    NotEnoughAnswers,
    ParameterError,
    ServerUnreachable,
    VerificationError,
)
from mksearch_client import server_changes
from mksearch_client.administration import load_administration
from mksearch_client.connection import GrpcConnection
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner
from mksearch_client.profile import Profile
from mksearch_client.server_card import ServerCard
from mksearch_client.user_profile import UserProfile
from mksearch_server.identity import server_card
from tests.support.grpc_stage import GrpcServer, GrpcStage, staging

QUALIFIED = ("role:analyst", "dept:finance")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[GrpcStage]:
    """Three servers that share the authority, two groups, and a user with an old profile."""
    with staging(tmp_path) as made:
        made.publish(3)
        made.share()
        (made.folder / "card").write_bytes(made.owner.card())
        made.enrol("old", *QUALIFIED)
        yield made


def card_of(server: GrpcServer, **changes: object) -> Path:
    """Write the card of a server as its operator does."""
    path = server.folder / f"card-{len([*server.folder.glob('card-*')])}"
    fields = json.loads(server_card(server.folder, server.id, server.address, "")) | changes
    path.write_text(json.dumps(fields))
    return path


def card(server: GrpcServer) -> ServerCard:
    return ServerCard.read(card_of(server))


def owner_of(stage: GrpcStage) -> Owner:
    """Open the owner's profile as the next command does."""
    return Owner(Profile.open(stage.owner.profile.folder), timeout_s=3.0)


def replace(stage: GrpcStage, place: int, new: GrpcServer) -> server_changes.ServerChange:
    with owner_of(stage) as owner:
        return owner.replace_server(place, card(new))


def attempt(stage: GrpcStage, place: int | None, path: Path) -> None:
    read = ServerCard.read(path)
    with owner_of(stage) as owner:
        owner.add_server(read) if place is None else owner.replace_server(place, read)


def share_of(server: GrpcServer, stage: GrpcStage) -> AuthorityShare:
    """Give the newest share that a server holds."""
    keeper = server.runtime.authority.shares
    return keeper.find(stage.admin.authority, keeper.generation)


def alpha(stage: GrpcStage, shares: dict[int, AuthorityShare]) -> bool:
    """Tell whether shares of some servers make the authority's secret."""
    order = BLS12_381.order
    factors = lagrange(list(shares), order)
    numbers = (reveal_scalar(share.secret) for share in shares.values())
    found = sum(f * n for f, n in zip(factors, numbers, strict=True)) % order
    administration = load_administration(stage.owner.profile)
    assert administration is not None
    return bool(BLS12_381.g2**found == administration.parameters.public)


def require_whole(stage: GrpcStage, servers: dict[int, GrpcServer]) -> None:
    """Prove that all serve one version, byte for byte, and that any two answer a user."""
    with owner_of(stage) as owner:
        assert owner.verify() == dict.fromkeys(servers, "ok")
    for away in servers.values():
        if len(servers) > 3:
            break
        away.stop()
        with stage.searcher("old") as searcher:
            assert searcher.search("apple").groups == 2
        away.start()


# --- replacing ------------------------------------------------------------------------------------


def test_a_replaced_server_has_all_that_its_place_has_and_the_old_one_nothing_that_counts(
    stage: GrpcStage,
) -> None:
    lost = stage.servers[2]
    old_share = share_of(lost, stage)
    lost.stop()
    new = stage.newcomer(2)
    change = replace(stage, 2, new)
    assert (change.server, change.n_servers, change.behind, change.warnings) == (2, 3, (), ())
    assert change.generation == 2
    stage.servers[2] = new

    manifest = new.manifest
    assert manifest.servers is not None
    assert manifest.servers.servers[1].key == new.key
    assert [past.key for past in manifest.servers.retired] == [lost.key]
    # The shares of one generation make the secret, those of two do not.
    others = {server: share_of(stage.servers[server], stage) for server in (1, 3)}
    assert alpha(stage, {1: others[1], 2: share_of(new, stage)})
    assert alpha(stage, {2: share_of(new, stage), 3: others[3]})
    assert not alpha(stage, {1: others[1], 2: old_share})
    require_whole(stage, stage.servers)
    # The next versions carry it on, and new users enrol with the new card, old ones with theirs.
    stage.owner.close()
    stage.owner = owner_of(stage)
    stage.publish(4)
    stage.owner.renew()
    assert new.manifest.servers == manifest.servers
    for name in ("fresh", "from-an-old-card"):
        stage.enrol(name, *QUALIFIED)
        with stage.searcher(name) as searcher:
            assert searcher.search("apple").groups == 2


def test_old_profiles_learn_of_the_new_servers_and_ask_them(stage: GrpcStage) -> None:
    lost = stage.servers[2]
    lost.stop()
    new = stage.newcomer(2)
    copy = stage.folder / "old-owner"
    shutil.copytree(stage.owner.profile.folder, copy)
    with stage.searcher("old") as before, Searcher(stage.owner.profile) as owners:
        assert before.search("apple").version == owners.search("apple").version
        change = replace(stage, 2, new)
        stage.servers[1].stop()
        # Only server 3 is in their lists: it shows the list in which the new server 2 is.
        for searcher in (before, owners):
            result = searcher.search("apple")
            assert (result.version, result.verified) == (change.version, True)
            assert {report.id: report.status for report in result.servers}[2] == "ok"
    with Owner(copy) as owner:
        newest, statuses = owner.status()
        assert newest is not None
        assert newest.manifest.version == change.version
        assert [status.status for status in statuses] == ["unreachable", "ok", "ok"]
    profile = UserProfile.open(stage.folder / "user-old")
    assert profile.servers[2].key == new.key
    with stage.searcher("old") as after:
        assert after.search("apple").version == change.version
    # One whose profile is from before, and who comes now for the first time.
    user = stage.applicant("late")
    user.enrol(stage.credential(user, *QUALIFIED).encode())
    with stage.searcher("late") as late:
        assert late.search("apple").version == change.version


def test_a_version_of_before_is_not_taken_from_the_replaced_server(stage: GrpcStage) -> None:
    lost = stage.servers[2]
    new = stage.newcomer(2)
    change = replace(stage, 2, new)
    with stage.searcher("old") as searcher:
        assert searcher.search("apple").version == change.version
    # It goes on with what it had, at its old address; nobody asks it.
    heard = len(lost.heard)
    assert lost.manifest.version < change.version
    for server in (1, 3):
        stage.servers[server].stop()
    with stage.searcher("old") as searcher, pytest.raises(MksearchError):
        searcher.search("apple")
    assert len(lost.heard) == heard


def test_with_a_server_away_the_shares_stay_and_the_owner_is_told(tmp_path: Path) -> None:
    with staging(tmp_path, n_servers=4) as stage:
        stage.publish(2)
        stage.share()
        stage.servers[2].stop()
        stage.servers[4].stop()
        new = stage.newcomer(2)
        change = replace(stage, 2, new)
        assert (change.generation, change.behind) == (1, (4,))
        assert "rotate --authority" in change.warnings[0]
        stage.servers[4].start()
        with owner_of(stage) as owner:
            from mksearch_client.admin import Admin

            Admin(owner.profile).refresh()
            owner.renew()
        assert alpha(stage, {2: share_of(new, stage), 4: share_of(stage.servers[4], stage)})


# --- adding ---------------------------------------------------------------------------------------


def test_a_fourth_server_joins_with_a_share_at_its_point(stage: GrpcStage) -> None:
    before = {server: share_of(held, stage) for server, held in stage.servers.items()}
    new = stage.newcomer(4)
    with owner_of(stage) as owner:
        change = owner.add_server(card(new))
    assert (change.server, change.n_servers, change.generation) == (4, 4, 1)
    stage.servers[4] = new
    # Nobody's share changed, and the new one is of the same polynomial.
    for server, share in before.items():
        assert share_of(stage.servers[server], stage).encode() == share.encode()
        assert alpha(stage, {server: share, 4: share_of(new, stage)})
    with owner_of(stage) as owner:
        assert owner.verify() == dict.fromkeys(range(1, 5), "ok")
    stage.servers[1].stop()
    stage.servers[3].stop()
    with stage.searcher("old") as searcher:
        assert searcher.search("apple").groups == 2
    stage.servers[1].start()
    stage.servers[3].start()
    # The keys of users are made with the new server's part as well, and a refresh takes it along.
    with owner_of(stage) as owner:
        from mksearch_client.admin import Admin

        Admin(owner.profile).refresh()
        owner.renew()
        stage.admin = Admin(owner.profile)
    assert alpha(stage, {2: share_of(stage.servers[2], stage), 4: share_of(new, stage)})
    stage.servers[1].stop()
    stage.servers[2].stop()
    user = stage.applicant("new")
    user.enrol(stage.credential(user, *QUALIFIED).encode())


# --- interruptions --------------------------------------------------------------------------------


class Crash(Exception):
    """The owner's machine stops."""


@contextmanager
def crashing(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, after: int = 0
) -> Iterator[None]:
    """Have the ``after``-th call of something from here on end the owner's process."""
    real: Callable[..., object] = getattr(owner, name)
    n_calls = 0

    def call(*args: object, **kwargs: object) -> object:
        nonlocal n_calls
        n_calls += 1
        if n_calls > after:
            raise Crash
        return real(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, call)
        with pytest.raises(Crash):
            yield


@pytest.mark.parametrize(
    ("where", "name", "after"),
    [
        (GrpcConnection, "claim", 0),
        (server_changes, "give_share", 0),
        (server_changes, "refresh_shares", 0),
        (Owner, "_renew", 0),
        (GrpcConnection, "propose", 2),
        (GrpcConnection, "put_all", 0),
        (GrpcConnection, "activate", 0),
        (GrpcConnection, "activate", 2),
        (Profile, "save", 0),
    ],
)
def test_a_replacement_that_was_interrupted_is_completed_by_the_same_command(
    stage: GrpcStage, monkeypatch: pytest.MonkeyPatch, where: object, name: str, after: int
) -> None:
    stage.servers[2].stop()
    new = stage.newcomer(2)
    with crashing(monkeypatch, where, name, after):
        replace(stage, 2, new)
    # Whoever searches meanwhile finds what there is.
    with stage.searcher("old") as searcher:
        assert searcher.search("apple").groups == 2
    try:
        change = replace(stage, 2, new)
        assert (change.server, change.behind, change.warnings) == (2, (), ())
    except ParameterError as error:
        # All was done but the last line of the report.
        assert name == "save"
        assert "has already" in str(error)  # noqa: PT017
    stage.servers[2] = new
    others = share_of(stage.servers[1], stage)
    assert alpha(stage, {1: others, 2: share_of(new, stage)})
    with owner_of(stage) as owner:
        assert owner.verify() == dict.fromkeys((1, 2, 3), "ok")
    with pytest.raises(ParameterError, match="has already"):
        replace(stage, 2, new)


def test_what_was_interrupted_is_completed_by_the_next_publish_too(
    stage: GrpcStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = stage.newcomer(4)
    with crashing(monkeypatch, GrpcConnection, "activate"), owner_of(stage) as owner:
        owner.add_server(card(new))
    with owner_of(stage) as owner:
        owner.renew()
        assert len(owner.profile.servers) == 4
        assert owner.verify() == dict.fromkeys(range(1, 5), "ok")


def test_another_server_may_take_the_place_of_one_that_died_while_it_came(
    stage: GrpcStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.servers[2].stop()
    dead, new = stage.newcomer(2), stage.newcomer(2)
    with crashing(monkeypatch, Owner, "_renew"):
        replace(stage, 2, dead)
    dead.stop()
    change = replace(stage, 2, new)
    assert (change.behind, change.warnings) == ((), ())
    assert alpha(stage, {1: share_of(stage.servers[1], stage), 2: share_of(new, stage)})


# --- refusals -------------------------------------------------------------------------------------


def test_cards_that_do_not_fit_are_refused_with_a_reason_and_nothing_changes(
    stage: GrpcStage,
) -> None:
    new = stage.newcomer(2)
    good = card(new)
    before = stage.owner.profile.highest_seen()
    for place, path, error, message in (
        (7, card_of(new), ParameterError, "there is no server 7 among 3"),
        (3, card_of(new), ParameterError, "made with id 2, not 3"),
        (None, card_of(new), ParameterError, "the next place is 4"),
        (2, card_of(stage.servers[2]), ParameterError, "of server 2, which the collection has"),
        (2, card_of(new, address=stage.servers[1].address), ParameterError, "of server 1"),
        (2, card_of(new, address=stage.servers[2].address), VerificationError, "not the server of"),
        (2, card_of(new, address="127.0.0.1:1"), ServerUnreachable, "new server does not answer"),
        (2, card_of(new, key="00" * 31), InputError, "is damaged"),
        (2, card_of(new, kind="x"), InputError, "no server card"),
        (2, card_of(new, format=2), InputError, "does not read"),
        (2, stage.folder / "card", InputError, "card of a collection"),
        (2, stage.folder / "nothing", InputError, "cannot be read"),
    ):
        with pytest.raises(error, match=message) as caught:
            attempt(stage, place, path)
        assert caught.value.cure, message
        assert "\n" not in str(caught.value)
    assert stage.owner.profile.highest_seen() == before
    assert new.runtime.identity.claim is None
    with owner_of(stage) as owner:
        owner.replace_server(2, good)


def test_a_server_of_another_collection_is_refused(stage: GrpcStage, tmp_path: Path) -> None:
    with staging(tmp_path / "other") as other, owner_of(stage) as owner:
        with pytest.raises(ParameterError, match="belongs to another collection"):
            owner.replace_server(2, card(other.servers[2]))
        assert other.servers[2].runtime.identity.claim is not None


def test_a_replaced_server_does_not_come_back(stage: GrpcStage) -> None:
    old = stage.servers[2]
    old_card = card(old)
    change = replace(stage, 2, stage.newcomer(2))
    refusal = pytest.raises(ParameterError, match=f"replaced in version {change.version}")
    with owner_of(stage) as owner, refusal:
        owner.replace_server(2, old_card)


def test_too_few_servers_are_named_before_anything_changes(stage: GrpcStage) -> None:
    new = stage.newcomer(2)
    stage.servers[3].stop()
    with pytest.raises(NotEnoughAnswers, match=r"servers? answer") as caught:
        replace(stage, 2, new)
    assert caught.value.cure
    assert new.runtime.identity.claim is None


def test_evidence_against_a_replaced_server_is_not_held_against_the_new_one(
    stage: GrpcStage,
) -> None:
    new = stage.newcomer(2)
    folder = stage.folder / "user-old" / "evidence"
    folder.mkdir()
    (folder / f"2-{stage.servers[1].manifest.version}-00.evidence").write_bytes(b"old")
    with stage.searcher("old") as searcher:
        assert searcher._distrusted == {2}
        replace(stage, 2, new)
        searcher.search("apple")
        assert searcher._distrusted == set()
