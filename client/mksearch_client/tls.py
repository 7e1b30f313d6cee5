"""Who answers at an address is the pinned server, before anything is sent to it.

A profile pins each server's TLS key, so certificates may be renewed.  gRPC trusts certificates,
not keys: the one that the server presents is fetched here, proved to be for the pinned key, within
its dates and for the host, and then it is the only one that the connection accepts.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable

from mksearch.crypto.certificate import Certificate
from mksearch.errors import FormatError, ServerUnreachable, TlsRefused
from mksearch_client.trust import TlsTrust, host_and_port, reading

__all__ = ["check_server"]

#: How OpenSSL names a peer that answers something else than TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
#: The same for one without TLS 1.3.
_OLD_TLS = ("TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "WRONG_SSL_VERSION")
#: The same for one that wants another client certificate, or any.
_NO_CLIENT = (
    "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    "TLSV1_ALERT_UNKNOWN_CA",
    "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED",
    "SSLV3_ALERT_HANDSHAKE_FAILURE",
    "TLSV1_ALERT_ACCESS_DENIED",
)


def check_server(
    address: str, trust: TlsTrust, timeout_s: float, *, until_served: bool = False
) -> bytes:
    """Connect, prove that the pinned server answers, and return its certificate as PEM.

    Nothing is sent but the handshake.

    Args:
        address: HOST:PORT.
        trust: what proves the server.
        timeout_s: seconds that connecting, and each further step, may take.
        until_served: also wait until the server lets this client in: it refuses client
            certificates only after the handshake.

    Raises:
        ServerUnreachable: nobody answers.
        TlsRefused: another one answers, or no TLS 1.3; or the certificate is not to be used.
        ProfileError: files of the profile cannot be used.
    """
    host, _ = host_and_port(address)
    found: list[Certificate] = []

    def look(data: bytes) -> None:
        try:
            certificate = Certificate.of_der(data)
        except FormatError:
            raise TlsRefused(
                f"{address}: its certificate cannot be read", cure="tell the operator"
            ) from None
        certificate.require_good(address, host, trust.key, time.time())
        found.append(certificate)

    _handshake(address, trust, _context(trust), timeout_s, look, until_served=until_served)
    authorities = None if trust.files is None else trust.files.authorities
    if authorities is not None and trust.files is not None:
        signed = _context(trust)
        signed.verify_mode = ssl.CERT_REQUIRED
        with reading(trust.files.folder):
            signed.load_verify_locations(authorities)
        _handshake(address, trust, signed, timeout_s, look)
    # The last: with authorities the one that they were found to have signed.
    return found[-1].pem


def _context(trust: TlsTrust) -> ssl.SSLContext:
    """Return a context that checks no certificate: what counts is the pinned key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    if trust.files is not None and trust.files.client is not None:
        with reading(trust.files.folder):
            # No passphrase: a sealed key would have OpenSSL ask for it on the terminal.
            context.load_cert_chain(*trust.files.client, password=lambda: "")
    return context


def _handshake(
    address: str,
    trust: TlsTrust,
    context: ssl.SSLContext,
    timeout_s: float,
    look: Callable[[bytes], None],
    *,
    until_served: bool = False,
) -> None:
    """Connect, and have ``look`` judge the certificate (DER) that the server presents.

    Raises:
        ServerUnreachable, TlsRefused: see `check_server`; what ``look`` raises.
    """
    host, port = host_and_port(address)
    is_done = False
    try:
        with (
            socket.create_connection((host, port), timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=host) as connection,
        ):
            look(connection.getpeercert(binary_form=True) or b"")
            is_done = True
            # The server begins with its settings, or ends what it does not want.
            if until_served and not connection.recv(1):
                raise _client_refused(address, trust)
    except ssl.SSLCertVerificationError as error:
        raise TlsRefused(
            f"{address}: its certificate is not signed by the authorities of this profile "
            f"({error.verify_message})",
            cure="the operator has it signed by one of them, or authorities.crt names another",
        ) from None
    except ssl.SSLError as error:
        raise _named(address, error, trust, is_done=is_done) from None
    except TimeoutError:
        raise ServerUnreachable(
            f"{address}: no answer within {timeout_s:g} s",
            cure="check that the server runs and that the address is right",
        ) from None
    except OSError as error:
        if is_done:
            raise _client_refused(address, trust) from None
        raise ServerUnreachable(
            f"{address}: no connection ({_reason(error)})",
            cure="check that the server runs and that the address is right",
        ) from None


def _reason(error: OSError) -> str:
    """Return in words why there is no connection."""
    if isinstance(error, socket.gaierror):
        return "the name is not known"
    return os.strerror(error.errno) if error.errno else type(error).__name__


def _named(address: str, error: ssl.SSLError, trust: TlsTrust, *, is_done: bool) -> TlsRefused:
    """Return the error of a handshake that failed, or of what came after it."""
    reason = error.reason or ""
    if reason in _NO_TLS:
        return TlsRefused(
            f"{address}: it answers without TLS, and a TLS key is pinned for it",
            cure="nothing was sent; the operator serves with [tls], or check the address",
        )
    if reason in _OLD_TLS:
        return TlsRefused(
            f"{address}: it does not speak TLS 1.3",
            cure="nothing was sent; the operator removes what stands before the server",
        )
    if is_done or reason in _NO_CLIENT:
        return _client_refused(address, trust)
    return TlsRefused(
        f"{address}: the TLS handshake failed ({reason.lower().replace('_', ' ') or 'no reason'})",
        cure="check the address, and what stands between here and the server",
    )


def _client_refused(address: str, trust: TlsTrust) -> TlsRefused:
    if trust.files is None or trust.files.client is None:
        return TlsRefused(
            f"{address}: it lets in clients with a certificate only, and this profile has none",
            cure="ask the operator for one; name it with --client-certificate and --client-key, "
            "or put it into the profile as client.crt and client.key",
        )
    return TlsRefused(
        f"{address}: it refuses the client certificate of this profile",
        cure="ask the operator for one that is signed by its client authorities and not expired",
    )
