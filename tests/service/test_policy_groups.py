"""Documents under several policies on three server processes: who finds what, and what publishing
one group does to the others."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mksearch.access.enrolment import MemberSecrets
from mksearch.access.keys import AttributeKey
from mksearch.crypto.randomness import SystemRandom
from mksearch.errors import (
    CredentialRefused,
    InputError,
    ManifestRefused,
    MksearchError,
    NotEnoughAnswers,
    NotQualified,
    ParameterError,
    PolicyError,
    ProfileError,
    RecordRefused,
    VerificationError,
)
from mksearch.index.manifest import Group, ObjectRef, SegmentRef, SignedManifest
from mksearch.index.segment import HEADER_BYTES, SegmentHeader
from mksearch.messages import ScoreAnswer, ScoreRequest, SelectAnswer, SelectRequest
from mksearch.params import P
from mksearch.text.analyzers import make_analyzer
from mksearch_client import fleet as fleets
from mksearch_client import searching
from mksearch_client.admin import Admin
from mksearch_client.connection import GrpcConnection
from mksearch_client.demo.plaintext import SCORE_TOLERANCE, PlaintextEngine
from mksearch_client.documents import Document
from mksearch_client.keyring import EnrolledRing
from mksearch_client.member import Searcher, connect
from mksearch_client.owner import Owner, PublishReport
from mksearch_client.profile import Profile
from mksearch_client.readback import read_whole
from mksearch_client.result import SearchResult
from mksearch_client.user import User
from tests.support.processes import Fleet, claim, serving, write_corpus

LIFE_S = 86_400
OPEN, FINANCE, CLEARED = "", "role:analyst AND dept:finance", "clearance >= 3"
K = 200


def make_texts(prefix: str, words: Sequence[str], n_documents: int) -> tuple[Document, ...]:
    """Documents of one group: an own word each, words of the group, a word of all groups."""
    return tuple(
        Document(
            f"{prefix}-{n:02}",
            f"{prefix.title()} {n}",
            " ".join(
                [f"{prefix}{n}", words[n % len(words)], words[(n // 2) % len(words)], "apple"]
                + ["rare"] * (n % 3)
            ),
        )
        for n in range(n_documents)
    )


DOCUMENTS = {
    OPEN: make_texts("public", ("garden", "river", "winter"), 24),
    FINANCE: make_texts("ledger", ("budget", "winter", "invoice"), 20),
    CLEARED: make_texts("ward", ("fever", "garden", "dose"), 18),
}


@dataclass
class Collection:
    """An owner, an administration, users, and three server processes."""

    fleet: Fleet
    profile: Profile
    folder: Path
    admin: Admin | None = None
    documents: dict[str, tuple[Document, ...]] = field(default_factory=dict)
    users: dict[tuple[str, ...], User] = field(default_factory=dict)

    def init_admin(self) -> None:
        self.admin = Admin.create(self.profile)

    def publish(self, policy: str, documents: Sequence[Document]) -> PublishReport:
        """Make ``documents`` the content of the group under ``policy``."""
        corpus = write_corpus(self.folder / "corpus.jsonl", documents)
        with Owner(self.profile) as owner:
            report = owner.publish([corpus], policy=policy, delete_missing=True)
        self.documents[policy] = tuple(documents)
        return report

    def manifest(self) -> SignedManifest:
        with Owner(self.profile) as owner:
            signed = owner.status()[0]
        assert signed is not None
        return signed

    def group(self, policy: str) -> Group:
        group = self.manifest().manifest.group(policy.encode())
        assert group is not None
        return group

    def verified(self) -> set[str]:
        """Give what reading every byte back says of the servers."""
        with Owner(self.profile) as owner:
            return set(owner.verify().values())

    def user(self, *attributes: str) -> User:
        """Give the user with these attributes, enrolled when asked for first."""
        if attributes not in self.users:
            self.users[attributes] = self.new_user(*attributes)
        return self.users[attributes]

    def new_user(self, *attributes: str, admin: Admin | None = None) -> User:
        with Owner(self.profile) as owner:
            card = self.folder / "card.json"
            card.write_bytes(owner.card())
        user = User.create(self.folder / f"user-{len(list(self.folder.glob('user-*')))}", card)
        issuer = admin or self.admin
        assert issuer is not None
        user.enrol(issuer.issue(user.profile.identity.public, attributes, life_s=LIFE_S).encode())
        return user

    def searcher(self, *attributes: str) -> Searcher:
        """Give the searcher of a user; of the owner without attributes."""
        if not attributes:
            return Searcher(Profile.open(self.profile.folder))
        folder = self.user(*attributes).profile.folder
        # One collection serves all tests, and no server is to be remembered for an earlier lie.
        shutil.rmtree(folder / "evidence", ignore_errors=True)
        return Searcher(folder)

    def require_right(self, result: SearchResult, *policies: str) -> None:
        """Prove that ``result`` is what one engine a group finds, merged by score."""
        texts = [self.documents[policy] for policy in policies]
        engines = [PlaintextEngine(group, make_analyzer("english-1")) for group in texts]
        found = [hit for engine in engines for hit in engine.search(result.query, 10_000)]
        scores = {hit.id: hit.score for hit in found}
        best = sorted(scores.values(), reverse=True)[: result.k]
        assert result.verified
        assert result.exact
        assert result.groups == len(policies)
        assert result.n_docs == sum(map(len, texts))
        assert len(result.hits) == len(best)
        for hit, expected in zip(result.hits, best, strict=True):
            assert abs(hit.score - scores[hit.id]) < SCORE_TOLERANCE
            assert abs(hit.score - expected) < 2 * SCORE_TOLERANCE
        assert [hit.id for hit in result.hits] == [
            hit.id for hit in sorted(result.hits, key=lambda hit: (-hit.score, hit.id))
        ]


def start(fleet: Fleet, folder: Path) -> Collection:
    return Collection(fleet, claim(fleet, folder / "profile"), folder)


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Three groups; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("policies")
    with serving(folder, engine="numpy") as fleet:
        made = start(fleet, folder)
        made.init_admin()
        for policy, documents in DOCUMENTS.items():
            made.publish(policy, documents)
        yield made


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Collection]:
    """Servers of a test's own, without an administration or a document."""
    with serving(tmp_path, engine="numpy") as fleet:
        yield start(fleet, tmp_path)


