"""Server processes on free loopback ports, each with a folder of its own, and what can go wrong."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from mksearch.errors import ServerUnreachable
from mksearch.index.manifest import SignedManifest
from mksearch.index.segment import HEADER_BYTES, SegmentHeader

__all__ = ["Stage"]

#: Bytes changed in the cells of a server that the demo makes lie.
N_CHANGED = 16
_STOP_S = 10.0


class _ServerProcess:
    """One server: the same program that an operator runs."""

    def __init__(self, folder: Path, server: int) -> None:
        self.folder = folder
        self.server = server
        self._process: subprocess.Popen[str] | None = None
        self.token = ""
        self.address = "127.0.0.1:0"

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "mksearch_server.cli", *words]

    def init(self) -> None:
        """Make the server's folder and claim token."""
        words = ("init", str(self.folder), "--id", str(self.server), "--listen", self.address)
        done = subprocess.run(  # noqa: S603 - our own program
            self._command(*words, "--json"), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ServerUnreachable(
                f"server {self.server} cannot be made: {done.stderr.strip()}", server=self.server
            )
        self.token = json.loads(done.stdout)["claim_token"]

    def start(self) -> None:
        """Start the process; ``wait_ready`` tells when it answers."""
        config = self.folder / "server.toml"
        log = (self.folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(  # noqa: S603
                self._command("serve", "--config", str(config), "--json"),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Ctrl-C is for the demo, which then stops its servers in order.
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Wait for the address, and keep the same port for a restart."""
        if self._process is None or self._process.stdout is None:
            raise ServerUnreachable(f"server {self.server} was not started", server=self.server)
        line = self._process.stdout.readline()
        if not line:
            tail = (self.folder / "log").read_text(errors="replace").strip().splitlines()[-1:]
            raise ServerUnreachable(
                f"server {self.server} did not start: {' '.join(tail)}",
                cure="see its log with --keep",
                server=self.server,
            )
        fields: dict[str, Any] = json.loads(line)
        if self.address != fields["address"]:
            self.address = fields["address"]
            config = self.folder / "server.toml"
            config.write_text(config.read_text().replace("127.0.0.1:0", self.address))

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._close()

    def stop(self) -> None:
        """Ask the process to end, and end it if it does not."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        self.kill()

    def _close(self) -> None:
        if self._process is not None:
            self._process.wait(_STOP_S)
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None


class Stage:
    """The servers of the demo; a context manager that ends them, also after Ctrl-C.

    Attributes:
        processes: by server id.
    """

    def __init__(self, folder: Path, n_servers: int) -> None:
        self.processes = {
            server: _ServerProcess(folder / f"server-{server}", server)
            for server in range(1, n_servers + 1)
        }

    def __enter__(self) -> Self:
        try:
            for process in self.processes.values():
                process.init()
                process.start()
            for process in self.processes.values():
                process.wait_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        try:
            for process in self.processes.values():
                process.stop()
        finally:
            # Only a second Ctrl-C leaves any.
            for process in self.processes.values():
                process.kill()

    def tokens(self) -> dict[str, str]:
        """Return the claim token of each address."""
        return {process.address: process.token for process in self.processes.values()}

    def restart(self, server: int) -> None:
        """Start a server again that was killed."""
        self.processes[server].start()
        self.processes[server].wait_ready()

    def change_stored_bytes(self, signed: SignedManifest, server: int) -> int:
        """Change a few bytes of what ``server`` has stored; return how many.

        They lie in the cells of the documents, spread evenly: what a faulty disk or a careless or
        dishonest operator may do while the server runs.
        """
        segment = signed.manifest.groups[0].segments[0]
        path = self.processes[server].folder / "data" / "segments" / segment.id.hex()
        stored = np.memmap(path, np.uint8, "r+")
        layout = SegmentHeader.decode(stored[:HEADER_BYTES].tobytes()).layout
        start, stop = layout.offsets[0], layout.offsets[1]
        # Even offsets: the low byte of a cell.
        places = np.linspace(start, stop - 2, N_CHANGED).astype(np.int64) // 2 * 2
        stored[places] ^= 1
        stored.flush()
        return len(places)
