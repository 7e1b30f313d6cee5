"""`mksearch owner` commands for when operators come and go: replace-server, add-server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mksearch_client.options import Json, PassphraseFile, ProfileFolderOption, Timeout

if TYPE_CHECKING:
    from mksearch_client.owner import Owner
    from mksearch_client.publication import Progress
    from mksearch_client.server_changes import ServerChange

__all__ = ["ADD_EXAMPLE", "REPLACE_EXAMPLE", "add_server", "replace_server"]

ADD_EXAMPLE = "Example: mksearch owner add-server --card server-4.card"
REPLACE_EXAMPLE = "Example: mksearch owner replace-server 2 --card server-2.card"

_Card = Annotated[
    Path, typer.Option("--card", help="What mksearch-server card wrote on the new machine.")
]


def replace_server(
    server: Annotated[int, typer.Argument(metavar="N", help="The server that is replaced.")],
    card: _Card,
    profile: ProfileFolderOption = None,
    passphrase_file: PassphraseFile = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Have a new server take the place of one that is lost or changes hands."""
    from mksearch_client.server_card import ServerCard

    read = ServerCard.read(card)

    def work(owner: Owner, progress: Progress) -> ServerChange:
        return owner.replace_server(server, read, progress=progress)

    _run(work, "replaced", profile, passphrase_file, timeout_s=timeout, as_json=as_json)


def add_server(
    card: _Card,
    profile: ProfileFolderOption = None,
    passphrase_file: PassphraseFile = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Have one more server join the collection."""
    from mksearch_client.server_card import ServerCard

    read = ServerCard.read(card)

    def work(owner: Owner, progress: Progress) -> ServerChange:
        return owner.add_server(read, progress=progress)

    _run(work, "added", profile, passphrase_file, timeout_s=timeout, as_json=as_json)


def _run(
    work: Callable[[Owner, Progress], ServerChange],
    verb: str,
    profile: Path | None,
    passphrase_file: Path | None,
    *,
    timeout_s: float,
    as_json: bool,
) -> None:
    from rich.console import Console

    from mksearch_client.commands import progress_bar
    from mksearch_client.outputs import note, out
    from mksearch_client.owner import Owner
    from mksearch_client.profile import open_profile
    from mksearch_client.terminal import print_json

    opened = open_profile(profile, passphrase_file)
    console = Console(file=sys.stderr)
    with Owner(opened, timeout_s=timeout_s) as owner, progress_bar(console) as progress:
        change = work(owner, progress)
    if as_json:
        print_json(change.to_json())
        return
    out(
        f"{verb}: server {change.server} is at {change.address} from version {change.version} on, "
        f"one of {change.n_servers}"
    )
    if change.generation:
        out(f"the servers share the authority in shares of generation {change.generation}")
    for server in change.behind:
        note(f"server {server} did not take version {change.version}: the next publish brings it")
    for warning in change.warnings:
        note(f"warning: {warning}")
    out("make a new card (mksearch owner card) and a new backup (mksearch owner backup)")
