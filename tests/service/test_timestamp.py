"""The timestamp key: it renews a version while the owner is away, and can do nothing else."""

from __future__ import annotations

import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.errors import (
    CredentialRefused,
    InputError,
    ManifestExpired,
    MksearchError,
    NotEnoughAnswers,
    ProfileError,
    ServerRefused,
)
from mksearch.index.manifest import SignedManifest
from mksearch.index.renewal import SignedRenewal
from mksearch.params import MANIFEST_LIFE_S, MANIFEST_WARNING_S
from mksearch_client.connection import GrpcConnection
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner
from mksearch_client.profile import Profile
from mksearch_client.timestamp import Renewed, TimestampFile, renew_by_timestamp
from tests.support.grpc_stage import RANDOM, GrpcStage, corpus, staging

DAY_S = 86_400
#: A renewal is due, and nothing has expired.
SOON_S = MANIFEST_LIFE_S - DAY_S


class Stage:
    """A collection with a timestamp key, and a clock that all of it follows.

    Attributes:
        servers: the servers and their owner.
        now_s: Unix seconds.
        key_file: the timestamp key.
    """

    def __init__(self, servers: GrpcStage) -> None:
        self.servers = servers
        self.start_s = int(time.time())
        self.now_s = self.start_s
        self.key_file = servers.folder / "renewals.key"

    def clock(self) -> float:
        return self.now_s

    def follow(self) -> None:
        """Have the servers follow the clock, also after a restart."""
        for server in self.servers.servers.values():
            server.runtime.search._clock = self.clock
            server.runtime.gate._clock = self.clock

    def owner(self) -> Owner:
        return Owner(Profile.open(self.servers.owner.profile.folder), clock=self.clock)

    def searcher(self, *, accept_expired: bool = False) -> Searcher:
        """Return a Searcher of the owner that remembers nothing but the profile's files."""
        profile = Profile.open(self.servers.owner.profile.folder)
        return Searcher(profile, clock=self.clock, accept_expired=accept_expired)

    def warnings(self) -> list[str]:
        """Search; return the warnings about the expiry."""
        with self.searcher() as searcher:
            result = searcher.search("apple", 3)
        assert result.hits
        return [warning for warning in result.warnings if "expire" in warning]

    def file(self) -> TimestampFile:
        return TimestampFile.read(self.key_file, None)

    def renew(self) -> Renewed:
        return renew_by_timestamp(self.file(), clock=self.clock)

    def newest(self) -> SignedManifest:
        with self.owner() as owner:
            signed = owner.status()[0]
        assert signed is not None
        return signed

    def heard(self) -> int:
        """Return how often servers were asked for renewals."""
        calls = [name for server in self.servers.servers.values() for name, _ in server.heard]
        return calls.count("GetRenewal")

    def held(self) -> list[bytes]:
        """Return the renewal that each server holds."""
        return [server.runtime.search.renewal() for server in self.servers.servers.values()]

    def connection(self, server: int) -> GrpcConnection:
        entry = self.servers.owner.profile.servers[server]
        return GrpcConnection(server, entry.address, entry.key, RANDOM)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcStage]:
    with staging(tmp_path_factory.mktemp("timestamp")) as servers:
        servers.publish()
        yield servers


@pytest.fixture
def stage(shared: GrpcStage) -> Iterator[Stage]:
    made = Stage(shared)
    made.follow()
    made.key_file.unlink(missing_ok=True)
    with made.owner() as owner:
        owner.draw_timestamp_key(made.key_file)
    for server in shared.servers.values():
        server.heard.clear()
    yield made
    # A version of now for the next test.
    made.now_s = made.start_s
    with made.owner() as owner:
        owner.revoke_timestamp_key()


# --- what it is for ------------------------------------------------------------------------------


def test_an_absent_owner_stops_nobody(stage: Stage) -> None:
    stage.now_s += SOON_S
    assert stage.warnings() == ["the manifest expires in 1 days"]

    renewed = stage.renew()

    assert renewed.expires_at == stage.now_s + MANIFEST_LIFE_S
    assert [server.status for server in renewed.servers] == ["ok"] * 3
    assert stage.warnings() == []
    # The manifest has expired by itself.
    stage.now_s += MANIFEST_LIFE_S - MANIFEST_WARNING_S
    assert stage.warnings() == []
    stage.now_s += DAY_S
    assert stage.warnings() == ["the manifest expires in 13 days"]
    assert stage.newest().manifest.version == renewed.version


def test_what_has_expired_already_is_renewed_as_well(stage: Stage) -> None:
    stage.now_s += MANIFEST_LIFE_S + DAY_S
    with pytest.raises(ManifestExpired):
        stage.warnings()
    stage.renew()
    assert stage.warnings() == []


