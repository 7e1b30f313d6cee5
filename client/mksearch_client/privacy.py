"""How much a profile lets its searches show: ``privacy.max`` in its ``config.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mksearch import __version__
from mksearch.errors import ParameterError, PrivacyExceeded, ProfileError

__all__ = ["AVAILABLE", "AVAILABLE_OPENING", "CONFIG_NAME", "MODES", "PrivacyLimit"]

#: Modes of a search; each shows servers what the one before it shows, and more.
MODES = ("full", "balanced", "fast")
#: Those that this release has for searching, and for opening a document, whose name shows.
AVAILABLE = ("full", "balanced", "fast")
AVAILABLE_OPENING = ("balanced",)
CONFIG_NAME = "config.toml"
_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class PrivacyLimit:
    """The mode beyond which nothing is asked.

    Attributes:
        most: the mode that shows most of those that are allowed; the last of them all by default.
        source: the file that says so, for messages.
    """

    most: str = MODES[-1]
    source: str = ""

    @classmethod
    def read(cls, folder: Path) -> PrivacyLimit:
        """Read the settings of a profile; without the file nothing is forbidden.

        Raises:
            ProfileError: the file is there and cannot be read, or is not what it should be: a
                limit that was meant is never passed over.
        """
        path = folder / CONFIG_NAME
        try:
            with path.open("rb") as file:
                data = file.read(_BYTES_MAX)
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise ProfileError(
                f"{path} cannot be read ({error.strerror})", cure="check its permissions"
            ) from None
        try:
            fields = tomllib.loads(data.decode())
        except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
            raise _wrong(path, f"it is not TOML: {error}") from None
        privacy = fields.pop("privacy", {})
        if fields:
            raise _wrong(path, f"there is no setting {min(fields)!r}")
        if not isinstance(privacy, dict):
            raise _wrong(path, "privacy is not a table")
        most = privacy.pop("max", MODES[-1])
        if privacy:
            raise _wrong(path, f"there is no setting privacy.{min(privacy)}")
        if most not in MODES:
            raise _wrong(path, f"privacy.max is {most!r}")
        return cls(most, str(path))

    def require(self, mode: str, available: Sequence[str] | None = None) -> None:
        """Allow a mode, or refuse it before anything is sent.

        Args:
            mode: that was asked for.
            available: modes that there are for this, by default those for searching.

        Raises:
            ParameterError: there is no such mode, or not in this release.
            PrivacyExceeded: it shows more than the profile allows.
        """
        available = AVAILABLE if available is None else available
        others = f"use {' or '.join(available)}"
        if mode not in MODES:
            raise ParameterError(f"there is no privacy {mode!r}", cure=others)
        if mode not in available:
            raise ParameterError(
                f"--privacy {mode} is not part of version {__version__} for this", cure=others
            )
        if MODES.index(mode) > MODES.index(self.most):
            raise PrivacyExceeded(
                f"mode {mode} shows servers more than {self.most}, the most that privacy.max in "
                f"{self.source or 'this profile'} allows",
                cure=f"use --privacy {self.most}, or raise privacy.max"
                if self.most in available
                else "raise privacy.max",
            )


def _wrong(path: Path, why: str) -> ProfileError:
    return ProfileError(
        f"{path}: {why}",
        cure='the file may say [privacy] and max = "full", "balanced" or "fast", nothing else',
    )
