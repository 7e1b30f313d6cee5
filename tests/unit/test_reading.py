"""Reading documents: each file, line and link is a document or is named with its reason."""

from __future__ import annotations

import gzip
import inspect
import itertools
import json
import os
import sys
import tarfile
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mksearch import params
from mksearch.errors import InputError, ParameterError
from mksearch_client import reading
from mksearch_client.reading import KINDS, Document, Reading, Skipped, read_paths

REPOSITORY = Path(__file__).resolve().parents[2]
MESSY = Path(os.environ.get("MKSEARCH_DATA", REPOSITORY.parent / "shared" / "data")) / "messy"

needs_messy = pytest.mark.skipif(not MESSY.is_dir(), reason="MKSEARCH_DATA has no folder messy")


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
    return path


def line(**fields: object) -> str:
    return json.dumps(fields) + "\n"


def read(*paths: Path, **options: Any) -> tuple[list[Document], Reading]:
    run = read_paths(paths, **options)
    documents = list(run)
    assert run.n_documents == len(documents)
    assert run.n_skipped == len(run.skipped)
    for skipped in run.skipped:
        assert "\n" not in skipped.reason
        assert "; " in skipped.reason, "a reason has a cause and a cure"
        skipped.path.encode("utf-8")
    return documents, run


def read_one(path: Path) -> Document:
    documents, run = read(path)
    assert run.skipped == []
    assert len(documents) == 1
    return documents[0]


def only_skip(path: Path, **options: Any) -> Skipped:
    documents, run = read(path, **options)
    assert documents == []
    assert len(run.skipped) == 1
    return run.skipped[0]


# --- documents ------------------------------------------------------------------------------------


def test_the_searchable_text_is_title_blank_text() -> None:
    assert Document("a", "title", "text").searchable == "title text"
    assert Document("a", "", "text").searchable == "text"


@pytest.mark.parametrize("document_id", ["", "x" * 1025, "é" * 513])
def test_an_id_must_have_1_to_1024_bytes(document_id: str) -> None:
    with pytest.raises(InputError, match=r"bytes, not 1\.\.1024"):
        Document(document_id, "", "")
    Document("é" * (params.ID_BYTES_MAX // 2), "", "")


@pytest.mark.parametrize("field", ["id", "title", "text"])
def test_a_lone_surrogate_has_no_place_in_a_document(field: str) -> None:
    with pytest.raises(InputError, match=f"{field} has a lone surrogate at character 2"):
        Document(**{"id": "x", "title": "x", "text": "x", field: "ab\ud800"})


# --- paths ----------------------------------------------------------------------------------------


def test_a_path_that_does_not_exist_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "a")
    with pytest.raises(InputError, match="missing cannot be read") as caught:
        read_paths([tmp_path, tmp_path / "missing"])
    assert caught.value.cure


@pytest.mark.parametrize(
    ("paths", "message"),
    [([], "no path was given"), (["a", ""], "no path was given"), (["a\0b"], "cannot be read")],
)
def test_no_path_or_an_empty_one_is_refused_and_never_means_the_working_folder(
    paths: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_paths(paths)


def test_a_pipe_is_refused_and_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(InputError, match="pipe, socket or device"):
        read_paths([tmp_path / "pipe.txt"])
    assert "pipe" in only_skip(tmp_path).reason


def test_a_folder_that_may_not_be_listed_is_refused_if_given_and_skipped_if_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    scandir = os.scandir

    def scandir_with_permissions(path: str) -> Any:
        if path == str(closed):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scandir_with_permissions)
    with pytest.raises(InputError, match="closed cannot be read"):
        read_paths([closed])
    skipped = only_skip(tmp_path)
    assert skipped.path == str(closed)
    assert "cannot be read (Permission denied)" in skipped.reason


def test_a_folder_that_vanishes_after_the_check_is_skipped_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    run = read_paths([folder])
    folder.rmdir()
    assert list(run) == []
    assert run.skipped[0].path == str(folder)


def test_a_largest_document_below_one_byte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="below 1"):
        read_paths([tmp_path], max_document_bytes=0)


