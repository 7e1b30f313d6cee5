"""Read a plain text or Markdown file as one document."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator
from typing import Final

from mksearch import params
from mksearch.errors import InputError
from mksearch_client.documents import Document
from mksearch_client.walking import MARKDOWN, Found, Place, open_regular

__all__ = ["CONVERT", "PIECE_BYTES", "encoding_of", "one_line", "read_text"]

PIECE_BYTES: Final = 1 << 16
CONVERT: Final = "convert it, for example with iconv"
#: Bytes at the start of a file that decide whether it is binary, and the printable share of
#: their characters that a text with NULs must reach.
_HEAD_BYTES: Final = 8192
_PRINTABLE_MIN: Final = 0.9
#: Characters of a Markdown text in which its first heading is looked for.
_HEADING_CHARS: Final = 1 << 16
# UTF-32's mark comes before UTF-16's, which is its beginning.
_BOMS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def encoding_of(head: bytes) -> tuple[bytes, str]:
    """Return the byte order mark that bytes begin with, b"" if none, and the encoding."""
    return next((pair for pair in _BOMS if head.startswith(pair[0])), (b"", "utf-8"))


def _is_binary(head: bytes) -> bool:
    if b"\0" not in head or encoding_of(head)[1] != "utf-8":
        return False
    text = head.decode("utf-8", "replace")
    n_printable = sum((c.isprintable() or c.isspace()) and c != "\ufffd" for c in text)
    return n_printable < _PRINTABLE_MIN * len(text)


def _decode(data: bytearray) -> str:
    head = bytes(data[:_HEAD_BYTES])
    if _is_binary(head):
        raise InputError(
            "binary data, or UTF-16 without a byte order mark", cure=f"if it is text, {CONVERT}"
        )
    bom, encoding = encoding_of(head)
    del data[: len(bom)]
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as exc:
        # "utf-16-le" is UTF-16 to its owner.
        name = "-".join(encoding.upper().split("-")[:2])
        message = f"not valid {name} at byte {exc.start + len(bom)}"
        raise InputError(message, cure=CONVERT) from None


def one_line(title: str) -> str:
    """Return a title as one line of bounded length."""
    return " ".join(title.replace("\0", " ").split())[: params.TITLE_CHARS]


def _first_heading(text: str) -> str:
    """Return the first heading of a Markdown text, or ""; code and front matter hold none."""
    lines = text[:_HEADING_CHARS].splitlines()
    start = 0
    if lines and lines[0].rstrip() == "---":
        ends = (i for i, line in enumerate(lines) if i and line.rstrip() in {"---", "..."})
        start = next(ends, -1) + 1
    fence = above = ""
    for line in lines[start:]:
        bare = line.strip()[:1000]
        heading, previous, above = "", above, ""
        if fence:
            fence = "" if bare.startswith(fence) and not bare.strip(fence[0]) else fence
        elif bare.startswith(("```", "~~~")):
            fence = bare[:3]
        elif re.match(r" {0,3}#{1,6}(\s|$)", line):
            heading = re.sub(r"(^|\s)#+$", "", bare.lstrip("#").strip())
        elif previous and re.fullmatch(r" {0,3}(=+|-+)\s*", line):
            heading = previous
        # The opening of a quotation, list, table or indented code is not a heading's text.
        elif not re.match(r"\s{4}|\t|\s*([->*+|]|\d+[.)]\s)", line):
            above = bare
        linked = re.sub(r"!?\[([^\[\]]*)\]\([^()]*\)", r"\1", heading)
        if heading := one_line(linked.replace("`", "").replace("**", "")):
            return heading
    return ""


def read_text(place: Place, kind: str, limit: int) -> Iterator[Found]:
    """Yield the one document of a text file; raise InputError for what is none."""
    data = bytearray()
    with open_regular(place.path) as stream:
        n_bytes = os.fstat(stream.fileno()).st_size
        while n_bytes <= limit and (piece := stream.read(PIECE_BYTES)):
            data += piece
            n_bytes = max(n_bytes, len(data))
    if n_bytes > limit:
        raise InputError(
            f"the file has {n_bytes} bytes, more than the {limit} of one document",
            cure="cut it into parts",
        )
    text = _decode(data)
    base = place.name.rsplit("/", 1)[-1]
    title = _first_heading(text) if kind in MARKDOWN else ""
    yield Document(place.name, title or one_line(base[: -len(kind)] or base), text), None
