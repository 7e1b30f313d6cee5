"""TLS keys that claim tokens carry, kept until a new profile is finished.

A server deletes its token once it is claimed.  An owner who was interrupted then names a file that
is gone, and the TLS key that was in it must still be known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from mksearch.errors import ProfileError
from mksearch_client.profile_folder import not_writable, read_fields, write_file
from mksearch_client.trust import ClientFiles, TlsTrust, parse_claim_token, require_address

__all__ = ["Pins"]


class Pins:
    """The TLS keys of servers that are being claimed.

    Attributes:
        secrets: what a server wants to see of its claim token, by HOST:PORT.
    """

    def __init__(self, folder: Path, tokens: Mapping[str, str]) -> None:
        """Read claim tokens, and what an earlier attempt kept in the folder.

        Args:
            folder: of the profile; need not be there yet.
            tokens: by HOST:PORT; "" for one that is gone.

        Raises:
            ParameterError: a token or an address cannot be, or an address is on another machine
                and no TLS key is known.
            ProfileError: what was kept is damaged.
        """
        self._folder = folder
        self._path = folder / "first-pins.json"
        kept = self._read()
        parsed = {address: parse_claim_token(token) for address, token in tokens.items()}
        self.secrets = {address: secret for address, (secret, _) in parsed.items()}
        self._keys = {
            address: key or (b"" if secret else kept.get(address, b""))
            for address, (secret, key) in parsed.items()
        }
        for address in tokens:
            require_address(address, self.trust(address))

    def _read(self) -> dict[str, bytes]:
        try:
            fields = read_fields(self._path)
            return {address: TlsTrust.parse(key).key for address, key in fields.items()}
        except OSError:
            # Whoever makes the folder says what is wrong with it.
            return {}
        except (ValueError, TypeError, AttributeError):
            raise ProfileError(
                f"{self._path} is damaged", cure="remove it, and name every server with its token"
            ) from None

    def trust(self, address: str) -> TlsTrust | None:
        """Return what proves the server at an address, None without TLS."""
        key = self._keys[address]
        return TlsTrust(key, ClientFiles(self._folder)) if key else None

    def save(self) -> None:
        """Keep the keys in the folder, for the next attempt.

        Raises:
            ProfileError: it cannot be written.
        """
        fields = {address: key.hex() for address, key in self._keys.items() if key}
        if not fields:
            return
        try:
            write_file(self._path, json.dumps(fields).encode())
        except OSError as error:
            raise not_writable(self._folder, error) from None

    def drop(self) -> None:
        """Forget them: the profile has them now."""
        self._path.unlink(missing_ok=True)
