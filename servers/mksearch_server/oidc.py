"""ID tokens of an OpenID Connect issuer: prove one, and read attributes off it (13.7).

The only module that imports joserfc.  Nothing of a token is kept or logged.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey

from mksearch.access.attributes import Attribute, parse_attribute
from mksearch.access.tokens import quote
from mksearch.errors import CredentialRefused, ParameterError, PolicyError, StorageError
from mksearch_server.fetching import fetch
from mksearch_server.log import log_event
from mksearch_server.oidc_config import OidcConfig

__all__ = ["ALGORITHMS", "IssuerKeys", "TokenReader"]

_Key = RSAKey | ECKey | OKPKey
#: Algorithms that count: the kind and curve of their keys.
ALGORITHMS = {"RS256": ("RSA", ""), "ES256": ("EC", "P-256"), "EdDSA": ("OKP", "Ed25519")}
TOKEN_BYTES_MAX = 16_384
_KEYS_BYTES_MAX = 1 << 18
_KEYS_MAX = 64
_RSA_BITS_MIN = 2048
#: Seconds between two fetches, whatever tokens say.
_REFETCH_S = 10.0
_VALUES_MAX = 64
#: What damaged JSON, headers and keys make Python and joserfc raise.
_BROKEN = (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
_NEW_LOGIN = "log in again and enrol with the new token"


class _Registry(jws.JWSRegistry):
    """The algorithms that count, whatever others think of them."""

    max_header_length = 4096
    max_payload_length = TOKEN_BYTES_MAX

    def __init__(self) -> None:
        super().__init__(algorithms=list(ALGORITHMS), strict_check_header=False)

    def get_alg(self, name: str) -> Any:
        """Return an algorithm; the library warns of EdDSA for its name."""
        if name not in ALGORITHMS:
            raise ValueError(f"algorithm {name} does not count")
        return self.algorithms[name]


class IssuerKeys:
    """The public keys of an issuer, from a file or fetched and used for a while.

    Not for use on several threads at once.
    """

    def __init__(self, config: OidcConfig, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Read the file, if it is one; keys at a URL are fetched when they are first needed.

        Args:
            config: whose keys.
            monotonic: seconds.

        Raises:
            ParameterError: the file is no key set with a key that can be used.
        """
        self._config = config
        self._monotonic = monotonic
        self._keys: tuple[tuple[Mapping[str, Any], _Key], ...] = ()
        self._fetched_s: float | None = None
        self._tried_s: float | None = None
        if config.keys_file is not None:
            try:
                data = config.keys_file.read_bytes()
            except OSError as error:
                raise ParameterError(
                    f"oidc.keys_file {config.keys_file} cannot be read ({error.strerror})",
                    cure="name the JWKS of the issuer",
                ) from None
            try:
                self._keys = read_keys(data)
            except StorageError as error:
                raise ParameterError(
                    f"oidc.keys_file {config.keys_file}: {error.message}", cure=error.cure
                ) from None

    def find(self, kid: str | None, algorithm: str) -> _Key:
        """Return the key that a token names.

        Args:
            kid: of the token's header, None if it names none.
            algorithm: of the token's header, one of `ALGORITHMS`.

        Raises:
            CredentialRefused: the issuer has no such key, or it is for something else.
            StorageError: the keys cannot be fetched.
        """
        self._refresh(max_age_s=self._config.cache_s)
        if (found := self._known(kid)) is None:
            self._refresh(max_age_s=_REFETCH_S)
            found = self._known(kid)
        if found is None:
            what = "names no key" if kid is None else "names a key that the issuer does not have"
            raise CredentialRefused(f"the ID token {what}", cure=_NEW_LOGIN)
        entry, key = found
        kind, curve = ALGORITHMS[algorithm]
        fits = (entry["kty"], entry.get("crv", "") if curve else "") == (kind, curve)
        if not fits or entry.get("alg", algorithm) != algorithm:
            raise CredentialRefused(
                f"the ID token says {algorithm}, which its key is not for", cure=_NEW_LOGIN
            )
        return key

    def _known(self, kid: str | None) -> tuple[Mapping[str, Any], _Key] | None:
        named = [pair for pair in self._keys if kid is None or pair[0].get("kid") == kid]
        return named[0] if len(named) == 1 else None

    def _refresh(self, max_age_s: float) -> None:
        """Fetch the keys anew unless they are young, or were asked for a moment ago."""
        url, now_s = self._config.keys_url, self._monotonic()
        if not url:
            return
        is_young = self._fetched_s is not None and now_s - self._fetched_s < max_age_s
        was_tried = self._tried_s is not None and now_s - self._tried_s < _REFETCH_S
        if is_young:
            return
        if was_tried:
            if self._keys:
                return
            raise StorageError(
                "the keys of the issuer could not be fetched", cure="try again in a while"
            )
        self._tried_s = now_s
        try:
            data = fetch(url, timeout_s=self._config.timeout_s, max_bytes=_KEYS_BYTES_MAX)
            self._keys, self._fetched_s = read_keys(data), now_s
        except StorageError as error:
            log_event("issuer-keys-unread", cause=error.message)
            age_s = None if self._fetched_s is None else now_s - self._fetched_s
            # Keys that are in their time serve on; those behind it may have been withdrawn.
            if age_s is None or age_s >= self._config.cache_s:
                self._keys, self._fetched_s = (), None
                raise StorageError(
                    "the keys of the issuer cannot be fetched",
                    cure="try again; this server's operator finds why in its log",
                ) from None


