"""Attributes of an OpenID Connect issuer: what its tokens give, and every token that gives none.

The issuer is a small web server on this machine; tokens are made here, signature by signature, and
not by the library that proves them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from mksearch.access.authority_messages import TokenClaim
from mksearch.errors import (
    AnswerRefused,
    CredentialRefused,
    MksearchError,
    ParameterError,
    PolicyError,
    StorageError,
)
from mksearch_client.admin import Admin
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner
from mksearch_client.user import User
from mksearch_server.fetching import fetch
from mksearch_server.oidc import TokenReader
from mksearch_server.oidc_config import OidcConfig
from tests.support.grpc_stage import GrpcStage, corpus, hit_ids, staging
from tests.support.processes import run_client, serving

AUDIENCE = "mksearch"
MAPPING = {"groups": "dept", "clearance": "clearance", "title": "title"}
USER = bytes(range(32))


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(value: int, n_bytes: int) -> str:
    return _b64(value.to_bytes(n_bytes, "big"))


class SigningPair:
    """A key of the issuer."""

    def __init__(self, algorithm: str, kid: str) -> None:
        self.algorithm = algorithm
        self.kid = kid
        self.private: Any
        if algorithm == "RS256":
            self.private = rsa.generate_private_key(65537, 2048)
        elif algorithm == "ES256":
            self.private = ec.generate_private_key(ec.SECP256R1())
        else:
            self.private = ed25519.Ed25519PrivateKey.generate()

    @property
    def entry(self) -> dict[str, str]:
        """Its entry in the JWKS."""
        public, head = self.private.public_key(), {"kid": self.kid, "use": "sig"}
        if self.algorithm == "EdDSA":
            return head | {"kty": "OKP", "crv": "Ed25519", "x": _b64(public.public_bytes_raw())}
        numbers = public.public_numbers()
        if self.algorithm == "RS256":
            return head | {"kty": "RSA", "n": _number(numbers.n, 256), "e": "AQAB"}
        point = {"x": _number(numbers.x, 32), "y": _number(numbers.y, 32)}
        return head | {"kty": "EC", "crv": "P-256"} | point

    def pem(self) -> bytes:
        return bytes(
            self.private.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )

    def sign(self, message: bytes) -> bytes:
        if self.algorithm == "RS256":
            return bytes(self.private.sign(message, padding.PKCS1v15(), hashes.SHA256()))
        if self.algorithm == "ES256":
            r, s = decode_dss_signature(self.private.sign(message, ec.ECDSA(hashes.SHA256())))
            return r.to_bytes(32, "big") + s.to_bytes(32, "big")
        return bytes(self.private.sign(message))


#: Of somebody who is no issuer.
OWN = SigningPair("ES256", "own")
PAIRS = {name: SigningPair(name, f"key-{name}") for name in ("RS256", "ES256", "EdDSA")}


class Issuer:
    """An issuer with a web server.

    Attributes:
        entries: what its JWKS has.
        n_fetches: how often that was read.
        answer: makes another answer than the JWKS; None for that.
    """

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = [pair.entry for pair in PAIRS.values()]
        self.n_fetches = 0
        self.answer: Callable[[BaseHTTPRequestHandler], None] | None = None
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.n_fetches += 1
                if issuer.answer is not None:
                    issuer.answer(self)
                    return
                reply(self, json.dumps({"keys": issuer.entries}).encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def config(self, **changes: Any) -> OidcConfig:
        settings: dict[str, Any] = {
            "issuer": self.url,
            "audience": AUDIENCE,
            "attributes": MAPPING,
            "keys_url": f"{self.url}/keys?v=1",
            "leeway_s": 10,
            "timeout_s": 2,
        }
        return OidcConfig(**settings | changes)

    def claims(self, user: bytes, **changes: Any) -> dict[str, Any]:
        now_s = int(time.time())
        claims: dict[str, Any] = {
            "iss": self.url,
            "sub": "248289761001",
            "aud": AUDIENCE,
            "exp": now_s + 300,
            "iat": now_s,
            "nonce": user.hex(),
            "groups": ["finance"],
        }
        return {k: v for k, v in (claims | changes).items() if v is not None}

    def token(
        self, user: bytes, pair: SigningPair = PAIRS["ES256"], header: Any = None, **changes: Any
    ) -> str:
        fields = {"alg": pair.algorithm, "kid": pair.kid, "typ": "JWT"} | (header or {})
        fields = {k: v for k, v in fields.items() if v is not None}
        return signed(fields, json.dumps(self.claims(user, **changes)).encode(), pair.sign)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


def reply(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, **more: str) -> None:
    handler.send_response(status)
    for name, value in more.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def signed(header: Any, payload: bytes, sign: Callable[[bytes], bytes]) -> str:
    said = f"{_b64(json.dumps(header).encode())}.{_b64(payload)}"
    return f"{said}.{_b64(sign(said.encode()))}"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()


@pytest.fixture
def reader(issuer: Issuer) -> TokenReader:
    return TokenReader(issuer.config())


def texts(reader: TokenReader, token: str, user: bytes = USER) -> list[str]:
    return [str(attribute) for attribute in reader.attributes(token, user)]


# --- what a token gives ---------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", PAIRS)
def test_a_token_of_each_algorithm_gives_its_attributes(
    issuer: Issuer, reader: TokenReader, algorithm: str
) -> None:
    token = issuer.token(USER, PAIRS[algorithm], groups=["finance", "hr"], clearance=5)
    assert texts(reader, token) == ["dept:finance", "dept:hr", "clearance:5"]


def test_only_json_numbers_can_be_compared(issuer: Issuer, reader: TokenReader) -> None:
    number, text = (
        reader.attributes(issuer.token(USER, clearance=value), USER)[1] for value in (5, "5")
    )
    assert number.is_number
    assert not text.is_number
    assert str(text) == 'clearance:"5"'


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ('a "b" \\ c', r'title:"a \"b\" \\ c"'),
        ("x OR role:admin", 'title:"x OR role:admin"'),
        ("a:b", "title:a:b"),
        ("Überprüferin", "title:Überprüferin"),
        (0, "title:0"),
        (2**32 - 1, "title:4294967295"),
    ],
)
def test_values_are_taken_as_they_are(
    issuer: Issuer, reader: TokenReader, value: Any, printed: str
) -> None:
    assert texts(reader, issuer.token(USER, title=value, groups=None)) == [printed]


def test_claims_that_are_absent_or_not_mapped_give_nothing(
    issuer: Issuer, reader: TokenReader
) -> None:
    token = issuer.token(USER, groups=None, role="admin", dept="finance")
    assert texts(reader, token) == []
    assert texts(reader, issuer.token(USER, groups=[])) == []


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, "neither a text nor a whole number"),
        (1.5, "neither a text nor a whole number"),
        (None, "neither a text nor a whole number"),
        ({"a": 1}, "neither a text nor a whole number"),
        ([["a"]], "neither a text nor a whole number"),
        ("", "empty value"),
        (-1, "claim title"),
        (2**32, r"0\.\.4294967295"),
        ("x" * 257, "257 bytes"),
        ("e\u0301", "normal form"),
        ("a\u0000b", "not possible"),
        ("a\u202eb", "not possible"),
        ("\ud800", "half a character"),
        (["x"] * 65, "65 values"),
    ],
)
def test_a_claim_that_cannot_be_an_attribute_is_named(
    issuer: Issuer, reader: TokenReader, value: Any, words: str
) -> None:
    payload = json.dumps(issuer.claims(USER) | {"title": value}).encode()
    token = signed({"alg": "ES256", "kid": "key-ES256"}, payload, PAIRS["ES256"].sign)
    with pytest.raises(CredentialRefused, match=words) as caught:
        reader.attributes(token, USER)
    assert "title" in caught.value.message


# --- tokens that give nothing ---------------------------------------------------------------------


def _unsigned(issuer: Issuer, name: str) -> str:
    return signed({"alg": name}, json.dumps(issuer.claims(USER)).encode(), lambda _: b"")


def _hmac(issuer: Issuer, secret: bytes, kid: str = "key-RS256") -> str:
    payload = json.dumps(issuer.claims(USER)).encode()
    return signed(
        {"alg": "HS256", "kid": kid},
        payload,
        lambda message: hmac.digest(secret, message, hashlib.sha256),
    )


def _cut(token: str, part: int, change: Callable[[str], str]) -> str:
    parts = token.split(".")
    parts[part] = change(parts[part])
    return ".".join(parts)


def _now(**offsets: int) -> dict[str, Any]:
    return {name: int(time.time()) + offset for name, offset in offsets.items()}


BAD: dict[str, tuple[Callable[[Issuer], str], str]] = {
    "none": (lambda i: _unsigned(i, "none"), "signed with 'none'"),
    "None": (lambda i: _unsigned(i, "None"), "signed with 'None'"),
    "HMAC with the public key as PEM": (
        lambda i: _hmac(i, PAIRS["RS256"].pem()),
        "signed with 'HS256'",
    ),
    "HMAC with the modulus": (
        lambda i: _hmac(i, PAIRS["RS256"].entry["n"].encode()),
        "signed with 'HS256'",
    ),
    "RS512": (lambda i: i.token(USER, PAIRS["RS256"], {"alg": "RS512"}), "signed with 'RS512'"),
    "algorithm that is no text": (lambda i: i.token(USER, header={"alg": 5}), "signed with"),
    "a key of another algorithm": (
        lambda i: i.token(USER, PAIRS["ES256"], {"kid": "key-RS256"}),
        "not for",
    ),
    "another algorithm than the key's": (
        lambda i: i.token(USER, PAIRS["RS256"], {"alg": "EdDSA"}),
        "not for",
    ),
    "an unknown key": (lambda i: i.token(USER, header={"kid": "other"}), "does not have"),
    "no key named": (lambda i: i.token(USER, header={"kid": None}), "names no key"),
    "kid that is no text": (lambda i: i.token(USER, header={"kid": ["a"]}), "names no key"),
    "a key of its own": (
        lambda i: i.token(USER, OWN, {"kid": "key-ES256", "jwk": OWN.entry}),
        "signature",
    ),
    "a key of its own elsewhere": (
        lambda i: i.token(USER, OWN, {"kid": "key-ES256", "jku": f"{i.url}/own"}),
        "signature",
    ),
    "an access token": (lambda i: i.token(USER, header={"typ": "at+jwt"}), "another kind"),
    "critical": (lambda i: i.token(USER, header={"crit": ["exp"]}), "another kind"),
    "another payload": (
        lambda i: _cut(i.token(USER), 1, lambda _: i.token(USER, groups=["hr"]).split(".")[1]),
        "signature",
    ),
    "another signature": (
        lambda i: _cut(i.token(USER), 2, lambda _: i.token(USER, sub="x").split(".")[2]),
        "signature",
    ),
    "no signature": (lambda i: _cut(i.token(USER), 2, lambda _: ""), "signature"),
    "a signature as DER": (
        lambda i: signed(
            {"alg": "ES256", "kid": "key-ES256"},
            json.dumps(i.claims(USER)).encode(),
            lambda m: bytes(PAIRS["ES256"].private.sign(m, ec.ECDSA(hashes.SHA256()))),
        ),
        "signature",
    ),
    "another audience": (lambda i: i.token(USER, aud="wiki"), "another audience"),
    "no audience": (lambda i: i.token(USER, aud=None), "another audience"),
    "audiences without a party": (lambda i: i.token(USER, aud=[AUDIENCE, "b"]), "audience"),
    "another party": (lambda i: i.token(USER, aud=[AUDIENCE], azp="wiki"), "another audience"),
    "audience in a longer word": (lambda i: i.token(USER, aud=AUDIENCE + "2"), "audience"),
    "another issuer": (lambda i: i.token(USER, iss="https://evil.example"), "another issuer"),
    "issuer with a slash": (lambda i: i.token(USER, iss=i.url + "/"), "another issuer"),
    "no issuer": (lambda i: i.token(USER, iss=None), "another issuer"),
    "expired": (lambda i: i.token(USER, **_now(exp=-60)), r"expired 6\d s ago"),
    "no expiry": (lambda i: i.token(USER, exp=None), "no exp"),
    "expiry that is no number": (lambda i: i.token(USER, exp="never"), "no exp"),
    "expiry that is true": (lambda i: i.token(USER, exp=True), "no exp"),
    "expiry without end": (lambda i: i.token(USER, exp=float("inf")), "no exp"),
    "expiry that is not a number": (lambda i: i.token(USER, exp=float("nan")), "no exp"),
    "not yet valid": (lambda i: i.token(USER, **_now(nbf=60)), "good in"),
    "issued later": (lambda i: i.token(USER, **_now(iat=60)), "good in"),
    "no time of issue": (lambda i: i.token(USER, iat=None), "no iat"),
    "nonce of another user": (lambda i: i.token(bytes(32)), "nonce"),
    "nonce in capitals": (lambda i: i.token(USER, nonce=USER.hex().upper()), "nonce"),
    "no nonce": (lambda i: i.token(USER, nonce=None), "nonce"),
    "nonce in a list": (lambda i: i.token(USER, nonce=[USER.hex()]), "nonce"),
    "oversized": (lambda i: i.token(USER, filler="x" * 16_384), r"at most 16384"),
    "empty": (lambda _: "", "no ID token"),
    "garbage": (lambda _: "x" * 500, "no ID token"),
    "two parts": (lambda i: i.token(USER).rpartition(".")[0], "no ID token"),
    "four parts": (lambda i: i.token(USER) + ".x", "no ID token"),
    "five parts": (lambda i: i.token(USER) + ".x.y", "no ID token"),
    "header that is no object": (lambda i: _cut(i.token(USER), 0, lambda _: "W10"), "no ID token"),
    "header that is no base64": (lambda i: _cut(i.token(USER), 0, lambda _: "%%"), "no ID token"),
    "deep header": (
        lambda i: _cut(i.token(USER), 0, lambda _: _b64(b"[" * 9000)),
        "no ID token",
    ),
    "JSON form": (lambda i: json.dumps({"payload": i.token(USER)}), "no ID token"),
    "claims that are a list": (
        lambda _: signed({"alg": "ES256", "kid": "key-ES256"}, b"[1]", PAIRS["ES256"].sign),
        "no claims",
    ),
    "deep claims": (
        lambda _: signed({"alg": "ES256", "kid": "key-ES256"}, b"[" * 9000, PAIRS["ES256"].sign),
        "no claims",
    ),
    "claims that are no JSON": (
        lambda _: signed({"alg": "ES256", "kid": "key-ES256"}, b"\xff", PAIRS["ES256"].sign),
        "no claims",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_token_that_is_not_right_is_refused_in_words(
    issuer: Issuer, reader: TokenReader, kind: str
) -> None:
    make, words = BAD[kind]
    with pytest.raises(CredentialRefused, match=words) as caught:
        reader.attributes(make(issuer), USER)
    assert caught.value.exit_code == 4
    assert "\n" not in caught.value.message
    # Nor does it spoil what comes next.
    assert texts(reader, issuer.token(USER)) == ["dept:finance"]


def test_several_audiences_count_when_the_party_is_ours(
    issuer: Issuer, reader: TokenReader
) -> None:
    token = issuer.token(USER, aud=["wiki", AUDIENCE], azp=AUDIENCE)
    assert texts(reader, token) == ["dept:finance"]


def test_clocks_may_differ_by_the_leeway(issuer: Issuer, reader: TokenReader) -> None:
    for changes in (_now(exp=-8), _now(nbf=8), _now(iat=8)):
        assert texts(reader, issuer.token(USER, **changes))
    for changes in (_now(exp=-12), _now(nbf=14), _now(iat=14)):
        with pytest.raises(CredentialRefused):
            reader.attributes(issuer.token(USER, **changes), USER)


def test_every_changed_byte_of_a_token_is_refused(issuer: Issuer, reader: TokenReader) -> None:
    token = issuer.token(USER)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    # The last character of 64 bytes in base64 has four bits that mean nothing.
    for at in range(0, len(token) - 1, 3):
        if token[at] == ".":
            continue
        other = alphabet[(alphabet.index(token[at]) + 17) % 64]
        with pytest.raises(CredentialRefused):
            reader.attributes(token[:at] + other + token[at + 1 :], USER)


# --- keys of the issuer ---------------------------------------------------------------------------


class Ticks:
    """A clock of the test's own."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_keys_are_fetched_once_and_used_for_their_time(issuer: Issuer) -> None:
    ticks = Ticks()
    reader = TokenReader(issuer.config(cache_s=100), monotonic=ticks)
    assert issuer.n_fetches == 0
    for _ in range(3):
        texts(reader, issuer.token(USER))
    assert issuer.n_fetches == 1
    ticks.now_s += 99
    texts(reader, issuer.token(USER))
    assert issuer.n_fetches == 1
    ticks.now_s += 2
    texts(reader, issuer.token(USER))
    assert issuer.n_fetches == 2


