"""Read one bad vector with either implementation: both must refuse it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import numpy as np

from mksearch.crypto.secret import SecretKey
from mksearch.errors import FormatError
from mksearch.index.blob_list import BlobList
from mksearch.index.catalogue import Lookup, decode_catalogue
from mksearch.index.dictionary import Dictionary, SegmentFacts
from mksearch.index.document import StoredDocument
from mksearch.index.manifest import Group, ObjectRef, SegmentRef, SignedManifest
from mksearch.index.record import decode_record
from mksearch.index.segment import SegmentReader
from mksearch.index.stream import open_stream, seal_stream
from mksearch.messages import ScoreAnswer
from mksearch.params import Quorum
from mksearch.query.group import GroupView
from mksearch.query.records import read_records
from mksearch.scoring.cpu import CpuEngine
from mksearch.scoring.reference import NumpyEngine
from tests.reference import field, manifest, records, search, stream
from tests.reference import segment as segments
from tests.reference.refused import Refused
from tests.reference.text import Scoring

from . import (
    access,
    changes,
    enrolment,
    members,
    queries,
    selections,
    server_lists,
    shares,
    signed,
    slow,
    timestamps,
)
from .fast import Fixed, bundle_of
from .good_search import client_of
from .material import OWNER, Json, case_of, content_of, load, unpack, unpack_bytes, unpack_table

TWO_CHUNKS = 65_529


def base_of(name: str) -> bytes:
    """Return the good file that pieces of bad ones refer to."""
    if name == "small segment":
        return unpack_bytes(case_of(load("segment"), "small")["file"])
    if name in timestamps.BASES:
        return timestamps.stored_base(name)
    if name in server_lists.BASES:
        return server_lists.stored_base(name)
    if name in members.BASES:
        return bytes.fromhex(members.BASES[name](load("members")))
    file = load("stream")
    key, salt = SecretKey(bytes.fromhex(file["key"])), Fixed(bytes.fromhex(file["salt"]))
    content = content_of(TWO_CHUNKS)
    return seal_stream(key, "blob", bytes.fromhex(file["collection"]), content, salt)


def file_of(pieces: list[Json]) -> bytes:
    """Join a file from its pieces."""
    out = b""
    for piece in pieces:
        if "hex" in piece:
            out += bytes.fromhex(piece["hex"])
        elif "base64" in piece:
            out += unpack_bytes(piece["base64"])
        else:
            out += base_of(piece["of"])[piece["from"] : piece["to"]]
    return out


def _pinned(case: Json) -> tuple[bytes, bytes]:
    return bytes.fromhex(case["owner_key"]), bytes.fromhex(case["collection"])


# --- the product ---------------------------------------------------------------------------------


def _fast_segment(case: Json) -> None:
    SegmentReader(np.frombuffer(file_of(case["file"]), np.uint8)).verify()


def _fast_stream(case: Json) -> None:
    key, collection = SecretKey(bytes.fromhex(case["key"])), bytes.fromhex(case["collection"])
    open_stream(key, case["stream_kind"], collection, file_of(case["file"]))


def _fast_manifest(case: Json) -> None:
    owner_key, collection = _pinned(case)
    signed = SignedManifest.decode(file_of(case["file"]), owner_key, collection)
    if case["seen"]:
        seen = SignedManifest.decode(file_of(case["seen"]), owner_key, collection)
        signed.require_not_older(seen)
    signed.require_current(case["now"])
    if "authority" in case:
        members.require_authority(signed.manifest, bytes.fromhex(case["authority"]))


def _fast_opening(case: Json) -> None:
    client = client_of(case["segment"])
    [entry], scoring = case["group"]["segments"], case["group"]["scoring"]
    old = client.view.dictionary
    dictionary = Dictionary(
        case["dictionary"]["analyzer"],
        old.stop_words,
        case["dictionary"]["scoring"],
        old.n_docs,
        old.total_length,
        old.terms,
        old.dfs,
        old.n_dedicated,
        (SegmentFacts(bytes.fromhex(case["dictionary"]["salt"]), old.segments[0].step),),
    )
    ref = SegmentRef(bytes.fromhex(entry["id"]), entry["size"], bytes.fromhex(entry["salt"]))
    nothing = ObjectRef(bytes(32), 0)
    group = Group(b"", 1, case["group"]["analyzer"], scoring, 3, (ref,), nothing, nothing, nothing)
    GroupView(group, client.view.bundle, client.collection, dictionary, [file_of(case["header"])])


def _fast_share(case: Json) -> None:
    reader = client_of(case["segment"]).reader
    share = np.array([unpack(case["share"])], np.uint16)
    geometry = reader.header.layout.levels[case["level"]]
    errors = []
    engines = (NumpyEngine(), CpuEngine())
    for engine in engines:
        try:
            engine.score(reader.level(case["level"]), geometry, share)
        except Exception as error:  # noqa: BLE001 - raised again below
            errors.append(error)
    assert len(errors) in (0, len(engines)), "engines differ"
    if errors:
        raise errors[0]


def _fast_answers(case: Json) -> None:
    client = client_of(case["segment"])
    drawn = b"".join(unpack_bytes(lines) for lines in case["coefficients"])
    query_id, quorum = bytes.fromhex(case["query_id"]), Quorum(3, case["collusion_bound"])
    attempt = client.attempt(client.trapdoor(case["terms"]), quorum, Fixed(drawn, query_id))
    refused: Exception | None = None
    for entry in case["answers"]:
        try:
            attempt.add(entry["server"], _answer_of(entry))
        except FormatError as error:
            refused, sender = error, error.server
            assert sender == entry["server"]
    try:
        attempt.combine()
    except Exception as error:  # noqa: BLE001 - raised again below
        refused = refused or error
    if case["further"]:
        attempt.add(case["further"]["server"], _answer_of(case["further"]))
        attempt.combine()
    assert list(attempt.liars) == case["liars"]
    if refused:
        raise refused


def _answer_of(entry: Json) -> ScoreAnswer:
    sums = np.array(unpack(entry["sums"]), np.uint16)
    return ScoreAnswer(
        bytes.fromhex(entry["query_id"]), sums.reshape(1, entry["rows"], entry["tables"])
    )


def _fast_record(case: Json) -> None:
    client = client_of(case["segment"])
    reading = read_records(client.segment.slots, [case["row"]], case["n_terms"])
    next(reading)
    width = client.segment.slots.shape.width
    with suppress(StopIteration):
        for response in case["responses"]:
            slots = [unpack(slot) for slot in response]
            shape = (len(slots), len(slots[0]) if slots else width)
            reading.send(np.array(slots, np.uint16).reshape(shape))


FAST: Mapping[str, Callable[[Json], object]] = {
    "segment": _fast_segment,
    "stream": _fast_stream,
    "dictionary": lambda case: Dictionary.decode(bytes.fromhex(case["content"])),
    "lookup": lambda case: Lookup.decode(bundle_of(OWNER), bytes.fromhex(case["content"])),
    "catalogue": lambda case: decode_catalogue(bytes.fromhex(case["content"])),
    "blob": lambda case: StoredDocument.decode(bytes.fromhex(case["content"])),
    "blob list": lambda case: BlobList.decode(file_of(case["file"])),
    "manifest": _fast_manifest,
    "opening": _fast_opening,
    "share": _fast_share,
    "answers": _fast_answers,
    "record": _fast_record,
    "record bytes": lambda case: decode_record(bytes.fromhex(case["record"])),
    "signed": signed.verify_fast,
    "renewal": lambda case: timestamps.fast_renewal(case, file_of(case["file"])),
    "equivocation": lambda case: timestamps.fast_equivocation(case, file_of(case["file"])),
    **changes.FAST,
    **access.FAST,
    **members.FAST,
    **shares.FAST,
    **enrolment.FAST,
    **queries.FAST,
    **selections.FAST,
}
"""What reads each kind of bad vector with the product."""


# --- the reference -------------------------------------------------------------------------------


def _slow_stream(case: Json) -> None:
    key, collection = bytes.fromhex(case["key"]), bytes.fromhex(case["collection"])
    stream.open_stream(case["stream_kind"], key, collection, file_of(case["file"]))


def _slow_manifest(case: Json) -> None:
    owner_key, collection = _pinned(case)
    seen = body = None
    if case["seen"]:
        file = file_of(case["seen"])
        body = manifest.read_manifest(file, owner_key, collection, 0)
        seen = body["version"], manifest.manifest_hash(file[16:-64])
    authority = bytes.fromhex(case["authority"]) if "authority" in case else None
    manifest.read_manifest(
        file_of(case["file"]),
        owner_key,
        collection,
        case["now"],
        seen,
        authority=authority,
        before=body,
    )


def _slow_opening(case: Json) -> None:
    me = slow.member(case["segment"])
    group: Json = {**case["group"]}
    group["segments"] = [
        {**entry, "id": bytes.fromhex(entry["id"]), "salt": bytes.fromhex(entry["salt"])}
        for entry in case["group"]["segments"]
    ]
    told = case["dictionary"]
    entry = me.dictionary.segments[0]._replace(salt=bytes.fromhex(told["salt"]))
    dictionary = me.dictionary._replace(
        analyzer=told["analyzer"], scoring=Scoring(**told["scoring"]), segments=[entry]
    )
    page = file_of(case["header"])
    search.require_opening(group, me.segment.collection, dictionary, [page])


def _slow_share(case: Json) -> None:
    me = slow.member(case["segment"])
    search.HonestServer(me.segment).answer(b"", case["level"], unpack(case["share"]))


class Recorded(search.HonestServer):
    """A server whose answer is known."""

    def __init__(self, segment: segments.Segment, entry: Json) -> None:
        """Give back the answer of a vector."""
        super().__init__(segment)
        sums = unpack_table(entry["sums"], entry["tables"])
        self.recorded = search.Answer(bytes.fromhex(entry["query_id"]), sums)

    def answer(self, query_id: bytes, level: int, share: list[int]) -> search.Answer:
        """Return what was recorded, whatever is asked."""
        return self.recorded


def _slow_answers(case: Json) -> None:
    me, level = slow.member(case["segment"]), case["level"]
    view, n_rows = me.views[level], len(me.segment.levels[level].matrix)
    query_id = bytes.fromhex(case["query_id"])
    q = slow.vector_of(me, case["terms"], level)
    coefficients = [unpack(lines) for lines in case["coefficients"]]

    def run(entries: list[Json]) -> search.Accepted:
        servers = {e["server"]: Recorded(me.segment, e) for e in entries}
        return search.run_vector(
            view, n_rows, q, coefficients, servers, len(servers), query_id=query_id
        )

    if case["further"]:
        accepted = run([*case["answers"], case["further"]])
        assert sorted(accepted.liars) == case["liars"]
        share = field.shamir(q, coefficients, 1)
        honest = search.HonestServer(me.segment).answer(query_id, level, share)
        assert honest == Recorded(me.segment, case["answers"][0]).recorded
    try:
        run(case["answers"])
    except Refused as refused:
        named = sorted(refused.servers)
        assert named == case["liars"]
        for entry in case["answers"]:
            recorded = Recorded(me.segment, entry).recorded
            search.require_answer(recorded, query_id, n_rows, me.segment.n_tables)
        raise


def _slow_record(case: Json) -> None:
    me = slow.member(case["segment"])
    responses = iter(case["responses"])

    def fetch(_: list[int]) -> list[list[int]]:
        return [unpack(slot) for slot in next(responses)]

    row = records.open_record(me.segment.layout, me.keys, case["row"], fetch)
    records.require_known_terms(row, case["n_terms"])


SLOW: Mapping[str, Callable[[Json], object]] = {
    "segment": lambda case: segments.read_segment(file_of(case["file"])),
    "stream": _slow_stream,
    "dictionary": lambda case: stream.decode_dictionary(bytes.fromhex(case["content"])),
    "lookup": lambda case: stream.decode_lookup(bytes.fromhex(case["content"])),
    "catalogue": lambda case: stream.decode_catalogue(bytes.fromhex(case["content"])),
    "blob": lambda case: stream.decode_blob(bytes.fromhex(case["content"])),
    "blob list": lambda case: stream.decode_blob_list(file_of(case["file"])),
    "manifest": _slow_manifest,
    "opening": _slow_opening,
    "share": _slow_share,
    "answers": _slow_answers,
    "record": _slow_record,
    "record bytes": lambda case: records.decode_record(bytes.fromhex(case["record"])),
    "signed": signed.verify_slow,
    "renewal": lambda case: timestamps.slow_renewal(case, file_of(case["file"])),
    "equivocation": lambda case: timestamps.slow_equivocation(case, file_of(case["file"])),
    **changes.SLOW,
    **access.SLOW,
    **members.SLOW,
    **shares.SLOW,
    **enrolment.SLOW,
    **queries.SLOW,
    **selections.SLOW,
}
"""What reads each kind of bad vector with the reference."""
