"""Signed answers (section 10)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from .codec import u32, u64
from .refused import Refused

_LABEL = b"mksearch/1/answer\x00"


class Request(NamedTuple):
    """What a server is asked to score: a share for each vector."""

    query_id: bytes
    version: int
    segment: bytes
    level: int
    shares: Sequence[Sequence[int]]
    blocks: Sequence[int] = ()


def _elements(values: Sequence[int]) -> bytes:
    return b"".join(value.to_bytes(2, "little") for value in values)


def asked(request: Request) -> bytes:
    """Return the bytes of a request that are hashed."""
    kind = b"score-blocks\x00" if request.blocks else b"score\x00"
    head = kind + request.query_id + u64(request.version) + request.segment
    head += u32(request.level) + u32(len(request.shares))
    if request.blocks:
        head += u32(len(request.blocks)) + b"".join(u32(block) for block in request.blocks)
    return head + b"".join(_elements(share) for share in request.shares)


def score_message(request: Request, answer: Sequence[Sequence[Sequence[int]]]) -> bytes:
    """Return what is signed for sums: for every vector a list of rows, each with a sum a table."""
    rows, tables = len(answer[0]), len(answer[0][0])
    said = u32(len(answer)) + u64(rows) + u32(tables)
    said += b"".join(_elements(row) for sums in answer for row in sums)
    return _message(asked(request), said)


def manifest_message(nonce: bytes, file: bytes) -> bytes:
    """Return what is signed for a manifest file."""
    return _message(b"manifest\x00" + nonce, file)


def info_message(nonce: bytes, server: int, version: int, collection: bytes) -> bytes:
    """Return what is signed of a server; `collection` is empty where there is none."""
    return _message(b"info\x00" + nonce, u32(server) + u64(version) + collection)


def _message(question: bytes, said: bytes) -> bytes:
    return _LABEL + hashlib.sha256(question).digest() + hashlib.sha256(said).digest()


def sign(message: bytes, server_seed: bytes) -> bytes:
    """Sign a message with the Ed25519 private key of 32 bytes."""
    return Ed25519PrivateKey.from_private_bytes(server_seed).sign(message)


def require_signature(message: bytes, signature: bytes, server_key: bytes) -> None:
    """Refuse at 10 an answer without the signature of its server. Choice: the text has no steps."""
    try:
        Ed25519PublicKey.from_public_bytes(server_key).verify(signature, message)
    except InvalidSignature as error:
        raise Refused("10", "not signed by the server") from error
