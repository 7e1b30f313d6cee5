"""Case 13: certificates.  One line names host and cause, and never is plaintext sent instead."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from mksearch.crypto.certificate import key_fingerprint, self_signed_certificate
from mksearch.crypto.evidence import NONCE_BYTES
from mksearch.errors import (
    InputError,
    MksearchError,
    NotEnoughAnswers,
    OtherTlsKey,
    ParameterError,
    ServerUnreachable,
    TlsRefused,
)
from mksearch.wire.v1 import owner_pb2
from mksearch_client.client_files import GivenFiles
from mksearch_client.connection import GrpcConnection
from mksearch_client.member import Searcher, connect_to
from mksearch_client.owner import Owner
from mksearch_client.owner_backup import servers_at
from mksearch_client.profile import Profile
from mksearch_client.profile_folder import ServerEntry
from mksearch_client.timestamp import TimestampFile, renew_by_timestamp
from mksearch_client.trust import ClientFiles, TlsTrust
from mksearch_client.user_profile import Card
from mksearch_server.certificates import TlsConfig, renew_certificate
from mksearch_server.tls import ServerTls
from tests.support.certificates import Authority, new_key
from tests.support.grpc_stage import RANDOM, GrpcServer, GrpcStage, staging, until

HOST = "127.0.0.1"
DAY_S = 86_400


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcStage]:
    with staging(tmp_path_factory.mktemp("tls"), tls=True) as made:
        made.publish()
        yield made


class Changing:
    """A server whose certificate a test changes; it presents the new one from then on."""

    def __init__(self, server: GrpcServer) -> None:
        assert server.tls is not None
        self.server = server
        self.files: TlsConfig = server.tls
        self.key = self.files.key.read_bytes()

    def present(self, certificate: bytes, key: bytes | None = None) -> None:
        if key is not None:
            self.files.key.write_bytes(key)
        self.files.certificate.write_bytes(certificate)

    def self_signed(self, host: str = HOST, shift_s: int = 0, key: bytes | None = None) -> bytes:
        now_s = int(time.time()) + shift_s
        return self_signed_certificate(key or self.key, [host], RANDOM, now_s)

    def connection(self, files: ClientFiles | None = None) -> GrpcConnection:
        return connect_of(self.server, TlsTrust(key_fingerprint(self.key), files))


@pytest.fixture
def changing(stage: GrpcStage) -> Iterator[Changing]:
    made = Changing(stage.servers[1])
    before = {path: path.read_bytes() for path in (made.files.certificate, made.files.key)}
    yield made
    for path, data in before.items():
        path.write_bytes(data)


def connect_of(server: GrpcServer, trust: TlsTrust, address: str = "") -> GrpcConnection:
    key = server.runtime.identity.signer.public
    return GrpcConnection(
        server.id, address or server.address, key, RANDOM, timeout_s=5.0, tls=trust
    )


def refused(connection: GrpcConnection, *parts: str, kind: type[MksearchError] = TlsRefused) -> str:
    """Ask for a manifest; require a refusal of one line that names the address and ``parts``."""
    try:
        with pytest.raises(kind) as caught:
            connection.manifest()
    finally:
        connection.close()
    line = caught.value.message
    assert "\n" not in str(caught.value)
    for part in (connection.address, *parts):
        assert part in line
    assert caught.value.cure
    assert caught.value.server == connection.server
    return line


# --- what works ----------------------------------------------------------------------------------


def test_owner_and_users_search_enrol_and_publish_over_tls(stage: GrpcStage) -> None:
    stage.share()
    stage.enrol("alice", "role:analyst", "dept:finance")

    with stage.searcher("alice") as searcher:
        hits = searcher.search("apple budget").hits
    assert {hit.id[:6] for hit in hits} >= {"closed"}
    assert all(status.status == "ok" for status in stage.owner.status()[1])


def test_profile_and_card_pin_the_key_that_the_token_carried(stage: GrpcStage) -> None:
    card = Card.read(stage.folder / "card")
    profile = Profile.open(stage.folder / "owner")

    for server, running in stage.servers.items():
        assert running.tls is not None
        pinned = key_fingerprint(running.tls.key.read_bytes())
        assert running.token.partition(".")[2] == pinned.hex()
        for entry in (card.servers[server], profile.servers[server]):
            assert entry.tls is not None
            assert entry.tls.key == pinned


def test_a_card_of_before_tls_is_read_and_a_damaged_pin_is_not_taken_for_none(
    stage: GrpcStage, tmp_path: Path
) -> None:
    fields = json.loads((stage.folder / "card").read_text())
    card = tmp_path / "card"
    for pin in ("00" * 31, "zz" * 32, "", 5, None):
        fields["servers"][0]["tls_key"] = pin
        card.write_text(json.dumps(fields))
        with pytest.raises(InputError, match="is damaged"):
            Card.read(card)
    for server in fields["servers"]:
        del server["tls_key"]
    card.write_text(json.dumps(fields))
    assert all(entry.tls is None for entry in Card.read(card).servers.values())


def test_a_running_server_warns_once_a_day_of_a_certificate_that_ends_soon(
    changing: Changing, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing.present(changing.self_signed(shift_s=-390 * DAY_S))
    now_s = time.monotonic()
    monkeypatch.setattr("mksearch_server.tls.time.monotonic", lambda: now_s)
    tls = ServerTls(changing.files)
    tls._changed()
    assert caplog.text.count("good for 6 more days") == 1
    now_s += DAY_S + 1
    for _ in range(2):
        tls._changed()
    assert caplog.text.count("good for 6 more days") == 2


def test_a_pinned_server_on_another_machine_may_be_dialled_and_no_other() -> None:
    trust = TlsTrust(bytes(32))
    for address in ("search.example.org:7101", "192.0.2.1:7101", "[2001:db8::1]:7101"):
        GrpcConnection(1, address, bytes(32), RANDOM, tls=trust).close()
        with pytest.raises(ParameterError, match="no TLS key is pinned"):
            GrpcConnection(1, address, bytes(32), RANDOM)
    for address in ("search.example.org", "a b:1", "::1:7101", "host:0", "host:65536", "u@h:1"):
        with pytest.raises(ParameterError, match=re.escape(repr(address))):
            GrpcConnection(1, address, bytes(32), RANDOM, tls=trust)


def test_a_server_that_moved_is_found_by_its_keys(stage: GrpcStage) -> None:
    entries = Profile.open(stage.folder / "owner").servers
    moved = {s: replace(entry, address=f"{HOST}:1") for s, entry in entries.items()}

    found = servers_at(moved, [entries[3].address], 5.0)
    assert found == moved | {3: entries[3]}
    strange = {s: replace(e, tls=TlsTrust(bytes([s]) * 32)) for s, e in entries.items()}
    with pytest.raises(MksearchError, match="none of the keys"):
        servers_at(strange, [entries[3].address], 5.0)


# --- case 13: what is wrong with a certificate ---------------------------------------------------


def test_an_expired_certificate_is_refused_with_both_times(changing: Changing) -> None:
    changing.present(changing.self_signed(shift_s=-398 * DAY_S))

    line = refused(changing.connection(), "expired at", "here")
    assert len(re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", line)) == 2


def test_a_certificate_that_is_not_valid_yet_is_refused_with_both_times(
    changing: Changing,
) -> None:
    # As of a server whose clock is half a day ahead, or seen by a client that is as far behind.
    changing.present(changing.self_signed(shift_s=DAY_S // 2))

    line = refused(changing.connection(), "valid from", "here")
    assert len(re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", line)) == 2


def test_clocks_that_differ_by_minutes_do_no_harm(changing: Changing) -> None:
    changing.present(changing.self_signed(shift_s=300))

    connection = changing.connection()
    assert connection.manifest()
    connection.close()


def test_a_certificate_for_another_name_is_refused(changing: Changing) -> None:
    changing.present(changing.self_signed("other.example.org"))

    refused(changing.connection(), "is for other.example.org", f"not for {HOST}")


def test_another_servers_certificate_is_refused(stage: GrpcStage, changing: Changing) -> None:
    other = stage.servers[2].tls
    assert other is not None
    changing.present(other.certificate.read_bytes(), other.key.read_bytes())

    refused(changing.connection(), "another server's certificate", kind=OtherTlsKey)


def test_only_a_certificate_of_the_profiles_authorities_is_accepted(
    changing: Changing, tmp_path: Path
) -> None:
    ours, theirs = Authority.new(), Authority.new()
    GivenFiles(authorities=_written(tmp_path / "ca", ours.certificate)).keep(tmp_path)
    files = ClientFiles(tmp_path)

    refused(changing.connection(files), "not signed by the authorities")
    changing.present(theirs.sign(changing.key, [HOST]))
    refused(changing.connection(files), "not signed by the authorities")

    changing.present(ours.sign(changing.key, [HOST]))
    connection = changing.connection(files)
    assert connection.manifest()
    connection.close()


def test_damaged_files_of_a_profile_are_named(changing: Changing, tmp_path: Path) -> None:
    (tmp_path / "authorities.crt").write_text("no certificate")

    with pytest.raises(MksearchError, match=r"authorities\.crt, client\.crt or client\.key"):
        changing.connection(ClientFiles(tmp_path)).manifest()


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


# --- case 13: never plaintext, never less than 1.3 -----------------------------------------------


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Let ``answer`` talk to whoever connects; give the address."""
    listener = socket.create_server((HOST, 0))
    threads: list[threading.Thread] = []

    def talk(peer: socket.socket) -> None:
        with peer, suppress(OSError):
            peer.settimeout(5.0)
            answer(peer)

    def serve() -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                threads.append(threading.Thread(target=talk, args=(peer,), daemon=True))
                threads[-1].start()

    accepting = threading.Thread(target=serve, daemon=True)
    accepting.start()
    try:
        yield f"{HOST}:{listener.getsockname()[1]}"
    finally:
        # A listener that is only closed would not wake the thread that accepts.
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(10.0)
        for thread in threads:
            thread.join(10.0)


