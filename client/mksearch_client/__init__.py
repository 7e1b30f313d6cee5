"""The client of mksearch: reading documents, publishing, searching, and the command line.

``from mksearch_client import Owner, Searcher`` (and their async twins) is the Python interface,
``Admin`` and ``User`` are for admitting people; their work is too short to be awaited.
Importing the package loads nothing heavy; each name loads its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mksearch_client.admin import Admin
    from mksearch_client.member import Searcher
    from mksearch_client.owner import Owner
    from mksearch_client.twin import AsyncOwner, AsyncSearcher
    from mksearch_client.user import User

__all__ = ["Admin", "AsyncOwner", "AsyncSearcher", "Owner", "Searcher", "User"]

_MODULES = {
    "Admin": "admin",
    "AsyncOwner": "twin",
    "AsyncSearcher": "twin",
    "Owner": "owner",
    "Searcher": "member",
    "User": "user",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
