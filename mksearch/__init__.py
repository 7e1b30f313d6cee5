"""Ranked search over corpora that the servers cannot read: the core, without input or output.

Nothing below this package opens a socket or a file, reads a clock, starts a thread or writes a
log.  The layers, from the top down: ``query``, ``scoring`` and ``wire``, ``index``, ``text``,
``field``, ``crypto``, ``kernels``; see ``docs/architecture.md``.
"""

__version__ = "0.1.0"
