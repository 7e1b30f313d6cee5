"""The dictionary: what a client must know of a policy group to ask it (protocol, section 6)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mksearch.codec import decode_cbor, decode_varints, encode_cbor, encode_varint, require_map
from mksearch.errors import FormatError
from mksearch.index.manifest import require_scoring
from mksearch.params import SALT_BYTES

__all__ = ["RATIO_ONE", "Dictionary", "SegmentFacts", "inflate"]

#: 1 for a group of one segment as it was built, 2 for everything else.
_FORMATS = (1, 2)
#: A ratio of 1.
RATIO_ONE = 1 << 16
_FIELDS: dict[str, type] = {
    "format": int,
    "analyzer": str,
    "stop_words": list,
    "scoring": dict,
    "n_docs": int,
    "total_length": int,
    "terms": bytes,
    "dfs": bytes,
    "n_dedicated": list,
    "segments": list,
}
_CHANGED_FIELDS: dict[str, type] = {"ratios": bytes}
_SEGMENT_FIELDS: dict[str, type] = {"salt": bytes, "step": int, "kappa": list}
#: Largest dictionary or catalogue after inflation.
_INFLATED_BYTES_MAX = 1 << 31


def inflate(data: bytes, what: str) -> bytes:
    """Undo zlib on authenticated bytes.

    Raises:
        FormatError: not one whole zlib stream, or larger than any real one.
    """
    engine = zlib.decompressobj()
    try:
        content = engine.decompress(data, _INFLATED_BYTES_MAX)
    except zlib.error:
        raise FormatError(f"{what} does not inflate") from None
    if not engine.eof or engine.unused_data:
        raise FormatError(f"{what} is not one zlib stream of reasonable size")
    return content


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What only members may know of a segment.

    Attributes:
        salt: 32 bytes, names the build.
        step: weight units (2**-30) of one impact.
        kappa: (numerator, denominator): bounds of the segment are multiplied by it.
    """

    salt: bytes
    step: int
    kappa: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class Dictionary:
    """Terms, document frequencies and sizes of the live documents of a policy group.

    Attributes:
        analyzer: name and version of the analyzer.
        stop_words: its stop words, ascending.
        scoring: {"kind", "k1", "b"}.
        n_docs: live documents.
        total_length: their tokens.
        terms: term of each id.
        dfs: int64 (n_terms,), document frequency of each term; 0 where every document that had
            it is gone.
        n_dedicated: dedicated terms of each level.
        segments: facts of each segment.
        ratios: int64 (n_terms,), for each term the largest ratio of its idf of today to the one
            that a segment was built with, in units of 1 / ``RATIO_ONE``, 1..2**32 - 1; None for a
            group of one segment as it was built (format 1).
    """

    analyzer: str
    stop_words: tuple[str, ...]
    scoring: Mapping[str, str | float]
    n_docs: int
    total_length: int
    terms: tuple[str, ...]
    dfs: NDArray[np.int64]
    n_dedicated: tuple[int, ...]
    segments: tuple[SegmentFacts, ...]
    ratios: NDArray[np.int64] | None = None

    @property
    def format(self) -> int:
        """Format of the content."""
        return 1 if self.ratios is None else 2

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """Id of each term."""
        return {term: number for number, term in enumerate(self.terms)}

    def id_of(self, term: str) -> int | None:
        """Return the id of a term that a live document has, else None."""
        number = self.ids.get(term)
        return None if number is None or not self.dfs[number] else number

    def ratio(self, term_id: int) -> int:
        """Return the ratio of a term, in units of 1 / ``RATIO_ONE``."""
        return RATIO_ONE if self.ratios is None else int(self.ratios[term_id])

    def facts(self, salt: bytes) -> SegmentFacts:
        """Return the facts of the segment built under ``salt``.

        Raises:
            FormatError: the dictionary does not know it.
        """
        for facts in self.segments:
            if facts.salt == salt:
                return facts
        raise FormatError("the dictionary does not describe a segment that the manifest lists")

    def encode(self) -> bytes:
        """Return the content of the sealed dictionary."""
        changed = {} if self.ratios is None else {"ratios": self.ratios.astype("<u4").tobytes()}
        return zlib.compress(
            encode_cbor(
                changed
                | {
                    "format": self.format,
                    "analyzer": self.analyzer,
                    "stop_words": list(self.stop_words),
                    "scoring": dict(self.scoring),
                    "n_docs": self.n_docs,
                    "total_length": self.total_length,
                    "terms": "\n".join(self.terms).encode(),
                    "dfs": _varints(self.dfs.tolist()),
                    "n_dedicated": list(self.n_dedicated),
                    "segments": [
                        {"salt": s.salt, "step": s.step, "kappa": list(s.kappa)}
                        for s in self.segments
                    ],
                }
            )
        )

    @classmethod
    def decode(cls, content: bytes) -> Dictionary:
        """Decode the content of an opened dictionary.

        Raises:
            FormatError: not a dictionary.
        """
        what = "the dictionary"
        value = decode_cbor(inflate(content, what), what)
        is_changed = isinstance(value, dict) and "ratios" in value
        fields = require_map(value, _FIELDS | (_CHANGED_FIELDS if is_changed else {}), what)
        if fields["format"] not in _FORMATS or (fields["format"] == 2) != is_changed:
            raise FormatError(f"{what} is of format {fields['format']} and not of its fields")
        terms = _split_terms(fields["terms"])
        dfs = decode_varints(fields["dfs"], len(terms), what)
        _require_all(fields["stop_words"], str)
        _require_ascending([word.encode() for word in fields["stop_words"]])
        _require_dfs(terms, dfs, fields["n_docs"], least=0 if is_changed else 1)
        ratios = _decode_ratios(fields["ratios"], len(terms)) if is_changed else None
        segments = tuple(_decode_facts(entry, is_changed) for entry in fields["segments"])
        _require_segments(segments, fields["format"])
        _require_all(fields["n_dedicated"], int)
        return cls(
            fields["analyzer"],
            tuple(fields["stop_words"]),
            require_scoring(fields["scoring"], what),
            fields["n_docs"],
            fields["total_length"],
            terms,
            dfs,
            tuple(fields["n_dedicated"]),
            segments,
            ratios,
        )


