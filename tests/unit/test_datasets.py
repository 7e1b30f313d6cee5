"""The collections: what the manifest says, or refused."""

from __future__ import annotations

import shutil
import tomllib
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from datasets import loaders
from datasets.loaders import Collection, data_root, load_collection, load_small
from mksearch.errors import InputError, ParameterError

MANIFEST: dict[str, Any] = tomllib.loads(
    (Path(loaders.__file__).parent / "manifest.toml").read_text("utf-8")
)
ROOT = data_root()

needs_data = pytest.mark.skipif(ROOT is None, reason="no third-party data (MKSEARCH_DATA)")


def text_of(collection: Collection, own_id: str) -> str:
    return dict(zip(collection.ids, collection.texts, strict=True))[own_id]


# --- the small collection -------------------------------------------------------------------------


def test_the_small_collection_is_what_the_manifest_says() -> None:
    small = load_small()
    assert (small.name, small.language) == ("small", "en")
    assert len(small.ids) == len(set(small.ids)) == len(small.texts) == 61
    assert len({query.id for query in small.queries}) == 12
    assert set(small.qrels) == {query.id for query in small.queries}
    assert all(max(grades.values()) >= 1 for grades in small.qrels.values())
    assert {grade for grades in small.qrels.values() for grade in grades.values()} == {0, 1, 2}


def test_the_small_collection_holds_the_awkward_texts() -> None:
    small = load_small()
    assert text_of(small, "bicycle-02") == text_of(small, "bicycle-09")
    assert text_of(small, "odd-empty") == ""
    assert text_of(small, "odd-stop-words") == "the of and to a in is it that"
    assert "crème" in text_of(small, "cooking-02")
    decomposed = text_of(small, "cooking-03")
    assert decomposed != unicodedata.normalize("NFC", decomposed)
    assert "ＳＱＬ" in text_of(small, "database-08")
    assert any(unicodedata.bidirectional(c) == "AL" for c in text_of(small, "odd-arabic"))
    assert "\U0001f469\u200d\U0001f33e" in text_of(small, "odd-emoji")
    assert any("\u4e00" <= c <= "\u9fff" for c in text_of(small, "odd-chinese"))


def test_each_query_of_the_small_collection_shares_words_with_what_answers_it() -> None:
    small = load_small()
    for query in small.queries:
        asked = unicodedata.normalize("NFKC", query.text).lower().split()
        for own_id, grade in small.qrels[query.id].items():
            text = unicodedata.normalize("NFKC", text_of(small, own_id)).lower()
            assert grade < 2 or any(word in text for word in asked if len(word) > 2)


# --- third-party collections ----------------------------------------------------------------------


@needs_data
@pytest.mark.data
@pytest.mark.parametrize("name", MANIFEST["collections"])
def test_each_third_party_collection_is_what_the_manifest_says(name: str) -> None:
    collection = load_collection(name)
    expected = MANIFEST["collections"][name]
    assert len(collection.documents) == expected["n_documents"]
    assert len(collection.queries) == expected["n_queries"]
    first = collection.documents[0]
    assert collection.texts[0] == (f"{first.title} {first.text}" if first.title else first.text)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ParameterError, match="scifact"):
        load_collection("trec-covid")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of a third-party collection that a test may damage."""
    if ROOT is None:
        pytest.skip("no third-party data (MKSEARCH_DATA)")
    shutil.copytree(ROOT / "collections" / "xquad-zh", tmp_path / "collections" / "xquad-zh")
    for file in tmp_path.rglob("*"):
        file.chmod(0o700)
    return tmp_path


@pytest.mark.data
@pytest.mark.parametrize("file", ["corpus.jsonl.gz", "queries.jsonl", "qrels.tsv"])
def test_changed_or_missing_files_are_refused(copy: Path, file: str) -> None:
    assert len(load_collection("xquad-zh", copy).ids) == 240
    path = copy / "collections" / "xquad-zh" / file
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(InputError, match="has SHA-256"):
        load_collection("xquad-zh", copy)
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        load_collection("xquad-zh", copy)


# --- counts and judgments, on a collection made here ----------------------------------------------


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "corpus.jsonl").write_text('{"_id": "d", "text": "x"}\n', "utf-8")
    (tmp_path / "small" / "queries.jsonl").write_text('{"_id": "q", "text": "x"}\n', "utf-8")
    (tmp_path / "small" / "qrels.tsv").write_text("head\nq\td\t1\n", "utf-8")
    (tmp_path / "manifest.toml").write_text(
        '[small]\nlanguage = "en"\nn_documents = 1\nn_queries = 1\nn_judgments = 1\n', "utf-8"
    )
    monkeypatch.setattr(loaders, "_HERE", tmp_path)
    assert load_small().qrels == {"q": {"d": 1}}
    return tmp_path / "small"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("corpus.jsonl", "", "no lines"),
        ("corpus.jsonl", '{"_id": "d"}\nbad\n', "line 2: malformed JSON"),
        ("corpus.jsonl", '{"_id": "d"}\n{"_id": "e"}\n', "n_documents 2, not 1"),
        ("queries.jsonl", '{"_id": "q"}\n{"_id": "r"}\n', "n_queries 2, not 1"),
        ("qrels.tsv", "head\nq\td\t1\nq\te\t1\n", "n_judgments 2, not 1"),
        ("qrels.tsv", "head\nq\td\tone\n", "line 2 is not query id"),
        ("qrels.tsv", "head\nq d 1\n", "line 2 is not query id"),
        ("qrels.tsv", "head\nq\te\t1\n", "judges the unknown id e"),
        ("qrels.tsv", "head\nr\td\t1\n", "judges the unknown id r"),
    ],
)
def test_a_collection_that_is_not_as_listed_is_refused(
    tiny: Path, file: str, content: str, message: str
) -> None:
    (tiny / file).write_text(content, "utf-8")
    with pytest.raises(InputError, match=message) as caught:
        load_small()
    assert caught.value.cure


# --- where the data lies --------------------------------------------------------------------------


def test_the_environment_names_the_folder_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MKSEARCH_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.setenv("MKSEARCH_DATA", str(tmp_path / "misspelt"))
    with pytest.raises(InputError, match="misspelt is no folder"):
        data_root()


def test_without_the_variable_the_data_lies_beside_the_repository_or_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MKSEARCH_DATA", raising=False)
    monkeypatch.setattr(loaders, "_HERE", tmp_path / "repository" / "datasets")
    assert data_root() is None
    (tmp_path / "shared" / "data").mkdir(parents=True)
    assert data_root() == tmp_path / "shared" / "data"
    (tmp_path / "repository" / "datasets").mkdir(parents=True)
    shutil.copy(Path(loaders.__file__).parent / "manifest.toml", loaders._HERE)
    with pytest.raises(InputError, match="cannot be read"):
        load_collection("scifact")
    shutil.rmtree(tmp_path / "shared")
    with pytest.raises(InputError, match="no third-party data"):
        load_collection("scifact")
