"""Documents as their owner publishes them, and what was not read."""

from __future__ import annotations

from dataclasses import dataclass

from mksearch import params
from mksearch.errors import InputError

__all__ = ["Document", "Skipped"]


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
