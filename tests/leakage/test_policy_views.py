"""What somebody sees of documents that they may not read: nothing.

Two collections that differ only in such documents must look the same to them, byte by byte; what
servers hold opens with nothing but the keys of a member, the secrets of the authority included.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mksearch.access.attributes import parse_attribute
from mksearch.access.authority import deal
from mksearch.access.cpabe import Header, MasterKey, decapsulate, generate_key, set_up
from mksearch.access.credential import Credential, SignedCredential
from mksearch.access.enrolment import (
    CredentialSecrets,
    MemberSecrets,
    issue_credential,
    open_credential,
    read_credential,
)
from mksearch.access.issuing import issue_partial
from mksearch.access.keys import AttributeKey, AuthorityShare, PartialKey
from mksearch.access.policy import Policy
from mksearch.access.sealed_bundle import open_bundle
from mksearch.crypto import labels
from mksearch.crypto.aead import Aead
from mksearch.crypto.bundle import KINDS, KeyBundle
from mksearch.crypto.identity import Identity
from mksearch.crypto.kdf import derive, derive_from_both, sha256
from mksearch.crypto.randomness import SeededRandom, SystemRandom
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.errors import (
    FormatError,
    InputError,
    MksearchError,
    NotQualified,
    RecordRefused,
)
from mksearch.index.blob_list import BlobList
from mksearch.index.manifest import Group, Manifest, SignedManifest
from mksearch.index.segment import SegmentReader
from mksearch.index.slots import SlotReader
from mksearch.index.stream import open_stream
from mksearch.messages import RecordAnswer, RecordRequest, ScoreAnswer, ScoreRequest
from mksearch.params import Quorum
from mksearch.query.group import open_dictionary
from mksearch.text.analyzers import make_analyzer
from mksearch.text.weights import Scoring
from mksearch_client.admin import Admin
from mksearch_client.administration import Administration
from mksearch_client.fetching import NoCache
from mksearch_client.keyring import EnrolledRing, OwnerRing
from mksearch_client.keys import OwnerKeys
from mksearch_client.opening import VersionOpener
from mksearch_client.profile import Profile
from mksearch_client.profile_folder import ServerEntry
from mksearch_client.publication import Publication, upload
from mksearch_client.publishing import Publisher
from mksearch_client.reading import Document
from mksearch_client.result import SearchResult
from mksearch_client.searching import Connection, Searcher
from mksearch_client.user import User
from mksearch_client.user_profile import Card, UserProfile
from mksearch_server.search_server import SearchServer
from tests.adversary.corpus import WORDS, make_documents
from tests.leakage.test_server_view import OTHER_WORDS, forms_of
from tests.support.local import NOW_S, open_server

OPEN, OWN, HIDDEN = b"", b"role:analyst", b"role:board OR clearance >= 3"
B_ATTRIBUTES = ("role:analyst", "clearance:2")
SECRET_WORDS = OTHER_WORDS[:120]


def hidden_documents(n_documents: int, seed: int, words: Sequence[str]) -> list[Document]:
    return [
        replace(document, id=document.id.replace("doc", "own"))
        for document in make_documents(n_documents, seed, tuple(words))
    ]


@dataclass
class Replies:
    """All that one person is answered, in no order: groups are asked at once."""

    calls: list[tuple[object, ...]] = field(default_factory=list)
    manifests: list[bytes] = field(default_factory=list)

    def sorted(self) -> list[tuple[object, ...]]:
        return sorted(self.calls, key=repr)


class Recorded:
    """A server whose questions and answers are written down, whole."""

    def __init__(self, number: int, server: SearchServer, replies: Replies) -> None:
        self._number = number
        self._server = server
        self._replies = replies

    def _note(self, *what: object) -> None:
        self._replies.calls.append((self._number, *what))

    def manifest(self) -> bytes:
        data = self._server.manifest()
        self._replies.manifests.append(data)
        self._note("manifest", len(data))
        return data

    def renewal(self) -> bytes:
        data = self._server.renewal()
        self._note("renewal", len(data))
        return data

    def score(self, request: ScoreRequest) -> ScoreAnswer:
        answer = self._server.score(request)
        asked = (request.query_id, request.version, request.segment, request.shares.tobytes())
        self._note("score", *asked, answer.sums.shape, answer.sums.tobytes())
        return answer

    def records(self, request: RecordRequest) -> RecordAnswer:
        answer = self._server.records(request)
        asked = (request.version, request.segment, request.slots.tobytes())
        self._note("records", *asked, answer.elements.shape, answer.elements.tobytes())
        return answer

    def read_object(self, name: bytes, offset: int, n_bytes: int) -> bytes:
        data = self._server.read_object(name, offset, n_bytes)
        self._note("read", name, offset, n_bytes, data)
        return data


@dataclass
class Collection:
    """Three groups on three servers, made from seeds: one seed for each group."""

    keys: OwnerKeys
    administration: Administration
    master: MasterKey
    servers: dict[int, SearchServer]
    publications: list[Publication] = field(default_factory=list)

    @property
    def signed(self) -> SignedManifest:
        return self.publications[-1].signed

    @property
    def manifest(self) -> Manifest:
        return self.signed.manifest

    def group(self, policy: bytes) -> Group:
        group = self.manifest.group(policy)
        assert group is not None
        return group

    def secrets(self, attributes: Sequence[str], seed: bytes = b"key") -> MemberSecrets:
        """Give what a credential with these attributes holds."""
        keys = self.administration
        key = generate_key(
            keys.parameters,
            self.master,
            map(parse_attribute, attributes),
            keys.epoch,
            SeededRandom(seed.ljust(32)),
        )
        return MemberSecrets(keys.member_secret, key)

    def searcher(self, attributes: Sequence[str], replies: Replies) -> Searcher:
        connections: dict[int, Connection] = {
            number: Recorded(number, server, replies) for number, server in self.servers.items()
        }
        ring = EnrolledRing(
            self.keys.collection,
            self.keys.signing.public,
            self.administration.parameters.authority,
            self.secrets(attributes),
        )
        random = SeededRandom(b"polynomials".ljust(32))
        return Searcher(connections, ring, random, clock=lambda: NOW_S, hedge_s=60)

    def publish(self, policy: bytes, documents: Sequence[Document], folder: Path) -> None:
        # What is drawn for one group does not depend on how much was drawn for another.
        publisher = Publisher(
            self.keys,
            name="test",
            quorum=Quorum(),
            random=SeededRandom(sha256(b"group", policy)),
            analyzer=make_analyzer("english-1"),
            scoring=Scoring("tfidf"),
            policy=policy,
            administration=self.administration,
        )
        previous = self.publications[-1].signed if self.publications else None
        publication = publisher.prepare(documents, folder, now_s=NOW_S, previous=previous)
        for server in self.servers.values():
            upload(publication, server)
        self.publications.append(publication)

    def objects(self) -> dict[bytes, bytes]:
        """Give every object that a server holds by its name, segments and blobs included."""
        server = self.servers[2]
        found = {ref.id: server.read_object(ref.id, 0, ref.size) for ref in self.manifest.objects()}
        for ref in self.manifest.segments():
            found[ref.id] = server.read_object(ref.id, 0, ref.size)
        for group in self.manifest.groups:
            for name, size in BlobList.decode(found[group.blobs.id]).blobs:
                found[name] = server.read_object(name, 0, size)
        return found


def make_collection(
    folder: Path, hidden: Sequence[Document], order: Sequence[bytes] = (OPEN, OWN, HIDDEN)
) -> Collection:
    random = SeededRandom(b"owner".ljust(32))
    keys = OwnerKeys.generate(random)
    parameters, master = set_up(random)
    administration = Administration(
        parameters, master, SigningKey(SecretKey(b"a" * 32)), SecretKey(b"m" * 32), 1
    )
    servers = {number: open_server(folder, number, keys.signing.public) for number in (1, 2, 3)}
    made = Collection(keys, administration, master, servers)
    documents = {
        OPEN: make_documents(30, 1),
        OWN: [replace(d, id=d.id.replace("doc", "team")) for d in make_documents(26, 2)],
        HIDDEN: hidden,
    }
    for number, policy in enumerate(order):
        made.publish(policy, documents[policy], folder / f"publication-{number}")
    return made


HIDDEN_TEXTS = {
    "other words": hidden_documents(40, 3, SECRET_WORDS),
    "words of the open documents": hidden_documents(40, 3, WORDS),
    "more documents": hidden_documents(70, 4, SECRET_WORDS),
}
ORDERS = {"hidden last": (OPEN, OWN, HIDDEN), "hidden first": (HIDDEN, OPEN, OWN)}


@pytest.fixture(scope="module", params=ORDERS)
def worlds(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Collection]:
    """Collections that differ only in documents that B may not read."""
    folder = tmp_path_factory.mktemp("worlds")
    return {
        name: make_collection(folder / str(number), hidden, ORDERS[request.param])
        for number, (name, hidden) in enumerate(HIDDEN_TEXTS.items())
    }


#: Questions with words of B's documents, of hidden ones, of both, and of nobody.
QUERIES = (
    WORDS[0],
    " ".join(WORDS[:12]),
    f"{WORDS[3]} {SECRET_WORDS[0]}",
    " ".join(SECRET_WORDS[:80]),
    "zzzzzz the",
    "?!",
    "",
)


def shown(result: SearchResult) -> dict[str, object]:
    """Give all of a result but how long it took."""
    return {name: value for name, value in result.to_json().items() if name != "timings_ms"}


def told(act: Callable[[], object]) -> str:
    """Give the error of what is not possible."""
    with pytest.raises(MksearchError) as caught:
        act()
    return f"{type(caught.value).__name__}: {caught.value!r} {caught.value.to_fields()}"


def everything(made: Collection, attributes: Sequence[str]) -> tuple[dict[str, object], Replies]:
    """Do all that somebody can do; give all that they see, and all that they are answered."""
    replies = Replies()
    seen: dict[str, object] = {}
    with made.searcher(attributes, replies) as searcher:
        for query in QUERIES:
            ways: list[dict[str, Any]] = [{"k": 5}, {"k": 100}, {"k": 3, "offset": 4}]
            for options in (*ways, {"max_records": 2}):
                seen[f"{query} {options}"] = shown(searcher.search(query, **options))
        opened = searcher.refresh()
        for view in opened.views:
            policy = view.group.policy.decode()
            seen[f"group {policy}"] = view.group
            seen[f"dictionary {policy}"] = view.dictionary.encode()
            seen[f"statistics {policy}"] = repr(view.statistics)
            seen[f"bundle {policy}"] = view.bundle.encode()
        for name in ("doc-0001", "team-0001"):
            seen[f"open {name}"] = searcher.open(name)
        for name in ("own-0001", "own-0060", "none", ""):
            seen[f"open {name}"] = told(lambda name=name: searcher.open(name))  # type: ignore[misc]
        seen["k of 0"] = told(lambda: searcher.search(WORDS[0], k=0))
    return seen, replies


def test_what_is_asked_twice_is_the_same_so_that_differences_can_be_found(
    worlds: dict[str, Collection],
) -> None:
    made = next(iter(worlds.values()))
    first, second = (everything(made, B_ATTRIBUTES) for _ in range(2))
    assert first[0] == second[0]
    assert first[1].sorted() == second[1].sorted()
    assert len(first[1].calls) > 100


def test_a_user_sees_the_same_whatever_is_in_documents_that_they_may_not_read(
    worlds: dict[str, Collection],
) -> None:
    """Vocabulary, statistics, scores, counts, warnings, errors: all that there is to see."""
    views = {name: everything(made, B_ATTRIBUTES)[0] for name, made in worlds.items()}
    first = next(iter(views.values()))
    assert any(value["hits"] for value in first.values() if isinstance(value, dict))
    assert {value["groups"] for value in first.values() if isinstance(value, dict)} == {2}
    for name, view in views.items():
        assert view.keys() == first.keys()
        for what, value in view.items():
            assert value == first[what], (name, what)


def test_a_user_is_answered_the_same_bytes_whatever_is_in_documents_that_they_may_not_read(
    worlds: dict[str, Collection],
) -> None:
    replies = [everything(made, B_ATTRIBUTES)[1] for made in worlds.values()]
    for other in replies[1:]:
        # The sizes of manifests are in there as well.
        assert other.sorted() == replies[0].sorted()


def _public(group: Group) -> tuple[object, ...]:
    references = (*group.segments, group.dictionary, group.lookup, group.blobs, group.bundle)
    return group.policy, group.n_docs, [ref.size for ref in references if ref is not None]


def test_manifests_tell_of_hidden_documents_their_policy_number_and_sizes_alone(
    worlds: dict[str, Collection],
) -> None:
    first, second, third = (made.manifest for made in worlds.values())
    for other in (second, third):
        for old, new in zip(first.groups, other.groups, strict=True):
            assert (old == new) == (old.policy != HIDDEN)
            assert (old.policy, old.epoch, old.analyzer, old.scoring) == (
                new.policy,
                new.epoch,
                new.analyzer,
                new.scoring,
            )
        assert (
            replace(other, groups=first.groups, catalogue=first.catalogue, previous=first.previous)
            == first
        )
        assert other.quorum == first.quorum
    counts = [_public(made.group(HIDDEN))[1] for made in worlds.values()]
    assert counts == [40, 40, 70]
    alike = [_public(made.group(HIDDEN)) for made in worlds.values()]
    assert alike[0][:2] == alike[1][:2]


def test_whoever_may_read_the_documents_does_see_them(worlds: dict[str, Collection]) -> None:
    """The comparison above would find a difference, if there was one to be seen."""
    attributes = ("role:board", "role:analyst")
    views = [everything_but_errors(made, attributes) for made in worlds.values()]
    assert all(set(view) == set(views[0]) for view in views)
    for other in views[1:]:
        assert other["group role:analyst"] == views[0]["group role:analyst"]
        assert other["dictionary"] != views[0]["dictionary"]
        assert other["hits"] != views[0]["hits"]


def everything_but_errors(made: Collection, attributes: Sequence[str]) -> dict[str, object]:
    with made.searcher(attributes, Replies()) as searcher:
        opened = searcher.refresh()
        seen: dict[str, object] = {
            f"group {v.group.policy.decode()}": v.group for v in opened.views
        }
        seen["dictionary"] = [view.dictionary.encode() for view in opened.views]
        seen["hits"] = searcher.search(f"{WORDS[3]} {SECRET_WORDS[0]}", 100).hits
        seen["open"] = searcher.open("own-0001").text != ""
    return seen


def test_a_hidden_document_is_as_unknown_as_one_that_does_not_exist(
    worlds: dict[str, Collection],
) -> None:
    replies = Replies()
    with next(iter(worlds.values())).searcher(B_ATTRIBUTES, replies) as searcher:
        # With this one both lookups are fetched.
        searcher.open("team-0001")
        calls = []
        for name in ("own-0001", "own-9999"):
            replies.calls.clear()
            with pytest.raises(InputError):
                searcher.open(name)
            calls.append(replies.sorted())
    assert calls[0] == calls[1]


def _asked(
    made: Collection, attributes: Sequence[str]
) -> tuple[set[object], list[tuple[object, ...]]]:
    """Give the segments that a search names to a server, and the sizes of all that it sends."""
    replies = Replies()
    with made.searcher(attributes, replies) as searcher:
        searcher.search(WORDS[0], 5)
    calls = [call for call in replies.calls if call[1] == "score"]
    return {call[4] for call in calls}, sorted((call[0], call[4], call[6]) for call in calls)


def test_a_search_shows_which_policies_its_user_satisfies_and_nothing_else_of_their_attributes(
    worlds: dict[str, Collection],
) -> None:
    made = worlds["other words"]
    segment_of = {group.policy: group.segments[0].id for group in made.manifest.groups}
    for attributes, policies in (
        (("role:clerk",), (OPEN,)),
        (("role:analyst",), (OPEN, OWN)),
        (("role:board",), (OPEN, HIDDEN)),
        (("role:analyst", "role:board"), (OPEN, OWN, HIDDEN)),
    ):
        assert _asked(made, attributes)[0] == {segment_of[policy] for policy in policies}
    first, *others = (
        _asked(made, attributes)
        for attributes in (
            ("role:board",),
            ("clearance:3",),
            ("clearance:9", "a", "b", "role:clerk"),
        )
    )
    assert all(other == first for other in others)


# --- what servers hold opens with nothing but a member's keys ------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    return make_collection(tmp_path_factory.mktemp("made"), HIDDEN_TEXTS["other words"])


def _words_of(data: bytes) -> list[bytes]:
    """Give the 32 bytes at each place of something short."""
    return [data[at : at + 32] for at in range(len(data) - 31)]


def _public_values(made: Collection) -> list[bytes]:
    """Give what servers know that could be taken for a key of 32 bytes."""
    access = made.administration.access
    values = [bytes(32), b"\xff" * 32, made.keys.collection.ljust(32, b"\0")]
    values += [made.keys.collection.rjust(32, b"\0"), made.signed.hash, access.admin_key]
    values += [made.keys.signing.public, made.administration.parameters.authority]
    values += [sha256(access.authority), sha256(b""), made.manifest.previous]
    values += [segment.salt for segment in made.manifest.segments()]
    values += [segment.id for segment in made.manifest.segments()]
    values += [reference.id for reference in made.manifest.objects()]
    values += [sha256(group.policy) for group in made.manifest.groups]
    values += _words_of(access.authority[:96])
    return values


def _authority_values(made: Collection) -> list[bytes]:
    """Give every secret of the authority, and what it makes of them."""
    keys = made.administration
    alpha = made.master.alpha.reveal()
    admin = b"a" * 32
    values = [alpha, admin, sha256(alpha), sha256(admin), sha256(alpha, admin), alpha[::-1]]
    shares, _ = deal(keys.parameters, made.master, Quorum(), 1, SystemRandom())
    values += [share.secret.reveal() for share in shares]
    key = _all_powerful(made).attribute_key
    values += [sha256(key.encode()), sha256(key.k.encode()), sha256(key.l.encode())]
    return values


def _all_powerful(made: Collection) -> MemberSecrets:
    """Give an attribute key for everything, as the authority can make it for itself."""
    attributes = ("role:analyst", "role:board", "clearance:4294967295")
    return MemberSecrets(SecretKey(bytes(32)), made.secrets(attributes, b"all").attribute_key)


def _cut_bundle(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Give header, nonce and ciphertext of a sealed bundle."""
    size = int.from_bytes(data[12:16], "big")
    return data[16 : 16 + size], data[16 + size : 28 + size], data[28 + size :]


