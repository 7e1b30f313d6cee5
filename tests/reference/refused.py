"""The one exception of the reference implementation."""

from __future__ import annotations

from collections.abc import Iterable


class Refused(Exception):
    """Name the step of docs/protocol.md at which bytes or answers are refused.

    Attributes:
        step: "section.number", for instance "5.3" or "8.10.4".
        why: the cause.
        servers: ids of the servers to blame, empty where none is.
    """

    def __init__(self, step: str, why: str, servers: Iterable[int] = ()) -> None:
        """Keep step, cause and culprits."""
        super().__init__(f"step {step}: {why}")
        self.step = step
        self.why = why
        self.servers = frozenset(servers)


def require(condition: bool, step: str, why: str) -> None:
    """Raise `Refused(step, why)` unless the condition holds."""
    if not condition:
        raise Refused(step, why)
