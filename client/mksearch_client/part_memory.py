"""The parts of the catalogue as the owner's profile keeps them: sealed, and ready to be used.

A part comes from the servers compressed and as CBOR, and is proved at length when it is read.  To
add one document to a million nobody wants to do that for the million, so the profile has a copy:
plain arrays, sealed under a key of the owner's that nothing else uses.  It is a memory and no more:
what is not there, damaged or of another release is fetched from the servers again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from mksearch.codec import decode_cbor, encode_cbor, require_map
from mksearch.crypto.randomness import SystemRandom
from mksearch.errors import MksearchError
from mksearch.index.catalogue_part import CataloguePart
from mksearch.index.manifest import ObjectRef
from mksearch.index.rows import Postings
from mksearch.index.stream import open_stream, seal_stream
from mksearch.text.weights import Statistics
from mksearch_client.keys import OwnerKeys
from mksearch_client.profile_folder import write_file

__all__ = ["PartMemory"]

_FORMAT = 1
_HASH_BYTES = 32
_LENGTH_BYTES = 4
_FIELDS: dict[str, type] = {
    "format": int,
    "part": bytes,
    "n_docs": int,
    "total_length": int,
    "sizes": list,
    "tf_bytes": int,
}


class PartMemory:
    """Opened parts of an owner's catalogue, in a folder of the profile."""

    def __init__(self, folder: Path, keys: OwnerKeys) -> None:
        """Use ``folder``, made when something is put there."""
        self._folder = folder
        self._keys = keys

    def get(self, ref: ObjectRef) -> CataloguePart | None:
        """Return a part that was put here, None for one that was not or is not whole."""
        key, collection = self._keys.part_memory_key(), self._keys.collection
        try:
            sealed = (self._folder / ref.id.hex()).read_bytes()
            return _decode(open_stream(key, "catalogue", collection, sealed), ref)
        except (OSError, MksearchError, ValueError):
            return None

    def put(self, ref: ObjectRef, part: CataloguePart) -> None:
        """Keep a part; where there is no room for it, it is read from the servers again."""
        key, collection = self._keys.part_memory_key(), self._keys.collection
        sealed = seal_stream(key, "catalogue", collection, _encode(part, ref), SystemRandom())
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_file(self._folder / ref.id.hex(), sealed)

    def keep_only(self, parts: Iterable[ObjectRef]) -> None:
        """Drop all other parts."""
        kept = {ref.id.hex() for ref in parts}
        with suppress(OSError):
            for path in self._folder.iterdir():
                if path.name not in kept:
                    path.unlink(missing_ok=True)


class _Texts(Sequence[str]):
    """Texts of which most are never looked at: cut when one is wanted first."""

    def __init__(self, n_chars: NDArray[np.uint32], joined: bytes) -> None:
        self._n_chars = n_chars
        self._joined = joined

    @cached_property
    def _cut(self) -> list[str]:
        text = self._joined.decode()
        bounds = accumulate(self._n_chars.tolist(), initial=0)
        return [text[start:stop] for start, stop in pairwise(bounds)]

    def __len__(self) -> int:
        return len(self._n_chars)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        return self._cut[at]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cut)


def _encode(part: CataloguePart, ref: ObjectRef) -> bytes:
    postings, statistics = part.postings, part.statistics
    tfs = postings.tfs.astype(np.min_scalar_type(int(postings.tfs.max(initial=0))))
    columns: list[bytes] = []
    for texts in (part.ids, part.titles, part.snippets):
        columns += [_little([len(text) for text in texts], "<u4"), "".join(texts).encode()]
    columns += [
        b"".join(part.hashes),
        _little(part.rows, "<u4"),
        _little(np.diff(postings.indptr), "<u4"),
        _little(postings.term_ids, "<i4"),
        _little(tfs, f"<u{tfs.itemsize}"),
        _little(postings.lengths, "<i8"),
        _little(statistics.dfs, "<u4"),
    ]
    fields = {
        "format": _FORMAT,
        "part": ref.id,
        "n_docs": statistics.n_docs,
        "total_length": statistics.total_length,
        "sizes": [len(column) for column in columns],
        "tf_bytes": tfs.itemsize,
    }
    head = encode_cbor(fields)
    return b"".join([len(head).to_bytes(_LENGTH_BYTES, "big"), head, *columns])


def _little(values: Sequence[int] | NDArray[np.integer], dtype: str) -> bytes:
    return np.asarray(values, dtype).tobytes()


def _decode(content: bytes, ref: ObjectRef) -> CataloguePart | None:
    """Read what ``_encode`` wrote; the seal says that nobody else did."""
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "big")
    what = "a part that the profile keeps"
    fields = require_map(decode_cbor(content[_LENGTH_BYTES:start], what), _FIELDS, what)
    if fields["format"] != _FORMAT or fields["part"] != ref.id:
        return None
    bounds = pairwise(accumulate(fields["sizes"], initial=start))
    columns = [memoryview(content)[begin:end] for begin, end in bounds]
    ids, titles, snippets = (
        _Texts(np.frombuffer(columns[at], "<u4"), bytes(columns[at + 1])) for at in range(0, 6, 2)
    )
    hashes, rows, sizes, term_ids, tfs, lengths, dfs = columns[6:]
    indptr = np.concatenate([[0], np.cumsum(np.frombuffer(sizes, "<u4"), dtype=np.int64)])
    postings = Postings(
        indptr.astype(np.int64),
        np.frombuffer(term_ids, "<i4").astype(np.int32, copy=False),
        np.frombuffer(tfs, f"<u{fields['tf_bytes']}").astype(np.int32),
        np.frombuffer(lengths, "<i8").astype(np.int64, copy=False),
    )
    joined = bytes(hashes)
    return CataloguePart(
        ids,
        titles,
        snippets,
        [joined[at : at + _HASH_BYTES] for at in range(0, len(joined), _HASH_BYTES)],
        np.frombuffer(rows, "<u4").astype(np.int64),
        postings,
        Statistics(
            fields["n_docs"], fields["total_length"], np.frombuffer(dfs, "<u4").astype(np.int64)
        ),
    )
