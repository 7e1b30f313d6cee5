"""Run one server until it is told to stop."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from mksearch.errors import StorageError
from mksearch.index.geometry import LevelGeometry
from mksearch.params import PANEL_UNIT
from mksearch.scoring.engine import make_engine
from mksearch.wire.v1 import authority_pb2_grpc, owner_pb2_grpc, search_pb2_grpc
from mksearch_server.authority_service import AuthorityServicer
from mksearch_server.config import ServerConfig
from mksearch_server.decoding import DecodingInterceptor
from mksearch_server.identity import ServerIdentity
from mksearch_server.log import log
from mksearch_server.memory import collecting
from mksearch_server.service import InfoServicer, OwnerServicer, Runtime, SearchServicer
from mksearch_server.store import ObjectStore

__all__ = ["open_runtime", "serve"]

#: Streams that one connection may have open.
_STREAMS_MAX = 256
_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", _STREAMS_MAX),
    # Ciphertext does not compress, and compressed sizes would leak.
    ("grpc.default_compression_algorithm", 0),
    # Owners ping during long uploads, to find out about a server that hangs.
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
)


def _lock(data: Path) -> None:
    """Keep a second process out of the store as long as this one lives.

    Raises:
        StorageError: one is in it, or the folder cannot be made.
    """
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Never closed: the lock goes with the process, however that ends.
        fcntl.flock(
            os.open(data / "lock", os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX | fcntl.LOCK_NB
        )
    except BlockingIOError:
        raise StorageError(
            f"another server uses the store in {data}", cure="stop it, or name another folder"
        ) from None
    except OSError as error:
        raise StorageError(
            f"the store in {data} cannot be opened ({error.strerror})",
            cure="check its permissions, or name another folder as data in server.toml",
        ) from None


def open_runtime(config: ServerConfig) -> Runtime:
    """Open store and identity of a server.

    Raises:
        StorageError: either is missing or damaged.
        VerificationError: the active version is damaged.
    """
    _lock(config.data)
    store = ObjectStore(config.data, config.max_store_bytes)
    identity = ServerIdentity(config.folder, store)
    engine = make_engine(config.engine)
    # Loads the compiled loops, so that the first query does not wait for them.
    geometry = LevelGeometry(PANEL_UNIT, PANEL_UNIT)
    zeros = np.zeros((8, geometry.width), np.uint16)
    # As mapped files are: compiled code tells apart arrays that may not be written.
    zeros.flags.writeable = False
    for n_vectors in (1, len(zeros)):
        engine.score(zeros, geometry, zeros[:n_vectors])
    return Runtime(config, store, identity, engine)


async def serve(config: ServerConfig, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then let running requests end.

    Args:
        config: of this server.
        ready: called with the address once requests are answered.

    Raises:
        StorageError: the store is damaged, or the port is in use.
    """
    runtime = open_runtime(config)
    server = grpc.aio.server(options=_OPTIONS, interceptors=[DecodingInterceptor()])
    search_pb2_grpc.add_SearchServiceServicer_to_server(SearchServicer(runtime), server)  # type: ignore[no-untyped-call]
    owner_pb2_grpc.add_OwnerServiceServicer_to_server(OwnerServicer(runtime), server)  # type: ignore[no-untyped-call]
    owner_pb2_grpc.add_InfoServiceServicer_to_server(InfoServicer(runtime), server)  # type: ignore[no-untyped-call]
    authority_pb2_grpc.add_AuthorityServiceServicer_to_server(AuthorityServicer(runtime), server)  # type: ignore[no-untyped-call]
    checks = health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    host, _, _ = config.listen.rpartition(":")
    try:
        port = server.add_insecure_port(config.listen)
    except RuntimeError:
        port = 0
    if port == 0:
        runtime.close()
        raise StorageError(
            f"{config.listen} cannot be listened on",
            cure="another program uses the port; stop it or change listen in server.toml",
        )
    await server.start()
    await checks.set("", health_pb2.HealthCheckResponse.SERVING)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    log.info("server %d listens on %s:%d, version %d", config.id, host, port, runtime.version)
    ready(f"{host}:{port}")
    tidying = [loop.create_task(collecting()), loop.create_task(runtime.sweeping())]
    await stopping.wait()
    for task in tidying:
        task.cancel()
    log.info("stopping: %d s for running requests", config.drain_s)
    await checks.enter_graceful_shutdown()
    await server.stop(config.drain_s)
    runtime.close()
