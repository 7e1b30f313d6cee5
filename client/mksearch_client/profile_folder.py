"""What owners' and users' profiles share: files, locks, and the memory of one collection.

``keys`` holds the secrets, readable by the owner of the folder alone and sealed with a passphrase
if there is one; ``profile.json`` holds what is not secret; ``manifest`` is the highest version
seen; ``cache/`` holds sealed objects as they came; ``parts/`` an owner's own copy of the catalogue,
sealed as well (`part_memory`); ``evidence/`` signed answers that were wrong,
and manifests of which only one can be.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mksearch.codec import ENVELOPE_BYTES, read_envelope, write_envelope
from mksearch.crypto.evidence import Evidence
from mksearch.crypto.kdf import sha256
from mksearch.crypto.passphrase import PassphraseSeal
from mksearch.crypto.randomness import RandomSource
from mksearch.errors import MksearchError, ProfileError, RecordRefused, UnsupportedVersion
from mksearch.index.equivocation import Equivocation
from mksearch.index.manifest import Manifest, SignedManifest
from mksearch.index.server_list import ListedServer
from mksearch.params import Quorum
from mksearch_client.trust import ClientFiles, TlsTrust

__all__ = [
    "USER_KEYS_MAGIC",
    "KeptEquivocation",
    "KeptEvidence",
    "ProfileFolder",
    "SecretFile",
    "ServerEntry",
    "default_profile",
    "not_writable",
    "read_fields",
    "read_passphrase",
    "read_passphrase_in",
    "sync_folder",
    "write_file",
]

_PLAIN, _SEALED = b"\x00", b"\x01"
#: How ``keys`` of a user start; an owner's start otherwise.
USER_KEYS_MAGIC = b"MKUSRSEC"
_EVIDENCE = "*-*-*.evidence"
#: How files of two manifests start, in place of a server's id.
_EQUIVOCATION = "equivocation"
#: Files of evidence against one server, or the owner's key, and bytes of all: more would prove
#: nothing more.
_EVIDENCE_MAX = 8
_EVIDENCE_BYTES_MAX = 1 << 28


def default_profile() -> Path:
    """Return the profile folder of the environment: MKSEARCH_PROFILE or ~/.config/mksearch."""
    named = os.environ.get("MKSEARCH_PROFILE")
    return Path(named) if named else Path.home() / ".config" / "mksearch"


def read_passphrase(path: Path | None) -> bytes | None:
    """Return the passphrase in ``path``, or in the file that MKSEARCH_PASSPHRASE_FILE names.

    Raises:
        ProfileError: the file cannot be read or is empty.
    """
    named = path or os.environ.get("MKSEARCH_PASSPHRASE_FILE")
    return read_passphrase_in(Path(named)) if named else None


def read_passphrase_in(named: Path) -> bytes:
    """Return the passphrase in a file.

    Raises:
        ProfileError: the file cannot be read or is empty.
    """
    try:
        passphrase = named.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise ProfileError(
            f"the passphrase file {named} cannot be read ({error.strerror})",
            cure="check --passphrase-file or MKSEARCH_PASSPHRASE_FILE",
        ) from None
    if not passphrase:
        raise ProfileError(f"the passphrase file {named} is empty", cure="write one into it")
    return passphrase


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """A server as the profile knows it.

    Attributes:
        id: from 1.
        address: HOST:PORT.
        key: pinned Ed25519 public key, 32 bytes.
        tls: pinned TLS key; None for a server on this machine that goes without TLS.
        since: version from which on it has its place.
    """

    id: int
    address: str
    key: bytes
    tls: TlsTrust | None = None
    since: int = 1

    def listed(self) -> ListedServer:
        """Return it as a manifest has it."""
        tls_key = b"" if self.tls is None else self.tls.key
        return ListedServer(self.id, self.address, self.key, tls_key, self.since)

    @classmethod
    def of(cls, listed: ListedServer, files: ClientFiles | None = None) -> ServerEntry:
        """Return the entry of a server that a manifest lists."""
        tls = TlsTrust(listed.tls_key, files) if listed.tls_key else None
        return cls(listed.id, listed.address, listed.key, tls, listed.since)


@dataclass(frozen=True, slots=True)
class KeptEvidence:
    """Evidence in a profile.

    Attributes:
        server: that lied.
        version: of the collection, about which.
        kept_at: Unix seconds.
        path: the file.
    """

    server: int
    version: int
    kept_at: int
    path: str


@dataclass(frozen=True, slots=True)
class KeptEquivocation:
    """Two manifests in a profile that the owner's key signed and of which only one can be.

    Attributes:
        version: of the later one.
        kept_at: Unix seconds.
        path: the file.
    """

    version: int
    kept_at: int
    path: str


def write_file(path: Path, data: bytes) -> None:
    """Replace a file at once, readable by its owner alone."""
    descriptor, partial = tempfile.mkstemp(prefix=".partial-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            os.unlink(partial)
        raise


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` survive a loss of power.

    Raises:
        OSError: it cannot be opened or synced.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def not_writable(folder: Path, error: OSError) -> ProfileError:
    """Return the error of a folder that cannot be written."""
    return ProfileError(
        f"{folder} cannot be written ({error.strerror})",
        cure="make room or check its permissions",
    )


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A file of secrets: sealed with a passphrase if there is one.

    Attributes:
        path: where it is.
        magic: 8 bytes of its kind.
        what: what it holds, for messages.
    """

    path: Path
    magic: bytes
    what: str
    format: int = 1

    def write(self, content: bytes, passphrase: bytes | None, random: RandomSource) -> None:
        """Replace the file at once.

        Raises:
            OSError: it cannot be written.
        """
        head = write_envelope(self.magic, self.format)
        if passphrase is None:
            data = head + _PLAIN + content
        else:
            data = head + _SEALED + PassphraseSeal.seal(passphrase, content, random)
        write_file(self.path, data)

    def is_sealed(self) -> bool:
        """Tell whether it needs a passphrase; a file that cannot be read does not."""
        try:
            return self.path.read_bytes()[ENVELOPE_BYTES : ENVELOPE_BYTES + 1] == _SEALED
        except OSError:
            return False

    def seal(self, passphrase: bytes | None, random: RandomSource) -> None:
        """Seal with a passphrase what was written without one, if there is a passphrase now.

        Raises:
            OSError: it cannot be read or written.
            ProfileError: it is damaged.
        """
        if passphrase is not None and not self.is_sealed():
            self.write(self.read(None), passphrase, random)

    def read(self, passphrase: bytes | None) -> bytes:
        """Return the secret bytes.

        Raises:
            OSError: there is no such file, or it cannot be read.
            ProfileError: it is damaged, or the passphrase is missing or wrong.
        """
        data = self.path.read_bytes()
        try:
            read_envelope(data, self.magic, self.format, self.what)
        except UnsupportedVersion as error:
            raise ProfileError(
                f"{self.path.parent}: {error.message}", cure="upgrade mksearch"
            ) from None
        except MksearchError as error:
            raise self.damaged(error) from None
        kind, content = data[ENVELOPE_BYTES : ENVELOPE_BYTES + 1], data[ENVELOPE_BYTES + 1 :]
        if kind == _PLAIN:
            return content
        if passphrase is None:
            raise ProfileError(
                f"{self.path} is sealed with a passphrase",
                cure="name its file with --passphrase-file or MKSEARCH_PASSPHRASE_FILE",
            )
        try:
            return PassphraseSeal.open(passphrase, content)
        except RecordRefused:
            raise ProfileError(
                f"the passphrase is wrong, or {self.what} are damaged",
                cure="check the passphrase file",
            ) from None
        except MksearchError as error:
            raise self.damaged(error) from None

    def damaged(self, error: MksearchError) -> ProfileError:
        """Return the error of a file whose content is not what it should be."""
        return ProfileError(
            f"{self.what} in {self.path.parent} are damaged: {error.message}",
            cure="restore the file from a backup",
        )


