"""A server answers soon after it was started, however large its index is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mksearch.index.segment import SegmentReader
from mksearch_server.store import ObjectStore
from mksearch_server.warming import warm
from tests.service.conftest import SMALL, Published
from tests.support.large_store import serve_sparse, sparse_header, write_sparse
from tests.support.processes import ServerProcess, claim, run_server, serving

GIB = 1 << 30


def mapped_kib() -> int:
    """Give the mapped file pages that this process holds."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssFile:"):
            return int(line.split()[1])
    pytest.skip("the kernel does not say how many pages a process maps")


@pytest.fixture
def large(tmp_path: Path) -> Iterator[SegmentReader]:
    """A segment of half a GiB, mapped from a store."""
    store = ObjectStore(tmp_path)
    head = sparse_header(GIB // 2)
    write_sparse(tmp_path / "segments", head)
    before = mapped_kib()
    reader = SegmentReader(store.map(head.id))
    assert mapped_kib() - before < 16 << 10, "the segment was read when it was mapped"
    yield reader
    store.close()


def test_a_segment_is_read_behind_the_first_answers_and_not_before(large: SegmentReader) -> None:
    before = mapped_kib()
    n_read = warm([large], lambda: False)
    assert n_read >= GIB // 2
    assert mapped_kib() - before > 400 << 10


def test_reading_ahead_ends_when_it_is_told_to_and_when_memory_is_full(
    large: SegmentReader,
) -> None:
    asked: list[int] = []

    def is_stopped() -> bool:
        asked.append(1)
        return len(asked) > 3

    assert warm([large], lambda: True) == 0
    assert 0 < warm([large], is_stopped) < GIB // 4
    assert warm([large], lambda: False, n_bytes_max=1) < GIB // 4


def restarted(server: ServerProcess) -> float:
    """Start a server; give the seconds until it answers."""
    began_s = time.monotonic()
    server.restart()
    return time.monotonic() - began_s


def test_a_server_with_ten_gigabytes_starts_like_one_with_none(tmp_path: Path) -> None:
    with serving(tmp_path) as fleet:
        published = Published(fleet, claim(fleet, tmp_path / "profile"), tmp_path, ())
        published.publish(SMALL.documents)
        server = fleet[1]
        assert server.stop() == 0
        small_s = restarted(server)
        assert server.stop() == 0
        signed = published.profile.highest_seen()
        assert signed is not None
        n_bytes = serve_sparse(server.data, signed, published.profile.keys.signing, 10 * GIB)
        large_s = restarted(server)
        status = run_server("status", "--config", server.config, "--json").json
        began_s = time.monotonic()
        assert server.stop() == 0
        print(
            f"restart: {small_s:.1f} s with next to nothing, {large_s:.1f} s with "
            f"{n_bytes / GIB:.1f} GiB, end in {time.monotonic() - began_s:.1f} s"
        )

    assert status["index_bytes"] == n_bytes > 10 * 10**9
    # What must hold is 5 s; a machine that does other work besides may take longer.
    assert large_s < small_s + 20
