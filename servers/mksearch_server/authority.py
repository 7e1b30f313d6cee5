"""A server's part of the shared authority: its share, its challenges, the keys it issues.

docs/protocol.md, section 13.  Every partial key is made with randomness of this server alone.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass

from mksearch.access.authority_messages import (
    CHALLENGE_BYTES,
    PARTIAL_PURPOSE,
    SHARE_PURPOSE,
    EnrolRequest,
    SignedShareOrder,
    partial_key_message,
)
from mksearch.access.credential import SignedCredential
from mksearch.access.issuing import issue_partial
from mksearch.access.keys import AuthorityShare, PublicParameters
from mksearch.codec import decode_cbor, encode_cbor, require_map
from mksearch.crypto import labels
from mksearch.crypto.aead import Aead
from mksearch.crypto.identity import Identity
from mksearch.crypto.kdf import derive, keyed_hash_sha256
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.crypto.user_key import UserKey
from mksearch.errors import CredentialRefused, MksearchError, StorageError, VerificationError
from mksearch.index.manifest import Access
from mksearch.params import KEY_BYTES
from mksearch_server.store import ObjectStore

__all__ = ["AuthorityKeeper", "Challenges", "IssuedPartial"]

#: Seconds that a challenge is good for.
CHALLENGE_S = 120
_STATE = "authority"
_STATE_FIELDS: dict[str, type] = {"parameters": bytes, "nonce": bytes, "sealed": bytes}
_MAC_BYTES = 16
_NONCE_BYTES = 12


class Challenges:
    """Makes challenges and knows them again, without keeping any."""

    def __init__(self, random: RandomSource, clock: Callable[[], float] = time.time) -> None:
        self._random = random
        self._clock = clock
        self._key = SecretKey(random.bytes(KEY_BYTES))

    def make(self) -> bytes:
        """Return a new challenge: 32 bytes."""
        head = int(self._clock()).to_bytes(8, "big") + self._random.bytes(8)
        return head + self._mac(head)

    def require(self, challenge: bytes) -> None:
        """Prove that a challenge was made here and is current.

        Raises:
            VerificationError: it was not, or is not.
        """
        head, mac = challenge[:-_MAC_BYTES], challenge[-_MAC_BYTES:]
        if len(challenge) != CHALLENGE_BYTES or not hmac.compare_digest(mac, self._mac(head)):
            raise VerificationError(
                "the challenge was not made by this server", cure="ask it for one and try again"
            )
        age_s = int(self._clock()) - int.from_bytes(head[:8], "big")
        if not 0 <= age_s <= CHALLENGE_S:
            raise VerificationError(
                f"the challenge is {age_s} s old (at most {CHALLENGE_S})", cure="ask for a new one"
            )

    def _mac(self, head: bytes) -> bytes:
        return keyed_hash_sha256(self._key, head)[:_MAC_BYTES]


@dataclass(frozen=True, slots=True)
class IssuedPartial:
    """A partial key on its way to its user.

    Attributes:
        sealed: for the user alone.
        signature: of this server, 64 bytes.
        generation: of the share.
    """

    sealed: bytes
    signature: bytes
    generation: int


class AuthorityKeeper:
    """Holds one server's share of the authority of one collection.

    Attributes:
        challenges: of this server.
        sealing: identity that shares are sealed to.
    """

    def __init__(
        self,
        server: int,
        seed: SecretKey,
        store: ObjectStore,
        random: RandomSource,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Load the share, if there is one.

        Args:
            server: id of this server, from 1.
            seed: of the server's key.
            store: keeps the share, sealed under the seed.
            random: the operating system's.
            clock: Unix seconds.

        Raises:
            StorageError: the stored share is damaged, or of another server's key.
        """
        self._server = server
        self._seed = seed
        self._store = store
        self._random = random
        self._clock = clock
        self._signing = SigningKey(seed)
        self.sealing = Identity(derive(seed, labels.SERVER_SEAL))
        self.challenges = Challenges(random, clock)
        self._parameters: PublicParameters | None = None
        self._share: AuthorityShare | None = None
        self._load()

    @property
    def generation(self) -> int:
        """Generation of the share, 0 without one."""
        return 0 if self._share is None else self._share.generation

    # --- the share

    def install(
        self, body: bytes, signature: bytes, sealed: bytes, owner_key: bytes, collection: bytes
    ) -> int:
        """Take a share that the owner hands out; return its generation.

        Args:
            body: of the order; untrusted.
            signature: of the owner.
            sealed: the share.
            owner_key: pinned, 32 bytes.
            collection: pinned, 16 bytes.

        Raises:
            VerificationError: any of the refusals of step 13.2.2.
            StorageError: it cannot be stored.
        """
        signed = SignedShareOrder.decode(body, signature, owner_key)
        order = signed.order
        if (order.collection, order.server) != (collection, self._server):
            raise VerificationError(
                f"an order with the share of server {order.server} came to server {self._server}"
            )
        self.challenges.require(order.challenge)
        opened = self.sealing.open(SHARE_PURPOSE, signed.hash, sealed, "a share of the authority")
        share = AuthorityShare.decode(opened)
        signed.require_share(share)
        held = self._share
        if (
            held is not None
            and held.authority == share.authority
            and share.generation <= held.generation
        ):
            raise VerificationError(
                f"a share of generation {share.generation} came after one of {held.generation}"
            )
        self._keep(order.parameters, share)
        return share.generation

    def _keep(self, parameters: PublicParameters, share: AuthorityShare) -> None:
        nonce = self._random.bytes(_NONCE_BYTES)
        sealed = self._aead(parameters).seal(nonce, share.encode(), parameters.authority)
        fields = {"parameters": parameters.encode(), "nonce": nonce, "sealed": sealed}
        self._store.write_state(_STATE, encode_cbor(fields))
        self._parameters, self._share = parameters, share

    def _load(self) -> None:
        data = self._store.read_state(_STATE)
        if data is None:
            return
        what = "the share of the authority"
        try:
            fields = require_map(decode_cbor(data, what), _STATE_FIELDS, what)
            parameters = PublicParameters.decode(fields["parameters"])
            aead = self._aead(parameters)
            opened = aead.open(fields["nonce"], fields["sealed"], parameters.authority, what)
            self._parameters, self._share = parameters, AuthorityShare.decode(opened)
        except MksearchError as error:
            raise StorageError(
                f"{what} in this store is damaged, or of another server's key: {error.message}",
                cure="restore server-key and store from one backup, or have the authority dealt "
                "again",
            ) from None

    def _aead(self, parameters: PublicParameters) -> Aead:
        return Aead(derive(self._seed, labels.SHARE_STORE, parameters.authority))

    # --- enrolment

    def issue(
        self,
        access: Access | None,
        collection: bytes,
        challenge: bytes,
        credential: tuple[bytes, bytes],
        user_key: bytes,
        signature: bytes,
    ) -> IssuedPartial:
        """Make this server's part of a user's key (step 13.3).

        Args:
            access: of the active manifest.
            collection: 16 bytes.
            challenge: as it came; untrusted, like all that follows.
            credential: body and signature.
            user_key: file.
            signature: of the user over the request.

        Raises:
            VerificationError: a challenge, signature or key is wrong.
            CredentialRefused: the credential is for elsewhere or somebody else, or has expired.
            StorageError: this server has no share of the authority.
        """
        self.challenges.require(challenge)
        if access is None:
            raise StorageError(
                "no version with an administration is served here",
                cure="the owner publishes or renews",
            )
        share, parameters = self._share, self._parameters
        if share is None or parameters is None or parameters != access.parameters:
            raise StorageError(
                "this server has no share of the collection's authority",
                cure="ask another server; the owner deals the authority again",
            )
        signed = SignedCredential.of_parts(*credential, access.admin_key)
        user = UserKey.decode(user_key)
        signed.require_for(
            collection=collection,
            authority=parameters.authority,
            user=user.id,
            now_s=int(self._clock()),
        )
        if signed.credential.epoch != access.epoch:
            raise CredentialRefused(
                f"the credential is of epoch {signed.credential.epoch}, and this is {access.epoch}",
                cure="ask the admin for a new one",
            )
        request = EnrolRequest(
            self._server, challenge, parameters.authority, access.epoch, signed.hash
        )
        request.verify(user.signing, signature)
        partial = issue_partial(
            parameters, share, signed.credential.attributes, access.epoch, self._random
        )
        sealed = user.seal(PARTIAL_PURPOSE, request.hash, partial.encode())
        said = partial_key_message(request, sealed, share.generation)
        return IssuedPartial(sealed, self._signing.sign(labels.PARTIAL_KEY, said), share.generation)
