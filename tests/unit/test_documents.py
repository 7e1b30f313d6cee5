"""The documents say what is so: links, names of tests and files, labels, numbers, code."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from mksearch import errors, params
from mksearch.crypto import labels
from mksearch.index.geometry import choose_geometry
from mksearch_client.demo.stage import Stage

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "datasets/README.md"])
DECISIONS = sorted(ROOT.glob("docs/decisions/*.md"))
README = ROOT / "README.md"
PROTOCOL = ROOT / "docs/protocol.md"
THREAT_MODEL = ROOT / "docs/threat-model.md"
ARCHITECTURE = ROOT / "docs/architecture.md"

#: Folders below which a document may name a file.
BASES = (
    "", "mksearch", "client/mksearch_client", "servers/mksearch_server", "tests", "datasets",
)  # fmt: skip

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
PYTHON_FILE = re.compile(r"[\w/.-]*\w+\.py")
TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
DECISION = re.compile(r"decisions/(\d{4})")
DEV = re.compile(r"\./dev ([a-z]+)")
#: Borders of cells; two bars are the protocol's sign of concatenation.
CELL = re.compile(r"(?<!\|)\|(?!\|)")
LABEL = re.compile(r'"(mksearch/1/[a-z/-]*)"')


def by_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def rows_of_table(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table behind a heading, without its head."""
    lines = iter(text[text.index(heading) :].splitlines())
    table: list[str] = []
    for line in lines:
        if line.startswith("|"):
            table.append(line)
        elif table:
            break
    return [[cell.strip() for cell in CELL.split(line.strip())[1:-1]] for line in table[2:]]


