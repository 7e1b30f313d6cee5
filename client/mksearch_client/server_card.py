"""What an operator hands to the owner of a collection that its server is to join (15.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mksearch.errors import InputError, MksearchError
from mksearch.params import KEY_BYTES, N_SERVERS_MAX
from mksearch_client.profile_folder import ServerEntry, read_fields
from mksearch_client.trust import ClientFiles, TlsTrust, require_address

__all__ = ["ServerCard"]

_KIND, _FORMAT = "mksearch-server", 1
_CURE = "ask the operator for the file that mksearch-server card wrote"


@dataclass(frozen=True, slots=True)
class ServerCard:
    """A server that nobody has claimed yet, as its operator describes it.

    Attributes:
        id: its place, from 1.
        address: HOST:PORT that clients dial.
        key: Ed25519 public key that signs its answers, 32 bytes.
        tls_key: fingerprint of its TLS key, 32 bytes; b"" without TLS.
        claim_token: lets an owner claim it, once; secret; "" once that was done.
    """

    id: int
    address: str
    key: bytes
    tls_key: bytes
    claim_token: str = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> ServerCard:
        """Read a file that ``mksearch-server card`` wrote.

        Raises:
            InputError: it cannot be read, or is none (refusal 15.3.1).
            ParameterError: its address cannot be dialled.
        """
        try:
            fields = read_fields(path)
        except OSError as error:
            raise InputError(
                f"the server card {path} cannot be read ({error.strerror})", cure="check --card"
            ) from None
        except ValueError:
            raise InputError(f"{path} is no server card", cure=_CURE) from None
        if "owner_key" in fields:
            raise InputError(f"{path} is the card of a collection, not of a server", cure=_CURE)
        if fields.get("kind") != _KIND:
            raise InputError(f"{path} is no server card", cure=_CURE)
        if fields.get("format") != _FORMAT:
            raise InputError(
                f"the server card {path} is of a format that this release does not read",
                cure="upgrade mksearch",
            )
        try:
            return cls._of(fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"the server card {path} is damaged ({type(error).__name__})", cure=_CURE
            ) from None
        except MksearchError as error:
            error.cure = f"{error.cure}; or {_CURE}"
            raise

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> ServerCard:
        key, tls_key = bytes.fromhex(fields["key"]), bytes.fromhex(fields.get("tls_key", ""))
        number, address, token = fields["id"], fields["address"], fields["claim_token"]
        if type(number) is not int or not 1 <= number <= N_SERVERS_MAX:
            raise ValueError("a place that cannot be")
        if not isinstance(address, str) or not isinstance(token, str):
            raise TypeError("an address or token that is no text")
        if len(key) != KEY_BYTES or len(tls_key) not in (0, KEY_BYTES):
            raise ValueError("a key of another length")
        card = cls(number, address, key, tls_key, token)
        require_address(address, card.entry(1).tls)
        return card

    def entry(self, since: int, files: ClientFiles | None = None) -> ServerEntry:
        """Return the server as a profile has it.

        Args:
            since: version from which on it has its place.
            files: of the profile, for TLS.
        """
        tls = TlsTrust(self.tls_key, files) if self.tls_key else None
        return ServerEntry(self.id, self.address, self.key, tls, since)
