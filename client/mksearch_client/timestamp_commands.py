"""``mksearch owner timestamp-key``, and ``owner renew`` with such a key."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from mksearch.errors import ParameterError
from mksearch_client.options import Json, PassphraseFile, ProfileFolderOption, Timeout

__all__ = ["TIMESTAMP_EXAMPLE", "renew_with", "timestamp_key"]

TIMESTAMP_EXAMPLE = "Example: mksearch owner timestamp-key --to renewals.key"


def timestamp_key(
    *,
    to: Annotated[
        Path | None, typer.Option(help="New file for the key; whoever holds it can renew.")
    ] = None,
    to_passphrase_file: Annotated[
        Path | None, typer.Option(help="File with a passphrase that seals the new file [none].")
    ] = None,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Name no timestamp key from now on.")
    ] = False,
    profile: ProfileFolderOption = None,
    passphrase_file: PassphraseFile = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Draw a key that renews the expiry and can do nothing else; an older one is void."""
    from mksearch_client.outputs import out
    from mksearch_client.owner import Owner
    from mksearch_client.profile import open_profile
    from mksearch_client.profile_folder import read_passphrase_in
    from mksearch_client.terminal import print_json

    if (to is None) != revoke:
        raise ParameterError(
            "a new timestamp key needs --to FILE, and --revoke needs none",
            cure="use one of the two",
        )
    passphrase = None if to_passphrase_file is None else read_passphrase_in(to_passphrase_file)
    with Owner(open_profile(profile, passphrase_file), timeout_s=timeout) as owner:
        if to is None:
            manifest = owner.revoke_timestamp_key().manifest
        else:
            manifest = owner.draw_timestamp_key(to, passphrase=passphrase).manifest
    if as_json:
        print_json(
            {
                "timestamp_key": manifest.timestamp_key.hex(),
                "file": "" if to is None else str(to),
                "version": manifest.version,
                "expires_at": manifest.expires_at,
            }
        )
    elif to is None:
        out(f"version {manifest.version} names no timestamp key; those that were are void")
    else:
        out(f"version {manifest.version} names the key in {to}, and any before is void; renew with")
        out(f"mksearch owner renew --timestamp {to}")


def renew_with(
    file: Path, passphrase_file: Path | None, *, timeout_s: float, as_json: bool
) -> None:
    """Run ``mksearch owner renew --timestamp``."""
    from mksearch_client.outputs import note, out
    from mksearch_client.profile_folder import read_passphrase
    from mksearch_client.terminal import print_json
    from mksearch_client.timestamp import TimestampFile, renew_by_timestamp

    key = TimestampFile.read(file, read_passphrase(passphrase_file))
    renewed = renew_by_timestamp(key, timeout_s=timeout_s)
    if as_json:
        print_json(
            {
                "version": renewed.version,
                "expires_at": renewed.expires_at,
                "servers": [asdict(server) for server in renewed.servers],
            }
        )
        return
    for server in renewed.servers:
        if server.status != "ok":
            note(f"server {server.id} did not take it: {server.reason}")
    until = datetime.fromtimestamp(renewed.expires_at, UTC).date()
    out(f"version {renewed.version} is good until {until}")
