"""A server that lies: a real one with one of its answers put into other hands."""

from __future__ import annotations

from collections.abc import Callable

from mksearch.messages import RecordAnswer, RecordRequest, ScoreAnswer, ScoreRequest
from mksearch_client.searching import Connection

__all__ = ["HostileServer", "LieObject", "LieRecords", "LieScore"]

LieScore = Callable[[Connection, ScoreRequest], ScoreAnswer]
LieRecords = Callable[[Connection, RecordRequest], RecordAnswer]
LieManifest = Callable[[Connection], bytes]
LieObject = Callable[[Connection, bytes, int, int], bytes]


class HostileServer:
    """Answers as ``server`` does but where it was given a lie.

    A lie is called with the honest server and what was asked; it may ask the honest one.

    Attributes:
        asked: names of the calls received, in order.
        slots: record slots asked for.
    """

    def __init__(
        self,
        server: Connection,
        *,
        manifest: LieManifest | None = None,
        renewal: LieManifest | None = None,
        score: LieScore | None = None,
        records: LieRecords | None = None,
        read_object: LieObject | None = None,
    ) -> None:
        self._server = server
        self._manifest = manifest
        self._renewal = renewal
        self._score = score
        self._records = records
        self._read_object = read_object
        self.asked: list[str] = []
        self.slots: list[int] = []

    def manifest(self) -> bytes:
        self.asked.append("manifest")
        return self._manifest(self._server) if self._manifest else self._server.manifest()

    def renewal(self) -> bytes:
        self.asked.append("renewal")
        return self._renewal(self._server) if self._renewal else self._server.renewal()

    def score(self, request: ScoreRequest) -> ScoreAnswer:
        self.asked.append("score")
        if self._score:
            return self._score(self._server, request)
        return self._server.score(request)

    def records(self, request: RecordRequest) -> RecordAnswer:
        self.asked.append("records")
        self.slots += request.slots.tolist()
        if self._records:
            return self._records(self._server, request)
        return self._server.records(request)

    def read_object(self, name: bytes, offset: int, n_bytes: int) -> bytes:
        self.asked.append("read_object")
        if self._read_object:
            return self._read_object(self._server, name, offset, n_bytes)
        return self._server.read_object(name, offset, n_bytes)
