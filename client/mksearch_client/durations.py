"""Durations as people type them."""

from __future__ import annotations

import re

from mksearch.errors import ParameterError

__all__ = ["parse_duration"]

_UNIT_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(r"([1-9][0-9]{0,9})([smhdw])", re.ASCII)


def parse_duration(text: str, option: str) -> int:
    """Return the seconds of a duration such as ``90s``, ``15m``, ``12h``, ``30d`` or ``2w``.

    Args:
        text: a whole number from 1 and a unit.
        option: which holds it, for the message.

    Raises:
        ParameterError: it is no such duration.
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ParameterError(
            f"{option} {text!r} is no duration",
            cure="write a whole number and a unit: 90s, 15m, 12h, 30d or 2w",
        )
    return int(found[1]) * _UNIT_S[found[2]]
