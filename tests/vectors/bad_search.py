"""Bad vectors of section 8: openings, shares, answers, record slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.aead import Aead
from mksearch.crypto.kdf import sha256
from mksearch.index.record import Member, encode_record
from mksearch.index.slots import _associated, _elements, _nonce, _Tags
from mksearch.messages import ScoreAnswer
from mksearch.params import P, Quorum

from .bad_files import SMALL, pieces_of, setting, vector_of, with_header
from .fast import bundle_of, with_errors
from .good_index import built_segment, segment_case
from .good_search import QUERY_ID, SEGMENT, client_of, new_attempt
from .material import COLLECTION, OWNER, Json, pack, seed

Elements = NDArray[np.uint16]


def files() -> dict[str, Json]:
    """Return the bad vectors by name."""
    return {
        **{f"opening_{name}": file for name, file in _openings()},
        **{f"share_{name}": file for name, file in _shares()},
        **{f"answer_{name}": file for name, file in _answers()},
        **{f"record_{name}": file for name, file in _slots()},
        **{f"record_bytes_{name}": file for name, file in _record_bytes()},
    }


# --- 8.0 -----------------------------------------------------------------------------------------


def _openings() -> Iterator[tuple[str, Json]]:
    case = segment_case("small")
    page = built_segment("small").data[:4096]
    salt = bytes.fromhex(case["salt"])

    def vector(
        about: str,
        *,
        header: bytes = page,
        named: bytes = b"",
        manifest_salt: bytes = salt,
        known: bytes = salt,
        analyzer: str = "plain-1",
        scoring: Json | None = None,
    ) -> Json:
        entry = {"id": sha256(named or header).hex(), "size": 13_938, "salt": manifest_salt.hex()}
        return vector_of(
            "opening",
            about,
            "8.0",
            "FormatError",
            segment="small",
            group={"analyzer": "plain-1", "scoring": case["scoring"], "segments": [entry]},
            dictionary={
                "analyzer": analyzer,
                "scoring": scoring or case["scoring"],
                "salt": known.hex(),
            },
            header=pieces_of(header, SMALL),
        )

    other = seed("another salt")
    yield (
        "segment",
        vector(
            "a header of another id", header=with_header(setting("epoch", 9))[:4096], named=page
        ),
    )
    yield "salt", vector("a salt that the header does not carry", manifest_salt=other, known=other)
    foreign = with_header(setting("collection", seed("foreign")[:16]))[:4096]
    yield "collection", vector("a header of another collection", header=foreign)
    yield "facts", vector("a dictionary without facts of the segment", known=other)
    yield "analyzer", vector("a dictionary of another analyzer", analyzer="english-1")
    scoring = {"kind": "bm25", "k1": 1.2, "b": 0.75}
    yield "scoring", vector("a dictionary of another scoring", scoring=scoring)


# --- 8.3 -----------------------------------------------------------------------------------------


def _shares() -> Iterator[tuple[str, Json]]:
    attempt, _ = new_attempt(["été", "w001"], Quorum(), "bad share")
    share = attempt.request(1).shares[0].tolist()

    def vector(about: str, bad: Sequence[int]) -> Json:
        error = "ParameterError"
        return vector_of("share", about, "8.3", error, segment=SEGMENT, level=0, share=pack(bad))

    yield "element", vector("an element of p", [P, *share[1:]])
    yield "large_element", vector("an element of 65535", [*share[:-1], 65_535])
    yield "short", vector("64 elements less", share[:-64])
    yield "long", vector("a share of another level", [*share, *share[:192]])


# --- 8.4 to 8.7 ----------------------------------------------------------------------------------

_LIE: list[Json] = [{"server": 2, "row": 11, "table": 1, "add": 1}]


def _answers() -> Iterator[tuple[str, Json]]:
    terms, quorum = ["été", "w001"], Quorum()
    attempt, drawn = new_attempt(terms, quorum, "bad answers")
    earlier, _ = new_attempt(terms, quorum, "an earlier attempt", query_id=seed("earlier")[:16])
    client = client_of()
    honest = {j: client.answer(attempt, j) for j in (1, 2, 3)}
    sums = honest[2].sums

    def vector(
        about: str,
        step: str,
        error: str,
        answers: dict[int, ScoreAnswer],
        liars: Sequence[int],
        further: int | None = 3,
    ) -> Json:
        return vector_of(
            "answers",
            about,
            step,
            error,
            segment=SEGMENT,
            terms=terms,
            level=0,
            collusion_bound=1,
            query_id=QUERY_ID.hex(),
            coefficients=[pack(c) for c in drawn.tolist()],
            answers=[_packed(j, answer) for j, answer in answers.items()],
            liars=list(liars),
            further=_packed(further, honest[further]) if further else None,
        )

    def malformed(about: str, bad: ScoreAnswer) -> Json:
        return vector(about, "8.4", "FormatError", {1: honest[1], 2: bad}, [2])

    def lying(about: str, bad: Elements) -> Json:
        answers = {1: honest[1], 2: ScoreAnswer(QUERY_ID, bad)}
        return vector(about, "8.7", "NotEnoughAnswers", answers, [2])

    replay = client.answer(earlier, 2)
    yield "replay", malformed("an answer to an earlier attempt", replay)
    yield "rows", malformed("a row less", ScoreAnswer(QUERY_ID, sums[:, :-1]))
    yield "tables", malformed("a table less", ScoreAnswer(QUERY_ID, sums[:, :, :-1]))
    large = sums.copy()
    large[0, 0, 0] = P
    yield "element", malformed("an element of p", ScoreAnswer(QUERY_ID, large))
    yield "sum", lying("one sum wrong by one", with_errors(honest[2], 2, _LIE).sums)
    check = [{"server": 2, "row": 5, "table": 0, "add": 7}]
    yield "check_row", lying("a sum of a check row wrong", with_errors(honest[2], 2, check).sums)
    yield "replay_renamed", lying("sums of an earlier attempt under the new id", replay.sums)
    yield "other_share", lying("sums for the share of server 3", honest[3].sums)
    yield "zeros", lying("zeros", np.zeros_like(sums))
    yield "rows_swapped", lying("the sums of two rows swapped", sums[:, [1, 0, *range(2, 64)]])
    both = {j: with_errors(honest[j], j, [{**_LIE[0], "server": j, "add": 4 + j}]) for j in (1, 2)}
    yield "both_lie", vector("both lie in one block", "8.7", "NotEnoughAnswers", both, [1, 2], None)
    one = {1: honest[1]}
    yield "too_few", vector("one answer where two are needed", "8.7", "NotEnoughAnswers", one, [])


def _packed(server: int, answer: ScoreAnswer) -> Json:
    _, rows, tables = answer.sums.shape
    return {
        "server": server,
        "query_id": answer.query_id.hex(),
        "rows": rows,
        "tables": tables,
        "sums": pack(answer.sums.reshape(-1).tolist()),
    }


# --- 8.10, slots ---------------------------------------------------------------------------------


def _sealed(
    plain: bytes,
    *,
    row: int = 0,
    part: int = 0,
    salt: bytes | None = None,
    collection: bytes = COLLECTION,
) -> list[int]:
    """Seal one part as the segment's owner would, or nearly so; return the slot of row 0."""
    client = client_of()
    slots = client.segment.slots
    own_salt = client.reader.header.salt
    keys = bundle_of(OWNER).segment_keys(salt or own_salt)
    nonce = _nonce(row, part)
    associated = _associated(collection, salt or own_salt) + nonce
    padded = plain.ljust(slots.shape.part_bytes, b"\0")
    sealed = np.frombuffer(Aead(keys.record).seal(nonce, padded, associated), np.uint8)
    elements = _elements(sealed[None])
    first = slots.physical(0) // 8 * 8
    rows = np.repeat(elements, slots.physical(0) - first + 1, axis=0)
    tags = _Tags(keys.tag, slots.shape).compute(rows, first)[-1]
    return [*elements[0].tolist(), *tags.tolist()]