# --- who finds what ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "policies"),
    [
        (("role:analyst", "dept:finance"), (OPEN, FINANCE)),
        (("role:analyst", "dept:finance", "clearance:3"), (OPEN, FINANCE, CLEARED)),
        (("clearance:4294967295",), (OPEN, CLEARED)),
        (("clearance:2",), (OPEN,)),
        (("role:analyst",), (OPEN,)),
        (("dept:finance", "role:manager"), (OPEN,)),
        (("Role:analyst", "dept:finance"), (OPEN,)),
        (('clearance:"3"',), (OPEN,)),
        (("dept:finance:role:analyst",), (OPEN,)),
    ],
)
def test_a_user_finds_what_one_engine_a_group_finds_in_the_groups_of_their_attributes(
    collection: Collection, attributes: tuple[str, ...], policies: tuple[str, ...]
) -> None:
    with collection.searcher(*attributes) as searcher:
        for query in ("apple", "winter garden rare", "budget fever", "ledger3", "ward7 apple"):
            collection.require_right(searcher.search(query, K), *policies)
        collection.require_right(searcher.search("apple winter", 5), *policies)

        shown = {d.id: d for policy in policies for d in collection.documents[policy]}
        for policy, documents in collection.documents.items():
            for document in (documents[0], documents[-1]):
                if policy in policies:
                    assert searcher.open(document.id).text == shown[document.id].text
                else:
                    with pytest.raises(InputError) as hidden:
                        searcher.open(document.id)
                    unknown = "x" * len(document.id)
                    with pytest.raises(InputError) as absent:
                        searcher.open(unknown)
                    message = str(absent.value)
                    assert str(hidden.value) == message.replace(unknown, document.id)


def test_the_owner_finds_and_opens_the_documents_of_all_groups(collection: Collection) -> None:
    with collection.searcher() as searcher:
        collection.require_right(searcher.search("apple rare", K), OPEN, FINANCE, CLEARED)
        for documents in DOCUMENTS.values():
            assert searcher.open(documents[3].id).text == documents[3].text


def test_pages_of_a_merged_ranking_are_its_parts(collection: Collection) -> None:
    with collection.searcher("role:analyst", "dept:finance", "clearance:3") as searcher:
        whole = searcher.search("apple rare", 30).hits
        pages = [searcher.search("apple rare", 7, offset=at).hits for at in range(0, 28, 7)]
    assert [hit for page in pages for hit in page] == list(whole[:28])


def test_a_credential_of_another_epoch_opens_nothing(collection: Collection) -> None:
    assert collection.admin is not None
    later = Admin(collection.profile)
    later._keys = replace(later._keys, epoch=2)
    user = collection.new_user("role:analyst", "dept:finance", admin=later)

    with Searcher(user.profile) as searcher, pytest.raises(NotQualified, match=r"epoch 1.*epoch 2"):
        searcher.search("apple")


