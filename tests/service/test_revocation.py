"""Revocation, epochs and rotation: who finds nothing any more, who notices nothing, and what old
keys still open."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mksearch.access.sealed_bundle import open_bundle
from mksearch.errors import (
    CredentialRefused,
    FormatError,
    InputError,
    MksearchError,
    NotEnoughAnswers,
    RecordRefused,
    ServerRefused,
    VerificationError,
)
from mksearch.index.blob_list import BlobList
from mksearch.index.catalogue import Lookup
from mksearch.index.segment import HEADER_BYTES
from mksearch.index.stream import open_stream
from mksearch.messages import RecordRequest
from mksearch.query.answer import Attempt
from mksearch.query.group import GroupView, open_dictionary
from mksearch.query.records import open_document, read_records
from mksearch.query.trapdoor import make_trapdoor, parse_question
from mksearch_client import credentials, fleet, owner, publishing, sealing
from mksearch_client import publication as publications
from mksearch_client.admin import Admin
from mksearch_client.connection import GrpcConnection
from mksearch_client.member import Searcher, connect
from mksearch_client.members import Members
from mksearch_client.owner import Owner
from mksearch_client.user import User
from tests.support.grpc_stage import POLICY, RANDOM, GrpcServer, GrpcStage, hit_ids, staging

MEMBER = ("role:analyst", "dept:finance")


@pytest.fixture(params=[True, False], ids=["shared", "offline"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GrpcStage]:
    """Two groups; ann stays, bob goes, eve has no attribute that opens the second group."""
    with staging(tmp_path) as made:
        made.publish()
        if request.param:
            made.share()
        made.enrol("ann", *MEMBER)
        made.enrol("bob", *MEMBER)
        made.enrol("eve", "city:oslo")
        yield made


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[GrpcStage]:
    """The same, shared."""
    with staging(tmp_path) as made:
        made.publish()
        made.share()
        made.enrol("ann", *MEMBER)
        made.enrol("bob", *MEMBER)
        yield made


def revoke(stage: GrpcStage, *names: str) -> None:
    """Revoke users at once."""
    stage.admin.revoke(users=[stage.id_of(name) for name in names])
    stage.owner.renew()


def found_by(searcher: Searcher, query: str = "apple openword3 closedword3") -> list[str]:
    return hit_ids(searcher.search(query, 2).hits)


def require_right(stage: GrpcStage, name: str, groups: int = 2) -> None:
    """Prove that a member with a client of their own finds what there is."""
    with stage.searcher(name) as searcher:
        result = searcher.search("openword3 closedword3")
        assert sorted(hit_ids(result.hits)) == ["closed3", "open3"][2 - groups :]
        assert result.groups == groups


def require_nothing(stage: GrpcStage, name: str) -> None:
    """Prove that somebody who was revoked finds nothing, with a client of their own."""
    with stage.searcher(name) as searcher, pytest.raises(CredentialRefused) as caught:
        searcher.search("openword3 closedword3")
    assert caught.value.exit_code == 4
    assert "no member of epoch" in caught.value.message


# --- revoked --------------------------------------------------------------------------------------


def test_a_revoked_user_finds_nothing_at_once_and_everybody_else_notices_nothing(
    stage: GrpcStage,
) -> None:
    searchers = {name: stage.searcher(name) for name in ("ann", "bob", "eve")}
    for name in ("ann", "bob"):
        assert found_by(searchers[name]) == ["closed3", "open3"]
    revoke(stage, "bob")
    with pytest.raises(CredentialRefused, match="no member of epoch 2") as caught:
        searchers["bob"].search("apple")
    assert caught.value.exit_code == 4
    assert found_by(searchers["ann"]) == ["closed3", "open3"]
    assert found_by(searchers["eve"])[0] == "open3"
    with pytest.raises(CredentialRefused):
        searchers["bob"].open("open3")
    for searcher in searchers.values():
        searcher.close()
    require_nothing(stage, "bob")
    require_right(stage, "ann")
    require_right(stage, "eve", 1)
    with Searcher(stage.owner.profile.folder) as searcher:
        assert len(searcher.search("apple", 50).hits) == 16


@contextmanager
def old_client(stage: GrpcStage, name: str) -> Iterator[OldClient]:
    """A member's keys and connections, to be used after the member was revoked."""
    with stage.searcher(name) as searcher:
        opened = searcher.refresh()
        servers = searcher._start()
        lookups = {
            view.group.policy: opened._lookup(servers, view, view.group.lookup)
            for view in opened.views
        }
    connections = connect(stage.users[name].profile)
    manifest = opened.signed.manifest
    yield OldClient(opened.views, lookups, connections, manifest.version, manifest.quorum)
    for connection in connections.values():
        connection.close()


