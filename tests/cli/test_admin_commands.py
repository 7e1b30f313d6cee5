"""Policies and credentials as an owner types them, and everything that can be mistyped."""

from __future__ import annotations

import json
import time
import unicodedata
from pathlib import Path

import pytest

from mksearch.access.credential import SignedCredential
from mksearch.errors import ParameterError
from mksearch_client.durations import parse_duration
from mksearch_client.profile import Profile
from tests.cli.conftest import (
    CORPUS,
    N_DOCS,
    SECRET_POLICY,
    Runner,
    Sealed,
    Society,
    require_error,
)

PUBLISH_FIELDS = {
    *("documents", "skipped", "version", "segments", "columns", "index_bytes", "seconds"),
    *("changed", "servers", "added", "replaced", "deleted"),
    *("unchanged", "new_bytes"),
}
DECOMPOSED = unicodedata.normalize("NFD", "rôle:analyst")


def _issue(society: Society, output: Path, *attributes: str, expires: str = "30d") -> list[str]:
    words = [word for attribute in attributes for word in ("--attribute", attribute)]
    user_key = society.join("alice") / "user-key"
    options = ["--user-key", str(user_key), "--expires", expires, "-o", str(output), "--json"]
    return ["admin", "credential", *words, *options]


# --- durations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1),
        ("90s", 90),
        ("15m", 900),
        ("12h", 43_200),
        ("30d", 2_592_000),
        ("2w", 1_209_600),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: int) -> None:
    assert parse_duration(text, "--expires") == seconds


@pytest.mark.parametrize(
    "text",
    [
        *("", "30", "d", "0d", "-1d", "1.5d", "30 d", " 30d", "30d ", "30D", "030d", "1y", "1d1h"),
        *("1e3s", "٣٠d", "３0d", "30d\n", "9" * 30 + "s"),
    ],
)
def test_another_duration_is_refused_with_a_cure(text: str) -> None:
    with pytest.raises(ParameterError, match="is no duration") as caught:
        parse_duration(text, "--expires")
    assert "30d" in caught.value.cure


# --- the administration --------------------------------------------------------------------------


def test_init_says_what_was_made(society: Society) -> None:
    fields = society.made.json

    assert set(fields) == {"profile", "collection", "authority", "admin_key", "epoch", "shared"}
    assert fields["shared"] is True
    assert (fields["profile"], fields["epoch"]) == (str(society.owner), 1)
    card = json.loads(society.card.read_text())
    assert card["admin_key"] == fields["admin_key"]
    assert (society.owner / "administration").stat().st_mode & 0o777 == 0o600


def test_a_second_administration_is_refused_and_the_first_stays(society: Society) -> None:
    before = (society.owner / "administration").read_bytes()

    require_error(society("admin", "init"), 1, "has an administration already", "admin credential")
    assert (society.owner / "administration").read_bytes() == before


def test_init_tells_people_what_comes_next(sealed: Sealed, runner: Runner, tmp_path: Path) -> None:
    options = ("--profile", sealed.folder, "--passphrase-file", sealed.passphrase)
    require_error(
        runner.client("admin", "list", *options), 1, "no administration", "mksearch admin init"
    )
    require_error(
        runner.client("admin", "init", "--profile", sealed.folder), 1, "sealed with a passphrase"
    )
    done = runner.client("admin", "init", *options)

    assert done.code == 0, done.err
    assert "mksearch owner renew" in done.out
    assert "mksearch owner card" in done.out
    data = (sealed.folder / "administration").read_bytes()
    assert data[12:13] == b"\x01"
    assert runner.client("admin", "list", *options, "--json").json == {"credentials": []}
    require_error(
        runner.client("admin", "list", "--profile", sealed.folder), 1, "sealed with a passphrase"
    )
    wrong = tmp_path / "wrong"
    wrong.write_text("correct horse battery stable")
    options = ("--profile", sealed.folder, "--passphrase-file", wrong)
    require_error(runner.client("admin", "list", *options), 1, "the passphrase is wrong")