def test_a_server_without_tls_is_refused_and_gets_nothing_but_a_greeting(
    stage: GrpcStage,
) -> None:
    received: list[bytes] = []

    def answer(peer: socket.socket) -> None:
        received.append(peer.recv(1 << 16))
        # What gRPC without TLS begins with: its settings.
        peer.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        received[-1] += peer.recv(1 << 16)

    server = stage.servers[1]
    with answering(answer) as address:
        refused(connect_of(server, TlsTrust(bytes(32)), address), "answers without TLS", "pinned")
    assert received
    for data in received:
        # A record of the TLS handshake and at most an alert, never the preface of HTTP/2.
        assert data[0] == 0x16
        assert b"HTTP" not in data


def test_a_server_that_goes_without_tls_later_is_refused(tmp_path: Path) -> None:
    with staging(tmp_path, tls=True) as stage:
        stage.publish(2)
        for server in stage.servers.values():
            server.stop()
            server.tls = None
            server.start()
            server.heard.clear()
        with (
            Searcher(stage.folder / "owner", timeout_s=5.0) as searcher,
            pytest.raises(NotEnoughAnswers) as caught,
        ):
            searcher.search("apple")
        for server in stage.servers.values():
            assert f"{server.address}: it answers without TLS" in caught.value.message
            assert server.heard == []


