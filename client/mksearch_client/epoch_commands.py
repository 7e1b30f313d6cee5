"""``mksearch owner revoke`` and ``rotate``: who may no longer, and keys that nobody old has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from mksearch.errors import MksearchError, NotEnoughAnswers, ParameterError
from mksearch.index.manifest import SignedManifest
from mksearch_client.options import Json, PassphraseFile, ProfileFolderOption, Timeout

__all__ = ["REVOKE_EXAMPLE", "ROTATE_EXAMPLE", "revoke", "rotate"]

REVOKE_EXAMPLE = "Example: mksearch owner revoke --user 3d0025bbeb79"
ROTATE_EXAMPLE = "Example: mksearch owner rotate"


def revoke(
    *,
    user: Annotated[
        list[str] | None,
        typer.Option(help="User id, or how it begins (admin list shows it); may be repeated."),
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option(help="NAME:VALUE to take from everybody; may be repeated."),
    ] = None,
    and_rotate: Annotated[
        bool,
        typer.Option("--rotate", help="Then encrypt everything anew, as mksearch owner rotate."),
    ] = False,
    profile: ProfileFolderOption = None,
    passphrase_file: PassphraseFile = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Take rights away: a new epoch begins, and servers refuse the old one at once."""
    from rich.console import Console

    from mksearch_client.admin import Admin
    from mksearch_client.commands import progress_bar
    from mksearch_client.outputs import counted, out
    from mksearch_client.owner import Owner
    from mksearch_client.terminal import print_json

    if not user and not attribute:
        raise ParameterError(
            "nobody and nothing is named", cure="add --user ID or --attribute NAME:VALUE"
        )
    admin = Admin(profile, passphrase_file=passphrase_file)
    before = admin.members()
    after = admin.revoke(users=user or (), attributes=attribute or ())
    with Owner(admin.profile, timeout_s=timeout) as owner:
        try:
            signed = owner.renew()
        except MksearchError as error:
            error.cure = f"{error.cure}; the revocation is noted: then run mksearch owner renew"
            raise
        _require_in_force(owner.behind, signed)
        if and_rotate:
            # Whoever interrupts this goes on with mksearch owner rotate.
            with progress_bar(Console(stderr=True)) as progress:
                signed = owner.rotate(progress=progress)
    gone = [one for one in before.members if one not in after.members]
    access = signed.manifest.access
    epoch = 0 if access is None else access.epoch
    if as_json:
        print_json(
            {
                "epoch": epoch,
                "version": signed.manifest.version,
                "revoked": gone,
                "members": len(after.members),
                "rotated": and_rotate,
            }
        )
        return
    n_gone = counted(len(gone), "user")
    out(f"epoch {epoch} began with version {signed.manifest.version}, without {n_gone}")
    n_members = counted(len(after.members), "member")
    out(f"to enrol in it by themselves with their next search: {n_members}")
    if and_rotate:
        out(f"all groups are of epoch {epoch} since version {signed.manifest.version}")
    else:
        out("what is stored is still under keys that the revoked had: mksearch owner rotate")


def _require_in_force(behind: Sequence[int], signed: SignedManifest) -> None:
    """Raise NotEnoughAnswers if a server still serves the epoch before.

    With one that lies it would be enough for an answer to those who were revoked.
    """
    if not behind:
        return
    n_servers = signed.manifest.quorum.n_servers
    names = ", ".join(map(str, behind))
    raise NotEnoughAnswers(
        f"{n_servers - len(behind)} servers are in the new epoch (need {n_servers}): servers "
        f"{names} are not, so the revocation is not in force everywhere",
        have=n_servers - len(behind),
        need=n_servers,
        cure="start them, then run mksearch owner renew",
    )


def rotate(
    *,
    authority: Annotated[
        bool,
        typer.Option("--authority", help="New shares of the authority, the same secret."),
    ] = False,
    profile: ProfileFolderOption = None,
    passphrase_file: PassphraseFile = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Encrypt groups of an older epoch anew, all keys new; searches go on meanwhile."""
    from rich.console import Console

    from mksearch_client.admin import Admin
    from mksearch_client.commands import progress_bar
    from mksearch_client.outputs import out
    from mksearch_client.owner import Owner
    from mksearch_client.profile import open_profile
    from mksearch_client.terminal import print_json

    opened = open_profile(profile, passphrase_file)
    if authority:
        Admin(opened).refresh(timeout_s=timeout)
    with Owner(opened, timeout_s=timeout) as owner, progress_bar(Console(stderr=True)) as progress:
        signed = owner.renew() if authority else owner.rotate(progress=progress)
    access = signed.manifest.access
    epoch = 1 if access is None else access.epoch
    keys = None if access is None else access.verification_keys
    generation = 0 if keys is None else keys.generation
    if as_json:
        groups = len(signed.manifest.groups)
        fields = {"version": signed.manifest.version, "epoch": epoch, "groups": groups}
        print_json(fields | {"generation": generation})
        return
    if authority:
        out(f"the servers hold shares of generation {generation}; those before are worth nothing")
        return
    out(f"all groups are of epoch {epoch} since version {signed.manifest.version}")
