"""The command line `mksearch-server` of an operator.

Exit codes: 0 done, 1 failed, 2 wrong use or not available, 3 not verified.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from mksearch import __version__
from mksearch.errors import MksearchError, ParameterError, StorageError

if TYPE_CHECKING:
    from mksearch_server.certificates import TlsConfig

__all__ = ["app", "main"]

app = typer.Typer(
    help="A search server: it stores what it cannot read and multiplies what it cannot see.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

#: Seconds that a server may take to end beyond those for its running requests.
_DRAIN_SLACK_S = 30

#: Base of what typer raises for wrong use; it has no public name.
_UsageError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
_Config = Annotated[Path, typer.Option("--config", help="The server.toml that init wrote.")]
_Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", help="Name or address that clients dial; may be repeated."),
]
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


@app.command(
    epilog="Example: mksearch-server init srv1 --id 1 --listen 0.0.0.0:7101 --host a.example.org"
)
def init(
    folder: Annotated[Path, typer.Argument(help="New folder of the server.")],
    server_id: Annotated[int, typer.Option("--id", help="1..255, another for each server.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT; off loopback always with TLS.")],
    host: _Hosts = None,
    request: Annotated[
        bool, typer.Option("--request", help="Write tls.csr as well, for an authority to sign.")
    ] = False,
    tls: Annotated[bool, typer.Option("--tls", help="TLS on a loopback host as well.")] = False,
    admin_listen: Annotated[
        str, typer.Option(help="HOST:PORT of health and metrics over plain HTTP.")
    ] = "",
    admin_host: Annotated[
        list[str] | None,
        typer.Option("--admin-host", help="Name that collectors of metrics call it; repeatable."),
    ] = None,
    log_format: Annotated[str, typer.Option(help='"text", or "json": an object a line.')] = "text",
    if_new: Annotated[
        bool, typer.Option("--if-new", help="Leave a server that is there already as it is.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Make a new server: keys, commented server.toml, claim token (also in DIR/claim-token)."""
    from mksearch_server.config import CONFIG_NAME, is_loopback, write_config
    from mksearch_server.identity import create_identity

    has_tls = tls or request or bool(host) or not is_loopback(listen)
    if if_new and (folder / CONFIG_NAME).exists():
        path = folder / CONFIG_NAME
        _print({"config": str(path)}, f"{path} is there already", as_json=as_json)
        return
    # Before anything is made or changed.
    hosts = _require_new(folder, server_id, listen, host or [], tls=has_tls)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not all(map(_is_of_a_volume, folder.iterdir())):
            raise StorageError(f"{folder} is not empty", cure="name a new folder")
        os.chmod(folder, 0o700)
        tls_key = b""
        if has_tls:
            from mksearch_server.certificates import create_tls

            tls_key = create_tls(folder, hosts, request=request)
        admin = (admin_listen, admin_host or [])
        path = write_config(
            folder, server_id, listen, tls=has_tls, admin=admin, log_format=log_format
        )
        token = create_identity(folder, tls_key)
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be written ({error.strerror})", cure="name a new folder"
        ) from None
    fields = {"id": server_id, "config": str(path), "claim_token": token}
    shown = f"{hosts[0] if ':' not in hosts[0] else f'[{hosts[0]}]'}:{listen.rpartition(':')[2]}"
    text = (
        f"server {server_id} is ready: mksearch-server serve --config {path}\n"
        f"its owner claims it with {shown}={token}"
    )
    if has_tls:
        fields["tls_key"] = tls_key.hex()
    if request:
        fields["request"] = str(folder / "tls.csr")
        text += f"\nhave {folder / 'tls.csr'} signed, and put the answer into {folder / 'tls.crt'}"
    _print(fields, text, as_json=as_json)


def _is_of_a_volume(entry: Path) -> bool:
    """Tell whether a new volume has this: where the store's is mounted, and what a disk has."""
    if entry.name == "lost+found":
        return True
    return entry.name == "data" and entry.is_dir() and not any(entry.iterdir())


def _require_new(
    folder: Path, server_id: int, listen: str, hosts: list[str], *, tls: bool
) -> list[str]:
    """Return the hosts that clients dial; raise ParameterError unless all of it can be."""
    from mksearch_server.certificates import TlsConfig
    from mksearch_server.config import ServerConfig, dialled_host

    ServerConfig(server_id, listen, folder, tls=TlsConfig(folder, folder) if tls else None)
    own = dialled_host(listen)
    named = [*hosts, own] if own else hosts
    if not named:
        raise ParameterError(
            f"{listen} stands for all addresses of this machine, and clients dial one",
            cure="name it with --host; it may be repeated",
        )
    if tls:
        from mksearch.crypto.certificate import require_hosts

        require_hosts(named)
    return named


