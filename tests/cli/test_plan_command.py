"""`mksearch plan`: for people and for programs, without a profile and without a server."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Runner, require_error


def test_a_plan_is_one_object_with_every_figure_and_its_source(runner: Runner) -> None:
    done = runner.client("plan", "--documents", "1000000", "--terms", "80", "--json")

    assert (done.code, done.err) == (0, "")
    fields = done.json
    assert {
        *("documents", "terms", "vocabulary", "queries_a_second", "columns", "levels", "segments"),
        *("index_bytes", "records_bytes", "document_bytes", "server_bytes", "modes", "figures"),
    } <= fields.keys()
    assert (fields["documents"], fields["columns"], len(fields["levels"])) == (1_000_000, 5632, 4)
    assert {one["mode"]: one["basis"] for one in fields["modes"]} == {
        "fast": "modelled",
        "balanced": "extrapolated",
        "full": "modelled",
    }
    assert all(one["source"] for one in fields["figures"])


@pytest.mark.parametrize("documents", ["1", "100000", "10000000000"])
def test_people_read_what_is_measured_and_what_is_not(runner: Runner, documents: str) -> None:
    done = runner.client("plan", "--documents", documents, "--queries", "5", "--servers", "5")

    assert (done.code, done.err) == (0, "")
    for part in ("each of 5 servers stores", "2 of 5 servers asked", "modelled", "GPU", "--json"):
        assert part in done.out
    table = [line for line in done.out.splitlines() if line.startswith("  received")]
    assert len(table) == 1


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ("--documents 0", "--documents 0 is not in 1"),
        ("--documents 10000000001", "is not in 1"),
        ("--documents 5 --terms nan", "--terms nan"),
        ("--documents 5 --queries -1", "--queries -1"),
        ("--documents 5 --servers 3 --collusion 2", "collusion bound of 2"),
        ("--documents 5 -k 0", "-k 0"),
        ("--documents many", "valid integer"),
        ("", "--documents"),
    ],
)
def test_a_plan_of_nonsense_ends_with_2_and_one_line(
    runner: Runner, options: str, part: str
) -> None:
    require_error(runner.client("plan", *options.split()), 2, part)
