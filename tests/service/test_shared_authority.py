"""The authority that the servers share: dealing it, enrolling with parts of keys, and what those
who do not keep to the protocol reach."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from mksearch.access.attributes import parse_attribute
from mksearch.access.authority import SharedAuthority, combine, deal, set_up_shared, verify_partial
from mksearch.access.authority_messages import (
    PARTIAL_PURPOSE,
    SHARE_PURPOSE,
    EnrolRequest,
    ShareOrder,
    partial_key_message,
)
from mksearch.access.cpabe import decapsulate, encapsulate, set_up
from mksearch.access.credential import SignedCredential
from mksearch.access.enrolment import MemberSecrets, read_credential
from mksearch.access.issuing import issue_partial
from mksearch.access.keys import (
    AttributeKey,
    AuthorityShare,
    PartialKey,
    PublicParameters,
    reveal_scalar,
    seal_scalar,
)
from mksearch.access.orders import SignedOrder
from mksearch.access.pairing import BLS12_381
from mksearch.access.policy import parse_policy
from mksearch.access.scalars import lagrange
from mksearch.access.span_program import SpanProgram
from mksearch.crypto import labels
from mksearch.crypto.bundle import KeyBundle
from mksearch.crypto.identity import Identity
from mksearch.crypto.randomness import SystemRandom
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.crypto.user_key import UserKey
from mksearch.errors import (
    AnswerRefused,
    CredentialRefused,
    FormatError,
    MksearchError,
    NotEnoughAnswers,
    NotQualified,
    ParameterError,
    RecordRefused,
    ServerRefused,
    StorageError,
    VerificationError,
)
from mksearch.params import Quorum
from mksearch.wire.v1.authority_pb2 import IssuePartialKeyRequest as Message
from mksearch.wire.v1.authority_pb2 import IssuePartialKeyResponse as Answer
from mksearch_client.admin import Admin
from mksearch_client.asking import Servers
from mksearch_client.authority_connection import AuthorityConnection
from mksearch_client.keyring import EnrolledRing
from mksearch_client.readback import read_whole
from mksearch_client.sharing import collect_key
from mksearch_client.user import User
from mksearch_server.authority import AuthorityKeeper
from mksearch_server.challenges import CHALLENGE_S, Challenges
from mksearch_server.identity import Claim
from mksearch_server.store import ObjectStore
from tests.support.grpc_stage import LIFE_S, POLICY, GrpcServer, GrpcStage, hit_ids, staging

QUALIFIED = ("role:analyst", "dept:finance")
RANDOM = SystemRandom()
R = BLS12_381.order


@pytest.fixture(scope="module", params=[(3, 1), (4, 1), (5, 2)], ids=str)
def any_stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GrpcStage]:
    """A shared authority of each size; tests leave it as it is."""
    with staging(tmp_path_factory.mktemp("authority"), *request.param) as made:
        made.publish(3)
        made.share()
        yield made


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcStage]:
    """A shared authority of three servers; tests leave it as it is."""
    with staging(tmp_path_factory.mktemp("three")) as made:
        made.publish(3)
        made.share()
        yield made


@pytest.fixture
def unshared(tmp_path: Path) -> Iterator[GrpcStage]:
    """Three servers of a test's own, whose owner has the authority still."""
    with staging(tmp_path) as made:
        made.publish(3)
        yield made


@contextmanager
def asked(stage: GrpcStage, user: User, servers: tuple[int, ...]) -> Iterator[Servers[Any]]:
    """Connect to some servers' parts of the authority."""
    entries = [user.profile.servers[server] for server in servers]
    connections = {entry.id: AuthorityConnection(entry, RANDOM, 10.0) for entry in entries}
    with ThreadPoolExecutor(len(connections)) as pool:
        yield Servers(connections, {}, pool, hedge_s=30.0)
    for connection in connections.values():
        connection.close()


def collect(
    stage: GrpcStage, user: User, signed: SignedCredential, servers: Servers[Any]
) -> AttributeKey:
    access = stage.servers[1].manifest.access
    assert access is not None
    keys = access.verification_keys
    assert keys is not None
    identity = user.profile.identity
    return collect_key(servers, signed, identity, access.parameters, keys, RANDOM)


def open_group(
    stage: GrpcStage, user: User, signed: SignedCredential, key: AttributeKey
) -> KeyBundle:
    """Open the bundle of the group under ``POLICY`` with a key."""
    manifest = stage.servers[1].manifest
    group = manifest.group(POLICY.encode())
    assert group is not None
    assert group.bundle is not None
    secret = read_credential(signed, user.profile.identity).member_secret
    ring = EnrolledRing(
        user.profile.collection,
        user.profile.owner_key,
        key.authority,
        MemberSecrets(secret, key),
    )
    sealed = stage.servers[1].runtime.search.read_object(group.bundle.id, 0, group.bundle.size)
    return ring.open(manifest, group, sealed)


def generations(stage: GrpcStage) -> list[int]:
    return [server.runtime.authority.shares.generation for server in stage.servers.values()]


def lose_share(server: GrpcServer) -> None:
    server.runtime.authority.shares._shares = ()


# --- who can issue --------------------------------------------------------------------------------


