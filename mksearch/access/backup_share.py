"""Shares of an owner's backup: sealed to a person, and opened (docs/protocol.md, 12.6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from mksearch.access.attributes import Attribute, Label
from mksearch.access.pairing import BLS12_381
from mksearch.access.policy import Policy, parse_policy
from mksearch.access.span_program import SpanProgram
from mksearch.access.tokens import refuse, scan
from mksearch.codec import (
    ENVELOPE_BYTES,
    decode_cbor,
    encode_cbor,
    read_envelope,
    require_map,
    write_envelope,
)
from mksearch.crypto import labels
from mksearch.crypto.identity import Identity
from mksearch.crypto.kdf import sha256
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SIGNATURE_BYTES, SigningKey, verify
from mksearch.crypto.user_key import UserKey
from mksearch.errors import (
    FormatError,
    NotQualified,
    PolicyError,
    VerificationError,
)
from mksearch.params import COLLECTION_BYTES, KEY_BYTES

__all__ = [
    "BACKUP_BYTES",
    "OPENED_MAGIC",
    "SHARE_MAGIC",
    "BackupBody",
    "OpenedShare",
    "SealedShare",
    "backup_names",
    "name_label",
    "parse_backup_policy",
    "rows_of",
]

SHARE_MAGIC, OPENED_MAGIC, _FORMAT = b"MKBACKUP", b"MKBACKOP", 1
#: Size of what tells one backup from another.
BACKUP_BYTES = 16
_LEAF_NAME = "key"
_PURPOSE = b"backup"
_LENGTH_BYTES = 4
_FIELDS: dict[str, type] = {
    "collection": bytes,
    "owner_key": bytes,
    "backup": bytes,
    "policy": bytes,
    "name": str,
    "user": bytes,
    "content": bytes,
}
_SIZES = {
    "collection": COLLECTION_BYTES,
    "owner_key": KEY_BYTES,
    "backup": BACKUP_BYTES,
    "user": KEY_BYTES,
}


# --- policies of backups --------------------------------------------------------------------------


def parse_backup_policy(text: str) -> Policy:
    """Parse who together may recover, such as ``2 OF (key:alice, key:bob, key:carol)``.

    Args:
        text: a policy whose every leaf is ``key:NAME``.

    Raises:
        PolicyError: it does not parse, or has another leaf (12.6.1); ``position`` says where.
    """
    policy = parse_policy(text)
    for token in scan(text):
        # A comparison has no value, so it is met here as well.
        if token.kind == "word" and not (token.name == _LEAF_NAME and token.value):
            raise refuse(
                f"a backup is shared over people's keys, and '{token.text}' is none,",
                token.position,
                "write key:NAME, and --user-key NAME=FILE with it",
            )
    return policy


def backup_names(text: str) -> tuple[str, ...]:
    """Return the names in a policy of ``parse_backup_policy``, each once, in their order."""
    names = (token.value for token in scan(text) if token.kind == "word")
    return tuple(dict.fromkeys(names))


def name_label(name: str) -> Label:
    """Return the label of the leaf ``key:name``."""
    return Attribute(_LEAF_NAME, name, is_number=False).label


def rows_of(program: SpanProgram, name: str) -> tuple[int, ...]:
    """Return the rows of a span program, from 0, that ``name`` has."""
    label = name_label(name)
    return tuple(row for row, found in enumerate(program.row_labels) if found == label)


# --- files ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BackupBody:
    """What the owner signs of a share; public.

    Attributes:
        collection: 16 bytes.
        owner_key: Ed25519 public key of the owner, 32 bytes.
        backup: 16 uniform bytes, the same in all shares of one backup.
        policy: bytes as typed.
        name: whose share it is.
        user: id of that person's user key, 32 bytes.
        content: the owner's secrets, sealed under the shared scalar.
    """

    collection: bytes
    owner_key: bytes
    backup: bytes
    policy: bytes
    name: str
    user: bytes
    content: bytes

    @property
    def common(self) -> tuple[bytes, ...]:
        """What all shares of one backup have in common."""
        return self.collection, self.owner_key, self.backup, self.policy, self.content

    def encode(self) -> bytes:
        """Return the bytes that are signed."""
        return encode_cbor({name: getattr(self, name) for name in _FIELDS})

    @classmethod
    def decode(cls, data: bytes, what: str) -> BackupBody:
        """Read a body; its signature is proved with the key that it names.

        Raises:
            FormatError: not canonical, or its policy or name cannot be.
        """
        fields = require_map(decode_cbor(data, what), _FIELDS, what)
        for name, size in _SIZES.items():
            if len(fields[name]) != size:
                raise FormatError(f"{what}: {name} has {len(fields[name])} bytes (need {size})")
        body = cls(**fields)
        if not rows_of(body.program(), body.name):
            raise FormatError(f"{what} is of a name that its policy does not have")
        return body

    def parsed(self) -> Policy:
        """Return the policy.

        Raises:
            FormatError: it is none for a backup.
        """
        try:
            return parse_backup_policy(self.policy.decode())
        except (UnicodeDecodeError, PolicyError) as error:
            why = error.message if isinstance(error, PolicyError) else "not UTF-8"
            raise FormatError(f"a backup has a policy that cannot be: {why}") from None

    def program(self) -> SpanProgram:
        """Return the span program that the scalar is shared by."""
        return SpanProgram.of(self.parsed().formula, BLS12_381.order)


@dataclass(frozen=True, slots=True)
class _Signed:
    """The front of both files: a body whose signature is proved.

    Attributes:
        body: decoded.
        data: its bytes.
        signature: 64 bytes.
    """

    body: BackupBody
    data: bytes
    signature: bytes

    def encode(self, magic: bytes, rest: bytes) -> bytes:
        size = len(self.data).to_bytes(_LENGTH_BYTES, "big")
        return write_envelope(magic, _FORMAT) + size + self.data + self.signature + rest

    @classmethod
    def decode(cls, file: bytes, magic: bytes, what: str) -> tuple[Self, bytes]:
        """Return the front of a file after proving it, and the rest."""
        read_envelope(file, magic, _FORMAT, what)
        start = ENVELOPE_BYTES + _LENGTH_BYTES
        stop = start + int.from_bytes(file[ENVELOPE_BYTES:start], "big")
        at = stop + SIGNATURE_BYTES
        if len(file) <= at:
            raise FormatError(f"{what} of {len(file)} bytes is truncated")
        body = BackupBody.decode(file[start:stop], what)
        try:
            verify(body.owner_key, labels.BACKUP, file[start:stop], file[stop:at], what)
        except VerificationError as error:
            raise VerificationError(
                error.message, cure="it was changed: get it again from whoever sent it"
            ) from None
        return cls(body, file[start:stop], file[stop:at]), file[at:]


@dataclass(frozen=True, slots=True)
class SealedShare:
    """One person's share of a backup: it may travel in the open.

    Attributes:
        signed: what the owner signed.
        sealed: only the holder of the user key opens it.
    """

    signed: _Signed
    sealed: bytes

    @property
    def body(self) -> BackupBody:
        """What the owner says of it."""
        return self.signed.body

    @classmethod
    def seal(
        cls, body: BackupBody, user: UserKey, signing: SigningKey, rows: Mapping[int, SecretKey]
    ) -> SealedShare:
        """Sign a body and seal its rows to the person whom it names; randomness is the system's.

        Raises:
            FormatError: the user key cannot be used.
        """
        data = body.encode()
        sealed = user.seal(_PURPOSE, sha256(data), _encode_rows(rows))
        return cls(_Signed(body, data, signing.sign(labels.BACKUP, data)), sealed)

    def encode(self) -> bytes:
        """Return the file."""
        return self.signed.encode(SHARE_MAGIC, self.sealed)

    @classmethod
    def decode(cls, data: bytes) -> SealedShare:
        """Read a file and prove that the owner key in it signed it.

        Raises:
            FormatError: it is no share of a backup.
            UnsupportedVersion: another format version.
            VerificationError: the signature is another's (12.6.2).
        """
        return cls(*_Signed.decode(data, SHARE_MAGIC, "a share of a backup"))

    def open(self, identity: Identity) -> OpenedShare:
        """Open the share with the keys of the person whom it is sealed to.

        Raises:
            NotQualified: it is another person's.
            RecordRefused: it was changed.
            FormatError: what it holds cannot be a share.
        """
        if self.body.user != identity.public.id:
            raise NotQualified(
                f"the share of {self.body.name!r} is sealed to user key "
                f"{self.body.user.hex()[:16]}, and this profile's is "
                f"{identity.public.id.hex()[:16]}",
                cure="open it with the profile that it was made for",
            )
        what = "a share of a backup"
        rows = identity.open(_PURPOSE, sha256(self.signed.data), self.sealed, what)
        return OpenedShare.of(self.signed, rows)


@dataclass(frozen=True, slots=True, eq=False)
class OpenedShare:
    """One person's share as it counts for recovering; secret.

    Attributes:
        signed: what the owner signed.
        rows: secret share of each row of the person's leaves.
    """

    signed: _Signed
    rows: Mapping[int, SecretKey]

    @property
    def body(self) -> BackupBody:
        """What the owner says of it."""
        return self.signed.body

    @classmethod
    def of(cls, signed: _Signed, rows: bytes) -> OpenedShare:
        """Read the rows.

        Raises:
            FormatError: they are not canonical, not numbers below the order, or of other leaves.
        """
        what = "an opened share of a backup"
        found = decode_cbor(rows, what)
        if not isinstance(found, list) or not all(map(_is_row, found)):
            raise FormatError(f"{what} holds something else than rows")
        if [row for row, _ in found] != [*rows_of(signed.body.program(), signed.body.name)]:
            raise FormatError(f"{what} has not the rows of {signed.body.name!r}")
        return cls(signed, {row: SecretKey(share) for row, share in found})

    def encode(self) -> bytes:
        """Return the file, secret."""
        return self.signed.encode(OPENED_MAGIC, _encode_rows(self.rows))

    @classmethod
    def decode(cls, data: bytes) -> OpenedShare:
        """Read a file and prove that the owner key in it signed it.

        Raises:
            FormatError: it is no opened share of a backup.
            UnsupportedVersion: another format version.
            VerificationError: the signature is another's (12.6.2).
        """
        return cls.of(*_Signed.decode(data, OPENED_MAGIC, "an opened share of a backup"))

    def __repr__(self) -> str:
        return f"OpenedShare(name={self.body.name!r}, <redacted>)"

    def __reduce__(self) -> str:
        raise TypeError("opened shares are secret and are never pickled")


def _is_row(entry: Any) -> bool:
    match entry:
        case [int(row), bytes(share)] if type(row) is int and len(share) == KEY_BYTES:
            return int.from_bytes(share, "big") < BLS12_381.order
        case _:
            return False


def _encode_rows(rows: Mapping[int, SecretKey]) -> bytes:
    return encode_cbor([[row, rows[row].reveal()] for row in sorted(rows)])