def _old_tls(server: GrpcServer) -> ssl.SSLContext:
    assert server.tls is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.tls.certificate, server.tls.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def test_a_server_below_tls_1_3_is_refused(stage: GrpcStage) -> None:
    server = stage.servers[1]
    context = _old_tls(server)

    def answer(peer: socket.socket) -> None:
        with context.wrap_socket(peer, server_side=True) as secured:
            secured.recv(1)

    trust = stage.owner.profile.servers[1].tls
    assert trust is not None
    with answering(answer) as address:
        refused(connect_of(server, trust, address), "does not speak TLS 1.3")


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + payload


def _call(address: str, version: ssl.TLSVersion, path: bytes, request: bytes) -> bytes:
    """Call a method over exactly this version of TLS; return what comes back."""

    def field(name: bytes, value: bytes) -> bytes:
        return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value

    fields = {
        b":method": b"POST", b":scheme": b"https", b":path": path, b":authority": b"x",
        b"te": b"trailers", b"content-type": b"application/grpc",
    }  # fmt: skip
    block = b"".join(field(*pair) for pair in fields.items())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    received = b""
    with (
        socket.create_connection((host, int(port)), 5.0) as plain,
        context.wrap_socket(plain) as secured,
    ):
        secured.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b"") + _frame(1, 4, 1, block)
            + _frame(0, 1, 1, b"\0" + len(request).to_bytes(4, "big") + request)
        )  # fmt: skip
        last = time.monotonic() + 10.0
        while b"grpc-status" not in received and time.monotonic() < last:
            received += secured.recv(1 << 16)
    return received


