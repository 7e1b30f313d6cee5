"""Mutated bytes for every decoder and every call: no crash, no foreign error, no growth."""

from __future__ import annotations

import gc
import importlib
import pkgutil
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import message_factory

from mksearch.crypto import labels
from mksearch.errors import MksearchError
from mksearch.wire import v1
from mksearch.wire.v1 import owner_pb2
from tests.adversary.corpus import make_documents
from tests.chaos.decoders import Target
from tests.chaos.mutate import mutate_bytes, mutate_cbor, mutate_message
from tests.service.conftest import Published
from tests.service.test_wire import OWNER, SEARCH, Caller, _good_requests, _require_named
from tests.support.processes import ServerProcess, claim, serving

__all__ = ["METHODS", "MutationReport", "mutate_calls", "mutate_target", "mutating_server"]

#: Longest that any bytes may keep a decoder busy, on a machine that is shared.
_DECODE_S = 5.0
#: What a server may grow by between a tenth and the end of all calls: its own memory, no files.
GROWTH_BYTES = 24 << 20
_N_THREADS = 6
_N_WARM = 400


@dataclass
class MutationReport:
    """What became of mutated bytes.

    Attributes:
        name: of the target.
        n_tried: bytes or calls.
        outcomes: how often each error or status came.
        violations: in words, with the seed.
        seconds: spent.
        growth_bytes: of the memory of the server, for calls.
    """

    name: str
    n_tried: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0
    growth_bytes: int = 0

    def lines(self) -> list[str]:
        """Return the report in lines."""
        outcomes = ", ".join(f"{name} {n}" for name, n in self.outcomes.most_common(6))
        line = f"{self.name:28} {self.n_tried:8} {self.seconds:7.1f} s  {outcomes}"
        if self.growth_bytes:
            line += f"; grew by {self.growth_bytes / (1 << 20):.1f} MiB"
        return [line, *(f"VIOLATION {text}" for text in self.violations[:20])]


