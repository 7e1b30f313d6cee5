"""An owner's key that signed two manifests of which only one can be: met, kept, named, proved."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mksearch.errors import ManifestRefused, MksearchError, VerificationError
from mksearch.index.equivocation import Equivocation
from mksearch.index.manifest import SignedManifest
from mksearch_client.connection import GrpcConnection
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner
from mksearch_client.profile import Profile
from tests.cli.conftest import Runner
from tests.support.grpc_stage import RANDOM, GrpcStage, staging


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[GrpcStage]:
    with staging(tmp_path) as made:
        made.publish()
        yield made


def _successors(stage: GrpcStage) -> tuple[SignedManifest, SignedManifest]:
    """Sign two versions that both follow the newest one."""
    newest, _ = stage.owner.status()
    assert newest is not None
    key = stage.owner.profile.keys.signing
    manifest = replace(newest.manifest, version=newest.manifest.version + 1, previous=newest.hash)
    return (
        SignedManifest.sign(manifest, key),
        SignedManifest.sign(replace(manifest, created_at=manifest.created_at + 1), key),
    )


def _serve(stage: GrpcStage, shown: Mapping[int, SignedManifest]) -> None:
    """Have servers go over to versions whose objects they hold."""
    for server, signed in shown.items():
        entry = stage.owner.profile.servers[server]
        connection = GrpcConnection(server, entry.address, entry.key, RANDOM)
        try:
            connection.propose(signed.encode())
            connection.activate(signed.hash)
        finally:
            connection.close()


def _client(stage: GrpcStage, name: str = "client") -> Profile:
    folder = stage.folder / name
    shutil.copytree(stage.owner.profile.folder, folder)
    return Profile.open(folder)


def _require_kept(profile: Profile, one: SignedManifest, other: SignedManifest) -> str:
    """Prove that a profile keeps both; return the file."""
    (kept,) = profile.equivocations()
    found = Equivocation.decode(Path(kept.path).read_bytes(), profile.owner_key, profile.collection)
    assert {found.first.hash, found.second.hash} == {one.hash, other.hash}
    assert kept.version == found.second.manifest.version
    return kept.path


def _require_named(text: str, path: str, *manifests: SignedManifest) -> None:
    """Prove that a message names both numbers, both hashes and the file."""
    assert path in text
    for signed in manifests:
        assert f"version {signed.manifest.version} ({signed.hash.hex()})" in text


def test_a_server_alone_with_a_second_manifest_is_outvoted_and_both_are_kept(
    stage: GrpcStage,
) -> None:
    one, other = _successors(stage)
    _serve(stage, {1: other, 2: one, 3: one})
    profile = _client(stage)

    with Searcher(profile) as searcher:
        result = searcher.search("apple")

    assert result.version == one.manifest.version
    path = _require_kept(profile, one, other)
    assert Path(path).parent == profile.folder / "evidence"
    (warning,) = [warning for warning in result.warnings if "owner's key" in warning]
    _require_named(warning, path, one, other)
    (stale,) = [server for server in result.servers if server.id == 1]
    assert stale.status == "stale"
    _require_named(stale.reason, path, one, other)
    with Searcher(profile) as searcher:
        searcher.search("apple")
    _require_kept(profile, one, other)


def test_where_too_few_servers_decide_the_error_names_both_and_where_they_are(
    stage: GrpcStage,
) -> None:
    one, other = _successors(stage)
    _serve(stage, {1: one, 2: other})
    profile = _client(stage)

    with Searcher(profile) as searcher, pytest.raises(ManifestRefused) as caught:
        searcher.search("apple")

    _require_named(caught.value.message, _require_kept(profile, one, other), one, other)
    assert "\n" not in caught.value.message


def test_a_second_manifest_of_the_version_seen_is_refused_and_kept(stage: GrpcStage) -> None:
    one, other = _successors(stage)
    _serve(stage, dict.fromkeys((1, 2, 3), other))
    profile = _client(stage)
    (profile.folder / "manifest").write_bytes(one.encode())

    with Searcher(profile, timeout_s=3.0) as searcher, pytest.raises(MksearchError) as caught:
        searcher.search("apple")

    assert caught.value.exit_code == 3
    _require_named(caught.value.message, _require_kept(profile, one, other), one, other)


def test_a_successor_that_does_not_follow_is_refused_and_kept(stage: GrpcStage) -> None:
    one, other = _successors(stage)
    key = stage.owner.profile.keys.signing
    version, follows = other.manifest.version + 1, other.hash
    after = SignedManifest.sign(replace(other.manifest, version=version, previous=follows), key)
    _serve(stage, dict.fromkeys((1, 2, 3), after))
    profile = _client(stage)
    (profile.folder / "manifest").write_bytes(one.encode())

    with Searcher(profile, timeout_s=3.0) as searcher, pytest.raises(MksearchError) as caught:
        searcher.search("apple")

    _require_named(caught.value.message, _require_kept(profile, one, after), one, after)


def test_an_honest_owner_leaves_no_evidence(stage: GrpcStage) -> None:
    profile = _client(stage)
    with Searcher(profile) as searcher:
        for _ in range(3):
            stage.owner.renew()
            searcher.search("apple")
    stage.servers[3].stop()
    stage.owner.renew()
    stage.servers[3].start()
    with Searcher(profile) as searcher:
        searcher.search("apple")
    stage.owner.status()
    assert profile.equivocations() == stage.owner.profile.equivocations() == []


def test_the_owner_is_told_and_proves_it(stage: GrpcStage, tmp_path: Path) -> None:
    one, other = _successors(stage)
    _serve(stage, {1: one, 2: other, 3: other})
    folder = stage.owner.profile.folder
    run = Runner().client

    status = run("owner", "status", "--profile", folder, "--json").json
    path = _require_kept(stage.owner.profile, one, other)
    (kept,) = status["equivocations"]
    assert (kept["path"], kept["version"]) == (path, one.manifest.version)
    assert path in run("owner", "status", "--profile", folder).out

    verify = ("owner", "verify", "--evidence", path, "--profile", folder)
    proved = run(*verify)
    assert proved.code == 3
    _require_named(proved.out, path, one, other)
    (verdict,) = run(*verify, "--json").json["evidence"]
    assert (verdict["server"], verdict["is_lie"]) == (0, True)
    # What was changed proves nothing.
    data = Path(path).read_bytes()
    (tmp_path / "changed").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert run("owner", "verify", "--evidence", tmp_path / "changed", "--profile", folder).code == 3
    with Owner(stage.owner.profile) as owner, pytest.raises(VerificationError) as caught:
        owner.judge(tmp_path / "changed")
    assert caught.value.cure
    # It must stay a file of this collection.
    with staging(tmp_path / "elsewhere") as strange, pytest.raises(VerificationError):
        strange.owner.judge(Path(path))


def test_evidence_of_manifests_takes_bounded_room(stage: GrpcStage) -> None:
    profile = _client(stage)
    newest = _successors(stage)[0]
    key = stage.owner.profile.keys.signing
    for number in range(12):
        name = f"another {number}"
        other = SignedManifest.sign(replace(newest.manifest, name=name), key)
        profile.keep_equivocation(Equivocation.of(newest, other))
    assert len(profile.equivocations()) == 8
