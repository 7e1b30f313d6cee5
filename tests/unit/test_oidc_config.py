"""``[oidc]`` of server.toml is checked before a server starts, and a refusal says what to write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from mksearch.errors import ParameterError, StorageError
from mksearch_server.cli import main
from mksearch_server.config import load_config, write_config
from mksearch_server.oidc import read_keys
from mksearch_server.oidc_config import OIDC_TEMPLATE, OidcConfig

GOOD: dict[str, Any] = {
    "issuer": "https://login.example.org",
    "audience": "mksearch",
    "keys_url": "https://login.example.org/keys",
}
MAPPING = {"groups": "group", "clearance": "clearance"}
EC = ECKey.generate_key("P-256", {"kid": "one"})


def write(folder: Path, fields: dict[str, Any], attributes: object = MAPPING) -> Path:
    path = write_config(folder, 1, "127.0.0.1:0")
    lines = ["[oidc]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items())]
    if isinstance(attributes, dict):
        pairs = (f"{json.dumps(claim)} = {json.dumps(n)}" for claim, n in attributes.items())
        lines += ["[oidc.attributes]", *pairs]
    path.write_text(path.read_text() + "\n" + "\n".join(lines) + "\n")
    return path


def test_without_the_table_no_tokens_count(tmp_path: Path) -> None:
    assert load_config(write_config(tmp_path, 1, "127.0.0.1:0")).oidc is None


def test_the_settings_are_read_with_their_defaults(tmp_path: Path) -> None:
    found = load_config(write(tmp_path, GOOD)).oidc
    assert found is not None
    assert (found.issuer, found.audience) == (GOOD["issuer"], GOOD["audience"])
    assert (found.timeout_s, found.cache_s, found.leeway_s) == (5, 3600, 60)
    assert dict(found.attributes) == MAPPING
    assert found.keys_file is None


def test_what_the_template_shows_is_right_once_it_is_no_comment(tmp_path: Path) -> None:
    path = write_config(tmp_path, 1, "127.0.0.1:0")
    assert OIDC_TEMPLATE in path.read_text()
    shown = [line.removeprefix("# ") for line in OIDC_TEMPLATE.splitlines()]
    settings = [line for line in shown if line.startswith("[") or " = " in line]
    # It offers both sources of keys, of which one is taken; sentences are left out.
    lines = [s for s in settings if not s.startswith(("keys_file", "Claim"))]
    path.write_text(path.read_text() + "\n".join(lines) + "\n")
    found = load_config(path).oidc
    assert found is not None
    assert found.keys_url.startswith("https://")
    assert len(lines) == 2 + 6 + 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"issuer": None}, "no issuer"),
        ({"audience": None}, "no audience"),
        ({"issuer": ""}, "issuer = '' is not a text"),
        ({"issuer": 3}, "issuer = 3 is not a text"),
        ({"audience": ["a"]}, "audience = .'a'. is not a text"),
        ({"colour": "red"}, "unknown keys: colour"),
        ({"keys_url": None}, "no keys_url and no keys_file, or both"),
        ({"keys_file": "missing.json"}, "keys_url and no keys_file, or both"),
        ({"keys_url": "http://login.example.org/keys"}, "not a safe address"),
        ({"keys_url": "file:///etc/passwd"}, "not a safe address"),
        ({"keys_url": "ftp://127.0.0.1/keys"}, "not a safe address"),
        ({"keys_url": "https://user:word@login.example.org/"}, "not a safe address"),
        ({"keys_url": "https:///keys"}, "not a safe address"),
        ({"keys_url": "http://127.0.0.1.example.org/keys"}, "not a safe address"),
        ({"keys_url": "https://login.example.org:99999/"}, "is no URL"),
        ({"keys_url": "https://login.example.org/a b"}, "characters that no URL has"),
        ({"keys_url": 5}, "not a safe address"),
        ({"timeout_s": 0}, r"timeout_s = 0 is not a number in 1\.\.60"),
        ({"timeout_s": True}, "timeout_s = True"),
        ({"cache_s": 9}, r"cache_s = 9 is not a number in 10\.\.86400"),
        ({"leeway_s": 601}, r"leeway_s = 601 is not a number in 0\.\.600"),
        ({"leeway_s": 1.5}, "leeway_s = 1.5"),
    ],
)
def test_a_setting_that_is_wrong_is_named(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    fields = {k: v for k, v in (GOOD | change).items() if v is not None}
    with pytest.raises(ParameterError, match=words) as caught:
        load_config(write(tmp_path, fields))
    assert caught.value.cure


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        (None, "no attributes"),
        ({}, "names no claim"),
        ({"groups": "epoch"}, "reserved"),
        ({"groups": "Epoch"}, "reserved"),
        ({"groups": ""}, "empty name"),
        ({"groups": 3}, "not a text"),
        ({"groups": "x" * 300}, "256"),
        ({"groups": "e\u0301"}, "normal form"),
    ],
)
def test_a_claim_gives_an_attribute_that_can_be_one(
    tmp_path: Path, attributes: object, words: str
) -> None:
    with pytest.raises(ParameterError, match=words):
        load_config(write(tmp_path, GOOD, attributes))


@pytest.mark.parametrize("host", ["127.0.0.1:7301", "localhost", "[::1]:80"])
def test_keys_may_come_from_this_machine_without_tls(tmp_path: Path, host: str) -> None:
    found = load_config(write(tmp_path, GOOD | {"keys_url": f"http://{host}/keys"})).oidc
    assert found is not None


def _set(*keys: Any) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


def test_a_pinned_file_is_relative_to_the_settings_and_is_proved(tmp_path: Path) -> None:
    fields = {k: v for k, v in GOOD.items() if k != "keys_url"} | {"keys_file": "keys.json"}
    path = write(tmp_path, fields)
    with pytest.raises(ParameterError, match=r"keys\.json cannot be read"):
        load_config(path)
    for wrong, words in (
        (b"", "no JWKS"),
        (b"[]", "no JWKS"),
        (b'{"keys": [3]}', "no JWKS"),
        (b"[" * 100_000, "no JWKS"),
        (_set(), "no key of 0"),
    ):
        (tmp_path / "keys.json").write_bytes(wrong)
        with pytest.raises(ParameterError, match=words):
            load_config(path)
    (tmp_path / "keys.json").write_bytes(_set(EC.as_dict(private=False)))
    found = load_config(path).oidc
    assert found is not None
    assert found.keys_file == tmp_path / "keys.json"


def test_check_config_says_what_is_wrong_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, GOOD | {"keys_url": "http://login.example.org/keys"})
    assert main(["check-config", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert "oidc.keys_url" in said
    assert said.count("\n") == 1
    good = write(tmp_path, GOOD)
    assert main(["check-config", "--config", str(good)]) == 0


UNUSABLE: dict[str, Callable[[], dict[str, Any]]] = {
    "symmetric": lambda: OctKey.generate_key(256).as_dict(private=True),
    "private": lambda: EC.as_dict(private=True),
    "for encryption": lambda: EC.as_dict(private=False) | {"use": "enc"},
    "for another algorithm": lambda: EC.as_dict(private=False) | {"alg": "ES384"},
    "for HMAC": lambda: EC.as_dict(private=False) | {"alg": "HS256"},
    "another curve": lambda: ECKey.generate_key("P-384").as_dict(private=False),
    "not for signing": lambda: OKPKey.generate_key("X25519").as_dict(private=False),
    "another kind": lambda: {"kty": "PQ", "x": "AAAA"},
    "without a kind": lambda: {"x": "AAAA"},
    "no point": lambda: EC.as_dict(private=False) | {"x": "AAAA"},
    "kid that is no text": lambda: EC.as_dict(private=False) | {"kid": 3},
    "short": lambda: {"kty": "RSA", "e": "AQAB", "n": "z" * 171},
    "a list for a kind": lambda: {"kty": ["RSA"]},
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_key_that_proves_no_token_is_not_used(kind: str) -> None:
    wrong = UNUSABLE[kind]()
    with pytest.raises(StorageError, match="no key of 1"):
        read_keys(_set(wrong))
    keys = read_keys(_set(wrong, EC.as_dict(private=False)))
    assert [entry["kid"] for entry, _ in keys] == ["one"]


def test_keys_of_each_algorithm_are_used() -> None:
    keys: list[Any] = [
        RSAKey.generate_key(2048, {"kid": "r"}),
        EC,
        OKPKey.generate_key("Ed25519", {"kid": "e"}),
    ]
    assert len(read_keys(_set(*(key.as_dict(private=False) for key in keys)))) == 3


def test_a_key_set_without_end_is_refused() -> None:
    with pytest.raises(StorageError, match="65 keys"):
        read_keys(_set(*[EC.as_dict(private=False)] * 65))


def test_settings_made_in_code_are_checked_alike() -> None:
    with pytest.raises(ParameterError, match="names no claim"):
        OidcConfig("https://i", "a", {}, keys_url="https://i/keys")
