"""What a server does with its share besides issuing: refresh, mask and repair it (13.6)."""

from __future__ import annotations

from collections.abc import Sequence

from mksearch.access.keys import (
    AuthorityShare,
    PublicParameters,
    VerificationKeys,
    reveal_scalar,
    seal_scalar,
)
from mksearch.access.pairing import G2
from mksearch.access.scalars import lagrange
from mksearch.crypto.secret import SecretKey
from mksearch.errors import FormatError, MksearchError, ParameterError, VerificationError
from mksearch.params import KEY_BYTES

__all__ = ["masked", "read_scalar", "refreshed", "repaired"]


def read_scalar(data: bytes, order: int, what: str) -> SecretKey:
    """Read a secret number of 1..order-1.

    Args:
        data: 32 bytes, big-endian; untrusted.
        order: of the group.
        what: names it in errors.

    Raises:
        FormatError: it is of another length or out of range.
    """
    if len(data) != KEY_BYTES or not 1 <= int.from_bytes(data, "big") < order:
        raise FormatError(f"{what} is not a number below the order of the group")
    return SecretKey(data)


def refreshed(
    parameters: PublicParameters,
    share: AuthorityShare,
    zero: SecretKey,
    verification: VerificationKeys,
) -> AuthorityShare:
    """Add a part of zero to a share (13.6.6).

    Args:
        parameters: of the authority.
        share: that the part is added to.
        zero: ``z_j``, 1..order-1.
        verification: keys of the new generation.

    Raises:
        FormatError: the sum is not the share that its verification key stands for.
    """
    order = parameters.group.order
    value = (reveal_scalar(share.secret) + reveal_scalar(zero)) % order
    return _proved(parameters, share.server, value, verification)


def masked(parameters: PublicParameters, share: AuthorityShare, mask: SecretKey) -> SecretKey:
    """Return a share as another server may see it: ``alpha_j + b(j)`` (13.6.4)."""
    value = reveal_scalar(share.secret) + reveal_scalar(mask)
    return seal_scalar(value % parameters.group.order)


def repaired(
    parameters: PublicParameters,
    verification: VerificationKeys,
    server: int,
    helpers: Sequence[int],
    masks: Sequence[G2],
    parts: Sequence[bytes],
) -> AuthorityShare:
    """Put a lost share together from masked ones (13.6.9, 13.6.10).

    Args:
        parameters: of the authority.
        verification: of the shares in use.
        server: whose share it is.
        helpers: t + 1 distinct ids.
        masks: ``g2^b(j)`` of each.
        parts: ``w_j`` of each, 32 bytes; untrusted, secret.

    Raises:
        ParameterError: not one mask and one part a helper.
        VerificationError: a part is not that of its helper, who is named.
        FormatError: the parts do not make the share of ``server``.
    """
    group = parameters.group
    if not len(helpers) == len(masks) == len(parts):
        raise ParameterError(f"{len(parts)} parts of {len(helpers)} helpers came")
    values = []
    for helper, mask, part in zip(helpers, masks, parts, strict=True):
        value = int.from_bytes(part, "big")
        is_right = len(part) == KEY_BYTES and value < group.order
        if not is_right or group.g2**value != verification.of(helper) * mask:
            raise VerificationError(
                f"the part of server {helper} is not its masked share",
                cure="repair with other servers",
                server=helper,
            )
        values.append(value)
    factors = lagrange(helpers, group.order, at=server)
    value = sum(f * v for f, v in zip(factors, values, strict=True)) % group.order
    return _proved(parameters, server, value, verification)


def _proved(
    parameters: PublicParameters, server: int, value: int, verification: VerificationKeys
) -> AuthorityShare:
    """Return a share after proving that its published key stands for it."""
    if not value:
        raise FormatError(f"a share of server {server} came out as 0")
    generation = verification.generation
    share = AuthorityShare(parameters.authority, generation, server, seal_scalar(value))
    try:
        share.require_matches(parameters, verification)
    except MksearchError as error:
        raise FormatError(f"a share of the authority: {error.message}") from None
    return share
