"""Every decoder of untrusted bytes, with samples and the way to change them; none may be forgotten.

``found_decoders`` walks over the modules of the core and lists what decodes by its name.  Each must
be covered by a target of ``make_targets`` or stand in ``EXCEPTIONS`` with the reason.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import mksearch
from mksearch import codec
from mksearch.access.attributes import parse_attribute
from mksearch.access.authority import set_up_shared
from mksearch.access.authority_messages import ShareOrder
from mksearch.access.backup_share import (
    BackupBody,
    OpenedShare,
    SealedShare,
    parse_backup_policy,
    rows_of,
)
from mksearch.access.cpabe import Header, encapsulate, generate_key, set_up
from mksearch.access.credential import Credential, SignedCredential
from mksearch.access.credential_list import decode_credentials, encode_credentials
from mksearch.access.enrolment import (
    CredentialSecrets,
    MemberSecrets,
    issue_credential,
    open_credential,
    read_credential,
)
from mksearch.access.issuing import issue_partial
from mksearch.access.keys import (
    AttributeKey,
    AuthorityShare,
    PartialKey,
    PublicParameters,
    VerificationKeys,
)
from mksearch.access.orders import SignedOrder
from mksearch.access.pairing import BLS12_381
from mksearch.access.policy import Policy, parse_policy
from mksearch.access.refresh import deal_masks, deal_zero
from mksearch.access.refresh_messages import HelpOrder, RefreshOrder, RepairOrder
from mksearch.access.sealed_bundle import open_bundle, seal_bundle
from mksearch.access.share_keeping import read_scalar
from mksearch.crypto import labels
from mksearch.crypto.aead import Aead
from mksearch.crypto.bundle import KeyBundle
from mksearch.crypto.evidence import Evidence
from mksearch.crypto.identity import Identity
from mksearch.crypto.kdf import sha256
from mksearch.crypto.passphrase import PassphraseSeal
from mksearch.crypto.randomness import SeededRandom
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.crypto.user_key import UserKey
from mksearch.index.blob_list import BlobList
from mksearch.index.catalogue import (
    Catalogue,
    Lookup,
    decode_catalogue,
    encode_catalogue,
)
from mksearch.index.catalogue_part import CataloguePart
from mksearch.index.dictionary import Dictionary
from mksearch.index.document import StoredDocument
from mksearch.index.equivocation import Equivocation
from mksearch.index.manifest import Access, Manifest, ObjectRef, SegmentRef, SignedManifest
from mksearch.index.record import decode_record
from mksearch.index.renewal import SignedRenewal
from mksearch.index.segment import HEADER_BYTES, SegmentHeader, SegmentReader
from mksearch.index.server_list import ListedServer, ServerList
from mksearch.index.slots import SlotReader
from mksearch.index.stream import open_stream, seal_stream
from mksearch.index.tombstones import decode_parts, encode_parts
from mksearch.messages import (
    RecordAnswer,
    RecordRequest,
    ScoreAnswer,
    ScoreRequest,
    SelectAnswer,
    SelectRequest,
    Ticket,
)
from mksearch.params import FETCH_CLASSES, Quorum
from mksearch.query.group import GroupView, open_dictionary
from mksearch.query.records import open_document, read_records
from mksearch.query.trapdoor import parse_question
from mksearch.wire import convert
from mksearch.wire.v1 import search_pb2
from tests.adversary.corpus import make_documents
from tests.chaos.mutate import (
    Mutate,
    mutate_bytes,
    mutate_cbor,
    mutate_compressed,
    mutate_message,
)
from tests.support.local import LocalCollection, publish
from tests.vectors import changes

__all__ = ["EXCEPTIONS", "Target", "found_decoders", "make_targets"]

_DECODES = re.compile(r"_?(decode|parse|read|open|inflate|from_fields|of_fields)(_|$)")

#: What is named like a decoder and is none, or is reached through another one alone.
EXCEPTIONS = {
    "mksearch.access.backup_share._Signed.decode": "called by SealedShare and OpenedShare.decode",
    "mksearch.wire.convert.chunks": "cuts what is sent",
    "mksearch.wire.convert.packed": "puts together what is sent",
    "mksearch.query.descent._Tree.open_level": "names blocks to ask for, and reads no bytes",
    "mksearch.wire.convert._ticket_fields": "makes messages",
    "mksearch.wire.convert._require_length": "called by the converters, where it is",
    "mksearch.access.keys._open": "called by every decoder of the module, with its bytes",
    "mksearch.access.keys._read_generation": "called by decoders of the module, with their reader",
    "mksearch.access.keys._read_server": "called by decoders of the module, with their reader",
    "mksearch.access.keys.AttributeKey.read": "called by AttributeKey and PartialKey.decode",
    "mksearch.access.pairing.PairingGroup.decode_g1": "a signature without code",
    "mksearch.access.pairing.PairingGroup.decode_g2": "a signature without code",
    "mksearch.access.orders.Order.decode": "a signature without code",
    "mksearch.access.orders.read_keys": "called by decoders of orders, with their files",
    "mksearch.access.orders.read_order": "called by every decoder of an order",
    "mksearch.access.pairing._decode": "called by decode_g1 and decode_g2",
    "mksearch.access.charm.CharmGroup.decode_g1": "of a library that only comparisons use",
    "mksearch.access.charm.CharmGroup.decode_g2": "of a library that only comparisons use",
    "mksearch.scoring.cuda.CudaEngine._open": "opens GPUs",
    "mksearch.scoring.cuda.CudaEngine._open_again": "opens GPUs",
    "mksearch.scoring.cuda_kernels.read_source": "reads files of the package itself",
    "mksearch.scoring.cuda_kernels.read_table": "takes JSON; tests/gpu gives it what does not fit",
    "mksearch.codec.decode_varints": "called by Dictionary.decode, with bytes of any kind",
    "mksearch.index.dictionary._decode_facts": "called by Dictionary.decode for every segment",
    "mksearch.index.dictionary._decode_ratios": "called by Dictionary.decode",
    "mksearch.index.dictionary.inflate": "called by Dictionary.decode and decode_catalogue",
    "mksearch.index.tombstones._decode_part": "called by decode_parts for every segment",
    "mksearch.index.tombstones._decode_entries": "called by decode_parts for every segment",
    "mksearch.query.group.open_lookup_parts": "open_stream, then decode_parts",
    "mksearch.index.manifest.Group.from_fields": "called by Manifest.decode for every group",
    "mksearch.index.server_list.ServerList.from_fields": "called by Manifest.decode",
}


@dataclass(frozen=True)
class Target:
    """What decodes, and what it is fed with.

    Attributes:
        name: for reports.
        decode: takes the bytes; raises MksearchError or returns.
        samples: good bytes.
        mutate: makes other bytes of them.
        covers: names of the decoders that this runs.
        encode: gives back the bytes of what was decoded, where there is one encoding only.
        slowness: how many times slower than others; so many times fewer bytes are tried.
    """

    name: str
    decode: Callable[[bytes], object]
    samples: Sequence[bytes]
    mutate: Mutate
    covers: frozenset[str]
    encode: Callable[[Any], bytes] | None = None
    slowness: int = 1


def found_decoders() -> set[str]:
    """Return the names of everything in the core that decodes, as its name tells."""
    found: set[str] = set()
    for info in pkgutil.walk_packages(mksearch.__path__, "mksearch."):
        if ".wire.v1." in info.name:
            continue
        try:
            module = importlib.import_module(info.name)
        except ImportError:
            # A library that is not installed everywhere.
            continue
        found |= {f"{info.name}.{name}" for name in _names(module)}
    return found


def _names(module: Any) -> Iterator[str]:
    # What comes over the wire has names of its own: all but what makes messages.
    is_wire = module is convert
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        named = is_wire and not name.endswith(("_message", "_messages"))
        if inspect.isfunction(value) and (_DECODES.match(name) or named):
            yield name
        if inspect.isclass(value):
            for own, attribute in vars(value).items():
                function = getattr(attribute, "__func__", attribute)
                if inspect.isfunction(function) and _DECODES.match(own):
                    yield f"{name}.{own}"


def _covers(*functions: Any) -> frozenset[str]:
    return frozenset(f"{f.__module__}.{f.__qualname__}" for f in functions)


def make_targets(folder: Path) -> list[Target]:
    """Return every target; ``folder`` is for a small collection that gives the samples."""
    return [
        *_index_targets(folder),
        *_access_targets(),
        *_order_targets(),
        *_refresh_targets(),
        *_backup_targets(),
        *_wire_targets(),
        *_file_targets(folder),
    ]


# --- the index and everything stored --------------------------------------------------------------


def _index_targets(folder: Path) -> list[Target]:
    random = SeededRandom(b"decoders".ljust(32))
    local = publish(make_documents(60, 9), folder / "collection", random=random)
    signed = local.publication.signed
    group = signed.manifest.groups[0]
    bundle = local.keys.bundle(b"", 1)

    def stored(name: bytes) -> bytes:
        return b"".join(local.publication.chunks(name))

    def opened(kind: str, name: bytes) -> bytes:
        key = bundle.section_key(kind)
        if kind == "catalogue":
            key = local.keys.catalogue_key()
        return open_stream(key, kind, local.keys.collection, stored(name))

    dictionary = opened("dictionary", group.dictionary.id)
    lookup = opened("lookup", group.lookup.id)
    catalogue = opened("catalogue", signed.manifest.catalogue.id)
    segment = stored(group.segments[0].id)
    documents = [
        StoredDocument("id", "title", "text").encode(),
        StoredDocument("é", "", "x" * 500).encode(),
    ]
    view = GroupView(
        group,
        bundle,
        local.keys.collection,
        Dictionary.decode(dictionary),
        [segment[:HEADER_BYTES]],
    )
    records = _records(view, segment)
    return [
        *_manifest_targets(local, signed),
        *_sealed_targets(local, bundle, view, segment, stored(group.dictionary.id)),
        Target(
            "segment header",
            SegmentHeader.decode,
            [segment[:HEADER_BYTES]],
            _in_header(mutate_cbor),
            _covers(SegmentHeader.decode),
            SegmentHeader.encode,
        ),
        Target(
            "segment",
            lambda data: SegmentReader(np.frombuffer(data, np.uint8)).verify(),
            [segment],
            mutate_bytes,
            frozenset(),
            slowness=10,
        ),
        Target(
            "dictionary",
            Dictionary.decode,
            [dictionary, changes.dictionary().encode()],
            mutate_compressed,
            _covers(Dictionary.decode),
        ),
        Target(
            "lookup",
            lambda data: Lookup.decode(bundle, data).find("doc-0003"),
            [lookup],
            mutate_bytes,
            _covers(Lookup.decode),
        ),
        Target(
            "lookup of several segments",
            decode_parts,
            [encode_parts(changes.places(), random)],
            mutate_bytes,
            _covers(decode_parts),
        ),
        Target(
            "catalogue",
            Catalogue.decode,
            [catalogue, changes.catalogue().encode()],
            mutate_compressed,
            _covers(Catalogue.decode),
        ),
        Target(
            "catalogue of format 1",
            decode_catalogue,
            [encode_catalogue(changes.catalogue().entries)],
            mutate_compressed,
            _covers(decode_catalogue),
        ),
        Target(
            "part of the catalogue",
            CataloguePart.decode,
            [changes.part().encode()],
            mutate_compressed,
            _covers(CataloguePart.decode),
        ),
        Target(
            "document",
            StoredDocument.decode,
            documents,
            mutate_cbor,
            _covers(StoredDocument.decode),
            StoredDocument.encode,
        ),
        Target("record", decode_record, records, mutate_bytes, _covers(decode_record)),
        Target(
            "blob list",
            BlobList.decode,
            [stored(group.blobs.id), BlobList.of(()).encode()],
            mutate_bytes,
            _covers(BlobList.decode),
            BlobList.encode,
        ),
        Target(
            "question",
            lambda data: parse_question(view, data.decode("utf-8", "surrogatepass")),
            [document.text.encode() for document in make_documents(20, 9)],
            _text(mutate_bytes),
            _covers(parse_question),
        ),
        Target(
            "cbor",
            lambda data: codec.decode_cbor(data, "a value"),
            [signed.body, *documents],
            mutate_cbor,
            _covers(codec.decode_cbor),
            codec.encode_cbor,
        ),
        Target(
            "envelope",
            lambda data: codec.read_envelope(data, b"MKSTREAM", 1, "a file"),
            [codec.write_envelope(b"MKSTREAM", 1)],
            mutate_bytes,
            _covers(codec.read_envelope),
        ),
    ]


def _records(view: GroupView, segment: bytes) -> list[bytes]:
    """Return the bytes of some records."""
    reader = SegmentReader(np.frombuffer(segment, np.uint8))
    found = []
    slots = view.segments[0].slots
    for row in range(0, view.segments[0].n_rows, 9):
        elements = reader.slots()[[slots.physical(row)]][0]
        part = slots.open_part(row, 0, np.array(elements))
        size, more = slots.parse_frame(part)
        if not more:
            found.append(slots.join(size, [part]))
    return found


def _manifest_targets(local: LocalCollection, signed: SignedManifest) -> list[Target]:
    key, collection = local.keys.signing, local.keys.collection

    def resigned(source: Random, samples: Sequence[bytes]) -> bytes:
        """Change the body and sign it, so that what is behind the signature meets it."""
        if source.random() < 0.2:
            return mutate_bytes(source, samples)
        body = mutate_cbor(source, [sample[16:-64] for sample in samples])
        head = samples[0][:12] if source.random() < 0.9 else source.choice(samples)[:12]
        return head + len(body).to_bytes(4, "big") + body + key.sign(labels.MANIFEST, body)

    shared = set_up_shared(Quorum(), SeededRandom(b"manifest".ljust(32)))
    access = Access(shared.parameters.encode(), key.public, 1, shared.verification.encode())
    sealed = SignedManifest.sign(
        replace(
            signed.manifest,
            access=access,
            groups=tuple(
                replace(
                    group,
                    policy=b"a AND b",
                    bundle=ObjectRef(bytes(32), 100),
                    search_key=key.public,
                )
                for group in signed.manifest.groups
            ),
        ),
        key,
    )
    named = [
        SignedManifest.sign(replace(one.manifest, timestamp_key=key.public), key)
        for one in (signed, sealed)
    ]
    places = range(1, signed.manifest.quorum.n_servers + 1)
    servers = [ListedServer(n, f"a{n}.example:7101", bytes([n]) * 32, b"", 1) for n in places]
    changed = ServerList(tuple(servers)).changed(replace(servers[1], key=bytes(32), since=2))
    second = [
        replace(one.manifest, version=2, previous=signed.hash, servers=changed) for one in named
    ]
    named += [SignedManifest.sign(manifest, key) for manifest in second]
    reference = signed.manifest.catalogue.to_fields()
    segment = signed.manifest.groups[0].segments[0].to_fields()

    def fields(read: Callable[[object], object]) -> Callable[[bytes], object]:
        return lambda data: read(codec.decode_cbor(data, "fields"))

    return [
        Target(
            "signed manifest",
            lambda data: SignedManifest.decode(data, key.public, collection),
            [one.encode() for one in (signed, sealed, *named)],
            resigned,
            _covers(SignedManifest.decode),
            SignedManifest.encode,
        ),
        Target(
            "manifest",
            Manifest.decode,
            [one.body for one in (signed, sealed, *named)],
            mutate_cbor,
            _covers(Manifest.decode),
            Manifest.encode,
        ),
        *_freshness_targets(named[0], key),
        Target(
            "manifest: access",
            fields(lambda value: Access.from_fields(value, Quorum())),
            [
                codec.encode_cbor(replace(access, verification=keys).to_fields())
                for keys in (b"", access.verification)
            ],
            mutate_cbor,
            _covers(Access.from_fields),
        ),
        Target(
            "manifest: object",
            fields(ObjectRef.from_fields),
            [codec.encode_cbor(reference)],
            mutate_cbor,
            _covers(ObjectRef.from_fields),
        ),
        Target(
            "manifest: segment",
            fields(SegmentRef.from_fields),
            [codec.encode_cbor(segment)],
            mutate_cbor,
            _covers(SegmentRef.from_fields),
        ),
    ]


def _freshness_targets(signed: SignedManifest, key: SigningKey) -> list[Target]:
    """Return what reads renewals of ``signed``, by the owner's ``key`` too, and evidence."""
    renewal = SignedRenewal.sign(signed, 1_800_000_000, key)
    other = SignedManifest.sign(replace(signed.manifest, name="other"), key)
    evidence = Equivocation.of(signed, other)
    collection = signed.manifest.collection

    def resigned(source: Random, samples: Sequence[bytes]) -> bytes:
        """Change the body and sign it."""
        if source.random() < 0.2:
            return mutate_bytes(source, samples)
        body = mutate_cbor(source, [sample[16:-64] for sample in samples])
        size = len(body).to_bytes(4, "big")
        return samples[0][:12] + size + body + key.sign(labels.RENEWAL, body)

    return [
        Target(
            "renewal",
            lambda data: SignedRenewal.decode(data, signed),
            [renewal.encode()],
            resigned,
            _covers(SignedRenewal.decode),
            SignedRenewal.encode,
        ),
        Target(
            "evidence of two manifests",
            lambda data: Equivocation.decode(data, key.public, collection),
            [evidence.encode()],
            _behind(codec.ENVELOPE_BYTES, mutate_cbor),
            _covers(Equivocation.decode),
            Equivocation.encode,
        ),
    ]


