"""What a server counts: Prometheus metrics whose labels come from closed lists alone.

No name, label or value is taken from a query, a user, a credential or a document: what a request
adds depends on its call, its outcome, its shape and the time that it took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client import disable_created_metrics as without_times_of_creation
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from mksearch import errors
from mksearch.errors import MksearchError
from mksearch.wire.v1 import authority_pb2, owner_pb2, search_pb2
from mksearch_server.facts import Facts
from mksearch_server.gate import REASONS
from mksearch_server.gpu import Gpu
from mksearch_server.status import OWN_CODES

__all__ = ["CALLS", "CODES", "LABELS", "NO_CODE", "UNKNOWN", "Metrics"]

#: Label of a method that is not one of ours, and of a code or status that no table has.
UNKNOWN: Final = "unknown"
#: Label of a call that ended without an error of this product.
NO_CODE: Final = "none"
#: Full name of a method and the label of its call.
CALLS: Final[Mapping[str, str]] = {
    f"/{service.full_name}/{method.name}": method.name
    for file in (search_pb2, owner_pb2, authority_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
#: Codes of the errors that a server names.
CODES: Final = frozenset(
    {
        *(
            kind.code
            for kind in vars(errors).values()
            if isinstance(kind, type) and issubclass(kind, MksearchError)
        ),
        *OWN_CODES,
        NO_CODE,
        UNKNOWN,
    }
)
_STATUSES: Final = frozenset({*(status.name for status in grpc.StatusCode), UNKNOWN})
_CALLS: Final = frozenset({*CALLS.values(), UNKNOWN})
#: Every label of the metrics that requests change, and the values that it may have.
LABELS: Final[Mapping[str, frozenset[str]]] = {
    "call": _CALLS,
    "status": _STATUSES,
    "code": CODES,
    "reason": frozenset(REASONS),
}

_REQUEST_BUCKETS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0),
)
_BATCH_BUCKETS: Final = (1, 2, 3, 4, 6, 8, 12, 16)


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        """Start at zero; nothing is shown anywhere."""
        without_times_of_creation()  # type: ignore[no-untyped-call]
        registry = CollectorRegistry()
        self._registry = registry
        self._requests = Counter(
            "mksearch_requests",
            "Calls that ended, by gRPC status and error code",
            ("call", "status", "code"),
            registry=registry,
        )
        self._request_s = Histogram(
            "mksearch_request_seconds",
            "Time from the start of a call to its end, with what its client takes",
            ("call",),
            buckets=_REQUEST_BUCKETS_S,
            registry=registry,
        )
        self._running = Gauge(
            "mksearch_requests_running", "Calls under way", ("call",), registry=registry
        )
        self._refused = Counter(
            "mksearch_queries_refused",
            "Trapdoors (Score) and requests for records (GetRecords) refused, by reason",
            ("call", "reason"),
            registry=registry,
        )
        self._waiting = Gauge(
            "mksearch_score_requests_waiting",
            "Score requests that wait for the scoring thread",
            registry=registry,
        )
        self._batch = Histogram(
            "mksearch_batch_requests",
            "Score requests of one pass over the cells",
            buckets=_BATCH_BUCKETS,
            registry=registry,
        )
        self._vectors = Histogram(
            "mksearch_batch_vectors",
            "Vectors of one pass over the cells",
            buckets=_BATCH_BUCKETS,
            registry=registry,
        )
        self._queue_s = Histogram(
            "mksearch_queue_seconds",
            "Time that a score request waits for its pass",
            buckets=_REQUEST_BUCKETS_S,
            registry=registry,
        )
        self._pass_s = Histogram(
            "mksearch_pass_seconds",
            "Time of one pass, signatures included",
            buckets=_REQUEST_BUCKETS_S,
            registry=registry,
        )
        self._rows = Counter(
            "mksearch_scored_rows",
            "Rows multiplied, once for each request of a pass",
            registry=registry,
        )
        self._bytes = Counter(
            "mksearch_scored_bytes", "Bytes of cells read, once a pass", registry=registry
        )
        ProcessCollector(registry=registry)

    def watch(
        self, facts: Callable[[], Facts], waiting: Callable[[], int], held: Callable[[], int]
    ) -> None:
        """Show the state of a server, read anew whenever somebody looks; call it once.

        Args:
            facts: what the server is and holds.
            waiting: score requests that wait.
            held: bytes of answers that wait for clients.
        """
        self._waiting.set_function(waiting)
        self.gauge("mksearch_answer_bytes_held", "Answers that wait for their clients", held)
        self._registry.register(_State(facts))
        gpu = Gpu.find()
        if gpu is not None:
            self._registry.register(_Gpus(gpu))

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Show one more number.

        Args:
            name: with the prefix ``mksearch_`` and its unit.
            text: what it is, in one line.
            read: called whenever somebody looks, on a thread of its own.
        """
        Gauge(name, text, registry=self._registry).set_function(read)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def samples(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """Yield name, labels and value of every sample."""
        for family in self._registry.collect():
            for sample in family.samples:
                yield sample.name, sample.labels, sample.value

    # --- what happens

    def call_began(self, call: str) -> Callable[[str, str], None]:
        """Count a call that begins; return what is told its status and code at the end."""
        label = call if call in _CALLS else UNKNOWN
        running = self._running.labels(label)
        running.inc()
        began_s = time.monotonic()

        def ended(status: str, code: str) -> None:
            running.dec()
            self._request_s.labels(label).observe(time.monotonic() - began_s)
            self._requests.labels(
                label,
                status if status in _STATUSES else UNKNOWN,
                code if code in CODES else UNKNOWN,
            ).inc()

        return ended

    def query_refused(self, call: str, reason: str) -> None:
        """Count a query that was refused, for one of ``gate.REASONS``."""
        self._refused.labels(call if call in _CALLS else UNKNOWN, reason).inc()

    def pass_began(self, n_vectors: int, waited_s: Sequence[float]) -> None:
        """Count a pass over the cells.

        Args:
            n_vectors: of all its requests.
            waited_s: how long each of its requests waited.
        """
        self._batch.observe(len(waited_s))
        self._vectors.observe(n_vectors)
        for seconds in waited_s:
            self._queue_s.observe(seconds)

    def pass_ended(self, seconds: float, n_rows: int, n_bytes: int) -> None:
        """Count what a pass read: rows once for each request, bytes once."""
        self._pass_s.observe(seconds)
        self._rows.inc(n_rows)
        self._bytes.inc(n_bytes)


class _State(Collector):
    """What a server is and holds, read when it is asked for."""

    def __init__(self, facts: Callable[[], Facts]) -> None:
        self._facts = facts

    def describe(self) -> Sequence[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        facts = self._facts()
        yield _info("mksearch_build", "This release", {"release": facts.release})
        yield _info(
            "mksearch_engine", "What scores", {"engine": facts.engine, "device": facts.device}
        )
        for name, (text, value) in facts.numbers().items():
            if value is not None:
                yield GaugeMetricFamily(f"mksearch_{name}", text, float(value))


class _Gpus(Collector):
    """Memory, load and temperature of the machine's GPUs, numbered as the driver does."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def describe(self) -> Sequence[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        for name, text, values in self._gpu.readings():
            family = GaugeMetricFamily(f"mksearch_gpu_{name}", text, labels=("gpu",))
            for index, value in values:
                family.add_metric((str(index),), value)
            yield family


def _info(name: str, text: str, values: dict[str, str]) -> InfoMetricFamily:
    return InfoMetricFamily(name, text, values)
