"""A profile: a folder with the keys, servers and memory of one owner or user of one collection.

``keys`` holds the secrets, readable by the owner of the folder alone and sealed with a passphrase
if there is one; ``profile.json`` holds what is not secret; ``manifest`` is the highest version
seen; ``cache/`` holds sealed objects as they came.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mksearch.codec import (
    ENVELOPE_BYTES,
    decode_cbor,
    encode_cbor,
    read_envelope,
    require_map,
    write_envelope,
)
from mksearch.crypto.passphrase import PassphraseSeal
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.errors import MksearchError, ProfileError, RecordRefused, UnsupportedVersion
from mksearch.index.manifest import SignedManifest
from mksearch.params import COLLECTION_BYTES, Quorum
from mksearch_client.keys import OwnerKeys

__all__ = ["Profile", "ServerEntry", "default_profile", "open_profile", "read_passphrase"]

_KEYS_MAGIC = b"MKKEYRNG"
_KEYS_FORMAT = 1
_PROFILE_FORMAT = 1
_PLAIN, _SEALED = b"\x00", b"\x01"
_KEY_FIELDS: dict[str, type] = {"collection": bytes, "master": bytes, "signing": bytes}


def default_profile() -> Path:
    """Return the profile folder of the environment: MKSEARCH_PROFILE or ~/.config/mksearch."""
    named = os.environ.get("MKSEARCH_PROFILE")
    return Path(named) if named else Path.home() / ".config" / "mksearch"


def read_passphrase(path: Path | None) -> bytes | None:
    """Return the passphrase in ``path``, or in the file that MKSEARCH_PASSPHRASE_FILE names.

    Raises:
        ProfileError: the file cannot be read or is empty.
    """
    named = path or os.environ.get("MKSEARCH_PASSPHRASE_FILE")
    if not named:
        return None
    try:
        passphrase = Path(named).read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise ProfileError(
            f"the passphrase file {named} cannot be read ({error.strerror})",
            cure="check --passphrase-file or MKSEARCH_PASSPHRASE_FILE",
        ) from None
    if not passphrase:
        raise ProfileError(f"the passphrase file {named} is empty", cure="write one into it")
    return passphrase


def open_profile(profile: Profile | Path | str | None, passphrase_file: Path | None) -> Profile:
    """Return ``profile``, opened if it is a folder, the default folder if it is None.

    Raises:
        ProfileError: there is none, it is damaged, or the passphrase is wrong.
    """
    if isinstance(profile, Profile):
        return profile
    folder = default_profile() if profile is None else Path(profile)
    return Profile.open(folder, read_passphrase(passphrase_file))


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """A server as the profile knows it.

    Attributes:
        id: from 1.
        address: HOST:PORT.
        key: pinned Ed25519 public key, 32 bytes.
    """

    id: int
    address: str
    key: bytes


def _write(path: Path, data: bytes) -> None:
    """Replace a file at once, readable by its owner alone."""
    descriptor, partial = tempfile.mkstemp(prefix=".partial-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        _sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            os.unlink(partial)
        raise


def _sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _not_writable(folder: Path, error: OSError) -> ProfileError:
    return ProfileError(
        f"{folder} cannot be written ({error.strerror})",
        cure="make room or check its permissions",
    )


class Profile:
    """An opened profile of an owner.

    Attributes:
        folder: where it is.
        keys: the owner's keys.
        name: what the owner calls the collection.
        quorum: number of servers and collusion bound.
        servers: by id.
    """

    def __init__(
        self,
        folder: Path,
        keys: OwnerKeys,
        name: str,
        quorum: Quorum,
        servers: dict[int, ServerEntry],
    ) -> None:
        self.folder = folder
        self.keys = keys
        self.name = name
        self.quorum = quorum
        self.servers = servers

    @classmethod
    def create_keys(cls, folder: Path, random: RandomSource, passphrase: bytes | None) -> OwnerKeys:
        """Make the keys of a new profile, or load those of one that was not finished.

        Raises:
            ProfileError: the folder holds a finished profile or something else, or cannot be
                written.
        """
        if (folder / "profile.json").exists():
            raise ProfileError(
                f"{folder} holds a profile already", cure="choose another --profile folder"
            )
        if (folder / "keys").exists():
            keys = cls._load_keys(folder, passphrase)
            cls._require_sealed(folder, passphrase, random)
            return keys
        try:
            # Its permissions are about to change, which nobody wants for a folder of other things.
            if folder.exists() and any(
                not p.name.startswith(".partial-") for p in folder.iterdir()
            ):
                raise ProfileError(
                    f"{folder} is not empty and holds no profile", cure="name a new folder"
                )
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
            collection = random.bytes(COLLECTION_BYTES)
            master, signing = random.bytes(32), random.bytes(32)
            fields = {"collection": collection, "master": master, "signing": signing}
            _write(folder / "keys", _encode_keys(encode_cbor(fields), passphrase, random))
        except OSError as error:
            raise ProfileError(
                f"{folder} cannot be written ({error.strerror})", cure="choose another folder"
            ) from None
        return OwnerKeys(collection, SecretKey(master), SigningKey(SecretKey(signing)))

    @staticmethod
    def _require_sealed(folder: Path, passphrase: bytes | None, random: RandomSource) -> None:
        """Seal keys that an earlier attempt without a passphrase has left."""
        data = (folder / "keys").read_bytes()
        if passphrase is not None and data[ENVELOPE_BYTES : ENVELOPE_BYTES + 1] == _PLAIN:
            sealed = _encode_keys(_decode_keys(data, None), passphrase, random)
            try:
                _write(folder / "keys", sealed)
            except OSError as error:
                raise _not_writable(folder, error) from None

    @staticmethod
    def _load_keys(folder: Path, passphrase: bytes | None) -> OwnerKeys:
        try:
            data = (folder / "keys").read_bytes()
        except OSError as error:
            raise ProfileError(
                f"{folder} holds no profile ({error.strerror})",
                cure="run mksearch owner init, or name the folder with --profile",
            ) from None
        try:
            content = _decode_keys(data, passphrase)
            fields = require_map(decode_cbor(content, "the keys"), _KEY_FIELDS, "the keys")
            return OwnerKeys(
                fields["collection"],
                SecretKey(fields["master"]),
                SigningKey(SecretKey(fields["signing"])),
            )
        except ProfileError:
            raise
        except UnsupportedVersion as error:
            raise ProfileError(f"{folder}: {error.message}", cure="upgrade mksearch") from None
        except MksearchError as error:
            raise ProfileError(
                f"the keys in {folder} are damaged: {error.message}",
                cure="restore the file from a backup",
            ) from None

    @classmethod
    def open(cls, folder: Path, passphrase: bytes | None = None) -> Profile:
        """Open a profile.

        Raises:
            ProfileError: there is none, it is damaged, or the passphrase is wrong.
        """
        keys = cls._load_keys(folder, passphrase)
        path = folder / "profile.json"
        try:
            fields: dict[str, Any] = json.loads(path.read_text())
            if fields["format"] != _PROFILE_FORMAT:
                raise ProfileError(
                    f"{path} is of format {fields['format']}, and this release reads "
                    f"{_PROFILE_FORMAT}",
                    cure="upgrade mksearch",
                )
            servers = {
                entry["id"]: ServerEntry(
                    int(entry["id"]), str(entry["address"]), bytes.fromhex(entry["key"])
                )
                for entry in fields["servers"]
            }
            quorum = Quorum(int(fields["n_servers"]), int(fields["collusion_bound"]))
            named = (fields["collection"], fields["owner_key"])
            if named != (keys.collection.hex(), keys.signing.public.hex()):
                raise ProfileError(
                    f"keys and profile.json in {folder} are of different collections, or damaged",
                    cure="restore both from one backup",
                )
            return cls(folder, keys, str(fields["name"]), quorum, servers)
        except FileNotFoundError:
            raise ProfileError(
                f"the profile in {folder} is not finished",
                cure="run mksearch owner init again with the same servers",
            ) from None
        except ProfileError:
            raise
        except (OSError, ValueError, KeyError, TypeError, MksearchError) as error:
            raise ProfileError(
                f"{path} is damaged ({type(error).__name__})", cure="restore it from a backup"
            ) from None

    def save(self) -> None:
        """Write what is not secret.

        Raises:
            ProfileError: the folder cannot be written.
        """
        fields = {
            "format": _PROFILE_FORMAT,
            "name": self.name,
            "collection": self.keys.collection.hex(),
            "owner_key": self.keys.signing.public.hex(),
            "n_servers": self.quorum.n_servers,
            "collusion_bound": self.quorum.collusion_bound,
            "servers": [
                {"id": server.id, "address": server.address, "key": server.key.hex()}
                for server in self.servers.values()
            ],
        }
        try:
            _write(self.folder / "profile.json", json.dumps(fields, indent=1).encode())
        except OSError as error:
            raise _not_writable(self.folder, error) from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands from publishing with this profile while the block runs.

        Raises:
            ProfileError: one is at it, or the folder cannot be written.
        """
        try:
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise _not_writable(self.folder, error) from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ProfileError(
                    f"another command is publishing with the profile in {self.folder}",
                    cure="wait until it ends",
                ) from None
            yield
        finally:
            os.close(descriptor)

    # --- memory ---

    def highest_seen(self) -> SignedManifest | None:
        """Return the highest version that this profile has seen, or None.

        Raises:
            ProfileError: the file is damaged; it is what protects from old versions.
        """
        path = self.folder / "manifest"
        if not path.exists():
            return None
        try:
            return SignedManifest.decode(
                path.read_bytes(), self.keys.signing.public, self.keys.collection
            )
        except (OSError, MksearchError) as error:
            raise ProfileError(
                f"{path} is damaged ({error})",
                cure="restore it from a backup; deleting it forgets which versions were seen",
            ) from None

    def remember(self, signed: SignedManifest) -> None:
        """Keep ``signed`` as the highest version seen, if it is.

        Raises:
            ProfileError: the folder cannot be written.
        """
        seen = self.highest_seen()
        if seen is None or signed.manifest.version > seen.manifest.version:
            try:
                _write(self.folder / "manifest", signed.encode())
            except OSError as error:
                raise _not_writable(self.folder, error) from None

    def cached(self, name: bytes) -> bytes | None:
        """Return a sealed object that was kept, or None; it proves itself by its name."""
        try:
            return (self.folder / "cache" / name.hex()).read_bytes()
        except OSError:
            return None

    def keep(self, name: bytes, data: bytes) -> None:
        """Keep a sealed object; a full disk costs only speed."""
        try:
            (self.folder / "cache").mkdir(exist_ok=True)
            _write(self.folder / "cache" / name.hex(), data)
        except OSError:
            return

    def forget_except(self, names: set[bytes]) -> None:
        """Drop kept objects that ``names`` does not list."""
        kept = {name.hex() for name in names}
        for path in (self.folder / "cache").glob("*"):
            if path.name not in kept:
                path.unlink(missing_ok=True)


def _encode_keys(content: bytes, passphrase: bytes | None, random: RandomSource) -> bytes:
    head = write_envelope(_KEYS_MAGIC, _KEYS_FORMAT)
    if passphrase is None:
        return head + _PLAIN + content
    return head + _SEALED + PassphraseSeal.seal(passphrase, content, random)


def _decode_keys(data: bytes, passphrase: bytes | None) -> bytes:
    read_envelope(data, _KEYS_MAGIC, _KEYS_FORMAT, "the keys")
    kind, content = data[ENVELOPE_BYTES : ENVELOPE_BYTES + 1], data[ENVELOPE_BYTES + 1 :]
    if kind == _PLAIN:
        return content
    if passphrase is None:
        raise ProfileError(
            "the profile is sealed with a passphrase",
            cure="name its file with --passphrase-file or MKSEARCH_PASSPHRASE_FILE",
        )
    try:
        return PassphraseSeal.open(passphrase, content)
    except RecordRefused:
        raise ProfileError(
            "the passphrase is wrong, or the keys are damaged", cure="check the passphrase file"
        ) from None
