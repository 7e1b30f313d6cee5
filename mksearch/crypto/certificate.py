"""TLS keys and certificates of servers (docs/protocol.md, 10.1): made, read, and told apart.

A server is known by its TLS key: the fingerprint of a key stays the same in every certificate for
it.  Times are Unix seconds and come from the caller.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mksearch.crypto.kdf import sha256
from mksearch.crypto.randomness import RandomSource
from mksearch.errors import FormatError, OtherTlsKey, ParameterError, TlsRefused

__all__ = [
    "CERTIFICATE_LIFE_S",
    "FINGERPRINT_BYTES",
    "Certificate",
    "key_fingerprint",
    "make_tls_key",
    "require_hosts",
    "self_signed_certificate",
    "signing_request",
]

#: SHA-256 of the DER encoding of a SubjectPublicKeyInfo.
FINGERPRINT_BYTES = 32
#: 397 days: the longest that certificates of the web may have, too.
CERTIFICATE_LIFE_S = 397 * 86_400
#: A certificate begins this long before it is made, for clocks that are behind.
_EARLY_S = 3600
_SERIAL_BYTES = 16
#: Longest common name of X.509.
_NAME_CHARS = 64
#: Order of P-256.
_ORDER = 0xFFFFFFFF_00000000_FFFFFFFF_FFFFFFFF_BCE6FAAD_A7179E84_F3B9CAC2_FC632551


def make_tls_key(random: RandomSource) -> bytes:
    """Make a P-256 key; return it as PEM (PKCS #8), secret."""
    # 128 bits more than the order has: no scalar is noticeably likelier than another.
    scalar = 1 + int.from_bytes(random.bytes(48)) % (_ORDER - 1)
    return ec.derive_private_key(scalar, ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def key_fingerprint(key: bytes) -> bytes:
    """Return the fingerprint of a private key (PEM): 32 bytes.

    Raises:
        FormatError: it is none, or needs a passphrase.
    """
    return _fingerprint(_load_key(key).public_key())


def self_signed_certificate(
    key: bytes, hosts: Sequence[str], random: RandomSource, now_s: int
) -> bytes:
    """Make a certificate of a server for its own key; return it as PEM.

    Args:
        key: private key, PEM; secret.
        hosts: names and addresses that clients dial, at least one.
        random: source of the serial number.
        now_s: Unix seconds; the certificate is valid from an hour before, for 397 days.

    Raises:
        FormatError: the key is none.
        ParameterError: no host, or one that no certificate can have.
    """
    private = _load_key(key)
    names = _general_names(hosts)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:_NAME_CHARS])])
    begin_s = now_s - _EARLY_S
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    public = private.public_key()
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)  # type: ignore[arg-type]
        .serial_number(1 + int.from_bytes(random.bytes(_SERIAL_BYTES)))
        .not_valid_before(datetime.fromtimestamp(begin_s, UTC))
        .not_valid_after(datetime.fromtimestamp(begin_s + CERTIFICATE_LIFE_S, UTC))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(private, _hash_for(private))  # type: ignore[arg-type]
    )
    return made.public_bytes(serialization.Encoding.PEM)


