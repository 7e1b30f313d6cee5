"""Options that many commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Authorities",
    "ClientCertificate",
    "ClientKey",
    "Json",
    "PassphraseFile",
    "ProfileFolderOption",
    "Timeout",
]

_TIMEOUT_S_MAX = 86_400

Json = Annotated[bool, typer.Option("--json", help="One object on standard output.")]
ProfileFolderOption = Annotated[
    Path | None,
    typer.Option("--profile", help="Folder of the profile [MKSEARCH_PROFILE, ~/.config/mksearch]."),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(help="File with the passphrase of the profile [MKSEARCH_PASSPHRASE_FILE]."),
]


def _checked_timeout(seconds: float) -> float:
    # Written so that "nan" is refused as well.
    if not 0 < seconds <= _TIMEOUT_S_MAX:
        raise typer.BadParameter(f"{seconds:g} is not above 0 and at most {_TIMEOUT_S_MAX}")
    return seconds


Timeout = Annotated[
    float,
    typer.Option(help="Seconds that one request to a server may take.", callback=_checked_timeout),
]
Authorities = Annotated[
    Path | None,
    typer.Option(help="PEM certificates; one of them must have signed every server's as well."),
]
ClientCertificate = Annotated[
    Path | None, typer.Option(help="PEM certificate, for servers that demand one.")
]
ClientKey = Annotated[Path | None, typer.Option(help="PEM key of the client certificate.")]
