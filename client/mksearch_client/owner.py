"""The owner's side over the network: claim servers, publish, look after the collection."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

from mksearch.access.policy import parse_policy
from mksearch.crypto.evidence import Evidence
from mksearch.crypto.randomness import SystemRandom
from mksearch.errors import (
    FormatError,
    InputError,
    MksearchError,
    NotEnoughAnswers,
    ParameterError,
    ServerUnreachable,
    StorageError,
    VerificationError,
)
from mksearch.index.equivocation import EQUIVOCATION_MAGIC, Equivocation
from mksearch.index.manifest import Group, ObjectRef, SignedManifest
from mksearch.index.renewal import latest_renewal
from mksearch.index.server_list import ServerList
from mksearch.params import MANIFEST_LIFE_S, Quorum
from mksearch.scoring.engine import make_engine
from mksearch.text.analyzers import Analyzer, analyzer_for_language, make_analyzer
from mksearch.text.weights import Scoring
from mksearch_client.administration import Administration, load_administration
from mksearch_client.client_files import GivenFiles
from mksearch_client.comparing import Changes, compare
from mksearch_client.connection import GrpcConnection
from mksearch_client.credentials import begin_epoch_if_needed, make_list, require_up_to_date
from mksearch_client.first_pins import Pins
from mksearch_client.fleet import Fleet
from mksearch_client.holdings import Holdings, memory_of, source_of
from mksearch_client.judging import Verdict, judge
from mksearch_client.keys import NO_POLICY
from mksearch_client.owner_reports import PublishReport, ServerStatus
from mksearch_client.profile import Profile, ServerEntry, open_profile
from mksearch_client.publication import Progress, Publication, drop_objects, write_object
from mksearch_client.publishing import Publisher, many_objects, require_administration
from mksearch_client.readback import require_info, require_whole, verify_server
from mksearch_client.reading import Document, Reading, read_paths
from mksearch_client.rotation import StoredDocuments
from mksearch_client.sealing import next_access, seal_groups
from mksearch_client.server_changes import ServerChanges
from mksearch_client.storing import content_hash
from mksearch_client.timestamp import TimestampFile
from mksearch_client.upkeep import Upkeep

__all__ = ["Owner", "PublishReport", "ServerStatus"]

#: How the verdict on a server starts that did not answer.
UNREACHABLE = "unreachable"


class Owner(Upkeep, ServerChanges):
    """An owner with a profile; a context manager that lets go of the servers.

    Attributes:
        profile: keys, servers, memory.
        behind: servers that did not take the last version that was sent.
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
        self._timeout_s = timeout_s
        self._fleet = Fleet(self.profile, timeout_s)
        self.behind: tuple[int, ...] = ()

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
        self._fleet.close()

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
        files: GivenFiles | None = None,
    ) -> Owner:
        """Make a profile and claim servers for a new collection.

        May be called again with the same servers when it was interrupted.

        Args:
            folder: of the profile.
            servers: claim token by HOST:PORT; it carries the TLS key to be pinned, if there is one.
            name: what the owner calls the collection.
            collusion_bound: t, servers that may collude.
            passphrase: seals the keys, or None.
            timeout_s: seconds that one request may take.
            files: authorities and client certificate, for servers that want one.

        Raises:
            ParameterError: too few servers for the bound, or two with one id; or a server on
                another machine whose token carries no TLS key.
            InputError: one of ``files`` is not what it should be.
            ProfileError: the folder holds a profile.
            ServerRefused: a token is wrong.
            TlsRefused: a server is not the one that the token is of.
        """
        quorum = Quorum(len(servers), collusion_bound)
        pins = Pins(folder, servers)
        given = files or GivenFiles()
        given.read()
        random = SystemRandom()
        keys = Profile.create_keys(folder, random, passphrase)
        given.keep(folder)
        pins.save()
        entries: dict[int, ServerEntry] = {}
        for address, token in pins.secrets.items():
            tls = pins.trust(address)
            connection = GrpcConnection(0, address, None, random, timeout_s=timeout_s, tls=tls)
            try:
                server, key = connection.claim(token, keys.signing.public, keys.collection)
            finally:
                connection.close()
            if server in entries:
                raise ParameterError(
                    f"{address} and {entries[server].address} are both server {server}",
                    cure="give every server another id (mksearch-server init --id)",
                )
            entries[server] = ServerEntry(server, address, key, tls)
        if sorted(entries) != list(range(1, quorum.n_servers + 1)):
            raise ParameterError(
                f"the servers have ids {sorted(entries)} (need 1..{quorum.n_servers})",
                cure="number the servers from 1 without gaps",
            )
        profile = Profile(folder, keys, name, quorum, dict(sorted(entries.items())))
        profile.save()
        pins.drop()
        return cls(profile, timeout_s=timeout_s)

    def card(self) -> bytes:
        """Return what a user must have: JSON with collection, owner key, servers, keys, n, t.

        With an administration also its key and the authority, which users enrol with.

        Raises:
            ProfileError: the administration is damaged.
        """
        fields = {"format": 1} | self.profile.public_fields()
        administration = load_administration(self.profile)
        if administration is not None:
            access = administration.access
            fields |= {
                "format": 2,
                "admin_key": access.admin_key.hex(),
                "authority": access.authority.hex(),
            }
        return json.dumps(fields, indent=1).encode() + b"\n"

    # --- publishing ---

    def publish(
        self,
        paths: Sequence[Path],
        *,
        policy: str = "",
        scoring: str | None = None,
        language: str = "auto",
        delete_missing: bool = False,
        vanished: Collection[str] = (),
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> PublishReport:
        """Bring the documents of ``paths`` into the collection's group under ``policy``.

        New ones are added, changed ones replace what has their id, equal ones are left alone, and
        documents that are not named stay.  Groups under other policies stay as they are.  An
        interrupted publish is finished first, from the stored bytes.

        Args:
            paths: files and folders.
            policy: who may search and read them, such as ``role:analyst AND dept:finance``; "" for
                every member.
            scoring: "tfidf" or "bm25"; None for what the group has, or else "tfidf".  Another one
                than the group has makes all of it anew.
            language: "en" or "plain"; "auto" for what the group has, or else "en".
            delete_missing: documents that are published and not in ``paths`` go away.
            vanished: ids of documents that go away where ``paths`` do not have them.
            dry_run: only say what would be done.
            progress: told what is being done.

        Raises:
            InputError: no document, or some are published under another policy.
            PolicyError: the policy does not parse.
            ParameterError: a policy without an administration.
            NotEnoughAnswers: fewer than n - t servers took the version.
            ServerRefused: another publisher was faster.
            ProfileError: another command is publishing with this profile.
        """
        with self.profile.locked(), many_objects():
            return self._publish(
                paths,
                policy=parse_policy(policy).data if policy else NO_POLICY,
                scoring=scoring,
                language=language,
                delete_missing=delete_missing,
                vanished=vanished,
                dry_run=dry_run,
                report=progress or (lambda _what, _share: None),
            )

    def _publish(
        self,
        paths: Sequence[Path],
        *,
        policy: bytes,
        scoring: str | None,
        language: str,
        delete_missing: bool,
        vanished: Collection[str],
        dry_run: bool,
        report: Progress,
    ) -> PublishReport:
        if policy:
            # Before hours of reading.
            require_administration(load_administration(self.profile))
        if language != "auto":
            analyzer_for_language(language)
        if scoring is not None:
            Scoring(scoring)  # type: ignore[arg-type]
        started = time.perf_counter()
        seconds = {"read": 0.0, "index": 0.0, "encrypt": 0.0, "upload": 0.0}
        reading = read_paths(list(paths))
        report("reading", 0.0)
        wanted = {document.id: content_hash(document) for document in reading}
        seconds["read"] = time.perf_counter() - started
        if not wanted:
            reading.require_documents()
        active = self._fleet.newest_version()
        before = active
        results: Mapping[int, MksearchError | None] = {}
        finished = None if dry_run else self._finish_interrupted(active, report)
        if finished is not None:
            active, results = finished
        publisher = self._publisher_for(active, policy, scoring, language, dry_run=dry_run)
        holdings = self._holdings(active, policy, may_be_lost=delete_missing)
        holdings.require_not_elsewhere(policy, wanted)
        changes = compare(holdings.hashes(policy), wanted, vanished, delete_missing=delete_missing)
        is_done = active is not None and not changes.n_changes and publisher.made(active.manifest)
        if is_done or dry_run:
            changed = not is_done or (before is not None and before.hash != active.hash)  # type: ignore[union-attr]
            results = {} if dry_run else results
            return self._report(
                reading, policy, active, seconds, changes, changed=changed, results=results
            )
        started = time.perf_counter()
        publication = self._change(publisher, holdings, policy, reading, changes, report)
        seconds |= publisher.seconds
        seconds["read"] += time.perf_counter() - started - sum(publisher.seconds.values())
        started = time.perf_counter()
        new_bytes = publication.n_bytes
        results = self._distribute(publication, report)
        seconds["upload"] = time.perf_counter() - started
        done = self._report(
            reading, policy, publication.signed, seconds, changes, changed=True, results=results
        )
        return replace(done, new_bytes=new_bytes)

    def _publisher_for(
        self,
        active: SignedManifest | None,
        policy: bytes,
        scoring: str | None,
        language: str,
        *,
        dry_run: bool,
    ) -> Publisher:
        """Return what prepares versions of a group, cut and weighed as wanted or as it was."""
        group = None if active is None else active.manifest.group(policy)
        name = analyzer_for_language("en" if language == "auto" else language)
        weights = Scoring(scoring or "tfidf")  # type: ignore[arg-type]
        if group is not None and language == "auto":
            name = group.analyzer
        if group is not None and scoring is None:
            weights = Scoring(**dict(group.scoring))  # type: ignore[arg-type]
        return self._publisher(active, make_analyzer(name), weights, policy, dry_run=dry_run)

    def _change(
        self,
        publisher: Publisher,
        holdings: Holdings,
        policy: bytes,
        documents: Iterable[Document],
        changes: Changes,
        report: Progress,
    ) -> Publication:
        """Prepare a version in which a group has other documents.

        Args:
            publisher: of the group.
            holdings: what there is.
            policy: of the group.
            documents: among them those that come.
            changes: what comes and goes.
            report: told what is being done.
        """
        self._drop_staged()
        now_s = int(self._clock())
        previous = holdings.signed
        held = holdings.held.get(policy)
        group = None if previous is None else previous.manifest.group(policy)
        named = changes.incoming | changes.unchanged
        staying = holdings.hashes(policy).keys() - named - changes.deleted
        fits = previous is not None and publisher.fits(previous.manifest)
        is_other = not staying and not changes.unchanged
        if previous is not None and held is not None and fits and not is_other:
            return publisher.change(
                held.without(changes.replaced | changes.deleted),
                (document for document in documents if document.id in changes.incoming),
                self._staging(),
                source=source_of(self._fleet),
                now_s=now_s,
                previous=previous,
                catalogue=holdings.catalogue,
                progress=report,
            )
        # Nothing of it stays; or it was cut, weighed or sealed in another way or by an older
        # release: all of it is made anew.
        kept: Iterable[Document] = ()
        if staying and group is not None:
            kept = StoredDocuments(self._fleet, self.profile.keys, group).read(sorted(staying))
        return publisher.prepare(
            chain((document for document in documents if document.id in named), kept),
            self._staging(),
            now_s=now_s,
            previous=previous,
            carried=holdings.carried(policy),
            progress=report,
            may_be_empty=group is not None,
        )

    def _publisher(
        self,
        active: SignedManifest | None,
        analyzer: Analyzer,
        scoring: Scoring,
        policy: bytes,
        *,
        dry_run: bool = False,
    ) -> Publisher:
        administration = self._administration(active, dry_run=dry_run)
        return Publisher(
            self.profile.keys,
            name=self.profile.name,
            quorum=self.profile.quorum,
            random=SystemRandom(),
            analyzer=analyzer,
            scoring=scoring,
            policy=policy,
            administration=administration,
            make_list=self._list_maker(administration),
            memory=memory_of(self.profile),
        )

    def _administration(
        self, active: SignedManifest | None, *, dry_run: bool = False
    ) -> Administration | None:
        """Return the administration that the next version names, in a new epoch if one is due.

        Raises:
            ProfileError: this profile is behind what the servers hold: publishing from it would
                lock members out, or let revoked ones in again.
        """
        administration = load_administration(self.profile)
        if active is not None:
            require_up_to_date(active.manifest, administration)
        if dry_run:
            return administration
        return begin_epoch_if_needed(self.profile, administration, SystemRandom())

    def _list_maker(self, administration: Administration | None) -> Callable[[], bytes]:
        def make() -> bytes:
            if administration is None:
                raise ParameterError("a collection without an administration has no members")
            return make_list(self.profile, administration, int(self._clock()), SystemRandom())

        return make

    def _staging(self) -> Path:
        return self.profile.folder / "publication"

    def _drop_staged(self) -> None:
        """Give up what a server that was away missed; the next version takes its place."""
        if (self._staging() / "manifest").exists():
            Publication.load(self._staging(), self.profile.keys.signing.public).discard()

    def _distribute(
        self, publication: Publication, report: Progress
    ) -> dict[int, MksearchError | None]:
        results = self._fleet.distribute(publication, report)
        self.behind = tuple(server for server, error in results.items() if error is not None)
        return results

    def _write_object(self, data: bytes) -> ObjectRef:
        try:
            (self._staging() / "objects").mkdir(parents=True, exist_ok=True)
            return write_object(self._staging(), data)
        except OSError as error:
            raise StorageError(f"{self._staging()} cannot be written: {error.strerror}") from None

    def _finish_interrupted(
        self, active: SignedManifest | None, report: Progress
    ) -> tuple[SignedManifest, dict[int, MksearchError | None]] | None:
        """Send a publication that was prepared and is not on every server; drop one of no use.

        Returns:
            what every server holds now and what each did, or None without such a publication.
        """
        folder = self._staging()
        if not (folder / "manifest").exists():
            return None
        try:
            publication = Publication.load(folder, self.profile.keys.signing.public)
            if active is not None:
                publication.signed.require_not_older(active)
            require_whole(publication)
        except VerificationError:
            # Damaged, or another process published meanwhile: these bytes will never be served.
            shutil.rmtree(folder, ignore_errors=True)
            return None
        return publication.signed, self._distribute(publication, report)

    def _report(
        self,
        reading: Reading,
        policy: bytes,
        signed: SignedManifest | None,
        seconds: dict[str, float],
        changes: Changes,
        *,
        changed: bool,
        results: Mapping[int, MksearchError | None],
    ) -> PublishReport:
        group = None if signed is None else signed.manifest.group(policy)
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
            columns=0 if group is None else self._fleet.columns(group),
            index_bytes=0 if group is None else sum(s.size for s in group.segments),
            changed=changed,
            added=len(changes.added),
            replaced=len(changes.replaced),
            deleted=len(changes.deleted),
            unchanged=len(changes.unchanged),
            new_bytes=0,
            seconds={name: round(value, 3) for name, value in seconds.items()},
            servers=servers,
        )

    # --- looking after ---

    def _holdings(
        self, signed: SignedManifest | None, policy: bytes, *, may_be_lost: bool
    ) -> Holdings:
        """Return what a version holds; nothing if the servers lost it.

        It may be lost where no group but the one under ``policy`` is in it.
        """
        try:
            return Holdings.read(self._fleet, self.profile.keys, signed)
        except NotEnoughAnswers as error:
            if (
                signed is not None
                and may_be_lost
                and all(group.policy == policy for group in signed.manifest.groups)
            ):
                return Holdings(signed)
            error.cure = "restore the servers, or add --delete-missing to publish all anew"
            raise

    def status(self) -> tuple[SignedManifest | None, list[ServerStatus]]:
        """Return the newest version and what every server says of itself.

        Raises:
            ProfileError: the profile's memory is damaged.
        """
        try:
            newest = self._fleet.newest_version()
        except NotEnoughAnswers:
            newest = self.profile.highest_seen()
        wanted = 0 if newest is None else newest.manifest.version
        statuses = []
        keys = self.profile.keys
        answers = self._fleet.each(
            lambda connection: require_info(
                connection, keys.signing.public, keys.collection, wanted
            )
        )
        for server, answer in answers.items():
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

    def expires_at(self, signed: SignedManifest) -> int:
        """Return until when a version is good, Unix seconds: renewals by its timestamp key count.

        Args:
            signed: the newest version.
        """
        until_s = signed.manifest.expires_at
        if signed.manifest.timestamp_key:
            answers = self._fleet.each(lambda connection: connection.renewal()).values()
            found = (answer for answer in answers if isinstance(answer, bytes))
            renewal = latest_renewal(found, signed, int(self._clock()))
            until_s = max(until_s, 0 if renewal is None else renewal.expires_at)
        return until_s

    def verify(self, progress: Progress | None = None) -> dict[int, str]:
        """Read back every byte of the newest version from every server.

        Returns:
            for each server "ok", "unreachable: .." when it says nothing, or what is wrong with it.

        Raises:
            InputError: nothing was published.
        """
        signed = self._fleet.newest_version()
        if signed is None:
            raise InputError("nothing was published", cure="run mksearch owner publish")
        report = progress or (lambda _what, _share: None)
        found = {}
        for number, (server, connection) in enumerate(self._fleet.connections.items()):
            report(f"verifying server {server}", number / len(self._fleet.connections))
            try:
                found[server] = verify_server(connection, signed)
            except ServerUnreachable as error:
                found[server] = f"{UNREACHABLE}: {error}"
            except MksearchError as error:
                found[server] = str(error)
        return found

    def judge(self, path: Path) -> Verdict:
        """Compute anew what a server should have answered, and say whether it lied.

        Evidence that the owner's key signed two manifests is proved by their signatures.

        Args:
            path: a file of evidence, of this profile or of a user's.

        Raises:
            InputError: it cannot be read.
            FormatError: it is no evidence, or not of a server of this collection.
            VerificationError: the server did not sign it.
            NotEnoughAnswers: no server has the cells any more.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InputError(
                f"{path} cannot be read ({error.strerror})",
                cure="name a file that mksearch owner status lists, or that a user sent",
            ) from None
        try:
            if data.startswith(EQUIVOCATION_MAGIC):
                keys = self.profile.keys
                found = Equivocation.decode(data, keys.signing.public, keys.collection)
                return Verdict(0, found.second.manifest.version, is_lie=True, reason=str(found))
            evidence = Evidence.decode(data)
            evidence.require_signed(self._key_of(evidence, path))
        except VerificationError as error:
            error.cure = error.cure or "get the file again: as it is it proves nothing"
            raise
        order = sorted(self._fleet.connections.items(), key=lambda c: c[0] == evidence.server)
        return judge(evidence, (connection for _, connection in order), make_engine("cpu"))

    def _key_of(self, evidence: Evidence, path: Path) -> bytes:
        """Return the key of the server that evidence is against, or of one that was replaced.

        Raises:
            FormatError: the collection has no such server.
        """
        entry, seen = self.profile.servers.get(evidence.server), self.profile.highest_seen()
        if entry is None:
            raise FormatError(
                f"{path} is of server {evidence.server}, which this collection does not have",
                cure="use the profile of the collection that it is of",
            )
        listed = None if seen is None else seen.manifest.servers
        gone = () if listed is None else listed.retired
        had_place = any((p.id, p.key) == (evidence.server, evidence.server_key) for p in gone)
        return evidence.server_key if had_place else entry.key

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

    def draw_timestamp_key(self, path: Path, *, passphrase: bytes | None = None) -> SignedManifest:
        """Draw a key that may renew, keep it in a new file, and sign a version that names it.

        The file is written before the version leaves this machine.  Where the servers do not take
        it now, the next version that reaches them names the key.

        Args:
            path: new file, mode 0600; holds the key, the servers and what is pinned of them.
            passphrase: seals the file, or None.

        Raises:
            InputError: there is something at ``path``, it cannot be written, or nothing was
                published.
            NotEnoughAnswers: fewer than n - t servers took the version.
            ServerRefused: another publisher was faster.
            ProfileError: another command is publishing with this profile.
        """
        random = SystemRandom()
        file = TimestampFile.draw(self.profile, random)

        def keep() -> bytes:
            file.write(path, passphrase, random)
            return file.key.public

        with self.profile.locked():
            return self._renew(lambda _what, _share: None, keep)

    def revoke_timestamp_key(self) -> SignedManifest:
        """Sign a version that names no timestamp key; see `renew` for what is raised."""
        with self.profile.locked():
            return self._renew(lambda _what, _share: None, lambda: b"")

    def _renew(
        self,
        report: Progress,
        name_key: Callable[[], bytes] | None = None,
        servers: tuple[ServerList, Quorum] | None = None,
    ) -> SignedManifest:
        """Sign the newest version again.

        Args:
            report: told what is being done.
            name_key: gives the timestamp key of the new version, None for that of the one before.
            servers: of the new version, and how many they are; None for those of the one before.
        """
        active = self._fleet.newest_version()
        finished = self._finish_interrupted(active, report)
        if finished is not None:
            active, _ = finished
        if active is None:
            raise InputError("nothing was published", cure="run mksearch owner publish")
        now_s = int(self._clock())
        administration = self._administration(active)
        listed, quorum = servers or (active.manifest.servers, active.manifest.quorum)
        self._drop_staged()
        drop_objects(self._staging())
        groups = seal_groups(
            active.manifest.groups,
            active.manifest,
            administration,
            self.profile.keys,
            SystemRandom(),
            self._write_object,
        )
        manifest = replace(
            active.manifest,
            version=active.manifest.version + 1,
            previous=active.hash,
            created_at=now_s,
            expires_at=now_s + MANIFEST_LIFE_S,
            groups=groups,
            access=next_access(
                administration,
                active.manifest,
                self._list_maker(administration),
                self._write_object,
                quorum.n_servers,
            ),
            timestamp_key=active.manifest.timestamp_key if name_key is None else name_key(),
            quorum=quorum,
            servers=listed,
        )
        signed = SignedManifest.sign(manifest, self.profile.keys.signing)
        self._distribute(Publication.of_manifest(self._staging(), signed), report)
        return signed

    # --- epochs ---

    def rotate(self, *, progress: Progress | None = None) -> SignedManifest:
        """Encrypt every group of an older epoch anew, with all keys new; return the last version.

        The documents come from the servers, opened with the owner's keys.  Searches go on
        meanwhile.  May be interrupted and called again: groups that are done stay done.

        Raises:
            InputError: nothing was published.
            NotEnoughAnswers: fewer than n - t servers took a version.
            ProfileError: another command is publishing with this profile.
        """
        report = progress or (lambda _what, _share: None)
        with self.profile.locked():
            signed = self._renew(report)
            epoch = 1 if signed.manifest.access is None else signed.manifest.access.epoch
            for group in signed.manifest.groups:
                if group.epoch < epoch:
                    signed = self._encrypt_anew(signed, group, report)
            return signed

    def _encrypt_anew(
        self, signed: SignedManifest, group: Group, report: Progress
    ) -> SignedManifest:
        """Encrypt the documents of a group anew, opened with the owner's keys."""
        holdings = Holdings.read(self._fleet, self.profile.keys, signed)
        source = StoredDocuments(self._fleet, self.profile.keys, group)
        publisher = self._publisher_of(signed, group, source.stop_words)
        self._drop_staged()
        publication = publisher.prepare(
            source.read(sorted(holdings.hashes(group.policy))),
            self._staging(),
            now_s=int(self._clock()),
            previous=signed,
            carried=holdings.carried(group.policy),
            progress=report,
            may_be_empty=True,
        )
        self._distribute(publication, report)
        return publication.signed

    def _publisher_of(
        self, signed: SignedManifest, group: Group, stop_words: Sequence[str]
    ) -> Publisher:
        """Return what prepares versions with a group that is there, cut and weighed as it is."""
        return self._publisher(
            signed,
            make_analyzer(group.analyzer, stop_words),
            Scoring(**dict(group.scoring)),  # type: ignore[arg-type]
            group.policy,
        )