def test_a_credential_counts_for_its_user_its_time_and_its_administration_alone(
    collection: Collection, tmp_path: Path
) -> None:
    assert collection.admin is not None
    user = collection.user("role:analyst", "dept:finance")
    other = User.create(tmp_path / "other", collection.folder / "card.json")
    issue = collection.admin.issue
    mine = issue(user.profile.identity.public, ["a"], life_s=LIFE_S)

    with pytest.raises(CredentialRefused, match="user key"):
        other.enrol(mine.encode())
    late = User(user.profile, clock=lambda: mine.credential.expires_at + 1)
    with pytest.raises(CredentialRefused, match="expired 1 s ago"):
        late.enrol(mine.encode())
    late = User(user.profile, clock=lambda: mine.credential.expires_at)
    before = (user.profile.folder / "credential").read_bytes()
    late.enrol(mine.encode())
    user.enrol(before)
    with pytest.raises(MksearchError, match="not enrolled"):
        Searcher(other.profile.folder)


def test_an_expired_credential_is_refused_by_the_client_that_holds_it_and_by_nobody_else(
    collection: Collection,
) -> None:
    """Until the epoch ends, whoever leaves out the check goes on with the keys that they hold."""
    assert collection.admin is not None
    with Owner(collection.profile) as owner:
        card = collection.folder / "card.json"
        card.write_bytes(owner.card())
    user = User.create(collection.folder / "user-that-expires", card)
    key = user.profile.identity.public
    signed = collection.admin.issue(key, ["role:analyst", "dept:finance"], life_s=2)
    user.enrol(signed.encode())
    with Searcher(user.profile.folder) as searcher:
        collection.require_right(searcher.search("budget", K), OPEN, FINANCE)

    time.sleep(max(0.0, signed.credential.expires_at + 1.1 - time.time()))
    with pytest.raises(CredentialRefused, match="expired"):
        Searcher(user.profile.folder)
    assert user.whoami().expired
    connections = connect(user.profile)
    ring = _ring(user, user.profile.secrets())
    with searching.Searcher(connections, ring, SystemRandom()) as searcher:
        collection.require_right(searcher.search("budget", K), OPEN, FINANCE)
    for connection in connections.values():
        connection.close()


def test_unknown_words_are_those_that_no_group_knows(collection: Collection) -> None:
    def warned(*attributes: str) -> str:
        with collection.searcher(*attributes) as searcher:
            return " ".join(searcher.search("budget fever river zzzz", 5).warnings)

    assert warned("clearance:2") == "in no document: budget, fever, zzzz"
    assert warned("role:analyst", "dept:finance") == "in no document: fever, zzzz"
    assert warned("role:analyst", "dept:finance", "clearance:3") == "in no document: zzzz"
    assert warned() == "in no document: zzzz"


# --- a search asks every group at once -----------------------------------------------------------


class _Together:
    """A connection whose calls of one kind go on when ``n_calls`` of them have come."""

    def __init__(self, connection: Any, call: str, n_calls: int) -> None:
        self._connection = connection
        self._call = call
        self._barrier = threading.Barrier(n_calls)
        self.n_calls = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._connection, name)
        if name != self._call:
            return real

        def call(request: object) -> object:
            self.n_calls += 1
            self._barrier.wait(5.0)
            return real(request)

        return call


@pytest.mark.parametrize("call", ["score", "records"])
def test_all_groups_are_asked_in_one_round(collection: Collection, call: str) -> None:
    with collection.searcher("role:analyst", "dept:finance", "clearance:3") as searcher:
        searcher._hedge_s = 30.0
        watched = {s: _Together(c, call, 3) for s, c in searcher._connections.items()}
        searcher._connections = watched
        result = searcher.search("apple", K)

    collection.require_right(result, OPEN, FINANCE, CLEARED)
    asked = {server: connection.n_calls for server, connection in watched.items()}
    assert asked == ({1: 3, 2: 3, 3: 0} if call == "score" else {1: 3, 2: 0, 3: 0})
    # One wait for sums and one for records, as with one group.
    assert result.rounds == 2
    assert "3 policy groups" in result.learned[0]


def test_private_records_of_all_groups_are_fetched_alike(collection: Collection) -> None:
    with collection.searcher("role:analyst", "dept:finance", "clearance:3") as searcher:
        balanced = searcher.search("apple", K)
        watched = {s: _Selecting(c) for s, c in searcher._connections.items()}
        searcher._connections = watched
        full = searcher.search("apple", K, privacy="full")

    collection.require_right(full, OPEN, FINANCE, CLEARED)
    assert full.hits == balanced.hits
    asked = {server: connection.sizes for server, connection in watched.items()}
    assert asked[1] == asked[2]
    assert asked[3] == []
    # One call a round, with as many fetches of each group; the gate lets each of them pass.
    assert all(len(sizes) == 3 and len(set(sizes)) == 1 for sizes in asked[1])


