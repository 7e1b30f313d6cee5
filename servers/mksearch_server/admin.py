"""Health and metrics over plain HTTP, on threads of their own: for this machine and named hosts.

``GET /metrics``, ``/healthz`` (the event loop turns) and ``/readyz`` (requests are taken).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families

from mksearch.errors import StorageError
from mksearch_server.log import log_fault
from mksearch_server.peer_address import LOOPBACK

__all__ = ["AdminServer", "ask_state", "read_samples"]

#: Seconds that a client may take for its request, and for its answer.
_PATIENCE_S: Final = 5.0
#: Seconds without a turn of the event loop after which the server counts as dead.
STALLED_S: Final = 30.0
_STATE_BYTES_MAX: Final = 200
#: Loopback hosts of what listens on all addresses.
_LOCAL: Final[Mapping[str, str]] = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104
_TEXT: Final = "text/plain; charset=utf-8"


class AdminServer:
    """Answers health checks and collectors of metrics.

    Attributes:
        address: HOST:PORT that it listens on.
        is_ready: requests are taken.
    """

    def __init__(
        self,
        listen: str,
        metrics: Callable[[], bytes],
        hosts: Collection[str] = (),
        trouble: Callable[[], tuple[bool, str]] = lambda: (False, ""),
    ) -> None:
        """Listen, and answer from now on.

        Args:
            listen: HOST:PORT, a loopback host unless there are ``hosts``.
            metrics: gives the text of all metrics; called on threads.
            hosts: that may be asked for besides loopback.
            trouble: tells whether no search can be answered, and in one line what is wrong with
                what scores, "" for nothing.

        Raises:
            StorageError: the port is in use.
        """
        host, _, port = listen.rpartition(":")
        self._metrics = metrics
        self._trouble = trouble
        self._hosts = frozenset(name.lower() for name in (*LOOPBACK, *hosts))
        self.is_ready = False
        self._beat_s = time.monotonic()
        try:
            self._server = _server_for(host)((host.strip("[]"), int(port)), self._handler())
        except OSError:
            raise StorageError(
                f"{listen} cannot be listened on",
                cure="another program uses the port; stop it or change admin_listen in server.toml",
            ) from None
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="admin", daemon=True
        )
        self._thread.start()

    def beat(self) -> None:
        """Say that the event loop turns."""
        self._beat_s = time.monotonic()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """Return status, content type and body for the path of a GET."""
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE_LATEST, self._metrics()
        if path == "/healthz":
            return _state(time.monotonic() - self._beat_s < STALLED_S, "live", "stalled")
        if path == "/readyz":
            is_stuck, trouble = self._trouble()
            more = f", {trouble}" if trouble else ""
            return _state(self.is_ready and not is_stuck, f"ready{more}", f"not ready{more}")
        return HTTPStatus.NOT_FOUND, _TEXT, b"there are /metrics, /healthz and /readyz\n"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        admin = self

        class Handler(BaseHTTPRequestHandler):
            """One request."""

            timeout = _PATIENCE_S

            def do_GET(self) -> None:
                host = self.headers.get("Host", "").rpartition(":")[0]
                if host.lower() not in admin._hosts:
                    # A page in a browser of this machine, whose name leads here.
                    self._send(HTTPStatus.FORBIDDEN, _TEXT, b"ask for 127.0.0.1 by its number\n")
                    return
                try:
                    answer = admin.answer(self.path.partition("?")[0])
                except Exception as error:  # noqa: BLE001 - every fault gets a status
                    log_fault(error)
                    answer = HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, b"the server failed\n"
                self._send(*answer)

            def _send(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Log nothing: what was asked for is not this log's."""

        return Handler


def dialled(address: str) -> str:
    """Return HOST:PORT by which this machine reaches health and metrics that listen there."""
    host, _, port = address.rpartition(":")
    return f"{_LOCAL.get(host, host)}:{port}"


def ask_state(address: str, path: str) -> None:
    """Ask a server on this machine for its health.

    Args:
        address: HOST:PORT of its health and metrics.
        path: /healthz or /readyz.

    Raises:
        StorageError: nothing answers there, or another answer than yes.
    """
    host, _, port = dialled(address).rpartition(":")
    connection = HTTPConnection(host.strip("[]"), int(port), timeout=_PATIENCE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        said = answer.read(_STATE_BYTES_MAX).decode(errors="replace").strip()
    except (OSError, HTTPException) as error:
        raise StorageError(
            f"{path} on {address} does not answer ({type(error).__name__})",
            cure="wait until the server has started, or look into its log",
        ) from None
    finally:
        connection.close()
    if answer.status != HTTPStatus.OK:
        raise StorageError(f"{path} on {address} says: {said}", cure="look into the server's log")


def read_samples(address: str) -> dict[str, float]:
    """Return what a server's ``/metrics`` says: the value of every sample, by its name and labels.

    Args:
        address: HOST:PORT of its health and metrics.

    Raises:
        StorageError: nothing answers there.
    """
    host, _, port = dialled(address).rpartition(":")
    connection = HTTPConnection(host.strip("[]"), int(port), timeout=_PATIENCE_S)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        families = list(text_string_to_metric_families(text))
    except (OSError, HTTPException, ValueError) as error:
        raise StorageError(
            f"the metrics on {address} cannot be read ({type(error).__name__})",
            cure="wait until the server has started, or look into its log",
        ) from None
    finally:
        connection.close()
    return {
        _named(sample.name, sample.labels): sample.value
        for family in families
        for sample in family.samples
    }


def _named(name: str, labels: Mapping[str, str]) -> str:
    listed = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{listed}}}" if listed else name


def _state(holds: bool, yes: str, no: str) -> tuple[HTTPStatus, str, bytes]:
    status = HTTPStatus.OK if holds else HTTPStatus.SERVICE_UNAVAILABLE
    return status, _TEXT, f"{yes if holds else no}\n".encode()


def _server_for(host: str) -> type[ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        """Ends with the process, and says nothing of clients that hang up."""

        address_family = AF_INET6 if host.startswith("[") else AF_INET
        daemon_threads = True
        allow_reuse_address = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Say nothing: clients come and go."""

    return Server