def test_a_key_that_is_new_is_fetched_once_and_tokens_do_not_make_servers_ask_more(
    issuer: Issuer,
) -> None:
    ticks = Ticks()
    reader = TokenReader(issuer.config(), monotonic=ticks)
    texts(reader, issuer.token(USER))
    new = SigningPair("ES256", "rotated")
    issuer.entries = [new.entry]
    ticks.now_s += 11
    assert texts(reader, issuer.token(USER, new)) == ["dept:finance"]
    assert issuer.n_fetches == 2
    # The old key is gone, and asking for it again and again fetches nothing.
    for _ in range(20):
        with pytest.raises(CredentialRefused, match="does not have"):
            reader.attributes(issuer.token(USER), USER)
    assert issuer.n_fetches == 2
    ticks.now_s += 11
    with pytest.raises(CredentialRefused, match="does not have"):
        reader.attributes(issuer.token(USER), USER)
    assert issuer.n_fetches == 3


def test_keys_outlive_a_short_failure_of_the_issuer_and_not_their_time(issuer: Issuer) -> None:
    ticks = Ticks()
    reader = TokenReader(issuer.config(cache_s=100), monotonic=ticks)
    texts(reader, issuer.token(USER))
    issuer.answer = lambda handler: reply(handler, b"", 503)
    ticks.now_s += 50
    assert texts(reader, issuer.token(USER))
    with pytest.raises(CredentialRefused, match="does not have"):
        reader.attributes(issuer.token(USER, header={"kid": "new"}), USER)
    assert texts(reader, issuer.token(USER))
    ticks.now_s += 51
    with pytest.raises(StorageError, match="cannot be fetched"):
        reader.attributes(issuer.token(USER), USER)
    n_fetches = issuer.n_fetches
    with pytest.raises(StorageError, match="could not be fetched"):
        reader.attributes(issuer.token(USER), USER)
    assert issuer.n_fetches == n_fetches
    issuer.answer = None
    ticks.now_s += 11
    assert texts(reader, issuer.token(USER))


