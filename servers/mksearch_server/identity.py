"""Who a server is: its key, its claim token, and the owner that claimed it."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from dataclasses import dataclass
from pathlib import Path

from mksearch.codec import decode_cbor, encode_cbor, require_map
from mksearch.crypto.evidence import AnswerSigner
from mksearch.crypto.randomness import SystemRandom
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.errors import MksearchError, ParameterError, StorageError
from mksearch.params import COLLECTION_BYTES, KEY_BYTES
from mksearch_server.files import sync_folder, write_durably
from mksearch_server.store import REPAIR_CURE, ObjectStore

__all__ = [
    "CLAIM_STATE",
    "SERVER_KEY_NAME",
    "Claim",
    "ServerIdentity",
    "create_identity",
    "read_claim",
    "server_card",
    "write_claim",
    "write_secret",
]

SERVER_KEY_NAME = "server-key"
TOKEN_NAME = "claim-token"  # noqa: S105 - the name of a file
CLAIM_STATE = "claim"
#: Copy of the claim beside the key: it is needed when the disk of the store was lost.
_CLAIM_NAME = "claim"
_CARD_FORMAT = 1
_CLAIM_FIELDS: dict[str, type] = {"owner_key": bytes, "collection": bytes}


@dataclass(frozen=True, slots=True)
class Claim:
    """The owner that a server belongs to.

    Attributes:
        owner_key: Ed25519 public key, 32 bytes.
        collection: 16 bytes.
    """

    owner_key: bytes
    collection: bytes

    def encode(self) -> bytes:
        """Return the claim as it is stored."""
        return encode_cbor({"owner_key": self.owner_key, "collection": self.collection})

    @classmethod
    def decode(cls, data: bytes) -> Claim:
        """Read what is stored.

        Raises:
            StorageError: it is damaged.
        """
        try:
            claim = cls(**require_map(decode_cbor(data, "the claim"), _CLAIM_FIELDS, "the claim"))
        except MksearchError as error:
            raise StorageError(
                f"the claim of this server is damaged: {error.message}", cure=REPAIR_CURE
            ) from None
        claim.require_lengths()
        return claim

    def require_lengths(self) -> None:
        """Raise StorageError if the key or the collection is of another length."""
        if len(self.owner_key) != KEY_BYTES or len(self.collection) != COLLECTION_BYTES:
            raise StorageError("a claim names a key or collection of a wrong length")


def read_claim(folder: Path) -> Claim | None:
    """Return the copy of the claim beside the server's key, if there is one.

    Raises:
        StorageError: it is damaged or cannot be read.
    """
    try:
        return Claim.decode((folder / _CLAIM_NAME).read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{folder / _CLAIM_NAME} cannot be read ({error.strerror})") from None


def write_claim(folder: Path, claim: Claim) -> None:
    """Keep a copy of the claim beside the server's key.

    Raises:
        StorageError: it cannot be written.
    """
    path = folder / _CLAIM_NAME
    try:
        if not path.exists() or path.read_bytes() != claim.encode():
            write_durably(path, claim.encode())
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror})",
            cure="make room or check the permissions of the server's folder",
        ) from None


def write_secret(path: Path, data: bytes) -> None:
    """Write a new file that only its owner may read; never over an old one.

    Raises:
        StorageError: it exists or cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise StorageError(f"{path} cannot be made ({error.strerror})") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def create_identity(folder: Path, tls_key: bytes = b"") -> str:
    """Make the key of a new server and its claim token; return the token.

    Args:
        folder: of the server.
        tls_key: fingerprint of its TLS key, which the token carries to the owner; b"" without TLS.

    Raises:
        StorageError: the folder holds a server already, or cannot be written.
    """
    random = SystemRandom()
    write_secret(folder / SERVER_KEY_NAME, random.bytes(KEY_BYTES))
    token = random.bytes(16).hex() + (f".{tls_key.hex()}" if tls_key else "")
    write_secret(folder / TOKEN_NAME, token.encode())
    return token


