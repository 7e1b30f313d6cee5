"""``mksearch admin``: the administration that admits users."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from mksearch_client.options import Json, PassphraseFile, ProfileFolderOption, Timeout

__all__ = ["app"]

app = typer.Typer(help="Admit users to the owner's collection.", no_args_is_help=True)


@app.command(epilog="Example: mksearch admin init")
def init(
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Keep the authority here; users enrol without servers."),
    ] = False,
    profile: ProfileFolderOption = None,
    passphrase_file: PassphraseFile = None,
    timeout: Timeout = 10.0,
    as_json: Json = False,
) -> None:
    """Make the administration of a collection, its authority shared over all servers."""
    from mksearch_client.admin import Admin
    from mksearch_client.outputs import out
    from mksearch_client.terminal import print_json

    admin = Admin.create(profile, passphrase_file=passphrase_file, is_offline=offline)
    if not offline:
        admin.share(timeout_s=timeout)
    folder = admin.profile.folder
    if as_json:
        print_json(
            {
                "profile": str(folder),
                "collection": admin.profile.collection.hex(),
                "authority": admin.authority.hex(),
                "admin_key": admin.key.hex(),
                "epoch": admin.epoch,
                "shared": admin.is_shared,
            }
        )
        return
    if admin.is_shared:
        n_servers, need = admin.profile.quorum.n_servers, admin.profile.quorum.threshold
        out(f"{n_servers} servers share the authority, any {need} of them make a user's key")
    out(f"the administration is in {folder}; the servers learn of it when you next publish, or now")
    out("with: mksearch owner renew; then make a new card for users: mksearch owner card -o FILE")
    out("backups made before do not hold it: make a new one with mksearch owner backup")


@app.command(
    epilog="Example: mksearch admin credential --user-key alice.key "
    "--attribute role:analyst --attribute clearance:3 --expires 30d -o alice.credential"
)
def credential(
    *,
    user_key: Annotated[Path, typer.Option(help="The file user-key of the user's profile.")],
    attribute: Annotated[
        list[str], typer.Option(help="NAME:VALUE that the user has; may be repeated.")
    ],
    expires: Annotated[str, typer.Option(help="How long it is good: 90s, 15m, 12h, 30d, 2w.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")],
    profile: ProfileFolderOption = None,
    passphrase_file: PassphraseFile = None,
    as_json: Json = False,
) -> None:
    """Make a credential for a user: what they have, and until when."""
    from mksearch.access.credential import CREDENTIAL_MAGIC
    from mksearch.crypto.user_key import UserKey
    from mksearch_client.admin import Admin
    from mksearch_client.durations import parse_duration
    from mksearch_client.outputs import (
        cured,
        out,
        read_input,
        require_output,
        starts_with,
        write_output,
    )
    from mksearch_client.terminal import print_json

    life_s = parse_duration(expires, "--expires")
    ask_user = "ask the user for the file user-key of their profile"
    with cured(ask_user):
        key = UserKey.decode(read_input(user_key, "the user key"))
    kind = ("credential", starts_with(CREDENTIAL_MAGIC))
    # Before it is issued: what cannot be handed out is not to be listed either.
    require_output(output, *kind)
    admin = Admin(profile, passphrase_file=passphrase_file)
    # Some keys are found not to work only when something is sealed to them.
    with cured(ask_user):
        made = admin.issue(key, attribute, life_s=life_s)
    write_output(output, made.encode(), *kind)
    issued = made.credential
    attributes = [str(one) for one in issued.attributes]
    if as_json:
        print_json(
            {
                "credential": str(output),
                "serial": issued.serial.hex(),
                "user": issued.user.hex(),
                "attributes": attributes,
                "epoch": issued.epoch,
                "issued_at": issued.issued_at,
                "expires_at": issued.expires_at,
            }
        )
        return
    out(f"{output} is for user {issued.user.hex()[:16]}, until {_when(issued.expires_at)}:")
    out(", ".join(attributes))
    out(f"it serves that user alone: they run mksearch user enrol --credential {output.name}")


@app.command("list", epilog="Example: mksearch admin list")
def list_credentials(
    profile: ProfileFolderOption = None,
    passphrase_file: PassphraseFile = None,
    as_json: Json = False,
) -> None:
    """List the credentials that were made, oldest first."""
    from mksearch_client.admin import Admin
    from mksearch_client.outputs import out
    from mksearch_client.terminal import print_json

    issued = Admin(profile, passphrase_file=passphrase_file).issued()
    now_s = int(time.time())
    if as_json:
        entries = [asdict(one) | {"expired": now_s > one.expires_at} for one in issued]
        print_json({"credentials": entries})
        return
    for one in issued:
        until = "expired" if now_s > one.expires_at else "until"
        out(
            f"{one.serial[:8]}  user {one.user[:16]}  epoch {one.epoch}  {until} "
            f"{_when(one.expires_at)}  {', '.join(one.attributes)}"
        )
    if not issued:
        out("no credential was made yet; make one with mksearch admin credential")


def _when(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
