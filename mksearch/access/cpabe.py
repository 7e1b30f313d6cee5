"""Ciphertext-policy attribute-based key encapsulation: Waters 2011, type 3 (protocol, 11.3, 11.4).

The scheme hides a key from everyone whose attributes do not satisfy a policy, however many of them
there are and whatever they put together.  It is secure against chosen plaintexts only: a header is
held in place by the signature of what carries it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mksearch.access.attributes import Attribute, key_labels
from mksearch.access.issuing import make_key
from mksearch.access.keys import AttributeKey, PublicParameters, seal_scalar
from mksearch.access.pairing import BLS12_381, G1, G2, GT, PairingGroup
from mksearch.access.policy import Policy
from mksearch.access.scalars import draw_exponent
from mksearch.access.span_program import SpanProgram
from mksearch.codec import ENVELOPE_BYTES, ByteReader, read_envelope, write_envelope
from mksearch.crypto import labels
from mksearch.crypto.kdf import derive, sha256
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.errors import FormatError
from mksearch.params import POLICY_LEAVES_MAX

__all__ = ["Header", "MasterKey", "decapsulate", "encapsulate", "generate_key", "set_up"]

_MAGIC, _FORMAT = b"MKACCHDR", 1


@dataclass(frozen=True, slots=True, eq=False)
class MasterKey:
    """The secret ``alpha`` of an authority: who has it opens everything, so it is forgotten."""

    alpha: SecretKey

    def __reduce__(self) -> str:
        raise TypeError("master keys are never pickled")


@dataclass(frozen=True, slots=True)
class Header:
    """What lets the qualified recover a key: public.

    Attributes:
        c: ``C = g2^s``.
        rows: ``(C_i, D_i)`` for each row of the span program.
    """

    c: G2
    rows: tuple[tuple[G1, G2], ...]

    def encode(self) -> bytes:
        """Return the file: 108 bytes and 144 a row, public."""
        pairs = b"".join(c.encode() + d.encode() for c, d in self.rows)
        return write_envelope(_MAGIC, _FORMAT) + self.c.encode() + pairs

    @classmethod
    def decode(cls, data: bytes, group: PairingGroup = BLS12_381) -> Header:
        """Read the file.

        Raises:
            FormatError: it is not a header.
        """
        read_envelope(data, _MAGIC, _FORMAT, what := "an access header")
        row_bytes = group.g1_bytes + group.g2_bytes
        n_rows, rest = divmod(len(data) - ENVELOPE_BYTES - group.g2_bytes, row_bytes)
        if rest or not 1 <= n_rows <= POLICY_LEAVES_MAX + 1:
            raise FormatError(f"{what} of {len(data)} bytes has no whole number of rows in range")
        reader = ByteReader(data[ENVELOPE_BYTES:], what)
        c = group.decode_g2(reader.take(group.g2_bytes), f"C of {what}")
        rows = tuple(
            (
                group.decode_g1(reader.take(group.g1_bytes), f"C_{i} of {what}"),
                group.decode_g2(reader.take(group.g2_bytes), f"D_{i} of {what}"),
            )
            for i in range(n_rows)
        )
        reader.finish()
        return cls(c, rows)


def set_up(
    random: RandomSource, group: PairingGroup = BLS12_381
) -> tuple[PublicParameters, MasterKey]:
    """Make an authority (step 11.3.1); `authority.set_up_shared` deals it at once.

    Args:
        random: source of ``alpha`` and ``a``; the latter is forgotten here.
        group: groups to use.
    """
    alpha, a = draw_exponent(group.order, random), draw_exponent(group.order, random)
    return PublicParameters(group.g1**a, group.g2**alpha, group), MasterKey(seal_scalar(alpha))


def generate_key(
    parameters: PublicParameters,
    master: MasterKey,
    attributes: Iterable[Attribute],
    epoch: int,
    random: RandomSource,
) -> AttributeKey:
    """Make a whole key where the secret is in one place (step 11.3.3).

    Raises:
        PolicyError: no key can have these attributes, or the epoch is out of range.
    """
    return make_key(parameters, master.alpha, key_labels(attributes, epoch), random)


def encapsulate(
    parameters: PublicParameters,
    policy: Policy,
    epoch: int,
    context: bytes,
    random: RandomSource,
) -> tuple[Header, SecretKey]:
    """Make a fresh key that exactly the keys satisfying (policy, epoch) can recover.

    Args:
        parameters: of the authority.
        policy: as it stands in the manifest; its typed bytes go into the key.
        epoch: from 1.
        context: what else the key is bound to, such as the collection.
        random: source of the secret, the shares and an exponent for each row.

    Returns:
        The header, to be signed and published, and the key, 32 secret bytes.

    Raises:
        PolicyError: the epoch is out of range.
    """
    group = parameters.group
    program = SpanProgram.of(policy.at_epoch(epoch), group.order)
    secret = draw_exponent(group.order, random)
    shares = program.share(secret, random)
    hashes = {label: parameters.hash(label) for label in dict.fromkeys(program.row_labels)}
    rows = []
    for label, share in zip(program.row_labels, shares, strict=True):
        r = draw_exponent(group.order, random)
        bases, exponents = [parameters.base, hashes[label]], [share, group.order - r]
        rows.append((group.multi_power(bases, exponents), group.g2**r))
    header = Header(group.g2**secret, tuple(rows))
    shared = group.pair([(group.g1**secret, parameters.public)])
    return header, _abe_key(parameters, policy, epoch, context, header, shared)


def decapsulate(
    parameters: PublicParameters,
    key: AttributeKey,
    policy: Policy,
    epoch: int,
    context: bytes,
    header: Header,
) -> SecretKey:
    """Recover the key that ``encapsulate`` made (step 11.4.4).

    A header that was changed, or another policy, epoch or context, gives another key: that the
    result is right shows when what it seals opens.

    Args:
        parameters: of the authority.
        key: of the user.
        policy: as it stands in the manifest.
        epoch: from 1.
        context: as given to ``encapsulate``.
        header: as published.

    Returns:
        The key, 32 secret bytes.

    Raises:
        NotQualified: the key's attributes do not satisfy the policy, or it is of another epoch.
        FormatError: the header is not of this policy, or the key of another authority.
    """
    group = parameters.group
    if key.authority != parameters.authority:
        raise FormatError(
            "the attribute key is of another authority", cure="enrol with this authority"
        )
    program = SpanProgram.of(policy.at_epoch(epoch), group.order)
    if len(header.rows) != len(program.matrix):
        raise FormatError(
            f"an access header has {len(header.rows)} rows (its policy has {len(program.matrix)})"
        )
    powers = {row: group.order - w for row, w in program.coefficients(key.labels).items()}
    covered = group.public_product([header.rows[row][0] for row in powers], list(powers.values()))
    pairs = [(key.k, header.c), (covered, key.l)]
    for row, exponent in powers.items():
        component = key.components[program.row_labels[row]]
        pairs.append((group.public_product([component], [exponent]), header.rows[row][1]))
    return _abe_key(parameters, policy, epoch, context, header, group.pair(pairs))


def _abe_key(
    parameters: PublicParameters,
    policy: Policy,
    epoch: int,
    context: bytes,
    header: Header,
    shared: GT,
) -> SecretKey:
    """Derive the key from the element that both sides know (step 11.4.3)."""
    size = len(policy.data).to_bytes(4, "big")
    bound = parameters.authority + epoch.to_bytes(8, "big") + sha256(header.encode())
    return derive(
        SecretKey(sha256(shared.encode())), labels.ACCESS, bound + size + policy.data + context
    )
