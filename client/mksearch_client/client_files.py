"""Files for TLS that an owner or a user brings: authorities, a client certificate and its key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mksearch.errors import FormatError, InputError, ParameterError
from mksearch_client.profile_folder import not_writable, write_file
from mksearch_client.trust import AUTHORITIES_NAME, CERTIFICATE_NAME, KEY_NAME

if TYPE_CHECKING:
    from mksearch.crypto.certificate import Certificate

__all__ = ["GivenFiles"]


@dataclass(frozen=True, slots=True)
class GivenFiles:
    """Files as they were named, to be copied into a profile.

    Attributes:
        authorities: PEM certificates, None for none.
        certificate: PEM certificate of this client and those of authorities, None for none.
        key: PEM, without a passphrase; with ``certificate`` only.
    """

    authorities: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def read(self) -> dict[str, bytes]:
        """Return what they hold, secret, by its name in a profile.

        Raises:
            ParameterError: one of certificate and key without the other.
            InputError: a file cannot be read, or is not what it should be.
        """
        from mksearch.crypto.certificate import key_fingerprint

        contents = {}
        if self.authorities is not None:
            contents[AUTHORITIES_NAME] = _pem_of(self.authorities)
            _certificate_in(self.authorities, contents[AUTHORITIES_NAME])
        if (self.certificate is None) != (self.key is None):
            raise ParameterError(
                "a client certificate and its key go together",
                cure="name both, --client-certificate FILE and --client-key FILE",
            )
        if self.certificate is not None and self.key is not None:
            contents |= {CERTIFICATE_NAME: _pem_of(self.certificate), KEY_NAME: _pem_of(self.key)}
            found = _certificate_in(self.certificate, contents[CERTIFICATE_NAME])
            try:
                fingerprint = key_fingerprint(contents[KEY_NAME])
            except FormatError as error:
                raise InputError(
                    f"{self.key} is no key: {error.message}", cure="check --client-key"
                ) from None
            if found.fingerprint != fingerprint:
                raise InputError(
                    f"the certificate {self.certificate} is not for the key {self.key}",
                    cure="name the key with which the certificate was asked for",
                )
        return contents

    def keep(self, folder: Path) -> None:
        """Copy them into a profile's folder, which exists.

        Raises:
            ParameterError, InputError: see `read`.
            ProfileError: the folder cannot be written.
        """
        contents = self.read()
        try:
            for name, data in contents.items():
                write_file(folder / name, data)
        except OSError as error:
            raise not_writable(folder, error) from None


def _pem_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror})", cure="check the path"
        ) from None


def _certificate_in(path: Path, data: bytes) -> Certificate:
    # Imported here, as it takes long, and most profiles have no such files.
    from mksearch.crypto.certificate import Certificate

    try:
        return Certificate.of_pem(data)
    except FormatError as error:
        raise InputError(
            f"{path} holds no certificate: {error.message}", cure="name a PEM file"
        ) from None
