"""Certificates as others make them: of an authority, of clients, with any dates."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Authority", "new_key"]


def new_key() -> bytes:
    """Return a new P-256 key as PEM."""
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _load(key: bytes) -> ec.EllipticCurvePrivateKey:
    loaded = serialization.load_pem_private_key(key, None)
    assert isinstance(loaded, ec.EllipticCurvePrivateKey)
    return loaded


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


@dataclass
class Authority:
    """A private certificate authority.

    Attributes:
        name: common name.
        key: PEM.
        days: for which its certificates are good; negative ones expired.
    """

    name: str
    key: bytes
    days: int = 30

    @classmethod
    def new(cls, name: str = "authority") -> Authority:
        return cls(name, new_key())

    @property
    def certificate(self) -> bytes:
        """Its own certificate, PEM."""
        return self._sign(self.name, self.key, (), is_authority=True)

    def sign(self, key: bytes, hosts: Sequence[str] = (), name: str = "leaf") -> bytes:
        """Return a certificate for a key (PEM), PEM, followed by the authority's own."""
        return self._sign(name, key, hosts, is_authority=False) + self.certificate

    def answer(self, request: bytes) -> bytes:
        """Return the certificate that a signing request (PEM) asks for."""
        asked = x509.load_pem_x509_csr(request)
        assert asked.is_signature_valid
        names = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        builder = self._builder(asked.subject, is_authority=False)
        made = (
            builder.public_key(asked.public_key())
            .add_extension(names.value, critical=False)
            .sign(_load(self.key), hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM) + self.certificate

    def _builder(self, subject: x509.Name, *, is_authority: bool) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(_name(self.name))
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=min(self.days, 0) - 1))
            .not_valid_after(now + timedelta(days=self.days))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        )

    def _sign(self, name: str, key: bytes, hosts: Sequence[str], *, is_authority: bool) -> bytes:
        builder = self._builder(_name(name), is_authority=is_authority)
        if hosts:
            names = [x509.IPAddress(ipaddress.ip_address(host)) for host in hosts]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        made = builder.public_key(_load(key).public_key()).sign(_load(self.key), hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM)
