"""Refresh the shares of the authority, and repair one that a server lost (docs/protocol.md, 13.6).

The owner only deals polynomials that vanish somewhere: it learns neither the authority's secret
nor a share of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from mksearch.access.keys import PublicParameters, VerificationKeys
from mksearch.access.orders import SignedOrder
from mksearch.access.pairing import G2
from mksearch.access.refresh import deal_masks, deal_zero, keys_for
from mksearch.access.refresh_messages import (
    MASK_PURPOSE,
    REFRESH_PURPOSE,
    REPAIR_BYTES,
    HelpOrder,
    RefreshOrder,
    RepairOrder,
)
from mksearch.crypto.randomness import RandomSource
from mksearch.errors import (
    ManifestRefused,
    MksearchError,
    NotEnoughAnswers,
    ParameterError,
)
from mksearch_client.asking import Servers
from mksearch_client.authority_connection import AuthorityConnection, Challenge
from mksearch_client.profile import Profile, ServerEntry
from mksearch_client.sharing import next_generation
from mksearch_client.versions import newest_manifest

__all__ = ["give_share", "refresh_shares", "repair_share"]

_T = TypeVar("_T")
_Connections = Mapping[int, AuthorityConnection]


def refresh_shares(
    profile: Profile,
    parameters: PublicParameters,
    verification: VerificationKeys,
    random: RandomSource,
    *,
    timeout_s: float,
    servers: Mapping[int, ServerEntry] | None = None,
) -> VerificationKeys:
    """Add a sharing of zero to the shares of all servers (13.6.1).

    Args:
        profile: of the owner.
        parameters: of the authority.
        verification: of the shares that all servers acknowledged last.
        random: source of the polynomial.
        timeout_s: seconds that one request may take.
        servers: that take part, by id; None for the profile's.

    Returns:
        The new verification keys, once all servers hold their new shares.

    Raises:
        NotEnoughAnswers: a server did not take part; the old shares stay in use.
        ManifestRefused: the collection has another authority.
    """
    with _connected(servers or profile.servers, random, timeout_s) as connections:
        used = _in_use(profile, connections, parameters)
        # A profile from an older backup: the version that its owner signed later knows better.
        base = max(used, verification, key=lambda keys: keys.generation)
        challenges, errors = _each(connections, lambda server: connections[server].challenge())
        _require_all(errors, len(connections))
        generation = next_generation(challenges, base.generation)
        parts, fresh = deal_zero(parameters, base, generation, random)

        def hand_out(server: int) -> None:
            asked = challenges[server]
            order = RefreshOrder(
                profile.collection, server, asked.challenge, base.generation, parameters, fresh
            )
            signed = SignedOrder.sign(order, profile.keys.signing)
            part = parts[server - 1].reveal()
            sealed = asked.sealing_key.seal(REFRESH_PURPOSE, signed.hash, part)
            connections[server].refresh_share(signed, sealed)

        _, errors = _each(connections, hand_out)
        _require_all(errors, len(connections))
        return fresh


def repair_share(
    profile: Profile,
    parameters: PublicParameters,
    verification: VerificationKeys,
    target: int,
    random: RandomSource,
    *,
    timeout_s: float,
) -> int:
    """Have t + 1 servers restore the share that another one lost (13.6.4).

    Args:
        profile: of the owner.
        parameters: of the authority.
        verification: of the shares that all servers acknowledged last.
        target: the server that lost its share.
        random: source of the masks.
        timeout_s: seconds that one request may take.

    Returns:
        The generation of the share.

    Raises:
        ParameterError: there is no such server, or a refresh waits for the next version.
        NotEnoughAnswers: the server, or fewer than t + 1 others, did not take part.
        ManifestRefused: the collection has another authority.
        ServerRefused: the server does not take what the others sent.
    """
    with _connected(profile.servers, random, timeout_s) as connections:
        if target not in connections:
            raise ParameterError(f"there is no server {target} among {len(connections)}")
        used = _in_use(profile, connections, parameters)
        if verification.generation > used.generation:
            raise ParameterError(
                f"shares of generation {verification.generation} wait for the next version",
                cure="run mksearch owner renew, then repair",
            )
        _repair(profile, parameters, used, target, connections, random)
        return used.generation


def give_share(
    profile: Profile,
    parameters: PublicParameters,
    servers: Mapping[int, ServerEntry],
    target: int,
    random: RandomSource,
    *,
    timeout_s: float,
) -> VerificationKeys:
    """Have t + 1 servers give a new one the share of its place, an old or the next one (15.3.2).

    A server that has it already, or one of a refresh that was begun since, is left as it is.

    Args:
        profile: of the owner.
        parameters: of the authority.
        servers: with the new one, by id.
        target: the new one.
        random: source of the masks.
        timeout_s: seconds that one request may take.

    Returns:
        The keys of the shares in use, with one for each of ``servers``.

    Raises:
        NotEnoughAnswers: the server, or fewer than t + 1 others, did not take part.
        ManifestRefused: the collection has another authority.
        ServerRefused: the server does not take what the others sent.
    """
    with _connected(servers, random, timeout_s) as connections:
        in_use = _in_use(profile, connections, parameters)
        used = keys_for(parameters, in_use, len(servers))
        if connections[target].challenge().generation < used.generation:
            _repair(profile, parameters, used, target, connections, random)
        return used


def _repair(
    profile: Profile,
    parameters: PublicParameters,
    used: VerificationKeys,
    target: int,
    connections: _Connections,
    random: RandomSource,
) -> None:
    """Have t + 1 servers bring ``target`` to the share that its key in ``used`` stands for."""
    challenges, errors = _each(connections, lambda server: connections[server].challenge())
    if target in errors:
        raise NotEnoughAnswers(
            f"server {target} does not answer: {errors[target]}",
            have=0,
            need=1,
            cure="start it, then repair its share",
        )
    able = [server for server in challenges if server != target]
    while len(able) >= used.quorum.threshold:
        repair = _Repair(profile, parameters, used, target, challenges, random)
        helpers = able[: used.quorum.threshold]
        parts, failed = repair.ask(connections, helpers)
        if not failed:
            repair.finish(connections[target], helpers, parts)
            return
        errors |= failed
        able = [server for server in able if server not in failed]
    raise NotEnoughAnswers(
        f"{len(able)} servers can help server {target} (need {used.quorum.threshold}): "
        f"{_reasons(errors)}",
        have=len(able),
        need=used.quorum.threshold,
        cure="start more servers and repair again",
    )


class _Repair:
    """One try to restore a share, with masks of its own."""

    def __init__(
        self,
        profile: Profile,
        parameters: PublicParameters,
        used: VerificationKeys,
        target: int,
        challenges: Mapping[int, Challenge],
        random: RandomSource,
    ) -> None:
        self._profile = profile
        self._parameters = parameters
        self._used = used
        self._target = target
        self._challenges = challenges
        self._random = random
        self._name = random.bytes(REPAIR_BYTES)
        self._points: tuple[G2, ...] = ()

    def ask(
        self, connections: _Connections, helpers: list[int]
    ) -> tuple[dict[int, bytes], dict[int, MksearchError]]:
        """Return the parts of helpers, or why they did not come."""
        t = self._used.quorum.collusion_bound
        masks, self._points = deal_masks(self._parameters, t, self._target, helpers, self._random)
        mask_of = dict(zip(helpers, masks, strict=True))
        point_of = dict(zip(helpers, self._points, strict=True))

        def ask(helper: int) -> bytes:
            asked = self._challenges[helper]
            order = HelpOrder(
                self._profile.collection,
                helper,
                asked.challenge,
                self._parameters.authority,
                self._used.generation,
                self._target,
                self._challenges[self._target].sealing_key,
                self._name,
                point_of[helper],
            )
            signed = SignedOrder.sign(order, self._profile.keys.signing)
            mask = mask_of[helper].reveal()
            sealed = asked.sealing_key.seal(MASK_PURPOSE, signed.hash, mask)
            return connections[helper].help_repair(signed, sealed)

        return _each(helpers, ask)

    def finish(
        self, connection: AuthorityConnection, helpers: list[int], parts: Mapping[int, bytes]
    ) -> None:
        """Hand the target what its helpers showed."""
        order = RepairOrder(
            self._profile.collection,
            self._target,
            self._challenges[self._target].challenge,
            self._parameters,
            self._used,
            self._name,
            tuple(helpers),
            self._points,
        )
        signed = SignedOrder.sign(order, self._profile.keys.signing)
        connection.repair_share(signed, [parts[helper] for helper in helpers])


@contextmanager
def _connected(
    servers: Mapping[int, ServerEntry], random: RandomSource, timeout_s: float
) -> Iterator[dict[int, AuthorityConnection]]:
    connections = {
        entry.id: AuthorityConnection(entry, random, timeout_s)
        for _, entry in sorted(servers.items())
    }
    try:
        yield connections
    finally:
        for connection in connections.values():
            connection.close()


def _in_use(
    profile: Profile, connections: _Connections, parameters: PublicParameters
) -> VerificationKeys:
    """Return the verification keys that the newest version names."""
    addresses = {entry.id: entry.address for entry in profile.servers.values()}
    with ThreadPoolExecutor(len(connections), "servers") as pool:
        newest = newest_manifest(
            Servers(connections, addresses, pool),
            owner_key=profile.owner_key,
            collection=profile.collection,
            quorum=profile.quorum,
            seen=profile.highest_seen(),
            on_rivals=profile.keep_equivocation,
        )
    access = newest.manifest.access
    keys = None if access is None else access.verification_keys
    if keys is None or keys.authority != parameters.authority:
        raise ManifestRefused(
            f"version {newest.manifest.version} does not name this profile's authority as one "
            "that servers share",
            cure="run mksearch owner renew after the authority was shared",
        )
    return keys


def _each(
    servers: Mapping[int, object] | list[int], work: Callable[[int], _T]
) -> tuple[dict[int, _T], dict[int, MksearchError]]:
    """Do ``work`` for each server; return results and errors by id."""
    results: dict[int, _T] = {}
    errors: dict[int, MksearchError] = {}
    for server in servers:
        try:
            results[server] = work(server)
        except MksearchError as error:
            errors[server] = error
    return results, errors


def _reasons(errors: Mapping[int, MksearchError]) -> str:
    return "; ".join(f"server {server}: {error}" for server, error in sorted(errors.items()))


def _require_all(errors: Mapping[int, MksearchError], need: int) -> None:
    if errors:
        raise NotEnoughAnswers(
            f"{need - len(errors)} servers take part in the refresh (need {need}): "
            f"{_reasons(errors)}",
            have=need - len(errors),
            need=need,
            cure="start all servers and run the command again; the old shares stay in use",
        )
