"""Signed queries: a member of a group asks, and nobody learns which (docs/protocol.md, 13.4)."""

from __future__ import annotations

from mksearch.crypto import labels
from mksearch.crypto.kdf import sha256
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey, verify
from mksearch.messages import AnyRequest, ScoreRequest, SelectRequest, Ticket

__all__ = ["TicketSigner", "request_hash", "verify_ticket"]


def request_hash(request: AnyRequest) -> bytes:
    """Return SHA-256 of a request, which answers and tickets are bound to: 32 bytes."""
    if isinstance(request, ScoreRequest):
        named = request.blocks
        return sha256(
            b"score-blocks\0" if named else b"score\0",
            request.query_id,
            request.version.to_bytes(8, "big"),
            request.segment,
            request.level.to_bytes(4, "big"),
            len(request.shares).to_bytes(4, "big"),
            b"".join(number.to_bytes(4, "big") for number in (len(named), *named) if named),
            request.shares.astype("<u2").tobytes(),
        )
    if isinstance(request, SelectRequest):
        return sha256(
            b"select\0",
            request.query_id,
            request.version.to_bytes(8, "big"),
            request.segment,
            len(request.selectors).to_bytes(4, "big"),
            request.selectors.astype("<u2").tobytes(),
        )
    return sha256(
        b"records\0",
        request.query_id,
        request.version.to_bytes(8, "big"),
        request.segment,
        len(request.slots).to_bytes(4, "big"),
        request.slots.astype(">u8").tobytes(),
    )


def _message(server: int, request: AnyRequest, time_s: int) -> bytes:
    return server.to_bytes(4, "big") + request_hash(request) + time_s.to_bytes(8, "big")


class TicketSigner:
    """Signs requests with the key that all members of a group share.

    Attributes:
        public: Ed25519 public key, 32 bytes; the manifest's ``search_key``.
    """

    def __init__(self, search: SecretKey) -> None:
        """Sign with the bundle's search key."""
        self._key = SigningKey(search)
        self.public = self._key.public

    def sign(self, server: int, request: AnyRequest, time_s: int) -> Ticket:
        """Return the ticket of one request to one server at ``time_s``, Unix seconds."""
        return Ticket(time_s, self._key.sign(labels.QUERY, _message(server, request, time_s)))


def verify_ticket(public: bytes, server: int, request: AnyRequest, ticket: Ticket) -> None:
    """Raise VerificationError unless a member of the group signed the request for this server.

    Args:
        public: search key of the group, 32 bytes.
        server: id of this server.
        request: as it came.
        ticket: as it came.
    """
    message = _message(server, request, ticket.time_s)
    verify(public, labels.QUERY, message, ticket.signature, "a query")
