"""Backups of an owner's secrets, shared over people by a policy (docs/protocol.md, 12.6).

A fresh scalar seals the secrets and is shared by the span program of a policy over names of keys.
Every share is sealed to the user key behind its name, so files may travel in the open; people who
together satisfy the policy open theirs and have the scalar, any others learn nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mksearch.access.backup_share import (
    BACKUP_BYTES,
    BackupBody,
    OpenedShare,
    SealedShare,
    backup_names,
    name_label,
    parse_backup_policy,
    rows_of,
)
from mksearch.access.keys import reveal_scalar, seal_scalar
from mksearch.access.pairing import BLS12_381
from mksearch.access.policy import is_qualified
from mksearch.access.scalars import draw_exponent
from mksearch.access.span_program import SpanProgram
from mksearch.crypto import labels
from mksearch.crypto.aead import Aead
from mksearch.crypto.kdf import derive
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.crypto.user_key import UserKey
from mksearch.errors import NotQualified, ParameterError, RecordRefused, VerificationError

__all__ = ["make_backup", "recover_content"]

#: The key is that of one backup and seals once.
_NONCE = bytes(12)


def make_backup(
    content: bytes,
    policy: str,
    user_keys: Mapping[str, UserKey],
    *,
    collection: bytes,
    signing: SigningKey,
    random: RandomSource,
) -> tuple[SealedShare, ...]:
    """Seal secrets so that people who satisfy a policy recover them together.

    Args:
        content: the owner's secrets; secret.
        policy: over ``key:NAME``.
        user_keys: public keys by NAME, of exactly the names of the policy, all different.
        collection: 16 bytes.
        signing: the owner's key.
        random: source of the scalar and its shares; what is sealed to user keys draws from the
            operating system.

    Returns:
        a share for each name, in the order of the policy.

    Raises:
        PolicyError: the policy does not parse or has another leaf (12.6.1).
        ParameterError: names and user keys do not match, or one person has two names.
        FormatError: a user key cannot be used.
    """
    parsed = parse_backup_policy(policy)
    names = backup_names(policy)
    _require_keys(names, user_keys)
    program = SpanProgram.of(parsed.formula, BLS12_381.order)
    scalar = draw_exponent(program.order, random)
    shares = program.share(scalar, random)
    backup = random.bytes(BACKUP_BYTES)
    key = _content_key(scalar, collection, backup, parsed.data)
    sealed = Aead(key).seal(_NONCE, content, collection + backup)
    made = []
    for name in names:
        user = user_keys[name]
        body = BackupBody(collection, signing.public, backup, parsed.data, name, user.id, sealed)
        rows = {row: seal_scalar(shares[row]) for row in rows_of(program, name)}
        made.append(SealedShare.seal(body, user, signing, rows))
    return tuple(made)


def _require_keys(names: Sequence[str], user_keys: Mapping[str, UserKey]) -> None:
    """Prove that every name has a user key of its own, and no other has one."""
    missing = [name for name in names if name not in user_keys]
    if missing:
        raise ParameterError(
            f"the policy names {missing[0]!r}, and there is no user key for it",
            cure=f"add --user-key {missing[0]}=FILE, or leave the name out",
        )
    unused = [name for name in user_keys if name not in names]
    if unused:
        raise ParameterError(
            f"there is a user key for {unused[0]!r}, and the policy does not name it",
            cure=f"write key:{unused[0]} into the policy, or leave the user key out",
        )
    first: dict[bytes, str] = {}
    for name in names:
        other = first.setdefault(user_keys[name].id, name)
        if other != name:
            raise ParameterError(
                f"{other!r} and {name!r} are one user key, so one person would count twice",
                cure="give every name the user key of another person",
            )


def _content_key(scalar: int, collection: bytes, backup: bytes, policy: bytes) -> SecretKey:
    return derive(seal_scalar(scalar), labels.BACKUP, collection + backup + policy)


def recover_content(shares: Sequence[OpenedShare]) -> bytes:
    """Recover the owner's secrets from the opened shares of people who satisfy the policy.

    Args:
        shares: of one backup, of different people.

    Returns:
        the secrets; secret.

    Raises:
        ParameterError: there is no share, or one person's twice.
        VerificationError: they are of different backups (12.6.2).
        NotQualified: their names do not satisfy the policy (12.6.3).
        RecordRefused: one of them was changed, so the content does not open (12.6.4).
    """
    if not shares:
        raise ParameterError("there is no opened share", cure="name one with --share")
    body = shares[0].body
    for share in shares:
        if share.body.common != body.common:
            raise VerificationError(
                f"the shares are of different backups: {_shown(body)}, and {_shown(share.body)}",
                cure="name only opened shares of one backup",
            )
    names = [share.body.name for share in shares]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ParameterError(
            f"the share of {twice[0]!r} is there twice", cure="name every share once"
        )
    program = body.program()
    held = frozenset(map(name_label, names))
    if not is_qualified(program.formula, held):
        missing = [n for n in backup_names(body.policy.decode()) if n not in names]
        raise NotQualified(
            f"the shares of {', '.join(names)} do not satisfy {body.policy.decode()}",
            cure=f"get opened shares of others as well: {', '.join(missing)}",
        )
    rows = {row: secret for share in shares for row, secret in share.rows.items()}
    scalar = 0
    for row, coefficient in program.coefficients(held).items():
        scalar = (scalar + coefficient * reveal_scalar(rows[row])) % program.order
    key = _content_key(scalar, body.collection, body.backup, body.policy)
    associated = body.collection + body.backup
    try:
        return Aead(key).open(_NONCE, body.content, associated, "the backup")
    except RecordRefused:
        raise RecordRefused(
            f"the backup does not open with the shares of {', '.join(names)}: one of them was "
            "changed",
            cure="have each share opened again from the file that the owner sent",
        ) from None


def _shown(body: BackupBody) -> str:
    return f"{body.name!r} holds one of {body.backup.hex()[:8]} by owner {body.owner_key.hex()[:8]}"
