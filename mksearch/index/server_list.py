"""The servers that a manifest names, once one was replaced or added (docs/protocol.md, 15.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mksearch.codec import require_map
from mksearch.errors import FormatError, ManifestStale
from mksearch.params import KEY_BYTES, N_RETIRED_MAX

__all__ = ["ListedServer", "RetiredServer", "ServerList"]

_WHAT = "the servers of a manifest"
_SERVER_FIELDS: dict[str, type] = {
    "id": int,
    "address": str,
    "key": bytes,
    "tls_key": bytes,
    "since": int,
}
_RETIRED_FIELDS: dict[str, type] = {"id": int, "key": bytes, "until": int}
_ADDRESS_CHARS_MAX = 255


@dataclass(frozen=True, slots=True)
class ListedServer:
    """A server of the collection.

    Attributes:
        id: its place, from 1: the evaluation point of its shares.
        address: HOST:PORT.
        key: Ed25519 public key that signs its answers, 32 bytes.
        tls_key: fingerprint of its TLS key, 32 bytes; b"" without TLS.
        since: version from which on it has its place.
    """

    id: int
    address: str
    key: bytes
    tls_key: bytes
    since: int

    def to_fields(self) -> dict[str, Any]:
        """Return the map of the manifest."""
        return {
            "id": self.id,
            "address": self.address,
            "key": self.key,
            "tls_key": self.tls_key,
            "since": self.since,
        }


@dataclass(frozen=True, slots=True)
class RetiredServer:
    """A server that had a place and was replaced.

    Attributes:
        id: the place.
        key: that signed its answers, 32 bytes; never taken again.
        until: version in which another one has the place.
    """

    id: int
    key: bytes
    until: int

    def to_fields(self) -> dict[str, Any]:
        """Return the map of the manifest."""
        return {"id": self.id, "key": self.key, "until": self.until}


@dataclass(frozen=True, slots=True)
class ServerList:
    """Where the servers are, what they are known by, and which were replaced.

    Attributes:
        servers: of places 1..n, in this order.
        retired: in the order in which they were replaced.
    """

    servers: tuple[ListedServer, ...]
    retired: tuple[RetiredServer, ...] = ()

    def of(self, server: int) -> ListedServer | None:
        """Return the server of a place, None where there is no such place."""
        return self.servers[server - 1] if 1 <= server <= len(self.servers) else None

    def changed(self, server: ListedServer) -> ServerList:
        """Return the list with ``server`` in the place that it names, an old or the next one.

        Args:
            server: its ``since`` is the version that this is for.
        """
        before = self.of(server.id)
        if before is None:
            return ServerList((*self.servers, server), self.retired)
        servers = tuple(server if one.id == server.id else one for one in self.servers)
        gone = RetiredServer(before.id, before.key, server.since)
        return ServerList(servers, (*self.retired, gone))

    def to_fields(self) -> dict[str, Any]:
        """Return the two fields of the manifest."""
        return {
            "servers": [server.to_fields() for server in self.servers],
            "retired": [server.to_fields() for server in self.retired],
        }

    @classmethod
    def from_fields(
        cls, servers: Sequence[object], retired: Sequence[object], n_servers: int, version: int
    ) -> ServerList:
        """Read the fields of a manifest (refusal 15.1.2).

        Args:
            servers: as they came.
            retired: as they came.
            n_servers: of the manifest.
            version: of the manifest.

        Raises:
            FormatError: they are not of this shape or out of range.
        """
        listed = [ListedServer(**require_map(entry, _SERVER_FIELDS, _WHAT)) for entry in servers]
        gone = [RetiredServer(**require_map(entry, _RETIRED_FIELDS, _WHAT)) for entry in retired]
        if [server.id for server in listed] != list(range(1, n_servers + 1)):
            raise FormatError(f"{_WHAT} are not numbered 1..{n_servers}")
        for server in listed:
            _require_reachable(server)
            if not 1 <= server.since <= version:
                raise FormatError(f"{_WHAT} of version {version} begin with {server.since}")
        if len(gone) > N_RETIRED_MAX:
            raise FormatError(f"{_WHAT}: {len(gone)} were replaced (at most {N_RETIRED_MAX})")
        for past in gone:
            if not 1 <= past.id <= n_servers or not 2 <= past.until <= version:
                raise FormatError(f"{_WHAT}: one that was replaced had no place in it")
        keys = [server.key for server in listed] + [past.key for past in gone]
        if any(len(key) != KEY_BYTES for key in keys) or len(set(keys)) != len(keys):
            raise FormatError(f"{_WHAT} have a key of another length, or one twice")
        return cls(tuple(listed), tuple(gone))

    def require_follows(self, before: ServerList, version: int) -> None:
        """Prove that this list may come after another one (refusal 15.1.3).

        Args:
            before: of an earlier version.
            version: that one's number.

        Raises:
            ManifestStale: it may not.
        """
        gone = {one.key: one for one in self.retired}
        if any(gone.get(one.key) != one for one in before.retired):
            raise ManifestStale("a manifest forgets which servers were replaced", cure=_CURE)
        for held in before.servers:
            now = self.of(held.id)
            if now is None:
                raise ManifestStale(f"a manifest drops server {held.id}", cure=_CURE)
            past = gone.get(held.key)
            if now.key != held.key and (past is None or past.until <= version):
                raise ManifestStale(
                    f"a manifest has another server {held.id} and does not say that the one before "
                    "was replaced",
                    cure=_CURE,
                )


_CURE = "the owner published from an old profile; ask the owner"


def _require_reachable(server: ListedServer) -> None:
    """Raise FormatError if the address or the TLS key cannot be one."""
    address = server.address
    is_plain = address.isascii() and address.isprintable() and " " not in address
    if not 1 <= len(address) <= _ADDRESS_CHARS_MAX or not is_plain or ":" not in address:
        raise FormatError(f"{_WHAT}: the address of server {server.id} is none")
    if len(server.tls_key) not in (0, KEY_BYTES):
        raise FormatError(f"{_WHAT}: the TLS key of server {server.id} has another length")
