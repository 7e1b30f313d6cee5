"""One server of the shared authority over gRPC."""

from __future__ import annotations

from dataclasses import dataclass

from mksearch.access.authority_messages import (
    CHALLENGE_BYTES,
    EnrolRequest,
    SignedShareOrder,
    partial_key_message,
)
from mksearch.access.credential import SignedCredential
from mksearch.crypto import labels
from mksearch.crypto.evidence import NONCE_BYTES
from mksearch.crypto.identity import Identity
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.signature import verify
from mksearch.crypto.user_key import UserKey
from mksearch.errors import FormatError
from mksearch.wire.v1 import authority_pb2, authority_pb2_grpc
from mksearch_client.connection import GrpcConnection
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
    """A connection to one server's part of the authority."""

    def __init__(self, entry: ServerEntry, random: RandomSource, timeout_s: float) -> None:
        """Connect to ``entry``; nothing is sent yet."""
        super().__init__(entry.id, entry.address, entry.key, random, timeout_s=timeout_s)
        self._authority = authority_pb2_grpc.AuthorityServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._key = entry.key

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

    def install_share(self, signed: SignedShareOrder, sealed: bytes) -> None:
        """Hand the server its share.

        Raises:
            ServerUnreachable, ServerRefused: see ``mksearch.errors``.
        """
        request = authority_pb2.InstallShareRequest(
            body=signed.body, signature=signed.signature, sealed=sealed
        )
        answer = self._call(
            lambda: self._one(self._authority.InstallShare(request, timeout=self._timeout_s))
        )
        wanted = signed.order.verification.generation
        if answer.generation != wanted:
            raise FormatError(
                f"server {self.server} took a share of generation {answer.generation}, not {wanted}"
            )

    def issue_partial(
        self, request: EnrolRequest, signed: SignedCredential, identity: Identity
    ) -> bytes:
        """Return this server's part of a key, sealed to the user, its signature proved.

        Raises:
            ServerUnreachable, ServerRefused: see ``mksearch.errors``.
            VerificationError: it is not signed by this server.
        """
        message = authority_pb2.IssuePartialKeyRequest(
            credential=signed.body,
            credential_signature=signed.signature,
            user_key=identity.public.encode(),
            challenge=request.challenge,
            signature=request.sign(identity.signing),
        )

        def work() -> bytes:
            answer = self._one(self._authority.IssuePartialKey(message, timeout=self._timeout_s))
            said = partial_key_message(request, answer.sealed, answer.generation)
            what = f"the partial key of server {self.server}"
            verify(self._key, labels.PARTIAL_KEY, said, answer.signature, what)
            return bytes(answer.sealed)

        return self._ask(work)
