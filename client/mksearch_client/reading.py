"""Reading documents from files and folders: what cannot be read is named, never guessed at.

Real folders hold damaged, oversized, mislabelled and hostile files.  One of them must not stop
the others, vanish in silence, or fill the memory: each is either a document or a `Skipped` with
its cause and cure.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mksearch import params
from mksearch.errors import InputError, ParameterError
from mksearch_client.terminal import safe

__all__ = [
    "KINDS",
    "MAX_DOCUMENT_BYTES",
    "SKIPPED_MAX",
    "Document",
    "Reading",
    "Skipped",
    "read_paths",
]

_MARKDOWN: Final = (".md", ".markdown")
_JSON_LINES: Final = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
#: File name endings that are read, in lower case; a name in upper case counts as well.
KINDS: Final = (".txt", ".text", *_MARKDOWN, ".rst", *_JSON_LINES)
#: Largest document, bytes of its file or line: a longer one is far more often a dump than a text.
MAX_DOCUMENT_BYTES: Final = 32 << 20
#: Entries kept in ``Reading.skipped``, so that a file of a billion bad lines does not fill the
#: memory; ``Reading.n_skipped`` counts them all.
SKIPPED_MAX: Final = 10_000

_PIECE_BYTES: Final = 1 << 16
#: Bytes at the start of a file that decide whether it is binary, and the printable share of
#: their characters that a text with NULs must reach.
_HEAD_BYTES: Final = 8192
_PRINTABLE_MIN: Final = 0.9
#: Characters of a Markdown text in which its first heading is looked for.
_HEADING_CHARS: Final = 1 << 16
_ID_FIELDS: Final = ("_id", "id")
_TEXT_FIELDS: Final = ("text", "contents", "body")
_CONVERT: Final = "convert it, for example with iconv"
# UTF-32's mark comes before UTF-16's, which is its beginning.
_BOMS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass(frozen=True, slots=True)
class Document:
    """Hold one document as its owner publishes it.

    Attributes:
        id: external id, 1..`params.ID_BYTES_MAX` bytes of UTF-8, unique in a collection.
        title: title, may be empty.
        text: body, may be empty: an empty document is a document.

    Raises:
        InputError: the id is empty or too long, or a string has a lone surrogate and therefore
            no UTF-8.
    """

    id: str
    title: str
    text: str

    def __post_init__(self) -> None:
        """Check the id's length, and that every string has a UTF-8 form."""
        for field, value in (("id", self.id), ("title", self.title), ("text", self.text)):
            try:
                n_bytes = len(value) if value.isascii() else len(value.encode("utf-8"))
            except UnicodeEncodeError as exc:
                raise InputError(
                    f"the {field} has a lone surrogate at character {exc.start}",
                    cure="write the whole character, or take it out",
                ) from None
            if field == "id" and not 1 <= n_bytes <= params.ID_BYTES_MAX:
                raise InputError(
                    f"the id has {n_bytes} bytes, not 1..{params.ID_BYTES_MAX}",
                    cure="give the document another id",
                )

    @property
    def searchable(self) -> str:
        """The string that is analysed: title, a blank, text; without a title the text alone."""
        return f"{self.title} {self.text}" if self.title else self.text


@dataclass(frozen=True, slots=True)
class Skipped:
    r"""Name something that was not read.

    Attributes:
        path: the file or folder; bytes of its name that are not UTF-8 are written ``\xff``.
            It may hold control characters that the name holds: show it by `terminal.safe`.
        reason: one line, cause and cure.
        line: number of the line concerned, from 1, or None for the whole file or folder.
    """

    path: str
    reason: str
    line: int | None


@dataclass(frozen=True, slots=True)
class _Place:
    """A file or folder on a walk: where, its name below the given path, its path without links."""

    path: str
    name: str
    real: str
    is_folder: bool
    below_link: bool


_Found = tuple[Document, int | None]


