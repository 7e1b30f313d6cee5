"""Stored and sent files are right, or refused by name: no change goes unseen, none ends elsewhere.

Whatever a file is turned into, reading it ends with the product's own error for unproved bytes:
never with another exception, never with a wrong value, and never late.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mksearch.codec import decode_cbor, encode_cbor
from mksearch.crypto import labels
from mksearch.crypto.bundle import KeyBundle
from mksearch.crypto.kdf import sha256
from mksearch.crypto.randomness import SeededRandom
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.errors import (
    FormatError,
    ManifestRefused,
    MksearchError,
    RecordRefused,
    StorageError,
    UnsupportedVersion,
    VerificationError,
)
from mksearch.index.blob_list import BlobList
from mksearch.index.catalogue import Catalogue, Lookup
from mksearch.index.dictionary import Dictionary
from mksearch.index.manifest import Manifest, SignedManifest
from mksearch.index.record import Member, decode_record, encode_record
from mksearch.index.segment import HEADER_BYTES, SegmentHeader, SegmentLayout, SegmentReader
from mksearch.index.stream import open_stream, seal_stream
from mksearch_client.keys import OwnerKeys
from mksearch_client.publication import Publication, upload
from mksearch_client.reading import Document
from mksearch_server.search_server import SearchServer
from mksearch_server.store import ObjectStore
from tests.adversary.corpus import make_documents
from tests.support.local import LocalCollection, open_server, publish

DOCUMENTS = make_documents(80, 2)
PROPERTY = settings(
    deadline=2000, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
MANY = settings(PROPERTY, max_examples=300)


@dataclass
class Stored:
    """A published collection and the bytes of its objects."""

    collection: LocalCollection
    manifest: Manifest
    signed: bytes
    segment: bytes
    layout: SegmentLayout

    @property
    def keys(self) -> OwnerKeys:
        return self.collection.keys

    @property
    def bundle(self) -> KeyBundle:
        return self.keys.bundle(b"", 1)

    def read(self, name: bytes) -> bytes:
        return b"".join(self.collection.publication.chunks(name))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    random = SeededRandom(b"stored bytes".ljust(32))
    collection = publish(DOCUMENTS, tmp_path_factory.mktemp("stored"), random=random)
    signed = collection.publication.signed
    reference = next(signed.manifest.segments())
    segment = b"".join(collection.publication.chunks(reference.id))
    layout = SegmentHeader.decode(segment[:HEADER_BYTES]).layout
    return Stored(collection, signed.manifest, signed.encode(), segment, layout)


@st.composite
def damage(draw: st.DrawFn, n_bytes: int) -> Callable[[bytes], bytes]:
    """Draw a way to change a file of ``n_bytes``: flip, cut, lengthen, overwrite, swap."""
    kind = draw(st.sampled_from(["flip", "cut", "lengthen", "overwrite", "remove", "repeat"]))
    at = draw(st.integers(0, n_bytes - 1))
    n = draw(st.integers(1, 64))
    mask = draw(st.integers(1, 255))
    noise = draw(st.binary(min_size=n, max_size=n))

    def change(data: bytes) -> bytes:
        if kind == "flip":
            return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
        if kind == "cut":
            return data[:at]
        if kind == "lengthen":
            return data + noise
        if kind == "overwrite":
            return (data[:at] + noise + data[at + n :])[: len(data)]
        if kind == "remove":
            return data[:at] + data[at + n :]
        return data[:at] + data[at : at + n] + data[at:]

    return change


def as_array(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(data, np.uint8)


# --- segments -----------------------------------------------------------------------------------


def prove_segment(data: bytes) -> bytes:
    """Read and verify a segment, as a server does with what is uploaded; return its id."""
    reader = SegmentReader(as_array(data))
    reader.verify()
    return reader.id


@MANY
@given(data=st.data())
def test_a_segment_changed_anywhere_is_refused_or_has_another_name(
    stored: Stored, data: st.DataObject
) -> None:
    layout = stored.layout
    bounds = [0, 12, 600, HEADER_BYTES, *layout.offsets[1:], layout.n_bytes]
    region = data.draw(st.integers(0, len(bounds) - 2), "region")
    start, stop = bounds[region], bounds[region + 1]
    changed = data.draw(damage(stop - start), "damage")(stored.segment[start:stop])
    whole = stored.segment[:start] + changed + stored.segment[stop:]
    if whole == stored.segment:
        return
    with suppress(FormatError):
        assert prove_segment(whole) != prove_segment(stored.segment)


@pytest.mark.parametrize("section", range(3))
def test_a_flipped_bit_in_any_section_of_a_segment_is_refused_by_name(
    stored: Stored, section: int
) -> None:
    offsets = stored.layout.offsets
    assert len(offsets) == 3, "two levels and the slots"
    ends = [*offsets[1:], stored.layout.n_bytes]
    rng = np.random.default_rng(section)
    name = f"level {section}" if section < 2 else "record slots"
    for at in rng.integers(offsets[section], ends[section], 100).tolist():
        damaged = bytearray(stored.segment)
        damaged[at] ^= 1 << int(rng.integers(8))
        with pytest.raises(FormatError, match=f"{name}|gap"):
            prove_segment(bytes(damaged))


def test_a_gap_between_sections_that_is_not_zero_is_refused(stored: Stored) -> None:
    layout = stored.layout
    n_rows, width = layout.level_shapes[1]
    gap = range(layout.offsets[1] + 2 * n_rows * width, layout.offsets[2])
    n_rows, width = layout.level_shapes[0]
    gaps = [*range(layout.offsets[0] + 2 * n_rows * width, layout.offsets[1]), *gap]
    # Whole pages of cells leave no gap; the header always ends in zeros.
    for at in [*gaps[:1], *gaps[-1:], HEADER_BYTES - 1]:
        damaged = bytearray(stored.segment)
        damaged[at] = 1
        with pytest.raises(FormatError):
            prove_segment(bytes(damaged))


def test_a_section_of_elements_out_of_range_is_refused_even_if_its_hash_fits(
    stored: Stored,
) -> None:
    header = SegmentHeader.decode(stored.segment[:HEADER_BYTES])
    for section in range(3):
        damaged = as_array(stored.segment).copy()
        layout = header.layout
        part = layout.level(damaged, section) if section < 2 else layout.slots(damaged)
        part[-1, -1] = 65521
        hashes = list(header.hashes)
        hashes[section] = sha256(part.tobytes())
        damaged[:HEADER_BYTES] = as_array(replace(header, hashes=tuple(hashes)).encode())
        with pytest.raises(FormatError, match="out of range"):
            prove_segment(damaged.tobytes())


_HEADER_VALUES = st.one_of(
    st.integers(-3, 300),
    st.integers(0, 1 << 70),
    st.binary(max_size=40),
    st.none(),
    st.booleans(),
    st.lists(st.integers(0, 5), max_size=3),
    st.floats(),
    st.text(max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@MANY
@given(data=st.data())
def test_a_segment_header_with_any_other_value_is_refused_or_is_another_header(
    stored: Stored, data: st.DataObject
) -> None:
    head = stored.segment[:HEADER_BYTES]
    size = int.from_bytes(head[12:16], "big")
    fields = decode_cbor(head[16 : 16 + size], "a header")
    _change_somewhere(data, fields, _HEADER_VALUES)
    body = encode_cbor(fields)
    if len(body) > HEADER_BYTES - 16:
        return
    damaged = (head[:12] + len(body).to_bytes(4, "big") + body).ljust(HEADER_BYTES, b"\0")
    try:
        decoded = SegmentHeader.decode(damaged)
    except FormatError:
        return
    assert decoded.encode() == damaged
    assert decoded.id != SegmentHeader.decode(head).id or damaged == head


def _change_somewhere(
    data: st.DataObject, value: object, values: st.SearchStrategy[object]
) -> None:
    """Replace, remove or add one entry anywhere in nested maps and arrays."""
    assert isinstance(value, (dict, list))
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    at = data.draw(st.sampled_from(keys), "key") if keys else None
    if at is not None:
        inner = value[at]
        if isinstance(inner, (dict, list)) and inner and data.draw(st.booleans(), "deeper"):
            _change_somewhere(data, inner, values)
            return
    kind = data.draw(st.sampled_from(["replace", "remove", "add"]), "kind")
    if kind == "add" or at is None:
        if isinstance(value, dict):
            value[data.draw(st.text(max_size=4), "new key")] = data.draw(values, "new value")
        else:
            value.append(data.draw(values, "new value"))
    elif kind == "remove":
        del value[at]
    else:
        value[at] = data.draw(values, "other value")


# --- manifests ----------------------------------------------------------------------------------


@MANY
@given(data=st.data())
def test_a_manifest_changed_anywhere_is_refused(stored: Stored, data: st.DataObject) -> None:
    changed = data.draw(damage(len(stored.signed)), "damage")(stored.signed)
    if changed == stored.signed:
        return
    with pytest.raises(VerificationError):
        SignedManifest.decode(changed, stored.keys.signing.public, stored.keys.collection)


def test_every_single_byte_of_a_manifest_is_covered(stored: Stored) -> None:
    for at in range(len(stored.signed)):
        changed = bytearray(stored.signed)
        changed[at] ^= 0x20
        with pytest.raises(VerificationError):
            SignedManifest.decode(bytes(changed), stored.keys.signing.public)


@MANY
@given(data=st.data())
def test_a_signed_manifest_with_any_other_value_is_refused_or_is_another_manifest(
    stored: Stored, data: st.DataObject
) -> None:
    fields = decode_cbor(stored.manifest.encode(), "a manifest")
    _change_somewhere(data, fields, _HEADER_VALUES)
    body = encode_cbor(fields)
    _decode_signed(stored, body)


@MANY
@given(data=st.data())
def test_a_signed_manifest_of_any_bytes_is_refused_or_is_another_manifest(
    stored: Stored, data: st.DataObject
) -> None:
    body = stored.manifest.encode()
    _decode_signed(stored, data.draw(damage(len(body)), "damage")(body))


def _decode_signed(stored: Stored, body: bytes) -> None:
    signature = stored.keys.signing.sign(labels.MANIFEST, body)
    file = stored.signed[:12] + len(body).to_bytes(4, "big") + body + signature
    try:
        signed = SignedManifest.decode(file, stored.keys.signing.public)
    except VerificationError:
        return
    assert signed.manifest.encode() == body


def test_a_signature_over_anything_but_a_manifest_is_not_taken_for_one(stored: Stored) -> None:
    body = stored.manifest.encode()
    for label in (labels.STREAM, labels.RECORD, b"", labels.MANIFEST + b"\0"):
        signature = stored.keys.signing.sign(label, body)
        with pytest.raises(VerificationError, match="signature"):
            SignedManifest.decode(stored.signed[:-64] + signature, stored.keys.signing.public)


# --- sealed streams -----------------------------------------------------------------------------

_SIZES = (0, 1, 200, 65_528, 65_529, 140_000)


@pytest.fixture(scope="module")
def streams() -> dict[int, bytes]:
    random = SeededRandom(b"streams".ljust(32))
    return {
        size: seal_stream(_stream_key(), "blob", b"c" * 16, bytes(size), random) for size in _SIZES
    }


def _stream_key() -> SecretKey:
    return SecretKey(b"k" * 32)


@PROPERTY
@given(data=st.data())
@pytest.mark.parametrize("size", _SIZES)
def test_a_sealed_stream_changed_anywhere_is_refused(
    streams: dict[int, bytes], size: int, data: st.DataObject
) -> None:
    sealed = streams[size]
    changed = data.draw(damage(len(sealed)), "damage")(sealed)
    if changed == sealed:
        return
    with pytest.raises((FormatError, RecordRefused)):
        open_stream(_stream_key(), "blob", b"c" * 16, changed)


def test_chunks_of_a_stream_cannot_be_dropped_repeated_or_put_in_another_order(
    streams: dict[int, bytes],
) -> None:
    sealed = streams[140_000]
    head, chunk = 44, 65_536 + 16
    chunks = [sealed[at : at + chunk] for at in range(head, len(sealed), chunk)]
    assert len(chunks) == 3
    for order in ((0, 1), (0, 2), (1, 2), (0,), (2,), (1, 0, 2), (0, 1, 1, 2), (0, 1, 2, 2), ()):
        changed = sealed[:head] + b"".join(chunks[i] for i in order)
        with pytest.raises((FormatError, RecordRefused)):
            open_stream(_stream_key(), "blob", b"c" * 16, changed)


def test_a_stream_does_not_open_as_another_kind_or_in_another_collection(
    streams: dict[int, bytes],
) -> None:
    for kind, collection in (("lookup", b"c" * 16), ("blob", b"d" * 16)):
        with pytest.raises(RecordRefused):
            open_stream(_stream_key(), kind, collection, streams[200])


@pytest.mark.parametrize("what", ["dictionary", "lookup", "catalogue"])
@PROPERTY
@given(data=st.data())
def test_a_section_changed_anywhere_is_refused(
    stored: Stored, what: str, data: st.DataObject
) -> None:
    sealed, key = _section(stored, what)
    changed = data.draw(damage(len(sealed)), "damage")(sealed)
    if changed == sealed:
        return
    with pytest.raises((FormatError, RecordRefused)):
        open_stream(key, what, stored.keys.collection, changed)


def _section(stored: Stored, what: str) -> tuple[bytes, SecretKey]:
    if what == "catalogue":
        return stored.read(stored.manifest.catalogue.id), stored.keys.catalogue_key()
    group = stored.manifest.groups[0]
    reference = group.dictionary if what == "dictionary" else group.lookup
    return stored.read(reference.id), stored.bundle.section_key(what)


def _content(stored: Stored, what: str) -> bytes:
    sealed, key = _section(stored, what)
    return open_stream(key, what, stored.keys.collection, sealed)


# --- what was sealed badly ----------------------------------------------------------------------


@MANY
@given(data=st.data())
def test_a_dictionary_of_any_other_content_is_refused_or_reads_as_what_it_says(
    stored: Stored, data: st.DataObject
) -> None:
    content = _content(stored, "dictionary")
    inner = zlib.decompress(content)
    if data.draw(st.booleans(), "by value"):
        fields = decode_cbor(inner, "the dictionary")
        _change_somewhere(data, fields, _HEADER_VALUES)
        damaged = zlib.compress(encode_cbor(fields), 1)
    elif data.draw(st.booleans(), "inside"):
        damaged = zlib.compress(data.draw(damage(len(inner)), "damage")(inner), 1)
    else:
        damaged = data.draw(damage(len(content)), "damage")(content)
    with suppress(FormatError):
        Dictionary.decode(damaged)


@MANY
@given(data=st.data())
def test_a_lookup_of_any_other_content_is_refused_or_finds_no_wrong_document(
    stored: Stored, data: st.DataObject
) -> None:
    content = _content(stored, "lookup")
    right = Lookup.decode(stored.bundle, content)
    damaged = data.draw(damage(len(content)), "damage")(content)
    wanted = data.draw(st.sampled_from([document.id for document in DOCUMENTS]), "id")
    try:
        found = Lookup.decode(stored.bundle, damaged).find(wanted)
    except (FormatError, RecordRefused):
        return
    expected = right.find(wanted)
    assert expected is not None
    if found is not None:
        assert found.key.reveal() == expected.key.reveal()


@PROPERTY
@given(data=st.data())
def test_a_catalogue_of_any_other_content_is_refused_or_reads_as_what_it_says(
    stored: Stored, data: st.DataObject
) -> None:
    inner = zlib.decompress(_content(stored, "catalogue"))
    damaged = zlib.compress(data.draw(damage(len(inner)), "damage")(inner), 1)
    with suppress(FormatError):
        Catalogue.decode(damaged)


@MANY
@given(data=st.data())
def test_record_bytes_changed_anywhere_are_refused_or_are_another_canonical_record(
    data: st.DataObject,
) -> None:
    members = [Member("b", "Title", "Snippet"), Member("a", "", "ü" * 100)]
    record = encode_record([0, 3, 500, 70_000], [1, 2, 1, 300], 304, members)
    damaged = data.draw(damage(len(record)), "damage")(record)
    try:
        decoded = decode_record(damaged)
    except FormatError:
        return
    again = encode_record(
        decoded.term_ids.tolist(), decoded.tfs.tolist(), decoded.length, decoded.members
    )
    assert again == damaged


@MANY
@given(data=st.data())
@example(data=b"")
@example(data=b"MKBLOBLS\0\0\0\1" + bytes(40))
def test_a_blob_list_of_any_bytes_is_refused_or_encodes_to_the_same(
    stored: Stored, data: st.DataObject | bytes
) -> None:
    whole = stored.read(stored.manifest.groups[0].blobs.id)
    damaged = data if isinstance(data, bytes) else data.draw(damage(len(whole)), "damage")(whole)
    try:
        blobs = BlobList.decode(damaged)
    except FormatError:
        return
    assert blobs.encode() == damaged


@MANY
@given(data=st.one_of(st.binary(max_size=60), st.data()))
def test_cbor_of_any_bytes_is_refused_or_is_the_one_encoding_of_its_value(
    stored: Stored, data: bytes | st.DataObject
) -> None:
    if not isinstance(data, bytes):
        body = stored.manifest.encode()
        data = data.draw(damage(len(body)), "damage")(body)
    try:
        value = decode_cbor(data, "bytes")
    except FormatError:
        return
    assert encode_cbor(value) == data


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x9b" + b"\xff" * 8,
        b"\x5b" + b"\x7f" + b"\xff" * 7,
        b"\xbb\x00\x00\x00\x0f\xff\xff\xff\xff",
        b"\x81" * 100_000 + b"\x01",
        b"\xa1" * 50_000 + b"\x01",
        b"\xd8\x1c\x81\xd8\x1d\x00",
    ],
    ids=["array", "bytes", "map", "nested arrays", "nested maps", "cycle"],
)
def test_cbor_that_announces_more_than_it_holds_is_refused_at_once(bomb: bytes) -> None:
    with pytest.raises(FormatError):
        decode_cbor(bomb, "a bomb")


# --- servers ------------------------------------------------------------------------------------


@pytest.fixture
def empty(stored: Stored, tmp_path: Path) -> Iterator[SearchServer]:
    """Return a new server of the collection's owner, without any version."""
    server = open_server(tmp_path, 1, stored.keys.signing.public)
    yield server
    server._store.close()