@dataclass
class OldClient:
    """What somebody keeps who was a member once, and uses without asking anybody's leave."""

    views: Sequence[GroupView]
    lookups: dict[bytes, Lookup]
    connections: dict[int, GrpcConnection]
    version: int
    quorum: Any
    attempts: list[Attempt] = field(default_factory=list)

    def view(self, policy: str = POLICY) -> GroupView:
        return next(view for view in self.views if view.group.policy == policy.encode())

    def score(self, server: int, version: int) -> Any:
        """Ask one server for sums, signed with the old key."""
        view = self.view()
        trapdoor = make_trapdoor(view, parse_question(view, "budget"))
        attempt = Attempt(view.segments[0], trapdoor, self.quorum, RANDOM, version=version)
        self.attempts.append(attempt)
        request = attempt.request(server)
        signed = replace(request, ticket=view.ticket(server, request, int(time.time())))
        return self.connections[server].score(signed)

    def records(self, server: int, version: int) -> Any:
        view = self.view()
        segment = view.segments[0]
        request = RecordRequest(
            version, segment.id, np.arange(2), segment.slots.shape.width, RANDOM.bytes(16)
        )
        signed = replace(request, ticket=view.ticket(server, request, int(time.time())))
        return self.connections[server].records(signed)

    def answering(self, version: int) -> list[int]:
        """Give the servers that answer a query signed with the old key."""
        found = []
        for server in self.connections:
            for ask in (self.score, self.records):
                try:
                    ask(server, version)
                except ServerRefused:
                    continue
                found.append(server)
                break
        return found


def test_every_server_refuses_the_old_key_at_once_and_after_a_restart(shared: GrpcStage) -> None:
    stage = shared
    with old_client(stage, "bob") as bob:
        assert bob.answering(bob.version) == [1, 2, 3]
        revoke(stage, "bob")
        now = stage.servers[1].manifest.version
        for version in (bob.version, now):
            assert bob.answering(version) == []
        for server in stage.servers.values():
            server.restart()
        for version in (bob.version, now):
            assert bob.answering(version) == []
    require_nothing(stage, "bob")
    require_right(stage, "ann")


def _copy_store(server: GrpcServer) -> Path:
    server.stop()
    copy = server.folder / "copy"
    shutil.copytree(server.data, copy)
    server.start()
    return copy


def _restore_store(server: GrpcServer, copy: Path) -> None:
    server.stop()
    shutil.rmtree(server.data)
    shutil.copytree(copy, server.data)
    server.start()


def test_a_server_restored_from_an_older_copy_is_alone_with_the_old_key(shared: GrpcStage) -> None:
    stage = shared
    copy = _copy_store(stage.servers[1])
    with old_client(stage, "bob") as bob:
        revoke(stage, "bob")
        _restore_store(stage.servers[1], copy)
        assert stage.servers[1].manifest.version == bob.version
        assert bob.answering(bob.version) == [1]
        assert bob.answering(stage.servers[2].manifest.version) == []
        # One answer is none: its sums are not even unmasked with the group's keys.
        answer = bob.score(1, bob.version)
        attempt = bob.attempts[-1]
        attempt.add(1, answer)
        with pytest.raises(NotEnoughAnswers):
            attempt.combine()
    require_nothing(stage, "bob")
    with stage.searcher("ann") as searcher:
        for _ in range(3):
            result = searcher.search("openword3 closedword3")
            assert sorted(hit_ids(result.hits)) == ["closed3", "open3"]
            statuses = {report.id: report.status for report in result.servers}
            assert statuses[1] in ("stale", "unused")
    # A member that was away all the time asks the restored server first, and is not misled.
    late = stage.enrol("late", *MEMBER)
    assert late.whoami().epoch == 2
    require_right(stage, "late")


