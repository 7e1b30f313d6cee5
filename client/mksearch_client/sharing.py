"""The shared authority from outside: hand out shares, put a key together from its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from mksearch.access.attributes import parse_attribute
from mksearch.access.authority import VerifiedPartial, combine, deal, verify_partial
from mksearch.access.authority_messages import (
    PARTIAL_PURPOSE,
    SHARE_PURPOSE,
    EnrolRequest,
    ShareOrder,
    TokenClaim,
)
from mksearch.access.cpabe import MasterKey
from mksearch.access.credential import SignedCredential, printed
from mksearch.access.keys import AttributeKey, PartialKey, PublicParameters, VerificationKeys
from mksearch.access.orders import SignedOrder
from mksearch.crypto.identity import Identity
from mksearch.crypto.randomness import RandomSource
from mksearch.errors import (
    CredentialRefused,
    FormatError,
    MksearchError,
    NotEnoughAnswers,
    PartialKeyRefused,
    PolicyError,
    ServerRefused,
    VerificationError,
)
from mksearch_client.asking import Asking, Servers
from mksearch_client.authority_connection import AuthorityConnection, Challenge
from mksearch_client.profile import Profile

__all__ = ["agree_on_token", "collect_key", "deal_to_servers", "next_generation"]


#: Dealings that may have been given up since the one that is known.
_ABANDONED_MAX = 1 << 20


def next_generation(challenges: Mapping[int, Challenge], known: int) -> int:
    """Return the number of the next dealing: above every one that a server holds.

    Args:
        challenges: of the servers.
        known: generation of the verification keys that the owner signed last, 0 for none.

    Raises:
        FormatError: a server claims one that nobody can have dealt; numbers would run out.
    """
    for server, challenge in challenges.items():
        if challenge.generation > known + _ABANDONED_MAX:
            raise FormatError(
                f"server {server} says that it holds a share of generation "
                f"{challenge.generation}, and the last that was signed is {known}",
                cure="have its operator look; without it the authority cannot be dealt",
                server=server,
            )
    return 1 + max(challenge.generation for challenge in challenges.values())


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
        seen = profile.highest_seen()
        access = None if seen is None else seen.manifest.access
        known = None if access is None else access.verification_keys
        generation = next_generation(challenges, 0 if known is None else known.generation)
        shares, verification = deal(parameters, master, profile.quorum, generation, random)
        for share in shares:
            asked = challenges[share.server]
            order = ShareOrder(
                profile.collection, share.server, asked.challenge, parameters, verification
            )
            signed = SignedOrder.sign(order, profile.keys.signing)
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


class _Refusals:
    """What servers said who would not admit a user."""

    def __init__(self, servers: Servers[AuthorityConnection], threshold: int) -> None:
        self._servers = servers
        self._threshold = threshold
        self._said: dict[int, ServerRefused] = {}

    @contextmanager
    def noting(self, server: int) -> Iterator[None]:
        """Remember it if ``server`` refuses what it is shown."""
        try:
            yield
        except ServerRefused as refused:
            if refused.detail_code == CredentialRefused.code:
                self._said[server] = refused
            raise

    def error(self, what: str, have: int, need: int) -> MksearchError:
        """Return why there is no key: in the words of the servers, if an honest one said them."""
        if len(self._said) < self._threshold:
            return self._servers.refusal(what, have, need)
        words = {refused.message: server for server, refused in sorted(self._said.items())}
        if len(words) == 1:
            message = f"{len(self._said)} servers refuse: {next(iter(words))}"
        else:
            message = "; ".join(f"server {who} refuses: {text}" for text, who in words.items())
        return CredentialRefused(message, cure=next(iter(self._said.values())).cure)


def agree_on_token(
    servers: Servers[AuthorityConnection],
    signed: SignedCredential,
    identity: Identity,
    parameters: PublicParameters,
    threshold: int,
    id_token: str,
) -> TokenClaim:
    """Return an ID token with the attributes that t + 1 servers read alike (13.7.2).

    Args:
        servers: whom to ask.
        signed: the credential, whose attributes are among them.
        identity: of its user.
        parameters: of the authority.
        threshold: t + 1: one of them is honest.
        id_token: as the issuer made it.

    Raises:
        CredentialRefused: servers refuse the token, or read different attributes off it.
        AnswerRefused: servers sent what cannot be right, and too few others remain.
        NotEnoughAnswers: fewer than t + 1 answered.
    """
    read: dict[tuple[str, ...], list[int]] = {}
    refusals = _Refusals(servers, threshold)

    def ask(server: int) -> tuple[str, ...]:
        connection = servers.connections[server]
        request = EnrolRequest(
            server,
            connection.challenge().challenge,
            parameters.authority,
            signed.credential.epoch,
            signed.hash,
            TokenClaim(id_token),
        )
        with refusals.noting(server):
            return connection.token_attributes(request, signed, identity)

    def take(server: int, attributes: tuple[str, ...]) -> None:
        _require_printed(server, attributes, signed)
        read.setdefault(attributes, []).append(server)

    def n_missing() -> int:
        return threshold - max(map(len, read.values()), default=0)

    if not Asking(servers, ask, take).until(n_missing):
        if len(read) > 1:
            said = "; ".join(
                f"server{'s' if len(group) > 1 else ''} {', '.join(map(str, group))} "
                f"{', '.join(attributes)}"
                for attributes, group in read.items()
            )
            raise CredentialRefused(
                f"the servers read different attributes off the ID token: {said}",
                cure="have the operators give [oidc.attributes] alike on all servers",
            )
        raise refusals.error("readings of the ID token", threshold - n_missing(), threshold)
    return TokenClaim(id_token, max(read, key=lambda attributes: len(read[attributes])))


def _require_printed(server: int, texts: Sequence[str], signed: SignedCredential) -> None:
    """Prove that a server answered attributes, those of the credential among them."""
    what = f"server {server} reads what are no attributes off the ID token"
    try:
        canonical = printed(map(parse_attribute, texts))
    except PolicyError as error:
        raise FormatError(f"{what}: {error.message}", server=server) from None
    if tuple(texts) != canonical or not set(printed(signed.credential.attributes)) <= set(texts):
        raise FormatError(what, server=server)


def collect_key(
    servers: Servers[AuthorityConnection],
    signed: SignedCredential,
    identity: Identity,
    parameters: PublicParameters,
    verification: VerificationKeys,
    random: RandomSource,
    token: TokenClaim | None = None,
) -> AttributeKey:
    """Have t + 1 servers make their parts of a key, prove each, and combine them (13.3, 13.7).

    Args:
        servers: whom to ask.
        signed: the credential.
        identity: of its user.
        parameters: of the authority.
        verification: as the owner signed them.
        random: source of weights.
        token: ID token, with all attributes that the key is to have; None without one.

    Raises:
        CredentialRefused: t + 1 servers refuse what they are shown.
        AnswerRefused: servers sent what cannot be right, and too few others remain.
        NotEnoughAnswers: fewer than t + 1 answered.
    """
    found: dict[int, VerifiedPartial] = {}
    credential = signed.credential
    need = verification.quorum.threshold
    attributes = credential.attributes
    if token is not None:
        attributes = tuple(map(parse_attribute, token.attributes))
    refusals = _Refusals(servers, need)

    def ask(server: int) -> tuple[EnrolRequest, PartialKey]:
        connection = servers.connections[server]
        challenge = connection.challenge().challenge
        request = EnrolRequest(
            server, challenge, parameters.authority, credential.epoch, signed.hash, token
        )
        with refusals.noting(server):
            generation = verification.generation
            sealed = connection.issue_partial(request, signed, identity, generation)
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
            attributes=attributes,
            epoch=credential.epoch,
            random=random,
        )

    if not Asking(servers, ask, take).until(lambda: need - len(found)):
        raise refusals.error("partial keys", len(found), need)
    return combine(parameters, verification, list(found.values()))