def objects_of(stored: Stored) -> dict[str, bytes]:
    """Return the name of one object of each kind."""
    group = stored.manifest.groups[0]
    blobs = BlobList.decode(stored.read(group.blobs.id)).blobs
    return {
        "segment": group.segments[0].id,
        "dictionary": group.dictionary.id,
        "lookup": group.lookup.id,
        "blob list": group.blobs.id,
        "catalogue": stored.manifest.catalogue.id,
        "blob": blobs[0][0],
    }


KINDS = ("segment", "dictionary", "lookup", "blob list", "catalogue", "blob")


def propose_with_blobs(stored: Stored, server: SearchServer) -> bytes:
    manifest_hash = server.propose(stored.signed)
    blobs = stored.manifest.groups[0].blobs.id
    server.put(manifest_hash, blobs, [stored.read(blobs)])
    return manifest_hash


def test_an_object_that_no_signed_manifest_lists_is_not_stored(
    stored: Stored, empty: SearchServer
) -> None:
    stranger = b"a document of somebody else"
    name = sha256(stranger)
    with pytest.raises(StorageError, match="not proposed"):
        empty.put(bytes(32), name, [stranger])
    manifest_hash = propose_with_blobs(stored, empty)
    with pytest.raises(StorageError, match="in no manifest"):
        empty.put(manifest_hash, name, [stranger])
    with pytest.raises(StorageError, match="not proposed"):
        empty.put(bytes(32), objects_of(stored)["dictionary"], [b""])
    with pytest.raises(StorageError):
        empty.read_object(name, 0, 100)


