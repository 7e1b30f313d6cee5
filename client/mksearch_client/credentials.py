"""Make credentials: one when a user is admitted, all of them anew when an epoch begins."""

from __future__ import annotations

from collections.abc import Iterable

from mksearch.access.attributes import Attribute, key_labels, parse_attribute
from mksearch.access.cpabe import generate_key
from mksearch.access.credential import SERIAL_BYTES, Credential, SignedCredential
from mksearch.access.credential_list import encode_credentials
from mksearch.access.enrolment import CredentialSecrets, issue_credential
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.user_key import UserKey
from mksearch.errors import ProfileError
from mksearch.index.manifest import Manifest
from mksearch_client.administration import Administration, start_epoch
from mksearch_client.members import IssuedCredential, Members
from mksearch_client.profile import Profile

__all__ = [
    "begin_epoch_if_needed",
    "make_credential",
    "make_list",
    "remembered",
    "require_up_to_date",
]


def make_credential(
    profile: Profile,
    administration: Administration,
    user: UserKey,
    attributes: Iterable[Attribute],
    valid_s: tuple[int, int],
    random: RandomSource,
) -> SignedCredential:
    """Sign a credential of the administration's epoch and seal its secrets to ``user``.

    Args:
        profile: of the owner.
        administration: of the collection.
        user: public keys of the user.
        attributes: at least one.
        valid_s: from when to when, Unix seconds.
        random: source of the serial, and of the attribute key where it is made here.

    Raises:
        PolicyError: no key can have these attributes together.
        ParameterError: no attribute, or times out of range.
    """
    credential = Credential(
        profile.collection,
        administration.parameters.authority,
        administration.epoch,
        random.bytes(SERIAL_BYTES),
        user.id,
        tuple(attributes),
        *valid_s,
    )
    key_labels(credential.attributes, administration.epoch)
    key = None
    if administration.master is not None:
        key = generate_key(
            administration.parameters,
            administration.master,
            credential.attributes,
            administration.epoch,
            random,
        )
    secrets = CredentialSecrets(administration.member_secret, key)
    return issue_credential(credential, user, secrets, administration.signing)


def remembered(credential: Credential) -> IssuedCredential:
    """Return what the administration remembers of a credential."""
    return IssuedCredential(
        credential.serial.hex(),
        credential.user.hex(),
        tuple(map(str, credential.attributes)),
        credential.epoch,
        credential.issued_at,
        credential.expires_at,
    )


def begin_epoch_if_needed(
    profile: Profile, administration: Administration | None, random: RandomSource
) -> Administration | None:
    """Start the next epoch if somebody was revoked in this one; return the administration.

    Raises:
        ProfileError: the list is damaged, or the folder cannot be written.
    """
    if administration is None:
        return None
    members = Members.load(profile.folder)
    if members.needs_epoch:
        administration = start_epoch(profile, random)
        members.in_new_epoch(()).save(profile.folder)
    return administration


def require_up_to_date(manifest: Manifest, administration: Administration | None) -> None:
    """Prove that a profile is not behind the version that servers hold.

    Raises:
        ProfileError: its administration is missing, another one, or of an older epoch.
    """
    access = manifest.access
    if access is None:
        return
    if administration is None:
        why = "has no administration"
    elif administration.access.authority != access.authority:
        if administration.epoch > access.epoch:
            return
        why = "has the administration of another authority"
    elif access.verification and not administration.verification:
        why = "is from before the servers shared the authority"
    elif administration.epoch < access.epoch:
        why = f"is in epoch {administration.epoch}"
    else:
        return
    raise ProfileError(
        f"this profile {why}, and version {manifest.version} on the servers is of epoch "
        f"{access.epoch}: it is an old copy",
        cure="publish from the current profile, or recover one from a newer backup",
    )


def make_list(
    profile: Profile, administration: Administration, now_s: int, random: RandomSource
) -> bytes:
    """Make the credentials of all members for the administration's epoch: the object to publish.

    Raises:
        ProfileError: the list of members is damaged, or cannot be written.
    """
    members = Members.load(profile.folder)
    files, issued = {}, []
    for user, member in members.members.items():
        if member.expires_at <= now_s:
            continue
        signed = make_credential(
            profile,
            administration,
            UserKey.decode(bytes.fromhex(member.user_key)),
            map(parse_attribute, member.attributes),
            (now_s, member.expires_at),
            random,
        )
        files[bytes.fromhex(user)] = signed.encode()
        issued.append(remembered(signed.credential))
    members.in_new_epoch(tuple(issued)).save(profile.folder)
    return encode_credentials(files)
