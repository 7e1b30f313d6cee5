"""Challenges: what a server asks to see again, so that requests are for it and for now (13.1)."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable

from mksearch.access.orders import CHALLENGE_BYTES
from mksearch.crypto.kdf import keyed_hash_sha256
from mksearch.crypto.randomness import RandomSource
from mksearch.crypto.secret import SecretKey
from mksearch.errors import VerificationError
from mksearch.params import KEY_BYTES

__all__ = ["Challenges"]

#: Seconds that a challenge is good for.
CHALLENGE_S = 120
_MAC_BYTES = 16


class Challenges:
    """Makes challenges and knows them again, without keeping any."""

    def __init__(self, random: RandomSource, clock: Callable[[], float] = time.time) -> None:
        self._random = random
        self._clock = clock
        self._key = SecretKey(random.bytes(KEY_BYTES))

    def make(self) -> bytes:
        """Return a new challenge: 32 bytes."""
        head = int(self._clock()).to_bytes(8, "big") + self._random.bytes(8)
        return head + self._mac(head)

    def require(self, challenge: bytes) -> None:
        """Prove that a challenge was made here and is current.

        Raises:
            VerificationError: it was not, or is not.
        """
        head, mac = challenge[:-_MAC_BYTES], challenge[-_MAC_BYTES:]
        if len(challenge) != CHALLENGE_BYTES or not hmac.compare_digest(mac, self._mac(head)):
            raise VerificationError(
                "the challenge was not made by this server", cure="ask it for one and try again"
            )
        age_s = int(self._clock()) - int.from_bytes(head[:8], "big")
        if not 0 <= age_s <= CHALLENGE_S:
            raise VerificationError(
                f"the challenge is {age_s} s old (at most {CHALLENGE_S})", cure="ask for a new one"
            )

    def _mac(self, head: bytes) -> bytes:
        return keyed_hash_sha256(self._key, head)[:_MAC_BYTES]
