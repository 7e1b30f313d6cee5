"""Signed answers: who said what to which question (docs/protocol.md, section 10)."""

from __future__ import annotations

from mksearch.crypto import labels
from mksearch.crypto.kdf import sha256
from mksearch.crypto.signature import SigningKey, verify
from mksearch.crypto.tickets import request_hash
from mksearch.messages import ScoreAnswer, ScoreRequest

__all__ = ["NONCE_BYTES", "AnswerSigner", "AnswerVerifier"]

NONCE_BYTES = 16


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
