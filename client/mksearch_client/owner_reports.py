"""What the owner's commands return, as objects and as the JSON of the command line."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mksearch_client.reading import Skipped

__all__ = ["CompactReport", "GroupStatus", "Merge", "PublishReport", "ServerStatus"]


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
        added: documents with a new id.
        replaced: documents whose content changed.
        deleted: documents that went away.
        unchanged: documents that were left alone.
        new_bytes: that every server is sent, 0 where nothing is.
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
    added: int
    replaced: int
    deleted: int
    unchanged: int
    new_bytes: int
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


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """What a version holds of one policy group.

    Attributes:
        policy: who may read it, "" for every member.
        epoch: generation of its keys.
        segments: how many there are.
        documents: live ones.
        deleted: documents that were deleted or replaced and are not erased yet.
        bytes: of its segments.
        looseness: largest kappa of its segments, from 1.0: bounds are that much above those of a
            group built afresh; above 1.2 the next publish rewrites the group.
        compact_saves_bytes: of its segments, that ``compact`` would erase.
    """

    policy: str
    epoch: int
    segments: int
    documents: int
    deleted: int
    bytes: int
    looseness: float
    compact_saves_bytes: int


@dataclass(frozen=True, slots=True)
class Merge:
    """Segments of a group that become one.

    Attributes:
        policy: of the group.
        segments: how many are merged.
        documents: live ones that are written anew.
        erased: documents that were deleted or replaced, and whose bytes go away.
        read_bytes: of the segments that are merged.
        written_bytes: of the segment that takes their place, about.
    """

    policy: str
    segments: int
    documents: int
    erased: int
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a compaction did, or would do.

    Attributes:
        version: that is served now.
        merges: one for each group that is not compact.
    """

    version: int
    merges: tuple[Merge, ...]
