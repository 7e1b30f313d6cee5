"""``mksearch user``: make keys, enrol, and help an owner who lost theirs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mksearch_client.options import (
    Authorities,
    ClientCertificate,
    ClientKey,
    Json,
    PassphraseFile,
    ProfileFolderOption,
)

if TYPE_CHECKING:
    from mksearch_client.user import Whoami

__all__ = ["app"]

app = typer.Typer(help="What a user does besides searching.", no_args_is_help=True)


@app.command(epilog="Example: mksearch user init --card card.json")
def init(
    card: Annotated[Path, typer.Option(help="Card that the owner made.")],
    profile: ProfileFolderOption = None,
    authorities: Authorities = None,
    client_certificate: ClientCertificate = None,
    client_key: ClientKey = None,
    passphrase_file: PassphraseFile = None,
    as_json: Json = False,
) -> None:
    """Make a profile with new keys for the collection of a card, or take those of user keygen."""
    from mksearch_client.client_files import GivenFiles
    from mksearch_client.outputs import out
    from mksearch_client.profile_folder import default_profile, read_passphrase
    from mksearch_client.terminal import print_json
    from mksearch_client.user import User

    folder = profile or default_profile()
    files = GivenFiles(authorities, client_certificate, client_key)
    passphrase = read_passphrase(passphrase_file)
    user = User.create(folder, card, passphrase=passphrase, files=files).profile
    if as_json:
        print_json(
            {
                "profile": str(folder),
                "collection": user.collection.hex(),
                "name": user.name,
                "owner_key": user.owner_key.hex(),
                "user": user.identity.public.id.hex(),
                "user_key": str(folder / "user-key"),
            }
        )
        return
    out(f"send {folder / 'user-key'} to the admin of {user.name}; it holds no secret")
    enrol_with = f"mksearch user enrol --credential FILE --profile {folder}"
    out(f"with the credential that comes back: {enrol_with}")


@app.command(epilog="Example: mksearch user keygen --profile alice")
def keygen(
    profile: ProfileFolderOption = None,
    passphrase_file: PassphraseFile = None,
    as_json: Json = False,
) -> None:
    """Make keys without a card: to hold a share of a backup, or to be admitted later."""
    from mksearch.crypto.randomness import SystemRandom
    from mksearch_client.outputs import out
    from mksearch_client.profile_folder import default_profile, read_passphrase
    from mksearch_client.terminal import print_json
    from mksearch_client.user_profile import create_identity

    folder = profile or default_profile()
    identity = create_identity(folder, SystemRandom(), read_passphrase(passphrase_file))
    if as_json:
        fields = {"user": identity.public.id.hex(), "user_key": str(folder / "user-key")}
        print_json({"profile": str(folder)} | fields)
        return
    out(f"the keys of user {identity.public.id.hex()[:16]} are in {folder}")
    out(f"hand out {folder / 'user-key'}, which holds no secret")


@app.command(epilog="Example: mksearch user enrol --credential alice.credential")
def enrol(
    credential: Annotated[Path, typer.Option(help="File that the admin made for this user.")],
    id_token: Annotated[
        Path | None,
        typer.Option(
            help="ID token of an OpenID Connect login whose nonce was the user id (whoami --json)."
        ),
    ] = None,
    profile: ProfileFolderOption = None,
    passphrase_file: PassphraseFile = None,
    as_json: Json = False,
) -> None:
    """Take the credential that the admin made, and keep it."""
    from mksearch_client.outputs import cured, read_input
    from mksearch_client.terminal import print_json
    from mksearch_client.user import User

    user = User(profile, passphrase_file=passphrase_file)
    data = read_input(credential, "the credential")
    # Bytes that are no text are no token either: the servers refuse them in words.
    token = read_input(id_token, "the ID token").decode("latin-1") if id_token else None
    with cured("ask the admin for a credential made with this profile's user-key and card"):
        user.enrol(data, id_token=token)
    found = user.whoami()
    if as_json:
        print_json(found.to_json())
        return
    _show(found)
    # Named, for without it the default profile would search, which may be the owner's.
    _out(f'search with: mksearch search "WORDS" --profile {user.profile.folder}')


@app.command(epilog="Example: mksearch user whoami")
def whoami(
    profile: ProfileFolderOption = None,
    passphrase_file: PassphraseFile = None,
    as_json: Json = False,
) -> None:
    """Say who this profile is and what it may."""
    from mksearch_client.terminal import print_json
    from mksearch_client.user import User

    found = User(profile, passphrase_file=passphrase_file).whoami()
    if as_json:
        print_json(found.to_json())
    else:
        _show(found)


def _show(found: Whoami) -> None:
    _out(f"user {found.user[:16]} of {found.name} ({found.collection})")
    if not found.enrolled:
        _out(
            f"not enrolled: send {Path(found.profile) / 'user-key'} to the admin, then "
            "mksearch user enrol --credential FILE"
        )
        return
    until = f"{datetime.fromtimestamp(found.expires_at, UTC):%Y-%m-%d %H:%M} UTC"
    when = f"expired {until}: ask the admin for a new one" if found.expired else f"until {until}"
    _out(f"{', '.join(found.attributes)}; epoch {found.epoch}, {when}")


def _out(text: str) -> None:
    from mksearch_client.outputs import out

    out(text)


@app.command(epilog="Example: mksearch user open-share alice.share -o alice.opened")
def open_share(
    share: Annotated[Path, typer.Argument(metavar="FILE", help="Share that an owner made.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write; secret.")],
    profile: ProfileFolderOption = None,
    passphrase_file: PassphraseFile = None,
    as_json: Json = False,
) -> None:
    """Open this user's share of an owner's backup, to give it to the owner."""
    from mksearch.access.backup_share import OPENED_MAGIC
    from mksearch_client.holder import open_share as opened_by
    from mksearch_client.outputs import cured, out, read_input, starts_with, write_output
    from mksearch_client.profile_folder import default_profile, read_passphrase
    from mksearch_client.terminal import print_json

    data = read_input(share, "the share")
    folder = profile or default_profile()
    with cured("it is damaged or no share for this user: ask the owner for it again"):
        opened = opened_by(data, folder, read_passphrase(passphrase_file))
    kind = ("opened share", starts_with(OPENED_MAGIC))
    write_output(output, opened.encode(), *kind)
    body = opened.body
    if as_json:
        print_json(
            {
                "share": str(output),
                "name": body.name,
                "policy": body.policy.decode(),
                "collection": body.collection.hex(),
                "owner_key": body.owner_key.hex(),
                "backup": body.backup.hex(),
            }
        )
        return
    out(f"{output} is {body.name}'s share of the backup of owner {body.owner_key.hex()[:16]}")
    out("it is secret: give it to the owner in person, who runs mksearch owner recover")