def test_every_t_plus_1_servers_issue_a_key_that_opens_and_no_t_do(any_stage: GrpcStage) -> None:
    stage, quorum = any_stage, any_stage.owner.profile.quorum
    user = stage.applicant("subsets")
    signed = stage.credential(user, *QUALIFIED)
    servers = range(1, quorum.n_servers + 1)
    bundles = set()
    for chosen in combinations(servers, quorum.threshold):
        with asked(stage, user, chosen) as few:
            key = collect(stage, user, signed, few)
            assert {r.status for r in few.reports.values()} == {"ok"}
        bundles.add(open_group(stage, user, signed, key).encode())
    assert len(bundles) == 1
    for chosen in combinations(servers, quorum.collusion_bound):
        with asked(stage, user, chosen) as few, pytest.raises(NotEnoughAnswers) as caught:
            collect(stage, user, signed, few)
        assert (caught.value.have, caught.value.need) == (len(chosen), quorum.threshold)


def test_a_member_whose_key_the_servers_made_finds_and_opens_what_the_policy_allows(
    any_stage: GrpcStage,
) -> None:
    any_stage.enrol("member", *QUALIFIED)
    any_stage.enrol("other", "role:analyst", "dept:sales")
    with any_stage.searcher("member") as searcher:
        found = searcher.search("apple")
        assert found.groups == 2
        assert sorted(hit_ids(found.hits)) == [
            f"{p}{n}" for p in ("closed", "open") for n in (0, 1, 2)
        ]
        assert "secret" in searcher.open("closed1").text
    with any_stage.searcher("other") as searcher:
        assert sorted(hit_ids(searcher.search("apple").hits)) == ["open0", "open1", "open2"]


def test_with_nine_servers_every_five_hold_the_secret_and_no_four_do() -> None:
    """All 126 subsets of five and of four by their shares; keys of six of the former are opened."""
    quorum = Quorum(9, 4)
    parameters, master = set_up(RANDOM)
    shares, verification = deal(parameters, master, quorum, 1, RANDOM)
    secret = reveal_scalar(master.alpha)
    values = {share.server: reveal_scalar(share.secret) for share in shares}

    def at_zero(servers: tuple[int, ...]) -> int:
        factors = lagrange(list(servers), R)
        return sum(f * values[s] for f, s in zip(factors, servers, strict=True)) % R

    fives = list(combinations(range(1, 10), 5))
    assert {at_zero(five) for five in fives} == {secret}
    assert secret not in {at_zero(four) for four in combinations(range(1, 10), 4)}

    attributes = [parse_attribute(text) for text in QUALIFIED]
    parts = {
        share.server: verify_partial(
            parameters,
            verification,
            issue_partial(parameters, share, attributes, 1, RANDOM),
            server=share.server,
            attributes=attributes,
            epoch=1,
            random=RANDOM,
        )
        for share in shares
    }
    policy = parse_policy(POLICY)
    header, expected = encapsulate(parameters, policy, 1, b"", RANDOM)
    for five in fives[::25]:
        key = combine(parameters, verification, [parts[server] for server in five])
        assert decapsulate(parameters, key, policy, 1, b"", header).reveal() == expected.reveal()
    with pytest.raises(NotEnoughAnswers):
        combine(parameters, verification, [parts[server] for server in (1, 2, 3, 4)])


# --- bad parts of keys ----------------------------------------------------------------------------


def held_share(server: GrpcServer) -> tuple[PublicParameters, AuthorityShare]:
    """Return what a server makes keys with."""
    access, shares = server.manifest.access, server.runtime.authority.shares
    assert access is not None
    parameters = access.parameters
    return parameters, shares.find(parameters.authority, shares.generation)


@dataclass
class Request:
    """What a server is asked for, and what it would need to answer."""

    server: GrpcServer
    user_key: Any
    signed: SignedCredential
    request: EnrolRequest

    def honest(self) -> PartialKey:
        return self.issue(*held_share(self.server))

    def issue(self, parameters: Any, share: AuthorityShare, *attributes: str) -> PartialKey:
        wanted = [parse_attribute(a) for a in attributes] or self.signed.credential.attributes
        return issue_partial(parameters, share, wanted, self.signed.credential.epoch, RANDOM)

    def answer(
        self,
        content: bytes,
        *,
        to: Any = None,
        request: EnrolRequest | None = None,
        key: SigningKey | None = None,
        generation: int = 1,
    ) -> Answer:
        """Seal and sign, as the server's own keys allow."""
        said_to = request or self.request
        sealed = (to or self.user_key).seal(PARTIAL_PURPOSE, said_to.hash, content)
        said = partial_key_message(self.request, sealed, generation)
        signing = key or SigningKey(self.server.runtime.identity.seed)
        signature = signing.sign(labels.PARTIAL_KEY, said)
        return Answer(sealed=sealed, signature=signature, generation=generation)


def _wrong_share(asked: Request) -> Answer:
    parameters, share = held_share(asked.server)
    wrong = replace(share, secret=seal_scalar(reveal_scalar(share.secret) % (R - 1) + 1))
    return asked.answer(asked.issue(parameters, wrong).encode())


def _other_labels(asked: Request) -> Answer:
    parameters, share = held_share(asked.server)
    part = asked.issue(parameters, share, "role:analyst", "dept:finance", "role:root")
    return asked.answer(part.encode())


def _fewer_labels(asked: Request) -> Answer:
    parameters, share = held_share(asked.server)
    return asked.answer(asked.issue(parameters, share, "role:analyst").encode())


def _other_authority(asked: Request) -> Answer:
    other = set_up_shared(Quorum(), RANDOM)
    return asked.answer(asked.issue(other.parameters, other.shares[asked.server.id - 1]).encode())


def _identity(asked: Request) -> Answer:
    content = bytearray(asked.honest().encode())
    at = len(content) - len(content) + 12 + 32 + 8 + 1
    content[at : at + 48] = bytes([0xC0]) + bytes(47)
    return asked.answer(bytes(content))


