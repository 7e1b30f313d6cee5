"""The table [ray], and what can be wrong before a cluster is started."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from mksearch.errors import EngineUnavailable, ParameterError
from mksearch_server.config import load_config, write_config
from mksearch_server.ray_cluster import RayCluster
from mksearch_server.ray_config import RayConfig, read_ray

WRONG = {
    "shards": ("shards = 0", "1..1024"),
    "replicas": ("replicas = 17", "1..16"),
    "a number as text": ('cpus = "1"', "1..1024"),
    "gpus": ("gpus = -1", "0..64"),
    "engine": ('engine = "ray"', "cpu"),
    "address": ('address = "somewhere"', "HOST:PORT"),
    "no TLS between hosts": ('address = "10.0.0.7:6379"', "TLS"),
    "half of TLS": ('certificate = "a.crt"', "all three"),
    "a path that is none": ("store = 7", "quotation marks"),
    "an unknown key": ("shard = 2", "known keys"),
}


@pytest.mark.parametrize(("line", "part"), WRONG.values(), ids=WRONG)
def test_wrong_settings_are_refused_with_the_cure(tmp_path: Path, line: str, part: str) -> None:
    path = write_config(tmp_path, 1, "127.0.0.1:0")
    path.write_text(path.read_text() + f"\n[ray]\n{line}\n")

    with pytest.raises(ParameterError) as refused:
        load_config(path)

    assert part in f"{refused.value.message} {refused.value.cure}"
    assert refused.value.cure
    assert "\n" not in refused.value.message


def test_what_init_writes_is_right_with_the_marks_taken_away(tmp_path: Path) -> None:
    path = write_config(tmp_path, 1, "127.0.0.1:0")
    begin, _, rest = path.read_text().partition("# [ray]\n")
    lines = rest.split("\n\n")[0].splitlines()
    shown = "\n".join(line.removeprefix("# ") for line in lines)
    path.write_text(f"{begin}[ray]\n{shown}\n".replace('engine = "cpu"', 'engine = "ray"', 1))

    config = load_config(path)

    assert config.engine == "ray"
    assert config.ray is not None
    assert config.ray.store == tmp_path / "data"
    assert config.ray.has_tls


def test_shards_do_not_read_from_a_bucket(tmp_path: Path) -> None:
    path = write_config(tmp_path, 1, "127.0.0.1:0")
    text = path.read_text().replace('engine = "cpu"', 'engine = "ray"', 1)
    path.write_text(text + '\n[s3]\nurl = "s3://bucket/server-1"\nregion = "eu-west-1"\n')

    with pytest.raises(ParameterError, match="keeps segments in a bucket"):
        load_config(path)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = read_ray({"token": "t", "store": "/mnt/store"}, tmp_path)

    assert config.token == tmp_path / "t"
    assert config.store == Path("/mnt/store")


# --- before a cluster -----------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what is said to Ray."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "")


def test_without_ray_it_is_said_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(EngineUnavailable, match="not installed") as refused:
        RayCluster(RayConfig(), tmp_path)

    assert refused.value.cure == "install mksearch[cluster]"


def test_a_token_is_made_for_this_user_alone_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for _ in range(2):
        with pytest.raises(EngineUnavailable):
            RayCluster(RayConfig(), tmp_path)
    token = tmp_path / "ray-token"

    assert token.stat().st_mode & 0o777 == 0o600
    assert len(token.read_text()) == 64


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_token_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    token = tmp_path / "ray-token"
    token.write_text("secret")
    token.chmod(mode)

    with pytest.raises(EngineUnavailable, match="by others") as refused:
        RayCluster(RayConfig(), tmp_path)

    assert "chmod 600" in refused.value.cure
    assert "secret" not in refused.value.message


def test_a_token_that_is_missing_is_not_made_for_a_cluster_that_runs(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="cannot be read") as refused:
        RayCluster(RayConfig(address="127.0.0.1:6379"), tmp_path)

    assert "copy" in refused.value.cure
    assert not (tmp_path / "ray-token").exists()


def test_an_address_that_does_not_answer_is_named(tmp_path: Path) -> None:
    token = tmp_path / "ray-token"
    token.touch(0o600)
    token.write_text("secret")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(EngineUnavailable, match=address) as refused:
            RayCluster(RayConfig(address=address), tmp_path)

    assert "ray start --head" in refused.value.cure


def test_auto_never_chooses_a_cluster() -> None:
    from mksearch.scoring.engine import ENGINES

    assert "ray" not in ENGINES
