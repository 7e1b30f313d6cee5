"""Signed answers: who said what to which question (docs/protocol.md, section 10)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mksearch.codec import (
    ENVELOPE_BYTES,
    decode_cbor,
    encode_cbor,
    read_envelope,
    require_map,
    write_envelope,
)
from mksearch.crypto import labels
from mksearch.crypto.kdf import sha256
from mksearch.crypto.signature import SIGNATURE_BYTES, SigningKey, verify
from mksearch.crypto.tickets import request_hash
from mksearch.errors import FormatError
from mksearch.messages import ScoreAnswer, ScoreRequest, SelectAnswer, SelectRequest
from mksearch.params import BLOCKS_MAX, KEY_BYTES, N_SERVERS_MAX, VECTOR_CLASSES, P

__all__ = ["NONCE_BYTES", "AnswerSigner", "AnswerVerifier", "Evidence"]

NONCE_BYTES = 16
_MAGIC = b"MKEVIDNC"
#: An answer about a whole level, and one about named blocks.
_OF_LEVEL, _OF_BLOCKS = 1, 2
_FIELDS: dict[str, type] = {
    "server": int,
    "server_key": bytes,
    "query_id": bytes,
    "version": int,
    "segment": bytes,
    "level": int,
    "n_vectors": int,
    "shares": bytes,
    "n_rows": int,
    "n_tables": int,
    "sums": bytes,
    "signature": bytes,
}
_LENGTHS = {"server_key": KEY_BYTES, "query_id": 16, "segment": 32, "signature": SIGNATURE_BYTES}
_TABLES_MAX = 255


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def _u64(value: int) -> bytes:
    return value.to_bytes(8, "big")


def _score_message(request: ScoreRequest, answer: ScoreAnswer) -> bytes:
    n_vectors, n_rows, n_tables = answer.sums.shape
    said = sha256(
        _u32(n_vectors),
        _u64(n_rows),
        _u32(n_tables),
        answer.sums.astype("<u2", copy=False).tobytes(),
    )
    return request_hash(request) + said


def _select_message(request: SelectRequest, answer: SelectAnswer) -> bytes:
    elements = answer.elements.astype("<u2", copy=False)
    return request_hash(request) + sha256(*map(_u32, elements.shape), elements.tobytes())


def _manifest_message(nonce: bytes, manifest: bytes) -> bytes:
    return sha256(b"manifest\0", nonce) + sha256(manifest)


def _info_message(nonce: bytes, server: int, version: int, collection: bytes) -> bytes:
    return sha256(b"info\0", nonce) + sha256(_u32(server), _u64(version), collection)


def _challenge_message(
    nonce: bytes, server: int, challenge: bytes, sealing_key: bytes, generation: int
) -> bytes:
    said = sha256(_u32(server), challenge, sealing_key, _u64(generation))
    return sha256(b"challenge\0", nonce) + said


class AnswerSigner:
    """Signs what one server answers."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key

    @property
    def public(self) -> bytes:
        """Ed25519 public key of the server, 32 bytes."""
        return self._key.public

    def score(self, request: ScoreRequest, answer: ScoreAnswer) -> bytes:
        """Sign a score answer: 64 bytes."""
        return self._key.sign(labels.ANSWER, _score_message(request, answer))

    def select(self, request: SelectRequest, answer: SelectAnswer) -> bytes:
        """Sign an answer of selected record slots: 64 bytes."""
        return self._key.sign(labels.ANSWER, _select_message(request, answer))

    def manifest(self, nonce: bytes, manifest: bytes) -> bytes:
        """Sign a manifest answer to ``nonce`` (16 bytes): 64 bytes."""
        return self._key.sign(labels.ANSWER, _manifest_message(nonce, manifest))

    def info(self, nonce: bytes, server: int, version: int, collection: bytes) -> bytes:
        """Sign who the server is and what it serves: 64 bytes."""
        return self._key.sign(labels.ANSWER, _info_message(nonce, server, version, collection))

    def challenge(
        self, nonce: bytes, server: int, challenge: bytes, sealing_key: bytes, generation: int
    ) -> bytes:
        """Sign a challenge (docs/protocol.md, 13.1): 64 bytes."""
        said = _challenge_message(nonce, server, challenge, sealing_key, generation)
        return self._key.sign(labels.ANSWER, said)


