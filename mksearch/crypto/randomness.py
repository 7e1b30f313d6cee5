"""Sources of randomness, always passed as an argument so that vectors are reproducible."""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from mksearch.errors import ParameterError
from mksearch.params import P

__all__ = ["RandomSource", "SeededRandom", "SystemRandom", "uniform_elements"]


class RandomSource(Protocol):
    """What the core asks of randomness."""

    def bytes(self, n_bytes: int) -> bytes:
        """Return ``n_bytes`` fresh uniform bytes."""
        ...


class SystemRandom:
    """The operating system's generator: the only source for real keys, salts and shares."""

    def bytes(self, n_bytes: int) -> bytes:
        """Return ``n_bytes`` bytes from the operating system."""
        return os.urandom(n_bytes)


class SeededRandom:
    """A reproducible stream for test vectors and simulations; NEVER for real secrets.

    AES-256-CTR of zeros under ``seed`` (32 bytes).
    """

    def __init__(self, seed: bytes) -> None:
        if len(seed) != 32:
            raise ParameterError(f"a seed has 32 bytes, not {len(seed)}")
        self._stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()

    def bytes(self, n_bytes: int) -> bytes:
        """Return the next ``n_bytes`` bytes of the stream."""
        return self._stream.update(bytes(n_bytes))


def uniform_elements(random: RandomSource, shape: tuple[int, ...]) -> NDArray[np.uint16]:
    """Draw field elements uniformly, zero included, by rejection of 16-bit words.

    Args:
        random: source; about 2 bytes an element are drawn.
        shape: shape of the result.

    Returns:
        uint16 of ``shape``, each entry uniform in 0..p-1.
    """
    n_wanted = int(np.prod(shape, dtype=np.int64))
    kept: list[NDArray[np.uint16]] = []
    n_kept = 0
    while n_kept < n_wanted:
        words = np.frombuffer(random.bytes(2 * (n_wanted - n_kept)), "<u2")
        words = words[words < P]
        kept.append(words)
        n_kept += len(words)
    flat = np.concatenate(kept) if kept else np.zeros(0, np.uint16)
    return flat.astype(np.uint16).reshape(shape)