@pytest.mark.parametrize("command", ["init", "list"])
def test_only_an_owner_has_an_administration(
    society: Society, tmp_path: Path, command: str
) -> None:
    society.join("alice")

    require_error(society("admin", command, who="alice"), 1, "is a user's", "the owner's folder")
    require_error(society("admin", command, who="nobody"), 1, "holds no profile")


@pytest.mark.parametrize(
    ("name", "data", "part"),
    [
        ("administration", b"", "are damaged"),
        ("administration", b"MKADMINI\0\0\0\x01\0", "are damaged"),
        ("administration", b"MKADMINI\0\0\0\x01\0\xa0", "are damaged"),
        ("administration", b"MKADMINI\0\0\0\x09\0", "format version 9"),
        ("credentials.json", b"", "is damaged"),
        ("credentials.json", b"[]", "is damaged"),
        ("credentials.json", b'{"format": 9}', "another format"),
        ("credentials.json", b'{"format": 1, "credentials": [{}]}', "is damaged"),
    ],
)
def test_torn_files_of_the_administration_are_named(
    society: Society, name: str, data: bytes, part: str
) -> None:
    path = society.owner / name
    before = path.read_bytes() if path.exists() else None
    path.write_bytes(data)
    try:
        done = society("admin", "list", "--json")
    finally:
        path.unlink()
        if before is not None:
            path.write_bytes(before)

    require_error(done, 1, part, "(")
    assert done.json["error"] == "profile"


def test_an_administration_cut_anywhere_is_refused(society: Society) -> None:
    path = society.owner / "administration"
    whole = path.read_bytes()
    try:
        for size in range(0, len(whole), 23):
            path.write_bytes(whole[:size])
            require_error(society("admin", "list"), 1, "are damaged")
    finally:
        path.write_bytes(whole)
    assert society("admin", "list").code == 0


# --- credentials ---------------------------------------------------------------------------------


def test_a_credential_says_what_is_in_it_and_is_listed(society: Society, tmp_path: Path) -> None:
    output = tmp_path / "alice.credential"
    attributes = ("role:analyst", "clearance:3", '"on leave"')
    before = society("admin", "list", "--json").json["credentials"]
    done = society(*_issue(society, output, *attributes, expires="12h"))

    assert (done.code, done.err) == (0, "")
    fields = done.json
    assert set(fields) == {
        *("credential", "serial", "user", "attributes", "epoch", "issued_at", "expires_at")
    }
    assert fields["attributes"] == sorted(attributes)
    assert fields["expires_at"] - fields["issued_at"] == 12 * 3600
    assert output.stat().st_mode & 0o777 == 0o600
    key = bytes.fromhex(society.made.json["admin_key"])
    signed = SignedCredential.decode(output.read_bytes(), key)
    assert signed.credential.serial.hex() == fields["serial"]
    after = society("admin", "list", "--json").json["credentials"]
    assert after[: len(before)] == before
    (listed,) = after[len(before) :]
    assert listed == {n: v for n, v in fields.items() if n != "credential"} | {"expired": False}
    shown = society("admin", "list").out
    assert fields["serial"][:8] in shown
    assert "clearance:3" in shown


def test_people_are_told_for_whom_a_credential_is(society: Society, tmp_path: Path) -> None:
    words = [w for w in _issue(society, tmp_path / "c", "role:x") if w != "--json"]
    done = society(*words)

    assert (done.code, done.err) == (0, "")
    assert "role:x" in done.out
    assert "mksearch user enrol --credential" in done.out


