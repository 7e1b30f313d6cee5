"""The demo's second act: one user may, one may not, one may no longer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mksearch.errors import MksearchError
from mksearch_client.admin import Admin
from mksearch_client.demo.show import Show
from mksearch_client.demo.stage import Stage
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner
from mksearch_client.user import User

__all__ = ["play_users"]

POLICY = "role:analyst AND clearance >= 3"
QUERY = "quarterly budget"
#: What everybody may read, and what the policy keeps to a few.
OPEN = (
    ("canteen", "The canteen opens at eight; lunch is served until half past one."),
    ("printers", "Printers on the second floor take both sides by default now."),
    ("budget-news", "The quarterly budget meeting moves to the large room."),
    ("bicycles", "Bicycles may be kept in the cellar, behind the archive."),
)
SECRET = (
    ("budget-draft", "Draft of the quarterly budget: travel is cut by a third."),
    ("budget-risks", "Risks of the quarterly budget: two suppliers may not deliver."),
    ("salaries", "Salaries rise with the budget of the next quarter."),
)


@dataclass(frozen=True, slots=True)
class _Guest:
    name: str
    attributes: tuple[str, ...]
    expected: frozenset[str]


_BUDGET_SECRETS = frozenset({"budget-draft", "budget-risks", "salaries"})
_GUESTS = (
    _Guest("Ada", ("role:analyst", "clearance:4"), _BUDGET_SECRETS | {"budget-news"}),
    _Guest("Ben", ("role:analyst", "clearance:2"), frozenset({"budget-news"})),
    _Guest("Cleo", ("role:analyst", "clearance:3"), _BUDGET_SECRETS | {"budget-news"}),
)


def play_users(folder: Path, show: Show) -> list[str]:
    """Admit three users, revoke one; return what went otherwise than promised.

    Args:
        folder: new, for servers, owner and users.
        show: where it is shown.
    """
    folder.mkdir()
    with (
        Stage(folder, 3) as servers,
        Owner.create(folder / "owner", servers.tokens(), name="office") as owner,
    ):
        return _Users(folder, owner, show).play()


class _Users:
    def __init__(self, folder: Path, owner: Owner, show: Show) -> None:
        self._folder = folder
        self._owner = owner
        self._show = show
        self._failures: list[str] = []

    def play(self) -> list[str]:
        self._owner.publish([self._write("open", OPEN)])
        admin = Admin.create(self._owner.profile)
        admin.share()
        self._owner.publish([self._write("secret", SECRET)], policy=POLICY)
        (self._folder / "card").write_bytes(self._owner.card())
        self._show.title(f"Three users, {len(SECRET)} documents under the policy {POLICY}")
        self._show.say(
            "the key that makes attribute keys lies in three shares on three servers; each user's "
            "key was made in parts by two of them"
        )
        for guest in _GUESTS:
            self._admit(admin, guest)
        for guest in _GUESTS:
            self._search(guest, "may" if guest.name != "Ben" else "may not")
        self._revoke(admin, _GUESTS[2])
        return self._failures

    def _write(self, name: str, documents: Sequence[tuple[str, str]]) -> Path:
        path = self._folder / f"{name}.jsonl"
        lines = [json.dumps({"_id": key, "title": key, "text": text}) for key, text in documents]
        path.write_text("\n".join(lines) + "\n")
        return path

    def _admit(self, admin: Admin, guest: _Guest) -> None:
        user = User.create(self._folder / guest.name, self._folder / "card")
        credential = admin.issue(user.profile.identity.public, guest.attributes, life_s=86_400)
        user.enrol(credential.encode())

    def _search(self, guest: _Guest, scene: str) -> None:
        with Searcher(self._folder / guest.name) as searcher:
            result = searcher.search(QUERY)
        found = frozenset(hit.id for hit in result.hits)
        self._show.outcome(f"{guest.name} {scene}", result.to_json())
        self._show.say(
            f"{guest.name} ({', '.join(guest.attributes)}) searches {result.n_docs} documents and "
            f"finds {', '.join(sorted(found)) or 'nothing'}"
        )
        if found != guest.expected:
            self._failures.append(f"{guest.name} found {sorted(found)}")

    def _revoke(self, admin: Admin, guest: _Guest) -> None:
        key = User(self._folder / guest.name).profile.identity.public.id.hex()
        admin.revoke(users=[key])
        self._owner.renew()
        self._show.title(f"{guest.name} was revoked")
        scene = f"{guest.name} revoked"
        try:
            with Searcher(self._folder / guest.name) as searcher:
                searcher.search(QUERY)
        except MksearchError as error:
            self._show.refusal(scene, error.to_fields())
            if error.exit_code != 4:
                self._failures.append(f"{scene}: refused, but not as a matter of rights")
        else:
            self._failures.append(f"{scene}: an answer was shown")
        self._search(_GUESTS[0], "after a revocation")
