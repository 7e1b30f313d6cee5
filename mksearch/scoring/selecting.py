"""Groups of record slots by selectors: the servers' work of section 8.1 of docs/protocol.md."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mksearch.errors import ParameterError
from mksearch.field.modp import add, matmul
from mksearch.kernels.selecting import weighted_sums
from mksearch.params import P
from mksearch.scoring.engine import Engine
from mksearch.scoring.reference import NumpyEngine

__all__ = ["select_groups"]


def select_groups(
    engine: Engine,
    slots: NDArray[np.uint16],
    selectors: NDArray[np.uint16],
    group_slots: int,
) -> NDArray[np.uint16]:
    """Return the selectors times the groups of slots (step 8.1.4).

    The reference engine multiplies matrices of integers; beside every other engine a compiled loop
    does it on the processor, as no engine keeps slots in memory of its own. One call at a time in a
    process: compiled loops share one pool of threads.

    Args:
        engine: of the server.
        slots: uint16 (n_slots, width), below p; usually a mapped file.
        selectors: uint16 (n_fetches, groups), below p.
        group_slots: slots of a group; the last group may have fewer.

    Returns:
        uint16 (n_fetches, group_slots, width), below p.

    Raises:
        ParameterError: shapes do not fit, or an element is out of range.
    """
    n_slots, width = slots.shape
    n_groups = -(-n_slots // group_slots)
    if selectors.dtype != np.uint16 or selectors.ndim != 2 or selectors.shape[1] != n_groups:
        raise ParameterError(f"selectors of shape {selectors.shape} do not fit {n_groups} groups")
    if selectors.size and int(selectors.max()) >= P:
        raise ParameterError(f"a selector holds an element that is not below {P}")
    multiply = matmul if isinstance(engine, NumpyEngine) else _compiled
    n_whole = n_slots // group_slots
    whole = slots[: n_whole * group_slots].reshape(n_whole, group_slots * width)
    found = multiply(selectors[:, :n_whole], whole).reshape(-1, group_slots, width)
    if n_whole < n_groups:
        rest = slots[n_whole * group_slots :]
        own = matmul(selectors[:, n_whole:], rest.reshape(1, -1))
        found[:, : len(rest)] = add(found[:, : len(rest)], own.reshape(-1, len(rest), width))
    return found


def _compiled(weights: NDArray[np.uint16], matrix: NDArray[np.uint16]) -> NDArray[np.uint16]:
    # Compiled code tells apart arrays that may not be written, as mapped ones are.
    matrix = matrix.view()
    matrix.flags.writeable = False
    out = np.empty((len(weights), matrix.shape[1]), np.uint16)
    weighted_sums(matrix, np.array(weights, order="C"), out)
    return out
