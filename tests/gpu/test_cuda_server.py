"""Servers whose engine is "cuda", over the stand-in for CuPy: what they hold, say and survive."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest

from mksearch.errors import EngineUnavailable, NotEnoughAnswers
from mksearch.scoring.engine import AUTO, device_of, vectors_at_once
from mksearch_client.reading import Document
from mksearch_server.cli import main
from mksearch_server.config import ServerConfig
from mksearch_server.engines import open_engine, read_engine_note
from tests.gpu.fake_cupy import FakeCupy
from tests.gpu.on_cpu import compiler
from tests.gpu.test_cuda_engine import ROOMY, tables
from tests.support.local import LocalCollection, publish

pytestmark = pytest.mark.skipif(compiler() is None, reason="g++ is not installed")

WORDS = ("apple", "pear", "plum", "fig", "quince", "grape")


def documents(n_documents: int) -> list[Document]:
    return [
        Document(f"d{n}", "", " ".join(WORDS[(n * k) % 6] for k in range(1, 2 + n % 5)))
        for n in range(n_documents)
    ]


def hits(collection: LocalCollection) -> list[list[tuple[str, float]]]:
    searcher = collection.searcher()
    found = [searcher.search(words, 20) for words in ("plum", "apple fig", "quince grape pear")]
    return [[(hit.id, hit.score) for hit in result.hits] for result in found]


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    """One module for all: each server opens the same GPUs."""
    fake = FakeCupy(ROOMY, ROOMY)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr("mksearch.scoring.cuda_device._TUNING_BYTES", 0)
    return fake


def test_servers_with_different_engines_find_the_same(tmp_path: Path, cupy: FakeCupy) -> None:
    plain = publish(documents(150), tmp_path / "numpy", engine="numpy")
    cards = publish(documents(150), tmp_path / "cuda", engine="cuda")
    cupy.launches.clear()

    expected = hits(plain)

    assert hits(cards) == expected
    assert all(expected)
    assert {number for _, number in cupy.launches} == {0, 1}


def test_the_cells_of_a_version_are_held_until_another_is_served(
    tmp_path: Path, cupy: FakeCupy
) -> None:
    first = publish(documents(100), tmp_path / "1", engine="cuda")
    hits(first)
    server = first.servers[1]
    engine = server._engine
    assert device_of(engine) == "Processor (GPU 0), Processor (GPU 1)"
    before = engine.held_bytes()  # type: ignore[attr-defined]
    segment = first.publication.signed.manifest.groups[0].segments[0].id
    assert before > 0
    assert {key[0] for key in engine._shares} == {segment}  # type: ignore[attr-defined]

    # As it would be with a newer version, in whose time the one before is over.
    server._segments = {}
    server._let_go()

    assert engine.held_bytes() == 0  # type: ignore[attr-defined]


def test_the_version_before_is_let_go_of_when_its_time_is_over(
    tmp_path: Path, cupy: FakeCupy
) -> None:
    collection = publish(documents(60), tmp_path, engine="cuda")
    hits(collection)
    server = collection.servers[1]
    let_go: list[set[bytes]] = []
    server._engine.keep_only = let_go.append  # type: ignore[attr-defined]
    server._keep_previous(collection.publication.signed)
    server._let_go()
    hits(collection)
    assert len(let_go) == 1

    server._previous_until = 0.0
    hits(collection)
    hits(collection)

    assert len(let_go) == 2
    assert let_go[1] == set(server._segments)


def test_a_lost_gpu_fails_the_request_by_name_and_not_the_server(
    tmp_path: Path, cupy: FakeCupy
) -> None:
    collection = publish(documents(60), tmp_path, engine="cuda")
    expected = hits(collection)
    cupy.broken = {0, 1}

    with pytest.raises(NotEnoughAnswers, match=r"server 1 refused .engine 'cuda': .*GPU 1. failed"):
        hits(collection)

    cupy.broken = set()
    assert hits(collection) == expected


# --- server.toml ----------------------------------------------------------------------------------


def config_of(folder: Path, engine: str) -> ServerConfig:
    (folder / "data").mkdir(exist_ok=True)
    return ServerConfig(1, "127.0.0.1:0", folder / "data", engine, folder=folder)


def test_the_fastest_kernels_are_measured_once_and_kept_in_the_store(
    tmp_path: Path, cupy: FakeCupy
) -> None:
    config = config_of(tmp_path, "cuda")

    engine = open_engine(config)

    note = json.loads((tmp_path / "data/engine.json").read_text())
    assert note["device"] == "Processor (GPU 0), Processor (GPU 1)"
    assert note["tables"] == engine.tables()  # type: ignore[attr-defined]
    assert vectors_at_once(engine) == 64
    (tmp_path / "data/engine.json").write_text(json.dumps({"tables": tables()}))
    again = open_engine(config)
    assert again.tables() == tables()  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"tables": 5}', '{"tables": {"x": []}}'])
def test_a_note_that_somebody_damaged_does_not_count(
    tmp_path: Path, cupy: FakeCupy, text: str
) -> None:
    config = config_of(tmp_path, "cuda")
    (tmp_path / "data/engine.json").write_text(text)

    assert open_engine(config).name == "cuda"


def test_auto_without_a_gpu_warns_and_takes_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy(no_driver=True))

    with caplog.at_level(logging.WARNING, "mksearch_server"):
        engine = open_engine(config_of(tmp_path, AUTO))

    assert engine.name == "cpu"
    (line,) = caplog.messages
    assert "cudaErrorInsufficientDriver" in line
    assert read_engine_note(config_of(tmp_path, AUTO))["device"] == "cpu"


def test_a_gpu_that_auto_loses_is_noted(
    tmp_path: Path, cupy: FakeCupy, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(tmp_path, AUTO)
    engine = open_engine(config)
    collection = publish(documents(40), tmp_path / "c", engine="numpy")
    collection.servers[1]._engine = engine
    cupy.broken = {0, 1}

    assert all(hits(collection))

    assert read_engine_note(config)["device"] == "cpu"
    assert any("goes on until a restart" in line for line in caplog.messages)


@pytest.mark.parametrize(
    ("module", "cause"),
    [
        (None, "needs CuPy, which is not installed"),
        (FakeCupy(no_driver=True), "cudaErrorInsufficientDriver"),
        (FakeCupy(1 << 20), "0 MB are free"),
    ],
)
def test_a_named_engine_that_cannot_be_used_ends_serve_with_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    module: FakeCupy | None,
    cause: str,
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", module)
    folder = tmp_path / "server"
    assert main(["init", str(folder), "--id", "1", "--listen", "127.0.0.1:0"]) == 0
    config = folder / "server.toml"
    config.write_text(config.read_text().replace('engine = "cpu"', 'engine = "cuda"'))
    capsys.readouterr()

    code = main(["serve", "--config", str(config)])

    out, err = capsys.readouterr()
    assert (code, out) == (EngineUnavailable.exit_code, "")
    assert err.count("\n") == 1
    assert cause in err
    assert "(" in err
    assert err.endswith(")\n")
