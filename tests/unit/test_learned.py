"""What a search says that servers learned, for every mode; and the limit of a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from mksearch.errors import ParameterError, PrivacyExceeded, ProfileError
from mksearch.params import Quorum
from mksearch_client import privacy
from mksearch_client.learned import OpenedLevel, SearchFacts, what_was_learned
from mksearch_client.privacy import MODES, PrivacyLimit

OPENED = (OpenedLevel(2, 1, 1), OpenedLevel(1, 5, 27), OpenedLevel(0, 26, 1628))
FACTS = {
    "full": SearchFacts("full", Quorum(), 1, 1, fetches=(16, 4)),
    "balanced": SearchFacts("balanced", Quorum(), 1, 1, n_slots=14, n_reads=2),
    "fast": SearchFacts("fast", Quorum(), 1, 1, n_slots=14, n_reads=3, opened=OPENED, n_steps=2),
}


def kinds(facts: SearchFacts) -> dict[str, dict[str, int]]:
    return {
        to: {one["what"]: one["count"] for one in shown}
        for to, shown in what_was_learned(facts).to_json().items()
    }


def test_every_mode_says_what_it_shows_to_t_servers_and_to_one_more() -> None:
    assert kinds(FACTS["full"]) == {
        "t": {"query": 1, "fetches": 20},
        "t+1": {"query": 1, "fetches": 20, "columns": 1},
    }
    assert kinds(FACTS["balanced"]) == {
        "t": {"query": 1, "records": 14},
        "t+1": {"query": 1, "records": 14, "columns": 1},
    }
    assert kinds(FACTS["fast"]) == {
        "t": {"query": 1, "blocks": 32, "records": 14},
        "t+1": {"query": 1, "blocks": 32, "records": 14, "columns": 1},
    }


def test_each_mode_shows_what_the_one_before_it_does_and_more() -> None:
    # A number of fetches, padded, is less than the numbers of the records.
    weight = {"query": 1, "columns": 1, "fetches": 1, "records": 2, "blocks": 3}
    sums = [sum(weight[what] for what in kinds(FACTS[mode])["t"]) for mode in MODES]
    assert sums == sorted(set(sums))


def test_the_words_name_the_numbers_and_who_learned_what() -> None:
    sentences = {mode: what_was_learned(facts).sentences for mode, facts in FACTS.items()}
    for mode, parts in {
        "full": ("1 server alone: that a query of 1 vector came", "that 16, then 4 fetches came"),
        "balanced": ("which 14 permuted record numbers", "in 2 rounds"),
        "fast": (
            "which blocks were opened, in 2 steps and in that order (1 of 1 nodes of level 2",
            ", 5 of 27 nodes of level 1, 26 of 1628 blocks of documents)",
            "topic",
        ),
    }.items():
        for part in (*parts, "2 or more colluding servers", "never a cell"):
            assert any(part in sentence for sentence in sentences[mode]), part
    assert not any("which 14" in sentence for sentence in sentences["full"])
    assert "which records were wanted" in sentences["full"][-1]


def test_the_bound_of_the_collection_decides_who_is_meant() -> None:
    said = what_was_learned(
        SearchFacts("balanced", Quorum(7, 3), 1, 2, n_slots=1, n_reads=1)
    ).sentences
    assert said[0].startswith("up to 3 colluding servers: that a query of 2 vectors came")
    assert "which 1 permuted record number was read, in 1 round," in said[1]
    assert said[-1].startswith("4 or more colluding servers")


def test_groups_failures_and_empty_results_are_said() -> None:
    facts = SearchFacts("balanced", Quorum(), 3, 3, n_failed=1)
    said = " ".join(what_was_learned(facts).sentences)
    assert "to which 3 policy groups, and when" in said
    assert "you satisfy the policies of these 3 groups" in said
    assert "no record was read, so that no document matches" in said
    assert "1 server failed or answered wrongly and another was asked" in said
    assert kinds(facts)["t"] == {"query": 3, "groups": 3, "records": 0, "failures": 1}


def test_sentences_and_data_are_of_the_same_things() -> None:
    for facts in FACTS.values():
        learned = what_was_learned(facts)
        assert learned.mode == facts.mode
        assert len(learned.sentences) == len(learned.to_json()["t+1"])


# --- the limit of a profile -----------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _all_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decide as a release does that has all of them."""
    monkeypatch.setattr(privacy, "AVAILABLE", MODES)


def test_a_mode_that_this_release_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "AVAILABLE", ("balanced", "full"))
    with pytest.raises(ParameterError, match="--privacy fast is not part of version") as caught:
        PrivacyLimit().require("fast")
    assert caught.value.cure == "use balanced or full"


def write(folder: Path, text: str) -> Path:
    (folder / "config.toml").write_text(text)
    return folder


def test_without_a_setting_every_mode_is_allowed(tmp_path: Path) -> None:
    for limit in (
        PrivacyLimit(),
        PrivacyLimit.read(tmp_path),
        PrivacyLimit.read(write(tmp_path, "")),
        PrivacyLimit.read(write(tmp_path, "[privacy]\n")),
    ):
        for mode in MODES:
            limit.require(mode)


@pytest.mark.parametrize("most", MODES)
def test_modes_that_show_more_are_refused_with_cause_and_cure(tmp_path: Path, most: str) -> None:
    limit = PrivacyLimit.read(write(tmp_path, f'[privacy]\nmax = "{most}"\n'))
    for mode in MODES:
        if MODES.index(mode) <= MODES.index(most):
            limit.require(mode)
            continue
        with pytest.raises(PrivacyExceeded) as caught:
            limit.require(mode)
        assert f"mode {mode} shows servers more than {most}" in caught.value.message
        assert str(tmp_path / "config.toml") in caught.value.message
        assert caught.value.cure == f"use --privacy {most}, or raise privacy.max"
        assert caught.value.exit_code == 2


def test_a_mode_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ParameterError, match="there is no privacy 'none'") as caught:
        PrivacyLimit().require("none")
    assert caught.value.cure == "use full or balanced or fast"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("privacy", "it is not TOML"),
        ("privacy = 3", "privacy is not a table"),
        ("[privacy]\nmaximum = 'full'", "there is no setting privacy.maximum"),
        ("[privacy]\nmax = 'FULL'", "privacy.max is 'FULL'"),
        ("[privacy]\nmax = ['full']", r"privacy.max is \['full'\]"),
        ("[privacy]\nmax = 1", "privacy.max is 1"),
        ("[privat]\nmax = 'full'", "there is no setting 'privat'"),
        ("\0", "it is not TOML"),
    ],
)
def test_a_limit_that_cannot_be_read_is_never_passed_over(
    tmp_path: Path, text: str, part: str
) -> None:
    with pytest.raises(ProfileError, match=part) as caught:
        PrivacyLimit.read(write(tmp_path, text))
    assert "config.toml" in caught.value.message
    assert caught.value.cure


def test_a_limit_that_is_no_text_or_no_file_is_never_passed_over(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ProfileError, match="it is not TOML"):
        PrivacyLimit.read(tmp_path)
    (tmp_path / "config.toml").unlink()
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(ProfileError, match="cannot be read"):
        PrivacyLimit.read(tmp_path)
