"""Walk over files and folders: which are read, and why the others are not."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mksearch.errors import InputError
from mksearch_client.documents import Document, Skipped
from mksearch_client.terminal import safe

__all__ = [
    "JSON_LINES",
    "KINDS",
    "MARKDOWN",
    "Found",
    "Place",
    "check_name",
    "kind_of",
    "open_regular",
    "shown",
    "skipped_by",
    "walk",
]

MARKDOWN: Final = (".md", ".markdown")
JSON_LINES: Final = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
#: File name endings that are read, in lower case; a name in upper case counts as well.
KINDS: Final = (".txt", ".text", *MARKDOWN, ".rst", *JSON_LINES)


@dataclass(frozen=True, slots=True)
class Place:
    """A file or folder on a walk: where, its name below the given path, its path without links."""

    path: str
    name: str
    real: str
    is_folder: bool
    below_link: bool


Found = tuple[Document, int | None]


def shown(path: str) -> str:
    """Return a path for people, bytes that are not UTF-8 written out."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def skipped_by(path: str, error: InputError | OSError, line: int | None = None) -> Skipped:
    """Return what was not read because of ``error``."""
    if isinstance(error, OSError):
        error = InputError(
            f"cannot be read ({error.strerror})", cure="check that it exists and its permissions"
        )
    return Skipped(shown(path), str(error), line)


def check_name(name: str) -> None:
    """Raise InputError unless ``name`` is valid UTF-8."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError("its name is not valid UTF-8", cure="rename it") from None


def kind_of(name: str) -> str:
    """Return the ending of ``KINDS`` that ``name`` has; raise InputError for none."""
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


def _follow_link(link: Place, parent: Place, root: str) -> Place:
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
    return Place(link.path, link.name, real, is_folder, is_folder or link.below_link)


def _list_folder(folder: Place, root: str) -> Iterator[Place | Skipped]:
    """Yield what a folder holds in the order of the bytes of relative paths."""
    found: list[tuple[bytes, Place | Skipped]] = []
    with os.scandir(folder.path) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            key = os.fsencode(entry.name)
            try:
                check_name(entry.name)
                place = Place(
                    entry.path,
                    f"{folder.name}/{entry.name}" if folder.name else entry.name,
                    os.path.join(folder.real, entry.name),
                    entry.is_dir(follow_symlinks=False),
                    folder.below_link,
                )
                if entry.is_symlink():
                    place = _follow_link(place, folder, root)
            except (InputError, OSError) as exc:
                found.append((key, skipped_by(entry.path, exc)))
            else:
                found.append((key + b"/" if place.is_folder else key, place))
    found.sort(key=lambda pair: pair[0])
    yield from (item for _, item in found)


def walk(given: str) -> Iterator[Place | Skipped]:
    """Yield the files at or below a path, and what of it is left out."""
    root = os.path.realpath(given)
    is_folder = os.path.isdir(given)
    name = "" if is_folder else os.path.basename(given)
    # No recursion: folders may be nested deeper than Python's calls.
    stack: list[Place | Skipped] = [Place(given, name, root, is_folder, False)]
    while stack:
        place = stack.pop()
        if isinstance(place, Skipped) or not place.is_folder:
            yield place
            continue
        try:
            stack.extend(reversed(list(_list_folder(place, root))))
        except OSError as exc:
            yield skipped_by(place.path, exc)


def open_regular(path: str) -> io.BufferedReader:
    """Open a regular file, without waiting for the other end of a pipe."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "a pipe, socket or device")
    return os.fdopen(descriptor, "rb")
