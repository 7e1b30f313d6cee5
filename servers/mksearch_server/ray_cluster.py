"""The cluster of one operator: started or joined, with replicas placed on its hosts.

The only importer of Ray.  Whoever has the cluster's token runs programs on all of its hosts, so a
cluster is one operator's, never shared between the servers of a collection.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
import signal
import socket
import stat
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from mksearch.errors import EngineUnavailable
from mksearch_server.ray_config import RayConfig
from mksearch_server.ray_shard import Shard

__all__ = ["RayCluster", "RayReplica"]

#: Seconds until an address that does not answer is given up.
_DIAL_S: Final = 5.0
_TOKEN_BYTES: Final = 32
#: Calls of one replica that run, and that wait.
_CALLS_RUNNING: Final = 4
_CALLS_WAITING: Final = 64
_LOOPBACK: Final = "127.0.0.1"
_TOKEN_NAME: Final = "ray-token"  # noqa: S105 - the name of a file


def _import_ray() -> Any:
    """Return the module Ray.

    Raises:
        EngineUnavailable: it is not installed, or cannot be loaded.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray
            import ray.util
            import ray.util.scheduling_strategies
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == "ray"
        reason = "is not installed" if is_missing else f"cannot be loaded ({_line(error)})"
        raise EngineUnavailable(
            f"engine 'ray' needs Ray, which {reason}", cure="install mksearch[cluster]"
        ) from None
    return ray


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


class RayReplica:
    """One actor; see ``ray_routing.Replica``."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        """Start a call."""
        future: Future[Any] = getattr(self.actor, method).remote(*arguments).future()
        return future


class RayCluster:
    """The connection of this process to its cluster; there can be one at a time."""

    def __init__(self, config: RayConfig, folder: Path) -> None:
        """Start the cluster of this host, or join the one that the settings name.

        Args:
            config: the settings.
            folder: of server.toml, for the token.

        Raises:
            EngineUnavailable: no Ray, no token, or no such cluster.
        """
        self._config = config
        self._groups: list[Any] = []
        self._actors: list[Any] = []
        self._folder = ""
        token = config.token or folder / _TOKEN_NAME
        _require_token(token, make=not config.address)
        _set_environment(config, token)
        if config.address:
            _require_answer(config.address)
        self._ray = _import_ray()
        with _own_signals(), _silence(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self._connect()
            except Exception as error:  # noqa: BLE001 - whatever Ray raises becomes one line
                self.close()
                raise _unavailable(config, token, error) from None

    def _connect(self) -> None:
        config = self._config
        settings: dict[str, Any] = {
            "namespace": "mksearch",
            "configure_logging": False,
            "log_to_driver": False,
        }
        if config.address:
            self._ray.init(address=config.address, **settings)
            return
        # Short, as names of sockets must be, and for this user alone.
        self._folder = tempfile.mkdtemp(prefix="mksearch-ray-")
        n_replicas = config.shards * config.replicas
        self._ray.init(
            address="local",
            num_cpus=n_replicas * config.cpus,
            num_gpus=n_replicas * config.gpus or None,
            object_store_memory=config.object_store_bytes,
            include_dashboard=False,
            _node_ip_address=_LOOPBACK,
            _temp_dir=self._folder,
            **settings,
        )

    @property
    def address(self) -> str:
        """HOST:PORT by which others join."""
        return str(self._ray.get_runtime_context().gcs_address)

    def place(self, config: RayConfig, segments: Path) -> list[list[RayReplica]]:
        """Start the replicas of every shard, on as many hosts as there are.

        Args:
            config: how many, and what each asks for.
            segments: folder of the segments, as every host finds it.

        Raises:
            EngineUnavailable: one finds no host with room in time.
        """
        ray = self._ray
        bundle = {"CPU": float(config.cpus)} | ({"GPU": float(config.gpus)} if config.gpus else {})
        # One group a shard: its replicas are on different hosts, where there are any.
        placed = ray.util.placement_group
        groups = [
            placed([bundle] * config.replicas, strategy="SPREAD") for _ in range(config.shards)
        ]
        self._groups += groups
        last_s = time.monotonic() + config.place_s
        for number, group in enumerate(groups):
            # It takes whole seconds.
            if not group.wait(math.ceil(max(0.0, last_s - time.monotonic()))):
                raise self._no_room(config, number)
        shard_class = ray.remote(Shard)
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        found = []
        for group in groups:
            actors = [
                shard_class.options(
                    num_cpus=config.cpus,
                    num_gpus=config.gpus,
                    max_restarts=-1,
                    max_task_retries=0,
                    max_concurrency=_CALLS_RUNNING,
                    max_pending_calls=_CALLS_WAITING,
                    scheduling_strategy=strategy(group, placement_group_bundle_index=number),
                ).remote(str(segments), config.engine, config.cpus)
                for number in range(config.replicas)
            ]
            self._actors += actors
            found.append([RayReplica(actor) for actor in actors])
        return found

    def _no_room(self, config: RayConfig, number: int) -> EngineUnavailable:
        have = self._ray.cluster_resources()
        gpus = f" and {config.gpus} GPUs" if config.gpus else ""
        return EngineUnavailable(
            f"engine 'ray': shard {number + 1} of {config.shards} found no room within "
            f"{config.place_s} s: {config.replicas} replicas with {config.cpus} CPUs{gpus} each, "
            f"in a cluster of {have.get('CPU', 0):g} CPUs and {have.get('GPU', 0):g} GPUs",
            cure="add hosts with ray start, or lower shards, replicas, cpus or gpus in [ray]",
        )

    def close(self) -> None:
        """End the replicas, and the cluster if it was started here."""
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for actor in self._actors:
                self._ray.kill(actor, no_restart=True)
            for group in self._groups:
                self._ray.util.remove_placement_group(group)
        self._actors, self._groups = [], []
        with suppress(Exception):
            self._ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _require_token(path: Path, *, make: bool) -> None:
    """Require the file of the cluster's token, for this user alone; make it where one is started.

    Raises:
        EngineUnavailable: it is missing or can be read by others.
    """
    try:
        if make and not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(_TOKEN_BYTES))
        mode = stat.S_IMODE(path.stat().st_mode)
        is_empty = not path.read_bytes().strip()
    except OSError as error:
        raise EngineUnavailable(
            f"engine 'ray': the token {path} cannot be read ({error.strerror})",
            cure="copy the file that the cluster was started with, chmod 600",
        ) from None
    if mode & 0o077 or is_empty:
        what = "is empty" if is_empty else f"can be read or changed by others (mode {mode:04o})"
        raise EngineUnavailable(
            f"engine 'ray': the token {path} {what}",
            cure="copy it anew, chmod 600; if others may have read it, start the cluster with a "
            "new one",
        )


def _set_environment(config: RayConfig, token: Path) -> None:
    """Say to Ray, which reads it from here alone, what this server's cluster is like."""
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token.resolve()),
        "RAY_USAGE_STATS_ENABLED": "0",
        # What it would do by itself in a later release, and warns of until then.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Processes that wait for tasks: there are none but the replicas.
        "RAY_prestart_worker_first_driver": "0",
        # Seconds, one try each, until a cluster that refuses or is silent is given up.
        "RAY_NUM_REDIS_GET_RETRIES": "5",
    }
    if config.is_local:
        # Else 127.0.0.1 would be replaced by an address that others reach.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ.pop("RAY_AUTH_TOKEN", None)
    os.environ.pop("RAY_ADDRESS", None)
    if config.has_tls:
        os.environ |= {
            "RAY_USE_TLS": "1",
            "RAY_TLS_SERVER_CERT": str(config.certificate),
            "RAY_TLS_SERVER_KEY": str(config.key),
            "RAY_TLS_CA_CERT": str(config.authorities),
        }
        for path in (config.certificate, config.key, config.authorities):
            if path is not None and not os.access(path, os.R_OK):
                raise EngineUnavailable(
                    f"engine 'ray': the TLS file {path} cannot be read",
                    cure="name certificate, key and authorities of this host in [ray]",
                )