def test_servers_restored_together_beyond_the_bound_serve_the_time_before(
    shared: GrpcStage,
) -> None:
    """What the bound is for: t + 1 rolled back servers are a collection of the past."""
    stage = shared
    copies = {server: _copy_store(stage.servers[server]) for server in (1, 2)}
    with old_client(stage, "bob") as bob:
        revoke(stage, "bob")
        require_right(stage, "ann")
        for server, copy in copies.items():
            _restore_store(stage.servers[server], copy)
        assert bob.answering(bob.version) == [1, 2]
    # Whoever saw the new version is not taken back.
    with (
        Searcher(stage.folder / "user-ann", timeout_s=1.0) as searcher,
        pytest.raises(MksearchError, match="newest seen"),
    ):
        searcher.search("apple")


def test_a_revoked_credential_is_enrolled_by_no_server(shared: GrpcStage) -> None:
    stage = shared
    credential = (stage.users["bob"].profile.folder / "credential").read_bytes()
    revoke(stage, "bob")
    with pytest.raises(CredentialRefused, match=r"epoch 1.* 2"):
        stage.users["bob"].enrol(credential)
    other = User.create(stage.folder / "elsewhere", stage.folder / "card")
    with pytest.raises(CredentialRefused, match="user key"):
        other.enrol(credential)


def test_revoking_nobody_or_somebody_unknown_changes_nothing(stage: GrpcStage) -> None:
    with pytest.raises(InputError, match="0 members"):
        stage.admin.revoke(users=["00" * 32])
    with pytest.raises(InputError, match="no member has the attribute"):
        stage.admin.revoke(attributes=["role:pilot"])
    revoke(stage, "bob")
    # Noted already: asked again, after an error, it is only sent.
    before = stage.admin.members()
    assert stage.admin.revoke(users=[stage.id_of("bob")]) == before
    stage.owner.renew()
    assert stage.servers[1].manifest.access is not None
    assert stage.servers[1].manifest.access.epoch == 2


def test_who_was_revoked_can_be_admitted_again(stage: GrpcStage) -> None:
    revoke(stage, "bob")
    require_nothing(stage, "bob")
    bob = stage.users["bob"]
    bob.enrol(stage.credential(bob, "city:oslo").encode())
    require_right(stage, "bob", 1)
    revoke(stage, "eve")
    require_right(stage, "bob", 1)
    require_nothing(stage, "eve")


def test_an_attribute_taken_from_everybody_closes_what_it_opened(stage: GrpcStage) -> None:
    stage.enrol("dan", "role:analyst")
    stage.admin.revoke(attributes=["role:analyst"])
    stage.owner.renew()
    for name in ("ann", "bob", "eve"):
        require_right(stage, name, 1)
    assert stage.users["ann"].whoami().attributes == ("dept:finance",)
    # Who had nothing else is no member any more.
    require_nothing(stage, "dan")
    assert stage.id_of("dan") in stage.admin.members().revoked
    with stage.searcher("ann") as searcher, pytest.raises(InputError):
        searcher.open("closed3")


def test_the_last_member_can_be_removed(stage: GrpcStage) -> None:
    revoke(stage, "ann", "bob", "eve")
    for name in ("ann", "bob", "eve"):
        require_nothing(stage, name)
    assert not stage.admin.members().members
    stage.owner.rotate()
    stage.enrol("first", *MEMBER)
    require_right(stage, "first")


def test_members_that_were_away_for_several_epochs_come_back_by_themselves(
    stage: GrpcStage,
) -> None:
    for name in ("bob", "eve"):
        revoke(stage, name)
    assert stage.users["ann"].whoami().epoch == 1
    require_right(stage, "ann")
    assert stage.users["ann"].whoami().epoch == 3
    for name in ("bob", "eve"):
        require_nothing(stage, name)