def test_a_renewal_lasts_as_long_as_a_manifest_and_not_a_second_longer(stage: Stage) -> None:
    stage.now_s += SOON_S
    renewed = stage.renew()
    stage.now_s = renewed.expires_at
    assert stage.warnings() == ["the manifest expires in 0 days"]
    stage.now_s += 1
    with pytest.raises(ManifestExpired, match="expired 1 s ago"):
        stage.warnings()
    with stage.searcher(accept_expired=True) as searcher:
        assert any("expired 1 s ago" in warning for warning in searcher.search("apple").warnings)


def test_nobody_asks_for_renewals_before_a_version_expires_soon(stage: Stage) -> None:
    stage.now_s += MANIFEST_LIFE_S - MANIFEST_WARNING_S
    stage.warnings()
    assert stage.heard() == 0
    stage.now_s += 1
    stage.warnings()
    assert stage.heard() == 3


def test_a_version_without_a_timestamp_key_is_asked_no_renewal_of(stage: Stage) -> None:
    with stage.owner() as owner:
        owner.revoke_timestamp_key()
    stage.now_s += SOON_S
    assert stage.warnings() == ["the manifest expires in 1 days"]
    assert stage.heard() == 0


def test_a_searcher_asks_once_a_minute_and_a_profile_keeps_what_came(stage: Stage) -> None:
    stage.now_s += SOON_S
    with stage.searcher() as searcher:
        for _ in range(3):
            searcher.search("apple")
        assert stage.heard() == 3
        stage.renew()
        stage.now_s += 60
        assert not any("expire" in warning for warning in searcher.search("apple").warnings)
    assert stage.heard() == 6
    assert stage.warnings() == []
    assert stage.heard() == 6


