"""The demo's corpus: Python's own documentation, parsed and never imported."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import warnings
from pathlib import Path

import pytest

from mksearch_client.python_corpus import DEMO_QUERIES, python_documents
from mksearch_client.reading import Document

LONG = "A docstring that is surely longer than forty characters."


@pytest.fixture(scope="module")
def corpus() -> dict[str, Document]:
    documents = list(python_documents())
    by_id = {document.id: document for document in documents}
    assert len(by_id) == len(documents), "ids are unique"
    return by_id


def test_there_are_several_thousand_documents_of_all_sorts(corpus: dict[str, Document]) -> None:
    assert len(corpus) > 4000
    decode = corpus["json.decoder.JSONDecoder.decode"]
    assert decode.title.startswith("json.decoder.JSONDecoder.decode(self, s")
    assert decode.text.startswith("Return the Python representation")
    assert corpus["json.decoder.JSONDecoder"].title == "json.decoder.JSONDecoder"
    assert "JSON" in corpus["json"].text
    assert corpus["topics.assert"].title == "The assert statement"
    assert all(len(document.title) <= 120 for document in corpus.values())


def test_two_calls_give_the_same_documents(corpus: dict[str, Document]) -> None:
    assert list(python_documents()) == list(corpus.values())


def test_programs_and_tests_are_left_out(corpus: dict[str, Document]) -> None:
    heads = {own_id.split(".")[0] for own_id in corpus}
    assert not heads & {"test", "idlelib", "lib2to3", "turtledemo", "site-packages", "pytest"}


def test_no_module_is_imported_but_the_topics() -> None:
    script = (
        "import sys, sysconfig\n"
        "from mksearch_client.python_corpus import python_documents\n"
        "sysconfig.get_path('stdlib')  # loads the build's own variables\n"
        "before = set(sys.modules)\n"
        "n = sum(1 for _ in python_documents())\n"
        "print(n, *sorted(set(sys.modules) - before))\n"
    )
    command = [sys.executable, "-W", "error", "-c", script]
    path = os.pathsep.join(filter(None, sys.path))
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    n_documents, *imported = done.stdout.split()
    assert int(n_documents) > 4000
    assert imported == ["pydoc_data", "pydoc_data.topics"]
    assert done.stderr == ""


def test_the_demo_asks_four_queries_whose_words_are_there(corpus: dict[str, Document]) -> None:
    assert len(set(DEMO_QUERIES)) == 4
    words = {word for document in corpus.values() for word in document.searchable.lower().split()}
    for query in DEMO_QUERIES:
        assert 2 <= len(query.split()) <= 6
        assert set(query.lower().split()) <= words


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    return tmp_path


def test_without_sources_the_topics_alone_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "python.zip"))
    documents = list(python_documents())
    assert len(documents) > 50
    assert all(document.id.startswith("topics.") for document in documents)


def test_without_topics_and_sources_there_is_nothing(library: Path) -> None:
    assert not list(python_documents())


def test_names_are_dotted_unique_and_in_the_order_of_the_source(library: Path) -> None:
    (library / "pack").mkdir()
    (library / "pack" / "__init__.py").write_text(f'"""{LONG}"""', "utf-8")
    (library / "pack" / "inner.py").write_text(
        f'''
class Thing:
    """{LONG}"""
    @property
    def size(self):
        """{LONG} Getter."""
    @size.setter
    def size(self, value):
        """{LONG} Setter."""
    class Part:
        async def run(self, a, /, b: int = 1, *args, c=2, **rest):
            """{LONG}

                indented
            end
            """
if True:
    try:
        def either():
            """{LONG}"""
    except ImportError:
        def either():
            """{LONG}"""
            def hidden():
                """{LONG}"""
def short():
    """Too short."""
def none(): pass
''',
        "utf-8",
    )
    found = {document.id: document for document in python_documents()}
    assert list(found) == [
        "pack",
        "pack.inner.Thing",
        "pack.inner.Thing.size",
        "pack.inner.Thing.size#2",
        "pack.inner.Thing.Part.run",
        "pack.inner.either",
        "pack.inner.either#2",
    ]
    run = found["pack.inner.Thing.Part.run"]
    assert run.title == "pack.inner.Thing.Part.run(self, a, /, b: int=1, *args, c=2, **rest)"
    assert run.text == f"{LONG}\n\n    indented\nend"


def test_a_long_parameter_list_is_cut(library: Path) -> None:
    parameters = ", ".join(f"parameter_{i}" for i in range(50))
    (library / "m.py").write_text(f'def f({parameters}):\n    """{LONG}"""', "utf-8")
    (document,) = python_documents()
    assert len(document.title) == 120
    assert document.title.endswith("…")


def test_files_that_do_not_parse_cost_only_themselves_and_nothing_warns(library: Path) -> None:
    (library / "bad_syntax.py").write_text("def (", "utf-8")
    (library / "bad_nul.py").write_bytes(b"\0\0")
    (library / "bad_bytes.py").write_bytes(b"x = '\xff'")
    (library / "bad_depth.py").write_text("-" * 50_000 + "1", "utf-8")
    (library / "bad_nesting.py").write_text("a." * 20_000 + "b", "utf-8")
    (library / "bad_surrogate.py").write_text(f'"""{LONG} \\ud800"""', "utf-8")
    (library / "not-a-module.py").write_text(f'"""{LONG}"""', "utf-8")
    (library / "gone.py").symlink_to("nothing.py")
    (library / "good_latin.py").write_bytes(f"# coding: latin-1\n'''{LONG} é'''".encode("latin-1"))
    (library / "good_warns.py").write_text(f'"""{LONG} \\d"""\n1 is 1\n', "utf-8")
    (library / "test").mkdir()
    (library / "test" / "m.py").write_text(f'"""{LONG}"""', "utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        documents = list(python_documents())
    assert [document.id for document in documents] == ["good_latin", "good_warns"]
    assert documents[0].text.endswith("é")