def read_fields(path: Path) -> dict[str, Any]:
    """Return the object in ``profile.json``.

    Raises:
        FileNotFoundError: there is none.
        OSError, ValueError: it cannot be read.
    """
    fields = json.loads(path.read_text())
    if not isinstance(fields, dict):
        raise ValueError("not an object")  # noqa: TRY004 - as any other damage of the file
    return fields


class ProfileFolder:
    """An opened profile: where a collection is, and what was seen of it.

    Attributes:
        folder: where it is.
        collection: 16 bytes.
        owner_key: pinned Ed25519 public key of the owner, 32 bytes.
        name: what the owner calls the collection.
        quorum: number of servers and collusion bound.
        servers: by id.
    """

    def __init__(
        self,
        folder: Path,
        collection: bytes,
        owner_key: bytes,
        name: str,
        quorum: Quorum,
        servers: dict[int, ServerEntry],
    ) -> None:
        self.folder = folder
        self.collection = collection
        self.owner_key = owner_key
        self.name = name
        self.quorum = quorum
        files = ClientFiles(folder)
        self.servers = {
            server: replace(entry, tls=entry.tls and TlsTrust(entry.tls.key, files))
            for server, entry in servers.items()
        }
        self._files = files
        self._followed = 0
        # Damage of the memory is for those who need it.
        with suppress(ProfileError):
            seen = self.highest_seen()
            if seen is not None:
                self.follow(seen.manifest)

    def follow(self, manifest: Manifest) -> bool:
        """Go on with the servers that a version names (15.2.1); tell whether they are others.

        Args:
            manifest: that the owner signed; one that names none, or an earlier one than the last
                that was followed, changes nothing.
        """
        named = manifest.servers
        if named is None or manifest.version < self._followed:
            return False
        self._followed = manifest.version
        entries = {one.id: self._entry(one) for one in named.servers}
        before, self.servers = self.servers, entries
        self.quorum = manifest.quorum
        return entries != before

    def _entry(self, listed: ListedServer) -> ServerEntry:
        """Return a server of a version, at the address where this profile has found it."""
        entry = ServerEntry.of(listed, self._files)
        held = self.servers.get(listed.id)
        if held is not None and (held.key, held.tls) == (entry.key, entry.tls):
            return replace(entry, address=held.address)
        return entry

    def public_fields(self) -> dict[str, Any]:
        """Return what is not secret, as JSON has it."""
        return {
            "name": self.name,
            "collection": self.collection.hex(),
            "owner_key": self.owner_key.hex(),
            "n_servers": self.quorum.n_servers,
            "collusion_bound": self.quorum.collusion_bound,
            "servers": [
                {"id": server.id, "address": server.address, "key": server.key.hex()}
                | ({} if server.tls is None else {"tls_key": server.tls.key.hex()})
                for server in self.servers.values()
            ],
        }

    @staticmethod
    def servers_of(fields: dict[str, Any]) -> dict[int, ServerEntry]:
        """Read the servers of `public_fields`; raise ValueError, KeyError or TypeError."""
        return {
            int(entry["id"]): ServerEntry(
                int(entry["id"]),
                str(entry["address"]),
                bytes.fromhex(entry["key"]),
                TlsTrust.parse(entry["tls_key"]) if "tls_key" in entry else None,
            )
            for entry in fields["servers"]
        }

    @staticmethod
    def quorum_of(fields: dict[str, Any]) -> Quorum:
        """Read the quorum of `public_fields`; raise ValueError, KeyError or ParameterError."""
        return Quorum(int(fields["n_servers"]), int(fields["collusion_bound"]))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands from publishing with this profile while the block runs.

        Raises:
            ProfileError: one is at it, or the folder cannot be written.
        """
        try:
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise not_writable(self.folder, error) from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ProfileError(
                    f"another command is publishing with the profile in {self.folder}",
                    cure="wait until it ends",
                ) from None
            yield
        finally:
            os.close(descriptor)

    # --- memory ---

    def highest_seen(self) -> SignedManifest | None:
        """Return the highest version that this profile has seen, or None.

        Raises:
            ProfileError: the file is damaged; it is what protects from old versions.
        """
        path = self.folder / "manifest"
        if not path.exists():
            return None
        try:
            return SignedManifest.decode(path.read_bytes(), self.owner_key, self.collection)
        except (OSError, MksearchError) as error:
            raise ProfileError(
                f"{path} is damaged ({error})",
                cure="restore it from a backup; deleting it forgets which versions were seen",
            ) from None

    def remember(self, signed: SignedManifest) -> None:
        """Keep ``signed`` as the highest version seen, if it is.

        Raises:
            ProfileError: the folder cannot be written.
        """
        seen = self.highest_seen()
        if seen is None or signed.manifest.version > seen.manifest.version:
            try:
                write_file(self.folder / "manifest", signed.encode())
            except OSError as error:
                raise not_writable(self.folder, error) from None
            self.follow(signed.manifest)

    def cached(self, name: bytes) -> bytes | None:
        """Return a sealed object that was kept, or None; it proves itself by its name."""
        try:
            return (self.folder / "cache" / name.hex()).read_bytes()
        except OSError:
            return None

    def keep(self, name: bytes, data: bytes) -> None:
        """Keep a sealed object; a full disk costs only speed."""
        try:
            (self.folder / "cache").mkdir(exist_ok=True)
            write_file(self.folder / "cache" / name.hex(), data)
        except OSError:
            return

    # --- lies ---

    def keep_evidence(self, evidence: Evidence) -> Path | None:
        """Keep what proves that a server lied; return the file.

        None where enough is kept, or the disk is full: that costs only the proof.
        """
        return self._keep_evidence(
            str(evidence.server), evidence.request.version, evidence.encode()
        )

    def keep_equivocation(self, evidence: Equivocation) -> str:
        """Keep two manifests of which only one can be; return the file, "" where it is not kept."""
        version = evidence.second.manifest.version
        path = self._keep_evidence(_EQUIVOCATION, version, evidence.encode())
        return "" if path is None else str(path)

    def _keep_evidence(self, who: str, version: int, data: bytes) -> Path | None:
        folder = self.folder / "evidence"
        path = folder / f"{who}-{version}-{sha256(data).hex()[:16]}.evidence"
        if path.exists():
            return path
        n_held = sum(1 for _ in folder.glob(f"{who}-*-*.evidence"))
        n_bytes = sum(kept.stat().st_size for kept in folder.glob(_EVIDENCE))
        if n_held >= _EVIDENCE_MAX or n_bytes + len(data) > _EVIDENCE_BYTES_MAX:
            return None
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            write_file(path, data)
        except OSError:
            return None
        return path

    def evidence(self) -> list[KeptEvidence]:
        """Return what is kept, oldest first; its owner may delete it, and all is forgiven."""
        found = [
            KeptEvidence(int(who), version, kept_at, path)
            for who, version, kept_at, path in self._kept()
            if who.isdecimal()
        ]
        return sorted(found, key=lambda kept: (kept.kept_at, kept.path))

    def equivocations(self) -> list[KeptEquivocation]:
        """Return the pairs of manifests that are kept, oldest first."""
        found = [
            KeptEquivocation(version, kept_at, path)
            for who, version, kept_at, path in self._kept()
            if who == _EQUIVOCATION
        ]
        return sorted(found, key=lambda kept: (kept.kept_at, kept.path))

    def _kept(self) -> Iterator[tuple[str, int, int, str]]:
        """Yield against whom, about which version, since when and where, as file names say it."""
        for path in (self.folder / "evidence").glob(_EVIDENCE):
            who, _, rest = path.name.partition("-")
            version = rest.partition("-")[0]
            if version.isdecimal():
                yield who, int(version), int(path.stat().st_mtime), str(path)