def test_an_old_epoch_is_warned_of_until_it_was_rotated(stage: GrpcStage) -> None:
    with stage.searcher("ann") as searcher:
        assert not searcher.search("apple").warnings
        revoke(stage, "bob")
        for _ in range(2):
            assert "old epoch: 2 of 2 groups" in searcher.search("apple").warnings[0]
        signed = stage.owner.rotate()
        assert [group.epoch for group in signed.manifest.groups] == [2, 2]
        assert not searcher.search("apple").warnings
        assert found_by(searcher) == ["closed3", "open3"]
        assert "secret" in searcher.open("closed5").text
    require_nothing(stage, "bob")
    assert set(stage.owner.verify().values()) == {"ok"}
    # Nothing is left to do.
    again = stage.owner.rotate()
    assert [g.segments for g in again.manifest.groups] == [
        g.segments for g in signed.manifest.groups
    ]


def test_a_key_kept_half_way_does_not_lock_its_member_out(shared: GrpcStage) -> None:
    """A member's machine that stops between the new key and the new credential, or after it."""
    stage = shared
    folder = stage.users["ann"].profile.folder
    old = {name: (folder / name).read_bytes() for name in ("credential", "attribute-key")}
    revoke(stage, "bob")
    require_right(stage, "ann")
    new = {name: (folder / name).read_bytes() for name in ("credential", "attribute-key")}
    assert not (folder / "attribute-key.new").exists()
    for credential in (old, new):
        (folder / "credential").write_bytes(credential["credential"])
        (folder / "attribute-key").write_bytes(old["attribute-key"])
        (folder / "attribute-key.new").write_bytes(new["attribute-key"])
        require_right(stage, "ann")
        assert stage.users["ann"].whoami().epoch == 2


# --- interrupted ----------------------------------------------------------------------------------


class Crash(BaseException):
    """The owner's process ends here."""


def _crash(*_arguments: object, **_options: object) -> Any:
    raise Crash


def _after(work: Callable[..., Any]) -> Callable[..., Any]:
    def crash(*arguments: Any, **options: Any) -> Any:
        work(*arguments, **options)
        raise Crash

    return crash


def _crash_at_activation(monkeypatch: pytest.MonkeyPatch, n_before: int) -> None:
    activate, n_done = GrpcConnection.activate, 0

    def counted(self: GrpcConnection, manifest_hash: bytes, signature: bytes = b"") -> int:
        nonlocal n_done
        if n_done == n_before:
            raise Crash
        n_done += 1
        return activate(self, manifest_hash, signature)

    monkeypatch.setattr(GrpcConnection, "activate", counted)


STEPS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the list is saved": lambda m: m.setattr(credentials, "start_epoch", _crash),
    "the epoch began": lambda m: m.setattr(Members, "in_new_epoch", _crash),
    "the epoch is noted": lambda m: m.setattr(owner, "seal_groups", _crash),
    "groups are sealed": lambda m: m.setattr(owner, "seal_groups", _after(sealing.seal_groups)),
    "credentials are made": lambda m: m.setattr(owner, "next_access", _after(sealing.next_access)),
    "the publication is staged": lambda m: m.setattr(fleet.Fleet, "distribute", _crash),
    "it is proposed": lambda m: m.setattr(fleet, "stage", _crash),
    "it is sent": lambda m: m.setattr(fleet, "stage", _after(publications.stage)),
    "no server serves it": lambda m: _crash_at_activation(m, 0),
    "1 server serves it": lambda m: _crash_at_activation(m, 1),
    "2 servers serve it": lambda m: _crash_at_activation(m, 2),
    "all serve it": lambda m: m.setattr(publications.Publication, "discard", _crash),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("stage", "how"), [(True, "renew"), (False, "publish")], indirect=["stage"]
)
def test_a_revocation_interrupted_anywhere_ends_right_when_it_is_repeated(
    stage: GrpcStage, monkeypatch: pytest.MonkeyPatch, step: str, how: str
) -> None:
    stage.admin.revoke(users=[stage.id_of("bob")])
    with monkeypatch.context() as patched:
        STEPS[step](patched)
        for name in ("next_access", "seal_groups"):
            patched.setattr(publishing, name, getattr(owner, name))
        with pytest.raises(Crash):
            _go_on(stage.owner, stage, how)
    # Somebody is admitted and somebody else revoked before the owner goes on.
    admin = Admin(stage.owner.profile.folder)
    between = stage.applicant("between")
    credential = admin.issue(between.profile.identity.public, MEMBER, life_s=3600)
    with Owner(stage.owner.profile.folder) as again:
        _go_on(again, stage, how)
        again.renew()
        manifest = stage.servers[1].manifest
        assert manifest.access is not None
        # An epoch that began and was not noted is left out.
        assert manifest.access.epoch == admin.epoch
        assert manifest.access.epoch in (2, 3)
        assert {server.manifest.version for server in stage.servers.values()} == {manifest.version}
        assert stage.id_of("bob") not in admin.members().members
    require_nothing(stage, "bob")
    require_right(stage, "ann")
    require_right(stage, "eve", 1)
    if credential.credential.epoch == manifest.access.epoch:
        stage.users["between"] = between
        between.enrol(credential.encode())
        require_right(stage, "between")
    assert set(stage.owner.verify().values()) == {"ok"}


