"""The gRPC service of the shared authority: messages in and out, work on a storage thread."""

from __future__ import annotations

from typing import Any

from mksearch.errors import StorageError
from mksearch.wire.v1 import authority_pb2, authority_pb2_grpc
from mksearch_server.authority import IssuedPartial
from mksearch_server.log import log
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
            challenge, sealing_key = keeper.challenges.make(), keeper.sealing.public.encode()
            signature = runtime.identity.signer.challenge(
                nonce, server, challenge, sealing_key, keeper.generation
            )
            return authority_pb2.GetChallengeResponse(
                server_id=server,
                challenge=challenge,
                sealing_key=sealing_key,
                generation=keeper.generation,
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
            runtime = self._runtime
            claim = runtime.identity.claim
            if claim is None:
                raise StorageError(
                    "this server was not claimed by an owner", cure="run mksearch owner init"
                )
            generation = await runtime.on_upload(
                runtime.authority.install,
                request.body,
                request.signature,
                request.sealed,
                claim.owner_key,
                claim.collection,
            )
            log.info("holds a share of generation %d of the authority", generation)
            return authority_pb2.InstallShareResponse(generation=generation)
        except Exception as error:  # noqa: BLE001
            refuse(context, error)
            return None

    async def IssuePartialKey(  # noqa: N802
        self, request: authority_pb2.IssuePartialKeyRequest, context: Any
    ) -> authority_pb2.IssuePartialKeyResponse | None:
        """Make this server's part of a user's key."""
        try:
            runtime = self._runtime
            active = runtime.search.active
            if active is None:
                raise StorageError("nothing was published here", cure="the owner publishes first")
            issued: IssuedPartial = await runtime.on_storage(
                runtime.authority.issue,
                active.access,
                active.collection,
                request.challenge,
                (request.credential, request.credential_signature),
                request.user_key,
                request.signature,
            )
            return authority_pb2.IssuePartialKeyResponse(
                sealed=issued.sealed, signature=issued.signature, generation=issued.generation
            )
        except Exception as error:  # noqa: BLE001
            refuse(context, error)
            return None
