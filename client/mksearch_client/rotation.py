"""Read the documents of a group back from the servers, with the owner's keys."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from mksearch.errors import FormatError
from mksearch.index.catalogue import Lookup
from mksearch.index.manifest import Group, ObjectRef
from mksearch.index.stream import open_stream
from mksearch.index.tombstones import LookupPart
from mksearch.query.group import open_dictionary, open_lookup_parts
from mksearch.query.records import open_document
from mksearch_client.documents import Document
from mksearch_client.fleet import Fleet
from mksearch_client.keys import OwnerKeys

__all__ = ["StoredDocuments"]

#: Documents asked for before they are wanted: waiting for one hides behind the others.
_AHEAD = 64
_THREADS = 8


class StoredDocuments:
    """The documents of one group of one version.

    Attributes:
        stop_words: of the group's analyzer.
    """

    def __init__(self, fleet: Fleet, keys: OwnerKeys, group: Group) -> None:
        """Fetch dictionary and lookup of ``group``.

        Raises:
            NotEnoughAnswers: no server sent them.
            VerificationError: they do not open.
        """
        self._fleet = fleet
        self._collection = keys.collection
        bundle = keys.bundle(group.policy, group.epoch)
        dictionary = open_dictionary(bundle, keys.collection, fleet.fetch(group.dictionary))
        self.stop_words: Sequence[str] = dictionary.stop_words
        self._key_of = partial(Lookup.key_of, bundle.lookup_key())
        parts = tuple(LookupPart(ref.salt, group.lookup) for ref in group.segments)
        if dictionary.format > 1:
            sealed = fleet.fetch(group.lookup)
            parts = open_lookup_parts(bundle, keys.collection, group, dictionary, sealed)
        self._lookups = []
        for part in parts:
            sealed = fleet.fetch(part.part)
            content = open_stream(bundle.section_key("lookup"), "lookup", keys.collection, sealed)
            self._lookups.append((Lookup.decode(bundle, content), part.tombstones.gone))

    def read(self, ids: Sequence[str]) -> Iterator[Document]:
        """Yield documents in the order of ``ids``, some being fetched ahead.

        Raises:
            NotEnoughAnswers: no server sent a document.
            VerificationError: a document does not open, or is not in the lookup.
        """
        with ThreadPoolExecutor(_THREADS, "documents") as pool:
            waiting: deque[Future[Document]] = deque()
            for external_id in ids:
                if len(waiting) >= _AHEAD:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(self._fetch, external_id))
            while waiting:
                yield waiting.popleft().result()

    def _fetch(self, external_id: str) -> Document:
        key = self._key_of(external_id)
        found = (lookup.find(external_id) for lookup, gone in self._lookups if key not in gone)
        entry = next((entry for entry in found if entry is not None), None)
        if entry is None:
            raise FormatError(f"document {external_id!r} of the catalogue is not in the lookup")
        data = self._fleet.fetch(ObjectRef(entry.blob, entry.size))
        stored = open_document(entry.key, self._collection, entry.blob, data)
        return Document(stored.id, stored.title, stored.text)
