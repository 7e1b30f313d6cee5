"""An owner who lost everything comes back with the help of people, and of nobody else."""

from __future__ import annotations

import json
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

import pytest

from mksearch.access.backup_share import OpenedShare
from mksearch_client.profile import Profile
from tests.cli.conftest import PASSPHRASE, SECRET_POLICY, Sealed, Society, require_error
from tests.support.processes import Finished, serving

NAMES = ("ann", "ben", "cat")
POLICY = "2 OF (key:ann, key:ben, key:cat)"
RECOVERED_FIELDS = {
    *("profile", "name", "collection", "owner_key", "administration", "n_servers"),
    *("collusion_bound", "servers"),
}


@dataclass
class Holders:
    """People with a share each of the society's owner.

    Attributes:
        society: whose.
        folder: with their profiles, shares and opened shares.
        made: what ``owner backup`` printed.
    """

    society: Society
    folder: Path
    made: Finished

    def user_keys(self, *names: str) -> list[str | Path]:
        return [
            word
            for name in names
            for word in ("--user-key", f"{name}={self.folder / name / 'user-key'}")
        ]

    def back_up(self, to: Path, policy: str = POLICY, names: tuple[str, ...] = NAMES) -> Finished:
        words = ("--policy", policy, *self.user_keys(*names), "--to", to, "--json")
        return self.society("owner", "backup", *words)

    def open(self, share: Path, name: str, output: Path) -> Finished:
        words = ("user", "open-share", share, "-o", output, "--profile", self.folder / name)
        done = self.society.run.client(*words, "--json")
        if output.is_file() and done.code == 0:
            rows = OpenedShare.decode(output.read_bytes()).rows.values()
            self.society.run.secrets += [row.reveal() for row in rows]
        return done

    def opened(self, *names: str) -> list[Path]:
        """Give the opened shares of people."""
        paths = []
        for name in names:
            path = self.folder / f"{name}.opened"
            if not path.exists():
                done = self.open(self.folder / "shares" / f"{name}.share", name, path)
                assert done.code == 0, done.err
            paths.append(path)
        return paths

    def recover(self, shares: list[Path], folder: Path, *words: str | Path) -> Finished:
        named = [word for share in shares for word in ("--share", share)]
        return self.society.run.client(
            "owner", "recover", *named, "--profile", folder, *words, "--json"
        )


@pytest.fixture(scope="session")
def holders(society: Society, tmp_path_factory: pytest.TempPathFactory) -> Holders:
    folder = tmp_path_factory.mktemp("holders")
    holders = Holders(society, folder, Finished(1, "", ""))
    for name in NAMES:
        done = society.run.client("user", "keygen", "--profile", folder / name)
        assert done.code == 0, done.err
        society.hide(folder / name)
    society.admit("alice", "role:analyst", "dept:finance")
    holders.made = holders.back_up(folder / "shares")
    assert holders.made.code == 0, holders.made.err
    return holders


# --- backing up ----------------------------------------------------------------------------------


def test_a_backup_is_a_file_for_each_person_that_shows_no_secret(holders: Holders) -> None:
    fields = holders.made.json

    assert set(fields) == {"backup", "policy", "shares"}
    assert fields["policy"] == POLICY
    assert [set(share) for share in fields["shares"]] == [{"name", "user", "file"}] * 3
    assert [share["name"] for share in fields["shares"]] == list(NAMES)
    for share in fields["shares"]:
        path = Path(share["file"])
        assert path == holders.folder / "shares" / f"{share['name']}.share"
        assert path.stat().st_mode & 0o777 == 0o600
        holders.society.run.require_no_secret(path.read_bytes())


def test_people_are_told_who_gets_what_and_what_it_is_for(holders: Holders, tmp_path: Path) -> None:
    words = ("--policy", "key:ann", *holders.user_keys("ann"), "--to", tmp_path / "new" / "folder")
    done = holders.society("owner", "backup", *words)

    assert (done.code, done.err) == (0, "")
    assert "ann.share to ann" in done.out
    assert "mksearch user open-share" in done.out
    assert "mksearch owner recover" in done.out


