"""The shared authority, seen from outside its servers: deal, check, combine (protocol, 11.5).

Any t servers learn nothing of the secret, any t + 1 make keys.  A user's client proves each part
before it is used, so a server that sends a wrong one is named and another is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mksearch.access.attributes import Attribute, Label, key_labels, show_label
from mksearch.access.cpabe import MasterKey, set_up
from mksearch.access.keys import (
    AttributeKey,
    AuthorityShare,
    PartialKey,
    PublicParameters,
    VerificationKeys,
    require_generation,
    reveal_scalar,
    seal_scalar,
)
from mksearch.access.pairing import BLS12_381, G1, G2, PairingGroup
from mksearch.access.scalars import draw_coefficient, evaluate, lagrange
from mksearch.crypto.randomness import RandomSource
from mksearch.errors import FormatError, NotEnoughAnswers, ParameterError, PartialKeyRefused
from mksearch.params import BATCH_WEIGHT_BITS, Quorum

__all__ = [
    "SharedAuthority",
    "VerifiedPartial",
    "combine",
    "deal",
    "set_up_shared",
    "verify_key",
    "verify_partial",
]

_Source = TypeVar("_Source", G1, G2)


@dataclass(frozen=True, slots=True, eq=False)
class SharedAuthority:
    """An authority as it is right after set-up: each share goes to its server and is forgotten.

    Attributes:
        parameters: public.
        verification: public.
        shares: secret, of servers 1..n.
    """

    parameters: PublicParameters
    verification: VerificationKeys
    shares: tuple[AuthorityShare, ...]


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedPartial:
    """A partial key that ``verify_partial`` proved; made nowhere else."""

    partial: PartialKey


def set_up_shared(
    quorum: Quorum, random: RandomSource, group: PairingGroup = BLS12_381
) -> SharedAuthority:
    """Make an authority whose secret is in no one place once this returns.

    Args:
        quorum: servers and collusion bound.
        random: source of everything drawn.
        group: groups to use.
    """
    parameters, master = set_up(random, group)
    shares, verification = deal(parameters, master, quorum, 1, random)
    return SharedAuthority(parameters, verification, shares)


def deal(
    parameters: PublicParameters,
    master: MasterKey,
    quorum: Quorum,
    generation: int,
    random: RandomSource,
) -> tuple[tuple[AuthorityShare, ...], VerificationKeys]:
    """Share the authority's secret over its servers (step 11.5.1).

    Args:
        parameters: of the authority.
        master: its secret, forgotten by the caller afterwards.
        quorum: servers and collusion bound.
        generation: number of this dealing, from 1.
        random: source of t coefficients.

    Raises:
        ParameterError: the generation is out of range.
    """
    require_generation(generation)
    group, t = parameters.group, quorum.collusion_bound
    values = [0]
    while 0 in values:
        drawn = [draw_coefficient(group.order, random) for _ in range(t)]
        polynomial = [reveal_scalar(master.alpha), *drawn]
        servers = range(1, quorum.n_servers + 1)
        values = [evaluate(polynomial, server, group.order) for server in servers]
    shares = tuple(
        AuthorityShare(parameters.authority, generation, server, seal_scalar(value))
        for server, value in enumerate(values, 1)
    )
    keys = tuple(group.g2**value for value in values)
    return shares, VerificationKeys(parameters.authority, generation, quorum, keys)


def verify_partial(
    parameters: PublicParameters,
    verification: VerificationKeys,
    partial: PartialKey,
    *,
    server: int,
    attributes: Iterable[Attribute],
    epoch: int,
    random: RandomSource,
) -> VerifiedPartial:
    """Prove that a partial key is what ``server`` was asked for (step 11.5.4).

    Args:
        parameters: of the authority.
        verification: its keys; ``require_consistent`` was asked once.
        partial: as it came.
        server: the server asked.
        attributes: of the credential.
        epoch: asked for.
        random: source of a weight of 128 bits for each label; unknown to the server.

    Raises:
        PartialKeyRefused: it is not; the message says what of it, ``server`` whose it is.
    """
    key = partial.key
    _require_same(parameters, verification, partial, server, key_labels(attributes, epoch))
    if fault := _first_fault(parameters, verification.of(server), key, random):
        raise _refused(server, fault)
    return VerifiedPartial(partial)


def verify_key(
    parameters: PublicParameters,
    key: AttributeKey,
    wanted: frozenset[Label],
    random: RandomSource,
) -> None:
    """Prove that a whole key is what was asked for: the equations of step 11.5.4 with ``B``.

    Args:
        parameters: of the authority.
        key: as it came.
        wanted: its labels.
        random: source of a weight of 128 bits for each label; unknown to whoever made the key.

    Raises:
        FormatError: it is of another authority or other labels, or not made by this authority.
    """
    if key.authority != parameters.authority or key.labels != wanted:
        raise FormatError("an attribute key is of another authority, or for other attributes")
    if fault := _first_fault(parameters, parameters.public, key, random):
        raise FormatError(f"an attribute key {fault}")


def _first_fault(
    parameters: PublicParameters, verifying: G2, key: AttributeKey, random: RandomSource
) -> str:
    """Say what is wrong with the points of a key; "" if nothing is."""
    points = [key.k, key.l, *key.components.values()]
    if any(point.is_identity for point in points):
        return "holds the identity"
    labels = sorted(key.components)
    hashes = {label: parameters.hash(label) for label in labels}
    weights = [int.from_bytes(random.bytes(BATCH_WEIGHT_BITS // 8), "big") for _ in labels]
    group = parameters.group
    left = group.multi_power([key.k, *(key.components[x] for x in labels)], [1, *weights])
    right = group.multi_power([parameters.base, *(hashes[x] for x in labels)], [1, *weights])
    proof = [(left, group.g2), (group.g1.inverse(), verifying)]
    if not group.pair([*proof, (right.inverse(), key.l)]).is_identity:
        return _fault(parameters, verifying, key, hashes)
    return ""


def _require_same(
    parameters: PublicParameters,
    verification: VerificationKeys,
    partial: PartialKey,
    server: int,
    wanted: frozenset[Label],
) -> None:
    verification.of(server)
    if partial.key.authority != parameters.authority:
        raise _refused(server, "is of another authority")
    if partial.server != server:
        raise _refused(server, f"says that it is of server {partial.server}")
    if partial.generation != verification.generation:
        raise _refused(
            server,
            f"is of share generation {partial.generation} (need {verification.generation})",
        )
    if different := partial.key.labels ^ wanted:
        label = min(different)
        verb = "lacks" if label in wanted else "has, unasked,"
        raise _refused(server, f"{verb} {show_label(label)}")


def _fault(
    parameters: PublicParameters, verifying: G2, key: AttributeKey, hashes: Mapping[Label, G1]
) -> str:
    """Say which of the equations does not hold, one by one."""
    group = parameters.group
    base = [(group.g1.inverse(), verifying), (parameters.base.inverse(), key.l)]
    if not group.pair([(key.k, group.g2), *base]).is_identity:
        return "is not made with the share that its verification key stands for"
    for label, point in hashes.items():
        pairs = [(key.components[label], group.g2), (point.inverse(), key.l)]
        if not group.pair(pairs).is_identity:
            return f"has a wrong component for {show_label(label)}"
    return "does not pass its check"


def _refused(server: int, what: str) -> PartialKeyRefused:
    return PartialKeyRefused(
        f"the partial key of server {server} {what}", cure="ask another server", server=server
    )


def combine(
    parameters: PublicParameters,
    verification: VerificationKeys,
    partials: Sequence[VerifiedPartial],
) -> AttributeKey:
    """Make the key out of proved parts of it (step 11.5.5).

    Args:
        parameters: of the authority.
        verification: its keys, which the parts were proved by.
        partials: of one request, from distinct servers; the t + 1 lowest ids are used.

    Raises:
        NotEnoughAnswers: fewer than t + 1 of them.
        ParameterError: they are not of this authority and generation, not of one set of labels, or
            two are of one server.
    """
    found = sorted((one.partial for one in partials), key=lambda partial: partial.server)
    need = verification.quorum.threshold
    used = found[:need]
    if len(used) < need:
        raise NotEnoughAnswers(
            f"{len(used)} partial keys do not make a key (need {need})",
            have=len(used),
            need=need,
            cure="ask another server",
        )
    kinds = {(p.key.authority, p.generation, p.key.labels) for p in used}
    if kinds != {(parameters.authority, verification.generation, used[0].key.labels)}:
        raise ParameterError("partial keys of different requests or generations are not combined")
    return _interpolate(parameters, used)


def _interpolate(parameters: PublicParameters, used: Sequence[PartialKey]) -> AttributeKey:
    group = parameters.group
    factors = lagrange([partial.server for partial in used], group.order)
    keys = [partial.key for partial in used]

    def at_zero(points: Sequence[_Source]) -> _Source:
        return group.public_product(points, factors)

    components = {
        label: at_zero([key.components[label] for key in keys]) for label in keys[0].components
    }
    k, l_ = at_zero([key.k for key in keys]), at_zero([key.l for key in keys])
    return AttributeKey(parameters.authority, k, l_, components)
