"""Run one server until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from mksearch.errors import StorageError
from mksearch.scoring.engine import device_of
from mksearch.wire.v1 import authority_pb2_grpc, owner_pb2_grpc, search_pb2_grpc
from mksearch_server.admin import AdminServer
from mksearch_server.authority_service import AuthorityServicer
from mksearch_server.calls import CountingInterceptor
from mksearch_server.certificates import TlsFiles
from mksearch_server.config import ServerConfig
from mksearch_server.decoding import DecodingInterceptor
from mksearch_server.engines import close_engine, open_engine, shard_health
from mksearch_server.identity import ServerIdentity
from mksearch_server.log import log_event
from mksearch_server.memory import collecting
from mksearch_server.preflight import (
    require_clock,
    require_gpu,
    require_own_store,
    require_private,
)
from mksearch_server.running import StoreLock
from mksearch_server.service import InfoServicer, OwnerServicer, Runtime, SearchServicer
from mksearch_server.storage import open_store
from mksearch_server.tls import ServerTls, TlsInterceptor
from mksearch_server.warming import load_loops

__all__ = ["interceptors", "open_runtime", "serve"]

#: Streams that one connection may have open.
_STREAMS_MAX = 256
#: Seconds between two signs of life of the event loop.
_BEAT_S = 1.0
#: Seconds that connections without requests get at the end, to hear of their last answers.
_LAST_S = 0.2
#: Seconds that calls which were cut get to let go.
_CUT_S = 5.0
_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", _STREAMS_MAX),
    # Ciphertext does not compress, and compressed sizes would leak.
    ("grpc.default_compression_algorithm", 0),
    # Owners ping during long uploads, to find out about a server that hangs.
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
)


def open_runtime(config: ServerConfig) -> Runtime:
    """Open store and identity of a server.

    Raises:
        StorageError: either is missing or damaged.
        VerificationError: the active version is damaged.
        EngineUnavailable: the engine that is named cannot be used here.
    """
    require_private(config)
    store = open_store(config)
    try:
        identity = ServerIdentity(config.folder, store)
        require_own_store(store, identity)
        engine = open_engine(config)
        try:
            load_loops(engine)
        except BaseException:
            close_engine(engine)
            raise
    except BaseException:
        store.close()
        raise
    return Runtime(config, store, identity, engine)


async def serve(config: ServerConfig, ready: Callable[[str, str, str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then let running requests end.

    Args:
        config: of this server.
        ready: called with the address, that of health and metrics ("" for none), and what the
            engine runs on, once requests are answered.

    Raises:
        StorageError: the store or the TLS files are damaged, the store is in use, or a port is.
    """
    require_gpu()
    if config.tls is not None:
        require_clock(TlsFiles.read(config.tls).certificate.begins_s)
    tls = None if config.tls is None else ServerTls(config.tls)
    lock = StoreLock(config.data)
    runtime = open_runtime(config)
    if tls is not None:
        runtime.metrics.gauge(
            "mksearch_certificate_expiry_seconds",
            "Seconds until the TLS certificate expires, negative afterwards",
            lambda: tls.ends_s - time.time(),
        )
    try:
        server, port = _listening(config, runtime, tls)
        admin = _administering(config, runtime)
    except StorageError:
        runtime.close()
        raise
    checks = health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    await server.start()
    await checks.set("", health_pb2.HealthCheckResponse.SERVING)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    host, _, _ = config.listen.rpartition(":")
    address = f"{host}:{port}"
    log_event(
        "serving",
        server=config.id,
        address=address,
        transport="without TLS" if tls is None else "with TLS 1.3",
        version=runtime.version,
    )
    working = (collecting(), runtime.sweeping(), runtime.following_peers())
    background = [loop.create_task(work) for work in working]
    if admin is not None:
        background.append(loop.create_task(_beating(admin)))
        log_event("admin-listening", address=admin.address)
        lock.note(admin.address)
        admin.is_ready = True
    runtime.warm()
    ready(address, "" if admin is None else admin.address, device_of(runtime.engine))
    await stopping.wait()
    for task in background:
        task.cancel()
    if admin is not None:
        admin.is_ready = False
    await _drain(config, runtime, server, checks)
    runtime.close()
    if admin is not None:
        admin.close()
    log_event("stopped")


def interceptors(runtime: Runtime) -> list[grpc.aio.ServerInterceptor]:  # type: ignore[type-arg]
    """Return what every call of a server passes, in this order."""
    return [CountingInterceptor(runtime.calls), DecodingInterceptor()]


def _listening(
    config: ServerConfig, runtime: Runtime, tls: ServerTls | None
) -> tuple[grpc.aio.Server, int]:
    """Return a server with the product's services, and its port.

    Raises:
        StorageError: the port is in use.
    """
    guards = [] if tls is None else [TlsInterceptor()]
    passed = [*guards, *interceptors(runtime)]
    server = grpc.aio.server(options=_OPTIONS, interceptors=passed)
    search_pb2_grpc.add_SearchServiceServicer_to_server(SearchServicer(runtime), server)  # type: ignore[no-untyped-call]
    owner_pb2_grpc.add_OwnerServiceServicer_to_server(OwnerServicer(runtime), server)  # type: ignore[no-untyped-call]
    owner_pb2_grpc.add_InfoServiceServicer_to_server(InfoServicer(runtime), server)  # type: ignore[no-untyped-call]
    authority_pb2_grpc.add_AuthorityServiceServicer_to_server(AuthorityServicer(runtime), server)  # type: ignore[no-untyped-call]
    try:
        if tls is None:
            port = server.add_insecure_port(config.listen)
        else:
            port = server.add_secure_port(config.listen, tls.credentials())
    except RuntimeError:
        port = 0
    if port == 0:
        raise StorageError(
            f"{config.listen} cannot be listened on",
            cure="another program uses the port; stop it or change listen in server.toml",
        )
    return server, port


def _administering(config: ServerConfig, runtime: Runtime) -> AdminServer | None:
    if not config.admin_listen:
        return None

    def trouble() -> tuple[bool, str]:
        shards = shard_health(runtime.engine)
        return (False, "") if shards is None else (bool(shards.lost), shards.text())

    return AdminServer(config.admin_listen, runtime.metrics.text, config.admin_hosts, trouble)


async def _beating(admin: AdminServer) -> None:
    """Show that the event loop turns, until cancelled."""
    while True:
        admin.beat()
        await asyncio.sleep(_BEAT_S)


async def _drain(
    config: ServerConfig, runtime: Runtime, server: grpc.aio.Server, checks: Any
) -> None:
    """Refuse further requests, let those under way end, then stop.

    Connections stay meanwhile: who asks is told at once to go elsewhere.
    """
    runtime.calls.is_draining = True
    log_event("draining", seconds=config.drain_s)
    await checks.enter_graceful_shutdown()
    is_idle = await runtime.calls.idle(config.drain_s)
    await server.stop(_LAST_S if is_idle else None)
    # What was cut lets go of what it had begun, while the threads for that are there.
    await runtime.calls.idle(_CUT_S)
