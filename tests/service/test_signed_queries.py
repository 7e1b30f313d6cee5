"""Queries that members sign: what no member signed, or signed for another place or time, costs a
server nothing, and which member asks does not show."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from mksearch.crypto.randomness import SystemRandom
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.tickets import TicketSigner
from mksearch.errors import MksearchError, ServerRefused, ServerUnreachable
from mksearch.messages import RecordRequest, ScoreRequest, Ticket
from mksearch.params import MAX_RECORDS
from mksearch.query.answer import Attempt
from mksearch.query.group import GroupView
from mksearch.query.trapdoor import make_trapdoor, parse_question
from mksearch.wire import convert
from mksearch.wire.v1 import search_pb2
from mksearch_client.admin import Admin
from mksearch_client.connection import GrpcConnection
from mksearch_client.member import Searcher, connect
from mksearch_client.opening import OpenVersion
from mksearch_client.owner import Owner
from mksearch_client.refusals import ServerBusy
from mksearch_client.user import User
from mksearch_server.gate import CLOCK_S, QueryGate
from mksearch_server.status import BusyError
from tests.support.grpc_stage import LIFE_S, GrpcServer, GrpcStage, corpus, hit_ids, staging, until
from tests.support.processes import claim, serving

MEMBER = ("role:analyst", "dept:finance")
RANDOM = SystemRandom()


@dataclass
class Asker:
    """A member who asks one server what they like.

    Attributes:
        server: asked.
        connection: to it.
        opened: what the member can open.
    """

    server: GrpcServer
    connection: GrpcConnection
    opened: OpenVersion

    @property
    def view(self) -> GroupView:
        return self.opened.views[-1]

    def score(self, query: str = "budget") -> ScoreRequest:
        """Make a request for sums, not signed."""
        manifest = self.opened.signed.manifest
        trapdoor = make_trapdoor(self.view, parse_question(self.view, query))
        segment = self.view.segments[0]
        attempt = Attempt(segment, trapdoor, manifest.quorum, RANDOM, version=manifest.version)
        return attempt.request(self.server.id)

    def records(self) -> RecordRequest:
        """Make a request for record slots, not signed."""
        segment = self.view.segments[0]
        width = segment.slots.shape.width
        version = self.opened.signed.manifest.version
        return RecordRequest(version, segment.id, np.arange(2), width, RANDOM.bytes(16))

    def signed(
        self, request: Any, *, off_s: int = 0, server: int = 0, signer: TicketSigner | None = None
    ) -> Any:
        own = signer or TicketSigner(self.view.bundle.search)
        ticket = own.sign(server or self.server.id, request, int(time.time()) + off_s)
        return replace(request, ticket=ticket)

    def ask(self, request: Any) -> Any:
        if isinstance(request, ScoreRequest):
            return self.connection.score(request)
        return self.connection.records(request)


@contextmanager
def asking(stage: GrpcStage, name: str, server: int = 1) -> Iterator[Asker]:
    with stage.searcher(name) as searcher:
        opened = searcher.refresh()
    connections = connect(stage.users[name].profile)
    yield Asker(stage.servers[server], connections[server], opened)
    for connection in connections.values():
        connection.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcStage]:
    """A collection of two groups and two members of both; it stays in epoch 1."""
    with staging(tmp_path_factory.mktemp("signed")) as made:
        made.publish()
        made.enrol("ann", *MEMBER)
        made.enrol("bob", *MEMBER, "city:oslo")
        yield made


@pytest.fixture
def asker(stage: GrpcStage) -> Iterator[Asker]:
    with asking(stage, "ann") as made:
        yield made


class Work:
    """Counts what a server does for requests: passes of the engine, and slots looked for."""

    def __init__(self, server: GrpcServer) -> None:
        self._server = server
        self._n_slots = 0
        search = server.runtime.search
        original = search._slots_for

        def counted(request: RecordRequest) -> Any:
            self._n_slots += 1
            return original(request)

        search._slots_for = counted  # type: ignore[method-assign]

    def __call__(self) -> tuple[int, int]:
        return self._server.engine.n_scores, self._n_slots


# --- refused before any work ----------------------------------------------------------------------

KINDS = pytest.mark.parametrize("kind", ["score", "records"])
Spoil = Callable[[Asker, Any], Any]


def _foreign(asker: Asker, request: Any) -> Any:
    return asker.signed(request, signer=TicketSigner(SecretKey(RANDOM.bytes(32))))


def _other_group(asker: Asker, request: Any) -> Any:
    other = asker.opened.views[0]
    assert other is not asker.view
    return asker.signed(request, signer=TicketSigner(other.bundle.search))


def _group_key(asker: Asker, request: Any) -> Any:
    """Sign with another key of the right bundle."""
    return asker.signed(request, signer=TicketSigner(asker.view.bundle.mask))


def _changed(asker: Asker, request: Any) -> Any:
    signed = asker.signed(request)
    if isinstance(request, ScoreRequest):
        shares = request.shares.copy()
        shares[0, 3] = (int(shares[0, 3]) + 1) % 65521
        return replace(signed, shares=shares)
    return replace(signed, slots=request.slots[::-1].copy())


SPOILED: dict[str, tuple[Spoil, str]] = {
    "unsigned": (lambda _asker, request: replace(request, query_id=b""), "no member signed"),
    "foreign key": (_foreign, "signature"),
    "key of another group": (_other_group, "signature"),
    "another key of the bundle": (_group_key, "signature"),
    "from the future": (lambda a, r: a.signed(r, off_s=CLOCK_S + 30), "ahead of"),
    "from the past": (lambda a, r: a.signed(r, off_s=-CLOCK_S - 30), "behind"),
    "for another server": (lambda a, r: a.signed(r, server=2), "signature"),
    "changed": (_changed, "signature"),
    "signature of zeros": (
        lambda _a, r: replace(r, ticket=Ticket(int(time.time()), bytes(64))),
        "signature",
    ),
    "short signature": (
        lambda _a, r: replace(r, ticket=Ticket(int(time.time()), bytes(63))),
        "63 bytes",
    ),
}


@KINDS
@pytest.mark.parametrize("spoiled", SPOILED)
def test_what_no_member_signed_for_here_and_now_is_refused_before_any_work(
    asker: Asker, kind: str, spoiled: str
) -> None:
    spoil, word = SPOILED[spoiled]
    request = getattr(asker, kind)()
    bad = spoil(asker, request)
    if isinstance(bad, ScoreRequest) and not bad.query_id:
        bad = replace(bad, query_id=RANDOM.bytes(16))
    work = Work(asker.server)
    before = work()
    with pytest.raises(ServerRefused, match=word) as caught:
        asker.ask(bad)
    assert caught.value.detail_code in ("not-verified", "invalid-parameter")
    assert work() == before
    # The honest request of the same id passes afterwards.
    asker.ask(asker.signed(request))
    assert work() != before


@KINDS
def test_a_request_that_comes_twice_is_called_a_replay_and_costs_nothing(
    asker: Asker, kind: str
) -> None:
    work = Work(asker.server)
    request = asker.signed(getattr(asker, kind)())
    asker.ask(request)
    before = work()
    for _ in range(3):
        with pytest.raises(ServerRefused, match="a replay"):
            asker.ask(request)
    # Signed anew, the id is the old one still.
    with pytest.raises(ServerRefused, match="a replay"):
        asker.ask(asker.signed(replace(request, ticket=None), off_s=1))
    assert work() == before
    # Another connection, another member: the same.
    other = GrpcConnection(
        1, asker.server.address, asker.server.runtime.identity.signer.public, RANDOM
    )
    with pytest.raises(ServerRefused, match="a replay"):
        replace(asker, connection=other).ask(request)
    other.close()


def test_a_query_signed_for_one_server_is_worth_nothing_at_another(stage: GrpcStage) -> None:
    with asking(stage, "ann", 1) as one, asking(stage, "ann", 2) as two:
        request = one.signed(one.score())
        one.ask(request)
        work = Work(two.server)
        before = work()
        with pytest.raises(ServerRefused, match="signature"):
            two.ask(request)
        assert work() == before


def test_a_restarted_server_has_forgotten_which_queries_it_saw_and_nothing_else(
    tmp_path: Path,
) -> None:
    with staging(tmp_path) as stage:
        stage.publish(3)
        stage.enrol("ann", *MEMBER)
        with asking(stage, "ann") as asker:
            request, late = asker.signed(asker.records()), asker.signed(asker.records(), off_s=-110)
            for one in (request, late):
                asker.ask(one)
            asker.server.restart()
            asker.server.runtime.gate._clock = lambda: time.time() + 15
            assert until(lambda: _answers(asker, request))
            with pytest.raises(ServerRefused, match="a replay"):
                asker.ask(request)
            with pytest.raises(ServerRefused, match="behind"):
                asker.ask(late)


def _answers(asker: Asker, request: Any) -> bool:
    try:
        asker.ask(request)
    except ServerUnreachable:
        return False
    return True


def test_requests_that_are_too_large_are_refused_before_any_work(asker: Asker) -> None:
    work = Work(asker.server)
    before = work()
    request = asker.score()
    wide = replace(request, shares=np.zeros((1, request.shares.shape[1] + 1), np.uint16))
    huge = replace(request, shares=np.zeros((4, 1 << 20), np.uint16))
    for bad in (wide, huge):
        with pytest.raises(ServerRefused):
            asker.ask(asker.signed(bad))
    records = asker.records()
    for slots in (np.zeros(MAX_RECORDS + 1, np.int64), np.array([1 << 40])):
        with pytest.raises(ServerRefused) as caught:
            asker.ask(asker.signed(replace(records, slots=slots)))
        assert caught.value.detail_code == "invalid-parameter"
    long_id = replace(records, query_id=bytes(17))
    with pytest.raises(ServerRefused, match="17 bytes"):
        asker.ask(asker.signed(long_id))
    assert work() == before


def test_an_unsigned_query_is_refused_at_its_head_whatever_would_follow(asker: Asker) -> None:
    """A client that announces a share and sends it piece by piece is heard no further."""
    head = next(iter(convert.score_request_messages(asker.score()))).head
    n_asked = 0

    def messages() -> Iterator[search_pb2.ScoreRequest]:
        nonlocal n_asked
        yield search_pb2.ScoreRequest(head=head)
        for _ in range(2000):
            n_asked += 1
            yield search_pb2.ScoreRequest(shares=bytes(1 << 20))

    with pytest.raises(grpc.RpcError) as caught:
        list(asker.connection._search.Score(messages(), timeout=20.0))
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    # What flow control lets go before the refusal is back, and no more.
    assert n_asked < 200


def test_the_key_of_an_old_epoch_is_refused(tmp_path: Path) -> None:
    with staging(tmp_path) as stage:
        stage.publish()
        stage.enrol("stays", *MEMBER)
        stage.enrol("goes", *MEMBER)
        with asking(stage, "goes") as old:
            old.ask(old.signed(old.score()))
            stage.admin.revoke(users=[stage.id_of("goes")])
            stage.owner.renew()
            version = stage.servers[1].manifest.version
            work = Work(old.server)
            before = work()
            for request in (old.score(), old.records()):
                for late in (request, replace(request, version=version)):
                    with pytest.raises(ServerRefused, match=r"signature|is not served here"):
                        old.ask(old.signed(late))
            assert work() == before
        with asking(stage, "stays") as new:
            new.ask(new.signed(new.score()))
            new.ask(new.signed(new.records()))


# --- busy -----------------------------------------------------------------------------------------


def test_an_honest_retry_after_busy_is_not_called_a_replay(asker: Asker) -> None:
    runtime = asker.server.runtime
    submit, n_refused = runtime._batcher.submit_all, 0

    async def busy_at_first(requests: Sequence[ScoreRequest]) -> Any:
        nonlocal n_refused
        if n_refused < 3:
            n_refused += 1
            raise BusyError("full", retry_after_ms=5)
        return await submit(requests)

    runtime._batcher.submit_all = busy_at_first  # type: ignore[method-assign]
    try:
        request = asker.signed(asker.score())
        asker.ask(request)
    finally:
        del runtime._batcher.submit_all
    assert n_refused == asker.connection.n_busy == 3
    with pytest.raises(ServerRefused, match="a replay"):
        asker.ask(request)


def test_records_refused_for_want_of_room_may_be_asked_for_again(asker: Asker) -> None:
    sending = asker.server.runtime.sending
    held, sending.n_held_bytes = sending.n_held_bytes, 1 << 40
    connection = GrpcConnection(
        1,
        asker.server.address,
        asker.server.runtime.identity.signer.public,
        RANDOM,
        timeout_s=0.5,
    )
    impatient = replace(asker, connection=connection)
    requests = [asker.signed(asker.records()), asker.signed(asker.score())]
    for request in requests:
        with pytest.raises(ServerBusy):
            impatient.ask(request)
    connection.close()
    sending.n_held_bytes = held
    for request in requests:
        asker.ask(request)


def test_a_gate_without_room_says_busy_and_searches_go_on_elsewhere(stage: GrpcStage) -> None:
    runtime = stage.servers[1].runtime
    before, runtime.gate = runtime.gate, QueryGate(1, ids_max=2)
    try:
        with asking(stage, "ann") as asker:
            connection = GrpcConnection(
                1, asker.server.address, runtime.identity.signer.public, RANDOM, timeout_s=0.5
            )
            impatient = replace(asker, connection=connection)
            work = Work(asker.server)
            for _ in range(2):
                impatient.ask(asker.signed(asker.score()))
            counted = work()
            for _ in range(2):
                with pytest.raises(ServerBusy, match="2 queries came within"):
                    impatient.ask(asker.signed(asker.score()))
            assert work() == counted
            assert len(runtime.gate._seen) == 2
            connection.close()
        with Searcher(stage.folder / "user-ann", timeout_s=1.0) as searcher:
            result = searcher.search("budget", 3)
        assert len(result.hits) == 3
        assert {report.id: report.status for report in result.servers}[1] == "refused"
    finally:
        runtime.gate = before


def test_thousands_of_refused_queries_leave_no_memory_behind(tmp_path: Path) -> None:
    """On a server process: unsigned ones, forged ones, and heads without an end."""
    with serving(tmp_path, engine="numpy") as fleet:
        profile = claim(fleet, tmp_path / "owner")
        admin = Admin.create(profile)
        with Owner(profile) as owner:
            owner.publish([corpus(tmp_path / "docs.jsonl", "doc", 40, "apple pear")])
            (tmp_path / "card").write_bytes(owner.card())
        user = User.create(tmp_path / "user", tmp_path / "card")
        user.enrol(admin.issue(user.profile.identity.public, ["a"], life_s=LIFE_S).encode())
        with Searcher(user.profile) as searcher:
            opened = searcher.refresh()
            assert searcher.search("apple").hits
        connections = connect(user.profile)
        asker = Asker(fleet[1], connections[1], opened)  # type: ignore[arg-type]
        forger = TicketSigner(SecretKey(RANDOM.bytes(32)))

        def refuse(times: int) -> None:
            for number in range(times):
                request = asker.score("apple") if number % 2 else asker.records()
                bad = request if number % 4 < 2 else asker.signed(request, signer=forger)
                if bad.ticket is None and isinstance(bad, RecordRequest):
                    bad = replace(bad, query_id=b"")
                with pytest.raises(ServerRefused):
                    asker.ask(bad)

        refuse(400)
        before = fleet[1].memory_bytes()
        refuse(1600)
        assert until(lambda: fleet[1].memory_bytes() < before + (4 << 20)), (
            fleet[1].memory_bytes() - before
        )
        # Honest members are not hindered by it.
        with Searcher(user.profile) as searcher:
            assert searcher.search("apple").hits
        for connection in connections.values():
            connection.close()


# --- groups without an administration -------------------------------------------------------------


def test_without_an_administration_nobody_signs_and_everybody_is_answered(tmp_path: Path) -> None:
    with staging(tmp_path) as stage:
        # The collection of another owner's profile that never made one.
        (stage.owner.profile.folder / "administration").unlink()
        stage.owner.publish([corpus(tmp_path / "docs.jsonl", "doc", 6, "apple pear")])
        assert stage.servers[1].manifest.access is None
        seen: list[search_pb2.GetRecordsRequest] = []
        with Searcher(stage.owner.profile.folder) as searcher:
            opened = searcher.refresh()
            search = searcher._connections[1]._search  # type: ignore[attr-defined]
            ask = search.GetRecords

            def heard(message: search_pb2.GetRecordsRequest, timeout: float) -> Any:
                seen.append(message)
                return ask(message, timeout=timeout)

            for connection in searcher._connections.values():
                connection._search.GetRecords = heard  # type: ignore[attr-defined]
            assert hit_ids(searcher.search("docword3").hits) == ["doc3"]
        assert [(m.query_id, m.time, m.signature) for m in seen] == [(b"", 0, b"")]
        connections = connect(stage.owner.profile)
        asker = Asker(stage.servers[1], connections[1], opened)
        for _ in range(2):
            asker.ask(asker.score("apple"))
            asker.ask(replace(asker.records(), query_id=b""))
        for connection in connections.values():
            connection.close()


# --- which member asks ----------------------------------------------------------------------------


def test_two_members_sign_alike_byte_for_byte(stage: GrpcStage) -> None:
    with asking(stage, "ann") as ann, asking(stage, "bob") as bob:
        now_s = int(time.time())

        def sent(request: ScoreRequest | RecordRequest) -> list[bytes]:
            if isinstance(request, RecordRequest):
                return [convert.record_request_message(request).SerializeToString()]
            return [m.SerializeToString() for m in convert.score_request_messages(request)]

        asked: list[ScoreRequest | RecordRequest] = [ann.score(), ann.records()]
        for request in asked:
            tickets = [asker.view.ticket(1, request, now_s) for asker in (ann, bob)]
            assert tickets[0] == tickets[1]
            assert tickets[0] is not None
            own = [sent(replace(request, ticket=ticket)) for ticket in tickets]
            assert own[0] == own[1]
        assert ann.view.bundle.encode() == bob.view.bundle.encode()
    ids = [user.profile.identity.public.id for user in stage.users.values()]
    assert len(set(ids)) == len(ids)


def test_what_comes_with_a_search_is_the_same_for_two_members(stage: GrpcStage) -> None:
    """Calls in their order, metadata and sizes: nothing depends on who asks."""
    views = []
    for name in ("ann", "bob", "ann"):
        with stage.searcher(name) as searcher:
            searcher.search("budget secret", 3)
            for server in stage.servers.values():
                server.heard.clear()
            result = searcher.search("budget secret", 3)
            calls = {s: sorted(server.heard) for s, server in stage.servers.items()}
            views.append((calls, result.bytes_sent, result.bytes_received, result.rounds))
    assert views[0] == views[1] == views[2]
    heard = {names for calls in (views[0][0],) for found in calls.values() for _, names in found}
    assert all([name for name, _ in names] == ["user-agent"] for names in heard)


def test_query_ids_are_fresh_for_every_attempt_and_every_request(asker: Asker) -> None:
    assert len({asker.score().query_id for _ in range(100)}) == 100


def test_a_member_of_one_group_cannot_ask_the_other(stage: GrpcStage) -> None:
    if "carl" not in stage.users:
        stage.enrol("carl", "role:analyst")
    with asking(stage, "carl") as carl, asking(stage, "ann") as ann:
        assert len(carl.opened.views) == 1
        for request in (ann.score(), ann.records()):
            with pytest.raises(MksearchError, match="signature"):
                carl.ask(carl.signed(request))
            ann.ask(ann.signed(request))
