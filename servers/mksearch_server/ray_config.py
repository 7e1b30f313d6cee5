"""The table ``[ray]`` of ``server.toml``: one operator's shards, on one host or many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from mksearch.errors import ParameterError
from mksearch.scoring.engine import AUTO, ENGINES

__all__ = ["RAY", "RAY_TEMPLATE", "RayConfig", "read_ray"]

#: Name of the engine.
RAY: Final = "ray"
_LOOPBACK: Final = ("127.0.0.1", "localhost")
_TLS: Final = ("certificate", "key", "authorities")
_PATHS: Final = ("store", "token", *_TLS)

RAY_TEMPLATE = """\

# Shards of engine = "ray" (pip install mksearch[cluster]).  docs/operations.md, Clusters.
# [ray]
# address = ""           # HOST:PORT of a cluster that runs; "" starts one on this host alone
# shards = 2             # ranges of rows, each on a process of its own
# replicas = 1           # of each shard, on as many hosts as there are
# engine = "cpu"         # of each shard: "cpu", "cuda", "auto" or "numpy"
# cpus = 1               # of each replica, also its threads
# gpus = 0               # of each replica
# place_s = 60           # seconds that replicas may take until they run
# store = "data"         # folder of the store, as every host finds it
# token = "ray-token"    # secret of the cluster, 0600; made where one is started
# certificate = "ray.crt"  # TLS between hosts; key and authorities as well
# key = "ray.key"
# authorities = "ray-authorities.crt"
"""


@dataclass(frozen=True, slots=True)
class RayConfig:
    """The table ``[ray]``.

    Attributes:
        address: HOST:PORT of a cluster that runs, "" to start one on this host.
        shards: ranges of rows, 1..1024.
        replicas: of each shard, 1..16.
        engine: of each shard.
        cpus: that each replica asks for, also its threads.
        gpus: that each replica asks for.
        place_s: seconds that replicas may take until they run.
        object_store_bytes: shared memory for answers on their way, of a cluster that is started.
        store: folder of the store as every host finds it, None for ``data`` of server.toml.
        token: file of the cluster's secret, None for ``ray-token`` beside server.toml.
        certificate: PEM file for TLS between hosts; None, as the next two, for none.
        key: PEM file of its private key.
        authorities: PEM file of who signs certificates of hosts.
    """

    address: str = ""
    shards: int = 2
    replicas: int = 1
    engine: str = "cpu"
    cpus: int = 1
    gpus: int = 0
    place_s: int = 60
    object_store_bytes: int = 1 << 29
    store: Path | None = None
    token: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    authorities: Path | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("shards", 1, 1024),
            ("replicas", 1, 16),
            ("cpus", 1, 1024),
            ("gpus", 0, 64),
            ("place_s", 1, 3600),
            ("object_store_bytes", 80 << 20, 1 << 40),
        ):
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise ParameterError(
                    f"ray.{name} = {value!r} is not a number in {low}..{high}",
                    cure="use a whole number in this range",
                )
        engines = (*ENGINES, AUTO)
        if self.engine not in engines:
            raise ParameterError(
                f"ray.engine = {self.engine!r} is not known",
                cure=f"use one of {', '.join(engines)}",
            )
        self._require_address()
        given = [name for name in _TLS if getattr(self, name) is not None]
        if given and len(given) < len(_TLS):
            raise ParameterError(
                f"[ray] names {', '.join(given)} without the others of {', '.join(_TLS)}",
                cure="name all three for TLS between hosts, or none",
            )

    def _require_address(self) -> None:
        """Raise ParameterError unless the address is one that may be joined as is said."""
        if self.address == "":
            return
        host, port = _host_and_port(self.address)
        if not host or not port.isdecimal() or not 0 < int(port) <= 65535:
            raise ParameterError(
                f"ray.address = {self.address!r} is not HOST:PORT",
                cure='write what "ray start --head" was given, such as 10.0.0.7:6379',
            )
        if host not in _LOOPBACK and self.certificate is None:
            raise ParameterError(
                f"ray.address = {self.address!r} is not a loopback host, and [ray] has no TLS",
                cure="name certificate, key and authorities: whoever reads the token on its way "
                "runs programs on every host of the cluster",
            )

    @property
    def is_local(self) -> bool:
        """Whether the cluster is of this host alone."""
        return not self.address or self.address.rpartition(":")[0] in _LOOPBACK

    @property
    def has_tls(self) -> bool:
        """Whether hosts speak TLS with each other."""
        return self.certificate is not None


def _host_and_port(address: object) -> tuple[str, str]:
    """Cut HOST:PORT; return "" twice for what is no text."""
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    return host, port


def read_ray(values: object, folder: Path) -> RayConfig:
    """Read the table ``[ray]``; the files are not looked at.

    Args:
        values: the table.
        folder: that its files are relative to.

    Raises:
        ParameterError: an unknown key, or a value out of range.
    """
    known = [field.name for field in fields(RayConfig)]
    if not isinstance(values, Mapping):
        raise ParameterError("ray is not a table", cure="begin it with [ray]")
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ParameterError(
            f"[ray] has unknown keys: {', '.join(unknown)}",
            cure=f"known keys are {', '.join(known)}",
        )
    settings: dict[str, Any] = dict(values)
    for name in _PATHS:
        if name in settings:
            if not isinstance(settings[name], str) or not settings[name]:
                raise ParameterError(
                    f"ray.{name} = {settings[name]!r} is not a text",
                    cure="write it in quotation marks",
                )
            settings[name] = folder / settings[name]
    return RayConfig(**settings)