def _go_on(one: Owner, stage: GrpcStage, how: str) -> None:
    if how == "renew":
        one.renew()
        return
    one.publish([stage.folder / "closed.jsonl"], policy=POLICY)


@pytest.mark.parametrize(
    ("step", "n_groups_before"),
    [
        ("the publication is staged", 0),
        ("it is sent", 1),
        ("1 server serves it", 1),
        ("2 servers serve it", 0),
    ],
)
def test_a_rotation_interrupted_anywhere_ends_right_when_it_is_repeated(
    shared: GrpcStage, monkeypatch: pytest.MonkeyPatch, step: str, n_groups_before: int
) -> None:
    stage = shared
    revoke(stage, "bob")
    encrypt, n_begun = Owner._encrypt_anew, 0
    with monkeypatch.context() as patched:

        def counted(self: Owner, *arguments: Any) -> Any:
            nonlocal n_begun
            if n_begun == n_groups_before:
                STEPS[step](patched)
            n_begun += 1
            return encrypt(self, *arguments)

        patched.setattr(Owner, "_encrypt_anew", counted)
        with pytest.raises(Crash):
            stage.owner.rotate()
    with Owner(stage.owner.profile.folder) as again:
        signed = again.rotate()
        assert [group.epoch for group in signed.manifest.groups] == [2, 2]
        assert set(again.verify().values()) == {"ok"}
    require_right(stage, "ann")
    require_nothing(stage, "bob")


