"""The process that uses a store: the lock that keeps others out, and what it says of itself."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mksearch.errors import StorageError

__all__ = ["Running", "StoreLock", "drain", "find_running"]

_NAME = "lock"
#: Seconds that a server waits for one that is just ending, or for somebody who looks.
_PATIENCE_S = 2.0
_POLL_S = 0.05
_NOTE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Running:
    """The server that uses a store.

    Attributes:
        pid: its process id, 0 while it has not said so.
        admin: HOST:PORT of its health and metrics, "" for none.
    """

    pid: int
    admin: str


class StoreLock:
    """Keeps other servers out of a store for as long as this process lives."""

    def __init__(self, data: Path) -> None:
        """Take the lock of the store in ``data``, made if it does not exist.

        Raises:
            StorageError: another server is in it, or the folder cannot be made.
        """
        try:
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A server never closes it: the lock goes with the process, however that ends.
            self._descriptor = os.open(data / _NAME, os.O_RDWR | os.O_CREAT, 0o600)
            self._take(time.monotonic() + _PATIENCE_S)
            self.note()
        except BlockingIOError:
            raise StorageError(
                f"another server uses the store in {data}", cure="stop it, or name another folder"
            ) from None
        except OSError as error:
            raise StorageError(
                f"the store in {data} cannot be opened ({error.strerror})",
                cure="check its permissions, or name another folder as data in server.toml",
            ) from None

    def _take(self, last_s: float) -> None:
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > last_s:
                    raise
                time.sleep(_POLL_S)
            else:
                return

    def close(self) -> None:
        """Let go of the store."""
        os.close(self._descriptor)

    def note(self, admin: str = "") -> None:
        """Write into the lock file who holds it, for ``drain`` and ``status``."""
        text = json.dumps({"pid": os.getpid(), "admin": admin}).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text, 0)


def find_running(data: Path) -> Running | None:
    """Return the server that uses the store in ``data``, None where none does.

    Raises:
        StorageError: the lock file cannot be read.
    """
    try:
        descriptor = os.open(data / _NAME, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(
            f"the store in {data} cannot be read ({error.strerror})",
            cure="run this as the user that the server runs as",
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _read_note(os.pread(descriptor, _NOTE_BYTES_MAX, 0))
    finally:
        os.close(descriptor)


def _read_note(data: bytes) -> Running:
    """Read what the holder of a lock wrote; it may be in the middle of it."""
    with suppress(ValueError, KeyError, TypeError):
        fields = json.loads(data)
        if type(fields["pid"]) is int and type(fields["admin"]) is str:
            return Running(fields["pid"], fields["admin"])
    return Running(0, "")


def drain(data: Path, timeout_s: float) -> int:
    """Have the server that uses the store in ``data`` end its requests and itself; return its pid.

    Raises:
        StorageError: none runs, it cannot be told, or it has not ended within ``timeout_s``.
    """
    found = find_running(data)
    if found is None:
        raise StorageError(f"no server uses the store in {data}", cure="nothing is to be done")
    if found.pid <= 0 or not _holds_lock(found.pid, data):
        raise StorageError(
            f"the server that uses the store in {data} is not a process seen from here",
            cure="run this where the server runs: on the same host, in the same container",
        )
    try:
        os.kill(found.pid, signal.SIGTERM)
    except (ProcessLookupError, PermissionError) as error:
        raise StorageError(
            f"the server (process {found.pid}) cannot be told: {error.strerror}",
            cure="run this as the user that the server runs as",
        ) from None
    last_s = time.monotonic() + timeout_s
    while find_running(data) is not None:
        if time.monotonic() > last_s:
            raise StorageError(
                f"the server (process {found.pid}) has not ended within {timeout_s:g} s",
                cure="wait, or end it by force; what it acknowledged stays",
            )
        time.sleep(_POLL_S)
    return found.pid


def _holds_lock(pid: int, data: Path) -> bool:
    """Tell whether a process has the lock file open: in another container it is somebody else."""
    folder = Path(f"/proc/{pid}/fd")
    if not Path("/proc/self/fd").exists():
        # A system that does not show it.
        return True
    lock = (data / _NAME).stat()
    with suppress(OSError):
        for entry in folder.iterdir():
            with suppress(OSError):
                if os.path.samestat(entry.stat(), lock):
                    return True
    return False
