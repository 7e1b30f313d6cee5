"""What the owner deals when shares are refreshed or repaired: never the authority's secret (13.6).

Both are polynomials that vanish at one place: at 0, so that the secret stays, or at the server
whose share is lost, so that this share stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from mksearch.access.keys import (
    PublicParameters,
    VerificationKeys,
    require_generation,
    seal_scalar,
)
from mksearch.access.pairing import G2
from mksearch.access.scalars import draw_coefficient, evaluate, lagrange
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.errors import ParameterError
from mksearch.params import Quorum

__all__ = ["deal_masks", "deal_zero", "keys_for"]


def deal_zero(
    parameters: PublicParameters,
    verification: VerificationKeys,
    generation: int,
    random: RandomSource,
) -> tuple[tuple[SecretKey, ...], VerificationKeys]:
    """Share zero over the servers (step 13.6.1).

    Args:
        parameters: of the authority.
        verification: keys of the shares that zero is added to.
        generation: of the shares that come out, above that of ``verification``.
        random: source of t coefficients.

    Returns:
        The parts of servers 1..n, secret, to be forgotten; and the new verification keys.

    Raises:
        ParameterError: the generation is out of range.
    """
    if require_generation(generation) <= verification.generation:
        raise ParameterError(
            f"share generation {generation} is not above {verification.generation}"
        )
    group, quorum = parameters.group, verification.quorum
    while True:
        polynomial = [0, *_draw(quorum.collusion_bound, group.order, random)]
        servers = range(1, quorum.n_servers + 1)
        values = [evaluate(polynomial, server, group.order) for server in servers]
        keys = tuple(verification.of(j) * group.g2 ** values[j - 1] for j in servers)
        if 0 not in values and not any(key.is_identity for key in keys):
            parts = tuple(map(seal_scalar, values))
            return parts, VerificationKeys(parameters.authority, generation, quorum, keys)


def deal_masks(
    parameters: PublicParameters,
    collusion_bound: int,
    target: int,
    helpers: Sequence[int],
    random: RandomSource,
) -> tuple[tuple[SecretKey, ...], tuple[G2, ...]]:
    """Make masks under which servers may show their shares to ``target`` (step 13.6.4).

    Args:
        parameters: of the authority.
        collusion_bound: t, the degree.
        target: the server whose share is lost.
        helpers: ids of other servers.
        random: source of t coefficients, never used for anything else.

    Returns:
        For each helper its mask, secret, to be forgotten; and the public point of each.

    Raises:
        ParameterError: the target is among the helpers: its mask would be 0.
    """
    if target in helpers:
        raise ParameterError(f"server {target} cannot help itself")
    group = parameters.group
    while True:
        polynomial = [0, *_draw(collusion_bound, group.order, random)]
        at_target = evaluate(polynomial, target, group.order)
        values = [(evaluate(polynomial, j, group.order) - at_target) % group.order for j in helpers]
        if 0 not in values:
            return tuple(map(seal_scalar, values)), tuple(group.g2**value for value in values)


def keys_for(
    parameters: PublicParameters, verification: VerificationKeys, n_servers: int
) -> VerificationKeys:
    """Return the keys of one generation for another number of servers (step 13.6.6).

    They are values of the polynomial that t + 1 of them fix, so whoever has those can compute the
    others; no share is dealt.

    Args:
        parameters: of the authority.
        verification: keys of a generation.
        n_servers: at least 2 t + 1.

    Raises:
        ParameterError: too few servers for the bound; or a key would be the identity, which a
            refresh of the shares changes.
    """
    t = verification.quorum.collusion_bound
    quorum = Quorum(n_servers, t)
    group, keys = parameters.group, verification.keys[:n_servers]
    for server in range(len(keys) + 1, n_servers + 1):
        factors = lagrange(range(1, t + 2), group.order, at=server)
        key = group.multi_power(verification.keys[: t + 1], factors)
        if key.is_identity:
            raise ParameterError(
                f"server {server} would have a share of 0",
                cure="run mksearch owner rotate --authority first",
            )
        keys = (*keys, key)
    return VerificationKeys(parameters.authority, verification.generation, quorum, keys)


def _draw(n: int, order: int, random: RandomSource) -> list[int]:
    return [draw_coefficient(order, random) for _ in range(n)]
