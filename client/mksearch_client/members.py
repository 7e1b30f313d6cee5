"""Who was admitted to a collection: the administration's own list, on disk.

``credentials.json`` in the owner's profile holds what was issued, and the members as they are now:
the next epoch's credentials are made from these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mksearch.errors import ProfileError
from mksearch_client.profile_folder import not_writable, write_file

__all__ = ["IssuedCredential", "Member", "Members"]

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class IssuedCredential:
    """What the administration remembers of a credential.

    Attributes:
        serial: 16 bytes, hexadecimal.
        user: user id, hexadecimal.
        attributes: as printed.
        epoch: generation of the keys.
        issued_at: Unix seconds.
        expires_at: Unix seconds.
    """

    serial: str
    user: str
    attributes: tuple[str, ...]
    epoch: int
    issued_at: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class Member:
    """Somebody who may have a credential of the next epoch.

    Attributes:
        user_key: file, hexadecimal.
        attributes: as printed.
        expires_at: Unix seconds.
    """

    user_key: str
    attributes: tuple[str, ...]
    expires_at: int


@dataclass(frozen=True, slots=True)
class Members:
    """The list.

    Attributes:
        issued: credentials, oldest first.
        members: by user id, hexadecimal.
        revoked: ids that were members once, hexadecimal.
        needs_epoch: whether somebody was revoked since the epoch began.
    """

    issued: tuple[IssuedCredential, ...] = ()
    members: Mapping[str, Member] = field(default_factory=dict)
    revoked: tuple[str, ...] = ()
    needs_epoch: bool = False

    @classmethod
    def load(cls, folder: Path) -> Members:
        """Read the list in an owner's profile; an empty one if there is none.

        Raises:
            ProfileError: the file is damaged.
        """
        path = folder / "credentials.json"
        try:
            fields: dict[str, Any] = json.loads(path.read_text())
            if fields["format"] != _FORMAT:
                raise ProfileError(f"{path} is of another format", cure="upgrade mksearch")
            return cls(
                tuple(IssuedCredential(**_tupled(entry)) for entry in fields["credentials"]),
                {user: Member(**_tupled(entry)) for user, entry in fields["members"].items()},
                tuple(fields["revoked"]),
                bool(fields["needs_epoch"]),
            )
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProfileError(
                f"{path} is damaged ({type(error).__name__})", cure="restore it from a backup"
            ) from None

    def save(self, folder: Path) -> None:
        """Write the list at once.

        Raises:
            ProfileError: it cannot be written.
        """
        fields = {
            "format": _FORMAT,
            "credentials": [asdict(one) for one in self.issued],
            "members": {user: asdict(member) for user, member in self.members.items()},
            "revoked": list(self.revoked),
            "needs_epoch": self.needs_epoch,
        }
        try:
            write_file(folder / "credentials.json", json.dumps(fields, indent=1).encode())
        except OSError as error:
            raise not_writable(folder, error) from None

    def with_issued(self, issued: IssuedCredential, member: Member) -> Members:
        """Return the list with one more credential, whose holder is a member now."""
        revoked = tuple(user for user in self.revoked if user != issued.user)
        members = {**self.members, issued.user: member}
        return replace(self, issued=(*self.issued, issued), members=members, revoked=revoked)

    def without_user(self, user: str) -> Members:
        """Return the list without a member; their credential dies with the epoch."""
        members = {name: member for name, member in self.members.items() if name != user}
        return replace(self, members=members, revoked=(*self.revoked, user), needs_epoch=True)

    def without_attribute(self, attribute: str) -> Members:
        """Return the list with an attribute taken from everybody; who has no other goes."""
        members, revoked = {}, list(self.revoked)
        for user, member in self.members.items():
            left = tuple(a for a in member.attributes if a != attribute)
            if left:
                members[user] = replace(member, attributes=left)
            else:
                revoked.append(user)
        return replace(self, members=members, revoked=tuple(revoked), needs_epoch=True)

    def in_new_epoch(self, issued: tuple[IssuedCredential, ...]) -> Members:
        """Return the list at the start of an epoch, with the credentials made for it."""
        return replace(self, issued=(*self.issued, *issued), needs_epoch=False)


def _tupled(entry: dict[str, Any]) -> dict[str, Any]:
    return entry | {"attributes": tuple(entry["attributes"])}