class _Selecting:
    """A server that notes the fetches of each call for selected records."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.sizes: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def select(self, request: SelectRequest) -> SelectAnswer:
        return self.select_all([request])[0]

    def select_all(self, requests: Sequence[SelectRequest]) -> list[SelectAnswer]:
        self.sizes.append([len(request.selectors) for request in requests])
        answers: list[SelectAnswer] = self._connection.select_all(requests)
        return answers


# --- lying servers -------------------------------------------------------------------------------


class _Liar:
    """A server that answers for one segment what is wrong."""

    def __init__(self, connection: Any, segment: bytes) -> None:
        self._connection = connection
        self._segment = segment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def score(self, request: ScoreRequest) -> ScoreAnswer:
        answer: ScoreAnswer = self._connection.score(request)
        if request.segment != self._segment:
            return answer
        return ScoreAnswer(answer.query_id, (answer.sums + 1) % P)


ALL = ("role:analyst", "dept:finance", "clearance:3")


@pytest.mark.parametrize("policy", [OPEN, FINANCE, CLEARED])
def test_a_server_that_lies_of_one_group_is_named_and_changes_no_hit(
    collection: Collection, policy: str
) -> None:
    segment = collection.group(policy).segments[0].id
    for server in (1, 2):
        with collection.searcher(*ALL) as searcher:
            searcher._connections = {
                **searcher._connections,
                server: _Liar(searcher._connections[server], segment),
            }
            result = searcher.search("apple rare", K)
        collection.require_right(result, OPEN, FINANCE, CLEARED)
        assert {s.id for s in result.servers if s.status == "lied"} == {server}


def test_servers_that_lie_of_different_groups_are_both_named(collection: Collection) -> None:
    segments = [collection.group(policy).segments[0].id for policy in (OPEN, FINANCE)]
    with collection.searcher(*ALL) as searcher:
        liars = {s: _Liar(searcher._connections[s], segments[s - 1]) for s in (1, 2)}
        searcher._connections = {**searcher._connections, **liars}
        # More than t servers, but two of three are honest in each group.
        result = searcher.search("apple rare", K)
    collection.require_right(result, OPEN, FINANCE, CLEARED)
    assert {s.id for s in result.servers if s.status == "lied"} == {1, 2}


@pytest.mark.parametrize("part", ["cells", "records"])
@pytest.mark.parametrize("policy", [OPEN, FINANCE])
def test_stored_bytes_of_one_group_that_change_name_their_server_and_change_no_hit(
    collection: Collection, policy: str, part: str
) -> None:
    segment = collection.group(policy).segments[0].id
    path = collection.fleet[1].data / "segments" / segment.hex()
    before = path.read_bytes()
    layout = SegmentHeader.decode(before[:HEADER_BYTES]).layout
    at = layout.offsets[0 if part == "cells" else -1]
    stored = np.memmap(path, np.uint8, "r+")
    try:
        stored[at : at + 8000 : 2] ^= 1
        stored.flush()
        with collection.searcher(*ALL) as searcher:
            result = searcher.search("apple rare", K)
    finally:
        stored[:] = np.frombuffer(before, np.uint8)
        stored.flush()
    collection.require_right(result, OPEN, FINANCE, CLEARED)
    statuses = {s.id: s.status for s in result.servers}
    assert statuses == {1: "lied", 2: "ok", 3: "ok" if part == "cells" else "unused"}


# --- what people do not hold together ------------------------------------------------------------


def _ring(user: User, secrets: MemberSecrets) -> EnrolledRing:
    profile = user.profile
    authority = profile.card.parameters.authority
    return EnrolledRing(profile.collection, profile.owner_key, authority, secrets)


def _mixtures(first: AttributeKey, second: AttributeKey) -> Iterator[AttributeKey]:
    """Give keys that say they have the labels of both, put together in every way."""
    joined = [{**first.components, **second.components}, {**second.components, **first.components}]
    for components in joined:
        for k in (first.k, second.k, first.k * second.k):
            for l_ in (first.l, second.l, first.l * second.l):
                yield AttributeKey(first.authority, k, l_, components)


def test_two_users_with_half_of_the_attributes_each_do_not_combine(
    collection: Collection, tmp_path: Path
) -> None:
    users = [collection.user("role:analyst"), collection.user("dept:finance")]
    for user in users:
        with Searcher(user.profile.folder) as searcher:
            collection.require_right(searcher.search("apple budget", K), OPEN)
            assert searcher.refresh().views[0].group.policy == b""

    first, second = (user.profile.secrets() for user in users)
    signed, group = collection.manifest(), collection.group(FINANCE)
    assert group.bundle is not None
    with Owner(collection.profile) as owner:
        sealed = owner._fleet.fetch(group.bundle)
    n_tried = 0
    for key in _mixtures(first.attribute_key, second.attribute_key):
        ring = _ring(users[0], MemberSecrets(first.member_secret, key))
        assert ring.may_open(group), "the labels of both satisfy the policy"
        with pytest.raises(RecordRefused):
            ring.open(signed.manifest, group, sealed)
        with Searcher(users[0].profile.folder) as searcher:
            searcher._opener._ring = ring
            with pytest.raises(MksearchError):
                searcher.search("budget")
        n_tried += 1
    assert n_tried == 18

    # The same way of opening works for whom it is meant.
    right = collection.user("role:analyst", "dept:finance")
    _ring(right, right.profile.secrets()).open(signed.manifest, group, sealed)

    # Nor does it help to be given all that the other has fetched, or that a qualified user has.
    for source in (users[1], right):
        with Searcher(source.profile.folder) as searcher:
            searcher.search("apple budget")
        copied = tmp_path / f"given-{source.profile.folder.name}"
        shutil.copytree(users[0].profile.folder, copied)
        shutil.copytree(source.profile.folder / "cache", copied / "cache", dirs_exist_ok=True)
        with Searcher(copied) as searcher:
            collection.require_right(searcher.search("apple budget", K), OPEN)


#: The policies of case 9, who satisfies them, and who nearly does.
CASE_9: dict[str, tuple[list[tuple[str, ...]], list[tuple[str, ...]]]] = {
    "a+b@x.org": ([("a+b@x.org",)], [("a", "b@x.org"), ("a+b@x",), ("A+b@x.org",), ("a+b",)]),
    "dept_1": ([("dept_1",)], [("dept", "1:1"), ("dept:1",), ("dept_",), ("dept_10",)]),
    "ORland": ([("ORland",)], [("land",), ("orland",), ("ORlan",), ("OR:land",)]),
    "年齢:30": ([("年齢:30",)], [("年齢:31",), ("年齢",), ("年:30",), ("年齢:3",)]),
    "2 OF (a, b, c)": (
        [("a", "b"), ("a", "c"), ("b", "c"), ("a", "b", "c")],
        [("a",), ("b",), ("c",), ("a", "d"), ("a:b", "a:c"), ("2:2", "a")],
    ),
}
NOT_PARSED = {
    "A and (B or C": 7,
    "a AND": 6,
    "4 OF (a, b, c)": 1,
    "a b": 3,
    "NOT a": 1,
    "clearance >= x": 14,
    "a && b": 3,
}


@pytest.fixture(scope="module")
def case_9(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    folder = tmp_path_factory.mktemp("case-9")
    with serving(folder, engine="numpy") as fleet:
        made = start(fleet, folder)
        made.init_admin()
        for n, policy in enumerate(CASE_9):
            made.publish(policy, make_texts(f"group{n}", ("tea", "salt"), 3))
        yield made


def test_every_policy_of_case_9_is_kept_as_it_was_typed(case_9: Collection) -> None:
    manifest = case_9.manifest().manifest
    assert [group.policy.decode() for group in manifest.groups] == list(CASE_9)
    assert manifest.format == 2
    assert manifest.version == len(CASE_9)


@pytest.mark.parametrize("policy", CASE_9)
def test_a_policy_of_case_9_opens_if_and_only_if_it_is_satisfied(
    case_9: Collection, policy: str
) -> None:
    satisfying, others = CASE_9[policy]
    for attributes in satisfying:
        with case_9.searcher(*attributes) as searcher:
            case_9.require_right(searcher.search("apple tea", K), policy)
    for attributes in others:
        with case_9.searcher(*attributes) as searcher, pytest.raises(NotQualified):
            searcher.search("apple tea", K)


def test_one_user_may_satisfy_all_of_case_9(case_9: Collection) -> None:
    with case_9.searcher("a+b@x.org", "dept_1", "ORland", "年齢:30", "a", "c") as searcher:
        case_9.require_right(searcher.search("apple tea", K), *CASE_9)


@pytest.mark.parametrize(("policy", "position"), NOT_PARSED.items())
def test_a_policy_that_does_not_parse_is_refused_with_its_place(
    case_9: Collection, policy: str, position: int
) -> None:
    before = case_9.manifest()
    with pytest.raises(PolicyError, match=f"character {position}") as refused:
        case_9.publish(policy, make_texts("never", ("tea",), 2))
    assert refused.value.position == position
    assert case_9.manifest().hash == before.hash
    case_9.documents.pop(policy, None)


# --- publishing one group ------------------------------------------------------------------------


def _objects(group: Group) -> list[ObjectRef | SegmentRef]:
    assert group.bundle is not None
    return [group.dictionary, group.lookup, group.blobs, group.bundle, *group.segments]


def _stored(changing: Collection, groups: Sequence[Group]) -> dict[tuple[int, bytes], bytes]:
    """Give the bytes that each server holds of some groups, blobs left out."""
    with Owner(changing.profile) as owner:
        return {
            (server, ref.id): read_whole(connection, ref.id, ref.size)
            for server, connection in owner._fleet.connections.items()
            for group in groups
            for ref in _objects(group)
        }


def test_a_policy_needs_an_administration(changing: Collection) -> None:
    with pytest.raises(ParameterError, match="administration"):
        changing.publish(FINANCE, DOCUMENTS[FINANCE])


def test_a_group_changed_leaves_the_others_alone(changing: Collection) -> None:
    changing.init_admin()
    for policy, documents in DOCUMENTS.items():
        changing.publish(policy, documents)
    before = changing.manifest().manifest
    others = [group for group in before.groups if group.policy != FINANCE.encode()]
    stored = _stored(changing, others)
    assert len(stored) == 3 * 2 * 5

    changing.publish(FINANCE, DOCUMENTS[FINANCE][3:])

    after = changing.manifest().manifest
    assert [group.policy for group in after.groups] == [group.policy for group in before.groups]
    for old, new in zip(before.groups, after.groups, strict=True):
        if old.policy == FINANCE.encode():
            assert new.segments == old.segments
            assert {old.dictionary, old.lookup}.isdisjoint({new.dictionary, new.lookup})
            assert new.n_docs == old.n_docs - 3
        else:
            assert new == old
    assert _stored(changing, others) == stored
    assert changing.verified() == {"ok"}
    with changing.searcher(*ALL) as searcher:
        changing.require_right(searcher.search("apple rare", K), *DOCUMENTS)
        with pytest.raises(InputError):
            searcher.open(DOCUMENTS[FINANCE][0].id)

    again = changing.publish(FINANCE, DOCUMENTS[FINANCE][3:])
    assert not again.changed
    assert changing.manifest().manifest == after


def test_documents_under_another_policy_are_refused_and_can_move(changing: Collection) -> None:
    changing.init_admin()
    changing.publish(OPEN, DOCUMENTS[OPEN])
    changing.publish(FINANCE, DOCUMENTS[FINANCE])
    before = changing.manifest()
    moved = DOCUMENTS[OPEN][0]

    with pytest.raises(InputError, match=r"published under another policy.*no policy"):
        changing.publish(FINANCE, (*DOCUMENTS[FINANCE], moved))
    with pytest.raises(InputError, match=f"under {FINANCE}"):
        changing.publish(OPEN, (*DOCUMENTS[OPEN], DOCUMENTS[FINANCE][1]))
    assert changing.manifest().hash == before.hash

    changing.publish(OPEN, DOCUMENTS[OPEN][1:])
    changing.publish(FINANCE, (*DOCUMENTS[FINANCE], moved))
    with changing.searcher("clearance:2") as searcher, pytest.raises(InputError):
        searcher.open(moved.id)
    with changing.searcher("role:analyst", "dept:finance") as searcher:
        assert searcher.open(moved.id).text == moved.text


def test_a_publish_without_the_catalogue_forgets_no_other_group(
    changing: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing.init_admin()
    changing.publish(FINANCE, DOCUMENTS[FINANCE])
    catalogue = changing.manifest().manifest.catalogue
    real = fleets.Fleet.fetch

    def lose(fleet: fleets.Fleet, ref: ObjectRef) -> bytes:
        if ref == catalogue:
            raise NotEnoughAnswers("no server sent the object", have=0, need=1)
        return real(fleet, ref)

    monkeypatch.setattr(fleets.Fleet, "fetch", lose)
    with pytest.raises(NotEnoughAnswers, match="no server sent the object"):
        changing.publish(CLEARED, DOCUMENTS[CLEARED])
    # Its own group may be published anew: nothing of another one is lost.
    changing.publish(FINANCE, DOCUMENTS[FINANCE][1:])
    monkeypatch.undo()
    assert changing.verified() == {"ok"}
    assert changing.manifest().manifest.groups[0].n_docs == len(DOCUMENTS[FINANCE]) - 1


@pytest.mark.parametrize("away", [1, 3])
def test_a_server_that_missed_a_group_is_brought_it_when_another_is_published(
    changing: Collection, away: int
) -> None:
    changing.init_admin()
    changing.publish(OPEN, DOCUMENTS[OPEN])
    changing.fleet[away].kill()
    changing.publish(FINANCE, DOCUMENTS[FINANCE])
    changing.publish(CLEARED, DOCUMENTS[CLEARED])
    changing.fleet[away].restart()

    report = changing.publish(CLEARED, DOCUMENTS[CLEARED][1:])

    assert [server["status"] for server in report.servers] == ["ok"] * 3, report.servers
    assert changing.verified() == {"ok"}
    changing.fleet[2].kill()
    with changing.searcher(*ALL) as searcher:
        changing.require_right(searcher.search("apple rare", K), *DOCUMENTS)
        assert searcher.open(DOCUMENTS[FINANCE][5].id).text == DOCUMENTS[FINANCE][5].text


def test_a_server_that_missed_a_group_is_brought_it_by_a_renewal(changing: Collection) -> None:
    changing.init_admin()
    changing.publish(OPEN, DOCUMENTS[OPEN])
    changing.fleet[3].kill()
    changing.publish(FINANCE, DOCUMENTS[FINANCE])
    changing.fleet[3].restart()
    with Owner(changing.profile) as owner:
        owner.renew()
    assert changing.verified() == {"ok"}


class Killed(BaseException):
    """The process of a publisher ended."""


def _interrupt(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Have the next publication end as if its process were killed."""

    def kill(*_arguments: object, **_options: object) -> None:
        raise Killed

    if when == "prepared":
        monkeypatch.setattr(fleets.Fleet, "distribute", kill)
    elif when == "activating":
        monkeypatch.setattr(GrpcConnection, "activate", kill)
    else:

        def some(publication: Any, target: Any, *_rest: object) -> int:
            manifest_hash = target.propose(publication.signed.encode())
            here = [n for n in target.missing(manifest_hash) if publication.holds(n)][:2]
            target.put_all(manifest_hash, ((name, publication.chunks(name)) for name in here))
            raise Killed

        monkeypatch.setattr(fleets, "stage", some)


