"""How the demo shows itself on a terminal, or as one JSON object."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mksearch_client.commands import progress_bar
from mksearch_client.demo.plaintext import PlaintextHit
from mksearch_client.publication import Progress as ProgressCallback
from mksearch_client.reading import Skipped
from mksearch_client.result import SearchResult
from mksearch_client.terminal import print_json, safe

__all__ = ["Show"]

_SKIPPED_SHOWN = 5


class Show:
    """Prints the scenes; with ``as_json`` it keeps them and prints one object at the end."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        # Messages go where they do not mix with the object on standard output.
        self._console = Console(file=sys.stderr if as_json else sys.stdout, highlight=False)
        self._scenes: list[dict[str, Any]] = []

    def say(self, text: str) -> None:
        """Print one line."""
        self._console.print(Text(safe(text)))

    def skipped(self, skipped: Sequence[Skipped]) -> None:
        """Print the first files that were not read, and how many there were."""
        for skip in skipped[:_SKIPPED_SHOWN]:
            line = "" if skip.line is None else f" line {skip.line}"
            self.say(f"skipped {skip.path}{line}: {skip.reason}")
        if len(skipped) > _SKIPPED_SHOWN:
            self.say(f"skipped {len(skipped) - _SKIPPED_SHOWN} more")

    def title(self, text: str) -> None:
        """Print the heading of a scene."""
        self._console.print()
        self._console.print(Text(text, style="bold"))

    def progress(self) -> AbstractContextManager[ProgressCallback]:
        """Show progress on a terminal while the block runs."""
        return progress_bar(self._console)

    def answer(self, scene: str, result: SearchResult, plain: Sequence[PlaintextHit]) -> None:
        """Show the hits of ``result`` beside those of the plaintext engine."""
        table = Table(box=None, pad_edge=False, expand=True)
        table.add_column("#", justify="right", min_width=2)
        for heading in ("score", "plaintext"):
            table.add_column(heading, justify="right", no_wrap=True, min_width=9)
        table.add_column("title", no_wrap=True, overflow="ellipsis", ratio=2)
        table.add_column("snippet", no_wrap=True, overflow="ellipsis", ratio=3)
        scores = {hit.id: hit.score for hit in plain}
        for hit in result.hits:
            own = scores.get(hit.id)
            table.add_row(
                str(hit.rank),
                f"{hit.score:.6f}",
                "-" if own is None else f"{own:.6f}",
                Text(safe(hit.title or hit.id)),
                Text(safe(hit.snippet), style="dim"),
            )
        if result.hits:
            self._console.print(table)
        for warning in result.warnings:
            self.say(f"note: {safe(warning)}")
        self._scenes.append({"scene": scene, "answer": result.to_json()})

    def outcome(self, scene: str, answer: dict[str, Any]) -> None:
        """Keep an answer for the JSON object; what a reader sees of it is said apart."""
        self._scenes.append({"scene": scene, "answer": answer})

    def refusal(self, scene: str, error: dict[str, Any]) -> None:
        """Show an answer that was refused."""
        self.say(f"refused: {error['message']}")
        self.say(f"cure: {error['cure']}")
        self._scenes.append({"scene": scene, "error": error})

    def finish(self, summary: dict[str, Any]) -> None:
        """Print the JSON object, if that is what was asked for."""
        if self._as_json:
            print_json({**summary, "scenes": self._scenes})
