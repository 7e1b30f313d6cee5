"""Cut texts into terms, the same way for documents and queries, on every platform.

An analyzer is named with a version (``english-1``) and the name fixes what it does: the classes of
characters are frozen (``unicode_classes``), and the libraries that bring stems and stop words are
probed when an analyzer is made.

How a text is cut:

1. invisible characters are dropped, characters that Unicode 14 does not know and lone surrogates
   become separators;
2. NFKC, full case folding, NFKC again, so that composed, decomposed, full-width and upper-case
   forms of a word are one word;
3. tokens are maximal runs of letters, numbers and the combining marks that follow them, cut to
   their first ``TOKEN_CHARS_MAX`` characters;
4. ``english``: stop words are removed, the others stemmed by Snowball.

On ASCII text ``english-1`` does what is usual with scikit-learn: lower case, ``[a-z0-9]+``, its
English stop words, Snowball stems.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType
from typing import Final

from mksearch.errors import AnalyzerError
from mksearch.text.unicode_classes import CharacterClass, character_class

__all__ = [
    "ANALYZERS",
    "TOKEN_CHARS_MAX",
    "Analyzer",
    "AnalyzerKind",
    "QueryWords",
    "analyzer_for_language",
    "make_analyzer",
]

#: Longest token, characters after folding; of a longer one this prefix is the token, so that
#: encoded data in a text cannot make a vocabulary of megabytes.
TOKEN_CHARS_MAX: Final = 64
#: Stems that an analyzer remembers before it starts afresh (at most some 60 MB).
_STEMS_MAX: Final = 1 << 18
#: Characters of one word above which marks are put in order beforehand (see ``_decompose``).
_LONG_WORD_CHARS: Final = 1024
#: Characters that a translation table remembers.
_TRANSLATIONS_MAX: Final = 1 << 16

_ASCII_TOKEN: Final = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class AnalyzerKind:
    """What an analyzer's name stands for.

    Attributes:
        name: the name with its version, as manifests carry it.
        language: what ``analyzer_for_language`` finds it by.
        stems: whether stop words are removed and words reduced to their stems.
        summary: one line for people who choose.
    """

    name: str
    language: str
    stems: bool
    summary: str


#: Every analyzer of this release by its name.
ANALYZERS: Final[Mapping[str, AnalyzerKind]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            AnalyzerKind("english-1", "en", True, "English: stop words removed, Snowball stems"),
            AnalyzerKind("plain-1", "plain", False, "any language with blanks: words as they are"),
        )
    }
)


@dataclass(frozen=True, slots=True)
class QueryWords:
    """What became of the words that somebody typed.

    Attributes:
        terms: the terms in their order, repeated ones included, as ``Analyzer.tokens`` gives them.
        stop_words: the folded words that were left out as stop words, each once, in their order.
        n_words: words seen at all, 0 or more; 0 if there was nothing but blanks and punctuation.
    """

    terms: tuple[str, ...]
    stop_words: tuple[str, ...]
    n_words: int


class _Stems(dict[str, str]):
    """Word to stem, "" for a stop word, filled as words come and bounded in size."""

    def __init__(self, stop_words: frozenset[str], stem: Callable[[str], str]) -> None:
        super().__init__()
        self._stop_words = stop_words
        self._stem = stem

    def __missing__(self, word: str) -> str:
        kept = word[:TOKEN_CHARS_MAX]
        stem = "" if kept in self._stop_words else self._stem(kept)
        if len(word) <= TOKEN_CHARS_MAX:
            if len(self) >= _STEMS_MAX:
                self.clear()
            self[word] = stem
        return stem


@dataclass(frozen=True, slots=True)
class Analyzer:
    """Cuts texts into terms; made by ``make_analyzer``.

    Two analyzers of one name and the same stop words give the same terms everywhere.

    Attributes:
        name: name with version, one of ``ANALYZERS``.
        stop_words: folded words that never become a term; empty for ``plain``.
    """

    name: str
    stop_words: frozenset[str]
    _stems: _Stems | None = field(repr=False, compare=False)

    def __reduce__(self) -> tuple[Callable[..., Analyzer], tuple[str, tuple[str, ...]]]:
        """Rebuild by name, so that an analyzer can be handed to a worker process."""
        return make_analyzer, (self.name, tuple(sorted(self.stop_words)))

    def tokens(self, text: str) -> list[str]:
        """Cut a text into its terms.

        Args:
            text: any string, empty ones, NUL and lone surrogates included.

        Returns:
            The terms in the order of the text, stop words left out.  Each has 1 to
            ``TOKEN_CHARS_MAX`` characters and neither blanks nor control characters.
        """
        if self._stems is None:
            return [word[:TOKEN_CHARS_MAX] for word in _words(text)]
        return [stem for stem in map(self._stems.__getitem__, _words(text)) if stem]

    def explain(self, text: str) -> QueryWords:
        """Cut a query and tell what was left out, for messages such as "only stop words"."""
        words = [word[:TOKEN_CHARS_MAX] for word in _words(text)]
        return QueryWords(
            terms=tuple(self.tokens(text)),
            stop_words=tuple(dict.fromkeys(w for w in words if w in self.stop_words)),
            n_words=len(words),
        )


def analyzer_for_language(language: str) -> str:
    """Give the name of the newest analyzer for a language.

    Args:
        language: "en" or "plain".

    Raises:
        AnalyzerError: there is none for that language.
    """
    names = {kind.language: kind.name for kind in ANALYZERS.values()}
    if language not in names:
        raise AnalyzerError(
            f"no analyzer for language {language!r}",
            cure=f"use one of {', '.join(names)}",
        )
    return names[language]


def make_analyzer(name: str, stop_words: Iterable[str] | None = None) -> Analyzer:
    """Make the analyzer of that name.

    Args:
        name: one of ``ANALYZERS``.
        stop_words: folded words to leave out.  None takes the analyzer's own list from its
            library, which is slow to import: who searches hands in the list that the collection's
            dictionary carries.

    Raises:
        AnalyzerError: the name is unknown, a library is missing or would cut words differently
            from what the name promises, or the stop words are not folded words.
    """
    kind = ANALYZERS.get(name)
    if kind is None:
        raise AnalyzerError(
            f"analyzer {name!r} is not known to this release",
            cure=f"use one of {', '.join(ANALYZERS)}, or a newer release",
        )
    given = None if stop_words is None else frozenset(stop_words)
    if not kind.stems:
        if given:
            raise AnalyzerError(
                f"{name} keeps every word, but {len(given)} stop words were handed in",
                cure="hand in none, or use another analyzer",
            )
        return Analyzer(name, frozenset(), None)
    kept = _english_stop_words() if given is None else given
    for word in kept:
        if _words(word) != [word] or len(word) > TOKEN_CHARS_MAX:
            raise AnalyzerError(
                f"stop word {word!r} is not one folded word, so it would never be met",
                cure=f"hand in {_words(word)} instead",
            )
    return Analyzer(name, kept, _Stems(kept, _english_stem()))


# --- English ------------------------------------------------------------------------------------

#: SHA-256 over the sorted stop words that english-1 takes from its library, joined by line feeds.
_ENGLISH_STOP_WORDS_SHA256: Final = (
    "40e0a284c5b9a220efffd18d4d739fbd3270091d6ce2c75b6effe289d3be5487"
)

#: Stop words of english-1 beside those of the library: a Greek letter that stands alone in English
#: text is a symbol (the gamma of a protein's name), and as a term it costs 0.003 of nDCG@10 on
#: SciFact with BM25.  Joined to other letters it stays.
_GREEK_LETTERS: Final = frozenset("αβγδεζηθικλμνξοπρστυφχψω")

#: Words whose stems tell the Snowball English of english-1 from earlier ones.
_ENGLISH_PROBE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "added": "add",
        "arsenal": "arsenal",
        "biologists": "biolog",
        "communism": "communism",
        "conditional": "condit",
        "dying": "die",
        "ebbed": "ebb",
        "evening": "evening",
        "generously": "generous",
        "happily": "happili",
        "hopping": "hop",
        "interfering": "interfer",
        "internal": "internal",
        "intervals": "interval",
        "news": "news",
        "proceedings": "proceed",
        "relational": "relat",
        "skies": "sky",
        "skis": "ski",
        "universities": "universiti",
    }
)


def _english_stem() -> Callable[[str], str]:
    cure = "install PyStemmer 3.1, whose stems english-1 is made of"
    try:
        import Stemmer  # noqa: PLC0415 - plain-1 works without it
    except ImportError as cause:
        raise AnalyzerError("english-1 needs PyStemmer, which is missing", cure=cure) from cause
    stem: Callable[[str], str] = Stemmer.Stemmer("english").stemWord
    for word, expected in _ENGLISH_PROBE.items():
        got = stem(word)
        if got != expected:
            raise AnalyzerError(
                f"the installed PyStemmer stems {word!r} to {got!r}, english-1 to {expected!r}",
                cure=cure,
            )
    return stem


def _english_stop_words() -> frozenset[str]:
    cure = "install scikit-learn 1.9, or hand in the stop words"
    try:
        from sklearn.feature_extraction.text import (  # noqa: PLC0415 - takes a second
            ENGLISH_STOP_WORDS,
        )
    except ImportError as cause:
        raise AnalyzerError(
            "the stop words of english-1 come with scikit-learn, which is missing", cure=cure
        ) from cause
    words = frozenset(str(word) for word in ENGLISH_STOP_WORDS)
    digest = hashlib.sha256("\n".join(sorted(words)).encode()).hexdigest()
    if digest != _ENGLISH_STOP_WORDS_SHA256:
        raise AnalyzerError(
            f"the {len(words)} stop words of the installed scikit-learn are not the 318 of "
            f"english-1 (SHA-256 {digest[:16]}, not {_ENGLISH_STOP_WORDS_SHA256[:16]})",
            cure=cure,
        )
    return words | _GREEK_LETTERS


# --- cutting ------------------------------------------------------------------------------------


class _Translation(dict[int, int | str | None]):
    """Table for ``str.translate`` that is filled as characters come and bounded in size."""

    def __init__(self, fates: Mapping[CharacterClass, str | None]) -> None:
        super().__init__()
        self._fates = fates

    def __missing__(self, code_point: int) -> int | str | None:
        fate = self._fates.get(character_class(code_point), code_point)
        if len(self) < _TRANSLATIONS_MAX:
            self[code_point] = fate
        return fate


_BEFORE_FOLDING: Final = _Translation(
    {CharacterClass.IGNORED: None, CharacterClass.UNASSIGNED: " "}
)
_AFTER_FOLDING: Final = _Translation(
    {
        CharacterClass.SEPARATOR: " ",
        CharacterClass.UNASSIGNED: " ",
        CharacterClass.IGNORED: None,
    }
)


def _words(text: str) -> list[str]:
    """Give the folded words of a text in order, of any length."""
    if text.isascii():
        return _ASCII_TOKEN.findall(text.lower())
    words: list[str] = []
    # No blank takes part in a composition, so pieces between blanks can be folded alone, and most
    # of them are ASCII.
    for piece in text.split():
        if piece.isascii():
            words += _ASCII_TOKEN.findall(piece.lower())
        else:
            words += _unicode_words(piece)
    return words


def _unicode_words(piece: str) -> list[str]:
    runs = _fold(piece.translate(_BEFORE_FOLDING)).translate(_AFTER_FOLDING).split()
    return [word for word in map(_without_leading_marks, runs) if word]


def _without_leading_marks(run: str) -> str:
    start = 0
    while start < len(run) and character_class(ord(run[start])) is CharacterClass.MARK:
        start += 1
    return run[start:]


def _fold(text: str) -> str:
    """Give one form to all texts that differ in case, width or composition only."""
    if len(text) > _LONG_WORD_CHARS:
        text = _decompose(text)
    composed = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFKC", composed)


def _decompose(text: str) -> str:
    """Give the NFKD of a text, in a time that does not grow with the square of its marks.

    The interpreter orders marks by insertion: a crafted word of 100,000 alternating marks costs
    it seconds, one of a million many minutes.
    """
    pieces = "".join(unicodedata.normalize("NFKD", character) for character in text)
    return "".join(
        "".join(sorted(run, key=unicodedata.combining) if marks else run)
        for marks, run in groupby(pieces, key=lambda c: unicodedata.combining(c) != 0)
    )
