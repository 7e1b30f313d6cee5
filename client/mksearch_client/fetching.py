"""Read from servers what proves itself: objects by name, whoever sends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

from mksearch.errors import (
    FormatError,
)
from mksearch.index.manifest import ObjectRef
from mksearch.messages import (
    RecordAnswer,
    RecordRequest,
    ScoreAnswer,
    ScoreRequest,
    SelectAnswer,
    SelectRequest,
)
from mksearch.query.records import require_object
from mksearch_client.asking import Asking, Servers

__all__ = [
    "Cache",
    "Connection",
    "NoCache",
    "SelectingConnection",
    "first_good",
    "read_object",
]

READ_BYTES = 1 << 20
_T = TypeVar("_T")


class Connection(Protocol):
    """What searching asks of a server."""

    def manifest(self) -> bytes:
        """Return the active signed manifest."""
        ...

    def renewal(self) -> bytes:
        """Return the renewal of the active version that is held, b"" without one."""
        ...

    def score(self, request: ScoreRequest) -> ScoreAnswer:
        """Score a query share."""
        ...

    def records(self, request: RecordRequest) -> RecordAnswer:
        """Return record slots."""
        ...

    def read_object(self, name: bytes, offset: int, n_bytes: int) -> bytes:
        """Return a piece of a stored object."""
        ...


@runtime_checkable
class SelectingConnection(Protocol):
    """What a search with private records asks of a server besides."""

    def select(self, request: SelectRequest) -> SelectAnswer:
        """Return selected groups of record slots."""
        ...


class Cache(Protocol):
    """Keeps sealed objects between searches; what it returns proves itself by its name."""

    def get(self, name: bytes) -> bytes | None:
        """Return an object that was kept, or None."""
        ...

    def put(self, name: bytes, data: bytes) -> None:
        """Keep an object."""
        ...


class NoCache:
    """A cache that keeps nothing."""

    def get(self, name: bytes) -> bytes | None:  # noqa: ARG002
        """Return None."""
        return None

    def put(self, name: bytes, data: bytes) -> None:
        """Keep nothing."""


def read_object(connection: Connection, ref: ObjectRef, what: str) -> bytes:
    """Read an object of known size from one server, in pieces, and prove its name."""
    pieces: list[bytes] = []
    n_read = 0
    while n_read < ref.size:
        n_wanted = min(READ_BYTES, ref.size - n_read)
        piece = connection.read_object(ref.id, n_read, n_wanted)
        # An honest server sends all that it was asked for; anything else cannot end well.
        if len(piece) != n_wanted:
            raise FormatError(f"{what}: {len(piece)} of {n_wanted} bytes asked for came")
        pieces.append(piece)
        n_read += n_wanted
    return require_object(ref.id, ref.size, b"".join(pieces), what)


def first_good(servers: Servers[Connection], fetch: Callable[[int], _T], what: str) -> _T:
    """Return what the first server sends that proves right; remember what the others did."""
    found: list[_T] = []

    def take(_server: int, value: _T) -> None:
        found.append(value)

    if not Asking(servers, fetch, take).until(lambda: 1 - len(found)):
        raise servers.refusal(what, 0, 1)
    return found[0]
