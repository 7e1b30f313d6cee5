"""Fetch a small file over HTTPS: bounded in size and time, without following anybody elsewhere."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from mksearch.errors import StorageError

__all__ = ["fetch"]

_PIECE_BYTES = 1 << 14


def fetch(url: str, *, timeout_s: float, max_bytes: int) -> bytes:
    """Return the body of a GET answered with status 200.

    Redirects, proxies and cookies are not followed: what is fetched is at this address.

    Args:
        url: https, or http where the caller made sure of the host.
        timeout_s: seconds that the whole may take, connecting included.
        max_bytes: largest body.

    Raises:
        StorageError: no such answer in time.
    """
    last_s = time.monotonic() + timeout_s
    try:
        return _read(url, max_bytes, lambda: last_s - time.monotonic())
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise StorageError(f"{url} cannot be read: {reason}") from None


def _read(url: str, max_bytes: int, left_s: Callable[[], float]) -> bytes:
    parts = urlsplit(url)
    host = parts.hostname or ""
    timeout_s = max(0.001, left_s())
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(
            host, parts.port, timeout=timeout_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
    connection.connect()
    # Timeouts of a socket are for one piece each, and pieces may be as small as the other likes.
    ending = threading.Timer(max(0.001, left_s()), _hang_up, [connection.sock])
    ending.daemon = True
    ending.start()
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", target, headers={"Accept": "application/json"})
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise ValueError(f"status {answer.status}")
        body = b""
        while piece := answer.read1(_PIECE_BYTES):
            body += piece
            if len(body) > max_bytes:
                raise ValueError(f"more than {max_bytes} bytes")
        if left_s() <= 0:
            raise TimeoutError("timed out")
        return body
    except (OSError, http.client.HTTPException):
        if left_s() <= 0:
            raise TimeoutError("timed out") from None
        raise
    finally:
        ending.cancel()
        connection.close()


def _hang_up(connected: socket.socket) -> None:
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
