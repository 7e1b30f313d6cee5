"""The content of a blob: a whole document as it was published."""

from __future__ import annotations

from dataclasses import dataclass

from mksearch.codec import decode_cbor, encode_cbor, require_map

__all__ = ["StoredDocument"]

_FIELDS: dict[str, type] = {"id": str, "title": str, "text": str}


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A whole document as it was published."""

    id: str
    title: str
    text: str

    def encode(self) -> bytes:
        """Return the content of its blob."""
        return encode_cbor({"id": self.id, "title": self.title, "text": self.text})

    @classmethod
    def decode(cls, content: bytes) -> StoredDocument:
        """Decode the content of an opened blob.

        Raises:
            FormatError: it is no document.
        """
        fields = require_map(decode_cbor(content, "a document"), _FIELDS, "a document")
        return cls(fields["id"], fields["title"], fields["text"])