def _bundle_keys(
    made: Collection, group: Group, candidates: Sequence[bytes], abe_keys: Sequence[SecretKey]
) -> Iterator[SecretKey]:
    """Give every key that could be that of a sealed bundle, made of what is at hand."""
    context = made.administration.parameters.authority + made.keys.collection
    context += group.epoch.to_bytes(8, "big") + group.policy
    known = [SecretKey(value) for value in candidates]
    for one in (*known, *abe_keys):
        yield one
        for label in (labels.BUNDLE_SEAL, labels.BUNDLE_MEMBERS, labels.ACCESS):
            yield derive(one, label, context)
            yield derive(one, label)
    for one, abe in product(known, abe_keys):
        yield derive_from_both(abe, one, labels.BUNDLE_SEAL, context)
        yield derive_from_both(one, abe, labels.BUNDLE_SEAL, context)
        yield derive_from_both(abe, one, labels.BUNDLE_MEMBERS, context)


def _opens(made: Collection, group: Group, keys: Iterator[SecretKey]) -> tuple[int, bool]:
    """Try keys at a group's bundle; give how many were tried and whether one opened it."""
    assert group.bundle is not None
    header, nonce, sealed = _cut_bundle(made.objects()[group.bundle.id])
    context = made.administration.parameters.authority + made.keys.collection
    context += group.epoch.to_bytes(8, "big") + group.policy
    n_tried = 0
    for key in keys:
        n_tried += 1
        try:
            Aead(key).open(nonce, sealed, context + header, "a bundle")
        except RecordRefused:
            continue
        return n_tried, True
    return n_tried, False


