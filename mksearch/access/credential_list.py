"""The credentials of all members of an epoch, in one object (docs/protocol.md, 13.5.1)."""

from __future__ import annotations

from collections.abc import Mapping

from mksearch.codec import ENVELOPE_BYTES, decode_cbor, encode_cbor, read_envelope, write_envelope
from mksearch.errors import FormatError
from mksearch.params import KEY_BYTES

__all__ = ["decode_credentials", "encode_credentials"]

_MAGIC, _FORMAT = b"MKCREDLS", 1


def encode_credentials(credentials: Mapping[bytes, bytes]) -> bytes:
    """Return the object: ``credentials`` has the credential file of each user id."""
    return write_envelope(_MAGIC, _FORMAT) + encode_cbor(dict(credentials))


def decode_credentials(data: bytes) -> dict[bytes, bytes]:
    """Read the object; what is in the files is not proved yet.

    Raises:
        FormatError: it is no list of credentials.
        UnsupportedVersion: another format version.
    """
    what = "a list of credentials"
    read_envelope(data, _MAGIC, _FORMAT, what)
    found = decode_cbor(data[ENVELOPE_BYTES:], what)
    if not isinstance(found, dict):
        raise FormatError(f"{what} is no map")
    for user, file in found.items():
        if not isinstance(user, bytes) or not isinstance(file, bytes) or len(user) != KEY_BYTES:
            raise FormatError(f"{what} holds an entry that is none")
    return found