def test_one_path_may_be_given_without_a_list(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "a")
    assert [d.id for d in read_paths(str(tmp_path))] == ["a.txt"]
    assert [d.id for d in read_paths(tmp_path)] == ["a.txt"]


def test_ids_are_paths_below_the_given_folder_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    names = ["b.txt", "a/z.txt", "a/b/c.md", "a.txt", "a-b.rst", "Z.TXT", "é.text", "zz/y.markdown"]
    for name in names:
        write(tmp_path / name, "words")
    documents, _ = read(tmp_path)
    assert [d.id for d in documents] == sorted(names, key=str.encode)


def test_the_id_of_a_given_file_is_its_name_even_where_hidden(tmp_path: Path) -> None:
    assert read_one(write(tmp_path / "deep" / "one.txt", "x")).id == "one.txt"
    assert read_one(write(tmp_path / ".hidden" / ".note.txt", "x")).id == ".note.txt"


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / ".git" / "a.txt", "x")
    write(tmp_path / ".b.txt", "x")
    write(tmp_path / "c.txt", "x")
    documents, run = read(tmp_path)
    assert [d.id for d in documents] == ["c.txt"]
    assert run.n_skipped == 0


def test_other_kinds_are_skipped_by_a_reason_that_names_the_kinds_read(tmp_path: Path) -> None:
    for name in ("a.pdf", "Makefile", "b.txt.gz", "c.json"):
        write(tmp_path / name, "x")
    documents, run = read(tmp_path)
    assert documents == []
    assert len(run.skipped) == 4
    for skipped in run.skipped:
        assert all(kind in skipped.reason for kind in KINDS)


def test_folders_nested_deeper_than_calls_are_walked(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["d"] * 200)
    write(folder / "x.txt", "x")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 100)
    try:
        documents = list(read_paths([tmp_path]))
    finally:
        sys.setrecursionlimit(limit)
    assert [d.id for d in documents] == ["d/" * 200 + "x.txt"]


# --- links ----------------------------------------------------------------------------------------


