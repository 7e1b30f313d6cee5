"""Real server processes on free loopback ports, and the commands as their users run them.

Every process is ended by its process id, also when a test fails; every wait is bounded.
"""

from __future__ import annotations

import io
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mksearch.params import Quorum
from mksearch_client.documents import Document
from mksearch_client.owner import Owner
from mksearch_client.profile import Profile
from mksearch_server.cli import main

__all__ = [
    "Finished",
    "Fleet",
    "ServerProcess",
    "claim",
    "clean_environment",
    "client_command",
    "interruptible_command",
    "run",
    "run_client",
    "run_server",
    "server_command",
    "serving",
    "write_corpus",
]

REPOSITORY = Path(__file__).resolve().parents[2]
#: A loaded machine starts a server in a few seconds.
READY_S = 60.0
STOP_S = 20.0
COMMAND_S = 60.0

_LOOPBACK = "127.0.0.1:0"


def server_command(*words: str) -> list[str]:
    """Give the command line of ``mksearch-server``."""
    return [sys.executable, "-m", "mksearch_server.cli", *words]


def client_command(*words: str) -> list[str]:
    """Give the command line of ``mksearch``."""
    return [sys.executable, "-m", "mksearch_client.cli", *words]


def interruptible_command(*words: str) -> list[str]:
    """Give the same, for Ctrl-C to reach it: shells have it ignored in the background."""
    main = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from mksearch_client.cli import main; sys.exit(main())"
    )
    return [sys.executable, "-c", main, *words]