def _framed(record: bytes, spill: int = 0, size: int | None = None) -> bytes:
    length = len(record) if size is None else size
    return length.to_bytes(4, "big") + spill.to_bytes(4, "big") + record


def _spilling_row() -> tuple[int, list[list[int]]]:
    """Return a row with spill and its slots."""
    client = client_of()
    slots, reader = client.segment.slots, client.reader.slots()
    for row in range(client.segment.n_rows):
        first = reader[slots.physical(row)]
        _, more = slots.parse_frame(slots.open_part(row, 0, first))
        if len(more) > 1:
            return row, [reader[slots.physical(slot)].tolist() for slot in (row, *more)]
    raise AssertionError("no record has three parts")


SMALL_RECORD = encode_record([], [], 0, [Member("a", "", "")])


def _slots() -> Iterator[tuple[str, Json]]:
    client = client_of()
    reader = client.reader.slots()
    own = reader[client.segment.slots.physical(0)].tolist()
    other = reader[client.segment.slots.physical(1)].tolist()
    n_rows, n_slots = client.segment.n_rows, client.segment.slots.n_slots
    n_terms = len(client.view.dictionary.terms)

    def vector(about: str, step: str, error: str, *rounds: list[list[int]], row: int = 0) -> Json:
        responses = [[pack(slot) for slot in slots] for slots in rounds]
        return vector_of(
            "record",
            about,
            step,
            error,
            segment=SEGMENT,
            row=row,
            n_terms=n_terms,
            responses=responses,
        )

    format_, refused = "FormatError", "RecordRefused"
    yield "none", vector("no slot", "8.10.1", format_, [])
    yield "two", vector("two slots for one", "8.10.1", format_, [own, own])
    yield "short", vector("a slot of an element less", "8.10.1", format_, [own[:-1]])
    yield "element", vector("an element of 2^15", "8.10.2", format_, [[1 << 15, *own[1:]]])
    yield "tag", vector("a tag of p", "8.10.2", format_, [[*own[:-1], P]])
    yield "changed", vector("a bit changed", "8.10.3", refused, [[own[0] ^ 1, *own[1:]]])
    yield "other_row", vector("the slot of another row", "8.10.3", refused, [other])
    good = _framed(SMALL_RECORD)
    salt = _sealed(good, salt=seed("another salt"))
    yield "other_salt", vector("a slot of another build", "8.10.3", refused, [salt])
    foreign = _sealed(good, collection=seed("foreign")[:16])
    yield "other_collection", vector("a slot of another collection", "8.10.3", refused, [foreign])
    later = _sealed(good, part=1)
    yield "other_part", vector("part 1 as part 0", "8.10.3", refused, [later])
    row, spilt = _spilling_row()
    yield (
        "spill_swapped",
        vector("parts 1 and 2 swapped", "8.10.3", refused, spilt[:1], spilt[:0:-1], row=row),
    )
    yield (
        "spill_missing",
        vector("one of two spill slots", "8.10.1", format_, spilt[:1], spilt[1:2], row=row),
    )
    for name, about, plain in (
        ("padding", "padding that is not zero", good + b"\1"),
        ("needless_spill", "a spill slot without spill", _framed(SMALL_RECORD, n_rows)),
        ("no_spill", "a long record without spill", _framed(b"", 0, 600)),
        ("spill_low", "a spill slot below n_rows", _framed(b"", n_rows - 1, 600)),
        ("spill_high", "a spill slot that is none", _framed(b"", n_slots, 600)),
        ("huge", "a record of 2^32 - 1 bytes", _framed(b"", n_rows, 2**32 - 1)),
        ("cut", "a length within the record", _framed(SMALL_RECORD[:-1])),
        ("version", "a record of version 2", _framed(b"\2" + SMALL_RECORD[1:])),
        (
            "unknown_term",
            "a term that the dictionary does not have",
            _framed(encode_record([n_terms], [1], 1, [Member("a", "", "")])),
        ),
    ):
        yield name, vector(about, "8.10.4", format_, [_sealed(plain)])


