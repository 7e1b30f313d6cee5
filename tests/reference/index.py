"""Rows, levels, columns, cells, check rows, masking (sections 4.2 to 4.5)."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from .codec import u8
from .field import P
from .keys import ColumnKeys
from .keystream import CHECK, DEDICATED_ORDER, MASK, keyed_permutation, word
from .text import Corpus, Statistics

Matrix = list[list[int]]
"""Physical rows of a level, each a list of elements."""


class Row(NamedTuple):
    """Documents with the same term frequencies: tf by ascending term id, length, members by id."""

    tfs: dict[int, int]
    length: int
    members: list[tuple[str, str, str]]


def corpus_rows(corpus: Corpus, order: Sequence[int], stats: Statistics) -> list[Row]:
    """Return the rows in the order in which `order` (document numbers) first meets them."""
    if not corpus:
        raise ValueError("a segment has at least one row")
    if sorted(order) != list(range(len(corpus))):
        raise ValueError("the order is not a permutation of the document numbers")
    ids = {term: i for i, term in enumerate(stats.terms)}
    rows: dict[tuple[tuple[int, int], ...], Row] = {}
    for number in order:
        external_id, title, snippet, terms = corpus[number]
        if not 1 <= len(external_id.encode("utf-8")) <= 1024:
            raise ValueError("an external id is not 1..1024 bytes long")
        tfs = sorted(Counter(ids[term] for term in terms).items())
        row = rows.setdefault(tuple(tfs), Row(dict(tfs), len(terms), []))
        row.members.append((external_id, title, snippet))
    for row in rows.values():
        row.members.sort(key=lambda member: member[0].encode("utf-8"))
    return list(rows.values())


def n_blocks(n_rows: int, fan_out: int) -> int:
    """Return the number of blocks that hold n_rows data rows."""
    return -(-n_rows // fan_out)


def level_rows(n_rows: int, fan_out: int) -> list[int]:
    """Return the number of data rows of every level, from the documents to the root."""
    levels = [n_rows]
    while n_blocks(levels[-1], fan_out) > 1:
        levels.append(n_blocks(levels[-1], fan_out))
    return levels


def physical_rows(n_rows: int, fan_out: int, n_checks: int) -> int:
    """Return the number of physical rows of a level with n_rows data rows."""
    return n_blocks(n_rows, fan_out) * (fan_out + n_checks)


def physical(row: int, fan_out: int, n_checks: int) -> int:
    """Return the physical row of a data row."""
    return row // fan_out * (fan_out + n_checks) + row % fan_out


def check_row(block: int, k: int, fan_out: int, n_checks: int) -> int:
    """Return the physical row of check k of a block."""
    return block * (fan_out + n_checks) + fan_out + k


def _ceil64(value: Fraction | int) -> int:
    return -(-value // 64) * 64


def default_widths(
    n_distinct_terms: int, n_rows: int, n_terms: int, n_tables: int, n_levels: int
) -> list[tuple[int, int]]:
    """Return (w0, w1) of every level; n_distinct_terms is summed over the rows."""
    nearest = round(Fraction(72 * n_distinct_terms, n_rows * 256)) * 256
    documents = min(max(nearest, 256), 8192)
    out = []
    for level in range(n_levels):
        target = documents * [1, 4, 16][min(level, 2)]
        if _ceil64(n_terms) + 64 * n_tables <= target:
            out.append((max(64, _ceil64(n_terms)), 64))
        else:
            width = _ceil64(Fraction(target, 1 + n_tables))
            out.append((width, width))
    return out


class Columns(NamedTuple):
    """Where the terms of a level are: `of[term id]` is [dedicated] or one column a table."""

    w0: int
    w1: int
    n_tables: int
    of: list[list[int]]

    @property
    def width(self) -> int:
        """Return D."""
        return self.w0 + self.n_tables * self.w1

    def panel(self, g: int) -> Iterator[int]:
        """List the columns of the dedicated panel and table g."""
        yield from range(self.w0)
        yield from range(self.w0 + g * self.w1, self.w0 + (g + 1) * self.w1)


def columns_of(
    keys: ColumnKeys,
    level: int,
    terms: Sequence[str],
    n_dedicated: int,
    widths: tuple[int, int],
    n_tables: int,
) -> Columns:
    """Place every term of the vocabulary on a level."""
    w0, w1 = widths
    if w0 % 64 or w1 % 64 or min(w0, w1) < 64 or not 0 <= n_dedicated <= w0:
        raise ValueError(f"widths {widths} or {n_dedicated} dedicated terms are out of range")
    perm = keyed_permutation(keys.dedicated, DEDICATED_ORDER, level, w0)
    of = []
    for i, term in enumerate(terms):
        if i < n_dedicated:
            of.append([perm[i]])
            continue
        message = u8(level) + term.encode("utf-8")
        digest = hmac.new(keys.shared, message, hashlib.sha512).digest()
        y = [int.from_bytes(digest[8 * g : 8 * g + 8], "big") for g in range(n_tables)]
        of.append([w0 + g * w1 + y[g] % w1 for g in range(n_tables)])
    return Columns(w0, w1, n_tables, of)


def parent_impacts(children: Sequence[dict[int, int]], fan_out: int) -> list[dict[int, int]]:
    """Return, for every block, the largest impact of every term below it."""
    parents = []
    for start in range(0, len(children), fan_out):
        parent: dict[int, int] = {}
        for child in children[start : start + fan_out]:
            for term, impact in child.items():
                parent[term] = max(impact, parent.get(term, 0))
        parents.append(parent)
    return parents


def check_weight(check_key: bytes, level: int, k: int, row: int) -> int:
    """Return v of check k for the child at this physical row."""
    return word(check_key, CHECK, level, k, row)


def cells(
    impacts: Sequence[dict[int, int]],
    columns: Columns,
    check_key: bytes,
    level: int,
    fan_out: int,
    n_checks: int,
) -> Matrix:
    """Return W of a level with its check rows, all physical rows."""
    matrix = [[0] * columns.width for _ in range(physical_rows(len(impacts), fan_out, n_checks))]
    for r, row in enumerate(impacts):
        target = matrix[physical(r, fan_out, n_checks)]
        for term, impact in row.items():
            for c in columns.of[term]:
                target[c] = max(target[c], impact)
    for block in range(n_blocks(len(impacts), fan_out)):
        first = block * (fan_out + n_checks)
        for k in range(n_checks):
            sums = matrix[check_row(block, k, fan_out, n_checks)]
            for child in range(first, first + fan_out):
                v = check_weight(check_key, level, k, child)
                for c, value in enumerate(matrix[child]):
                    if value:
                        sums[c] = (sums[c] + v * value) % P
    return matrix


def masked(matrix: Matrix, mask_key: bytes, level: int) -> Matrix:
    """Return C of a level."""
    return [
        [(value + word(mask_key, MASK, level, c, row)) % P for c, value in enumerate(values)]
        for row, values in enumerate(matrix)
    ]
