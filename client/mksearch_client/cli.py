"""The command line `mksearch`: options in, exit codes and one line of cause and cure out.

Exit codes: 0 done, 1 failed, 2 wrong use or not available, 3 not verified, 4 not allowed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from mksearch import __version__
from mksearch.errors import MksearchError, ParameterError
from mksearch_client import (
    admin_commands,
    backup_commands,
    epoch_commands,
    plan_command,
    server_commands,
    timestamp_commands,
    upkeep_commands,
    user_commands,
)
from mksearch_client.options import (
    Authorities,
    ClientCertificate,
    ClientKey,
    Json,
    PassphraseFile,
    ProfileFolderOption,
    Timeout,
)
from mksearch_client.terminal import print_json, safe

__all__ = ["app", "main"]

app = typer.Typer(
    help="Ranked search over an encrypted corpus on servers that cannot read it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
owner_app = typer.Typer(help="What the owner of a collection does.", no_args_is_help=True)
app.add_typer(owner_app, name="owner")
app.add_typer(admin_commands.app, name="admin")
app.add_typer(user_commands.app, name="user")

#: Commands of the contract whose subject this release does not have yet.
LATER = ("complete", "evaluate", "web")

#: Exit code of a command that Ctrl-C ended, as shells have it.
_INTERRUPTED = 130
#: Base of what typer raises for wrong use; it has no public name.
_UsageError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
_Privacy = Annotated[
    str,
    typer.Option(
        help="full: a search shows no record; balanced: servers see permuted record numbers; "
        "fast: a search shows blocks as well."
    ),
]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show it.")] = False,
) -> None:
    if version:
        typer.echo(f"mksearch {__version__}")
        raise typer.Exit


@app.command(epilog='Example: mksearch demo --docs ~/notes --query "garden plans"')
def demo(
    docs: Annotated[
        list[Path] | None,
        typer.Option(help="Your own .txt, .md or .jsonl, file or folder; may be repeated."),
    ] = None,
    query: Annotated[
        list[str] | None, typer.Option(help="Your own query; may be repeated.")
    ] = None,
    servers: Annotated[int, typer.Option(help="Servers on this machine, at least 3.")] = 3,
    keep: Annotated[
        Path | None, typer.Option(help="New folder for what owner and servers store.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Encrypt a corpus, ask it, and put every promise to the test on servers of this machine."""
    # Imported here, as in every command: each brings much that the others do not need.
    from mksearch_client.demo.play import DemoOptions, play

    if not play(DemoOptions(docs or (), query or (), servers, keep, as_json)):
        raise typer.Exit(1)


