"""Reading documents from files and folders: what cannot be read is named, never guessed at.

Real folders hold damaged, oversized, mislabelled and hostile files.  One of them must not stop
the others, vanish in silence, or fill the memory: each is either a document or a `Skipped` with
its cause and cure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from mksearch.errors import InputError, ParameterError
from mksearch_client.documents import Document, Skipped
from mksearch_client.json_lines import read_json_lines
from mksearch_client.plain_text import read_text
from mksearch_client.terminal import safe
from mksearch_client.walking import (
    JSON_LINES,
    KINDS,
    Found,
    Place,
    check_name,
    kind_of,
    open_regular,
    shown,
    skipped_by,
    walk,
)

__all__ = [
    "KINDS",
    "MAX_DOCUMENT_BYTES",
    "SKIPPED_MAX",
    "Document",
    "Reading",
    "Skipped",
    "read_paths",
]

#: Largest document, bytes of its file or line: a longer one is far more often a dump than a text.
MAX_DOCUMENT_BYTES: Final = 32 << 20
#: Entries kept in ``Reading.skipped``, so that a file of a billion bad lines does not fill the
#: memory; ``Reading.n_skipped`` counts them all.
SKIPPED_MAX: Final = 10_000


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
        for place in (place for given in self.paths for place in walk(given)):
            for found in self._read(place):
                if isinstance(found, Skipped):
                    self._note(found)
                    continue
                document, line = found
                if document.id in first:
                    error = _duplicate(document.id, *first[document.id])
                    self._note(skipped_by(place.path, error, line))
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
        names = ", ".join(safe(shown(path)) for path in self.paths[:5])
        if len(self.paths) > 5:
            names += f" and {len(self.paths) - 5} more"
        message = f"no document in {names}"
        if probe.skipped:
            one = probe.skipped[0]
            message += f" ({probe.n_skipped} skipped; the first: {safe(one.path)}: {one.reason})"
        raise InputError(message, cure=f"give files or folders with {' '.join(KINDS)}")

    def _read(self, place: Place | Skipped) -> Iterator[Found | Skipped]:
        if isinstance(place, Skipped):
            yield place
            return
        try:
            check_name(place.name)
            kind = kind_of(place.name)
            read = read_json_lines if kind in JSON_LINES else read_text
            yield from read(place, kind, self.max_document_bytes)
        except (InputError, OSError) as exc:
            yield skipped_by(place.path, exc)

    def _note(self, skipped: Skipped) -> None:
        self.n_skipped += 1
        if len(self.skipped) < SKIPPED_MAX:
            self.skipped.append(skipped)


def _duplicate(document_id: str, path: str, line: int | None) -> InputError:
    where = safe(shown(path)) + (f" line {line}" if line else "")
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
                open_regular(path).close()
        except (OSError, ValueError) as exc:
            cause = exc.strerror if isinstance(exc, OSError) else exc
            raise InputError(
                f"{safe(shown(path))} cannot be read ({cause})",
                cure="check the spelling and the permissions",
            ) from None
    return Reading(given, max_document_bytes)
