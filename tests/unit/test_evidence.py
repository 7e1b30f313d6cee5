"""The file of evidence: what it holds, and what is refused (docs/protocol.md, section 10)."""

from __future__ import annotations

from typing import Any

import cbor2
import numpy as np
import pytest

from mksearch.crypto.evidence import AnswerSigner, Evidence
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.errors import FormatError, UnsupportedVersion, VerificationError
from mksearch.messages import ScoreAnswer, ScoreRequest
from mksearch.params import P

SIGNER = AnswerSigner(SigningKey(SecretKey(bytes(range(32)))))
OTHER = AnswerSigner(SigningKey(SecretKey(bytes(32))))


def _evidence(n_vectors: int = 2) -> Evidence:
    rng = np.random.default_rng(n_vectors)
    shares = rng.integers(0, P, (n_vectors, 24), np.uint16)
    request = ScoreRequest(b"q" * 16, 7, b"s" * 32, 0, shares)
    sums = rng.integers(0, P, (n_vectors, 9, 3), np.uint16)
    unsigned = ScoreAnswer(request.query_id, sums)
    answer = ScoreAnswer(request.query_id, sums, SIGNER.score(request, unsigned))
    return Evidence(3, SIGNER.public, request, answer)


@pytest.mark.parametrize("n_vectors", [1, 2, 4])
def test_a_file_reads_back_and_proves_its_signature(n_vectors: int) -> None:
    evidence = _evidence(n_vectors)
    data = evidence.encode()

    read = Evidence.decode(data)

    assert data[:12] == b"MKEVIDNC\0\0\0\1"
    assert read.encode() == data
    assert np.array_equal(read.request.shares, evidence.request.shares)
    assert np.array_equal(read.answer.sums, evidence.answer.sums)
    read.require_signed(SIGNER.public)
    with pytest.raises(FormatError, match="another key"):
        read.require_signed(OTHER.public)


def test_the_file_is_what_the_protocol_says() -> None:
    """Written a second time, from the text of the protocol alone."""
    evidence = _evidence(1)
    body = cbor2.loads(evidence.encode()[12:])

    assert body == {
        "server": 3,
        "server_key": SIGNER.public,
        "query_id": b"q" * 16,
        "version": 7,
        "segment": b"s" * 32,
        "level": 0,
        "n_vectors": 1,
        "shares": b"".join(int(x).to_bytes(2, "little") for x in evidence.request.shares[0]),
        "n_rows": 9,
        "n_tables": 3,
        "sums": b"".join(int(x).to_bytes(2, "little") for x in evidence.answer.sums.ravel()),
        "signature": evidence.answer.signature,
    }


def _changed(**changes: Any) -> bytes:
    data = _evidence().encode()
    return data[:12] + cbor2.dumps(cbor2.loads(data[12:]) | changes, canonical=True)


SHARES = bytes(2 * 2 * 24)


@pytest.mark.parametrize(
    "changes",
    [
        {"server": 0},
        {"server": 256},
        {"server_key": b"k" * 31},
        {"query_id": b"q" * 17},
        {"version": 0},
        {"segment": b"s"},
        {"level": 1 << 32},
        {"n_vectors": 0},
        {"n_vectors": 3},
        {"n_rows": 1 << 32},
        {"n_rows": 8},
        {"n_tables": 0},
        {"n_tables": 256},
        {"sums": b""},
        {"shares": b""},
        {"shares": SHARES[:-1]},
        {"shares": SHARES[:-2]},
        {"shares": SHARES[:-2] + P.to_bytes(2, "little")},
        {"signature": bytes(63)},
        {"server": True},
        {"sums": "text"},
        {"more": 1},
    ],
    ids=str,
)
def test_what_is_no_evidence_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        Evidence.decode(_changed(**changes))


def test_other_files_and_later_formats_are_refused() -> None:
    data = _evidence().encode()
    with pytest.raises(UnsupportedVersion):
        Evidence.decode(data[:11] + b"\3" + data[12:])
    for wrong in (b"", data[:12], data[:-1], data + b"\0", b"MKMANIFS" + data[8:]):
        with pytest.raises(FormatError):
            Evidence.decode(wrong)


@pytest.mark.parametrize("changes", [{"version": 8}, {"level": 1}, {"server": 4}, {"n_rows": 9}])
def test_every_field_of_the_question_is_signed(changes: dict[str, Any]) -> None:
    read = Evidence.decode(_changed(**changes))
    if changes in ({"n_rows": 9}, {"server": 4}):
        # Nothing was changed; and whose key it is, not which number, is what is signed.
        read.require_signed(SIGNER.public)
        return
    with pytest.raises(VerificationError):
        read.require_signed(SIGNER.public)
