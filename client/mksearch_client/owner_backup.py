"""What is in a backup of an owner: made of a profile, and made into a profile again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mksearch.access.backup import make_backup, recover_content
from mksearch.access.backup_share import OpenedShare, SealedShare
from mksearch.codec import decode_cbor, encode_cbor, require_map
from mksearch.crypto.randomness import SystemRandom
from mksearch.crypto.user_key import UserKey
from mksearch.errors import (
    FormatError,
    MksearchError,
    OtherTlsKey,
    ParameterError,
    ProfileError,
    VerificationError,
)
from mksearch.index.manifest import SignedManifest
from mksearch_client.administration import (
    read_administration,
    restore_administration,
)
from mksearch_client.connection import GrpcConnection
from mksearch_client.members import Members
from mksearch_client.profile import Profile
from mksearch_client.profile_folder import ProfileFolder, ServerEntry, not_writable, write_file

__all__ = ["back_up", "recover", "servers_at"]

_WHAT = "the content of a backup"
_FIELDS: dict[str, type] = {
    "keys": bytes,
    "administration": bytes,
    "credentials": bytes,
    "manifest": bytes,
    "profile": bytes,
}


@dataclass(frozen=True, slots=True, eq=False)
class _Content:
    """What an owner's profile needs; files that are not there are b"".

    Attributes:
        keys: content of ``keys``, secret.
        administration: content of ``administration``, secret.
        credentials: the file of what was issued.
        manifest: the highest version seen: no recovered profile accepts an older one.
        profile: JSON of what is not secret.
    """

    keys: bytes
    administration: bytes
    credentials: bytes
    manifest: bytes
    profile: bytes

    def encode(self) -> bytes:
        return encode_cbor({name: getattr(self, name) for name in _FIELDS})

    @classmethod
    def decode(cls, data: bytes) -> _Content:
        return cls(**require_map(decode_cbor(data, _WHAT), _FIELDS, _WHAT))

    def __repr__(self) -> str:
        return "_Content(<redacted>)"

    def __reduce__(self) -> str:
        raise TypeError("contents of backups are never pickled")


def back_up(
    profile: Profile, policy: str, user_keys: Mapping[str, UserKey]
) -> tuple[SealedShare, ...]:
    """Share everything that is secret in an owner's profile over people.

    Args:
        profile: the owner's.
        policy: who together may recover it, over ``key:NAME``.
        user_keys: by NAME.

    Returns:
        a share for each name, in the order of the policy.

    Raises:
        PolicyError: the policy does not parse or has another leaf.
        ParameterError: names and user keys do not match.
        ProfileError: the profile is damaged, or another command is changing it.
    """
    with profile.locked():
        seen = profile.highest_seen()
        content = _Content(
            profile.read_keys(),
            read_administration(profile) or b"",
            _credentials(profile.folder),
            b"" if seen is None else seen.encode(),
            json.dumps(profile.public_fields()).encode(),
        )
    return make_backup(
        content.encode(),
        policy,
        user_keys,
        collection=profile.collection,
        signing=profile.keys.signing,
        random=SystemRandom(),
    )


def _credentials(folder: Path) -> bytes:
    # Proves that they can be read before they are kept for years.
    if not Members.load(folder).issued:
        return b""
    try:
        return (folder / "credentials.json").read_bytes()
    except OSError as error:
        raise ProfileError(f"{folder} cannot be read ({error.strerror})") from None


def recover(
    shares: Sequence[OpenedShare],
    folder: Path,
    *,
    passphrase: bytes | None = None,
    servers: Sequence[str] = (),
    timeout_s: float = 10.0,
) -> Profile:
    """Make an owner's profile again, in a new folder, from opened shares of one backup.

    Args:
        shares: of people who together satisfy the policy.
        folder: new.
        passphrase: seals the keys, or None.
        servers: HOST:PORT of servers that moved; each says which one it is, and its pinned key
            stays.
        timeout_s: seconds that one request may take.

    Raises:
        NotQualified: these people do not satisfy the policy.
        VerificationError: the shares are of different backups, changed, or hold something else.
        ParameterError: a share is there twice, or an address is of no server of the collection.
        ProfileError: the folder holds something, or cannot be written.
        ServerUnreachable: a server of ``servers`` does not answer.
    """
    content = _Content.decode(recover_content(shares))
    body = shares[0].body
    fields = _public_fields(content.profile)
    entries, quorum = ProfileFolder.servers_of(fields), ProfileFolder.quorum_of(fields)
    if content.manifest:
        SignedManifest.decode(content.manifest, body.owner_key, body.collection)
    entries = servers_at(entries, servers, timeout_s)
    random = SystemRandom()
    keys = Profile.restore_keys(
        folder,
        content.keys,
        random,
        passphrase,
        collection=body.collection,
        owner_key=body.owner_key,
    )
    profile = Profile(folder, keys, str(fields["name"]), quorum, entries, passphrase=passphrase)
    try:
        if content.administration:
            restore_administration(profile, content.administration, random)
        for name in ("credentials", "manifest"):
            if data := getattr(content, name):
                suffix = ".json" if name == "credentials" else ""
                write_file(folder / f"{name}{suffix}", data)
    except OSError as error:
        raise not_writable(folder, error) from None
    profile.save()
    return profile


def _public_fields(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
        ProfileFolder.servers_of(fields)
        ProfileFolder.quorum_of(fields)
        str(fields["name"])
    except (ValueError, KeyError, TypeError, MksearchError) as error:
        raise FormatError(f"{_WHAT} names no servers ({type(error).__name__})") from None
    return dict(fields)


def servers_at(
    entries: Mapping[int, ServerEntry], addresses: Sequence[str], timeout_s: float
) -> dict[int, ServerEntry]:
    """Return the servers of a profile, those that answer at ``addresses`` with these.

    Args:
        entries: servers by id, with pinned keys.
        addresses: HOST:PORT.
        timeout_s: seconds that a request may take.

    Raises:
        ParameterError: an address cannot be dialled, or two are of one server.
        ServerUnreachable: no server answers there.
        VerificationError: who answers there has none of the pinned keys.
    """
    found: dict[int, str] = {}
    for address in addresses:
        server = _server_at(address, entries, timeout_s)
        if server in found:
            raise ParameterError(
                f"{found[server]} and {address} are both server {server}",
                cure="name every server once",
            )
        found[server] = address
    return {
        server: replace(entry, address=found.get(server, entry.address))
        for server, entry in entries.items()
    }


def _server_at(address: str, entries: Mapping[int, ServerEntry], timeout_s: float) -> int:
    """Return which server answers at an address, proved by its pinned key."""
    random = SystemRandom()
    for server, entry in entries.items():
        connection = GrpcConnection(
            server, address, entry.key, random, timeout_s=timeout_s, tls=entry.tls
        )
        try:
            connection.info()
            return server
        except (VerificationError, OtherTlsKey):
            continue
        finally:
            connection.close()
    raise VerificationError(
        f"who answers at {address} has none of the keys of the collection's servers",
        cure="check --server, or leave it out to keep the addresses of the backup",
    )