@owner_app.command(
    epilog="Example: mksearch owner init --server 127.0.0.1:7101=TOKEN "
    "--server 127.0.0.1:7102=TOKEN --server 127.0.0.1:7103=TOKEN"
)
def init(
    server: Annotated[
        list[str], typer.Option(help="HOST:PORT=CLAIM-TOKEN, or =@FILE; once for each server.")
    ],
    profile: ProfileFolderOption = None,
    collusion: Annotated[int, typer.Option(help="Servers that may collude: t.")] = 1,
    name: Annotated[str, typer.Option(help="What to call the collection.")] = "collection",
    authorities: Authorities = None,
    client_certificate: ClientCertificate = None,
    client_key: ClientKey = None,
    passphrase_file: PassphraseFile = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Make a profile with new keys and claim the servers of a collection."""
    from mksearch_client.client_files import GivenFiles
    from mksearch_client.commands import owner_init

    owner_init(
        profile,
        server,
        collusion,
        name,
        passphrase_file,
        files=GivenFiles(authorities, client_certificate, client_key),
        timeout_s=timeout,
        as_json=as_json,
    )


@owner_app.command(
    epilog="Example: mksearch owner publish ~/documents --policy 'role:analyst OR clearance >= 3'"
)
def publish(
    paths: Annotated[list[Path], typer.Argument(help="Files, folders: .txt, .md, .rst, .jsonl.")],
    profile: ProfileFolderOption = None,
    scoring: Annotated[
        str | None, typer.Option(help="tfidf or bm25 [as published, at first tfidf].")
    ] = None,
    language: Annotated[
        str, typer.Option(help="en, plain, or auto: as published, at first en.")
    ] = "auto",
    policy: Annotated[
        str | None,
        typer.Option(help="Who may search and read them [every member]; see docs/operations.md."),
    ] = None,
    delete_missing: Annotated[
        bool, typer.Option(help="Documents that are published and not named go away.")
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="Only say what would be done.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write the JSON object there, too.")] = None,
    passphrase_file: PassphraseFile = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Encrypt what is new or changed and give it to every server; other documents stay."""
    from mksearch_client.commands import PublishOptions, owner_publish

    options = PublishOptions(paths, scoring, language, policy, delete_missing, dry_run, report)
    owner_publish(profile, passphrase_file, options, timeout_s=timeout, as_json=as_json)


@owner_app.command(epilog="Example: mksearch owner status")
def status(
    profile: ProfileFolderOption = None,
    passphrase_file: PassphraseFile = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Say what is published, what compacting would save, and what every server serves."""
    from mksearch_client.commands import owner_status

    owner_status(profile, passphrase_file, timeout_s=timeout, as_json=as_json)


@owner_app.command(epilog="Example: mksearch owner card -o card.json")
def card(
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")],
    profile: ProfileFolderOption = None,
    passphrase_file: PassphraseFile = None,
    as_json: Json = False,
) -> None:
    """Write what a user needs to make a profile: collection, owner key, servers, keys."""
    from mksearch_client.commands import owner_card

    owner_card(profile, passphrase_file, output, as_json=as_json)


@owner_app.command(epilog="Example: mksearch owner verify")
def verify(
    evidence: Annotated[
        list[Path] | None,
        typer.Option(help="Prove this instead: a server's lie, computed anew, or two manifests."),
    ] = None,
    profile: ProfileFolderOption = None,
    passphrase_file: PassphraseFile = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Read every byte back from every server and prove it."""
    from mksearch_client.commands import owner_judge, owner_verify

    if evidence:
        owner_judge(profile, passphrase_file, evidence, timeout_s=timeout, as_json=as_json)
        return
    owner_verify(profile, passphrase_file, timeout_s=timeout, as_json=as_json)


@owner_app.command(epilog="Example: mksearch owner renew")
def renew(
    profile: ProfileFolderOption = None,
    timestamp: Annotated[
        Path | None,
        typer.Option(help="Renew with this timestamp key instead; no profile is needed."),
    ] = None,
    passphrase_file: PassphraseFile = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Sign the newest version again with a later expiry."""
    if timestamp is not None:
        timestamp_commands.renew_with(
            timestamp, passphrase_file, timeout_s=timeout, as_json=as_json
        )
        return
    from mksearch_client.commands import owner_renew

    owner_renew(profile, passphrase_file, timeout_s=timeout, as_json=as_json)


owner_app.command("timestamp-key", epilog=timestamp_commands.TIMESTAMP_EXAMPLE)(
    timestamp_commands.timestamp_key
)
owner_app.command("delete", epilog=upkeep_commands.DELETE_EXAMPLE)(upkeep_commands.delete)
owner_app.command("compact", epilog=upkeep_commands.COMPACT_EXAMPLE)(upkeep_commands.compact)
owner_app.command("watch", epilog=upkeep_commands.WATCH_EXAMPLE)(upkeep_commands.watch)
owner_app.command("revoke", epilog=epoch_commands.REVOKE_EXAMPLE)(epoch_commands.revoke)
owner_app.command("rotate", epilog=epoch_commands.ROTATE_EXAMPLE)(epoch_commands.rotate)
owner_app.command("replace-server", epilog=server_commands.REPLACE_EXAMPLE)(
    server_commands.replace_server
)
owner_app.command("add-server", epilog=server_commands.ADD_EXAMPLE)(server_commands.add_server)
owner_app.command("backup", epilog=backup_commands.BACKUP_EXAMPLE)(backup_commands.backup)
owner_app.command("recover", epilog=backup_commands.RECOVER_EXAMPLE)(backup_commands.recover)


@app.command(epilog='Example: mksearch search "leap year" -k 5')
def search(
    query: Annotated[str, typer.Argument(help="Keywords.")],
    k: Annotated[int, typer.Option("-k", help="Hits wanted.")] = 10,
    privacy: _Privacy = "balanced",
    traffic: Annotated[str | None, typer.Option(help="Not part of this release.")] = None,
    offset: Annotated[int, typer.Option(help="Hits left out before the first shown.")] = 0,
    max_records: Annotated[
        int | None,
        typer.Option(help="Records that may be read [2000, or twice the hits wanted]."),
    ] = None,
    explain: Annotated[bool, typer.Option(help="Show servers and times as well.")] = False,
    timeout: Timeout = 10.0,
    accept_expired: Annotated[bool, typer.Option(help="Use an expired manifest.")] = False,
    profile: ProfileFolderOption = None,
    passphrase_file: PassphraseFile = None,
    as_json: Json = False,
) -> None:
    """Ask the collection; only a proved answer is shown."""
    from mksearch_client.commands import SearchOptions, run_search
    from mksearch_client.privacy import PrivacyLimit

    PrivacyLimit().require(privacy)
    if traffic is not None:
        raise ParameterError(f"--traffic is not part of version {__version__}", cure="leave it out")
    options = SearchOptions(query, k, offset, max_records, explain, accept_expired, privacy)
    run_search(profile, passphrase_file, options, timeout_s=timeout, as_json=as_json)


@app.command("open", epilog="Example: mksearch open notes/garden.md -o garden.md")
def open_document(
    document_id: Annotated[str, typer.Argument(metavar="ID", help="As a search showed it.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write.")] = None,
    privacy: _Privacy = "balanced",
    timeout: Timeout = 10.0,
    accept_expired: Annotated[bool, typer.Option(help="Use an expired manifest.")] = False,
    profile: ProfileFolderOption = None,
    passphrase_file: PassphraseFile = None,
    as_json: Json = False,
) -> None:
    """Fetch and open one whole document."""
    from mksearch_client.commands import OpenOptions, run_open
    from mksearch_client.privacy import AVAILABLE_OPENING, PrivacyLimit

    PrivacyLimit().require(privacy, AVAILABLE_OPENING)
    options = OpenOptions(document_id, output, accept_expired)
    run_open(profile, passphrase_file, options, timeout_s=timeout, as_json=as_json)


app.command("plan", epilog=plan_command.PLAN_EXAMPLE)(plan_command.plan)


def _later(group: typer.Typer, prefix: str, name: str) -> None:
    message = f"{prefix} {name} is not part of version {__version__}"

    @group.command(
        name,
        hidden=True,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def _refuse(_words: Annotated[list[str] | None, typer.Argument()] = None) -> None:
        raise ParameterError(message, cure="mksearch --help lists what is")


for _name in LATER:
    _later(app, "mksearch", _name)


def _report(error: Mapping[str, str | int | None], *, as_json: bool) -> None:
    if as_json:
        print_json(error)
    cure = f" ({error['cure']})" if error["cure"] else ""
    print(f"mksearch: {safe(str(error['message']) + cure)}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that lacks a character shows its number instead of ending the command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return 1
    except OSError as error:
        _drop_output()
        where = f"{error.filename}: " if error.filename else ""
        reason = safe(f"{where}{error.strerror or error}")
        print(f"mksearch: {reason} (check the disk and where the output goes)", file=sys.stderr)
        return 1
    return code


def _drop_output() -> None:
    """Keep what cannot be written from being tried again when the process ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _interrupted(*, as_json: bool) -> int:
    cure = "run it again; what the servers acknowledged is kept"
    _report(
        {"error": "interrupted", "message": "interrupted", "cure": cure, "server": None},
        as_json=as_json,
    )
    return _INTERRUPTED


def _run(words: list[str]) -> int:
    as_json = "--json" in words
    try:
        code = app(args=words, standalone_mode=False, prog_name="mksearch")
    except MksearchError as error:
        _report(error.to_fields(), as_json=as_json)
        return error.exit_code
    except _UsageError as error:
        message = error.format_message()
        fields = {"error": "usage", "message": message, "cure": "see --help", "server": None}
        # Without any word the help was shown, and there is no message.
        if message:
            _report(fields, as_json=as_json)
        return 2
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted(as_json=as_json)
    except SystemExit as end:
        # What typer makes of Ctrl-C inside a command.
        if end.code == _INTERRUPTED:
            return _interrupted(as_json=as_json)
        raise
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
