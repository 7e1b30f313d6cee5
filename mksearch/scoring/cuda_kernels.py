"""The GPU kernels: their sources, how they are compiled and launched, how vectors are laid out.

Nothing here needs a GPU or CuPy, so that the sources are tested without either (``tests/gpu``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mksearch.errors import ParameterError
from mksearch.params import P

__all__ = [
    "BATCH_CLASSES",
    "CANDIDATES",
    "DEFAULT_TABLE",
    "FLOAT64",
    "Kernel",
    "batch_class",
    "find_kernel",
    "read_source",
    "read_table",
    "usable_labels",
]

#: Numbers of vectors that the choice of a kernel is made for; more are as many as the last.
BATCH_CLASSES: Final = (1, 2, 4, 8, 16, 32, 64)
#: Label of the float64 product, which is a call of the library and no kernel.
FLOAT64: Final = "float64"
#: Threads of a block: enough blocks for every processor, enough threads to hide memory.
_ROW_THREADS = 256
_LIMB_THREADS = 128
_LABEL = re.compile(r"(rows|limbs)-(\d+)x(\d+)(?:x(\d+))?")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One source, compiled with its constants.

    Attributes:
        label: names source and constants, such as "rows-8x2x4" and "limbs-4x4".
        entry: function and, with ".cuh" behind it, file.
        defines: constants of the source.
        vectors_at_once: vectors that one launch takes; 0 for any number.
        rows_a_block: rows that one block computes (limbs: for all vectors of a warp).
        threads: threads of a block.
        capability: lowest compute capability, ten times: 61 or 80.
    """

    label: str
    entry: str
    defines: Mapping[str, int]
    vectors_at_once: int
    rows_a_block: int
    threads: int
    capability: int

    def options(self) -> tuple[str, ...]:
        """Return the options of the compiler."""
        return tuple(f"-D{name}={value}" for name, value in self.defines.items())

    def pack(self, vectors: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """Lay out vectors as the source reads them.

        Args:
            vectors: uint16 (batch, columns), below p; at most ``vectors_at_once``, if that is set.

        Returns:
            uint16 (padded, columns) or, for limbs, (2 * padded, columns).
        """
        if self.entry == "row_panels":
            return _pack_bytes(vectors, self.vectors_at_once)
        return _pack_limbs(vectors, 4 * self.defines["COLUMN_TILES"])

    def n_blocks(self, n_rows: int, n_vectors: int) -> int:
        """Return the blocks of a launch over ``n_rows`` rows, at least 1."""
        if self.entry == "row_panels":
            return -(-n_rows // self.rows_a_block)
        pieces = -(-n_vectors // (4 * self.defines["COLUMN_TILES"]))
        row_tiles = -(-n_rows // (16 * self.defines["ROW_TILES"]))
        return -(-pieces * row_tiles // (self.threads // 32))


def _pack_bytes(vectors: NDArray[np.uint16], n_padded: int) -> NDArray[np.uint16]:
    """Cut each two entries into bytes: low, low, high, high; uint16 (n_padded, columns)."""
    pairs = vectors.astype("<u2").view(np.uint8).reshape(len(vectors), -1, 2, 2)
    packed = np.zeros((n_padded, vectors.shape[1]), np.uint16)
    packed[: len(vectors)] = (
        np.ascontiguousarray(pairs.transpose(0, 1, 3, 2)).reshape(len(vectors), -1).view("<u2")
    )
    return packed


def _pack_limbs(vectors: NDArray[np.uint16], multiple: int) -> NDArray[np.uint16]:
    """Give two columns of bytes for each vector, whose products are a low and a high limb.

    A cell is ``low + 256 * high``, so an entry q meets the low byte and ``256 * q`` modulo p the
    high one.  The first column has the low bytes of both, the second their high bytes.

    Returns:
        uint16 (2 * padded, columns): padded with zeros to a multiple of ``multiple`` vectors.
    """
    n_padded = -(-len(vectors) // multiple) * multiple
    packed = np.zeros((n_padded, 2, vectors.shape[1]), np.uint16)
    shifted = (vectors.astype(np.uint32) * 256 % P).astype(np.uint16)
    packed[: len(vectors), 0] = (vectors & 255) | ((shifted & 255) << 8)
    packed[: len(vectors), 1] = (vectors >> 8) | (shifted & 0xFF00)
    return packed.reshape(2 * n_padded, vectors.shape[1])


def find_kernel(label: str) -> Kernel:
    """Return the kernel of a label.

    Raises:
        ParameterError: no kernel has this label.
    """
    found = _LABEL.fullmatch(label)
    if found is not None:
        numbers = [int(number) for number in found.groups()[1:] if number is not None]
        if found[1] == "rows" and len(numbers) == 3:
            lanes, rows, batch = numbers
            if lanes in (8, 16, 32) and rows in (1, 2, 4) and batch in (1, 2, 4, 8):
                defines = {"LANES": lanes, "ROWS": rows, "BATCH": batch}
                a_block = _ROW_THREADS // lanes * rows
                return Kernel(label, "row_panels", defines, batch, a_block, _ROW_THREADS, 61)
        if found[1] == "limbs" and len(numbers) == 2:
            row_tiles, column_tiles = numbers
            if row_tiles in (1, 2, 4) and column_tiles in (1, 2, 4):
                defines = {"ROW_TILES": row_tiles, "COLUMN_TILES": column_tiles}
                a_block = _LIMB_THREADS // 32 * 16 * row_tiles
                return Kernel(label, "limb_panels", defines, 0, a_block, _LIMB_THREADS, 80)
    raise ParameterError(f"there is no GPU kernel {label!r}")


#: What is timed for each class of batches.
CANDIDATES: Final[Mapping[int, tuple[str, ...]]] = {
    1: ("rows-8x2x1", "rows-8x4x1", "rows-32x2x1", "rows-32x4x1"),
    2: ("rows-8x2x2", "rows-8x4x2", "rows-32x2x2", "rows-32x4x2"),
    4: ("rows-8x2x4", "rows-8x4x4", "rows-32x2x4", "limbs-4x1"),
    8: ("rows-8x2x8", "rows-32x2x8", "limbs-4x2"),
    16: ("rows-8x2x8", "limbs-4x4", "limbs-2x4", FLOAT64),
    32: ("rows-8x2x8", "limbs-4x4", "limbs-2x4", FLOAT64),
    64: ("rows-8x2x8", "limbs-4x4", "limbs-2x4", FLOAT64),
}
#: What is taken before anything was timed.
DEFAULT_TABLE: Final[Mapping[int, str]] = {
    1: "rows-8x4x1",
    2: "rows-8x4x2",
    4: "rows-8x2x4",
    8: "rows-8x2x8",
    16: "limbs-2x4",
    32: "limbs-2x4",
    64: "limbs-2x4",
}


def batch_class(n_vectors: int) -> int:
    """Return the class of a batch: the smallest that holds it, or the largest."""
    return next((size for size in BATCH_CLASSES if size >= n_vectors), BATCH_CLASSES[-1])


def usable_labels(size: int, capability: int) -> tuple[str, ...]:
    """Return what may be timed for a class of batches on a GPU; the float64 product if nothing is.

    Args:
        size: one of ``BATCH_CLASSES``.
        capability: compute capability, ten times: 90 for 9.0.
    """
    usable = tuple(
        label
        for label in CANDIDATES[size]
        if label == FLOAT64 or find_kernel(label).capability <= capability
    )
    return usable or (FLOAT64,)


def read_table(stored: object, capability: int) -> dict[int, str] | None:
    """Return a table that was measured before, or None for one that does not fit.

    Args:
        stored: classes as text, with labels, as it came from a file that anybody may have edited.
        capability: of the GPU, ten times.
    """
    if not isinstance(stored, Mapping):
        return None
    table = {}
    for size in BATCH_CLASSES:
        label = stored.get(str(size))
        if label not in usable_labels(size, capability):
            return None
        table[size] = str(label)
    return table


def read_source(entry: str) -> str:
    """Return the source of ``row_panels`` or ``limb_panels``, whole."""
    folder = resources.files("mksearch.scoring") / "cuda_sources"
    names = ("modp.cuh", f"{entry}.cuh")
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)