@pytest.mark.parametrize(
    ("policy", "names", "part"),
    [
        ("role:analyst", ("ann",), "'role:analyst' is none, at character 1"),
        ("key:ann AND server:1", ("ann",), "'server:1' is none, at character 13"),
        ("key:ann OR key", ("ann",), "'key' is none, at character 12"),
        ("key >= 3", ("ann",), "'key' is none, at character 1"),
        ("", ("ann",), "0 bytes"),
        ("(key:ann", ("ann",), "at character 1"),
        ("4 OF (key:ann, key:ben, key:cat)", NAMES, "cannot be counted at character 1"),
        ("key:ann AND key:ben", ("ann",), "'ben', and there is no user key"),
        ("key:ann", ("ann", "ben"), "'ben', and the policy does not name it"),
    ],
)
def test_a_policy_or_name_that_cannot_be_ends_with_2_and_makes_no_folder(
    holders: Holders, tmp_path: Path, policy: str, names: tuple[str, ...], part: str
) -> None:
    done = holders.back_up(tmp_path / "to", policy, names)

    assert (done.code, part in done.json["message"]) == (2, True), done
    assert done.json["cure"]
    assert not (tmp_path / "to").exists()


def test_user_keys_are_named_once_and_are_of_different_people(
    holders: Holders, tmp_path: Path
) -> None:
    key = holders.folder / "ann" / "user-key"
    (tmp_path / "cut").write_bytes(key.read_bytes()[:-1])
    keys = holders.folder / "ann" / "keys"
    cases = [
        (["ann"], 2, "is not NAME=FILE"),
        (["=x"], 2, "is not NAME=FILE"),
        (["ann="], 2, "is not NAME=FILE"),
        ([f"ann={key}", f"ann={key}"], 2, "--user-key ann is there twice"),
        ([f"ann={key}", f"ben={key}"], 2, "'ann' and 'ben' are one user key"),
        ([f"ann={tmp_path / 'none'}"], 1, "none cannot be read"),
        ([f"ann={tmp_path / 'cut'}"], 3, "a user key has 1259 bytes (need 1260)"),
        ([f"ann={keys}"], 3, "does not start with MKUSRKEY"),
    ]
    for texts, code, part in cases:
        words = [word for text in texts for word in ("--user-key", text)]
        options = ("--policy", "key:ann AND key:ben", "--to", tmp_path / "to")
        require_error(holders.society("owner", "backup", *words, *options), code, part)
    assert not (tmp_path / "to").exists()


def test_a_second_backup_into_one_folder_is_refused(holders: Holders, tmp_path: Path) -> None:
    before = {p.name: p.read_bytes() for p in (holders.folder / "shares").iterdir()}
    done = holders.back_up(holders.folder / "shares")
    require_error(done, 1, "holds shares already", "another --to")
    assert before == {p.name: p.read_bytes() for p in (holders.folder / "shares").iterdir()}

    (tmp_path / "file").touch()
    require_error(holders.back_up(tmp_path / "file"), 1, "cannot be made")


def test_files_of_names_that_look_alike_are_different(holders: Holders, tmp_path: Path) -> None:
    names = ("../ann", "__/ann", "ANN", "安")
    policy = " OR ".join(f'key:"{name}"' for name in names)
    keys: list[str] = []
    for number, name in enumerate(names):
        folder = tmp_path / str(number)
        assert holders.society.run.client("user", "keygen", "--profile", folder).code == 0
        keys += ["--user-key", f"{name}={folder / 'user-key'}"]
    words = ("--policy", policy, *keys, "--json")
    done = holders.society("owner", "backup", *words, "--to", tmp_path / "to")

    assert done.code == 0, done.err
    files = [Path(share["file"]).name for share in done.json["shares"]]
    assert files == ["___ann.share", "___ann-2.share", "ANN.share", "安.share"]
    assert sorted(files) == sorted(path.name for path in (tmp_path / "to").iterdir())