def test_a_client_below_tls_1_3_is_refused_by_the_server(stage: GrpcStage) -> None:
    server = stage.servers[3]
    path = b"/mksearch.wire.v1.InfoService/GetInfo"

    request = owner_pb2.GetInfoRequest(nonce=bytes(NONCE_BYTES)).SerializeToString()

    old = _call(server.address, ssl.TLSVersion.TLSv1_2, path, request)
    new = _call(server.address, ssl.TLSVersion.TLSv1_3, path, request)

    assert b"this server speaks TLS 1.3 only" in old
    assert b"this server speaks TLS 1.3 only" not in new
    public = server.runtime.identity.signer.public
    assert public in new
    assert public not in old


# --- case 13: somebody in between ----------------------------------------------------------------


def test_who_shows_the_true_certificate_first_and_then_answers_himself_is_refused(
    stage: GrpcStage,
) -> None:
    server = stage.servers[1]
    key = new_key()
    evil = self_signed_certificate(key, [HOST], RANDOM, int(time.time()))
    host, _, port = server.address.rpartition(":")
    heard: list[bytes] = []
    n_peers = 0

    def answer(peer: socket.socket) -> None:
        nonlocal n_peers
        n_peers += 1
        if n_peers == 1:
            _relay(peer, host, int(port))
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(stage.folder / "evil.crt", stage.folder / "evil.key")
        context.set_alpn_protocols(["h2"])
        with suppress(ssl.SSLError), context.wrap_socket(peer, server_side=True) as secured:
            heard.append(secured.recv(1 << 16))

    (stage.folder / "evil.crt").write_bytes(evil)
    (stage.folder / "evil.key").write_bytes(key)
    trust = stage.owner.profile.servers[1].tls
    assert trust is not None
    with answering(answer) as address:
        refused(connect_of(server, trust, address), "another server's", kind=OtherTlsKey)
    assert n_peers >= 2
    assert not any(b"mksearch" in data for data in heard)


def _relay(peer: socket.socket, host: str, port: int) -> None:
    """Carry bytes both ways until either side ends."""
    with socket.create_connection((host, port), 5.0) as target:

        def carry(source: socket.socket, sink: socket.socket) -> None:
            with suppress(OSError):
                while data := source.recv(1 << 16):
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)

        back = threading.Thread(target=carry, args=(target, peer), daemon=True)
        back.start()
        carry(peer, target)
        back.join(5.0)


def test_a_claim_token_is_not_shown_to_another_server(tmp_path: Path) -> None:
    with staging(tmp_path / "stage", tls=True) as stage:
        for server in stage.servers.values():
            server.heard.clear()
        tokens = {server.address: f"{'0' * 32}.{'1' * 64}" for server in stage.servers.values()}
        with pytest.raises(OtherTlsKey, match="another server's certificate"):
            Owner.create(tmp_path / "new", tokens)
        assert all(server.heard == [] for server in stage.servers.values())