def read_keys(data: bytes) -> tuple[tuple[Mapping[str, Any], _Key], ...]:
    """Read a JWKS: the keys in it that can prove tokens, each with its entry.

    Args:
        data: the file; untrusted.

    Raises:
        StorageError: it is none, or no key in it can be used.
    """
    cure = "name the JWKS that the issuer publishes"
    try:
        entries = json.loads(data)["keys"]
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
            raise TypeError("no array of objects")
    except _BROKEN:
        raise StorageError("this is no JWKS", cure=cure) from None
    if len(entries) > _KEYS_MAX:
        raise StorageError(f"a JWKS of {len(entries)} keys (at most {_KEYS_MAX})", cure=cure)
    keys = tuple((entry, key) for entry in entries if (key := _key_of(entry)) is not None)
    if not keys:
        raise StorageError(
            f"no key of {len(entries)} in the JWKS is a public one for {', '.join(ALGORITHMS)}",
            cure=cure,
        )
    return keys


def _key_of(entry: dict[str, Any]) -> _Key | None:
    """Return the key of an entry, None if it is for something else."""
    kind = (entry.get("kty"), "" if entry.get("kty") == "RSA" else entry.get("crv"))
    is_public = "d" not in entry and "k" not in entry
    is_for_signing = entry.get("use", "sig") == "sig" and isinstance(entry.get("kid", ""), str)
    algorithms = [name for name, kind_of in ALGORITHMS.items() if kind_of == kind]
    if not (is_public and is_for_signing) or entry.get("alg", *algorithms[:1]) not in algorithms:
        return None
    try:
        if kind[0] == "RSA":
            return RSAKey.import_key(entry) if _bits(entry["n"]) >= _RSA_BITS_MIN else None
        return (ECKey if kind[0] == "EC" else OKPKey).import_key(entry)
    except _BROKEN:
        return None


def _bits(text: str) -> int:
    """Return how many bits a number in base64url has, without leading zeros."""
    padded = text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4)
    return int.from_bytes(base64.urlsafe_b64decode(padded), "big").bit_length()


