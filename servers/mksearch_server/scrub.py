"""Read and prove every object of a store; copy what is good out of a damaged one.

LMDB trusts its own pages: a damaged one may end the process that reads it.  So a store is proved
in a process of its own, ``python -m mksearch_server.scrub``, and that it ended is a finding too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mksearch.crypto.kdf import sha256
from mksearch.errors import FormatError, StorageError, VerificationError
from mksearch.index.blob_list import BlobList
from mksearch.index.manifest import SignedManifest
from mksearch.index.segment import SegmentReader
from mksearch_server.config import load_config
from mksearch_server.identity import CLAIM_STATE, Claim
from mksearch_server.rooms import SEGMENTS, ObjectFolder, Room
from mksearch_server.search_server import ACTIVE_STATE, HIGHEST_STATE
from mksearch_server.storage import open_room
from mksearch_server.store import REPAIR_CURE, ObjectStore

__all__ = ["SMALL", "Damage", "Findings", "copy_good", "prove_store", "scrub"]

#: Told each finding, and what is read next.
Report = Callable[[Mapping[str, Any]], None]
#: Kind of damage: of all small objects together.
SMALL = "small objects"
#: Exit code of a process that had no room for what it copied.
_NO_ROOM = 5


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong with one object.

    Attributes:
        kind: "segment", "object", "manifest", "claim" or "small objects", all of them together.
        name: of the object in hexadecimal, else "".
        reason: one line.
        is_missing: it is not there, or cannot be read, rather than being wrong.
    """

    kind: str
    name: str
    reason: str
    is_missing: bool = False

    def __str__(self) -> str:
        return self.reason


@dataclass(slots=True)
class Findings:
    """What a scrub found.

    Attributes:
        n_objects: that were read.
        version: that the store serves, 0 for none or where that cannot be read.
        damages: what is wrong; nothing where every byte was proved.
        claim: as the store has it, b"" for none.
        manifest: the highest one that the store has and the owner signed, b"" for none.
    """

    n_objects: int = 0
    version: int = 0
    damages: list[Damage] = field(default_factory=list)
    claim: bytes = b""
    manifest: bytes = b""

    def require_whole(self) -> None:
        """Raise if anything is damaged, naming what.

        Raises:
            FormatError: something is damaged.
            StorageError: something is missing or cannot be read.
        """
        if not self.damages:
            return
        kind = StorageError if all(d.is_missing for d in self.damages) else FormatError
        message = self.damages[0].reason
        if len(self.damages) > 1:
            others = ", ".join(f"{d.kind} {d.name[:16]}".strip() for d in self.damages[1:])
            message = f"{len(self.damages)} objects are damaged or missing: {message}; {others}"
        raise kind(message, cure=REPAIR_CURE)


def _prove_segment(name: str, path: Path) -> Damage | None:
    """Return what is wrong with a file that should hold the segment ``name``."""
    what = f"segment {name[:16]}"
    try:
        if not path.stat().st_size:
            return Damage("segment", name, f"{what} is not stored here: its file is empty", True)
        segment = SegmentReader(np.memmap(path, np.uint8, "r"))
        if segment.id.hex() != name:
            raise FormatError("its header is damaged")
        segment.verify()
    except VerificationError as error:
        return Damage("segment", name, f"{what}: {error}")
    except (OSError, ValueError) as error:
        return Damage("segment", name, f"{what} cannot be read ({error})", is_missing=True)
    return None


