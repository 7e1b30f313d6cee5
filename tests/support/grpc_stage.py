"""A collection whose servers run over gRPC in this process: quick to start, stop and look into."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
from numpy.typing import NDArray

from mksearch.access.credential import SignedCredential
from mksearch.crypto.randomness import SystemRandom
from mksearch.crypto.signature import SigningKey
from mksearch.index.geometry import LevelGeometry
from mksearch.index.manifest import Manifest
from mksearch.scoring.engine import make_engine
from mksearch.wire.v1 import authority_pb2, authority_pb2_grpc, owner_pb2_grpc, search_pb2_grpc
from mksearch_client.admin import Admin
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner
from mksearch_client.user import User
from mksearch_server import serve
from mksearch_server.authority_service import AuthorityServicer
from mksearch_server.certificates import CERTIFICATE_NAME, KEY_NAME, TlsConfig, create_tls
from mksearch_server.config import ServerConfig, write_config
from mksearch_server.identity import ServerIdentity, create_identity
from mksearch_server.service import InfoServicer, OwnerServicer, Runtime, SearchServicer
from mksearch_server.store import ObjectStore
from mksearch_server.tls import ServerTls, TlsInterceptor

__all__ = [
    "LIFE_S",
    "POLICY",
    "RANDOM",
    "CountingEngine",
    "GrpcServer",
    "GrpcStage",
    "corpus",
    "hit_ids",
    "staging",
    "until",
]

_T = TypeVar("_T")
RANDOM = SystemRandom()
LIFE_S = 86_400
#: Of the collection's second group.
POLICY = "role:analyst AND dept:finance"
_WAIT_S = 60.0


class CountingEngine:
    """The reference engine, which counts what it is asked for.

    Attributes:
        n_scores: passes so far.
    """

    name = "counting"

    def __init__(self) -> None:
        self._engine = make_engine("numpy")
        self.n_scores = 0

    def score(
        self, cells: NDArray[np.uint16], geometry: LevelGeometry, vectors: NDArray[np.uint16]
    ) -> NDArray[np.uint16]:
        self.n_scores += 1
        return self._engine.score(cells, geometry, vectors)


class _Heard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Remembers what comes with a call besides its messages."""

    def __init__(self, server: GrpcServer) -> None:
        self._server = server

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        names = tuple(sorted(map(tuple, handler_call_details.invocation_metadata)))
        self._server.heard.append((handler_call_details.method.rpartition("/")[2], names))
        return await continuation(handler_call_details)


class _Authority(AuthorityServicer):
    """The server's part of the authority, or what its dishonest operator makes of it."""

    def __init__(self, server: GrpcServer) -> None:
        super().__init__(server.runtime)
        self._server = server

    async def IssuePartialKey(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self._server.lie is None:
            return await super().IssuePartialKey(request, context)
        return self._server.lie(request)


class GrpcServer:
    """One server of a collection.

    Attributes:
        id: from 1.
        folder: key, token, store.
        address: HOST:PORT, the same after every start.
        token: claim token.
        engine: counts.
        runtime: what the services share; another one after every start.
        heard: short name and metadata of every call.
        tls: its files; to be changed while it is stopped.
        lie: given a request to enrol, gives the answer that is sent; None to be honest.
    """

    def __init__(self, folder: Path, server: int, loop: _Loop, *, tls: bool = False) -> None:
        self.tls = TlsConfig(folder / CERTIFICATE_NAME, folder / KEY_NAME) if tls else None
        self.id = server
        self.folder = folder
        self.address = "127.0.0.1:0"
        self.engine = CountingEngine()
        self.heard: list[tuple[str, tuple[tuple[str, ...], ...]]] = []
        self.lie: Callable[[authority_pb2.IssuePartialKeyRequest], Any] | None = None
        self._loop = loop
        self._server: Any = None
        folder.mkdir(parents=True)
        write_config(folder, server, self.address, tls=tls)
        tls_key = create_tls(folder, ["127.0.0.1"], request=False) if tls else b""
        self.token = create_identity(folder, tls_key)
        self.start()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def key(self) -> bytes:
        """The public key that signs its answers."""
        return SigningKey(self.runtime.identity.seed).public

    @property
    def manifest(self) -> Manifest:
        """What it serves."""
        active = self.runtime.search.active
        assert active is not None
        return active

    def start(self) -> None:
        """Open the store and serve."""
        config = ServerConfig(self.id, self.address, self.data, "numpy", folder=self.folder)
        store = ObjectStore(config.data, config.max_store_bytes)
        try:
            self.runtime = Runtime(config, store, ServerIdentity(self.folder, store), self.engine)
        except BaseException:
            store.close()
            raise
        self._loop.run(self._start())

    async def _start(self) -> None:
        guards = [TlsInterceptor()] if self.tls else []
        server = grpc.aio.server(
            options=serve._OPTIONS,
            interceptors=[*guards, _Heard(self), *serve.interceptors(self.runtime)],
        )
        for add, servicer in (
            (search_pb2_grpc.add_SearchServiceServicer_to_server, SearchServicer),
            (owner_pb2_grpc.add_OwnerServiceServicer_to_server, OwnerServicer),
            (owner_pb2_grpc.add_InfoServiceServicer_to_server, InfoServicer),
        ):
            add(servicer(self.runtime), server)  # type: ignore[no-untyped-call]
        add = authority_pb2_grpc.add_AuthorityServiceServicer_to_server
        add(_Authority(self), server)  # type: ignore[no-untyped-call]
        if self.tls is None:
            port = server.add_insecure_port(self.address)
        else:
            port = server.add_secure_port(self.address, ServerTls(self.tls).credentials())
        await server.start()
        self._server = server
        self.address = f"127.0.0.1:{port}"

    def stop(self) -> None:
        """End the server as a crash would: its memory is lost, its folder stays."""
        if self._server is not None:
            self._loop.run(self._server.stop(0))
            self._server = None
            self.runtime.close()

    def restart(self) -> None:
        self.stop()
        self.start()


class _Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_WAIT_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_WAIT_S)
        self._loop.close()


