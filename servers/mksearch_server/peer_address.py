"""Where another server of the collection is, as its operator wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mksearch.crypto.certificate import FINGERPRINT_BYTES
from mksearch.errors import ParameterError

__all__ = ["LOOPBACK", "PeerAddress"]

#: Hosts of this machine alone, where servers may go without TLS.
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where another server is, and the TLS key that it is known by.

    Attributes:
        address: HOST:PORT.
        fingerprint: of its TLS key, 32 bytes; None for one on this machine without TLS.
    """

    address: str
    fingerprint: bytes | None = None

    @classmethod
    def parse(cls, text: str, known: Mapping[str, bytes]) -> PeerAddress:
        """Read HOST:PORT or HOST:PORT=FINGERPRINT.

        Args:
            text: as the operator wrote it.
            known: fingerprints of the collection's card by HOST:PORT.

        Raises:
            ParameterError: it is neither, or a host elsewhere without a fingerprint.
        """
        address, sign, printed = text.partition("=")
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ParameterError(
                f"{text!r} is not HOST:PORT or HOST:PORT=FINGERPRINT",
                cure="write for example --from search.example.org:7101=9f86d0..",
            )
        if not sign:
            fingerprint = known.get(address)
            if fingerprint is None and host not in LOOPBACK:
                raise ParameterError(
                    f"no TLS key is pinned for {address}, and it is not on this machine",
                    cure="name the collection's card (--card), or add =FINGERPRINT, which "
                    "mksearch-server status prints there as tls_key",
                )
            return cls(address, fingerprint)
        try:
            fingerprint = bytes.fromhex(printed)
        except ValueError:
            fingerprint = b""
        if len(fingerprint) != FINGERPRINT_BYTES:
            raise ParameterError(
                f"{printed!r} is no fingerprint of a TLS key (64 hexadecimal digits)",
                cure="mksearch-server status prints it there as tls_key",
            )
        return cls(address, fingerprint)