def _slowly(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(100):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.1)
    except OSError:
        pass


def _slow_head(handler: BaseHTTPRequestHandler) -> None:
    try:
        for _ in range(100):
            handler.wfile.write(b"H")
            handler.wfile.flush()
            time.sleep(0.1)
    except OSError:
        pass


def _noise(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"\0\0")


ANSWERS: dict[str, tuple[Callable[[BaseHTTPRequestHandler], None], str]] = {
    "too long": (lambda h: reply(h, b" " * (1 << 19)), "more than"),
    "slow": (_slowly, "timed out"),
    "slow before the answer": (_slow_head, "timed out"),
    "silent": (lambda h: time.sleep(2), "timed out"),
    "elsewhere": (lambda h: reply(h, b"", 302, Location="http://127.0.0.1:1/"), "status 302"),
    "an error": (lambda h: reply(h, b"{}", 500), "status 500"),
    "no HTTP": (_noise, "cannot be read"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_what_is_fetched_is_bounded_in_size_and_time(issuer: Issuer, kind: str) -> None:
    issuer.answer, words = ANSWERS[kind]
    started = time.monotonic()
    with pytest.raises(StorageError, match=words):
        fetch(f"{issuer.url}/keys", timeout_s=0.5, max_bytes=1 << 18)
    assert time.monotonic() - started < 3


def test_an_answer_that_is_no_key_set_is_no_answer(issuer: Issuer) -> None:
    for body in (b"", b"[]", b'{"keys": {}}', b'{"keys": []}', b"<html>"):
        issuer.answer = lambda handler, body=body: reply(handler, body)
        with pytest.raises(StorageError, match="cannot be fetched"):
            TokenReader(issuer.config()).attributes(issuer.token(USER), USER)


def test_pinned_keys_need_no_network(issuer: Issuer, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": issuer.entries}))
    reader = TokenReader(issuer.config(keys_url="", keys_file=path))
    assert texts(reader, issuer.token(USER)) == ["dept:finance"]
    with pytest.raises(CredentialRefused, match="does not have"):
        reader.attributes(issuer.token(USER, header={"kid": "new"}), USER)
    assert issuer.n_fetches == 0


def test_a_token_that_names_no_key_counts_where_there_is_one_alone(
    issuer: Issuer, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [PAIRS["EdDSA"].entry]}))
    reader = TokenReader(issuer.config(keys_url="", keys_file=path))
    token = issuer.token(USER, PAIRS["EdDSA"], {"kid": None, "typ": None})
    assert texts(reader, token) == ["dept:finance"]


# --- the whole way --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared_issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()


@pytest.fixture(scope="module")
def made_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcStage]:
    with staging(tmp_path_factory.mktemp("oidc")) as stage:
        stage.publish(3)
        stage.share()
        yield stage