def test_a_link_that_leaves_the_folder_is_left_out_and_named(tmp_path: Path) -> None:
    write(tmp_path / "secret.txt", "secret")
    write(tmp_path / "in" / "a.txt", "a")
    (tmp_path / "in" / "out.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "in" / "up").symlink_to("..")
    (tmp_path / "in" / "prefix.txt").symlink_to(write(tmp_path / "inner" / "b.txt", "b"))
    documents, run = read(tmp_path / "in")
    assert [d.id for d in documents] == ["a.txt"]
    assert [Path(s.path).name for s in run.skipped] == ["out.txt", "prefix.txt", "up"]
    assert all("leaves the folder" in s.reason for s in run.skipped)


def test_a_link_that_loops_or_leads_nowhere_is_left_out_and_named(tmp_path: Path) -> None:
    write(tmp_path / "a" / "x.txt", "x")
    (tmp_path / "a" / "loop").symlink_to("..")
    (tmp_path / "a" / "self").symlink_to("self")
    (tmp_path / "a" / "gone.txt").symlink_to("nothing.txt")
    documents, run = read(tmp_path)
    assert [d.id for d in documents] == ["a/x.txt"]
    assert [Path(s.path).name for s in run.skipped] == ["gone.txt", "loop", "self"]


def test_a_link_within_the_folder_is_followed_under_its_own_name(tmp_path: Path) -> None:
    write(tmp_path / ".store" / "x.txt", "words")
    (tmp_path / "y.txt").symlink_to(".store/x.txt")
    (tmp_path / "folder").symlink_to(".store")
    documents, _ = read(tmp_path)
    assert [(d.id, d.text) for d in documents] == [("folder/x.txt", "words"), ("y.txt", "words")]


def test_links_below_links_do_not_multiply_the_walk(tmp_path: Path) -> None:
    for level in range(30):
        folder = tmp_path / f"{level:02}"
        write(folder / "x.txt", "x")
        for name in ("l", "r"):
            (folder / name).symlink_to(f"../{level + 1:02}" if level < 29 else "../00")
    documents, run = read(tmp_path)
    assert len(documents) == 30 * 3
    assert len(run.skipped) == 30 * 4


def test_a_given_path_may_itself_be_a_link(tmp_path: Path) -> None:
    write(tmp_path / "real" / "a.txt", "a")
    (tmp_path / "link").symlink_to("real")
    assert [d.id for d in read_paths([tmp_path / "link"])] == ["a.txt"]


# --- names and titles -----------------------------------------------------------------------------


def test_a_name_that_is_not_utf8_is_skipped_and_printed_safely(tmp_path: Path) -> None:
    name = os.fsdecode(b"bad-\xff.txt")
    try:
        write(tmp_path / name, "x")
    except OSError:
        pytest.skip("this file system has only UTF-8 names")
    os.mkdir(os.path.join(os.fsencode(tmp_path), b"folder-\xfe"))
    write(tmp_path / "good.txt", "x")
    documents, run = read(tmp_path)
    assert [d.id for d in documents] == ["good.txt"]
    assert [s.path for s in run.skipped] == [
        f"{tmp_path}/bad-\\xff.txt",
        f"{tmp_path}/folder-\\xfe",
    ]
    assert "not valid UTF-8" in only_skip(tmp_path / name).reason


def test_odd_names_are_ids_as_they_are(tmp_path: Path) -> None:
    names = [
        "-rf.txt",
        "new\nline.txt",
        "tab\t.txt",
        "back\\slash.txt",
        "rtl-\u202etxt.txt",
        "a .txt",
    ]
    names += ["Cafe\u0301.txt", "Caf\u00e9.txt", "👩\u200d💻.txt", "%2e%2e%2f.txt"]
    for name in names:
        write(tmp_path / name, "x")
    documents, run = read(tmp_path)
    assert {d.id for d in documents} == set(names)
    assert run.skipped == []
    assert not any("\n" in d.title or "\t" in d.title for d in documents)


def test_without_a_heading_the_title_is_the_name_without_its_suffix(tmp_path: Path) -> None:
    assert (
        read_one(write(tmp_path / "sub" / "notes.2024.txt", "# no heading")).title == "notes.2024"
    )
    assert read_one(write(tmp_path / "README.MD", "plain")).title == "README"
    assert read_one(write(tmp_path / "guide.rst", "Guide\n=====\n")).title == "guide"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# Heading\nbody", "Heading"),
        ("intro\n\n## Second level ##\n# later", "Second level"),
        ("Under lined\n===\n", "Under lined"),
        ("Under lined\n---\n", "Under lined"),
        ("```\n# comment in code\n```\n# Real", "Real"),
        ("~~~ sh\n# comment\n```\n~~~\n# Real", "Real"),
        ("---\ntitle: front\n---\n# Real", "Real"),
        ("---\nnever closed\n# Real", "Real"),
        ("- item\n---\n# Real", "Real"),
        ("| a |\n---\n# Real", "Real"),
        ("    # code\n# Real", "Real"),
        ("#hashtag\n# Real", "Real"),
        ("# \n# Real", "Real"),
        ("# ![logo](a.png) The [site](http://x) of `code`", "logo The site of code"),
        ("# nul\0inside\ttab", "nul inside tab"),
        ("\ufeff# After a mark", "After a mark"),
        ("# C#", "C#"),
        ("\r\n# Dos\r\n", "Dos"),
        ("no heading at all", "file"),
        ("", "file"),
        ("# " + "x" * 5000, "x" * params.TITLE_CHARS),
        ("# " + "[" * 5000, "[" * params.TITLE_CHARS),
    ],
)
def test_the_title_of_a_markdown_text_is_its_first_heading(
    tmp_path: Path, text: str, title: str
) -> None:
    document = read_one(write(tmp_path / "file.md", text))
    assert document.title == title
    assert document.text == text.removeprefix("\ufeff")


# --- encodings ------------------------------------------------------------------------------------

