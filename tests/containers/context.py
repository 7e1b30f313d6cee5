"""The folder in which images are built: wheels with their hashes, lists of them, scripts."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import mksearch
from tests.containers.tools import ROOT, ToolMissing, run

__all__ = ["IMAGES", "PYTHON", "write_context"]

#: Images that are built on every machine, and their container files.
IMAGES = {"server": "Containerfile", "client": "Containerfile.client"}
GPU = {"gpu": "Containerfile.gpu"}
#: Python of the bases that the container files name.
PYTHON = (3, 11)
_DOWNLOAD_S = 900


def write_context(folder: Path, *, gpu: bool = False) -> None:
    """Write everything that the container files copy; afterwards building needs no network.

    Args:
        folder: new, or of an earlier call.
        gpu: the wheels of the CUDA image as well, some 2 GB more.

    Raises:
        ToolMissing: wheels of this Python do not fit the bases, or cyclonedx-bom is not installed.
        RuntimeError: a wheel cannot be had or has another hash.
    """
    if sys.version_info[:2] != PYTHON:
        raise ToolMissing(
            f"the bases of the images have Python {PYTHON[0]}.{PYTHON[1]}, and wheels are fetched "
            "for the Python that runs this: set MKSEARCH_PYTHON to one"
        )
    if importlib.util.find_spec("cyclonedx_py") is None:
        raise ToolMissing("cyclonedx-bom, which writes the list of packages, is not installed")
    images = IMAGES | (GPU if gpu else {})
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    _build_wheel(folder, wheels)
    for image, name in images.items():
        lock = folder / f"{image}.lock"
        lock.write_text(_of_this_platform((ROOT / "servers" / lock.name).read_text()))
        run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--disable-pip-version-check", "--require-hashes", "--only-binary", ":all:"),
                *("--find-links", wheels, "--requirement", lock, "--dest", wheels),
            ],
            timeout_s=_DOWNLOAD_S,
        )
        _write_sbom(folder / f"{image}-sbom.cdx.json", lock, wheels)
        shutil.copy(ROOT / "servers" / name, folder)
    shutil.copy(ROOT / "servers/entrypoint.sh", folder)
    shutil.copy(ROOT / "datasets/small/corpus.jsonl", folder / "sample.jsonl")


def _build_wheel(folder: Path, wheels: Path) -> None:
    for old in wheels.glob("mksearch-*.whl"):
        old.unlink()
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", wheels], folder=ROOT)
    (wheel,) = wheels.glob("mksearch-*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (folder / "mksearch.lock").write_text(
        f"mksearch=={mksearch.__version__} --hash=sha256:{digest}\n"
    )


def _of_this_platform(lock: str) -> str:
    """Return the entries of a lock file that this platform installs."""
    kept = []
    for entry in re.findall(r"^\S[^\n]*(?:\n[ \t][^\n]*)*", lock, re.MULTILINE):
        requirement = Requirement(entry.partition("--hash")[0].replace("\\", "").strip())
        if requirement.marker is None or requirement.marker.evaluate():
            kept.append(entry)
    return "\n".join(kept) + "\n"


def _write_sbom(path: Path, lock: Path, wheels: Path) -> None:
    """Write the CycloneDX list of the wheels of a lock file, with their hashes, and of this one."""
    run(
        [
            *(sys.executable, "-m", "cyclonedx_py", "requirements", "--output-reproducible"),
            *("--output-format", "JSON", "--output-file", path, lock),
        ]
    )
    listed = json.loads(path.read_text())
    hashes = {
        canonicalize_name(wheel.name.split("-")[0]): hashlib.sha256(wheel.read_bytes()).hexdigest()
        for wheel in wheels.glob("*.whl")
    }
    for component in listed["components"]:
        # Where a package could be had from is of no use to who has it.
        del component["externalReferences"], component["description"]
        content = hashes[canonicalize_name(component["name"])]
        component["hashes"] = [{"alg": "SHA-256", "content": content}]
    listed["metadata"]["component"] = {
        "type": "application",
        "name": "mksearch",
        "version": mksearch.__version__,
        "bom-ref": "mksearch",
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    path.write_text(json.dumps(listed, indent=1) + "\n")
