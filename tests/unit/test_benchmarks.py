"""The benchmark suite itself: what counts as missed, and what the report makes of figures."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from mksearch_client.reading import Document
from tests.bench import plots, report
from tests.bench.__main__ import PARTS, Part, main, run_part
from tests.bench.bench import Bench
from tests.bench.corpora import Corpora, _spaced
from tests.bench.document import MEANINGS, render
from tests.bench.figures import Figure, PartResult, environment, median_of
from tests.bench.showing import cells, duration, figures_of, number

DOCS = Path(__file__).resolve().parents[2] / "docs"

LATENCY = {
    "corpus": "all365k",
    "documents": 65_536,
    "columns": 1536,
    "median_ms": 50.0,
    "p90_ms": 70.0,
    "manifest_ms": 1.0,
    "trapdoor_ms": 0.2,
    "servers_ms": 40.0,
    "check_ms": 2.5,
    "records_ms": 4.0,
    "records": 11.5,
    "hits": 10.0,
    "sent_bytes": 6000.0,
    "received_bytes": 800_000.0,
}
PEERS: list[dict[str, Any]] = [
    {
        "name": "mksearch",
        "does": "exact ranking",
        "hides_documents": "from all servers",
        "hides_query": "from any one server",
        "proves": "yes",
        "ms": 60.0,
        "measured": "measured",
    },
    {
        "name": "TenSEAL (CKKS)",
        "does": "products",
        "hides_documents": "no",
        "hides_query": "from the one server",
        "proves": "no",
        "ms": 400_000.0,
        "measured": "extrapolated: 24 documents measured, times 4,000",
    },
    {
        "name": "MPyC",
        "does": "",
        "hides_documents": "",
        "hides_query": "",
        "proves": "",
        "ms": None,
        "measured": "left out: mpyc is not installed",
    },
]


def figure(value: float | None, direction: Any = "at most", **bounds: float) -> Figure:
    return Figure("part.what", "what it is", value, "ms", direction, **bounds)  # type: ignore[arg-type]


def part(figures: list[Figure], **tables: list[dict[str, Any]]) -> dict[str, Any]:
    fields = PartResult(figures, tables).to_json()
    return {**fields, "failed": "", "seconds": 1.0, "load_before": 0.3}


@pytest.fixture
def measured() -> dict[str, Any]:
    search = Figure("search.65536", "search, 65,536", 50.0, "ms", "at most", 60, 120)
    engine = Figure("engine.read_ratio_1", "ratio", 0.5, "", "at least", 0.9, 0.6)
    reading = [
        {
            "threads": threads,
            "plain_read_gb_s": 30.0,
            "one_vector_gb_s": 15.0,
            "eight_vectors_gb_s": 8.0,
        }
        for threads in (1, 2)
    ]
    return {
        "format": 1,
        "environment": {
            "cpu": "a processor",
            "cores": 2,
            "memory_gb": 24.0,
            "system": "Linux x86_64",
            "python": "3.11.7",
            "libraries": {"numpy": "2.4.6"},
        },
        "parts": {
            "engine": part([engine], reading=reading),
            "search": part([search], latency=[LATENCY]),
            "peers": part([figure(None)], peers=PEERS),
        },
    }


# --- goals and limits -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "direction", "verdict"),
    [
        (50.0, "at most", "goal reached"),
        (60.0, "at most", "goal reached"),
        (60.1, "at most", "kept"),
        (120.0, "at most", "kept"),
        (120.1, "at most", "MISSED"),
        (120.1, "at least", "goal reached"),
        (60.0, "at least", "kept"),
        (59.9, "at least", "MISSED"),
    ],
)
def test_a_value_on_the_bound_keeps_it(value: float, direction: Any, verdict: str) -> None:
    goal, limit = (60.0, 120.0) if direction == "at most" else (120.0, 60.0)

    assert figure(value, direction, goal=goal, limit=limit).verdict == verdict


def test_a_goal_alone_is_reached_or_not_judged_but_never_missed() -> None:
    assert figure(2.0, goal=3.0).verdict == "goal reached"
    assert figure(4.0, goal=3.0).verdict == "not judged"


def test_a_figure_that_was_not_measured_misses_nothing_and_says_so() -> None:
    absent = figure(None, limit=1.0)

    assert absent.verdict == "not measured"
    assert not absent.missed


def test_a_figure_without_judgement_keeps_its_value_and_says_why() -> None:
    freed = figure(500.0, limit=1.0).unjudged("a quick run")

    assert (freed.value, freed.verdict) == (500.0, "not judged")
    assert "quick run" in freed.note


def test_a_figure_comes_back_from_json_as_it_was() -> None:
    whole = figure(1.5, goal=1.0, limit=2.0)

    assert Figure.from_json(json.loads(json.dumps(whole.to_json()))) == whole


def test_quantiles_lie_between_the_values() -> None:
    assert median_of([3.0, 1.0, 2.0]) == 2.0
    assert median_of([1.0, 2.0]) == 1.5
    assert median_of([5.0], 0.9) == 5.0
    assert median_of([float(n) for n in range(11)], 0.9) == 9.0


def test_the_machine_is_described_without_its_name_or_a_path() -> None:
    shown = json.dumps(environment())

    assert "/" not in shown
    assert {"cpu", "cores", "memory_gb", "python", "libraries"} <= set(environment())


# --- a run ----------------------------------------------------------------------------------------


def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Any, *, quick: bool = False
) -> dict[str, Any]:
    monkeypatch.setenv("MKSEARCH_DATA", str(tmp_path))
    return run_part(Part("some", "something", 1, work), Bench(tmp_path, quick))


def test_a_part_that_fails_is_a_failure_and_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_bench: Bench) -> PartResult:
        raise ValueError("no luck")

    done = run(tmp_path, monkeypatch, fail)

    assert done["failed"] == "ValueError: no luck"
    assert report.has_failed({"parts": {"some": done}})


def test_a_missed_limit_fails_the_run_and_a_kept_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value, failed in ((3.0, True), (2.0, False)):
        done = run(tmp_path, monkeypatch, lambda _b, v=value: PartResult([figure(v, limit=2.0)]))
        assert report.has_failed({"parts": {"some": done}}) is failed


def test_a_quick_run_and_synthetic_texts_are_never_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(_bench: Bench) -> PartResult:
        return PartResult([figure(9.0, limit=2.0)])

    def made_up(_bench: Bench) -> PartResult:
        missed = Figure("a.b", "c", 9.0, "ms", "at most", limit=2, note="synthetic texts")
        return PartResult([missed])

    for done in (
        run(tmp_path, monkeypatch, slow, quick=True),
        run(tmp_path, monkeypatch, made_up),
    ):
        assert not report.has_failed({"parts": {"some": done}})
        assert done["figures"][0]["verdict"] == "not judged"


def test_the_help_names_every_part_and_its_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    shown = capsys.readouterr().out

    assert ended.value.code == 0
    for one in PARTS:
        assert re.search(rf"  {one.name} .*\({one.minutes:g} min\)", shown), one.name


def test_a_quick_run_makes_no_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--report"]) == 2
    assert "quick" in capsys.readouterr().err


def test_the_plots_know_the_order_of_the_parts() -> None:
    assert set(plots.PART_ORDER) == {p.name for p in PARTS}


# --- texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "whole"), [(1, 10), (3, 10), (10, 10), (65, 364)])
def test_spaced_documents_are_as_many_as_wanted_and_reach_from_end_to_end(
    wanted: int, whole: int
) -> None:
    documents = [Document(str(number), "", "") for number in range(whole)]
    taken = [int(document.id) for document in _spaced(documents, wanted, whole)]

    assert len(taken) == wanted
    assert taken == sorted(set(taken))
    assert taken[0] == 0
    assert taken[-1] >= whole - 1 - whole // wanted


def test_synthetic_texts_are_the_same_every_time_and_say_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.bench.corpora.data_root", lambda: None)
    told: list[str] = []
    made = []
    for run_number in ("a", "b"):
        folder = tmp_path / run_number
        folder.mkdir()
        corpus = Corpora(folder, told.append).mix99k(30)
        made.append([document.text for document in corpus.documents()])

    assert corpus.synthetic
    assert "synthetic" in corpus.note
    assert "SYNTHETIC" in told[0]
    assert made[0] == made[1]
    assert len(made[0]) == 30
    assert all(len(query.split()) == 3 for query in corpus.short)


# --- the report -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"), (0, "0"), (0.5, "0.500"), (1.234, "1.23"), (12.34, "12.3"), (300, "300"),
        (123.4, "123"), (12345.6, "12,346"), (0.00000012, "1.2e-07"),
    ],
)  # fmt: skip
def test_three_digits_count(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_times_have_the_unit_of_their_size() -> None:
    assert [duration(ms) for ms in (None, 12.3, 4000.0, 600_000.0)] == [
        "-",
        "12.3 ms",
        "4 s",
        "10 min",
    ]


def test_the_report_holds_every_figure_and_its_verdict(measured: dict[str, Any]) -> None:
    text = render(measured)

    for one in figures_of(measured):
        assert "| " + " | ".join(cells(one)) + " |" in text
    assert "MISSED" in text
    assert "left out: mpyc is not installed" in text
    assert "extrapolated: 24 documents" in text


def test_a_part_that_failed_stands_in_the_report(measured: dict[str, Any]) -> None:
    measured["parts"]["search"]["failed"] = "StorageError: no room"

    assert "part `search` did not end: StorageError: no room" in render(measured)
    assert "part search FAILED: StorageError: no room" in report.text_table(measured)


def test_a_report_of_nothing_is_still_a_document(measured: dict[str, Any]) -> None:
    assert render({**measured, "parts": {}}).startswith("# Benchmarks\n")


def test_the_same_figures_give_the_same_report(measured: dict[str, Any], tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        report.write(copy.deepcopy(measured), tmp_path / name)
    made = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.*"))

    assert Path("benchmarks.md") in made
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in made)
    assert render(report.load(tmp_path / "a")) == (tmp_path / "a" / "benchmarks.md").read_text()


def test_the_plots_are_small_and_without_dates(measured: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    names = plots.draw(measured, tmp_path)

    assert names == ["latency", "peers", "reading"]
    for name in names:
        text = (tmp_path / f"{name}.svg").read_text()
        assert len(text) < 60_000
        assert "dc:date" not in text


def test_a_report_keeps_parts_that_were_not_run_and_replaces_those_that_were(
    measured: dict[str, Any],
) -> None:
    new = copy.deepcopy(measured)
    new["parts"] = {"engine": part([figure(1.0)])}
    merged = report.merge(measured, new)

    assert list(merged["parts"]) == ["engine", "search", "peers"]
    assert merged["parts"]["engine"] == new["parts"]["engine"]


def test_figures_of_another_machine_are_not_mixed_in(
    measured: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    new = copy.deepcopy(measured)
    new["environment"]["cpu"] = "another processor"
    new["parts"] = {"engine": part([figure(1.0)])}

    assert list(report.merge(measured, new)["parts"]) == ["engine"]
    assert "another machine" in capsys.readouterr().err


# --- what is in docs ------------------------------------------------------------------------------


def test_the_document_says_what_its_figures_say() -> None:
    measured = report.load(DOCS)

    assert (DOCS / "benchmarks.md").read_text("utf-8") == render(measured)


def test_every_figure_of_the_document_is_explained() -> None:
    keys = [one.key for one in figures_of(report.load(DOCS))]

    assert [key for key in keys if not key.startswith(tuple(MEANINGS))] == []


def test_every_plot_of_the_document_is_there_and_no_other() -> None:
    named = set(report.load(DOCS).get("plots", []))

    assert {path.stem for path in (DOCS / "benchmarks").glob("*.svg")} == named
