"""What the commands do: open the profile, do the work, print it for people or for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from mksearch.access.policy import parse_policy
from mksearch.errors import InputError, MksearchError, ParameterError
from mksearch.index.manifest import SignedManifest
from mksearch_client.client_files import GivenFiles
from mksearch_client.member import Searcher
from mksearch_client.outputs import (
    counted,
    is_card,
    note,
    out,
    require_output,
    starts_with,
    write_plain,
)
from mksearch_client.owner import UNREACHABLE, Owner, PublishReport
from mksearch_client.owner_reports import GroupStatus
from mksearch_client.profile import Profile, default_profile, open_profile, read_passphrase
from mksearch_client.publication import Progress as ProgressCallback
from mksearch_client.result import SearchResult
from mksearch_client.terminal import print_json, safe

__all__ = [
    "OpenOptions",
    "PublishOptions",
    "SearchOptions",
    "owner_card",
    "owner_init",
    "owner_judge",
    "owner_publish",
    "owner_renew",
    "owner_status",
    "owner_verify",
    "progress_bar",
    "run_open",
    "run_search",
]

_SKIPPED_SHOWN = 20
#: How the JSON of a publish report begins.
_REPORT_START = b'{"documents"'


@contextmanager
def progress_bar(console: Console) -> Iterator[ProgressCallback]:
    """Show progress while the block runs, if ``console`` is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("", total=1.0)

        def report(what: str, share: float) -> None:
            bar.update(task, description=what, completed=share)

        yield report


def _open_profile(folder: Path | None, passphrase_file: Path | None) -> Profile:
    return open_profile(folder, passphrase_file)


# --- owner -----------------------------------------------------------------------------------


