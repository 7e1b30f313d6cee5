"""The core does not reach outside itself: no network, files, clocks, threads, logs or own dice.

Import-linter knows which of our packages imports which; these walls are about the standard library
and NumPy, name by name, so they are read off the syntax trees.  The last test sees to it that
import-linter's own wall, between the servers and the secrets, leaves no module out.
"""

from __future__ import annotations

import ast
import configparser
from collections.abc import Iterator
from pathlib import Path

import pytest

import mksearch

CORE = Path(mksearch.__file__).parent
MODULES = sorted(path.relative_to(CORE).as_posix() for path in CORE.rglob("*.py"))

#: Top-level modules that the core may not import, by what they reach.
FORBIDDEN_MODULES = {
    "network": {
        "ftplib", "http", "select", "selectors", "smtplib", "socket", "socketserver", "ssl",
        "urllib", "xmlrpc",
    },
    "files": {
        "fileinput", "glob", "mmap", "os", "pathlib", "shutil", "sqlite3", "tempfile",
    },
    "clocks": {"datetime", "sched", "time", "zoneinfo"},
    "threads and processes": {
        "_thread", "asyncio", "concurrent", "multiprocessing", "queue", "signal", "subprocess",
        "threading",
    },
    "logs": {"logging", "syslog"},
    "code hidden in data": {"marshal", "pickle", "shelve"},
    "dice that are not the operating system's": {"random"},
}  # fmt: skip

#: (module of the core, what it may import all the same), and the names it may use of that.
EXCEPTIONS = {("crypto/randomness.py", "os"), ("crypto/certificate.py", "datetime")}
ALLOWED_NAMES = {
    "os": {"urandom"},
    "io": {"BytesIO"},
    # Times of certificates are made of seconds that the caller passes; the clock is not read.
    "datetime": {"UTC", "datetime", "fromtimestamp"},
}

FORBIDDEN_CALLS = {"open", "input", "print", "eval", "exec", "compile", "__import__"}

#: What NumPy offers of the same: reading and writing files, and its own generators.
FORBIDDEN_NUMPY = {
    "fromfile", "genfromtxt", "load", "loadtxt", "memmap", "random", "save", "savetxt", "savez",
    "savez_compressed",
}  # fmt: skip
FORBIDDEN_METHODS = {"tofile"}

#: The side of the security wall on which servers are: formats, arithmetic and primitives, which
#: are worth nothing without a key, and the issuing of one server's part of an attribute key.
#: Everything else is listed in .importlinter.
SERVERS_MAY_IMPORT = {
    "mksearch", "mksearch.codec", "mksearch.errors", "mksearch.messages", "mksearch.params",
    "mksearch.crypto", "mksearch.crypto.aead", "mksearch.crypto.certificate",
    "mksearch.crypto.evidence", "mksearch.crypto.kdf",
    "mksearch.crypto.identity", "mksearch.crypto.keystream",
    "mksearch.crypto.labels", "mksearch.crypto.randomness", "mksearch.crypto.secret",
    "mksearch.crypto.signature", "mksearch.crypto.tickets", "mksearch.crypto.user_key",
    "mksearch.access", "mksearch.access.attributes", "mksearch.access.authority_messages",
    "mksearch.access.credential",
    "mksearch.access.issuing",
    "mksearch.access.keys", "mksearch.access.orders", "mksearch.access.pairing",
    "mksearch.access.policy",
    "mksearch.access.refresh_messages", "mksearch.access.scalars",
    "mksearch.access.share_keeping", "mksearch.access.tokens",
    "mksearch.field", "mksearch.field.modp",
    "mksearch.index", "mksearch.index.blob_list", "mksearch.index.geometry",
    "mksearch.index.manifest", "mksearch.index.renewal", "mksearch.index.segment",
    "mksearch.index.server_list",
    "mksearch.index.slot_shape",
}  # fmt: skip
SERVERS_MAY_IMPORT_ALL_OF = ("mksearch.kernels", "mksearch.scoring", "mksearch.wire")


def reach_of(module: str) -> str | None:
    top = module.partition(".")[0]
    return next((reach for reach, names in FORBIDDEN_MODULES.items() if top in names), None)