def _garbage(asked: Request) -> Answer:
    return asked.answer(RANDOM.bytes(len(asked.honest().encode())))


def _point_replaced(asked: Request) -> Answer:
    part = asked.honest()
    label = max(part.key.components)
    components = {**part.key.components, label: part.key.components[label] * BLS12_381.g1}
    return asked.answer(replace(part, key=replace(part.key, components=components)).encode())


def _other_generation(asked: Request) -> Answer:
    return asked.answer(replace(asked.honest(), generation=2).encode(), generation=2)


def _other_server(asked: Request) -> Answer:
    return asked.answer(replace(asked.honest(), server=asked.server.id % 3 + 1).encode())


def _to_somebody_else(asked: Request) -> Answer:
    other = Identity(SecretKey(RANDOM.bytes(32))).public
    return asked.answer(asked.honest().encode(), to=other)


def _to_another_request(asked: Request) -> Answer:
    earlier = replace(asked.request, challenge=RANDOM.bytes(32))
    return asked.answer(asked.honest().encode(), request=earlier)


def _foreign_signature(asked: Request) -> Answer:
    return asked.answer(asked.honest().encode(), key=SigningKey(SecretKey(RANDOM.bytes(32))))


def _unsigned(asked: Request) -> Answer:
    honest = asked.answer(asked.honest().encode())
    return Answer(sealed=honest.sealed, signature=bytes(64), generation=honest.generation)


def _generation_not_signed(asked: Request) -> Answer:
    honest = asked.answer(asked.honest().encode())
    return Answer(sealed=honest.sealed, signature=honest.signature, generation=2)


BAD_PARTS: Mapping[str, tuple[Callable[[Request], Answer], str]] = {
    "wrong share": (_wrong_share, "is not made with the share"),
    "labels unasked": (_other_labels, "has, unasked, role:root"),
    "labels missing": (_fewer_labels, "lacks dept:finance"),
    "other authority": (_other_authority, "is of another authority"),
    "identity": (_identity, "cannot be read"),
    "garbage": (_garbage, "cannot be read"),
    "a point replaced": (_point_replaced, "has a wrong component for"),
    "other generation": (_other_generation, "is of share generation 2"),
    "other server": (_other_server, "says that it is of server 2"),
    "sealed to somebody else": (_to_somebody_else, "cannot be read"),
    "sealed for another request": (_to_another_request, "cannot be read"),
    "foreign signature": (_foreign_signature, "signature"),
    "unsigned": (_unsigned, "signature"),
    "generation not signed": (_generation_not_signed, "signature"),
}


@contextmanager
def lying(server: GrpcServer, make: Callable[[Request], Answer]) -> Iterator[None]:
    """Have a server answer requests to enrol with what ``make`` gives."""

    def lie(message: Message) -> Answer:
        access = server.manifest.access
        assert access is not None
        signed = SignedCredential.of_parts(
            message.credential, message.credential_signature, access.admin_key
        )
        authority = access.parameters.authority
        request = EnrolRequest(server.id, message.challenge, authority, access.epoch, signed.hash)
        user_key = UserKey.decode(message.user_key)
        return make(Request(server, user_key, signed, request))

    server.lie = lie
    try:
        yield
    finally:
        server.lie = None


@pytest.mark.parametrize("kind", BAD_PARTS)
def test_a_bad_part_names_its_server_and_others_take_its_place(stage: GrpcStage, kind: str) -> None:
    make, reason = BAD_PARTS[kind]
    user = stage.applicant(kind.replace(" ", "-"))
    signed = stage.credential(user, *QUALIFIED)
    with lying(stage.servers[1], make), asked(stage, user, (1, 2, 3)) as servers:
        key = collect(stage, user, signed, servers)
        reports = servers.reports
        assert {s: r.status for s, r in reports.items()} == {1: "lied", 2: "ok", 3: "ok"}
        assert reason in reports[1].reason
        assert "server 1" in reports[1].reason
        open_group(stage, user, signed, key)
        # The whole way that a user takes.
        user.enrol(signed.encode())
    assert user.whoami().enrolled


def test_two_servers_with_bad_parts_are_both_named_and_nothing_is_kept(stage: GrpcStage) -> None:
    user = stage.applicant("two-bad")
    signed = stage.credential(user, *QUALIFIED)
    with (
        lying(stage.servers[1], _wrong_share),
        lying(stage.servers[3], _unsigned),
        pytest.raises(AnswerRefused) as caught,
    ):
        user.enrol(signed.encode())
    assert (caught.value.liars, caught.value.have, caught.value.need) == ((1, 3), 1, 2)
    assert not user.whoami().enrolled
    assert not (user.profile.folder / "attribute-key").exists()
    user.enrol(signed.encode())
    assert user.whoami().enrolled


# --- requests that are passed on, repeated or late ------------------------------------------------


def _message(
    stage: GrpcStage, user: User, signed: SignedCredential, server: int
) -> tuple[Message, EnrolRequest]:
    """Make what a user shows ``server``, rightly, and what was signed."""
    runtime = stage.servers[server].runtime
    manifest = stage.servers[server].manifest
    assert manifest.access is not None
    challenge = runtime.authority.challenges.make()
    access = manifest.access
    request = EnrolRequest(
        server, challenge, access.parameters.authority, access.epoch, signed.hash
    )
    identity = user.profile.identity
    message = Message(
        challenge=challenge,
        credential=signed.body,
        credential_signature=signed.signature,
        user_key=identity.public.encode(),
        signature=request.sign(identity.signing),
    )
    return message, request


