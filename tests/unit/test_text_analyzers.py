"""Analyzers cut all forms of a word into one term and refuse libraries that would not."""

from __future__ import annotations

import pickle
import re
import sys
import time
import types
import unicodedata
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mksearch.errors import AnalyzerError
from mksearch.text.analyzers import (
    ANALYZERS,
    TOKEN_CHARS_MAX,
    Analyzer,
    analyzer_for_language,
    make_analyzer,
)
from mksearch.text.unicode_classes import CharacterClass, character_class

WORDS = (
    "café",
    "résumé",
    "piñata",
    "Zürich",
    "학점인정",
    "naïve",
    "Ångström",
    "façade",
    "Łódź",
    "Đà",
)
FORMS: tuple[Literal["NFC", "NFD", "NFKC", "NFKD"], ...] = ("NFC", "NFD", "NFKC", "NFKD")
UNICODE_TEXT = st.text(st.characters(), max_size=40)
#: Characters that compose, reorder, fold or vanish.
AWKWARD = st.text(
    st.sampled_from(
        "aAeİıſßΣςσΐͅ\u0301\u0323\u0327\u0345\u034f\u0344\u200b\u200c\u200d\u200e\u202e\u2060"
        "\ufeff\u00ad\ufe0f\ufe00ﬁ①½ⅧＡｶﾞ가각がか\u3099々〇٣_' -.,\0\n\ud800\udfff\U000e0100"
        "\U0001f469\U0001d4d0\U0001f1e9\u0378\uffff"
    ),
    max_size=30,
)


@pytest.fixture(scope="module")
def english() -> Analyzer:
    return make_analyzer("english-1")


@pytest.fixture(scope="module")
def plain() -> Analyzer:
    return make_analyzer("plain-1")


def full_width(text: str) -> str:
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)


def baseline_tokens(text: str) -> list[str]:
    import Stemmer
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    stem = Stemmer.Stemmer("english").stemWord
    words = re.findall("[a-z0-9]+", text.lower())
    return [stem(word) for word in words if word not in ENGLISH_STOP_WORDS]


# --- all forms of a word are one ----------------------------------------------------------------


@pytest.mark.parametrize("name", ANALYZERS)
@pytest.mark.parametrize("word", [*WORDS, "Hello", "ｶﾞｷﾞ", "Ⅷ", "ﬁne", "Straße"])
def test_every_form_of_a_word_is_the_same_term(name: str, word: str) -> None:
    analyzer = make_analyzer(name)
    expected = analyzer.tokens(word)

    assert len(expected) == 1
    for form in FORMS:
        assert analyzer.tokens(unicodedata.normalize(form, word)) == expected
        assert analyzer.tokens(unicodedata.normalize(form, word).swapcase()) == expected
    assert analyzer.tokens(full_width(word)) == expected


@pytest.mark.parametrize("name", ANALYZERS)
@given(text=UNICODE_TEXT | AWKWARD)
@example("\u1ffc\u0301\u0345")
@example("a\u0345\u0301")
@settings(max_examples=300, deadline=None)
def test_terms_do_not_depend_on_the_normal_form_of_the_text(name: str, text: str) -> None:
    analyzer = make_analyzer(name, [])
    expected = analyzer.tokens(text)

    for form in FORMS:
        assert analyzer.tokens(unicodedata.normalize(form, text)) == expected


@given(text=AWKWARD | UNICODE_TEXT)
@settings(max_examples=300, deadline=None)
def test_cutting_the_tokens_again_changes_nothing(text: str) -> None:
    plain = make_analyzer("plain-1")
    tokens = plain.tokens(text)

    assert plain.tokens(" ".join(tokens)) == tokens


@given(text=st.text(st.characters(max_codepoint=127)))
@settings(max_examples=200, deadline=None)
def test_ascii_text_is_cut_as_the_baseline_cuts_it(text: str) -> None:
    analyzer = make_analyzer("english-1")

    assert analyzer.tokens(text) == baseline_tokens(text)


def test_english_sentence_is_cut_as_the_baseline_cuts_it(english: Analyzer) -> None:
    text = "The cat's 2nd_life: Running, runs & RAN 3.14 times; isn't that well-known? e-mail@x.org"

    assert english.tokens(text) == baseline_tokens(text)
    assert english.tokens("Running cats' and the dog’s") == ["run", "cat", "dog", "s"]


@given(left=UNICODE_TEXT | AWKWARD, right=UNICODE_TEXT | AWKWARD)
@settings(max_examples=200, deadline=None)
def test_words_do_not_depend_on_what_stands_beyond_a_blank(left: str, right: str) -> None:
    plain = make_analyzer("plain-1")

    assert plain.tokens(f"{left} {right}") == plain.tokens(left) + plain.tokens(right)


