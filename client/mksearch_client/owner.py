"""The owner's side over the network: claim servers, publish, look after the collection."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from mksearch.crypto.kdf import sha256
from mksearch.crypto.randomness import SystemRandom
from mksearch.errors import (
    FormatError,
    InputError,
    MksearchError,
    NotEnoughAnswers,
    ParameterError,
    ServerRefused,
    VerificationError,
)
from mksearch.index.blob_list import BlobList
from mksearch.index.catalogue import CatalogueEntry, decode_catalogue
from mksearch.index.manifest import ObjectRef, SegmentRef, SignedManifest
from mksearch.index.segment import HEADER_BYTES, SegmentChecker, SegmentHeader
from mksearch.index.stream import open_stream
from mksearch.params import MANIFEST_LIFE_S, Quorum
from mksearch.text.analyzers import analyzer_for_language, make_analyzer
from mksearch.text.weights import Scoring
from mksearch_client.connection import GrpcConnection, require_loopback
from mksearch_client.member import connect
from mksearch_client.profile import Profile, ServerEntry, open_profile
from mksearch_client.publication import Progress, Publication, object_path, stage
from mksearch_client.publishing import Publisher, content_hash
from mksearch_client.reading import Reading, Skipped, read_paths

__all__ = ["Owner", "PublishReport", "ServerStatus"]

_T = TypeVar("_T")
_READ_BYTES = 1 << 24
_CARD_FORMAT = 1
#: What a server says to a version that came after another one.
_UNDER_WAY, _STALE = "publication-under-way", "manifest-stale"


@dataclass(frozen=True, slots=True)
class PublishReport:
    """What a publish did.

    Attributes:
        documents: published.
        skipped: what was not read and why.
        version: that is served now.
        segments: of the version.
        columns: of level 0.
        index_bytes: of the segments.
        changed: False when the servers hold exactly these documents already.
        seconds: read, index, encrypt, upload.
        servers: what each server did.
    """

    documents: int
    skipped: tuple[Skipped, ...]
    version: int
    segments: int
    columns: int
    index_bytes: int
    changed: bool
    seconds: dict[str, float]
    servers: tuple[dict[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        fields = asdict(self)
        fields["skipped"] = [
            {"path": skip.path, "reason": skip.reason, "line": skip.line} for skip in self.skipped
        ]
        return fields


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What one server says of itself.

    Attributes:
        id: from 1.
        address: HOST:PORT.
        status: ok, stale, refused, unreachable or lied.
        version: that it serves, 0 for none.
        release: of its software.
        reason: why it is not ok.
    """

    id: int
    address: str
    status: str
    version: int = 0
    release: str = ""
    reason: str = ""