class TokenReader:
    """Proves ID tokens and reads attributes off them."""

    def __init__(
        self,
        config: OidcConfig,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to read.

        Args:
            config: whose tokens count.
            clock: Unix seconds.
            monotonic: seconds, for the age of keys.

        Raises:
            ParameterError: a pinned file of keys cannot be used.
        """
        self._config = config
        self._clock = clock
        self._keys = IssuerKeys(config, monotonic)
        self._registry = _Registry()
        self._lock = threading.Lock()

    def attributes(self, token: str, user: bytes) -> tuple[Attribute, ...]:
        """Return what a token says of a user, after all refusals of 13.7.1 to 13.7.7.

        Args:
            token: untrusted.
            user: user id, 32 bytes, whose nonce it must have.

        Raises:
            CredentialRefused: it is not right, or not this user's.
            StorageError: the keys of the issuer cannot be fetched.
        """
        if len(token) > TOKEN_BYTES_MAX:
            raise CredentialRefused(
                f"the ID token has {len(token)} bytes (at most {TOKEN_BYTES_MAX})",
                cure="have the issuer put less into it",
            )
        claims = self._claims(token)
        self._require_from_issuer(claims)
        self._require_current(claims)
        if claims.get("nonce") != user.hex():
            raise CredentialRefused(
                "the nonce of the ID token is not the user id of this user",
                cure=f"begin the login with the nonce {user.hex()}",
            )
        return tuple(self._attributes(claims))

    def _claims(self, token: str) -> Mapping[str, Any]:
        """Return the claims, the signature over them proved."""
        try:
            header = jws.extract_compact(token.encode()).protected
            algorithm, kid, kind = header["alg"], header.get("kid"), header.get("typ", "JWT")
        except _BROKEN:
            raise CredentialRefused(
                "this is no ID token: no JWS in compact form",
                cure="send what the issuer answered as id_token, unchanged",
            ) from None
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            shown = algorithm[:16] if isinstance(algorithm, str) else "?"
            raise CredentialRefused(
                f"an ID token signed with {shown!a} does not count",
                cure=f"have the issuer sign with one of {', '.join(ALGORITHMS)}",
            )
        if not isinstance(kind, str) or kind.upper() != "JWT" or "crit" in header:
            raise CredentialRefused(
                "this is a token of another kind than an ID token",
                cure="send what the issuer answered as id_token",
            )
        if kid is not None and not isinstance(kid, str):
            raise CredentialRefused("the ID token names no key", cure=_NEW_LOGIN)
        with self._lock:
            key = self._keys.find(kid, algorithm)
        try:
            payload = jws.deserialize_compact(token, key, registry=self._registry).payload
        except _BROKEN:
            raise CredentialRefused(
                "the signature of the ID token is not the issuer's",
                cure=f"get a token of {self._config.issuer}",
            ) from None
        try:
            claims = json.loads(payload)
        except _BROKEN:
            claims = None
        if not isinstance(claims, dict):
            raise CredentialRefused("the ID token holds no claims", cure=_NEW_LOGIN)
        return claims

    def _require_from_issuer(self, claims: Mapping[str, Any]) -> None:
        config = self._config
        if claims.get("iss") != config.issuer:
            raise CredentialRefused(
                "the ID token is of another issuer", cure=f"get one of {config.issuer}"
            )
        audience, party = claims.get("aud"), claims.get("azp")
        several = audience if isinstance(audience, list) else [audience]
        needs_party = len(several) > 1 or party is not None
        if config.audience not in several or (needs_party and party != config.audience):
            raise CredentialRefused(
                "the ID token is for another audience",
                cure=f"log in to the client {config.audience}",
            )

    def _require_current(self, claims: Mapping[str, Any]) -> None:
        times: dict[str, float] = {}
        for name in ("exp", "iat", "nbf"):
            value = claims.get(name, 0 if name == "nbf" else None)
            # Booleans are numbers to Python, and not a number is below none.
            if type(value) not in (int, float) or not abs(value) < 1 << 53:
                raise CredentialRefused(f"the ID token has no {name} that is a time")
            times[name] = value
        now_s, leeway_s = self._clock(), self._config.leeway_s
        if times["exp"] <= now_s - leeway_s:
            raise CredentialRefused(
                f"the ID token expired {now_s - times['exp']:.0f} s ago", cure=_NEW_LOGIN
            )
        ahead_s = max(times["iat"], times["nbf"]) - now_s
        if ahead_s > leeway_s:
            raise CredentialRefused(
                f"the ID token is good in {ahead_s:.0f} s only",
                cure="wait, or have the clocks of issuer and server set",
            )

    def _attributes(self, claims: Mapping[str, Any]) -> Iterator[Attribute]:
        for claim, name in self._config.attributes.items():
            if claim not in claims:
                continue
            values = claims[claim] if isinstance(claims[claim], list) else [claims[claim]]
            if len(values) > _VALUES_MAX:
                raise CredentialRefused(
                    f"the claim {claim} has {len(values)} values (at most {_VALUES_MAX})",
                    cure="have the issuer name fewer",
                )
            for value in values:
                yield _attribute(claim, name, value)


def _attribute(claim: str, name: str, value: object) -> Attribute:
    """Return the attribute that a value of a claim is."""
    try:
        if type(value) is int:
            attribute = parse_attribute(f"{quote(name)}:{value}")
            if not attribute.is_number:
                raise PolicyError("the number is not in 0..4294967295")
            return attribute
        if not isinstance(value, str):
            raise PolicyError("it is neither a text nor a whole number")
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return parse_attribute(f'{quote(name)}:"{escaped}"')
    except PolicyError as error:
        raise CredentialRefused(
            f"a value of the claim {claim} cannot be an attribute: {error.message}",
            cure="have the issuer name something else, or the operators leave the claim out",
        ) from None
