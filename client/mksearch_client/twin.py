"""The async twins of Searcher and Owner: the same calls, awaited.

The work is done by the same code on threads, one call at a time for each object: waiting for
servers holds up no event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from mksearch.index.document import StoredDocument
from mksearch.index.manifest import SignedManifest
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner, PublishReport, ServerStatus
from mksearch_client.owner_reports import CompactReport
from mksearch_client.profile import Profile
from mksearch_client.profile_folder import ProfileFolder
from mksearch_client.result import SearchResult
from mksearch_client.server_card import ServerCard
from mksearch_client.server_changes import ServerChange

__all__ = ["AsyncOwner", "AsyncSearcher"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _OneAtATime:
    """Runs calls on threads, each after the one before."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        async with self._lock:
            return await asyncio.to_thread(call, *args, **kwargs)


class AsyncSearcher:
    """``async with AsyncSearcher(folder) as searcher: await searcher.search("words", k=10)``."""

    def __init__(
        self,
        profile: ProfileFolder | Path | str | None = None,
        *,
        passphrase_file: Path | None = None,
        timeout_s: float = 10.0,
        accept_expired: bool = False,
    ) -> None:
        """Open a profile; see ``Searcher``."""
        self._searcher = Searcher(
            profile,
            passphrase_file=passphrase_file,
            timeout_s=timeout_s,
            accept_expired=accept_expired,
        )
        self._calls = _OneAtATime()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the servers; questions under way end with an error."""
        await asyncio.to_thread(self._searcher.close)

    async def search(
        self,
        query: str,
        k: int = 10,
        *,
        offset: int = 0,
        max_records: int | None = None,
        privacy: str = "balanced",
    ) -> SearchResult:
        """Return the ``k`` best documents for ``query``, proved; see ``Searcher.search``."""
        return await self._calls.run(
            self._searcher.search,
            query,
            k,
            offset=offset,
            max_records=max_records,
            privacy=privacy,
        )

    async def open(self, external_id: str) -> StoredDocument:
        """Fetch and open a whole document; see ``Searcher.open``."""
        return await self._calls.run(self._searcher.open, external_id)


class AsyncOwner:
    """``async with AsyncOwner(folder) as owner: await owner.publish([path])``."""

    def __init__(
        self,
        profile: Profile | Path | str | None = None,
        *,
        passphrase_file: Path | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        """Open a profile; see ``Owner``."""
        self._owner = Owner(profile, passphrase_file=passphrase_file, timeout_s=timeout_s)
        self._calls = _OneAtATime()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._owner.close)

    async def publish(
        self,
        paths: Sequence[Path],
        *,
        policy: str = "",
        scoring: str | None = None,
        language: str = "auto",
        delete_missing: bool = False,
        dry_run: bool = False,
    ) -> PublishReport:
        """Bring the documents of ``paths`` into the collection; see ``Owner.publish``."""
        return await self._calls.run(
            self._owner.publish,
            paths,
            policy=policy,
            scoring=scoring,
            language=language,
            delete_missing=delete_missing,
            dry_run=dry_run,
        )

    async def delete(self, ids: Collection[str]) -> SignedManifest:
        """Delete documents by id; see ``Owner.delete``."""
        return await self._calls.run(self._owner.delete, ids)

    async def compact(self, *, tiered: bool = False, dry_run: bool = False) -> CompactReport:
        """Merge segments and erase what was deleted; see ``Owner.compact``."""
        return await self._calls.run(self._owner.compact, tiered=tiered, dry_run=dry_run)

    async def replace_server(self, server: int, card: ServerCard) -> ServerChange:
        """Have another server take a place; see ``Owner.replace_server``."""
        return await self._calls.run(self._owner.replace_server, server, card)

    async def add_server(self, card: ServerCard) -> ServerChange:
        """Have one more server join; see ``Owner.add_server``."""
        return await self._calls.run(self._owner.add_server, card)

    async def status(self) -> tuple[SignedManifest | None, list[ServerStatus]]:
        """Return the newest version and what every server says; see ``Owner.status``."""
        return await self._calls.run(self._owner.status)

    async def verify(self) -> dict[int, str]:
        """Read back every byte from every server; see ``Owner.verify``."""
        return await self._calls.run(self._owner.verify)

    async def renew(self) -> SignedManifest:
        """Sign the newest version again with a later expiry; see ``Owner.renew``."""
        return await self._calls.run(self._owner.renew)
