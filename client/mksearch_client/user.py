"""What a user does besides searching: make keys, enrol, and see who they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mksearch.access.attributes import parse_attribute
from mksearch.access.authority_messages import TokenClaim
from mksearch.access.credential import SignedCredential, printed
from mksearch.access.enrolment import open_credential
from mksearch.access.keys import AttributeKey
from mksearch.crypto.randomness import RandomSource, SystemRandom
from mksearch.errors import (
    AnswerRefused,
    CredentialRefused,
    ManifestRefused,
    NotEnoughAnswers,
    ParameterError,
    ProfileError,
)
from mksearch.index.manifest import SignedManifest
from mksearch_client.asking import Servers
from mksearch_client.authority_connection import AuthorityConnection
from mksearch_client.client_files import GivenFiles
from mksearch_client.profile_folder import ServerEntry, default_profile, read_passphrase
from mksearch_client.sharing import agree_on_token, collect_key
from mksearch_client.user_profile import Card, UserProfile
from mksearch_client.versions import newest_manifest

__all__ = ["User", "Whoami"]


@dataclass(frozen=True, slots=True)
class Whoami:
    """What a user's profile says.

    Attributes:
        profile: its folder.
        collection: hexadecimal.
        name: what the owner calls the collection.
        user: user id, hexadecimal.
        enrolled: whether there is a credential.
        attributes: of the credential.
        epoch: of the credential, 0 without one.
        expires_at: Unix seconds, 0 without one.
        expired: whether it has.
    """

    profile: str
    collection: str
    name: str
    user: str
    enrolled: bool
    attributes: tuple[str, ...] = ()
    epoch: int = 0
    expires_at: int = 0
    expired: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        return asdict(self)


class User:
    """A user with a profile.

    Attributes:
        profile: identity, card, credential.
    """

    def __init__(
        self,
        profile: UserProfile | Path | str | None = None,
        *,
        passphrase_file: Path | None = None,
        timeout_s: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open a profile.

        Args:
            profile: its folder, or the profile itself; None for the default folder.
            passphrase_file: holds the passphrase; None for what the environment names.
            timeout_s: seconds that one request to a server may take.
            clock: Unix seconds.

        Raises:
            ProfileError: there is no user's profile, it is damaged, or the passphrase is wrong.
        """
        if not isinstance(profile, UserProfile):
            folder = default_profile() if profile is None else Path(profile)
            profile = UserProfile.open(folder, read_passphrase(passphrase_file))
        self.profile = profile
        self._timeout_s = timeout_s
        self._clock = clock

    @classmethod
    def create(
        cls,
        folder: Path,
        card: Card | Path,
        *,
        passphrase: bytes | None = None,
        files: GivenFiles | None = None,
    ) -> User:
        """Make a profile from the owner's card; ``user-key`` in it is what the admin needs.

        Args:
            folder: of the profile.
            card: or its file.
            passphrase: seals the keys, or None.
            files: authorities and client certificate, for servers that want one.

        Raises:
            ParameterError, InputError: ``files`` are not what they should be.
            InputError: the card cannot be used.
            ProfileError: the folder holds something else, or cannot be written.
        """
        read = card if isinstance(card, Card) else Card.read(card)
        return cls(UserProfile.create(folder, read, SystemRandom(), passphrase, files))

    def enrol(
        self,
        data: bytes,
        *,
        id_token: str | None = None,
        attributes: Sequence[str] | None = None,
    ) -> SignedCredential:
        """Take a credential that the admin made for this user.

        Where the servers share the authority, t + 1 of them make the attribute key, each a part.
        With an ID token it is for the token's attributes as well, until the epoch ends or the
        credential expires.

        Args:
            data: the file; untrusted.
            id_token: of an OpenID Connect issuer that the servers know; the login has the user id,
                in hexadecimal, as its nonce.
            attributes: those that credential and token give together, such as ``role:analyst``;
                None takes what t + 1 servers read alike.

        Raises:
            VerificationError: damaged, or not signed by the administration that the card names.
            CredentialRefused: of another collection, user or epoch, or expired; or the servers
                refuse the token.
            ParameterError: a token, and the authority is not shared, or attributes without a token.
            PolicyError: one of ``attributes`` is none.
            NotEnoughAnswers: fewer than t + 1 servers made a part of the key.
            AnswerRefused: servers sent parts that cannot be right, and too few others remain.
            ProfileError: the folder cannot be written.
        """
        profile = self.profile
        signed = SignedCredential.decode(data, profile.card.admin_key)
        signed.require_for(
            collection=profile.collection,
            authority=profile.card.parameters.authority,
            user=profile.identity.public.id,
            now_s=int(self._clock()),
        )
        if attributes is not None and id_token is None:
            raise ParameterError("attributes are named without an ID token", cure="leave them out")
        random = SystemRandom()
        secrets = open_credential(signed, profile.identity, profile.card.parameters, random)
        key = None
        if secrets.attribute_key is None:
            token = None if id_token is None else TokenClaim(id_token.strip(), _texts(attributes))
            key = self._collect_key(signed, random, token)
        elif id_token is not None:
            raise ParameterError(
                "the servers do not share the authority, and read no ID tokens",
                cure="enrol without one, or have the owner share the authority",
            )
        profile.keep_credential(data, key)
        return signed

    def _collect_key(
        self, signed: SignedCredential, random: RandomSource, token: TokenClaim | None
    ) -> AttributeKey:
        """Have the servers make the attribute key of a credential."""
        profile, epoch = self.profile, signed.credential.epoch
        connections = {
            entry.id: AuthorityConnection(entry, random, self._timeout_s)
            for entry in profile.servers.values()
        }
        try:
            with ThreadPoolExecutor(len(connections), "servers") as pool:
                newest = self._newest(connections, random, pool)
                addresses = {entry.id: entry.address for entry in profile.servers.values()}
                access = newest.manifest.access
                keys = None if access is None else access.verification_keys
                if access is None or keys is None:
                    raise ManifestRefused(
                        f"version {newest.manifest.version} names no authority that servers share",
                        cure="the owner publishes or renews after mksearch admin init",
                    )
                if epoch != access.epoch:
                    raise CredentialRefused(
                        f"the credential is of epoch {epoch}, and the collection in {access.epoch}",
                        cure="ask the admin for a new one",
                    )
                parameters = profile.card.parameters
                if token is not None and not token.attributes:
                    token = agree_on_token(
                        Servers(connections, addresses, pool),
                        signed,
                        profile.identity,
                        parameters,
                        keys.quorum.threshold,
                        token.id_token,
                    )
                return collect_key(
                    Servers(connections, addresses, pool),
                    signed,
                    profile.identity,
                    parameters,
                    keys,
                    random,
                    token,
                )
        finally:
            for connection in connections.values():
                connection.close()

    def _newest(
        self,
        connections: dict[int, AuthorityConnection],
        random: RandomSource,
        pool: ThreadPoolExecutor,
    ) -> SignedManifest:
        """Return the newest version; ``connections`` lead to the servers that it names (15.2)."""
        profile = self.profile
        while True:
            shown: list[SignedManifest] = []
            addresses = {entry.id: entry.address for entry in profile.servers.values()}
            newest = None
            try:
                newest = newest_manifest(
                    Servers(connections, addresses, pool),
                    owner_key=profile.owner_key,
                    collection=profile.collection,
                    quorum=profile.quorum,
                    seen=profile.highest_seen(),
                    on_rivals=profile.keep_equivocation,
                    on_shown=shown.append,
                )
            except (NotEnoughAnswers, AnswerRefused):
                named = max(shown, key=lambda one: one.manifest.version, default=None)
                if named is None or not profile.follow(named.manifest):
                    raise
            if newest is not None:
                profile.follow(newest.manifest)
            _dial_others(connections, profile.servers, random, self._timeout_s)
            if newest is not None:
                return newest

    def whoami(self) -> Whoami:
        """Say who this profile is and what it may.

        Raises:
            ProfileError: the credential is damaged.
        """
        profile = self.profile
        names = (
            str(profile.folder),
            profile.collection.hex(),
            profile.name,
            profile.identity.public.id.hex(),
        )
        try:
            credential = profile.credential().credential
        except ProfileError:
            if (profile.folder / "credential").exists():
                raise
            return Whoami(*names, enrolled=False)
        return Whoami(
            *names,
            enrolled=True,
            attributes=tuple(map(str, credential.attributes)),
            epoch=credential.epoch,
            expires_at=credential.expires_at,
            expired=self._clock() > credential.expires_at,
        )


def _dial_others(
    connections: dict[int, AuthorityConnection],
    servers: Mapping[int, ServerEntry],
    random: RandomSource,
    timeout_s: float,
) -> None:
    """Dial the servers that a version names and nobody has dialled."""
    for server, entry in servers.items():
        held = connections.get(server)
        if held is not None and held.entry == entry:
            continue
        if held is not None:
            held.close()
        connections[server] = AuthorityConnection(entry, random, timeout_s)


def _texts(attributes: Sequence[str] | None) -> tuple[str, ...]:
    """Return attributes as they are printed; none of them asks the servers."""
    return printed(map(parse_attribute, attributes or ()))
