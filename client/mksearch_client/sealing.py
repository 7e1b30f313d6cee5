"""Seal the bundles of groups for the members of a collection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mksearch.access.refresh import keys_for
from mksearch.access.sealed_bundle import seal_bundle
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.signature import SigningKey
from mksearch.index.manifest import Access, Group, Manifest, ObjectRef
from mksearch_client.administration import Administration
from mksearch_client.keys import OwnerKeys

__all__ = ["is_sealed_for", "next_access", "seal_groups"]


def is_sealed_for(manifest: Manifest, administration: Administration | None) -> bool:
    """Tell whether a version names this administration and its groups are sealed under it."""
    if administration is None:
        return manifest.access is None
    access = _with_keys_for(administration.access, manifest.quorum.n_servers)
    return access.has_keys_of(manifest.access)


def next_access(
    administration: Administration | None,
    previous: Manifest | None,
    make_list: Callable[[], bytes],
    write: Callable[[bytes], ObjectRef],
    n_servers: int,
) -> Access | None:
    """Return what the next version says of the administration.

    Args:
        administration: of the collection, None for none.
        previous: the version before, None for the first.
        make_list: makes the credentials of all members, when an epoch begins.
        write: keeps an object.
        n_servers: that the version has.
    """
    if administration is None:
        return None
    access = administration.access
    before = None if previous is None else previous.access
    if before is not None:
        access = _with_newest_keys(access, before)
    access = _with_keys_for(access, n_servers)
    if before is None:
        return access
    if before.epoch == access.epoch and before.authority == access.authority:
        return replace(access, credentials=before.credentials)
    return replace(access, credentials=write(make_list()))


def _with_newest_keys(access: Access, before: Access) -> Access:
    """Return ``access`` with the verification keys of the later share generation (13.6.3).

    A profile from an older backup does not know of a refresh, and the servers have erased what it
    knows of.
    """
    own, last = access.verification_keys, before.verification_keys
    is_behind = (
        own is not None
        and last is not None
        and own.authority == last.authority
        and own.generation < last.generation
    )
    return replace(access, verification=before.verification) if is_behind else access


def _with_keys_for(access: Access, n_servers: int) -> Access:
    """Return ``access`` with the verification keys that go with the number of servers (15.3.4).

    What the administration keeps is of the number that there was at the last dealing or refresh.
    """
    keys = access.verification_keys
    if keys is None or keys.quorum.n_servers == n_servers:
        return access
    fitting = keys_for(access.parameters, keys, n_servers)
    return replace(access, verification=fitting.encode())


def seal_groups(
    groups: Sequence[Group],
    previous: Manifest | None,
    administration: Administration | None,
    keys: OwnerKeys,
    random: RandomSource,
    write: Callable[[bytes], ObjectRef],
) -> tuple[Group, ...]:
    """Return groups whose bundles are sealed under ``administration``.

    Args:
        groups: of the next version.
        previous: the version before; bundles sealed under the same administration stay.
        administration: of the collection, None for none.
        keys: of the owner.
        random: source of the encapsulations.
        write: keeps an object.
    """
    if administration is None:
        return tuple(groups)
    stays = previous is not None and is_sealed_for(previous, administration)

    def seal(group: Group) -> Group:
        if group.bundle is not None and stays:
            return group
        bundle = keys.sealed_bundle(group.policy, group.epoch, administration.epoch)
        sealed = seal_bundle(
            bundle,
            administration.parameters,
            administration.member_secret,
            random,
            collection=keys.collection,
            epoch=administration.epoch,
            policy=group.policy,
        )
        return replace(group, bundle=write(sealed), search_key=SigningKey(bundle.search).public)

    return tuple(seal(group) for group in groups)
