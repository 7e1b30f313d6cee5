"""Who may open what: policies, span programs, attribute-based encryption, its shared authority.

Everything here is section 11 of docs/protocol.md.  Servers know policies, the pairing and how to
issue their part of a key; what opens, deals or combines is behind the wall (.importlinter).
"""