def test_only_an_owner_makes_a_backup(holders: Holders, tmp_path: Path) -> None:
    words = ("--policy", "key:ann", *holders.user_keys("ann"), "--to", tmp_path / "to")
    done = holders.society("owner", "backup", *words, who="alice")

    require_error(done, 1, "is a user's, and this needs the owner's")
    assert not (tmp_path / "to").exists()


# --- opening a share -----------------------------------------------------------------------------


def test_an_opened_share_is_secret_and_says_whose_it_is(holders: Holders, tmp_path: Path) -> None:
    output = tmp_path / "opened"
    done = holders.open(holders.folder / "shares" / "ann.share", "ann", output)

    assert (done.code, done.err) == (0, "")
    assert set(done.json) == {"share", "name", "policy", "collection", "owner_key", "backup"}
    assert (done.json["name"], done.json["policy"]) == ("ann", POLICY)
    assert done.json["backup"] == holders.made.json["backup"]
    assert output.stat().st_mode & 0o777 == 0o600
    words = ("user", "open-share", holders.folder / "shares" / "ann.share", "-o", output)
    text = holders.society.run.client(*words, "--profile", holders.folder / "ann")
    assert "it is secret" in text.out


def test_a_share_of_somebody_else_ends_with_4(holders: Holders, tmp_path: Path) -> None:
    output = tmp_path / "opened"
    done = holders.open(holders.folder / "shares" / "ann.share", "ben", output)

    require_error(done, 4, "the share of 'ann' is sealed to user key")
    assert done.json["error"] == "not-qualified"
    assert not output.exists()


def test_a_share_that_was_cut_or_changed_ends_with_3(holders: Holders, tmp_path: Path) -> None:
    good = (holders.folder / "shares" / "ann.share").read_bytes()
    cases = [good[:size] for size in range(0, len(good), 411)]
    cases += [good + b"\0", holders.society.card.read_bytes()]
    cases += [holders.opened("ann")[0].read_bytes()]
    for at in range(0, len(good), 307):
        changed = bytearray(good)
        changed[at] ^= 1
        cases.append(bytes(changed))
    share = tmp_path / "share"
    for data in cases:
        share.write_bytes(data)
        done = holders.open(share, "ann", tmp_path / "opened")
        require_error(done, 3)
        assert "server" not in done.json["cure"]
    assert not (tmp_path / "opened").exists()
    require_error(holders.open(tmp_path / "none", "ann", tmp_path / "o"), 1, "cannot be read")


def test_an_opened_share_replaces_no_other_file(holders: Holders, tmp_path: Path) -> None:
    share, letter = holders.folder / "shares" / "ann.share", tmp_path / "letter"
    letter.write_text("dear")

    require_error(holders.open(share, "ann", letter), 1, "letter is there and is no opened share")
    require_error(holders.open(share, "ann", share), 1, "is there and is no opened share")
    require_error(holders.open(share, "ann", tmp_path), 1, "it is a folder")
    assert letter.read_text() == "dear"
    assert holders.open(share, "ann", tmp_path / "o").code == 0
    assert holders.open(share, "ann", tmp_path / "o").code == 0


def test_who_has_no_keys_of_a_user_opens_no_share(holders: Holders, tmp_path: Path) -> None:
    share = holders.folder / "shares" / "ann.share"
    words = ("user", "open-share", share, "-o", tmp_path / "o")

    require_error(holders.society(*words), 1, "holds an owner's profile")
    require_error(holders.society(*words, who="nobody"), 1, "holds no user's profile")