@pytest.mark.parametrize(
    ("when", "then"),
    [
        ("prepared", FINANCE),
        ("sending", FINANCE),
        ("sending", CLEARED),
        ("activating", CLEARED),
    ],
)
def test_an_interrupted_publish_of_the_second_group_is_completed(
    changing: Collection, monkeypatch: pytest.MonkeyPatch, when: str, then: str
) -> None:
    changing.init_admin()
    changing.publish(OPEN, DOCUMENTS[OPEN])
    with monkeypatch.context() as patched:
        _interrupt(patched, when)
        with pytest.raises(Killed):
            changing.publish(FINANCE, DOCUMENTS[FINANCE])
    prepared = SignedManifest.decode(
        (changing.profile.folder / "publication" / "manifest").read_bytes(),
        changing.profile.owner_key,
    )
    assert changing.manifest().manifest.version == 1

    report = changing.publish(then, DOCUMENTS[then])
    changing.documents[FINANCE] = DOCUMENTS[FINANCE]

    assert [server["status"] for server in report.servers] == ["ok"] * 3
    after = changing.manifest()
    # The stored bytes were sent, nothing was built a second time.
    assert after.manifest.group(FINANCE.encode()) == prepared.manifest.group(FINANCE.encode())
    assert after.manifest.version == (2 if then == FINANCE else 3)
    assert (after.hash == prepared.hash) == (then == FINANCE)
    assert changing.verified() == {"ok"}
    with changing.searcher(*ALL) as searcher:
        changing.require_right(searcher.search("apple rare", K), *changing.documents)


