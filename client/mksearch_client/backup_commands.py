"""``mksearch owner backup`` and ``recover``: keys that survive the loss of the owner's machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mksearch_client.options import Json, PassphraseFile, ProfileFolderOption, Timeout

if TYPE_CHECKING:
    from mksearch.access.backup_share import SealedShare
    from mksearch.crypto.user_key import UserKey

__all__ = ["BACKUP_EXAMPLE", "RECOVER_EXAMPLE", "backup", "recover"]

_SUFFIX = ".share"
_NAME_CHARS = 60
BACKUP_EXAMPLE = (
    'Example: mksearch owner backup --policy "2 OF (key:alice, key:bob, key:carol)" '
    "--user-key alice=alice.key --user-key bob=bob.key --user-key carol=carol.key --to backup"
)
RECOVER_EXAMPLE = (
    "Example: mksearch owner recover --share alice.opened --share bob.opened --profile recovered"
)


def backup(
    *,
    policy: Annotated[
        str, typer.Option(help="Who together may recover: AND, OR, 2 OF (..) over key:NAME.")
    ],
    user_key: Annotated[
        list[str], typer.Option(help="NAME=FILE, the user key of each NAME; may be repeated.")
    ],
    to: Annotated[
        Path, typer.Option(help="Folder for the shares, a file for each NAME; made if missing.")
    ],
    profile: ProfileFolderOption = None,
    passphrase_file: PassphraseFile = None,
    as_json: Json = False,
) -> None:
    """Share the owner's keys over people: who satisfies the policy recovers them, nobody else."""
    from mksearch.access.backup_share import SHARE_MAGIC, parse_backup_policy
    from mksearch_client.outputs import (
        counted,
        cured,
        out,
        require_output,
        starts_with,
        write_output,
    )
    from mksearch_client.owner_backup import back_up
    from mksearch_client.profile import open_profile
    from mksearch_client.terminal import print_json

    parse_backup_policy(policy)
    keys = _read_user_keys(user_key)
    opened = open_profile(profile, passphrase_file)
    with cured("ask everybody for the file user-key of their profile again"):
        shares = back_up(opened, policy, keys)
    _require_folder(to)
    files = [to / name for name in _file_names(shares)]
    kind = ("share", starts_with(SHARE_MAGIC))
    for file in files:
        require_output(file, *kind)
    for file, share in zip(files, shares, strict=True):
        write_output(file, share.encode(), *kind)
    if as_json:
        entries = [
            {"name": share.body.name, "user": share.body.user.hex(), "file": str(file)}
            for file, share in zip(files, shares, strict=True)
        ]
        print_json({"backup": shares[0].body.backup.hex(), "policy": policy, "shares": entries})
        return
    listed = ", ".join(f"{f.name} to {s.body.name}" for f, s in zip(files, shares, strict=True))
    out(f"in {to}: {counted(len(shares), 'share')}, each sealed to one person: send {listed}")
    out(f"what the servers hold is not in it; {policy} recovers the keys, in case of need with:")
    out("mksearch user open-share FILE -o OPENED, then mksearch owner recover --share OPENED ..")


def _read_user_keys(texts: Sequence[str]) -> dict[str, UserKey]:
    from mksearch.crypto.user_key import UserKey
    from mksearch.errors import ParameterError
    from mksearch_client.outputs import cured, read_input

    keys: dict[str, UserKey] = {}
    for text in texts:
        name, separator, file = text.partition("=")
        if not (name and separator and file):
            raise ParameterError(
                f"--user-key {text!r} is not NAME=FILE",
                cure="name whose key it is, as in the policy: --user-key alice=alice.key",
            )
        if name in keys:
            raise ParameterError(
                f"--user-key {name} is there twice", cure="give every name one user key"
            )
        with cured(f"ask {name} for the file user-key of their profile"):
            keys[name] = UserKey.decode(read_input(Path(file), "the user key"))
    return keys


def _require_folder(folder: Path) -> None:
    """Make the folder of the shares; refuse one with shares of another backup.

    Raises:
        InputError: it holds shares, or cannot be made.
    """
    from mksearch.errors import InputError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = sorted(path.name for path in folder.iterdir() if path.name.endswith(_SUFFIX))
    except OSError as error:
        raise InputError(
            f"the folder {folder} cannot be made ({error.strerror})", cure="choose another --to"
        ) from None
    if there:
        raise InputError(
            f"{folder} holds shares already, {there[0]} for one; those of two backups do not mix",
            cure="choose another --to, or remove them once the new ones are handed out",
        )


def _file_names(shares: Sequence[SealedShare]) -> list[str]:
    """Return a name for each share that every file system has, and no two the same."""
    names: list[str] = []
    for share in shares:
        name = share.body.name[:_NAME_CHARS]
        shown = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
        # Some file systems do not tell "Bob" from "bob".
        taken = {name.lower() for name in names}
        name, number = shown, 1
        while f"{name}{_SUFFIX}".lower() in taken:
            number += 1
            name = f"{shown}-{number}"
        names.append(f"{name}{_SUFFIX}")
    return names


def recover(
    *,
    share: Annotated[
        list[Path], typer.Option(help="Opened share of a backup; once for each person.")
    ],
    profile: Annotated[Path, typer.Option("--profile", help="New folder for the profile.")],
    server: Annotated[
        list[str] | None,
        typer.Option(help="HOST:PORT of a server that moved since; may be repeated."),
    ] = None,
    passphrase_file: PassphraseFile = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Make the owner's profile again from opened shares of people who satisfy the policy."""
    from mksearch.access.backup_share import OpenedShare
    from mksearch_client.outputs import cured, out, read_input
    from mksearch_client.owner_backup import recover as recovered_from
    from mksearch_client.profile_folder import read_passphrase
    from mksearch_client.terminal import print_json

    shares = []
    for path in share:
        data = read_input(path, "the share")
        with cured(f"{path} is damaged or not opened: open it with mksearch user open-share"):
            shares.append(OpenedShare.decode(data))
    made = recovered_from(
        shares,
        profile,
        passphrase=read_passphrase(passphrase_file),
        servers=server or (),
        timeout_s=timeout,
    )
    if as_json:
        print_json(
            {
                "profile": str(profile),
                "name": made.name,
                "collection": made.collection.hex(),
                "owner_key": made.owner_key.hex(),
                "administration": (profile / "administration").exists(),
                "n_servers": made.quorum.n_servers,
                "collusion_bound": made.quorum.collusion_bound,
                "servers": [{"id": s.id, "address": s.address} for s in made.servers.values()],
            }
        )
        return
    out(f"the profile of {made.name} is in {profile}; compare its owner key with a user's card:")
    out(made.owner_key.hex())
    out(f"delete the opened shares, then: mksearch owner status --profile {profile}")
