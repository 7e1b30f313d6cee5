"""A server's part of the shared authority: its challenges, its shares, the keys it issues.

docs/protocol.md, section 13.  Every partial key is made with randomness of this server alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mksearch.access.attributes import Attribute, key_labels
from mksearch.access.authority_messages import (
    PARTIAL_PURPOSE,
    EnrolRequest,
    TokenClaim,
    partial_key_message,
    token_attributes_message,
)
from mksearch.access.credential import SignedCredential, printed
from mksearch.access.issuing import issue_partial
from mksearch.crypto import labels
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.crypto.user_key import UserKey
from mksearch.errors import CredentialRefused, PolicyError, StorageError
from mksearch.index.manifest import Access
from mksearch_server.challenges import Challenges
from mksearch_server.shares import ShareKeeper
from mksearch_server.store import ObjectStore

__all__ = ["AuthorityKeeper", "EnrolMessage", "IssuedPartial", "TokenSource"]

#: Attributes that an error names, and characters of each.
_N_SHOWN, _SHOWN_CHARS = 4, 60


class TokenSource(Protocol):
    """Reads attributes off ID tokens."""

    def attributes(self, token: str, user: bytes) -> tuple[Attribute, ...]:
        """Return what a token says of a user; raise CredentialRefused for one that is not right."""


@dataclass(frozen=True, slots=True)
class EnrolMessage:
    """What a user shows to be enrolled; untrusted.

    Attributes:
        challenge: of this server.
        credential: body.
        credential_signature: of the administration.
        user_key: file.
        signature: of the user over the request.
        token: None without an ID token.
    """

    challenge: bytes
    credential: bytes
    credential_signature: bytes
    user_key: bytes
    signature: bytes
    token: TokenClaim | None = None


@dataclass(frozen=True, slots=True)
class IssuedPartial:
    """A partial key on its way to its user, or the attributes that it could have.

    Attributes:
        sealed: for the user alone; b"" where attributes were asked for.
        signature: of this server, 64 bytes.
        generation: of the share.
        attributes: as printed, where they were asked for.
    """

    sealed: bytes
    signature: bytes
    generation: int
    attributes: tuple[str, ...] = ()


class AuthorityKeeper:
    """Issues parts of keys of one collection's authority.

    Attributes:
        challenges: of this server.
        shares: of the authority.
    """

    def __init__(
        self,
        server: int,
        seed: SecretKey,
        store: ObjectStore,
        random: RandomSource,
        clock: Callable[[], float] = time.time,
        tokens: TokenSource | None = None,
    ) -> None:
        """Load the share, if there is one.

        Args:
            server: id of this server, from 1.
            seed: of the server's key.
            store: keeps the share, sealed under the seed.
            random: the operating system's.
            clock: Unix seconds.
            tokens: reads ID tokens; None for a server that takes none.

        Raises:
            StorageError: the stored share is damaged, or of another server's key.
        """
        self._server = server
        self._random = random
        self._clock = clock
        self._tokens = tokens
        self._signing = SigningKey(seed)
        self.challenges = Challenges(random, clock)
        self.shares = ShareKeeper(server, seed, store, self.challenges, random)

    def issue(
        self, access: Access | None, collection: bytes, message: EnrolMessage
    ) -> IssuedPartial:
        """Make this server's part of a user's key (steps 13.3 and 13.7).

        Args:
            access: of the active manifest.
            collection: 16 bytes.
            message: what the user shows.

        Raises:
            VerificationError: a challenge, signature or key is wrong.
            CredentialRefused: the credential is for elsewhere or somebody else, or has expired; or
                the token is not right.
            StorageError: this server has no share of the authority.
        """
        self.challenges.require(message.challenge)
        token = message.token
        if access is None:
            raise StorageError(
                "no version with an administration is served here",
                cure="the owner publishes or renews",
            )
        keys, parameters = access.verification_keys, access.parameters
        if keys is None:
            raise StorageError(
                "the version that is served here names no authority that servers share",
                cure="the owner publishes or renews",
            )
        share = self.shares.find(parameters.authority, keys.generation)
        signed, user = self._proved(access, collection, message)
        request = EnrolRequest(
            self._server, message.challenge, parameters.authority, access.epoch, signed.hash, token
        )
        request.verify(user.signing, message.signature)
        attributes = signed.credential.attributes
        if token is not None:
            attributes = self._with_token(attributes, token, user.id, access.epoch)
            texts = printed(attributes)
            if not token.attributes:
                said = token_attributes_message(request, texts)
                proof = self._signing.sign(labels.TOKEN_ATTRIBUTES, said)
                return IssuedPartial(b"", proof, share.generation, texts)
            _require_same(token.attributes, texts)
        partial = issue_partial(parameters, share, attributes, access.epoch, self._random)
        sealed = user.seal(PARTIAL_PURPOSE, request.hash, partial.encode())
        said = partial_key_message(request, sealed, share.generation)
        return IssuedPartial(sealed, self._signing.sign(labels.PARTIAL_KEY, said), share.generation)

    def _proved(
        self, access: Access, collection: bytes, message: EnrolMessage
    ) -> tuple[SignedCredential, UserKey]:
        """Return a credential and its user's key after the refusals of 13.3.2 and 13.3.3."""
        signed = SignedCredential.of_parts(
            message.credential, message.credential_signature, access.admin_key
        )
        user = UserKey.decode(message.user_key)
        signed.require_for(
            collection=collection,
            authority=access.parameters.authority,
            user=user.id,
            now_s=int(self._clock()),
        )
        if signed.credential.epoch != access.epoch:
            raise CredentialRefused(
                f"the credential is of epoch {signed.credential.epoch}, and this is {access.epoch}",
                cure="ask the admin for a new one",
            )
        return signed, user

    def _with_token(
        self, attributes: Sequence[Attribute], token: TokenClaim, user: bytes, epoch: int
    ) -> tuple[Attribute, ...]:
        """Return the attributes of a credential and of a token (13.7.8)."""
        if self._tokens is None:
            raise CredentialRefused(
                "this server takes no ID tokens",
                cure="enrol without one, or have its operator set [oidc] in server.toml",
            )
        together = (*attributes, *self._tokens.attributes(token.id_token, user))
        try:
            key_labels(together, epoch)
        except PolicyError as error:
            raise CredentialRefused(
                f"credential and ID token do not go together: {error.message}",
                cure="have the admin or the issuer correct what they say",
            ) from None
        return together


def _require_same(expected: Sequence[str], found: Sequence[str]) -> None:
    """Prove that a user expects what this server reads off the token (13.7.9)."""
    if tuple(expected) == tuple(found):
        return
    more, less = set(found) - set(expected), set(expected) - set(found)
    differences = [f"also {_shown(more)}"] * bool(more) + [f"not {_shown(less)}"] * bool(less)
    raise CredentialRefused(
        f"this server reads {' and '.join(differences) or 'the same in another order'} off "
        "credential and ID token, other than expected",
        cure="have the operators give [oidc.attributes] alike on all servers",
    )


def _shown(attributes: set[str]) -> str:
    """Return a few attributes, some of which a user typed, as one line can hold them."""
    first = sorted(attributes)[:_N_SHOWN]
    names = [name[:_SHOWN_CHARS] for name in first]
    names = [name if name.isprintable() else ascii(name)[:_SHOWN_CHARS] for name in names]
    rest = len(attributes) - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest else "")