def changed(message: Message, **fields: bytes) -> Message:
    copied = Message()
    copied.CopyFrom(message)
    for name, value in fields.items():
        setattr(copied, name, value)
    return copied


def _issue(stage: GrpcStage, server: int, message: Message) -> Answer:
    """Send a request to enrol as it is."""
    entry = stage.owner.profile.servers[server]
    connection = AuthorityConnection(entry, RANDOM, 10.0)
    ask = connection._authority.IssuePartialKey
    try:
        answer: Answer = connection._ask(lambda: ask(message, timeout=10.0))
        return answer
    finally:
        connection.close()


@contextmanager
def refused(code: str, word: str) -> Iterator[None]:
    """Expect a server to refuse with a kind of error and a word."""
    with pytest.raises(ServerRefused, match=word) as caught:
        yield
    assert caught.value.detail_code == code


def test_a_server_that_passes_a_request_on_gets_no_part_from_another(stage: GrpcStage) -> None:
    """Server 1 hands out a challenge of server 2, to use the user's signature there."""
    user = stage.applicant("relayed")
    signed = stage.credential(user, *QUALIFIED)
    corrupt, honest = (stage.servers[s].runtime.authority for s in (1, 2))
    corrupt.challenges.make, own = honest.challenges.make, corrupt.challenges.make  # type: ignore[method-assign]
    caught: list[Message] = []

    def lie(message: Message) -> Answer:
        caught.append(message)
        return Answer()

    stage.servers[1].lie = lie
    try:
        user.enrol(signed.encode())
    finally:
        corrupt.challenges.make = own  # type: ignore[method-assign]
        stage.servers[1].lie = None
    assert len(caught) == 1
    honest.challenges.require(caught[0].challenge)
    with refused("not-verified", "request to enrol"):
        _issue(stage, 2, caught[0])
    # Nor does the user's request to server 2 go with the credential of somebody else.
    right, _ = _message(stage, user, signed, 2)
    other = stage.applicant("relayed-other")
    theirs = stage.credential(other, *QUALIFIED)
    swapped = changed(right, credential=theirs.body, credential_signature=theirs.signature)
    with refused("credential-refused", "user key"):
        _issue(stage, 2, swapped)
    with refused("not-verified", "request to enrol"):
        _issue(stage, 2, changed(swapped, user_key=other.profile.identity.public.encode()))
    _issue(stage, 2, right)


def test_an_intercepted_answer_is_of_no_use_to_anybody_else(stage: GrpcStage) -> None:
    user, thief = stage.applicant("victim"), stage.enrol("thief", "role:analyst")
    signed = stage.credential(user, *QUALIFIED)
    message, request = _message(stage, user, signed, 1)
    answer = _issue(stage, 1, message)
    for identity in (thief.profile.identity, stage.servers[2].runtime.authority.shares.sealing):
        with pytest.raises(RecordRefused):
            identity.open(PARTIAL_PURPOSE, request.hash, answer.sealed, "a partial key")
    # Nor to its own user in answer to anything else.
    identity = user.profile.identity
    later = replace(request, challenge=RANDOM.bytes(32))
    with pytest.raises(RecordRefused):
        identity.open(PARTIAL_PURPOSE, later.hash, answer.sealed, "a partial key")
    PartialKey.decode(identity.open(PARTIAL_PURPOSE, request.hash, answer.sealed, "a partial key"))


def test_a_repeated_request_is_answered_to_its_user_alone_with_a_new_exponent(
    stage: GrpcStage,
) -> None:
    user = stage.applicant("repeated")
    signed = stage.credential(user, *QUALIFIED)
    message, request = _message(stage, user, signed, 1)
    parts = []
    for _ in range(2):
        sealed = _issue(stage, 1, message).sealed
        opened = user.profile.identity.open(PARTIAL_PURPOSE, request.hash, sealed, "a part")
        parts.append(PartialKey.decode(opened))
    assert parts[0].key.l != parts[1].key.l
    assert parts[0].key.k != parts[1].key.k


def test_a_challenge_is_good_for_two_minutes_and_at_its_own_server_and_start() -> None:
    now = [1000.0]
    challenges = Challenges(RANDOM, lambda: now[0])
    challenge = challenges.make()
    for after_s in (0, 1, CHALLENGE_S):
        now[0] = 1000.0 + after_s
        challenges.require(challenge)
    for after_s in (CHALLENGE_S + 1, 10**6, -1):
        now[0] = 1000.0 + after_s
        with pytest.raises(VerificationError, match=f"{after_s} s old"):
            challenges.require(challenge)
    now[0] = 1000.0
    with pytest.raises(VerificationError, match="not made by this server"):
        Challenges(RANDOM, lambda: now[0]).require(challenge)
    for bit in range(0, 8 * len(challenge), 5):
        changed = bytearray(challenge)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(VerificationError):
            challenges.require(bytes(changed))
    for length in (0, 15, 16, 31, 33):
        with pytest.raises(VerificationError):
            challenges.require((challenge + b"\0")[:length])
    assert len({challenges.make() for _ in range(50)}) == 50


def test_an_old_request_is_refused_by_a_restarted_server_and_after_its_time(
    unshared: GrpcStage,
) -> None:
    stage = unshared
    stage.share()
    user = stage.applicant("late")
    signed = stage.credential(user, *QUALIFIED)
    message, _ = _message(stage, user, signed, 1)
    _issue(stage, 1, message)
    stage.servers[1].runtime.authority.challenges._clock = lambda: time.time() + CHALLENGE_S + 2
    with refused("not-verified", "s old"):
        _issue(stage, 1, message)
    stage.servers[1].restart()
    with refused("not-verified", "not made by this server"):
        _issue(stage, 1, message)


