"""Commands run in this process, servers run as processes, and secrets looked for everywhere."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import pytest

from mksearch_client import cli
from mksearch_client.administration import load_administration
from mksearch_client.profile import Profile
from mksearch_server import cli as server_cli
from tests.support.processes import Finished, Fleet, clean_environment, serving

REPOSITORY = Path(__file__).resolve().parents[2]
CORPUS = REPOSITORY / "datasets" / "small" / "corpus.jsonl"
N_DOCS = 61
PASSPHRASE = "correct horse battery staple"
#: What a command prints for an error with --json.
ERROR_FIELDS = {"error", "message", "cure", "server"}


def _forms(secret: bytes) -> list[bytes]:
    """Give every way in which a secret could be written out."""
    return [secret, secret.hex().encode(), base64.b64encode(secret), repr(secret).encode()]


@dataclass
class Runner:
    """Runs commands in this process and proves of each that it shows no secret.

    Attributes:
        secrets: what no output may hold.
    """

    secrets: list[bytes] = field(default_factory=list)

    def require_no_secret(self, data: bytes) -> None:
        for secret in self.secrets:
            assert not any(form in data for form in _forms(secret)), "a secret is in the output"

    def _run(
        self,
        main: Callable[[Sequence[str]], int],
        words: Sequence[str | Path],
        environment: dict[str, str],
        encoding: str,
    ) -> Finished:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding, write_through=True) for _ in range(2))
        clean = clean_environment(COLUMNS="200", **environment)
        with redirect_stdout(out), redirect_stderr(err), patch.dict(os.environ, clean, clear=True):
            code = main([str(word) for word in words])
        shown = [stream.buffer.getvalue() for stream in (out, err)]
        self.require_no_secret(b"\0".join(shown))
        done = Finished(code, *(data.decode(encoding) for data in shown))
        assert "Traceback" not in done.out + done.err
        if "--json" in words:
            assert done.out.count("\n") == 1, done.out
            assert isinstance(json.loads(done.out), dict)
        return done

    def client(
        self, *words: str | Path, environment: dict[str, str] | None = None, encoding: str = "utf-8"
    ) -> Finished:
        """Run ``mksearch``."""
        return self._run(cli.main, words, environment or {}, encoding)

    def server(self, *words: str | Path) -> Finished:
        """Run ``mksearch-server``."""
        return self._run(server_cli.main, words, {}, "utf-8")


def require_error(done: Finished, code: int, *parts: str, program: str = "mksearch") -> None:
    """Prove that a command ended with ``code``, one line of cause and cure, and nothing else."""
    assert done.code == code, done
    line = done.err.removesuffix("\n")
    assert "\n" not in line, done.err
    assert line.startswith(f"{program}: "), line
    assert line.endswith(")"), f"no cure: {line}"
    for part in parts:
        assert part in line, line
    if done.out:
        assert set(done.json) == ERROR_FIELDS
        assert done.json["cure"]
        assert done.json["message"] in line


@dataclass
class Collection:
    """A published collection on three server processes.

    Attributes:
        fleet: the servers.
        folder: of the profile.
        run: runs commands.
        made: what ``owner init`` printed.
        published: what the first ``owner publish`` printed.
    """

    fleet: Fleet
    folder: Path
    run: Runner
    made: Finished
    published: Finished

    def __call__(self, *words: str | Path, **options: str) -> Finished:
        """Run ``mksearch`` with the profile."""
        return self.run.client(*words, "--profile", self.folder, **options)  # type: ignore[arg-type]

    def copy(self, folder: Path, **addresses: str) -> Path:
        """Give a copy of the profile, with servers (``server_1=...``) elsewhere."""
        shutil.copytree(self.folder, folder)
        path = folder / "profile.json"
        fields = json.loads(path.read_text())
        for server in fields["servers"]:
            server["address"] = addresses.get(f"server_{server['id']}", server["address"])
        path.write_text(json.dumps(fields))
        return folder

    def change(self, server: int) -> None:
        """Change stored cells of a running server; a second time, change them back."""
        for path in (self.fleet[server].data / "segments").iterdir():
            with path.open("r+b") as file:
                # Low bytes of cells, behind the header and well before the records.
                for offset in range(4096, 4096 + 32_000, 2_000):
                    file.seek(offset)
                    (byte,) = file.read(1)
                    file.seek(offset)
                    file.write(bytes([byte ^ 1]))

    def forgive(self) -> None:
        """Delete the evidence against servers."""
        shutil.rmtree(self.folder / "evidence", ignore_errors=True)


def _secrets(profile: Profile, fleet: Fleet) -> list[bytes]:
    master = profile.keys.master.reveal()
    tokens = [server.token.encode() for server in fleet]
    return [master, profile.keys.bundle(b"", 1).section_key("dictionary").reveal(), *tokens]


@pytest.fixture(scope="session")
def runner() -> Runner:
    return Runner()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, runner: Runner) -> Iterator[Collection]:
    """Three servers with the small corpus, made by commands alone."""
    folder = tmp_path_factory.mktemp("collection")
    with serving(folder) as fleet:
        profile = folder / "profile"
        servers = [
            word for a, token in fleet.tokens().items() for word in ("--server", f"{a}={token}")
        ]
        options = ("--profile", profile, "--name", "test", "--json")
        made = runner.client("owner", "init", *servers, *options)
        assert made.code == 0, made.err
        runner.secrets += _secrets(Profile.open(profile), fleet)
        published = runner.client("owner", "publish", CORPUS, "--profile", profile, "--json")
        assert published.code == 0, published.err
        yield Collection(fleet, profile, runner, made, published)


@pytest.fixture
def collection(shared: Collection) -> Collection:
    """The shared collection, the small corpus being what it holds."""
    assert all(server.is_running for server in shared.fleet)
    shared("owner", "publish", CORPUS, "--delete-missing")
    return shared


@dataclass
class Sealed:
    """Servers with little room, and a profile sealed with a passphrase.

    Attributes:
        fleet: the servers.
        folder: of the profile.
        passphrase: the file with it.
        wrong_token: how ``owner init`` ended with the token of another server.
        made: how it ended with the right ones, read from files.
    """

    fleet: Fleet
    folder: Path
    passphrase: Path
    wrong_token: Finished
    made: Finished


@pytest.fixture(scope="session")
def sealed(tmp_path_factory: pytest.TempPathFactory, runner: Runner) -> Iterator[Sealed]:
    folder = tmp_path_factory.mktemp("sealed")
    passphrase = folder / "passphrase"
    passphrase.write_text(f"{PASSPHRASE}\n")
    runner.secrets.append(PASSPHRASE.encode())
    with serving(folder, max_store_bytes=1 << 20) as fleet:
        profile = folder / "profile"
        tokens = [f"{s.address}=@{s.folder / 'claim-token'}" for s in fleet]
        options = ("--profile", profile, "--passphrase-file", passphrase, "--json")
        words = [word for token in tokens for word in ("--server", token)]
        wrong = [*words[:-1], f"{fleet[3].address}={fleet[1].token}"]
        wrong_token = runner.client("owner", "init", *wrong, *options)
        made = runner.client("owner", "init", *words, *options)
        assert made.code == 0, made.err
        runner.secrets += _secrets(Profile.open(profile, PASSPHRASE.encode()), fleet)
        yield Sealed(fleet, profile, passphrase, wrong_token, made)


# --- people --------------------------------------------------------------------------------------

#: Who may read the one document that not every member may.
SECRET_POLICY = "role:analyst AND dept:finance"


@dataclass
class Society:
    """An owner with an administration, and people with profiles of their own.

    Attributes:
        fleet: the servers.
        folder: holds a folder for each person.
        card: of the collection.
        run: runs commands.
        made: what ``admin init`` printed.
        published: what publishing under a policy printed, and with --json.
    """

    fleet: Fleet
    folder: Path
    card: Path
    run: Runner
    made: Finished
    published: tuple[Finished, Finished]

    def __call__(self, *words: str | Path, who: str = "owner", **options: str) -> Finished:
        """Run ``mksearch`` with the profile of a person; no secret is ever an argument."""
        self.run.require_no_secret(b"\0".join(os.fsencode(word) for word in words))
        words = (*words, "--profile", self.folder / who)
        return self.run.client(*words, **options)  # type: ignore[arg-type]

    @property
    def owner(self) -> Path:
        """The owner's folder."""
        return self.folder / "owner"

    def join(self, name: str) -> Path:
        """Make a profile for a person who is not enrolled; return its folder."""
        folder = self.folder / name
        if not folder.exists():
            made = self("user", "init", "--card", self.card, who=name)
            assert made.code == 0, made.err
            self.hide(folder)
        return folder

    def hide(self, folder: Path) -> None:
        """Have no output hold the keys of a person."""
        self.run.secrets.append((folder / "keys").read_bytes()[-32:])

    def credential(self, name: str, *attributes: str, expires: str = "30d") -> Path:
        """Have the admin make a credential for a person; return the file."""
        user_key, output = self.join(name) / "user-key", self.folder / f"{name}.credential"
        words = [word for attribute in attributes for word in ("--attribute", attribute)]
        options = ("--user-key", user_key, "--expires", expires, "-o", output)
        done = self("admin", "credential", *words, *options)
        assert done.code == 0, done.err
        return output

    def admit(self, name: str, *attributes: str) -> Path:
        """Have a person enrolled; return their folder."""
        credential = self.credential(name, *attributes)
        done = self("user", "enrol", "--credential", credential, who=name)
        assert done.code == 0, done.err
        return self.folder / name


