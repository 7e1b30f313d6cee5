"""The server's log: one line an event on standard error, from a closed list of events and fields.

Nothing is logged that a query, a user, a credential or a document could have a part in: fields are
numbers and names of this server, and of an error its class and its place in the code, never its
text.
"""

from __future__ import annotations

import json
import logging
import os
import string
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final

from mksearch.errors import ParameterError

__all__ = ["EVENTS", "FIELDS", "LOG_FORMATS", "log_event", "log_fault", "logging_to_stderr"]

LOG_FORMATS: Final = ("text", "json")
#: Every field that a line may have, and its type.
FIELDS: Final[Mapping[str, type]] = {
    "address": str,  # HOST:PORT that this server listens on
    "cause": str,  # why keys of the issuer, TLS files, an engine or the disk cannot be used
    "code": str,  # of an error, from the closed list of codes
    "generation": int,  # of this server's share
    "kind": str,  # class of an error
    "objects": int,  # of versions that are served no more, or that came from peers
    "part": str,  # library that a warning is of
    "place": str,  # module and line of this program
    "reason": str,  # the operating system's words for an error number
    "seconds": int,
    "server": int,  # id of this server
    "transport": str,  # with or without TLS
    "version": int,  # that this server serves
}
#: Every event: its level and its sentence, whose places are its fields.
EVENTS: Final[Mapping[str, tuple[int, str]]] = {
    "activated": (logging.INFO, "version {version} is active"),
    "admin-listening": (logging.INFO, "health and metrics are on http://{address}"),
    "catching-up": (logging.INFO, "fetches version {version} from its peers"),
    "catching-up-failed": (logging.WARNING, "cannot catch up with its peers now ({code})"),
    "caught-up": (logging.INFO, "version {version} is active: {objects} objects came from peers"),
    "certificate-dates": (logging.WARNING, "{cause}"),
    "certificate-kept": (logging.WARNING, "the old certificate stays: {cause}"),
    "certificate-renewed": (logging.INFO, "a new certificate is presented from now on"),
    "claimed": (logging.INFO, "an owner claimed this server"),
    "client-stopped-reading": (
        logging.INFO,
        "a client did not read its answer: the call is ended",
    ),
    "draining": (logging.INFO, "stopping: {seconds} s for running requests"),
    "engine-changed": (logging.WARNING, "the engine: {cause}"),
    "engine-unnoted": (logging.WARNING, "what the engine runs on cannot be noted ({reason})"),
    "erased": (logging.INFO, "erased {objects} objects of earlier versions"),
    "erasing-failed": (logging.ERROR, "cannot erase: {cause}"),
    "internal-fault": (logging.ERROR, "internal fault: {kind} at {place} ({reason})"),
    "issuer-keys-unread": (logging.ERROR, "the keys of the issuer: {cause}"),
    "library-warning": (logging.WARNING, "a warning of {part}: {kind} at {place} ({reason})"),
    "renewed": (logging.INFO, "version {version} is renewed"),
    "repair-helped": (logging.INFO, "helped to repair a share of the authority"),
    "serving": (
        logging.INFO,
        "server {server} listens on {address} {transport}, version {version}",
    ),
    "share-installed": (logging.INFO, "holds a share of generation {generation} of the authority"),
    "share-refreshed": (
        logging.INFO,
        "holds a refreshed share of generation {generation} of the authority",
    ),
    "share-repaired": (
        logging.INFO,
        "holds a repaired share of generation {generation} of the authority",
    ),
    "stopped": (logging.INFO, "stopped"),
}

_logger = logging.getLogger("mksearch_server")
_foreign = logging.getLogger()
# gRPC logs a traceback for every client that hangs up, and for calls that are cut at the end, when
# this log is closed already.
_grpc = logging.getLogger("grpc")
_grpc.addHandler(logging.NullHandler())
_NONE: Final = "-"
#: Files whose lines an error may be said to be at.
_OWN: Final = ("mksearch", "mksearch_server")
#: Attributes of a record that this module sets.
_EVENT, _FIELDS = "mksearch_event", "mksearch_fields"


def _places(sentence: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name}


def log_event(event: str, /, **fields: int | str) -> None:
    """Log an event of ``EVENTS`` with exactly its fields.

    Raises:
        ParameterError: no such event, other fields, or a field of another type.
    """
    if event not in EVENTS:
        raise ParameterError(f"there is no event {event!r} in the log's list")
    level, sentence = EVENTS[event]
    if set(fields) != _places(sentence):
        raise ParameterError(
            f"the event {event} has the fields {sorted(_places(sentence))}, not {sorted(fields)}"
        )
    for name, value in fields.items():
        if type(value) is not FIELDS.get(name):
            raise ParameterError(f"the field {name} of an event is a {type(value).__name__}")
    shown = {name: _one_line(value) for name, value in fields.items()}
    own = {_EVENT: event, _FIELDS: shown}
    _logger.log(level, sentence.format(**shown), extra=own)


def log_fault(error: BaseException) -> None:
    """Log what no code foresaw: its class and place; its text may hold what came in a request."""
    log_event("internal-fault", **_described(error))


def _described(error: BaseException | None) -> dict[str, str]:
    number = error.errno if isinstance(error, OSError) else None
    return {
        "kind": _NONE if error is None else type(error).__name__,
        "place": _NONE if error is None else _place(error.__traceback__),
        "reason": _NONE if number is None else os.strerror(number),
    }


def _place(trace: TracebackType | None) -> str:
    """Return module and line where an error left this product's code."""
    found = _NONE
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if any(package in path.parts for package in _OWN):
            found = f"{path.stem}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _one_line(value: int | str) -> int | str:
    if isinstance(value, str) and not value.isprintable():
        return "".join(c if c.isprintable() else " " for c in value)
    return value


class _Json(logging.Formatter):
    """One JSON object a line: time, level, event, message, the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        return json.dumps(
            {
                "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "level": record.levelname.lower(),
                "event": getattr(record, _EVENT),
                "message": record.getMessage(),
                **getattr(record, _FIELDS),
            }
        )


class _Foreign(logging.Handler):
    """Takes what libraries log: that something was wrong, not their words about it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        part = record.name.partition(".")[0]
        log_event("library-warning", part=part, **_described(error))


@contextmanager
def logging_to_stderr(log_format: str = "text") -> Iterator[None]:
    """Write the log to standard error, with UTC times, for as long as this lasts.

    Args:
        log_format: one of ``LOG_FORMATS``.
    """
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    text.converter = time.gmtime
    own: logging.Handler = logging.StreamHandler(sys.stderr)
    own.setFormatter(_Json() if log_format == "json" else text)
    _logger.setLevel(logging.INFO)
    added = ((_logger, own), (_foreign, _Foreign()))
    for logger, handler in added:
        logger.addHandler(handler)
    _logger.propagate = _grpc.propagate = False
    logging.captureWarnings(capture=True)
    try:
        yield
    finally:
        logging.captureWarnings(capture=False)
        for logger, handler in added:
            logger.removeHandler(handler)
        _logger.propagate = _grpc.propagate = True
