"""What an authority publishes, its servers hold and its users get (docs/protocol.md, 11.3, 11.6).

Formats and their checks: every point is proved to be in its group and not the identity when it is
read, and there is one encoding of everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

from mksearch.access.attributes import Label, epoch_of, require_labels
from mksearch.access.pairing import BLS12_381, G1, G2, PairingGroup
from mksearch.access.scalars import lagrange
from mksearch.codec import ByteReader, read_envelope, write_envelope
from mksearch.crypto import labels
from mksearch.crypto.kdf import sha256
from mksearch.crypto.secret import SecretKey
from mksearch.errors import FormatError, ParameterError, VerificationError
from mksearch.params import EPOCH_MAX, KEY_BYTES, Quorum

__all__ = [
    "AUTHORITY_BYTES",
    "AttributeKey",
    "AuthorityShare",
    "PartialKey",
    "PublicParameters",
    "VerificationKeys",
    "require_generation",
    "reveal_scalar",
    "seal_scalar",
]

#: Name of an authority: SHA-256 of its parameters.
AUTHORITY_BYTES = 32
#: Hashes of labels that are remembered: two full keys' worth.
_HASHES_MAX = 4096
_FORMAT = 1
_PARAMETERS, _VERIFICATION, _SHARE = b"MKAUTHPP", b"MKAUTHVK", b"MKAUTHSH"
_PARTIAL, _KEY = b"MKATTRPK", b"MKATTRKY"
_HASH_TAG = labels.ATTRIBUTE + b"\0BLS12381G1_XMD:SHA-256_SSWU_RO_"


def seal_scalar(value: int) -> SecretKey:
    """Return a secret number below 2**256 as one that does not show itself."""
    return SecretKey(value.to_bytes(KEY_BYTES, "big"))


def reveal_scalar(secret: SecretKey) -> int:
    """Return the secret number, for the arithmetic that needs it and nothing else."""
    return int.from_bytes(secret.reveal(), "big")


def require_generation(generation: int) -> int:
    """Return a generation of shares after proving its range.

    Raises:
        ParameterError: it is not in 1..2**64-1.
    """
    if not 1 <= generation <= EPOCH_MAX:
        raise ParameterError(f"share generation {generation} is not in 1..{EPOCH_MAX}")
    return generation


@dataclass(frozen=True, slots=True)
class PublicParameters:
    """What everybody knows of an authority.

    Attributes:
        base: ``A = g1^a``.
        public: ``B = g2^alpha``.
        group: the groups that both are of.
        authority: id, 32 bytes.
        hash: ``H(label)``: a point of which nobody knows the logarithm.  Remembered for the labels
            of late, which are public: a key of many labels is made and checked more than once.
    """

    base: G1
    public: G2
    group: PairingGroup = field(default=BLS12_381, repr=False)
    authority: bytes = field(init=False)
    hash: Callable[[Label], G1] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = sha256(labels.AUTHORITY, b"\0", self.encode())
        group = self.group

        def hash_label(label: Label) -> G1:
            return group.hash_to_g1(name + label, _HASH_TAG)

        object.__setattr__(self, "authority", name)
        object.__setattr__(self, "hash", lru_cache(_HASHES_MAX)(hash_label))

    def encode(self) -> bytes:
        """Return the file: 156 bytes, public."""
        return write_envelope(_PARAMETERS, _FORMAT) + self.base.encode() + self.public.encode()

    @classmethod
    def decode(cls, data: bytes, group: PairingGroup = BLS12_381) -> PublicParameters:
        """Read the file.

        Raises:
            FormatError: it is not the parameters of an authority.
        """
        reader = _open(data, _PARAMETERS, what := "an authority's parameters")
        base = group.decode_g1(reader.take(group.g1_bytes), f"the base of {what}")
        public = group.decode_g2(reader.take(group.g2_bytes), f"the public key of {what}")
        reader.finish()
        return cls(base, public, group)

    def __repr__(self) -> str:
        return f"PublicParameters(authority={self.authority.hex()[:16]}..)"


@dataclass(frozen=True, slots=True)
class VerificationKeys:
    """What each server's partial keys are checked by, for one dealing of the authority's secret.

    Attributes:
        authority: id, 32 bytes.
        generation: of the shares, from 1.
        quorum: number of servers and how many may collude.
        keys: ``V_j = g2^alpha_j`` of servers 1..n.
    """

    authority: bytes
    generation: int
    quorum: Quorum
    keys: tuple[G2, ...]

    def of(self, server: int) -> G2:
        """Return the key of a server.

        Raises:
            ParameterError: there is no such server.
        """
        if not 1 <= server <= len(self.keys):
            raise ParameterError(f"there is no server {server} among {len(self.keys)}")
        return self.keys[server - 1]

    def require_consistent(self, parameters: PublicParameters) -> None:
        """Prove that any t + 1 of the keys stand for the authority's secret.

        Raises:
            VerificationError: they do not, or they are of another authority.
        """
        if self.authority != parameters.authority:
            raise VerificationError("these verification keys are of another authority")
        t, n = self.quorum.collusion_bound, self.quorum.n_servers
        known = [parameters.public, *self.keys[:t]]
        for server in range(t + 1, n + 1):
            factors = lagrange(range(t + 1), parameters.group.order, at=server)
            if parameters.group.multi_power(known, factors) != self.of(server):
                raise VerificationError(
                    f"the verification keys of servers 1..{t} and {server} do not stand for the "
                    "authority's secret",
                    cure="get the authority's files from its owner again",
                )

    def encode(self) -> bytes:
        """Return the file: 54 bytes and 96 a server, public."""
        head = self.authority + self.generation.to_bytes(8, "big")
        sizes = bytes([self.quorum.collusion_bound, self.quorum.n_servers])
        points = b"".join(key.encode() for key in self.keys)
        return write_envelope(_VERIFICATION, _FORMAT) + head + sizes + points

    @classmethod
    def decode(cls, data: bytes, group: PairingGroup = BLS12_381) -> VerificationKeys:
        """Read the file; ``require_consistent`` comes next.

        Raises:
            FormatError: it is not verification keys.
        """
        reader = _open(data, _VERIFICATION, what := "an authority's verification keys")
        authority, generation = _read_generation(reader, what)
        t, n = reader.unsigned(1), reader.unsigned(1)
        try:
            quorum = Quorum(n, t)
        except ParameterError as error:
            raise FormatError(f"{what}: {error.message}") from None
        keys = tuple(
            group.decode_g2(reader.take(group.g2_bytes), f"the verification key of server {j}")
            for j in range(1, n + 1)
        )
        reader.finish()
        return cls(authority, generation, quorum, keys)


@dataclass(frozen=True, slots=True, eq=False)
class AuthorityShare:
    """One server's share ``alpha_j`` of the authority's secret.

    Attributes:
        authority: id, 32 bytes.
        generation: of the shares, from 1.
        server: its id, from 1.
        secret: ``alpha_j``, 1..order-1.
    """

    authority: bytes
    generation: int
    server: int
    secret: SecretKey

    def require_matches(self, parameters: PublicParameters, verification: VerificationKeys) -> None:
        """Prove that this is the share that the published key of its server stands for.

        Raises:
            VerificationError: it is not.
        """
        mine, theirs = (self.authority, self.generation), verification.generation
        if mine != (parameters.authority, theirs) or self.authority != verification.authority:
            raise VerificationError(
                f"a share of generation {self.generation} is of another authority or generation "
                f"than the verification keys ({theirs})"
            )
        power = parameters.group.g2 ** reveal_scalar(self.secret)
        if power != verification.of(self.server):
            raise VerificationError(
                f"the share of server {self.server} is not what its verification key stands for",
                cure="refuse it, and have the authority dealt again",
                server=self.server,
            )

    def encode(self) -> bytes:
        """Return the file: 85 bytes, secret."""
        head = self.authority + self.generation.to_bytes(8, "big") + bytes([self.server])
        return write_envelope(_SHARE, _FORMAT) + head + self.secret.reveal()

    @classmethod
    def decode(cls, data: bytes, group: PairingGroup = BLS12_381) -> AuthorityShare:
        """Read the file.

        Raises:
            FormatError: it is not a share.
        """
        reader = _open(data, _SHARE, what := "a share of an authority")
        authority, generation = _read_generation(reader, what)
        server = _read_server(reader, what)
        secret = SecretKey(reader.take(KEY_BYTES))
        reader.finish()
        if not 1 <= reveal_scalar(secret) < group.order:
            raise FormatError(f"{what} is not a number below the order of the group")
        return cls(authority, generation, server, secret)

    def __reduce__(self) -> str:
        raise TypeError("shares are secret and are never pickled")


@dataclass(frozen=True, slots=True, eq=False)
class AttributeKey:
    """What a user opens with: everything in it is secret.

    Attributes:
        authority: id of who issued it, 32 bytes.
        k: ``K = g1^alpha A^t``.
        l: ``L = g2^t``.
        components: ``K_x = H(x)^t`` by label.
    """

    authority: bytes
    k: G1
    l: G2  # noqa: E741 - the letter of the paper and of the protocol
    components: Mapping[Label, G1]

    @property
    def labels(self) -> frozenset[Label]:
        """What the key is for."""
        return frozenset(self.components)

    @property
    def epoch(self) -> int:
        """The epoch it is for."""
        return epoch_of(self.components)

    def encode(self) -> bytes:
        """Return the file, secret."""
        return write_envelope(_KEY, _FORMAT) + self.authority + self.encode_points()

    def encode_points(self) -> bytes:
        """Return ``K``, ``L`` and the components, as they stand in files."""
        entries = b"".join(
            len(label).to_bytes(2, "big") + label + self.components[label].encode()
            for label in sorted(self.components)
        )
        count = len(self.components).to_bytes(2, "big")
        return self.k.encode() + self.l.encode() + count + entries

    @classmethod
    def decode(cls, data: bytes, group: PairingGroup = BLS12_381) -> AttributeKey:
        """Read the file.

        Raises:
            FormatError: it is not a key.
        """
        reader = _open(data, _KEY, "an attribute key")
        return cls.read(reader, reader.take(AUTHORITY_BYTES), group)

    @classmethod
    def read(cls, reader: ByteReader, authority: bytes, group: PairingGroup) -> Self:
        """Read ``K``, ``L`` and the components: the rest of a file."""
        what = reader.what
        k = group.decode_g1(reader.take(group.g1_bytes), f"K of {what}")
        l_ = group.decode_g2(reader.take(group.g2_bytes), f"L of {what}")
        components: dict[Label, G1] = {}
        last = b""
        for _ in range(reader.unsigned(2)):
            label = reader.take(reader.unsigned(2))
            if label <= last:
                raise FormatError(f"{what} has labels that do not ascend")
            point = reader.take(group.g1_bytes)
            components[label] = group.decode_g1(point, f"a component of {what}")
            last = label
        reader.finish()
        require_labels(components, what)
        return cls(authority, k, l_, components)

    def __repr__(self) -> str:
        return f"AttributeKey({len(self.components)} labels, <redacted>)"

    def __reduce__(self) -> str:
        raise TypeError("attribute keys are secret and are never pickled")


@dataclass(frozen=True, slots=True, eq=False)
class PartialKey:
    """One server's part of an attribute key; t + 1 of them make it.

    Attributes:
        generation: of the share that it was made with.
        server: id of the server that made it.
        key: a key in the place of whose ``alpha`` is ``alpha_j``; secret.
    """

    generation: int
    server: int
    key: AttributeKey

    def encode(self) -> bytes:
        """Return the file, secret."""
        head = self.key.authority + self.generation.to_bytes(8, "big") + bytes([self.server])
        return write_envelope(_PARTIAL, _FORMAT) + head + self.key.encode_points()

    @classmethod
    def decode(cls, data: bytes, group: PairingGroup = BLS12_381) -> PartialKey:
        """Read the file; nothing of it is proved but its form.

        Raises:
            FormatError: it is not a partial key.
        """
        reader = _open(data, _PARTIAL, what := "a partial key")
        authority, generation = _read_generation(reader, what)
        server = _read_server(reader, what)
        return cls(generation, server, AttributeKey.read(reader, authority, group))

    def __reduce__(self) -> str:
        raise TypeError("partial keys are secret and are never pickled")


def _open(data: bytes, magic: bytes, what: str) -> ByteReader:
    read_envelope(data, magic, _FORMAT, what)
    reader = ByteReader(data, what)
    reader.take(len(write_envelope(magic, _FORMAT)))
    return reader


def _read_generation(reader: ByteReader, what: str) -> tuple[bytes, int]:
    authority, generation = reader.take(AUTHORITY_BYTES), reader.unsigned(8)
    if not generation:
        raise FormatError(f"{what} is of generation 0")
    return authority, generation


def _read_server(reader: ByteReader, what: str) -> int:
    server = reader.unsigned(1)
    if not server:
        raise FormatError(f"{what} is of server 0")
    return server