def test_while_one_server_alone_serves_the_new_version_searches_wait_and_none_is_wrong(
    shared: GrpcStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that stops after the first activation: members are told, until it goes on."""
    stage = shared
    stage.admin.revoke(users=[stage.id_of("bob")])
    with monkeypatch.context() as patched:
        _crash_at_activation(patched, 1)
        with pytest.raises(Crash):
            stage.owner.renew()
    with Searcher(stage.folder / "user-ann", timeout_s=1.0) as searcher:
        started = time.monotonic()
        with pytest.raises(MksearchError, match="server"):
            searcher.search("apple")
        assert 0.4 < time.monotonic() - started < 5
    # A member that waits meets the rest of it.
    done: list[list[str]] = []
    with stage.searcher("ann") as searcher:
        waiting = threading.Thread(target=lambda: done.append(found_by(searcher)))
        waiting.start()
        time.sleep(0.3)
        stage.owner.renew()
        waiting.join(20)
    assert done == [["closed3", "open3"]]
    require_nothing(stage, "bob")


# --- searches go on -------------------------------------------------------------------------------


@dataclass
class Busy:
    """Members that search all the time, each with a client of their own."""

    stage: GrpcStage
    names: Sequence[str]
    slowest_s: float = 0.0
    n_searches: int = 0
    n_documents: int = 0
    errors: list[str] = field(default_factory=list)

    def _work(self, name: str, ended: threading.Event) -> None:
        number = 0
        with self.stage.searcher(name) as searcher:
            while not ended.is_set():
                number = (number + 7) % 100
                started = time.monotonic()
                try:
                    found = found_by(searcher, f"openword{number} closedword{number}")
                    if sorted(found) != [f"closed{number}", f"open{number}"]:
                        self.errors.append(f"{name} found {found} for {number}")
                    if number % 5 == 0:
                        assert f"closedword{number}" in searcher.open(f"closed{number}").text
                        self.n_documents += 1
                except Exception as error:  # noqa: BLE001 - counted and shown
                    self.errors.append(f"{type(error).__name__}: {error}")
                self.slowest_s = max(self.slowest_s, time.monotonic() - started)
                self.n_searches += 1

    @contextmanager
    def searching(self) -> Iterator[None]:
        ended = threading.Event()
        threads = [threading.Thread(target=self._work, args=(name, ended)) for name in self.names]
        for thread in threads:
            thread.start()
        try:
            yield
            time.sleep(0.2)
        finally:
            ended.set()
            for thread in threads:
                thread.join()


def test_no_search_fails_while_the_epoch_changes_and_every_group_is_encrypted_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with staging(tmp_path) as stage:
        stage.publish(150)
        stage.share()
        for name in ("ann", "cy", "bob"):
            stage.enrol(name, *MEMBER)
        busy = Busy(stage, ("ann", "cy"))
        with busy.searching():
            started = time.monotonic()
            revoke(stage, "bob")
            switched_s = time.monotonic() - started
            require_nothing(stage, "bob")
            stage.owner.rotate()
            rotated_s = time.monotonic() - started
            stage.owner.renew()
        assert busy.errors == []
        assert busy.n_searches > 10
        assert busy.n_documents
        signed = stage.servers[1].manifest
        assert [group.epoch for group in signed.groups] == [2, 2]
        with capsys.disabled():
            print(
                f"\n300 documents: epoch {switched_s:.2f} s, with rotation {rotated_s:.2f} s, "
                f"{busy.n_searches} searches, slowest {busy.slowest_s:.2f} s"
            )


def test_no_search_fails_while_many_epochs_follow_each_other(shared: GrpcStage) -> None:
    stage = shared
    stage.publish(100)
    busy = Busy(stage, ("ann",))
    for number in range(3):
        stage.enrol(f"guest{number}", "city:oslo")
    with busy.searching():
        for number in range(3):
            revoke(stage, f"guest{number}")
    assert busy.errors == []
    assert stage.users["ann"].whoami().epoch == 4


# --- what old keys open ---------------------------------------------------------------------------


def _read_with_old_keys(bob: OldClient, server: GrpcServer, external_id: str) -> str:
    """Open a document of the group with old keys and one server's bytes."""
    entry = bob.lookups[POLICY.encode()].find(external_id)
    assert entry is not None
    data = server.runtime.search.read_object(entry.blob, 0, entry.size)
    collection = server.manifest.collection
    return open_document(entry.key, collection, entry.blob, data).text


def test_until_the_rotation_old_keys_open_one_servers_bytes_as_before(shared: GrpcStage) -> None:
    """Why a rotation follows a revocation: whoever stores the old bytes can read them with the
    old keys, documents and records, without asking a second server."""
    stage = shared
    with old_client(stage, "bob") as bob:
        revoke(stage, "bob")
        # The present servers hand out stored bytes to everybody: they are ciphertext.
        assert "secret" in _read_with_old_keys(bob, stage.servers[1], "closed3")
        view = bob.view()
        current = stage.servers[1].manifest.group(POLICY.encode())
        assert current is not None
        assert [s.id for s in current.segments] == [s.id for s in view.segments]
        dictionary = bob.connections[2].read_object(
            current.dictionary.id, 0, current.dictionary.size
        )
        opened = open_dictionary(view.bundle, stage.servers[1].manifest.collection, dictionary)
        assert "budget" in opened.terms
        slots = stage.servers[1].runtime.search.segment(view.segments[0].id).slots()
        reading = read_records(view.segments[0].slots, [0], len(opened.terms))
        wanted = next(reading)
        with pytest.raises(StopIteration) as done:
            reading.send(np.array(slots[wanted]))
        assert done.value.value[0].members[0].id.startswith("closed")


def test_after_the_rotation_old_keys_open_old_bytes_and_nothing_new(shared: GrpcStage) -> None:
    stage = shared
    copy = _copy_store(stage.servers[1])
    with old_client(stage, "bob") as bob:
        revoke(stage, "bob")
        stage.owner.rotate()
        corpus = stage.folder / "closed.jsonl"
        corpus.write_text(corpus.read_text() + '{"_id": "new1", "text": "budget of next year"}\n')
        stage.owner.publish([corpus], policy=POLICY)
        manifest = stage.servers[1].manifest
        group, view = manifest.group(POLICY.encode()), bob.view()
        assert group is not None
        assert group.bundle is not None
        assert group.epoch == 2
        collection = manifest.collection

        def read(reference: Any) -> bytes:
            return bob.connections[1].read_object(reference.id, 0, reference.size)

        # Nothing of the new version opens: dictionary, lookup, documents, records, bundle.
        with pytest.raises(VerificationError):
            open_dictionary(view.bundle, collection, read(group.dictionary))
        with pytest.raises(VerificationError):
            open_stream(view.bundle.section_key("lookup"), "lookup", collection, read(group.lookup))
        blobs = set(_blob_names(read(group.blobs)))
        lookup = bob.lookups[POLICY.encode()]
        assert lookup.find("new1") is None
        for number in range(8):
            entry = lookup.find(f"closed{number}")
            assert entry is not None
            assert entry.blob not in blobs
            for name in list(blobs)[:3]:
                data = stage.servers[1].runtime.search.read_object(name, 0, 1 << 20)
                with pytest.raises((RecordRefused, FormatError)):
                    open_document(entry.key, collection, name, data)
        header = bob.connections[1].read_object(group.segments[0].id, 0, HEADER_BYTES)
        dictionary = open_dictionary(view.bundle, collection, read(view.group.dictionary))
        known = replace(group, search_key=view.group.search_key)
        with pytest.raises(VerificationError):
            GroupView(known, view.bundle, collection, dictionary, [header])
        reading = read_records(view.segments[0].slots, [0], len(dictionary.terms))
        wanted = next(reading)
        slots = stage.servers[1].runtime.search.segment(group.segments[0].id).slots()
        with pytest.raises(VerificationError):
            reading.send(np.array(slots[wanted]))
        assert bob.answering(manifest.version) == []
        # What one server kept of the time before is as open as it was.
        _restore_store(stage.servers[1], copy)
        assert "secret" in _read_with_old_keys(bob, stage.servers[1], "closed3")
    require_right(stage, "ann")


def _blob_names(data: bytes) -> list[bytes]:
    return [name for name, _ in BlobList.decode(data).blobs]


def test_the_bundle_of_a_new_epoch_does_not_open_with_the_old_member_secret_or_key(
    shared: GrpcStage,
) -> None:
    stage = shared
    old = stage.users["bob"].profile.secrets()
    revoke(stage, "bob")
    require_right(stage, "ann")
    new = stage.users["ann"].profile.secrets()
    assert old.member_secret.reveal() != new.member_secret.reveal()
    manifest = stage.servers[1].manifest
    assert manifest.access is not None
    parameters = manifest.access.parameters
    for group in manifest.groups:
        assert group.bundle is not None
        sealed = stage.servers[1].runtime.search.read_object(group.bundle.id, 0, group.bundle.size)

        def open_with(secrets: Any, group: Any = group, sealed: bytes = sealed) -> Any:
            return open_bundle(
                sealed,
                parameters,
                secrets,
                collection=manifest.collection,
                epoch=2,
                policy=group.policy,
            )

        open_with(new)
        with pytest.raises(MksearchError):
            open_with(old)
        with pytest.raises(RecordRefused):
            open_with(replace(new, member_secret=old.member_secret))
