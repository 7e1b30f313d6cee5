"""Watch a folder and publish what changes in it, once it has settled.

The folder is looked at every second or so rather than subscribed to: that works on every file
system, network ones included, and misses nothing that was changed while nobody watched.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from mksearch.errors import (
    InputError,
    MksearchError,
    NotEnoughAnswers,
    ParameterError,
    ServerRefused,
    ServerUnreachable,
)
from mksearch_client.owner import Owner
from mksearch_client.owner_reports import PublishReport
from mksearch_client.reading import read_paths

__all__ = ["Watch", "signature"]

#: What is tried again later: servers come back, another publisher ends, a file is closed.
_PASSING = (InputError, NotEnoughAnswers, ServerRefused, ServerUnreachable)

Signature = frozenset[tuple[str, int, int, int]]


def signature(path: Path) -> Signature:
    """Return what a change below ``path`` changes: names, sizes, times and inodes of files."""
    found: set[tuple[str, int, int, int]] = set()
    waiting = [os.fspath(path)]
    while waiting:
        name = waiting.pop()
        try:
            about = os.stat(name)
            if not stat.S_ISDIR(about.st_mode):
                found.add((name, about.st_size, about.st_mtime_ns, about.st_ino))
                continue
            with os.scandir(name) as entries:
                # A link to a folder is followed once it is read, not here: it may loop.
                waiting += [
                    entry.path
                    for entry in entries
                    if not entry.name.startswith(".")
                    and not (entry.is_symlink() and entry.is_dir())
                ]
        except OSError:
            # Gone, or not to be read: the publish names it.
            continue
    return frozenset(found)


class Watch:
    """Publishes a folder whenever it has changed and then not changed for a while."""

    def __init__(
        self,
        owner: Owner,
        path: Path,
        *,
        policy: str = "",
        delete_missing: bool = False,
        settle_s: float = 2.0,
        interval_s: float = 1.0,
        on_report: Callable[[PublishReport], None] = lambda _report: None,
        on_error: Callable[[MksearchError], None] = lambda _error: None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to watch; nothing is read yet.

        Args:
            owner: publishes.
            path: a folder or a file.
            policy: of the group that its documents are in.
            delete_missing: the first publish deletes documents that are not there; later ones
                delete those that vanish.
            settle_s: seconds without a change before it is published, 0 or more.
            interval_s: seconds between two looks, above 0.
            on_report: told of every publish.
            on_error: told of what is tried again.
            sleep: waits.
            clock: seconds that only rise.

        Raises:
            ParameterError: a number is out of range.
        """
        if settle_s < 0 or interval_s <= 0:
            raise ParameterError(
                f"a settle time of {settle_s} s or an interval of {interval_s} s is out of range",
                cure="use 0 or more, and more than 0",
            )
        self._owner = owner
        self._path = path
        self._policy = policy
        self._delete_missing = delete_missing
        self._settle_s = settle_s
        self._interval_s = interval_s
        self._on_report = on_report
        self._on_error = on_error
        self._sleep = sleep
        self._clock = clock
        self._ids: frozenset[str] = frozenset()
        self._published: Signature | None = None
        self._last: Signature | None = None
        self._since_s = clock()

    def run(self) -> None:
        """Watch until interrupted.

        Raises:
            MksearchError: of a kind that waiting does not cure.
        """
        read_paths([self._path])
        while True:
            self.look()
            self._sleep(self._interval_s)

    def look(self) -> None:
        """Look once; publish if there is something new that has settled."""
        now = signature(self._path)
        if now != self._last:
            self._last, self._since_s = now, self._clock()
        if now == self._published or self._clock() - self._since_s < self._settle_s:
            return
        try:
            self._publish()
        except _PASSING as error:
            self._on_error(error)
            # What is wrong is said once, and again when something changes or time has passed.
            self._since_s = self._clock() + 10 * self._interval_s
            return
        # Of before the reading: what changed meanwhile is looked at again.
        self._published = now

    def _publish(self) -> None:
        ids = frozenset(document.id for document in read_paths([self._path]))
        vanished = self._ids - ids
        if ids:
            report = self._owner.publish(
                [self._path],
                policy=self._policy,
                delete_missing=self._delete_missing,
                vanished=vanished,
            )
            self._on_report(report)
        elif vanished:
            self._owner.delete(vanished)
        self._ids = ids
        self._delete_missing = False
