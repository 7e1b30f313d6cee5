"""The TLS key and certificate of a server: settings, making, renewing, and how long they last."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mksearch.crypto.certificate import (
    Certificate,
    key_fingerprint,
    make_tls_key,
    self_signed_certificate,
    signing_request,
)
from mksearch.crypto.randomness import SystemRandom
from mksearch.errors import FormatError, ParameterError, StorageError
from mksearch_server.files import write_durably

__all__ = [
    "CERTIFICATE_NAME",
    "KEY_NAME",
    "REQUEST_NAME",
    "TLS_TEMPLATE",
    "WARNING_DAYS",
    "TlsConfig",
    "TlsFiles",
    "create_tls",
    "days_left",
    "expiry_warning",
    "read_tls",
    "renew_certificate",
]

KEY_NAME, CERTIFICATE_NAME, REQUEST_NAME = "tls.key", "tls.crt", "tls.csr"
#: From here on a certificate's end is a warning.
WARNING_DAYS = 14
_DAY_S = 86_400

#: Every line begins with ``{mark}``: nothing with TLS, "# " without.
TLS_TEMPLATE = """\

# TLS 1.3.  The key stays the same: the owner and all users have pinned it.  The certificate is
# read again when it changes, and mksearch-server renew-certificate writes a new one.
{mark}[tls]
{mark}certificate = "tls.crt"
{mark}key = "tls.key"

# Certificates of authorities: clients then need a certificate that one of them signed.
# client_authorities = "client-authorities.crt"
"""


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """The table ``[tls]``.

    Attributes:
        certificate: file of the server's certificate and those of authorities after it, PEM.
        key: file of its private key, PEM.
        client_authorities: file of certificates that sign those of clients; None lets in clients
            without one.
    """

    certificate: Path
    key: Path
    client_authorities: Path | None = None


def read_tls(values: object, folder: Path) -> TlsConfig:
    """Read the table ``[tls]``; the files are not looked at.

    Args:
        values: the table.
        folder: that its files are relative to.

    Raises:
        ParameterError: an unknown or missing key, or a value that is no text.
    """
    known = [field.name for field in fields(TlsConfig)]
    if not isinstance(values, Mapping):
        raise ParameterError("tls is not a table", cure="begin it with [tls]")
    unknown = sorted(set(values) - set(known))
    missing = sorted({"certificate", "key"} - set(values))
    if unknown or missing:
        what = f"unknown keys: {', '.join(unknown)}" if unknown else f"no {', '.join(missing)}"
        raise ParameterError(f"[tls] has {what}", cure=f"known keys are {', '.join(known)}")
    paths: dict[str, Any] = {}
    for name, value in values.items():
        if not isinstance(value, str) or not value:
            raise ParameterError(
                f"tls.{name} = {value!r} is not a text", cure="write it in quotation marks"
            )
        paths[name] = folder / value
    return TlsConfig(**paths)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The content of the files, which go together.

    Attributes:
        chain: certificate of the server and those of authorities, PEM.
        key: private key, PEM; secret.
        client_authorities: certificates, PEM; None without.
        certificate: the server's own, read.
    """

    chain: bytes
    key: bytes
    client_authorities: bytes | None
    certificate: Certificate

    @classmethod
    def read(cls, config: TlsConfig) -> TlsFiles:
        """Read the files of ``config``.

        Raises:
            StorageError: one cannot be read or is damaged, or the key is of another certificate.
        """
        chain, key = _read(config.certificate), _read(config.key)
        with _naming(config.certificate):
            certificate = Certificate.of_pem(chain)
        with _naming(config.key):
            fingerprint = key_fingerprint(key)
        if certificate.fingerprint != fingerprint:
            raise StorageError(
                f"{config.certificate} is not for the key in {config.key}",
                cure="restore the key, or run mksearch-server renew-certificate",
            )
        authorities = None
        if config.client_authorities is not None:
            authorities = _read(config.client_authorities)
            with _naming(config.client_authorities):
                Certificate.of_pem(authorities)
        return cls(chain, key, authorities, certificate)

    def __repr__(self) -> str:
        return f"TlsFiles(fingerprint={self.certificate.fingerprint.hex()}, key=<redacted>)"

    def __reduce__(self) -> str:
        raise TypeError("TLS keys are never pickled")


class _naming:  # noqa: N801 - used as a statement
    """Name the file in which something is no certificate or key."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, FormatError):
            raise StorageError(
                f"{self._path} is damaged: {error.message}", cure="restore the file from a backup"
            ) from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read ({error.strerror})",
            cure="restore it, or correct [tls] in server.toml",
        ) from None


def _replace(path: Path, data: bytes) -> None:
    """Replace a public file at once, so that a running server never reads half of it."""
    try:
        write_durably(path, data, mode=0o644)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror})", cure="make room or check permissions"
        ) from None


def create_tls(folder: Path, hosts: Sequence[str], *, request: bool) -> bytes:
    """Make key and self-signed certificate of a new server; return the key's fingerprint.

    Args:
        folder: of the server.
        hosts: that clients dial.
        request: make a signing request as well.

    Raises:
        ParameterError: no host, or one that no certificate can have.
        StorageError: the files are there already or cannot be written.
    """
    from mksearch_server.identity import write_secret

    random = SystemRandom()
    key = make_tls_key(random)
    certificate = self_signed_certificate(key, hosts, random, int(time.time()))
    write_secret(folder / KEY_NAME, key)
    _replace(folder / CERTIFICATE_NAME, certificate)
    if request:
        _replace(folder / REQUEST_NAME, signing_request(key, hosts))
    return key_fingerprint(key)


def renew_certificate(config: TlsConfig, hosts: Sequence[str], *, request: bool) -> Path:
    """Make a new certificate, or a new request, for the same key; return the file.

    A running server presents the certificate to whoever connects from then on.

    Args:
        config: names the files.
        hosts: that clients dial; empty for those of the certificate that there is.
        request: make a request and leave the certificate as it is.

    Raises:
        ParameterError: a host that no certificate can have; or an authority signed the
            certificate, which the server's own would replace.
        StorageError: a file cannot be read or written, or is damaged.
    """
    key = _read(config.key)
    with _naming(config.key):
        key_fingerprint(key)
    if not hosts or not request:
        with _naming(config.certificate):
            old = Certificate.of_pem(_read(config.certificate))
        hosts = hosts or old.hosts
        if not (request or old.is_self_signed):
            raise ParameterError(
                f"an authority signed {config.certificate}, and clients may ask for that",
                cure=f"add --request, and put what the authority answers into {config.certificate}",
            )
    if request:
        path = config.certificate.with_suffix(".csr")
        _replace(path, signing_request(key, hosts))
        return path
    made = self_signed_certificate(key, hosts, SystemRandom(), int(time.time()))
    _replace(config.certificate, made)
    return config.certificate


def days_left(certificate: Certificate, now_s: float) -> int:
    """Return for how many whole days a certificate is still good; negative once it expired."""
    return int((certificate.ends_s - now_s) // _DAY_S)


def expiry_warning(certificate: Certificate, now_s: float) -> str:
    """Return what an operator should know about the dates of a certificate, or ""."""
    left = days_left(certificate, now_s)
    if now_s < certificate.begins_s:
        return "the certificate is not valid yet: check the clock of this machine"
    if now_s > certificate.ends_s:
        return "the certificate has expired, and clients refuse it: renew-certificate makes a new"
    if left < WARNING_DAYS:
        return f"the certificate is good for {left} more days: renew-certificate makes a new one"
    return ""