# --- credentials ----------------------------------------------------------------------------------


def test_a_server_refuses_a_credential_that_is_not_for_now_here_and_this_user(
    stage: GrpcStage,
) -> None:
    user = stage.applicant("refused")
    good = stage.credential(user, *QUALIFIED)

    def signed_as(**fields: Any) -> SignedCredential:
        return SignedCredential.sign(
            replace(good.credential, **fields), stage.admin._keys.signing, b""
        )

    now_s = int(time.time())
    for fields, word in (
        ({"epoch": 2}, "epoch 2"),
        ({"issued_at": now_s - 99, "expires_at": now_s - 9}, "expired"),
        ({"user": bytes(32)}, "user key"),
        ({"collection": bytes(16)}, "collection"),
        ({"authority": bytes(32)}, "authority"),
    ):
        with refused("credential-refused", word):
            _issue(stage, 1, _message(stage, user, signed_as(**fields), 1)[0])
    forged = SignedCredential.sign(good.credential, SigningKey(SecretKey(bytes(32))), b"")
    for bad in (forged, replace(good, body=good.body + b"\0"), replace(good, body=b"")):
        with refused("not-verified", "credential"):
            _issue(stage, 1, _message(stage, user, bad, 1)[0])
    for user_key in (b"", bytes(1260), user.profile.identity.public.encode()[:-1]):
        with pytest.raises(ServerRefused):
            _issue(stage, 1, changed(_message(stage, user, good, 1)[0], user_key=user_key))
    _issue(stage, 1, _message(stage, user, good, 1)[0])


def test_a_user_is_told_with_exit_code_4_that_a_credential_is_of_another_epoch_or_user_or_late(
    unshared: GrpcStage,
) -> None:
    stage = unshared
    stage.share()
    user, other = stage.applicant("one"), stage.applicant("two")
    stage.enrol("leaver", *QUALIFIED)
    old = stage.credential(user, *QUALIFIED)
    with pytest.raises(CredentialRefused, match="user key") as caught:
        other.enrol(old.encode())
    assert caught.value.exit_code == 4
    late = User(user.profile, clock=lambda: time.time() + LIFE_S + 5)
    with pytest.raises(CredentialRefused, match="expired") as caught:
        late.enrol(old.encode())
    assert caught.value.exit_code == 4
    stage.admin.revoke(users=[stage.id_of("leaver")])
    stage.owner.renew()
    with pytest.raises(CredentialRefused, match=r"epoch 1.* 2") as caught:
        user.enrol(old.encode())
    assert caught.value.exit_code == 4
    assert not user.whoami().enrolled
    # What a server itself says of it.
    access = stage.servers[1].manifest.access
    assert access is not None
    entry = user.profile.servers[1]
    connection = AuthorityConnection(entry, RANDOM, 10.0)
    challenge = connection.challenge().challenge
    request = EnrolRequest(1, challenge, access.parameters.authority, 1, old.hash)
    with pytest.raises(ServerRefused) as refusal:
        connection.issue_partial(request, old, user.profile.identity)
    connection.close()
    assert refusal.value.detail_code == "credential-refused"
    # The administration goes on in the new epoch by itself.
    user.enrol(stage.credential(user, *QUALIFIED).encode())
    assert user.whoami().epoch == 2


# --- dealing --------------------------------------------------------------------------------------


def test_a_server_without_a_share_is_left_out(unshared: GrpcStage) -> None:
    stage = unshared
    stage.share()
    lose_share(stage.servers[1])
    assert stage.servers[1].runtime.authority.shares.generation == 0
    user = stage.applicant("without")
    signed = stage.credential(user, *QUALIFIED)
    with asked(stage, user, (1, 2, 3)) as servers:
        collect(stage, user, signed, servers)
        assert servers.reports[1].status == "refused"
        assert "holds no share of generation 1" in servers.reports[1].reason
    user.enrol(signed.encode())
    lose_share(stage.servers[2])
    with pytest.raises(NotEnoughAnswers, match=r"server 1 refused.*server 2 refused"):
        user.enrol(signed.encode())


def test_dealing_without_a_server_forgets_nothing_and_can_be_repeated(unshared: GrpcStage) -> None:
    stage = unshared
    stage.servers[3].stop()
    with pytest.raises(NotEnoughAnswers, match="server 3") as caught:
        stage.admin.share(timeout_s=2.0)
    assert (caught.value.have, caught.value.need) == (2, 3)
    assert not stage.admin.is_shared
    # The authority works as before, in the hands of the owner.
    reopened = Admin(stage.owner.profile)
    assert not reopened.is_shared
    stage.enrol("meanwhile", *QUALIFIED)
    with stage.searcher("meanwhile") as searcher:
        assert searcher.search("budget").groups == 2
    stage.servers[3].start()
    stage.share()
    assert stage.admin.is_shared
    assert Admin(stage.owner.profile).is_shared
    stage.enrol("afterwards", *QUALIFIED)
    with stage.searcher("afterwards") as searcher:
        assert searcher.search("budget").groups == 2
    with stage.searcher("meanwhile") as searcher:
        assert searcher.search("budget").groups == 2
    with pytest.raises(ParameterError, match="share the authority already"):
        stage.admin.share()


