"""What planning takes from measurements, and what it takes from goals where nothing is measured."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FIGURES", "Figure", "figure"]

_BENCH = "docs/benchmarks/figures.json"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that no formula gives.

    Attributes:
        name: what plans call it.
        value: in ``unit``.
        unit: of the value.
        what: what it is, in words.
        is_measured: False for a goal or an estimate that no run has confirmed.
        source: where it comes from.
    """

    name: str
    value: float
    unit: str
    what: str
    is_measured: bool
    source: str


#: Measured ones are held against the newest report by tests/unit/test_planning.py.
FIGURES = (
    Figure(
        "scan_rate", 24e9, "bytes/s",
        "cells that one core reads and scores for one query alone",
        True, f"{_BENCH}: engine, table reading, one vector, 1 thread",
    ),
    Figure(
        "product_rate", 36e9, "1/s",
        "products of one core for queries that share a pass, eight together",
        True, f"{_BENCH}: engine.products",
    ),
    Figure(
        "answer_cost", 18e-9, "s/byte",
        "processor time of a server for each byte of its answer: hash, sign, cut, send",
        True, f"{_BENCH}: throughput.batched against engine.queries_batched",
    ),
    Figure(
        "check_cost", 65e-9, "s/row",
        "processor time of a client for each row: combine, unmask, check",
        True, f"{_BENCH}: search.check",
    ),
    Figure(
        "reads_a_hit", 1.31, "",
        "records that the proof of an exact top k reads, over k",
        True, f"{_BENCH}: widths.records, top 10",
    ),
    Figure(
        "build_rate", 30e6, "bytes/s",
        "index that one core builds: read, count, encrypt, all but the upload",
        True, f"{_BENCH}: building.rate times widths.bytes",
    ),
    Figure(
        "gpu_scan_rate", 3.8e12, "bytes/s",
        "cells that one H200 reads and scores for one query alone",
        False, "goal of docs/benchmarks.md: 0.8 of a copy on the device (4.8e12 bytes/s)",
    ),
    Figure(
        "gpu_product_rate", 4.3e13, "1/s",
        "products of one H200 when 512 queries share a pass",
        False, "goal of docs/benchmarks.md: 10,000 queries/s, a million rows of 4,096 columns",
    ),
    Figure(
        "fast_share_short", 0.103, "",
        "cells that fast scores over those of balanced at 99,253 documents, up to 4 words",
        False, "docs/decisions/0019: counted on mix99k in the clear, checks and all levels in",
    ),
    Figure(
        "fast_share_long", 0.137, "",
        "the same for longer queries",
        False, "docs/decisions/0019: the same for claims of about 10 words",
    ),
    Figure(
        "fast_growth_short", 0.67, "",
        "exponent with which these cells grow with the documents, up to 4 words",
        False, "docs/decisions/0019: from 10,000 to 364,651 documents",
    ),
    Figure(
        "fast_growth_long", 0.74, "",
        "the same for longer queries",
        False, "docs/decisions/0019: from 10,000 to 364,651 documents",
    ),
    Figure(
        "word_bytes", 4.3, "bytes",
        "sealed dictionary for each word",
        False, "351,000 terms in 1.5 MB, one English corpus",
    ),
    Figure(
        "catalogue_bytes", 250.0, "bytes",
        "sealed catalogue for each document",
        False, "docs/threat-model.md, What sizes tell; English abstracts",
    ),
    Figure(
        "load", 0.7, "",
        "share of a processor or GPU that queries may keep busy",
        False, "a rule of thumb: above it waiting grows fast",
    ),
)  # fmt: skip

_BY_NAME = {one.name: one.value for one in FIGURES}


def figure(name: str) -> float:
    """Return the value of a figure."""
    return _BY_NAME[name]