class AnswerVerifier:
    """Proves that answers come from the server whose key was pinned."""

    def __init__(self, server: int, public: bytes) -> None:
        """Prove answers of ``server`` against ``public``, its Ed25519 key of 32 bytes."""
        self._server = server
        self._public = public

    def _verify(self, message: bytes, signature: bytes) -> None:
        what = f"an answer of server {self._server}"
        verify(self._public, labels.ANSWER, message, signature, what)

    def score(self, request: ScoreRequest, answer: ScoreAnswer, signature: bytes) -> None:
        """Raise VerificationError unless the server signed ``answer`` to ``request``."""
        self._verify(_score_message(request, answer), signature)

    def select(self, request: SelectRequest, answer: SelectAnswer, signature: bytes) -> None:
        """Raise VerificationError unless the server signed ``answer`` to ``request``."""
        self._verify(_select_message(request, answer), signature)

    def manifest(self, nonce: bytes, manifest: bytes, signature: bytes) -> None:
        """Raise VerificationError unless the server signed ``manifest`` for ``nonce``."""
        self._verify(_manifest_message(nonce, manifest), signature)

    def info(
        self, nonce: bytes, server: int, version: int, collection: bytes, signature: bytes
    ) -> None:
        """Raise VerificationError unless the server signed what it is for ``nonce``."""
        self._verify(_info_message(nonce, server, version, collection), signature)

    def challenge(
        self,
        nonce: bytes,
        server: int,
        challenge: bytes,
        sealing_key: bytes,
        generation: int,
        signature: bytes,
    ) -> None:
        """Prove a challenge; raise VerificationError."""
        self._verify(
            _challenge_message(nonce, server, challenge, sealing_key, generation), signature
        )


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """A score answer that a server signed, and what it answers: who has the segment can judge it.

    Attributes:
        server: its id.
        server_key: its Ed25519 public key, 32 bytes.
        request: the server's share of a query; ``answer_shape`` and ``ticket`` are no part of it.
        answer: what it signed.
    """

    server: int
    server_key: bytes
    request: ScoreRequest
    answer: ScoreAnswer

    def encode(self) -> bytes:
        """Return the file (section 10)."""
        n_vectors, n_rows, n_tables = self.answer.sums.shape
        fields = {
            "server": self.server,
            "server_key": self.server_key,
            "query_id": self.request.query_id,
            "version": self.request.version,
            "segment": self.request.segment,
            "level": self.request.level,
            "n_vectors": n_vectors,
            "shares": self.request.shares.astype("<u2", copy=False).tobytes(),
            "n_rows": n_rows,
            "n_tables": n_tables,
            "sums": self.answer.sums.astype("<u2", copy=False).tobytes(),
            "signature": self.answer.signature,
        }
        if not self.request.blocks:
            return write_envelope(_MAGIC, _OF_LEVEL) + encode_cbor(fields)
        fields["blocks"] = b"".join(map(_u32, self.request.blocks))
        return write_envelope(_MAGIC, _OF_BLOCKS) + encode_cbor(fields)

    @classmethod
    def decode(cls, data: bytes) -> Evidence:
        """Read the file; ``require_signed`` comes next.

        Raises:
            FormatError: it is no evidence.
            UnsupportedVersion: of a later format.
        """
        what = "a file of evidence"
        found = read_envelope(data, _MAGIC, (_OF_LEVEL, _OF_BLOCKS), what)
        needed = _FIELDS if found == _OF_LEVEL else {**_FIELDS, "blocks": bytes}
        fields = require_map(decode_cbor(data[ENVELOPE_BYTES:], what), needed, what)
        for name, length in _LENGTHS.items():
            if len(fields[name]) != length:
                raise FormatError(f"{what}: {name} has {len(fields[name])} bytes (need {length})")
        shape = (fields["n_vectors"], fields["n_rows"], fields["n_tables"])
        in_range = (
            1 <= fields["server"] <= N_SERVERS_MAX
            and fields["version"] >= 1
            and fields["level"] < 1 << 32
            and shape[0] in VECTOR_CLASSES
            and shape[1] < 1 << 32
            and 1 <= shape[2] <= _TABLES_MAX
        )
        if not in_range:
            raise FormatError(f"{what} has a number out of range")
        n_bytes = 2 * shape[0] * shape[1] * shape[2]
        if len(fields["sums"]) != n_bytes:
            raise FormatError(f"{what} has sums of {len(fields['sums'])} bytes (need {n_bytes})")
        request = ScoreRequest(
            fields["query_id"],
            fields["version"],
            fields["segment"],
            fields["level"],
            _shares(fields["shares"], shape[0], what),
            blocks=_blocks(fields["blocks"], what) if found == _OF_BLOCKS else (),
        )
        sums = np.frombuffer(fields["sums"], "<u2").reshape(shape)
        answer = ScoreAnswer(fields["query_id"], sums, fields["signature"])
        return cls(fields["server"], fields["server_key"], request, answer)

    def require_signed(self, pinned: bytes) -> None:
        """Prove that the server whose key was pinned said this.

        Raises:
            FormatError: it is of a server with another key.
            VerificationError: the server did not sign it.
        """
        if self.server_key != pinned:
            raise FormatError(
                f"the evidence is of a server {self.server} with another key than the pinned one",
                cure="use the profile of the collection that it is of",
            )
        verifier = AnswerVerifier(self.server, pinned)
        verifier.score(self.request, self.answer, self.answer.signature)


def _blocks(data: bytes, what: str) -> tuple[int, ...]:
    if not data or len(data) % 4 or len(data) > 4 * BLOCKS_MAX:
        raise FormatError(f"{what} names blocks in {len(data)} bytes")
    blocks = tuple(np.frombuffer(data, ">u4").tolist())
    if any(a >= b for a, b in pairwise(blocks)):
        raise FormatError(f"{what} names blocks that do not ascend")
    return blocks


def _shares(data: bytes, n_vectors: int, what: str) -> NDArray[np.uint16]:
    if not data or len(data) % (2 * n_vectors):
        raise FormatError(f"{what} has shares of {len(data)} bytes for {n_vectors} vectors")
    shares = np.frombuffer(data, "<u2").reshape(n_vectors, -1)
    if int(shares.max()) >= P:
        raise FormatError(f"{what} has a share out of range")
    return shares
