"""Bring along a server that serves an older version: it is handed the newest, proved one."""

from __future__ import annotations

from mksearch.errors import MksearchError
from mksearch.index.manifest import SignedManifest
from mksearch_client.connection import GrpcConnection

__all__ = ["hand_on"]


def hand_on(connection: GrpcConnection, signed: SignedManifest) -> bool:
    """Hand a manifest to a server that may lag; return whether it serves that version now.

    One that lacks objects fetches them from its peers, where its operator named some, and serves
    the version later.
    """
    try:
        connection.propose(signed.encode())
        return connection.activate(signed.hash) == signed.manifest.version
    except MksearchError:
        # It lacks what only others can bring, or is away.
        return False