def server_card(folder: Path, server_id: int, address: str, tls_key: str) -> bytes:
    """Return what the owner of a collection needs to have a new server join (15.3).

    Args:
        folder: of the server.
        server_id: its place.
        address: HOST:PORT that clients dial.
        tls_key: fingerprint of its TLS key, hexadecimal; "" without TLS.

    Returns:
        JSON; secret while the server is not claimed, for the claim token is in it.

    Raises:
        StorageError: the key of the server cannot be read.
    """
    key = _read_seed(folder)
    try:
        token = (folder / TOKEN_NAME).read_text().strip()
    except OSError:
        token = ""
    fields: dict[str, object] = {
        "format": _CARD_FORMAT,
        "kind": "mksearch-server",
        "id": server_id,
        "address": address,
        "key": SigningKey(key).public.hex(),
        "claim_token": token.partition(".")[0],
    }
    if tls_key:
        fields["tls_key"] = tls_key
    return json.dumps(fields, indent=1).encode() + b"\n"


def _read_seed(folder: Path) -> SecretKey:
    """Return the seed of the server's key; raise StorageError."""
    try:
        return SecretKey((folder / SERVER_KEY_NAME).read_bytes())
    except (OSError, ParameterError) as error:
        raise StorageError(
            f"the key of the server in {folder} cannot be read ({error})",
            cure="run mksearch-server init for a new server, or restore the file",
        ) from None


def server_public_key(folder: Path) -> bytes:
    """Return the public key, 32 bytes, of the server in ``folder``.

    Raises:
        StorageError: there is none, or it is damaged.
    """
    return SigningKey(_read_seed(folder)).public


class ServerIdentity:
    """The key of a server and its claim.

    Attributes:
        seed: of the server's key.
        signer: signs what the server answers.
        claim: the owner, None before anybody claimed the server.
    """

    def __init__(self, folder: Path, store: ObjectStore) -> None:
        """Load the identity that ``create_identity`` made in ``folder``.

        Raises:
            StorageError: there is none, or it is damaged.
        """
        self._folder = folder
        self._store = store
        self.seed = _read_seed(folder)
        self.signer = AnswerSigner(SigningKey(self.seed))
        self.claim = self._load_claim()

    def _load_claim(self) -> Claim | None:
        data = self._store.read_state(CLAIM_STATE)
        copy = read_claim(self._folder)
        if data is None:
            return copy
        claim = Claim.decode(data)
        if copy is not None and copy != claim:
            raise StorageError(
                "the claim in the store is not the one beside the server's key: one is damaged",
                cure=f"{REPAIR_CURE}, with the owner's --card",
            )
        return claim

    def keep_claim(self) -> None:
        """Have the claim both in the store and beside the key, where a lost disk leaves it.

        Raises:
            StorageError: either cannot be written.
        """
        claim = self.claim
        if claim is None:
            return
        write_claim(self._folder, claim)
        if self._store.read_state(CLAIM_STATE) is None:
            self._store.write_state(CLAIM_STATE, claim.encode())

    def accept_claim(self, token: str, claim: Claim) -> None:
        """Pin the owner that shows the token; the token works once.

        Claiming again with the same owner and collection changes nothing.

        Raises:
            StorageError: wrong token, another owner, or malformed.
        """
        claim.require_lengths()
        if self.claim is not None:
            if self.claim != claim:
                raise StorageError(
                    "this server was claimed by another owner or for another collection",
                    cure="make a new server with mksearch-server init",
                )
            return
        try:
            expected = (self._folder / TOKEN_NAME).read_text()
        except OSError:
            expected = ""
        # Digests of equal length: the comparison shows nothing of the token.  What follows a dot
        # is for the owner, who pins it.
        secrets = [value.strip().partition(".")[0] for value in (expected, token)]
        digests = [hashlib.sha256(secret.encode()).digest() for secret in secrets]
        if not expected or not hmac.compare_digest(*digests):
            raise StorageError(
                "the claim token is wrong",
                cure="use the token that mksearch-server init printed (file claim-token)",
            )
        self._store.write_state(CLAIM_STATE, claim.encode())
        self.claim = claim
        self.keep_claim()
        (self._folder / TOKEN_NAME).unlink(missing_ok=True)