def test_a_renewal_after_admin_init_seals_what_was_published_before(changing: Collection) -> None:
    changing.publish(OPEN, DOCUMENTS[OPEN])
    assert changing.manifest().manifest.format == 1
    changing.init_admin()
    user = changing.user("clearance:1")
    with Searcher(user.profile.folder) as searcher, pytest.raises(ManifestRefused):
        searcher.search("apple")

    with Owner(changing.profile) as owner:
        renewed = owner.renew()

    assert renewed.manifest.format == 2
    assert renewed.encode()[8:12] == (2).to_bytes(4, "big")
    old = replace(renewed.manifest.groups[0], bundle=None)
    assert renewed.manifest.version == 2
    assert renewed.manifest.groups[0].bundle is not None
    assert old.n_docs == len(DOCUMENTS[OPEN])
    assert changing.verified() == {"ok"}
    with Searcher(user.profile.folder) as searcher:
        changing.require_right(searcher.search("apple", K), OPEN)


def test_a_lost_administration_is_replaced_by_one_that_seals_every_group_anew(
    changing: Collection,
) -> None:
    changing.init_admin()
    for policy, documents in DOCUMENTS.items():
        changing.publish(policy, documents)
    old = changing.user(*ALL)
    (changing.profile.folder / "administration").unlink()
    (changing.profile.folder / "credentials.json").unlink()
    changing.init_admin()

    with Owner(changing.profile) as owner:
        renewed = owner.renew().manifest

    assert renewed.access is not None
    assert renewed.access.epoch == 2
    with (
        Searcher(old.profile.folder) as searcher,
        pytest.raises(ManifestRefused, match="not of the authority"),
    ):
        searcher.search("apple")
    user = changing.new_user(*ALL)
    with Searcher(user.profile.folder) as searcher:
        changing.require_right(searcher.search("apple", K), *DOCUMENTS)