def test_a_member_refuses_a_share_by_another_owner_than_the_card_names(
    holders: Holders, tmp_path: Path
) -> None:
    society = holders.society
    alice = tmp_path / "alice"
    shutil.copytree(society.folder / "alice", alice)
    key = ("--user-key", f"alice={alice / 'user-key'}", "--policy", "key:alice")
    assert society("owner", "backup", *key, "--to", tmp_path / "to").code == 0
    words = ("user", "open-share", tmp_path / "to" / "alice.share", "-o", tmp_path / "o")
    assert society.run.client(*words, "--profile", alice).code == 0
    opened = OpenedShare.decode((tmp_path / "o").read_bytes())
    society.run.secrets += [row.reveal() for row in opened.rows.values()]

    path = alice / "profile.json"
    fields = json.loads(path.read_text()) | {"owner_key": society.made.json["admin_key"]}
    path.write_text(json.dumps(fields))
    done = society.run.client(*words, "--profile", alice)
    require_error(done, 3, "the share is signed by key", "the card of the collection names owner")


# --- recovering ----------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("ann", "ben"), ("cat", "ann"), ("ben", "cat"), NAMES])
def test_qualified_people_bring_the_whole_profile_back(
    holders: Holders, tmp_path: Path, names: tuple[str, ...]
) -> None:
    owner = holders.society.owner
    done = holders.recover(holders.opened(*names), tmp_path / "again")

    assert (done.code, done.err) == (0, "")
    assert set(done.json) == RECOVERED_FIELDS
    assert done.json["administration"] is True
    assert done.json["owner_key"] == json.loads(holders.society.card.read_text())["owner_key"]
    again = tmp_path / "again"
    assert again.stat().st_mode & 0o777 == 0o700
    for name in ("keys", "administration"):
        assert (again / name).read_bytes() == (owner / name).read_bytes()
    assert json.loads((again / "profile.json").read_text()) == json.loads(
        (owner / "profile.json").read_text()
    )
    assert all(p.stat().st_mode & 0o777 == 0o600 for p in again.iterdir() if p.is_file())


def test_a_recovered_owner_works_at_once_and_users_notice_nothing(
    holders: Holders, tmp_path: Path
) -> None:
    society = holders.society
    again = tmp_path / "again"
    # What came after the backup is on the servers, and is read from them.
    newest = society("owner", "renew", "--json").json["version"]
    done = holders.recover(holders.opened("ann", "cat"), again)
    assert done.code == 0
    run = society.run.client
    status = run("owner", "status", "--profile", again, "--json").json
    assert status["version"] == newest
    assert {server["status"] for server in status["servers"]} == {"ok"}
    assert run("search", "secret budget", "--profile", again, "--json").json["groups"] == 2
    assert run("owner", "verify", "--profile", again).code == 0
    same = run(
        *("owner", "publish", society.folder / "budget.jsonl", "--policy", SECRET_POLICY),
        *("--profile", again, "--json"),
    )
    assert (same.json["changed"], same.json["version"]) == (False, newest)
    more = tmp_path / "more.jsonl"
    more.write_text('{"_id": "plan", "text": "the plan for the rhubarb"}\n')
    words = ("owner", "publish", more, "--policy", "role:analyst AND dept:garden", "--json")
    assert run(*words, "--profile", again).json["version"] == newest + 1
    issued = run("admin", "list", "--profile", again, "--json").json["credentials"]
    assert issued
    credential = tmp_path / "nat.credential"
    options = ("--attribute", "role:analyst", "--attribute", "dept:garden", "--expires", "1d")
    key = ("--user-key", society.join("nat") / "user-key")
    admit = ("admin", "credential", *key, *options, "-o", credential)
    assert run(*admit, "--profile", again).code == 0
    assert society("user", "enrol", "--credential", credential, who="nat").code == 0
    assert society("open", "plan", who="nat").out == "the plan for the rhubarb"
    assert society("open", "budget", who="alice").code == 0


def test_people_are_told_to_compare_the_owner_key_and_to_delete_the_shares(
    holders: Holders, tmp_path: Path
) -> None:
    shares = [word for path in holders.opened("ann", "ben") for word in ("--share", path)]
    words = ("owner", "recover", *shares, "--profile", tmp_path / "again")
    done = holders.society.run.client(*words)

    assert (done.code, done.err) == (0, "")
    assert json.loads(holders.society.card.read_text())["owner_key"] in done.out
    assert "delete the opened shares" in done.out


