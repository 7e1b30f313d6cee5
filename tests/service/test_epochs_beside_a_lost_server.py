"""Epochs and rotations go on while a server is away, and say which servers they did not reach."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mksearch.errors import CredentialRefused, FormatError, ManifestStale
from mksearch.index.manifest import SignedManifest
from mksearch_client.admin import Admin
from mksearch_client.cli import main
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner
from mksearch_client.sharing import next_generation
from mksearch_client.user import User
from tests.support.processes import Fleet, serving

OPEN = {"open-1": "apples for everybody", "open-2": "pears for everybody"}
CLOSED = {"closed-1": "apples for a few"}
POLICY = "role:cook"


class Office:
    """A collection with two users, on three server processes."""

    def __init__(self, folder: Path, fleet: Fleet) -> None:
        self.folder = folder
        self.fleet = fleet
        self.owner = Owner.create(folder / "owner", fleet.tokens(), name="office")
        self.owner.publish([self._write("open", OPEN)])
        self.admin = Admin.create(self.owner.profile)
        self.admin.share()
        self.owner.publish([self._write("closed", CLOSED)], policy=POLICY)
        (folder / "card").write_bytes(self.owner.card())
        self.users = {name: self._admit(name) for name in ("ada", "ben")}

    def _write(self, name: str, documents: dict[str, str]) -> Path:
        path = self.folder / f"{name}.jsonl"
        lines = [json.dumps({"_id": key, "text": text}) for key, text in documents.items()]
        path.write_text("\n".join(lines) + "\n")
        return path

    def _admit(self, name: str) -> User:
        user = User.create(self.folder / name, self.folder / "card")
        credential = self.admin.issue(user.profile.identity.public, [POLICY], life_s=999)
        user.enrol(credential.encode())
        return user

    def id_of(self, name: str) -> str:
        return self.users[name].profile.identity.public.id.hex()

    def found(self, name: str) -> set[str]:
        with Searcher(self.folder / name) as searcher:
            return {hit.id for hit in searcher.search("apples").hits}


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    with serving(tmp_path) as fleet:
        made = Office(tmp_path, fleet)
        yield made
        made.owner.close()


def test_a_rotation_beside_a_lost_server_encrypts_every_group_anew(office: Office) -> None:
    office.admin.revoke(users=[office.id_of("ben")])
    office.fleet[3].kill()

    rotated = office.owner.rotate().manifest

    assert {group.epoch for group in rotated.groups} == {2}
    assert office.owner.behind == (3,)
    assert office.found("ada") == {"open-1", "closed-1"}
    office.fleet[3].restart()
    with Owner(office.owner.profile) as owner:
        owner.renew()
        assert not owner.behind
    assert set(office.owner.verify().values()) == {"ok"}


def test_a_server_that_is_back_is_found_at_once(office: Office) -> None:
    office.fleet[3].kill()
    last_s = time.monotonic() + 3
    while time.monotonic() < last_s:
        # Every failure makes gRPC wait longer before it dials again.
        assert office.owner.status()[1][2].status == "unreachable"
        time.sleep(0.1)

    office.fleet[3].restart()

    assert set(office.owner.verify().values()) == {"ok"}


def test_a_revocation_that_a_server_missed_is_not_called_done(
    office: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    office.fleet[3].kill()
    words = [
        "owner",
        "revoke",
        "--user",
        office.id_of("ben"),
        "--profile",
        str(office.folder / "owner"),
    ]

    assert main([*words, "--json"]) == 1
    error = json.loads(capsys.readouterr().out)
    assert "servers 3 are not" in error["message"]
    assert "owner renew" in error["cure"]
    office.fleet[3].restart()
    assert main([*words, "--json"]) == 0, "asked again, it is sent again"
    assert json.loads(capsys.readouterr().out)["epoch"] == 2


def test_a_revocation_may_encrypt_everything_anew_at_once(
    office: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["owner", "revoke", "--user", office.id_of("ben"), "--rotate"]

    assert main([*words, "--profile", str(office.folder / "owner"), "--json"]) == 0

    done = json.loads(capsys.readouterr().out)
    assert (done["epoch"], done["rotated"]) == (2, True)
    assert office.owner.status()[0].manifest.version == done["version"]  # type: ignore[union-attr]
    groups = office.owner.status()[0].manifest.groups  # type: ignore[union-attr]
    assert [group.epoch for group in groups] == [2, 2]
    assert office.found("ada") == {"open-1", "closed-1"}
    with pytest.raises(CredentialRefused):
        office.found("ben")


def test_a_revocation_that_too_few_servers_took_can_be_finished(
    office: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    for server in (1, 2):
        office.fleet[server].kill()
    words = [
        "owner",
        "revoke",
        "--user",
        office.id_of("ben"),
        "--profile",
        str(office.folder / "owner"),
    ]
    assert main(words) == 1
    assert "the revocation is noted" in capsys.readouterr().err
    for server in (1, 2):
        office.fleet[server].restart()

    assert main(words) == 0
    assert office.found("ada") == {"open-1", "closed-1"}


def test_no_server_can_use_up_the_numbers_of_dealings(office: Office) -> None:
    class Claimed:
        def __init__(self, generation: int) -> None:
            self.generation = generation

    claims = {1: Claimed(3), 2: Claimed((1 << 64) - 1)}
    with pytest.raises(FormatError, match="server 2 says that it holds") as caught:
        next_generation(claims, 2)  # type: ignore[arg-type]
    assert caught.value.server == 2
    assert next_generation({1: Claimed(3), 2: Claimed(1)}, 2) == 4  # type: ignore[dict-item]


def test_a_version_of_an_older_epoch_or_without_members_is_not_followed(office: Office) -> None:
    office.admin.revoke(users=[office.id_of("ben")])
    newest = office.owner.renew()
    manifest, key = newest.manifest, office.owner.profile.keys.signing
    assert manifest.access is not None
    following = replace(manifest, version=manifest.version + 1, previous=newest.hash)
    groups = tuple(replace(group, bundle=None, search_key=b"") for group in manifest.groups)
    for backward in (
        replace(following, access=replace(manifest.access, epoch=1)),
        replace(following, access=None, groups=groups),
    ):
        signed = SignedManifest.sign(backward, key)
        with pytest.raises(ManifestStale, match="goes back behind epoch 2"):
            signed.require_not_older(newest)