def test_another_administration_is_refused_and_changes_nothing(
    changing: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing.init_admin()
    for policy, documents in DOCUMENTS.items():
        changing.publish(policy, documents)
    user = changing.user(*ALL)
    before = changing.manifest()
    own = changing.profile.folder / "administration"
    kept = own.read_bytes()
    own.unlink()

    for _ in ("without an administration", "with another one"):
        with Owner(changing.profile) as owner, pytest.raises(ProfileError, match="old copy"):
            owner.renew()
        refused = (ProfileError, ParameterError)
        with pytest.raises(refused, match=r"old copy|need an administration"):
            changing.publish(CLEARED, DOCUMENTS[CLEARED][1:])
        if not own.exists():
            # As in an old copy of the profile, which has not seen the version.
            with monkeypatch.context() as patched:
                patched.setattr(Profile, "highest_seen", lambda _profile: None)
                changing.init_admin()
    stranger = changing.new_user(*ALL)
    strangers = Searcher(stranger.profile.folder)
    with strangers as searcher, pytest.raises(ManifestRefused, match="authority"):
        searcher.search("apple")
    with pytest.raises(VerificationError):
        stranger.enrol((user.profile.folder / "credential").read_bytes())

    own.write_bytes(kept)
    changing.documents[CLEARED] = DOCUMENTS[CLEARED]
    assert changing.manifest() == before
    with Searcher(user.profile.folder) as searcher:
        changing.require_right(searcher.search("apple", K), *DOCUMENTS)
    with Owner(changing.profile) as owner:
        renewed = owner.renew().manifest
    assert renewed.groups == before.manifest.groups
    assert changing.verified() == {"ok"}


def test_a_revocation_reaches_every_group_and_one_published_later_joins_its_epoch(
    changing: Collection,
) -> None:
    """Also where a server was away: it is brought what the new epoch sealed."""
    changing.init_admin()
    assert changing.admin is not None
    for policy, documents in DOCUMENTS.items():
        changing.publish(policy, documents)
    stays, goes = changing.user(*ALL), changing.user("role:analyst", "dept:finance")
    for user in (stays, goes):
        with Searcher(user.profile.folder) as searcher:
            assert searcher.search("budget", K).hits
    before = changing.manifest().manifest

    changing.admin.revoke(users=[goes.profile.identity.public.id.hex()])
    changing.fleet[3].kill()
    with Owner(changing.profile) as owner:
        revoked = owner.renew().manifest
    changing.fleet[3].restart()
    with Searcher(goes.profile.folder) as searcher, pytest.raises(MksearchError):
        searcher.search("budget")
    for old, new in zip(before.groups, revoked.groups, strict=True):
        assert (old.segments, old.lookup, old.epoch) == (new.segments, new.lookup, new.epoch)
        assert old.bundle != new.bundle
        assert old.search_key != new.search_key

    report = changing.publish(FINANCE, DOCUMENTS[FINANCE][2:])

    assert [server["status"] for server in report.servers] == ["ok"] * 3, report.servers
    assert changing.verified() == {"ok"}
    after = changing.manifest().manifest
    assert {group.policy.decode(): group.epoch for group in after.groups} == {
        OPEN: 1,
        FINANCE: 2,
        CLEARED: 1,
    }
    changing.fleet[1].kill()
    with Searcher(stays.profile.folder) as searcher:
        changing.require_right(searcher.search("apple rare", K), *DOCUMENTS)
    with Searcher(goes.profile.folder) as searcher, pytest.raises(MksearchError):
        searcher.search("budget")
