"""What the servers' part in access costs: enrolment, signed queries, queries that are refused.

`python -m tests.bench.authority` prints the figures.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from mksearch.crypto.randomness import SystemRandom
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.tickets import TicketSigner
from mksearch.errors import ServerRefused, VerificationError
from mksearch.messages import ScoreRequest
from mksearch.params import P
from mksearch_client.admin import Admin
from mksearch_client.connection import GrpcConnection
from mksearch_client.owner import Owner
from mksearch_server.gate import QueryGate
from tests.bench.bench import Bench, cpu_seconds
from tests.bench.figures import Figure, PartResult, median_of
from tests.support.grpc_stage import corpus, staging
from tests.support.processes import claim, serving

__all__ = ["measure"]

#: Columns of level 0 in a collection of 100,000 documents, about.
WIDTH = 1536
N_SERVERS = 3
ENROL_MS_MAX = 100.0
QUERY_MS_MAX = 2.0
REFUSED_MIN = 5000.0
_CLIENTS = 4
_RANDOM = SystemRandom()


def _enrolment_ms(folder: Path, n_rounds: int, numbers: tuple[str, ...] = ()) -> float:
    """Return the processor time of an enrolment, of the user and all servers asked together.

    They are one process here, so that what gRPC costs is part of it, and waiting is not.  Every
    user has attributes of their own, which no server has seen before.

    Args:
        folder: for the collection.
        n_rounds: users.
        numbers: names of attributes with numbers, besides ten others.
    """
    taken = []
    with staging(folder) as stage:
        stage.publish(3)
        stage.share()
        for number in range(n_rounds + 1):
            attributes = [f"attribute:value{number}-{n}" for n in range(10)]
            attributes += [f"{name}{number}:5" for name in numbers]
            user = stage.applicant(str(number))
            credential = stage.credential(user, *attributes).encode()
            started = time.process_time()
            user.enrol(credential)
            taken.append(1000 * (time.process_time() - started))
    return median_of(taken[1:])


def _request(n_vectors: int, width: int = WIDTH) -> ScoreRequest:
    shares = np.frombuffer(_RANDOM.bytes(2 * n_vectors * width), np.uint16) % P
    return ScoreRequest(
        _RANDOM.bytes(16), 2, _RANDOM.bytes(32), 0, shares.astype(np.uint16).reshape(n_vectors, -1)
    )


def _signer() -> TicketSigner:
    return TicketSigner(SecretKey(_RANDOM.bytes(32)))


def _query_ms(n_rounds: int, n_vectors: int) -> tuple[float, float]:
    """Return milliseconds of processor time to sign a query, and to check it."""
    signer, gate = _signer(), QueryGate(1)
    signing, checking = [], []
    for _ in range(n_rounds):
        request = _request(n_vectors)
        started = time.process_time()
        ticket = signer.sign(1, request, int(time.time()))
        between = time.process_time()
        gate.enter(signer.public, replace(request, ticket=ticket))
        checking.append(1000 * (time.process_time() - between))
        signing.append(1000 * (between - started))
    return median_of(signing), median_of(checking)


def _refusals_per_second(n_rounds: int, make: Callable[[TicketSigner], ScoreRequest]) -> float:
    """Return how many queries a gate refuses in a second of one core; the median of five runs."""
    signer, gate = _signer(), QueryGate(1)
    bad = make(signer)
    rates = []
    for _ in range(5):
        started = time.process_time()
        for _ in range(n_rounds):
            try:
                gate.enter(signer.public, bad)
            except VerificationError:
                continue
            raise AssertionError("the gate let a bad query pass")
        rates.append(n_rounds / (time.process_time() - started))
    return median_of(rates)


def _forged(n_vectors: int) -> Callable[[TicketSigner], ScoreRequest]:
    def make(_signer_of_group: TicketSigner) -> ScoreRequest:
        request = _request(n_vectors)
        return replace(request, ticket=_signer().sign(1, request, int(time.time())))

    return make


def _late(signer: TicketSigner) -> ScoreRequest:
    request = _request(1)
    return replace(request, ticket=signer.sign(1, request, int(time.time()) - 1000))


def _through_grpc(folder: Path, n_rounds: int) -> tuple[float, float]:
    """Return forged queries that a server process refuses in a second of one core, and of time."""
    with serving(folder, N_SERVERS, engine="numpy") as fleet:
        profile = claim(fleet, folder / "owner")
        Admin.create(profile)
        with Owner(profile) as owner:
            owner.publish([corpus(folder / "docs.jsonl", "doc", 200, "apple pear")])
            signed = owner.status()[0]
        assert signed is not None
        segment = signed.manifest.groups[0].segments[0].id
        entry = profile.servers[1]

        def refuse(times: int) -> None:
            connection = GrpcConnection(1, entry.address, entry.key, _RANDOM, timeout_s=60.0)
            request = replace(
                _request(1, 64),
                version=signed.manifest.version,
                segment=segment,
                answer_shape=(1, 1, 1),
            )
            ticket = _signer().sign(1, request, int(time.time()))
            for _ in range(times):
                try:
                    connection.score(replace(request, ticket=ticket))
                except ServerRefused:
                    continue
                raise AssertionError("the server answered a forged query")
            connection.close()

        refuse(20)
        with ThreadPoolExecutor(_CLIENTS) as pool:
            used, started = cpu_seconds(fleet[1].pid), time.perf_counter()
            list(pool.map(refuse, [n_rounds // _CLIENTS] * _CLIENTS))
            spent_s = time.perf_counter() - started
            used = cpu_seconds(fleet[1].pid) - used
    n_refused = n_rounds // _CLIENTS * _CLIENTS
    return n_refused / max(used, 0.01), n_refused / spent_s


def measure(bench: Bench) -> PartResult:
    """Measure enrolment, signed queries and refusals.

    Args:
        bench: of the run.
    """
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        bench.say("enrolling")
        rounds = bench.times(20)
        enrol_ms = _enrolment_ms(Path(folder) / "ten", rounds)
        enrol_number_ms = _enrolment_ms(Path(folder) / "number", rounds, ("clearance",))
        bench.say("signing and refusing queries")
        sign_ms, check_ms = _query_ms(bench.times(400), 1)
        sign4_ms, check4_ms = _query_ms(bench.times(400), 4)
        forged = _refusals_per_second(bench.times(2000), _forged(1))
        forged4 = _refusals_per_second(bench.times(1000), _forged(4))
        late = _refusals_per_second(bench.times(4000), _late)
        unsigned = _refusals_per_second(bench.times(4000), lambda _: _request(1))
        a_core, a_second = _through_grpc(Path(folder) / "grpc", bench.times(2000))
    cpu = "processor time"
    return PartResult(
        [
            Figure(
                "authority.enrol_ms",
                "enrolment with ten attributes: the user and t + 1 servers",
                enrol_ms,
                "ms",
                "at most",
                limit=ENROL_MS_MAX,
                note=f"{cpu} of all, gRPC included; n = 3, t = 1",
            ),
            Figure(
                "authority.enrol_number_ms",
                "the same with a number that policies compare",
                enrol_number_ms,
                "ms",
                "at most",
                limit=ENROL_MS_MAX,
                note=f"{cpu}; 43 labels that no server has seen before",
            ),
            Figure(
                "authority.query_ms",
                "sign a query and check it",
                sign_ms + check_ms,
                "ms",
                "at most",
                limit=QUERY_MS_MAX,
                note=f"{cpu}; signing {sign_ms:.2f}, checking {check_ms:.2f}; 1 vector of {WIDTH}",
            ),
            Figure(
                "authority.query_long_ms",
                "the same for 4 vectors",
                sign4_ms + check4_ms,
                "ms",
                note=cpu,
            ),
            Figure(
                "authority.refused",
                "forged queries that a gate refuses on one core",
                forged,
                "1/s",
                "at least",
                limit=REFUSED_MIN,
                note="the gate alone; a forged signature is the dearest",
            ),
            Figure("authority.refused_long", "the same for 4 vectors", forged4, "1/s"),
            Figure("authority.refused_late", "late queries", late, "1/s"),
            Figure("authority.refused_unsigned", "unsigned queries", unsigned, "1/s"),
            Figure(
                "authority.refused_grpc_core",
                "forged queries that a server process refuses on one core",
                a_core,
                "1/s",
                note="through gRPC",
            ),
            Figure(
                "authority.refused_grpc",
                f"the same a second of time, {_CLIENTS} clients beside it",
                a_second,
                "1/s",
                note="through gRPC, clients on the same machine",
            ),
        ]
    )


def main() -> int:
    """Print the figures; return 1 if a limit is not kept."""
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Bench(Path(folder), quick=False)).figures
    for figure in figures:
        bound = f"  {figure.direction} {figure.limit:g}" if figure.limit is not None else ""
        print(f"{figure.key:30} {figure.value or 0:10.2f} {figure.unit}{bound}  {figure.note}")
    return int(any(figure.missed for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