def _abe_key(made: Collection, group: Group, secrets: MemberSecrets) -> SecretKey:
    assert group.bundle is not None
    header, _, _ = _cut_bundle(made.objects()[group.bundle.id])
    return decapsulate(
        made.administration.parameters,
        secrets.attribute_key,
        Policy.decode(group.policy),
        group.epoch,
        made.keys.collection,
        Header.decode(header),
    )


@pytest.mark.parametrize("policy", [OPEN, OWN, HIDDEN])
@pytest.mark.parametrize("has_authority", [False, True], ids=["servers", "servers and authority"])
def test_a_bundle_does_not_open_without_the_member_secret(
    made: Collection, policy: bytes, has_authority: bool
) -> None:
    group = made.group(policy)
    candidates = _public_values(made)
    abe_keys = [SecretKey(bytes(32))]
    if has_authority:
        candidates += _authority_values(made)
        if policy:
            abe_keys.append(_abe_key(made, group, _all_powerful(made)))
    n_tried, is_open = _opens(made, group, _bundle_keys(made, group, candidates, abe_keys))
    assert not is_open
    assert n_tried > 10 * len(candidates)

    # With the member secret among them the same search ends.
    candidates.append(made.administration.member_secret.reveal())
    n_tried, is_open = _opens(made, group, _bundle_keys(made, group, candidates, abe_keys))
    assert is_open == (has_authority or not policy)