def _require_answer(address: str) -> None:
    """Require that something listens at HOST:PORT: Ray itself would try for a long time.

    Raises:
        EngineUnavailable: nothing does.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _DIAL_S).close()
    except OSError as error:
        raise EngineUnavailable(
            f"engine 'ray': no cluster answers at {address} ({error.strerror or 'no answer'})",
            cure="start it with ray start --head, or correct address in [ray]",
        ) from None


def _unavailable(config: RayConfig, token: Path, error: Exception) -> EngineUnavailable:
    text = " ".join(f"{type(one).__name__}: {one}" for one in (error, error.__cause__))
    where = f"the cluster at {config.address}" if config.address else "a cluster of this host"
    if any(word in text.lower() for word in ("authenticat", "authtoken")):
        return EngineUnavailable(
            f"engine 'ray': {where} does not accept the token {token}",
            cure="copy the token that the cluster was started with, chmod 600",
        )
    cure = "see that ray start was run on this host with the same release of Ray, token and TLS"
    return EngineUnavailable(
        f"engine 'ray': {where} cannot be {'joined' if config.address else 'started'} "
        f"({_line(error)})",
        cure=cure if config.address else "see that there is memory, and room in /tmp and /dev/shm",
    )


@contextmanager
def _silence() -> Iterator[None]:
    """Keep off this program's log what Ray's compiled parts write to standard error as they start.

    What went wrong comes as an exception as well.
    """
    kept = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nothing)
        os.close(kept)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this program's handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
