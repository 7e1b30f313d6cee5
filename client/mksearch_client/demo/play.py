"""The scenes of the demo: answers, a lost server, changed stores, too many of them; then users."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from mksearch.errors import AnswerRefused, InputError, MksearchError
from mksearch.params import Quorum
from mksearch.text.analyzers import make_analyzer
from mksearch_client.demo.corpus import DemoDocuments
from mksearch_client.demo.plaintext import PlaintextEngine
from mksearch_client.demo.show import Show
from mksearch_client.demo.stage import Stage
from mksearch_client.demo.users import play_users
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner
from mksearch_client.python_corpus import DEMO_QUERIES
from mksearch_client.reading import read_paths
from mksearch_client.result import SearchResult
from mksearch_client.terminal import safe

__all__ = ["DemoOptions", "play"]

ANALYZER = "english-1"
K = 10


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the demo was asked to do.

    Attributes:
        docs: the reader's own files and folders; Python's own documentation without any.
        queries: the reader's own queries; four prepared ones without any, for Python's own docs.
        n_servers: servers, at least 3; (n_servers - 1) // 2 of them may collude.
        keep: folder that keeps what the servers stored; None for a temporary one.
        as_json: print one JSON object.
    """

    docs: Sequence[Path] = ()
    queries: Sequence[str] = ()
    n_servers: int = 3
    keep: Path | None = None
    as_json: bool = False