@pytest.mark.parametrize(
    ("attributes", "part"),
    [
        (["epoch:1"], "the name epoch is reserved at character 1"),
        (["Epoch"], "the name epoch is reserved at character 1"),
        ([""], "0 bytes"),
        ([" "], "at character 2"),
        ([":x"], "empty name at character 1"),
        (["role:"], "empty value"),
        (["role analyst"], "'analyst' follows at character 6"),
        (["role:a OR role:b"], "'OR' follows at character 8"),
        (["clearance>=3"], "'>=' follows at character 10"),
        (["role=analyst"], "'=' follows at character 5"),
        (["(a)"], "not '(', at character 1"),
        (["NOT"], "not 'NOT', at character 1"),
        (["7"], "not '7', at character 1"),
        (["role:a!"], "'!' is not possible outside quotes at character 7"),
        (['"role'], "not closed"),
        ([DECOMPOSED], "normal form C at character 2"),
        (["a\x00b"], "U+0000 is not possible outside quotes at character 2"),
        (["a\u202eb"], "U+202E"),
        (["n" * 257], "257 bytes (at most 256)"),
        (["a", "n" * 5000], "5000 bytes or more"),
        (["clearance:1", "clearance:2"], "has the numbers 1 and 2"),
    ],
)
def test_an_attribute_that_is_none_ends_with_2_and_the_place(
    society: Society, tmp_path: Path, attributes: list[str], part: str
) -> None:
    before = society("admin", "list", "--json").json
    done = society(*_issue(society, tmp_path / "none", *attributes))

    assert (done.code, done.json["error"]) == (2, "bad-policy"), done
    assert part in done.json["message"]
    assert not (tmp_path / "none").exists()
    assert society("admin", "list", "--json").json == before


def test_more_than_64_attributes_are_refused(society: Society, tmp_path: Path) -> None:
    done = society(*_issue(society, tmp_path / "none", *(f"a:{n}x" for n in range(65))))

    assert done.code == 2
    assert "65" in done.json["message"]


@pytest.mark.parametrize(
    ("expires", "part"),
    [("30", "is no duration"), ("0d", "is no duration"), ("600w", "is not in 1..")],
)
def test_a_life_out_of_range_ends_with_2_and_a_cure(
    society: Society, tmp_path: Path, expires: str, part: str
) -> None:
    done = society(*_issue(society, tmp_path / "none", "a", expires=expires))

    require_error(done, 2, part, "30d")
    assert not (tmp_path / "none").exists()


def _user_key_is(society: Society, path: Path, tmp_path: Path) -> list[str]:
    words = _issue(society, tmp_path / "none", "a")
    words[words.index("--user-key") + 1] = str(path)
    return words


def test_another_file_than_a_user_key_ends_with_3_and_says_whom_to_ask(
    society: Society, tmp_path: Path
) -> None:
    good = (society.join("alice") / "user-key").read_bytes()
    cases = {
        "card": society.card.read_bytes(),
        "keys": (society.folder / "alice" / "keys").read_bytes(),
        "empty": b"",
        "cut": good[:-1],
        "longer": good + b"\0",
        "zeros": good[:12] + bytes(len(good) - 12),
        "version": good[:11] + b"\x09" + good[12:],
    }
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
        done = society(*_user_key_is(society, tmp_path / name, tmp_path))
        assert done.code == 3, (name, done)
        assert done.json["cure"], name
        assert name == "version" or "file user-key of their profile" in done.json["cure"], name
    require_error(
        society(*_user_key_is(society, tmp_path / "gone", tmp_path)), 1, "gone cannot be read"
    )
    require_error(society(*_user_key_is(society, tmp_path, tmp_path)), 1, "cannot be read")
    assert not (tmp_path / "none").exists()


def test_a_credential_replaces_no_other_file_and_none_is_listed_for_it(
    society: Society, tmp_path: Path
) -> None:
    before = society("admin", "list", "--json").json
    letter, empty = tmp_path / "letter", tmp_path / "empty"
    letter.write_text("dear")
    empty.touch()
    require_error(society(*_issue(society, letter, "a")), 1, "letter is there and is no credential")
    require_error(society(*_issue(society, tmp_path, "a")), 1, "it is a folder")
    require_error(society(*_issue(society, tmp_path / "no" / "c", "a")), 1, "no such folder")
    assert letter.read_text() == "dear"
    assert society("admin", "list", "--json").json == before

    assert society(*_issue(society, empty, "a")).code == 0
    first = empty.read_bytes()
    assert society(*_issue(society, empty, "a")).code == 0
    assert empty.read_bytes() != first


