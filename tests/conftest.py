"""How hypothesis runs here: no deadline anywhere, the same examples every time in CI."""

from __future__ import annotations

import os

from hypothesis import settings

# The first call of a compiled loop takes seconds, which no example should be blamed for.  In CI a
# change must fail for what it does, not for the examples it happened to meet.
settings.register_profile("mksearch", deadline=None, print_blob=True)
settings.register_profile("mksearch-ci", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("mksearch-ci" if os.environ.get("CI") else "mksearch")
