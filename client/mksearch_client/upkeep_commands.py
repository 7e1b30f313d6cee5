"""`mksearch owner` commands that change what is published: delete, compact, watch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mksearch_client.options import Json, PassphraseFile, ProfileFolderOption, Timeout
from mksearch_client.terminal import print_json, safe

if TYPE_CHECKING:
    from mksearch_client.owner import Owner
    from mksearch_client.publication import Progress

__all__ = [
    "COMPACT_EXAMPLE",
    "DELETE_EXAMPLE",
    "WATCH_EXAMPLE",
    "compact",
    "delete",
    "watch",
]

DELETE_EXAMPLE = "Example: mksearch owner delete notes/old.md notes/older.md"
COMPACT_EXAMPLE = "Example: mksearch owner compact --dry-run"
WATCH_EXAMPLE = "Example: mksearch owner watch ~/documents"


@contextmanager
def _at_work(
    profile: Path | None, passphrase_file: Path | None, timeout_s: float
) -> Iterator[tuple[Owner, Progress]]:
    """Open an owner, and show the progress of what it does while the block runs."""
    from mksearch_client.commands import progress_bar
    from mksearch_client.owner import Owner
    from mksearch_client.profile import open_profile

    console = Console(file=sys.stderr)
    opened = open_profile(profile, passphrase_file)
    with Owner(opened, timeout_s=timeout_s) as owner, progress_bar(console) as progress:
        yield owner, progress


def delete(
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="As searches show them.")],
    profile: ProfileFolderOption = None,
    passphrase_file: PassphraseFile = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Delete documents: no search finds them any more; compact erases their bytes."""
    from mksearch_client.outputs import counted, out

    with _at_work(profile, passphrase_file, timeout) as (owner, progress):
        signed = owner.delete(ids, progress=progress)
    deleted = sorted(set(ids))
    if as_json:
        print_json({"deleted": deleted, "version": signed.manifest.version})
        return
    out(f"deleted {counted(len(deleted), 'document')}: version {signed.manifest.version}")


def compact(
    profile: ProfileFolderOption = None,
    tiered: Annotated[
        bool, typer.Option(help="Only what pays: many small segments, or a quarter deleted.")
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="Only say what it would cost.")] = False,
    passphrase_file: PassphraseFile = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Merge segments under new keys and erase what was deleted; searches go on."""
    from mksearch_client.outputs import counted, out

    with _at_work(profile, passphrase_file, timeout) as (owner, progress):
        report = owner.compact(tiered=tiered, dry_run=dry_run, progress=progress)
    if as_json:
        print_json({**asdict(report), "dry_run": dry_run})
        return
    if not report.merges:
        out(f"nothing to do: version {report.version} is compact")
    for merge in report.merges:
        group = f"under {safe(merge.policy)}" if merge.policy else "of every member"
        verb = "would become" if dry_run else "became"
        out(
            f"{counted(merge.segments, 'segment')} {group} {verb} one: "
            f"{counted(merge.documents, 'document')}, "
            f"{merge.erased} erased, {merge.read_bytes / 1e6:.1f} MB of index {verb} "
            f"about {merge.written_bytes / 1e6:.1f} MB on every server"
        )


def watch(  # noqa: PLR0917 - a command has as many options as it has
    path: Annotated[Path, typer.Argument(help="A folder, or one file.")],
    profile: ProfileFolderOption = None,
    policy: Annotated[
        str | None, typer.Option(help="Who may search and read them [every member].")
    ] = None,
    delete_missing: Annotated[
        bool, typer.Option(help="At the start, documents that are not there go away.")
    ] = False,
    settle: Annotated[float, typer.Option(help="Seconds without a change to wait for.")] = 2.0,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 1.0,
    passphrase_file: PassphraseFile = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Publish a folder, and what changes in it, until Ctrl-C."""
    from mksearch_client.outputs import note, out
    from mksearch_client.owner import Owner
    from mksearch_client.owner_reports import PublishReport
    from mksearch_client.profile import open_profile
    from mksearch_client.watching import Watch

    def show(report: PublishReport) -> None:
        if as_json:
            print_json(report.to_json())
        elif report.changed:
            out(
                f"version {report.version}: {report.added} added, {report.replaced} replaced, "
                f"{report.deleted} deleted"
            )

    with Owner(open_profile(profile, passphrase_file), timeout_s=timeout) as owner:
        Watch(
            owner,
            path,
            policy=policy or "",
            delete_missing=delete_missing,
            settle_s=settle,
            interval_s=interval,
            on_report=show,
            on_error=lambda error: note(str(error)),
        ).run()
