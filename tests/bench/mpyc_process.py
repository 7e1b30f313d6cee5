"""One of the three processes of MPyC in the comparison; the first prints milliseconds as JSON."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import time
from typing import Any

import numpy as np

#: The field of mksearch, for the same exact arithmetic.
PRIME = 65521


async def _products(mpc: Any, n_docs: int, columns: int) -> float:
    field = mpc.SecFld(PRIME)
    source = np.random.default_rng(0)
    documents = source.integers(0, 128, (n_docs, columns))
    query = np.zeros(columns, dtype=int)
    query[source.integers(0, columns, 10)] = 1
    kept = mpc.input(field.array(field.field.array(documents)), senders=0)
    await mpc.gather(kept)
    best = float("inf")
    for _ in range(3):
        await mpc.barrier()
        started = time.perf_counter()
        asked = mpc.input(field.array(field.field.array(query)), senders=0)
        sums = await mpc.output(mpc.np_matmul(kept, asked))
        best = min(best, time.perf_counter() - started)
    found = [int(value) for value in sums]
    if found != (documents @ query % PRIME).tolist():
        raise ValueError("the product is wrong")
    return 1000 * best


async def main() -> None:
    """Share documents once, then time a query from its sharing to its opened products."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--docs", type=int, default=256)
    parser.add_argument("--columns", type=int, default=2048)
    options, _ = parser.parse_known_args()
    # Reads its own options, such as -M3, from the same command line.
    mpc = importlib.import_module("mpyc.runtime").mpc
    async with mpc:
        ms = await _products(mpc, options.docs, options.columns)
    if mpc.pid == 0:
        print(json.dumps({"ms": ms}))


if __name__ == "__main__":
    asyncio.run(main())