def test_dealing_that_ends_between_two_servers_is_done_anew_with_other_shares(
    unshared: GrpcStage,
) -> None:
    stage = unshared
    broken = stage.servers[2].runtime.authority.shares

    def refuse(*_arguments: object) -> int:
        raise StorageError("no room")

    broken.install = refuse  # type: ignore[method-assign, assignment]
    with pytest.raises(NotEnoughAnswers, match="server 2: no room"):
        stage.admin.share()
    del broken.install
    assert generations(stage) == [1, 0, 1]
    _, first = held_share(stage.servers[1])
    assert not stage.admin.is_shared
    stage.share()
    assert generations(stage) == [2, 2, 2]
    _, second = held_share(stage.servers[1])
    assert reveal_scalar(first.secret) != reveal_scalar(second.secret)
    stage.enrol("member", *QUALIFIED)
    with stage.searcher("member") as searcher:
        assert searcher.search("budget").groups == 2


def test_the_owner_that_dealt_keeps_nothing_of_the_secret(unshared: GrpcStage) -> None:
    stage = unshared
    master = stage.admin._keys.master
    assert master is not None
    secret = master.alpha.reveal()
    stage.share()
    shares = [held_share(server)[1] for server in stage.servers.values()]
    hidden = [secret, *(share.secret.reveal() for share in shares)]
    assert len(hidden) == 4
    for path in (p for p in stage.folder.rglob("*") if p.is_file()):
        data = path.read_bytes()
        assert not [one for one in hidden if one in data], path


def test_shares_survive_a_restart(unshared: GrpcStage) -> None:
    stage = unshared
    stage.share()
    for server in stage.servers.values():
        server.restart()
        assert server.runtime.authority.shares.generation == 1
    stage.enrol("member", *QUALIFIED)
    with stage.searcher("member") as searcher:
        assert searcher.search("budget").groups == 2


# --- what a server keeps and takes ----------------------------------------------------------------


class Held:
    """One server's part of an authority, without the network."""

    def __init__(self, folder: Path, server: int = 1, seed: bytes = bytes(32)) -> None:
        self.folder = folder
        self.seed = SecretKey(seed)
        self.server = server
        self.owner = SigningKey(SecretKey(b"o" * 32))
        self.collection = b"collection 16 b."
        self.parameters, self.master = set_up(RANDOM)
        self.keeper = self.open()

    def open(self, seed: SecretKey | None = None) -> AuthorityKeeper:
        self.store = ObjectStore(self.folder)
        return AuthorityKeeper(self.server, seed or self.seed, self.store, RANDOM)

    def deal(self, generation: int = 1) -> SharedAuthority:
        shares, keys = deal(self.parameters, self.master, Quorum(), generation, RANDOM)
        return SharedAuthority(self.parameters, keys, shares)

    def install(
        self,
        dealt: SharedAuthority,
        *,
        share: AuthorityShare | None = None,
        owner: SigningKey | None = None,
        to: Identity | None = None,
        sealed_for: bytes | None = None,
        **fields: Any,
    ) -> int:
        """Hand the keeper a share, as the owner does but for what is given."""
        order = ShareOrder(
            self.collection,
            self.server,
            self.keeper.challenges.make(),
            dealt.parameters,
            dealt.verification,
        )
        signed = SignedOrder.sign(replace(order, **fields), owner or self.owner)
        content = (share or dealt.shares[self.server - 1]).encode()
        key = (to or self.keeper.shares.sealing).public
        sealed = key.seal(SHARE_PURPOSE, sealed_for or signed.hash, content)
        return self.send(signed.body, signed.signature, sealed)

    def send(self, body: bytes, signature: bytes, sealed: bytes) -> int:
        """Hand the keeper an order as it is."""
        claim = Claim(self.owner.public, self.collection)
        generation: int = self.keeper.shares.install(body, signature, sealed, claim)
        return generation


@pytest.fixture
def held(tmp_path: Path) -> Held:
    return Held(tmp_path)


def test_a_server_takes_a_share_from_its_owner_alone_and_for_itself_alone(held: Held) -> None:
    dealt = held.deal()
    stranger = SigningKey(SecretKey(b"s" * 32))
    other = set_up_shared(Quorum(), RANDOM)
    for expected, word, arguments in (
        (VerificationError, "signature", {"owner": stranger}),
        (VerificationError, "server 2", {"server": 2}),
        (VerificationError, "share of server 1 came", {"collection": bytes(16)}),
        (VerificationError, "not made by this server", {"challenge": bytes(32)}),
        (FormatError, "collection has not 16", {"collection": bytes(15)}),
        (FormatError, "challenge has not 32", {"challenge": bytes(31)}),
        (FormatError, "verification keys", {"parameters": other.parameters}),
        (FormatError, "verification keys", {"verification": other.verification}),
        (FormatError, "share of server 2", {"share": dealt.shares[1]}),
        (FormatError, "share", {"share": replace(dealt.shares[1], server=1)}),
        (FormatError, "share", {"share": other.shares[0]}),
        (FormatError, "generation", {"share": held.deal(2).shares[0]}),
        (RecordRefused, "share", {"to": Identity(SecretKey(b"x" * 32))}),
        (RecordRefused, "share", {"sealed_for": bytes(32)}),
    ):
        with pytest.raises(expected, match=word):
            held.install(dealt, **arguments)
        assert held.keeper.shares.generation == 0
        assert held.store.read_state("authority") is None
    order = ShareOrder(
        held.collection, 1, held.keeper.challenges.make(), dealt.parameters, dealt.verification
    )
    signed = SignedOrder.sign(order, held.owner)
    for body, signature in (
        (signed.body, bytes(64)),
        (signed.body, b""),
        (signed.body[:-1], signed.signature),
        (b"", signed.signature),
        (b"\xa0", held.owner.sign(labels.INSTALL_SHARE, b"\xa0")),
        (b"\xff", held.owner.sign(labels.INSTALL_SHARE, b"\xff")),
    ):
        with pytest.raises(VerificationError):
            held.send(body, signature, b"")
    assert held.install(dealt) == 1