def corpus(path: Path, prefix: str, n_docs: int, text: str) -> Path:
    """Write documents ``prefix0`` .. as JSON lines; each has a word of its own."""
    lines = [
        json.dumps({"_id": f"{prefix}{n}", "title": "", "text": f"{text} {prefix}word{n}"})
        for n in range(n_docs)
    ]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


class GrpcStage:
    """Servers, an owner, an administration, users by name.

    Attributes:
        folder: for files.
        servers: by id.
        owner: published "open0".. without a policy and "closed0".. under ``POLICY``.
        admin: the administration.
        users: by name.
    """

    def __init__(
        self, folder: Path, n_servers: int = 3, collusion_bound: int = 1, *, tls: bool = False
    ) -> None:
        self.folder = folder
        self._loop = _Loop()
        self.servers = {
            server: GrpcServer(folder / f"server-{server}", server, self._loop, tls=tls)
            for server in range(1, n_servers + 1)
        }
        self.owner = Owner.create(
            folder / "owner",
            {server.address: server.token for server in self.servers.values()},
            name="test",
            collusion_bound=collusion_bound,
        )
        self.admin = Admin.create(self.owner.profile)
        self.users: dict[str, User] = {}
        self._tls = tls
        self._newcomers: list[GrpcServer] = []

    def publish(self, n_docs: int = 8) -> None:
        """Publish both groups and write the card."""
        for prefix, text, policy in (
            ("open", "apple pear garden", ""),
            ("closed", "apple budget secret", POLICY),
        ):
            self.owner.publish(
                [corpus(self.folder / f"{prefix}.jsonl", prefix, n_docs, text)],
                policy=policy,
                delete_missing=True,
            )
        (self.folder / "card").write_bytes(self.owner.card())

    def share(self) -> None:
        """Share the authority over the servers."""
        self.admin.share()
        self.owner.renew()

    def newcomer(self, server: int) -> GrpcServer:
        """Return a server that nobody has claimed, made for a place."""
        folder = self.folder / f"newcomer-{len(self._newcomers)}"
        made = GrpcServer(folder, server, self._loop, tls=self._tls)
        self._newcomers.append(made)
        return made

    def applicant(self, name: str) -> User:
        """Return a user who holds no credential."""
        return User.create(self.folder / f"user-{name}", self.folder / "card")

    def credential(self, user: User, *attributes: str) -> SignedCredential:
        return self.admin.issue(user.profile.identity.public, attributes, life_s=LIFE_S)

    def enrol(self, name: str, *attributes: str) -> User:
        """Return a user with these attributes, enrolled."""
        user = self.applicant(name)
        user.enrol(self.credential(user, *attributes).encode())
        self.users[name] = user
        return user

    def searcher(self, name: str) -> Searcher:
        return Searcher(self.folder / f"user-{name}")

    def id_of(self, name: str) -> str:
        """Return a user's id, hexadecimal."""
        return self.users[name].profile.identity.public.id.hex()

    def close(self) -> None:
        self.owner.close()
        for server in {*self.servers.values(), *self._newcomers}:
            server.stop()
        self._loop.close()


@contextmanager
def staging(
    folder: Path, n_servers: int = 3, collusion_bound: int = 1, *, tls: bool = False
) -> Iterator[GrpcStage]:
    """Run servers with an owner and an administration; nothing is published yet."""
    stage = GrpcStage(folder, n_servers, collusion_bound, tls=tls)
    try:
        yield stage
    finally:
        stage.close()


def until(holds: Callable[[], bool], within_s: float = 10.0) -> bool:
    """Wait until something holds; return whether it did in time."""
    last = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > last:
            return False
        time.sleep(0.02)
    return True


def hit_ids(hits: Sequence[Any]) -> list[str]:
    """Return the ids of hits."""
    return [hit.id for hit in hits]
