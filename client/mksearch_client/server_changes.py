"""Replace a server of a collection by another one, or add one (docs/protocol.md, section 15)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mksearch.access.keys import VerificationKeys
from mksearch.crypto.randomness import SystemRandom
from mksearch.errors import (
    MksearchError,
    NotEnoughAnswers,
    ParameterError,
    ServerUnreachable,
    TlsRefused,
    VerificationError,
)
from mksearch.index.manifest import SignedManifest
from mksearch.index.server_list import ServerList
from mksearch.params import Quorum
from mksearch_client.administration import load_administration, share_administration
from mksearch_client.connection import ServerInfo
from mksearch_client.fleet import Fleet
from mksearch_client.member import connect_to
from mksearch_client.profile import Profile, ServerEntry
from mksearch_client.publication import Progress, Publication, drop_objects
from mksearch_client.server_card import ServerCard
from mksearch_client.share_care import give_share, refresh_shares
from mksearch_client.trust import ClientFiles

__all__ = ["ServerChange", "ServerChanges"]


@dataclass(frozen=True, slots=True)
class ServerChange:
    """What replacing or adding a server came to.

    Attributes:
        server: the place, from 1.
        address: of the server that has it now.
        version: that names it.
        n_servers: of the collection.
        generation: of the shares of the authority; 0 where servers share none.
        behind: other servers that did not take the version; the next one brings them along.
        warnings: what is still to be done, one sentence each.
    """

    server: int
    address: str
    version: int
    n_servers: int
    generation: int
    behind: tuple[int, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A change that may be made.

    Attributes:
        entry: the new server.
        servers: all of them, by id.
        quorum: of the collection from then on.
        listed: what the next version says of them.
        is_replacing: whether another server has the place now.
    """

    entry: ServerEntry
    servers: Mapping[int, ServerEntry]
    quorum: Quorum
    listed: ServerList
    is_replacing: bool


