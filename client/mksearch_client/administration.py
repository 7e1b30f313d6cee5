"""The owner's administration: the authority, the admin key and the member secret, on disk.

It lies in the owner's profile, in ``administration``, sealed like the other keys; who was admitted
is in `members`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mksearch.access.cpabe import MasterKey, set_up
from mksearch.access.keys import PublicParameters, VerificationKeys
from mksearch.codec import decode_cbor, encode_cbor, require_map
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.errors import MksearchError, ProfileError
from mksearch.index.manifest import Access
from mksearch.params import KEY_BYTES
from mksearch_client.profile import Profile
from mksearch_client.profile_folder import SecretFile, not_writable

__all__ = [
    "Administration",
    "create_administration",
    "load_administration",
    "read_administration",
    "restore_administration",
    "share_administration",
    "start_epoch",
]

_MAGIC = b"MKADMINI"
_FIELDS: dict[str, type] = {
    "parameters": bytes,
    "alpha": bytes,
    "verification": bytes,
    "admin": bytes,
    "member_secret": bytes,
    "epoch": int,
}


@dataclass(frozen=True, slots=True, eq=False)
class Administration:
    """What it takes to admit users to a collection; secret.

    Attributes:
        parameters: of the authority, public.
        master: secret of the authority; None once the servers share it.
        signing: the admin key.
        member_secret: of the epoch.
        epoch: generation of the keys, from 1.
        verification: verification keys file, b"" while the authority is in one place.
    """

    parameters: PublicParameters
    master: MasterKey | None
    signing: SigningKey
    member_secret: SecretKey
    epoch: int
    verification: bytes = b""

    @property
    def access(self) -> Access:
        """What the manifest says of it."""
        return Access(self.parameters.encode(), self.signing.public, self.epoch, self.verification)

    def __reduce__(self) -> str:
        raise TypeError("administrations are never pickled")


def _file(profile: Profile) -> SecretFile:
    return SecretFile(profile.folder / "administration", _MAGIC, "the keys of the administration")


def create_administration(profile: Profile, random: RandomSource) -> Administration:
    """Make the administration of a collection and keep it in the owner's profile.

    Its epoch is above every one that this profile has seen, so that one that was lost is replaced.

    Raises:
        ProfileError: there is one already, or the folder cannot be written.
    """
    file = _file(profile)
    if file.path.exists():
        raise ProfileError(
            f"the profile in {profile.folder} has an administration already",
            cure="go on with mksearch admin credential",
        )
    seen = profile.highest_seen()
    access = None if seen is None else seen.manifest.access
    epoch = 1 if access is None else access.epoch + 1
    parameters, master = set_up(random)
    admin, member = random.bytes(KEY_BYTES), random.bytes(KEY_BYTES)
    fields = {
        "parameters": parameters.encode(),
        "alpha": master.alpha.reveal(),
        "verification": b"",
        "admin": admin,
        "member_secret": member,
        "epoch": epoch,
    }
    try:
        file.write(encode_cbor(fields), profile.passphrase, random)
    except OSError as error:
        raise not_writable(profile.folder, error) from None
    signing = SigningKey(SecretKey(admin))
    return Administration(parameters, master, signing, SecretKey(member), epoch)


def share_administration(
    profile: Profile, verification: VerificationKeys, random: RandomSource
) -> Administration:
    """Forget the authority's secret: the servers hold shares of it now.

    Raises:
        ProfileError: there is no administration, or the folder cannot be written.
    """
    content = read_administration(profile)
    if content is None:
        raise ProfileError(
            f"the profile in {profile.folder} has no administration", cure="run mksearch admin init"
        )
    fields = _fields_of(content) | {"alpha": b"", "verification": verification.encode()}
    content = encode_cbor(fields)
    try:
        _file(profile).write(content, profile.passphrase, random)
    except OSError as error:
        raise not_writable(profile.folder, error) from None
    return _decode(content)


def load_administration(profile: Profile) -> Administration | None:
    """Return the administration in an owner's profile, None if there is none.

    Raises:
        ProfileError: it is damaged, or its passphrase is another one.
    """
    content = read_administration(profile)
    if content is None:
        return None
    try:
        return _decode(content)
    except MksearchError as error:
        raise _file(profile).damaged(error) from None


def read_administration(profile: Profile) -> bytes | None:
    """Return the content of ``administration``, secret, for a backup; None if there is none.

    Raises:
        ProfileError: it is damaged, or its passphrase is another one.
    """
    file = _file(profile)
    try:
        return file.read(profile.passphrase)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProfileError(f"{file.path} cannot be read ({error.strerror})") from None


def restore_administration(profile: Profile, content: bytes, random: RandomSource) -> None:
    """Keep the administration of a backup in a recovered profile.

    Raises:
        FormatError, ParameterError: the content is not that of ``administration``.
        OSError: the folder cannot be written.
    """
    _decode(content)
    _file(profile).write(content, profile.passphrase, random)


def _fields_of(content: bytes) -> dict[str, Any]:
    what = "the keys of the administration"
    return require_map(decode_cbor(content, what), _FIELDS, what)


def _decode(content: bytes) -> Administration:
    fields = _fields_of(content)
    return Administration(
        PublicParameters.decode(fields["parameters"]),
        MasterKey(SecretKey(fields["alpha"])) if fields["alpha"] else None,
        SigningKey(SecretKey(fields["admin"])),
        SecretKey(fields["member_secret"]),
        fields["epoch"],
        fields["verification"],
    )


def start_epoch(profile: Profile, random: RandomSource) -> Administration:
    """Draw the member secret of the next epoch; the next version is sealed under it.

    Raises:
        ProfileError: there is no administration, or the folder cannot be written.
    """
    content = read_administration(profile)
    if content is None:
        raise ProfileError(
            f"the profile in {profile.folder} has no administration", cure="run mksearch admin init"
        )
    fields = _fields_of(content)
    fields |= {"epoch": fields["epoch"] + 1, "member_secret": random.bytes(KEY_BYTES)}
    content = encode_cbor(fields)
    try:
        _file(profile).write(content, profile.passphrase, random)
    except OSError as error:
        raise not_writable(profile.folder, error) from None
    return _decode(content)
