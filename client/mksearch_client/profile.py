"""The profile of an owner; what owners and users share is in `profile_folder`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from mksearch.codec import decode_cbor, encode_cbor, require_map
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.errors import (
    FormatError,
    MksearchError,
    ParameterError,
    ProfileError,
    VerificationError,
)
from mksearch.params import COLLECTION_BYTES, Quorum
from mksearch_client.keys import OwnerKeys
from mksearch_client.profile_folder import (
    USER_KEYS_MAGIC,
    ProfileFolder,
    SecretFile,
    ServerEntry,
    default_profile,
    not_writable,
    read_fields,
    read_passphrase,
    write_file,
)

__all__ = ["Profile", "ServerEntry", "default_profile", "open_profile", "read_passphrase"]

_KEYS_MAGIC = b"MKKEYRNG"
_PROFILE_FORMAT = 1
_KEY_FIELDS: dict[str, type] = {"collection": bytes, "master": bytes, "signing": bytes}


def open_profile(profile: Profile | Path | str | None, passphrase_file: Path | None) -> Profile:
    """Return ``profile``, opened if it is a folder, the default folder if it is None.

    Raises:
        ProfileError: there is none, it is damaged or a user's, or the passphrase is wrong.
    """
    if isinstance(profile, Profile):
        return profile
    folder = default_profile() if profile is None else Path(profile)
    return Profile.open(folder, read_passphrase(passphrase_file))


def _keys_file(folder: Path) -> SecretFile:
    return SecretFile(folder / "keys", _KEYS_MAGIC, "the keys")


@dataclass(frozen=True, slots=True, eq=False)
class _KeyFields:
    """The secrets of an owner as they are stored."""

    collection: bytes
    master: bytes
    signing: bytes

    def encode(self) -> bytes:
        return encode_cbor(
            {"collection": self.collection, "master": self.master, "signing": self.signing}
        )

    @classmethod
    def decode(cls, content: bytes) -> _KeyFields:
        return cls(**require_map(decode_cbor(content, "the keys"), _KEY_FIELDS, "the keys"))

    def keys(self) -> OwnerKeys:
        signing = SigningKey(SecretKey(self.signing))
        return OwnerKeys(self.collection, SecretKey(self.master), signing)

    def __repr__(self) -> str:
        return "_KeyFields(<redacted>)"


class Profile(ProfileFolder):
    """An opened profile of an owner.

    Attributes:
        keys: the owner's keys.
        passphrase: seals the secrets, or None.
    """

    def __init__(
        self,
        folder: Path,
        keys: OwnerKeys,
        name: str,
        quorum: Quorum,
        servers: dict[int, ServerEntry],
        *,
        passphrase: bytes | None = None,
    ) -> None:
        super().__init__(folder, keys.collection, keys.signing.public, name, quorum, servers)
        self.keys = keys
        self.passphrase = passphrase

    @classmethod
    def create_keys(cls, folder: Path, random: RandomSource, passphrase: bytes | None) -> OwnerKeys:
        """Make the keys of a new profile, or load those of one that was not finished.

        Raises:
            ProfileError: the folder holds a finished profile or something else, or cannot be
                written.
        """
        if (folder / "profile.json").exists():
            raise _occupied(folder)
        if (folder / "keys").exists():
            _require_no_user(folder)
            keys = cls._load_keys(folder, passphrase)
            try:
                _keys_file(folder).seal(passphrase, random)
            except OSError as error:
                raise not_writable(folder, error) from None
            return keys
        make_folder(folder)
        fields = _KeyFields(random.bytes(COLLECTION_BYTES), random.bytes(32), random.bytes(32))
        try:
            _keys_file(folder).write(fields.encode(), passphrase, random)
        except OSError as error:
            raise not_writable(folder, error) from None
        return fields.keys()

    @staticmethod
    def _load_keys(folder: Path, passphrase: bytes | None) -> OwnerKeys:
        file = _keys_file(folder)
        try:
            content = file.read(passphrase)
        except OSError as error:
            raise ProfileError(
                f"{folder} holds no profile ({error.strerror})",
                cure="run mksearch owner init, or name the folder with --profile",
            ) from None
        try:
            return _KeyFields.decode(content).keys()
        except MksearchError as error:
            raise file.damaged(error) from None

    @classmethod
    def open(cls, folder: Path, passphrase: bytes | None = None) -> Profile:
        """Open a profile.

        Raises:
            ProfileError: there is none, it is damaged or a user's, or the passphrase is wrong.
        """
        _require_no_user(folder)
        keys = cls._load_keys(folder, passphrase)
        path = folder / "profile.json"
        try:
            fields = read_fields(path)
            if fields["format"] != _PROFILE_FORMAT:
                raise ProfileError(
                    f"{path} is of format {fields['format']}, and this release reads "
                    f"{_PROFILE_FORMAT}",
                    cure="upgrade mksearch",
                )
            servers, quorum = cls.servers_of(fields), cls.quorum_of(fields)
            named = (fields["collection"], fields["owner_key"])
            if named != (keys.collection.hex(), keys.signing.public.hex()):
                raise ProfileError(
                    f"keys and profile.json in {folder} are of different collections, or damaged",
                    cure="restore both from one backup",
                )
            name = str(fields["name"])
            return cls(folder, keys, name, quorum, servers, passphrase=passphrase)
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

    def read_keys(self) -> bytes:
        """Return the content of ``keys``, secret, for a backup.

        Raises:
            ProfileError: it cannot be read, is damaged, or sealed with another passphrase.
        """
        file = _keys_file(self.folder)
        try:
            return file.read(self.passphrase)
        except OSError as error:
            raise ProfileError(f"{file.path} cannot be read ({error.strerror})") from None

    @classmethod
    def restore_keys(
        cls,
        folder: Path,
        content: bytes,
        random: RandomSource,
        passphrase: bytes | None,
        *,
        collection: bytes,
        owner_key: bytes,
    ) -> OwnerKeys:
        """Make a new folder with the keys of a backup; ``save`` finishes the profile.

        Args:
            folder: new.
            content: of ``keys``; secret.
            random: source of a salt.
            passphrase: seals the keys, or None.
            collection: that they must be of, 16 bytes.
            owner_key: that must belong to them, 32 bytes.

        Raises:
            FormatError: the content is not that of ``keys``.
            VerificationError: they are of another collection or owner.
            ProfileError: the folder holds something, or cannot be written.
        """
        try:
            keys = _KeyFields.decode(content).keys()
        except ParameterError as error:
            raise FormatError(f"the keys of a backup cannot be: {error.message}") from None
        if (keys.collection, keys.signing.public) != (collection, owner_key):
            raise VerificationError(
                "the keys in the backup are of another collection or owner than who signed it",
                cure="somebody else made these shares: use the owner's",
            )
        if (folder / "profile.json").exists():
            raise _occupied(folder)
        make_folder(folder)
        try:
            _keys_file(folder).write(content, passphrase, random)
        except OSError as error:
            raise not_writable(folder, error) from None
        return keys

    def save(self) -> None:
        """Write what is not secret.

        Raises:
            ProfileError: the folder cannot be written.
        """
        fields = {"format": _PROFILE_FORMAT} | self.public_fields()
        try:
            write_file(self.folder / "profile.json", json.dumps(fields, indent=1).encode())
        except OSError as error:
            raise not_writable(self.folder, error) from None


def make_folder(folder: Path) -> None:
    """Make the folder of a new profile.

    Raises:
        ProfileError: it holds something else, or cannot be made.
    """
    try:
        # Its permissions are about to change, which nobody wants for a folder of other things.
        if folder.exists() and any(not p.name.startswith(".partial-") for p in folder.iterdir()):
            raise ProfileError(
                f"{folder} is not empty and holds no profile", cure="name a new folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise ProfileError(
            f"{folder} cannot be written ({error.strerror})", cure="choose another folder"
        ) from None


def is_user_profile(folder: Path) -> bool:
    """Tell whether a folder holds the profile of a user, or keys that one can be made of."""
    try:
        return read_fields(folder / "profile.json").get("role") == "user"
    except (OSError, ValueError):
        return has_user_keys(folder)


def has_user_keys(folder: Path) -> bool:
    """Tell whether the keys in a folder are a user's."""
    try:
        return (folder / "keys").read_bytes().startswith(USER_KEYS_MAGIC)
    except OSError:
        return False


def _require_no_user(folder: Path) -> None:
    if is_user_profile(folder):
        raise ProfileError(
            f"the profile in {folder} is a user's, and this needs the owner's",
            cure="name the owner's folder with --profile",
        )


def _occupied(folder: Path) -> ProfileError:
    return ProfileError(f"{folder} holds a profile already", cure="choose another --profile folder")