# --- 8.10.4, record bytes ------------------------------------------------------------------------


def _record_bytes() -> Iterator[tuple[str, Json]]:
    one, two = encode_record([0, 3], [1, 2], 3, [Member("a", "T", "s")]), b"\1a\0\0"
    long_id = b"\x81\x08" + b"x" * 1025
    for name, about, data in (
        ("empty", "no byte at all", b""),
        ("version", "version 2", b"\2" + one[1:]),
        ("cut", "the last byte missing", one[:-1]),
        ("longer", "a byte more", one + b"\0"),
        ("varint", "a length in two bytes", b"\1\x80\0\0\1" + two),
        ("varint_count", "a number of members in two bytes", b"\1\0\0\x81\0" + two),
        ("varint_huge", "a varint of 2^63", b"\1" + b"\xff" * 9 + b"\1\0\1" + two),
        ("terms", "more terms announced than there are", b"\1\0\7\1" + two),
        ("many_members", "more members announced than there are", b"\1\0\0\x7f" + two),
        ("no_members", "no member", b"\1\0\0\0"),
        ("unsorted", "members that do not ascend", b"\1\0\0\2\1b\0\0\1a\0\0"),
        ("twice", "a member twice", b"\1\0\0\2\1a\0\0\1a\0\0"),
        (
            "utf16_order",
            "members in the order of UTF-16",
            b"\1\0\0\2\4\xf0\x90\x80\x80\0\0\3\xef\xbf\xbd\0\0",
        ),
        ("no_id", "an empty id", b"\1\0\0\1\0\0\0"),
        ("long_id", "an id of 1025 bytes", b"\1\0\0\1" + long_id + b"\0\0"),
        ("text", "a title that is not UTF-8", b"\1\0\0\1\1a\1\xff\0"),
        ("surrogate", "an id with a surrogate", b"\1\0\0\1\3\xed\xa0\x80\0\0"),
    ):
        yield name, vector_of("record bytes", about, "8.10.4", "FormatError", record=data.hex())
