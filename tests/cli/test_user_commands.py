"""What a user does, what is refused to them, and that nothing of it shows a secret."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mksearch.access.credential import SignedCredential
from mksearch.crypto.user_key import UserKey
from mksearch.errors import CredentialRefused
from mksearch_client import Admin, Searcher, User
from mksearch_client.profile import Profile
from tests.cli.conftest import N_DOCS, PASSPHRASE, Runner, Society, require_error

WHOAMI_FIELDS = {
    *("profile", "collection", "name", "user", "enrolled", "attributes", "epoch"),
    *("expires_at", "expired"),
}
CARD_CURE = "ask the owner for"


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture(scope="session")
def alice(society: Society) -> Path:
    return society.admit("alice", "role:analyst", "dept:finance")


@pytest.fixture(scope="session")
def bob(society: Society) -> Path:
    return society.admit("bob", "role:analyst")


# --- making a profile ----------------------------------------------------------------------------


def test_init_says_what_to_send_to_the_admin(society: Society, tmp_path: Path) -> None:
    profile = tmp_path / "carol"
    options = ("--card", society.card, "--profile", profile)
    done = society.run.client("user", "init", *options, "--json")

    assert (done.code, done.err) == (0, "")
    fields = done.json
    assert set(fields) == {"profile", "collection", "name", "owner_key", "user", "user_key"}
    key = UserKey.decode(Path(fields["user_key"]).read_bytes())
    assert key.id.hex() == fields["user"]
    assert fields["name"] == "society"
    assert _mode(profile) == 0o700
    assert all(_mode(path) == 0o600 for path in profile.iterdir())
    again = society.run.client("user", "init", *options)
    require_error(again, 1, "holds a profile already", "another --profile folder")
    other = society.run.client("user", "init", "--card", society.card, "--profile", tmp_path / "d")
    assert "send " in other.out
    assert "mksearch user enrol" in other.out


def _edited(**changes: object) -> Callable[[bytes], bytes]:
    return lambda card: json.dumps(json.loads(card) | changes).encode()


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda card: b"", "is no card"),
        (lambda card: b"\xff\xfe", "is no card"),
        (lambda card: b"[]", "is no card"),
        (lambda card: b"{}", "is no card that this release reads"),
        (lambda card: card[: len(card) // 2], "is no card"),
        (_edited(format=1), "admits no users yet"),
        (_edited(format=9), "is no card that this release reads"),
        (_edited(collection="00"), "is damaged"),
        (_edited(owner_key="zz"), "is damaged"),
        (_edited(admin_key=7), "is damaged"),
        (_edited(authority="00"), "is damaged"),
        (_edited(servers=[]), "is damaged"),
        (_edited(servers=[{"id": 1, "address": "127.0.0.1:1", "key": ""}] * 3), "is damaged"),
        (_edited(n_servers=2), "is damaged"),
        (_edited(collusion_bound=3), "is damaged"),
    ],
)
def test_a_card_that_cannot_be_used_ends_with_1_and_makes_nothing(
    society: Society, tmp_path: Path, change: Callable[[bytes], bytes], part: str
) -> None:
    card, profile = tmp_path / "card", tmp_path / "profile"
    card.write_bytes(change(society.card.read_bytes()))
    done = society.run.client("user", "init", "--card", card, "--profile", profile, "--json")

    require_error(done, 1, part)
    assert done.json["error"] == "bad-input"
    assert not profile.exists()


def test_a_card_that_is_not_there_ends_with_1(runner: Runner, tmp_path: Path) -> None:
    done = runner.client("user", "init", "--card", tmp_path / "none", "--profile", tmp_path / "p")

    require_error(done, 1, "none cannot be read", "check --card")


def test_keys_made_without_a_card_are_those_of_the_later_profile(
    society: Society, tmp_path: Path
) -> None:
    folder = tmp_path / "dave"
    done = society.run.client("user", "keygen", "--profile", folder, "--json")
    assert (done.code, set(done.json)) == (0, {"profile", "user", "user_key"})
    again = society.run.client("user", "keygen", "--profile", folder, "--json")
    assert again.json == done.json
    for words in (("user", "whoami"), ("search", "a")):
        refused = society.run.client(*words, "--profile", folder)
        require_error(refused, 1, "of no collection yet", "mksearch user init --card FILE")
    servers = [word for n in (1, 2, 3) for word in ("--server", f"127.0.0.1:{n}=t")]
    refused = society.run.client("owner", "init", *servers, "--profile", folder)
    require_error(refused, 1, "is a user's, and this needs the owner's")

    made = society.run.client("user", "init", "--card", society.card, "--profile", folder, "--json")
    assert made.json["user"] == done.json["user"]
    assert society.run.client("user", "whoami", "--profile", folder).code == 0


def test_keys_are_made_in_no_foreign_folder(society: Society, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letter").write_text("dear")

    for words in (("user", "keygen"), ("user", "init", "--card", society.card)):
        done = society.run.client(*words, "--profile", foreign)
        require_error(done, 1, "is not empty")
        done = society.run.client(*words, "--profile", foreign / "letter" / "p")
        require_error(done, 1, "cannot be written")
    assert society("user", "keygen", who="owner").code == 1
    assert [path.name for path in foreign.iterdir()] == ["letter"]


# --- enrolling -----------------------------------------------------------------------------------


def test_enrolling_says_who_the_user_is(society: Society, alice: Path) -> None:
    done = society("user", "whoami", "--json", who="alice")
    fields = done.json

    assert (done.code, done.err) == (0, "")
    assert set(fields) == WHOAMI_FIELDS
    assert (fields["enrolled"], fields["expired"], fields["epoch"]) == (True, False, 1)
    assert fields["attributes"] == ["dept:finance", "role:analyst"]
    assert fields["user"] == UserKey.decode((alice / "user-key").read_bytes()).id.hex()
    text = society("user", "whoami", who="alice").out
    assert "dept:finance, role:analyst" in text
    assert "until" in text


def test_who_is_not_enrolled_is_told_how(society: Society) -> None:
    society.join("eve")
    fields = society("user", "whoami", "--json", who="eve").json

    assert (fields["enrolled"], fields["attributes"], fields["expires_at"]) == (False, [], 0)
    text = society("user", "whoami", who="eve").out
    assert "not enrolled: send " in text
    for words in (("search", "garden"), ("open", "budget")):
        done = society(*words, who="eve")
        require_error(done, 1, "is not enrolled", "mksearch user enrol --credential FILE")


def test_people_see_the_documents_of_the_policies_that_they_satisfy(
    society: Society, alice: Path, bob: Path
) -> None:
    found = society("search", "secret budget", "--json", who="alice").json
    assert (found["groups"], found["n_docs"]) == (2, N_DOCS + 1)
    assert found["hits"][0]["id"] == "budget"
    assert society("open", "budget", who="alice").out == "the secret budget of the garden"

    found = society("search", "secret budget", "--json", who="bob").json
    assert (found["groups"], found["n_docs"]) == (1, N_DOCS)
    assert "budget" not in [hit["id"] for hit in found["hits"]]
    require_error(society("open", "budget", who="bob"), 1, "no document 'budget'")


def test_enrolling_tells_what_comes_next(society: Society) -> None:
    credential = society.credential("fay", "role:x")
    done = society("user", "enrol", "--credential", credential, who="fay")

    assert (done.code, done.err) == (0, "")
    assert "mksearch search" in done.out
    as_json = society("user", "enrol", "--credential", credential, "--json", who="fay")
    assert set(as_json.json) == WHOAMI_FIELDS


def test_another_persons_credential_ends_with_4(society: Society, bob: Path) -> None:
    credential = society.credential("gus", "role:boss")
    before = (bob / "credential").read_bytes()
    done = society("user", "enrol", "--credential", credential, "--json", who="bob")

    require_error(done, 4, "the credential is for user key")
    assert done.json["error"] == "credential-refused"
    assert (bob / "credential").read_bytes() == before


def _with_card(society: Society, name: str, folder: Path, **changes: object) -> Path:
    """Give a copy of a person's profile that knows another card."""
    shutil.copytree(society.join(name), folder)
    path = folder / "profile.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_a_credential_of_another_collection_or_administration_is_refused(
    society: Society, tmp_path: Path
) -> None:
    credential = society.credential("hal", "role:x")
    words = ("user", "enrol", "--credential", credential, "--json", "--profile")
    elsewhere = _with_card(society, "hal", tmp_path / "elsewhere", collection="ab" * 16)
    done = society.run.client(*words, elsewhere)
    require_error(done, 4, "the credential is for collection", "use the card of that collection")

    owner_key = society.made.json["collection"] * 2
    strangers = _with_card(society, "hal", tmp_path / "strangers", admin_key=owner_key)
    done = society.run.client(*words, strangers)
    require_error(done, 3, "the signature of a credential is not that of key", "ask the admin")
    assert done.json["error"] == "not-verified"
    assert not (elsewhere / "credential").exists()
    assert not (strangers / "credential").exists()