def _behind(n_bytes: int, mutate: Mutate) -> Mutate:
    """Change what is behind the first bytes, or now and then anything."""

    def change(source: Random, samples: Sequence[bytes]) -> bytes:
        if source.random() < 0.2:
            return mutate_bytes(source, samples)
        sample = source.choice(samples)
        return sample[:n_bytes] + mutate(source, [sample[n_bytes:]])

    return change


def _in_header(mutate: Mutate) -> Mutate:
    """Change the CBOR inside a segment header."""

    def change(source: Random, samples: Sequence[bytes]) -> bytes:
        if source.random() < 0.3:
            return mutate_bytes(source, samples)
        sample = source.choice(samples)
        size = int.from_bytes(sample[12:16], "big")
        body = mutate(source, [sample[16 : 16 + size]])
        return (sample[:12] + len(body).to_bytes(4, "big") + body).ljust(HEADER_BYTES, b"\0")

    return change


def _text(mutate: Mutate) -> Mutate:
    """Change bytes, and make text of them again."""

    def change(source: Random, samples: Sequence[bytes]) -> bytes:
        data = mutate(source, samples)
        if source.random() < 0.3:
            more = source.choice(("\ud800", "\0", "e\u0301" * 50, "\U0001f9ea", "x" * 9000))
            data += more.encode("utf-8", "surrogatepass")
        return data.decode("utf-8", "replace" if source.random() < 0.9 else "ignore").encode()

    return change