def play(options: DemoOptions) -> bool:
    """Play all scenes; return whether every promise was kept.

    Raises:
        InputError: no document, no query for the reader's own documents, or ``keep`` is no
            empty folder.
        ParameterError: the number of servers is out of range.
    """
    if options.docs and not options.queries:
        raise InputError(
            "your own documents need your own queries", cure='add --query "some words"'
        )
    quorum = Quorum(options.n_servers, max(1, (options.n_servers - 1) // 2))
    if options.docs:
        # Here, so that a path that was misspelled is named before anything starts.
        read_paths(list(options.docs))
    show = Show(as_json=options.as_json)
    with ExitStack() as stack:
        stack.enter_context(_ending_as_by_ctrl_c())
        if options.keep is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mksearch-demo-")))
        else:
            folder = _new_folder(options.keep)
        documents = DemoDocuments(options.docs, folder / "corpus")
        show.say(documents.describe())
        servers = stack.enter_context(Stage(folder, quorum.n_servers))
        owner = stack.enter_context(
            Owner.create(
                folder / "profile",
                servers.tokens(),
                name="demo",
                collusion_bound=quorum.collusion_bound,
            )
        )
        return _Demo(options, documents, servers, owner, show, folder).play()


def _new_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise InputError(
            f"{folder} cannot be used ({error.strerror})", cure="name a new folder for --keep"
        ) from None
    if not is_empty:
        raise InputError(f"{folder} is not empty", cure="name a new folder for --keep")
    return folder


@contextmanager
def _ending_as_by_ctrl_c() -> Iterator[None]:
    """End the block by KeyboardInterrupt when the process is told to end or its terminal closes.

    The servers have sessions of their own and would go on for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    changed = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in changed:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _few(quorum: Quorum) -> str:
    t = quorum.collusion_bound
    return "none of them sees" if t == 1 else f"no {t} of them together see"


class _Demo:
    def __init__(
        self,
        options: DemoOptions,
        documents: DemoDocuments,
        servers: Stage,
        owner: Owner,
        show: Show,
        folder: Path,
    ) -> None:
        self._folder = folder
        self._queries = list(options.queries) or list(DEMO_QUERIES)
        self._keep = options.keep
        self._documents = documents
        self._servers = servers
        self._owner = owner
        self._quorum = owner.profile.quorum
        self._show = show
        self._failures: list[str] = []

    def play(self) -> bool:
        started = time.perf_counter()
        self._publish()
        self._plain = PlaintextEngine(list(self._documents.read()), make_analyzer(ANALYZER))
        with self._searcher() as searcher:
            results = [self._ask_all_servers(query, searcher) for query in self._queries]
        self._show.title("What the servers learned from the last query")
        for sentence in results[-1].learned:
            self._show.say(f"- {sentence}")
        self._lose_a_server(results[0])
        self._change_a_store(results[0])
        self._change_too_many()
        self._failures += play_users(self._folder / "users", self._show)
        if not any(result.hits for result in results):
            self._failures.append("no query had a hit, so no ranking was compared")
        ok = not self._failures
        self._show.title("Proved" if ok else "NOT proved")
        if ok:
            n = len(self._queries)
            self._show.say(
                f"{'all ' if n > 1 else 'the '}{n} ranking{'s' if n > 1 else ''} equal"
                f"{'' if n > 1 else 's'} scikit-learn's; a lost server and a changed store did "
                "not matter; too many changed stores were refused; each user found what the "
                "policy allows, and the revoked one nothing"
            )
        for failure in self._failures:
            self._show.say(f"- {failure}")
        seconds = round(time.perf_counter() - started, 1)
        self._show.say(f"{seconds} s on this machine")
        if self._keep is not None:
            self._show.say(f"what owner and servers stored is in {self._keep}")
        self._show.finish(
            {
                "proved": ok,
                "failures": self._failures,
                "documents": self._report.documents,
                "publish": self._report.to_json(),
                "seconds": seconds,
            }
        )
        return ok

    def _publish(self) -> None:
        with self._show.progress() as progress:
            self._report = self._owner.publish(self._documents.paths, progress=progress)
        self._show.skipped(self._report.skipped)
        seconds = sum(self._report.seconds.values())
        self._show.say(
            f"{self._report.documents} documents are encrypted into an index of "
            f"{self._report.index_bytes / 1e6:.0f} MB and on {self._quorum.n_servers} servers "
            f"after {seconds:.1f} s; {_few(self._quorum)} a word of a query, any "
            f"{self._quorum.threshold} suffice for an answer"
        )

    def _searcher(self) -> Searcher:
        return Searcher(self._owner.profile)

    def _ask(self, scene: str, query: str, searcher: Searcher) -> SearchResult:
        result = searcher.search(query, K)
        self._show.answer(scene, result, self._plain.search(query, K))
        differences = self._plain.differences(result)
        self._failures += [f"{scene}: {difference}" for difference in differences]
        asked = [report.id for report in result.servers if report.status == "ok"]
        self._show.say(
            f"{'differs from' if differences else 'equals'} the plaintext ranking; "
            f"servers {', '.join(map(str, asked))} answered, every row checked, "
            f"{result.records_fetched} records read, {result.timings_ms['total']:.0f} ms"
        )
        return result

    def _ask_all_servers(self, query: str, searcher: Searcher) -> SearchResult:
        self._show.title(f'"{safe(query)}"')
        return self._ask("all servers", query, searcher)

    def _lose_a_server(self, before: SearchResult) -> None:
        self._servers.processes[1].kill()
        self._show.title("Server 1 was killed")
        with self._searcher() as searcher:
            result = self._ask("one server killed", before.query, searcher)
        if result.hits != before.hits:
            self._failures.append("one server killed: other hits than with all servers")
        self._servers.restart(1)

    def _change_a_store(self, before: SearchResult) -> None:
        n_changed = self._change(2)
        self._show.title(f"Server 2: {n_changed} of its stored bytes were changed on its disk")
        with self._searcher() as searcher:
            result = self._ask("one store changed", before.query, searcher)
        named = [report.id for report in result.servers if report.status == "lied"]
        self._show.say(f"named by its own answer: server {', '.join(map(str, named)) or 'none'}")
        if named != [2]:
            self._failures.append(f"one store changed: servers {named} were named, not [2]")
        if result.hits != before.hits:
            self._failures.append("one store changed: other hits than before")

    def _change(self, server: int) -> int:
        signed = self._owner.profile.highest_seen()
        if signed is None:
            raise InputError("nothing was published")
        return self._servers.change_stored_bytes(signed, server)

    def _change_too_many(self) -> None:
        n_honest = self._quorum.collusion_bound
        spoiled = list(range(2, self._quorum.n_servers - n_honest + 2))
        for server in spoiled[1:]:
            self._change(server)
        names = ", ".join(map(str, spoiled))
        self._show.title(f"The stores of servers {names} were changed")
        scene = "too many stores changed"
        try:
            with self._searcher() as searcher:
                searcher.search(self._queries[0], K)
        except MksearchError as error:
            self._show.refusal(scene, error.to_fields())
            if not isinstance(error, AnswerRefused) or list(error.liars) != spoiled:
                self._failures.append(f"{scene}: refused, but without naming servers {names}")
        else:
            self._failures.append(f"{scene}: an answer was shown")
