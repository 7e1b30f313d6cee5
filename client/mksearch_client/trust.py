"""What a profile knows of the way to its servers: addresses, pinned TLS keys, files for TLS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mksearch.errors import ParameterError, ProfileError
from mksearch.params import KEY_BYTES

__all__ = [
    "AUTHORITIES_NAME",
    "CERTIFICATE_NAME",
    "KEY_NAME",
    "ClientFiles",
    "TlsTrust",
    "host_and_port",
    "parse_claim_token",
    "reading",
    "require_address",
]

#: Hosts that may be dialled without TLS.
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
AUTHORITIES_NAME, CERTIFICATE_NAME, KEY_NAME = "authorities.crt", "client.crt", "client.key"


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """What a profile has for all of its servers besides the pinned keys.

    Attributes:
        folder: of the profile.  ``authorities.crt``: certificates of authorities of which one must
            have signed every server's; ``client.crt`` and ``client.key``: for servers that demand a
            client certificate.  None of them need be there.
    """

    folder: Path

    @property
    def authorities(self) -> Path | None:
        """The file of authorities, None without."""
        return self._existing(AUTHORITIES_NAME)

    @property
    def client(self) -> tuple[Path, Path] | None:
        """The files of certificate and key, None without."""
        certificate, key = self._existing(CERTIFICATE_NAME), self._existing(KEY_NAME)
        return None if certificate is None or key is None else (certificate, key)

    def client_pem(self) -> tuple[bytes | None, bytes | None]:
        """Return key, which is secret, and certificates; twice None without.

        Raises:
            ProfileError: they cannot be read.
        """
        if self.client is None:
            return None, None
        certificate, key = self.client
        with reading(self.folder):
            return key.read_bytes(), certificate.read_bytes()

    def _existing(self, name: str) -> Path | None:
        path = self.folder / name
        return path if path.exists() else None


@dataclass(frozen=True, slots=True)
class TlsTrust:
    """What proves a server's end of a connection.

    Attributes:
        key: fingerprint of its TLS key, 32 bytes.
        files: of the profile; None for a server of no profile yet.
    """

    key: bytes
    files: ClientFiles | None = None

    @classmethod
    def parse(cls, printed: str) -> TlsTrust:
        """Read a fingerprint in hexadecimal; raise ValueError or TypeError."""
        key = bytes.fromhex(printed)
        if len(key) != KEY_BYTES:
            raise ValueError("a TLS key of another length")
        return cls(key)


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn an OSError, which those of TLS are, into one that names the profile's files."""
    try:
        yield
    except OSError as error:
        raise ProfileError(
            f"{AUTHORITIES_NAME}, {CERTIFICATE_NAME} or {KEY_NAME} in {folder} cannot be used "
            f"({error.strerror or type(error).__name__})",
            cure="put the right PEM files there, or remove them",
        ) from None


def host_and_port(address: str) -> tuple[str, int]:
    """Return host, without brackets, and port of HOST:PORT.

    Raises:
        ParameterError: it is not HOST:PORT.
    """
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    is_host = host and address.isascii() and host.isprintable() and not set(host) & set(' /@"\\')
    if not is_host or (":" in host and not bracketed) or not port.isdecimal():
        raise ParameterError(
            f"{address!r} is not HOST:PORT",
            cure="write a name or address and a port, such as search.example.org:7101",
        )
    if not 0 < int(port) < 65536:
        raise ParameterError(f"{address!r} has no port in 1..65535", cure="check the port")
    return host.strip("[]"), int(port)


def require_address(address: str, trust: TlsTrust | None) -> str:
    """Return ``address`` (HOST:PORT) if it may be dialled.

    Raises:
        ParameterError: it is no address; or it is on another machine and no TLS key is pinned.
    """
    host_and_port(address)
    if trust is None and address.rpartition(":")[0] not in _LOOPBACK:
        raise ParameterError(
            f"{address!r} is not a loopback host and port, and no TLS key is pinned for it",
            cure="use the whole claim token, or the card, of a server that init made with TLS",
        )
    return address


def parse_claim_token(text: str) -> tuple[str, bytes]:
    """Return what the server wants to see of a claim token, and the TLS key to be pinned.

    Args:
        text: as ``mksearch-server init`` printed it: a secret, and after a dot the fingerprint of
            the TLS key, where there is TLS.

    Raises:
        ParameterError: what follows the dot is no fingerprint.
    """
    secret, dot, printed = text.partition(".")
    try:
        key = bytes.fromhex(printed)
    except ValueError:
        key = b"?"
    if dot and len(key) != KEY_BYTES:
        raise ParameterError(
            "a claim token is damaged: its second part is no fingerprint of a TLS key",
            cure="copy all that mksearch-server init printed (file claim-token)",
        )
    return secret, key
