"""The scenes of the demo: answers, a lost server, a changed store, too many changed stores."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from mksearch.crypto.randomness import SystemRandom
from mksearch.errors import AnswerRefused, InputError, MksearchError
from mksearch.params import Quorum
from mksearch.text.analyzers import make_analyzer
from mksearch.text.weights import Scoring
from mksearch_client.demo.plaintext import PlaintextEngine
from mksearch_client.demo.show import Show
from mksearch_client.demo.stage import Stage
from mksearch_client.keys import OwnerKeys
from mksearch_client.publishing import Publication, Publisher
from mksearch_client.python_corpus import DEMO_QUERIES, python_documents
from mksearch_client.reading import Document, read_paths
from mksearch_client.result import SearchResult
from mksearch_client.searching import Searcher
from mksearch_client.terminal import safe

__all__ = ["DemoOptions", "play"]

ANALYZER = "english-1"
K = 10
#: Lines of skipped files that are shown; the count is always.
SKIPPED_SHOWN = 5


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
        InputError: no document, or no query for the reader's own documents.
        ParameterError: the number of servers is out of range.
    """
    if options.docs and not options.queries:
        raise InputError(
            "your own documents need your own queries", cure='add --query "some words"'
        )
    quorum = Quorum(options.n_servers, max(1, (options.n_servers - 1) // 2))
    show = Show(as_json=options.as_json)
    with ExitStack() as stack:
        folder = options.keep
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mksearch-demo-")))
        elif folder.exists() and any(folder.iterdir()):
            raise InputError(f"{folder} is not empty", cure="name a new folder for --keep")
        return _Demo(options, quorum, folder, show).play()


def _few(quorum: Quorum) -> str:
    t = quorum.collusion_bound
    return "none of them can" if t == 1 else f"no {t} of them together can"


class _Demo:
    def __init__(self, options: DemoOptions, quorum: Quorum, folder: Path, show: Show) -> None:
        self._queries = list(options.queries) or list(DEMO_QUERIES)
        self._options = options
        self._quorum = quorum
        self._folder = folder
        self._show = show
        self._random = SystemRandom()
        self._keys = OwnerKeys.generate(self._random)
        self._analyzer = make_analyzer(ANALYZER)
        self._failures: list[str] = []

    def play(self) -> bool:
        started = time.perf_counter()
        documents = self._read()
        publication = self._publish(documents)
        self._plain = PlaintextEngine(documents, self._analyzer)
        results = [self._ask_all_servers(query) for query in self._queries]
        self._show.title("What the servers learned from the last query")
        for sentence in results[-1].learned:
            self._show.say(f"- {sentence}")
        self._lose_a_server(results[0])
        self._change_a_store(publication, results[0])
        self._change_too_many(publication)
        ok = not self._failures
        self._show.title("Proved" if ok else "NOT proved")
        if ok:
            self._show.say(
                f"all {len(self._queries)} rankings equal scikit-learn's; a lost server and a "
                "changed store did not matter; too many changed stores were refused"
            )
        for failure in self._failures:
            self._show.say(f"- {safe(failure)}")
        seconds = round(time.perf_counter() - started, 1)
        self._show.say(f"{seconds} s on this machine")
        if self._options.keep is not None:
            self._show.say(f"what the servers stored is in {safe(str(self._folder))}")
        self._show.finish(
            {
                "proved": ok,
                "failures": self._failures,
                "documents": len(documents),
                "seconds": seconds,
            }
        )
        return ok

    def _read(self) -> list[Document]:
        if not self._options.docs:
            documents = list(python_documents())
            self._show.say(f"{len(documents)} documents from this Python's own documentation")
            return documents
        reading = read_paths(self._options.docs)
        documents = list(reading)
        for skipped in reading.skipped[:SKIPPED_SHOWN]:
            line = "" if skipped.line is None else f" line {skipped.line}"
            self._show.say(f"skipped {safe(skipped.path)}{line}: {safe(skipped.reason)}")
        if len(reading.skipped) > SKIPPED_SHOWN:
            self._show.say(f"skipped {len(reading.skipped) - SKIPPED_SHOWN} more")
        reading.require_documents()
        self._show.say(f"{len(documents)} documents read")
        return documents

    def _publish(self, documents: Sequence[Document]) -> Publication:
        publisher = Publisher(
            self._keys,
            name="demo",
            quorum=self._quorum,
            random=self._random,
            analyzer=self._analyzer,
            scoring=Scoring("tfidf"),
        )
        started = time.perf_counter()
        with self._show.progress() as report:
            publication = publisher.prepare(
                documents, self._folder / "publication", now_s=int(time.time()), progress=report
            )
            self._stage = Stage(self._folder, self._quorum, self._keys.signing.public)
            self._stage.publish(publication, report)
        seconds = time.perf_counter() - started
        group = publication.signed.manifest.groups[0]
        size = group.segments[0].size / 1e6
        self._show.say(
            f"encrypted into an index of {size:.0f} MB and given to {self._quorum.n_servers} "
            f"servers in {seconds:.1f} s; {_few(self._quorum)} learn a word of a query, "
            f"any {self._quorum.threshold} suffice for an answer"
        )
        return publication

    def _searcher(self, gone: Sequence[int] = ()) -> Searcher:
        return Searcher(
            self._stage.without(gone),
            self._keys.member(),
            self._random,
            addresses=self._stage.addresses(),
        )

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

    def _ask_all_servers(self, query: str) -> SearchResult:
        self._show.title(f'"{safe(query)}"')
        return self._ask("all servers", query, self._searcher())

    def _lose_a_server(self, before: SearchResult) -> None:
        self._show.title("Server 1 is gone")
        result = self._ask("one server gone", before.query, self._searcher(gone=[1]))
        if result.hits != before.hits:
            self._failures.append("one server gone: other hits than with all servers")

    def _change_a_store(self, publication: Publication, before: SearchResult) -> None:
        n_changed = self._stage.change_stored_bytes(publication, 2)
        self._show.title(f"Server 2: {n_changed} of its stored bytes were changed")
        result = self._ask("one store changed", before.query, self._searcher())
        named = [report.id for report in result.servers if report.status == "lied"]
        self._show.say(f"named by its own answer: server {', '.join(map(str, named)) or 'none'}")
        if named != [2]:
            self._failures.append(f"one store changed: servers {named} were named, not [2]")
        if result.hits != before.hits:
            self._failures.append("one store changed: other hits than before")

    def _change_too_many(self, publication: Publication) -> None:
        n_honest = self._quorum.collusion_bound
        spoiled = list(range(2, self._quorum.n_servers - n_honest + 2))
        for server in spoiled[1:]:
            self._stage.change_stored_bytes(publication, server)
        names = ", ".join(map(str, spoiled))
        self._show.title(f"The stores of servers {names} were changed")
        scene = "too many stores changed"
        try:
            self._searcher().search(self._queries[0], K)
        except MksearchError as error:
            self._show.refusal(
                scene, {"error": error.code, "message": error.message, "cure": error.cure}
            )
            if not isinstance(error, AnswerRefused) or list(error.liars) != spoiled:
                self._failures.append(f"{scene}: refused, but without naming servers {names}")
        else:
            self._failures.append(f"{scene}: an answer was shown")