@pytest.fixture
def stage(made_stage: GrpcStage, shared_issuer: Issuer) -> GrpcStage:
    """Three servers that know the issuer."""
    for server in made_stage.servers.values():
        server.runtime.authority._tokens = TokenReader(shared_issuer.config())
    return made_stage


def mapped(stage: GrpcStage, issuer: Issuer, server: int, **mapping: str) -> None:
    """Give a server another mapping than the others."""
    reader = TokenReader(issuer.config(attributes=mapping))
    stage.servers[server].runtime.authority._tokens = reader


def admitted(stage: GrpcStage, name: str, *attributes: str) -> tuple[User, bytes]:
    user = stage.applicant(name)
    return user, stage.credential(user, *attributes).encode()


def user_id(user: User) -> bytes:
    return user.profile.identity.public.id


def test_a_token_opens_what_the_credential_alone_does_not(
    stage: GrpcStage, shared_issuer: Issuer
) -> None:
    user, credential = admitted(stage, "both", "role:analyst")
    user.enrol(credential)
    with stage.searcher("both") as searcher:
        assert searcher.search("apple").groups == 1
    user.enrol(credential, id_token=shared_issuer.token(user_id(user), clearance=3) + "\n")
    with stage.searcher("both") as searcher:
        found = searcher.search("apple")
        assert found.groups == 2
        assert min(hit_ids(found.hits)) == "closed0"
    # The next enrolment without a token leaves its attributes out again.
    user.enrol(credential)
    with stage.searcher("both") as searcher:
        assert searcher.search("apple").groups == 1