@app.command(epilog="Example: mksearch-server serve --config srv1/server.toml")
def serve(config: _Config, as_json: _Json = False) -> None:
    """Serve until SIGTERM or Ctrl-C; prints its address once it answers."""
    from mksearch_server.config import load_config
    from mksearch_server.log import logging_to_stderr
    from mksearch_server.memory import bound_allocator

    _end_when_told()
    bound_allocator()
    loaded = load_config(config)
    if loaded.threads:
        # Read when the compiled loops are loaded, so set before.
        os.environ["NUMBA_NUM_THREADS"] = str(loaded.threads)
    # What gRPC would write on standard error is said by the errors of this program.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from mksearch_server.serve import serve as run

    def ready(address: str, admin: str, device: str) -> None:
        text = f"server {loaded.id} listens on {address}, engine {loaded.engine} on {device}"
        fields = {"id": loaded.id, "address": address, "engine": loaded.engine, "device": device}
        if admin:
            text += f", health and metrics on http://{admin}"
            fields["admin"] = admin
        _print(fields, text, as_json=as_json)
        sys.stdout.flush()

    with logging_to_stderr(loaded.log_format):
        asyncio.run(run(loaded, ready))


def _end_when_told() -> None:
    """Have SIGTERM end this process already while it starts.

    The first process of a container has no other handler, and would be killed after a while.
    """

    def end(_number: int, _frame: object) -> NoReturn:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)


