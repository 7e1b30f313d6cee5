"""What the owner's commands return, as objects and as the JSON of the command line."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mksearch_client.reading import Skipped

__all__ = ["PublishReport", "ServerStatus"]


@dataclass(frozen=True, slots=True)
class PublishReport:
    """What a publish did.

    Attributes:
        documents: published.
        skipped: what was not read and why.
        version: that is served now.
        segments: of the version.
        columns: of level 0.
        index_bytes: of the segments.
        changed: False when the servers hold exactly these documents already.
        seconds: read, index, encrypt, upload.
        servers: what each server did.
    """

    documents: int
    skipped: tuple[Skipped, ...]
    version: int
    segments: int
    columns: int
    index_bytes: int
    changed: bool
    seconds: dict[str, float]
    servers: tuple[dict[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        fields = asdict(self)
        fields["skipped"] = [
            {"path": skip.path, "reason": skip.reason, "line": skip.line} for skip in self.skipped
        ]
        return fields


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What one server says of itself.

    Attributes:
        id: from 1.
        address: HOST:PORT.
        status: ok, stale, refused, unreachable or lied.
        version: that it serves, 0 for none.
        release: of its software.
        reason: why it is not ok.
    """

    id: int
    address: str
    status: str
    version: int = 0
    release: str = ""
    reason: str = ""