@pytest.mark.parametrize("printed", ["abc.zz", "abc.1234", "abc."])
def test_a_damaged_claim_token_makes_nothing(tmp_path: Path, printed: str) -> None:
    tokens = {f"{HOST}:{port}": printed for port in (1, 2, 3)}

    with pytest.raises(ParameterError, match="claim token is damaged"):
        Owner.create(tmp_path / "owner", tokens)
    assert not (tmp_path / "owner").exists()


def test_an_owner_who_was_interrupted_still_knows_the_key_of_a_token_that_is_gone(
    tmp_path: Path,
) -> None:
    with staging(tmp_path / "stage", tls=True) as stage:
        keys = {s.address: s.token.partition(".")[2] for s in stage.servers.values()}
        # No such token: the claim is refused after the pins were kept.
        wrong = {address: f"{'0' * 32}.{key}" for address, key in keys.items()}
        with pytest.raises(MksearchError, match="another owner"):
            Owner.create(tmp_path / "new", wrong)
        # Without a token there is still TLS, where before the server would be dialled without.
        with pytest.raises(MksearchError, match="another owner"):
            Owner.create(tmp_path / "new", dict.fromkeys(keys, ""))


# --- case 13: client certificates ----------------------------------------------------------------


@pytest.fixture
def demanding(tmp_path: Path) -> Iterator[tuple[GrpcStage, Authority]]:
    """Servers that, after they were claimed, demand a client certificate."""
    authority = Authority.new()
    with staging(tmp_path / "stage", tls=True) as stage:
        stage.publish(2)
        for server in stage.servers.values():
            assert server.tls is not None
            path = _written(server.folder / "clients.crt", authority.certificate)
            server.stop()
            server.tls = TlsConfig(server.tls.certificate, server.tls.key, path)
            server.start()
        yield stage, authority


def _client(folder: Path, authority: Authority) -> GivenFiles:
    folder.mkdir()
    key = new_key()
    return GivenFiles(
        certificate=_written(folder / "crt", authority.sign(key)), key=_written(folder / "key", key)
    )


def test_servers_that_demand_a_client_certificate_let_in_only_who_has_one(
    demanding: tuple[GrpcStage, Authority], tmp_path: Path
) -> None:
    stage, authority = demanding
    profile = stage.folder / "owner"

    def connection() -> GrpcConnection:
        return connect_to(Profile.open(profile).servers[1], 5.0)

    refused(connection(), "lets in clients with a certificate only", "has none")

    _client(tmp_path / "stranger", Authority.new()).keep(profile)
    refused(connection(), "refuses the client certificate")

    late = Authority("authority", authority.key, days=-1)
    _client(tmp_path / "late", late).keep(profile)
    refused(connection(), "refuses the client certificate")

    _client(tmp_path / "right", authority).keep(profile)
    with Searcher(profile, timeout_s=5.0) as searcher:
        assert searcher.search("apple").hits


def test_a_timestamp_file_pins_the_servers_and_presents_what_lies_beside_it(
    demanding: tuple[GrpcStage, Authority], tmp_path: Path
) -> None:
    stage, authority = demanding
    _client(tmp_path / "owner", authority).keep(stage.folder / "owner")
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    for folder in (alone, beside):
        folder.mkdir()
    with Owner(stage.folder / "owner") as owner:
        owner.draw_timestamp_key(alone / "renewals.key")
    (beside / "renewals.key").write_bytes((alone / "renewals.key").read_bytes())
    _client(tmp_path / "given", authority).keep(beside)

    renewed = renew_by_timestamp(TimestampFile.read(beside / "renewals.key", None))
    assert [server.status for server in renewed.servers] == ["ok"] * 3
    with pytest.raises(MksearchError, match="lets in clients with a certificate only"):
        renew_by_timestamp(TimestampFile.read(alone / "renewals.key", None))
    file = TimestampFile.read(beside / "renewals.key", None)
    other = ServerEntry(1, file.servers[1].address, file.servers[1].key, TlsTrust(bytes(32)))
    wrong = replace(file, servers={**file.servers, 1: other})
    statuses = [server.status for server in renew_by_timestamp(wrong).servers]
    assert statuses[0] != "ok"
    assert statuses[1:] == ["ok", "ok"]