@pytest.mark.parametrize("name", NAMES)
def test_too_few_people_end_with_4_and_are_told_whom_to_ask(
    holders: Holders, tmp_path: Path, name: str
) -> None:
    done = holders.recover(holders.opened(name), tmp_path / "again")

    require_error(done, 4, f"the shares of {name} do not satisfy {POLICY}")
    assert done.json["error"] == "not-qualified"
    assert all(other in done.json["cure"] for other in NAMES if other != name)
    assert not (tmp_path / "again").exists()


def test_shares_of_two_backups_end_with_3(holders: Holders, tmp_path: Path) -> None:
    assert holders.back_up(tmp_path / "later").code == 0
    later = tmp_path / "ben.opened"
    assert holders.open(tmp_path / "later" / "ben.share", "ben", later).code == 0
    done = holders.recover([*holders.opened("ann"), later], tmp_path / "again")

    require_error(done, 3, "of different backups", "one backup")
    assert done.json["error"] == "not-verified"
    assert not (tmp_path / "again").exists()


def test_one_persons_share_twice_ends_with_2(holders: Holders, tmp_path: Path) -> None:
    done = holders.recover(holders.opened("ann", "ann"), tmp_path / "again")

    require_error(done, 2, "the share of 'ann' is there twice")


def test_an_opened_share_that_was_cut_or_changed_ends_with_3(
    holders: Holders, tmp_path: Path
) -> None:
    ann, ben = holders.opened("ann", "ben")
    good = ann.read_bytes()
    cases = [good[:size] for size in range(0, len(good), 411)]
    cases += [good + b"\0", b"dear", (holders.folder / "shares" / "ann.share").read_bytes()]
    for at in [*range(0, len(good), 307), *range(len(good) - 34, len(good))]:
        changed = bytearray(good)
        changed[at] ^= 1
        cases.append(bytes(changed))
    bad = tmp_path / "bad"
    for data in cases:
        bad.write_bytes(data)
        done = holders.recover([bad, ben], tmp_path / "again")
        require_error(done, 3)
        assert "server" not in done.json["cure"]
    assert not (tmp_path / "again").exists()
    require_error(holders.recover([tmp_path / "none"], tmp_path / "again"), 1, "cannot be read")


def test_a_profile_is_recovered_into_a_new_folder_only(holders: Holders, tmp_path: Path) -> None:
    shares = holders.opened("ann", "ben")
    owner = holders.society.owner
    before = (owner / "keys").read_bytes()
    require_error(holders.recover(shares, owner), 1, "holds a profile already")
    assert (owner / "keys").read_bytes() == before
    (tmp_path / "letter").write_text("dear")
    require_error(holders.recover(shares, tmp_path), 1, "is not empty")
    assert [path.name for path in tmp_path.iterdir()] == ["letter"]


# --- servers that moved --------------------------------------------------------------------------


def _moved(holders: Holders, folder: Path) -> Path:
    """Give a copy of the owner's profile that knows server 1 where nobody listens."""
    shutil.copytree(holders.society.owner, folder)
    path = folder / "profile.json"
    fields = json.loads(path.read_text())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        fields["servers"][0]["address"] = f"127.0.0.1:{probe.getsockname()[1]}"
    path.write_text(json.dumps(fields))
    return folder