# --- awkward characters -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("alpha\0beta", ["alpha", "beta"]),
        ("alpha\x1f\x7f\x85beta", ["alpha", "beta"]),
        ("alpha\ud800beta \udfff", ["alpha", "beta"]),
        ("\ufeffalpha\ufeff beta", ["alpha", "beta"]),
        ("\u202ealpha\u202c \u200fbe\u200eta", ["alpha", "beta"]),
        ("al\u00adpha be\u200dta\u2060", ["alpha", "beta"]),
        ("alpha\u200bbeta", ["alpha", "beta"]),
        ("alpha \U0001f469\u200d\U0001f469\u200d\U0001f467 beta", ["alpha", "beta"]),
        ("alpha❤\ufe0fbeta 1\ufe0f\u20e3", ["alpha", "beta", "1\u20e3"]),
        ("葛\U000e0100 alpha\ufe00", ["葛", "alpha"]),
        ("\u0301alpha \u0301 \u0301\u0301beta", ["alpha", "beta"]),
        ("alpha_beta", ["alpha", "beta"]),
        ("क्षत्रिय שָׁלוֹם", ["क्षत्रिय", "שָׁלוֹם"]),
        ("٣٤ 〇一 x²", ["٣٤", "〇一", "x2"]),
        ("alpha\u0378beta", ["alpha", "beta"]),
        # Folding leaves letters that compose with the marks that follow.
        ("ß\u0301 ŉ\u0301", ["s\u015b", "ʼ\u0144"]),
    ],
)
def test_awkward_characters_separate_or_vanish(
    plain: Analyzer, text: str, expected: list[str]
) -> None:
    expected = [unicodedata.normalize("NFKC", token) for token in expected]

    assert plain.tokens(text) == expected


@pytest.mark.parametrize("name", ANALYZERS)
@given(text=UNICODE_TEXT | AWKWARD)
@settings(max_examples=300, deadline=None)
def test_tokens_are_never_empty_nor_hold_anything_but_words(name: str, text: str) -> None:
    for token in make_analyzer(name, []).tokens(text):
        assert 1 <= len(token) <= TOKEN_CHARS_MAX
        token.encode()
        classes = [character_class(ord(character)) for character in token]
        assert classes[0] is CharacterClass.WORD
        assert set(classes) <= {CharacterClass.WORD, CharacterClass.MARK}


def test_a_long_token_is_cut_to_its_beginning(english: Analyzer, plain: Analyzer) -> None:
    for analyzer in (english, plain):
        assert analyzer.tokens("9" * 1000) == ["9" * TOKEN_CHARS_MAX]
        assert analyzer.tokens("ж" * 1000) == ["ж" * TOKEN_CHARS_MAX]
        assert analyzer.tokens("9" * TOKEN_CHARS_MAX) == analyzer.tokens("9" * 65)
        assert analyzer.explain("9" * 1000).terms == ("9" * TOKEN_CHARS_MAX,)


def test_a_crafted_run_of_marks_does_not_stop_the_analyzer(plain: Analyzer) -> None:
    marks = "\u0301\u0323" * 50_000
    begin = time.perf_counter()

    tokens = plain.tokens("a" + marks)

    assert time.perf_counter() - begin < 2.0
    assert tokens == [
        unicodedata.normalize("NFKC", "a" + "\u0323" * 63)[:TOKEN_CHARS_MAX] + "\u0323"
    ]


@given(text=AWKWARD)
@settings(max_examples=100, deadline=None)
def test_a_long_word_is_folded_as_a_short_one(text: str) -> None:
    plain = make_analyzer("plain-1")
    text = "".join(text.split())
    filler = "." * 1100

    assert plain.tokens(text + filler + "é") == [*plain.tokens(text), "é"]


# --- what was typed -----------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["We", "to be or not to be", "THE", "β γ"])
def test_a_query_of_stop_words_is_explained(english: Analyzer, query: str) -> None:
    words = english.explain(query)

    assert words.terms == ()
    assert words.stop_words == tuple(dict.fromkeys(query.lower().split()))
    assert words.n_words == len(query.split())


@pytest.mark.parametrize(
    "query", ["", "   ", "\t\n", "?!", "--", "_", "\0", "\u200b", "💡", "\u0301"]
)
def test_a_query_without_words_has_none(english: Analyzer, plain: Analyzer, query: str) -> None:
    for analyzer in (english, plain):
        words = analyzer.explain(query)
        assert (words.terms, words.stop_words, words.n_words) == ((), (), 0)


def test_a_short_query_matches_whole_words_alone(english: Analyzer) -> None:
    document = english.tokens("xylophone, x-ray and go-karts by Q.")

    assert english.tokens("x") == ["x"]
    assert [term for term in document if term in ("x", "go", "q")] == ["x", "q"]
    assert "xy" not in document


