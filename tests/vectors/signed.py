"""Vectors of section 10: signed answers, good and bad."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from mksearch.crypto.evidence import AnswerSigner, AnswerVerifier
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.messages import ScoreAnswer, ScoreRequest
from tests.reference import evidence

from .material import COLLECTION, Json, draws, pack, seed, unpack

_P = 65521


def _signer(label: str = "server 2") -> AnswerSigner:
    return AnswerSigner(SigningKey(SecretKey(seed(label))))


def _numbers(label: str, n: int) -> list[str]:
    return pack(value % _P for value in draws(label, n))


def _score(n_vectors: int, width: int, rows: int, tables: int) -> Json:
    return {
        "kind": "score",
        "query_id": seed("signed query")[:16].hex(),
        "version": 7,
        "segment": seed("signed segment").hex(),
        "level": 1,
        "shares": [_numbers(f"share {i}", width) for i in range(n_vectors)],
        "rows": rows,
        "tables": tables,
        "sums": [_numbers(f"sums {i}", rows * tables) for i in range(n_vectors)],
    }


def cases() -> Iterator[Json]:
    """Yield answers without their signatures."""
    nonce = seed("nonce")[:16].hex()
    yield _score(1, 64, 8, 1)
    yield _score(2, 256, 16, 3)
    yield {"kind": "manifest", "nonce": nonce, "file": content_file().hex()}
    info: Json = {"kind": "info", "nonce": nonce, "server": 2, "version": 7}
    yield info | {"collection": COLLECTION.hex()}
    yield info | {"version": 0, "collection": ""}
    yield _score(1, 128, 16, 3) | {"blocks": [2, 700_000]}


def content_file() -> bytes:
    """Return bytes that stand for a manifest file: their content does not matter here."""
    return b"MKMANIFS" + seed("signed manifest")


def signed() -> Json:
    """Answers of one server, with what it signs."""
    return {
        "about": "Answers of a server and its Ed25519 signatures; keys are made from 32 bytes.",
        "source": "docs/protocol.md, section 10",
        "server_seed": seed("server 2").hex(),
        "server_key": _signer().public.hex(),
        "answers": [case | {"signature": sign(case).hex()} for case in cases()],
    }


def sign(case: Json, signer: AnswerSigner | None = None) -> bytes:
    """Sign an answer with the product."""
    key = signer or _signer()
    if case["kind"] == "score":
        return key.score(*_messages(case))
    nonce = bytes.fromhex(case["nonce"])
    if case["kind"] == "manifest":
        return key.manifest(nonce, bytes.fromhex(case["file"]))
    return key.info(nonce, case["server"], case["version"], bytes.fromhex(case["collection"]))


def _messages(case: Json) -> tuple[ScoreRequest, ScoreAnswer]:
    query_id, segment = bytes.fromhex(case["query_id"]), bytes.fromhex(case["segment"])
    shares = np.array([unpack(share) for share in case["shares"]], np.uint16)
    sums = np.array([unpack(sums) for sums in case["sums"]], np.uint16)
    answer = sums.reshape(len(sums), case["rows"], case["tables"])
    blocks = tuple(case.get("blocks", ()))
    request = ScoreRequest(query_id, case["version"], segment, case["level"], shares, blocks=blocks)
    return request, ScoreAnswer(query_id, answer)


def verify_fast(case: Json) -> None:
    """Prove an answer with the product."""
    verifier = AnswerVerifier(2, bytes.fromhex(case["server_key"]))
    answer, signature = case["answer"], bytes.fromhex(case["signature"])
    if answer["kind"] == "score":
        verifier.score(*_messages(answer), signature)
        return
    nonce = bytes.fromhex(answer["nonce"])
    if answer["kind"] == "manifest":
        verifier.manifest(nonce, bytes.fromhex(answer["file"]), signature)
        return
    collection = bytes.fromhex(answer["collection"])
    verifier.info(nonce, answer["server"], answer["version"], collection, signature)


# --- the reference -------------------------------------------------------------------------------


def message_slow(case: Json) -> bytes:
    """Return what the reference says is signed."""
    if case["kind"] == "score":
        request = evidence.Request(
            bytes.fromhex(case["query_id"]),
            case["version"],
            bytes.fromhex(case["segment"]),
            case["level"],
            [unpack(share) for share in case["shares"]],
            case.get("blocks", ()),
        )
        tables = case["tables"]
        flat = [unpack(sums) for sums in case["sums"]]
        sums = [[s[at : at + tables] for at in range(0, len(s), tables)] for s in flat]
        return evidence.score_message(request, sums)
    nonce = bytes.fromhex(case["nonce"])
    if case["kind"] == "manifest":
        return evidence.manifest_message(nonce, bytes.fromhex(case["file"]))
    collection = bytes.fromhex(case["collection"])
    return evidence.info_message(nonce, case["server"], case["version"], collection)


def verify_slow(case: Json) -> None:
    """Prove an answer with the reference."""
    key, signature = bytes.fromhex(case["server_key"]), bytes.fromhex(case["signature"])
    evidence.require_signature(message_slow(case["answer"]), signature, key)


def check_signed(file: Json) -> None:
    """Compare the reference with a file of good vectors."""
    for answer in file["answers"]:
        message = message_slow(answer)
        assert (
            evidence.sign(message, bytes.fromhex(file["server_seed"])).hex()
            == (answer["signature"])
        )
        case = {"server_key": file["server_key"], "answer": answer}
        verify_slow(case | {"signature": answer["signature"]})
        verify_fast(case | {"signature": answer["signature"]})


# --- bad vectors ---------------------------------------------------------------------------------

Change = Callable[[Json], Json]


def bad() -> Iterator[tuple[str, Json]]:
    """Yield signatures that are not those of the answer."""
    score, _, manifest, info, _, blocks = cases()
    other_sums = [_numbers("other sums", 8)]
    for name, about, answer, signature in (
        ("other_server", "signed by another server", score, sign(score, _signer("server 3"))),
        (
            "changed",
            "a bit of the signature changed",
            score,
            bytes([sign(score)[0] ^ 1]) + sign(score)[1:],
        ),
        (
            "other_query",
            "of another query",
            score | {"query_id": seed("x")[:16].hex()},
            sign(score),
        ),
        ("other_version", "of another version", score | {"version": 8}, sign(score)),
        ("other_segment", "of another segment", score | {"segment": seed("x").hex()}, sign(score)),
        ("other_level", "of another level", score | {"level": 0}, sign(score)),
        ("other_share", "for another share", score | {"shares": [_numbers("x", 64)]}, sign(score)),
        ("blocks", "for other blocks", blocks | {"blocks": [2, 700_001]}, sign(blocks)),
        ("whole_level", "of blocks, for a whole level", blocks | {"blocks": []}, sign(blocks)),
        ("no_level", "of a whole level, for blocks", score | {"blocks": [0]}, sign(score)),
        ("other_sums", "with other sums", score | {"sums": other_sums}, sign(score)),
        (
            "other_shape",
            "with sums of another shape",
            score | {"rows": 4, "tables": 2},
            sign(score),
        ),
        (
            "replay",
            "a manifest for another nonce",
            manifest | {"nonce": bytes(16).hex()},
            sign(manifest),
        ),
        ("other_manifest", "another manifest", manifest | {"file": "00"}, sign(manifest)),
        ("other_id", "of another server id", info | {"server": 3}, sign(info)),
        ("other_kind", "the signature of a manifest answer", info, sign(manifest)),
    ):
        yield (
            f"signed_{name}",
            {
                "kind": "signed",
                "about": about,
                "refused_at": "10",
                "exception": "VerificationError",
                "server_key": _signer().public.hex(),
                "answer": answer,
                "signature": signature.hex(),
            },
        )
