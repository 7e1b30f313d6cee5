"""Keystream over F_p and keyed permutations (section 3)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from .codec import u8, u32, u64
from .field import P

MASK = 0x01
CHECK = 0x02
TAG_WEIGHT = 0x03
TAG_PAD = 0x04
DEDICATED_ORDER = 0x05
SLOT_ORDER = 0x06


@lru_cache(maxsize=64)
def _aes(key: bytes) -> Any:
    if len(key) != 32:
        raise ValueError("an AES-256 key has 32 bytes")
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor()


@lru_cache(maxsize=1 << 16)
def block(key: bytes, domain: int, level: int, column: int, index: int) -> bytes:
    """Return the 16 bytes of one addressed AES block."""
    message = u8(domain) + u8(level) + u32(column) + b"\x00\x00" + u64(index)
    return bytes(_aes(key).update(message))


def word(key: bytes, domain: int, level: int, column: int, row: int) -> int:
    """Return the element of F_p at this address."""
    at = 2 * (row & 7)
    value = int.from_bytes(block(key, domain, level, column, row >> 3)[at : at + 2], "little")
    if value < P:
        return value
    return int.from_bytes(block(key, domain | 0x80, level, column, row), "big") % P


def keyed_permutation(key: bytes, domain: int, level: int, m: int) -> list[int]:
    """List 0..m-1 in the keyed order."""

    def x(i: int) -> int:
        at = 8 * (i & 1)
        return int.from_bytes(block(key, domain, level, 0, i >> 1)[at : at + 8], "little")

    return sorted(range(m), key=lambda i: (x(i), i))