def test_a_client_certificate_needs_its_key(tmp_path: Path) -> None:
    authority = Authority.new()
    given, other = (_client(tmp_path / name, authority) for name in ("one", "two"))
    tmp = tmp_path / "profile"
    tmp.mkdir()

    with pytest.raises(ParameterError, match="go together"):
        GivenFiles(certificate=given.certificate).keep(tmp)
    with pytest.raises(MksearchError, match="is not for the key"):
        GivenFiles(certificate=given.certificate, key=other.key).keep(tmp)
    with pytest.raises(MksearchError, match="holds no certificate"):
        GivenFiles(authorities=given.key).keep(tmp)
    assert list(tmp.iterdir()) == []
    given.keep(tmp)
    assert (tmp / "client.key").stat().st_mode & 0o777 == 0o600


# --- renewing ------------------------------------------------------------------------------------


def _presented(address: str) -> bytes:
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((host, int(port)), 5.0) as plain,
        context.wrap_socket(plain) as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


def test_certificates_are_renewed_while_searches_run_and_none_fails(stage: GrpcStage) -> None:
    before = {s: _presented(server.address) for s, server in stage.servers.items()}
    failures: list[BaseException] = []
    counts = [0, 0]
    is_over = threading.Event()

    def search(number: int) -> None:
        try:
            with Searcher(stage.folder / "owner", timeout_s=20.0) as searcher:
                while not is_over.is_set():
                    found = searcher.search("apple")
                    assert {s.status for s in found.servers} <= {"ok", "unused"}, found.servers
                    counts[number] += 1
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=search, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    try:
        assert until(lambda: min(counts) >= 1 or bool(failures), 60.0)
        for server in stage.servers.values():
            assert server.tls is not None
            renew_certificate(server.tls, [], request=False)
        seen = list(counts)
        assert until(
            lambda: bool(failures) or all(n > m for n, m in zip(counts, seen, strict=True)), 60.0
        )
    finally:
        is_over.set()
        for thread in threads:
            thread.join(60.0)
    assert failures == []
    for s, server in stage.servers.items():
        assert _presented(server.address) != before[s]
    with Searcher(stage.folder / "owner") as fresh:
        assert fresh.search("apple").hits


def test_a_client_that_stays_goes_on_after_a_restart_with_a_new_certificate(
    tmp_path: Path,
) -> None:
    with staging(tmp_path, tls=True) as stage:
        stage.publish(2)
        server = stage.servers[1]
        assert server.tls is not None
        connection = connect_to(stage.owner.profile.servers[1])
        first = connection.manifest()
        renew_certificate(server.tls, [], request=False)
        server.restart()
        assert connection.manifest() == first
        connection.close()


def test_files_that_do_not_go_together_leave_the_old_certificate(changing: Changing) -> None:
    before = _presented(changing.server.address)

    changing.present(changing.self_signed(key=new_key()))
    assert _presented(changing.server.address) == before
    changing.present(b"half of it")
    assert _presented(changing.server.address) == before
    changing.present(changing.self_signed())
    assert _presented(changing.server.address) != before


def test_nobody_waits_for_a_server_that_hangs_in_the_handshake(stage: GrpcStage) -> None:
    is_over = threading.Event()

    def hang(_peer: socket.socket) -> None:
        is_over.wait(30.0)

    with answering(hang) as address:
        connection = connect_of(stage.servers[1], TlsTrust(bytes(32)), address)
        errors: list[BaseException] = []

        def ask() -> None:
            try:
                connection.manifest()
            except MksearchError as error:
                errors.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.2)
        started = time.monotonic()
        connection.close()
        thread.join(30.0)
        waited_s = time.monotonic() - started
        is_over.set()
    assert waited_s < 4.0
    assert [type(error) for error in errors] == [ServerUnreachable]
