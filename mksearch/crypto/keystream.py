"""Keystream of uniform field elements, addressable anywhere (docs/protocol.md, section 3).

Every word is a pseudorandom function of (key, domain, level, column, row).  A 16-bit word of AES
output that is p or more is replaced by a whole block of another domain reduced modulo p, so the
bias is below 2**-111.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from mksearch.crypto.secret import SecretKey
from mksearch.errors import ParameterError
from mksearch.params import P

__all__ = ["WORDS_PER_BLOCK", "Domain", "Keystream"]

WORDS_PER_BLOCK = 8
_REPLACEMENT = 0x80
_TWO_64 = (1 << 64) % P


class Domain(IntEnum):
    """First byte of every AES input: what the words are for."""

    MASK = 0x01
    CHECK = 0x02
    TAG_WEIGHT = 0x03
    TAG_PAD = 0x04
    DEDICATED_ORDER = 0x05
    SLOT_ORDER = 0x06


def _counter(domain: int, level: int, column: int, index: int) -> bytes:
    return bytes((domain, level)) + column.to_bytes(4, "big") + b"\0\0" + index.to_bytes(8, "big")


class Keystream:
    """The words of one key."""

    __slots__ = ("_algorithm",)

    def __init__(self, key: SecretKey) -> None:
        self._algorithm = algorithms.AES(key.reveal())

    def words(
        self, domain: Domain, level: int, columns: NDArray[np.int64], first_row: int, n_rows: int
    ) -> NDArray[np.uint16]:
        """Return the words of some columns over consecutive rows.

        Args:
            domain: what the words are for.
            level: 0..255.
            columns: int64 (n_columns,), each 0..2**32-1.
            first_row: first row, a multiple of 8.
            n_rows: rows, at least 0.

        Returns:
            uint16 (n_columns, n_rows), entries below p; secret.

        Raises:
            ParameterError: ``first_row`` is not a multiple of 8.
        """
        if first_row % WORDS_PER_BLOCK:
            raise ParameterError(f"keystream row {first_row} is not a multiple of 8")
        n_blocks = -(-n_rows // WORDS_PER_BLOCK)
        first_block = first_row // WORDS_PER_BLOCK
        # A context costs about as much as 8 KB of output: few long columns go by counter mode,
        # many short ones as explicit counter blocks.
        if n_blocks >= 64:
            out = self._by_counter_mode(domain, level, columns, first_block, n_blocks)
        else:
            out = self._by_blocks(domain, level, columns, first_block, n_blocks)
        out = out[:, :n_rows]
        self._replace(out, domain, level, columns, first_row)
        return out

    def _by_counter_mode(
        self, domain: int, level: int, columns: NDArray[np.int64], first_block: int, n_blocks: int
    ) -> NDArray[np.uint16]:
        n_bytes = 16 * n_blocks
        # The library wants 15 bytes of room behind what it writes: the next column's place.
        flat = np.empty(len(columns) * n_bytes + 16, np.uint8)
        room = flat.data
        zeros = bytes(n_bytes)
        for i, column in enumerate(columns.tolist()):
            start = _counter(domain, level, column, first_block)
            encryptor = Cipher(self._algorithm, modes.CTR(start)).encryptor()
            encryptor.update_into(zeros, room[i * n_bytes : (i + 1) * n_bytes + 15])
        return flat[:-16].view("<u2").reshape(len(columns), n_blocks * WORDS_PER_BLOCK)

    def _by_blocks(
        self, domain: int, level: int, columns: NDArray[np.int64], first_block: int, n_blocks: int
    ) -> NDArray[np.uint16]:
        inputs = np.zeros((len(columns), n_blocks, 4), ">u4")
        inputs[:, :, 0] = (domain << 24 | level << 16) | (columns[:, None] >> 16)
        inputs[:, :, 1] = (columns[:, None] & 0xFFFF) << 16
        index = np.arange(first_block, first_block + n_blocks, dtype=np.uint64)
        inputs[:, :, 2] = (index >> np.uint64(32))[None]
        inputs[:, :, 3] = (index & np.uint64(0xFFFFFFFF))[None]
        out = np.frombuffer(self._encrypt(inputs.tobytes()), "<u2")
        return out.reshape(len(columns), n_blocks * WORDS_PER_BLOCK).astype(np.uint16)

    def _replace(
        self,
        out: NDArray[np.uint16],
        domain: int,
        level: int,
        columns: NDArray[np.int64],
        first_row: int,
    ) -> None:
        at = np.flatnonzero(out >= P)
        if not len(at):
            return
        column_at, row_at = np.divmod(at, out.shape[1])
        column, row = columns[column_at], row_at + first_row
        inputs = np.zeros((len(row), 4), ">u4")
        inputs[:, 0] = ((domain | _REPLACEMENT) << 24 | level << 16) | (column >> 16)
        inputs[:, 1] = (column & 0xFFFF) << 16
        inputs[:, 2] = row >> 32
        inputs[:, 3] = row & 0xFFFFFFFF
        halves = np.frombuffer(self._encrypt(inputs.tobytes()), ">u8").reshape(-1, 2)
        high, low = (halves.astype(np.uint64) % np.uint64(P)).T
        out[column_at, row_at] = (high * np.uint64(_TWO_64) + low) % np.uint64(P)

    def permutation(self, domain: Domain, level: int, n: int) -> NDArray[np.int64]:
        """Return the keyed permutation of 0..n-1: int64 (n,), secret.

        The numbers in ascending order of (64-bit keystream word, number).
        """
        inputs = np.zeros((-(-n // 2), 4), ">u4")
        inputs[:, 0] = domain << 24 | level << 16
        inputs[:, 3] = np.arange(len(inputs))
        ranks = np.frombuffer(self._encrypt(inputs.tobytes()), "<u8")[:n]
        return np.argsort(ranks, kind="stable").astype(np.int64)

    def _encrypt(self, blocks: bytes) -> bytes:
        # Independent counter blocks: this builds a keystream, not an encryption in ECB mode.
        return Cipher(self._algorithm, modes.ECB()).encryptor().update(blocks)  # noqa: S305

    def __repr__(self) -> str:
        return "Keystream(<redacted>)"

    def __reduce__(self) -> str:
        raise TypeError("keystreams hold a key and are never pickled")
