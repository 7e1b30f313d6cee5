"""Primitives of the `cryptography` library under the names and labels of the protocol."""
