"""The shared authority from outside: hand out shares, put a key together from its parts."""

from __future__ import annotations

from collections.abc import Mapping

from mksearch.access.authority import VerifiedPartial, combine, deal, verify_partial
from mksearch.access.authority_messages import (
    PARTIAL_PURPOSE,
    SHARE_PURPOSE,
    EnrolRequest,
    ShareOrder,
    SignedShareOrder,
)
from mksearch.access.cpabe import MasterKey
from mksearch.access.credential import SignedCredential
from mksearch.access.keys import AttributeKey, PartialKey, PublicParameters, VerificationKeys
from mksearch.crypto.identity import Identity
from mksearch.crypto.randomness import RandomSource
from mksearch.errors import MksearchError, NotEnoughAnswers, PartialKeyRefused, VerificationError
from mksearch_client.asking import Asking, Servers
from mksearch_client.authority_connection import AuthorityConnection
from mksearch_client.profile import Profile

__all__ = ["collect_key", "deal_to_servers"]


def deal_to_servers(
    profile: Profile,
    parameters: PublicParameters,
    master: MasterKey,
    random: RandomSource,
    *,
    timeout_s: float,
) -> VerificationKeys:
    """Hand every server its share of the authority (docs/protocol.md, 13.2).

    Args:
        profile: of the owner.
        parameters: of the authority.
        master: its secret, which the caller forgets afterwards.
        random: source of the polynomial.
        timeout_s: seconds that one request may take.

    Returns:
        The verification keys, once all servers hold their shares.

    Raises:
        NotEnoughAnswers: a server did not take its share.
    """
    connections = {
        entry.id: AuthorityConnection(entry, random, timeout_s)
        for entry in profile.servers.values()
    }
    errors: dict[int, MksearchError] = {}
    try:
        challenges = {}
        for server, connection in connections.items():
            try:
                challenges[server] = connection.challenge()
            except MksearchError as error:
                errors[server] = error
        _require_all(errors, len(connections))
        generation = 1 + max(challenge.generation for challenge in challenges.values())
        shares, verification = deal(parameters, master, profile.quorum, generation, random)
        for share in shares:
            asked = challenges[share.server]
            order = ShareOrder(
                profile.collection, share.server, asked.challenge, parameters, verification
            )
            signed = SignedShareOrder.sign(order, profile.keys.signing)
            sealed = asked.sealing_key.seal(SHARE_PURPOSE, signed.hash, share.encode())
            try:
                connections[share.server].install_share(signed, sealed)
            except MksearchError as error:
                errors[share.server] = error
        _require_all(errors, len(connections))
        return verification
    finally:
        for connection in connections.values():
            connection.close()


def _require_all(errors: Mapping[int, MksearchError], need: int) -> None:
    if errors:
        reasons = "; ".join(f"server {server}: {error}" for server, error in errors.items())
        raise NotEnoughAnswers(
            f"{need - len(errors)} servers take part in the authority (need {need}): {reasons}",
            have=need - len(errors),
            need=need,
            cure="start all servers and run the command again; nothing is lost",
        )


def collect_key(
    servers: Servers[AuthorityConnection],
    signed: SignedCredential,
    identity: Identity,
    parameters: PublicParameters,
    verification: VerificationKeys,
    random: RandomSource,
) -> AttributeKey:
    """Have t + 1 servers make their parts of a key, prove each, and combine them (13.3).

    Args:
        servers: whom to ask.
        signed: the credential.
        identity: of its user.
        parameters: of the authority.
        verification: as the owner signed them.
        random: source of weights.

    Raises:
        AnswerRefused: servers sent what cannot be right, and too few others remain.
        NotEnoughAnswers: fewer than t + 1 answered.
    """
    found: dict[int, VerifiedPartial] = {}
    credential = signed.credential
    need = verification.quorum.threshold

    def ask(server: int) -> tuple[EnrolRequest, PartialKey]:
        connection = servers.connections[server]
        challenge = connection.challenge().challenge
        request = EnrolRequest(
            server, challenge, parameters.authority, credential.epoch, signed.hash
        )
        sealed = connection.issue_partial(request, signed, identity)
        try:
            opened = identity.open(PARTIAL_PURPOSE, request.hash, sealed, "a partial key")
            return request, PartialKey.decode(opened)
        except VerificationError as error:
            raise PartialKeyRefused(
                f"the partial key of server {server} cannot be read: {error.message}",
                cure="ask another server",
                server=server,
            ) from None

    def take(server: int, answer: tuple[EnrolRequest, PartialKey]) -> None:
        found[server] = verify_partial(
            parameters,
            verification,
            answer[1],
            server=server,
            attributes=credential.attributes,
            epoch=credential.epoch,
            random=random,
        )

    if not Asking(servers, ask, take).until(lambda: need - len(found)):
        raise servers.refusal("partial keys", len(found), need)
    return combine(parameters, verification, list(found.values()))
