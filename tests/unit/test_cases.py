"""Small inputs that search systems are known to get wrong, published and searched."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from mksearch.messages import ScoreAnswer, ScoreRequest
from mksearch.text.analyzers import make_analyzer
from mksearch_client.reading import Document, Reading, read_paths
from mksearch_client.result import SearchResult
from tests.support.local import LocalCollection, publish

Publish = Callable[..., LocalCollection]

ANALYZERS = ("english-1", "plain-1")
SCORINGS = ("tfidf", "bm25")
each_analyzer = pytest.mark.parametrize("analyzer", ANALYZERS)
each_scoring = pytest.mark.parametrize("scoring", SCORINGS)


@pytest.fixture
def published(tmp_path: Path) -> Publish:
    numbers: Iterator[int] = iter(range(100))

    def make(texts: Sequence[str | Document], **options: str) -> LocalCollection:
        documents = [
            text if isinstance(text, Document) else Document(f"d{n}", "", text)
            for n, text in enumerate(texts)
        ]
        return publish(documents, tmp_path / str(next(numbers)), **options)  # type: ignore[arg-type]

    return make


def ids(result: SearchResult) -> list[str]:
    return [hit.id for hit in result.hits]


def proved(result: SearchResult) -> SearchResult:
    """Return the result after checking what holds for every answer."""
    assert result.verified
    assert result.exact
    scores = [hit.score for hit in result.hits]
    assert all(math.isfinite(score) and score > 0 for score in scores)
    assert scores == sorted(scores, reverse=True)
    assert [hit.rank for hit in result.hits] == list(range(1, len(scores) + 1))
    assert len(set(ids(result))) == len(scores)
    # Neither NaN nor infinity anywhere in what is shown.
    json.dumps(result.to_json(), allow_nan=False)
    return result


def matching(texts: Sequence[str], query: str, analyzer: str) -> set[str]:
    """Give the ids that a plaintext engine finds: documents that hold a term of the query."""
    cut = make_analyzer(analyzer).tokens
    return {f"d{n}" for n, text in enumerate(texts) if set(cut(text)) & set(cut(query))}


class Watched:
    """A server whose requests for sums are kept."""

    def __init__(self, local: LocalCollection, server: int) -> None:
        self._server = local.servers[server]
        self.requests: list[ScoreRequest] = []

    def score(self, request: ScoreRequest) -> ScoreAnswer:
        self.requests.append(request)
        return self._server.score(request)

    def __getattr__(self, name: str) -> object:
        return getattr(self._server, name)


def search_watched(local: LocalCollection, query: str) -> tuple[SearchResult, list[ScoreRequest]]:
    watched = {server: Watched(local, server) for server in (1, 2)}
    result = local.searcher((1, 2), replace=watched).search(query)  # type: ignore[arg-type]
    return result, [request for server in watched.values() for request in server.requests]


# --- letters that look the same -------------------------------------------------------------------

WORDS = (
    "café",
    "résumé",
    "piñata",
    "Zürich",
    "학점인정",
    "naïve",
    "Ångström",
    "jalapeño",
    "façade",
    "smörgåsbord",
)


@each_analyzer
@each_scoring
def test_composed_and_decomposed_forms_of_a_word_find_both(
    published: Publish, analyzer: str, scoring: str
) -> None:
    composed = [unicodedata.normalize("NFC", word) for word in WORDS]
    decomposed = [unicodedata.normalize("NFD", word) for word in WORDS]
    assert not set(composed) & set(decomposed)
    searcher = published([*composed, *decomposed], analyzer=analyzer, scoring=scoring).searcher()

    for number, word in enumerate(WORDS):
        both = [f"d{number}", f"d{number + 10}"]
        for form in ("NFC", "NFD", "NFKC", "NFKD"):
            for query in (unicodedata.normalize(form, w) for w in (word, word.upper())):
                result = proved(searcher.search(query))
                assert ids(result) == sorted(both), (word, form)
                assert result.hits[0].score == result.hits[1].score


@each_analyzer
def test_full_width_letters_are_the_letters(published: Publish, analyzer: str) -> None:
    searcher = published(["ＡＢＣ １２３", "abc 123", "xyz 789"], analyzer=analyzer).searcher()

    for query in ("abc", "ABC", "ａｂｃ", "ＡＢＣ", "123", "１２３"):
        assert ids(proved(searcher.search(query))) == ["d0", "d1"], query


# --- documents without words ----------------------------------------------------------------------

HOLLOW: dict[str, list[str]] = {
    "one empty document": [""],
    "two empty documents": ["", ""],
    "only stop words": ["the the"],
    "only digits": ["1 2"],
    "only punctuation": ["?!", "...", "-"],
    "one empty among a hundred": [*(f"wing number{n}" for n in range(99)), ""],
}


@pytest.mark.parametrize("texts", HOLLOW.values(), ids=HOLLOW.keys())
@each_analyzer
@each_scoring
def test_documents_without_words_are_published_and_every_query_gets_a_proved_answer(
    published: Publish, texts: list[str], analyzer: str, scoring: str
) -> None:
    searcher = published(texts, analyzer=analyzer, scoring=scoring).searcher()

    for query in ("wing", "the", "1", "2 1", "number5", "?!", ""):
        result = proved(searcher.search(query, 200))
        assert set(ids(result)) == matching(texts, query, analyzer), query
        assert result.n_docs == len(texts)


def test_a_document_without_words_can_still_be_opened(published: Publish) -> None:
    local = published(["", "wing"])

    assert local.searcher().open("d0").text == ""


# --- queries of stop words ------------------------------------------------------------------------

PLAY = ["to be or not to be", "we are such stuff", "dreams are made on", "sleep"]


@pytest.mark.parametrize(
    ("query", "left_out"),
    [("We", ["we"]), ("to be or not to be", ["to", "be", "or", "not"]), ("THE", ["the"])],
)
@each_scoring
def test_a_query_of_stop_words_finds_nothing_and_the_warning_names_them(
    published: Publish, query: str, left_out: list[str], scoring: str
) -> None:
    result = proved(published(PLAY, scoring=scoring).searcher().search(query))

    assert not result.hits
    (warning,) = result.warnings
    assert "too common" in warning
    assert all(word in warning for word in left_out)


def test_a_query_of_stop_words_sends_what_an_ordinary_query_sends(published: Publish) -> None:
    local = published(PLAY)

    _, ordinary = search_watched(local, "dreams")
    result, hollow = search_watched(local, "to be or not to be")

    assert not result.hits
    assert len(hollow) == len(ordinary) == 2
    for request, other in zip(hollow, ordinary, strict=True):
        assert request.shares.shape == other.shares.shape
        # The shares of a zero vector are as random as those of any other.
        assert np.count_nonzero(request.shares) > 0.9 * request.shares.size


def test_stop_words_beside_other_words_are_left_out_and_named(published: Publish) -> None:
    result = proved(published(PLAY).searcher().search("the dreams"))

    assert ids(result) == ["d2"]
    assert any("too common" in warning and "the" in warning for warning in result.warnings)


def test_without_stop_words_a_common_word_finds_the_documents_that_hold_it(
    published: Publish,
) -> None:
    searcher = published(PLAY, analyzer="plain-1").searcher()

    assert ids(proved(searcher.search("We"))) == ["d1"]
    assert ids(proved(searcher.search("to be or not to be"))) == ["d0"]
    assert set(ids(proved(searcher.search("are")))) == {"d1", "d2"}


@pytest.mark.parametrize("query", ["unheard", "unheard unseen", "zzz9"])
@each_analyzer
def test_a_query_of_unknown_words_finds_nothing_and_says_so(
    published: Publish, query: str, analyzer: str
) -> None:
    local = published(PLAY, analyzer=analyzer)

    result, requests = search_watched(local, query)

    assert not proved(result).hits
    assert any("in no document" in warning for warning in result.warnings)
    assert len(requests) == 2
    assert all(request.shares.any() for request in requests)


# --- queries of a character or two ----------------------------------------------------------------

SHORT = [
    "a",
    "a b",
    "b",
    "ab",
    "abc",
    "a. b!",
    "7",
    "77 7",
    "é",
    "É e",
    "x-y",
    "漢 字",
    "the a",
    "",
]
SHORT_QUERIES = [
    *("a", "A", "b", "e", "é", "7", "x", "y", "z", "漢", "字"),
    *("ab", "77", "xy", "x-y", "a b", "zz", "漢字", "a7"),
    *("", " ", "  ", "\t\n", "\r\n", "\u00a0", "\u3000", "\u200b", "\ufeff", "\0"),
    *("!", "?!", "-", "--", ".", "...", "*", "%", "_", "'", '"', "\\", "(", "。", "«»", "🙂"),
]


@each_analyzer
@each_scoring
def test_short_queries_find_what_the_plaintext_engine_finds_and_never_more(
    published: Publish, analyzer: str, scoring: str
) -> None:
    searcher = published(SHORT, analyzer=analyzer, scoring=scoring).searcher()

    for query in SHORT_QUERIES:
        result = proved(searcher.search(query, 50))
        assert set(ids(result)) == matching(SHORT, query, analyzer), repr(query)
        if not result.hits:
            assert result.warnings, repr(query)


@pytest.mark.parametrize("query", ["", " ", "\t\n", "?!", "...", "\u200b", "🙂"])
def test_a_query_without_a_letter_or_digit_is_answered_with_the_reason(
    published: Publish, query: str
) -> None:
    result, requests = search_watched(published(SHORT), query)

    assert not proved(result).hits
    assert any("no letter or digit" in warning for warning in result.warnings)
    assert len(requests) == 2


# --- common terms ---------------------------------------------------------------------------------


@each_analyzer
@each_scoring
def test_a_term_in_exactly_half_of_the_documents_finds_that_half(
    published: Publish, analyzer: str, scoring: str
) -> None:
    texts = [f"wing item{n}" if n % 2 else f"item{n}" for n in range(20)]
    searcher = published(texts, analyzer=analyzer, scoring=scoring).searcher()

    result = proved(searcher.search("wing", 50))

    assert set(ids(result)) == {f"d{n}" for n in range(1, 20, 2)}


@each_analyzer
@each_scoring
def test_a_term_in_every_document_still_scores_above_zero(
    published: Publish, analyzer: str, scoring: str
) -> None:
    texts = [f"wing item{n}" for n in range(20)]
    searcher = published(texts, analyzer=analyzer, scoring=scoring).searcher()

    assert len(proved(searcher.search("wing", 50)).hits) == 20
    rare_and_common = proved(searcher.search("wing item7", 50))
    assert rare_and_common.hits[0].id == "d7"
    assert rare_and_common.hits[0].score > rare_and_common.hits[1].score
    assert len(rare_and_common.hits) == 20


@pytest.mark.parametrize("texts", [["wing"], ["wing", "wing"], ["wing", "tail"], ["wing", ""]])
@each_analyzer
@each_scoring
def test_one_or_two_documents_are_ranked_like_many(
    published: Publish, texts: list[str], analyzer: str, scoring: str
) -> None:
    searcher = published(texts, analyzer=analyzer, scoring=scoring).searcher()

    for query in ("wing", "tail", "wing tail", "nothing"):
        result = proved(searcher.search(query))
        assert set(ids(result)) == matching(texts, query, analyzer), query


@each_scoring
def test_a_cosine_is_at_most_one_and_one_for_the_document_itself(
    published: Publish, scoring: str
) -> None:
    result = proved(published(PLAY, scoring=scoring).searcher().search("dreams are made on"))

    assert ids(result) == ["d2"]
    if scoring == "tfidf":
        assert result.hits[0].score == pytest.approx(1.0, abs=1e-6)


# --- hostile text ---------------------------------------------------------------------------------

#: Text of a document, and a word that must find it.
ODD_TEXTS: dict[str, tuple[str, str]] = {
    "nul": ("alpha\0beta gamma", "gamma"),
    "nul at both ends": ("\0delta\0", "delta"),
    "byte order mark inside": ("epsi\ufefflon", "epsilon"),
    "right-to-left marks": ("\u200fשלום\u200e zeta", "שלום"),
    "overrides": ("\u202eeta\u202c", "eta"),
    "joined emoji": ("👩\u200d👩\u200d👧 theta", "theta"),
    "flags and skin tones": ("🇩🇪 👍🏽 iota", "iota"),
    "noncharacters": ("\ufdd0 kappa \uffff", "kappa"),
    "private use": ("\ue000 lambda", "lambda"),
    "unassigned": ("\U000e0fff my", "my"),
    "controls": ("\x01\x1b[0m ny\x7f", "ny"),
    "combining marks alone": ("\u0301\u0302 omikron", "omikron"),
    "one very long word": ("q" * 100_000 + " rho", "rho"),
    "line and paragraph separators": ("sigma\u2028tau\u2029ypsilon", "tau"),
}


@pytest.mark.parametrize("scoring", SCORINGS)
def test_every_odd_character_is_indexed_and_no_document_poisons_another(
    published: Publish, scoring: str
) -> None:
    documents = [Document(name, name, text) for name, (text, _) in ODD_TEXTS.items()]
    documents += [Document(f"plain {n}", "", f"ordinary text{n}") for n in range(20)]
    local = published(documents, analyzer="plain-1", scoring=scoring)
    searcher = local.searcher()

    for name, (text, word) in ODD_TEXTS.items():
        assert ids(proved(searcher.search(word))) == [name], name
        assert searcher.open(name).text == text
    assert len(proved(searcher.search("ordinary", 50)).hits) == 20
    for n in range(20):
        assert ids(proved(searcher.search(f"text{n}"))) == [f"plain {n}"]


def read_all(folder: Path) -> tuple[list[Document], Reading]:
    reading = read_paths(folder)
    return list(reading), reading


def test_files_with_broken_text_are_named_and_counted_and_all_others_found(
    tmp_path: Path, published: Publish
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for n in range(10):
        (folder / f"good{n}.txt").write_text(f"ordinary text{n}", encoding="utf-8")
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    (folder / "ff.txt").write_bytes(b"ordinary \xff\xff words")
    (folder / "nul.txt").write_bytes(b"with a\0nul inside")
    (folder / "bom.txt").write_bytes(b"\xef\xbb\xbfmarked at the start")
    lines = [
        '{"_id": "s", "text": "lone \\ud800 half"}',
        '{"_id": "t", "text": "unbroken \\u0000"}',
    ]
    (folder / "lines.jsonl").write_text("\n".join(lines), encoding="utf-8")

    documents, reading = read_all(folder)
    searcher = published(documents).searcher()

    refused = {(Path(skipped.path).name, skipped.line) for skipped in reading.skipped}
    assert refused == {("latin.txt", None), ("ff.txt", None), ("lines.jsonl", 1)}
    assert reading.n_skipped == 3
    assert all(skipped.reason and "\n" not in skipped.reason for skipped in reading.skipped)
    assert ids(proved(searcher.search("nul"))) == ["nul.txt"]
    assert ids(proved(searcher.search("marked"))) == ["bom.txt"]
    assert ids(proved(searcher.search("unbroken"))) == ["t"]
    for n in range(10):
        assert ids(proved(searcher.search(f"text{n}"))) == [f"good{n}.txt"]


# --- equal texts and ties -------------------------------------------------------------------------


@each_scoring
def test_two_equal_texts_under_two_ids_are_both_found_in_a_stable_order(
    published: Publish, scoring: str
) -> None:
    texts = [Document("z", "", "a wing"), Document("m", "", "a tail"), Document("b", "", "a wing")]

    for order in (texts, texts[::-1]):
        searcher = published(order, scoring=scoring).searcher()
        for _ in range(3):
            result = proved(searcher.search("wing"))
            assert ids(result) == ["b", "z"]
            assert result.hits[0].score == result.hits[1].score


def test_equal_texts_with_different_titles_keep_their_own(published: Publish) -> None:
    documents = [Document("x", "wing", "and tail"), Document("y", "", "wing and tail")]

    hits = proved(published(documents).searcher().search("wing")).hits

    assert [(hit.id, hit.title) for hit in hits] == [("x", "wing"), ("y", "")]


@each_scoring
def test_five_hundred_equal_documents_cost_few_record_fetches(
    published: Publish, scoring: str
) -> None:
    documents = [Document(f"same{n:03}", "", "a wing in a tunnel") for n in range(500)]
    documents += [Document(f"other{n}", "", f"wing number{n}") for n in range(30)]
    searcher = published(documents, scoring=scoring).searcher()

    first = proved(searcher.search("tunnel", 10))
    every = proved(searcher.search("tunnel", 600))

    assert ids(first) == [f"same{n:03}" for n in range(10)]
    assert ids(every) == [f"same{n:03}" for n in range(500)]
    assert first.records_fetched <= 5
    assert every.records_fetched <= 5


#: By their UTF-8 bytes; in UTF-16 the last two would change places.
IDS = ["B", "Z", "a", "aa", "z", "ß", "ä", "é", "漢", "\uff5a", "\U0001f600"]


@each_scoring
def test_ties_are_in_the_order_of_the_ids_bytes(published: Publish, scoring: str) -> None:
    assert sorted(IDS, key=str.encode) == IDS
    # Equal texts share a row; equal scores of different texts lie in different rows.
    equal = [Document(external_id, "", "wing") for external_id in reversed(IDS)]
    different = [
        Document(external_id, "", f"wing unique{n}") for n, external_id in enumerate(IDS[::-1])
    ]

    for documents in (equal, different):
        searcher = published(documents, scoring=scoring).searcher()
        for k in (1, 4, len(IDS), 50):
            result = proved(searcher.search("wing", k))
            assert ids(result) == IDS[:k]
            assert len({hit.score for hit in result.hits}) == 1
