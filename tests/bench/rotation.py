"""How long a group takes to be encrypted anew, and what a search feels of it; run by hand.

`python -m tests.bench.rotation [DOCUMENTS]` publishes package descriptions under a policy to three
server processes, revokes a member, rotates from a process of its own, and searches meanwhile.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mksearch.errors import CredentialRefused
from mksearch_client.admin import Admin
from mksearch_client.member import Searcher
from mksearch_client.owner import Owner
from mksearch_client.user import User
from tests.bench.bench import Bench
from tests.bench.figures import median_of
from tests.support.grpc_stage import LIFE_S
from tests.support.processes import REPOSITORY, claim, clean_environment, serving

__all__ = ["main"]

N_DOCS = 50_000
POLICY = "role:analyst AND clearance >= 3"
_MEMBER = ("role:analyst", "clearance:5")


def _enrol(admin: Admin, folder: Path, card: Path) -> User:
    user = User.create(folder, card)
    issued = admin.issue(user.profile.identity.public, _MEMBER, life_s=LIFE_S)
    user.enrol(issued.encode())
    return user


def _rotate(profile: Path) -> None:
    """Do what ``mksearch owner rotate`` does."""
    with Owner(profile, timeout_s=120.0) as owner:
        started = time.perf_counter()
        owner.renew()
        print(f"{time.perf_counter() - started:.2f}")
        started = time.perf_counter()
        owner.rotate()
        print(f"{time.perf_counter() - started:.2f}")


def _measure(folder: Path, n_docs: int) -> None:
    corpus = Bench(folder, quick=False).corpora.descriptions(n_docs)
    with serving(folder) as fleet:
        profile = claim(fleet, folder / "owner")
        admin = Admin.create(profile)
        admin.share()
        with Owner(profile, timeout_s=120.0) as owner:
            started = time.perf_counter()
            owner.publish(list(corpus.paths), policy=POLICY)
            print(f"{corpus.n_docs} documents {corpus.note}")
            print(f"published in {time.perf_counter() - started:.1f} s")
            (folder / "card").write_bytes(owner.card())
        stays = _enrol(admin, folder / "stays", folder / "card")
        goes = _enrol(admin, folder / "goes", folder / "card")
        with Searcher(stays.profile) as searcher:
            quiet = [_search(searcher, query) for query in corpus.short]
            admin.revoke(users=[goes.profile.identity.public.id.hex()])
            rotating = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.rotation", "--rotate", str(profile.folder)],
                stdout=subprocess.PIPE,
                text=True,
                cwd=REPOSITORY,
                env=clean_environment(),
            )
            spent, number = [], 0
            while rotating.poll() is None:
                number += 1
                spent.append(_search(searcher, corpus.short[number % len(corpus.short)]))
            said = (rotating.communicate()[0] or "").split()
            if rotating.returncode:
                raise SystemExit("the rotation failed")
            last = searcher.search(corpus.short[0])
        print(f"epoch {said[0]} s, rotation {said[1]} s")
        for name, times in (("before", quiet), ("meanwhile", spent)):
            print(
                f"searches {name}: {len(times)}, median {1000 * median_of(times):.0f} ms, "
                f"slowest {1000 * max(times):.0f} ms, none failed"
            )
        print(f"warnings afterwards: {list(last.warnings)}")
        with Searcher(goes.profile) as searcher:
            try:
                searcher.search(corpus.short[0])
            except CredentialRefused as error:
                print(f"the revoked member: {error.message}")


def _search(searcher: Searcher, query: str) -> float:
    started = time.perf_counter()
    searcher.search(query)
    return time.perf_counter() - started


def main(arguments: list[str]) -> None:
    """Measure; or, for the process that rotates, rotate."""
    if arguments[:1] == ["--rotate"]:
        _rotate(Path(arguments[1]))
        return
    with tempfile.TemporaryDirectory(prefix="mksearch-rotation-") as folder:
        _measure(Path(folder), int(arguments[0]) if arguments else N_DOCS)


if __name__ == "__main__":
    main(sys.argv[1:])