# --- what a document points at --------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_every_linked_file_exists(document: Path) -> None:
    targets = [t for t in LINK.findall(read(document)) if not t.startswith(("http", "#"))]

    assert [t for t in targets if not (document.parent / t.partition("#")[0]).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_every_python_file_that_is_named_exists(document: Path) -> None:
    missing = []
    for code in CODE.findall(read(document)):
        name = code.partition("::")[0]
        if not PYTHON_FILE.fullmatch(name):
            continue
        found = any((ROOT / base / name).is_file() for base in BASES)
        if not found and "/" not in name:
            found = any(any((ROOT / base).rglob(name)) for base in BASES[1:])
        if not found:
            missing.append(name)

    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_every_decision_that_is_named_exists(document: Path) -> None:
    numbers = {path.name[:4] for path in DECISIONS}

    assert set(DECISION.findall(read(document))) <= numbers


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_every_command_of_dev_that_is_named_exists(document: Path) -> None:
    usage = re.findall(r"^  ([a-z]+) ", read(ROOT / "dev"), re.MULTILINE)

    assert set(DEV.findall(read(document))) <= set(usage)


# --- the threat model -----------------------------------------------------------------------------


def test_every_test_that_the_threat_model_names_exists() -> None:
    named = TEST.findall(read(THREAT_MODEL))
    functions: dict[str, set[str]] = {}
    for file in {file for file, _ in named}:
        path = ROOT / "tests" / file
        tree = ast.parse(read(path)) if path.is_file() else ast.Module([], [])
        functions[file] = {
            node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        }
    missing = [f"{file}::{name}" for file, name in named if name not in functions[file]]

    assert len(named) > 20
    assert missing == []


@pytest.mark.parametrize(
    "heading",
    [
        *("## Goals", "## Lemmas", "## What servers learn", "### By mode"),
        *("## Policies and members", "## Known attacks"),
    ],
)
def test_every_row_of_the_threat_model_names_its_test_or_says_that_there_is_none(
    heading: str,
) -> None:
    rows = rows_of_table(read(THREAT_MODEL), heading)
    pinned = ("::test_", "no test yet", "see above")

    assert len(rows) > 5
    assert [row[0] for row in rows if not any(word in row[-1] for word in pinned)] == []


def test_the_vocabulary_of_a_small_collection_shows_in_its_widths() -> None:
    for n_terms in (100, 4321, 8562, 12_000):
        *_, nodes = choose_geometry(mean_terms=22, n_terms=n_terms, n_levels=3)

        assert 0 <= nodes.dedicated - n_terms < params.PANEL_UNIT


# --- the protocol ---------------------------------------------------------------------------------


def labels_of_the_code() -> set[str]:
    values = {name: value for name, value in vars(labels).items() if name.isupper()}
    return {value.decode("ascii") for name, value in values.items() if not name.startswith("_")}


def test_the_labels_of_the_protocol_are_those_of_the_code() -> None:
    coded = labels_of_the_code()
    families = tuple(label for label in coded if label.endswith("/"))
    written = set(LABEL.findall(read(PROTOCOL)))
    whole = {label for label in written if label in coded or not label.startswith(families)}

    assert whole == coded


def test_no_two_labels_are_equal_and_none_holds_a_zero_byte() -> None:
    values = [value for name, value in vars(labels).items() if name.isupper() and name[0] != "_"]

    assert len(set(values)) == len(values) == len(labels_of_the_code())
    assert not any(b"\0" in value for value in values)


def test_the_parameters_of_the_protocol_are_those_of_the_code() -> None:
    quorum = params.Quorum()
    n_terms = params.VECTOR_CLASSES[-1] * params.QUERY_SUM_MAX
    policy_limits = params.POLICY_BYTES_MAX, params.POLICY_DEPTH_MAX, params.POLICY_LEAVES_MAX
    expected = {
        "`n`, `t`": (f"{quorum.n_servers}, {quorum.collusion_bound}", f"{params.N_SERVERS_MAX}"),
        "`h`": (f"{params.N_TABLES}", f"1..{params.N_TABLES_MAX}"),
        "`fan_out`, `n_checks`": (
            f"{params.FAN_OUT}, {params.N_CHECKS}", f"{params.BLOCK_ROWS_MAX}",
        ),
        "`impact_max`": (f"{params.IMPACT_MAX}", ""),
        "`query_sum_max`": (f"{params.QUERY_SUM_MAX}", ""),
        "panel widths": ("", f"multiples of {params.PANEL_UNIT}"),
        "AES blocks under one mask key": ("", f"2^{params.MASK_BLOCKS_MAX.bit_length() - 1}"),
        "external id": ("", f"1..{params.ID_BYTES_MAX}"),
        "terms of a query": ("", f"{n_terms}"),
        "levels; term ids and frequencies": ("", f"{params.N_LEVELS_MAX}"),
        "scoring": (f"{params.BM25_K1}, {params.BM25_B}", ""),
        "policy": ("", "1..{}; at most {}; at most {}".format(*policy_limits)),
        "attributes of a key": (
            "", f"1..{params.ATTRIBUTES_MAX}; 1..{params.ATTRIBUTE_BYTES_MAX}",
        ),
        "numbers in policies and attributes": ("", f"below 2^{params.NUMBER_BITS}"),
    }  # fmt: skip
    rows = {row[0]: row for row in rows_of_table(read(PROTOCOL), "## 1. Notation")}

    assert rows.keys() == expected.keys()
    for name, (default, limit) in expected.items():
        assert rows[name][2] == default or not default, name
        assert limit in rows[name][3], name
    assert 1 << (params.MASK_BLOCKS_MAX.bit_length() - 1) == params.MASK_BLOCKS_MAX


@pytest.mark.parametrize(
    "sentence",
    [
        f"`p = {params.P}`",
        f"`T = {params.COLUMNS_PER_TERM}` times",
        f"multiple of {params.D0_MIN} ",
        f"kept in {params.D0_MIN}..{params.D0_MAX}",
        f"with `{params.NODE_WIDTH_FACTOR} T`, ",
        f"levels above with `{params.TOP_WIDTH_FACTOR} T`",
        "`units` is {}, {}, {} or {}".format(*params.SLOT_UNITS),
        f"at least {params.SLOT_FIT_PERCENT}% of the rows",
        f"chunks of {params.CHUNK_BYTES:,} bytes",
        f"1 part (up to {params.TERMS_PER_VECTOR} terms), 2 (up to {2 * params.TERMS_PER_VECTOR})",
        f"`step = max(1, ceil(max Wt / {params.IMPACT_MAX}))`",
        f"`Wt = max(1, round(w * 2^{params.WEIGHT_BITS}))`",
        f"elements** of {params.ELEMENT_BITS} bits",
    ],
)
def test_a_number_in_the_text_of_the_protocol_is_that_of_the_code(sentence: str) -> None:
    text = " ".join(read(PROTOCOL).split()).replace("97 %", "97%")

    assert sentence in text


# --- architecture and decisions -------------------------------------------------------------------


def test_exit_codes_of_errors_are_those_of_the_architecture() -> None:
    rows = rows_of_table(read(ARCHITECTURE), "## What are errors and exit codes?")
    named = [(error, int(row[0])) for row in rows for error in CODE.findall(row[-1])]
    coded = {
        name: error.exit_code
        for name, error in inspect.getmembers(errors, inspect.isclass)
        if issubclass(error, errors.MksearchError)
    }

    assert len(named) > 10
    assert [(error, coded.get(error)) for error, _ in named] == named


@pytest.mark.parametrize("decision", DECISIONS, ids=by_name)
def test_a_decision_gives_its_context_its_consequences_and_its_status(decision: Path) -> None:
    text = read(decision)

    assert text.startswith(f"# {decision.name[:4]}: ")
    for part in ("\nStatus: ", "\n## Context\n", "\n## Decision\n", "\n## Consequences\n"):
        assert text.count(part) == 1, part


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = [int(path.name[:4]) for path in DECISIONS]

    assert numbers == list(range(1, len(numbers) + 1))


# --- the README -----------------------------------------------------------------------------------


def test_the_code_of_the_readme_runs_and_finds_its_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", read(README), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "Tomatoes.txt").write_text("They want sun, and water every morning.")
    (notes / "Roses.txt").write_text("Pruned in March, they flower until autumn.")
    with Stage(tmp_path / "servers", 3) as stage:
        for number, (address, token) in enumerate(stage.tokens().items(), 1):
            code = code.replace(f"127.0.0.1:710{number}", address).replace(f"TOKEN-{number}", token)
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    (hit,) = capsys.readouterr().out.splitlines()

    assert hit.startswith("1 0.")
    assert hit.endswith("Tomatoes They want sun, and water every morning.")