@pytest.mark.parametrize("policy", [OWN, HIDDEN])
def test_a_policy_group_does_not_open_for_a_member_without_the_attributes(
    made: Collection, policy: bytes
) -> None:
    """A member, all servers, and what the member may open of other groups."""
    group = made.group(policy)
    assert group.bundle is not None
    objects = made.objects()
    other = "role:board" if policy == OWN else "role:analyst"
    secrets = made.secrets((other, "clearance:2"))
    for epoch, typed in ((group.epoch, policy), (group.epoch + 1, policy)):
        with pytest.raises(NotQualified):
            open_bundle(
                objects[group.bundle.id],
                made.administration.parameters,
                secrets,
                collection=made.keys.collection,
                epoch=epoch,
                policy=typed,
            )
    open_group = made.group(OPEN)
    assert open_group.bundle is not None
    opened = open_bundle(
        objects[open_group.bundle.id],
        made.administration.parameters,
        secrets,
        collection=made.keys.collection,
        epoch=open_group.epoch,
        policy=OPEN,
    )
    known = [getattr(opened, kind) for kind in KINDS]
    candidates = [key.reveal() for key in known] + _public_values(made)
    candidates.append(secrets.member_secret.reveal())
    candidates += [sha256(secrets.attribute_key.encode()), sha256(secrets.attribute_key.k.encode())]
    abe_keys = [SecretKey(bytes(32)), secrets.member_secret, *known]
    _, is_open = _opens(made, group, _bundle_keys(made, group, candidates, abe_keys))
    assert not is_open

    # A wrong row of the header, or the components of another label, give no key either.
    header = Header.decode(_cut_bundle(objects[group.bundle.id])[0])
    one = made.secrets((other,)).attribute_key
    wanted = made.secrets(("role:analyst", "role:board", "clearance:9"), b"w").attribute_key
    guessed = dict(zip(sorted(wanted.components), [*one.components.values()] * 40, strict=False))
    claimed = replace(one, components=guessed)
    abe = decapsulate(
        made.administration.parameters,
        claimed,
        Policy.decode(policy),
        group.epoch,
        made.keys.collection,
        header,
    )
    keys = _bundle_keys(made, group, [secrets.member_secret.reveal()], [abe])
    assert not _opens(made, group, keys)[1]