def _varints(values: list[int]) -> bytes:
    # Most terms share a few frequencies.
    encoded = {value: encode_varint(value) for value in set(values)}
    return b"".join([encoded[value] for value in values])


def _decode_ratios(data: bytes, n_terms: int) -> NDArray[np.int64]:
    if len(data) != 4 * n_terms:
        raise FormatError(f"the dictionary holds {len(data)} bytes of ratios for {n_terms} terms")
    ratios = np.frombuffer(data, "<u4").astype(np.int64)
    if len(ratios) and not ratios.min():
        raise FormatError("the dictionary holds a ratio of 0")
    return ratios


def _require_segments(segments: Sequence[SegmentFacts], file_format: int) -> None:
    if not segments or (file_format == 1 and len(segments) != 1):
        raise FormatError(
            f"the dictionary of format {file_format} describes {len(segments)} segments"
        )
    if len({facts.salt for facts in segments}) != len(segments):
        raise FormatError("the dictionary describes a segment twice")


def _split_terms(data: bytes) -> tuple[str, ...]:
    try:
        return tuple(data.decode().split("\n")) if data else ()
    except UnicodeDecodeError:
        raise FormatError("the dictionary holds a term that is not UTF-8") from None


def _require_all(values: Sequence[Any], kind: type) -> None:
    if not all(type(value) is kind for value in values) or (
        kind is int and not all(0 <= value < 1 << 64 for value in values)
    ):
        raise FormatError(f"the dictionary holds a list with other than {kind.__name__} in range")


def _require_ascending(values: Sequence[bytes]) -> None:
    if any(a >= b for a, b in pairwise(values)):
        raise FormatError("the dictionary holds stop words that do not ascend")


def _require_dfs(terms: Sequence[str], dfs: NDArray[np.int64], n_docs: int, least: int) -> None:
    if len(set(terms)) != len(terms) or "" in terms:
        raise FormatError("the dictionary holds a term twice, or an empty one")
    if len(dfs) and not least <= int(dfs.min()) <= int(dfs.max()) <= n_docs:
        raise FormatError(f"the dictionary holds a document frequency not in {least}..{n_docs}")


def _decode_facts(entry: object, is_changed: bool) -> SegmentFacts:
    fields = require_map(entry, _SEGMENT_FIELDS, "segment facts")
    kappa = fields["kappa"]
    if (
        len(fields["salt"]) != SALT_BYTES
        or fields["step"] < 1
        or len(kappa) != 2
        or any(type(part) is not int or not 1 <= part < 1 << 64 for part in kappa)
        or (kappa != [1, 1] and not is_changed)
    ):
        raise FormatError("segment facts are out of range")
    return SegmentFacts(fields["salt"], fields["step"], (kappa[0], kappa[1]))
