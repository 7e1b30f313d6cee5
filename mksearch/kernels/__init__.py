"""Compiled loops over arrays: the only importer of numba.

Functions here trust their callers: shapes and ranges are checked one layer above.  Compiled code
is cached on disk beside the sources.
"""
