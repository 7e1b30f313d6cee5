"""What a holder of a share of somebody's backup does."""

from __future__ import annotations

from pathlib import Path

from mksearch.access.backup_share import OpenedShare, SealedShare
from mksearch.errors import VerificationError
from mksearch_client.user_profile import UserProfile, open_identity

__all__ = ["open_share"]


def open_share(data: bytes, folder: Path, passphrase: bytes | None = None) -> OpenedShare:
    """Open a share with the keys in a user's folder, of a collection or of none.

    Args:
        data: the file; untrusted.
        folder: of the profile, or of keys alone.
        passphrase: of the keys, or None.

    Raises:
        NotQualified: the share is another person's.
        VerificationError: it is damaged, or another owner's than the card says.
        ProfileError: there are no keys of a user, they are damaged, or the passphrase is wrong.
    """
    share = SealedShare.decode(data)
    identity = open_identity(folder, passphrase)
    if (folder / "profile.json").exists():
        _require_own_owner(share, UserProfile.open(folder, passphrase))
    return share.open(identity)


def _require_own_owner(share: SealedShare, profile: UserProfile) -> None:
    """Refuse a share that names this profile's collection and somebody else as its owner."""
    body = share.body
    if body.collection == profile.collection and body.owner_key != profile.owner_key:
        raise VerificationError(
            f"the share is signed by key {body.owner_key.hex()[:16]}, and the card of the "
            f"collection names owner {profile.owner_key.hex()[:16]}"
        )