def _require_closed(made: Collection, group: Group, key: SecretKey) -> None:
    """Prove that a key, and what is derived of it as of a bundle, opens no part of a group."""
    objects = made.objects()
    bundle = KeyBundle(*[key] * len(KINDS))
    collection = made.keys.collection
    with pytest.raises(RecordRefused):
        open_dictionary(bundle, collection, objects[group.dictionary.id])
    for name, kind, tried in (
        (group.lookup.id, "lookup", (bundle.section_key("lookup"), key)),
        (group.dictionary.id, "dictionary", (key, bundle.lookup_key())),
        (made.manifest.catalogue.id, "catalogue", (bundle.section_key("catalogue"), key)),
    ):
        for one in tried:
            with pytest.raises(RecordRefused):
                open_stream(one, kind, collection, objects[name])
    blob, _ = BlobList.decode(objects[group.blobs.id]).blobs[0]
    for one in (key, bundle.wrapping_key()):
        with pytest.raises(RecordRefused):
            open_stream(one, "blob", collection, objects[blob])


def test_no_stream_and_no_record_opens_with_the_secrets_of_the_authority(
    made: Collection,
) -> None:
    values = [*_authority_values(made), made.administration.member_secret.reveal()]
    for policy in (OPEN, OWN, HIDDEN):
        group = made.group(policy)
        for value in values:
            _require_closed(made, group, SecretKey(value))
        data = np.frombuffer(made.objects()[group.segments[0].id], np.uint8)
        segment = SegmentReader(data)
        for value in values:
            _require_no_record(segment, KeyBundle(*[SecretKey(value)] * len(KINDS)))
        with pytest.raises(AssertionError):
            _require_no_record(segment, made.keys.bundle(policy, 1))


