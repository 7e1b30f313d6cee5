"""A group's key bundle, sealed for those who may open the group (docs/protocol.md, 12.4)."""

from __future__ import annotations

from mksearch.access.cpabe import Header, decapsulate, encapsulate
from mksearch.access.enrolment import MemberSecrets
from mksearch.access.keys import PublicParameters
from mksearch.access.policy import Policy
from mksearch.codec import ENVELOPE_BYTES, read_envelope, write_envelope
from mksearch.crypto import labels
from mksearch.crypto.aead import TAG_BYTES, Aead
from mksearch.crypto.bundle import KINDS, KeyBundle
from mksearch.crypto.kdf import derive, derive_from_both
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.errors import FormatError, NotQualified
from mksearch.params import KEY_BYTES

__all__ = ["open_bundle", "seal_bundle"]

_MAGIC, _FORMAT = b"MKBUNDLE", 1
_LENGTH_BYTES = 4
_NONCE_BYTES = 12
_BUNDLE_BYTES = len(KINDS) * KEY_BYTES
_SEALED_BYTES = _NONCE_BYTES + _BUNDLE_BYTES + TAG_BYTES


def _context(parameters: PublicParameters, collection: bytes, epoch: int, policy: bytes) -> bytes:
    return parameters.authority + collection + epoch.to_bytes(8, "big") + policy


def seal_bundle(
    bundle: KeyBundle,
    parameters: PublicParameters,
    member_secret: SecretKey,
    random: RandomSource,
    *,
    collection: bytes,
    epoch: int,
    policy: bytes,
) -> bytes:
    """Seal the keys of a group for the members that satisfy its policy.

    Args:
        bundle: keys of (policy, epoch).
        parameters: of the collection's authority.
        member_secret: of the epoch.
        random: source of the encapsulation and of a nonce.
        collection: 16 bytes.
        epoch: from 1.
        policy: as it stands in the manifest; b"" for every member.

    Returns:
        the file.

    Raises:
        FormatError: the policy does not parse.
    """
    context = _context(parameters, collection, epoch, policy)
    header = b""
    if policy:
        made, abe_key = encapsulate(parameters, Policy.decode(policy), epoch, collection, random)
        header = made.encode()
        key = derive_from_both(abe_key, member_secret, labels.BUNDLE_SEAL, context)
    else:
        key = derive(member_secret, labels.BUNDLE_MEMBERS, context)
    nonce = random.bytes(_NONCE_BYTES)
    sealed = Aead(key).seal(nonce, bundle.encode(), context + header)
    size = len(header).to_bytes(_LENGTH_BYTES, "big")
    return write_envelope(_MAGIC, _FORMAT) + size + header + nonce + sealed


def open_bundle(
    data: bytes,
    parameters: PublicParameters,
    secrets: MemberSecrets,
    *,
    collection: bytes,
    epoch: int,
    policy: bytes,
) -> KeyBundle:
    """Open the keys of a group (refusals 12.4.1 to 12.4.4).

    Args:
        data: the file, proved to be the manifest's.
        parameters: of the collection's authority.
        secrets: of the user.
        collection: 16 bytes.
        epoch: of the group.
        policy: as it stands in the manifest; b"" for every member.

    Raises:
        NotQualified: the user's attributes do not satisfy the policy, or the keys are of another
            epoch.
        FormatError: not a sealed bundle, or not of this policy.
        RecordRefused: it was sealed under another member secret, or changed.
    """
    header, sealed = _cut(data)
    if bool(header) != bool(policy):
        raise FormatError("a sealed bundle has a header without a policy, or lacks one")
    if secrets.attribute_key.epoch != epoch:
        raise NotQualified(
            f"the group is of epoch {epoch}, and the credential of {secrets.attribute_key.epoch}",
            cure="ask the admin for a credential of the current epoch",
        )
    context = _context(parameters, collection, epoch, policy)
    if policy:
        abe_key = decapsulate(
            parameters,
            secrets.attribute_key,
            Policy.decode(policy),
            epoch,
            collection,
            Header.decode(header),
        )
        key = derive_from_both(abe_key, secrets.member_secret, labels.BUNDLE_SEAL, context)
    else:
        key = derive(secrets.member_secret, labels.BUNDLE_MEMBERS, context)
    nonce, ciphertext = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    opened = Aead(key).open(nonce, ciphertext, context + header, "the key bundle of a group")
    return KeyBundle.decode(opened)


def _cut(data: bytes) -> tuple[bytes, bytes]:
    read_envelope(data, _MAGIC, _FORMAT, "a sealed bundle")
    start = ENVELOPE_BYTES + _LENGTH_BYTES
    stop = start + int.from_bytes(data[ENVELOPE_BYTES:start], "big")
    if len(data) != stop + _SEALED_BYTES:
        raise FormatError(f"a sealed bundle has {len(data)} bytes (need {stop + _SEALED_BYTES})")
    return data[start:stop], data[stop:]
