"""Plots of the report, by matplotlib: the same figures give the same bytes."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["PART_ORDER", "draw"]

PART_ORDER = (
    "engine", "throughput", "building", "search", "outages", "tls", "widths", "pruned", "peers",
    "changes", "large", "access", "authority", "private", "ray",
)  # fmt: skip

_INK, _SOFT, _WARM = "#1f4e79", "#9db8d2", "#c55a11"
#: Text stays text: small files that every browser shows in a font of its own.
_STYLE = {
    "svg.hashsalt": "mksearch",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.use": True,
}
_SIZE = (6.4, 3.2)


def draw(measured: dict[str, Any], folder: Path) -> list[str]:
    """Draw what the figures allow; return the names of the plots that are there, sorted.

    Without matplotlib nothing is drawn, and the document has no plots.
    """
    try:
        matplotlib = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        print("bench: matplotlib is not installed, so there are no plots", file=sys.stderr)
        return []
    tables: dict[str, list[dict[str, Any]]] = {}
    for part in measured["parts"].values():
        for name, rows in part["tables"].items():
            tables.setdefault(name, []).extend(rows)
    limits = [
        (int(figure["key"].partition(".")[2]) / 1000, figure["limit"])
        for part in measured["parts"].values()
        for figure in part["figures"]
        if re.fullmatch(r"search\.\d+", figure["key"]) and figure["limit"] is not None
    ]
    plots: dict[str, Callable[[Any, list[dict[str, Any]]], None]] = {
        "latency": partial(_latency, limits=limits),
        "reading": _reading,
        "peers": _peers,
    }
    drawn = []
    with matplotlib.rc_context(_STYLE):
        for name, plot in plots.items():
            if not tables.get(name):
                continue
            figure, axes = pyplot.subplots(figsize=_SIZE)
            plot(axes, tables[name])
            path = folder / f"{name}.svg"
            figure.savefig(path, metadata={"Date": None, "Creator": None})
            pyplot.close(figure)
            # Blanks at line ends would show as errors in every diff.
            lines = path.read_text("utf-8").splitlines()
            path.write_text("\n".join(line.rstrip() for line in lines) + "\n", "utf-8")
            drawn.append(name)
    return sorted(drawn)


def _latency(axes: Any, rows: list[dict[str, Any]], limits: list[tuple[float, float]]) -> None:
    rows = sorted(rows, key=lambda row: float(row["documents"]))
    documents = [row["documents"] / 1000 for row in rows]
    axes.plot(documents, [row["median_ms"] for row in rows], "o-", color=_INK, label="median")
    axes.plot(documents, [row["p90_ms"] for row in rows], "o:", color=_SOFT, label="90 %")
    if limits:
        places, bounds = zip(*limits, strict=True)
        axes.plot(places, bounds, "v", color=_WARM, fillstyle="none", label="median at most")
    for row in rows:
        axes.annotate(
            f"{row['columns']:,} columns",
            (row["documents"] / 1000, row["median_ms"]),
            textcoords="offset points",
            xytext=(4, -10),
            fontsize=7,
        )
    axes.set_xlabel("thousand documents")
    axes.set_ylabel("ms a search")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def _reading(axes: Any, rows: list[dict[str, Any]]) -> None:
    kinds = (
        ("plain_read_gb_s", "plain read", _SOFT),
        ("one_vector_gb_s", "one query scored", _INK),
        ("eight_vectors_gb_s", "eight queries in one pass", _WARM),
    )
    for number, (name, label, colour) in enumerate(kinds):
        places = [place + 0.27 * (number - 1) for place in range(len(rows))]
        bars = axes.bar(places, [row[name] for row in rows], 0.25, color=colour, label=label)
        axes.bar_label(bars, fmt="%.1f", fontsize=7)
    threads = [f"{row['threads']} thread{'s' if row['threads'] > 1 else ''}" for row in rows]
    axes.set_xticks(range(len(rows)), threads)
    axes.set_ylabel("GB of cells a second")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def _peers(axes: Any, rows: list[dict[str, Any]]) -> None:
    rows = [row for row in rows if row["ms"] is not None]
    rows = sorted(rows, key=lambda row: float(row["ms"]), reverse=True)
    for place, row in enumerate(rows):
        extrapolated = row["measured"] != "measured"
        colour = _INK if row["hides_documents"] != "no" else _SOFT
        axes.barh(
            place,
            row["ms"],
            color="white" if extrapolated else colour,
            edgecolor=colour,
            hatch="///" if extrapolated else None,
        )
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [_short_name(row) for row in rows])
    axes.set_xlabel("ms a query (hatched: extrapolated;\ndark: documents are hidden)")


def _short_name(row: dict[str, Any]) -> str:
    if not row["name"].startswith("TenSEAL"):
        return str(row["name"])
    return f"TenSEAL, {'plain' if row['hides_documents'] == 'no' else 'encrypted'} documents"
