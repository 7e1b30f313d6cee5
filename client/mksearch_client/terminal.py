"""Making foreign text harmless before a terminal shows it.

Titles, snippets and file names come from documents that anybody may have written.  A terminal
obeys what it is shown: escape sequences retitle its window or recolour it, a right-to-left
override turns ``exe.txt`` into ``txt.exe``, and a line break forges the line below.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

from rich.cells import cell_len, get_character_cell_size

from mksearch.errors import ParameterError

__all__ = ["print_json", "safe"]

_ELLIPSIS: Final = "…"
#: Combining marks kept after one letter.  Scripts need at most a handful; stacks of hundreds
#: paint over the neighbouring lines although their width is 0.
_MARKS_MAX: Final = 8

# Escape sequences of ECMA-48: control sequences (CSI); strings (OSC, DCS, SOS, PM, APC) with
# their terminator, if it is there; two-character and charset escapes.
_ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)

# Drawn as nothing although their category is not one of format characters (Unicode's default
# ignorables, and the blank Braille cell).
_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)
# Format characters that are drawn: signs that Arabic, Syriac and Kaithi set before a number.
_DRAWN_FORMAT: Final = frozenset(
    "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
)


def _is_shown(char: str) -> bool:
    category = unicodedata.category(char)
    return category not in {"Cc", "Cf", "Cs"} or char in _DRAWN_FORMAT


def _without_stacks(text: str) -> str:
    kept: list[str] = []
    n_marks = 0
    for char in text:
        n_marks = n_marks + 1 if unicodedata.category(char) in {"Mn", "Me"} else 0
        if n_marks <= _MARKS_MAX:
            kept.append(char)
    return "".join(kept)


def _cut(text: str, limit: int) -> str:
    width = 0
    kept: list[str] = []
    for char in text:
        width += get_character_cell_size(char)
        if width > limit - 1:
            break
        kept.append(char)
    cut = "".join(kept).rstrip() + _ELLIPSIS
    # A terminal may join characters; what rich measures for the whole is what its tables use.
    return cut if cell_len(cut) <= limit else _ELLIPSIS


def safe(text: str, limit: int | None = None) -> str:
    """Return the text as one line that a terminal only shows and never obeys.

    Escape sequences, control characters (C0, C1), bidirectional overrides and isolates,
    zero-width and other invisible characters and lone surrogates are taken out; runs of blanks
    and line breaks become one blank; no letter keeps more than 8 combining marks.  Markup of
    ``rich`` is not touched: print the result with ``markup=False`` or as ``rich.text.Text``.

    Args:
        text: any string, also one with lone surrogates (file names).
        limit: greatest width in terminal cells, at least 1 (East Asian wide characters take
            two); a longer text ends with an ellipsis.  None: not cut.

    Returns:
        The safe line; ``safe(safe(x)) == safe(x)``.

    Raises:
        ParameterError: ``limit`` is below 1.
    """
    if limit is not None and limit < 1:
        raise ParameterError(f"width limit {limit} is below 1", cure="use 1 or more, or None")
    if not (text.isascii() and text.isprintable()):
        # A newline must survive as a blank, so blanks are made before controls are dropped.
        text = re.sub(r"\s", " ", _ESCAPES.sub("", text))
        text = "".join(filter(_is_shown, _INVISIBLE.sub("", text)))
        text = _without_stacks(text)
    line = " ".join(text.split())
    if limit is None or cell_len(line) <= limit:
        return line
    return _cut(line, limit)


def print_json(fields: Mapping[str, Any]) -> None:
    """Print one object as a line on standard output.

    Characters that the encoding of standard output does not have are escaped, as JSON can.

    Args:
        fields: the object; its strings may hold lone surrogates (file names, arguments).
    """
    text = json.dumps(fields, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(fields)
    print(text)
