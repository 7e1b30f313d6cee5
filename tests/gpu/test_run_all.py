"""The script for a machine with a GPU runs without one, and does fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gpu import run_all
from tests.gpu.fake_cupy import FakeCupy
from tests.gpu.on_cpu import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="g++ is not installed")


@pytest.fixture(autouse=True)
def _tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    # A dry run cuts it down; here it comes back.
    monkeypatch.setattr("mksearch.scoring.cuda_device._TUNING_BYTES", 0)


def test_a_dry_run_finds_everything_equal_and_says_that_it_is_dry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_all.main(["--dry", "--json", str(tmp_path / "found.json")]) == 0

    out = capsys.readouterr().out
    assert "no figure below says anything of a GPU" in out
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["is_dry"] is True
    assert found["failures"] == []
    assert set(found["found"]) == {
        *("kernels equal", "engine equal", "kernels timed", "upload timed", "calls timed"),
        "little memory",
    }
    assert [row["batch"] for row in found["found"]["kernels timed"]["batches"]]


def test_a_kernel_that_is_wrong_fails_the_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeCupy(1 << 30)
    fake.wrong = {"limbs-2x4"}
    monkeypatch.setattr(run_all, "_cupy", lambda **_: fake)

    assert run_all.main(["--dry", "--limit", "20"]) == 1

    assert "NOT EQUAL: limbs-2x4" in capsys.readouterr().out