class Owner:
    """An owner with a profile; a context manager that lets go of the servers.

    Attributes:
        profile: keys, servers, memory.
    """

    def __init__(
        self,
        profile: Profile | Path | str | None = None,
        *,
        passphrase_file: Path | None = None,
        timeout_s: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open a profile; nothing is sent yet.

        Args:
            profile: its folder, or the profile itself; None for the default folder.
            passphrase_file: holds the passphrase; None for what the environment names.
            timeout_s: seconds that one request may take.
            clock: Unix seconds.

        Raises:
            ProfileError: there is no profile, it is damaged, or the passphrase is wrong.
        """
        self.profile = open_profile(profile, passphrase_file)
        self._clock = clock
        self._connections = connect(self.profile, timeout_s)
        self._pool = ThreadPoolExecutor(2 * len(self._connections) or 1, "servers")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the servers."""
        for connection in self._connections.values():
            connection.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- setting up ---

    @classmethod
    def create(
        cls,
        folder: Path,
        servers: Mapping[str, str],
        *,
        name: str = "collection",
        collusion_bound: int = 1,
        passphrase: bytes | None = None,
        timeout_s: float = 10.0,
    ) -> Owner:
        """Make a profile and claim servers for a new collection.

        May be called again with the same servers when it was interrupted.

        Args:
            folder: of the profile.
            servers: claim token by HOST:PORT.
            name: what the owner calls the collection.
            collusion_bound: t, servers that may collude.
            passphrase: seals the keys, or None.
            timeout_s: seconds that one request may take.

        Raises:
            ParameterError: too few servers for the bound, or two with one id.
            ProfileError: the folder holds a profile.
            ServerRefused: a token is wrong.
        """
        quorum = Quorum(len(servers), collusion_bound)
        for address in servers:
            require_loopback(address)
        random = SystemRandom()
        keys = Profile.create_keys(folder, random, passphrase)
        entries: dict[int, ServerEntry] = {}
        for address, token in servers.items():
            connection = GrpcConnection(0, address, None, random, timeout_s=timeout_s)
            try:
                server, key = connection.claim(token, keys.signing.public, keys.collection)
            finally:
                connection.close()
            if server in entries:
                raise ParameterError(
                    f"{address} and {entries[server].address} are both server {server}",
                    cure="give every server another id (mksearch-server init --id)",
                )
            entries[server] = ServerEntry(server, address, key)
        if sorted(entries) != list(range(1, quorum.n_servers + 1)):
            raise ParameterError(
                f"the servers have ids {sorted(entries)} (need 1..{quorum.n_servers})",
                cure="number the servers from 1 without gaps",
            )
        profile = Profile(folder, keys, name, quorum, dict(sorted(entries.items())))
        profile.save()
        return cls(profile, timeout_s=timeout_s)

    def card(self) -> bytes:
        """Return what a user must have: JSON with collection, owner key, servers, keys, n, t."""
        profile = self.profile
        fields = {
            "format": _CARD_FORMAT,
            "name": profile.name,
            "collection": profile.keys.collection.hex(),
            "owner_key": profile.keys.signing.public.hex(),
            "n_servers": profile.quorum.n_servers,
            "collusion_bound": profile.quorum.collusion_bound,
            "servers": [
                {"id": server.id, "address": server.address, "key": server.key.hex()}
                for server in profile.servers.values()
            ],
        }
        return json.dumps(fields, indent=1).encode() + b"\n"

    # --- publishing ---

    def publish(
        self,
        paths: Sequence[Path],
        *,
        scoring: str = "tfidf",
        language: str = "en",
        delete_missing: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> PublishReport:
        """Make the documents of ``paths`` the content of the collection.

        Nothing changes when the servers hold exactly these documents.  An interrupted publish is
        finished first, from the stored bytes.

        Args:
            paths: files and folders.
            scoring: "tfidf" or "bm25".
            language: "auto", "en" or "plain".
            delete_missing: documents that are published and not in ``paths`` go away.
            dry_run: only say what would be done.
            progress: told what is being done.

        Raises:
            InputError: no document, or documents would vanish without ``delete_missing``.
            NotEnoughAnswers: fewer than n - t servers took the version.
            ServerRefused: another publisher was faster.
            ProfileError: another command is publishing with this profile.
        """
        with self.profile.locked():
            return self._publish(
                paths,
                scoring=scoring,
                language=language,
                delete_missing=delete_missing,
                dry_run=dry_run,
                report=progress or (lambda _what, _share: None),
            )

    def _publish(
        self,
        paths: Sequence[Path],
        *,
        scoring: str,
        language: str,
        delete_missing: bool,
        dry_run: bool,
        report: Progress,
    ) -> PublishReport:
        analyzer = make_analyzer(analyzer_for_language("en" if language == "auto" else language))
        weights = Scoring(scoring)  # type: ignore[arg-type]
        started = time.perf_counter()
        seconds = {"read": 0.0, "index": 0.0, "encrypt": 0.0, "upload": 0.0}
        reading = read_paths(list(paths))
        report("reading", 0.0)
        wanted = {document.id: content_hash(document) for document in reading}
        seconds["read"] = time.perf_counter() - started
        if not wanted:
            reading.require_documents()
        active = self._active_version()
        active = self._finish_interrupted(active, report, dry_run=dry_run) or active
        if active is not None:
            held = self._held(active, may_be_lost=delete_missing)
            same_kind = _kind(active) == (analyzer.name, scoring)
            if held == wanted and same_kind:
                return self._report(reading, active, seconds, changed=False, results={})
            vanishing = sorted(set(held) - set(wanted))
            if vanishing and not delete_missing:
                raise InputError(
                    f"{len(vanishing)} published documents are not among these, "
                    f"{vanishing[0]!r} for one",
                    cure="name their files as well, or add --delete-missing to drop them",
                )
        if dry_run:
            return self._report(reading, active, seconds, changed=True, results={})
        if (self._staging() / "manifest").exists():
            # A server that was away missed that version; the new one takes its place.
            Publication.load(self._staging(), self.profile.keys.signing.public).discard()
        started = time.perf_counter()
        publisher = Publisher(
            self.profile.keys,
            name=self.profile.name,
            quorum=self.profile.quorum,
            random=SystemRandom(),
            analyzer=analyzer,
            scoring=weights,
        )
        publication = publisher.prepare(
            reading, self._staging(), now_s=int(self._clock()), previous=active, progress=report
        )
        seconds |= publisher.seconds
        seconds["read"] += time.perf_counter() - started - sum(publisher.seconds.values())
        started = time.perf_counter()
        results = self._distribute(publication, report)
        seconds["upload"] = time.perf_counter() - started
        return self._report(reading, publication.signed, seconds, changed=True, results=results)

    def _staging(self) -> Path:
        return self.profile.folder / "publication"

    def _finish_interrupted(
        self, active: SignedManifest | None, report: Progress, *, dry_run: bool
    ) -> SignedManifest | None:
        """Send a publication that was prepared and not served yet; drop one that cannot be."""
        folder = self._staging()
        if dry_run or not (folder / "manifest").exists():
            return None
        try:
            publication = Publication.load(folder, self.profile.keys.signing.public)
            if active is not None:
                publication.signed.require_not_older(active)
            _require_whole(publication)
        except VerificationError:
            # Damaged, or another process published meanwhile: these bytes will never be served.
            shutil.rmtree(folder, ignore_errors=True)
            return None
        self._distribute(publication, report)
        return publication.signed

    def _distribute(
        self, publication: Publication, report: Progress
    ) -> dict[int, MksearchError | None]:
        """Stage on every server, then have all that hold it serve it; n - t must."""
        need = self.profile.quorum.n_servers - self.profile.quorum.collusion_bound
        results: dict[int, MksearchError | None] = {}
        # One after another: two publishers that start together meet at the first server, so one
        # of them gets all.
        for number, (server, connection) in enumerate(self._connections.items()):

            def sending(_what: str, share: float, at: int = number, to: int = server) -> None:
                report(f"sending to server {to}", (at + share) / len(self._connections))

            try:
                stage(publication, connection, sending)
                results[server] = None
            except MksearchError as error:
                _require_not_late(error)
                results[server] = error
        staged = [server for server, error in results.items() if error is None]
        self._require_enough(staged, results, need)
        for server in staged:
            try:
                version = self._connections[server].activate(publication.signed.hash)
                _require_version(version, publication.signed)
            except MksearchError as error:
                results[server] = error
        served = [server for server, error in results.items() if error is None]
        self._require_enough(served, results, need)
        self.profile.remember(publication.signed)
        if len(served) == len(results):
            publication.discard()
        return results

    def _require_enough(
        self, good: list[int], results: Mapping[int, MksearchError | None], need: int
    ) -> None:
        if len(good) >= need:
            return
        reasons = [f"server {s}: {error}" for s, error in results.items() if error is not None]
        raise NotEnoughAnswers(
            f"{len(good)} servers took the version (need {need}): {'; '.join(reasons)}",
            have=len(good),
            need=need,
            cure="publish again when the servers answer; only what is missing is sent",
        )

    def _report(
        self,
        reading: Reading,
        signed: SignedManifest | None,
        seconds: dict[str, float],
        *,
        changed: bool,
        results: Mapping[int, MksearchError | None],
    ) -> PublishReport:
        group = None if signed is None else signed.manifest.groups[0]
        servers = tuple(
            {
                "id": server,
                "address": self.profile.servers[server].address,
                "status": "ok" if error is None else error.code,
                "reason": "" if error is None else str(error),
            }
            for server, error in results.items()
        )
        return PublishReport(
            documents=reading.n_documents,
            skipped=tuple(reading.skipped),
            version=0 if signed is None else signed.manifest.version,
            segments=0 if group is None else len(group.segments),
            columns=0 if signed is None else self._columns(signed),
            index_bytes=0 if group is None else sum(s.size for s in group.segments),
            changed=changed,
            seconds={name: round(value, 3) for name, value in seconds.items()},
            servers=servers,
        )

    # --- looking after ---

    def _each(self, ask: Callable[[GrpcConnection], _T]) -> dict[int, _T | MksearchError]:
        """Ask all servers at once; an error takes the place of the answer."""

        def one(server: int) -> _T | MksearchError:
            try:
                return ask(self._connections[server])
            except MksearchError as error:
                return error

        servers = list(self._connections)
        return dict(zip(servers, self._pool.map(one, servers), strict=True))

    def _active_version(self) -> SignedManifest | None:
        """Return the highest version that t + 1 servers were asked for, None before the first.

        Raises:
            NotEnoughAnswers: fewer than t + 1 servers answered.
            ManifestRefused: servers are behind what this profile has seen.
        """
        keys = self.profile.keys
        n_answers = 0
        newest = self.profile.highest_seen()
        answers = self._each(lambda connection: connection.manifest())
        for answer in answers.values():
            if isinstance(answer, ServerRefused) and answer.detail_code == "storage":
                n_answers += 1
            elif isinstance(answer, bytes):
                try:
                    signed = SignedManifest.decode(answer, keys.signing.public, keys.collection)
                except MksearchError:
                    continue
                n_answers += 1
                if newest is None or signed.manifest.version > newest.manifest.version:
                    newest = signed
        need = self.profile.quorum.threshold
        if n_answers < need:
            reasons = [str(a) for a in answers.values() if isinstance(a, MksearchError)]
            raise NotEnoughAnswers(
                f"{n_answers} servers answered (need {need}): {'; '.join(reasons)}",
                have=n_answers,
                need=need,
                cure="start the servers, or check their addresses",
            )
        return newest

    def _held(self, signed: SignedManifest, *, may_be_lost: bool) -> dict[str, bytes]:
        """Return the content hash of every published document; none if the servers lost them."""
        try:
            return {entry.id: entry.content_hash for entry in self._catalogue(signed)}
        except NotEnoughAnswers as error:
            if may_be_lost:
                return {}
            error.cure = "restore the servers, or add --delete-missing to publish all anew"
            raise

    def _catalogue(self, signed: SignedManifest) -> list[CatalogueEntry]:
        keys = self.profile.keys
        data = self._fetch(signed.manifest.catalogue)
        content = open_stream(keys.catalogue_key(), "catalogue", keys.collection, data)
        return decode_catalogue(content)

    def _columns(self, signed: SignedManifest) -> int:
        """Return the columns of level 0 of the newest segment."""
        ref = signed.manifest.groups[0].segments[-1]
        for connection in self._connections.values():
            try:
                head = SegmentHeader.decode(connection.read_object(ref.id, 0, HEADER_BYTES))
            except MksearchError:
                continue
            if head.id == ref.id:
                return head.layout.levels[0].width
        return 0

    def _fetch(self, ref: ObjectRef) -> bytes:
        """Return an object from any server that sends the right bytes."""
        errors: list[str] = []
        for connection in self._connections.values():
            try:
                data = _read_whole(connection, ref.id, ref.size)
            except MksearchError as error:
                errors.append(str(error))
                continue
            if sha256(data) == ref.id:
                return data
            errors.append(f"server {connection.server} sent other bytes")
        raise NotEnoughAnswers(
            f"no server sent the object {ref.id.hex()[:16]}: {'; '.join(errors)}", have=0, need=1
        )

    def status(self) -> tuple[SignedManifest | None, list[ServerStatus]]:
        """Return the newest version and what every server says of itself.

        Raises:
            ProfileError: the profile's memory is damaged.
        """
        try:
            newest = self._active_version()
        except NotEnoughAnswers:
            newest = self.profile.highest_seen()
        wanted = 0 if newest is None else newest.manifest.version
        statuses = []
        for server, answer in self._each(lambda connection: connection.info()).items():
            address = self.profile.servers[server].address
            if isinstance(answer, MksearchError):
                kind = "lied" if isinstance(answer, VerificationError) else answer.code
                statuses.append(ServerStatus(server, address, kind, reason=str(answer)))
            else:
                stale = answer.version < wanted
                statuses.append(
                    ServerStatus(
                        server,
                        address,
                        "stale" if stale else "ok",
                        answer.version,
                        answer.release,
                        f"the newest version is {wanted}" if stale else "",
                    )
                )
        return newest, statuses

    def verify(self, progress: Progress | None = None) -> dict[int, str]:
        """Read back every byte of the newest version from every server.

        Returns:
            for each server "ok", or what is wrong with it.

        Raises:
            InputError: nothing was published.
        """
        signed = self._active_version()
        if signed is None:
            raise InputError("nothing was published", cure="run mksearch owner publish")
        report = progress or (lambda _what, _share: None)
        found = {}
        for number, (server, connection) in enumerate(self._connections.items()):
            report(f"verifying server {server}", number / len(self._connections))
            try:
                found[server] = _verify_server(connection, signed)
            except MksearchError as error:
                found[server] = str(error)
        return found

    def renew(self) -> SignedManifest:
        """Sign the newest version again with a later expiry; return it.

        Raises:
            InputError: nothing was published.
            NotEnoughAnswers: fewer than n - t servers took it.
            ServerRefused: another publisher was faster.
            ProfileError: another command is publishing with this profile.
        """
        with self.profile.locked():
            return self._renew(lambda _what, _share: None)

    def _renew(self, report: Progress) -> SignedManifest:
        active = self._active_version()
        active = self._finish_interrupted(active, report, dry_run=False) or active
        if active is None:
            raise InputError("nothing was published", cure="run mksearch owner publish")
        now_s = int(self._clock())
        manifest = replace(
            active.manifest,
            version=active.manifest.version + 1,
            previous=active.hash,
            created_at=now_s,
            expires_at=now_s + MANIFEST_LIFE_S,
        )
        signed = SignedManifest.sign(manifest, self.profile.keys.signing)
        self._distribute(Publication.of_manifest(self._staging(), signed), report)
        return signed


def _require_version(version: int, signed: SignedManifest) -> None:
    """Raise FormatError if a server says that it activated another version."""
    if version != signed.manifest.version:
        raise FormatError(f"it activated version {version}, not {signed.manifest.version}")


def _require_not_late(error: MksearchError) -> None:
    """Raise if ``error`` says that another publisher was faster: that one gets all servers."""
    if isinstance(error, ServerRefused) and error.detail_code in (_UNDER_WAY, _STALE):
        raise ServerRefused(
            f"another publisher was faster: {error.message}",
            detail_code=error.detail_code,
            cure=error.cure if error.detail_code == _UNDER_WAY else "publish again",
            server=error.server,
        ) from None


def _require_whole(publication: Publication) -> None:
    """Prove that the disk still holds what was prepared; a renewal has no objects.

    Raises:
        VerificationError: it does not.
    """
    manifest = publication.signed.manifest
    try:
        if not any((publication.folder / "objects").iterdir()):
            return
        for segment in manifest.segments():
            with object_path(publication.folder, segment.id).open("rb") as file:
                checker = SegmentChecker(file.read(HEADER_BYTES), segment.id)
                while piece := file.read(_READ_BYTES):
                    checker.add(piece)
            checker.finish()
        names = [reference.id for reference in manifest.objects()]
        for group in manifest.groups:
            data = object_path(publication.folder, group.blobs.id).read_bytes()
            names += [name for name, _ in BlobList.decode(data).blobs]
        for name in names:
            if sha256(object_path(publication.folder, name).read_bytes()) != name:
                raise FormatError(f"object {name.hex()[:16]} of a publication is damaged")
    except OSError as error:
        raise FormatError(f"a publication is not whole ({error.strerror})") from None


def _kind(signed: SignedManifest) -> tuple[str, str]:
    group = signed.manifest.groups[0]
    return group.analyzer, str(group.scoring["kind"])


def _read_whole(connection: GrpcConnection, name: bytes, size: int) -> bytes:
    return b"".join(
        connection.read_object(name, start, min(_READ_BYTES, size - start))
        for start in range(0, size, _READ_BYTES)
    )


def _verify_segment(connection: GrpcConnection, ref: SegmentRef) -> None:
    """Read a segment back and prove every section; raise VerificationError."""
    checker = SegmentChecker(connection.read_object(ref.id, 0, HEADER_BYTES), ref.id)
    for start in range(HEADER_BYTES, ref.size, _READ_BYTES):
        checker.add(connection.read_object(ref.id, start, min(_READ_BYTES, ref.size - start)))
    checker.finish()


def _verify_server(connection: GrpcConnection, signed: SignedManifest) -> str:
    """Return "ok" or what is wrong with the objects of one server."""
    info = connection.info()
    if info.version != signed.manifest.version:
        return f"serves version {info.version}, not {signed.manifest.version}"
    for segment in signed.manifest.segments():
        _verify_segment(connection, segment)
    names = [(ref.id, ref.size) for ref in signed.manifest.objects()]
    for group in signed.manifest.groups:
        names += BlobList.decode(_read_whole(connection, group.blobs.id, group.blobs.size)).blobs
    for name, size in names:
        if sha256(_read_whole(connection, name, size)) != name:
            return f"object {name.hex()[:16]} is damaged"
    return "ok"
