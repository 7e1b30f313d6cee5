"""What a search returns, as objects and as the JSON of the command line."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["SearchHit", "SearchResult", "ServerReport"]


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One document found.

    Attributes:
        rank: from 1, offset included.
        score: exact score; cosine in 0..1 for TF-IDF.
        id: external id.
        title: title.
        snippet: start of the text.
    """

    rank: int
    score: float
    id: str
    title: str
    snippet: str


@dataclass(slots=True)
class ServerReport:
    """What one server did in a search.

    Attributes:
        id: from 1.
        address: where it was asked.
        status: ok, unused, unreachable, lied, refused or stale.
        reason: why, where it is not ok.
    """

    id: int
    address: str
    status: str = "unused"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A proved answer.

    Attributes:
        query: as asked.
        k: hits asked for.
        n_docs: documents searched.
        version: version of the collection.
        verified: every row used passed its checks, every record opened.
        exact: the hits are those of a plaintext engine; False when ``max_records`` cut it short.
        privacy: mode that was used.
        hits: by falling score, ties by id.
        servers: one report a server.
        learned: what the servers learned, one sentence each.
        shown: the same as data: lists of {what, count} under "t" for up to t servers together, and
            under "t+1" for one more.
        warnings: what the user should know.
        groups: policy groups asked.
        records_fetched: records read.
        rounds: waits for record slots and scores.
        bytes_sent: of arrays, without transport.
        bytes_received: of arrays, without transport.
        timings_ms: total and parts.
        blocks_opened: blocks that were named to the servers; 0 where all were scored.
        score_waits: waits for scores.
        cells_share: cells that a server read for the scores, over those of all documents.
    """

    query: str
    k: int
    n_docs: int
    version: int
    verified: bool
    exact: bool
    privacy: str
    hits: tuple[SearchHit, ...]
    servers: tuple[ServerReport, ...]
    learned: tuple[str, ...]
    shown: dict[str, list[dict[str, Any]]]
    warnings: tuple[str, ...]
    groups: int
    records_fetched: int
    rounds: int
    bytes_sent: int
    bytes_received: int
    timings_ms: dict[str, float] = field(default_factory=dict)
    blocks_opened: int = 0
    score_waits: int = 1
    cells_share: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        return asdict(self)