def test_a_credential_that_was_cut_or_changed_ends_with_3_and_is_not_kept(
    society: Society, tmp_path: Path
) -> None:
    good = society.credential("ida", "role:x").read_bytes()
    cases = [good[:size] for size in range(0, len(good), 97)]
    cases += [good + b"\0", b"not a credential", society.card.read_bytes()]
    for at in range(0, len(good), 61):
        changed = bytearray(good)
        changed[at] ^= 1
        cases.append(bytes(changed))
    file = tmp_path / "credential"
    for data in cases:
        file.write_bytes(data)
        done = society("user", "enrol", "--credential", file, "--json", who="ida")
        require_error(done, 3)
        assert "server" not in done.json["cure"]
    assert not (society.folder / "ida" / "credential").exists()
    for name in ("none", ""):
        done = society("user", "enrol", "--credential", tmp_path / name, who="ida")
        require_error(done, 1, "cannot be read")


def test_an_expired_credential_is_not_taken(society: Society, tmp_path: Path) -> None:
    folder = society.join("jim")
    key = UserKey.decode((folder / "user-key").read_bytes())
    past = Admin(society.owner, clock=lambda: time.time() - 1000)
    file = tmp_path / "credential"
    file.write_bytes(past.issue(key, ["role:x"], life_s=10).encode())
    done = society("user", "enrol", "--credential", file, "--json", who="jim")

    require_error(done, 4, "the credential expired 9", "ask the admin for a new one")
    assert done.json["error"] == "credential-refused"


