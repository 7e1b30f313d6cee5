"""The owner's upkeep of a collection: delete documents, merge segments, say what there is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from mksearch.errors import InputError, MksearchError
from mksearch.index.manifest import Group, SignedManifest
from mksearch_client.fleet import Fleet
from mksearch_client.held import HeldGroup
from mksearch_client.holdings import Holdings, source_of
from mksearch_client.merging import deleted_enough, full_tiers
from mksearch_client.owner_reports import CompactReport, GroupStatus, Merge
from mksearch_client.profile import Profile
from mksearch_client.publication import Progress, Publication
from mksearch_client.publishing import Publisher

__all__ = ["Upkeep"]


class Upkeep(ABC):
    """What an ``Owner`` does besides publishing."""

    profile: Profile
    _fleet: Fleet
    _clock: Callable[[], float]

    @abstractmethod
    def _finish_interrupted(
        self, active: SignedManifest | None, report: Progress
    ) -> tuple[SignedManifest, dict[int, MksearchError | None]] | None: ...

    @abstractmethod
    def _encrypt_anew(
        self, signed: SignedManifest, group: Group, report: Progress
    ) -> SignedManifest: ...

    @abstractmethod
    def _publisher_of(
        self, signed: SignedManifest, group: Group, stop_words: Sequence[str]
    ) -> Publisher: ...

    @abstractmethod
    def _staging(self) -> Path: ...

    @abstractmethod
    def _drop_staged(self) -> None: ...

    @abstractmethod
    def _distribute(
        self, publication: Publication, report: Progress
    ) -> dict[int, MksearchError | None]: ...

    def delete(self, ids: Collection[str], *, progress: Progress | None = None) -> SignedManifest:
        """Delete documents by id, whatever their policies; return the last version.

        They are found no more from this version on; their bytes stay on the servers until
        ``compact``.  Nothing is deleted where one of them does not exist.

        Raises:
            InputError: no id, nothing was published, or there is no such document.
            NotEnoughAnswers: fewer than n - t servers took a version.
            ServerRefused: another publisher was faster.
            ProfileError: another command is publishing with this profile.
        """
        report = progress or (lambda _what, _share: None)
        wanted = set(ids)
        if not wanted:
            raise InputError("no document is named", cure="give the ids that a search showed")
        with self.profile.locked():
            signed = self._newest(report)
            holdings = Holdings.read(self._fleet, self.profile.keys, signed)
            policies = [group.policy for group in signed.manifest.groups]
            there = {name for policy in policies for name in holdings.hashes(policy)}
            missing = sorted(wanted - there)
            if missing:
                raise InputError(
                    f"there is no document {missing[0]!r}"
                    + (f", and {len(missing) - 1} more are not there" if missing[1:] else "")
                    + "; nothing was deleted",
                    cure="use ids that a search showed",
                )
            for policy in policies:
                gone = wanted & holdings.hashes(policy).keys()
                if gone:
                    signed = self._change_held(signed, policy, gone, (), report)
                    holdings = Holdings.read(self._fleet, self.profile.keys, signed)
            return signed

    def compact(
        self,
        *,
        tiered: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> CompactReport:
        """Merge the segments of each group, and erase what was deleted; searches go on.

        A merged segment has a new salt and with it new keys.  May be interrupted and called again:
        groups that are done stay done, and a version that was prepared is sent from its bytes.

        Args:
            tiered: merge only what pays: segments of a size of which there are many, and those
                of which more than a quarter is gone.
            dry_run: only say what would be done.
            progress: told what is being done.

        Raises:
            InputError: nothing was published.
            NotEnoughAnswers: fewer than n - t servers took a version.
            ServerRefused: another publisher was faster.
            StorageError: no room; nothing has changed.
            ProfileError: another command is publishing with this profile.
        """
        report = progress or (lambda _what, _share: None)
        with self.profile.locked():
            signed = self._newest(report, finish=not dry_run)
            holdings = Holdings.read(self._fleet, self.profile.keys, signed)
            merges = []
            for group in signed.manifest.groups:
                chosen, merge = _plan(holdings, group, tiered=tiered)
                if not chosen:
                    continue
                merges.append(merge)
                if not dry_run:
                    signed = self._change_held(signed, group.policy, (), chosen, report)
            return CompactReport(signed.manifest.version, tuple(merges))

    def groups(self, signed: SignedManifest | None) -> tuple[GroupStatus, ...]:
        """Return what a version holds, group by group.

        Raises:
            NotEnoughAnswers: no server sent what is needed.
            VerificationError: it does not open.
        """
        if signed is None:
            return ()
        holdings = Holdings.read(self._fleet, self.profile.keys, signed)
        return tuple(_group_status(holdings, group) for group in signed.manifest.groups)

    def _newest(self, report: Progress, *, finish: bool = True) -> SignedManifest:
        """Return the newest version, after finishing an interrupted one."""
        active = self._fleet.newest_version()
        finished = self._finish_interrupted(active, report) if finish else None
        if finished is not None:
            active, _ = finished
        if active is None:
            raise InputError("nothing was published", cure="run mksearch owner publish")
        return active

    def _change_held(
        self,
        signed: SignedManifest,
        policy: bytes,
        gone: Collection[str],
        merged: Collection[int],
        report: Progress,
    ) -> SignedManifest:
        """Publish a version in which documents of a group are gone or segments are merged."""
        group = _group_of(signed, policy)
        holdings = Holdings.read(self._fleet, self.profile.keys, signed)
        access = signed.manifest.access
        is_old = access is not None and group.epoch < access.epoch
        if policy not in holdings.held or is_old:
            # Of an older release or epoch: all of it is made anew, which merges it as well.
            signed = self._encrypt_anew(signed, group, report)
            if not gone:
                return signed
            holdings = Holdings.read(self._fleet, self.profile.keys, signed)
            group = _group_of(signed, policy)
        held = holdings.held[policy]
        publisher = self._publisher_of(signed, group, held.dictionary.stop_words)
        self._drop_staged()
        publication = publisher.change(
            held.without(gone),
            (),
            self._staging(),
            source=source_of(self._fleet),
            now_s=int(self._clock()),
            previous=signed,
            catalogue=holdings.catalogue,
            merged=merged,
            progress=report,
        )
        self._distribute(publication, report)
        return publication.signed


def _group_of(signed: SignedManifest, policy: bytes) -> Group:
    return next(group for group in signed.manifest.groups if group.policy == policy)


def _plan(holdings: Holdings, group: Group, *, tiered: bool) -> tuple[Sequence[int], Merge]:
    """Return the segments of a group that are merged, and what that costs."""
    held = holdings.held.get(group.policy)
    if held is None:
        sizes = sum(segment.size for segment in group.segments)
        everything = range(len(group.segments))
        return everything, Merge(
            group.policy.decode(), len(everything), group.n_docs, 0, sizes, sizes
        )
    chosen = sorted(_tiered(held) if tiered else _all(held))
    segments = [held.segments[at] for at in chosen]
    read = sum(segment.ref.size for segment in segments)
    written = sum(s.ref.size * s.n_live // max(1, len(s.live)) for s in segments)
    return chosen, Merge(
        group.policy.decode(),
        len(chosen),
        sum(segment.n_live for segment in segments),
        sum(segment.n_gone for segment in segments),
        read,
        written,
    )


def _all(held: HeldGroup) -> Collection[int]:
    n_gone = sum(segment.n_gone for segment in held.segments)
    is_compact = len(held.segments) == 1 and not n_gone
    return () if is_compact else range(len(held.segments))


def _tiered(held: HeldGroup) -> Collection[int]:
    n_live = [segment.n_live for segment in held.segments]
    chosen = set(deleted_enough(n_live, [segment.n_gone for segment in held.segments]))
    others = [at for at in range(len(n_live)) if at not in chosen]
    merged = full_tiers([n_live[at] for at in others], sum(n_live[at] for at in chosen))
    return chosen | {others[at] for at in merged}


def _group_status(holdings: Holdings, group: Group) -> GroupStatus:
    held = holdings.held.get(group.policy)
    _, merge = _plan(holdings, group, tiered=False)
    sizes = sum(segment.size for segment in group.segments)
    deleted = 0 if held is None else sum(segment.n_gone for segment in held.segments)
    loosest = 1.0
    if held is not None:
        loosest = max(n / d for n, d in (segment.facts.kappa for segment in held.segments))
    return GroupStatus(
        group.policy.decode(),
        group.epoch,
        len(group.segments),
        group.n_docs,
        deleted,
        sizes,
        round(max(1.0, loosest), 4),
        max(0, merge.read_bytes - merge.written_bytes),
    )
