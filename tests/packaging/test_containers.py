"""What images, compose files and monitoring of this repository hold, without a runtime."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mksearch_server import serve
from mksearch_server.facts import Facts
from mksearch_server.metrics import Metrics
from tests.containers import __main__ as command
from tests.containers import lint
from tests.containers.context import GPU, IMAGES, _of_this_platform
from tests.containers.tools import ToolMissing
from tests.support.processes import run

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ROOT / "servers"
MONITORING = SERVERS / "monitoring"
RULES = sorted((MONITORING / "rules").glob("*.yml"))
DASHBOARDS = sorted((MONITORING / "grafana/dashboards").glob("*.json"))
FILES = IMAGES | GPU
LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)
#: What a query or a rule may name: ours, those of the recording rules, and others' by prefix.
NAME = re.compile(r"\b(?:mksearch|process|DCGM)[_:][A-Za-z0-9_:]+")
#: Of NVIDIA's DCGM exporter.
OTHERS = {"DCGM_FI_DEV_XID_ERRORS"}


def text_of(name: str) -> str:
    return (SERVERS / name).read_text()


def instructions(name: str) -> list[str]:
    """The instructions of a container file, one a line."""
    lines = [line for line in text_of(name).splitlines() if not line.startswith("#")]
    return [line for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()]


# --- images --------------------------------------------------------------------------------------


@pytest.mark.parametrize("image", FILES)
def test_an_image_is_built_from_wheels_with_hashes_and_runs_as_nobody(image: str) -> None:
    found = instructions(FILES[image])
    installs = [line for line in found if "pip install" in line]

    assert len(installs) == 1
    for option in ("--no-index", "--require-hashes", "--only-binary :all:", "--no-deps"):
        assert option in installs[0]
    assert f"/build/{image}.lock" in installs[0]
    assert not [line for line in found if re.search(r"\b(apt|apt-get|curl|wget|ADD)\b", line)]
    assert [line for line in found if line.startswith("USER ")] == ["USER 10001:10001"]
    assert len([line for line in found if line.startswith("FROM ")]) == 2
    last = found[-2:]
    assert last[0].startswith("ENTRYPOINT ["), last
    assert last[1].startswith("CMD ["), last
    assert any("sbom.cdx.json" in line for line in found)


@pytest.mark.parametrize("image", ["server", "gpu"])
def test_a_server_drains_on_sigterm_and_is_probed(image: str) -> None:
    found = instructions(FILES[image])

    assert "STOPSIGNAL SIGTERM" in found
    (probe,) = (line for line in found if line.startswith("HEALTHCHECK"))
    assert '"mksearch-server", "probe"' in probe
    assert ("MKSEARCH_REQUIRE_GPU=1" in text_of(FILES[image])) == (image == "gpu")


@pytest.mark.parametrize("image", FILES)
def test_locks_of_images_have_hashes_and_the_versions_that_tests_run_with(image: str) -> None:
    text = text_of(f"{image}.lock")
    tested = dict(LOCKED.findall((ROOT / "requirements.lock").read_text()))
    for entry in re.findall(r"^\S[^\n]*(?:\n[ \t][^\n]*)*", text, re.MULTILINE):
        assert "--hash=sha256:" in entry, entry
    differing = {
        name: version
        for name, version in LOCKED.findall(text)
        if name in tested and f"{name}=={version}" not in (ROOT / "requirements.lock").read_text()
    }
    assert differing == {}
    untested = {name for name, _ in LOCKED.findall(text)} - set(tested)
    assert not untested or image == "gpu", untested


def test_a_server_has_nothing_that_cuts_words_and_all_that_it_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    group = {canonicalize_name(name) for name in project["dependency-groups"]["server"]}
    needed = {
        canonicalize_name(Requirement(text).name) for text in project["project"]["dependencies"]
    }
    locked = {canonicalize_name(name) for name, _ in LOCKED.findall(text_of("server.lock"))}

    assert group <= needed
    assert group <= locked
    assert needed - group == {"pystemmer", "rich", "scikit-learn", "scipy", "threadpoolctl"}
    assert not locked & {"pystemmer", "scikit-learn", "scipy", "joblib", "threadpoolctl"}


def test_a_lock_is_cut_to_this_platform() -> None:
    lock = (
        "a==1 ; sys_platform == 'win32' \\\n    --hash=sha256:00\n"
        "b==2 ; python_full_version >= '3' \\\n    --hash=sha256:01 \\\n    --hash=sha256:02\n"
        "c==3 \\\n    --hash=sha256:03\n"
    )

    kept = _of_this_platform(lock)

    assert [name for name, _ in LOCKED.findall(kept)] == ["b", "c"]
    assert kept.count("--hash") == 3


def test_the_entry_point_lays_compiled_loops_or_names_what_is_missing(tmp_path: Path) -> None:
    script = str(SERVERS / "entrypoint.sh")
    folder = tmp_path / "kernels"
    folder.mkdir()
    done = run([script, "echo", "ran"], environment={"NUMBA_CACHE_DIR": str(folder)})
    assert (done.code, done.out, done.err) == (0, "ran\n", "")

    missing = run([script, "echo", "ran"], environment={"NUMBA_CACHE_DIR": "/proc/none/kernels"})

    assert (missing.code, missing.out) == (1, "")
    (line,) = missing.err.splitlines()
    assert line.startswith("echo: /proc/none/kernels cannot be written (mount a tmpfs at /tmp")


# --- compose -------------------------------------------------------------------------------------


def services(text: str) -> dict[str, str]:
    """The text of every service of a compose file."""
    body = re.split(r"^services:\n", text, flags=re.MULTILINE)[1]
    body = re.split(r"^(?=\S)", body, flags=re.MULTILINE)[0]
    parts = re.split(r"^  ([a-z0-9-]+):\n", body, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_operator_has_a_network_an_identity_and_a_volume_of_its_own() -> None:
    found = services(text_of("compose.yaml"))
    for number in (1, 2, 3):
        server, init = found[f"server-{number}"], found[f"init-{number}"]
        assert f"networks: [clients-{number}, monitoring-{number}]" in server
        for volume in (f"identity-{number}:/srv/mksearch", f"data-{number}:/srv/mksearch/data"):
            assert f'"{volume}"' in server
            assert f'"{volume}"' in init
        assert f"- --id={number}\n" in init
        assert "network_mode: none" in init
        assert "logging: {driver: none}" in init, "it says the claim token"
        others = {"1", "2", "3"} - {str(number)}
        for kind in ("clients", "monitoring", "identity", "data"):
            assert not [n for n in others if f"{kind}-{n}" in server + init]


def test_every_container_is_hardened() -> None:
    text = text_of("compose.yaml")
    head, found = text.partition("\nservices:\n")[0], services(text)

    for needed in ("read_only: true", "cap_drop: [ALL]", '["no-new-privileges:true"]', "tmpfs"):
        assert needed in head.partition("x-server:")[0]
    assert "<<: *hardened" in head.partition("x-server:")[2]
    assert "stop_grace_period: 40s" in head
    assert "mem_limit" in head
    for name, body in found.items():
        assert "<<: *hardened" in body or "<<: *server" in body or "cap_drop: [ALL]" in body, name
        assert "privileged: true" not in body
    assert not re.search(r'ports: \["(?!127\.0\.0\.1:)', text)


def test_what_no_machine_at_hand_can_start_is_marked() -> None:
    for name in ("Containerfile.gpu", "compose.yaml", "compose.gpu.yaml"):
        assert "Not run:" in text_of(name), name
    guide = (ROOT / "docs/operations.md").read_text().partition("## Containers\n")[2]
    assert guide.partition("\n## ")[0].count("not run") >= 3


# --- monitoring ----------------------------------------------------------------------------------


class _Nvml(ModuleType):
    """A driver with one GPU that says nothing but its place: enough for the names of metrics."""

    NVMLError = type("NVMLError", (Exception,), {})
    NVML_TEMPERATURE_GPU = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        return {"nvmlInit": lambda: None, "nvmlDeviceGetCount": lambda: 0}.get(name)


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Every name that a server's metrics have."""
    import sys

    driver = _Nvml("pynvml")
    counts = iter([1])
    monkeypatch.setattr(driver, "nvmlDeviceGetCount", lambda: next(counts, 0), raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    metrics = Metrics()
    metrics.watch(
        lambda: Facts("0", "cpu", "cpu", 1, True, 1, 0, 0, 0, 1.0, 0, 0, 0, 1, 1),
        lambda: 0,
        lambda: 0,
    )
    endings = {
        "counter": ("_total",),
        "histogram": ("_bucket", "_sum", "_count"),
        "gauge": ("",),
        "info": ("_info",),
    }
    return {
        f"{family.name}{ending}"
        for family in metrics._registry.collect()
        for ending in endings[family.type]
    } | set(re.findall(r'gauge\(\s*"(mksearch_\w+)"', Path(serve.__file__).read_text()))


def canary() -> ModuleType:
    spec = importlib.util.spec_from_file_location("canary", MONITORING / "canary.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def known(exported: set[str]) -> set[str]:
    records = {
        name
        for path in RULES
        for name in re.findall(r"^ *- record: (\S+)$", path.read_text(), re.MULTILINE)
    }
    seen = set(re.findall(r"^(\w+)", canary().metrics("{}", 0.0), re.MULTILINE))
    return exported | records | seen | OTHERS


def expressions(dashboard: dict[str, Any]) -> list[str]:
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return found + [v["definition"] for v in dashboard["templating"]["list"]]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_every_expression_of_a_dashboard_names_a_metric_that_exists(
    path: Path, exported: set[str]
) -> None:
    found = expressions(json.loads(path.read_text()))
    assert len(found) > 20
    for expression in found:
        names = set(NAME.findall(expression))
        assert names or re.search(r"\b(up|ALERTS)\b", expression), expression
        assert names <= known(exported), expression


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_every_rule_names_metrics_that_exist(path: Path, exported: set[str]) -> None:
    names = set(NAME.findall(path.read_text()))
    assert names
    assert names <= known(exported)


def test_an_invented_metric_is_noticed(exported: set[str]) -> None:
    assert not set(NAME.findall("rate(mksearch_lies_total[5m])")) <= known(exported)
    assert "mksearch_gpu_temperature_celsius" in exported
    assert "mksearch_queue_seconds_bucket" in exported


def test_every_alert_says_what_to_do_and_how_bad_it_is() -> None:
    text = (MONITORING / "rules/alerts.yml").read_text()
    alerts = re.split(r"^ *- alert: ", text, flags=re.MULTILINE)[1:]
    assert len(alerts) > 15
    tests = (MONITORING / "tests/alerts.yml").read_text()
    for alert in alerts:
        name = alert.split()[0]
        assert re.search(r"severity: (critical|warning)\b", alert), name
        assert re.search(r'^ +summary: ".+"$', alert, re.MULTILINE), name
        assert re.search(r'^ +action: ".{10,}"$', alert, re.MULTILINE), name
        assert re.search(rf'alertname(: |=\\?"){name}\b', tests), f"{name} has no test"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_rules_are_right_and_fire_when_they_should() -> None:
    for words in (
        ["check", "config", "--syntax-only", str(MONITORING / "prometheus.yml")],
        ["check", "rules", *map(str, RULES)],
        ["test", "rules", *map(str, sorted((MONITORING / "tests").glob("*.yml")))],
    ):
        done = subprocess.run(
            ["promtool", *words], capture_output=True, check=False, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_canary_tells_a_lie_a_proof_and_an_error_apart(tmp_path: Path) -> None:
    servers = [{"id": 1, "status": "ok"}, {"id": 2, "status": "lied"}, {"id": 3, "status": 'x"'}]
    said = json.dumps({"query": "rhubarb", "verified": True, "servers": servers, "hits": []})

    text = canary().metrics(said, 5.0)

    assert 'mksearch_canary_servers{status="lied"} 1\n' in text
    assert 'mksearch_canary_servers{status="unknown"} 1\n' in text
    assert "mksearch_canary_verified 1\n" in text
    assert "rhubarb" not in text
    for bad in ("", "[]", '{"error": "not-verified"}', '{"verified": 1, "servers": 7}'):
        assert "mksearch_canary_verified 0\n" in canary().metrics(bad, 5.0)
    script = str(MONITORING / "canary.py")
    target = tmp_path / "mksearch.prom"
    done = subprocess.run([script, str(target)], input=said, check=False, text=True)
    assert done.returncode == 0
    assert target.read_text().startswith("# TYPE mksearch_canary_servers gauge\n")
    assert [path.name for path in tmp_path.iterdir()] == ["mksearch.prom"]


# --- ./dev containers ----------------------------------------------------------------------------


def _lint(monkeypatch: pytest.MonkeyPatch, commands: list[list[str]] | ToolMissing) -> int:
    def ready() -> list[list[str]]:
        if isinstance(commands, ToolMissing):
            raise commands
        return commands

    monkeypatch.setattr(lint, "_commands", lambda _tools: iter([("something", ready)]))
    return lint.lint(Path())


def test_the_lint_fails_with_a_linter_and_says_which_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _lint(monkeypatch, [["true"], ["sh", "-c", "echo wrong; exit 3"]]) == 1
    assert "wrong" in capsys.readouterr().out
    assert _lint(monkeypatch, [["true"]]) == 0
    assert _lint(monkeypatch, ToolMissing("promtool is not installed")) == 0
    assert "left out: something: promtool is not installed" in capsys.readouterr().out


def test_a_machine_without_containers_is_told_why_and_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(command.FOLDER_NAME, str(tmp_path))
    monkeypatch.setattr(command, "lint", lambda _tools: 0)
    monkeypatch.setattr(shutil, "which", lambda _program: None)
    for words, code in ((["--no-install"], 0), (["--no-install", "--require"], 1)):
        monkeypatch.setattr("sys.argv", ["containers", *words])
        assert command.main() == code
        assert "left out: podman, buildah, runc, mmdebstrap not installed" in (
            capsys.readouterr().out
        )