# --- searching with a credential -----------------------------------------------------------------


def _without_servers(folder: Path, to: Path) -> Path:
    """Give a copy of a profile whose servers all are at an address where nobody listens."""
    shutil.copytree(folder, to)
    path = to / "profile.json"
    fields = json.loads(path.read_text())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{probe.getsockname()[1]}"
    for server in fields["servers"]:
        server["address"] = nowhere
    path.write_text(json.dumps(fields))
    return to


def _expired_copy(society: Society, folder: Path, to: Path) -> Path:
    key = UserKey.decode((folder / "user-key").read_bytes())
    past = Admin(society.owner, clock=lambda: time.time() - 1000)
    shutil.copytree(folder, to)
    (to / "credential").write_bytes(past.issue(key, ["role:x"], life_s=10).encode())
    return to


def test_an_expired_credential_ends_a_search_with_4_before_anything_is_sent(
    society: Society, alice: Path, tmp_path: Path
) -> None:
    profile = _without_servers(_expired_copy(society, alice, tmp_path / "a"), tmp_path / "b")
    options = ("--profile", profile, "--accept-expired", "--json")

    for words in (("search", "garden"), ("open", "garden-01")):
        done = society.run.client(*words, *options)
        # Where nobody listens, asking anybody would end with 1.
        require_error(done, 4, "the credential expired", "ask the admin for a new one")
        assert done.json["error"] == "credential-refused"
    fields = society.run.client("user", "whoami", "--profile", profile, "--json").json
    assert (fields["enrolled"], fields["expired"]) == (True, True)
    assert "expired" in society.run.client("user", "whoami", "--profile", profile).out


def test_the_clock_decides_whether_a_credential_is_good(society: Society, alice: Path) -> None:
    expires_at = society("user", "whoami", "--json", who="alice").json["expires_at"]

    Searcher(alice, clock=lambda: expires_at).close()
    with pytest.raises(CredentialRefused, match="expired 1 s ago"):
        Searcher(alice, clock=lambda: expires_at + 1)
    assert User(alice, clock=lambda: expires_at + 1).whoami().expired


def test_a_credential_of_another_epoch_opens_nothing_and_ends_with_4(
    society: Society, tmp_path: Path
) -> None:
    folder = society.join("kim")
    admin = Admin(society.owner)
    admin._keys = replace(admin._keys, epoch=2)
    key = UserKey.decode((folder / "user-key").read_bytes())
    (tmp_path / "c").write_bytes(admin.issue(key, ["role:analyst"], life_s=999).encode())
    done = society("user", "enrol", "--credential", tmp_path / "c", "--json", who="kim")

    require_error(done, 4, "epoch 2", "and the collection in 1")
    assert done.json["error"] == "credential-refused"
    require_error(society("search", "garden", who="kim"), 1, "is not enrolled")


# --- whose profile it is -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("owner", "status"),
        ("owner", "renew"),
        ("owner", "card", "-o", "/nowhere/card"),
        ("admin", "list"),
    ],
)
def test_a_users_profile_does_not_do_an_owners_work(
    society: Society, alice: Path, words: tuple[str, ...]
) -> None:
    before = {path.name: path.read_bytes() for path in alice.iterdir() if path.is_file()}
    done = society(*words, who="alice")

    require_error(done, 1, "is a user's, and this needs the owner's", "the owner's folder")
    assert before == {p.name: p.read_bytes() for p in alice.iterdir() if p.is_file()}


