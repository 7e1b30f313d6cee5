"""Two networks of this machine that see each other, or do not: Linux' network namespaces.

Needs root, or the right to make them; `why_not` says why a machine does not let us.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.crashes import client, server

__all__ = ["SIDES", "Networks", "client_in", "networks", "server_in", "why_not"]

SIDES = ("left", "right")
_CLONE_NEWNET = 0x40000000
_COMMAND_S = 20.0
#: Names of namespaces and links begin with this; links have at most 15 characters.
_PREFIX = "mk"


def _ip(*words: str) -> None:
    done = subprocess.run(
        ["ip", *words], capture_output=True, check=False, text=True, timeout=_COMMAND_S
    )
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def why_not() -> str:
    """Say why this machine lets us make no networks; "" where it does."""
    if shutil.which("ip") is None:
        return "there is no program ip (Debian: apt-get install iproute2)"
    try:
        with networks():
            return ""
    except OSError as error:
        return f"network namespaces cannot be made here: {error}"


@dataclass
class Networks:
    """Two networks with one link between them.

    Attributes:
        name: of their namespaces, before the side.
        joined: whether they see each other.
    """

    name: str
    joined: bool = False

    def namespace(self, side: str) -> str:
        return f"{self.name}-{side}"

    def link(self, side: str) -> str:
        return f"{self.name}{side[0]}"

    @staticmethod
    def address(side: str) -> str:
        """The address of everything on a side."""
        return f"10.77.{SIDES.index(side) + 1}.1"

    def make(self) -> None:
        """Make both, joined."""
        for side in SIDES:
            _ip("netns", "add", self.namespace(side))
        left, right = SIDES
        peer = ("peer", "name", self.link(right), "netns", self.namespace(right))
        _ip("-n", self.namespace(left), "link", "add", self.link(left), "type", "veth", *peer)
        for side in SIDES:
            _ip("-n", self.namespace(side), "link", "set", "lo", "up")
            # On the loopback device: it stays where it is when the link goes down.
            _ip(
                "-n",
                self.namespace(side),
                "address",
                "add",
                f"{self.address(side)}/32",
                "dev",
                "lo",
            )
        self.join()

    def join(self) -> None:
        """Let them see each other."""
        for side in SIDES:
            _ip("-n", self.namespace(side), "link", "set", self.link(side), "up")
        for side, other in (SIDES, SIDES[::-1]):
            route = (f"{self.address(other)}/32", "dev", self.link(side))
            own = ("src", self.address(side))
            _ip("-n", self.namespace(side), "route", "replace", *route, *own)
        self.joined = True

    def cut(self) -> None:
        """Take the link down at one end: there nothing is sent, at the other nothing comes back."""
        _ip("-n", self.namespace(SIDES[0]), "link", "set", self.link(SIDES[0]), "down")
        self.joined = False

    def remove(self) -> None:
        """Remove both, and the link with them."""
        for side in SIDES:
            with suppress(OSError):
                _ip("netns", "delete", self.namespace(side))


@contextmanager
def networks() -> Iterator[Networks]:
    """Make two networks and remove them, whatever happens.

    Raises:
        OSError: this machine does not let us.
    """
    made = Networks(f"{_PREFIX}{os.getpid()}")
    try:
        made.make()
        yield made
    finally:
        made.remove()


def _enter(namespace: str) -> None:
    """Move this process, which has one thread, into a network."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(Path("/run/netns") / namespace, os.O_RDONLY)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), namespace)
    finally:
        os.close(descriptor)


def client_in(namespace: str, *words: str) -> None:
    """Be ``mksearch`` in a network; for `tests.support.crashes.forked`."""
    _enter(namespace)
    client(*words)


def server_in(namespace: str, *words: str) -> None:
    """Be ``mksearch-server`` in a network; for `tests.support.crashes.forked`."""
    _enter(namespace)
    server(*words)