def _require_no_record(segment: SegmentReader, bundle: KeyBundle) -> None:
    """Prove that no slot opens as the first part of one of the first rows."""
    header, layout = segment.header, segment.header.layout
    reader = SlotReader(
        bundle.segment_keys(header.salt),
        header.collection,
        header.salt,
        layout.slot,
        n_rows=layout.n_rows,
        n_slots=layout.n_slots,
    )
    for row, slot in product(range(2), segment.slots()):
        try:
            reader.open_part(row, 0, slot)
        except RecordRefused:
            continue
        raise AssertionError(f"a slot opened as row {row}")


def test_a_stolen_credential_opens_nothing_without_its_identity() -> None:
    good, somebody = _credential(), Identity(SecretKey(bytes(32)))
    for purpose, context in ((b"credential", good.hash), (b"backup", good.hash)):
        with pytest.raises(RecordRefused):
            somebody.open(purpose, context, good.sealed, "a credential")
    for form in (SEED, member_secrets().attribute_key.encode()[44:92]):
        assert form not in good.encode()
    # Whoever has the identity as well has all that its owner has.
    opened = open_credential(good, identity(), _PARAMETERS, SystemRandom())
    assert opened.member_secret.reveal() == SEED


def test_keys_of_one_group_open_nothing_of_another(made: Collection) -> None:
    bundles = {policy: made.keys.bundle(policy, 1) for policy in (OPEN, OWN, HIDDEN)}
    for policy, bundle in bundles.items():
        for other in bundles:
            group = made.group(other)
            if other == policy:
                open_dictionary(bundle, made.keys.collection, made.objects()[group.dictionary.id])
                continue
            with pytest.raises(RecordRefused):
                open_dictionary(bundle, made.keys.collection, made.objects()[group.dictionary.id])
            for kind in KINDS:
                _require_closed(made, group, getattr(bundle, kind))
    encoded = [bundle.encode() for bundle in bundles.values()]
    keys = {key[at : at + 32] for key in encoded for at in range(0, len(key), 32)}
    assert len(keys) == 3 * len(KINDS)