def test_a_blob_is_not_stored_before_the_list_that_names_it(
    stored: Stored, empty: SearchServer
) -> None:
    manifest_hash = empty.propose(stored.signed)
    blob = objects_of(stored)["blob"]
    with pytest.raises(StorageError, match="in no manifest"):
        empty.put(manifest_hash, blob, [stored.read(blob)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_stores_no_bytes_but_those_that_their_name_stands_for(
    stored: Stored, empty: SearchServer, kind: str
) -> None:
    manifest_hash = propose_with_blobs(stored, empty)
    name = objects_of(stored)[kind]
    right = stored.read(name)
    others = [stored.read(other) for other in objects_of(stored).values() if other != name]
    rng = np.random.default_rng(1)
    wrong = [bytes(len(right)), rng.bytes(len(right)), right[:-1], right + b"\0", b""]
    wrong += [other[: len(right)].ljust(len(right), b"\0") for other in others]
    for at in [0, len(right) // 2, len(right) - 1]:
        wrong.append(right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :])
    had = name not in empty.missing(manifest_hash)
    for data in wrong:
        with pytest.raises((StorageError, FormatError)):
            empty.put(manifest_hash, name, [data])
        assert (name not in empty.missing(manifest_hash)) == had
    if not had:
        empty.put(manifest_hash, name, [right[:100], right[100:]])
    assert name not in empty.missing(manifest_hash)
    assert empty.read_object(name, 0, len(right)) == right
    # What is there is not taken again: nobody fills a disk by announcing the same version.
    with pytest.raises(StorageError):
        empty.put(manifest_hash, name, [right])


def test_a_segment_signed_by_the_owner_is_not_stored_with_a_changed_cell(
    stored: Stored, empty: SearchServer
) -> None:
    """The header alone has the right hash; only proving every section finds the change."""
    manifest_hash = empty.propose(stored.signed)
    name = objects_of(stored)["segment"]
    for offset in (*stored.layout.offsets, stored.layout.n_bytes - 1):
        damaged = bytearray(stored.segment)
        damaged[offset] ^= 1
        with pytest.raises(FormatError, match="do not match their hash"):
            empty.put(manifest_hash, name, [bytes(damaged)])


def test_an_upload_larger_than_announced_is_given_up_at_once(
    stored: Stored, empty: SearchServer
) -> None:
    manifest_hash = propose_with_blobs(stored, empty)
    n_taken = 0

    def flood() -> Iterator[bytes]:
        nonlocal n_taken
        while True:
            n_taken += 1
            assert n_taken < 50, "the server goes on reading"
            yield bytes(1 << 16)

    for name in objects_of(stored).values():
        n_taken = 0
        with pytest.raises(StorageError):
            empty.put(manifest_hash, name, flood())


def test_an_upload_that_breaks_off_leaves_nothing_behind(
    stored: Stored, empty: SearchServer, tmp_path: Path
) -> None:
    manifest_hash = propose_with_blobs(stored, empty)

    def broken(data: bytes) -> Iterator[bytes]:
        yield data[: len(data) // 2]
        raise ConnectionResetError("the owner's machine is gone")

    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    for kind, name in objects_of(stored).items():
        if kind == "blob list":
            continue
        with pytest.raises(ConnectionResetError):
            empty.put(manifest_hash, name, broken(stored.read(name)))
        assert name in empty.missing(manifest_hash)
        with pytest.raises(StorageError):
            empty.read_object(name, 0, 10)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_version_of_which_anything_is_missing_is_not_served(
    stored: Stored, empty: SearchServer
) -> None:
    manifest_hash = propose_with_blobs(stored, empty)
    blobs = objects_of(stored)["blob list"]
    while missing := empty.missing(manifest_hash):
        with pytest.raises(StorageError, match=f"{len(missing)} objects"):
            empty.activate(manifest_hash)
        with pytest.raises(StorageError, match="nothing was published"):
            empty.manifest()
        # A few at a time, the last ones one by one.
        for name in missing[: max(1, len(missing) // 2)]:
            assert name != blobs
            empty.put(manifest_hash, name, [stored.read(name)])
    assert empty.activate(manifest_hash) == 1
    assert empty.manifest() == stored.signed


def test_a_version_that_was_not_proposed_is_not_served(stored: Stored, empty: SearchServer) -> None:
    with pytest.raises(StorageError, match="not proposed"):
        empty.activate(stored.collection.publication.signed.hash)
    with pytest.raises(StorageError, match="not proposed"):
        empty.missing(bytes(32))


def test_a_manifest_that_another_key_signed_is_not_taken(
    stored: Stored, empty: SearchServer
) -> None:
    stranger = OwnerKeys.generate(SeededRandom(b"stranger".ljust(32)))
    forged = replace(stored.manifest, owner_key=stranger.signing.public)
    signed = SignedManifest.sign(forged, stranger.signing)
    for data in (
        signed.encode(),
        SignedManifest(stored.manifest, stored.manifest.encode(), signed.signature).encode(),
        stored.signed[:-64] + bytes(64),
        b"",
    ):
        with pytest.raises(VerificationError):
            empty.propose(data)
        with pytest.raises(StorageError):
            empty.missing(signed.hash)


@pytest.fixture
def served(
    stored: Stored, tmp_path_factory: pytest.TempPathFactory, empty: SearchServer
) -> tuple[SearchServer, list[SignedManifest]]:
    """Return a server of version 2, and the manifests of versions 1 and 2."""
    upload(stored.collection.publication, empty)
    second = publish(
        DOCUMENTS[:10],
        tmp_path_factory.mktemp("second"),
        keys=stored.keys,
        previous=stored.collection.publication.signed,
    )
    upload(second.publication, empty)
    return empty, [stored.collection.publication.signed, second.publication.signed]


def _successor(before: SignedManifest, keys: OwnerKeys, **changes: object) -> SignedManifest:
    manifest = replace(before.manifest, version=before.manifest.version + 1, previous=before.hash)
    return SignedManifest.sign(replace(manifest, **changes), keys.signing)  # type: ignore[arg-type]


def test_a_server_goes_on_only_to_what_follows_its_version(
    stored: Stored, served: tuple[SearchServer, list[SignedManifest]]
) -> None:
    server, (first, second) = served
    keys = stored.keys
    active = server.manifest()
    assert active == second.encode()
    refused = {
        "rollback": first,
        "equal version, other hash": _successor(first, keys, name="another name"),
        "not chained": _successor(second, keys, previous=first.hash),
        "not chained to anything": _successor(second, keys, previous=bytes([1]) * 32),
        "another collection": _successor(second, keys, collection=bytes(16)),
    }
    for what, signed in refused.items():
        with pytest.raises(ManifestRefused):
            server.propose(signed.encode())
        with pytest.raises(StorageError):
            server.activate(signed.hash)
        assert server.manifest() == active, what
    accepted = _successor(second, keys)
    assert server.propose(accepted.encode()) == accepted.hash
    assert server.activate(accepted.hash) == 3


def test_a_draft_is_served_only_with_the_owner_s_signature_of_the_version(
    stored: Stored, served: tuple[SearchServer, list[SignedManifest]]
) -> None:
    server, (_, second) = served
    key = stored.keys.signing
    third = _successor(second, stored.keys)
    draft = third.encode_draft(key)
    stranger = SigningKey(SecretKey(bytes(32)))

    assert server.propose(draft) == third.hash
    for wrong in (
        b"",
        b"x" * 63,
        bytes(64),
        second.signature,
        draft[-64:],
        stranger.sign(labels.MANIFEST, third.body),
    ):
        with pytest.raises(VerificationError):
            server.activate(third.hash, wrong)
        assert server.manifest() == second.encode()
    with pytest.raises(VerificationError):
        SignedManifest.decode(draft, key.public)
    with pytest.raises(VerificationError):
        server.propose(third.encode_draft(stranger))

    assert server.activate(third.hash, third.signature) == 3
    assert server.manifest() == third.encode()

    fourth = _successor(third, stored.keys)
    server.propose(fourth.encode_draft(key))
    # Whoever has the version itself, a member for instance, shows that it was released.
    server.propose(fourth.encode())
    server.propose(fourth.encode_draft(key))
    assert server.activate(fourth.hash) == 4
    assert SignedManifest.decode(server.manifest(), key.public).hash == fourth.hash


def test_a_server_started_again_refuses_the_same_rollback(
    stored: Stored, served: tuple[SearchServer, list[SignedManifest]]
) -> None:
    server, (first, second) = served
    server._store.close()
    again = open_server(server._store.folder.parent, 1, stored.keys.signing.public)
    try:
        assert again.manifest() == second.encode()
        with pytest.raises(ManifestRefused):
            again.propose(first.encode())
    finally:
        again._store.close()


def test_a_server_does_not_start_from_a_damaged_manifest_or_segment(
    stored: Stored, served: tuple[SearchServer, list[SignedManifest]]
) -> None:
    server, (_, second) = served
    store, folder = server._store, server._store.folder.parent
    segment = store.path(next(second.manifest.segments()).id)
    manifest = second.encode()

    def restart() -> None:
        server._store.close()
        server._store = _reopen(folder)
        SearchServer(1, server._store, stored.keys.signing.public, server._engine)

    restart()
    for at in (0, 11, 14, 40, 200, len(manifest) - 1):
        damaged = bytearray(manifest)
        damaged[at] ^= 1
        server._store.write_state("manifest", bytes(damaged))
        with pytest.raises(VerificationError):
            restart()
    server._store.write_state("manifest", manifest)
    restart()
    whole = segment.read_bytes()
    for data in (b"\0" + whole[1:], whole[:-1], whole + b"\0", whole[:HEADER_BYTES], b""):
        segment.write_bytes(data)
        with pytest.raises(MksearchError):
            restart()
    changed_salt = bytearray(whole)
    at = whole.index(next(second.manifest.segments()).salt)
    changed_salt[at] ^= 1
    segment.write_bytes(changed_salt)
    with pytest.raises(VerificationError):
        restart()
    segment.write_bytes(whole)
    restart()
    segment.unlink()
    with pytest.raises(StorageError):
        restart()


def _reopen(folder: Path) -> ObjectStore:
    return ObjectStore(folder / "server-1")


@pytest.mark.parametrize(
    ("name", "offset", "n_bytes"),
    [
        (b"", 0, 10),
        (b"\0", 0, 10),
        (bytes(32), 0, 10),
        (bytes(33), 0, 10),
        (b"../" * 20, 0, 10),
        (b"x" * 300, 0, 10),
        (b"x" * 5000, 0, 10),
    ],
)
def test_a_name_of_no_object_reads_nothing_and_ends_with_an_error_of_the_store(
    served: tuple[SearchServer, list[SignedManifest]], name: bytes, offset: int, n_bytes: int
) -> None:
    server, _ = served
    with pytest.raises(MksearchError):
        server.read_object(name, offset, n_bytes)


def test_no_read_returns_more_than_it_asked_for_and_none_before_the_beginning(
    stored: Stored, served: tuple[SearchServer, list[SignedManifest]]
) -> None:
    server, _ = served
    for name in (objects_of(stored)["segment"], objects_of(stored)["dictionary"]):
        whole = stored.read(name)
        for offset, n_bytes in ((0, 10), (5, 0), (len(whole) - 3, 10), (len(whole) + 9, 10)):
            assert server.read_object(name, offset, n_bytes) == whole[offset : offset + n_bytes]
        for offset, n_bytes in ((0, -1), (0, -5), (-5, 10), (-1, 1)):
            with pytest.raises(MksearchError):
                server.read_object(name, offset, n_bytes)


# --- publications -------------------------------------------------------------------------------


def test_a_publication_damaged_on_the_owners_disk_is_refused_by_every_server(
    stored: Stored, tmp_path: Path, empty: SearchServer
) -> None:
    documents = [Document("a", "A", "one two three"), Document("b", "B", "two three four")]
    publication = publish(documents, tmp_path / "small", keys=stored.keys).publication
    files = [*(publication.folder / "objects").iterdir(), publication.folder / "blobs"]
    for number, path in enumerate(sorted(files)):
        server = open_server(tmp_path / str(number), 1, stored.keys.signing.public)
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(FormatError):
            upload(publication, server)
        with pytest.raises(StorageError):
            server.manifest()
        path.write_bytes(whole)
        server._store.close()
    manifest = publication.folder / "manifest"
    signed = manifest.read_bytes()
    for data in (signed[:-1], signed[:100], b"", signed[:50] + b"\0" + signed[51:]):
        manifest.write_bytes(data)
        with pytest.raises(VerificationError):
            Publication.load(publication.folder, stored.keys.signing.public)
    manifest.write_bytes(signed[:8] + b"\0\0\0\5" + signed[12:])
    with pytest.raises(UnsupportedVersion):
        Publication.load(publication.folder, stored.keys.signing.public)
    manifest.write_bytes(signed)
    again = Publication.load(publication.folder, stored.keys.signing.public)
    upload(again, empty)
    assert empty.manifest() == signed
