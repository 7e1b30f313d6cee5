"""Foreign text on a terminal: shown, never obeyed."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from mksearch.errors import ParameterError
from mksearch_client.terminal import safe

any_text = st.text(
    st.one_of(
        st.characters(exclude_categories=()),
        st.sampled_from("\x1b[]m0;\\\x07\x9b\x9c\u202e\u200d\u0301\t\n a字👩"),
    ),
    max_size=60,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain words", "plain words"),
        ("", ""),
        ("  two \t\r\n lines\u2028and\u0085more ", "two lines and more"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]0;window title\x07after", "after"),
        ("\x1b]8;;http://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPdevice string\x1b\\after", "after"),
        ("\x1b(0charset", "charset"),
        ("lonely escape \x1b", "lonely escape"),
        ("nul\x00, bell\x07, delete\x7f, next\x84", "nul, bell, delete, next"),
        ("rtl-\u202etxt.exe\u202c", "rtl-txt.exe"),
        ("\u2066isolate\u2069 \u200emark\u200f", "isolate mark"),
        ("zero\u200bwidth\u2060 soft\u00adhyphen \ufeffbom", "zerowidth softhyphen bom"),
        ("\U0001f469\u200d\U0001f4bb", "\U0001f469\U0001f4bb"),
        ("filler\u3164\u115f, tag\U000e0041", "filler, tag"),
        ("lone \ud800\udcff surrogate", "lone surrogate"),
        ("Zürich e\u0301 学점 عربي", "Zürich e\u0301 学점 عربي"),
        ("\u0600\u0661\u0662", "\u0600\u0661\u0662"),
        ("[bold]markup[/bold] stays", "[bold]markup[/bold] stays"),
    ],
)
def test_what_a_terminal_would_obey_is_taken_out(text: str, shown: str) -> None:
    assert safe(text) == shown


def test_removing_a_character_does_not_make_a_new_escape_sequence() -> None:
    assert "\x1b" not in safe("\x1b\u200b[31m \x1b\x1b[31m[32m")


def test_a_tower_of_combining_marks_is_cut_down() -> None:
    assert safe("a" + "\u0301" * 500 + "b") == "a" + "\u0301" * 8 + "b"


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("exactly", 7, "exactly"),
        ("one too long", 7, "one to…"),
        ("blank before the cut", 6, "blank…"),
        ("全角文字", 8, "全角文字"),
        ("全角文字", 7, "全角文…"),
        ("全角文字", 6, "全角…"),
        ("a", 1, "a"),
        ("ab", 1, "…"),
        ("全", 1, "…"),
        ("e\u0301tude", 3, "e\u0301t…"),
    ],
)
def test_a_long_line_is_cut_to_its_width_in_cells(text: str, limit: int, shown: str) -> None:
    assert safe(text, limit) == shown


@pytest.mark.parametrize("limit", [0, -3])
def test_a_width_below_one_is_refused(limit: int) -> None:
    with pytest.raises(ParameterError, match="below 1"):
        safe("text", limit)


@given(any_text, st.none() | st.integers(1, 30))
def test_whatever_comes_in_one_harmless_line_of_the_width_comes_out(
    text: str, limit: int | None
) -> None:
    line = safe(text, limit)
    assert not {unicodedata.category(c) for c in line} & {"Cc", "Cs", "Zl", "Zp"}
    assert not set(line) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\u200d")
    assert limit is None or cell_len(line) <= limit
    assert safe(line, limit) == line
    line.encode("utf-8")