def test_explained_terms_are_the_tokens(english: Analyzer) -> None:
    query = "The turbine of the turbines"

    words = english.explain(query)

    assert words.terms == tuple(english.tokens(query)) == ("turbin", "turbin")
    assert words.stop_words == ("the", "of")
    assert words.n_words == 5


# --- names and libraries ------------------------------------------------------------------------


def test_an_unknown_name_or_language_is_refused_with_those_that_exist() -> None:
    with pytest.raises(AnalyzerError, match=r"english-9.*english-1, plain-1"):
        make_analyzer("english-9")
    with pytest.raises(AnalyzerError, match=r"'xx'.*en, plain"):
        analyzer_for_language("xx")


def test_each_language_has_an_analyzer() -> None:
    assert analyzer_for_language("en") == "english-1"
    assert analyzer_for_language("plain") == "plain-1"


def test_handed_in_stop_words_give_the_same_terms_without_their_library(
    english: Analyzer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    with pytest.raises(AnalyzerError, match="scikit-learn"):
        make_analyzer("english-1")

    client = make_analyzer("english-1", english.stop_words)

    assert client == english
    assert client.tokens("What the client asks") == english.tokens("What the client asks")


@pytest.mark.parametrize("word", ["The", "don't", "", "a b", "x" * 65, "e\u0301"])
def test_a_stop_word_that_could_never_be_met_is_refused(word: str) -> None:
    with pytest.raises(AnalyzerError, match="stop word"):
        make_analyzer("english-1", ["the", word])


def test_plain_refuses_stop_words() -> None:
    with pytest.raises(AnalyzerError, match="1 stop words"):
        make_analyzer("plain-1", ["the"])
    assert make_analyzer("plain-1", []).tokens("The words") == ["the", "words"]


def test_another_stemmer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import Stemmer

    installed = Stemmer.Stemmer("english")

    def stem(word: str) -> str:
        return "interf" if word == "interfering" else str(installed.stemWord(word))

    older = types.SimpleNamespace(Stemmer=lambda language: types.SimpleNamespace(stemWord=stem))
    monkeypatch.setitem(sys.modules, "Stemmer", older)

    with pytest.raises(AnalyzerError, match=r"'interfering' to 'interf'.*PyStemmer 3\.1"):
        make_analyzer("english-1", [])


def test_a_missing_stemmer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Stemmer", None)

    with pytest.raises(AnalyzerError, match="PyStemmer"):
        make_analyzer("english-1", [])
    assert make_analyzer("plain-1").tokens("works") == ["works"]


def test_another_stop_list_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import sklearn.feature_extraction.text as library

    fewer = frozenset(library.ENGLISH_STOP_WORDS) - {"the"}
    monkeypatch.setattr(library, "ENGLISH_STOP_WORDS", fewer)

    with pytest.raises(AnalyzerError, match=r"317 stop words.*scikit-learn 1\.9"):
        make_analyzer("english-1")


def test_an_analyzer_can_be_handed_to_another_process(english: Analyzer, plain: Analyzer) -> None:
    for analyzer in (english, plain):
        twin = pickle.loads(pickle.dumps(analyzer))
        assert twin == analyzer
        assert twin.tokens("Handing over résumés") == analyzer.tokens("Handing over résumés")


def test_remembered_stems_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mksearch.text.analyzers._STEMS_MAX", 100)
    analyzer = make_analyzer("english-1", [])

    tokens = analyzer.tokens(" ".join(f"words{n}" for n in range(1000)))

    assert tokens == [f"words{n}" for n in range(1000)]
    assert analyzer._stems is not None
    assert len(analyzer._stems) <= 100


# --- frozen classes -----------------------------------------------------------------------------


def test_classes_cover_every_code_point() -> None:
    assert character_class(0x10FFFF) is CharacterClass.UNASSIGNED
    assert character_class(0xD800) is CharacterClass.UNASSIGNED
    assert character_class(0) is CharacterClass.SEPARATOR
    assert character_class(0x200B) is CharacterClass.SEPARATOR


def test_classes_are_those_of_unicode_14() -> None:
    """On a later Unicode all characters that were assigned in 14 keep their class."""
    expected = {"L": "w", "N": "w", "M": "m"}
    differing = []
    for code_point in range(0x110000):
        frozen = character_class(code_point).value
        category = unicodedata.category(chr(code_point))
        if frozen == "x" or (frozen == "u" and unicodedata.unidata_version != "14.0.0"):
            continue
        now = "u" if category in ("Cn", "Cs") else expected.get(category[0], "s")
        if now != frozen:
            differing.append(hex(code_point))

    assert len(differing) <= (0 if unicodedata.unidata_version == "14.0.0" else 20), differing


def test_everything_invisible_is_ignored() -> None:
    for code_point in range(0x110000):
        if unicodedata.category(chr(code_point)) == "Cf" and code_point != 0x200B:
            assert character_class(code_point) in (
                CharacterClass.IGNORED,
                CharacterClass.UNASSIGNED,
            )
