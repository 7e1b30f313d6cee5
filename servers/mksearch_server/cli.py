"""The command line `mksearch-server` of an operator.

Exit codes: 0 done, 1 failed, 2 wrong use or not available, 3 not verified.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mksearch import __version__
from mksearch.errors import MksearchError, ParameterError, StorageError

__all__ = ["app", "main"]

app = typer.Typer(
    help="A search server: it stores what it cannot read and multiplies what it cannot see.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

#: Commands of the contract whose subject this release does not have yet.
LATER = ("repair", "drain", "renew-certificate")

#: Base of what typer raises for wrong use; it has no public name.
_UsageError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
_Config = Annotated[Path, typer.Option("--config", help="The server.toml that init wrote.")]
_Json = Annotated[bool, typer.Option("--json", help="One object on standard output.")]


def _print(fields: dict[str, Any], text: str, *, as_json: bool) -> None:
    typer.echo(json.dumps(fields) if as_json else text)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show it.")] = False,
) -> None:
    if version:
        typer.echo(f"mksearch-server {__version__}")
        raise typer.Exit


@app.command(epilog="Example: mksearch-server init srv1 --id 1 --listen 127.0.0.1:7101")
def init(
    folder: Annotated[Path, typer.Argument(help="New folder of the server.")],
    server_id: Annotated[int, typer.Option("--id", help="1..255, another for each server.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT, loopback.")],
    as_json: _Json = False,
) -> None:
    """Make a new server: key, commented server.toml, claim token (also in DIR/claim-token)."""
    from mksearch_server.config import ServerConfig, write_config
    from mksearch_server.identity import create_identity

    # Before anything is made or changed.
    ServerConfig(server_id, listen, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise StorageError(f"{folder} is not empty", cure="name a new folder")
        os.chmod(folder, 0o700)
        path = write_config(folder, server_id, listen)
        token = create_identity(folder)
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be written ({error.strerror})", cure="name a new folder"
        ) from None
    fields = {"id": server_id, "config": str(path), "claim_token": token}
    text = (
        f"server {server_id} is ready: mksearch-server serve --config {path}\n"
        f"its owner claims it with {listen}={token}"
    )
    _print(fields, text, as_json=as_json)


@app.command(epilog="Example: mksearch-server serve --config srv1/server.toml")
def serve(config: _Config, as_json: _Json = False) -> None:
    """Serve until SIGTERM or Ctrl-C; prints its address once it answers."""
    from mksearch_server.config import load_config
    from mksearch_server.log import log_to_stderr
    from mksearch_server.memory import bound_allocator

    bound_allocator()
    loaded = load_config(config)
    if loaded.threads:
        # Read when the compiled loops are loaded, so set before.
        os.environ["NUMBA_NUM_THREADS"] = str(loaded.threads)
    # What gRPC would write on standard error is said by the errors of this program.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from mksearch_server.serve import serve as run

    log_to_stderr()

    def ready(address: str, device: str) -> None:
        text = f"server {loaded.id} listens on {address}, engine {loaded.engine} on {device}"
        fields = {"id": loaded.id, "address": address, "engine": loaded.engine, "device": device}
        _print(fields, text, as_json=as_json)
        sys.stdout.flush()

    asyncio.run(run(loaded, ready))


@app.command("check-config", epilog="Example: mksearch-server check-config --config server.toml")
def check_config(config: _Config, as_json: _Json = False) -> None:
    """Check server.toml without starting anything."""
    from mksearch_server.config import load_config

    loaded = load_config(config)
    fields = {"id": loaded.id, "listen": loaded.listen, "data": str(loaded.data)}
    _print(fields, f"{config} is right: server {loaded.id} on {loaded.listen}", as_json=as_json)


@app.command(epilog="Example: mksearch-server status --config srv1/server.toml")
def status(config: _Config, as_json: _Json = False) -> None:
    """Say what the server holds, from its store; it need not run."""
    from mksearch_server.inspect import describe

    fields = describe(config)
    lines = [f"{name.replace('_', ' ')}: {value}" for name, value in fields.items()]
    _print(fields, "\n".join(lines), as_json=as_json)


@app.command(epilog="Example: mksearch-server verify --config srv1/server.toml")
def verify(config: _Config, as_json: _Json = False) -> None:
    """Prove every stored byte against the signed manifest."""
    from mksearch_server.inspect import verify_store

    n_objects = verify_store(config)
    fields = {"verified": True, "objects": n_objects}
    _print(fields, f"{n_objects} objects are what the manifest says", as_json=as_json)


def _later(name: str) -> None:
    message = f"mksearch-server {name} is not part of version {__version__}"

    @app.command(
        name,
        hidden=True,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def _refuse(_words: Annotated[list[str] | None, typer.Argument()] = None) -> None:
        raise ParameterError(message, cure="mksearch-server --help lists what is")


for _name in LATER:
    _later(_name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=words, standalone_mode=False, prog_name="mksearch-server")
    except MksearchError as error:
        fields, exit_code = error.to_fields(), error.exit_code
    except _UsageError as error:
        message = error.format_message()
        if not message:
            # Without any word the help was shown.
            return 2
        fields = {"error": "usage", "message": message, "cure": "see --help", "server": None}
        exit_code = 2
    except (KeyboardInterrupt, typer.Abort):
        return 130
    else:
        return code if isinstance(code, int) else 0
    if "--json" in words:
        print(json.dumps(fields))
    cure = f" ({fields['cure']})" if fields["cure"] else ""
    print(f"mksearch-server: {fields['message']}{cure}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