def test_the_attributes_may_be_told_instead_of_asked_for(
    stage: GrpcStage, shared_issuer: Issuer
) -> None:
    user, credential = admitted(stage, "told", "role:analyst")
    token = shared_issuer.token(user_id(user))
    user.enrol(credential, id_token=token, attributes=["dept:finance", "role:analyst"])
    with stage.searcher("told") as searcher:
        assert searcher.search("apple").groups == 2
    for attributes, words in (
        (["role:analyst"], "also dept:finance"),
        (["role:analyst", "dept:finance", "role:admin"], "not role:admin"),
        (["role:analyst", "dept:hr"], "also dept:finance and not dept:hr"),
    ):
        with pytest.raises(CredentialRefused, match=words) as caught:
            user.enrol(credential, id_token=token, attributes=attributes)
        assert caught.value.exit_code == 4
    many = [f"role:{'x' * 200}{n}" for n in range(60)]
    with pytest.raises(CredentialRefused, match="and 56 more off credential") as caught:
        user.enrol(credential, id_token=token, attributes=["role:analyst", "dept:finance", *many])
    assert len(caught.value.message) < 1000
    with pytest.raises(PolicyError):
        user.enrol(credential, id_token=token, attributes=["AND"])
    with pytest.raises(ParameterError, match="without an ID token"):
        user.enrol(credential, attributes=["role:analyst"])