MIXED = "naïve 学点 \u200f\u0639\u0631\u0628\u064a 👩\u200d💻 line\nline"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".jsonl.gz"])
def test_utf8_and_what_a_byte_order_mark_says_are_read(
    tmp_path: Path, encoding: str, kind: str
) -> None:
    content = MIXED if kind == ".txt" else json.dumps({"text": MIXED}, ensure_ascii=False)
    data = content.encode(encoding)
    path = write(tmp_path / f"a{kind}", gzip.compress(data) if kind.endswith("gz") else data)
    assert read_one(path).text == MIXED


@pytest.mark.parametrize(
    ("mark", "encoding"), [(b"\xfe\xff", "utf-16-be"), (b"\0\0\xfe\xff", "utf-32-be")]
)
def test_big_endian_marks_are_read(tmp_path: Path, mark: bytes, encoding: str) -> None:
    assert read_one(write(tmp_path / "a.txt", mark + MIXED.encode(encoding))).text == MIXED
    lines = line(_id=1, text="a") + line(_id=2, text="b")
    documents, _ = read(write(tmp_path / "a.jsonl", mark + lines.encode(encoding)))
    assert [d.id for d in documents] == ["1", "2"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"good \xff bad", "not valid UTF-8 at byte 5"),
        (b"\xef\xbb\xbfgood \xff bad", "not valid UTF-8 at byte 8"),
        (b"cut \xe5\xad", "not valid UTF-8 at byte 4"),
        (b"\xed\xa0\x80 surrogate", "not valid UTF-8 at byte 0"),
        ("中文检索".encode("gb18030"), "not valid UTF-8 at byte 0"),
        (b"\xff\xfea\0\0\xd8", "not valid UTF-16 at byte 4"),
        (b"\xff\xfea\0b", "not valid UTF-16 at byte 4"),
        (b"\xff\xfe\0\0a\0\0\0\xff\xff\xff\xff", "not valid UTF-32 at byte 8"),
    ],
)
def test_any_other_encoding_is_refused_with_the_first_bad_byte(
    tmp_path: Path, data: bytes, message: str
) -> None:
    reason = only_skip(write(tmp_path / "a.txt", data)).reason
    assert message in reason
    assert "iconv" in reason


def test_binary_data_is_refused_and_a_text_with_a_few_nuls_is_not(tmp_path: Path) -> None:
    noise = bytes(i * 97 % 256 for i in range(20_000))
    for data in (noise, b"\0" * 100, "words".encode("utf-16-le"), b"\0\x01\x02 text"):
        assert "binary" in only_skip(write(tmp_path / "a.txt", data)).reason
    document = read_one(write(tmp_path / "b.txt", "alpha\0bravo " * 50))
    assert document.text == "alpha\0bravo " * 50


def test_an_empty_file_is_a_document_and_an_empty_list_of_lines_is_named(tmp_path: Path) -> None:
    assert read_one(write(tmp_path / "a.txt", "")) == Document("a.txt", "a", "")
    assert "no lines" in only_skip(write(tmp_path / "a.jsonl", "\n \r\n")).reason
    assert "no lines" in only_skip(write(tmp_path / "a.jsonl.gz", gzip.compress(b""))).reason


# --- JSON lines -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "document"),
    [
        ({"_id": "a", "title": "t", "text": "x"}, Document("a", "t", "x")),
        ({"id": "a", "text": "x"}, Document("a", "", "x")),
        ({"_id": "a", "id": "b", "text": "x"}, Document("a", "", "x")),
        ({"_id": None, "id": "b", "text": "x"}, Document("b", "", "x")),
        ({"_id": 17, "text": "x"}, Document("17", "", "x")),
        ({"_id": -(10**30), "text": "x"}, Document(str(-(10**30)), "", "x")),
        ({"text": "x"}, Document("f.jsonl#1", "", "x")),
        ({"_id": "a", "title": None, "text": None, "lang": "en"}, Document("a", "", "")),
        ({"_id": "a", "contents": "c", "url": "u"}, Document("a", "", "c")),
        ({"_id": "a", "body": "b", "contents": "c"}, Document("a", "", "c")),
        (
            {"_id": "a", "question": "q", "n": 5, "answer": "r", "l": ["x"]},
            Document("a", "", "q\nr"),
        ),
        ({"_id": "a"}, Document("a", "", "")),
        ({"_id": "a", "title": "nul\0", "text": "nul\0"}, Document("a", "nul ", "nul\0")),
        ({"_id": "a", "title": 2024, "text": "x"}, Document("a", "2024", "x")),
        ({"_id": "a", "text": "x", "other": "\ud800"}, Document("a", "", "x")),
    ],
)
def test_fields_of_a_json_line(
    tmp_path: Path, fields: dict[str, object], document: Document
) -> None:
    assert read_one(write(tmp_path / "f.jsonl", line(**fields))) == document
    assert type(document.id) is str


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_only_line_feeds_end_a_line_and_blank_lines_are_nothing(
    tmp_path: Path, ending: str
) -> None:
    first = json.dumps({"text": "one\u2028two\u0085three\x0b"}, ensure_ascii=False)
    lines = [first.replace("\\u000b", " "), "", "  ", json.dumps({"text": "last"})]
    documents, run = read(write(tmp_path / "a.ndjson", ending.join(lines)))
    assert [(d.id, d.text[:3]) for d in documents] == [("a.ndjson#1", "one"), ("a.ndjson#4", "las")]
    assert run.skipped == []


