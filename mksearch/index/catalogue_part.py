"""What the owner remembers of one segment: enough to change it and to merge it with others.

The owner's catalogue (docs/protocol.md, section 6) names one such part for each segment.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mksearch.codec import decode_cbor, encode_cbor, require_map
from mksearch.errors import FormatError, MksearchError
from mksearch.index.dictionary import inflate
from mksearch.index.record import Member
from mksearch.index.rows import Postings
from mksearch.text.weights import Statistics

__all__ = ["CataloguePart"]

_FORMAT = 1
_HASH_BYTES = 32
#: Compression: most of the time of a stronger one, nearly all of its effect.
_ZLIB_LEVEL = 1
_FIELDS: dict[str, type] = {
    "format": int,
    "ids": list,
    "titles": list,
    "snippets": list,
    "hashes": bytes,
    "rows": bytes,
    "sizes": bytes,
    "term_ids": bytes,
    "tfs": bytes,
    "lengths": bytes,
    "n_docs": int,
    "total_length": int,
    "dfs": bytes,
}


@dataclass(frozen=True, slots=True, eq=False)
class CataloguePart:
    """The documents of one segment, gone ones included.

    Attributes:
        ids: external id of each document, ascending as UTF-8 bytes.
        titles: title of each.
        snippets: snippet of each.
        hashes: SHA-256 of each blob's content, 32 bytes each.
        rows: int64 (n_docs,), row of each document.
        postings: term frequencies of each row.
        statistics: of the group when the segment was built.
    """

    ids: Sequence[str]
    titles: Sequence[str]
    snippets: Sequence[str]
    hashes: Sequence[bytes]
    rows: NDArray[np.int64]
    postings: Postings
    statistics: Statistics

    def member(self, number: int) -> Member:
        """Return a document as results show it."""
        return Member(self.ids[number], self.titles[number], self.snippets[number])

    def encode(self) -> bytes:
        """Return the content of the sealed part."""
        postings, statistics = self.postings, self.statistics
        fields = {
            "format": _FORMAT,
            "ids": list(self.ids),
            "titles": list(self.titles),
            "snippets": list(self.snippets),
            "hashes": b"".join(self.hashes),
            "rows": self.rows.astype("<u4").tobytes(),
            "sizes": np.diff(postings.indptr).astype("<u4").tobytes(),
            "term_ids": postings.term_ids.astype("<u4").tobytes(),
            "tfs": postings.tfs.astype("<u4").tobytes(),
            "lengths": postings.lengths.astype("<u8").tobytes(),
            "n_docs": statistics.n_docs,
            "total_length": statistics.total_length,
            "dfs": statistics.dfs.astype("<u4").tobytes(),
        }
        return zlib.compress(encode_cbor(fields), _ZLIB_LEVEL)

    @classmethod
    def decode(cls, content: bytes) -> CataloguePart:
        """Decode the content of an opened part.

        Raises:
            FormatError: not a part of a catalogue.
        """
        what = "a part of the catalogue"
        fields = require_map(decode_cbor(inflate(content, what), what), _FIELDS, what)
        if fields["format"] != _FORMAT:
            raise FormatError(f"{what} is of format {fields['format']}, not {_FORMAT}")
        texts = [fields[name] for name in ("ids", "titles", "snippets")]
        if any(type(text) is not str for column in texts for text in column):
            raise FormatError(f"{what} holds other than texts")
        hashes = fields["hashes"]
        rows = _numbers(fields["rows"], 4, what)
        if not len(texts[0]) == len(texts[1]) == len(texts[2]) == len(rows):
            raise FormatError(f"{what} holds columns of different lengths")
        if len(hashes) != _HASH_BYTES * len(rows):
            raise FormatError(f"{what} holds {len(hashes)} bytes of hashes")
        if any(a >= b for a, b in pairwise(name.encode() for name in texts[0])):
            raise FormatError(f"{what} does not ascend")
        try:
            postings = _postings(fields, what)
            dfs = _numbers(fields["dfs"], 4, what)
            statistics = Statistics(fields["n_docs"], fields["total_length"], dfs)
        except MksearchError as error:
            raise FormatError(f"{what} is out of range: {error.message}") from None
        if len(rows) and int(rows.max()) >= len(postings):
            raise FormatError(f"{what} names a row that it does not have")
        if len(postings.term_ids) and int(postings.term_ids.max()) >= len(dfs):
            raise FormatError(f"{what} names a term that it does not have")
        starts = range(0, len(hashes), _HASH_BYTES)
        return cls(
            fields["ids"],
            fields["titles"],
            fields["snippets"],
            [hashes[at : at + _HASH_BYTES] for at in starts],
            rows,
            postings,
            statistics,
        )


def _numbers(data: bytes, n_bytes: int, what: str) -> NDArray[np.int64]:
    if len(data) % n_bytes:
        raise FormatError(f"{what} holds {len(data)} bytes of numbers of {n_bytes} bytes")
    return np.frombuffer(data, f"<u{n_bytes}").astype(np.int64)


def _postings(fields: dict[str, bytes], what: str) -> Postings:
    sizes, lengths = _numbers(fields["sizes"], 4, what), _numbers(fields["lengths"], 8, what)
    term_ids, tfs = _numbers(fields["term_ids"], 4, what), _numbers(fields["tfs"], 4, what)
    indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    right = len(sizes) == len(lengths) and indptr[-1] == len(term_ids) == len(tfs)
    if not right or (len(tfs) and not 1 <= int(tfs.min()) <= int(tfs.max()) < 1 << 31):
        raise FormatError(f"{what} holds term frequencies that contradict each other")
    steps = np.diff(term_ids)
    begins = indptr[1:-1]
    steps[begins[(begins > 0) & (begins < len(term_ids))] - 1] = 1
    if (steps < 1).any():
        raise FormatError(f"{what} holds terms that do not ascend")
    return Postings(indptr, term_ids.astype(np.int32), tfs.astype(np.int32), lengths)
