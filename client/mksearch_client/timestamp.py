"""The timestamp key: a file that renews a collection's expiry, and can do nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mksearch.codec import decode_cbor, encode_cbor, require_map
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.errors import (
    CredentialRefused,
    FormatError,
    InputError,
    MksearchError,
    NotEnoughAnswers,
    ServerRefused,
)
from mksearch.index.manifest import SignedManifest
from mksearch.index.renewal import SignedRenewal
from mksearch.params import COLLECTION_BYTES, KEY_BYTES, Quorum
from mksearch_client.asking import Servers
from mksearch_client.connection import GrpcConnection
from mksearch_client.handing_on import hand_on
from mksearch_client.member import connect_to
from mksearch_client.owner_reports import ServerStatus
from mksearch_client.profile_folder import ProfileFolder, SecretFile, ServerEntry
from mksearch_client.trust import ClientFiles, TlsTrust
from mksearch_client.versions import newest_manifest

__all__ = ["Renewed", "TimestampFile", "renew_by_timestamp"]

_MAGIC = b"MKTSTAMP"
_FIELDS: dict[str, type] = {
    "seed": bytes,
    "collection": bytes,
    "owner_key": bytes,
    "n_servers": int,
    "collusion_bound": int,
    "servers": list,
}
#: ``tls`` is the pinned TLS key, b"" for a server that goes without TLS.
_SERVER_FIELDS: dict[str, type] = {"id": int, "address": str, "key": bytes, "tls": bytes}
_LENGTHS = {"seed": KEY_BYTES, "collection": COLLECTION_BYTES, "owner_key": KEY_BYTES}
_WHAT = "the contents of a timestamp file"


@dataclass(frozen=True, slots=True, eq=False)
class TimestampFile:
    """What renews a collection: the timestamp key and where its servers are.

    Attributes:
        seed: of the Ed25519 key; secret.
        collection: 16 bytes.
        owner_key: pinned Ed25519 public key of the owner, 32 bytes.
        quorum: number of servers and collusion bound.
        servers: by id.
    """

    seed: SecretKey
    collection: bytes
    owner_key: bytes
    quorum: Quorum
    servers: Mapping[int, ServerEntry]

    @classmethod
    def draw(cls, profile: ProfileFolder, random: RandomSource) -> TimestampFile:
        """Return a fresh key for the collection of a profile."""
        return cls(
            SecretKey(random.bytes(KEY_BYTES)),
            profile.collection,
            profile.owner_key,
            profile.quorum,
            profile.servers,
        )

    @property
    def key(self) -> SigningKey:
        """The timestamp key."""
        return SigningKey(self.seed)

    def write(self, path: Path, passphrase: bytes | None, random: RandomSource) -> None:
        """Write a new file, readable by its owner alone, sealed if there is a passphrase.

        Raises:
            InputError: there is something at ``path``, or it cannot be written.
        """
        fields = {
            "seed": self.seed.reveal(),
            "collection": self.collection,
            "owner_key": self.owner_key,
            "n_servers": self.quorum.n_servers,
            "collusion_bound": self.quorum.collusion_bound,
            "servers": [
                {
                    "id": server.id,
                    "address": server.address,
                    "key": server.key,
                    "tls": b"" if server.tls is None else server.tls.key,
                }
                for server in self.servers.values()
            ],
        }
        try:
            if path.is_symlink() or path.exists():
                raise InputError(
                    f"{path} is there already, and a key is never written over",
                    cure="name a new file",
                )
            SecretFile(path, _MAGIC, _WHAT).write(encode_cbor(fields), passphrase, random)
        except OSError as error:
            raise InputError(
                f"{path} cannot be written ({error.strerror})", cure="choose another file"
            ) from None

    @classmethod
    def read(cls, path: Path, passphrase: bytes | None) -> TimestampFile:
        """Read a file that `write` made.

        What TLS needs besides pinned keys lies beside it, as in a profile.

        Raises:
            InputError: it cannot be read.
            ProfileError: it is damaged or something else, or the passphrase is missing or wrong.
        """
        file = SecretFile(path, _MAGIC, _WHAT)
        try:
            content = file.read(passphrase)
        except OSError as error:
            raise InputError(
                f"the timestamp file {path} cannot be read ({error.strerror})",
                cure="name the file that mksearch owner timestamp-key wrote",
            ) from None
        try:
            fields = require_map(decode_cbor(content, _WHAT), _FIELDS, _WHAT)
            return cls._of(fields, ClientFiles(path.parent))
        except MksearchError as error:
            raise file.damaged(error) from None

    @classmethod
    def _of(cls, fields: Mapping[str, Any], files: ClientFiles) -> TimestampFile:
        for name, length in _LENGTHS.items():
            if len(fields[name]) != length:
                raise FormatError(f"{name} has {len(fields[name])} bytes (need {length})")
        entries = [require_map(entry, _SERVER_FIELDS, _WHAT) for entry in fields["servers"]]
        return cls(
            SecretKey(fields["seed"]),
            fields["collection"],
            fields["owner_key"],
            Quorum(fields["n_servers"], fields["collusion_bound"]),
            {entry["id"]: _server(entry, files) for entry in entries},
        )


def _server(entry: Mapping[str, Any], files: ClientFiles) -> ServerEntry:
    if len(entry["key"]) != KEY_BYTES or len(entry["tls"]) not in (0, KEY_BYTES):
        raise FormatError("a server has a key of another length")
    tls = TlsTrust(entry["tls"], files) if entry["tls"] else None
    return ServerEntry(entry["id"], entry["address"], entry["key"], tls)


@dataclass(frozen=True, slots=True)
class Renewed:
    """What a renewal did.

    Attributes:
        version: that was renewed.
        expires_at: until when it is good, Unix seconds.
        servers: what each server did.
    """

    version: int
    expires_at: int
    servers: tuple[ServerStatus, ...]


def renew_by_timestamp(
    file: TimestampFile, *, timeout_s: float = 10.0, clock: Callable[[], float] = time.time
) -> Renewed:
    """Renew the newest version with the timestamp key; the owner need not be there.

    Args:
        file: the key and the servers.
        timeout_s: seconds that one request may take.
        clock: Unix seconds.

    Raises:
        NotEnoughAnswers: fewer than t + 1 servers showed a manifest, or fewer than n - t took the
            renewal.
        CredentialRefused: the owner has named another timestamp key since, or none.
        VerificationError: servers show what the owner did not sign.
    """
    connections = {server.id: connect_to(server, timeout_s) for server in file.servers.values()}
    addresses = {server.id: server.address for server in file.servers.values()}
    try:
        with ThreadPoolExecutor(2 * len(connections) or 1, "servers") as pool:
            newest = newest_manifest(
                Servers(connections, addresses, pool, hedge_s=min(1.0, timeout_s / 3)),
                owner_key=file.owner_key,
                collection=file.collection,
                quorum=file.quorum,
                seen=None,
            )
            renewal = _sign(newest, file.key, int(clock()))
            data = renewal.encode()
            for server, entry in _named(file, newest).items():
                if server in connections:
                    connections[server].close()
                connections[server] = connect_to(entry, timeout_s)
                addresses[server] = entry.address
            servers = list(connections)
            results = pool.map(
                lambda server: _hand_over(connections[server], newest, data), servers
            )
            outcomes = dict(zip(servers, results, strict=True))
    finally:
        for connection in connections.values():
            connection.close()
    _require_enough(outcomes, newest.manifest.quorum)
    statuses = tuple(
        ServerStatus(
            server,
            addresses[server],
            "ok" if error is None else error.code,
            newest.manifest.version if error is None else 0,
            reason="" if error is None else str(error),
        )
        for server, error in outcomes.items()
    )
    return Renewed(newest.manifest.version, renewal.expires_at, statuses)


def _named(file: TimestampFile, newest: SignedManifest) -> dict[int, ServerEntry]:
    """Return the servers that the newest version names and the file does not know."""
    listed = newest.manifest.servers
    if listed is None:
        return {}
    files = next((held.tls.files for held in file.servers.values() if held.tls), None)
    entries = {one.id: ServerEntry.of(one, files) for one in listed.servers}
    held = {server: (one.key, one.tls) for server, one in file.servers.items()}
    return {s: one for s, one in entries.items() if held.get(s) != (one.key, one.tls)}


def _sign(newest: SignedManifest, key: SigningKey, now_s: int) -> SignedRenewal:
    if newest.manifest.timestamp_key != key.public:
        named = "another timestamp key" if newest.manifest.timestamp_key else "no timestamp key"
        raise CredentialRefused(
            f"version {newest.manifest.version} names {named}: this one is void",
            cure="ask the owner for a new file (mksearch owner timestamp-key)",
        )
    return SignedRenewal.sign(newest, now_s, key)


def _hand_over(
    connection: GrpcConnection, newest: SignedManifest, data: bytes
) -> MksearchError | None:
    """Hand a renewal to one server, and the version if it lags; return the error it ends with."""
    error = _renew(connection, data)
    if isinstance(error, ServerRefused) and hand_on(connection, newest):
        error = _renew(connection, data)
    return error


def _renew(connection: GrpcConnection, data: bytes) -> MksearchError | None:
    try:
        connection.renew(data)
    except MksearchError as error:
        return error
    return None


def _require_enough(outcomes: Mapping[int, MksearchError | None], quorum: Quorum) -> None:
    have = sum(error is None for error in outcomes.values())
    need = quorum.n_servers - quorum.collusion_bound
    if have < need:
        reasons = [f"server {s}: {error}" for s, error in outcomes.items() if error is not None]
        raise NotEnoughAnswers(
            f"{have} servers took the renewal (need {need}): {'; '.join(reasons)}",
            have=have,
            need=need,
            cure="renew again when the servers answer",
        )
