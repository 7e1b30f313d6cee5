"""`kill -9` at random moments of publishing, activating and repairing, on the client and servers.

After each: no server serves a version that is not whole and signed, what was acknowledged is still
there, the next publish completes, and a search gives the right answer.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from datasets.loaders import load_small
from mksearch.crypto.randomness import SystemRandom
from mksearch.errors import AnswerRefused, MksearchError, NotEnoughAnswers
from mksearch.index.manifest import SignedManifest
from mksearch.text.analyzers import make_analyzer
from mksearch_client.connection import GrpcConnection
from mksearch_client.demo.plaintext import PlaintextEngine
from mksearch_client.documents import Document
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner
from mksearch_client.profile import Profile
from mksearch_client.readback import verify_server
from mksearch_client.result import SearchResult
from tests.support.crashes import ABORTED, client, forked, server
from tests.support.processes import Fleet, ServerProcess, claim, write_corpus

__all__ = ["KINDS", "KillReport", "run_kills"]

#: What is killed, and in which work; "step" ends a publish at one step towards the disk after the
#: other rather than at a random moment.
KINDS = ("publish", "activate", "server", "both", "repair", "source", "step")
_READY_S = 60.0
#: Seconds that a killed command may take besides its work.
_COMMAND_S = 60.0
_QUERY = "watering tomato"
_K = 5


class ForkedServer(ServerProcess):
    """The same program, forked from a process that has loaded it: it is back in a moment."""

    _forked: BaseProcess | None = None

    @property
    def is_running(self) -> bool:
        return self._forked is not None and self._forked.is_alive()

    def start(self) -> None:
        assert not self.is_running
        words = ("serve", "--config", str(self.config))
        self._forked = forked(server, *words, log=self.folder / "log")

    def wait_ready(self) -> None:
        """Wait until its log says where it listens, and keep its port for restarts."""
        last_s = time.monotonic() + _READY_S
        while time.monotonic() < last_s and self.is_running:
            lines = self.log().splitlines()
            ready = [line for line in lines if line.startswith(f"server {self.id} listens on ")]
            if len(ready) > self._n_ready:
                self._n_ready = len(ready)
                address = ready[-1].partition(" listens on ")[2].partition(",")[0]
                if self.address != address:
                    text = self.config.read_text()
                    self.config.write_text(text.replace(self.address, address))
                    self.address = address
                return
            time.sleep(0.01)
        self.kill()
        raise AssertionError(f"server {self.id} did not start: {self.log()[-2000:]}")

    _n_ready = 0

    def kill(self) -> None:
        if self._forked is not None:
            self._forked.kill()
            self._forked.join()
            self._forked = None


@dataclass
class KillReport:
    """What was killed, and what went wrong after it.

    Attributes:
        n_points: moments at which something was killed.
        by_kind: how many of each kind.
        n_met: of them, those that met the work before its end.
        n_between: searches between a kill and the next publish that were answered, and right.
        violations: what must not be, with the number that repeats it.
    """

    n_points: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    n_met: int = 0
    n_between: int = 0
    violations: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(self.by_kind.items()))
        between = f"{self.n_between} searches before the next publish were right"
        return [
            f"kills: {self.n_points} ({kinds}); {self.n_met} met the work, {between}",
            *self.violations,
        ]


class _World:
    """Three servers, an owner, and what was acknowledged."""

    def __init__(self, folder: Path, fleet: Fleet, profile: Profile) -> None:
        self.folder = folder
        self.fleet = fleet
        self.profile = profile
        #: Documents of every version that may be served.
        self.documents: dict[int, tuple[Document, ...]] = {}
        #: Highest version that each server acknowledged.
        self.acknowledged = dict.fromkeys(fleet.servers, 0)
        self.content: tuple[Document, ...] = ()

    def publish(self, documents: Sequence[Document]) -> None:
        """Publish to the end, and remember who acknowledged it."""
        corpus = write_corpus(self.folder / "corpus.jsonl", documents)
        with Owner(self.profile) as owner:
            report = owner.publish([corpus], delete_missing=True)
            versions = {status.id: status.version for status in owner.status()[1]}
        self.content = tuple(documents)
        self.acknowledged |= versions
        behind = [server for server, version in versions.items() if version != report.version]
        if behind:
            raise AssertionError(f"servers {behind} did not take version {report.version}")

    def forked_publish(self, documents: Sequence[Document], last: int = 0) -> BaseProcess:
        """Start the command of the owner; it ends at step ``last``, unless that is 0."""
        corpus = write_corpus(self.folder / "killed.jsonl", documents)
        words = ("owner", "publish", str(corpus), "--delete-missing")
        return forked(
            client, *words, "--profile", str(self.profile.folder), last=last, log=self.log
        )

    @property
    def log(self) -> Path:
        return self.folder / "client-log"

    # --- what must hold

    def require_whole(self) -> None:
        """Prove as a reader that each server serves a whole signed version, or none."""
        for one in self.fleet:
            entry = self.profile.servers[one.id]
            connection = GrpcConnection(
                one.id, one.address, entry.key, SystemRandom(), timeout_s=20.0
            )
            try:
                version = self._read(connection)
            finally:
                connection.close()
            if version < self.acknowledged[one.id]:
                raise AssertionError(
                    f"server {one.id} serves version {version} and acknowledged "
                    f"{self.acknowledged[one.id]}"
                )

    def _read(self, connection: GrpcConnection) -> int:
        try:
            signed = SignedManifest.decode(
                connection.manifest(), self.profile.owner_key, self.profile.collection
            )
        except MksearchError as error:
            if "nothing was published" in error.message:
                return 0
            raise AssertionError(f"server {connection.server}: {error}") from None
        try:
            verdict = verify_server(connection, signed)
        except MksearchError as error:
            verdict = str(error)
        if verdict != "ok":
            raise AssertionError(
                f"server {connection.server} serves half of version "
                f"{signed.manifest.version}: {verdict}"
            )
        return signed.manifest.version

    def require_right(self, result: SearchResult, documents: Sequence[Document]) -> None:
        engine = PlaintextEngine(tuple(documents), make_analyzer("english-1"))
        differences = engine.differences(result)
        if differences or not result.verified or result.n_docs != len(documents):
            raise AssertionError(f"a search is wrong: {differences or result.n_docs}")

    def search(self) -> SearchResult:
        with Searcher(Profile.open(self.profile.folder)) as searcher:
            return searcher.search(_QUERY, _K)

    def search_between(self, interrupted: Sequence[Document]) -> bool:
        """Search before the next publish: the version before, the new one, or a refusal."""
        try:
            result = self.search()
        except (AnswerRefused, NotEnoughAnswers):
            return False
        wanted = self.content if result.n_docs == len(self.content) else interrupted
        self.require_right(result, wanted)
        return True


class _Kills:
    """Kills at random moments of one world."""

    def __init__(self, world: _World, seed: int) -> None:
        self._world = world
        self._seed = seed
        self._pool = load_small().documents
        self.report = KillReport()
        self._publish_s = 0.5
        self._repair_s = 0.5

    def _documents(self, source: random.Random, version: int) -> tuple[Document, ...]:
        """Draw a corpus whose size no corpus near it has."""
        n_docs = 8 + version % 25
        return tuple(source.sample(self._pool, n_docs))

    def warm_up(self) -> None:
        """Publish once, and learn how long the work takes here."""
        source = random.Random(self._seed)
        self._world.publish(self._documents(source, 0))
        # The first one loads what all others have then.
        for number in (1, 2):
            documents = self._documents(source, number)
            started = time.monotonic()
            process = self._world.forked_publish(documents)
            process.join(_COMMAND_S)
            self._publish_s = self._repair_s = time.monotonic() - started
            if process.exitcode != 0:
                raise AssertionError(f"a publish failed: {self._world.log.read_text()[-2000:]}")
            self._world.publish(documents)

    def point(self, number: int) -> None:
        """Kill once, look, and go on."""
        source = random.Random(f"{self._seed}/{number}")
        kind = KINDS[number % len(KINDS)]
        documents = self._documents(source, 5 + number)
        self.report.n_points += 1
        self.report.by_kind[kind] = self.report.by_kind.get(kind, 0) + 1
        world = self._world
        try:
            if kind in {"repair", "source"}:
                self._kill_repair(source, kind)
            elif kind == "step":
                self._end_at_step(number, documents)
            else:
                self._kill_publish(source, kind, documents)
            world.fleet.start()
            world.require_whole()
            self.report.n_between += world.search_between(documents)
            world.publish(documents)
            world.require_whole()
            world.require_right(world.search(), documents)
        except (AssertionError, MksearchError) as error:
            self.report.violations.append(f"kill {number} ({kind}): {error}")
            self._start_over()

    def _start_over(self) -> None:
        """Go on with whole servers after a violation."""
        with suppress(MksearchError, AssertionError):
            self._world.fleet.start()
            self._world.publish(self._documents(random.Random(1), 7))

    # --- publishing

    def _kill_publish(
        self, source: random.Random, kind: str, documents: Sequence[Document]
    ) -> None:
        process = self._world.forked_publish(documents)
        started = time.monotonic()
        # "activate" is near the end, where versions change.
        low = 0.7 if kind == "activate" else 0.0
        delay_s = source.uniform(low, 1.05) * self._publish_s
        victims = [one for one in self._world.fleet if kind != "publish"]
        victim = source.choice(victims) if victims and kind != "activate" else None
        process.join(delay_s)
        self.report.n_met += process.is_alive()
        if kind in {"publish", "activate", "both"}:
            process.kill()
        if victim is not None:
            victim.kill()
        process.join(_COMMAND_S)
        if process.is_alive():
            process.kill()
            raise AssertionError("a publish beside a killed server did not end")
        if process.exitcode == 0:
            self._publish_s = 0.5 * (self._publish_s + time.monotonic() - started)
            self._note_acknowledged(documents, victim)

    def _end_at_step(self, number: int, documents: Sequence[Document]) -> None:
        process = self._world.forked_publish(documents, last=1 + number // len(KINDS))
        process.join(_COMMAND_S)
        self.report.n_met += process.exitcode == ABORTED
        if process.exitcode == 0:
            self._note_acknowledged(documents, None)

    def _note_acknowledged(
        self, documents: Sequence[Document], victim: ServerProcess | None
    ) -> None:
        """Take a publish that ended with 0 at its word: n - t servers hold it."""
        world = self._world
        seen = Profile.open(world.profile.folder).highest_seen()
        assert seen is not None
        world.content = tuple(documents)
        for one in world.fleet:
            if victim is None or one.id != victim.id:
                world.acknowledged[one.id] = seen.manifest.version

    # --- repairing

    def _kill_repair(self, source: random.Random, kind: str) -> None:
        world = self._world
        target, other = source.sample(list(world.fleet), 2)
        target.kill()
        source.choice((_lose_all, _lose_segments, _lose_small, _spoil))(target.data, source)
        # Its disk was lost: what it acknowledged lies on the others.
        promised, world.acknowledged[target.id] = world.acknowledged[target.id], 0
        words = ("repair", "--config", str(target.config), "--from", other.address)
        process = forked(server, *words, log=world.log)
        started = time.monotonic()
        process.join(source.uniform(0.0, 1.05) * self._repair_s)
        self.report.n_met += process.is_alive()
        (process if kind == "repair" else other).kill()
        process.join(_COMMAND_S)
        if process.exitcode == 0:
            self._repair_s = 0.5 * (self._repair_s + time.monotonic() - started)
        if not other.is_running:
            other.start()
            other.wait_ready()
        if source.random() < 0.5:
            # What an interrupted repair left is served whole, or not at all: the next publish
            # brings it.  Damage that nothing has looked at yet is not its business.
            self._require_served_whole(target, other)
        done = target.command("repair", "--from", other.address)
        if done.code != 0:
            raise AssertionError(f"the next repair failed: {done.err}")
        world.acknowledged[target.id] = promised

    def _require_served_whole(self, target: ServerProcess, other: ServerProcess) -> None:
        """Prove what an interrupted repair left, as a server that starts finds it."""
        status = target.command("status")
        if status.code != 0 or status.json["version"] == 0:
            return
        verify = target.command("verify")
        if verify.code != 0 and not (target.data / _UNTOUCHED).exists():
            raise AssertionError(f"half a version would be served: {verify.err}")


#: Written by whoever spoils a store, gone once a repair has looked at it.
_UNTOUCHED = "objects/spoiled"


def _lose_all(data: Path, _source: random.Random) -> None:
    shutil.rmtree(data)


def _lose_segments(data: Path, _source: random.Random) -> None:
    shutil.rmtree(data / "segments")


def _lose_small(data: Path, _source: random.Random) -> None:
    shutil.rmtree(data / "objects")


def _spoil(data: Path, source: random.Random) -> None:
    """Flip a few bits in the file of small objects."""
    path = data / "objects" / "data.mdb"
    held = bytearray(path.read_bytes())
    for _ in range(20):
        held[source.randrange(8192, len(held))] ^= 1 << source.randrange(8)
    path.write_bytes(held)
    (data / _UNTOUCHED).touch()


@contextmanager
def _serving(folder: Path) -> Iterator[Fleet]:
    fleet = Fleet(folder, 3, {})
    fleet.servers = {
        number: ForkedServer(folder / f"server-{number}", number, {"engine": "numpy"})
        for number in fleet.servers
    }
    with ExitStack() as stack:
        stack.callback(fleet.kill)
        for one in fleet:
            one.init()
        fleet.start()
        yield fleet


def run_kills(
    folder: Path,
    n_points: int,
    seed: int,
    *,
    first: int = 0,
    limit_s: float = float("inf"),
    at_least: int = 0,
    tell: Callable[[str], None] = lambda _line: None,
) -> KillReport:
    """Kill at random moments, one after another.

    Args:
        folder: new; for servers and profile.
        n_points: how many.
        seed: of kinds, moments and documents; the moments differ as the machine does.
        first: number of the first one, to repeat one.
        limit_s: seconds after which no other is begun, if there were ``at_least`` so many.
        at_least: see ``limit_s``.
        tell: told each violation at once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    started_s = time.monotonic()
    with _serving(folder) as fleet:
        kills = _Kills(_World(folder, fleet, claim(fleet, folder / "profile")), seed)
        kills.warm_up()
        for number in range(first, first + n_points):
            if number - first >= at_least and time.monotonic() - started_s > limit_s:
                break
            n_before = len(kills.report.violations)
            kills.point(number)
            for text in kills.report.violations[n_before:]:
                tell(text)
        return kills.report