def test_a_sealed_bundle_is_bound_to_its_policy_epoch_and_collection(made: Collection) -> None:
    secrets = _all_powerful(made)
    secrets = MemberSecrets(made.administration.member_secret, secrets.attribute_key)
    objects = made.objects()
    right = {"collection": made.keys.collection, "epoch": 1, "policy": HIDDEN}
    group = made.group(HIDDEN)
    assert group.bundle is not None
    data = objects[group.bundle.id]

    def opened(**changes: object) -> KeyBundle:
        return open_bundle(
            data,
            made.administration.parameters,
            secrets,
            **(right | changes),  # type: ignore[arg-type]
        )

    assert opened().encode() == made.keys.bundle(HIDDEN, 1).encode()
    with pytest.raises(RecordRefused):
        opened(collection=bytes(16))
    with pytest.raises(RecordRefused):
        # The same structure, typed otherwise.
        opened(policy=b"role:board or clearance >= 3")
    with pytest.raises(NotQualified):
        opened(epoch=2)
    with pytest.raises(FormatError):
        opened(policy=OPEN)
    with pytest.raises(FormatError):
        opened(policy=OWN)


# --- secrets do not show themselves --------------------------------------------------------------

SEED = bytes(range(101, 133))
_PARAMETERS, _MASTER = set_up(SeededRandom(SEED))
_ATTRIBUTES = (parse_attribute("role:a"),)


def identity() -> Identity:
    return Identity(SecretKey(SEED))


def member_secrets() -> MemberSecrets:
    key = generate_key(_PARAMETERS, _MASTER, _ATTRIBUTES, 1, SeededRandom(SEED))
    return MemberSecrets(SecretKey(SEED), key)


def credential_secrets() -> CredentialSecrets:
    return CredentialSecrets(SecretKey(SEED), member_secrets().attribute_key)


def share() -> AuthorityShare:
    return deal(_PARAMETERS, _MASTER, Quorum(), 1, SeededRandom(SEED))[0][0]


def partial() -> PartialKey:
    return issue_partial(_PARAMETERS, share(), _ATTRIBUTES, 1, SeededRandom(SEED))


def administration() -> Administration:
    return Administration(_PARAMETERS, _MASTER, SigningKey(SecretKey(SEED)), SecretKey(SEED), 1)


def owner_keys() -> OwnerKeys:
    return OwnerKeys(b"c" * 16, SecretKey(SEED), SigningKey(SecretKey(SEED)))


def ring() -> EnrolledRing:
    return EnrolledRing(b"c" * 16, bytes(32), _PARAMETERS.authority, member_secrets())


def card() -> Card:
    entries = {n: ServerEntry(n, f"127.0.0.1:{n}", bytes(32)) for n in (1, 2, 3)}
    owner, admin = SigningKey(SecretKey(bytes(32))).public, administration().signing.public
    return Card(b"c" * 16, owner, "test", Quorum(), entries, admin, _PARAMETERS)


def user_profile() -> UserProfile:
    return UserProfile(Path("nowhere"), card(), identity())


def owner_profile() -> Profile:
    return Profile(Path("nowhere"), owner_keys(), "test", Quorum(), {})


def version_opener() -> VersionOpener:
    opener = VersionOpener(ring(), NoCache())
    opener._bundles = {(b"", 1, b"", b""): KeyBundle(*[SecretKey(SEED)] * len(KINDS))}
    return opener


HOLDERS: dict[str, Callable[[], object]] = {
    "Identity": identity,
    "MemberSecrets": member_secrets,
    "CredentialSecrets": credential_secrets,
    "AttributeKey": lambda: member_secrets().attribute_key,
    "MasterKey": lambda: _MASTER,
    "AuthorityShare": share,
    "PartialKey": partial,
    "Administration": administration,
    "EnrolledRing": ring,
    "OwnerRing": lambda: OwnerRing(owner_keys()),
    "UserProfile": user_profile,
    "User": lambda: User(user_profile()),
    "Profile": owner_profile,
    "VersionOpener": version_opener,
}


def secret_forms() -> list[str]:
    """Give how the secrets of the holders could look in a text."""
    key = member_secrets().attribute_key
    secrets = [SEED, _MASTER.alpha.reveal(), share().secret.reveal()]
    points = [key.k, *key.components.values(), partial().key.k]
    secrets += [derive(SecretKey(SEED), labels.IDENTITY + b"x25519").reveal()]
    forms = [form for secret in secrets for form in forms_of(secret)]
    forms += [form for point in points for form in forms_of(point.encode()[8:40])]
    return [*forms, str(int.from_bytes(_MASTER.alpha.reveal(), "big"))]


