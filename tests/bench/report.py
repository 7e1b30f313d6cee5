"""What becomes of figures: a table for the terminal, and the files of the report.

The same JSON gives the same bytes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mksearch.errors import InputError
from tests.bench import plots
from tests.bench.document import render
from tests.bench.showing import HEAD, Measured, cells, figures_of, number, parts_of

__all__ = ["has_failed", "load", "merge", "text_table", "write"]

_MACHINE = ("cpu", "cores", "memory_gb", "system", "python")


def has_failed(measured: Measured) -> bool:
    """Whether a limit was missed or a part did not end."""
    failed = any(part["failed"] for part in parts_of(measured))
    return failed or any(figure.missed for figure in figures_of(measured))


def text_table(measured: Measured) -> str:
    """Return the table that the terminal shows, and one line for each part that failed."""
    rows = [HEAD, *(cells(figure) for figure in figures_of(measured))]
    rows = [[key.strip("`"), *others, name] for key, name, *others in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        fields = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(fields).rstrip())
    for name, part in measured["parts"].items():
        if part["failed"]:
            lines.append(f"part {name} FAILED: {part['failed']}")
        lines += [f"{name}: {note}" for note in part["notes"]]
        for title, table in part["tables"].items():
            lines += ["", f"{name}, {title}:"]
            lines += ["  " + _one_line(row) for row in table]
    return "\n".join(lines)


def _one_line(row: dict[str, Any]) -> str:
    shown = []
    for name, value in row.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        shown.append(f"{name} {number(value) if is_number else value}")
    return ", ".join(shown)


# --- files ----------------------------------------------------------------------------------------


def load(docs: Path, *, missing_ok: bool = False) -> Measured:
    """Return the figures of the report that is there.

    Raises:
        InputError: there is none, unless ``missing_ok``.
    """
    path = docs / "benchmarks" / "figures.json"
    if not path.exists():
        if missing_ok:
            return {"format": 1, "environment": {}, "parts": {}}
        raise InputError(f"there is no {path.name}", cure="run ./dev bench --report")
    measured: Measured = json.loads(path.read_text("utf-8"))
    return measured


def merge(old: Measured, new: Measured) -> Measured:
    """Return ``new`` and those parts of ``old`` that it lacks, if one machine measured both."""
    kept = dict(old["parts"])
    if any(old["environment"].get(name) != new["environment"][name] for name in _MACHINE):
        if kept:
            print("bench: dropped the figures of another machine", file=sys.stderr)
        kept = {}
    kept.update(new["parts"])
    order = [name for name in plots.PART_ORDER if name in kept]
    order += [name for name in kept if name not in order]
    return {**new, "parts": {name: kept[name] for name in order}}


def write(measured: Measured, docs: Path) -> None:
    """Write figures, plots and document below ``docs``."""
    folder = docs / "benchmarks"
    folder.mkdir(exist_ok=True)
    drawn = plots.draw(measured, folder)
    measured = {**measured, "plots": drawn}
    (folder / "figures.json").write_text(json.dumps(measured, indent=1) + "\n", "utf-8")
    (docs / "benchmarks.md").write_text(render(measured), "utf-8")
