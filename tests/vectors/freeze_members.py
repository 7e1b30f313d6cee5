"""Make the frozen index of format 2: two epochs, two groups, an authority that servers share."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from mksearch.access.attributes import parse_attribute
from mksearch.access.authority import combine, deal, verify_partial
from mksearch.access.cpabe import set_up
from mksearch.access.credential import Credential
from mksearch.access.credential_list import encode_credentials
from mksearch.access.enrolment import CredentialSecrets, issue_credential
from mksearch.access.issuing import issue_partial
from mksearch.crypto.identity import Identity
from mksearch.crypto.kdf import sha256
from mksearch.crypto.randomness import SeededRandom
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.index.builder import SegmentBuilder
from mksearch.index.catalogue import Catalogue
from mksearch.index.manifest import SignedManifest
from mksearch.index.stream import open_stream
from mksearch.params import Quorum
from mksearch.text.analyzers import make_analyzer
from mksearch.text.weights import Scoring
from mksearch_client.administration import Administration
from mksearch_client.keys import OwnerKeys
from mksearch_client.publication import Publication
from mksearch_client.publishing import Publisher
from mksearch_client.reading import Document

from . import freeze
from .frozen_members import FrozenMembers
from .material import Json, seed

QUORUM, EPOCH = Quorum(), 2
POLICY = b"role:analyst AND dept:finance"
ATTRIBUTES = tuple(map(parse_attribute, ("dept:finance", "role:analyst")))
QUERIES = ("tomato plants", "flat tyre", "flood of the river in spring", "café", "unknownword")


class _Made:
    """Everything that is drawn for the index, in one order, from one seed."""

    def __init__(self) -> None:
        self.seed = seed("frozen format 2: these are test keys")
        self.random = SeededRandom(self.seed)
        self.keys = OwnerKeys.generate(self.random)
        self.parameters, master = set_up(self.random)
        self.shares, self.verification = deal(self.parameters, master, QUORUM, 1, self.random)
        self.user = self.random.bytes(32)
        signing, *secrets = (SecretKey(self.random.bytes(32)) for _ in range(3))
        admin = SigningKey(signing)
        verification = self.verification.encode()
        self.before = Administration(self.parameters, master, admin, secrets[0], 1)
        self.now = Administration(self.parameters, None, admin, secrets[1], EPOCH, verification)

    def credential_list(self) -> bytes:
        """Return the credentials of the second epoch: of one user."""
        user = Identity(SecretKey(self.user)).public
        credential = Credential(
            collection=self.keys.collection,
            authority=self.parameters.authority,
            epoch=EPOCH,
            serial=self.random.bytes(16),
            user=user.id,
            attributes=ATTRIBUTES,
            issued_at=freeze.NOW_S,
            expires_at=freeze.NOW_S + 86_400,
        )
        secrets = CredentialSecrets(self.now.member_secret, None)
        signed = issue_credential(credential, user, secrets, self.now.signing)
        return encode_credentials({user.id: signed.encode()})

    def attribute_key(self) -> bytes:
        """Return the key that servers 1 and 3 make for the user."""
        parts = []
        for server in (1, 3):
            share = self.shares[server - 1]
            part = issue_partial(self.parameters, share, ATTRIBUTES, EPOCH, self.random)
            proved = verify_partial(
                self.parameters, self.verification, part,
                server=server, attributes=ATTRIBUTES, epoch=EPOCH, random=self.random,
            )  # fmt: skip
            parts.append(proved)
        return combine(self.parameters, self.verification, parts).encode()

    def publish(
        self,
        documents: list[Document],
        folder: Path,
        administration: Administration,
        scoring: Scoring,
        policy: bytes = b"",
        previous: SignedManifest | None = None,
        **carried: Any,
    ) -> Publication:
        """Publish a version into a folder."""
        builder = functools.partial(SegmentBuilder, block=freeze.BLOCK, geometry=freeze.GEOMETRY)
        publisher = Publisher(
            self.keys,
            name="frozen format 2",
            quorum=QUORUM,
            random=self.random,
            analyzer=make_analyzer("english-1"),
            scoring=scoring,
            policy=policy,
            administration=administration,
            make_list=self.credential_list,
        )
        with mock.patch("mksearch_client.publishing.SegmentBuilder", builder):
            made = publisher.prepare(
                documents, folder, now_s=freeze.NOW_S, previous=previous, **carried
            )
        freeze.unpack(made, made.signed.manifest.group(policy))
        return made


def documents() -> tuple[list[Document], list[Document]]:
    """Return the documents of every member, and those under the policy."""
    small = freeze.documents()[:-1]
    return small[::2], small[1::2]


def freeze_members(folder: Path, both: tuple[list[Document], list[Document]]) -> FrozenMembers:
    """Publish two versions into `folder`, which must not exist, and pin what a member finds."""
    freeze.require_new(folder)
    made = _Made()
    with tempfile.TemporaryDirectory() as scratch:
        old = made.publish(both[0], Path(scratch) / "1", made.before, Scoring("tfidf"))
        catalogue = open_stream(
            made.keys.catalogue_key(),
            "catalogue",
            made.keys.collection,
            (old.folder / "objects" / old.signed.manifest.catalogue.id.hex()).read_bytes(),
        )
        made.publish(
            both[1], folder, made.now, Scoring("bm25"), POLICY, old.signed,
            carried=Catalogue.decode(catalogue),
        )  # fmt: skip
        shutil.copytree(old.folder / "objects", folder / "objects", dirs_exist_ok=True)
        (folder / "manifest-1").write_bytes((old.folder / "manifest").read_bytes())
    (folder / "carried").unlink(missing_ok=True)
    freeze.write(folder / "test-keys.json", _keys(made))
    lines = [
        json.dumps({"_id": d.id, "title": d.title, "text": d.text, "group": number})
        for number, group in enumerate(both)
        for d in group
    ]
    (folder / "corpus.jsonl").write_bytes(("\n".join(lines) + "\n").encode("ascii"))
    freeze.write(folder / "expected.json", {"now": freeze.NOW_S})
    index = FrozenMembers(folder)
    freeze.write(folder / "expected.json", _expected(index))
    return FrozenMembers(folder)


def _keys(made: _Made) -> Json:
    return {
        "about": "TEST KEYS, known to everybody: they protect nothing and must never protect "
        "anything. Not the format of any key file. AES-256-CTR of zeros under the seed, from "
        "counter 0, gives the collection (16 bytes), the master secret (32) and the seed of the "
        "owner's Ed25519 key (32), in this order. The user's identity is made from user_seed; its "
        "credential is in the list of credentials.",
        "seed": made.seed.hex(),
        "user_seed": made.user.hex(),
        "attribute_key": made.attribute_key().hex(),
    }


def _expected(index: FrozenMembers) -> Json:
    return {
        "about": "What reading and searching the frozen index gives to its member, in each group. "
        "Scores in units of 2^-60.",
        "now": freeze.NOW_S,
        "manifest_sha256": sha256((index.folder / "manifest").read_bytes()).hex(),
        "manifest_hash": index.signed.hash.hex(),
        "policies": [group.policy.decode() for group in index.groups],
        "queries": [
            {"query": query, "k": 4, "groups": [_found(index, n, query) for n in range(2)]}
            for query in QUERIES
        ],
    }


def _found(index: FrozenMembers, number: int, query: str) -> Json:
    group = index.groups[number]
    hits, exact = index.search(group, query, 4)
    assert exact
    found = [{"id": hit.member.id, "score": str(hit.score)} for hit in hits]
    return {"terms": index.client(group).terms(query), "hits": found}
