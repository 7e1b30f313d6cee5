"""What a measurement yields: figures with goals and limits, and what they were measured on."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

__all__ = ["Direction", "Figure", "PartResult", "Verdict", "environment", "median_of"]

Direction = Literal["at most", "at least", ""]
Verdict = Literal["goal reached", "kept", "MISSED", "not judged", "not measured"]

#: Whose versions decide what is measured; peers among them, where they are installed.
LIBRARIES = (
    "numpy", "numba", "scipy", "scikit-learn", "cryptography", "grpcio", "lmdb",
    "bm25s", "tantivy", "tenseal", "mpyc", "matplotlib",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number, what is wanted of it, and what must hold.

    Attributes:
        key: short name, ``part.what``; the same in every run.
        name: what a reader sees.
        value: the number, or None where it could not be measured; ``note`` then says why.
        unit: of value, goal and limit; empty for a ratio or a count.
        direction: on which side of goal and limit the value should be; empty for a figure that is
            only shown.
        goal: what the design aims at, or None.
        limit: what must hold, or None.
        note: conditions that a reader must know.
    """

    key: str
    name: str
    value: float | None
    unit: str = ""
    direction: Direction = ""
    goal: float | None = None
    limit: float | None = None
    note: str = ""

    def _holds(self, bound: float) -> bool:
        assert self.value is not None
        return self.value <= bound if self.direction == "at most" else self.value >= bound

    @property
    def verdict(self) -> Verdict:
        """What to say of the value; a bound itself is on the right side."""
        if self.value is None:
            return "not measured"
        if not self.direction or (self.goal is None and self.limit is None):
            return "not judged"
        if self.limit is not None and not self._holds(self.limit):
            return "MISSED"
        if self.goal is not None and self._holds(self.goal):
            return "goal reached"
        return "not judged" if self.limit is None else "kept"

    @property
    def missed(self) -> bool:
        """Whether the limit is not kept; a figure that was not measured misses nothing."""
        return self.verdict == "MISSED"

    def unjudged(self, why: str) -> Figure:
        """Return the figure without limit and goal, because of ``why``."""
        note = f"{self.note}; {why}" if self.note else why
        return Figure(self.key, self.name, self.value, self.unit, note=note)

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` writes."""
        return {**asdict(self), "verdict": self.verdict}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Figure:
        """Return the figure that ``to_json`` wrote."""
        return cls(**{name: value for name, value in fields.items() if name != "verdict"})


@dataclass(slots=True)
class PartResult:
    """What one part of the suite measured.

    Attributes:
        figures: in the order of the table.
        tables: further numbers by name, for the report: lists of objects.
        notes: sentences that the report must carry.
    """

    figures: list[Figure] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` writes."""
        figures = [figure.to_json() for figure in self.figures]
        return {"figures": figures, "tables": self.tables, "notes": self.notes}


def median_of(numbers: list[float], share: float = 0.5) -> float:
    """Return the number below which ``share`` of ``numbers`` lie; for a half the median."""
    ordered = sorted(numbers)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def environment() -> dict[str, Any]:
    """Describe machine and software, without a name or a path of either."""
    versions = {}
    for library in LIBRARIES:
        try:
            versions[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        "memory_gb": round(_memory_bytes() / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "libraries": versions,
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else "unknown"


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0