@pytest.mark.parametrize("kind", ["none", "expired", "another audience", "garbage", "oversized"])
def test_a_bad_token_is_refused_by_the_servers_and_leaves_the_profile_alone(
    stage: GrpcStage, shared_issuer: Issuer, kind: str
) -> None:
    user, credential = admitted(stage, f"bad-{kind.replace(' ', '-')}", "role:analyst")
    make, words = BAD[kind]
    token = make(shared_issuer)
    with pytest.raises(CredentialRefused, match=f"refuse: .*{words}") as caught:
        user.enrol(credential, id_token=token)
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)
    assert token[:40] not in str(caught.value)
    assert not user.whoami().enrolled


def test_a_token_serves_its_user_alone(stage: GrpcStage, shared_issuer: Issuer) -> None:
    victim, _ = admitted(stage, "victim", "role:analyst")
    thief, credential = admitted(stage, "thief", "role:analyst")
    stolen = shared_issuer.token(user_id(victim))
    with pytest.raises(CredentialRefused, match="nonce"):
        thief.enrol(credential, id_token=stolen)


def test_a_token_without_a_credential_of_the_epoch_gives_nothing(
    stage: GrpcStage, shared_issuer: Issuer
) -> None:
    """The credential is proved first: a stranger does not even make servers fetch keys."""
    other, credential = admitted(stage, "other", "role:analyst")
    user = stage.applicant("none")
    with pytest.raises(CredentialRefused, match="user key"):
        user.enrol(credential, id_token=shared_issuer.token(user_id(user)))
    assert other.profile.identity.public.id != user_id(user)