def signing_request(key: bytes, hosts: Sequence[str]) -> bytes:
    """Make a request (PKCS #10, PEM) that a certificate authority signs.

    Raises:
        FormatError: the key is none.
        ParameterError: no host, or one that no certificate can have.
    """
    private = _load_key(key)
    names = _general_names(hosts)
    made = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:_NAME_CHARS])]))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(private, _hash_for(private))  # type: ignore[arg-type]
    )
    return made.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a certificate says.

    Attributes:
        fingerprint: of its key, 32 bytes.
        begins_s: first Unix second at which it is valid.
        ends_s: last one.
        hosts: DNS names in lower case and IP addresses that it is for.
        is_self_signed: whether its own key signed it.
        pem: the certificate alone, without those of authorities.
    """

    fingerprint: bytes
    begins_s: int
    ends_s: int
    hosts: tuple[str, ...]
    is_self_signed: bool
    pem: bytes

    @classmethod
    def of_der(cls, data: bytes) -> Certificate:
        """Read a certificate as TLS carries it; untrusted.

        Raises:
            FormatError: it is none.
        """
        try:
            return cls._of(x509.load_der_x509_certificate(data))
        except _MALFORMED as error:
            raise _no_certificate(error) from None

    @classmethod
    def of_pem(cls, data: bytes) -> Certificate:
        """Read the first certificate of a file, the server's own.

        Raises:
            FormatError: there is none.
        """
        try:
            return cls._of(x509.load_pem_x509_certificates(data)[0])
        except _MALFORMED as error:
            raise _no_certificate(error) from None

    @classmethod
    def _of(cls, found: x509.Certificate) -> Certificate:
        try:
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            names = x509.SubjectAlternativeName([])
        dns = [name.lower() for name in names.get_values_for_type(x509.DNSName)]
        addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
        return cls(
            _fingerprint(found.public_key()),
            int(found.not_valid_before_utc.timestamp()),
            int(found.not_valid_after_utc.timestamp()),
            (*dns, *addresses),
            _is_self_signed(found),
            found.public_bytes(serialization.Encoding.PEM),
        )

    def is_for(self, host: str) -> bool:
        """Tell whether ``host`` (a name, or an address without brackets) is among its hosts."""
        wanted = _canonical(host)
        _, dot, parent = wanted.partition(".")
        # A star stands for one label of a name, never for a part of an address.
        is_name = _address(wanted) is None
        return wanted in self.hosts or bool(is_name and dot and f"*.{parent}" in self.hosts)

    def require_good(self, address: str, host: str, fingerprint: bytes, now_s: float) -> None:
        """Prove that a server that presents this is the pinned one (10.1.4).

        Args:
            address: HOST:PORT that was dialled, for the message.
            host: of it, without brackets.
            fingerprint: of the pinned TLS key, 32 bytes.
            now_s: Unix seconds.

        Raises:
            TlsRefused: another key, past its dates, or not for the host.
        """
        if self.fingerprint != fingerprint:
            raise OtherTlsKey(
                f"{address}: another server's certificate: its TLS key "
                f"{self.fingerprint.hex()[:16]} is not the pinned {fingerprint.hex()[:16]}",
                cure="nothing was sent; check the address, and ask the operator on another way "
                "whether the key is new or somebody is in between",
            )
        now = f"it is {_utc(now_s)} here"
        if now_s < self.begins_s:
            raise TlsRefused(
                f"{address}: its certificate is valid from {_utc(self.begins_s)}, and {now}",
                cure="set the clock of this machine, or of the server before it makes a "
                "certificate",
            )
        if now_s > self.ends_s:
            raise TlsRefused(
                f"{address}: its certificate expired at {_utc(self.ends_s)}, and {now}",
                cure="the operator runs mksearch-server renew-certificate; or set the clock here",
            )
        if not self.is_for(host):
            raise TlsRefused(
                f"{address}: its certificate is for {', '.join(self.hosts) or 'no host'}, not "
                f"for {host}",
                cure="dial one of those names, or the operator renews it with --host",
            )


def _utc(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


_MALFORMED = (ValueError, TypeError, IndexError, x509.DuplicateExtension, UnsupportedAlgorithm)


def _no_certificate(error: Exception) -> FormatError:
    return FormatError(f"it is no X.509 certificate ({type(error).__name__})")


def _is_self_signed(found: x509.Certificate) -> bool:
    try:
        found.verify_directly_issued_by(found)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _fingerprint(public: PublicKeyTypes) -> bytes:
    return sha256(
        public.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )


def _load_key(key: bytes) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # Without what the library says, which may hold a part of the key.
        raise FormatError("it is no private key in PEM, or sealed with a passphrase") from None


def _hash_for(private: PrivateKeyTypes) -> hashes.SHA256 | None:
    """Return what a key signs with: Ed25519 has a hash of its own."""
    return None if isinstance(private, ed25519.Ed25519PrivateKey) else hashes.SHA256()


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _canonical(host: str) -> str:
    address = _address(host)
    return host.lower().removesuffix(".") if address is None else str(address)


def require_hosts(hosts: Sequence[str]) -> None:
    """Raise ParameterError unless a certificate can be for ``hosts``."""
    _general_names(hosts)


def _general_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    if not hosts:
        raise ParameterError(
            "a certificate needs a host", cure="name what clients dial with --host"
        )
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(map(_canonical, hosts)):
        address = _address(host)
        labels = host.split(".")
        if address is None and not all(
            label and len(label) < 64 and label.isascii() and label.replace("-", "").isalnum()
            for label in labels
        ):
            raise ParameterError(
                f"{host!r} is no host name or address",
                cure="use a name such as search.example.org, or an IP address",
            )
        names.append(x509.DNSName(host) if address is None else x509.IPAddress(address))
    return names
