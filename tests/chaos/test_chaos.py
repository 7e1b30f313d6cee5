"""What CI runs of `./dev chaos`: a tenth of lies and kills, 1,000 mutations a target, some load."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.decoders import EXCEPTIONS, found_decoders, make_targets
from tests.chaos.faults import run_faults
from tests.chaos.kills import KINDS, run_kills
from tests.chaos.load import run_load
from tests.chaos.mutations import METHODS, mutate_calls, mutate_target, mutating_server
from tests.chaos.partition import run_partition
from tests.support.networks import why_not

#: The same every time in CI.
SEED = 20_240_229
N_FAULTS = 1000
#: A machine that is slower tells fewer of them, but never fewer than a third.
FAULTS_S = 50.0
N_KILLS = 20
#: A machine that is slower kills fewer times, but never fewer than once in each way.
KILLS_S = 50.0
#: A twentieth.
N_PARTITIONS = 1
N_MUTATIONS = int(os.environ.get("MKSEARCH_MUTATIONS", "1000"))


@pytest.mark.slow
def test_a_thousand_lies_of_one_server_change_no_answer_and_name_nobody_else(
    tmp_path: Path,
) -> None:
    report = run_faults(tmp_path, N_FAULTS, SEED, limit_s=FAULTS_S)

    assert report.violations == []
    assert report.n_named == report.n_told
    assert report.n_faults > N_FAULTS / 3
    assert report.n_told > 0.8 * report.n_faults


def test_no_decoder_of_the_core_was_forgotten(tmp_path: Path) -> None:
    found = found_decoders()
    covered = {name for target in make_targets(tmp_path) for name in target.covers}

    assert found - covered - set(EXCEPTIONS) == set(), "give each a target, or a reason for none"
    assert covered - found == set(), "covered by a name that nothing has"
    assert set(EXCEPTIONS) & covered == set()
    assert len(found) > 40


@pytest.mark.slow
def test_mutated_bytes_are_refused_by_every_decoder_with_an_error_of_this_product(
    tmp_path: Path,
) -> None:
    violations = []
    for target in make_targets(tmp_path):
        for sample in target.samples:
            target.decode(sample)
        report = mutate_target(target, N_MUTATIONS, SEED)
        violations += report.violations
        assert report.n_tried >= 20
    assert violations == []


@pytest.mark.slow
def test_mutated_calls_get_a_status_of_the_table_and_leave_a_server_as_it_was(
    tmp_path: Path,
) -> None:
    with mutating_server(tmp_path) as published:
        reports = mutate_calls(published, N_MUTATIONS, SEED)

    assert [text for report in reports for text in report.violations] == []
    assert len(reports) == len(METHODS) + 1


@pytest.mark.slow
def test_many_clients_get_right_answers_or_are_told_to_come_back(tmp_path: Path) -> None:
    report = run_load(tmp_path, 8, 5.0, max_waiting=1)

    assert report.violations == []
    assert len(report.latencies_s) > 20


@pytest.mark.slow
def test_kill_9_at_any_moment_loses_nothing_acknowledged_and_tears_no_version(
    tmp_path: Path,
) -> None:
    report = run_kills(tmp_path, N_KILLS, SEED, limit_s=KILLS_S, at_least=len(KINDS))

    assert report.violations == []
    assert set(report.by_kind) == set(KINDS)
    assert report.n_met > 0


@pytest.mark.slow
def test_networks_that_part_and_meet_send_no_client_back_and_all_converge(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    report = run_partition(tmp_path, N_PARTITIONS, SEED, n_clients=2)

    assert report.violations == []
    assert (report.n_cuts, report.n_versions) == (N_PARTITIONS, 1 + 2 * N_PARTITIONS)
    assert report.n_searches >= 4 * N_PARTITIONS
