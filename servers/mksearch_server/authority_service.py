"""The gRPC service of the shared authority: messages in and out, work on a storage thread."""

from __future__ import annotations

from typing import Any

from mksearch.access.authority_messages import TokenClaim
from mksearch.errors import CredentialRefused, StorageError
from mksearch.wire.v1 import authority_pb2, authority_pb2_grpc
from mksearch_server.authority import EnrolMessage, IssuedPartial
from mksearch_server.identity import Claim
from mksearch_server.log import log_event
from mksearch_server.service import Runtime, refuse, require_nonce

__all__ = ["AuthorityServicer"]


class AuthorityServicer(authority_pb2_grpc.AuthorityServiceServicer):
    """What the owner and users ask of the authority."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def GetChallenge(  # noqa: N802 - named by the protocol
        self, request: authority_pb2.GetChallengeRequest, context: Any
    ) -> authority_pb2.GetChallengeResponse | None:
        """Return a challenge and the sealing key, signed together with the nonce."""
        try:
            nonce = require_nonce(request.nonce)
            runtime = self._runtime
            keeper, server = runtime.authority, runtime.config.id
            challenge = keeper.challenges.make()
            sealing_key = keeper.shares.sealing.public.encode()
            generation = keeper.shares.generation
            signature = runtime.identity.signer.challenge(
                nonce, server, challenge, sealing_key, generation
            )
            return authority_pb2.GetChallengeResponse(
                server_id=server,
                challenge=challenge,
                sealing_key=sealing_key,
                generation=generation,
                signature=signature,
            )
        except Exception as error:  # noqa: BLE001 - every fault gets a status
            refuse(context, error)
            return None

    async def InstallShare(  # noqa: N802
        self, request: authority_pb2.InstallShareRequest, context: Any
    ) -> authority_pb2.InstallShareResponse | None:
        """Take this server's share from the owner."""
        try:
            generation = await self._runtime.on_upload(
                self._runtime.authority.shares.install,
                request.body,
                request.signature,
                request.sealed,
                self._claim(),
            )
            log_event("share-installed", generation=generation)
            return authority_pb2.InstallShareResponse(generation=generation)
        except Exception as error:  # noqa: BLE001
            refuse(context, error)
            return None

    async def RefreshShare(  # noqa: N802
        self, request: authority_pb2.RefreshShareRequest, context: Any
    ) -> authority_pb2.RefreshShareResponse | None:
        """Add a part of zero to this server's share."""
        try:
            generation = await self._runtime.on_upload(
                self._runtime.authority.shares.refresh,
                request.body,
                request.signature,
                request.sealed,
                self._claim(),
            )
            log_event("share-refreshed", generation=generation)
            return authority_pb2.RefreshShareResponse(generation=generation)
        except Exception as error:  # noqa: BLE001
            refuse(context, error)
            return None

    async def HelpRepair(  # noqa: N802
        self, request: authority_pb2.HelpRepairRequest, context: Any
    ) -> authority_pb2.HelpRepairResponse | None:
        """Show this server's share, masked, to one that lost its own."""
        try:
            part, signature = await self._runtime.on_upload(
                self._runtime.authority.shares.help,
                request.body,
                request.signature,
                request.sealed,
                self._claim(),
            )
            log_event("repair-helped")
            return authority_pb2.HelpRepairResponse(part=part, signature=signature)
        except Exception as error:  # noqa: BLE001
            refuse(context, error)
            return None

    async def RepairShare(  # noqa: N802
        self, request: authority_pb2.RepairShareRequest, context: Any
    ) -> authority_pb2.RepairShareResponse | None:
        """Put this server's share together from the parts of others."""
        try:
            generation = await self._runtime.on_upload(
                self._runtime.authority.shares.repair,
                request.body,
                request.signature,
                tuple(request.parts),
                self._claim(),
            )
            log_event("share-repaired", generation=generation)
            return authority_pb2.RepairShareResponse(generation=generation)
        except Exception as error:  # noqa: BLE001
            refuse(context, error)
            return None

    def _claim(self) -> Claim:
        claim = self._runtime.identity.claim
        if claim is None:
            raise StorageError(
                "this server was not claimed by an owner", cure="run mksearch owner init"
            )
        return claim

    async def IssuePartialKey(  # noqa: N802
        self, request: authority_pb2.IssuePartialKeyRequest, context: Any
    ) -> authority_pb2.IssuePartialKeyResponse | None:
        """Make this server's part of a user's key."""
        try:
            runtime = self._runtime
            active = runtime.search.active
            if active is None:
                raise StorageError("nothing was published here", cure="the owner publishes first")
            message = EnrolMessage(
                request.challenge,
                request.credential,
                request.credential_signature,
                request.user_key,
                request.signature,
                _token_of(request),
            )
            run = runtime.on_storage if message.token is None else runtime.on_tokens
            issued: IssuedPartial = await run(
                runtime.authority.issue, active.access, active.collection, message
            )
            return authority_pb2.IssuePartialKeyResponse(
                sealed=issued.sealed,
                signature=issued.signature,
                generation=issued.generation,
                attributes=issued.attributes,
            )
        except Exception as error:  # noqa: BLE001
            refuse(context, error)
            return None


def _token_of(request: authority_pb2.IssuePartialKeyRequest) -> TokenClaim | None:
    if not request.id_token:
        return None
    if not request.id_token.isascii():
        raise CredentialRefused(
            "the ID token is not text in ASCII", cure="send what the issuer answered, unchanged"
        )
    return TokenClaim(request.id_token.decode("ascii"), tuple(request.attributes))