def test_servers_that_map_differently_are_refused_in_words(
    stage: GrpcStage, shared_issuer: Issuer
) -> None:
    mapped(stage, shared_issuer, 1, groups="dept")
    mapped(stage, shared_issuer, 2, groups="team")
    mapped(stage, shared_issuer, 3, groups="unit")
    user, credential = admitted(stage, "unlike", "role:analyst")
    token = shared_issuer.token(user_id(user))
    with pytest.raises(CredentialRefused, match="different attributes") as caught:
        user.enrol(credential, id_token=token)
    for words in ("server 1 dept:finance", "server 2 role:analyst, team:finance", "unit:finance"):
        assert words in caught.value.message
    assert "[oidc.attributes]" in caught.value.cure
    with pytest.raises(CredentialRefused) as told:
        user.enrol(credential, id_token=token, attributes=["role:analyst", "dept:finance"])
    for server, words in ((2, "also team:finance"), (3, "also unit:finance")):
        expected = f"server {server} refuses: this server reads {words} and not dept:finance"
        assert expected in told.value.message


def test_one_server_that_maps_differently_is_left_out(
    stage: GrpcStage, shared_issuer: Issuer
) -> None:
    """It can neither give more nor less than the others agree on."""
    mapped(stage, shared_issuer, 1, groups="dept", sub="role")
    user, credential = admitted(stage, "left-out", "role:analyst")
    user.enrol(credential, id_token=shared_issuer.token(user_id(user)))
    with stage.searcher("left-out") as searcher:
        assert searcher.search("apple").groups == 2
    labels = user.profile.secrets().attribute_key.labels
    assert not [label for label in labels if b"248289761001" in label]


def test_servers_without_an_issuer_take_no_tokens(stage: GrpcStage, shared_issuer: Issuer) -> None:
    for server in stage.servers.values():
        server.runtime.authority._tokens = None
    user, credential = admitted(stage, "no-issuer", "role:analyst")
    with pytest.raises(CredentialRefused, match="takes no ID tokens"):
        user.enrol(credential, id_token=shared_issuer.token(user_id(user)))
    user.enrol(credential)


def test_what_credential_and_token_contradict_is_refused(
    stage: GrpcStage, shared_issuer: Issuer
) -> None:
    """A comparison would take bits of both numbers."""
    user, credential = admitted(stage, "contradiction", "role:analyst", "clearance:3")
    with pytest.raises(CredentialRefused, match="numbers 3 and 4"):
        user.enrol(credential, id_token=shared_issuer.token(user_id(user), clearance=4))
    many = [f"g{n}" for n in range(64)]
    with pytest.raises(CredentialRefused, match="64 attributes"):
        user.enrol(credential, id_token=shared_issuer.token(user_id(user), groups=many))
    user.enrol(credential, id_token=shared_issuer.token(user_id(user), clearance=3))


