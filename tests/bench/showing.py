"""Figures as text: what the terminal's table and the document have in common."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tests.bench.figures import Figure

__all__ = ["HEAD", "Measured", "cells", "duration", "figures_of", "number", "parts_of"]

#: The object that `./dev bench --json` writes.
Measured = dict[str, Any]


def parts_of(measured: Measured) -> Collection[dict[str, Any]]:
    """Return the parts in their order."""
    parts: Collection[dict[str, Any]] = measured["parts"].values()
    return parts


def figures_of(measured: Measured) -> list[Figure]:
    """Return all figures in the order of the parts."""
    return [Figure.from_json(fields) for part in parts_of(measured) for fields in part["figures"]]


def number(value: float | None) -> str:
    """Show a number with three digits that count, thousands apart."""
    if value is None:
        return "-"
    if float(value).is_integer():
        return f"{value:,.0f}"
    if abs(value) < 0.001:
        return f"{value:.1e}"
    digits = max(0, 3 - len(f"{int(abs(value))}")) if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def with_unit(value: float | None, unit: str) -> str:
    return number(value) if value is None or not unit else f"{number(value)} {unit}"


def _bound(direction: str, value: float | None, unit: str) -> str:
    return "" if value is None else f"{direction} {with_unit(value, unit)}"


def cells(figure: Figure) -> list[str]:
    """Return the row of a figure, for the columns of ``HEAD``."""
    note = f" ({figure.note})" if figure.note else ""
    return [
        f"`{figure.key}`",
        figure.name + note,
        with_unit(figure.value, figure.unit),
        _bound(figure.direction, figure.goal, figure.unit),
        _bound(figure.direction, figure.limit, figure.unit),
        figure.verdict,
    ]


HEAD = ["", "figure", "measured", "goal", "must be", "verdict"]


def duration(ms: float | None) -> str:
    """Show milliseconds in the unit that a reader has a feeling for."""
    if ms is None:
        return "-"
    if ms < 1000:
        return f"{number(ms)} ms"
    return f"{number(ms / 1000)} s" if ms < 120_000 else f"{number(ms / 60_000)} min"
