"""The secret half of a person's keys (docs/protocol.md, 12.1)."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import MLKEM768X25519PrivateKey

from mksearch.crypto import labels
from mksearch.crypto.kdf import derive
from mksearch.crypto.secret import SecretKey
from mksearch.crypto.signature import SigningKey
from mksearch.crypto.user_key import SUITE, UserKey, hpke_info
from mksearch.errors import RecordRefused

__all__ = ["Identity"]


class Identity:
    """What a person holds: opens what is sealed to them, and signs.

    Attributes:
        public: the user key.
        signing: the signing key.
    """

    def __init__(self, seed: SecretKey) -> None:
        """Derive the keys.

        Args:
            seed: 32 uniform bytes, all that needs to be kept.
        """

        def part(name: bytes) -> bytes:
            return derive(seed, labels.IDENTITY + name).reveal()

        mlkem = MLKEM768PrivateKey.from_seed_bytes(part(b"mlkem-d") + part(b"mlkem-z"))
        x25519 = X25519PrivateKey.from_private_bytes(part(b"x25519"))
        self._private = MLKEM768X25519PrivateKey(mlkem, x25519)
        self.signing = SigningKey(SecretKey(part(b"sign")))
        self.public = UserKey(
            mlkem.public_key().public_bytes_raw(),
            x25519.public_key().public_bytes_raw(),
            self.signing.public,
        )

    def open(self, purpose: bytes, context: bytes, sealed: bytes, what: str) -> bytes:
        """Open what was sealed to this person; see ``UserKey.seal``.

        Raises:
            RecordRefused: it was sealed to somebody else, for another purpose or context, or was
                changed.
        """
        try:
            return SUITE.decrypt(sealed, self._private, info=hpke_info(purpose, context))
        except Exception:  # noqa: BLE001 - the library names several; each means the same
            raise RecordRefused(
                f"{what} does not open: it was sealed to other keys, or changed",
                cure="ask for one that is made for this profile's user key",
            ) from None

    def __repr__(self) -> str:
        return f"Identity(user={self.public.id.hex()}, private=<redacted>)"

    def __reduce__(self) -> str:
        raise TypeError("identities are never pickled")