def owner_init(
    folder: Path | None,
    servers: Sequence[str],
    collusion: int,
    name: str,
    passphrase_file: Path | None,
    *,
    files: GivenFiles,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Run ``mksearch owner init``."""
    folder = folder or default_profile()
    # An earlier attempt may have claimed some servers, and those have deleted their tokens.
    is_again = (folder / "keys").exists()
    tokens = dict(_parse_server(server, is_again=is_again) for server in servers)
    if len(tokens) != len(servers):
        raise ParameterError("one address is named twice", cure="name every server once")
    with Owner.create(
        folder,
        tokens,
        name=name,
        collusion_bound=collusion,
        passphrase=read_passphrase(passphrase_file),
        timeout_s=timeout_s,
        files=files,
    ) as owner:
        profile = owner.profile
    fields = {
        "profile": str(folder),
        "collection": profile.keys.collection.hex(),
        "owner_key": profile.keys.signing.public.hex(),
        "n_servers": profile.quorum.n_servers,
        "collusion_bound": profile.quorum.collusion_bound,
        "servers": [{"id": s.id, "address": s.address} for s in profile.servers.values()],
    }
    if as_json:
        print_json(fields)
        return
    out(f"claimed {counted(len(tokens), 'server')}; keep a safe copy of the keys, in {folder}")
    out("publish with: mksearch owner publish PATH")


def _parse_server(text: str, *, is_again: bool) -> tuple[str, str]:
    address, separator, token = text.partition("=")
    if not separator or not token:
        raise ParameterError(
            f"--server {text!r} is not HOST:PORT=CLAIM-TOKEN",
            cure="mksearch-server init prints the token; =@FILE reads it from a file",
        )
    if not token.startswith("@"):
        return address, token
    try:
        return address, Path(token[1:]).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        if is_again and isinstance(error, FileNotFoundError):
            return address, ""
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise ParameterError(
            f"the claim token in {token[1:]} cannot be read ({why})",
            cure="name the file claim-token that mksearch-server init wrote",
        ) from None


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """Options of ``mksearch owner publish``."""

    paths: Sequence[Path]
    scoring: str | None
    language: str
    policy: str | None
    delete_missing: bool
    dry_run: bool
    report: Path | None


def owner_publish(
    folder: Path | None,
    passphrase_file: Path | None,
    options: PublishOptions,
    *,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Run ``mksearch owner publish``."""
    if options.scoring not in (None, "tfidf", "bm25"):
        raise ParameterError(f"there is no scoring {options.scoring!r}", cure="use tfidf or bm25")
    if options.policy is not None:
        # "" is what a shell makes of a variable that is not set, and would be every member.
        parse_policy(options.policy)
    console = Console(file=sys.stderr)
    profile = _open_profile(folder, passphrase_file)
    if options.report is not None:
        # Before the work: a version that is served cannot be taken back for want of a report.
        require_output(options.report, "report", starts_with(_REPORT_START))
        write_plain(options.report, b"", mode="ab")
    with Owner(profile, timeout_s=timeout_s) as owner, progress_bar(console) as progress:
        report = owner.publish(
            options.paths,
            policy=options.policy or "",
            scoring=options.scoring,
            language=options.language,
            delete_missing=options.delete_missing,
            dry_run=options.dry_run,
            progress=progress,
        )
    fields = report.to_json()
    if options.report is not None:
        write_plain(options.report, json.dumps(fields, ensure_ascii=False).encode())
    if as_json:
        print_json(fields)
        return
    _show_published(report, options)


def _show_published(report: PublishReport, options: PublishOptions) -> None:
    for skipped in report.skipped[:_SKIPPED_SHOWN]:
        line = "" if skipped.line is None else f" line {skipped.line}"
        note(f"skipped {skipped.path}{line}: {skipped.reason}")
    if len(report.skipped) > _SKIPPED_SHOWN:
        note(f"skipped {len(report.skipped) - _SKIPPED_SHOWN} more (--report lists them)")
    for server in report.servers:
        if server["status"] != "ok":
            note(f"server {server['id']}: {server['reason']}")
    documents = counted(report.documents, "document")
    if options.policy is not None:
        documents += f" under {options.policy}"
    changes = (
        f"{report.added} added, {report.replaced} replaced, {report.deleted} deleted, "
        f"{report.unchanged} left alone"
    )
    if options.dry_run:
        what = f"to be published ({changes})" if report.changed else "published already"
        out(f"{documents} {what}")
    elif not report.changed:
        out(f"nothing changed: version {report.version} has {documents} already")
    else:
        out(
            f"version {report.version} has {documents} ({changes}): {report.columns} columns, "
            f"{report.index_bytes / 1e6:.1f} MB of index on every server"
        )


def owner_status(
    folder: Path | None, passphrase_file: Path | None, *, timeout_s: float, as_json: bool
) -> None:
    """Run ``mksearch owner status``."""
    with Owner(_open_profile(folder, passphrase_file), timeout_s=timeout_s) as owner:
        signed, servers = owner.status()
        expires_at = 0 if signed is None else owner.expires_at(signed)
        groups, problem = _groups(owner, signed)
        name = owner.profile.name
        evidence = owner.profile.evidence()
        equivocations = owner.profile.equivocations()
    manifest = None if signed is None else signed.manifest
    n_docs = 0 if manifest is None else sum(group.n_docs for group in manifest.groups)
    fields = {
        "name": name,
        "version": 0 if manifest is None else manifest.version,
        "documents": n_docs,
        "expires_at": expires_at,
        "timestamp_key": "" if manifest is None else manifest.timestamp_key.hex(),
        "created_at": 0 if manifest is None else manifest.created_at,
        "groups": [asdict(group) for group in groups],
        "servers": [asdict(server) for server in servers],
        "evidence": [asdict(kept) for kept in evidence],
        "equivocations": [asdict(kept) for kept in equivocations],
    }
    if as_json:
        print_json(fields)
        return
    if manifest is None:
        out(f"{name}: nothing is published")
    else:
        until = datetime.fromtimestamp(expires_at, UTC).date()
        made = datetime.fromtimestamp(manifest.created_at, UTC)
        out(
            f"{name}: version {manifest.version} of {made:%Y-%m-%d %H:%M} UTC, "
            f"{counted(n_docs, 'document')}, until {until}"
        )
    for group in groups:
        policy = safe(group.policy) or "every member"
        out(
            f"{policy}: {counted(group.documents, 'document')}, {group.deleted} deleted and not "
            f"erased, {counted(group.segments, 'segment')}, {group.bytes / 1e6:.1f} MB of index; "
            f"compacting saves {group.compact_saves_bytes / 1e6:.1f} MB"
        )
    if problem:
        note(problem)
    for server in servers:
        reason = f": {server.reason}" if server.reason else ""
        out(f"server {server.id} {server.address} {server.status} v{server.version}{reason}")
    for kept in evidence:
        day = datetime.fromtimestamp(kept.kept_at, UTC).date()
        out(f"server {kept.server} lied about version {kept.version} on {day}: {kept.path}")
    for pair in equivocations:
        day = datetime.fromtimestamp(pair.kept_at, UTC).date()
        out(f"two manifests about version {pair.version} were met on {day}: {pair.path}")


def _groups(owner: Owner, signed: SignedManifest | None) -> tuple[tuple[GroupStatus, ...], str]:
    """Return what a version holds, and why that cannot be said."""
    try:
        return owner.groups(signed), ""
    except MksearchError as error:
        # Servers that are away are what the rest of the status is about.
        return (), f"what the servers hold cannot be read: {error}"


def owner_card(
    folder: Path | None, passphrase_file: Path | None, output: Path, *, as_json: bool
) -> None:
    """Run ``mksearch owner card``."""
    with Owner(_open_profile(folder, passphrase_file)) as owner:
        data = owner.card()
    require_output(output, "card", is_card)
    write_plain(output, data)
    if as_json:
        print_json({"card": str(output)})
    else:
        out(f"the card is in {output}; it holds no secret")


def owner_verify(
    folder: Path | None, passphrase_file: Path | None, *, timeout_s: float, as_json: bool
) -> None:
    """Run ``mksearch owner verify``: code 3 when a server holds other bytes, 1 for silence."""
    console = Console(file=sys.stderr)
    profile = _open_profile(folder, passphrase_file)
    with Owner(profile, timeout_s=timeout_s) as owner, progress_bar(console) as progress:
        found = owner.verify(progress)
    good = all(result == "ok" for result in found.values())
    if as_json:
        servers = [{"id": server, "result": result} for server, result in found.items()]
        print_json({"verified": good, "servers": servers})
    else:
        for server, result in found.items():
            out(f"server {server}: {result}")
    if not good:
        silent = all(result == "ok" or result.startswith(UNREACHABLE) for result in found.values())
        raise typer.Exit(1 if silent else 3)


def owner_judge(
    folder: Path | None,
    passphrase_file: Path | None,
    evidence: Sequence[Path],
    *,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Run ``mksearch owner verify --evidence``: code 3 when a lie or two manifests are proved."""
    with Owner(_open_profile(folder, passphrase_file), timeout_s=timeout_s) as owner:
        verdicts = [(path, owner.judge(path)) for path in evidence]
    if as_json:
        print_json({"evidence": [{"path": str(p), **asdict(verdict)} for p, verdict in verdicts]})
    else:
        for path, verdict in verdicts:
            if not verdict.server:
                out(f"{path}: {verdict.reason}")
                continue
            what = "lied" if verdict.is_lie else "did not lie"
            about = f"server {verdict.server} {what} about version {verdict.version}"
            out(f"{path}: {about}: {verdict.reason}")
    if any(verdict.is_lie for _, verdict in verdicts):
        raise typer.Exit(3)


def owner_renew(
    folder: Path | None, passphrase_file: Path | None, *, timeout_s: float, as_json: bool
) -> None:
    """Run ``mksearch owner renew``."""
    with Owner(_open_profile(folder, passphrase_file), timeout_s=timeout_s) as owner:
        manifest = owner.renew().manifest
        _, servers = owner.status()
    if as_json:
        print_json(
            {
                "version": manifest.version,
                "expires_at": manifest.expires_at,
                "servers": [asdict(server) for server in servers],
            }
        )
    else:
        for server in servers:
            if server.status != "ok":
                note(f"server {server.id} did not take it: {server.reason}")
        until = datetime.fromtimestamp(manifest.expires_at, UTC).date()
        out(f"version {manifest.version} is good until {until}")


# --- member ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options of ``mksearch search``."""

    query: str
    k: int
    offset: int
    max_records: int | None
    explain: bool
    accept_expired: bool
    privacy: str = "balanced"


def run_search(
    folder: Path | None,
    passphrase_file: Path | None,
    options: SearchOptions,
    *,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Run ``mksearch search``."""
    with Searcher(
        folder,
        passphrase_file=passphrase_file,
        timeout_s=timeout_s,
        accept_expired=options.accept_expired,
    ) as searcher:
        result = searcher.search(
            options.query,
            options.k,
            offset=options.offset,
            max_records=options.max_records,
            privacy=options.privacy,
        )
    if as_json:
        print_json(result.to_json())
        return
    _show(result, explain=options.explain)


def _show(result: SearchResult, *, explain: bool) -> None:
    console = Console(highlight=False)
    for hit in result.hits:
        line = Text(f"{hit.rank:>3}  {hit.score:.6f}  ")
        line.append(safe(hit.title or hit.id), style="bold")
        line.append(f"  [{safe(hit.id)}]", style="dim")
        console.print(line, soft_wrap=True)
        if hit.snippet:
            console.print(Text(f"     {safe(hit.snippet, 200)}"), soft_wrap=True)
    if not result.hits:
        out("no document matches")
    for warning in result.warnings:
        note(f"note: {warning}")
    for server in result.servers:
        if server.status not in ("ok", "unused"):
            note(f"server {server.id} {server.address} {server.status}: {server.reason}")
    note(
        f"{len(result.hits)} of {counted(result.n_docs, 'document')}, version {result.version}, "
        f"{'exact' if result.exact else 'NOT exact'}, every row verified; what the servers learned:"
    )
    for sentence in result.learned:
        note(f"- {sentence}")
    if explain:
        for server in result.servers:
            note(f"server {server.id} {server.address}: {server.status}")
        parts = ", ".join(f"{name} {ms:.1f}" for name, ms in result.timings_ms.items())
        n_records, n_rounds = result.records_fetched, result.rounds
        note(f"{counted(n_records, 'record')}, {counted(n_rounds, 'round')}; ms: {parts}")
        if result.blocks_opened:
            note(
                f"{counted(result.blocks_opened, 'block')} opened in "
                f"{counted(result.score_waits, 'wait')}; cells read: "
                f"{100 * result.cells_share:.1f} % of those of all documents"
            )
        note(f"{result.bytes_sent} bytes sent, {result.bytes_received} received")


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """Options of ``mksearch open``."""

    document_id: str
    output: Path | None
    accept_expired: bool


def run_open(
    folder: Path | None,
    passphrase_file: Path | None,
    options: OpenOptions,
    *,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Run ``mksearch open``."""
    if not _has_utf8(options.document_id):
        raise InputError("the id is not valid UTF-8", cure="use an id that a search showed")
    with Searcher(
        folder,
        passphrase_file=passphrase_file,
        timeout_s=timeout_s,
        accept_expired=options.accept_expired,
    ) as searcher:
        document = searcher.open(options.document_id)
    if options.output is not None:
        write_plain(options.output, document.text.encode())
    if as_json:
        print_json({"id": document.id, "title": document.title, "text": document.text})
    elif options.output is not None:
        out(f"{document.id} is in {options.output}")
    elif sys.stdout.isatty():
        for line in document.text.splitlines():
            out(line)
    else:
        sys.stdout.write(document.text)


def _has_utf8(text: str) -> bool:
    """Return whether an argument was valid UTF-8."""
    return not any("\ud800" <= char <= "\udfff" for char in text)
