"""Access structures as monotone span programs (docs/protocol.md, section 11.2).

A secret is the first entry of a random vector; each row of the matrix gives one share of it.  The
rows that a qualified set of labels names span (1, 0, .., 0), those of any other set do not: the
former recovers the secret as a fixed combination of its shares, the latter learns nothing of it
(Karchmer and Wigderson 1993).  A label may name several rows; each is a row of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mksearch.access.attributes import Formula, Label, Threshold, epoch_of, is_epoch, show_label
from mksearch.access.scalars import draw_coefficient, lagrange
from mksearch.crypto.randomness import RandomSource
from mksearch.errors import NotQualified, ParameterError

__all__ = ["SpanProgram", "spans_target"]

#: A row of the matrix without its zeros: entry by column.
Row = Mapping[int, int]
_LABELS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class SpanProgram:
    """The matrix of an access structure and what its rows are named by.

    Attributes:
        formula: the access structure.
        matrix: rows without their zeros; entries 1..order-1.
        row_labels: label of each row.
        n_columns: at least 1.
        order: the prime modulo which everything is computed.
    """

    formula: Formula
    matrix: tuple[Row, ...]
    row_labels: tuple[Label, ...]
    n_columns: int
    order: int

    @classmethod
    def of(cls, formula: Formula, order: int) -> SpanProgram:
        """Build the span program of an access structure.

        Args:
            formula: labels and thresholds over them.
            order: a prime above the number of children of any gate.

        Raises:
            ParameterError: a threshold is not in 1..children, or the order is too small.
        """
        rows: list[Row] = []
        row_labels: list[Label] = []
        n_columns = 1

        def walk(node: Formula, vector: Row) -> None:
            nonlocal n_columns
            if isinstance(node, bytes):
                rows.append(vector)
                row_labels.append(node)
                return
            _require_threshold(node, order)
            first = n_columns
            n_columns += node.k - 1
            for j, child in enumerate(node.children, 1):
                powers = {first + m - 1: pow(j, m, order) for m in range(1, node.k)}
                walk(child, {**vector, **powers})

        walk(formula, {0: 1})
        return cls(formula, tuple(rows), tuple(row_labels), n_columns, order)

    def share(self, secret: int, random: RandomSource) -> tuple[int, ...]:
        """Share a secret: one share a row, in order.

        Args:
            secret: 0..order-1.
            random: source of one coefficient for each column but the first.

        Raises:
            ParameterError: the secret is out of range.
        """
        if not 0 <= secret < self.order:
            raise ParameterError("a secret to be shared is not below the order of the group")
        vector = [secret]
        vector += (draw_coefficient(self.order, random) for _ in range(self.n_columns - 1))
        return tuple(
            sum(entry * vector[column] for column, entry in row.items()) % self.order
            for row in self.matrix
        )

    def coefficients(self, labels: Collection[Label]) -> dict[int, int]:
        """Return what recovers the secret from the shares that ``labels`` name.

        Args:
            labels: of a key.

        Returns:
            By row number, 1..order-1: the sum of coefficient times row is (1, 0, .., 0).  Of every
            gate the children are used that need the fewest rows.

        Raises:
            NotQualified: the labels do not satisfy the access structure.
        """
        held = frozenset(labels)
        next_row = 0

        def walk(node: Formula) -> dict[int, int] | None:
            nonlocal next_row
            if isinstance(node, bytes):
                row = next_row
                next_row += 1
                return {row: 1} if node in held else None
            found = [(j, walk(child)) for j, child in enumerate(node.children, 1)]
            open_ = [(j, part) for j, part in found if part is not None]
            if len(open_) < node.k:
                return None
            open_ = sorted(open_, key=lambda one: len(one[1]))[: node.k]
            factors = lagrange([j for j, _ in open_], self.order)
            return {
                row: factor * coefficient % self.order
                for factor, (_, part) in zip(factors, open_, strict=True)
                for row, coefficient in part.items()
            }

        solution = walk(self.formula)
        if solution is None:
            raise self._not_qualified(held)
        return solution

    def _not_qualified(self, held: frozenset[Label]) -> NotQualified:
        wanted = self.row_labels[-1]
        if is_epoch(wanted) and wanted not in held and any(map(is_epoch, held)):
            return NotQualified(
                f"the key is of epoch {epoch_of(held)}, and this is of {show_label(wanted)}",
                cure="get a key of that epoch: enrol again",
            )
        missing = [label for label in dict.fromkeys(self.row_labels) if label not in held]
        shown = ", ".join(map(show_label, missing[:_LABELS_SHOWN]))
        more = f" and {len(missing) - _LABELS_SHOWN} more" if len(missing) > _LABELS_SHOWN else ""
        return NotQualified(
            f"the attributes of the key do not satisfy the policy; not held: {shown}{more}",
            cure="ask the owner for what is missing",
        )


def _require_threshold(gate: Threshold, order: int) -> None:
    if not 1 <= gate.k <= len(gate.children) < order:
        raise ParameterError(
            f"a gate of {gate.k} of {len(gate.children)} is none modulo {order}",
            cure="the threshold is 1..children, and the children fewer than the order",
        )


def spans_target(rows: Sequence[Row], n_columns: int, order: int) -> bool:
    """Tell whether (1, 0, .., 0) is in the span of some rows, by elimination modulo ``order``.

    Exact, and independent of how the matrix was built: the definition of a qualified set.

    Args:
        rows: without their zeros.
        n_columns: columns of the matrix.
        order: a prime.
    """
    target = [1] + [0] * (n_columns - 1)
    basis: list[tuple[int, list[int]]] = []

    def reduce(vector: list[int]) -> list[int]:
        for pivot, basic in basis:
            if factor := vector[pivot]:
                vector = [(a - factor * b) % order for a, b in zip(vector, basic, strict=True)]
        return vector

    for row in rows:
        rest = reduce([row.get(column, 0) % order for column in range(n_columns)])
        pivot = next((column for column, entry in enumerate(rest) if entry), None)
        if pivot is not None:
            inverse = pow(rest[pivot], -1, order)
            basis.append((pivot, [entry * inverse % order for entry in rest]))
    return not any(reduce(target))