@pytest.fixture(scope="session")
def society(tmp_path_factory: pytest.TempPathFactory, runner: Runner) -> Iterator[Society]:
    """Three servers, every member's documents and one of the analysts of finance."""
    folder = tmp_path_factory.mktemp("society")
    with serving(folder) as fleet:
        owner = folder / "owner"
        servers = [
            word for a, token in fleet.tokens().items() for word in ("--server", f"{a}={token}")
        ]
        made = runner.client("owner", "init", *servers, "--profile", owner, "--name", "society")
        assert made.code == 0, made.err
        assert runner.client("owner", "publish", CORPUS, "--profile", owner).code == 0
        made = runner.client("admin", "init", "--profile", owner, "--json")
        assert made.code == 0, made.err
        profile = Profile.open(owner)
        administration = load_administration(profile)
        assert administration is not None
        runner.secrets += _secrets(profile, fleet)
        runner.secrets += [
            administration.member_secret.reveal(),
            (owner / "administration").read_bytes()[13:],
        ]
        assert runner.client("owner", "renew", "--profile", owner).code == 0
        budget = folder / "budget.jsonl"
        budget.write_text('{"_id": "budget", "text": "the secret budget of the garden"}\n')
        words = ("owner", "publish", budget, "--policy", SECRET_POLICY, "--profile", owner)
        published = runner.client(*words), runner.client(*words, "--json")
        assert published[0].code == 0, published[0].err
        card = folder / "card.json"
        assert runner.client("owner", "card", "-o", card, "--profile", owner).code == 0
        yield Society(fleet, folder, card, runner, made, published)
