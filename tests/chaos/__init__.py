"""Faults, mutated bytes and load without end: `./dev chaos` runs them, CI runs a part."""
