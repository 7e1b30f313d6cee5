"""The file ``server.toml``: every setting with its unit, and nothing else."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from mksearch.errors import MksearchError, ParameterError
from mksearch.params import N_SERVERS_MAX
from mksearch.scoring.engine import AUTO, ENGINES
from mksearch_server.bucket_config import BUCKET_TEMPLATE, BucketConfig, read_bucket
from mksearch_server.certificates import (
    CERTIFICATE_NAME,
    KEY_NAME,
    TLS_TEMPLATE,
    TlsConfig,
    read_tls,
)
from mksearch_server.log import LOG_FORMATS
from mksearch_server.oidc_config import OIDC_TEMPLATE, OidcConfig, read_oidc
from mksearch_server.peer_address import LOOPBACK, PeerAddress
from mksearch_server.ray_config import RAY, RAY_TEMPLATE, RayConfig, read_ray

__all__ = [
    "CONFIG_NAME",
    "ServerConfig",
    "dialled_host",
    "is_loopback",
    "load_config",
    "write_config",
]

CONFIG_NAME = "server.toml"
#: Hosts that stand for all of a machine's addresses, and are none to dial.
_ANY = ("0.0.0.0", "[::]")  # noqa: S104 - named, not listened on
_HOST = re.compile(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")

_TEMPLATE = """\
# Settings of one mksearch server.  Check with: mksearch-server check-config --config FILE

# Evaluation point of this server, 1..255; every server of a collection has another.
id = {id}

# HOST:PORT.  Without [tls] only loopback hosts are accepted.  Port 0 takes a free one.
listen = "{listen}"

# Folder of the store, relative to this file.
data = "data"

# "cpu" (compiled, all cores), "cuda" (all NVIDIA GPUs of this host), "auto" (GPUs if there are any
# that work, else cpu), "ray" (shards on processes of their own, on one host or many: see [ray])
# or "numpy" (reference, slow).
engine = "cpu"

# Threads of the engine; 0 takes all cores.
threads = 0

# Score requests that may wait; more are refused with a hint when to try again.
max_waiting = 64

# Largest size of the store in bytes.
max_store_bytes = 1099511627776

# Seconds that running requests get when the server is told to stop.
drain_s = 10

# Seconds that the version before is still served once another is active.
grace_s = 60

# HOST:PORT of health and metrics over plain HTTP, for this machine alone: loopback only, unless
# admin_hosts names what collectors on the operator's own network call this server.
# Off while it is not set.  Port 0 takes a free one, and the log names it.
{admin}

# Other servers of the collection, HOST:PORT=FINGERPRINT (mksearch-server status prints it there as
# tls_key).  A version that this one missed is fetched from them; they are asked every peers_s s.
# peers = ["b.example.org:7101=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"]
# peers_s = 60