class ServerChanges(ABC):
    """What an ``Owner`` does when operators come and go."""

    profile: Profile
    behind: tuple[int, ...]
    _fleet: Fleet
    _timeout_s: float

    @abstractmethod
    def _newest(self, report: Progress, *, finish: bool = True) -> SignedManifest: ...

    @abstractmethod
    def _renew(
        self,
        report: Progress,
        name_key: Callable[[], bytes] | None = None,
        servers: tuple[ServerList, Quorum] | None = None,
    ) -> SignedManifest: ...

    @abstractmethod
    def _staging(self) -> Path: ...

    @abstractmethod
    def _drop_staged(self) -> None: ...

    @abstractmethod
    def _distribute(
        self, publication: Publication, report: Progress
    ) -> dict[int, MksearchError | None]: ...

    def replace_server(
        self, server: int, card: ServerCard, *, progress: Progress | None = None
    ) -> ServerChange:
        """Have another server take the place of one whose machine is lost or changes hands.

        It gets the index, the records and the documents from the other servers, and the share of
        the authority that belongs to its place; all shares are refreshed, so that the share of the
        one before is worth nothing.  May be interrupted anywhere and called again.

        Args:
            server: the place.
            card: of the new server, which was made with this id.
            progress: told what is being done.

        Raises:
            ParameterError: there is no such server; the card is of another place, of a server of
                the collection, or of one that was replaced.
            InputError: nothing was published.
            ServerUnreachable: the new server does not answer.
            VerificationError: it is not the one of the card, or another collection's.
            NotEnoughAnswers: too few servers answer; before anything was changed, or the version
                is finished by the next call.
            ServerRefused: the new server does not take the claim.
            ProfileError: another command is publishing with this profile, or it is an old copy.
        """
        return self._change_server(server, card, progress)

    def add_server(self, card: ServerCard, *, progress: Progress | None = None) -> ServerChange:
        """Have one more server join the collection; see `replace_server` for what is raised.

        Args:
            card: of the new server, which was made with the next id.
            progress: told what is being done.
        """
        return self._change_server(None, card, progress)

    def _change_server(
        self, place: int | None, card: ServerCard, progress: Progress | None
    ) -> ServerChange:
        report = progress or (lambda _what, _share: None)
        with self.profile.locked():
            before = self.profile.highest_seen()
            signed = self._newest(report)
            done = self._finished(card, before, signed, report)
            if done is not None:
                return done
            plan = _plan(self.profile, signed, place, card)
            self._preflight(plan, signed)
            self._claim(plan.entry, card)
            report("giving it its share of the authority", 0.0)
            warnings = self._give_share(plan)
            signed = self._renew(report, servers=(plan.listed, plan.quorum))
            return self._changed(plan.entry, signed, warnings)

    def _finished(
        self,
        card: ServerCard,
        before: SignedManifest | None,
        signed: SignedManifest,
        report: Progress,
    ) -> ServerChange | None:
        """Finish a change that was interrupted after its version was signed.

        Returns:
            what came of it; None where there is no such change, or nothing is left of it to do.
        """
        held, manifest = self.profile.servers.get(card.id), signed.manifest
        if manifest.servers is None or held is None or held.key != card.key or held.since == 1:
            return None
        if before is not None and before.hash == signed.hash and self._serves(held, signed):
            return None
        self._drop_staged()
        drop_objects(self._staging())
        self._distribute(Publication.of_manifest(self._staging(), signed), report)
        keys = None if manifest.access is None else manifest.access.verification_keys
        warnings: tuple[str, ...] = ()
        if keys is not None and any(past.id == held.id for past in manifest.servers.retired):
            # Whether it was done before the interruption is written nowhere; twice does no harm.
            warnings = self._refresh(keys, self.profile.servers)
            signed = signed if warnings else self._renew(report)
        return self._changed(held, signed, warnings)

    def _serves(self, held: ServerEntry, signed: SignedManifest) -> bool:
        """Tell whether a server says that it serves a version."""
        try:
            return self._fleet.connections[held.id].info().version >= signed.manifest.version
        except MksearchError:
            return False

    # --- before anything is changed

    def _preflight(self, plan: _Plan, signed: SignedManifest) -> None:
        """Ask the new server who it is, and the others whether they are there.

        Raises:
            ServerUnreachable, VerificationError, ParameterError: see `replace_server`.
            NotEnoughAnswers: too few of the others answer.
        """
        self._require_card(plan.entry)
        stay = [server for server in plan.servers if server != plan.entry.id]
        answers = self._fleet.each(lambda connection: connection.info())
        alive = [s for s in stay if isinstance(answers.get(s), ServerInfo)]
        access = signed.manifest.access
        shared = access is not None and bool(access.verification)
        # The new one is among those that acknowledge the version, and helps nobody to a share.
        need = plan.quorum.n_servers - plan.quorum.collusion_bound - 1
        need = max(need, plan.quorum.threshold) if shared else need
        if len(alive) < need:
            gone = ", ".join(str(server) for server in stay if server not in alive)
            raise NotEnoughAnswers(
                f"{len(alive)} other servers answer (need {need}): servers {gone} do not; "
                "nothing was changed",
                have=len(alive),
                need=need,
                cure="start them, then run the command again",
            )

    def _require_card(self, entry: ServerEntry) -> None:
        """Prove that the server of a card answers, and is nobody else's (refusal 15.3.5)."""
        connection = connect_to(entry, self._timeout_s)
        try:
            info = connection.info()
        except TlsRefused:
            raise
        except ServerUnreachable as error:
            error.cure = error.cure or "have its operator start it"
            error.message = f"the new server does not answer: {error.message}"
            raise
        except VerificationError as error:
            raise VerificationError(
                f"who answers at {entry.address} is not the server of the card ({error.message})",
                cure="ask its operator for a new card, and which address it has",
            ) from None
        finally:
            connection.close()
        if info.server_id != entry.id:
            raise VerificationError(
                f"the server at {entry.address} has id {info.server_id}, and its card {entry.id}",
                cure="ask its operator for a new card",
            )
        if info.collection and info.collection != self.profile.collection:
            raise ParameterError(
                f"the server at {entry.address} belongs to another collection",
                cure="have its operator make a new one with mksearch-server init",
            )

    # --- the change

    def _claim(self, entry: ServerEntry, card: ServerCard) -> None:
        """Pin this collection and its owner on the new server; again changes nothing."""
        connection = connect_to(entry, self._timeout_s)
        keys = self.profile.keys
        try:
            server, key = connection.claim(
                card.claim_token, keys.signing.public, self.profile.collection
            )
        finally:
            connection.close()
        if (server, key) != (entry.id, entry.key):
            raise VerificationError(
                f"the server at {entry.address} is another one than its card says",
                cure="ask its operator for a new card",
            )

    def _give_share(self, plan: _Plan) -> tuple[str, ...]:
        """Give the new server its share, and make that of the one before worth nothing.

        Returns:
            what is still to be done.
        """
        administration = load_administration(self.profile)
        if administration is None or not administration.verification:
            return ()
        used = give_share(
            self.profile,
            administration.parameters,
            plan.servers,
            plan.entry.id,
            SystemRandom(),
            timeout_s=self._timeout_s,
        )
        return self._refresh(used, plan.servers) if plan.is_replacing else ()

    def _refresh(
        self, used: VerificationKeys, servers: Mapping[int, ServerEntry]
    ) -> tuple[str, ...]:
        """Have all servers exchange their shares; return what is still to be done."""
        administration = load_administration(self.profile)
        if administration is None:
            return ()
        random, fresh = SystemRandom(), used
        warnings: tuple[str, ...] = ()
        try:
            fresh = refresh_shares(
                self.profile,
                administration.parameters,
                used,
                random,
                timeout_s=self._timeout_s,
                servers=servers,
            )
        except NotEnoughAnswers as error:
            # With ``used``: a refresh that was begun earlier may have been for another server.
            text = (
                "the server before still holds a share of the authority that counts, for the "
                f"shares were not refreshed ({error.message}): run mksearch owner rotate "
                "--authority when all servers are up"
            )
            warnings = (text,)
        if administration.verification != fresh.encode():
            share_administration(self.profile, fresh, random)
        return warnings

    def _changed(
        self, entry: ServerEntry, signed: SignedManifest, warnings: tuple[str, ...]
    ) -> ServerChange:
        """Say what was done.

        Raises:
            NotEnoughAnswers: the new server itself did not take the version.
        """
        if entry.id in self.behind:
            raise NotEnoughAnswers(
                f"version {signed.manifest.version} names server {entry.id} at {entry.address}, "
                "and it did not take all of it",
                have=0,
                need=1,
                cure="run the command again when it answers; only what is missing is sent",
            )
        self.profile.save()
        access = signed.manifest.access
        keys = None if access is None else access.verification_keys
        return ServerChange(
            entry.id,
            entry.address,
            signed.manifest.version,
            signed.manifest.quorum.n_servers,
            0 if keys is None else keys.generation,
            self.behind,
            warnings,
        )


