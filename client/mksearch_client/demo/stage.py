"""Servers as objects in this process, each with a folder of its own, and what can go wrong."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from mksearch.params import Quorum
from mksearch.scoring.engine import make_engine
from mksearch_client.publishing import Progress, Publication, upload
from mksearch_server.search_server import SearchServer
from mksearch_server.store import ObjectStore

__all__ = ["Stage"]

#: Bytes changed in the cells of a server that the demo makes lie.
N_CHANGED = 16


class Stage:
    """The servers of the demo.

    Attributes:
        servers: by id.
    """

    def __init__(self, folder: Path, quorum: Quorum, owner_key: bytes) -> None:
        self._folder = folder
        self.servers = {
            server: SearchServer(
                server, ObjectStore(self._server_folder(server)), owner_key, make_engine("cpu")
            )
            for server in range(1, quorum.n_servers + 1)
        }

    def _server_folder(self, server: int) -> Path:
        return self._folder / f"server-{server}"

    def addresses(self) -> dict[int, str]:
        """Return where each server is, for reports."""
        return dict.fromkeys(self.servers, "in this process")

    def publish(self, publication: Publication, progress: Progress) -> None:
        """Bring every server to the version of ``publication``."""
        for server, target in self.servers.items():

            def report(_what: str, share: float, server: int = server) -> None:
                progress(f"sending to server {server}", share)

            upload(publication, target, report)

    def without(self, servers: Iterable[int]) -> dict[int, SearchServer]:
        """Return the servers that remain when some are gone."""
        gone = set(servers)
        return {server: self.servers[server] for server in self.servers if server not in gone}

    def change_stored_bytes(self, publication: Publication, server: int) -> int:
        """Change a few bytes of what ``server`` has stored; return how many.

        They lie in the cells of the documents, spread evenly: what a faulty disk or a careless or
        dishonest operator may do.
        """
        segment = publication.signed.manifest.groups[0].segments[0]
        layout = self.servers[server].segment(segment.id).header.layout
        start, stop = layout.offsets[0], layout.offsets[1]
        path = ObjectStore(self._server_folder(server)).path(segment.id)
        stored = np.memmap(path, np.uint8, "r+")
        # Even offsets: the low byte of a cell, whose lowest bit keeps it a field element.
        places = np.linspace(start, stop - 2, N_CHANGED).astype(np.int64) // 2 * 2
        stored[places] ^= 1
        stored.flush()
        return len(places)