def test_a_share_of_an_old_generation_does_not_come_back(held: Held) -> None:
    first, second = held.deal(1), held.deal(2)
    assert held.install(first) == 1
    with pytest.raises(VerificationError, match="generation 1 came after one of 1"):
        held.install(first)
    assert held.install(second) == 2
    held.store.close()
    held.keeper = held.open()
    for old in (first, second, held.deal(2)):
        with pytest.raises(VerificationError, match="came after one of 2"):
            held.install(old)
    assert held.install(held.deal(7)) == 7


def test_an_order_to_install_works_once_in_its_time(held: Held) -> None:
    dealt, now = held.deal(1), [time.time()]
    held.keeper.challenges._clock = lambda: now[0]
    challenge = held.keeper.challenges.make()
    now[0] += CHALLENGE_S + 2
    with pytest.raises(VerificationError, match="s old"):
        held.install(dealt, challenge=challenge)
    held.store.close()
    held.keeper = held.open()
    with pytest.raises(VerificationError, match="not made by this server"):
        held.install(dealt, challenge=challenge)


def test_a_store_that_moves_to_another_servers_key_is_refused_in_words(held: Held) -> None:
    held.install(held.deal())
    held.store.close()
    with pytest.raises(StorageError, match="damaged, or of another server's key") as caught:
        held.open(SecretKey(b"2" * 32))
    held.store.close()
    assert "server-key" in caught.value.cure
    assert held.open().shares.generation == 1


def test_a_damaged_share_is_refused_in_words_wherever_the_damage_is(held: Held) -> None:
    held.install(held.deal())
    state = held.store.read_state("authority")
    assert state is not None
    for at in range(0, len(state), 3):
        held.store.write_state("authority", state[:at] + bytes([state[at] ^ 1]) + state[at + 1 :])
        with pytest.raises(StorageError, match="share of the authority in this store is damaged"):
            AuthorityKeeper(1, held.seed, held.store, RANDOM)
    for damaged in (b"", b"\0", state[:-1], state + b"\0", b"\xa0"):
        held.store.write_state("authority", damaged)
        with pytest.raises(StorageError, match="share of the authority in this store is damaged"):
            AuthorityKeeper(1, held.seed, held.store, RANDOM)
    held.store.write_state("authority", state)
    assert AuthorityKeeper(1, held.seed, held.store, RANDOM).shares.generation == 1


def test_a_server_whose_share_is_of_another_server_does_not_start_to_issue(
    unshared: GrpcStage,
) -> None:
    """Server 2's folder with the share that server 1 keeps."""
    stage = unshared
    stage.share()
    stores = {server: stage.servers[server].runtime._store for server in (1, 2)}
    states = {server: store.read_state("authority") for server, store in stores.items()}
    assert states[1] is not None
    assert states[2] is not None
    stores[2].write_state("authority", states[1])
    stage.servers[2].stop()
    with pytest.raises(StorageError, match="of another server's key"):
        stage.servers[2].start()
    store = ObjectStore(stage.servers[2].data)
    store.write_state("authority", states[2])
    store.close()
    stage.servers[2].start()


# --- one corrupt server and one user --------------------------------------------------------------

#: A polynomial in unknown exponents: coefficients by the names multiplied, in order.
Polynomial = dict[tuple[str, ...], int]


def _poly(**terms: int) -> Polynomial:
    """Make a sum of products: names joined by ``_``, ``one`` for none."""
    return {() if n == "one" else tuple(sorted(n.split("_"))): c % R for n, c in terms.items()}


def _times(x: Polynomial, y: Polynomial) -> Polynomial:
    found: Polynomial = {}
    for a, c in x.items():
        for b, d in y.items():
            name = tuple(sorted(a + b))
            found[name] = (found.get(name, 0) + c * d) % R
    return found


def _spans(given: list[Polynomial], target: Polynomial) -> bool:
    """Tell whether ``target`` is a combination of ``given`` over the scalars."""
    rows: list[tuple[tuple[str, ...], Polynomial]] = []

    def reduced(poly: Polynomial) -> Polynomial:
        left = {name: c for name, c in poly.items() if c}
        for pivot, row in rows:
            if factor := left.get(pivot, 0):
                for name, c in row.items():
                    left[name] = (left.get(name, 0) - factor * c) % R
        return {name: c for name, c in left.items() if c}

    for poly in given:
        if left := reduced(poly):
            pivot = min(left)
            inverse = pow(left[pivot], -1, R)
            rows.append((pivot, {name: c * inverse % R for name, c in left.items()}))
    return not reduced(target)


@dataclass
class Known:
    """Exponents of what is held in G1 and in G2."""

    g1: list[Polynomial]
    g2: list[Polynomial]

    def opens(self, target: Polynomial) -> bool:
        """Tell whether products of pairings give ``target`` in GT."""
        return _spans([_times(x, y) for x in self.g1 for y in self.g2], target)