def numpy_names(tree: ast.AST) -> set[str]:
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "numpy"
    }


def breaches_of_import(node: ast.Import | ast.ImportFrom, where: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        pairs = [(alias.name, "") for alias in node.names]
    else:
        pairs = [(node.module or "", alias.name) for alias in node.names]
    for module, name in pairs:
        reach = reach_of(module)
        if reach and (where, module) not in EXCEPTIONS:
            yield f"line {node.lineno} imports {module} ({reach})"
        elif name and name not in ALLOWED_NAMES.get(module, {name}):
            yield f"line {node.lineno} imports {module}.{name}"
        if module.startswith("numpy.random") or (module == "numpy" and name in FORBIDDEN_NUMPY):
            yield f"line {node.lineno} imports {name or module} of numpy"


def breaches(source: str, where: str) -> list[str]:
    tree = ast.parse(source)
    numpy = numpy_names(tree)
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                found += breaches_of_import(node, where)
            case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
                found.append(f"line {node.lineno} calls {name}()")
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if (
                owner in numpy and name in FORBIDDEN_NUMPY
            ):
                found.append(f"line {node.lineno} uses {owner}.{name}")
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if (
                name not in ALLOWED_NAMES.get(owner, {name})
            ):
                found.append(f"line {node.lineno} uses {owner}.{name}")
            case ast.Attribute(attr=name) if name in FORBIDDEN_METHODS:
                found.append(f"line {node.lineno} uses .{name}")
    return found


@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_the_core_reaches_nothing_outside(module: str) -> None:
    source = (CORE / module).read_text(encoding="utf-8")

    assert breaches(source, module) == []


@pytest.mark.parametrize(
    "source",
    [
        "import socket",
        "import os.path",
        "from datetime import datetime",
        "def f():\n    import threading",
        "from concurrent.futures import ThreadPoolExecutor",
        "from os import urandom",
        "import pickle as p",
        "open('x')",
        "print(1)",
        "import numpy as np\nnp.random.default_rng()",
        "import numpy as np\nnp.load('x')",
        "from numpy.random import default_rng",
        "from numpy import memmap",
        "array.tofile('x')",
        "import io\nio.open('x')",
    ],
)
def test_a_breach_is_seen(source: str) -> None:
    assert len(breaches(source, "text/sample.py")) == 1


def test_only_one_module_may_ask_the_operating_system_for_random_bytes() -> None:
    for source in ("import os\nos.urandom(32)", "from os import urandom"):
        assert breaches(source, "crypto/randomness.py") == []
        assert len(breaches(source, "crypto/aead.py")) == 1


def test_that_module_may_ask_it_for_nothing_else() -> None:
    for source in ("import os\nos.environ", "from os import environ", "import os.path"):
        assert len(breaches(source, "crypto/randomness.py")) == 1


def test_harmless_code_is_let_through() -> None:
    source = (
        "import io\nimport numpy as np\nfrom collections import OrderedDict\n"
        "io.BytesIO(np.frombuffer(b''))\nself.open(1)\nrandom.bytes(3)\n"
    )

    assert breaches(source, "text/sample.py") == []


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


@pytest.mark.parametrize("path", MODULES)
def test_a_module_of_the_core_is_on_one_side_of_the_wall_between_servers_and_secrets(
    path: str,
) -> None:
    rules = configparser.ConfigParser()
    rules.read(CORE.parent / ".importlinter", encoding="utf-8")
    walled = rules["importlinter:contract:server"]["forbidden_modules"].split()
    module = "mksearch." + path.removesuffix(".py").replace("/", ".")
    module = module.removesuffix(".__init__")

    is_walled = any(is_within(module, package) for package in walled)
    is_open = module in SERVERS_MAY_IMPORT or any(
        is_within(module, package) for package in SERVERS_MAY_IMPORT_ALL_OF
    )

    assert is_walled != is_open, f"{module}: list it in .importlinter or in SERVERS_MAY_IMPORT"


def test_the_core_was_found() -> None:
    assert {"errors.py", "params.py"} <= set(MODULES)
