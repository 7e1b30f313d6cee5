"""The table ``[oidc]`` of ``server.toml``: whose ID tokens count, for which attributes (13.7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mksearch.access.attributes import parse_attribute
from mksearch.access.tokens import quote
from mksearch.errors import ParameterError, PolicyError

__all__ = ["OIDC_TEMPLATE", "OidcConfig", "read_oidc"]

#: Hosts that keys may be fetched from without TLS.
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

OIDC_TEMPLATE = """\

# Attributes of people from an OpenID Connect issuer, besides those of credentials.  All servers of
# a collection say the same here.  The login of a user has their user id as its nonce.
# [oidc]
# issuer = "https://login.example.org"
# audience = "mksearch"

# Keys of the issuer: a JWKS fetched from this URL (https, or http on a loopback host), or a file.
# keys_url = "https://login.example.org/keys"
# keys_file = "issuer-keys.json"

# Seconds that fetching the keys may take, and that fetched keys are used.
# timeout_s = 5
# cache_s = 3600

# Seconds by which the clocks of issuer and server may differ.
# leeway_s = 60

# Claim = name of the attribute.  Lists give several, and only JSON numbers can be compared.
# [oidc.attributes]
# groups = "group"
# clearance = "clearance"
"""


@dataclass(frozen=True, slots=True)
class OidcConfig:
    """Whose ID tokens count.

    Attributes:
        issuer: ``iss`` of the tokens.
        audience: ``aud`` of the tokens.
        attributes: name of the attribute by claim; not empty.
        keys_url: where the issuer's keys are, "" with a file.
        keys_file: JWKS of the issuer, None with a URL.
        timeout_s: seconds that fetching keys may take, 1..60.
        cache_s: seconds that fetched keys are used, 10..86400.
        leeway_s: seconds by which clocks may differ, 0..600.
    """

    issuer: str
    audience: str
    attributes: Mapping[str, str]
    keys_url: str = ""
    keys_file: Path | None = None
    timeout_s: int = 5
    cache_s: int = 3600
    leeway_s: int = 60

    def __post_init__(self) -> None:
        for name in ("issuer", "audience"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ParameterError(
                    f"oidc.{name} = {value!r} is not a text", cure="write it in quotation marks"
                )
        ranges = (("timeout_s", 1, 60), ("cache_s", 10, 86_400), ("leeway_s", 0, 600))
        for name, low, high in ranges:
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise ParameterError(
                    f"oidc.{name} = {value!r} is not a number in {low}..{high}",
                    cure="use a whole number in this range",
                )
        if bool(self.keys_url) == (self.keys_file is not None):
            raise ParameterError(
                "[oidc] names no keys_url and no keys_file, or both", cure="name one of them"
            )
        if self.keys_url:
            _require_url(self.keys_url)
        _require_attributes(self.attributes)


def _require_url(url: object) -> None:
    cure = "use https://HOST/PATH, or http:// on a loopback host"
    try:
        parts = urlsplit(str(url))
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ParameterError(f"oidc.keys_url = {url!r} is no URL", cure=cure) from None
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)
    is_plain = parts.username is None and parts.password is None and not parts.fragment
    if not isinstance(url, str) or not is_safe or not is_plain or not host or port == 0:
        raise ParameterError(f"oidc.keys_url = {url!r} is not a safe address", cure=cure)
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ParameterError(f"oidc.keys_url = {url!r} has characters that no URL has", cure=cure)


def _require_attributes(attributes: object) -> None:
    if not isinstance(attributes, Mapping) or not attributes:
        raise ParameterError(
            "[oidc.attributes] names no claim",
            cure='write which claim gives which attribute: groups = "group"',
        )
    for claim, name in attributes.items():
        try:
            if not isinstance(name, str):
                raise PolicyError("it is not a text")
            parse_attribute(f"{quote(name)}:x")
        except PolicyError as error:
            raise ParameterError(
                f"oidc.attributes.{claim} = {name!r} is no name of an attribute: {error.message}",
                cure="use a name as in policies, such as group",
            ) from None


def read_oidc(values: object, folder: Path) -> OidcConfig:
    """Read the table ``[oidc]``; a pinned file of keys is proved to be one.

    Args:
        values: the table.
        folder: that ``keys_file`` is relative to.

    Raises:
        ParameterError: an unknown or missing key, a value out of range, or a file that is none.
    """
    known = [field.name for field in fields(OidcConfig)]
    if not isinstance(values, Mapping):
        raise ParameterError("oidc is not a table", cure="begin it with [oidc]")
    unknown = sorted(set(values) - set(known))
    missing = sorted({"issuer", "audience", "attributes"} - set(values))
    if unknown or missing:
        what = f"unknown keys: {', '.join(unknown)}" if unknown else f"no {', '.join(missing)}"
        raise ParameterError(f"[oidc] has {what}", cure=f"known keys are {', '.join(known)}")
    settings: dict[str, Any] = dict(values)
    if "keys_file" in settings:
        if not isinstance(settings["keys_file"], str):
            raise ParameterError("oidc.keys_file is not a text", cure="write it in quotation marks")
        settings["keys_file"] = folder / settings["keys_file"]
    config = OidcConfig(**settings)
    if config.keys_file is not None:
        from mksearch_server.oidc import IssuerKeys

        IssuerKeys(config)
    return config
