"""Size of the record slots of a segment: all that a server knows of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from mksearch.crypto.aead import TAG_BYTES
from mksearch.errors import ParameterError
from mksearch.params import N_TAGS, SLOT_FIT_PERCENT, SLOT_UNITS

__all__ = ["FRAME_BYTES", "UNIT_BYTES", "UNIT_ELEMENTS", "SlotShape"]

#: Length of the record bytes (u32) and first spill slot (u32).
FRAME_BYTES = 8
UNIT_BYTES = 15
UNIT_ELEMENTS = 8


@dataclass(frozen=True, slots=True)
class SlotShape:
    """Size of the slots of a segment.

    Attributes:
        units: 34, 68, 102 or 136 units of 15 bytes.
    """

    units: int

    def __post_init__(self) -> None:
        if self.units not in SLOT_UNITS:
            raise ParameterError(f"slots of {self.units} units are not supported")

    @property
    def n_elements(self) -> int:
        """Data elements of a slot: L."""
        return self.units * UNIT_ELEMENTS

    @property
    def width(self) -> int:
        """Data and tag elements of a slot."""
        return self.n_elements + N_TAGS

    @property
    def part_bytes(self) -> int:
        """Plaintext bytes of one part."""
        return self.units * UNIT_BYTES - TAG_BYTES

    def n_parts(self, n_record_bytes: int) -> int:
        """Return the slots that a record of this many bytes takes."""
        return -(-(FRAME_BYTES + n_record_bytes) // self.part_bytes)

    def groups(self, n_slots: int) -> tuple[int, int]:
        """Return (groups, slots of a group) that private fetches cut ``n_slots`` slots into."""
        group_slots = max(1, isqrt(n_slots // self.width))
        return -(-n_slots // group_slots), group_slots

    @classmethod
    def choose(cls, sizes: NDArray[np.int64]) -> SlotShape:
        """Choose the smallest slots that 97 % of the records fit in.

        Args:
            sizes: int64 (n_rows,), record bytes.
        """
        for units in SLOT_UNITS:
            shape = cls(units)
            fits = np.count_nonzero(sizes + FRAME_BYTES <= shape.part_bytes)
            if 100 * fits >= SLOT_FIT_PERCENT * len(sizes):
                return shape
        return shape