@pytest.mark.parametrize("make", HOLDERS.values(), ids=HOLDERS.keys())
def test_a_secret_of_a_member_is_not_seen_when_what_holds_it_is_printed(
    make: Callable[[], object],
) -> None:
    holder = make()
    text = "\n".join((repr(holder), str(holder), f"{holder}", repr([holder]), repr({1: holder})))
    assert [form for form in secret_forms() if form in text] == []


@pytest.mark.parametrize("make", HOLDERS.values(), ids=HOLDERS.keys())
def test_a_secret_of_a_member_is_never_pickled_nor_copied(make: Callable[[], object]) -> None:
    holder = make()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError):
            pickle.dumps(holder, protocol)
    with pytest.raises(TypeError):
        copy.deepcopy(holder)


def _credential(**changes: Any) -> SignedCredential:
    fields: dict[str, Any] = {
        "collection": b"c" * 16,
        "authority": _PARAMETERS.authority,
        "epoch": 1,
        "serial": bytes(16),
        "user": identity().public.id,
        "attributes": _ATTRIBUTES,
        "issued_at": NOW_S,
        "expires_at": NOW_S + 1,
    }
    credential = Credential(**(fields | changes))
    signing = administration().signing
    return issue_credential(credential, identity().public, credential_secrets(), signing)


def _profile_of(folder: Path, name: str, content: bytes) -> Path:
    """Give a folder of a profile of which one file is not what it should be."""
    folder.mkdir()
    card_path = folder / "card"
    card_path.write_bytes(content)
    user = User.create(folder / "user", card())
    (user.profile.folder / name).write_bytes(content)
    return user.profile.folder


def errors_with_secrets(folder: Path) -> Iterator[tuple[str, Exception]]:
    """Provoke errors where secrets are at hand."""
    encoded, good = credential_secrets().encode(), _credential()
    stranger = Identity(SecretKey(bytes(32)))
    broken = replace(good, sealed=good.sealed[:-1] + bytes([good.sealed[-1] ^ 1]))
    other = _credential(attributes=(parse_attribute("role:b"),))
    sealed_file = b"MKUSRSEC" + bytes([0, 0, 0, 1, 0])
    attempts: list[tuple[str, Callable[[], object]]] = [
        ("cut secrets", lambda: CredentialSecrets.decode(encoded[:-1])),
        (
            "changed secrets",
            lambda: CredentialSecrets.decode(encoded.replace(SEED, SEED[::-1], 1)[1:]),
        ),
        ("of a stranger", lambda: read_credential(good, stranger)),
        ("a broken credential", lambda: read_credential(broken, identity())),
        (
            "a key of other labels",
            lambda: open_credential(other, identity(), _PARAMETERS, SystemRandom()),
        ),
        ("a cut key", lambda: AttributeKey.decode(member_secrets().attribute_key.encode()[:-1])),
        ("a cut share", lambda: AuthorityShare.decode(share().encode()[:-1])),
        ("a large share", lambda: AuthorityShare.decode(share().encode()[:-32] + b"\xff" * 32)),
        ("a cut partial key", lambda: PartialKey.decode(partial().encode()[:-1])),
        (
            "keys that are none",
            lambda: UserProfile.open(_profile_of(folder / "1", "keys", sealed_file + SEED + SEED)),
        ),
        (
            "keys of another file",
            lambda: UserProfile.open(_profile_of(folder / "2", "keys", b"MKADMINI" + SEED)),
        ),
        (
            "no credential",
            lambda: UserProfile.open(_profile_of(folder / "3", "credential", encoded)).credential(),
        ),
        ("a card that is none", lambda: Card.read(folder / "1" / "card")),
        ("no administration", lambda: Admin(owner_profile())),
        ("another purpose", lambda: identity().open(b"backup", good.hash, good.sealed, "it")),
        ("not a copy", lambda: copy.deepcopy(member_secrets())),
    ]
    for what, act in attempts:
        with pytest.raises((MksearchError, TypeError)) as caught:
            act()
        yield what, caught.value


def test_errors_of_members_hold_no_secret(tmp_path: Path) -> None:
    forms = secret_forms()
    for what, error in errors_with_secrets(tmp_path):
        cause = error.__cause__ if not error.__suppress_context__ else None
        text = f"{error} {error!r} {error.args} {cause!r}"
        assert [form for form in forms if form in text] == [], what