def _shown(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _skipped(path: str, error: InputError | OSError, line: int | None = None) -> Skipped:
    if isinstance(error, OSError):
        error = InputError(
            f"cannot be read ({error.strerror})", cure="check that it exists and its permissions"
        )
    return Skipped(_shown(path), str(error), line)


# --- folders ------------------------------------------------------------------------------------


def _check_name(name: str) -> None:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError("its name is not valid UTF-8", cure="rename it") from None


def _kind_of(name: str) -> str:
    for kind in KINDS:
        if name.lower().endswith(kind):
            return kind
    suffix = safe(os.path.splitext(name)[1], 20)
    raise InputError(
        f"files {'of kind ' + suffix if suffix else 'without a suffix'} are not read",
        cure=f"convert it to one of {' '.join(KINDS)}",
    )


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _follow_link(link: _Place, parent: _Place, root: str) -> _Place:
    """Resolve a symbolic link; `InputError` where following it would leave, loop or multiply."""
    try:
        real = os.path.realpath(link.path, strict=True)
        is_folder = stat.S_ISDIR(os.stat(real).st_mode)
    except OSError as exc:
        raise InputError(f"a link to nothing ({exc.strerror})", cure="mend the link") from None
    if not _is_within(real, root):
        raise InputError("a link that leaves the folder", cure="give its target as a path too")
    if is_folder and _is_within(parent.real, real):
        raise InputError("a link to a folder that holds it", cure="nothing is lost without it")
    # Links below links could double the walk at every step.
    if is_folder and link.below_link:
        raise InputError("a link to a folder, below another such link", cure="give it as a path")
    return _Place(link.path, link.name, real, is_folder, is_folder or link.below_link)


def _list_folder(folder: _Place, root: str) -> Iterator[_Place | Skipped]:
    """Yield what a folder holds in the order of the bytes of relative paths."""
    found: list[tuple[bytes, _Place | Skipped]] = []
    with os.scandir(folder.path) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            key = os.fsencode(entry.name)
            try:
                _check_name(entry.name)
                place = _Place(
                    entry.path,
                    f"{folder.name}/{entry.name}" if folder.name else entry.name,
                    os.path.join(folder.real, entry.name),
                    entry.is_dir(follow_symlinks=False),
                    folder.below_link,
                )
                if entry.is_symlink():
                    place = _follow_link(place, folder, root)
            except (InputError, OSError) as exc:
                found.append((key, _skipped(entry.path, exc)))
            else:
                found.append((key + b"/" if place.is_folder else key, place))
    found.sort(key=lambda pair: pair[0])
    yield from (item for _, item in found)


def _walk(given: str) -> Iterator[_Place | Skipped]:
    """Yield the files at or below a path, and what of it is left out."""
    root = os.path.realpath(given)
    is_folder = os.path.isdir(given)
    name = "" if is_folder else os.path.basename(given)
    # No recursion: folders may be nested deeper than Python's calls.
    stack: list[_Place | Skipped] = [_Place(given, name, root, is_folder, False)]
    while stack:
        place = stack.pop()
        if isinstance(place, Skipped) or not place.is_folder:
            yield place
            continue
        try:
            stack.extend(reversed(list(_list_folder(place, root))))
        except OSError as exc:
            yield _skipped(place.path, exc)


def _open(path: str) -> io.BufferedReader:
    """Open a regular file, without waiting for the other end of a pipe."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "a pipe, socket or device")
    return os.fdopen(descriptor, "rb")


# --- plain text ---------------------------------------------------------------------------------


def _encoding_of(head: bytes) -> tuple[bytes, str]:
    """Return the byte order mark that bytes begin with, b"" if none, and the encoding."""
    return next((pair for pair in _BOMS if head.startswith(pair[0])), (b"", "utf-8"))


def _is_binary(head: bytes) -> bool:
    if b"\0" not in head or _encoding_of(head)[1] != "utf-8":
        return False
    text = head.decode("utf-8", "replace")
    n_printable = sum((c.isprintable() or c.isspace()) and c != "\ufffd" for c in text)
    return n_printable < _PRINTABLE_MIN * len(text)


def _decode(data: bytearray) -> str:
    head = bytes(data[:_HEAD_BYTES])
    if _is_binary(head):
        raise InputError(
            "binary data, or UTF-16 without a byte order mark", cure=f"if it is text, {_CONVERT}"
        )
    bom, encoding = _encoding_of(head)
    del data[: len(bom)]
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as exc:
        # "utf-16-le" is UTF-16 to its owner.
        name = "-".join(encoding.upper().split("-")[:2])
        message = f"not valid {name} at byte {exc.start + len(bom)}"
        raise InputError(message, cure=_CONVERT) from None


def _one_line(title: str) -> str:
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
        if heading := _one_line(linked.replace("`", "").replace("**", "")):
            return heading
    return ""


def _read_text(place: _Place, kind: str, limit: int) -> Iterator[_Found]:
    data = bytearray()
    with _open(place.path) as stream:
        n_bytes = os.fstat(stream.fileno()).st_size
        while n_bytes <= limit and (piece := stream.read(_PIECE_BYTES)):
            data += piece
            n_bytes = max(n_bytes, len(data))
    if n_bytes > limit:
        raise InputError(
            f"the file has {n_bytes} bytes, more than the {limit} of one document",
            cure="cut it into parts",
        )
    text = _decode(data)
    base = place.name.rsplit("/", 1)[-1]
    title = _first_heading(text) if kind in _MARKDOWN else ""
    yield Document(place.name, title or _one_line(base[: -len(kind)] or base), text), None


# --- JSON lines ---------------------------------------------------------------------------------


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
            piece = self._stream.read(_PIECE_BYTES)
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
    with _open(path) as file:
        try:
            stream: io.BufferedReader[Any] | gzip.GzipFile = file
            if kind.endswith(".gz"):
                # Not buffered once more: that would lose whole lines before a damaged place.
                stream = gzip.GzipFile(fileobj=file)
            bom, encoding = _encoding_of(stream.peek(4))
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
                    piece = stream.readline(_PIECE_BYTES)
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
        raise InputError(message, cure=_CONVERT) from None
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


def _read_json_lines(place: _Place, kind: str, limit: int) -> Iterator[_Found | Skipped]:
    is_empty = True
    for number, line in enumerate(_lines_of(place.path, kind, limit), 1):
        try:
            if isinstance(line, InputError):
                raise line
            if line.strip():
                yield _document_of(line, f"{place.name}#{number}"), number
                is_empty = False
        except InputError as exc:
            yield _skipped(place.path, exc, number)
            is_empty = False
    if is_empty:
        raise InputError("the file has no lines", cure="remove it, or write a document a line")


# --- the reading --------------------------------------------------------------------------------


class Reading:
    """Iterate the documents at some paths, one in memory at a time, and note what is skipped.

    Made by `read_paths`.  Each iteration reads anew, from the first path, and starts the counts
    and ``skipped`` afresh; they are complete when the iteration has ended.

    Attributes:
        paths: the paths that were given.
        max_document_bytes: largest document, bytes of its file or line.
        n_documents: documents so far.
        n_skipped: files, folders, links and lines left out so far.
        skipped: the first `SKIPPED_MAX` of them, in the order of reading.
    """

    def __init__(self, paths: Sequence[str], max_document_bytes: int) -> None:
        """Note what is to be read; nothing is opened before the first iteration."""
        self.paths = tuple(paths)
        self.max_document_bytes = max_document_bytes
        self.n_documents = 0
        self.n_skipped = 0
        self.skipped: list[Skipped] = []

    def __iter__(self) -> Iterator[Document]:
        """Yield the documents, each id once: of equal ids the first document stays.

        Whatever the files hold, nothing is raised.
        """
        self.n_documents = self.n_skipped = 0
        self.skipped = []
        first: dict[str, tuple[str, int | None]] = {}
        for place in (place for given in self.paths for place in _walk(given)):
            for found in self._read(place):
                if isinstance(found, Skipped):
                    self._note(found)
                    continue
                document, line = found
                if document.id in first:
                    error = _duplicate(document.id, *first[document.id])
                    self._note(_skipped(place.path, error, line))
                    continue
                first[document.id] = place.path, line
                self.n_documents += 1
                yield document

    def require_documents(self) -> None:
        """Check that there is at least one document.

        Before or during an iteration this reads up to the first document, and leaves the counts
        as they are.

        Raises:
            InputError: there is none; the message names the paths, and the cure the kinds read.
        """
        if self.n_documents:
            return
        probe = Reading(self.paths, self.max_document_bytes)
        if next(iter(probe), None) is not None:
            return
        names = ", ".join(safe(_shown(path)) for path in self.paths[:5])
        if len(self.paths) > 5:
            names += f" and {len(self.paths) - 5} more"
        message = f"no document in {names}"
        if probe.skipped:
            one = probe.skipped[0]
            message += f" ({probe.n_skipped} skipped; the first: {safe(one.path)}: {one.reason})"
        raise InputError(message, cure=f"give files or folders with {' '.join(KINDS)}")

    def _read(self, place: _Place | Skipped) -> Iterator[_Found | Skipped]:
        if isinstance(place, Skipped):
            yield place
            return
        try:
            _check_name(place.name)
            kind = _kind_of(place.name)
            read = _read_json_lines if kind in _JSON_LINES else _read_text
            yield from read(place, kind, self.max_document_bytes)
        except (InputError, OSError) as exc:
            yield _skipped(place.path, exc)

    def _note(self, skipped: Skipped) -> None:
        self.n_skipped += 1
        if len(self.skipped) < SKIPPED_MAX:
            self.skipped.append(skipped)


def _duplicate(document_id: str, path: str, line: int | None) -> InputError:
    where = safe(_shown(path)) + (f" line {line}" if line else "")
    return InputError(
        f"id {safe(document_id, 80)} was read before, from {where}, and that document is kept",
        cure="give each document an id of its own",
    )


def read_paths(
    paths: str | Path | Sequence[str | Path], *, max_document_bytes: int = MAX_DOCUMENT_BYTES
) -> Reading:
    """Read documents from files and folders, lazily.

    Folders are walked in the order of the bytes of relative paths.  Left out are names that
    begin with a dot (unless given as a path themselves) and symbolic links that leave the
    folder, loop, or lie below another link to a folder.  A file whose kind is none of `KINDS` is
    skipped by name.

    A file of text is one document: its id is its path below the given one with ``/`` between
    the parts (for a given file its name), its title the first heading of a Markdown text or else
    the name without its suffix.  A JSON lines file has one document a line: ``_id`` or ``id``
    (an integer counts as its digits; without either ``name#line number``), ``title`` (may be
    missing), and the first of ``text``, ``contents`` and ``body``; without any of these the text
    is all other strings of the object, a line each.

    Text is UTF-8 with or without byte order mark, or UTF-16 or UTF-32 with one; nothing else is
    guessed.

    Args:
        paths: files or folders; one path alone may be given without a list around it.
        max_document_bytes: largest document, bytes of its file or its (unpacked) line, at least
            1.  Memory stays within a small multiple of it, whatever the files hold.

    Returns:
        The reading, which opens the files when it is iterated.

    Raises:
        InputError: no path is given, or one does not exist, is neither file nor folder, or may
            not be read.
        ParameterError: ``max_document_bytes`` is below 1.
    """
    if max_document_bytes < 1:
        raise ParameterError(
            f"a largest document of {max_document_bytes} bytes is below 1", cure="use 1 or more"
        )
    given = [os.fspath(path) for path in ([paths] if isinstance(paths, (str, Path)) else paths)]
    if not given or "" in given:
        raise InputError("no path was given", cure="give files or folders")
    for path in given:
        try:
            if os.path.isdir(path):
                os.scandir(path).close()
            else:
                _open(path).close()
        except (OSError, ValueError) as exc:
            cause = exc.strerror if isinstance(exc, OSError) else exc
            raise InputError(
                f"{safe(_shown(path))} cannot be read ({cause})",
                cure="check the spelling and the permissions",
            ) from None
    return Reading(given, max_document_bytes)