def _sealed_targets(
    local: LocalCollection, bundle: KeyBundle, view: GroupView, segment: bytes, dictionary: bytes
) -> list[Target]:
    random = SeededRandom(b"sealed".ljust(32))
    collection = local.keys.collection
    key = SecretKey(bytes(range(32)))
    blobs = [
        seal_stream(key, "blob", collection, content, random)
        for content in (
            StoredDocument("a", "b", "c").encode(),
            StoredDocument("a", "b", "c" * 70_000).encode(),
        )
    ]
    aead = Aead(key)
    nonce = bytes(12)
    slots = view.segments[0].slots
    stored = SegmentReader(np.frombuffer(segment, np.uint8)).slots()
    own = np.ascontiguousarray(stored[slots.physical(3)]).tobytes()
    part = slots.open_part(3, 0, np.frombuffer(own, np.uint16))

    def one_slot(data: bytes) -> object:
        elements = np.frombuffer(data[: len(data) // 2 * 2], np.uint16)
        return slots.open_part(3, 0, elements)

    rows = [3, 5]
    both = b"".join(
        np.ascontiguousarray(stored[slot]).tobytes() for slot in sorted(map(slots.physical, rows))
    )

    def whole(data: bytes) -> object:
        reading = read_records(slots, rows, len(view.dictionary.terms))
        wanted = next(reading)
        width = slots.shape.width
        elements = np.frombuffer(data[: len(data) // 2 * 2], np.uint16)
        received = elements[: len(elements) // width * width].reshape(-1, width)
        try:
            for _ in range(3):
                wanted = reading.send(received)
        except StopIteration as done:
            return done.value
        return wanted

    return [
        Target(
            "sealed stream",
            lambda data: open_stream(key, "blob", collection, data),
            blobs,
            mutate_bytes,
            _covers(open_stream),
        ),
        Target(
            "sealed document",
            # Under the name of the changed bytes, so that what is behind the hash meets them.
            lambda data: open_document(key, collection, sha256(data), data),
            blobs,
            mutate_bytes,
            _covers(open_document),
        ),
        Target(
            "sealed dictionary",
            lambda data: open_dictionary(bundle, collection, data),
            [dictionary],
            mutate_bytes,
            _covers(open_dictionary),
        ),
        Target(
            "sealed bytes",
            lambda data: aead.open(nonce, data, b"", "bytes"),
            [aead.seal(nonce, b"content", b"")],
            mutate_bytes,
            _covers(Aead.open),
        ),
        Target("record slot", one_slot, [own], mutate_bytes, _covers(SlotReader.open_part)),
        Target("record slots", whole, [both], mutate_bytes, _covers(read_records)),
        Target(
            "record frame",
            slots.parse_frame,
            [part, part[:8]],
            mutate_bytes,
            _covers(SlotReader.parse_frame),
        ),
        Target(
            "passphrase seal",
            lambda data: PassphraseSeal.open(b"words", data),
            [PassphraseSeal.seal(b"words", b"content", random)],
            mutate_bytes,
            _covers(PassphraseSeal.open),
            # scrypt takes a quarter of a second, on purpose.
            slowness=1000,
        ),
    ]


# --- access ---------------------------------------------------------------------------------------


def _access_targets() -> list[Target]:
    random = SeededRandom(b"access".ljust(32))
    parameters, master = set_up(random)
    attributes = [parse_attribute(text) for text in ("role:analyst", "clearance:5")]
    key = generate_key(parameters, master, attributes, 3, random)
    shared = set_up_shared(Quorum(), random)
    part = issue_partial(shared.parameters, shared.shares[0], attributes, 3, random)
    policies = ["role:analyst AND 2 OF (a, b, clearance >= 3)", "a", "(x = 5 OR y) and z"]
    policy = parse_policy(policies[0])
    header, _ = encapsulate(parameters, policy, 3, b"context", random)
    identity = Identity(SecretKey(random.bytes(32)))
    admin = SigningKey(SecretKey(random.bytes(32)))
    collection = random.bytes(16)
    credential = Credential(
        collection, parameters.authority, 3, random.bytes(16), identity.public.id,
        tuple(attributes), 1, 2_000_000_000,
    )  # fmt: skip
    secrets = MemberSecrets(SecretKey(random.bytes(32)), key)
    inside = CredentialSecrets(secrets.member_secret, key)
    issued = issue_credential(credential, identity.public, inside, admin)
    bundle = KeyBundle.from_master(SecretKey(random.bytes(32)), collection, 3, policy.data)

    def sealed(policy_data: bytes) -> bytes:
        return seal_bundle(
            bundle, parameters, secrets.member_secret, random,
            collection=collection, epoch=3, policy=policy_data,
        )  # fmt: skip

    def resigned(source: Random, samples: Sequence[bytes]) -> bytes:
        if source.random() < 0.3:
            return mutate_bytes(source, samples)
        body = mutate_cbor(source, [issued.body])
        size = len(body).to_bytes(4, "big")
        signature = admin.sign(labels.CREDENTIAL, body)
        rest = len(issued.sealed).to_bytes(4, "big") + issued.sealed
        return samples[0][:12] + size + body + signature + rest

    def opened(data: bytes) -> object:
        signed = SignedCredential.decode(data, admin.public)
        read_credential(signed, identity)
        return open_credential(signed, identity, parameters, SeededRandom(bytes(32)))

    g1, g2 = header.rows[0][0].encode(), header.c.encode()
    points = 8
    return [
        Target(
            "public parameters", PublicParameters.decode, [parameters.encode()], mutate_bytes,
            _covers(PublicParameters.decode), PublicParameters.encode, points,
        ),
        Target(
            "verification keys", VerificationKeys.decode, [shared.verification.encode()],
            mutate_bytes, _covers(VerificationKeys.decode), VerificationKeys.encode, points,
        ),
        Target(
            "authority share", AuthorityShare.decode, [shared.shares[1].encode()], mutate_bytes,
            _covers(AuthorityShare.decode), AuthorityShare.encode,
        ),
        Target(
            "attribute key", AttributeKey.decode, [key.encode()], mutate_bytes,
            _covers(AttributeKey.decode), AttributeKey.encode, points,
        ),
        Target(
            "partial key", PartialKey.decode, [part.encode()], mutate_bytes,
            _covers(PartialKey.decode), PartialKey.encode, points,
        ),
        Target(
            "access header", Header.decode, [header.encode()], mutate_bytes,
            _covers(Header.decode), Header.encode, points,
        ),
        Target(
            "point of the first group", lambda data: BLS12_381.decode_g1(data, "a point"), [g1],
            mutate_bytes, _covers(type(BLS12_381).decode_g1), lambda point: point.encode(),
        ),
        Target(
            "point of the second group", lambda data: BLS12_381.decode_g2(data, "a point"), [g2],
            mutate_bytes, _covers(type(BLS12_381).decode_g2), lambda point: point.encode(),
        ),
        Target(
            "policy", Policy.decode, [text.encode() for text in policies], _policy_bytes,
            _covers(Policy.decode), lambda found: bytes(found.data),
        ),
        Target(
            "policy text", lambda data: parse_policy(data.decode("utf-8", "surrogatepass")),
            [text.encode() for text in policies], _text(_policy_bytes), _covers(parse_policy),
        ),
        Target(
            "attribute", lambda data: parse_attribute(data.decode("utf-8", "surrogatepass")),
            [b"role:analyst", b"clearance:5", b'"and":"\\""'], _text(_policy_bytes),
            _covers(parse_attribute),
        ),
        Target(
            "credential", Credential.decode, [issued.body], mutate_cbor,
            _covers(Credential.decode), Credential.encode,
        ),
        Target(
            "signed credential", opened, [issued.encode()], resigned,
            _covers(SignedCredential.decode, open_credential, read_credential), slowness=40,
        ),
        Target(
            "list of credentials", decode_credentials,
            [encode_credentials({identity.public.id: issued.encode(), bytes(32): b"x"})],
            _behind(12, mutate_cbor), _covers(decode_credentials), encode_credentials,
        ),
        Target(
            "credential secrets", CredentialSecrets.decode,
            [inside.encode(), CredentialSecrets(secrets.member_secret, None).encode()],
            mutate_cbor, _covers(CredentialSecrets.decode), CredentialSecrets.encode, points,
        ),
        Target(
            "user key", UserKey.decode, [identity.public.encode()], mutate_bytes,
            _covers(UserKey.decode), UserKey.encode,
        ),
        Target(
            "sealed to a user", lambda data: identity.open(b"test", b"", data, "a message"),
            [identity.public.seal(b"test", b"", b"content")], mutate_bytes,
            _covers(Identity.open),
        ),
        Target(
            "key bundle", KeyBundle.decode, [bundle.encode()], mutate_bytes,
            _covers(KeyBundle.decode), KeyBundle.encode,
        ),
        Target(
            "sealed bundle",
            lambda data: open_bundle(
                data, parameters, secrets, collection=collection, epoch=3, policy=b"role:analyst"
            ),
            [sealed(b"role:analyst")], mutate_bytes, _covers(open_bundle), slowness=40,
        ),
    ]  # fmt: skip


def _order_targets() -> list[Target]:
    random = SeededRandom(b"orders".ljust(32))
    owner = SigningKey(SecretKey(random.bytes(32)))
    shared = set_up_shared(Quorum(), random)
    order = ShareOrder(
        random.bytes(16), 2, random.bytes(32), shared.parameters, shared.verification
    )
    body = order.encode()

    def signed(data: bytes) -> object:
        signature = owner.sign(labels.INSTALL_SHARE, data)
        found = SignedOrder.decode(ShareOrder, data, signature, owner.public)
        found.order.require_share(shared.shares[1])
        return found

    return [
        Target(
            "order with a share", ShareOrder.decode, [body], mutate_cbor,
            _covers(ShareOrder.decode), ShareOrder.encode, 8,
        ),
        Target(
            "signed order with a share", signed, [body], mutate_cbor,
            _covers(SignedOrder.decode), slowness=8,
        ),
    ]  # fmt: skip


def _refresh_targets() -> list[Target]:
    random = SeededRandom(b"refresh".ljust(32))
    owner = SigningKey(SecretKey(random.bytes(32)))
    shared = set_up_shared(Quorum(), random)
    parameters = shared.parameters
    parts, fresh = deal_zero(parameters, shared.verification, 2, random)
    masks, points = deal_masks(parameters, 1, 1, (2, 3), random)
    collection, challenge, repair = random.bytes(16), random.bytes(32), random.bytes(16)
    key = Identity(SecretKey(random.bytes(32))).public
    refresh = RefreshOrder(collection, 1, challenge, 1, parameters, fresh)
    helping = HelpOrder(
        collection, 2, challenge, parameters.authority, 1, 1, key, repair, points[0]
    )
    mending = RepairOrder(
        collection, 1, challenge, parameters, shared.verification, repair, (2, 3), points
    )
    order = parameters.group.order

    def signed(data: bytes) -> object:
        signature = owner.sign(labels.REFRESH_SHARE, data)
        return SignedOrder.decode(RefreshOrder, data, signature, owner.public)

    return [
        Target(
            "order to refresh", RefreshOrder.decode, [refresh.encode()], mutate_cbor,
            _covers(RefreshOrder.decode), RefreshOrder.encode, 8,
        ),
        Target(
            "signed order to refresh", signed, [refresh.encode()], mutate_cbor,
            _covers(SignedOrder.decode), slowness=8,
        ),
        Target(
            "order to help", HelpOrder.decode, [helping.encode()], mutate_cbor,
            _covers(HelpOrder.decode), HelpOrder.encode, 4,
        ),
        Target(
            "order to repair", RepairOrder.decode, [mending.encode()], mutate_cbor,
            _covers(RepairOrder.decode), RepairOrder.encode, 8,
        ),
        Target(
            "part of zero", lambda data: read_scalar(data, order, "a part of zero"),
            [one.reveal() for one in (*parts, *masks)], mutate_bytes, _covers(read_scalar),
            SecretKey.reveal,
        ),
    ]  # fmt: skip


def _backup_targets() -> list[Target]:
    random = SeededRandom(b"backup".ljust(32))
    identity = Identity(SecretKey(random.bytes(32)))
    owner = SigningKey(SecretKey(random.bytes(32)))
    policies = [b"2 OF (key:alice, key:bob, key:carol)", b"key:alice AND (key:bob OR key:alice)"]
    sealed, opened = [], []
    for policy in policies:
        body = BackupBody(
            random.bytes(16), owner.public, random.bytes(16), policy, "alice",
            identity.public.id, b"content",
        )  # fmt: skip
        rows = {row: SecretKey(bytes(31) + b"\5") for row in rows_of(body.program(), body.name)}
        share = SealedShare.seal(body, identity.public, owner, rows)
        sealed.append(share.encode())
        opened.append(share.open(identity).encode())

    def resigned(source: Random, samples: Sequence[bytes]) -> bytes:
        """Change the body, or what is behind it, under a signature that fits."""
        if source.random() < 0.2:
            return mutate_bytes(source, samples)
        sample = source.choice(samples)
        stop = 16 + int.from_bytes(sample[12:16], "big")
        body, rest = sample[16:stop], sample[stop + 64 :]
        if source.random() < 0.6:
            body = mutate_cbor(source, [body])
        else:
            rest = mutate_cbor(source, [rest])
        signature = owner.sign(labels.BACKUP, body)
        return sample[:12] + len(body).to_bytes(4, "big") + body + signature + rest

    return [
        Target(
            "backup body", lambda data: BackupBody.decode(data, "a backup"),
            [data[16 : 16 + int.from_bytes(data[12:16], "big")] for data in sealed],
            mutate_cbor, _covers(BackupBody.decode), BackupBody.encode,
        ),
        Target(
            "share of a backup", lambda data: SealedShare.decode(data).open(identity), sealed,
            resigned, _covers(SealedShare.decode, SealedShare.open),
        ),
        Target(
            "opened share of a backup", OpenedShare.decode, opened, resigned,
            _covers(OpenedShare.decode), OpenedShare.encode,
        ),
        Target(
            "policy of a backup",
            lambda data: parse_backup_policy(data.decode("utf-8", "surrogatepass")), policies,
            _text(_policy_bytes), _covers(parse_backup_policy),
        ),
    ]  # fmt: skip


_WORDS = (
    b"AND", b"OR", b"OF", b"(", b")", b",", b">=", b"<", b"==", b" ", b'"', b"\\", b":", b"0",
    b"4294967296", b"((((((((((((((((((((((((((((((((((((((((", b"a OR " * 300, b"9 OF (",
    b"\xd9\xa3", "é".encode(),
)  # fmt: skip


def _policy_bytes(source: Random, samples: Sequence[bytes]) -> bytes:
    """Change a policy byte by byte, or word by word."""
    if source.random() < 0.4:
        return mutate_bytes(source, samples)
    words = re.findall(rb"\w+|\W", source.choice(samples))
    for _ in range(source.choice((1, 1, 2, 4))):
        at = source.randrange(len(words) + 1)
        words[at : at + source.choice((0, 1))] = [source.choice([*_WORDS, *words])]
    return b"".join(words)


# --- answers over the wire ------------------------------------------------------------------------


def _messages(
    message: Any, good: Sequence[Sequence[bytes]]
) -> tuple[Callable[[bytes], list[Any]], list[bytes], Mutate]:
    """Frame messages behind their lengths, and change a message, or which ones come."""

    def split(data: bytes) -> list[Any]:
        found = []
        while data:
            size = int.from_bytes(data[:4], "big")
            try:
                found.append(message.FromString(data[4 : 4 + size]))
            except Exception:  # noqa: BLE001 - what is no message never reaches the converter
                found.append(message())
            data = data[4 + size :]
        return found

    def join(messages: Sequence[bytes]) -> bytes:
        return b"".join(len(one).to_bytes(4, "big") + one for one in messages)

    def change(source: Random, samples: Sequence[bytes]) -> bytes:
        held = [one.SerializeToString() for one in split(source.choice(samples))]
        at = source.randrange(len(held))
        kind = source.random()
        if kind < 0.6:
            held[at] = mutate_message(source, message.FromString(held[at]))
        elif kind < 0.7:
            held.insert(at, held[at])
        elif kind < 0.8:
            del held[at]
        else:
            source.shuffle(held)
        return join(held)

    return split, [join(messages) for messages in good], change


def _wire_targets() -> list[Target]:
    sums = np.arange(2 * 64 * 3, dtype=np.uint16).reshape(2, 64, 3)
    told = [m.SerializeToString() for m in convert.score_answer_messages(
        ScoreAnswer(bytes(16), sums), bytes(64)
    )]  # fmt: skip
    slots = np.arange(5 * 40, dtype=np.uint16).reshape(5, 40)
    records = [m.SerializeToString() for m in convert.record_answer_messages(RecordAnswer(slots))]
    asked = [m.SerializeToString() for m in convert.score_request_messages(
        ScoreRequest(
            bytes(16), 1, bytes(32), 0, np.zeros((2, 30), np.uint16), ticket=Ticket(9, bytes(64))
        )
    )]  # fmt: skip
    plain = RecordRequest(1, bytes(32), np.arange(9))
    signed = replace(plain, query_id=bytes(16), ticket=Ticket(9, bytes(64)))
    wanted = [
        convert.record_requests_message(requests).SerializeToString()
        for requests in ([plain], [signed], [signed, plain, signed])
    ]
    split_scores, score_samples, change_scores = _messages(search_pb2.ScoreResponse, [told])
    split_records, record_samples, change_records = _messages(
        search_pb2.GetRecordsResponse, [records]
    )
    split_asked, asked_samples, change_asked = _messages(search_pb2.ScoreRequest, [asked])
    n_fetches, n_groups = FETCH_CLASSES[0], 11
    selectors = np.arange(n_fetches * n_groups, dtype=np.uint16).reshape(n_fetches, n_groups)
    selecting = [m.SerializeToString() for m in convert.select_request_messages(
        SelectRequest(bytes(16), 1, bytes(32), selectors, ticket=Ticket(9, bytes(64)))
    )]  # fmt: skip
    selected = [m.SerializeToString() for m in convert.select_answer_messages(
        SelectAnswer(bytes(16), np.arange(n_fetches * 6, dtype=np.uint16).reshape(n_fetches, 2, 3)),
        bytes(64),
    )]  # fmt: skip
    split_selecting, selecting_samples, change_selecting = _messages(
        search_pb2.SelectRequest, [selecting]
    )
    split_selected, selected_samples, change_selected = _messages(
        search_pb2.SelectResponse, [selected]
    )
    split_wanted, wanted_samples, change_wanted = _messages(
        search_pb2.GetRecordsRequest, [[one] for one in wanted]
    )

    def read_request(data: bytes) -> object:
        gathering = convert.Gathering(2 * 2 * 30, "a share")
        head = None
        for message in chain.from_iterable(map(convert.unpacked, split_asked(data))):
            head = head or convert.score_head(message.head)
            gathering.add(message.shares)
        return None if head is None else convert.score_request(head, gathering.elements((2, 30)))

    def read_selecting(data: bytes) -> object:
        gathering = convert.Gathering(2 * n_fetches * n_groups, "selectors")
        head = None
        for message in split_selecting(data):
            head = head or convert.select_head(message.head)
            gathering.add(message.selectors)
        if head is None:
            return None
        return convert.select_request(head, gathering.elements((n_fetches, n_groups)))

    asker = ScoreRequest(bytes(16), 1, bytes(32), 0, np.arange(60, dtype=np.uint16).reshape(2, 30))
    evidence = Evidence(2, bytes(32), asker, ScoreAnswer(bytes(16), sums, bytes(64)))
    return [
        Target(
            "evidence", Evidence.decode, [evidence.encode()], _behind(12, mutate_cbor),
            _covers(Evidence.decode), Evidence.encode,
        ),
        Target(
            "score answer", lambda data: convert.score_answer(split_scores(data), (2, 64, 3)),
            score_samples, change_scores, _covers(convert.score_answer),
        ),
        Target(
            "record answer", lambda data: convert.record_answer(split_records(data), 5, 40),
            record_samples, change_records, _covers(convert.record_answer),
        ),
        Target(
            "score request", read_request, asked_samples, change_asked,
            _covers(convert.score_head, convert.score_request, convert.ticket, convert.unpacked),
        ),
        Target(
            "select request", read_selecting, selecting_samples, change_selecting,
            _covers(convert.select_head, convert.select_request, convert._require_names),
        ),
        Target(
            "select answer",
            lambda data: convert.select_answer(split_selected(data), (n_fetches, 2, 3)),
            selected_samples, change_selected, _covers(convert.select_answer),
        ),
        Target(
            "record request",
            lambda data: [convert.record_requests(message) for message in split_wanted(data)],
            wanted_samples, change_wanted,
            _covers(convert.record_request, convert.record_requests),
        ),
    ]  # fmt: skip


# --- files ----------------------------------------------------------------------------------------


def _file_targets(folder: Path) -> list[Target]:
    """Return the files of profiles and servers, which a disk or a hand may damage."""
    from mksearch.crypto.certificate import (
        Certificate,
        make_tls_key,
        self_signed_certificate,
    )
    from mksearch_client.keys import OwnerKeys
    from mksearch_client.profile import Profile, ServerEntry
    from mksearch_client.trust import TlsTrust
    from mksearch_server.config import load_config, write_config

    random = SeededRandom(b"files".ljust(32))
    home = folder / "profile"
    Profile.create_keys(home, random, None)
    keys = OwnerKeys.generate(random)
    first = Profile(home, keys, "test", Quorum(), {})
    pins = {1: TlsTrust(bytes(32))}
    first.servers = {
        n: ServerEntry(n, f"127.0.0.1:{7100 + n}", bytes(32), pins.get(n)) for n in (1, 2, 3)
    }
    first.save()
    path = home / "profile.json"
    # Keys and file are of one collection, so that what comes behind that check is met.
    fields = json.loads(path.read_text())
    stored = home / "keys"
    server = folder / "server"
    server.mkdir()
    write_config(server, 1, "127.0.0.1:7100", tls=True)
    key = make_tls_key(random)
    certificate = self_signed_certificate(key, ["a.example.org"], random, 1_800_000_000)
    config = server / "server.toml"
    good_keys, good_config = stored.read_bytes(), config.read_bytes()
    body = codec.decode_cbor(good_keys[13:], "keys")
    own = OwnerKeys(
        body["collection"], SecretKey(body["master"]), SigningKey(SecretKey(body["signing"]))
    )
    fields["collection"], fields["owner_key"] = own.collection.hex(), own.signing.public.hex()
    good_profile = json.dumps(fields).encode()

    def through(file: Path, read: Callable[[], object], keep: bytes) -> Callable[[bytes], object]:
        def decode(data: bytes) -> object:
            file.write_bytes(data)
            try:
                return read()
            finally:
                file.write_bytes(keep)

        return decode

    path.write_bytes(good_profile)

    return [
        Target(
            "profile.json", through(path, lambda: Profile.open(home), good_profile),
            [good_profile], _json, frozenset(), slowness=4,
        ),
        Target(
            "keys of a profile", through(stored, lambda: Profile.open(home), good_keys),
            [good_keys], _behind(13, mutate_cbor), frozenset(), slowness=4,
        ),
        Target(
            "server.toml", through(config, lambda: load_config(config), good_config),
            [good_config], mutate_bytes, frozenset(), slowness=4,
        ),
        Target(
            "certificate of a server", Certificate.of_pem, [certificate], mutate_bytes, frozenset(),
        ),
    ]  # fmt: skip


def _json(source: Random, samples: Sequence[bytes]) -> bytes:
    """Change the value of a JSON file, or its bytes."""
    if source.random() < 0.5:
        return mutate_bytes(source, samples)
    value: Any = json.loads(source.choice(samples))
    holder, key = value, source.choice(list(value))
    if key == "servers" and value[key]:
        holder = source.choice(value[key])
        key = source.choice(list(holder))
    holder[key] = source.choice(
        (None, True, -1, 0, 1 << 80, 1.5, "", "x", "00" * 31, [], {}, [[]], "127.0.0.1:0")
    )
    return json.dumps(value).encode()