@app.command(epilog="Example: mksearch-server probe --config srv1/server.toml")
def probe(
    config: _Config,
    live: Annotated[
        bool, typer.Option("--live", help="Whether it is alive, not whether it takes requests.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Ask the server that runs here for its health: for the probes of container platforms."""
    from mksearch_server.admin import ask_state
    from mksearch_server.config import load_config
    from mksearch_server.running import find_running

    loaded = load_config(config)
    running = find_running(loaded.data)
    if running is None:
        raise StorageError(f"no server uses the store in {loaded.data}", cure="start it")
    if not running.admin:
        raise StorageError(
            "the server has not said where its health is",
            cure="wait until it has started; it needs admin_listen in server.toml",
        )
    state = "live" if live else "ready"
    ask_state(running.admin, "/healthz" if live else "/readyz")
    _print({"id": loaded.id, "state": state}, f"server {loaded.id} is {state}", as_json=as_json)


@app.command(epilog="Example: mksearch-server drain --config srv1/server.toml")
def drain(
    config: _Config,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds to wait for its end; 30 more than drain_s by default."),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Have the running server end: no new requests, those under way first."""
    from mksearch_server.config import load_config
    from mksearch_server.running import drain as end

    loaded = load_config(config)
    began_s = time.monotonic()
    wait_s = loaded.drain_s + _DRAIN_SLACK_S if timeout is None else timeout
    pid = end(loaded.data, wait_s)
    seconds = round(time.monotonic() - began_s, 3)
    fields = {"id": loaded.id, "pid": pid, "seconds": seconds}
    _print(fields, f"server {loaded.id} has ended after {seconds:.1f} s", as_json=as_json)


@app.command("check-config", epilog="Example: mksearch-server check-config --config server.toml")
def check_config(config: _Config, as_json: _Json = False) -> None:
    """Check server.toml, and the TLS files it names, without starting anything."""
    from mksearch_server.config import load_config

    loaded = load_config(config)
    fields: dict[str, Any] = {"id": loaded.id, "listen": loaded.listen, "data": str(loaded.data)}
    text = f"{config} is right: server {loaded.id} on {loaded.listen}"
    if loaded.tls is not None:
        found = _certificate(loaded.tls)
        fields |= found
        text += f", certificate good for {found['certificate_days']} days"
    if loaded.s3 is not None:
        from mksearch_server.storage import require_credentials

        require_credentials(loaded.s3)
        fields["bucket"] = loaded.s3.bucket
        text += f", objects in bucket {loaded.s3.bucket}"
    _print(fields, text, as_json=as_json)


@app.command(epilog="Example: mksearch-server status --config srv1/server.toml")
def status(config: _Config, as_json: _Json = False) -> None:
    """Say what the server holds, from its store; if it runs, its metrics as well."""
    from mksearch_server.config import load_config
    from mksearch_server.inspect import describe

    tls = load_config(config).tls
    fields = describe(config) | ({} if tls is None else _certificate(tls))
    shown = {name: value for name, value in fields.items() if name != "metrics"}
    lines = [f"{name.replace('_', ' ')}: {_shown(value)}" for name, value in shown.items()]
    # Steps of histograms are for programs.
    samples = {name: value for name, value in fields["metrics"].items() if "_bucket{" not in name}
    lines += [f"{name}: {_shown(value)}" for name, value in samples.items()]
    _print(fields, "\n".join(lines), as_json=as_json)


def _shown(value: object) -> object:
    if isinstance(value, float):
        return int(value) if value.is_integer() else round(value, 6)
    return "-" if value is None else value


def _certificate(tls: TlsConfig) -> dict[str, Any]:
    """Return what is to be said of a server's certificate; warn if it ends soon."""
    from mksearch_server.certificates import TlsFiles, days_left, expiry_warning

    certificate = TlsFiles.read(tls).certificate
    now_s = time.time()
    if warning := expiry_warning(certificate, now_s):
        print(f"mksearch-server: {tls.certificate}: {warning}", file=sys.stderr)
    return {
        "tls_key": certificate.fingerprint.hex(),
        "hosts": list(certificate.hosts),
        "certificate_days": days_left(certificate, now_s),
    }


@app.command(
    "renew-certificate",
    epilog="Example: mksearch-server renew-certificate --config srv1/server.toml",
)
def renew_certificate(
    config: _Config,
    host: _Hosts = None,
    request: Annotated[
        bool, typer.Option("--request", help="Write a request for an authority to sign instead.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Write a new certificate for the same key; a running server uses it at once."""
    from mksearch_server import certificates
    from mksearch_server.config import load_config

    tls = load_config(config).tls
    if tls is None:
        raise ParameterError(
            f"{config} has no [tls]", cure="a server on loopback without TLS has no certificate"
        )
    path = certificates.renew_certificate(tls, host or [], request=request)
    if request:
        text = f"have {path} signed, and put the answer into {tls.certificate}"
        _print({"request": str(path)}, text, as_json=as_json)
        return
    fields = {"certificate": str(path)} | _certificate(tls)
    _print(fields, f"{path} is good for {fields['certificate_days']} days", as_json=as_json)


@app.command(epilog="Example: mksearch-server card --config srv1/server.toml -o server-1.card")
def card(
    config: _Config,
    output: Annotated[Path, typer.Option("-o", "--output", help="New file to write, mode 0600.")],
    address: Annotated[
        str, typer.Option(help="HOST:PORT that clients dial, where init was not told.")
    ] = "",
    as_json: _Json = False,
) -> None:
    """Write what the owner of a collection needs to have this server join, claim token included."""
    from mksearch_server.config import load_config
    from mksearch_server.identity import server_card, write_secret

    loaded = load_config(config)
    found = {} if loaded.tls is None else _certificate(loaded.tls)
    dialled = address or _dialled(loaded.listen, found.get("hosts", []))
    write_secret(output, server_card(loaded.folder, loaded.id, dialled, found.get("tls_key", "")))
    fields = {"id": loaded.id, "address": dialled, "card": str(output)}
    text = (
        f"{output} is for the owner, who runs mksearch owner add-server or replace-server "
        f"with it; it says that server {loaded.id} is at {dialled}"
    )
    _print(fields, text, as_json=as_json)


def _dialled(listen: str, hosts: Sequence[str]) -> str:
    """Return HOST:PORT that clients dial; raise ParameterError where that cannot be known."""
    from mksearch_server.config import dialled_host

    _, _, port = listen.rpartition(":")
    host = hosts[0] if hosts else dialled_host(listen)
    if not host or port == "0":
        raise ParameterError(
            f"{listen} does not say which address clients dial", cure="add --address HOST:PORT"
        )
    bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{bracketed}:{port}"


@app.command(epilog="Example: mksearch-server verify --config srv1/server.toml")
def verify(config: _Config, as_json: _Json = False) -> None:
    """Read and prove every stored object; ends with 3 if one is damaged, 1 if one is missing."""
    from mksearch_server.inspect import verify_store

    findings = verify_store(config)
    if not as_json:
        for damage in findings.damages:
            typer.echo(f"{damage.kind} {damage.name}: {damage.reason}".replace(" :", ":"))
    findings.require_whole()
    fields = {"verified": True, "objects": findings.n_objects, "version": findings.version}
    text = f"{findings.n_objects} objects are what the manifest of version {findings.version} says"
    _print(fields, text, as_json=as_json)


@app.command(
    epilog="Example: mksearch-server repair --config srv1/server.toml --from 127.0.0.1:7102"
)
def repair(
    config: _Config,
    sources: Annotated[
        list[str], typer.Option("--from", help="HOST:PORT of another server; several may be named.")
    ],
    card: Annotated[
        Path | None,
        typer.Option(help="The collection's card: TLS keys of servers, and whose they are."),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Make the store of a stopped server whole from other servers of the collection."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from mksearch_server.repair import repair as run

    done = run(config, sources, card=card)
    text = (
        f"version {done.version} is whole: {done.n_fetched} objects ({done.n_bytes} bytes) were "
        "fetched, the others were here and proved themselves"
    )
    if done.lacks_share:
        text += "\nits share of the authority was lost: the owner has it repaired"
    _print(done.to_fields(), text, as_json=as_json)


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