def test_a_server_that_moved_is_found_by_its_key(holders: Holders, tmp_path: Path) -> None:
    society = holders.society
    old = _moved(holders, tmp_path / "old")
    words = ("owner", "backup", "--policy", "key:ann", *holders.user_keys("ann"))
    assert society.run.client(*words, "--to", tmp_path / "to", "--profile", old).code == 0
    opened = tmp_path / "opened"
    assert holders.open(tmp_path / "to" / "ann.share", "ann", opened).code == 0
    here = [server.address for server in society.fleet]
    dead = json.loads((old / "profile.json").read_text())["servers"][0]["address"]

    kept = holders.recover([opened], tmp_path / "kept")
    assert [server["address"] for server in kept.json["servers"]] == [dead, *here[1:]]
    found = holders.recover([opened], tmp_path / "found", "--server", here[0])
    assert [server["address"] for server in found.json["servers"]] == here
    assert society.run.client("owner", "renew", "--profile", tmp_path / "found").code == 0

    done = holders.recover([opened], tmp_path / "no", "--server", dead, "--timeout", "5")
    require_error(done, 1, dead)
    done = holders.recover([opened], tmp_path / "no", "--server", here[0], "--server", here[0])
    require_error(done, 2, "are both server 1")
    done = holders.recover([opened], tmp_path / "no", "--server", "192.0.2.1:7101")
    require_error(done, 2, "not a loopback host")
    assert not (tmp_path / "no").exists()


def test_a_strangers_server_is_not_taken_for_one_of_the_collection(
    holders: Holders, tmp_path: Path
) -> None:
    with serving(tmp_path / "strangers", 1) as fleet:
        words = ("--server", fleet[1].address)
        done = holders.recover(holders.opened("ann", "ben"), tmp_path / "again", *words)

    require_error(done, 3, fleet[1].address, "none of the keys", "check --server")
    assert not (tmp_path / "again").exists()


# --- passphrases ---------------------------------------------------------------------------------


def test_a_recovered_profile_is_sealed_with_its_own_passphrase(
    holders: Holders, tmp_path: Path
) -> None:
    society = holders.society
    passphrase = tmp_path / "passphrase"
    passphrase.write_text(f"{PASSPHRASE}\n")
    society.run.secrets.append(PASSPHRASE.encode())
    again = tmp_path / "again"
    words = ("--passphrase-file", passphrase)
    assert holders.recover(holders.opened("ann", "ben"), again, *words).code == 0

    for name in ("keys", "administration"):
        society.run.require_no_secret((again / name).read_bytes())
    status = ("owner", "status", "--profile", again)
    require_error(society.run.client(*status), 1, "sealed with a passphrase")
    assert society.run.client(*status, *words).code == 0
    assert society.run.client("admin", "list", "--profile", again, *words).code == 0


def test_keys_sealed_with_a_passphrase_are_backed_up_without_it(
    holders: Holders, sealed: Sealed, tmp_path: Path
) -> None:
    run = holders.society.run.client
    words = ("owner", "backup", "--policy", "key:ann", *holders.user_keys("ann"))
    named = ("--to", tmp_path / "to", "--profile", sealed.folder)
    require_error(run(*words, *named), 1, "sealed with a passphrase")
    assert run(*words, *named, "--passphrase-file", sealed.passphrase).code == 0
    opened = tmp_path / "opened"
    assert holders.open(tmp_path / "to" / "ann.share", "ann", opened).code == 0
    done = holders.recover([opened], tmp_path / "again")

    assert done.code == 0, done.err
    mine = Profile.open(tmp_path / "again").keys
    theirs = Profile.open(sealed.folder, PASSPHRASE.encode()).keys
    assert mine.master.reveal() == theirs.master.reveal()
    assert mine.signing.public == theirs.signing.public


def test_a_holder_with_a_passphrase_needs_it(holders: Holders, tmp_path: Path) -> None:
    run = holders.society.run.client
    passphrase, folder = tmp_path / "passphrase", tmp_path / "pat"
    passphrase.write_text(PASSPHRASE)
    named = ("--profile", folder, "--passphrase-file", passphrase)
    assert run("user", "keygen", *named).code == 0
    key = ("--user-key", f"pat={folder / 'user-key'}", "--policy", "key:pat")
    assert holders.society("owner", "backup", *key, "--to", tmp_path / "to").code == 0
    words = ("user", "open-share", tmp_path / "to" / "pat.share", "-o", tmp_path / "o")

    require_error(run(*words, "--profile", folder), 1, "sealed with a passphrase")
    assert run(*words, *named).code == 0