def test_a_renewal_that_one_server_alone_shows_is_enough(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.now_s += MANIFEST_LIFE_S + 1
    stage.renew()
    good = stage.held()[2]
    older = SignedRenewal.sign(stage.newest(), stage.now_s - DAY_S, stage.file().key).encode()
    shown: dict[int, Callable[[], bytes]] = {1: lambda: b"", 2: lambda: older, 3: lambda: good}

    def renewal(connection: GrpcConnection) -> bytes:
        return shown[connection.server]()

    monkeypatch.setattr(GrpcConnection, "renewal", renewal)
    with stage.searcher() as searcher:
        searcher.search("apple")
        assert searcher._until_s == stage.now_s + MANIFEST_LIFE_S


@pytest.mark.parametrize("kind", ["noise", "foreign", "another version", "future"])
def test_what_is_no_renewal_is_passed_over_and_nobody_named(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    stage.now_s += SOON_S
    newest = stage.newest()
    key = stage.file().key
    other = replace(newest, manifest=replace(newest.manifest, version=99))
    foreign = SigningKey(SecretKey(bytes(32)))
    named = replace(newest, manifest=replace(newest.manifest, timestamp_key=foreign.public))
    shown = {
        "noise": b"\x00" * 300,
        "foreign": SignedRenewal.sign(named, stage.now_s, foreign).encode(),
        "another version": SignedRenewal.sign(other, stage.now_s, key).encode(),
        "future": SignedRenewal.sign(newest, stage.now_s + 5 * DAY_S, key).encode(),
    }[kind]
    monkeypatch.setattr(GrpcConnection, "renewal", lambda _connection: shown)

    with stage.searcher() as searcher:
        result = searcher.search("apple")

    assert "the manifest expires in 1 days" in result.warnings
    assert {server.status for server in result.servers} <= {"ok", "unused"}
    stage.now_s = newest.manifest.expires_at + 1
    with pytest.raises(ManifestExpired):
        stage.warnings()


def test_a_server_that_hangs_or_knows_no_renewals_holds_nobody_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.now_s += SOON_S
    stage.renew()
    good = stage.held()[0]

    def renewal(connection: GrpcConnection) -> bytes:
        if connection.server == 1:
            raise ServerRefused("unimplemented", detail_code="unimplemented")
        if connection.server == 2:
            time.sleep(20)
        return good

    monkeypatch.setattr(GrpcConnection, "renewal", renewal)
    started = time.monotonic()
    assert stage.warnings() == []
    assert time.monotonic() - started < 15


# --- how it is kept ------------------------------------------------------------------------------


def test_the_key_is_carried_from_version_to_version(stage: Stage, tmp_path: Path) -> None:
    public = stage.file().key.public
    with stage.owner() as owner:
        assert owner.renew().manifest.timestamp_key == public
        documents = [corpus(tmp_path / "open.jsonl", "open", 5, "apple pie")]
        owner.publish(documents, delete_missing=True)
        assert stage.newest().manifest.timestamp_key == public
        stage.servers.enrol("carol", "role:analyst")
        stage.servers.admin.revoke(users=[stage.servers.id_of("carol")])
        rotated = owner.rotate().manifest
    assert rotated.access is not None
    assert {group.epoch for group in rotated.groups} == {rotated.access.epoch}
    assert rotated.timestamp_key == public


def test_a_renewal_survives_a_restart_and_not_the_next_version(stage: Stage) -> None:
    stage.now_s += SOON_S
    stage.renew()
    held = stage.held()
    assert all(held)
    for server in stage.servers.servers.values():
        server.restart()
    stage.follow()
    assert stage.held() == held
    assert stage.warnings() == []

    with stage.owner() as owner:
        owner.renew()
    assert stage.held() == [b""] * 3
    for server in stage.servers.servers.values():
        server.restart()
    stage.follow()
    assert stage.held() == [b""] * 3
    assert stage.warnings() == []


def test_servers_take_only_a_later_renewal(stage: Stage) -> None:
    newest, key = stage.newest(), stage.file().key
    first = SignedRenewal.sign(newest, stage.now_s, key).encode()
    second = SignedRenewal.sign(newest, stage.now_s + 1, key).encode()
    connection = stage.connection(1)
    try:
        assert connection.renew(second) == newest.manifest.version
        assert connection.renew(second) == newest.manifest.version
        with pytest.raises(ServerRefused) as caught:
            connection.renew(first)
        assert caught.value.detail_code == "renewal-refused"
        assert connection.renewal() == second
        ahead = SignedRenewal.sign(newest, stage.now_s + 500, key).encode()
        with pytest.raises(ServerRefused, match="500 s ahead"):
            connection.renew(ahead)
    finally:
        connection.close()


def test_n_minus_t_servers_must_take_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = {3}
    renew = GrpcConnection.renew

    def some(connection: GrpcConnection, data: bytes) -> int:
        if connection.server in refusing:
            raise ServerRefused("no", detail_code="storage", server=connection.server)
        return renew(connection, data)

    monkeypatch.setattr(GrpcConnection, "renew", some)
    assert [server.status for server in stage.renew().servers] == ["ok", "ok", "refused"]
    refusing.add(2)
    stage.now_s += 1
    with pytest.raises(NotEnoughAnswers) as caught:
        stage.renew()
    assert (caught.value.have, caught.value.need) == (1, 2)
    assert "server 2" in caught.value.message


def test_the_owner_sees_until_when_a_renewal_is(stage: Stage) -> None:
    stage.now_s += SOON_S
    renewed = stage.renew()
    with stage.owner() as owner:
        signed = owner.status()[0]
        assert signed is not None
        assert owner.expires_at(signed) == renewed.expires_at > signed.manifest.expires_at


# --- what its holder can do, and cannot ----------------------------------------------------------


def test_an_older_key_is_void_once_another_is_named(stage: Stage, tmp_path: Path) -> None:
    old = stage.file()
    with stage.owner() as owner:
        owner.draw_timestamp_key(tmp_path / "second.key")
    _require_void(stage, old, "another timestamp key")
    second = TimestampFile.read(tmp_path / "second.key", None)
    assert second.key.public != old.key.public
    renew_by_timestamp(second, clock=stage.clock)


def test_a_revoked_key_renews_nothing(stage: Stage) -> None:
    with stage.owner() as owner:
        owner.revoke_timestamp_key()
    _require_void(stage, stage.file(), "no timestamp key")


def _require_void(stage: Stage, file: TimestampFile, named: str) -> None:
    """Prove that neither the command nor a server takes a renewal by this key."""
    with pytest.raises(CredentialRefused, match=named):
        renew_by_timestamp(file, clock=stage.clock)
    newest = stage.newest()
    pretended = replace(newest, manifest=replace(newest.manifest, timestamp_key=file.key.public))
    forged = SignedRenewal.sign(pretended, stage.now_s, file.key).encode()
    connection = stage.connection(1)
    try:
        with pytest.raises(ServerRefused) as caught:
            connection.renew(forged)
    finally:
        connection.close()
    assert caught.value.detail_code == "not-verified"
    assert stage.held() == [b""] * 3


def test_the_timestamp_key_publishes_nothing(stage: Stage) -> None:
    newest, key = stage.newest(), stage.file().key
    following = replace(
        newest.manifest,
        version=newest.manifest.version + 1,
        previous=newest.hash,
        owner_key=key.public,
    )
    by_key = SignedManifest.sign(following, key)
    as_owner = SignedManifest.sign(following, key).encode()
    connection = stage.connection(1)
    try:
        for data in (by_key.encode(), as_owner):
            with pytest.raises(ServerRefused) as caught:
                connection.propose(data)
            assert caught.value.detail_code == "not-verified"
    finally:
        connection.close()


def test_the_file_of_the_key_holds_no_secret_of_the_owner(stage: Stage) -> None:
    data = stage.key_file.read_bytes()
    profile = stage.servers.owner.profile
    secrets = [profile.keys.master.reveal(), profile.read_keys()]
    assert not any(secret in data for secret in secrets)
    assert stat.S_IMODE(stage.key_file.stat().st_mode) == 0o600
    assert stage.file().seed.reveal().hex() not in repr(stage.file())


def test_an_old_version_kept_alive_fools_nobody_who_saw_a_newer_one(stage: Stage) -> None:
    old = stage.newest()
    with stage.owner() as owner:
        owner.renew()
    with stage.searcher() as searcher:
        searcher.search("apple")
        renewal = SignedRenewal.sign(old, stage.now_s, stage.file().key)
        for connection in searcher._servers.values():
            connection.manifest = old.encode  # type: ignore[method-assign]
            connection.renewal = renewal.encode  # type: ignore[method-assign]
        with pytest.raises(MksearchError) as caught:
            searcher.search("apple")
    assert caught.value.exit_code == 3
    assert "stale" in caught.value.message


def test_with_t_plus_1_servers_it_keeps_an_old_version_alive_for_who_saw_no_newer_one(
    stage: Stage, tmp_path: Path
) -> None:
    """What is not promised, and its end: the life of one signature after the last."""
    old, key = stage.newest(), stage.file().key
    with stage.owner() as owner:
        owner.revoke_timestamp_key()
    folder = tmp_path / "profile"
    shutil.copytree(stage.servers.owner.profile.folder, folder)
    (folder / "manifest").unlink()
    stage.now_s = old.manifest.expires_at + DAY_S
    renewal = SignedRenewal.sign(old, stage.now_s, key)

    def refresh() -> SignedManifest:
        with Searcher(Profile.open(folder), clock=stage.clock) as searcher:
            for connection in searcher._servers.values():
                connection.manifest = old.encode  # type: ignore[method-assign]
                connection.renewal = renewal.encode  # type: ignore[method-assign]
            return searcher.refresh().signed

    assert refresh().hash == old.hash
    stage.now_s += MANIFEST_LIFE_S + 1
    with pytest.raises(ManifestExpired):
        refresh()


# --- its file ------------------------------------------------------------------------------------


def test_a_key_is_never_written_over(stage: Stage) -> None:
    before, version = stage.key_file.read_bytes(), stage.newest().manifest.version
    with stage.owner() as owner, pytest.raises(InputError, match="there already"):
        owner.draw_timestamp_key(stage.key_file)
    assert stage.key_file.read_bytes() == before
    assert stage.newest().manifest.version == version
    stage.renew()


def test_the_file_may_have_a_passphrase_of_its_own(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "sealed.key"
    with stage.owner() as owner:
        owner.draw_timestamp_key(path, passphrase=b"correct horse")
    with pytest.raises(ProfileError, match="sealed with a passphrase"):
        TimestampFile.read(path, None)
    with pytest.raises(ProfileError, match="passphrase is wrong"):
        TimestampFile.read(path, b"wrong")
    file = TimestampFile.read(path, b"correct horse")
    assert file.seed.reveal() not in path.read_bytes()
    renew_by_timestamp(file, clock=stage.clock)


def test_a_file_that_is_none_is_refused_in_words(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        TimestampFile.read(tmp_path / "none", None)
    (tmp_path / "noise").write_bytes(bytes(100))
    data = stage.key_file.read_bytes()
    (tmp_path / "cut").write_bytes(data[:-1])
    for name in ("noise", "cut"):
        with pytest.raises(ProfileError, match="damaged"):
            TimestampFile.read(tmp_path / name, None)


def test_no_key_is_left_behind_by_a_command_that_reached_nobody(
    stage: Stage, tmp_path: Path
) -> None:
    for number in (2, 3):
        stage.servers.servers[number].stop()
    try:
        with stage.owner() as owner, pytest.raises(NotEnoughAnswers):
            owner.draw_timestamp_key(tmp_path / "unfinished.key")
    finally:
        for number in (2, 3):
            stage.servers.servers[number].start()
        stage.follow()
    assert not (tmp_path / "unfinished.key").exists()


def test_a_key_whose_version_was_interrupted_counts_once_that_is_finished(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "interrupted.key"
    with monkeypatch.context() as patched, stage.owner() as owner:

        def fail(connection: GrpcConnection, *_arguments: bytes) -> int:
            raise ServerRefused("no", detail_code="storage", server=connection.server)

        patched.setattr(GrpcConnection, "activate", fail)
        with pytest.raises(NotEnoughAnswers):
            owner.draw_timestamp_key(path)
    with stage.owner() as owner:
        owner.renew()
    renew_by_timestamp(TimestampFile.read(path, None), clock=stage.clock)