# "text", or "json" with one object a line.
log_format = "{log_format}"
"""
_NO_ADMIN = """\
# admin_listen = "127.0.0.1:9101"
# admin_hosts = ["server-1.internal"]\
"""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Settings of one server.

    Attributes:
        id: evaluation point, 1..255.
        listen: HOST:PORT, a loopback host where there is no TLS.
        data: folder of the store.
        engine: name of the engine.
        threads: of the engine, 0 for all cores.
        max_waiting: score requests that may wait.
        max_store_bytes: largest size of the store.
        drain_s: seconds that running requests get at the end.
        grace_s: seconds that the version before is still served.
        admin_listen: HOST:PORT of health and metrics, "" for off; a loopback host unless
            ``admin_hosts`` names any.
        admin_hosts: names and addresses that health and metrics may be asked for by, besides
            loopback; none for this machine alone.
        peers: other servers of the collection, which versions that were missed come from.
        peers_s: seconds between two looks at what they serve.
        log_format: "text" or "json".
        ray: shards of the engine "ray", None for the defaults.
        oidc: issuer whose ID tokens count, None for none.
        s3: bucket for the objects, None for ``data``.
        tls: files of key and certificate, None for a server on loopback that goes without.
        folder: of server.toml, key and claim token; no setting of the file.
    """

    id: int
    listen: str
    data: Path
    engine: str = "cpu"
    threads: int = 0
    max_waiting: int = 64
    max_store_bytes: int = 1 << 40
    drain_s: int = 10
    grace_s: int = 60
    admin_listen: str = ""
    admin_hosts: tuple[str, ...] = ()
    peers: tuple[PeerAddress, ...] = ()
    peers_s: int = 60
    log_format: str = "text"
    ray: RayConfig | None = None
    oidc: OidcConfig | None = None
    tls: TlsConfig | None = None
    s3: BucketConfig | None = None
    folder: Path = Path()

    def __post_init__(self) -> None:
        for name, low, high in (
            ("id", 1, N_SERVERS_MAX),
            ("threads", 0, 1024),
            ("max_waiting", 1, 100_000),
            ("max_store_bytes", 1 << 20, 1 << 46),
            ("drain_s", 0, 3600),
            ("grace_s", 0, 86_400),
            ("peers_s", 1, 86_400),
        ):
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise ParameterError(
                    f"{name} = {value!r} is not a number in {low}..{high}",
                    cure="use a whole number in this range",
                )
        engines = (*ENGINES, AUTO, RAY)
        if self.engine not in engines:
            raise ParameterError(
                f"engine = {self.engine!r} is not known", cure=f"use one of {', '.join(engines)}"
            )
        if self.log_format not in LOG_FORMATS:
            raise ParameterError(
                f"log_format = {self.log_format!r} is not known",
                cure=f"use one of {', '.join(LOG_FORMATS)}",
            )
        self._require_admin()
        if not _is_address(self.listen):
            raise ParameterError(
                f"listen = {self.listen!r} is not HOST:PORT",
                cure="write a name or address and a port, such as 127.0.0.1:7101 or [::1]:7101",
            )
        if self.tls is None and not is_loopback(self.listen):
            raise ParameterError(
                f"listen = {self.listen!r} is not a loopback host, and there is no [tls]",
                cure="add [tls] to server.toml (mksearch-server init writes it), or listen on "
                "127.0.0.1 or [::1]",
            )

    def _require_admin(self) -> None:
        """Raise ParameterError unless health and metrics may be asked for as is said."""
        if self.admin_listen == "":
            return
        if not _is_address(self.admin_listen):
            raise ParameterError(
                f"admin_listen = {self.admin_listen!r} is not a loopback host and port",
                cure="write 127.0.0.1 or [::1] and a port, such as 127.0.0.1:9101",
            )
        if not self.admin_hosts and not is_loopback(self.admin_listen):
            raise ParameterError(
                f"admin_listen = {self.admin_listen!r} is not a loopback host and port",
                cure="health and metrics are for this machine alone: use 127.0.0.1 or [::1]; or "
                "list in admin_hosts what collectors on your own network call this server",
            )


def is_loopback(listen: str) -> bool:
    """Tell whether HOST:PORT is of this machine alone."""
    return listen.rpartition(":")[0] in LOOPBACK


def dialled_host(listen: str) -> str:
    """Return the host of HOST:PORT as clients dial it, "" where it stands for all addresses."""
    host = listen.rpartition(":")[0]
    return "" if host in _ANY else host.strip("[]")


def _is_address(address: object) -> bool:
    """Tell whether something is HOST:PORT."""
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    return bool(_HOST.fullmatch(host)) and port.isdecimal() and int(port) <= 65535


