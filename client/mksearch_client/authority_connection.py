"""One server of the shared authority over gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from mksearch.access.authority_messages import (
    EnrolRequest,
    ShareOrder,
    partial_key_message,
    token_attributes_message,
)
from mksearch.access.credential import SignedCredential
from mksearch.access.orders import CHALLENGE_BYTES, SignedOrder
from mksearch.access.refresh_messages import (
    HelpOrder,
    RefreshOrder,
    RepairOrder,
    part_message,
)
from mksearch.crypto import labels
from mksearch.crypto.evidence import NONCE_BYTES
from mksearch.crypto.identity import Identity
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.signature import verify
from mksearch.crypto.user_key import UserKey
from mksearch.errors import FormatError, ManifestStale
from mksearch.wire.v1 import authority_pb2, authority_pb2_grpc
from mksearch_client.connection import Channel, GrpcConnection
from mksearch_client.profile_folder import ServerEntry

__all__ = ["AuthorityConnection", "Challenge"]


@dataclass(frozen=True, slots=True)
class Challenge:
    """What a server wants to see again, and how to seal to it.

    Attributes:
        challenge: 32 bytes.
        sealing_key: of the server.
        generation: of the share that it holds, 0 for none.
    """

    challenge: bytes
    sealing_key: UserKey
    generation: int


class AuthorityConnection(GrpcConnection):
    """A connection to one server's part of the authority.

    Attributes:
        entry: the server.
    """

    def __init__(self, entry: ServerEntry, random: RandomSource, timeout_s: float) -> None:
        """Connect to ``entry``; nothing is sent yet."""
        super().__init__(
            entry.id, entry.address, entry.key, random, timeout_s=timeout_s, tls=entry.tls
        )
        self.entry = entry
        self._key = entry.key

    def _use(self, channel: Channel) -> None:
        super()._use(channel)
        self._authority = authority_pb2_grpc.AuthorityServiceStub(channel)  # type: ignore[no-untyped-call]

    def challenge(self) -> Challenge:
        """Return a fresh challenge of the server.

        Raises:
            ServerUnreachable, ServerRefused: see ``mksearch.errors``.
            VerificationError: it is not that server's.
        """

        def work() -> Challenge:
            nonce = self._random.bytes(NONCE_BYTES)
            request = authority_pb2.GetChallengeRequest(nonce=nonce)
            answer = self._one(self._authority.GetChallenge(request, timeout=self._timeout_s))
            self._require_verifier().challenge(
                nonce,
                answer.server_id,
                answer.challenge,
                answer.sealing_key,
                answer.generation,
                answer.signature,
            )
            if answer.server_id != self.server or len(answer.challenge) != CHALLENGE_BYTES:
                raise FormatError(f"{self.address} sent a challenge of another server or length")
            return Challenge(
                answer.challenge, UserKey.decode(answer.sealing_key), answer.generation
            )

        return self._ask(work)

    def install_share(self, signed: SignedOrder[ShareOrder], sealed: bytes) -> None:
        """Hand the server its share.

        Raises:
            ServerUnreachable, ServerRefused: see ``mksearch.errors``.
        """
        request = authority_pb2.InstallShareRequest(
            body=signed.body, signature=signed.signature, sealed=sealed
        )
        self._give("InstallShare", request, signed.order.verification.generation)

    def refresh_share(self, signed: SignedOrder[RefreshOrder], sealed: bytes) -> None:
        """Hand the server its part of zero.

        Raises:
            ServerUnreachable, ServerRefused: see ``mksearch.errors``.
        """
        request = authority_pb2.RefreshShareRequest(
            body=signed.body, signature=signed.signature, sealed=sealed
        )
        self._give("RefreshShare", request, signed.order.verification.generation)

    def help_repair(self, signed: SignedOrder[HelpOrder], sealed: bytes) -> bytes:
        """Return this server's masked share, sealed to the server that lost its own.

        Raises:
            ServerUnreachable, ServerRefused: see ``mksearch.errors``.
            VerificationError: it is not signed by this server.
        """
        request = authority_pb2.HelpRepairRequest(
            body=signed.body, signature=signed.signature, sealed=sealed
        )

        def work() -> bytes:
            answer = self._one(self._authority.HelpRepair(request, timeout=self._timeout_s))
            said, what = part_message(signed.hash, answer.part), f"the part of server {self.server}"
            verify(self._key, labels.REPAIR_PART, said, answer.signature, what)
            return bytes(answer.part)

        return self._ask(work)

    def repair_share(self, signed: SignedOrder[RepairOrder], parts: Sequence[bytes]) -> None:
        """Hand the server what others showed of its share.

        Raises:
            ServerUnreachable, ServerRefused: see ``mksearch.errors``.
        """
        request = authority_pb2.RepairShareRequest(
            body=signed.body, signature=signed.signature, parts=parts
        )
        self._give("RepairShare", request, signed.order.verification.generation)

    def _give(self, method: str, request: Message, wanted: int) -> None:
        def work() -> Any:
            return self._one(getattr(self._authority, method)(request, timeout=self._timeout_s))

        answer = self._call(work)
        if answer.generation != wanted:
            raise FormatError(
                f"server {self.server} took a share of generation {answer.generation}, not {wanted}"
            )

    def issue_partial(
        self,
        request: EnrolRequest,
        signed: SignedCredential,
        identity: Identity,
        generation: int | None = None,
    ) -> bytes:
        """Return this server's part of a key, sealed to the user, its signature proved.

        Args:
            request: that the user signs.
            signed: the credential.
            identity: of its user.
            generation: of the shares that are in use, None for any.

        Raises:
            ServerUnreachable, ServerRefused: see ``mksearch.errors``.
            VerificationError: it is not signed by this server.
            ManifestStale: the server serves an older version, whose shares are other ones.
        """
        message = _enrolling(request, signed, identity)

        def work() -> bytes:
            answer = self._one(self._authority.IssuePartialKey(message, timeout=self._timeout_s))
            said = partial_key_message(request, answer.sealed, answer.generation)
            what = f"the partial key of server {self.server}"
            verify(self._key, labels.PARTIAL_KEY, said, answer.signature, what)
            if generation is not None and answer.generation < generation:
                raise ManifestStale(
                    f"server {self.server} uses a share of generation {answer.generation}, and "
                    f"the newest version has {generation}",
                    cure="ask another server",
                    server=self.server,
                )
            return bytes(answer.sealed)

        return self._ask(work)

    def token_attributes(
        self, request: EnrolRequest, signed: SignedCredential, identity: Identity
    ) -> tuple[str, ...]:
        """Return which attributes this server would give for credential and ID token.

        Raises:
            ServerUnreachable, ServerRefused: see ``mksearch.errors``.
            VerificationError: it is not signed by this server.
        """
        message = _enrolling(request, signed, identity)

        def work() -> tuple[str, ...]:
            answer = self._one(self._authority.IssuePartialKey(message, timeout=self._timeout_s))
            found = tuple(answer.attributes)
            said = token_attributes_message(request, found)
            what = f"what server {self.server} reads off the ID token"
            verify(self._key, labels.TOKEN_ATTRIBUTES, said, answer.signature, what)
            return found

        return self._ask(work)


def _enrolling(
    request: EnrolRequest, signed: SignedCredential, identity: Identity
) -> authority_pb2.IssuePartialKeyRequest:
    token = request.token
    return authority_pb2.IssuePartialKeyRequest(
        credential=signed.body,
        credential_signature=signed.signature,
        user_key=identity.public.encode(),
        challenge=request.challenge,
        signature=request.sign(identity.signing),
        id_token=b"" if token is None else token.id_token.encode(),
        attributes=() if token is None else token.attributes,
    )
