"""Read JSON lines as documents, bounded in memory whatever they hold."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from typing import Any, Final

from mksearch.errors import InputError
from mksearch_client.documents import Document, Skipped
from mksearch_client.plain_text import CONVERT, PIECE_BYTES, encoding_of
from mksearch_client.walking import Found, Place, open_regular, skipped_by

__all__ = ["read_json_lines"]

_ID_FIELDS: Final = ("_id", "id")
_TEXT_FIELDS: Final = ("text", "contents", "body")


class _Integer(str):
    """The digits of a JSON integer: an id may have more of them than `int` converts."""

    __slots__ = ()


_JSON: Final = json.JSONDecoder(parse_int=_Integer)


class _AsUtf8(io.RawIOBase):
    """Read UTF-16 or UTF-32 as UTF-8; a lone surrogate is left for its own line to fail on."""

    def __init__(self, stream: io.BufferedIOBase, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
        self._pending = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._pending:
            piece = self._stream.read(PIECE_BYTES)
            text = self._decoder.decode(piece, not piece)
            self._pending = text.encode("utf-8", "surrogatepass")
            if not piece:
                break
        n_bytes = min(len(buffer), len(self._pending))
        buffer[:n_bytes] = self._pending[:n_bytes]
        self._pending = self._pending[n_bytes:]
        return n_bytes


def _lines_of(path: str, kind: str, limit: int) -> Iterator[bytes | InputError]:
    """Yield each line, or what is wrong with it; one above the limit is never held whole."""
    with open_regular(path) as file:
        try:
            stream: io.BufferedReader[Any] | gzip.GzipFile = file
            if kind.endswith(".gz"):
                # Not buffered once more: that would lose whole lines before a damaged place.
                stream = gzip.GzipFile(fileobj=file)
            bom, encoding = encoding_of(stream.peek(4))
            stream.read(len(bom))
            if encoding != "utf-8":
                stream = io.BufferedReader(_AsUtf8(stream, encoding))
            # Room for the line's end, which is not part of the document.
            while piece := stream.readline(limit + 2):
                is_whole = piece.endswith(b"\n") or len(piece) < limit + 2
                line = piece.rstrip(b"\r\n")
                if is_whole and len(line) <= limit:
                    yield line
                    continue
                del line
                while piece and not piece.endswith(b"\n"):
                    piece = stream.readline(PIECE_BYTES)
                yield InputError(
                    f"the line has more than the {limit} bytes of one document",
                    cure="cut it into parts",
                )
        except (OSError, EOFError, zlib.error, UnicodeError) as exc:
            yield InputError(
                f"damaged from here on ({exc})",
                cure="the lines before are kept; restore the file for the others",
            )


def _string_of(value: dict[str, object], name: str) -> str:
    field = value.get(name)
    if field is None:
        return ""
    if not isinstance(field, str):
        kinds = {dict: "an object", list: "a list", float: "a fraction", bool: "true or false"}
        raise InputError(f"{name} is {kinds[type(field)]}", cure=f"write {name} as a string")
    return str(field)


def _document_of(line: bytes, default_id: str) -> Document:
    """Make a document of one line; `InputError` if it is no JSON object or a field is unfit.

    The text is the first of the fields ``text``, ``contents`` and ``body`` that is there; without
    any of them all other strings of the object, in its order, so that nothing vanishes unsaid.
    """
    try:
        value = _JSON.decode(line.decode("utf-8").removeprefix("\ufeff"))
    except UnicodeDecodeError as exc:
        message = f"the line is not valid UTF-8 at its byte {exc.start}"
        raise InputError(message, cure=CONVERT) from None
    except RecursionError:
        raise InputError("the JSON is nested too deeply", cure="flatten the object") from None
    except json.JSONDecodeError as exc:
        message = f"malformed JSON ({exc.msg} at character {exc.pos})"
        raise InputError(message, cure="mend the line") from None
    if not isinstance(value, dict):
        raise InputError("the line is not a JSON object", cure='write {"_id": ..., "text": ...}')
    id_field = next((name for name in _ID_FIELDS if value.get(name) is not None), None)
    text_field = next((name for name in _TEXT_FIELDS if name in value), None)
    if text_field is not None:
        text = _string_of(value, text_field)
    else:
        strings = (v for n, v in value.items() if n not in (*_ID_FIELDS, "title"))
        text = "\n".join(v for v in strings if type(v) is str)
    own_id = default_id if id_field is None else _string_of(value, id_field)
    return Document(own_id, _string_of(value, "title").replace("\0", " "), text)


def read_json_lines(place: Place, kind: str, limit: int) -> Iterator[Found | Skipped]:
    """Yield the documents of JSON lines, and what is wrong with the other lines."""
    is_empty = True
    for number, line in enumerate(_lines_of(place.path, kind, limit), 1):
        try:
            if isinstance(line, InputError):
                raise line
            if line.strip():
                yield _document_of(line, f"{place.name}#{number}"), number
                is_empty = False
        except InputError as exc:
            yield skipped_by(place.path, exc, number)
            is_empty = False
    if is_empty:
        raise InputError("the file has no lines", cure="remove it, or write a document a line")


# --- the reading --------------------------------------------------------------------------------