def test_a_card_replaces_no_other_file(society: Society, tmp_path: Path) -> None:
    profile = society.owner / "profile.json"
    before = profile.read_bytes()
    require_error(
        society("owner", "card", "-o", profile), 1, "profile.json is there and is no card"
    )
    assert profile.read_bytes() == before

    card = tmp_path / "card.json"
    assert society("owner", "card", "-o", card).code == 0
    assert society("owner", "card", "-o", card).code == 0
    assert card.read_bytes() == society.card.read_bytes()


# --- publishing under a policy -------------------------------------------------------------------


def test_publishing_under_a_policy_shows_it_to_people_and_keeps_the_json(society: Society) -> None:
    text, fields = society.published[0].out, society.published[1].json

    assert text.startswith("version ")
    assert f" has 1 document under {SECRET_POLICY} (1 added, " in text
    assert set(fields) == PUBLISH_FIELDS
    assert (fields["documents"], fields["changed"]) == (1, False)
    again = society("owner", "publish", CORPUS)
    assert f"has {N_DOCS} documents already\n" in again.out


@pytest.mark.parametrize(
    ("policy", "part"),
    [
        ("", "0 bytes"),
        ("  ", "not the end, at character 3"),
        ("(role:a", "not closed that opens at character 1"),
        ("role:a)", "')' is not expected at character 7"),
        ("(role:a AND", "not the end, at character 12"),
        ("AND role:a", "not 'AND', at character 1"),
        ("a b", "'b' is not expected at character 3"),
        ("a && b", "'&' is not possible outside quotes at character 3"),
        ("a | b", "'|' is not possible outside quotes at character 3"),
        ("NOT a", "'NOT' is not expected at character 1"),
        ("3 OF (a, b)", "cannot be counted at character 1"),
        ("2 OF a", "OF stands before parentheses at character 3"),
        ("clearance >= x", "compares with a whole number, not 'x', at character 14"),
        ("clearance >= 4294967296", "compares with a whole number"),
        ("a AND epoch:3", "the name epoch is reserved at character 7"),
        (f"a AND {DECOMPOSED}", "normal form C at character 8"),
        ("a AND b\u200bc", "U+200B"),
        ("(" * 33 + "a" + ")" * 33, "nested more than 32 deep at character 33"),
        (" OR ".join(f"a{n}" for n in range(257)), "257 leaves"),
        ("a" * 4097, "4097 bytes"),
    ],
)
def test_a_policy_that_does_not_parse_ends_with_2_and_the_place(
    society: Society, policy: str, part: str
) -> None:
    version = society("owner", "status", "--json").json["version"]
    done = society("owner", "publish", CORPUS, "--policy", policy, "--json")

    assert (done.code, done.json["error"]) == (2, "bad-policy"), done
    assert part in done.json["message"]
    assert society("owner", "status", "--json").json["version"] == version


def test_a_policy_without_an_administration_says_what_to_run(
    runner: Runner, society: Society, tmp_path: Path
) -> None:
    profile = Profile.open(society.owner)
    plain = tmp_path / "plain"
    plain.mkdir()
    for name in ("keys", "profile.json"):
        (plain / name).write_bytes((profile.folder / name).read_bytes())
    done = runner.client("owner", "publish", CORPUS, "--policy", "a", "--profile", plain)

    require_error(done, 2, "need an administration", "mksearch admin init")


def test_a_list_says_which_credentials_have_expired(society: Society, tmp_path: Path) -> None:
    assert society(*_issue(society, tmp_path / "short", "a", expires="1s")).code == 0
    time.sleep(2.1)
    listed = society("admin", "list", "--json").json["credentials"]

    assert listed[-1]["expired"] is True
    assert "expired" in society("admin", "list").out.splitlines()[-1]
