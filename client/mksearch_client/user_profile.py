"""The profile of a user: an identity, the owner's card, and the credential once there is one."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mksearch.access.credential import SignedCredential
from mksearch.access.enrolment import MemberSecrets, read_credential
from mksearch.access.keys import AttributeKey, PublicParameters
from mksearch.crypto.identity import Identity
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.errors import (
    InputError,
    MksearchError,
    ParameterError,
    ProfileError,
    VerificationError,
)
from mksearch.params import COLLECTION_BYTES, KEY_BYTES, Quorum
from mksearch_client.client_files import GivenFiles
from mksearch_client.profile import is_user_profile, make_folder
from mksearch_client.profile_folder import (
    USER_KEYS_MAGIC,
    ProfileFolder,
    SecretFile,
    ServerEntry,
    not_writable,
    read_fields,
    write_file,
)

__all__ = ["Card", "UserProfile", "create_identity", "open_identity"]

_PROFILE_FORMAT = 1
#: 2 names an administration, 1 does not.
_CARD_FORMAT = 2
_KEY_PURPOSE = b"attribute-key"
#: The attribute key of the credential that is kept; before it, of one that comes next.
_KEY_NAMES = ("attribute-key", "attribute-key.new")


@dataclass(frozen=True, slots=True)
class Card:
    """What an owner hands to users: where a collection is and whose signatures count.

    Attributes:
        collection: 16 bytes.
        owner_key: Ed25519 public key, 32 bytes.
        name: what the owner calls it.
        quorum: number of servers and collusion bound.
        servers: by id.
        admin_key: Ed25519 public key of the administration, 32 bytes.
        parameters: of the authority.
    """

    collection: bytes
    owner_key: bytes
    name: str
    quorum: Quorum
    servers: dict[int, ServerEntry]
    admin_key: bytes
    parameters: PublicParameters

    @classmethod
    def of_fields(cls, fields: dict[str, Any]) -> Card:
        """Read the object of a card; raise ValueError, KeyError, TypeError or MksearchError."""
        sizes = {"collection": COLLECTION_BYTES, "owner_key": KEY_BYTES, "admin_key": KEY_BYTES}
        values = {name: bytes.fromhex(fields[name]) for name in sizes}
        if any(len(values[name]) != size for name, size in sizes.items()):
            raise ValueError("a key of another length")
        servers = ProfileFolder.servers_of(fields)
        quorum = ProfileFolder.quorum_of(fields)
        if sorted(servers) != list(range(1, quorum.n_servers + 1)):
            raise ValueError("servers that are not numbered 1..n")
        if any(len(server.key) != KEY_BYTES for server in servers.values()):
            raise ValueError("a key of another length")
        return cls(
            values["collection"],
            values["owner_key"],
            str(fields["name"]),
            quorum,
            servers,
            values["admin_key"],
            PublicParameters.decode(bytes.fromhex(fields["authority"])),
        )

    @classmethod
    def read(cls, path: Path) -> Card:
        """Read a card that ``mksearch owner card`` wrote.

        Raises:
            InputError: it cannot be read, is no card, or of a collection without administration.
        """
        try:
            fields = read_fields(path)
        except OSError as error:
            raise InputError(
                f"the card {path} cannot be read ({error.strerror})", cure="check --card"
            ) from None
        except ValueError:
            raise InputError(f"{path} is no card", cure="ask the owner for one") from None
        if fields.get("format") == 1:
            raise InputError(
                f"the card {path} is of a collection that admits no users yet",
                cure="the owner runs mksearch admin init, publishes, and makes a new card",
            )
        if fields.get("format") != _CARD_FORMAT:
            raise InputError(f"{path} is no card that this release reads", cure="upgrade mksearch")
        try:
            return cls.of_fields(fields)
        except (ValueError, KeyError, TypeError, MksearchError) as error:
            raise InputError(
                f"the card {path} is damaged ({error})", cure="ask the owner for a new one"
            ) from None


class UserProfile(ProfileFolder):
    """An opened profile of a user.

    Attributes:
        card: as the owner handed it out.
        identity: the user's keys.
    """

    def __init__(self, folder: Path, card: Card, identity: Identity) -> None:
        super().__init__(
            folder, card.collection, card.owner_key, card.name, card.quorum, card.servers
        )
        self.card = card
        self.identity = identity

    @classmethod
    def create(
        cls,
        folder: Path,
        card: Card,
        random: RandomSource,
        passphrase: bytes | None,
        files: GivenFiles | None = None,
    ) -> UserProfile:
        """Make the profile of a new user, with the keys in the folder if it has a user's.

        Args:
            folder: new, or with a user's keys.
            card: of the collection.
            random: source of keys.
            passphrase: seals the keys, or None.
            files: authorities and client certificate for TLS.

        Raises:
            ParameterError, InputError: ``files`` are not what they should be.
            ProfileError: the folder holds something else, or cannot be written.
        """
        if (folder / "profile.json").exists():
            raise ProfileError(
                f"{folder} holds a profile already", cure="choose another --profile folder"
            )
        given = files or GivenFiles()
        given.read()
        profile = cls(folder, card, create_identity(folder, random, passphrase))
        given.keep(folder)
        fields = {"format": _PROFILE_FORMAT, "role": "user"} | profile.public_fields()
        fields |= {"admin_key": card.admin_key.hex(), "authority": card.parameters.encode().hex()}
        try:
            write_file(folder / "profile.json", json.dumps(fields, indent=1).encode())
        except OSError as error:
            raise not_writable(folder, error) from None
        return profile

    @classmethod
    def open(cls, folder: Path, passphrase: bytes | None = None) -> UserProfile:
        """Open a profile.

        Raises:
            ProfileError: there is none, it is damaged or an owner's, or the passphrase is wrong.
        """
        identity = open_identity(folder, passphrase)
        if not (folder / "profile.json").exists():
            raise ProfileError(
                f"the profile in {folder} is of no collection yet",
                cure="run mksearch user init --card FILE with this folder",
            )
        try:
            fields = read_fields(folder / "profile.json")
            if fields["format"] != _PROFILE_FORMAT:
                raise ProfileError(
                    f"{folder / 'profile.json'} is of format {fields['format']}, and this release "
                    f"reads {_PROFILE_FORMAT}",
                    cure="upgrade mksearch",
                )
            return cls(folder, Card.of_fields(fields), identity)
        except ProfileError:
            raise
        except (OSError, ValueError, KeyError, TypeError, MksearchError) as error:
            raise ProfileError(
                f"the profile in {folder} is damaged ({type(error).__name__})",
                cure="restore it from a backup",
            ) from None

    # --- the credential ---

    def keep_credential(self, data: bytes, key: AttributeKey | None = None) -> None:
        """Keep a credential that was proved; what is secret in it is sealed to this user.

        However this is interrupted, the credential kept and a key that goes with it are there.

        Args:
            data: the file.
            key: that the servers made for it, None where the credential holds one.

        Raises:
            ProfileError: the folder cannot be written.
        """
        kept, coming = (self.folder / name for name in _KEY_NAMES)
        try:
            if key is not None:
                signed = SignedCredential.decode(data, self.card.admin_key)
                sealed = self.identity.public.seal(_KEY_PURPOSE, signed.hash, key.encode())
                write_file(coming, sealed)
            write_file(self.folder / "credential", data)
            if key is not None:
                os.replace(coming, kept)
        except FileNotFoundError:
            # Another process of this user has put the same key in its place.
            return
        except OSError as error:
            raise not_writable(self.folder, error) from None

    def credential(self) -> SignedCredential:
        """Return the credential that was kept.

        Raises:
            ProfileError: there is none, or it is damaged.
        """
        try:
            data = (self.folder / "credential").read_bytes()
        except FileNotFoundError:
            raise ProfileError(
                f"the profile in {self.folder} is not enrolled",
                cure="send user-key to the admin, then run mksearch user enrol --credential FILE",
            ) from None
        except OSError as error:
            raise ProfileError(
                f"{self.folder / 'credential'} cannot be read ({error.strerror})"
            ) from None
        try:
            return SignedCredential.decode(data, self.card.admin_key)
        except MksearchError as error:
            raise self._damaged(error) from None

    def secrets(self) -> MemberSecrets:
        """Return the secrets of the credential, and the attribute key.

        Raises:
            ProfileError: there is no credential, or it is damaged.
        """
        try:
            signed = self.credential()
            found = read_credential(signed, self.identity)
            key = found.attribute_key
            if key is None:
                key = self._attribute_key(signed)
            return MemberSecrets(found.member_secret, key)
        except ProfileError:
            raise
        except OSError as error:
            raise ProfileError(
                f"the attribute key in {self.folder} cannot be read ({error.strerror})",
                cure="enrol again with the file that the admin sent",
            ) from None
        except MksearchError as error:
            raise self._damaged(error) from None

    def _attribute_key(self, signed: SignedCredential) -> AttributeKey:
        """Return the key that the servers made for a credential; raise OSError, MksearchError."""
        kept, coming = (self.folder / name for name in _KEY_NAMES)

        def read(path: Path) -> AttributeKey:
            what = "the attribute key"
            opened = self.identity.open(_KEY_PURPOSE, signed.hash, path.read_bytes(), what)
            return AttributeKey.decode(opened)

        try:
            return read(kept)
        except (OSError, VerificationError):
            if not coming.exists():
                raise
        return read(coming)

    def _damaged(self, error: MksearchError) -> ProfileError:
        return ProfileError(
            f"the credential in {self.folder} is damaged: {error.message}",
            cure="enrol again with the file that the admin sent",
        )


def create_identity(folder: Path, random: RandomSource, passphrase: bytes | None) -> Identity:
    """Make the keys of a person in a new folder, or load those that it holds.

    The public half is in its file ``user-key``.

    Args:
        folder: new, or made by this function.
        random: source of the keys.
        passphrase: seals the keys, or None.

    Raises:
        ProfileError: the folder holds something else, or cannot be written; the keys are damaged,
            or the passphrase is wrong.
    """
    file = _keys_file(folder)
    try:
        if file.path.exists():
            identity = open_identity(folder, passphrase)
            file.seal(passphrase, random)
        else:
            make_folder(folder)
            seed = random.bytes(KEY_BYTES)
            identity = Identity(SecretKey(seed))
            file.write(seed, passphrase, random)
        write_file(folder / "user-key", identity.public.encode())
    except OSError as error:
        raise not_writable(folder, error) from None
    return identity


def open_identity(folder: Path, passphrase: bytes | None) -> Identity:
    """Return the keys of the person whose folder it is, of a collection or of none yet.

    Raises:
        ProfileError: there are none, they are damaged or an owner's, or the passphrase is wrong.
    """
    if not is_user_profile(folder):
        owners = (folder / "keys").exists()
        raise ProfileError(
            f"{folder} holds {'an owner' if owners else 'no user'}'s profile",
            cure="run mksearch user init --card FILE, or name the folder with --profile",
        )
    file = _keys_file(folder)
    try:
        return Identity(SecretKey(file.read(passphrase)))
    except OSError as error:
        raise ProfileError(
            f"{file.path} cannot be read ({error.strerror})", cure="restore it from a backup"
        ) from None
    except ParameterError as error:
        raise file.damaged(error) from None


def _keys_file(folder: Path) -> SecretFile:
    return SecretFile(folder / "keys", USER_KEYS_MAGIC, "the keys")
