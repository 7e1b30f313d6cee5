"""Rows times eight query vectors at once: the servers' operation for queries that share a pass.

Memory gives a core far more cells than it can multiply by eight queries in 32-bit arithmetic, so
this loop uses the instruction that every x86-64 has for 16-bit ones: multiply pairs of signed words
and add each two products (``pmaddwd``; with VNNI also onto a sum).  Numbers are cut to suit it:

* a cell ``c`` becomes ``c - 2**15``, a signed word; what this takes away, ``2**15 * sum q``, is
  known before the cells are;
* an entry of a query, in -32760..32760 modulo p, becomes ``low + 256 * high`` with both limbs in
  -128..128, so that 256 products are below 2**30 and cannot overflow.

The two limbs of eight queries are the 16 lanes of one vector.  A pair of cells is copied to all of
them, so that no sum runs across lanes.  docs/decisions/0013 has the measurements.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

__all__ = ["QUERIES_AT_ONCE", "ROWS_AT_ONCE", "block_products"]

#: Shape of the block whose sums stay in registers: rows times queries.
ROWS_AT_ONCE = 8
QUERIES_AT_ONCE = 8
_LIMBS = 2
_LANES = _LIMBS * QUERIES_AT_ONCE
#: Columns that are multiplied before 32-bit sums go into 64-bit ones.
_CHUNK = 256
_WORD_SIGN = 0x8000

Edges = NDArray[np.int64]

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


class _Machine:
    """Multiplies pairs of words with the widest registers of the processor compiled for.

    Attributes:
        lanes: 32-bit lanes of a register.
        rows: rows whose sums fit in the registers together.
    """

    def __init__(self, builder: ir.IRBuilder, triple: str, features: str) -> None:
        self._builder = builder
        has = {name[1:] for name in features.split(",") if name.startswith("+")}
        self._fused = ""
        self._multiply = ""
        self.lanes, self.rows = 4, 2
        if not triple.startswith("x86_64"):
            # Plain arithmetic, for the compiler to make the best of.
            pass
        elif "avx512bw" in has:
            self.lanes, self.rows = 16, 8
            self._multiply = "llvm.x86.avx512.pmaddw.d.512"
            if "avx512vnni" in has:
                self._fused = "llvm.x86.avx512.vpdpwssd.512"
        elif "avx2" in has:
            self.lanes, self.rows = 8, 4
            self._multiply = "llvm.x86.avx2.pmadd.wd"
        elif "sse2" in has:
            self._multiply = "llvm.x86.sse2.pmadd.wd"
        self.sums = ir.VectorType(_I32, self.lanes)
        self.words = ir.VectorType(_I16, 2 * self.lanes)

    def everywhere(self, pair: ir.Value) -> ir.Value:
        """Copy two words (i32) into every lane."""
        builder = self._builder
        one = builder.insert_element(ir.Constant(self.sums, ir.Undefined), pair, _I32(0))
        zeros = ir.Constant(ir.VectorType(_I32, self.lanes), [0] * self.lanes)
        return builder.shuffle_vector(one, one, zeros)

    def accumulate(self, total: ir.Value, left: ir.Value, right: ir.Value) -> ir.Value:
        """Add ``left[2i] * right[2i] + left[2i + 1] * right[2i + 1]`` to lane ``i``."""
        builder = self._builder
        if self._fused:
            return builder.call(self._declare(self._fused, 3), [total, left, right])
        left, right = builder.bitcast(left, self.words), builder.bitcast(right, self.words)
        if self._multiply:
            products = builder.call(self._declare(self._multiply, 2), [left, right])
            return builder.add(total, products)
        for start in (0, 1):
            a, b = (builder.sext(self._every_other(v, start), self.sums) for v in (left, right))
            total = builder.add(total, builder.mul(a, b))
        return total

    def _every_other(self, words: ir.Value, start: int) -> ir.Value:
        places = list(range(start, 2 * self.lanes, 2))
        mask = ir.Constant(ir.VectorType(_I32, self.lanes), places)
        return self._builder.shuffle_vector(words, words, mask)

    def _declare(self, name: str, n_arguments: int) -> ir.Function:
        operand = self.sums if name == self._fused else self.words
        arguments = [operand] * 2 if n_arguments == 2 else [self.sums] * 3
        signature = ir.FunctionType(self.sums, arguments)
        return cgutils.get_or_insert_function(self._builder.module, signature, name)


def _emit_chunk(
    _typing: Any, cells: Any, n_pairs: Any, limbs: Any, sums: Any, ahead: Any, ahead_stride: Any
) -> Any:
    """Add the products of eight rows of a chunk with eight queries to 64-bit sums.

    Args:
        cells: address of int16 (8, _CHUNK).
        n_pairs: pairs of columns in use, 1.._CHUNK / 2.
        limbs: address of int16 (n_pairs, 16, 2).
        sums: address of int64 (8, 16); changed.
        ahead: address of the cells that will be wanted next; only prefetched.
        ahead_stride: bytes from one row of them to another.
    """
    # Types, and all are numbers.
    del cells, n_pairs, limbs, sums, ahead, ahead_stride
    signature = types.void(*[types.uintp] * 6)

    def generate(context: Any, builder: ir.IRBuilder, _signature: Any, arguments: Any) -> Any:
        triple, _cpu, features = context.codegen().magic_tuple()
        machine = _Machine(builder, triple, features)
        for first_row in range(0, ROWS_AT_ONCE, machine.rows):
            for first_lane in range(0, _LANES, machine.lanes):
                _emit_loop(builder, machine, arguments, first_row, first_lane)
        return context.get_dummy_value()

    return signature, generate


_multiply_chunk: Any = intrinsic(_emit_chunk)


def _emit_loop(
    builder: ir.IRBuilder, machine: _Machine, arguments: Any, first_row: int, first_lane: int
) -> None:
    """Write the loop over the pairs of columns for some rows and as many lanes as a register."""
    cells, n_pairs, limbs, sums, ahead, ahead_stride = arguments
    pairs = builder.inttoptr(cells, _I32.as_pointer())
    vectors = builder.inttoptr(limbs, _I32.as_pointer())
    rows = range(first_row, first_row + machine.rows)
    before = builder.block
    loop = builder.append_basic_block("pairs")
    after = builder.append_basic_block("sums")
    builder.branch(loop)

    builder.position_at_end(loop)
    at = builder.phi(_I64)
    at.add_incoming(_I64(0), before)
    totals = [builder.phi(machine.sums) for _ in rows]
    lanes_before = builder.add(builder.mul(at, _I64(_LANES)), _I64(first_lane))
    vector = _load(builder, machine.sums, vectors, lanes_before)
    if first_row == first_lane == 0:
        _emit_prefetch(builder, at, ahead, ahead_stride)
    grown = []
    for row, total in zip(rows, totals, strict=True):
        total.add_incoming(ir.Constant(machine.sums, [0] * machine.lanes), before)
        place = builder.add(at, _I64(row * _CHUNK // 2))
        pair = machine.everywhere(builder.load(builder.gep(pairs, [place])))
        grown.append(machine.accumulate(total, pair, vector))
        total.add_incoming(grown[-1], loop)
    following = builder.add(at, _I64(1))
    at.add_incoming(following, loop)
    builder.cbranch(builder.icmp_unsigned("<", following, n_pairs), loop, after)

    builder.position_at_end(after)
    wide = ir.VectorType(_I64, machine.lanes)
    out = builder.inttoptr(sums, _I64.as_pointer())
    for row, total in zip(rows, grown, strict=True):
        place = _I64(row * _LANES + first_lane)
        old = _load(builder, wide, out, place)
        store = builder.store(
            builder.add(old, builder.sext(total, wide)),
            builder.bitcast(builder.gep(out, [place]), wide.as_pointer()),
        )
        store.align = 8


def _load(builder: ir.IRBuilder, kind: ir.Type, base: ir.Value, place: ir.Value) -> ir.Value:
    pointer = builder.bitcast(builder.gep(base, [place]), kind.as_pointer())
    loaded = builder.load(pointer)
    # Less than the type's own: NumPy promises no more.
    loaded.align = 4 if kind.element == _I32 else 8
    return loaded


def _emit_prefetch(
    builder: ir.IRBuilder, at: ir.Value, ahead: ir.Value, ahead_stride: ir.Value
) -> None:
    """Have one of the 8 x 8 cache lines of the next chunk fetched, each for two pairs of columns.

    Rows lie kilobytes apart, and the processor does not see that the next chunk begins elsewhere.
    """
    row = builder.and_(builder.lshr(at, _I64(1)), _I64(ROWS_AT_ONCE - 1))
    line = builder.lshr(at, _I64(4))
    offset = builder.add(builder.mul(row, ahead_stride), builder.shl(line, _I64(6)))
    address = builder.inttoptr(builder.add(ahead, offset), _I8.as_pointer())
    signature = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
    prefetch = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0")
    # To read, into every cache, data.
    builder.call(prefetch, [address, _I32(0), _I32(3), _I32(1)])


@nb.njit(cache=True)
def _cut_into_limbs(
    vectors: NDArray[np.uint16], limbs: NDArray[np.int16], offsets: NDArray[np.int64], edges: Edges
) -> None:
    """Write the two limbs of every entry, and what a shift of the cells took from each panel.

    Args:
        vectors: uint16 (8, columns), below p.
        limbs: int16 (columns / 2, 16, 2), overwritten: low limbs of the 8 queries, then high ones.
        offsets: int64 (panels, 8), overwritten: 2**15 times the sum of the entries.
        edges: where panels begin and end.
    """
    for b in range(vectors.shape[0]):
        for panel in range(len(edges) - 1):
            total = np.int64(0)
            for c in range(edges[panel], edges[panel + 1]):
                entry = np.int64(vectors[b, c])
                if entry > 32760:
                    entry -= 65521
                low = ((entry + 128) & 255) - 128
                limbs[c // 2, b, c % 2] = low
                limbs[c // 2, QUERIES_AT_ONCE + b, c % 2] = (entry - low) >> 8
                total += entry
            offsets[panel, b] = total * _WORD_SIGN


@nb.njit(cache=True)
def _sum_eight_rows(
    cells: NDArray[np.uint16],
    limbs: NDArray[np.int16],
    edges: Edges,
    first_row: int,
    chunk: NDArray[np.uint16],
    sums: NDArray[np.int64],
) -> None:
    """Sum the products of eight rows: int64 (panels, 8, 16), overwritten."""
    sums[:] = 0
    n_columns = cells.shape[1]
    last_row = cells.shape[0] - ROWS_AT_ONCE
    for panel in range(len(edges) - 1):
        for start in range(edges[panel], edges[panel + 1], _CHUNK):
            stop = min(start + _CHUNK, edges[panel + 1])
            for r in range(ROWS_AT_ONCE):
                cells_of_row = cells[first_row + r, start:stop]
                shifted = chunk[r, : stop - start]
                for c in range(len(cells_of_row)):
                    shifted[c] = cells_of_row[c] ^ np.uint16(_WORD_SIGN)
            ahead = cells[first_row, stop:]
            if stop == n_columns:
                ahead = cells[min(first_row + ROWS_AT_ONCE, last_row), 0:]
            _multiply_chunk(
                chunk.ctypes.data,
                (stop - start) // 2,
                limbs[start // 2 :].ctypes.data,
                sums[panel].ctypes.data,
                ahead.ctypes.data,
                2 * n_columns,
            )


@nb.njit(cache=True, parallel=True)
def block_products(
    cells: NDArray[np.uint16],
    vectors: NDArray[np.uint16],
    dedicated: int,
    table: int,
    out: NDArray[np.uint16],
) -> None:
    """Compute what ``panel_products`` does for eight vectors, eight rows at a time.

    Args:
        cells: uint16 (rows, dedicated + tables * table), below p; rows a multiple of 8, columns of
            every panel even.
        vectors: uint16 (8, columns), below p.
        dedicated: width of the dedicated panel.
        table: width of one table.
        out: uint16 (8, rows, tables), overwritten, below p.
    """
    n_tables = out.shape[2]
    edges = np.empty(n_tables + 2, np.int64)
    edges[0] = 0
    for panel in range(n_tables + 1):
        edges[panel + 1] = dedicated + panel * table
    limbs = np.empty((vectors.shape[1] // 2, _LANES, 2), np.int16)
    offsets = np.empty((n_tables + 1, QUERIES_AT_ONCE), np.int64)
    _cut_into_limbs(vectors, limbs, offsets, edges)
    for group in nb.prange(cells.shape[0] // ROWS_AT_ONCE):
        first_row = group * ROWS_AT_ONCE
        chunk = np.empty((ROWS_AT_ONCE, _CHUNK), np.uint16)
        sums = np.empty((n_tables + 1, ROWS_AT_ONCE, _LANES), np.int64)
        _sum_eight_rows(cells, limbs, edges, first_row, chunk, sums)
        for b in range(QUERIES_AT_ONCE):
            for r in range(ROWS_AT_ONCE):
                low, high = sums[0, r, b], sums[0, r, QUERIES_AT_ONCE + b]
                shared = low + 256 * high + offsets[0, b]
                for g in range(n_tables):
                    low, high = sums[1 + g, r, b], sums[1 + g, r, QUERIES_AT_ONCE + b]
                    total = shared + low + 256 * high + offsets[1 + g, b]
                    out[b, first_row + r, g] = total % 65521
