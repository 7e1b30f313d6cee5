"""The command line `mksearch`: options in, exit codes and one line of cause and cure out.

Exit codes: 0 done, 1 failed, 2 wrong use or not available, 3 not verified, 4 not allowed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import click
import typer

from mksearch import __version__
from mksearch.errors import MksearchError
from mksearch_client.terminal import safe

__all__ = ["app", "main"]

app = typer.Typer(
    help="Ranked search over an encrypted corpus on servers that cannot read it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

#: Commands of the contract whose subject this release does not have yet.
LATER = ("owner", "admin", "user", "search", "open", "complete", "evaluate", "web", "plan")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mksearch {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Ranked search over an encrypted corpus on servers that cannot read it."""


@app.command(epilog='Example: mksearch demo --docs ~/notes --query "garden plans"')
def demo(
    docs: Annotated[
        list[Path] | None,
        typer.Option(help="Your own .txt, .md or .jsonl, file or folder; may be repeated."),
    ] = None,
    query: Annotated[
        list[str] | None, typer.Option(help="Your own query; may be repeated.")
    ] = None,
    servers: Annotated[int, typer.Option(help="Servers in this process, at least 3.")] = 3,
    keep: Annotated[
        Path | None, typer.Option(help="New folder for what the servers store.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One object on standard output.")] = False,
) -> None:
    """Encrypt a corpus, ask it, and put every promise to the test in one process."""
    # Imported here: the demo brings scikit-learn and the servers along.
    from mksearch_client.demo.play import DemoOptions, play

    if not play(DemoOptions(docs or (), query or (), servers, keep, as_json)):
        raise typer.Exit(1)


def _later(name: str) -> None:
    message = f"mksearch {name} is not part of version {__version__}"

    @app.command(
        name,
        hidden=True,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def _refuse(_words: Annotated[list[str] | None, typer.Argument()] = None) -> None:
        raise click.UsageError(message)


for _name in LATER:
    _later(_name)


def _report(error: dict[str, str | int | None], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(error, ensure_ascii=False))
    else:
        cure = f" ({error['cure']})" if error["cure"] else ""
        print(f"mksearch: {safe(str(error['message']))}{safe(cure)}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in words
    try:
        code = app(args=words, standalone_mode=False, prog_name="mksearch")
    except MksearchError as error:
        _report(error.to_fields(), as_json=as_json)
        return error.exit_code
    except click.ClickException as error:
        message = error.format_message()
        _report(
            {"error": "usage", "message": message, "cure": "see mksearch --help", "server": None},
            as_json=as_json,
        )
        return 2
    except (KeyboardInterrupt, click.Abort):
        print("mksearch: interrupted", file=sys.stderr)
        return 130
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