def mutate_target(
    target: Target, n_mutations: int, seed: int, *, limit_s: float | None = None
) -> MutationReport:
    """Feed one decoder with mutated bytes.

    Args:
        target: what decodes.
        n_mutations: how many, divided by its slowness.
        seed: of the run.
        limit_s: ends earlier after so many seconds.
    """
    report = MutationReport(target.name)
    started_s = time.monotonic()
    for number in range(max(20, n_mutations // target.slowness)):
        own = f"{seed}/{target.name}/{number}"
        data = target.mutate(random.Random(own), target.samples)
        report.n_tried += 1
        before_s = time.monotonic()
        try:
            value = target.decode(data)
        except MksearchError as error:
            report.outcomes[type(error).__name__] += 1
            if "\n" in str(error) or len(str(error)) > 2000:
                report.violations.append(f"seed {own}: an error that is not one line: {error!r}")
        except BaseException as error:
            report.violations.append(f"seed {own}: {type(error).__name__}: {error}")
            report.outcomes[f"{type(error).__name__}!"] += 1
            if isinstance(error, KeyboardInterrupt):
                raise
        else:
            report.outcomes["decoded"] += 1
            if target.encode is not None and target.encode(value) != data:
                report.violations.append(f"seed {own}: decoded from bytes that are not canonical")
        now_s = time.monotonic()
        if now_s - before_s > _DECODE_S:
            report.violations.append(f"seed {own}: took {now_s - before_s:.1f} s")
        report.seconds = now_s - started_s
        if limit_s is not None and report.seconds > limit_s:
            break
    return report


# --- calls ----------------------------------------------------------------------------------------


@contextmanager
def mutating_server(folder: Path) -> Iterator[Published]:
    """Run a published collection of which server 1 is fed with mutated calls."""
    with serving(folder, 3, engine="numpy") as fleet:
        published = Published(fleet, claim(fleet, folder / "profile"), folder, ())
        published.publish(make_documents(60, 4))
        yield published


def _all_methods() -> dict[str, Any]:
    """Return the class of the requests of every call that the protocol has, by full name."""
    found = {}
    for module in pkgutil.iter_modules(v1.__path__, "mksearch.wire.v1."):
        if not module.name.endswith("_pb2"):
            continue
        descriptor = importlib.import_module(module.name).DESCRIPTOR
        for service in descriptor.services_by_name.values():
            for method in service.methods:
                name = f"/{service.full_name}/{method.name}"
                found[name] = message_factory.GetMessageClass(method.input_type)
    return found


METHODS = _all_methods()


def _changes(published: Published, method: str) -> Callable[[random.Random], list[bytes]]:
    """Return what makes mutated requests of a method."""
    message: Any = METHODS[method]
    known = _good_requests(published).get(method)
    good = [_plausible(message)] if known is None else [message.FromString(d) for d in known]
    key = published.profile.keys.signing
    signed = published.profile.highest_seen()
    assert signed is not None

    def resigned(source: random.Random) -> list[bytes]:
        """Change the body of a manifest and sign it with the owner's key."""
        body = mutate_cbor(source, [signed.body])
        head = signed.encode()[:12] + len(body).to_bytes(4, "big")
        data = head + body + key.sign(labels.MANIFEST, body)
        return [owner_pb2.ProposeRequest(manifest=data).SerializeToString()]

    def changed(source: random.Random) -> list[bytes]:
        if method == OWNER + "Propose" and source.random() < 0.6:
            return resigned(source)
        if source.random() < 0.03:
            return [source.randbytes(source.choice((0, 1, 5, 40, 1000)))]
        held = [one.SerializeToString() for one in good]
        at = source.randrange(len(held))
        held[at] = mutate_message(source, good[at])
        kind = source.random()
        if len(held) > 1 and kind < 0.1:
            source.shuffle(held)
        elif kind < 0.15:
            held.append(mutate_bytes(source, held))
        return held

    return changed


def _plausible(message: Any) -> Any:
    """Return a message whose fields are of sizes that keys, nonces and signatures have."""
    made = message()
    for field_ in made.DESCRIPTOR.fields:
        if field_.type == field_.TYPE_BYTES and not field_.is_repeated:
            sizes = {"nonce": 16, "signature": 64, "credential_signature": 64}
            setattr(made, field_.name, bytes(sizes.get(field_.name, 32)))
    return made


def _own_bytes(server: ServerProcess) -> int:
    """Return the server's own memory once what was freed is given back."""
    found = server.memory_bytes()
    last_s = time.monotonic() + 12
    # Servers collect every few seconds.
    while time.monotonic() < last_s:
        time.sleep(0.5)
        now = server.memory_bytes()
        if now >= found:
            break
        found = now
    return found


def mutate_calls(
    published: Published,
    n_mutations: int,
    seed: int,
    *,
    methods: Sequence[str] = tuple(METHODS),
    limit_s: float | None = None,
    tell: Callable[[MutationReport], None] = lambda _report: None,
) -> list[MutationReport]:
    """Send mutated requests to every method of server 1.

    Args:
        published: a collection.
        n_mutations: requests for each method.
        seed: of the run.
        methods: full names.
        limit_s: seconds for each method.
        tell: told of every method that is done.
    """
    server = published.fleet[1]
    changes = {method: _changes(published, method) for method in methods}
    with ThreadPoolExecutor(_N_THREADS) as pool:
        own = threading.local()
        callers: list[Caller] = []

        def one(method: str, number: int) -> tuple[str, str]:
            if not hasattr(own, "caller"):
                own.caller = Caller(server)
                callers.append(own.caller)
            label = f"{seed}/{method.rpartition('/')[2]}/{number}"
            answered = own.caller(method, changes[method](random.Random(label)))
            try:
                _require_named(answered)
            except AssertionError as error:
                return answered.code.name, f"seed {label}: {error}"
            return answered.code.name, ""

        def batch(report: MutationReport, method: str, numbers: range) -> None:
            for code, violation in pool.map(lambda n: one(method, n), numbers, chunksize=1):
                report.n_tried += 1
                report.outcomes[code] += 1
                if violation:
                    report.violations.append(violation)

        for method in methods:
            batch(MutationReport("warm-up"), method, range(-_N_WARM, 0))
        n_files, before = server.n_open_files(), _own_bytes(server)
        reports = []
        for method in methods:
            report = MutationReport(method.rpartition("/")[2])
            started_s = time.monotonic()
            for first in range(0, n_mutations, 200):
                batch(report, method, range(first, min(first + 200, n_mutations)))
                report.seconds = time.monotonic() - started_s
                if limit_s is not None and report.seconds > limit_s:
                    break
            reports.append(report)
            tell(report)
        total = MutationReport("the server afterwards", 1)
        total.growth_bytes = _own_bytes(server) - before
        _require_unharmed(published, callers, total, n_files)
        reports.append(total)
        tell(total)
        for caller in callers:
            caller.__exit__()
    gc.collect()
    return reports


def _require_unharmed(
    published: Published, callers: Sequence[Caller], report: MutationReport, n_files: int
) -> None:
    """Prove that the server goes on as before."""
    server = published.fleet[1]
    violations = report.violations
    if not server.is_running:
        violations.append(f"the server ended: {server.log()[-2000:]}")
        return
    if report.growth_bytes > GROWTH_BYTES:
        violations.append(f"the server grew by {report.growth_bytes} bytes")
    if server.n_open_files() > n_files + len(callers) + 2:
        violations.append(f"{server.n_open_files()} files are open, {n_files} were")
    log = server.log()
    faults = [text for text in ("Traceback", "internal fault") if text in log]
    violations += [f"its log says: {text}" for text in faults]
    good = _good_requests(published)
    for method in (SEARCH + "GetManifest", SEARCH + "Score", SEARCH + "GetRecords"):
        code = callers[0](method, good[method]).code
        if code is not grpc.StatusCode.OK:
            violations.append(f"a right {method} is answered with {code.name}")
    with published.searcher() as searcher:
        query = " ".join(published.documents[0].text.split()[:3])
        result = searcher.search(query, 10)
        published.require_right(result)
        if {own.status for own in result.servers} - {"ok", "unused"}:
            violations.append(f"servers are reported as {[own.status for own in result.servers]}")
