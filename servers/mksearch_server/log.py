"""The server's log: one line an event on standard error, never a secret, a query or a key."""

from __future__ import annotations

import logging
import sys

__all__ = ["log", "log_to_stderr"]

log = logging.getLogger("mksearch_server")


def log_to_stderr() -> None:
    """Write the log to standard error with UTC times."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    # Without a handler gRPC would print a traceback for every client that hangs up.
    logging.getLogger("grpc").addHandler(logging.NullHandler())