def test_a_token_that_was_changed_on_the_way_makes_no_key(
    stage: GrpcStage, shared_issuer: Issuer
) -> None:
    """The user signs the token and the attributes with the request."""
    user, credential = admitted(stage, "changed", "role:analyst")
    token = shared_issuer.token(user_id(user))
    keeper = stage.servers[1].runtime.authority
    issue = keeper.issue
    seen: list[Any] = []

    def other(access: Any, collection: bytes, message: Any) -> Any:
        seen.append(message)
        return issue(access, collection, message)

    keeper.issue = other  # type: ignore[method-assign]
    try:
        user.enrol(credential, id_token=token)
    finally:
        del keeper.issue
    manifest = stage.servers[1].manifest
    assert manifest.access is not None
    attributes = seen[-1].token.attributes
    assert attributes == ("dept:finance", "role:analyst")
    for wrong in (
        None,
        TokenClaim(token),
        TokenClaim(token, attributes[:1]),
        TokenClaim(shared_issuer.token(user_id(user), groups=["hr"]), attributes),
    ):
        with pytest.raises(MksearchError, match="request to enrol"):
            issue(manifest.access, manifest.collection, replace(seen[-1], token=wrong))


def test_where_the_owner_holds_the_authority_tokens_are_refused(
    tmp_path: Path, shared_issuer: Issuer
) -> None:
    with staging(tmp_path) as stage:
        stage.publish(2)
        user, credential = admitted(stage, "alone", "role:analyst")
        with pytest.raises(ParameterError, match="do not share the authority"):
            user.enrol(credential, id_token=shared_issuer.token(user_id(user)))


def test_a_server_that_lies_about_a_token_is_named_and_gives_nothing(
    stage: GrpcStage, shared_issuer: Issuer
) -> None:
    """What a server reads is signed, and of the form of attributes with the credential's."""
    from mksearch.wire.v1 import authority_pb2

    user, credential = admitted(stage, "lied-to", "role:analyst")

    def lie(_request: Any) -> Any:
        return authority_pb2.IssuePartialKeyResponse(
            attributes=["role:admin"], signature=bytes(64), generation=1
        )

    for server in (1, 2):
        stage.servers[server].lie = lie
    try:
        with pytest.raises(AnswerRefused) as caught:
            user.enrol(credential, id_token=shared_issuer.token(user_id(user)))
        assert caught.value.liars == (1, 2)
        stage.servers[2].lie = None
        user.enrol(credential, id_token=shared_issuer.token(user_id(user)))
    finally:
        for server in (1, 2):
            stage.servers[server].lie = None


def test_server_processes_read_their_settings_and_take_a_token(
    tmp_path: Path, shared_issuer: Issuer
) -> None:
    with serving(tmp_path, engine="numpy") as fleet:
        for server in fleet:
            server.stop()
            settings = server.config.read_text() + "\n".join(
                [
                    "[oidc]",
                    f'issuer = "{shared_issuer.url}"',
                    f'audience = "{AUDIENCE}"',
                    f'keys_url = "{shared_issuer.url}/keys"',
                    "[oidc.attributes]",
                    'groups = "dept"',
                    "",
                ]
            )
            server.config.write_text(settings)
        fleet.start()
        with Owner.create(tmp_path / "owner", fleet.tokens(), name="test") as owner:
            admin = Admin.create(owner.profile)
            path = corpus(tmp_path / "closed.jsonl", "closed", 3, "apple")
            owner.publish([path], policy="role:analyst AND dept:finance")
            admin.share()
            owner.renew()
            (tmp_path / "card").write_bytes(owner.card())
        user = User.create(tmp_path / "user", tmp_path / "card")
        credential = admin.issue(user.profile.identity.public, ["role:analyst"], life_s=3600)
        token, path = shared_issuer.token(user_id(user)), tmp_path / "token"
        (tmp_path / "credential").write_bytes(credential.encode())
        words: list[str | Path] = ["user", "enrol", "--profile", tmp_path / "user", "--json"]
        words += ["--credential", tmp_path / "credential", "--id-token", path]
        path.write_text(_cut(token, 2, lambda signature: signature[::-1]))
        refused = run_client(*words)
        assert (refused.code, refused.json["error"]) == (4, "credential-refused")
        assert "signature of the ID token is not the issuer's" in refused.json["message"]
        path.write_bytes(b"\xff\xfe")
        assert "not text in ASCII" in run_client(*words).json["message"]
        path.write_text(token + "\n")
        assert run_client(*words).code == 0
        with Searcher(tmp_path / "user") as searcher:
            assert len(searcher.search("apple").hits) == 3
        for server in fleet:
            log = server.log()
            assert token not in log
            assert "finance" not in log