class _Scrub:
    """Proves one store, and tells each finding at once."""

    def __init__(self, data: Path, claim: Claim | None, report: Report, room: Room | None) -> None:
        self._data = data
        self._room = room
        self._claim = claim
        self._report = report
        self._good: set[bytes] = set()
        self._named: set[str] = set()
        self.findings = Findings()

    def _found(self, damage: Damage) -> None:
        self._named.add(damage.name)
        self.findings.damages.append(damage)
        self._report({"damage": asdict(damage)})

    def run(self) -> None:
        """Prove everything: what is stored by its name, what is served by the signed manifest."""
        segments = ObjectFolder(self._data / SEGMENTS).files
        try:
            for name, path in segments() if self._room is None else self._room.segments():
                self._prove_segment(name, path)
            self._report({"reading": SMALL})
            store = ObjectStore(self._data, read_only=True, room=self._room)
        except StorageError as error:
            self._found(Damage(SMALL, "", error.message, is_missing=True))
            return
        try:
            signed = self._manifest(store)
            self._prove_small(store)
            if signed is not None:
                self._prove_served(store, signed)
        except StorageError as error:
            self._found(Damage(SMALL, "", error.message, is_missing=True))
        finally:
            store.close()

    def _prove_segment(self, name: str, path: Path) -> None:
        self._report({"reading": f"segment {name}"})
        damage = _prove_segment(name, path)
        if damage is None:
            self._good.add(bytes.fromhex(name))
        else:
            self._found(damage)
        self.findings.n_objects += 1

    def _prove_small(self, store: ObjectStore) -> None:
        for name, data in store.small_objects():
            if sha256(data) == name:
                self._good.add(name)
            else:
                self._found(Damage("object", name.hex(), f"object {name.hex()[:16]} is damaged"))
            self.findings.n_objects += 1

    def _manifest(self, store: ObjectStore) -> SignedManifest | None:
        """Return the manifest that is served, proved."""
        states = store.states()
        stored = self._stored_claim(states.get(CLAIM_STATE, b""))
        claim = self._claim or stored
        active = highest = None
        if claim is not None:
            active = self._decode(states.get(ACTIVE_STATE), claim)
            highest = self._decode(states.get(HIGHEST_STATE), claim)
        known = [signed for signed in (active, highest) if signed is not None]
        if known:
            newest = max(known, key=lambda signed: signed.manifest.version)
            self.findings.manifest = newest.encode()
        self.findings.version = 0 if active is None else active.manifest.version
        self._report({"claim": self.findings.claim.hex(), "manifest": self.findings.manifest.hex()})
        return active

    def _stored_claim(self, data: bytes) -> Claim | None:
        if not data:
            return None
        try:
            stored = Claim.decode(data)
        except StorageError as error:
            self._found(Damage("claim", "", error.message))
            return None
        self.findings.claim = data
        if self._claim is not None and stored != self._claim:
            self._found(Damage("claim", "", "the claim is not the one beside the server's key"))
        return stored

    def _decode(self, data: bytes | None, claim: Claim) -> SignedManifest | None:
        if data is None:
            return None
        try:
            return SignedManifest.decode(data, claim.owner_key, claim.collection)
        except VerificationError as error:
            self._found(Damage("manifest", "", f"the manifest is damaged: {error.message}"))
            return None

    def _prove_served(self, store: ObjectStore, signed: SignedManifest) -> None:
        """Find what the manifest lists and is not there: as a server finds it, by its name."""
        for segment in signed.manifest.segments():
            shown = segment.id.hex()
            if segment.id not in self._good and shown not in self._named and store.has(segment.id):
                # It came, and was activated, while the others were read.
                self._prove_segment(shown, store.path(segment.id))
            self._require(store, "segment", segment.id)
        listed = [reference.id for reference in signed.manifest.objects()]
        for group in signed.manifest.groups:
            if group.blobs.id in self._good and store.has(group.blobs.id):
                blobs = BlobList.decode(store.read_whole(group.blobs.id)).blobs
                listed += [name for name, _ in blobs]
        for name in listed:
            self._require(store, "object", name)

    def _require(self, store: ObjectStore, kind: str, name: bytes) -> None:
        if name.hex() in self._named or (name in self._good and store.has(name)):
            return
        reason = f"{kind} {name.hex()[:16]} is not stored here"
        self._found(Damage(kind, name.hex(), reason, is_missing=True))