BAD_LINES = {
    "malformed": (b'{"_id": "x", "text": "cut', "malformed JSON"),
    "no object": (b'["a", "b"]', "not a JSON object"),
    "a number": (b"12", "not a JSON object"),
    "words": (b"hello", "malformed JSON"),
    "nested": (b'{"text": ' + b"[" * 100_000, "nested too deeply"),
    "bytes": (b'{"text": "\xff"}', "not valid UTF-8 at its byte 10"),
    "raw nul": (b'{"text": "\0"}', "malformed JSON"),
    "surrogate in text": (b'{"text": "\\ud800"}', "the text has a lone surrogate"),
    "surrogate in title": (b'{"title": "\\udc00", "text": ""}', "the title has a lone surrogate"),
    "surrogate in id": (b'{"_id": "\\ud83d", "text": ""}', "the id has a lone surrogate"),
    "surrogate in the only string": (b'{"words": "\\ud83d"}', "the text has a lone surrogate"),
    "empty id": (b'{"_id": "", "text": ""}', "the id has 0 bytes"),
    "long id": (b'{"_id": "%s", "text": ""}' % (b"x" * 1025), "the id has 1025 bytes"),
    "id of another kind": (b'{"_id": {"$oid": "5f"}, "text": ""}', "_id is an object"),
    "fraction as id": (b'{"_id": 1.0, "text": ""}', "_id is a fraction"),
    "truth as id": (b'{"_id": true, "text": ""}', "_id is true or false"),
    "text of another kind": (b'{"text": ["a", "b"]}', "text is a list"),
    "second id": (b'{"_id": "before", "text": ""}', "id before was read before"),
    "too long": (b'{"text": "' + b"x" * 200_000 + b'"}', "more than the 150000 bytes"),
}