@pytest.mark.parametrize("command", ["whoami", "enrol"])
def test_an_owners_profile_does_not_do_a_users_work(society: Society, command: str) -> None:
    words = ("--credential", society.credential("lee", "a")) if command == "enrol" else ()
    done = society("user", command, *words, who="owner")

    require_error(done, 1, "holds an owner's profile", "mksearch user init --card FILE")
    require_error(society("user", command, *words, who="nobody"), 1, "holds no user's profile")


# --- torn files and passphrases ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "part"),
    [
        ("keys", b"", "are damaged"),
        ("keys", b"MKUSRSEC", "are damaged"),
        ("keys", b"MKUSRSEC\0\0\0\x01\0" + bytes(31), "are damaged"),
        ("keys", b"MKUSRSEC\0\0\0\x01\0" + bytes(33), "are damaged"),
        ("keys", b"MKUSRSEC\0\0\0\x01\x01" + bytes(40), "sealed with a passphrase"),
        ("keys", b"MKUSRSEC\0\0\0\x09\0" + bytes(32), "format version 9"),
        ("keys", b"MKKEYRNG\0\0\0\x01\0" + bytes(32), "are damaged"),
        ("profile.json", b"{}", "are damaged|is damaged|holds"),
        ("profile.json", b'{"format": 9, "role": "user"}', "is of format 9"),
        ("profile.json", b'{"format": 1, "role": "user"}', "is damaged"),
        ("credential", b"", "the credential in"),
        ("credential", b"MKCREDEN\0\0\0\x01", "the credential in"),
        ("manifest", b"", "manifest is damaged"),
    ],
)
def test_torn_files_of_a_user_are_named(
    society: Society, alice: Path, tmp_path: Path, name: str, data: bytes, part: str
) -> None:
    profile = tmp_path / "profile"
    shutil.copytree(alice, profile)
    (profile / name).write_bytes(data)
    done = society.run.client("search", "garden", "--profile", profile, "--json")

    require_error(done, 1, str(profile) if "passphrase" not in part else "")
    assert any(words in done.json["message"] for words in part.split("|")), done
    assert done.json["error"] == "profile"


def test_a_sealed_profile_of_a_user_opens_with_its_passphrase_alone(
    society: Society, tmp_path: Path
) -> None:
    profile, passphrase, wrong = tmp_path / "mia", tmp_path / "passphrase", tmp_path / "wrong"
    passphrase.write_text(f"{PASSPHRASE}\n")
    wrong.write_text("another")
    society.run.secrets.append(PASSPHRASE.encode())
    run = society.run.client
    named = ("--profile", profile, "--passphrase-file", passphrase)
    # Keys that were made without a passphrase are sealed with the one that comes later.
    assert run("user", "keygen", "--profile", profile).code == 0
    seed = (profile / "keys").read_bytes()[13:]
    society.run.secrets.append(seed)
    assert run("user", "init", "--card", society.card, *named).code == 0
    assert seed not in (profile / "keys").read_bytes()
    file = tmp_path / "credential"
    options = ("--attribute", "role:analyst", "--expires", "1d", "-o", file)
    assert society("admin", "credential", "--user-key", profile / "user-key", *options).code == 0
    assert run("user", "enrol", "--credential", file, *named).code == 0
    assert run("search", "garden", "-k", "1", *named).code == 0

    for words in (
        ("user", "whoami"),
        ("search", "garden"),
        ("user", "enrol", "--credential", file),
    ):
        require_error(run(*words, "--profile", profile), 1, "sealed with a passphrase")
        done = run(*words, "--profile", profile, "--passphrase-file", wrong)
        require_error(done, 1, "the passphrase is wrong")
    by_environment = {"MKSEARCH_PASSPHRASE_FILE": str(passphrase)}
    assert run("user", "whoami", "--profile", profile, environment=by_environment).code == 0


# --- secrets -------------------------------------------------------------------------------------


def test_servers_and_public_files_hold_no_secret_of_a_user(
    society: Society, alice: Path, bob: Path
) -> None:
    admin_key = bytes.fromhex(society.made.json["admin_key"])
    for folder in (alice, bob):
        secrets = User(folder).profile.secrets()
        society.run.secrets += [secrets.member_secret.reveal(), secrets.attribute_key.encode()]
    society("search", "rhubarb custard", who="alice")
    public = [society.card, alice / "user-key", alice / "credential", alice / "profile.json"]

    credential = SignedCredential.decode((alice / "credential").read_bytes(), admin_key)
    assert len(credential.credential.attributes) == 2
    for path in public:
        society.run.require_no_secret(path.read_bytes())
    for server in society.fleet:
        society.run.require_no_secret(server.log().encode())
        assert "rhubarb" not in server.log()
        for path in server.data.rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                society.run.require_no_secret(data)
                assert b"secret budget" not in data
    assert Profile.open(society.owner).collection.hex() in society.card.read_text()
