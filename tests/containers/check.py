"""Three servers in containers, each on a network of its own, and a client in a fourth."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from mksearch_client import Searcher
from mksearch_client.profile import Profile
from tests.containers.context import IMAGES, write_context
from tests.containers.podman import Podman
from tests.containers.tools import ROOT, ToolMissing, fetch_program
from tests.support.large_store import serve_sparse

__all__ = ["Check"]

SERVERS: Final = (1, 2, 3)
SERVER, CLIENT = "localhost/mksearch-server:check", "localhost/mksearch-client:check"
NEXT = "localhost/mksearch-server:next"
#: Compressed size of a server's image without CUDA, at most.
IMAGE_BYTES_MAX: Final = 400_000_000
#: Memory of a server: its index, here next to nothing, and this.
MEMORY: Final = "500m"
USER: Final = 10001
#: Names the volume of a server with a large index.
LARGE: Final = 9
LARGE_BYTES: Final = 1 << 30
READY_S: Final = 60.0
#: From the start of a container to the first answer, where nobody else uses the machine.
START_S: Final = 5.0
WATCH_S: Final = 60.0
_HARDENED: Final = (
    *("--read-only", "--tmpfs", "/tmp:rw,size=64m,mode=1777", "--cap-drop", "all"),
    *("--security-opt", "no-new-privileges", "--no-healthcheck"),
)


def _host(server: int) -> str:
    return f"10.231.{server}.2"


def _name(server: int) -> str:
    return f"mksearch-server-{server}"


def _network(server: int) -> str:
    return f"mksearch-net-{server}"


def _volumes(server: int) -> tuple[str, str]:
    return f"mksearch-identity-{server}", f"mksearch-data-{server}"


class Traffic:
    """Searches, one after the other, on a thread, until it is left.

    Attributes:
        n_done: searches that were answered and proved.
        failures: what went wrong, a line each.
    """

    def __init__(self, profile: Path) -> None:
        self.n_done = 0
        self.failures: list[str] = []
        self._profile = profile
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def is_beyond(self, n_done: int) -> bool:
        """Tell whether more searches than these have been answered."""
        return self.n_done > n_done

    def _ask(self) -> None:
        with Searcher(self._profile) as searcher:
            while not self._over.is_set():
                try:
                    found = searcher.search("apples", k=3)
                    if not (found.verified and found.hits):
                        self.failures.append("a search without proof or hits")
                    self.n_done += 1
                except Exception as error:  # noqa: BLE001 - every kind is a search that was lost
                    self.failures.append(f"{type(error).__name__}: {error}")


class Check:
    """One run."""

    def __init__(self, folder: Path) -> None:
        """Work below ``folder``; images and the base stay there for the next run."""
        self.podman = Podman(folder / "podman")
        self._folder = folder
        self._tokens: dict[int, str] = {}
        self._profile = folder / "profile"

    def run(self) -> None:
        """Do all of it.

        Raises:
            ToolMissing: this machine cannot run containers.
            RuntimeError, AssertionError: something does not hold.
        """
        self.podman.require_working()
        self._clean()
        try:
            self._build()
            self._start()
            self._publish_and_search()
            self._lose_one()
            self._watch()
            self._upgrade()
            self._start_large()
            self._refuse()
        finally:
            self._clean()

    # --- images ---

    def _build(self) -> None:
        context = self._folder / "context"
        with _step("wheels, lists of packages and base"), ThreadPoolExecutor(2) as pool:
            for done in [
                pool.submit(write_context, context),
                pool.submit(self.podman.make_base),
            ]:
                done.result()
        with (
            _step("images of server and client, built without a network"),
            ThreadPoolExecutor(2) as pool,
        ):
            builds = [
                pool.submit(self.podman.build, context, file, f"localhost/mksearch-{image}:check")
                for image, file in IMAGES.items()
            ]
            for built in builds:
                built.result()
        with _step("size and list of packages"):
            n_bytes = self.podman.compressed_bytes(SERVER)
            print(f"   {n_bytes / 1e6:.0f} MB compressed")
            assert n_bytes < IMAGE_BYTES_MAX, f"more than {IMAGE_BYTES_MAX / 1e6:.0f} MB"
            for image in (SERVER, CLIENT):
                self._require_listed(image)

    def _require_listed(self, image: str) -> None:
        """Require that an image holds what its list of packages says, and nothing else."""
        script = (
            "import importlib.metadata as m, json, pathlib, sys;"
            "s = json.loads(pathlib.Path(sys.prefix, 'sbom.cdx.json').read_text());"
            "own = s['metadata']['component'];"
            "listed = {(c['name'], c['version']) for c in [own, *s['components']]};"
            "n = lambda t: t.lower().replace('_', '-').replace('.', '-');"
            "there = {(n(d.name), d.version) for d in m.distributions()};"
            "print(json.dumps([sorted(there ^ {(n(a), b) for a, b in listed}), len(there)]))"
        )
        words = ("run", "--rm", *_HARDENED, "--entrypoint", "/opt/mksearch/bin/python", image)
        differing, n_there = json.loads(self.podman(*words, "-c", script))
        assert differing == [], f"{image}: not both there and listed: {differing}"
        print(f"   {image}: {n_there} packages, as listed")

    # --- servers ---

    def _init(self, server: int) -> None:
        identity, data = _volumes(server)
        self.podman(
            "network", "create", "--internal", "--subnet", f"10.231.{server}.0/24", _network(server)
        )
        words = (
            "--rm",
            *_HARDENED,
            "-v",
            f"{identity}:/srv/mksearch",
            "-v",
            f"{data}:/srv/mksearch/data",
        )
        made = self.podman(
            *("run", *words, SERVER, "init", "/srv/mksearch", "--id", str(server)),
            *("--listen", "0.0.0.0:7101", "--host", _host(server), "--log-format", "json"),
            *("--admin-listen", "0.0.0.0:9101", "--admin-host", _host(server), "--json"),
        )
        self._tokens[server] = json.loads(made)["claim_token"]

    def _serve(
        self, server: int, image: str = SERVER, *, data_of: int = 0, memory: str = MEMORY
    ) -> None:
        identity, data = _volumes(server)[0], _volumes(data_of or server)[1]
        self.podman(
            *("run", "-d", "--name", _name(server), *_HARDENED, "--memory", memory),
            *("--network", _network(server), "--ip", _host(server), "--stop-timeout", "40"),
            *("-v", f"{identity}:/srv/mksearch", "-v", f"{data}:/srv/mksearch/data", image),
        )

    def _is_ready(self, server: int) -> bool:
        with suppress(OSError):
            return _get(f"http://{_host(server)}:9101/readyz").strip() == "ready"
        return False

    def _start(self) -> None:
        with _step("three servers, each with its own network, identity and volume"):
            for server in SERVERS:
                self._init(server)
            for server in SERVERS:
                began_s = time.monotonic()
                self._serve(server)
                self.podman.wait("ready", partial(self._is_ready, server), READY_S)
                took_s = time.monotonic() - began_s
                print(f"   server {server} answers after {took_s:.1f} s (wanted: {START_S:g} s)")
            for server in SERVERS:
                self._require_bare(server)
                self.podman(
                    "exec",
                    _name(server),
                    "mksearch-server",
                    "probe",
                    "--config",
                    "/srv/mksearch/server.toml",
                )

    def _require_bare(self, server: int) -> None:
        """Require that a server runs as nobody, without capabilities, and writes no program."""
        status = self.podman("exec", _name(server), "cat", "/proc/1/status")
        said = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        assert said["Uid"].split() == [str(USER)] * 4, said["Uid"]
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(said[name], 16) == 0, (name, said[name])
        assert said["NoNewPrivs"].strip() == "1"
        self.podman("exec", _name(server), "sh", "-c", "! touch /opt/mksearch/x 2>/dev/null")

    # --- a collection ---

    def _client(self, *words: str | Path, mounts: Sequence[str] = ()) -> dict[str, Any]:
        networks = ",".join(map(_network, SERVERS))
        said = self.podman(
            *("run", "--rm", *_HARDENED, "--network", networks),
            *("-v", f"{self._profile}:/profile", *mounts, CLIENT, *words, "--json"),
        )
        found = json.loads(said)
        assert isinstance(found, dict)
        return found

    def _search(self) -> dict[str, Any]:
        found = self._client("search", "red apples", "-k", "3")
        assert found["verified"], found
        assert found["hits"], found
        return found

    def _publish_and_search(self) -> None:
        shutil.rmtree(self._profile, ignore_errors=True)
        self._profile.mkdir()
        os.chown(self._profile, USER, USER)
        with _step("publish and search with proof, over TLS 1.3, by the client's image"):
            servers = [
                word
                for server in SERVERS
                for word in ("--server", f"{_host(server)}:7101={self._tokens[server]}")
            ]
            self._client("owner", "init", *servers)
            corpus = ROOT / "datasets/small/corpus.jsonl"
            mount = ("-v", f"{corpus}:/corpus.jsonl:ro")
            report = self._client("owner", "publish", "/corpus.jsonl", mounts=mount)
            found = self._search()
            print(f"   {report['documents']} documents, best hit {found['hits'][0]['id']}, proved")

    def _lose_one(self) -> None:
        with _step("one server is killed: the search goes on, proved"):
            self.podman("kill", "--signal", "KILL", _name(2))
            found = self._search()
            states = {server["id"]: server["status"] for server in found["servers"]}
            assert states[2] in ("unreachable", "unused"), states
            print(f"   {states}")
            self.podman("rm", _name(2))
            self._serve(2)
            self.podman.wait("server 2 is back", lambda: self._is_ready(2), READY_S)

    def _upgrade(self) -> None:
        context = self._folder / "next"
        context.mkdir(exist_ok=True)
        (context / "Containerfile").write_text(f"FROM {SERVER}\nLABEL upgraded=1\n")
        self.podman.build(context, "Containerfile", NEXT)
        profile = self._folder / "profile-of-the-host"
        shutil.rmtree(profile, ignore_errors=True)
        shutil.copytree(self._profile / "mksearch", profile)
        with _step("an upgrade, server by server, under traffic"):
            with Traffic(profile) as traffic:
                self.podman.wait("a first search", lambda: traffic.n_done > 0, READY_S)
                for server in SERVERS:
                    before = traffic.n_done
                    self.podman("stop", "--time", "40", _name(server))
                    code = self.podman.inspect(_name(server))["State"]["ExitCode"]
                    assert code == 0, f"server {server} ended with {code}"
                    self.podman("rm", _name(server))
                    self._serve(server, NEXT)
                    self.podman.wait("ready", partial(self._is_ready, server), READY_S)
                    self.podman.wait(
                        "searches",
                        partial(traffic.is_beyond, before + 3),
                        READY_S,
                    )
            assert traffic.failures == [], traffic.failures
            print(f"   {traffic.n_done} searches, none lost")

    def _start_large(self) -> None:
        """Start server 3 with an index of a GiB, on a copy of its volume."""
        with _step("a server with an index of 1 GiB is started"):
            profile = Profile.open(self._folder / "profile-of-the-host")
            signed = profile.highest_seen()
            assert signed is not None
            self.podman("stop", "--time", "40", _name(3))
            self.podman("rm", _name(3))
            data = _volumes(LARGE)[1]
            self.podman("volume", "create", data)
            there = self._place(data)
            shutil.rmtree(there)
            shutil.copytree(self._place(_volumes(3)[1]), there)
            n_bytes = serve_sparse(there, signed, profile.keys.signing, LARGE_BYTES)
            for path in (there, *there.rglob("*")):
                os.chown(path, USER, USER)
            began_s = time.monotonic()
            self._serve(3, NEXT, data_of=LARGE, memory=f"{(n_bytes >> 20) + 500}m")
            self.podman.wait("ready", partial(self._is_ready, 3), READY_S)
            took_s = time.monotonic() - began_s
            print(
                f"   {n_bytes / 1e9:.2f} GB: it answers after {took_s:.1f} s (wanted: {START_S:g})"
            )

    def _place(self, volume: str) -> Path:
        (found,) = json.loads(self.podman("volume", "inspect", volume))
        return Path(found["Mountpoint"])

    def _refuse(self) -> None:
        with _step("a volume of another server, and no volume at all, are named in one line"):
            self.podman("rm", "--force", "--time", "40", _name(1), _name(2))
            self._serve(1, data_of=2)
            self._require_end(1, "is of the server with the key")
            words = ("run", "--rm", *_HARDENED, SERVER)
            done = subprocess.run(
                ["podman", *words],
                capture_output=True,
                check=False,
                text=True,
                env=dict(os.environ) | dict(self.podman.environment),
                timeout=60,
            )
            line = done.stderr.strip()
            assert done.returncode == 2, done
            assert "server.toml cannot be read" in line, line
            assert len(line.splitlines()) == 1, line

    def _require_end(self, server: int, *parts: str) -> None:
        self.podman("wait", _name(server), timeout_s=READY_S)
        assert self.podman.inspect(_name(server))["State"]["ExitCode"] == 1
        done = subprocess.run(
            ["podman", "logs", _name(server)],
            capture_output=True,
            check=True,
            text=True,
            env=dict(os.environ) | dict(self.podman.environment),
        )
        lines = (done.stdout + done.stderr).strip().splitlines()
        assert len(lines) == 1, lines
        assert all(part in lines[0] for part in parts), lines
        print(f"   {lines[0]}")

    # --- monitoring ---

    def _watch(self) -> None:
        try:
            program = fetch_program("prometheus", "prometheus", self._folder / "tools")
        except ToolMissing as why:
            print(f"== left out: a real Prometheus scrapes the servers ({why})")
            return
        with _step("a real Prometheus scrapes the servers, with the rules of this repository"):
            folder = self._folder / "prometheus"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            targets = [f"{_host(server)}:9101" for server in SERVERS]
            (folder / "prometheus.yml").write_text(
                json.dumps(
                    {
                        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                        "rule_files": [str(ROOT / "servers/monitoring/rules/*.yml")],
                        "scrape_configs": [
                            {"job_name": "mksearch", "static_configs": [{"targets": targets}]}
                        ],
                    }
                )
            )
            with _prometheus(program, folder) as address:
                self.podman.wait(
                    "every server is up",
                    lambda: len(_ask(address, "up{job='mksearch'} == 1")) == len(SERVERS),
                    WATCH_S,
                )
                versions = {row["value"][1] for row in _ask(address, "mksearch_version")}
                assert versions == {"1"}, versions
                self.podman.wait(
                    "the recording rules are evaluated",
                    lambda: bool(_ask(address, "mksearch:requests:rate5m")),
                    WATCH_S,
                )
                firing = _ask(address, "ALERTS{alertstate='firing'}")
                assert firing == [], firing

    def _clean(self) -> None:
        volumes = [name for server in (*SERVERS, LARGE) for name in _volumes(server)]
        self.podman.remove(
            [_name(server) for server in SERVERS], volumes, [_network(s) for s in SERVERS]
        )
        for name in ("profile", "profile-of-the-host"):
            shutil.rmtree(self._folder / name, ignore_errors=True)


@contextmanager
def _step(text: str) -> Iterator[None]:
    print(f"== {text}", flush=True)
    began_s = time.monotonic()
    yield
    print(f"   {time.monotonic() - began_s:.0f} s", flush=True)


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


def _ask(address: str, expression: str) -> list[dict[str, Any]]:
    try:
        query = urllib.parse.urlencode({"query": expression})
        found = json.loads(_get(f"http://{address}/api/v1/query?{query}"))["data"]["result"]
    except OSError:
        return []
    assert isinstance(found, list)
    return found


@contextmanager
def _prometheus(program: str, folder: Path) -> Iterator[str]:
    """Run Prometheus on a loopback port until the end of the block."""
    address = "127.0.0.1:19095"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(program, f"--config.file={folder}/prometheus.yml"),
                *(f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}"),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    try:
        yield address
    finally:
        process.terminate()
        process.wait(20)