@pytest.mark.parametrize("name", BAD_LINES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_bad_line_is_skipped_with_its_number_and_the_others_are_unaffected(
    tmp_path: Path, name: str, packed: bool
) -> None:
    bad, message = BAD_LINES[name]
    good = [line(_id="before", text="x").encode(), line(_id="after", text="y").encode()]
    data = b"\n".join([good[0], bad, good[1]])
    path = tmp_path / ("a.jsonl.gz" if packed else "a.jsonl")
    write(path, gzip.compress(data) if packed else data)
    documents, run = read(path, max_document_bytes=150_000)
    assert [d.id for d in documents] == ["before", "after"]
    assert [(s.path, s.line) for s in run.skipped] == [(str(path), 3)]
    assert message in run.skipped[0].reason


def test_a_mark_at_the_start_of_any_line_is_not_part_of_it(tmp_path: Path) -> None:
    one = b"\xef\xbb\xbf" + line(_id="a", text="x").encode()
    documents, run = read(write(tmp_path / "a.jsonl", one + one.replace(b"a", b"b", 1)))
    assert [d.id for d in documents] == ["a", "b"]
    assert run.skipped == []


def test_an_integer_id_may_have_more_digits_than_python_converts(tmp_path: Path) -> None:
    digits = "7" * 5000
    documents, run = read(
        write(tmp_path / "a.jsonl", f'{{"_id": "a", "text": "x", "n": {digits}}}')
    )
    assert [d.id for d in documents] == ["a"]
    reason = only_skip(write(tmp_path / "b.jsonl", f'{{"_id": {digits}}}')).reason
    assert "the id has 5000 bytes" in reason
    assert run.skipped == []


def test_a_lone_surrogate_in_utf16_costs_its_own_line_only(tmp_path: Path) -> None:
    lines = ['{"text": "a"}', '{"text": "\ud800"}', '{"text": "c"}']
    data = b"\xff\xfe" + "\n".join(lines).encode("utf-16-le", "surrogatepass")
    documents, run = read(write(tmp_path / "a.jsonl", data))
    assert [d.text for d in documents] == ["a", "c"]
    assert [s.line for s in run.skipped] == [2]
    documents, run = read(write(tmp_path / "b.jsonl", data[:-1]))
    assert [d.text for d in documents] == ["a"]
    assert [s.line for s in run.skipped] == [2, 3]


# --- equal ids ------------------------------------------------------------------------------------


def test_of_equal_ids_the_first_stays_and_the_later_name_it(tmp_path: Path) -> None:
    first = write(
        tmp_path / "1.jsonl", "\n" + line(_id="a", text="first") + line(_id="a", text="2nd")
    )
    second = write(tmp_path / "2.jsonl", line(_id=5, text="5") + line(_id="a") + line(id="5"))
    documents, run = read(tmp_path)
    assert [(d.id, d.text) for d in documents] == [("a", "first"), ("5", "5")]
    assert [(s.path, s.line) for s in run.skipped] == [
        (str(first), 3),
        (str(second), 2),
        (str(second), 3),
    ]
    assert f"from {first} line 2" in run.skipped[1].reason
    assert f"from {second} line 1" in run.skipped[2].reason


def test_the_same_path_twice_gives_each_document_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "x")
    documents, run = read(tmp_path, tmp_path, path)
    assert [d.id for d in documents] == ["a.txt"]
    assert len(run.skipped) == 2
    assert str(path) in run.skipped[0].reason


def test_equal_texts_under_two_ids_are_two_documents(tmp_path: Path) -> None:
    documents, run = read(
        write(tmp_path / "a.jsonl", line(_id=1, text="x") + line(_id=2, text="x"))
    )
    assert [d.id for d in documents] == ["1", "2"]
    assert run.skipped == []


def test_composed_and_decomposed_ids_are_two_ids(tmp_path: Path) -> None:
    lines = line(_id="caf\u00e9", text="x") + line(_id="cafe\u0301", text="x")
    documents, _ = read(write(tmp_path / "a.jsonl", lines))
    assert len(documents) == 2


# --- sizes ----------------------------------------------------------------------------------------


def peak_bytes_of(run: Reading) -> tuple[list[Document], int]:
    tracemalloc.start()
    try:
        documents = list(run)
        return documents, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_of_40_mb_is_skipped_in_bounded_memory(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("a.jsonl.gz" if packed else "a.jsonl")
    with gzip.open(path, "wb", 1) if packed else path.open("wb") as file:
        file.write(line(_id="before", text="x").encode() + b'{"text": "')
        for _ in range(40):
            file.write(b"word " * 200_000)
        file.write(b'"}\n' + line(_id="after", text="y").encode())
    run = read_paths([path], max_document_bytes=500_000)
    documents, peak = peak_bytes_of(run)
    assert [d.id for d in documents] == ["before", "after"]
    assert [s.line for s in run.skipped] == [2]
    assert peak < 4_000_000


def test_a_file_above_the_limit_is_skipped_unread(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    documents, peak = peak_bytes_of(run := read_paths([path]))
    assert documents == []
    assert "1099511627776 bytes, more than the 33554432" in run.skipped[0].reason
    assert peak < 1_000_000


@pytest.mark.parametrize("n_bytes", [99, 100, 101, 102, 103])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b""])
def test_the_limit_counts_the_bytes_of_the_line_without_its_end(
    tmp_path: Path, n_bytes: int, ending: bytes
) -> None:
    bare = b'{"text": "' + b"x" * (n_bytes - 12) + b'"}'
    documents, run = read(write(tmp_path / "a.jsonl", bare + ending), max_document_bytes=100)
    assert [len(d.text) for d in documents] == ([n_bytes - 12] if n_bytes <= 100 else [])
    assert [s.line for s in run.skipped] == ([] if n_bytes <= 100 else [1])