def _plan(profile: Profile, signed: SignedManifest, place: int | None, card: ServerCard) -> _Plan:
    """Return the change that a card is for (refusals 15.3.2 to 15.3.4).

    Raises:
        ParameterError: it cannot be made.
    """
    manifest, servers = signed.manifest, profile.servers
    n_servers = manifest.quorum.n_servers
    listed = manifest.servers
    if listed is None:
        listed = ServerList(tuple(servers[server].listed() for server in sorted(servers)))
    _require_new(listed, card, replaced=place)
    if place is not None and not 1 <= place <= n_servers:
        raise ParameterError(
            f"there is no server {place} among {n_servers}",
            cure="mksearch owner status lists them; one more is added by mksearch owner add-server",
        )
    if place not in (None, card.id):
        raise ParameterError(
            f"the card is of a server made with id {card.id}, not {place}",
            cure=f"have its operator make one with mksearch-server init --id {place}",
        )
    if place is None and card.id != n_servers + 1:
        raise ParameterError(
            f"the card is of a server made with id {card.id}, and the next place is "
            f"{n_servers + 1}",
            cure=f"have its operator make one with mksearch-server init --id {n_servers + 1}"
            + ("; or mean mksearch owner replace-server" if card.id <= n_servers else ""),
        )
    entry = card.entry(manifest.version + 1, ClientFiles(profile.folder))
    quorum = Quorum(max(n_servers, card.id), manifest.quorum.collusion_bound)
    after = {server: replace(one) for server, one in servers.items()} | {card.id: entry}
    changed = listed.changed(entry.listed())
    return _Plan(entry, dict(sorted(after.items())), quorum, changed, place is not None)


def _require_new(listed: ServerList, card: ServerCard, *, replaced: int | None) -> None:
    """Raise ParameterError if the card's server is in the collection, or was."""
    for held in listed.servers:
        if held.key == card.key:
            raise ParameterError(
                f"the card is of server {held.id}, which the collection has already",
                cure="name the card of a new server; a server that moved stays the same server",
            )
        if held.address == card.address and held.id != replaced:
            raise ParameterError(
                f"{card.address} is the address of server {held.id}",
                cure="ask the operator which address the new server has",
            )
    for past in listed.retired:
        if past.key == card.key:
            raise ParameterError(
                f"the card is of a server that was replaced in version {past.until} and does not "
                "come back",
                cure="have its operator make a new one with mksearch-server init",
            )
