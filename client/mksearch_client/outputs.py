"""Where commands read from and write to: lines for people, and files named on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from mksearch.errors import InputError, UnsupportedVersion, VerificationError
from mksearch_client.profile_folder import write_file
from mksearch_client.terminal import safe

__all__ = [
    "IsOurs",
    "cured",
    "is_card",
    "note",
    "out",
    "read_input",
    "require_output",
    "starts_with",
    "write_output",
    "write_plain",
]

#: Tells of a file's bytes whether it is of the kind that is about to be written.
IsOurs = Callable[[bytes], bool]
_INPUT_BYTES_MAX = 1 << 28
_HEAD_BYTES = 1 << 20


def out(text: str) -> None:
    """Print one safe line on standard output."""
    print(safe(text))


def counted(n: int, noun: str) -> str:
    """Give "1 document", "2 documents"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def note(text: str) -> None:
    """Print one safe line on standard error."""
    print(safe(text), file=sys.stderr)


@contextmanager
def cured(cure: str) -> Iterator[None]:
    """Give what is not proved in a file the cure of a file that a person sent."""
    try:
        yield
    except UnsupportedVersion:
        raise
    except VerificationError as error:
        error.cure = cure
        raise


def read_input(path: Path, what: str) -> bytes:
    """Return the bytes of a file that an option names.

    Raises:
        InputError: it cannot be read, or is far too large.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_INPUT_BYTES_MAX + 1)
    except OSError as error:
        raise InputError(
            f"{what} {path} cannot be read ({error.strerror})", cure="check its name"
        ) from None
    if len(data) > _INPUT_BYTES_MAX:
        raise InputError(f"{path} is too large to be {what}", cure="check its name")
    return data


def starts_with(magic: bytes) -> IsOurs:
    """Recognise files by their first bytes."""
    return lambda data: data.startswith(magic)


def is_card(data: bytes) -> bool:
    """Recognise a card."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and {"format", "owner_key", "servers"} <= set(fields)


def require_output(path: Path, what: str, is_ours: IsOurs) -> None:
    """Prove that ``path`` can be written without losing something else.

    Raises:
        InputError: it is something else, or in no folder.
    """
    try:
        if path.is_dir() or not path.parent.is_dir():
            why = "it is a folder" if path.is_dir() else "there is no such folder"
            raise InputError(f"{path} cannot be written ({why})", cure="choose another file")
        if not path.is_file():
            return
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise _not_writable(path, error) from None
    # The card's fields are those of the profile itself.
    if head and (path.name == "profile.json" or not is_ours(head)):
        raise InputError(
            f"{path} is there and is no {what}", cure="choose another file, or remove it"
        )


def write_output(path: Path, data: bytes, what: str, is_ours: IsOurs) -> None:
    """Write a file, readable by its owner alone; only one of its kind is replaced.

    Raises:
        InputError: it is something else, or cannot be written.
    """
    require_output(path, what, is_ours)
    if path.exists() and not path.is_file():
        # A pipe or a device was named on purpose.
        write_plain(path, data)
        return
    try:
        write_file(path.resolve(), data)
    except OSError as error:
        raise _not_writable(path, error) from None


def write_plain(path: Path, data: bytes, mode: Literal["ab", "wb"] = "wb") -> None:
    """Write a file that is not secret, whatever it was.

    Raises:
        InputError: it cannot be written.
    """
    try:
        with path.open(mode) as file:
            file.write(data)
    except OSError as error:
        raise _not_writable(path, error) from None


def _not_writable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} cannot be written ({error.strerror})", cure="choose another file")
