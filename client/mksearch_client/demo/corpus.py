"""The documents of the demo: the reader's own, or this Python's documentation as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from mksearch_client.python_corpus import python_documents
from mksearch_client.reading import Document, read_paths

__all__ = ["DemoDocuments"]


class DemoDocuments:
    """Where the documents are.

    Attributes:
        paths: files and folders to publish.
    """

    def __init__(self, paths: Sequence[Path], folder: Path) -> None:
        """Use ``paths``, or write this Python's documentation into ``folder`` without any."""
        self.paths = list(paths)
        self._own = bool(paths)
        if not paths:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "python.jsonl"
            with path.open("w", encoding="utf-8") as file:
                for document in python_documents():
                    fields = {"_id": document.id, "title": document.title, "text": document.text}
                    file.write(json.dumps(fields, ensure_ascii=False) + "\n")
            self.paths = [path]

    def describe(self) -> str:
        """Say in one line where the documents come from."""
        if self._own:
            return f"documents: {', '.join(map(str, self.paths))}"
        return "documents: this Python's own documentation (language topics and docstrings)"

    def read(self) -> Iterator[Document]:
        """Yield the documents in the clear, for the plaintext engine."""
        return iter(read_paths(self.paths))
