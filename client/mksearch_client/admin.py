"""What the administration of a collection does: admit users, and remember whom."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mksearch.access.attributes import Attribute, parse_attribute
from mksearch.access.credential import SignedCredential
from mksearch.access.keys import VerificationKeys
from mksearch.crypto.randomness import SystemRandom
from mksearch.crypto.user_key import UserKey
from mksearch.errors import InputError, ParameterError, ProfileError
from mksearch_client.administration import (
    Administration,
    create_administration,
    load_administration,
    share_administration,
)
from mksearch_client.credentials import make_credential, remembered
from mksearch_client.members import IssuedCredential, Member, Members
from mksearch_client.profile import Profile, open_profile
from mksearch_client.share_care import refresh_shares, repair_share
from mksearch_client.sharing import deal_to_servers

__all__ = ["Admin"]

#: Longest life of a credential, seconds: ten years.
LIFE_S_MAX = 10 * 366 * 86_400


class Admin:
    """The administration in an owner's profile.

    Attributes:
        profile: the owner's.
    """

    def __init__(
        self,
        profile: Profile | Path | str | None = None,
        *,
        passphrase_file: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the administration.

        Args:
            profile: the owner's folder, or the profile itself; None for the default folder.
            passphrase_file: holds the passphrase; None for what the environment names.
            clock: Unix seconds.

        Raises:
            ProfileError: there is no profile, or it has no administration.
        """
        self.profile = open_profile(profile, passphrase_file)
        self._clock = clock
        self._random = SystemRandom()
        self._keys = self._load()

    def _load(self) -> Administration:
        found = load_administration(self.profile)
        if found is None:
            raise ProfileError(
                f"the profile in {self.profile.folder} has no administration",
                cure="run mksearch admin init",
            )
        return found

    def _follow(self) -> None:
        """Go on with the keys of a later epoch, or a dealing, that came since these were read."""
        stored = self._load()
        if stored.epoch > self._keys.epoch or stored.verification != self._keys.verification:
            self._keys = stored

    @classmethod
    def create(
        cls,
        profile: Profile | Path | str | None = None,
        *,
        passphrase_file: Path | None = None,
        is_offline: bool = True,
    ) -> Admin:
        """Make the administration of a collection; the next publish or renew tells the servers.

        Args:
            profile: the owner's folder, or the profile itself; None for the default folder.
            passphrase_file: holds the passphrase; None for what the environment names.
            is_offline: False takes one that was made and not `share`d yet as well.

        Raises:
            ProfileError: there is no owner's profile, or it has an administration already.
        """
        opened = open_profile(profile, passphrase_file)
        with opened.locked():
            found = load_administration(opened)
            if found is None or found.master is None or is_offline:
                create_administration(opened, SystemRandom())
        return cls(opened)

    @property
    def is_shared(self) -> bool:
        """Whether the servers share the authority, and issue keys in parts."""
        return self._keys.master is None

    def share(self, *, timeout_s: float = 10.0) -> None:
        """Share the authority over the servers and forget its secret here.

        Every server must take its share; the next publish or renew tells users of it.  May be
        called again when it was interrupted.

        Raises:
            ParameterError: the servers share it already.
            NotEnoughAnswers: a server did not take its share; the secret stays here.
            ProfileError: the folder cannot be written.
        """
        with self.profile.locked():
            self._follow()
            master = self._keys.master
            if master is None:
                raise ParameterError(
                    "the servers share the authority already", cure="refresh with owner rotate"
                )
            verification = deal_to_servers(
                self.profile, self._keys.parameters, master, self._random, timeout_s=timeout_s
            )
            self._keys = share_administration(self.profile, verification, self._random)

    def refresh(self, *, timeout_s: float = 10.0) -> None:
        """Have every server exchange its share of the authority for another of the same secret.

        Keys of users stay good.  The next publish or renew puts the new shares into use, and the
        servers erase the old ones then.  May be called again when it was interrupted.

        Args:
            timeout_s: seconds that one request to a server may take.

        Raises:
            ParameterError: the servers do not share the authority yet.
            NotEnoughAnswers: a server did not take part; the old shares stay in use.
            ManifestRefused: the newest version does not name the shared authority.
            ProfileError: the folder cannot be written.
        """
        with self.profile.locked():
            verification = refresh_shares(
                self.profile,
                self._keys.parameters,
                self._shared_keys(),
                self._random,
                timeout_s=timeout_s,
            )
            self._keys = share_administration(self.profile, verification, self._random)

    def repair(self, server: int, *, timeout_s: float = 10.0) -> int:
        """Have t + 1 servers restore the share that another lost; return its generation.

        Args:
            server: the one that lost its share.
            timeout_s: seconds that one request to a server may take.

        Raises:
            ParameterError: the servers do not share the authority yet, there is no such server, or
                a refresh waits for the next version.
            NotEnoughAnswers: the server, or fewer than t + 1 others, did not take part.
            ManifestRefused: the newest version does not name the shared authority.
            ServerRefused: the server does not take what the others sent.
        """
        with self.profile.locked():
            return repair_share(
                self.profile,
                self._keys.parameters,
                self._shared_keys(),
                server,
                self._random,
                timeout_s=timeout_s,
            )

    def _shared_keys(self) -> VerificationKeys:
        self._follow()
        if self._keys.master is not None:
            raise ParameterError(
                "the servers do not share the authority yet", cure="share it first"
            )
        return VerificationKeys.decode(self._keys.verification)

    @property
    def authority(self) -> bytes:
        """Id of the authority, 32 bytes."""
        return self._keys.parameters.authority

    @property
    def key(self) -> bytes:
        """Ed25519 public key that signs credentials, 32 bytes."""
        return self._keys.signing.public

    @property
    def epoch(self) -> int:
        """Generation of the keys."""
        self._follow()
        return self._keys.epoch

    def issue(
        self, user: UserKey, attributes: Sequence[str | Attribute], *, life_s: int
    ) -> SignedCredential:
        """Make a credential for the holder of ``user``.

        Args:
            user: public keys of the user.
            attributes: such as ``role:analyst``, ``clearance:3``.
            life_s: seconds until it expires, 1 s to ten years.

        Raises:
            PolicyError: an attribute does not parse, or no key can have these together.
            ParameterError: no attribute, or a life out of range.
            ProfileError: the list of credentials cannot be written.
        """
        if not 1 <= life_s <= LIFE_S_MAX:
            raise ParameterError(
                f"a credential for {life_s} s is not in 1..{LIFE_S_MAX}", cure="30d is usual"
            )
        parsed = tuple(parse_attribute(a) if isinstance(a, str) else a for a in attributes)
        now_s = int(self._clock())
        with self.profile.locked():
            # A revocation or a publish of another command may have begun an epoch.
            self._follow()
            signed = make_credential(
                self.profile, self._keys, user, parsed, (now_s, now_s + life_s), self._random
            )
            issued = remembered(signed.credential)
            member = Member(user.encode().hex(), issued.attributes, issued.expires_at)
            folder = self.profile.folder
            Members.load(folder).with_issued(issued, member).save(folder)
        return signed

    def revoke(self, *, users: Sequence[str] = (), attributes: Sequence[str] = ()) -> Members:
        """Strike users, or attributes of everybody, off the list; the next version acts on it.

        `Owner.renew` (or a publish) starts the next epoch: from then on servers refuse the old one.

        Args:
            users: user ids, hexadecimal; the first characters of one suffice.
            attributes: such as ``role:analyst``.

        Raises:
            InputError: nobody has such an id or attribute.
            PolicyError: an attribute does not parse.
            ProfileError: the list is damaged or cannot be written.
        """
        with self.profile.locked():
            members = Members.load(self.profile.folder)
            for user in users:
                if not _is_revoked(members, user):
                    members = members.without_user(_only_member(members, user))
            for attribute in attributes:
                printed = str(parse_attribute(attribute))
                if all(printed not in member.attributes for member in members.members.values()):
                    raise InputError(
                        f"no member has the attribute {printed}",
                        cure="mksearch admin list shows the members and their attributes",
                    )
                members = members.without_attribute(printed)
            members.save(self.profile.folder)
        return members

    def members(self) -> Members:
        """Return the list of members and of what was issued.

        Raises:
            ProfileError: the list is damaged.
        """
        return Members.load(self.profile.folder)

    def issued(self) -> list[IssuedCredential]:
        """Return what was issued, oldest first.

        Raises:
            ProfileError: the list is damaged.
        """
        return list(Members.load(self.profile.folder).issued)


def _is_revoked(members: Members, prefix: str) -> bool:
    """Tell whether a revocation that is asked for was noted before, and need only be sent."""
    return bool(prefix) and any(user.startswith(prefix.lower()) for user in members.revoked)


def _only_member(members: Members, prefix: str) -> str:
    found = [user for user in members.members if prefix and user.startswith(prefix.lower())]
    if len(found) != 1:
        raise InputError(
            f"{len(found)} members have a user id that begins with {prefix!r} (need 1)",
            cure="mksearch admin list shows the ids",
        )
    return found[0]
