"""The shares of the authority that a server holds: taken, refreshed, repaired, erased.

docs/protocol.md, 13.2 and 13.6.  Between an order of the owner and the version that names it a
server holds up to three: the one in use, the one that was refreshed, and what came out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from mksearch.access.authority_messages import SHARE_PURPOSE, ShareOrder
from mksearch.access.keys import AuthorityShare, PublicParameters
from mksearch.access.orders import Order, SignedOrder
from mksearch.access.refresh_messages import (
    MASK_PURPOSE,
    PART_PURPOSE,
    REFRESH_PURPOSE,
    HelpOrder,
    RefreshOrder,
    RepairOrder,
    part_context,
    part_message,
)
from mksearch.access.share_keeping import masked, read_scalar, refreshed, repaired
from mksearch.codec import decode_cbor, encode_cbor, require_map
from mksearch.crypto import labels
from mksearch.crypto.aead import Aead
from mksearch.crypto.identity import Identity
from mksearch.crypto.kdf import derive, derive_from_both
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.errors import MksearchError, StorageError, VerificationError
from mksearch.index.manifest import Access
from mksearch_server.challenges import Challenges
from mksearch_server.erasable import ErasableKeys
from mksearch_server.identity import Claim
from mksearch_server.store import ObjectStore

__all__ = ["SHARE_STATE", "ShareKeeper"]

SHARE_STATE = "authority"
_STATE_FIELDS: dict[str, type] = {
    "parameters": bytes,
    "key": bytes,
    "nonce": bytes,
    "sealed": bytes,
}
#: Holds the keys of this state, which are overwritten when it changes.
_KEYS_NAME = "share-keys"
_Kind = TypeVar("_Kind", bound=Order)
_NONCE_BYTES = 12
#: Size of a share's file.
_SHARE_BYTES = 85


class ShareKeeper:
    """Holds one server's shares of the authority of one collection.

    Shares change on one thread; keys are issued on others, which see the old ones or the new.

    Attributes:
        sealing: identity that shares are sealed to.
        parameters: of the authority, None without a share.
    """

    def __init__(
        self,
        server: int,
        seed: SecretKey,
        store: ObjectStore,
        challenges: Challenges,
        random: RandomSource,
    ) -> None:
        """Load the shares, if there are any.

        Args:
            server: id of this server, from 1.
            seed: of the server's key.
            store: keeps the shares, sealed under the seed.
            challenges: of this server.
            random: the operating system's.

        Raises:
            StorageError: the stored shares are damaged, or of another server's key.
        """
        self._server = server
        self._seed = seed
        self._store = store
        self._challenges = challenges
        self._random = random
        self._signing = SigningKey(seed)
        self.sealing = Identity(derive(seed, labels.SERVER_SEAL))
        self.parameters: PublicParameters | None = None
        self._shares: tuple[AuthorityShare, ...] = ()
        self._in_use = 0
        self._keys = ErasableKeys(store.folder / _KEYS_NAME, random)
        self._key = b""
        self._load()

    @property
    def generation(self) -> int:
        """Generation of the newest share, 0 without one."""
        return self._shares[-1].generation if self._shares else 0

    @property
    def n_held(self) -> int:
        """Shares that are held."""
        return len(self._shares)

    def find(self, authority: bytes, generation: int) -> AuthorityShare:
        """Return the share of a generation.

        Raises:
            StorageError: it is not here.
        """
        for share in self._shares:
            if (share.authority, share.generation) == (authority, generation):
                return share
        raise StorageError(
            f"this server holds no share of generation {generation} of the authority",
            cure="ask another server; the owner repairs this one's share",
        )

    def follow(self, access: Access | None) -> None:
        """Erase the shares that a version which is active now has left behind (13.6.3).

        Args:
            access: of the active manifest.

        Raises:
            StorageError: what remains cannot be stored.
        """
        keys = None if access is None else access.verification_keys
        parameters = self.parameters
        if keys is None or parameters is None or keys.authority != parameters.authority:
            return
        self._in_use = keys.generation
        # A server that lacks the share in use was restored, or the owner named a generation that
        # was given up: what it has stays until its share is repaired.
        holds_it = any(share.generation == keys.generation for share in self._shares)
        remaining = tuple(s for s in self._shares if s.generation >= keys.generation)
        if holds_it and remaining != self._shares:
            self._keep(parameters, remaining)

    # --- orders of the owner

    def install(self, body: bytes, signature: bytes, sealed: bytes, claim: Claim) -> int:
        """Take a share that the owner hands out; return its generation.

        Args:
            body: of the order; untrusted.
            signature: of the owner.
            sealed: the share.
            claim: pinned owner and collection.

        Raises:
            VerificationError: any of the refusals of step 13.2.2.
            StorageError: it cannot be stored.
        """
        signed = self._order(ShareOrder, body, signature, claim)
        order = signed.order
        opened = self.sealing.open(SHARE_PURPOSE, signed.hash, sealed, "a share of the authority")
        share = AuthorityShare.decode(opened)
        order.require_share(share)
        self._require_newer(share.authority, share.generation)
        self._take(order.parameters, share, base=0)
        return share.generation

    def refresh(self, body: bytes, signature: bytes, sealed: bytes, claim: Claim) -> int:
        """Add a part of zero to a share (13.6.1); return the new generation.

        Args:
            body: of the order; untrusted.
            signature: of the owner.
            sealed: the part of zero.
            claim: pinned owner and collection.

        Raises:
            VerificationError: any of the refusals of step 13.6.2.
            StorageError: the share to refresh is not here, or the new one cannot be stored.
        """
        signed = self._order(RefreshOrder, body, signature, claim)
        order, what = signed.order, "a part of zero"
        share = self.find(order.parameters.authority, order.base)
        self._require_newer(share.authority, order.verification.generation)
        opened = self.sealing.open(REFRESH_PURPOSE, signed.hash, sealed, what)
        zero = read_scalar(opened, order.parameters.group.order, what)
        fresh = refreshed(order.parameters, share, zero, order.verification)
        self._take(order.parameters, fresh, base=order.base)
        return fresh.generation

    def help(
        self, body: bytes, signature: bytes, sealed: bytes, claim: Claim
    ) -> tuple[bytes, bytes]:
        """Show this server's share, masked, to one that lost its own (13.6.4).

        Args:
            body: of the order; untrusted.
            signature: of the owner.
            sealed: the mask.
            claim: pinned owner and collection.

        Returns:
            The part, sealed to the other server, and this one's signature.

        Raises:
            VerificationError: any of the refusals of step 13.6.5.
            StorageError: this server does not hold a share of that generation.
        """
        signed = self._order(HelpOrder, body, signature, claim)
        order, what = signed.order, "a mask"
        if order.target == self._server:
            raise VerificationError(f"server {self._server} cannot help itself")
        share, parameters = self.find(order.authority, order.generation), self.parameters
        if parameters is None:
            raise StorageError("this server has no share of the collection's authority")
        opened = self.sealing.open(MASK_PURPOSE, signed.hash, sealed, what)
        mask = read_scalar(opened, parameters.group.order, what)
        order.require_mask(mask)
        shown = masked(parameters, share, mask)
        context = part_context(order.repair, order.generation, order.target, self._server)
        part = order.sealing_key.seal(PART_PURPOSE, context, shown.reveal())
        return part, self._signing.sign(labels.REPAIR_PART, part_message(signed.hash, part))

    def repair(self, body: bytes, signature: bytes, parts: Sequence[bytes], claim: Claim) -> int:
        """Put a lost share together from what others show (13.6.4); return its generation.

        Args:
            body: of the order; untrusted.
            signature: of the owner.
            parts: of the helpers, in the order of the body; untrusted.
            claim: pinned owner and collection.

        Raises:
            VerificationError: any of the refusals of step 13.6.5.
            StorageError: the share cannot be stored.
        """
        signed = self._order(RepairOrder, body, signature, claim)
        order = signed.order
        if len(parts) != len(order.helpers):
            raise VerificationError(f"{len(parts)} parts came of {len(order.helpers)} helpers")
        generation = order.verification.generation
        opened = [
            self._open_part(part, order.repair, generation, helper)
            for helper, part in zip(order.helpers, parts, strict=True)
        ]
        share = repaired(
            order.parameters, order.verification, self._server, order.helpers, order.masks, opened
        )
        if self._newest_of(share.authority) > generation:
            raise VerificationError(
                f"a share of generation {generation} came after one of {self.generation}"
            )
        self._take(order.parameters, share, base=0)
        return share.generation

    def _open_part(self, part: bytes, repair: bytes, generation: int, helper: int) -> bytes:
        context = part_context(repair, generation, self._server, helper)
        what = f"the part of server {helper}"
        try:
            return self.sealing.open(PART_PURPOSE, context, part, what)
        except VerificationError as error:
            error.server, error.cure = helper, "repair with other servers"
            raise

    # --- what orders have in common

    def _order(
        self, kind: type[_Kind], body: bytes, signature: bytes, claim: Claim
    ) -> SignedOrder[_Kind]:
        signed = SignedOrder.decode(kind, body, signature, claim.owner_key)
        order = signed.order
        self._require_mine(order.collection, order.server, order.challenge, claim)
        return signed

    def _require_mine(self, collection: bytes, server: int, challenge: bytes, claim: Claim) -> None:
        if (collection, server) != (claim.collection, self._server):
            raise VerificationError(
                f"an order with the share of server {server} came to server {self._server}"
            )
        self._challenges.require(challenge)

    def _newest_of(self, authority: bytes) -> int:
        return max((s.generation for s in self._shares if s.authority == authority), default=0)

    def _require_newer(self, authority: bytes, generation: int) -> None:
        held = self._newest_of(authority)
        if generation <= held:
            raise VerificationError(f"a share of generation {generation} came after one of {held}")

    # --- the store

    def _take(self, parameters: PublicParameters, share: AuthorityShare, *, base: int) -> None:
        """Keep a share beside the one in use and the one that it was made from."""
        stay = {self._in_use, base}
        kept = [s for s in self._shares if s.authority == share.authority and s.generation in stay]
        kept = [s for s in kept if s.generation != share.generation]
        self._keep(parameters, tuple(sorted([*kept, share], key=lambda s: s.generation)))

    def _keep(self, parameters: PublicParameters, shares: tuple[AuthorityShare, ...]) -> None:
        nonce = self._random.bytes(_NONCE_BYTES)
        name, key = self._keys.draw(self._key)
        files = b"".join(share.encode() for share in shares)
        sealed = self._aead(parameters, key).seal(nonce, files, parameters.authority)
        fields = {"parameters": parameters.encode(), "key": name, "nonce": nonce, "sealed": sealed}
        self._store.write_state(SHARE_STATE, encode_cbor(fields))
        self.parameters, self._shares, self._key = parameters, shares, name
        # What the store's file still has of earlier shares opens no more.
        self._keys.keep_only(name)

    def _load(self) -> None:
        data = self._store.read_state(SHARE_STATE)
        if data is None:
            return
        what = "the share of the authority"
        try:
            fields = require_map(decode_cbor(data, what), _STATE_FIELDS, what)
            parameters = PublicParameters.decode(fields["parameters"])
            aead = self._aead(parameters, self._keys.find(fields["key"]))
            opened = aead.open(fields["nonce"], fields["sealed"], parameters.authority, what)
            starts = range(0, len(opened), _SHARE_BYTES)
            files = (opened[start : start + _SHARE_BYTES] for start in starts)
            self._shares = tuple(map(AuthorityShare.decode, files))
            self.parameters, self._key = parameters, fields["key"]
            self._keys.keep_only(self._key)
        except MksearchError as error:
            raise StorageError(
                f"{what} in this store is damaged, or of another server's key: {error.message}",
                cure="restore server-key and store from one backup, or have the owner repair the "
                "share",
            ) from None

    def _aead(self, parameters: PublicParameters, key: SecretKey) -> Aead:
        return Aead(derive_from_both(self._seed, key, labels.SHARE_STORE, parameters.authority))
