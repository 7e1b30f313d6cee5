"""A lie that a server signed is kept, can be proved to anybody, and nobody can forge one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mksearch.crypto.evidence import AnswerSigner, Evidence
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.errors import AnswerRefused, FormatError, InputError, VerificationError
from mksearch.messages import ScoreAnswer
from mksearch_client.cli import main
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner
from mksearch_client.profile import Profile
from tests.adversary.corpus import make_documents
from tests.adversary.lies import LIES, lies_of
from tests.adversary.malicious_server import Lie
from tests.adversary.stage import Stage, lying_stage

DOCUMENTS = make_documents(70, 5)
QUERY = " ".join(DOCUMENTS[3].text.split()[:3])
#: Lies of a shape or range that no answer has are refused before their signature is read.
UNREAD = {
    f"sums: {name}"
    for name in (
        "fewer_rows",
        "more_rows",
        "more_tables",
        "more_vectors",
        "turned",
        "no_sums",
        "out_of_range",
    )
}


@pytest.fixture(scope="module")
def shared_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with lying_stage(tmp_path_factory.mktemp("stage"), DOCUMENTS) as stage:
        yield stage


@pytest.fixture
def stage(shared_stage: Stage) -> Iterator[Stage]:
    shared_stage.be_honest()
    yield shared_stage
    shared_stage.be_honest()


@pytest.fixture
def profile(stage: Stage, tmp_path: Path) -> Profile:
    return stage.profile(tmp_path / "profile")


def _kept(profile: Profile) -> list[Path]:
    return [Path(kept.path) for kept in profile.evidence()]


def _caught(stage: Stage, profile: Profile, name: str = "one_row", server: int = 1) -> Path:
    """Return the evidence of a lie."""
    stage.servers[server].lie = LIES[f"sums: {name}"]
    with Searcher(profile) as searcher:
        searcher.search(QUERY)
    stage.be_honest()
    (path,) = _kept(profile)
    return path


def _name(lie: Lie) -> str:
    return lie.name


@pytest.mark.parametrize("lie", [lie for lie in lies_of("Score") if lie.content], ids=_name)
def test_evidence_of_every_signed_lie_about_sums_is_kept_and_proved(
    stage: Stage, profile: Profile, lie: Lie
) -> None:
    with Searcher(profile) as searcher:
        # Something to replay.
        searcher.search(DOCUMENTS[9].text)
        stage.servers[1].lie = lie
        result = searcher.search(QUERY)
    stage.be_honest()

    assert {report.id: report.status for report in result.servers}[1] == "lied"
    if lie.name in UNREAD:
        assert _kept(profile) == []
        return
    (path,) = _kept(profile)
    assert any(str(path) in warning for warning in result.warnings)
    with Owner(profile) as owner:
        verdict = owner.judge(path)
    assert (verdict.server, verdict.version, verdict.is_lie) == (1, 2, True)
    assert "it signed" in verdict.reason


def test_evidence_against_an_honest_answer_proves_nothing(stage: Stage, profile: Profile) -> None:
    path = _caught(stage, profile)
    evidence = Evidence.decode(path.read_bytes())
    with stage.searcher():
        connection = stage.connect(1)
        answer = connection.score(
            replace(evidence.request, answer_shape=evidence.answer.sums.shape)
        )
        connection.close()
    path.write_bytes(replace(evidence, answer=answer).encode())

    with Owner(profile) as owner:
        verdict = owner.judge(path)

    assert not verdict.is_lie
    assert "proves nothing" in verdict.reason


def test_evidence_that_the_server_did_not_sign_is_refused(stage: Stage, profile: Profile) -> None:
    path = _caught(stage, profile)
    evidence = Evidence.decode(path.read_bytes())
    sums = np.array(evidence.answer.sums)
    sums[0, 0, 0] ^= 1
    changed = replace(evidence, answer=replace(evidence.answer, sums=sums))
    shares = np.array(evidence.request.shares)
    shares[0, 0] ^= 1
    asked = replace(evidence, request=replace(evidence.request, shares=shares))
    signer = AnswerSigner(SigningKey(SecretKey(bytes(range(32)))))
    framed = ScoreAnswer(
        evidence.request.query_id, sums, signer.score(evidence.request, evidence.answer)
    )

    with Owner(profile) as owner:
        for forged in (changed, asked, replace(evidence, answer=framed)):
            path.write_bytes(forged.encode())
            with pytest.raises(VerificationError):
                owner.judge(path)
        path.write_bytes(replace(evidence, server_key=signer.public, answer=framed).encode())
        with pytest.raises(FormatError, match="another key"):
            owner.judge(path)
        path.write_bytes(replace(evidence, server=2).encode())
        with pytest.raises(FormatError, match="another key"):
            owner.judge(path)
        path.write_bytes(replace(evidence, server=4).encode())
        with pytest.raises(FormatError, match="does not have"):
            owner.judge(path)
        with pytest.raises(InputError, match="cannot be read"):
            owner.judge(path.parent / "nothing")


@pytest.mark.parametrize("name", ["object_changed", "other_object", "object_zero", "object_cut"])
def test_evidence_is_judged_by_proved_cells_whatever_the_servers_send(
    stage: Stage, profile: Profile, name: str
) -> None:
    path = _caught(stage, profile, server=2)
    for liar in (1, 2):
        stage.servers[liar].lie = LIES[f"object: {name}"]

    with Owner(profile) as owner:
        assert owner.judge(path).is_lie


def test_evidence_holds_one_share_and_nothing_else_of_the_query(
    stage: Stage, profile: Profile
) -> None:
    """The accused knows this share already; without another one it says nothing of the query."""
    path = _caught(stage, profile)
    evidence = Evidence.decode(path.read_bytes())

    shares = evidence.request.shares.astype(np.int64)
    # A query has few columns and small weights; a share of it is spread over the whole field.
    assert (shares != 0).mean() > 0.99
    assert np.median(shares) > 10_000
    data = path.read_bytes()
    assert not [word for word in QUERY.split() if word.encode() in data]
    assert path.stat().st_mode & 0o077 == 0


def test_a_server_that_lied_is_asked_only_where_the_others_are_not_enough(
    stage: Stage, profile: Profile
) -> None:
    path = _caught(stage, profile)
    with Searcher(profile) as searcher:
        statuses = {r.id: r.status for r in searcher.search(QUERY).servers}
    assert statuses == {1: "unused", 2: "ok", 3: "ok"}

    stage.servers[2].lie = LIES["Score: any_status"]
    with Searcher(profile) as searcher:
        statuses = {r.id: r.status for r in searcher.search(QUERY).servers}
    assert (statuses[1], statuses[3]) == ("ok", "ok")
    stage.be_honest()

    path.unlink()
    with Searcher(profile) as searcher:
        statuses = {r.id: r.status for r in searcher.search(QUERY).servers}
    assert statuses == {1: "ok", 2: "ok", 3: "unused"}


def test_evidence_is_kept_when_the_search_fails(stage: Stage, profile: Profile) -> None:
    for server in (1, 2):
        stage.servers[server].lie = LIES["sums: every_row"]
    with Searcher(profile) as searcher, pytest.raises(AnswerRefused):
        searcher.search(QUERY)
    stage.be_honest()

    accused = {kept.server for kept in profile.evidence()}
    assert accused == {1, 2}
    with Owner(profile) as owner:
        assert all(owner.judge(path).is_lie for path in _kept(profile))


def test_a_liar_fills_no_disk(stage: Stage, profile: Profile, tmp_path: Path) -> None:
    stage.servers[1].lie = LIES["sums: one_row"]
    stage.servers[2].lie = LIES["sums: one_row"]
    with Searcher(profile) as searcher:
        for _ in range(12):
            with pytest.raises(AnswerRefused):
                searcher.search(QUERY)
    stage.be_honest()
    assert len(_kept(profile)) <= 16

    shutil.rmtree(profile.folder / "evidence")
    (profile.folder / "evidence").write_text("no folder")
    stage.servers[1].lie = LIES["sums: one_row"]
    with Searcher(profile) as searcher:
        result = searcher.search(QUERY)
    assert {report.id: report.status for report in result.servers}[1] == "lied"


def test_the_commands_list_lies_and_prove_them(
    stage: Stage, profile: Profile, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _caught(stage, profile)
    where = ["--profile", str(profile.folder)]

    assert main(["owner", "status", *where, "--json"]) == 0
    (kept,) = json.loads(capsys.readouterr().out)["evidence"]
    assert (kept["server"], kept["version"], kept["path"]) == (1, 2, str(path))
    assert main(["owner", "status", *where]) == 0
    assert f"server 1 lied about version 2 on {_day(kept['kept_at'])}: {path}" in (
        capsys.readouterr().out
    )
    assert main(["owner", "verify", *where, "--evidence", str(path), "--json"]) == 3
    (verdict,) = json.loads(capsys.readouterr().out)["evidence"]
    assert verdict["is_lie"] is True
    assert main(["owner", "verify", *where, "--evidence", str(path)]) == 3
    assert "server 1 lied about version 2: vector 0, row" in capsys.readouterr().out
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["owner", "verify", *where, "--evidence", str(path), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["cure"]


def _day(kept_at: int) -> str:
    from datetime import UTC, datetime

    return str(datetime.fromtimestamp(kept_at, UTC).date())