def clean_environment(**changes: str) -> dict[str, str]:
    """Give this environment without what names a profile, with the packages to be found."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MKSEARCH_")
    }
    folders = [str(REPOSITORY / name) for name in ("", "client", "servers")]
    return environment | {"PYTHONPATH": os.pathsep.join(folders)} | changes


@dataclass(frozen=True)
class Finished:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on standard output."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


def run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = COMMAND_S,
    folder: Path | None = None,
    user: int | None = None,
) -> Finished:
    """Run a command to its end; kill it after ``timeout_s``."""
    done = subprocess.run(
        command,
        capture_output=True,
        check=False,
        cwd=folder,
        env=clean_environment(**(environment or {})),
        stdin=subprocess.DEVNULL,
        timeout=timeout_s,
        user=user,
    )
    return Finished(done.returncode, done.stdout.decode(), done.stderr.decode())


def run_client(*words: str | Path, **options: Any) -> Finished:
    """Run ``mksearch``; options are those of ``run``."""
    return run(client_command(*map(str, words)), **options)


def run_server(*words: str | Path, **options: Any) -> Finished:
    """Run ``mksearch-server``; options are those of ``run``."""
    return run(server_command(*map(str, words)), **options)


class ServerProcess:
    """One server: the same program that an operator runs.

    Attributes:
        id: evaluation point.
        folder: holds server.toml, key, claim token, store and log.
        address: HOST:PORT, the same after every restart.
        token: claim token.
        admin: HOST:PORT of health and metrics, "" for none.
    """

    def __init__(
        self,
        folder: Path,
        server: int,
        settings: Mapping[str, str | int],
        init_words: Sequence[str] = (),
    ) -> None:
        self._init_words = init_words
        self.id = server
        self.folder = folder
        self.address = _LOOPBACK
        self.token = ""
        self.admin = ""
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> Path:
        return self.folder / "server.toml"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def init(self) -> None:
        """Make its folder, as ``mksearch-server init`` does, in this process."""
        words = ["init", str(self.folder), "--id", str(self.id), "--listen", self.address]
        with redirect_stdout(io.StringIO()) as out:
            assert main([*words, *self._init_words, "--json"]) == 0
        self.token = json.loads(out.getvalue())["claim_token"]
        lines = self.config.read_text().splitlines()
        for name, value in self._settings.items():
            line_of = f"{name} ="
            new = f"{line_of} {json.dumps(value)}"
            # What is off by default is there as a comment.
            kept = [line for line in lines if not line.startswith((line_of, f"# {line_of}"))]
            lines = [new, *kept]
        self.config.write_text("\n".join(lines) + "\n")

    def command(self, *words: str) -> Finished:
        """Run a command of ``mksearch-server`` on it, in this process."""
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            code = main([words[0], "--config", str(self.config), *words[1:], "--json"])
        return Finished(code, out.getvalue(), err.getvalue())

    def serve_to_its_end(self, timeout_s: float) -> Finished:
        """Serve in the expectation that it ends by itself."""
        return run_server("serve", "--config", self.config, "--json", timeout_s=timeout_s)

    def start(self) -> None:
        """Start the process; ``wait_ready`` tells when it answers."""
        assert not self.is_running
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                server_command("serve", "--config", str(self.config), "--json"),
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=clean_environment(),
            )

    def wait_ready(self) -> None:
        """Wait until it answers, and keep its port for restarts."""
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], READY_S)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            self.kill()
            raise AssertionError(f"server {self.id} did not start: {self.log()}")
        fields = json.loads(line)
        assert "address" in fields, fields
        address, self.admin = fields["address"], fields.get("admin", "")
        if self.address != address:
            assert self.address == _LOOPBACK
            listen = f'listen = "{_LOOPBACK}"'
            text = self.config.read_text().replace(f"\n{listen}", f'\nlisten = "{address}"')
            self.config.write_text(text)
            self.address = address

    def restart(self) -> None:
        """Start it again, on its old port."""
        self.start()
        self.wait_ready()

    def suspend(self) -> None:
        """Make the process hang: connections stay, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a hanging process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._close()

    def stop(self) -> int:
        """Ask the process to end; return its exit code.  It is killed if it does not."""
        assert self._process is not None
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        process = self._process
        self.kill()
        return process.returncode

    def _close(self) -> None:
        assert self._process is not None
        self._process.wait(STOP_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def log(self) -> str:
        """Give what it wrote on standard error."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def memory_bytes(self) -> int:
        """Give the memory of the process that is its own: no mapped files."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return 1024 * int(line.split()[1])
        raise AssertionError("the kernel does not say how much memory a process uses")

    def n_open_files(self) -> int:
        """Give the number of its open files."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


class Fleet:
    """Servers 1..n below one folder.

    Attributes:
        servers: by id.
    """

    def __init__(
        self,
        folder: Path,
        n_servers: int,
        settings: Mapping[str, str | int],
        init_words: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.servers = {
            server: ServerProcess(folder / f"server-{server}", server, settings, init_words)
            for server in range(1, n_servers + 1)
        }

    def __getitem__(self, server: int) -> ServerProcess:
        return self.servers[server]

    def __iter__(self) -> Iterator[ServerProcess]:
        return iter(self.servers.values())

    def start(self) -> None:
        """Start every server that does not run, all at once."""
        starting = [server for server in self if not server.is_running]
        for server in starting:
            if server._process is not None:
                server._close()
            server.start()
        for server in starting:
            server.wait_ready()

    def kill(self) -> None:
        """End every process."""
        for server in self:
            server.kill()

    def tokens(self) -> dict[str, str]:
        """Give the claim token of each address."""
        return {server.address: server.token for server in self}


@contextmanager
def serving(
    folder: Path, n_servers: int = 3, *, init_words: Sequence[str] = (), **settings: str | int
) -> Iterator[Fleet]:
    """Run servers of nobody yet; end them, whatever happens.

    ``init_words`` are further words of ``mksearch-server init``, such as ``--tls``.
    """
    fleet = Fleet(folder, n_servers, settings, init_words)
    try:
        for server in fleet:
            server.init()
        fleet.start()
        yield fleet
    finally:
        fleet.kill()


def claim(fleet: Fleet, folder: Path, quorum: Quorum | None = None) -> Profile:
    """Make an owner's profile in ``folder`` and claim the servers with it."""
    bound = (quorum or Quorum(len(fleet.servers), 1)).collusion_bound
    with Owner.create(folder, fleet.tokens(), name="test", collusion_bound=bound) as owner:
        return owner.profile


def write_corpus(path: Path, documents: Sequence[Document]) -> Path:
    """Write documents as JSON lines; return the path."""
    lines = [
        json.dumps({"_id": document.id, "title": document.title, "text": document.text})
        for document in documents
    ]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path
