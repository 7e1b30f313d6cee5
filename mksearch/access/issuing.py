"""What a server of the shared authority does: issue its part of a key (step 11.5.3)."""

from __future__ import annotations

from collections.abc import Iterable

from mksearch.access.attributes import Attribute, Label, key_labels
from mksearch.access.keys import (
    AttributeKey,
    AuthorityShare,
    PartialKey,
    PublicParameters,
    reveal_scalar,
)
from mksearch.access.scalars import draw_exponent
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.errors import ParameterError

__all__ = ["issue_partial", "make_key"]


def issue_partial(
    parameters: PublicParameters,
    share: AuthorityShare,
    attributes: Iterable[Attribute],
    epoch: int,
    random: RandomSource,
) -> PartialKey:
    """Make this server's part of a user's key; whether the user may have it was decided before.

    Args:
        parameters: of the authority.
        share: of this server; ``require_matches`` was asked once.
        attributes: of the credential.
        epoch: that the key is for.
        random: the operating system's.  The exponent drawn from it is this server's own and new
            every time: derived from anything that another server knows, it would give away
            ``g1^alpha_j``, and with that server's own share everything.

    Raises:
        PolicyError: no key can have these attributes.
        ParameterError: the share is of another authority.
    """
    if share.authority != parameters.authority:
        raise ParameterError("the share is of another authority than the parameters")
    wanted = key_labels(attributes, epoch)
    key = make_key(parameters, share.secret, wanted, random)
    return PartialKey(share.generation, share.server, key)


def make_key(
    parameters: PublicParameters, secret: SecretKey, wanted: Iterable[Label], random: RandomSource
) -> AttributeKey:
    """Make a key from ``alpha``, or a part of one from ``alpha_j`` (step 11.3.3).

    Args:
        parameters: of the authority.
        secret: 1..order-1.
        wanted: labels of the key.
        random: source of the exponent t.
    """
    group = parameters.group
    t = draw_exponent(group.order, random)
    k = group.multi_power([group.g1, parameters.base], [reveal_scalar(secret), t])
    components = {label: parameters.hash(label) ** t for label in sorted(wanted)}
    return AttributeKey(parameters.authority, k, group.g2**t, components)