def prove_store(
    data: Path,
    claim: Claim | None = None,
    report: Report = lambda _line: None,
    room: Room | None = None,
) -> Findings:
    """Read and prove every object of the store in ``data``, in this process.

    Args:
        data: folder of the store; a server may be using it.
        claim: the server's, None to take what the store has.
        report: told each finding, and what is read next.
        room: where its objects are; None for ``data``.
    """
    work = _Scrub(data, claim, report, room)
    work.run()
    return work.findings


def scrub(data: Path, claim: Claim | None = None, config_path: Path | None = None) -> Findings:
    """Read and prove every object of the store in ``data``, in a process of its own.

    Args:
        data: folder of the store; a server may be using it.
        claim: the server's, None to take what the store has.
        config_path: server.toml, which says where the objects are; None for ``data``.

    Raises:
        StorageError: the other process could not be run.
    """
    shown = "" if claim is None else claim.encode().hex()
    done = _run(["prove", str(data), shown, "" if config_path is None else str(config_path)])
    findings = Findings()
    reading = ""
    for line in done.stdout.splitlines():
        fields = json.loads(line)
        reading = fields.get("reading", reading)
        if "damage" in fields:
            findings.damages.append(Damage(**fields["damage"]))
        if "claim" in fields:
            findings.claim = bytes.fromhex(fields["claim"])
            findings.manifest = bytes.fromhex(fields["manifest"])
        if "done" in fields:
            findings.n_objects, findings.version = fields["done"]
            return findings
    if not reading:
        raise StorageError("the store cannot be proved: no process could be started for it")
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"code {done.returncode}"
    kind, _, name = reading.partition(" ")
    is_segment = kind == "segment"
    reason = f"{reading} cannot be read: the process that did ended with {how}"
    findings.damages.append(
        Damage(kind if is_segment else SMALL, name if is_segment else "", reason, is_missing=True)
    )
    if is_segment:
        # What comes after it was not read.
        findings.damages.append(Damage(SMALL, "", "small objects were not read", is_missing=True))
    return findings


def copy_good(data: Path, target: Path) -> None:
    """Copy all state, and every small object that proves itself, into a new store.

    What cannot be read any more is left out.

    Args:
        data: folder of the damaged store.
        target: folder of the new one, made.

    Raises:
        StorageError: there is no room for it.
    """
    done = _run(["copy", str(data), str(target)])
    if done.returncode == _NO_ROOM:
        raise StorageError(
            f"the small objects in {data} cannot be copied",
            cure="make room for them once more on this disk and run it again",
        )


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mksearch_server.scrub", *words]
    nowhere = subprocess.DEVNULL
    return subprocess.run(  # noqa: S603 - this program itself
        command, check=False, stdin=nowhere, stdout=subprocess.PIPE, stderr=nowhere, text=True
    )


def _copy(data: Path, target: Path) -> int:
    """Copy what is good; return the exit code of the process that does."""
    try:
        old = ObjectStore(data, read_only=True)
    except StorageError:
        return 1
    try:
        # State first: objects can be had again.
        states: dict[str, bytes | None] = {**old.states()}
    except StorageError:
        states = {}
    try:
        new = ObjectStore(target)
        try:
            new.write_states(states)
            for name, value in _until_damage(old.small_objects()):
                if sha256(value) == name:
                    new.keep_small(name, bytes(value))
            new.commit()
        finally:
            new.close()
    except StorageError:
        return _NO_ROOM
    finally:
        old.close()
    return 0


def _until_damage(
    objects: Iterator[tuple[bytes, memoryview]],
) -> Iterator[tuple[bytes, memoryview]]:
    with suppress(StorageError):
        yield from objects


def _main(words: list[str]) -> int:
    task, data = words[0], Path(words[1])
    if task == "copy":
        return _copy(data, Path(words[2]))

    def say(line: Mapping[str, Any]) -> None:
        print(json.dumps(line), flush=True)

    claim = Claim.decode(bytes.fromhex(words[2])) if words[2] else None
    room = open_room(load_config(Path(words[3])), read_only=True) if words[3] else None
    findings = prove_store(data, claim, say, room)
    say({"done": [findings.n_objects, findings.version]})
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