@pytest.mark.parametrize("ending", [b"\r\r\r\n", b"\r\rx\n", b"\r" * 300 + b"\n"])
def test_carriage_returns_at_the_limit_do_not_shift_line_numbers(
    tmp_path: Path, ending: bytes
) -> None:
    for n_bytes in range(98, 103):
        bare = b'{"text": "' + b"x" * (n_bytes - 12) + b'"}'
        path = write(tmp_path / "a.jsonl", bare + ending + b'{"text": "after"}\n')
        documents, _ = read(path, max_document_bytes=100)
        assert documents[-1] == Document("a.jsonl#2", "", "after")


def test_a_file_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "x" * 1000)
    assert len(read(path, max_document_bytes=1000)[0]) == 1
    assert "1000 bytes, more than the 999" in only_skip(path, max_document_bytes=999).reason


def test_millions_of_bad_lines_are_counted_and_not_all_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SKIPPED_MAX", 10)
    run = read_paths([write(tmp_path / "a.jsonl", "bad\n" * 1000)])
    assert list(run) == []
    assert (len(run.skipped), run.n_skipped) == (10, 1000)


# --- packed files ---------------------------------------------------------------------------------


def test_of_a_damaged_packed_file_what_was_read_before_stays(tmp_path: Path) -> None:
    content = b"".join(line(_id=str(i), text=os.urandom(200).hex()).encode() for i in range(2000))
    packed = gzip.compress(content)
    cut = write(tmp_path / "cut.jsonl.gz", packed[: len(packed) // 2])
    documents, run = read(cut)
    assert 500 < len(documents) < 1100
    assert [d.id for d in documents] == [str(i) for i in range(len(documents))]
    assert [s.line for s in run.skipped] == [len(documents) + 1]
    assert "damaged from here on" in run.skipped[0].reason

    flipped = bytearray(packed)
    flipped[len(packed) // 2] ^= 0xFF
    documents, run = read(write(tmp_path / "flipped.jsonl.gz", bytes(flipped)))
    assert documents
    assert any("damaged" in s.reason for s in run.skipped)

    packer = zlib.compressobj(wbits=31)
    whole = packer.compress(content) + packer.flush(zlib.Z_FULL_FLUSH)
    # 7 starts a last block of the type 3, which there is not.
    documents, run = read(write(tmp_path / "block.jsonl.gz", whole + b"\x07" * 100))
    assert documents
    assert "invalid block type" in run.skipped[-1].reason

    documents, run = read(write(tmp_path / "tail.jsonl.gz", packed + b"garbage"))
    assert len(documents) == 2000
    assert [s.line for s in run.skipped] == [2001]

    assert "damaged" in only_skip(write(tmp_path / "no.jsonl.gz", b"not packed at all")).reason


# --- a reading as a whole -------------------------------------------------------------------------


def test_documents_are_read_lazily_and_each_iteration_starts_afresh(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", "bad\n" + "".join(line(_id=i, text="x") for i in range(100)))
    run = read_paths([path])
    assert [d.id for d in itertools.islice(run, 3)] == ["0", "1", "2"]
    assert run.n_documents == 3
    assert len(list(run)) == run.n_documents == 100
    assert len(run.skipped) == run.n_skipped == 1


def test_no_document_at_all_is_an_error_that_names_paths_and_kinds(tmp_path: Path) -> None:
    run = read_paths([tmp_path])
    with pytest.raises(InputError) as caught:
        run.require_documents()
    assert str(tmp_path) in caught.value.message
    assert all(kind in caught.value.cure for kind in KINDS)
    write(tmp_path / "a.pdf", "x")
    with pytest.raises(InputError, match=r"1 skipped; the first: .*a\.pdf"):
        run.require_documents()
    write(tmp_path / "b.txt", "")
    run.require_documents()
    assert run.n_documents == 0
    assert [d.id for d in run] == ["b.txt"]
    run.require_documents()


@pytest.mark.parametrize("texts", [["", ""], ["the the"], ["1 2"], ["", *["words"] * 99]])
def test_empty_and_stop_word_documents_are_documents(tmp_path: Path, texts: list[str]) -> None:
    lines = "".join(line(_id=i, text=text) for i, text in enumerate(texts))
    documents, run = read(write(tmp_path / "a.jsonl", lines))
    assert [d.text for d in documents] == texts
    assert run.skipped == []


# --- anything -------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=())),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
json_lines = st.dictionaries(
    st.sampled_from(["_id", "id", "title", "text", "body", "x"]), json_values, max_size=4
).map(lambda fields: json.dumps(fields).encode())
any_bytes = st.one_of(
    st.binary(max_size=200),
    st.lists(json_lines | st.binary(max_size=20), max_size=5).map(b"\n".join),
    st.text(max_size=50).map(lambda text: text.encode("utf-16", "surrogatepass")),
    st.binary(max_size=40).map(lambda data: b"\xff\xfe\0\0" + data),
)


@pytest.mark.parametrize("kind", [".txt", ".md", ".jsonl", ".jsonl.gz"])
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=any_bytes, packed=st.booleans(), limit=st.sampled_from([1, 16, 1 << 20]))
@example(data=b"\0\xff\xfe", packed=False, limit=1 << 20)
@example(data=b'{"_id": 1e999, "text": NaN}', packed=True, limit=1 << 20)
def test_any_bytes_become_documents_or_skips_and_never_an_exception(
    tmp_path: Path, kind: str, data: bytes, packed: bool, limit: int
) -> None:
    path = write(tmp_path / f"a{kind}", gzip.compress(data) if packed else data)
    documents, run = read(path, max_document_bytes=limit)
    assert documents or run.skipped
    assert len({d.id for d in documents}) == len(documents)
    for document in documents:
        document.searchable.encode("utf-8")
        assert "\0" not in document.title


# --- files that real folders contain --------------------------------------------------------------


@needs_messy
def test_files_of_real_folders_are_indexed_or_refused_by_name() -> None:
    expected = {
        entry["file"]: entry for entry in json.loads((MESSY / "EXPECT.json").read_text("utf-8"))
    }
    documents, run = read(MESSY)
    named = {os.path.relpath(s.path, MESSY) for s in run.skipped}
    text_of: dict[str, str] = {d.id.split("#")[0]: d.text for d in documents}
    lines = "\n".join(d.text for d in documents)
    for name, entry in expected.items():
        assert name in text_of or name in named, f"{name} vanished"
        if entry["kind"] == "malformed":
            assert name in named
        if entry["kind"] == "ok" and entry["encoding"] in {"utf-8", "utf-16"} and name in text_of:
            assert all(word in text_of[name] for word in entry["must_contain"])
    assert all(f"zebrafish{i}" in lines for i in range(20))
    assert {"wrong-ext/binary-noise.txt", "wrong-ext/is-a-pdf.txt", "txt/law-gb18030.txt"} <= named
    assert "txt/law-utf16le-bom.txt" in text_of


@needs_messy
def test_files_with_odd_names_are_read_or_named(tmp_path: Path) -> None:
    with tarfile.open(MESSY / "odd-filenames.tar") as archive:
        for member in archive.getmembers():
            archive.extract(member, tmp_path, filter="fully_trusted")
    documents, run = read(tmp_path)
    assert len([d for d in documents if "needleword" in d.text]) == len(documents) == 23
    names = [os.path.basename(s.path) for s in run.skipped]
    assert sorted(names) == sorted(
        [
            "dangling.txt",
            "fifo.txt",
            "invalid-\\xff\\xfe-utf8.txt",
            "link-loop",
            "no_extension",
            "outside.txt",
        ]
    )