def write_config(
    folder: Path,
    server_id: int,
    listen: str,
    *,
    tls: bool = False,
    admin: tuple[str, Sequence[str]] = ("", ()),
    log_format: str = "text",
) -> Path:
    """Write a commented ``server.toml``; return its path.

    Args:
        folder: of the server.
        server_id: 1..255.
        listen: HOST:PORT.
        tls: whether it names the files of TLS.
        admin: ``admin_listen`` and ``admin_hosts``.
        log_format: "text" or "json".

    Raises:
        ParameterError: a value is out of range.
    """
    files = TlsConfig(folder / CERTIFICATE_NAME, folder / KEY_NAME) if tls else None
    admin_listen, admin_hosts = admin
    ServerConfig(
        *(server_id, listen, folder),
        admin_listen=admin_listen,
        admin_hosts=tuple(admin_hosts),
        log_format=log_format,
        tls=files,
    )
    path = folder / CONFIG_NAME
    shown = _NO_ADMIN
    if admin_listen:
        shown = f'admin_listen = "{admin_listen}"\nadmin_hosts = {json.dumps(list(admin_hosts))}'
    text = _TEMPLATE.format(id=server_id, listen=listen, admin=shown, log_format=log_format)
    text += TLS_TEMPLATE.format(mark="" if tls else "# ")
    path.write_text(text + RAY_TEMPLATE + OIDC_TEMPLATE + BUCKET_TEMPLATE)
    return path


def _host_names(values: object) -> tuple[str, ...]:
    """Read ``admin_hosts``.

    Raises:
        ParameterError: it is no list of names and addresses.
    """
    if isinstance(values, list) and all(
        isinstance(value, str) and _HOST.fullmatch(value) for value in values
    ):
        return tuple(values)
    raise ParameterError(
        f"admin_hosts = {values!r} is not a list of names or addresses",
        cure='write it as in ["server-1.internal", "10.0.0.7", "[fd00::7]"], without ports',
    )


def _peers(values: object) -> tuple[PeerAddress, ...]:
    """Read ``peers``.

    Raises:
        ParameterError: it is no list of addresses that can be dialled safely.
    """
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ParameterError(
            "peers is not a list of texts", cure='write it as in ["b.example.org:7101=9f86d0.."]'
        )
    return tuple(PeerAddress.parse(value, {}) for value in values)


def load_config(path: Path) -> ServerConfig:
    """Read and check a ``server.toml``.

    Raises:
        ParameterError: unreadable, not TOML, an unknown or missing key, a value out of range.
    """
    known = [field.name for field in fields(ServerConfig) if field.name != "folder"]
    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise ParameterError(
            f"{path} cannot be read ({error.strerror})", cure="name the file that init wrote"
        ) from None
    except (ValueError, RecursionError) as error:
        # Python's own limits of digits and nesting as well, besides what is no TOML.
        raise ParameterError(
            f"{path} is not TOML: {error}", cure="compare with what mksearch-server init writes"
        ) from None
    unknown = sorted(set(values) - set(known))
    missing = sorted({"id", "listen", "data"} - set(values))
    if unknown or missing:
        what = f"unknown keys: {', '.join(unknown)}" if unknown else f"no {', '.join(missing)}"
        raise ParameterError(f"{path} has {what}", cure=f"known keys are {', '.join(known)}")
    if not isinstance(values["data"], str) or not isinstance(values["listen"], str):
        raise ParameterError(
            f"{path}: data or listen is not a string", cure="write them in quotation marks"
        )
    values["data"] = path.parent / values["data"]
    values["admin_hosts"] = _host_names(values.get("admin_hosts", []))
    try:
        values["peers"] = _peers(values.get("peers", []))
        if "ray" in values:
            values["ray"] = read_ray(values["ray"], path.parent)
        if "oidc" in values:
            values["oidc"] = read_oidc(values["oidc"], path.parent)
        if "tls" in values:
            values["tls"] = read_tls(values["tls"], path.parent)
        if "s3" in values:
            values["s3"] = read_bucket(values["s3"], path.parent)
            if values.get("engine") == "ray":
                raise ParameterError(
                    "shards of the engine ray read files, and [s3] keeps segments in a bucket",
                    cure="leave out [s3], or take another engine",
                )
        return ServerConfig(folder=path.parent, **values)
    except MksearchError as error:
        raise ParameterError(f"{path}: {error.message}", cure=error.cure) from None
