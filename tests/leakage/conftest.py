"""What holds for every leakage test."""

from __future__ import annotations

from collections.abc import Iterator

import numba
import pytest


@pytest.fixture(autouse=True, scope="package")
def one_compiled_thread() -> Iterator[None]:
    """Run compiled loops on one core: waking others costs more than such small arrays save."""
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    yield
    numba.set_num_threads(before)