def _known_to_corrupt_server_and_user(held: tuple[str, ...], *, knows_t: bool = False) -> Known:
    """Give what server 1 and a user with ``held`` know of an authority and of one header.

    Unknown: a, the share al2 of server 2, its exponent t2, and the header's s, v, r.  Server 1
    knows its share, 5.
    """
    factor_1, factor_2 = lagrange([1, 2], R)
    alpha = {(): 5 * factor_1 % R, ("al2",): factor_2}
    policy = parse_policy("x AND y").at_epoch(1)
    program = SpanProgram.of(policy, R)
    columns = ["s", *(f"v{n}" for n in range(1, 9))]
    g1 = [_poly(one=1), _poly(a=1), _poly(hx=1), _poly(hy=1), _poly(he=1)]
    g2 = [_poly(one=1), alpha, _poly(al2=1), _poly(s=1)]
    for number, (row, name) in enumerate(zip(program.matrix, ("hx", "hy", "he"), strict=True)):
        lam: Polynomial = {(columns[c],): value % R for c, value in row.items()}
        r = f"r{number}"
        hidden = {tuple(sorted((name, r))): R - 1}
        g1.append({**_times(_poly(a=1), lam), **hidden})
        g2.append(_poly(**{r: 1}))
    # The honest server's part for what the user has, and the epoch.
    t2 = _poly(t2=1)
    g1.append({**_poly(al2=1), **_times(_poly(a=1), t2)})
    g1 += [_times(_poly(**{name: 1}), t2) for name in (*held, "he")]
    g2.append(t2)
    if knows_t:
        g1.append(_times(_poly(a=1), t2))
    return Known(g1, g2)


ALPHA_S: Polynomial = {
    ("s",): 5 * lagrange([1, 2], R)[0] % R,
    ("al2", "s"): lagrange([1, 2], R)[1],
}


def test_one_corrupt_server_and_one_user_do_not_reach_the_authoritys_secret() -> None:
    """In generic groups: nothing that they can combine is g1^alpha, or opens another policy."""
    target = _poly(al2=1)
    few = _known_to_corrupt_server_and_user(("hx",))
    assert not _spans(few.g1, target)
    assert not few.opens(ALPHA_S)
    # The same algebra finds what is there to be found: the user's own policy, and the secret if
    # the honest server's exponent were known.
    both = _known_to_corrupt_server_and_user(("hx", "hy"))
    assert both.opens(ALPHA_S)
    assert not _spans(both.g1, target)
    assert _spans(_known_to_corrupt_server_and_user(("hx",), knows_t=True).g1, target)


def test_a_corrupt_servers_share_and_a_members_part_open_nothing_that_the_member_may_not(
    stage: GrpcStage,
) -> None:
    user = stage.applicant("helper")
    signed = stage.credential(user, "role:analyst")
    parameters, share = held_share(stage.servers[1])
    honest = Request(
        stage.servers[2],
        user.profile.identity.public,
        signed,
        None,  # type: ignore[arg-type]
    ).honest()
    group = BLS12_381
    own = group.g1 ** reveal_scalar(share.secret)
    guess = group.multi_power([own, honest.key.k], lagrange([1, 2], R))
    assert group.pair([(guess, group.g2)]) != group.pair([(group.g1, parameters.public)])
    # Server 1 adds its part for whatever it likes; the honest part has fewer labels.
    forged = issue_partial(parameters, share, [parse_attribute(a) for a in QUALIFIED], 1, RANDOM)
    names = forged.key.components.keys() & honest.key.components.keys()
    factors = lagrange([1, 2], R)
    key = AttributeKey(
        parameters.authority,
        group.multi_power([forged.key.k, honest.key.k], factors),
        group.multi_power([forged.key.l, honest.key.l], factors),
        {
            name: group.multi_power(
                [forged.key.components[name], honest.key.components[name]], factors
            )
            for name in names
        },
    )
    with pytest.raises(NotQualified):
        open_group(stage, user, signed, key)
    extra = {n: c for n, c in forged.key.components.items() if n not in names}
    stretched = replace(key, components={**key.components, **extra})
    with pytest.raises(MksearchError, match="bundle"):
        open_group(stage, user, signed, stretched)


def test_the_key_of_the_whole_group_is_read_only_with_the_member_secret(stage: GrpcStage) -> None:
    """All servers together can make any key; a bundle needs what no server ever saw as well."""
    user = stage.applicant("outsider")
    signed = stage.credential(user, *QUALIFIED)
    with asked(stage, user, (1, 2, 3)) as servers:
        key = collect(stage, user, signed, servers)
    manifest = stage.servers[1].manifest
    group = manifest.group(POLICY.encode())
    assert group is not None
    assert group.bundle is not None
    with asked(stage, user, (1,)) as servers:
        sealed = read_whole(servers.connections[1], group.bundle.id, group.bundle.size)
    ring = EnrolledRing(
        user.profile.collection,
        user.profile.owner_key,
        key.authority,
        MemberSecrets(SecretKey(RANDOM.bytes(32)), key),
    )
    with pytest.raises(RecordRefused):
        ring.open(manifest, group, sealed)
    open_group(stage, user, signed, key)


def test_a_server_is_shown_a_credential_without_its_sealed_part(stage: GrpcStage) -> None:
    """Attributes, user id, serial and times; not what only members know."""
    user = stage.applicant("shown")
    signed = stage.credential(user, *QUALIFIED)
    shown: list[bytes] = []

    def heard(message: Message) -> Answer:
        shown.append(message.SerializeToString())
        return Answer()

    stage.servers[1].lie = heard
    try:
        user.enrol(signed.encode())
    finally:
        stage.servers[1].lie = None
    secret = read_credential(signed, user.profile.identity).member_secret.reveal()
    assert len(shown) == 1
    assert signed.body in shown[0]
    assert secret not in shown[0]
    assert signed.sealed[:64] not in shown[0]
    rest = shown[0].replace(signed.body, b"").replace(user.profile.identity.public.encode(), b"")
    assert len(rest) < 250
